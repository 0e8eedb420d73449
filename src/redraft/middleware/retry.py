"""Try again what may succeed later, after a wait that nobody else chooses at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..core.records import NO_USAGE
from ..errors import BadResponseError, ModelError, ModelTimeoutError
from ..protocols import Call, Reply, Request
from ..text import format_duration, format_time_in

MAX_CALL_TIMEOUTS = 3  # calls of one request that may time out while its endpoint answers others


def retry(
    call: Call,
    *,
    attempts: int = 4,
    base_delay: float = 0.5,
    max_delay: float = 20.0,
    max_retry_after: float = 120.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
) -> Call:
    """Repeat a call that failed with a retryable ModelError, up to `attempts` times in all.

    Waits follow full jitter: uniform in [0, min(cap, base * 2**n)] seconds, on top of what the server asked
    for. A server that asks for more than `longest` seconds is not waited for. An empty answer is asked for once more
    only, and a call that times out while its endpoint answers others `POISON` times in all. What failed attempts consumed is
    added to the reply, or to the error that is raised in the end.
    """

    async def call_with_retries(request: Request) -> Reply:
        spent, its_own = NO_USAGE, 0
        for attempt in range(attempts):
            try:
                reply = await call(request)
            except ModelError as error:
                spent += error.usage
                error.usage = spent.as_single_answer()
                its_own += isinstance(error, ModelTimeoutError) and error.endpoint_responsive
                if (
                    attempt + 1 >= attempts
                    or its_own >= MAX_CALL_TIMEOUTS
                    or not _is_worth_retrying(error, attempt, max_retry_after)
                ):
                    _add_wait_hint(error, max_retry_after)
                    _add_timeout_hint(error, its_own)
                    raise
                await sleep((error.retry_after or 0.0) + jitter() * min(max_delay, base_delay * 2**attempt))
            else:
                return reply if attempt == 0 else replace(reply, usage=(spent + reply.usage).as_single_answer())
        raise AssertionError("unreachable: attempts is at least 1")

    return call_with_retries


def _is_worth_retrying(error: ModelError, attempt: int, max_retry_after: float) -> bool:
    if isinstance(error, BadResponseError) and error.empty and attempt >= 1:
        return False
    return error.retryable and (error.retry_after or 0.0) <= max_retry_after


def _add_wait_hint(error: ModelError, max_retry_after: float) -> None:
    """Have the error say how long the endpoint asks to wait, where that is not waited for."""
    if error.retry_after and error.retry_after > max_retry_after:
        wait = f"the endpoint asks to wait {format_duration(error.retry_after)}, until {format_time_in(error.retry_after)}"
        error.args = (f"{error} ({wait})",)


def _add_timeout_hint(error: ModelError, call_timeouts: int) -> None:
    """Have the error say how often the call timed out although its endpoint was there."""
    if call_timeouts:
        often = "once" if call_timeouts == 1 else f"{call_timeouts} times"
        error.args = (f"{error} (it timed out {often} while the endpoint answered others)",)
