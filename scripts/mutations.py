"""The small changes of a module that `mutants.py` tries."""

import ast
import difflib
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARED = {
    ast.Lt: ("boundary", "<", "<="),
    ast.LtE: ("boundary", "<=", "<"),
    ast.Gt: ("boundary", ">", ">="),
    ast.GtE: ("boundary", ">=", ">"),
    ast.Eq: ("operator", "==", "!="),
    ast.NotEq: ("operator", "!=", "=="),
    ast.Is: ("operator", "is", "is not"),
    ast.IsNot: ("operator", r"is\s+not", "is"),
    ast.In: ("operator", "in", "not in"),
    ast.NotIn: ("operator", r"not\s+in", "in"),
}
TURNED = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
TURNED = {
    operator: ("operator", old.replace("+", r"\+"), new) for operator, (old, new) in TURNED.items()
}
# Calls that are dropped by taking one of their arguments instead; a call that is a statement is
# dropped anyway.
UNWRAPPED = re.compile(
    "abs|ceil|dict|float|floor|int|list|max|min|replace|reversed|round|set|sorted|tuple"
)
FOR_READERS = re.compile(r"((self\.)?_?(log|logger|logging|warnings)|warn)\b")
NOT_CHANGED = ("annotation", "returns", "decorator_list")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Change = tuple[str, int, int, str]  # its kind; from which byte to which; the new text


@dataclass(frozen=True)
class Mutant:
    """A module with a change. The tests to try are those that execute a line of the first of
    `places` that any test executes.
    """

    path: Path
    source: bytes
    kind: str
    start: int
    end: int
    new: str
    places: tuple[frozenset[int], ...]

    @property
    def line(self) -> int:
        return self.source.count(b"\n", 0, self.start) + 1

    @property
    def changed(self) -> bytes:
        return self.source[: self.start] + self.new.encode() + self.source[self.end :]

    @property
    def diff(self) -> str:
        before, after = self.source.decode().splitlines(), self.changed.decode().splitlines()
        return "\n".join([*difflib.unified_diff(before, after, n=2, lineterm="")][2:])


class Mutations:
    """All small changes of a module but those of annotations, decorators, texts, logs, and checks
    of the program itself.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.source, self.found = path, path.read_bytes(), list[Mutant]()
        self.line_starts = [0, *(end.end() for end in re.finditer(rb"\n", self.source))]
        tree = ast.parse(self.source)
        functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
        self.visit(tree, frozenset[int]().union(*map(body, functions)), frozenset())

    def visit(self, node: ast.AST, function: frozenset[int], statement: frozenset[int]) -> None:
        if (
            isinstance(node, ast.JoinedStr | ast.Assert)
            or self.is_for_readers(node)
            or getattr(node, "arg", "") == "strict"
        ):
            return
        if isinstance(node, ast.stmt):
            statement = frozenset({node.lineno})
        for kind, start, end, new in self.changes(node):
            lines = frozenset(
                range(self.source.count(b"\n", 0, start) + 1, self.source.count(b"\n", 0, end) + 2)
            )
            # What is in no body, such as the default of a parameter, runs at import, in whichever
            # test that is.
            places = (
                (lines, statement, function)
                if lines & function and statement <= function
                else (function,)
            )
            self.found.append(Mutant(self.path, self.source, kind, start, end, new, places))
        for name, value in ast.iter_fields(node):
            children = value if isinstance(value, list) else [value]
            if (
                name == "args"
                and isinstance(node, ast.Call)
                and self.text(node.func) in {"isinstance", "issubclass", "cast"}
            ):
                children = children[:1]
            for child in children if name not in NOT_CHANGED else ():
                if isinstance(child, ast.AST):
                    self.visit(
                        child, body(node) if isinstance(node, FUNCTIONS) else function, statement
                    )

    def is_for_readers(self, node: ast.AST) -> bool:
        if isinstance(node, ast.If):
            return self.text(node.test).endswith("TYPE_CHECKING")
        return isinstance(node, ast.Call) and FOR_READERS.match(self.text(node.func)) is not None

    def changes(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                    yield from self.turn(left, right, *COMPARED[type(operator)])
            case ast.BinOp() if type(node.op) in TURNED and not is_text(node):
                yield from self.turn(node.left, node.right, *TURNED[type(node.op)])
            case ast.AugAssign() if type(node.op) in TURNED and not is_text(node.value):
                yield from self.turn(node.target, node.value, *TURNED[type(node.op)])
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self.turn(left, right, *TURNED[type(node.op)])
            case ast.UnaryOp(op=ast.Not()):
                yield self.replace("condition negated", node, f"bool({self.text(node.operand)})")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(
                test, ast.Constant
            ):
                yield self.replace("condition negated", test, f"(not ({self.text(test)}))")
            case ast.comprehension(ifs=[*tests]):
                for test in tests:
                    yield self.replace("condition negated", test, f"(not ({self.text(test)}))")
            case (
                ast.Expr(value=ast.Call() as call)
                | ast.Expr(value=ast.Await(value=ast.Call() as call))
            ):
                if not self.is_for_readers(call):
                    yield self.replace("call dropped", node, "pass")
            case ast.Call(func=ast.Name(id=name), args=arguments) if UNWRAPPED.fullmatch(name):
                for argument in (
                    arguments if name not in {"max", "min"} or len(arguments) > 1 else ()
                ):
                    if not isinstance(argument, ast.Starred | ast.GeneratorExp):
                        yield self.replace("call dropped", node, f"({self.text(argument)})")
            case ast.Constant(value=bool() as value):
                yield self.replace("constant", node, str(not value))
            case ast.Constant(value=int() as value):
                yield self.replace("constant", node, str(value + 1))
            case ast.Constant(value=float() as value):
                yield self.replace("constant", node, str(value * 2 or 1.0))
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self.replace("return value", node, "return None")

    def turn(
        self, left: ast.expr, right: ast.expr, kind: str, old: str, new: str
    ) -> Iterator[Change]:
        start, end = self.span(left)[1], self.span(right)[0]
        if operator := re.search(old.encode(), self.source[start:end]):
            yield kind, start + operator.start(), start + operator.end(), new

    def replace(self, kind: str, node: ast.AST, new: str) -> Change:
        return kind, *self.span(node), new

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.line_starts[node.lineno - 1] + node.col_offset, self.line_starts[
            node.end_lineno - 1
        ] + node.end_col_offset


def body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[int]:
    last = function.body[-1]
    return frozenset(range(function.body[0].lineno, (last.end_lineno or last.lineno) + 1))


def is_text(node: ast.expr) -> bool:
    """Whether an operator joins texts, or a type and None: any other operator would fail in every
    test.
    """
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | type(None))
    )


def is_new_program(mutant: Mutant) -> bool:
    try:
        return ast.dump(ast.parse(mutant.changed)) != ast.dump(ast.parse(mutant.source))
    except (SyntaxError, ValueError):
        return False


def mutations(package: Path, part: str) -> list[Mutant]:
    """Return the changes of a part: `storage`, `runs/allocation`, `storage/journal.py:407`."""
    name, _, line = part.partition(":")
    path = package / name.removesuffix(".py")
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    if not all(file.is_file() for file in files) or (line and not line.isdecimal()):
        expected = (
            f"a folder, a module or a line of {package.name}, such as storage, runs/job or "
            "runs/job:145"
        )
        raise ValueError(f"expected {expected}, got {part!r}")
    found = [mutant for file in files for mutant in Mutations(file).found]
    return [mutant for mutant in found if not line or mutant.line == int(line)]


def draw(package: Path, parts: list[str], count: int, seed: str) -> list[Mutant]:
    """Draw a part by its weight, as in `storage=2`, then one of its lines, then a change of the
    line; nothing twice.
    """
    weights, lines, drawn, rng = (
        list[float](),
        list[list[list[Mutant]]](),
        list[Mutant](),
        random.Random(seed),
    )
    for part in parts:
        name, _, weight = part.partition("=")
        weights.append(float(weight or 1))
        by_line = defaultdict(list)
        for mutant in mutations(package, name):
            by_line[mutant.path, mutant.line].append(mutant)
        lines.append([*by_line.values()])
    while len(drawn) < count and any(lines):
        [left] = rng.choices(
            lines, [weight if left else 0 for weight, left in zip(weights, lines, strict=True)]
        )
        line = left[place := rng.randrange(len(left))]
        mutant = line.pop(rng.randrange(len(line)))
        if not line:
            del left[place]
        if mutant not in drawn and is_new_program(mutant):
            drawn.append(mutant)
    return drawn
