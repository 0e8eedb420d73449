"""What a refinement gives back."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from .core import errors
from .core.diagnosis import Diagnosis, Kind, diagnosed
from .core.errors import BudgetExhaustedError, GradingError, ModelError, RedraftError
from .core.family import noisy_among
from .core.records import StopReason, Usage
from .core.trace import Trace
from .text import plain

REACHED = {StopReason.TARGET, StopReason.DONE}


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
        """The best text."""
        return self.trace.best.text if self.trace.best else ""

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
        return interval_of(self.trace)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What there is to say of how it went: its `kind` ("reached", "bad check", "regression", "noise" or "ceiling") and its
        `words`; None where the work was cut short, or nothing stands out.
        """
        return diagnosed(self.trace)

    @property
    def observed(self) -> float | None:
        """The score that graders gave the best (the mean of their looks); None if it was never scored."""
        return self.trace.observed

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
        """Iterations, whether it converged, the scores in order, and more that can be read off the trace."""
        trace = self.trace
        return {
            "iterations": trace.iterations,
            "converged": self.stop.converged,
            "score_history": trace.score_history,
            "note": trace.outcome.note if trace.outcome else "",
            "diagnosis": (found := self.diagnosis) and {"kind": str(found.kind), "words": found.words},
            "repairs": sum(c.role == "repair" and not trace.unchanged(c) for c in trace.candidates),
            "best": trace.best.id if trace.best else None,
            "broken": broken_musts(trace),
            "truncated": bool(trace.best and trace.best.truncated),
            "usage_by": {f"{role} {by}".strip(): usage for (role, by), usage in trace.usage_by.items()},
            "trust": {seat.grader: seat.card for seat in trace.panel if seat.card},
            "failures": [f"{f.role}: {f.message}" for f in sorted(trace.failures.values(), key=lambda f: str(f.of))],
        }

    def __repr__(self) -> str:
        return f"Result(score={measured(self)}, stop={str(self.stop)!r}, value={self.value[:60]!r})"

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(f"{self.summary()}\n\n{plain(self.value)}")

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p><pre>{escape(plain(self.value))}</pre>"

    def summary(self) -> str:
        """One line: score, why it stopped, what it took; where graders are noisy, what is to be said of that, too."""
        u = self.usage
        tokens = "unknown" if u.input_tokens is None or u.output_tokens is None else str(u.input_tokens + u.output_tokens)
        cost = "unknown" if u.cost is None else f"{u.cost:.4g} USD"
        note = self.trace.outcome.note if self.trace.outcome else ""
        told = self.stop.resumable or self.stop is StopReason.GAIN or (self.score_interval and self.stop not in REACHED)
        why = f"{self.stop} ({plain(note)})" if note and told else str(self.stop)
        remark = remarked(self) if self.score_interval else ""
        cut = ["cut off at the token limit"] if self.trace.best and self.trace.best.truncated else []
        parts = [
            f"score {measured(self)} ({scored(self, ' -> ')})",
            *cut,
            f"stopped: {why}",
            *([remark] if remark else []),
            f"calls {u.calls}",
            f"tokens {tokens}",
            f"cost {cost}",
        ]
        return " · ".join(parts)


def shown(score: float | None) -> str:
    """A score as people read it; what is unknown says so."""
    return "unknown" if score is None else f"{score:.2f}"


def interval_of(trace: Trace) -> tuple[float, float] | None:
    """Where the true score lies as it was believed at the end, to two digits; None where no grader is noisy."""
    if trace.outcome is None or trace.outcome.interval is None or not noisy_among(trace.panel):
        return None
    low, high = trace.outcome.interval
    return round(low, 2), round(high, 2)


def measured(result: Result) -> str:
    """The score, and where the true one lies."""
    if not (around := result.score_interval):
        return shown(result.score)
    return f"{shown(result.score)} [{around[0]:.2f}, {around[1]:.2f}]"


def scored(result: Result, arrow: str) -> str:
    """The scores that graders gave, one after the other; with that of the best, and what is believed, where they are not taken
    as they were given.
    """
    history, believed = (arrow.join(map(shown, trace.score_history)) for trace in (result.trace, result.trace.settled))
    return f"observed {shown(result.observed)}; {history}, believed {believed}" if result.score_interval else history


def remarked(result: Result) -> str:
    """What is to be said of how it went, where that is more than that it went well."""
    found = result.diagnosis
    return "" if found is None or found.kind is Kind.REACHED else f"{found.kind}: {plain(found.words)}"


def broken_musts(trace: Trace) -> list[str]:
    """The `must` graders that the best candidate does not satisfy."""
    if trace.best is None:
        return []
    return [seat.grader for seat in trace.scoring if seat.must and trace.seat_score(trace.best.id, seat) != 1]


def concluded(trace: Trace, *, strict: bool) -> Result:
    """The result of a trace that has ended. Raises what it deserves when nothing in it was graded."""
    result = Result(trace)
    if problem := _problem(trace, result, strict=strict):
        problem.result = result if trace.candidates else None
        raise problem
    return result


def _problem(trace: Trace, result: Result, *, strict: bool) -> RedraftError | None:
    if result.stop in {StopReason.BUDGET, StopReason.DEADLINE} and (strict or not trace.graded):
        what = "deadline" if result.stop == StopReason.DEADLINE else "budget"
        return BudgetExhaustedError(trace.outcome.note if trace.outcome else "", what=what, usage=trace.usage)
    return None if trace.graded else _nothing_graded(trace)


def _nothing_graded(trace: Trace) -> RedraftError:
    """The error for a trace without a grade: of its graders if there is a text, else of the model."""
    failures = sorted(trace.failures.values(), key=lambda f: str(f.of))
    said = dict.fromkeys(f"{f.of[2]}: {f.message}" for f in failures if f.of[0] == "feedback")
    others = dict.fromkeys(f.message for f in failures if f.of[0] != "feedback")
    if trace.candidates:
        why = "; ".join([*said, *others]) or "the score they gave is None"
        return GradingError(f"no grader could say anything: {why}", usage=trace.usage)
    kind = getattr(errors, failures[0].error, ModelError) if failures else ModelError
    return kind("; ".join(others) or "no answer could be had", usage=trace.usage)
