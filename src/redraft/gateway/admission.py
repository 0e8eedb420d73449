"""How many requests work at once, and which waits: `Admission`.

A request that finds no free slot waits in the queue. Slots go to the caller with the fewest of them
at work, and among callers with as many to the one that was served longest ago; the requests of one
caller are served in the order in which they came. If the queue is full, the latest request of the
caller with the longest queue gives up its place to a caller with a shorter one, so that one key
cannot keep the others out. No request waits longer than `queue_seconds`.

One event loop uses an `Admission`; nothing here is for threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeAlias

from .config import GatewayLimits
from .exchange import GatewayError

Grant: TypeAlias = "asyncio.Future[None]"
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 60.0  # seconds
DRAIN_RETRY_AFTER = 5.0  # seconds: until another process serves the port
SMOOTHING = 0.1  # weight of the latest duration in the mean


class Admission:
    """Gives out `limits.max_concurrent` slots. Raises GatewayError 503 with `retry_after` for a
    request that cannot wait.
    """

    def __init__(self, limits: GatewayLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._waiting: dict[Grant, str] = {}  # their callers, in the order in which they came
        self._at_work: Counter[str] = Counter()  # requests by caller
        self._last_turns: dict[str, int] = {}  # at which each caller was served last, or came
        self._turn = 0
        self._mean_seconds = MIN_RETRY_AFTER
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.active = 0

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def slot(self, caller_id: str = "") -> AsyncGenerator[None]:
        """Hold a slot within the context; wait for it first. Raises GatewayError 503."""
        await self._enter(caller_id)
        started_at = self._clock()
        try:
            yield
        finally:
            self._mean_seconds += SMOOTHING * (self._clock() - started_at - self._mean_seconds)
            self._leave(caller_id)

    def resize(self, limits: GatewayLimits) -> None:
        """Change the limits. Requests that are at work or waiting stay."""
        self._limits = limits
        self._grant_free_slots()

    def drain(self) -> None:
        """Admit no further request, and refuse those that wait."""
        self._is_draining = True
        for grant in list(self._waiting):
            self._refuse(grant, self._draining_error())

    async def wait_until_idle(self) -> None:
        """Wait until no request is at work."""
        await self._idle.wait()

    # ---- entering and leaving

    async def _enter(self, caller_id: str) -> None:
        if self._is_draining:
            raise self._draining_error()
        if not self._at_work[caller_id] and caller_id not in self._waiting.values():
            self._last_turns[caller_id] = self._turn
        if self.active < self._limits.max_concurrent and not self._waiting:
            self._occupy(caller_id)
            return
        self._make_room_in_queue(caller_id)
        await self._wait(caller_id)

    async def _wait(self, caller_id: str) -> None:
        """Wait for a slot; one that is granted to a request that leaves at the same moment is
        passed on.
        """
        loop = asyncio.get_running_loop()
        grant: Grant = loop.create_future()
        self._waiting[grant] = caller_id
        timer = loop.call_later(self._limits.queue_seconds, self._expire, grant)
        try:
            await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled() and grant.exception() is None:
                self._leave(caller_id)
            raise
        finally:
            self._waiting.pop(grant, None)
            timer.cancel()

    def _occupy(self, caller_id: str) -> None:
        self._turn += 1
        self._last_turns[caller_id] = self._turn
        self._at_work[caller_id] += 1
        self.active += 1
        self._idle.clear()

    def _leave(self, caller_id: str) -> None:
        self._at_work[caller_id] -= 1
        self.active -= 1
        self._grant_free_slots()
        if not self.active:
            self._idle.set()

    def _grant_free_slots(self) -> None:
        while self._waiting and self.active < self._limits.max_concurrent:
            callers = dict.fromkeys(self._waiting.values())
            next_one = min(callers, key=lambda each: (self._at_work[each], self._last_turns[each]))
            grant = next(each for each, caller in self._waiting.items() if caller == next_one)
            del self._waiting[grant]
            if not grant.done():  # else its request was cancelled a moment ago
                self._occupy(next_one)
                grant.set_result(None)

    # ---- the queue

    def _make_room_in_queue(self, caller_id: str) -> None:
        """Raise GatewayError if the queue has no place for a request of this caller."""
        if self.waiting < self._limits.max_queue:
            return
        error = self._busy_error(f"{self.waiting} requests are waiting")
        queues = Counter(self._waiting.values())
        longest = max(queues, key=lambda each: queues[each], default=caller_id)
        if queues[longest] <= queues[caller_id] + 1:
            raise error
        latest = (each for each, caller in reversed(self._waiting.items()) if caller == longest)
        self._refuse(next(latest), error)

    def _expire(self, grant: Grant) -> None:
        seconds = self._limits.queue_seconds
        self._refuse(grant, self._busy_error(f"no slot became free in {seconds:g} s"))

    def _refuse(self, grant: Grant, error: GatewayError) -> None:
        self._waiting.pop(grant, None)
        if not grant.done():
            grant.set_exception(error)

    # ---- errors

    def _busy_error(self, reason: str) -> GatewayError:
        seconds = self._mean_seconds * (self.waiting + 1) / max(self._limits.max_concurrent, 1)
        retry_after = min(max(seconds, MIN_RETRY_AFTER), MAX_RETRY_AFTER)
        return GatewayError(
            503, "overloaded", f"the gateway is busy: {reason}", retry_after=retry_after
        )

    def _draining_error(self) -> GatewayError:
        return GatewayError(
            503, "shutting_down", "the gateway is shutting down", retry_after=DRAIN_RETRY_AFTER
        )
