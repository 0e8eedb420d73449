"""The steps, answers, scores and usage of one refinement in words, and its events as JSON lines on
stdout for programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..base.money import format_usd
from ..loop.records import Candidate, Comparison
from ..loop.steps import Compare, Generate, Grade, Refine, Repair, Step
from ..loop.trace import Trace
from ..plans.quality.diagnosis import selection_reason
from ..result import Result, format_score, headline
from ..usage import Usage


def print_event(event: str, **fields: Any) -> None:
    """Write one JSON line to stdout and flush it. Raises BrokenPipeError if the reader has closed
    the pipe.
    """
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201


def summary_line(result: Result) -> str:
    """Summarize a result in one line: its scores, why the work ended, and why a higher-scoring
    answer was not kept.
    """
    return " · ".join(filter(None, [headline(result), selection_reason(result.trace)]))


def describe_step(step: Step) -> str:
    """Describe what a step asks for."""
    match step:
        case Generate():
            return f"writing draft {step.id}"
        case Refine():
            return f"refining {step.parent} into {step.id}"
        case Repair():
            return f"repairing {step.parent.id} without a model"
        case Grade():
            return f"{step.grader} grades {step.candidate.id}" + (
                f", repeat {step.repeat + 1}" if step.repeat else ""
            )
        case Compare():
            return f"{step.grader} ranks {len(step.candidates)} answers"
    return step.role


def describe_comparison(comparison: Comparison) -> str:
    """Describe the result of a comparison."""
    first = [id for id, place in comparison.ranks.items() if place == 0]
    if comparison.consistent is False or len(first) == len(comparison.ranking):
        return (
            f"{comparison.grader} cannot tell which of "
            f"{' and '.join(map(str, sorted(comparison.ranking)))} is best"
        )
    return f"{comparison.grader} puts {' and '.join(map(str, sorted(first)))} first"


def describe_origin(candidate: Candidate) -> str:
    """Describe how a candidate was made."""
    source = {
        "generate": "draft",
        "refine": f"refined {candidate.parent}",
        "repair": f"repaired {candidate.parent}",
    }
    return source.get(candidate.role, candidate.role) + (", cut off" if candidate.truncated else "")


def feedback_summary(trace: Trace, candidate: Candidate) -> str:
    """Join the reasons of graders that did not give a candidate the full score; of all graders
    where each of them did.
    """
    views = trace.feedback[candidate.id]
    imperfect = [f for f in views if f.score is None or f.score < 1]
    return "; ".join(f.reason for f in imperfect or views if f.reason)


def candidate_rows(trace: Trace) -> Iterator[tuple[Candidate, str, str]]:
    """Yield each candidate with its score and a remark, without those that changed nothing."""
    for c in trace.candidates:
        if trace.is_unchanged(c):
            continue
        score, estimate = trace.scores[c.id], trace.with_estimates.scores[c.id]
        lossy = "lossy: " if c.lossy else ""
        yield (
            c,
            ""
            if score is None
            else format_score(score)
            + (
                f", estimated {format_score(estimate)}"
                if format_score(estimate) != format_score(score)
                else ""
            ),
            "; ".join(
                filter(None, [f"{lossy}{c.note}" if c.note else "", feedback_summary(trace, c)])
            ),
        )


def format_usage(usage: Usage, seconds: float | None = None) -> str:
    """Format calls, tokens, cost and time on one line; unknown values are named as such."""
    tokens = "unknown" if usage.tokens is None else f"{usage.tokens:,}"
    cached = f" (+{usage.cached_calls} cached)" if usage.cached_calls else ""
    time = [] if seconds is None else [f"{seconds:.1f} s"]
    return " · ".join(
        [
            f"calls {usage.calls}{cached}",
            f"tokens {tokens}",
            f"cost {format_usd(usage.cost)}",
            *time,
        ]
    )
