"""From whatever a user names as a grader to a grader."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from ..contracts import Comparer, Grader, Requirement
from ..core.errors import ConfigError
from ..requirements import KINDS, parse
from .functions import FunctionGrader
from .judge import Judge
from .ranker import Ranker
from .requirement import RequirementGrader

NAMED: dict[str, tuple[Callable[[], Grader | Comparer], str]] = {
    "judge": (Judge, "an LLM judge: instructions, correctness, completeness, clarity; says what to change"),
    "ranker": (Ranker, "an LLM that ranks all answers so far; its reason feeds the next draft"),
}


def as_grader(given: Any) -> Grader | Comparer:
    """A grader from a name, a requirement's spec, a requirement, a function, or a grader. Raises ConfigError."""
    if isinstance(given, str):
        return _named(given)
    if isinstance(given, type):
        raise ConfigError(f"a grader is an instance: write {given.__name__}(...), not the class")
    if isinstance(given, Grader | Comparer):
        return given
    if isinstance(given, Requirement):
        return RequirementGrader(given)
    if callable(given):
        return FunctionGrader(given)
    raise ConfigError(f"a grader is a name, a function, a requirement or has a `grade` method, got {given!r}")


def _named(name: str) -> Grader | Comparer:
    if name in NAMED:
        return NAMED[name][0]()
    kind = name.partition(":")[0]
    if ":" in name or kind in KINDS:
        return RequirementGrader(parse(name))
    known = [*NAMED, *KINDS]
    near = get_close_matches(name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigError(f"unknown grader {name!r}; {hint}graders: {', '.join(NAMED)}; requirements: {', '.join(KINDS)}")
