"""The store of the gateway: what each level keeps, how requests end, what retention deletes, and
faults of the disk.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from disk_faults import small_files
from redraft import ScriptedModel, refine
from redraft.errors import StoreError
from redraft.gateway import request_store
from redraft.gateway.config import GatewayConfig, Profile, Retention, ServedModel
from redraft.gateway.request_store import (
    RequestEnd,
    RequestStore,
    StoredRequest,
    find_stored_requests,
    retentions,
    size_of,
)
from redraft.gateway.request_table import PendingRows, RequestFacts, RequestTable
from redraft.storage import Journal
from redraft.storage.transaction import Transaction
from redraft.usage import Usage

pytestmark = pytest.mark.usefixtures("no_open_files")

FULL, METADATA, OFF = Retention("full"), Retention("metadata"), Retention("off")
USAGE = Usage(calls=3, input_tokens=30, output_tokens=12, cost=0.25)


@dataclass(frozen=True)
class Owner:
    id: str = "k1"
    name: str = "alice"


async def refined(recorder, prompt="secret question", answers=("one", "two", "three")):
    grades = dict(zip(answers, (0.1, 0.5, 0.95), strict=True))
    return await refine(prompt, ScriptedModel(answers), grades.get, store=recorder)


def begin(store, id, retention=FULL, model="refine/fast", **options):
    return store.begin(id, Owner(), model, "chat", retention, **options)


def folder_bytes(folder):
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def passed(store, id):
    """Record a request that was passed on, with its texts."""
    recorder = begin(store, id, model="pass/m")
    recorder.record_exchange(b"question", b"answer")
    recorder.finish(RequestEnd(200))


async def wait_until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def age(folder, days, where="1"):
    with sqlite3.connect(folder / "requests.db") as connection:
        connection.execute(
            f"UPDATE requests SET started_at = started_at - {days} * 86400 WHERE {where}"
        )


async def test_full_keeps_the_trace_and_the_facts(tmp_path):
    """The trace is that of the refinement; score, iterations and stop come from it, usage from the
    end.
    """
    store = RequestStore(tmp_path)
    recorder = begin(store, "t1")
    result = await refined(recorder)
    facts = recorder.finish(RequestEnd(200, usage=USAGE))
    await store.wait_for_commit()
    stored = store.find("t1")
    assert stored.trace.records == result.trace.records
    assert stored.facts == facts
    assert (facts.outcome, facts.status, facts.score, facts.iterations, facts.stop) == (
        "answered",
        200,
        0.95,
        2,
        "target",
    )
    assert (facts.calls, facts.input_tokens, facts.output_tokens, facts.cost) == (3, 30, 12, 0.25)
    assert (facts.key_id, facts.key_name, facts.model, facts.wire) == (
        "k1",
        "alice",
        "refine/fast",
        "chat",
    )
    assert (
        facts.milliseconds > 0
        and facts.trace_bytes > 100
        and abs(facts.started_at - time.time()) < 60
    )
    assert find_stored_requests(tmp_path, "t1")[0] == stored, "another process can read beside it"
    store.close()
    assert find_stored_requests(tmp_path, "t1")[0] == stored
    assert find_stored_requests(tmp_path, "t2") == []
    with Journal(tmp_path / "gateway.journal", read_only=True) as journal:
        assert journal.run("refine/fast").counts == {"open": 0, "done": 1, "failed": 0}


@pytest.mark.parametrize(
    ("retention", "is_stored", "has_row"),
    [(METADATA, True, True), (METADATA, False, True), (FULL, False, True), (OFF, True, False)],
)
async def test_less_than_full_keeps_no_text(tmp_path, retention, is_stored, has_row):
    """Neither the prompt nor an answer is in any file; the facts are complete unless the level is
    off.
    """
    store = RequestStore(tmp_path)
    recorder = begin(store, "t1", retention, is_stored=is_stored)
    await refined(recorder, answers=("first answer", "second answer", "third answer"))
    facts = recorder.finish(RequestEnd(200, usage=USAGE))
    stored = store.find("t1")
    store.close()
    assert (facts.score, facts.iterations, facts.stop, facts.cost) == (0.95, 2, "target", 0.25), (
        "for the log and the metrics"
    )
    assert facts.trace_bytes == 0
    assert (stored is not None) is has_row
    assert stored is None or (stored.facts == facts and stored.trace is None)
    content = folder_bytes(tmp_path)
    assert b"secret question" not in content and b"answer" not in content.replace(b"answered", b"")


@pytest.mark.parametrize(("retention", "is_kept"), [(FULL, True), (METADATA, False)])
def test_request_that_was_passed_on(tmp_path, retention, is_kept):
    """At level full its bodies are kept as they are, up to a limit; they are no refinement, so
    there is no score and no stop.
    """
    store = RequestStore(tmp_path)
    recorder = begin(store, "t1", retention, model="pass/m")
    assert recorder.keeps_texts is is_kept
    recorder.record_exchange(b'{"q": "\xff\xc3\xa9"}', b"data: " + b"x" * 2**21)
    facts = recorder.finish(RequestEnd(200, usage=USAGE))
    trace = store.find("t1").trace
    store.close()
    assert (facts.score, facts.iterations, facts.stop, facts.calls) == (None, None, "", 3)
    assert (trace is not None) is is_kept
    if trace:
        assert trace.task.prompt == '{"q": "\ufffdé"}'
        assert trace.best.text == "data: " + "x" * (2**20 - 6) and trace.best.truncated
        assert facts.trace_bytes > 2**20
        with Journal(tmp_path / "gateway.journal", read_only=True) as journal:
            assert journal.run("pass/m").counts["done"] == 1


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (RequestEnd(200), "answered"),
        (RequestEnd(502, "upstream_error"), "failed"),
        (RequestEnd(200, "upstream_error"), "failed"),
        (RequestEnd(499), "cancelled"),
    ],
)
def test_how_a_request_ended(tmp_path, end, outcome):
    """An error after the reply began is a failure too; unknown usage stays unknown."""
    store = RequestStore(tmp_path)
    begin(store, "t1", METADATA, model="pass/m")
    store.finish("t1", end)
    facts = store.find("t1").facts
    store.close()
    assert (facts.outcome, facts.status, facts.error) == (outcome, end.status, end.error)
    assert facts.input_tokens is facts.cost is facts.score is facts.iterations is None


async def test_end_of_the_gateway_interrupts_what_is_open(tmp_path):
    """`close` gives an outcome to every request."""
    store = RequestStore(tmp_path)
    begin(store, "t1", METADATA)
    recorder = begin(store, "t2")
    await refined(recorder)
    store.close()
    assert find_stored_requests(tmp_path, "t1")[0].facts.outcome == "interrupted"
    assert find_stored_requests(tmp_path, "t2")[0].facts.calls == 3


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], f"{sys.argv[2]}/.."]
from test_request_store import *
async def main():
    store = RequestStore(Path(sys.argv[1]))
    begin(store, "finished").finish(RequestEnd(200, usage=USAGE))
    begin(store, "metadata", METADATA)
    recorder = begin(store, "full")
    await refined(recorder)
    await store.wait_for_commit()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.slow
def test_kill_loses_nothing_committed(tmp_path):
    """The next start gives an outcome to open requests, with what their traces tell; finished ones
    stay as they are.
    """
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, Path(__file__).parent], check=False
    )
    assert ended.returncode == -9
    assert find_stored_requests(tmp_path, "full")[0].facts.outcome is None
    store = RequestStore(tmp_path)
    assert store.find("finished").facts.outcome == "answered"
    assert store.find("metadata").facts.outcome == "interrupted"
    full = store.find("full")
    assert (full.facts.outcome, full.facts.score, full.facts.calls, full.facts.stop) == (
        "interrupted",
        0.95,
        3,
        "target",
    )
    assert full.facts.trace_bytes > 100
    store.close()


KILLED_AT_ONCE = KILLED.replace("await store.wait_for_commit()", "pass")


@pytest.mark.slow
def test_kill_loses_no_row_that_was_put(tmp_path):
    """Not even one that was not committed yet: with a table that never commits, the next start
    finds all.
    """
    code = KILLED_AT_ONCE.replace(
        "async def main():", "from redraft.gateway import request_table\nasync def main():"
    )
    code = code.replace(
        '    begin(store, "finished")',
        '    request_table.RequestTable._commit = lambda *_: None\n    begin(store, "finished")',
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, tmp_path, Path(__file__).parent], check=False
    )
    assert ended.returncode == -9
    assert find_stored_requests(tmp_path, "finished") == []
    with (tmp_path / "requests.db.pending").open("ab") as file:
        file.write(b'["torn", 1')
    for _ in range(2):
        store = RequestStore(tmp_path)
        outcomes = [store.find(id).facts.outcome for id in ("finished", "metadata", "full")]
        assert outcomes == ["answered", "interrupted", "interrupted"]
        assert store.find("torn") is None
        store.close()
    assert not (tmp_path / "requests.db.pending").exists()


KILLED_BETWEEN = """
import asyncio, os, signal, sqlite3, sys
from pathlib import Path
sys.path[:0] = [sys.argv[3], f"{sys.argv[3]}/.."]
from redraft.errors import ModelError
from test_request_store import *
async def fail(prompt):
    raise ModelError("secret reason")
async def main():
    folder, held_up = map(Path, sys.argv[1:3])
    store = RequestStore(folder)
    begin(store, "before").finish(RequestEnd(200))
    recorders = {id: begin(store, id, model=model) for id, model in REQUESTS.items()}
    await store.wait_for_commit()
    lock = sqlite3.connect(held_up, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    recorders["passed"].record_exchange(b"question", b"answer")
    await refined(recorders["refined"])
    with suppress(ModelError):
        await refine("question", fail, len, store=recorders["failed"])
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await refine("question", lambda prompt: asyncio.sleep(9), len, store=recorders["cancelled"])
    for id, end in ENDS.items():
        recorders[id].finish(end)
    for part in (store._table, store.journal):
        if part.path != held_up:
            await part.wait_for_commit()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
REQUESTS = {
    "passed": "pass/m",
    "refined": "refine/fast",
    "failed": "refine/fast",
    "cancelled": "refine/fast",
}
ENDS = {
    "passed": RequestEnd(200, usage=USAGE),
    "refined": RequestEnd(200, usage=USAGE),
    "failed": RequestEnd(502, "upstream_error"),
    "cancelled": RequestEnd(499),
}


def kill_between(folder, held_up):
    """Let requests of each kind end, and kill the process while one of its files cannot be written,
    after the other was.
    """
    command = [
        sys.executable,
        "-c",
        KILLED_BETWEEN,
        folder,
        folder / held_up,
        Path(__file__).parent,
    ]
    assert subprocess.run(command, check=False).returncode == -9


@pytest.mark.slow
def test_no_outcome_is_committed_before_its_trace(tmp_path):
    """When the gateway is killed in between, requests are in progress without a trace, and the next
    start calls them interrupted.
    """
    kill_between(tmp_path, "gateway.journal")
    assert find_stored_requests(tmp_path, "before")[0].facts.outcome == "answered"
    found = [find_stored_requests(tmp_path, id)[0] for id in REQUESTS]
    assert [(each.facts.outcome, each.trace) for each in found] == [(None, None)] * 4
    store = RequestStore(tmp_path)
    found = [store.find(id) for id in REQUESTS]
    store.close()
    assert [(each.facts.outcome, each.facts.trace_bytes, each.trace) for each in found] == [
        ("interrupted", 0, None)
    ] * 4


@pytest.mark.slow
def test_outcome_whose_trace_is_committed_survives_a_kill(tmp_path):
    """It is taken from the file of pending rows, with all facts, as often as the gateway is
    killed.
    """
    kill_between(tmp_path, "requests.db")
    assert {find_stored_requests(tmp_path, id)[0].facts.outcome for id in REQUESTS} == {None}
    for _ in range(2):
        store = RequestStore(tmp_path)
        found = {id: store.find(id) for id in REQUESTS}
        store.close()
        facts = [each.facts for each in found.values()]
        assert [each.outcome for each in facts] == ["answered", "answered", "failed", "cancelled"]
        assert [(each.status, each.error) for each in facts] == [
            (end.status, end.error) for end in ENDS.values()
        ]
        assert (facts[1].score, facts[1].cost, facts[1].stop) == (0.95, 0.25, "target")
        assert all(each.trace_bytes > 100 and each.milliseconds > 0 for each in facts)
        assert found["passed"].trace.best.text == "answer"
        assert found["refined"].trace.best.text == "three" and found["failed"].trace


async def test_outcome_is_written_though_the_journal_cannot_be(tmp_path, monkeypatch):
    """A request does not stay in progress for it, whether its outcome waited for the journal or
    came after the error.
    """

    def fail(transaction, connection):
        raise sqlite3.OperationalError("database or disk is full")

    store = RequestStore(tmp_path)
    waiting, late, open_one = begin(store, "waiting"), begin(store, "late"), begin(store, "open")
    await store.wait_for_commit()
    monkeypatch.setattr(Transaction, "commit", fail)
    for recorder in (waiting, late, open_one):
        await refined(recorder)
    waiting.finish(RequestEnd(200))
    await store.wait_for_commit()
    assert find_stored_requests(tmp_path, "waiting")[0].facts.outcome == "answered"
    assert "disk is full" in store.problem
    late.finish(RequestEnd(502, "upstream_error"))
    await store.wait_for_commit()
    assert find_stored_requests(tmp_path, "late")[0].facts.outcome == "failed"
    store.close()
    assert find_stored_requests(tmp_path, "open")[0].facts.outcome == "interrupted"


async def test_outcome_is_written_though_the_journal_cannot_be_at_the_end(tmp_path, monkeypatch):
    """`close` writes what waited for the journal."""
    store = RequestStore(tmp_path)
    recorder = begin(store, "t1")
    lock = sqlite3.connect(tmp_path / "gateway.journal", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    await refined(recorder)
    recorder.finish(RequestEnd(200))
    monkeypatch.setattr(Transaction, "_write", lambda *_: 1 / 0)
    lock.execute("ROLLBACK")
    store.close()
    lock.close()
    assert find_stored_requests(tmp_path, "t1")[0] == StoredRequest(recorder.facts)


async def test_what_waits_for_the_journal_stays_pending(tmp_path, monkeypatch):
    """The file of pending rows keeps it when it is emptied; meanwhile the request is shown as in
    progress, and is not purged.
    """
    monkeypatch.setattr("redraft.gateway.request_table.MAX_COMMITTED_BYTES", 0)
    store = RequestStore(
        tmp_path, dict.fromkeys(("refine/fast", "pass/m"), Retention("full", days=0))
    )
    assert store.purge() == 0
    recorder = begin(store, "t1")
    with closing(sqlite3.connect(tmp_path / "gateway.journal", isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        await refined(recorder)
        facts = recorder.finish(RequestEnd(200))
        begin(store, "t2", METADATA, "pass/m").finish(RequestEnd(200))
        store._table.flush()
        assert [
            line[:5] for line in (tmp_path / "requests.db.pending").read_bytes().splitlines()
        ] == [b'["t1"']
        assert find_stored_requests(tmp_path, "t1")[0].facts.outcome is None
        assert store.purge() == 1, "the other one"
    await store.wait_for_commit()
    assert find_stored_requests(tmp_path, "t1")[0].facts == facts
    assert store.purge() == 1
    assert store.find("t1") is None
    store.close()


def test_start_that_is_read_again_does_not_undo_an_end(tmp_path):
    """The file of pending rows may be older than the table."""
    store = RequestStore(tmp_path)
    started = begin(store, "t1", METADATA).facts
    store.finish("t1", RequestEnd(200))
    store._table.put(started)
    assert store.find("t1").facts.outcome == "answered"
    store.close()


def test_pending_rows_stay_few(tmp_path, monkeypatch):
    """The file is emptied once its rows are committed."""
    monkeypatch.setattr("redraft.gateway.request_table.MAX_COMMITTED_BYTES", 2000)
    store = RequestStore(tmp_path)
    for n in range(300):
        begin(store, f"t{n}", METADATA).finish(RequestEnd(200))
        if n % 20 == 0:
            store._table.flush()
    store._table.flush()
    assert (tmp_path / "requests.db.pending").stat().st_size <= 20 * 2 * 300
    store.close()


REPLACING = """
import sys
from pathlib import Path
from redraft.gateway.request_table import PendingRows, RequestFacts
rows = PendingRows(Path(sys.argv[1]))
for facts in (kept := [RequestFacts(f"t{n}", outcome="answered", trace_bytes=9) for n in range(500)]):
    rows.add(facts)
print("begun", flush=True)
while True:
    rows.replace(kept, above=0)
"""


@pytest.mark.slow
def test_kill_while_pending_rows_are_replaced_loses_none(tmp_path):
    """The file has all that are kept at any moment, and no draft is left after the next start."""
    path = tmp_path / "pending"
    for milliseconds in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", REPLACING, path], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"begun\n"
            time.sleep(milliseconds / 1000)  # a kill at another moment each time
            process.kill()
        rows = PendingRows(path)
        assert sorted({facts.trace_id for facts in rows.read()}) == sorted(
            f"t{n}" for n in range(500)
        )
        rows.replace((), above=0)
        rows.close()
        assert list(tmp_path.iterdir()) == []


def test_pending_rows_stay_when_the_disk_is_full(tmp_path):
    """The new ones cannot be written, also not in part; later ones follow the old ones."""
    path = tmp_path / "pending"
    rows = PendingRows(path)
    old = [RequestFacts(f"t{n}") for n in range(3)]
    for facts in old:
        rows.add(facts)
    with small_files(path.stat().st_size - 1):
        rows.replace(old[1:] * 2, above=0)
    assert list(tmp_path.iterdir()) == [path]
    rows.add(RequestFacts("t3"))
    rows.close()
    rows = PendingRows(path)
    assert [facts.trace_id for facts in rows.read()] == ["t0", "t1", "t2", "t3"]
    rows.close()


def test_row_that_is_torn_does_not_spoil_the_next(tmp_path):
    """Whether the disk was full in the middle of it, or the process was killed: what is added
    afterwards is whole.
    """
    path = tmp_path / "pending"
    rows = PendingRows(path)
    rows.add(RequestFacts("t0"))
    with small_files(path.stat().st_size + 10):
        rows.add(RequestFacts("torn"))
    rows.add(RequestFacts("t1"))
    rows.close()
    with path.open("ab") as file:
        file.write(b'["torn", 1')
    for expected in (["t0", "t1"], ["t0", "t1", "t2"]):
        rows = PendingRows(path)
        assert [facts.trace_id for facts in rows.read()] == expected
        rows.add(RequestFacts("t2"))
        rows.close()


@pytest.mark.parametrize("size", range(0, 45_000, 5_000))
def test_store_that_could_not_be_created_can_be_later(tmp_path, size):
    """Nothing that was begun on a full disk stops the next start."""
    with suppress(StoreError), small_files(size):
        RequestTable(tmp_path / "requests.db", print).close()
    with pytest.raises(StoreError), small_files(size):
        RequestStore(tmp_path).close()
    store = RequestStore(tmp_path)
    begin(store, "t1", METADATA).finish(RequestEnd(200))
    assert store.find("t1").facts.outcome == "answered"
    store.close()


KILLED_AFTER_PURGE = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[3], f"{sys.argv[3]}/.."]
from test_request_store import *
from redraft.gateway import request_table
folder, statement = Path(sys.argv[1]), sys.argv[2]
open_before = request_table._open
def kill(sql):
    if statement in sql:
        os.kill(os.getpid(), signal.SIGKILL)
def open_traced(path, mode):
    connection = open_before(path, mode)
    connection.set_trace_callback(kill if mode == "mode=rw" else None)
    return connection
retentions = {"pass/full": Retention("full", megabytes=0.1), "pass/less": Retention("metadata", megabytes=0.001)}
store = RequestStore(folder, retentions | {"pass/other": Retention()})
for n in range(40):
    for model, retention in retentions.items():
        recorder = begin(store, f"{model}-{n}", retention, model)
        recorder.record_exchange(b"x" * 5000, b"y" * 5000)
        recorder.finish(RequestEnd(200, usage=USAGE))
store._journal.flush()
store._table.flush()
request_table._open = open_traced
assert store.purge() > 50
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement", ["DELETE", "PRAGMA incremental_vacuum", "PRAGMA wal_checkpoint", "none"]
)
def test_what_was_deleted_does_not_come_back_after_a_kill(tmp_path, statement):
    """Whether the process is killed while it deletes or after it: no request comes back, and none
    loses its outcome.
    """
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_AFTER_PURGE, tmp_path, statement, Path(__file__).parent],
        check=False,
    )
    assert ended.returncode == -9

    def requests():
        with closing(sqlite3.connect(tmp_path / "requests.db")) as connection:
            return sorted(connection.execute("SELECT trace_id, outcome FROM requests"))

    left = requests()
    assert {outcome for _, outcome in left} == {"answered"}
    for _ in range(2):
        RequestStore(tmp_path).close()
        assert requests() == left


async def test_what_was_deleted_is_not_pending(tmp_path):
    """The file of pending rows keeps what is not committed, and nothing that retention deleted."""
    store = RequestStore(tmp_path, {"pass/m": Retention("metadata", days=0), "refine/fast": FULL})
    assert store.purge() == 0
    with closing(sqlite3.connect(tmp_path / "gateway.journal", isolation_level=None)) as lock:
        waiting = begin(store, "waiting")
        await store._table.wait_for_commit()
        lock.execute("BEGIN IMMEDIATE")
        await refined(waiting)
        waiting.finish(RequestEnd(200))
        for n in range(20):
            begin(store, f"t{n}", METADATA, "pass/m").finish(RequestEnd(200))
        await store._table.wait_for_commit()
        assert store.purge() == 20
        assert {
            line[:10] for line in (tmp_path / "requests.db.pending").read_bytes().splitlines()
        } == {b'["waiting"'}
    await store.wait_for_commit()
    assert store.find("waiting").facts.outcome == "answered"
    store.close()


def test_nothing_is_deleted_that_stays_pending(tmp_path, monkeypatch):
    """An error says so if the file of pending rows cannot be written, and if the table was closed
    meanwhile; later it is deleted.
    """
    store = RequestStore(tmp_path, {"pass/m": Retention("metadata", days=0)})
    begin(store, "t1", METADATA, "pass/m").finish(RequestEnd(200))
    store._table.flush()
    monkeypatch.setattr(PendingRows, "replace", lambda *_, **__: False)
    with pytest.raises(StoreError, match="nothing is deleted"):
        store.purge()
    assert store.find("t1")
    monkeypatch.undo()
    assert store.purge() == 1
    begin(store, "t2", METADATA, "pass/m").finish(RequestEnd(200))
    store.close()
    with pytest.raises(StoreError, match="nothing is deleted"):
        store._table.delete(["t2"])


async def test_trace_without_facts_is_found_after_a_restart(tmp_path):
    """As after a kill between the two commits."""
    store = RequestStore(tmp_path)
    await refined(begin(store, "t1"))
    store.close()
    with sqlite3.connect(tmp_path / "requests.db") as connection:
        connection.execute("DELETE FROM requests")
    store = RequestStore(tmp_path)
    stored = store.find("t1")
    store.close()
    assert (stored.facts.model, stored.facts.outcome, len(stored.trace.candidates)) == (
        "refine/fast",
        "interrupted",
        3,
    )


@pytest.mark.slow
async def test_old_requests_leave_the_files(tmp_path):
    """Each profile has its own days. What was deleted is in no file any more, and the files get
    smaller.
    """
    store = RequestStore(
        tmp_path,
        {"refine/fast": Retention("full", days=2), "refine/slow": Retention("full", days=20)},
    )
    for n in range(40):
        recorder = begin(store, f"t{n}", model="refine/slow" if n % 2 else "refine/fast")
        await refined(recorder, f"parity{n % 2} " * 500)
        recorder.finish(RequestEnd(200))
    running = begin(store, "running")
    await refined(running, "running")
    await store.wait_for_commit()
    assert store.purge() == 0
    size = len(folder_bytes(tmp_path))
    age(tmp_path, 3)
    assert store.purge() == 20
    content = folder_bytes(tmp_path)
    assert b"parity0" not in content and b"parity1" in content
    assert len(content) < size * 0.7
    assert store.find("t0") is None and store.find("t1").trace is not None
    assert store.find("running").trace is not None, "a request in progress is not deleted"
    store.close()


async def test_a_large_journal_is_written_again_once_a_day(tmp_path, monkeypatch):
    """A day after the first deletion, also if the gateway was started again meanwhile; a small one
    after each deletion.
    """
    written_at, began = [], time.time()
    clock = SimpleNamespace(
        hour=0, time=lambda: began + clock.hour * 3600.0, monotonic=time.monotonic
    )
    monkeypatch.setattr("redraft.gateway.request_store.time", clock)
    monkeypatch.setattr(Journal, "compact", lambda self: written_at.append(clock.hour))

    async def purge_after(store, hours):
        clock.hour += hours
        recorder = begin(store, f"t{clock.hour}")
        await refined(recorder, "x" * 30_000)
        recorder.finish(RequestEnd(200))
        await store.wait_for_commit()
        age(tmp_path, 3)
        assert store.purge() == 1

    monkeypatch.setattr("redraft.gateway.request_store.COMPACT_BYTES", 1000)
    for hours in (1, *[10] * 7):
        store = RequestStore(tmp_path, {"refine/fast": Retention("full", days=2)})
        await purge_after(store, hours)
        assert store.purge() == 0
        store.close()
    assert written_at == [31, 71]
    monkeypatch.setattr("redraft.gateway.request_store.COMPACT_BYTES", 10**7)
    store = RequestStore(tmp_path, {"refine/fast": Retention("full", days=2)})
    assert store.purge() == 0
    await purge_after(store, 1)
    await purge_after(store, 1)
    assert store.purge() == 0
    assert written_at == [31, 71, 72, 73]
    store.close()


async def test_a_compaction_that_fails_is_tried_again_in_an_hour(tmp_path, monkeypatch):
    """It takes long where there is no room for it; requests go on meanwhile."""
    tried_at, began = [], time.time()
    clock = SimpleNamespace(
        hour=0, time=lambda: began + clock.hour * 3600.0, monotonic=time.monotonic
    )
    monkeypatch.setattr("redraft.gateway.request_store.time", clock)
    monkeypatch.setattr("redraft.gateway.request_store.COMPACT_BYTES", 1000)

    def compact(journal):
        tried_at.append(clock.hour)
        raise StoreError("the disk is full")

    monkeypatch.setattr(Journal, "compact", compact)
    store = RequestStore(tmp_path, {"refine/fast": Retention("full", days=2)})
    recorder = begin(store, "t1")
    await refined(recorder)
    recorder.finish(RequestEnd(200))
    await store.wait_for_commit()
    age(tmp_path, 3)
    assert store.purge() == 1
    for hour in (1, 24, 24.1, 25, 25.5):
        clock.hour = hour
        with suppress(StoreError):
            assert store.purge() == 0
    assert tried_at == [24, 25]
    store.close()


async def test_size_limit_deletes_the_oldest(tmp_path):
    """The newest requests up to the limit stay."""
    store = RequestStore(
        tmp_path, {"refine/fast": Retention("full", megabytes=0.1), "pass/m": Retention()}
    )
    for n in range(10):
        recorder = begin(store, f"t{n}")
        await refined(recorder, "x" * 30_000)
        recorder.finish(RequestEnd(200))
    await store.wait_for_commit()
    assert 6 <= (count := store.purge()) <= 8
    assert [n for n in range(10) if store.find(f"t{n}")] == [*range(count, 10)]
    assert store.purge() == 0
    store.close()


def file_bytes(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


LOADS = {
    "large texts": (60, 30_000, 1, FULL),
    "small texts": (500, 100, 1, FULL),
    "texts of several models": (60, 30_000, 3, FULL),
    "facts": (2000, 0, 2, METADATA),
}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("load", LOADS)
def test_folder_has_no_more_bytes_than_keep_mb(tmp_path, load):
    """After each purge, whatever is kept, of however many models: all files together; the oldest
    requests go, and not all.
    """
    count, size, models, level = LOADS[load]
    names = [f"pass/{n}" for n in range(models)]
    store = RequestStore(tmp_path, {name: replace(level, megabytes=0.7) for name in names})
    deleted = number = 0
    for _ in range(3):
        for _ in range(count):
            number += 1
            recorder = begin(store, f"t{number}", level, names[number % models])
            recorder.record_exchange(os.urandom(size // 2).hex().encode(), b"")
            recorder.finish(RequestEnd(200))
        store._journal.flush()
        store._table.flush()
        deleted += store.purge()
        store._journal.flush()  # nothing that the purge began may come later
        assert file_bytes(tmp_path) <= 700_000
    assert deleted and file_bytes(tmp_path) > 350_000
    assert store.purge() == 0
    store.close()
    with closing(sqlite3.connect(tmp_path / "requests.db")) as connection:
        left = sorted(int(id[1:]) for (id,) in connection.execute("SELECT trace_id FROM requests"))
    assert left == [*range(deleted + 1, number + 1)]


@pytest.mark.parametrize(
    "name",
    [
        "gateway.journal.bak",
        "gateway.journal-copy",
        "requests.db.old",
        "requests.db2",
        "gateway.journal.lock.1",
    ],
)
def test_foreign_files_beside_the_store_delete_no_request(tmp_path, name):
    """A copy of the store that somebody keeps in its folder never shrinks, and does not count."""
    store = RequestStore(tmp_path, {"pass/m": Retention("full", megabytes=2)})
    for number in range(10):
        recorder = begin(store, f"t{number}", model="pass/m")
        recorder.record_exchange(os.urandom(15_000).hex().encode(), b"")
        recorder.finish(RequestEnd(200))
    store._journal.flush()
    store._table.flush()
    (tmp_path / name).write_bytes(b"x" * 3_000_000)
    assert store.purge() == 0
    assert all(store.find(f"t{number}") for number in range(10))
    store.close()


def test_log_that_another_process_holds_deletes_no_more_requests(tmp_path, monkeypatch):
    """While it reads, nothing can be given back; once it has ended, the files are small enough."""
    monkeypatch.setattr("redraft.storage.schema.LOG_MILLISECONDS", 10)
    store = RequestStore(tmp_path, {"pass/m": Retention("full", megabytes=0.7)})

    def record(count):
        for _ in range(count):
            number = len(store._positions) and store._positions["pass/m"] + 1
            recorder = begin(store, f"t{number}", model="pass/m")
            recorder.record_exchange(os.urandom(15_000).hex().encode(), b"")
            recorder.finish(RequestEnd(200))
        store._journal.flush()
        store._table.flush()

    record(60)
    store.purge()
    with closing(sqlite3.connect(tmp_path / "gateway.journal", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM lines").fetchall()
        record(5)
        assert 0 < store.purge() < 10
        assert file_bytes(tmp_path) > 700_000
        assert [store.purge() for _ in range(3)] == [0, 0, 0]
    assert store.purge() == 0
    assert file_bytes(tmp_path) <= 700_000
    store.close()


def stored_bytes(folder, best):
    """The bytes of the only trace, by what the journal has of it, with 500 for its result besides
    the best answer.
    """
    with Journal(folder / "gateway.journal", read_only=True) as journal:
        [run] = journal.runs()
        [row] = journal.stored_rows([*journal.row_states(run.name)])
    return sum(map(len, row.lines)) + len(best) + 500


async def test_size_of_a_trace_is_that_of_its_lines(tmp_path):
    """Whether it is refined or passed on; also that of the lines alone, if the process is killed
    before the result.
    """
    for name, model in (
        ("refined", "refine/fast"),
        ("passed", "pass/m"),
        ("interrupted", "refine/fast"),
    ):
        store = RequestStore(tmp_path / name)
        recorder = begin(store, "t1", model=model)
        if name == "passed":
            recorder.record_exchange(b"question", b"answer")
        else:
            await refined(recorder)
        facts = None if name == "interrupted" else recorder.finish(RequestEnd(200))
        store.close()
        if facts is None:
            with sqlite3.connect(tmp_path / name / "requests.db") as connection:
                connection.execute("UPDATE requests SET outcome = NULL, trace_bytes = 0")
            RequestStore(tmp_path / name).close()
            facts = find_stored_requests(tmp_path / name, "t1")[0].facts
        best = {"refined": "three", "passed": "answer"}.get(name)
        assert facts.trace_bytes == stored_bytes(tmp_path / name, best or "") - (0 if best else 500)


def states(folder):
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.slow
async def test_purge_gives_all_free_pages_back_and_writes_no_more_than_it_must(tmp_path):
    """What is deleted leaves both files smaller, with no free page; a purge that finds nothing
    touches no file.
    """
    store = RequestStore(
        tmp_path,
        {"refine/fast": Retention("full", days=2), "pass/m": Retention("metadata", days=2)},
    )
    for n in range(60):
        recorder = begin(store, f"t{n}")
        await refined(recorder, "x" * 5_000)
        recorder.finish(RequestEnd(200))
        begin(store, f"m{n}", METADATA, "pass/m").finish(RequestEnd(200))
    await store.wait_for_commit()
    assert store.purge() == 0
    for cut, kept in ((30, 60), (100, 0)):
        store._journal.empty_log()
        store._table.delete([])
        idle = states(tmp_path)
        before = {name: idle[name][0] for name in ("gateway.journal", "requests.db")}
        assert store.purge() == 0
        assert states(tmp_path) == idle
        age(tmp_path, 3, f"CAST(substr(trace_id, 2) AS INTEGER) < {cut}")
        assert store.purge() == 60
        for name, size in before.items():
            assert (tmp_path / name).stat().st_size < size, name
            assert size_of(tmp_path / f"{name}-wal") < 50_000  # what is noted afterwards
            with closing(sqlite3.connect(tmp_path / name)) as connection:
                assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert sum(store.find(f"{kind}{n}") is not None for kind in "tm" for n in range(60)) == kept
    store.close()


KILLED_AT_EACH_STEP = """
import asyncio, os, signal, sys, time
from itertools import count
from pathlib import Path
sys.path[:0] = [sys.argv[2], f"{sys.argv[2]}/.."]
from test_request_store import *
base, first, stride = Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4])

def killed(step, action):
    "Return whether a forked process is killed before it has executed so many statements."
    pid = os.fork()
    if not pid:
        try:
            steps = count()
            def kill(sql):
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            connect = sqlite3.connect
            def traced(*arguments, **options):
                connection = connect(*arguments, **options)
                connection.set_trace_callback(kill)
                return connection
            sqlite3.connect = traced
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

async def work(folder, say):
    store = RequestStore(folder, {"pass/old": Retention("full", days=0)})
    recorders = {id: begin(store, id, model=model) for id, model in REQUESTS.items()}
    begin(store, "metadata", METADATA).finish(RequestEnd(200, usage=USAGE))
    old = begin(store, "old", model="pass/old")
    old.record_exchange(b"old question", b"old answer")
    old.finish(RequestEnd(200))
    await refined(recorders["refined"])
    recorders["refined"].finish(RequestEnd(200, usage=USAGE))
    await store.wait_for_commit()
    if store.problem == "":
        say("refined metadata")
    recorders["passed"].record_exchange(b"question", b"answer")
    recorders["passed"].finish(RequestEnd(200, usage=USAGE))
    await store.wait_for_commit()
    say("passed")
    if store.purge() == 1:
        say("purged")
    recorders["failed"].finish(RequestEnd(502, "upstream_error"))
    store.close()
    say("failed closed")

def restart(folder):
    RequestStore(folder).close()

for step in count(first, stride):
    folder = base / str(step)
    told = base / f"{step}.told"
    told.touch()
    def say(text):
        with told.open("a") as file:
            file.write(text + " ")
    is_killed = killed(step, lambda: asyncio.run(work(folder, say)))
    killed(step * 7 % 60, lambda: restart(folder))
    store = RequestStore(folder)
    known = set(told.read_text().split())
    found = {id: store.find(id) for id in (*REQUESTS, "metadata", "old")}
    store.close()
    for id, request in found.items():
        assert request is None or request.facts.outcome is not None, (step, id)
        is_full = request and request.facts.outcome == "answered" and id not in {"metadata", "old"}
        assert not is_full or (request.trace and request.trace.outcome), (step, id)
    for id in known & {"refined", "metadata", "passed", "failed"}:
        assert found[id].facts.outcome == ("failed" if id == "failed" else "answered"), (step, id)
        assert found[id].facts.status == (502 if id == "failed" else 200), (step, id)
    if "purged" in known:
        assert found["old"] is None and b"old answer" not in folder_bytes(folder), step
    assert sorted(path.name for path in folder.iterdir()) == ["gateway.journal", "requests.db"], step
    if not is_killed:
        assert "closed" in known
        break
print(step)
"""


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(("first", "stride"), [(5, 37), (0, 7), (3, 11)])
def test_two_kills_lose_no_fact(tmp_path, first, stride):
    """Killed before any statement, and again in the next start: what was committed keeps its facts,
    what was purged stays away.
    """
    command = [
        sys.executable,
        "-c",
        KILLED_AT_EACH_STEP,
        tmp_path,
        Path(__file__).parent,
        str(first),
        str(stride),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


async def test_size_is_that_of_the_file(tmp_path):
    """What counts against the limit is what the journal takes, within a third."""
    store = RequestStore(tmp_path)
    facts = []
    for n in range(60):
        recorder = begin(store, f"t{n}", model="pass/m" if n % 2 else "refine/fast")
        if n % 2:
            recorder.record_exchange(b"x" * 20_000, b"y" * 20_000)
        else:
            await refined(recorder, "z" * 20_000)
        facts.append(recorder.finish(RequestEnd(200)))
    store.close()
    size = (tmp_path / "gateway.journal").stat().st_size
    assert 0.75 * size < sum(each.trace_bytes for each in facts) < 1.1 * size


async def test_maintenance_runs_beside_the_event_loop(tmp_path, monkeypatch):
    """The first purge happens at the start."""
    purged = asyncio.Event()
    store, loop = RequestStore(tmp_path), asyncio.get_running_loop()

    def maintain_once(once=store._maintain_once):
        once()
        loop.call_soon_threadsafe(purged.set)

    monkeypatch.setattr(store, "_maintain_once", maintain_once)
    begin(store, "t1", METADATA).finish(RequestEnd(200))
    await store.wait_for_commit()
    age(tmp_path, 31)
    task = asyncio.create_task(store.maintain())
    async with asyncio.timeout(60):
        await purged.wait()
    assert store.find("t1") is None
    task.cancel()
    store.close()


async def test_requests_go_on_without_a_disk(tmp_path, monkeypatch):
    """A disk that is full makes no request fail; the problem is told, and once there is room
    everything is written.
    """
    monkeypatch.setattr("redraft.gateway.request_table.RETRY_SECONDS", 0.05)
    errors = []
    store = RequestStore(tmp_path, on_error=lambda: errors.append(1))
    recorder = begin(store, "t0")
    await refined(recorder)
    await store.wait_for_commit()
    assert store.problem == "" and errors == []
    with small_files(1000):
        during = begin(store, "t1")
        result = await refined(during, "z" * 10_000)
        recorder.finish(RequestEnd(200))
        during.finish(RequestEnd(200))
        await store.wait_for_commit()
        assert result.score == 0.95
        assert "cannot be written" in store.problem and errors
        late = begin(store, "t2")
        partial = asyncio.create_task(refined(late))
        await partial
    maintenance = asyncio.create_task(store.maintain())
    async with asyncio.timeout(60):
        while store.problem:
            await asyncio.sleep(0.01)
    maintenance.cancel()
    late.finish(RequestEnd(200))
    assert [store.find(id).facts.outcome for id in ("t0", "t1", "t2")] == ["answered"] * 3
    assert len(store.find("t2").trace.candidates) == 3, (
        "its whole trace, also what was recorded without a disk"
    )
    store.close()


async def test_facts_are_written_once_there_is_room_although_no_request_comes(
    tmp_path, monkeypatch
):
    """The table tries again by itself."""
    monkeypatch.setattr("redraft.gateway.request_table.RETRY_SECONDS", 0.05)
    errors = []
    with closing(RequestTable(tmp_path / "requests.db", errors.append)) as table:
        with small_files(0):
            table.put(RequestFacts("t1", 1.0, status=200, outcome="answered"))
            await wait_until(lambda: len(errors) > 2)
        await wait_until(lambda: not table.error)
        assert table.find("t1").outcome == "answered"


async def test_journal_is_opened_again_soon_after_an_error(tmp_path, monkeypatch):
    """The error ends the minute's wait, also where nobody waits for the commit that fails; texts
    are stored again.
    """
    monkeypatch.setattr("redraft.gateway.request_store.MAINTENANCE_SECONDS", 1e6)
    monkeypatch.setattr("redraft.gateway.request_store.RECOVERY_SECONDS", 0.01)
    errors = []
    store = RequestStore(tmp_path, on_error=lambda: errors.append(1))
    passed(store, "before")
    maintenance = asyncio.create_task(store.maintain())
    await wait_until(lambda: store._table.find("before").outcome)
    with small_files(1000):
        passed(store, "during")
        await wait_until(lambda: store.problem and len(errors) > 3)
    passed(store, "soon")  # its text may be lost
    await wait_until(lambda: not store.problem)
    passed(store, "after")
    await store.wait_for_commit()
    assert [store.find(id).facts.outcome for id in ("before", "during", "soon", "after")] == [
        "answered"
    ] * 4
    assert store.find("before").trace.best.text == store.find("after").trace.best.text == "answer"
    maintenance.cancel()
    store.close()


async def test_store_that_fails_again_is_not_called_well(tmp_path, monkeypatch):
    """The journal is opened again, and written to: while that fails, so does the store, though no
    request comes.
    """
    monkeypatch.setattr("redraft.gateway.request_store.RECOVERY_SECONDS", 0.01)
    store = RequestStore(tmp_path)
    passed(store, "before")
    await store.wait_for_commit()
    opened = []

    def open_journal(path, before=request_store._open_journal):
        opened.append(before(path))
        return opened[-1]

    monkeypatch.setattr(request_store, "_open_journal", open_journal)
    maintenance = asyncio.create_task(store.maintain())
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "_write", lambda *_: 1 / 0)
        passed(store, "during")
        await wait_until(lambda: len(opened) > 2)
        assert store.problem
    await wait_until(lambda: not store.problem)
    maintenance.cancel()
    store.close()


async def test_store_whose_first_request_failed_is_not_called_well(tmp_path, monkeypatch):
    """The journal that is opened again has nothing of it: something is written all the same."""
    store = RequestStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "_write", lambda *_: 1 / 0)
        passed(store, "first")
        await wait_until(lambda: store.problem)
        for _ in range(3):
            await asyncio.to_thread(store._maintain_once)
            assert store.problem
    await asyncio.to_thread(store._maintain_once)
    assert not store.problem
    passed(store, "after")
    await store.wait_for_commit()
    assert store.find("after").trace.best.text == "answer"
    store.close()


def test_one_warning_a_minute(tmp_path, monkeypatch, caplog):
    """However many errors there are, and whether the store works in between; each is counted."""
    clock = SimpleNamespace(now=0.0, time=time.time, monotonic=lambda: clock.now)
    monkeypatch.setattr("redraft.gateway.request_store.time", clock)
    errors = []
    store = RequestStore(tmp_path, on_error=lambda: errors.append(1))
    for second in range(180):
        clock.now = float(second)
        store.report(StoreError(f"error {second}"))
        store._maintain_once()
    store.close()
    assert len(errors) == 180
    well = f"the store in {str(tmp_path)!r} can be written again"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", text) for second in (0, 60, 120) for text in (f"error {second}", well)
    ]


def test_one_process_uses_a_folder(tmp_path):
    """A second store is refused, and the first goes on."""
    store = RequestStore(tmp_path)
    with pytest.raises(StoreError, match="another process|is held|locked"):
        RequestStore(tmp_path)
    begin(store, "t1", METADATA).finish(RequestEnd(200))
    assert store.find("t1").facts.outcome == "answered"
    store.close()


def test_files_are_private_and_foreign_files_are_refused(tmp_path):
    """Nobody else on the machine can read what is kept; a file of another program stays as it
    is.
    """
    RequestStore(tmp_path / "a").close()
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "a").iterdir()} == {"0o600"}
    (tmp_path / "b").mkdir()
    with sqlite3.connect(tmp_path / "b" / "requests.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    content = (tmp_path / "b" / "requests.db").read_bytes()
    with pytest.raises(StoreError, match="not a table of requests"):
        RequestStore(tmp_path / "b")
    assert (tmp_path / "b" / "requests.db").read_bytes() == content
    (tmp_path / "b" / "requests.db").unlink()
    RequestStore(tmp_path / "b").close()


@pytest.mark.parametrize(
    "change",
    [
        "started_at = 1e300",
        "outcome = 'mine'",
        "score = 'high'",
        "key_name = x'00ff'",
        "iterations = 0.5",
    ],
)
def test_values_that_it_does_not_write_are_refused(tmp_path, change):
    """The error names the file, the column and the value."""
    store = RequestStore(tmp_path)
    begin(store, "t1", METADATA).finish(RequestEnd(200))
    store.close()
    with sqlite3.connect(tmp_path / "requests.db") as connection:
        connection.execute(f"UPDATE requests SET {change}")
    with pytest.raises(StoreError, match=f"requests.db.*{change.split()[0]} cannot be"):
        find_stored_requests(tmp_path, "t1")[0]


@pytest.mark.parametrize(
    "content", [b"no database " * 100, b"SQLite format 3\0" + b"\xff" * 4096, b"x"]
)
def test_damaged_table_is_refused(tmp_path, content):
    """It stays as it is."""
    (tmp_path / "requests.db").write_bytes(content)
    with pytest.raises(StoreError, match="requests.db"):
        RequestStore(tmp_path)
    assert (tmp_path / "requests.db").read_bytes() == content
    with pytest.raises(StoreError, match="requests.db"):
        find_stored_requests(tmp_path, "t1")[0]


def test_retention_of_each_model():
    """Profiles have their own; all that is passed on has that of the gateway."""
    config = GatewayConfig(
        Path("x"),
        {"m": ServedModel("m", "http://h/v1", "m")},
        {"fast": Profile("fast", "m", retention=FULL)},
        passed_retention=OFF,
    )
    assert retentions(config) == {"refine/fast": FULL, "pass/m": OFF}


def test_writing_is_cheap(tmp_path):
    """A request to pass/ pays for two rows with a few calls of functions on the event loop, and
    none of them waits for the disk.
    """
    store, called = RequestStore(tmp_path), []
    for n in range(3):
        called.clear()
        sys.setprofile(
            lambda frame, event, function: called.append(
                getattr(function, "__name__", frame.f_code.co_name)
            )
        )
        try:
            store.begin(f"t{n}", Owner(), "pass/m", "chat", METADATA).finish(
                RequestEnd(200, usage=USAGE)
            )
        finally:
            sys.setprofile(None)
        assert not {"execute", "executemany", "commit", "fsync", "sleep"}.intersection(called)
        assert len(called) < 200  # a call and its return count each
    store.close()


def test_facts_as_data():
    """Times are readable; every field is there."""
    data = RequestFacts("t1", 0.5, status=200).as_data()
    assert data["started_at"] == "1970-01-01T00:00:00.500+00:00"
    assert (data["trace_id"], data["status"], data["score"]) == ("t1", 200, None)
