"""Check values that were read from JSON against type annotations."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeAlias

Validator: TypeAlias = Callable[[Any], bool]
INT64_LIMIT = 2**63
NUMBER_TYPES = (float, int)
VALIDATORS: dict[Any, Validator] = {
    Any: lambda _: True,
    None: lambda v: v is None,
    type(None): lambda v: v is None,
    bool: lambda v: isinstance(v, bool),
    int: lambda v: v.__class__ is int and -INT64_LIMIT <= v < INT64_LIMIT,
    float: lambda v: v.__class__ in NUMBER_TYPES and -INT64_LIMIT <= v < INT64_LIMIT,  # NaN is not between them
    str: lambda v: isinstance(v, str),
}


@cache
def validator_for(annotation: Any) -> Validator:
    """Return a function that tells whether a value has the annotated type.

    It knows scalars, unions, tuples, lists, mappings, dataclasses, enums (by value) and typed dicts; any other annotation
    accepts everything. Integers have at most 64 bits and numbers are finite.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in VALIDATORS:
        return VALIDATORS[annotation]
    if origin in {typing.Union, types.UnionType}:
        return _any_of(tuple(map(validator_for, args)))
    if origin is tuple:
        return _homogeneous(tuple, args[0]) if args[-1] is ... else _fixed_tuple(tuple(map(validator_for, args)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(validator_for(args[1]))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _homogeneous(list, args[0])
    if typing.is_typeddict(annotation):
        return _typed_dict(
            {name: validator_for(held) for name, held in typing.get_type_hints(annotation).items()}, annotation.__required_keys__
        )
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return lambda v: v in set(annotation)
    return _instance_of(annotation) if isinstance(annotation, type) and is_dataclass(annotation) else VALIDATORS[Any]


def accepted_classes(annotation: Any) -> frozenset[type]:
    """Return the classes whose values have the annotated type; the range of numbers is left to be checked."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return frozenset().union(*map(accepted_classes, typing.get_args(annotation)))
    annotation = type(None) if annotation is None else annotation
    if annotation is float:
        return frozenset(NUMBER_TYPES)
    return frozenset(
        {annotation}
        if annotation in {str, bool, int, type(None)} or (isinstance(annotation, type) and is_dataclass(annotation))
        else ()
    )


def field_validators(kind: type) -> Mapping[str, Validator]:
    """Return the validators of a dataclass's fields."""
    return _field_validators(kind)


@cache
def _field_validators(kind: Any) -> Mapping[str, Validator]:
    return {name: validator_for(held) for name, held in typing.get_type_hints(kind).items()}


def _instance_of(kind: type) -> Validator:
    return lambda v: isinstance(v, kind)


def _any_of(checks: tuple[Validator, ...]) -> Validator:
    return lambda v: any(check(v) for check in checks)


def _homogeneous(container: type[list[Any] | tuple[Any, ...]], kind: Any) -> Validator:
    check = validator_for(kind)
    return lambda v: isinstance(v, container) and all(check(item) for item in v)


def _fixed_tuple(checks: tuple[Validator, ...]) -> Validator:
    return lambda v: isinstance(v, tuple) and len(v) == len(checks) and all(c(item) for c, item in zip(checks, v, strict=True))


def _mapping(check: Validator) -> Validator:
    return lambda v: isinstance(v, Mapping) and all(map(check, v.values()))


def _typed_dict(checks: Mapping[str, Validator], required: frozenset[str]) -> Validator:
    return lambda v: isinstance(v, Mapping) and required <= v.keys() and all(checks[k](v[k]) for k in checks.keys() & v.keys())
