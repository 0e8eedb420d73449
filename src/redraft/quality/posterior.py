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

from .lineage import Family, Kin, Shape
from .priors import Priors

Row: TypeAlias = list[float]

JITTER = 1e-12  # keeps the factor regular where a grader has no noise
DIGITS = 6  # of what is believed: what was said twice is believed alike
REPAIR_SD = 0.02  # how much an editor's repair changes a quality
LEVEL, GAIN, TEXTS = 0, 1, 2  # among qualities: the task's level, its gain, and the first text


class Latent(NamedTuple):
    """An unknown quantity: its mean, its covariances with those before it, its variance."""

    mean: float
    row: Row
    variance: float


@dataclass
class Joint:
    """Unknown quantities, each a constant plus a weighted sum of earlier ones plus a noise of its own."""

    means: Row = field(default_factory=list)
    cov: list[Row] = field(default_factory=list)

    def of(self, constant: float, sources: Sequence[tuple[int, float]], own: float) -> Latent:
        """One more, with the variance `own` of its noise; it is not added."""
        row, mean = [0.0] * len(self.cov), constant
        for i, weight in sources:
            row = [r + weight * c for r, c in zip(row, self.cov[i], strict=True)]
            mean += weight * self.means[i]
        return Latent(mean, row, own + sum(weight * row[i] for i, weight in sources))

    def add(self, latent: Latent) -> None:
        """Make it known to those that come after."""
        for row, covariance in zip(self.cov, latent.row, strict=True):
            row.append(covariance)
        self.cov.append([*latent.row, latent.variance])
        self.means.append(latent.mean)

    def copy(self) -> Joint:
        return Joint([*self.means], [[*row] for row in self.cov])


class Tree:
    """What follows from the shape of a family alone: how its qualities and its grades depend on each other.

    It is made of the tree without the last text, where there is one.
    """

    def __init__(self, shape: Shape, priors: Priors, before: Tree | None = None) -> None:
        self.shape, self.priors = shape, priors
        self.qualities, self.styles = before.joints if before else (Joint(), Joint())
        self.graded: list[int] = [*before.graded] if before else []
        self.factor: list[Row] = [*before.factor] if before else []  # of the covariances of the grades
        self._told: dict[int, Row] = {}
        self._told_again: dict[int, Row] = {}
        self._steps: dict[tuple[str, int | None], tuple[Latent, Row, Row, float]] = {}
        if before is None:
            self.qualities.add(Latent(priors.level, [], priors.level_sd**2))
            self.qualities.add(Latent(priors.gain, [0.0], priors.gain_sd**2))
        for kin in shape.kin[-1:] if before else shape.kin:
            self._admit(kin)

    def _admit(self, kin: Kin) -> None:
        """One more text, with its grade."""
        quality, style = self.expected(kin.role, kin.parent)
        self.qualities.add(quality)
        self.styles.add(style)
        if kin.noise is not None:
            i = len(self.styles.means) - 1
            row = self.solved(self.of_grade(i))
            self.factor.append([*row, sqrt(max(self.variance(i, kin.noise) - dot(row, row), JITTER))])
            self.graded.append(i)

    @property
    def joints(self) -> tuple[Joint, Joint]:
        """The qualities and the styles, to be added to."""
        return self.qualities.copy(), self.styles.copy()

    def expected(self, role: str, parent: int | None) -> tuple[Latent, Latent]:
        """The quality and the style of a text before it is graded."""
        p, style = self.priors, self.priors.style_sd**2 * self.shape.share
        if parent is None:
            return self.qualities.of(0.0, [(LEVEL, 1.0)], p.draft_sd**2), self.styles.of(0.0, [], style)
        if role == "repair":
            return self.qualities.of(0.0, [(TEXTS + parent, 1.0)], REPAIR_SD**2), self.styles.of(0.0, [(parent, 1.0)], 0.0)
        drift = p.drift if self.shape.share else 0.0
        return (
            self.qualities.of(0.0, [(GAIN, 1.0), (TEXTS + parent, p.carry)], p.step_sd**2),
            self.styles.of(drift, [(parent, p.kinship)], (1 - p.kinship**2) * style),
        )

    def variance(self, i: int, noise: float) -> float:
        """The variance of a grade of a text, with so much of the noise of one look."""
        return self.qualities.cov[TEXTS + i][TEXTS + i] + self.styles.cov[i][i] + self._noise(noise)

    def _noise(self, noise: float) -> float:
        return noise * self.priors.noise_sd**2 + JITTER

    def of_quality(self, row: Sequence[float]) -> Row:
        """A quality's covariances with the grades."""
        return [row[TEXTS + i] for i in self.graded]

    def of_grade(self, i: int) -> Row:
        """A grade's covariances with the grades."""
        return [self.qualities.cov[TEXTS + i][TEXTS + j] + self.styles.cov[i][j] for j in self.graded]

    def solved(self, covariances: Sequence[float]) -> Row:
        """Covariances with the grades as covariances with what is new in each of them (as far as it is known)."""
        solved: Row = []
        for covariance, row in zip(covariances, self.factor, strict=False):
            solved.append((covariance - dot(row, solved)) / row[len(solved)])
        return solved

    def news(self, scores: Iterable[float]) -> Row:
        """What is new in each grade, in standard deviations of what was to be expected after those before."""
        news: Row = []
        for i, score, row in zip(self.graded, scores, self.factor, strict=True):
            surprise = score - self.qualities.means[TEXTS + i] - self.styles.means[i]
            news.append((surprise - dot(row, news)) / row[-1])
        return news

    def told(self, of: int) -> Row:
        """What the grades tell of a quality, as covariances with what is new in each."""
        if of not in self._told:
            self._told[of] = self.solved(self.of_quality(self.qualities.cov[of]))
        return self._told[of]

    def told_again(self, i: int) -> Row:
        """What the grades tell of one more grade of a text."""
        if i not in self._told_again:
            self._told_again[i] = self.solved(self.of_grade(i))
        return self._told_again[i]

    def weights(self, news: Sequence[float]) -> Row:
        """What each grade weighs: a quality is its prior mean, and its covariances with the grades times these."""
        weights = list(news)
        for n in reversed(range(len(weights))):
            row = self.factor[n]
            weights[n] /= row[n]
            for m in range(n):
                weights[m] -= row[m] * weights[n]
        return weights

    def step(self, role: str, parent: int | None) -> tuple[Latent, Row, Row, float]:
        """One more text: its quality, what the grades tell of that and of its own grade, and how its grade would vary."""
        if (role, parent) not in self._steps:
            quality, style = self.expected(role, parent)
            of_quality = self.of_quality(quality.row)
            of_grade = self.solved([q + style.row[i] for q, i in zip(of_quality, self.graded, strict=True)])
            variance = quality.variance + style.variance + self._noise(self.shape.share) - dot(of_grade, of_grade)
            self._steps[role, parent] = quality, self.solved(of_quality), of_grade, sqrt(max(variance, JITTER))
        return self._steps[role, parent]


def grown(shape: Shape, priors: Priors) -> Tree:
    """The tree of a shape: many tasks have families of the same, and each is one text more than one that was."""
    tree = TREES.get((shape, priors))
    if tree is None:
        while len(TREES) >= MOST_TREES:
            del TREES[next(iter(TREES))]
        before = TREES.get((Shape(shape.kin[:-1], shape.share), priors)) if len(shape.kin) > 1 else None
        tree = TREES[shape, priors] = Tree(shape, priors, before)
    return tree


TREES: dict[tuple[Shape, Priors], Tree] = {}  # the latest
MOST_TREES = 1024


class Belief:
    """What is believed of the texts of a family: `means` and `sds` of their true quality, by candidate id."""

    def __init__(self, known: Family, priors: Priors) -> None:
        self.tree = tree = grown(known.shape, priors)
        self.places = known.places
        self.weights = tree.weights(tree.news(known.scores))
        qualities = zip(tree.qualities.means, tree.qualities.cov, strict=True)
        self._means = [mean + dot(tree.of_quality(row), self.weights) for mean, row in qualities]
        self.means = {id: round(min(1.0, max(0.0, self._means[TEXTS + i])), DIGITS) for id, i in known.places.items()}

    @cached_property
    def sds(self) -> dict[int, float]:
        return {id: sqrt(self._left(TEXTS + i, TEXTS + i)) for id, i in self.places.items()}

    def _left(self, a: int, b: int) -> float:
        """The covariance that is left of two qualities."""
        left = self.tree.qualities.cov[a][b] - dot(self.tree.told(a), self.tree.told(b))
        return max(left, 0.0) if a == b else left

    def sure(self, one: int, other: int, deviations: float) -> bool:
        """Whether it is clear which of two candidates is better: by so many standard deviations of their difference."""
        a, b = TEXTS + self.places[one], TEXTS + self.places[other]
        variance = self._left(a, a) + self._left(b, b) - 2 * self._left(a, b)
        return abs(self._means[a] - self._means[b]) > deviations * sqrt(max(variance, 0.0))

    def gain_of(self, role: str, parent: int | None, best: int) -> float:
        """What one more text, written anew or from `parent` and graded once, is expected to add to the best."""
        quality, told, of_grade, spread = self.tree.step(role, None if parent is None else self.places[parent])
        rival = TEXTS + self.places[best]
        moved = quality.variance - dot(told, of_grade) - quality.row[rival] + dot(self.tree.told(rival), of_grade)
        mean = quality.mean + dot(self.tree.of_quality(quality.row), self.weights)
        return expected_gain(mean - self._means[rival], abs(moved) / spread)

    def gain_of_look(self, candidate: int, rival: int) -> float:
        """What one more look at a text is expected to add, where it may change places with `rival`."""
        tree, i = self.tree, self.places[candidate]
        one, other = TEXTS + i, TEXTS + self.places[rival]
        of_grade = tree.told_again(i)
        moved = tree.qualities.cov[one][one] - dot(tree.told(one), of_grade)
        moved -= tree.qualities.cov[other][one] - dot(tree.told(other), of_grade)
        spread = sqrt(max(tree.variance(i, tree.shape.share) - dot(of_grade, of_grade), JITTER))
        return expected_gain(-abs(self._means[one] - self._means[other]), abs(moved) / spread)


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    """The sum of products, as far as both go."""
    return sum(map(mul, a, b), 0.0)


def expected_gain(lead: float, sd: float) -> float:
    """The mean of max(0, x) for x with the mean `lead` and the standard deviation `sd`."""
    if sd < 1e-9:
        return max(lead, 0.0)
    z = lead / sd
    return max(0.0, sd * exp(-z * z / 2) / sqrt(2 * pi) + lead * (1 + erf(z / sqrt(2))) / 2)
