"""Run blocking functions in threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

THREAD_THRESHOLD = 16_384  # characters; shorter texts are processed without a thread
IDLE_SECONDS = 10.0  # after which a thread without work ends
# of one event loop that run functions at once, as in asyncio's own pool
MAX_THREADS = min(32, (os.cpu_count() or 1) + 4)


async def run_in_thread_if_large(
    size: int, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs
) -> T:
    """Call a function that reads a text of `size` characters: in a thread if there are
    THREAD_THRESHOLD or more, else directly.

    For functions that take time in proportion to the text, and would block the event loop for a
    long one.
    """
    return (
        function(*arguments, **keywords)
        if size < THREAD_THRESHOLD
        else await run_in_thread(function, *arguments, **keywords)
    )


async def run_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function, such as one of the user's, in a thread that does nothing else meanwhile.

    A function that never returns holds up nothing else: if the caller is cancelled, as by a
    deadline, the thread is abandoned, and neither the event loop nor the program waits for it at
    its end.

    A StopIteration, which no future can hold, becomes a RuntimeError, and so do a SystemExit
    (`sys.exit` in the code of a user ends this call, not the program) and the CancelledError of a
    future in a pool, which does not cancel this task.
    """

    def call() -> T:
        try:
            return function(*arguments, **keywords)
        except (StopIteration, SystemExit, CancelledError) as error:
            raise RuntimeError(f"it raised {type(error).__name__}").with_traceback(
                error.__traceback__
            ) from error

    async with _thread_limit():
        return await call_in_daemon_thread(call)


async def call_in_daemon_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, which nobody waits for once the caller is cancelled."""
    call = partial(copy_context().run, function)
    return await asyncio.wrap_future(submit_to_daemon_thread(call))


def submit_to_daemon_thread(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread that nothing waits for, from code without an event loop."""
    future: Future[T] = Future()
    try:
        jobs = _idle_threads.pop()
    except IndexError:
        jobs = SimpleQueue()
        Thread(target=_do_jobs, args=(jobs,), name="redraft-function", daemon=True).start()
    jobs.put((future, function))
    return future


_Job: TypeAlias = tuple[Future[Any], Callable[[], Any]]

_idle_threads: list[SimpleQueue[_Job]] = []
"""What the threads that have nothing to do wait for: to start one takes longer than most functions,
and libraries keep what they need again for each thread.
"""


def _do_jobs(jobs: SimpleQueue[_Job]) -> None:
    """Do one job after another. While there is none, nothing of the last one is kept."""
    while job := _next_job(jobs):
        future, report = job[0], _outcome(*job)
        # before the report, so that what follows from it finds this thread
        _idle_threads.append(jobs)
        report(future)
        del job, future, report


def _next_job(jobs: SimpleQueue[_Job]) -> _Job | None:
    """Wait for the next job of a thread; None if there was none for IDLE_SECONDS."""
    with suppress(Empty):
        return jobs.get(timeout=IDLE_SECONDS)
    try:
        _idle_threads.remove(jobs)
    except ValueError:  # a job is on its way
        return jobs.get()
    return None


def _outcome(future: Future[T], function: Callable[[], T]) -> Callable[[Future[T]], object]:
    """Call a function, unless that was cancelled; return what reports its outcome."""
    if not future.set_running_or_notify_cancel():
        return Future.done  # there is nothing to report
    del future  # else the traceback of an exception would hold it, and the exception with it
    try:
        return partial(Future.set_result, result=function())
    except BaseException as error:  # noqa: BLE001  (it is raised where the result is awaited)
        return partial(Future.set_exception, exception=error)


# ---- threads that live as long as the process

_submitted: set[Future[Any]] = set()
"""The work of all pools that has not ended."""


class LastingThreadPool:
    """At most `count` threads, which run functions and live as long as the process.

    The threads of `concurrent.futures` end with the main thread, even if Python then waits for
    others: new work would be refused, and the kernel would kill processes that it ends with the
    thread that started them. Python waits at its end for what was submitted.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = Lock()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in a thread of the pool, when one is free."""
        future: Future[T] = Future()
        _submitted.add(future)
        future.add_done_callback(_submitted.discard)
        with self._lock:
            if self._count:
                Thread(target=self._do_jobs, name=self._name, daemon=True).start()
                self._count -= 1
        self._jobs.put((future, function))
        return future

    def _do_jobs(self) -> None:
        while True:
            job = self._jobs.get()
            _outcome(*job)(job[0])
            del job  # nothing of the last job is kept while there is none


@atexit.register
def _wait_for_submitted() -> None:
    wait(list(_submitted))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle_threads.clear)  # no thread survives in a forked child
    os.register_at_fork(after_in_child=_submitted.clear)


_thread_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
    WeakKeyDictionary()
)


def _thread_limit() -> asyncio.Semaphore:
    """Return the limit on the threads of the running event loop. An abandoned thread does not
    count.
    """
    return _thread_limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_THREADS))
