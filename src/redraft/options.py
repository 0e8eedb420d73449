"""The settings of a refinement, checked, and the plan that they describe."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, Self, cast

from . import checks
from .answers import as_answer_form
from .core.stopping import StopRule, done, max_iterations, patience, repairs_only, target
from .documents import read_small_text
from .errors import ConfigError
from .graders.execution import CodeExecution
from .middleware import Budget
from .parameters import SAMPLING
from .plans import NoiseAwarePlan, Plan
from .plans.prompts import Prompts
from .plans.self_refine import SelfRefine
from .quality.calibration import Calibration
from .quality.priors import Priors
from .settings import OptionFields, Settings, check_settings

SHIPPED = Priors()
ROLE_ARGUMENTS = ("model", "graders", "judge")  # arguments beside the settings


# nothing prints or compares all of them
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Options(OptionFields):
    """The settings of a refinement, checked. Raises ConfigError naming the argument, the value and
    what is allowed.

    The fields and their meaning are declared in `redraft.settings`; docs/python.md has them as a
    table.
    """

    @classmethod
    def from_settings(cls, settings: Settings, answer: Any = None) -> Self:
        """Create options from keyword arguments. Raises ConfigError, for an unknown argument with
        the most similar names.
        """
        known = [*(f.name for f in fields(cls)), *ROLE_ARGUMENTS]
        for name in settings:
            if name not in known or name in ROLE_ARGUMENTS:
                raise ConfigError(checks.unknown_name_message("argument", name, known))
        return cls(answer=answer, **settings)

    def __post_init__(self) -> None:
        check_settings(OptionFields, self)
        object.__setattr__(self, "answer", as_answer_form(self.answer, self.answer_context))
        for name in SAMPLING:
            value, given = getattr(self, name), (self.model_params or {}).get(name)
            if None not in (value, given) and value != given:
                raise ConfigError(f"{name}={value} and {given} in `model_params`: give it once")
            object.__setattr__(self, name, given if value is None else value)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise checks.invalid_argument(
                "budget", "a Budget, such as Budget(calls=10)", self.budget
            )
        object.__setattr__(self, "priors", _load_priors(self.priors))
        for name in ("draft_prompt", "refine_prompt"):
            object.__setattr__(self, name, load_template(name, getattr(self, name)))
            if self.plan is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} cannot be combined with plan: give it to the plan, as in "
                    f"SelfRefine({name}=...)"
                )
        if self.plan is not None:
            replace(self, plan=None)  # the settings that the plan replaces must be valid, too
        # raises if these need another
        self.make_plan(writes=True, noisy=bool(self.tie_break or self.width or self.unseen_last))
        self.execution  # noqa: B018  (raises)

    @property
    def execution(self) -> CodeExecution:
        """How graders run code. Raises ConfigError."""
        return CodeExecution(self.sandbox, tuple(self.packages), self.trust_in_process)

    @property
    def deadline_at(self) -> float | None:
        """The time when a run that begins now must end, on the monotonic clock."""
        return None if self.deadline is None else monotonic() + self.deadline

    @cached_property
    def prompts(self) -> Prompts:
        """The prompts of the default plan."""
        return Prompts(cast("Any", self.draft_prompt), cast("Any", self.refine_prompt))

    @property
    def stop_rule(self) -> StopRule:
        """The stop rule of the default plan."""
        together = self.width or 1  # refinements of a round
        return (
            target(self.target_score)
            | done()
            | patience(self.patience * together, self.min_delta)
            | max_iterations(self.max_iterations * together)
        )

    def make_plan(
        self,
        *,
        writes: bool,
        noisy: bool,
        priors: Priors = SHIPPED,
        calibration: tuple[Calibration | None, str] = (None, ""),
    ) -> Plan:
        """Return the plan of a run. Without a model that `writes`, it only repairs the form of the
        answer.

        `noisy`: whether scores are noisy; `priors`: the initial expectations of the noise-aware
        plan; `calibration`: what people's labels say about the grader of this name. Raises
        ConfigError for `tie_break`, `width` and `unseen_last` if the plan is not noise-aware.
        """
        plan = (
            self._default_plan(writes=writes, noisy=noisy, priors=priors)
            if self.plan is None
            else self.plan
        )
        if self.plan is None and isinstance(plan, NoiseAwarePlan):
            plan = plan.with_calibration(*calibration)
        needing = {
            "tie_break": self.tie_break,
            "width": self.width,
            "unseen_last": self.unseen_last,
        }
        for name in (
            name
            for name, value in needing.items()
            if value and not isinstance(plan, NoiseAwarePlan)
        ):
            raise ConfigError(
                f"{name} needs the noise-aware plan; {self._why_exact(name, writes=writes)}"
            )
        return plan

    def _why_exact(self, name: str, *, writes: bool) -> str:
        """Explain why the plan is not noise-aware, and what to do to use the setting of this
        name.
        """
        if self.plan is not None:
            return f"it cannot be combined with plan={self.plan!r}"
        if self.noise_aware is False:
            return "it cannot be combined with noise_aware=False"
        if not writes:
            return "there is no model to write a second answer"
        if name == "unseen_last":
            return "the graders ask no model for a score, so every text is graded: leave it out"
        return "the graders ask no model for a score: set noise_aware=True"

    def _default_plan(self, *, writes: bool, noisy: bool, priors: Priors) -> Plan:
        """Return the plan that the settings describe."""
        rule = self.stop_rule if writes else target(self.target_score) | done() | repairs_only()
        own, repairs = self.prompts, self.max_iterations > 0
        drafts = max(self.drafts, self.width or 1)
        rules = SelfRefine(rule, drafts, repairs, draft_prompt=own.draft, refine_prompt=own.refine)
        if not writes or not (noisy if self.noise_aware is None else self.noise_aware):
            return rules
        # with the whole measurement model, which exact scores do not need
        from .plans.adaptive import Adaptive

        fresh = self.temperature != 0  # at temperature 0 a new draft would repeat the last one
        attempts, price = self.max_iterations * (self.width or 1), self.min_expected_gain
        plan = Adaptive(
            rules, price, self.cost_unit, attempts, fresh, priors, self.width, self.unseen_last
        )
        return replace(plan, confidence=self.confidence)


def load_template(name: str, given: Any) -> Any:
    """Return a template read from the file that a Path names, and any other prompt as it is. Raises
    ConfigError.
    """
    if not isinstance(given, Path):
        return given
    try:
        return read_small_text(given)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name}: {str(given)!r} cannot be read: {checks.read_error_message(error)}"
        ) from error


def _load_priors(given: Any) -> Priors | str | None:
    """Return the given priors, loaded from a file if a path is given. Raises ConfigError."""
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".json")):
        from .storage.priors_store import read_priors  # most runs have the shipped priors

        return read_priors(str(given))
    if given is None or isinstance(given, Priors):
        return given
    if isinstance(given, str) and given in {"shipped", "learned"}:
        return given
    raise checks.invalid_argument(
        "priors", "'shipped', 'learned', Priors, the path of a .json file or None", given
    )
