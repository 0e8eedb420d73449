"""Checks of the fields of requests, for all protocols. Each raises GatewayError 400, which names
the field.

Requests come from anywhere: their sizes and depths are bounded here, and types are strict (true is
no number).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..answers import as_answer_form
from ..base.checks import format_value
from ..base.jsontext import check_bounds, dumps
from ..base.parameters import ROUTING_FIELDS
from ..errors import ConfigError
from ..settings import Flag, Number, Text, ValueKind, WholeNumber
from .body_worker import MAX_BODY_VALUES
from .exchange import invalid_request

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


def is_set(value: Any, unused: Sequence[Any] = ()) -> bool:
    """Return whether a field asks for something: it is neither null nor one of the values that
    stand for its absence.
    """
    return value is not None and not any(
        type(value) is type(each) and value == each for each in unused
    )


def checked_schema(param: str, schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the JSON schema that an answer must follow; {} if it allows any JSON object."""
    if not schema:
        return {}
    with errors_of_field(param):
        if len(dumps(schema)) > MAX_SCHEMA_BYTES:
            raise ValueError(f"a schema has at most {MAX_SCHEMA_BYTES:,} bytes")
        as_answer_form(schema)
    return schema
