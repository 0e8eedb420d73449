"""Limit how many calls are in flight, and pause all of them when an endpoint asks for it."""

from __future__ import annotations

import asyncio

from ..base import checks
from ..errors import ModelError
from ..protocols import AsyncFunction, R, S
from .timeout import longest_wait


class ConcurrencyLimit:
    """The state that calls share: `max_in_flight` slots, and the pauses that endpoints asked
    for.
    """

    def __init__(self, max_in_flight: int) -> None:
        checks.whole_number("max_in_flight", max_in_flight, 1)
        self.slots = asyncio.Semaphore(max_in_flight)
        self._paused_until: dict[str, float] = {}

    def pause_left(self, endpoint: str) -> float:
        """Return the seconds for which no call to an endpoint is to start; 0 or less if there is no
        pause.
        """
        until = self._paused_until.get(endpoint)
        return 0.0 if until is None else until - asyncio.get_running_loop().time()

    def pause(self, endpoint: str, seconds: float) -> None:
        """Let no call to an endpoint start for some seconds."""
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until[endpoint] = max(until, self._paused_until.get(endpoint, until))


def limit_concurrency(
    call: AsyncFunction[S, R], limiter: ConcurrencyLimit, endpoint: str = ""
) -> AsyncFunction[S, R]:
    """Hold calls back while `limiter` is full, or while the endpoint asks for a pause that is not
    too long to be waited for.
    """

    async def call_limited(argument: S) -> R:
        await limiter.slots.acquire()
        while (wait := limiter.pause_left(endpoint)) > 0:
            limiter.slots.release()  # for calls to other endpoints
            await asyncio.sleep(wait)
            await limiter.slots.acquire()
        try:
            return await call(argument)
        except ModelError as error:
            if 0 < (error.retry_after or 0.0) <= longest_wait():
                limiter.pause(endpoint, error.retry_after or 0.0)
            raise
        finally:
            limiter.slots.release()

    return call_limited
