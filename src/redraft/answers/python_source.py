"""Python source, read without running it: whether it compiles, its syntax tree, and the names that
it defines and uses.

The code is somebody else's, and nothing here runs it. But it may exhaust the parser, or keep it
busy for minutes, such as an f-string with thousands of fields (its time is quadratic in Python
3.11), and nothing else runs in this process meanwhile. So `parse` tries long code in a worker
process first, which can be ended; `compile_error` and `parse_tree` run in such a process (see
`redraft.workers`).
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from ..errors import ComputeLimitError
from ..workers.pool import run_sync

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


# ---- names

DEFINED_EVERYWHERE = frozenset(dir(builtins)) | {
    "__name__",
    "__file__",
    "__doc__",
    "__builtins__",
    "__annotations__",
    "__class__",
}


def undefined_names(code: str) -> dict[str, None]:
    """Return the names that are read and never defined, in order; none for code that does not
    compile.

    The scopes come from the compiler (`symtable`), so a name counts as undefined only if no
    scope that is visible defines it.
    """
    try:
        table = symtable.symtable(code, "<candidate>", "exec")
    except PARSER_ERRORS:
        return {}
    module = _names_of(table)
    if any(
        isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        for node in ast.walk(parse_tree(code))
    ):
        return {}
    return {
        name: None
        for scope in _scopes(table)
        for name in _global_reads(scope)
        if name not in module | DEFINED_EVERYWHERE
    }


def defined_names(code: str) -> set[str]:
    """Return the names that code defines at its top level; none for code that does not compile."""
    try:
        return _names_of(symtable.symtable(code, "<candidate>", "exec"))
    except PARSER_ERRORS:
        return set()


def _names_of(table: symtable.SymbolTable) -> set[str]:
    module = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }
    return module | {name for scope in _scopes(table) for name in _declared_globals(scope)}


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    pending = [table]
    while pending:
        scope = pending.pop(0)
        yield scope
        pending.extend(scope.get_children())


def _declared_globals(scope: symtable.SymbolTable) -> Iterator[str]:
    return (
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_declared_global() and symbol.is_assigned()
    )


def _global_reads(scope: symtable.SymbolTable) -> Iterator[str]:
    is_module = scope.get_type() == "module"
    return (
        symbol.get_name()
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (is_module or symbol.is_global())
    )
