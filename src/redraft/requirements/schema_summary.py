"""A short summary of a JSON schema: the keywords that a text can meet or break, and nothing else.

Titles, descriptions, examples, defaults, comments and unknown keys demand nothing and are left out. A long schema is summarised
less deeply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_OUTLINE_CHARS = 500
MAX_DEPTH = 8  # levels of nested schemas

SCHEMA_KEYWORDS = (
    "additionalProperties",
    "items",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "unevaluatedProperties",
)
SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMA_MAP_KEYWORDS = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
VALUE_KEYWORDS = (
    "type",
    "enum",
    "const",
    "required",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "unevaluatedItems",
    "contentEncoding",
    "contentMediaType",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "patternProperties",
)
CONSTRAINT_KEYWORDS = frozenset((*SCHEMA_KEYWORDS, *SCHEMA_LIST_KEYWORDS, *SCHEMA_MAP_KEYWORDS, *VALUE_KEYWORDS))


def is_schema(value: Any) -> bool:
    """Return whether a value is an object with a keyword of JSON Schema, or declares to be a schema."""
    return isinstance(value, dict) and (not CONSTRAINT_KEYWORDS.isdisjoint(value) or "json-schema.org" in str(value.get("$schema")))


def schema_outline(schema: Any) -> str:
    """Return the demands of a schema as JSON of at most 500 characters, or the beginning of it."""
    outline = ""
    for depth in range(MAX_DEPTH, 0, -1):
        outline = json.dumps(_constraints(schema, depth), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if len(outline) <= MAX_OUTLINE_CHARS:
            return outline
    return f"{outline[:MAX_OUTLINE_CHARS]}..."


def _constraints(schema: Any, depth: int) -> Any:
    """Return the keywords of a schema that demand something, with those of nested schemas down to `depth`."""
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else {}
    constraints: dict[str, Any] = {}
    for key, value in schema.items():
        if key in VALUE_KEYWORDS:
            constraints[key] = value
        elif depth and key in SCHEMA_KEYWORDS:
            constraints[key] = (
                [_constraints(each, depth - 1) for each in value] if isinstance(value, list) else _constraints(value, depth - 1)
            )
        elif depth and key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            constraints[key] = [_constraints(each, depth - 1) for each in value]
        elif depth and key in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
            constraints[key] = {name: _constraints(each, depth - 1) for name, each in value.items()}
    return constraints
