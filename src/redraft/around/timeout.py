"""An end to waiting: for one call, or for all the work."""

from __future__ import annotations

import asyncio
from time import monotonic

from ..core.errors import BudgetExhaustedError, ModelTimeoutError
from ..core.records import Usage
from .wrapper import Doing, R, S


def timeout(call: Doing[S, R], seconds: float | None) -> Doing[S, R]:
    """Raise ModelTimeoutError when a call takes longer than `seconds` in all; what it consumed is then unknown."""
    if seconds is None:
        return call

    async def timed(asked: S) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await call(asked)
        except TimeoutError as error:
            unknown = Usage(calls=1, input_tokens=None, output_tokens=None, cost=None)
            raise ModelTimeoutError(f"no answer within {seconds:g} s", usage=unknown) from error

    return timed


def until(perform: Doing[S, R], moment: float | None) -> Doing[S, R]:
    """Raise BudgetExhaustedError when `moment` (of the monotonic clock) has come, before or during a step."""
    if moment is None:
        return perform

    async def bounded(asked: S) -> R:
        left = moment - monotonic()
        if left <= 0:
            raise BudgetExhaustedError("the deadline has passed", what="deadline")
        async with asyncio.timeout(left) as scope:
            try:
                return await perform(asked)
            except asyncio.CancelledError as error:
                if not scope.expired():
                    raise
                raise BudgetExhaustedError("the deadline has passed", what="deadline") from error

    return bounded
