"""The result of one row: its columns in the output (`result_columns`), and the figures for the
report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import AnswerForm
from ..base.descriptors import is_shortage
from ..errors import RedraftError, ShortageError
from ..loop.records import (
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Outcome,
    Record,
    StopReason,
)
from ..loop.trace import PanelGrader, Trace
from ..loop.visible_tests import hidden_results
from ..plans.quality.diagnosis import diagnose, has_significant_gain
from ..result import (
    Result,
    broken_musts,
    forecast,
    parsed_answer,
    parsed_data,
    score_basis,
    score_interval,
)
from ..session.grade_report import reasons_text
from ..storage.journal import Status
from ..usage import NO_USAGE, Usage, sum_usage

COLUMNS: Mapping[str, type] = {
    "best": str,
    "tool_calls": str,
    "initial_score": float,
    "best_score": float,
    "score_low": float,
    "score_high": float,
    "score_basis": str,
    "judge_score": float,
    "iterations": int,
    "stop": str,
    "diagnosis": str,
    "calls": int,
    "tokens": int,
    "cost": float,
    "error": str,
    "broken": str,
    "note": str,
}
EMPTY_COLUMNS: Mapping[str, Any] = dict.fromkeys(COLUMNS)
PARSED = "parsed"
HIDDEN = ("hidden_passed", "hidden_total")  # the columns of the hidden tests of the best answer
KEPT = "kept"  # the column of the answers that mode "best" keeps, if it keeps several
# the column of the expected quality of an answer that no judge graded, with `unseen_last`
FORECAST = "forecast"
# no grader's column has these names
OWN_COLUMNS = {PARSED, KEPT, FORECAST, *HIDDEN, *COLUMNS} - {"judge_score"}
NOT_STARTED = "not_started"
NOT_BEGUN = {StopReason.BUDGET, StopReason.DEADLINE}  # the ends of a row that was not begun
SHORTAGE = ShortageError.__name__
TOLERANCE = 1e-9


@dataclass(slots=True)
class RowResult:
    """The result of one row. Nothing changes it once it is made.

    With a noise-aware plan all scores except `judge_score` are its estimates, because the judge's
    score of the answer that it ranked highest is biased upwards.

    Attributes:
        status: "done", "failed" (an error ended it, or no answer could be scored) or "open" (cut
            short).
        columns: The columns of the output.
        score_by_iteration: For each iteration from 0 the best score after it (None: unknown), and
            the calls and the cost in USD of its answers.
        improved: The best answer satisfies more musts than the first, or as many and scores higher
            by more than the noise of the graders explains.
        worse: A refinement or a repair scored lower than the first answer.
        unsure: The best answer scores higher than the first, but with too few grades to rule out
            noise.
        truncated: The best answer was cut off.
        error_kind: The class of the error; "not_started" if no budget or time was left to begin; ""
            without an error.
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
        return {
            "columns": self.columns,
            "score_by_iteration": self.score_by_iteration,
            "improved": self.improved,
            "worse": self.worse,
            "unsure": self.unsure,
            "truncated": self.truncated,
            "error_kind": self.error_kind,
        }

    @classmethod
    def from_data(cls, status: Status, data: Mapping[str, Any]) -> RowResult:
        """Return the result that `as_data` described."""
        return cls(
            status,
            {**EMPTY_COLUMNS, **data["columns"]},
            tuple(map(tuple, data["score_by_iteration"])),
            data.get("improved", False),
            data.get("worse", False),
            data.get("unsure", False),
            data.get("truncated", False),
            data.get("error_kind", ""),
        )


def row_result(
    trace: Trace, answer: AnswerForm[Any] | None = None, more: Mapping[str, Any] | None = None
) -> RowResult:
    """Return the result of a trace that ended, or was cut short. `answer` is the form of its
    answer, `more` further columns.

    With a form, it runs validators and serializers of the user, which may take any time.
    """
    stop = trace.outcome.reason if trace.outcome else StopReason.CANCELLED
    status = _status(trace, stop)
    error = None if status == "done" else _error(trace, stop)
    if stop in NOT_BEGUN and not has_begun(trace):
        return not_started_result(error.message if error else "", more)
    spent = usage_columns(_usage_of_row(trace))
    columns = _columns(trace, stop, error, answer, spent)
    if more:
        columns.update(more)
    iterations = score_by_iteration(trace.with_estimates, spent)
    truncated = bool(trace.best and trace.best.truncated)
    kind = error.error if error and (status == "failed" or error.error == SHORTAGE) else ""
    return RowResult(status, columns, iterations, *score_change(trace), truncated, kind)


def has_begun(trace: Trace) -> bool:
    """Whether work on a row has begun: there is more than its given answers, or a call was made
    that failed.
    """
    return any(
        record.usage.calls > 0
        if isinstance(record, Failure)
        else not isinstance(record, Outcome) and record.by != "given"
        for record in trace.records
    )


def _usage_of_row(trace: Trace) -> Usage:
    """Return the usage of the records; if no answer is graded, with that of what failed, unknown
    where a call was not answered.
    """
    spent = sum_usage([record for record in trace.records if record.__class__ is not Failure])
    for failure in () if trace.graded_candidates else trace.failures.values():
        spent += failure.usage.as_answer(failure.usage.cost)
    return spent


def _status(trace: Trace, stop: StopReason) -> Status:
    """Return the status. A row that fails for a shortage of this machine is open: the next run
    continues it.
    """
    if stop is StopReason.FAILED or not (
        trace.graded_candidates or stop.resumable or stop is StopReason.TOOL_CALLS
    ):
        is_short = any(failure.error == SHORTAGE for failure in trace.failures.values())
        return "open" if is_short else "failed"
    return "open" if stop.resumable else "done"


def _columns(
    trace: Trace,
    stop: StopReason,
    error: Failure | None,
    answer: AnswerForm[Any] | None,
    spent: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the columns of the output, in their order."""
    low, high = score_interval(trace) or (None, None)
    diagnosis = diagnose(trace)
    return {
        "best": trace.best.text if trace.best else None,
        **({PARSED: parsed_data(trace, answer, parsed_answer(trace, answer))} if answer else {}),
        "tool_calls": tool_calls_json(trace),
        "initial_score": _initial_score(trace.with_estimates),
        "best_score": trace.score,
        "score_low": low,
        "score_high": high,
        "score_basis": score_basis(trace) or None,
        "judge_score": trace.judge_score,
        **({FORECAST: expected.mean} if (expected := forecast(trace)) else {}),
        "iterations": trace.iterations,
        "stop": str(stop),
        "diagnosis": diagnosis.kind.value if diagnosis else None,
        **spent,
        "error": format_error(error) if error else None,
        "broken": "; ".join(broken_musts(trace)) or None,
        "note": (trace.best.note or None)
        if trace.best and trace.best.role in {"generate", "refine"}
        else None,
        **({KEPT: kept_json(trace)} if trace.outcome and trace.outcome.kept else {}),
    }


def _initial_score(trace: Trace) -> float | None:
    """Return the score of the first answer; of several given ones that of the best, None while one
    has no score.
    """
    if len(given := trace.task.given_responses) < 2:
        first = trace.candidates[0] if len(trace.candidates) == 1 else None
        return trace.scores[first.id] if first else next(iter(trace.score_history), None)
    ranks = _ranks(trace, trace.candidates[: len(given)])
    return max(ranks)[1] if len(ranks) == len(given) else None


def _ranks(trace: Trace, candidates: Iterable[Candidate]) -> list[tuple[float, float]]:
    """Return the share of musts that it satisfies and the score of each candidate that has a
    score.
    """
    return [
        (trace.must_pass_rate(c.id), score)
        for c in candidates
        if (score := trace.scores[c.id]) is not None
    ]


def grader_columns(panel: Iterable[PanelGrader]) -> dict[str, tuple[str, str]]:
    """Return the columns of the score and of the reason of each grader that grades single
    responses, by the grader's name.

    Characters other than letters and digits become underscores. Names that are equal then, or those
    of other result columns, get a number or a prefix. A grader named "judge" has the column
    judge_score, which else holds the mean of all graders.
    """
    columns: dict[str, tuple[str, str]] = {}
    taken: set[str] = set(OWN_COLUMNS)
    for grader in panel:
        if grader.compares:
            continue
        stem = base = re.sub(r"\W+", "_", grader.name, flags=re.ASCII).strip("_")[:80] or "grader"
        if f"{base}_score" in OWN_COLUMNS:
            stem = base = f"grader_{base}"
        n = 1
        while taken & {f"{stem}_score", f"{stem}_reason"}:
            n += 1
            stem = f"{base}_{n}"
        columns[grader.name] = (f"{stem}_score", f"{stem}_reason")
        taken.update(columns[grader.name])
    return columns


def grader_values(trace: Trace, columns: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the score and the reason of each grader for the best answer, in the columns of
    `grader_columns`.

    They are None where a score is unknown, or the grader failed.
    """
    best = trace.best.id if trace.best else 0
    feedback = trace.feedback.get(best)
    graders = {} if feedback is None else {grader.name: grader for grader in trace.panel}
    values: dict[str, Any] = {}
    for name, (score, reason) in columns.items():
        if feedback is None or (grader := graders.get(name)) is None:
            values[score] = values[reason] = None
        else:
            values[score] = trace.grader_score(best, grader)
            values[reason] = reasons_text([f for f in feedback if f.grader == name]) or None
    return values


def hidden_values(trace: Trace) -> dict[str, Any]:
    """Return how many hidden tests the best answer passes, and how many there are; None if
    unknown.
    """
    passed, total = hidden_results(trace.feedback[trace.best.id] if trace.best else ()) or (
        None,
        None,
    )
    return dict(zip(HIDDEN, (passed, total), strict=True))


def tool_calls_json(trace: Trace) -> str | None:
    """Return the tool calls of the best answer as JSON, in the form of an assistant message; None
    if there are none.
    """
    calls = trace.best.tool_calls if trace.best else ()
    return (
        json.dumps([call.as_message_part() for call in calls], ensure_ascii=False)
        if calls
        else None
    )


def kept_json(trace: Trace) -> str:
    """Return the answers that the plan keeps as JSON, best first: a list of objects (see
    `RankedAnswer.to_dict`).
    """
    return json.dumps([answer.to_dict() for answer in Result(trace).top], ensure_ascii=False)


def format_error(error: Failure) -> str:
    """Return the class and the message of an error, with the name of the grader that raised it."""
    grader = f"grader {error.step_slot[2]}: " if error.step_slot[:1] == ("feedback",) else ""
    message = error.message.removeprefix(f"{error.error}: ")
    return f"{error.error}: {grader}{message}"


def usage_columns(usage: Usage) -> dict[str, Any]:
    """Return the calls, tokens and cost of the answers, whether they were paid for or came from the
    cache.

    Retries do not count. So the figures do not depend on how often the run was interrupted.
    """
    return {
        "calls": usage.calls - usage.retried_calls + usage.cached_calls,
        "tokens": usage.answer_tokens,
        "cost": round_cost(usage.answer_cost),
    }


def round_cost(cost: float | None) -> float | None:
    """Return an amount in USD without the last digits, which depend on the order of addition."""
    return None if cost is None else round(cost, 10)


def _error(trace: Trace, stop: StopReason) -> Failure | None:
    """Return the failure that ended a trace that is not done. In every run it is the same one: a
    candidate's before a grader's.
    """
    if stop is StopReason.CANCELLED:
        return None
    if trace.fatal_failure or (stop is not StopReason.FAILED and trace.graded_candidates):
        return trace.fatal_failure
    failures = sorted(
        trace.failures.values(), key=lambda f: (f.step_slot[0] != "candidate", str(f.step_slot))
    )
    note = trace.outcome.note if trace.outcome else ""
    return (
        failures[0]
        if failures
        else Failure((), "row", "GradingError", note or "the graders gave no score")
    )


def failed_result(error: Exception) -> RowResult:
    """Return the result of a row that raised an error. After an unexpected error it is open, so
    that the next run tries again.
    """
    kind = SHORTAGE if is_shortage(error) else type(error).__name__
    columns = {
        **EMPTY_COLUMNS,
        "iterations": 0,
        "stop": "failed",
        **usage_columns(NO_USAGE),
        "error": f"{kind}: {error}",
    }
    is_final = isinstance(error, RedraftError | ValueError) and kind != SHORTAGE
    return RowResult("failed" if is_final else "open", columns, error_kind=kind)


def not_started_result(message: str, more: Mapping[str, Any] | None = None) -> RowResult:
    """Return the result of a row for which no budget or time was left, with further columns."""
    columns = {
        **EMPTY_COLUMNS,
        "iterations": 0,
        "stop": NOT_STARTED,
        **usage_columns(NO_USAGE),
        "error": message or None,
    }
    return RowResult("open", {**columns, **(more or {})}, error_kind=NOT_STARTED)


def score_by_iteration(
    trace: Trace, spent: Mapping[str, Any]
) -> tuple[tuple[float | None, int, float | None], ...]:
    """Return for each iteration the best score after it, and the calls and the cost in USD of its
    answers.

    `spent` is that of the whole trace.
    """
    if len(trace.candidates) == 1:
        return ((trace.scores[trace.candidates[0].id], spent["calls"], spent["cost"]),)
    last, iteration_of = -1, {}
    for c in trace.candidates:
        last = max(last, 0) + (c.role == "refine")
        iteration_of[c.id] = last
    usages: dict[int, Usage] = dict.fromkeys(range(last + 1), NO_USAGE)
    for record in trace.records:
        if (
            record.usage is not NO_USAGE
            and (n := iteration_of.get(_newest_candidate(record))) is not None
        ):
            usages[n] += record.usage
    best_after: dict[int, float | None] = {}
    best_so_far: tuple[float, float] | None = None
    for c in trace.candidates:
        score = trace.scores[c.id]
        if score is not None:
            best_so_far = max(filter(None, (best_so_far, (trace.must_pass_rate(c.id), score))))
        best_after[iteration_of[c.id]] = best_so_far[1] if best_so_far else None
    columns = {n: usage_columns(usage) for n, usage in usages.items()}
    return tuple(
        (best_after[n], columns[n]["calls"], columns[n]["cost"]) for n in sorted(best_after)
    )


def _newest_candidate(record: Record) -> int:
    """Return the ID of the newest candidate that a record belongs to; -1 if there is none."""
    if isinstance(record, Feedback):
        return record.candidate
    return max(record.ranking) if isinstance(record, Comparison) else getattr(record, "id", -1)


def score_change(trace: Trace) -> tuple[bool, bool, bool]:
    """Return `improved`, `worse` and `unsure` of `RowResult`."""
    if len(trace.candidates) < 2:
        return False, False, False
    best, estimated = trace.best, trace.with_estimates
    # of several given answers the best is the starting point
    starts = max(1, len(trace.task.given_responses))
    first, later = (
        _ranks(estimated, estimated.candidates[:starts]),
        _ranks(estimated, estimated.candidates[starts:]),
    )
    if not (first or later) or best is None:
        return False, False, False
    first_rate, first_score = max(first) if first else later.pop(0)
    rate_change = estimated.must_pass_rate(best.id) - first_rate
    is_higher = (rate_change or (estimated.score or 0.0) - first_score) > TOLERANCE
    unsure = is_higher and not rate_change and not has_significant_gain(trace)
    refined = _ranks(estimated, (c for c in estimated.candidates[starts:] if c.parent is not None))
    worse = any((rate, score + TOLERANCE) < (first_rate, first_score) for rate, score in refined)
    return is_higher and not unsure, worse, unsure
