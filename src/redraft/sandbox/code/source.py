"""Python source as text: whether it compiles, and its syntax tree.

The code is somebody else's, and it may be made to exhaust the parser. Redraft calls these functions
in a worker process (see `redraft.workers`), and nothing here runs the code.
"""

from __future__ import annotations

import ast
import sys
import warnings
from typing import TypeAlias

MAX_MESSAGE_CHARS = 200
FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
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
    version = ".".join(map(str, sys.version_info[:2]))
    return f"line {line}: {' '.join(message.split())[:MAX_MESSAGE_CHARS]} (Python {version})"


def parse_tree(code: str) -> ast.Module:
    """Return the syntax tree; an empty one for code that cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except PARSER_ERRORS:
        return ast.Module(body=[], type_ignores=[])
