"""JSON that strangers wrote, read strictly and in time linear in it; and bounds for values that came in another way.

Keys that stand twice and NaN are refused, depth and size are measured. Half surrogate pairs, which JSON can escape and UTF-8 cannot
hold, are read as they are: what stores a text escapes them, what sends it replaces them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import orjson

T = TypeVar("T", bound=Hashable)

MAX_DEPTH = 200  # objects and lists inside each other
MAX_DIGITS = 4300  # of a whole number: Python reads no more
MAX_BITS = 14284  # of a number of so many digits
MAX_VALUES = 5_000_000  # of one row, or of one small file
BYTES_PER_VALUE = 64  # that a value takes in memory, beside its text


def loads(body: bytes) -> Any:
    """The value in a body of JSON (RFC 8259, UTF-8). Raises ValueError, as orjson does."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
        return _loads_lone_surrogates(body)


def _loads_lone_surrogates(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), parse_constant=reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def strict_loads(text: str, max_bytes: float = MAX_VALUES * BYTES_PER_VALUE) -> Any:
    """The value in a text of JSON. Raises ValueError that says why there is none: a JSONDecodeError for a fault of syntax.

    Refused are keys that stand twice in an object, more than 200 levels, whole numbers of more than 4300 digits, and more
    values than `most_bytes` of memory hold. NaN and infinity, which other programs write, are read.
    """
    # Not orjson: with a check for what it lets pass (keys that stand twice, whole numbers over 64 bits) it is no faster.
    opened = text.count("[") + text.count("{")
    if (opened + text.count(",")) * BYTES_PER_VALUE > max_bytes:
        raise ValueError(f"it holds more values than {max_bytes / 2**20:,.0f} MiB of memory take")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP_MESSAGE) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError(TOO_MANY_DIGITS_MESSAGE if "digits" in str(error) else str(error)) from None
    if opened > MAX_DEPTH and nesting_depth(value) > MAX_DEPTH:
        raise ValueError(TOO_DEEP_MESSAGE)
    return value


TOO_DEEP_MESSAGE = f"it is nested more than {MAX_DEPTH} deep"
TOO_MANY_DIGITS_MESSAGE = f"a whole number in it has more than {MAX_DIGITS} digits"


def check_bounds(value: Any, max_values: int = MAX_VALUES) -> None:
    """Raises ValueError for a value that no JSON within our limits can hold, however it came: see `parsed`.

    A value that holds itself is nested too deep. What JSON does not know must have a text.
    """
    level: list[Any] = [value]
    left = max_values
    for _ in range(MAX_DEPTH + 2):
        inner: list[Any] = []
        for held in level:
            if isinstance(held, Mapping):
                inner += held.values()
                inner += [key for key in held if type(key) is not str]
            elif isinstance(held, list | tuple | set | frozenset):
                inner += held
            elif isinstance(held, int):
                if held.bit_length() > MAX_BITS:
                    raise ValueError(TOO_MANY_DIGITS_MESSAGE)
            elif not isinstance(held, SCALAR_TYPES):
                _check_text(held)
            if len(inner) > left:
                raise ValueError(f"it holds more than {max_values:,} values")
        if not inner:
            return
        left -= len(inner)
        level = inner
    raise ValueError(TOO_DEEP_MESSAGE)


SCALAR_TYPES = (str, float, type(None), bytes, bytearray, memoryview, date, time, timedelta, Decimal)


def _check_text(value: Any) -> None:
    try:
        str(value)
    except Exception as error:  # a foreign class may raise anything
        raise ValueError(f"a {type(value).__name__} in it has no text: {type(error).__name__}") from error


def join_surrogate_pairs(text: str) -> str:
    """The text with the halves of a surrogate pair that stand side by side made one character; others stay."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its pairs, as `object_pairs_hook` is given them. Raises ValueError where a key stands twice."""
    out = dict(pairs)
    if len(out) < len(pairs):
        twice = first_duplicate(key for key, _ in pairs) or ""
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return out


_DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)


def reject_constant(name: str) -> Any:
    """NaN, Infinity and -Infinity are no JSON: a `parse_constant`."""
    raise ValueError(f"{name} is no JSON number")


def first_duplicate(items: Iterable[T]) -> T | None:
    """The first item that stood there before; None where all differ."""
    seen: set[T] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def nesting_depth(value: Any) -> int:
    """How many objects and lists stand inside each other."""
    found, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        found += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return found
