"""What graders are made from: functions, requirements, and the weight that a user gives a grader.

A plain function becomes a `FunctionGrader`: `(text)`, `(text, task)`, `(text, model)` or `(text, tool_calls)`, sync or async. It
returns a score in [0, 1], a bool, `Feedback`, or `(score, reason)`. Anything else is an error, never a score.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from .. import checks
from ..core.cancellation import run_in_thread
from ..core.records import Candidate, Feedback, Task
from ..errors import ConfigError, RedraftError
from ..own_code import fingerprint_name
from ..protocols import JudgeClient, Requirement
from ..requirements import compute_limits

T = TypeVar("T")
MODEL_PARAMETERS = {"model", "llm", "judge", "provider", "client", "ask"}
TEXT_ONLY, WITH_TASK, WITH_MODEL, WITH_CALLS = "text", "task", "model", "tool_calls"
MAX_REPEATS = 1000


@fingerprint_name("function")
@dataclass(frozen=True)
class FunctionGrader:
    """A grader made from a function.

    A second parameter named model, llm, judge, provider, client or ask receives the model
    (`await model(prompt_or_messages) -> str`), one named tool_calls the candidate's `ToolCall`s, and any other the `Task`.
    Sync functions run in a thread.

    The parameter name says what the function receives, not what it does with it: a function that receives the model counts as
    one that computes until a call shows that it asks the model.
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
        """What the function receives beside the text: nothing, the task, the model or the tool calls. Raises ConfigError."""
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
    """A grader made from a requirement: 1 if the text meets it, else 0. `done` is False if it does not, and None if it does."""

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
        check = await compute_limits.check(self.requirement, candidate.text)
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
        The grader, to be put into `graders`.

    Raises:
        ConfigError: The weight or the number is out of range.
    """
    return replace(as_grader_spec(grader), weight=weight, repeats=repeats)


def must(grader: Any) -> GraderSpec:
    """Make a grader a condition: an answer to which it does not give 1 loses to every answer to which it does.

    A condition is not part of the mean, unless there are only conditions. While the best answer breaks one, the work goes on.

    Args:
        grader: A grader in any form that `refine` takes.

    Returns:
        The grader, to be put into `graders`.
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


async def retry_once(work: Callable[[], Awaitable[T]]) -> T:
    """Run a grader's code, and once more if it fails. A RedraftError is not retried: model calls were retried where they failed."""
    try:
        return await work()
    except RedraftError:
        raise
    except Exception:  # noqa: BLE001  (users' code fails in any way)
        return await work()
