"""Cancel tasks, and wait until they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel_and_wait(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all have ended; their results and exceptions are dropped.

    If the caller is cancelled meanwhile, CancelledError is raised once all tasks have ended.
    """
    pending = list(tasks)
    for task in pending:
        task.cancel()
    cancelled = None
    while running := [task for task in pending if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in pending:
        _ = task.cancelled() or task.exception()  # retrieved, so that asyncio does not log it
    if cancelled:
        raise cancelled
