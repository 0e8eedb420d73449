"""Requirements: demands on a text that a program checks and, if form allows, repairs.

`parse("words:80-200")` reads a spec; `KINDS` lists every kind. To add a kind, register a parser for it (`spec.register_kind`).
Every object with the methods of `Requirement` is a requirement, whether a spec can name it or not.
"""

from __future__ import annotations

from . import content, data, language, layout, length, typography
from .spec import KINDS, RequirementKind, parse, reads_file, register_kind

_KIND_MODULES = (length, content, typography, layout, data, language)  # imported for the kinds they register

__all__ = ["KINDS", "RequirementKind", "parse", "reads_file", "register_kind"]
