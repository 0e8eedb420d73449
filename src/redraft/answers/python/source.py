"""Python source as text: whether it compiles, and its syntax tree.

The code is somebody else's, and nothing here runs it. But it may exhaust the parser, or keep it
busy for minutes, such as an f-string with thousands of fields (its time is quadratic in Python
3.11), and nothing else runs in this process meanwhile. So `parse` tries long code in a worker
process first, which can be ended; `compile_error` and `parse_tree` run in such a process (see
`redraft.workers`).
"""

from __future__ import annotations

import ast
import sys
import warnings
from functools import lru_cache
from typing import TypeAlias

from ...errors import ComputeLimitError
from ...workers.pool import run_sync

MAX_MESSAGE_CHARS = 200
MAX_DIRECT_CHARS = 20_000  # code that is parsed here without a trial: at worst 0.2 seconds
MAX_SECONDS = 2.0  # of CPU time for longer code
FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
PYTHON_VERSION = ".".join(map(str, sys.version_info[:2]))
PARSER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


def compile_error(code: str) -> str | None:
    """Return what the compiler of this Python says is wrong, and where, in words; None if nothing
    is.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<candidate>", "exec", dont_inherit=True)
    except SyntaxError as error:
        lines = code.count("\n") + 1
        return _in_words(str(error.msg), min(max(1, error.lineno or lines), lines))
    except PARSER_ERRORS as error:
        return _in_words(f"the code cannot be compiled: {str(error) or type(error).__name__}", 1)
    return None


def _in_words(message: str, line: int) -> str:
    return f"line {line}: {' '.join(message.split())[:MAX_MESSAGE_CHARS]} (Python {PYTHON_VERSION})"


def parse_quietly(code: str) -> ast.Module:
    """Return the syntax tree, without the parser's warnings. Raises what `ast.parse` raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def parse_tree(code: str) -> ast.Module:
    """Return the syntax tree; an empty one for code that cannot be parsed."""
    try:
        return parse_quietly(code)
    except PARSER_ERRORS:
        return ast.Module(body=[], type_ignores=[])


def parse(code: str) -> ast.Module:
    """Return the syntax tree. Raises what `ast.parse` raises, and ValueError for code that takes
    the parser too long.
    """
    if len(code) > MAX_DIRECT_CHARS and _takes_long(code):
        raise ValueError("the code takes too long to parse")
    return parse_quietly(code)


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
    parse_tree(code)
