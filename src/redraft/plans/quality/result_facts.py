"""What came out of the work on one task, as one typed value with one serialised form.

`result_facts` makes it from a trace; nothing else reads the figures of a result out of one. Python,
the output of a batch, the journal and the pages show views of it.

`ResultFacts.as_data` is the whole form, version 2, as people and programs get it: all fields that
apply, under their names. `ResultFacts.to_data` is what a journal holds: the fields that do not hold
their default. `ResultFacts.from_data` reads that, and version 1, which releases up to 0.2 wrote:
the columns of a batch's output, and beside them what these lack. What is neither, or holds a value
that no result has, is refused with the name of the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias

from ...errors import ShortageError, StoreError
from ...loop.ranking import top_answers
from ...loop.records import (
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Outcome,
    Record,
    StopReason,
    ToolCall,
)
from ...loop.serialize import pack, unpack
from ...loop.trace import Trace
from ...usage import NO_USAGE, Usage, sum_usage
from .calibration import labels_text
from .diagnosis import diagnose, has_significant_gain
from .lineage import llm_graders

VERSION = "redraft_result"  # the key of the version of the form
SCHEMA = 2  # raise it with every change of what is written (tests/golden shows it)
Status: TypeAlias = Literal["open", "done", "failed"]
# a column of earlier versions: what an answer that no judge graded was expected to score
FORECAST = "forecast"
SHORTAGE = ShortageError.__name__
TOLERANCE = 1e-9
SCORE_ERROR = 1e-6  # by which rounding may move a score out of 0 to 1
MAX_AMOUNT = 2**40  # of calls, tokens, USD and iterations: far more than any result has


IterationFigures: TypeAlias = tuple[float | None, int, float | None]
"""The best score after an iteration (None: unknown), and the calls and the cost in USD of its
answers.
"""


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """What came out of the work on one task. None: unknown, or not applicable.

    With a noise-aware plan all scores except `judge_score` are its estimates, because the judge's
    score of the answer that it ranked highest is biased upwards.

    Attributes:
        status: "done", "failed" (an error ended it, or no answer could be scored) or "open" (cut
            short).
        stop: Why it ended: a `StopReason`, or "not_started" for a row of a batch for which no
            budget or time was left.
        stop_note: The same in words.
        answer: The text of the best answer.
        has_form: Whether the task asks for an answer of some form.
        parsed: With a form, the best answer as a JSON value; None if it is not valid.
        tool_calls: The tool calls of the best answer.
        kept: The answers that the plan keeps, best first (see `RankedAnswer.to_dict`), if it keeps
            several.
        note: What its model noted on the best answer, such as that the prompt was cut.
        truncated: The best answer was cut off.
        initial_score: The score of the first answer; of several given ones, the best score.
        score: The score of the best answer.
        interval: The 95% interval of the same.
        score_basis: What stands behind both, as in `Result.score_basis`.
        judge_score: The graders' score of the best answer.
        broken: The musts that the best answer breaks. (What version 1 holds of several is one
            text.)
        diagnosis: The kind of the diagnosis; "" if there is none.
        improved: The best answer satisfies more musts than the first, or as many and scores higher
            by more than the noise of the graders explains.
        worse: A refinement or a repair scored lower than the first answer.
        unsure: The best answer scores higher than the first, but with too few grades to rule out
            noise.
        iterations: The number of refinements.
        by_iteration: The figures of each iteration from 0.
        calls: The calls of the answers, whether they were paid for or came from the cache. Retries
            do not count, so it does not depend on how often the work was interrupted.
        tokens: Their tokens.
        cost: Their cost in USD.
        error: The error that ended it, in words, with the name of its class.
        error_kind: The cause, one of `errors.CAUSES`; "not_started" as in `stop`; "" if none.
        more_columns: Further columns of the output of a batch: of single graders and hidden tests.
        decisions: What the allocation of a batch's budget decided on the row, as it stores that.
    """

    status: Status
    stop: str
    stop_note: str = ""
    answer: str | None = None
    has_form: bool = False
    parsed: Any = None
    tool_calls: tuple[ToolCall, ...] = ()
    kept: tuple[Mapping[str, Any], ...] | None = None
    note: str = ""
    truncated: bool = False
    initial_score: float | None = None
    score: float | None = None
    interval: tuple[float, float] | None = None
    score_basis: str = ""
    judge_score: float | None = None
    broken: tuple[str, ...] = ()
    diagnosis: str = ""
    improved: bool = False
    worse: bool = False
    unsure: bool = False
    iterations: int = 0
    by_iteration: tuple[IterationFigures, ...] = ()
    calls: int = 0
    tokens: int | None = None
    cost: float | None = None
    error: str | None = None
    error_kind: str = ""
    more_columns: Mapping[str, Any] = field(default_factory=dict)
    decisions: Any = None

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the output of a batch, in their order."""
        low, high = self.interval or (None, None)
        return {
            "best": self.answer,
            **({"parsed": self.parsed} if self.has_form else {}),
            "tool_calls": _json([call.as_message_part() for call in self.tool_calls] or None),
            "initial_score": self.initial_score,
            "best_score": self.score,
            "score_low": low,
            "score_high": high,
            "score_basis": self.score_basis or None,
            "judge_score": self.judge_score,
            "iterations": self.iterations,
            "stop": self.stop,
            "diagnosis": self.diagnosis or None,
            "calls": self.calls,
            "tokens": self.tokens,
            "cost": self.cost,
            "error": self.error,
            "broken": "; ".join(self.broken) or None,
            "note": self.note or None,
            **({} if self.kept is None else {"kept": _json(self.kept)}),
            **self.more_columns,
        }

    def to_data(self) -> dict[str, Any]:
        """Return what a journal holds: the facts without those that hold their default."""
        return {VERSION: SCHEMA, **pack(self)}

    def as_data(self) -> dict[str, Any]:
        """Return all facts as JSON values, with "schema". `parsed` is left out without a form, and
        what only some results have (`OPTIONAL`) if it is None or empty.
        """
        left_out = {name for name in OPTIONAL if getattr(self, name) in (None, {})}
        left_out |= {"has_form"} if self.has_form else {"has_form", "parsed"}
        names = self.__dataclass_fields__
        data = {name: getattr(self, name) for name in names if name not in left_out}
        calls = [call.as_message_part() for call in self.tool_calls]
        return {"schema": SCHEMA, **data, "tool_calls": calls}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ResultFacts:
        """Return the facts that `to_data` described, or version 1 with a "status". Raises
        StoreError for anything else.
        """
        version = data.get(VERSION, 1)
        if version not in (1, SCHEMA):
            raise StoreError(
                f"a result of schema {version!r:.80}; this release reads schemas 1 and {SCHEMA}: "
                "use the Redraft that wrote it, or a newer one"
            )
        fields = {name: value for name, value in data.items() if name != VERSION}
        if version == 1:
            fields = _read_version_1(fields)
        elif FORECAST in fields:
            more = {FORECAST: fields.pop(FORECAST)}
            fields["more_columns"] = {**more, **fields.get("more_columns", {})}
        facts: ResultFacts = unpack(cls, fields)
        _check_ranges(facts)
        return facts


OPTIONAL = ("kept", "more_columns", "decisions")  # fields that few results have

# the fields of what version 1 has as columns of the output
COLUMN_FIELDS = {
    "best": "answer",
    "initial_score": "initial_score",
    "best_score": "score",
    "score_basis": "score_basis",
    "judge_score": "judge_score",
    "iterations": "iterations",
    "stop": "stop",
    "diagnosis": "diagnosis",
    "calls": "calls",
    "tokens": "tokens",
    "cost": "cost",
    "error": "error",
    "note": "note",
}
OTHER_COLUMNS = ("parsed", "score_low", "score_high", "broken", "kept", "tool_calls")


def _read_version_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of version 1, of which `unpack` checks the values. Raises StoreError."""
    try:
        columns = data["columns"]
        parsed, low, high, broken, kept, calls = map(columns.get, OTHER_COLUMNS)
        more = columns.keys() - COLUMN_FIELDS.keys() - {*OTHER_COLUMNS}
        fields = {
            field: value
            for column, field in COLUMN_FIELDS.items()
            if (value := columns.get(column)) is not None
        }
        return {
            **{name: data[name] for name in data.keys() - {"columns", "score_by_iteration"}},
            "stop": "",
            **fields,
            "by_iteration": data.get("score_by_iteration", ()),
            "has_form": "parsed" in columns,
            "parsed": parsed,
            "interval": None if low is None and high is None else (low, high),
            "broken": () if broken is None else (broken,),
            "kept": None if kept is None else json.loads(kept),
            "tool_calls": [
                {"id": call["id"], **call["function"]} for call in json.loads(calls or "[]")
            ],
            "more_columns": {name: value for name, value in columns.items() if name in more},
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"no result: {type(error).__name__}, {error}") from error


def _check_ranges(facts: ResultFacts) -> None:
    """Raise StoreError for a score, or an amount, that no result can have."""
    scores = facts.initial_score, facts.score, facts.judge_score
    steps, amounts = facts.by_iteration, (facts.iterations, facts.calls, facts.tokens, facts.cost)
    for score in (*scores, *(facts.interval or ()), *(each[0] for each in steps)):
        if score is not None and not -SCORE_ERROR <= score <= 1 + SCORE_ERROR:
            raise StoreError(f"a score cannot be {score!r:.80}")
    for amount in (*amounts, *chain.from_iterable(each[1:] for each in steps)):
        if amount is not None and not 0 <= amount < MAX_AMOUNT:
            raise StoreError(f"an amount of calls, tokens or USD cannot be {amount!r:.80}")


def _json(value: Any) -> str | None:
    """Return a value as a column holds it; None for None."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


# ---- from a trace


def result_facts(
    trace: Trace,
    *,
    has_form: bool = False,
    parsed: Any = None,
    more_columns: Mapping[str, Any] | None = None,
) -> ResultFacts:
    """Return the facts of a trace that ended, or was cut short. `parsed` is the best answer as a
    JSON value, if the task `has_form`.
    """
    status, diagnosis = _status(trace), diagnose(trace)
    calls, tokens, cost = _spent_on_answers(_usage_of_answers(trace))
    improved, worse, unsure = score_change(trace)
    return ResultFacts(
        status,
        str(trace.stop),
        trace.stop_note,
        has_form=has_form,
        parsed=parsed,
        initial_score=_initial_score(trace.with_estimates),
        score=trace.score,
        interval=score_interval(trace),
        score_basis=score_basis(trace),
        judge_score=trace.judge_score,
        broken=tuple(broken_musts(trace)),
        diagnosis=diagnosis.kind.value if diagnosis else "",
        improved=improved,
        worse=worse,
        unsure=unsure,
        iterations=trace.iterations,
        by_iteration=_figures_by_iteration(trace.with_estimates, calls, cost),
        calls=calls,
        tokens=tokens,
        cost=cost,
        more_columns=more_columns or {},
        **_answer_fields(trace.best),
        **_end_fields(trace, trace.outcome),
        **_error_fields(trace, status),
    )


def _answer_fields(best: Candidate | None) -> dict[str, Any]:
    if best is None:
        return {}
    note = best.note if best.role in {"generate", "refine"} else ""
    return {
        "answer": best.text,
        "tool_calls": best.tool_calls,
        "note": note,
        "truncated": best.truncated,
    }


def _end_fields(trace: Trace, end: Outcome | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if end and end.kept:
        fields["kept"] = tuple(each.to_dict() for each in top_answers(trace, len(end.kept)))
    return fields


def _error_fields(trace: Trace, status: Status) -> dict[str, Any]:
    error = None if status == "done" else find_error(trace)
    if error is None:
        return {}
    is_named = status == "failed" or error.error == SHORTAGE
    return {"error": format_error(error), "error_kind": error.error if is_named else ""}


def score_interval(trace: Trace) -> tuple[float, float] | None:
    """Return the interval of the outcome, rounded to two digits; None if no grader is noisy."""
    if trace.outcome is None or trace.outcome.interval is None or not llm_graders(trace.scorers):
        return None
    low, high = trace.outcome.interval
    return round(low, 2), round(high, 2)


def score_basis(trace: Trace) -> str:
    """Return what stands behind the score of a trace: people's labels, or its judges; "" without a
    judge or a score.
    """
    end = trace.outcome
    if end and end.labels is not None:
        return f"by {labels_text(end.labels)}"
    judges = llm_graders(trace.scorers)
    if not judges or trace.score is None:
        return ""
    return "by this judge" if len(judges) == 1 else "by these judges"


def broken_musts(trace: Trace, candidate: int | None = None) -> list[str]:
    """Return the musts that a candidate, or the best one, was found not to meet."""
    id = trace.best.id if candidate is None and trace.best else candidate
    if id is None:
        return []
    return [
        grader.name
        for grader in trace.scorers
        if grader.must and trace.grader_score(id, grader) not in {None, 1}
    ]


def _spent_on_answers(usage: Usage) -> tuple[int, int | None, float | None]:
    """Return the calls, tokens and cost of the answers, whether they were paid for or came from
    the cache.
    """
    calls = usage.calls - usage.retried_calls + usage.cached_calls
    # without the last digits, which depend on the order of addition
    cost = None if usage.answer_cost is None else round(usage.answer_cost, 10)
    return calls, usage.answer_tokens, cost


def _usage_of_answers(trace: Trace) -> Usage:
    """Return the usage of the records; if no answer is graded, also the usage of what failed,
    unknown where a call was not answered.
    """
    spent = sum_usage([record for record in trace.records if record.__class__ is not Failure])
    for failure in () if trace.graded_candidates else trace.failures.values():
        spent += failure.usage.as_answer(failure.usage.cost)
    return spent


def _status(trace: Trace) -> Status:
    """Return the status. Work that fails for a shortage of this machine is open: the next run
    continues it.
    """
    stop = trace.stop
    if stop is StopReason.FAILED or not (
        trace.graded_candidates or stop.resumable or stop is StopReason.TOOL_CALLS
    ):
        is_short = any(failure.error == SHORTAGE for failure in trace.failures.values())
        return "open" if is_short else "failed"
    return "open" if stop.resumable else "done"


def find_error(trace: Trace) -> Failure | None:
    """Return the failure that ended a trace that is not done. In every run it is the same one: a
    candidate's before a grader's.
    """
    if trace.stop is StopReason.CANCELLED:
        return None
    if trace.fatal_failure or (trace.stop is not StopReason.FAILED and trace.graded_candidates):
        return trace.fatal_failure
    failures = sorted(
        trace.failures.values(), key=lambda f: (f.step_slot[0] != "candidate", str(f.step_slot))
    )
    return (
        failures[0]
        if failures
        else Failure((), "row", "GradingError", trace.stop_note or "the graders gave no score")
    )


def format_error(error: Failure) -> str:
    """Return the class and the message of an error, with the name of the grader that raised it."""
    grader = f"grader {error.step_slot[2]}: " if error.step_slot[:1] == ("feedback",) else ""
    return f"{error.error}: {grader}{error.message.removeprefix(f'{error.error}: ')}"


def _initial_score(trace: Trace) -> float | None:
    """Return the score of the first answer; of several given ones, the best score, None while one
    has no score.
    """
    if len(given := trace.task.given_responses) < 2:
        return next(iter(trace.score_history), None)
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


def _figures_by_iteration(
    trace: Trace, calls: int, cost: float | None
) -> tuple[IterationFigures, ...]:
    """Return the figures of each iteration; calls and cost count the whole trace."""
    if len(trace.candidates) == 1:
        return ((trace.scores[trace.candidates[0].id], calls, cost),)
    iteration_of, best_after = dict[int, int](), dict[int, float | None]()
    n, best = -1, list[tuple[float, float]]()
    for c in trace.candidates:
        iteration_of[c.id] = n = max(n, 0) + (c.role == "refine")
        best = sorted(best + _ranks(trace, [c]))[-1:]
        best_after[n] = best[0][1] if best else None
    usages = dict.fromkeys(best_after, NO_USAGE)
    for record in trace.records:
        if (n := iteration_of.get(_newest_candidate(record), -1)) >= 0:
            usages[n] += record.usage
    spent = map(_spent_on_answers, usages.values())
    return tuple(
        (score, calls, cost)
        for score, (calls, _, cost) in zip(best_after.values(), spent, strict=True)
    )


def _newest_candidate(record: Record) -> int:
    """Return the ID of the newest candidate that a record belongs to; -1 if there is none."""
    if isinstance(record, Feedback):
        return record.candidate
    return max(record.ranking) if isinstance(record, Comparison) else getattr(record, "id", -1)


def score_change(trace: Trace) -> tuple[bool, bool, bool]:
    """Return `improved`, `worse` and `unsure` of `ResultFacts`."""
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
