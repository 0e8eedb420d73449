"""Records as JSON and back. One flat object a record, defaults left out; the schema version stands in the header.

Texts survive as they are, lone surrogates and NUL included: JSON's own escapes carry them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, get_type_hints

import orjson

from ..errors import StoreError
from ..jsontext import MOST_DEPTH, TOO_DEEP, depth
from .records import Candidate, Comparison, Criterion, Failure, Feedback, Outcome, Record, Slot, StopReason, Task, ToolCall, Usage
from .type_checks import LARGEST, NUMBERS, Check, check_of, passing

Restored: TypeAlias = tuple[Callable[[Any], Any] | None, frozenset[type], Check]
SCHEMA = 1
KINDS: dict[str, type] = {
    "candidate": Candidate,
    "feedback": Feedback,
    "comparison": Comparison,
    "failure": Failure,
    "outcome": Outcome,
}
NAMES = {cls: kind for kind, cls in KINDS.items()}


def pack(value: Any) -> dict[str, Any]:
    """A dataclass as a JSON object, without the fields that hold their default."""
    out: dict[str, Any] = {}
    for name, default in _defaults(value.__class__):
        held = getattr(value, name)
        if held is not default and held != default:
            out[name] = _plain(held)
    return out


@cache
def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass and what they hold unless told otherwise."""
    return [(f.name, f.default_factory() if f.default_factory is not MISSING else f.default) for f in fields(kind)]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return pack(value)
    return dict(value) if isinstance(value, Mapping) else value


def unpack(cls: type, data: Mapping[str, Any]) -> Any:
    """The dataclass that `pack` wrote. Raises StoreError when the data do not make one."""
    try:
        restored, held = _restored(cls), {}
        for name, value in _object(data).items():
            restore, passes, fits = restored.get(name, UNKNOWN)
            held[name] = whole = value if restore is None else restore(value)
            kind = whole.__class__
            if (kind in NUMBERS and not -LARGEST <= whole < LARGEST) if kind in passes else not fits(whole):
                raise ValueError(f"{name} cannot be {whole!r:.80}")
        return cls(**held)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a {cls.__name__}: {error} (in {str(data)[:200]})") from error


@cache
def _restored(kind: Any) -> dict[str, Restored]:
    """How each field of a dataclass is restored (None: as it is), the classes that it may have then, and what else it may be."""
    hints = get_type_hints(kind)
    if kind is Task:  # which checks its messages itself
        hints["messages"] = Any
    return {
        name: (RESTORE.get(name, None if held in PLAIN_TYPES else _same), passing(held), check_of(held))
        for name, held in hints.items()
    }


def _same(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _slot(value: Any) -> Slot:
    if not isinstance(value, list | tuple) or any(isinstance(v, dict) for v in value):
        raise TypeError(f"a slot is a list of texts, numbers and lists, got {value!r:.80}")
    return tuple(_slot(v) if isinstance(v, list) else v for v in value)


def _pair(value: Any) -> tuple[Any, Any]:
    one, other = value
    return one, other


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {value!r:.80}")
    return value


def _vote(data: Mapping[str, Any]) -> Any:
    return unpack(Comparison if "ranking" in _object(data) else Failure if "of" in data else Feedback, data)


RESTORE: dict[str, Any] = {
    "usage": lambda v: unpack(Usage, v),
    "criteria": lambda v: tuple(unpack(Criterion, c) for c in v),
    "of": _slot,
    "ties": lambda v: tuple(tuple(group) for group in v),
    "votes": lambda v: tuple(map(_vote, v)),
    "ends": lambda v: v and StopReason(v),
    "interval": lambda v: None if v is None else _pair(v),
    "believed": lambda v: tuple(map(_pair, v)),
    "tool_calls": lambda v: tuple(unpack(ToolCall, call) for call in v),
}


def record_to_json(record: Record) -> str:
    """One line."""
    told = {"kind": NAMES[type(record)], **pack(record)}
    try:
        return orjson.dumps(told).decode()
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return json.dumps(told)


def record_from_json(line: str) -> Record:
    """The record on a line. Raises StoreError for anything else."""
    data = loads(line)
    cls = KINDS.get(str(data.pop("kind", None)))
    if cls is None:
        raise StoreError(f"not a record of any known kind ({', '.join(KINDS)}): {line[:200]!r}")
    record: Record = unpack(cls, data)
    return record


PLAIN_TYPES = (str, int, float, bool, str | None, int | None, float | None, bool | None)
UNKNOWN: Restored = (_same, frozenset(), lambda _: True)


def task_from_json(data: Mapping[str, Any]) -> Task:
    """The task in a header."""
    task: Task = unpack(Task, data)
    return task


def loads(text: str) -> dict[str, Any]:
    """A JSON object. Raises StoreError for anything else."""
    data = value_from_json(text)
    if not isinstance(data, dict):
        raise StoreError(f"expected a JSON object, got {text[:200]!r}")
    return data


def value_from_json(text: Any) -> Any:
    """The value in a text of JSON that we wrote, nested at most 200 levels. Raises StoreError for anything else.

    Looser than `jsontext.parsed`, and twice as fast: keys that stand twice harm nobody here.
    """
    if not isinstance(text, str):
        raise StoreError(f"not JSON: it is no text (in {str(text)[:200]})")
    try:
        data = json.loads(text)
        if text.count("[") + text.count("{") > MOST_DEPTH and depth(data) > MOST_DEPTH:
            raise ValueError(TOO_DEEP)
    except RecursionError:
        raise StoreError(f"not JSON: {TOO_DEEP} (in {text[:200]!r})") from None
    except ValueError as error:
        raise StoreError(f"not JSON: {error} (in {text[:200]!r})") from error
    return data


def check_version(data: Mapping[str, Any]) -> None:
    """Raise StoreError unless a header's schema is one this release reads."""
    found = data.get("redraft")
    if found != SCHEMA:
        problem = "no Redraft trace" if found is None else f"a trace of schema {found!r}"
        raise StoreError(
            f"{problem}; this release reads schema {SCHEMA}"
            + ("" if found is None else ": use the Redraft that wrote it, or a newer one")
        )
