"""The endpoints that a run calls: `CallGate` stops all calls when the run ends, and each endpoint
has a limiter of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import Protocol

from ..base.log import error_summary
from ..errors import ModelError, error_name
from ..middleware import BudgetTracker
from ..middleware.endpoint_errors import is_fatal
from ..middleware.endpoint_limiter import EndpointLimiter, limit_endpoint
from ..models.traits import traits_of_model
from ..protocols import Call, Model, Reply, Request
from ..settings import EndpointLimits

# of the timeout of a call: as long may it wait at the endpoint because the limit has risen fast
QUEUE_SHARE = 0.1
NEW_PAUSE = 0.01  # seconds by which a pause must be longer than the one that is known
MAX_TIMEOUT = 600.0  # seconds, for calls without a timeout and for QUEUE_SHARE only

ROW: ContextVar[str] = ContextVar("row", default="")
"""The ID of the row in whose task a call is made."""


class Endpoints(Protocol):
    """All endpoints of a run, as the scheduler sees them."""

    @property
    def in_flight(self) -> int:
        """The number of calls in flight."""
        ...

    @property
    def calls_made(self) -> int:
        """The number of calls that have ended, whether they were answered or failed."""
        ...

    @property
    def limit(self) -> int:
        """How many calls may be in flight now, at all endpoints together."""
        ...

    @property
    def state(self) -> str:
        """Which endpoints are not called now and why, for people; "" if all are called."""
        ...

    @property
    def free_slots(self) -> int:
        """How many more rows may start: their calls get slots at once, or soon."""
        ...

    async def wait_for_free_slots(self) -> None:
        """Wait until `free_slots` may have changed."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Let no further call start. With `now`, `wait_until_quiet` does not wait for the calls in
        flight.
        """
        ...

    async def wait_until_quiet(self) -> None:
        """Wait until no call is in flight. Only after `close`."""
        ...

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        """Return what counts as spent if this process is killed now, by the names of the budget's
        limits.
        """
        ...


class CallGate:
    """Counts the calls in flight, and those made. After `close` no call starts: its caller waits
    until it is cancelled.
    """

    def __init__(self) -> None:
        self.in_flight = self.calls_made = 0
        self.closed = False
        self._quiet = asyncio.Event()

    async def enter(self, call: Call, request: Request) -> Reply:
        """Make a call, or wait for ever if the gate is closed."""
        if self.closed:
            await asyncio.get_running_loop().create_future()
        self.in_flight += 1
        try:
            reply = await call(request)
            self.calls_made += reply.usage.calls
            return reply
        except ModelError as error:
            self.calls_made += error.usage.calls
            raise
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._quiet.set()

    def close(self, *, now: bool = False) -> None:
        """Let no further call start. With `now`, `wait_until_quiet` does not wait for the calls in
        flight.
        """
        self.closed = True
        if now or not self.in_flight:
            self._quiet.set()
        else:
            self._quiet.clear()

    async def wait_until_quiet(self) -> None:
        """Wait until no call is in flight. Only after `close`."""
        await self._quiet.wait()
        await asyncio.sleep(0)  # the caller of the last call receives its reply


@dataclass
class LimitedEndpoints:
    """Endpoints with one request for each call. Each has its own limiter, with at most `ceiling`
    calls in flight.

    `timeout` is that of a call, in seconds; None: no limit. Calls `halt(reason, message, detail)`
    if an endpoint has failed for good, and `say` with messages about pauses and retries: only the
    detail may have text of the endpoint.
    """

    limits: EndpointLimits
    ceiling: int
    halt: Callable[[str, str, str], object]
    say: Callable[[str], object]
    timeout: float | None = None
    limiters: dict[str, EndpointLimiter] = field(default_factory=dict)
    gate: CallGate = field(default_factory=CallGate)

    def hold(self, call: Call, model: Model, *, has_fallback: bool = False) -> Call:
        """Return a model's call limited by the gate and by its endpoint's limiter.

        If another model answers when this one is out of service (`has_fallback`), its limiter
        raises outages.
        """
        return limit_endpoint(
            partial(self.gate.enter, call), self._limiter(model, has_fallback=has_fallback)
        )

    def _limiter(self, model: Model, *, has_fallback: bool) -> EndpointLimiter:
        traits = traits_of_model(model)
        address = traits.address + " with fallback" * has_fallback
        if address not in self.limiters:
            limits = self.limits
            self.limiters[address] = EndpointLimiter(
                traits.host,
                initial=max(min(limits.initial_in_flight, self.ceiling), limits.min_in_flight),
                minimum=limits.min_in_flight,
                maximum=self.ceiling,
                queue_seconds=QUEUE_SHARE * min(self.timeout or MAX_TIMEOUT, MAX_TIMEOUT),
                rpm=limits.rpm,
                tpm=limits.tpm,
                give_up_after=limits.give_up_after,
                notify=self.say,
                on_fatal=partial(self._halt, traits.host),
                use_probes=traits.takes_probes,
                raises_outages=has_fallback,
            )
        return self.limiters[address]

    def _halt(self, endpoint: str, error: ModelError) -> None:
        self.halt(
            "fatal" if is_fatal(error) else "outage",
            error_summary(error, endpoint),
            f"{error_name(error)}: {error}",
        )

    def resize(self, ceiling: int, rpm: float | None, tpm: float | None) -> None:
        """Change the limits of all endpoints. A rate without a limit stays without one."""
        self.ceiling, self.limits = ceiling, replace(self.limits, rpm=rpm, tpm=tpm)
        for limiter in self.limiters.values():
            limiter.resize(ceiling, rpm, tpm)

    @property
    def pauses(self) -> dict[str, float]:
        """Until when endpoints have asked for no call, by their addresses, as times since
        the epoch: the clock that machines share.
        """
        now = time()
        return {
            address: now + limiter.pause_left
            for address, limiter in self.limiters.items()
            if limiter.pause_left > 0
        }

    def pause(self, pauses: Mapping[str, float]) -> None:
        """Call endpoints no sooner than at these times, as they have asked other workers."""
        for address, until in pauses.items():
            limiter, seconds = self.limiters.get(address), until - time()
            if limiter and seconds > max(0.0, limiter.pause_left) + NEW_PAUSE:
                limiter.pause(seconds)

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        """Return what is spent or reserved: calls in flight count, because they may be paid for."""
        return tracker.spent_and_reserved

    @property
    def in_flight(self) -> int:
        return self.gate.in_flight

    @property
    def calls_made(self) -> int:
        return self.gate.calls_made

    def close(self, *, now: bool = False) -> None:
        self.gate.close(now=now)

    async def wait_until_quiet(self) -> None:
        await self.gate.wait_until_quiet()

    @property
    def is_full(self) -> bool:
        """Whether another call would have to wait."""
        return any(limiter.is_full for limiter in self.limiters.values())

    @property
    def free_slots(self) -> int:
        return min((limiter.free_slots for limiter in self.limiters.values()), default=self.ceiling)

    async def wait_for_free_slots(self) -> None:
        for limiter in tuple(self.limiters.values()):
            await limiter.wait_for_slot()

    @property
    def limit(self) -> int:
        return sum(limiter.limit for limiter in self.limiters.values())

    @property
    def state(self) -> str:
        return "; ".join(
            f"{limiter.name} {limiter.state}" for limiter in self.limiters.values() if limiter.state
        )
