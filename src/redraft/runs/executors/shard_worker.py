"""The worker of one shard: a `BatchJob` over the rows that it receives, with a journal of its own
and without an output.

A worker runs in a process of its own, possibly on another machine, and may be killed and started
again at any time: its shard job and the coordinator have everything that it needs, and its journal
everything that it has done. It may use what the last orders allow.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections import ChainMap, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from socket import gethostname
from typing import Any, TypeVar, cast
from uuid import uuid4

from ...base.error_text import error_text
from ...base.jsontext import dumps_text
from ...errors import BudgetExhaustedError, StoreError
from ...loop.serialize import record_to_json
from ...loop.trace import Trace
from ...middleware.budget import Budget, BudgetTracker, BudgetWaiter, Grant, Reservation
from ...middleware.call_costs import ZERO_AMOUNTS, CostEstimate
from ...plans import CostUnit
from ...plans.quality.lineage import Observations
from ...plans.quality.result_facts import ResultFacts
from ...protocols import Reply
from ...session.session import Session
from ...storage.journal import Journal
from ...storage.shard_merge import SnapshotCache, open_when_released, spent_by
from ..allocation import SCALE
from ..config import BatchConfig
from ..dataset import DatasetSummary, PendingRow
from ..endpoints import LimitedEndpoints
from ..files import NullOutput, RejectsFile
from ..job import BatchJob, RowProcessor
from ..online_priors import OnlinePriors, RefitSchedule
from ..progress import BatchProgress
from ..runner import make_session, restore_capabilities
from .shard_protocol import (
    COUNTED,
    Amounts,
    AssignedRow,
    Orders,
    Quota,
    QuotaUse,
    Refusal,
    ShardJob,
    ShardStatus,
    StopOrder,
)

K = TypeVar("K")
V = TypeVar("V")

LOW = 32  # rows that have not started when more are needed
TICK = 0.25  # seconds after which orders are answered in any case
RESULT_DELAY = 0.03  # seconds that a result waits for others
SHARED_FOLDER_HINT = "the journal must be on a file system that all machines share"


class ShardBudget(BudgetTracker):
    """Tracks a shard's part of the budget. A call that needs more waits until the part grows, or
    until it never will (`refusal`).

    `share` is what the rows of the shard may plan to spend. `wait_for_commit` waits until the
    journal has what is reserved, so that it counts even if the worker dies.
    """

    def __init__(self) -> None:
        super().__init__(Budget())
        self.refusal: Refusal | None = None
        self.share: Amounts = {}
        self.wait_for_commit: Callable[[], Awaitable[None]] | None = None
        self._change = asyncio.Event()

    @property
    def shortage(self) -> Mapping[str, float] | None:
        """The least that the call needs which is served next; None if no call waits."""
        return next(filter(self.exceeded_limit, self.waiting_minimums), None)

    async def wait_for_change(self) -> None:
        """Wait until the part of the budget may have grown."""
        self._change.clear()
        await self._change.wait()

    def check(self, amounts: Mapping[str, float]) -> None:
        """Raise BudgetExhaustedError if the budget will never cover the amounts: only the
        coordinator knows that.
        """
        if (refusal := self.refusal) and amounts[refusal.limit] >= refusal.amount:
            raise BudgetExhaustedError(refusal.message, limit=refusal.limit)

    async def reserve(
        self, need: Callable[[], CostEstimate], reservation: Reservation | None = None
    ) -> Grant:
        """Reserve `need`. Raises BudgetExhaustedError if the budget will never cover it."""
        grant = await super().reserve(need, reservation)
        if self.wait_for_commit is not None:
            try:
                await self.wait_for_commit()
            except BaseException:
                self.settle(grant, ZERO_AMOUNTS)
                raise
        return grant

    def _refusal(self, waiter: BudgetWaiter) -> BudgetExhaustedError | None:
        """Return None: the part may grow."""
        return None

    def _serve(self, *, patient: bool = True) -> None:
        self._change.set()
        super()._serve(patient=patient)


@dataclass
class ShardShare:
    """What the rows of a shard may spend, whatever its quota is now. `rows`: their number."""

    budget: ShardBudget
    rows: int

    def rows_left(self) -> int:
        return self.rows

    def left(self, unit: CostUnit) -> float:
        """Return what the rows may still plan to spend."""
        return max(0.0, self.budget.share.get(unit, 0.0) - self.budget.spent[unit]) / SCALE[unit]

    @property
    def is_short(self) -> bool:
        return self.budget.shortage is not None

    async def wait_for_change(self) -> None:
        await self.budget.wait_for_change()


@dataclass
class ReceivedRows:
    """The rows of a shard as they are received, with what its journal has of them.

    What the journal of the run has of them is copied into that of the shard first. `is_new`: the
    journal has no row of an earlier process. `on_need` is called when there are few rows left.
    """

    journal: Journal
    run: str
    is_new: bool
    on_need: Callable[[], object]
    _rows: deque[AssignedRow] = field(default_factory=deque)
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    _is_complete: bool = False

    def receive(self, rows: Iterable[AssignedRow], *, is_last: bool) -> None:
        """Add rows; `is_last`: there are no more."""
        self._rows.extend(rows)
        self._is_complete = self._is_complete or is_last
        self._change.set()

    @property
    def need_more(self) -> bool:
        """Whether there may be more rows, and few are left that have not started."""
        return len(self._rows) <= LOW and not self._is_complete

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield all rows."""
        while self._rows or not self._is_complete:
            if self._rows:
                yield self._with_journal(*self._rows.popleft())
                if self.need_more:
                    self.on_need()
            else:
                self._change.clear()
                await self._change.wait()

    def _with_journal(self, row: PendingRow, trace: Trace | None) -> PendingRow:
        """Return a row with what the journal of the shard has of it."""
        info = None if self.is_new else self.journal.rows_by_id(self.run, [row.id]).get(row.id)
        if info is not None:
            return row._replace(info=info)
        if trace is not None:
            self._copy(row, trace)
        return row

    def _copy(self, row: PendingRow, trace: Trace) -> None:
        header = dumps_text(replace(trace, records=()).header())
        self.journal.begin_row(self.run, row.id, row.n, row.key, row.parts, header)
        if trace.records:
            self.journal.append_records(
                self.run, row.id, 0, [record_to_json(r) for r in trace.records]
            )
        if row.info and row.info.result is not None:
            self.journal.finish_row(self.run, row.id, row.info.status, row.info.result)


@dataclass
class ShardProcessor(RowProcessor):
    """Passes results to `send`, since the process of the run writes the output and the report."""

    send: Callable[[int, ResultFacts], object] = field(kw_only=True)

    def save(self, row: PendingRow, result: ResultFacts, *, reused: bool = False) -> None:
        """Count a result, and send it."""
        self.job.progress.count(result, reused=reused)
        if reused and self.job.online_priors:  # an earlier process may not have sent it
            self.job.online_priors.observe_saved(row)
        self.send(row.n, result)


@dataclass(frozen=True)
class ShardExecutor:
    """Processes the rows of a shard in this process."""

    send: Callable[[int, ResultFacts], object]
    has_one_price = True

    async def work(self, job: BatchJob) -> None:
        """Process rows until there are no more."""
        job.budget.was_raised = False  # the process of the run has decided which rows are reopened
        await job.scheduler.process(job.rows.read(), ShardProcessor(job, send=self.send))


class ShardWorker:
    """Processes a shard: `run` does the work, and `exchange` is called meanwhile with orders, and
    returns the status.

    It may be on another machine than the process of the run.
    """

    def __init__(self) -> None:
        self._process = uuid4().hex
        self._orders = Orders(0, "", Quota())
        self._stop: StopOrder | None = None
        self._job: BatchJob | None = None
        self._endpoints: LimitedEndpoints | None = None
        self._received: ReceivedRows | None = None
        self._schedule: RefitSchedule | None = None
        self._budget = ShardBudget()
        self._has_quota = asyncio.Event()
        self._news = asyncio.Event()  # there is something that a status has to say
        self._results: dict[int, ResultFacts] = {}  # that no status has said
        # what statuses have said and no later orders confirm
        self._sent_results: dict[int, ResultFacts] = {}
        self._sent_observations: dict[str, Observations] = {}
        self._messages: list[str] = []

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Wait for the first quota, process all rows, and return the final status."""
        await self._has_quota.wait()
        failure: tuple[str, str] | None = None
        try:
            async with AsyncExitStack() as resources:
                self._job = job = await self._open(shard, resources)
                self._apply()
                self._news.set()
                await job.run(ShardExecutor(self._send), self._messages.append)
        except Exception as error:  # noqa: BLE001  (an error that ends a shard is reported to the coordinator)
            failure = (
                ("disk" if isinstance(error, StoreError) else "fatal"),
                str(error) or type(error).__name__,
            )
        self._news.set()
        status = self._status()
        return replace(status, reason=failure[0], message=failure[1]) if failure else status

    async def exchange(self, orders: Orders) -> ShardStatus:
        """Obey orders, and return the status as soon as it says something new, or after TICK
        seconds.
        """
        if orders.number > self._orders.number:  # else they arrive once more
            self._receive(orders)
        if orders.process == self._process:
            await self._wait_for_news()
        return self._status()

    def _receive(self, orders: Orders) -> None:
        """Obey new orders, which confirm the last status."""
        self._orders, self._stop = orders, orders.stop or self._stop
        self._sent_results.clear()
        self._sent_observations.clear()
        if self._schedule:
            self._schedule.refits.update(orders.refits)
        self._apply()
        if orders.quota.in_flight or orders.stop:
            self._has_quota.set()
        if self._received and orders.process == self._process:
            self._received.receive(self._load(orders.rows), is_last=orders.is_last)

    def _load(self, rows: bytes) -> Sequence[AssignedRow]:
        """Return rows that were sent. If they have objects that cannot be loaded here, end the
        run.
        """
        try:
            return pickle.loads(rows) if rows else ()  # noqa: S301  (from the process of the run)
        except Exception as error:  # noqa: BLE001  (code of the user, which is imported or run here)
            self._halt("fatal", f"a worker cannot load its rows: {error_text(error)}", "")
            return ()

    async def _wait_for_news(self) -> None:
        """Wait until the status says something new, but not longer than TICK."""
        if self._needs_rows:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK):
                await self._news.wait()
                if not self._needs_rows:
                    await asyncio.sleep(RESULT_DELAY)
        self._news.clear()

    @property
    def _needs_rows(self) -> bool:
        return self._received is not None and self._received.need_more

    def _send(self, n: int, result: ResultFacts) -> None:
        """Send a result with the next status."""
        self._results[n] = result
        self._news.set()

    def _apply(self) -> None:
        """Apply the latest orders to the budget, the endpoints and the scheduler, as far as they
        exist.
        """
        quota, job = self._orders.quota, self._job
        self._budget.refusal, self._budget.share = quota.refusal, quota.share
        self._budget.set_budget(Budget(**cast("Any", quota.amounts)))
        if job is None or self._endpoints is None:
            return
        self._endpoints.pause(self._orders.pauses)
        if quota.in_flight:
            self._endpoints.resize(quota.in_flight, quota.rpm, quota.tpm)
            job.session.options = replace(job.session.options, max_in_flight=quota.in_flight)
        if stop := self._stop:
            job.scheduler.end(stop.reason, stop.message, now=stop.now)

    async def _open(self, shard: ShardJob, resources: AsyncExitStack) -> BatchJob:
        """Open everything that the shard needs, and return its job."""
        config = self._own_config(shard)
        name = config.name
        with suppress(OSError):  # on another machine the folder may not exist, and need not
            os.chdir(shard.folder)
        journal = await self._open_journal(shard)
        resources.callback(journal.close)
        self._endpoints = endpoints = LimitedEndpoints(
            config.limits,
            config.options.max_in_flight,
            self._halt,
            self._messages.append,
            config.options.timeout,
        )
        options = replace(config.options, cache=self._cache(journal, shard, resources))
        session, plan = await make_session(
            config, shard.model, shard.graders, shard.judge, options, endpoints.hold, self._budget
        )
        resources.push_async_callback(session.close)
        self._restore_spent(session, name, journal)
        session.models.capabilities.restore(shard.capabilities)
        restore_capabilities(session, name, journal)
        self._received = ReceivedRows(journal, name, not journal.has_run(name), self._news.set)
        journal.update_run(name, attempt=shard.attempt)
        job = BatchJob(
            config,
            shard.dataset,
            DatasetSummary(),
            session,
            plan,
            journal,
            NullOutput(),
            RejectsFile(""),
            BatchProgress(),
            endpoints,
        )
        job.rows = self._received
        job.share = ShardShare(
            self._budget, max(1, shard.rows - self._finished_before(name, journal))
        )
        self._use_schedule(job, shard.schedule)
        return job

    def _use_schedule(self, job: BatchJob, schedule: RefitSchedule | None) -> None:
        """Have rows start with the priors that the process of the run has fitted."""
        if schedule is None:
            return
        self._schedule, scheduler = schedule, job.scheduler
        schedule.refits.update(self._orders.refits)
        job.online_priors = OnlinePriors(
            schedule,
            job.journal,
            job.config.name,
            job.keys.shared,
            scheduler.wait_until,
            lambda: bool(scheduler.reason),
            self._messages.append,
        )
        job.budget.priors_for = lambda row: schedule.priors(row.n)

    async def _open_journal(self, shard: ShardJob) -> Journal:
        if not shard.journal.parent.is_dir():
            raise StoreError(
                f"there is no folder {str(shard.journal.parent)!r} on {gethostname()}; "
                f"{SHARED_FOLDER_HINT}"
            )
        open_journal = partial(Journal, shard.journal, durability=shard.config.durability)
        return await asyncio.to_thread(open_when_released, open_journal)

    def _finished_before(self, name: str, journal: Journal) -> int:
        """Return the number of rows that earlier processes of this shard have finished."""
        counts = run.counts if (run := journal.run(name)) else {}
        return counts.get("done", 0) + counts.get("failed", 0)

    def _cache(
        self, journal: Journal, shard: ShardJob, resources: AsyncExitStack
    ) -> MutableMapping[str, Reply]:
        """Return the call cache of the shard's journal, on top of that of the run's journal."""
        if shard.run_journal is None:
            return journal.response_cache
        snapshot = SnapshotCache(shard.run_journal, from_any_machine=bool(shard.config.ray))
        resources.callback(snapshot.close)
        return ChainMap(journal.response_cache, cast("MutableMapping[str, Reply]", snapshot))

    def _own_config(self, shard: ShardJob) -> BatchConfig:
        """Return the configuration of the run with the limits of this shard."""
        config, quota, ends_at = shard.config, self._orders.quota, shard.ends_at
        options = replace(
            config.options,
            max_in_flight=max(1, quota.in_flight),
            deadline=None if ends_at is None else max(0.0, ends_at - time.time()),
        )
        limits = replace(
            config.limits,
            min_in_flight=min(config.limits.min_in_flight, options.max_in_flight),
            rpm=quota.rpm,
            tpm=quota.tpm,
        )
        return replace(config, options=options, limits=limits)

    def _restore_spent(self, session: Session, name: str, journal: Journal) -> None:
        """Restore what an earlier process of this shard has spent, and save all further changes in
        the journal.
        """
        run = journal.run(name)
        self._budget.spent.update(spent_by(journal, run.metadata) if run else {})
        if session.options.budget and session.options.budget.limits:
            self._budget.wait_for_commit = journal.wait_for_commit
            self._budget.on_change = lambda: journal.update_run(
                name, spent=self._budget.spent_and_reserved
            )

    def _halt(self, reason: str, message: str, detail: str) -> None:
        if self._job:
            self._job.scheduler.end(reason, message, detail)

    def _status(self) -> ShardStatus:
        job, endpoints, budget = self._job, self._endpoints, self._budget
        if job is None or endpoints is None:
            return ShardStatus(self._process)
        progress, online = job.progress, job.online_priors
        progress.in_flight, progress.calls_made = endpoints.in_flight, endpoints.calls_made
        is_saturated = endpoints.is_full or budget.shortage is not None
        messages, self._messages[:] = tuple(self._messages), []
        _move(self._results, self._sent_results)
        if online:
            _move(online.observations, self._sent_observations)
        return ShardStatus(
            self._process,
            QuotaUse(
                self._orders.quota,
                endpoints.in_flight,
                is_saturated,
                dict(budget.spent),
                budget.committed,
                budget.shortage,
                *_plans(job),
            ),
            {name: getattr(progress, name) for name in COUNTED},
            usage=progress.usage,
            cache_savings=progress.cache_savings,
            second_looks=online.second_looks if online else 0,
            limit=endpoints.limit,
            state=endpoints.state,
            needs_rows=self._needs_rows,
            results=dict(self._sent_results),
            observations=dict(self._sent_observations),
            messages=messages,
            reason=job.scheduler.reason,
            message=job.scheduler.message,
            pauses=endpoints.pauses,
        )


def _move(items: dict[K, V], target: dict[K, V]) -> None:
    target |= items
    items.clear()


def _plans(job: BatchJob) -> tuple[Amounts, int]:
    """Return what the rows of a shard have spent and need in any case, and the number of those that
    have not ended.
    """
    allocator = job.budget.allocator
    if allocator is None:
        return {}, 0
    return {allocator.unit: allocator.commitment * SCALE[allocator.unit]}, allocator.waiting + len(
        allocator.under_way
    )
