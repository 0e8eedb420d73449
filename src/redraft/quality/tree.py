"""The joint Gaussian distribution of the qualities and scores of a tree of texts (formulas: README.md).

Qualities, biases and scores are jointly Gaussian, with covariances that follow from the tree of texts. What is conditional on the
scores needs one Cholesky factor of their covariance, which is extended row by row as texts are added, without a matrix library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from operator import add, mul
from typing import NamedTuple

from .likelihood import Vector
from .lineage import THRESHOLD_SD, Node, TreeShape
from .priors import Priors

JITTER = 1e-12  # added to variances: keeps the Cholesky factor regular for scores without noise
REPAIR_SD = 0.02  # standard deviation by which an editor's repair changes the quality
DRAFT_MEAN_INDEX, GAIN_INDEX, FIRST_TEXT_INDEX = 0, 1, 2  # in `qualities`: task level, task gain, then the texts


class Cause(NamedTuple):
    """What a variable is made of: a constant, earlier variables with their weights, and independent noise."""

    constant: float
    sources: Sequence[tuple[int, float]]
    noise_variance: float


@dataclass
class JointGaussian:
    """Jointly Gaussian variables, each a constant plus a linear combination of earlier ones plus independent noise."""

    means: Vector = field(default_factory=list)
    cov: list[Vector] = field(default_factory=list)

    def moments(self, cause: Cause) -> tuple[float, float]:
        """Return the mean and the variance of one more variable."""
        mean, variance = cause.constant, cause.noise_variance
        for i, weight in cause.sources:
            mean += weight * self.means[i]
            row = self.cov[i]
            variance += weight * sum([other * row[j] for j, other in cause.sources])
        return mean, variance

    def add(self, cause: Cause) -> None:
        """Add a variable, so that later ones can depend on it."""
        mean, variance = self.moments(cause)
        covariances = [0.0] * len(self.cov)
        for i, weight in cause.sources:
            covariances = [total + weight * c for total, c in zip(covariances, self.cov[i], strict=True)]
        for row, covariance in zip(self.cov, covariances, strict=True):
            row.append(covariance)
        self.cov.append([*covariances, variance])
        self.means.append(mean)

    def copy(self) -> JointGaussian:
        return JointGaussian([*self.means], [[*row] for row in self.cov])


class ScorePrediction(NamedTuple):
    """One more text before it is scored: mean and variance of its quality, and what that is made of; its score's mean and sd.

    `quality_cov` and `score_cov` are the covariances of both with the whitened scores.
    """

    quality_mean: float
    quality_variance: float
    quality_sources: Sequence[tuple[int, float]]
    quality_cov: Vector
    score_cov: Vector
    score_mean: float
    score_sd: float


class GaussianTree:
    """The joint distribution of qualities and scores for one tree shape; it does not depend on the scores.

    `prefix` is the tree of the same shape without its last text; it is copied and extended by one row.
    """

    def __init__(self, shape: TreeShape, priors: Priors, prefix: GaussianTree | None = None) -> None:
        self.shape, self.priors = shape, priors
        self.qualities: JointGaussian = prefix.qualities.copy() if prefix else JointGaussian()
        self.biases: JointGaussian = prefix.biases.copy() if prefix else JointGaussian()
        self.graded_indices: list[int] = [*prefix.graded_indices] if prefix else []
        self.cholesky: list[Vector] = [*prefix.cholesky] if prefix else []  # L, of the score covariance
        # by index; those of the prefix lack the components of the new scores
        self.whitened_covs: dict[int, Vector] = {**prefix.whitened_covs} if prefix else {}
        self.whitened_bias_covs: dict[int, Vector] = {**prefix.whitened_bias_covs} if prefix else {}
        self._prediction_cache: dict[tuple[str, int | None], ScorePrediction] = {}
        if prefix is None:
            self.qualities.add(Cause(priors.draft_mean, [], priors.draft_mean_sd**2))
            self.qualities.add(Cause(priors.gain, [], priors.gain_sd**2))
        for node in shape.nodes[-1:] if prefix else shape.nodes:
            self._add_node(node)

    def _add_node(self, node: Node) -> None:
        """Add a text and, if it has a score, a row of the Cholesky factor."""
        quality, bias = self.causes(node.role, node.parent)
        self.qualities.add(quality)
        self.biases.add(bias)
        if node.noise_weight is not None:
            self.add_score(len(self.biases.means) - 1, self.noise_variance(node.noise_weight))

    def add_score(self, i: int, noise: float) -> None:
        """Add a score of text `i` with this noise variance: a row of the Cholesky factor."""
        row = self.forward_solve(self.impression_covs(i, self.graded_indices))
        self.cholesky.append([*row, sqrt(max(self.impression_cov(i, i) + noise - dot(row, row), JITTER))])
        self.graded_indices.append(i)

    def with_scores(self, noise_variances: Mapping[int, float]) -> GaussianTree:
        """Return the tree of the same texts with other scores: of these texts, by index, with these noise variances."""
        tree = GaussianTree(self.shape._replace(nodes=()), self.priors)
        tree.shape, tree.qualities, tree.biases = self.shape, self.qualities, self.biases
        graded = tree.graded_indices = sorted(noise_variances)
        for n, i in enumerate(graded):  # as in `add_score`, with one pass over each row
            x: Vector = []
            *covariances, variance = self.impression_covs(i, graded[: n + 1])
            for covariance, row in zip(covariances, tree.cholesky, strict=True):
                x.append((covariance - sum(map(mul, row, x))) / row[-1])
            x.append(sqrt(max(variance + noise_variances[i] - sum(map(mul, x, x)), JITTER)))
            tree.cholesky.append(x)
        return tree

    def causes(self, role: str, parent: int | None) -> tuple[Cause, Cause]:
        """Return what the quality and the bias of a text are made of."""
        p, bias_variance = self.priors, self.priors.bias_sd**2 * self.shape.repeat_noise_weight
        if parent is None:
            return Cause(0.0, [(DRAFT_MEAN_INDEX, 1.0)], p.draft_sd**2), Cause(0.0, [], bias_variance)
        if role == "repair":
            return Cause(0.0, [(FIRST_TEXT_INDEX + parent, 1.0)], REPAIR_SD**2), Cause(0.0, [(parent, 1.0)], 0.0)
        drift, inheritance = p.bias_drift if self.shape.repeat_noise_weight else 0.0, p.bias_inheritance
        return (
            Cause(0.0, [(GAIN_INDEX, 1.0), (FIRST_TEXT_INDEX + parent, p.retention)], p.step_sd**2),
            Cause(drift, [(parent, inheritance)], (1 - inheritance**2) * bias_variance),
        )

    def impression_cov(self, i: int, j: int) -> float:
        """Return the prior covariance of the impressions that texts `i` and `j` make: of quality plus bias."""
        quality = self.qualities.cov[FIRST_TEXT_INDEX + i][FIRST_TEXT_INDEX + j]
        return quality + self.biases.cov[i][j] + self.shape.threshold_sd**2

    def noise_variance(self, weight: float) -> float:
        """Return the noise variance of a score with this noise weight."""
        return weight * self.priors.noise_sd**2 + JITTER

    @property
    def interval_noise(self) -> float:
        """The noise variance of a score that is an interval; at the ends of a fine scale it contains that of the threshold."""
        return self.noise_variance(1.0) + (0.0 if self.shape.threshold_sd else THRESHOLD_SD**2)

    def quality_score_cov(self, row: Sequence[float]) -> Vector:
        """Return a quality's covariances with the scores, from its row of the quality covariance."""
        return [row[FIRST_TEXT_INDEX + i] for i in self.graded_indices]

    def impression_covs(self, i: int, others: Sequence[int]) -> Vector:
        """Return the prior covariances of the impression that text `i` makes with those of other texts."""
        quality, bias, threshold = self.qualities.cov[FIRST_TEXT_INDEX + i], self.biases.cov[i], self.shape.threshold_sd**2
        return [quality[FIRST_TEXT_INDEX + j] + bias[j] + threshold for j in others]

    def impression_mean(self, i: int) -> float:
        """Return the prior mean of the impression that text `i` makes."""
        return self.qualities.means[FIRST_TEXT_INDEX + i] + self.biases.means[i]

    def forward_solve(self, covariances: Sequence[float], known: Sequence[float] = ()) -> Vector:
        """Solve L x = c by forward substitution, with the rows of L that exist. `known`: the first components of x."""
        x, n = [*known], len(known)
        for covariance, row in zip(covariances[n:], self.cholesky[n:], strict=False):
            x.append((covariance - sum(map(mul, row, x))) / row[-1])
        return x

    def innovations(self, scores: Iterable[float]) -> Vector:
        """Solve L z = y - E[y]: each score's deviation from its prediction by the earlier ones, in standard deviations."""
        z: Vector = []
        for i, score, row in zip(self.graded_indices, scores, self.cholesky, strict=True):
            z.append((score - self.impression_mean(i) - dot(row, z)) / row[-1])
        return z

    def whitened_cov(self, quality_index: int) -> Vector:
        """Return L^-1 Cov(y, q), a quality's covariances with the whitened scores."""
        known = self.whitened_covs.get(quality_index, [])
        if len(known) < len(self.cholesky):
            known = self.forward_solve(self.quality_score_cov(self.qualities.cov[quality_index]), known)
            self.whitened_covs[quality_index] = known
        return known

    def whitened_bias_cov(self, i: int) -> Vector:
        """Return L^-1 Cov(y, b), the covariances of the bias of text `i` with the whitened scores."""
        known = self.whitened_bias_covs.get(i, [])
        if len(known) < len(self.cholesky):
            cov = self.biases.cov[i]
            known = self.whitened_bias_covs[i] = self.forward_solve([cov[j] for j in self.graded_indices], known)
        return known

    @cached_property
    def whitened_threshold_cov(self) -> Vector | None:
        """L^-1 Cov(y, tau), the covariances of what all scores have in common with the whitened scores; None without it."""
        threshold = self.shape.threshold_sd**2
        return self.forward_solve([threshold] * len(self.cholesky)) if threshold else None

    def whitened_score_cov(self, quality_cov: Vector, bias_cov: Vector) -> Vector:
        """Return the whitened covariances of a score, from those of its quality and its bias."""
        threshold_cov = self.whitened_threshold_cov
        if threshold_cov is None:
            return [*map(add, quality_cov, bias_cov)]
        return [*map(add, map(add, quality_cov, bias_cov), threshold_cov)]

    def whitened_repeat_cov(self, i: int) -> Vector:
        """Return L^-1 Cov(y, y'), for one more score y' of text `i`."""
        return self.whitened_score_cov(self.whitened_cov(FIRST_TEXT_INDEX + i), self.whitened_bias_cov(i))

    def backward_solve(self, innovations: Sequence[float]) -> Vector:
        """Solve L' alpha = z by back substitution, so that alpha = K^-1 (y - E[y])."""
        rest = list(innovations)
        alpha: Vector = []
        for row in reversed(self.cholesky):
            last = rest[len(row) - 1] / row[-1]
            rest = [r - x * last for r, x in zip(rest, row, strict=False)]
            alpha.append(last)
        return alpha[::-1]

    def predict_candidate(self, role: str, parent: int | None) -> ScorePrediction:
        """Predict one more text: its quality, and its score."""
        if (role, parent) not in self._prediction_cache:
            causes = self.causes(role, parent)
            quality_mean, quality_variance = self.qualities.moments(causes[0])
            bias_mean, bias_variance = self.biases.moments(causes[1])
            quality_cov = self.weighted_sum((weight, self.whitened_cov(i)) for i, weight in causes[0].sources)
            bias_cov = self.weighted_sum((weight, self.whitened_bias_cov(i)) for i, weight in causes[1].sources)
            score_cov = self.whitened_score_cov(quality_cov, bias_cov)
            variance = quality_variance + bias_variance + self.shape.threshold_sd**2 - dot(score_cov, score_cov)
            sd = sqrt(max(variance + self.noise_variance(self.shape.repeat_noise_weight), JITTER))
            self._prediction_cache[role, parent] = ScorePrediction(
                quality_mean, quality_variance, causes[0].sources, quality_cov, score_cov, quality_mean + bias_mean, sd
            )
        return self._prediction_cache[role, parent]

    def weighted_sum(self, vectors: Iterable[tuple[float, Vector]]) -> Vector:
        """Return the weighted sum of vectors that have a component for each score; 0 without any."""
        total = [0.0] * len(self.cholesky)
        for weight, vector in vectors:
            total = [t + weight * v for t, v in zip(total, vector, strict=True)]
        return total


def cached_tree(shape: TreeShape, priors: Priors) -> GaussianTree:
    """Return the cached tree for this shape; a new one extends that of its prefix if it is cached."""
    tree = TREE_CACHE.get((shape, priors))
    if tree is None:
        while len(TREE_CACHE) >= MAX_CACHED_TREES:
            del TREE_CACHE[next(iter(TREE_CACHE))]
        prefix = TREE_CACHE.get((shape._replace(nodes=shape.nodes[:-1]), priors)) if len(shape.nodes) > 1 else None
        tree = TREE_CACHE[shape, priors] = GaussianTree(shape, priors, prefix)
    return tree


TREE_CACHE: dict[tuple[TreeShape, Priors], GaussianTree] = {}  # the oldest is dropped first
MAX_CACHED_TREES = 1024


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    """Return the sum of products, up to the length of the shorter vector."""
    return sum(map(mul, a, b), 0.0)
