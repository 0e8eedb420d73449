"""Draft, repair what needs no model, grade, and refine the best until a rule says stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .. import checks
from ..core.prompts import draft_messages, refinement_messages
from ..core.records import Candidate, StopReason
from ..core.steps import Compare, Generate, Grade, Refine, Repair, Step, Stop
from ..core.stopping import StopRule, done, max_iterations, patience, target, tool_calls
from ..core.trace import Trace

GIVE_UP_REASONS = {
    StopReason.PATIENCE,
    StopReason.MAX_ITERATIONS,
}  # not said of candidates that money or time kept from being graded
UNREADABLE_ERROR = "BadResponseError"  # what a judge fails with whose answer cannot be read


def best_so_far(trace: Trace) -> Candidate | None:
    """The default parent of a refinement: the best; while that breaks a must, what comes nearest of those that keep as many."""
    best = trace.best
    if best is None or trace.meets_musts(best.id):
        return best
    field = [c for c in trace.graded_candidates if trace.must_pass_rate(c.id) == trace.must_pass_rate(best.id)]
    return max(field, key=lambda c: (trace.nearness(c.id), c.id == best.id, trace.scores[c.id] or 0.0, -c.id), default=best)


MAX_DRAFTS = 1000


@dataclass(frozen=True)
class SelfRefine:
    """Draft `drafts` answers, let the editor repair each (`repairs`), grade them all, refine `parent` until `stop`.

    A candidate is graded as soon as it is there. One that calls tools ends the work as it is, once all first drafts are in,
    unless a grader reads tool calls. One that the editor repaired is replaced by its repair before anything is paid for it; a
    given response is always graded in full, so that gains are measured against it.
    """

    stop: StopRule = target(0.9) | done() | patience(2) | max_iterations(3)
    drafts: int = 1
    repairs: bool = True
    select_parent: Callable[[Trace], Candidate | None] = best_so_far

    def __post_init__(self) -> None:
        checks.whole_number("drafts", self.drafts, 1, MAX_DRAFTS)
        checks.flag("repairs", self.repairs)
        for name in ("stop", "parent"):
            checks.instance(name, getattr(self, name), "a function of a trace")
            if not callable(getattr(self, name)):
                raise checks.invalid_argument(name, "a function of a trace", getattr(self, name))

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return (
            stop_for_tool_calls(trace, self.missing_drafts(trace))
            or self.missing_steps(trace)
            or self.missing_comparisons(trace)
            or self.stop_or_refine(trace)
        )

    def missing_steps(self, trace: Trace) -> Sequence[Step]:
        """What the candidates at hand still lack: the first drafts, their checks, their repairs, their grades."""
        drafting = self.missing_drafts(trace)
        checks = self.missing_grades(trace, trace.candidates, model_free=True)
        mending = self.plan_repairs(trace, checks, has_missing_drafts=bool(drafting)) if self.repairs else RepairPlan()
        judging = self.missing_grades(
            trace, [c for c in trace.candidates if c.id not in mending.skip_grading_ids], model_free=False
        )
        return [*drafting, *checks, *mending.steps, *judging]

    def missing_drafts(self, trace: Trace) -> list[Generate]:
        """The first drafts that are still to come."""
        if trace.task.response is not None or len(trace.candidates) >= self.drafts:
            return []
        prompt = draft_messages(trace)
        return trace.missing(Generate(i, prompt) for i in range(self.drafts))

    def missing_grades(self, trace: Trace, candidates: Sequence[Candidate], *, model_free: bool) -> list[Grade]:
        """The looks that graders of this kind still owe."""
        seats = [(seat, look) for seat in trace.pointwise_graders if seat.model_free is model_free for look in range(seat.repeats)]
        owing = (
            [c for c in candidates if (trace.critics or trace.scores[c.id] is None) and not trace.is_unchanged(c)] if seats else []
        )
        return trace.missing(Grade(seat.name, trace.task, c, look) for c in owing for seat, look in seats)

    def plan_repairs(self, trace: Trace, checks: Sequence[Grade], *, has_missing_drafts: bool) -> RepairPlan:
        """The next repair, and which candidates are not to be judged: unchecked, being repaired, or replaced.

        Repairs cost nothing, so they are made one at a time and only when the drafts are in and checked: their ids
        then do not depend on which draft came first.
        """
        editable = {seat.name for seat in trace.pointwise_graders if seat.editable}
        if not editable:
            return RepairPlan()
        due = repairable_candidates(trace)
        steps = [Repair(trace.next_id, trace.task, due[0])] if due and not (has_missing_drafts or checks) else []
        unchecked = {step.candidate.id for step in checks if step.grader in editable}
        spared = {c.id for c in trace.candidates if c.by == "given"}
        return RepairPlan(steps, (unchecked | trace.replaced_ids | {c.id for c in due}) - spared)

    def missing_comparisons(self, trace: Trace) -> list[Compare]:
        """The rankings that are due once every candidate is in and scored."""
        seats = [seat for seat in trace.panel if seat.compares]
        if not seats or not trace.candidates:
            return []
        field = tuple(
            c for c in trace.candidates if not trace.is_unchanged(c) and (c.id not in trace.replaced_ids or c.by == "given")
        )
        return trace.missing(Compare(s.name, trace.task, field, look) for s in seats for look in range(s.repeats))

    def stop_or_refine(self, trace: Trace) -> Sequence[Step]:
        """Stop, with the reason, or refine once more."""
        if (end := self.stop_by_rules(trace)) and not self.should_retry_unreadable(trace):
            return [end]
        parent = self.select_parent(trace)
        return [Refine(trace.next_id, refinement_messages(trace, parent), parent.id)] if parent else []

    def should_retry_unreadable(self, trace: Trace) -> bool:
        """Whether graders whose answers about the first drafts could not be read have yet to see a refinement."""
        return bool(trace.failures) and only_unreadable_grades(trace) and not trace.iterations and self.stop(trace) is None

    def stop_by_rules(self, trace: Trace) -> Stop | None:
        """The end, where a rule or the world has it that this is one."""
        best = trace.best.id if trace.best else None
        ending, trouble = self.stop(trace) if trace.graded_candidates else None, trace.fatal_failure
        if ending and not (trouble and trouble.stop_reason and ending.reason in GIVE_UP_REASONS):
            return Stop(best, *ending)
        if trouble:
            return Stop(best, trouble.stop_reason or StopReason.FAILED, trouble.message)
        if not trace.graded_candidates:
            return Stop(best, StopReason.FAILED, "nothing could be graded" if trace.candidates else "no answer could be had")
        return None


def stop_for_tool_calls(trace: Trace, missing_drafts: Sequence[Generate]) -> Sequence[Step]:
    """What is left to do where a candidate that calls tools is handed on: to wait for the other first drafts, then to stop."""
    if trace.tool_calling_candidate is None:
        return []
    ending = tool_calls()(trace)
    assert ending
    return missing_drafts or [Stop(trace.tool_calling_candidate.id, *ending)]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The repairs to make now, and the ids of candidates that are still open or were replaced by a repair."""

    steps: Sequence[Repair] = ()
    skip_grading_ids: Collection[int] = frozenset()


def repairable_candidates(trace: Trace) -> list[Candidate]:
    """The candidates an editor has not seen and may repair. An editor that failed is not asked again in this run."""
    if any(failure.role == "repair" for failure in trace.failures.values()):
        return []
    seen = {c.parent for c in trace.candidates if c.role == "repair"}
    texts = [c for c in trace.candidates if not c.tool_calls]
    return [c for c in texts if c.id not in seen and not trace.is_unchanged(c) and needs_repair(trace, c)]


def only_unreadable_grades(trace: Trace) -> bool:
    """Whether nothing is graded, and for no other reason than that what graders answered could not be read."""
    unread = all(f.error == UNREADABLE_ERROR for f in trace.failures.values() if f.role == "grade")
    return unread and bool(trace.candidates) and not trace.graded_candidates and trace.fatal_failure is None


def needs_repair(trace: Trace, candidate: Candidate) -> bool:
    """Whether a requirement that the editor knows how to repair found something."""
    found = (trace.grader_score(candidate.id, seat) for seat in trace.pointwise_graders if seat.editable)
    return any(score is not None and score < 1 for score in found)


@dataclass(frozen=True)
class BestOfN:
    """Draft `n` answers at once, grade them all, keep the best. `converged` tells whether it reached `target_score`."""

    n: int = 4
    target_score: float = 0.9
    repairs: bool = True

    def __post_init__(self) -> None:
        self.base_plan  # noqa: B018  (a wrong argument is said at once)

    @property
    def base_plan(self) -> SelfRefine:
        return SelfRefine(target(self.target_score) | max_iterations(0), self.n, self.repairs)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return self.base_plan(trace)
