"""Names that code uses and never defines: imports of the standard library that are missing, and
names of other languages.

The scopes are those of the compiler (`symtable`), so a name counts as undefined only if no scope
that is visible defines it.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module

from .source import PARSER_ERRORS, Proposal, insert_imports, parse_tree

DEFINED_EVERYWHERE = frozenset(dir(builtins)) | {
    "__name__",
    "__file__",
    "__doc__",
    "__builtins__",
    "__annotations__",
    "__class__",
}
ALIASES: Mapping[str, str] = {
    "dt": "import datetime as dt",
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "plt": "import matplotlib.pyplot as plt",
    "ET": "import xml.etree.ElementTree as ET",
    "mp": "import multiprocessing as mp",
    "numpy": "import numpy",
    "pandas": "import pandas",
    "datetime": "from datetime import datetime",
}
EXPORTING_MODULES: Sequence[str] = (
    "collections", "typing", "functools", "itertools", "math", "heapq", "bisect", "dataclasses", "datetime", "decimal", "fractions",
    "operator", "string", "abc", "enum", "copy", "re", "statistics", "collections.abc", "contextlib", "pathlib", "io", "textwrap",
    "random", "time", "json", "types", "cmath", "numbers",
)  # fmt: skip
"""Modules from which a bare name is imported, the likeliest first."""
USUAL_MODULES = frozenset(
    {
        "bisect", "collections", "functools", "heapq", "itertools", "json", "math", "os", "random", "re", "string", "sys", "time",
    }
)  # fmt: skip
AMBIGUOUS_NAMES = frozenset(
    {
        "add", "choice", "compile", "contains", "copy", "count", "dist", "dump", "dumps", "e", "field", "index", "load", "loads",
        "match", "mul", "open", "repeat", "replace", "sample", "search", "sleep", "split", "sub", "time",
    }
)  # fmt: skip
"""Names that are often variables; they are imported only if the code calls them and never assigns
to them.
"""
REPLACEMENTS: Mapping[str, str] = {
    "true": "True", "false": "False", "null": "None", "nil": "None", "none": "None", "undefined": "None", "NULL": "None",
    "xrange": "range", "unicode": "str", "long": "int", "raw_input": "input", "unichr": "chr", "basestring": "str",
    "strlen": "len", "maxint": "2**63",
}  # fmt: skip


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


def missing_imports(code: str, *, standard_library_only: bool = True) -> Proposal | None:
    """Return the code with imports of the undefined names that the standard library offers; None if
    there are none.

    `datetime.datetime` gives `import datetime`; `List[int]` gives `from typing import List`.
    Without `standard_library_only` also what `np` and `pd` usually stand for.
    """
    tree = parse_tree(code)
    statements: dict[str, None] = {}
    for name in undefined_names(code):
        statement = _import_of(name, tree)
        if statement and (
            not standard_library_only
            or statement.split()[1].partition(".")[0] in sys.stdlib_module_names
        ):
            statements[statement] = None
    if not statements:
        return None
    joined = _join_statements(list(statements))
    return Proposal(
        insert_imports(code, joined), f"added {', '.join(f'`{statement}`' for statement in joined)}"
    )


def _import_of(name: str, tree: ast.Module) -> str | None:
    """Return the statement that defines a name, or None."""
    attributes = {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == name
    }
    if attributes and name in sys.stdlib_module_names and _offers(name, attributes):
        return f"import {name}"
    if name in ALIASES:
        return ALIASES[name]
    if name in AMBIGUOUS_NAMES and not any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name
        for n in ast.walk(tree)
    ):
        return None
    module = _module_of().get(name)
    return f"from {module} import {name}" if module else None


def _offers(module: str, attributes: set[str]) -> bool:
    """Whether a module of the standard library has these attributes; others than the usual modules
    are not imported to see.
    """
    if module == "datetime":  # its class of that name is used as often
        return bool(attributes & {"datetime", "date", "timedelta", "time", "timezone"})
    return module not in USUAL_MODULES or all(
        hasattr(import_module(module), attribute) for attribute in attributes
    )


@cache
def _module_of() -> Mapping[str, str]:
    """Return the module that offers each public name."""
    names: dict[str, str] = {}
    for module in reversed(EXPORTING_MODULES):
        loaded = import_module(module)
        public = getattr(loaded, "__all__", None) or [
            name for name in vars(loaded) if not name.startswith("_")
        ]
        names |= {
            name: module
            for name in public
            if name not in DEFINED_EVERYWHERE and name not in sys.stdlib_module_names
        }
    return {name: module for name, module in names.items() if len(name) > 1}


def _join_statements(statements: Sequence[str]) -> list[str]:
    """Return the statements in order, with one `from MODULE import` for each module."""
    plain = sorted(statement for statement in statements if statement.startswith("import "))
    names: dict[str, list[str]] = {}
    for statement in statements:
        if match := re.fullmatch(r"from (\S+) import (\S+)", statement):
            names.setdefault(match[1], []).append(match[2])
    return [
        *plain,
        *(
            f"from {module} import {', '.join(sorted(each))}"
            for module, each in sorted(names.items())
        ),
    ]


def foreign_names(code: str) -> Proposal | None:
    """Return the code with undefined names of other languages and of Python 2 replaced: `true`,
    `null`, `xrange`.
    """
    undefined = undefined_names(code)
    chosen = {name: REPLACEMENTS[name] for name in undefined if name in REPLACEMENTS}
    places = [
        node
        for node in ast.walk(parse_tree(code))
        if isinstance(node, ast.Name) and node.id in chosen
    ]
    if not places:
        return None
    lines = code.split("\n")
    for node in sorted(places, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[node.lineno - 1].encode()
        new = (
            line[: node.col_offset]
            + chosen[node.id].encode()
            + line[node.col_offset + len(node.id.encode()) :]
        )
        lines[node.lineno - 1] = new.decode()
    note = ", ".join(
        f"`{name}` as `{new}`"
        for name, new in chosen.items()
        if any(node.id == name for node in places)
    )
    return Proposal("\n".join(lines), f"wrote {note}")
