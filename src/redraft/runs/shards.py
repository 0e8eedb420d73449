"""A run whose rows are worked on in several processes: who gets which, what each may use, and how it all comes together.

Row n goes to shard n % shards. Every shard keeps a journal of its own beside that of the run. At the end, or at the next
start, those are taken into the journal of the run and removed, and the output is written from that, as if one process
had done it all. How shards are started is the crew's business.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

from ..core.records import NO_USAGE, Usage
from ..middleware import EndpointCapabilities
from ..middleware.budget import LIMITS
from ..storage.journal import Journal
from ..storage.shard_merge import checkpoint, merge_shard, remove_shard, shard_journal_path, shard_journals
from ..tables.sources import Source
from .asked import Asked
from .endpoints import Endpoints
from .engine import MARKING, Due, Engine, Unheard
from .entries import Entry
from .part import COUNTED, Chunk, Errand, Handed, Order, Standing
from .progress import Mean, Progress
from .report import Report
from .rows import Came
from .shares import Money, Share, Shares

CHUNK = 256  # rows that are handed over at a time
TICK = 0.25  # seconds between two trades with a shard
AWHILE = 1.0  # seconds after which it is looked up whether a shard that does not answer is still wanted
ABANDONED = 10.0  # seconds that a shard is given to end at once
LIVES = 8  # deaths of a shard, with no row ended in between, that end the run


class Hand(Protocol):
    """A shard that works somewhere. A call waits while the shard is being made, or made again."""

    async def run(self, errand: Errand) -> Standing: ...

    async def trade(self, share: Share, order: Order | None) -> Standing: ...


class Crew(Protocol):
    """Who works: `shards` hands at most. `keep` puts rows where they can be got from, `hire` finds one."""

    @property
    def shards(self) -> int: ...

    def check(self, **sent: Any) -> None:
        """Raises ConfigError for what cannot be sent."""

    async def keep(self, rows: Sequence[Handed]) -> Chunk: ...

    def hire(self) -> Hand: ...


def gather(journal: Journal) -> None:
    """Take in what shards have left beside a journal, and remove it. Cut short, it can be done again. Raises StoreError."""
    for path in shard_journals(journal.path):
        for name, about in merge_shard(journal, path).items():
            _reckon(journal, name, f"{about.get('leg')}/{path.name}", about.get("spent", {}))
            _merge_capabilities(journal, name, about.get("capabilities", {}))
        journal.flush()
        remove_shard(path)


def _reckon(journal: Journal, name: str, part: str, spent: dict[str, float]) -> None:
    """Add what a part has spent, once."""
    run = journal.run(name)
    about = run.metadata if run else {}
    known = about.get("gathered", [])
    if spent and part not in known:
        sums = {limit: about.get("spent", {}).get(limit, 0.0) + spent.get(limit, 0.0) for limit in LIMITS}
        journal.update_run(name, spent=sums, gathered=[*known[-999:], part])


def _merge_capabilities(journal: Journal, name: str, learned: dict[str, Any]) -> None:
    """Add what a part has learned of the endpoints."""
    if learned:
        run, known = journal.run(name), EndpointCapabilities()
        known.restore(run.metadata.get("capabilities", {}) if run else {})
        known.restore(learned)
        journal.update_run(name, capabilities=known.as_data())


@dataclass
class Sharded(Engine):
    """The engine of a run in shards. Nothing is asked here, unless a shard has left something undone."""

    crew: AbstractAsyncContextManager[Crew] | None = None
    models: tuple[Any, Any, Any] = (None, None, None)
    _handed: bytearray = field(default_factory=bytearray)
    _usage: Usage = NO_USAGE

    async def go(self) -> Report:
        shown = self.progress
        try:
            return await super().go()
        finally:
            vars(shown).update(vars(self.progress))

    async def _work(self) -> None:
        await self._elsewhere()
        looked_at, self._grown = self._grown, False  # rows have been looked at once, and that will do
        await asyncio.to_thread(gather, self.journal)
        await self._together()
        self._grown = looked_at

    def quote(self) -> None:
        """There is no one price: every shard finds its own."""

    # --- apart

    async def _elsewhere(self) -> None:
        """Have the rows worked on that are not finished. Nobody is asked to when there are none."""
        self._handed = bytearray(self.survey.total)
        refused, self.refused = self.refused, Unheard()
        async with AsyncExitStack() as stack:
            stack.callback(setattr, self, "refused", refused)
            undone = await stack.enter_async_context(aclosing(self._undone()))
            first = await anext(undone, None)
            if first is None or self.crew is None:
                return
            crew = await stack.enter_async_context(self.crew)
            crew.check(model=self.models[0], graders=self.models[1], judge=self.models[2], settings=self._sent())
            chunks = await self._hand_out(crew, first, undone)
            if not self.ended:
                await asyncio.to_thread(checkpoint, self.journal)
                await self._led(crew, chunks)

    async def _undone(self) -> AsyncGenerator[Due, None]:
        """What is to be handed over."""
        async with aclosing(self._due()) as rows:
            async for due in rows:
                if self.ended:
                    return
                if came := self._kept(due):
                    self.progress.settle(came, kept=True)
                else:
                    yield due.again

    async def _hand_out(self, crew: Crew, first: Due, undone: AsyncIterator[Due]) -> list[list[Chunk]]:
        """All of it, by shard."""
        of = max(1, min(crew.shards, self.survey.total, self.asked.options.max_in_flight))
        chunks: list[list[Chunk]] = [[] for _ in range(of)]
        waiting: dict[int, list[Handed]] = defaultdict(list)
        await self._hand(crew, first, waiting, chunks)
        async for due in undone:
            await self._hand(crew, due, waiting, chunks)
        for k, rows in waiting.items():
            if rows:
                chunks[k].append(await crew.keep(rows))
        return chunks

    async def _hand(self, crew: Crew, due: Due, waiting: dict[int, list[Handed]], chunks: list[list[Chunk]]) -> None:
        n = due.entry.n
        k = n % len(chunks)
        self._handed[n] = True
        kept = self.journal.trace(self.asked.name, due.entry.id) if due.known else None
        waiting[k].append(Handed(due._replace(entry=replace(due.entry, values={})), kept))
        if len(waiting[k]) >= CHUNK:
            chunks[k].append(await crew.keep(waiting.pop(k)))

    async def _led(self, crew: Crew, chunks: list[list[Chunk]]) -> None:
        """Have it done, and follow it to its end."""
        errands = self._errands(chunks)
        asked, budget = self.asked, self.desk.options.budget
        shares = Shares(
            len(errands),
            asked.options.max_in_flight,
            asked.limits.rpm,
            asked.limits.tpm,
            budget,
            dict(self.desk.budget_tracker.spent) if budget else {},
        )
        afar = Afar(asked.limits, asked.options.max_in_flight, self.endpoints.halt, self.endpoints.say)
        here, self.endpoints = self.endpoints, afar
        lead = Lead(self, shares, afar, self.progress)
        try:
            await lead.follow([(crew.hire(), errand) for errand in errands])
        finally:
            self.endpoints, self._usage = here, lead.usage

    def _errands(self, chunks: list[list[Chunk]]) -> list[Errand]:
        model, graders, judge = self.models
        source = Source(self.table.source.name, _nothing)
        ends = None if self._moment is None else time.time() + self._moment - monotonic()
        behind = self.journal.path.absolute() if len(self.journal.response_cache) else None
        journal, leg = self.journal.path.absolute(), uuid4().hex
        table = replace(self.table, source=source)
        return [
            Errand(
                self._sent(len(chunks)), table, model, graders, judge,
                shard_journal_path(journal, k, len(chunks)), behind, own, leg, str(Path.cwd()), ends, sum(self._handed[k :: len(chunks)]),
                self.desk.capabilities.as_data(),
            )
            for k, own in enumerate(chunks)
        ]  # fmt: skip

    def _sent(self, of: int = 1) -> Asked:
        """What was asked, as far as shards must know, and what is believed."""
        limits, options = self.asked.limits, self.asked.options
        if self.schooling:
            options = replace(options, priors=self.schooling.start)
        limits = replace(limits, start=max(1, limits.start // of), floor=max(1, limits.floor // of))
        alone: dict[str, Any] = {"engine": "local", "shards": None, "ray_address": None, "learn": False}
        return replace(self.asked, source=None, output=None, limits=limits, options=options, **alone)

    # --- and together

    async def _together(self) -> None:
        """Write what came of all rows."""
        before = self.progress
        self.progress = Progress(before.total, before.read, bad=before.bad, usage=self._usage, started=before.started)
        self.asked = replace(self.asked, retry=())
        if known := self.journal.run(self.asked.name):
            self.desk.budget_tracker.spent.update(known.metadata.get("spent", {}))
        if not self.ended:
            return await super()._work()
        async with aclosing(self._due()) as rows:
            async for due in rows:
                if came := self._kept(due):
                    self._written(due.entry, came, kept=True)
                elif self.ended in MARKING:
                    self._written(due.entry, self._left(due), kept=False)
        return None

    def _written(self, entry: Entry, came: Came, *, kept: bool) -> None:
        """Rows that a shard has finished in this run were not kept from an earlier one."""
        super()._written(entry, came, kept=kept and not self._handed[entry.n])


def _nothing(_: Any) -> Any:
    return iter(())


@dataclass
class Afar(Endpoints):
    """The endpoints of all shards together, as far as one can see."""

    standings: dict[int, Standing] = field(default_factory=dict)
    of: int = 0
    now: bool = False

    def close(self, *, now: bool = False) -> None:
        """Have every shard close its own."""
        self.now = self.now or now
        super().close(now=now)

    @property
    def limit(self) -> int:
        return sum(standing.limit for standing in self.standings.values())

    @property
    def state(self) -> str:
        missing = self.of - len(self.standings)
        waiting = f"{missing} of {self.of} shards are being started" if missing else ""
        told = Counter(state for standing in self.standings.values() for state in standing.state.split("; ") if state)
        return "; ".join(filter(None, (waiting, *told)))


@dataclass
class Lead:
    """Follows shards: what they say is summed up, what they may use is divided anew, what ends one ends all."""

    engine: Sharded
    shares: Shares
    afar: Afar
    progress: Progress
    _before: Progress = field(init=False)
    _lives: dict[tuple[int, str], Usage] = field(default_factory=dict)
    _deaths: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._before = copy(self.progress)

    @property
    def usage(self) -> Usage:
        """What all have paid, in all their lives."""
        return sum(self._lives.values(), NO_USAGE)

    async def follow(self, sent: Sequence[tuple[Hand, Errand]]) -> None:
        """Until every shard has ended."""
        self.afar.of = len(sent)
        following = [asyncio.ensure_future(self._one(k, hand, errand)) for k, (hand, errand) in enumerate(sent)]
        try:
            await asyncio.gather(*following)
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _one(self, k: int, hand: Hand, errand: Errand) -> None:
        running = asyncio.ensure_future(hand.run(errand))
        trading: asyncio.Future[Standing] | None = None
        try:
            while not running.done():
                trading = trading or asyncio.ensure_future(hand.trade(self._share(k), self._order))
                patience = ABANDONED if self.afar.now else AWHILE
                done, _ = await asyncio.wait((running, trading), return_when=asyncio.FIRST_COMPLETED, timeout=patience)
                if not done and patience == ABANDONED:
                    return
                if trading.done():
                    self._heard(k, await trading)
                    trading = None
                    await asyncio.wait((running,), timeout=TICK)
            self._heard(k, await running, over=True)
        finally:
            for call in (running, trading):
                if call is not None:
                    call.cancel()

    def _share(self, k: int) -> Share:
        return replace(self.shares.next(k), each=self._each)

    @property
    def _each(self) -> Money:
        """What of the budget there is for each row that has not ended."""
        ended = sum(s.counts[name] for s in self.afar.standings.values() for name in ("done", "failed", "cut"))
        left = max(1, sum(self.engine._handed) - ended)  # noqa: SLF001
        return {name: money / left for name, money in self.shares.left().items()}

    @property
    def _order(self) -> Order | None:
        engine = self.engine
        return Order(engine.ended, engine.message, now=self.afar.now) if engine.ended else None

    def _heard(self, k: int, standing: Standing, *, over: bool = False) -> None:
        """Put together what is known now."""
        self._mourn(k, standing)
        self.afar.standings[k] = standing
        self._lives[k, standing.life] = standing.usage
        self.shares.learn(k, standing.use, over=over)
        for line in standing.said:
            self.afar.say(f"shard {k + 1} of {self.afar.of}: {line}")
        if standing.ended and not self.engine.ended:
            self.engine.end(standing.ended, standing.message)
        self._sum()

    def _mourn(self, k: int, now: Standing) -> None:
        """Count the deaths of a shard in a row, so that what kills it cannot go on for ever."""
        then = self.afar.standings.get(k)
        if then is None or then.life == now.life:
            if then and now.counts["done"] > then.counts["done"]:
                self._deaths[k] = 0
            return
        self._deaths[k] += 1
        self.afar.say(f"shard {k + 1} of {self.afar.of} died, and goes on from its journal")
        if self._deaths[k] >= LIVES and not self.engine.ended:
            self.engine.end("fatal", f"shard {k + 1} of {self.afar.of} has died {LIVES} times without finishing a row")

    def _sum(self) -> None:
        standings, progress = self.afar.standings.values(), self.progress
        counts = {name: sum(standing.counts[name] for standing in standings) for name in COUNTED}
        for name in ("done", "failed"):
            counts[name] += getattr(self._before, name)
        means = {name: _mean([getattr(s, name) for s in (self._before, *standings)]) for name in ("first", "best")}
        progress.take(**counts, **means, usage=self.usage)
        self.afar.in_flight = counts["in_flight"]


def _mean(means: Sequence[Mean]) -> Mean:
    return Mean(sum(mean.n for mean in means), sum(mean.sum for mean in means))
