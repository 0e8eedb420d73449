"""Limit how many calls are in flight, and pause all of them when an endpoint asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from .. import checks
from ..errors import ModelError
from ..protocols import AsyncFunction, R, S


class ConcurrencyLimit:
    """The state that calls share: `max_in_flight` slots, and the time until which the endpoint asked for a pause."""

    def __init__(self, max_in_flight: int, *, max_pause: float = 120.0, clock: Callable[[], float] = monotonic) -> None:
        checks.whole_number("max_in_flight", max_in_flight, 1)
        self._semaphore = asyncio.Semaphore(max_in_flight)
        self._max_pause = max_pause
        self._clock = clock
        self._paused_until = 0.0

    async def __aenter__(self) -> None:
        await self._semaphore.acquire()
        try:
            while (wait := self._paused_until - self._clock()) > 0:  # noqa: ASYNC110  (another call may prolong the pause)
                await asyncio.sleep(wait)
        except BaseException:
            self._semaphore.release()
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._semaphore.release()
        if isinstance(error, ModelError) and error.retry_after:
            self._paused_until = max(self._paused_until, self._clock() + min(error.retry_after, self._max_pause))


def limit_concurrency(call: AsyncFunction[S, R], limiter: ConcurrencyLimit) -> AsyncFunction[S, R]:
    """Hold calls back while `limiter` is full or paused because the endpoint asked for it (Retry-After)."""

    async def call_limited(argument: S) -> R:
        async with limiter:
            return await call(argument)

    return call_limited
