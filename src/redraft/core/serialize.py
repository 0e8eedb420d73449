"""Records as JSON and back: one flat object per record, without fields that hold their default.

The schema version is in the header. Texts survive unchanged, including lone surrogates and NUL, by JSON's own escapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, get_type_hints

import orjson

from ..errors import StoreError
from ..jsontext import MAX_DEPTH, TOO_DEEP_MESSAGE, nesting_depth
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
    Task,
    ToolCall,
)
from .type_checks import INT64_LIMIT, NUMBER_TYPES, Validator, accepted_classes, validator_for

FieldDecoder: TypeAlias = tuple[Callable[[Any], Any] | None, frozenset[type], Validator]
SCHEMA = 2  # of the trace format: raise it with every change of what is written (tests/golden shows them)
RECORD_TYPES: dict[str, type] = {
    "candidate": Candidate,
    "feedback": Feedback,
    "comparison": Comparison,
    "failure": Failure,
    "outcome": Outcome,
}
RECORD_KINDS = {cls: kind for kind, cls in RECORD_TYPES.items()}


def pack(value: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object, without the fields that hold their default."""
    out: dict[str, Any] = {}
    for name, default in _defaults(value.__class__):
        held = getattr(value, name)
        if held is not default and held != default:
            out[name] = _to_jsonable(held)
    return out


@cache
def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass with their defaults."""
    return [(f.name, f.default_factory() if f.default_factory is not MISSING else f.default) for f in fields(kind)]


def _to_jsonable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [_to_jsonable(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return pack(value)
    return dict(value) if isinstance(value, Mapping) else value


def unpack(cls: type, data: Mapping[str, Any]) -> Any:
    """Make a dataclass from what `pack` wrote. Raises StoreError for invalid data."""
    try:
        restored, held = _field_decoders(cls), {}
        for name, value in _require_object(data).items():
            restore, passes, fits = restored.get(name, UNKNOWN_FIELD)
            held[name] = whole = value if restore is None else restore(value)
            kind = whole.__class__
            if (kind in NUMBER_TYPES and not -INT64_LIMIT <= whole < INT64_LIMIT) if kind in passes else not fits(whole):
                raise ValueError(f"{name} cannot be {whole!r:.80}")
        return cls(**held)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a {cls.__name__}: {error} (in {str(data)[:200]})") from error


@cache
def _field_decoders(kind: Any) -> dict[str, FieldDecoder]:
    """Return for each field its decoder (None: unchanged), the classes accepted without further check, and a validator."""
    hints = get_type_hints(kind)
    if kind is Task:  # which checks its messages itself
        hints["messages"] = Any
    return {
        name: (DECODERS.get(name, None if held in SCALAR_TYPES else _lists_to_tuples), accepted_classes(held), validator_for(held))
        for name, held in hints.items()
    }


def _lists_to_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _decode_slot(value: Any) -> Slot:
    if not isinstance(value, list | tuple) or any(isinstance(v, dict) for v in value):
        raise TypeError(f"a slot is a list of texts, numbers and lists, got {value!r:.80}")
    return tuple(_decode_slot(v) if isinstance(v, list) else v for v in value)


def _decode_pair(value: Any) -> tuple[Any, Any]:
    one, other = value
    return one, other


def _require_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {value!r:.80}")
    return value


def _decode_vote(data: Mapping[str, Any]) -> Any:
    return unpack(Comparison if "ranking" in _require_object(data) else Failure if "step_slot" in data else Feedback, data)


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
}


def record_to_json(record: Record) -> str:
    """Return a record as one line of JSON."""
    data = {"kind": RECORD_KINDS[type(record)], **pack(record)}
    try:
        return orjson.dumps(data).decode()
    except TypeError:  # a lone surrogate, or a number beyond 64 bits
        return json.dumps(data)


def record_from_json(line: str) -> Record:
    """Read the record on a line. Raises StoreError for anything else."""
    data = object_from_json(line)
    cls = RECORD_TYPES.get(str(data.pop("kind", None)))
    if cls is None:
        raise StoreError(f"not a record of any known kind ({', '.join(RECORD_TYPES)}): {line[:200]!r}")
    record: Record = unpack(cls, data)
    return record


SCALAR_TYPES = (str, int, float, bool, str | None, int | None, float | None, bool | None)
UNKNOWN_FIELD: FieldDecoder = (_lists_to_tuples, frozenset(), lambda _: True)


def task_from_json(data: Mapping[str, Any]) -> Task:
    """Read the task in a header. Raises StoreError."""
    task: Task = unpack(Task, data)
    return task


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
        data = json.loads(text)
        if text.count("[") + text.count("{") > MAX_DEPTH and nesting_depth(data) > MAX_DEPTH:
            raise ValueError(TOO_DEEP_MESSAGE)
    except RecursionError:
        raise StoreError(f"not JSON: {TOO_DEEP_MESSAGE} (in {text[:200]!r})") from None
    except ValueError as error:
        raise StoreError(f"not JSON: {error} (in {text[:200]!r})") from error
    return data


def check_version(data: Mapping[str, Any]) -> None:
    """Raise StoreError unless this release reads the schema version of a header."""
    found = data.get("redraft")
    if found != SCHEMA:
        problem = "no Redraft trace" if found is None else f"a trace of schema {found!r:.80}"
        advice = "" if found is None else ": use the Redraft that wrote it, or a newer one"
        raise StoreError(f"{problem}; this release reads schema {SCHEMA}{advice}")
