"""What people would say of all answers, from few labels and the verdicts of a judge on many
answers.

The labelled answers must be a random sample of all answers, and labels that were used to choose or
to tune the judge do not count. The judge may be wrong in any way: a bad judge widens the interval,
and does not shift the estimate. Numbers are plain sequences; a cluster is what several answers have
in common, such as a task or a document. Needs `redraft[validate]`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from ..base import checks
from ..errors import ConfigError
from ..plans.quality.calibration import check_confidence
from . import statistics as m
from .clusters import (
    cluster_numbers,
    cluster_sums,
    degrees_of_freedom,
    jackknife_variance,
    t_half_width,
    with_two_rows,
)
from .differences import paired_difference

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
    degree of freedom. It is 0 if the interval would be more than 1 % wider than that of the labels
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
    _same_length({"labels": labels, "verdicts": verdicts})
    truth, passed, others = (
        _binary_numbers(name, column)
        for name, column in (
            ("labels", labels),
            ("verdicts", verdicts),
            ("unlabelled_verdicts", unlabelled_verdicts),
        )
    )
    on_good = [verdict for label, verdict in zip(truth, passed, strict=True) if label]
    on_bad = [1 - verdict for label, verdict in zip(truth, passed, strict=True) if not label]
    for name, column in (
        ("labels of good answers", on_good),
        ("labels of bad answers", on_bad),
        ("unlabelled_verdicts", others),
    ):
        if not column:
            raise ConfigError(f"{name}: there is none")
    rates = _ErrorRates(
        fmean(on_good), len(on_good), fmean(on_bad), len(on_bad), fmean(others), len(others)
    )
    if rates.informedness <= 0:
        raise ConfigError(
            "the judge is no better than chance on the labelled answers: it passes "
            f"{rates.sensitivity:.2f} of the good and {1 - rates.specificity:.2f} of the bad ones"
        )
    value = min(1.0, max(0.0, rates.prevalence))
    interval, error = rates.interval(confidence)
    return LabelEstimate(value, interval, error, len(truth), len(others), len(truth))


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
    # checks the labels, the verdicts and the judge
    rogan_gladen(labels, verdicts, verdicts_a, confidence=confidence)
    a, b = _binary_numbers("verdicts_a", verdicts_a), _binary_numbers("verdicts_b", verdicts_b)
    if len(a) != len(b):
        raise ConfigError(
            f"verdicts_a and verdicts_b must be equally long, got {len(a)} and {len(b)}"
        )
    raw = paired_difference(a, b, confidence=confidence)
    passed = [verdict for label, verdict in zip(labels, verdicts, strict=True) if label]
    failed = [1 - verdict for label, verdict in zip(labels, verdicts, strict=True) if not label]
    shrunk = [(sum(side) + 1) / (len(side) + 2) for side in (passed, failed)]
    informedness = sum(shrunk) - 1
    value = min(1.0, max(-1.0, raw.value / (fmean(passed) + fmean(failed) - 1)))
    if informedness <= 0 or raw.interval is None:
        return LabelEstimate(value, (-1.0, 1.0), None, len(labels), len(a), len(labels))
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    of_rates = sum(
        rate * (1 - rate) / (len(side) + 2)
        for rate, side in zip(shrunk, (passed, failed), strict=True)
    )
    of_difference = ((raw.interval[1] - raw.interval[0]) / 2 / z) ** 2
    error = sqrt(of_difference + (raw.value / informedness) ** 2 * of_rates) / informedness
    interval = max(-1.0, value - z * error), min(1.0, value + z * error)
    return LabelEstimate(value, interval, error, len(labels), len(a), len(labels))


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


class _Sums(NamedTuple):
    """Sums over rows: of 1, the label, the score, their product, and the squared score; then the
    number of clusters.

    They are numbers, or arrays with an element for each cluster.
    """

    rows: Any = 0.0
    label: Any = 0.0
    score: Any = 0.0
    product: Any = 0.0
    square: Any = 0.0
    clusters: Any = 0.0

    @classmethod
    def by_cluster(cls, numbers: Any, labels: Any, scores: Any) -> _Sums:
        found = cls(*cluster_sums(numbers, labels, scores, labels * scores, scores * scores))
        return found._replace(clusters=found.rows**0)

    @property
    def total(self) -> _Sums:
        return _Sums(*(column.sum() for column in self))

    @property
    def without_each(self) -> _Sums:
        """The sums over all clusters but one, for each."""
        return _Sums(*(column.sum() - column for column in self))


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
        np: Any = m.import_library("numpy")
        _same_length({"labels": labels, "scores": scores})
        columns = {"labels": labels, "scores": scores, "unlabelled_scores": others}
        numbers = [
            np.array(m.finite_numbers(name, column), float) for name, column in columns.items()
        ]
        if not len(labels):
            raise ConfigError("labels: there is none")
        for name, column, groups in (
            ("labels", labels, clusters),
            ("unlabelled_scores", others, other_clusters),
        ):
            if groups is not None and len(groups) != len(column):
                raise ConfigError(f"{name}: there are {len(column)}, and {len(groups)} clusters")
        both = (
            set()
            if clusters is None or other_clusters is None
            else set(clusters) & set(other_clusters)
        )
        if both:
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
        labelled = _Sums.by_cluster(self.clusters, self.labels - middle, self.scores - shift)
        others = None
        if not equal and len(self.others) and self.other_clusters.max() > 0:
            others = _Sums.by_cluster(self.other_clusters, 0 * self.others, self.others - shift)
        point, alone = _jackknife(labelled, others), _jackknife(labelled, None)
        if point.half_width(confidence) > MAX_WIDTH * alone.half_width(confidence):
            point = alone
        value, variance = float(middle + point.value), point.total_variance
        half = point.half_width(confidence)
        interval = (value - half, value + half) if variance else None
        if of_differences and point.variance is not None:
            sums = labelled.label + labelled.rows * middle
            residuals = sums - point.weight * labelled.score + labelled.rows * point.from_others
            rows = self.labels, sums, labelled.rows, residuals
            interval = with_two_rows(
                (value - half, value + half),
                *rows,
                freedom=point.degrees_of_freedom,
                confidence=confidence,
                other_variance=point.others_variance,
            )
        counts = len(self.labels), len(self.others), len(labelled.rows)
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


def _jackknife(labelled: _Sums, others: _Sums | None) -> _Point:
    """Return the estimate with its variance, from the estimates without one cluster each."""
    all_labelled, all_others = labelled.total, others.total if others else _Sums()
    value, weight = (float(each) for each in _ppi_point(all_labelled, all_others))
    point = _Point(
        value, weight, weight * float(all_others.score / all_others.rows) if others else 0.0
    )
    if len(labelled.rows) < 2:
        return point
    variance = jackknife_variance(_ppi_point(labelled.without_each, all_others)[0] - value)
    freedom = degrees_of_freedom(labelled.rows)
    if not others or not weight:
        return point._replace(variance=variance, degrees_of_freedom=freedom)
    of_others = jackknife_variance(_ppi_point(all_labelled, others.without_each)[0] - value)
    if total := variance + of_others:
        freedom = 1 / (
            (variance / total) ** 2 / freedom
            + (of_others / total) ** 2 / degrees_of_freedom(others.rows)
        )
    return point._replace(variance=variance, others_variance=of_others, degrees_of_freedom=freedom)


def _ppi_point(labelled: _Sums, others: _Sums) -> tuple[Any, Any]:
    """Return the estimate and the judge's weight: cov(label, score) / (var(score, all rows) (1 + n
    / N)), limited to [-1, 1].

    A cluster is one degree of freedom of these, so that rows which are repeated in their cluster
    change nothing.
    """
    np: Any = m.import_library("numpy")
    n, n_others = labelled.rows, others.rows
    if not np.any(n_others):
        return labelled.label / n, 0.0 * n
    every, clusters = n + n_others, labelled.clusters + others.clusters
    variance = (labelled.square + others.square - (labelled.score + others.score) ** 2 / every) / (
        every * (clusters - 1) / clusters
    )
    freedom = n * np.maximum(labelled.clusters - 1, 1) / labelled.clusters
    covariance = (labelled.product - labelled.label * labelled.score / n) / freedom
    known = variance > 0
    weight = np.where(
        known, np.clip(covariance / np.where(known, variance, 1.0) / (1 + n / n_others), -1, 1), 0.0
    )
    return weight * others.score / n_others + (labelled.label - weight * labelled.score) / n, weight


def _as_share(found: LabelEstimate, rows: _LabelledRows, confidence: float) -> LabelEstimate:
    """Return the estimate of a share, from 0 to 1: with Wilson's interval for as many rows as would
    be as precise.

    If one kind of label is rare, or the estimate is 0 or 1, it contains that of the labels alone,
    with clusters as rows.
    """
    share, intervals = min(1.0, max(0.0, found.value)), []
    if found.interval and found.standard_error and 0 < share < 1:
        quantile = (found.interval[1] - found.interval[0]) / 2 / found.standard_error
        intervals = [
            m.score_interval(share, share * (1 - share) / found.standard_error**2, quantile)
        ]
    n = int(rows.clusters.max()) + 1
    rare = min(rows.labels.sum(), (1 - rows.labels).sum()) * n / len(rows.labels) < RARE_LABELS
    if rare or not intervals:
        intervals += [m.wilson_interval(float(rows.labels.mean()) * n, n, confidence) or (0.0, 1.0)]
    low, high = min(low for low, _ in intervals), max(high for _, high in intervals)
    return replace(found, value=share, interval=(min(low, share), max(high, share)))


# ---- error rates


@dataclass(frozen=True, slots=True)
class _ErrorRates:
    """A judge's rates on good and on bad labelled answers and on others, each with the number of
    answers.
    """

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
        """Return the interval of the prevalence and its standard error (or None), from rates that
        are shrunk towards one half.
        """
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
        return (
            min(1.0, max(0.0, centre - z * error)),
            min(1.0, max(0.0, centre + z * error)),
        ), error


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
        raise ConfigError(
            f"{', '.join(columns)} must be equally long, got "
            f"{', '.join(str(len(c)) for c in columns.values())}"
        )
