"""A session: what the refinements of a run share.

It is made of its `Options`, its `Models`, the panel of each task (`panel`), and what is known of a
judge and a model before the run: validation cards say how a judge's scores relate to people's
labels, and learned priors say what to expect of the model's texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..errors import StoreError
from ..loop.task import Task
from ..loop.trace import PanelGrader
from ..plans import Plan
from ..plans.quality.calibration import Calibration
from ..plans.quality.labelled_figures import UNLABELLED, LabelledFigures, labelled_figures
from ..plans.quality.lineage import llm_graders
from ..plans.quality.priors import Priors
from ..storage.secure_files import cards_folder
from .options import Options
from .panel import TaskPanel, as_list, assign_roles, default_judge_note, make_panel, without_tests
from .perform import Roles
from .reservations import StepStatistics

if TYPE_CHECKING:
    from ..storage.priors_store import PriorsKey
    from .models import Models

MAX_PANELS = 1000  # that are kept: every row of a data set may have its own requirements


@dataclass
class Session:
    """What the refinements of a run share: its settings, its models, what grades, and what is known
    of them.

    `graders` are those of the run (see `graders_of_run`). `statistics` and `callback_errors` are of
    all its refinements together.
    """

    options: Options
    models: Models
    graders: Any = None
    statistics: StepStatistics = field(default_factory=StepStatistics, init=False)
    # see `CallbackErrors`
    callback_errors: Counter[str] = field(default_factory=Counter, init=False)
    _panels: dict[tuple[bool, tuple[str, ...]], TaskPanel] = field(default_factory=dict, init=False)
    _knowledge: PriorKnowledge | None = field(default=None, init=False)

    def resolve_panel(self, requirements: tuple[str, ...], *, has_tests: bool = False) -> TaskPanel:
        """Return the panel and the roles of tasks with these requirements, and with tests or
        without. Raises ConfigError.
        """
        graders = self.graders if has_tests else without_tests(self.graders)
        key = graders is self.graders, requirements
        if key not in self._panels:
            if len(self._panels) >= MAX_PANELS:
                del self._panels[next(iter(self._panels))]
            self._panels[key] = make_panel(self.options, self.models, graders, requirements)
        return self._panels[key]

    def common_panel(self) -> TaskPanel:
        """Return the panel and the roles of a task with tests and without requirements; empty if
        only requirements grade.
        """
        has_judge = self.graders is None and self.models.has_any
        if self.graders in (None, []) and not has_judge and self.options.answer is None:
            return TaskPanel((), assign_roles(self.options, self.models, []))
        return self.resolve_panel((), has_tests=True)

    @property
    def default_judge_note(self) -> str:
        """That the default judge grades, and which model it asks; "" if something is named that
        grades.
        """
        judge = self.models.judging_client if self.graders is None else None
        return default_judge_note(judge.name) if judge else ""

    def grades(self, task: Task) -> bool:
        """Whether anything grades a task: what the run names, or what the task does."""
        if self.graders is None or self.options.answer is not None or task.requirements:
            return True
        return bool(as_list(self.graders if task.tests else without_tests(self.graders)))

    @property
    def knowledge(self) -> PriorKnowledge:
        """What is known of the model and the graders before the run. It holds for any task: the
        requirements of tasks do not count.
        """
        if self._knowledge is None or not self._knowledge.panel:
            panel = next(iter(self._panels.values()), None) or self.common_panel()
            self._knowledge = PriorKnowledge(self.options, *panel)
        return self._knowledge

    def plan_for(self, *, noisy: bool) -> Plan:
        """Return the plan of tasks whose scores are noisy, or exact (see `Options.make_plan`).
        Raises ConfigError.
        """
        known = self.knowledge
        return self.options.make_plan(
            writes=self.models.writer is not None,
            noisy=noisy,
            priors=known.priors,
            calibration=known.calibration.for_plan,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the models that were connected for this session."""
        await self.models.close()


class JudgeCalibration(NamedTuple):
    """What people's labels say about a grader on the panel; `calibration` is None without labels of
    single answers.

    `noise` is the standard deviation of repeated scores in its validation, and how many answers had
    them.
    """

    calibration: Calibration | None = None
    grader: str = ""
    noise: tuple[float, int] | None = None

    @property
    def for_plan(self) -> tuple[Calibration | None, str]:
        """The calibration and the name of its judge, as a plan takes them."""
        return self.calibration, self.grader if self.calibration else ""

    def figures(self, panel: Iterable[PanelGrader]) -> LabelledFigures:
        """Return what the labels say about the noise and the drift of the grader."""
        return labelled_figures(
            self.calibration, next((g for g in panel if g.name == self.grader), None), self.noise
        )


@dataclass
class PriorKnowledge:
    """What is known of the writer and the graders of a panel. Each part is looked up once; a file
    that cannot be read counts as missing.
    """

    options: Options
    panel: tuple[PanelGrader, ...]
    roles: Roles

    @cached_property
    def calibration(self) -> JudgeCalibration:
        """What people's labels say about the judge as it is now, by its validation card.

        It is empty if no judge that may score has such a card, or if several have one.
        """
        with suppress(StoreError, OSError):
            if cards_folder(self.options.cards_dir).is_dir():
                return self._calibration_by_cards()
        return JudgeCalibration()

    def _calibration_by_cards(self) -> JudgeCalibration:
        from ..graders.cards import CardStore  # most users have none

        store = CardStore.in_folder(self.options.cards_dir)
        measures = {
            judge.name: store.measures_of(self.roles.fingerprint(judge.name))
            for judge in scoring_graders(self.panel)
            if not judge.model_free
        }
        labelled = [name for name, found in measures.items() if found.calibration]
        names = labelled or [*measures]
        if len(names) != 1:
            return JudgeCalibration()
        found = measures[names[0]]
        has_figures = found.calibration or found.noise
        return JudgeCalibration(found.calibration, names[0] if has_figures else "", found.noise)

    @property
    def labelled_figures(self) -> LabelledFigures:
        """What people's labels say about the noise and the drift of the judge."""
        known = self.calibration
        return known.figures(self.panel) if known.grader else UNLABELLED

    @cached_property
    def priors(self) -> Priors:
        """The priors of the model and the graders: those that are given, else the learned or the
        shipped ones, with what labels say.
        """
        given = self.options.priors
        return (
            given
            if isinstance(given, Priors)
            else self.labelled_figures.applied_to(self._learned_priors())
        )

    def _learned_priors(self) -> Priors:
        """Return the priors learned from earlier runs, if they are asked for and there are any;
        else the shipped ones.
        """
        if self.options.priors == "learned" and llm_graders(self.panel):
            from ..storage.priors_store import PriorsStore  # most runs have the shipped priors

            with suppress(StoreError, OSError):
                store = PriorsStore.in_folder()
                if (
                    store.folder.is_dir()
                    and (key := self.priors_key)
                    and (stored := store.load(key))
                ):
                    return stored.priors
        return Priors()

    @property
    def priors_key(self) -> PriorsKey | None:
        """The key under which learned priors are stored: the writer and the graders that make the
        score.

        None if there is nothing to learn (no model writes, or none grades), or if a grader has no
        stable fingerprint.
        """
        writer = self.roles.writer
        if writer is None or not llm_graders(self.panel):
            return None
        scoring = scoring_graders(self.panel)
        total_weight = sum(grader.weight for grader in scoring)
        fingerprints, repeated = (
            [self.roles.fingerprint(grader.name) for grader in scoring] for _ in range(2)
        )
        if fingerprints != repeated:
            return None
        graders = [
            (g.name, g.weight / total_weight, digest)
            for g, digest in zip(scoring, fingerprints, strict=True)
        ]
        from ..storage.priors_store import PriorsKey  # most runs have the shipped priors

        return PriorsKey.from_graders(writer.name, writer.identity, graders)


def scoring_graders(panel: Iterable[PanelGrader]) -> list[PanelGrader]:
    """Return the graders that make the score of a task; if all are musts, those that call a
    model.
    """
    pointwise = [grader for grader in panel if not grader.compares]
    return [grader for grader in pointwise if not grader.must] or [
        grader for grader in pointwise if not grader.model_free
    ]
