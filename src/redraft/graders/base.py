"""What graders are made from: functions, requirements, and the weight that a user gives a grader; what all graders share.

A plain function becomes a `FunctionGrader`: `(text)`, `(text, task)`, `(text, model)` or `(text, tool_calls)`, sync or async. It
returns a score in [0, 1], a bool, `Feedback`, or `(score, reason)`. Anything else is an error, never a score.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby
from typing import Any, TypeVar

from .. import checks
from ..core.cancellation import cancel_and_wait, run_in_thread
from ..core.records import Candidate, Comparison, Feedback
from ..core.task import Task
from ..errors import ConfigError, RedraftError
from ..own_code import fingerprint_name
from ..protocols import JudgeClient, Requirement
from ..requirements.spec import check_with_limit

T = TypeVar("T")
MODEL_PARAMETERS = {"model", "llm", "judge", "provider", "client", "ask"}
TEXT_ONLY, WITH_TASK, WITH_MODEL, WITH_CALLS = "text", "task", "model", "tool_calls"
MAX_REPEATS = 1000
CLI_OPTIONS = {"context": ", --context FILE", "reference": ", --reference FILE"}  # options that set a field


@fingerprint_name("function")
@dataclass(frozen=True)
class FunctionGrader:
    """A grader made from a function.

    A second parameter named model, llm, judge, provider, client or ask receives the model
    (`await model(prompt_or_messages) -> str`), one named tool_calls the candidate's `ToolCall`s, and any other the `Task`.
    Sync functions run in a thread.

    Receiving the model does not mean asking it: a function that receives the model counts as one that computes until it makes a
    call.
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
        """What the function receives besides the text: nothing, the task, the model or the tool calls. Raises ConfigError."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:
            return TEXT_ONLY  # a builtin without a signature
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = [p for p in positional if p.default is p.empty]
        needs_keyword = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
        takes_text = positional or any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if not takes_text or len(required) > 2 or needs_keyword:
            signature = inspect.signature(self.function)
            raise ConfigError(f"grader {self.name!r} must take (text), (text, task) or (text, model), got {signature}")
        if len(required) < 2:
            return TEXT_ONLY
        second = positional[1].name
        return WITH_MODEL if second in MODEL_PARAMETERS else WITH_CALLS if second == WITH_CALLS else WITH_TASK

    @cached_property
    def is_async(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004  (an object may have an async one)
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def model_free(self) -> bool:
        return self.extra_argument != WITH_MODEL

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
        if self.is_async:
            result = await self.function(candidate.text, *extra)
        else:
            result = await run_in_thread(self.function, candidate.text, *extra)
            if inspect.isawaitable(result):
                result = await result
        return as_feedback(result, self.name)


def as_feedback(result: Any, name: str) -> Feedback:
    """Return what a function returned as feedback. Raises TypeError if it is not a grade."""
    match result:
        case Feedback():
            return result
        case bool() | None:
            return Feedback(None if result is None else float(result))
        case int() | float():
            return Feedback(result)
        case (bool() | int() | float() as score, str() as reason):
            return Feedback(float(score) if isinstance(score, bool) else score, reason)
    raise TypeError(f"grader {name!r} returned {result!r}; it must return a score in [0, 1], a bool, Feedback or (score, reason)")


@fingerprint_name("requirement")
@dataclass(frozen=True)
class RequirementGrader:
    """A grader made from a requirement: 1 if the text meets it; else 0, and `done` is False."""

    requirement: Requirement

    model_free = True

    def __post_init__(self) -> None:
        if not isinstance(self.requirement, Requirement):
            raise checks.invalid_argument("requirement", "a Requirement, such as parse('words:80-200')", self.requirement)

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
        """Return 1 or 0, with the measurement as the reason, the demand as the action, and how near the text comes to it.

        Raises ComputeLimitError if the check takes too long for this text.
        """
        check = await check_with_limit(self.requirement, candidate.text)
        if check.ok:
            return Feedback(1.0, check.measurement)
        action = f"{check.measurement}; {self.requirement.demand}"
        return Feedback(0.0, check.measurement, (action,), done=False, nearness=check.nearness)


@dataclass(frozen=True, slots=True)
class GraderSpec:
    """A grader with its weight (> 0), whether it is a must, and how often it grades each candidate (`repeats` >= 1)."""

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
        repeats: How often it grades each answer, from 1 to 1000. Its score is the mean. Only noisy graders gain from this.

    Returns:
        The grader, for the argument `graders`.

    Raises:
        ConfigError: The weight or the number is out of range.
    """
    return replace(as_grader_spec(grader), weight=weight, repeats=repeats)


def must(grader: Any) -> GraderSpec:
    """Make a grader a condition: an answer that it scores below 1 ranks below every answer that it scores 1.

    A condition is not part of the mean, unless there are only conditions. Work continues while the best answer fails one.

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


def check_needs(name: str, needs: Iterable[str], task: Task) -> None:
    """Raise ConfigError if the task lacks a field; the message says how to give each."""
    if missing := [field for field in needs if not (getattr(task, field) or "").strip()]:
        raise ConfigError(
            f"grader {name!r} needs a task with {' and '.join(missing)}; this task has none: give "
            + " and ".join(
                f"Task(..., {field}=...){CLI_OPTIONS.get(field, '')} or a column {field!r} in the data" for field in missing
            )
        )


def check_columns(graders: Iterable[Any], columns: Any, data: str) -> None:
    """Raise ConfigError if a grader needs a field that no column of the data holds: no row could be graded."""
    for grader in graders:
        for field in getattr(grader, "needs", ()):
            if getattr(columns, field, field) is None:
                raise ConfigError(
                    f"grader {grader.name!r} needs a {field}, and no column of {data} holds one: name the column with "
                    f"--column {field}=NAME (from Python: columns={{{field!r}: COLUMN}}), or choose another grader"
                )


def needs_of(grader: Any) -> Iterator[tuple[str, str]]:
    """Yield (grader name, field) for each field that a grader, or a part of it, needs."""
    for field in getattr(grader, "needs", ()):
        yield grader.name, field
    for part in getattr(grader, "parts", ()):
        yield from needs_of(part)


# ---- running graders


async def retry_once(work: Callable[[], Awaitable[T]]) -> T:
    """Run a grader's code, and once more if it fails. A RedraftError is not retried: model calls were retried where they failed."""
    try:
        return await work()
    except RedraftError:
        raise
    except Exception:  # noqa: BLE001  (users' code fails in any way)
        return await work()


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. If one fails, or the caller is cancelled, the others are cancelled."""
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
    """Return the texts in order, each once."""
    return tuple(dict.fromkeys(texts))


def copeland(votes: Sequence[Comparison]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return a ranking and its ties from several comparisons (Copeland 1951).

    In each pair, the candidate that most comparisons place higher gets a point; in a tie both get half. Candidates with equal
    points tie, and so do those of a cycle (a beats b beats c beats a).
    """
    ranks = [vote.ranks for vote in votes]
    ids = sorted({id for places in ranks for id in places})
    points = dict.fromkeys(ids, 0.0)
    for a, b in combinations(ids, 2):
        margin = sum(_sign(places[b] - places[a]) for places in ranks if a in places and b in places)
        points[a] += (1 + _sign(margin)) / 2
        points[b] += (1 - _sign(margin)) / 2
    ranking = sorted(ids, key=points.__getitem__, reverse=True)
    groups = [tuple(group) for _, group in groupby(ranking, key=points.__getitem__)]
    return tuple(ranking), tuple(group for group in groups if len(group) > 1)


def _sign(n: int) -> int:
    return (n > 0) - (n < 0)
