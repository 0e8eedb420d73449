"""Ranges of counts, in the form that specs use. Nothing here knows what is counted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigError

ALLOWED_FORMS = "80-200 (from, to), 80- (at least), -200 (at most), 100 (exactly), or <300, <=300, >80, >=80, =100"

_FROM_TO = re.compile(r"([0-9]{0,9})(?:(-)([0-9]{0,9}))?")
_COMPARISON = re.compile(r"(>=|<=|=|<|>)\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Range:
    """From `minimum` to `maximum`, both included; None means no upper bound. Raises ConfigError for an empty range."""

    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ConfigError(f"nothing lies between {self.minimum} and {self.maximum}; allowed: {ALLOWED_FORMS}")
        if self.minimum == 0 and self.maximum is None:
            raise ConfigError(f"every count is at least 0, so this demands nothing; allowed: {ALLOWED_FORMS}")

    def __contains__(self, count: float) -> bool:
        return self.minimum <= count and (self.maximum is None or count <= self.maximum)

    def __str__(self) -> str:
        """Return the canonical form: 80-200, 80-, -200 or 100."""
        if self.maximum is None:
            return f"{self.minimum}-"
        if self.minimum == self.maximum:
            return str(self.minimum)
        return f"{self.minimum or ''}-{self.maximum}"

    @property
    def comparison(self) -> str:
        """The form that follows a text in a spec: >=8, <=2, =3 or =2-4."""
        if self.maximum is None:
            return f">={self.minimum}"
        if self.minimum == 0:
            return f"<={self.maximum}"
        return f"={self}"

    @property
    def description(self) -> str:
        """In words: "80 to 200", "at least 80", "at most 200", "exactly 100", "no"."""
        if self.maximum is None:
            return f"at least {self.minimum}"
        if self.minimum == self.maximum:
            return f"exactly {self.minimum}" if self.minimum else "no"
        return f"{self.minimum} to {self.maximum}" if self.minimum else f"at most {self.maximum}"

    def nearness(self, count: float) -> float:
        """Return 1 for a count in the range, else the ratio of the smaller to the larger of the count and the bound."""
        if count < self.minimum:
            return (max(count, 0) + 1) / (self.minimum + 1)
        return 1.0 if count in self else ((self.maximum or 0) + 1) / (count + 1)

    def surplus(self, count: int) -> int:
        """Return by how many `count` exceeds the range."""
        return 0 if self.maximum is None else max(0, count - self.maximum)

    def shortfall(self, count: int) -> int:
        """Return by how many `count` falls short of the range."""
        return max(0, self.minimum - count)


NO_OCCURRENCES = Range(0, 0)


def parse_range(argument: str) -> Range:
    """Return the range that a spec's argument stands for. Raises ConfigError for anything else."""
    argument = argument.strip()
    if compared := _COMPARISON.fullmatch(argument):
        return range_from_operator(compared[1], int(compared[2]))
    between = _FROM_TO.fullmatch(argument)
    if not between or not (between[1] or between[3]):
        raise ConfigError(f"{argument!r} is not a range; allowed: {ALLOWED_FORMS}")
    least = int(between[1] or 0)
    if not between[2]:
        return Range(least, least)
    return Range(least, int(between[3]) if between[3] else None)


def range_from_operator(operator: str, bound: int) -> Range:
    """Return the counts that compare with `bound` as the operator says."""
    if operator == "<" and bound == 0:
        raise ConfigError(f"no count is less than 0; allowed: {ALLOWED_FORMS}")
    ranges = {
        ">=": lambda: Range(bound),
        ">": lambda: Range(bound + 1),
        "<=": lambda: Range(0, bound),
        "<": lambda: Range(0, bound - 1),
        "=": lambda: Range(bound, bound),
    }
    return ranges[operator]()


def format_count(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: "1 word", "112 words"."""
    return f"{count:d} {one}" if count == 1 else f"{count:d} {many or one + 's'}"
