"""The head of a trained grader: from the features of an answer to a score, without any library.

It is a logistic function of standardised features. For labels of kind score and pass it is the
expected label on a scale from 0 to 1 (for scores: Papke and Wooldridge, "Econometric methods for
fractional response variables", 1996). For pairs and rankings it is a model of Bradley and Terry
(1952): the score is the probability that people prefer the answer to the average labelled one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum
from operator import mul
from statistics import pstdev
from typing import Any, NamedTuple

from ..errors import ConfigError, StoreError
from ..graders.reward import logistic
from ..loop.serialize import unpack

BEYOND = 1.0  # standard deviations outside the labelled answers within which a feature is accepted
Z_95 = 1.96
MAX_NUMBER = 1e12  # in a head: no score overflows


class HeadScore(NamedTuple):
    """A score from 0 to 1, and its 95% interval: where it would lie with labels of other clusters.

    The interval is about the score, the mean label of such answers; single labels vary more.
    """

    value: float
    low: float
    high: float


class Features(NamedTuple):
    """The features of one answer: numbers by name, None where a grader gave none, and a vector."""

    values: dict[str, float | None]
    vector: tuple[float, ...] = ()


@dataclass(frozen=True)
class Head:
    """Weights of the features, with the range of each feature among the labelled answers.

    `names` are those of the numbers that are used, `vector_length` the length of the vector (0 for
    none). All other tuples are parallel to both, first the numbers: `center` and `spread` make a
    feature standard, `low` and `high` are its ends. `max_distance` is the largest squared distance
    of a vector from the center. `resamples` are the weights, each with its intercept last, that
    samples of the clusters give. Raises ConfigError if the lengths do not fit, or for a number
    beyond MAX_NUMBER.
    """

    names: tuple[str, ...]
    center: tuple[float, ...]
    spread: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float
    resamples: tuple[tuple[float, ...], ...]
    vector_length: int = 0
    max_distance: float = 0.0

    def __post_init__(self) -> None:
        n, m = len(self.names), len(self.names) + self.vector_length
        lengths = [*map(len, (self.center, self.spread, self.weights))]
        numbers = [len(self.low), len(self.high)]
        fits = lengths == [m] * 3 and numbers == [n] * 2
        if not fits or m == 0 or {*map(len, self.resamples)} != {m + 1}:
            raise ConfigError(f"a head of {m} features has other numbers of weights: {lengths}")
        single = (self.intercept, self.max_distance)
        used = (self.center, self.weights, self.low, self.high, *self.resamples, single)
        if not (
            all(abs(number) <= MAX_NUMBER for number in chain(*used, self.spread))
            and min(self.spread) >= 1 / MAX_NUMBER
        ):
            raise ConfigError("a head has a number that is too large, or a spread of 0")

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Head:
        """Return the head that `dataclasses.asdict` made plain, also after JSON. Raises StoreError
        or ConfigError for anything else.
        """
        try:
            resamples = tuple(map(tuple, data["resamples"]))
        except (KeyError, TypeError) as error:
            raise StoreError(f"a head has no resamples: {error!r:.80}") from error
        head: Head = unpack(cls, {**data, "resamples": resamples})
        return head

    def score(self, features: Features) -> HeadScore | str:
        """Return the score of an answer, or in words why there is none: a feature is missing, or
        lies outside what the labelled answers had.
        """
        if problem := next(self._problems(features), None):
            return problem
        row = [*(features.values[name] or 0.0 for name in self.names), *features.vector]
        standard = [(x - c) / s for x, c, s in zip(row, self.center, self.spread, strict=True)]
        linear = _dot(standard, self.weights) + self.intercept
        half = Z_95 * pstdev(_dot(standard, each) + each[-1] for each in self.resamples)
        return HeadScore(*(logistic(x) for x in (linear, linear - half, linear + half)))

    def _problems(self, features: Features) -> Iterator[str]:
        n = len(self.names)
        for name, low, high, spread in zip(
            self.names, self.low, self.high, self.spread[:n], strict=True
        ):
            value = features.values.get(name)
            if value is None:
                yield f"{name} is unknown"
            elif not low - BEYOND * spread <= value <= high + BEYOND * spread:
                yield (
                    f"{name} is {value:.3g}, and {low:.3g} to {high:.3g} in the labelled answers"
                )
        if len(features.vector) != self.vector_length:
            yield f"the embedding has {len(features.vector)} numbers, not {self.vector_length}"
        pairs = zip(features.vector, self.center[n:], self.spread[n:], strict=False)
        if self.vector_length and fsum(((x - c) / s) ** 2 for x, c, s in pairs) > self.max_distance:
            yield "its embedding is further from the labelled answers than any of these"


def _dot(row: Sequence[float], weights: Sequence[float]) -> float:
    """Return the sum of the products. The intercept of a resample, its last number, is left out."""
    products: float = sum(map(mul, row, weights))
    return products
