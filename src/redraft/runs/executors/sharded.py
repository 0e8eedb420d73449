"""A run with several workers: `ShardedExecutor` hands out the rows, follows the workers, and merges
what they have done.

Each worker has a shard: the rows that it receives, a few at a time (`RowFeed`), and a journal of
its own beside that of the run. It sends the results of its rows, from which this process writes
the output as a run in one process does. At the end, or when the run is started again, the journals
of the shards are merged into that of the run and removed. A `WorkerPool` starts the workers, in
processes of this machine or on Ray. When a worker dies, another process takes its place, and
continues from the journal of the shard; when the coordinator dies, so do the workers, and the next
run merges their journals.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from ...errors import ConfigError, StoreError
from ...loop.engine import cancel_and_wait
from ...middleware import Budget, BudgetTracker, EndpointCapabilities
from ...middleware.call_costs import LIMITS
from ...storage.journal import Journal
from ...storage.shard_merge import (
    merge_shard,
    reading_snapshot,
    remove_shard,
    shard_journal_path,
    shard_journals,
)
from ...tables.sources import Source
from ...usage import NO_USAGE, Usage, add_optional
from ..config import BatchConfig
from ..dataset import PendingRow
from ..endpoints import CallGate
from ..job import BatchJob
from ..progress import BatchProgress
from ..scheduler import SOFT_ENDS, Scheduler
from .row_feed import RowFeed
from .shard_protocol import (
    AssignedRow,
    Orders,
    QuotaSplitter,
    ShardJob,
    ShardStatus,
    StopOrder,
    Worker,
    WorkerPool,
)

ROW_WAIT = 0.05  # seconds that orders wait for rows that a worker needs
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
    """Has workers process the rows. This process calls a model only for rows that no worker has
    finished.

    `models`: the writer, the graders and the judge that workers receive.
    """

    has_one_price = False

    pool: AbstractAsyncContextManager[WorkerPool]
    models: tuple[Any, Any, Any]
    say: Callable[[str], object]

    async def work(self, job: BatchJob) -> None:
        """Process all rows."""
        await job.scan_stopped_rows()
        async with aclosing(job.rows.read()) as rows:
            feed = RowFeed(job, rows)
            if online := job.online_priors:
                online.wait_until = feed.wait_until
            filling = asyncio.ensure_future(feed.fill())
            try:
                if await feed.has_rows():
                    async with self.pool as pool:
                        await self._run_workers(job, feed, pool)
                await filling
            except BaseException:
                with suppress(StoreError):  # it is done by the next start
                    await asyncio.to_thread(merge_shards, job.journal)
                raise
            finally:
                await cancel_and_wait([filling])
            await asyncio.to_thread(merge_shards, job.journal)
            spent = job.journal.metadata(job.config.name).get("spent", {})
            job.session.models.budget_tracker.spent.update(spent)
            feed.end()
            await self._process_others(job, feed)

    async def _run_workers(self, job: BatchJob, feed: RowFeed, pool: WorkerPool) -> None:
        """Run the workers to their end. The job's endpoints are those of all workers meanwhile."""
        limits, most = job.config.limits, job.config.options.max_in_flight
        feed.workers = max(1, min(pool.size, job.summary.total, most))
        shards = self._shard_jobs(job, feed.workers)
        check_sendable(pool, shards[0])
        quotas = QuotaSplitter(
            [shard.rows for shard in shards],
            most,
            limits.rpm,
            limits.tpm,
            job.session.options.budget,
            dict(job.session.models.budget_tracker.spent),
        )
        remote, own = RemoteEndpoints(feed.workers), job.scheduler.endpoints
        coordinator = Coordinator(job.scheduler, quotas, remote, job.progress, feed, pool, self.say)
        job.note_spent()  # what the shards spend is added when they are merged
        job.scheduler.endpoints = remote
        try:
            has_cache = shards[0].run_journal is not None
            of_any_machine = has_cache and job.config.ray
            async with reading_snapshot(job.journal) if of_any_machine else nullcontext():
                await coordinator.follow([(pool.start_worker(), shard) for shard in shards])
        finally:
            job.scheduler.endpoints = own
            if online := job.online_priors:
                online.second_looks += coordinator.second_looks

    def _shard_jobs(self, job: BatchJob, size: int) -> list[ShardJob]:
        writer, graders, judge = self.models
        journal, attempt = job.journal.path.absolute(), uuid4().hex
        schedule = job.online_priors.schedule if job.online_priors else None
        return [
            ShardJob(
                config=shard_config(job, size),
                # rows come with orders
                dataset=replace(job.dataset, source=Source(job.dataset.source.name, _no_rows)),
                model=writer,
                graders=graders,
                judge=judge,
                journal=shard_journal_path(journal, k, size),
                run_journal=journal if len(job.journal.response_cache) else None,
                attempt=attempt,
                folder=str(Path.cwd()),
                ends_at=None if job.ends_at is None else time.time() + job.ends_at - monotonic(),
                rows=-(-job.share.rows_left() // size),
                capabilities=job.session.models.capabilities.as_data(),
                schedule=schedule and schedule.without_rows(),
            )
            for k in range(size)
        ]

    async def _process_others(self, job: BatchJob, feed: RowFeed) -> None:
        """Process the rows that no worker has finished; if the run has ended softly, save their
        best answers so far.
        """
        reason = job.scheduler.reason
        if not reason:
            await job.scheduler.process(feed.unfinished_rows(), feed.processor)
        elif reason in SOFT_ENDS:
            async with aclosing(feed.unfinished_rows()) as rows:
                async for row in rows:
                    if await feed.processor.visit(row):
                        await feed.processor.skip(row)


def shard_config(job: BatchJob, shards: int) -> BatchConfig:
    """Return the configuration for a shard: the settings of the run, with its share of the limits,
    and with a budget, which also counts what is spent if it has no limit.
    """
    limits, options = job.config.limits, job.config.options
    initial, minimum = (
        max(1, n // shards) for n in (limits.initial_in_flight, limits.min_in_flight)
    )
    if job.online_priors:
        options = replace(options, priors=job.online_priors.schedule.start)
    return replace(
        job.config,
        source=None,
        output=None,
        workers=None,
        ray=None,
        learn=False,
        limits=replace(limits, initial_in_flight=initial, min_in_flight=minimum),
        options=replace(options, budget=options.budget or Budget()),
    )


def _no_rows(_: Any) -> Any:
    return iter(())


def check_sendable(pool: WorkerPool, shard: ShardJob) -> None:
    """Raise ConfigError for a model, grader or setting that cannot be sent to another process."""
    try:
        pool.dumps(shard)
    except Exception:  # an object may raise anything when it is pickled
        for name in ("model", "graders", "judge", "config"):
            _check_value(pool, name, getattr(shard, name))
        raise


def _dump_rows(pool: WorkerPool, rows: Sequence[AssignedRow]) -> bytes:
    """Return rows as bytes. Raises ConfigError for one that cannot be sent to another process."""
    try:
        return pool.dumps(rows)
    except Exception as error:  # an object may raise anything when it is pickled
        for row, _ in rows:
            for name, value in row.entry.task.metadata.items():
                _check_value(pool, f"{name} of row {row.id}", value)
        raise ConfigError(
            f"rows cannot be sent to other processes: {error}; leave out `{pool.setting}`"
        ) from error


def _check_value(pool: WorkerPool, name: str, value: Any) -> None:
    try:
        pool.dumps(value)
    except Exception as error:  # an object may raise anything when it is pickled
        what = type(value[0] if isinstance(value, (list, tuple)) and value else value).__name__
        why = first_line(error)
        raise ConfigError(
            f"{name}: a {what} cannot be sent to other processes ({why}); define it at the top "
            f"level of a file, give it by its name, or leave out `{pool.setting}`"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that is not blank; its type if there is none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


class Pauses:
    """Until when (since the epoch) endpoints have asked for no call, by their addresses: what one
    worker was told, others learn.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, pauses: Mapping[str, float]) -> None:
        """Add pauses. The longest counts."""
        for address, until in pauses.items():
            self._until[address] = max(until, self._until.get(address, 0.0))

    @property
    def present(self) -> dict[str, float]:
        """The pauses that are not over."""
        now = time.time()
        return {address: until for address, until in self._until.items() if until > now}


@dataclass
class RemoteEndpoints:
    """The endpoints of all workers together, by their latest statuses. This process makes no
    call.
    """

    workers: int
    statuses: dict[int, ShardStatus] = field(default_factory=dict)
    in_flight: int = 0
    calls_made: int = 0
    now: bool = False
    gate: CallGate = field(default_factory=CallGate)
    free_slots = 1  # (no row starts in this process)

    def close(self, *, now: bool = False) -> None:
        """Remember `now` for the orders to the workers, which close their own endpoints."""
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
        missing = self.workers - len(self.statuses)
        starting = f"{missing} of {self.workers} workers are being started" if missing else ""
        states = dict.fromkeys(
            state
            for status in self.statuses.values()
            for state in status.state.split("; ")
            if state
        )
        return "; ".join(filter(None, (starting, *states)))


@dataclass
class Coordinator:
    """Follows the workers: sends them orders, saves the results in their statuses, sums up the
    rest, and ends the run when a worker ends early.
    """

    scheduler: Scheduler[PendingRow]
    quotas: QuotaSplitter
    remote: RemoteEndpoints
    progress: BatchProgress
    feed: RowFeed
    pool: WorkerPool
    say: Callable[[str], object]
    _before: BatchProgress = field(init=False)
    # the latest status of each process, by worker and process: its usage counts when it has died
    _statuses: dict[tuple[int, str], ShardStatus] = field(default_factory=dict)
    _deaths: Counter[int] = field(default_factory=Counter)
    _replaced: set[int] = field(default_factory=set)  # workers whose process has no rows yet
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _pauses: Pauses = field(default_factory=Pauses)

    def __post_init__(self) -> None:
        self._before = copy(self.progress)

    @property
    def usage(self) -> Usage:
        """What all workers have paid, including processes that have died."""
        return sum((status.usage for status in self._statuses.values()), NO_USAGE)

    @property
    def cache_savings(self) -> float | None:
        """What the cached answers of all workers cost when they were made."""
        parts = (status.cache_savings for status in self._statuses.values())
        savings: float | None = reduce(add_optional, parts, 0.0)
        return savings

    @property
    def second_looks(self) -> int:
        """The number of grades for second looks."""
        return sum(status.second_looks for status in self._statuses.values())

    async def follow(self, shards: Sequence[tuple[Worker, ShardJob]]) -> None:
        """Follow all workers until they have ended."""
        tasks = [
            asyncio.ensure_future(self._follow_one(k, worker, shard))
            for k, (worker, shard) in enumerate(shards)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_and_wait(tasks)

    async def _follow_one(self, k: int, worker: Worker, shard: ShardJob) -> None:
        """Run a worker to its end, and send it orders meanwhile. If it must end at once and does
        not answer, abandon it.
        """
        running = asyncio.ensure_future(worker.run(shard))
        exchange: asyncio.Future[ShardStatus] | None = None
        try:
            while not running.done():
                exchange = exchange or asyncio.ensure_future(self._exchange(k, worker))
                timeout = STOP_TIMEOUT if self.remote.now else CHECK_INTERVAL
                done, _ = await asyncio.wait(
                    (running, exchange), return_when=asyncio.FIRST_COMPLETED, timeout=timeout
                )
                if not done and timeout == STOP_TIMEOUT:
                    return
                if exchange.done():
                    self._update(k, await exchange)
                    exchange = None
            self._update(k, await running, finished=True)
        finally:
            await cancel_and_wait([call for call in (running, exchange) if call is not None])

    async def _exchange(self, k: int, worker: Worker) -> ShardStatus:
        """Send orders with the rows that the worker needs, and return its status."""
        last, rows, is_last = self.remote.statuses.get(k), b"", False
        if last and last.needs_rows:
            rows, is_last = await self._next_rows(k)
        orders = Orders(
            next(self._numbers),
            last.process if last else "",
            self.quotas.next(k),
            self._stop_order,
            rows,
            is_last,
            dict(self.feed.refits),
            self._pauses.present,
        )
        return await worker.exchange(orders)

    async def _next_rows(self, k: int) -> tuple[bytes, bool]:
        """Return rows for a worker, and whether they are the last. If they cannot be sent, end the
        run.
        """
        if k in self._replaced:
            self._replaced.discard(k)
            rows = self.feed.take_again(k)
        else:
            rows = await self.feed.take(k, ROW_WAIT)
        try:
            return _dump_rows(self.pool, rows) if rows else b"", self.feed.is_empty
        except ConfigError as error:
            self.scheduler.end("fatal", str(error), now=True)
            return b"", True

    @property
    def _stop_order(self) -> StopOrder | None:
        scheduler = self.scheduler
        return (
            StopOrder(scheduler.reason, scheduler.message, now=self.remote.now)
            if scheduler.reason
            else None
        )

    def _update(self, k: int, status: ShardStatus, *, finished: bool = False) -> None:
        """Process the status of a worker."""
        self._count_deaths(k, status)
        self.remote.statuses[k] = self._statuses[k, status.process] = status
        self.feed.finish(k, status.results, status.observations)
        self._pauses.add(status.pauses)
        if status.use:
            self.quotas.update(k, status.use, finished=finished)
        for line in status.messages:
            self.say(f"worker {k + 1} of {self.remote.workers}: {line}")
        if status.reason and not self.scheduler.reason:
            self.scheduler.end(status.reason, status.message)
        if self.quotas.exhaustion and not self.scheduler.reason:
            self.scheduler.end("budget", self.quotas.exhaustion)
        self._sum_up()

    def _count_deaths(self, k: int, now: ShardStatus) -> None:
        """Count how often a worker has died without finishing a row in between, and end the run
        after MAX_DEATHS times.
        """
        before = self.remote.statuses.get(k)
        if before is None or before.process == now.process or not now.process:
            if before and now.counts["done"] > before.counts["done"]:
                self._deaths[k] = 0
            return
        self._replaced.add(k)
        self._deaths[k] += 1
        worker = f"worker {k + 1} of {self.remote.workers}"
        self.say(f"{worker} died, and is started again")
        if self._deaths[k] >= MAX_DEATHS and not self.scheduler.reason:
            self.scheduler.end(
                "fatal", f"{worker} has died {MAX_DEATHS} times without finishing a row"
            )

    def _sum_up(self) -> None:
        """Set what the progress has besides the results of rows from the statuses of all
        workers.
        """
        counts = [status.counts for status in self.remote.statuses.values()]
        self.progress.usage = self._before.usage + self.usage
        self.progress.cache_savings = add_optional(self._before.cache_savings, self.cache_savings)
        self.progress.under_way = sum(each["under_way"] for each in counts)
        self.remote.in_flight = sum(each["in_flight"] for each in counts)
        self.remote.calls_made = sum(each["calls_made"] for each in counts)
