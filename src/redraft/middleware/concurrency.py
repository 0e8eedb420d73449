"""Limit how many calls are in flight, and pause all of them when an endpoint asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from .. import checks
from ..errors import ModelError
from ..protocols import AsyncFunction, R, S


class ConcurrencyLimit:
    """The state that calls share: `max_in_flight` slots, and the pause that the endpoint asked for."""

    def __init__(self, max_in_flight: int, *, max_pause: float = 120.0, clock: Callable[[], float] = monotonic) -> None:
        checks.whole_number("max_in_flight", max_in_flight, 1)
        self.slots = asyncio.Semaphore(max_in_flight)
        self._max_pause = max_pause
        self._clock = clock
        self._paused_until = 0.0

    @property
    def pause_left(self) -> float:
        """The seconds for which no call is to start; 0 or less if there is no pause."""
        return self._paused_until - self._clock() if self._paused_until else 0.0

    def pause(self, seconds: float) -> None:
        """Let no call start for some seconds."""
        self._paused_until = max(self._paused_until, self._clock() + min(seconds, self._max_pause))


def limit_concurrency(call: AsyncFunction[S, R], limiter: ConcurrencyLimit) -> AsyncFunction[S, R]:
    """Hold calls back while `limiter` is full or paused because the endpoint asked for it (Retry-After)."""

    async def call_limited(argument: S) -> R:
        await limiter.slots.acquire()
        try:
            while (wait := limiter.pause_left) > 0:  # noqa: ASYNC110  (another call may prolong the pause)
                await asyncio.sleep(wait)
            return await call(argument)
        except ModelError as error:
            if error.retry_after:
                limiter.pause(error.retry_after)
            raise
        finally:
            limiter.slots.release()

    return call_limited
