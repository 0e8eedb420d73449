"""Reading what a judge wrote, strictly: one JSON object, or `Unreadable` with the exact complaint.

Numbers are never fished out of prose, nothing is coerced, nothing gets a default. Judge output is hostile input: depth
and size are bounded, duplicate keys and constants such as NaN are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MOST_CHARS = 200_000
MOST_DEPTH = 32
MOST_DIGITS = 15
THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
KEY = re.compile(r"""["'][^"'\n]{1,100}["']\s*:""")
NUMBER_OF_KEY = re.compile(r"""["']\s*:\s*(-?\d[^,}\]\n"']*)""")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL | re.IGNORECASE)


class Unreadable(ValueError):
    """A judge's answer that cannot be read; its text is the complaint that a re-ask quotes."""


def read_object(text: str) -> dict[str, Any]:
    """The one JSON object in a judge's answer, thinking and code fences put aside.

    Where the text is no clean JSON, json-repair may mend its commas and quotes. Raises Unreadable.
    """
    if len(text) > MOST_CHARS:
        raise Unreadable(f"the answer is {len(text)} characters long; at most {MOST_CHARS} are read")
    bare = THINKING.sub("", text).strip()
    if fenced := FENCED.findall(bare):
        if len(fenced) > 1:
            raise Unreadable("there are several JSON blocks; write one object")
        bare = fenced[0].strip()
    start, end = bare.find("{"), bare.rfind("}")
    if start < 0:
        raise Unreadable("there is no JSON object in the answer")
    inner = bare[start : end + 1] if end > start else bare[start:]
    _check_depth(inner)
    data = _parse(inner)
    if not isinstance(data, dict):
        raise Unreadable("the answer must be one JSON object")
    return data


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_short_int)
    except Unreadable:
        raise
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise Unreadable("there is text after the JSON object; write one object and nothing else") from error
        return _mended(text)


def _mended(text: str) -> Any:
    """What json-repair makes of it, read under the same rules; a key that it dropped as a duplicate is a refusal, and so is
    a number that it would make of "4/5", "4%" or "4 or 5".
    """
    from json_repair import repair_json

    if text.count("{") > text.count("}"):
        raise Unreadable("the JSON is cut off")
    try:
        mended = repair_json(text, skip_json_loads=True)
    except (ValueError, RecursionError, IndexError) as error:
        raise Unreadable(f"the answer is not JSON: {error}") from error
    if odd := [n for n in NUMBER_OF_KEY.findall(text) if not NUMBER.fullmatch(n.strip())]:
        raise Unreadable(f"{odd[0].strip()[:20]!r} is not a plain number")
    if not mended or len(KEY.findall(text)) != len(KEY.findall(mended)):
        raise Unreadable("the answer is not JSON")
    return json.loads(mended, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=_short_int)


def _check_depth(text: str) -> None:
    if text.count("{") + text.count("[") <= MOST_DEPTH:
        return
    depth = deepest = 0
    for ch in text:
        depth += (ch in "[{") - (ch in "]}")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise Unreadable(f"the JSON is nested {deepest} deep; at most {MOST_DEPTH} is read")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Unreadable(f"the key {twice!r} stands twice in one object")
    return out


def _no_constant(name: str) -> Any:
    raise Unreadable(f"{name} is no score")


def _short_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise Unreadable(f"a number of {len(digits)} digits is no score")
    return int(digits)


def whole_number(data: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """The whole number in [low, high] under `key`. Raises Unreadable for anything else: bools, texts, 4.5."""
    value = _present(data, key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Unreadable(f"{key!r} must be a whole number from {low} to {high}, got {_short(value)}")
    return value


def text(data: Mapping[str, Any], key: str) -> str:
    """The text under `key`; "" where it is missing or null."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise Unreadable(f"{key!r} must be text, got {_short(value)}")
    return (value or "").strip()


def flag(data: Mapping[str, Any], key: str) -> bool:
    """The true or false under `key`."""
    value = _present(data, key)
    if not isinstance(value, bool):
        raise Unreadable(f"{key!r} must be true or false, got {_short(value)}")
    return value


def object_at(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`."""
    value = _present(data, key)
    if not isinstance(value, dict):
        raise Unreadable(f"{key!r} must be an object, got {_short(value)}")
    return value


def _present(data: Mapping[str, Any], key: str) -> Any:
    if key not in data:
        raise Unreadable(f"{key!r} is missing")
    return data[key]


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
