"""The endpoints of a run: one limiter for each, through which every call goes, and one gate in front of all that can be closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from ..errors import ModelError
from ..middleware import BudgetTracker
from ..middleware.endpoint_calls import limit_endpoint
from ..middleware.endpoint_errors import is_fatal
from ..middleware.endpoint_limiter import EndpointLimiter
from ..protocols import Call, Model, Reply, Request
from ..settings import EndpointLimits

ROW: ContextVar[str] = ContextVar("row", default="")
"""The ID of the row that is worked on."""


class Endpoints(Protocol):
    """All that a run calls."""

    @property
    def in_flight(self) -> int: ...

    @property
    def limit(self) -> int:
        """The most calls that may be in flight now, at all endpoints together."""
        ...

    @property
    def state(self) -> str:
        """Why an endpoint is not called now, in words; "" if all are."""
        ...

    @property
    def room(self) -> bool:
        """Whether no call waits for its turn."""
        ...

    async def wait_for_room(self) -> None:
        """Wait until there may be room."""
        ...

    def close(self, *, now: bool = False) -> None:
        """Let no further call start. `now`: those in flight are not waited for, either."""
        ...

    async def wait_until_quiet(self) -> None:
        """Wait until no call is in flight, once closed."""
        ...

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        """Return what counts as spent if this process is killed now."""
        ...


class CallGate:
    """Counts the calls in flight. Once closed it lets no call pass: callers wait until they are cancelled."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.closed = False
        self._quiet = asyncio.Event()

    async def enter(self, call: Call, request: Request) -> Reply:
        """Make a call."""
        if self.closed:
            await asyncio.get_running_loop().create_future()
        self.in_flight += 1
        try:
            return await call(request)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._quiet.set()

    def close(self, *, now: bool = False) -> None:
        """Let no further call start. `now`: `wait_until_quiet` does not wait for those in flight."""
        self.closed = True
        if now or not self.in_flight:
            self._quiet.set()
        else:
            self._quiet.clear()

    async def wait_until_quiet(self) -> None:
        """Wait until no call is in flight, once closed."""
        await self._quiet.wait()
        await asyncio.sleep(0)  # the caller of the last one receives its reply


@dataclass
class LimitedEndpoints:
    """Endpoints that are called directly, each within its own limits and at most `ceiling` calls at a time.

    `halt(reason, message)` is called when an endpoint cannot be called any more, `say` with what happens to one meanwhile.
    """

    limits: EndpointLimits
    ceiling: int
    halt: Callable[[str, str], object]
    say: Callable[[str], object]
    limiters: dict[str, EndpointLimiter] = field(default_factory=dict)
    gate: CallGate = field(default_factory=CallGate)

    def hold(self, call: Call, model: Model) -> Call:
        """Return a model's call within the limits of its endpoint."""
        return limit_endpoint(partial(self.gate.enter, call), self._limiter(model))

    def _limiter(self, model: Model) -> EndpointLimiter:
        address = str(getattr(model, "base_url", model.identity))
        if address not in self.limiters:
            own = self.limits
            start = min(own.initial_in_flight, self.ceiling)
            self.limiters[address] = EndpointLimiter(
                str(getattr(model, "host", model.name)),
                initial=max(start, own.min_in_flight),
                minimum=own.min_in_flight,
                maximum=self.ceiling,
                rpm=own.rpm,
                tpm=own.tpm,
                give_up_after=own.give_up_after,
                notify=self.say,
                on_fatal=self._halt,
                use_probes=getattr(model, "takes_probes", True),
            )
        return self.limiters[address]

    def _halt(self, error: ModelError) -> None:
        self.halt("fatal" if is_fatal(error) else "outage", f"{type(error).__name__}: {error}")

    def resize(self, ceiling: int, rpm: float | None, tpm: float | None) -> None:
        """Change the limits of all endpoints; a rate that had no limit gets none."""
        self.ceiling, self.limits = ceiling, replace(self.limits, rpm=rpm, tpm=tpm)
        for limiter in self.limiters.values():
            limiter.resize(ceiling, rpm, tpm)

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        """Return what counts as spent if this process is killed now: calls in flight included."""
        return tracker.spent_and_reserved

    @property
    def in_flight(self) -> int:
        return self.gate.in_flight

    def close(self, *, now: bool = False) -> None:
        self.gate.close(now=now)

    async def wait_until_quiet(self) -> None:
        await self.gate.wait_until_quiet()

    @property
    def room(self) -> bool:
        return all(limiter.free_slots > 0 for limiter in self.limiters.values())

    async def wait_for_room(self) -> None:
        waits = [asyncio.ensure_future(limiter.wait_for_slot()) for limiter in self.limiters.values() if limiter.free_slots <= 0]
        try:
            if waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @property
    def limit(self) -> int:
        return sum(limiter.limit for limiter in self.limiters.values())

    @property
    def state(self) -> str:
        return "; ".join(f"{limiter.name} {limiter.state}" for limiter in self.limiters.values() if limiter.state)
