"""`calibrate` and `calibrate_sync`: learn priors from a stated number of calls on tasks of one's
own.

Each task is drafted, graded twice, refined once and graded again, whatever the scores are: the two
grades of the draft show the noise of the judge, and the refinement shows the lift. What is learned
from that is fitted as in a batch (`redraft.plans.quality.fit`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, Unpack, cast

from ..base import checks
from ..base.sync import async_to_sync
from ..base.text import pluralize
from ..errors import ConfigError, RedraftError
from ..loop.steps import Step
from ..loop.stopping import max_iterations
from ..loop.trace import Trace
from ..middleware import Budget
from ..plans.quality.diagnosis import scores_to_show
from ..plans.quality.fit import PriorsFit, fit_with_errors, lift
from ..plans.quality.labelled_figures import UNLABELLED, LabelledFigures
from ..plans.quality.likelihood import Z_95
from ..plans.quality.lineage import llm_graders, observe
from ..plans.quality.priors import Priors
from ..plans.regrading import second_looks
from ..plans.self_refine import SelfRefine
from ..session.api import as_tasks, refine_many
from ..session.options import Options
from ..session.refinement import TaskInput, open_session, resolve_model
from ..session.session import Session
from ..settings import CalibrationSettings, Settings, check_names
from ..storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from ..usage import NO_USAGE, Usage
from .preview import calls_by_grader, calls_per_task

SHIPPED = Priors()
MIN_TASKS = 8  # priors of fewer tasks are not saved
RELEVANT_DIFFERENCE = 0.1  # the example in what is said of the noise


@dataclass(frozen=True)
class CalibrationPlan:
    """A plan: draft, grade the draft twice, refine it once, and grade that. Judges that repeat
    their grades anyway give no more.
    """

    rules: SelfRefine = field(default_factory=lambda: SelfRefine(max_iterations(1)))

    def __call__(self, trace: Trace) -> Sequence[Step]:
        return (
            self.rules.missing_steps(trace)
            or (needs_second_looks(trace) and second_looks(trace))
            or self.rules(trace)
        )


def needs_second_looks(trace: Trace) -> bool:
    """Whether no judge grades an answer more than once anyway."""
    return all(judge.repeats == 1 for judge, _ in llm_graders(trace.scorers))


@dataclass(frozen=True, slots=True)
class LearnedValue:
    """What the calls showed, with its standard error (None: they showed nothing), the shipped
    value, and the one in the priors.

    The priors move only part of the way from the shipped value to what was shown, by how large the
    error is.
    """

    value: float
    error: float | None
    shipped: float
    used: float

    @classmethod
    def of(cls, shown: float | None, error: float | None, shipped: float, used: float) -> Self:
        """Return a value that was shown, or the one used if none was."""
        return cls(
            used if shown is None else shown, None if shown is None else error, shipped, used
        )

    def __str__(self) -> str:
        error = "" if self.error is None else f" +- {self.error:.2f}"
        used = "" if f"{self.used:.2f}" == f"{self.value:.2f}" else f"used: {self.used:.2f}, "
        return f"{self.value:.2f}{error} ({used}shipped {self.shipped:.2f})"

    @property
    def sign(self) -> int:
        """1 or -1 if the value is above or below 0 with 95% confidence, else 0."""
        return (
            0
            if self.error is None or abs(self.value) <= Z_95 * self.error
            else (1 if self.value > 0 else -1)
        )


@dataclass(frozen=True)
class LearnedPriors:
    """What `calibrate` learned.

    Attributes:
        priors: The fitted priors, for the setting `priors`.
        noise: Standard deviation of the noise of one score, in points of the score.
        level: Mean quality of first drafts, from 0 to 1.
        lift: By how much a refinement raises the quality of a first draft on average, in points of
            the score.
        tasks: Number of tasks with scores.
        usage: What it took.
        drift: How much kinder the judge is to a refinement, if people's labels show it (see
            `redraft.validation`), else None.
        is_exact: Whether no judge gives scores, so that they have no noise.
        key: The model with its graders, under which `save` stores the priors; None if they cannot
            be told from others.
    """

    priors: Priors
    noise: LearnedValue
    level: LearnedValue
    lift: LearnedValue
    tasks: int
    usage: Usage = NO_USAGE
    key: PriorsKey | None = None
    drift: LearnedValue | None = None
    is_exact: bool = False

    @classmethod
    def from_fit(
        cls,
        fit: PriorsFit,
        tasks: int,
        usage: Usage = NO_USAGE,
        key: PriorsKey | None = None,
        known: LabelledFigures = UNLABELLED,
        *,
        noisy: bool = True,
    ) -> LearnedPriors:
        """Return what a fit that started from the shipped priors, and from what people's labels
        show, has learned.

        `noisy`: whether a judge gives scores.
        """
        noise, drift, used = fit.priors.noise_sd, known.drift, fit.priors
        return cls(
            used,
            LearnedValue(noise, fit.noise_error, SHIPPED.noise_sd, noise),
            LearnedValue.of(fit.level, fit.level_error, SHIPPED.draft_mean, used.draft_mean),
            LearnedValue.of(fit.lift, fit.lift_error, lift(SHIPPED), lift(used)),
            tasks,
            usage,
            key,
            None
            if drift is None
            else LearnedValue(drift, known.drift_error, SHIPPED.bias_drift, used.bias_drift),
            is_exact=not noisy,
        )

    @property
    def verdict(self) -> str:
        """Whether refining "helps" or "hurts" with 95% confidence, or is "unclear"."""
        return ("unclear", "helps", "hurts")[self.lift.sign]

    def summary(self) -> list[str]:
        """Return lines for people: each value with its error, and what it means."""
        return [
            f"learned from {pluralize(self.tasks, 'task')}, {pluralize(self.usage.calls, 'call')}",
            f"noise {self.noise}: {self._noise_meaning()}",
            f"level {self.level}: the mean quality of first drafts",
            f"lift {self.lift}: what a refinement adds to a first draft; {self._lift_meaning()}",
            *(
                [f"drift {self.drift}: what the judge adds to a refinement, by people's labels"]
                if self.drift
                else []
            ),
        ]

    def _noise_meaning(self) -> str:
        if self.is_exact:
            return (
                "no judge gives scores, so they have none; the priors apply with noise_aware=True"
            )
        if self.noise.error is None:
            return "no text was scored twice, so nothing was learned"
        needed = scores_to_show(RELEVANT_DIFFERENCE, self.noise.value)
        scores = "one score each shows" if needed <= 1 else f"about {needed} scores of each show"
        return f"{scores} a difference of {RELEVANT_DIFFERENCE:g} between two texts"

    def _lift_meaning(self) -> str:
        if self.verdict == "unclear":
            return "unclear whether refining helps: more calls would tell"
        return f"refining {self.verdict}"

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        values = {
            name: getattr(self, name)
            for name in ("noise", "level", "lift", "drift")
            if getattr(self, name)
        }
        estimates = {
            name: {"value": e.value, "error": e.error, "shipped": e.shipped, "used": e.used}
            for name, e in values.items()
        }
        key = self.key.as_data() if self.key else None
        return {
            "priors": self.priors.to_dict(),
            **estimates,
            "refining": self.verdict,
            "tasks": self.tasks,
            **self.usage.totals,
            "for": key,
        }

    def save(self, folder: str | Path | None = None) -> StoredPriors:
        """Save the priors for runs with `priors="learned"`, unless priors of more tasks are saved;
        return those saved now.

        Args:
            folder: The folder of saved priors; None means that in your data folder.

        Raises:
            ConfigError: There are fewer than 8 tasks, or a grader cannot be told from others.
            StoreError: The file cannot be written.
        """
        if self.tasks < MIN_TASKS:
            raise ConfigError(
                f"priors of {pluralize(self.tasks, 'task')} are not saved: at least {MIN_TASKS} "
                "are needed; raise calls"
            )
        if self.key is None:
            raise ConfigError(
                "the priors cannot be saved: no judge scores, or a grader has no stable fingerprint"
            )
        stored = StoredPriors.create(
            self.key, self.priors, f"calibration with {pluralize(self.tasks, 'task')}"
        )
        return PriorsStore.in_folder(folder).save_if_more_tasks(stored)


async def calibrate(
    tasks: Iterable[TaskInput],
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    calls: int = 100,
    say: Callable[[str], object] | None = None,
    **settings: Unpack[CalibrationSettings],
) -> LearnedPriors:
    """Learn priors for a model and its graders from tasks of your own, with at most so many calls.

    Each task is drafted, graded twice, refined once, and graded again: five calls with one judge.
    Tasks are chosen evenly from those given. Nothing is saved: pass the result's `priors` to
    `refine` or `batch`, or call its `save`.

    Args:
        tasks: The tasks, each as in `refine`; 20 are enough for 100 calls.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        calls: Maximum number of calls, retries included.
        say: Called with a line that states what will be spent, before the first call.
        **settings: `budget` (a further limit), `deadline`, `temperature`, `max_tokens`, `seed`,
            `timeout`, `retries`, `max_in_flight`, `cache`, `prices` and the settings of graders
            that run code, as in `refine`.

    Returns:
        The priors, and the noise of the judge, the level of drafts and the lift of a refinement
        with their standard errors.

    Raises:
        ConfigError: An argument is wrong, or `calls` is not enough for one task. Raised before any
            call.
        RedraftError: No task could be graded; the error of the first one.
    """
    options = _checked_options(settings, calls, say)
    inputs, writer = as_tasks(tasks), await resolve_model(model) or False
    async with await open_session(inputs, writer, graders, judge, options) as session:
        per_task, key, known = (
            calls_for_one_task(session),
            session.knowledge.priors_key,
            session.knowledge.labelled_figures,
        )
        note = session.default_judge_note
    chosen = evenly_chosen(inputs, calls // per_task)
    if not chosen:
        raise ConfigError(
            "tasks: there is none"
            if not inputs
            else f"calls must be at least {per_task}, which one task takes, got {calls}"
        )
    if say:
        if note:
            say(note)
        count = f"{len(chosen):,} of {pluralize(len(inputs), 'task')}"
        say(
            f"calibrating: {count}, {pluralize(per_task, 'call')} each: at most "
            f"{pluralize(len(chosen) * per_task, 'call')}"
        )
    limits: Any = {
        **settings,
        "budget": replace(options.budget or Budget(), calls=limit_of(options.budget, calls)),
    }
    results = await refine_many(
        chosen, writer, session.graders, judge, plan=CalibrationPlan(), **limits
    )
    observations = [each for result in results if (each := observe(result.trace)).scores]
    if not observations:
        raise next(
            (result.error for result in results if result.error),
            RedraftError("no answer was graded"),
        )
    usage = sum((result.trace.usage for result in results), NO_USAGE)
    fit = await asyncio.to_thread(fit_with_errors, observations, SHIPPED, known)
    noisy = any(each.shape.repeat_noise_weight for each in observations)
    return LearnedPriors.from_fit(fit, len(observations), usage, key, known, noisy=noisy)


calibrate_sync = async_to_sync(calibrate)
"""Call `calibrate` without await. It also works where an event loop is running."""


def _checked_options(settings: Mapping[str, Any], calls: Any, say: Any) -> Options:
    """Return the settings as options. Raises ConfigError."""
    checks.whole_number("calls", calls, 1)
    if not (say is None or callable(say)):
        raise checks.invalid_argument("say", "a function of a text, or None", say)
    check_names("calibrate", settings, ("calls", "say"))
    return Options.from_settings(cast("Settings", dict(settings)))


def calls_for_one_task(session: Session) -> int:
    """Return the calls for one task: two texts with their grades, and the second grades of the
    first one.
    """
    panel, roles = session.common_panel()
    calls = calls_by_grader(session)
    per_text = 1 + sum(calls[grader.name] for grader in panel if not grader.compares)
    judges = [judge for judge, _ in llm_graders(panel)]
    is_repeated = any(judge.repeats > 1 for judge in judges)
    looks = 0 if is_repeated else sum(calls[judge.name] for judge in judges)
    return 2 * per_text + looks + sum(map(calls_per_task, roles.traits.values()))


def evenly_chosen(tasks: Sequence[TaskInput], most: int) -> list[TaskInput]:
    """Return at most so many tasks, evenly chosen, in their order."""
    count = min(most, len(tasks))
    return [tasks[i * len(tasks) // count] for i in range(count)]


def limit_of(budget: Budget | None, calls: int) -> int:
    """Return the lower of two limits on calls."""
    return calls if budget is None or budget.calls is None else min(calls, budget.calls)
