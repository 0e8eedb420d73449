"""From whatever a user names as a grader to a grader."""

from __future__ import annotations

from typing import Any

from .. import checks
from ..errors import ConfigError
from ..protocols import Comparer, Grader, Requirement
from . import registry
from .functions import FunctionGrader
from .requirement import RequirementGrader


def as_grader(given: Any) -> Grader | Comparer:
    """A grader from a name, a requirement's spec, a requirement, a function, or a grader. Raises ConfigError."""
    if isinstance(given, str):
        found: Grader | Comparer = registry.named(given)
        return found
    if isinstance(given, type):
        raise ConfigError(f"a grader is an instance: write {given.__name__}(...), not the class")
    if isinstance(given, Grader | Comparer):
        return given
    if isinstance(given, Requirement):
        return RequirementGrader(given)
    if callable(given):
        return FunctionGrader(given)
    raise ConfigError(f"a grader is a name, a function, a requirement or has a `grade` method, got {checks.shown(given)}")
