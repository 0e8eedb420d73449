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

from ..checks import shown
from ..core.records import Message, Task, text_of
from ..errors import ConfigError
from ..jsontext import parsed
from ..requirements import parse
from .readers import other_marks

PROMPTS = ("prompt", "query", "question", "instruction", "input")
MESSAGES = ("messages", "conversations", "conversation", "input")
RESPONSES = ("response", "completion", "answer", "output")
USUAL: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "uid", "unique_id"),
    "system": ("system", "system_prompt"),
    "reference": ("reference",),
    "context": ("context",),
    "tests": ("tests",),
    "requirements": ("requirements",),
    "tools": ("tools",),
    "tool_choice": ("tool_choice",),
}
INNER = ("content", "answer", "response", "completion", "text", "value")  # where a response stands in an object
SPEAKERS: Mapping[str, str] = {
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
MOST_INNER = 5
LONGEST_KNOWN = 1000  # characters of a spec that is remembered
MOST_SHOWN = 60
ABSENT = object()
SPEC = re.compile(r'(?:[^";\n]|"(?:[^"\\\n]|\\.)*"|"[^\n]*)+')  # a semicolon within quotes is none


@dataclass(frozen=True, slots=True)
class Columns:
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
class Shape:
    """How rows are read. `more` is the column whose text follows the prompt (the `input` of an `instruction`)."""

    columns: Columns
    more: str | None = None

    @property
    def said(self) -> str:
        """What was recognised, in words: 'prompt from "query", response from "response"'."""
        used = {f.name: getattr(self.columns, f.name) for f in fields(self.columns)}
        told = [f'{role} from "{name}"' for role, name in used.items() if name]
        if self.more:
            told[0] += f' and "{self.more}"'
        if self.columns.messages and not self.columns.response:
            told[0] += " (a last answer in it is the response)"
        return ", ".join(told)

    def task(self, values: Mapping[str, Any]) -> Task:
        """The task in a row. Columns that mean nothing here become its metadata. Raises ValueError, which names the column."""
        names = self.columns
        messages, last = self._asked(values)
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
            metadata=dict(_rest(values, self._used())),
            tools=_tools(values, names.tools),
            tool_choice=_tool_choice(values, names.tool_choice),
        )

    def _asked(self, values: Mapping[str, Any]) -> tuple[list[Message], str | None]:
        """The messages, and the answer that stood at their end."""
        name = self.columns.messages or self.columns.prompt
        assert name
        value = at(values, name)
        if value is ABSENT:
            raise ValueError(f"{name!r} is missing{self._instead(values)}")
        if self.columns.prompt and isinstance(value, str):
            return [{"role": "user", "content": self._prompt(values, name, value)}], None
        return _conversation(value, name, text=not self.columns.messages)

    def _prompt(self, values: Mapping[str, Any], name: str, text: str) -> str:
        if not text.strip():
            raise ValueError(f"{name!r} is empty")
        more = _text(values, self.more)
        return f"{text}\n\n{more}" if more and more.strip() else text

    def _instead(self, values: Mapping[str, Any]) -> str:
        """A hint for a row of another shape: which column of it could be asked."""
        held, used = _Held([values]), self._used()
        found = [n for n in (*held.fitting(PROMPTS, _askable), *held.fitting(MESSAGES, _is_chat)) if n not in used]
        return f"; {found[0]!r} is there, but the table begins with rows of another shape" if found else ""

    def _used(self) -> frozenset[str]:
        named = (getattr(self.columns, f.name) for f in fields(self.columns))
        return frozenset(filter(None, (*named, self.more)))


def recognised(sample: Sequence[Mapping[str, Any]], columns: Columns = Columns()) -> Shape:
    """The shape of a table, from its first rows and what is stated.

    Raises ConfigError for a stated column that is not there, for several columns that could be the prompt or the
    response, and where there is none for the prompt.
    """
    held = _Held(sample)
    for field in fields(columns):
        held.check(field.name, getattr(columns, field.name))
    if columns.prompt and columns.messages:
        raise ConfigError(f"--prompt-col {columns.prompt} and --messages-col {columns.messages}: only one of them can be asked")
    asked, more = _asked_in(held, columns)
    response = _response_in(held, columns, {asked.prompt, asked.messages, more})
    others = {role: _other_in(held, role, getattr(columns, role)) for role in USUAL}
    if columns.tool_choice is None and not others["tools"]:
        others["tool_choice"] = None  # without tools it says nothing
    return Shape(replace(asked, response=response, **others), more)


@dataclass(frozen=True)
class _Held:
    """What the first rows hold."""

    sample: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not self.sample:
            raise ConfigError("there is no row to tell by which column is what")

    def check(self, role: str, name: str | None) -> None:
        if name and not any(at(values, name) is not ABSENT for values in self.sample):
            raise ConfigError(f"--{role}-col {name}: there is no such column; there are {self.listed()}")

    def fitting(self, names: Sequence[str], fits: Callable[[Any], bool], outer: Sequence[str] = ("input",)) -> list[str]:
        """The columns of these names, also within the objects `outer`, that hold something which fits."""
        paths = [*names, *(f"{o}.{name}" for o in outer for name in names)]
        return [p for p in paths if any(fits(at(values, p)) for values in self.sample)]

    def empty(self, names: Sequence[str]) -> list[str]:
        """The columns of these names that are there and hold nothing."""
        held = {name: [at(values, name) for values in self.sample] for name in names}
        return [n for n in names if any(v is None for v in held[n]) and not any(map(_something, held[n]))]

    def present(self, names: Sequence[str]) -> str | None:
        """The first column of these names that is there, and holds no objects."""
        return next(
            (n for n in names if any(_something(v := at(values, n)) and not isinstance(v, Mapping) for values in self.sample)), None
        )

    def listed(self) -> str:
        """All columns, and the parts of objects."""
        names: dict[str, None] = {}
        for values in self.sample:
            for key, value in values.items():
                parts = [f"{key}.{inner}" for inner in value] if isinstance(value, Mapping) else []
                names.update(dict.fromkeys(parts or [str(key)]))
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        return (", ".join(repr(n[:80]) for n in list(names)[:MOST_SHOWN]) + more or "none") + other_marks(list(names))


def _something(value: Any) -> bool:
    return value is not None and value is not ABSENT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value))


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_chat(value: Any) -> bool:
    """Whether it holds messages, be it as JSON in a text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = parsed(value)
        except ValueError:
            return False
    messages = isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) for m in value)
    spoken = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return messages and all(any(keys <= m.keys() for keys in spoken) for m in value)


def _is_tools(value: Any) -> bool:
    """Whether it holds tools in OpenAI's form, be it as JSON in a text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = parsed(value)
        except ValueError:
            return False
    return isinstance(value, list) and bool(value) and all(isinstance(tool, Mapping) and "function" in tool for tool in value)


def _is_choice(value: Any) -> bool:
    return isinstance(value, str | Mapping) and bool(value)


FITS: Mapping[str, Callable[[Any], bool]] = {"id": _is_id, "system": _is_text, "tools": _is_tools, "tool_choice": _is_choice}


def _is_response(value: Any) -> bool:
    try:
        return bool(_something(value)) and isinstance(_inner(value, ""), str)
    except ValueError:
        return False


def _asked_in(held: _Held, columns: Columns) -> tuple[Columns, str | None]:
    """The column that is asked, and the one that follows it."""
    if columns.prompt or columns.messages:
        return Columns(prompt=columns.prompt or None, messages=columns.messages or None), None
    chats = [] if columns.messages == "" else held.fitting(MESSAGES, _is_chat)
    texts = [] if columns.prompt == "" else [n for n in held.fitting(PROMPTS, _askable) if n not in chats]
    texts = texts or ([] if columns.prompt == "" or chats else held.fitting(("text",), _is_text))
    if {"instruction", "input"} == set(texts) and not chats:
        return Columns(prompt="instruction"), "input"
    found = [*texts, *chats]
    if len(found) != 1:
        if not found and columns.prompt is None and (name := held.present((*PROMPTS, *MESSAGES))):
            raise ConfigError(f"{name!r} holds neither texts nor messages; name another column by --prompt-col or --messages-col")
        raise ConfigError(_unclear("prompt", found, "--prompt-col or --messages-col", held))
    return (Columns(messages=found[0]) if chats else Columns(prompt=found[0])), None


def _askable(value: Any) -> bool:
    return isinstance(value, str) or _is_chat(value)


def _response_in(held: _Held, columns: Columns, taken: set[str | None]) -> str | None:
    if columns.response is not None:
        return columns.response or None
    inner = held.fitting([f"output.{name}" for name in INNER], _is_response, ())
    outer = [n for n in held.fitting(RESPONSES, _is_response, ()) if n not in taken and not (inner and n == "output")]
    found = [*outer, *inner] or [n for n in held.empty(RESPONSES) if n not in taken]
    if len(found) > 1:
        raise ConfigError(_unclear("response", found, "--response-col", held))
    return found[0] if found else None


def _other_in(held: _Held, role: str, stated: str | None) -> str | None:
    if stated is not None:
        return stated or None
    fits = FITS.get(role, _is_texts)
    return next(iter(held.fitting(USUAL[role], fits, ("input", "output"))), None)


def _unclear(role: str, found: list[str], options: str, held: _Held) -> str:
    if found:
        return f"several columns could be the {role}: {', '.join(map(repr, found))}; state it by {options}"
    return f"no column is known to be the {role}; state it by {options}. There are {held.listed()}"


# --- what a row holds ------------------------------------------------------------------------------------------------------


def at(values: Mapping[str, Any], path: str) -> Any:
    """What stands in a column, or under a path into one; ABSENT where there is nothing."""
    if path in values:
        return values[path]
    found: Any = values
    for key in path.split(".") if "." in path else ():
        if not isinstance(found, Mapping) or key not in found:
            return ABSENT
        found = found[key]
    return ABSENT if found is values else found


def _rest(values: Mapping[str, Any], used: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """What of a row was not used."""
    for name, value in values.items():
        if name in used:
            continue
        if isinstance(value, Mapping) and (inner := {u.partition(".")[2] for u in used if u.startswith(f"{name}.")}):
            value = dict(_rest(value, frozenset(inner)))  # noqa: PLW2901
            if not value:
                continue
        yield name, value


def _text(values: Mapping[str, Any], name: str | None, between: str = "\n\n") -> str | None:
    """A text; texts in a list are joined. None where there is none."""
    value = at(values, name) if name else None
    if value is None or value is ABSENT:
        return None
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return between.join(value)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} must be text, got {_short(value)}")
    return value


def _id(values: Mapping[str, Any], name: str | None) -> str | None:
    value = at(values, name) if name else None
    if not _something(value) or (isinstance(value, str) and not value):
        return None
    if not _is_id(value):
        raise ValueError(f"{name!r} must be a text or a number, got {_short(value)}")
    return str(value)


def _response(values: Mapping[str, Any], name: str) -> str | None:
    """The response; None where there is none, so that it is still to be written."""
    value = at(values, name)
    return None if value is None or value is ABSENT else _inner(value, name)


def _inner(value: Any, name: str, depth: int = 0) -> str:
    """The response in a text, in a list of one, or in an object that holds it under a usual name."""
    if isinstance(value, str):
        return value
    inner = value if isinstance(value, list) else _parts(value)
    if len(inner) > 1:
        raise ValueError(f"{name!r} holds {len(inner)} responses; a row has one")
    if not inner or depth == MOST_INNER:
        raise ValueError(f"{name!r} must be text, got {_short(value)}")
    return _inner(inner[0], name, depth + 1)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping) and isinstance(value.get("role", "assistant"), str) and "content" in value:
        parts = value["content"]
        return [text_of({"content": parts})] if isinstance(parts, list) and parts else [parts]
    return [value[key] for key in INNER if value.get(key) is not None] if isinstance(value, Mapping) else []


def _conversation(value: Any, name: str, *, text: bool) -> tuple[list[Message], str | None]:
    """Messages, and the answer at their end, which is none of them."""
    if value is None:
        raise ValueError(f"{name!r} is null")
    if isinstance(value, str) and not text:
        value = _read_json(value, name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name!r} must be {'text or ' if text else ''}a list of messages, got {_short(value)}")
    messages: list[Message] = [_message(m, name) for m in value]
    last = _answer(messages.pop(), name) if messages[-1]["role"] == "assistant" else None
    if not any(m["role"] != "system" and _says_something(m) for m in messages):
        raise ValueError(f"{name!r} asks nothing")
    return messages, last


def _read_json(text: str, name: str | None, what: str = "messages") -> Any:
    try:
        return parsed(text)
    except ValueError as error:
        must = "tool_choice must be a word or an object" if what == "tool_choice" else f"{name!r} must be a list of {what}"
        raise ValueError(f"{must}, be it as JSON: {error}") from error


def _message(message: Any, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{name!r}: a message is an object, got {_short(message)}")
    if "from" in message and "value" in message and "role" not in message:
        message = {"role": _speaker(message["from"], name), "content": message["value"]}
    absent = None if message.get("tool_calls") else ABSENT
    if not isinstance(message.get("role"), str) or not isinstance(message.get("content", absent), str | list | None):
        raise ValueError(f'{name!r}: a message is {{"role": ..., "content": ...}}, got {_short(message)}')
    return {"content": None} | {key: value for key, value in message.items() if value is not None}


def _speaker(name: Any, column: str) -> str:
    if not isinstance(name, str) or name not in SPEAKERS:
        raise ValueError(f"{column!r}: nobody is known by the name {_short(name)}; there are {', '.join(SPEAKERS)}")
    return SPEAKERS[name]


def _answer(message: Message, name: str) -> str:
    if not isinstance(message["content"], str | list):
        raise ValueError(f"{name!r} ends with an answer without text")
    return text_of(message)


def _says_something(message: Message) -> bool:
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
    value = at(values, name) if name else None
    if value is None or value is ABSENT:
        return ()
    if isinstance(value, str):
        value = _specs(value)
    if not isinstance(value, list) or not all(isinstance(spec, str) for spec in value):
        raise ValueError(f"{name!r} must be a text or a list of specs, got {_short(value)}")
    try:
        return tuple(_known(spec) if len(spec) <= LONGEST_KNOWN else _checked(spec) for spec in value)
    except ConfigError as error:
        raise ValueError(f"{name!r}: {error}") from error


def _tools(values: Mapping[str, Any], name: str | None) -> list[Mapping[str, Any]] | None:
    """Tools in OpenAI's form: a list, or JSON of one."""
    value = at(values, name) if name else None
    if value is None or value is ABSENT or value == "":
        return None
    found = _read_json(value, name, "tools") if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"{name!r} must be a list of tools, got {_short(found)}")
    return found


def _tool_choice(values: Mapping[str, Any], name: str | None) -> Any:
    """Whether tools must be called: a word, an object, or JSON of one."""
    value = at(values, name) if name else None
    if value is None or value is ABSENT or value == "":
        return None
    return _read_json(value, name, "tool_choice") if isinstance(value, str) and value.lstrip().startswith("{") else value


def _specs(text: str) -> Any:
    if text.lstrip().startswith("["):
        try:
            return parsed(text)
        except ValueError:
            pass
    return [spec for found in SPEC.findall(text) if (spec := found.strip())]


def _checked(spec: str) -> str:
    """A spec that is one. It comes from strangers: it must not read a file."""
    parse(spec, files=False)
    return spec


_known = lru_cache(maxsize=4096)(_checked)


def _short(value: Any) -> str:
    found = shown(value)
    return found if len(found) <= 80 else f"{found[:77]}..."
