"""A run in several processes: `ShardedExecutor` assigns the rows to shards, follows their workers,
and merges their results.

Row n belongs to shard n % shards. Every shard writes a journal of its own beside that of the run.
At the end, or when the run is started again, these are merged into the journal of the run and
removed, and the output is written from it, as if one process had done all the work. A `WorkerPool`,
such as that on Ray, starts the workers. When a worker dies, its pool starts it again and it
continues from its journal; when the coordinator dies, so do the workers, and the next run merges
their journals.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from ...loop.cancellation import cancel_and_wait
from ...middleware import BudgetTracker, EndpointCapabilities
from ...middleware.call_costs import LIMITS
from ...storage.journal import Journal
from ...storage.shard_merge import (
    checkpoint,
    merge_shard,
    remove_shard,
    shard_journal_path,
    shard_journals,
)
from ...tables.sources import Source
from ...usage import NO_USAGE, Usage, add_optional
from ..config import BatchConfig
from ..dataset import PendingRow
from ..endpoints import CallGate
from ..job import BatchJob, RowProcessor
from ..progress import BatchProgress, Mean
from ..scheduler import SOFT_ENDS, Scheduler
from .shard_protocol import (
    COUNTED,
    AssignedRow,
    Chunk,
    QuotaSplitter,
    ShardJob,
    ShardStatus,
    StopOrder,
    Worker,
    WorkerPool,
)

CHUNK = 256  # rows that are stored together
TICK = 0.25  # seconds between two exchanges with a worker
# seconds without an answer from a worker after which the coordinator checks whether the run has
# ended
CHECK_INTERVAL = 1.0
STOP_TIMEOUT = 10.0  # seconds that a worker has to end at once
MAX_DEATHS = 8  # deaths of a worker, without a finished row in between, that end the run


def merge_shards(journal: Journal) -> None:
    """Merge the shard journals beside a journal into it, and remove them. Raises StoreError.

    It may be interrupted and repeated: each shard journal is merged completely before it is
    removed, and its spending counts once.
    """
    for path in shard_journals(journal.path):
        for name, metadata in merge_shard(journal, path).items():
            _add_spent(
                journal, name, f"{metadata.get('attempt')}/{path.name}", metadata.get("spent", {})
            )
            _merge_capabilities(journal, name, metadata.get("capabilities", {}))
        journal.flush()
        remove_shard(path)


def _add_spent(journal: Journal, name: str, shard: str, spent: dict[str, float]) -> None:
    """Add what a shard has spent, once."""
    run = journal.run(name)
    metadata = run.metadata if run else {}
    merged_shards = metadata.get("merged_shards", [])
    if spent and shard not in merged_shards:
        sums = {
            limit: metadata.get("spent", {}).get(limit, 0.0) + spent.get(limit, 0.0)
            for limit in LIMITS
        }
        journal.update_run(name, spent=sums, merged_shards=[*merged_shards[-999:], shard])


def _merge_capabilities(journal: Journal, name: str, data: dict[str, Any]) -> None:
    """Add what a shard has learned about the endpoints."""
    if data:
        run, capabilities = journal.run(name), EndpointCapabilities()
        capabilities.restore(run.metadata.get("capabilities", {}) if run else {})
        capabilities.restore(data)
        journal.update_run(name, capabilities=capabilities.as_data())


@dataclass
class ShardedExecutor:
    """Has shards process the rows, then writes the output. This process calls a model only for rows
    that a shard has not finished.

    `models`: the writer, the graders and the judge that workers receive.
    """

    has_one_price = False

    pool: AbstractAsyncContextManager[WorkerPool]
    models: tuple[Any, Any, Any]
    say: Callable[[str], object]
    _assigned: bytearray = field(default_factory=bytearray)
    _usage: Usage = NO_USAGE
    _cache_savings: float | None = 0.0

    async def work(self, job: BatchJob) -> None:
        """Have shards process all rows, then merge their journals and write the output."""
        await job.scan_stopped_rows()
        await self._run_shards(job)
        # do not reopen rows again while writing
        was_raised, job.budget.was_raised = (job.budget.was_raised, False)
        await asyncio.to_thread(merge_shards, job.journal)
        await self._write_results(job)
        job.budget.was_raised = was_raised

    async def _run_shards(self, job: BatchJob) -> None:
        """Assign the rows that are not finished to shards, and follow these to their end. Without
        such rows none is started.
        """
        self._assigned = bytearray(job.summary.total)
        async with AsyncExitStack() as stack:
            unfinished = await stack.enter_async_context(aclosing(self._unfinished_rows(job)))
            first = await anext(unfinished, None)
            if first is None:
                return
            pool = await stack.enter_async_context(self.pool)
            writer, graders, judge = self.models
            pool.check(model=writer, graders=graders, judge=judge, settings=shard_config(job))
            chunks = await self._assign(job, pool, first, unfinished)
            if not job.scheduler.reason:
                await asyncio.to_thread(checkpoint, job.journal)
                await self._follow(job, pool, chunks)

    async def _unfinished_rows(self, job: BatchJob) -> AsyncGenerator[PendingRow, None]:
        """Yield the rows that shards must process; count the others."""
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
        """Store the rows in chunks; return the chunks of each shard."""
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
        """Start a worker for each shard, and follow them to their end. The job's endpoints are
        those of all shards meanwhile.
        """
        config, budget = job.config, job.session.options.budget
        shards = self._shard_jobs(job, chunks)
        quotas = QuotaSplitter(
            [shard.rows for shard in shards],
            config.options.max_in_flight,
            config.limits.rpm,
            config.limits.tpm,
            budget,
            dict(job.session.budget_tracker.spent) if budget else {},
        )
        remote, own = RemoteEndpoints(len(shards)), job.scheduler.endpoints
        coordinator = Coordinator(job.scheduler, quotas, remote, job.progress, self.say)
        job.scheduler.endpoints = remote
        try:
            await coordinator.follow([(pool.start_worker(), shard) for shard in shards])
        finally:
            job.scheduler.endpoints = own
            self._usage, self._cache_savings = coordinator.usage, coordinator.cache_savings

    def _shard_jobs(self, job: BatchJob, chunks: list[list[Chunk]]) -> list[ShardJob]:
        writer, graders, judge = self.models
        journal, attempt = job.journal.path.absolute(), uuid4().hex
        # workers receive rows in chunks
        dataset = replace(job.dataset, source=Source(job.dataset.source.name, _no_rows))
        return [
            ShardJob(
                config=shard_config(job, len(chunks)),
                dataset=dataset,
                model=writer,
                graders=graders,
                judge=judge,
                journal=shard_journal_path(journal, k, len(chunks)),
                run_journal=journal if len(job.journal.response_cache) else None,
                chunks=own_chunks,
                attempt=attempt,
                folder=str(Path.cwd()),
                ends_at=None if job.ends_at is None else time.time() + job.ends_at - monotonic(),
                rows=sum(self._assigned[k :: len(chunks)]),
                capabilities=job.session.capabilities.as_data(),
            )
            for k, own_chunks in enumerate(chunks)
        ]

    async def _write_results(self, job: BatchJob) -> None:
        """Write the results of all rows, and process those that no shard has finished."""
        before = job.progress
        job.progress = job.scheduler.progress = BatchProgress(
            before.total,
            before.read,
            bad=before.bad,
            usage=self._usage,
            cache_savings=self._cache_savings,
            started_at=before.started_at,
        )
        job.config = replace(job.config, retry=())
        if run := job.journal.run(job.config.name):
            job.session.budget_tracker.spent.update(run.metadata.get("spent", {}))
        processor = RowProcessor(job, finished_now=_AssignedNumbers(self._assigned))
        if not job.scheduler.reason:
            await job.scheduler.process(job.rows.read(), processor)
            return
        async with aclosing(job.rows.read()) as rows:
            async for row in rows:
                if result := processor.reusable_result(row):
                    processor.save(row, result, reused=True)
                elif job.scheduler.reason in SOFT_ENDS:
                    await processor.skip(row)


@dataclass(frozen=True)
class _AssignedNumbers:
    """The numbers of the rows that were assigned to shards in this run."""

    flags: bytearray

    def __contains__(self, n: object) -> bool:
        return isinstance(n, int) and n < len(self.flags) and bool(self.flags[n])


def shard_config(job: BatchJob, shards: int = 1) -> BatchConfig:
    """Return the configuration for a shard: the settings of the run with its priors, and its share
    of the limits.
    """
    limits, options = job.config.limits, job.config.options
    if job.online_priors:
        options = replace(options, priors=job.online_priors.schedule.start)
    initial, minimum = (
        max(1, n // shards) for n in (limits.initial_in_flight, limits.min_in_flight)
    )
    limits = replace(limits, initial_in_flight=initial, min_in_flight=minimum)
    local: dict[str, Any] = {
        "engine": "local",
        "shards": None,
        "ray_address": None,
        "processes": 1,
        "learn": False,
    }
    return replace(job.config, source=None, output=None, limits=limits, options=options, **local)


def _no_rows(_: Any) -> Any:
    return iter(())


@dataclass
class RemoteEndpoints:
    """The endpoints of all shards together, by their latest statuses. This process makes no
    call.
    """

    shards: int
    statuses: dict[int, ShardStatus] = field(default_factory=dict)
    in_flight: int = 0
    calls_made: int = 0
    now: bool = False
    gate: CallGate = field(default_factory=CallGate)
    free_slots = 1  # (no row starts in this process)

    def close(self, *, now: bool = False) -> None:
        """Remember `now` for the orders to the shards, which close their own endpoints."""
        self.now = self.now or now
        self.gate.close(now=now)

    async def wait_until_quiet(self) -> None:
        await self.gate.wait_until_quiet()

    async def wait_for_free_slots(self) -> None:
        """Do nothing."""

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        return tracker.spent_and_reserved

    @property
    def limit(self) -> int:
        return sum(status.limit for status in self.statuses.values())

    @property
    def state(self) -> str:
        missing = self.shards - len(self.statuses)
        starting = f"{missing} of {self.shards} shards are being started" if missing else ""
        states = dict.fromkeys(
            state
            for status in self.statuses.values()
            for state in status.state.split("; ")
            if state
        )
        return "; ".join(filter(None, (starting, *states)))


@dataclass
class Coordinator:
    """Follows the workers: exchanges quotas for statuses, sums up the statuses, and ends the run
    when a shard ends early.
    """

    scheduler: Scheduler[PendingRow]
    quotas: QuotaSplitter
    remote: RemoteEndpoints
    progress: BatchProgress
    say: Callable[[str], object]
    _before: BatchProgress = field(init=False)
    _usages: dict[tuple[int, str], Usage] = field(default_factory=dict)
    _savings: dict[tuple[int, str], float | None] = field(default_factory=dict)
    _deaths: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._before = copy(self.progress)

    @property
    def usage(self) -> Usage:
        """What all shards have paid, including processes that have died."""
        return sum(self._usages.values(), NO_USAGE)

    @property
    def cache_savings(self) -> float | None:
        """What the cached answers of all shards cost when they were made."""
        savings: float | None = reduce(add_optional, self._savings.values(), 0.0)
        return savings

    async def follow(self, shards: Sequence[tuple[Worker, ShardJob]]) -> None:
        """Follow all shards until they have ended."""
        tasks = [
            asyncio.ensure_future(self._follow_one(k, worker, shard))
            for k, (worker, shard) in enumerate(shards)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_and_wait(tasks)

    async def _follow_one(self, k: int, worker: Worker, shard: ShardJob) -> None:
        """Run a shard to its end, and exchange quotas meanwhile. If it must end at once and does
        not answer, abandon it.
        """
        running = asyncio.ensure_future(worker.run(shard))
        exchange: asyncio.Future[ShardStatus] | None = None
        try:
            while not running.done():
                exchange = exchange or asyncio.ensure_future(
                    worker.exchange_quota(self.quotas.next(k), self._order)
                )
                timeout = STOP_TIMEOUT if self.remote.now else CHECK_INTERVAL
                done, _ = await asyncio.wait(
                    (running, exchange), return_when=asyncio.FIRST_COMPLETED, timeout=timeout
                )
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

    @property
    def _order(self) -> StopOrder | None:
        scheduler = self.scheduler
        return (
            StopOrder(scheduler.reason, scheduler.message, now=self.remote.now)
            if scheduler.reason
            else None
        )

    def _update(self, k: int, status: ShardStatus, *, finished: bool = False) -> None:
        """Process the status of a shard."""
        self._count_deaths(k, status)
        self.remote.statuses[k] = status
        self._usages[k, status.process], self._savings[k, status.process] = (
            status.usage,
            status.cache_savings,
        )
        if status.use:
            self.quotas.update(k, status.use, finished=finished)
        for line in status.messages:
            self.say(f"shard {k + 1} of {self.remote.shards}: {line}")
        if status.reason and not self.scheduler.reason:
            self.scheduler.end(status.reason, status.message)
        self._sum_up()

    def _count_deaths(self, k: int, now: ShardStatus) -> None:
        """Count how often a worker has died without finishing a row in between, and end the run
        after MAX_DEATHS times.
        """
        before = self.remote.statuses.get(k)
        if before is None or before.process == now.process:
            if before and now.counts["done"] > before.counts["done"]:
                self._deaths[k] = 0
            return
        self._deaths[k] += 1
        self.say(f"shard {k + 1} of {self.remote.shards} died, and is started again")
        if self._deaths[k] >= MAX_DEATHS and not self.scheduler.reason:
            self.scheduler.end(
                "fatal",
                f"shard {k + 1} of {self.remote.shards} has died {MAX_DEATHS} times without "
                "finishing a row",
            )

    def _sum_up(self) -> None:
        """Set the progress of the run from the statuses of all shards."""
        statuses = self.remote.statuses.values()
        counts = {name: sum(status.counts[name] for status in statuses) for name in COUNTED}
        for name in ("done", "failed"):
            counts[name] += getattr(self._before, name)
        means: dict[str, Mean] = {}
        for name in ("first", "best"):
            parts: list[Mean] = [getattr(part, name) for part in (self._before, *statuses)]
            means[name] = Mean(sum(mean.n for mean in parts), sum(mean.sum for mean in parts))
        self.progress.set_counts(
            **counts, **means, usage=self.usage, cache_savings=self.cache_savings
        )
        self.remote.in_flight, self.remote.calls_made = counts["in_flight"], counts["calls_made"]
