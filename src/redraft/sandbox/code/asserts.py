"""Tests as Python code, read into calls: `assert f(1, [2]) == 3` becomes a call of `f` and an
expected value.

No test code is executed here: literals and arithmetic on numbers are evaluated with limits; what is
neither stays code.
"""

from __future__ import annotations

import ast
import builtins
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...answers.python_source import FunctionNode
from .compare import Comparison, Tolerance

MAX_NUMBER_BITS = 100_000  # of a number that arithmetic in a test makes
MAX_REPEATED_ITEMS = 1_000_000  # of a text or list that a test repeats or joins
MAX_REPEATED_IN_ALL = 20_000_000  # by all tests of a text
MAX_NESTED_OPERATIONS = 20  # that are looked into for that
CHECK_FUNCTION = "check"  # of HumanEval: def check(candidate)


class NotSimpleError(Exception):
    """The code is no literal, or no assertion about the value of one call."""


@dataclass(frozen=True, slots=True)
class SimpleAssert:
    """An assertion about the value of one call with literal arguments."""

    text: str
    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    comparison: Comparison
    expected: Any = None
    tolerance: Tolerance | None = None


# ---- literals

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


_CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (set, list, tuple, dict, frozenset)
}


def literal(node: ast.expr) -> Any:
    """Return the value of a literal, also with arithmetic on numbers, such as [3 * 19, "a" * 5].
    Raises NotSimpleError.
    """
    match node:
        case ast.Constant(value=value) if value is not ...:
            return value
        case ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
            return _container(node)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _evaluate(lambda: _UNARY[type(op)](literal(operand)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _arithmetic(_BINARY[type(op)], literal(left), literal(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _constructor_value(name, args)
    raise NotSimpleError


def _container(node: ast.List | ast.Tuple | ast.Set | ast.Dict) -> Any:
    match node:
        case ast.List(elts=items):
            return [literal(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(literal(item) for item in items)
        case ast.Set(elts=items):
            return _evaluate(lambda: {literal(item) for item in items})
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return _evaluate(lambda: {_key(key): literal(value) for key, value in pairs})


def _constructor_value(name: str, args: list[ast.expr]) -> Any:
    """Return the value of a call such as `set()`, `frozenset([1])` or `float("inf")`."""
    match args:
        case [] if name in _CONSTRUCTORS:
            return _CONSTRUCTORS[name]()
        case [ast.Constant(value=str(text))] if name == "float":
            return _evaluate(lambda: float(text))
        case [inner] if name in ("set", "frozenset"):
            return _evaluate(lambda: _CONSTRUCTORS[name](literal(inner)))
    raise NotSimpleError


def _key(node: ast.expr | None) -> Any:
    if node is None:  # {**other}
        raise NotSimpleError
    return literal(node)


def _evaluate(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (TypeError, ValueError, ArithmeticError):
        raise NotSimpleError from None


def _arithmetic(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return the result of an operation on numbers, or of joining or repeating a text or a list."""
    if not _is_small(function, left, right):
        raise NotSimpleError
    return _evaluate(lambda: function(left, right))


def _is_small(function: Callable[[Any, Any], Any], left: Any, right: Any) -> bool:
    sequences = [value for value in (left, right) if isinstance(value, str | bytes | list | tuple)]
    numbers = [value for value in (left, right) if isinstance(value, int | float)]
    if len(numbers) == 2:
        if function is operator.pow:
            return (
                isinstance(left, float)
                or isinstance(right, float)
                or left.bit_length() * abs(right) <= MAX_NUMBER_BITS
            )
        return all(isinstance(n, float) or n.bit_length() <= MAX_NUMBER_BITS for n in numbers)
    if function is operator.mul and len(sequences) == len(numbers) == 1:
        return isinstance(numbers[0], int) and len(sequences[0]) * numbers[0] <= MAX_REPEATED_ITEMS
    return (
        function is operator.add
        and len(sequences) == 2
        and sum(map(len, sequences)) <= MAX_REPEATED_ITEMS
    )


def _repeated_items(tree: ast.AST) -> int:
    """Return how many items and characters arithmetic on texts and lists makes in test code, at
    most.
    """
    products = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add)
    )
    return sum(_items_of(node, MAX_NESTED_OPERATIONS) for node in products)


def _items_of(node: ast.expr, levels: int) -> int:
    """Return how many items the text or list has that an expression makes; an upper limit if that
    is not plain.
    """
    match node:
        case ast.Constant(value=str() | bytes() as text):
            return len(text)
        case ast.Constant():
            return 0
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return len(items)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if levels:
            return min(
                _items_of(left, levels - 1) + _items_of(right, levels - 1), MAX_REPEATED_ITEMS
            )
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if levels:
            longest = max(_items_of(left, levels - 1), _items_of(right, levels - 1))
            times = [
                each.value
                for each in (left, right)
                if isinstance(each, ast.Constant) and isinstance(each.value, int)
            ]
            return min(
                longest * max([0, *times]) if times or not longest else MAX_REPEATED_ITEMS,
                MAX_REPEATED_ITEMS,
            )
    return 0 if _is_number_node(node) else MAX_REPEATED_ITEMS


def _is_number_node(node: ast.expr) -> bool:
    return all(
        isinstance(inner, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        or (isinstance(inner, ast.Constant) and not isinstance(inner.value, str | bytes))
        for inner in ast.walk(node)
    )


# ---- assertions


def simple_asserts(tree: ast.Module, entry_point: str | None) -> list[SimpleAssert]:
    """Return the assertions of test code that consists of nothing else. Raises NotSimpleError.

    They stand in `def check(candidate)` or by themselves. Documentation, imports, constants that
    nothing reads, `assert True` and the call of the check function are passed over.
    """
    if _repeated_items(tree) > MAX_REPEATED_IN_ALL:
        raise NotSimpleError
    body, names = test_body(tree, entry_point)
    asserts = [simple_assert(statement, names) for statement in body if not says_nothing(statement)]
    others = (library_names(tree) | set(dir(builtins))) - {entry_point}
    if not asserts or any(each.function in others for each in asserts):
        raise NotSimpleError
    return asserts


def test_body(
    tree: ast.Module, entry_point: str | None
) -> tuple[list[ast.stmt], Mapping[str, str]]:
    """Return the statements with the assertions, and the names that stand for functions of the
    candidate there.

    An empty mapping: every name does.
    """
    check = check_function(tree)
    if check is None:
        return tree.body, {}
    if isinstance(check, ast.AsyncFunctionDef):
        raise NotSimpleError
    others = [
        node
        for node in tree.body
        if node is not check and not _calls_check(node) and not says_nothing(node)
    ]
    if any(not _is_unused_constant(node, check) for node in others):
        raise NotSimpleError
    return check.body, {check.args.args[0].arg: checked_name(tree) or entry_point or ""}


def check_function(tree: ast.Module) -> FunctionNode | None:
    """Return `def check(candidate)`, if there is one; it may be async."""
    functions = (
        node for node in tree.body if isinstance(node, FunctionNode) and node.name == CHECK_FUNCTION
    )
    return next((node for node in functions if len(node.args.args) == 1), None)


def checked_name(tree: ast.Module) -> str | None:
    """Return the name of the function with which the test code calls its check function."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="check"), args=[ast.Name(id=name)], keywords=[]):
                return name
            case ast.Call(
                func=ast.Name(id="check"),
                args=[
                    ast.Attribute(
                        value=ast.Call(func=ast.Name(id=kind), args=[], keywords=[]), attr=name
                    )
                ],
                keywords=[],
            ):
                return f"{kind}.{name}"
    return None


def awaited_expression(node: ast.expr) -> ast.expr:
    """Return what is awaited, in `await f(1)` and `asyncio.run(f(1))`; any other expression as it
    is.
    """
    match node:
        case (
            ast.Await(value=inner)
            | ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="run"), args=[inner])
        ):
            return inner
    return node


def _calls_check(node: ast.stmt) -> bool:
    """Return whether a statement is `check(f)`, `test_check()`, or a function that holds nothing
    but the former.
    """
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="check" | "test_check"))):
            return True
        case ast.FunctionDef(name="test_check", body=body):
            return all(_calls_check(inner) for inner in body)
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=body, orelse=[]):
            return all(_calls_check(inner) for inner in body)
    return False


def says_nothing(node: ast.stmt) -> bool:
    """Return whether a statement has no effect on what is tested."""
    match node:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assert(test=ast.Constant(value=True)):
            return True
    return False


def _is_unused_constant(node: ast.stmt, check: ast.FunctionDef) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return not any(
                isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(check)
            )
    return False


def simple_assert(node: ast.stmt, names: Mapping[str, str]) -> SimpleAssert:
    """Return what an `assert` says about one call. Raises NotSimpleError."""
    if not isinstance(node, ast.Assert):
        raise NotSimpleError
    call, comparison, expected, tolerance = _assertion(node.test)
    if not isinstance(call.func, ast.Name) or (names and call.func.id not in names):
        raise NotSimpleError
    if any(keyword.arg is None for keyword in call.keywords):
        raise NotSimpleError
    function = names.get(call.func.id, call.func.id)
    shown = ast.Call(ast.Name(function or call.func.id), call.args, call.keywords)
    return SimpleAssert(
        ast.unparse(shown),
        function,
        tuple(literal(argument) for argument in call.args),
        {str(keyword.arg): literal(keyword.value) for keyword in call.keywords},
        comparison,
        expected,
        tolerance,
    )


def _assertion(test: ast.expr) -> tuple[ast.Call, Comparison, Any, Tolerance | None]:
    """Return the call, what must hold of its value, the expected value, and the tolerance."""
    match test:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="math"), attr="isclose") | ast.Name(id="isclose")
        ):
            return _isclose(test)
        case ast.Call():
            return test, "true", None, None
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
            return call, "false", None, None
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="abs"), args=[inner], keywords=[]),
            ops=[ast.Lt() | ast.LtE()],
        ):
            return _absolute_difference(inner, test.comparators[0])
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _comparison(left, op, right)
    raise NotSimpleError


def _comparison(
    left: ast.expr, op: ast.cmpop, right: ast.expr
) -> tuple[ast.Call, Comparison, Any, None]:
    call, other = (
        (left, right) if isinstance(left, ast.Call) and not _is_literal(left) else (right, left)
    )
    if not isinstance(call, ast.Call):
        raise NotSimpleError
    expected = literal(other)
    match op:
        case ast.Eq():
            return call, "equal", expected, None
        case ast.NotEq():
            return call, "not_equal", expected, None
        case ast.Is() if expected is None or isinstance(expected, bool):
            return call, "identical", expected, None
    raise NotSimpleError


def _is_literal(node: ast.expr) -> bool:
    try:
        literal(node)
    except NotSimpleError:
        return False
    return True


def _absolute_difference(
    inner: ast.expr, limit: ast.expr
) -> tuple[ast.Call, Comparison, Any, Tolerance]:
    """Return `abs(f(x) - expected) < limit` as a comparison with a tolerance."""
    match inner:
        case ast.BinOp(left=ast.Call() as call, op=ast.Sub(), right=right):
            expected = literal(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Call() as call):
            expected = literal(left)
        case _:
            raise NotSimpleError
    return call, "equal", _number(expected), Tolerance(absolute=_number(literal(limit)))


def _isclose(test: ast.Call) -> tuple[ast.Call, Comparison, Any, Tolerance]:
    """Return `math.isclose(f(x), expected, rel_tol=..., abs_tol=...)` as a comparison with a
    tolerance.
    """
    options = {keyword.arg: _number(literal(keyword.value)) for keyword in test.keywords}
    match test.args:
        case [ast.Call() as call, other] | [other, ast.Call() as call] if set(options) <= {
            "rel_tol",
            "abs_tol",
        }:
            tolerance = Tolerance(
                options.get("rel_tol", 1e-9), options.get("abs_tol", 0.0), symmetric=True
            )
            return call, "equal", _number(literal(other)), tolerance
    raise NotSimpleError


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotSimpleError
    return value


# ---- names


def library_names(tree: ast.Module) -> set[str]:
    """Return the names that test code imports from the standard library."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    own = (
        node
        for node in imports
        if node.module and node.module.partition(".")[0] in sys.stdlib_module_names
    )
    return {alias.asname or alias.name for node in own for alias in node.names}
