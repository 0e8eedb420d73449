"""The task: what is to be answered, as chat messages, with the tools that the answer may call.

Everything is checked when the task is made, because a task may come from a file that someone else
wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from ..base import checks
from ..base.jsontext import check_bounds, first_duplicate
from ..errors import ConfigError
from .visible_tests import visible_tests

Message: TypeAlias = Mapping[str, Any]

TOOL_CHOICES = ("none", "auto", "required")
TOOL_FORM = (
    '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
)
URL_FIELDS = {"image_url", "video_url", "audio_url", "file_url", "url", "uri"}
"""The fields of a message part that hold a URL, as text or as an object with such a field."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be answered.

    A blank text is none: a blank response, reference, context or ID is None, and blank `tests`,
    too.

    Args:
        messages: A prompt, or chat messages in OpenAI's form, such as `{"role": "user", "content":
            "..."}`.
        response: An answer to start from. It becomes candidate 0.
        responses: Several answers to start from, instead of `response`. They become candidates 0,
            1, ...; equal ones become one.
        reference: A known good answer, for graders that compare.
        context: Material that the answer must rest on, for graders that read it.
        tests: Tests of code, which the grader "tests" runs in a sandbox: a text, or the list or
            mapping of a JSON form (see `redraft.sandbox.code.parse_tests`), which is kept as JSON.
            Judges read them, except hidden ones. The writing model never does.
        requirements: Specs such as "words:80-200", or objects with such a `spec`. The prompt states
            them; each is a `must`.
        id: An ID of your own.
        metadata: Anything else, for graders of your own.
        tools: Functions that the writing model may call, in OpenAI's form. Judges are never offered
            them.
        tool_choice: Whether it must call one: "none", "auto", "required", or `{"type": "function",
            "function": {"name": ...}}`. None leaves it to the model.

    Raises:
        ConfigError: An argument is not as described.
    """

    messages: tuple[Message, ...]
    response: str | None = None
    reference: str | None = None
    context: str | None = None
    tests: str | None = None
    requirements: tuple[str, ...] = ()
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    responses: tuple[str, ...] = ()

    def __init__(
        self,
        messages: str | Iterable[Message],
        response: str | None = None,
        *,
        reference: str | None = None,
        context: str | None = None,
        tests: str | Sequence[Any] | Mapping[str, Any] | None = None,
        requirements: Iterable[Any] = (),
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: Iterable[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        responses: Iterable[str] = (),
    ) -> None:
        tests = None if tests is None else _tests_as_text(tests)
        set_field = object.__setattr__
        texts = (
            ("response", response),
            ("reference", reference),
            ("context", context),
            ("id", id),
            ("tests", tests),
        )
        for name, value in texts:
            if value is not None and value.__class__ is not str:
                checks.text(name, value, optional=True, allow_blank=True)
            set_field(self, name, None if value is None or checks.is_blank(value) else value)
        if not (metadata is None or metadata.__class__ is dict or isinstance(metadata, Mapping)):
            raise checks.invalid_argument(
                "metadata", 'a mapping such as {"source": "mail"} or None', metadata
            )
        set_field(self, "metadata", dict(metadata or {}))
        set_field(self, "requirements", _requirement_specs(requirements))
        set_field(self, "responses", _check_responses(responses, self.response))
        try:
            set_field(self, "messages", tuple(as_messages(messages)))
        except ValueError as error:
            raise ConfigError(f"messages: {error}") from None
        try:
            checked_tools = () if tools is None else validate_tools(tools)
            set_field(self, "tools", checked_tools)
            set_field(
                self,
                "tool_choice",
                None if tool_choice is None else validate_tool_choice(tool_choice, checked_tools),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def given_responses(self) -> tuple[str, ...]:
        """The answers to start from: `responses`, or `response` alone; empty if there are none."""
        return self.responses if self.response is None else (self.response,)

    @property
    def visible_tests(self) -> str | None:
        """The tests without the hidden ones, as text; None if there are none. A model is shown no
        others.
        """
        return visible_tests(self.tests)

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        return next((message_text(m) for m in reversed(self.messages) if m["role"] == "user"), "")


def _tests_as_text(tests: Any) -> str | None:
    """Return tests as text: a list of lines of code joined, any other list or mapping as JSON.
    Raises ConfigError.
    """
    if tests is None or isinstance(tests, str):
        return tests
    expected = 'a text, a list such as [{"input": [3], "output": 2}] or a mapping, of JSON values'
    if not isinstance(tests, Mapping | list | tuple):
        raise checks.invalid_argument("tests", expected, tests)
    if all(isinstance(line, str) for line in tests) and not isinstance(tests, Mapping):
        return "\n".join(tests) or None
    try:
        check_bounds(tests)
        return json.dumps(tests, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"tests must be {expected}: {str(error)[:200]}") from None


def _check_responses(responses: Any, response: str | None) -> tuple[str, ...]:
    """Return the answers to start from without blank and equal ones. Raises ConfigError, also if
    `response` is given, too.
    """
    if responses.__class__ is tuple and not responses:  # as in most tasks
        return ()
    expected = 'a list of texts such as ["one answer", "another"]'
    if isinstance(responses, str | bytes | Mapping | type) or not isinstance(responses, Iterable):
        raise checks.invalid_argument("responses", expected, responses)
    items = dict.fromkeys(item if isinstance(item, str) else None for item in responses)
    if None in items:
        raise checks.invalid_argument("responses", expected, responses)
    texts = tuple(text for text in items if text and not checks.is_blank(text))
    if texts and response is not None:
        raise ConfigError(
            "response and responses exclude each other: put every answer into responses"
        )
    return texts


def _requirement_specs(requirements: Any) -> tuple[str, ...]:
    """Return the specs of requirements, given as specs or as objects with a `spec`. Raises
    ConfigError.
    """
    if requirements.__class__ is tuple and not requirements:  # as in most tasks
        return ()
    expected = 'a list of specs such as ["words:80-200"], or of objects with a `spec`'
    if isinstance(requirements, str | bytes | Mapping | type) or not isinstance(
        requirements, Iterable
    ):
        raise checks.invalid_argument("requirements", expected, requirements)
    specs = tuple(
        item if isinstance(item, str) else getattr(item, "spec", None) for item in requirements
    )
    if not all(isinstance(spec, str) for spec in specs):
        raise checks.invalid_argument("requirements", expected, requirements)
    return cast("tuple[str, ...]", specs)


def as_messages(prompt: str | Iterable[Message]) -> list[dict[str, Any]]:
    """Return chat messages: one for a prompt, or a checked copy of the given ones. Raises
    ValueError.

    A message with tool calls may lack content, which is then None.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if prompt.__class__ is not list and (
        isinstance(prompt, Mapping | bytes | type) or not isinstance(prompt, Iterable)
    ):
        raise ValueError(
            f"a task is a prompt or a list of messages, got {checks.format_value(prompt)}"
        )
    messages: list[dict[str, Any]] = []
    for n, message in enumerate(prompt, 1):
        is_mapping = message.__class__ is dict or isinstance(message, Mapping)
        calls = is_mapping and (message.get("tool_calls") or message.get("function_call"))
        if (
            not is_mapping
            or not isinstance(message.get("role"), str)
            or not ("content" in message or calls)
        ):
            raise ValueError(
                f'message {n} must be {{"role": "user", "content": "..."}}, got '
                f"{checks.format_value(message)}"
            )
        content = message.get("content")
        if not isinstance(content, str):
            _check_urls(content, f"messages[{n - 1}].content")
        messages.append({**message, "content": content})
    if not messages:
        raise ValueError("a task needs at least one message, got none")
    return messages


def _check_urls(value: Any, where: str) -> None:
    """Raise ValueError for the address of a file in a message that is not an http(s): or data:
    URL.
    """
    if isinstance(value, list | tuple):
        for n, part in enumerate(value):
            _check_urls(part, f"{where}[{n}]")
    elif isinstance(value, Mapping) and value.get("type") != "text":
        for name, inner in value.items():
            if (
                name in URL_FIELDS
                and isinstance(inner, str)
                and not inner.lower().startswith(("http://", "https://", "data:"))
            ):
                raise ValueError(
                    f"{where}.{name}: an image is an http(s): or data: URL, got "
                    f"{checks.format_value(inner)}"
                )
            if isinstance(inner, Mapping):
                _check_urls(inner, f"{where}.{name}")


def message_text(message: Message) -> str:
    """Return the text of a message, whose content is text or a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "\n".join(str(p["text"]) for p in parts if isinstance(p, Mapping) and "text" in p)


def validate_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """Return a checked copy of tools. Raises ValueError for anything but a list of function tools
    with distinct names.
    """
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise ValueError(f"tools must be a list of {TOOL_FORM}, got {checks.format_value(tools)}")
    checked = tuple(
        {"type": "function", **tool} if isinstance(tool, Mapping) else tool for tool in tools
    )
    names: list[str] = []
    for tool in checked:
        function = (
            tool.get("function") if isinstance(tool, dict) and tool["type"] == "function" else None
        )
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise ValueError(f"tools: a tool is {TOOL_FORM}, got {checks.format_value(tool)}")
        parameters = function.get("parameters", {})
        if not isinstance(parameters, Mapping):
            raise ValueError(
                f"tools: the parameters of {name!r} must be a JSON schema, got "
                f"{checks.format_value(parameters)}"
            )
        names.append(name)
    if (duplicate := first_duplicate(names)) is not None:
        raise ValueError(f"tools: the function {duplicate!r} is defined twice")
    return checked


def validate_tool_choice(
    choice: Any, tools: Iterable[Mapping[str, Any]]
) -> str | Mapping[str, Any]:
    """Return a checked tool choice. Raises ValueError for one that does not fit these tools."""
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise ValueError(
            "tool_choice needs `tools` to choose from, and there are none, got "
            f"{checks.format_value(choice)}"
        )
    if isinstance(choice, str) and choice in TOOL_CHOICES:
        return choice
    function = (
        choice.get("function")
        if isinstance(choice, Mapping) and choice.get("type") == "function"
        else None
    )
    if isinstance(function, Mapping) and function.get("name") in names:
        return dict(cast("Mapping[str, Any]", choice))
    allowed = (
        f'{", ".join(map(repr, TOOL_CHOICES))} or {{"type": "function", "function": {{"name": '
        "...}}"
    )
    raise ValueError(
        f"tool_choice must be {allowed} with one of {', '.join(map(repr, names))}, got "
        f"{checks.format_value(choice)}"
    )
