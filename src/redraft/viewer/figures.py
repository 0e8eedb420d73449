"""The figures of a run, summed up in the index: those of a batch's report, also while the batch
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..runs.report import RunningMean
from .index import RunIndex
from .row_query import RowQuery

BINS = 21  # of the histogram of differences, from -1 to 1
MAX_KINDS = 12  # stop reasons, and kinds of errors, that are listed


@dataclass(frozen=True, slots=True)
class IterationFigures:
    """One iteration over all rows that had it. `score`: mean best score after it. `gain`: its mean
    gain. None: unknown.
    """

    n: int
    rows: int
    score: float | None
    gain: float | None
    calls: int | None
    cost: float | None
    calls_per_point: float | None
    usd_per_point: float | None


@dataclass(frozen=True, slots=True)
class UpliftFigures:
    """The mean of best - first score over the rows with both (None: there is none), and its 95 %
    interval.

    The interval is that of the normal approximation; None for fewer than two rows.
    """

    scored: int
    uplift: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class RunFigures(UpliftFigures):
    """The figures of a run. None: unknown. A point is a gain of 0.01, summed over rows.

    `histogram` counts the rows by their uplift, in equal bins from -1 to 1.
    """

    rows: int
    done: int
    failed: int
    open: int
    mean_first: float | None
    mean_best: float | None
    changes: dict[str, int]
    broken: int
    calls: int | None
    tokens: int | None
    cost: float | None
    seconds: float | None
    stops: dict[str, int]
    errors: dict[str, int]
    histogram: tuple[int, ...]
    by_iteration: tuple[IterationFigures, ...]

    def per_point(self, total: float | None) -> float | None:
        """Return how much of a total one point cost; None if unknown or nothing was gained."""
        points = 100 * (self.uplift or 0.0) * self.scored
        return total / points if total is not None and points > 1e-9 else None


UPLIFT = "SELECT count(uplift), avg(uplift), sum(uplift), sum(uplift * uplift) FROM {source}"
SUMS = """SELECT count(*), sum(status = 'done'), sum(status = 'failed'), sum(status = 'open'),
avg(CASE WHEN uplift IS NOT NULL THEN first END), avg(CASE WHEN uplift IS NOT NULL THEN best END),
sum(uplift IS NOT NULL AND improved), sum(uplift IS NOT NULL AND unsure),
sum(uplift IS NOT NULL AND worse AND NOT (improved OR unsure)), sum(broken),
sum(calls), sum(tokens), sum(cost), sum(seconds),
sum(status != 'open' AND calls IS NULL), sum(status != 'open' AND tokens IS NULL), sum(status != 'open' AND cost IS NULL),
sum(status = 'done' AND seconds IS NULL)
FROM rows"""  # noqa: E501
COUNTS = (
    "SELECT {column}, count(*) FROM rows WHERE {column} != '' GROUP BY {column} ORDER BY 2 "
    "DESC, 1 LIMIT ?"
)
HISTOGRAM = (
    "SELECT CAST((uplift + 1) / 2 * ? AS INTEGER), count(*) FROM rows WHERE uplift IS NOT NULL "
    "GROUP BY 1"
)
BY_ITERATION = """SELECT n, count(*), avg(score), avg(score - before), sum(score - before), sum(calls), sum(cost),
sum(calls IS NULL), sum(cost IS NULL)
FROM iterations GROUP BY n ORDER BY n LIMIT 50"""  # noqa: E501


def uplift_figures(index: RunIndex, query: RowQuery = RowQuery()) -> UpliftFigures:
    """Return the uplift of the rows that a query lists."""
    with index.selection(query) as source:
        n, mean, total, squares = index.read(UPLIFT.format(source=source))[0]
    interval = RunningMean(n, mean, max(0.0, squares - mean * total)).interval if n > 1 else None
    return UpliftFigures(n, mean, interval)


def run_figures(index: RunIndex) -> RunFigures:
    """Return the figures of all rows."""
    change = uplift_figures(index)
    sums = list(index.read(SUMS)[0])
    rows, done, failed, still_open = (int(value or 0) for value in sums[:4])
    first, best = sums[4:6]
    improved, unsure, worse, broken = (int(value or 0) for value in sums[6:10])
    totals = (
        total if not missing else None
        for total, missing in zip(sums[10:14], sums[14:18], strict=True)
    )
    calls, tokens, cost, seconds = totals
    return RunFigures(
        change.scored,
        change.uplift,
        change.interval,
        rows,
        done,
        failed,
        still_open,
        first,
        best,
        {
            "improved": improved,
            "unsure": unsure,
            "unchanged": change.scored - improved - unsure - worse,
            "worse": worse,
        },
        broken,
        calls,
        tokens,
        cost,
        seconds,
        dict(index.read(COUNTS.format(column="stop"), MAX_KINDS)),
        dict(index.read(COUNTS.format(column="error_kind"), MAX_KINDS)),
        _histogram(index),
        tuple(_iteration(row) for row in index.read(BY_ITERATION)),
    )


def _histogram(index: RunIndex) -> tuple[int, ...]:
    bins = [0] * BINS
    for place, count in index.read(HISTOGRAM, BINS):
        bins[min(BINS - 1, max(0, place))] += count
    return tuple(bins)


def _iteration(row: tuple[Any, ...]) -> IterationFigures:
    n, rows, score, gain, total, calls, cost, no_calls, no_cost = row
    points = 100 * (total or 0.0)
    calls, cost = None if no_calls else calls, None if no_cost else cost
    per_point = [
        value / points if value is not None and points > 1e-9 and n else None
        for value in (calls, cost)
    ]
    return IterationFigures(n, rows, score, gain, calls, cost, *per_point)
