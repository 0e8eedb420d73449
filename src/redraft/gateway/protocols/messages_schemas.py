"""JSON schemas as the output format of Anthropic's messages takes them.

It takes a part of JSON Schema: objects are closed, and limits of numbers, texts and lists are
unknown. What is sent may forbid more than the client's schema does (properties that it does not
name), and what it cannot enforce goes into descriptions. The answer is still checked against the
schema of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.jsontext import dumps_text
from ..neutral import Json

FORMATS = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6"),
        "uuid",
    )
)
SIMPLE_TYPES = frozenset(("string", "integer", "number", "boolean", "null"))
ANNOTATIONS = frozenset(("$schema", "$id", "$comment", "default", "examples"))  # (they ask nothing)
_DEFINITIONS = ("$defs", "definitions")


class _UnsaidError(Exception):
    """The output format cannot say a schema."""


def output_schema(schema: Json) -> dict[str, Any] | None:
    """Return a schema in the form that the output format takes; None if it has none.

    That is so for objects with any properties, for what refers to itself, and for several schemas
    that must all hold.
    """
    try:
        written = _write_schema(schema)
        for name in _DEFINITIONS:
            if name in schema:
                written[name] = {key: _write_schema(each) for key, each in schema[name].items()}
        _check_references(written)
    except (_UnsaidError, AttributeError, TypeError, RecursionError):  # (or no schema at all)
        return None
    return written


def schema_in_words(schema: Json) -> str:
    """Return the demand for an answer that follows a schema; {} for any JSON object."""
    if not schema:
        return "Answer with one JSON object and nothing else: no explanation, no code fence."
    return (
        "Answer with JSON alone (no explanation, no code fence) that follows this JSON schema:\n"
        f"{dumps_text(schema)}"
    )


def _write_schema(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        raise _UnsaidError
    rest = {
        name: value
        for name, value in schema.items()
        if name not in ANNOTATIONS and name not in _DEFINITIONS
    }
    written = _demand(rest)
    if "$ref" in written:
        return written
    said = {*written, "type", "title", "description"}
    if "anyOf" in written and "anyOf" not in rest:
        said |= {"oneOf", "allOf"}
    words = [rest["description"]] if rest.get("description") else []
    words += [f"({name}: {dumps_text(rest[name])})" for name in rest if name not in said]
    written |= {"description": "\n".join(words)} if words else {}
    return written | ({"title": rest["title"]} if "title" in rest else {})


def _demand(schema: Json) -> dict[str, Any]:
    """Return what a schema demands, without its words."""
    for name in ("$ref", "enum", "const"):
        if name in schema:
            return {name: schema[name]}
    kind = schema.get("type", "object" if "properties" in schema else None)
    if kind == "object":
        return _written_object(schema)
    if alternatives := schema.get("anyOf") or schema.get("oneOf") or _single(schema.get("allOf")):
        return {"anyOf": [_write_schema(each) for each in alternatives]}
    if isinstance(kind, list):
        kinds = [{**schema, "type": each} for each in dict.fromkeys(kind)]
        return {"anyOf": [_demand(each) for each in kinds]}
    if kind == "array":
        return _written_array(schema)
    if kind not in SIMPLE_TYPES:
        raise _UnsaidError
    is_known = kind == "string" and schema.get("format") in FORMATS
    return {"type": kind} | ({"format": schema["format"]} if is_known else {})


def _single(schemas: Any) -> list[Any] | None:
    return schemas if isinstance(schemas, list) and len(schemas) == 1 else None


def _written_object(schema: Json) -> dict[str, Any]:
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    others = schema.get("additionalProperties", True)
    is_open = isinstance(others, Mapping) or (others is True and not properties)
    if is_open or "patternProperties" in schema or not set(required) <= set(properties):
        raise _UnsaidError
    written: dict[str, Any] = {
        "type": "object",
        "properties": {name: _write_schema(each) for name, each in properties.items()},
        "additionalProperties": False,
    }
    return written | ({"required": list(required)} if "required" in schema else {})


def _written_array(schema: Json) -> dict[str, Any]:
    written: dict[str, Any] = {"type": "array"}
    if isinstance(items := schema.get("items"), Mapping):
        written["items"] = _write_schema(items)
    if schema.get("minItems") in (0, 1):
        written["minItems"] = schema["minItems"]
    return written


def _check_references(schema: Json) -> None:
    """Raise _UnsaidError for a reference that leads nowhere, or back to where it stands."""
    definitions = {
        f"#/{name}/{key}": each
        for name in _DEFINITIONS
        for key, each in schema.get(name, {}).items()
    }
    targets = {path: _references(each) for path, each in definitions.items()}
    left = {path: set(names) for path, names in targets.items()}
    if not _references(schema) <= set(definitions):
        raise _UnsaidError
    while free := [path for path, names in left.items() if not names & set(left)]:
        for path in free:
            del left[path]
    if left:
        raise _UnsaidError


def _references(schema: Any) -> set[str]:
    found: set[str] = set()
    values = [schema]
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            if isinstance(reference := value.get("$ref"), str):
                found.add(reference)
            values += value.values()
        elif isinstance(value, list):
            values += value
    return found
