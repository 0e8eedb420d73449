"""A run from its start to its report: what it works with, what it notes in the journal, and how it ends.

Who works on the rows, and where, is the executor's business; which row starts when is the scheduler's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Container, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ..errors import StoreError
from ..middleware import BudgetTracker
from ..models.pricing import FREE
from ..plans import CostUnit, NoiseAwarePlan, Plan
from ..quality.lineage import llm_graders
from ..quality.priors import Priors
from ..session import Session
from ..storage.journal import Journal
from ..tables.values import merge_columns, result_column_names
from ..tables.writers import Output
from .allocation import BudgetAllocator, budget_left, budget_unit
from .budget_policy import BudgetPolicy
from .config import STDOUT, BatchConfig
from .dataset import BatchDataset, DatasetSummary
from .endpoints import Endpoints
from .file_watch import RunFiles
from .online_priors import OnlinePriors, RefitSchedule, notes_of
from .outputs import NullOutput, RejectsFile
from .pending_rows import DatasetRows, PendingRow
from .policies import RowPolicy
from .progress import BatchProgress
from .report import BatchReport, ReportBuilder, build_report
from .row_key import RowKeys
from .row_result import COLUMNS, RowResult
from .runner import RowRunner
from .scheduler import Scheduler

ROWS_PER_CALL = 2  # rows under way at most, for each call that may be in flight
MAX_WAITING = 200_000  # rows that may wait for an earlier one to be written


class Executor(Protocol):
    """Has the rows of a run worked on. `has_one_price`: whether the job's own price is the price of its rows."""

    has_one_price: bool

    async def work(self, job: BatchJob) -> None:
        """Have all rows worked on until they have ended, or the run has. The job's scheduler runs this."""
        ...


class RowSource(Protocol):
    """The rows of a run in order."""

    def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]: ...


class BudgetShare(Protocol):
    """What the rows of this process may use of the run's budget."""

    def rows_left(self) -> int:
        """Return how many rows there are to work on, as far as that is known before they are read."""
        ...

    def left(self, unit: CostUnit) -> float:
        """Return what they may still spend."""
        ...

    @property
    def is_short(self) -> bool:
        """Whether a row waits for a larger share."""
        ...

    async def wait_for_change(self) -> None:
        """Wait until the share may have changed."""
        ...


@dataclass
class WholeBudget:
    """The whole budget, for all rows."""

    session: Session
    journal: Journal
    run: str
    rows: int
    key: str  # of the run's settings
    is_short: bool = False

    def rows_left(self) -> int:
        run = self.journal.run(self.run)
        same = run and next(reversed(run.metadata.get("settings", {})), None) == self.key
        return max(1, self.rows - (run.counts["done"] + run.counts["failed"] if run and same else 0))

    def left(self, unit: CostUnit) -> float:
        """Return what is left, less what the most expensive call has used: at the end that much cannot be spent."""
        budget, tracker = self.session.options.budget, self.session.budget_tracker
        return budget_left(budget, tracker.spent, unit, tracker.max_call_usage[unit] if unit != "calls" else 0.0) if budget else 0.0

    async def wait_for_change(self) -> None:
        await asyncio.Event().wait()


@dataclass
class BatchJob:
    """A run, ready to start. Everything that is paid for is in the journal before more is asked."""

    config: BatchConfig
    dataset: BatchDataset
    summary: DatasetSummary
    session: Session
    plan: Plan
    journal: Journal
    output: Output | NullOutput
    rejects: RejectsFile
    progress: BatchProgress
    endpoints: InitVar[Endpoints]
    scheduler: Scheduler[PendingRow] = field(init=False)
    rows: RowSource = field(init=False)
    share: BudgetShare = field(init=False)
    keys: RowKeys = field(init=False)
    ends_at: float | None = field(init=False)
    budget: BudgetPolicy = field(init=False)
    online_priors: OnlinePriors | None = field(default=None, init=False)
    processor: RowProcessor | None = field(default=None, init=False)
    report_builder: ReportBuilder = field(default_factory=ReportBuilder, init=False)

    def __post_init__(self, endpoints: Endpoints) -> None:
        name, session = self.config.name, self.session
        self.scheduler = Scheduler(endpoints, self.progress, lambda: ROWS_PER_CALL * session.options.max_in_flight)
        self.keys = RowKeys(self.session, self.plan)
        self.ends_at = self.session.options.deadline_at
        self.budget = BudgetPolicy(self.config.options.budget, self.plan, self.journal, name)
        self.share = WholeBudget(self.session, self.journal, name, self.summary.total, self.keys.shared)
        self.rows = DatasetRows(
            self.dataset, self.summary, self.keys, self.journal, name, self.rejects.put, before_chunk=self._note_spent
        )

    @property
    def policies(self) -> list[RowPolicy]:
        """The policies of its rows, in the order in which they are asked."""
        return [*([self.online_priors] if self.online_priors else []), self.budget]

    async def run(self, executor: Executor, say: Any) -> BatchReport:
        """Work on all rows. If this is cancelled it stops at once, and CancelledError carries the report as `result`."""
        self.budget.note_start()
        self._prepare_policies(say)
        self.note(state="running", settings=self._known_settings())
        output = None if self.config.output in {None, STDOUT} else Path(str(self.config.output))
        files = RunFiles(self.journal, output, self.output.is_in_place, self.scheduler)
        visible = self.progress
        try:
            try:
                await files.watch_during(self.scheduler.run(executor.work(self)))
            except asyncio.CancelledError as cut:
                cut.result = self._finish(files, executor)  # type: ignore[attr-defined]
                raise
            self._blame_small_budget()
            return await self._save_priors(self._finish(files, executor), say)
        finally:
            vars(visible).update(vars(self.progress))

    def show_price(self) -> None:
        """Show in the progress the price as it was last asked for."""
        if (allocator := self.budget.allocator) and allocator.last_price:
            self.progress.price, self.progress.price_unit = allocator.last_price

    def note(self, **about: Any) -> None:
        """Note facts about the run in the journal."""
        self.journal.update_run(self.config.name, **about)

    async def scan_stopped_rows(self) -> None:
        """Look at all rows that a raised budget may reopen, before a price is set for the first of them."""
        await self.budget.scan_stopped_rows(self.rows.read(reject=False), lambda: bool(self.scheduler.reason))

    # --- the start

    def _known_settings(self) -> dict[str, Any]:
        """Return the parts of all settings that this run has had, by their key; the newest last."""
        run = self.journal.run(self.config.name)
        known = dict(run.metadata.get("settings", {})) if run else {}
        known.pop(self.keys.shared, None)
        return known | {self.keys.shared: self.keys.settings}

    def _prepare_policies(self, say: Any) -> None:
        """Find out the priors of the first rows, and whether rows share a budget."""
        plan, config = self.plan, self.config
        if not isinstance(plan, NoiseAwarePlan) or config.plan is not None:
            return
        panel, roles = self.session.common_panel()
        if not isinstance(config.options.priors, Priors):
            source = config.options.priors or "shipped"
            if source == "learned" and plan.priors == Priors():
                say("nothing was learned yet of this model with these graders: the shipped priors hold")
            enabled = config.learn and config.engine == "local" and bool(llm_graders(panel))
            note = self._noted_priors(plan.priors)
            schedule = RefitSchedule.from_note(plan.priors, note, enabled=enabled, source=source, first=OnlinePriors.first_refit)
            scheduler = self.scheduler
            self.online_priors = OnlinePriors(
                schedule, self.journal, config.name, self.keys.shared, scheduler.wait_until, lambda: bool(scheduler.reason), say
            )
            self.plan = plan = plan.with_priors(schedule.start)
            self.budget.plan, self.budget.priors_for = plan, lambda row: schedule.priors(row.n)
            pair = self.session.priors_key
            self.note(pair=pair.as_data() if pair else None)
            self.online_priors.note()
        free = all(client.price == FREE for client in (roles.writer, *roles.judges.values()) if client)
        if unit := budget_unit(self.session.options.budget, free=free):
            share, tracker = self.share, self.session.budget_tracker
            with_response = self.summary.with_response == self.summary.total
            self.budget.allocator = BudgetAllocator(
                plan, unit, lambda: share.left(unit), lambda: tracker.spent, share.rows_left(), panel, with_response
            )

    def _noted_priors(self, priors: Priors) -> dict[str, Any] | None:
        """Return the note of the run's priors, which hold until its end unless the user asks for others; None if none holds."""
        note: dict[str, Any] | None = notes_of(self.journal, self.config.name).get(self.keys.shared)
        if note is None or self.config.options.priors in {None, note.get("source")} or Priors.from_dict(note["start"]) == priors:
            return note
        return None

    # --- the end

    def _blame_small_budget(self) -> None:
        """End the run as out of budget if no row was done, and one would have taken more than the whole budget."""
        reason = self.processor.runner.too_expensive if self.processor else ""
        if reason and not (self.scheduler.reason or self.progress.processed_rows or self.progress.reused):
            self.scheduler.end("budget", reason)

    def _finish(self, files: RunFiles, executor: Executor) -> BatchReport:
        """Close the output, and note and return the report."""
        try:
            self.output.close(complete=not self.scheduler.reason)
        except StoreError as error:
            self.scheduler.end("disk", str(error))
        files.check_at_end()
        ended = self.scheduler.reason
        self.progress.finish(ended or "finished")
        if executor.has_one_price:
            self.show_price()
        priors = self.plan.priors if isinstance(self.plan, NoiseAwarePlan) else Priors()
        report = build_report(
            self.progress,
            self.report_builder,
            run=self.config.name,
            end_reason=ended,
            message=self.scheduler.message,
            output=self.config.output,
            journal=str(self.config.journal),
            excess=self.session.budget_tracker.excess,
            priors=None if priors == Priors() else priors.to_dict(),
            initial_prior_tasks=priors.tasks,
            prior_refits=self.online_priors.schedule.summary if self.online_priors else (),
        )
        with suppress(StoreError):
            self._note_spent()
            self.budget.note_end(worked=bool(self.progress.processed_rows), complete=not ended)
            if not ended and self.config.limit is None:  # rows that this run did not meet are not in the input any more
                self.note(last_full_invocation=self.journal.invocation(self.config.name))
            self.note(state=ended or "finished", report=report.as_data())
        report = files.with_advice(report)
        files.close()
        return report

    def _note_spent(self) -> None:
        """Note what was spent, if no budget does so all the time: the next run may have one."""
        tracker: BudgetTracker = self.session.budget_tracker
        if self.session.options.budget and not tracker.on_change:
            self.note(spent=self.scheduler.endpoints.spent_if_killed(tracker))

    async def _save_priors(self, report: BatchReport, say: Any) -> BatchReport:
        """Save what a whole run has learned for other runs with this model and these graders; return the report with that."""
        online, config, pair = self.online_priors, self.config, self.session.priors_key if self.online_priors else None
        if online is None or pair is None or self.scheduler.reason or not config.learn or not self.progress.processed_rows:
            return report
        source = f"run {config.name} in {config.journal}, {{rows:,}} of {self.summary.total:,} rows"
        try:
            saved = await online.save_for_other_runs(pair, source)
        except StoreError as error:
            say(f"what the run has learned could not be saved: {error}")
            return report
        except asyncio.CancelledError as cut:  # everything else is done
            cut.result = report  # type: ignore[attr-defined]
            raise
        if saved is None:
            return report
        report = replace(report, prior_rows=saved[0], saved_prior_tasks=saved[1].tasks)
        with suppress(StoreError):
            self.note(report=report.as_data())
        return report


@dataclass
class RowProcessor:
    """What the scheduler does with the rows of a job. `fresh`: rows that were finished in this run, though their results come
    from the journal.
    """

    job: BatchJob
    fresh: Container[int] = ()
    runner: RowRunner = field(init=False)
    _names: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        job = self.job
        self._names = result_column_names(("id", *COLUMNS), job.dataset.columns)
        policies = [policy for policy in job.policies if policy is not job.budget or job.budget.allocator]
        self.runner = RowRunner(job.config, job.session, job.plan, job.journal, job.progress, job.scheduler, policies, job.ends_at)
        job.processor = self

    async def visit(self, row: PendingRow) -> bool:
        """Save the result of a finished row; return whether the row is to be run."""
        result = self.reusable_result(row)
        for policy in self.job.policies:
            await policy.row_seen(row, result)
        if result:
            self.save(row, result, reused=True)
        return result is None

    def reusable_result(self, row: PendingRow) -> RowResult | None:
        """Return the result of a row that is not to be worked on again."""
        result = row.result
        if result is None or result.status == "open" or self.job.config.redoes(result) or self.job.budget.reopens(row):
            return None
        if row.note and row.note.position != row.n:
            self.job.journal.set_position(self.job.config.name, row.id, row.n)
        return result

    async def run(self, row: PendingRow) -> None:
        """Work on a row, and save its result."""
        self.save(row, await self.runner.run(row), reused=False)

    def skip(self, row: PendingRow) -> None:
        """Save what there is of a row that is not started, because budget or time is exhausted."""
        self.save(row, self.runner.best_so_far(row), reused=False)

    def save(self, row: PendingRow, result: RowResult, *, reused: bool) -> None:
        """Count a result, and write it to the output."""
        job, entry = self.job, row.entry
        job.progress.count(result, reused=reused and row.n not in self.fresh)
        job.report_builder.add(result)
        id = {} if job.dataset.shape.columns.id else {"id": entry.id}
        job.output.put(entry.n, merge_columns(entry.values, {**id, **result.columns}, self._names))

    @property
    def has_capacity(self) -> bool:
        """Whether the output and the budget let another row start."""
        return self.job.output.pending_count < MAX_WAITING and not self.job.share.is_short

    async def wait_for_capacity(self) -> None:
        """Wait until the budget's share may have changed; that a row is written ends another one's wait anyway."""
        await self.job.share.wait_for_change()
