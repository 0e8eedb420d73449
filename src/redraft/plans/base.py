"""What a plan decides, the base class of plans that treat scores as noisy, how these are asked
round by round, and plans that are generators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import ClassVar, Protocol, Self, TypeAlias, runtime_checkable

from ..base.own_code import is_own
from ..loop.engine import Plan
from ..loop.records import Candidate, Outcome, Record, StopReason
from ..loop.steps import Grade, Step, Stop
from ..loop.stopping import DEFAULT_ITERATIONS
from ..loop.task import Task
from ..loop.trace import Trace
from .limits import UNLIMITED, CostUnit, Left, StepCosts
from .prompts import Prompts
from .quality.calibration import Calibration
from .quality.priors import Priors


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A possible next action: the expected gain, and the cost (None: unknown).

    The gain is infinite if the action may repair a broken must, which is worth any price.
    """

    name: ClassVar[str]
    expected_gain: float
    cost: float | None

    @property
    def gain_per_cost(self) -> float:
        """The gain for each unit of cost: 0 if the cost is unknown, infinite if the step is
        free.
        """
        if self.cost is None:
            return 0.0 if isfinite(self.expected_gain) else inf
        return self.expected_gain / self.cost if self.cost else inf

    def cost_by(self, costs: StepCosts) -> float | None:
        """Return the cost, given those of steps."""
        return costs.graded_text


@dataclass(frozen=True, slots=True)
class DraftChoice(PlanChoice):
    """Write a new draft, and have it graded."""

    name: ClassVar[str] = "a new draft"


@dataclass(frozen=True, slots=True)
class RefineChoice(PlanChoice):
    """Refine a candidate, and have the new text graded."""

    name: ClassVar[str] = "a refinement"
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class RegradeChoice(PlanChoice):
    """Ask again for grades of a candidate that could not be read."""

    name: ClassVar[str] = "another grade"
    steps: Sequence[Grade]

    def cost_by(self, costs: StepCosts) -> float | None:
        """Return the cost, given those of steps."""
        return None if costs.grade is None else costs.grade * len(self.steps)


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """The next steps of a plan, and the choices that were compared for them; None if there was
    nothing to choose.

    `continues`: whether one of the choices is worth the price.
    """

    steps: Sequence[Step]
    choices: Sequence[PlanChoice] | None = None
    continues: bool = False


class NoiseAwarePlan(ABC):
    """A plan that stops when no step is expected to gain `min_expected_gain` for each `cost_unit`
    of its cost, given `priors`.

    It is a base class and no protocol because every row of a run is checked for it: that must be
    fast.
    """

    @property
    @abstractmethod
    def priors(self) -> Priors: ...

    @property
    @abstractmethod
    def min_expected_gain(self) -> float: ...

    @property
    @abstractmethod
    def cost_unit(self) -> CostUnit: ...

    @property
    @abstractmethod
    def drafts(self) -> int:
        """The number of first drafts."""

    @abstractmethod
    def decide(self, trace: Trace, left: Left = UNLIMITED) -> PlanDecision:
        """Return the next steps with the choices behind them. `left`: what the task may still
        spend.

        The same trace and the same `left` lead to the same steps.
        """

    @abstractmethod
    def choices_in(
        self, unit: CostUnit, trace: Trace, choices: Sequence[PlanChoice]
    ) -> Sequence[PlanChoice]:
        """Return the choices of a decision with their costs in another unit."""

    @abstractmethod
    def with_priors(self, priors: Priors) -> Self:
        """Return the plan with other priors."""

    @abstractmethod
    def with_price(self, price: float, unit: CostUnit) -> Self:
        """Return the plan with another `min_expected_gain` and `cost_unit`."""

    @property
    def calibration(self) -> Calibration | None:
        """What people's labels say about the only judge that scores; None without labels."""
        return None

    def with_calibration(self, calibration: Calibration | None, grader: str = "") -> Self:
        """Return the plan with what people's labels say about the judge of this name; the plan
        itself if it cannot use them.
        """
        return self

    def with_second_look(self) -> Self:
        """Return the plan that has the first answer graded twice, to learn the noise; the plan
        itself if it cannot do that.
        """
        return self

    @abstractmethod
    def outcome_if_stopped(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """Return the outcome of a trace that is stopped here from outside."""

    def __call__(self, trace: Trace) -> Sequence[Step]:
        """Return the next steps."""
        return self.decide(trace).steps


@dataclass(frozen=True, slots=True)
class PlanTraits:
    """What a plan says of itself besides its steps (see `plan_traits`).

    Attributes:
        noise_aware: The plan itself, if it treats scores as noisy. It compares answers only at the
            end.
        prompts: The prompts of the model that writes; None if they are not known.
        drafts: The number of first drafts.
        max_attempts: The maximum number of texts after these: 0 if it refines nothing, and the
            default of the plain rules if the plan does not say it.
    """

    noise_aware: NoiseAwarePlan | None
    prompts: Prompts | None
    drafts: int
    max_attempts: int

    @property
    def priors(self) -> Priors:
        """The priors of the plan; the shipped ones for a plan that has none."""
        return self.noise_aware.priors if self.noise_aware else Priors()


def plan_traits(plan: Plan) -> PlanTraits:
    """Return what a plan says of itself: its attributes of these names. A function has none: it
    writes one draft, and may refine.
    """
    prompts, refines = getattr(plan, "prompts", None), getattr(plan, "refines", True)
    max_attempts = getattr(plan, "max_attempts", None) if refines else 0
    return PlanTraits(
        plan if isinstance(plan, NoiseAwarePlan) else None,
        prompts if isinstance(prompts, Prompts) else None,
        getattr(plan, "drafts", 1),
        DEFAULT_ITERATIONS if max_attempts is None else max_attempts,
    )


@runtime_checkable
class StoppablePlan(Protocol):
    """A plan that says itself what the outcome is if the work is stopped from outside."""

    def outcome_if_stopped(self, trace: Trace, reason: StopReason, note: str) -> Outcome:
        """Return the outcome of a trace that is stopped here."""
        ...


def outcome_if_stopped(plan: Plan, trace: Trace, reason: StopReason, note: str) -> Outcome:
    """Return the outcome of a trace that is stopped here from outside: the best by what the plan
    knows of scores.
    """
    if isinstance(plan, StoppablePlan):
        return plan.outcome_if_stopped(trace, reason, note)
    return Outcome(trace.best.id if trace.best else None, reason, note)


PlanGenerator: TypeAlias = Callable[[Task], Generator[Sequence[Step], list[Record], None]]


def plan_from_generator(generator: PlanGenerator) -> Plan:
    """Make a plan from a generator that yields steps and is sent their records.

    The generator is run from the beginning for every trace, so it must be pure: the same records
    lead to the same steps. For each list of steps that it yields, it is sent their records in the
    same order; a step that failed is sent as a `Failure`. When it returns, the work ends.

    Args:
        generator: A function of a `Task` that returns such a generator.

    Returns:
        A plan, for the setting `plan`.
    """

    def plan(trace: Trace) -> Sequence[Step]:
        running = generator(trace.task)
        try:
            steps = next(running)
            while not (missing := trace.missing(steps)):
                steps = running.send(
                    [trace.records_by_slot.get(s.slot) or trace.failures[s.slot] for s in steps]
                )
        except StopIteration:
            return []
        return missing

    return plan


@dataclass
class RoundByRound:
    """Returns the steps that `decide` chooses, one round at a time.

    The engine asks for steps after every record (of a `Round`: but not after feedback), while
    others are still being performed. A plan is pure and does not see those, so it would choose the
    next text before the scores of this round are in. While texts of a round are being written,
    those that exist are graded; nothing else begins.

    Args:
        preview: Returns the decision for a trace, without any effect.
        decide: Returns the decision for a trace in which no chosen step is missing; it may record
            it.
    """

    preview: Callable[[Trace], PlanDecision]
    decide: Callable[[Trace], PlanDecision]
    _chosen: Sequence[Step] = field(default=(), init=False)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        """Return the next steps."""
        if len(self._chosen) > 1 and (missing := trace.missing(self._chosen)):
            decision = self.preview(trace)
            necessary = () if decision.choices is not None else decision.steps
            return [*missing, *(step for step in necessary if not isinstance(step, Stop))]
        decision = self.decide(trace)
        self._chosen = () if decision.choices is None else decision.steps
        return decision.steps


def returns_rounds(plan: Plan) -> bool:
    """Whether a `Round` that a plan returns can be relied on: the plan, and the one that it asks,
    are of Redraft's own classes.

    A user's function or subclass may return what ours returns, and stop after feedback.
    """
    match plan:
        case object(base_plan=base_plan):
            return is_own(type(plan)) and is_own(type(base_plan))
    return is_own(type(plan))
