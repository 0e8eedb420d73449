"""The result of one row of a batch: what came out of it (`ResultFacts`), with the columns that only
batches have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..answers import AnswerForm
from ..base.descriptors import is_shortage
from ..base.error_text import error_text
from ..errors import RedraftError, error_name
from ..loop.records import Failure, Outcome, StopReason
from ..loop.trace import PanelGrader, Trace
from ..loop.visible_tests import hidden_results
from ..plans.quality.result_facts import SHORTAGE, ResultFacts, find_error, result_facts
from ..result import parsed_answer, parsed_data
from ..session.grade_report import grader_feedback

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
PARSED = "parsed"
HIDDEN = ("hidden_passed", "hidden_total")  # the columns of the hidden tests of the best answer
KEPT = "kept"  # the column of the answers that mode "best" keeps, if it keeps several
# no grader's column has these names
OWN_COLUMNS = {PARSED, KEPT, *HIDDEN, *COLUMNS} - {"judge_score"}
NOT_STARTED = "not_started"
NOT_BEGUN = {StopReason.BUDGET, StopReason.DEADLINE}  # the ends of a row that was not begun


def row_result(
    trace: Trace, answer: AnswerForm[Any] | None = None, more: Mapping[str, Any] | None = None
) -> ResultFacts:
    """Return the result of a trace that ended, or was cut short. `answer` is the form of its
    answer, `more` further columns.

    With a form, it runs validators and serializers of the user, which may take any time.
    """
    if trace.stop in NOT_BEGUN and not has_begun(trace):
        error = find_error(trace)
        return not_started_result(error.message if error else "", more)
    parsed = parsed_data(trace, answer, parsed_answer(trace, answer)) if answer else None
    return result_facts(trace, has_form=answer is not None, parsed=parsed, more_columns=more)


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


def failed_result(error: Exception) -> ResultFacts:
    """Return the result of a row that raised an error. After an unexpected error it is open, so
    that the next run tries again.
    """
    kind = SHORTAGE if is_shortage(error) else error_name(error)
    is_final = isinstance(error, RedraftError | ValueError) and kind != SHORTAGE
    return ResultFacts(
        "failed" if is_final else "open",
        "failed",
        tokens=0,
        cost=0.0,
        error=f"{kind}: {error_text(error)}",
        error_kind=kind,
    )


def not_started_result(message: str, more: Mapping[str, Any] | None = None) -> ResultFacts:
    """Return the result of a row for which no budget or time was left, with further columns."""
    return ResultFacts(
        "open",
        NOT_STARTED,
        tokens=0,
        cost=0.0,
        error=message or None,
        error_kind=NOT_STARTED,
        more_columns=more or {},
    )


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
    feedback = {each.grader: each for each in grader_feedback(trace, best)} if columns else {}
    values: dict[str, Any] = {}
    for name, (score, reason) in columns.items():
        given = feedback.get(name)
        values |= {score: given and given.score, reason: (given and given.reason) or None}
    return values


def hidden_values(trace: Trace) -> dict[str, Any]:
    """Return how many hidden tests the best answer passes, and how many there are; None if
    unknown.
    """
    results = hidden_results(trace.feedback[trace.best.id] if trace.best else ())
    return dict(zip(HIDDEN, results or (None, None), strict=True))
