"""Time limits: a timeout for one call, a deadline for a whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from math import inf
from time import monotonic

from ..base.text import format_duration
from ..errors import BudgetExhaustedError, ModelTimeoutError
from ..protocols import AsyncFunction, R, S
from ..usage import current_entry


def timeout(
    call: AsyncFunction[S, R], seconds: float | None, endpoint: str = ""
) -> AsyncFunction[S, R]:
    """Raise ModelTimeoutError, which names the `endpoint`, if a call takes longer than `seconds`;
    None: no limit.

    The usage of a call that was sent is then unknown.
    """
    if seconds is None:
        return call

    async def call_with_timeout(argument: S) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await call(argument)
        except TimeoutError as error:
            source = f" from {endpoint}" if endpoint else ""
            raise ModelTimeoutError(
                f"no answer{source} within {format_duration(seconds)}", usage=current_entry().usage
            ) from error

    return call_with_timeout


_deadline_at: ContextVar[float] = ContextVar("deadline_at", default=inf)
"""When the deadline of the running work passes, on the clock of the event loop."""

# seconds that a call waits for an endpoint, if no deadline says how long there is time
MAX_WAIT = 60.0


def longest_wait(most: float = inf) -> float:
    """Return how long a call may wait because its endpoint asks for it: until its deadline, and for
    at most `most` seconds.

    Without either, MAX_WAIT.
    """
    longest = min(_deadline_at.get() - asyncio.get_running_loop().time(), most)
    return MAX_WAIT if longest == inf else longest


def deadline_message(_: object) -> str:
    return "the deadline has passed"


def enforce_deadline(
    perform: AsyncFunction[S, R],
    deadline: float | None,
    message: Callable[[S], str] = deadline_message,
) -> AsyncFunction[S, R]:
    """Raise BudgetExhaustedError when the deadline (monotonic clock; None: there is none) passes
    before or during a call.

    `message` returns the error's message for the argument of the call.
    """
    if deadline is None:
        return perform

    async def call_until_deadline(argument: S) -> R:
        seconds_left = deadline - monotonic()
        if seconds_left <= 0:
            raise BudgetExhaustedError(message(argument), limit="deadline")
        scope = asyncio.timeout(seconds_left)
        try:
            async with scope:
                token = _deadline_at.set(min(scope.when() or inf, _deadline_at.get()))
                try:
                    return await perform(argument)
                finally:
                    _deadline_at.reset(token)
        except TimeoutError as error:
            if not scope.expired():  # it is the caller's own timeout
                raise
            raise BudgetExhaustedError(message(argument), limit="deadline") from error

    return call_until_deadline
