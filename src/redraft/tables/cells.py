"""Reads what stands in a cell of a table: JSON, or a list or an object as Python writes it.

Programs such as pandas write a list into a cell of CSV by `str`: "['four, say', 'five']". The text comes from anybody, so what the
parser of Python is given is checked and bounded before: literals alone, no arithmetic, no code.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from io import StringIO
from typing import Any

from ..jsontext import strict_loads

MAX_CHARS = 1_000_000
MAX_TOKENS = 50_000
MAX_DEPTH = 20
OPENING, CLOSING, BETWEEN = "[{(", "]})", ",:-"
CONSTANTS = ("True", "False", "None")


def load_cell(text: str) -> Any:
    """Return the value of a text of JSON, or of a list or an object as Python writes it. Raises ValueError, which says why not."""
    try:
        return strict_loads(text)
    except ValueError as error:
        if not text.lstrip().startswith(tuple(OPENING)):
            raise
        try:
            _check_literal(text.strip())
            return _plain(ast.literal_eval(text.strip()))
        except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
            reason = problem.msg if isinstance(problem, SyntaxError) else problem
            raise ValueError(f"it is neither JSON ({error}) nor a list as Python writes it ({reason})") from None


def _check_literal(text: str) -> None:
    """Raise ValueError or SyntaxError for anything but literals in lists, tuples and dictionaries."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"it has more than {MAX_CHARS:,} characters")
    depth, before = 0, ""
    for n, token in enumerate(_tokens(text)):
        kind, string = tokenize.tok_name[token.type], token.string
        if kind == "STRING" == before:
            raise ValueError("two texts stand side by side without a comma, as numpy writes arrays")
        if n > MAX_TOKENS:
            raise ValueError(f"it has more than {MAX_TOKENS:,} parts")
        depth += (string in OPENING) - (string in CLOSING) if kind == "OP" else 0
        is_literal = kind == "NUMBER" or string in CONSTANTS or (kind == "STRING" and string[0] in "\"'")
        is_literal = is_literal or (kind == "OP" and string in OPENING + CLOSING + BETWEEN)
        if not is_literal or depth > MAX_DEPTH or (string == before == "-"):
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else f"it holds {string[:40]!r}")
        before = string if string == "-" else kind


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a text without line ends. Raises SyntaxError."""
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            if token.type not in {tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}:
                yield token
    except tokenize.TokenError as error:
        raise SyntaxError(str(error.args[0])) from None


def _plain(value: Any) -> Any:
    """Return a literal as a value of JSON. Raises ValueError for one that JSON does not have."""
    match value:
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        case str() | bool() | int() | float() | None:
            return value
    raise ValueError(f"it holds a {type(value).__name__} that JSON does not have")
