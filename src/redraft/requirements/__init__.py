"""Requirements: demands on a text that can be checked and, where form allows, repaired.

`parse("words:80-200")` reads a spec; `KINDS` lists every kind. A kind is added by registering a reader for it
(`spec.kind`); whatever has the `Requirement` contract is one, in a spec or not.
"""

from __future__ import annotations

from . import casing as case
from . import content, data, language, layout
from . import length as lengths
from . import punctuation as marks
from .spec import KINDS, RequirementKind, parse, reads_file, register_kind

_KIND_MODULES = (lengths, content, case, marks, layout, data, language)  # imported for the kinds they register

__all__ = ["KINDS", "RequirementKind", "parse", "reads_file", "register_kind"]
