"""Rows that are worked on in several processes: which shard gets which row and quota, and how the results come together.

Row n goes to shard n % shards. Every shard keeps a journal of its own beside that of the run. At the end, or at the next start,
those are merged into the journal of the run and removed, and the output is written from that, as if one process had done it all.
How workers are started is the pool's business.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

from ...middleware import BudgetTracker, EndpointCapabilities
from ...middleware.call_costs import LIMITS
from ...storage.journal import Journal
from ...storage.shard_merge import checkpoint, merge_shard, remove_shard, shard_journal_path, shard_journals
from ...tables.sources import Source
from ...usage import NO_USAGE, Usage
from ..config import BatchConfig
from ..endpoints import CallGate
from ..job import BatchJob, RowProcessor
from ..pending_rows import PendingRow
from ..progress import BatchProgress, Mean
from ..scheduler import SOFT_ENDS, Scheduler
from .quotas import Amounts, Quota, QuotaSplitter
from .shard_worker import COUNTED, AssignedRow, Chunk, ShardJob, ShardStatus, StopOrder

CHUNK = 256  # rows that are handed over at a time
TICK = 0.25  # seconds between two exchanges with a shard
CHECK_INTERVAL = 1.0  # seconds after which it is checked whether a shard that does not answer is still wanted
STOP_TIMEOUT = 10.0  # seconds that a shard is given to end at once
MAX_DEATHS = 8  # deaths of a shard, with no row ended in between, that end the run


class Worker(Protocol):
    """A shard's worker, wherever it is. A call waits while the worker is being started, or started again."""

    async def run(self, shard: ShardJob) -> ShardStatus: ...

    async def exchange_quota(self, quota: Quota, order: StopOrder | None) -> ShardStatus: ...


class WorkerPool(Protocol):
    """Starts workers, `shards` of them at most."""

    @property
    def shards(self) -> int: ...

    def check(self, **values: Any) -> None:
        """Raises ConfigError for a value that cannot be sent to workers."""

    async def store(self, rows: Sequence[AssignedRow]) -> Chunk:
        """Store rows where workers can get them."""
        ...

    def start_worker(self) -> Worker: ...


def merge_shards(journal: Journal) -> None:
    """Merge what shards have left beside a journal, and remove it. It can be repeated if interrupted. Raises StoreError."""
    for path in shard_journals(journal.path):
        for name, about in merge_shard(journal, path).items():
            _add_spent(journal, name, f"{about.get('attempt')}/{path.name}", about.get("spent", {}))
            _merge_capabilities(journal, name, about.get("capabilities", {}))
        journal.flush()
        remove_shard(path)


def _add_spent(journal: Journal, name: str, part: str, spent: dict[str, float]) -> None:
    """Add what a shard has spent, once."""
    run = journal.run(name)
    about = run.metadata if run else {}
    known = about.get("merged_shards", [])
    if spent and part not in known:
        sums = {limit: about.get("spent", {}).get(limit, 0.0) + spent.get(limit, 0.0) for limit in LIMITS}
        journal.update_run(name, spent=sums, merged_shards=[*known[-999:], part])


def _merge_capabilities(journal: Journal, name: str, learned: dict[str, Any]) -> None:
    """Add what a shard has learned of the endpoints."""
    if learned:
        run, known = journal.run(name), EndpointCapabilities()
        known.restore(run.metadata.get("capabilities", {}) if run else {})
        known.restore(learned)
        journal.update_run(name, capabilities=known.as_data())


@dataclass
class ShardedExecutor:
    """Has shards work on the rows, then writes the output. This process calls no model, unless a shard leaves a row undone.

    `models`: the writer, the graders and the judge, as workers are to get them.
    """

    has_one_price = False

    pool: AbstractAsyncContextManager[WorkerPool]
    models: tuple[Any, Any, Any]
    say: Callable[[str], object]
    _assigned: bytearray = field(default_factory=bytearray)
    _usage: Usage = NO_USAGE

    async def work(self, job: BatchJob) -> None:
        """Have shards work on all rows until they have ended, or the run has; then merge and write their results."""
        await job.scan_stopped_rows()
        await self._run_shards(job)
        was_raised, job.budget.was_raised = job.budget.was_raised, False  # which rows are reopened is decided
        await asyncio.to_thread(merge_shards, job.journal)
        await self._write_results(job)
        job.budget.was_raised = was_raised

    async def _run_shards(self, job: BatchJob) -> None:
        """Hand over the rows that are not finished, and follow the shards; without such rows none is started."""
        self._assigned = bytearray(job.summary.total)
        async with AsyncExitStack() as stack:
            unfinished = await stack.enter_async_context(aclosing(self._unfinished_rows(job)))
            first = await anext(unfinished, None)
            if first is None:
                return
            pool = await stack.enter_async_context(self.pool)
            writer, graders, judge = self.models
            pool.check(model=writer, graders=graders, judge=judge, settings=_shard_config(job))
            chunks = await self._assign(job, pool, first, unfinished)
            if not job.scheduler.reason:
                await asyncio.to_thread(checkpoint, job.journal)
                await self._follow(job, pool, chunks)

    async def _unfinished_rows(self, job: BatchJob) -> AsyncGenerator[PendingRow, None]:
        """Yield the rows that are to be handed over."""
        processor = RowProcessor(job)
        async with aclosing(job.rows.read(reject=False)) as rows:
            async for row in rows:
                if job.scheduler.reason:
                    return
                if result := processor.reusable_result(row):
                    job.progress.count(result, reused=True)
                else:
                    yield row.as_unfinished

    async def _assign(
        self, job: BatchJob, pool: WorkerPool, first: PendingRow, others: AsyncIterator[PendingRow]
    ) -> list[list[Chunk]]:
        """Store all rows in chunks, by shard."""
        shards = max(1, min(pool.shards, job.summary.total, job.config.options.max_in_flight))
        chunks: list[list[Chunk]] = [[] for _ in range(shards)]
        waiting: dict[int, list[AssignedRow]] = defaultdict(list)

        async def assign(row: PendingRow) -> None:
            k = row.n % shards
            self._assigned[row.n] = True
            trace = job.journal.trace(job.config.name, row.id) if row.is_current else None
            waiting[k].append(AssignedRow(row._replace(entry=replace(row.entry, values={})), trace))
            if len(waiting[k]) >= CHUNK:
                chunks[k].append(await pool.store(waiting.pop(k)))

        await assign(first)
        async for row in others:
            await assign(row)
        for k, rows in waiting.items():
            if rows:
                chunks[k].append(await pool.store(rows))
        return chunks

    async def _follow(self, job: BatchJob, pool: WorkerPool, chunks: list[list[Chunk]]) -> None:
        """Start a worker for each shard, and follow them to their end."""
        config, budget = job.config, job.session.options.budget
        shards = self._shard_jobs(job, chunks)
        quotas = QuotaSplitter(
            len(shards),
            config.options.max_in_flight,
            config.limits.rpm,
            config.limits.tpm,
            budget,
            dict(job.session.budget_tracker.spent) if budget else {},
        )
        remote, local = RemoteEndpoints(len(shards)), job.scheduler.endpoints
        coordinator = Coordinator(job.scheduler, quotas, remote, job.progress, sum(self._assigned), self.say)
        job.scheduler.endpoints = remote
        try:
            await coordinator.follow([(pool.start_worker(), shard) for shard in shards])
        finally:
            job.scheduler.endpoints, self._usage = local, coordinator.usage

    def _shard_jobs(self, job: BatchJob, chunks: list[list[Chunk]]) -> list[ShardJob]:
        writer, graders, judge = self.models
        journal, attempt = job.journal.path.absolute(), uuid4().hex
        dataset = replace(job.dataset, source=Source(job.dataset.source.name, _no_rows))
        return [
            ShardJob(
                config=_shard_config(job, len(chunks)),
                dataset=dataset,
                model=writer,
                graders=graders,
                judge=judge,
                journal=shard_journal_path(journal, k, len(chunks)),
                run_journal=journal if len(job.journal.response_cache) else None,
                chunks=own,
                attempt=attempt,
                folder=str(Path.cwd()),
                ends_at=None if job.ends_at is None else time.time() + job.ends_at - monotonic(),
                rows=sum(self._assigned[k :: len(chunks)]),
                capabilities=job.session.capabilities.as_data(),
            )
            for k, own in enumerate(chunks)
        ]

    async def _write_results(self, job: BatchJob) -> None:
        """Write the results of all rows; work on those that a shard has left undone."""
        before = job.progress
        job.progress = job.scheduler.progress = BatchProgress(
            before.total, before.read, bad=before.bad, usage=self._usage, started_at=before.started_at
        )
        job.config = replace(job.config, retry=())
        if known := job.journal.run(job.config.name):
            job.session.budget_tracker.spent.update(known.metadata.get("spent", {}))
        processor = RowProcessor(job, fresh=_AssignedRows(self._assigned))
        if not job.scheduler.reason:
            await job.scheduler.process(job.rows.read(), processor)
            return
        async with aclosing(job.rows.read()) as rows:
            async for row in rows:
                if result := processor.reusable_result(row):
                    processor.save(row, result, reused=True)
                elif job.scheduler.reason in SOFT_ENDS:
                    processor.skip(row)


@dataclass(frozen=True)
class _AssignedRows:
    """The numbers of the rows that shards have worked on in this run."""

    flags: bytearray

    def __contains__(self, n: object) -> bool:
        return isinstance(n, int) and n < len(self.flags) and bool(self.flags[n])


def _shard_config(job: BatchJob, shards: int = 1) -> BatchConfig:
    """Return the run's configuration as far as shards need it, with its priors."""
    limits, options = job.config.limits, job.config.options
    if job.online_priors:
        options = replace(options, priors=job.online_priors.schedule.start)
    initial, least = (max(1, n // shards) for n in (limits.initial_in_flight, limits.min_in_flight))
    limits = replace(limits, initial_in_flight=initial, min_in_flight=least)
    local: dict[str, Any] = {"engine": "local", "shards": None, "ray_address": None, "learn": False}
    return replace(job.config, source=None, output=None, limits=limits, options=options, **local)


def _no_rows(_: Any) -> Any:
    return iter(())


@dataclass
class RemoteEndpoints:
    """The endpoints of all shards together, as far as they have reported. No call is made here."""

    shards: int
    statuses: dict[int, ShardStatus] = field(default_factory=dict)
    in_flight: int = 0
    now: bool = False
    gate: CallGate = field(default_factory=CallGate)

    def close(self, *, now: bool = False) -> None:
        """Have every shard close its own endpoints."""
        self.now = self.now or now
        self.gate.close(now=now)

    async def wait_until_quiet(self) -> None:
        await self.gate.wait_until_quiet()

    room = True

    async def wait_for_room(self) -> None:
        """Return at once: there always is."""

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        return tracker.spent_and_reserved

    @property
    def limit(self) -> int:
        return sum(status.limit for status in self.statuses.values())

    @property
    def state(self) -> str:
        missing = self.shards - len(self.statuses)
        waiting = f"{missing} of {self.shards} shards are being started" if missing else ""
        states = Counter(state for status in self.statuses.values() for state in status.state.split("; ") if state)
        return "; ".join(filter(None, (waiting, *states)))


@dataclass
class Coordinator:
    """Follows shards: sums up their statuses, divides what they may use, and ends all when one ends.

    `rows`: how many were assigned to them.
    """

    scheduler: Scheduler[PendingRow]
    quotas: QuotaSplitter
    remote: RemoteEndpoints
    progress: BatchProgress
    rows: int
    say: Callable[[str], object]
    _before: BatchProgress = field(init=False)
    _usages: dict[tuple[int, str], Usage] = field(default_factory=dict)
    _deaths: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._before = copy(self.progress)

    @property
    def usage(self) -> Usage:
        """What all shards have paid, in all their lives."""
        return sum(self._usages.values(), NO_USAGE)

    async def follow(self, shards: Sequence[tuple[Worker, ShardJob]]) -> None:
        """Follow all shards until they have ended."""
        following = [asyncio.ensure_future(self._follow_one(k, worker, shard)) for k, (worker, shard) in enumerate(shards)]
        try:
            await asyncio.gather(*following)
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _follow_one(self, k: int, worker: Worker, shard: ShardJob) -> None:
        running = asyncio.ensure_future(worker.run(shard))
        exchange: asyncio.Future[ShardStatus] | None = None
        try:
            while not running.done():
                exchange = exchange or asyncio.ensure_future(worker.exchange_quota(self._quota(k), self._order))
                timeout = STOP_TIMEOUT if self.remote.now else CHECK_INTERVAL
                done, _ = await asyncio.wait((running, exchange), return_when=asyncio.FIRST_COMPLETED, timeout=timeout)
                if not done and timeout == STOP_TIMEOUT:
                    return
                if exchange.done():
                    self._update(k, await exchange)
                    exchange = None
                    await asyncio.wait((running,), timeout=TICK)
            self._update(k, await running, finished=True)
        finally:
            for call in (running, exchange):
                if call is not None:
                    call.cancel()

    def _quota(self, k: int) -> Quota:
        return replace(self.quotas.next(k), per_row=self._per_row)

    @property
    def _per_row(self) -> Amounts:
        """What is left of the budget for each row that has not ended."""
        ended = sum(s.counts[name] for s in self.remote.statuses.values() for name in ("done", "failed", "unfinished"))
        left = max(1, self.rows - ended)
        return {name: amount / left for name, amount in self.quotas.left().items()}

    @property
    def _order(self) -> StopOrder | None:
        scheduler = self.scheduler
        return StopOrder(scheduler.reason, scheduler.message, now=self.remote.now) if scheduler.reason else None

    def _update(self, k: int, status: ShardStatus, *, finished: bool = False) -> None:
        """Take note of a shard's status."""
        self._count_deaths(k, status)
        self.remote.statuses[k] = status
        self._usages[k, status.life] = status.usage
        self.quotas.update(k, status.use, finished=finished)
        for line in status.messages:
            self.say(f"shard {k + 1} of {self.remote.shards}: {line}")
        if status.reason and not self.scheduler.reason:
            self.scheduler.end(status.reason, status.message)
        self._sum_up()

    def _count_deaths(self, k: int, now: ShardStatus) -> None:
        """Count the deaths of a shard in a row, and end the run if it dies again and again."""
        before = self.remote.statuses.get(k)
        if before is None or before.life == now.life:
            if before and now.counts["done"] > before.counts["done"]:
                self._deaths[k] = 0
            return
        self._deaths[k] += 1
        self.say(f"shard {k + 1} of {self.remote.shards} died, and is resumed from its journal")
        if self._deaths[k] >= MAX_DEATHS and not self.scheduler.reason:
            self.scheduler.end(
                "fatal", f"shard {k + 1} of {self.remote.shards} has died {MAX_DEATHS} times without finishing a row"
            )

    def _sum_up(self) -> None:
        statuses = self.remote.statuses.values()
        counts = {name: sum(status.counts[name] for status in statuses) for name in COUNTED}
        for name in ("done", "failed"):
            counts[name] += getattr(self._before, name)
        means: Mapping[str, Mean] = {
            name: _sum_of_means([getattr(s, name) for s in (self._before, *statuses)]) for name in ("first", "best")
        }
        self.progress.set_counts(**counts, **means, usage=self.usage)
        self.remote.in_flight = counts["in_flight"]


def _sum_of_means(means: Sequence[Mean]) -> Mean:
    return Mean(sum(mean.n for mean in means), sum(mean.sum for mean in means))
