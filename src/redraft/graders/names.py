"""From whatever a user names as a grader to a grader."""

from __future__ import annotations

from typing import Any

from .. import checks
from ..errors import ConfigError
from ..protocols import Comparer, Grader, Requirement
from . import registry
from .functions import FunctionGrader
from .requirement import RequirementGrader


def as_grader(value: Any) -> Grader | Comparer:
    """A grader from a name, a requirement's spec, a requirement, a function, or a grader. Raises ConfigError."""
    if isinstance(value, str):
        found: Grader | Comparer = registry.grader_from_spec(value)
        return found
    if isinstance(value, type):
        raise ConfigError(f"a grader is an instance: write {value.__name__}(...), not the class")
    if isinstance(value, Grader | Comparer):
        return value
    if isinstance(value, Requirement):
        return RequirementGrader(value)
    if callable(value):
        return FunctionGrader(value)
    raise ConfigError(f"a grader is a name, a function, a requirement or has a `grade` method, got {checks.format_value(value)}")
