"""Deadlines of requests: they end blocks as `asyncio.timeout` does, each at its own time, with one
timer for all of them.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from time import monotonic

import pytest

from redraft.models.deadlines import Deadline, Deadlines


async def seconds_until_timeout(deadlines, seconds):
    start = monotonic()
    with pytest.raises(TimeoutError):
        with Deadline(deadlines, seconds):
            await asyncio.sleep(30)
    return monotonic() - start


async def test_each_block_ends_at_its_own_time():
    deadlines = Deadlines()
    wanted = [0.3, 0.05, 0.2, 0.05, 0.1]
    took = await asyncio.gather(*(seconds_until_timeout(deadlines, seconds) for seconds in wanted))
    assert all(0 <= real - want < 20 for real, want in zip(took, wanted, strict=True)), took
    assert not deadlines.open


async def test_a_block_that_ends_in_time_is_not_interrupted_later():
    deadlines = Deadlines()
    with Deadline(deadlines, 0.03):
        await asyncio.sleep(0)
    assert not deadlines.open
    await asyncio.sleep(0.06)


async def test_an_earlier_deadline_that_was_kept_does_not_hold_up_a_later_one():
    deadlines = Deadlines()
    with Deadline(deadlines, 0.05):
        await asyncio.sleep(0)
    assert 0.1 <= await seconds_until_timeout(deadlines, 0.1) < 20


async def test_a_moved_deadline():
    start, deadlines = monotonic(), Deadlines()
    with pytest.raises(TimeoutError):
        with Deadline(deadlines, 0.3) as deadline:
            await asyncio.sleep(0.02)
            deadline.reschedule(0.4)
            await asyncio.sleep(30)
    assert 0.42 <= monotonic() - start < 20


async def test_a_deadline_that_has_passed_cannot_be_moved():
    """The block is ended once, not again at the new time."""
    deadlines = Deadlines()
    with pytest.raises(TimeoutError):
        with Deadline(deadlines, 0.02) as deadline:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            deadline.reschedule(0.02)
            assert not deadlines.open
            await asyncio.sleep(0.06)
            raise asyncio.CancelledError
    assert asyncio.current_task().cancelling() == 0


async def test_open_deadlines_share_one_timer():
    loop, deadlines = asyncio.get_running_loop(), Deadlines()

    def timers():
        return sum(not timer.cancelled() for timer in loop._scheduled)

    before = timers()
    with ExitStack() as blocks:
        for seconds in range(100, 0, -1):
            blocks.enter_context(Deadline(deadlines, seconds))
        assert len(deadlines.open) == 100
        assert timers() == before + 1


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_a_deadline_in_the_past(seconds):
    assert await seconds_until_timeout(Deadlines(), seconds) < 20


async def test_a_cancellation_is_no_timeout():
    deadlines = Deadlines()
    task = asyncio.create_task(seconds_until_timeout(deadlines, 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not deadlines.open


async def test_a_cancellation_at_the_same_moment_is_not_lost():
    deadlines = Deadlines()
    task = asyncio.create_task(seconds_until_timeout(deadlines, 10))
    await asyncio.sleep(0)
    (deadline,) = deadlines.open
    deadline.end_block()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_outer_timeout_ends_the_outer_block():
    deadlines = Deadlines()
    outer = asyncio.timeout(0.02)
    with pytest.raises(TimeoutError):
        async with outer:
            with Deadline(deadlines, 10):
                await asyncio.sleep(30)
    assert outer.expired()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_task_goes_on_after_a_timeout():
    assert await seconds_until_timeout(Deadlines(), 0.01) < 20
    await asyncio.sleep(0.01)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
