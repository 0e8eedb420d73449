"""What a grader says of itself, read once.

A grader has a name and a method `grade` or `compare`; whatever else it says of itself is optional.
`traits_of` reads all of it, of Redraft's graders and of users' objects alike, and nothing else
does. The session does so once for each panel; everyone else reads `GraderTraits`.

A trace cannot store the graders, so it stores for each a `PanelGrader`: its name, its weight, and
the traits by which a plan decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from ..answers import AnswerGrader
from ..base.own_code import is_own
from ..errors import ConfigError
from ..loop.records import Candidate
from ..loop.task import Task
from ..protocols import Edit
from .base import FunctionGrader, RequirementGrader, check_needs

if TYPE_CHECKING:
    from ..answers import AnswerForm
    from ..tables.columns import TaskColumns

UNSAID = object()  # the value of an attribute that a grader does not have


class GraderTraits(NamedTuple):
    """What a grader says of itself. Most fields are the optional attribute of the same name.

    What it is:

    - `grader`: the grader itself, `name` its name, `is_own` whether its class is Redraft's.
    - `compares`: it ranks candidates instead of scoring one.
    - `parts`: the graders that it is made of, and `repeats` how often each of them is asked for one
      grade. `choose_parts`: which of them grade a task (the attribute `parts_for`); None: all.

    What it calls:

    - `model`: the model that it asks instead of the judge; None: the judge.
    - `model_free`: it calls no model. `may_call_model`: only its usage shows whether it calls one.
    - `grade_calls`: the number of calls that it makes for each candidate; `setup_calls`: the number
      of those that it makes once for a task, in addition.
    - `params`: further parameters of its calls. `max_tokens`: the most tokens of a reply (None: no
      limit), and `is_judge`: it has such a limit, as judges do, and asks for JSON.
    - `prompt_texts`: the texts of which its prompts are made (None: unknown), and `criteria`: the
      rubric or the questions in them.

    What it reads, and where it cannot grade:

    - `needs`: the fields of the task (context, reference, tests) without which it cannot grade.
    - `check_task`: raises ConfigError for another task that it cannot grade.
    - `check_environment`: raises ConfigError if it can grade nothing on this machine, because
      something that it needs is missing.
    - `reads_metadata`: it reads the task's metadata. Graders that are not Redraft's are assumed to.
    - `reads_tool_calls`: it grades candidates that call tools. Without any such grader they are
      returned ungraded.
    - `sandbox`: where it runs the code of answers; None: it runs none. `runs_installed_tool`: it
      only runs a tool that is installed beside Redraft.

    What its scores and its repairs are:

    - `score_step`: the distance between neighbouring scores that it can give, 1 for 0 or 1; None:
      unknown.
    - `reports_hidden_tests`: its feedback says how many hidden tests pass.
    - `editable`: the problems that it finds can be repaired without a model, and `repair(task,
      candidate)` returns an `Edit` that it scores higher, or None. It is called for candidates that
      an editable grader scores below 1, unless the setting `editor` is False.
    - `guards_repairs`: a repair that another grader offers is dropped when this one scores it
      lower.
    - `needs_card`: it was fitted to labels, so that it needs a validation card even if it only
      computes.
    """

    grader: Any
    name: str
    is_own: bool
    compares: bool
    parts: tuple[GraderTraits, ...]
    repeats: int
    choose_parts: Callable[[Task], Iterable[object]] | None
    model: Any
    model_free: bool
    may_call_model: bool
    grade_calls: int
    setup_calls: int
    params: Mapping[str, Any] | None
    max_tokens: int | None
    is_judge: bool
    prompt_texts: Sequence[str] | None
    criteria: object
    needs: tuple[str, ...]
    check_task: Callable[[Task], object] | None
    check_environment: Callable[[], object] | None
    reads_metadata: bool
    reads_tool_calls: bool
    sandbox: str | None
    runs_installed_tool: bool
    score_step: float | None
    reports_hidden_tests: bool
    editable: bool
    repair: Callable[[Task, Candidate], Awaitable[Edit | None]] | None
    guards_repairs: bool
    needs_card: bool

    def walk(self) -> Iterator[GraderTraits]:
        """Yield these traits and those of every part."""
        yield self
        for part in self.parts:
            yield from part.walk()

    @property
    def makes_calls(self) -> bool:
        """Whether it, or a part of it, makes calls: to the judge or, as reward models do, to a
        server of its own.
        """
        return any(not each.model_free or each.model is not None for each in self.walk())

    @property
    def asks_judge(self) -> bool:
        """Whether it, or a part of it, calls a model and names none itself, so that it asks the
        judge.
        """
        if self.model is not None:
            return False
        if self.parts:
            return any(part.asks_judge for part in self.parts)
        return not self.model_free

    @property
    def is_user_defined(self) -> bool:
        """Whether it, or a part of it, is a function, or of a class that the user wrote."""
        return any(
            not each.is_own or isinstance(each.grader, FunctionGrader) for each in self.walk()
        )

    @property
    def is_deterministic(self) -> bool:
        """Whether it is a requirement, one of Redraft's graders that ask no model, or made of
        nothing else, and was not fitted to labels.
        """
        return not (self.is_user_defined or self.makes_calls or self.needs_card)

    @property
    def runs_user_code(self) -> bool:
        """Whether it, or a part of it, is code of the user: a function, a class, a requirement or a
        type of answer.
        """
        return any(_runs_user_code(each.grader) for each in self.walk())

    def parts_for(self, task: Task) -> Sequence[GraderTraits]:
        """Return the parts that grade a task: all of them, or those that it chooses. Raises
        ConfigError.
        """
        if self.choose_parts is None:
            return self.parts
        traits = {id(part.grader): part for part in self.parts}
        return [traits.get(id(part)) or traits_of(part) for part in self.choose_parts(task)]

    def all_needs(self) -> Iterator[tuple[str, str]]:
        """Yield (grader name, field) for each field that it, or a part of it, needs for every
        task.
        """
        for field in self.needs:
            yield self.name, field
        if self.choose_parts is None:
            for part in self.parts:
                yield from part.all_needs()


def is_grader(value: object) -> bool:
    """Return whether an object can grade or compare, with a name or without one."""
    return hasattr(value, "grade") or hasattr(value, "compare")


def traits_of(grader: Any) -> GraderTraits:
    """Return what a grader says of itself: the one place that reads the optional attributes of
    graders.
    """

    def attribute(name: str, default: Any = None) -> Any:
        return getattr(grader, name, default)

    own, parts = is_own(type(grader)), tuple(map(traits_of, attribute("parts", ())))
    model_free, max_tokens = bool(attribute("model_free")), attribute("max_tokens", UNSAID)
    may_call_model = attribute("may_call_model", UNSAID)
    if may_call_model is UNSAID:  # a grader made of others, if none of them certainly calls a model
        may_call_model = any(part.may_call_model for part in parts) and all(
            part.model_free or part.may_call_model for part in parts
        )
    return GraderTraits(
        grader=grader,
        name=attribute("name", type(grader).__name__),
        is_own=own,
        compares=attribute("grade") is None,
        parts=parts,
        repeats=attribute("repeats", 1) if parts else 1,
        choose_parts=attribute("parts_for"),
        model=attribute("model"),
        model_free=model_free,
        may_call_model=bool(may_call_model),
        grade_calls=int(attribute("grade_calls", 1)),
        setup_calls=int(attribute("setup_calls", 0)),
        params=attribute("params"),
        max_tokens=None if max_tokens is UNSAID else max_tokens,
        is_judge=max_tokens is not UNSAID,
        prompt_texts=attribute("prompt_texts"),
        criteria=attribute("rubric", attribute("questions")),
        needs=tuple(attribute("needs", ())),
        check_task=attribute("check_task"),
        check_environment=attribute("check_environment"),
        reads_metadata=bool(attribute("reads_metadata", not own)),
        reads_tool_calls=attribute("reads_tool_calls") is True,
        sandbox=tier if isinstance(tier := attribute("sandbox"), str) else None,
        runs_installed_tool=bool(attribute("runs_installed_tool")),
        score_step=attribute("score_step"),
        reports_hidden_tests=bool(attribute("reports_hidden_tests")),
        editable=bool(attribute("editable")),
        repair=attribute("repair"),
        guards_repairs=bool(attribute("guards_repairs")),
        needs_card=bool(attribute("needs_card")),
    )


def _runs_user_code(grader: object) -> bool:
    match grader:
        case FunctionGrader():
            return not is_own(grader.function)
        case RequirementGrader():
            return not is_own(type(grader.requirement))
    return isinstance(grader, AnswerGrader) or not is_own(type(grader))


# ---- all graders of a panel, with their parts


def check_columns(graders: Iterable[GraderTraits], columns: TaskColumns, data: str) -> None:
    """Raise ConfigError if a grader needs a field that no column of the data holds: no row could be
    graded.
    """
    found = asdict(columns)  # there is no column of its own for what is in the messages
    for traits in graders:
        for field in traits.needs:
            if found.get(field, field) is None:
                raise ConfigError(
                    f"grader {traits.name!r} needs a {field}, and no column of {data} holds one: "
                    f"name the column with --column {field}=NAME (from Python: "
                    f"columns={{{field!r}: COLUMN}}), or choose another grader"
                )


def report_hidden_tests(graders: Iterable[GraderTraits]) -> bool:
    """Return whether a grader, or a part of one, reports how many hidden tests pass."""
    return any(each.reports_hidden_tests for traits in graders for each in traits.walk())


def check_forms(traits: GraderTraits, form: AnswerForm[Any] | None) -> None:
    """Raise ConfigError if a function among the parts of a grader takes an object that the form of
    the answer is not.
    """
    for each in traits.walk():
        if isinstance(each.grader, FunctionGrader):
            each.grader.check_form(form)


def check_task(traits: GraderTraits, task: Task) -> None:
    """Raise ConfigError for a task that a grader, or a part of it, cannot grade, or not on this
    machine.
    """
    check_needs(traits.name, traits.needs, task)
    check_environment(traits)
    if traits.check_task:
        traits.check_task(task)
    for part in traits.parts_for(task):
        check_task(part, task)


def check_environment(traits: GraderTraits) -> None:
    """Raise what the check of a grader raises that can grade nothing on this machine. Its parts are
    not checked.
    """
    if traits.check_environment:
        traits.check_environment()


def check_environments(graders: Iterable[GraderTraits]) -> None:
    """Raise ConfigError for a grader that can grade nothing on this machine, or a part of one:
    before any call.
    """
    for traits in graders:
        for each in traits.walk():
            check_environment(each)
