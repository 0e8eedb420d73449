"""At most n in flight, and one pause for all when an endpoint asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..errors import ConfigError, ModelError
from .wrapper import Doing, R, S


class Limiter:
    """What the calls to one endpoint share: `n` places, and the moment until which it wants to be left alone."""

    def __init__(self, n: int, *, longest: float = 120.0, clock: Callable[[], float] = monotonic) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigError(f"max_in_flight must be a whole number >= 1, got {n!r}")
        self._places = asyncio.Semaphore(n)
        self._longest = longest
        self._clock = clock
        self._quiet_until = 0.0

    async def __aenter__(self) -> None:
        await self._places.acquire()
        try:
            await self._quiet()
        except BaseException:
            self._places.release()
            raise

    async def _quiet(self) -> None:
        if (wait := self._quiet_until - self._clock()) > 0:
            await asyncio.sleep(wait)
            await self._quiet()  # somebody may have been sent away meanwhile

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._places.release()
        if isinstance(error, ModelError) and error.retry_after:
            self._quiet_until = max(self._quiet_until, self._clock() + min(error.retry_after, self._longest))


def limit(call: Doing[S, R], limiter: Limiter) -> Doing[S, R]:
    """Hold calls back while `limiter` is full, or its endpoint has asked for a pause (Retry-After)."""

    async def limited(asked: S) -> R:
        async with limiter:
            return await call(asked)

    return limited
