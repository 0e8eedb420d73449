"""Changes of whole programs: one that does not start, that defines another function than the tests
call, or that is too slow.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from .source import (
    FunctionNode,
    Proposal,
    SourceText,
    functions_of,
    indentation,
    insert_imports,
    name_called,
    parse_tree,
)

MAX_PROPOSALS = 10


def entry_point_aliases(code: str, entry_point: str) -> list[Proposal]:
    """Return the program with the function under the name that the tests call: another function of
    it, or a method.
    """
    tree = parse_tree(code)
    functions = [node for node in tree.body if isinstance(node, FunctionNode)]
    if any(node.name == entry_point for node in functions) or not entry_point.isidentifier():
        return []
    found = [_with_alias(code, entry_point, node.name) for node in reversed(functions)]
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        methods = [
            node.name
            for node in kind.body
            if isinstance(node, FunctionNode) and not node.name.startswith("_")
        ]
        by_likeness = sorted(methods, key=lambda name: name != entry_point)
        found += [_with_alias(code, entry_point, f"{kind.name}().{name}") for name in by_likeness]
    return found[:MAX_PROPOSALS]


def _with_alias(code: str, name: str, value: str) -> Proposal:
    return Proposal(f"{code.rstrip()}\n\n\n{name} = {value}\n", f"defined `{name}` as `{value}`")


def without_top_level_statements(code: str) -> Proposal | None:
    """Return the program without the statements at the top level that define nothing, and without
    what they read.

    These are examples, prints, asserts, and assignments of what is read from standard input.
    """
    tree = parse_tree(code)
    run = [
        node
        for node in tree.body
        if (
            isinstance(node, ast.Expr | ast.Assert | ast.For | ast.While | ast.If | ast.With)
            or _reads_input(node)
        )
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not any(
            isinstance(each, FunctionNode | ast.ClassDef | ast.Import | ast.ImportFrom)
            for each in ast.walk(node)
        )
    ]
    if not run or len(run) == len(tree.body):
        return None
    lines = code.split("\n")
    for node in reversed(run):
        del lines[node.lineno - 1 : node.end_lineno]
    return Proposal("\n".join(lines), "removed the statements that ran when the program started")


def _reads_input(node: ast.stmt) -> bool:
    """Whether a statement is an assignment of something that is read from standard input."""
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and any(
        (isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "input")
        or (isinstance(each, ast.Attribute) and ast.unparse(each) == "sys.stdin")
        for each in ast.walk(node)
    )


def with_cached_results(code: str) -> list[Proposal]:
    """Return the program with the results of its recursive functions cached: all of them, then each
    alone.
    """
    functions = [
        node
        for node in functions_of(parse_tree(code))
        if _is_recursive(node) and not _has_effects(node)
    ]
    names = [function.name for function in functions]
    both = (
        [
            _with_cache(
                code, functions, f"cached the results of {', '.join(f'`{name}`' for name in names)}"
            )
        ]
        if functions
        else []
    )
    single = (
        [_with_cache(code, [each], f"cached the results of `{each.name}`") for each in functions]
        if len(functions) > 1
        else []
    )
    return [*both, *single][:MAX_PROPOSALS]


def _is_recursive(function: FunctionNode) -> bool:
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return isinstance(function, ast.FunctionDef) and any(
        isinstance(c.func, ast.Name) and c.func.id == function.name for c in calls
    )


def _has_effects(function: FunctionNode) -> bool:
    """Whether a function changes names outside of it, prints, yields, or is a method; its results
    are not cached then.
    """
    arguments = function.args.args
    changes = any(
        isinstance(node, ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom)
        or (
            isinstance(node, ast.Call)
            and name_called(node)
            in {"print", "input", "append", "add", "pop", "remove", "random", "next"}
        )
        or (
            isinstance(node, ast.Subscript | ast.Attribute)
            and isinstance(node.ctx, ast.Store | ast.Del)
        )
        for node in ast.walk(function)
    )
    return (
        changes
        or bool(function.decorator_list)
        or not arguments
        or arguments[0].arg in ("self", "cls")
    )


def _with_cache(code: str, functions: Sequence[FunctionNode], note: str) -> Proposal:
    lines = code.split("\n")
    for function in sorted(functions, key=lambda each: each.lineno, reverse=True):
        lines.insert(
            function.lineno - 1, f"{indentation(lines[function.lineno - 1])}@functools.cache"
        )
    return Proposal(insert_imports("\n".join(lines), ["import functools"]), note)


def with_recursion_limit(code: str, limit: int = 100_000) -> Proposal:
    """Return the program with a higher limit of recursion."""
    return Proposal(
        insert_imports(code, ["import sys", "", f"sys.setrecursionlimit({limit})"]),
        f"set the recursion limit to {limit:,}",
    )


def similar_names(code: str, names: Collection[str]) -> list[Proposal]:
    """Return the program with undefined names replaced by the defined ones that are spelled most
    like them.

    First all of them together, then each name wherever it is read, then each place alone.
    """
    places = _places_with_similar_names(code, names)
    nearest = [(node, near[0]) for node, near in places]
    by_name = [
        [pair for pair in nearest if pair[0].id == name]
        for name in dict.fromkeys(node.id for node, _ in nearest)
    ]
    alone = [[(node, name)] for node, near in places for name in near]
    changes = [change for change in (nearest, *by_name, *alone) if change]
    return list(dict.fromkeys(_with_names(code, change) for change in changes))[:MAX_PROPOSALS]


def _places_with_similar_names(
    code: str, names: Collection[str]
) -> list[tuple[ast.Name, list[str]]]:
    """Return where the names are read, each with at most two defined names that are spelled like
    it.
    """
    from rapidfuzz import distance

    tree = parse_tree(code)
    known = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    known |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
        node.name for node in functions_of(tree)
    }
    found: list[tuple[ast.Name, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            near = sorted(
                (distance.OSA.distance(node.id, name), name)
                for name in known - {node.id}
                if abs(len(name) - len(node.id)) <= 2
            )
            if close := [
                name for changes, name in near[:2] if changes <= max(1, len(node.id) // 3)
            ]:
                found.append((node, close))
    return sorted(found, key=lambda place: (place[0].lineno, place[0].col_offset))


def _with_names(code: str, change: Sequence[tuple[ast.Name, str]]) -> Proposal:
    for node, name in sorted(
        change, key=lambda pair: (pair[0].lineno, pair[0].col_offset), reverse=True
    ):
        code = SourceText(code).with_node(node, name)
    return Proposal(
        code,
        "; ".join(
            dict.fromkeys(
                f"line {node.lineno}: `{node.id}` became `{name}`" for node, name in change
            )
        ),
    )
