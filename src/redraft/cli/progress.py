"""The progress of one refinement, in words: messages on stderr, or JSON lines on stdout for
programs.

The live view of a terminal is in `terminal`, so that other output does not load rich.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from ..base.money import format_usd
from ..loop.records import Candidate, Comparison, Failure, Outcome, Record, Slot
from ..loop.serialize import record_to_json
from ..loop.steps import Compare, Generate, Grade, Refine, Repair, Step, Stop
from ..loop.trace import Trace
from ..plans.quality.diagnosis import selection_reason
from ..result import Result, format_score, headline
from ..usage import Usage
from .output import notice


class ProgressReporter(Protocol):
    """Receives every step and record of a refinement, and the message of the error that it raises
    in the end, if any.
    """

    def begin(self, trace: Trace) -> None: ...

    def step(self, step: Step) -> None: ...

    def record(self, record: Record) -> None: ...

    def end(self, error: str) -> None: ...


@dataclass
class TraceProgress:
    """The trace as it grows, and the steps that are pending."""

    trace: Trace | None = None
    pending: dict[Slot, Step] = field(default_factory=dict)
    started: float = field(default_factory=monotonic)

    def step(self, step: Step) -> None:
        if not isinstance(step, Stop):
            self.pending[step.slot] = step

    def record(self, record: Record) -> None:
        assert self.trace is not None
        self.trace += record
        self.pending.pop(getattr(record, "step_slot", record.slot), None)

    @property
    def seconds(self) -> float:
        return monotonic() - self.started


class PlainReporter:
    """Writes a line for each event, for logs and for terminals that cannot redraw.

    Failures are reported when the work goes on. Those that end it are left to the message that says
    why it ended.
    """

    def __init__(self, progress: TraceProgress) -> None:
        self._progress = progress
        self._reported: set[int] = set()
        self._failures: list[Failure] = []

    def begin(self, trace: Trace) -> None:
        if len(trace.records) > len(trace.task.given_responses):
            answers, calls = len(trace.candidates), trace.usage.calls
            notice(f"resuming after {len(trace.records)} records: {answers} answers, {calls} calls")
        self._reported = {c.id for c in trace.candidates if trace.scores[c.id] is not None}

    def step(self, step: Step) -> None:
        if not isinstance(step, Stop):
            self._report_failures()
            notice(f"{describe_step(step)} ...")

    def record(self, record: Record) -> None:
        if isinstance(record, Failure):
            self._failures.append(record)
        elif not isinstance(record, Outcome):
            self._report_failures()
        assert self._progress.trace is not None
        for candidate, score, remark in candidate_rows(self._progress.trace):
            if score and candidate.id not in self._reported:
                self._reported.add(candidate.id)
                parts = [f"{candidate.id} {describe_origin(candidate)}", f"score {score}", remark]
                notice(" · ".join(filter(None, parts)))

    def _report_failures(self, end_reason: str = "") -> None:
        """Report the failures since the last report, except those that are the reason why the work
        ended.
        """
        for line in dict.fromkeys(
            f"failed: {f.role}: {f.message}" for f in self._failures if f.message not in end_reason
        ):
            notice(line)
        self._failures.clear()

    def end(self, error: str) -> None:
        trace = self._progress.trace
        self._report_failures(error or (trace.outcome.note if trace and trace.outcome else ""))


class JsonReporter:
    """Writes an object a line to stdout: start, priors (unless they are the shipped ones), step,
    record, result, error.
    """

    def __init__(self, progress: TraceProgress) -> None:
        self._progress = progress

    def begin(self, trace: Trace) -> None:
        print_event("start", records=len(trace.records), panel=[s.name for s in trace.panel])

    def step(self, step: Step) -> None:
        if not isinstance(step, Stop):
            print_event("step", step=step.role, slot=step.slot, description=describe_step(step))

    def record(self, record: Record) -> None:
        trace = self._progress.trace
        assert trace is not None
        best = trace.best if trace.graded_candidates else None
        score, judge_score = (
            (trace.score, trace.judge_score) if trace.graded_candidates else (None, None)
        )
        print_event(
            "record",
            record=json.loads(record_to_json(record)),
            best=best.id if best else None,
            score=score,
            judge_score=judge_score,
            calls=trace.usage.calls,
        )

    def end(self, error: str) -> None:
        pass


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
