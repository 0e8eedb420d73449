"""Tasks and records as JSON and back: one flat object for each, without fields that hold their
default.

The schema version is in the header of a trace. Texts survive unchanged, including lone surrogates
and NUL, by JSON's own escapes. What is read is checked against the type annotations of the
dataclasses.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias

import orjson

from ..base.jsontext import MAX_DEPTH, TOO_DEEP_MESSAGE, nesting_depth
from ..errors import StoreError
from ..usage import Usage
from .records import (
    Artifact,
    Candidate,
    Comparison,
    CriterionScore,
    Failure,
    Feedback,
    Outcome,
    Record,
    Slot,
    StopReason,
    ToolCall,
)
from .task import Task

# of the trace format: raise it with every change of what is written (tests/golden shows them)
SCHEMA = 3
READABLE = (2, SCHEMA)  # schema 2, of release 0.2, has no `traceparent`
RECORD_TYPES: dict[str, type] = {
    "candidate": Candidate,
    "feedback": Feedback,
    "comparison": Comparison,
    "failure": Failure,
    "outcome": Outcome,
}
# the types of most values, which JSON has as they are
PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
DECODER = json.JSONDecoder()
RECORD_KINDS = {cls: kind for kind, cls in RECORD_TYPES.items()}


# ---- writing


def record_to_json(record: Record) -> str:
    """Return a record as one line of JSON."""
    data = {"kind": RECORD_KINDS[record.__class__], **_set_fields(record)}
    try:
        return orjson.dumps(data, _to_json_type, orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except TypeError:  # a lone surrogate, or an integer over 64 bits
        return json.dumps(data, default=_to_json_type)


def pack(value: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object, without the fields that hold their default."""
    return {
        name: v if v.__class__ in PLAIN_TYPES else _to_jsonable(v)
        for name, v in _set_fields(value).items()
    }


def _set_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that do not hold their default, as they are."""
    defaults, field_values = _fields_of(value.__class__)
    values = zip(defaults, field_values(value), strict=False)
    return {name: v for (name, default), v in values if v is not default and v != default}


@cache
def _fields_of(kind: Any) -> tuple[list[tuple[str, Any]], Callable[[Any], tuple[Any, ...]]]:
    """Return the fields of a dataclass with their defaults, and a function that returns their
    values (and the class).
    """
    defaults = [
        (f.name, f.default_factory() if f.default_factory is not MISSING else f.default)
        for f in fields(kind)
    ]
    # of a single name it would return no tuple
    return defaults, attrgetter(*(name for name, _ in defaults), "__class__")


def _to_jsonable(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [v if v.__class__ in PLAIN_TYPES else _to_jsonable(v) for v in value]
    if isinstance(value, str):  # a StopReason
        return value
    if hasattr(value.__class__, "__dataclass_fields__"):  # what is_dataclass asks
        return pack(value)
    return dict(value) if isinstance(value, Mapping) else value


def _to_json_type(value: Any) -> dict[str, Any]:
    """Return a dataclass or a mapping, which JSON lacks, as an object. Raises TypeError for
    anything else.
    """
    return _set_fields(value) if hasattr(value.__class__, "__dataclass_fields__") else dict(value)


# ---- reading


def record_from_json(line: str) -> Record:
    """Read the record on a line. Raises StoreError for anything else."""
    data = object_from_json(line)
    cls = RECORD_TYPES.get(str(data.pop("kind", None)))
    if cls is None:
        raise StoreError(
            f"not a record of any known kind ({', '.join(RECORD_TYPES)}): {line[:200]!r}"
        )
    if "forecast" in data and cls is Outcome:
        data = _without_forecast(data)
    record: Record = unpack(cls, data)
    return record


def _without_forecast(data: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome of an earlier version with its forecast in the note: what was expected of
    an answer that no judge graded. Raises StoreError.
    """
    match data.pop("forecast"):
        case [float() | int() as mean, _, _] if 0 <= mean <= 1:
            expected = f"no judge graded the answer; it was expected to score {mean:.2f}"
            return {**data, "note": "; ".join(filter(None, [data.get("note"), expected]))}
        case other:
            raise StoreError(f"not an Outcome: forecast cannot be {other!r:.80}")


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Read the task in a header. Raises StoreError."""
    task: Task = unpack(Task, data)
    return task


def check_version(data: Mapping[str, Any]) -> None:
    """Raise StoreError unless this release reads the schema version of a header."""
    version = data.get("redraft")
    if version not in READABLE:
        problem = "no Redraft trace" if version is None else f"a trace of schema {version!r:.80}"
        advice = "" if version is None else ": use the Redraft that wrote it, or a newer one"
        raise StoreError(f"{problem}; this release reads schema {SCHEMA} and 2{advice}")


def object_from_json(text: str) -> dict[str, Any]:
    """Read a JSON object. Raises StoreError for anything else."""
    data = value_from_json(text)
    if not isinstance(data, dict):
        raise StoreError(f"expected a JSON object, got {text[:200]!r}")
    return data


def value_from_json(text: Any) -> Any:
    """Read JSON that Redraft wrote, nested at most 200 levels. Raises StoreError for anything else.

    It accepts duplicate keys, unlike `jsontext.strict_loads`, and is twice as fast.
    """
    if not isinstance(text, str):
        raise StoreError(f"not JSON: it is not text (in {str(text)[:200]})")
    try:
        data = DECODER.decode(text)
        if (
            len(text) > MAX_DEPTH
            and text.count("[") + text.count("{") > MAX_DEPTH
            and nesting_depth(data) > MAX_DEPTH
        ):
            raise ValueError(TOO_DEEP_MESSAGE)
    except RecursionError:
        raise StoreError(f"not JSON: {TOO_DEEP_MESSAGE} (in {text[:200]!r})") from None
    except ValueError as error:
        raise StoreError(f"not JSON: {error} (in {text[:200]!r})") from error
    return data


def unpack(cls: type, data: Mapping[str, Any]) -> Any:
    """Make a dataclass from what `pack` wrote. Raises StoreError for invalid data."""
    try:
        formats, values = _field_formats(cls), {}
        for name, raw in _require_object(data).items():
            decode, classes, is_valid = formats.get(name, UNKNOWN_FIELD)
            values[name] = value = raw if decode is None else decode(raw)
            kind = value.__class__
            if (
                (kind in NUMBER_TYPES and not -INT64_LIMIT <= value < INT64_LIMIT)
                if kind in classes
                else not is_valid(value)
            ):
                raise ValueError(f"{name} cannot be {value!r:.80}")
        return cls(**values)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a {cls.__name__}: {error} (in {str(data)[:200]})") from error


Validator: TypeAlias = Callable[[Any], bool]
FieldFormat: TypeAlias = tuple[Callable[[Any], Any] | None, frozenset[type], Validator]


@cache
def _field_formats(kind: Any) -> dict[str, FieldFormat]:
    """Return for each field its decoder (None: unchanged), the classes that need no validator, and
    the validator.
    """
    hints = typing.get_type_hints(kind)
    if kind is Task:  # which checks its messages itself
        hints["messages"] = Any
    return {
        name: (
            DECODERS.get(name, None if annotation in SCALAR_TYPES else _lists_to_tuples),
            _accepted_classes(annotation),
            validator_for(annotation),
        )
        for name, annotation in hints.items()
    }


def _lists_to_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _decode_slot(value: Any) -> Slot:
    if not isinstance(value, list | tuple) or any(isinstance(v, dict) for v in value):
        raise TypeError(f"a slot is a list of texts, numbers and lists, got {value!r:.80}")
    return tuple(_decode_slot(v) if isinstance(v, list) else v for v in value)


def _decode_pair(value: Any) -> tuple[Any, Any]:
    first, second = value
    return first, second


def _require_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {value!r:.80}")
    return value


def _decode_vote(data: Mapping[str, Any]) -> Any:
    return unpack(
        Comparison
        if "ranking" in _require_object(data)
        else Failure
        if "step_slot" in data
        else Feedback,
        data,
    )


DECODERS: dict[str, Any] = {
    "usage": lambda v: unpack(Usage, v),
    "criteria": lambda v: tuple(unpack(CriterionScore, c) for c in v),
    "step_slot": _decode_slot,
    "ties": lambda v: tuple(tuple(group) for group in v),
    "votes": lambda v: tuple(map(_decode_vote, v)),
    "stop_reason": lambda v: v and StopReason(v),
    "interval": lambda v: None if v is None else _decode_pair(v),
    "estimates": lambda v: tuple(map(_decode_pair, v)),
    "tool_calls": lambda v: tuple(unpack(ToolCall, call) for call in v),
    "artifact": lambda v: None if v is None else unpack(Artifact, v),
    "by_iteration": lambda v: tuple(map(tuple, v)),
    "parsed": lambda v: v,
    "decisions": lambda v: v,
}
SCALAR_TYPES = (str, int, float, bool, str | None, int | None, float | None, bool | None)
UNKNOWN_FIELD: FieldFormat = (_lists_to_tuples, frozenset(), lambda _: True)


# ---- type annotations

INT64_LIMIT = 2**63
NUMBER_TYPES = (float, int)
VALIDATORS: dict[Any, Validator] = {
    Any: lambda _: True,
    None: lambda v: v is None,
    type(None): lambda v: v is None,
    bool: lambda v: isinstance(v, bool),
    int: lambda v: v.__class__ is int and -INT64_LIMIT <= v < INT64_LIMIT,
    # False for NaN
    float: lambda v: v.__class__ in NUMBER_TYPES and -INT64_LIMIT <= v < INT64_LIMIT,
    str: lambda v: isinstance(v, str),
}


@cache
def validator_for(annotation: Any) -> Validator:
    """Return a function that tells whether a value has the annotated type.

    It knows scalars, unions, tuples, lists, mappings, dataclasses, enums (by value) and typed
    dicts; any other annotation accepts everything. Integers have at most 64 bits and numbers are
    finite.
    """
    if annotation in VALIDATORS:
        return VALIDATORS[annotation]
    if typing.is_typeddict(annotation):
        known, required = field_validators(annotation), annotation.__required_keys__
        return lambda v: (
            isinstance(v, Mapping)
            and required <= v.keys()
            and all(known[k](v[k]) for k in known.keys() & v.keys())
        )
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return lambda v: v in set(annotation)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return lambda v: isinstance(v, annotation)
    return _generic_validator(typing.get_origin(annotation), typing.get_args(annotation))


def _generic_validator(origin: object, args: tuple[object, ...]) -> Validator:
    """Return the validator of a union, or of a generic type with arguments."""
    if origin in {typing.Union, types.UnionType}:
        members = tuple(map(validator_for, args))
        return lambda v: any(check(v) for check in members)
    if origin is tuple and args[-1] is not ...:
        items = tuple(map(validator_for, args))
        return lambda v: (
            isinstance(v, tuple)
            and len(v) == len(items)
            and all(check(item) for check, item in zip(items, v, strict=True))
        )
    if not isinstance(origin, type):
        return VALIDATORS[Any]
    if issubclass(origin, Mapping):
        each = validator_for(args[1])
        return lambda v: isinstance(v, Mapping) and all(map(each, v.values()))
    if issubclass(origin, Sequence):
        container, each = tuple if origin is tuple else list, validator_for(args[0])
        return lambda v: isinstance(v, container) and all(map(each, v))
    return VALIDATORS[Any]


def field_validators(kind: type) -> Mapping[str, Validator]:
    """Return the validators of the fields of a dataclass or typed dict."""
    return {
        name: validator_for(annotation) for name, annotation in typing.get_type_hints(kind).items()
    }


def _accepted_classes(annotation: Any) -> frozenset[type]:
    """Return the classes whose values have the annotated type; the range of numbers is left to be
    checked.
    """
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return frozenset().union(*map(_accepted_classes, typing.get_args(annotation)))
    annotation = type(None) if annotation is None else annotation
    if annotation is float:
        return frozenset(NUMBER_TYPES)
    if annotation in {str, bool, int, type(None)} or (
        isinstance(annotation, type) and is_dataclass(annotation)
    ):
        return frozenset({annotation})
    return frozenset()
