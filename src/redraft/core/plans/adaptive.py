"""The plan that knows its judge is noisy: what is worth most comes next, while anything is worth its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..belief import Belief
from ..errors import ConfigError
from ..family import family
from ..priors import Priors
from ..prompts import advise
from ..records import Candidate, Outcome, StopReason, Usage
from ..steps import Compare, Generate, Grade, Refine, Step, Stop
from ..trace import Seat, Trace
from .self_refine import SelfRefine

Unit: TypeAlias = Literal["calls", "tokens", "usd"]
UNITS: tuple[str, ...] = get_args(Unit)

CONTENDERS = 3  # of the best by belief: they may be refined, or looked at again
SURE = 1.96  # standard deviations on both sides that hold 95 %


class Choice(NamedTuple):
    """What may come next: the steps, the gain to be expected of them, their cost (None: unknown), and what they are called."""

    steps: Sequence[Step]
    gain: float
    cost: float | None
    called: str

    @property
    def rate(self) -> float:
        """The gain for each unit of cost; what costs nobody knows what is worth nothing."""
        return self.gain / self.cost if self.cost else 0.0


@dataclass(frozen=True)
class Adaptive:
    """Refine one of the best, draft anew, or look again at one of the best, whichever is expected to gain most for its cost;
    end when nothing gains `price` for each unit of it. Return what is believed to be best.

    `rules` are those of the plain loop: its first drafts, its repairs, and when it stops. They see what is believed of each
    candidate's quality, given all grades, in the place of the score that was observed. Units are "calls" (a step's model
    calls), "tokens" (thousands of them) or "usd", as the steps so far have cost. `attempts`: the most texts after the first
    drafts; looks count against it with the calls they take. `fresh`: whether new drafts may be made. `priors`: what is
    believed before anything is seen.

    Graders that only compare are asked once, at the end, about the two best, where it is not clear which of them is better.

    Raises ConfigError for a value that cannot be.
    """

    rules: SelfRefine = SelfRefine()
    price: float = 0.01
    unit: Unit = "calls"
    attempts: int = 3
    fresh: bool = True
    priors: Priors = Priors()

    def __post_init__(self) -> None:
        price = self.price
        if isinstance(price, bool) or not isinstance(price, int | float) or not isfinite(price) or price < 0:
            raise ConfigError(f"price must be a number >= 0, got {price!r}")
        if self.unit not in UNITS:
            raise ConfigError(f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 0:
            raise ConfigError(f"attempts must be a whole number >= 0, got {self.attempts!r}")

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return self.rules.due(trace) or self.looks_due(trace) or self.conclude(trace)

    def looks_due(self, trace: Trace) -> list[Grade]:
        """The looks of a round that other graders have made already."""
        judges = [seat for seat in trace.scoring if not seat.free]
        due: list[Grade] = []
        for c in trace.graded if len(judges) > 1 else ():
            more = max(look(trace, seat, c) - seat.looks for seat in judges)
            due += (Grade(s.grader, trace.task, c, n) for s in judges for n in range(s.looks, s.looks + more))
        return trace.lacks(due)

    def conclude(self, trace: Trace) -> Sequence[Step]:
        """Do what is worth most, or stop, with the reason."""
        belief = Belief(family(trace), self.priors)
        seen = trace.believed(belief.means)
        end = self.rules.end(seen)
        if end is None:
            choices = self.choices(seen, belief)
            first = max(choices, key=lambda choice: choice.rate, default=None)
            if first and first.rate >= self.price:
                return first.steps
            end = self.enough(seen, choices)
        return self.duel(seen, belief, end) or [self.vouched(seen, belief, end)]

    def choices(self, trace: Trace, belief: Belief) -> list[Choice]:
        """All that may come next, of a trace as it is believed to be."""
        best, field = trace.best, contenders(trace)
        left, toll = self.left(trace), tolls(trace, self.unit)
        if best is None:
            return []
        found: list[Choice] = []
        if left >= text_calls(trace):
            for c in field:
                steps = [Refine(trace.next_id, advise(trace, c), c.id)]
                found.append(Choice(steps, belief.gain_of("refine", c.id, best.id), toll.text, "a refinement"))
            if self.fresh and trace.task.response is None:
                draft = Generate(trace.next_id, trace.task.messages)
                found.append(Choice([draft], belief.gain_of("generate", None, best.id), toll.text, "a new draft"))
        judges = [seat for seat in trace.scoring if not seat.free]
        if len(field) > 1 and judges and left >= len(judges):
            for c, rival in zip(field, [field[1], *[field[0]] * len(field)], strict=False):
                looks = trace.lacks(Grade(seat.grader, trace.task, c, look(trace, seat, c)) for seat in judges)
                if len(looks) == len(judges):  # none of them failed before
                    found.append(Choice(looks, belief.gain_of_look(c.id, rival.id), toll.look, "another look"))
        return found

    def left(self, trace: Trace) -> int:
        """The calls that are left of those that all attempts may take."""
        written = sum(c.role in {"generate", "refine"} for c in trace.candidates)
        written += sum(f.role == "generate" for f in trace.failures.values())
        first = 0 if trace.task.response is not None else self.rules.drafts
        graded = (c for c in trace.candidates if not trace.unchanged(c))
        judges = [seat for seat in trace.scoring if not seat.free]
        looks = sum(max(0, look(trace, seat, c) - seat.looks) for c in graded for seat in judges)
        return (self.attempts - max(0, written - first)) * text_calls(trace) - looks

    def enough(self, trace: Trace, choices: Sequence[Choice]) -> Stop:
        """The end where nothing is worth its price, or nothing more may be done."""
        best = trace.best.id if trace.best else None
        if not choices:
            return Stop(best, StopReason.MAX_ITERATIONS, f"{self.attempts} attempt{'s' * (self.attempts != 1)} made")
        if any(choice.cost is None for choice in choices):
            return Stop(best, StopReason.GAIN, f"what a step costs in {self.unit} is not known, so that none is worth it")
        gains: dict[str, float] = {}
        for choice in choices:
            gains[choice.called] = max(choice.gain, gains.get(choice.called, 0.0))
        told = ", ".join(f"{called} {gain:.3f}" for called, gain in gains.items())
        return Stop(best, StopReason.GAIN, f"nothing more is worth {self.price:g} for each of {self.unit}; expected of {told}")

    def duel(self, trace: Trace, belief: Belief, end: Stop) -> list[Compare]:
        """The comparisons that are due before the end, where the graders on the panel can compare."""
        seats = [seat for seat in trace.panel if seat.compares]
        pair = tuple(sorted(rivals(trace, belief), key=lambda c: c.id)) if seats and not trace.trouble else ()
        return trace.lacks(Compare(s.grader, trace.task, pair, n) for s in seats for n in range(s.looks)) if pair else []

    def vouched(self, trace: Trace, belief: Belief, end: Stop) -> Stop:
        """The end, with what is believed of the answer that is kept."""
        best = preferred(trace, rivals(trace, belief)) or end.best
        if best is None or trace.scores.get(best) is None:
            return end
        mean, sd = belief.means[best], belief.sds[best]
        return replace(end, best=best, score=_clipped(mean), interval=(_clipped(mean - SURE * sd), _clipped(mean + SURE * sd)))

    def keep(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """The outcome of work that is cut short here."""
        belief = Belief(family(trace), self.priors)
        seen = trace.believed(belief.means)
        end = self.vouched(seen, belief, Stop(seen.best.id if seen.best else None, reason, note))
        return Outcome(end.best, end.reason, end.note, end.score, end.interval)


def contenders(trace: Trace) -> list[Candidate]:
    """The best by belief, best first; only such as keep as many musts as the best does."""
    best = trace.best
    field = [c for c in trace.graded if not trace.unchanged(c)]
    field = [c for c in field if best and trace.kept_share(c.id) == trace.kept_share(best.id)]
    return sorted(field, key=lambda c: (-(trace.scores[c.id] or 0.0), c.id))[:CONTENDERS]


def rivals(trace: Trace, belief: Belief) -> list[Candidate]:
    """The two best, where it is not clear which of them is better."""
    field = contenders(trace)[:2]
    return field if len(field) == 2 and not belief.sure(field[0].id, field[1].id, SURE) else []


def preferred(trace: Trace, pair: Sequence[Candidate]) -> int | None:
    """Which of two more of the graders that compared them put first, in whatever order they saw them; None for neither."""
    ids = tuple(sorted(c.id for c in pair))
    duels = [c for c in trace.comparisons if tuple(sorted(c.ranking)) == ids and c.consistent is not False]
    lead = sum((d.places[ids[0]] < d.places[ids[1]]) - (d.places[ids[0]] > d.places[ids[1]]) for d in duels)
    return ids[0] if lead > 0 else ids[1] if lead < 0 else None


def text_calls(trace: Trace) -> int:
    """The calls that one more text takes: to write it, and for every look that is owed to it."""
    return 1 + sum(seat.looks for seat in trace.scoring if not seat.free)


def look(trace: Trace, seat: Seat, candidate: Candidate) -> int:
    """The number of a grader's next look at a candidate."""
    return sum(f.grader == seat.grader for f in trace.feedback[candidate.id])


class Tolls(NamedTuple):
    """What one more text costs with its grades, and one more look; None where it is not known."""

    text: float | None
    look: float | None


def tolls(trace: Trace, unit: Unit) -> Tolls:
    """As the records so far have cost."""
    judges = [seat for seat in trace.scoring if not seat.free]
    writing = _mean([amount(c.usage, unit) for c in trace.candidates if c.role in {"generate", "refine"}], unit)
    views = [f for told in trace.feedback.values() for f in told]
    looks = [(seat, _mean([amount(f.usage, unit) for f in views if f.grader == seat.grader], unit)) for seat in judges]
    if any(cost is None for _, cost in looks):
        return Tolls(None, None)
    grading = sum(seat.looks * (cost or 0.0) for seat, cost in looks)
    return Tolls(None if writing is None else writing + grading, sum(cost or 0.0 for _, cost in looks))


def amount(usage: Usage, unit: Unit) -> float | None:
    """What the answers of a step took, whoever paid for them."""
    match unit:
        case "calls":
            return float(max(1, usage.calls + usage.cached_calls - usage.retried_calls))
        case "tokens":
            return None if usage.answer_tokens is None else usage.answer_tokens / 1000
        case "usd":
            return usage.answer_cost


def _mean(amounts: Sequence[float | None], unit: Unit) -> float | None:
    """Of what is known; before anything was done, a call is a call and all else is unknown."""
    known = [a for a in amounts if a is not None]
    if len(known) < len(amounts):
        return None
    return sum(known) / len(known) if known else 1.0 if unit == "calls" else None


def _clipped(score: float) -> float:
    return min(1.0, max(0.0, score))
