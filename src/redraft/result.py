"""What a refinement gives back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from .core.records import StopReason, ToolCall, Usage
from .core.trace import Trace
from .errors import ERROR_TYPES, BudgetExhaustedError, GradingError, ModelError, RedraftError, error_from_failure
from .middleware.budget import EXCESS_TEXT
from .quality.diagnosis import Diagnosis, DiagnosisKind, diagnose, selection_reason
from .quality.lineage import llm_graders
from .text import strip_control_sequences

NO_SCORE_HINT = " (a grader that never scores has to say what to change, or done)"
SUCCESS_REASONS = {StopReason.TARGET, StopReason.DONE}


@dataclass(frozen=True)
class Result:
    """The best answer, its score, why the work ended, and the whole trace behind it.

    `error` is set on the results of `refine_many` that could not be had; their `value` is then the best text at hand,
    or "".
    """

    trace: Trace
    error: RedraftError | None = None

    @property
    def value(self) -> str:
        """The best text; it may be empty where the answer is `tool_calls`."""
        return self.trace.best.text if self.trace.best else ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools that the best answer asks for."""
        return self.trace.best.tool_calls if self.trace.best else ()

    @property
    def display_text(self) -> str:
        """The best answer for people: its text, and each tool call on a line of its own."""
        return self.trace.best.display_text if self.trace.best else ""

    @property
    def score(self) -> float | None:
        """The score of the best, in [0, 1]; None if it was never scored.

        Where graders are noisy, it is what is believed of the best, given all that was seen; else what graders said.
        """
        return self.trace.score

    @property
    def score_interval(self) -> tuple[float, float] | None:
        """Where the true score lies with a probability of 95 %, if the priors fit; None where no grader is noisy, or the score is
        taken as it was given.
        """
        return score_interval(self.trace)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What there is to say of how it went: its `kind` ("reached", "bad check", "regression", "noise", "too few looks" or
        "ceiling") and its `words`; None where the work was cut short, or nothing stands out.
        """
        return diagnose(self.trace)

    @property
    def judge_score(self) -> float | None:
        """The score that graders gave the best (the mean of their looks); None if it was never scored."""
        return self.trace.judge_score

    @property
    def stop(self) -> StopReason:
        """Why the work ended."""
        return self.trace.outcome.reason if self.trace.outcome else StopReason.CANCELLED

    @property
    def usage(self) -> Usage:
        """What all calls consumed, failed and repeated ones included."""
        return self.trace.usage

    @property
    def cost(self) -> float | None:
        """USD, or None when a price or a token count is unknown."""
        return self.usage.cost

    @property
    def reason(self) -> str:
        """What the graders say of the best answer."""
        best = self.trace.best
        return "; ".join(f.reason for f in self.trace.feedback[best.id] if f.reason) if best else ""

    @property
    def metadata(self) -> dict[str, Any]:
        """What else can be read off the trace, as plain data that `json.dumps` takes.

        `iterations` and `converged`; `score_history`, the scores in order; `note`, why it stopped, in words; `why_kept`, why
        not the answer that was scored highest, or ""; `priors`, those by which it went, None for the shipped ones;
        `diagnosis`, its kind and words, or None; `repairs` made without a model; `best`, the id of the best candidate; `broken`
        musts; whether the best was `truncated`; `usage_by` role and model; `trust`, what is known of each grader, where that was
        asked for; `failures` in words.
        """
        trace = self.trace
        return {
            "iterations": trace.iterations,
            "converged": trace.converged,
            "score_history": trace.score_history,
            "note": trace.outcome.note if trace.outcome else "",
            "why_kept": selection_reason(trace),
            "priors": trace.settings.get("priors"),
            "diagnosis": (found := self.diagnosis) and {"kind": str(found.kind), "words": found.message},
            "repairs": sum(c.role == "repair" and not trace.is_unchanged(c) for c in trace.candidates),
            "best": trace.best.id if trace.best else None,
            "broken": broken_musts(trace),
            "truncated": bool(trace.best and trace.best.truncated),
            "usage_by": {f"{role} {by}".strip(): asdict(usage) for (role, by), usage in trace.usage_by.items()},
            "trust": {seat.name: dict(seat.card) for seat in trace.panel if seat.card},
            "failures": [f"{f.role}: {f.message}" for f in sorted(trace.failures.values(), key=lambda f: str(f.step_slot))],
        }

    def to_dict(self, *, trace: bool = False) -> dict[str, Any]:
        """All of it as plain data that `json.dumps` takes; the whole trace, too, if asked for."""
        data = {
            "value": self.value,
            "tool_calls": [call.as_message_part() for call in self.tool_calls],
            "score": self.score,
            "score_interval": self.score_interval,
            "observed": self.judge_score,
            "reason": self.reason,
            "stop": str(self.stop),
            "converged": self.trace.converged,
            "usage": asdict(self.usage),
            "cost": self.cost,
            "metadata": self.metadata,
            "error": error_data(self.error) if self.error else None,
        }
        return data | {"trace": json.loads(self.trace.to_json())} if trace else data

    def __repr__(self) -> str:
        return f"Result(score={format_score_with_interval(self)}, stop={str(self.stop)!r}, value={self.value[:60]!r})"

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(f"{self.summary()}\n\n{strip_control_sequences(self.display_text)}")

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p><pre>{escape(strip_control_sequences(self.display_text))}</pre>"

    def summary(self) -> str:
        """One line: score, why it stopped, what it took; where graders are noisy, what is to be said of that, too."""
        u = self.usage
        tokens = "unknown" if u.input_tokens is None or u.output_tokens is None else str(u.input_tokens + u.output_tokens)
        cost = "unknown" if u.cost is None else f"{u.cost:.4g} USD"
        note = self.trace.outcome.note if self.trace.outcome else ""
        told = self.stop.resumable or self.stop in {StopReason.GAIN, StopReason.TOOL_CALLS} or EXCESS_TEXT in note
        told = told or (self.score_interval is not None and self.stop not in SUCCESS_REASONS)
        why = f"{self.stop} ({strip_control_sequences(note)})" if note and told else str(self.stop)
        remark = diagnosis_text(self) if self.score_interval else ""
        cut = ["cut off at the token limit"] if self.trace.best and self.trace.best.truncated else []
        parts = [
            f"score {format_score_with_interval(self)} ({format_score_history(self, ' -> ')})",
            *cut,
            *([f"still broken: {strip_control_sequences(', '.join(broken))}"] if (broken := broken_musts(self.trace)) else []),
            f"stopped: {why}",
            *filter(None, [remark, selection_reason(self.trace)]),
            f"calls {u.calls}",
            f"tokens {tokens}",
            f"cost {cost}",
        ]
        return " · ".join(parts)


def error_data(error: RedraftError) -> dict[str, Any]:
    """An error as plain data: its name, its message, and what else it carries."""
    return {"error": type(error).__name__, "message": str(error), **error.details}


def format_score(score: float | None) -> str:
    """A score as people read it; what is unknown says so."""
    return "unknown" if score is None else f"{score:.2f}"


def score_interval(trace: Trace) -> tuple[float, float] | None:
    """Where the true score lies as it was believed at the end, to two digits; None where no grader is noisy."""
    if trace.outcome is None or trace.outcome.interval is None or not llm_graders(trace.scorers):
        return None
    low, high = trace.outcome.interval
    return round(low, 2), round(high, 2)


def format_score_with_interval(result: Result) -> str:
    """The score, and where the true one lies."""
    if not (around := result.score_interval):
        return format_score(result.score)
    return f"{format_score(result.score)} [{around[0]:.2f}, {around[1]:.2f}]"


def format_score_history(result: Result, arrow: str) -> str:
    """The scores that graders gave, one after the other; with that of the best, and what is believed, where they are not taken
    as they were given.
    """
    history, believed = (
        arrow.join(map(format_score, trace.score_history)) for trace in (result.trace, result.trace.with_estimates)
    )
    return f"observed {format_score(result.judge_score)}; {history}, believed {believed}" if result.score_interval else history


def diagnosis_text(result: Result) -> str:
    """What is to be said of how it went, where that is more than that it went well."""
    found = result.diagnosis
    return "" if found is None or found.kind is DiagnosisKind.REACHED else f"{found.kind}: {strip_control_sequences(found.message)}"


def broken_musts(trace: Trace) -> list[str]:
    """The `must` graders that the best candidate does not satisfy. They say nothing of tool calls that are handed on ungraded."""
    if trace.best is None or (trace.outcome and trace.outcome.reason is StopReason.TOOL_CALLS):
        return []
    return [seat.name for seat in trace.scorers if seat.must and trace.grader_score(trace.best.id, seat) != 1]


def result_or_raise(trace: Trace, *, strict_budget: bool) -> Result:
    """The result of a trace that has ended. Raises what it deserves when nothing in it was graded."""
    result = Result(trace)
    if problem := _conclusion_error(trace, result, strict_budget=strict_budget):
        problem.result = result if trace.candidates else None
        raise problem
    return result


def _conclusion_error(trace: Trace, result: Result, *, strict_budget: bool) -> RedraftError | None:
    if result.stop in {StopReason.BUDGET, StopReason.DEADLINE} and (strict_budget or not trace.graded_candidates):
        limit = trace.fatal_failure.limit if trace.fatal_failure else ""
        what = limit or ("deadline" if result.stop == StopReason.DEADLINE else "budget")
        return BudgetExhaustedError(trace.outcome.note if trace.outcome else "", limit=what, usage=trace.usage)
    return None if trace.graded_candidates or result.stop is StopReason.TOOL_CALLS else _nothing_graded_error(trace)


def _nothing_graded_error(trace: Trace) -> RedraftError:
    """The error for a trace without a grade: of its graders if there is a text, else of the model."""
    failures = sorted(trace.failures.values(), key=lambda f: str(f.step_slot))
    said = dict.fromkeys(f"{f.step_slot[2]}: {f.message}" for f in failures if f.step_slot[0] == "feedback")
    others = dict.fromkeys(f.message for f in failures if f.step_slot[0] != "feedback")
    if trace.candidates:
        views = [f for views in trace.feedback.values() for f in views]
        musts = {seat.name for seat in trace.panel if seat.must}
        scoreless = [f.grader for f in views if f.score is None and f.grader not in trace.critics]
        silent = dict.fromkeys(f"{grader}: its score is None{NO_SCORE_HINT * (grader not in musts)}" for grader in scoreless)
        heard = any(f.score is not None or f.is_critique for f in views)
        what = "no answer was graded by all graders" if heard else "no grader could say anything"
        error = GradingError(f"{what}: {'; '.join([*said, *others, *silent])}", usage=trace.usage)
        error.__cause__ = next((error_from_failure(f) for f in failures if f.error in ERROR_TYPES), None)
        return error
    if not failures:
        return ModelError("no answer could be had", usage=trace.usage)
    return error_from_failure(failures[0], "; ".join(others), trace.usage)
