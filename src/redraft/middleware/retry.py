"""Try again what may succeed later, after a wait that nobody else chooses at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..core.records import NOTHING
from ..errors import BadResponseError, ModelError, ModelTimeoutError
from ..protocols import Call, Reply, Request
from ..text import duration, moment_in

POISON = 3  # calls of one request that may time out while its endpoint answers others


def retry(
    call: Call,
    *,
    attempts: int = 4,
    base: float = 0.5,
    cap: float = 20.0,
    longest: float = 120.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    chance: Callable[[], float] = random.random,
) -> Call:
    """Repeat a call that failed with a retryable ModelError, up to `attempts` times in all.

    Waits follow full jitter: uniform in [0, min(cap, base * 2**n)] seconds, on top of what the server asked
    for. A server that asks for more than `longest` seconds is not waited for. An empty answer is asked for once more
    only, and a call that times out while its endpoint answers others `POISON` times in all. What failed attempts consumed is
    added to the reply, or to the error that is raised in the end.
    """

    async def retried(request: Request) -> Reply:
        spent, its_own = NOTHING, 0
        for attempt in range(attempts):
            try:
                reply = await call(request)
            except ModelError as error:
                spent += error.usage
                error.usage = spent.of_one_answer()
                its_own += isinstance(error, ModelTimeoutError) and error.its_own
                if attempt + 1 >= attempts or its_own >= POISON or not _worth_it(error, attempt, longest):
                    _tell_wait(error, longest)
                    _tell_own(error, its_own)
                    raise
                await sleep((error.retry_after or 0.0) + chance() * min(cap, base * 2**attempt))
            else:
                return reply if attempt == 0 else replace(reply, usage=(spent + reply.usage).of_one_answer())
        raise AssertionError("unreachable: attempts is at least 1")

    return retried


def _worth_it(error: ModelError, attempt: int, longest: float) -> bool:
    if isinstance(error, BadResponseError) and error.empty and attempt >= 1:
        return False
    return error.retryable and (error.retry_after or 0.0) <= longest


def _tell_wait(error: ModelError, longest: float) -> None:
    """Have the error say how long the endpoint asks to wait, where that is not waited for."""
    if error.retry_after and error.retry_after > longest:
        wait = f"the endpoint asks to wait {duration(error.retry_after)}, until {moment_in(error.retry_after)}"
        error.args = (f"{error} ({wait})",)


def _tell_own(error: ModelError, its_own: int) -> None:
    """Have the error say how often the call timed out although its endpoint was there."""
    if its_own:
        often = "once" if its_own == 1 else f"{its_own} times"
        error.args = (f"{error} (it timed out {often} while the endpoint answered others)",)
