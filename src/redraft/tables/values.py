"""Values of rows as JSON: what JSON knows stays as it is, everything else gets a form that can be read.

Tables hold dates, decimals, bytes and arrays; none of them may stop a row from being written. Also here: how results are
called where the input has a column of that name already. Files are not known here.
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
    """One line of JSON, its end included.

    UTF-8, without spaces; lone surrogates stand as escapes, so that no text is lost. NaN and infinity are null.
    """
    try:
        return orjson.dumps(value, default=_orjson_default, option=ORJSON_OPTIONS)
    except TypeError:  # lone surrogates, numbers over 64 bits, keys that are no texts, what `_known` does not know
        return json.dumps(to_jsonable(value), separators=(",", ":")).encode() + b"\n"


def to_jsonable(value: Any) -> Any:
    """The same of what JSON knows. Bytes become base64, dates ISO 8601, arrays lists; what else there is becomes its text."""
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(to_jsonable(key)): to_jsonable(held) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(held) for held in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)]
    return _to_simpler(value, to_jsonable)


def _orjson_default(value: Any) -> Any:
    """For orjson: one step towards what it knows."""
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
    """What the columns of results are called beside columns of the input: by their name, or `redraft_NAME` where that is taken."""
    held = set(existing)
    return {name: _unused_name(name, held) for name in results}


def merge_columns(values: Mapping[str, Any], result: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A row of the input with the columns of its result. `names`: what `names_for` gave for the whole table.

    A column of the input is never written over.
    """
    out = dict(values)
    for name, value in result.items():
        out[_unused_name(names.get(name, name) if names else name, values)] = value
    return out


def _unused_name(name: str, existing: Any) -> str:
    while name in existing:
        name = OWN_PREFIX + name
    return name
