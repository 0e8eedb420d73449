"""Measures of Python programs: how complex their functions are, and how similar two programs are.

The cyclomatic complexity of a function (McCabe 1976, "A complexity measure") is 1 and the number of
decisions: `if`, `elif`, `for`, `while`, `except`, `case`, conditional expressions, `and` and `or`
(one for each further operand), and each `for` and `if` of a comprehension. A function inside a
function counts on its own, and so does a lambda; what stands outside of functions counts as one
unit, too.

Two programs are as similar as their sequences of tokens, whatever their layout, comments and
names. Each is parsed, stripped of what does not run (docstrings, annotations) and written
again, so that layout, quotes and parentheses do not count. Names that the program gives itself
count as one and the same name, as in JPlag (Prechelt et al. 2002).
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...answers.python_source import PARSER_ERRORS, FunctionNode

# ---- complexity

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
MODULE_UNIT = "the code outside of functions"
DECISIONS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp)


@dataclass(frozen=True, slots=True)
class FunctionComplexity:
    """The complexity of a function: its name (with those around it), the line where it begins, and
    the number, at least 1.
    """

    name: str
    line: int
    complexity: int


def complexities(code: str) -> list[FunctionComplexity]:
    """Return the complexity of each function, the most complex first. Raises SyntaxError, and what
    `ast.parse` raises.
    """
    units: list[_Unit] = [_Unit(MODULE_UNIT, 1, list(ast.parse(code).body))]
    measured = []
    while units:
        unit = units.pop()
        measured.append(FunctionComplexity(unit.name, unit.line, unit.measure()))
        units += unit.inner
    return sorted(measured, key=lambda each: (-each.complexity, each.line))


def worst_function(code: str) -> list[str | int]:
    """Return the name, line and complexity of the most complex function, as JSON values."""
    worst = complexities(code)[0]
    return [worst.name, worst.line, worst.complexity]


@dataclass
class _Unit:
    """A function, or the module, and the functions that were found in it."""

    name: str
    line: int
    nodes: list[ast.AST]
    inner: list[_Unit] = field(default_factory=list)

    def measure(self) -> int:
        """Return the complexity, and collect the functions inside."""
        complexity, left = 1, list(self.nodes)
        while left:
            node = left.pop()
            if isinstance(node, Definition):
                self.inner.append(self._unit_of(node))
                left += _evaluated_outside(node)
            else:
                complexity += _decisions(node)
                left += ast.iter_child_nodes(node)
        return complexity

    def _unit_of(self, node: Definition) -> _Unit:
        own_name = getattr(node, "name", "lambda")
        name = own_name if self.name == MODULE_UNIT else f"{self.name}.{own_name}"
        return _Unit(
            name[:200], node.lineno, [node.body] if isinstance(node, ast.Lambda) else [*node.body]
        )


def _evaluated_outside(node: Definition) -> Iterator[ast.AST]:
    """Yield the parts of a definition that run where it stands: defaults and decorators."""
    yield from (*node.args.defaults, *(default for default in node.args.kw_defaults if default))
    yield from getattr(node, "decorator_list", ())


def _decisions(node: ast.AST) -> int:
    match node:
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.Match():
            return sum(not _is_wildcard(case) for case in node.cases)
    return int(isinstance(node, DECISIONS))


def _is_wildcard(case: ast.match_case) -> bool:
    return (
        isinstance(case.pattern, ast.MatchAs)
        and case.pattern.pattern is None
        and case.guard is None
    )


# ---- similarity

NAME = "\0name"  # stands for a name of the program's own
LAYOUT = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER})


def code_similarity(code: str, reference: str, names: bool) -> float | None:  # noqa: FBT001  (called in a worker, with values)
    """Return twice the length of the longest common subsequence of tokens over the number of tokens
    of both, from 0 to 1.

    With `names`, names of the program's own must be equal. None if `code` is no Python. Raises
    SyntaxError for the reference.
    """
    from rapidfuzz import distance

    expected = program_tokens(reference, names=names)
    try:
        tokens = program_tokens(code, names=names)
    except PARSER_ERRORS:
        return None
    return float(distance.Indel.normalized_similarity(tokens, expected)) if tokens else 0.0


def program_tokens(code: str, *, names: bool) -> Sequence[str]:
    """Return the tokens of a program, normalised. Raises what `ast.parse` raises."""
    tree = ast.parse(code)
    _Stripper().visit(tree)
    own = frozenset() if names else _own_names(tree)
    return list(_normalise_tokens(ast.unparse(ast.fix_missing_locations(tree)), own))


class _Stripper(ast.NodeTransformer):
    """Removes what does not run: docstrings, annotations, texts that stand alone."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, FunctionNode):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.stmt | ast.mod):
            kept = [child for child in body if not _is_bare_constant(child)]
            vars(node)["body"] = kept if kept or isinstance(node, ast.mod) else [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value else ast.Pass()


def _is_bare_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _own_names(tree: ast.AST) -> frozenset[str]:
    """Return the names that a program binds: variables, parameters, functions, classes."""
    names: set[str | None] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.arg():
                names.add(node.arg)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
                names.add(node.name)
    return frozenset(name for name in names if name and not name.startswith("__"))


def _normalise_tokens(code: str, own: frozenset[str]) -> list[str]:
    tokens: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in LAYOUT:
            continue
        is_own = token.type == tokenize.NAME and token.string in own and tokens[-1:] != ["."]
        tokens.append(
            {tokenize.INDENT: "\0in", tokenize.DEDENT: "\0out"}.get(
                token.type, NAME if is_own else token.string
            )
        )
    return tokens
