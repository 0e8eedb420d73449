"""The values of a row: texts, messages, responses and tools, in the forms in which data sets hold
them.

A function takes a row and the name of a column, or a path into one. For a value that it cannot read
it raises ValueError, which names the column. Which column holds what is not known here (see
`columns`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..base.checks import format_value, is_blank
from ..base.jsontext import strict_loads
from ..loop.task import Message, message_text
from .cells import START, TextAfterValue, load_cell

# of stored messages, for no endpoint
BOOKKEEPING_KEYS = {"additional_kwargs", "time_created", "label", "reward", "metadata"}
MISSING = object()
TEST_CODE = re.compile(
    r"^[ \t]*(?:assert\b|def (?:check|test\w*)\(|class \w+\([\w.]*TestCase\))", re.MULTILINE
)
TESTS_AS_JSON = re.compile(
    r"""\[\s*["']\s*assert\b|(?=.*["'](?:inputs?|stdin)["']\s*:).*["'](?:outputs?|stdout|raises)["']\s*:|.*["']test_list["']\s*:""",
    re.DOTALL,
)
KEYS_OF_TESTS: tuple[frozenset[str], ...] = tuple(
    map(frozenset, (("input", "output"), ("input", "raises"), ("stdin", "stdout")))
)
SET_UP_OF_TESTS = ("test_setup_code", "test_imports")  # columns of MBPP
# keys of a response in an object
RESPONSE_KEYS = ("content", "answer", "response", "completion", "text", "value")
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
ANSWERING_ROLES = {name for name, role in ROLE_BY_SPEAKER.items() if role == "assistant"}
MAX_NESTING = 5
LIST_TEXT = re.compile(  # it looks like a list, an array, a tuple or a set of texts or objects
    r"""\s*(?: (array\(|list\()? \[\s* (?: \] | (?:["'{\[] | (?:None|nan)\b | (?:array|list|np\.\w+)\( ) .* \] ) (?(1)[^\]"']*\))
    | \( \s*(?:"[^"]*"|'[^']*')\s*, (?: .* ["'\]}] )? \s*(?:,\s*)? \) | \{ \s*(?:"[^"]*"|'[^']*')\s*, .* ["'] \s*\}
    | \[\s*["'{] (?=.*?["'}](?:\s*,\s*|\s+)["'{]) (?!.*["'}]\s*\]) .*  # it is cut off
    )\s*""",  # noqa: E501
    re.DOTALL | re.VERBOSE,
)
CHAT_TEXT = re.compile(  # it begins as messages do: a list, or an object as Python writes it
    r"""\s*(?:array\()?(?:\[\s*\{|\{\s*(?='))(?=.*?["'](?:role|from)["']\s*:\s*["'](?:SPEAKERS)["'])(?=.*?["'](?:content|value)["']\s*:)""".replace(
        "SPEAKERS", "|".join(ROLE_BY_SPEAKER)
    ),
    re.DOTALL,
)
PYTHON_KEY = re.compile(r"[^{]*\{\s*'")  # of the first object
# text up to a semicolon that is not in quotes
SPEC_PATTERN = re.compile(r'(?:[^";\n]|"(?:[^"\\\n]|\\.)*"|"[^\n]*)+')


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or at a path into one; MISSING if there is none."""
    if path in values:
        return values[path]
    value: Any = values
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and len(key) < 6 and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
    return value


def has_value(value: Any) -> bool:
    """Return whether a value is neither missing nor null nor a blank text, which is all that CSV
    has for null.
    """
    return (
        value is not None
        and value is not MISSING
        and not (isinstance(value, str) and is_blank(value))
    )


def value_or_none(values: Mapping[str, Any], name: str | None) -> Any:
    """Return the value of a column; None where it is missing or blank."""
    value = value_at(values, name) if name else None
    return value if has_value(value) else None


def metadata_without(values: Mapping[str, Any], used_names: frozenset[str]) -> dict[str, Any]:
    """Return the columns without a role. A mapping in a column "metadata" is spread; columns of
    equal name take precedence.
    """
    if used_names >= values.keys():
        return {}
    unused = dict(_unused_values(values, used_names))
    if isinstance(text := unused.get("metadata"), str) and text.lstrip().startswith("{"):
        with suppress(ValueError):
            unused["metadata"] = load_cell(text)
    if not isinstance(unused.get("metadata"), Mapping):
        return unused
    return {**unused.pop("metadata"), **unused}


def _unused_values(
    values: Mapping[str, Any], used_names: frozenset[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a row that have no role."""
    for name, value in values.items():
        if name in used_names:
            continue
        if isinstance(value, Mapping) and (
            inner := {u.partition(".")[2] for u in used_names if u.startswith(f"{name}.")}
        ):
            value = dict(_unused_values(value, frozenset(inner)))  # noqa: PLW2901
            if not value:
                continue
        yield name, value


def text_at(values: Mapping[str, Any], name: str | None, separator: str = "\n\n") -> str | None:
    """Return a text, or the texts of a list joined; None where there is none."""
    value = value_or_none(values, name)
    if _is_list_of_texts(value):
        return separator.join(filter(has_value, value)) or None
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name!r} must be text, got {format_value(value, 80)}")
    return value


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str | None) for item in value)


def _is_json(text: str) -> bool:
    try:
        strict_loads(text)
    except ValueError:
        return False
    return True


def tests_at(
    values: Mapping[str, Any], name: str | None
) -> str | Sequence[Any] | Mapping[str, Any] | None:
    """Return tests: a text, or a list or an object, which the task keeps as JSON; None where there
    are none.

    A list of asserts comes with the columns of MBPP that say what runs before them.
    """
    value: Any = value_or_none(values, name)
    if isinstance(value, str) and START.match(value):
        with suppress(ValueError):
            read = load_cell(value)
            value = (
                read
                if "array([" in value or (_is_list_of_texts(read) and not _is_json(value))
                else value
            )
    if value is not None and not isinstance(value, str | list | Mapping):
        raise ValueError(
            f"{name!r} must be a text, a list or an object, got {format_value(value, 80)}"
        )
    set_up = {column: values[column] for column in SET_UP_OF_TESTS if values.get(column)}
    return {"test_list": value, **set_up} if set_up and _is_list_of_asserts(value) else value


def looks_like_tests(value: Any) -> bool:
    """Return whether a value is test code, asserts, or objects with inputs and outputs, also as
    JSON in a text.
    """
    match value:
        case str() if value.lstrip().startswith(("[", "{")):
            return bool(TESTS_AS_JSON.match(value.lstrip()))
        case str():
            return bool(TEST_CODE.search(value))
        case [str(), *_]:
            return all(isinstance(each, str) and TEST_CODE.search(each) for each in value)
        case [Mapping(), *_]:
            return all(
                isinstance(each, Mapping) and any(keys <= each.keys() for keys in KEYS_OF_TESTS)
                for each in value
            )
        case Mapping():
            return {"inputs", "outputs"} <= value.keys() or "test_list" in value
    return False


def tests_metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that say which function its tests call, and how its program
    begins.
    """
    return {
        name: value
        for name in ("entry_point", "code_prefix")
        if isinstance(value := values.get(name), str)
    }


def _is_list_of_asserts(value: Any) -> bool:
    """Return whether a value is a list of texts, also as JSON in a text."""
    if isinstance(value, str):
        return value.lstrip().startswith('["')
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def is_id(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def id_at(values: Mapping[str, Any], name: str | None) -> str | None:
    value = value_or_none(values, name)
    if value is None:
        return None
    if value.__class__ is not str and not is_id(value):
        raise ValueError(f"{name!r} must be a text or a number, got {format_value(value, 80)}")
    return str(value)


def response_at(values: Mapping[str, Any], name: str) -> str | None:
    """Return the response; None if there is none yet."""
    value = value_or_none(values, name)
    if (
        isinstance(value, str)
        and is_python_chat(value)
        and (messages := messages_in(value, name)) is not None
    ):
        return response_text(messages, name)
    return value if value is None or value.__class__ is str else response_text(value, name)


def responses_at(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the responses in a list, or the one in a text or an object; () if there are none yet.
    One that is null is none.
    """
    value = value_or_none(values, name)
    if looks_like_list(value):
        value = _load(value, f"{name!r} looks like a list of responses")
    return (
        ()
        if value is None or value == []
        else read_responses(list(filter(has_value, as_list(value) or [value])), name)
    )


def read_responses(items: Sequence[Any], name: str) -> tuple[str, ...]:
    """Return the texts of responses in any form of one. Raises ValueError that names the column."""
    return tuple(
        response_text(item, f"{name}.{n}" if len(items) > 1 else name)
        for n, item in enumerate(items)
    )


def looks_like_list(value: Any) -> bool:
    """Return whether a value is a text that looks like a list of texts or objects, or like
    messages, readable or not.
    """
    return (
        isinstance(value, str)
        and (LIST_TEXT.fullmatch(value) or CHAT_TEXT.match(value)) is not None
    )


def as_list(value: Any) -> list[Any]:
    """Return a list, also from a text (see `load_cell`); [] for anything else."""
    if isinstance(value, str) and START.match(value):
        try:
            value = load_cell(value)
        except ValueError:
            return []
    return value if isinstance(value, list) else []


def messages_in(text: str, name: str) -> list[Mapping[str, Any]] | None:
    """Return the messages in a text that holds a list of them, or one as Python writes it; None for
    any other text.

    Raises ValueError, which names the column, for a text that begins as messages do and cannot be
    read.
    """
    if not CHAT_TEXT.match(text):
        return None
    try:
        value = load_cell(text)
    except TextAfterValue:  # a question about messages
        return None
    except ValueError as error:
        raise ValueError(f"{name!r} looks like messages, or JSON of one: {error}") from error
    items = value if isinstance(value, list) else [value]
    return items if all(map(_is_message, items)) else None


def is_python_chat(text: str) -> bool:
    """Return whether a text begins as messages do that Python or numpy has written; an answer may
    be JSON of messages.
    """
    return CHAT_TEXT.match(text) is not None and PYTHON_KEY.match(text) is not None


def _is_message(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    speaker, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    return (
        isinstance(speaker, str)
        and speaker in ROLE_BY_SPEAKER
        and isinstance(content, str | list | None)
    )


def response_text(value: Any, name: str, depth: int = 0) -> str:
    """Return a text, the text in a list of one, or the text in an object under one of the usual
    keys.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        inner = value
    elif (
        isinstance(value, Mapping)
        and isinstance(value.get("role", "assistant"), str)
        and "content" in value
    ):
        parts = value["content"]
        inner = [message_text({"content": parts})] if isinstance(parts, list) and parts else [parts]
    else:
        inner = (
            [value[key] for key in RESPONSE_KEYS if value.get(key) is not None]
            if isinstance(value, Mapping)
            else []
        )
    if len(inner) > 1:
        raise ValueError(
            f"{name!r} holds {len(inner)} responses; name it by --column responses={name}"
        )
    if not inner or depth == MAX_NESTING:
        raise ValueError(f"{name!r} must be text, got {format_value(value, 80)}")
    return response_text(inner[0], name, depth + 1)


def read_conversation(
    value: Any, name: str, *, may_be_text: bool
) -> tuple[list[Message], str | None]:
    """Return the messages of a conversation without the answer at its end, and that answer."""
    if value is None:
        raise ValueError(f"{name!r} is null")
    if isinstance(value, str) and not may_be_text:
        value = _load(value, f"{name!r} must be a list of messages")
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{name!r} must be {'text or ' if may_be_text else ''}a list of messages, got "
            f"{format_value(value, 80)}"
        )
    messages: list[Message] = [read_message(m, name) for m in value]
    answer = None
    if messages[-1]["role"] == "assistant":
        answer = _last_answer(messages.pop(), name) or None
    if not any(m["role"] != "system" and _has_content(m) for m in messages):
        raise ValueError(f"{name!r} holds no question")
    return messages, answer


def _last_answer(message: Message, name: str) -> str:
    """Return the text of the message at the end; if it calls tools, its text and calls as a message
    in JSON, as graders read it.
    """
    if message.get("tool_calls"):
        shown = {
            "role": "assistant",
            "content": message["content"],
            "tool_calls": message["tool_calls"],
        }
        return json.dumps(shown, ensure_ascii=False)
    if not isinstance(message["content"], str | list):
        raise ValueError(f"{name!r} ends with an answer without text")
    return "" if is_blank(text := message_text(message)) else text


def read_message(message: Any, name: str) -> dict[str, Any]:
    """Return a message in OpenAI's form, also from ShareGPT's. Raises ValueError that names the
    column.
    """
    if not isinstance(message, Mapping):
        raise ValueError(f"{name!r}: a message is an object, got {format_value(message, 80)}")
    if "from" in message and "value" in message and "role" not in message:
        speaker = message["from"]
        if not isinstance(speaker, str) or speaker not in ROLE_BY_SPEAKER:
            raise ValueError(
                f"{name!r}: unknown speaker {format_value(speaker, 80)}; there are "
                f"{', '.join(ROLE_BY_SPEAKER)}"
            )
        message = {"role": ROLE_BY_SPEAKER[speaker], "content": message["value"]}
    default = None if message.get("tool_calls") else MISSING
    if not isinstance(message.get("role"), str) or not isinstance(
        message.get("content", default), str | list | None
    ):
        raise ValueError(
            f'{name!r}: a message is {{"role": ..., "content": ...}}, got '
            f"{format_value(message, 80)}"
        )
    return {"content": None} | {
        k: value for k, value in message.items() if value is not None and k not in BOOKKEEPING_KEYS
    }


def _has_content(message: Message) -> bool:
    content = message["content"]
    return has_value(content) and bool(content)


def with_system(
    messages: str | list[Message], system: str | None, name: str | None
) -> str | list[Message]:
    if system is None:
        return messages
    if isinstance(messages, str):
        return [{"role": "system", "content": system}, {"role": "user", "content": messages}]
    if messages[0]["role"] == "system":
        raise ValueError(f"{name!r} holds a system message, but the messages begin with one")
    return [{"role": "system", "content": system}, *messages]


def tools_at(values: Mapping[str, Any], name: str | None) -> list[Mapping[str, Any]] | None:
    """Return tools in OpenAI's form: a list, or JSON of one."""
    value = value_or_none(values, name)
    if value is None:
        return None
    tools = _load(value, f"{name!r} must be a list of tools") if isinstance(value, str) else value
    if not isinstance(tools, list):
        raise ValueError(f"{name!r} must be a list of tools, got {format_value(tools, 80)}")
    return tools


def tool_choice_at(values: Mapping[str, Any], name: str | None) -> Any:
    """Return whether tools must be called: a word, an object, or JSON of one."""
    value = value_or_none(values, name)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _load(value, "tool_choice must be a word or an object")
    return value


def _load(text: str, expected: str) -> Any:
    try:
        return load_cell(text)
    except ValueError as error:
        raise ValueError(f"{expected}, or JSON of one: {error}") from error


def split_specs(text: str) -> Any:
    if text.lstrip().startswith("["):
        try:
            return load_cell(text)
        except ValueError:
            pass
    return [spec for part in SPEC_PATTERN.findall(text) if (spec := part.strip())]
