"""What came of a row: the columns that the output gets, and what the report counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.records import NO_USAGE, Comparison, Failure, Feedback, Record, StopReason, Usage
from ..core.trace import Trace
from ..errors import RedraftError
from ..quality.diagnosis import diagnose, has_significant_gain
from ..result import broken_musts, score_interval
from ..storage.journal import Status

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
KEPT = ("path", "lifted", "worse", "unsure", "truncated", "kind")  # beside the columns
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Came:
    """A row's end. `status`: "done", "failed" (an error ended it, or nothing could be graded) or "open" (cut short).

    `columns` are those of the output. Where the plan went by what it believed, so do all scores here but `observed`, so that
    one can be set against another: what is picked for its observed score has been lucky. `path` tells of every iteration from
    0: the best score after it (None: unknown), the answers and the USD it took. `lifted`: the best is better than the first:
    it keeps more musts, or as many and scores higher, by more than the graders' noise explains; `unsure`: it may be, and there
    were too few looks to tell. `worse`: a later answer scored less than the first.
    """

    status: Status
    columns: Mapping[str, Any]
    path: tuple[tuple[float | None, int, float | None], ...] = ()
    lifted: bool = False
    worse: bool = False
    unsure: bool = False
    truncated: bool = False
    kind: str = ""  # of the error

    def as_data(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {"columns": dict(self.columns), **{name: getattr(self, name) for name in KEPT}}

    @classmethod
    def of(cls, status: Status, data: Mapping[str, Any]) -> Came:
        path = tuple(tuple(step) for step in data["path"])
        kept = {name: data[name] for name in KEPT if name in data}  # earlier versions kept less
        return cls(status, {**dict.fromkeys(COLUMNS), **data["columns"]}, **kept | {"path": path})


def came_of(trace: Trace) -> Came:
    """What came of a trace that ended, or was cut short."""
    stop = trace.outcome.reason if trace.outcome else StopReason.CANCELLED
    status, error = _status(trace, stop), _error(trace, stop)
    if stop in {StopReason.BUDGET, StopReason.DEADLINE} and not trace.graded_candidates:
        return not_started(error.message if error else "")
    truncated = bool(trace.best and trace.best.truncated)
    kind = error.error if error and status == "failed" else ""
    return Came(status, _columns(trace, stop, error), path_of(trace.with_estimates), *moved(trace), truncated, kind)


def _status(trace: Trace, stop: StopReason) -> Status:
    if stop is StopReason.FAILED or not (trace.graded_candidates or stop.resumable or stop is StopReason.TOOL_CALLS):
        return "failed"
    return "open" if stop.resumable else "done"


def _columns(trace: Trace, stop: StopReason, error: Failure | None) -> dict[str, Any]:
    """The columns of the output, in their order."""
    low, high = score_interval(trace) or (None, None)
    found = diagnose(trace)
    return {
        "best": trace.best.text if trace.best else None,
        "tool_calls": calls_as_json(trace),
        "initial_score": next(iter(trace.with_estimates.score_history), None),
        "best_score": trace.score,
        "score_low": low,
        "score_high": high,
        "observed": trace.judge_score,
        "iterations": trace.iterations,
        "stop": str(stop),
        "diagnosis": str(found.kind) if found else None,
        **taken(sum((r.usage for r in trace.records if not isinstance(r, Failure)), NO_USAGE)),
        "error": worded(error) if error else None,
        "broken": "; ".join(broken_musts(trace)) or None if trace.graded_candidates else None,
    }


def calls_as_json(trace: Trace) -> str | None:
    """The tool calls of the best answer as JSON, as they stand in an assistant's message; None where there are none."""
    calls = trace.best.tool_calls if trace.best else ()
    return json.dumps([call.as_message_part() for call in calls], ensure_ascii=False) if calls else None


def worded(error: Failure) -> str:
    """An error by its name, with the grader that met it."""
    grader = f"grader {error.step_slot[2]}: " if error.step_slot[:1] == ("feedback",) else ""
    message = error.message.removeprefix(f"{error.error}: ")
    return f"{error.error}: {grader}{message}"


def taken(usage: Usage) -> dict[str, Any]:
    """What answers take, whoever paid for them: the same for a row that was answered from the cache. Retries are left out,
    and so are failures: they are tried again when a run goes on.
    """
    return {
        "calls": usage.calls - usage.retried_calls + usage.cached_calls,
        "tokens": usage.answer_tokens,
        "cost": rounded(usage.answer_cost),
    }


def rounded(cost: float | None) -> float | None:
    """USD without the last bits, which depend on the order of adding."""
    return None if cost is None else round(cost, 10)


def _error(trace: Trace, stop: StopReason) -> Failure | None:
    """The failure that ended a trace; of several the most telling, the same one every time."""
    if stop is StopReason.CANCELLED or _status(trace, stop) == "done":
        return None
    if trace.fatal_failure or (stop is not StopReason.FAILED and trace.graded_candidates):
        return trace.fatal_failure
    found = sorted(trace.failures.values(), key=lambda f: (f.step_slot[0] != "candidate", str(f.step_slot)))
    note = trace.outcome.note if trace.outcome else ""
    return found[0] if found else Failure((), "row", "GradingError", note or "the graders gave no score")


def failed(error: Exception) -> Came:
    """A row that could not begin, or broke. What should not happen leaves it open: the next run tries it again."""
    kind = type(error).__name__
    columns = {**dict.fromkeys(COLUMNS), "iterations": 0, "stop": "failed", **taken(NO_USAGE), "error": f"{kind}: {error}"}
    return Came("failed" if isinstance(error, RedraftError | ValueError) else "open", columns, kind=kind)


def not_started(why: str) -> Came:
    """A row for which there was no money or time left."""
    columns = {**dict.fromkeys(COLUMNS), "iterations": 0, "stop": NOT_STARTED, **taken(NO_USAGE), "error": why or None}
    return Came("open", columns, kind=NOT_STARTED)


def path_of(trace: Trace) -> tuple[tuple[float | None, int, float | None], ...]:
    """By iteration: the best score after it, the answers and the USD it took."""
    rank, when = -1, {}
    for c in trace.candidates:
        rank = max(rank, 0) + (c.role == "refine")
        when[c.id] = rank
    spent: dict[int, Usage] = dict.fromkeys(range(rank + 1), NO_USAGE)
    for record in trace.records:
        if (n := when.get(_about(record))) is not None:
            spent[n] += record.usage
    tops: dict[int, float | None] = {}
    top: tuple[float, float] | None = None
    for c in trace.candidates:
        score = trace.scores[c.id]
        if score is not None:
            top = max(filter(None, (top, (trace.must_pass_rate(c.id), score))))
        tops[when[c.id]] = top[1] if top else None
    taking = {n: taken(usage) for n, usage in spent.items()}
    return tuple((tops[n], taking[n]["calls"], taking[n]["cost"]) for n in sorted(tops))


def _about(record: Record) -> int:
    """The newest candidate that a record is about; -1 where it is about none."""
    match record:
        case Feedback():
            return record.candidate
        case Comparison():
            return max(record.ranking)
    return getattr(record, "id", -1)


def moved(trace: Trace) -> tuple[bool, bool, bool]:
    """Whether the best is better than the first scored answer, whether a later one scored less, and whether the former cannot be
    told from noise.
    """
    best, seen = trace.best, trace.with_estimates
    standing = [(seen.must_pass_rate(c.id), score) for c in seen.candidates if (score := seen.scores[c.id]) is not None]
    if not standing or best is None:
        return False, False, False
    kept, first = standing[0]
    more = seen.must_pass_rate(best.id) - kept
    lifted = (more or (seen.score or 0.0) - first) > TOLERANCE
    unsure = lifted and not more and not has_significant_gain(trace)
    return lifted and not unsure, any((k, s + TOLERANCE) < (kept, first) for k, s in standing[1:]), unsure
