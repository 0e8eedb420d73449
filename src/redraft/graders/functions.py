"""Plain functions as graders: `(text)`, `(text, task)`, `(text, model)` or `(text, tool_calls)`, sync or async.

They return a score in [0, 1], a bool, `Feedback`, or `(score, reason)`. Anything else is an error, never a score.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .. import checks
from ..core.cancellation import run_in_thread
from ..core.records import Candidate, Feedback, Task
from ..errors import ConfigError
from ..protocols import JudgeClient

MODEL_PARAMETERS = {"model", "llm", "judge", "provider", "client", "ask"}
TEXT_ONLY, WITH_TASK, WITH_MODEL, WITH_CALLS = "text", "task", "model", "tool_calls"


@dataclass(frozen=True)
class FunctionGrader:
    """A function that grades. A second parameter named model, llm, judge, provider, client or ask gets the model
    (`await model(prompt_or_messages) -> str`), one named tool_calls the candidate's `ToolCall`s, any other the `Task`. Sync
    functions run in a thread.

    The name says what is handed over, not what becomes of it: a function that was given the model and called it for no grade
    so far counts as one that computes.
    """

    function: Callable[..., Any]
    name: str = ""

    reads_metadata = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise checks.invalid_argument("function", "a function of a text", self.function)
        checks.text("name", self.name, allow_blank=True)
        if not self.name:
            named = getattr(self.function, "__name__", type(self.function).__name__)
            object.__setattr__(self, "name", "function" if named == "<lambda>" else named)
        self.extra_argument  # noqa: B018  (a function that cannot be called so is said at once)

    @cached_property
    def extra_argument(self) -> str:
        """What the function is handed beside the text: nothing, the task, the model or the tool calls. Raises ConfigError."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except ValueError:
            return TEXT_ONLY  # a builtin that does not say
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        required = [p for p in positional if p.default is p.empty]
        by_keyword = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
        if (not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters)) or len(required) > 2 or by_keyword:
            raise ConfigError(
                f"grader {self.name!r} must take (text), (text, task) or (text, model), got {inspect.signature(self.function)}"
            )
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
        """What the function says. Raises TypeError or ValueError when that is no grade."""
        extra = {TEXT_ONLY: (), WITH_TASK: (task,), WITH_MODEL: (ask,), WITH_CALLS: (candidate.tool_calls,)}[self.extra_argument]
        if self.is_async:
            said = await self.function(candidate.text, *extra)
        else:
            said = await run_in_thread(self.function, candidate.text, *extra)
            if inspect.isawaitable(said):
                said = await said
        return as_feedback(said, self.name)


def as_feedback(result: Any, name: str) -> Feedback:
    """Feedback from what a function returned."""
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
