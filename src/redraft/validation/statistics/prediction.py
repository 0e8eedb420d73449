"""Few labels and many scores: what people would say of all answers, from few labels and the
verdicts of a judge on many answers.

The labelled answers must be a random sample of all answers, and labels that were used to choose or
to tune the judge do not count. The judge may be wrong in any way: a bad judge widens the interval,
and does not shift the estimate.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

from ...base import checks
from ...errors import ConfigError
from ...plans.quality.calibration import check_confidence
from .intervals import (
    Interval,
    clip_interval,
    cluster_numbers,
    cluster_sums,
    degrees_of_freedom,
    jackknife_variance,
    score_interval,
    t_half_width,
    wilson_interval,
    with_two_rows,
)
from .paired import paired_difference
from .samples import binary_numbers, check_equal_lengths, finite_numbers, import_library

# how wide an interval with a judge's scores may be, relative to that of the labels alone
MAX_WIDTH = 1.01
RARE_LABELS = 5  # with fewer labels of one kind, the interval of a share is widened to Wilson's


@dataclass(frozen=True, slots=True)
class LabelEstimate:
    """An estimate of the mean label (or difference, or share) of all answers, in the unit of the
    labels.

    Attributes:
        value: The estimate.
        interval: Its confidence interval, or None if the labels do not determine one: for a single
            cluster, or for labels that do not vary and are not 0 or 1.
        standard_error: Its standard error, None if unknown.
        labels: The number of labelled answers.
        unlabelled: The number of answers with a score only.
        clusters: The number of clusters of labelled answers.
        judge_weight: How much the judge's scores count, from 0 (not at all: the mean label) to 1,
            or to -1 for scores that fall where labels rise; None if the method has no weight.
    """

    value: float
    interval: Interval | None
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
        scores: The judge's score of the same answers, in any unit. Scores like the labels help
            most.
        unlabelled_scores: The judge's scores of other answers. Without any, the result is the mean
            label.
        clusters: The cluster of each labelled answer. None: the answers are independent.
        unlabelled_clusters: The cluster of each unlabelled answer. A cluster is labelled wholly or
            not at all.
        confidence: The confidence of the interval, between 0 and 1.

    With judge weight w, the estimate is w mean(unlabelled scores) + mean(labels - w scores). The
    weight minimises the variance of independent rows, limited to [-1, 1]; each cluster is one
    degree of freedom. It is 0 if the interval would be more than 1% wider than that of the labels
    alone. The variance is that of a jackknife over clusters, which determines the weight again each
    time: few labels make it uncertain. The interval has Student's t, with the degrees of freedom of
    both means (Satterthwaite). If the labels are 0 and 1, it is Wilson's, for as many rows as would
    have that variance, and if fewer than five are of one kind (rows of a cluster count as one) or
    the estimate is 0 or 1, it contains that of the labels alone.

    Sources: Angelopoulos et al., "Prediction-powered inference" (2023), and Angelopoulos, Duchi and
    Zrnic, "PPI++" (2023), for the estimate; for the variance MacKinnon, Nielsen and Webb,
    "Cluster-robust inference" (2023).

    Raises:
        ConfigError: A sequence has the wrong length, a number is missing or not finite, or a
            cluster has labelled and unlabelled answers.
    """
    check_confidence(confidence)
    rows = _LabelledRows.of(labels, scores, unlabelled_scores, clusters, unlabelled_clusters)
    found = rows.estimate(confidence)
    return _as_share(found, rows, confidence) if set(rows.labels.tolist()) <= {0.0, 1.0} else found


def ppi_difference(
    labels: Sequence[tuple[float, float]],
    scores: Sequence[tuple[float, float]],
    unlabelled_scores: Sequence[tuple[float, float]] = (),
    *,
    clusters: Sequence[Hashable] | None = None,
    unlabelled_clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> LabelEstimate:
    """Return by how much people rate A above B on average: `ppi_mean` of the differences of paired
    answers.

    Each item is a pair (A, B) of one row, such as the labels of two answers to one task. The
    interval is widened by two rows as in `paired_difference`. The other arguments, the source and
    the errors are those of `ppi_mean`.
    """
    check_confidence(confidence)
    columns = {"labels": labels, "scores": scores, "unlabelled_scores": unlabelled_scores}
    differences = [_differences(name, pairs) for name, pairs in columns.items()]
    rows = _LabelledRows.of(
        differences[0], differences[1], differences[2], clusters, unlabelled_clusters
    )
    return rows.estimate(confidence, of_differences=True)


def rogan_gladen(
    labels: Sequence[float],
    verdicts: Sequence[float],
    unlabelled_verdicts: Sequence[float],
    *,
    confidence: float = 0.95,
) -> LabelEstimate:
    """Return the share of good answers among others, from a judge's pass rate and its error rates
    on labelled answers.

    Use it for labels of other answers than those that are judged, such as an older set with another
    share of good ones: it assumes that the error rates stay the same. If the labelled answers are a
    random sample, `ppi_mean` is more precise.

    Args:
        labels: People's label of each labelled answer, 1 (good) or 0.
        verdicts: The judge's verdict on the same answers, 1 (pass) or 0.
        unlabelled_verdicts: The judge's verdicts on the answers whose share of good ones is
            estimated.
        confidence: The confidence of the interval, between 0 and 1.

    With pass rate p, sensitivity s and specificity t, the estimate is (p + t - 1) / (s + t - 1),
    limited to [0, 1]. The interval is (0, 1), without a standard error, for a judge that is no
    better than chance once its rates are shrunk towards one half.

    Sources: Rogan and Gladen, "Estimating prevalence from the results of a screening test" (1978);
    the interval with shrunk rates: Lang and Reiczigel (2014), for judges Lee et al., "How to
    correctly report LLM-as-a-judge evaluations" (2025).

    Raises:
        ConfigError: A value is neither 0 nor 1, a kind of label or the unlabelled verdicts are
            missing, or the judge is no better than chance on the labelled answers.
    """
    check_confidence(confidence)
    rates = _ErrorRates.of(labels, verdicts)
    others = _Rate.of("unlabelled_verdicts", unlabelled_verdicts)
    interval, error = rates.prevalence_interval(others, confidence)
    counts = len(labels), len(unlabelled_verdicts), len(labels)
    return LabelEstimate(rates.prevalence(others), interval, error, *counts)


def rogan_gladen_difference(
    labels: Sequence[float],
    verdicts: Sequence[float],
    verdicts_a: Sequence[float],
    verdicts_b: Sequence[float],
    *,
    confidence: float = 0.95,
) -> LabelEstimate:
    """Return by how much larger B's share of good answers is than A's, from verdicts on paired
    answers and a judge's error rates.

    Use it for labels of other answers than those of A and B, such as an older set: it assumes that
    the judge makes the same errors on all of them, also on A's and B's. If some of their answers
    are labelled, `ppi_difference` assumes nothing of that kind.

    Args:
        labels: People's label of each labelled answer, 1 (good) or 0.
        verdicts: The judge's verdict on the same answers, 1 (pass) or 0.
        verdicts_a: The judge's verdicts on A's answers.
        verdicts_b: The judge's verdicts on B's answers to the same tasks.
        confidence: The confidence of the interval, between 0 and 1.

    With pass rates a and b, sensitivity s and specificity t, the estimate is (b - a) / (s + t - 1),
    limited to [-1, 1], and the errors of all of these determine its standard error (delta method;
    error rates are shrunk towards one half as in `rogan_gladen`). The interval is (-1, 1), without
    a standard error, for a single pair of answers, and for a judge that is no better than chance
    once its rates are shrunk.

    Raises:
        ConfigError: As in `rogan_gladen`, or if A and B have not equally many verdicts.
    """
    check_confidence(confidence)
    rates = _ErrorRates.of(labels, verdicts)
    a, b = binary_numbers("verdicts_a", verdicts_a), binary_numbers("verdicts_b", verdicts_b)
    check_equal_lengths(verdicts_a=a, verdicts_b=b)
    if not a:
        raise ConfigError("verdicts_a: there is none")
    raw = paired_difference(a, b, confidence=confidence)
    value = min(1.0, max(-1.0, raw.value / rates.informedness))
    counts = len(labels), len(a), len(labels)
    shrunk = rates.shrunk
    if shrunk.informedness <= 0 or raw.half_width is None:
        return LabelEstimate(value, (-1.0, 1.0), None, *counts)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    of_rates = shrunk.sensitivity.variance + shrunk.specificity.variance
    of_difference = (raw.half_width / z) ** 2
    error = sqrt(of_difference + (raw.value / shrunk.informedness) ** 2 * of_rates)
    error /= shrunk.informedness
    interval = clip_interval((value - z * error, value + z * error), -1.0, 1.0)
    return LabelEstimate(value, interval, error, *counts)


def labels_needed(
    half_width: float,
    sd: float,
    correlation: float = 0.0,
    *,
    unlabelled: int | None = None,
    confidence: float = 0.95,
) -> int:
    """Return how many labels `ppi_mean` needs for an interval of a given half-width, at least 2.

    Args:
        half_width: Half the width of the interval, in the unit of the labels.
        sd: Standard deviation of the labels (of their differences for `ppi_difference`); a share
            has at most 0.5.
        correlation: Correlation of scores and labels, from -1 to 1; 0 for no judge.
        unlabelled: How many answers will have a score only; None: many more than labels.
        confidence: The confidence of the interval, between 0 and 1.

    The variance with n labels and N scores is sd^2 / n (1 - correlation^2 N / (n + N))
    (Angelopoulos, Duchi and Zrnic, "PPI++", 2023); the normal quantile is used. Raises ConfigError
    for values out of range.
    """
    checks.positive("half_width", half_width)
    checks.number("sd", sd)
    checks.number("correlation", correlation, -1, 1)
    checks.whole_number("unlabelled", unlabelled, 0, optional=True)
    check_confidence(confidence)
    # squares of it are no overflow
    classical = min(NormalDist().inv_cdf(0.5 + confidence / 2) * sd / half_width, 1e70) ** 2
    needed = classical * (1 - correlation**2)
    if unlabelled is not None:
        excess = unlabelled - classical
        root = sqrt(excess**2 + 4 * needed * unlabelled)
        needed = (root - excess) / 2 if excess <= 0 else 2 * needed * unlabelled / (root + excess)
    return max(2, ceil(needed - 1e-9))


# ---- prediction-powered inference


def _columns(numbers: Any, labels: Any, scores: Any) -> Any:
    """Return an array with a column for each cluster: the sums over its rows of 1, the label, the
    score, their product, and the squared score; then 1, to count clusters.
    """
    np = import_library("numpy")
    sums = cluster_sums(numbers, labels, scores, labels * scores, scores * scores)
    return np.array([*sums, np.ones(len(sums[0]))])


@dataclass(frozen=True, slots=True)
class _LabelledRows:
    """Labels and scores of rows, the scores of other rows, and the number of each row's cluster, as
    arrays.
    """

    labels: Any
    scores: Any
    clusters: Any
    others: Any
    other_clusters: Any

    @classmethod
    def of(
        cls,
        labels: Sequence[float],
        scores: Sequence[float],
        others: Sequence[float],
        clusters: Sequence[Hashable] | None,
        other_clusters: Sequence[Hashable] | None,
    ) -> _LabelledRows:
        """Check the columns. Raises ConfigError."""
        np = import_library("numpy")
        check_equal_lengths(labels=labels, scores=scores, clusters=clusters)
        check_equal_lengths(unlabelled_scores=others, unlabelled_clusters=other_clusters)
        columns = {"labels": labels, "scores": scores, "unlabelled_scores": others}
        numbers = [
            np.array(finite_numbers(name, column), float) for name, column in columns.items()
        ]
        if not len(labels):
            raise ConfigError("labels: there is none")
        named = [set(groups) for groups in (clusters, other_clusters) if groups is not None]
        if len(named) == 2 and (both := named[0] & named[1]):
            raise ConfigError(
                f"cluster {next(iter(both))!r:.80} has labelled and unlabelled answers: label it "
                "wholly or not at all"
            )
        of_rows, of_others = (
            cluster_numbers(clusters, len(labels)),
            cluster_numbers(other_clusters, len(others)),
        )
        return cls(numbers[0], numbers[1], of_rows, numbers[2], of_others)

    def estimate(self, confidence: float, *, of_differences: bool = False) -> LabelEstimate:
        """Return the estimate. The scores do not count if all labels are equal, or if the other
        rows are a single cluster.
        """
        equal = bool((self.labels == self.labels[0]).all())
        # sums of centred numbers lose no digits
        middle = self.labels[0] if equal else self.labels.mean()
        shift = (self.scores.sum() + self.others.sum()) / (len(self.scores) + len(self.others))
        labelled = _columns(self.clusters, self.labels - middle, self.scores - shift)
        others = _columns(self.other_clusters, 0 * self.others, self.others - shift)
        nothing = others[:, :0]
        alone = _jackknife(labelled, nothing)
        point = _jackknife(labelled, nothing if equal or others.shape[1] < 2 else others)
        if point.half_width(confidence) > MAX_WIDTH * alone.half_width(confidence):
            point = alone
        value, variance = float(middle + point.value), point.total_variance
        half = point.half_width(confidence)
        interval = (value - half, value + half) if variance else None
        rows, label, score = labelled[:3]
        if of_differences and point.variance is not None:
            sums = label + rows * middle
            interval = with_two_rows(
                (value - half, value + half),
                self.labels,
                sums,
                rows,
                sums - point.weight * score + rows * point.from_others,
                freedom=point.degrees_of_freedom,
                confidence=confidence,
                other_variance=point.others_variance,
            )
        counts = len(self.labels), len(self.others), len(rows)
        return LabelEstimate(
            value,
            interval,
            sqrt(variance) if variance else None,
            *counts,
            point.weight if len(self.others) else None,
        )


class _Point(NamedTuple):
    """An estimate, the judge's weight, the part of the estimate that is due to other rows, and how
    uncertain it is.

    The variances are those from labelled (None: unknown) and from other rows.
    """

    value: float
    weight: float
    from_others: float
    variance: float | None = None
    others_variance: float = 0.0
    degrees_of_freedom: float = 0.0

    @property
    def total_variance(self) -> float:
        return (self.variance or 0.0) + self.others_variance

    def half_width(self, confidence: float) -> float:
        """Return half the width of the interval; 0 if nothing is known to vary."""
        variance = self.total_variance
        return t_half_width(variance, self.degrees_of_freedom, confidence) if variance else 0.0


def _jackknife(labelled: Any, others: Any) -> _Point:
    """Return the estimate with its variance, from the estimates without one cluster each; both
    arguments are arrays of `_columns`.
    """
    of_labelled, of_others = labelled.sum(axis=1), others.sum(axis=1)
    value, weight = map(float, _ppi_point(of_labelled, of_others))
    from_others = weight * float(of_others[2] / of_others[0]) if weight else 0.0
    point = _Point(value, weight, from_others)
    if labelled.shape[1] < 2:
        return point
    changes = _ppi_point(of_labelled[:, None] - labelled, of_others)[0] - value
    variance, freedom = jackknife_variance(changes), degrees_of_freedom(labelled[0])
    if not weight:
        return point._replace(variance=variance, degrees_of_freedom=freedom)
    changes = _ppi_point(of_labelled, of_others[:, None] - others)[0] - value
    others_variance = jackknife_variance(changes)
    if total := variance + others_variance:
        freedom = 1 / (
            (variance / total) ** 2 / freedom
            + (others_variance / total) ** 2 / degrees_of_freedom(others[0])
        )
    return point._replace(
        variance=variance, others_variance=others_variance, degrees_of_freedom=freedom
    )


def _ppi_point(labelled: Any, others: Any) -> tuple[Any, Any]:
    """Return the estimate and the judge's weight, from the sums of `_columns` over the labelled and
    the other rows: cov(label, score) / (var(score, all rows) (1 + n / N)), limited to [-1, 1].

    A cluster is one degree of freedom of these, so that rows which are repeated in their cluster
    change nothing.
    """
    np = import_library("numpy")
    n, label, score, product, square, clusters = labelled
    n_others, _, score_others, _, square_others, other_clusters = others
    if not np.any(n_others):
        return label / n, 0.0 * n
    every, all_clusters = n + n_others, clusters + other_clusters
    variance = (square + square_others - (score + score_others) ** 2 / every) / (
        every * (all_clusters - 1) / all_clusters
    )
    freedom = n * np.maximum(clusters - 1, 1) / clusters
    covariance = (product - label * score / n) / freedom
    known = variance > 0
    weight = np.where(
        known, np.clip(covariance / np.where(known, variance, 1.0) / (1 + n / n_others), -1, 1), 0.0
    )
    return weight * score_others / n_others + (label - weight * score) / n, weight


def _as_share(found: LabelEstimate, rows: _LabelledRows, confidence: float) -> LabelEstimate:
    """Return the estimate of a share, from 0 to 1: with Wilson's interval for as many rows as would
    be as precise.

    If one kind of label is rare, or the estimate is 0 or 1, it contains that of the labels alone,
    with clusters as rows.
    """
    share, intervals = min(1.0, max(0.0, found.value)), []
    if found.interval and found.standard_error and 0 < share < 1:
        quantile = (found.interval[1] - found.interval[0]) / 2 / found.standard_error
        intervals = [score_interval(share, share * (1 - share) / found.standard_error**2, quantile)]
    n = int(rows.clusters.max()) + 1
    rare = min(rows.labels.sum(), (1 - rows.labels).sum()) * n / len(rows.labels) < RARE_LABELS
    if rare or not intervals:
        intervals += [wilson_interval(float(rows.labels.mean()) * n, n, confidence) or (0.0, 1.0)]
    low, high = min(low for low, _ in intervals), max(high for _, high in intervals)
    return replace(found, value=share, interval=(min(low, share), max(high, share)))


# ---- error rates


class _Rate(NamedTuple):
    """How many of several answers a judge passes (or is right about), and how many there are."""

    passed: float
    answers: float

    @classmethod
    def of(cls, name: str, verdicts: Sequence[float]) -> _Rate:
        """Count verdicts of 0 and 1. Raises ConfigError that names them if there is none."""
        numbers = binary_numbers(name, verdicts)
        if not numbers:
            raise ConfigError(f"{name}: there is none")
        return cls(sum(numbers), len(numbers))

    @property
    def share(self) -> float:
        return self.passed / self.answers

    @property
    def variance(self) -> float:
        """The variance of the share."""
        return self.share * (1 - self.share) / self.answers

    def shrunk(self, answers: float) -> _Rate:
        """Return the rate with so many more answers, half of which count."""
        return _Rate(self.passed + answers / 2, self.answers + answers)


class _ErrorRates(NamedTuple):
    """How often a judge passes good answers (sensitivity) and fails bad ones (specificity)."""

    sensitivity: _Rate
    specificity: _Rate

    @classmethod
    def of(cls, labels: Sequence[float], verdicts: Sequence[float]) -> _ErrorRates:
        """Compare verdicts with labels. Raises ConfigError for a judge that is no better than
        chance.
        """
        check_equal_lengths(labels=labels, verdicts=verdicts)
        columns = binary_numbers("labels", labels), binary_numbers("verdicts", verdicts)
        rows = list(zip(*columns, strict=True))
        rates = cls(
            _Rate.of("labels of good answers", [passed for label, passed in rows if label]),
            _Rate.of(
                "labels of bad answers", [1 - verdict for label, verdict in rows if not label]
            ),
        )
        if rates.informedness <= 0:
            raise ConfigError(
                "the judge is no better than chance on the labelled answers: it passes "
                f"{rates.sensitivity.share:.2f} of the good and {1 - rates.specificity.share:.2f} "
                "of the bad ones"
            )
        return rates

    @property
    def informedness(self) -> float:
        return self.sensitivity.share + self.specificity.share - 1

    @property
    def shrunk(self) -> _ErrorRates:
        """The rates with one more answer of each kind and verdict."""
        return _ErrorRates(*(rate.shrunk(2) for rate in self))

    def prevalence(self, passed: _Rate) -> float:
        """Return the share of good answers, from 0 to 1, among answers with this pass rate."""
        share = (passed.share + self.specificity.share - 1) / self.informedness
        return min(1.0, max(0.0, share))

    def prevalence_interval(
        self, passed: _Rate, confidence: float
    ) -> tuple[Interval, float | None]:
        """Return the interval of the prevalence and its standard error (or None), from rates that
        are shrunk towards one half.
        """
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        rates, others = self.shrunk, passed.shrunk(z * z)
        if rates.informedness <= 0:
            return (0.0, 1.0), None
        share = rates.prevalence(others)
        by_good, by_bad = (rate.variance for rate in rates)
        centre = share + 2 * z * z * (share * by_good - (1 - share) * by_bad)
        error = sqrt(others.variance + (1 - share) ** 2 * by_bad + share**2 * by_good)
        error /= rates.informedness
        low, high = (min(1.0, max(0.0, end)) for end in (centre - z * error, centre + z * error))
        return (low, high), error


# ---- arguments


def _differences(name: str, pairs: Sequence[tuple[float, float]]) -> list[float]:
    for i, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise checks.invalid_argument(f"{name}[{i}]", "a pair of numbers", pair)
    first, second = (finite_numbers(name, [pair[side] for pair in pairs]) for side in (0, 1))
    return [a - b for a, b in zip(first, second, strict=True)]
