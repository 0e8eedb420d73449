"""Parses Python code of others in this process, without waiting long for it.

Some texts keep the parser busy for minutes, such as an f-string with thousands of fields (its time
is quadratic in Python 3.11), and nothing else runs in this process meanwhile. So long code is
parsed in a worker first, which can be ended.
"""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

from ...errors import ComputeLimitError
from ...workers.pool import run_sync
from .source import PARSER_ERRORS

MAX_DIRECT_CHARS = 20_000  # code that is parsed here without a trial: at worst 0.2 seconds
MAX_SECONDS = 2.0  # of CPU time for longer code


def parse(code: str) -> ast.Module:
    """Return the syntax tree. Raises what `ast.parse` raises, and ValueError for code that takes
    the parser too long.
    """
    if len(code) > MAX_DIRECT_CHARS and _takes_long(code):
        raise ValueError("the code takes too long to parse")
    return _parse(code)


def _parse(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


@lru_cache(maxsize=16)
def _takes_long(code: str) -> bool:
    try:
        run_sync(
            try_to_parse,
            code,
            failure_text="the code could not be parsed",
            text_length=len(code),
            seconds=MAX_SECONDS,
        )
    except (ComputeLimitError, RuntimeError):
        return True
    return False


def try_to_parse(code: str) -> None:
    """Parse code in a worker; only whether that ends in time matters."""
    try:
        _parse(code)
    except PARSER_ERRORS:
        return
