"""Values of rows as JSON, and names of result columns beside the columns of the input.

Tables hold dates, decimals, bytes and arrays; none of them keeps a row from being written.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from math import isfinite
from typing import Any

import orjson

OWN_PREFIX = "redraft_"
ORJSON_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_APPEND_NEWLINE
)


def json_line(value: Any) -> bytes:
    """Return a line of JSON with its line end.

    UTF-8, without spaces; lone surrogates are escaped, so that no text is lost. NaN and infinity become null.
    """
    try:
        return orjson.dumps(value, default=_orjson_default, option=ORJSON_OPTIONS)
    except TypeError:  # lone surrogates, integers over 64 bits, keys that are no texts, unknown types
        return json.dumps(to_jsonable(value), separators=(",", ":")).encode() + b"\n"


def to_jsonable(value: Any) -> Any:
    """Return a value in types that JSON has. Bytes become base64, dates ISO 8601, arrays lists; anything else becomes its `str`."""
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(to_jsonable(key)): to_jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(inner) for inner in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)]
    return _to_simpler(value, to_jsonable)


def _orjson_default(value: Any) -> Any:
    """Convert a value one step towards the types that orjson has."""
    if isinstance(value, Mapping | set | frozenset | float | list | tuple):
        return to_jsonable(value)
    return _to_simpler(value, lambda simpler: simpler)


def _to_simpler(value: Any, convert: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if callable(getattr(value, "tolist", None)):  # numpy arrays and scalars
        return convert(value.tolist())
    return str(value)


def result_column_names(results: Iterable[str], existing: Iterable[str]) -> dict[str, str]:
    """Return the names of result columns: their own, or `redraft_NAME` if the input has a column of that name."""
    taken = set(existing)
    return {name: _unused_name(name, taken) for name in results}


def merge_columns(values: Mapping[str, Any], result: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a row of the input with the columns of its result; `names` from `result_column_names`. No input column is replaced."""
    out = dict(values)
    for name, value in result.items():
        out[_unused_name(names.get(name, name) if names else name, values)] = value
    return out


def _unused_name(name: str, existing: Any) -> str:
    while name in existing:
        name = OWN_PREFIX + name
    return name
