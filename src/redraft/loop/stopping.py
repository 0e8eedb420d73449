"""Stop rules. A rule reads a trace and returns the reason to stop, or None. Rules combine with `|`;
the first reason wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..base import checks
from ..base.own_code import fingerprint_name
from .records import Candidate, StopReason
from .trace import Trace

TOLERANCE = 1e-9  # a gain of exactly min_delta is not a gain, despite rounding
# of rules that take scores as exact, unless the user gives others
DEFAULT_ITERATIONS, DEFAULT_PATIENCE = 3, 2


class StopDecision(NamedTuple):
    """The reason to stop, and a note for people."""

    reason: StopReason
    note: str


@fingerprint_name("stop_rule")
@dataclass(frozen=True, slots=True, eq=False)
class StopRule:
    """Conditions that end a run, checked in order: `target(0.9) | patience(2)`. Rules with the same
    conditions are equal.
    """

    conditions: tuple[Callable[[Trace], StopDecision | None], ...]

    def __call__(self, trace: Trace) -> StopDecision | None:
        for condition in self.conditions:
            if decision := condition(trace):
                return decision
        return None

    def __or__(self, other: StopRule) -> StopRule:
        return StopRule(self.conditions + other.conditions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StopRule) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def target_score(self) -> float | None:
        """The lowest score at which a target of the rule is reached; None if it has none."""
        return min(self._arguments_of(_target), default=None)

    @property
    def max_iterations(self) -> int | None:
        """The number of refinements after which the rule stops; None if it counts none."""
        most = min(self._arguments_of(_max_iterations), default=None)
        return None if most is None else int(most)

    def _arguments_of(self, condition: Callable[..., StopDecision | None]) -> list[float]:
        """Return the first argument of each condition of this kind."""
        partials = [each for each in self.conditions if isinstance(each, partial)]
        return [each.args[0] for each in partials if each.func is condition]

    @property
    def _key(self) -> tuple[object, ...]:
        """The conditions in a form that is compared by value: two partials of one function and
        equal arguments differ.
        """
        return tuple(
            (c.func, c.args, tuple(sorted(c.keywords.items()))) if isinstance(c, partial) else c
            for c in self.conditions
        )


def target(score: float) -> StopRule:
    """Stop when the best candidate scores at least `score` (in [0, 1]) and meets every must."""
    checks.number("target_score", score, 0, 1)
    return StopRule((partial(_target, score),))


@fingerprint_name("stop.target")
def _target(score: float, trace: Trace) -> StopDecision | None:
    best = trace.best
    if (
        best is None
        or (best_score := trace.score) is None
        or best_score < score - TOLERANCE
        or not trace.meets_musts(best.id)
    ):
        return None
    return StopDecision(
        StopReason.TARGET, f"the best scores {best_score:.2f}, the target is {score:g}"
    )


def done() -> StopRule:
    """Stop when the best candidate meets every must and every grader that sets `done` calls it
    done.
    """
    return StopRule((_done,))


@fingerprint_name("stop.done")
def _done(trace: Trace) -> StopDecision | None:
    best = trace.best
    if best is None or not trace.meets_musts(best.id) or not trace.is_done(best.id):
        return None
    return StopDecision(StopReason.DONE, "the graders want no more changes")


def patience(n: int, min_delta: float = 0.01) -> StopRule:
    """Stop when `n` (>= 1) refinements in a row did not raise the best score by more than
    `min_delta` (>= 0).

    While the best candidate breaks a must: when `n` in a row neither met one more must nor came
    nearer to meeting it.
    """
    checks.whole_number("patience", n, 1)
    checks.number("min_delta", min_delta)
    return StopRule((partial(_patience, n, min_delta),))


@fingerprint_name("stop.patience")
def _patience(n: int, min_delta: float, trace: Trace) -> StopDecision | None:
    if (count := count_stale_refinements(trace, min_delta)) < n:
        return None
    broken = trace.best is not None and not trace.meets_musts(trace.best.id)
    result = (
        "neither met one more demand nor came nearer to it"
        if broken
        else f"brought no gain over {min_delta:g}"
    )
    return StopDecision(
        StopReason.PATIENCE, f"{count} refinement{'s' * (count > 1)} in a row {result}"
    )


def count_stale_refinements(trace: Trace, min_delta: float) -> int:
    """Count the latest refinements in a row that did not raise the best score or, while a must is
    broken, came no nearer to it.

    If graders only rank, count the refinements after the best. If there are only critics, every new
    text is progress.
    """
    if not trace.scorers and not trace.only_critics:
        best = trace.best.id if trace.best else 0
        return sum(c.role == "refine" and c.id > best for c in trace.candidates)
    count, best_pass_rate, best_level, aggregates = 0, -1.0, -1.0, trace.aggregates
    for c in trace.candidates:
        (pass_rate, level), delta = aggregates[c.id], min_delta
        count += c.role == "refine"
        if pass_rate < best_pass_rate:
            continue
        if pass_rate < 1 or trace.only_critics:
            level, delta = _progress(trace, c), 0.0
        if level is None:
            continue
        if pass_rate > best_pass_rate or level > best_level + delta + TOLERANCE:
            count = 0
        best_level = level if pass_rate > best_pass_rate else max(best_level, level)
        best_pass_rate = pass_rate
    return count


def _progress(trace: Trace, candidate: Candidate) -> float | None:
    """Return the progress of a candidate that no score ranks: its nearness to the musts, then its
    id; None if not graded.
    """
    if candidate not in trace.graded_candidates:
        return None
    if not trace.meets_musts(candidate.id):
        return trace.nearness(candidate.id)
    return -1.0 if trace.is_unchanged(candidate) else float(candidate.id)


def tool_calls() -> StopRule:
    """Stop with the first candidate that calls tools, unless a grader on the panel reads tool
    calls.
    """
    return StopRule((_tool_calls,))


@fingerprint_name("stop.tool_calls")
def _tool_calls(trace: Trace) -> StopDecision | None:
    if (caller := trace.tool_calling_candidate) is None:
        return None
    names = ", ".join(dict.fromkeys(call.name for call in caller.tool_calls))
    return StopDecision(StopReason.TOOL_CALLS, f"the model calls {names}")


def repairs_only() -> StopRule:
    """Stop when all automatic repairs are done, or if there are none."""
    return StopRule((_repairs_only,))


@fingerprint_name("stop.repairs_only")
def _repairs_only(trace: Trace) -> StopDecision | None:
    # no editor, or nothing that it could repair
    if not any(grader.editable for grader in trace.panel):
        return StopDecision(
            StopReason.MAX_ITERATIONS, "there are no automatic repairs; the rest needs a model"
        )
    return StopDecision(
        StopReason.MAX_ITERATIONS, "all automatic repairs are done; the rest needs a model"
    )


def max_iterations(n: int) -> StopRule:
    """Stop after `n` (>= 0) refinements; the first draft does not count."""
    checks.whole_number("max_iterations", n, 0)
    return StopRule((partial(_max_iterations, n),))


@fingerprint_name("stop.max_iterations")
def _max_iterations(n: int, trace: Trace) -> StopDecision | None:
    if trace.iterations < n:
        return None
    return StopDecision(
        StopReason.MAX_ITERATIONS,
        f"{n} refinement{'s' * (n != 1)} made" if n else "no refinement by a model was asked for",
    )
