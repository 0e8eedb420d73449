"""Hostile journals and traces: each gives one typed error that names the file, within a bounded
time.
"""

import json
import os
import sqlite3
from contextlib import closing
from time import monotonic

import pytest

from redraft import Task
from redraft.base.jsontext import dumps_text
from redraft.errors import StoreError
from redraft.loop.records import Candidate
from redraft.loop.serialize import record_to_json
from redraft.loop.trace import Trace
from redraft.protocols import Reply
from redraft.storage import Journal, read_trace, salvage
from redraft.storage.schema import set_time_limit
from redraft.storage.shard_merge import merge_shard

pytestmark = pytest.mark.usefixtures("no_open_files")

SOON = 20.0  # seconds, on a busy machine
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
DEEP = "[" * 100_000 + "]" * 100_000
DEEPER = "[" * 400 + "]" * 400
LARGE = "9" * 5000


def make_journal(path):
    with Journal(path) as journal:
        journal.update_run("r", model="m")
        for n in range(3):
            journal.begin_row(
                "r", f"row-{n}", n, "k", {"task": "t"}, dumps_text(Trace(Task("q")).header())
            )
            journal.append_records("r", f"row-{n}", 0, [record_to_json(Candidate(0, "a"))])
            journal.finish_row("r", f"row-{n}", "done", {"best": "b"})
        journal.response_cache["ab"] = Reply("c")
    return path


def hostile_sql(*statements):
    """Return a function that makes a journal and executes hostile SQL in it."""

    def make(path):
        with closing(sqlite3.connect(make_journal(path), isolation_level=None)) as connection:
            for sql, *values in (s if isinstance(s, tuple) else (s,) for s in statements):
                connection.execute(sql, values)

    return make


def redefined_table(kind, name, sql):
    """Return a function that makes a journal whose schema declares a table differently."""
    return hostile_sql(
        "PRAGMA writable_schema = ON",
        ("UPDATE sqlite_master SET sql = ? WHERE type = ? AND name = ?", sql, kind, name),
    )


def with_sidecar(ending, make):
    def make_both(path):
        make_journal(path)
        make(path.with_name(f"{path.name}{ending}"))

    return make_both


FOREIGN = {
    "a trigger without end": hostile_sql(
        f"CREATE TRIGGER evil AFTER INSERT ON runs BEGIN INSERT INTO calls (key, reply) SELECT i, '' FROM ({ENDLESS} i FROM n); END"
    ),
    "a trigger that deletes": hostile_sql(
        "CREATE TRIGGER evil AFTER UPDATE ON runs BEGIN DELETE FROM rows; END"
    ),
    "a view": hostile_sql(f"CREATE VIEW evil AS {ENDLESS} i FROM n"),
    "a view in place of a table": hostile_sql(
        "DROP TABLE calls",
        f"CREATE VIEW calls AS {ENDLESS} i AS call, '' AS key, '' AS reply FROM n",
    ),
    "an index": hostile_sql("CREATE INDEX evil ON lines (line)"),
    "an index over an expression": hostile_sql("CREATE INDEX evil ON lines (length(line))"),
    "a table": hostile_sql("CREATE TABLE evil (a)"),
    "a table of its own name": hostile_sql('CREATE TABLE "a\nb\x1b[31m" (a)'),
    "a virtual table": hostile_sql("CREATE VIRTUAL TABLE evil USING rtree(id, a, b)"),
    "a generated column": hostile_sql(
        "ALTER TABLE calls ADD COLUMN evil AS (length(hex(zeroblob(100000000))))"
    ),
    "a heavy constraint": hostile_sql(
        "DROP TABLE calls",
        "CREATE TABLE calls (call INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, reply TEXT NOT NULL CHECK (length(hex(zeroblob(10000000)))))",
    ),
    "a trigger of ours with another body": redefined_table(
        "trigger",
        "delete_details_of_row",
        "CREATE TRIGGER delete_details_of_row AFTER DELETE ON rows BEGIN DELETE FROM runs; END",
    ),
    "what ANALYZE leaves": hostile_sql("ANALYZE"),
    "a very long declaration": hostile_sql(
        f"CREATE TABLE evil ({', '.join(f'column_{n}' for n in range(1900))})"
    ),
    "many tables": hostile_sql(*(f"CREATE TABLE evil_{n} (a)" for n in range(300))),
    "a rollback journal": with_sidecar(
        "-journal", lambda p: p.write_bytes(b"\xd9\xd5\x05\xf9 \xa1c\xd7" + b"\0" * 1000)
    ),
    "a link for a log": with_sidecar("-wal", lambda p: p.symlink_to("precious")),
    "a link for an index": with_sidecar("-shm", lambda p: p.symlink_to("precious")),
    "a folder for a log": with_sidecar("-wal", lambda p: p.mkdir()),
    "a log of another file": with_sidecar(
        "-wal", lambda p: p.write_bytes(b"\x37\x7f\x06\x82" + os.urandom(50_000))
    ),
    "a pipe": os.mkfifo,
}
HARMLESS = {"a log of another file"}  # SQLite ignores frames without a valid checksum

METADATA = "UPDATE runs SET metadata = ?"
CELLS = {
    "a large value": hostile_sql(("UPDATE runs SET metadata = zeroblob(?)", 2**27 + 1)),
    "a large record": hostile_sql(
        ("UPDATE lines SET line = zeroblob(?) WHERE number % 1048576 = 1", 2**27 + 1)
    ),
    "bytes for a name": hostile_sql(("UPDATE runs SET name = ?", b"\0\xff")),
    "broken text": hostile_sql("UPDATE runs SET name = CAST(x'ff22' AS TEXT)"),
    "a list for a name": hostile_sql(("UPDATE runs SET name = ?", '["r"]')),
    "a number for a time": hostile_sql("UPDATE runs SET updated_at = 5, started_at = x'00'"),
    "no JSON": hostile_sql((METADATA, "{")),
    "a list of what is known": hostile_sql((METADATA, "[]")),
    "deep JSON": hostile_sql((METADATA, f'{{"settings": {DEEP}}}')),
    "deeper than any of ours": hostile_sql((METADATA, f'{{"x": {DEEPER}}}')),
    "a number of 5,000 digits": hostile_sql((METADATA, f'{{"invocation": {LARGE}}}')),
    "a text for a number": hostile_sql((METADATA, '{"spent": {"usd": "0"}}')),
    "NaN spent": hostile_sql((METADATA, '{"spent": {"usd": NaN}}')),
    "a list spent": hostile_sql((METADATA, '{"spent": ["usd"]}')),
    "capabilities of another shape": hostile_sql(
        (METADATA, '{"capabilities": {"m": {"adaptations": {}}}}')
    ),
    "batches of another shape": hostile_sql(
        (METADATA, '{"provider_batches": {"open": [{"id": 1}]}}')
    ),
    "priors of another shape": hostile_sql(
        (METADATA, '{"online_priors": {"k": {"start": [], "refits": 1}}}')
    ),
    "a list for an output": hostile_sql((METADATA, '{"output": ["out.jsonl"]}')),
    "a list for an id": hostile_sql(("UPDATE rows SET id = '[' || position || ']'",)),
    "a text for a place": hostile_sql("UPDATE rows SET position = 'first'"),
    "an unknown status": hostile_sql("UPDATE rows SET status = 'evil'"),
    "bytes for a key": hostile_sql("UPDATE rows SET key = x'00'"),
    "parts of another shape": hostile_sql(("UPDATE rows SET key_parts = ?", '{"task": ["t"]}')),
    "a list for a result": hostile_sql(("UPDATE rows SET result = ?", "[1]")),
    "bytes for a record": hostile_sql("UPDATE lines SET line = x'00ff' WHERE number % 1048576 = 1"),
    "a header of another shape": hostile_sql(
        'UPDATE lines SET line = \'{"redraft": 2, "task": [], "panel": 3}\' WHERE number % 1048576 = 0'
    ),
    "a record of another shape": hostile_sql(
        """UPDATE lines SET line = '{"kind": "candidate", "id": ["0"], "text": 5}' WHERE number % 1048576 = 1"""
    ),
    "bytes for a reply": hostile_sql("UPDATE calls SET reply = x'00ff'"),
    "a reply of another shape": hostile_sql(
        ("UPDATE calls SET reply = ?", '{"text": ["c"], "usage": []}')
    ),
    "a deep reply": hostile_sql(("UPDATE calls SET reply = ?", DEEP)),
}


def read_all(path, **how):
    """Read everything that a journal offers."""
    with Journal(path, **how) as journal:
        runs = journal.runs()
        journal.rows_by_id(runs[0].name, [f"row-{n}" for n in range(3)])
        trace_rows = list(journal.traces(runs[0].name))
        replies = dict(journal.response_cache)
        if not how:
            journal.update_run("r", again=True)
            journal.delete("r")
    return len(trace_rows), len(replies)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="to write"),
        pytest.param({"read_only": True}, id="to read", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", [*FOREIGN, *CELLS])
@pytest.mark.slow(but_each=8)
def test_hostile_journal_is_a_typed_error(tmp_path, kind, how):
    """No SQL of the journal is executed, and the error names the file within a bounded time."""
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


@pytest.mark.parametrize(
    "kind", [kind for kind in FOREIGN if not kind.startswith(("a link", "a folder", "a pipe"))]
)
def test_foreign_objects_are_named_and_kept(tmp_path, kind):
    """The error names unknown tables and triggers, and they stay in the file for inspection."""
    path = tmp_path / "j"
    FOREIGN[kind](path)
    before = path.read_bytes()
    if kind not in HARMLESS:
        with pytest.raises(
            StoreError,
            match=r"holds objects that a journal does not have \(the|beside it|is not that of a journal|too big",
        ):
            Journal(path, read_only=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "kind", [*FOREIGN, *(pytest.param(kind, marks=pytest.mark.slow) for kind in CELLS)]
)
def test_recovery_of_a_hostile_journal_ends(tmp_path, kind):
    """Recovery writes what the tables hold or raises an error that names the file, and leaves
    nothing else.
    """
    path, out = tmp_path / "j", tmp_path / "out" / "saved.jsonl"
    out.parent.mkdir()
    (FOREIGN | CELLS)[kind](path)
    begun = monotonic()
    try:
        counts = salvage(path, out)
    except StoreError as error:
        assert str(path) in str(error)
        assert list(out.parent.iterdir()) == []
    else:
        assert sum(counts.values()) == len(out.read_text().splitlines())
    assert monotonic() - begun < SOON


def test_statements_on_foreign_files_have_an_end():
    """A file can make any statement long. One clock runs for all statements, and can be started
    again.
    """
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT {}) SELECT count(*) FROM n"
    with closing(sqlite3.connect(":memory:")) as connection:
        set_time_limit(connection, 3600.0)
        assert connection.execute(numbers.format(100_000)).fetchone() == (100_000,)
        restart = set_time_limit(connection, 0.0)
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="interrupted"):
                connection.execute(numbers.format(20_000_000)).fetchone()
            restart()


@pytest.mark.parametrize("kind", [*FOREIGN, "bytes for a name"])
@pytest.mark.slow(but_each=4)
def test_hostile_shard_journal_is_not_merged(tmp_path, kind):
    """A file with the name of a shard journal is checked like any journal."""
    part = tmp_path / "j.1-of-2"
    (FOREIGN | CELLS)[kind](part)
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        if kind in HARMLESS:
            merge_shard(journal, part)
        else:
            with pytest.raises(StoreError, match="1-of-2"):
                merge_shard(journal, part)


def test_linked_shard_journal_is_not_merged(tmp_path):
    """The link's target is not removed."""
    make_journal(tmp_path / "other")
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
def test_hostile_record_is_reported_with_its_line(tmp_path, line):
    """The error is short and gives the file, the line and what is wrong."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{HEADER}\n{GRADED}\n{line}\n")
    with pytest.raises(StoreError, match="t.jsonl', line 3: ") as caught:
        read_trace(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("line", HEADERS.values(), ids=HEADERS)
def test_hostile_header_is_reported(tmp_path, line):
    """The error names the first line."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(StoreError, match="t.jsonl' is not a trace, .* line 1: ") as caught:
        read_trace(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("parents", [(0,), (1, 0), (None, 7), (None, 2, 1)], ids=str)
def test_invalid_parent_is_rejected(tmp_path, parents):
    """A candidate whose parent is itself, part of a cycle or missing is an error."""
    path = tmp_path / "t.jsonl"
    candidates = [record_to_json(Candidate(i, "a", parent)) for i, parent in enumerate(parents)]
    path.write_text("\n".join([HEADER, *candidates, ""]))
    with pytest.raises(
        StoreError,
        match=r"t.jsonl': candidate \d was made from candidate \d, which is not before it",
    ):
        read_trace(path)
    with Journal(tmp_path / "j") as journal:
        journal.update_run("r")
        journal.begin_row("r", "x", 0, "k", {}, dumps_text(Trace(Task("q")).header()))
        journal.append_records("r", "x", 0, candidates)
        with pytest.raises(StoreError, match="j', row 'x': candidate"):
            journal.trace("r", "x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "message"),
    [(2**27 + 100, "line 2 is longer than 134,217,728 bytes"), (2**40, "line 2 is longer")],
)
def test_oversized_trace_is_not_read(tmp_path, size, message):
    """A sparse file of that size uses no memory."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{HEADER}\n")
    os.truncate(path, size)
    with pytest.raises(StoreError, match=message):
        read_trace(path)


def test_any_written_trace_is_readable(tmp_path):
    """User data may hold numbers beyond 64 bits and lone surrogates; only Redraft's own fields have
    limits.
    """
    task = Task(
        "\ud800",
        id="\udfff",
        metadata={"n": 2**70, "deep": json.loads("[" * 150 + "]" * 150), "nan": float("inf")},
    )
    trace = Trace(task) + Candidate(0, "\ud800\0", reasoning="\udc00")
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(trace.header())}\n{record_to_json(trace.records[0])}\n")
    assert read_trace(path) == trace
