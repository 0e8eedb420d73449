"""A last text that no judge grades: which candidate of a trace it is, and when it is returned with
a forecast of its quality.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..loop.records import Candidate, Failure, Feedback, Record, StopReason
from ..loop.steps import Grade, Step, Stop
from ..loop.trace import Trace
from .limits import asks_model
from .quality.labels import LabelPosterior
from .quality.likelihood import Z_95
from .quality.posterior import DIGITS, Posterior

# for which such a text may be returned
FORECAST_REASONS = {StopReason.BUDGET, StopReason.DEADLINE, StopReason.GAIN}


def unjudged_refinement(trace: Trace) -> Candidate | None:
    """Return the last refinement if no judge has graded it, nor its repair; None if the last text
    is a draft or was judged.
    """
    texts = [c for c in trace.candidates if c.role != "repair"]
    if not texts or texts[-1].role != "refine" or trace.is_unchanged(texts[-1]):
        return None
    judges = {grader.name for grader in trace.pointwise_graders if asks_model(grader)}
    family = [c for c in trace.candidates if c.id >= texts[-1].id]
    judged = any(f.grader in judges for c in family for f in trace.feedback[c.id])
    return texts[-1] if judges and not judged else None


def with_forecast(
    trace: Trace,
    posterior: Posterior,
    stop: Stop,
    target_score: float | None = None,
    by_labels: LabelPosterior | None = None,
) -> Stop:
    """Return the stop with the unjudged text in place of the best, if it is expected to be better
    and breaks no must.

    If the editor repaired that text, it is the repaired one. With `by_labels`, the forecast is that
    of people's label, and so is the probability that it reaches the target.
    """
    if (
        stop.best is None
        or stop.reason not in FORECAST_REASONS
        or unjudged_refinement(trace) is None
    ):
        return stop
    last = trace.candidates[-1]
    mean, sd = posterior.means[last.id], posterior.sd_of(last.id)
    is_complete = not (last.truncated or last.tool_calls) and trace.meets_musts(last.id)
    if not (is_complete and trace.meets_musts(stop.best) and mean > posterior.means[stop.best]):
        return stop
    low, high = max(0.0, min(mean, mean - Z_95 * sd)), min(1.0, max(mean, mean + Z_95 * sd))
    if by_labels:
        mean, (low, high) = by_labels.prediction(last.id)
    p_target = None
    if target_score is not None:
        p_target = round(
            (by_labels.probability if by_labels else posterior.p_at_least)(last.id, target_score),
            DIGITS,
        )
    return replace(
        stop, best=last.id, score=None, interval=None, forecast=(mean, low, high), p_target=p_target
    )


def without_judges(trace: Trace, steps: Sequence[Step]) -> list[Step]:
    """Return the steps without grades by graders that ask a model."""
    judges = {grader.name for grader in trace.pointwise_graders if asks_model(grader)}
    return [step for step in steps if not (isinstance(step, Grade) and step.grader in judges)]


def trace_before(trace: Trace, candidate: Candidate) -> Trace:
    """Return the trace as it was before a candidate was written."""
    later = {c.id for c in trace.candidates if c.id >= candidate.id}
    return replace(trace, records=tuple(r for r in trace.records if not is_about(r, later)))


def is_about(record: Record, ids: Collection[int]) -> bool:
    """Whether a record is one of these candidates, or feedback on one of them."""
    match record:
        case Candidate():
            return record.id in ids
        case Feedback():
            return record.candidate in ids
        case Failure():
            return record.step_slot[0] in {"candidate", "feedback"} and record.step_slot[1] in ids
    return False
