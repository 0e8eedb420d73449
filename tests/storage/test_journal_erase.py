"""Erased rows leave the files of a journal, beside a writer and a reader."""

import random
import sqlite3
import threading
from contextlib import closing

import pytest

from redraft import Task
from redraft.base.jsontext import dumps_text
from redraft.errors import StoreError
from redraft.loop.records import Candidate
from redraft.loop.serialize import record_to_json
from redraft.loop.trace import Trace
from redraft.storage import Journal

pytestmark = pytest.mark.usefixtures("no_open_files")

HEADER = dumps_text(Trace(Task("q")).header())


def add_rows(journal, ids, size=50):
    """Add rows whose lines alternate, as those of requests that are answered at the same time
    do.
    """
    journal.update_run("r")
    for n, id in enumerate(ids):
        journal.begin_row("r", id, n, "", {}, HEADER)
    for k in range(4):
        for id in ids:
            journal.append_records("r", id, k, [record_to_json(Candidate(k, f"<{id}>" * size))])
    for id in ids:
        journal.finish_row("r", id, "done", {"best": f"<{id}>"})


def traces_of(ids, folder):
    content = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    return [id for id in ids if f"<{id}>".encode() in content]


@pytest.mark.parametrize("existing", [False, True])
def test_erased_rows_leave_no_trace(tmp_path, existing):
    """Neither in the journal, once it is compacted, nor in its log; the others stay, and the file
    gets smaller.
    """
    old, new = [f"old{n:03}" for n in range(150)], [f"new{n:03}" for n in range(50)]
    if existing:
        with Journal(tmp_path / "j") as journal:
            add_rows(journal, old[:100] + new[:20])
    with Journal(tmp_path / "j") as journal:
        journal.use_incremental_vacuum()
        add_rows(journal, old + new)
        journal.flush()
        reader = Journal(tmp_path / "j", read_only=True)
        assert len(list(reader.traces("r"))) == 200
        journal.empty_log()
        before = (tmp_path / "j").stat().st_size
        journal.erase("r", old)
        assert journal.size == (tmp_path / "j").stat().st_size < before / 2
        journal.compact()
        assert traces_of(old, tmp_path) == []
        assert traces_of(new, tmp_path) == new
        assert journal.row_ids("r") == reader.row_ids("r") == new
        add_rows(journal, ["later"])
        assert journal.trace("r", "later").candidates
        reader.close()


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("seed", range(8))
def test_copies_of_erased_rows_go_when_the_journal_is_compacted(tmp_path, seed):
    """SQLite leaves copies where it moved texts of many lengths, added in any order: without
    `compact`, five of the eight have some.
    """
    rng, ids = random.Random(seed), [f"id{n:03}" for n in range(80)]
    with Journal(tmp_path / "j") as journal:
        journal.use_incremental_vacuum()
        journal.update_run("r")
        for n, id in enumerate(ids):
            journal.begin_row("r", id, n, "", {}, HEADER)
        for k in range(4):
            for id in rng.sample(ids, 80):
                journal.append_records(
                    "r", id, k, [record_to_json(Candidate(k, f"<{id}>" * rng.randint(1, 150)))]
                )
                journal.flush()
        erased = rng.sample(ids, 60)
        journal.erase("r", erased)
        journal.compact()
        assert traces_of(erased, tmp_path) == []
        assert traces_of(ids, tmp_path) == [id for id in ids if id not in erased]


def test_commits_wait_while_a_journal_is_compacted(tmp_path, monkeypatch):
    """However long it takes: SQLite would give up after 30 s. Reads go on."""
    begun, may_end = threading.Event(), threading.Event()

    class PausedConnection(sqlite3.Connection):
        def execute(self, sql, *values):
            if sql == "VACUUM":
                begun.set()
                assert may_end.wait(60)
            return super().execute(sql, *values)

    def open_paused(path, mode):
        return sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=PausedConnection
        )

    with Journal(tmp_path / "j") as journal:
        add_rows(journal, ["a"])
        monkeypatch.setattr("redraft.storage.database.open_connection", open_paused)
        compaction = threading.Thread(target=journal.compact)
        compaction.start()
        assert begun.wait(60)
        journal.update_run("later")
        commit = threading.Thread(target=journal.flush)
        commit.start()
        commit.join(0.2)
        assert commit.is_alive() and journal.write_error is None
        with Journal(tmp_path / "j", read_only=True) as reader:
            assert reader.row_ids("r") == ["a"] and not reader.has_run("later")
        may_end.set()
        compaction.join()
        commit.join()
        with Journal(tmp_path / "j", read_only=True) as reader:
            assert reader.has_run("later")


def test_erase_of_nothing_and_of_unknown_rows(tmp_path):
    """It changes nothing."""
    with Journal(tmp_path / "j") as journal:
        journal.use_incremental_vacuum()
        add_rows(journal, ["a"])
        journal.erase("r", [])
        journal.erase("r", ["nobody"])
        assert journal.row_ids("r") == ["a"]
        with pytest.raises(StoreError, match="no run 'x'"):
            journal.erase("x", ["a"])
        assert journal.has_run("r") and not journal.has_run("x")


def test_erase_that_fails_leaves_the_writer_alone(tmp_path):
    """The error names the journal, and writing goes on afterwards."""
    with Journal(tmp_path / "j") as journal:
        add_rows(journal, ["a", "b"])
        journal.flush()
        with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as other:
            other.execute("DROP TRIGGER delete_details_of_row")
            other.execute(
                "CREATE TRIGGER refuse BEFORE DELETE ON rows BEGIN SELECT raise(ABORT, 'no'); END"
            )
        with pytest.raises(StoreError, match="cannot be written"):
            journal.erase("r", ["a"])
        journal.finish_row("r", "a", "done", {})
        journal.flush()
        assert journal.write_error is None
