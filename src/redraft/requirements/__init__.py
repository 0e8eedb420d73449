"""Demands on a text: a program checks them and, if form allows, repairs the text.

`parse("words:80-200")` reads a spec; `kinds()`, and the constant `KINDS`, have every kind. To add a
kind, register a parser for it (`spec.register_kind`). Every object with the methods of
`Requirement` is a requirement, whether a spec can name it or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .spec import RequirementKind, kinds, parse, reads_file, register_kind

    KINDS: Mapping[str, RequirementKind]

__all__ = ["KINDS", "RequirementKind", "kinds", "parse", "reads_file", "register_kind"]


_load = attribute_loader(__name__, dict.fromkeys(set(__all__) - {"KINDS"}, "spec"))


def __getattr__(name: str) -> Any:
    return _load("kinds")() if name == "KINDS" else _load(name)
