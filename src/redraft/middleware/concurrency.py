"""At most n in flight, and one pause for all when an endpoint asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..errors import ConfigError, ModelError
from .wrapper import AsyncFunction, R, S


class ConcurrencyLimit:
    """What the calls to one endpoint share: `n` places, and the moment until which it wants to be left alone."""

    def __init__(self, max_in_flight: int, *, max_pause: float = 120.0, clock: Callable[[], float] = monotonic) -> None:
        if isinstance(max_in_flight, bool) or not isinstance(max_in_flight, int) or max_in_flight < 1:
            raise ConfigError(f"max_in_flight must be a whole number >= 1, got {max_in_flight!r}")
        self._semaphore = asyncio.Semaphore(max_in_flight)
        self._max_pause = max_pause
        self._clock = clock
        self._paused_until = 0.0

    async def __aenter__(self) -> None:
        await self._semaphore.acquire()
        try:
            await self._wait_out_pause()
        except BaseException:
            self._semaphore.release()
            raise

    async def _wait_out_pause(self) -> None:
        if (wait := self._paused_until - self._clock()) > 0:
            await asyncio.sleep(wait)
            await self._wait_out_pause()  # somebody may have been sent away meanwhile

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._semaphore.release()
        if isinstance(error, ModelError) and error.retry_after:
            self._paused_until = max(self._paused_until, self._clock() + min(error.retry_after, self._max_pause))


def limit_concurrency(call: AsyncFunction[S, R], limiter: ConcurrencyLimit) -> AsyncFunction[S, R]:
    """Hold calls back while `limiter` is full, or its endpoint has asked for a pause (Retry-After)."""

    async def call_limited(asked: S) -> R:
        async with limiter:
            return await call(asked)

    return call_limited
