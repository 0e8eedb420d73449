"""What is known while the work goes on, and the words for it. Nothing here draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from ..core.records import Candidate, Comparison, Record, Slot, Usage
from ..core.steps import Compare, Generate, Grade, Refine, Repair, Step, Stop
from ..core.trace import Trace
from ..result import format_score


class Watcher(Protocol):
    """Is told what happens."""

    def begin(self, trace: Trace) -> None: ...

    def step(self, step: Step) -> None: ...

    def record(self, record: Record) -> None: ...

    def end(self) -> None: ...


@dataclass
class Progress:
    """The trace as it grows, and what is being asked right now."""

    trace: Trace | None = None
    asking: dict[Slot, Step] = field(default_factory=dict)
    started: float = field(default_factory=monotonic)

    def step(self, step: Step) -> None:
        if not isinstance(step, Stop):
            self.asking[step.slot] = step

    def record(self, record: Record) -> None:
        assert self.trace is not None
        self.trace += record
        self.asking.pop(getattr(record, "of", record.slot), None)

    @property
    def seconds(self) -> float:
        return monotonic() - self.started


def doing(step: Step) -> str:
    """What is being asked, in words."""
    match step:
        case Generate():
            return f"writing draft {step.id}"
        case Refine():
            return f"refining {step.parent} into {step.id}"
        case Repair():
            return f"repairing {step.parent.id} by form alone"
        case Grade():
            return f"{step.grader} grades {step.candidate.id}" + (f", look {step.repeat + 1}" if step.repeat else "")
        case Compare():
            return f"{step.grader} ranks {len(step.candidates)} answers"
    return step.role


def verdict(comparison: Comparison) -> str:
    """What came of a comparison, in words."""
    first = [id for id, place in comparison.ranks.items() if place == 0]
    if comparison.consistent is False or len(first) == len(comparison.ranking):
        return f"{comparison.grader} cannot tell which of {' and '.join(map(str, sorted(comparison.ranking)))} is best"
    return f"{comparison.grader} puts {' and '.join(map(str, sorted(first)))} first"


def made(candidate: Candidate) -> str:
    """How a candidate came about, in words."""
    source = {"generate": "draft", "refine": f"refined {candidate.parent}", "repair": f"repaired {candidate.parent}"}
    return source.get(candidate.role, candidate.role) + (", cut off" if candidate.truncated else "")


def said(trace: Trace, candidate: Candidate) -> str:
    """What graders say of a candidate: of what is not perfect, or else of everything."""
    views = trace.feedback[candidate.id]
    short = [f for f in views if f.score is None or f.score < 1]
    return "; ".join(f.reason for f in short or views if f.reason)


def rows(trace: Trace) -> Iterator[tuple[Candidate, str, str]]:
    """Every candidate with its score and a remark; those that changed nothing are left out."""
    for c in trace.candidates:
        if trace.is_unchanged(c):
            continue
        score, believed = trace.scores[c.id], trace.with_estimates.scores[c.id]
        lossy = "lossy: " if c.lossy else ""
        yield (
            c,
            ""
            if score is None
            else format_score(score)
            + (f", believed {format_score(believed)}" if format_score(believed) != format_score(score) else ""),
            "; ".join(filter(None, [f"{lossy}{c.note}" if c.note else "", said(trace, c)])),
        )


def tally(usage: Usage, seconds: float | None = None) -> str:
    """Calls, tokens, cost and time in one line; what is unknown says so."""
    read, written = usage.input_tokens, usage.output_tokens
    tokens = "unknown" if read is None or written is None else f"{read + written:,}"
    cost = "unknown" if usage.cost is None else f"{usage.cost:.4f} USD" if usage.cost else "0 USD"
    cached = f" (+{usage.cached_calls} cached)" if usage.cached_calls else ""
    time = [] if seconds is None else [f"{seconds:.1f} s"]
    return " · ".join([f"calls {usage.calls}{cached}", f"tokens {tokens}", f"cost {cost}", *time])
