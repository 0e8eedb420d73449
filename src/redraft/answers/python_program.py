"""The program that an answer is: the code itself or, as a completion, the code of the prompt and
then the answer.

Of several pieces of code, the tests say which are the program.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from .python_source import PARSER_ERRORS, FunctionNode, defined_names, parse, undefined_names

MAX_PREFIX_CHARS = 100_000
FUTURE_IMPORT = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)
READS_INPUT = re.compile(
    r"\binput\s*\(|\bstdin\b(?!\s*=[^=])|\bopen\(\s*0\b|\bos\.read\(\s*0\b|\bfileinput\b|/dev/stdin"
)


class ProgramTests(Protocol):
    """What tests say of the program that they test: how they run it, such as "stdio", the names
    that they use, and the function that they call.
    """

    @property
    def kind(self) -> str: ...
    @cached_property
    def names(self) -> frozenset[str]: ...
    @property
    def first_function(self) -> str | None: ...


@dataclass(frozen=True)
class _Piece:
    """A piece of code: the names that it defines, the names of its functions and classes, and
    the names that others must define.

    `runs`: whether it does something when it starts, beside defining names.
    """

    code: str
    names: frozenset[str]
    definitions: frozenset[str]
    needs: frozenset[str]
    runs: bool


def tested_program(codes: Sequence[str], tests: ProgramTests) -> str:
    """Return the code that the tests test: the last piece that defines each name that they use, and
    the pieces that these need.

    If they use no name, it is the last piece that reads standard input or, for calls, the last one
    that defines a function and that no other such piece uses. Pieces that only use the program, or
    test it, are left out. "" if there is none. All are Python.
    """
    pieces = [_piece(code) for code in codes]
    roots = _roots(pieces, tests)
    chosen = _with_needed(list(roots), pieces)
    if tests.kind == "stdio" and chosen and not any(piece.runs for piece in chosen):
        roots = _callers(chosen, pieces)[-1:]
        chosen += roots
    return _join_code(
        [piece.code for piece in sorted(pieces, key=roots.__contains__) if piece in chosen]
    )


def _roots(pieces: Sequence[_Piece], tests: ProgramTests) -> list[_Piece]:
    """Return the pieces that the tests use themselves."""
    if tests.kind == "stdio":
        return [piece for piece in pieces if READS_INPUT.search(piece.code)][-1:]
    if not tests.names:
        return _last_definition(pieces)
    return [piece for name in sorted(tests.names) for piece in _last_that_defines(name, pieces)]


def _last_definition(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return the last piece that defines a function and that no other such piece uses."""
    defining = [piece for piece in pieces if piece.definitions - {"main"}] or [
        piece for piece in pieces if piece.definitions
    ]
    needed = frozenset[str]().union(*(piece.needs for piece in defining))
    return [piece for piece in defining if not piece.definitions & needed][-1:] or defining[-1:]


def _last_that_defines(name: str, pieces: Sequence[_Piece]) -> list[_Piece]:
    found = [piece for piece in pieces if name in piece.definitions] or [
        piece for piece in pieces if name in piece.names
    ]
    return found[-1:]


def _callers(chosen: Sequence[_Piece], pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return the pieces that do something with what the chosen ones define."""
    names = frozenset[str]().union(*(piece.names for piece in chosen))
    return [piece for piece in pieces if piece.runs and piece.needs & names]


def _with_needed(chosen: list[_Piece], pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return the pieces with those that define what they need: the last one before a piece, else
    the first one after it.
    """
    for piece in chosen:  # it grows meanwhile
        at = pieces.index(piece)
        for name in sorted(piece.needs.difference(*(each.names for each in chosen))):
            others = [
                each for each in (*reversed(pieces[:at]), *pieces[at + 1 :]) if each not in chosen
            ]
            chosen += (
                [each for each in others if name in each.names]
                or [each for each in others if "*" in each.names]
            )[:1]
    return chosen


def _join_code(codes: Sequence[str]) -> str:
    """Return pieces of code as one program; imports from __future__ come first."""
    if len(codes) < 2:
        return "".join(codes)
    future = dict.fromkeys(line.strip() for code in codes for line in FUTURE_IMPORT.findall(code))
    return "\n\n".join([*future, *(FUTURE_IMPORT.sub("", code).strip("\n") for code in codes)])


def _piece(code: str) -> _Piece:
    body = parse(code).body
    functions = [node for node in body if isinstance(node, FunctionNode)]
    whole = {node.name for node in functions if not _is_test(node) and not _is_excerpt(node)}
    excerpts = {node.name for node in functions if _is_excerpt(node)} - whole
    names = defined_names(code)
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in body):
        names.add("*")  # any name
    return _Piece(
        code,
        frozenset(names - excerpts),
        frozenset(name for node in body if not _is_test(node) for name in _definitions(node)),
        frozenset(undefined_names(code)),
        not all(map(_only_defines, body)),
    )


def _definitions(node: ast.stmt) -> Iterator[str]:
    """Yield the names of what a statement defines that can be called: functions, a class, the
    methods of a class Solution, and names that stand for a lambda or for another function.
    """
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield from [] if _is_excerpt(node) else [name]
        case ast.ClassDef(name=name, body=body):
            yield name
            methods = (each for each in body if isinstance(each, FunctionNode))
            yield from (each.name for each in methods if name == "Solution" and not _is_stub(each))
        case ast.Assign(targets=targets, value=ast.Lambda() | ast.Name() | ast.Attribute()):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _only_defines(node: ast.stmt) -> bool:
    """Return whether a statement does nothing when the program starts, beside defining names."""
    passive = (FunctionNode, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return isinstance(node, passive) or (isinstance(node, ast.Expr) and _is_constant(node))


def _is_test(node: ast.stmt) -> bool:
    """Return whether a statement is a test of the program: a test function, or a class of tests."""
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test") or any(
            "TestCase" in ast.unparse(base) for base in node.bases
        )
    return isinstance(node, FunctionNode) and node.name.startswith("test_")


def _is_excerpt(node: FunctionNode) -> bool:
    """Return whether a function is a method without its class, or has no body yet."""
    first = (*node.args.posonlyargs, *node.args.args)[:1]
    return _is_stub(node) or any(each.arg in ("self", "cls") for each in first)


def _is_stub(node: FunctionNode) -> bool:
    return all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and _is_constant(each))
        or (isinstance(each, ast.Raise) and "NotImplementedError" in ast.unparse(each))
        for each in node.body
    )


def _is_constant(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Constant)


def complete_program(code: str, prefix: str = "", entry_point: str | None = None) -> str:
    """Return the program that an answer makes with the code that its task begins with.

    `prefix` is the beginning of the program, such as a function's head and documentation
    (HumanEval); a text that is no Python code, or does not define `entry_point`, is no beginning
    and is ignored. If the answer does not define `entry_point`, it is taken as the rest of that
    function, whatever its indentation. If it does, it comes after the prefix, whose imports and
    helper functions it may use.
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
    """Return whether code is Python and defines a function or class of this name, or any function
    for None, at its top level.
    """
    try:
        body = parse(code).body
    except PARSER_ERRORS:
        return False
    functions = [node.name for node in body if isinstance(node, FunctionNode | ast.ClassDef)]
    assigned = [
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
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
    """Yield the forms in which a body may have come: as it is, and after its first or its whole
    indentation was lost.
    """
    yield code
    yield f"    {code.lstrip()}"
    yield textwrap.indent(textwrap.dedent(code), "    ")


def _continues(prefix: str, program: str) -> bool:
    """Return whether the code after the prefix belongs to the last function of the prefix."""
    last_line = len(prefix.rstrip().splitlines())
    body = parse(program).body
    others = [
        node
        for node in body
        if node.lineno > last_line and not isinstance(node, FunctionNode | ast.ClassDef)
    ]
    returns = any(isinstance(inner, ast.Return) for node in others for inner in ast.walk(node))
    return not returns and any(node.lineno <= last_line < (node.end_lineno or 0) for node in body)
