"""What the rest of a run will take, from a pilot: a stratified sample of its rows, whose results
are kept.

The sample is systematic: rows are ordered by whether they have a response and by size, and every
k-th one is taken. A total is the mean of a sampled row times the number of other rows; its interval
is that of a prediction, with Student's t.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import exp, sqrt
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import Any

from ..base.money import usd_amount
from ..base.text import format_duration, pluralize, utf8_size
from ..loop.trace import Trace
from .dataset import BatchRow

LEVEL = 0.8  # the share of forecasts that shall hold
# the level of the intervals: costs are skewed, which makes those of the stated level hold too
# rarely
CAUTIOUS_LEVEL = 0.9
MAX_EXPONENT = 20.0  # of the factor between the ends and the middle of a range
MAX_SIZE = 2**31 - 1
MAX_ROW = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ForecastRange:
    """A forecast: the expected amount, and the range that contains the actual one in at least 80%
    of runs.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RunForecast:
    """What the rows that the pilot left out will take. Retries are not included; answers from the
    cache count like others.

    Rows that cost many times as much as any in the pilot are not foreseen: a pilot of 20 rows shows
    none that are rarer than one in twenty.

    Attributes:
        pilot: The number of rows in the pilot.
        rows: The number of other rows.
        calls: The model calls for them.
        tokens: Their tokens; None if an endpoint did not report any.
        cost: Their cost in USD; None if a price is unknown.
        seconds: Their duration; None if it is unknown how many calls run at the same time. The
            range reaches from all calls in flight that the settings allow to no more of them than
            in the pilot.
        uplift: By how much the best answer of a row is expected to score above the first, with its
            95% interval; None without two scores.
    """

    pilot: int
    rows: int
    calls: ForecastRange
    tokens: ForecastRange | None
    cost: ForecastRange | None
    seconds: ForecastRange | None
    uplift: ForecastRange | None

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def summary(self) -> list[str]:
        """Return lines for people."""
        lines = [
            (
                f"forecast for the other {pluralize(self.rows, 'row')}, from {self.pilot:,} (80 "
                "% of forecasts hold):"
            )
        ]
        amounts = (
            ("calls", self.calls, "{:,.0f}".format),
            ("tokens", self.tokens, "{:,.0f}".format),
            ("cost in USD", self.cost, usd_amount),
        )
        for name, found, form in amounts:
            lines.append(f"  {name} {_range_text(found, form)}")
        lines.append(f"  time {_range_text(self.seconds, format_duration)}")
        if self.uplift:
            lines.append(f"  uplift {_range_text(self.uplift, '{:+.3f}'.format)} (95%)")
        return lines


def _range_text(found: ForecastRange | None, form: Any) -> str:
    return (
        "unknown"
        if found is None
        else f"{form(found.value)} ({form(found.low)} to {form(found.high)})"
    )


@dataclass(frozen=True, slots=True)
class PilotRow:
    """What a row of the pilot took; None: unknown. `seconds` is the sum over its calls."""

    calls: float
    tokens: float | None
    cost: float | None
    seconds: float | None


def forecast_total(values: Sequence[float | None], rows: int) -> ForecastRange | None:
    """Return the total of `rows` further rows, from the amounts of sampled ones; None if one is
    unknown.

    With mean m and standard deviation s of n sampled rows, the total of R others is R m, and its
    standard error s sqrt(R^2 / n + R): the error of the mean, and the chance of the others. Costs
    are skewed, and a sample shows few of the largest: s is that of the sample and two more rows,
    one of 0 (a row that fails) and one of the largest amount and m, and the range is symmetric for
    the logarithm of the total.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean = fmean(known)
    total = rows * mean
    if not total:
        return ForecastRange(total, total, total)
    if len(known) < 2:
        return ForecastRange(total, 0.0, 2 * total)
    relative_error = (
        stdev([*known, 0.0, max(known) + mean]) / mean * sqrt(1 / len(known) + 1 / rows)
    )
    factor = exp(
        min(_t_quantile(0.5 + CAUTIOUS_LEVEL / 2, len(known) - 1) * relative_error, MAX_EXPONENT)
    )
    return ForecastRange(total, total / factor, total * factor)


def forecast_seconds(
    busy: ForecastRange | None, concurrency: float | None, pilot: int, rows: int, limit: int
) -> ForecastRange | None:
    """Return the duration of `rows` rows whose calls take `busy` seconds one after another; None if
    it is unknown.

    Args:
        busy: The seconds of all their calls.
        concurrency: How many calls ran at the same time in the pilot; None if none ran.
        pilot: The number of rows that ran in the pilot.
        rows: The number of other rows.
        limit: The most calls at the same time.
    """
    if busy is None or concurrency is None or concurrency <= 0:
        return None
    at_once = max(1.0, concurrency)
    most = max(at_once, float(min(limit, max(1, rows))))
    expected = max(1.0, min(most, at_once * most / max(1, min(limit, pilot))))
    return ForecastRange(busy.value / expected, busy.low / most, busy.high / min(at_once, expected))


def make_forecast(
    sampled: Sequence[PilotRow],
    rows: int,
    *,
    concurrency: float | None,
    limit: int,
    uplift: float | None,
    interval: tuple[float, float] | None,
) -> RunForecast:
    """Return the forecast for `rows` further rows."""
    busy = forecast_total([row.seconds for row in sampled], rows)
    return RunForecast(
        len(sampled),
        rows,
        forecast_total([row.calls for row in sampled], rows) or ForecastRange(0, 0, 0),
        forecast_total([row.tokens for row in sampled], rows),
        forecast_total([row.cost for row in sampled], rows),
        forecast_seconds(busy, concurrency, len(sampled), rows, limit),
        None if uplift is None or interval is None else ForecastRange(uplift, *interval),
    )


def trace_seconds(trace: Trace | None) -> float | None:
    """Return how long the steps of a trace took, one after another; None if nothing is known of
    one.
    """
    if trace is None:
        return None
    return sum(getattr(record, "seconds", None) or 0.0 for record in trace.records)


def stratified_sample(
    rows: Iterable[BatchRow], size: int, total: int, seed: int = 0
) -> frozenset[int]:
    """Return the numbers of a sample of rows: evenly spaced in the order of their kind and size,
    from a random start.

    Each row has the same probability. All rows are in the sample if there are no more than `size`.
    """
    if size >= total:
        return frozenset(range(total))
    keys = array("Q", (_stratum_key(row) for row in rows))
    ordered = sorted(keys)
    start, step = Random(seed).random(), len(ordered) / size
    return frozenset(ordered[int((start + k) * step)] & MAX_ROW for k in range(size))


def _stratum_key(row: BatchRow) -> int:
    """Return a number that orders rows by whether they have a response, then by size; its low bits
    are the row's number.
    """
    task = row.task
    size = sum(utf8_size(str(message.get("content", ""))) for message in task.messages) + sum(
        map(utf8_size, task.given_responses)
    )
    return (bool(task.given_responses) << 63) | (min(size, MAX_SIZE) << 32) | (row.n & MAX_ROW)


def _t_quantile(probability: float, degrees_of_freedom: int) -> float:
    """Return the quantile of Student's t by Cornish and Fisher's expansion; exact to 1% from three
    degrees of freedom.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.7.5. The pilot
    needs no further package.
    """
    z, v = NormalDist().inv_cdf(probability), max(1, degrees_of_freedom)
    terms = (
        z,
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
    )
    return sum(terms)
