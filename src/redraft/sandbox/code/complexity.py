"""The cyclomatic complexity of each function of a program (McCabe 1976, "A complexity measure").

It is 1 and the number of decisions: `if`, `elif`, `for`, `while`, `except`, `case`, conditional
expressions, `and` and `or` (one for each further operand), and each `for` and `if` of a
comprehension. A function inside a function counts on its own, and so does a lambda; what stands
outside of functions counts as one unit, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

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
