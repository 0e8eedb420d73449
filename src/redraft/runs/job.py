"""One run in one process, from opened files to the report: `BatchJob`.

`BatchJob.run` chooses the row policies, has an `Executor` process the rows, and finishes: it closes
the output, writes the final state of the run into the journal and builds the report.
`LocalExecutor` processes the rows in this process: the `Scheduler` decides when a row starts, and
passes it to `RowProcessor`. The job writes the metadata of the run into the journal; `RowRunner`
writes the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ..base.text import pluralize
from ..errors import StoreError, attach
from ..graders.judging.stored_judge import judge_data
from ..middleware.observe import CallbackErrors, observer
from ..models.pricing import FREE
from ..plans import Plan, plan_traits
from ..plans.quality.lineage import llm_graders
from ..plans.quality.priors import Priors
from ..plans.quality.result_facts import ResultFacts
from ..session.session import Session
from ..storage.journal import Journal, display_name
from ..tables.writers import Output, merge_columns, result_column_names
from .allocation import BudgetAllocator, budget_unit
from .budget_policy import BudgetPolicy, BudgetShare, WholeBudget
from .completion import (
    completion_data,
    completion_digest,
    count_as_finished,
    is_complete,
    reuse_report,
    saved_completion,
)
from .config import STDOUT, BatchConfig
from .dataset import BatchDataset, DatasetRows, DatasetSummary, PendingRow
from .earlier_output import WRITTEN, written_state
from .endpoints import Endpoints
from .files import NullOutput, RejectsFile, RunFiles
from .online_priors import (
    OnlinePriors,
    RefitSchedule,
    saved_schedules,
    second_look_rows,
)
from .progress import BatchProgress
from .report import BatchReport, ReportBuilder, RunPriors, build_report
from .row_key import RowKeys
from .runner import RowPolicy, RowRunner
from .saved_summary import summary_data
from .scheduler import Scheduler

ROWS_PER_CALL = 2  # rows under way at most, for each call that may be in flight
MAX_SETTINGS = 8  # of one run whose judges are kept
MAX_WAITING = 200_000  # rows that may wait for an earlier one to be written


class Executor(Protocol):
    """Processes the rows of a run, here or elsewhere. `has_one_price`: all rows stop by the price
    of the job's own allocator.
    """

    has_one_price: bool

    async def work(self, job: BatchJob) -> None:
        """Process all rows. Return when all have ended, or when the scheduler of the job has a
        reason to end the run.
        """
        ...


class RowSource(Protocol):
    """The rows of a run in order."""

    def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]: ...


@dataclass
class BatchJob:
    """A run with everything open that it needs.

    `rows` and `share` may be replaced before `run`: a shard has other rows, and a part of the
    budget. `summary` is the result of the first pass over the data, `ends_at` the deadline by the
    monotonic clock.
    """

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
    # of the complete run, if nothing has changed since
    _complete_report: BatchReport | None = field(default=None, init=False)
    _noted_spent: Mapping[str, float] | None = field(default=None, init=False)

    def __post_init__(self, endpoints: Endpoints) -> None:
        name, session = self.config.name, self.session
        self.scheduler = Scheduler(
            endpoints, self.progress, lambda: ROWS_PER_CALL * session.options.max_in_flight
        )
        self.keys = RowKeys(self.session, self.plan)
        self.ends_at = self.session.options.deadline_at
        self.budget = BudgetPolicy(self.config.options.budget, self.plan, self.journal, name)
        self.share = WholeBudget(
            self.session, self.journal, name, self.summary.total, self.keys.shared
        )
        self.rows = DatasetRows(
            self.dataset, self.summary, self.keys, self.journal, name, self.rejects.put
        )

    @property
    def policies(self) -> list[RowPolicy]:
        """The row policies, in the order in which they are asked: priors before the price."""
        return [*([self.online_priors] if self.online_priors else []), self.budget]

    async def run(self, executor: Executor, say: Callable[[str], object]) -> BatchReport:
        """Process all rows and return the report.

        When cancelled, no row is left under way, the output is closed, and CancelledError has the
        report as `result`.
        """
        self.budget.note_start()
        self._choose_policies(say)
        self.note(
            state="running",
            settings=self._settings_so_far(),
            judges=self._judges_so_far(),
            dataset=summary_data(self.summary),
        )
        output = None if self.config.output in {None, STDOUT} else Path(str(self.config.output))
        files = RunFiles(self.journal, output, self.output.is_in_place, self.scheduler)
        report = None
        try:
            with observer().record_run(self.config.name):
                await files.watch_during(
                    lambda: self.scheduler.run(self._work(executor)), each_second=self.note_spent
                )
            budget_error = self.processor.runner.budget_error if self.processor else ""
            if budget_error and not (
                self.scheduler.reason or self.progress.processed_rows or self.progress.reused
            ):
                self.scheduler.end("budget", budget_error)
            report = self._finish(files, executor)
            await self._keep_completion(report)
            return await self._save_priors(report, say)
        except asyncio.CancelledError as error:
            if report is None:
                # if the cancellation came before the scheduler ran
                self.scheduler.end("interrupted", "", now=True)
                report = self._finish(files, executor)
            attach(error, result=report)
            raise

    async def _work(self, executor: Executor) -> None:
        """Process all rows, unless nothing has changed since the run was complete."""
        if not await self._is_complete():
            self.note(completion=None)
            await executor.work(self)

    async def _is_complete(self) -> bool:
        """Return whether an earlier start has completed this run; if so, keep its output and its
        report.
        """
        saved = (
            None
            if self.scheduler.reason or self.budget.was_raised
            else saved_completion(self.journal, self.config.name)
        )
        if saved is None:
            return False
        try:
            digest = await asyncio.to_thread(self._digest)
        except asyncio.CancelledError:
            self.output.keep()  # no row was read: what is there stays
            raise
        saved_digest, report = saved
        if digest != saved_digest:
            return False
        self._complete_report = report
        count_as_finished(self.progress, report)
        self.output.keep()
        return True

    def _digest(self) -> str:
        """Return the digest of the run as it is now (see `completion_digest`)."""
        columns = self.config.result_columns(self.session.common_panel())
        return completion_digest(self.config, self.summary, self.keys.shared, columns)

    def show_price(self) -> None:
        """Copy the latest price into the progress."""
        if (allocator := self.budget.allocator) and allocator.last_price:
            self.progress.price, self.progress.price_unit = allocator.last_price

    def note(self, **metadata: Any) -> None:
        """Update the metadata of the run in the journal."""
        self.journal.update_run(self.config.name, **metadata)

    async def scan_stopped_rows(self) -> None:
        """Find all rows that a larger budget may reopen, before the first price is set."""
        await self.budget.scan_stopped_rows(
            self.rows.read(reject=False), lambda: bool(self.scheduler.reason)
        )

    # --- the start

    def _settings_so_far(self) -> dict[str, Any]:
        """Return the parts of all settings that this run has had, by the key of the settings; the
        present ones are last.
        """
        settings = dict(self.journal.metadata(self.config.name).get("settings", {}))
        settings.pop(self.keys.shared, None)
        return settings | {self.keys.shared: self.keys.settings}

    def _judges_so_far(self) -> dict[str, Any]:
        """Return the judges of all settings that this run has had, by the key of the settings:
        their prompts follow from them.
        """
        panel, roles = self.session.common_panel()
        judges = {
            grader.name: data
            for grader in panel
            if (data := judge_data(roles.traits[grader.name].grader))
        }
        known = self.journal.metadata(self.config.name).get("judges", {})
        return dict([*({**known, self.keys.shared: judges}.items())][-MAX_SETTINGS:])

    def _choose_policies(self, say: Callable[[str], object]) -> None:
        """Learn priors online unless the user gave priors or a plan; set one price for all rows if
        there is a budget.
        """
        plan, config = plan_traits(self.plan).noise_aware, self.config
        if plan is None or config.plan is not None:
            return
        panel, roles = self.session.common_panel()
        if not isinstance(config.options.priors, Priors):
            enabled = config.learns_online and bool(llm_graders(panel))
            self.online_priors = self._open_priors(plan.priors, say, refits=enabled)
            schedule = self.online_priors.schedule
            self.plan = plan = plan.with_priors(schedule.start)
            self.budget.plan, self.budget.priors_for = plan, lambda row: schedule.priors(row.n)
            key = self.session.knowledge.priors_key
            self.note(priors_key=key.as_data() if key else None)
            self.online_priors.save_schedule()
        is_free = all(
            client.price == FREE for client in (roles.writer, *roles.judges.values()) if client
        )
        if unit := budget_unit(self.session.options.budget, free=is_free):
            share, tracker = self.share, self.session.models.budget_tracker
            with_response = self.summary.with_response == self.summary.total
            self.budget.allocator = BudgetAllocator(
                plan,
                unit,
                lambda: share.left(unit),
                lambda: tracker.spent,
                share.rows_left(),
                panel,
                with_response,
            )

    def _open_priors(
        self, priors: Priors, say: Callable[[str], object], *, refits: bool
    ) -> OnlinePriors:
        """Return the policy with the schedule that the journal has for these settings; with a new
        one if the source has changed.
        """
        source = self.config.options.priors or "shipped"
        known = self.session.knowledge.labelled_figures
        if source == "learned" and not priors.tasks:
            say(
                "no priors are saved for this model with these graders: the run starts with the "
                "shipped ones"
            )
        saved = saved_schedules(self.journal, self.config.name).get(self.keys.shared)
        if (
            saved
            and self.config.options.priors not in {None, saved.get("source")}
            and Priors.from_dict(saved["start"]) != priors
        ):
            saved = None
        schedule = RefitSchedule.from_data(
            priors, saved, enabled=refits, source=source, first=OnlinePriors.first_refit
        )
        if refits and self.config.calibrate:
            # a run that goes on has announced them
            self._plan_second_looks(schedule, (lambda _: None) if saved else say)
        scheduler = self.scheduler
        return OnlinePriors(
            schedule,
            self.journal,
            self.config.name,
            self.keys.shared,
            scheduler.wait_until,
            lambda: bool(scheduler.reason),
            say,
            known,
        )

    def _plan_second_looks(self, schedule: RefitSchedule, say: Callable[[str], object]) -> None:
        """Choose the rows with second looks, if there are any, and announce what they take;
        computed scores need none.
        """
        panel, _ = self.session.common_panel()
        # the noise is known, or there is none
        if self.session.knowledge.labelled_figures.noise_sd is not None or not llm_graders(panel):
            schedule.first = OnlinePriors.first_calibrated_refit
        elif rows := second_look_rows(panel, schedule.start, self.summary.total):
            schedule.second_looks, schedule.first = rows, OnlinePriors.first_calibrated_refit
            say(
                f"calibrating: {pluralize(len(rows), 'second look')} among the first "
                f"{pluralize(rows.stop, 'row')}, about 4% of their calls"
            )

    # --- the end

    def _finish(self, files: RunFiles, executor: Executor) -> BatchReport:
        """Close the output, save the state of the run in the journal, and return the report."""
        try:
            self.output.close(complete=not self.scheduler.reason)
        except StoreError as error:
            self.scheduler.end("disk", str(error))
        files.check_at_end()
        with suppress(StoreError):
            self.note(**{WRITTEN: written_state(self.config, self.summary, self.keys)})
        reason = self.scheduler.reason
        self.progress.finish(reason or "finished")
        if executor.has_one_price:
            self.show_price()
        report = build_report(
            self.progress,
            self.report_builder,
            blank=self.summary.blank,
            excess=self.session.models.budget_tracker.excess,
            priors=self._priors_report(),
            stop=reason,
            stop_note=self.scheduler.message,
            run=self.config.name,
            output=self.config.output,
            journal=str(self.config.journal),
            callback_errors=CallbackErrors(self.session.callback_errors).texts,
        )
        if self._complete_report:
            report = reuse_report(report, self._complete_report)
        with suppress(StoreError):
            self.note_spent()
            self.budget.note_end(
                any_processed=bool(self.progress.processed_rows), complete=not reason
            )
            if (
                not (reason or self._complete_report)
                and self.config.limit is None
                and self.config.pilot is None
            ):  # rows that this run has not seen are no longer in the input
                self.note(last_full_invocation=self.journal.invocation(self.config.name))
            state = "finished" if self.config.pilot is None else "pilot"
            self.note(state=reason or state, report=report.as_data())
        report = files.with_advice(report)
        files.close()
        return report

    def _priors_report(self) -> RunPriors:
        priors, online = plan_traits(self.plan).priors, self.online_priors
        return RunPriors(
            None if priors == Priors() else priors.to_dict(),
            priors.tasks,
            online.schedule.summary if online else (),
            online.second_looks if online else 0,
        )

    async def _keep_completion(self, report: BatchReport) -> None:
        """Save the report of a complete run, by which a later start need not read its rows."""
        if self._complete_report or self.scheduler.reason or not is_complete(self.progress):
            return
        if digest := await asyncio.to_thread(self._digest):
            with suppress(StoreError):
                self.note(completion=completion_data(digest, report))

    def note_spent(self) -> None:
        """Save what was spent, for a later process. With a budget the tracker saves every change
        itself.

        It takes an estimate of each call in flight, so it is not done for each call.
        """
        tracker = self.session.models.budget_tracker
        if self.session.options.budget and not tracker.on_change:
            spent = self.scheduler.endpoints.spent_if_killed(tracker)
            if spent != self._noted_spent:
                self._noted_spent = spent
                self.note(spent=spent)

    async def _save_priors(self, report: BatchReport, say: Callable[[str], object]) -> BatchReport:
        """Save priors fitted to a complete run for other runs with this model and these graders;
        return the report with that.

        Only a run that was asked to use learned priors writes to the user's folder.
        """
        online, config = self.online_priors, self.config
        if online is None or not config.learn or config.options.priors != "learned":
            return report
        key = self.session.knowledge.priors_key
        if key is None or self.scheduler.reason or not self.progress.processed_rows:
            return report
        source = (
            f"run {display_name(config.name, config.output)} in {config.journal}, {{rows:,}} of "
            f"{self.summary.total:,} rows"
        )
        try:
            saved = await online.save_for_other_runs(key, source)
        except StoreError as error:
            say(f"the priors fitted to this run could not be saved: {error}")
            return report
        if saved is None:
            return report
        priors = replace(report.priors, offered_rows=saved[0], saved_tasks=saved[1].tasks)
        report = replace(report, priors=priors)
        with suppress(StoreError):
            self.note(report=report.as_data())
        return report


class LocalExecutor:
    """Processes all rows in this process."""

    has_one_price = True

    async def work(self, job: BatchJob) -> None:
        """Process all rows with the job's scheduler."""
        await job.scan_stopped_rows()
        await job.scheduler.process(job.rows.read(), RowProcessor(job))


@dataclass
class RowProcessor:
    """What the scheduler does with each row of a job: reuse its result, run it, or skip it; and
    then save the result.

    `finished_now`: the numbers of rows that were finished in this run, though their results are
    read from the journal.
    """

    job: BatchJob
    finished_now: Container[int] = ()
    runner: RowRunner = field(init=False)
    _columns: Mapping[str, None] = field(init=False)
    # of result columns whose names the data have
    _other_names: Mapping[str, str] = field(init=False)
    _policies: Sequence[RowPolicy] = field(init=False)
    _has_ids: bool = field(init=False)  # in a column of the data

    def __post_init__(self) -> None:
        job = self.job
        self._columns = dict.fromkeys(job.config.result_columns(job.session.common_panel()))
        self._has_ids = bool(job.dataset.shape.columns.id)
        names = result_column_names(
            self._columns if self._has_ids else ("id", *self._columns), job.dataset.columns
        )
        self._other_names = {own: name for own, name in names.items() if name != own}
        self._policies = [
            policy for policy in job.policies if policy is not job.budget or job.budget.allocator
        ]
        self.runner = RowRunner(
            job.config,
            job.session,
            job.plan,
            job.journal,
            job.progress,
            job.scheduler,
            self.save,
            self._policies,
            job.ends_at,
        )
        job.processor = self

    async def visit(self, row: PendingRow) -> bool:
        """Save the result of a finished row; return whether the row must run."""
        result = self.reusable_result(row)
        for policy in self._policies:
            await policy.row_seen(row, result)
        if result:
            self.save(row, result, reused=True)
        return result is None

    def reusable_result(self, row: PendingRow) -> ResultFacts | None:
        """Return the result from the journal if the row need not run again; None otherwise."""
        result = row.result
        if (
            result is None
            or result.status == "open"
            or self.job.config.redoes(result)
            or self.job.budget.reopens(row)
        ):
            return None
        if row.info and row.info.position != row.n:
            self.job.journal.set_position(self.job.config.name, row.id, row.n)
        return result

    def run(self, row: PendingRow) -> Coroutine[Any, Any, None]:
        """Run a row, and save its result."""
        return self.runner.run(row)

    async def skip(self, row: PendingRow) -> None:
        """Save the best result so far of a row that does not start, because budget or time is
        exhausted.
        """
        self.save(row, await self.runner.best_so_far(row))

    def save(self, row: PendingRow, result: ResultFacts, *, reused: bool = False) -> None:
        """Count a result, and write it to the output."""
        job, entry = self.job, row.entry
        job.progress.count(result, reused=reused and entry.n not in self.finished_now)
        job.report_builder.add(result, str(entry.id))
        columns = (
            {**self._columns, **result.columns}
            if self._has_ids
            else {"id": entry.id, **self._columns, **result.columns}
        )
        job.output.put(entry.n, merge_columns(entry.values, columns, self._other_names))

    @property
    def has_capacity(self) -> bool:
        """Whether the output and the budget let another row start."""
        return self.job.output.pending_count < MAX_WAITING and not self.job.share.is_short

    async def wait_for_capacity(self) -> None:
        """Wait until the share of the budget may have changed. The scheduler wakes up anyway when a
        row ends.
        """
        await self.job.share.wait_for_change()
