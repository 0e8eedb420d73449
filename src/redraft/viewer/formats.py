"""Numbers and times as the pages write them: an unknown value is a dash, never 0."""

from __future__ import annotations

from typing import Any

from ..base.money import usd_amount
from ..base.text import format_duration

UNKNOWN = "–"
HEAT_STEPS = 10


def score(value: float | None, digits: int = 2) -> str:
    """Format a score."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def difference(value: float | None, digits: int = 2) -> str:
    """Format a difference with its sign; a difference of nothing has none."""
    if value is None:
        return UNKNOWN
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


def interval(value: tuple[float, float] | None, digits: int = 2) -> str:
    """Format the ends of an interval of scores."""
    return UNKNOWN if value is None else f"{value[0]:.{digits}f} to {value[1]:.{digits}f}"


def difference_interval(value: Any, digits: int = 3) -> str:
    """Format the ends of an interval of differences; what is no pair of numbers is unknown."""
    match value:
        case (int() | float() as low, int() | float() as high):
            return f"{low:+.{digits}f} to {high:+.{digits}f}"
    return UNKNOWN


def number(value: float | None) -> str:
    """Format a count, or an amount with few digits."""
    if value is None:
        return UNKNOWN
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.3g}"
    )


def count(value: float | None, noun: str) -> str:
    """Format a count with its noun: "1 row", "2 rows", "– rows"."""
    return f"{number(value)} {noun if value == 1 else f'{noun}s'}"


def money(usd: float | None) -> str:
    """Format an amount in USD."""
    return UNKNOWN if usd is None else f"${usd_amount(usd)}"


def seconds(value: float | None) -> str:
    """Format a duration."""
    return UNKNOWN if value is None else format_duration(value)


def percent(share: float | None) -> str:
    """Format a share."""
    return UNKNOWN if share is None else f"{share:.0%}"


def heat(value: float | None) -> str:
    """Return the class of a cell by its score: "heat-0" to "heat-10", or "heat-none"."""
    return "heat-none" if value is None else f"heat-{round(value * HEAT_STEPS)}"


def sign_class(value: float | None, tolerance: float = 5e-4) -> str:
    """Return the class of a difference: "up", "down" or "level"."""
    return "level" if value is None or abs(value) < tolerance else "up" if value > 0 else "down"


def time(iso: Any) -> str:
    """Format an ISO 8601 time in UTC to the minute."""
    return str(iso)[:16].replace("T", " ") + " UTC" if iso else UNKNOWN


FILTERS = {
    function.__name__: function
    for function in (
        score,
        difference,
        interval,
        difference_interval,
        number,
        count,
        money,
        seconds,
        percent,
        heat,
        sign_class,
        time,
    )
}
"""The filters of the templates."""
