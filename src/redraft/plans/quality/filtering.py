"""Gaussian observations that stand for scores that are intervals (formulas: README.md,
"Posterior").

Expectation propagation (Minka 2001, UAI) in two sweeps. The first takes the scores text by text
(assumed density filtering); it extends the result for the texts before the last one, which is
cached. In the second, each observation sees all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import fsum, sqrt
from typing import NamedTuple, TypeAlias

from ...base.bounded_cache import BoundedCache
from .likelihood import MIN_PRECISION, ScoreInterval, Site, Vector, update_sites
from .lineage import Node, NoisyScore, Observations
from .priors import Priors
from .tree import (
    JITTER,
    CholeskyRow,
    GaussianTree,
    backward_solve,
    cached_tree,
    dot,
    forward_solve,
)

NO_SITE = Site()


class TextScores(NamedTuple):
    """A text and its scores: the values as one Gaussian observation, and the intervals."""

    node: Node
    value: Site
    intervals: tuple[ScoreInterval, ...]


@dataclass
class FilteredScores:
    """Scores taken text by text, with Gaussian observations for the intervals of each text given
    the scores of earlier ones.

    This is assumed density filtering, the first sweep of expectation propagation. The lists have an
    element for each scored text: its index, the observations that stand for its intervals
    (`sites`), and the one that is worth all of its scores (`totals`). K = L L^T is the covariance
    of these totals: `cholesky` is L, `precisions` the diagonal of K^-1, `alpha` K^-1 (y - E[y]).
    `second_sweep` is the result of the second sweep, once it is needed.
    """

    indices: list[int] = field(default_factory=list)
    sites: list[tuple[Site, ...]] = field(default_factory=list)
    totals: list[Site] = field(default_factory=list)
    cholesky: list[CholeskyRow] = field(default_factory=list)
    precisions: Vector = field(default_factory=list)
    alpha: Vector = field(default_factory=list)
    second_sweep: tuple[GaussianTree, Vector] | None = None

    def copy(self) -> FilteredScores:
        return FilteredScores(
            [*self.indices],
            [*self.sites],
            [*self.totals],
            [*self.cholesky],
            self.precisions,
            self.alpha,
        )

    def add(self, i: int, text: TextScores, tree: GaussianTree) -> None:
        """Add the scores of text `i` of the tree, if it has any."""
        if not (text.value.precision or text.intervals):
            return
        self.indices.append(i)
        *cov, variance = tree.impression_covs(i, self.indices)
        whitened, explained = forward_solve(self.cholesky, cov)
        score_mean, variance = tree.impression_means[i] + dot(self.alpha, cov), variance - explained
        mean, remaining = after_observation(score_mean, variance, text.value)
        sites = update_sites(
            text.intervals, [NO_SITE] * len(text.intervals), mean, remaining, tree.interval_noise
        )
        total = total_site(text.value, sites)
        self.sites.append(sites)
        self.totals.append(total)
        variance = max(variance + 1 / total.precision, JITTER)
        weights = backward_solve(self.cholesky, whitened)
        surprise = (total.weighted_value / total.precision - score_mean) / variance
        self.cholesky.append((tuple(whitened), explained, sqrt(variance)))
        self.precisions = [
            *[p + w * w / variance for p, w in zip(self.precisions, weights, strict=True)],
            1 / variance,
        ]
        self.alpha = [
            *[a - w * surprise for a, w in zip(self.alpha, weights, strict=True)],
            surprise,
        ]

    def totals_after_sweep(self, texts: Sequence[TextScores], interval_noise: float) -> list[Site]:
        """Return the totals after one more sweep, in which each observation sees all others."""
        totals: list[Site] = []
        for n, (i, sites, (precision, weighted_value)) in enumerate(
            zip(self.indices, self.sites, self.totals, strict=True)
        ):
            _, value, intervals = texts[i]
            if not intervals:  # a value remains what it is
                totals.append(value)
                continue
            noise = 1 / precision
            mean, variance = (
                noise * (weighted_value - self.alpha[n]),
                noise - noise * noise * self.precisions[n],
            )
            totals.append(
                total_site(value, update_sites(intervals, sites, mean, variance, interval_noise))
            )
        return totals


def total_site(value: Site, sites: Sequence[Site]) -> Site:
    """Return the observation that is worth a value and the observations for intervals of the same
    text.
    """
    if not sites:
        return value
    precision, weighted_value = value
    for more, weighted in sites:
        precision += more
        weighted_value += weighted
    return (
        Site(precision, weighted_value)
        if precision > MIN_PRECISION
        else Site(MIN_PRECISION, weighted_value)
    )


def after_observation(mean: float, variance: float, value: Site) -> tuple[float, float]:
    """Return the mean and the variance of an impression after a Gaussian observation of it."""
    remaining = 1 / (1 + variance * value.precision)
    return (mean + variance * value.weighted_value) * remaining, variance * remaining


FilterKey: TypeAlias = tuple[tuple[TextScores, ...], float, float, Priors]
FILTER_CACHE: BoundedCache[FilterKey, FilteredScores] = BoundedCache(1024)


def cached_filter(tree: GaussianTree, texts: tuple[TextScores, ...]) -> FilteredScores:
    """Return the cached first sweep over these scores; a new one extends that without the last text
    if it is cached.
    """
    settings = tree.shape.repeat_noise_weight, tree.shape.threshold_sd, tree.priors
    filtered = FILTER_CACHE.get((texts, *settings))
    if filtered is None:
        prefix = FILTER_CACHE.get((texts[:-1], *settings))
        filtered = prefix.copy() if prefix else FilteredScores()
        for i in range(len(texts) - 1 if prefix else 0, len(texts)):
            filtered.add(i, texts[i], tree)
        FILTER_CACHE[texts, *settings] = filtered
    return filtered


def scored_texts(observations: Observations, tree: GaussianTree) -> tuple[TextScores, ...]:
    """Return the texts of a tree with their scores."""
    nodes, noise = tree.shape.nodes, tree.noise_variance(1.0)
    values = [NO_SITE] * len(nodes)
    for i, value in observations.values.items():
        values[i] = value_site(value, noise)
    intervals = map(observations.intervals.get, range(len(nodes)), repeat(()))
    return tuple(map(TextScores, nodes, values, intervals))


def value_site(value: NoisyScore, noise: float) -> Site:
    """Return the observation that a score is which is a value."""
    precision = 1 / (value.noise_weight * noise)
    return Site(precision, precision * value.score)


def means_of_equals(totals: list[Site], classes: Sequence[int]) -> list[Site]:
    """Return the observations, each the mean of its class: the order of the updates does not decide
    between equal texts.
    """
    if len(set(classes)) == len(classes):
        return totals
    groups: dict[int, list[Site]] = {number: [] for number in classes}
    for number, total in zip(classes, totals, strict=True):
        groups[number].append(total)
    means = {
        number: group[0] if len(group) == 1 else mean_site(group)
        for number, group in groups.items()
    }
    return [means[number] for number in classes]


def mean_site(sites: Sequence[Site]) -> Site:
    """Return the mean of several observations."""
    precisions, weighted_values = zip(*sites, strict=True)
    return Site(fsum(precisions) / len(sites), fsum(weighted_values) / len(sites))


def symmetry_classes(texts: Sequence[TextScores]) -> list[int]:
    """Return a number for each text, the same for texts that could change places in the tree with
    all texts made from them.
    """
    numbers: dict[object, int] = {}
    branches = [0] * len(texts)
    children: dict[int | None, list[int]] = {}
    for i in range(len(texts) - 1, -1, -1):
        (role, parent, _), value, intervals = texts[i]
        branch = role, value, intervals, *sorted(children.get(i, ()))
        branches[i] = number = numbers.setdefault(branch, len(numbers))
        children.setdefault(parent, []).append(number)
    classes: list[int] = []
    for number, text in zip(branches, texts, strict=True):
        parent = text.node.parent
        place = (None if parent is None else classes[parent]), number
        classes.append(numbers.setdefault(place, len(numbers)))
    return classes


def tree_with_intervals(observations: Observations, priors: Priors) -> tuple[GaussianTree, Vector]:
    """Return the tree, and the scores, in which Gaussian observations stand for the scores that are
    intervals.
    """
    unscored = cached_tree(observations.unscored_shape, priors)
    texts = scored_texts(observations, unscored)
    filtered = cached_filter(unscored, texts)
    if filtered.second_sweep is None:
        classes, totals = (
            symmetry_classes(texts),
            filtered.totals_after_sweep(texts, unscored.interval_noise),
        )
        totals = means_of_equals(totals, [classes[i] for i in filtered.indices])
        tree = unscored.with_scores(
            {i: 1 / total.precision for i, total in zip(filtered.indices, totals, strict=True)}
        )
        filtered.second_sweep = tree, [total.weighted_value / total.precision for total in totals]
    return filtered.second_sweep
