"""From a judge's score to the label that people would give.

A `Calibration` is fitted to scores and labels of the same answers
(`redraft.validation.calibration`) and stored on a validation card. This module knows how to read
it, without any library: the expected label, an interval, and probabilities. Scores and labels are
in [0, 1]. The README of this package has the formulas.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import ceil, isfinite, sqrt
from operator import itemgetter
from typing import Any, NamedTuple, Self

from ...base import checks
from ...base.own_code import fingerprint_name
from ...errors import ConfigError
from ...loop.serialize import field_validators

MIN_RELIABILITY = 0.3  # lowest assumed share of the variance of scores that is not noise
MIN_SCALE = (
    0.5  # smallest factor by which a prediction that is surer than one score narrows the interval
)


# An interval that ends closer than this to 0 or 1 contains it: where labels are 0 and 1, one that
# ends at 0.99 leaves out all labels of 1
END_WIDTH = 0.02


class LabelPrediction(NamedTuple):
    """The label that people would give to an answer, from 0 to 1: its expected value, and an
    interval.
    """

    mean: float
    interval: tuple[float, float]


@fingerprint_name("calibration")
@dataclass(frozen=True)
class Calibration:
    """What labels of people say about the scores of a judge. All values are in points of the score,
    from 0 to 1.

    Attributes:
        labels: How many labelled answers it was fitted to.
        clusters: How many tasks (documents) these are of.
        knots: The map from score to label: points (score, label) with rising scores, from the
            lowest to the highest one that was labelled, and labels that do not fall. It is linear
            between them, constant outside, and limited to [0, 1].
        errors: Label minus mapped score of labelled answers, each with a map fitted to other
            clusters, divided by `label_spread` of the mapped score, ascending; at most 200, evenly
            chosen.
        label_mean: Mean label.
        score_mean: Mean score.
        score_sd: Standard deviation of the scores.
        bias: Mean score minus mean label; above 0 for a lenient judge.
        error_sd: Root mean squared error of the map, on labels that it was not fitted to; None for
            a single cluster.
        score_error_sd: Root mean squared error of the score itself.
        noise_sd: Standard deviation of repeated scores of one answer; None if no answer was scored
            twice.
        repeats: How many scores of an answer were averaged.
        drift: How much more a refinement raises the score than the label, on average and in points
            of the score; None without labels of both.
        drift_se: Standard error of the drift; None for fewer than two clusters.
        drift_pairs: How many refinements had a label, and an answer before them with one.

    Raises:
        ConfigError: The points do not rise, or a value is out of range.
    """

    labels: int
    clusters: int
    knots: tuple[tuple[float, float], ...]
    errors: tuple[float, ...]
    label_mean: float
    score_mean: float
    score_sd: float
    bias: float
    error_sd: float | None
    score_error_sd: float
    noise_sd: float | None = None
    repeats: float = 1.0
    drift: float | None = None
    drift_se: float | None = None
    drift_pairs: int = 0

    def __post_init__(self) -> None:
        for name in ("labels", "clusters"):
            checks.whole_number(f"calibration: {name}", getattr(self, name), 1)
        for name in ("label_mean", "score_mean", "score_sd", "score_error_sd"):
            checks.number(f"calibration: {name}", getattr(self, name), 0, 1)
        for name in ("error_sd", "noise_sd"):
            checks.number(f"calibration: {name}", getattr(self, name), 0, 1, optional=True)
        checks.number("calibration: bias", self.bias, -1, 1)
        checks.number("calibration: repeats", self.repeats, 1)
        checks.number("calibration: drift_se", self.drift_se, optional=True)
        checks.whole_number("calibration: drift_pairs", self.drift_pairs, 0, self.labels)
        if not self.knots or any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(self.knots)):
            raise ConfigError(
                "calibration: knots have rising scores and labels that do not fall, got "
                f"{self.knots!r:.200}"
            )
        if not all(map(isfinite, (*chain(*self.knots), *self.errors))) or list(
            self.errors
        ) != sorted(self.errors):
            raise ConfigError("calibration: knots and errors are finite numbers, and errors ascend")

    @property
    def source(self) -> str:
        """What stands behind a prediction, in words: "people's labels (n = 120)"."""
        return labels_text(self.labels)

    def expected_label(self, score: float) -> float:
        """Return the expected label of an answer with this score of the judge, in [0, 1]."""
        return mapped_label(self.knots, score)

    def predict(
        self,
        score: float,
        sd: float | None = None,
        *,
        candidates: int = 1,
        confidence: float = 0.95,
    ) -> LabelPrediction:
        """Return the label that people would give to an answer: its expected value and an interval.

        Args:
            score: One score by the judge. With `sd`, the posterior mean of the score that the judge
                would give on average.
            sd: Standard deviation of that posterior mean. None: `score` is one score, such as those
                of the labelled answers.
            candidates: 1, or from how many answers this one was chosen. The interval is then
                widened so far that it holds whichever of them is chosen (Bonferroni). On labelled
                sets the interval for 1 holds for the best of eight, too (bench/coverage.py),
                because the map already lowers high scores.
            confidence: The share of labels that the interval is to cover, between 0 and 1.

        The interval is conformal (Vovk et al. 2005; Lei et al. 2018): over answers like the
        labelled ones it covers at least `confidence` of the labels. It contains 0, or 1, if it ends
        within 0.02 of it. With too few labels, it is (0, 1). Raises ConfigError for values out of
        range.
        """
        _check_score(score, sd)
        checks.whole_number("candidates", candidates, 1)
        check_confidence(confidence)
        mean, scale = self._mean_and_scale(score, sd)
        return LabelPrediction(
            mean, self.interval_around(mean, scale, 1 - (1 - confidence) / candidates)
        )

    def probability(self, target: float, score: float, sd: float | None = None) -> float:
        """Return the probability that people's label is at least `target`, strictly between 0 and
        1.

        It is (k + 1/2) / (n + 1) for the k of n errors that would lift the expected label to the
        target. `score` and `sd` are as in `predict`. Raises ConfigError for values out of range.
        """
        checks.number("target", target, 0, 1)
        _check_score(score, sd)
        return self.share_reaching(target, *self._mean_and_scale(score, sd))

    def interval_around(
        self, mean: float, scale: float = 1.0, confidence: float = 0.95
    ) -> tuple[float, float]:
        """Return the interval of the label of an answer with this expected label; `scale` 1 is that
        of a single score.
        """
        error = self._error_quantile(confidence)
        if error is None:
            return 0.0, 1.0
        half = error * scale * label_spread(mean, self.label_mean)
        low, high = mean - half, mean + half
        return low if low > END_WIDTH else 0.0, high if high < 1 - END_WIDTH else 1.0

    def share_reaching(self, target: float, mean: float, scale: float = 1.0) -> float:
        """Return the probability that the label of an answer with this expected label is at least
        `target`.
        """
        needed = (target - mean) / (scale * label_spread(mean, self.label_mean)) - 1e-9
        return (len(self.errors) - bisect_left(self.errors, needed) + 0.5) / (len(self.errors) + 1)

    def _mean_and_scale(self, score: float, sd: float | None) -> tuple[float, float]:
        """Return the expected label, and the factor by which the interval of a single score widens
        or narrows.
        """
        if sd is None:
            return self.expected_label(score), 1.0
        remaining = self.noise_sd**2 / self.repeats * self._reliability if self.noise_sd else 0.0
        change = self._label_sd(score, sd) ** 2 - self._label_sd(score, sqrt(remaining)) ** 2
        return self.expected_label(self._single_score(score)), self.scale_of(change)

    def scale_of(self, change: float) -> float:
        """Return the factor by which the interval of a single score changes if the label's variance
        changes by so much.
        """
        return sqrt(max(MIN_SCALE**2, 1 + change / self.error_sd**2)) if self.error_sd else 1.0

    def _label_sd(self, score: float, sd: float) -> float:
        """Return the standard deviation of the expected label if the judge's average score is
        uncertain by `sd`.
        """
        low, high = (self.expected_label(self._single_score(score + step)) for step in (-sd, sd))
        return (high - low) / 2

    def _single_score(self, average: float) -> float:
        """Return the single score for which the judge's average score is expected to be this
        (Kelley 1927, inverted).
        """
        return self.score_mean + (average - self.score_mean) / self._reliability

    @cached_property
    def _reliability(self) -> float:
        """Share of the variance of the labelled answers' scores that is not noise; 1 if the noise
        is unknown.
        """
        if not self.noise_sd or not self.score_sd:
            return 1.0
        return max(MIN_RELIABILITY, 1 - self.noise_sd**2 / self.repeats / self.score_sd**2)

    @cached_property
    def _sizes(self) -> list[float]:
        return sorted(map(abs, self.errors))

    def _error_quantile(self, confidence: float) -> float | None:
        """Return the size that at most 1 - confidence of the errors exceed, counting the next one;
        None for too few labels.
        """
        if not self.errors:
            return None
        rank = ceil((self.labels + 1) * confidence - 1e-9)
        return (
            None
            if rank > self.labels
            else self._sizes[ceil(rank * len(self._sizes) / self.labels - 1e-9) - 1]
        )

    def to_data(self) -> dict[str, Any]:
        """Return the calibration as plain data that `json.dumps` accepts."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the calibration that `to_data` wrote, also after JSON. Raises ConfigError for
        anything else.
        """
        try:
            values = dict(data) | {
                "knots": tuple(map(tuple, data["knots"])),
                "errors": tuple(data["errors"]),
            }
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"not a calibration: {error!r:.80}") from error
        valid = field_validators(cls)
        if wrong := next(
            (name for name, value in values.items() if name not in valid or not valid[name](value)),
            None,
        ):
            raise ConfigError(f"not a calibration: {wrong} cannot be {values[wrong]!r:.80}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"not a calibration: {error}") from error


def labels_text(labels: int) -> str:
    """Return what stands behind a score, in words: "people's labels (n = 120)"."""
    return f"people's labels (n = {labels})"


def mapped_label(knots: Sequence[tuple[float, float]], score: float) -> float:
    """Return the label of a score: linear between knots, constant outside, and limited to [0,
    1].
    """
    i = bisect_right(knots, score, key=itemgetter(0))
    if 0 < i < len(knots):
        (x0, y0), (x1, y1) = knots[i - 1], knots[i]
        label = y0 + (y1 - y0) * (score - x0) / (x1 - x0)
    else:
        label = knots[min(i, len(knots) - 1)][1]
    return min(1.0, max(0.0, label))


def label_spread(expected: float, label_mean: float) -> float:
    """Return the relative size of errors at an expected label: as of 0/1 labels, sqrt(p (1 - p)),
    with a lower limit.
    """
    return sqrt(max(label_mean * (1 - label_mean) / 3, 0.01) + expected * (1 - expected))


def _check_score(score: float, sd: float | None) -> None:
    if not checks.is_number(score):
        raise checks.invalid_argument("score", "a finite number; scores are from 0 to 1", score)
    checks.number("sd", sd, optional=True)


def check_confidence(confidence: float, name: str = "confidence") -> None:
    """Raise ConfigError that names the argument unless it is between 0 and 1."""
    if not (checks.is_number(confidence) and 0 < confidence < 1):
        raise checks.invalid_argument(name, "a number between 0 and 1, such as 0.95", confidence)
