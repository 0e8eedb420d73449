"""TOML that strangers wrote, read in time about linear in it, with the bounds that JSON has here."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from .jsontext import TOO_DEEP_MESSAGE, check_bounds
from .small_files import MAX_VALUES

MAX_KEY_PARTS = 30  # of a key with dots, such as a.b.c: what reads them takes time in the square of their number
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![^\s\[{{,])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a text of TOML. Raises ValueError that says why there is none."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key in it has more than {MAX_KEY_PARTS} parts")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP_MESSAGE) from None
    check_bounds(table, MAX_VALUES)
    return table
