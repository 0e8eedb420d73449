"""The journal: what is written is there, what is foreign is left alone, and trouble is told."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import ScriptedModel, Task, refine
from redraft.protocols import RateLimitStatus, Reply
from redraft.core.records import Candidate
from redraft.usage import Usage
from redraft.core.serialize import record_to_json
from redraft.core.trace import Trace
from redraft.errors import ConfigError, StoreError
from redraft.storage import Journal, RowInfo, salvage
from redraft.storage.shard_merge import merge_shard
from redraft.storage.schema import SCHEMA

HEADER = Trace(Task("q")).header()
ANY_TEXT = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(["\0", "a\0b", "\ud800", "\udfff\ud800", "é", '"', ""])


def record(i, text="a"):
    return record_to_json(Candidate(i, text))


def filled(path, rows=3, size=1):
    """A journal with some finished rows, closed."""
    with Journal(path) as journal:
        journal.update_run("r", model="m")
        for n in range(rows):
            journal.begin_row("r", f"row-{n}", n, "k", {"task": "t"}, HEADER)
            journal.append_records("r", f"row-{n}", 0, [record(0, "a" * size), record(1, "b" * size)])
            journal.finish_row("r", f"row-{n}", "done", {"best": "b"})
            journal.response_cache[f"{n:064x}"] = Reply("c" * size)
    return path


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


async def test_a_row_is_kept_record_by_record(tmp_path):
    """What a run leaves reads back equal, in this process and in the next."""
    result = await refine("q", ScriptedModel(["a", "b", "c"]), {"a": 0.1, "b": 0.3, "c": 0.95}.get)
    trace = replace(result.trace, resumed_at=0)
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.begin_row("r", "x", 0, "key", {}, trace.header())
        for i, kept in enumerate(trace.records):
            journal.append_records("r", "x", i, [record_to_json(kept)])
            assert journal.trace("r", "x").records == trace.records[: i + 1]
        journal.append_records("r", "x", 1, [record_to_json(r) for r in trace.records[1:3]])
        assert journal.trace("r", "x") == trace
    with Journal(tmp_path / "j", create=False) as journal:
        assert journal.trace("r", "x") == trace
        assert journal.trace("r", "y") is None
        assert journal.trace("s", "x") is None


@settings(max_examples=30, deadline=None)
@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_any_text_survives(tmp_path_factory, run, id, text):
    """Lone surrogates and NUL stand wherever text may stand, and come back."""
    path = tmp_path_factory.mktemp("j") / "j"
    trace = Trace(Task(text, id=id, metadata={"m": text}), records=(Candidate(0, text),))
    with Journal(path) as journal:
        journal.update_run(run, metadata=text)
        journal.begin_row(run, id, 7, "key", {"part": text}, trace.header())
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
    st.tuples(st.just("forget"), IDS, st.just(0)),
    st.tuples(st.sampled_from(["reopen", "look"]), st.just(""), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(OPS, max_size=25))
def test_it_behaves_like_a_table_in_memory(tmp_path_factory, ops):
    """Whatever is written in whatever order, reading tells the last of it, however often the file was closed between."""
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
            journal.delete("r", [id])
            rows.pop(id, None)
        elif op == "append" and id in rows:
            journal.append_records("r", id, rows[id][3], [record(rows[id][3] + i) for i in range(value)])
            rows[id][3] += value
        elif op == "finish" and id in rows:
            journal.finish_row("r", id, value, {"v": value})
            rows[id][1:3] = value, {"v": value}
        elif op == "moved" and id in rows:
            journal.set_position("r", id, value)
            rows[id][0] = value
        elif op == "look":
            same(journal, rows)
    same(journal, rows)
    journal.close()


def same(journal, rows):
    known = journal.rows_by_id("r", ["a", "b", "c", "d"])
    assert {id: [r.position, r.status, r.result] for id, r in known.items()} == {id: row[:3] for id, row in rows.items()}
    told = [(note.id, note.position, len(trace.records)) for note, trace in journal.traces("r")]
    assert sorted(told) == sorted((id, row[0], row[3]) for id, row in rows.items())
    assert [n for _, n, _ in told] == sorted(row[0] for row in rows.values())
    assert sum(journal.run("r").counts.values()) == len(rows)
    assert journal.run("r").counts["done"] == sum(row[1] == "done" for row in rows.values())


def test_more_rows_than_are_read_at_a_time_come_in_order(tmp_path):
    """A thousand rows, written backwards and with places shared, are all told, by place."""
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        for i in range(1000):
            journal.begin_row("r", str(i), (1000 - i) // 3, "k", {}, HEADER)
        told = [note.position for note, _ in journal.traces("r")]
        assert (len(told), told) == (1000, sorted(told))
        assert len(journal.rows_by_id("r", [str(i) for i in range(1000)])) == 1000


def test_runs_are_told_apart(tmp_path):
    """Each has its own rows and its own account, and keys are merged into that."""
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
        assert (journal.rows_by_id("a", ["x"])["x"].key, journal.rows_by_id("b", ["x"])["x"].key) == ("ka", "kb")
        assert journal.run("c") is None
        assert journal.rows_by_id("c", ["x"]) == {}


def test_a_forgotten_run_leaves_nothing_and_its_room_is_given_back(tmp_path):
    """The other run and the calls stay."""
    path = filled(tmp_path / "j", rows=100, size=5000)
    with Journal(path) as journal:
        journal.update_run("s")
        journal.begin_row("s", "x", 0, "k", {}, HEADER)
        journal.delete("r")
        assert journal.rows_by_id("r", ["row-1"]) == {}
        assert [r.name for r in journal.runs()] == ["s"]
        assert len(journal.response_cache) == 100
        journal.response_cache.clear()
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
]


@pytest.mark.parametrize("reply", REPLIES)
def test_a_cached_reply_is_there_at_once_and_stays(tmp_path, reply):
    """Before the commit, after it, and in the next process; what it said of rate limits is not kept."""
    with Journal(tmp_path / "j") as journal:
        assert journal.response_cache.get("ab") is None
        journal.response_cache["ab"] = replace(reply, rate_limit_status=RateLimitStatus(requests_left=1))
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


async def test_many_wait_for_one_commit(tmp_path):
    """Those who wait together are told together, and one who gives up disturbs nobody."""
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


def foreign_database(path):
    with closing(sqlite3.connect(path)) as c:
        c.execute("CREATE TABLE precious (a)")


def newer(path):
    with closing(sqlite3.connect(filled(path))) as c:
        c.execute(f"PRAGMA user_version = {SCHEMA + 1}")


def older(path):
    with closing(sqlite3.connect(filled(path))) as c:
        c.execute("PRAGMA user_version = 0")


def without_a_table(path):
    with closing(sqlite3.connect(filled(path))) as c:
        c.execute("DROP TABLE calls")


def damaged_page(path):
    data = bytearray(filled(path, rows=50, size=2000).read_bytes())
    data[12 * 4096 : 14 * 4096] = b"\xa5" * 8192
    path.write_bytes(data)


def damaged_beside_a_wal(path):
    """As a kill leaves it: the last commits stand in the file beside."""
    damaged_page(path)
    path.with_name(f"{path.name}-wal").write_bytes(b"\x37\x7f\x06\x82" + b"\0" * 5000)


def cut_off(path):
    filled(path, rows=50, size=2000)
    path.write_bytes(path.read_bytes()[: 20 * 4096 + 100])


def without_its_main_file(path):
    path.with_name(f"{path.name}-wal").write_bytes(b"committed")


REFUSED = {
    "no SQLite": (lambda p: p.write_text('{"redraft": 2}\n' * 50), "is not a journal"),
    "a few bytes": (lambda p: p.write_bytes(b"x"), "is not a journal"),
    "cut off in the header": (lambda p: p.write_bytes(filled(p).read_bytes()[:50]), "cut off after 50 bytes"),
    "another program's": (foreign_database, "of another program"),
    "newer": (newer, f"has schema {SCHEMA + 1}, this release reads schema {SCHEMA}; it was written by a newer Redraft"),
    "older": (older, "has schema 0"),
    "without a table": (without_a_table, "is damaged .*salvage"),
    "a damaged page": (damaged_page, "is damaged .*salvage"),
    "a damaged page, and a wal": (damaged_beside_a_wal, "is damaged .*salvage"),
    "cut off": (cut_off, "is damaged .*salvage"),
    "no main file": (without_its_main_file, "is missing or empty, but the file with its last writes is there"),
    "a folder": (lambda p: p.mkdir(), "is not a file"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_whole_journal_is_refused_and_left_alone(tmp_path, make, said):
    """The error names the file and says what to do; no byte changes and nothing new lies beside it."""
    path = tmp_path / "j?#%20.db"
    make(path)
    before = files(tmp_path)
    for how in ({}, {"create": False}, {"durability": "full"}):
        with pytest.raises(StoreError, match=said) as caught:
            Journal(path, **how)
        assert repr(str(path)) in str(caught.value)
        assert files(tmp_path) == before


def test_a_file_that_cannot_be_made_is_an_error(tmp_path):
    """So is one that should be there and is not, and a durability that is none."""
    with pytest.raises(StoreError, match="No such file or directory"):
        Journal(tmp_path / "no" / "j")
    for how in ({"create": False}, {"read_only": True}):
        with pytest.raises(StoreError, match="there is no journal"):
            Journal(tmp_path / "j", **how)
    with pytest.raises(ConfigError, match="durability must be one of normal, full, got 'some'"):
        Journal(tmp_path / "j", durability="some")
    assert files(tmp_path) == {}


def test_an_empty_file_is_made_a_journal(tmp_path):
    """It keeps who may read it."""
    path = tmp_path / "j"
    path.touch(mode=0o600)
    filled(path)
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


def holder(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_second_process_is_told_who_holds_it_and_may_read(tmp_path):
    """It names the process; reading goes on beside it; when it was killed it is no obstacle any more."""
    path = tmp_path / "j"
    with holder(path) as process:
        with pytest.raises(StoreError, match=f"is held by process {process.pid} on .*, since 2"):
            Journal(path)
        with Journal(path, read_only=True) as journal:
            assert journal.run("r").metadata == {"by": "the other"}
            for write in (lambda: journal.update_run("r"), lambda: journal.response_cache.update(ab=Reply("a"))):
                with pytest.raises(StoreError, match="opened for reading only"):
                    write()
        process.kill()
    with Journal(path) as journal:
        assert journal.run("r").metadata == {"by": "the other"}
        with pytest.raises(StoreError, match="held by this process"):
            Journal(path)
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


def test_another_name_of_the_file_is_the_same_journal(tmp_path):
    """A link to it is held, read and continued as the file itself; nothing is left beside the link."""
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


def test_rows_that_left_the_input_count_no_more(tmp_path):
    """Once a going has read the whole input, rows that it did not meet are left out, and come back when they are met again."""

    def seen():
        return journal.run("r").counts["done"], [row.id for row, _ in journal.traces("r")]

    with Journal(filled(tmp_path / "j")) as journal:
        assert (journal.invocation("r"), seen()) == (0, (3, ["row-0", "row-1", "row-2"]))
        journal.update_run("r", invocation=1)
        journal.mark_seen("r", ["row-0", "row-2"], journal.invocation("r"))
        journal.begin_row("r", "new", 3, "k", {}, HEADER)
        journal.finish_row("r", "new", "done", {})
        assert seen()[0] == 4
        journal.update_run("r", last_full_invocation=1)
        assert seen() == (3, ["row-0", "row-2", "new"])
        assert [row.id for row, _ in journal.traces("r", 0)] == ["row-0", "row-1", "row-2", "new"]
        journal.update_run("r", invocation=2)
        journal.mark_seen("r", ["row-1"])
        assert seen() == (4, ["row-0", "row-1", "row-2", "new"])
        journal.update_run("r", last_full_invocation=2)
        assert seen() == (1, ["row-1"])
        assert set(journal.rows_by_id("r", ["row-0", "row-1"])) == {"row-0", "row-1"}


def test_rows_of_a_part_were_met_by_the_run_that_takes_them_in(tmp_path):
    """Rows that a shard has worked on count as much as others."""
    filled(tmp_path / "part")
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r", invocation=5, last_full_invocation=5)
        merge_shard(journal, tmp_path / "part")
        assert journal.run("r").counts["done"] == 3
        assert len(list(journal.traces("r"))) == 3
        journal.update_run("r", invocation=6, last_full_invocation=6)
        assert journal.run("r").counts["done"] == 0


def test_the_lock_tells_no_secret(tmp_path, monkeypatch):
    """A key on the command line is not written down."""
    monkeypatch.setattr(sys, "argv", ["/bin/redraft", "batch", "sk-canary", "--api-key=sk-canary"])
    with Journal(tmp_path / "j"):
        told = json.loads((tmp_path / "j.lock").read_text())
    assert told["command"] == "redraft batch"


FULL = """
import asyncio, resource, sys
from redraft import Task
from redraft.core.records import Candidate
from redraft.core.serialize import record_to_json
from redraft.core.trace import Trace
from redraft.errors import StoreError
from redraft.storage import Journal

async def main(journal):
    for n in range(1000):
        journal.begin_row("r", f"row-{n}", n, "k", {}, Trace(Task("q")).header())
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


def test_a_full_disk_stops_the_writer_and_loses_nothing(tmp_path):
    """The error names the file and what is safe in it; every later write says the same; with room again it goes on."""
    path = tmp_path / "j"
    ended = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60)
    committed = len(ended.stdout.split())
    assert 0 < committed < 1000
    assert f"journal {str(path)!r} cannot be written: " in ended.stderr
    assert f"{committed} finished rows are safe in it; the same command resumes" in ended.stderr
    with Journal(path) as journal:
        assert journal.run("r").counts == {"open": 0, "done": committed, "failed": 0}
        journal.begin_row("r", "more", 2000, "k", {}, HEADER)
        assert len(list(journal.traces("r"))) == committed + 1


async def test_a_row_that_was_never_begun_is_trouble(tmp_path):
    """What was written is not silently lost, and closing does not hang."""
    with pytest.raises(StoreError, match="nothing to update for .*'x'"), Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.append_records("r", "x", 0, [record(0)])
    assert "nothing to update" in str(journal.write_error)
    with pytest.raises(StoreError):
        await journal.wait_for_commit()
    with pytest.raises(StoreError):
        journal.update_run("r")


def test_a_status_that_is_none_is_refused(tmp_path):
    """Before anything is written."""
    with Journal(filled(tmp_path / "j")) as journal, pytest.raises(ConfigError, match="one of open, done, failed, got 'good'"):
        journal.finish_row("r", "row-1", "good", {})


def test_what_is_left_of_a_damaged_journal_can_be_saved(tmp_path):
    """All that is readable is copied as lines, and the journal stays as it was."""
    path, out = tmp_path / "j", tmp_path / "saved.jsonl"
    damaged_page(path)
    before = path.read_bytes()
    counts = salvage(path, out)
    saved = [json.loads(line) for line in out.read_text().splitlines()]
    assert {table: sum(s["table"] == table for s in saved) for table in counts} == counts
    assert counts["runs"] == 1
    assert 150 < sum(counts.values()) < 251
    assert next(s for s in saved if s["table"] == "lines" and s["place"] == 1)["line"]["kind"] == "candidate"
    assert path.read_bytes() == before
    for target, overwrite in ((out, False), (path, True)):
        with pytest.raises(StoreError, match="exists already"):
            salvage(path, target, overwrite=overwrite)
    assert salvage(path, out, overwrite=True) == counts
    assert path.read_bytes() == before
    whole = salvage(filled(tmp_path / "k"), tmp_path / "k.jsonl")
    assert whole == {"runs": 1, "rows": 3, "lines": 9, "calls": 3}
    (tmp_path / "n").write_text("no journal")
    with pytest.raises(StoreError, match="nothing can be read of journal"):
        salvage(tmp_path / "n", tmp_path / "n.jsonl")
    assert not (tmp_path / "n.jsonl").exists()
