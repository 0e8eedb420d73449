"""Retry calls that may succeed later, with exponential backoff and jitter.

This is the place where retries are decided: the client raises a ModelError and says whether it is
`retryable`, and `retry` decides whether and when to make the call again. (`endpoint_limiter`
repeats a call only after an outage or a long pause of the whole endpoint, and `adapt` and
`metering` send a refused request once more in another form.)
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf

from ..base.log import error_kind, retry_log
from ..base.text import format_duration, format_time_in
from ..errors import BadResponseError, ModelError, ModelTimeoutError, error_name
from ..protocols import Call, Reply, Request
from ..usage import NO_USAGE
from .observe import observer
from .timeout import longest_wait

MAX_CALL_TIMEOUTS = 3  # attempts that may time out while the endpoint answers other calls


def retry(
    call: Call,
    *,
    endpoint: str = "the model",
    attempts: int = 4,
    base_delay: float = 0.5,
    max_delay: float = 20.0,
    max_wait: float = inf,
    failures: Counter[str] | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
) -> Call:
    """Repeat a call that failed with a retryable ModelError, up to `attempts` times in all.

    Waits use full jitter: uniform in [0, min(max_delay, base_delay * 2**n)] seconds, on top of what
    the server asked for. If the server asks for a longer wait than `longest_wait(max_wait)`, the
    error is raised at once. An answer that is empty, or ended for an unknown reason, is asked for
    once more, and a call that times out while its endpoint answers others is made MAX_CALL_TIMEOUTS
    times in all. The usage of failed attempts is added to the reply, or to the error that is raised
    in the end. `endpoint` names it in the log. `failures` counts the attempts that failed, by
    cause.
    """
    counts = Counter[str]() if failures is None else failures

    async def call_with_retries(request: Request) -> Reply:
        spent, call_timeouts = NO_USAGE, 0
        for attempt in range(attempts):
            try:
                reply = await call(request)
            except ModelError as error:
                spent += error.usage
                error.usage = spent.as_single_answer()
                call_timeouts += isinstance(error, ModelTimeoutError) and error.endpoint_responsive
                longest = longest_wait(max_wait)
                is_last = (
                    attempt + 1 >= _max_attempts(error, attempts)
                    or call_timeouts >= MAX_CALL_TIMEOUTS
                    or not error.retryable
                    or (error.retry_after or 0.0) > longest
                )
                backoff = 0.0 if is_last else jitter() * min(max_delay, base_delay * 2**attempt)
                wait = None if is_last else (error.retry_after or 0.0) + backoff
                counts[error_name(error)] += 1
                observer().record_failed_attempt(error, wait)
                if wait is None:
                    _explain(error, longest, call_timeouts)
                    raise
                details = {"endpoint": endpoint, "wait": wait}
                retry_log.info(
                    "%s: %s; retry %d of %d in %.1f s",
                    endpoint,
                    error_kind(error),
                    attempt + 1,
                    attempts - 1,
                    wait,
                    extra=details,
                )
                await sleep(wait)
            else:
                return reply.after(spent)
        raise AssertionError("unreachable: attempts is at least 1")

    return call_with_retries


def _max_attempts(error: ModelError, attempts: int) -> int:
    """Return how often a call is made that fails with this error, if it may be made `attempts`
    times.
    """
    is_bad = isinstance(error, BadResponseError) and (error.empty or error.has_unknown_end)
    return min(attempts, 2) if is_bad else attempts


def _explain(error: ModelError, longest_wait: float, call_timeouts: int) -> None:
    """Add to the message of an error why its call is not retried."""
    if error.retry_after and error.retry_after > longest_wait:
        wait = (
            f"the endpoint asks to wait {format_duration(error.retry_after)}, until "
            f"{format_time_in(error.retry_after)}"
        )
        error.args = (f"{error} ({wait})",)
    if call_timeouts:
        count = "once" if call_timeouts == 1 else f"{call_timeouts} times"
        error.args = (f"{error} (it timed out {count} while the endpoint answered other calls)",)
