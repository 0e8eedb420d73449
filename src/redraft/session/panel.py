"""The panel of a task: which graders grade it, what plans see of each, and who does what.

What is named grades, and no more: the requirements and tests of the task, the form of its answer,
and the graders and the judge of the run (`graders_of_run`). `make_panel` makes a `TaskPanel` of
them: the graders as plans see them, and the `Roles` by which the performer reaches them, their
models and the editor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..answers import AnswerForm, AnswerGrader
from ..answers.editor import FormEditor
from ..base import checks
from ..errors import ConfigError
from ..graders import GraderSpec, RequirementGrader, as_grader, must
from ..graders.base import as_grader_spec, unique_name
from ..graders.execution import CodeExecution
from ..graders.traits import GraderTraits, check_forms, check_task, traits_of
from ..loop.task import Task
from ..loop.trace import Panel, PanelGrader
from ..plans.quality.lineage import llm_graders
from ..protocols import Grader, Request
from .options import Options
from .perform import ModelClient, Roles

if TYPE_CHECKING:
    from ..tables.columns import TaskColumns
    from .models import Models

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


class Member(NamedTuple):
    """A grader of a panel: what plans see of it, and all that it says of itself."""

    on_panel: PanelGrader
    traits: GraderTraits

    @property
    def name(self) -> str:
        """The name on the panel, which no other grader there has."""
        return self.on_panel.name


class TaskPanel(NamedTuple):
    """The graders of tasks with the same requirements, as plans see them, and who does what."""

    panel: tuple[PanelGrader, ...]
    roles: Roles

    @property
    def is_noisy(self) -> bool:
        """Whether a model takes part in the score."""
        return bool(llm_graders(self.panel))

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task that these graders cannot grade."""
        for traits in self.roles.traits.values():
            check_task(traits, task)


@dataclass(frozen=True, slots=True)
class TestsOfTask(GraderSpec):
    """The grader that runs the tests of tasks. It is on the panel of those that have tests, and of
    no others.
    """


def without_tests(graders: Any) -> Any:
    """Return the graders of tasks without tests."""
    if not isinstance(graders, list):
        return graders
    others = [grader for grader in graders if not isinstance(grader, TestsOfTask)]
    return graders if len(others) == len(graders) else others


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
    named = as_list(graders)
    known = [traits_of_named(each) for each in named]
    if judge is False:
        _check_ask_none(known)
    elif judge is not None and not any(traits.asks_judge for traits in known):
        named += _default_judge()
    if _tests_count(tests, answer, known):
        named.insert(len(known), tests)
    is_given = any(each is not None for each in (graders, judge, answer, tests))
    return named if is_given or requirements else None


def _tests_count(tests: Any, answer: AnswerForm[Any] | None, named: Iterable[GraderTraits]) -> bool:
    """Whether the tests of tasks grade, if there are any, beside graders that are named."""
    may_hold_code = answer is None or answer.name == PYTHON_CODE
    return tests is not None and may_hold_code and not any(map(_runs_tests, named))


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


def _check_ask_none(graders: Iterable[GraderTraits]) -> None:
    """Raise ConfigError for a grader that asks a model, in a run that has no judge."""
    for traits in graders:
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


def as_list(graders: Any) -> list[Any]:
    """Return the graders in a list; a single one alone, and none for None."""
    if graders is None:
        return []
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
    problem = NOTHING_GRADES
    if graders is None:
        graders, problem = _default_judge() if has_model else [], NO_JUDGE_MODEL
    musts = [*dict.fromkeys(requirements), *([AnswerGrader(answer)] if answer else [])]
    chosen = [*map(must, musts), *map(as_grader_spec, as_list(graders))]
    if not chosen:
        raise ConfigError(problem)
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
    return graders is None or any(traits_of_named(each).asks_judge for each in as_list(graders))


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


def make_panel(
    options: Options, models: Models, graders: Any, requirements: tuple[str, ...]
) -> TaskPanel:
    """Return the panel of tasks with these requirements, and the roles. Raises ConfigError."""
    members = resolve_graders(
        requirements,
        graders,
        has_model=models.has_any,
        answer=options.answer,
        execution=options.code_execution(),
    )
    for member in members:
        check_forms(member.traits, options.answer)
    roles = assign_roles(options, models, members)
    panel = tuple(
        on_panel if roles.editor else replace(on_panel, editable=False) for on_panel, _ in members
    )
    return TaskPanel(Panel(_check_trust(options, panel, roles)), roles)


def _check_trust(
    options: Options, panel: tuple[PanelGrader, ...], roles: Roles
) -> tuple[PanelGrader, ...]:
    """Add what validation cards say of the graders, if asked for. Raises ConfigError for an
    untrusted grader.
    """
    if options.require_validated == "off":
        return panel
    from ..graders.cards import CardStore, with_trust  # most runs ask for no cards

    cards = CardStore.in_folder(options.cards_dir)
    return with_trust(panel, roles.traits, roles.identify, cards, options.require_validated)


def assign_roles(options: Options, models: Models, members: Sequence[Member]) -> Roles:
    """Assign models to roles. A grader uses its own `model` if it has one, else the judge, else the
    writer. Raises ConfigError.
    """
    writing, judging, answer = models.writing_client, models.judging_client, options.answer
    traits = {member.name: member.traits for member in members}
    requirements: list[Any] = [
        each.grader.requirement
        for each in traits.values()
        if isinstance(each.grader, RequirementGrader)
    ]
    request = Request(
        (),
        options.temperature,
        options.max_tokens,
        options.seed,
        answer.schema if answer else None,
        is_generation=True,
    )
    usual_editor = FormEditor() if options.editor else None
    editor = usual_editor if isinstance(options.editor, bool) else options.editor
    return Roles(
        writing,
        traits,
        judges={name: _grader_client(models, each, judging) for name, each in traits.items()},
        editor=editor,
        requirements=[*requirements, answer] if answer and answer.editable else requirements,
        request=request,
        connect_client=models.client_for,
        answer=answer,
    )


def _grader_client(
    models: Models, traits: GraderTraits, default: ModelClient | None
) -> ModelClient | None:
    """Return the client of a grader, after checking that each of its parts has one. Raises
    ConfigError.
    """
    client = default if traits.model is None else models.client_for(traits.model)
    for part in traits.parts:
        _grader_client(models, part, client)
    if client is None and not traits.model_free and not traits.parts:
        raise ConfigError(
            f"grader {traits.name!r} asks a model and none was found: give `model` or "
            f"`judge`{_model_free_hint(traits)}"
        )
    return client
