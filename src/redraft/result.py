"""The result of a refinement: the best answer, its score and its trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic

from .answers import AnswerForm
from .answers.grader import NAME as ANSWER_GRADER
from .base.money import format_usd
from .base.text import strip_control_sequences
from .errors import (
    ERROR_TYPES,
    BudgetExhaustedError,
    ComputeLimitError,
    GradingError,
    ModelError,
    RedraftError,
    error_name,
)
from .graders.computed.consensus import agreeing_groups
from .graders.traits import GraderTraits
from .loop.fields import FieldChange, unrequested_changes
from .loop.ranking import RankedAnswer, ranked_text, ranking, top_answers
from .loop.records import Artifact, Candidate, Failure, Feedback, StopReason, ToolCall
from .loop.trace import Trace
from .middleware.budget import EXCESS_TEXT
from .plans import Plan
from .plans.quality.diagnosis import Diagnosis, DiagnosisKind, diagnose, selection_reason
from .plans.quality.lineage import llm_graders
from .plans.quality.result_facts import (
    ResultFacts,
    broken_musts,
    result_facts,
    score_basis,
    score_interval,
)
from .plans.self_refine import GRADING
from .usage import Usage

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .plans.replay import CandidateStep

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


NO_SCORE_HINT = " (a grader that never scores has to say what to change, or done)"
SUCCESS_REASONS = {StopReason.TARGET, StopReason.DONE}
# the ends by a limit, with the name of the limit
FACTS = (  # attributes of a result that are plain data
    "iterations",
    "converged",
    "score_history",
    "selection_reason",
    "p_target",
    "priors",
    "repairs",
    "changed_fields",
    "truncated",
    "validation",
    "failures",
)
LIMITS = {StopReason.BUDGET: "budget", StopReason.DEADLINE: "deadline"}
NO_FAULTS = (ModelError, ComputeLimitError)  # what a grader may raise though its code is right
STOP_PHRASES = {
    StopReason.TARGET: "the target is reached",
    StopReason.TOOL_CALLS: "the answer calls tools",
    StopReason.PATIENCE: "the last refinements brought no improvement",
    StopReason.MAX_ITERATIONS: "all refinements are used",
    StopReason.BUDGET: "the budget is used up",
    StopReason.DEADLINE: "the time is up",
    StopReason.GAIN: "no further step is worth its cost",
    StopReason.FAILED: "a model or a grader failed",
    StopReason.CANCELLED: "it was interrupted",
}


@dataclass(frozen=True)
class Result(Generic[T_co]):
    """The best answer, its score, why the work ended, and the trace behind it.

    `Result[T]` is the result of `refine(..., answer=T)`.

    Attributes:
        trace: The task and all records.
        error: The error of a task of `refine_many` that failed, else None. `value` is then the best
            text so far, or "".
        answer: The form of the answer; None without the argument `answer`.
        plan: The plan that was followed; None if it is not known, as for a trace that was read from
            a file.
        callback_errors: What `on_record` and `on_step` raised, in words; the run went on.
    """

    trace: Trace
    error: RedraftError | None = None
    answer: AnswerForm[T_co] | None = field(default=None, compare=False, repr=False)
    plan: Plan | None = field(default=None, compare=False, repr=False)
    callback_errors: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def value(self) -> str:
        """The text of the best answer; it may be empty if the answer calls tools."""
        return self.trace.best.text if self.trace.best else ""

    @cached_property
    def parsed(self) -> T_co | None:
        """The best answer as the value that the argument `answer` asks for; None if it is not
        valid, and without that argument.
        """
        return parsed_answer(self.trace, self.answer)

    @cached_property
    def facts(self) -> ResultFacts:
        """What came out of the work, as one typed value that has a serialised form."""
        return result_facts(
            self.trace,
            has_form=self.answer is not None,
            parsed=parsed_data(self.trace, self.answer, self.parsed),
        )

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the best answer."""
        return self.trace.best.tool_calls if self.trace.best else ()

    @property
    def artifact(self) -> Artifact | None:
        """The artifact that the best answer refers to; None where it has none."""
        return self.trace.best.artifact if self.trace.best else None

    @property
    def display_text(self) -> str:
        """The best answer for display: its text, and each tool call on its own line."""
        return self.trace.best.display_text if self.trace.best else ""

    @property
    def score(self) -> float | None:
        """The score of the best answer, in [0, 1]; None if it was never scored.

        If graders are noisy, it is the posterior mean of the answer's quality given all scores,
        else the graders' score. With people's labels behind the only judge that scores, it is the
        label that people are expected to give (see `score_basis`).
        """
        return self.trace.score

    @property
    def score_interval(self) -> tuple[float, float] | None:
        """The 95% interval of the true score, if the priors fit; None if no grader is noisy or
        noise is not modelled.

        With people's labels behind the judge, it is the interval of the label that people would
        give (see `score_basis`).
        """
        return score_interval(self.trace)

    @property
    def score_basis(self) -> str:
        """What stands behind the score and its interval: "by people's labels (n = 120)", or "by
        this judge".

        With several judges it is "by these judges"; "" if no judge takes part in the score, or
        there is none.

        People's labels stand behind a score if one judge alone makes it, and its validation card
        holds a calibration.
        """
        return score_basis(self.trace)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the run; None if it was cut short or nothing stands out.

        Its `kind` is "reached", "bad check", "regression", "noise", "too few repeats" or "ceiling";
        `message` gives the figures.
        """
        return diagnose(self.trace)

    @property
    def judge_score(self) -> float | None:
        """The graders' score of the best answer (the mean over repeats); None if it was never
        scored.
        """
        return self.trace.judge_score

    @property
    def stop(self) -> StopReason:
        """Why the run ended."""
        return self.trace.stop

    @property
    def ranking(self) -> tuple[RankedAnswer, ...]:
        """All answers, best first; those that were not graded come last and have no rank."""
        return ranking(self.trace)

    @property
    def top(self) -> tuple[RankedAnswer, ...]:
        """The answers that the plan keeps, best first: the best, or with `BestOfN(keep=k)` the `k`
        best; none if none is graded.
        """
        k = max(1, len(self.trace.outcome.kept) if self.trace.outcome else 0)
        return top_answers(self.trace, k)

    @cached_property
    def agreement(self) -> float | None:
        """The share of all answers that agree with the best one, itself included, in (0, 1]; None
        if there is no answer. What agrees is as the grader `consensus` says.
        """
        answers = [row.candidate for row in self.ranking]
        groups = agreeing_groups(answers, self.answer)
        sizes = [len(group) for group in groups if self.trace.best and self.trace.best.id in group]
        return sizes[0] / len(answers) if sizes else None

    @property
    def steps(self) -> tuple[CandidateStep, ...]:
        """How each candidate came about, in order: its parent, the feedback on it, the messages
        sent, the answer and its grades.
        """
        from .plans.replay import candidate_steps

        return candidate_steps(self.trace, self.plan)

    @property
    def usage(self) -> Usage:
        """The usage of all calls, failed and repeated ones included."""
        return self.trace.usage

    @property
    def cost(self) -> float | None:
        """The cost in USD; None if a price or a token count is unknown."""
        return self.usage.cost

    @property
    def reason(self) -> str:
        """The graders' reasons for the score, or for the rank, of the best answer."""
        best = self.trace.best
        if best is None:
            return ""
        reasons = [f.reason for f in self.trace.feedback[best.id]] + [
            c.reason for c in self.trace.rankings_of(best.id)
        ]
        return "; ".join(filter(None, reasons))

    @property
    def iterations(self) -> int:
        """The number of refinements."""
        return self.trace.iterations

    @property
    def converged(self) -> bool:
        """Whether no better answer was to be expected: the work ended for `target`, `done`,
        `patience` or `gain`, with every must met.
        """
        return self.trace.converged

    @property
    def score_history(self) -> list[float | None]:
        """The score of each answer, in order; None if unknown."""
        return self.trace.score_history

    @property
    def stop_note(self) -> str:
        """Why the work ended, in words."""
        return self.trace.stop_note

    @property
    def selection_reason(self) -> str:
        """Why this answer was chosen, if graders gave another one a higher score; else ""."""
        return selection_reason(self.trace)

    @property
    def p_target(self) -> float | None:
        """The probability that the best answer reaches the target, on the basis of `score_basis`;
        None if scores are exact.
        """
        return self.trace.outcome.p_target if self.trace.outcome else None

    @property
    def priors(self) -> Mapping[str, Any] | None:
        """The priors of the plan; None for the shipped ones."""
        priors: Mapping[str, Any] | None = self.trace.settings.get("priors")
        return priors

    @property
    def repairs(self) -> int:
        """The number of answers that the editor repaired, without a model."""
        trace = self.trace
        return sum(c.role == "repair" and not trace.is_unchanged(c) for c in trace.candidates)

    @property
    def changed_fields(self) -> list[str]:
        """Of a JSON answer, what it changed of its parent though it was right and nobody asked."""
        return [str(change) for change in changed_fields(self.trace)]

    @property
    def broken_musts(self) -> list[str]:
        """The musts that the best answer breaks."""
        return broken_musts(self.trace)

    @property
    def truncated(self) -> bool:
        """Whether the best answer was cut off at the token limit."""
        return bool(self.trace.best and self.trace.best.truncated)

    @property
    def usage_by(self) -> dict[str, Usage]:
        """The usage by role and model, such as "generate llama3.2"."""
        return {f"{role} {by}".strip(): used for (role, by), used in self.trace.usage_by.items()}

    @property
    def validation(self) -> dict[str, Mapping[str, Any]]:
        """What its validation card says of each grader, with `require_validated`."""
        return {grader.name: dict(grader.card) for grader in self.trace.panel if grader.card}

    @property
    def failures(self) -> list[str]:
        """What failed, in words: the step and the message."""
        return [f"{failure.role}: {failure.message}" for failure in sorted_failures(self.trace)]

    @property
    def metadata(self) -> dict[str, Any]:
        """The facts above by their names, as plain data that `json.dumps` accepts. Four have names
        of their own: `note` (`stop_note`), `broken` (`broken_musts`), `best` (the ID of the best
        candidate) and `diagnosis` (its kind and message, or None).
        """
        diagnosis = self.diagnosis
        return {
            **{name: getattr(self, name) for name in FACTS},
            "usage_by": {name: asdict(used) for name, used in self.usage_by.items()},
            "note": self.stop_note,
            "broken": self.broken_musts,
            "best": self.trace.best.id if self.trace.best else None,
            "diagnosis": diagnosis and {"kind": str(diagnosis.kind), "message": diagnosis.message},
            "callback_errors": list(self.callback_errors),
        }

    def to_dict(self, *, trace: bool = False) -> dict[str, Any]:
        """Return the result as plain data that `json.dumps` accepts, with the whole trace if asked
        for.

        First come all facts as `facts.as_data()` has them, and under the same names as a row of a
        batch: `calls`, `tokens` and `cost` are those of the answers. `usage` is what was paid.
        """
        diagnosis = self.diagnosis
        data = {
            **self.facts.as_data(),
            **error_data(self.error),
            "diagnosis_note": diagnosis.message if diagnosis else "",
            "artifact": asdict(self.artifact) if self.artifact else None,
            "reason": self.reason,
            **{name: getattr(self, name) for name in FACTS},
            "best_candidate": self.trace.best.id if self.trace.best else None,
            "usage": asdict(self.usage),
            "usage_by": {name: asdict(used) for name, used in self.usage_by.items()},
            "callback_errors": list(self.callback_errors),
        }
        return data | {"trace": json.loads(self.trace.to_json())} if trace else data

    def __repr__(self) -> str:
        order = ranked_text(self.trace)
        return (
            f"Result({order or f'score={format_score_with_interval(self)}'}, "
            f"stop={str(self.stop)!r}, value={self.value[:60]!r})"
        )

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(f"{self.summary()}\n\n{strip_control_sequences(self.display_text)}")

    def _repr_html_(self) -> str:
        from html import escape  # only notebooks need it

        return f"<p>{escape(self.summary())}</p><pre>{escape(strip_control_sequences(self.display_text))}</pre>"  # noqa: E501

    def summary(self) -> str:
        """Return one line: the scores, why the run stopped, its usage and, if graders are noisy,
        the diagnosis.
        """
        best, usage = self.trace.best, self.usage
        parts = [
            headline(self),
            "cut off at the token limit" if best and best.truncated else "",
            *map(strip_control_sequences, [*_notes(self.trace), *self.callback_errors]),
            diagnosis_text(self) if self.score_interval else "",
            selection_reason(self.trace),
            f"calls {usage.calls}",
            f"tokens {'unknown' if usage.tokens is None else usage.tokens}",
            f"cost {format_usd(usage.cost)}",
        ]
        return " · ".join(filter(None, parts))


def _notes(trace: Trace) -> Iterator[str]:
    """Yield what is to be known of the best answer and its graders."""
    names_by_note = {
        "changed without being asked": [each.path for each in changed_fields(trace)],
        "still broken": broken_musts(trace),
        "said nothing": sorted(trace.silent_graders),
    }
    yield from (f"{note}: {', '.join(names)}" for note, names in names_by_note.items() if names)
    best = trace.best
    if best and best.note and best.role in {"generate", "refine"}:
        yield f"by {best.by} ({best.note})"


def parsed_answer(trace: Trace, form: AnswerForm[T_co] | None) -> T_co | None:
    """Return the value of the best answer; None if it is not valid or was cut off, or calls tools,
    and without a form.

    An answer whose validation did not end, as one that the deadline cut off, is not validated
    again: it may never end.
    """
    best = trace.best
    if (
        form is None
        or best is None
        or best.truncated
        or best.tool_calls
        or not _is_validated(trace, best)
    ):
        return None
    try:
        return form.read(best.text)
    except Exception:  # noqa: BLE001  (validators of the user; as a grader the form has recorded the error)
        return None


def _is_validated(trace: Trace, candidate: Candidate) -> bool:
    """Whether the grader of the form, if it is on the panel, has accepted a candidate."""
    grader = next(
        (member for member in trace.panel if member.must and member.name == ANSWER_GRADER), None
    )
    return grader is None or trace.grader_score(candidate.id, grader) == 1


def parsed_data(trace: Trace, form: AnswerForm[Any] | None, value: Any) -> Any:
    """Return the value of `parsed_answer` as a JSON value."""
    if form is None or value is None or trace.best is None:
        return None
    with suppress(Exception):  # serializers of the user
        return form.to_data(value, trace.best.text)
    return json.loads(trace.best.text) if form.is_json else trace.best.text


def changed_fields(trace: Trace) -> list[FieldChange]:
    """Return the fields that the best answer changed of its parent though they were right and
    nobody asked for it.
    """
    return unrequested_changes(trace, trace.best) if trace.best else []


def error_data(error: RedraftError | None) -> dict[str, Any]:
    """Return the error that was raised as plain data: its message, with the name of its class, that
    name, and its details. Without one only those, which are empty.
    """
    if error is None:
        return {"error_details": {}}
    kind = error_name(error)
    return {"error": f"{kind}: {error}", "error_kind": kind, "error_details": error.details}


def format_score(score: float | None) -> str:
    """Format a score for people; None becomes "unknown"."""
    return "unknown" if score is None else f"{score:.2f}"


def format_score_with_interval(result: Result[Any]) -> str:
    """Format a score with its interval."""
    if result.score_interval is None:
        return format_score(result.score)
    low, high = result.score_interval
    return f"{format_score(result.score)} [{low:.2f}, {high:.2f}] {result.score_basis}"


def headline(result: Result[Any]) -> str:
    """Return the scores of the first and of the best answer, what stands behind them, and why the
    run stopped, in plain words.
    """
    note = strip_control_sequences(result.trace.stop_note)
    why = f" ({note})" if note and _says_more(result) else ""
    return (
        f"{ranked_text(result.trace) or _scores_in_words(result)}; stopped: "
        f"{stop_phrase(result.trace)}{why}"
    )


def _says_more(result: Result[Any]) -> bool:
    """Whether the note on why a run stopped says more than `stop_phrase`."""
    trace, stop = result.trace, result.stop
    wrote = any(candidate.role in {"generate", "refine"} for candidate in trace.candidates)
    is_surprise = result.score_interval is not None or not wrote
    return (
        stop.resumable
        or stop in {StopReason.GAIN, StopReason.TOOL_CALLS}
        or EXCESS_TEXT in trace.stop_note
        or (is_surprise and stop not in SUCCESS_REASONS)
        or not is_graded(trace)
    )


def stop_phrase(trace: Trace) -> str:
    """Return why a run stopped, in plain words."""
    if trace.stop is StopReason.DONE:
        graders = _graders_in_words(trace)
        return f"{graders} {'are' if graders.endswith('s') else 'is'} satisfied"
    return STOP_PHRASES[trace.stop]


def _scores_in_words(result: Result[Any]) -> str:
    """Return the score of the best answer, after that of the first unless it is the first, and what
    stands behind it.
    """
    trace, best = result.trace.with_estimates, result.trace.best
    if not trace.graded_candidates or best is None:
        return format_score(None)
    answers = trace.scored_candidates
    given = answers[: max(1, len(trace.task.given_responses))]
    first = max(given, key=lambda c: trace.scores[c.id] or 0.0, default=best)
    start = f"{format_score(trace.scores[first.id])} -> " if first.id != best.id else ""
    details = [*_what_stands_behind(result)]
    if not start and len(answers) > 1 and trace.iterations:
        details.insert(0, f"the first answer is the best of {len(answers)}")
    return f"{start}{format_score(result.score)}" + (f" ({'; '.join(details)})" if details else "")


def _what_stands_behind(result: Result[Any]) -> Iterator[str]:
    """Yield the graders' score and the interval, if there is an interval."""
    trace = result.trace
    if interval := result.score_interval:
        yield f"{_graders_in_words(trace)} said {format_score(result.judge_score)}"
        by_labels = trace.outcome and trace.outcome.labels is not None
        basis = f" {result.score_basis}" if by_labels else ""
        yield f"95% between {interval[0]:.2f} and {interval[1]:.2f}{basis}"


def _graders_in_words(trace: Trace) -> str:
    """Return "the judge", "the judges", "the grader" or "the graders"."""
    graders = [grader for grader in trace.panel if not grader.must]
    kind = "judge" if graders and len(llm_graders(graders)) == len(graders) else "grader"
    return f"the {kind}{'s' * (len(graders) != 1)}"


def diagnosis_text(result: Result[Any]) -> str:
    """Return the diagnosis in words; "" if there is none, or the run reached its target."""
    diagnosis = result.diagnosis
    if diagnosis is None or diagnosis.kind is DiagnosisKind.REACHED:
        return ""
    return f"{diagnosis.kind}: {strip_control_sequences(diagnosis.message)}"


def raise_if_failed(
    result: Result[Any], graders: Mapping[str, GraderTraits], *, strict_budget: bool
) -> None:
    """Raise the error of a finished refinement if there is no answer, or if a grader of the user
    never grades.

    `graders` are those of the panel by their names.
    """
    trace = result.trace
    if not trace.candidates or (strict_budget and result.stop in LIMITS):
        raise conclusion_error(result)
    if not is_graded(trace) and any(
        never_grades(trace, name) for name, traits in graders.items() if traits.runs_user_code
    ):
        raise _nothing_graded_error(result)


def is_graded(trace: Trace) -> bool:
    """Whether the best answer is graded, or calls tools, so that it is returned ungraded by
    design.
    """
    return bool(trace.graded_candidates) or trace.stop is StopReason.TOOL_CALLS


def conclusion_error(result: Result[Any]) -> RedraftError:
    """Return the error of a refinement without a grade: that of the limit that ended it, of its
    graders or of the model.
    """
    trace = result.trace
    if result.stop not in LIMITS:
        return _nothing_graded_error(result)
    limit = (trace.fatal_failure and trace.fatal_failure.limit) or LIMITS[result.stop]
    return _with_result(
        BudgetExhaustedError(trace.stop_note, limit=limit, usage=trace.usage), result
    )


def _with_result(error: RedraftError, result: Result[Any]) -> RedraftError:
    """Return the error with the result, if that has an answer."""
    error.result = result if result.trace.candidates else None
    return error


def never_grades(trace: Trace, grader: str) -> bool:
    """Whether a grader has graded no answer, and neither a limit nor a model that it asks is the
    cause.
    """
    feedback = [f for f in _all_feedback(trace) if f.grader == grader]
    if (
        any(f.score is not None for f in feedback)
        or grader in trace.critics
        or any(c.grader == grader for c in trace.comparisons)
    ):
        return False
    return bool(feedback) or any(_is_fault(f, grader) for f in trace.failures.values())


def _is_fault(failure: Failure, grader: str) -> bool:
    """Whether a failure shows a fault in the code of a grader."""
    is_own = failure.role in GRADING and failure.step_slot[2] == grader
    kind = ERROR_TYPES.get(failure.error, Exception)
    return is_own and failure.stop_reason not in LIMITS and not issubclass(kind, NO_FAULTS)


def _all_feedback(trace: Trace) -> Iterator[Feedback]:
    return chain.from_iterable(trace.feedback.values())


def sorted_failures(trace: Trace) -> list[Failure]:
    """Return the failures of a trace in an order that does not depend on when they happened."""
    return sorted(trace.failures.values(), key=lambda f: str(f.step_slot))


def grader_messages(trace: Trace) -> list[str]:
    """Return what graders that failed said, with their names, each once. A limit that ended the run
    is no failure of theirs.
    """
    failures = [
        f
        for f in sorted_failures(trace)
        if f.step_slot[0] == "feedback" and f.stop_reason not in LIMITS
    ]
    return [*dict.fromkeys(f"{f.step_slot[2]}: {f.message}" for f in failures)]


def _nothing_graded_error(result: Result[Any]) -> RedraftError:
    """Return the error of a refinement without a grade: of its graders if there is a text, else of
    the model.
    """
    trace = result.trace
    failures = sorted_failures(trace)
    others = dict.fromkeys(f.message for f in failures if f.step_slot[0] != "feedback")
    if not trace.candidates:
        if not failures:
            return ModelError("no answer could be obtained", usage=trace.usage)
        return failures[0].as_error("; ".join(others), trace.usage)
    what = (
        "no answer was graded by all graders"
        if any(f.score is not None or f.is_critique for f in _all_feedback(trace))
        else "no grader could say anything"
    )
    reasons = "; ".join([*grader_messages(trace), *others, *_missing_scores(trace)])
    error = GradingError(f"{what}: {reasons}", usage=trace.usage)
    error.__cause__ = next(
        (f.as_error() for f in failures if f.error in ERROR_TYPES.keys() - {"GradingError"}), None
    )
    return _with_result(error, result)


def _missing_scores(trace: Trace) -> list[str]:
    """Return what to say of graders that gave no score and are no critics, each once."""
    musts = {grader.name for grader in trace.panel if grader.must}
    silent = dict.fromkeys(
        f.grader for f in _all_feedback(trace) if f.score is None and f.grader not in trace.critics
    )
    hints = {
        grader: f" ({reason})"
        if (reason := trace.unscored_reasons.get(grader))
        else NO_SCORE_HINT * (grader not in musts)
        for grader in silent
    }
    return [f"{grader}: its score is None{hint}" for grader, hint in hints.items()]
