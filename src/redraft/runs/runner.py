"""One row, from its note in the journal to its result.

Every record that was paid for is in the journal before the row's next step is asked for; what is there is never asked again.
How a row is refined is the business of `api.drive`, how an endpoint is called that of its limiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ..api import Refinement, make_refinement, resolve_model, run_refinement, with_outcome, with_priors_in_settings
from ..core.records import Outcome, StopReason
from ..core.serialize import record_to_json
from ..core.steps import Step
from ..core.trace import Trace
from ..errors import ConfigError, StoreError
from ..middleware import BudgetTracker
from ..options import Options
from ..plans import NoiseAwarePlan, Plan
from ..protocols import Call, Model
from ..quality.lineage import llm_graders
from ..resume import without_outcome
from ..session import Session
from ..storage.journal import Journal
from ..usage import NO_USAGE
from .config import BatchConfig
from .endpoints import ROW
from .pending_rows import PendingRow
from .policies import RowPolicy
from .progress import BatchProgress
from .row_result import RowResult, failed_result, not_started_result, row_result

UNTRIED_ENDS = {"fatal", "outage"}  # if one of these ends the run, a row without an answer counts as not tried


class RunEnd(Protocol):
    """The end of the run, once there is one; a row may cause it."""

    reason: str
    message: str

    def end(self, reason: str, message: str) -> None: ...


@dataclass
class RowRunner:
    """Works on the rows of a run. `ends_at`: when the run is to be over, by the monotonic clock."""

    config: BatchConfig
    session: Session
    plan: Plan
    journal: Journal
    progress: BatchProgress
    run_end: RunEnd
    policies: Sequence[RowPolicy] = ()
    ends_at: float | None = None
    too_expensive: str = field(default="", init=False)  # why a row failed that the whole budget would not have paid for

    async def run(self, row: PendingRow) -> RowResult:
        """Work on a row until it ends. A fault of the row is its result; raises StoreError if the journal fails."""
        ROW.set(row.id)
        for policy in self.policies:
            policy.row_started(row)
        job = trace = None
        try:
            job, store = self._prepare(row)
            trace = await self._advance(job, store)
            if unsaved := next((f for f in trace.failures.values() if f.error == StoreError.__name__), None):
                raise StoreError(unsaved.message)  # the journal, which is the call cache as well, has failed, not the row
            result = row_result(trace)
            if self.run_end.reason in UNTRIED_ENDS and result.status == "open" and all(c.by == "given" for c in trace.candidates):
                result = not_started_result(self.run_end.message)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (a row's data and its graders may raise anything)
            result = failed_result(error)
            if job is None:
                self._begin(row, Trace(row.entry.task))
        data = result.as_data()
        for policy in self.policies:
            data |= policy.row_finished(row, trace)
        self.journal.finish_row(self.config.name, row.id, result.status, data)
        await self.journal.wait_for_commit()
        for policy in self.policies:
            policy.row_saved(row)
        return result

    def best_so_far(self, row: PendingRow) -> RowResult:
        """Return the result of a row for which nothing is left: the best of an earlier run, if there is one."""
        if row.result:
            return row.result
        trace = self.journal.trace(self.config.name, row.id) if row.is_current else None
        if trace and trace.graded_candidates:
            return row_result(with_outcome(trace, self.plan_for(row), StopReason(self.run_end.reason), self.run_end.message))
        return not_started_result(self.run_end.message)

    def plan_for(self, row: PendingRow) -> Plan:
        """Return the plan that a row starts with."""
        plan = self.plan
        if not isinstance(plan, NoiseAwarePlan):
            return plan
        for policy in self.policies:
            plan = policy.plan_for(row, plan, None)
        return plan

    def _prepare(self, row: PendingRow) -> tuple[Refinement, RowStore]:
        """Return the row's refinement, resumed from the journal or new, and the store for its records. Raises ConfigError."""
        task, name = row.entry.task, self.config.name
        if self.config.mode == "grade" and task.response is None:
            raise ConfigError("there is no response to grade")
        redo = bool(row.result and row.result.truncated and "truncated" in self.config.retry)
        earlier = self.journal.trace(name, row.id) if row.is_current and not redo else None
        if earlier and earlier.outcome and earlier.outcome.reason is StopReason.GAIN:  # it is reopened
            earlier = without_outcome(earlier)
            if row.note and row.note.result:
                self.journal.finish_row(name, row.id, "open", row.note.result)
        plan = self.plan_for(row)
        job = make_refinement(replace(earlier, task=task) if earlier else task, self.session, self.ends_at)
        job = with_priors_in_settings(replace(job, plan=plan))
        if earlier is None:
            self._begin(row, job.trace)
        store = RowStore(self.journal, name, row.id, self.progress, len(earlier.records) if earlier else 0)
        if earlier and isinstance(plan, NoiseAwarePlan):
            for policy in self.policies:
                policy.row_resumed(row, plan, job.trace)
        next_steps = partial(self._decide, row, plan) if self.policies and isinstance(plan, NoiseAwarePlan) else None
        return replace(job, next_steps=next_steps, store=store, owns_session=False), store

    def _decide(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> Sequence[Step]:
        """Return the next steps by the row's plan at the price of the moment, and report the decision to the policies."""
        for policy in self.policies:
            plan = policy.plan_for(row, plan, trace)
        decision = plan.decide(trace)
        for policy in self.policies:
            policy.decision_made(row, plan, trace, decision)
        return decision.steps

    def _begin(self, row: PendingRow, trace: Trace) -> None:
        """Begin a row in the journal, without the columns that only the output needs."""
        bare = replace(trace, task=replace(trace.task, metadata={}), records=())
        self.journal.begin_row(self.config.name, row.id, row.n, row.key, row.parts, bare.header())

    async def _advance(self, job: Refinement, store: RowStore) -> Trace:
        """Return the trace at its end, or as far as it got before the run ended."""
        try:
            async with aclosing(run_refinement(job)) as growing:
                async for trace in growing:
                    if trace.records[-1].usage is not NO_USAGE:
                        await self.journal.wait_for_commit()  # what was paid for is safe before more is asked
        except asyncio.CancelledError:
            if not self.run_end.reason:
                raise
        trace = store.trace or job.trace
        outcome = trace.outcome
        if outcome and (outcome.reason == "deadline" or (outcome.reason == "budget" and self.session.budget_tracker.is_exhausted)):
            self.run_end.end(str(outcome.reason), outcome.note)
        elif outcome and outcome.reason == "budget":
            self.too_expensive = outcome.note
        return trace


@dataclass
class RowStore:
    """Puts the records of one row into the journal, and counts their usage. `trace` is the row so far.

    That a row was cut short is not stored: it is resumed.
    """

    journal: Journal
    run: str
    row: str
    progress: BatchProgress
    saved: int = 0
    trace: Trace | None = None

    def append(self, trace: Trace) -> None:
        """Save the records of the trace that are not in the journal yet."""
        self.trace = trace
        fresh = [r for r in trace.records[self.saved :] if not (isinstance(r, Outcome) and r.reason.resumable)]
        if fresh:
            self.journal.append_records(self.run, self.row, self.saved, [record_to_json(r) for r in fresh])
            self.saved += len(fresh)
            self.progress.usage = sum((r.usage for r in fresh), self.progress.usage)


async def make_session(  # noqa: PLR0917
    config: BatchConfig,
    model: Any,
    graders: Any,
    judge: Any,
    options: Options,
    hold: Callable[[Call, Model], Call] | None,
    budget: BudgetTracker | None = None,
) -> tuple[Session, Plan]:
    """Return the session of a run and the plan for its rows. `budget`: one that others share; None: the session's own."""
    writer = model
    if config.mode == "grade":
        options = replace(options, max_iterations=0, editor=False)
        writer, judge = False, await resolve_model(model if judge is None else judge)
    session = Session(options, await resolve_model(writer), graders, judge, hold)
    session.budget_tracker = budget or session.budget_tracker
    panel, _ = session.common_panel()
    noisy = bool(llm_graders(panel))
    plan = config.plan or options.make_plan(writes=session.writer is not None, noisy=noisy, priors=session.priors)
    return session, plan


def restore_capabilities(session: Session, name: str, journal: Journal) -> None:
    """Restore what a run has learned of its models' capabilities, and note what it learns from now on."""
    run = journal.run(name)
    known = session.capabilities
    known.restore(run.metadata.get("capabilities", {}) if run else {})
    known.on_change = lambda: journal.update_run(name, capabilities=known.as_data())
