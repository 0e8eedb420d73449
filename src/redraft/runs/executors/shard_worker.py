"""A worker for one shard of a run: a job over some of the rows, with a journal of its own and no output.

It is created where it works, which may be another machine, and may be killed and created again at any time: all that it needs is
in its shard job, all that it did is in its journal. What it may use is told with every `exchange_quota`.
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

from ...core.serialize import record_to_json
from ...core.trace import Trace
from ...errors import BudgetExhaustedError, StoreError
from ...middleware.budget import Budget, BudgetTracker, BudgetWaiter, Grant, Reservation
from ...middleware.call_costs import ZERO_AMOUNTS, CostEstimate
from ...plans import CostUnit
from ...protocols import Reply
from ...session import Session
from ...storage.journal import Journal
from ...storage.shard_merge import OverlayCache, SnapshotReader, open_when_released
from ...usage import Usage
from ..allocation import SCALE, BudgetAllocator
from ..config import BatchConfig
from ..dataset import BatchDataset, DatasetSummary
from ..endpoints import LimitedEndpoints
from ..job import BatchJob
from ..outputs import NullOutput, RejectsFile
from ..pending_rows import PendingRow
from ..progress import BatchProgress, Mean
from ..runner import make_session, restore_capabilities
from .local import LocalExecutor
from .quotas import Amounts, Quota, QuotaUse

SHARED = "the journal must lie on a file system that all machines share"
COUNTED = ("done", "failed", "unfinished", "not_started", "under_way", "in_flight")


class AssignedRow(NamedTuple):
    """A row for a shard, with its trace in the journal of the whole run."""

    row: PendingRow
    trace: Trace | None


Chunk = Callable[[], Sequence[AssignedRow]]


@dataclass(frozen=True)
class ShardJob:
    """Everything that a worker must know, in values that can be sent. `ends_at`: when the run is to be over, by the wall clock.

    `journal` is the shard's own, `run_journal` that of the whole run if calls may be in it, `attempt` identifies this start of the
    run, `rows` is their number in all chunks, `capabilities` what is known of the endpoints.
    """

    config: BatchConfig
    dataset: BatchDataset
    model: Any
    graders: Any
    judge: Any
    journal: Path
    run_journal: Path | None
    chunks: Sequence[Chunk]
    attempt: str
    folder: str
    ends_at: float | None
    rows: int = 0
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopOrder:
    """How a shard is to end."""

    reason: str
    message: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of a shard. `life` changes whenever its worker was killed; `usage` is that of this life.

    `messages` are those since the last status, `reason` and `message` say what ended the shard.
    """

    life: str
    use: QuotaUse
    counts: Mapping[str, int]
    usage: Usage
    first: Mean
    best: Mean
    limit: int = 0
    state: str = ""
    messages: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""


class ShardBudget(BudgetTracker):
    """A shard's part of the budget. A call that needs more than is left of it waits until there is more, or never will be.

    What is reserved is `written` to the journal before it is spent, so that it counts even if the worker dies.
    """

    def __init__(self) -> None:
        super().__init__(Budget())
        self.refusal = ""
        self.per_row: Amounts = {}
        self.written: Callable[[], Awaitable[None]] | None = None
        self._change = asyncio.Event()

    @property
    def shortage(self) -> Mapping[str, float] | None:
        """The least that a call waits for."""
        return min(filter(self.exceeded_limit, self.waiting_minimums), key=lambda need: (need["usd"], need["tokens"]), default=None)

    async def wait_for_change(self) -> None:
        """Wait until there may be more."""
        self._change.clear()
        await self._change.wait()

    def check(self, amounts: Mapping[str, float]) -> None:
        """Raise BudgetExhaustedError if there will never be enough, which is known once it was refused."""
        if self.refusal and (name := self.exceeded_limit(amounts)):
            raise BudgetExhaustedError(self.refusal, limit=name)

    async def reserve(self, need: Callable[[], CostEstimate], reservation: Reservation | None = None) -> Grant:
        """Reserve `need`. Raises BudgetExhaustedError if there will never be enough."""
        grant = await super().reserve(need, reservation)
        if self.written is not None:
            try:
                await self.written()
            except BaseException:
                self.settle(grant, ZERO_AMOUNTS)
                raise
        return grant

    def _refusal(self, waiter: BudgetWaiter) -> BudgetExhaustedError | None:
        """Return None: there may be more."""
        return None

    def _serve(self, *, patient: bool = True) -> None:
        self._change.set()
        super()._serve(patient=patient)


@dataclass
class ShardShare:
    """What the rows of a shard may use of the budget: as much for each row as any other shard, whatever its quota is now."""

    budget: ShardBudget
    rows: int
    _pot: float | None = None
    _reported: tuple[int, float] | None = None

    def rows_left(self) -> int:
        return self.rows

    def left(self, unit: CostUnit) -> float:
        """Return what is meant for these rows, by the last report and quota, less what was spent since."""
        spent = self.budget.spent[unit] / SCALE[unit]
        if self._pot is None:
            self._pot = self.budget.per_row.get(unit, 0.0) / SCALE[unit] * self.rows + spent
        return max(0.0, self._pot - spent)

    def report(self, allocator: BudgetAllocator | None) -> None:
        """The shard's status is reported now; the next `per_row` follows from it."""
        if allocator:
            spent = self.budget.spent[allocator.unit] / SCALE[allocator.unit]
            self._reported = allocator.waiting + len(allocator.under_way), spent

    def update(self, per_row: Amounts, allocator: BudgetAllocator | None) -> None:
        """There is so much for each row that had not ended at the last report."""
        if self._reported and allocator:
            rows, spent = self._reported
            self._pot = per_row.get(allocator.unit, 0.0) / SCALE[allocator.unit] * rows + spent

    @property
    def is_short(self) -> bool:
        return self.budget.shortage is not None

    async def wait_for_change(self) -> None:
        await self.budget.wait_for_change()


@dataclass
class AssignedRows:
    """The rows of a shard; those that its journal lacks are copied into it first."""

    chunks: Sequence[Chunk]
    journal: Journal
    run: str

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield all rows in order."""
        for chunk in self.chunks:
            assigned = await asyncio.to_thread(chunk)
            known = self.journal.rows_by_id(self.run, [row.id for row, _ in assigned])
            for row, trace in assigned:
                note = known.get(row.id)
                if note is None and trace is not None:
                    self._copy(row, trace)
                    note = row.note
                yield row._replace(note=note)

    def _copy(self, row: PendingRow, trace: Trace) -> None:
        self.journal.begin_row(self.run, row.id, row.n, row.key, row.parts, replace(trace, records=()).header())
        if trace.records:
            self.journal.append_records(self.run, row.id, 0, [record_to_json(r) for r in trace.records])
        if row.note and row.note.result is not None:
            self.journal.finish_row(self.run, row.id, row.note.status, row.note.result)


class ShardWorker:
    """Works on a shard: `run` does everything, `exchange_quota` receives quotas and orders meanwhile and returns the status."""

    def __init__(self) -> None:
        self._life = uuid4().hex
        self._quota = Quota()
        self._order: StopOrder | None = None
        self._job: BatchJob | None = None
        self._endpoints: LimitedEndpoints | None = None
        self._budget = ShardBudget()
        self._share = ShardShare(self._budget, 0)
        self._may_begin = asyncio.Event()
        self._messages: list[str] = []

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Work on all rows, once there is a quota; return the status at the end."""
        await self._may_begin.wait()
        failure: tuple[str, str] | None = None
        try:
            async with AsyncExitStack() as at_the_end:
                self._job = job = await self._open(shard, at_the_end)
                self._apply()
                await job.run(LocalExecutor(), self._messages.append)
        except Exception as error:  # noqa: BLE001  (the boundary: what ends a shard is reported, and ends the run)
            failure = ("disk" if isinstance(error, StoreError) else "fatal"), str(error) or type(error).__name__
        status = self._status()
        return replace(status, reason=failure[0], message=failure[1]) if failure else status

    async def exchange_quota(self, quota: Quota, order: StopOrder | None = None) -> ShardStatus:
        """Keep to a quota from now on, and obey an order; return the status."""
        self._quota, self._order = quota, order or self._order
        self._apply()
        if quota.in_flight or order:
            self._may_begin.set()
        return self._status()

    def _apply(self) -> None:
        quota, job = self._quota, self._job
        self._budget.refusal, self._budget.per_row = quota.refusal, quota.per_row
        self._budget.set_budget(Budget(**cast("Any", quota.amounts)))
        if job is None or self._endpoints is None:
            return
        self._share.update(quota.per_row, job.budget.allocator)
        if quota.in_flight:
            self._endpoints.resize(quota.in_flight, quota.rpm, quota.tpm)
            job.session.options = replace(job.session.options, max_in_flight=quota.in_flight)
        if order := self._order:
            job.scheduler.end(order.reason, order.message, now=order.now)

    async def _open(self, shard: ShardJob, at_the_end: AsyncExitStack) -> BatchJob:
        """Open everything that the shard needs, and return its job."""
        config = self._own_config(shard)
        name = config.name
        with suppress(OSError):  # a missing folder is not needed, or what is looked for in it is missed later
            os.chdir(shard.folder)
        if not shard.journal.parent.is_dir():
            raise StoreError(f"there is no folder {str(shard.journal.parent)!r} on {gethostname()}; {SHARED}")
        journal = await asyncio.to_thread(open_when_released, partial(Journal, shard.journal, durability=config.durability))
        at_the_end.callback(journal.close)
        self._endpoints = endpoints = LimitedEndpoints(
            config.limits, config.options.max_in_flight, self._halt, self._messages.append
        )
        options = replace(config.options, cache=_call_cache(journal, shard.run_journal, at_the_end))
        budget = self._budget if options.budget else None
        session, plan = await make_session(config, shard.model, shard.graders, shard.judge, options, endpoints.hold, budget)
        at_the_end.push_async_callback(session.close)
        self._restore_spent(session, name, journal)
        session.capabilities.restore(shard.capabilities)
        restore_capabilities(session, name, journal)
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
        job.rows = AssignedRows(shard.chunks, journal, name)
        job.share = self._share = ShardShare(self._budget, shard.rows)
        return job

    def _own_config(self, shard: ShardJob) -> BatchConfig:
        """Return the run's configuration with the limits of this shard."""
        config, quota, ends_at = shard.config, self._quota, shard.ends_at
        options = replace(
            config.options,
            max_in_flight=max(1, quota.in_flight),
            deadline=None if ends_at is None else max(0.0, ends_at - time.time()),
        )
        limits = replace(
            config.limits, min_in_flight=min(config.limits.min_in_flight, options.max_in_flight), rpm=quota.rpm, tpm=quota.tpm
        )
        return replace(config, options=options, limits=limits)

    def _restore_spent(self, session: Session, name: str, journal: Journal) -> None:
        """Keep what is spent in the journal, so that it counts in the worker's next life, too."""
        if not session.options.budget:
            return
        known = journal.run(name)
        self._budget.spent.update(known.metadata.get("spent", {}) if known else {})
        self._budget.written = journal.wait_for_commit
        self._budget.on_change = lambda: journal.update_run(name, spent=self._budget.spent_and_reserved)

    def _halt(self, reason: str, message: str) -> None:
        if self._job:
            self._job.scheduler.end(reason, message)

    def _status(self) -> ShardStatus:
        job, endpoints, budget = self._job, self._endpoints, self._budget
        amounts: dict[str, Any] = dict(spent=dict(budget.spent), committed=budget.committed, shortage=budget.shortage)
        if job is None or endpoints is None:
            use = QuotaUse(self._quota, **amounts)
            return ShardStatus(self._life, use, dict.fromkeys(COUNTED, 0), Usage(), Mean(), Mean())
        self._share.report(job.budget.allocator)
        progress = job.progress
        progress.in_flight = endpoints.in_flight
        is_saturated = not endpoints.room or budget.shortage is not None
        messages, self._messages[:] = tuple(self._messages), []
        return ShardStatus(
            self._life,
            QuotaUse(self._quota, endpoints.in_flight, is_saturated, **amounts),
            {name: getattr(progress, name) for name in COUNTED},
            progress.usage,
            progress.first,
            progress.best,
            endpoints.limit,
            endpoints.state,
            messages,
            job.scheduler.reason,
            job.scheduler.message,
        )


def _call_cache(journal: Journal, run_journal: Path | None, at_the_end: AsyncExitStack) -> MutableMapping[str, Reply]:
    """Return the call cache of a journal, with that of the whole run behind it."""
    if run_journal is None:
        return journal.response_cache
    still = SnapshotReader(run_journal)
    at_the_end.callback(still.close)
    return OverlayCache(journal.response_cache, still)
