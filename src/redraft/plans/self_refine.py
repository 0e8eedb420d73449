"""Draft, repair what needs no model, grade, and refine the best until a rule says stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from .. import checks
from ..core.prompts import advise, first_prompt
from ..core.records import Candidate, StopReason
from ..core.steps import Compare, Generate, Grade, Refine, Repair, Step, Stop
from ..core.stopping import StopRule, done, max_iterations, patience, target, tool_calls
from ..core.trace import Trace

GIVING_UP = {StopReason.PATIENCE, StopReason.MAX_ITERATIONS}  # not said of candidates that money or time kept from being graded
UNREAD = "BadResponseError"  # what a judge fails with whose answer cannot be read


def best_so_far(trace: Trace) -> Candidate | None:
    """The default parent of a refinement: the best; while that breaks a must, what comes nearest of those that keep as many."""
    best = trace.best
    if best is None or trace.kept(best.id):
        return best
    field = [c for c in trace.graded if trace.kept_share(c.id) == trace.kept_share(best.id)]
    return max(field, key=lambda c: (trace.nearness(c.id), c.id == best.id, trace.scores[c.id] or 0.0, -c.id), default=best)


MOST_DRAFTS = 1000


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
    parent: Callable[[Trace], Candidate | None] = best_so_far

    def __post_init__(self) -> None:
        checks.whole_number("drafts", self.drafts, 1, MOST_DRAFTS)
        checks.flag("repairs", self.repairs)
        for name in ("stop", "parent"):
            checks.instance(name, getattr(self, name), "a function of a trace")
            if not callable(getattr(self, name)):
                raise checks.refused(name, "a function of a trace", getattr(self, name))

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return hand_on(trace, self.drafting(trace)) or self.due(trace) or self.rank(trace) or self.conclude(trace)

    def due(self, trace: Trace) -> Sequence[Step]:
        """What the candidates at hand still lack: the first drafts, their checks, their repairs, their grades."""
        drafting = self.drafting(trace)
        checks = self.grades(trace, trace.candidates, free=True)
        mending = self.mend(trace, checks, drafting=bool(drafting)) if self.repairs else Mending()
        judging = self.grades(trace, [c for c in trace.candidates if c.id not in mending.open], free=False)
        return [*drafting, *checks, *mending.steps, *judging]

    def drafting(self, trace: Trace) -> list[Generate]:
        """The first drafts that are still to come."""
        if trace.task.response is not None or len(trace.candidates) >= self.drafts:
            return []
        prompt = first_prompt(trace)
        return trace.lacks(Generate(i, prompt) for i in range(self.drafts))

    def grades(self, trace: Trace, candidates: Sequence[Candidate], *, free: bool) -> list[Grade]:
        """The looks that graders of this kind still owe."""
        seats = [(seat, look) for seat in trace.scoring if seat.free is free for look in range(seat.looks)]
        owing = [c for c in candidates if (trace.critics or trace.scores[c.id] is None) and not trace.unchanged(c)] if seats else []
        return trace.lacks(Grade(seat.grader, trace.task, c, look) for c in owing for seat, look in seats)

    def mend(self, trace: Trace, checks: Sequence[Grade], *, drafting: bool) -> Mending:
        """The next repair, and which candidates are not to be judged: unchecked, being repaired, or replaced.

        Repairs cost nothing, so they are made one at a time and only when the drafts are in and checked: their ids
        then do not depend on which draft came first.
        """
        editable = {seat.grader for seat in trace.scoring if seat.editable}
        if not editable:
            return Mending()
        due = to_repair(trace)
        steps = [Repair(trace.next_id, trace.task, due[0])] if due and not (drafting or checks) else []
        unchecked = {step.candidate.id for step in checks if step.grader in editable}
        spared = {c.id for c in trace.candidates if c.by == "given"}
        return Mending(steps, (unchecked | trace.replaced | {c.id for c in due}) - spared)

    def rank(self, trace: Trace) -> list[Compare]:
        """The rankings that are due once every candidate is in and scored."""
        seats = [seat for seat in trace.panel if seat.compares]
        if not seats or not trace.candidates:
            return []
        field = tuple(c for c in trace.candidates if not trace.unchanged(c) and (c.id not in trace.replaced or c.by == "given"))
        return trace.lacks(Compare(s.grader, trace.task, field, look) for s in seats for look in range(s.looks))

    def conclude(self, trace: Trace) -> Sequence[Step]:
        """Stop, with the reason, or refine once more."""
        if (end := self.end(trace)) and not self.may_be_read(trace):
            return [end]
        parent = self.parent(trace)
        return [Refine(trace.next_id, advise(trace, parent), parent.id)] if parent else []

    def may_be_read(self, trace: Trace) -> bool:
        """Whether graders whose answers about the first drafts could not be read have yet to see a refinement."""
        return bool(trace.failures) and is_unread(trace) and not trace.iterations and self.stop(trace) is None

    def end(self, trace: Trace) -> Stop | None:
        """The end, where a rule or the world has it that this is one."""
        best = trace.best.id if trace.best else None
        ending, trouble = self.stop(trace) if trace.graded else None, trace.trouble
        if ending and not (trouble and trouble.ends and ending.reason in GIVING_UP):
            return Stop(best, *ending)
        if trouble:
            return Stop(best, trouble.ends or StopReason.FAILED, trouble.message)
        if not trace.graded:
            return Stop(best, StopReason.FAILED, "nothing could be graded" if trace.candidates else "no answer could be had")
        return None


def hand_on(trace: Trace, drafting: Sequence[Generate]) -> Sequence[Step]:
    """What is left to do where a candidate that calls tools is handed on: to wait for the other first drafts, then to stop."""
    if trace.handed_on is None:
        return []
    ending = tool_calls()(trace)
    assert ending
    return drafting or [Stop(trace.handed_on.id, *ending)]


@dataclass(frozen=True, slots=True)
class Mending:
    """The repairs to make now, and the ids of candidates that are still open or were replaced by a repair."""

    steps: Sequence[Repair] = ()
    open: Collection[int] = frozenset()


def to_repair(trace: Trace) -> list[Candidate]:
    """The candidates an editor has not seen and may repair. An editor that failed is not asked again in this run."""
    if any(failure.role == "repair" for failure in trace.failures.values()):
        return []
    seen = {c.parent for c in trace.candidates if c.role == "repair"}
    texts = [c for c in trace.candidates if not c.tool_calls]
    return [c for c in texts if c.id not in seen and not trace.unchanged(c) and is_broken(trace, c)]


def is_unread(trace: Trace) -> bool:
    """Whether nothing is graded, and for no other reason than that what graders answered could not be read."""
    unread = all(f.error == UNREAD for f in trace.failures.values() if f.role == "grade")
    return unread and bool(trace.candidates) and not trace.graded and trace.trouble is None


def is_broken(trace: Trace, candidate: Candidate) -> bool:
    """Whether a requirement that the editor knows how to repair found something."""
    found = (trace.seat_score(candidate.id, seat) for seat in trace.scoring if seat.editable)
    return any(score is not None and score < 1 for score in found)


@dataclass(frozen=True)
class BestOfN:
    """Draft `n` answers at once, grade them all, keep the best. `converged` tells whether it reached `target_score`."""

    n: int = 4
    target_score: float = 0.9
    repairs: bool = True

    def __post_init__(self) -> None:
        self.rules  # noqa: B018  (a wrong argument is said at once)

    @property
    def rules(self) -> SelfRefine:
        return SelfRefine(target(self.target_score) | max_iterations(0), self.n, self.repairs)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return self.rules(trace)
