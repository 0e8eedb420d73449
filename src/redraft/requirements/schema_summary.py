"""What a JSON schema demands, in few words: its keywords that a text can keep or break, and nothing else that is in the file.

Titles, descriptions, examples, defaults, comments and unknown keys demand nothing, and are left out. What is too long is
told less deep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_OUTLINE_CHARS = 500  # characters
MAX_DEPTH = 8  # schemas inside each other that are told of

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
    """Whether it is an object that demands something as a JSON schema does, or says that it is one."""
    return isinstance(value, dict) and (not CONSTRAINT_KEYWORDS.isdisjoint(value) or "json-schema.org" in str(value.get("$schema")))


def schema_outline(schema: Any) -> str:
    """The demands of a schema as JSON of at most 500 characters, or the beginning of it."""
    for depth in range(MAX_DEPTH, 0, -1):
        told = json.dumps(_constraints(schema, depth), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if len(told) <= MAX_OUTLINE_CHARS:
            return told
    return f"{told[:MAX_OUTLINE_CHARS]}..."


def _constraints(schema: Any, depth: int) -> Any:
    """The demanding keywords of a schema; of the schemas in it as well, so many levels deep."""
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else {}
    told: dict[str, Any] = {}
    for key, value in schema.items():
        if key in VALUE_KEYWORDS:
            told[key] = value
        elif depth and key in SCHEMA_KEYWORDS:
            told[key] = (
                [_constraints(each, depth - 1) for each in value] if isinstance(value, list) else _constraints(value, depth - 1)
            )
        elif depth and key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            told[key] = [_constraints(each, depth - 1) for each in value]
        elif depth and key in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
            told[key] = {name: _constraints(each, depth - 1) for name, each in value.items()}
    return told
