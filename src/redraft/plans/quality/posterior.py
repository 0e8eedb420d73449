"""The posterior of every candidate's true quality, given noisy scores (formulas: README.md).

Qualities and scores are jointly Gaussian (see `tree`), and the posterior is the conditional
distribution given the scores. Scores that only say between which bounds a judge's impression is are
first replaced by Gaussian observations (see `filtering`).

The value of a step is the expected increase in the quality of the answer that is returned after it:
the knowledge gradient (Frazier, Powell & Dayanik 2009, INFORMS Journal on Computing 21:599), here
between the best candidate and the one text that the step may put in its place.
"""

from __future__ import annotations

from math import sqrt

from ...loop.trace import cached_view
from .filtering import tree_with_intervals
from .likelihood import (
    SCORE_TOLERANCE,
    Vector,
    density,
    normal_cdf,
)
from .lineage import Node, Observations
from .priors import Priors
from .tree import (
    FIRST_TEXT_INDEX,
    GaussianTree,
    TextPrediction,
    backward_solve,
    cached_tree,
    dot,
)

MIN_SD = 1e-4  # below it, a quality is known
DIGITS = 6  # of posterior means: rounding makes equal texts have equal means
SCALE = 10**DIGITS


class Posterior:
    """The posterior of the true qualities: `means` (in [0, 1]) and `sds`, by candidate id."""

    def __init__(self, observations: Observations, priors: Priors) -> None:
        tree, scores = (
            tree_with_intervals(observations, priors)
            if observations.intervals
            else (cached_tree(observations.shape, priors), observations.scores)
        )
        self.tree, self.alpha = tree, backward_solve(tree.cholesky, tree.innovations(scores))
        self.node_indices, self.coarse_step = observations.node_indices, observations.coarse_step

    def with_expected_text(self, role: str, parent: int | None, id: int) -> Posterior:
        """Return the posterior with one more text, to which every judge gives the score that is
        expected. `id` is its candidate id.

        It is the "kriging believer" (README.md, "Several steps at once"): such a score has no
        innovation, so all means remain, and the observations that stand for intervals do, too.
        """
        tree = self.tree
        weight = tree.shape.repeat_noise_weight
        text = Node(role, None if parent is None else self.node_indices[parent], weight)
        shape = tree.shape._replace(nodes=(*tree.shape.nodes, text))
        posterior = Posterior.__new__(Posterior)
        posterior.tree = GaussianTree(shape, tree.priors, tree)
        posterior.alpha = [*self.alpha, 0.0]
        posterior.node_indices, posterior.coarse_step = (
            {**self.node_indices, id: len(tree.shape.nodes)},
            self.coarse_step,
        )
        return posterior

    @cached_view
    def _raw_means(self) -> Vector:
        """The posterior means of all qualities, not limited to [0, 1]."""
        weights = [0.0] * len(self.tree.qualities.means)
        for i, weight in zip(self.tree.graded_indices, self.alpha, strict=True):
            weights[FIRST_TEXT_INDEX + i] = weight
        return self.tree.qualities.means_given(weights)

    @cached_view
    def means(self) -> dict[int, float]:
        raw = self._raw_means[FIRST_TEXT_INDEX:]
        # as `round` does, in a third of the time
        limited = [
            int(mean * SCALE + 0.5) / SCALE if 0.0 <= mean <= 1.0 else float(mean > 0)
            for mean in raw
        ]
        return {id: limited[i] for id, i in self.node_indices.items()}

    def unlimited_mean(self, candidate: int) -> float:
        """Return the posterior mean of the quality of one candidate, not limited to [0, 1]."""
        return round(self._raw_means[FIRST_TEXT_INDEX + self.node_indices[candidate]], DIGITS)

    @cached_view
    def sds(self) -> dict[int, float]:
        return {id: self.sd_of(id) for id in self.node_indices}

    def sd_of(self, candidate: int) -> float:
        """Return the standard deviation of the quality of one candidate, which takes less than all
        of `sds`.
        """
        index = FIRST_TEXT_INDEX + self.node_indices[candidate]
        return sqrt(self._posterior_cov(index, index))

    def _posterior_cov(self, a: int, b: int) -> float:
        """Return the posterior covariance of two qualities."""
        covs, explained = self.tree.whitened_cov(a)
        if a == b:
            return max(0.0, self.tree.qualities.cov(a, a) - explained)
        return self.tree.qualities.cov(a, b) - dot(covs, self.tree.whitened_cov(b)[0])

    def prior_bias(self, candidate: int) -> float:
        """Return the bias that the priors expect of a candidate: what refining it has added to its
        scores, but not its quality.
        """
        return self.tree.biases.means[self.node_indices[candidate]]

    def p_at_least(self, candidate: int, quality: float) -> float:
        """Return the probability that the quality of a candidate is at least this high."""
        sd = self.sd_of(candidate)
        if sd < MIN_SD:
            return float(self.means[candidate] >= quality - SCORE_TOLERANCE)
        return normal_cdf(
            (self._raw_means[FIRST_TEXT_INDEX + self.node_indices[candidate]] - quality) / sd
        )

    def is_separated(self, first: int, second: int, n_sd: float) -> bool:
        """Whether two posterior means differ by more than `n_sd` standard deviations of their
        difference.
        """
        a, b = (
            FIRST_TEXT_INDEX + self.node_indices[first],
            FIRST_TEXT_INDEX + self.node_indices[second],
        )
        variance = (
            self._posterior_cov(a, a) + self._posterior_cov(b, b) - 2 * self._posterior_cov(a, b)
        )
        return abs(self._raw_means[a] - self._raw_means[b]) > n_sd * sqrt(max(variance, 0.0))

    def mean_of(self, text: TextPrediction) -> float:
        """Return the posterior mean of the quality of one more text, not limited to [0, 1]."""
        means = self._raw_means
        return sum([weight * means[i] for i, weight in text.quality_sources])

    def value_of_candidate(self, role: str, parent: int | None, best: int) -> float:
        """Return the expected improvement over `best` of one more text, a draft or made from
        `parent`, scored once.
        """
        node, rival = None if parent is None else self.node_indices[parent], self.node_indices[best]
        text = self.tree.predict_candidate(role, node)
        lead = self.mean_of(text) - self._raw_means[FIRST_TEXT_INDEX + rival]
        return expected_improvement(lead, abs(self.tree.candidate_slope(role, node, rival)))


def expected_improvement(mean: float, sd: float) -> float:
    """Return E[max(0, x)] for a normal x: sd * phi(mean / sd) + mean * Phi(mean / sd)."""
    if sd < 1e-9:
        return max(mean, 0.0)
    z = mean / sd
    return max(0.0, sd * density(z) + mean * normal_cdf(z))
