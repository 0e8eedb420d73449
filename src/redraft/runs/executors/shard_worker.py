"""The worker of one shard: a `BatchJob` over some of the rows, with a journal of its own and
without an output.

A worker runs in a process of its own, possibly on another machine, and may be killed and started
again at any time: its shard job has everything that it needs, and its journal everything that it
has done. It may use what the last `exchange_quota` allows.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import ChainMap
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, cast
from uuid import uuid4

from ...base.jsontext import dumps_text
from ...errors import BudgetExhaustedError, StoreError
from ...loop.serialize import record_to_json
from ...loop.trace import Trace
from ...middleware.budget import Budget, BudgetTracker, BudgetWaiter, Grant, Reservation
from ...middleware.call_costs import ZERO_AMOUNTS, CostEstimate
from ...plans import CostUnit
from ...protocols import Reply
from ...session.session import Session
from ...storage.journal import Journal
from ...storage.shard_merge import SnapshotCache, open_when_released
from ..allocation import SCALE
from ..config import BatchConfig
from ..dataset import DatasetSummary, PendingRow
from ..endpoints import LimitedEndpoints
from ..files import NullOutput, RejectsFile
from ..job import BatchJob, Executor, LocalExecutor, RowSource
from ..progress import BatchProgress
from ..runner import make_session, restore_capabilities
from .shard_protocol import (
    COUNTED,
    Amounts,
    AssignedRow,
    Chunk,
    Quota,
    QuotaUse,
    Refusal,
    ShardJob,
    ShardStatus,
    StopOrder,
)

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
        """The smallest amounts that a call waits for; None if no call waits."""
        return min(
            filter(self.exceeded_limit, self.waiting_minimums),
            key=lambda need: (need["usd"], need["tokens"]),
            default=None,
        )

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
class AssignedRows:
    """The rows of a shard. What the journal of the run has of them is copied into that of the shard
    first.
    """

    chunks: Sequence[Chunk]
    journal: Journal
    run: str

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield all rows in order."""
        for chunk in self.chunks:
            for row in self._with_journal(await asyncio.to_thread(chunk)):
                yield row

    def _with_journal(self, rows: Sequence[AssignedRow]) -> Iterator[PendingRow]:
        """Yield rows with what the journal of the shard has of them."""
        infos = self.journal.rows_by_id(self.run, [row.id for row, _ in rows])
        for row, trace in rows:
            info = infos.get(row.id)
            if info is None and trace is not None:
                self._copy(row, trace)
                info = row.info
            yield row if info is row.info else row._replace(info=info)

    def _copy(self, row: PendingRow, trace: Trace) -> None:
        header = dumps_text(replace(trace, records=()).header())
        self.journal.begin_row(self.run, row.id, row.n, row.key, row.parts, header)
        if trace.records:
            self.journal.append_records(
                self.run, row.id, 0, [record_to_json(r) for r in trace.records]
            )
        if row.info and row.info.result is not None:
            self.journal.finish_row(self.run, row.id, row.info.status, row.info.result)


class ShardWorker:
    """Processes a shard: `run` does the work, and `exchange_quota` is called meanwhile to set
    quotas and read the status.

    It may be on another machine than the process of the run, which does not write to the run's
    journal meanwhile.
    """

    def __init__(self) -> None:
        self._process = uuid4().hex
        self._quota = Quota()
        self._order: StopOrder | None = None
        self._job: BatchJob | None = None
        self._endpoints: LimitedEndpoints | None = None
        self._budget = ShardBudget()
        self._has_quota = asyncio.Event()
        self._messages: list[str] = []

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Wait for the first quota, process all rows, and return the final status."""
        await self._has_quota.wait()
        failure: tuple[str, str] | None = None
        try:
            async with AsyncExitStack() as resources:
                self._job = job = await self._open(shard, resources)
                self._apply()
                await job.run(self._executor(), self._messages.append)
        except Exception as error:  # noqa: BLE001  (an error that ends a shard is reported to the coordinator)
            failure = (
                ("disk" if isinstance(error, StoreError) else "fatal"),
                str(error) or type(error).__name__,
            )
        status = self._status()
        return replace(status, reason=failure[0], message=failure[1]) if failure else status

    async def exchange_quota(self, quota: Quota, order: StopOrder | None = None) -> ShardStatus:
        """Set the quota, obey an order, and return the present status."""
        self._quota, self._order = quota, order or self._order
        self._apply()
        if quota.in_flight or order:
            self._has_quota.set()
        return self._status()

    def _apply(self) -> None:
        """Apply the latest quota and order to the budget, the endpoints and the scheduler, as far
        as they exist.
        """
        quota, job = self._quota, self._job
        self._budget.refusal, self._budget.share = quota.refusal, quota.share
        self._budget.set_budget(Budget(**cast("Any", quota.amounts)))
        if job is None or self._endpoints is None:
            return
        if quota.in_flight:
            self._endpoints.resize(quota.in_flight, quota.rpm, quota.tpm)
            job.session.options = replace(job.session.options, max_in_flight=quota.in_flight)
        if order := self._order:
            job.scheduler.end(order.reason, order.message, now=order.now)

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
        options = replace(config.options, cache=self._cache(journal, shard.run_journal, resources))
        budget = self._budget if options.budget else None
        session, plan = await make_session(
            config, shard.model, shard.graders, shard.judge, options, endpoints.hold, budget
        )
        resources.push_async_callback(session.close)
        self._restore_spent(session, name, journal)
        session.models.capabilities.restore(shard.capabilities)
        restore_capabilities(session, name, journal)
        journal.update_run(name, attempt=shard.attempt)
        summary, output, rejects, progress = (
            DatasetSummary(),
            NullOutput(),
            RejectsFile(""),
            BatchProgress(),
        )
        job = BatchJob(
            config,
            shard.dataset,
            summary,
            session,
            plan,
            journal,
            output,
            rejects,
            progress,
            endpoints,
        )
        job.rows = self._rows(shard, journal)
        job.share = ShardShare(
            self._budget, max(1, shard.rows - self._finished_before(name, journal))
        )
        return job

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

    def _rows(self, shard: ShardJob, journal: Journal) -> RowSource:
        return AssignedRows(shard.chunks, journal, shard.config.name)

    def _cache(
        self, journal: Journal, run_journal: Path | None, resources: AsyncExitStack
    ) -> MutableMapping[str, Reply]:
        """Return the call cache of the shard's journal, on top of that of the run's journal."""
        if run_journal is None:
            return journal.response_cache
        snapshot = SnapshotCache(run_journal)
        resources.callback(snapshot.close)
        return ChainMap(journal.response_cache, cast("MutableMapping[str, Reply]", snapshot))

    def _executor(self) -> Executor:
        return LocalExecutor()

    def _own_config(self, shard: ShardJob) -> BatchConfig:
        """Return the configuration of the run with the limits of this shard."""
        config, quota, ends_at = shard.config, self._quota, shard.ends_at
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
        if not session.options.budget:
            return
        self._budget.spent.update(self._spent_before(name, journal))
        if session.options.budget.limits:
            self._budget.wait_for_commit = journal.wait_for_commit
            self._budget.on_change = lambda: journal.update_run(
                name, spent=self._budget.spent_and_reserved
            )

    def _spent_before(self, name: str, journal: Journal) -> Amounts:
        run = journal.run(name)
        spent: Amounts = run.metadata.get("spent", {}) if run else {}
        return spent

    def _halt(self, reason: str, message: str, detail: str) -> None:
        if self._job:
            self._job.scheduler.end(reason, message, detail)

    def _status(self) -> ShardStatus:
        job, endpoints, budget = self._job, self._endpoints, self._budget
        if job is None or endpoints is None:
            return ShardStatus(self._process)
        progress = job.progress
        progress.in_flight, progress.calls_made = endpoints.in_flight, endpoints.calls_made
        is_saturated = endpoints.is_full or budget.shortage is not None
        messages, self._messages[:] = tuple(self._messages), []
        return ShardStatus(
            self._process,
            QuotaUse(
                self._quota,
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
            first=progress.first,
            best=progress.best,
            limit=endpoints.limit,
            state=endpoints.state,
            messages=messages,
            reason=job.scheduler.reason,
            message=job.scheduler.message,
            pauses=endpoints.pauses,
        )


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
