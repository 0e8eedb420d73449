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
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from .config import GatewayLimits
from .exchange import GatewayError

Grant: TypeAlias = "asyncio.Future[None]"
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 60.0  # seconds
DRAIN_RETRY_AFTER = 5.0  # seconds: until another process serves the port
SMOOTHING = 0.1  # weight of the latest duration in the mean


@dataclass(slots=True)
class CallerQueue:
    """The requests of one caller: how many are at work, those that wait in order, and the turn at
    which one was served last.
    """

    active: int = 0
    waiting: dict[Grant, None] = field(default_factory=dict)
    last_turn: int = 0


class Admission:
    """Gives out `limits.max_concurrent` slots. Raises GatewayError 503 with `retry_after` for a
    request that cannot wait.
    """

    def __init__(self, limits: GatewayLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._callers: dict[str, CallerQueue] = {}
        self._turn = 0
        self._mean_seconds = MIN_RETRY_AFTER
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.active = 0
        self.waiting = 0

    @property
    def is_draining(self) -> bool:
        return self._is_draining

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
        for caller_id, queue in list(self._callers.items()):
            while queue.waiting:
                self._refuse_latest(caller_id, self._draining_error())

    async def wait_until_idle(self) -> None:
        """Wait until no request is at work."""
        await self._idle.wait()

    # ---- entering and leaving

    async def _enter(self, caller_id: str) -> None:
        if self._is_draining:
            raise self._draining_error()
        if self.active < self._limits.max_concurrent and not self.waiting:
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
        self._queue_of(caller_id).waiting[grant] = None
        self.waiting += 1
        timer = loop.call_later(self._limits.queue_seconds, self._expire, caller_id, grant)
        try:
            await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled() and grant.exception() is None:
                self._leave(caller_id)
            else:
                self._forget(caller_id, grant)
            raise
        finally:
            timer.cancel()

    def _expire(self, caller_id: str, grant: Grant) -> None:
        if self._forget(caller_id, grant) and not grant.done():
            seconds = self._limits.queue_seconds
            grant.set_exception(self._busy_error(f"no slot became free in {seconds:g} s"))

    def _occupy(self, caller_id: str) -> None:
        queue = self._queue_of(caller_id)
        self._turn += 1
        queue.active, queue.last_turn = queue.active + 1, self._turn
        self.active += 1
        self._idle.clear()

    def _leave(self, caller_id: str) -> None:
        self._callers[caller_id].active -= 1
        self.active -= 1
        self._remove_if_unused(caller_id)
        self._grant_free_slots()
        if not self.active:
            self._idle.set()

    def _grant_free_slots(self) -> None:
        while self.waiting and self.active < self._limits.max_concurrent:
            candidates = (item for item in self._callers.items() if item[1].waiting)
            caller_id, queue = min(candidates, key=lambda item: (item[1].active, item[1].last_turn))
            grant = next(iter(queue.waiting))
            if not grant.done():  # else its request was cancelled a moment ago
                self._occupy(caller_id)
                grant.set_result(None)
            self._forget(caller_id, grant)

    # ---- the queue

    def _make_room_in_queue(self, caller_id: str) -> None:
        """Raise GatewayError if the queue has no place for a request of this caller."""
        if self.waiting < self._limits.max_queue:
            return
        own = len(self._callers[caller_id].waiting) if caller_id in self._callers else 0
        longest = max(
            self._callers, key=lambda name: len(self._callers[name].waiting), default=caller_id
        )
        error = self._busy_error(f"{self.waiting} requests are waiting")
        if not self._limits.max_queue or len(self._callers[longest].waiting) <= own + 1:
            raise error
        self._refuse_latest(longest, error)

    def _refuse_latest(self, caller_id: str, error: GatewayError) -> None:
        grant = next(reversed(self._callers[caller_id].waiting))
        self._forget(caller_id, grant)
        if not grant.done():
            grant.set_exception(error)

    def _forget(self, caller_id: str, grant: Grant) -> bool:
        """Remove a request from the queue; return False if it is not there."""
        queue = self._callers.get(caller_id)
        if queue is None or grant not in queue.waiting:
            return False
        del queue.waiting[grant]
        self.waiting -= 1
        self._remove_if_unused(caller_id)
        return True

    def _queue_of(self, caller_id: str) -> CallerQueue:
        return self._callers.setdefault(caller_id, CallerQueue(last_turn=self._turn))

    def _remove_if_unused(self, caller_id: str) -> None:
        queue = self._callers[caller_id]
        if not queue.active and not queue.waiting:
            del self._callers[caller_id]

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
