"""The joint Gaussian distribution of the qualities and scores of a tree of texts (formulas:
README.md).

Qualities, biases and scores are jointly Gaussian, with covariances that follow from the tree of
texts. What is conditional on the scores needs one Cholesky factor of their covariance, which is
extended row by row as texts are added, without a matrix library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import dist, sqrt
from operator import add, mul, sub
from typing import NamedTuple, TypeAlias

from ...base.bounded_cache import BoundedCache
from .likelihood import Vector
from .lineage import THRESHOLD_SD, Node, TreeShape
from .priors import Priors

JITTER = 1e-12  # added to variances: keeps the Cholesky factor regular for scores without noise
REPAIR_SD = 0.02  # standard deviation by which an editor's repair changes the quality
# in `qualities`: task level, task gain, then the texts
DRAFT_MEAN_INDEX, GAIN_INDEX, FIRST_TEXT_INDEX = (0, 1, 2)
THRESHOLD_INDEX = -1  # of what all scores have in common, which is no quality, in `whitened_covs`


class Cause(NamedTuple):
    """What a variable is made of: a constant, earlier variables with their weights, and independent
    noise.
    """

    constant: float
    sources: Sequence[tuple[int, float]]
    noise_variance: float


@dataclass
class JointGaussian:
    """Jointly Gaussian variables, each a constant plus a linear combination of earlier ones plus
    independent noise.

    A row has the covariances of a variable with those before it, and last its variance. Rows never
    change, so copies share them.
    """

    causes: list[Cause] = field(default_factory=list)
    means: Vector = field(default_factory=list)
    rows: list[Vector] = field(default_factory=list)

    def moments(self, cause: Cause) -> tuple[float, float]:
        """Return the mean and the variance of one more variable."""
        mean, sources, variance = cause
        for n, (i, weight) in enumerate(sources):
            mean += weight * self.means[i]
            variance += weight * weight * self.rows[i][i]
            for j, other in sources[:n]:
                variance += 2 * weight * other * self.cov(i, j)
        return mean, variance

    def add(self, cause: Cause) -> None:
        """Add a variable, so that later ones can depend on it."""
        mean, variance = self.moments(cause)
        self.rows.append(
            [
                *weighted_sum(
                    [(self.covs(i), weight) for i, weight in cause.sources], len(self.rows)
                ),
                variance,
            ]
        )
        self.means.append(mean)
        self.causes.append(cause)

    def cov(self, i: int, j: int) -> float:
        """Return the covariance of two variables."""
        return self.rows[i][j] if i >= j else self.rows[j][i]

    def covs(self, i: int) -> Vector:
        """Return the covariances of a variable with all variables."""
        return [*self.rows[i], *[row[i] for row in self.rows[i + 1 :]]]

    def means_given(self, weights: Vector) -> Vector:
        """Return the means given observations, of which each variable has the weight K^-1 (y -
        E[y]).

        A variable moves by the variance of its own noise times the weights of all observations that
        this noise reaches, each as far as it does, and by the moves of what it is made of.
        """
        means: Vector = []
        reached, i = [*weights], len(weights)
        for _, sources, _ in reversed(self.causes):
            i -= 1
            for j, weight in sources:
                reached[j] += weight * reached[i]
        for (constant, sources, noise_variance), reach in zip(self.causes, reached, strict=True):
            mean = constant + noise_variance * reach
            for j, weight in sources:
                mean += weight * means[j]
            means.append(mean)
        return means

    def copy(self) -> JointGaussian:
        return JointGaussian([*self.causes], [*self.means], [*self.rows])


# The covariances L^-1 Cov(y, v) of a variable v with the whitened scores, and the sum of their
# squares: the part of its variance that the scores explain.
WhitenedCov: TypeAlias = tuple[Sequence[float], float]
NOT_WHITENED: WhitenedCov = (), 0.0
# A row of L: the covariances of a score with the whitened scores before it, the sum of their
# squares, and the diagonal.
CholeskyRow: TypeAlias = tuple[tuple[float, ...], float, float]


class TextPrediction(NamedTuple):
    """One more text before it is scored, given the scores so far.

    `quality_sources` are the qualities that its own is made of, with their weights;
    `quality_variance` is its variance before any score. `quality_cov` and `score_cov` are the
    covariances of its quality and its score with the whitened scores; `score_sd` is the sd of its
    score given these.
    """

    quality_sources: Sequence[tuple[int, float]]
    quality_variance: float
    quality_cov: Vector
    score_cov: Vector
    score_sd: float


class GaussianTree:
    """The joint distribution of qualities and scores for one tree shape; it does not depend on the
    scores.

    `prefix` is the tree of the same shape without its last text; it is copied and extended by one
    row.
    """

    def __init__(
        self, shape: TreeShape, priors: Priors, prefix: GaussianTree | None = None
    ) -> None:
        self.shape, self.priors = shape, priors
        self.qualities: JointGaussian = prefix.qualities.copy() if prefix else JointGaussian()
        self.biases: JointGaussian = prefix.biases.copy() if prefix else JointGaussian()
        # of the impressions that the texts make: their prior means, and their covariances with
        # those before them and their variance
        self.impression_means: Vector = [*prefix.impression_means] if prefix else []
        self.impression_rows: list[Vector] = [*prefix.impression_rows] if prefix else []
        self.graded_indices: list[int] = [*prefix.graded_indices] if prefix else []
        # L, of the score covariance
        self.cholesky: list[CholeskyRow] = [*prefix.cholesky] if prefix else []
        # by index; the prefix's own lack the components of the new scores
        self.whitened_covs: dict[int, WhitenedCov] = {**prefix.whitened_covs} if prefix else {}
        self.whitened_impressions: dict[int, WhitenedCov] = (
            {**prefix.whitened_impressions} if prefix else {}
        )
        self._text_predictions: dict[tuple[str, int | None], TextPrediction] = {}
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
        covariances = zip(
            self.qualities.rows[-1][FIRST_TEXT_INDEX:], self.biases.rows[-1], strict=True
        )
        self.impression_rows.append([quality + bias + threshold for quality, bias in covariances])
        self.impression_means.append(self.qualities.means[-1] + self.biases.means[-1])
        if node.noise_weight is not None:
            self.add_score(len(self.impression_means) - 1, self.noise_variance(node.noise_weight))

    def add_score(self, i: int, noise: float) -> None:
        """Add a score of text `i` with this noise variance: a row of the Cholesky factor."""
        self.graded_indices.append(i)
        self.cholesky.append(
            next_cholesky_row(self.cholesky, self.impression_covs(i, self.graded_indices), noise)
        )

    def with_scores(self, noise_variances: Mapping[int, float]) -> GaussianTree:
        """Return the tree of the same texts with other scores: of these texts, by index, with these
        noise variances.
        """
        graded, rows = sorted(noise_variances), self.impression_rows
        cholesky: list[CholeskyRow] = []
        if len(graded) < len(rows):
            rows = [[rows[i][j] for j in graded if j <= i] for i in graded]
        for i, row in zip(graded, rows, strict=True):
            cholesky.append(next_cholesky_row(cholesky, row, noise_variances[i]))
        tree = GaussianTree.__new__(GaussianTree)
        by_scores = (
            "whitened_covs",
            "whitened_impressions",
            "_text_predictions",
            "_slopes",
        )
        vars(tree).update(
            vars(self), graded_indices=graded, cholesky=cholesky, **{name: {} for name in by_scores}
        )
        return tree

    def causes(self, role: str, parent: int | None) -> tuple[Cause, Cause]:
        """Return what the quality and the bias of a text are made of."""
        p, bias_variance = self.priors, self.priors.bias_sd**2 * self.shape.repeat_noise_weight
        if parent is None:
            return Cause(0.0, [(DRAFT_MEAN_INDEX, 1.0)], p.draft_sd**2), Cause(
                0.0, [], bias_variance
            )
        if role == "repair":
            return Cause(0.0, [(FIRST_TEXT_INDEX + parent, 1.0)], REPAIR_SD**2), Cause(
                0.0, [(parent, 1.0)], 0.0
            )
        drift, inheritance = (
            p.bias_drift if self.shape.repeat_noise_weight else 0.0,
            p.bias_inheritance,
        )
        return (
            Cause(0.0, [(GAIN_INDEX, 1.0), (FIRST_TEXT_INDEX + parent, p.retention)], p.step_sd**2),
            Cause(drift, [(parent, inheritance)], (1 - inheritance**2) * bias_variance),
        )

    def impression_covs(self, i: int, others: Sequence[int]) -> Vector:
        """Return the prior covariances of the impressions that text `i` and other texts
        make.
        """
        return part_of_row(self.impression_rows, i, others)

    def noise_variance(self, weight: float) -> float:
        """Return the noise variance of a score with this noise weight."""
        return weight * self.priors.noise_sd**2 + JITTER

    @property
    def interval_noise(self) -> float:
        """The noise variance of a score that is an interval; at the ends of a fine scale it
        contains the threshold's.
        """
        return self.noise_variance(1.0) + (0.0 if self.shape.threshold_sd else THRESHOLD_SD**2)

    def innovations(self, scores: Iterable[float]) -> Vector:
        """Solve L z = y - E[y]: each score's deviation from its prediction by the earlier ones, in
        standard deviations.
        """
        means = self.impression_means
        surprises = [score - means[i] for i, score in zip(self.graded_indices, scores, strict=True)]
        return forward_solve(self.cholesky, surprises)[0]

    def whitened_cov(self, quality_index: int) -> WhitenedCov:
        """Return a quality's covariances with the whitened scores."""
        known = self.whitened_covs.get(quality_index, NOT_WHITENED)
        if (n := len(known[0])) < len(self.cholesky):
            columns = [FIRST_TEXT_INDEX + i for i in self.graded_indices[n:]]
            known = forward_solve(
                self.cholesky, part_of_row(self.qualities.rows, quality_index, columns), known
            )
            self.whitened_covs[quality_index] = known
        return known

    def whitened_impression(self, i: int) -> WhitenedCov:
        """Return the covariances of the impression that text `i` makes with the whitened scores.

        Up to the score of the text, they belong to that score.
        """
        known = self.whitened_impressions.get(i, NOT_WHITENED)
        if len(known[0]) < len(self.cholesky):
            if known is NOT_WHITENED and i in self.graded_indices:
                known = self.cholesky[self.graded_indices.index(i)][:2]
            covs = part_of_row(self.impression_rows, i, self.graded_indices[len(known[0]) :])
            known = self.whitened_impressions[i] = forward_solve(self.cholesky, covs, known)
        return known

    def whitened_threshold_cov(self) -> Sequence[float] | None:
        """Return the covariances of what all scores have in common with the whitened scores; None
        without it.
        """
        if not self.shape.threshold_sd:
            return None
        known = self.whitened_covs.get(THRESHOLD_INDEX, NOT_WHITENED)
        if (n := len(known[0])) < len(self.cholesky):
            known = forward_solve(
                self.cholesky, [self.shape.threshold_sd**2] * (len(self.cholesky) - n), known
            )
            self.whitened_covs[THRESHOLD_INDEX] = known
        return known[0]

    def predict_candidate(self, role: str, parent: int | None) -> TextPrediction:
        """Predict one more text: its quality, and its score."""
        known = self._text_predictions.get((role, parent))
        if known is None:
            quality, bias = self.causes(role, parent)
            variances = self.qualities.moments(quality)[1], self.biases.moments(bias)[1]
            cov = weighted_sum([(self.whitened_cov(i)[0], weight) for i, weight in quality.sources])
            score_cov = self.whitened_score_cov(cov, bias.sources)
            variance = sum(variances) + self.shape.threshold_sd**2 - dot(score_cov, score_cov)
            sd = sqrt(max(variance + self.noise_variance(self.shape.repeat_noise_weight), JITTER))
            known = TextPrediction(quality.sources, variances[0], cov, score_cov, sd)
            self._text_predictions[role, parent] = known
        return known

    def whitened_score_cov(
        self, quality_cov: Vector, bias_sources: Sequence[tuple[int, float]]
    ) -> Vector:
        """Return the whitened covariances of the score of one more text: of its quality, its bias
        and what all scores share.

        A bias that comes from a text is the impression of that text without its quality and without
        what all scores share.
        """
        common = self.whitened_threshold_cov()
        if not bias_sources:
            return [*map(add, quality_cov, common)] if common else quality_cov
        [(parent, share)] = bias_sources
        impression, quality = (
            self.whitened_impression(parent)[0],
            self.whitened_cov(FIRST_TEXT_INDEX + parent)[0],
        )
        if common is None:
            return [
                own + share * (h - q)
                for own, h, q in zip(quality_cov, impression, quality, strict=True)
            ]
        parts, rest = zip(quality_cov, impression, quality, common, strict=True), 1 - share
        return [own + share * (h - q) + rest * tau for own, h, q, tau in parts]

    def candidate_slope(self, role: str, parent: int | None, rival: int) -> float:
        """Return by how much the lead of one more text over text `rival` rises per standard
        deviation of its score.
        """
        known = self._slopes.get((role, parent, rival))
        if known is None:
            sources, variance, cov, score_cov, sd = self.predict_candidate(role, parent)
            other = FIRST_TEXT_INDEX + rival
            shift = variance - dot(cov, score_cov) + dot(self.whitened_cov(other)[0], score_cov)
            for i, weight in sources:
                shift -= weight * self.qualities.cov(i, other)
            known = self._slopes[role, parent, rival] = shift / sd
        return known


def forward_solve(
    rows: Sequence[CholeskyRow], covariances: Iterable[float], known: WhitenedCov = NOT_WHITENED
) -> tuple[Vector, float]:
    """Solve L x = c by forward substitution. `known`: the first components of x; `covariances`: the
    others of c.

    A scalar product is taken by the distance of its vectors, 2 ab = |a|^2 + |b|^2 - |a - b|^2,
    which takes Python half the time.
    """
    x, square = [*known[0]], known[1]
    for covariance, (left, left_square, diagonal) in zip(
        covariances, rows[len(x) :] if x else rows, strict=False
    ):
        distance = dist(left, x)
        component = (covariance - (square + left_square - distance * distance) / 2) / diagonal
        square += component * component
        x.append(component)
    return x, square


def backward_solve(rows: Sequence[CholeskyRow], innovations: Sequence[float]) -> Vector:
    """Solve L^T alpha = z by back substitution, so that alpha = K^-1 (y - E[y])."""
    rest = innovations
    alpha: Vector = []
    for left, _, diagonal in reversed(rows):
        last = rest[-1] / diagonal
        alpha.append(last)
        rest = [*map(sub, rest, map(mul, left, repeat(last)))]
    return alpha[::-1]


def next_cholesky_row(
    rows: Sequence[CholeskyRow], covariances: Sequence[float], noise: float
) -> CholeskyRow:
    """Return the next row of a Cholesky factor. `covariances`: with the variables before it, then
    its variance without `noise`.
    """
    left, square = forward_solve(rows, covariances)
    return tuple(left), square, sqrt(max(covariances[-1] + noise - square, JITTER))


def part_of_row(rows: Sequence[Vector], i: int, columns: Iterable[int]) -> Vector:
    """Return what row `i` of a symmetric matrix has in some columns. `rows` end at the diagonal."""
    row = rows[i]
    return [row[j] if j <= i else rows[j][i] for j in columns]


def weighted_sum(vectors: Sequence[tuple[Sequence[float], float]], size: int = 0) -> Vector:
    """Return the weighted sum of at most two vectors; of none, as many zeros as `size`."""
    if len(vectors) == 2:
        [(first, one), (second, other)] = vectors
        return [one * v + other * w for v, w in zip(first, second, strict=True)]
    return [weight * v for vector, weight in vectors for v in vector] or [0.0] * size


def cached_tree(shape: TreeShape, priors: Priors) -> GaussianTree:
    """Return the cached tree for this shape; a new one extends its prefix's if that is
    cached.
    """
    tree = TREE_CACHE.get((shape, priors))
    if tree is None:
        nodes, *others = shape
        prefix = (
            TREE_CACHE.get((TreeShape(nodes[:-1], *others), priors)) if len(nodes) > 1 else None
        )
        tree = TREE_CACHE[shape, priors] = GaussianTree(shape, priors, prefix)
    return tree


TREE_CACHE: BoundedCache[tuple[TreeShape, Priors], GaussianTree] = BoundedCache(1024)


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    """Return the sum of products, up to the length of the shorter vector."""
    return sum(map(mul, a, b), 0.0)
