"""Names of a package that load their module when they are first used, so that importing the package loads only what is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attribute_loader(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package; `modules` has the module of each name, relative to the package."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(package)
        value = getattr(import_module(f".{modules[name]}", package), name)
        setattr(module, name, value)
        return value

    return load
