"""The settings of a refinement, checked, the plan that they describe, and what a trace records of
it, so that the work can be continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, Self, cast

from ..answers import as_answer_form
from ..base import checks
from ..base.documents import read_small_text
from ..base.parameters import SAMPLING
from ..errors import ConfigError
from ..graders.execution import CodeExecution
from ..graders.fingerprint import grader_fingerprint
from ..loop.records import Outcome
from ..loop.steps import Stop
from ..loop.stopping import (
    DEFAULT_ITERATIONS,
    DEFAULT_PATIENCE,
    done,
    max_iterations,
    patience,
    repairs_only,
    target,
)
from ..loop.trace import Trace
from ..middleware import Budget
from ..plans import NoiseAwarePlan, Plan, plan_traits
from ..plans.prompts import DraftPrompt, Prompts, RefinePrompt
from ..plans.quality.calibration import Calibration
from ..plans.quality.priors import Priors
from ..plans.self_refine import SelfRefine
from ..settings import (
    OptionFields,
    PlanSettings,
    Settings,
    check_known,
    check_settings,
)

SHIPPED = Priors()
# of what people's labels say about the judge, in the settings of a trace
CALIBRATION_KEY = "calibration"
PROMPT_KEYS = ("draft-prompt", "refine-prompt")  # of own prompts in the settings of a trace
# of all that is recorded of a plan
PLAN_KEYS = frozenset({"priors", CALIBRATION_KEY, *PROMPT_KEYS})
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
        check_known(settings, [f.name for f in fields(cls)], ROLE_ARGUMENTS)
        return cls(answer=answer, **settings)

    def __post_init__(self) -> None:
        check_settings(OptionFields, self)
        if self.plan is not None:
            self._check_beside_plan()
        for name, value in self._resolved_values().items():
            object.__setattr__(self, name, value)
        self.make_plan(writes=True, noisy=False)  # raises for invalid prompts
        self.code_execution()  # raises for an unknown sandbox, or a package that is not here

    def _resolved_values(self) -> dict[str, Any]:
        """Return the settings that stand for something else, such as the name of a file, as what
        they stand for. Raises ConfigError.
        """
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise checks.invalid_argument(
                "budget", "a Budget, such as Budget(calls=10)", self.budget
            )
        return {
            "answer": as_answer_form(self.answer, self.answer_context),
            **{name: self._sampling_parameter(name) for name in SAMPLING},
            "priors": _load_priors(self.priors),
            "draft_prompt": load_template("draft_prompt", self.draft_prompt),
            "refine_prompt": load_template("refine_prompt", self.refine_prompt),
        }

    def _sampling_parameter(self, name: str) -> Any:
        """Return a parameter that is a setting, or one of `model_params`. Raises ConfigError for
        two values.
        """
        value, given = getattr(self, name), (self.model_params or {}).get(name)
        if None not in (value, given) and value != given:
            raise ConfigError(f"{name}={value} and {given} in `model_params`: give it once")
        return given if value is None else value

    def _check_beside_plan(self) -> None:
        """Raise ConfigError for prompts beside a plan, and for an invalid setting that it
        replaces.
        """
        prompts = {"draft_prompt": self.draft_prompt, "refine_prompt": self.refine_prompt}
        for name, prompt in prompts.items():
            if prompt is not None:
                raise ConfigError(
                    f"{name} cannot be combined with plan: give it to the plan, as in "
                    f"SelfRefine({name}=...)"
                )
        replace(self, plan=None)

    def code_execution(self) -> CodeExecution:
        """Return how graders run code. Raises ConfigError."""
        return CodeExecution(self.sandbox, tuple(self.packages), self.trust_in_process)

    @property
    def deadline_at(self) -> float | None:
        """The time when a run that begins now must end, on the monotonic clock."""
        return None if self.deadline is None else monotonic() + self.deadline

    @property
    def plan_prompts(self) -> Prompts | None:
        """The prompts of the plan; None for a plan of the user whose prompts are not known."""
        return self.prompts if self.plan is None else plan_traits(self.plan).prompts

    @cached_property
    def prompts(self) -> Prompts:
        """The prompts of the default plan."""
        return Prompts(cast("Any", self.draft_prompt), cast("Any", self.refine_prompt))

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
        ConfigError for invalid prompts.
        """
        if self.plan is not None:
            return self.plan
        noisy = noisy if self.noise_aware is None else self.noise_aware
        new_drafts = self.temperature != 0  # at 0 a new draft would repeat the last one
        priors_or_none = priors if writes and noisy else None
        plan = default_plan(self, priors_or_none, writes=writes, new_drafts=new_drafts)
        noise_aware = plan_traits(plan).noise_aware
        return noise_aware.with_calibration(*calibration) if noise_aware else plan


def default_plan(
    settings: PlanSettings, priors: Priors | None, *, writes: bool, new_drafts: bool
) -> Plan:
    """Return the plan that settings describe. It treats scores as noisy, given `priors`, or as
    exact, given None.

    `writes`: whether there is a model that writes; `new_drafts`: whether it may write drafts after
    the first ones. Raises ConfigError for invalid prompts.
    """
    iterations, stale_rounds = settings.max_iterations, settings.patience
    rule = target(settings.target_score) | done()
    limits = max_iterations(DEFAULT_ITERATIONS if iterations is None else iterations)
    if stale_rounds is None:
        limits = patience(DEFAULT_PATIENCE, settings.min_delta) | limits
    else:
        rule |= patience(stale_rounds, settings.min_delta)
    rules = SelfRefine(
        rule,
        drafts=settings.drafts,
        repairs=iterations != 0,
        draft_prompt=cast("Any", settings.draft_prompt),
        refine_prompt=cast("Any", settings.refine_prompt),
    )
    if priors is None:
        return replace(rules, stop=rule | (limits if writes else repairs_only()))
    # with the whole measurement model, which exact scores do not need
    from ..plans.adaptive import Adaptive

    price = settings.min_expected_gain
    return Adaptive(
        rules,
        exact_stop=limits,
        min_expected_gain=Adaptive.min_expected_gain if price is None else price,
        price_rises=price is None,
        cost_unit=settings.cost_unit,
        max_attempts=Adaptive.max_attempts if iterations is None else iterations,
        allow_new_drafts=new_drafts,
        priors=priors,
        confidence=settings.confidence,
    )


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
        from ..storage.priors_store import read_priors  # most runs have the shipped priors

        return read_priors(str(given))
    if given is None or isinstance(given, Priors):
        return given
    if isinstance(given, str) and given in {"shipped", "learned"}:
        return given
    raise checks.invalid_argument(
        "priors", "'shipped', 'learned', Priors, the path of a .json file or None", given
    )


def plan_settings(plan: Plan) -> dict[str, Any]:
    """Return what a trace records of a plan: its own prompts, its priors, if they are not the
    shipped ones, and its calibration.
    """
    settings: dict[str, Any] = {}
    traits = plan_traits(plan)
    if (prompts := traits.prompts) and (prompts.draft or prompts.refine):
        own = zip(PROMPT_KEYS, (prompts.draft, prompts.refine), strict=True)
        settings |= {key: prompt_data(prompt) for key, prompt in own if prompt}
    if noise_aware := traits.noise_aware:
        if noise_aware.priors != SHIPPED:
            settings["priors"] = noise_aware.priors.to_dict()
        if noise_aware.calibration:
            settings[CALIBRATION_KEY] = noise_aware.calibration.to_data()
    return settings


def prompt_data(prompt: DraftPrompt | RefinePrompt) -> dict[str, str]:
    """Return a prompt as plain data: a template as it is, a function by its name and a hash of its
    source.
    """
    if isinstance(prompt, str):
        return {"template": prompt}
    name = getattr(prompt, "__qualname__", type(prompt).__qualname__)
    return {"function": str(name), "fingerprint": grader_fingerprint(prompt, lambda _: None)}


def with_plan_settings(trace: Trace, settings: Mapping[str, Any]) -> Trace:
    """Record a plan (see `plan_settings`) in the settings of a trace, in place of what they had of
    one.
    """
    kept = {name: value for name, value in trace.settings.items() if name not in PLAN_KEYS}
    recorded = {**kept, **settings} if kept else settings
    return trace if recorded == trace.settings else replace(trace, settings=recorded)


def reopen_if_needed(trace: Trace, plan: Plan) -> Trace:
    """Return a finished trace unchanged if the plan would end it again for the same reason, else
    without its outcome.
    """
    if trace.outcome is None:
        return trace
    reasons = [
        step.reason for step in plan(without_outcome(trace).for_new_run()) if isinstance(step, Stop)
    ]
    return trace if reasons == [trace.outcome.reason] else without_outcome(trace)


def without_outcome(trace: Trace) -> Trace:
    """Return a trace without its outcome."""
    return replace(trace, records=tuple(r for r in trace.records if not isinstance(r, Outcome)))


def with_original_settings(trace: Trace, plan: Plan, options: Options) -> Plan:
    """Return the plan with the original priors and calibration if those reproduce the stored
    outcome and the present ones do not.

    Priors that were learned, and labels that were given, in the meantime must not cause more calls;
    priors that the user gives may.
    """
    present = plan_traits(plan).noise_aware
    if (
        trace.outcome is None
        or present is None
        or options.plan is not None
        or reproduces(present, trace)
    ):
        return plan
    original = present
    if present.calibration or trace.outcome.labels:
        original = with_recorded_settings(trace, present, options)
    elif options.priors == "learned":
        original = present.with_priors(Priors())
    return original if original is not present and reproduces(original, trace) else plan


def with_recorded_settings(trace: Trace, plan: NoiseAwarePlan, options: Options) -> NoiseAwarePlan:
    """Return the plan with the calibration that the trace recorded, and with its priors unless the
    user gave some.
    """
    calibration, priors = None, plan.priors
    with suppress(ConfigError, TypeError):
        if CALIBRATION_KEY in trace.settings:
            calibration = Calibration.from_data(trace.settings[CALIBRATION_KEY])
        if not isinstance(options.priors, Priors):
            priors = Priors.from_dict(trace.settings.get("priors", {}))
    return plan.with_priors(priors).with_calibration(calibration)


def reproduces(plan: NoiseAwarePlan, trace: Trace) -> bool:
    """Whether the plan reproduces the trace's stored outcome."""
    end = trace.outcome
    return (
        end is not None
        and plan.outcome_if_stopped(without_outcome(trace).for_new_run(), end.reason, end.note)
        == end
    )
