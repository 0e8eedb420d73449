"""The joint Gaussian distribution of the qualities and scores of a tree of texts (formulas: README.md).

Qualities, biases and scores are jointly Gaussian, with covariances that follow from the tree of texts. What is conditional on the
scores needs one Cholesky factor of their covariance, which is extended row by row as texts are added, without a matrix library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from operator import add, mul
from typing import NamedTuple

from .likelihood import Vector
from .lineage import THRESHOLD_SD, Node, TreeShape
from .priors import Priors

JITTER = 1e-12  # added to variances: keeps the Cholesky factor regular for scores without noise
REPAIR_SD = 0.02  # standard deviation by which an editor's repair changes the quality
DRAFT_MEAN_INDEX, GAIN_INDEX, FIRST_TEXT_INDEX = 0, 1, 2  # in `qualities`: task level, task gain, then the texts
REPEAT = "another grade"  # in place of the role of a new text
THRESHOLD_INDEX = -1  # of what all scores have in common, which is no quality, in `whitened_covs`


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
    """A score that is not given yet: its prior mean, its covariances with the whitened scores, and its sd given these."""

    mean: float
    cov: Vector
    sd: float


class TextPrediction(NamedTuple):
    """One more text before it is scored: the prior mean and variance of its quality, and what that is made of; its score.

    `quality_cov` are the covariances of its quality with the whitened scores.
    """

    quality_mean: float
    quality_variance: float
    quality_sources: Sequence[tuple[int, float]]
    quality_cov: Vector
    score: ScorePrediction


class GaussianTree:
    """The joint distribution of qualities and scores for one tree shape; it does not depend on the scores.

    `prefix` is the tree of the same shape without its last text; it is copied and extended by one row.
    """

    def __init__(self, shape: TreeShape, priors: Priors, prefix: GaussianTree | None = None) -> None:
        self.shape, self.priors = shape, priors
        self.qualities: JointGaussian = prefix.qualities.copy() if prefix else JointGaussian()
        self.biases: JointGaussian = prefix.biases.copy() if prefix else JointGaussian()
        # of the impressions that the texts make: their prior means, and their covariances with it and the texts before it
        self.impression_means: Vector = [*prefix.impression_means] if prefix else []
        self.impression_rows: list[Vector] = [*prefix.impression_rows] if prefix else []
        self.graded_indices: list[int] = [*prefix.graded_indices] if prefix else []
        self.cholesky: list[Vector] = [*prefix.cholesky] if prefix else []  # L, of the score covariance
        # by index; those of the prefix lack the components of the new scores
        self.whitened_covs: dict[int, Vector] = {**prefix.whitened_covs} if prefix else {}
        self.whitened_bias_covs: dict[int, Vector] = {**prefix.whitened_bias_covs} if prefix else {}
        self._text_predictions: dict[tuple[str, int | None], TextPrediction] = {}
        self._repeat_predictions: dict[int, ScorePrediction] = {}
        self._slopes: dict[tuple[str, int | None, int], float] = {}
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
        threshold = self.shape.threshold_sd**2
        covariances = zip(self.qualities.cov[-1][FIRST_TEXT_INDEX:], self.biases.cov[-1], strict=True)
        self.impression_rows.append([quality + bias + threshold for quality, bias in covariances])
        self.impression_means.append(self.qualities.means[-1] + self.biases.means[-1])
        if node.noise_weight is not None:
            self.add_score(len(self.impression_means) - 1, self.noise_variance(node.noise_weight))

    def add_score(self, i: int, noise: float) -> None:
        """Add a score of text `i` with this noise variance: a row of the Cholesky factor."""
        self.graded_indices.append(i)
        self.cholesky.append(next_cholesky_row(self.cholesky, self.impression_covs_before(i, self.graded_indices), noise))

    def with_scores(self, noise_variances: Mapping[int, float]) -> GaussianTree:
        """Return the tree of the same texts with other scores: of these texts, by index, with these noise variances."""
        graded, cholesky = sorted(noise_variances), list[Vector]()
        for n, i in enumerate(graded, 1):
            cholesky.append(next_cholesky_row(cholesky, self.impression_covs_before(i, graded[:n]), noise_variances[i]))
        tree = GaussianTree.__new__(GaussianTree)
        by_scores = "whitened_covs", "whitened_bias_covs", "_text_predictions", "_repeat_predictions", "_slopes"
        vars(tree).update(vars(self), graded_indices=graded, cholesky=cholesky, **{name: {} for name in by_scores})
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
        return self.impression_rows[max(i, j)][min(i, j)]

    def impression_covs_before(self, i: int, others: Sequence[int]) -> Vector:
        """Return the prior covariances of the impression of text `i` with those of earlier texts, and last its variance."""
        row = self.impression_rows[i]
        return row if len(row) == len(others) else [row[j] for j in others]

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

    def forward_solve(self, covariances: Sequence[float], known: Sequence[float] = ()) -> Vector:
        """Solve L x = c by forward substitution, with the rows of L that exist. `known`: the first components of x."""
        x, n = [*known], len(known)
        for covariance, row in zip(covariances[n:], self.cholesky[n:] if n else self.cholesky, strict=True):
            x.append((covariance - sum(map(mul, row, x))) / row[-1])
        return x

    def innovations(self, scores: Iterable[float]) -> Vector:
        """Solve L z = y - E[y]: each score's deviation from its prediction by the earlier ones, in standard deviations."""
        z: Vector = []
        for i, score, row in zip(self.graded_indices, scores, self.cholesky, strict=True):
            z.append((score - self.impression_means[i] - sum(map(mul, row, z))) / row[-1])
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

    def whitened_threshold_cov(self) -> Vector | None:
        """Return L^-1 Cov(y, tau), the covariances of what all scores have in common with the whitened scores; None without it."""
        if not self.shape.threshold_sd:
            return None
        known = self.whitened_covs.get(THRESHOLD_INDEX, [])
        if len(known) < len(self.cholesky):
            known = self.forward_solve([self.shape.threshold_sd**2] * len(self.cholesky), known)
            self.whitened_covs[THRESHOLD_INDEX] = known
        return known

    def whitened_score_cov(self, quality_cov: Vector, bias_cov: Vector) -> Vector:
        """Return the whitened covariances of a score, from those of its quality and its bias."""
        threshold_cov = self.whitened_threshold_cov()
        if threshold_cov is None:
            return [*map(add, quality_cov, bias_cov)]
        return [*map(add, map(add, quality_cov, bias_cov), threshold_cov)]

    def backward_solve(self, innovations: Sequence[float]) -> Vector:
        """Solve L' alpha = z by back substitution, so that alpha = K^-1 (y - E[y])."""
        rest = list(innovations)
        alpha: Vector = []
        for row in reversed(self.cholesky):
            last = rest[len(row) - 1] / row[-1]
            rest = [r - x * last for r, x in zip(rest, row, strict=False)]
            alpha.append(last)
        return alpha[::-1]

    def predict_candidate(self, role: str, parent: int | None) -> TextPrediction:
        """Predict one more text: its quality, and its score."""
        known = self._text_predictions.get((role, parent))
        if known is None:
            quality, bias = self.causes(role, parent)
            quality_mean, quality_variance = self.qualities.moments(quality)
            bias_mean, bias_variance = self.biases.moments(bias)
            quality_cov = self.weighted_sum([(weight, self.whitened_cov(i)) for i, weight in quality.sources])
            bias_cov = self.weighted_sum([(weight, self.whitened_bias_cov(i)) for i, weight in bias.sources])
            score_cov = self.whitened_score_cov(quality_cov, bias_cov)
            variance = quality_variance + bias_variance + self.shape.threshold_sd**2 - sum(map(mul, score_cov, score_cov))
            sd = sqrt(max(variance + self.noise_variance(self.shape.repeat_noise_weight), JITTER))
            score = ScorePrediction(quality_mean + bias_mean, score_cov, sd)
            known = TextPrediction(quality_mean, quality_variance, quality.sources, quality_cov, score)
            self._text_predictions[role, parent] = known
        return known

    def candidate_slope(self, role: str, parent: int | None, rival: int) -> float:
        """Return by how much the lead of one more text over text `rival` rises per standard deviation of its score."""
        known = self._slopes.get((role, parent, rival))
        if known is None:
            text, other = self.predict_candidate(role, parent), FIRST_TEXT_INDEX + rival
            row = self.qualities.cov[other]
            rival_cov = sum([weight * row[i] for i, weight in text.quality_sources])
            shift = text.quality_variance - dot(text.quality_cov, text.score.cov) - rival_cov
            shift += dot(self.whitened_cov(other), text.score.cov)
            known = self._slopes[role, parent, rival] = shift / text.score.sd
        return known

    def predict_repeat(self, i: int) -> ScorePrediction:
        """Predict one more score of text `i`."""
        known = self._repeat_predictions.get(i)
        if known is None:
            cov = self.whitened_score_cov(self.whitened_cov(FIRST_TEXT_INDEX + i), self.whitened_bias_cov(i))
            noise = self.noise_variance(self.shape.repeat_noise_weight)
            sd = sqrt(max(self.impression_cov(i, i) + noise - dot(cov, cov), JITTER))
            known = self._repeat_predictions[i] = ScorePrediction(self.impression_means[i], cov, sd)
        return known

    def repeat_slope(self, i: int, rival: int) -> float:
        """Return by how much the lead of text `i` over text `rival` rises per standard deviation of one more score of it."""
        known = self._slopes.get((REPEAT, i, rival))
        if known is None:
            one, other, score = FIRST_TEXT_INDEX + i, FIRST_TEXT_INDEX + rival, self.predict_repeat(i)
            shift = self.qualities.cov[one][one] - dot(self.whitened_cov(one), score.cov)
            shift -= self.qualities.cov[other][one] - dot(self.whitened_cov(other), score.cov)
            known = self._slopes[REPEAT, i, rival] = shift / score.sd
        return known

    def weighted_sum(self, vectors: Sequence[tuple[float, Vector]]) -> Vector:
        """Return the weighted sum of at most two vectors that have a component for each score; 0 without any."""
        match vectors:
            case []:
                return [0.0] * len(self.cholesky)
            case [(weight, vector)]:
                return [weight * v for v in vector]
            case [(one, first), (other, second)]:
                return [one * v + other * w for v, w in zip(first, second, strict=True)]
            case _:
                raise ValueError(vectors)


def next_cholesky_row(rows: Sequence[Vector], covariances: Sequence[float], noise: float) -> Vector:
    """Return the next row of a Cholesky factor. `covariances`: with the variables before it, then its variance without `noise`."""
    x: Vector = []
    for covariance, row in zip(covariances, rows, strict=False):  # the variance remains
        x.append((covariance - sum(map(mul, row, x))) / row[-1])
    x.append(sqrt(max(covariances[-1] + noise - sum(map(mul, x, x)), JITTER)))
    return x


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
