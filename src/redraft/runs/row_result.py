"""The result of one row: its columns in the output, and what the report counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.records import Comparison, Failure, Feedback, Record, StopReason
from ..core.trace import Trace
from ..errors import RedraftError
from ..quality.diagnosis import diagnose
from ..quality.diagnosis import has_significant_gain as is_improved
from ..result import broken_musts, score_interval
from ..storage.journal import Status
from ..usage import NO_USAGE, Usage

COLUMNS: Mapping[str, type] = {
    "best": str,
    "tool_calls": str,
    "initial_score": float,
    "best_score": float,
    "score_low": float,
    "score_high": float,
    "observed": float,
    "iterations": int,
    "stop": str,
    "diagnosis": str,
    "calls": int,
    "tokens": int,
    "cost": float,
    "error": str,
    "broken": str,
}
NOT_STARTED = "not_started"
DATA_FIELDS = ("score_by_iteration", "improved", "worse", "unsure", "truncated", "error_kind")  # kept beside the columns
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row. `status`: "done", "failed" (an error ended it, or nothing could be graded) or "open" (cut short).

    `columns` are those of the output. With a noise-aware plan all scores here but `observed` are its estimates, so that they
    can be compared with each other: an answer that is picked for its observed score has been lucky. `score_by_iteration` has,
    for each iteration from 0, the best score after it (None: unknown), and the calls and the USD of its answers. `improved`:
    the best answer is better than the first: it keeps more musts, or as many and scores higher by more than the graders' noise
    explains; `unsure`: it may be, but there were too few grades to tell. `worse`: a later answer scored less than the first.
    """

    status: Status
    columns: Mapping[str, Any]
    score_by_iteration: tuple[tuple[float | None, int, float | None], ...] = ()
    improved: bool = False
    worse: bool = False
    unsure: bool = False
    truncated: bool = False
    error_kind: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return the plain data that the journal keeps."""
        return {"columns": dict(self.columns), **{name: getattr(self, name) for name in DATA_FIELDS}}

    @classmethod
    def from_data(cls, status: Status, data: Mapping[str, Any]) -> RowResult:
        """Return the result that `as_data` described."""
        path = tuple(tuple(step) for step in data["score_by_iteration"])
        known: dict[str, Any] = {name: data[name] for name in DATA_FIELDS if name in data}
        known["score_by_iteration"] = path
        return cls(status, {**dict.fromkeys(COLUMNS), **data["columns"]}, **known)


def row_result(trace: Trace) -> RowResult:
    """Return the result of a trace that ended, or was cut short."""
    stop = trace.outcome.reason if trace.outcome else StopReason.CANCELLED
    status, error = _status(trace, stop), _error(trace, stop)
    if stop in {StopReason.BUDGET, StopReason.DEADLINE} and not trace.graded_candidates:
        return not_started_result(error.message if error else "")
    truncated = bool(trace.best and trace.best.truncated)
    kind = error.error if error and status == "failed" else ""
    return RowResult(
        status, _columns(trace, stop, error), score_by_iteration(trace.with_estimates), *score_change(trace), truncated, kind
    )


def _status(trace: Trace, stop: StopReason) -> Status:
    if stop is StopReason.FAILED or not (trace.graded_candidates or stop.resumable or stop is StopReason.TOOL_CALLS):
        return "failed"
    return "open" if stop.resumable else "done"


def _columns(trace: Trace, stop: StopReason, error: Failure | None) -> dict[str, Any]:
    """Return the columns of the output, in their order."""
    low, high = score_interval(trace) or (None, None)
    found = diagnose(trace)
    return {
        "best": trace.best.text if trace.best else None,
        "tool_calls": tool_calls_json(trace),
        "initial_score": next(iter(trace.with_estimates.score_history), None),
        "best_score": trace.score,
        "score_low": low,
        "score_high": high,
        "observed": trace.judge_score,
        "iterations": trace.iterations,
        "stop": str(stop),
        "diagnosis": str(found.kind) if found else None,
        **usage_columns(sum((r.usage for r in trace.records if not isinstance(r, Failure)), NO_USAGE)),
        "error": format_error(error) if error else None,
        "broken": "; ".join(broken_musts(trace)) or None if trace.graded_candidates else None,
    }


def tool_calls_json(trace: Trace) -> str | None:
    """The tool calls of the best answer as JSON, as they stand in an assistant's message; None where there are none."""
    calls = trace.best.tool_calls if trace.best else ()
    return json.dumps([call.as_message_part() for call in calls], ensure_ascii=False) if calls else None


def format_error(error: Failure) -> str:
    """Return the name and the message of an error, with the grader that raised it."""
    grader = f"grader {error.step_slot[2]}: " if error.step_slot[:1] == ("feedback",) else ""
    message = error.message.removeprefix(f"{error.error}: ")
    return f"{error.error}: {grader}{message}"


def usage_columns(usage: Usage) -> dict[str, Any]:
    """Return what the answers consumed, whether they were paid for or came from the cache.

    Retries are left out, and so are failures: they are tried again when a run is resumed.
    """
    return {
        "calls": usage.calls - usage.retried_calls + usage.cached_calls,
        "tokens": usage.answer_tokens,
        "cost": round_cost(usage.answer_cost),
    }


def round_cost(cost: float | None) -> float | None:
    """Return USD without the last bits, which depend on the order of addition."""
    return None if cost is None else round(cost, 10)


def _error(trace: Trace, stop: StopReason) -> Failure | None:
    """Return the failure that ended a trace; of several always the same one, a candidate's first."""
    if stop is StopReason.CANCELLED or _status(trace, stop) == "done":
        return None
    if trace.fatal_failure or (stop is not StopReason.FAILED and trace.graded_candidates):
        return trace.fatal_failure
    found = sorted(trace.failures.values(), key=lambda f: (f.step_slot[0] != "candidate", str(f.step_slot)))
    note = trace.outcome.note if trace.outcome else ""
    return found[0] if found else Failure((), "row", "GradingError", note or "the graders gave no score")


def failed_result(error: Exception) -> RowResult:
    """Return the result of a row that could not start, or broke. An unexpected error leaves it open for the next run."""
    kind = type(error).__name__
    columns = {**dict.fromkeys(COLUMNS), "iterations": 0, "stop": "failed", **usage_columns(NO_USAGE), "error": f"{kind}: {error}"}
    return RowResult("failed" if isinstance(error, RedraftError | ValueError) else "open", columns, error_kind=kind)


def not_started_result(why: str) -> RowResult:
    """Return the result of a row for which no budget or time was left."""
    columns = {**dict.fromkeys(COLUMNS), "iterations": 0, "stop": NOT_STARTED, **usage_columns(NO_USAGE), "error": why or None}
    return RowResult("open", columns, error_kind=NOT_STARTED)


def score_by_iteration(trace: Trace) -> tuple[tuple[float | None, int, float | None], ...]:
    """Return for each iteration the best score after it, and the calls and the USD of its answers."""
    rank, when = -1, {}
    for c in trace.candidates:
        rank = max(rank, 0) + (c.role == "refine")
        when[c.id] = rank
    spent: dict[int, Usage] = dict.fromkeys(range(rank + 1), NO_USAGE)
    for record in trace.records:
        if (n := when.get(_about(record))) is not None:
            spent[n] += record.usage
    best_after: dict[int, float | None] = {}
    best_so_far: tuple[float, float] | None = None
    for c in trace.candidates:
        score = trace.scores[c.id]
        if score is not None:
            best_so_far = max(filter(None, (best_so_far, (trace.must_pass_rate(c.id), score))))
        best_after[when[c.id]] = best_so_far[1] if best_so_far else None
    taking = {n: usage_columns(usage) for n, usage in spent.items()}
    return tuple((best_after[n], taking[n]["calls"], taking[n]["cost"]) for n in sorted(best_after))


def _about(record: Record) -> int:
    """Return the newest candidate that a record is about; -1 if it is about none."""
    match record:
        case Feedback():
            return record.candidate
        case Comparison():
            return max(record.ranking)
    return getattr(record, "id", -1)


def score_change(trace: Trace) -> tuple[bool, bool, bool]:
    """Return whether the best is better than the first scored answer, whether a later one scored less, and whether the former
    cannot be distinguished from noise.
    """
    best, estimated = trace.best, trace.with_estimates
    standing = [
        (estimated.must_pass_rate(c.id), score) for c in estimated.candidates if (score := estimated.scores[c.id]) is not None
    ]
    if not standing or best is None:
        return False, False, False
    kept, first = standing[0]
    more = estimated.must_pass_rate(best.id) - kept
    higher = (more or (estimated.score or 0.0) - first) > TOLERANCE
    unsure = higher and not more and not is_improved(trace)
    return higher and not unsure, any((k, s + TOLERANCE) < (kept, first) for k, s in standing[1:]), unsure
