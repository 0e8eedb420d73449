"""Every public estimator, interval and test: its values by another program or by a second formula,
and properties for any data.

`FUNCTIONS` has an entry for each public function of the modules that compute figures. Figures of
other programs are written down with the program and the call that gave them: SciPy 1.17.1,
statsmodels 0.15.0, scikit-learn 1.9.1, krippendorff 0.9.0, ppi-python 0.2.3, confseq (commit
70b1ef3) and llm_judge_reporting (commit 082884d).
"""

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from math import ceil, isfinite, log, sqrt
from pathlib import Path
from statistics import NormalDist, fmean, pvariance
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.stats

from redraft.errors import ConfigError, GradingError
from redraft.loop.task import Task
from redraft.validation import attacks, calibration, grader_comparison, report
from redraft.validation import statistics as m
from redraft.validation.cases import CaseVerdicts, LabelledCase, Verdict
from redraft.validation.statistics import agreement, intervals, paired, prediction, samples

# ---- second formulas


def wilson(share, n, z):
    """Return the two p at which (share - p)^2 = z^2 p (1 - p) / n (Wilson 1927)."""
    spread = z * z / n
    low, high = sorted(np.roots([1 + spread, -2 * share - spread, share * share]).real)
    return max(0.0, low), min(1.0, high)


def normal(level):
    return NormalDist().inv_cdf(0.5 + level / 2)


def jackknife(estimates, whole):
    """Return the variance of an estimate by those without one cluster each."""
    return (len(estimates) - 1) / len(estimates) * sum((each - whole) ** 2 for each in estimates)


def mean_and_variance(sizes, sums):
    """Return the mean of all rows of clusters, and its variance, with one cluster left out at a
    time.
    """
    places = range(len(sizes))
    less = [
        sum(sums[j] for j in places if j != i) / sum(sizes[j] for j in places if j != i)
        for i in places
    ]
    mean = sum(sums) / sum(sizes)
    return mean, jackknife(less, mean)


def matrix_freedom(sizes):
    """Return Bell and McCaffrey's degrees of freedom by their matrix, for independent rows or for
    clusters of equal rows.
    """
    shares, k = np.array(sizes, float) / sum(sizes), len(sizes)
    centre = np.diag(1 / (1 - shares)) @ (np.eye(k) - np.outer(shares, np.ones(k)))
    found = []
    for power in (1, 2):
        form = centre @ np.diag(np.array(sizes, float) ** power) @ centre.T
        found.append(np.trace(form) ** 2 / np.trace(form @ form))
    return min(found)


def by_cluster(groups, values):
    """Return the number of rows and the sum of each cluster."""
    names = list(dict.fromkeys(groups))
    rows = {name: [v for g, v in zip(groups, values, strict=True) if g == name] for name in names}
    return [len(rows[name]) for name in names], [sum(rows[name]) for name in names]


class Ppi(NamedTuple):
    value: float
    variance: float
    others_variance: float = 0.0
    weight: float = 0.0
    freedom: float = 0.0


def interval_of_differences(labels, groups, residuals, level, model=None):
    """Return the t interval of a mean of differences and the one with two more clusters, in
    opposite directions, together.

    `model` is the estimate of the mean with a judge; None: the mean of the residuals.
    """
    sizes, sums = by_cluster(groups, residuals)
    of_labels = by_cluster(groups, labels)[1]
    model = model or Ppi(*mean_and_variance(sizes, sums), freedom=matrix_freedom(sizes))
    t = scipy.stats.t.ppf(0.5 + level / 2, model.freedom)
    nonzero = [abs(x) for x in labels if x]
    few = min(sum(x > 0 for x in of_labels), sum(x < 0 for x in of_labels)) < 6
    size = 1.0 if not nonzero else max(nonzero) if few else sqrt(fmean(x * x for x in nonzero))
    rows = fmean(sizes)
    other, wider = mean_and_variance([*sizes, rows, rows], [*sums, size * rows, -size * rows])
    halves = [
        (model.value, t * sqrt(model.variance + model.others_variance)),
        (other, t * sqrt(wider + model.others_variance)),
    ]
    return min(x - half for x, half in halves), max(x + half for x, half in halves)


def ppi_point(labelled, others):
    """Return the estimate and the weight of PPI++ from rows (cluster, label, score) and others
    (cluster, score).

    The weight is cov(label, score) / (var(all scores) (1 + n / N)), with a degree of freedom for
    each cluster, from -1 to 1.
    """
    y, f = (np.array([row[i] for row in labelled], float) for i in (1, 2))
    g = np.array([row[1] for row in others], float)
    if not len(g):
        return y.mean(), 0.0
    k, k_others = len({row[0] for row in labelled}), len({row[0] for row in others})
    every = np.append(f, g)
    variance = every.var() * (k + k_others) / (k + k_others - 1)
    covariance = ((y - y.mean()) * (f - f.mean())).mean() * k / max(k - 1, 1)
    weight = (
        min(1.0, max(-1.0, covariance / variance / (1 + len(y) / len(g))))
        if variance > 1e-12
        else 0.0
    )
    return weight * g.mean() + (y - weight * f).mean(), weight


def ppi(labels, scores, others, groups, other_groups, confidence):
    """Return the estimate with the scores, or that of the labels alone if its interval is narrower
    by more than 1 %.
    """
    found, alone = (ppi_with(labels, scores, each, groups, other_groups) for each in (others, []))
    width, alone_width = (
        scipy.stats.t.ppf(0.5 + confidence / 2, each.freedom)
        * sqrt(each.variance + each.others_variance)
        for each in (found, alone)
    )
    return alone if width > 1.01 * alone_width else found


def ppi_with(labels, scores, others, groups, other_groups):
    """Return the estimate with its variances by leaving out one cluster at a time, and
    Satterthwaite's degrees of freedom.
    """
    other_groups = other_groups if others else []
    rows, more = (
        list(zip(groups, labels, scores, strict=True)),
        list(zip(other_groups, others, strict=True)),
    )
    value, weight = ppi_point(rows, more)

    def variance(clusters, estimate_without):
        return jackknife([estimate_without(cluster) for cluster in dict.fromkeys(clusters)], value)

    of_rows = variance(groups, lambda c: ppi_point([row for row in rows if row[0] != c], more)[0])
    freedom = matrix_freedom(by_cluster(groups, labels)[0])
    if not weight:
        return Ppi(value, of_rows, 0.0, weight, freedom)
    of_others = variance(
        other_groups, lambda c: ppi_point(rows, [row for row in more if row[0] != c])[0]
    )
    others_freedom = matrix_freedom(by_cluster(other_groups, others)[0])
    freedom = (of_rows + of_others) ** 2 / (of_rows**2 / freedom + of_others**2 / others_freedom)
    return Ppi(value, of_rows, of_others, weight, freedom)


def isotonic(points):
    """Return the isotonic regression at each x: the largest over a <= x of the smallest over b >= x
    of the mean of a..b.
    """
    xs = sorted({x for x, _ in points})

    def mean(a, b):
        return fmean(y for x, y in points if a <= x <= b)

    return {x: max(min(mean(a, b) for b in xs if b >= x) for a in xs if a <= x) for x in xs}


def shrunk_line(points):
    """Return least squares, with the slope moved towards 1 as if 4 labels of the residual variance
    said so.
    """
    x, y = (np.array(column) for column in zip(*points, strict=True))
    slope, start = np.polyfit(x, y, 1)
    v, sxx = ((y - start - slope * x) ** 2).sum() / (len(x) - 2), ((x - x.mean()) ** 2).sum()
    slope = max(0.0, (slope * sxx / v + 4) / (sxx / v + 4))
    return lambda score: y.mean() + slope * (min(x.max(), max(x.min(), score)) - x.mean())


# ---- data

LABELS = [0.71, 0.75, 0.59, 0.33, 0.76, 0.73, 0.5, 0.63, 0.61, 0.7, 0.64, 0.68, 0.45, 0.59, 0.53]
SCORES = [0.85, 0.81, 0.66, 0.35, 0.84, 0.95, 0.48, 0.83, 0.56, 0.76, 0.8, 0.79, 0.49, 0.69, 0.67]
OTHERS = [
    0.89,
    0.91,
    0.66,
    0.48,
    0.64,
    0.69,
    0.66,
    0.96,
    0.92,
    0.41,
    0.61,
    0.5,
    0.81,
    0.88,
    0.92,
    0.49,
    0.53,
    0.72,
    0.38,
    0.58,
]
THREES = [n // 3 for n in range(15)]
UNEQUAL = [0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 4, 5, 6, 6, 6]
OTHER_CLUSTERS = [10 + n * n // 40 for n in range(20)]
PASSES = [1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0, 1]
FORECASTS = [
    0.9,
    0.3,
    0.7,
    0.8,
    0.4,
    0.6,
    0.95,
    0.1,
    0.9,
    0.4,
    0.2,
    0.8,
    0.7,
    0.35,
    0.65,
    1.0,
    0.55,
    0.0,
    0.5,
    0.85,
]
RATERS = "aababcacbbcacbaabcab", "aabbbcaccbcacaaabcbb", "abababaacbcacbaabbab"
CODES = [[ord(letter) for letter in letters] for letters in RATERS]
RATINGS = [[0.1, 0.2, 0.15], [0.5, 0.5, 0.6], [0.9, 0.7, None], [0.4, 0.45, 0.3], [0.2, 0.9, 0.25]]
STEPS = [
    (1, 0.1),
    (2, 0.3),
    (2, 0.2),
    (3, 0.15),
    (4, 0.6),
    (5, 0.5),
    (6, 0.4),
    (6, 0.9),
    (7, 0.8),
    (8, 1.0),
]
CONTROL = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


def ranks_partial(x, y, control):
    """Return the correlation of what a least-squares line through the ranks of `control` leaves of
    the ranks of x and y.
    """
    a, b, c = (scipy.stats.rankdata(column) for column in (x, y, control))
    rest = [side - np.polyval(np.polyfit(c, side, 1), c) for side in (a, b)]
    return np.corrcoef(*rest)[0, 1]


def tau_b(x, y):
    """Return Kendall's tau-b by counting pairs."""
    pairs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i in range(len(x)) for j in range(i)]
    return sum(a * b for a, b in pairs) / sqrt(
        sum(a != 0 for a, _ in pairs) * sum(b != 0 for _, b in pairs)
    )


def counter_statistic(values):
    """Return a statistic that gives these values one after another; the first is of the rows
    themselves.
    """
    each = iter(values)
    return lambda _rows: next(each)


def bets(values, alpha, grid):
    """Return the means of a grid that hedged betting does not exclude, after each value:
    Waudby-Smith and Ramdas, step by step.
    """
    kept, ends = list(grid), []
    up, down = dict.fromkeys(grid, 1.0), dict.fromkeys(grid, 1.0)
    total, squares, variance = 0.5, 0.25, 0.25
    for i, x in enumerate(values, 1):
        bet = sqrt(2 * log(2 / alpha) / (variance * i * log(i + 1)))
        for mean in grid:
            up[mean] *= 1 + min(bet, 0.5 / mean if mean else bet) * (x - mean)
            down[mean] *= 1 - min(bet, 0.5 / (1 - mean) if mean < 1 else bet) * (x - mean)
        kept = [mean for mean in kept if max(up[mean], down[mean]) / 2 < 1 / alpha]
        total += x
        squares += (x - total / (i + 1)) ** 2
        variance = squares / (i + 1)
        ends.append((kept[0], kept[-1]))
    return ends


# ---- tables of rows


@dataclass(frozen=True)
class Table:
    """Rows with two columns of numbers, two of 0 and 1, and clusters; and other rows."""

    y: list[float]
    f: list[float]
    g: list[float]
    good: list[float]
    passed: list[float]
    clusters: list[int] | None
    others: list[float]
    passed_a: list[float]
    passed_b: list[float]
    other_clusters: list[int] | None

    def order(self, rows: Sequence[int], others: Sequence[int]) -> "Table":
        """Return the table with these rows, in this order."""
        of_others = {"others", "passed_a", "passed_b", "other_clusters"}
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen = {name: others if name in of_others else rows for name in columns}
        return Table(
            **{
                name: column and [column[n] for n in chosen[name]]
                for name, column in columns.items()
            }
        )

    def each(self, change: Callable[[float], float], *names: str) -> "Table":
        """Return the table with the numbers of these columns changed."""
        return replace(self, **{name: [change(x) for x in getattr(self, name)] for name in names})


POOLS = [[0.0, 0.25, 0.5, 1.0], [0.0, 1.0], [0.3], [1.0], [0.0], [0.1, 0.1, 0.1, 0.7]]


def draw_table(rng: random.Random, n: int, many: int, *, clustered: bool) -> Table:
    def column(size: int, pool: Sequence[float]) -> list[float]:
        return [rng.choice(pool) for _ in range(size)]

    labels, scores = rng.choice(POOLS), rng.choice(POOLS)
    spread = rng.choice([1, 3])
    return Table(
        *(column(n, pool) for pool in (labels, scores, POOLS[0], [0.0, 1.0], [0.0, 1.0])),
        [rng.randrange(spread) for _ in range(n)] if clustered else None,
        *(column(many, pool) for pool in (scores, [0.0, 1.0], [0.0, 1.0])),
        [10 + rng.randrange(spread) for _ in range(many)] if clustered else None,
    )


TABLES = [
    draw_table(random.Random(f"{n} {many} {clustered} {draw}"), n, many, clustered=clustered)
    for n in range(6)
    for many in range(4)
    for clustered in (False, True)
    for draw in range(3)
]


def regular_table(seed: int, n: int = 12) -> Table:
    """Return rows whose columns all vary, and with both kinds of each 0/1 column, and a judge that
    is better than chance.
    """
    rng = random.Random(seed)
    y = [rng.random() for _ in range(n)]
    good = [float(i % 3 > 0) for i in range(n)]
    return Table(
        y,
        [0.6 * x + 0.4 * rng.random() for x in y],
        [rng.random() for _ in range(n)],
        good,
        [x if i % 5 else 1 - x for i, x in enumerate(good)],
        [i // 2 if i < 8 else i // 4 + 4 for i in range(n)],
        [rng.random() for _ in range(n)],
        [float(rng.random() < 0.6) for _ in range(n)],
        [float(rng.random() < 0.7) for _ in range(n)],
        [20 + i // 3 for i in range(n)],
    )


REGULAR = [regular_table(seed) for seed in range(4)]


# ---- what is expected of each function

Result = Any
Change = tuple[Callable[[Table], Table], Callable[[float], float]]
SAME: Callable[[float], float] = lambda x: x


@dataclass(frozen=True)
class Function:
    """What is known of a function.

    Attributes:
        figures: Pairs of a value and what it must be.
        call: Calls it with the rows of a table; None: it takes no rows.
        limits: The lowest and the highest value, also of the ends of the interval.
        ordered: Whether the order of rows matters.
        of_clusters: Whether rows that are repeated in their clusters change nothing.
        changes: Pairs of a change of all rows, and how the value and the ends of the interval
            change with it.
    """

    figures: Callable[[], Sequence[tuple[Any, Any]]]
    call: Callable[[Table], Result] | None = None
    limits: tuple[float, float] = (-float("inf"), float("inf"))
    ordered: bool = False
    of_clusters: bool = False
    changes: Sequence[Change] = ()


def half(interval):
    return (interval[1] - interval[0]) / 2


def wilson_figures():
    for successes, n, level in (
        (7, 23, 0.95),
        (7, 23, 0.8),
        (0, 5, 0.95),
        (5, 5, 0.95),
        (81, 263, 0.99),
    ):
        found = scipy.stats.binomtest(successes, n).proportion_ci(level, method="wilson")
        yield m.wilson_interval(successes, n, level), pytest.approx((found.low, found.high))
    # statsmodels proportion_confint
    yield (m.wilson_interval(7, 23), pytest.approx((0.1560402445321402, 0.5086575626875921)))
    yield m.wilson_interval(0, 0), None
    yield m.wilson_interval(1, 1)[1], 1.0
    yield m.wilson_interval(0.5, 1), pytest.approx(wilson(0.5, 1, normal(0.95)))


def alpha_figures():
    """By krippendorff.alpha(reliability_data, level_of_measurement=...)."""
    ordinal = {
        "nominal": 0.712182061579652,
        "ordinal": 0.83510285747894,
        "interval": 0.858568674152206,
    }
    units = [
        [1, 1, None, 1],
        [2, 2, 3, 2],
        [3, 3, 3, 3],
        [3, 3, 3, 3],
        [2, 2, 2, 2],
        [1, 2, 3, 4],
        [4, 4, 4, 4],
        [1, 1, 2, 1],
    ]
    units += [[2, 2, 2, 2], [5, 5, 5, 5], [None, 1, 1, 1], [3, None, None, 4]]
    yield from (
        (m.krippendorff_alpha(units, level), pytest.approx(alpha))
        for level, alpha in ordinal.items()
    )
    numbers = {
        "nominal": 0.03977272727272718,
        "ordinal": 0.591182048040455,
        "interval": 0.44807653976479966,
    }
    yield from (
        (m.krippendorff_alpha(RATINGS, level), pytest.approx(alpha))
        for level, alpha in numbers.items()
    )


def kappa_figures():
    """By sklearn.metrics.cohen_kappa_score."""
    first, second = CODES[:2]
    for weights, kappa in (
        (None, 0.6981132075471699),
        ("linear", 0.7701149425287356),
        ("quadratic", 0.8443579766536965),
    ):
        yield m.cohen_kappa(first, second, weights), pytest.approx(kappa)
    yield m.cohen_kappa([1], [2]), 0.0
    yield m.cohen_kappa([1, 1], [1, 2]), 0.0
    yield m.cohen_kappa([1, 1], [1, 1]), None
    yield m.cohen_kappa([], []), None


def label_figures():
    """By sklearn.metrics.precision_recall_fscore_support."""
    found = m.precision_recall_f1(*map(list, RATERS[:2]))
    yield found["a"], pytest.approx((6 / 7, 6 / 8, 12 / 15, 8))
    yield found["b"], pytest.approx((5 / 7, 5 / 7, 10 / 14, 7))
    yield found["c"], pytest.approx((5 / 6, 1, 10 / 11, 5))
    yield (
        found["macro"],
        pytest.approx((0.8015873015873015, 0.8214285714285715, 0.8077922077922078, 20)),
    )
    yield m.precision_recall_f1(["a", None], ["a", "b"])["macro"], (1.0, 1.0, 1.0, 1)


def calibration_error(probabilities, outcomes, bins):
    """Return the error of equally wide bins that include their upper end, and 0 in the first."""
    places = np.clip(np.digitize(probabilities, np.linspace(0, 1, bins + 1), right=True), 1, bins)
    p, o = np.array(probabilities), np.array(outcomes)
    return sum(
        (places == k).mean() * abs(p[places == k].mean() - o[places == k].mean())
        for k in set(places.tolist())
    )


def bin_figures():
    table = m.reliability_bins([0.0, 0.25, 0.26, 0.5, 0.75, 1.0], [0, 1, 1, 0, 1, 1], bins=4)
    yield table, [(0.125, 0.5, 2), (pytest.approx(0.38), 0.5, 2), (0.75, 1.0, 1), (1.0, 1.0, 1)]
    yield m.reliability_bins([0.3], [1], bins=1), [(0.3, 1.0, 1)]
    twenty = [(n / 20, n % 2) for n in range(21)]  # ten bins, unless another number is asked for
    yield (
        m.reliability_bins(*zip(*twenty, strict=True)),
        m.reliability_bins(*zip(*twenty, strict=True), bins=10),
    )
    yield len(m.reliability_bins(*zip(*twenty, strict=True))), 10


def bootstrap_figures():
    """The quantiles of the samples' values by numpy.quantile, and the limits at which there is no
    interval.
    """
    rows = [0.0, 1.0, 2.0]
    values = [float((7 * n) % 1000) ** 2 for n in range(1000)]
    for level in (0.95, 0.8):
        found = m.bootstrap_interval(rows, counter_statistic([0.0, *values]), level=level)
        yield (
            found,
            pytest.approx(tuple(np.quantile(values, [(1 - level) / 2, 1 - (1 - level) / 2]))),
        )
    yield m.bootstrap_interval(rows, counter_statistic([0.0, 5.0]), samples=1), (5.0, 5.0)
    for unknown, known in ((5, True), (6, False)):
        found = m.bootstrap_interval(
            rows, counter_statistic([0.0, *[None] * unknown, *values]), samples=100
        )
        yield found is not None, known
    yield m.bootstrap_interval([1.0], fmean), None
    yield m.bootstrap_interval(rows[:2], fmean, samples=200), (0.0, 1.0)
    # scipy.stats.bootstrap((LABELS,), np.mean, method="percentile", n_resamples=200_000)
    theirs = (0.5513333, 0.6693333)
    yield m.bootstrap_interval(LABELS, fmean), pytest.approx(theirs, abs=0.012)


def block_figures():
    """By sklearn.isotonic.IsotonicRegression, and by the formula of the largest of smallest
    means.
    """
    blocks = m.isotonic_blocks(STEPS)
    fitted = {
        1: 0.1,
        2: 0.21666666666666667,
        3: 0.21666666666666667,
        4: 0.55,
        5: 0.55,
        6: 0.65,
        7: 0.8,
        8: 1.0,
    }
    yield (
        {x: block.value for block in blocks for x in fitted if block.first <= x <= block.last},
        pytest.approx(fitted),
    )
    yield fitted, pytest.approx(isotonic(STEPS))
    yield (
        [(block.first, block.last, block.centre) for block in blocks[:3]],
        [(1, 1, 1), (2, 3, pytest.approx(7 / 3)), (4, 5, 4.5)],
    )


def clustered_figures():
    """Clusters of one size by statsmodels OLS(y, 1).fit(cov_type="cluster"), unequal ones by
    leaving out one at a time.
    """
    found = intervals.clustered_mean(
        *intervals.cluster_sums(intervals.cluster_numbers(THREES, 15), LABELS)
    )
    yield (found.value, found.standard_error), pytest.approx((0.61333333, 0.0297956))
    yield found.interval(0.95), pytest.approx((0.53060749, 0.69605918))
    sizes, sums = by_cluster(UNEQUAL, LABELS)
    found = intervals.clustered_mean(np.array(sizes, float), np.array(sums))
    mean, variance = mean_and_variance(sizes, sums)
    yield (
        (found.value, found.variance, found.degrees_of_freedom),
        pytest.approx((mean, variance, matrix_freedom(sizes))),
    )
    single = intervals.clustered_mean(np.array([3.0]), np.array([1.5]))
    yield (
        (single.value, single.variance, single.standard_error, single.interval(0.9)),
        (0.5, None, None, None),
    )


def ppi_figures():
    """The value by ppi_py.ppi_mean_pointestimate with this weight (linear in it); the rest by
    leaving out one at a time.
    """
    found = prediction.ppi_mean(LABELS, SCORES, OTHERS)
    yield found.value, pytest.approx(0.61333333 + found.judge_weight * (0.59333333 - 0.61333333))
    alone = scipy.stats.ttest_1samp(LABELS, 0).confidence_interval(0.9)
    yield prediction.ppi_mean(LABELS, SCORES, confidence=0.9).interval, pytest.approx(tuple(alone))
    yield prediction.ppi_mean(LABELS, SCORES).judge_weight, None
    yield (found.labels, found.unlabelled, found.clusters), (15, 20, 15)
    for groups, more in (
        (range(15), range(100, 120)),
        (THREES, range(100, 120)),
        (UNEQUAL, OTHER_CLUSTERS),
    ):
        for labels, others in (
            (LABELS, OTHERS),
            (PASSES[:15], OTHERS),
            (PASSES[:15], [0.1, 0.9] * 10),
            ([1, 1, *PASSES[1:14]], OTHERS),
        ):
            found = prediction.ppi_mean(
                labels,
                SCORES,
                others,
                clusters=list(groups),
                unlabelled_clusters=list(more),
                confidence=0.9,
            )
            model = ppi(labels, SCORES, others, groups, more, 0.9)
            error = sqrt(model.variance + model.others_variance)
            yield (
                (found.judge_weight, found.standard_error or 0.0),
                pytest.approx((model.weight, error)),
            )
            yield found.value, pytest.approx(min(1.0, max(0.0, model.value)))
            t = scipy.stats.t.ppf(0.95, model.freedom)
            yield (
                found.interval,
                pytest.approx(share_interval(labels, groups, found.value, error, t)),
            )
    yield from ppi_limits()


def share_interval(labels, groups, value, error, t):
    """Return Wilson's interval for as many rows as would be as precise, and with it that of few
    labels of one kind.
    """
    if not set(labels) <= {0, 1}:
        return value - t * error, value + t * error
    n, found = len(set(groups)), []
    if error and 0 < value < 1:
        found.append(wilson(value, value * (1 - value) / error**2, t))
    if not found or min(sum(labels), len(labels) - sum(labels)) * n / len(labels) < 5:
        found.append(wilson(fmean(labels), n, normal(0.9)))
    return min(low for low, _ in found), max(high for _, high in found)


def ppi_limits():
    """One label, one cluster, equal labels, a single other cluster, and equal scores."""
    one = prediction.ppi_mean([1.0], [0.5], [0.4, 0.3])
    yield (
        (one.value, one.interval, one.standard_error),
        (1.0, pytest.approx(wilson(1.0, 1, normal(0.95))), None),
    )
    yield prediction.ppi_mean([0.3], [0.5], [0.4]).interval, None
    yield (
        prediction.ppi_mean([1, 0], [0.5, 0.1], clusters=["a", "a"]).interval,
        pytest.approx(wilson(0.5, 1, normal(0.95))),
    )
    equal = prediction.ppi_mean([0.3, 0.3, 0.3], [0.1, 0.9, 0.5], [0.7, 0.1])
    yield (
        (equal.value, equal.interval, equal.standard_error, equal.judge_weight),
        (0.3, None, None, 0.0),
    )
    single = prediction.ppi_mean(LABELS, SCORES, OTHERS, unlabelled_clusters=["x"] * 20)
    yield (single.value, single.judge_weight), (pytest.approx(fmean(LABELS)), 0.0)
    constant = prediction.ppi_mean(LABELS, [0.5] * 15, [0.5] * 20)
    yield (constant.value, constant.judge_weight), (pytest.approx(fmean(LABELS)), 0.0)
    units = [
        prediction.ppi_mean(*([x * unit for x in column] for column in (LABELS, SCORES, OTHERS)))
        for unit in (1, 1e-90, 1e90)
    ]
    yield (
        [u.value for u in units],
        pytest.approx([units[0].value * unit for unit in (1, 1e-90, 1e90)], rel=1e-9, abs=0),
    )
    yield (
        [u.interval[1] for u in units],
        pytest.approx([units[0].interval[1] * unit for unit in (1, 1e-90, 1e90)], rel=1e-9, abs=0),
    )
    # Wilson's interval of the labels alone from fewer than five of one kind
    for rare, wider in ((5, False), (4, True)):
        labels = [1.0] * rare + [0.0] * 200
        found = prediction.ppi_mean(labels, labels, [0.0, *labels * 9], confidence=0.5).interval
        alone = wilson(rare / len(labels), len(labels), normal(0.5))
        yield found == pytest.approx((min(found[0], alone[0]), max(found[1], alone[1]))), wider


def ppi_difference_figures():
    pairs = [(y, y - 0.3 * (f - 0.6)) for y, f in zip(LABELS, SCORES, strict=True)]
    scores = [(f, g) for f, g in zip(SCORES, reversed(SCORES), strict=True)]
    others = [(f, g) for f, g in zip(OTHERS, reversed(OTHERS), strict=True)]
    labels, own, more = ([a - b for a, b in column] for column in (pairs, scores, others))
    for groups, others_of in ((range(15), range(100, 120)), (UNEQUAL, OTHER_CLUSTERS)):
        for column in (labels, own):
            of_pairs = [(x, 0.0) for x in column]
            found = prediction.ppi_difference(
                of_pairs,
                scores,
                others,
                clusters=list(groups),
                unlabelled_clusters=list(others_of),
                confidence=0.8,
            )
            model = ppi(column, own, more, groups, others_of, 0.8)
            residuals = [
                y - model.weight * f + model.weight * fmean(more)
                for y, f in zip(column, own, strict=True)
            ]
            yield (
                (found.value, found.judge_weight),
                pytest.approx((model.value, model.weight), abs=1e-12),
            )
            expected = interval_of_differences(column, groups, residuals, 0.8, model)
            yield found.interval, pytest.approx(expected)
    alone, without_scores = (
        prediction.ppi_difference(pairs, scores),
        paired.paired_difference(*zip(*((b, a) for a, b in pairs), strict=True)),
    )
    yield (
        (alone.value, *alone.interval),
        pytest.approx((without_scores.value, *without_scores.interval)),
    )
    yield prediction.ppi_difference([(1, 0)], [(1, 0)]).interval, None
    for equal in (0.0, 0.25):
        found = prediction.ppi_difference([(equal, 0.0)] * 8, [(1, 0)] * 8)
        yield (found.value, found.standard_error), (equal, None)
        yield (
            found.interval,
            pytest.approx(interval_of_differences([equal] * 8, range(8), [equal] * 8, 0.95)),
        )


def rogan_gladen_figures():
    """By llm_judge_reporting.confidence_interval; a share outside of 0 to 1 by the same formula,
    limited before.
    """
    good, passed = [1] * 10 + [0] * 10, [1] * 9 + [0] + [0] * 8 + [1] * 2
    found = prediction.rogan_gladen(good, passed, [1] * 65 + [0] * 35)
    yield (
        (found.value, *found.interval),
        pytest.approx((0.6428571428571429, 0.37629190006925906, 1.0)),
    )
    found = prediction.rogan_gladen(good, passed, [1] * 65 + [0] * 35, confidence=0.8)
    yield found.interval, pytest.approx((0.4803323682986029, 0.9019216975639568))
    found = prediction.rogan_gladen(
        [1] * 20 + [0] * 10, [1] * 14 + [0] * 6 + [0] * 9 + [1], [1] * 13 + [0] * 7, confidence=0.8
    )
    yield (
        (found.value, *found.interval),
        pytest.approx((0.9166666666666666, 0.5995236107244212, 1.0)),
    )
    yield (found.labels, found.unlabelled, found.clusters, found.judge_weight), (30, 20, 30, None)
    good, passed = [1] * 10 + [0] * 20, [1] * 9 + [0] + [0] * 19 + [1]
    for others, share in (([1] + [0] * 39, 0.0), ([1] * 38 + [0] * 2, 1.0)):
        z, n = normal(0.95), 40
        s, t, p = 10 / 12, 20 / 22, (sum(others) + z * z / 2) / (n + z * z)
        theta = min(1.0, max(0.0, (p + t - 1) / (s + t - 1)))
        shift = 2 * z * z * (theta * s * (1 - s) / 12 - (1 - theta) * t * (1 - t) / 22)
        variance = (
            p * (1 - p) / (n + z * z)
            + (1 - theta) ** 2 * t * (1 - t) / 22
            + theta**2 * s * (1 - s) / 12
        )
        error = sqrt(variance) / (s + t - 1)
        found = prediction.rogan_gladen(good, passed, others)
        yield (found.value, found.standard_error), (share, pytest.approx(error))
        yield (
            found.interval,
            pytest.approx((max(0, theta + shift - z * error), min(1, theta + shift + z * error))),
        )
    # 3 / 4 + 2 / 8 = 1, once shrunk
    useless = prediction.rogan_gladen([1, 1] + [0] * 6, [1, 1, 0] + [1] * 5, [1, 0])
    yield (useless.value, useless.interval, useless.standard_error), (0.0, (0.0, 1.0), None)


def rogan_gladen_difference_figures():
    """By the delta method with the shrunk rates; limited to -1..1, as an estimate of Rogan and
    Gladen is to 0..1.
    """
    good, passed = [1] * 20 + [0] * 10, [1] * 17 + [0] * 3 + [0] * 8 + [1] * 2
    a, b = [1, 0, 1, 0, 0, 1, 0, 1, 1, 0] * 4, [1, 1, 1, 0, 1, 1, 0, 1, 0, 0] * 4
    for level in (0.95, 0.8):
        found = prediction.rogan_gladen_difference(good, passed, a, b, confidence=level)
        s, t, raw = 18 / 22, 9 / 12, paired.paired_difference(a, b, confidence=level)
        of_rates = s * (1 - s) / 22 + t * (1 - t) / 12
        error = sqrt(
            (half(raw.interval) / normal(level)) ** 2 + (raw.value / (s + t - 1)) ** 2 * of_rates
        ) / (s + t - 1)
        value = 0.1 / (0.85 + 0.8 - 1)
        yield (found.value, found.standard_error), pytest.approx((value, error))
        yield (
            found.interval,
            pytest.approx((value - normal(level) * error, value + normal(level) * error)),
        )
    yield (found.labels, found.unlabelled, found.clusters, found.judge_weight), (30, 40, 30, None)
    rare = [1] * 2 + [0] * 60, [1] * 56 + [0] * 6
    for sides, value in (
        (([1] * 4, [0] * 4), -1.0),
        (([0] * 4, [1] * 4), 1.0),
        (([0], [1]), 1.0),
        (([1], [1]), 0.0),
    ):
        found = prediction.rogan_gladen_difference(*rare, *sides)
        yield (found.value, found.interval, found.standard_error), (value, (-1.0, 1.0), None)
    found = prediction.rogan_gladen_difference(
        [1, 1] + [0] * 6, [1, 1, 0] + [1] * 5, [0, 1, 0], [1, 1, 1]
    )
    yield (found.interval, found.standard_error), ((-1.0, 1.0), None)
    single = prediction.rogan_gladen_difference(good, passed, [0], [1])
    yield (single.value, single.interval, single.standard_error), (1.0, (-1.0, 1.0), None)
    many = [1] * 1000 + [0] * 1000, [1] * 600 + [0] * 400 + [1] * 400 + [0] * 600
    for sides, value in ((([0] * 100, [1] * 100), 1.0), (([1] * 100, [0] * 100), -1.0)):
        # pass rates that differ more than this judge's ever could
        found = prediction.rogan_gladen_difference(*many, *sides)
        yield found.value, value
        yield found.interval[0] < found.interval[1], True
        yield value in found.interval, True


def needed_figures():
    """By statsmodels samplesize_confint_proportion(0.5, half_width), and by the formula of the
    variance.
    """
    yield [prediction.labels_needed(h, 0.5) for h in (0.1, 0.05, 0.03)], [97, 385, 1068]
    for many in (0, 1, 30, 1000):
        n = prediction.labels_needed(0.1, 0.4, 0.8, unlabelled=many, confidence=0.9)
        halves = [normal(0.9) * 0.4 * sqrt((1 - 0.64 * many / (k + many)) / k) for k in (n - 1, n)]
        yield halves[1] <= 0.1 < halves[0], True
    yield prediction.labels_needed(0.1, 0.25, 0.9), ceil((normal(0.95) * 2.5) ** 2 * 0.19)
    yield prediction.labels_needed(1, 0.1), 2
    yield prediction.labels_needed(0.1, 0.25, 1), 2
    yield (
        [
            prediction.labels_needed(0.1, 0.25, 0.5, unlabelled=10**power)
            for power in (6, 15, 18, 60)
        ],
        [19] * 4,
    )
    yield (
        all(
            prediction.labels_needed(1e-200, 0.5, 0.5, unlabelled=many) >= 10**100
            for many in (None, 0, 50)
        ),
        True,
    )


def paired_figures():
    """The t interval by scipy.stats.ttest_rel, together with that of two more rows, by leaving out
    one cluster at a time.
    """
    for groups in (None, THREES, UNEQUAL):
        for a, b in (
            (LABELS, SCORES),
            (LABELS, LABELS[::-1]),
            (LABELS, [x + 0.1 * (-1) ** n for n, x in enumerate(LABELS)]),
        ):
            found = paired.paired_difference(a, b, clusters=groups, confidence=0.9)
            changes = [y - x for x, y in zip(a, b, strict=True)]
            expected = interval_of_differences(changes, groups or range(15), changes, 0.9)
            yield (found.value, *found.interval), pytest.approx((fmean(changes), *expected))
            yield (
                (found.wins, found.losses),
                (sum(x > 0 for x in changes), sum(x < 0 for x in changes)),
            )
            if groups is None:
                theirs = scipy.stats.ttest_rel(b, a)
                yield found.value / found.standard_error, pytest.approx(theirs.statistic)
    for ups, downs in ((6, 6), (5, 7), (7, 5), (0, 0), (6, 5)):
        changes = (
            [0.2, 0.1, 0.3, 0.2, 0.1, 0.4, 0.5][:ups]
            + [-0.3, -0.1, -0.2, -0.2, -0.1, -0.6, -0.1][:downs]
            + [0.0] * 5
        )
        found = paired.paired_difference([0.0] * len(changes), changes)
        yield (
            found.interval,
            pytest.approx(interval_of_differences(changes, range(len(changes)), changes, 0.95)),
        )
        yield (found.wins, found.losses, found.ties, found.rows), (ups, downs, 5, len(changes))
    found = paired.paired_difference([0.25, 0.5], [0.75, 0.25], clusters=["x", "x"])
    yield (
        (found.value, found.interval, found.standard_error, found.half_width, found.verdict),
        (0.125, None, None, None, "undecided"),
    )
    yield (found.mean_a, found.mean_b, found.clusters), (0.375, 0.5, 1)
    tiny = [x * 1e-200 for x in LABELS], [x * 1e-200 for x in SCORES]
    for found in (
        paired.paired_difference(*tiny),
        prediction.ppi_difference(pairs(*tiny), pairs(*tiny)),
    ):
        low, high = found.interval  # the squares of such numbers are 0
        yield (found.value != 0, low < 0 < high, abs(high) < 1e-100), (True, True, True)
    many = paired.paired_difference([0.5] * 40, [0.6, 0.7] * 20)
    yield (many.verdict, replace(many, interval=(-0.2, -0.1)).verdict), ("better", "worse")
    yield (
        (replace(many, interval=(0.0, 0.1)).verdict, replace(many, interval=(-0.1, 0.0)).verdict),
        ("undecided", "undecided"),
    )
    yield many.half_width, pytest.approx(half(many.interval))


def slice_figures():
    names = ["x", "y", "y"] * 5
    found = paired.slice_differences(LABELS, SCORES, names, clusters=UNEQUAL, confidence=0.9)
    for name in ("x", "y"):
        rows = [n for n in range(15) if names[n] == name]
        expected = paired.paired_difference(
            [LABELS[n] for n in rows],
            [SCORES[n] for n in rows],
            clusters=[UNEQUAL[n] for n in rows],
            confidence=0.95,
        )
        yield (
            found[name],
            replace(
                expected, confidence=pytest.approx(0.95), interval=pytest.approx(expected.interval)
            ),
        )
    yield list(found), ["x", "y"]
    yield paired.slice_differences([], [], []), {}
    yield len(paired.slice_differences([0] * 50, [0] * 50, list(map(str, range(50))))), 50


def win_figures():
    second, first = [1, 0, 0.5, 1, 1, 0, 1, 0.5], [1, 0, 1, 0, 1, 0.5, 1, 0.5]
    shares = [(x + y) / 2 for x, y in zip(second, first, strict=True)]
    found = paired.win_rate(second, first, clusters=[0, 0, 1, 2, 3, 4, 5, 6], confidence=0.9)
    changes = [share - 0.5 for share in shares]
    low, high = interval_of_differences(changes, [0, 0, 1, 2, 3, 4, 5, 6], changes, 0.9)
    yield (
        (found.value, *found.interval),
        pytest.approx((fmean(shares), max(0, 0.5 + low), min(1, 0.5 + high))),
    )
    yield (
        (found.position_bias, found.consistency, found.pairs, found.clusters),
        (pytest.approx((5.0 - 5.0) / 16), 5 / 8, 8, 7),
    )
    biased = paired.win_rate([0.25, 0.5], [0.75, 0.5])
    yield (biased.value, biased.position_bias, biased.consistency), (0.5, pytest.approx(0.125), 0.5)
    yield paired.win_rate([1], [0]).interval, None
    yield (
        (
            found.verdict,
            replace(found, interval=(0.51, 1)).verdict,
            replace(found, interval=(0, 0.49)).verdict,
        ),
        ("undecided", "better", "worse"),
    )


def rows_figures():
    """The half-width falls with the root of the rows, and with their number if there is no
    spread.
    """
    base = paired.paired_difference([0.0] * 4, [0.1, 0.1, 0.1, 0.1])
    spread = paired.PairedDifference(0.02, (-0.08, 0.12), 0.05, 100, 100, 0.5, 0.52, 1, 1, 1)
    yield paired.rows_to_decide(spread), 2500
    yield paired.rows_to_decide(replace(spread, value=-0.02)), 2500
    yield paired.rows_to_decide(spread, 0.03), 400
    yield paired.rows_to_decide(replace(spread, value=-0.02), 0.04), 2500
    yield paired.rows_to_decide(replace(spread, standard_error=0.0)), 500
    yield paired.rows_to_decide(replace(spread, value=0.5)), 100
    yield paired.rows_to_decide(replace(spread, value=0.0)), None
    yield paired.rows_to_decide(replace(spread, interval=None)), None
    yield paired.rows_to_decide(spread, max_rows=2500), 2500
    yield paired.rows_to_decide(spread, max_rows=2499), None
    yield (
        paired.rows_to_decide(base),
        4 if base.verdict == "better" else ceil(4 * base.half_width / base.value),
    )


def votes_figures():
    """Kish's design effect with the mean of numpy.corrcoef."""
    scores = {"x": SCORES, "y": LABELS[::-1], "z": OTHERS[:15]}
    errors = [[a - b for a, b in zip(column, LABELS, strict=True)] for column in scores.values()]
    r = np.corrcoef(errors)[np.triu_indices(3, 1)].mean()
    found = paired.effective_votes(scores, LABELS)
    yield (
        (found.judges, found.value, found.correlation, found.rows),
        (3, pytest.approx(3 / (1 + 2 * r)), pytest.approx(r), 15),
    )
    against = paired.effective_votes({"x": [0, 1, 0, 1], "y": [1, 0, 1, 0]}, [0.5] * 4)
    yield (against.value, against.correlation), (2.0, pytest.approx(-1.0))
    yield paired.effective_votes({"x": LABELS}, SCORES), None
    yield paired.effective_votes({"x": [0, 1], "y": [1, 0]}, [0, 0]), None
    yield paired.effective_votes({}, []), None


def sequence_figures():
    """By confseq.betting.betting_cs(x, breaks=2000, running_intersection=True, theta=1/2,
    trunc_scale=1/2), and step by step.
    """
    theirs = [
        (0.0, 1.0),
        (0.0, 1.0),
        (0.116, 1.0),
        (0.142, 0.929),
        (0.191, 0.9),
        (0.233, 0.88),
        (0.255, 0.8525),
        (0.282, 0.835),
    ]
    theirs += [
        (0.304, 0.82),
        (0.328, 0.812),
        (0.3465, 0.8015),
        (0.365, 0.7945),
        (0.37, 0.7785),
        (0.3815, 0.7695),
        (0.389, 0.7585),
    ]
    found = intervals.confidence_sequence(LABELS)
    yield (
        list(zip(found.low, found.high, strict=True)),
        [pytest.approx(pair, abs=0.00051) for pair in theirs],
    )
    yield found.interval, (found.low[-1], found.high[-1])
    passes = intervals.confidence_sequence(PASSES, confidence=0.9)
    for n, (low, high) in enumerate(bets(PASSES, 0.1, [k / 100 for k in range(101)])):
        yield passes.low[n] <= low <= passes.low[n] + 0.011, True
        yield passes.high[n] >= high >= passes.high[n] - 0.011, True
    wide = intervals.confidence_sequence([10 * x - 3 for x in LABELS], bounds=(-3, 7))
    yield wide.interval, pytest.approx(tuple(10 * x - 3 for x in found.interval))
    yield (
        (found.decided_after(0.0), found.decided_after(0.95), found.decided_after(0.5)),
        (3, 4, None),
    )
    yield (found.decided_after(found.low[2]), found.decided_after(found.high[3])), (4, 5)
    yield intervals.confidence_sequence([1.0]).interval, (0.0, 1.0)
    # every mean is excluded in the end
    against = intervals.confidence_sequence([0.0] * 40 + [1.0] * 60, confidence=0.5)
    yield against.interval, (against.low[59], against.high[59])
    yield against.low[20] < against.low[59] <= against.high[59] < against.high[20], True
    yield intervals.ConfidenceSequence((0.0, 0.2), (1.0, 1.0)).decided_after(0.2), None


def fit_figures():
    """A line with its slope moved towards 1; its errors with each cluster left out; and isotonic
    regression of many labels.
    """
    points = list(zip(SCORES, LABELS, strict=True))
    for groups in (range(15), UNEQUAL):
        found = calibration.fit_calibration(SCORES, LABELS, clusters=list(groups))
        line = shrunk_line(points)
        yield (
            [y for _, y in found.knots],
            pytest.approx([line(min(SCORES)), line(max(SCORES))], abs=1e-6),
        )
        expected = [
            min(
                1.0,
                max(
                    0.0,
                    shrunk_line([p for p, g in zip(points, groups, strict=True) if g != own])(
                        score
                    ),
                ),
            )
            for (score, _), own in zip(points, groups, strict=True)
        ]
        errors = [label - mean for (_, label), mean in zip(points, expected, strict=True)]
        floor = max(0.01, fmean(LABELS) * (1 - fmean(LABELS)) / 3)
        relative = [
            error / sqrt(floor + mean * (1 - mean))
            for error, mean in zip(errors, expected, strict=True)
        ]
        yield found.errors, pytest.approx(sorted(relative), abs=1e-6)
        yield found.error_sd, pytest.approx(sqrt(fmean(e * e for e in errors)), abs=1e-6)
        yield (found.labels, found.clusters), (15, len(set(groups)))
    yield (
        found.score_error_sd,
        pytest.approx(sqrt(fmean((x - y) ** 2 for x, y in points)), abs=1e-6),
    )
    yield (
        (found.label_mean, found.score_mean, found.bias),
        pytest.approx((fmean(LABELS), fmean(SCORES), 0.0886667), abs=1e-6),
    )
    yield found.score_sd, pytest.approx(sqrt(pvariance(SCORES)), abs=1e-6)
    yield from map_figures()
    yield from drift_figures()


def map_figures():
    """From 51 labels: the line, isotonic regression, or the mean of both, whichever cross-fitting
    does not find to be worse.
    """
    rng = random.Random(0)
    scores = [round(rng.random() * 20) / 20 for _ in range(60)]
    worlds = {
        "line": [0.15 + 0.6 * x + rng.gauss(0, 0.1) for x in scores],
        "step": [0.9 if x > 0.62 else 0.1 for x in scores],
        "bend": [min(1.0, max(0.0, 0.3 * x + 0.6 * x**3 + rng.gauss(0, 0.1))) for x in scores],
    }
    chosen = {}
    for name, labels in worlds.items():
        points = list(zip(scores, labels, strict=True))
        found = calibration.fit_calibration(scores, labels)
        line, steps = shrunk_line(points), isotonic(points)
        blocks = [
            [x for x in steps if steps[x] == value] for value in dict.fromkeys(steps.values())
        ]
        centres = [fmean([x for x in scores if x in block]) for block in map(set, blocks)]
        joined = lambda x, at=centres, values=[steps[b[0]] for b in blocks]: float(
            np.interp(x, at, values)
        )
        maps = {
            "line": line,
            "step": lambda x, steps=steps: steps[x],
            "mean": lambda x, f=line, g=joined: (f(x) + g(x)) / 2,
        }
        at = sorted(set(scores))
        far = {
            kind: max(abs(found.expected_label(x) - min(1.0, max(0.0, each(x)))) for x in at)
            for kind, each in maps.items()
        }
        chosen[name] = [kind for kind, distance in far.items() if distance < 1e-5]
    yield chosen, {"line": ["line"], "step": ["step"], "bend": ["mean"]}
    few = calibration.fit_calibration(scores[:50], worlds["step"][:50])
    yield len(few.knots), 2
    yield len(calibration.fit_calibration(scores[:51], worlds["step"][:51]).knots) > 2, True


def drift_figures():
    """Two tasks with two refinements each, by hand: the scores gain 0.2, 0.1, 0.3 and 0.2, the
    labels 0.1, 0.1, 0.1 and 0.
    """
    scores, labels = [0.2, 0.4, 0.5, 0.3, 0.6, 0.8], [0.2, 0.3, 0.4, 0.1, 0.2, 0.2]
    parents, tasks = [None, 0, 1, None, 3, 4], ["x", "x", "x", "y", "y", "y"]
    changes, by_task = [0.1, 0.0, 0.2, 0.2], [(0.1, 0.0), (0.2, 0.2)]
    mean = fmean(changes)
    error = sqrt(2 / 1 * sum(sum(c - mean for c in each) ** 2 for each in by_task)) / 4
    for noise_sd, repeats in ((None, 1), (0.0, 1), (0.1, 4)):
        found = calibration.fit_calibration(
            scores, labels, clusters=tasks, parents=parents, noise_sd=noise_sd, repeats=repeats
        )
        groups = ([0, 3], [1, 2, 4, 5])
        squares, products = (
            sum(
                (scores[i] - fmean(scores[k] for k in g)) * (side[i] - fmean(side[k] for k in g))
                for g in groups
                for i in g
            )
            for side in (scores, labels)
        )
        slope = products / squares
        if noise_sd is None:
            slope = max(1.0, slope)
        else:
            slope = max(0.3, slope / max(0.3, 1 - noise_sd**2 / repeats * 6 / squares))
        gains = [(0.2, 0.1), (0.1, 0.1), (0.3, 0.1), (0.2, 0.0)]
        changes = [score - label / slope for score, label in gains]
        yield (found.drift, found.drift_pairs), (pytest.approx(fmean(changes), abs=1e-6), 4)
        if noise_sd is None:
            yield found.drift_se, pytest.approx(error, abs=1e-6)
        yield (found.noise_sd, found.repeats), (noise_sd, repeats)
    single = calibration.fit_calibration(
        scores[:3], labels[:3], clusters=tasks[:3], parents=parents[:3]
    )
    yield (
        (single.drift, single.drift_se, single.drift_pairs, single.error_sd),
        (pytest.approx(0.05, abs=1e-6), None, 2, None),
    )
    two = calibration.fit_calibration(
        [0.2, 0.5, 0.2, 0.5], [0.3, 0.5, 0.4, 0.8], clusters=["x", "x", "y", "y"]
    )
    yield (two.error_sd is None, len(two.errors)), (False, 4)
    equal = calibration.fit_calibration([0.5] * 3, [0.1, 0.2, 0.6], parents=[None, 0, 0])
    yield equal.drift, pytest.approx(-0.3, abs=1e-6)


def drift_of_a_judge_figures():
    found = paired.judge_drift(LABELS, SCORES, OTHERS[:15], clusters=UNEQUAL, confidence=0.9)
    yield (
        found.shift,
        paired.paired_difference(LABELS, SCORES, clusters=UNEQUAL, confidence=0.9),
    )
    errors = [
        [abs(x - y) for x, y in zip(side, OTHERS[:15], strict=True)] for side in (LABELS, SCORES)
    ]
    yield (
        found.error_change,
        paired.paired_difference(*errors, clusters=UNEQUAL, confidence=0.9),
    )
    yield (found.margin, paired.judge_drift(LABELS, SCORES).error_change), (0.02, None)
    shift = paired.paired_difference(LABELS, SCORES)
    low, high = shift.interval
    for margin, verdict in ((high, "stable"), (high * 0.999, "drifted"), (low, "drifted")):
        yield paired.judge_drift(LABELS, SCORES, margin=margin).verdict, verdict
        yield paired.judge_drift(SCORES, LABELS, margin=margin).verdict, verdict
    near = [x + 0.01 * (-1) ** n for n, x in enumerate(LABELS)]
    yield paired.judge_drift(LABELS, near, margin=0.001).verdict, "undecided"
    yield paired.judge_drift([0.1], [0.5]).verdict, "undecided"


def score_cases(labels, tasks=None):
    return [
        LabelledCase(str(n), "score", Task("t" if tasks is None else tasks[n]), ("r",), label=label)
        for n, label in enumerate(labels)
    ]


def concordance_by_row(labels, scores, step=1e-5):
    """Return what each row adds to the share of pairs in the right order, by the change of that
    share with the row's weight.
    """

    def share(weights):
        pairs = [
            (weights[i] * weights[j], i, j)
            for i in range(len(labels))
            for j in range(i)
            if labels[i] != labels[j]
        ]
        right = sum(
            w * (1 + np.sign((labels[i] - labels[j]) * (scores[i] - scores[j]))) / 2
            for w, i, j in pairs
        )
        return right / sum(w for w, _, _ in pairs)

    rows = range(len(labels))
    up, down = (
        [share([1 + sign * step * (i == n) for i in rows]) for n in rows] for sign in (1, -1)
    )
    return [
        share([1] * len(labels)) + len(labels) * (a - b) / (2 * step)
        for a, b in zip(up, down, strict=True)
    ]


def concordance_figures():
    """The probability of the right order is (1 + D) / 2, for Somers' D of scipy.stats.somersd."""
    cases = score_cases([round(y, 1) for y in LABELS])
    sides = [[round(x, 1) for x in SCORES], OTHERS[:15]]
    verdicts = [[Verdict(str(n), (x,)) for n, x in enumerate(side)] for side in sides]
    found = grader_comparison.compare_verdicts(cases, *verdicts)
    shares = [
        (1 + scipy.stats.somersd([case.label for case in cases], side).statistic) / 2
        for side in sides
    ]
    yield (
        (found.measure, found.difference.mean_a, found.difference.mean_b),
        ("concordance", *map(pytest.approx, shares)),
    )
    yield found.difference.rows, 15
    expected = paired.paired_difference(
        *(concordance_by_row([case.label for case in cases], side) for side in sides)
    )
    yield found.difference.standard_error, pytest.approx(expected.standard_error, rel=1e-5)
    yield found.difference.interval, pytest.approx(expected.interval, rel=1e-5)


def proportion_figures():
    outcomes = [1, 1, 0, 1, 0, 0, 1, 1, 1, 0.5]
    plain = report.proportion("x", outcomes, [""] * 10, chance=0.5, about="y")
    yield (
        (plain.value, plain.low, plain.high, plain.n),
        (0.65, *map(pytest.approx, wilson(0.65, 10, normal(0.95))), 10),
    )
    yield (plain.name, plain.chance, plain.about, plain.clusters), ("x", 0.5, "y", None)
    groups = ["a", "a", "b", "b", "b", "", "", "c", "c", "d"]
    units = [g or n for n, g in enumerate(groups)]
    for spread in (outcomes, [0, 1, 0, 1, 1, 0, 1, 0, 1, 1]):
        sizes, sums = by_cluster(units, spread)
        mean, variance = mean_and_variance(sizes, sums)
        n = mean * (1 - mean) / max(variance, mean * (1 - mean) / 10)
        t = scipy.stats.t.ppf(0.975, matrix_freedom(sizes))
        found = report.proportion("x", spread, groups)
        yield (
            (found.value, found.low, found.high, found.clusters),
            (pytest.approx(mean), *map(pytest.approx, wilson(mean, n, t)), 6),
        )
    for share in (0, 1):
        found = report.proportion("x", [share] * 10, groups)
        yield (found.low, found.high), tuple(map(pytest.approx, wilson(share, 6, normal(0.95))))
    single = report.proportion("x", [1, 0], ["a", "a"])
    yield (
        (single.value, single.low, single.high, single.n, single.clusters),
        (0.5, None, None, 2, 1),
    )
    none = report.proportion("x", [], [])
    yield (none.value, none.low, none.high, none.n), (None, None, None, 0)


def estimate_figures():
    rows = [float(n * n % 17) for n in range(12)]
    found = report.estimate("x", rows, [""] * 12, fmean, 3, chance=0.1, about="y")
    yield (
        (found.value, found.n, found.clusters, found.chance, found.about),
        (fmean(rows), 12, None, 0.1, "y"),
    )
    yield (
        (found.low, found.high),
        m.bootstrap_interval(rows, fmean, samples=report.BOOTSTRAP_SAMPLES, seed=3),
    )
    together = report.estimate("x", rows * 2, [f"c{n}" for n in range(12)] * 2, fmean, 3)
    yield (
        (together.low, together.high, together.n, together.clusters),
        (found.low, found.high, 24, 12),
    )
    nine, ten = (report.estimate("x", rows[:n], [""] * n, fmean, 3) for n in (9, 10))
    yield (nine.low, nine.high, ten.low is None, ten.high is None), (None, None, False, False)
    unknown = report.estimate("x", rows, [""] * 12, lambda _: None, 3)
    yield (
        (unknown.value, unknown.low, unknown.high, report.estimate("x", [], [], fmean, 3).value),
        (None, None, None, None),
    )


def share_figures():
    """Without clusters it is Wilson's; with clusters, for as many rows as would be as precise."""
    yield m.share_interval(PASSES), m.wilson_interval(sum(PASSES), len(PASSES))
    yield m.share_interval([]), None
    yield m.share_interval([1, 0], ["x", "x"]), None
    sizes, sums = by_cluster(UNEQUAL, PASSES[: len(UNEQUAL)])
    mean, variance = mean_and_variance(sizes, sums)
    spread = mean * (1 - mean)
    quantile = scipy.stats.t.ppf(0.95, matrix_freedom(sizes))
    yield (
        m.share_interval(PASSES[: len(UNEQUAL)], UNEQUAL, 0.9),
        pytest.approx(wilson(mean, spread / max(variance, spread / sum(sizes)), quantile)),
    )
    yield m.share_interval([1, 1, 1], ["x", "x", "y"]), m.wilson_interval(2, 2)


def concordance_value_figures():
    """Their mean is the share of pairs in the order of the labels; a missing score orders none."""
    labels, scores = [1, 2, 3, 3], [0.1, 0.4, 0.4, None]
    found = m.concordance_values(labels, scores)
    # the five pairs of different labels: 1-2 and 1-3 are right; a tie, and both without a score,
    # count half
    yield fmean(found), pytest.approx((1 + 1 + 0.5 + 0.5 + 0.5) / 5)
    yield m.concordance_values([1, 1], [0.1, 0.2]), [None, None]


def ranking(places, *verdicts):
    return CaseVerdicts(
        LabelledCase("x", "ranking", Task("t"), tuple("abcdef"[: len(places)]), ranks=places),
        verdicts,
    )


def tau_figures():
    people = (0, 1, 1, 2, 3)
    for places in ((0, 1, 2, 3, 4), (1, 0, 2, 2, 0), (4, 3, 2, 1, 0)):
        yield (
            report.kendall_tau(ranking(people, Verdict("x", ranks=places))),
            pytest.approx(tau_b(people, places)),
        )
    two = ranking(
        (0, 1, 2),
        Verdict("x", ranks=(0, 1, 2)),
        Verdict("x", ranks=(2, 1, 0)),
        Verdict("x", ranks=(0, 1, 2)),
    )
    yield report.kendall_tau(two), pytest.approx(1.0)
    yield report.kendall_tau(ranking((0, 1), Verdict("x", reason="unreadable"))), 0.0
    yield report.kendall_tau(ranking((0, 1), Verdict("x", ranks=(0, 0)))), 0.0
    yield report.kendall_tau(ranking((0, 0), Verdict("x", ranks=(0, 1)))), None


def attack_figures():
    """Four attacked answers of two tasks: one verdict changes; an unreadable one counts as
    unchanged.
    """
    cases = [
        LabelledCase(f"{task}+{n}", "pass", Task(task), ("r",), label=0, group=kind)
        for n, (task, kind) in enumerate(
            [("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("z", "b")]
        )
    ]
    scores = {"x+0": 0.5, "x+1": 0.49, "y+2": None, "y+3": 0.1}
    verdicts = {
        id: [Verdict(id, (score,), reason="" if score else "?")] for id, score in scores.items()
    }
    found = attacks.attack_success_rates(cases, verdicts)
    yield (
        [(x.name, x.value, x.n) for x in found],
        [("all attacks", 0.25, 4), ("a", 0.5, 2), ("b", 0.0, 2)],
    )
    low, high = sorted((found[0].low, found[0].high))
    sizes, sums = [2, 2], [1, 0]
    mean, variance = mean_and_variance(sizes, sums)
    expected = wilson(
        mean, mean * (1 - mean) / max(variance, mean * (1 - mean) / 4), scipy.stats.t.ppf(0.975, 1)
    )
    yield (low, high), pytest.approx(expected)
    yield [x.value for x in attacks.attack_success_rates(cases, verdicts, 0.51)], [0.0, 0.0, 0.0]


def exact_freedom(sizes):
    return intervals.degrees_of_freedom(np.array(sizes, float))


def widened(changes, groups, level):
    sizes, sums = (np.array(column, float) for column in by_cluster(groups, changes))
    mean = intervals.clustered_mean(sizes, sums)
    freedom = mean.degrees_of_freedom
    return intervals.with_two_rows(
        mean.interval(level),
        np.array(changes),
        sums,
        sizes,
        sums,
        freedom=freedom,
        confidence=level,
    )


def scale(column, unit, shift=0.0):
    return lambda t: t.each(lambda x: unit * x + shift, *column)


def mirror(*columns):
    """Return the change that turns numbers from 0 to 1 round, and values with them."""
    return scale(columns, -1, 1), lambda x: 1 - x


def exchange(first, second):
    return lambda t: replace(t, **{first: getattr(t, second), second: getattr(t, first)})


def pairs(first, second):
    return list(zip(first, second, strict=True))


def correlation(name):
    measure = getattr(m, name)
    return lambda t: measure(t.y, t.f)


NEGATIVE = (scale(["y"], -3, 1), lambda x: -x)
UNIT = (-1.0, 1.0)
SHARE = (0.0, 1.0)

FUNCTIONS = {
    "intervals.wilson_interval": Function(
        wilson_figures,
        lambda t: m.wilson_interval(sum(t.good), len(t.good)),
        SHARE,
        changes=[mirror("good")],
    ),
    "intervals.score_interval": Function(
        lambda: [
            (m.score_interval(p, n, z), pytest.approx(wilson(p, n, z)))
            for p in (0.0, 0.3, 1.0)
            for n in (0.5, 9)
            for z in (1, 2.5)
        ]
    ),
    "agreement.precision_recall_f1": Function(
        label_figures, lambda t: m.precision_recall_f1(t.y, t.f), (0, float("inf"))
    ),
    "agreement.cohen_kappa": Function(
        kappa_figures,
        lambda t: m.cohen_kappa(t.y, t.f, "linear"),
        UNIT,
        changes=[(mirror("y", "f")[0], SAME), (exchange("y", "f"), SAME)],
    ),
    "agreement.fleiss_kappa": Function(
        # by statsmodels.stats.inter_rater.fleiss_kappa(aggregate_raters(...)[0])
        lambda: [
            (m.fleiss_kappa(list(zip(*CODES, strict=True))), pytest.approx(0.4880546075085325))
        ],
        lambda t: m.fleiss_kappa(list(zip(t.y, t.f, t.g, strict=True))),
        UNIT,
        changes=[(mirror("y", "f", "g")[0], SAME)],
    ),
    "agreement.krippendorff_alpha": Function(
        alpha_figures,
        lambda t: [
            m.krippendorff_alpha(list(zip(t.y, t.f, t.g, strict=True)), level)
            for level in ("nominal", "ordinal", "interval")
        ],
        UNIT,
        changes=[(scale(["y", "f", "g"], -7, 2), SAME)],
    ),
    "agreement.pearson": Function(
        lambda: [
            (
                m.pearson(LABELS, SCORES),
                pytest.approx(scipy.stats.pearsonr(LABELS, SCORES).statistic),
            ),
            (m.pearson([1e-200, 3e-200, 2e-200], [1e200, 2e200, 3e200]), pytest.approx(0.5)),
            (m.pearson([1, 2], [1, 2]), None),
        ],
        correlation("pearson"),
        UNIT,
        changes=[NEGATIVE, (scale(["f"], 1e-30), SAME), (exchange("y", "f"), SAME)],
    ),
    "agreement.spearman": Function(
        lambda: [
            (
                m.spearman(SCORES, CONTROL),
                pytest.approx(scipy.stats.spearmanr(SCORES, CONTROL).statistic),
            )
        ],
        correlation("spearman"),
        UNIT,
        changes=[
            NEGATIVE,
            (lambda t: t.each(lambda x: x**3, "f"), SAME),
            (exchange("y", "f"), SAME),
        ],
    ),
    "agreement.kendall": Function(
        lambda: [(m.kendall(SCORES, CONTROL), pytest.approx(tau_b(SCORES, CONTROL)))],
        correlation("kendall"),
        UNIT,
        changes=[
            NEGATIVE,
            (lambda t: t.each(lambda x: x**3, "f"), SAME),
            (exchange("y", "f"), SAME),
        ],
    ),
    "agreement.partial_rank_correlation": Function(
        lambda: [
            (
                m.partial_rank_correlation(LABELS, SCORES, CONTROL),
                pytest.approx(ranks_partial(LABELS, SCORES, CONTROL)),
            ),
            # the control determines a side, also where rounding makes that correlation a little
            # less than 1
            *(
                (m.partial_rank_correlation(LABELS[:n], [unit * x for x in control], control), None)
                for n in range(4, 16)
                for unit in (1, -1)
                for control in ([x + n / 1e3 for n, x in enumerate(LABELS[::-1][:n])], CONTROL[:n])
            ),
        ],
        lambda t: m.partial_rank_correlation(t.y, t.f, t.g),
        UNIT,
        changes=[NEGATIVE, (scale(["g"], -2), SAME), (exchange("y", "f"), SAME)],
    ),
    "agreement.brier_score": Function(
        # by sklearn.metrics.brier_score_loss
        lambda: [
            (
                m.brier_score(FORECASTS[:12], [1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1]),
                pytest.approx(0.25937499999999997),
            )
        ],
        lambda t: m.brier_score(t.y, t.good),
        SHARE,
        changes=[(mirror("y", "good")[0], SAME)],
    ),
    "agreement.expected_calibration_error": Function(
        lambda: [
            (
                m.expected_calibration_error(FORECASTS, PASSES, k),
                pytest.approx(calibration_error(FORECASTS, PASSES, k)),
            )
            for k in (1, 4, 10)
        ],
        lambda t: m.expected_calibration_error(t.y, t.good),
        SHARE,
    ),
    "agreement.reliability_bins": Function(
        bin_figures, lambda t: m.reliability_bins(t.y, t.good), (0, float("inf"))
    ),
    "intervals.bootstrap_interval": Function(
        bootstrap_figures,
        lambda t: m.bootstrap_interval(t.y, fmean, samples=20),
        SHARE,
        ordered=True,
    ),
    "intervals.share_interval": Function(
        share_figures,
        lambda t: m.share_interval(t.good, t.clusters),
        SHARE,
        changes=[mirror("good")],
    ),
    "intervals.clip_interval": Function(
        lambda: [
            (m.clip_interval(None, 0, 1), None),
            (m.clip_interval((-0.5, 0.5), 0, 1), (0, 0.5)),
            (m.clip_interval((0.25, 1.5), -1, 1), (0.25, 1)),
        ]
    ),
    "agreement.mean_ranks": Function(
        lambda: [(m.mean_ranks([0.5, 0.1, 0.5, 9]).tolist(), [2.5, 1, 2.5, 4])]
    ),
    "agreement.concordance_values": Function(
        concordance_value_figures,
        lambda t: m.concordance_values(t.y, t.f),
        changes=[(scale(["y"], 3, 1), SAME), (scale(["f"], 2, 1), SAME)],
    ),
    "agreement.noise_sigma": Function(
        # by statsmodels ols("v ~ C(case)").fit().mse_resid ** 0.5
        lambda: [
            (
                m.noise_sigma([[0.1, 0.3, 0.2], [0.5, 0.55], [0.9, 0.7, 0.8, 0.85], [0.4]]),
                pytest.approx(0.08477912478906587),
            ),
            (m.noise_sigma([[1e200, None, 3e200]]), pytest.approx(sqrt(2) * 1e200)),
        ],
        lambda t: m.noise_sigma(list(zip(t.y, t.f, strict=True))),
        (0, float("inf")),
        changes=[(scale(["y", "f"], -3, 5), lambda x: 3 * x)],
    ),
    "agreement.isotonic_blocks": Function(
        block_figures,
        lambda t: m.isotonic_blocks(pairs(t.y, t.f)),
        changes=[(scale(["y", "f"], 2, 1), lambda x: 2 * x + 1)],
    ),
    "samples.finite_numbers": Function(
        lambda: [
            (m.finite_numbers("x", [True, np.float64(0.5), -2, 1e100]), [1.0, 0.5, -2.0, 1e100])
        ],
        lambda t: m.finite_numbers("x", t.y, 0, 1),
        SHARE,
    ),
    "intervals.t_quantile": Function(
        lambda: [
            (m.t_quantile(p, df), pytest.approx(scipy.stats.t.ppf(p, df)))
            for p in (0.025, 0.5, 0.99)
            for df in (1, 2.5, 30)
        ]
    ),
    "intervals.t_half_width": Function(
        lambda: [
            (
                intervals.t_half_width(0.04, 7.5, 0.9),
                pytest.approx(0.2 * scipy.stats.t.ppf(0.95, 7.5)),
            )
        ]
    ),
    "intervals.cluster_numbers": Function(
        lambda: [
            (intervals.cluster_numbers(["b", "a", "b", 3], 4).tolist(), [0, 1, 0, 2]),
            (intervals.cluster_numbers(None, 3).tolist(), [0, 1, 2]),
        ]
    ),
    "intervals.cluster_sums": Function(
        lambda: [
            (
                [
                    x.tolist()
                    for x in intervals.cluster_sums(np.array([0, 1, 0]), [1, 2, 4], [0.5, 0, 0])
                ],
                [[2, 1], [5, 2], [0.5, 0]],
            )
        ]
    ),
    "intervals.clustered_mean": Function(clustered_figures),
    "intervals.jackknife_variance": Function(
        lambda: [(intervals.jackknife_variance(np.array([1.0, -2.0, 1.0])), 4.0)]
    ),
    "intervals.degrees_of_freedom": Function(
        lambda: [
            (exact_freedom(sizes), pytest.approx(matrix_freedom(sizes)))
            for sizes in ([1, 1], [1, 2, 3], [9, 1, 1, 1], [2, 7, 7, 3, 1])
        ]
    ),
    "intervals.with_two_rows": Function(
        lambda: [
            (
                widened(changes, groups, 0.9),
                pytest.approx(interval_of_differences(changes, groups, changes, 0.9)),
            )
            for groups in (range(15), THREES, UNEQUAL)
            for changes in ([0.0] * 15, [0.2, -0.1, 0.0] * 5, [x - 0.6 for x in LABELS])
        ]
    ),
    "prediction.ppi_mean": Function(
        ppi_figures,
        lambda t: prediction.ppi_mean(
            t.y, t.f, t.others, clusters=t.clusters, unlabelled_clusters=t.other_clusters
        ),
        of_clusters=True,
        changes=[
            (scale(["y"], 1, -5), lambda x: x - 5),
            (scale(["y", "f", "others"], -3, 2), lambda x: 2 - 3 * x),
            (scale(["f", "others"], 4, -2), SAME),
        ],
    ),
    "prediction.ppi_difference": Function(
        ppi_difference_figures,
        lambda t: prediction.ppi_difference(
            pairs(t.y, t.g),
            pairs(t.f, t.g),
            pairs(t.others, t.passed_a),
            clusters=t.clusters,
            unlabelled_clusters=t.other_clusters,
        ),
        of_clusters=True,
        changes=[(scale(["y", "f", "g", "others", "passed_a"], -2, 1), lambda x: -2 * x)],
    ),
    "prediction.rogan_gladen": Function(
        rogan_gladen_figures,
        lambda t: prediction.rogan_gladen(t.good, t.passed, t.passed_a),
        SHARE,
        changes=[mirror("good", "passed", "passed_a")],
    ),
    "prediction.rogan_gladen_difference": Function(
        rogan_gladen_difference_figures,
        lambda t: prediction.rogan_gladen_difference(t.good, t.passed, t.passed_a, t.passed_b),
        UNIT,
        changes=[
            (exchange("passed_a", "passed_b"), lambda x: -x),
            (mirror("good", "passed", "passed_a", "passed_b")[0], lambda x: -x),
        ],
    ),
    "prediction.labels_needed": Function(needed_figures),
    "paired.paired_difference": Function(
        paired_figures,
        lambda t: paired.paired_difference(t.y, t.f, clusters=t.clusters),
        of_clusters=True,
        changes=[(exchange("y", "f"), lambda x: -x), (scale(["y", "f"], 5, 2), lambda x: 5 * x)],
    ),
    "paired.slice_differences": Function(
        slice_figures,
        lambda t: paired.slice_differences(t.y, t.f, list(map(str, t.good)), clusters=t.clusters),
        of_clusters=True,
        changes=[(exchange("y", "f"), lambda x: -x)],
    ),
    "paired.win_rate": Function(
        win_figures,
        lambda t: paired.win_rate(t.y, t.f, clusters=t.clusters),
        SHARE,
        of_clusters=True,
        changes=[mirror("y", "f")],
    ),
    "paired.rows_to_decide": Function(
        rows_figures,
        lambda t: paired.rows_to_decide(paired.paired_difference(t.y, t.f, clusters=t.clusters)),
        (1, 10**7),
    ),
    "paired.effective_votes": Function(
        votes_figures,
        lambda t: paired.effective_votes({"f": t.f, "g": t.g}, t.y),
        (1, 2),
        changes=[(scale(["y", "f", "g"], -3, 1), SAME)],
    ),
    "intervals.interval_verdict": Function(
        lambda: [
            (intervals.interval_verdict(interval, zero), verdict)
            for interval, zero, verdict in (
                (None, 0.0, "undecided"),
                ((0.1, 0.2), 0.0, "better"),
                ((-0.2, -0.1), 0.0, "worse"),
                ((0.0, 0.1), 0.0, "undecided"),
                ((0.4, 0.5), 0.5, "undecided"),
                ((0.4, 0.49), 0.5, "worse"),
            )
        ]
    ),
    "intervals.confidence_sequence": Function(
        sequence_figures,
        lambda t: intervals.confidence_sequence(t.y).interval,
        SHARE,
        ordered=True,
        changes=[mirror("y")],
    ),
    "calibration.fit_calibration": Function(
        fit_figures,
        lambda t: [
            calibration.fit_calibration(
                t.f,
                t.y,
                clusters=t.clusters,
                parents=[None, *range(len(t.y) - 1)] if t.y else [],
                noise_sd=sd,
            ).predict(0.4, sd)
            for sd in (None, 0.0, 0.2)
        ],
        SHARE,
        ordered=True,
    ),
    "paired.judge_drift": Function(
        drift_of_a_judge_figures,
        lambda t: paired.judge_drift(t.y, t.f, t.g, clusters=t.clusters).shift,
        of_clusters=True,
        changes=[(exchange("y", "f"), lambda x: -x)],
    ),
    "grader_comparison.compare_verdicts": Function(
        concordance_figures,
        lambda t: (
            grader_comparison.compare_verdicts(
                score_cases(t.y, t.clusters and [f"task {c}" for c in t.clusters]),
                *([Verdict(str(n), (x,)) for n, x in enumerate(side)] for side in (t.f, t.g)),
            ).difference
        ),
        UNIT,
        changes=[
            (exchange("f", "g"), lambda x: -x),
            (scale(["y"], 3, 1), SAME),
            (scale(["f", "g"], 2, 1), SAME),
        ],
    ),
    "report.proportion": Function(
        proportion_figures,
        lambda t: report.proportion(
            "x", t.good, [""] * len(t.good) if t.clusters is None else [f"c{c}" for c in t.clusters]
        ),
        SHARE,
        changes=[mirror("good")],
    ),
    "report.estimate": Function(estimate_figures),
    "report.kendall_tau": Function(tau_figures),
    "attacks.attack_success_rates": Function(attack_figures),
}

ELSEWHERE = {
    "test_estimators.py": ["samples.binary_numbers"],
    "test_statistics.py": [
        f"samples.{name}"
        for name in ("check_equal_lengths", "check_finite", "complete_rows", "group_values")
    ],
    "test_calibration.py": ["calibration.calibrate_grader"],
    "test_grader_comparison.py": [
        "grader_comparison.compare_graders",
        "grader_comparison.compare_graders_sync",
    ],
    "test_grader_run.py": [
        f"attacks.{name}"
        for name in ("attacked_cases", "prefers_worse", "read_attacks", "worse_response")
    ],
    "test_report.py": [
        *(f"report.{kind}_report" for kind in ("build", "pair", "pass", "ranking", "score")),
        *(
            f"report.{name}"
            for name in ("count_parse_errors", "measure_by_group", "pass_label", "rater_agreement")
        ),
        *(f"report.{name}" for name in ("retest_noise", "unreadable_share", "verdicts_by_case")),
        *(f"report.{name}" for name in ("people_label", "is_right", "preference", "cluster_of")),
        *(f"report.{name}" for name in ("of_columns", "sample", "sample_verdicts")),
        "report.measure_groups",
    ],
    "test_validate_api.py": ["samples.check_dependencies", "samples.import_library"],
}
"""Public functions that read, choose or put together, by the file that tests them."""


# ---- the tests


def public_functions():
    modules = (
        attacks,
        calibration,
        grader_comparison,
        report,
        agreement,
        intervals,
        paired,
        prediction,
        samples,
    )
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in modules
        for name, found in vars(module).items()
        if inspect.isfunction(found)
        and found.__module__ == module.__name__
        and not name.startswith("_")
    }


def test_every_public_function_has_an_entry():
    """A new function needs its figures, or the place where it is tested."""
    assert sorted(public_functions()) == sorted(
        [*FUNCTIONS, *chain.from_iterable(ELSEWHERE.values())]
    )
    assert all(Path(__file__).with_name(file).exists() for file in ELSEWHERE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_another_source(name):
    """Each figure is that of another program, of another formula, or one by hand."""
    for n, (found, expected) in enumerate(FUNCTIONS[name].figures()):
        assert found == expected, n


def numbers(result):
    """Yield every number in a result."""
    if is_dataclass(result):
        result = [getattr(result, field.name) for field in fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from numbers(each)
    elif isinstance(result, float | int):
        yield result


def estimates(result):
    """Return the value and the ends of each estimate in a result, and the numbers of others as they
    are.
    """
    if isinstance(result, dict):
        return [each for part in result.values() for each in estimates(part)]
    if isinstance(result, list):
        return [each for part in result for each in estimates(part)]
    if hasattr(result, "low"):
        return [(result.value, None if result.low is None else (result.low, result.high))]
    if hasattr(result, "interval"):
        return [(result.value if hasattr(result, "value") else result.mean, result.interval)]
    if isinstance(result, tuple):
        return (
            [(None, result)] if len(result) == 2 else [(x, None) for x in result if x is not None]
        )
    return [(getattr(result, "value", result), None)]


def outcome(function, table):
    """Return the estimates for a table, or the refusal."""
    try:
        return estimates(function.call(table))
    except (ConfigError, GradingError) as error:
        return str(error)


WITH_ROWS = [name for name, function in FUNCTIONS.items() if function.call]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", WITH_ROWS)
def test_tables_of_few_rows_give_a_figure_or_a_clear_error(name):
    """Of 0 to 5 rows, all equal or not, with and without clusters and other rows: finite, in order,
    in range, without a warning.
    """
    function, known = FUNCTIONS[name], 0
    lowest, highest = function.limits
    for table in TABLES:
        try:
            result = function.call(table)
        except (ConfigError, GradingError) as error:
            assert len(str(error)) > 10
            continue
        assert all(map(isfinite, numbers(result)))
        for value, interval in estimates(result):
            known += value is not None or interval is not None
            assert value is None or lowest - 1e-9 <= value <= highest + 1e-9
            if interval is not None:
                low, high = interval
                assert lowest <= low <= high <= highest
                assert value is None or low - 1e-9 <= value <= high + 1e-9
    assert known >= 5


def same(first, second):
    """Whether two lists of estimates are equal but for rounding."""
    if isinstance(first, str) or isinstance(second, str):
        return first == second
    return len(first) == len(second) and all(
        (a is None) == (b is None) and (a is None or a == pytest.approx(b, rel=1e-7, abs=1e-9))
        for pair in zip(first, second, strict=True)
        for a, b in zip(*pair, strict=True)
    )


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", [name for name in WITH_ROWS if not FUNCTIONS[name].ordered])
def test_the_order_of_rows_does_not_matter(name):
    """Nor that of other rows; parts of a result may come in another order."""
    function = FUNCTIONS[name]
    for n, table in enumerate([*REGULAR, *TABLES[-40:]]):
        rng = random.Random(n)
        rows, others = (
            rng.sample(range(len(column)), len(column)) for column in (table.y, table.others)
        )
        found, moved = (outcome(function, each) for each in (table, table.order(rows, others)))
        if not isinstance(found, str):
            found, moved = (
                sorted(
                    each, key=lambda part: np.round([part[0] or 0, *(part[1] or ())], 9).tolist()
                )
                for each in (found, moved)
            )
            assert same(found, moved), table


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", [name for name in WITH_ROWS if FUNCTIONS[name].of_clusters])
def test_rows_repeated_in_their_clusters_change_nothing(name):
    """Two copies of each row in one cluster are no more evidence than one."""
    function = FUNCTIONS[name]
    for table in (*REGULAR, *TABLES):
        if table.clusters is not None:
            doubled = table.order([*range(len(table.y))] * 2, [*range(len(table.others))] * 2)
            assert same(outcome(function, table), outcome(function, doubled)), table


@pytest.mark.parametrize("name", [name for name in WITH_ROWS if FUNCTIONS[name].changes])
def test_values_change_with_the_scale(name):
    """In another unit, turned round, or with sides exchanged, values and intervals follow."""
    function = FUNCTIONS[name]
    for table in REGULAR:
        found = estimates(function.call(table))
        for change, follow in function.changes:
            moved = estimates(function.call(change(table)))
            expected = [
                (
                    value if value is None else follow(value),
                    interval and tuple(sorted(map(follow, interval))),
                )
                for value, interval in found
            ]
            assert same(moved, expected), (table, moved, expected)


WITH_CONFIDENCE = {
    "intervals.t_half_width": None,
    "intervals.with_two_rows": None,
    "paired.paired_difference": lambda c: paired.paired_difference([0, 1], [1, 1], confidence=c),
    "paired.slice_differences": lambda c: paired.slice_differences([], [], [], confidence=c),
    "paired.win_rate": lambda c: paired.win_rate([0, 1], [1, 1], confidence=c),
    "prediction.labels_needed": lambda c: prediction.labels_needed(0.1, 0.2, confidence=c),
    "prediction.ppi_difference": lambda c: prediction.ppi_difference(
        [(0, 1)], [(1, 1)], confidence=c
    ),
    "prediction.ppi_mean": lambda c: prediction.ppi_mean([0.5], [0.5], confidence=c),
    "prediction.rogan_gladen": lambda c: prediction.rogan_gladen([0, 1], [0, 1], [1], confidence=c),
    "prediction.rogan_gladen_difference": lambda c: prediction.rogan_gladen_difference(
        [0, 1], [0, 1], [1], [1], confidence=c
    ),
    "grader_comparison.compare_graders": lambda c: asyncio.run(
        grader_comparison.compare_graders([], len, len, confidence=c)
    ),
    "grader_comparison.compare_graders_sync": lambda c: grader_comparison.compare_graders_sync(
        [], len, len, confidence=c
    ),
    "grader_comparison.compare_verdicts": lambda c: grader_comparison.compare_verdicts(
        score_cases([0, 1]), *[[Verdict("0", (0.5,)), Verdict("1", (0.5,))]] * 2, confidence=c
    ),
    "paired.judge_drift": lambda c: paired.judge_drift([0, 1], [1, 1], confidence=c),
    "intervals.confidence_sequence": lambda c: intervals.confidence_sequence([0.5], confidence=c),
    "intervals.bootstrap_interval": lambda c: m.bootstrap_interval([], fmean, level=c),
    "intervals.share_interval": lambda c: m.share_interval([], level=c),
    "intervals.wilson_interval": lambda c: m.wilson_interval(0, 0, level=c),
}
"""The functions with a confidence, and a call of each; None: its callers check it."""


def test_a_confidence_is_between_0_and_1():
    """Each function refuses another one before it looks at the data; 95 is not 95 %."""
    modules = {
        module.__name__.rpartition(".")[2]: module
        for module in (
            attacks,
            calibration,
            grader_comparison,
            report,
            agreement,
            intervals,
            paired,
            prediction,
            samples,
        )
    }
    parameters = {
        name: inspect.signature(getattr(modules[name.partition(".")[0]], name.partition(".")[2]))
        for name in public_functions()
    }
    levels = ("bootstrap_interval", "share_interval", "wilson_interval")
    has_level = {
        name for name, signature in parameters.items() if "confidence" in signature.parameters
    }
    assert has_level | {f"intervals.{name}" for name in levels} == WITH_CONFIDENCE.keys()
    for call in filter(None, WITH_CONFIDENCE.values()):
        for wrong in (0, 1, 95, -0.1, float("nan")):
            with pytest.raises(
                ConfigError,
                match="(confidence|level) must be a number between 0 and 1",
            ):
                call(wrong)
