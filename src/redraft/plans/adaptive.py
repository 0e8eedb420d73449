"""The plan that knows its judge is noisy: what is worth most comes next, while anything is worth its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, inf, isfinite
from typing import Literal, NamedTuple, TypeAlias, get_args

from .. import checks
from ..core.prompts import advise, first_prompt, open_actions
from ..core.records import Candidate, Comparison, Outcome, StopReason, Usage
from ..core.steps import Compare, Generate, Grade, Refine, Step, Stop
from ..core.trace import Seat, Trace
from ..quality.lineage import family, noisy_among
from ..quality.posterior import Belief
from ..quality.priors import Priors
from .self_refine import SelfRefine, best_so_far, hand_on, is_unread

Unit: TypeAlias = Literal["calls", "tokens", "usd"]
UNITS: tuple[str, ...] = get_args(Unit)
PER = {"calls": "a call", "tokens": "for 1,000 tokens", "usd": "for a USD"}

CONTENDERS = 3  # of the best by belief: they may be refined, or looked at again
SURE = 1.96  # standard deviations on both sides that hold 95 %


class Choice(NamedTuple):
    """What may come next, of which candidate (None: a new draft), the gain to be expected, and the cost (None: unknown).

    The gain is infinite where it may keep a must that is broken: that is worth any price.
    """

    what: Literal["a refinement", "a new draft", "another look"]
    of: Candidate | None
    gain: float
    cost: float | None

    @property
    def rate(self) -> float:
        """The gain for each unit of cost; what costs nobody knows what is worth nothing, what is free everything."""
        if self.cost is None:
            return 0.0 if isfinite(self.gain) else inf
        return self.gain / self.cost if self.cost else inf


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
        if not isinstance(self.rules, SelfRefine):
            raise checks.refused("rules", "a SelfRefine", self.rules)
        checks.number("price", self.price)
        checks.one_of("unit", self.unit, UNITS)
        checks.whole_number("attempts", self.attempts, 0)
        checks.flag("fresh", self.fresh)
        if not isinstance(self.priors, Priors):
            raise checks.refused("priors", "Priors", self.priors)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        if handing_on := hand_on(trace, self.rules.drafting(trace)):
            return handing_on
        if not trace.scorers or trace.only_critics or (noisy_among(trace.panel) and not noisy_among(trace.scorers)):
            return self.rules(trace)  # nobody tells a quality, or the scores turn out to be computed and have no noise
        return self.rules.due(trace) or self.looks_due(trace) or self.conclude(trace)

    def looks_due(self, trace: Trace) -> list[Grade]:
        """The looks of a round that other graders have made already, or failed at."""
        judges = judges_of(trace)
        due: list[Grade] = []
        for c in trace.graded if len(judges) > 1 else ():
            more = 0 if trace.unchanged(c) else max(asked(trace, seat, c) - seat.looks for seat in judges)
            due += (Grade(s.grader, trace.task, c, n) for s in judges for n in range(s.looks, s.looks + more))
        return trace.lacks(due)

    def conclude(self, trace: Trace) -> Sequence[Step]:
        """Do what is worth most, or stop, with the reason."""
        belief = Belief(family(trace), self.priors)
        seen = trace.believed(belief.means)
        end = self.end(trace, seen)
        if end and (once_more := self.once_more(trace)):
            return once_more
        if end is None:
            choices = self.choices(seen, belief)
            first = max(choices, key=lambda choice: choice.rate, default=None)
            if first and first.rate >= self.price:
                return self.steps(seen, first)
            end = self.enough(seen, choices)
        return self.duel(seen, belief, end) or [self.worded(trace, self.vouched(seen, belief, end))]

    def end(self, trace: Trace, seen: Trace) -> Stop | None:
        """The end by the rules, of what is believed. A target is reached where graders said so, too: not by priors alone."""
        end = self.rules.end(seen)
        if end is None or end.reason is not StopReason.TARGET:
            return end
        said = self.rules.end(
            trace.believed({id: min(score, seen.scores[id] or 0.0) for id, score in trace.scores.items() if score})
        )
        return end if said and said.reason is end.reason else said and replace(said, best=end.best)

    def once_more(self, trace: Trace) -> Sequence[Step]:
        """One more text, where graders had nothing to say of the first drafts: they may of another."""
        untried = self.attempts > 0 and self.left(trace) == self.attempts * text_calls(trace)
        if not (untried and is_unread(trace)):
            return []
        if self.drafts_anew(trace):
            return self.steps(trace, Choice("a new draft", None, 0.0, 0.0))
        return self.steps(trace, Choice("a refinement", trace.candidates[-1], 0.0, 0.0))

    def choices(self, trace: Trace, belief: Belief) -> list[Choice]:
        """All that may come next, of a trace as it is believed to be."""
        best, field = trace.best, contenders(trace)
        left, toll = self.left(trace), tolls(trace, self.unit)
        if best is None:
            return []
        if not trace.kept(best.id):
            return [Choice("a refinement", best_so_far(trace), inf, toll.text)] if left >= text_calls(trace) else []
        found: list[Choice] = []
        if left >= text_calls(trace):
            wanting = (c for c in field if any(open_actions(trace, c)))  # of the others there is nothing to be said
            found += (Choice("a refinement", c, belief.gain_of("refine", c.id, best.id), toll.text) for c in wanting)
            if self.drafts_anew(trace):
                found.append(Choice("a new draft", None, belief.gain_of("generate", None, best.id), toll.text))
        judges = len(looks(trace, best))
        if len(field) > 1 and 0 < judges <= left:
            duels = zip(field, [field[1], *[field[0]] * len(field)], strict=False)
            able = [(c, rival) for c, rival in duels if len(trace.lacks(looks(trace, c))) == judges]  # none of them failed before
            found += (Choice("another look", c, belief.gain_of_look(c.id, rival.id), toll.look) for c, rival in able)
        return found

    def drafts_anew(self, trace: Trace) -> bool:
        """Whether a new draft may be another text: not beside a given response, nor where a model said the same twice."""
        drafts = [c.substance for c in trace.candidates if c.role == "generate"]
        return self.fresh and trace.task.response is None and len(set(drafts)) == len(drafts)

    def steps(self, trace: Trace, choice: Choice) -> Sequence[Step]:
        """The steps of a choice."""
        if choice.of is None:
            return [Generate(trace.next_id, first_prompt(trace))]
        if choice.what == "a refinement":
            return [Refine(trace.next_id, advise(trace, choice.of), choice.of.id)]
        return looks(trace, choice.of)

    def left(self, trace: Trace) -> int:
        """The calls that are left of those that all attempts may take."""
        written = sum(c.role in {"generate", "refine"} for c in trace.candidates)
        written += sum(f.role == "generate" for f in trace.failures.values())
        first = 0 if trace.task.response is not None else self.rules.drafts
        graded = (c for c in trace.candidates if not trace.unchanged(c))
        judges = judges_of(trace)
        more = sum(max(0, asked(trace, seat, c) - seat.looks) for c in graded for seat in judges)
        return (self.attempts - max(0, written - first)) * text_calls(trace) - more

    def enough(self, trace: Trace, choices: Sequence[Choice]) -> Stop:
        """The end where nothing is worth its price, or nothing more may be done."""
        best = trace.best.id if trace.best else None
        if not choices and self.left(trace) >= text_calls(trace):
            return Stop(best, StopReason.GAIN, "the graders left nothing to wish for")
        if not choices:
            return Stop(best, StopReason.MAX_ITERATIONS, f"{self.attempts} attempt{'s' * (self.attempts != 1)} made")
        if any(choice.cost is None for choice in choices):
            return Stop(best, StopReason.GAIN, f"what a step costs in {self.unit} is not known, so that none is worth it")
        rates: dict[str, float] = {}
        for choice in choices:
            rates[choice.what] = max(0.0, choice.rate, rates.get(choice.what, 0.0))
        told = ", ".join(f"{what} {floor(rate * 1000) / 1000:.3f}" for what, rate in rates.items())
        return Stop(best, StopReason.GAIN, f"no step gains {self.price:g} {PER[self.unit]}: {told}")

    def worded(self, trace: Trace, end: Stop) -> Stop:
        """The end in words that tell what is believed from what graders said."""
        if end.score is None or not noisy_among(trace.scorers):
            return end
        kept = end.best is not None and trace.kept(end.best)
        rested = kept and end.reason in {StopReason.TARGET, StopReason.PATIENCE}
        note = f"{end.note}{', by what is believed' * rested}"
        said = None if end.reason in {StopReason.TARGET, StopReason.DONE} or end.reason.resumable else self.rules.stop(trace)
        if said and said.reason is StopReason.TARGET:
            note += f"; graders said {trace.score or 0.0:.2f}, which reaches the target, but that is not enough to believe it"
        return replace(end, note=note)

    def rivals(self, trace: Trace, belief: Belief, end: Stop) -> list[Candidate]:
        """The two best, where it is not clear which of them is better, and the work might have ended so with either."""
        pair = rivals(trace, belief)
        if end.reason not in {StopReason.TARGET, StopReason.DONE}:
            return pair
        endings = [self.rules.stop(trace + Outcome(c.id, end.reason)) for c in pair]
        return pair if all(ending and ending.reason == end.reason for ending in endings) else []

    def duel(self, trace: Trace, belief: Belief, end: Stop) -> list[Compare]:
        """The comparisons that are due before the end, where the graders on the panel can compare."""
        seats = [seat for seat in trace.panel if seat.compares]
        pair = tuple(sorted(self.rivals(trace, belief, end), key=lambda c: c.id)) if seats and not trace.trouble else ()
        return trace.lacks(Compare(s.grader, trace.task, pair, n) for s in seats for n in range(s.looks)) if pair else []

    def vouched(self, trace: Trace, belief: Belief, end: Stop) -> Stop:
        """The end, with what is believed of the answer that is kept."""
        preference = preferred(trace, self.rivals(trace, belief, end))
        best = end.best if preference is None else preference
        if best is None or trace.scores.get(best) is None:
            return end
        mean, sd = belief.means[best], belief.sds[best]
        interval = _clipped(mean - SURE * sd), _clipped(mean + SURE * sd)
        believed = tuple((c.id, belief.means[c.id]) for c in trace.graded)
        return replace(end, best=best, score=mean, interval=interval, believed=believed, noise=self.priors.noise_sd)

    def keep(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """The outcome of work that is cut short here."""
        if not trace.scorers or trace.only_critics:
            return Outcome(trace.best.id if trace.best else None, reason, note)
        belief = Belief(family(trace), self.priors)
        seen = trace.believed(belief.means)
        return self.vouched(seen, belief, Stop(seen.best.id if seen.best else None, reason, note)).outcome


def contenders(trace: Trace) -> list[Candidate]:
    """The best by belief, best first; only such as keep as many musts as the best does."""
    best = trace.best
    field = list({c.substance: c for c in reversed(trace.graded)}.values())  # the earliest of those that are alike
    field = [c for c in field if best and trace.kept_share(c.id) == trace.kept_share(best.id)]
    return sorted(field, key=lambda c: (-(trace.scores[c.id] or 0.0), c.id))[:CONTENDERS]


def rivals(trace: Trace, belief: Belief) -> list[Candidate]:
    """The two best, where it is not clear which of them is better."""
    field = contenders(trace)[:2]
    return field if len(field) == 2 and not belief.sure(field[0].id, field[1].id, SURE) else []


def preferred(trace: Trace, pair: Sequence[Candidate]) -> int | None:
    """Which of two more of the graders that compared them put first, in whatever order they saw them; None for neither."""
    ids = tuple(sorted(c.id for c in pair))
    compared = [r for r in trace.records if isinstance(r, Comparison)]
    duels = [c for c in compared if tuple(sorted(c.ranking)) == ids and c.consistent is not False]
    lead = sum((d.places[ids[0]] < d.places[ids[1]]) - (d.places[ids[0]] > d.places[ids[1]]) for d in duels)
    return ids[0] if lead > 0 else ids[1] if lead < 0 else None


def text_calls(trace: Trace) -> int:
    """The calls that one more text takes: to write it, and for every look that is owed to it."""
    return 1 + sum(seat.looks for seat in trace.scoring if not seat.free)


def judges_of(trace: Trace) -> list[Seat]:
    """The graders that ask a model for a score."""
    return [seat for seat in trace.scorers if not seat.free]


def looks(trace: Trace, candidate: Candidate) -> list[Grade]:
    """One more look at a candidate by every grader that asks a model for a score."""
    return [Grade(seat.grader, trace.task, candidate, look(trace, seat, candidate)) for seat in judges_of(trace)]


def look(trace: Trace, seat: Seat, candidate: Candidate) -> int:
    """The number of a grader's next look at a candidate."""
    return sum(f.grader == seat.grader for f in trace.feedback[candidate.id])


def asked(trace: Trace, seat: Seat, candidate: Candidate) -> int:
    """How often a grader was asked about a candidate, in vain or not."""
    return look(trace, seat, candidate) + sum(of[:3] == ("feedback", candidate.id, seat.grader) for of in trace.failures)


class Tolls(NamedTuple):
    """What one more text costs with its grades, and one more look; None where it is not known."""

    text: float | None
    look: float | None


def tolls(trace: Trace, unit: Unit) -> Tolls:
    """As the records so far have cost."""
    judges = [seat for seat in trace.scoring if not seat.free]
    writing = _mean([c.usage for c in trace.candidates if c.role in {"generate", "refine"}], unit)
    views = [f for told in trace.feedback.values() for f in told]
    each = [(seat, _mean([f.usage for f in views if f.grader == seat.grader], unit)) for seat in judges]
    if any(cost is None for _, cost in each):
        return Tolls(None, None)
    grading = sum(seat.looks * (cost or 0.0) for seat, cost in each)
    return Tolls(None if writing is None else writing + grading, sum(cost or 0.0 for _, cost in each))


def _mean(usages: Sequence[Usage], unit: Unit) -> float | None:
    """Of what is known. A step is one call at least; before any was done, all else counts nothing: doing it once will tell."""
    known = [amount for amount in (answers(usage, unit) for usage in usages) if amount is not None]
    if len(known) < len(usages):
        return None
    mean = sum(known) / len(known) if known else 0.0
    return max(1.0, mean) if unit == "calls" else mean


def answers(usage: Usage, unit: Unit) -> float | None:
    """What answers took, whoever paid for them (tokens by the thousand); None where it is not known."""
    match unit:
        case "calls":
            return float(usage.calls + usage.cached_calls - usage.retried_calls)
        case "tokens":
            return None if usage.answer_tokens is None else usage.answer_tokens / 1000
        case "usd":
            return usage.answer_cost


def _clipped(score: float) -> float:
    return min(1.0, max(0.0, score))
