"""Files that Redraft writes: it follows no link and overwrites no file of another owner."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from disk_faults import failing
from redraft import ScriptedModel, Task, refine
from redraft.errors import StoreError
from redraft.graders.cards import write_card_file
from redraft.loop.records import Candidate
from redraft.loop.trace import Trace
from redraft.plans.quality.priors import Priors
from redraft.storage import Journal, JsonlStore, read_trace, salvage, write_atomic
from redraft.storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from redraft.storage.secure_files import PathLock, draft_folder
from redraft.tables.export.writer import open_drafts
from redraft.tables.writers import open_output
from redraft.validation.run import VerdictFile
from require import as_root

pytestmark = pytest.mark.usefixtures("no_open_files")

PAIR = PriorsKey.from_graders("m", "identity", [("g", 1.0, "f")])
ANYBODY = 0o1777
NOBODY = 65534


def rows(path):
    with open_output(path) as output:
        output.put(0, {"a": "b"})


def journal(path):
    with Journal(path) as opened:
        opened.update_run("r")


def trace(path):
    with JsonlStore(path) as store:
        store.append(Trace(Task("q")) + Candidate(0, "a"))


def recover(path):
    journal(path.with_name("journal"))
    salvage(path.with_name("journal"), path, overwrite=True)


def export_rows(path):
    with open_drafts({"train": str(path)}) as outputs:
        outputs["train"].put(0, {"a": "b"})


def priors(path):
    PriorsStore(path.parent).save(StoredPriors.create(PAIR, Priors(), "test"))


def verdicts(path):
    with VerdictFile(path, {"grader": "f"}):
        pass


PRIVATE = {
    "a journal": ("j", journal),
    "a trace": ("t.jsonl", trace),
    "priors": (f"{PAIR.key}.json", priors),
    "verdicts": ("verdicts.jsonl", verdicts),
}
NAMED = {
    "an answer": ("answer.txt", lambda path: write_atomic(path, "new")),
    "rows": ("out.jsonl", rows),
    "packed rows": ("out.jsonl.gz", rows),
    "a table": ("out.csv", rows),
    "what is saved of a journal": ("saved.jsonl", recover),
    "an export": ("train.jsonl", export_rows),
    "a card": ("card.md", lambda path: write_card_file(path, "new")),
}
KINDS = PRIVATE | NAMED
GUESSED = (
    ".{name}.part",
    ".{name}.tmp",
    ".{name}.{pid}.tmp",
    ".{pid}.{name}",
    ".{name}.lock.part",
    "{name}.part",
    "{name}.tmp",
)
DERIVED = {"priors": "{name}", "a card": "{name}"}
"""Files whose names Redraft chooses: a link there is replaced, whoever created it."""


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("kind", KINDS)
def test_links_at_generated_names_are_not_followed(tmp_path, kind):
    """The targets of links at guessable names stay unchanged, and the output is complete."""
    name, write = KINDS[kind]
    folder, precious = tmp_path / "shared", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("precious")
    for guess in (*GUESSED, *filter(None, [DERIVED.get(kind)])):
        (folder / guess.format(name=name, pid=os.getpid())).symlink_to(precious)
    write(folder / name)
    assert precious.read_text() == "precious"
    assert (folder / name).stat().st_size > 0
    assert not (folder / name).is_symlink()


@as_root
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DERIVED])
@pytest.mark.parametrize("whose", ["its folder", "itself"])
def test_foreign_link_in_a_shared_folder_is_rejected(tmp_path, kind, whose):
    """The error names the link, wherever it is on the path."""
    name, write = KINDS[kind]
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    secret.mkdir()
    shared.mkdir()
    shared.chmod(ANYBODY)
    link = shared / (name if whose == "itself" else "way")
    link.symlink_to(secret / name if whose == "itself" else secret)
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises((StoreError, OSError), match="link of another user") as caught:
        write(shared / name if whose == "itself" else link / name)
    assert str(link) in str(caught.value)
    assert list(secret.iterdir()) == []


@as_root
@pytest.mark.parametrize("kind", ["a journal", "a trace", "verdicts"])
def test_foreign_file_is_not_overwritten(tmp_path, kind):
    """The owner of the file could read what is written to it."""
    name, write = KINDS[kind]
    tmp_path.chmod(ANYBODY)
    (tmp_path / name).touch(mode=0o666)
    os.chown(tmp_path / name, NOBODY, NOBODY)
    with pytest.raises(StoreError, match=f"{name}.*another user"):
        write(tmp_path / name)
    assert (tmp_path / name).stat().st_size == 0


@as_root
def test_drafts_of_others_stay(tmp_path):
    """One's own that nobody writes to are removed; root could remove those of all."""
    mine, other = (tmp_path / f".any.{digit * 16}.part" for digit in "ab")
    for draft in (mine, other):
        draft.touch()
    os.chown(other, NOBODY, NOBODY)
    write_atomic(tmp_path / "any", "text")
    assert (mine.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DERIVED])
def test_own_link_is_followed(tmp_path, kind):
    """The link stays, and its target is written completely."""
    name, write = KINDS[kind]
    target = tmp_path / "elsewhere" / name
    target.parent.mkdir()
    (tmp_path / name).symlink_to(target)
    write(tmp_path / name)
    assert (tmp_path / name).is_symlink()
    assert target.stat().st_size > 0


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("kind", KINDS)
def test_file_modes(tmp_path, monkeypatch, kind, umask):
    """Internal files are private, named files follow the umask, and a replaced file keeps its
    mode.
    """
    name, write = KINDS[kind]
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path / "home"))
    before = os.umask(umask)
    try:
        path = tmp_path / "home" / "kept" / name
        if kind in {"priors", "verdicts"}:
            write(path)
            assert [mode(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
        path = tmp_path / name
        write(path)
        assert mode(path) == (0o600 if kind in PRIVATE else 0o666 & ~umask)
        if kind in NAMED:
            for old_mode in (0o640, 0o604):
                path.chmod(old_mode)
                write(path)
                assert mode(path) == old_mode
    finally:
        os.umask(before)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_beside_a_journal_are_private(tmp_path, umask):
    """Lock, WAL and index are private while the journal is open; an existing file keeps its
    mode.
    """
    before = os.umask(umask)
    try:
        with Journal(tmp_path / "j") as opened:
            opened.update_run("r")
            opened.flush()
            assert {p.name: mode(p) for p in tmp_path.iterdir()} == dict.fromkeys(
                ["j", "j-wal", "j-shm", "j.lock"], 0o600
            )
        (tmp_path / "j").chmod(0o640)
        journal(tmp_path / "j")
        assert mode(tmp_path / "j") == 0o640
    finally:
        os.umask(before)


BODIES = {
    "a journal": lambda path: Journal(path),
    "a trace": lambda path: JsonlStore(path),
    "verdicts": lambda path: VerdictFile(path, {"grader": "f"}),
    "rows": open_output,
    "packed rows": lambda path: open_output(path.with_suffix(".jsonl.gz")),
    "a table": lambda path: open_output(path.with_suffix(".csv")),
    "an export": lambda path: open_drafts({"train": str(path)}),
    "a folder": draft_folder,
    "a lock": lambda path: closing(PathLock(path, "file")),
}


@pytest.mark.parametrize("kind", BODIES)
def test_error_in_the_body_closes_and_removes_all_drafts(tmp_path, kind):
    """The file can be written again at once; a refused second writer changes nothing for the
    first.
    """
    path = tmp_path / "any.jsonl"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), BODIES[kind](path):
            if kind in {"a journal", "a trace", "verdicts", "a lock"}:
                with pytest.raises(StoreError, match="held by"):
                    BODIES[kind](path)
            1 / 0
        assert not [*tmp_path.glob(".*"), *tmp_path.glob("*.lock")]


def fifo(path):
    os.mkfifo(path)


NO_LOCKS = {
    "another program's": lambda p: p.write_text('version = 1\n\n[[package]]\nname = "redraft"\n'),
    "an empty object": lambda p: p.write_text("{}"),
    "JSON of another kind": lambda p: p.write_text('{"pid": 1}'),
    "binary": lambda p: p.write_bytes(b"\xff" * 20_000),
    "a folder": lambda p: p.mkdir(),
    "a pipe": fifo,
    "a link": lambda p: p.symlink_to(p.with_name("precious")),
    "a link to nothing": lambda p: p.symlink_to(p.with_name("nothing")),
}


@pytest.mark.parametrize("call", ["none", "link"])
@pytest.mark.parametrize("make", NO_LOCKS.values(), ids=NO_LOCKS)
def test_foreign_lock_is_rejected(tmp_path, make, call):
    """The lock and its link target stay unchanged, and the error names it; also where there are no
    hard links.
    """
    lock, precious = tmp_path / "uv.lock", tmp_path / "precious"
    precious.write_text("precious")
    make(lock)
    before = lock.lstat(), lock.read_bytes() if lock.is_file() else None
    with (
        pytest.raises(StoreError, match=r"uv.lock.*(not a lock of Redraft|directory)"),
        failing(call, errno.EPERM),
    ):
        Journal(tmp_path / "uv")
    assert (lock.lstat().st_ino, precious.read_text()) == (before[0].st_ino, "precious")
    assert before[1] is None or lock.read_bytes() == before[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["precious", "uv.lock"]


@pytest.mark.parametrize("call", ["none", "link"])
def test_lock_is_exclusive(tmp_path, call):
    """Only one process holds the lock at a time, also after a stale lock was replaced, and also
    without hard links.
    """
    with failing(call, errno.EPERM):
        check_that_a_lock_is_exclusive(tmp_path)


def check_that_a_lock_is_exclusive(tmp_path):
    inside, most, turns = [], [0], [0]
    path_lock = PathLock(tmp_path / "j", "journal")
    left = path_lock.path.read_bytes()
    path_lock.close()

    def take_turns():
        for _ in range(40):
            try:
                lock = PathLock(tmp_path / "j", "journal")
            except StoreError as error:
                assert "is held by" in str(error)
                continue
            inside.append(1)
            most[0] = max(most[0], len(inside))
            turns[0] += 1
            inside.pop()
            lock.close()

    threads = [threading.Thread(target=take_turns) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], turns[0] > 0) == (1, True)
    (tmp_path / "j.lock").write_bytes(left)
    journal(tmp_path / "j")
    assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("*.lock"))


WRITING = """
import sys
from redraft.tables.writers import open_output
from redraft.tables.export.writer import open_drafts

def put(output):
    output.put(0, {"a": "other"})
    print("begun", flush=True)
    sys.stdin.readline()

if sys.argv[1].endswith("train.jsonl"):
    with open_drafts({"train": sys.argv[1]}) as outputs:
        put(outputs["train"])
else:
    with open_output(sys.argv[1]) as output:
        put(output)
"""


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("kind", ["a table", "packed rows", "an export"])
def test_stale_temporary_files_are_removed(tmp_path, kind):
    """Drafts do not pile up, and one that another process is writing is still published."""
    name, write = KINDS[kind]
    path = tmp_path / name
    for ends in (signal.SIGKILL, None):
        script = [sys.executable, "-c", WRITING, str(path)]
        with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"begun\n"
            assert len([*tmp_path.glob(".*.part")]) == 1
            if ends:
                os.kill(process.pid, ends)
                process.wait()
            write(path)
            ours = path.read_bytes()
            assert len([*tmp_path.glob(".*.part")]) == (0 if ends else 1)
            process.communicate(b"\n" if not ends else None)
    assert path.read_bytes() != ours
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("kind", NAMED)
def test_folder_in_place_of_a_file_is_an_error(tmp_path, kind):
    """The error comes at once, and no file is left in the folder or beside it."""
    name, write = NAMED[kind]
    (tmp_path / name).mkdir()
    with pytest.raises(
        (StoreError, OSError), match=r"[Ii]s a directory|exists already|cannot be|already"
    ):
        write(tmp_path / name)
    assert not [*tmp_path.glob(".*")]
    assert list((tmp_path / name).iterdir()) == []


@pytest.mark.parametrize("kind", ["an answer", "rows", "a table"])
def test_devices_are_written_directly(kind):
    """Output to /dev/null leaves no file, and the device stays a device."""
    NAMED[kind][1](Path(os.devnull))
    assert Path(os.devnull).is_char_device()


def test_trace_in_a_pipe_is_rejected(tmp_path):
    """Neither reading nor writing waits for the other end."""
    os.mkfifo(tmp_path / "t")
    for use in (read_trace, JsonlStore, lambda path: JsonlStore(path, resume=True)):
        with pytest.raises(StoreError, match="'.*/t' cannot be"):
            use(tmp_path / "t")


async def test_torn_trace_can_be_resumed(tmp_path):
    """A line that is cut within a character is dropped."""
    path = tmp_path / "t.jsonl"
    with JsonlStore(path) as store:
        result = await refine("q", ScriptedModel(["é" * 50, "b"]), lambda _: 0.1, store=store)
    data = path.read_bytes()
    path.write_bytes(data[: data.index("é".encode()) + 1])
    assert read_trace(path).records == ()
    path.write_bytes(data)
    assert read_trace(path) == result.trace
