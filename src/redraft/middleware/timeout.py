"""An end to waiting: for one call, or for all the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..errors import BudgetExhaustedError, ModelTimeoutError
from ..ledger import current_entry
from ..text import format_duration
from .wrapper import AsyncFunction, R, S


def timeout(call: AsyncFunction[S, R], seconds: float | None, endpoint: str = "") -> AsyncFunction[S, R]:
    """Raise ModelTimeoutError, which names the `endpoint`, when a call takes longer than `seconds` in all.

    What it consumed, if it was sent, is then unknown.
    """
    if seconds is None:
        return call

    async def call_with_timeout(asked: S) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await call(asked)
        except TimeoutError as error:
            whose = f" from {endpoint}" if endpoint else ""
            raise ModelTimeoutError(f"no answer{whose} within {format_duration(seconds)}", usage=current_entry().usage) from error

    return call_with_timeout


def deadline_message(_: object) -> str:
    return "the deadline has passed"


def enforce_deadline(
    perform: AsyncFunction[S, R], deadline: float | None, message: Callable[[S], str] = deadline_message
) -> AsyncFunction[S, R]:
    """Raise BudgetExhaustedError when `moment` (of the monotonic clock) has come, before or during a step.

    `late` says in words what came too late, or that nothing was begun any more.
    """
    if deadline is None:
        return perform

    async def call_until_deadline(asked: S) -> R:
        left = deadline - monotonic()
        if left <= 0:
            raise BudgetExhaustedError(message(asked), limit="deadline")
        try:
            async with asyncio.timeout(left) as scope:
                return await perform(asked)
        except TimeoutError as error:  # (not where somebody else cancelled, too)
            if not scope.expired():
                raise
            raise BudgetExhaustedError(message(asked), limit="deadline") from error

    return call_until_deadline
