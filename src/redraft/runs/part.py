"""One shard of a run: an engine over a part of the rows, with a journal of its own and no output. It knows no others.

It is made where it works, which may be another machine, and may be killed and made again at any time: all that it needs
is in its errand, all that it did is in its journal. What it may use it is told with every `trade`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple, cast
from uuid import uuid4

from ..core.records import Usage
from ..core.serialize import record_to_json
from ..core.trace import Trace
from ..errors import BudgetExhaustedError, StoreError
from ..middleware.budget import ZERO_AMOUNTS, Budget, BudgetTracker, BudgetWaiter, CostEstimate, Grant, Reservation
from ..plans.adaptive import CostUnit
from ..protocols import Reply
from ..session import Session
from ..storage.journal import Journal
from ..storage.shard_merge import OverlayCache, SnapshotReader, open_when_released
from .asked import Asked
from .endpoints import Endpoints
from .engine import Due, Engine, Nowhere, Unheard, desk_of, keep_capabilities
from .entries import Survey, Table
from .market import SCALE
from .progress import Mean, Progress
from .shares import Money, Share, Use

SHARED = "the journal must lie on a file system that all machines share"


class Handed(NamedTuple):
    """A row that a shard is to work on, and what there is of it in the journal of the whole."""

    due: Due
    trace: Trace | None


Chunk = Callable[[], Sequence[Handed]]


@dataclass(frozen=True)
class Errand:
    """Everything that a shard must know, in values that can be sent. `ends`: when the run is to be over, by the wall clock.

    `journal` is its own, `behind` that of the whole where calls may be in it, `leg` the name of this going of the run, `rows` how
    many there are in all its chunks, `capabilities` what is known of the endpoints.
    """

    asked: Asked
    table: Table
    model: Any
    graders: Any
    judge: Any
    journal: Path
    behind: Path | None
    chunks: Sequence[Chunk]
    leg: str
    folder: str
    ends: float | None
    rows: int = 0
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Order:
    """How a shard is to end."""

    ended: str
    message: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a shard stands. `life` is another after every time that it was killed; `usage` is that of this life."""

    life: str
    use: Use
    counts: Mapping[str, int]
    usage: Usage
    first: Mean
    best: Mean
    limit: int = 0
    state: str = ""
    said: tuple[str, ...] = ()
    ended: str = ""
    message: str = ""


COUNTED = ("done", "failed", "cut", "not_started", "under_way", "in_flight")


class Allowance(BudgetTracker):
    """A part of a budget. Who needs more than is left of it waits until there is more, or never will be.

    What is set aside is `written` down before it is spent, so that no death makes it be forgotten.
    """

    def __init__(self) -> None:
        super().__init__(Budget())
        self.refused = ""
        self.each: Money = {}
        self.written: Callable[[], Awaitable[None]] | None = None
        self._news = asyncio.Event()

    @property
    def short(self) -> Mapping[str, float] | None:
        """The least that somebody waits for."""
        return min(filter(self.exceeded_limit, self.waiting_minimums), key=lambda need: (need["usd"], need["tokens"]), default=None)

    async def changed(self) -> None:
        """Until there may be more."""
        self._news.clear()
        await self._news.wait()

    def check(self, amounts: Mapping[str, float]) -> None:
        """Raise BudgetExhaustedError where there will never be enough: that is known once it was refused."""
        if self.refused and (name := self.exceeded_limit(amounts)):
            raise BudgetExhaustedError(self.refused, limit=name)

    async def reserve(self, need: Callable[[], CostEstimate], reservation: Reservation | None = None) -> Grant:
        """Set `need` aside. Raises BudgetExhaustedError when there will never be enough."""
        grant = await super().reserve(need, reservation)
        if self.written is not None:
            await self._write(self.written, grant)
        return grant

    async def _write(self, written: Callable[[], Awaitable[None]], grant: Grant) -> None:
        try:
            await written()
        except BaseException:
            self.settle(grant, ZERO_AMOUNTS)
            raise

    def _refusal(self, waiter: BudgetWaiter) -> BudgetExhaustedError | None:
        """There may be more."""
        return None

    def _serve(self, *, patient: bool = True) -> None:
        self._news.set()
        super()._serve(patient=patient)


@dataclass
class Part(Engine):
    """An engine over rows that were handed to it."""

    chunks: Sequence[Chunk] = ()
    purse: Allowance = field(default_factory=Allowance)
    rows: int = 0
    _pot: float | None = None
    _stood: tuple[int, float] | None = None

    @property
    def _to_do(self) -> int:
        return self.rows

    def _money(self, unit: CostUnit) -> float:
        """What all may still spend, as far as it is for the rows of this part: as it was told last, less what was spent since."""
        spent = self.purse.spent[unit] / SCALE[unit]
        if self._pot is None:
            self._pot = self.purse.each.get(unit, 0.0) / SCALE[unit] * self.rows + spent
        return max(0.0, self._pot - spent)

    def stood(self) -> None:
        """It is told now where this part stands; what is granted next follows from that."""
        if market := self.market:
            self._stood = market.waiting + len(market.under_way), self.purse.spent[market.unit] / SCALE[market.unit]

    def granted(self, each: Money) -> None:
        """There is so much for each row that had not ended when it was told where this part stands."""
        if self._stood and self.market:
            rows, spent = self._stood
            self._pot = each.get(self.market.unit, 0.0) / SCALE[self.market.unit] * rows + spent

    async def _due(self) -> AsyncGenerator[Due, None]:
        """The rows handed over; what this journal lacks of them is put there first."""
        for chunk in self.chunks:
            handed = await asyncio.to_thread(chunk)
            known = self.journal.rows_by_id(self.asked.name, [due.entry.id for due, _ in handed])
            for due, trace in handed:
                note = known.get(due.entry.id)
                if note is None and trace is not None:
                    self._take_over(due, trace)
                    note = due.note
                yield due._replace(note=note)

    async def _room(self) -> bool:
        """Nor does a row begin while those under way wait for money."""
        while await super()._room():
            if self.purse.short is None:
                return True
            await self._next_turn(self.purse.changed())
        return False

    def _take_over(self, due: Due, trace: Trace) -> None:
        run, row = self.asked.name, due.entry
        self.journal.begin_row(run, row.id, row.n, due.key, due.parts, replace(trace, records=()).header())
        if trace.records:
            self.journal.append_records(run, row.id, 0, [record_to_json(r) for r in trace.records])
        if due.note and due.note.result is not None:
            self.journal.finish_row(run, row.id, due.note.status, due.note.result)


class Shard:
    """What works on a part of the rows: `run` does it all, `trade` takes orders meanwhile and tells how it stands."""

    def __init__(self) -> None:
        self._life = uuid4().hex
        self._share = Share()
        self._order: Order | None = None
        self._engine: Part | None = None
        self._purse = Allowance()
        self._begin = asyncio.Event()
        self._said: list[str] = []

    async def run(self, errand: Errand) -> Standing:
        """Every row to its end, once there is a share to work with; what came of it."""
        await self._begin.wait()
        broke: tuple[str, str] | None = None
        try:
            async with AsyncExitStack() as opened:
                self._engine = engine = await self._opened(errand, opened)
                self._apply()
                await engine.go()
        except Exception as error:  # noqa: BLE001  (the boundary: what ends a shard is told, and ends the run)
            broke = ("disk" if isinstance(error, StoreError) else "fatal"), str(error) or type(error).__name__
        standing = self._standing()
        return replace(standing, ended=broke[0], message=broke[1]) if broke else standing

    async def trade(self, share: Share, order: Order | None = None) -> Standing:
        """Keep to a share from now on, and heed an order."""
        self._share, self._order = share, order or self._order
        self._apply()
        if share.in_flight or order:
            self._begin.set()
        return self._standing()

    def _apply(self) -> None:
        share, engine = self._share, self._engine
        self._purse.refused, self._purse.each = share.refused, share.each
        self._purse.set_budget(Budget(**cast("Any", share.money)))
        if engine is None:
            return
        engine.granted(share.each)
        if share.in_flight:
            engine.endpoints.resize(share.in_flight, share.rpm, share.tpm)
            engine.desk.options = replace(engine.desk.options, max_in_flight=share.in_flight)
        if order := self._order:
            engine.end(order.ended, order.message, now=order.now)

    async def _opened(self, errand: Errand, opened: AsyncExitStack) -> Part:
        """Everything that a shard holds open."""
        asked = self._asked(errand)
        with suppress(OSError):  # a folder that is not there is not needed, or what is looked for in it is missed later
            os.chdir(errand.folder)
        if not errand.journal.parent.is_dir():
            raise StoreError(f"there is no folder {str(errand.journal.parent)!r} on {gethostname()}; {SHARED}")
        journal = await asyncio.to_thread(open_when_released, partial(Journal, errand.journal, durability=asked.durability))
        opened.callback(journal.close)
        endpoints = Endpoints(asked.limits, asked.options.max_in_flight, self._halted, self._said.append)
        options = replace(asked.options, cache=_calls(journal, errand.behind, opened))
        purse = self._purse if options.budget else None
        desk, plan = await desk_of(asked, errand.model, errand.graders, errand.judge, options, endpoints.hold, purse)
        opened.push_async_callback(desk.close)
        self._keep_money(desk, asked.name, journal)
        desk.capabilities.restore(errand.capabilities)
        keep_capabilities(desk, asked.name, journal)
        journal.update_run(asked.name, leg=errand.leg)
        return Part(
            asked, errand.table, Survey(), desk, plan, journal, Nowhere(), Unheard(), endpoints, Progress(),
            chunks=errand.chunks, purse=self._purse, rows=errand.rows,
        )  # fmt: skip

    def _asked(self, errand: Errand) -> Asked:
        """What was asked of the run, as far as it is this shard's."""
        asked, share, ends = errand.asked, self._share, errand.ends
        options = replace(
            asked.options,
            max_in_flight=max(1, share.in_flight),
            deadline=None if ends is None else max(0.0, ends - time.time()),
        )
        limits = replace(
            asked.limits,
            floor=min(asked.limits.floor, options.max_in_flight),
            rpm=share.rpm,
            tpm=share.tpm,
        )
        return replace(asked, options=options, limits=limits)

    def _keep_money(self, desk: Session, name: str, journal: Journal) -> None:
        """What is spent stands in the journal, so that it counts in the next life, too."""
        if not desk.options.budget:
            return
        known = journal.run(name)
        self._purse.spent.update(known.metadata.get("spent", {}) if known else {})
        self._purse.written = journal.wait_for_commit
        self._purse.on_change = lambda: journal.update_run(name, spent=self._purse.spent_and_reserved)

    def _halted(self, ended: str, message: str) -> None:
        if self._engine:
            self._engine.end(ended, message)

    def _standing(self) -> Standing:
        engine, purse = self._engine, self._purse
        money: dict[str, Any] = dict(spent=dict(purse.spent), taken=purse.committed, short=purse.short)
        if engine is None:
            return Standing(self._life, Use(self._share, **money), dict.fromkeys(COUNTED, 0), Usage(), Mean(), Mean())
        engine.stood()
        progress, endpoints = engine.progress, engine.endpoints
        progress.in_flight = endpoints.in_flight
        pressed = not endpoints.room or purse.short is not None
        said, self._said[:] = tuple(self._said), []
        return Standing(
            self._life,
            Use(self._share, endpoints.in_flight, pressed, **money),
            {name: getattr(progress, name) for name in COUNTED},
            progress.usage,
            progress.first,
            progress.best,
            endpoints.limit,
            endpoints.state,
            said,
            engine.ended,
            engine.message,
        )


def _calls(journal: Journal, behind: Path | None, opened: AsyncExitStack) -> MutableMapping[str, Reply]:
    """The call cache of a journal, with that of the whole run behind it."""
    if behind is None:
        return journal.response_cache
    still = SnapshotReader(behind)
    opened.callback(still.close)
    return OverlayCache(journal.response_cache, still)
