"""An end to waiting: for one call, or for all the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..errors import BudgetExhaustedError, ModelTimeoutError
from ..ledger import current_entry
from ..text import duration
from .wrapper import Doing, R, S


def timeout(call: Doing[S, R], seconds: float | None, endpoint: str = "") -> Doing[S, R]:
    """Raise ModelTimeoutError, which names the `endpoint`, when a call takes longer than `seconds` in all.

    What it consumed, if it was sent, is then unknown.
    """
    if seconds is None:
        return call

    async def timed(asked: S) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await call(asked)
        except TimeoutError as error:
            whose = f" from {endpoint}" if endpoint else ""
            raise ModelTimeoutError(f"no answer{whose} within {duration(seconds)}", usage=current_entry().usage) from error

    return timed


def passed(_: object) -> str:
    return "the deadline has passed"


def until(perform: Doing[S, R], moment: float | None, late: Callable[[S], str] = passed) -> Doing[S, R]:
    """Raise BudgetExhaustedError when `moment` (of the monotonic clock) has come, before or during a step.

    `late` says in words what came too late, or that nothing was begun any more.
    """
    if moment is None:
        return perform

    async def bounded(asked: S) -> R:
        left = moment - monotonic()
        if left <= 0:
            raise BudgetExhaustedError(late(asked), what="deadline")
        try:
            async with asyncio.timeout(left) as scope:
                return await perform(asked)
        except TimeoutError as error:  # (not where somebody else cancelled, too)
            if not scope.expired():
                raise
            raise BudgetExhaustedError(late(asked), what="deadline") from error

    return bounded
