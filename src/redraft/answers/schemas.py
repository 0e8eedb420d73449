"""JSON schemas of answers: for an endpoint, and for a prompt.

Endpoints with strict schemas (OpenAI's) demand an object at the top, closed objects whose
properties are all required, no default values and no keywords beside a reference. `endpoint_schema`
is the schema of a type in that form. It asks for every field, also those with a default, and is
therefore only for types: a JSON schema of the user is sent as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .json_text import plain_name

SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
DATA_KEYWORDS = ("const", "enum", "required", "default", "examples", "example")
ANNOTATIONS = (
    "title",
    "default",
    "examples",
    "example",
    "discriminator",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
)
WRAPPER_KEYS = ("answer", "value", "result", "content")
COMMON_WRAPPERS = (
    *(
        "answer",
        "answers",
        "finalanswer",
        "value",
        "values",
        "result",
        "results",
        "output",
        "response",
        "content",
        "data",
        "json",
    ),
    *(
        "object",
        "objects",
        "item",
        "items",
        "list",
        "record",
        "records",
        "entry",
        "entries",
        "payload",
        "root",
        "properties",
    ),
)
INDENTED_CHARS = 6_000  # a longer schema is written without line breaks
MAX_PROMPT_CHARS = 30_000  # a longer schema is written without descriptions


def map_schema(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema in which `change` was applied to each schema, the inner ones first."""
    if isinstance(node, list):
        return [map_schema(each, change) for each in node]
    if not isinstance(node, Mapping):
        return node
    inner: dict[str, Any] = {}
    for key, value in node.items():
        if key in SCHEMA_MAPS and isinstance(value, Mapping):
            inner[key] = {name: map_schema(each, change) for name, each in value.items()}
        else:
            inner[key] = value if key in DATA_KEYWORDS else map_schema(value, change)
    return change(inner)


def resolve_root(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the definition that it refers to at its top; a recursive type has only
    a reference there.
    """
    reference = schema.get("$ref")
    prefix = "#/$defs/"
    definitions = schema.get("$defs", {})
    if (
        not isinstance(reference, str)
        or not reference.startswith(prefix)
        or reference[len(prefix) :] not in definitions
    ):
        return dict(schema)
    return {
        **definitions[reference[len(prefix) :]],
        **{key: value for key, value in schema.items() if key != "$ref"},
    }


def wrapper_key(schema: Mapping[str, Any], *, ignores_extra: bool) -> str | None:
    """Return the key under which an answer that is no object stands in an object; None if the
    answer is, or may be, any object.

    No object that is an answer has a property of that name, so a wrapped answer cannot be mistaken
    for one that is not wrapped. `ignores_extra` says that properties which the schema does not name
    are no part of an answer, unless it allows them in words.
    """
    if schema.get("type") == "object" or _takes_any_key(
        schema, schema, set(), ignores_extra=ignores_extra
    ):
        return None
    names = _property_names(schema)
    numbered = (f"answer_{n}" for n in range(1, len(names) + 2))
    return next(key for key in (*WRAPPER_KEYS, *numbered) if key not in names)


def wrapper_names(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the keys under which a model may put a whole answer, as `plain_name` returns them: of
    the type, and common ones.

    No property of an answer is among them: what stands under its name is a part of an answer.
    """
    types = [
        plain_name(each)
        for each in (name, str(schema.get("title", "")), *schema.get("$defs", {}))
        if plain_name(each)
    ]
    forms = {
        form for each in types for form in (each, f"{each}s", f"{each}list", f"{each[:-1]}ies")
    }
    return frozenset(
        {*forms, *COMMON_WRAPPERS} - {plain_name(each) for each in _property_names(schema)}
    )


def _takes_any_key(
    node: Any, root: Mapping[str, Any], seen: set[str], *, ignores_extra: bool
) -> bool:
    """Whether an object with a property of any name may follow a schema. `seen` are the references
    that were followed.
    """
    if not isinstance(node, Mapping):
        return node is True
    inner = partial(_takes_any_key, root=root, seen=seen, ignores_extra=ignores_extra)
    if isinstance(reference := node.get("$ref"), str):
        is_new = reference not in seen
        seen.add(reference)
        return is_new and inner(_target(reference, root))
    if "object" not in _as_list(node.get("type", "object")) or not {"const", "enum"}.isdisjoint(
        node
    ):
        return False
    if choices := [each for key in ("anyOf", "oneOf") for each in _as_list(node.get(key, []))]:
        return any(map(inner, choices))
    if "additionalProperties" in node:
        return node["additionalProperties"] is not False
    return all(map(inner, _as_list(node.get("allOf", [])))) and not (
        ignores_extra and "properties" in node
    )


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema that a reference points to; False, which nothing follows, if there is
    none.
    """
    node: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        members = (
            node
            if isinstance(node, Mapping)
            else {str(n): each for n, each in enumerate(_as_list(node))}
        )
        node = members.get(step.replace("~1", "/").replace("~0", "~"), False)
    return node


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _property_names(node: Any) -> set[str]:
    names: set[str] = set()
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, Mapping):
            properties = each.get("properties")
            values = [properties, each.get("const"), *_as_list(each.get("enum"))]
            names.update(name for value in values if isinstance(value, Mapping) for name in value)
            pending += each.values()
    return names


def wrap_schema(schema: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Return the schema of an object that holds the answer under the key; the schema itself without
    a key.
    """
    if key is None:
        return dict(schema)
    shared = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}
    inner = {name: value for name, value in schema.items() if name not in shared}
    wrapper = {
        "type": "object",
        "properties": {key: inner},
        "required": [key],
        "additionalProperties": False,
    }
    return {**wrapper, **shared}


def endpoint_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a type in the form that endpoints with strict schemas accept."""
    strict: dict[str, Any] = map_schema(schema, _close)
    return strict


def _close(node: dict[str, Any]) -> dict[str, Any]:
    if isinstance(node.get("$ref"), str):
        return {key: value for key, value in node.items() if key in {"$ref", "$defs"}}
    out = {key: value for key, value in node.items() if key not in ANNOTATIONS}
    if "oneOf" in out:
        out["anyOf"] = out.pop("oneOf")
    if isinstance(out.get("properties"), Mapping):
        out.setdefault("additionalProperties", False)
        out["required"] = list(out["properties"])
    return out


def prompt_schema(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON for a prompt: without titles, and without descriptions if it is very
    long.
    """
    plain = map_schema(schema, _without("title"))
    for text in (
        json.dumps(plain, ensure_ascii=False, indent=2),
        json.dumps(plain, ensure_ascii=False),
    ):
        if len(text) <= INDENTED_CHARS:
            return text
    if len(text) > MAX_PROMPT_CHARS:
        text = json.dumps(
            map_schema(plain, _without("description", "examples")), ensure_ascii=False
        )
    return (
        text
        if len(text) <= MAX_PROMPT_CHARS
        else f"{text[:MAX_PROMPT_CHARS]}... (the rest of the schema is left out)"
    )


def _without(*keywords: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def remove(node: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value
            for key, value in node.items()
            if not (key in keywords and not isinstance(value, Mapping))
        }

    return remove
