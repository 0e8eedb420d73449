"""Whether test code checks what a call did to its arguments: what it compares is looked at, and
nothing is executed.

`assert f(x) == sorted(x)` uses an argument to find out what is right, and the candidate must not
change what that says. So the test code sees changes of arguments only if an assertion of it is
about an argument and not about a returned value, as in `f(x); assert x == [1, 2]`, or asks whether
the returned object is the argument.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator


def checks_arguments(
    tree: ast.Module, names: Container[str], parameters: Iterable[str] = ()
) -> bool:
    """Return whether an assertion is about an argument of a call of the candidate, whose `names`
    are given.

    `parameters` belong to helpers, which may get a returned value.
    """
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and root(node.func) in names
    ]
    conditions = list(_conditions(tree))
    bindings = list(_bindings(tree))
    for call in calls:
        passed = {name for each in _parts(call) for name in _shared_names(each)}
        arguments = _aliases(passed, bindings)
        results = _results(call, bindings) | set(parameters)
        if arguments and any(
            _is_about(condition, arguments, results, names) for condition in conditions
        ):
            return True
    return False


def _is_about(
    condition: ast.expr, arguments: set[str], results: set[str], candidate: Container[str]
) -> bool:
    """Return whether a condition is about the arguments of a call alone, or whether the result is
    one of them.
    """
    match condition:
        case (
            ast.Compare(left=left, ops=[ast.Is()], comparators=[right])
            | ast.Call(func=ast.Attribute(attr="assertIs"), args=[left, right, *_])
        ):
            return not arguments.isdisjoint((root(left), root(right))) and not (
                isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
            )
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if any(
            _reference(_base(one)) in arguments and _is_free(other, arguments | results, candidate)
            for one, other in ((left, right), (right, left))
        ):
            return results.isdisjoint((_reference(_base(left)), _reference(_base(right))))
    parts = _parts(condition)
    mentioned = {name for part in parts for name in references(part)}
    called = any(_calls(part, candidate) for part in parts)
    return bool(mentioned & arguments) and not mentioned & results and not called


def _parts(condition: ast.expr) -> list[ast.expr]:
    """Return the arguments of a call; any other condition is the only part of itself."""
    if isinstance(condition, ast.Call):
        return [*condition.args, *(keyword.value for keyword in condition.keywords)]
    return [condition]


def _is_free(node: ast.expr, names: set[str], candidate: Container[str]) -> bool:
    """Return whether an expression has nothing to do with names and the candidate."""
    return not names & set(references(node)) and not _calls(node, candidate)


def _calls(node: ast.AST, names: Container[str]) -> bool:
    return any(isinstance(each, ast.Call) and root(each.func) in names for each in ast.walk(node))


def _conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the conditions that assertions combine, and the calls of assertions of libraries."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=test):
                yield from _atoms(test)
            case ast.Expr(
                value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) as call
            ) if name.startswith("assert"):
                first = call.args[:1] if name in ("assertTrue", "assertFalse") else []
                yield from (atom for each in first for atom in _atoms(each))
                yield from [] if first else _as_comparison(call, name)


def _as_comparison(call: ast.Call, name: str) -> Iterator[ast.expr]:
    """Yield an assertion of a library: as a comparison, if it says that two values are equal."""
    if len(call.args) >= 2 and "Equal" in name and "Not" not in name:
        yield ast.Compare(call.args[0], [ast.Eq()], [call.args[1]])
    else:
        yield call


def _atoms(test: ast.expr) -> Iterator[ast.expr]:
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _atoms(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _atoms(operand)
        case _:
            yield test


# ---- names


def root(node: ast.expr) -> str:
    """Return the name that an expression begins with, as in `x`, `x[:2]`, `x.y`; "" if it begins
    with something else.
    """
    base = _base(node)
    while isinstance(base, ast.Attribute):
        base = _base(base.value)
    return base.id if isinstance(base, ast.Name) else ""


def _base(node: ast.expr) -> ast.expr:
    """Return what is subscripted, as `self.x` in `self.x[0]`."""
    while isinstance(node, ast.Subscript | ast.Starred) or (
        isinstance(node, ast.Attribute) and not _reference(node)
    ):
        node = node.value
    return node


def _reference(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
    return ""


def references(node: ast.AST) -> Iterator[str]:
    """Yield the names in an expression; attributes of `self` count as names."""
    if name := _reference(node):
        yield name
    else:
        for inner in ast.iter_child_nodes(node):
            yield from references(inner)


def _shared_names(node: ast.AST) -> Iterator[str]:
    """Yield the names in an expression, except those in calls, such as `list(x)`, and in slices,
    which copy.
    """
    if isinstance(node, ast.Call) or (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    ):
        return
    if name := _reference(node):
        yield name
    else:
        for inner in ast.iter_child_nodes(node):
            yield from _shared_names(inner)


def _bindings(tree: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    """Yield the names that get a value or a part of it, with the expression of the value."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield {name for target in targets for name in references(target)}, value
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
            ):
                yield set(references(target)), value
            case ast.AugAssign(target=target, value=value):
                yield set(references(target)), value
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                yield set(references(node.target)), node.iter
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield set(references(target)), value


def _aliases(names: set[str], bindings: list[tuple[set[str], ast.expr]]) -> set[str]:
    """Return the names with those that stand for the same objects, or for parts of them."""
    found, before = set(names), -1
    while len(found) > before:
        before = len(found)
        for targets, value in bindings:
            parts = set(_shared_names(value))
            if parts & found:
                found |= targets
            if targets & found:
                found |= parts
    return found


def _results(call: ast.Call, bindings: list[tuple[set[str], ast.expr]]) -> set[str]:
    """Return the names that get what a call returns, or what is computed of it."""
    found, before = set[str](), -1
    while len(found) > before:
        before = len(found)
        for targets, value in bindings:
            if found & set(references(value)) or any(inner is call for inner in ast.walk(value)):
                found |= targets
    return found
