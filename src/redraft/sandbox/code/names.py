"""Which names code defines, and which it uses and never defines.

The scopes are those of the compiler (`symtable`), so a name counts as undefined only if no scope
that is visible defines it.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

from .source import PARSER_ERRORS, parse_tree

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
