"""Any function from messages to text, as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction, signature
from typing import Any
from uuid import uuid4

from .. import checks
from ..core.cancellation import run_in_thread
from ..error_text import error_text
from ..errors import BadResponseError, ConfigError, ModelError
from ..protocols import Reply, Request
from ..usage import Usage
from .http_client import UNKNOWN_USAGE
from .openai_responses import split_thinking


class CallableModel:
    """A function `(messages) -> text`, async or not (then it runs in a thread); it may also return a Reply.

    One with parameters named `tools` and `tool_choice` is given those of the task, by keyword; for any other, a task with
    tools is a ConfigError. What it consumes is unknown. Give it a `name` to have its answers found again in a cache by later runs.
    """

    def __init__(self, fn: Callable[[list[dict[str, Any]]], Any], name: str | None = None) -> None:
        if not callable(fn):
            raise checks.invalid_argument("fn", "a function (messages) -> text", fn)
        checks.text("name", name, optional=True, allow_blank=True)
        own = getattr(fn, "__name__", type(fn).__name__)
        self.name = name or ("callable" if own == "<lambda>" else own)
        self.identity = f"callable:{name}" if name else f"callable:{self.name}:{uuid4().hex}"
        self._fn = fn
        self._tool_parameters = _tool_parameters(fn)

    def __repr__(self) -> str:
        return f"CallableModel({self.name!r})"

    async def complete(self, request: Request) -> Reply:
        offered = self._tool_arguments(request)
        try:
            said = await call_function(self._fn, [dict(m) for m in request.messages], **offered)
        except ModelError:
            raise
        except Exception as error:  # whatever a foreign function raises is a model that failed
            raise ModelError(f"{self.name} raised {error_text(error)}", usage=UNKNOWN_USAGE) from error
        return as_reply(said, self.name, UNKNOWN_USAGE)

    def _tool_arguments(self, request: Request) -> dict[str, Any]:
        """The tools of a request as keywords. Raises ConfigError where the function takes none."""
        if not request.tools:
            return {name: None for name, needed in self._tool_parameters.items() if needed}
        if "tools" not in self._tool_parameters:
            raise ConfigError(f"the task has tools, and the function {self.name!r} has no parameter `tools`: give it one")
        offered = {"tools": [dict(tool) for tool in request.tools], "tool_choice": request.tool_choice}
        return {name: offered[name] for name in self._tool_parameters}


def _tool_parameters(fn: Callable[..., Any]) -> dict[str, bool]:
    """Those of the parameters `tools` and `tool_choice` that a function has, and whether it cannot do without them."""
    try:
        parameters = signature(fn).parameters
    except (ValueError, TypeError):
        return {}  # a builtin that does not say
    found = {name: parameters[name] for name in ("tools", "tool_choice") if name in parameters}
    return {name: p.default is p.empty for name, p in found.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


async def call_function(fn: Callable[..., Any], messages: Sequence[Mapping[str, Any]], **tool_arguments: Any) -> Any:
    """What a function, async or not, makes of the messages."""
    if iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        return await fn(messages, **tool_arguments)
    said = await run_in_thread(partial(fn, **tool_arguments) if tool_arguments else fn, messages)
    return await said if isawaitable(said) else said


def as_reply(answer: Any, name: str, usage: Usage) -> Reply:
    """A Reply as it is, or one from a text. Raises BadResponseError for anything else, and for nothing."""
    if isinstance(answer, Reply):
        return answer
    if not isinstance(answer, str):
        raise BadResponseError(f"{name} returned {type(answer).__name__}, expected text: {answer!r:.100}", usage=usage)
    text, thought = split_thinking(answer)
    if not text.strip():
        error = BadResponseError(f"{name} returned an empty answer", retryable=True, usage=usage)
        error.empty = True
        raise error
    return Reply(text, usage, reasoning=thought or None)
