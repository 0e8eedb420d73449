"""Python source as text: whether it compiles, and edits of lines that leave the rest as it is.

The code is somebody else's, and it may be made to exhaust the parser. Redraft calls these functions
in a worker process (see `redraft.compute`), and nothing here runs the code.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

MAX_CHARS = 50_000  # longer code is not repaired
MAX_MESSAGE_CHARS = 200
FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
PARSER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


class Proposal(NamedTuple):
    """Changed code, and what was changed, in words."""

    code: str
    note: str


class Problem(NamedTuple):
    """An error of syntax: its message, its line and column (both from 1), and the columns and the
    line where it ends.
    """

    message: str
    line: int
    column: int
    end_line: int
    end_column: int


def syntax_problem(code: str) -> Problem | None:
    """Return the first error that the compiler of this Python finds; None if the code compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<candidate>", "exec", dont_inherit=True)
    except SyntaxError as error:
        last = max(1, code.count("\n") + 1)
        line = min(max(1, error.lineno or last), last)
        column = max(1, error.offset or 1)
        return Problem(
            str(error.msg), line, column, error.end_lineno or line, error.end_offset or column
        )
    except PARSER_ERRORS as error:
        return Problem(
            f"the code cannot be compiled: {str(error) or type(error).__name__}", 1, 1, 1, 1
        )
    return None


def compile_error(code: str) -> str | None:
    """Return what the compiler of this Python says is wrong, and where, in words; None if nothing
    is.
    """
    if (problem := syntax_problem(code)) is None:
        return None
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        f"line {problem.line}: {' '.join(problem.message.split())[:MAX_MESSAGE_CHARS]} (Python "
        f"{version})"
    )


def compiles(code: str) -> bool:
    """Return whether the code compiles and does something: values by themselves, such as words of a
    sentence, do nothing.
    """
    return syntax_problem(code) is None and any(
        not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call | ast.Await)
        for node in parse_tree(code).body
    )


def parse_tree(code: str) -> ast.Module:
    """Return the syntax tree; an empty one for code that cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except PARSER_ERRORS:
        return ast.Module(body=[], type_ignores=[])


def indentation(line: str) -> str:
    """Return the white space at the start of a line."""
    return line[: len(line) - len(line.lstrip())]


def without_comment(line: str) -> tuple[str, str]:
    """Return the code of a line without the space at its end, and the rest of the line: that space
    and a comment.
    """
    quote = ""
    for at, character in enumerate(line):
        if quote:
            quote = "" if character == quote and line[at - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            code = line[:at].rstrip()
            return code, line[len(code) :]
    code = line.rstrip()
    return code, line[len(code) :]


def with_lines(lines: Sequence[str], first: int, last: int, new: Sequence[str]) -> str:
    """Return the code with lines `first` to `last` (from 0, `last` excluded) replaced."""
    return "\n".join([*lines[:first], *new, *lines[last:]])


def insert_imports(code: str, statements: Sequence[str]) -> str:
    """Return the code with import statements after its docstring, its comments at the start, and
    its imports from __future__.
    """
    lines = code.split("\n")
    at = 0
    for statement in parse_tree(code).body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (is_docstring or is_future):
            break
        at = statement.end_lineno or 0
    while at == 0 and lines and lines[0].startswith("#!"):
        at = 1
    return with_lines(lines, at, at, statements)


# ---- syntax trees


def functions_of(tree: ast.Module) -> Iterator[FunctionNode]:
    """Yield the functions and methods of a program."""
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def name_called(node: ast.Call) -> str:
    """Return the last name of the function that is called; "" without one."""
    function = node.func
    return (
        function.id
        if isinstance(function, ast.Name)
        else function.attr
        if isinstance(function, ast.Attribute)
        else ""
    )


class SourceText:
    """A program as text; the columns of syntax trees count bytes."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.lines = code.split("\n")
        starts, at = [0], 0
        data = code.encode()
        while (at := data.find(b"\n", at) + 1) > 0:
            starts.append(at)
        self._data, self._starts = data, starts

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends, as numbers of bytes."""
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_line, end_column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self._starts[line - 1] + column, self._starts[end_line - 1] + end_column

    def text(self, node: ast.AST) -> str:
        return self.text_between(*self.span(node))

    def text_between(self, start: int, end: int) -> str:
        return self._data[start:end].decode()

    def replace_span(self, start: int, end: int, new: str) -> str:
        """Return the code with a part replaced."""
        return (self._data[:start] + new.encode() + self._data[end:]).decode()

    def with_node(self, node: ast.AST, new: str) -> str:
        return self.replace_span(*self.span(node), new)

    def with_operator(self, left: ast.AST, right: ast.AST, old: str, new: str) -> str | None:
        """Return the code with the operator between two nodes replaced; None if it is not there."""
        start, end = self.span(left)[1], self.span(right)[0]
        at = self._data.find(old.encode(), start, end)
        return self.replace_span(at, at + len(old), new) if at >= 0 else None
