"""Durations and moments as people read them."""

import time
from datetime import UTC, datetime

import pytest

from redraft.text import format_duration, format_time_in


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (5, "5 s"),
        (90, "90 s"),
        (120, "2 min"),
        (125.4, "2 min 5 s"),
        (600.0, "10 min"),
        (3599.6, "1 h"),
        (5400, "1 h 30 min"),
        (86_400, "1 d"),
        (187_200, "2 d 4 h"),
        (86_460, "1 d 1 min"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, told):
    """Smaller units are left out."""
    assert format_duration(seconds) == told


def test_a_moment_has_its_date():
    """A pause may last until the next day."""
    told = datetime.strptime(format_time_in(86_400), "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).timestamp()
    assert told == pytest.approx(time.time() + 86_400, abs=120)
    assert format_time_in(1e15) == "the year 10000"
