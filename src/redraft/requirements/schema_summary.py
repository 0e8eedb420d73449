"""What a JSON schema demands, in few words: its keywords that a text can keep or break, and nothing else that is in the file.

Titles, descriptions, examples, defaults, comments and unknown keys demand nothing, and are left out. What is too long is
told less deep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST = 500  # characters
DEEPEST = 8  # schemas inside each other that are told of

SCHEMAS = ("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedProperties")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
TABLES = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
VALUES = (
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
DEMANDING = frozenset((*SCHEMAS, *LISTS, *TABLES, *VALUES))


def is_schema(value: Any) -> bool:
    """Whether it is an object that demands something as a JSON schema does, or says that it is one."""
    return isinstance(value, dict) and (not DEMANDING.isdisjoint(value) or "json-schema.org" in str(value.get("$schema")))


def outline(schema: Any) -> str:
    """The demands of a schema as JSON of at most 500 characters, or the beginning of it."""
    for depth in range(DEEPEST, 0, -1):
        told = json.dumps(_demands(schema, depth), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if len(told) <= LONGEST:
            return told
    return f"{told[:LONGEST]}..."


def _demands(schema: Any, depth: int) -> Any:
    """The demanding keywords of a schema; of the schemas in it as well, so many levels deep."""
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else {}
    told: dict[str, Any] = {}
    for key, value in schema.items():
        if key in VALUES:
            told[key] = value
        elif depth and key in SCHEMAS:
            told[key] = [_demands(each, depth - 1) for each in value] if isinstance(value, list) else _demands(value, depth - 1)
        elif depth and key in LISTS and isinstance(value, list):
            told[key] = [_demands(each, depth - 1) for each in value]
        elif depth and key in TABLES and isinstance(value, Mapping):
            told[key] = {name: _demands(each, depth - 1) for name, each in value.items()}
    return told
