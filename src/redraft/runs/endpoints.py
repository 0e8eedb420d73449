"""The endpoints of a run: a gate for each, through which every call goes, and one door in front of all that closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial

from ..errors import ModelError
from ..middleware import BudgetTracker
from ..middleware.endpoint_limiter import EndpointLimiter, is_fatal, limit_endpoint
from ..protocols import Call, Model, Reply, Request
from .asked import Limits

ROW: ContextVar[str] = ContextVar("row", default="")
"""The id of the row that is worked on."""


@dataclass
class Endpoints:
    """`halt(ended, message)` is told when an endpoint cannot be asked any more, `say` what happens to one meanwhile."""

    limits: Limits
    ceiling: int
    halt: Callable[[str, str], object]
    say: Callable[[str], object]
    gates: dict[str, EndpointLimiter] = field(default_factory=dict)
    in_flight: int = 0
    _closed: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def hold(self, call: Call, model: Model) -> Call:
        """A model's call through its endpoint's gate. Once the door is closed it never returns: whoever waits is cancelled."""
        return limit_endpoint(partial(self._through_the_door, call), self._gate(model))

    def _gate(self, model: Model) -> EndpointLimiter:
        address = str(getattr(model, "base_url", model.identity))
        if address not in self.gates:
            own = self.limits
            start = min(own.start, self.ceiling)
            self.gates[address] = EndpointLimiter(
                str(getattr(model, "host", model.name)),
                initial=max(start, own.floor),
                minimum=own.floor,
                maximum=self.ceiling,
                rpm=own.rpm,
                tpm=own.tpm,
                give_up_after=own.outage,
                notify=self.say,
                on_fatal=self._halted,
                use_probes=getattr(model, "takes_probes", True),
            )
        return self.gates[address]

    def billed(self, purse: BudgetTracker) -> dict[str, float]:
        """What counts as spent if this process is killed now: what is in flight, too."""
        return purse.spent_and_reserved

    def resize(self, ceiling: int, rpm: float | None, tpm: float | None) -> None:
        """Change what each endpoint may be asked; a rate that had no limit gets none."""
        self.ceiling, self.limits = ceiling, replace(self.limits, rpm=rpm, tpm=tpm)
        for gate in self.gates.values():
            gate.resize(ceiling, rpm, tpm)

    def _halted(self, error: ModelError) -> None:
        self.halt("fatal" if is_fatal(error) else "outage", f"{type(error).__name__}: {error}")

    async def _through_the_door(self, call: Call, request: Request) -> Reply:
        if self._closed:
            await asyncio.get_running_loop().create_future()
        self.in_flight += 1
        try:
            return await call(request)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._arrived.set()

    def close(self, *, now: bool = False) -> None:
        """Let no call begin any more. `now`: those in flight are not waited for, either."""
        self._closed = True
        if now or not self.in_flight:
            self._arrived.set()
        else:
            self._arrived.clear()

    async def quiet(self) -> None:
        """Once the door is closed: until all that was in flight has arrived."""
        await self._arrived.wait()
        await asyncio.sleep(0)  # whoever waited for the last answer has it now

    @property
    def room(self) -> bool:
        """Whether no call waits anywhere."""
        return all(gate.free_slots > 0 for gate in self.gates.values())

    async def room_made(self) -> None:
        """Until there may be room where there was none."""
        waits = [asyncio.ensure_future(gate.wait_for_slot()) for gate in self.gates.values() if gate.free_slots <= 0]
        try:
            if waits:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @property
    def limit(self) -> int:
        """How many calls may be in flight now, at all endpoints together."""
        return sum(gate.limit for gate in self.gates.values())

    @property
    def state(self) -> str:
        """Why an endpoint is not asked now, in words; "" where all are."""
        return "; ".join(f"{gate.name} {gate.state}" for gate in self.gates.values() if gate.state)
