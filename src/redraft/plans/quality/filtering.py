"""Gaussian observations that stand for scores that are intervals (formulas: README.md,
"Posterior").

Expectation propagation (Minka 2001, UAI): in each sweep, the observations of every text are updated
given those of all others. All texts are updated at once, so that their order does not matter.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple, TypeAlias

from ...base.bounded_cache import BoundedCache
from .likelihood import MIN_PRECISION, ScoreInterval, Site, Vector, update_sites
from .lineage import Node, NoisyScore, Observations
from .priors import Priors
from .tree import GaussianTree, backward_solve, cached_tree, dot

SWEEPS = 3  # leave means within 0.01 posterior standard deviations of those after many
NO_SITE = Site()


class TextScores(NamedTuple):
    """A text and its scores: the values as one Gaussian observation, and the intervals."""

    node: Node
    value: Site
    intervals: tuple[ScoreInterval, ...]


def total_site(value: Site, sites: tuple[Site, ...]) -> Site:
    """Return the observation that is worth a value and the observations for intervals of the same
    text.
    """
    precisions, weighted_values = zip(value, *sites, strict=True)
    return Site(max(sum(precisions), MIN_PRECISION), sum(weighted_values))


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


Fit: TypeAlias = tuple[GaussianTree, Vector]
FILTER_CACHE: BoundedCache[tuple[tuple[TextScores, ...], float, float, Priors], Fit] = BoundedCache(
    1024
)


def tree_with_intervals(observations: Observations, priors: Priors) -> Fit:
    """Return the tree, and the scores, in which Gaussian observations stand for the scores that are
    intervals.
    """
    unscored = cached_tree(observations.unscored_shape, priors)
    texts = scored_texts(observations, unscored)
    key = texts, unscored.shape.repeat_noise_weight, unscored.shape.threshold_sd, priors
    fit = FILTER_CACHE.get(key)
    if fit is None:
        fit = FILTER_CACHE[key] = fit_observations(unscored, texts)
    return fit


def fit_observations(unscored: GaussianTree, texts: tuple[TextScores, ...]) -> Fit:
    """Return the tree with the observations after all sweeps, and their values."""
    sites = {
        i: (NO_SITE,) * len(text.intervals)
        for i, text in enumerate(texts)
        if text.value.precision or text.intervals
    }
    for _ in range(SWEEPS):
        tree, scores = tree_with_sites(unscored, texts, sites)
        alpha = backward_solve(tree.cholesky, tree.innovations(scores))
        for i, own in sites.items():
            covs = tree.impression_covs(i, tree.graded_indices)
            mean = tree.impression_means[i] + dot(covs, alpha)
            variance = tree.impression_rows[i][i] - tree.whitened_impression(i)[1]
            sites[i] = update_sites(
                texts[i].intervals, own, mean, variance, unscored.interval_noise
            )
    return tree_with_sites(unscored, texts, sites)


def tree_with_sites(
    unscored: GaussianTree, texts: tuple[TextScores, ...], sites: dict[int, tuple[Site, ...]]
) -> Fit:
    """Return the tree with these observations, and their values."""
    totals = {i: total_site(texts[i].value, own) for i, own in sites.items()}
    tree = unscored.with_scores({i: 1 / precision for i, (precision, _) in totals.items()})
    return tree, [weighted / precision for precision, weighted in totals.values()]
