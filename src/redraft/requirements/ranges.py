"""How many: a range of counts, read from and written to the form that specs use. Knows nothing of what is counted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigError

ALLOWED = "80-200 (from, to), 80- (at least), -200 (at most), 100 (exactly), or <300, <=300, >80, >=80, =100"

_BETWEEN = re.compile(r"([0-9]{0,9})(?:(-)([0-9]{0,9}))?")
_COMPARED = re.compile(r"(>=|<=|=|<|>)\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Range:
    """From `least` to `most`, both included; `most` None is no upper bound. Raises ConfigError where nothing can lie in it."""

    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 0 or (self.most is not None and self.most < self.least):
            raise ConfigError(f"nothing lies between {self.least} and {self.most}; allowed: {ALLOWED}")
        if self.least == 0 and self.most is None:
            raise ConfigError(f"any count is at least 0, so this demands nothing; allowed: {ALLOWED}")

    def __contains__(self, count: float) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        """The canonical form: 80-200, 80-, -200 or 100."""
        if self.most is None:
            return f"{self.least}-"
        if self.least == self.most:
            return str(self.least)
        return f"{self.least or ''}-{self.most}"

    @property
    def comparison(self) -> str:
        """The form that follows a text in a spec: >=8, <=2, =3 or =2-4."""
        if self.most is None:
            return f">={self.least}"
        if self.least == 0:
            return f"<={self.most}"
        return f"={self}"

    @property
    def words(self) -> str:
        """In words: "80 to 200", "at least 80", "at most 200", "exactly 100", "no"."""
        if self.most is None:
            return f"at least {self.least}"
        if self.least == self.most:
            return f"exactly {self.least}" if self.least else "no"
        return f"{self.least} to {self.most}" if self.least else f"at most {self.most}"

    def nearness(self, count: float) -> float:
        """How near a count comes to lying in it: 1 where it does, else the smaller of it and the bound by the larger."""
        if count < self.least:
            return (max(count, 0) + 1) / (self.least + 1)
        return 1.0 if count in self else ((self.most or 0) + 1) / (count + 1)

    def surplus(self, count: int) -> int:
        """How many of `count` are too many."""
        return 0 if self.most is None else max(0, count - self.most)

    def missing(self, count: int) -> int:
        """How many there are too few."""
        return max(0, self.least - count)


NONE = Range(0, 0)  # where nothing of it is allowed


def as_range(argument: str) -> Range:
    """The range that a spec's argument means. Raises ConfigError for anything else."""
    argument = argument.strip()
    if compared := _COMPARED.fullmatch(argument):
        return compare(compared[1], int(compared[2]))
    between = _BETWEEN.fullmatch(argument)
    if not between or not (between[1] or between[3]):
        raise ConfigError(f"{argument!r} is no range; allowed: {ALLOWED}")
    least = int(between[1] or 0)
    if not between[2]:
        return Range(least, least)
    return Range(least, int(between[3]) if between[3] else None)


def compare(operator: str, bound: int) -> Range:
    """The counts that stand to `bound` as the operator says."""
    if operator == "<" and bound == 0:
        raise ConfigError(f"no count is less than 0; allowed: {ALLOWED}")
    ranges = {
        ">=": lambda: Range(bound),
        ">": lambda: Range(bound + 1),
        "<=": lambda: Range(0, bound),
        "<": lambda: Range(0, bound - 1),
        "=": lambda: Range(bound, bound),
    }
    return ranges[operator]()


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 word", "112 words"."""
    return f"{count:d} {one}" if count == 1 else f"{count:d} {many or one + 's'}"
