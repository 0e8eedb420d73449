"""Measured values with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

MIN_ROWS = 10  # on fewer rows nothing is proven


@dataclass(frozen=True, slots=True)
class Measure:
    """A value, its 95 % interval, the number of rows, and the value of a grader that guesses. None means unknown."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    chance: float | None = None
    about: str = ""

    @property
    def beats_chance(self) -> bool:
        """Whether the whole interval lies above chance, on enough rows."""
        return self.n >= MIN_ROWS and self.low is not None and self.chance is not None and self.low > self.chance


@dataclass(frozen=True, slots=True)
class ClassRates:
    """Precision, recall and F1 of one class, each None if unknown, and the number of rows that truly have it."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    n: int
