"""The posterior of every candidate's true quality, given noisy scores (formulas: README.md).

Qualities, biases and scores are jointly Gaussian, with covariances that follow from the tree of texts. The posterior is
the conditional distribution given the scores. It needs one Cholesky factor of their covariance, which is extended row by row as
texts are added, without a matrix library.

The value of a step is the expected increase in the quality of the answer that is returned after it: the knowledge gradient
(Frazier, Powell & Dayanik 2009, INFORMS Journal on Computing 21:599), here between the best candidate and the one text that
the step may put in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import erf, exp, pi, sqrt
from operator import mul
from typing import NamedTuple, TypeAlias

from .lineage import Node, Observations, TreeShape
from .priors import Priors

Vector: TypeAlias = list[float]

Z_95 = 1.96  # a normal variable is within this many standard deviations of its mean with probability 95 %
JITTER = 1e-12  # added to variances: keeps the Cholesky factor regular for scores without noise
DIGITS = 6  # of posterior means: rounding makes equal texts have equal means
REPAIR_SD = 0.02  # standard deviation by which an editor's repair changes the quality
DRAFT_MEAN_INDEX, GAIN_INDEX, FIRST_TEXT_INDEX = 0, 1, 2  # in `qualities`: task level, task gain, then the texts


class LatentVariable(NamedTuple):
    """A latent variable: its mean, its covariances with all earlier ones, and its variance."""

    mean: float
    covariances: Vector
    variance: float


@dataclass
class JointGaussian:
    """Jointly Gaussian variables, each a constant plus a linear combination of earlier ones plus independent noise."""

    means: Vector = field(default_factory=list)
    cov: list[Vector] = field(default_factory=list)

    def linear_combination(self, constant: float, sources: Sequence[tuple[int, float]], noise_variance: float) -> LatentVariable:
        """Return the variable `constant + sum(weight * source) + noise`; it is not added."""
        row, mean = [0.0] * len(self.cov), constant
        for i, weight in sources:
            row = [r + weight * c for r, c in zip(row, self.cov[i], strict=True)]
            mean += weight * self.means[i]
        return LatentVariable(mean, row, noise_variance + sum(weight * row[i] for i, weight in sources))

    def add(self, latent: LatentVariable) -> None:
        """Add a variable, so that later ones can depend on it."""
        for row, covariance in zip(self.cov, latent.covariances, strict=True):
            row.append(covariance)
        self.cov.append([*latent.covariances, latent.variance])
        self.means.append(latent.mean)

    def copy(self) -> JointGaussian:
        return JointGaussian([*self.means], [[*row] for row in self.cov])


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
        self._whitened_cov_cache: dict[int, Vector] = {}
        self._whitened_repeat_cov_cache: dict[int, Vector] = {}
        self._prediction_cache: dict[tuple[str, int | None], tuple[LatentVariable, Vector, Vector, float]] = {}
        if prefix is None:
            self.qualities.add(LatentVariable(priors.draft_mean, [], priors.draft_mean_sd**2))
            self.qualities.add(LatentVariable(priors.gain, [0.0], priors.gain_sd**2))
        for node in shape.nodes[-1:] if prefix else shape.nodes:
            self._add_node(node)

    def _add_node(self, node: Node) -> None:
        """Add a text and, if it has a score, a row of the Cholesky factor."""
        quality, bias = self.prior_latents(node.role, node.parent)
        self.qualities.add(quality)
        self.biases.add(bias)
        if node.noise_weight is not None:
            i = len(self.biases.means) - 1
            row = self.forward_solve(self.score_cov(i))
            self.cholesky.append([*row, sqrt(max(self.score_variance(i, node.noise_weight) - dot(row, row), JITTER))])
            self.graded_indices.append(i)

    def prior_latents(self, role: str, parent: int | None) -> tuple[LatentVariable, LatentVariable]:
        """Return the quality and the bias of a text before it is scored."""
        p, bias_variance = self.priors, self.priors.bias_sd**2 * self.shape.repeat_noise_weight
        quality, bias = self.qualities.linear_combination, self.biases.linear_combination
        if parent is None:
            return quality(0.0, [(DRAFT_MEAN_INDEX, 1.0)], p.draft_sd**2), bias(0.0, [], bias_variance)
        if role == "repair":
            return quality(0.0, [(FIRST_TEXT_INDEX + parent, 1.0)], REPAIR_SD**2), bias(0.0, [(parent, 1.0)], 0.0)
        drift, inheritance = p.bias_drift if self.shape.repeat_noise_weight else 0.0, p.bias_inheritance
        return (
            quality(0.0, [(GAIN_INDEX, 1.0), (FIRST_TEXT_INDEX + parent, p.retention)], p.step_sd**2),
            bias(drift, [(parent, inheritance)], (1 - inheritance**2) * bias_variance),
        )

    def score_variance(self, i: int, noise_weight: float) -> float:
        """Return the prior variance of a score of text `i` with this noise weight."""
        return (
            self.qualities.cov[FIRST_TEXT_INDEX + i][FIRST_TEXT_INDEX + i]
            + self.biases.cov[i][i]
            + self._noise_variance(noise_weight)
        )

    def _noise_variance(self, weight: float) -> float:
        return weight * self.priors.noise_sd**2 + JITTER

    def quality_score_cov(self, row: Sequence[float]) -> Vector:
        """Return a quality's covariances with the scores, from its row of the quality covariance."""
        return [row[FIRST_TEXT_INDEX + i] for i in self.graded_indices]

    def score_cov(self, i: int) -> Vector:
        """Return the covariances of a score of text `i` with the scores."""
        return [self.qualities.cov[FIRST_TEXT_INDEX + i][FIRST_TEXT_INDEX + j] + self.biases.cov[i][j] for j in self.graded_indices]

    def forward_solve(self, covariances: Sequence[float]) -> Vector:
        """Solve L x = c by forward substitution, with the rows of L that exist."""
        x: Vector = []
        for covariance, row in zip(covariances, self.cholesky, strict=False):
            x.append((covariance - dot(row, x)) / row[len(x)])
        return x

    def innovations(self, scores: Iterable[float]) -> Vector:
        """Solve L z = y - E[y]: each score's deviation from its prediction by the earlier ones, in standard deviations."""
        z: Vector = []
        for i, score, row in zip(self.graded_indices, scores, self.cholesky, strict=True):
            deviation = score - self.qualities.means[FIRST_TEXT_INDEX + i] - self.biases.means[i]
            z.append((deviation - dot(row, z)) / row[-1])
        return z

    def whitened_cov(self, quality_index: int) -> Vector:
        """Return L^-1 Cov(y, q), a quality's covariances with the whitened scores."""
        if quality_index not in self._whitened_cov_cache:
            self._whitened_cov_cache[quality_index] = self.forward_solve(self.quality_score_cov(self.qualities.cov[quality_index]))
        return self._whitened_cov_cache[quality_index]

    def whitened_repeat_cov(self, i: int) -> Vector:
        """Return L^-1 Cov(y, y'), for one more score y' of text `i`."""
        if i not in self._whitened_repeat_cov_cache:
            self._whitened_repeat_cov_cache[i] = self.forward_solve(self.score_cov(i))
        return self._whitened_repeat_cov_cache[i]

    def backward_solve(self, innovations: Sequence[float]) -> Vector:
        """Solve L' alpha = z by back substitution, so that alpha = K^-1 (y - E[y])."""
        alpha = list(innovations)
        for n in reversed(range(len(alpha))):
            row = self.cholesky[n]
            alpha[n] /= row[n]
            for m in range(n):
                alpha[m] -= row[m] * alpha[n]
        return alpha

    def predict_candidate(self, role: str, parent: int | None) -> tuple[LatentVariable, Vector, Vector, float]:
        """Predict one more text: its quality, the whitened covariances of quality and score, and the score's sd."""
        if (role, parent) not in self._prediction_cache:
            quality, bias = self.prior_latents(role, parent)
            quality_cov = self.quality_score_cov(quality.covariances)
            score_cov = self.forward_solve([q + bias.covariances[i] for q, i in zip(quality_cov, self.graded_indices, strict=True)])
            variance = (
                quality.variance + bias.variance + self._noise_variance(self.shape.repeat_noise_weight) - dot(score_cov, score_cov)
            )
            self._prediction_cache[role, parent] = quality, self.forward_solve(quality_cov), score_cov, sqrt(max(variance, JITTER))
        return self._prediction_cache[role, parent]


def cached_tree(shape: TreeShape, priors: Priors) -> GaussianTree:
    """Return the cached tree for this shape; a new one extends that of its prefix if it is cached."""
    tree = TREE_CACHE.get((shape, priors))
    if tree is None:
        while len(TREE_CACHE) >= MAX_CACHED_TREES:
            del TREE_CACHE[next(iter(TREE_CACHE))]
        prefix = TREE_CACHE.get((TreeShape(shape.nodes[:-1], shape.repeat_noise_weight), priors)) if len(shape.nodes) > 1 else None
        tree = TREE_CACHE[shape, priors] = GaussianTree(shape, priors, prefix)
    return tree


TREE_CACHE: dict[tuple[TreeShape, Priors], GaussianTree] = {}  # the oldest is dropped first
MAX_CACHED_TREES = 1024


class Posterior:
    """The posterior of the true qualities: `means` (in [0, 1]) and `sds`, by candidate id."""

    def __init__(self, observations: Observations, priors: Priors) -> None:
        self.tree = tree = cached_tree(observations.shape, priors)
        self.node_indices = observations.node_indices
        self.alpha = tree.backward_solve(tree.innovations(observations.scores))
        qualities = zip(tree.qualities.means, tree.qualities.cov, strict=True)
        self._raw_means = [mean + dot(tree.quality_score_cov(row), self.alpha) for mean, row in qualities]
        self.means = {
            id: round(min(1.0, max(0.0, self._raw_means[FIRST_TEXT_INDEX + i])), DIGITS)
            for id, i in observations.node_indices.items()
        }

    @cached_property
    def sds(self) -> dict[int, float]:
        return {id: sqrt(self._posterior_cov(FIRST_TEXT_INDEX + i, FIRST_TEXT_INDEX + i)) for id, i in self.node_indices.items()}

    def _posterior_cov(self, a: int, b: int) -> float:
        """Return the posterior covariance of two qualities."""
        cov = self.tree.qualities.cov[a][b] - dot(self.tree.whitened_cov(a), self.tree.whitened_cov(b))
        return max(cov, 0.0) if a == b else cov

    def is_separated(self, first: int, second: int, n_sd: float) -> bool:
        """Whether two posterior means differ by more than `n_sd` standard deviations of their difference."""
        a, b = FIRST_TEXT_INDEX + self.node_indices[first], FIRST_TEXT_INDEX + self.node_indices[second]
        variance = self._posterior_cov(a, a) + self._posterior_cov(b, b) - 2 * self._posterior_cov(a, b)
        return abs(self._raw_means[a] - self._raw_means[b]) > n_sd * sqrt(max(variance, 0.0))

    def value_of_candidate(self, role: str, parent: int | None, best: int) -> float:
        """Return the expected improvement over `best` of one more text, a draft or made from `parent`, scored once."""
        quality, quality_cov, score_cov, score_sd = self.tree.predict_candidate(
            role, None if parent is None else self.node_indices[parent]
        )
        rival = FIRST_TEXT_INDEX + self.node_indices[best]
        shift = quality.variance - dot(quality_cov, score_cov) - quality.covariances[rival]
        shift += dot(self.tree.whitened_cov(rival), score_cov)
        mean = quality.mean + dot(self.tree.quality_score_cov(quality.covariances), self.alpha)
        return expected_improvement(mean - self._raw_means[rival], abs(shift) / score_sd)

    def value_of_repeat(self, candidate: int, rival: int) -> float:
        """Return the expected improvement from one more score of `candidate`, which may change places with `rival`."""
        tree, i = self.tree, self.node_indices[candidate]
        one, other = FIRST_TEXT_INDEX + i, FIRST_TEXT_INDEX + self.node_indices[rival]
        score_cov = tree.whitened_repeat_cov(i)
        shift = tree.qualities.cov[one][one] - dot(tree.whitened_cov(one), score_cov)
        shift -= tree.qualities.cov[other][one] - dot(tree.whitened_cov(other), score_cov)
        score_sd = sqrt(max(tree.score_variance(i, tree.shape.repeat_noise_weight) - dot(score_cov, score_cov), JITTER))
        return expected_improvement(-abs(self._raw_means[one] - self._raw_means[other]), abs(shift) / score_sd)


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    """Return the sum of products, up to the length of the shorter vector."""
    return sum(map(mul, a, b), 0.0)


def expected_improvement(mean: float, sd: float) -> float:
    """Return E[max(0, x)] for a normal x: sd * phi(mean / sd) + mean * Phi(mean / sd)."""
    if sd < 1e-9:
        return max(mean, 0.0)
    z = mean / sd
    return max(0.0, sd * exp(-z * z / 2) / sqrt(2 * pi) + mean * (1 + erf(z / sqrt(2))) / 2)
