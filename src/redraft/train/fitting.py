"""Fits heads to labels: penalised logistic regression, with the penalty chosen by cross-validation
over whole clusters. It needs `redraft[validate]`.

Each label is a comparison of a row of features with 0: for kinds score and pass the features of the
answer, with an intercept; for pairs and rankings the difference of the features of two answers,
without one (Bradley-Terry). A ridge penalty shrinks all weights. The numbers of an embedding
together weigh as much as one other feature before the labels say otherwise.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from ..errors import GradingError
from .head import Features, Head

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
PENALTIES = tuple(10 ** (n / 2) for n in range(-3, 7))  # from 0.03 to 1000, of standard features
FOLDS = 10
RESAMPLES = 40  # samples of the clusters, for intervals
MIN_CLUSTERS = 10  # to fit a head; fewer prove nothing
INTERCEPT_PENALTY = 1e-6  # almost none
FARTHER = 1.1  # how far an embedding may be from the center, by the largest squared distance
MIN_SPREAD = 1e-9  # a feature that varies by less is constant


class Target(NamedTuple):
    """What people say of one answer, or of two: of answers `first` and `second` (None: 0), the
    label from 0 to 1 that the head is to expect.
    """

    first: int
    second: int | None
    label: float
    cluster: Hashable
    weight: float = 1.0


class FittedHead(NamedTuple):
    """A head, and its log loss of each label when it is fitted to other clusters than the label's
    own.
    """

    head: Head
    losses: tuple[float, ...]
    clusters: tuple[Hashable, ...]

    @property
    def loss(self) -> float:
        """The mean log loss: 0.69 is that of a guess between two."""
        return fmean(self.losses)


def ranked_targets(first: int, ranks: Sequence[int], cluster: Hashable) -> list[Target]:
    """Return the comparisons that the ranks of several answers make, from 0, equal for ties;
    `first` is the index of the first answer. The weights of `n` answers sum up to n - 1.
    """
    return [
        Target(
            first + a,
            first + b,
            0.5 if ranks[a] == ranks[b] else float(ranks[a] < ranks[b]),
            cluster,
            2 / len(ranks),
        )
        for a, b in combinations(range(len(ranks)), 2)
    ]


def fit_head(
    answers: Sequence[Features], targets: Sequence[Target], names: Sequence[str]
) -> FittedHead:
    """Return the head that uses the features with these names, and the vectors of the answers if
    they have any.

    Raises GradingError for fewer than ten clusters, and if no feature varies.
    """
    if (count := len({target.cluster for target in targets})) < MIN_CLUSTERS:
        raise GradingError(
            f"a head needs graded answers to at least {MIN_CLUSTERS} tasks, and there are {count}"
        )
    numbers = np.array([[each.values[name] for name in names] for each in answers], float)
    vectors = np.array([each.vector for each in answers], float)
    values = np.hstack([numbers.reshape(len(answers), -1), vectors])
    center, deviation = values.mean(axis=0), values.std(axis=0)
    varies = deviation > MIN_SPREAD
    if not varies.any():
        raise GradingError("nothing that the graders say differs between the labelled answers")
    # the spreads of a vector are wider: all of it counts as one feature
    width = np.sqrt(max(1, varies[len(names) :].sum()))
    spread = np.where(varies, deviation, 1.0)
    spread[len(names) :] *= width
    standard = np.where(varies, (values - center) / spread, 0.0)
    labels = _Labels.of(standard, targets)
    losses, penalty = min(
        ((_losses_on_others(labels, penalty), penalty) for penalty in PENALTIES),
        key=lambda found: found[0].sum(),
    )
    *weights, intercept = labels.fit_features(penalty)
    distances = (standard[:, len(names) :] ** 2).sum(axis=1)
    head = Head(
        names=tuple(names),
        center=tuple(center.tolist()),
        spread=tuple(spread.tolist()),
        low=tuple(numbers.min(axis=0).tolist()),
        high=tuple(numbers.max(axis=0).tolist()),
        weights=tuple(weights),
        intercept=intercept,
        resamples=tuple(tuple(each.fit_features(penalty)) for each in _cluster_samples(labels)),
        vector_length=vectors.shape[1],
        max_distance=float(distances.max()) * FARTHER,
    )
    return FittedHead(head, tuple(losses.tolist()), labels.clusters)


@dataclass(frozen=True)
class _Labels:
    """Rows of features with the label that each is to have, its weight and its cluster.

    The rows are in the space that they span, of fewer dimensions than there are rows: `directions`
    leads back to the features.
    """

    rows: Array
    directions: Array
    labels: Array
    weights: Array
    clusters: tuple[Hashable, ...]
    has_intercept: bool

    @classmethod
    def of(cls, standard: Array, targets: Sequence[Target]) -> _Labels:
        def row(target: Target) -> Array:
            first: Array = standard[target.first]
            return first if target.second is None else first - standard[target.second]

        left, sizes, right = np.linalg.svd(np.array(list(map(row, targets))), full_matrices=False)
        return cls(
            left * sizes,
            right,
            np.array([target.label for target in targets]),
            np.array([target.weight for target in targets]),
            tuple(target.cluster for target in targets),
            has_intercept=targets[0].second is None,
        )

    def fit(self, penalty: float) -> Array:
        """Return the weights of the rows, and the intercept last (0 without one)."""
        used = self.weights > 0
        labels, weights = self.labels[used], self.weights[used]
        ones = np.full((len(labels), 1), float(self.has_intercept))
        rows = np.hstack([self.rows[used], ones])
        ridge: Array = np.append(np.full(rows.shape[1] - 1, penalty), INTERCEPT_PENALTY)

        def loss(w: Array) -> tuple[float, Array]:
            linear = rows @ w
            value = weights @ (np.logaddexp(0, linear) - labels * linear) + ridge @ w**2 / 2
            return float(value), rows.T @ (weights * (expit(linear) - labels)) + ridge * w

        def curvature(w: Array, direction: Array) -> Array:
            p = expit(rows @ w)
            product: Array = rows.T @ (weights * p * (1 - p) * (rows @ direction))
            product += ridge * direction
            return product

        start = np.zeros(len(ridge))
        found: Array = minimize(loss, start, method="Newton-CG", jac=True, hessp=curvature).x
        return found

    def fit_features(self, penalty: float) -> list[float]:
        """Return the weights of the features, and the intercept last."""
        fitted = self.fit(penalty)
        return [*(fitted[:-1] @ self.directions).tolist(), float(fitted[-1])]


def _losses_on_others(labels: _Labels, penalty: float) -> Array:
    """Return the log loss of each label by weights that were fitted to other clusters."""
    names = list(dict.fromkeys(labels.clusters))
    random.Random(0).shuffle(names)
    fold_of = {name: n % FOLDS for n, name in enumerate(names)}
    folds = np.array([fold_of[cluster] for cluster in labels.clusters])
    losses = np.zeros(len(folds))
    for fold in set(fold_of.values()):
        out = folds == fold
        fitted = replace(labels, weights=np.where(out, 0.0, labels.weights)).fit(penalty)
        linear = labels.rows[out] @ fitted[:-1] + fitted[-1]
        losses[out] = np.logaddexp(0, linear) - labels.labels[out] * linear
    losses *= labels.weights / labels.weights.mean()
    return losses


def _cluster_samples(labels: _Labels) -> list[_Labels]:
    """Return the labels with the weights that samples of whole clusters, drawn with replacement,
    give them.
    """
    names, rng = sorted(set(labels.clusters), key=str), random.Random(0)
    samples = [Counter(rng.choices(names, k=len(names))) for _ in range(RESAMPLES)]
    return [
        replace(
            labels,
            weights=labels.weights * [sample[cluster] for cluster in labels.clusters],
        )
        for sample in samples
    ]
