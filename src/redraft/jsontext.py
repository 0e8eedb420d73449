"""JSON that strangers wrote, read strictly and in time linear in it.

Keys that stand twice and NaN are refused, depth is measured. Half surrogate pairs, which JSON can escape and UTF-8 cannot
hold, are read as they are: what stores a text escapes them, what sends it replaces them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

import orjson

T = TypeVar("T", bound=Hashable)


def loads(body: bytes) -> Any:
    """The value in a body of JSON (RFC 8259, UTF-8). Raises ValueError, as orjson does."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
        return _with_half_pairs(body)


def _with_half_pairs(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def whole_pairs(text: str) -> str:
    """The text with the halves of a surrogate pair that stand side by side made one character; others stay."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its pairs, as `object_pairs_hook` is given them. Raises ValueError where a key stands twice."""
    out = dict(pairs)
    if len(out) < len(pairs):
        twice = first_repeated(key for key, _ in pairs) or ""
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return out


def refuse_constant(name: str) -> Any:
    """NaN, Infinity and -Infinity are no JSON: a `parse_constant`."""
    raise ValueError(f"{name} is no JSON number")


def first_repeated(items: Iterable[T]) -> T | None:
    """The first item that stood there before; None where all differ."""
    seen: set[T] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def depth(value: Any) -> int:
    """How many objects and lists stand inside each other."""
    found, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        found += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return found
