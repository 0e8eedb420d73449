"""Intervals that stay valid however often one looks: a confidence sequence for the mean of bounded
numbers.

An ordinary interval is valid for one look at a number of rows that was fixed before. Who looks
after every row, and stops when the interval excludes 0, is wrong far more often than the interval
says. Needs `redraft[validate]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

from ..base import checks
from ..errors import ConfigError
from ..plans.quality.calibration import check_confidence
from . import statistics as m

GRID = 2000  # means that are tested; the interval is as exact as their distance


@dataclass(frozen=True, slots=True)
class ConfidenceSequence:
    """Intervals of a mean after each row, which all contain it with the stated probability.

    Attributes:
        low: The lower end after each row; it never falls.
        high: The upper end after each row; it never rises.
        confidence: The probability that every interval contains the mean.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    confidence: float = 0.95

    @property
    def interval(self) -> tuple[float, float]:
        """The interval after the last row."""
        return self.low[-1], self.high[-1]

    def decided_after(self, value: float = 0.0) -> int | None:
        """Return after how many rows the interval excludes a value for the first time; None if it
        never does.
        """
        rows = enumerate(zip(self.low, self.high, strict=True), 1)
        return next((n for n, (low, high) in rows if not low <= value <= high), None)


def confidence_sequence(
    values: Sequence[float], *, bounds: tuple[float, float] = (0.0, 1.0), confidence: float = 0.95
) -> ConfidenceSequence:
    """Return intervals of the mean that may be looked at after every row.

    Args:
        values: The numbers in the order in which they arrived. For differences of scores, `bounds`
            is (-1, 1).
        bounds: The lowest and the highest possible number.
        confidence: The probability that all intervals together contain the mean.

    The rows must arrive in random order. Average what belongs to one task before. The intervals are
    those of hedged betting: for each possible mean, two gamblers bet that the numbers are higher or
    lower; a mean is excluded once their joint capital has reached 1 / (1 - confidence).

    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"
    (2024).

    Raises:
        ConfigError: There is no value, a value is outside the bounds, or the bounds are none.
    """
    check_confidence(confidence)
    if not (len(bounds) == 2 and all(map(checks.is_number, bounds)) and bounds[0] < bounds[1]):
        raise checks.invalid_argument(
            "bounds", "the lowest and the highest possible number, such as (-1, 1)", bounds
        )
    low, high = m.finite_numbers("bounds", bounds)
    numbers = m.finite_numbers("values", values, low, high)
    if not numbers:
        raise ConfigError("values: there is none")
    ends = _betting_bounds([(x - low) / (high - low) for x in numbers], 1 - confidence)
    scale = high - low
    return ConfidenceSequence(
        tuple(low + scale * x for x, _ in ends), tuple(low + scale * x for _, x in ends), confidence
    )


def _betting_bounds(values: Sequence[float], alpha: float) -> list[tuple[float, float]]:
    """Return the lowest and the highest mean that is not excluded, after each value in [0, 1]."""
    np: Any = m.import_library("numpy")
    means = np.linspace(0, 1, GRID + 1)
    up, down = np.zeros(GRID + 1), np.zeros(GRID + 1)  # the logarithm of each gambler's capital
    limit = log(2 / alpha)  # half of the money is in each gambler's hands
    largest_up, largest_down = 0.5 / np.maximum(means, 1e-12), 0.5 / np.maximum(1 - means, 1e-12)
    alive = np.ones(GRID + 1, dtype=bool)
    total, squares, variance = 0.5, 0.25, 0.25
    ends: list[tuple[float, float]] = []
    for n, x in enumerate(values, 1):
        bet = sqrt(2 * limit / (variance * n * log(n + 1)))
        up += np.log1p(np.minimum(bet, largest_up) * (x - means))
        down += np.log1p(-np.minimum(bet, largest_down) * (x - means))
        alive &= np.maximum(up, down) < limit
        total += x
        squares += (x - total / (n + 1)) ** 2
        variance = squares / (n + 1)
        kept = np.flatnonzero(alive)
        # the numbers contradict every mean, which happens with a probability of at most alpha
        if not len(kept):
            ends.append(ends[-1])
            continue
        ends.append((max(0.0, (int(kept[0]) - 1) / GRID), min(1.0, (int(kept[-1]) + 1) / GRID)))
    return ends
