"""Hold the size and the shape of the code: this script fails if a figure of `src/redraft` is over
its ceiling in `scripts/code_size.toml`.

A ceiling may only fall: `--update` lowers each to what the code has now, and raises none.
`--table` shows the figures beside their ceilings, and the most complex functions.

What is counted:

- Own statements: statements without imports and docstrings, so that neither gluing modules
  together nor deleting docstrings lowers the figure. They are counted by group, that is by
  packages; "root" are the modules of no package.
- Tokens: names, numbers, texts and operators. They stand beside the statements, so that a dense
  line gains nothing. A text counts once, an f-string too.
- Floors: the modules of the longest chain of imports that run at import.
- Modules in a cycle: with imports in functions, but not those for type checkers.
- Lazy imports: names that a function imports from a module of ours, and modules that are imported
  by their names.
- Complexity: see `complexities`; it sees more than ruff's C901.
"""

from __future__ import annotations

import argparse
import ast
import gc
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "redraft"
CEILINGS = ROOT / "scripts" / "code_size.toml"

TOKEN = re.compile(
    r"""
    \#[^\n]*                                                # a comment: no token
    |([rbfu]{,2}(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3})
    |[rbfu]{,2}(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |0[xob]\w+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:e[+-]?\d+)?j?
    |\w+
    |\.{3}|->|(?:\*\*|//|>>|<<|[-+*/%&|^@:=!<>])=|\*\*|//|>>|<<
    |[^\w\s\\])
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While),
    *(ast.ExceptHandler, ast.match_case, ast.Assert),
)
NOTHING = (ast.expr_context, ast.operator, ast.cmpop)  # a third of a tree, and never counted
OVER = """\
Bring these down: take out or simplify where you add. scripts/code_size.toml says what helps with
each, and `python scripts/code_size.py --table` names the most complex functions."""
IMPORTS_BY_NAME = re.compile(r"\b(import_module|attribute_loader)\(")


@dataclass(frozen=True)
class Module:
    """A module of the package, read but not imported."""

    name: str
    path: Path  # in the package
    source: str

    @property
    def package(self) -> str:
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    @cached_property
    def places(self) -> list[tuple[ast.AST, ast.AST]]:
        """Each node with the innermost function or class that it is in, or the whole module."""
        tree = ast.parse(self.source)
        places: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
        for node, scope in places:  # grows meanwhile
            inside = node if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else scope
            children = ast.iter_child_nodes(node)
            places.extend((each, inside) for each in children if not isinstance(each, NOTHING))
        return places

    @property
    def nodes(self) -> Iterator[ast.AST]:
        return (node for node, _ in self.places)


def read_modules(package: Path) -> dict[str, Module]:
    """The modules of a package by their dotted names."""
    modules = {}
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package)
        parts = [package.name, *path.with_suffix("").parts]
        name = ".".join(parts[:-1] if path.stem == "__init__" else parts)
        modules[name] = Module(name, path, file.read_text(encoding="utf-8"))
    return modules


def own_statements(module: Module) -> int:
    statements = (node for node in module.nodes if isinstance(node, ast.stmt))
    return sum(
        not isinstance(each, ast.Import | ast.ImportFrom) and not is_docstring(each)
        for each in statements
    )


def is_docstring(node: ast.stmt) -> bool:
    """Whether a statement is a text alone, wherever it stands."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def tokens(module: Module) -> int:
    return sum(bool(token) for token in TOKEN.findall(module.source))


def count_names(module: Module, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in module.nodes)


def count_calls(module: Module, *names: str) -> int:
    called = (node.func for node in module.nodes if isinstance(node, ast.Call))
    return sum(isinstance(each, ast.Name) and each.id in names for each in called)


def complexities(module: Module) -> dict[ast.AST, int]:
    """The complexity of each function: one, and one for each branch, handler, assert, case,
    ternary, operand that and/or adds, comprehension and condition of one. Functions and classes
    that a function holds are counted on their own.
    """
    found = {node: 1 for node in module.nodes if isinstance(node, FUNCTIONS)}
    for node, scope in module.places:
        if scope in found:
            found[scope] += decisions(node)
    return found


def decisions(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, BRANCHES))


def imports(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, bool]]:
    """For each name imported from one of `modules`, but for type checkers: which, and whether
    lazily.
    """
    for_types = {
        each
        for node in module.nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for each in node.body
    }
    for node, scope in module.places:
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in for_types:
            for name in imported_names(node, module.package):
                source = source_of(name, modules)
                if source not in {"", module.name}:
                    yield source, isinstance(scope, FUNCTIONS)


def imported_names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The absolute names of what a statement in a module of `package` imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
    source = ".".join([*above, *([node.module] if node.module else [])])
    return [f"{source}.{alias.name}" for alias in node.names]


def source_of(name: str, modules: dict[str, Module]) -> str:
    """The module that a dotted name is or is defined in; "" if that is none of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def imports_by_name(module: Module, modules: dict[str, Module]) -> int:
    """The modules that texts name, if it imports by name, so that a table hides none."""
    if not IMPORTS_BY_NAME.search(module.source):
        return 0
    constants = (node.value for node in module.nodes if isinstance(node, ast.Constant))
    texts = {value.lstrip(".") for value in constants if isinstance(value, str)}
    return sum(text in modules or f"{module.package}.{text}" in modules for text in texts - {""})


def floors(graph: dict[str, set[str]]) -> int:
    """The length of the longest path of a graph without cycles."""
    floor: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        floor[node] = 1 + max((floor[below] for below in graph[node]), default=0)
    return max(floor.values())


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What can be reached from a node, itself only by a cycle."""
    found, pending = set[str](), [start]
    while pending:
        new = graph[pending.pop()] - found
        found |= new
        pending.extend(new)
    return found


def statements_by_group(modules: dict[str, Module], groups: list[str]) -> Counter[str]:
    """The own statements of each group, such as "core + plans"."""
    group_of = {package: group for group in groups for package in group.split(" + ")}
    counts = Counter(dict.fromkeys(groups, 0))
    for module in modules.values():
        package = module.path.parts[0] if len(module.path.parts) > 1 else "root"
        if package not in group_of:
            sys.exit(
                f"The package {package!r} is in no group: add it to one in scripts/code_size.toml"
            )
        counts[group_of[package]] += own_statements(module)
    return counts


def figures(modules: dict[str, Module], groups: list[str]) -> dict[str, int]:
    """All figures by their names, as the file has them. They are counts, since shares rise when
    other code goes.
    """
    by_group = statements_by_group(modules, groups)
    edges = {name: [*imports(module, modules)] for name, module in modules.items()}
    every = {name: {to for to, _ in found} for name, found in edges.items()}
    eager = {name: {to for to, lazy in found if not lazy} for name, found in edges.items()}
    complexity = [each for module in modules.values() for each in complexities(module).values()]

    def total(count: Callable[..., int], *names: str) -> int:
        return sum(count(module, *names) for module in modules.values())

    return by_group | {
        "tokens": total(tokens),
        "modules": len(modules),
        "entries of the root": len({module.path.parts[0] for module in modules.values()}),
        "floors of imports": floors(eager),
        "modules in a cycle": sum(name in reachable(every, name) for name in every),
        "lazy imports": sum(lazy for found in edges.values() for _, lazy in found)
        + sum(imports_by_name(module, modules) for module in modules.values()),
        "Any": total(count_names, "Any"),
        "isinstance": total(count_calls, "isinstance"),
        "getattr and hasattr": total(count_calls, "getattr", "hasattr"),
        "functions over complexity 10": sum(each > 10 for each in complexity),
        "highest complexity": max(complexity),
    }


def lower(text: str, now: dict[str, int]) -> str:
    """The text of code_size.toml with each ceiling as low as its figure; comments stay."""

    def lowered(line: re.Match[str]) -> str:
        ceiling = tomllib.loads(line[0])[line["name"]]
        return f"{line['key']} = {min(ceiling, now[line['name']]):_}"

    return re.sub(r'^(?P<key>"(?P<name>.+)") = [\d_]+', lowered, text, flags=re.MULTILINE)


def table(now: dict[str, int], ceilings: dict[str, int], modules: dict[str, Module]) -> str:
    """The figures beside their ceilings, and the most complex functions."""
    functions = sorted(
        (-complexity, f"{module.path}:{function.lineno} {function.name}")
        for module in modules.values()
        for function, complexity in complexities(module).items()
    )
    width = max(map(len, ceilings))
    return "\n".join(
        [
            *(f"{name:{width}} {now[name]:>9,} of {ceilings[name]:>9,}" for name in ceilings),
            *(f"complexity {-complexity}: {place}" for complexity, place in functions[:20]),
        ]
    )


def main(arguments: list[str], package: Path = PACKAGE, file: Path = CEILINGS) -> str | None:
    """What `sys.exit` takes: None, or what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--update", action="store_true", help="lower each ceiling to its figure")
    parser.add_argument("--table", action="store_true", help="show all figures")
    options = parser.parse_args(arguments)
    text = file.read_text(encoding="utf-8")
    sections = tomllib.loads(text)
    ceilings = sections["groups"] | sections["shape"]
    modules = read_modules(package)
    now = figures(modules, [*sections["groups"]])
    if options.table:
        print(table(now, ceilings, modules))
    if options.update:
        file.write_text(lower(text, now), encoding="utf-8")
    over = [name for name, ceiling in ceilings.items() if now[name] > ceiling]
    if over:
        lines = (
            f"{name}: {now[name]:,} is over the ceiling of {ceilings[name]:,}" for name in over
        )
        return "\n".join([*lines, OVER])
    fallen = [name for name, ceiling in ceilings.items() if now[name] < 0.99 * ceiling]
    if fallen and not options.update:
        print(f"{file.name}: `python scripts/code_size.py --update` lowers {', '.join(fallen)}")
    return None


if __name__ == "__main__":
    gc.disable()  # what is read is kept to the end
    sys.exit(main(sys.argv[1:]))
