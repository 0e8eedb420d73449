"""The program that an answer is: the code itself or, as a completion, the code of the prompt and then the answer."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from .parsing import parse
from .source import PARSER_ERRORS

MAX_PREFIX_CHARS = 100_000


def complete_program(code: str, prefix: str = "", entry_point: str | None = None) -> str:
    """Return the program that an answer makes with the code that its task begins with.

    `prefix` is the beginning of the program, such as a function's head and documentation (HumanEval); a text that is no Python
    code, or does not define `entry_point`, is no beginning and is ignored. If the answer does not define `entry_point`, it is
    taken as the rest of that function, whatever its indentation. If it does, it comes after the prefix, whose imports and helper
    functions it may use.
    """
    if not prefix.strip() or len(prefix) > MAX_PREFIX_CHARS or not code.strip():
        return code
    if defines(code, entry_point):
        return f"{prefix.rstrip()}\n\n\n{code}" if defines(prefix, entry_point) else code
    for completion in _completions(code):
        program = f"{prefix.rstrip()}\n{completion}"
        if not defines(prefix, entry_point) and not defines(program, entry_point):
            continue
        if is_python(program) and _continues(prefix, program):
            return program
    return code


def defines(code: str, name: str | None) -> bool:
    """Return whether code is Python and defines a function or class of this name, or any function for None, at its top level."""
    try:
        body = parse(code).body
    except PARSER_ERRORS:
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    functions = [node.name for node in body if isinstance(node, kinds)]
    assigned = [
        target.id for node in body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    ]
    first = (name or "").partition(".")[0]
    return bool(functions) if not first else first in functions or first in assigned


def is_python(code: str) -> bool:
    """Return whether the syntax of the code is right."""
    try:
        parse(code)
    except PARSER_ERRORS:
        return False
    return True


def _completions(code: str) -> Iterator[str]:
    """Yield the forms in which a body may have come: as it is, and after its first or its whole indentation was lost."""
    yield code
    yield f"    {code.lstrip()}"
    yield textwrap.indent(textwrap.dedent(code), "    ")


def _continues(prefix: str, program: str) -> bool:
    """Return whether the code after the prefix belongs to the last function of the prefix."""
    body = parse(program).body
    last_line = len(prefix.rstrip().splitlines())
    return bool(body) and body[-1].lineno <= last_line
