"""Whether a value read from JSON has the type that an annotation says. It knows annotations, not what they are for."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], bool]
LARGEST = 2**63
NUMBERS = (float, int)
PLAIN: dict[Any, Check] = {
    Any: lambda _: True,
    None: lambda v: v is None,
    type(None): lambda v: v is None,
    bool: lambda v: isinstance(v, bool),
    int: lambda v: v.__class__ is int and -LARGEST <= v < LARGEST,
    float: lambda v: v.__class__ in NUMBERS and -LARGEST <= v < LARGEST,  # NaN is not between them
    str: lambda v: isinstance(v, str),
}


@cache
def check_of(kind: Any) -> Check:
    """What tells whether a value is of a type: plain ones, unions, tuples, lists, mappings, dataclasses, enums, typed dicts.

    Whole numbers have 64 bits at most and numbers are finite; the value of an enum stands for it. What is none of these passes.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin in {typing.Union, types.UnionType}:
        return _any_of(tuple(map(check_of, args)))
    if origin is tuple:
        return _items(tuple, args[0]) if args[-1] is ... else _places(tuple(map(check_of, args)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(check_of(args[1]))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _items(list, args[0])
    if typing.is_typeddict(kind):
        return _keys({name: check_of(held) for name, held in typing.get_type_hints(kind).items()}, kind.__required_keys__)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda v: v in set(kind)
    return _instance_of(kind) if isinstance(kind, type) and is_dataclass(kind) else PLAIN[Any]


def passing(kind: Any) -> frozenset[type]:
    """The classes whose values are of a type; of numbers it is left to check that they are not beyond `LARGEST`."""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        return frozenset().union(*map(passing, typing.get_args(kind)))
    kind = type(None) if kind is None else kind
    if kind is float:
        return frozenset(NUMBERS)
    return frozenset({kind} if kind in {str, bool, int, type(None)} or (isinstance(kind, type) and is_dataclass(kind)) else ())


def checks_of(kind: type) -> Mapping[str, Check]:
    """The same for each field of a dataclass."""
    return _checks_of(kind)


@cache
def _checks_of(kind: Any) -> Mapping[str, Check]:
    return {name: check_of(held) for name, held in typing.get_type_hints(kind).items()}


def _instance_of(kind: type) -> Check:
    return lambda v: isinstance(v, kind)


def _any_of(checks: tuple[Check, ...]) -> Check:
    return lambda v: any(check(v) for check in checks)


def _items(of: type[list[Any] | tuple[Any, ...]], kind: Any) -> Check:
    check = check_of(kind)
    return lambda v: isinstance(v, of) and all(check(item) for item in v)


def _places(checks: tuple[Check, ...]) -> Check:
    return lambda v: isinstance(v, tuple) and len(v) == len(checks) and all(c(item) for c, item in zip(checks, v, strict=True))


def _mapping(check: Check) -> Check:
    return lambda v: isinstance(v, Mapping) and all(map(check, v.values()))


def _keys(checks: Mapping[str, Check], required: frozenset[str]) -> Check:
    return lambda v: isinstance(v, Mapping) and required <= v.keys() and all(checks[k](v[k]) for k in checks.keys() & v.keys())
