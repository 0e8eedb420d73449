"""Small changes of a program whose tests fail: the slips that people and models make in a line, one
change at a time.

The kinds of changes are those of mutation testing (relational, arithmetic and logical operators,
constants, variables, returned values), and of repairs that are found by them: a statement moved out
of its loop, a returned value converted to the type that the tests expect. Each one is an edit of
the source at one place, so that the rest of the text stays as it is. Nothing is run here; see
`redraft.code.editor` for what becomes of the changes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .source import (
    MAX_CHARS,
    FunctionNode,
    Proposal,
    SourceText,
    compiles,
    functions_of,
    indentation,
    name_called,
    parse_tree,
)

MAX_MUTANTS = 600  # of one program
MAX_NAMES = 10  # variables that are tried at a place


class Mutation(NamedTuple):
    """One change: how unlikely it is to be right (from 0), the line, the new code, and what was
    changed.
    """

    cost: int
    line: int
    code: str
    note: str


@dataclass(frozen=True)
class Hints:
    """What the tests say of the places to change.

    - `lines`: how suspicious each line is, from 0 to 1; lines that are not named are not
      suspicious. Empty: nothing is known.
    - `expected`, `got`: a value that a test expects, and the one that came instead, as Python
      writes them.
    """

    lines: Mapping[int, float] = field(default_factory=dict)
    expected: str = ""
    got: str = ""


NO_HINTS = Hints()


def mutants(code: str, hints: Hints = NO_HINTS, limit: int = MAX_MUTANTS) -> list[Proposal]:
    """Return changed programs that compile, the likeliest first, without duplicates and at most
    `limit`.
    """
    if len(code) > MAX_CHARS:
        return []
    tree = parse_tree(code)
    source = SourceText(code)
    found = sorted(
        (each for kind in KINDS for each in kind(tree, source, hints)),
        key=lambda each: each.cost - 3 * hints.lines.get(each.line, 0.0),
    )
    cheapest = {each.code: each for each in reversed(found) if each.code != code}
    unique = (each for each in found if cheapest.get(each.code) is each)
    accepted = (
        Proposal(each.code, f"line {each.line}: {each.note}")
        for each in unique
        if compiles(each.code)
    )
    return list(islice(accepted, limit))


Kind = Callable[[ast.Module, SourceText, Hints], Iterator[Mutation]]


# ---- operators

SYMBOLS: Mapping[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
COMPARISONS: Mapping[str, Sequence[str]] = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=", ">=", "<="), "!=": ("==",),
    "in": ("not in",), "not in": ("in",), "is": ("==", "is not"), "is not": ("!=", "is"),
}  # fmt: skip
ARITHMETIC: Mapping[str, Sequence[str]] = {
    "+": ("-", "*"), "-": ("+",), "*": ("+", "**", "/"), "/": ("//", "*"), "//": ("/", "%"), "%": ("//", "/"), "**": ("*",),
    "&": ("|", "^"), "|": ("&", "^"), "^": ("|", "&", "**"), "<<": (">>",), ">>": ("<<",),
}  # fmt: skip


def _comparisons(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                old = SYMBOLS[type(operator)]
                for rank, new in enumerate(COMPARISONS[old]):
                    if code := source.with_operator(left, right, old, new):
                        yield Mutation(1 + rank, right.lineno, code, f"`{old}` became `{new}`")


def _arithmetic(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign):
            left, right = (
                (node.left, node.right)
                if isinstance(node, ast.BinOp)
                else (node.target, node.value)
            )
            old = SYMBOLS.get(type(node.op), "")
            for rank, new in enumerate(ARITHMETIC.get(old, ())):
                if code := source.with_operator(left, right, old, new):
                    yield Mutation(3 + rank, left.lineno, code, f"`{old}` became `{new}`")


def _logic(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                if code := source.with_operator(left, right, old, new):
                    yield Mutation(3, left.lineno, code, f"`{old}` became `{new}`")
            for value in node.values:
                rest = [source.text(each) for each in node.values if each is not value]
                joined = f" {old} ".join(rest)
                yield Mutation(
                    6,
                    value.lineno,
                    source.with_node(node, joined),
                    f"removed the condition `{_short(source.text(value))}`",
                )
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutation(
                4, node.lineno, source.with_node(node, source.text(node.operand)), "removed `not`"
            )
        elif (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and not isinstance(node.operand, ast.Constant)
        ):
            yield Mutation(
                5,
                node.lineno,
                source.with_node(node, source.text(node.operand)),
                "removed the minus sign",
            )
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            negated = f"not ({source.text(node.test)})"
            yield Mutation(
                5, node.test.lineno, source.with_node(node.test, negated), "negated the condition"
            )


# ---- numbers, bounds, constants


def _numbers(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and type(node.value) is int
            and source.text(node).isdecimal()
        ):
            for rank, new in enumerate((node.value + 1, node.value - 1)):
                text = str(new) if new >= 0 else f"({new})"
                yield Mutation(
                    2 + rank,
                    node.lineno,
                    source.with_node(node, text),
                    f"{node.value} became {new}",
                )


def _bounds(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    """Move the bounds of ranges and slices, and indices, by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_called(node) == "range" and node.args:
            yield from _shifts(
                source, node.args[min(1, len(node.args) - 1)], "the end of the range", 1
            )
            if len(node.args) == 1:
                yield Mutation(
                    3,
                    node.lineno,
                    source.with_node(node.args[0], f"1, {source.text(node.args[0])}"),
                    "the range begins at 1",
                )
                both = f"1, {source.text(node.args[0])} + 1"
                yield Mutation(
                    3,
                    node.lineno,
                    source.with_node(node.args[0], both),
                    "the range is from 1 to its end, included",
                )
            else:
                yield from _shifts(source, node.args[0], "the start of the range", 3)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            for bound, name in (
                (node.slice.upper, "the end of the slice"),
                (node.slice.lower, "the start of the slice"),
            ):
                if bound is not None:
                    yield from _shifts(source, bound, name, 2)
        elif isinstance(node, ast.Subscript) and not isinstance(
            node.slice, ast.Constant | ast.Tuple
        ):
            yield from _shifts(source, node.slice, "the index", 4)
        elif isinstance(node, ast.Call) and name_called(node) == "len":
            yield from _shifts(source, node, "the length", 5)
        elif isinstance(node, ast.Compare) and not isinstance(node.comparators[-1], ast.Constant):
            yield from _shifts(source, node.comparators[-1], "the bound", 5)
        elif isinstance(node, ast.Return) and node.value and _is_number(node.value):
            yield from _shifts(source, node.value, "the returned value", 5)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) or (
        isinstance(node, ast.Call) and name_called(node) in {"len", "sum", "max", "min", "abs"}
    )


def _shifts(source: SourceText, node: ast.expr, name: str, cost: int) -> Iterator[Mutation]:
    if isinstance(node, ast.Constant):
        return  # a number by itself; see `_numbers`
    text = source.text(node)
    simple = isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
    for sign in ("+", "-"):
        new = f"{text} {sign} 1" if simple else f"({text}) {sign} 1"
        yield Mutation(
            cost, node.lineno, source.with_node(node, new), f"{name} became `{_short(new)}`"
        )


def _constants(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield Mutation(
                3,
                node.lineno,
                source.with_node(node, str(not node.value)),
                f"{node.value} became {not node.value}",
            )
        elif (
            isinstance(node, ast.Constant)
            and node.value in ("", " ")
            and not source.text(node).startswith(("f", '"""'))
        ):
            new = '" "' if node.value == "" else '""'
            yield Mutation(
                5, node.lineno, source.with_node(node, new), f"{source.text(node)} became {new}"
            )


# ---- variables


def _variables(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    """Read another variable of the same function, likeliest the one that is never read."""
    for function in functions_of(tree):
        names = _local_names(function)
        for node in _own_nodes(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                for name in list(names)[:MAX_NAMES]:
                    if name != node.id:
                        cost = 4 if names[name] == 0 or _is_returned(node, function) else 6
                        yield Mutation(
                            cost,
                            node.lineno,
                            source.with_node(node, name),
                            f"`{node.id}` became `{name}`",
                        )


def _own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions in it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop(0)
        yield node
        pending.extend(
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, FunctionNode | ast.ClassDef)
        )


def _local_names(function: FunctionNode) -> dict[str, int]:
    """Return the parameters and variables of a function, and how often each is read."""
    arguments = function.args
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        *filter(None, (arguments.vararg, arguments.kwarg)),
    ]
    names = {argument.arg: 0 for argument in every if argument.arg not in ("self", "cls")}
    loads: list[str] = []
    for node in _own_nodes(function):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                loads.append(node.id)
            else:
                names.setdefault(node.id, 0)
    return {name: loads.count(name) for name in names}


def _is_returned(node: ast.Name, function: FunctionNode) -> bool:
    return any(isinstance(each, ast.Return) and each.value is node for each in _own_nodes(function))


def _arguments(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    """Exchange the two arguments of a call, and the operands of an operator that is not
    symmetrical.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[first, second]) if name_called(node) not in {
                "range",
                "isinstance",
                "max",
                "min",
            }:
                pass
            case ast.BinOp(
                left=first,
                op=ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow(),
                right=second,
            ):
                pass
            case _:
                continue
        (start, end_of_first), (start_of_second, end) = source.span(first), source.span(second)
        between = source.text_between(end_of_first, start_of_second)
        moved = source.text(first)
        if isinstance(node, ast.BinOp) and isinstance(first, ast.BinOp):
            moved = f"({moved})"
        new = source.replace_span(start, end, f"{source.text(second)}{between}{moved}")
        yield Mutation(6, node.lineno, new, "exchanged two values")


# ---- calls

FUNCTIONS: Mapping[str, Sequence[str]] = {
    "max": ("min",), "min": ("max",), "any": ("all",), "all": ("any",), "append": ("extend",), "extend": ("append",),
    "upper": ("lower",), "lower": ("upper",), "lstrip": ("strip",), "rstrip": ("strip",), "isalpha": ("isalnum",),
    "isalnum": ("isalpha",), "isdigit": ("isnumeric", "isalpha"), "find": ("rfind",), "index": ("rindex",), "rfind": ("find",),
    "startswith": ("endswith",), "endswith": ("startswith",),
    "floor": ("ceil",), "ceil": ("floor",), "sum": ("len",),
    "len": ("sum",), "keys": ("values",), "values": ("keys",), "search": ("fullmatch", "match"), "match": ("fullmatch", "search"),
    "fullmatch": ("search",), "union": ("intersection",), "intersection": ("union",), "isupper": ("islower",),
    "islower": ("isupper",), "combinations": ("permutations", "combinations_with_replacement"),
    "round": ("int",), "int": ("round",),
    "nlargest": ("nsmallest",), "nsmallest": ("nlargest",), "bisect_left": ("bisect_right",), "bisect_right": ("bisect_left",),
}  # fmt: skip


def _calls(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            old = name_called(node)
            end = source.span(node.func)[1]
            for rank, new in enumerate(FUNCTIONS.get(old, ())):
                yield Mutation(
                    4 + rank,
                    node.lineno,
                    source.replace_span(end - len(old), end, new),
                    f"`{old}` became `{new}`",
                )
            if old in {"sorted", "sort"}:
                yield from _sorting(node, source)


def _sorting(node: ast.Call, source: SourceText) -> Iterator[Mutation]:
    reverse = next((keyword for keyword in node.keywords if keyword.arg == "reverse"), None)
    end = source.span(node)[1] - 1
    if reverse is None:
        comma = ", " if node.args or node.keywords else ""
        yield Mutation(
            2,
            node.lineno,
            source.replace_span(end, end, f"{comma}reverse=True"),
            "the order became descending",
        )
    else:
        new = f"not ({source.text(reverse.value)})"
        yield Mutation(
            2, node.lineno, source.with_node(reverse.value, new), "the order became the opposite"
        )
    if node.args:
        for key in ("len", "abs", "str"):
            if not any(keyword.arg == "key" for keyword in node.keywords):
                yield Mutation(
                    6,
                    node.lineno,
                    source.replace_span(end, end, f", key={key}"),
                    f"sorted by `{key}`",
                )


# ---- returned values and statements

CONVERSIONS: Mapping[str, Sequence[str]] = {
    "tuple": ("tuple({})",), "list": ("list({})", "[{}]", "sorted({})"), "set": ("set({})", "dict({})"),
    "text": ("str({})", '"".join({})', '"".join(map(str, {}))'), "truth": ("bool({})", "not ({})"),
    "number": ("int({})", "float({})", "round({})", "round({}, 2)", "round({}, 1)", "abs({})", "-({})", "len({})", "sum({})"),
}  # fmt: skip
ANY_CONVERSION = (
    "sorted({})",
    "list({})",
    "tuple({})",
    "set({})",
    "({})[::-1]",
    "abs({})",
    "not ({})",
    "str({})",
    "len({})",
)


def _kind_of(text: str) -> str:
    """Return the kind of a value as Python writes it; "" if it is unknown."""
    starts = {
        "(": "tuple",
        "[": "list",
        "{": "set",
        "'": "text",
        '"': "text",
        "T": "truth",
        "F": "truth",
        "N": "nothing",
    }
    return "number" if text.lstrip("-")[:1].isdigit() else starts.get(text[:1], "")


def _returned_values(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    """Convert what is returned; to the type that a test expects, if it expects another one."""
    kind = _kind_of(hints.expected)
    likely = CONVERSIONS.get(kind, ())
    differs = bool(kind) and kind != _kind_of(hints.got)
    for function in functions_of(tree):
        for node in _own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                text = source.text(node.value)
                for form in dict.fromkeys([*likely, *ANY_CONVERSION]):
                    cost = (0 if differs else 4) if form in likely else 7
                    new = form.format(text) if "\n" not in text else form.format(f"({text})")
                    yield Mutation(
                        cost,
                        node.lineno,
                        source.with_node(node.value, new),
                        f"returned `{_short(new)}`",
                    )


def _missing_returns(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    """Return the last expression, or a variable, of a function that ends without `return`."""
    for function in functions_of(tree):
        last = function.body[-1]
        space = indentation(source.lines[last.lineno - 1])
        if isinstance(last, ast.Expr) and not isinstance(
            last.value, ast.Constant | ast.Yield | ast.YieldFrom
        ):
            yield Mutation(
                0,
                last.lineno,
                source.with_node(last, f"return {source.text(last)}"),
                "returned the value",
            )
            if (
                isinstance(last.value, ast.Call)
                and name_called(last.value) == "print"
                and last.value.args
            ):
                printed = f"return {source.text(last.value.args[0])}"
                yield Mutation(
                    0,
                    last.lineno,
                    source.with_node(last, printed),
                    "returned the value and did not print it",
                )
        if not isinstance(last, ast.Return | ast.Raise):
            end = source.span(last)[1]
            for name in list(reversed(_local_names(function)))[:MAX_NAMES]:
                code = source.replace_span(end, end, f"\n{space}return {name}")
                yield Mutation(1, last.end_lineno or last.lineno, code, f"added `return {name}`")


def _statements(tree: ast.Module, source: SourceText, hints: Hints) -> Iterator[Mutation]:
    """Move a statement out of its block, exchange `break` and `continue`, or remove a statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Break | ast.Continue):
            old, new = (
                ("break", "continue") if isinstance(node, ast.Break) else ("continue", "break")
            )
            yield Mutation(4, node.lineno, source.with_node(node, new), f"`{old}` became `{new}`")
            yield Mutation(5, node.lineno, source.with_node(node, "pass"), f"removed `{old}`")
        if isinstance(node, ast.For | ast.While | ast.If | ast.With | ast.AsyncFor):
            for block in filter(
                None, (node.body, node.orelse if not isinstance(node, ast.With) else [])
            ):
                if len(block) > 1:
                    yield from _statement_after_block(block[-1], node, source)
        if (
            isinstance(node, ast.If)
            and not node.orelse
            and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
        ):
            removed = source.with_node(node, "pass")
            yield Mutation(
                8, node.lineno, removed, f"removed `if {_short(source.text(node.test))}`"
            )


def _statement_after_block(
    statement: ast.stmt, block: ast.stmt, source: SourceText
) -> Iterator[Mutation]:
    """Move the last statement of a block behind it."""
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    old, new = indentation(source.lines[first]), indentation(source.lines[block.lineno - 1])
    moved = [
        new + line[len(old) :] if line.startswith(old) else line
        for line in source.lines[first:last]
    ]
    code = "\n".join([*source.lines[:first], *moved, *source.lines[last:]])
    yield Mutation(2, statement.lineno, code, "moved the statement out of its block")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else f"{line[:37]}..."


KINDS: Sequence[Kind] = (
    _missing_returns, _comparisons, _numbers, _bounds, _arithmetic, _logic, _constants, _calls, _returned_values, _statements,
    _variables, _arguments,
)  # fmt: skip
