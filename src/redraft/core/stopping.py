"""When to stop. A rule reads a trace and says why it is finished, or None. Rules join with `|`: the first to speak decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from .. import checks
from .records import Candidate, StopReason
from .trace import Trace

TOLERANCE = 1e-9  # a lift of exactly min_delta is no lift, whatever the last bits say


class StopDecision(NamedTuple):
    """Why the work is finished, as a reason and in words."""

    reason: StopReason
    note: str


@dataclass(frozen=True, slots=True)
class StopRule:
    """Reasons to stop, looked at in order: `target(0.9) | patience(2)`."""

    conditions: tuple[Callable[[Trace], StopDecision | None], ...]

    def __call__(self, trace: Trace) -> StopDecision | None:
        for why in self.conditions:
            if ending := why(trace):
                return ending
        return None

    def __or__(self, other: StopRule) -> StopRule:
        return StopRule(self.conditions + other.conditions)


def target(score: float) -> StopRule:
    """Stop when the best candidate scores at least `score` (in [0, 1]) and keeps every must."""
    checks.number("target_score", score, 0, 1)
    return StopRule((partial(_target, score),))


def _target(score: float, trace: Trace) -> StopDecision | None:
    best = trace.best
    if best is None or (got := trace.score) is None or got < score - TOLERANCE or not trace.meets_musts(best.id):
        return None
    return StopDecision(StopReason.TARGET, f"the best scores {got:.2f}, the target is {score:g}")


def done() -> StopRule:
    """Stop when every grader that says anything about `done` says so of the best candidate, and that keeps every must."""
    return StopRule((_done,))


def _done(trace: Trace) -> StopDecision | None:
    best = trace.best
    if best is None or not trace.meets_musts(best.id) or not trace.is_done(best.id):
        return None
    return StopDecision(StopReason.DONE, "the graders want no more changes")


def patience(n: int, min_delta: float = 0.01) -> StopRule:
    """Stop when `n` (>= 1) refinements in a row did not lift the best score by more than `min_delta` (>= 0).

    While the best breaks a must: when so many in a row neither kept one more nor came nearer to it.
    """
    checks.whole_number("patience", n, 1)
    checks.number("min_delta", min_delta)
    return StopRule((partial(_patience, n, min_delta),))


def _patience(n: int, min_delta: float, trace: Trace) -> StopDecision | None:
    if (tries := count_stale_refinements(trace, min_delta)) < n:
        return None
    broken = trace.best is not None and not trace.meets_musts(trace.best.id)
    in_vain = "neither kept one more demand nor came nearer to it" if broken else f"brought no gain over {min_delta:g}"
    return StopDecision(StopReason.PATIENCE, f"{tries} refinement{'s' * (tries > 1)} in a row {in_vain}")


def count_stale_refinements(trace: Trace, min_delta: float) -> int:
    """How many refinements in a row did not lift the best score; while a must is broken, how many came no nearer to keeping it.

    Where graders only rank: how many came after the best. Where there are only critics, a text that is new is not stale.
    """
    if not trace.scorers and not trace.only_critics:
        best = trace.best.id if trace.best else 0
        return sum(c.role == "refine" and c.id > best for c in trace.candidates)
    count, kept, top = 0, -1.0, -1.0
    for c in trace.candidates:
        keeps, level, least = trace.must_pass_rate(c.id), trace.scores[c.id], min_delta
        count += c.role == "refine"
        if keeps < kept:
            continue
        if keeps < 1 or trace.only_critics:
            level, least = _progress(trace, c), 0.0
        if level is None:
            continue
        if keeps > kept or level > top + least + TOLERANCE:
            count = 0
        kept, top = keeps, (level if keeps > kept else max(top, level))
    return count


def _progress(trace: Trace, candidate: Candidate) -> float | None:
    """How far a candidate has come that no score ranks: how near it is to keeping its musts, then how new; None if not graded."""
    if candidate not in trace.graded_candidates:
        return None
    if not trace.meets_musts(candidate.id):
        return trace.nearness(candidate.id)
    return -1.0 if trace.is_unchanged(candidate) else float(candidate.id)


def tool_calls() -> StopRule:
    """Stop with the first candidate that calls tools, unless a grader on the panel reads tool calls."""
    return StopRule((_tool_calls,))


def _tool_calls(trace: Trace) -> StopDecision | None:
    if (caller := trace.tool_calling_candidate) is None:
        return None
    names = ", ".join(dict.fromkeys(call.name for call in caller.tool_calls))
    return StopDecision(StopReason.TOOL_CALLS, f"the model calls {names}")


def repairs_only() -> StopRule:
    """Stop where only a model could go on."""
    return StopRule((_repairs_only,))


def _repairs_only(trace: Trace) -> StopDecision | None:
    return StopDecision(StopReason.MAX_ITERATIONS, "what form allows is done; the rest takes a model, and there is none")


def max_iterations(n: int) -> StopRule:
    """Stop after `n` (>= 0) refinements. The first draft is none."""
    checks.whole_number("max_iterations", n, 0)
    return StopRule((partial(_max_iterations, n),))


def _max_iterations(n: int, trace: Trace) -> StopDecision | None:
    if trace.iterations < n:
        return None
    return StopDecision(
        StopReason.MAX_ITERATIONS, f"{n} refinement{'s' * (n != 1)} made" if n else "no refinement by a model was asked for"
    )
