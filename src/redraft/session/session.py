"""A session: the models, graders and middleware that the refinements of a run share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..answers import AnswerForm, AnswerGrader
from ..answers.editor import FormEditor
from ..base import checks
from ..base.bounded_cache import BoundedCache
from ..base.parameters import merge_parameters, without_sampling
from ..errors import ConfigError, StoreError
from ..graders import GraderSpec, RequirementGrader, as_grader, must
from ..graders.base import as_grader_spec, unique_name
from ..graders.execution import CodeExecution
from ..graders.fingerprint import grader_fingerprint
from ..graders.traits import GraderTraits, check_forms, check_task, traits_of
from ..loop.task import Task
from ..loop.trace import Panel, PanelGrader
from ..middleware import BudgetTracker, EndpointCapabilities
from ..models import connect
from ..models.registry import alternative_models
from ..plans import Plan
from ..plans.quality.calibration import Calibration
from ..plans.quality.labelled_figures import UNLABELLED, LabelledFigures, labelled_figures
from ..plans.quality.lineage import llm_graders
from ..plans.quality.priors import Priors
from ..protocols import Call, Grader, Model
from ..storage.secure_files import cards_folder
from .clients import LimitCalls, SessionClients
from .options import Options
from .perform import ModelClient, Roles, Sampling
from .reservations import StepStatistics

if TYPE_CHECKING:
    from ..storage.priors_store import PriorsKey
    from ..tables.columns import TaskColumns

TESTS = "tests"  # the name of the grader that runs tests
PYTHON_CODE = "python code"  # the name of the form of answer that it grades
NOTHING_GRADES = (
    "nothing grades this task: no grader, judge, requirement, test or form of the answer is named "
    "for it"
)
NO_JUDGE_MODEL = (
    "there is no model, and without one only requirements or functions can grade: give some, or a "
    "model"
)
MAX_CACHED_SETUPS = 1000  # every row of a data set may have its own requirements


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


class Member(NamedTuple):
    """A grader of a panel: what plans see of it, and all that it says of itself."""

    on_panel: PanelGrader
    traits: GraderTraits

    @property
    def name(self) -> str:
        """The name on the panel, which no other grader there has."""
        return self.on_panel.name


class TaskSetup(NamedTuple):
    """What tasks with the same requirements share in a session.

    `is_noisy`: a model takes part in the score. `checks` raise ConfigError for a task that cannot
    be graded.
    """

    panel: tuple[PanelGrader, ...]
    roles: Roles
    is_noisy: bool
    checks: tuple[Callable[[Task], None], ...]


@dataclass
class Session:
    """Owns what all calls of a run share: its graders and plans, and in `clients` the budget, the
    limit and the connected models.

    `writer` is the model that writes (None: there is none), `judge` the one that graders use (None:
    the writer). A list of models as `writer` is tried in order (see `failover`); the first one is
    the judge if there is no other. `limit_calls` replaces the concurrency limit around the calls of
    a model. `connect` returns the model that a user names; `watch` wraps the complete call.
    """

    options: Options
    writer: Any = None
    graders: Any = None
    judge: Any = None
    limit_calls: LimitCalls | None = None
    connect: Callable[[Any], Model] = field(default=connect, kw_only=True)
    watch: Callable[[Call], Call] | None = field(default=None, kw_only=True)
    clients: SessionClients = field(init=False)
    has_limits: bool = field(init=False)  # whether the budget limits anything
    setup_cache: dict[tuple[bool, tuple[str, ...]], TaskSetup] = field(
        default_factory=dict, init=False
    )
    plan_cache: dict[tuple[bool, bool], Plan] = field(default_factory=dict, init=False)
    cached_priors: Priors | None = field(default=None, init=False)
    cached_calibration: JudgeCalibration | None = field(default=None, init=False)
    statistics: StepStatistics = field(default_factory=StepStatistics, init=False)
    # see `CallbackErrors`
    callback_errors: Counter[str] = field(default_factory=Counter, init=False)
    _fingerprints: BoundedCache[int, tuple[Any, str]] = field(
        default_factory=lambda: BoundedCache(MAX_CACHED_SETUPS), init=False
    )

    def __post_init__(self) -> None:
        self.clients = SessionClients(self.options, self.connect, self.limit_calls, self.watch)
        self.has_limits = bool(self.options.budget and self.options.budget.limits)

    @property
    def budget_tracker(self) -> BudgetTracker:
        """The account of the budget, which the calls of all clients share."""
        return self.clients.budget_tracker

    @property
    def capabilities(self) -> EndpointCapabilities:
        """What is known of the models, which all clients share."""
        return self.clients.capabilities

    @property
    def judge_params(self) -> Mapping[str, Any]:
        """The parameters of the judge's calls: if the model that writes judges, its own are beneath
        them.
        """
        own = self.options.judge_params or {}
        return (
            own
            if self.judge is not None
            else merge_parameters(without_sampling(self.options.model_params or {}), own)
        )

    def setup(self, requirements: tuple[str, ...], *, has_tests: bool = False) -> TaskSetup:
        """Return what tasks with these requirements, and with tests or without, share; it is
        cached. Raises ConfigError.
        """
        key = has_tests and self._has_tests_of_tasks, requirements
        if (setup := self.setup_cache.get(key)) is None:
            setup = self._make_setup(requirements, has_tests=has_tests)
            while len(self.setup_cache) >= MAX_CACHED_SETUPS:
                del self.setup_cache[next(iter(self.setup_cache))]
            self.setup_cache[key] = setup
        return setup

    def _make_setup(self, requirements: tuple[str, ...], *, has_tests: bool) -> TaskSetup:
        has_model = self.writer is not None or self.judge is not None
        graders = self.graders
        if self._has_tests_of_tasks and not has_tests:
            graders = [grader for grader in graders if not isinstance(grader, TestsOfTask)]
        members = resolve_graders(
            requirements,
            graders,
            has_model=has_model,
            answer=self.options.answer,
            execution=self.options.code_execution(),
        )
        for member in members:
            check_forms(member.traits, self.options.answer)
        members += tie_break_grader(members) if self.options.tie_break else []
        roles = assign_roles(self, members)
        panel = tuple(
            on_panel if roles.editor else replace(on_panel, editable=False)
            for on_panel, _ in members
        )
        checks = tuple(partial(check_task, member.traits) for member in members)
        return TaskSetup(
            Panel(self._check_trust(panel, roles)), roles, bool(llm_graders(panel)), checks
        )

    @property
    def _has_tests_of_tasks(self) -> bool:
        return isinstance(self.graders, list) and any(
            isinstance(grader, TestsOfTask) for grader in self.graders
        )

    def grades(self, task: Task) -> bool:
        """Whether anything grades a task: what the run names, or what the task does."""
        if self.graders is None or self.options.answer is not None or task.requirements:
            return True
        return any(
            task.tests or not isinstance(grader, TestsOfTask) for grader in _as_list(self.graders)
        )

    def resolve_panel(
        self, requirements: tuple[str, ...], *, has_tests: bool = False
    ) -> tuple[tuple[PanelGrader, ...], Roles]:
        """Return the panel and the roles for tasks with these requirements (see `setup`). Raises
        ConfigError.
        """
        setup = self.setup(requirements, has_tests=has_tests)
        return setup.panel, setup.roles

    def common_panel(self) -> tuple[tuple[PanelGrader, ...], Roles]:
        """Return the panel and the roles of a task with tests and without requirements; empty if
        only requirements grade.
        """
        has_judge = self.graders is None and (self.writer is not None or self.judge is not None)
        if self.graders in (None, []) and not has_judge and self.options.answer is None:
            return (), assign_roles(self, [])
        return self.resolve_panel((), has_tests=True)

    def plan_for(self, *, writes: bool, noisy: bool) -> Plan:
        """Return the plan of tasks in this session (see `Options.make_plan`); it is cached. Raises
        ConfigError.
        """
        key = writes, noisy
        if key not in self.plan_cache:
            calibration = self.calibration.for_plan
            self.plan_cache[key] = self.options.make_plan(
                writes=writes, noisy=noisy, priors=self.priors, calibration=calibration
            )
        return self.plan_cache[key]

    @property
    def default_judge_note(self) -> str:
        """That the default judge grades, and which model it asks; "" if something is named that
        grades.
        """
        judges = self.common_panel()[1].judges if self.graders is None else {}
        names = [client.name for client in judges.values() if client]
        return default_judge_note(names[0]) if names else ""

    @property
    def common_grading(self) -> tuple[tuple[PanelGrader, ...], Collection[GraderTraits]]:
        """The panel without a task's own requirements, and the traits of its graders."""
        panel, roles = self.common_panel()
        return panel, roles.traits.values()

    def _check_trust(self, panel: tuple[PanelGrader, ...], roles: Roles) -> tuple[PanelGrader, ...]:
        """Add what validation cards say of the graders, if asked for. Raises ConfigError for an
        untrusted grader.
        """
        if self.options.require_validated == "off":
            return panel
        from ..graders.cards import (  # most runs ask for no cards
            CardStore,
            enforce_trust,
            trust_statuses,
        )

        cards = CardStore.in_folder(self.options.cards_dir)
        statuses = trust_statuses(panel, roles.traits, partial(self.fingerprint, roles), cards)
        return enforce_trust(panel, statuses, self.options.require_validated)

    @property
    def calibration(self) -> JudgeCalibration:
        """What people's labels say about the judge as it is now, by its validation card, looked up
        once.

        It is empty if no judge that may score has such a card, or if several have one.
        """
        if self.cached_calibration is None:
            self.cached_calibration = self._find_calibration()
        return self.cached_calibration

    def _find_calibration(self) -> JudgeCalibration:
        with suppress(StoreError, OSError):
            if cards_folder(self.options.cards_dir).is_dir():
                from ..graders.cards import CardStore  # most users have none

                store = CardStore.in_folder(self.options.cards_dir)
                panel, roles = self._any_panel()
                judges = [grader for grader in scoring_graders(panel) if not grader.model_free]
                found = {
                    judge.name: store.measures_of(self.fingerprint(roles, judge.name))
                    for judge in judges
                }
                calibrated = [
                    JudgeCalibration(each.calibration, name, each.noise)
                    for name, each in found.items()
                    if each.calibration
                ]
                if not calibrated and len(found) == 1:
                    calibrated = [
                        JudgeCalibration(None, name, each.noise)
                        for name, each in found.items()
                        if each.noise
                    ]
                return calibrated[0] if len(calibrated) == 1 else JudgeCalibration()
        return JudgeCalibration()

    @property
    def labelled_figures(self) -> LabelledFigures:
        """What people's labels say about the noise and the drift of the judge."""
        return (
            self.calibration.figures(self._any_panel()[0])
            if self.calibration.grader
            else UNLABELLED
        )

    @property
    def priors(self) -> Priors:
        """The priors of the model and the graders, looked up once; an unreadable file counts as
        missing.
        """
        if self.cached_priors is None:
            self.cached_priors = self._load_priors()
        return self.cached_priors

    def _load_priors(self) -> Priors:
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
        if self.options.priors == "learned" and llm_graders(self._any_panel()[0]):
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
        panel, roles = self._any_panel()
        if roles.writer is None or not llm_graders(panel):
            return None
        scoring = scoring_graders(panel)
        total_weight = sum(grader.weight for grader in scoring)
        fingerprints, repeated = (
            [self.fingerprint(roles, grader.name) for grader in scoring] for _ in range(2)
        )
        if fingerprints != repeated:
            return None
        graders = [
            (g.name, g.weight / total_weight, digest)
            for g, digest in zip(scoring, fingerprints, strict=True)
        ]
        from ..storage.priors_store import PriorsKey  # most runs have the shipped priors

        return PriorsKey.from_graders(roles.writer.name, roles.writer.identity, graders)

    def _any_panel(self) -> tuple[tuple[PanelGrader, ...], Roles]:
        """Return any panel with its roles, for callers that do not depend on requirements."""
        setup = next(iter(self.setup_cache.values()), None)
        return (setup.panel, setup.roles) if setup else self.common_panel()

    def fingerprint(self, roles: Roles, grader: str) -> str:
        """Return the fingerprint of a grader on the panel, with the models that it uses."""
        client = roles.judges.get(grader)

        def identity_of(model: Any) -> str | None:
            return (
                (client.identity if client else None)
                if model is None
                else self.clients.client_for(model).identity
            )

        return grader_fingerprint(roles.graders[grader], identity_of)

    def cached_fingerprint(self, roles: Roles, grader: str) -> str:
        """Return the same, computed once for each grader."""
        key = id(roles.graders[grader])
        if (known := self._fingerprints.get(key)) is None:
            self._fingerprints[key] = known = roles.graders[grader], self.fingerprint(roles, grader)
        return known[1]

    def with_graders(self, graders: Any) -> Session:
        """Return a session for other graders that shares the budget, the limit and the models."""
        other = copy(self)
        other.graders, other.setup_cache, other.plan_cache = graders, {}, {}
        other.cached_priors, other.cached_calibration = None, None
        return other

    async def close(self) -> None:
        """Close the models that this session connected."""
        await self.clients.close()


@dataclass(frozen=True, slots=True)
class TestsOfTask(GraderSpec):
    """The grader that runs the tests of tasks. It is on the panel of those that have tests, and of
    no others.
    """


def graders_of_run(
    graders: Any,
    judge: Any,
    answer: AnswerForm[Any] | None,
    *,
    requirements: bool = False,
    tests: Any = None,
) -> list[Any] | None:
    """Return the graders of a run, besides the requirements of its tasks and the form of the
    answer, which are on every panel.

    They are those that are named, and no others: `graders`, the tests of tasks, and `judge` if none
    of these asks it. None means that nothing is named, neither requirements nor a form, so that the
    default judge grades.

    `requirements`: whether any task of the run has some; `tests`: the grader for the tests of
    tasks, None if there are none. Raises ConfigError if `judge` is False and a grader asks one.
    """
    named = [] if graders is None else _as_list(graders)
    known = [traits_of_named(each) for each in named]
    if judge is False:
        for traits in known:
            _check_asks_none(traits)
    if (
        tests is not None
        and (answer is None or answer.name == PYTHON_CODE)
        and not any(map(_runs_tests, known))
    ):
        named.append(tests)
    if judge is not None and judge is not False and not any(traits.asks_judge for traits in known):
        return [*named, *_default_judge()]
    is_named = (
        graders is not None
        or judge is False
        or requirements
        or tests is not None
        or answer is not None
    )
    return named if is_named else None


def graders_for_tasks(
    graders: Any, judge: Any, answer: AnswerForm[Any] | None, tasks: Sequence[Task]
) -> list[Any] | None:
    """Return the graders of a run with these tasks (see `graders_of_run`). Raises ConfigError."""
    tests = TestsOfTask(TESTS) if any(task.tests for task in tasks) else None
    return graders_of_run(
        graders, judge, answer, requirements=any(task.requirements for task in tasks), tests=tests
    )


def graders_for_columns(
    graders: Any, judge: Any, answer: AnswerForm[Any] | None, columns: TaskColumns
) -> list[Any] | None:
    """Return the graders of a run over a table; a column of tests is one for every row. Raises
    ConfigError.
    """
    tests = TESTS if columns.tests else None
    return graders_of_run(
        graders, judge, answer, requirements=bool(columns.requirements), tests=tests
    )


def default_judge_note(model: str) -> str:
    """Return the message that the default judge grades, and which model it asks."""
    return (
        f"the default judge grades, with model {model}: no grader, requirement, test or form of "
        "the answer is named"
    )


def _check_asks_none(traits: GraderTraits) -> None:
    """Raise ConfigError for a grader that asks a model, in a run that has no judge."""
    if not traits.model_free:
        raise ConfigError(
            f"judge: no judge is wanted, and grader {traits.name!r} asks one: leave out "
            f"either{_model_free_hint(traits)}"
        )


def _model_free_hint(traits: GraderTraits) -> str:
    return "" if traits.is_own else ", or set model_free = True in its class if it asks none"


def traits_of_named(value: Any) -> GraderTraits:
    """Return the traits of a grader in any form that `refine` takes. Raises ConfigError."""
    return traits_of(as_grader(as_grader_spec(value).grader))


def _runs_tests(traits: GraderTraits) -> bool:
    return any(field == TESTS for _, field in traits.all_needs())


def _as_list(graders: Any) -> list[Any]:
    return list(graders) if isinstance(graders, list | tuple) else [graders]


def resolve_graders(
    requirements: Sequence[str],
    graders: Any,
    *,
    has_model: bool,
    answer: AnswerForm[Any] | None = None,
    execution: CodeExecution = CodeExecution(),
) -> list[Member]:
    """Return the panel in order: a task's requirements as musts, the form of the answer, then the
    graders.

    `graders` are those of the run (see `graders_of_run`); `execution` says how they run code.
    Raises ConfigError if the panel is empty.
    """
    if judged := graders is None:
        graders = _default_judge() if has_model else []
    musts = [*dict.fromkeys(requirements), *([AnswerGrader(answer)] if answer else [])]
    chosen = [*map(must, musts), *map(as_grader_spec, _as_list(graders))]
    if not chosen:
        raise ConfigError(NO_JUDGE_MODEL if judged and not has_model else NOTHING_GRADES)
    members: list[Member] = []
    for spec in chosen:
        traits = traits_of(execution.configure(as_grader(spec.grader)))
        used_names = [member.name for member in members]
        if isinstance(traits.grader, RequirementGrader) and traits.name in used_names:
            continue  # the same requirement, given twice
        on_panel = _panel_grader(unique_name(traits.name, used_names), spec, traits)
        members.append(Member(on_panel, traits))
    return members


def _default_judge() -> list[Grader]:
    from ..graders import Judge  # runs with graders of their own may have none

    return [Judge()]


def needs_judge(graders: Any) -> bool:
    """Return whether one of the graders asks the judge. Raises ConfigError."""
    return graders is None or any(traits_of_named(each).asks_judge for each in _as_list(graders))


def tie_break_grader(members: Sequence[Member]) -> list[Member]:
    """Return the first judge as a comparer by the same rubric. Empty if no LLM judge is present or
    a comparer already is.
    """
    judge = next(
        (traits for _, traits in members if not (traits.model_free or traits.compares)), None
    )
    if judge is None or any(traits.compares for _, traits in members):
        return []
    from ..graders import Pairwise, Rubric  # runs without a judge need none

    rubric = (
        judge.criteria
        if isinstance(judge.criteria, Rubric) and judge.criteria.template is None
        else None
    )
    name = unique_name("tie_break", [member.name for member in members])
    comparer = Pairwise(name, model=judge.model, rubric=rubric)
    return [Member(PanelGrader(name, compares=True), traits_of(comparer))]


def _panel_grader(name: str, spec: GraderSpec, traits: GraderTraits) -> PanelGrader:
    """Return what a trace stores of a grader. Raises ConfigError for a step that is none."""
    grader, score_step = traits.grader, traits.score_step
    checks.number(f"score_step of grader {name!r}", score_step, 0, 1, optional=True)
    has_demand = spec.must and isinstance(grader, RequirementGrader | AnswerGrader)
    return PanelGrader(
        name,
        float(spec.weight),
        spec.must,
        model_free=traits.model_free,
        editable=traits.editable,
        compares=traits.compares,
        repeats=spec.repeats,
        demand=grader.demand if has_demand else "",
        may_call_model=traits.may_call_model,
        reads_tool_calls=any(each.reads_tool_calls for each in traits.walk()),
        score_step=score_step,
    )


def assign_roles(session: Session, members: list[Member]) -> Roles:
    """Assign models to roles. A grader uses its own `model` if it has one, else the judge, else the
    writer.
    """
    options = session.options
    writers = alternative_models(session.writer)
    writing = (
        _client_for_argument(partial(session.clients.writing_client, writers), "model")
        if writers
        else None
    )
    judge = session.judge if session.judge is not None else next(iter(writers), None)
    make_judge = partial(session.clients.client_for, judge, session.judge_params)
    judging = _client_for_argument(make_judge, "judge") if judge is not None else None
    traits = {member.name: member.traits for member in members}
    clients = {name: _grader_client(session, each, judging) for name, each in traits.items()}
    requirements: list[Any] = [
        each.grader.requirement
        for each in traits.values()
        if isinstance(each.grader, RequirementGrader)
    ]
    answer = options.answer
    requirements += [answer] if answer and answer.editable else []
    sampling = Sampling(
        options.temperature,
        options.max_tokens,
        options.seed,
        schema=answer.schema if answer else None,
    )
    editor = (
        (FormEditor() if options.editor else None)
        if isinstance(options.editor, bool)
        else options.editor
    )
    return Roles(
        writing,
        traits,
        clients,
        editor,
        requirements,
        sampling,
        session.clients.client_for,
        answer,
    )


def _client_for_argument(make: Callable[[], ModelClient], argument: str) -> ModelClient:
    """Return the client of a model that was given as an argument. Raises ConfigError naming the
    argument.
    """
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"{argument}: {error}") from None


def _grader_client(
    session: Session, traits: GraderTraits, default: ModelClient | None
) -> ModelClient | None:
    """Return the client of a grader, after checking that each of its parts has one. Raises
    ConfigError.
    """
    client = default if traits.model is None else session.clients.client_for(traits.model)
    for part in traits.parts:
        _grader_client(session, part, client)
    if client is None and not traits.model_free and not traits.parts:
        raise ConfigError(
            f"grader {traits.name!r} asks a model and none was found: give `model` or "
            f"`judge`{_model_free_hint(traits)}"
        )
    return client


def scoring_graders(panel: Iterable[PanelGrader]) -> list[PanelGrader]:
    """Return the graders that make the score of a task; if all are musts, those that call a
    model.
    """
    pointwise = [grader for grader in panel if not grader.compares]
    return [grader for grader in pointwise if not grader.must] or [
        grader for grader in pointwise if not grader.model_free
    ]
