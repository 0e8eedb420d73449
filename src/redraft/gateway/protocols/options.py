"""The field `redraft` of requests, which all protocols have: what the client wants of a refinement.

Values that the profile limits are clamped with it, not here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from ...base.checks import format_value, unknown_name_message
from ...base.jsontext import first_duplicate
from ...requirements import parse as parse_requirement
from ..exchange import invalid_request
from ..neutral import RequestOptions
from ..request_fields import MAX_NAME_CHARS, errors_of_field
from .fields import HintValue, Name, Parameter, Whole, WireModel

MAX_GRADERS = 16
MAX_REQUIREMENTS = 32
MAX_SPEC_CHARS = 65_536  # of a requirement or a grader
MAX_RUBRIC_CHARS = 20_000

Spec = Annotated[str, Field(min_length=1, max_length=MAX_SPEC_CHARS)]


class RedraftField(WireModel):
    """What a request wants of its refinement; a field that is absent: the profile's own value."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    target_score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    max_iterations: Annotated[Whole, Field(ge=0, le=1000)] | None = None
    graders: Spec | Annotated[list[Spec], Field(min_length=1, max_length=MAX_GRADERS)] | None = None
    requirements: Annotated[list[Spec], Field(max_length=MAX_REQUIREMENTS)] | None = None
    rubric: Annotated[str, Field(max_length=MAX_RUBRIC_CHARS)] | None = None
    events: bool | None = None


class RequestBody(WireModel):
    """What the requests of all protocols have."""

    model: Name
    stream: bool | None = None
    temperature: Annotated[
        Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None, Parameter("temperature")
    ] = None
    top_p: Annotated[
        Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None, Parameter("top_p")
    ] = None
    service_tier: Annotated[str | None, Parameter("service_tier")] = None
    metadata: HintValue = None
    redraft: RedraftField | None = None


def read_options(given: RedraftField | None) -> RequestOptions:
    """Return the options of a request. Raises GatewayError 400 that names the field."""
    if given is None:
        return RequestOptions()
    for name in given.model_extra or ():
        message = unknown_name_message("key in redraft", name, RedraftField.model_fields)
        raise invalid_request(f"redraft.{name}"[:MAX_NAME_CHARS], message)
    if given.rubric is not None and not given.rubric.strip():
        raise invalid_request("redraft.rubric", "redraft.rubric must not be blank")
    for spec in given.requirements or ():
        with errors_of_field("redraft.requirements"):
            parse_requirement(spec, files=False)
    return RequestOptions(
        target_score=given.target_score,
        max_iterations=given.max_iterations,
        graders=_grader_names(given.graders),
        requirements=tuple(given.requirements or ()),
        rubric=given.rubric,
        events=bool(given.events),
    )


def _grader_names(value: str | list[str] | None) -> tuple[str, ...] | None:
    """Return the specs of graders. Which of them a request may name is decided with its profile."""
    if value is None:
        return None
    specs = [value] if isinstance(value, str) else value
    for spec in specs:
        if not spec.strip():
            raise invalid_request(
                "redraft.graders",
                f"redraft.graders must be names of graders, got {format_value(spec, 80)}",
            )
    if twice := first_duplicate(spec.strip() for spec in specs):
        raise invalid_request("redraft.graders", f"redraft.graders names {twice[:80]!r} twice")
    return tuple(specs)
