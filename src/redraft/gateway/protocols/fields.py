"""What the fields of requests mean: the one table from which they are read, written, documented and
refused.

A field of a request is one of these:

- *honoured*: it has a place in the neutral form, and so in every protocol that can say it;
- a *hint*: it changes no answer's meaning. A model of the same protocol gets it; for others it is
  left out, which the reply says (`x-redraft-ignored`). A field that no table names is a hint, too;
- *refused*: it changes what the client gets, and a refined or converted answer cannot have it. A
  400 names it and says which path takes it.

The wire models of the protocols (pydantic) mark their fields with `Hint` and `RefusedField`, and
name the parameters that several protocols have with `Parameter`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, ValidationError
from pydantic import GetJsonSchemaHandler as SchemaHandler
from pydantic_core import CoreSchema, ErrorDetails

from ...base.checks import format_value
from ..exchange import GatewayError, invalid_request
from ..neutral import ProtocolName
from ..request_fields import MAX_NAME_CHARS, MAX_OTHER_PARAMETERS, check_body, is_set

Schema: TypeAlias = dict[str, Any]  # a JSON schema


@dataclass(frozen=True, slots=True)
class Hint:
    """Marks a field that may be left out."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: SchemaHandler) -> Schema:
        return {"x-redraft": "hint", **handler(schema)}


@dataclass(frozen=True, slots=True, eq=False)  # `typing` takes equal marks for one, and False is 0
class RefusedField:
    """Marks a field that a refined or converted answer cannot have. `unused`: the values that ask
    for nothing; `why` follows "NAME is not supported: "; `detail`: that of the error.
    """

    why: str
    unused: tuple[Any, ...] = ()
    detail: str = ""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: SchemaHandler) -> Schema:
        values = {"enum": [None, *self.unused], "description": f"Refused: {self.why}"}
        return {**handler(schema), **values, "x-redraft": "refused"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """Marks a field that is read into `Request.parameters` under this name (see PARAMETERS)."""

    name: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: SchemaHandler) -> Schema:
        names = dict(PARAMETERS[self.name])
        return {**handler(schema), "x-redraft": "honoured", "x-redraft-names": names}


PARAMETERS: Mapping[str, Mapping[ProtocolName, str]] = {
    "temperature": {"chat": "temperature", "responses": "temperature", "messages": "temperature"},
    "top_p": {"chat": "top_p", "responses": "top_p", "messages": "top_p"},
    "top_k": {"chat": "top_k", "messages": "top_k"},
    "stop": {"chat": "stop", "messages": "stop_sequences"},  # a list of texts
    "seed": {"chat": "seed"},
    "frequency_penalty": {"chat": "frequency_penalty"},
    "presence_penalty": {"chat": "presence_penalty"},
    "logit_bias": {"chat": "logit_bias"},
    "prediction": {"chat": "prediction"},
    "parallel_tool_calls": {
        "chat": "parallel_tool_calls",
        "responses": "parallel_tool_calls",
        "messages": "tool_choice.disable_parallel_tool_use",  # the opposite
    },
    # none, minimal, low, medium, high, xhigh, max
    "effort": {
        "chat": "reasoning_effort",
        "responses": "reasoning.effort",
        "messages": "output_config.effort",
    },
    "verbosity": {"chat": "verbosity", "responses": "text.verbosity"},
    "service_tier": {
        "chat": "service_tier",
        "responses": "service_tier",
        "messages": "service_tier",  # "default" is "standard_only"
    },
}
"""The parameters that several protocols have, by their names in the neutral form: where each stands
in the protocols that can say it. Who the user is, and hints to the caches of one provider, go to no
model of another protocol, so that they are hints (see `Hint`).
"""


def _whole(value: Any) -> Any:
    """Return a whole number that is written with a fraction of zeros, as JSON allows, as an int."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""A whole number."""
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
HintValue = Annotated[object, Hint()]
MAX_STOPS, MAX_TOOLS = 16, 512  # of a request
TokenLimit = Annotated[Whole, Field(ge=1, le=2**31)]


Mark: TypeAlias = Hint | RefusedField | Parameter
HINT = Hint()


class WireModel(BaseModel):
    """An object of a protocol. Types are strict (true is no number), and fields that it does not
    name are kept: they are hints.

    `marks`: the name in JSON and the mark of each field.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    marks: ClassVar[Mapping[str, tuple[str, Mark | None]]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Make the table of the marks, which are looked up for every request."""
        cls.marks = {
            name: (
                field.alias or name,
                next((each for each in field.metadata if isinstance(each, Mark)), None),
            )
            for name, field in cls.model_fields.items()
        }


def tag_by(field: str, *values: str, default: str = "") -> Discriminator:
    """Return what chooses among alternatives by a field: the tag of a value is "FIELD:VALUE", of
    all others "other". No field of a request has such a name, so that errors can leave them out.
    """

    def tag(value: object) -> str:
        given = value.get(field) if isinstance(value, Mapping) else getattr(value, field, None)
        given = default if given is None else given
        is_known = isinstance(given, str) and given in values
        return f"{field}:{given}" if is_known else "other"

    return Discriminator(tag)


M = TypeVar("M", bound=WireModel)
# how messages of pydantic begin, such as "String should have at least 1 character"
_SHOULD = re.compile(r"^[A-Z][a-z]+ should\b")
_OBJECT = re.compile(r"a valid dictionary(?: or instance of \w+)?")
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}


def read_body(kind: type[M], body: Any) -> M:
    """Return the body of a request as its wire model. Raises GatewayError 400 that names the field
    at fault, also for one that is refused.
    """
    check_body(body)
    try:
        model = kind.model_validate(body)
    except ValidationError as error:
        raise _field_error(error, body) from None
    if len(model.model_extra or ()) > MAX_OTHER_PARAMETERS:
        raise invalid_request(
            "body", f"the body may have at most {MAX_OTHER_PARAMETERS} other fields"
        )
    for path, mark, value in marked_fields(model):
        if isinstance(mark, RefusedField) and is_set(value, mark.unused):
            raise invalid_request(path, f"{path} is not supported: {mark.why}", mark.detail)
    return model


def marked_fields(model: WireModel, prefix: str = "") -> Iterator[tuple[str, Mark, Any]]:
    """Yield the path, the mark and the value of each field that is set and has a mark, those of
    objects in it included. A field that the protocol does not have is a hint.
    """
    for name, value in vars(model).items():
        if value is None or name == "redraft":
            continue
        written, mark = model.marks[name]
        if mark is not None:
            yield prefix + written, mark, value
        if isinstance(value, WireModel):
            yield from marked_fields(value, f"{prefix}{written}.")
    for name, value in (model.model_extra or {}).items():
        if value is not None and name != "redraft":
            yield f"{prefix}{name}"[:MAX_NAME_CHARS], HINT, value


def parameters_of(model: WireModel) -> dict[str, Any]:
    """Return the parameters that several protocols have, by their names in PARAMETERS."""
    return {
        mark.name: value for _, mark, value in marked_fields(model) if isinstance(mark, Parameter)
    }


def hints_of(model: WireModel) -> tuple[str, ...]:
    """Return the names of the hints that are set."""
    return tuple(path for path, mark, _ in marked_fields(model) if isinstance(mark, Hint))


def unsaid_parameters(
    parameters: Mapping[str, Any], client: ProtocolName, model: ProtocolName
) -> tuple[str, ...]:
    """Return the parameters that a model's protocol cannot say, by the client's names."""
    return tuple(
        PARAMETERS[name].get(client, name) for name in parameters if model not in PARAMETERS[name]
    )


def _field_error(error: ValidationError, body: Any) -> GatewayError:
    """Return the error for the value that is most deeply inside the body: of alternatives, the one
    that fits best is wrong there.
    """
    details = max(
        error.errors(include_url=False),
        key=lambda each: (len(_path(each, body)), not each["type"].endswith("_type")),
    )
    steps, value = _path(details, body), details["input"]
    message = _SHOULD.sub("must", details["msg"].removeprefix("Value error, "))
    message = _OBJECT.sub("an object", message)
    if details["type"] == "union_tag_invalid":
        context = details.get("ctx", {})
        steps, value = [*steps, "type"], context["tag"].removeprefix("type:")
        message = f"must be one of {context['expected_tags'].replace('type:', '')}"
    path = _name([*steps, "type"] if details["type"] == "union_tag_not_found" else steps)
    if details["type"] in ("missing", "union_tag_not_found"):
        return invalid_request(path, f"{path} is missing")
    got = format_value(value, 80)
    return invalid_request(path, f"{path} {message}, got {_JSON_WORDS.get(got, got)}")


def _path(details: ErrorDetails, body: Any) -> list[int | str]:
    """Return where in the body a value is: pydantic names the alternatives that it tried, too."""
    path: list[int | str] = []
    steps = details["loc"]
    for n, step in enumerate(steps, 1):
        try:
            body = body[step]
        except (KeyError, IndexError, TypeError):
            if details["type"] != "missing" or n < len(steps):
                continue
        path.append(step)
    return path


def _name(path: Sequence[int | str]) -> str:
    """Return a path as messages show it, such as "messages[0].content"."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")[:MAX_NAME_CHARS] or "body"
