"""Which column is what, and the task that a row makes.

What was stated holds; what was not is recognised by the usual names, where the values fit. Two columns that could be the
same thing are an error, never a guess. "output.text" is the text in the object "output". Rows are hostile: a row that
makes no task raises ValueError, and nothing in one ever names a file. Where rows come from is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from ..checks import format_value
from ..core.records import Message, Task, message_text
from ..errors import ConfigError
from ..jsontext import strict_loads
from ..requirements import parse
from .readers import delimiter_hint

PROMPT_NAMES = ("prompt", "query", "question", "instruction", "input")
MESSAGES_NAMES = ("messages", "conversations", "conversation", "input")
RESPONSE_NAMES = ("response", "completion", "answer", "output")
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "uid", "unique_id"),
    "system": ("system", "system_prompt"),
    "reference": ("reference",),
    "context": ("context",),
    "tests": ("tests",),
    "requirements": ("requirements",),
    "tools": ("tools",),
    "tool_choice": ("tool_choice",),
}
RESPONSE_KEYS = ("content", "answer", "response", "completion", "text", "value")  # where a response stands in an object
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
MAX_CACHED_SPEC_CHARS = 1000  # characters of a spec that is remembered
MAX_LISTED_COLUMNS = 60
ABSENT = object()
SPEC_PATTERN = re.compile(r'(?:[^";\n]|"(?:[^"\\\n]|\\.)*"|"[^\n]*)+')  # a semicolon within quotes is none


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """The names of columns, as far as they are known. "" says that there is no such column, whatever the names are."""

    prompt: str | None = None
    messages: str | None = None
    response: str | None = None
    id: str | None = None
    system: str | None = None
    reference: str | None = None
    context: str | None = None
    tests: str | None = None
    requirements: str | None = None
    tools: str | None = None
    tool_choice: str | None = None


@dataclass(frozen=True, slots=True)
class RowMapping:
    """How rows are read. `more` is the column whose text follows the prompt (the `input` of an `instruction`)."""

    columns: TaskColumns
    input_column: str | None = None

    @property
    def description(self) -> str:
        """What was recognised, in words: 'prompt from "query", response from "response"'."""
        used = {f.name: getattr(self.columns, f.name) for f in fields(self.columns)}
        told = [f'{role} from "{name}"' for role, name in used.items() if name]
        if self.input_column:
            told[0] += f' and "{self.input_column}"'
        if self.columns.messages and not self.columns.response:
            told[0] += " (a last answer in it is the response)"
        return ", ".join(told)

    def task(self, values: Mapping[str, Any]) -> Task:
        """The task in a row. Columns that mean nothing here become its metadata. Raises ValueError, which names the column."""
        names = self.columns
        messages, last = self._messages_and_answer(values)
        given = _response(values, names.response) if names.response else None
        if None not in (given, last) and last != given:
            raise ValueError(f"{names.messages or names.prompt!r} ends with an answer, and {names.response!r} holds another one")
        return Task(
            _with_system(messages, _text(values, names.system), names.system),
            given if given is not None else last,
            reference=_text(values, names.reference),
            context=_text(values, names.context),
            tests=_text(values, names.tests, "\n"),
            requirements=_requirements(values, names.requirements),
            id=_id(values, names.id),
            metadata=dict(_unused_values(values, self._used_columns())),
            tools=_tools(values, names.tools),
            tool_choice=_tool_choice(values, names.tool_choice),
        )

    def _messages_and_answer(self, values: Mapping[str, Any]) -> tuple[list[Message], str | None]:
        """The messages, and the answer that stood at their end."""
        name = self.columns.messages or self.columns.prompt
        assert name
        value = value_at(values, name)
        if value is ABSENT:
            raise ValueError(f"{name!r} is missing{self._alternative_hint(values)}")
        if self.columns.prompt and isinstance(value, str):
            return [{"role": "user", "content": self._prompt(values, name, value)}], None
        return _conversation(value, name, text=not self.columns.messages)

    def _prompt(self, values: Mapping[str, Any], name: str, text: str) -> str:
        if not text.strip():
            raise ValueError(f"{name!r} is empty")
        more = _text(values, self.input_column)
        return f"{text}\n\n{more}" if more and more.strip() else text

    def _alternative_hint(self, values: Mapping[str, Any]) -> str:
        """A hint for a row of another shape: which column of it could be asked."""
        held, used = _SampleColumns([values]), self._used_columns()
        found = [
            n for n in (*held.matching(PROMPT_NAMES, _is_prompt), *held.matching(MESSAGES_NAMES, _is_messages)) if n not in used
        ]
        return f"; {found[0]!r} is there, but the table begins with rows of another shape" if found else ""

    def _used_columns(self) -> frozenset[str]:
        named = (getattr(self.columns, f.name) for f in fields(self.columns))
        return frozenset(filter(None, (*named, self.input_column)))


def infer_columns(sample: Sequence[Mapping[str, Any]], columns: TaskColumns = TaskColumns()) -> RowMapping:
    """The shape of a table, from its first rows and what is stated.

    Raises ConfigError for a stated column that is not there, for several columns that could be the prompt or the
    response, and where there is none for the prompt.
    """
    held = _SampleColumns(sample)
    for field in fields(columns):
        held.check(field.name, getattr(columns, field.name))
    if columns.prompt and columns.messages:
        raise ConfigError(f"--prompt-col {columns.prompt} and --messages-col {columns.messages}: only one of them can be asked")
    asked, more = _find_prompt(held, columns)
    response = _find_response(held, columns, {asked.prompt, asked.messages, more})
    others = {role: _find_other(held, role, getattr(columns, role)) for role in SYNONYMS}
    if columns.tool_choice is None and not others["tools"]:
        others["tool_choice"] = None  # without tools it says nothing
    return RowMapping(replace(asked, response=response, **others), more)


@dataclass(frozen=True)
class _SampleColumns:
    """What the first rows hold."""

    sample: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not self.sample:
            raise ConfigError("there is no row to tell by which column is what")

    def check(self, role: str, name: str | None) -> None:
        if name and not any(value_at(values, name) is not ABSENT for values in self.sample):
            raise ConfigError(f"--{role}-col {name}: there is no such column; there are {self.column_list()}")

    def matching(self, names: Sequence[str], fits: Callable[[Any], bool], outer: Sequence[str] = ("input",)) -> list[str]:
        """The columns of these names, also within the objects `outer`, that hold something which fits."""
        paths = [*names, *(f"{o}.{name}" for o in outer for name in names)]
        return [p for p in paths if any(fits(value_at(values, p)) for values in self.sample)]

    def empty_columns(self, names: Sequence[str]) -> list[str]:
        """The columns of these names that are there and hold nothing."""
        held = {name: [value_at(values, name) for values in self.sample] for name in names}
        return [n for n in names if any(v is None for v in held[n]) and not any(map(_has_value, held[n]))]

    def first_present(self, names: Sequence[str]) -> str | None:
        """The first column of these names that is there, and holds no objects."""
        return next(
            (
                n
                for n in names
                if any(_has_value(v := value_at(values, n)) and not isinstance(v, Mapping) for values in self.sample)
            ),
            None,
        )

    def column_list(self) -> str:
        """All columns, and the parts of objects."""
        names: dict[str, None] = {}
        for values in self.sample:
            for key, value in values.items():
                parts = [f"{key}.{inner}" for inner in value] if isinstance(value, Mapping) else []
                names.update(dict.fromkeys(parts or [str(key)]))
        more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
        return (", ".join(repr(n[:80]) for n in list(names)[:MAX_LISTED_COLUMNS]) + more or "none") + delimiter_hint(list(names))


def _has_value(value: Any) -> bool:
    return value is not None and value is not ABSENT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value))


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_messages(value: Any) -> bool:
    """Whether it holds messages, be it as JSON in a text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = strict_loads(value)
        except ValueError:
            return False
    messages = isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) for m in value)
    spoken = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return messages and all(any(keys <= m.keys() for keys in spoken) for m in value)


def _is_tools(value: Any) -> bool:
    """Whether it holds tools in OpenAI's form, be it as JSON in a text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = strict_loads(value)
        except ValueError:
            return False
    return isinstance(value, list) and bool(value) and all(isinstance(tool, Mapping) and "function" in tool for tool in value)


def _is_choice(value: Any) -> bool:
    return isinstance(value, str | Mapping) and bool(value)


VALUE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "id": _is_id,
    "system": _is_text,
    "tools": _is_tools,
    "tool_choice": _is_choice,
}


def _is_response(value: Any) -> bool:
    try:
        return bool(_has_value(value)) and isinstance(_response_text(value, ""), str)
    except ValueError:
        return False


def _find_prompt(sample: _SampleColumns, columns: TaskColumns) -> tuple[TaskColumns, str | None]:
    """The column that is asked, and the one that follows it."""
    if columns.prompt or columns.messages:
        return TaskColumns(prompt=columns.prompt or None, messages=columns.messages or None), None
    chats = [] if columns.messages == "" else sample.matching(MESSAGES_NAMES, _is_messages)
    texts = [] if columns.prompt == "" else [n for n in sample.matching(PROMPT_NAMES, _is_prompt) if n not in chats]
    texts = texts or ([] if columns.prompt == "" or chats else sample.matching(("text",), _is_text))
    if {"instruction", "input"} == set(texts) and not chats:
        return TaskColumns(prompt="instruction"), "input"
    found = [*texts, *chats]
    if len(found) != 1:
        if not found and columns.prompt is None and (name := sample.first_present((*PROMPT_NAMES, *MESSAGES_NAMES))):
            raise ConfigError(f"{name!r} holds neither texts nor messages; name another column by --prompt-col or --messages-col")
        raise ConfigError(_ambiguous_message("prompt", found, "--prompt-col or --messages-col", sample))
    return (TaskColumns(messages=found[0]) if chats else TaskColumns(prompt=found[0])), None


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or _is_messages(value)


def _find_response(sample: _SampleColumns, columns: TaskColumns, excluded: set[str | None]) -> str | None:
    if columns.response is not None:
        return columns.response or None
    inner = sample.matching([f"output.{name}" for name in RESPONSE_KEYS], _is_response, ())
    outer = [n for n in sample.matching(RESPONSE_NAMES, _is_response, ()) if n not in excluded and not (inner and n == "output")]
    found = [*outer, *inner] or [n for n in sample.empty_columns(RESPONSE_NAMES) if n not in excluded]
    if len(found) > 1:
        raise ConfigError(_ambiguous_message("response", found, "--response-col", sample))
    return found[0] if found else None


def _find_other(sample: _SampleColumns, role: str, declared: str | None) -> str | None:
    if declared is not None:
        return declared or None
    fits = VALUE_CHECKS.get(role, _is_texts)
    return next(iter(sample.matching(SYNONYMS[role], fits, ("input", "output"))), None)


def _ambiguous_message(role: str, candidates: list[str], options: str, sample: _SampleColumns) -> str:
    if candidates:
        return f"several columns could be the {role}: {', '.join(map(repr, candidates))}; state it by {options}"
    return f"no column is known to be the {role}; state it by {options}. There are {sample.column_list()}"


# --- what a row holds ------------------------------------------------------------------------------------------------------


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """What stands in a column, or under a path into one; ABSENT where there is nothing."""
    if path in values:
        return values[path]
    found: Any = values
    for key in path.split(".") if "." in path else ():
        if not isinstance(found, Mapping) or key not in found:
            return ABSENT
        found = found[key]
    return ABSENT if found is values else found


def _unused_values(values: Mapping[str, Any], used_names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """What of a row was not used."""
    for name, value in values.items():
        if name in used_names:
            continue
        if isinstance(value, Mapping) and (inner := {u.partition(".")[2] for u in used_names if u.startswith(f"{name}.")}):
            value = dict(_unused_values(value, frozenset(inner)))  # noqa: PLW2901
            if not value:
                continue
        yield name, value


def _text(values: Mapping[str, Any], name: str | None, separator: str = "\n\n") -> str | None:
    """A text; texts in a list are joined. None where there is none."""
    value = value_at(values, name) if name else None
    if value is None or value is ABSENT:
        return None
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return separator.join(value)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} must be text, got {_shortened(value)}")
    return value


def _id(values: Mapping[str, Any], name: str | None) -> str | None:
    value = value_at(values, name) if name else None
    if not _has_value(value) or (isinstance(value, str) and not value):
        return None
    if not _is_id(value):
        raise ValueError(f"{name!r} must be a text or a number, got {_shortened(value)}")
    return str(value)


def _response(values: Mapping[str, Any], name: str) -> str | None:
    """The response; None where there is none, so that it is still to be written."""
    value = value_at(values, name)
    return None if value is None or value is ABSENT else _response_text(value, name)


def _response_text(value: Any, name: str, depth: int = 0) -> str:
    """The response in a text, in a list of one, or in an object that holds it under a usual name."""
    if isinstance(value, str):
        return value
    inner = value if isinstance(value, list) else _response_parts(value)
    if len(inner) > 1:
        raise ValueError(f"{name!r} holds {len(inner)} responses; a row has one")
    if not inner or depth == MAX_NESTING:
        raise ValueError(f"{name!r} must be text, got {_shortened(value)}")
    return _response_text(inner[0], name, depth + 1)


def _response_parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping) and isinstance(value.get("role", "assistant"), str) and "content" in value:
        parts = value["content"]
        return [message_text({"content": parts})] if isinstance(parts, list) and parts else [parts]
    return [value[key] for key in RESPONSE_KEYS if value.get(key) is not None] if isinstance(value, Mapping) else []


def _conversation(value: Any, name: str, *, text: bool) -> tuple[list[Message], str | None]:
    """Messages, and the answer at their end, which is none of them."""
    if value is None:
        raise ValueError(f"{name!r} is null")
    if isinstance(value, str) and not text:
        value = _read_json(value, name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name!r} must be {'text or ' if text else ''}a list of messages, got {_shortened(value)}")
    messages: list[Message] = [_message(m, name) for m in value]
    last = _answer(messages.pop(), name) if messages[-1]["role"] == "assistant" else None
    if not any(m["role"] != "system" and _has_content(m) for m in messages):
        raise ValueError(f"{name!r} asks nothing")
    return messages, last


def _read_json(text: str, name: str | None, kind: str = "messages") -> Any:
    try:
        return strict_loads(text)
    except ValueError as error:
        must = "tool_choice must be a word or an object" if kind == "tool_choice" else f"{name!r} must be a list of {kind}"
        raise ValueError(f"{must}, be it as JSON: {error}") from error


def _message(message: Any, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{name!r}: a message is an object, got {_shortened(message)}")
    if "from" in message and "value" in message and "role" not in message:
        message = {"role": _role_of(message["from"], name), "content": message["value"]}
    absent = None if message.get("tool_calls") else ABSENT
    if not isinstance(message.get("role"), str) or not isinstance(message.get("content", absent), str | list | None):
        raise ValueError(f'{name!r}: a message is {{"role": ..., "content": ...}}, got {_shortened(message)}')
    return {"content": None} | {key: value for key, value in message.items() if value is not None}


def _role_of(name: Any, column: str) -> str:
    if not isinstance(name, str) or name not in ROLE_BY_SPEAKER:
        raise ValueError(f"{column!r}: nobody is known by the name {_shortened(name)}; there are {', '.join(ROLE_BY_SPEAKER)}")
    return ROLE_BY_SPEAKER[name]


def _answer(message: Message, name: str) -> str:
    if not isinstance(message["content"], str | list):
        raise ValueError(f"{name!r} ends with an answer without text")
    return message_text(message)


def _has_content(message: Message) -> bool:
    content = message["content"]
    return bool(content.strip() if isinstance(content, str) else content)


def _with_system(messages: list[Message], system: str | None, name: str | None) -> list[Message]:
    if not system or not system.strip():
        return messages
    if messages[0]["role"] == "system":
        raise ValueError(f"{name!r} holds a system message, but the messages begin with one")
    return [{"role": "system", "content": system}, *messages]


def _requirements(values: Mapping[str, Any], name: str | None) -> tuple[str, ...]:
    """Specs: a list, JSON of one, or a text with line ends or semicolons between them."""
    value = value_at(values, name) if name else None
    if value is None or value is ABSENT:
        return ()
    if isinstance(value, str):
        value = _split_specs(value)
    if not isinstance(value, list) or not all(isinstance(spec, str) for spec in value):
        raise ValueError(f"{name!r} must be a text or a list of specs, got {_shortened(value)}")
    try:
        return tuple(_check_spec_cached(spec) if len(spec) <= MAX_CACHED_SPEC_CHARS else _check_spec(spec) for spec in value)
    except ConfigError as error:
        raise ValueError(f"{name!r}: {error}") from error


def _tools(values: Mapping[str, Any], name: str | None) -> list[Mapping[str, Any]] | None:
    """Tools in OpenAI's form: a list, or JSON of one."""
    value = value_at(values, name) if name else None
    if value is None or value is ABSENT or value == "":
        return None
    found = _read_json(value, name, "tools") if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"{name!r} must be a list of tools, got {_shortened(found)}")
    return found


def _tool_choice(values: Mapping[str, Any], name: str | None) -> Any:
    """Whether tools must be called: a word, an object, or JSON of one."""
    value = value_at(values, name) if name else None
    if value is None or value is ABSENT or value == "":
        return None
    return _read_json(value, name, "tool_choice") if isinstance(value, str) and value.lstrip().startswith("{") else value


def _split_specs(text: str) -> Any:
    if text.lstrip().startswith("["):
        try:
            return strict_loads(text)
        except ValueError:
            pass
    return [spec for found in SPEC_PATTERN.findall(text) if (spec := found.strip())]


def _check_spec(spec: str) -> str:
    """A spec that is one. It comes from strangers: it must not read a file."""
    parse(spec, files=False)
    return spec


_check_spec_cached = lru_cache(maxsize=4096)(_check_spec)


def _shortened(value: Any) -> str:
    found = format_value(value)
    return found if len(found) <= 80 else f"{found[:77]}..."
