"""Checks of arguments, and of extras that may not be installed. Each raises a ConfigError that
names the argument, what is allowed, and the value.

`require` is the check from which the others are made; where it must be known first that a value
does not fit, `invalid_argument` returns the same error.

Values are shortened in messages: an argument may be a whole document, or an object whose `repr`
fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf, isfinite, log10
from reprlib import Repr
from typing import Any, TypeGuard

from ..errors import ConfigError

MAX_VALUE_LENGTH = 200  # characters of a value in a message
MAX_SHOWN_BITS = 10_000  # of an integer; Python writes none of more than 4,300 digits
MAX_NAMES = 12  # names in a message
_BLANK = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]*"
)


class _ShortRepr(Repr):
    """Returns short forms; an object whose `repr` fails is shown as its class, without a memory
    address.
    """

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MAX_SHOWN_BITS:
            return f"<int of about {int(x.bit_length() * log10(2)) + 1:,} digits>"
        return super().repr_int(x, level)

    def repr_instance(self, x: object, level: int) -> str:
        try:
            repr(x)
        except Exception:  # noqa: BLE001  (a foreign `repr`)
            return f"<{type(x).__name__}>"
        return super().repr_instance(x, level)


_SHORT_REPR = _ShortRepr()
(
    _SHORT_REPR.maxlevel,
    _SHORT_REPR.maxlist,
    _SHORT_REPR.maxtuple,
    _SHORT_REPR.maxdict,
    _SHORT_REPR.maxset,
) = 5, 30, 30, 30, 30
_SHORT_REPR.maxstring, _SHORT_REPR.maxother, _SHORT_REPR.maxlong = 300, 300, 100


def format_value(value: object, max_length: int = MAX_VALUE_LENGTH) -> str:
    """Return the `repr` of a value in at most `max_length` characters, with its length if it is cut
    or is an enormous integer.
    """
    try:
        text = (
            repr(value[: max_length + 1])
            if isinstance(value, str | bytes)
            else _SHORT_REPR.repr(value)
        )
    except Exception:  # noqa: BLE001  (a foreign `repr`, or an integer of thousands of digits)
        return f"<{type(value).__name__}>"
    if len(text) <= max_length:
        return text
    size = (
        f" ({len(value):,} {'bytes' if isinstance(value, bytes) else 'characters'})"
        if isinstance(value, str | bytes)
        else ""
    )
    return f"{text[: max_length - 3]}...{size}"


def require(
    fits: bool,  # noqa: FBT001  (the condition, as in `assert`)
    name: str,
    expected: str,
    value: object,
    *,
    optional: bool = False,
) -> None:
    """Raise ConfigError unless the value fits; `optional` allows None. Every check below is one of
    these.

    `expected` completes "NAME must be ...", such as "a list of names".
    """
    if not (fits or (optional and value is None)):
        raise invalid_argument(name, f"{expected}{' or None' * optional}", value)


def whole_number(
    name: str,
    value: Any,
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    optional: bool = False,
) -> None:
    """Raise ConfigError unless the value is an int from `minimum` to `maximum`; `optional` allows
    None.
    """
    fits = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and (minimum is None or value >= minimum)
        and (maximum is None or value <= maximum)
    )
    bounds = "" if minimum is None else f" >= {minimum}"
    if maximum is not None:
        bounds = f" from {minimum} to {maximum:,}"
    require(fits, name, f"a whole number{bounds}", value, optional=optional)


def number(
    name: str, value: Any, minimum: float = 0.0, maximum: float = inf, *, optional: bool = False
) -> None:
    """Raise ConfigError unless the value is a finite number from `minimum` to `maximum`; `optional`
    allows None.
    """
    fits = is_number(value) and minimum <= value <= maximum
    bounds = f"in [{minimum:g}, {maximum:g}]" if maximum < inf else f">= {minimum:g}"
    require(fits, name, f"a number {bounds}", value, optional=optional)


def positive(name: str, value: Any, maximum: float = inf, *, optional: bool = False) -> None:
    """Raise ConfigError unless the value is a finite number > 0 and <= `maximum`; `optional`: None
    is allowed.
    """
    fits = is_number(value) and 0 < value <= maximum
    bounds = f"> 0 and <= {maximum:g}" if maximum < inf else "> 0"
    require(fits, name, f"a number {bounds}", value, optional=optional)


def share(name: str, value: Any) -> None:
    """Raise ConfigError unless the value is a number in (0, 1]."""
    positive(name, value, 1)


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise ConfigError unless the value is one of the allowed ones."""
    choices = list(allowed)
    fits = any(
        value is choice or (type(value) is type(choice) and value == choice) for choice in choices
    )
    require(fits, name, f"one of {', '.join(map(str, choices))}", value)


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character: it is empty, or only white space, control and
    format characters.
    """
    return _BLANK.fullmatch(text) is not None


def flag(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise ConfigError unless the value is True or False; `optional` allows None."""
    expected = "True, False" if optional else "True or False"
    require(isinstance(value, bool), name, expected, value, optional=optional)


def text(name: str, value: Any, *, optional: bool = False, allow_blank: bool = False) -> None:
    """Raise ConfigError unless the value is text that is not blank; `optional` allows None,
    `allow_blank` blank text.
    """
    fits = isinstance(value, str) and (allow_blank or bool(value.strip()))
    expected = "text" if allow_blank else "text that is not blank"
    require(fits, name, expected, value, optional=optional)


def mapping(name: str, value: Any, example: str, *, optional: bool = True) -> None:
    """Raise ConfigError unless the value is a mapping with text keys; `example` shows one."""
    fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    require(fits, name, f"a mapping such as {example}", value, optional=optional)


def instance(name: str, value: Any, expected: str) -> None:
    """Raise ConfigError for a class where an object is expected; `expected` describes the
    object.
    """
    if isinstance(value, type):
        raise invalid_argument(
            name, f"{expected}: write {value.__name__}(...), not the class", value
        )


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite int or float, and not a bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def install_command(extra: str) -> str:
    """Return the command that installs an extra of Redraft."""
    return f"pip install 'redraft[{extra}]'"


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Raise ConfigError if a library that is imported within the context is not installed.

    `purpose` begins the message, such as "a YAML rubric needs an extra".
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{purpose}: {install_command(extra)}") from error


def check_extra(extra: str, purpose: str, *modules: str) -> None:
    """Raise ConfigError unless the modules of an extra are installed, without importing them.

    `purpose` and the first that is missing begin the message, such as "redraft mcp needs".
    """
    for module in modules:
        if find_spec(module) is None:
            name = module.replace("_", "-")
            raise ConfigError(f"{purpose} {name}: {install_command(extra)}")


def invalid_argument(name: str, expected: str, value: object) -> ConfigError:
    """Return the error for an invalid argument."""
    return ConfigError(f"{name} must be {expected}, got {format_value(value)}")


def closest_names(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Return the known names most similar to a name, ignoring case, best first; then those that
    begin with it.
    """
    from difflib import get_close_matches

    folded_name = name[:80].casefold()
    names_by_folded: dict[str, str] = {}
    for known_name in known:
        names_by_folded.setdefault(known_name.casefold(), known_name)
    close = get_close_matches(folded_name, names_by_folded, n, 0.65)
    longer = [
        f
        for f in names_by_folded
        if len(folded_name) > 2 and f.startswith(folded_name) and f not in close
    ]
    return [names_by_folded[folded] for folded in [*close, *longer][:n]]


def read_error_message(error: Exception) -> str:
    """Return why a file cannot be read as text and, for a wrong encoding, what to do."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return (
            f"it is not UTF-8 text (byte {byte:#04x} at {error.start:,}): save it as UTF-8 (iconv "
            "-f LATIN1 -t UTF-8 OLD > NEW)"
        )
    return str(getattr(error, "strerror", None) or error)


def unknown_name_message(
    what: str, name: str, known: Iterable[str], list_command: str = "", *, full_value: str = ""
) -> str:
    """Return the message for an unknown name: the nearest names, then all if they are few, and how
    to list them.

    `what` is the kind of thing ("grader"), `list_command` the command that lists all, `full_value`
    the whole argument if the name is only a part of it.
    """
    names = list(known)
    near = closest_names(name, names)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
    if near and len(names) > MAX_NAMES:
        others = f" `{list_command}` lists all" if list_command else ""
    else:
        others = f"{' ' * bool(near)}{available_names(names, list_command)}"
    return f"unknown {what} {format_value(full_value or name)}; {hint}{others}"


def available_names(names: Iterable[str], list_command: str = "") -> str:
    """Return a phrase that lists the names; of more than 12, the first 12 and the command that
    lists all.
    """
    listed = list(names)
    if not listed:
        return "there are none"
    if len(listed) <= MAX_NAMES:
        return f"there are {', '.join(listed)}"
    how = f": `{list_command}` lists all" if list_command else ""
    return f"there are {', '.join(listed[:MAX_NAMES])} and {len(listed) - MAX_NAMES} more{how}"
