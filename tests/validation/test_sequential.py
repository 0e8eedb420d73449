"""Confidence sequences: valid at every look, narrower than the one that ignores the variance, and
errors.
"""

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.validation import confidence_sequence


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=60))
def test_intervals_only_shrink(values):
    """The ends are in the bounds, in order, and never move outwards."""
    found = confidence_sequence(values, bounds=(-1, 1))
    assert len(found.low) == len(found.high) == len(values)
    assert all(x <= y for x, y in zip(found.low, found.low[1:], strict=False))
    assert all(x >= y for x, y in zip(found.high, found.high[1:], strict=False))
    assert all(-1 <= low <= high <= 1 for low, high in zip(found.low, found.high, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "sd"), [(0.0, 0.15), (0.0, 0.5), (0.1, 0.3)])
def test_looking_after_every_row_is_allowed(mean, sd):
    """In at most 5 % of 100 worlds does any of 120 intervals miss the mean (with the error of the
    simulation).
    """
    rng, misses = random.Random(1), 0
    for _ in range(100):
        values = [min(1.0, max(-1.0, rng.gauss(mean, sd))) for _ in range(120)]
        misses += confidence_sequence(values, bounds=(-1, 1)).decided_after(mean) is not None
    assert misses <= 0.05 * 100 + 3 * sqrt(0.05 * 0.95 * 100)


@pytest.mark.parametrize(("rows", "half_width"), [(25, 0.133), (100, 0.048), (400, 0.022)])
def test_widths_are_those_of_the_method(rows, half_width):
    """For a standard deviation of 0.15 on the scale from 0 to 1."""
    rng = random.Random(2)
    widths = []
    for _ in range(12):
        low, high = confidence_sequence(
            [min(1, max(0, rng.gauss(0.6, 0.15))) for _ in range(rows)]
        ).interval
        widths.append((high - low) / 2)
    assert sum(widths) / 12 == pytest.approx(half_width, rel=0.12)


def test_a_clear_difference_is_decided_early():
    """And it stays decided."""
    rng = random.Random(3)
    values = [min(1, max(-1, rng.gauss(0.3, 0.2))) for _ in range(300)]
    found = confidence_sequence(values, bounds=(-1, 1))
    decided = found.decided_after(0)
    assert decided < 60
    assert found.low[decided - 1] > 0 or found.high[decided - 1] < 0
    assert found.decided_after(0.3) is None


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        ([], {}, "values: there is none"),
        ([0.5, 1.2], {}, r"values\[1\] must be a number in \[0, 1\], got 1.2"),
        ([0.5], {"bounds": (1, 0)}, "bounds must be the lowest and the highest possible number"),
        ([0.5], {"confidence": 1}, "confidence must be a number between 0 and 1"),
    ],
)
def test_errors_name_the_argument(values, arguments, message):
    """And what is allowed."""
    with pytest.raises(ConfigError, match=message):
        confidence_sequence(values, **arguments)
