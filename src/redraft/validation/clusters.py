"""The mean of numbers that come in clusters, and how uncertain it is with few clusters of unequal
sizes.

A cluster is what several rows have in common, such as a task or a document; a row without one is a
cluster of its own. The variance is that of the jackknife, which leaves out one cluster at a time
(CV3). It is estimated from few clusters, and large ones count for few degrees of freedom: those of
Bell and McCaffrey, for independent rows or for clusters whose rows are all alike, whichever are
fewer. If all clusters have one size, both are the usual ones, of the t test of the clusters' means.

Sources: Bell and McCaffrey, "Bias reduction in standard errors for linear regression with
multi-stage samples" (2002); MacKinnon, Nielsen and Webb, "Cluster-robust inference: a guide to
empirical practice" (2023); Bonett and Price, "Adjusted Wald confidence interval for a difference of
binomial proportions based on paired data" (2012).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from . import statistics as m

# with fewer clusters that differ in one direction, an interval is widened by the largest difference
FEW_DIFFERENCES = 6
# of a difference by which an interval is widened; the squares of much smaller ones are 0
SMALLEST_SIZE = 1e-140


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

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Return the interval with Student's t; None for a single cluster."""
        if self.variance is None:
            return None
        half = t_half_width(self.variance, self.degrees_of_freedom, confidence)
        return self.value - half, self.value + half


def t_half_width(variance: float, degrees_of_freedom: float, confidence: float) -> float:
    """Return half the width of an interval with Student's t."""
    return m.t_quantile(0.5 + confidence / 2, degrees_of_freedom) * sqrt(variance)


def cluster_numbers(groups: Sequence[Hashable] | None, count: int) -> Any:
    """Return the number of each row's cluster, from 0, as an array; with None, each row is a
    cluster.
    """
    np: Any = m.import_library("numpy")
    if groups is None:
        return np.arange(count)
    numbers: dict[Hashable, int] = {}
    return np.fromiter((numbers.setdefault(group, len(numbers)) for group in groups), int, count)


def cluster_sums(numbers: Any, *columns: Sequence[float]) -> list[Any]:
    """Return the number of rows in each cluster, then the sums of each column, as arrays."""
    np: Any = m.import_library("numpy")
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
    interval: tuple[float, float],
    differences: Any,
    of_clusters: Any,
    sizes: Any,
    sums: Any,
    *,
    freedom: float,
    confidence: float,
    other_variance: float = 0.0,
) -> tuple[float, float]:
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
    np: Any = m.import_library("numpy")
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
