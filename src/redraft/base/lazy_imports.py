"""Names of a package that load their module when they are first used, so that importing the package
loads only what is needed; and what the core uses of packages above it, which it does not import.

It is also what lets many threads import modules of Redraft at once. Python has a lock for each
module. A thread that imports `P.child` takes its lock first, and then waits for the package `P`. If
the `__init__` of `P` imported `P.child`, a thread that imports `P` would hold the lock of `P` and
wait for `P.child`, and Python would raise an error in one of the two. Three rules forbid this:

1. No `__init__` imports a module of its own package, or one below it, while it is imported. A
   function in it may, when called.
2. Modules have no import cycles, where packages side by side count as one module each (`acyclic` in
   pyproject.toml).
3. A module takes from the packages that it lies in only their modules (`from .. import checks`) and
   what their `__init__` defines itself: a name that loads on first use would be an import of a
   module beside it that rule 2 does not see.

Then no threads wait for each other in a circle. While a module is imported, it waits for what it
imports and for the packages that it lies in. Were there a circle, take the smallest package around
it. The package itself is not in it, since it imports nothing that is inside it (1). So the circle
goes through two or more of the modules and packages side by side in it. Only imports lead from one
of these to another, which makes a cycle of imports between them (2, 3). No module of Redraft calls
what loads modules by their name (`import_module`) while it is imported, and a function that imports
something when it is called later begins without a lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from .own_code import PACKAGE


def attribute_loader(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `modules` has the module of each name, relative to the
    package.

    `dir` of the package is its `__all__`, so that completion finds the names before their first
    use.
    """
    module = sys.modules[package]
    vars(module).setdefault("__dir__", lambda: module.__all__)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{modules[name]}", package), name)
        setattr(module, name, value)
        return value

    return load


@cache
def extension(name: str) -> Any:
    """Return the module by which a room above the core extends it, such as "observer".

    The core imports none of these packages: `EXTENSIONS` in `redraft/__init__`, which puts all
    together, says which module it is, and it is loaded when it is first asked for.
    """
    return import_module(f".{sys.modules[PACKAGE].EXTENSIONS[name]}", PACKAGE)
