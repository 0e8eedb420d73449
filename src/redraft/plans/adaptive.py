"""The plan that knows its judge is noisy: what is worth most comes next, while anything is worth its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, inf, isfinite
from typing import Literal, NamedTuple, TypeAlias, get_args

from .. import checks
from ..core.prompts import draft_messages, open_actions, refinement_messages
from ..core.records import Candidate, Comparison, Outcome, StopReason, Usage
from ..core.steps import Compare, Generate, Grade, Refine, Step, Stop
from ..core.trace import PanelGrader, Trace
from ..quality.lineage import llm_graders, observe
from ..quality.posterior import Posterior
from ..quality.priors import Priors
from .self_refine import SelfRefine, best_so_far, only_unreadable_grades, stop_for_tool_calls

CostUnit: TypeAlias = Literal["calls", "tokens", "usd"]
COST_UNITS: tuple[str, ...] = get_args(CostUnit)
UNIT_PHRASES = {"calls": "a call", "tokens": "for 1,000 tokens", "usd": "for a USD"}

MAX_CONTENDERS = 3  # of the best by belief: they may be refined, or looked at again
Z_95 = 1.96  # standard deviations on both sides that hold 95 %


class Choice(NamedTuple):
    """What may come next, of which candidate (None: a new draft), the gain to be expected, and the cost (None: unknown).

    The gain is infinite where it may keep a must that is broken: that is worth any price.
    """

    action: Literal["a refinement", "a new draft", "another look"]
    candidate: Candidate | None
    expected_gain: float
    cost: float | None

    @property
    def gain_per_cost(self) -> float:
        """The gain for each unit of cost; what costs nobody knows what is worth nothing, what is free everything."""
        if self.cost is None:
            return 0.0 if isfinite(self.expected_gain) else inf
        return self.expected_gain / self.cost if self.cost else inf


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

    base_plan: SelfRefine = SelfRefine()
    min_expected_gain: float = 0.01
    cost_unit: CostUnit = "calls"
    max_attempts: int = 3
    allow_new_drafts: bool = True
    priors: Priors = Priors()

    def __post_init__(self) -> None:
        if not isinstance(self.base_plan, SelfRefine):
            raise checks.invalid_argument("rules", "a SelfRefine", self.base_plan)
        checks.number("price", self.min_expected_gain)
        checks.one_of("unit", self.cost_unit, COST_UNITS)
        checks.whole_number("attempts", self.max_attempts, 0)
        checks.flag("fresh", self.allow_new_drafts)
        if not isinstance(self.priors, Priors):
            raise checks.invalid_argument("priors", "Priors", self.priors)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        if handing_on := stop_for_tool_calls(trace, self.base_plan.missing_drafts(trace)):
            return handing_on
        if not trace.scorers or trace.only_critics or (llm_graders(trace.panel) and not llm_graders(trace.scorers)):
            return self.base_plan(trace)  # nobody tells a quality, or the scores turn out to be computed and have no noise
        return self.base_plan.missing_steps(trace) or self.missing_repeats(trace) or self.choose_next_steps(trace)

    def missing_repeats(self, trace: Trace) -> list[Grade]:
        """The looks of a round that other graders have made already, or failed at."""
        judges = scoring_judges(trace)
        due: list[Grade] = []
        for c in trace.graded_candidates if len(judges) > 1 else ():
            more = 0 if trace.is_unchanged(c) else max(times_asked(trace, seat, c) - seat.repeats for seat in judges)
            due += (Grade(s.name, trace.task, c, n) for s in judges for n in range(s.repeats, s.repeats + more))
        return trace.missing(due)

    def choose_next_steps(self, trace: Trace) -> Sequence[Step]:
        """Do what is worth most, or stop, with the reason."""
        belief = Posterior(observe(trace), self.priors)
        seen = trace.with_scores(belief.means)
        end = self.stop_by_rules(trace, seen)
        if end and (once_more := self.retry_first_round(trace)):
            return once_more
        if end is None:
            choices = self.choices(seen, belief)
            first = max(choices, key=lambda choice: choice.gain_per_cost, default=None)
            if first and first.gain_per_cost >= self.min_expected_gain:
                return self.steps_for(seen, first)
            end = self.stop_for_value(seen, choices)
        return self.tie_break(seen, belief, end) or [self.with_note(trace, self.with_estimate(seen, belief, end))]

    def stop_by_rules(self, trace: Trace, estimated: Trace) -> Stop | None:
        """The end by the rules, of what is believed. A target is reached where graders said so, too: not by priors alone."""
        end = self.base_plan.stop_by_rules(estimated)
        if end is None or end.reason is not StopReason.TARGET:
            return end
        said = self.base_plan.stop_by_rules(
            trace.with_scores({id: min(score, estimated.scores[id] or 0.0) for id, score in trace.scores.items() if score})
        )
        return end if said and said.reason is end.reason else said and replace(said, best=end.best)

    def retry_first_round(self, trace: Trace) -> Sequence[Step]:
        """One more text, where graders had nothing to say of the first drafts: they may of another."""
        untried = self.max_attempts > 0 and self.calls_left(trace) == self.max_attempts * calls_per_candidate(trace)
        if not (untried and only_unreadable_grades(trace)):
            return []
        if self.can_draft(trace):
            return self.steps_for(trace, Choice("a new draft", None, 0.0, 0.0))
        return self.steps_for(trace, Choice("a refinement", trace.candidates[-1], 0.0, 0.0))

    def choices(self, trace: Trace, posterior: Posterior) -> list[Choice]:
        """All that may come next, of a trace as it is believed to be."""
        best, field = trace.best, top_candidates(trace)
        left, toll = self.calls_left(trace), step_costs(trace, self.cost_unit)
        if best is None:
            return []
        if not trace.meets_musts(best.id):
            return [Choice("a refinement", best_so_far(trace), inf, toll.candidate)] if left >= calls_per_candidate(trace) else []
        found: list[Choice] = []
        if left >= calls_per_candidate(trace):
            wanting = (c for c in field if any(open_actions(trace, c)))  # of the others there is nothing to be said
            found += (
                Choice("a refinement", c, posterior.value_of_candidate("refine", c.id, best.id), toll.candidate) for c in wanting
            )
            if self.can_draft(trace):
                found.append(Choice("a new draft", None, posterior.value_of_candidate("generate", None, best.id), toll.candidate))
        judges = len(repeat_steps(trace, best))
        if len(field) > 1 and 0 < judges <= left:
            duels = zip(field, [field[1], *[field[0]] * len(field)], strict=False)
            able = [
                (c, rival) for c, rival in duels if len(trace.missing(repeat_steps(trace, c))) == judges
            ]  # none of them failed before
            found += (Choice("another look", c, posterior.value_of_repeat(c.id, rival.id), toll.repeat) for c, rival in able)
        return found

    def can_draft(self, trace: Trace) -> bool:
        """Whether a new draft may be another text: not beside a given response, nor where a model said the same twice."""
        drafts = [c.content_key for c in trace.candidates if c.role == "generate"]
        return self.allow_new_drafts and trace.task.response is None and len(set(drafts)) == len(drafts)

    def steps_for(self, trace: Trace, choice: Choice) -> Sequence[Step]:
        """The steps of a choice."""
        if choice.candidate is None:
            return [Generate(trace.next_id, draft_messages(trace))]
        if choice.action == "a refinement":
            return [Refine(trace.next_id, refinement_messages(trace, choice.candidate), choice.candidate.id)]
        return repeat_steps(trace, choice.candidate)

    def calls_left(self, trace: Trace) -> int:
        """The calls that are left of those that all attempts may take."""
        written = sum(c.role in {"generate", "refine"} for c in trace.candidates)
        written += sum(f.role == "generate" for f in trace.failures.values())
        first = 0 if trace.task.response is not None else self.base_plan.drafts
        graded = (c for c in trace.candidates if not trace.is_unchanged(c))
        judges = scoring_judges(trace)
        more = sum(max(0, times_asked(trace, seat, c) - seat.repeats) for c in graded for seat in judges)
        return (self.max_attempts - max(0, written - first)) * calls_per_candidate(trace) - more

    def stop_for_value(self, trace: Trace, choices: Sequence[Choice]) -> Stop:
        """The end where nothing is worth its price, or nothing more may be done."""
        best = trace.best.id if trace.best else None
        if not choices and self.calls_left(trace) >= calls_per_candidate(trace):
            return Stop(best, StopReason.GAIN, "the graders left nothing to wish for")
        if not choices:
            return Stop(best, StopReason.MAX_ITERATIONS, f"{self.max_attempts} attempt{'s' * (self.max_attempts != 1)} made")
        if any(choice.cost is None for choice in choices):
            return Stop(best, StopReason.GAIN, f"what a step costs in {self.cost_unit} is not known, so that none is worth it")
        rates: dict[str, float] = {}
        for choice in choices:
            rates[choice.action] = max(0.0, choice.gain_per_cost, rates.get(choice.action, 0.0))
        told = ", ".join(f"{what} {floor(rate * 1000) / 1000:.3f}" for what, rate in rates.items())
        return Stop(best, StopReason.GAIN, f"no step gains {self.min_expected_gain:g} {UNIT_PHRASES[self.cost_unit]}: {told}")

    def with_note(self, trace: Trace, stop: Stop) -> Stop:
        """The end in words that tell what is believed from what graders said."""
        if stop.score is None or not llm_graders(trace.scorers):
            return stop
        kept = stop.best is not None and trace.meets_musts(stop.best)
        rested = kept and stop.reason in {StopReason.TARGET, StopReason.PATIENCE}
        note = f"{stop.note}{', by what is believed' * rested}"
        said = None if stop.reason in {StopReason.TARGET, StopReason.DONE} or stop.reason.resumable else self.base_plan.stop(trace)
        if said and said.reason is StopReason.TARGET:
            note += f"; graders said {trace.score or 0.0:.2f}, which reaches the target, but that is not enough to believe it"
        return replace(stop, note=note)

    def tie_break_pair(self, trace: Trace, posterior: Posterior, stop: Stop) -> list[Candidate]:
        """The two best, where it is not clear which of them is better, and the work might have ended so with either."""
        pair = close_pair(trace, posterior)
        if stop.reason not in {StopReason.TARGET, StopReason.DONE}:
            return pair
        endings = [self.base_plan.stop(trace + Outcome(c.id, stop.reason)) for c in pair]
        return pair if all(ending and ending.reason == stop.reason for ending in endings) else []

    def tie_break(self, trace: Trace, posterior: Posterior, stop: Stop) -> list[Compare]:
        """The comparisons that are due before the end, where the graders on the panel can compare."""
        seats = [seat for seat in trace.panel if seat.compares]
        pair = (
            tuple(sorted(self.tie_break_pair(trace, posterior, stop), key=lambda c: c.id))
            if seats and not trace.fatal_failure
            else ()
        )
        return trace.missing(Compare(s.name, trace.task, pair, n) for s in seats for n in range(s.repeats)) if pair else []

    def with_estimate(self, trace: Trace, posterior: Posterior, stop: Stop) -> Stop:
        """The end, with what is believed of the answer that is kept."""
        preference = comparison_winner(trace, self.tie_break_pair(trace, posterior, stop))
        best = stop.best if preference is None else preference
        if best is None or trace.scores.get(best) is None:
            return stop
        mean, sd = posterior.means[best], posterior.sds[best]
        interval = _clip(mean - Z_95 * sd), _clip(mean + Z_95 * sd)
        believed = tuple((c.id, posterior.means[c.id]) for c in trace.graded_candidates)
        return replace(stop, best=best, score=mean, interval=interval, estimates=believed, noise_sd=self.priors.noise_sd)

    def outcome_if_stopped(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """The outcome of work that is cut short here."""
        if not trace.scorers or trace.only_critics:
            return Outcome(trace.best.id if trace.best else None, reason, note)
        belief = Posterior(observe(trace), self.priors)
        seen = trace.with_scores(belief.means)
        return self.with_estimate(seen, belief, Stop(seen.best.id if seen.best else None, reason, note)).outcome


def top_candidates(trace: Trace) -> list[Candidate]:
    """The best by belief, best first; only such as keep as many musts as the best does."""
    best = trace.best
    field = list({c.content_key: c for c in reversed(trace.graded_candidates)}.values())  # the earliest of those that are alike
    field = [c for c in field if best and trace.must_pass_rate(c.id) == trace.must_pass_rate(best.id)]
    return sorted(field, key=lambda c: (-(trace.scores[c.id] or 0.0), c.id))[:MAX_CONTENDERS]


def close_pair(trace: Trace, posterior: Posterior) -> list[Candidate]:
    """The two best, where it is not clear which of them is better."""
    field = top_candidates(trace)[:2]
    return field if len(field) == 2 and not posterior.is_separated(field[0].id, field[1].id, Z_95) else []


def comparison_winner(trace: Trace, pair: Sequence[Candidate]) -> int | None:
    """Which of two more of the graders that compared them put first, in whatever order they saw them; None for neither."""
    ids = tuple(sorted(c.id for c in pair))
    compared = [r for r in trace.records if isinstance(r, Comparison)]
    duels = [c for c in compared if tuple(sorted(c.ranking)) == ids and c.consistent is not False]
    lead = sum((d.ranks[ids[0]] < d.ranks[ids[1]]) - (d.ranks[ids[0]] > d.ranks[ids[1]]) for d in duels)
    return ids[0] if lead > 0 else ids[1] if lead < 0 else None


def calls_per_candidate(trace: Trace) -> int:
    """The calls that one more text takes: to write it, and for every look that is owed to it."""
    return 1 + sum(seat.repeats for seat in trace.pointwise_graders if not seat.model_free)


def scoring_judges(trace: Trace) -> list[PanelGrader]:
    """The graders that ask a model for a score."""
    return [seat for seat in trace.scorers if not seat.model_free]


def repeat_steps(trace: Trace, candidate: Candidate) -> list[Grade]:
    """One more look at a candidate by every grader that asks a model for a score."""
    return [Grade(seat.name, trace.task, candidate, next_repeat(trace, seat, candidate)) for seat in scoring_judges(trace)]


def next_repeat(trace: Trace, grader: PanelGrader, candidate: Candidate) -> int:
    """The number of a grader's next look at a candidate."""
    return sum(f.grader == grader.name for f in trace.feedback[candidate.id])


def times_asked(trace: Trace, grader: PanelGrader, candidate: Candidate) -> int:
    """How often a grader was asked about a candidate, in vain or not."""
    return next_repeat(trace, grader, candidate) + sum(of[:3] == ("feedback", candidate.id, grader.name) for of in trace.failures)


class StepCosts(NamedTuple):
    """What one more text costs with its grades, and one more look; None where it is not known."""

    candidate: float | None
    repeat: float | None


def step_costs(trace: Trace, unit: CostUnit) -> StepCosts:
    """As the records so far have cost."""
    judges = [seat for seat in trace.pointwise_graders if not seat.model_free]
    writing = _mean_cost([c.usage for c in trace.candidates if c.role in {"generate", "refine"}], unit)
    views = [f for told in trace.feedback.values() for f in told]
    each = [(seat, _mean_cost([f.usage for f in views if f.grader == seat.name], unit)) for seat in judges]
    if any(cost is None for _, cost in each):
        return StepCosts(None, None)
    grading = sum(seat.repeats * (cost or 0.0) for seat, cost in each)
    return StepCosts(None if writing is None else writing + grading, sum(cost or 0.0 for _, cost in each))


def _mean_cost(usages: Sequence[Usage], unit: CostUnit) -> float | None:
    """Of what is known. A step is one call at least; before any was done, all else counts nothing: doing it once will tell."""
    known = [amount for amount in (answer_cost(usage, unit) for usage in usages) if amount is not None]
    if len(known) < len(usages):
        return None
    mean = sum(known) / len(known) if known else 0.0
    return max(1.0, mean) if unit == "calls" else mean


def answer_cost(usage: Usage, unit: CostUnit) -> float | None:
    """What answers took, whoever paid for them (tokens by the thousand); None where it is not known."""
    match unit:
        case "calls":
            return float(usage.calls + usage.cached_calls - usage.retried_calls)
        case "tokens":
            return None if usage.answer_tokens is None else usage.answer_tokens / 1000
        case "usd":
            return usage.answer_cost


def _clip(score: float) -> float:
    return min(1.0, max(0.0, score))
