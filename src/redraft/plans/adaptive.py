"""A plan for noisy judges: take the step with the highest expected gain per cost, as long as one is
worth its price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import ceil, floor, inf
from typing import Self

from ..base import checks
from ..base.own_code import fingerprint_name
from ..loop.prompts import open_actions
from ..loop.records import Candidate, Outcome, StopReason
from ..loop.steps import Generate, Refine, Step, Stop
from ..loop.stopping import (
    DEFAULT_ITERATIONS,
    DEFAULT_PATIENCE,
    StopRule,
    done,
    max_iterations,
    patience,
    target,
)
from ..loop.trace import Trace
from .base import (
    DraftChoice,
    NoiseAwarePlan,
    PlanChoice,
    PlanDecision,
    RefineChoice,
    RegradeChoice,
)
from .ending import Ending, top_candidates, with_note
from .limits import (
    COST_UNITS,
    UNIT_PHRASES,
    UNLIMITED,
    CostUnit,
    Left,
    StepNeeds,
    affordable_count,
    exhausted_reason,
    minus,
    rounds_left,
    shortage_text,
    step_costs,
    step_needs,
)
from .prompts import Prompts
from .quality.calibration import Calibration
from .quality.labels import label_posterior
from .quality.lineage import llm_graders, observe
from .quality.posterior import Posterior
from .quality.priors import Priors
from .regrading import (
    extra_asks,
    readable_share,
    repeated_unreadable_grades,
    scoring_judges,
    second_looks,
)
from .self_refine import (
    SelfRefine,
    best_so_far,
    only_failed_grades,
    stop_for_tool_calls,
)

MAX_WIDTH = 64  # steps of one round


@fingerprint_name("adaptive")
@dataclass(frozen=True)
class Adaptive(NoiseAwarePlan):
    """Take the step with the highest expected gain per cost; stop when none is worth its price.

    The gain is that in the quality of the returned answer. The steps are: refine one of the best
    candidates, write a new draft, or ask again for grades that could not be read. With a deadline,
    several texts are written at once if the remaining ones would not end before it. Qualities are
    estimated from all scores (see `redraft.plans.quality`). Graders that only compare are asked
    once, at the end, about the two best candidates, if it is unclear which of them is better.

    Args:
        base_plan: First drafts, repairs and stop rules. The rules are applied to the estimates.
        min_expected_gain: Smallest expected gain, in points of the score, for each unit of cost.
        cost_unit: "calls", "tokens" (1,000 of them) or "usd".
        max_attempts: Maximum number of texts after the first drafts. Grades that are asked for
            again count with the calls that they take.
        allow_new_drafts: Whether the plan may write new drafts.
        priors: Initial expectations.
        second_look: Whether each judge grades the first answer once more than the others. Such a
            grade shows how noisy the judge is; it does not count as an attempt.
        confidence: Probability with which the quality of the best text must reach the target, from
            0.01 to 0.99.
        calibration: What people's labels say about the only judge that scores. Scores, intervals
            and the target are then in people's points; which step comes next is decided in the
            judge's. None, or with several graders that score: the judge's own points.
        calibrated_grader: Name of that judge; "" for any.
        exact_stop: Further stop rules where no price ends the work: while no score is noisy, since
            graders compute or only critique, and while the best breaks a must.
        price_rises: Whether a step must gain n / 2 times `min_expected_gain` once there are n > 2
            texts. First drafts count as one text, and grades that are asked for again count as in
            `max_attempts`.

    Raises:
        ConfigError: An argument is wrong.
    """

    base_plan: SelfRefine = SelfRefine(target(0.9) | done())
    min_expected_gain: float = 0.0103  # pyright: ignore[reportIncompatibleMethodOverride]
    cost_unit: CostUnit = "calls"  # pyright: ignore[reportIncompatibleMethodOverride]
    max_attempts: int = 4
    allow_new_drafts: bool = True
    priors: Priors = Priors()  # pyright: ignore[reportIncompatibleMethodOverride]
    second_look: bool = False
    confidence: float = 0.6
    calibration: Calibration | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    calibrated_grader: str = ""
    exact_stop: StopRule = patience(DEFAULT_PATIENCE) | max_iterations(DEFAULT_ITERATIONS)
    price_rises: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.base_plan, SelfRefine):
            raise checks.invalid_argument("base_plan", "a SelfRefine", self.base_plan)
        if not isinstance(self.exact_stop, StopRule):
            raise checks.invalid_argument("exact_stop", "a StopRule", self.exact_stop)
        checks.number("min_expected_gain", self.min_expected_gain)
        checks.one_of("cost_unit", self.cost_unit, COST_UNITS)
        checks.whole_number("max_attempts", self.max_attempts, 0)
        checks.flag("allow_new_drafts", self.allow_new_drafts)
        checks.flag("price_rises", self.price_rises)
        checks.number("confidence", self.confidence, 0.01, 0.99)
        if not isinstance(self.priors, Priors):
            raise checks.invalid_argument("priors", "Priors", self.priors)
        checks.flag("second_look", self.second_look)
        if not isinstance(self.calibration, Calibration | None):
            raise checks.invalid_argument("calibration", "a Calibration or None", self.calibration)

    @property
    def drafts(self) -> int:
        """The number of first drafts."""
        return self.base_plan.drafts

    @cached_property
    def exact_plan(self) -> SelfRefine:
        """The plan in place of this one while no score is noisy."""
        return replace(self.base_plan, stop=self.base_plan.stop | self.exact_stop)

    @property
    def prompts(self) -> Prompts:
        """The prompts of the model that writes."""
        return self.base_plan.prompts

    def with_priors(self, priors: Priors) -> Self:
        """Return the plan with other priors."""
        return self if priors == self.priors else replace(self, priors=priors)

    def with_price(self, price: float, unit: CostUnit) -> Self:
        """Return the plan with another price."""
        return (
            self
            if (price, unit) == (self.min_expected_gain, self.cost_unit)
            else replace(self, min_expected_gain=price, cost_unit=unit)
        )

    def with_calibration(self, calibration: Calibration | None, grader: str = "") -> Self:
        """Return the plan with what people's labels say about the judge of this name."""
        if (calibration, grader) == (self.calibration, self.calibrated_grader):
            return self
        return replace(self, calibration=calibration, calibrated_grader=grader)

    def with_second_look(self) -> Self:
        """Return the plan that has the first answer graded twice."""
        return self if self.second_look else replace(self, second_look=True)

    def decide(self, trace: Trace, left: Left = UNLIMITED) -> PlanDecision:
        """Return the next steps with the choices behind them. `left`: what the task may still
        spend.
        """
        if final_steps := stop_for_tool_calls(trace, self.base_plan.missing_drafts):
            return PlanDecision(final_steps)
        if (
            not trace.scorers
            or trace.only_critics
            or (not llm_graders(trace.scorers) and llm_graders(trace.panel))
        ):
            # no grader measures quality, or scores are computed and have no noise
            return PlanDecision(self.exact_plan(trace))
        looks = second_looks(trace) if self.second_look else []
        if missing := self.base_plan.missing_steps(trace) or looks:
            return PlanDecision(missing)
        return self.choose_next_steps(trace, left)

    def choices_in(
        self, unit: CostUnit, trace: Trace, choices: Sequence[PlanChoice]
    ) -> Sequence[PlanChoice]:
        """Return the choices of a decision with their costs in another unit."""
        if unit == self.cost_unit:
            return choices
        costs = step_costs(step_needs(trace, [unit]), unit)
        return [replace(choice, cost=choice.cost_by(costs)) for choice in choices]

    def choose_next_steps(self, trace: Trace, left: Left = UNLIMITED) -> PlanDecision:
        """Return the steps that are worth most, or a stop with its reason."""
        posterior = Posterior(observe(trace), self.priors)
        estimated = trace.with_scores(posterior.means)
        ending = self.ending(estimated, posterior)
        end = ending.stop_by_rules(trace)
        if end is None and estimated.best and not estimated.meets_musts(estimated.best.id):
            end = self.exact_plan.stop_by_rules(estimated)
        if end and (retry := self.retry_first_round(trace, left)):
            return PlanDecision(retry)
        choices: list[PlanChoice] | None = None
        continues = False
        if end is None:
            choices, end = (
                self.choices(estimated, posterior, left),
                self.stop_for_limits(estimated, posterior, left),
            )
            if (width := self.width_of_round(estimated, left)) > 1:
                choices = self.text_choices(choices)
            chosen = self.next_round(estimated, posterior, choices, width, left)
            continues = bool(chosen)
            if chosen:
                return PlanDecision(self.steps_of_round(estimated, chosen), choices, continues)
            end = end or self.stop_for_value(estimated, choices)
        if comparison := ending.tie_break(end):
            return PlanDecision(comparison, choices, continues)
        return PlanDecision(
            [with_note(ending.with_estimate(end), trace, self.base_plan)], choices, continues
        )

    def next_round(
        self,
        trace: Trace,
        posterior: Posterior,
        choices: Sequence[PlanChoice],
        width: int,
        left: Left,
    ) -> list[PlanChoice]:
        """Return the choices of the next round, at most `width`; none if no choice is worth its
        price.

        The first is the best one. If a round may have several, which are texts, the later ones are
        those that gain most if the earlier ones come out as expected: rounds are few, so each is
        filled.
        """
        chosen: list[PlanChoice] = []
        while first := max(choices, key=lambda choice: choice.gain_per_cost, default=None):
            if first.gain_per_cost < self.min_expected_gain and not (
                chosen and first.expected_gain > 0
            ):
                break
            chosen.append(first)
            if len(chosen) >= width:
                break
            left = minus(left, step_needs(trace, left.limit_names).graded_text)
            role, parent = (
                ("refine", first.candidate.id)
                if isinstance(first, RefineChoice)
                else ("generate", None)
            )
            posterior = posterior.with_expected_text(role, parent, -len(chosen))
            choices = self.text_choices(self.choices(trace, posterior, left, chosen))
        return chosen

    @staticmethod
    def text_choices(choices: Sequence[PlanChoice]) -> list[PlanChoice]:
        """Return the choices that write a text."""
        return [choice for choice in choices if not isinstance(choice, RegradeChoice)]

    def width_of_round(self, trace: Trace, left: Left) -> int:
        """Return how many steps a round may have: with a deadline so many that the remaining texts
        can be written and graded.
        """
        if left.seconds is None:
            return 1
        need = step_needs(trace, left.limit_names).graded_text
        texts = min(
            affordable_count(left, need), self.calls_left(trace) // calls_per_candidate(trace)
        )
        rounds = rounds_left(left, need)
        return min(MAX_WIDTH, max(1, ceil(texts / rounds))) if rounds else 1

    def steps_of_round(self, trace: Trace, chosen: Sequence[PlanChoice]) -> list[Step]:
        """Return the steps of several choices, with an id of its own for each text."""
        if len(chosen) == 1:
            return [*self.steps_for(trace, chosen[0])]
        texts = (step for choice in chosen for step in self.steps_for(trace, choice))
        ids = count(trace.next_id)
        return [
            replace(step, id=next(ids)) for step in texts if isinstance(step, Generate | Refine)
        ]

    def stop_for_limits(self, trace: Trace, posterior: Posterior, left: Left) -> Stop | None:
        """Return the stop if a text would be worth its price, but cannot be paid for with its
        grades; None otherwise.
        """
        if not left.is_limited:
            return None
        need = step_needs(trace, left.limit_names).graded_text
        if not (limit := left.exceeded_limit(need)):
            return None
        first = max(
            self.choices(trace, posterior), key=lambda choice: choice.gain_per_cost, default=None
        )
        if first is None or first.gain_per_cost < self.min_expected_gain:
            return None
        best = trace.best.id if trace.best else None
        return Stop(
            best,
            exhausted_reason(limit),
            f"a text with its grades takes about {shortage_text(limit, need, left)}",
        )

    def retry_first_round(self, trace: Trace, left: Left) -> Sequence[Step]:
        """Return the steps after first drafts at which graders failed: grades that could not be
        read again, then one more text.
        """
        if not only_failed_grades(trace):
            return []
        calls = self.calls_left(trace)
        again = next(
            (steps for c in trace.candidates if (steps := repeated_unreadable_grades(trace, c))), []
        )
        if again and len(again) <= calls:
            return again
        can_write = calls >= calls_per_candidate(trace) and left.allows(
            step_needs(trace, left.limit_names).graded_text
        )
        if not can_write or self.texts_after_first(trace):
            return []
        if self.can_draft(trace):
            return self.base_plan.prompts.drafts(trace, [trace.next_id])
        return [self.base_plan.prompts.refinement(trace, trace.candidates[-1])]

    def choices(
        self,
        trace: Trace,
        posterior: Posterior,
        left: Left = UNLIMITED,
        chosen: Sequence[PlanChoice] = (),
    ) -> list[PlanChoice]:
        """Return all possible next actions for a trace with estimated scores, besides texts
        `chosen` for the same round.

        An action that cannot be paid for to its end is left out. Gains are divided by
        `price_factor`, so that they can be compared with one price for all texts and tasks.
        """
        best, top, calls_each = trace.best, top_candidates(trace), calls_per_candidate(trace)
        if best is None:
            return []
        calls = self.calls_left(trace) - len(chosen) * calls_each
        needs = step_needs(
            trace, [self.cost_unit] if left is UNLIMITED else [*left.limit_names, self.cost_unit]
        )
        costs = step_costs(needs, self.cost_unit)
        can_write = calls >= calls_each and (left is UNLIMITED or left.allows(needs.graded_text))
        if not trace.meets_musts(best.id):
            parent = best_so_far(trace) if can_write else None
            return [RefineChoice(inf, costs.graded_text, parent)] if parent else []
        imagined = [id for id in posterior.means if id < 0] if chosen else []
        rival = max([best.id, *imagined], key=posterior.means.__getitem__) if imagined else best.id
        refined = (
            []
            if self.allow_new_drafts
            else [choice.candidate for choice in chosen if isinstance(choice, RefineChoice)]
        )
        choices: list[PlanChoice] = []
        factor = self.price_factor(trace)
        if can_write:
            p_refined = p_counts(trace, "refine") / factor
            for c in top:
                # without advice, a refinement has nothing to change
                if c not in refined and open_actions(trace, c):
                    gain = posterior.value_of_candidate("refine", c.id, rival) * p_refined
                    choices.append(RefineChoice(gain, costs.graded_text, c))
            if self.can_draft(trace):
                gain = posterior.value_of_candidate("generate", None, rival)
                gain *= p_counts(trace, "generate") / factor
                choices.append(DraftChoice(gain, costs.graded_text))
        if trace.failures:
            choices += self.choices_of_unread(trace, posterior, best, calls, needs)
        return choices

    def choices_of_unread(
        self, trace: Trace, posterior: Posterior, best: Candidate, calls: int, needs: StepNeeds
    ) -> Iterator[RegradeChoice]:
        """Yield the choices to ask again for grades that could not be read: without a score, no
        text is returned.

        A score would tell of the text what it tells of a new one made in the same way.
        """
        for c in trace.candidates:
            steps = repeated_unreadable_grades(trace, c)
            if steps and len(steps) <= calls:
                gain = posterior.value_of_candidate(c.role, c.parent, best.id)
                gain *= readable_share(trace) ** len(steps) / self.price_factor(trace)
                choice = RegradeChoice(gain, None, steps)
                yield replace(choice, cost=choice.cost_by(step_costs(needs, self.cost_unit)))

    def can_draft(self, trace: Trace) -> bool:
        """Whether a new draft may be a new text: not if a response was given, nor if two drafts
        were identical.
        """
        drafts = [c.content_key for c in trace.candidates if c.role == "generate"]
        return (
            self.allow_new_drafts
            and not trace.task.given_responses
            and len(set(drafts)) == len(drafts)
        )

    def steps_for(self, trace: Trace, choice: PlanChoice) -> Sequence[Step]:
        """Return the steps of a choice."""
        match choice:
            case RefineChoice():
                return [self.base_plan.prompts.refinement(trace, choice.candidate)]
            case RegradeChoice():
                return choice.steps
        return self.base_plan.prompts.drafts(trace, [trace.next_id])

    def calls_left(self, trace: Trace) -> int:
        """Return how many calls are left of those that all attempts may take."""
        extra = sum([extra_asks(trace, candidate) for candidate in trace.candidates])
        if self.second_look and trace.candidates:  # which is no attempt
            extra -= min(len(scoring_judges(trace)), extra_asks(trace, trace.candidates[0]))
        return (self.max_attempts - self.texts_after_first(trace)) * calls_per_candidate(
            trace
        ) - extra

    def texts_after_first(self, trace: Trace) -> int:
        """Return how many texts were written, or failed, after the first drafts."""
        written = len([c for c in trace.candidates if c.role in {"generate", "refine"}])
        written += len([f for f in trace.failures.values() if f.role == "generate"])
        return max(0, written - (0 if trace.task.given_responses else self.base_plan.drafts))

    def price_factor(self, trace: Trace) -> float:
        """Return how many times `min_expected_gain` the price of a step is."""
        if not self.price_rises:
            return 1.0
        attempts = self.max_attempts - self.calls_left(trace) / calls_per_candidate(trace)
        return max(1.0, (1 + attempts) / 2)

    def stop_for_value(self, trace: Trace, choices: Sequence[PlanChoice]) -> Stop:
        """Return the stop if no step is worth its price, or no step is possible."""
        best = trace.best.id if trace.best else None
        if not choices and self.calls_left(trace) >= calls_per_candidate(trace):
            return Stop(best, StopReason.GAIN, "no grader asked for a change")
        if not choices:
            return Stop(
                best,
                StopReason.MAX_ITERATIONS,
                f"{self.max_attempts} attempt{'s' * (self.max_attempts != 1)} made",
            )
        if any(choice.cost is None for choice in choices):
            return Stop(
                best,
                StopReason.GAIN,
                f"the cost of a step in {self.cost_unit} is unknown, so no step is worth it",
            )
        rates: dict[str, float] = {}
        factor = self.price_factor(trace)
        for choice in choices:
            rate = choice.gain_per_cost * factor
            rates[choice.name] = max(0.0, rate, rates.get(choice.name, 0.0))
        gains = ", ".join(f"{what} {floor(rate * 1000) / 1000:.3f}" for what, rate in rates.items())
        price = self.min_expected_gain * factor
        return Stop(
            best,
            StopReason.GAIN,
            f"no step gains {price:g} {UNIT_PHRASES[self.cost_unit]}: {gains}",
        )

    def outcome_if_stopped(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """Return the outcome of a trace that is stopped here from outside."""
        if not trace.scorers or trace.only_critics:
            return Outcome(trace.best.id if trace.best else None, reason, note)
        posterior = Posterior(observe(trace), self.priors)
        estimated = trace.with_scores(posterior.means)
        stop = Stop(estimated.best.id if estimated.best else None, reason, note)
        return self.ending(estimated, posterior).with_estimate(stop)

    def ending(self, estimated: Trace, posterior: Posterior) -> Ending:
        """Return how the work ends by these estimates."""
        labels = (
            label_posterior(estimated, posterior, self.calibration, self.calibrated_grader)
            if self.calibration
            else None
        )
        return Ending(self.base_plan, self.confidence, estimated, posterior, labels)


def calls_per_candidate(trace: Trace) -> int:
    """Return the calls for one more text: to write it, and for all its grades."""
    return 1 + sum([grader.repeats for grader in trace.graders.judges])


def p_counts(trace: Trace, role: str) -> float:
    """Return the probability that a new text, graded once by every judge, can be returned: it is
    read, and meets the musts.
    """
    return p_meets_musts(trace, role) * readable_share(trace) ** len(scoring_judges(trace))


def p_meets_musts(trace: Trace, role: str) -> float:
    """Return the probability that a new text meets every must, if its parent does: 1 without musts.

    It is (4 + met) / (5 + seen) over the texts of this role so far, that is, with the prior Beta(4,
    1).
    """
    if not trace.graders.has_musts:
        return 1.0
    texts = [
        c
        for c in trace.graded_candidates
        if c.role == role and (c.parent is None or trace.meets_musts(c.parent))
    ]
    return (4 + sum(trace.meets_musts(c.id) for c in texts)) / (5 + len(texts))
