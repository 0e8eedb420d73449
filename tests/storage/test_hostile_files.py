"""Journals and traces of strangers: whatever is in them, one typed error that names the file, soon."""

import json
import os
import sqlite3
from contextlib import closing
from time import monotonic

import pytest

from redraft import Task
from redraft.protocols import Reply
from redraft.core.records import Candidate
from redraft.core.serialize import record_to_json
from redraft.core.trace import Trace
from redraft.errors import StoreError
from redraft.storage import Journal, read_trace, salvage
from redraft.storage.shard_merge import merge_shard

SOON = 20.0  # seconds, on a busy machine
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
DEEP = "[" * 100_000 + "]" * 100_000
DEEPER = "[" * 400 + "]" * 400
LARGE = "9" * 5000


def filled(path):
    with Journal(path) as journal:
        journal.update_run("r", model="m")
        for n in range(3):
            journal.begin_row("r", f"row-{n}", n, "k", {"task": "t"}, Trace(Task("q")).header())
            journal.append_records("r", f"row-{n}", 0, [record_to_json(Candidate(0, "a"))])
            journal.finish_row("r", f"row-{n}", "done", {"best": "b"})
        journal.response_cache["ab"] = Reply("c")
    return path


def changed(*statements):
    """Makes a journal in which a stranger has executed something."""

    def make(path):
        with closing(sqlite3.connect(filled(path), isolation_level=None)) as connection:
            for sql, *values in (s if isinstance(s, tuple) else (s,) for s in statements):
                connection.execute(sql, values)

    return make


def declared(kind, name, sql):
    """Makes a journal whose schema says something else of a table that is there."""
    return changed("PRAGMA writable_schema = ON", ("UPDATE sqlite_master SET sql = ? WHERE type = ? AND name = ?", sql, kind, name))


def beside(ending, make):
    def make_both(path):
        filled(path)
        make(path.with_name(f"{path.name}{ending}"))

    return make_both


FOREIGN = {
    "a trigger without end": changed(
        f"CREATE TRIGGER evil AFTER INSERT ON runs BEGIN INSERT INTO calls (key, reply) SELECT i, '' FROM ({ENDLESS} i FROM n); END"
    ),
    "a trigger that deletes": changed("CREATE TRIGGER evil AFTER UPDATE ON runs BEGIN DELETE FROM rows; END"),
    "a view": changed(f"CREATE VIEW evil AS {ENDLESS} i FROM n"),
    "a view in place of a table": changed(
        "DROP TABLE calls", f"CREATE VIEW calls AS {ENDLESS} i AS call, '' AS key, '' AS reply FROM n"
    ),
    "an index": changed("CREATE INDEX evil ON lines (line)"),
    "an index over an expression": changed("CREATE INDEX evil ON lines (length(line))"),
    "a table": changed("CREATE TABLE evil (a)"),
    "a table of its own name": changed('CREATE TABLE "a\nb\x1b[31m" (a)'),
    "a virtual table": changed("CREATE VIRTUAL TABLE evil USING rtree(id, a, b)"),
    "a generated column": changed("ALTER TABLE calls ADD COLUMN evil AS (length(hex(zeroblob(100000000))))"),
    "a heavy constraint": changed(
        "DROP TABLE calls",
        "CREATE TABLE calls (call INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, reply TEXT NOT NULL CHECK (length(hex(zeroblob(10000000)))))",
    ),
    "a trigger of ours with another body": declared(
        "trigger",
        "delete_details_of_row",
        "CREATE TRIGGER delete_details_of_row AFTER DELETE ON rows BEGIN DELETE FROM runs; END",
    ),
    "what ANALYZE leaves": changed("ANALYZE"),
    "a very long declaration": changed(f"CREATE TABLE evil ({', '.join(f'column_{n}' for n in range(1900))})"),
    "many tables": changed(*(f"CREATE TABLE evil_{n} (a)" for n in range(300))),
    "a rollback journal": beside("-journal", lambda p: p.write_bytes(b"\xd9\xd5\x05\xf9 \xa1c\xd7" + b"\0" * 1000)),
    "a link for a log": beside("-wal", lambda p: p.symlink_to("precious")),
    "a link for an index": beside("-shm", lambda p: p.symlink_to("precious")),
    "a folder for a log": beside("-wal", lambda p: p.mkdir()),
    "a log of another file": beside("-wal", lambda p: p.write_bytes(b"\x37\x7f\x06\x82" + os.urandom(50_000))),
    "a pipe": os.mkfifo,
}
HARMLESS = {"a log of another file"}  # SQLite leaves out what no checksum vouches for

METADATA = "UPDATE runs SET metadata = ?"
CELLS = {
    "a large value": changed(("UPDATE runs SET metadata = zeroblob(?)", 2**27 + 1)),
    "a large record": changed(("UPDATE lines SET line = zeroblob(?) WHERE number % 1048576 = 1", 2**27 + 1)),
    "bytes for a name": changed(("UPDATE runs SET name = ?", b"\0\xff")),
    "broken text": changed("UPDATE runs SET name = CAST(x'ff22' AS TEXT)"),
    "a list for a name": changed(("UPDATE runs SET name = ?", '["r"]')),
    "a number for a time": changed("UPDATE runs SET updated_at = 5, started_at = x'00'"),
    "no JSON": changed((METADATA, "{")),
    "a list of what is known": changed((METADATA, "[]")),
    "deep JSON": changed((METADATA, f'{{"settings": {DEEP}}}')),
    "deeper than any of ours": changed((METADATA, f'{{"x": {DEEPER}}}')),
    "a number of 5,000 digits": changed((METADATA, f'{{"invocation": {LARGE}}}')),
    "a text for a number": changed((METADATA, '{"spent": {"usd": "0"}}')),
    "NaN spent": changed((METADATA, '{"spent": {"usd": NaN}}')),
    "a list spent": changed((METADATA, '{"spent": ["usd"]}')),
    "capabilities of another shape": changed((METADATA, '{"capabilities": {"m": {"adaptations": {}}}}')),
    "batches of another shape": changed((METADATA, '{"provider_batches": {"open": [{"id": 1}]}}')),
    "priors of another shape": changed((METADATA, '{"online_priors": {"k": {"start": [], "refits": 1}}}')),
    "a list for an output": changed((METADATA, '{"output": ["out.jsonl"]}')),
    "a list for an id": changed(("UPDATE rows SET id = '[' || position || ']'",)),
    "a text for a place": changed("UPDATE rows SET position = 'first'"),
    "an unknown status": changed("UPDATE rows SET status = 'evil'"),
    "bytes for a key": changed("UPDATE rows SET key = x'00'"),
    "parts of another shape": changed(("UPDATE rows SET key_parts = ?", '{"task": ["t"]}')),
    "a list for a result": changed(("UPDATE rows SET result = ?", "[1]")),
    "bytes for a record": changed("UPDATE lines SET line = x'00ff' WHERE number % 1048576 = 1"),
    "a header of another shape": changed(
        'UPDATE lines SET line = \'{"redraft": 2, "task": [], "panel": 3}\' WHERE number % 1048576 = 0'
    ),
    "a record of another shape": changed(
        """UPDATE lines SET line = '{"kind": "candidate", "id": ["0"], "text": 5}' WHERE number % 1048576 = 1"""
    ),
    "bytes for a reply": changed("UPDATE calls SET reply = x'00ff'"),
    "a reply of another shape": changed(("UPDATE calls SET reply = ?", '{"text": ["c"], "usage": []}')),
    "a deep reply": changed(("UPDATE calls SET reply = ?", DEEP)),
}


def read_all(path, **how):
    """All that can be asked of a journal."""
    with Journal(path, **how) as journal:
        runs = journal.runs()
        journal.rows_by_id(runs[0].name, [f"row-{n}" for n in range(3)])
        told = list(journal.traces(runs[0].name))
        replies = dict(journal.response_cache)
        if not how:
            journal.update_run("r", again=True)
            journal.delete("r")
    return len(told), len(replies)


@pytest.mark.parametrize("how", [{}, {"read_only": True}], ids=["to write", "to read"])
@pytest.mark.parametrize("kind", [*FOREIGN, *CELLS])
def test_a_hostile_journal_is_a_typed_error_soon(tmp_path, kind, how):
    """Nothing in it is carried out; the error names the file."""
    path = tmp_path / "j"
    (FOREIGN | CELLS)[kind](path)
    begun = monotonic()
    if kind in HARMLESS:
        assert read_all(path, **how) == (3, 1)
    else:
        with pytest.raises(StoreError) as caught:
            read_all(path, **how)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 1500
        assert "\x1b" not in str(caught.value)
    assert monotonic() - begun < SOON
    assert not (tmp_path / "precious").exists()


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if not kind.startswith(("a link", "a folder", "a pipe"))])
def test_foreign_objects_are_named_and_left(tmp_path, kind):
    """So that somebody can look at them."""
    path = tmp_path / "j"
    FOREIGN[kind](path)
    before = path.read_bytes()
    if kind not in HARMLESS:
        with pytest.raises(StoreError, match=r"holds what no journal has, the \w+ '|beside it|cannot be that of a journal|too big"):
            Journal(path, read_only=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", [*FOREIGN, *CELLS])
def test_saving_what_is_left_of_a_hostile_journal_ends(tmp_path, kind):
    """What is in its tables is saved, or an error names the file; nothing else is left."""
    path, out = tmp_path / "j", tmp_path / "out" / "saved.jsonl"
    out.parent.mkdir()
    (FOREIGN | CELLS)[kind](path)
    begun = monotonic()
    try:
        counts = salvage(path, out)
    except StoreError as error:
        assert str(path) in str(error)  # noqa: PT017
        assert list(out.parent.iterdir()) == []
    else:
        assert sum(counts.values()) == len(out.read_text().splitlines())
    assert monotonic() - begun < SOON


@pytest.mark.parametrize("kind", [*FOREIGN, "bytes for a name"])
def test_a_hostile_part_is_not_taken_in(tmp_path, kind):
    """What lies beside a journal under the name of a part is looked at as every journal."""
    part = tmp_path / "j.1-of-2"
    (FOREIGN | CELLS)[kind](part)
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        if kind in HARMLESS:
            merge_shard(journal, part)
        else:
            with pytest.raises(StoreError, match="1-of-2"):
                merge_shard(journal, part)


def test_a_part_that_is_a_link_is_not_taken_in(tmp_path):
    """What it leads to is not removed with it."""
    filled(tmp_path / "other")
    (tmp_path / "j.1-of-2").symlink_to(tmp_path / "other")
    with Journal(tmp_path / "j") as journal, pytest.raises(StoreError, match="1-of-2.*is a link"):
        merge_shard(journal, tmp_path / "j.1-of-2")


HEADER = '{"redraft": 2, "task": {"messages": "q"}}'
GRADED = '{"kind": "candidate", "id": 0, "text": "a"}'
RECORDS = {
    "deep JSON": f'{{"kind": {DEEP}}}',
    "deeper than any of ours": f'{{"kind": "candidate", "id": 0, "text": {DEEPER}}}',
    "a number of 5,000 digits": f'{{"kind": "candidate", "id": {LARGE}, "text": "a"}}',
    "a number beyond 64 bits": '{"kind": "candidate", "id": 18446744073709551616, "text": "a"}',
    "a list": "[]",
    "a text": '"candidate"',
    "a kind that is none": '{"kind": ["candidate"]}',
    "a list for an id": '{"kind": "candidate", "id": ["0"], "text": "a"}',
    "a truth for an id": '{"kind": "candidate", "id": true, "text": "a"}',
    "a number for a text": '{"kind": "candidate", "id": 0, "text": 5}',
    "an object for a text": '{"kind": "candidate", "id": 0, "text": {}}',
    "a list for usage": '{"kind": "candidate", "id": 0, "text": "a", "usage": []}',
    "a text for tokens": '{"kind": "candidate", "id": 0, "text": "a", "usage": {"calls": "1"}}',
    "NaN seconds": '{"kind": "candidate", "id": 0, "text": "a", "seconds": NaN}',
    "an infinite cost": '{"kind": "candidate", "id": 0, "text": "a", "usage": {"cost": 1e999}}',
    "a NaN score": '{"kind": "feedback", "score": NaN}',
    "a list for a grader": '{"kind": "feedback", "score": 0.5, "grader": ["g"]}',
    "numbers for actions": '{"kind": "feedback", "score": 0.5, "actions": [1]}',
    "a text for criteria": '{"kind": "feedback", "score": 0.5, "criteria": "all"}',
    "votes that are none": '{"kind": "feedback", "score": 0.5, "votes": [1, [2]]}',
    "a slot that is none": '{"kind": "failure", "of": 5, "role": "r", "error": "e"}',
    "a nested slot": '{"kind": "failure", "of": [{"a": []}], "role": "r", "error": "e"}',
    "a ranking of texts": '{"kind": "comparison", "ranking": ["a", {}]}',
    "ties of others": '{"kind": "comparison", "ranking": [0], "ties": [[7, 8]]}',
    "an unknown reason": '{"kind": "outcome", "best": 0, "reason": "evil"}',
    "an unknown field": '{"kind": "outcome", "best": 0, "reason": "done", "evil": 1}',
    "a belief in pieces": '{"kind": "outcome", "best": 0, "reason": "done", "believed": [[0]]}',
}
HEADERS = {
    "a panel that is none": '{"redraft": 2, "task": {"messages": "q"}, "panel": 3}',
    "a seat that is none": '{"redraft": 2, "task": {"messages": "q"}, "panel": [["g"]]}',
    "a list for a grader": '{"redraft": 2, "task": {"messages": "q"}, "panel": [{"grader": ["g"]}]}',
    "a list for a task": '{"redraft": 2, "task": []}',
    "messages that are none": '{"redraft": 2, "task": {"messages": [[]]}}',
    "settings that are none": '{"redraft": 2, "task": {"messages": "q"}, "settings": []}',
    "a list for an id": '{"redraft": 2, "task": {"messages": "q", "id": []}}',
    "records that are none": '{"redraft": 2, "task": {"messages": "q"}, "records": {}}',
    "a beginning that is none": '{"redraft": 2, "task": {"messages": "q"}, "records": [], "resumed_at": "0"}',
    "a deep header": f'{{"redraft": 2, "task": {DEEP}}}',
}


@pytest.mark.parametrize("line", RECORDS.values(), ids=RECORDS)
def test_a_hostile_record_is_named_with_its_line(tmp_path, line):
    """The file, the line, and what is wrong with it, shortly."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{HEADER}\n{GRADED}\n{line}\n")
    with pytest.raises(StoreError, match="t.jsonl', line 3: ") as caught:
        read_trace(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("line", HEADERS.values(), ids=HEADERS)
def test_a_hostile_header_is_named(tmp_path, line):
    """It is the first line."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(StoreError, match="t.jsonl' is not a trace, .* line 1: ") as caught:
        read_trace(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("parents", [(0,), (1, 0), (None, 7), (None, 2, 1)], ids=str)
def test_a_candidate_made_from_none_is_refused(tmp_path, parents):
    """Itself, one another, or one that is not there: whoever follows them would not come to an end."""
    path = tmp_path / "t.jsonl"
    candidates = [record_to_json(Candidate(i, "a", parent)) for i, parent in enumerate(parents)]
    path.write_text("\n".join([HEADER, *candidates, ""]))
    with pytest.raises(StoreError, match=r"t.jsonl': candidate \d was made from candidate \d, which is not before it"):
        read_trace(path)
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.begin_row("r", "x", 0, "k", {}, Trace(Task("q")).header())
        journal.append_records("r", "x", 0, candidates)
        with pytest.raises(StoreError, match="j', row 'x': candidate"):
            journal.trace("r", "x")


@pytest.mark.parametrize(("size", "said"), [(2**27 + 100, "line 2 is longer than 134,217,728 bytes"), (2**40, "line 2 is longer")])
def test_a_trace_that_is_too_long_is_not_read(tmp_path, size, said):
    """A sparse file takes no room, and no memory either."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{HEADER}\n")
    os.truncate(path, size)
    with pytest.raises(StoreError, match=said):
        read_trace(path)


def test_what_is_written_can_be_read_whatever_it_holds(tmp_path):
    """Numbers beyond 64 bits and halves of surrogate pairs stand in data of the user's; only our own fields have limits."""
    task = Task("\ud800", id="\udfff", metadata={"n": 2**70, "deep": json.loads("[" * 150 + "]" * 150), "nan": float("inf")})
    trace = Trace(task) + Candidate(0, "\ud800\0", reasoning="\udc00")
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(trace.header())}\n{record_to_json(trace.records[0])}\n")
    assert read_trace(path) == trace
