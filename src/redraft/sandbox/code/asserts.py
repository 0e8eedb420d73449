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
from typing import Any

from ...answers.python_source import FunctionNode
from .compare import CallTest, Comparison, Tolerance, ValueComparer

MAX_NUMBER_BITS = 100_000  # of a number that arithmetic in a test makes
MAX_REPEATED_ITEMS = 1_000_000  # of a text or list that a test repeats or joins
MAX_REPEATED_IN_ALL = 20_000_000  # by all tests of a text
CHECK_FUNCTION = "check"  # of HumanEval: def check(candidate)


class NotSimpleError(Exception):
    """The code is no literal, or no assertion about the value of one call."""


def simple_asserts(tree: ast.Module, entry_point: str | None) -> list[CallTest]:
    """Return the assertions of test code that consists of nothing else. Raises NotSimpleError.

    They stand in `def check(candidate)` or by themselves. Documentation, imports, constants that
    nothing reads, `assert True` and the call of the check function are passed over.
    """
    body, names = test_body(tree, entry_point)
    reader = _AssertionReader(names)
    try:
        tests = [reader.read(statement) for statement in body if not says_nothing(statement)]
    except (TypeError, ValueError, ArithmeticError):  # of a literal that Python refuses, too
        raise NotSimpleError from None
    others = (library_names(tree) | set(dir(builtins))) - {entry_point}
    if not tests or any(each.function in others for each in tests):
        raise NotSimpleError
    return tests


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
_DISPLAYS: Mapping[type, Callable[..., Any]] = {ast.List: list, ast.Tuple: tuple, ast.Set: set}
_CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (set, list, tuple, dict, frozenset)
}


class _LiteralReader:
    """Evaluates literals, also with arithmetic on numbers, such as [3 * 19, "a" * 5]. Raises
    NotSimpleError, and what Python raises for them.
    """

    repeated = 0  # items of texts and lists that arithmetic has made so far

    def literal(self, node: ast.expr) -> Any:
        """Return the value of a literal."""
        match node:
            case ast.Constant(value=value) if value is not ...:
                return value
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return _DISPLAYS[type(node)](map(self.literal, items))
            case ast.Dict(keys=keys, values=values):
                return {
                    self._key(key): self.literal(value)
                    for key, value in zip(keys, values, strict=True)
                }
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _UNARY[type(op)](self.literal(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._arithmetic(_BINARY[type(op)], self.literal(left), self.literal(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._constructor_value(name, args)
        raise NotSimpleError

    def _key(self, node: ast.expr | None) -> Any:
        if node is None:  # {**other}
            raise NotSimpleError
        return self.literal(node)

    def _constructor_value(self, name: str, args: list[ast.expr]) -> Any:
        """Return the value of a call such as `set()`, `frozenset([1])` or `float("inf")`."""
        match args:
            case [] if name in _CONSTRUCTORS:
                return _CONSTRUCTORS[name]()
            case [ast.Constant(value=str(text))] if name == "float":
                return float(text)
            case [inner] if name in ("set", "frozenset"):
                return _CONSTRUCTORS[name](self.literal(inner))
        raise NotSimpleError

    def _arithmetic(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """Return the result of an operation on numbers, or of joining or repeating a text or a
        list.
        """
        if not _is_small(function, left, right):
            raise NotSimpleError
        value = function(left, right)
        if isinstance(value, str | bytes | list | tuple):
            self.repeated += len(value)
        if self.repeated > MAX_REPEATED_IN_ALL:
            raise NotSimpleError
        return value


def _is_small(function: Callable[[Any, Any], Any], left: Any, right: Any) -> bool:
    """Return whether an operation is one on numbers, texts or lists whose result is not large."""
    match left, right:
        case (int() | float(), int() | float()):
            return _bits(function, left, right) <= MAX_NUMBER_BITS
        case ((str() | bytes() | list() | tuple()) as items, int() as times) | (
            int() as times,
            (str() | bytes() | list() | tuple()) as items,
        ):
            return function is operator.mul and len(items) * times <= MAX_REPEATED_ITEMS
        case (str() | bytes() | list() | tuple(), str() | bytes() | list() | tuple()):
            return function is operator.add and len(left) + len(right) <= MAX_REPEATED_ITEMS
    return False


def _bits(function: Callable[[Any, Any], Any], left: Any, right: Any) -> int:
    """Return how many bits the result of an operation on numbers has, about; of a float none."""
    if isinstance(left, float) or isinstance(right, float):
        return 0
    if function is operator.pow:
        return int(left.bit_length() * abs(right))
    return int(max(left.bit_length(), right.bit_length()))


# ---- assertions


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


class _AssertionReader(_LiteralReader):
    """Reads assertions about the value of one call. `names` are those that stand for functions of
    the candidate; if there are none, every name does.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def read(self, node: ast.stmt) -> CallTest:
        """Return what an `assert` says about one call."""
        if not isinstance(node, ast.Assert):
            raise NotSimpleError
        call, comparison, expected, tolerance = self._assertion(node.test)
        if not isinstance(call.func, ast.Name) or (self.names and call.func.id not in self.names):
            raise NotSimpleError
        if any(keyword.arg is None for keyword in call.keywords):
            raise NotSimpleError
        return CallTest(
            self.names.get(call.func.id, call.func.id),
            tuple(map(self.literal, call.args)),
            {str(keyword.arg): self.literal(keyword.value) for keyword in call.keywords},
            expected,
            comparison,
            ValueComparer(tolerance),
        )

    def _assertion(self, test: ast.expr) -> tuple[ast.Call, Comparison, Any, Tolerance | None]:
        """Return the call, what must hold of its value, the expected value, and the tolerance."""
        match test:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math"), attr="isclose")
                | ast.Name(id="isclose")
            ):
                return self._isclose(test)
            case ast.Call():
                return test, "true", None, None
            case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
                return call, "false", None, None
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="abs"), args=[inner], keywords=[]),
                ops=[ast.Lt() | ast.LtE()],
                comparators=[limit],
            ):
                return self._absolute_difference(inner, limit)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._comparison(left, op, right)
        raise NotSimpleError

    def _comparison(
        self, left: ast.expr, op: ast.cmpop, right: ast.expr
    ) -> tuple[ast.Call, Comparison, Any, None]:
        call, other = (left, right) if self._is_call(left) else (right, left)
        if not isinstance(call, ast.Call):
            raise NotSimpleError
        expected = self.literal(other)
        match op:
            case ast.Eq():
                return call, "equal", expected, None
            case ast.NotEq():
                return call, "not_equal", expected, None
            case ast.Is() if expected is None or isinstance(expected, bool):
                return call, "identical", expected, None
        raise NotSimpleError

    def _is_call(self, node: ast.expr) -> bool:
        """Return whether an expression is a call, and no literal such as `set()`."""
        if not isinstance(node, ast.Call):
            return False
        try:
            self.literal(node)
        except NotSimpleError:
            return True
        return False

    def _absolute_difference(
        self, inner: ast.expr, limit: ast.expr
    ) -> tuple[ast.Call, Comparison, Any, Tolerance]:
        """Return `abs(f(x) - expected) < limit` as a comparison with a tolerance."""
        match inner:
            case (
                ast.BinOp(left=ast.Call() as call, op=ast.Sub(), right=other)
                | ast.BinOp(left=other, op=ast.Sub(), right=ast.Call() as call)
            ):
                return call, "equal", self._number(other), Tolerance(absolute=self._number(limit))
        raise NotSimpleError

    def _isclose(self, test: ast.Call) -> tuple[ast.Call, Comparison, Any, Tolerance]:
        """Return `math.isclose(f(x), expected, rel_tol=..., abs_tol=...)` as a comparison with a
        tolerance.
        """
        options = {keyword.arg: self._number(keyword.value) for keyword in test.keywords}
        match test.args:
            case [ast.Call() as call, other] | [other, ast.Call() as call] if set(options) <= {
                "rel_tol",
                "abs_tol",
            }:
                tolerance = Tolerance(
                    options.get("rel_tol", 1e-9), options.get("abs_tol", 0.0), symmetric=True
                )
                return call, "equal", self._number(other), tolerance
        raise NotSimpleError

    def _number(self, node: ast.expr) -> Any:
        value = self.literal(node)
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
