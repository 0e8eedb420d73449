"""JSON: read untrusted text strictly and in linear time, write any text, bound values from
elsewhere.

A lone surrogate is half of a UTF-16 pair. JSON can escape it; UTF-8 cannot encode it. It is read as
it is (`loads`, `strict_loads`) and written as a JSON escape (`dumps`). Formats without such escapes
get it spelt out (`escape_surrogates`), and models get U+FFFD instead (`replace_lone_surrogates`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import orjson

T = TypeVar("T", bound=Hashable)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # in UTF-8; some servers begin a reply with it
MAX_DEPTH = 200  # objects and lists inside each other
MAX_DIGITS = 4300  # of an integer: Python reads no more
MAX_BITS = 14284  # of an integer of that many digits
MAX_VALUES = 5_000_000  # of one row, or of one small file
BYTES_PER_VALUE = 64  # in memory, besides its text
to_json = json.JSONEncoder().encode  # as `json.dumps`, without its arguments
text_to_json = json.encoder.encode_basestring_ascii  # the same for a text


def loads(body: bytes) -> Any:
    """Return the value of JSON (RFC 8259) in UTF-8, which may escape lone surrogates and begin with
    a mark. Raises ValueError.
    """
    body = body.removeprefix(BYTE_ORDER_MARK)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
    try:
        return json.loads(body.decode(), parse_constant=reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def text_in(fields: Mapping[str, object], name: str) -> str:
    """Return a text among the fields of an object; "" if there is none, or something else."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def list_in(fields: Mapping[str, object], name: str) -> list[Any]:
    """Return a list among the fields of an object; [] if there is none, or something else."""
    value = fields.get(name)
    return value if isinstance(value, list) else []


def object_in(fields: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """Return an object among the fields of an object; {} if there is none, or something else."""
    value = fields.get(name)
    return value if isinstance(value, Mapping) else {}


def dumps(
    value: Any, *, sort_keys: bool = False, default: Callable[[Any], Any] | None = None
) -> bytes:
    """Return a value as JSON in UTF-8; with ASCII escapes if it holds lone surrogates or integers
    over 64 bits.

    With `sort_keys`, keys may also be numbers, booleans and None. `default` converts values that
    JSON lacks. Hashes are made of these bytes: do not change them.
    """
    try:
        return orjson.dumps(
            value, default, (orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS) if sort_keys else None
        )
    except TypeError:
        return json.dumps(value, sort_keys=sort_keys, default=default).encode()


def dumps_text(value: Any) -> str:
    """Return an object or array as a text of JSON: as `dumps`, but as `json` spells it if a number
    is not finite.
    """
    text = dumps(value).decode()
    if "null" in text:  # as orjson writes these numbers
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            return to_json(value)
    return text


def strict_loads(text: str, max_bytes: float = MAX_VALUES * BYTES_PER_VALUE) -> Any:
    """Return the value of a text of JSON. Raises ValueError; JSONDecodeError for a syntax error.

    Rejects duplicate keys in an object, more than 200 levels, integers of more than 4300 digits,
    and more values than `max_bytes` of memory hold. NaN and infinity, which other programs write,
    are accepted.
    """
    # Not orjson: with checks for what it accepts (duplicate keys, integers over 64 bits) it is no
    # faster.
    if (
        len(text) * BYTES_PER_VALUE > max_bytes
        and sum(map(text.count, "[{,")) * BYTES_PER_VALUE > max_bytes
    ):
        raise ValueError(f"it holds more values than {max_bytes / 2**20:,.0f} MiB of memory take")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP_MESSAGE) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError(
            TOO_MANY_DIGITS_MESSAGE if "digits" in str(error) else str(error)
        ) from None
    if len(text) > 2 * MAX_DEPTH and nesting_depth(value) > MAX_DEPTH:
        raise ValueError(TOO_DEEP_MESSAGE)
    return value


TOO_DEEP_MESSAGE = f"it is nested more than {MAX_DEPTH} deep"
TOO_MANY_DIGITS_MESSAGE = f"a whole number in it has more than {MAX_DIGITS} digits"


def check_bounds(value: Any, max_values: int = MAX_VALUES) -> None:
    """Raise ValueError for a value that `strict_loads` could not return, wherever it comes from.

    A value that contains itself is nested too deep. Values of types that JSON lacks must have a
    `str`.
    """
    level: list[Any] = [value]
    left = max_values
    for _ in range(MAX_DEPTH + 2):
        inner: list[Any] = []
        for item in level:
            if item.__class__ is str:
                continue
            inner += _inner_values(item)
            if len(inner) > left:
                raise ValueError(f"it holds more than {max_values:,} values")
        if not inner:
            return
        left -= len(inner)
        level = inner
    raise ValueError(TOO_DEEP_MESSAGE)


SCALAR_TYPES = (
    str,
    int,
    float,
    type(None),
    bytes,
    bytearray,
    memoryview,
    date,
    time,
    timedelta,
    Decimal,
)


def _inner_values(item: Any) -> Iterable[Any]:
    """Return the values in a collection, and its keys that are no text; none for another value.
    Raises ValueError for one that is too large, or has no `str`.
    """
    if isinstance(item, dict | Mapping):
        return [*item.values(), *[key for key in item if key.__class__ is not str]]
    if isinstance(item, list | tuple | set | frozenset):
        return item
    if isinstance(item, int) and item.bit_length() > MAX_BITS:
        raise ValueError(TOO_MANY_DIGITS_MESSAGE)
    if not isinstance(item, SCALAR_TYPES):
        try:
            str(item)
        except Exception as error:  # a foreign class may raise anything
            raise ValueError(
                f"a {type(item).__name__} in it has no text: {type(error).__name__}"
            ) from error
    return ()


def join_surrogate_pairs(text: str) -> str:
    """Return the text with adjacent halves of surrogate pairs joined to one character; lone ones
    stay.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def replace_lone_surrogates(value: Any) -> Any:
    """Return a JSON value in which lone surrogates are replaced by U+FFFD and adjacent halves are
    joined.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {replace_lone_surrogates(k): replace_lone_surrogates(v) for k, v in value.items()}
    return [replace_lone_surrogates(v) for v in value] if isinstance(value, list | tuple) else value


def escape_surrogates(value: Any) -> Any:
    """Return a JSON value in which lone surrogates are spelt as escapes, for formats that cannot
    hold them. Keys become text.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [escape_surrogates(inner) for inner in value]
    if isinstance(value, dict):
        return {
            escape_surrogates(str(key)): escape_surrogates(inner) for key, inner in value.items()
        }
    return value


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object from its pairs: an `object_pairs_hook`. Raises ValueError for a duplicate
    key.
    """
    out = dict(pairs)
    if len(out) < len(pairs):
        twice = first_duplicate(key for key, _ in pairs) or ""
        raise ValueError(f"the key {twice[:80]!r} occurs twice in one object")
    return out


_DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)


def reject_constant(name: str) -> Any:
    """Raise ValueError for NaN and infinity: a `parse_constant`."""
    raise ValueError(f"{name} is not a JSON number")


def first_duplicate(items: Iterable[T]) -> T | None:
    """Return the first item that occurs again; None if all differ."""
    seen: set[T] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def nesting_depth(value: Any) -> int:
    """Return how deep objects and lists are nested, in a value as JSON has it."""
    depth = 0
    level: list[Any] = [[value]]
    while level := [
        v
        for outer in level
        for v in (outer.values() if type(outer) is dict else outer)
        if type(v) in {dict, list}
    ]:
        depth += 1
    return depth
