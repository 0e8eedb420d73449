"""Functions that block run in threads, which are used again and hold up nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from concurrent import futures
from threading import Event, current_thread

import pytest

from redraft.base import threads
from redraft.base.threads import run_in_thread

IN_A_FORKED_CHILD = """
import asyncio, os
from redraft.base.threads import run_in_thread

assert asyncio.run(run_in_thread(int, "1")) == 1  # its thread is idle now, and does not exist in the child
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))
assert asyncio.run(asyncio.wait_for(run_in_thread(int, "2"), 30)) == 2
os._exit(0)
"""


async def test_functions_that_follow_one_another_share_a_thread():
    assert len({await run_in_thread(current_thread) for _ in range(20)}) == 1


async def test_functions_at_the_same_time_have_threads_of_their_own():
    may_end = Event()
    first = asyncio.ensure_future(run_in_thread(may_end.wait, 30))
    await asyncio.sleep(0)
    assert await run_in_thread(int, "1") == 1
    assert not first.done()
    may_end.set()
    assert await first


@pytest.mark.parametrize("kind", [futures.CancelledError, SystemExit, StopIteration])
async def test_what_a_function_raises_does_not_end_its_caller(kind):
    """Neither the program, nor a generator, nor the task, which nobody has cancelled."""

    def fail():
        raise kind

    with pytest.raises(RuntimeError, match=f"it raised {kind.__name__}"):
        await run_in_thread(fail)


async def test_an_abandoned_thread_is_used_again_only_when_its_function_has_ended():
    may_end, began = Event(), Event()

    def block():
        began.set()
        may_end.wait(30)
        return current_thread()

    abandoned = asyncio.ensure_future(run_in_thread(block))
    while not began.is_set():
        await asyncio.sleep(0.001)
    abandoned.cancel()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    assert await asyncio.wait_for(run_in_thread(int, "7"), 60) == 7
    may_end.set()


async def test_a_thread_without_work_ends(monkeypatch):
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(threads, "_idle_threads", [])
    thread = await run_in_thread(current_thread)
    async with asyncio.timeout(60):
        while thread.is_alive():
            await asyncio.sleep(0.001)
    assert await run_in_thread(current_thread) is not thread


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork")
def test_a_forked_child_starts_threads_of_its_own():
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_FORKED_CHILD], check=True, timeout=60
    )


async def test_what_a_function_raised_is_freed_at_once():
    """Nothing of a failed call waits for the garbage collector, such as the texts that it read."""

    class Large:
        pass

    def fail(argument):
        raise ValueError(argument)

    async def kept_after_failure():
        argument = Large()
        try:
            await run_in_thread(fail, argument)
        except ValueError:
            return weakref.ref(argument)

    gc.disable()
    try:
        kept = await kept_after_failure()
        await asyncio.sleep(0.05)  # the thread puts the job away
        assert kept() is None
    finally:
        gc.enable()
