"""Requests with one idempotency key: one run, the same items for all, 422 for another body,
cancelled with the last reader.
"""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import Task, Trace
from redraft.gateway.exchange import Answer, GatewayError, Progress
from redraft.gateway.idempotency import RunsInFlight, item_size
from redraft.gateway.neutral import Call, Reply, Text
from redraft.gateway.outcome import outcome_of

OUTCOME = outcome_of(Trace(Task("q")), "t")


class Work:
    """What runs start: counts the runs, lets a test release the items, and sees whether the run was
    closed.
    """

    def __init__(self, *items, error=None):
        self.items, self.error = items, error
        self.started = self.closed = 0
        self.gate = asyncio.Event()

    def __call__(self):
        return self._run()

    async def _run(self):
        self.started += 1
        try:
            for n, item in enumerate(self.items):
                if n:
                    await self.gate.wait()
                yield item
            await self.gate.wait()
            if self.error:
                raise self.error
        finally:
            self.closed += 1


async def read(reader):
    async with aclosing(reader):
        return [item async for item in reader]


async def test_a_second_request_joins_the_run_and_reads_it_from_the_start():
    """Both get all items; the run happened once."""
    runs, work = RunsInFlight(), Work("one", "two")
    first = await runs.join("key", "me", "hash", work)
    assert await anext(first) == "one"
    second = await runs.join("key", "me", "hash", work)
    assert (first.is_joined, second.is_joined) == (False, True)
    work.gate.set()
    assert await read(second) == ["one", "two"]
    assert await read(first) == ["two"]
    assert (work.started, work.closed) == (1, 1)


async def test_another_body_is_an_error_and_another_caller_shares_nothing():
    """422 and not to be retried, in flight and after the end; the same key of another caller starts
    a run of its own.
    """
    runs, work = RunsInFlight(), Work("one")
    first = await runs.join("key", "me", "hash", work)
    for _ in range(2):
        with pytest.raises(GatewayError) as caught:
            await runs.join("key", "me", "other hash", work)
        assert (caught.value.status, caught.value.should_retry) == (422, False)
        work.gate.set()
        assert await read(await runs.join("key", "me", "hash", work)) == ["one"]
    other = await runs.join("key", "you", "other hash", work)
    assert await read(other) == ["one"] and not other.is_joined
    await first.aclose()
    assert work.started == 2


async def test_a_finished_run_is_replayed_for_a_while():
    """The same answer without a second run, until the time is over."""
    now = [0.0]
    runs, work = (
        RunsInFlight(replay_seconds=60, clock=lambda: now[0]),
        Work(Answer(Reply("t", "m", (Text("text"),)), OUTCOME)),
    )
    work.gate.set()
    answer = await read(await runs.join("key", "me", "hash", work))
    now[0] = 59
    assert await read(await runs.join("key", "me", "hash", work)) == answer
    assert work.started == 1
    now[0] = 61
    assert await read(await runs.join("key", "me", "other hash", work)) == answer
    assert work.started == 2


async def test_a_failed_run_fails_for_all_and_is_forgotten():
    """Those who joined see the error; the next attempt runs again."""
    runs, work = (
        RunsInFlight(),
        Work("one", error=GatewayError(503, "overloaded", "busy", retry_after=3)),
    )
    readers = [await runs.join("key", "me", "hash", work) for _ in range(2)]
    work.gate.set()
    for reader in readers:
        with pytest.raises(GatewayError, match="busy") as caught:
            await read(reader)
        assert caught.value.retry_after == 3
    with pytest.raises(GatewayError):
        await read(await runs.join("key", "me", "hash", work))
    assert work.started == 2


async def test_a_client_that_leaves_does_not_end_the_run_of_another():
    """The run ends when the last reader has left, and at once where there is no grace period."""
    runs, work = RunsInFlight(grace_seconds=0), Work("one", "two")
    first = await runs.join("key", "me", "hash", work)
    second = await runs.join("key", "me", "hash", work)
    await first.aclose()
    assert await anext(second) == "one" and not work.closed
    await second.aclose()
    assert work.closed == 1
    third = await runs.join("key", "me", "hash", work)
    work.gate.set()
    assert await read(third) == ["one", "two"] and work.started == 2


async def test_a_client_whose_connection_broke_finds_its_run_again():
    """The run with a key goes on for a moment, and is cancelled unless somebody comes back."""
    runs, work = RunsInFlight(grace_seconds=0.2), Work("one", "two")
    first = await runs.join("key", "me", "hash", work)
    assert await anext(first) == "one"
    await first.aclose()
    again = await runs.join("key", "me", "hash", work)
    await asyncio.sleep(0.3)
    assert again.is_joined and await anext(again) == "one" and not work.closed
    await again.aclose()
    left_at = asyncio.get_running_loop().time()
    while not work.closed:
        await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - left_at > 0.15 and work.started == 1


async def test_a_run_that_nobody_waited_for_has_released_what_it_held():
    """A client that leaves before the first step: the run has begun, so that it ends properly."""
    runs, work = RunsInFlight(grace_seconds=0), Work("one")
    reader = await runs.join("key", "me", "hash", work)
    await reader.aclose()
    assert (work.started, work.closed) == (1, 1)


async def test_what_start_raises_is_raised_to_the_first_and_nothing_is_kept():
    """A refused budget is no run."""
    runs, work = RunsInFlight(), Work("one")

    def refuse():
        raise GatewayError(402, "budget_exhausted", "no")

    with pytest.raises(GatewayError, match="no"):
        await runs.join("key", "me", "hash", refuse)
    work.gate.set()
    assert await read(await runs.join("key", "me", "hash", work)) == ["one"]


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_of_no_or_excessive_length_is_refused(key):
    """400, before anything is started."""
    work = Work("one")
    with pytest.raises(GatewayError) as caught:
        await RunsInFlight().join(key, "me", "hash", work)
    assert caught.value.status == 400 and not work.started


async def test_all_runs_end_when_the_gateway_does():
    """Readers get an error that tells them to try again."""
    runs, work = RunsInFlight(), Work("one")
    reader = await runs.join("key", "me", "hash", work)
    assert await anext(reader) == "one"
    await runs.cancel_all()
    with pytest.raises(GatewayError) as caught:
        await anext(reader)
    assert caught.value.status == 503 and work.closed == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 400)), max_size=40))
def test_replays_take_bounded_memory(requests):
    """Whatever is asked, finished runs take at most the limit together; the oldest go first."""

    async def run():
        limit = 3000
        runs = RunsInFlight(max_replay_bytes=limit, grace_seconds=0)
        for n, (key, size) in enumerate(requests):
            reader = await runs.join(f"{key}-{n}", "me", "hash", item_source("x" * size))
            assert await read(reader) == ["x" * size]
        sizes = [200 + size for _, size in requests]
        kept = [n for n in range(len(requests)) if sum(sizes[n:]) <= limit]
        for n in range(len(requests)):
            reader = await runs.join(
                f"{requests[n][0]}-{n}", "me", "hash", item_source("new", endless=True)
            )
            assert reader.is_joined == (n in kept)
            await reader.aclose()

    asyncio.run(run())


def item_source(item, endless=False):
    async def items():
        yield item
        if endless:
            await asyncio.Event().wait()

    return items


def test_what_an_item_takes_in_memory():
    """The texts of an answer, and the arguments of its calls, count."""
    parts = (Text("x" * 10_000), Call("c1", "f", '"' + "y" * 5000 + '"'))
    assert 15_000 < item_size(Answer(Reply("t", "m", parts), OUTCOME)) < 17_000
    assert item_size(b"x" * 1000) > 1000 and item_size(Progress("grade", 1, 0.5, "z" * 500)) > 500
