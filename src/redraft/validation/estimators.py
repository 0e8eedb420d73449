"""What people would say of all answers, from few labels and the verdicts of a judge on many answers.

The labelled answers must be a random sample of all answers, and labels that were used to choose or to tune the judge do not count.
The judge may be wrong in any way: a bad judge widens the interval, and does not shift the estimate. Numbers are plain sequences; a
cluster is what several answers have in common, such as a task or a document. Needs `redraft[validate]`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import NormalDist, fmean
from typing import Any

from .. import checks
from ..errors import ConfigError
from ..quality.calibration import check_confidence
from . import statistics as m

RARE_LABELS = 5  # with fewer labels of one kind, the interval of a share is widened to Wilson's
UNKNOWN_INTERVAL = (-inf, inf)


@dataclass(frozen=True, slots=True)
class LabelEstimate:
    """An estimate of the mean label (or difference, or share) of all answers, in the unit of the labels.

    Attributes:
        value: The estimate.
        interval: Its confidence interval, or None if the labels do not determine one: for a single cluster, or for labels that do
            not vary and are not 0 or 1.
        standard_error: Its standard error, None if unknown.
        labels: The number of labelled answers.
        unlabelled: The number of answers with a score only.
        clusters: The number of clusters of labelled answers.
        judge_weight: How much the judge's scores count, from 0 (not at all: the mean label) to 1; None if the method has no weight.
    """

    value: float
    interval: tuple[float, float] | None
    standard_error: float | None
    labels: int
    unlabelled: int
    clusters: int
    judge_weight: float | None = None


def ppi_mean(
    labels: Sequence[float],
    scores: Sequence[float],
    unlabelled_scores: Sequence[float] = (),
    *,
    clusters: Sequence[Hashable] | None = None,
    unlabelled_clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> LabelEstimate:
    """Return the mean label of all answers by prediction-powered inference.

    Args:
        labels: People's label of each labelled answer, in any unit; 1 and 0 for a share.
        scores: The judge's score of the same answers, in any unit. Scores like the labels help most.
        unlabelled_scores: The judge's scores of other answers. Without any, the result is the mean label.
        clusters: The cluster of each labelled answer. None: the answers are independent.
        unlabelled_clusters: The cluster of each unlabelled answer. A cluster is labelled wholly or not at all.
        confidence: The confidence of the interval, between 0 and 1.

    With judge weight w, the estimate is w mean(unlabelled scores) + mean(labels - w scores). Its variance is the sum of those of
    both means, and w minimises it, limited to [0, 1]. The interval has the t quantile with one degree of freedom less than there
    are clusters (of the kind with fewer). If the labels are 0 and 1, and fewer than five are of one kind, the interval
    contains Wilson's.

    Sources: Angelopoulos et al., "Prediction-powered inference" (2023), and Angelopoulos, Duchi and Zrnic, "PPI++" (2023).

    Raises:
        ConfigError: A sequence has the wrong length, a number is missing or not finite, or a cluster has labelled and
            unlabelled answers.
    """
    check_confidence(confidence)
    labelled = _Column.of("labels", labels, clusters)
    judged = _Column.of("scores", scores, clusters)
    _same_length({"labels": labels, "scores": scores})
    others = _Column.of("unlabelled_scores", unlabelled_scores, unlabelled_clusters) if len(unlabelled_scores) else None
    if others and clusters is not None and (both := set(labelled.clusters) & set(others.clusters)):
        raise ConfigError(f"cluster {next(iter(both))!r:.80} has labelled and unlabelled answers: label it wholly or not at all")
    weight = _judge_weight(labelled, judged, others) if others else 0.0
    corrected = labelled.minus(judged, weight)
    value = corrected.mean + (weight * others.mean if others else 0.0)
    variance, smallest = corrected.mean_variance, labelled.cluster_count
    if others and weight:
        variance += weight**2 * others.mean_variance
        smallest = min(smallest, others.cluster_count)
    error = sqrt(variance) if smallest > 1 and variance > 0 else None
    half = None if error is None else m.t_quantile(0.5 + confidence / 2, smallest - 1) * error
    interval = None if half is None else (value - half, value + half)
    if set(labelled.values) <= {0.0, 1.0}:
        value, interval = min(1.0, max(0.0, value)), _share_interval(labelled, interval, confidence)
    return LabelEstimate(
        value, interval, error, len(labelled.values), len(unlabelled_scores), labelled.cluster_count, weight if others else None
    )


def ppi_difference(
    labels: Sequence[tuple[float, float]],
    scores: Sequence[tuple[float, float]],
    unlabelled_scores: Sequence[tuple[float, float]] = (),
    *,
    clusters: Sequence[Hashable] | None = None,
    unlabelled_clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> LabelEstimate:
    """Return by how much people rate A above B on average: `ppi_mean` of the differences of paired answers.

    Each item is a pair (A, B) of one row, such as the labels of two answers to one task. The other arguments, the source and the
    errors are those of `ppi_mean`.
    """
    columns = {"labels": labels, "scores": scores, "unlabelled_scores": unlabelled_scores}
    differences = [_differences(name, pairs) for name, pairs in columns.items()]
    return ppi_mean(*differences, clusters=clusters, unlabelled_clusters=unlabelled_clusters, confidence=confidence)


def rogan_gladen(
    labels: Sequence[float], verdicts: Sequence[float], unlabelled_verdicts: Sequence[float], *, confidence: float = 0.95
) -> LabelEstimate:
    """Return the share of good answers among others, from a judge's pass rate and its error rates on labelled answers.

    Use it for labels of other answers than those that are judged, such as an older set with another share of good ones: it assumes
    that the error rates stay the same. If the labelled answers are a random sample, `ppi_mean` is more precise.

    Args:
        labels: People's label of each labelled answer, 1 (good) or 0.
        verdicts: The judge's verdict on the same answers, 1 (pass) or 0.
        unlabelled_verdicts: The judge's verdicts on the answers whose share of good ones is estimated.
        confidence: The confidence of the interval, between 0 and 1.

    With pass rate p, sensitivity s and specificity t, the estimate is (p + t - 1) / (s + t - 1), limited to [0, 1].

    Sources: Rogan and Gladen, "Estimating prevalence from the results of a screening test" (1978); the interval with shrunk
    rates: Lang and Reiczigel (2014), for judges Lee et al., "How to correctly report LLM-as-a-judge evaluations" (2025).

    Raises:
        ConfigError: A value is neither 0 nor 1, a kind of label or the unlabelled verdicts are missing, or the judge is no better
            than chance on the labelled answers.
    """
    check_confidence(confidence)
    _same_length({"labels": labels, "verdicts": verdicts})
    truth, passed, others = (
        _binary_numbers(name, column)
        for name, column in (("labels", labels), ("verdicts", verdicts), ("unlabelled_verdicts", unlabelled_verdicts))
    )
    on_good = [verdict for label, verdict in zip(truth, passed, strict=True) if label]
    on_bad = [1 - verdict for label, verdict in zip(truth, passed, strict=True) if not label]
    for name, column in (("labels of good answers", on_good), ("labels of bad answers", on_bad), ("unlabelled_verdicts", others)):
        if not column:
            raise ConfigError(f"{name}: there is none")
    rates = _ErrorRates(fmean(on_good), len(on_good), fmean(on_bad), len(on_bad), fmean(others), len(others))
    if rates.informedness <= 0:
        raise ConfigError(
            f"the judge is no better than chance on the labelled answers: it passes {rates.sensitivity:.2f} of the good "
            f"and {1 - rates.specificity:.2f} of the bad ones"
        )
    value = min(1.0, max(0.0, rates.prevalence))
    interval, error = rates.interval(confidence)
    return LabelEstimate(value, interval, error, len(truth), len(others), len(truth))


def labels_needed(
    half_width: float, sd: float, correlation: float = 0.0, *, unlabelled: int | None = None, confidence: float = 0.95
) -> int:
    """Return how many labels `ppi_mean` needs for an interval of a given half-width, at least 2.

    Args:
        half_width: Half the width of the interval, in the unit of the labels.
        sd: Standard deviation of the labels (of their differences for `ppi_difference`); a share has at most 0.5.
        correlation: Correlation of scores and labels, from -1 to 1; 0 for no judge.
        unlabelled: How many answers will have a score only; None: many more than labels.
        confidence: The confidence of the interval, between 0 and 1.

    The variance with n labels and N scores is sd^2 / n (1 - correlation^2 N / (n + N)) (Angelopoulos, Duchi and Zrnic, "PPI++",
    2023); the normal quantile is used. Raises ConfigError for values out of range.
    """
    checks.positive("half_width", half_width)
    checks.number("sd", sd)
    checks.number("correlation", correlation, -1, 1)
    checks.whole_number("unlabelled", unlabelled, 0, optional=True)
    check_confidence(confidence)
    classical = (NormalDist().inv_cdf(0.5 + confidence / 2) * sd / half_width) ** 2
    if unlabelled is None:
        needed = classical * (1 - correlation**2)
    else:
        excess = unlabelled - classical
        needed = (sqrt(excess**2 + 4 * classical * (1 - correlation**2) * unlabelled) - excess) / 2
    return max(2, ceil(needed - 1e-9))


# ---- clusters


@dataclass(frozen=True, slots=True)
class _Column:
    """Numbers and the cluster of each."""

    values: list[float]
    clusters: Sequence[Hashable]

    @classmethod
    def of(cls, name: str, values: Sequence[float], clusters: Sequence[Hashable] | None) -> _Column:
        numbers = m.finite_numbers(name, values)
        if not numbers:
            raise ConfigError(f"{name}: there is none")
        groups = list(range(len(numbers))) if clusters is None else list(clusters)
        if len(groups) != len(numbers):
            raise ConfigError(f"{name}: there are {len(numbers)}, and {len(groups)} clusters")
        return cls(numbers, groups)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def cluster_count(self) -> int:
        return len(set(self.clusters))

    @property
    def mean_variance(self) -> float:
        """The variance of the mean; 0 for a single cluster, and if all values are equal."""
        return _row_variance(self, self) / len(self.values) if len(set(self.values)) > 1 else 0.0

    def minus(self, other: _Column, weight: float) -> _Column:
        return _Column([a - weight * b for a, b in zip(self.values, other.values, strict=True)], self.clusters)


def _row_variance(a: _Column, b: _Column) -> float:
    """Return the covariance of two columns per row, from sums over clusters; that of rows if each is a cluster."""
    mean_a, mean_b, n = a.mean, b.mean, a.cluster_count
    sums: defaultdict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for x, y, cluster in zip(a.values, b.values, a.clusters, strict=True):
        sums[cluster][0] += x - mean_a
        sums[cluster][1] += y - mean_b
    return n / (n - 1) * sum(x * y for x, y in sums.values()) / len(a.values) if n > 1 else 0.0


def _judge_weight(labels: _Column, scores: _Column, others: _Column) -> float:
    """Return the weight that minimises the variance: cov(label, score) / (var(score, all answers) (1 + n / N)), in [0, 1]."""
    every = _Column(
        scores.values + others.values, [("labelled", c) for c in scores.clusters] + [("other", c) for c in others.clusters]
    )
    if len(set(labels.values)) == 1 or not (variance := _row_variance(every, every)):
        return 0.0
    return min(1.0, max(0.0, _row_variance(labels, scores) / variance / (1 + len(scores.values) / len(others.values))))


def _share_interval(labels: _Column, interval: tuple[float, float] | None, confidence: float) -> tuple[float, float] | None:
    """Return the interval of a share: within [0, 1], and with Wilson's (clusters as rows) if one kind of label is rare."""
    counts = Counter(labels.values)
    low, high = interval or UNKNOWN_INTERVAL
    if min(counts[0.0], counts[1.0]) < RARE_LABELS:
        n = labels.cluster_count
        wilson = m.wilson_interval(labels.mean * n, n, confidence)
        if wilson is not None:
            low, high = (min(low, wilson[0]), max(high, wilson[1])) if interval else wilson
    return None if low == -inf else (max(0.0, low), min(1.0, high))


# ---- error rates


@dataclass(frozen=True, slots=True)
class _ErrorRates:
    """A judge's rates on good and on bad labelled answers and on others, each with the number of answers."""

    sensitivity: float
    good: int
    specificity: float
    bad: int
    pass_rate: float
    others: int

    @property
    def informedness(self) -> float:
        return self.sensitivity + self.specificity - 1

    @property
    def prevalence(self) -> float:
        return (self.pass_rate + self.specificity - 1) / self.informedness

    def interval(self, confidence: float) -> tuple[tuple[float, float], float | None]:
        """Return the interval of the prevalence and its standard error (or None), from rates that are shrunk towards one half."""
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        shrunk = _ErrorRates(
            (self.good * self.sensitivity + 1) / (self.good + 2),
            self.good + 2,
            (self.bad * self.specificity + 1) / (self.bad + 2),
            self.bad + 2,
            (self.others * self.pass_rate + z * z / 2) / (self.others + z * z),
            self.others,
        )
        if shrunk.informedness <= 0:
            return (0.0, 1.0), None
        share = min(1.0, max(0.0, shrunk.prevalence))
        by_bad = shrunk.specificity * (1 - shrunk.specificity) / shrunk.bad
        by_good = shrunk.sensitivity * (1 - shrunk.sensitivity) / shrunk.good
        by_rate = shrunk.pass_rate * (1 - shrunk.pass_rate) / (self.others + z * z)
        centre = share + 2 * z * z * (share * by_good - (1 - share) * by_bad)
        error = sqrt(by_rate + (1 - share) ** 2 * by_bad + share**2 * by_good) / shrunk.informedness
        return (min(1.0, max(0.0, centre - z * error)), min(1.0, max(0.0, centre + z * error))), error


# ---- arguments


def _binary_numbers(name: str, values: Sequence[float]) -> list[float]:
    numbers = m.finite_numbers(name, values, 0, 1)
    if (i := next((i for i, value in enumerate(numbers) if value not in {0, 1}), None)) is not None:
        raise checks.invalid_argument(f"{name}[{i}]", "0 or 1", values[i])
    return numbers


def _differences(name: str, pairs: Sequence[tuple[float, float]]) -> list[float]:
    for i, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise checks.invalid_argument(f"{name}[{i}]", "a pair of numbers", pair)
    first, second = (m.finite_numbers(name, [pair[side] for pair in pairs]) for side in (0, 1))
    return [a - b for a, b in zip(first, second, strict=True)]


def _same_length(columns: dict[str, Sequence[Any]]) -> None:
    if len({len(column) for column in columns.values()}) > 1:
        raise ConfigError(f"{', '.join(columns)} must be equally long, got {', '.join(str(len(c)) for c in columns.values())}")
