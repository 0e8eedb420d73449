"""The settings of a refinement: what may be given, what it means, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypedDict

from . import checks
from .core.records import Record
from .core.steps import Step
from .core.stopping import StopRule, done, max_iterations, patience, repairs_only, target
from .errors import ConfigError
from .middleware import Budget
from .plans import Plan
from .plans.adaptive import COST_UNITS, Adaptive, CostUnit
from .plans.self_refine import SelfRefine
from .protocols import Editor, Reply, Store
from .quality.priors import Priors
from .storage.priors_store import read_priors

TRUST = (None, "check", "require")
SHIPPED = Priors()
HANDED_OVER = (  # settings that are objects of the caller's: what they must be, and what is called of them
    ("editor", "True, False or an Editor", ("repair",)),
    ("store", 'a Store, such as JsonlStore("run.jsonl"), or None', ("append",)),
    ("on_record", "a function of a record, or None", ("__call__",)),
    ("on_step", "a function of a step, or None", ("__call__",)),
    ("cache", "a mutable mapping, such as {}, or None", ("get", "__setitem__")),
)


class Settings(TypedDict, total=False):
    """The keyword arguments of `refine`, `refine_sync`, `stream` and `refine_many`; see `Options` for their meaning."""

    target_score: float
    max_iterations: int
    patience: int
    min_delta: float
    drafts: int
    adaptive: bool | None
    min_gain: float
    gain_per: CostUnit
    priors: Priors | str | Path | None
    final_check: bool
    plan: Plan | None
    budget: Budget | None
    deadline: float | None
    strict_budget: bool
    editor: bool | Editor
    store: Store | None
    on_record: Callable[[Record], object] | None
    on_step: Callable[[Step], object] | None
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    timeout: float | None
    retries: int
    max_in_flight: int
    cache: MutableMapping[str, Reply] | None
    prices: Mapping[str, tuple[float, float]] | None
    trust: str | None
    cards: str | Path | None


@dataclass(frozen=True)
class Options:
    """Settings with their defaults, checked. Raises ConfigError naming the argument, the value and what is allowed.

    `target_score` (in [0, 1]), `max_iterations` (refinements, >= 0), `patience` (>= 1), `min_delta` (>= 0) and `drafts`
    (first drafts made at once, >= 1) shape the default plan. `adaptive`: whether it weighs what each step is expected to
    gain, given how far grades can be trusted (see `Adaptive`); None: where graders ask a model, and so are noisy. It then
    ends when nothing gains `min_gain` for each of `gain_per` ("calls", "tokens", by the thousand, or "usd"); `priors` are
    what it believes at first: "shipped" (and None), "learned" (what earlier runs with this model and these graders taught,
    the shipped ones where none did), the path of a .json file, or `Priors`.
    `final_check`: where at the end it is not clear which of the two best is better, let the judge compare them, in both
    orders: two more calls. A `plan` replaces all of these. `budget` and `deadline` (seconds) bound it: at the end of either
    the best so far comes back, or with `strict_budget` an error. `editor`: free repairs before paid calls. `store` keeps the
    trace, `on_record` is told of every record, `on_step` of every step that begins. `temperature`, `max_tokens`, `seed` are
    for the model that writes. `timeout` (seconds) and `retries` are a call's, `max_in_flight` the run's. `cache` maps keys to
    replies (a dict will do). `prices` are USD per million (input, output) tokens by model name, where the known ones are
    missing or wrong. `trust`: "check" warns of a grader that no card shows to be better than chance (see `redraft validate`),
    "require" refuses it; `cards` is the folder of cards (None: the user's own).
    """

    target_score: float = 0.9
    max_iterations: int = 3
    patience: int = 2
    min_delta: float = 0.01
    drafts: int = 1
    adaptive: bool | None = None
    min_gain: float = 0.01
    gain_per: CostUnit = "calls"
    priors: Priors | str | Path | None = None
    final_check: bool = False
    plan: Plan | None = None
    budget: Budget | None = None
    deadline: float | None = None
    strict_budget: bool = False
    editor: bool | Editor = True
    store: Store | None = None
    on_record: Callable[[Record], object] | None = None
    on_step: Callable[[Step], object] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    timeout: float | None = 600.0
    retries: int = 3
    max_in_flight: int = 64
    cache: MutableMapping[str, Reply] | None = None
    prices: Mapping[str, tuple[float, float]] | None = None
    trust: str | None = None
    cards: str | Path | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Checked options from keyword arguments; an unknown one is a ConfigError that names its neighbours."""
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                raise ConfigError(checks.unknown_name_message("argument", name, known))
        return cls(**settings)

    def __post_init__(self) -> None:
        checks.whole_number("max_tokens", self.max_tokens, 1, optional=True)
        checks.whole_number("seed", self.seed, optional=True)
        checks.whole_number("retries", self.retries, 0)
        checks.whole_number("max_in_flight", self.max_in_flight, 1)
        checks.number("deadline", self.deadline, optional=True)
        checks.number("timeout", self.timeout, optional=True)
        if self.timeout == 0:
            raise ConfigError("timeout must be more than 0 seconds, or None for no limit, got 0")
        checks.number("temperature", self.temperature, optional=True)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise checks.invalid_argument("budget", "a Budget, such as Budget(calls=10)", self.budget)
        checks.number("min_gain", self.min_gain)
        checks.one_of("gain_per", self.gain_per, COST_UNITS)
        checks.flag("adaptive", self.adaptive, optional=True)
        checks.flag("final_check", self.final_check)
        checks.flag("strict_budget", self.strict_budget)
        object.__setattr__(self, "priors", _priors(self.priors))
        self._check_objects()
        if not any(self.trust is one or (isinstance(self.trust, str) and self.trust == one) for one in TRUST):
            raise checks.invalid_argument("trust", "'check', 'require' or None", self.trust)
        checks.instance("plan", self.plan, "a Plan")
        if self.plan is not None and not callable(self.plan):
            raise checks.invalid_argument("plan", "a Plan: a function from a trace to steps", self.plan)
        if self.plan is not None:
            replace(self, plan=None)
        self.make_plan(writes=True, noisy=True)  # checks the others that shape it

    def _check_objects(self) -> None:
        """Raises ConfigError for a price, or an object of the caller's, that a run could not use."""
        _prices(self.prices)
        for name, wanted, methods in HANDED_OVER:
            given = getattr(self, name)
            if name not in {"on_record", "on_step"}:  # whose class may be what is called
                checks.instance(name, given, wanted)
            fits = all(callable(getattr(given, method, None)) for method in methods)
            if not (fits or given is None or (name == "editor" and isinstance(given, bool))):
                raise checks.invalid_argument(name, wanted, given)
        if not (self.cards is None or isinstance(self.cards, str | Path)):
            raise checks.invalid_argument("cards", "the path of a folder or None", self.cards)

    @property
    def deadline_at(self) -> float | None:
        """The moment of the monotonic clock at which a run that begins now is to be over."""
        return None if self.deadline is None else monotonic() + self.deadline

    @property
    def stop_rule(self) -> StopRule:
        """When the default plan stops."""
        return target(self.target_score) | done() | patience(self.patience, self.min_delta) | max_iterations(self.max_iterations)

    def make_plan(self, *, writes: bool, noisy: bool, priors: Priors = SHIPPED) -> Plan:
        """The plan. Without a model that `writes` there is nothing to refine with, but what form allows is repaired.

        `noisy`: whether what graders say depends on chance; `priors`: what is believed before anything is seen. Raises
        ConfigError for a `final_check` where grades are taken at their word.
        """
        plan = self._default_plan(writes=writes, noisy=noisy, priors=priors) if self.plan is None else self.plan
        if self.final_check and not isinstance(plan, Adaptive):
            raise ConfigError(
                f"final_check is for grades that leave it open which answer is best; {self._no_tie_break_reason(writes=writes)}"
            )
        return plan

    def _no_tie_break_reason(self, *, writes: bool) -> str:
        """Why grades do not leave that open."""
        if self.plan is not None:
            return f"the plan given has no such step, got {self.plan!r}"
        if self.adaptive is False:
            return "adaptive=False takes them at their word"
        return "the graders ask no model for a score" if writes else "there is no model to write a second answer"

    def _default_plan(self, *, writes: bool, noisy: bool, priors: Priors) -> Plan:
        """The plan that follows from the settings."""
        rule = self.stop_rule if writes else target(self.target_score) | done() | repairs_only()
        rules = SelfRefine(rule, self.drafts, repairs=self.max_iterations > 0)
        if not writes or not (noisy if self.adaptive is None else self.adaptive):
            return rules
        fresh = self.temperature != 0  # the same words would come again
        return Adaptive(rules, self.min_gain, self.gain_per, self.max_iterations, fresh, priors)


def _priors(given: Any) -> Priors | str | None:
    """The priors that were given, those of a file read. Raises ConfigError."""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".json")):
        return read_priors(str(given))
    if given is None or isinstance(given, Priors):
        return given
    if isinstance(given, str) and given in {"shipped", "learned"}:
        return given
    raise checks.invalid_argument("priors", "'shipped', 'learned', Priors, the path of a .json file or None", given)


def _prices(given: Any) -> None:
    """Raises ConfigError for anything but a mapping of names to two amounts."""
    like = 'prices must be USD per million (input, output) tokens by model name, such as {"llama3.2": (0.1, 0.4)}'
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(f"{like}, got {checks.format_value(given)}")
    for name, price in given.items():
        if not (isinstance(price, tuple | list) and len(price) == 2 and all(checks.is_number(a) and a >= 0 for a in price)):
            raise ConfigError(f"{like}, got {checks.format_value(price)} for {checks.format_value(name)}")
