"""Ending tasks without leaving any behind, and calling functions of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def cancel_and_wait(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all have ended, whatever comes of them.

    Being cancelled meanwhile does not cut the wait short; it is raised once they have ended.
    """
    ending = list(tasks)
    for task in ending:
        task.cancel()
    cancelled = None
    while running := [task for task in ending if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in ending:
        _ = task.cancelled() or task.exception()  # it was looked at: nobody else is to be told of it
    if cancelled:
        raise cancelled


THREAD_THRESHOLD = 16_384  # characters; what is quick to do with fewer is done at once


async def run_in_thread_if_large(size: int, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """What a function returns: called at once, or in a thread where it reads LONG characters (`size`) or more.

    For what takes time in proportion to a text: of a megabyte it would hold the event loop.
    """
    return function(*arguments, **keywords) if size < THREAD_THRESHOLD else await run_in_thread(function, *arguments, **keywords)


async def run_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """What a function returns that is called in a thread. A StopIteration, which no future can hold, becomes a RuntimeError."""

    def call() -> T:
        try:
            return function(*arguments, **keywords)
        except StopIteration as error:
            raise RuntimeError("it raised StopIteration").with_traceback(error.__traceback__) from error

    return await asyncio.to_thread(call)
