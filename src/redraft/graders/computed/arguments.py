"""Options in a spec, "name:key=value,key=value", parsed into the fields of a frozen dataclass by their types.

Nothing here knows a grader: its `__post_init__` checks values beyond their types.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ... import checks
from ...errors import ConfigError

T = TypeVar("T")
SEPARATOR = "|"  # between the texts of one value


def parse_options(cls: type[T], argument: str) -> T:
    """Return an instance with the options in `argument` ("" for none). Raises ConfigError naming what is allowed."""
    hints = get_type_hints(cls)
    allowed = {f.name: hints[f.name] for f in fields(cls) if f.name != "name"}  # type: ignore[arg-type]
    return cls(**dict(_parse_option(pair, allowed) for pair in _option_pairs(argument)))


def _option_pairs(argument: str) -> Iterator[str]:
    return (pair for pair in argument.split(",") if argument.strip())


def _parse_option(pair: str, allowed: dict[str, Any]) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in pair.partition("="))
    if not equals or key not in allowed:
        near = checks.closest_names(key, allowed, 1)
        hint = f"did you mean {near[0]}={_format_hint(allowed[near[0]])}? " if near else ""
        known = ", ".join(f"{name}={_format_hint(hint)}" for name, hint in allowed.items()) or "none"
        raise ConfigError(f"{checks.format_value(pair.strip())} is not an option; {hint}there are: {known}")
    return key, _parse_value(key, value, allowed[key])


def _parse_value(key: str, text: str, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Literal:
        return _parse_choice(key, text, {str(choice): choice for choice in get_args(hint)})
    if origin in (Union, types.UnionType):
        return _parse_value(key, text, next(part for part in get_args(hint) if part is not type(None)))
    if origin is tuple:
        return tuple(part.strip() for part in text.split(SEPARATOR) if part.strip())
    if hint is bool:
        return _parse_choice(key, text.lower(), {"true": True, "false": False})
    return text if hint is str else _parse_number(key, text, hint)


def _parse_choice(key: str, text: str, choices: dict[str, Any]) -> Any:
    if text not in choices:
        raise ConfigError(f"{key} must be {' or '.join(choices)}, got {text!r}")
    return choices[text]


def _parse_number(key: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not isfinite(value):
        raise ConfigError(f"{key} must be {_format_hint(kind)}, got {text!r}")
    return value


def _format_hint(hint: Any) -> str:
    """Return how a value of this type is written, in words."""
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return _format_hint(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return f"A{SEPARATOR}B{SEPARATOR}C"
    return {bool: "true|false", int: "a whole number", float: "a number"}.get(hint, "TEXT")


def check_number(name: str, value: Any, low: float, high: float = float("inf"), *, whole: bool = False) -> None:
    """Raise ConfigError for anything but a number in [low, high]."""
    if not checks.is_number(value) or (whole and not isinstance(value, int)) or not low <= value <= high:
        bounds = f">= {low:g}" if high == float("inf") else f"in [{low:g}, {high:g}]"
        raise checks.invalid_argument(name, f"a {'whole number' if whole else 'number'} {bounds}", value)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ConfigError for anything but one of the choices."""
    if not isinstance(value, str | int | None) or value not in choices:
        raise checks.invalid_argument(name, " or ".join(map(repr, choices)), value)
