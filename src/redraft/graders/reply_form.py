"""The scale of a judge's scores, and where a reply in a form of one's own holds them.

A scale is a pair of numbers: `(1, 10)` allows whole numbers only, `(0.0, 1.0)` decimals, too. A score is mapped linearly to
[0, 1]; one that is not on the scale is an error, never clamped. A reply form names keys of a JSON object: `{"score": "rating",
"reason": "why.text"}` reads the score under "rating" and the reason under "text" of the object "why".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from .. import checks
from ..errors import ConfigError
from .template import Kind

Paths: TypeAlias = tuple[tuple[str, str], ...]
ReadInput: TypeAlias = str | Mapping[str, str] | Paths

SHARED_PARTS = ("reason", "actions", "done")
FORM_PARTS: dict[Kind, tuple[str, ...]] = {
    "pointwise": ("score", *SHARED_PARTS),
    "pairwise": ("winner", *SHARED_PARTS),
    "listwise": ("ranking", "ties", *SHARED_PARTS),
}  # the first is required
MAX_SCALE_END = 1_000_000
MAX_PATH_CHARS = 200


class Scale(NamedTuple):
    """A scale of scores, from `low` to `high`. If one of them is a float, decimals are allowed."""

    low: float
    high: float

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are scores."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def description(self) -> str:
        """The scale in words."""
        return f"a {'whole ' if self.is_whole else ''}number from {self.low} to {self.high}"

    @property
    def numbers(self) -> range:
        """All scores of a scale of whole numbers."""
        return range(int(self.low), int(self.high) + 1)

    def holds(self, value: Any) -> bool:
        """Return whether a value of JSON is a number on this scale."""
        if value.__class__ is not int and (value.__class__ is not float or self.is_whole):
            return False
        in_range: bool = self.low <= value <= self.high
        return in_range

    def share(self, score: float) -> float:
        """Return the place of a score between the ends of the scale, in [0, 1]."""
        return (score - self.low) / (self.high - self.low) + 0.0  # (-0.0 becomes 0.0)


def parse_scale(value: Any, where: str = "") -> Scale:
    """Return a scale from a pair of numbers. Raises ConfigError."""
    numbers = list(value) if isinstance(value, list | tuple) else []
    if (
        len(numbers) != 2
        or not all(checks.is_number(n) and abs(n) <= MAX_SCALE_END for n in numbers)
        or not numbers[0] < numbers[1]
    ):
        expected = "a pair of numbers, the worst score first: (1, 10) for whole numbers, (0.0, 1.0) for decimals"
        raise checks.invalid_argument(f"{where}scale", expected, value)
    return Scale(*numbers)


def parse_read(value: Any, kind: Kind, where: str = "") -> Paths:
    """Return (part, path) pairs for a reply. A text is the path of the first part. Raises ConfigError."""
    parts = FORM_PARTS[kind]
    paths = {parts[0]: value} if isinstance(value, str) else dict(value) if _is_pairs(value) else value
    if not isinstance(paths, Mapping) or not all(map(_is_path, paths.values())):
        expected = f'the key of the {parts[0]}, or a mapping such as {{"{parts[0]}": "{parts[0]}", "reason": "why.text"}}'
        raise checks.invalid_argument(f"{where}read", expected, value)
    if unknown := [part for part in paths if part not in parts]:
        raise ConfigError(f"{where}read: {checks.unknown_name_message('part', str(unknown[0]), parts)}")
    if parts[0] not in paths:
        raise ConfigError(f"{where}read: it must name the key of the {parts[0]}, got {checks.format_value(value)}")
    return tuple(paths.items())


def _is_pairs(value: Any) -> bool:
    """Return whether a value is what `parse_read` returns."""
    return isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)


def _is_path(path: Any) -> bool:
    return isinstance(path, str) and len(path) <= MAX_PATH_CHARS and all(key.strip() for key in path.split("."))
