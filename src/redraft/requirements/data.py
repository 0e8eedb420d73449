"""JSON: the text is JSON, and follows a JSON schema.

A schema is part of the requirement; a file is read once, when the spec is parsed. Nothing is
fetched: a reference out of the schema is an error. All patterns of a schema together have one time
limit for each text. The other costs of a schema are estimated from its size with every reference
expanded (`check_cost`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, Self

from ..base.checks import read_error_message
from ..base.documents import read_small_text
from ..base.json_repair import JsonRepair, double_backslashes, single_backslash
from ..base.jsontext import reject_constant, strict_loads
from ..base.text import compose_nfc
from ..errors import ComputeLimitError, ConfigError
from ..protocols import Check, Edit
from .schema_references import check_references
from .spec import PATTERN_TIMEOUT, OwnRequirement, compose_texts, is_encodable, requirement

MAX_REPAIR_CHARS = 100_000  # a longer text is not repaired
SCHEMA_VALUES_PER_CHAR = (
    64  # values of a schema that are checked in the time of reading a character once
)

_FENCE_LINES = re.compile(r"\A```[A-Za-z]*[ \t]*\r?\n?|\r?\n?```\Z")
_BLOCK = re.compile(r"```(?:json|JSON|Json)?[ \t]*\r?\n([^`]*)```")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def parse_json(text: str) -> Any:
    """Return the value of a text as JSON (RFC 8259: no NaN), bare or in one code fence, with texts
    in composed form.

    Raises ValueError with the reason.
    """
    try:
        value = json.loads(
            _FENCE_LINES.sub("", text.strip()).strip(), parse_constant=reject_constant
        )
        return value if text.isascii() and "\\u" not in text else compose_texts(value)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


@requirement("json", "the whole text is JSON (a code fence around it is allowed)", "json")
class JsonText(OwnRequirement):
    """The whole text is JSON, bare or in a code fence."""

    wanted = "the whole text is JSON"

    def measure(self, text: str) -> Check:
        try:
            parse_json(text)
        except ValueError as error:
            return Check(ok=False, measurement=f"does not parse: {str(error)[:200]}")
        command = single_backslash(text)
        return Check(
            not command, f"the backslash of {command} is not doubled" if command else "parses"
        )

    def edits(self, text: str) -> Iterator[Edit]:
        """Double single backslashes, or remove the text around the JSON; only if neither is enough,
        repair its syntax.
        """
        if (doubled := double_backslashes(text)) != text and self.check(doubled).ok:
            yield Edit(doubled, "doubled single backslashes")
            return
        whole = [edit for edit in unwrap_json(text) if self.check(edit.text).ok]
        yield from whole
        if not whole and len(text) <= MAX_REPAIR_CHARS:
            yield from _repair_syntax(text)


def unwrap_json(text: str) -> Iterator[Edit]:
    """Yield the fenced blocks, and the text from the first bracket to the last."""
    inner = [m[1] for m in _BLOCK.finditer(text)]
    first = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    last = max(text.rfind("}"), text.rfind("]"))
    if 0 <= first < last:
        inner.append(text[first : last + 1])
    for piece in inner:
        if piece.strip() and piece.strip() != text.strip():
            yield Edit(
                double_backslashes(piece.strip()), "removed the text around the JSON", lossy=True
            )


def _repair_syntax(text: str) -> Iterator[Edit]:
    starts = [edit.text for edit in unwrap_json(text)] or [text]
    for start in starts:
        if not start.lstrip("`jsonJSON \r\n").startswith(("{", "[")):
            continue
        if value := _parse_leniently(start):
            yield Edit(dump_like(value, text), "repaired the JSON syntax", lossy=True)


def _parse_leniently(text: str) -> Any:
    """Return the object or list that a text with a wrong form of JSON has; None if that is not
    certain, as when it is cut off.
    """
    repair = JsonRepair(text, min(i for i in (text.find("{"), text.find("[")) if i >= 0))
    try:
        end = repair.rewrite()
        value = json.loads("".join(repair.output), parse_constant=reject_constant, strict=False)
    except (ValueError, IndexError, RecursionError):
        return None
    return None if text[end:].strip("` \t\r\n") else value


def dump_like(value: Any, original: str) -> str:
    """Return the value as JSON, on several lines if the original is."""
    indent = 2 if "\n" in original.strip() else None
    plain = json.dumps(value, ensure_ascii=False, indent=indent)
    return plain if is_encodable(plain) else json.dumps(value, indent=indent)


@requirement(
    "json_schema",
    "JSON that follows a schema, from a file or inline",
    'json_schema:{"type":"object"}',
    reads_files=True,
)
@dataclass(frozen=True)
class JsonSchema(OwnRequirement):
    """The whole text is JSON that follows a JSON schema; `schema` is the schema as canonical
    JSON.
    """

    schema: str

    needs_thread = True  # for the patterns of the schema

    def __post_init__(self) -> None:
        _validator(self.schema)

    @classmethod
    def parse(cls, argument: str) -> Self:
        """Return the requirement of a schema or, if it does not begin with a brace, of the file
        that holds it.
        """
        return cls(_parse_schema(argument))

    @property
    def argument(self) -> str:
        return self.schema

    @property
    def demand(self) -> str:
        return f"JSON that follows the schema {schema_outline(json.loads(self.schema))}"

    def measure(self, text: str) -> Check:
        """Check the schema. Raises ComputeLimitError if its patterns together take longer than half
        a second.
        """
        if not (parsed := JsonText().check(text)).ok:
            return parsed
        try:
            errors = self.find_errors(parse_json(text))
        except TimeoutError:
            message = (
                f"the patterns of {self.spec[:100]} could not be checked within "
                f"{PATTERN_TIMEOUT:g} s ({len(text):,} characters)"
            )
            raise ComputeLimitError(message) from None
        return Check(not errors, errors[0] if errors else "follows the schema")

    def check_cost(self, text: str) -> float:
        size = _expanded_size(self.schema)
        return size + len(text) * max(1.0, size / SCHEMA_VALUES_PER_CHAR)

    def find_errors(self, value: Any, limit: int | None = None) -> list[str]:
        """Return what is wrong with a value, and where: the first errors or, without a limit, the
        most relevant one. Raises TimeoutError if the patterns take too long.
        """
        from jsonschema.exceptions import best_match

        _pattern_deadline.set(monotonic() + PATTERN_TIMEOUT)
        try:
            errors = _validator(compose_nfc(self.schema)).iter_errors(compose_texts(value))
            chosen = islice(errors, limit) if limit else filter(None, [best_match(errors)])
            return [f"{error.json_path}: {error.message[:200]}" for error in chosen]
        except (RecursionError, OverflowError):
            return ["cannot be measured: it is nested too deep, or a number is too large"]
        except (TimeoutError, MemoryError):
            raise
        except Exception as other:  # noqa: BLE001  (the library raises anything for a schema that its metaschema accepts)
            reason = f"{type(other).__name__}: {str(other)[:200]}"
            return [f"cannot be measured: the schema cannot be followed: {reason}"]

    def edits(self, text: str) -> Iterator[Edit]:
        """Repair as for JSON; then convert values to the right type, and remove forbidden
        properties.
        """
        schema = json.loads(self.schema)
        for edit in (Edit(text, ""), *JsonText().repairs(text)):
            try:
                value = parse_json(edit.text)
                fitted = coerce_to_schema(value, schema)
            except (ValueError, RecursionError):
                continue
            if edit.note:
                yield edit
            if canonical_json(fitted) != canonical_json(value):  # True is no 1 there
                notes = filter(None, (edit.note, "fitted the values to the schema"))
                yield Edit(dump_like(fitted, text), " and ".join(notes), lossy=True)


def coerce_to_schema(value: Any, schema: Any) -> Any:
    """Return the value with its leaves converted to the types of the schema if that is exact,
    without forbidden properties.
    """
    if not isinstance(schema, dict):
        return value
    if isinstance(value, dict):
        known = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False
        return {
            name: coerce_to_schema(each, known.get(name))
            for name, each in value.items()
            if name in known or not closed
        }
    if isinstance(value, list):
        return [coerce_to_schema(each, schema.get("items")) for each in value]
    return _coerce_leaf(value, schema.get("type"))


def _coerce_leaf(value: Any, json_type: Any) -> Any:
    """Convert "5" to 5 and back, "true" to true: only if nothing is lost."""
    if json_type == "string" and isinstance(value, int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    if json_type == "boolean":
        return {"true": True, "false": False}.get(value.strip().lower(), value)
    if json_type in ("integer", "number") and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if json_type == "number" and re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", value.strip()):
        return float(value) if repr(float(value)) == value.strip() else value
    return value


def _parse_schema(argument: str) -> str:
    """Return a schema as canonical JSON, from what follows the colon of a spec. Raises
    ConfigError.
    """
    if not argument:
        raise ConfigError("it needs a JSON schema, or a file that holds one, after the colon")
    inline = argument.startswith("{")
    where = "the schema" if inline else f"the schema file {argument!r}"
    try:
        source = argument if inline else read_small_text(argument)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {read_error_message(error)}") from None
    try:
        schema = strict_loads(source)
        written = canonical_json(schema, finite=True)
    except ValueError as error:
        raise ConfigError(f"{where} is not readable JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigError(
            f"a schema is a JSON object, got {type(schema).__name__}"
            + ("" if inline else f" in {argument!r}")
        )
    if not inline and not is_schema(schema):
        raise ConfigError(
            f"{where} is not a JSON Schema: none of its keys is a keyword such as type, "
            "properties or items"
        )
    if not isinstance(schema.get("$schema", ""), str):
        raise ConfigError(
            f"{where} is not valid: $.$schema: it must be a text, got "
            f"{json.dumps(schema['$schema'])[:80]}"
        )
    return written


def canonical_json(schema: Any, *, finite: bool = False) -> str:
    """Return the same text for the same JSON. With `finite`, raise ValueError for NaN and infinity,
    which are not JSON.
    """
    plain = json.dumps(
        schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=not finite
    )
    return (
        plain if is_encodable(plain) else json.dumps(schema, sort_keys=True, separators=(",", ":"))
    )


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    """Return a validator that fetches nothing and limits the time of patterns. Raises ConfigError
    for a bad schema.
    """
    from jsonschema import validators
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    try:
        value = json.loads(schema)
        cls = validators.validator_for(value, default=validators.Draft202012Validator)
        cls.check_schema(value)
        check_references(value)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  (the library raises anything for a value that is not a schema)
        reason = (
            f"{error.json_path}: {error.message[:200]}"
            if isinstance(error, SchemaError)
            else f"{type(error).__name__}: {str(error)[:200]}"
        )
        raise ConfigError(f"the schema is not valid: {reason}") from None
    if '"patternProperties"' in schema:
        raise ConfigError(
            "patternProperties is not supported: its patterns would run without a time limit"
        )
    extend: Any = validators.extend
    bounded = extend(cls, {"pattern": _check_pattern, "uniqueItems": _check_unique_items})
    bounded.evolve = _evolve_same_class(bounded)
    return bounded(value, registry=Registry())


def _evolve_same_class(cls: Any) -> Any:
    """Return the method that makes the validator of a part of the schema, with the same class.

    The library's own method takes the class that a `$schema` in the part names, whose patterns have
    no time limit.
    """
    init_fields = [field for field in cls.__attrs_attrs__ if field.init]

    def evolve(self: Any, **changes: Any) -> Any:
        return cls(**{field.alias: getattr(self, field.name) for field in init_fields} | changes)

    return evolve


_pattern_deadline: ContextVar[float] = ContextVar("_pattern_deadline")  # by the monotonic clock


def _check_pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    import regex
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str):
        left = _pattern_deadline.get() - monotonic()
        if left <= 0:
            raise TimeoutError
        try:
            match = regex.search(pattern, instance, timeout=left)
        except regex.error as error:
            yield ValidationError(f"{pattern!r} is not a pattern: {error}")
            return
        if not match:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _check_unique_items(_validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if (
        unique
        and isinstance(instance, list)
        and len({canonical_json(_normalise_numbers(each)) for each in instance}) < len(instance)
    ):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _normalise_numbers(value: Any) -> Any:
    """Return the value with 1.0 as 1, which JSON Schema takes for equal."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normalise_numbers(each) for key, each in value.items()}
    return [_normalise_numbers(each) for each in value] if isinstance(value, list) else value


@lru_cache(maxsize=64)
def _expanded_size(schema: str) -> float:
    """Return the number of values in the schema with every reference expanded; infinite for a
    cycle. The target of a reference is counted once and added for each reference to it.
    """
    root = json.loads(schema)
    # infinite while a reference is followed: reaching it again is a cycle
    sizes: dict[str, float] = {"#": inf}

    def node_size(node: Any) -> float:
        if isinstance(node, list):
            return 1 + sum(map(node_size, node))
        if not isinstance(node, dict):
            return 1
        if not UNBOUNDED_KEYWORDS.isdisjoint(node) or ("$id" in node and node is not root):
            return inf
        size = 1 + sum(map(node_size, node.values()))
        if not isinstance(reference := node.get("$ref"), str):
            return size
        if reference not in sizes:
            sizes[reference] = inf
            sizes[reference] = node_size(_resolve_pointer(root, reference))
        return size + sizes[reference]

    try:
        return node_size(root)
    except RecursionError:
        return inf


def _resolve_pointer(root: Any, reference: str) -> Any:
    """Return the target of a pointer within the schema; for any other reference, something of
    infinite size.
    """
    node = root
    for step in reference.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return dict.fromkeys(UNBOUNDED_KEYWORDS)
        node = node[name]
    return node


UNBOUNDED_KEYWORDS = frozenset(
    ("$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties")
)


# ---- summaries of schemas
#
# A summary holds the keywords that a text can meet or break, and nothing else: titles,
# descriptions, examples, defaults, comments and unknown keys demand nothing. A long schema is
# summarised less deeply.


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
CONSTRAINT_KEYWORDS = frozenset(
    (*SCHEMA_KEYWORDS, *SCHEMA_LIST_KEYWORDS, *SCHEMA_MAP_KEYWORDS, *VALUE_KEYWORDS)
)


def is_schema(value: Any) -> bool:
    """Return whether a value is an object with a keyword of JSON Schema, or declares to be a
    schema.
    """
    return isinstance(value, dict) and (
        not CONSTRAINT_KEYWORDS.isdisjoint(value) or "json-schema.org" in str(value.get("$schema"))
    )


def schema_outline(schema: Any) -> str:
    """Return the demands of a schema as JSON of at most 500 characters, or the beginning of it."""
    outline = ""
    for depth in range(MAX_DEPTH, 0, -1):
        outline = json.dumps(
            _constraints(schema, depth), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        if len(outline) <= MAX_OUTLINE_CHARS:
            return outline
    return f"{outline[:MAX_OUTLINE_CHARS]}..."


def _constraints(schema: Any, depth: int) -> Any:
    """Return the keywords of a schema that demand something, with those of nested schemas down to
    `depth`.
    """
    if not isinstance(schema, Mapping):
        return schema if isinstance(schema, bool) else {}
    constraints = {key: value for key, value in schema.items() if key in VALUE_KEYWORDS}
    for key, value in schema.items() if depth else ():
        if key in SCHEMA_KEYWORDS + SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            constraints[key] = [_constraints(each, depth - 1) for each in value]
        elif key in SCHEMA_KEYWORDS:
            constraints[key] = _constraints(value, depth - 1)
        elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, Mapping):
            constraints[key] = {name: _constraints(each, depth - 1) for name, each in value.items()}
    return constraints
