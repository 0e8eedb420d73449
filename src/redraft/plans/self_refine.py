"""Draft, repair without a model, grade, and refine the best until a rule stops the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from ..base import checks
from ..base.own_code import fingerprint_name
from ..errors import EXTERNAL_ERRORS
from ..loop.ranking import top_answers
from ..loop.records import Candidate, Outcome, StopReason
from ..loop.steps import Compare, Generate, Grade, Repair, Round, Step, Stop
from ..loop.stopping import (
    DEFAULT_ITERATIONS,
    DEFAULT_PATIENCE,
    StopRule,
    done,
    max_iterations,
    patience,
    target,
    tool_calls,
)
from ..loop.trace import MAX_REASON_CHARS, PanelGrader, Trace
from .prompts import DraftPrompt, Prompts, RefinePrompt

# a budget or deadline that ended the run takes precedence
GIVE_UP_REASONS = {StopReason.PATIENCE, StopReason.MAX_ITERATIONS}
GRADING = {"grade", "compare"}  # the roles of steps that grade
UNREADABLE_ERROR = "BadResponseError"  # the error of a judge whose answer cannot be read
MAX_DRAFTS = 1000


@fingerprint_name("best_so_far")
def best_so_far(trace: Trace) -> Candidate | None:
    """Return the default parent of a refinement: the best; if it breaks a must, the nearest of
    those that keep as many.
    """
    best = trace.best
    if best is None or trace.meets_musts(best.id):
        return best
    equals = [
        c
        for c in trace.graded_candidates
        if trace.must_pass_rate(c.id) == trace.must_pass_rate(best.id)
    ]
    return max(
        equals,
        key=lambda c: (trace.nearness(c.id), c.id == best.id, trace.scores[c.id] or 0.0, -c.id),
        default=best,
    )


@fingerprint_name("self_refine")
@dataclass(frozen=True)
class SelfRefine:
    """Draft, repair, grade, and refine the best answer until a rule stops the work.

    A candidate is graded as soon as it exists. If the editor repaired it, only the repaired one is
    graded; a given response is always graded, so that gains are measured against it. A candidate
    that calls tools ends the work once all first drafts are in, unless a grader reads tool calls.

    Args:
        stop: The stop rule. Rules are combined with `|`: `target(0.9) | patience(2)`.
        drafts: Number of first drafts, from 1 to 1000.
        repairs: Whether the editor repairs candidates.
        select_parent: Chooses the candidate to refine, given the trace.
        draft_prompt: Makes the prompt of a draft: a template with {prompt}, or a function of a
            trace (see `redraft.plans.prompts`).
        refine_prompt: Makes the prompt of a refinement: a template with {response}, or a function
            of a trace and a candidate.

    Raises:
        ConfigError: An argument is out of range.
    """

    stop: StopRule = (
        target(0.9) | done() | patience(DEFAULT_PATIENCE) | max_iterations(DEFAULT_ITERATIONS)
    )
    drafts: int = 1
    repairs: bool = True
    select_parent: Callable[[Trace], Candidate | None] = best_so_far
    draft_prompt: DraftPrompt | None = None
    refine_prompt: RefinePrompt | None = None

    def __post_init__(self) -> None:
        checks.whole_number("drafts", self.drafts, 1, MAX_DRAFTS)
        checks.flag("repairs", self.repairs)
        for name, function in (("stop", self.stop), ("select_parent", self.select_parent)):
            checks.instance(name, function, "a function of a trace")
            if not callable(function):
                raise checks.invalid_argument(name, "a function of a trace", function)
        self.prompts  # noqa: B018  (raises for an invalid one)

    @cached_property
    def prompts(self) -> Prompts:
        """The prompts of the model that writes."""
        return Prompts(self.draft_prompt, self.refine_prompt)

    @property
    def max_attempts(self) -> int | None:
        """The maximum number of texts after the first drafts; None without a limit."""
        return self.stop.max_iterations

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return (
            stop_for_tool_calls(trace, self.missing_drafts)
            or self.missing_steps(trace)
            or self.missing_comparisons(trace)
            or self.stop_or_refine(trace)
        )

    def missing_steps(self, trace: Trace) -> Sequence[Step]:
        """Return the missing steps before the next decision: first drafts, checks without a model,
        repairs and grades.
        """
        drafts, candidates, graders = self.missing_drafts(trace), trace.candidates, trace.graders
        free_grades = missing_grades(trace, candidates, graders.model_free)
        if not (self.repairs and graders.editable):
            return Round(
                [*drafts, *free_grades, *missing_grades(trace, candidates, graders.judges)]
            )
        repairs = self.plan_repairs(trace, free_grades, has_missing_drafts=bool(drafts))
        judged = [c for c in candidates if c.id not in repairs.skip_grading_ids]
        return [
            *drafts,
            *free_grades,
            *repairs.steps,
            *missing_grades(trace, judged, graders.judges),
        ]

    def missing_drafts(self, trace: Trace) -> list[Generate]:
        """Return the steps for the first drafts that are missing."""
        if len(trace.candidates) >= self.drafts or trace.task.given_responses:
            return []
        return trace.missing(self.prompts.drafts(trace, range(self.drafts)))

    def plan_repairs(
        self, trace: Trace, free_grades: Sequence[Grade], *, has_missing_drafts: bool
    ) -> RepairPlan:
        """Return the next repair, and the candidates that no judge should grade: unchecked, about
        to be repaired, or replaced.

        Repairs cost nothing, so they are made one at a time, and only when all drafts exist and are
        checked: their IDs do not depend on which draft arrived first.
        """
        editable = {grader.name for grader in trace.graders.editable}
        repairable = repairable_candidates(trace)
        steps = (
            [Repair(trace.next_id, trace.task, repairable[0])]
            if repairable and not (has_missing_drafts or free_grades)
            else []
        )
        unchecked = {step.candidate.id for step in free_grades if step.grader in editable}
        given = {c.id for c in trace.candidates if c.by == "given"}
        return RepairPlan(
            steps, (unchecked | trace.replaced_ids | {c.id for c in repairable}) - given
        )

    def missing_comparisons(self, trace: Trace) -> list[Compare]:
        """Return the rankings that are missing once every candidate exists and is scored."""
        rankers = trace.graders.rankers
        if not rankers or not trace.candidates:
            return []
        compared = tuple(
            c
            for c in trace.candidates
            if not trace.is_unchanged(c) and (c.id not in trace.replaced_ids or c.by == "given")
        )
        return trace.missing(
            Compare(r.name, trace.task, compared, n) for r in rankers for n in range(r.repeats)
        )

    def stop_or_refine(self, trace: Trace) -> Sequence[Step]:
        """Return a stop with its reason, or the next refinement."""
        if (end := self.stop_by_rules(trace)) and not self.should_retry_ungraded(trace):
            return [end]
        parent = self.select_parent(trace)
        return [self.prompts.refinement(trace, parent)] if parent else []

    def should_retry_ungraded(self, trace: Trace) -> bool:
        """Whether graders failed at all first drafts, and there is no refinement yet, which they
        may be able to grade.
        """
        return (
            bool(trace.failures)
            and only_failed_grades(trace)
            and not trace.iterations
            and self.stop(trace) is None
        )

    def stop_by_rules(self, trace: Trace) -> Stop | None:
        """Return the stop by a rule or a fatal failure; None if there is none."""
        best = trace.best.id if trace.best else None
        end, failure = self.stop(trace) if trace.graded_candidates else None, trace.fatal_failure
        if end and not (failure and failure.stop_reason and end.reason in GIVE_UP_REASONS):
            return Stop(best, *end)
        if failure:
            return Stop(
                best, failure.stop_reason or StopReason.FAILED, full_note(trace, failure.message)
            )
        if not trace.graded_candidates:
            return Stop(best, StopReason.FAILED, full_note(trace) or "there is no answer")
        return None


def missing_grades(
    trace: Trace, candidates: Sequence[Candidate], graders: Sequence[PanelGrader]
) -> list[Grade]:
    """Return the missing grades of candidates by some of the pointwise graders."""
    recorded, failed, unchanged = trace.records_by_slot, trace.failures, trace.unchanged_ids
    missing = [
        Grade(grader.name, trace.task, candidate, repeat)
        for candidate in candidates
        if candidate.id not in unchanged
        for grader in graders
        for repeat in range(grader.repeats)
        if (slot := ("feedback", candidate.id, grader.name, repeat)) not in recorded
        and slot not in failed
    ]
    if not missing or trace.critics:
        return missing
    return [step for step in missing if not trace.has_score(step.candidate.id)]


def full_note(trace: Trace, note: str = "") -> str:
    """Return the note of a stop; if there are answers and none is graded, with what the best of
    them lacks.
    """
    if not trace.candidates or trace.graded_candidates:
        return note
    missing = missing_grades_text(trace)
    return (
        missing if note[:MAX_REASON_CHARS] in missing else "; ".join(filter(None, [note, missing]))
    )


def missing_grades_text(trace: Trace) -> str:
    """Return which graders failed, or gave no score, and which had not answered when the work
    ended.
    """
    said = dict(trace.unscored_reasons)
    failures = sorted(trace.failures.values(), key=lambda f: str(f.step_slot))
    own = [f for f in failures if f.role in GRADING and f.stop_reason in {None, StopReason.FAILED}]
    said |= {f.step_slot[2]: f.message[:MAX_REASON_CHARS] for f in own}
    reasons = "; ".join(f"{grader}: {reason}" for grader, reason in said.items() if reason)
    given = (
        Counter(f.grader for f in trace.feedback[trace.best.id]) if trace.best else Counter[str]()
    )
    missing = [
        g.name
        for g in trace.scorers or trace.panel
        if g.name not in said and given[g.name] < g.repeats
    ]
    waiting = (
        (
            f"{' and '.join('the judge' if name == 'judge' else name for name in missing)} had not "
            "answered"
        )
        if missing
        else ""
    )
    has_score = any(f.score is not None for feedback in trace.feedback.values() for f in feedback)
    what = "no answer was graded by all graders" if has_score else "nothing could be graded"
    failed = f"{what}{f' ({reasons})' if reasons else ''}" if said or not missing else ""
    return "; ".join(filter(None, [failed, waiting]))


def stop_for_tool_calls(
    trace: Trace, missing_drafts: Callable[[Trace], Sequence[Generate]]
) -> Sequence[Step]:
    """Return the last steps if a candidate calls tools: the other first drafts, then a stop. Empty
    if none calls tools.
    """
    if trace.tool_calling_candidate is None:
        return []
    end = tool_calls()(trace)
    assert end
    return missing_drafts(trace) or [Stop(trace.tool_calling_candidate.id, *end)]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The repairs to make now, and the IDs of candidates that no judge should grade."""

    steps: Sequence[Repair]
    skip_grading_ids: Collection[int]


def repairable_candidates(trace: Trace) -> list[Candidate]:
    """Return the candidates that the editor may repair and has not seen; none once it has failed in
    this run.
    """
    if any(failure.role == "repair" for failure in trace.failures.values()):
        return []
    repaired = {c.parent for c in trace.candidates if c.role == "repair"}
    texts = [c for c in trace.candidates if not c.tool_calls]
    return [
        c
        for c in texts
        if c.id not in repaired and not trace.is_unchanged(c) and needs_repair(trace, c)
    ]


def only_failed_grades(trace: Trace) -> bool:
    """Whether nothing is graded, and no grader failed for an external cause, so that another text
    may be graded.
    """
    external = any(f.error in EXTERNAL_ERRORS for f in trace.failures.values() if f.role == "grade")
    return (
        not external
        and bool(trace.candidates)
        and not trace.graded_candidates
        and trace.fatal_failure is None
    )


def needs_repair(trace: Trace, candidate: Candidate) -> bool:
    """Whether a candidate breaks a requirement that the editor can repair."""
    scores = (trace.grader_score(candidate.id, grader) for grader in trace.graders.editable)
    return any(score is not None and score < 1 for score in scores)


@dataclass(frozen=True)
class BestOfN:
    """Draft several answers at once, grade them all, and keep the best. Nothing is refined.

    Args:
        n: Number of drafts, from 1 to 1000.
        target_score: Score from which on the result counts as converged.
        repairs: Whether the editor repairs drafts.
        draft_prompt: As in `SelfRefine`.
        keep: Number of answers to keep, from 1 to `n`; `Result.top` has them, best first.

    Raises:
        ConfigError: An argument is out of range.
    """

    n: int = 4
    target_score: float = 0.9
    repairs: bool = True
    draft_prompt: DraftPrompt | None = None
    keep: int = 1
    refines: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.base_plan  # noqa: B018  (raises for an invalid argument)
        checks.whole_number("keep", self.keep, 1, self.n)

    @property
    def base_plan(self) -> SelfRefine:
        return SelfRefine(
            target(self.target_score) | max_iterations(0),
            self.n,
            self.repairs,
            draft_prompt=self.draft_prompt,
        )

    @property
    def prompts(self) -> Prompts:
        """The prompts of the model that writes."""
        return self.base_plan.prompts

    @property
    def drafts(self) -> int:
        """The number of first drafts."""
        return self.n

    def __call__(self, trace: Trace) -> Sequence[Step]:
        steps = self.base_plan(trace)
        if not (steps and isinstance(steps[0], Stop)):
            return steps
        return [
            replace(step, kept=self._kept_ids(trace)) if isinstance(step, Stop) else step
            for step in steps
        ]

    def outcome_if_stopped(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """Return the outcome of a trace that is stopped here from outside."""
        return Outcome(
            trace.best.id if trace.best else None, reason, note, kept=self._kept_ids(trace)
        )

    def _kept_ids(self, trace: Trace) -> tuple[int, ...]:
        return (
            tuple(row.candidate.id for row in top_answers(trace, self.keep))
            if self.keep > 1
            else ()
        )


def best_of(
    n: int = 4, keep: int = 1, *, target_score: float = 0.9, repairs: bool = True
) -> BestOfN:
    """Return a plan that drafts `n` answers, grades them all, and keeps the `keep` best (see
    `BestOfN`). Raises ConfigError.
    """
    return BestOfN(n, target_score, repairs, keep=keep)
