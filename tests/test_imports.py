"""First uses in many threads: no package imports its own modules while it is imported, so no two
threads wait for each other.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from each_row import each_row

PACKAGE = Path(__file__).parents[1] / "src" / "redraft"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def statements_at_import(body):
    """Yield the statements that run while a module is imported; those for type checkers do not
    run.
    """
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from statements_at_import(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from statements_at_import(getattr(statement, field, []))


def source_of(name, statement):
    """Return the module after the `from` of an import; `name` is the module that has it."""
    parts = name.split(".") + ["__init__"] * (MODULES[name].name == "__init__.py")
    return ".".join(
        [*(parts[: -statement.level] if statement.level else []), *filter(None, [statement.module])]
    )


@cache
def defined_names(package):
    """Return the names that a package defines itself."""
    names = set()
    for statement in statements_at_import(ast.parse(MODULES[package].read_text()).body):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        names |= {
            getattr(statement, "name", None),
            *(getattr(target, "id", None) for target in targets),
        }
    return names


def imported_modules(name, statement):
    """Return the modules of ours that an import loads; `name` is the module that has it."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom):
        return []
    source = source_of(name, statement)
    return [
        f"{source}.{alias.name}" if f"{source}.{alias.name}" in MODULES else source
        for alias in statement.names
    ]


@each_row("name", PACKAGES)
def test_a_package_imports_none_of_its_modules_while_it_is_imported(name):
    """See `lazy_imports`: a thread that imports one of them holds its lock, and waits for the
    package.
    """
    tree = ast.parse(MODULES[name].read_text())
    own = [
        f"line {statement.lineno}: {module}"
        for statement in statements_at_import(tree.body)
        for module in imported_modules(name, statement)
        if module.startswith(f"{name}.") or module == name
    ]
    assert own == []


@each_row("name", PACKAGES)
def test_no_name_of_a_package_is_that_of_one_of_its_modules(name):
    """The import of the module would replace what the name stands for."""
    names = getattr(import_module(name), "__all__", [])
    assert [each for each in names if f"{name}.{each}" in MODULES] == []


def test_modules_take_from_the_packages_around_them_what_these_define():
    """A name that loads on first use would be an import of another module of the package, which no
    contract sees.
    """
    found = []
    for name, path in MODULES.items():
        for statement in ast.walk(ast.parse(path.read_text())):
            if isinstance(statement, ast.ImportFrom) and name.startswith(
                f"{(around := source_of(name, statement))}."
            ):
                loaded = {alias.name for alias in statement.names} - defined_names(around)
                found += [
                    f"{name}: {around}.{each}"
                    for each in sorted(loaded)
                    if f"{around}.{each}" not in MODULES
                ]
    assert found == []


def test_modules_of_a_library_are_taken_from_its_package():
    """`rapidfuzz` imports its modules: threads that import one of them, and others the package,
    would wait for each other.
    """
    taken = [
        name
        for name, path in MODULES.items()
        if re.search(r"(from|import) rapidfuzz\.", path.read_text())
    ]
    assert taken == []


@pytest.mark.slow
def test_packages_are_imported_by_many_threads_at_the_worst_moment():
    """Python raises nothing where one thread imports a package and others, meanwhile, each of its
    modules.
    """
    script = Path(__file__).with_name("imported_at_once.py")
    done = subprocess.run(
        [sys.executable, str(script), *PACKAGES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "nothing was raised\n"), done.stdout + done.stderr
