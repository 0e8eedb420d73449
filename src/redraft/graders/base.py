"""What graders are made from: functions, requirements, and the weight that a user gives a grader;
what all graders share.

A plain function becomes a `FunctionGrader`: `(text)`, `(text, task)`, `(text, model)` or `(text,
tool_calls)`, sync or async. It returns a score in [0, 1] (a real number of any type), a bool,
`Feedback`, `(score, reason)`, a mapping with fields of `Feedback`, or an object with `score`;
`as_feedback` reads it. Anything else is an error, never a score. If the run has a form of answer
(`redraft.answers`) and the first parameter is annotated with its type, the function receives the
value.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import (
    Awaitable,
    Callable,
    Container,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from numbers import Number
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_origin, get_type_hints

from ..base import checks
from ..base.descriptors import is_shortage
from ..base.own_code import fingerprint_name
from ..base.threads import run_in_thread
from ..errors import ConfigError, RedraftError, StoreError
from ..loop.engine import cancel_and_wait
from ..loop.records import (
    Candidate,
    Comparison,
    CriterionScore,
    Feedback,
    as_score,
    plain_scalar,
)
from ..loop.serialize import pack, unpack
from ..loop.task import Task
from ..middleware.messages import SYSTEM_ROLES
from ..protocols import JudgeClient, Requirement
from ..requirements.spec import check_with_limit

T = TypeVar("T")
TEXT_ONLY, WITH_TASK, WITH_MODEL, WITH_CALLS = "text", "task", "model", "tool_calls"
EXTRA_ARGUMENTS = {
    **dict.fromkeys(("model", "llm", "judge", "provider", "client", "ask"), WITH_MODEL),
    "tool_calls": WITH_CALLS,
}
"""What a function receives beside the text, by the name of its second parameter; for any other
name it is the task.
"""
# of a mapping that a function returns
RESULT_FIELDS = ("score", "reason", "actions", "done", "criteria", "nearness", "metadata")
# in which evaluators of other libraries give the reason
REASON_KEYS = ("comment", "explanation", "rationale", "reasoning")
# of the results of openevals, LangSmith, Braintrust, Phoenix and promptfoo; all but the reason are
# left out
FOREIGN_KEYS = {
    *REASON_KEYS, "correction", "error", "evaluator_info", "extra", "feedback_config", "key", "label", "name", "pass",  # noqa: E501
    "source_run_id", "target_run_id", "value",
}  # fmt: skip
MAX_REPEATS = 1000
RETURNED_NONE = (
    "it returned None"  # reason of a score that a function does not know; a critic returns Feedback
)
# options that set a field
CLI_OPTIONS = {"context": ", --context FILE", "reference": ", --reference FILE"}
MESSAGE_NEEDS = {  # what graders need of the messages of a task
    "history": (
        "earlier turns of the conversation: give Task([...]) or a column 'messages' with messages "
        "before the last question"
    ),
    "trajectory": (
        "a trajectory: give Task([...]) or a column 'messages' with `tool_calls` and the results "
        "(role tool)"
    ),
}
TOOL_RESULT_ROLES = ("tool", "function")


TEXT_AS_OBJECT = re.compile(
    r"'str' object has no attribute|string indices must be|'str' object does not support"
)
UNANNOTATED_HINT = (
    "it was given the text of the answer: only a function whose first parameter is annotated, as "
    "in `def grade(answer: {name})`, is given the object; a lambda cannot be"
)


@fingerprint_name("function")
@dataclass(frozen=True)
class FunctionGrader:
    """A grader made from a function.

    A second parameter named model, llm, judge, provider, client or ask receives the model (`await
    model(prompt_or_messages) -> str`), one named tool_calls the candidate's `ToolCall`s, and any
    other the `Task`. Sync functions run in a thread.

    A first parameter that is annotated with the type of the answer (`refine(..., answer=T)`), or a
    base class of it, receives the value instead of the text. The function is not called for an
    answer that is no valid T: that scores 0.

    Receiving the model does not mean asking it: a function that receives the model counts as one
    that computes until it makes a call.
    """

    function: Callable[..., Any]
    name: str = ""

    reads_metadata = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise checks.invalid_argument("function", "a function of a text", self.function)
        checks.text("name", self.name, allow_blank=True)
        if not self.name:
            default = getattr(self.function, "__name__", type(self.function).__name__)
            object.__setattr__(self, "name", "function" if default == "<lambda>" else default)
        self.extra_argument  # noqa: B018  (raises for a function that cannot be called with a text)

    @cached_property
    def extra_argument(self) -> str:
        """What the function receives besides the text: nothing, the task, the model or the tool
        calls. Raises ConfigError.
        """
        signature = self._signature
        if signature is None or _accepts(signature, 1):
            return TEXT_ONLY
        if not _accepts(signature, 2):
            raise ConfigError(
                f"grader {self.name!r} must take (text), (text, task) or (text, model), got "
                f"{signature}"
            )
        return EXTRA_ARGUMENTS.get(list(signature.parameters)[1], WITH_TASK)

    @property  # not cached: it holds default values, which may not be picklable
    def _signature(self) -> inspect.Signature | None:
        """The signature of the function; None for a builtin without one."""
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):
            return None

    @property
    def _code(self) -> Callable[..., Any]:
        """The function; of an object that can be called, the method that is."""
        function: Any = self.function
        return function if inspect.isroutine(function) else function.__call__

    @cached_property
    def first_annotation(self) -> Any:
        """The annotation of the first parameter; None without one. What cannot be resolved stays a
        text.
        """
        names = list(self._signature.parameters) if self._signature else []
        try:
            return get_type_hints(self._code, include_extras=True).get(names[0]) if names else None
        except Exception:  # noqa: BLE001  (annotations are evaluated, and may raise anything)
            return inspect.get_annotations(self._code).get(names[0])

    def check_form(self, form: Any) -> None:
        """Raise ConfigError if the first parameter is annotated with a class that neither texts nor
        answers of the form have.
        """
        annotation = self.first_annotation
        if _excludes_text(annotation) and (form is None or not form.accepts(annotation)):
            name = getattr(annotation, "__name__", str(annotation))
            given = "texts" if form is None else f"answers of the form {form.name}"
            raise ConfigError(
                f"grader {self.name!r} takes {name}, and grades {given}: give the form with "
                "answer= (--answer), or annotate the parameter with str"
            )

    async def _subject(self, text: str, form: Any) -> Any:
        """Return what the function receives: the text, or its value. Raises ValueError
        (`InvalidAnswer`).
        """
        annotation = self.first_annotation
        if (
            form is None
            or annotation is None
            or not (form.accepts(annotation) or annotation == form.name)
        ):
            return text
        return await run_in_thread(form.read, text)

    @cached_property
    def is_async(self) -> bool:
        return any(map(inspect.iscoroutinefunction, (self.function, self._code)))

    @property
    def model_free(self) -> bool:
        return self.extra_argument != WITH_MODEL

    @cached_property
    def score_step(self) -> float | None:
        """1 if the function is annotated to return a bool, else None: unknown."""
        annotation = inspect.get_annotations(self.function).get("return")
        return 1.0 if annotation is bool or annotation == "bool" else None

    @property
    def may_call_model(self) -> bool:
        return self.extra_argument == WITH_MODEL

    @property
    def reads_tool_calls(self) -> bool:
        return self.extra_argument == WITH_CALLS

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Call the function. Raises TypeError or ValueError if its result is not a grade."""
        arguments: dict[str, tuple[Any, ...]] = {
            TEXT_ONLY: (),
            WITH_TASK: (task,),
            WITH_MODEL: (ask,),
            WITH_CALLS: (candidate.tool_calls,),
        }
        extra = arguments[self.extra_argument]
        form: Any = getattr(ask, "answer", None)
        try:
            subject = await self._subject(candidate.text, form)
        except ValueError:
            return Feedback(0.0, f"not called: the answer is not valid as {form.name}", done=False)
        try:
            result = await self._call(subject, *extra)
        except (AttributeError, TypeError) as error:
            if (
                form is not None
                and form.is_json
                and isinstance(subject, str)
                and TEXT_AS_OBJECT.search(str(error))
            ):
                error.add_note(
                    UNANNOTATED_HINT.format(name="dict" if form.accepts(dict) else form.name)
                )
            raise
        return as_feedback(result, self.name)

    async def _call(self, *arguments: Any) -> Any:
        if self.is_async:
            return await self.function(*arguments)
        result = await run_in_thread(self.function, *arguments)
        return await result if inspect.isawaitable(result) else result


def _excludes_text(annotation: Any) -> bool:
    """Return whether no text is of this type, as far as can be told: it is a class that is
    unrelated to str.
    """
    origin = get_origin(annotation) or annotation
    if origin is Annotated:
        return _excludes_text(annotation.__origin__)
    if not isinstance(origin, type) or origin in {Any, Union, UnionType}:
        return False
    if issubclass(origin, dict):  # also a TypedDict, which cannot be asked
        return True
    try:
        return not (issubclass(str, origin) or issubclass(origin, str))
    except TypeError:  # a protocol that cannot be checked
        return False


def _accepts(signature: inspect.Signature, count: int) -> bool:
    """Return whether a function can be called with so many arguments by position."""
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def as_feedback(result: Any, name: str) -> Feedback:
    """Return what a grader of the user returned as feedback: the one place that reads scores of
    users' code.

    Raises TypeError if it is not a grade, ValueError if a part of it has another type or is out of
    range.
    """
    result = plain_scalar(result)
    match result:
        case Feedback():
            return result
        case None:
            return Feedback(None, RETURNED_NONE)
        case Number():
            return Feedback(_read_score(result, name))
        case (score, str() as reason) if isinstance(score := plain_scalar(score), Number | None):
            return Feedback(_read_score(score, name), reason)
        case Mapping():
            return _feedback_from_mapping(result, name)
        case object(score=score) if not isinstance(result, type):
            return _feedback_from_object(result, score, name)
    raise TypeError(
        f"grader {name!r} returned {checks.format_value(result)}; it must return a score in [0, "
        "1], a bool, Feedback, (score, reason), a mapping such as {'score': 0.5, 'reason': "
        "'...'}, or an object with `score`"
    )


def _feedback_from_object(result: object, score: Any, name: str) -> Feedback:
    """Return an object with a score, as evaluators of other libraries return it, as feedback."""
    details = getattr(result, "metadata", None)  # of autoevals, with the rationale
    given = [getattr(result, key, None) for key in ("reason", *REASON_KEYS)]
    if isinstance(details, Mapping):
        given += map(details.get, REASON_KEYS)
    reason = next((each for each in given if isinstance(each, str)), "")
    fields = {"score": score, "reason": reason, "error": getattr(result, "error", None)}
    return _feedback_from_mapping(fields, name)


def _read_score(value: Any, name: str) -> float | None:
    """Return a score, also one that is True or False; None for None. Raises ValueError."""
    value = plain_scalar(value)
    if isinstance(value, bool):
        return float(value)
    return None if value is None else as_score(value, f"grader {name!r}: a score")


def _feedback_from_mapping(result: Mapping[Any, Any], name: str) -> Feedback:
    """Return a mapping with fields of `Feedback`, or as evaluators of other libraries return it, as
    feedback. Raises ValueError.
    """
    _check_result(result, name)
    fields = {
        key: value for key in RESULT_FIELDS if (value := plain_scalar(result.get(key))) is not None
    }
    for key in REASON_KEYS:
        if result.get(key) is not None:
            fields.setdefault("reason", result[key])
    if "score" in fields:
        fields["score"] = _read_score(fields["score"], name)
    if isinstance(criteria := fields.get("criteria"), list | tuple):
        fields["criteria"] = [
            pack(c) if isinstance(c, CriterionScore) else _with_score_read(c, name)
            for c in criteria
        ]
    try:
        return unpack(Feedback, fields)
    except StoreError as error:
        raise ValueError(f"grader {name!r} returned a mapping that is {error}") from None


def _check_result(result: Mapping[Any, Any], name: str) -> None:
    """Raise ValueError for a mapping with other keys, without a score, or with an error."""
    if unknown := [key for key in result if key not in RESULT_FIELDS and key not in FOREIGN_KEYS]:
        problem = (
            f"with {checks.format_value(unknown[0], 80)}; it may hold "
            f"{', '.join((*RESULT_FIELDS, *REASON_KEYS))}"
        )
    elif not result.keys() & {"score", "actions", "done"}:
        problem = f"without a score, got {checks.format_value(result)}"
    elif result.get("error"):
        raise ValueError(
            f"grader {name!r} returned an error: {checks.format_value(result['error'])}"
        )
    else:
        return
    raise ValueError(f"grader {name!r} returned a mapping {problem}")


def _with_score_read(criterion: Any, name: str) -> Any:
    is_scored = isinstance(criterion, Mapping) and "score" in criterion
    return {**criterion, "score": _read_score(criterion["score"], name)} if is_scored else criterion


@fingerprint_name("requirement")
@dataclass(frozen=True)
class RequirementGrader:
    """A grader made from a requirement: 1 if the text meets it; else 0, and `done` is False."""

    requirement: Requirement

    model_free = True

    def __post_init__(self) -> None:
        if not isinstance(self.requirement, Requirement):
            raise checks.invalid_argument(
                "requirement", "a Requirement, such as parse('words:80-200')", self.requirement
            )

    @property
    def editable(self) -> bool:
        """Whether the requirement ever proposes repairs; one that does not say is assumed to."""
        return bool(getattr(self.requirement, "editable", True))

    @property
    def name(self) -> str:
        return self.requirement.spec

    @property
    def demand(self) -> str:
        """The demand in words."""
        return self.requirement.demand

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1 or 0, with the measurement as the reason, the demand as the action, and how near
        the text comes to it.

        Raises ComputeLimitError if the check takes too long for this text.
        """
        check = await check_with_limit(self.requirement, candidate.text)
        if check.ok:
            return Feedback(1.0, check.measurement)
        action = f"{check.measurement}; {self.requirement.demand}"
        return Feedback(0.0, check.measurement, (action,), done=False, nearness=check.nearness)


@dataclass(frozen=True, slots=True)
class GraderSpec:
    """A grader with its weight (> 0), whether it is a must, and how often it grades each candidate
    (`repeats` >= 1).
    """

    grader: Any
    weight: float = 1.0
    must: bool = False
    repeats: int = 1

    def __post_init__(self) -> None:
        checks.positive("weight", self.weight)
        checks.whole_number("repeats", self.repeats, 1, MAX_REPEATS)
        checks.flag("must", self.must)


def with_weight(grader: Any, weight: float, *, repeats: int = 1) -> GraderSpec:
    """Give a grader a weight, and let it grade each answer several times.

    Args:
        grader: A grader in any form that `refine` takes.
        weight: How much its score counts in the weighted mean of all graders, above 0.
        repeats: How often it grades each answer, from 1 to 1000. Its score is the mean. Only noisy
            graders gain from this.

    Returns:
        The grader, for the argument `graders`.

    Raises:
        ConfigError: The weight or the number is out of range.
    """
    return replace(as_grader_spec(grader), weight=weight, repeats=repeats)


def must(grader: Any) -> GraderSpec:
    """Make a grader a condition: an answer that it scores below 1 ranks below every answer that it
    scores 1.

    A condition is not part of the mean, unless there are only conditions. Work continues while the
    best answer fails one.

    Args:
        grader: A grader in any form that `refine` takes.

    Returns:
        The grader, for the argument `graders`.
    """
    return replace(as_grader_spec(grader), must=True)


def as_grader_spec(grader: Any) -> GraderSpec:
    """Return the grader as a spec; without one, with weight 1."""
    return grader if isinstance(grader, GraderSpec) else GraderSpec(grader)


def unique_name(name: str, existing: Container[str]) -> str:
    """Return the name, with a number if it exists already: judge, judge#2."""
    n, unique = 1, name
    while unique in existing:
        n += 1
        unique = f"{name}#{n}"
    return unique


# ---- the fields of a task that a grader needs


def has_needed(task: Task, need: str) -> bool:
    """Return whether a task has what a grader needs: a field with text, a history (earlier turns),
    or a trajectory.

    A trajectory is tool calls or their results, in the messages or in the answer; with tools that
    it may call, an answer has one.
    """
    match need:
        case "history":
            turns = [
                message["role"] for message in task.messages if message["role"] not in SYSTEM_ROLES
            ]
            return "user" in turns[1:]
        case "trajectory":
            steps = any(
                m.get("tool_calls") or m.get("function_call") or m["role"] in TOOL_RESULT_ROLES
                for m in task.messages
            )
            return steps or bool(task.tools) or '"tool_calls"' in (task.response or "")
    return bool((getattr(task, need) or "").strip())


def check_needs(name: str, needs: Iterable[str], task: Task) -> None:
    """Raise ConfigError if the task lacks a field; the message says how to give each."""
    missing = [need for need in needs if not has_needed(task, need)]
    if not missing:
        return
    if of_messages := [need for need in missing if need in MESSAGE_NEEDS]:
        raise ConfigError(f"grader {name!r} needs a task with {MESSAGE_NEEDS[of_messages[0]]}")
    raise ConfigError(
        f"grader {name!r} needs a task with {' and '.join(missing)}; this task has none: give "
        + " and ".join(
            f"Task(..., {field}=...){CLI_OPTIONS.get(field, '')} or a column {field!r} in the data"
            for field in missing
        )
    )


# ---- running graders


async def retry_once(work: Callable[[], Awaitable[T]]) -> T:
    """Run a grader's code, and once more if it fails.

    A RedraftError is not retried: model calls were retried where they failed. Nor is a shortage of
    this machine, for which the whole step waits.
    """
    try:
        return await work()
    except RedraftError:
        raise
    except Exception as error:  # users' code fails in any way
        if is_shortage(error):
            raise
        return await work()


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. If one fails, or the caller is cancelled, the others are
    cancelled.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(tasks)


# ---- combining votes


def consensus(values: Iterable[bool | None]) -> bool | None:
    """Return True if all known values are true, False if one is not, and None if none is known."""
    known = [value for value in values if value is not None]
    return all(known) if known else None


def unique_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts in order, each once, without empty ones."""
    return tuple(dict.fromkeys(filter(None, texts)))


def all_actions(votes: Iterable[Feedback | Comparison]) -> tuple[str, ...]:
    """Return what the votes say is to change, each once."""
    return unique_texts(action for vote in votes for action in vote.actions)


def copeland(votes: Sequence[Comparison]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return a ranking and its ties from several comparisons (Copeland 1951).

    In each pair, the candidate that most comparisons place higher gets a point; in a tie both get
    half. Candidates with equal points tie, and so do all in a cycle (a beats b beats c beats a).
    """
    ranks = [vote.ranks for vote in votes]
    ids = sorted(set().union(*ranks))
    points = dict.fromkeys(ids, 0.0)
    for a, b in combinations(ids, 2):
        both = [places for places in ranks if {a, b} <= places.keys()]
        margin = sum(_sign(places[b] - places[a]) for places in both)
        points[a] += (1 + _sign(margin)) / 2
        points[b] += (1 - _sign(margin)) / 2
    ranking = sorted(ids, key=points.__getitem__, reverse=True)
    groups = [tuple(group) for _, group in groupby(ranking, key=points.__getitem__)]
    return tuple(ranking), tuple(group for group in groups if len(group) > 1)


def _sign(n: int) -> int:
    return (n > 0) - (n < 0)
