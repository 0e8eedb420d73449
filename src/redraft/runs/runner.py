"""One row: `RowRunner` takes it from its state in the journal to its result.

What the journal gets, and when:

1. `begin_row` when a row starts for the first time, or starts over because its data or the settings
   have changed; it is written with the first records, or after a second;
2. `append_records` after each step, with the answers, grades and failures of the step (`RowStore`).
   If the step made calls, the runner waits until the records are committed to disk before the next
   step begins;
3. `finish_row` with the status and the result, also committed before the row counts as ended.

A killed process therefore loses at most the step that was in progress, and of that step only the
calls whose replies were not in the journal yet, which is the call cache as well. The next run loads
the trace from the journal and continues with the next step.

The plan of each row is chosen by the row policies (`RowPolicy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ..base.jsontext import dumps_text
from ..base.threads import run_in_thread
from ..errors import NoResponseError, StoreError
from ..graders.traits import report_hidden_tests
from ..loop.records import Outcome, Record, StopReason
from ..loop.serialize import SCHEMA, pack, record_to_json
from ..loop.steps import Step, Stop
from ..loop.task import Task
from ..loop.trace import PanelGrader, Trace
from ..middleware import BudgetTracker
from ..middleware.observe import observer
from ..models.registry import alternative_models
from ..plans import NoiseAwarePlan, Plan, PlanDecision, plan_traits
from ..plans.base import RoundByRound
from ..plans.quality.result_facts import ResultFacts
from ..protocols import Perform
from ..session.models import LimitCalls, Models
from ..session.options import CALIBRATION_KEY, Options, plan_settings, without_outcome
from ..session.panel import needs_judge
from ..session.refinement import (
    Refinement,
    RefinementRun,
    make_refinement,
    resolve_model,
    with_outcome,
)
from ..session.session import Session
from ..storage.journal import Journal
from ..tables.columns import with_one_response
from ..usage import NO_USAGE
from .config import BatchConfig
from .dataset import PendingRow
from .endpoints import ROW
from .progress import BatchProgress
from .row_key import short_hash
from .row_result import (
    failed_result,
    grader_columns,
    grader_values,
    has_begun,
    hidden_values,
    not_started_result,
    row_result,
)

# if one of these ends the run, a row without an answer counts as not tried
UNTRIED_ENDS = {"fatal", "outage"}


class RowPolicy(Protocol):
    """Chooses the plans of rows with regard to all rows of the run, as `BudgetPolicy` and
    `OnlinePriors` do.

    Plans are pure: a policy returns plans, and the runner reports to it what they decided. The
    methods are called in this order, `decision_made` once for every decision, and `plan_for` also
    while steps of the last decision are being performed.
    """

    async def row_seen(self, row: PendingRow, result: ResultFacts | None) -> None:
        """Every row is passed once, in the order of the data, before it may start. May wait.

        `result`: its result from an earlier run, if that is reused, so that the row does not start.
        """
        ...

    def row_started(self, row: PendingRow) -> None:
        """The row starts."""
        ...

    def plan_for(
        self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace | None
    ) -> NoiseAwarePlan:
        """Return the plan for the row's next step, given the plan chosen by the policies before
        this one.

        `trace` is None once, when the row starts.
        """
        ...

    def row_resumed(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> None:
        """The row continues with this trace from the journal."""
        ...

    def decision_made(
        self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision
    ) -> None:
        """The chosen plan has made a decision."""
        ...

    def row_finished(self, row: PendingRow, trace: Trace | None) -> Mapping[str, Any]:
        """The row has ended. Return data for the journal to keep with its result. `trace` is None
        if the row could not start.
        """
        ...

    def row_saved(self, row: PendingRow) -> None:
        """The row's result is committed to the journal."""
        ...


class RunEnd(Protocol):
    """Why the run ends ("" while it does not); a row may end it."""

    reason: str
    detail: str

    def end(self, reason: str, message: str, detail: str = "") -> None: ...


@dataclass
class RowRunner:
    """Works on the rows of a run. `save` gets the result of each; `ends_at` is the deadline of the
    run, by the monotonic clock.

    `budget_error`: the error of a row that needed more than the whole budget; "" if there was none.
    """

    config: BatchConfig
    session: Session
    plan: Plan
    journal: Journal
    progress: BatchProgress
    run_end: RunEnd
    save: Callable[[PendingRow, ResultFacts], None]
    policies: Sequence[RowPolicy] = ()
    ends_at: float | None = None
    budget_error: str = field(default="", init=False)
    _grader_columns: Mapping[str, tuple[str, str]] = field(init=False)
    _reports_hidden_tests: bool = field(init=False)
    _headers: RowHeaders = field(init=False)
    # the plan of the last row that started
    _recorded_plan: Plan | None = field(default=None, init=False)
    # what its trace records of it
    _plan_settings: Mapping[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        panel, roles = self.session.common_panel()
        self._grader_columns = grader_columns(panel) if self.config.mode == "grade" else {}
        self._reports_hidden_tests = report_hidden_tests(roles.traits.values())
        self._headers = RowHeaders()

    async def run(self, row: PendingRow) -> None:
        """Work on a row until it ends, and save its result. An error in the row is its result.

        Raises StoreError if the journal fails.
        """
        id = row.id
        ROW.set(id)
        observer().begin_row(self.config.name, id)
        for policy in self.policies:
            policy.row_started(row)
        refinement = trace = None
        try:
            refinement = self._prepare(row)
            run = RefinementRun(refinement)
            try:
                await run.finish()
            except asyncio.CancelledError:
                if not self.run_end.reason:
                    raise
            trace = run.trace
            self._note_end(trace)
            result = await self._result_of(trace)
            if (
                self.run_end.reason in UNTRIED_ENDS
                and result.status == "open"
                and not trace.graded_candidates
            ):
                result = self._without_grade(trace, result)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (a row's data and its graders may raise anything)
            result = failed_result(error)
            if refinement is None:
                self._begin(row, Trace(row.entry.task))
        data = result.to_data()
        for policy in self.policies:
            data |= policy.row_finished(row, trace)
        self.journal.finish_row(self.config.name, id, result.status, data)
        await self.journal.wait_for_commit()
        for policy in self.policies:
            policy.row_saved(row)
        self.save(row, result)

    async def best_so_far(self, row: PendingRow) -> ResultFacts:
        """Return the result of a row that is not started: the best answer in the journal, if there
        is one.
        """
        if row.result:
            return row.result
        trace = self.journal.trace(self.config.name, row.id) if row.is_current else None
        if trace and has_begun(trace):
            return await self._result_of(
                with_outcome(
                    trace, self.plan_for(row), StopReason(self.run_end.reason), self.run_end.detail
                )
            )
        return not_started_result(self.run_end.detail)

    def _without_grade(self, trace: Trace, result: ResultFacts) -> ResultFacts:
        """Return the result of a row without a grade that the end of the run cut short: with the
        reason as its error.
        """
        if not (trace.candidates and has_begun(trace)):
            return not_started_result(self.run_end.detail)
        return replace(result, error=self.run_end.detail)

    async def _result_of(self, trace: Trace) -> ResultFacts:
        """Return the result of a trace, with the columns of hidden tests, and in mode "grade" those
        of the graders.
        """
        form, more = self.session.options.answer, grader_values(trace, self._grader_columns)
        if self._reports_hidden_tests:
            more = {**hidden_values(trace), **more}
        return (
            await run_in_thread(row_result, trace, form, more)
            if form
            else row_result(trace, more=more)
        )

    def plan_for(self, row: PendingRow) -> Plan:
        """Return the plan with which a row starts."""
        plan = plan_traits(self.plan).noise_aware
        if not (self.policies and plan):
            return self.plan
        for policy in self.policies:
            plan = policy.plan_for(row, plan, None)
        return plan

    def _prepare(self, row: PendingRow) -> Refinement:
        """Return the row's refinement, resumed from the journal or new. Raises ConfigError."""
        task = row.entry.task
        self._check_task(task)
        earlier = self._earlier_trace(row)
        plan = self.plan_for(row)
        if plan is not self._recorded_plan:
            self._recorded_plan, self._plan_settings = plan, plan_settings(plan)
        start = replace(earlier, task=task) if earlier else task
        refinement = make_refinement(
            start,
            self.session,
            self.ends_at,
            owns_session=False,
            plan=plan,
            settings=self._plan_settings,
        )
        if earlier is None:
            self._begin(row, refinement.trace)
        known = len(earlier.records) if earlier else 0
        store = RowStore(self.journal, self.config.name, row.id, self.progress, known)
        perform = partial(self._perform, refinement.perform, store)
        refinement = replace(refinement, perform=perform, store=store)
        if noise_aware := plan_traits(plan).noise_aware:
            preview, decide = (
                partial(self._preview, row, noise_aware),
                partial(self._decide, row, noise_aware),
            )
            refinement = replace(refinement, next_steps=RoundByRound(preview, decide))
            for policy in self.policies if earlier else ():
                policy.row_resumed(row, noise_aware, refinement.trace)
        return refinement

    def _check_task(self, task: Task) -> None:
        """Raise ConfigError if there is no response, and nothing that writes one."""
        if task.given_responses:
            return
        if self.config.mode == "grade":
            with_one_response(task)  # raises what is wrong
        if self.session.models.writer is None:
            raise NoResponseError(
                "there is no response, and no model to write one: it is missing or blank"
            )

    def _earlier_trace(self, row: PendingRow) -> Trace | None:
        """Return the trace from which a row goes on; None if it starts from the beginning.

        A row that the price had stopped continues without that outcome; its old result stays until
        there is a new one.
        """
        redo = bool(row.result and row.result.truncated and "truncated" in self.config.retry)
        if redo or not row.is_current:
            return None
        earlier = self.journal.trace(self.config.name, row.id)
        if not (earlier and earlier.outcome and earlier.outcome.reason is StopReason.GAIN):
            return earlier
        if row.info and row.info.result:
            self.journal.finish_row(self.config.name, row.id, "open", row.info.result)
        return without_outcome(earlier)

    def _preview(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> PlanDecision:
        """Return the decision by the plan that the policies choose now."""
        for policy in self.policies:
            plan = policy.plan_for(row, plan, trace)
        return plan.decide(trace)

    def _decide(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> PlanDecision:
        """Return the decision by the plan that the policies choose now, and report it to them."""
        for policy in self.policies:
            plan = policy.plan_for(row, plan, trace)
        decision = plan.decide(trace)
        for policy in self.policies:
            policy.decision_made(row, plan, trace, decision)
        return decision

    def _begin(self, row: PendingRow, trace: Trace) -> None:
        """Create the row in the journal."""
        header = self._headers.header(trace)
        self.journal.begin_row(self.config.name, row.id, row.n, row.key, row.parts, header)

    async def _perform(self, perform: Perform, store: RowStore, step: Step) -> Record:
        """Perform a step, after the records of earlier calls are committed to disk."""
        if store.paid > store.committed and not isinstance(step, Stop):
            paid = store.paid
            await self.journal.wait_for_commit()
            store.committed = max(store.committed, paid)
        return await perform(step)

    def _note_end(self, trace: Trace) -> None:
        """End the run if a row has ended, with this trace, for a reason that concerns all rows.

        Raises StoreError if the journal has failed as the call cache: that ends the run, too.
        """
        outcome = trace.outcome
        if outcome and (
            outcome.reason == "deadline"
            or (outcome.reason == "budget" and self.session.models.budget_tracker.is_exhausted)
        ):
            self.run_end.end(str(outcome.reason), _limit_text(trace, outcome.note), outcome.note)
        elif outcome and outcome.reason == "budget":
            self.budget_error = _limit_text(trace, outcome.note)
        for failure in trace.failures.values():
            if failure.error == StoreError.__name__:
                raise StoreError(failure.message)


def _limit_text(trace: Trace, note: str) -> str:
    """Return which limit ended a trace. The note of answers without a grade quotes why their
    graders failed.
    """
    if not trace.candidates or trace.graded_candidates:
        return note
    return next((failure.message for failure in trace.failures.values() if failure.stop_reason), "")


class RowHeaders:
    """Makes the headers of rows as JSON. What follows the task is encoded once for all rows that
    have the same.

    Where orjson cannot encode the task or the rest, `dumps_text` spells that part as `json` does.
    """

    def __init__(self) -> None:
        self._panel: Sequence[PanelGrader] = ()
        self._settings: Mapping[str, Any] | None = None
        self._end = ""  # the JSON after the task

    def header(self, trace: Trace) -> str:
        """Return the header of a trace without the metadata, which only the output needs; a hash
        replaces a long calibration.
        """
        if trace.panel is not self._panel or trace.settings != self._settings:
            self._panel, self._settings, self._end = (
                trace.panel,
                trace.settings,
                self._encode_end(trace),
            )
        task = pack(trace.task)
        task.pop("metadata", None)
        return f'{{"redraft":{SCHEMA},"task":{dumps_text(task)},{self._end}'

    def _encode_end(self, trace: Trace) -> str:
        header = trace.header()
        panel, settings = header["panel"], header["settings"]
        if CALIBRATION_KEY in settings:
            settings[CALIBRATION_KEY] = short_hash(settings[CALIBRATION_KEY])
        return dumps_text({"panel": panel, "settings": settings})[1:]


@dataclass
class RowStore:
    """Appends the records of one row to the journal, and adds their usage to the progress.

    `saved` is the number of records in the journal. `paid` is how many there were after the last
    one that took calls, `committed` how many are known to be on disk. Given answers, which the
    header has as well, are appended with the record of the first step. An outcome that only says
    that the row was cut short is not stored, because the row will be resumed.
    """

    journal: Journal
    run: str
    row: str
    progress: BatchProgress
    saved: int
    paid: int = 0
    committed: int = 0

    def append(self, trace: Trace) -> None:
        """Append the records of the trace that are not in the journal yet."""
        count = len(trace.records)
        if count <= self.saved or count <= len(trace.task.given_responses):
            return
        records = trace.records[self.saved :]
        if trace.outcome and trace.outcome.reason.resumable:
            records = tuple([r for r in records if not isinstance(r, Outcome)])
        if records:
            self.journal.append_records(
                self.run, self.row, self.saved, list(map(record_to_json, records))
            )
            self.saved += len(records)
            for record in records:
                if record.usage != NO_USAGE:
                    self.paid = self.saved
                    self.progress.add_usage(record.usage)


async def make_session(  # noqa: PLR0917
    config: BatchConfig,
    model: Any,
    graders: Any,
    judge: Any,
    options: Options,
    hold: LimitCalls | None,
    budget: BudgetTracker | None = None,
) -> tuple[Session, Plan]:
    """Return the session of a run and the plan for its rows. `hold` limits the calls of a model;
    `budget` replaces the tracker.
    """
    writer = model
    if config.mode == "grade":
        options = replace(options, max_iterations=0, editor=False)
        judge = next(iter(alternative_models(model)), None) if judge is None else judge
        judge = False if judge is None and not needs_judge(graders) else judge
        writer, judge = False, await resolve_model(judge)
    models = Models(options, await resolve_model(writer), None if judge is False else judge, hold)
    models.budget_tracker = budget or models.budget_tracker
    session = Session(options, models, graders)
    noisy = session.common_panel().is_noisy
    plan = config.plan or session.plan_for(noisy=noisy)
    return session, plan


def restore_capabilities(session: Session, name: str, journal: Journal) -> None:
    """Load what earlier processes have learned about the endpoints from the journal, and save there
    what this one learns.
    """
    capabilities = session.models.capabilities
    capabilities.restore(journal.metadata(name).get("capabilities", {}))
    capabilities.on_change = lambda: journal.update_run(name, capabilities=capabilities.as_data())
