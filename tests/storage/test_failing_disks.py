"""A disk that fails while a file is created, written or put in place: nothing is left that stops
the next attempt.
"""

import errno
import os
from itertools import count
from types import SimpleNamespace

import pytest
from test_secure_files import KINDS

from disk_faults import CALLS, failing
from redraft.errors import StoreError
from redraft.gateway.request_store import RequestStore
from redraft.runs import BatchReport
from redraft.runs import files as run_files
from redraft.storage import Journal, secure_files
from redraft.storage.secure_files import PathLock
from redraft.validation.label_file import LabelFile, LabelQuestion

pytestmark = pytest.mark.usefixtures("no_open_files")

NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE)
LINK_IS_UNKNOWN = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EMLINK,
    errno.EINVAL,
)


def labels(path):
    with LabelFile(path, LabelQuestion("score")):
        pass


def request_store(path):
    RequestStore(path.parent).close()


def path_lock(path):
    PathLock(path, "file").close()


WRITERS = KINDS | {
    "labels": ("labels.jsonl", labels),
    "a gateway's store": ("gateway.journal", request_store),
    "a lock": ("any", path_lock),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", WRITERS)
def test_after_a_failure_the_next_attempt_succeeds(tmp_path, kind, call):
    """Wherever a call fails: no lock and no draft is left, and the same writing succeeds once the
    disk works.
    """
    name, write = WRITERS[kind]
    for after in count():
        number = NUMBERS[after % len(NUMBERS)]
        folder = tmp_path / str(after)
        folder.mkdir()
        with failing(call, number, after=after) as fault:
            try:
                write(folder / name)
            except (StoreError, OSError) as error:
                assert (
                    os.strerror(number) in str(error)
                    or "disk is full" in str(error)
                    or number == errno.EIO
                )
        left = {path.name for path in folder.iterdir()}
        assert not {each for each in left if each.endswith((".lock", ".part"))}, (
            f"the call number {after + 1} failed"
        )
        if fault.count <= after:
            break
        write(folder / name)


@pytest.mark.parametrize(
    "kind",
    ["an answer", "packed rows", "a table", "a card", "priors", "what is saved of a journal"],
)
def test_file_that_may_not_be_on_the_disk_replaces_nothing(tmp_path, kind):
    """The system is asked to write the new one out before it has the name: a power failure leaves
    one of the two, and no empty file.
    """
    name, write = WRITERS[kind]
    write(tmp_path / name)
    (tmp_path / name).write_bytes(b"the old one")
    with (
        failing("fsync", errno.EIO) as fault,
        pytest.raises((StoreError, OSError), match=os.strerror(errno.EIO)),
    ):
        write(tmp_path / name)
    assert fault.count == 1
    assert (tmp_path / name).read_bytes() == b"the old one"


@pytest.mark.parametrize("number", LINK_IS_UNKNOWN)
def test_lock_without_hard_links(tmp_path, number):
    """The lock is created under its own name: exclusive, signed, and released at the end."""
    with failing("link", number):
        lock = PathLock(tmp_path / "j", "journal")
        assert b'"pid"' in lock.path.read_bytes()
        with failing("link", number), pytest.raises(StoreError, match="is held by this process"):
            PathLock(tmp_path / "j", "journal")
        lock.close()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("call", ["create", "write", "part of a write"])
@pytest.mark.parametrize("after", [0, 1])
def test_lock_without_hard_links_on_a_failing_disk(tmp_path, call, after):
    """What was created under the lock's name is removed, whatever failed."""
    with (
        failing("link", errno.EPERM),
        failing(call, errno.ENOSPC, after=after),
        pytest.raises(StoreError, match="No space left"),
    ):
        PathLock(tmp_path / "j", "journal")
    assert [*tmp_path.iterdir()] == []
    path_lock(tmp_path / "j")


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOENT, errno.ENOMEM]
)
def test_other_errors_of_link_are_errors(tmp_path, number):
    """A full disk is not taken for one without hard links."""
    with failing("link", number), pytest.raises(StoreError, match=os.strerror(number)):
        PathLock(tmp_path / "j", "journal")
    assert [*tmp_path.iterdir()] == []


def test_empty_lock_that_nobody_holds_is_stale(tmp_path):
    """A process that was killed between the creation and the signature has left it."""
    (tmp_path / "j.lock").touch()
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_empty_lock_that_is_held_is_a_lock(tmp_path):
    """Its holder has created it, and is about to sign it: it is neither removed nor called
    foreign.
    """
    with secure_files.create_file(tmp_path / "j.lock") as file:
        secure_files.try_lock(file)
        with pytest.raises(StoreError, match="is held by another process"):
            PathLock(tmp_path / "j", "journal")
    assert (tmp_path / "j.lock").exists()
    path_lock(tmp_path / "j")


def test_lock_that_another_process_removes_before_it_is_held(tmp_path, monkeypatch):
    """Without hard links it is empty and free for a moment, and taken for a stale one; its creator
    then takes another one.
    """
    removed = []

    def try_lock(file, before=secure_files.try_lock):
        if (tmp_path / "j.lock").exists() and not removed:
            removed.append((tmp_path / "j.lock").unlink())
        return before(file)

    monkeypatch.setattr(secure_files, "try_lock", try_lock)
    with failing("link", errno.EPERM):
        lock = PathLock(tmp_path / "j", "journal")
    assert removed and secure_files.is_file_at(lock._file, lock.path)
    lock.close()


def test_verdicts_whose_first_line_is_torn_are_begun_again(tmp_path):
    """A process that was killed in the first moment has left no header: the next one writes it."""
    write = WRITERS["verdicts"][1]
    (tmp_path / "verdicts.jsonl").write_bytes(b'{"redraft_verd')
    write(tmp_path / "verdicts.jsonl")
    assert (tmp_path / "verdicts.jsonl").read_bytes().startswith(b'{"redraft_verdicts"')
    write(tmp_path / "verdicts.jsonl")


def test_first_records_of_a_trace_that_could_not_be_written(tmp_path):
    """The file is empty then, and the same command begins it."""
    write = WRITERS["a trace"][1]
    with failing("part of a write", errno.ENOSPC), pytest.raises(StoreError):
        write(tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_bytes() == b""
    write(tmp_path / "t.jsonl")


def test_copy_of_a_deleted_journal_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """A part of a journal at its place would stop a new run."""

    def copy(journal, target):
        target.write_bytes(b"SQLite format 3")
        raise StoreError("the disk is full")

    monkeypatch.setattr(Journal, "copy", copy)
    with Journal(tmp_path / "j") as journal:
        files = run_files.RunFiles(
            journal, None, False, SimpleNamespace(reason="", replace_end=lambda *_: None)
        )
        files._watched = [run_files.WatchedFile.open("journal", journal.path)]
        journal.path.unlink()
        files.check_at_end()
        report = files.with_advice(BatchReport(stop_note="deleted"))
        files.close()
        assert report.journal_lost and "the disk is full" in report.stop_note
        assert not journal.path.exists()
