"""Checks of the fields of requests, for all protocols. Each raises GatewayError 400, which names
the field.

Requests come from anywhere: their sizes and depths are bounded here, and types are strict (true is
no number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..answers import as_answer_form
from ..base.checks import format_value, unknown_name_message
from ..base.jsontext import check_bounds, dumps, first_duplicate
from ..base.parameters import ROUTING_FIELDS
from ..errors import ConfigError
from ..loop.task import Message, as_messages
from ..requirements import parse as parse_requirement
from ..settings import Flag, Number, Text, ValueKind, WholeNumber
from .body_worker import MAX_BODY_VALUES
from .exchange import invalid_request
from .neutral import RequestOptions

MAX_NAME_CHARS = 256  # of a model, a function or a parameter
MAX_SCHEMA_BYTES = 262_144
MAX_GRADERS = 16
MAX_REQUIREMENTS = 32
MAX_SPEC_CHARS = 65_536  # of a requirement or a grader
MAX_RUBRIC_CHARS = 20_000
MAX_OTHER_PARAMETERS = 64
MAX_METADATA_PAIRS = 16

OPTION_KINDS: Mapping[str, ValueKind] = {
    "target_score": Number(0, 1),
    "max_iterations": WholeNumber(0, 1000),
    "rubric": Text(),
    "events": Flag(),
}
OPTION_NAMES = ("target_score", "max_iterations", "graders", "requirements", "rubric", "events")
ROLES = ("system", "developer", "user", "assistant", "tool")
PASS_HINT = "a model pass/NAME passes it on"
DENIED_PARAMETERS: Mapping[str, str] = {
    **dict.fromkeys(
        sorted(ROUTING_FIELDS), "the gateway chooses the model, the host and the credentials"
    ),
    "extra_body": (
        "OpenAI's client sends the fields of its argument `extra_body` beside `model`, and none "
        "of this name"
    ),
    **dict.fromkeys(
        ("n_predict", "num_predict", "max_new_tokens"),
        "the limit of tokens is `max_completion_tokens`",
    ),
    **dict.fromkeys(
        ("plugins", "transforms"), f"the profile chooses what a model is asked; {PASS_HINT}"
    ),
    **dict.fromkeys(
        ("best_of", "use_beam_search", "echo"), f"the gateway returns one answer; {PASS_HINT}"
    ),
}
"""Other parameters that a refinement does not send: the gateway's own, or those that defeat what it
does.
"""
NOTHING: tuple[Any, ...] = ([], {}, "")
"""Values with which a field that chooses the route chooses nothing."""
CHAT_FIELDS = frozenset(
    (
        *(
            "model",
            "messages",
            "tools",
            "tool_choice",
            "functions",
            "function_call",
            "response_format",
            "stream",
            "stream_options",
        ),
        *(
            "max_tokens",
            "max_completion_tokens",
            "n",
            "logprobs",
            "top_logprobs",
            "audio",
            "modalities",
        ),
    )
)
"""Fields of chat completions that a protocol without them must not pass on: they would replace what
it says in other fields.
"""


@contextmanager
def errors_of_field(param: str) -> Iterator[None]:
    """Raise ConfigError and ValueError of the block as GatewayError 400 for the field."""
    try:
        yield
    except (ConfigError, ValueError) as error:
        message = str(error)
        raise invalid_request(
            param, message if message.startswith(param) else f"{param}: {message}"
        ) from None


def check_body(body: Any) -> Mapping[str, Any]:
    """Return the body of a request if it is an object within bounds."""
    if not isinstance(body, Mapping) or not all(isinstance(name, str) for name in body):
        raise invalid_request(
            "body", f"the body of a request must be a JSON object, got {format_value(body, 80)}"
        )
    with errors_of_field("body"):
        check_bounds(body, MAX_BODY_VALUES)
    return body


def check_field(name: str, value: Any, kind: ValueKind, *, optional: bool = True) -> Any:
    """Return the value if it is of the kind, or null. A whole number may be written with a fraction
    of zeros, as JSON allows.
    """
    if isinstance(kind, WholeNumber) and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        kind.check(name, value, optional=optional)
    except ConfigError as error:
        raise invalid_request(name, _in_json_terms(str(error))) from None
    return value


def _in_json_terms(message: str) -> str:
    """Return the message of a check with the constants of JSON in place of Python's."""
    expected, got, value = message.rpartition(", got ")
    constants = {"True": "true", "False": "false", "None": "null"}
    for word, constant in constants.items():
        expected = expected.replace(word, constant)
    return f"{expected}{got}{constants.get(value, value)}"


def is_set(value: Any, unused: Sequence[Any] = ()) -> bool:
    """Return whether a field asks for something: it is neither null nor one of the values that
    stand for its absence.
    """
    return value is not None and not any(
        type(value) is type(each) and value == each for each in unused
    )


def model_of(body: Mapping[str, Any]) -> str:
    """Return the name of the model."""
    model = body.get("model")
    if not isinstance(model, str) or not model.strip() or len(model) > MAX_NAME_CHARS:
        raise invalid_request(
            "model", f"model must be a text such as 'refine/fast', got {format_value(model, 80)}"
        )
    return model


def object_of(name: str, value: Any, allowed: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Return a field that is an object, with no keys but the allowed ones; {} for null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise invalid_request(name, f"{name} must be an object, got {format_value(value, 80)}")
    for key in value if allowed is not None else ():
        if key not in (allowed or ()):
            raise invalid_request(
                f"{name}.{key}"[:MAX_NAME_CHARS],
                unknown_name_message(f"key in {name}", key, allowed or ()),
            )
    return value


def list_of(name: str, value: Any) -> list[Any]:
    """Return a field that is a list; [] for null."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise invalid_request(name, f"{name} must be a list, got {format_value(value, 80)}")
    return list(value)


def options_of(body: Mapping[str, Any]) -> RequestOptions:
    """Return the field `redraft`."""
    given = object_of("redraft", body.get("redraft"), OPTION_NAMES)
    values = {
        key: check_field(f"redraft.{key}", given.get(key), kind)
        for key, kind in OPTION_KINDS.items()
    }
    rubric = values["rubric"]
    if rubric is not None and not 0 < len(rubric.strip()) <= MAX_RUBRIC_CHARS:
        raise invalid_request(
            "redraft.rubric",
            f"redraft.rubric must be a text of 1 to {MAX_RUBRIC_CHARS:,} characters",
        )
    return RequestOptions(
        target_score=values["target_score"],
        max_iterations=values["max_iterations"],
        graders=_grader_names(given.get("graders")),
        requirements=_requirement_specs(given.get("requirements")),
        rubric=rubric,
        events=bool(values["events"]),
    )


def _grader_names(value: Any) -> tuple[str, ...] | None:
    """Return the specs of graders. Which of them a request may name is decided with its profile."""
    if value is None:
        return None
    specs = [value] if isinstance(value, str) else list_of("redraft.graders", value)
    if not 0 < len(specs) <= MAX_GRADERS:
        raise invalid_request(
            "redraft.graders",
            f"redraft.graders must be a list of 1 to {MAX_GRADERS} names, got {len(specs)}",
        )
    for spec in specs:
        if not isinstance(spec, str) or not spec.strip() or len(spec) > MAX_SPEC_CHARS:
            raise invalid_request(
                "redraft.graders",
                f"redraft.graders must be names of graders, got {format_value(spec, 80)}",
            )
    if twice := first_duplicate(spec.strip() for spec in specs):
        raise invalid_request("redraft.graders", f"redraft.graders names {twice[:80]!r} twice")
    return tuple(specs)


def _requirement_specs(value: Any) -> tuple[str, ...]:
    """Return specs of requirements that read no file."""
    specs = list_of("redraft.requirements", value)
    if len(specs) > MAX_REQUIREMENTS:
        raise invalid_request(
            "redraft.requirements",
            f"redraft.requirements holds {len(specs)} specs; at most {MAX_REQUIREMENTS}",
        )
    for spec in specs:
        with errors_of_field("redraft.requirements"):
            if isinstance(spec, str) and len(spec) > MAX_SPEC_CHARS:
                raise ValueError(f"a requirement has at most {MAX_SPEC_CHARS:,} characters")
            parse_requirement(spec, files=False)
    return tuple(specs)


def checked_schema(param: str, schema: Any) -> Mapping[str, Any]:
    """Return the JSON schema that an answer must follow; {} if it allows any JSON object."""
    given = object_of(param, schema)
    with errors_of_field(param):
        if len(dumps(given)) > MAX_SCHEMA_BYTES:
            raise ValueError(f"a schema has at most {MAX_SCHEMA_BYTES:,} bytes")
        if given:
            as_answer_form(given)
    return given


def checked_messages(value: Any) -> tuple[Message, ...]:
    """Return chat messages, checked. Those of a developer become system messages, which every model
    knows.
    """
    messages = list_of("messages", value)
    if not messages:
        raise invalid_request("messages", "messages must be a list of at least one message")
    for n, message in enumerate(messages):
        _check_message(f"messages[{n}]", message)
    with errors_of_field("messages"):
        return tuple(
            {**m, "role": "system"} if m["role"] == "developer" else m
            for m in as_messages(messages)
        )


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, Mapping):
        raise invalid_request(
            where,
            f'{where} must be {{"role": "user", "content": "..."}}, got '
            f"{format_value(message, 80)}",
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid_request(
            f"{where}.role",
            f"{where}.role must be one of {', '.join(ROLES)}, got {format_value(role, 80)}",
        )
    if message.get("function_call") is not None:
        raise invalid_request(
            f"{where}.function_call", f"{where}.function_call is not supported: use tool_calls"
        )
    _check_content(f"{where}.content", message.get("content"), optional=role == "assistant")
    calls = list_of(f"{where}.tool_calls", message.get("tool_calls"))
    if calls and role != "assistant":
        raise invalid_request(
            f"{where}.tool_calls",
            f"{where}.tool_calls belong to messages of the assistant, not of role {role!r}",
        )
    for n, call in enumerate(calls):
        _check_tool_call(f"{where}.tool_calls[{n}]", call)
    if role == "tool":
        check_field(f"{where}.tool_call_id", message.get("tool_call_id"), Text(), optional=False)


def _check_content(where: str, content: Any, *, optional: bool) -> None:
    """Check the content of a message: a text, or a list of typed parts."""
    if isinstance(content, str) or (content is None and optional):
        return
    if not isinstance(content, list | tuple) or not content:
        raise invalid_request(
            where, f"{where} must be a text or a list of parts, got {format_value(content, 80)}"
        )
    for n, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise invalid_request(
                f"{where}[{n}]",
                f'{where}[{n}] must be a part such as {{"type": "text", "text": "..."}}',
            )
        if kind in {"text", "refusal"} and not isinstance(part.get(kind), str):
            raise invalid_request(
                f"{where}[{n}].{kind}",
                f"{where}[{n}].{kind} must be a text, got {format_value(part.get(kind), 80)}",
            )


def _check_tool_call(where: str, call: Any) -> None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise invalid_request(
            where,
            f'{where} must be {{"id": ..., "type": "function", "function": {{...}}}}, got '
            f"{format_value(call, 80)}",
        )
    texts = {
        "id": call.get("id"),
        "function.name": function.get("name"),
        "function.arguments": function.get("arguments"),
    }
    for name, value in texts.items():
        check_field(f"{where}.{name}", value, Text(), optional=False)


def metadata_of(body: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the client's own labels of a request. They are stored with it and not sent to a
    model.
    """
    pairs = object_of("metadata", body.get("metadata"))
    if len(pairs) > MAX_METADATA_PAIRS or not all(
        isinstance(value, str) and len(value) <= 512 for value in pairs.values()
    ):
        raise invalid_request(
            "metadata",
            f"metadata must be at most {MAX_METADATA_PAIRS} texts of at most 512 characters",
        )
    return pairs


def other_parameters(body: Mapping[str, Any], known: Callable[[str], bool]) -> dict[str, Any]:
    """Return the fields that the protocol does not have, such as `top_k`: they are for the
    model.
    """
    others = {
        name: value
        for name, value in body.items()
        if not known(name) and is_set(value, NOTHING if name in ROUTING_FIELDS else ())
    }
    for name in others:
        if name in DENIED_PARAMETERS:
            raise invalid_request(name, f"{name} is not supported: {DENIED_PARAMETERS[name]}")
        if name in CHAT_FIELDS:
            raise invalid_request(
                name,
                f"{name} is not supported: it belongs to chat completions, not to this protocol",
            )
    if len(others) > MAX_OTHER_PARAMETERS or any(
        not 0 < len(name) <= MAX_NAME_CHARS for name in others
    ):
        message = (
            f"the body may have at most {MAX_OTHER_PARAMETERS} other fields, with names of 1 to "
            f"{MAX_NAME_CHARS} characters"
        )
        raise invalid_request("body", message)
    return others
