"""What is believed of every candidate's true quality, given grades that are noisy.

All is Gaussian. Drafts of a task lie around its level; a refinement lies at `gain + carry * parent`, where the gain is the
task's own; a grade is the quality, plus the grader's lasting bias for or against this text, most of which a revision
inherits, plus the noise of one look. What is believed after some grades is their conditional distribution: covariances from
the family tree, one Cholesky factor, no matrix library. A grader that computes has neither noise nor bias: its word is
believed.

A step is worth what it is expected to add to the quality of the answer that is returned after it. That is the knowledge
gradient (Frazier, Powell & Dayanik 2009, INFORMS Journal on Computing 21:599), here between the best and the one text that
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

JITTER = 1e-12  # keeps the factor regular where a grader has no noise
DIGITS = 6  # of what is believed: what was said twice is believed alike
REPAIR_SD = 0.02  # how much an editor's repair changes a quality
DRAFT_MEAN_INDEX, GAIN_INDEX, FIRST_TEXT_INDEX = 0, 1, 2  # among qualities: the task's level, its gain, and the first text


class LatentVariable(NamedTuple):
    """An unknown quantity: its mean, its covariances with those before it, its variance."""

    mean: float
    covariances: Vector
    variance: float


@dataclass
class JointGaussian:
    """Unknown quantities, each a constant plus a weighted sum of earlier ones plus a noise of its own."""

    means: Vector = field(default_factory=list)
    cov: list[Vector] = field(default_factory=list)

    def linear_combination(self, constant: float, sources: Sequence[tuple[int, float]], noise_variance: float) -> LatentVariable:
        """One more, with the variance `own` of its noise; it is not added."""
        row, mean = [0.0] * len(self.cov), constant
        for i, weight in sources:
            row = [r + weight * c for r, c in zip(row, self.cov[i], strict=True)]
            mean += weight * self.means[i]
        return LatentVariable(mean, row, noise_variance + sum(weight * row[i] for i, weight in sources))

    def add(self, latent: LatentVariable) -> None:
        """Make it known to those that come after."""
        for row, covariance in zip(self.cov, latent.covariances, strict=True):
            row.append(covariance)
        self.cov.append([*latent.covariances, latent.variance])
        self.means.append(latent.mean)

    def copy(self) -> JointGaussian:
        return JointGaussian([*self.means], [[*row] for row in self.cov])


class GaussianTree:
    """What follows from the shape of a family alone: how its qualities and its grades depend on each other.

    It is made of the tree without the last text, where there is one.
    """

    def __init__(self, shape: TreeShape, priors: Priors, prefix: GaussianTree | None = None) -> None:
        self.shape, self.priors = shape, priors
        self.qualities, self.biases = prefix.joint_copies if prefix else (JointGaussian(), JointGaussian())
        self.graded_indices: list[int] = [*prefix.graded_indices] if prefix else []
        self.cholesky: list[Vector] = [*prefix.cholesky] if prefix else []  # of the covariances of the grades
        self._whitened_cov_cache: dict[int, Vector] = {}
        self._whitened_repeat_cov_cache: dict[int, Vector] = {}
        self._prediction_cache: dict[tuple[str, int | None], tuple[LatentVariable, Vector, Vector, float]] = {}
        if prefix is None:
            self.qualities.add(LatentVariable(priors.draft_mean, [], priors.draft_mean_sd**2))
            self.qualities.add(LatentVariable(priors.gain, [0.0], priors.gain_sd**2))
        for kin in shape.nodes[-1:] if prefix else shape.nodes:
            self._add_node(kin)

    def _add_node(self, node: Node) -> None:
        """One more text, with its grade."""
        quality, style = self.prior_latents(node.role, node.parent)
        self.qualities.add(quality)
        self.biases.add(style)
        if node.noise_weight is not None:
            i = len(self.biases.means) - 1
            row = self.forward_solve(self.score_cov(i))
            self.cholesky.append([*row, sqrt(max(self.score_variance(i, node.noise_weight) - dot(row, row), JITTER))])
            self.graded_indices.append(i)

    @property
    def joint_copies(self) -> tuple[JointGaussian, JointGaussian]:
        """The qualities and the styles, to be added to."""
        return self.qualities.copy(), self.biases.copy()

    def prior_latents(self, role: str, parent: int | None) -> tuple[LatentVariable, LatentVariable]:
        """The quality and the style of a text before it is graded."""
        p, style = self.priors, self.priors.bias_sd**2 * self.shape.repeat_noise_weight
        if parent is None:
            return self.qualities.linear_combination(0.0, [(DRAFT_MEAN_INDEX, 1.0)], p.draft_sd**2), self.biases.linear_combination(
                0.0, [], style
            )
        if role == "repair":
            return self.qualities.linear_combination(
                0.0, [(FIRST_TEXT_INDEX + parent, 1.0)], REPAIR_SD**2
            ), self.biases.linear_combination(0.0, [(parent, 1.0)], 0.0)
        drift = p.bias_drift if self.shape.repeat_noise_weight else 0.0
        return (
            self.qualities.linear_combination(0.0, [(GAIN_INDEX, 1.0), (FIRST_TEXT_INDEX + parent, p.retention)], p.step_sd**2),
            self.biases.linear_combination(drift, [(parent, p.bias_inheritance)], (1 - p.bias_inheritance**2) * style),
        )

    def score_variance(self, i: int, noise_weight: float) -> float:
        """The variance of a grade of a text, with so much of the noise of one look."""
        return (
            self.qualities.cov[FIRST_TEXT_INDEX + i][FIRST_TEXT_INDEX + i]
            + self.biases.cov[i][i]
            + self._noise_variance(noise_weight)
        )

    def _noise_variance(self, weight: float) -> float:
        return weight * self.priors.noise_sd**2 + JITTER

    def quality_score_cov(self, row: Sequence[float]) -> Vector:
        """A quality's covariances with the grades."""
        return [row[FIRST_TEXT_INDEX + i] for i in self.graded_indices]

    def score_cov(self, i: int) -> Vector:
        """A grade's covariances with the grades."""
        return [self.qualities.cov[FIRST_TEXT_INDEX + i][FIRST_TEXT_INDEX + j] + self.biases.cov[i][j] for j in self.graded_indices]

    def forward_solve(self, covariances: Sequence[float]) -> Vector:
        """Covariances with the grades as covariances with what is new in each of them (as far as it is known)."""
        solved: Vector = []
        for covariance, row in zip(covariances, self.cholesky, strict=False):
            solved.append((covariance - dot(row, solved)) / row[len(solved)])
        return solved

    def innovations(self, scores: Iterable[float]) -> Vector:
        """What is new in each grade, in standard deviations of what was to be expected after those before."""
        news: Vector = []
        for i, score, row in zip(self.graded_indices, scores, self.cholesky, strict=True):
            surprise = score - self.qualities.means[FIRST_TEXT_INDEX + i] - self.biases.means[i]
            news.append((surprise - dot(row, news)) / row[-1])
        return news

    def whitened_cov(self, quality_index: int) -> Vector:
        """What the grades tell of a quality, as covariances with what is new in each."""
        if quality_index not in self._whitened_cov_cache:
            self._whitened_cov_cache[quality_index] = self.forward_solve(self.quality_score_cov(self.qualities.cov[quality_index]))
        return self._whitened_cov_cache[quality_index]

    def whitened_repeat_cov(self, i: int) -> Vector:
        """What the grades tell of one more grade of a text."""
        if i not in self._whitened_repeat_cov_cache:
            self._whitened_repeat_cov_cache[i] = self.forward_solve(self.score_cov(i))
        return self._whitened_repeat_cov_cache[i]

    def backward_solve(self, innovations: Sequence[float]) -> Vector:
        """What each grade weighs: a quality is its prior mean, and its covariances with the grades times these."""
        weights = list(innovations)
        for n in reversed(range(len(weights))):
            row = self.cholesky[n]
            weights[n] /= row[n]
            for m in range(n):
                weights[m] -= row[m] * weights[n]
        return weights

    def predict_candidate(self, role: str, parent: int | None) -> tuple[LatentVariable, Vector, Vector, float]:
        """One more text: its quality, what the grades tell of that and of its own grade, and how its grade would vary."""
        if (role, parent) not in self._prediction_cache:
            quality, style = self.prior_latents(role, parent)
            of_quality = self.quality_score_cov(quality.covariances)
            of_grade = self.forward_solve([q + style.covariances[i] for q, i in zip(of_quality, self.graded_indices, strict=True)])
            variance = (
                quality.variance + style.variance + self._noise_variance(self.shape.repeat_noise_weight) - dot(of_grade, of_grade)
            )
            self._prediction_cache[role, parent] = quality, self.forward_solve(of_quality), of_grade, sqrt(max(variance, JITTER))
        return self._prediction_cache[role, parent]


def cached_tree(shape: TreeShape, priors: Priors) -> GaussianTree:
    """The tree of a shape: many tasks have families of the same, and each is one text more than one that was."""
    tree = TREE_CACHE.get((shape, priors))
    if tree is None:
        while len(TREE_CACHE) >= MAX_CACHED_TREES:
            del TREE_CACHE[next(iter(TREE_CACHE))]
        before = TREE_CACHE.get((TreeShape(shape.nodes[:-1], shape.repeat_noise_weight), priors)) if len(shape.nodes) > 1 else None
        tree = TREE_CACHE[shape, priors] = GaussianTree(shape, priors, before)
    return tree


TREE_CACHE: dict[tuple[TreeShape, Priors], GaussianTree] = {}  # the latest
MAX_CACHED_TREES = 1024


class Posterior:
    """What is believed of the texts of a family: `means` and `sds` of their true quality, by candidate id."""

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
        """The covariance that is left of two qualities."""
        left = self.tree.qualities.cov[a][b] - dot(self.tree.whitened_cov(a), self.tree.whitened_cov(b))
        return max(left, 0.0) if a == b else left

    def is_separated(self, first: int, second: int, n_sd: float) -> bool:
        """Whether it is clear which of two candidates is better: by so many standard deviations of their difference."""
        a, b = FIRST_TEXT_INDEX + self.node_indices[first], FIRST_TEXT_INDEX + self.node_indices[second]
        variance = self._posterior_cov(a, a) + self._posterior_cov(b, b) - 2 * self._posterior_cov(a, b)
        return abs(self._raw_means[a] - self._raw_means[b]) > n_sd * sqrt(max(variance, 0.0))

    def value_of_candidate(self, role: str, parent: int | None, best: int) -> float:
        """What one more text, written anew or from `parent` and graded once, is expected to add to the best."""
        quality, told, of_grade, spread = self.tree.predict_candidate(role, None if parent is None else self.node_indices[parent])
        rival = FIRST_TEXT_INDEX + self.node_indices[best]
        moved = quality.variance - dot(told, of_grade) - quality.covariances[rival] + dot(self.tree.whitened_cov(rival), of_grade)
        mean = quality.mean + dot(self.tree.quality_score_cov(quality.covariances), self.alpha)
        return expected_improvement(mean - self._raw_means[rival], abs(moved) / spread)

    def value_of_repeat(self, candidate: int, rival: int) -> float:
        """What one more look at a text is expected to add, where it may change places with `rival`."""
        tree, i = self.tree, self.node_indices[candidate]
        one, other = FIRST_TEXT_INDEX + i, FIRST_TEXT_INDEX + self.node_indices[rival]
        of_grade = tree.whitened_repeat_cov(i)
        moved = tree.qualities.cov[one][one] - dot(tree.whitened_cov(one), of_grade)
        moved -= tree.qualities.cov[other][one] - dot(tree.whitened_cov(other), of_grade)
        spread = sqrt(max(tree.score_variance(i, tree.shape.repeat_noise_weight) - dot(of_grade, of_grade), JITTER))
        return expected_improvement(-abs(self._raw_means[one] - self._raw_means[other]), abs(moved) / spread)


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    """The sum of products, as far as both go."""
    return sum(map(mul, a, b), 0.0)


def expected_improvement(mean: float, sd: float) -> float:
    """The mean of max(0, x) for x with the mean `lead` and the standard deviation `sd`."""
    if sd < 1e-9:
        return max(mean, 0.0)
    z = mean / sd
    return max(0.0, sd * exp(-z * z / 2) / sqrt(2 * pi) + mean * (1 + erf(z / sqrt(2))) / 2)
