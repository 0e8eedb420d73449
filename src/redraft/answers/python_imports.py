"""The one repair of the program in an answer: imports of the standard library that are missing.

A mistake in the code itself is for the model to correct: whether a change of a statement is right,
few tests can tell.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import import_module

from ..errors import ComputeLimitError
from ..protocols import Edit
from ..workers.pool import run_sync
from .python_source import parse_tree, undefined_names

MAX_CHARS = 50_000  # longer code gets no imports


ALIASES: Mapping[str, str] = {
    "dt": "import datetime as dt",
    "ET": "import xml.etree.ElementTree as ET",
    "mp": "import multiprocessing as mp",
    "datetime": "from datetime import datetime",
}
EXPORTING_MODULES: Sequence[str] = (
    "collections", "typing", "functools", "itertools", "math", "heapq", "bisect", "dataclasses",
    "datetime", "decimal", "fractions", "operator", "string", "abc", "enum", "copy", "re",
    "statistics", "collections.abc", "contextlib", "pathlib", "io", "textwrap", "random", "time",
    "json", "types", "cmath", "numbers",
)  # fmt: skip
"""Modules from which a bare name is imported, the likeliest first."""
USUAL_MODULES = frozenset(
    (
        "bisect", "collections", "functools", "heapq", "itertools", "json", "math", "os", "random",
        "re", "string", "sys", "time",
    )
)  # fmt: skip
"""Modules that may be loaded to see what they offer."""
AMBIGUOUS_NAMES = frozenset(
    (
        "add", "choice", "compile", "contains", "copy", "count", "dist", "dump", "dumps", "e",
        "field", "index", "load", "loads", "match", "mul", "open", "repeat", "replace", "sample",
        "search", "sleep", "split", "sub", "time",
    )
)  # fmt: skip
"""Names that are often variables; they are imported only if the code calls them."""


def with_missing_imports(code: str) -> Edit | None:
    """Return the code with the imports of the standard library that are missing; None if there are
    none.

    A worker process does it, since the code may take the parser long; the call waits for it.
    """
    if len(code) > MAX_CHARS:
        return None
    failure = "the missing imports could not be added"
    try:
        found = run_sync(import_edit, code, failure_text=failure, text_length=len(code))
    except (ComputeLimitError, RuntimeError):
        return None
    return Edit(*found) if found else None


def import_edit(code: str) -> list[str] | None:
    """Return the code with its missing imports, and a note; both as JSON from a worker."""
    statements = missing_imports(code)
    note = f"added {', '.join(f'`{statement}`' for statement in statements)}"
    return [insert_imports(code, statements), note] if statements else None


def missing_imports(code: str) -> list[str]:
    """Return the statements that import the undefined names that the standard library offers.

    `datetime.datetime` gives `import datetime`; `List[int]` gives `from typing import List`.
    """
    tree = parse_tree(code)
    statements = (_import_of(name, tree) for name in undefined_names(code))
    return _join_statements(list(filter(None, statements)))


def _import_of(name: str, tree: ast.Module) -> str | None:
    """Return the statement that defines a name, or None."""
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }
    if attributes and name in sys.stdlib_module_names and _offers(name, attributes):
        return f"import {name}"
    if name in ALIASES:
        return ALIASES[name]
    if name in AMBIGUOUS_NAMES and not _is_called(name, tree):
        return None
    module = _module_of().get(name)
    return f"from {module} import {name}" if module else None


def _is_called(name: str, tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for node in ast.walk(tree)
    )


def _offers(module: str, attributes: Collection[str]) -> bool:
    """Whether a module of the standard library has these attributes, as far as it may be loaded to
    see.
    """
    if module == "datetime":  # its class of that name is used as often
        return not {"datetime", "date", "timedelta", "time", "timezone"}.isdisjoint(attributes)
    return module not in USUAL_MODULES or all(
        attribute in vars(import_module(module)) for attribute in attributes
    )


@cache
def _module_of() -> Mapping[str, str]:
    """Return the module that offers each public name."""
    names: dict[str, str] = {}
    for module in reversed(EXPORTING_MODULES):
        offered = vars(import_module(module))
        public = offered.get("__all__") or [name for name in offered if not name.startswith("_")]
        names |= dict.fromkeys(public, module)
    return {
        name: module
        for name, module in names.items()
        if len(name) > 1 and name not in sys.stdlib_module_names
    }


def _join_statements(statements: Sequence[str]) -> list[str]:
    """Return the statements in order, with one `from MODULE import` for each module."""
    names: dict[str, set[str]] = {}
    for statement in statements:
        module, _, name = statement.removeprefix("from ").partition(" import ")
        if name:
            names.setdefault(module, set()).add(name)
    return [
        *sorted(statement for statement in statements if statement.startswith("import ")),
        *(f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)),
    ]


def insert_imports(code: str, statements: Sequence[str]) -> str:
    """Return the code with import statements after its docstring, its comments at the start, and
    its imports from __future__.
    """
    lines = code.split("\n")
    at = int(lines[0].startswith("#!"))
    for statement in parse_tree(code).body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (is_docstring or is_future):
            break
        at = statement.end_lineno or 0
    return "\n".join([*lines[:at], *statements, *lines[at:]])
