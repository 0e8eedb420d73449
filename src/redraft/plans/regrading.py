"""More grades of a text by the same graders: second looks, and grades that could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..loop.records import Candidate, Feedback
from ..loop.steps import Grade
from ..loop.trace import PanelGrader, Trace
from .self_refine import UNREADABLE_ERROR

MAX_ASKS = 3  # how often a judge whose grades can be read at times is asked for one grade


def scoring_judges(trace: Trace) -> Sequence[PanelGrader]:
    """Return the graders that ask a model for a score."""
    return (
        [grader for grader in trace.scorers if not grader.model_free]
        if trace.critics
        else trace.graders.judges
    )


def second_looks(trace: Trace) -> list[Grade]:
    """Return the missing steps for one more grade of the first answer by every judge, once that
    answer has a score.
    """
    if not trace.candidates or trace.scores[trace.candidates[0].id] is None:
        return []
    return trace.missing(
        Grade(j.name, trace.task, trace.candidates[0], j.repeats) for j in scoring_judges(trace)
    )


def times_asked(trace: Trace, grader: PanelGrader, candidate: Candidate) -> int:
    """Return how often a grader was asked about a candidate, failures included."""
    graded = sum(f.grader == grader.name for f in trace.feedback[candidate.id])
    slot = "feedback", candidate.id, grader.name
    return graded + sum(failed[:3] == slot for failed in trace.failures)


def extra_asks(trace: Trace, candidate: Candidate) -> int:
    """Return how often judges were asked about a candidate more than their `repeats`; 0 for a copy
    of its parent.
    """
    if trace.is_unchanged(candidate):
        return 0
    judges = scoring_judges(trace)
    return sum([max(0, times_asked(trace, judge, candidate) - judge.repeats) for judge in judges])


def repeated_unreadable_grades(trace: Trace, candidate: Candidate) -> list[Grade]:
    """Return the steps that ask again for grades of a candidate that could not be read; empty if
    that is not worth it.

    It is not if another grader failed in another way, gave no score or found a must broken, or if a
    grader was asked `MAX_ASKS` times, or twice while none of its grades of any text could be read.
    """
    if (
        trace.scores[candidate.id] is not None
        or trace.is_unchanged(candidate)
        or candidate.id in trace.replaced_ids
    ):
        return []
    steps: list[Grade] = []
    for grader in trace.scorers:
        if (score := trace.grader_score(candidate.id, grader)) is not None and not (
            grader.must and score < 1
        ):
            continue
        errors = [
            f.error
            for slot, f in trace.failures.items()
            if slot[:3] == ("feedback", candidate.id, grader.name)
        ]
        asked, readable = (
            times_asked(trace, grader, candidate),
            any(f.grader == grader.name for f in _all_feedback(trace)),
        )
        if (
            set(errors) != {UNREADABLE_ERROR}
            or asked - grader.repeats >= (MAX_ASKS if readable else 2) - 1
        ):
            return []
        steps += (
            Grade(grader.name, trace.task, candidate, asked + n)
            for n in range(len(errors) - max(0, asked - grader.repeats))
        )
    return steps


def readable_share(trace: Trace) -> float:
    """Return the expected share of grades that can be read: (1 + read) / (2 + asked), and 1 while
    all could be.
    """
    if not trace.failures:
        return 1.0
    judges = {judge.name for judge in scoring_judges(trace)}
    read = sum(f.grader in judges for f in _all_feedback(trace))
    unread = sum(f.role == "grade" and f.error == UNREADABLE_ERROR for f in trace.failures.values())
    return (1 + read) / (2 + read + unread) if unread else 1.0


def _all_feedback(trace: Trace) -> Iterator[Feedback]:
    return (f for feedback in trace.feedback.values() for f in feedback)
