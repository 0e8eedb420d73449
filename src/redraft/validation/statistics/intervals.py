"""Intervals of one sample: of a share, of a mean of clusters, of any statistic, and of a mean that
is looked at after every row.

The mean of rows that come in clusters has the variance of the jackknife, which leaves out one
cluster at a time (CV3). It is estimated from few clusters, and large ones count for few degrees of
freedom: those of Bell and McCaffrey, for independent rows or for clusters whose rows are all alike,
whichever are fewer. If all clusters have one size, both are the usual ones, of the t test of the
clusters' means. A row without a cluster is one of its own.

Sources: Bell and McCaffrey, "Bias reduction in standard errors for linear regression with
multi-stage samples" (2002); MacKinnon, Nielsen and Webb, "Cluster-robust inference: a guide to
empirical practice" (2023); Bonett and Price, "Adjusted Wald confidence interval for a difference of
binomial proportions based on paired data" (2012).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log, sqrt
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, TypeVar

from ...base import checks
from ...errors import ConfigError
from ...plans.quality.calibration import check_confidence
from .samples import check_equal_lengths, finite_numbers, group_values, import_library

T = TypeVar("T")
Interval: TypeAlias = tuple[float, float]
ThreeWayVerdict: TypeAlias = Literal["better", "worse", "undecided"]
MAX_UNKNOWN_SHARE = 0.05  # share of bootstrap samples whose statistic may be None
# with fewer clusters that differ in one direction, an interval is widened by the largest difference
FEW_DIFFERENCES = 6
# of a difference by which an interval is widened; the squares of much smaller ones are 0
SMALLEST_SIZE = 1e-140
GRID = 2000  # means that a confidence sequence tests; it is as exact as their distance


def clip_interval(interval: Interval | None, low: float, high: float) -> Interval | None:
    """Return the part of an interval that lies from `low` to `high`, the ends of a scale."""
    return interval and (max(low, interval[0]), min(high, interval[1]))


def interval_verdict(interval: Interval | None, zero: float = 0.0) -> ThreeWayVerdict:
    """Return on which side of `zero` an interval lies wholly: "better" above it, "worse" below it,
    else "undecided".
    """
    if interval is None:
        return "undecided"
    return "better" if interval[0] > zero else "worse" if interval[1] < zero else "undecided"


# ---- shares


def wilson_interval(successes: float, n: int, level: float = 0.95) -> Interval | None:
    """Return the score interval of a proportion (Wilson 1927), in [0, 1]; None without rows.
    `successes` may count halves.
    """
    if not 0 <= successes <= n:
        raise ConfigError(f"successes must be from 0 to n={n}, got {successes!r}")
    check_confidence(level, "level")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    if n == 0:
        return None
    return score_interval(successes / n, n, z)


def score_interval(share: float, n: float, z: float) -> Interval:
    """Return Wilson's interval of a share, in [0, 1], for a number of rows (any above 0) and a
    quantile.
    """
    spread = z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def share_interval(
    outcomes: Sequence[float], clusters: Sequence[Hashable] | None = None, level: float = 0.95
) -> Interval | None:
    """Return the interval of the mean of outcomes from 0 to 1: Wilson's, for as many rows as would
    be as precise as the clusters; None without rows, and for a single cluster.

    With the jackknife variance v over clusters and the share p, that is p (1 - p) / v rows, at most
    as many as there are, and the quantile is Student's t. If all outcomes are equal, nothing is
    known of the spread, and each cluster counts as a row. Parts of outcomes widen the interval.
    """
    check_equal_lengths(outcomes=outcomes, clusters=clusters)
    if clusters is None or not len(outcomes):
        return wilson_interval(sum(outcomes), len(outcomes), level)
    sizes, sums = cluster_sums(cluster_numbers(clusters, len(outcomes)), list(map(float, outcomes)))
    mean = clustered_mean(sizes, sums)
    if mean.variance is None:
        return None
    share = min(1.0, max(0.0, mean.value))
    if not 0 < share < 1:
        return wilson_interval(round(share) * len(sizes), len(sizes), level)
    variance = max(mean.variance, share * (1 - share) / len(outcomes))
    quantile = t_quantile(0.5 + level / 2, mean.degrees_of_freedom)
    return score_interval(share, share * (1 - share) / variance, quantile)


# ---- any statistic


def bootstrap_interval(
    rows: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    *,
    clusters: Sequence[Hashable] | None = None,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval | None:
    """Return the percentile interval of a statistic over resampled rows, or whole clusters of rows
    (Efron 1979). Equal seeds give equal intervals.

    None for fewer than two rows or clusters, or if the statistic is None for the rows or for more
    than 5% of the samples.
    """
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples!r}")
    check_confidence(level, "level")
    groups: Sequence[Hashable] = range(len(rows)) if clusters is None else clusters
    units = group_values(zip(groups, rows, strict=True))
    if len(units) < 2 or statistic(rows) is None:
        return None
    draw, drawn = random.Random(seed).choices, list(units.values())
    values = [
        value
        for _ in range(samples)
        if (value := statistic([row for unit in draw(drawn, k=len(drawn)) for row in unit]))
        is not None
    ]
    if len(values) < (1 - MAX_UNKNOWN_SHARE) * samples:
        return None
    values.sort()
    tail = (1 - level) / 2
    return _quantile(values, tail), _quantile(values, 1 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


# ---- means of clusters


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t distribution."""
    return float(import_library("scipy.special").stdtrit(degrees_of_freedom, probability))


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """A mean, the variance of it, and the degrees of freedom of that; the variance is None for a
    single cluster.
    """

    value: float
    variance: float | None
    degrees_of_freedom: float

    @property
    def standard_error(self) -> float | None:
        """The square root of the variance."""
        return None if self.variance is None else sqrt(self.variance)

    def interval(self, confidence: float) -> Interval | None:
        """Return the interval with Student's t; None for a single cluster."""
        if self.variance is None:
            return None
        half = t_half_width(self.variance, self.degrees_of_freedom, confidence)
        return self.value - half, self.value + half


def t_half_width(variance: float, degrees_of_freedom: float, confidence: float) -> float:
    """Return half the width of an interval with Student's t."""
    return t_quantile(0.5 + confidence / 2, degrees_of_freedom) * sqrt(variance)


def cluster_numbers(groups: Sequence[Hashable] | None, count: int) -> Any:
    """Return the number of each row's cluster, from 0, as an array; with None, each row is a
    cluster.
    """
    np = import_library("numpy")
    if groups is None:
        return np.arange(count)
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(group, len(numbers)) for group in groups), int, count)


def cluster_sums(numbers: Any, *columns: Sequence[float]) -> list[Any]:
    """Return the number of rows in each cluster, then the sums of each column, as arrays."""
    np = import_library("numpy")
    return [
        np.bincount(numbers).astype(float),
        *(np.bincount(numbers, weights=column) for column in columns),
    ]


def clustered_mean(sizes: Any, sums: Any) -> ClusteredMean:
    """Return the mean over all rows, from each cluster's number of rows and sum."""
    rows, k = sizes.sum(), len(sizes)
    mean = sums.sum() / rows
    if k < 2:
        return ClusteredMean(float(mean), None, 0)
    # by so much the mean changes without a cluster
    variance = jackknife_variance((sums - sizes * mean) / (rows - sizes))
    return ClusteredMean(float(mean), variance, degrees_of_freedom(sizes))


def jackknife_variance(changes: Any) -> float:
    """Return the variance of an estimate, from its changes if each of at least two clusters is left
    out.
    """
    return float((len(changes) - 1) / len(changes) * (changes**2).sum())


def degrees_of_freedom(sizes: Any) -> float:
    """Return the degrees of freedom of the variance of a mean, from the number of rows in each of
    at least two clusters.
    """
    if (sizes == sizes[0]).all():
        return len(sizes) - 1
    return min(_satterthwaite(sizes, sizes), _satterthwaite(sizes, sizes * sizes))


def _satterthwaite(sizes: Any, variances: Any) -> float:
    """Return the degrees of freedom if the sums of the clusters have these variances.

    The variance of the mean is estimated by a quadratic form in the sums. With the shares s of the
    rows, the variances v and their sum S, its matrix is B = D (diag(v) - v s' - s v' + S s s') D
    with D = diag(1 / (1 - s)); they are trace(B)^2 / trace(B^2).
    """
    shares, total = sizes / sizes.sum(), variances.sum()
    factors = (1 - shares) ** -2
    scaled = variances * factors
    ss, sv, vv = shares @ (shares * factors), shares @ scaled, variances @ scaled
    trace = scaled.sum() - 2 * sv + total * ss
    mixed = total * (shares**2 * factors) @ scaled - 2 * shares @ scaled**2
    of_square = (
        scaled @ scaled + 2 * mixed + (total * ss - sv) ** 2 - 2 * ss * (total * sv - vv) + sv * sv
    )
    return float(trace * trace / of_square)


def with_two_rows(
    interval: Interval,
    differences: Any,
    of_clusters: Any,
    sizes: Any,
    sums: Any,
    *,
    freedom: float,
    confidence: float,
    other_variance: float = 0.0,
) -> Interval:
    """Return the interval of a mean of differences, widened to contain that with two more clusters,
    one of each direction.

    This is Bonett and Price's adjustment for scores of 0 and 1, extended to other scores: the
    differences of the two are as large as the rows that differ are on average (root mean square);
    as the largest one, if fewer than six clusters are higher or fewer than six lower; and as 1 if
    no row differs, for then nothing is known of the size of differences. The two have as many rows
    as clusters have on average, so that repeats of all rows in their clusters change nothing.
    `of_clusters` are the sums of the differences, `sums` those that the mean is of, and
    `other_variance` is added to its variance.
    """
    np = import_library("numpy")
    size = 1.0
    if differences.any():
        few = min((of_clusters > 0).sum(), (of_clusters < 0).sum()) < FEW_DIFFERENCES
        size = (
            abs(differences).max()
            if few
            else sqrt((differences**2).sum() / np.count_nonzero(differences))
        )
        size = max(size, SMALLEST_SIZE)
    rows = sizes.mean()
    wider = clustered_mean(
        np.append(sizes, [rows, rows]), np.append(sums, [size * rows, -size * rows])
    )
    half = t_half_width((wider.variance or 0.0) + other_variance, freedom, confidence)
    return min(interval[0], wider.value - half), max(interval[1], wider.value + half)


# ---- means that are looked at after every row


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

    An ordinary interval is valid for one look at a number of rows that was fixed before: who looks
    after every row, and stops when it excludes 0, is wrong far more often than it says. The rows
    must arrive in random order. Average what belongs to one task before. The intervals are
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
    low, high = finite_numbers("bounds", bounds)
    numbers = finite_numbers("values", values, low, high)
    if not numbers:
        raise ConfigError("values: there is none")
    ends = _betting_bounds([(x - low) / (high - low) for x in numbers], 1 - confidence)
    scale = high - low
    return ConfidenceSequence(
        tuple(low + scale * x for x, _ in ends), tuple(low + scale * x for _, x in ends), confidence
    )


def _betting_bounds(values: Sequence[float], alpha: float) -> list[tuple[float, float]]:
    """Return the lowest and the highest mean that is not excluded, after each value in [0, 1]."""
    np = import_library("numpy")
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
