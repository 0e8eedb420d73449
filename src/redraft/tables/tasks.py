"""The task that a row makes.

`infer_columns` looks at the first rows of a table: stated columns hold, others are recognised by their usual names where the
values fit. Two columns that could be the same thing are an error, never a guess. A row that makes no task raises ValueError.
Requirements are checked by a function that the caller passes: this module does not know them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core.records import Message, Task, message_text
from ..errors import ConfigError
from ..jsontext import strict_loads
from .columns import (
    MESSAGES_NAMES,
    MISSING,
    OTHER_RESPONSE_NAMES,
    PROMPT_NAMES,
    RESPONSE_NAMES,
    SYNONYMS,
    SampleColumns,
    TaskColumns,
    has_value,
    shorten,
    value_at,
)

OTHER_ROLES = ("id", "system", "reference", "context", "tests", "requirements", "tools", "tool_choice")
RESPONSE_KEYS = ("content", "answer", "response", "completion", "text", "value")  # keys of a response in an object
ROLE_BY_SPEAKER: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
MAX_NESTING = 5
SPEC_PATTERN = re.compile(r'(?:[^";\n]|"(?:[^"\\\n]|\\.)*"|"[^\n]*)+')  # a semicolon within quotes separates nothing


@dataclass(frozen=True, slots=True)
class RowMapping:
    """How rows become tasks.

    `input_column`: its text follows the prompt (the `input` of an `instruction`). `check_requirement` raises ConfigError for a
    text that is no requirement.
    """

    columns: TaskColumns
    check_requirement: Callable[[str], object]
    input_column: str | None = None

    @property
    def description(self) -> str:
        """The columns in words: 'prompt from "query", response from "response"'."""
        used = {f.name: getattr(self.columns, f.name) for f in fields(self.columns)}
        parts = [f'{role} from "{name}"' for role, name in used.items() if name]
        if self.input_column:
            parts[0] += f' and "{self.input_column}"'
        if self.columns.messages and not self.columns.response:
            parts[0] += " (a last answer in it is the response)"
        return ", ".join(parts)

    def task(self, values: Mapping[str, Any]) -> Task:
        """Return the task of a row; columns without a role become its metadata. Raises ValueError that names the column."""
        names = self.columns
        messages, last_answer = self._messages_and_answer(values)
        response = _response(values, names.response) if names.response else None
        if None not in (response, last_answer) and last_answer != response:
            raise ValueError(f"{names.messages or names.prompt!r} ends with an answer, and {names.response!r} holds another one")
        return Task(
            _with_system(messages, _text(values, names.system), names.system),
            response if response is not None else last_answer,
            reference=_text(values, names.reference),
            context=_text(values, names.context),
            tests=_text(values, names.tests, "\n"),
            requirements=self._requirements(values),
            id=_id(values, names.id),
            metadata=dict(_unused_values(values, self._used_columns())),
            tools=_tools(values, names.tools),
            tool_choice=_tool_choice(values, names.tool_choice),
        )

    def _messages_and_answer(self, values: Mapping[str, Any]) -> tuple[list[Message], str | None]:
        """Return the messages without the answer at their end, and that answer."""
        name = self.columns.messages or self.columns.prompt
        assert name
        value = value_at(values, name)
        if value is MISSING:
            raise ValueError(f"{name!r} is missing{self._alternative_hint(values)}")
        if not (self.columns.prompt and isinstance(value, str)):
            return _conversation(value, name, may_be_text=not self.columns.messages)
        if not value.strip():
            raise ValueError(f"{name!r} is empty")
        added = _text(values, self.input_column)
        prompt = f"{value}\n\n{added}" if added and added.strip() else value
        return [{"role": "user", "content": prompt}], None

    def _requirements(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the requirements: a list, JSON of one, or a text with line ends or semicolons between them."""
        name = self.columns.requirements
        value = _value(values, name)
        if isinstance(value, str):
            value = _split_specs(value)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(spec, str) for spec in value):
            raise ValueError(f"{name!r} must be a text or a list of specs, got {shorten(value)}")
        try:
            for spec in value:
                self.check_requirement(spec)
        except ConfigError as error:
            raise ValueError(f"{name!r}: {error}") from error
        return tuple(value)

    def _alternative_hint(self, values: Mapping[str, Any]) -> str:
        """Name another column that could be the prompt, for a row of another shape."""
        sample, used = SampleColumns([values]), self._used_columns()
        others = (
            *sample.matching(PROMPT_NAMES, _is_prompt, ("input",)),
            *sample.matching(MESSAGES_NAMES, is_messages, ("input",)),
        )
        found = [n for n in others if n not in used]
        return f"; {found[0]!r} is there, but the table begins with rows of another shape" if found else ""

    def _used_columns(self) -> frozenset[str]:
        named = (getattr(self.columns, f.name) for f in fields(self.columns))
        return frozenset(filter(None, (*named, self.input_column)))


def infer_columns(
    sample: Sequence[Mapping[str, Any]],
    columns: TaskColumns = TaskColumns(),
    *,
    check_requirement: Callable[[str], object],
) -> RowMapping:
    """Return how the rows of a table become tasks, from its first rows and the stated columns.

    Raises ConfigError for a stated column that is not there, for several columns that could be the prompt or the response, and
    if there is none for the prompt.
    """
    if not sample:
        raise ConfigError("there is no row, so no column can be recognised")
    table = SampleColumns(sample)
    for f in fields(columns):
        if name := getattr(columns, f.name):
            table.require(f"--column {f.name}={name}", name)
    if columns.prompt and columns.messages:
        raise ConfigError(
            f"--column prompt={columns.prompt} and --column messages={columns.messages}: only one of them can be asked"
        )
    asked, input_column = _find_prompt(table, columns)
    response = _find_response(table, columns, {asked.prompt, asked.messages, input_column})
    others = {role: _find_other(table, role, getattr(columns, role)) for role in OTHER_ROLES}
    if columns.tool_choice is None and not others["tools"]:
        others["tool_choice"] = None  # it means nothing without tools
    return RowMapping(replace(asked, response=response, **others), check_requirement, input_column)


def _find_prompt(table: SampleColumns, columns: TaskColumns) -> tuple[TaskColumns, str | None]:
    """Return the column of the prompt or the messages, and the column whose text follows it."""
    if columns.prompt or columns.messages:
        return TaskColumns(prompt=columns.prompt or None, messages=columns.messages or None), None
    options = "--column prompt=NAME or messages=NAME"
    chats = [] if columns.messages == "" else table.matching(MESSAGES_NAMES, is_messages, ("input",))
    texts = []
    if columns.prompt is None:
        texts = [n for n in table.matching(PROMPT_NAMES, _is_prompt, ("input",)) if n not in chats]
        texts = texts or ([] if chats else table.matching(("text",), _is_text, ("input",)))
    if {"instruction", "input"} == set(texts) and not chats:
        return TaskColumns(prompt="instruction"), "input"
    found = [*texts, *chats]
    if len(found) == 1:
        return (TaskColumns(messages=found[0]) if chats else TaskColumns(prompt=found[0])), None
    if not found and columns.prompt is None:
        unusable = table.matching((*PROMPT_NAMES, *MESSAGES_NAMES), lambda v: has_value(v) and not isinstance(v, Mapping))
        if unusable:
            raise ConfigError(f"{unusable[0]!r} holds neither texts nor messages; name another column by {options}")
    raise ConfigError(_ambiguous_message("prompt", found, options, table))


def _find_response(table: SampleColumns, columns: TaskColumns, excluded: set[str | None]) -> str | None:
    if columns.response is not None:
        return columns.response or None
    inner = table.matching([f"output.{name}" for name in RESPONSE_KEYS], _is_response)
    outer = [n for n in table.matching(RESPONSE_NAMES, _is_response) if n not in excluded and not (inner and n == "output")]
    found = (
        [*outer, *inner]
        or table.matching(OTHER_RESPONSE_NAMES, _is_response)
        or [n for n in table.empty_columns(RESPONSE_NAMES) if n not in excluded]
    )
    if len(found) > 1:
        raise ConfigError(_ambiguous_message("response", found, "--column response=NAME", table))
    return found[0] if found else None


def _find_other(table: SampleColumns, role: str, stated: str | None) -> str | None:
    if stated is not None:
        return stated or None
    fits = VALUE_CHECKS.get(role, _is_texts)
    return next(iter(table.matching(SYNONYMS[role], fits, ("input", "output"))), None)


def _ambiguous_message(role: str, candidates: list[str], options: str, table: SampleColumns) -> str:
    if candidates:
        return f"several columns could be the {role}: {', '.join(map(repr, candidates))}; state it by {options}"
    return f"no column is known to be the {role}; state it by {options}. There are {table.column_list()}"


# --- which values fit a role -------------------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value))


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or is_messages(value)


def is_messages(value: Any) -> bool:
    """Return whether a value holds messages, as a list or as JSON in a text."""
    messages = _list_of_objects(value)
    keys_of_a_message = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return bool(messages) and all(any(keys <= m.keys() for keys in keys_of_a_message) for m in messages)


def _is_tools(value: Any) -> bool:
    """Return whether a value holds tools in OpenAI's form, as a list or as JSON in a text."""
    tools = _list_of_objects(value)
    return bool(tools) and all("function" in tool for tool in tools)


def _list_of_objects(value: Any) -> list[Mapping[str, Any]]:
    """Return a list of objects, also from JSON in a text; [] for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = strict_loads(value)
        except ValueError:
            return []
    return value if isinstance(value, list) and all(isinstance(item, Mapping) for item in value) else []


def _is_choice(value: Any) -> bool:
    return isinstance(value, str | Mapping) and bool(value)


def _is_response(value: Any) -> bool:
    try:
        return has_value(value) and isinstance(_response_text(value, ""), str)
    except ValueError:
        return False


VALUE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "id": _is_id,
    "system": _is_text,
    "tools": _is_tools,
    "tool_choice": _is_choice,
}


# --- the values of a row -----------------------------------------------------------------------------------------------------


def _value(values: Mapping[str, Any], name: str | None) -> Any:
    """Return the value of a column; None where it is missing."""
    value = value_at(values, name) if name else None
    return None if value is MISSING else value


def _unused_values(values: Mapping[str, Any], used_names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a row that have no role."""
    for name, value in values.items():
        if name in used_names:
            continue
        if isinstance(value, Mapping) and (inner := {u.partition(".")[2] for u in used_names if u.startswith(f"{name}.")}):
            value = dict(_unused_values(value, frozenset(inner)))  # noqa: PLW2901
            if not value:
                continue
        yield name, value


def _text(values: Mapping[str, Any], name: str | None, separator: str = "\n\n") -> str | None:
    """Return a text, or the texts of a list joined; None where there is none."""
    value = _value(values, name)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return separator.join(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name!r} must be text, got {shorten(value)}")
    return value


def _id(values: Mapping[str, Any], name: str | None) -> str | None:
    value = _value(values, name)
    if value is None or value == "":
        return None
    if not _is_id(value):
        raise ValueError(f"{name!r} must be a text or a number, got {shorten(value)}")
    return str(value)


def _response(values: Mapping[str, Any], name: str) -> str | None:
    """Return the response; None if it is still to be written."""
    value = _value(values, name)
    return None if value is None else _response_text(value, name)


def _response_text(value: Any, name: str, depth: int = 0) -> str:
    """Return a text, the text in a list of one, or the text in an object under one of the usual keys."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        inner = value
    elif isinstance(value, Mapping) and isinstance(value.get("role", "assistant"), str) and "content" in value:
        parts = value["content"]
        inner = [message_text({"content": parts})] if isinstance(parts, list) and parts else [parts]
    else:
        inner = [value[key] for key in RESPONSE_KEYS if value.get(key) is not None] if isinstance(value, Mapping) else []
    if len(inner) > 1:
        raise ValueError(f"{name!r} holds {len(inner)} responses; a row has one")
    if not inner or depth == MAX_NESTING:
        raise ValueError(f"{name!r} must be text, got {shorten(value)}")
    return _response_text(inner[0], name, depth + 1)


def _conversation(value: Any, name: str, *, may_be_text: bool) -> tuple[list[Message], str | None]:
    """Return the messages of a conversation without the answer at its end, and that answer."""
    if value is None:
        raise ValueError(f"{name!r} is null")
    if isinstance(value, str) and not may_be_text:
        value = _load_json(value, f"{name!r} must be a list of messages")
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name!r} must be {'text or ' if may_be_text else ''}a list of messages, got {shorten(value)}")
    messages: list[Message] = [read_message(m, name) for m in value]
    answer = None
    if messages[-1]["role"] == "assistant":
        last = messages.pop()
        if not isinstance(last["content"], str | list):
            raise ValueError(f"{name!r} ends with an answer without text")
        answer = message_text(last)
    if not any(m["role"] != "system" and _has_content(m) for m in messages):
        raise ValueError(f"{name!r} asks nothing")
    return messages, answer


def read_message(message: Any, name: str) -> dict[str, Any]:
    """Return a message in OpenAI's form, also from ShareGPT's. Raises ValueError that names the column."""
    if not isinstance(message, Mapping):
        raise ValueError(f"{name!r}: a message is an object, got {shorten(message)}")
    if "from" in message and "value" in message and "role" not in message:
        speaker = message["from"]
        if not isinstance(speaker, str) or speaker not in ROLE_BY_SPEAKER:
            raise ValueError(f"{name!r}: unknown speaker {shorten(speaker)}; there are {', '.join(ROLE_BY_SPEAKER)}")
        message = {"role": ROLE_BY_SPEAKER[speaker], "content": message["value"]}
    default = None if message.get("tool_calls") else MISSING
    if not isinstance(message.get("role"), str) or not isinstance(message.get("content", default), str | list | None):
        raise ValueError(f'{name!r}: a message is {{"role": ..., "content": ...}}, got {shorten(message)}')
    return {"content": None} | {key: value for key, value in message.items() if value is not None}


def _has_content(message: Message) -> bool:
    content = message["content"]
    return bool(content.strip() if isinstance(content, str) else content)


def _with_system(messages: list[Message], system: str | None, name: str | None) -> list[Message]:
    if not system or not system.strip():
        return messages
    if messages[0]["role"] == "system":
        raise ValueError(f"{name!r} holds a system message, but the messages begin with one")
    return [{"role": "system", "content": system}, *messages]


def _tools(values: Mapping[str, Any], name: str | None) -> list[Mapping[str, Any]] | None:
    """Return tools in OpenAI's form: a list, or JSON of one."""
    value = _value(values, name)
    if value is None or value == "":
        return None
    tools = _load_json(value, f"{name!r} must be a list of tools") if isinstance(value, str) else value
    if not isinstance(tools, list):
        raise ValueError(f"{name!r} must be a list of tools, got {shorten(tools)}")
    return tools


def _tool_choice(values: Mapping[str, Any], name: str | None) -> Any:
    """Return whether tools must be called: a word, an object, or JSON of one."""
    value = _value(values, name)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _load_json(value, "tool_choice must be a word or an object")
    return None if value == "" else value


def _load_json(text: str, expected: str) -> Any:
    try:
        return strict_loads(text)
    except ValueError as error:
        raise ValueError(f"{expected}, be it as JSON: {error}") from error


def _split_specs(text: str) -> Any:
    if text.lstrip().startswith("["):
        try:
            return strict_loads(text)
        except ValueError:
            pass
    return [spec for found in SPEC_PATTERN.findall(text) if (spec := found.strip())]
