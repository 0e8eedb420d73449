"""Giving a grader its weight, or a veto."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .. import checks

MOST_LOOKS = 1000


@dataclass(frozen=True)
class Seated:
    """A grader with its weight (> 0), whether it is a must, and how often it looks at each candidate (>= 1)."""

    grader: Any
    weight: float = 1.0
    must: bool = False
    looks: int = 1

    def __post_init__(self) -> None:
        checks.positive("weight", self.weight)
        checks.whole_number("looks", self.looks, 1, MOST_LOOKS)
        checks.flag("must", self.must)


def weighted(grader: Any, weight: float, *, looks: int = 1) -> Seated:
    """A grader that counts `weight` times in the mean of all, and looks `looks` times (its score is their mean)."""
    return replace(as_seated(grader), weight=weight, looks=looks)


def must(grader: Any) -> Seated:
    """A grader that gates: a candidate that it does not score 1 loses to every one that it does."""
    return replace(as_seated(grader), must=True)


def as_seated(grader: Any) -> Seated:
    return grader if isinstance(grader, Seated) else Seated(grader)
