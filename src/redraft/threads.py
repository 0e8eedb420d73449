"""Run blocking functions in threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

THREAD_THRESHOLD = 16_384  # characters; shorter texts are processed without a thread
MAX_THREADS = min(32, (os.cpu_count() or 1) + 4)  # of one event loop that run functions at once, as in asyncio's own pool


async def run_in_thread_if_large(size: int, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function that reads a text of `size` characters: in a thread if there are THREAD_THRESHOLD or more, else directly.

    For functions that take time in proportion to the text, and would block the event loop for a long one.
    """
    return function(*arguments, **keywords) if size < THREAD_THRESHOLD else await run_in_thread(function, *arguments, **keywords)


async def run_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function, such as one of the user's, in a thread of its own.

    A function that never returns holds up nothing else: if the caller is cancelled, as by a deadline, the thread is abandoned, and
    neither the end of the event loop nor that of the program waits for it.

    A StopIteration, which no future can hold, becomes a RuntimeError, and so does a SystemExit: `sys.exit` in the code of a user
    ends this call, not the program.
    """

    def call() -> T:
        try:
            return function(*arguments, **keywords)
        except (StopIteration, SystemExit) as error:
            raise RuntimeError(f"it raised {type(error).__name__}").with_traceback(error.__traceback__) from error

    async with _thread_limit():
        return await call_in_daemon_thread(call)


async def call_in_daemon_thread(function: Callable[[], T]) -> T:
    """Call a function in a new thread, which nobody waits for once the caller is cancelled."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not result.done():
            result.set_result(value) if error is None else result.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001  (it is raised where the result is awaited)
            failure = error
        with suppress(RuntimeError):  # the event loop was closed
            loop.call_soon_threadsafe(settle, value, failure)

    Thread(target=copy_context().run, args=(run,), name="redraft-function", daemon=True).start()
    return await result


_thread_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _thread_limit() -> asyncio.Semaphore:
    """Return the limit on the threads of the running event loop. An abandoned thread does not count."""
    return _thread_limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_THREADS))
