"""Models without a network: a function of messages, and prepared answers for tests and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction, signature
from typing import Any
from uuid import uuid4

from ..base import checks
from ..base.error_text import error_text
from ..base.threads import run_in_thread
from ..errors import BadResponseError, ConfigError, ModelError
from ..protocols import Reply, Request
from ..usage import Usage
from .http_client import UNKNOWN_USAGE
from .pricing import FREE
from .reasoning import split_reasoning

FREE_CALL = Usage(calls=1)  # usage of a call to a ScriptedModel


class CallableModel:
    """A function `(messages) -> text` as a model. It may be async, or else runs in a thread; it may
    also return a `Reply`.

    Parameters named `tools` and `tool_choice` receive the task's, by keyword; without
    them, a task with tools is a ConfigError. Its usage is unknown. Only with a `name`, or if the
    function is an object with an attribute `identity`, can later runs find its answers in a cache
    and its rows in a journal. An attribute `name` is the name to show.
    """

    def __init__(self, fn: Callable[[list[dict[str, Any]]], Any], name: str | None = None) -> None:
        if not callable(fn):
            raise checks.invalid_argument("fn", "a function (messages) -> text", fn)
        checks.text("name", name, optional=True, allow_blank=True)
        fn_name = _own_text(fn, "name") or str(getattr(fn, "__name__", type(fn).__name__))
        self.name: str = name or ("callable" if fn_name == "<lambda>" else fn_name)
        self.identity = (
            f"callable:{name or _own_text(fn, 'identity') or f'{self.name}:{uuid4().hex}'}"
        )
        self._fn = fn
        self._tool_parameters = _tool_parameters(fn)

    def __repr__(self) -> str:
        return f"CallableModel({self.name!r})"

    async def complete(self, request: Request) -> Reply:
        if request.params:
            raise ConfigError(
                f"{next(iter(request.params))!r} cannot be passed on to {self.name}, which is a "
                "function of messages"
            )
        tool_arguments = self._tool_arguments(request)
        try:
            answer = await call_function(
                self._fn, [dict(m) for m in request.messages], **tool_arguments
            )
        except ModelError:
            raise
        except (
            Exception
        ) as error:  # (any exception of the user's function is a failure of the model)
            raise ModelError(
                f"{self.name} raised {error_text(error)}", usage=UNKNOWN_USAGE
            ) from error
        return as_reply(answer, self.name, UNKNOWN_USAGE)

    def _tool_arguments(self, request: Request) -> dict[str, Any]:
        """Return the tools of a request as keyword arguments. Raises ConfigError if the function
        accepts none.
        """
        if not request.tools:
            return {name: None for name, required in self._tool_parameters.items() if required}
        if "tools" not in self._tool_parameters:
            raise ConfigError(
                f"the task has tools, and the function {self.name!r} has no parameter `tools`: "
                "give it one"
            )
        arguments = {
            "tools": [dict(tool) for tool in request.tools],
            "tool_choice": request.tool_choice,
        }
        return {name: arguments[name] for name in self._tool_parameters}


def _own_text(fn: Callable[..., Any], attribute: str) -> str | None:
    """Return an attribute of a function or object if it is a text with visible characters."""
    value = getattr(fn, attribute, None)
    return value if isinstance(value, str) and value.strip() else None


def _tool_parameters(fn: Callable[..., Any]) -> dict[str, bool]:
    """Return which of the parameters `tools` and `tool_choice` a function has, and whether each is
    required.
    """
    try:
        parameters = signature(fn).parameters
    except (ValueError, TypeError):
        return {}  # a builtin without a signature
    named = {name: parameters[name] for name in ("tools", "tool_choice") if name in parameters}
    return {
        name: p.default is p.empty
        for name, p in named.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


async def call_function(
    fn: Callable[..., Any], messages: Sequence[Mapping[str, Any]], **tool_arguments: Any
) -> Any:
    """Call a function, async or not, with the messages."""
    if iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        return await fn(messages, **tool_arguments)
    answer = await run_in_thread(partial(fn, **tool_arguments) if tool_arguments else fn, messages)
    return await answer if isawaitable(answer) else answer


def as_reply(answer: Any, name: str, usage: Usage) -> Reply:
    """Return a Reply, made from a text if it is none. Raises BadResponseError for anything else,
    and for an empty text.
    """
    if isinstance(answer, Reply):
        return answer
    if not isinstance(answer, str):
        raise BadResponseError(
            f"{name} returned {type(answer).__name__}, expected text: {answer!r:.100}", usage=usage
        )
    text, reasoning, form = split_reasoning(answer)
    if checks.is_blank(text):
        raise BadResponseError(
            f"{name} returned an empty answer", retryable=True, usage=usage
        ).without_text()
    return Reply(text, usage, reasoning=reasoning or None, reasoning_form=form)


class ScriptedModel:
    """A model for tests and examples: it gives prepared answers in order, at no cost.

    When the answers run out it raises a ModelError.

    Args:
        answers: The answers: texts, `Reply` objects, functions `(messages) -> text`, or exceptions,
            which it raises.
        name: The name under which it is recorded.

    Attributes:
        messages: The messages of each call.
        requests: The request of each call, with temperature, tools and so on.
    """

    price = FREE
    takes_probes = False  # (a probe would use up an answer)

    def __init__(self, answers: Iterable[Any], name: str = "scripted") -> None:
        checks.text("name", name)
        if not isinstance(answers, Iterable) or isinstance(answers, type):
            raise checks.invalid_argument(
                "answers", "texts, Replies, functions or exceptions in a list", answers
            )
        self.name = name
        self.identity = f"scripted:{name}"
        self.messages: list[list[dict[str, Any]]] = []
        self.requests: list[Request] = []
        self._answer_count = 0
        self._answers = iter([answers] if isinstance(answers, str) else answers)

    def __repr__(self) -> str:
        return f"ScriptedModel({self.name!r}, {self.calls} calls so far)"

    @property
    def calls(self) -> int:
        """Number of calls so far."""
        return len(self.requests)

    async def complete(self, request: Request) -> Reply:
        sent = [dict(m) for m in request.messages]
        self.messages.append(sent)
        self.requests.append(request)
        for answer in self._answers:
            self._answer_count += 1
            return await self._resolve_answer(answer, sent)
        raise ModelError(
            f"{self.name} has no answer left: it had {self._answer_count}, this is call "
            f"{self.calls}",
            usage=FREE_CALL,
        )

    async def _resolve_answer(self, answer: Any, messages: list[dict[str, Any]]) -> Reply:
        if isinstance(answer, BaseException) or (
            isinstance(answer, type) and issubclass(answer, BaseException)
        ):
            raise _with_call_usage(answer if isinstance(answer, BaseException) else answer())
        return as_reply(
            await call_function(answer, messages) if callable(answer) else answer,
            self.name,
            FREE_CALL,
        )


def _with_call_usage(error: BaseException) -> BaseException:
    if isinstance(error, ModelError) and error.usage == Usage():
        error.usage = FREE_CALL
    return error
