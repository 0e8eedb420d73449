"""Cancellation follows asyncio and counts all calls: work is cancelled at random moments against a
real server.
"""

import asyncio
import gc

import pytest

import redraft
from cancelling import Point, Server, points
from redraft import ScriptedModel
from redraft.loop.records import Outcome
from redraft.runs import BatchRun
from redraft.storage.journal import Journal


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("way", "seed"),
    [
        pytest.param(*point, marks=pytest.mark.slow if n % 3 else ())
        for n, point in enumerate(points(25))
    ],
)
def test_cancelled_work_raises_saves_its_trace_and_counts_every_call(server, tmp_path, way, seed):
    """A cancellation is raised, leaves no task or file open, counts every call, and the saved trace
    can be resumed.
    """
    assert Point(way, seed, server, tmp_path).run() == []


async def test_a_batch_cancelled_before_its_first_row_is_reported_as_interrupted(
    tmp_path, monkeypatch
):
    """The report says "interrupted", and no coroutine is left that was never awaited."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "q"}\n')
    commit, waiting = Journal.wait_for_commit, asyncio.Event()

    async def slow_commit(journal):
        waiting.set()
        await asyncio.sleep(60)
        await commit(journal)

    monkeypatch.setattr(Journal, "wait_for_commit", slow_commit)
    work = asyncio.ensure_future(
        BatchRun.from_arguments(
            tmp_path / "rows.jsonl", tmp_path / "out.jsonl", lambda text: "a", len
        ).go()
    )
    await waiting.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await work
    gc.collect()
    assert (cancelled.value.result.stop, cancelled.value.result.rows.done) == ("interrupted", 0)


async def test_a_cancellation_while_on_record_works_has_the_result():
    """Whoever cancels again, because an async `on_record` takes long, gets the best answer so far,
    too.
    """
    graded, ended = asyncio.Event(), asyncio.Event()

    async def record(record):
        if isinstance(record, Outcome):
            ended.set()
            await asyncio.Event().wait()

    async def grade(text):
        graded.set()
        await asyncio.Event().wait()

    work = asyncio.ensure_future(
        redraft.refine("q", ScriptedModel(["an answer"]), grade, on_record=record)
    )
    await graded.wait()
    work.cancel()
    await ended.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await work
    assert (cancelled.value.result.value, cancelled.value.result.stop) == ("an answer", "cancelled")
