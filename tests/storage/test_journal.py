"""The journal: written rows persist, foreign files stay untouched, and errors are reported."""

import asyncio
import json
import math
import sqlite3
import subprocess
import sys
import threading
import time
from collections import ChainMap
from contextlib import closing, nullcontext
from dataclasses import replace
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import ScriptedModel, Task, refine
from redraft.base.jsontext import dumps_text
from redraft.errors import ConfigError, StoreError
from redraft.loop.records import Candidate, ToolCall
from redraft.loop.serialize import record_to_json
from redraft.loop.trace import Trace
from redraft.protocols import RateLimitStatus, Reply, TokenLogprobs
from redraft.storage import Journal, RowInfo, salvage
from redraft.storage.database import Writer
from redraft.storage.schema import SCHEMA
from redraft.storage.shard_merge import SnapshotCache, merge_shard, reading_snapshot
from redraft.storage.transaction import RowChanges
from redraft.usage import Usage

pytestmark = pytest.mark.usefixtures("no_open_files")

HEADER = dumps_text(Trace(Task("q")).header())
ANY_TEXT = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["\0", "a\0b", "\ud800", "\udfff\ud800", "é", '"', ""]
)


def record(i, text="a"):
    return record_to_json(Candidate(i, text))


def make_journal(path, rows=3, size=1):
    """Make a journal with some finished rows, closed."""
    with Journal(path) as journal:
        journal.update_run("r", model="m")
        for n in range(rows):
            journal.begin_row("r", f"row-{n}", n, "k", {"task": "t"}, HEADER)
            journal.append_records(
                "r", f"row-{n}", 0, [record(0, "a" * size), record(1, "b" * size)]
            )
            journal.finish_row("r", f"row-{n}", "done", {"best": "b"})
            journal.response_cache[f"{n:064x}"] = Reply("c" * size)
    return path


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


async def test_row_is_stored_record_by_record(tmp_path):
    """A stored row reads back equal in this process and in the next."""
    result = await refine("q", ScriptedModel(["a", "b", "c"]), {"a": 0.1, "b": 0.3, "c": 0.95}.get)
    trace = replace(result.trace, resumed_at=0)
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.begin_row("r", "x", 0, "key", {}, dumps_text(trace.header()))
        for i, one_record in enumerate(trace.records):
            journal.append_records("r", "x", i, [record_to_json(one_record)])
            assert journal.trace("r", "x").records == trace.records[: i + 1]
        journal.append_records("r", "x", 1, [record_to_json(r) for r in trace.records[1:3]])
        assert journal.trace("r", "x") == trace
    with Journal(tmp_path / "j", create=False) as journal:
        assert journal.trace("r", "x") == trace
        assert journal.trace("r", "y") is None
        assert journal.trace("s", "x") is None


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_any_text_survives(tmp_path_factory, run, id, text):
    """Lone surrogates and NUL round trip in every text field."""
    path = tmp_path_factory.mktemp("j") / "j"
    trace = Trace(Task(text, id=id, metadata={"m": text}), records=(Candidate(0, text),))
    with Journal(path) as journal:
        journal.update_run(run, metadata=text)
        journal.begin_row(run, id, 7, "key", {"part": text}, dumps_text(trace.header()))
        journal.append_records(run, id, 0, [record_to_json(trace.records[0])])
        journal.finish_row(run, id, "done", {"best": text})
        journal.response_cache["ab"] = Reply(text, finish_reason=text, reasoning=text)
    with Journal(path) as journal:
        assert journal.run(run).metadata == {"metadata": text}
        note = RowInfo(id, 7, "key", {"part": text}, "done", {"best": text})
        assert journal.rows_by_id(run, [id, id + "x"]) == {id: note}
        assert list(journal.traces(run)) == [(note, trace)]
        assert journal.response_cache["ab"] == Reply(text, finish_reason=text, reasoning=text)


IDS = st.sampled_from("abc")
OPS = st.one_of(
    st.tuples(st.just("begin"), IDS, st.integers(0, 9)),
    st.tuples(st.just("append"), IDS, st.integers(1, 3)),
    st.tuples(st.just("finish"), IDS, st.sampled_from(["open", "done", "failed"])),
    st.tuples(st.just("moved"), IDS, st.integers(0, 9)),
    st.tuples(st.sampled_from(["seen", "forget"]), IDS, st.just(0)),
    st.tuples(st.sampled_from(["reopen", "look"]), st.just(""), st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(OPS, max_size=25))
def test_journal_behaves_like_an_in_memory_table(tmp_path_factory, ops):
    """Reading returns the latest write in any order of operations, however often the file is
    closed.
    """
    path = tmp_path_factory.mktemp("j") / "j"
    journal, rows = Journal(path), {}
    journal.update_run("r")
    for op, id, value in ops:
        if op == "begin":
            journal.begin_row("r", id, value, "k", {}, HEADER)
            rows[id] = [value, "open", None, 0]
        elif op == "reopen":
            journal.close()
            journal = Journal(path)
        elif op == "forget":
            journal.erase("r", [id])
            rows.pop(id, None)
        elif op == "append" and id in rows:
            journal.append_records(
                "r", id, rows[id][3], [record(rows[id][3] + i) for i in range(value)]
            )
            rows[id][3] += value
        elif op == "finish" and id in rows:
            journal.finish_row("r", id, value, {"v": value})
            rows[id][1:3] = value, {"v": value}
        elif op == "seen" and id in rows:
            journal.mark_seen("r", list(rows))
        elif op == "moved" and id in rows:
            journal.set_position("r", id, value)
            rows[id][0] = value
        elif op == "look":
            same(journal, rows)
    same(journal, rows)
    journal.close()


def same(journal, rows):
    known = journal.rows_by_id("r", ["a", "b", "c", "d"])
    assert {id: [r.position, r.status, r.result] for id, r in known.items()} == {
        id: row[:3] for id, row in rows.items()
    }
    listed_rows = [
        (note.id, note.position, len(trace.records)) for note, trace in journal.traces("r")
    ]
    assert sorted(listed_rows) == sorted((id, row[0], row[3]) for id, row in rows.items())
    assert [n for _, n, _ in listed_rows] == sorted(row[0] for row in rows.values())
    assert sum(journal.run("r").counts.values()) == len(rows)
    assert journal.run("r").counts["done"] == sum(row[1] == "done" for row in rows.values())


def test_many_rows_are_read_in_order(tmp_path):
    """A thousand rows that were written backwards, some with equal places, are read by place."""
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        for i in range(1000):
            journal.begin_row("r", str(i), (1000 - i) // 3, "k", {}, HEADER)
        listed_rows = [note.position for note, _ in journal.traces("r")]
        assert (len(listed_rows), listed_rows) == (1000, sorted(listed_rows))
        assert len(journal.rows_by_id("r", [str(i) for i in range(1000)])) == 1000


def test_runs_are_separate(tmp_path):
    """Each run has its own rows and metadata, and metadata keys are merged."""
    with Journal(tmp_path / "j") as journal:
        journal.update_run("a", model="m", n=1)
        journal.update_run("b")
        journal.update_run("a", n=2, done=True)
        journal.begin_row("a", "x", 0, "ka", {}, HEADER)
        journal.begin_row("b", "x", 0, "kb", {}, HEADER)
        journal.finish_row("a", "x", "failed", {"error": "no"})
        assert [r.name for r in journal.runs()] == ["a", "b"]
        assert journal.run("a").metadata == {"model": "m", "n": 2, "done": True}
        assert journal.run("a").counts == {"open": 0, "done": 0, "failed": 1}
        assert journal.run("b").counts == {"open": 1, "done": 0, "failed": 0}
        assert (
            journal.rows_by_id("a", ["x"])["x"].key,
            journal.rows_by_id("b", ["x"])["x"].key,
        ) == ("ka", "kb")
        assert journal.run("c") is None
        assert journal.rows_by_id("c", ["x"]) == {}


def test_deleted_run_frees_its_space(tmp_path):
    """The other run and the cached calls stay."""
    path = make_journal(tmp_path / "j", rows=100, size=5000)
    with Journal(path) as journal:
        journal.update_run("s")
        journal.begin_row("s", "x", 0, "k", {}, HEADER)
        journal.delete("r")
        assert journal.rows_by_id("r", ["row-1"]) == {}
        assert [r.name for r in journal.runs()] == ["s"]
        assert len(journal.response_cache) == 100
        for key in list(journal.response_cache):
            del journal.response_cache[key]
        assert len(journal.response_cache) == 0
        assert journal.run("r") is None
        with pytest.raises(StoreError, match="has no run 'r'"):
            journal.begin_row("r", "x", 0, "k", {}, HEADER)
        journal.compact()
        assert [note.id for note, _ in journal.traces("s")] == ["x"]
    assert path.stat().st_size < 100_000


REPLIES = [
    Reply("a"),
    Reply("a", Usage(2, 3, 4, 0, 1, 0.5), "tool_calls", "because"),
    Reply("a", Usage(1, None, None, cost=None), None),
    Reply("", Usage(cached_calls=1)),
    Reply(
        "a",
        Usage(2, 3, 4, 5, 1, 0.5, 7, 0.25),
        "length",
        "because",
        tool_calls=(ToolCall("search", "{}", "call_1"), ToolCall("read", '{"n": 1}', "call_2")),
        reasoning_form="block",
        token_logprobs=(TokenLogprobs("a", (("a", -0.25), ("b", -1.5))), TokenLogprobs("é", ())),
    ),
]


@pytest.mark.parametrize("reply", REPLIES)
def test_cached_reply_is_available_at_once(tmp_path, reply):
    """A reply is available before the commit, after it and in the next process, without its
    rate-limit status.
    """
    with Journal(tmp_path / "j") as journal:
        assert journal.response_cache.get("ab") is None
        journal.response_cache["ab"] = replace(
            reply, rate_limit_status=RateLimitStatus(requests_left=1)
        )
        assert journal.response_cache["ab"] == reply
        journal.flush()
        assert journal.response_cache["ab"] == reply
        assert journal.response_cache["ab"].rate_limit_status is None
    with Journal(tmp_path / "j") as journal:
        assert dict(journal.response_cache) == {"ab": reply}
        journal.response_cache["ab"] = Reply("other")
        assert journal.response_cache["ab"].text == "other"
        del journal.response_cache["ab"]
        assert "ab" not in journal.response_cache
        with pytest.raises(KeyError):
            del journal.response_cache["ab"]
        assert len(journal.response_cache) == 0


async def test_group_commit(tmp_path):
    """Concurrent writers complete with one commit, and a cancelled one disturbs no other."""
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")

        async def row(i):
            journal.begin_row("r", str(i), i, "k", {}, HEADER)
            await journal.wait_for_commit()
            with Journal(tmp_path / "j", read_only=True) as other:
                return str(i) in other.rows_by_id("r", [str(i)])

        rows = [asyncio.ensure_future(row(i)) for i in range(20)]
        await asyncio.sleep(0)
        rows.pop().cancel()
        assert all(await asyncio.gather(*rows))
        await journal.wait_for_commit()


def test_writes_of_one_transaction_keep_their_order(tmp_path):
    """Also those that name a row in another way: here rows are seen, and one of them then begins
    again.
    """
    path = make_journal(tmp_path / "j", rows=2)
    with Journal(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the writes wait, and are committed together
        journal.update_run("r", invocation=1)
        journal.mark_seen("r", ["row-0", "row-1"])
        journal.begin_row("r", "row-1", 7, "k", {}, HEADER)
        journal.mark_seen("r", ["row-1"])
        other.execute("ROLLBACK")
        assert {
            id: row.position for id, row in journal.rows_by_id("r", ["row-0", "row-1"]).items()
        } == {"row-0": 0, "row-1": 7}


READERS = {  # each returns the number of the write that it sees
    "runs": lambda journal, n: journal.runs()[0].metadata["n"],
    "run": lambda journal, n: journal.run("r").metadata["n"],
    "metadata": lambda journal, n: journal.metadata("r")["n"],
    "counts": lambda journal, n: journal.run("r").counts["done"] - 1,
    "rows_by_id": lambda journal, n: journal.rows_by_id("r", [str(n)])[str(n)].position,
    "trace": lambda journal, n: int(journal.trace("r", str(n)).records[-1].text),
    "traces": lambda journal, n: [info.position for info, _ in journal.traces("r")][-1],
    "row_states": lambda journal, n: max(
        position for position, _, _ in journal.row_states("r").values()
    ),
    "number of replies": lambda journal, n: len(journal.response_cache) - 1,
    "keys of replies": lambda journal, n: int([*journal.response_cache][-1], 16),
    "reply": lambda journal, n: int(journal.response_cache[f"{n:064x}"].text),
}


def test_what_is_read_has_what_was_written_before(tmp_path):
    """Whatever is read, it has also what is not committed yet, here since another program locks the
    file for a moment.
    """
    path = make_journal(tmp_path / "j", rows=0)
    seen_by = {}
    with (
        Journal(path) as journal,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other,
    ):
        for n, (name, read) in enumerate(READERS.items()):
            other.execute("BEGIN IMMEDIATE")
            journal.update_run("r", n=n)
            journal.begin_row("r", str(n), n, "k", {}, HEADER)
            journal.append_records("r", str(n), 0, [record(0, str(n))])
            journal.finish_row("r", str(n), "done", {})
            journal.response_cache[f"{n:064x}"] = Reply(str(n))
            unlock = threading.Timer(0.02, other.execute, ["ROLLBACK"])
            unlock.start()
            seen_by[name] = read(journal, n)
            unlock.join()
    assert seen_by == {name: n for n, name in enumerate(READERS)}


def test_what_was_written_just_before_is_deleted_too(tmp_path):
    """A row that is not committed yet does not return after it, or its run, was deleted, nor in the
    next run of the same name.
    """
    deletions = {
        "erased rows": lambda journal: journal.erase("r", ["late"]),
        "run": lambda journal: journal.delete("r"),
    }
    path = make_journal(tmp_path / "j", rows=0)
    for what, delete in deletions.items():
        with Journal(path) as journal:
            journal.begin_row("r", "late", 7, "k", {}, HEADER)
            delete(journal)
            journal.update_run("r", what=what)
        with Journal(path) as journal:
            assert (what, journal.row_ids("r"), [*journal.traces("r")]) == (
                journal.metadata("r")["what"],
                [],
                [],
            )


async def test_who_writes_much_waits_for_commits(tmp_path, monkeypatch):
    """Not while little is queued; once much is, until it is committed."""
    monkeypatch.setattr("redraft.storage.database.LONG_QUEUE", 3)
    path = make_journal(tmp_path / "j", rows=0)
    with Journal(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for n in range(1000):
            journal.update_run("r", n=n)
            wait = asyncio.ensure_future(journal.wait_for_room())
            await asyncio.sleep(0)
            if not wait.done():
                break
            await wait
        assert 3 <= n < 999
        other.execute("ROLLBACK")
        await wait
        with Journal(path, read_only=True) as reader:
            assert reader.metadata("r")["n"] == n


WRITES = {  # each by itself, and what is committed
    "a statement": (lambda writer: writer.execute("INSERT", 1), ([("INSERT", (1,))], {}, [])),
    "a statement at once": (
        lambda writer: writer.execute("INSERT", 1, at_once=True),
        ([("INSERT", (1,))], {}, []),
    ),
    "a row": (
        lambda writer: writer.change_row(("r", "a"), 1, RowChanges.see, 1),
        ([], {}, [("r", "a")]),
    ),
    "a reply": (lambda writer: writer.set_reply("key", "text"), ([], {"key": "text"}, [])),
}


@pytest.mark.parametrize(("write", "content"), WRITES.values(), ids=WRITES)
def test_each_write_is_committed_without_another_one(write, content):
    """Whatever is written while the thread of the writer sleeps wakes it, the first and the second
    time.
    """
    asleep, committed = SimpleQueue(), SimpleQueue()

    class ObservedWriter(Writer):
        def _pause(self, seconds=None):
            asleep.put(seconds)
            super()._pause(seconds)

    def commit(transaction):
        committed.put((transaction.statements[:], {**transaction.replies}, [*transaction.rows]))

    writer = ObservedWriter(commit, StoreError)
    for _ in range(2):
        while asleep.get(timeout=30) is not None:  # until it sleeps without an end
            pass
        write(writer)
        assert committed.get(timeout=30) == content
    writer.close()


class HeldUp:
    """Commits what a writer gives it, each transaction when the test says so, and notes what
    happened.
    """

    def __init__(self):
        self.events, self.begun, self._allowed = [], SimpleQueue(), SimpleQueue()
        self.writer = Writer(self._commit, lambda error: StoreError(str(error)))

    def _commit(self, transaction):
        self.begun.put(len(transaction.rows))
        if self._allowed.get(timeout=30) == "fail":
            raise OSError("disk full")
        self.events.append([id for _, id in transaction.rows])

    def allow(self, how="succeed"):
        self._allowed.put(how)

    def write(self, id):
        self.writer.change_row(("r", id), 1, RowChanges.see, 1)

    def call(self, name):
        self.writer.call_after_commit(lambda: self.events.append(name))


def test_callbacks_come_after_the_commit_of_what_was_written_before():
    """In order, before a flush returns; without anything to commit at once, and also while the
    writer is being closed.
    """
    held = HeldUp()
    held.call("nothing written")
    assert held.events == ["nothing written"]
    held.write("a")
    assert held.begun.get(timeout=30) == 1
    held.call("during the commit of a")
    held.write("b")
    held.call("after b")
    assert held.events == ["nothing written"]
    held.allow()
    held.allow()
    held.writer.flush()
    assert held.events == ["nothing written", ["a"], ["b"], "during the commit of a", "after b"]
    held.write("c")
    held.call("after c")
    held.allow()
    held.writer.close()
    held.call("closed")
    assert held.events[5:] == [["c"], "after c", "closed"]


async def test_callbacks_come_when_writing_fails():
    """Before anyone who waits hears of the error; later ones at once."""
    held = HeldUp()
    held.write("a")
    held.call("after a")
    assert held.begun.get(timeout=30) == 1
    held.write("b")
    held.call("after b")
    waiting = asyncio.create_task(held.writer.wait_for_commit())
    await asyncio.sleep(0)
    held.allow("fail")
    with pytest.raises(StoreError, match="disk full"):
        await waiting
    assert held.events == ["after a", "after b"]
    held.call("failed")
    assert held.events == ["after a", "after b", "failed"]
    held.writer.close()


def test_callback_that_raises_is_logged_and_holds_nobody_up(caplog):
    """Neither after a commit nor when writing fails: the others are called, and those who wait go
    on.
    """
    held = HeldUp()
    for id, how in (("a", "succeed"), ("b", "fail")):
        held.write(id)
        held.writer.call_after_commit(lambda: 1 / 0)
        held.call(f"after {id}")
        held.allow(how)
        with nullcontext() if how == "succeed" else pytest.raises(StoreError, match="disk full"):
            held.writer.flush()
    assert held.events == [["a"], "after a", "after b"]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2
    held.writer.close()


def test_ids_may_be_longer_together_than_a_value_of_sqlite(tmp_path, monkeypatch):
    """They are looked up and marked in several statements."""
    monkeypatch.setattr("redraft.storage.schema.MAX_VALUE_BYTES", 2**20)
    monkeypatch.setattr("redraft.storage.journal.MAX_IDS_LENGTH", 2**18)
    ids = [f"{n}" + "\U0001f600" * 2**14 for n in range(30)]
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r", invocation=1)
        for n, id in enumerate(ids):
            journal.begin_row("r", id, n, "k", {}, HEADER)
        journal.flush()
        journal.update_run("r", invocation=2, last_full_invocation=2)
        journal.mark_seen("r", ids[:20])
        assert journal.rows_by_id("r", ids).keys() == set(ids)
        assert journal.run("r").counts["open"] == 20


@pytest.mark.parametrize(
    "value", [math.inf, math.nan, 2**70, "\ud800", "\0", None, [None, {"a": (1.5, -0.0)}]]
)
def test_any_value_of_a_result_survives(tmp_path, value):
    """Also numbers and texts that strict JSON cannot hold."""
    with Journal(make_journal(tmp_path / "j", rows=1)) as journal:
        journal.finish_row("r", "row-0", "done", {"v": value, "none": None})
        found = journal.rows_by_id("r", ["row-0"])["row-0"].result
    assert json.dumps(found) == json.dumps({"v": value, "none": None})


def test_nothing_is_left_to_flush_after_closing(tmp_path):
    """Flushing a closed journal returns, whether something was written or not."""
    for written in (False, True):
        journal = Journal(tmp_path / "j")
        if written:
            journal.update_run("r")
        journal.close()
        journal.flush()


def test_metadata_is_committed_without_waiting_for_other_writes(tmp_path, monkeypatch):
    """So a call that is about to be made counts as spent if the process is killed; rows wait for
    more rows.
    """
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.flush()
        monkeypatch.setattr("redraft.storage.database.GROUP_SECONDS", 60)
        monkeypatch.setattr("redraft.storage.database.GROUP_PAUSE", 60)
        journal.begin_row("r", "x", 0, "k", {}, HEADER)
        with Journal(tmp_path / "j", read_only=True) as other:
            assert not other.rows_by_id("r", ["x"])
        journal.update_run("r", spent={"calls": 1})
        until = time.monotonic() + 30
        while not seen(tmp_path / "j"):
            assert time.monotonic() < until
            time.sleep(0.01)


def seen(path):
    """Whether another process can read the row and the amount spent."""
    with Journal(path, read_only=True) as other:
        return other.rows_by_id("r", ["x"]) and other.run("r").metadata == {"spent": {"calls": 1}}


def foreign_database(path):
    with closing(sqlite3.connect(path)) as c:
        c.execute("CREATE TABLE precious (a)")


def newer(path):
    with closing(sqlite3.connect(make_journal(path))) as c:
        c.execute(f"PRAGMA user_version = {SCHEMA + 1}")


def older(path):
    with closing(sqlite3.connect(make_journal(path))) as c:
        c.execute("PRAGMA user_version = 0")


def without_a_table(path):
    with closing(sqlite3.connect(make_journal(path))) as c:
        c.execute("DROP TABLE calls")


def damaged_page(path):
    data = bytearray(make_journal(path, rows=50, size=2000).read_bytes())
    data[12 * 4096 : 14 * 4096] = b"\xa5" * 8192
    path.write_bytes(data)


def damaged_beside_a_wal(path):
    """Damage a file as a kill leaves it, with the last commits in the WAL."""
    damaged_page(path)
    path.with_name(f"{path.name}-wal").write_bytes(b"\x37\x7f\x06\x82" + b"\0" * 5000)


def cut_off(path):
    make_journal(path, rows=50, size=2000)
    path.write_bytes(path.read_bytes()[: 20 * 4096 + 100])


def without_its_main_file(path):
    path.with_name(f"{path.name}-wal").write_bytes(b"committed")


REFUSED = {
    "no SQLite": (lambda p: p.write_text('{"redraft": 2}\n' * 50), "is not a journal"),
    "a few bytes": (lambda p: p.write_bytes(b"x"), "is not a journal"),
    "cut off in the header": (
        lambda p: p.write_bytes(make_journal(p).read_bytes()[:50]),
        "cut off after 50 bytes",
    ),
    "another program's": (foreign_database, "of another program"),
    "newer": (
        newer,
        f"has schema {SCHEMA + 1}, this release reads schema {SCHEMA}; it was written by a newer Redraft",
    ),
    "older": (older, "has schema 0"),
    "without a table": (without_a_table, "is damaged .*salvage"),
    "a damaged page": (damaged_page, "is damaged .*salvage"),
    "a damaged page, and a wal": (damaged_beside_a_wal, "is damaged .*salvage"),
    "cut off": (cut_off, "is damaged .*salvage"),
    "no main file": (
        without_its_main_file,
        "is missing or empty, but the file with its last writes is there",
    ),
    "a folder": (lambda p: p.mkdir(), "is not a regular file"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_damaged_journal_is_rejected_and_unchanged(tmp_path, make, message):
    """The error names the file and says what to do; no byte changes and no new file appears."""
    path = tmp_path / "j?#%20.db"
    make(path)
    before = files(tmp_path)
    for how in ({}, {"create": False}, {"durability": "full"}):
        with pytest.raises(StoreError, match=message) as caught:
            Journal(path, **how)
        assert repr(str(path)) in str(caught.value)
        assert files(tmp_path) == before


def test_a_journal_of_the_earlier_schema_is_continued(tmp_path):
    """Reading leaves it as it is; once it is opened for writing, an earlier release refuses it."""
    path = make_journal(tmp_path / "j", rows=2)
    with closing(sqlite3.connect(path)) as c:
        c.execute(f"PRAGMA user_version = {SCHEMA - 1}")
    with Journal(path, read_only=True) as journal:
        assert journal.row_ids("r")
    assert path.read_bytes()[60:64] == (SCHEMA - 1).to_bytes(4)
    with Journal(path) as journal:
        assert len(journal.row_ids("r")) == 2
    assert path.read_bytes()[60:64] == SCHEMA.to_bytes(4)


def test_unusable_path_is_an_error(tmp_path):
    """A missing journal and an unknown durability are errors, too."""
    with pytest.raises(StoreError, match="No such file or directory"):
        Journal(tmp_path / "no" / "j")
    for how in ({"create": False}, {"read_only": True}):
        with pytest.raises(StoreError, match="there is no journal"):
            Journal(tmp_path / "j", **how)
    with pytest.raises(ConfigError, match="durability must be one of normal, full, got 'some'"):
        Journal(tmp_path / "j", durability="some")
    assert files(tmp_path) == {}


def test_empty_file_becomes_a_journal(tmp_path):
    """The file keeps its permissions."""
    path = tmp_path / "j"
    path.touch(mode=0o600)
    make_journal(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


HOLD = """
import sys
from redraft.storage import Journal
with Journal(sys.argv[1]) as journal:
    journal.update_run("r", by="the other")
    journal.flush()
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold_journal(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    return process


def test_second_process_may_only_read(tmp_path):
    """The error names the process that writes; a killed process blocks nothing."""
    path = tmp_path / "j"
    with hold_journal(path) as process:
        with pytest.raises(StoreError, match=f"is held by process {process.pid} on .*, since 2"):
            Journal(path)
        with Journal(path, read_only=True) as journal:
            assert journal.run("r").metadata == {"by": "the other"}
            for write in (
                lambda: journal.update_run("r"),
                lambda: journal.response_cache.update(ab=Reply("a")),
            ):
                with pytest.raises(StoreError, match="opened for reading only"):
                    write()
        process.kill()
    with Journal(path) as journal:
        assert journal.run("r").metadata == {"by": "the other"}
        with pytest.raises(StoreError, match="held by this process"):
            Journal(path)
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


def test_link_is_the_same_journal(tmp_path):
    """A link is locked, read and resumed like the file, and no file appears beside the link."""
    path, link = tmp_path / "j", tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    with Journal(path) as journal:
        journal.update_run("r", by="the first")
        with pytest.raises(StoreError, match="held by this process"):
            Journal(link)
        journal.flush()
        with Journal(link, read_only=True) as other:
            assert other.run("r").metadata == {"by": "the first"}
    with Journal(link) as journal:
        journal.update_run("r", by="the second")
        with pytest.raises(StoreError, match="held by this process"):
            Journal(path)
    with Journal(path, create=False) as journal:
        assert journal.run("r").metadata == {"by": "the second"}
    assert [p.name for p in link.parent.iterdir()] == ["link"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "j"]


def test_rows_missing_from_the_input_do_not_count(tmp_path):
    """A pass over the whole input excludes rows that it did not see, and they count again when they
    are seen.
    """

    def seen_rows():
        return journal.run("r").counts["done"], [row.id for row, _ in journal.traces("r")]

    with Journal(make_journal(tmp_path / "j")) as journal:
        assert (journal.invocation("r"), seen_rows()) == (0, (3, ["row-0", "row-1", "row-2"]))
        journal.update_run("r", invocation=1)
        journal.mark_seen("r", ["row-0", "row-2"])
        journal.begin_row("r", "new", 3, "k", {}, HEADER)
        journal.finish_row("r", "new", "done", {})
        assert seen_rows()[0] == 4
        journal.update_run("r", last_full_invocation=1)
        assert seen_rows() == (3, ["row-0", "row-2", "new"])
        assert journal.row_ids("r") == ["row-0", "row-1", "row-2", "new"]
        journal.update_run("r", invocation=2)
        journal.mark_seen("r", ["row-1"])
        assert seen_rows() == (4, ["row-0", "row-1", "row-2", "new"])
        journal.update_run("r", last_full_invocation=2)
        assert seen_rows() == (1, ["row-1"])
        assert set(journal.rows_by_id("r", ["row-0", "row-1"])) == {"row-0", "row-1"}


def test_merged_rows_count_as_seen(tmp_path):
    """Rows from a shard count like any other row of the run, and its replies are found."""
    make_journal(tmp_path / "part")
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r", invocation=5, last_full_invocation=5)
        assert journal.response_cache.get(f"{1:064x}") is None
        merge_shard(journal, tmp_path / "part")
        assert journal.response_cache.get(f"{1:064x}") == Reply("c")
        assert journal.run("r").counts["done"] == 3
        assert len(list(journal.traces("r"))) == 3
        journal.update_run("r", invocation=6, last_full_invocation=6)
        assert journal.run("r").counts["done"] == 0


def test_rows_of_a_shard_are_merged_into_a_journal_without_their_run(tmp_path):
    """As after the journal was deleted and the shards stayed: nothing that was paid for is lost."""
    make_journal(tmp_path / "part")
    with Journal(tmp_path / "part", read_only=True) as part:
        expected = list(part.traces("r"))
    with Journal(tmp_path / "j") as journal:
        journal.update_run("another")
        merge_shard(journal, tmp_path / "part")
        assert list(journal.traces("r")) == expected
        assert len(expected) == 3


async def test_a_snapshot_of_the_cache_overlaid_by_a_shard(tmp_path):
    """Workers read the replies of the run from a file that stays as it is, whatever is written to
    the journal meanwhile, and write their own.
    """
    with Journal(tmp_path / "run") as run:
        run.response_cache["a"] = Reply("from the run")
        async with reading_snapshot(run):
            before = (tmp_path / "run").read_bytes()
            with (
                Journal(tmp_path / "shard") as shard,
                closing(SnapshotCache(tmp_path / "run")) as snapshot,
            ):
                run.update_run("r")
                for n in range(40):  # more than the log has room for otherwise
                    run.begin_row("r", f"row-{n}", n, "k", {}, "x" * 2**20)
                    run.flush()
                assert (tmp_path / "run").read_bytes() == before
                overlay = ChainMap(shard.response_cache, snapshot)
                overlay["b"] = Reply("from the shard")
                assert {key: reply.text for key, reply in overlay.items()} == {
                    "a": "from the run",
                    "b": "from the shard",
                }
                assert list(snapshot) == ["a"] and "c" not in overlay
                with pytest.raises(KeyError):
                    overlay["c"]
        run.update_run("r", after=1)
        run.flush()
        assert (tmp_path / "run").read_bytes() != before


def test_lock_file_contains_no_secret(tmp_path, monkeypatch):
    """A key on the command line is not written to the lock file."""
    monkeypatch.setattr(sys, "argv", ["/bin/redraft", "batch", "sk-canary", "--api-key=sk-canary"])
    with Journal(tmp_path / "j"):
        listed_rows = json.loads((tmp_path / "j.lock").read_text())
    assert listed_rows["command"] == "redraft batch"


FULL = """
import asyncio, resource, sys
from redraft import Task
from redraft.loop.records import Candidate
from redraft.loop.serialize import record_to_json
from redraft.loop.trace import Trace
from redraft.errors import StoreError
from redraft.base.jsontext import dumps_text
from redraft.storage import Journal

async def main(journal):
    for n in range(1000):
        journal.begin_row("r", f"row-{n}", n, "k", {}, dumps_text(Trace(Task("q")).header()))
        journal.append_records("r", f"row-{n}", 0, [record_to_json(Candidate(0, "a" * 5000))])
        journal.finish_row("r", f"row-{n}", "done", {})
        await journal.wait_for_commit()
        print(n, flush=True)

with Journal(sys.argv[1]) as journal:
    journal.update_run("r")
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    try:
        asyncio.run(main(journal))
    except StoreError as error:
        assert str(error) == str(journal.write_error)
        for again in (lambda: journal.update_run("r"), journal.flush, lambda: asyncio.run(journal.wait_for_commit())):
            try:
                again()
            except StoreError as same:
                assert str(same) == str(error)
            else:
                raise SystemExit("not told again") from None
        raise
"""


def test_full_disk_stops_the_writer_and_loses_nothing(tmp_path):
    """The error and every later one name the file and what is safe in it; with space again the run
    resumes.
    """
    path = tmp_path / "j"
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60
    )
    committed = len(ended.stdout.split())
    assert 0 < committed < 1000
    assert f"journal {str(path)!r} cannot be written: " in ended.stderr
    assert f"{committed} finished rows are safe in it; the same command resumes" in ended.stderr
    with Journal(path) as journal:
        assert journal.run("r").counts == {"open": 0, "done": committed, "failed": 0}
        journal.begin_row("r", "more", 2000, "k", {}, HEADER)
        assert len(list(journal.traces("r"))) == committed + 1


async def test_write_to_an_unknown_row_is_an_error(tmp_path):
    """The write is not silently lost, and closing does not hang."""
    with (
        pytest.raises(StoreError, match="nothing to update for .*'x'"),
        Journal(tmp_path / "j") as journal,
    ):
        journal.update_run("r")
        journal.append_records("r", "x", 0, [record(0)])
    assert "nothing to update" in str(journal.write_error)
    with pytest.raises(StoreError):
        await journal.wait_for_commit()


LATER_WRITES = {
    "a row": lambda journal: journal.begin_row("r", "y", 1, "k", {}, HEADER),
    "records": lambda journal: journal.append_records("r", "y", 0, [record(0)]),
    "a result": lambda journal: journal.finish_row("r", "y", "done", {}),
    "a position": lambda journal: journal.set_position("r", "y", 3),
    "rows that are seen": lambda journal: journal.mark_seen("r", ["y"]),
    "metadata": lambda journal: journal.update_run("r", state="running"),
    "all at once": Journal.flush,
}


def test_nothing_is_taken_after_a_failed_write(tmp_path):
    """Every later write is the same error, in the words of the first: the caller would take it as
    stored.
    """
    with pytest.raises(StoreError, match="nothing to update"), Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.append_records("r", "x", 0, [record(0)])
        with pytest.raises(StoreError, match="nothing to update"):
            journal.flush()
        for what, write in LATER_WRITES.items():
            with pytest.raises(StoreError) as caught:
                write(journal)
            assert str(caught.value) == str(journal.write_error), what


def test_unknown_status_is_rejected(tmp_path):
    """The error comes before anything is written."""
    with (
        Journal(make_journal(tmp_path / "j")) as journal,
        pytest.raises(ConfigError, match="one of open, done, failed, got 'good'"),
    ):
        journal.finish_row("r", "row-1", "good", {})


def test_damaged_journal_can_be_recovered(tmp_path):
    """Every readable row is copied as JSON lines, and the journal stays unchanged."""
    path, out = tmp_path / "j", tmp_path / "saved.jsonl"
    damaged_page(path)
    before = path.read_bytes()
    counts = salvage(path, out)
    saved = [json.loads(line) for line in out.read_text().splitlines()]
    assert {table: sum(s["table"] == table for s in saved) for table in counts} == counts
    assert counts["runs"] == 1
    assert 150 < sum(counts.values()) < 251
    assert (
        next(s for s in saved if s["table"] == "lines" and s["place"] == 1)["line"]["kind"]
        == "candidate"
    )
    assert path.read_bytes() == before
    for target, overwrite in ((out, False), (path, True)):
        with pytest.raises(StoreError, match="exists already"):
            salvage(path, target, overwrite=overwrite)
    assert salvage(path, out, overwrite=True) == counts
    assert path.read_bytes() == before
    whole = salvage(make_journal(tmp_path / "k"), tmp_path / "k.jsonl")
    assert whole == {"runs": 1, "rows": 3, "lines": 9, "calls": 3}
    (tmp_path / "n").write_text("no journal")
    with pytest.raises(StoreError, match="nothing in journal .* can be read"):
        salvage(tmp_path / "n", tmp_path / "n.jsonl")
    assert not (tmp_path / "n.jsonl").exists()
