"""Checks of what callers hand over, and the words for what does not fit: the argument, the value, what is allowed.

Each check raises ConfigError. Values are shown short: an argument may be a whole document, or an object whose `repr` fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from reprlib import Repr
from typing import Any

from .errors import ConfigError

LONGEST_VALUE = 200  # characters of a value in a message
LONGEST_LIST = 12  # names in a message
_OR_NONE = {True: " or None", False: ""}


class _Short(Repr):
    """Short forms; what fails to show itself is named by its kind, without an address in memory."""

    def repr_instance(self, x: object, level: int) -> str:
        try:
            repr(x)
        except Exception:  # noqa: BLE001  (a foreign `repr`)
            return f"<{type(x).__name__}>"
        return super().repr_instance(x, level)


_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict, _SHORT.maxset = 5, 30, 30, 30, 30
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 300, 300, 100


def shown(value: object, most: int = LONGEST_VALUE) -> str:
    """The `repr` of a value in at most `most` characters, and what its length is where that is cut."""
    try:
        text = repr(value[: most + 1]) if isinstance(value, str | bytes) else _SHORT.repr(value)
    except Exception:  # noqa: BLE001  (a foreign `repr`, or an integer of thousands of digits)
        return f"<{type(value).__name__}>"
    if len(text) <= most:
        return text
    size = f" ({len(value):,} {'bytes' if isinstance(value, bytes) else 'characters'})" if isinstance(value, str | bytes) else ""
    return f"{text[: most - 3]}...{size}"


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None, *, optional: bool = False) -> None:
    """Raises ConfigError for what is no whole number from `least` to `most`; `optional`: None is allowed."""
    if value is None and optional:
        return
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or (least is not None and value < least) or (most is not None and value > most):
        raise refused(name, f"a whole number{_bounds(least, most)}{_OR_NONE[optional]}", value)


def number(name: str, value: Any, least: float = 0.0, most: float = inf, *, optional: bool = False) -> None:
    """Raises ConfigError for what is no finite number from `least` to `most`; `optional`: None is allowed."""
    if value is None and optional:
        return
    if not is_number(value) or not least <= value <= most:
        bounds = f" in [{least:g}, {most:g}]" if most < inf else f" >= {least:g}"
        raise refused(name, f"a number{bounds}{_OR_NONE[optional]}", value)


def positive(name: str, value: Any, most: float = inf) -> None:
    """Raises ConfigError for what is no finite number > 0, or more than `most`."""
    if not is_number(value) or not 0 < value <= most:
        raise refused(name, f"a number > 0{f' and <= {most:g}' if most < inf else ''}", value)


def share(name: str, value: Any) -> None:
    """Raises ConfigError for what is no number in (0, 1]."""
    positive(name, value, 1)


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raises ConfigError for what is none of the values allowed."""
    choices = list(allowed)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise refused(name, f"one of {', '.join(str(c) for c in choices)}", value)


def flag(name: str, value: Any, *, optional: bool = False) -> None:
    """Raises ConfigError for what is neither True nor False."""
    if not (isinstance(value, bool) or (value is None and optional)):
        raise refused(name, "True, False or None" if optional else "True or False", value)


def text(name: str, value: Any, *, optional: bool = False, empty: bool = False) -> None:
    """Raises ConfigError for what is no text, or blank; `optional`: None is allowed, `empty`: a blank one is."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not (empty or value.strip()):
        raise refused(name, f"text{'' if empty else ' that is not blank'}{_OR_NONE[optional]}", value)


def mapping(name: str, value: Any, like: str, *, optional: bool = True) -> None:
    """Raises ConfigError for what is no mapping with texts as keys; `like` is an example of one."""
    if value is None and optional:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refused(name, f"a mapping such as {like}{_OR_NONE[optional]}", value)


def instance(name: str, value: Any, wanted: str) -> None:
    """Raises ConfigError for a class where an object is wanted; `wanted` says what."""
    if isinstance(value, type):
        raise refused(name, f"{wanted}: write {value.__name__}(...), not the class", value)


def is_number(value: Any) -> bool:
    """Whether a value is an int or float that a float can hold; bool is none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def refused(name: str, allowed: str, value: object) -> ConfigError:
    """The error for an argument that is not what it must be."""
    return ConfigError(f"{name} must be {allowed}, got {shown(value)}")


def nearest(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """The known names that are most like a name, whatever its case, best first; then those that begin with it."""
    from difflib import get_close_matches

    given = name[:80].casefold()
    spelt: dict[str, str] = {}
    for one in known:
        spelt.setdefault(one.casefold(), one)
    close = get_close_matches(given, spelt, n, 0.7)
    longer = [one for one in spelt if len(given) > 2 and one.startswith(given) and one not in close]
    return [spelt[one] for one in [*close, *longer][:n]]


def unreadable(error: Exception) -> str:
    """Why a file cannot be read as text, and for a wrong encoding what to do."""
    if isinstance(error, UnicodeDecodeError):
        byte = error.object[error.start]
        return f"it is not UTF-8 text (byte {byte:#04x} at {error.start:,}): save it as UTF-8 (iconv -f LATIN1 -t UTF-8 OLD > NEW)"
    return str(getattr(error, "strerror", None) or error)


def unknown(what: str, name: str, known: Iterable[str], listed_by: str = "", *, given: str = "") -> str:
    """The words for a name that is not known: the nearest names first, then all, or as many as fit and how to list them.

    `what` is what the name is of ("grader"), `listed_by` the command that lists all, `given` what stood there where the name is
    only a part of it.
    """
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"unknown {what} {shown(given or name)}; {hint}{listing(names, listed_by)}"


def listing(names: Iterable[str], listed_by: str = "") -> str:
    """All names there are, in words; of many the first, and the command that lists all."""
    held = list(names)
    if not held:
        return "there are none"
    if len(held) <= LONGEST_LIST or not listed_by:
        return f"there are {', '.join(held)}"
    return f"there are {', '.join(held[:LONGEST_LIST])} and {len(held) - LONGEST_LIST} more: `{listed_by}` lists all"


def _bounds(least: int | None, most: int | None) -> str:
    if most is not None:
        return f" from {least} to {most:,}"
    return "" if least is None else f" >= {least}"
