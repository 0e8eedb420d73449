"""Giving a grader its weight, or a veto."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .. import checks

MAX_REPEATS = 1000


@dataclass(frozen=True)
class GraderSpec:
    """A grader with its weight (> 0), whether it is a must, and how often it looks at each candidate (>= 1)."""

    grader: Any
    weight: float = 1.0
    must: bool = False
    repeats: int = 1

    def __post_init__(self) -> None:
        checks.positive("weight", self.weight)
        checks.whole_number("looks", self.repeats, 1, MAX_REPEATS)
        checks.flag("must", self.must)


def with_weight(grader: Any, weight: float, *, repeats: int = 1) -> GraderSpec:
    """A grader that counts `weight` times in the mean of all, and looks `looks` times (its score is their mean)."""
    return replace(as_grader_spec(grader), weight=weight, repeats=repeats)


def must(grader: Any) -> GraderSpec:
    """A grader that gates: a candidate that it does not score 1 loses to every one that it does."""
    return replace(as_grader_spec(grader), must=True)


def as_grader_spec(grader: Any) -> GraderSpec:
    return grader if isinstance(grader, GraderSpec) else GraderSpec(grader)
