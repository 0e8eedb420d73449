"""A plan for noisy judges: take the step with the highest expected gain per cost, as long as one is
worth its price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import ceil, floor, inf
from typing import Any, Self

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
from .base import NoiseAwarePlan, PlanChoice, PlanDecision
from .ending import Ending, top_candidates, with_note
from .limits import (
    COST_UNITS,
    UNIT_PHRASES,
    UNLIMITED,
    CostUnit,
    Left,
    StepCosts,
    affordable_count,
    asks_model,
    exhausted_reason,
    mean_need,
    minus,
    plus,
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
    can_repeat,
    extra_asks,
    missing_repeats,
    readable_share,
    repeat_steps,
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
from .unseen import trace_before, unjudged_refinement, without_judges

MAX_WIDTH = 64  # steps of one round
# Part of the gain's standard deviation that the expected gain of an unseen refinement must exceed.
# In the worlds of bench/policies.py, 1 misses half of what such a refinement is worth, and 0 loses
# .006 where refining hurts.
LIFT_MARGIN = 0.5
SHIPPED = Priors()
MIN_LEARNED_TASKS = (
    32  # finished tasks from which on learned priors are trusted with a text that no judge sees
)


@fingerprint_name("adaptive")
@dataclass(frozen=True)
class Adaptive(NoiseAwarePlan):
    """Take the step with the highest expected gain per cost; stop when none is worth its price.

    The gain is that in the quality of the returned answer. The steps are: refine one of the best
    candidates, write a new draft, or grade one of the best again. Qualities are estimated from all
    scores (see `redraft.plans.quality`). Graders that only compare are asked once, at the end,
    about the two best candidates, if it is unclear which of them is better.

    Args:
        base_plan: First drafts, repairs and stop rules. The rules are applied to the estimates.
        min_expected_gain: Smallest expected gain, in points of the score, for each unit of cost.
            Its default, and that of `max_attempts`, are chosen together (see docs/adaptive.md).
        cost_unit: "calls", "tokens" (1,000 of them) or "usd".
        max_attempts: Maximum number of texts after the first drafts. Repeated grades count with the
            calls that they take.
        allow_new_drafts: Whether the plan may write new drafts.
        priors: Initial expectations.
        width: Maximum number of texts that are written at once, from 1 to 64. None: one, or with a
            deadline as many as let the remaining attempts end before it.
        unseen_last: Whether the last text that can be paid for may be one that no judge grades (see
            `Outcome.forecast`).
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

    Raises:
        ConfigError: An argument is wrong.
    """

    base_plan: SelfRefine = SelfRefine(target(0.9) | done())
    min_expected_gain: float = 0.01  # pyright: ignore[reportIncompatibleMethodOverride]
    cost_unit: CostUnit = "calls"  # pyright: ignore[reportIncompatibleMethodOverride]
    max_attempts: int = 8
    allow_new_drafts: bool = True
    priors: Priors = Priors()  # pyright: ignore[reportIncompatibleMethodOverride]
    width: int | None = None
    unseen_last: bool = False
    second_look: bool = False
    confidence: float = 0.6
    calibration: Calibration | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    calibrated_grader: str = ""
    exact_stop: StopRule = patience(DEFAULT_PATIENCE) | max_iterations(DEFAULT_ITERATIONS)

    def __post_init__(self) -> None:
        if not isinstance(self.base_plan, SelfRefine):
            raise checks.invalid_argument("base_plan", "a SelfRefine", self.base_plan)
        if not isinstance(self.exact_stop, StopRule):
            raise checks.invalid_argument("exact_stop", "a StopRule", self.exact_stop)
        checks.number("min_expected_gain", self.min_expected_gain)
        checks.one_of("cost_unit", self.cost_unit, COST_UNITS)
        checks.whole_number("max_attempts", self.max_attempts, 0)
        checks.flag("allow_new_drafts", self.allow_new_drafts)
        checks.number("confidence", self.confidence, 0.01, 0.99)
        if not isinstance(self.priors, Priors):
            raise checks.invalid_argument("priors", "Priors", self.priors)
        checks.whole_number("width", self.width, 1, MAX_WIDTH, optional=True)
        checks.flag("unseen_last", self.unseen_last)
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
        missing = self.base_plan.missing_steps(trace)
        if missing and self.is_to_stay_unseen(trace, left):
            missing = without_judges(trace, missing)
        looks = second_looks(trace) if self.second_look else []
        if missing := missing or looks or missing_repeats(trace):
            return PlanDecision(missing)
        return self.choose_next_steps(trace, left)

    def choices_in(
        self, unit: CostUnit, trace: Trace, choices: Sequence[PlanChoice]
    ) -> Sequence[PlanChoice]:
        """Return the choices of a decision with their costs in another unit."""
        if unit == self.cost_unit:
            return choices
        costs = step_costs(step_needs(trace, [unit]), unit)
        return [
            c._replace(cost=costs.repeat if c.action == "another grade" else costs.candidate)
            for c in choices
        ]

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
            if last := self.unseen_refinement(estimated, posterior, chosen, left):
                return PlanDecision([last], choices, continues)
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
                ("generate", None) if first.candidate is None else ("refine", first.candidate.id)
            )
            posterior = posterior.with_expected_text(role, parent, -len(chosen))
            choices = self.text_choices(self.choices(trace, posterior, left, chosen))
        return chosen

    @staticmethod
    def text_choices(choices: Sequence[PlanChoice]) -> list[PlanChoice]:
        """Return the choices that write a text."""
        return [choice for choice in choices if choice.action != "another grade"]

    def width_of_round(self, trace: Trace, left: Left) -> int:
        """Return how many steps a round may have: with a deadline so many that the remaining texts
        can be written and graded.
        """
        if self.width is not None or left.seconds is None:
            return self.width or 1
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

    # ---- a last text that no judge grades

    def unseen_refinement(
        self, trace: Trace, posterior: Posterior, chosen: Sequence[PlanChoice], left: Left
    ) -> Refine | None:
        """Return a last refinement that no judge will grade, if it is expected to be better, and
        worth more than the next round.

        It ends the work, so it is made only if no further text is worth its price with its grades,
        or can be paid for. What is expected must be learned, and the expected gain larger than half
        its standard deviation among tasks.
        """
        best = trace.best
        if not (
            self.unseen_last and self.has_learned and best and trace.meets_musts(best.id)
        ) or unjudged_refinement(trace):
            return None
        if any(choice.action != "another grade" for choice in chosen) or any(
            g.must and asks_model(g) for g in trace.panel
        ):
            return None
        needs = step_needs(trace, [*left.limit_names, self.cost_unit])
        cost = step_costs(needs, self.cost_unit).text
        affordable = self.calls_left(trace) > 0 and left.allows(needs.text)
        if cost is None or not affordable or not open_actions(trace, best):
            return None
        gain = posterior.expected_text("refine", best.id).mean - posterior.means[best.id]
        price = max(self.min_expected_gain, *(choice.gain_per_cost for choice in chosen), 0.0)
        is_worth = gain >= price * cost and gain > LIFT_MARGIN * posterior.task_gain_sd
        return (
            replace(self.base_plan.prompts.refinement(trace, best), unseen=True)
            if is_worth
            else None
        )

    def is_to_stay_unseen(self, trace: Trace, left: Left) -> bool:
        """Whether the plan asked for the last candidate as one that no judge grades: whether it
        would do so again.
        """
        last = unjudged_refinement(trace) if self.unseen_last else None
        if last is None:
            return False
        decision = self.decide(trace_before(trace, last), plus(left, mean_need([last])))
        return any(isinstance(step, Refine) and step.unseen for step in decision.steps)

    @property
    def has_learned(self) -> bool:
        """Whether the priors are the user's own, or learned from enough tasks. People's labels show
        the noise and drift only.
        """
        shown: dict[str, Any] = (
            {"noise_sd": SHIPPED.noise_sd, "bias_drift": SHIPPED.bias_drift}
            if self.calibration
            else {}
        )
        own = not self.priors.tasks and replace(self.priors, **shown) != SHIPPED
        return own or self.priors.tasks >= MIN_LEARNED_TASKS

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
            return self.steps_for(trace, PlanChoice("a new draft", None, 0.0, 0.0))
        return self.steps_for(trace, PlanChoice("a refinement", trace.candidates[-1], 0.0, 0.0))

    def choices(
        self,
        trace: Trace,
        posterior: Posterior,
        left: Left = UNLIMITED,
        chosen: Sequence[PlanChoice] = (),
    ) -> list[PlanChoice]:
        """Return all possible next actions for a trace with estimated scores, besides texts
        `chosen` for the same round.

        An action that cannot be paid for to its end is left out.
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
            return self.choices_for_musts(trace, costs) if can_write else []
        imagined = [id for id in posterior.means if id < 0] if chosen else []
        rival = max([best.id, *imagined], key=posterior.means.__getitem__) if imagined else best.id
        refined = (
            []
            if self.allow_new_drafts
            else [choice.candidate for choice in chosen if choice.action == "a refinement"]
        )
        choices: list[PlanChoice] = []
        if can_write:
            p_refined = p_counts(trace, "refine")
            for c in top:
                # without advice, a refinement has nothing to change
                if c not in refined and open_actions(trace, c):
                    gain = posterior.value_of_candidate("refine", c.id, rival) * p_refined
                    choices.append(PlanChoice("a refinement", c, gain, costs.candidate))
            if self.can_draft(trace):
                gain = posterior.value_of_candidate("generate", None, rival) * p_counts(
                    trace, "generate"
                )
                choices.append(PlanChoice("a new draft", None, gain, costs.candidate))
        if trace.failures:
            choices += self.choices_of_unread(trace, posterior, best, calls, costs)
        judges = len(scoring_judges(trace))
        if len(top) > 1 and 0 < judges <= calls and left.allows(needs.repeat):
            rivals = [top[1], *[top[0]] * (len(top) - 1)]
            choices += [
                PlanChoice(
                    "another grade", c, posterior.value_of_repeat(c.id, other.id), costs.repeat
                )
                for c, other in zip(top, rivals, strict=True)
                if can_repeat(trace, c)
            ]
        return choices

    def choices_for_musts(self, trace: Trace, costs: StepCosts) -> list[PlanChoice]:
        """Return the choices while the best breaks a must, which have no price: the more probable
        to meet one more comes first.
        """
        choices = [PlanChoice("a refinement", best_so_far(trace), inf, costs.candidate)]
        if self.can_draft(trace):
            choices.append(PlanChoice("a new draft", None, inf, costs.candidate))
        return (
            choices
            if p_meets_broken_must(trace, "refine") >= p_meets_broken_must(trace, "generate")
            else choices[::-1]
        )

    def choices_of_unread(
        self, trace: Trace, posterior: Posterior, best: Candidate, calls: int, costs: StepCosts
    ) -> Iterator[PlanChoice]:
        """Yield the choices to ask again for grades that could not be read: without a score, no
        text is returned.
        """
        judges = max(1, len(scoring_judges(trace)))  # a grader that computes may be unreadable, too
        for c in trace.candidates:
            again = repeated_unreadable_grades(trace, c)
            if again and len(again) <= calls:
                gain = posterior.value_of_first_score(c.id, best.id) * readable_share(trace) ** len(
                    again
                )
                yield PlanChoice(
                    "another grade",
                    c,
                    gain,
                    None if costs.repeat is None else costs.repeat * len(again) / judges,
                )

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
        if choice.candidate is None:
            return self.base_plan.prompts.drafts(trace, [trace.next_id])
        if choice.action == "a refinement":
            return [self.base_plan.prompts.refinement(trace, choice.candidate)]
        return repeated_unreadable_grades(trace, choice.candidate) or repeat_steps(
            trace, choice.candidate
        )

    def calls_left(self, trace: Trace) -> int:
        """Return how many calls are left of those that all attempts may take."""
        first = trace.candidates[0].id if self.second_look and trace.candidates else None
        extra = sum(max(0, more - (id == first)) for id, more in extra_asks(trace))
        return (self.max_attempts - self.texts_after_first(trace)) * calls_per_candidate(
            trace
        ) - extra

    def texts_after_first(self, trace: Trace) -> int:
        """Return how many texts were written, or failed, after the first drafts."""
        written = len([c for c in trace.candidates if c.role in {"generate", "refine"}])
        written += len([f for f in trace.failures.values() if f.role == "generate"])
        return max(0, written - (0 if trace.task.given_responses else self.base_plan.drafts))

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
        for choice in choices:
            rates[choice.action] = max(0.0, choice.gain_per_cost, rates.get(choice.action, 0.0))
        gains = ", ".join(f"{what} {floor(rate * 1000) / 1000:.3f}" for what, rate in rates.items())
        return Stop(
            best,
            StopReason.GAIN,
            f"no step gains {self.min_expected_gain:g} {UNIT_PHRASES[self.cost_unit]}: {gains}",
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
        return Ending(
            self.base_plan, self.confidence, self.unseen_last, estimated, posterior, labels
        )


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


def p_meets_broken_must(trace: Trace, role: str) -> float:
    """Return the probability that a new text meets a must that the best breaks.

    For refinements, which are told what is broken, the prior is Beta(2, 2), over how many met more
    musts than their parent; for drafts Beta(1, 3), over how many met more than the best, which is
    none.
    """
    texts = [c for c in trace.graded_candidates if c.role == role]
    if role == "generate":
        return 1 / (4 + len(texts))
    gains = [
        trace.must_pass_rate(c.id) > trace.must_pass_rate(c.parent)
        for c in texts
        if c.parent is not None
    ]
    return (2 + sum(gains)) / (4 + len(gains))
