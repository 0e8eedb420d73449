"""The scale of a judge's scores, and where a reply in a form of one's own holds them.

A scale is a pair of numbers: `(1, 10)` allows whole numbers only, `(0.0, 1.0)` decimals, too. A
score is mapped linearly to [0, 1]; one that is not on the scale is an error, never clamped. A reply
form names keys of a JSON object: `{"score": "rating", "reason": "why.text"}` reads the score under
"rating" and the reason under "text" of the object "why". A form of one answer without a score is
that of a critic. A pydantic model is a form, too (see `judging.typed_form`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple, TypeAlias

from ..base import checks
from ..errors import ConfigError
from .template import Kind

Paths: TypeAlias = tuple[tuple[str, str], ...]
ReadInput: TypeAlias = str | Mapping[str, str] | Paths | type[Any]

SHARED_PARTS = ("reason", "actions", "done")
FORM_PARTS: dict[Kind, tuple[str, ...]] = {
    "pointwise": ("score", *SHARED_PARTS),
    "pairwise": ("winner", *SHARED_PARTS),
    "listwise": ("ranking", "ties", *SHARED_PARTS),
}
VERDICT_PARTS: dict[Kind, tuple[str, ...]] = {
    "pointwise": ("score", "actions", "done"),
    "pairwise": ("winner",),
    "listwise": ("ranking",),
}
"""The parts of which a form needs at least one."""
TEXT_PARTS = {"reason", "actions"}  # two parts that may have the same key
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
        expected = (
            "a pair of numbers, the worst score first: (1, 10) for whole numbers, (0.0, 1.0) for "
            "decimals"
        )
        raise checks.invalid_argument(f"{where}scale", expected, value)
    return Scale(*numbers)


def parse_read(value: Any, kind: Kind, where: str = "") -> Paths:
    """Return (part, path) pairs for a reply. A text is the path of the first part. Raises
    ConfigError.
    """
    parts, verdicts = FORM_PARTS[kind], VERDICT_PARTS[kind]
    paths = (
        {parts[0]: value} if isinstance(value, str) else dict(value) if _is_pairs(value) else value
    )
    if not isinstance(paths, Mapping) or not all(map(_is_path, paths.values())):
        typed = (
            ", or a pydantic model with such fields" if kind == "pointwise" and not where else ""
        )
        expected = (
            f'the key of the {parts[0]}, or a mapping such as {{"{parts[0]}": "{parts[0]}", '
            f'"reason": "why.text"}}{typed}'
        )
        raise checks.invalid_argument(f"{where}read", expected, value)
    if unknown := [part for part in paths if part not in parts]:
        raise ConfigError(
            f"{where}read: {checks.unknown_name_message('part', str(unknown[0]), parts)}"
        )
    if not set(verdicts) & set(paths):
        critic = f" (or, for a critic, of {' or '.join(verdicts[1:])})" if verdicts[1:] else ""
        raise ConfigError(
            f"{where}read: it must name the key of the {parts[0]}{critic}, got "
            f"{checks.format_value(value)}"
        )
    for (part, path), (other, inner) in permutations(paths.items(), 2):
        if inner.startswith(f"{path}.") or (inner == path and not {part, other} <= TEXT_PARTS):
            raise ConfigError(
                f"{where}read: {part} is at {path!r} and {other} at {inner!r}, and no reply can "
                "have both"
            )
    return tuple(paths.items())


def check_scale(scale: Scale | None, read: Paths | None, where: str = "") -> None:
    """Raise ConfigError for a form with a score and no scale, and for one with a scale and no
    score.
    """
    has_score = read is not None and "score" in dict(read)
    if has_score and scale is None:
        raise ConfigError(
            f"{where}read needs a scale, the worst and the best score of the template, such as "
            "scale=(1, 10)"
        )
    if read is not None and scale is not None and not has_score:
        raise ConfigError(
            f"{where}scale: read names no key of a score, so that there is nothing on a scale: "
            "leave it out"
        )


def _is_pairs(value: Any) -> bool:
    """Return whether a value is what `parse_read` returns."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    )


def _is_path(path: Any) -> bool:
    return (
        isinstance(path, str)
        and len(path) <= MAX_PATH_CHARS
        and all(key.strip() for key in path.split("."))
    )
