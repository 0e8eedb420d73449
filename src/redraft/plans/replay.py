"""The history of a refinement, one item for each candidate: the prompt, the feedback behind it, the
answer and its grades.

Prompts are not recorded. They are found by asking the plan again, which is pure: with the records
that preceded a candidate, it returns the step that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..loop.engine import Plan
from ..loop.ranking import rank_feedback
from ..loop.records import Candidate, Feedback
from ..loop.steps import Generate, Refine
from ..loop.task import Message, message_text
from ..loop.trace import Trace
from ..usage import NO_USAGE, Usage


@dataclass(frozen=True, slots=True)
class CandidateStep:
    """One candidate of a trace, and how it came about.

    Attributes:
        candidate: The answer.
        parent: The candidate that it was made from, or None.
        feedback: The feedback on `parent`, from which the prompt was made. A ranking is feedback
            without a score, with the rank at the beginning of its reason and in its metadata.
        messages: The messages that were sent to the model that writes; () if no model wrote the
            answer, None if they are unknown.
        grades: The feedback on this candidate.
        score: Its score by the graders, in [0, 1], or None.
        usage: The usage of writing and grading it; a ranking belongs to the last candidate in it.
    """

    candidate: Candidate
    parent: Candidate | None
    feedback: tuple[Feedback, ...]
    messages: tuple[Message, ...] | None
    grades: tuple[Feedback, ...]
    score: float | None
    usage: Usage

    @property
    def prompt(self) -> str | None:
        """The text of the last message that was sent; "" if no model wrote the answer, None if it
        is unknown.
        """
        if self.messages is None:
            return None
        return message_text(self.messages[-1]) if self.messages else ""

    @property
    def response(self) -> str:
        """The text of the answer."""
        return self.candidate.text


def candidate_steps(trace: Trace, plan: Plan | None) -> tuple[CandidateStep, ...]:
    """Return the candidates of a trace in order, with how they came about, without repairs that
    changed nothing.

    Without the plan the messages are unknown.
    """
    changed = (c for c in trace.candidates if not (c.role == "repair" and trace.is_unchanged(c)))
    return tuple(_candidate_step(trace, plan, candidate) for candidate in changed)


def _candidate_step(trace: Trace, plan: Plan | None, candidate: Candidate) -> CandidateStep:
    parent = None if candidate.parent is None else trace.by_id.get(candidate.parent)
    grades = trace.feedback[candidate.id]
    # a copy shares the grades of its parent, which were paid once
    own = () if trace.is_unchanged(candidate) else grades
    rankings = [c for c in trace.comparisons if max(c.ranking, default=None) == candidate.id]
    first = {
        (c.grader, c.repeat): c for c in reversed(trace.comparisons) if candidate.id in c.ranking
    }.values()
    return CandidateStep(
        candidate,
        parent,
        (*trace.feedback[parent.id], *_rankings_before(trace, candidate, parent.id))
        if parent
        else (),
        _messages_of(trace, plan, candidate),
        (*grades, *(rank_feedback(comparison, candidate.id) for comparison in first)),
        trace.scores[candidate.id],
        sum(
            [*(each.usage for each in own), *(each.usage for each in rankings)],
            candidate.usage + NO_USAGE,
        ),
    )


def _rankings_before(trace: Trace, candidate: Candidate, parent: int) -> Iterator[Feedback]:
    """Yield what the comparisons that preceded a candidate say of its parent."""
    if trace.comparisons:
        before = replace(
            trace, records=trace.records[: trace.records.index(candidate)], resumed_at=0
        )
        yield from (rank_feedback(comparison, parent) for comparison in before.rankings_of(parent))


def _messages_of(
    trace: Trace, plan: Plan | None, candidate: Candidate
) -> tuple[Message, ...] | None:
    """Return the messages to which a candidate is the answer; None if the plan does not reproduce
    the step or its prompt.
    """
    if candidate.role not in {"generate", "refine"}:
        return ()
    if plan is None:
        return None
    n = trace.records.index(candidate)
    before = replace(trace, records=trace.records[:n], resumed_at=min(trace.resumed_at, n))
    steps = (
        step
        for step in plan(before)
        if isinstance(step, Generate | Refine) and step.slot == candidate.slot
    )
    step = next(steps, None)
    parent = step.parent if isinstance(step, Refine) else None
    if step is None or parent != candidate.parent:
        return None
    try:
        return step.make_messages() if step.make_messages else step.messages
    except Exception:  # noqa: BLE001  (a function of the user may raise anything)
        return None
