"""The endpoints of a run: a gate for each, through which every call goes, and one door in front of all that closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial

from ..errors import ModelError
from ..middleware import Purse
from ..middleware.endpoint_limiter import Gate, gated, is_fatal
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
    gates: dict[str, Gate] = field(default_factory=dict)
    in_flight: int = 0
    _closed: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def hold(self, call: Call, model: Model) -> Call:
        """A model's call through its endpoint's gate. Once the door is closed it never returns: whoever waits is cancelled."""
        return gated(partial(self._through_the_door, call), self._gate(model))

    def _gate(self, model: Model) -> Gate:
        address = str(getattr(model, "base_url", model.identity))
        if address not in self.gates:
            own = self.limits
            start = min(own.start, self.ceiling)
            self.gates[address] = Gate(
                str(getattr(model, "host", model.name)),
                start=max(start, own.floor),
                floor=own.floor,
                ceiling=self.ceiling,
                rpm=own.rpm,
                tpm=own.tpm,
                outage=own.outage,
                say=self.say,
                halt=self._halted,
                probes=getattr(model, "takes_probes", True),
            )
        return self.gates[address]

    def billed(self, purse: Purse) -> dict[str, float]:
        """What counts as spent if this process is killed now: what is in flight, too."""
        return purse.taken

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
        return all(gate.room > 0 for gate in self.gates.values())

    async def room_made(self) -> None:
        """Until there may be room where there was none."""
        waits = [asyncio.ensure_future(gate.room_made()) for gate in self.gates.values() if gate.room <= 0]
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
