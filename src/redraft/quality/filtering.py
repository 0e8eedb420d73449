"""Gaussian observations that stand for scores that are intervals (formulas: README.md, "Posterior").

Expectation propagation (Minka 2001, UAI) in two sweeps. The first takes the scores text by text (assumed density filtering); it
extends the result for the texts before the last one, which is cached. In the second, each observation sees all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from operator import mul
from typing import NamedTuple, TypeAlias

from .likelihood import MIN_PRECISION, ScoreInterval, Site, Vector, update_sites
from .lineage import Node, NoisyScore, Observations
from .priors import Priors
from .tree import JITTER, GaussianTree, cached_tree, dot

NO_SITE = Site()


class TextScores(NamedTuple):
    """A text and its scores: the values as one Gaussian observation, and the intervals."""

    node: Node
    value: Site
    intervals: tuple[ScoreInterval, ...]


@dataclass
class FilteredScores:
    """Scores taken text by text, with Gaussian observations for the intervals of each text given the scores of earlier ones.

    This is assumed density filtering, the first sweep of expectation propagation. The lists have an element for each scored text:
    its index, the observations that stand for its intervals (`sites`), and the one that is worth all of its scores (`totals`).
    `precision` is K^-1, the inverse of the covariance of these totals, `alpha` K^-1 (y - E[y]).
    """

    indices: list[int] = field(default_factory=list)
    sites: list[tuple[Site, ...]] = field(default_factory=list)
    totals: list[Site] = field(default_factory=list)
    precision: list[Vector] = field(default_factory=list)
    alpha: Vector = field(default_factory=list)

    def copy(self) -> FilteredScores:
        return FilteredScores([*self.indices], [*self.sites], [*self.totals], self.precision, self.alpha)

    def add(self, i: int, text: TextScores, tree: GaussianTree) -> None:
        """Add the scores of text `i` of the tree, if it has any."""
        if not (text.value.precision or text.intervals):
            return
        *cov, variance = tree.impression_covs_before(i, [*self.indices, i])
        weights = [sum(map(mul, row, cov)) for row in self.precision]
        score_mean, variance = tree.impression_means[i] + dot(self.alpha, cov), variance - dot(weights, cov)
        mean, remaining = after_observation(score_mean, variance, text.value)
        sites = update_sites(text.intervals, [NO_SITE] * len(text.intervals), mean, remaining, tree.interval_noise)
        total = total_site(text.value, sites)
        self.extend(weights, max(variance + 1 / total.precision, JITTER), total.weighted_value / total.precision - score_mean)
        self.indices.append(i)
        self.sites.append(sites)
        self.totals.append(total)

    def extend(self, weights: Vector, variance: float, surprise: float) -> None:
        """Add a row to K^-1. `weights`: K^-1 Cov(y, y'); `variance` and `surprise` are those of y', given the others."""
        last = [-weight / variance for weight in weights]
        last.append(1 / variance)
        rows = zip(self.precision, weights, last, strict=False)
        self.precision = [[*[p - w * x for p, x in zip(row, last, strict=False)], end] for row, w, end in rows]
        self.precision.append(last)
        self.alpha = [a + x * surprise for a, x in zip([*self.alpha, 0.0], last, strict=True)]

    def swept_totals(self, texts: Sequence[TextScores], interval_noise: float) -> list[Site]:
        """Return the totals after one more sweep, in which each observation sees all others."""
        swept: list[Site] = []
        for n, (i, sites, (precision, weighted_value)) in enumerate(zip(self.indices, self.sites, self.totals, strict=True)):
            _, value, intervals = texts[i]
            if not intervals:  # a value remains what it is
                swept.append(total_site(value, ()))
                continue
            noise = 1 / precision
            mean, variance = noise * (weighted_value - self.alpha[n]), noise - noise * noise * self.precision[n][n]
            swept.append(total_site(value, update_sites(intervals, sites, mean, variance, interval_noise)))
        return swept


def total_site(value: Site, sites: Sequence[Site]) -> Site:
    """Return the observation that is worth a value and the observations for intervals of the same text."""
    precision, weighted_value = value
    for more, weighted in sites:
        precision += more
        weighted_value += weighted
    return Site(max(MIN_PRECISION, precision), weighted_value)


def after_observation(mean: float, variance: float, value: Site) -> tuple[float, float]:
    """Return the mean and the variance of an impression after a Gaussian observation of it."""
    remaining = 1 / (1 + variance * value.precision)
    return (mean + variance * value.weighted_value) * remaining, variance * remaining


FilterKey: TypeAlias = tuple[tuple[TextScores, ...], float, float, Priors]
FILTER_CACHE: dict[FilterKey, FilteredScores] = {}  # the oldest is dropped first
MAX_CACHED_FILTERS = 1024


def cached_filter(tree: GaussianTree, texts: tuple[TextScores, ...]) -> FilteredScores:
    """Return the cached first sweep over these scores; a new one extends that without the last text if it is cached."""
    settings = tree.shape.repeat_noise_weight, tree.shape.threshold_sd, tree.priors
    filtered = FILTER_CACHE.get((texts, *settings))
    if filtered is None:
        while len(FILTER_CACHE) >= MAX_CACHED_FILTERS:
            del FILTER_CACHE[next(iter(FILTER_CACHE))]
        prefix = FILTER_CACHE.get((texts[:-1], *settings))
        filtered = prefix.copy() if prefix else FilteredScores()
        for i in range(len(texts) - 1 if prefix else 0, len(texts)):
            filtered.add(i, texts[i], tree)
        FILTER_CACHE[texts, *settings] = filtered
    return filtered


def scored_texts(observations: Observations, tree: GaussianTree) -> tuple[TextScores, ...]:
    """Return the texts of a tree with their scores."""
    intervals: list[list[ScoreInterval]] = [[] for _ in tree.shape.nodes]
    for interval in observations.intervals:
        intervals[interval.node].append(interval)
    noise = tree.noise_variance(1.0)
    values = [NO_SITE] * len(intervals)
    for i, value in observations.values.items():
        values[i] = value_site(value, noise)
    return tuple(map(TextScores, tree.shape.nodes, values, map(tuple, intervals)))


def value_site(value: NoisyScore, noise: float) -> Site:
    """Return the observation that a score is which is a value."""
    precision = 1 / (value.noise_weight * noise)
    return Site(precision, precision * value.score)


def means_of_equals(totals: Sequence[Site], classes: Sequence[int]) -> list[Site]:
    """Return the observations, each the mean of its class: the order of the updates does not decide between equal texts."""
    if len(set(classes)) == len(classes):
        return list(totals)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for n, number in enumerate(classes):
        groups[number].append(n)
    means = [*totals]
    for group in groups.values():
        if len(group) > 1:
            mean = Site(*(fsum(values) / len(group) for values in zip(*(totals[n] for n in group), strict=True)))
            for n in group:
                means[n] = mean
    return means


def symmetry_classes(texts: Sequence[TextScores]) -> list[int]:
    """Return a number for each text, the same for texts that could change places in the tree with all texts made from them."""
    numbers: dict[object, int] = {}
    branches = [0] * len(texts)
    children: list[list[int]] = [[] for _ in texts]
    for i in reversed(range(len(texts))):
        text = texts[i]
        branch = text.node.role, text.value, *[interval[1:] for interval in text.intervals], *sorted(children[i])
        branches[i] = numbers.setdefault(branch, len(numbers))
        if text.node.parent is not None:
            children[text.node.parent].append(branches[i])
    classes: list[int] = []
    for number, text in zip(branches, texts, strict=True):
        parent = None if text.node.parent is None else classes[text.node.parent]
        classes.append(numbers.setdefault((parent, number), len(numbers)))
    return classes


def tree_with_intervals(observations: Observations, priors: Priors) -> tuple[GaussianTree, Vector]:
    """Return the tree, and the scores, in which Gaussian observations stand for the scores that are intervals."""
    unscored = cached_tree(observations.unscored_shape, priors)
    texts = scored_texts(observations, unscored)
    filtered, classes = cached_filter(unscored, texts), symmetry_classes(texts)
    totals = filtered.swept_totals(texts, unscored.interval_noise)
    totals = means_of_equals(totals, [classes[i] for i in filtered.indices])
    tree = unscored.with_scores({i: 1 / total.precision for i, total in zip(filtered.indices, totals, strict=True)})
    return tree, [total.weighted_value / total.precision for total in totals]
