"""Requirements: demands on a text that a program checks and, if form allows, repairs.

`parse("words:80-200")` reads a spec; `kinds()`, and the constant `KINDS`, have every kind. To add a kind, register a parser for it
(`spec.register_kind`). Every object with the methods of `Requirement` is a requirement, whether a spec can name it or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .spec import RequirementKind, kinds, parse, reads_file, register_kind

if TYPE_CHECKING:
    KINDS: Mapping[str, RequirementKind]

__all__ = ["KINDS", "RequirementKind", "kinds", "parse", "reads_file", "register_kind"]


def __getattr__(name: str) -> Any:
    if name == "KINDS":
        return kinds()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
