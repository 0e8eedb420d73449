"""Two samples of the same rows: by how much B scores above A, how often it wins, whether a judge
grades as it did, and how many more rows would decide.

A difference is B - A, in the unit of the scores. Rows are paired: each has a score of A and one of
B.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean
from typing import Literal

from ...base import checks
from ...errors import ConfigError
from ...plans.quality.calibration import check_confidence
from ...usage import NO_USAGE, Usage
from .agreement import pearson
from .intervals import (
    Interval,
    ThreeWayVerdict,
    clip_interval,
    cluster_numbers,
    cluster_sums,
    clustered_mean,
    interval_verdict,
    with_two_rows,
)
from .samples import check_equal_lengths, finite_numbers, group_values, import_library

MAX_SLICES = 50


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """By how much B scores above A, in the unit of the scores.

    Attributes:
        value: The mean of B - A.
        interval: Its confidence interval; None if there is only one cluster.
        standard_error: Its standard error; None if there is only one cluster.
        rows: The number of paired rows.
        clusters: The number of clusters of rows.
        mean_a: The mean score of A.
        mean_b: The mean score of B.
        wins: Rows in which B scores higher.
        ties: Rows with equal scores.
        losses: Rows in which B scores lower.
        confidence: The confidence of the interval.
    """

    value: float
    interval: Interval | None
    standard_error: float | None
    rows: int
    clusters: int
    mean_a: float
    mean_b: float
    wins: int
    ties: int
    losses: int
    confidence: float = 0.95

    @property
    def verdict(self) -> ThreeWayVerdict:
        """Whether B is "better" or "worse", if the interval is wholly above or below 0, else
        "undecided".
        """
        return interval_verdict(self.interval)

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, or None."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> PairedDifference:
    """Return the mean of B - A over paired rows, with an interval that is robust to clusters.

    Args:
        a: The score of A in each row, in any unit.
        b: The score of B in the same rows.
        clusters: The cluster of each row. None: the rows are independent.
        confidence: The confidence of the interval, between 0 and 1.

    The standard error is that of a jackknife over clusters, and the interval has the t quantile
    with one degree of freedom less than there are clusters, or with fewer if their sizes differ. It
    also contains the interval with two more rows, one of each direction: for scores of 0 and 1 that
    is Bonett and Price's. They are as large as the rows that differ are on average, or as the
    largest one if fewer than six clusters are higher or fewer than six are lower, because then the
    variance is badly known.

    Sources: MacKinnon, Nielsen and Webb, "Cluster-robust inference" (2023), and Bell and McCaffrey
    (2002), for clusters; Bonett and Price, "Adjusted Wald confidence interval for a difference of
    binomial proportions based on paired data" (2012).

    Raises:
        ConfigError: The lengths differ, there is no row, or a score is missing or not finite.
    """
    check_confidence(confidence)
    first, second = finite_numbers("a", a), finite_numbers("b", b)
    check_equal_lengths(a=first, b=second, clusters=clusters)
    if not first:
        raise ConfigError("a: there is none")
    np = import_library("numpy")
    differences = np.array(second) - np.array(first)
    sizes, sums = cluster_sums(cluster_numbers(clusters, len(first)), differences)
    mean = clustered_mean(sizes, sums)
    interval = mean.interval(confidence)
    if interval:
        freedom = mean.degrees_of_freedom
        interval = with_two_rows(
            interval, differences, sums, sizes, sums, freedom=freedom, confidence=confidence
        )
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return PairedDifference(
        mean.value,
        interval,
        mean.standard_error,
        len(first),
        len(sums),
        fmean(first),
        fmean(second),
        wins,
        len(first) - wins - losses,
        losses,
        confidence,
    )


def slice_differences(
    a: Sequence[float],
    b: Sequence[float],
    slices: Sequence[str],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> dict[str, PairedDifference]:
    """Return the difference in each slice of the rows, with intervals that hold for all slices at
    once.

    Args:
        a: The score of A in each row.
        b: The score of B in the same rows.
        slices: The slice of each row, such as its topic; at most 50 different ones.
        clusters: The cluster of each row. None: the rows are independent.
        confidence: The probability that every interval contains its difference.

    With k slices, each interval has the confidence 1 - (1 - confidence) / k (Bonferroni), so that
    looking at many slices finds no difference by chance. The result is in the order of the slices'
    first rows. Raises ConfigError as `paired_difference` does.
    """
    check_confidence(confidence)
    check_equal_lengths(a=a, b=b, slices=slices, clusters=clusters)
    rows_of = group_values((name, n) for n, name in enumerate(slices))
    if len(rows_of) > MAX_SLICES:
        raise ConfigError(
            f"slices: there are {len(rows_of)} different ones, and at most {MAX_SLICES} are "
            "compared"
        )
    each = 1 - (1 - confidence) / max(1, len(rows_of))
    return {
        name: paired_difference(
            [a[n] for n in ns],
            [b[n] for n in ns],
            clusters=None if clusters is None else [clusters[n] for n in ns],
            confidence=each,
        )
        for name, ns in rows_of.items()
    }


@dataclass(frozen=True, slots=True)
class WinRate:
    """How often B wins against A in pairs that a judge saw in both orders.

    Attributes:
        value: The share of pairs that B wins, from 0 to 1; a tie, or two verdicts that contradict
            each other, count half.
        interval: Its confidence interval; None if there is only one cluster.
        pairs: The number of pairs.
        clusters: The number of clusters of pairs.
        position_bias: How much more often than half the answer that is shown first wins, from -0.5
            to 0.5.
        consistency: The share of pairs with the same verdict in both orders.
        confidence: The confidence of the interval.
    """

    value: float
    interval: Interval | None
    pairs: int
    clusters: int
    position_bias: float
    consistency: float
    confidence: float = 0.95

    @property
    def verdict(self) -> ThreeWayVerdict:
        """Whether B is "better" or "worse", if the interval is wholly above or below 0.5, else
        "undecided".
        """
        return interval_verdict(self.interval, 0.5)


def win_rate(
    b_wins_second: Sequence[float],
    b_wins_first: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> WinRate:
    """Return the win rate of B against A from verdicts in both orders, which cancel the judge's
    preference for a position.

    Args:
        b_wins_second: For each pair, shown as A then B: 1 if B wins, 0 if A wins, 0.5 for a tie; or
            the probability that B wins.
        b_wins_first: The same for the pair shown as B then A.
        clusters: The cluster of each pair, such as its task. None: the pairs are independent.
        confidence: The confidence of the interval, between 0 and 1.

    A preference that adds to the probability of a position cancels exactly. Raises ConfigError for
    numbers outside [0, 1], unequal lengths, or no pair.
    """
    second = finite_numbers("b_wins_second", b_wins_second, 0, 1)
    first = finite_numbers("b_wins_first", b_wins_first, 0, 1)
    check_equal_lengths(b_wins_second=second, b_wins_first=first)
    shares = [(x + y) / 2 for x, y in zip(second, first, strict=True)]
    middle = paired_difference(
        [0.5] * len(shares), shares, clusters=clusters, confidence=confidence
    )
    interval = middle.interval and (0.5 + middle.interval[0], 0.5 + middle.interval[1])
    return WinRate(
        fmean(shares),
        clip_interval(interval, 0.0, 1.0),
        len(shares),
        middle.clusters,
        (fmean(first) - fmean(second)) / 2,
        fmean(x == y for x, y in zip(second, first, strict=True)),
        confidence,
    )


def rows_to_decide(
    difference: PairedDifference, margin: float | None = None, *, max_rows: int = 10**7
) -> int | None:
    """Return how many rows in all would decide an undecided difference, if its mean and spread stay
    as they are.

    Without a margin it is decided whether B is better or worse than A; with one, whether B is
    worse, or not worse by more than the margin. None if more than `max_rows` are needed, or nothing
    is known of the spread. A decided difference needs its own rows.
    """
    half, target = difference.half_width, max(difference.value + (margin or 0.0), -difference.value)
    if half is None or target <= 0:
        return None
    # without any spread the interval shrinks with the number of rows, not its root
    power = 2 if difference.standard_error else 1
    needed = difference.rows * (half / target) ** power
    return None if needed > max_rows else max(difference.rows, ceil(needed))


@dataclass(frozen=True, slots=True)
class EffectiveVotes:
    """How many independent votes a jury is worth.

    Attributes:
        judges: The number of judges.
        value: The number of independent judges whose mean would be as accurate, from 1 to `judges`.
        correlation: The mean correlation of two judges' errors.
        rows: The number of labelled rows.
    """

    judges: int
    value: float
    correlation: float
    rows: int


def effective_votes(
    scores: Mapping[str, Sequence[float]], labels: Sequence[float]
) -> EffectiveVotes | None:
    """Return how many independent votes a jury is worth, from its judges' scores on labelled
    answers.

    Args:
        scores: Each judge's score of every answer.
        labels: People's label of the same answers, on the scale of the scores.

    With n judges whose errors (score - label) have the mean correlation r, it is n / (1 + (n - 1)
    r), with r at least 0. Two judges that never err together are two votes; judges that err alike
    are one. None for fewer than two judges, fewer than three rows, or if a judge's errors do not
    vary.

    Source: Kish's design effect; for juries of models Kohli, "Nine judges, two effective votes"
    (2026).

    Raises:
        ConfigError: A judge has not one finite score for each label.
    """
    truth = finite_numbers("labels", labels)
    columns = {f"scores[{name!r}]": column for name, column in scores.items()}
    check_equal_lengths(**columns, labels=truth)
    errors = [
        [x - y for x, y in zip(finite_numbers(name, column), truth, strict=True)]
        for name, column in columns.items()
    ]
    n = len(errors)
    pairs = [pearson(errors[i], errors[j]) for i in range(n) for j in range(i)]
    known = [r for r in pairs if r is not None]
    if n < 2 or len(known) < len(pairs):
        return None
    correlation = fmean(known)
    return EffectiveVotes(n, n / (1 + (n - 1) * max(0.0, correlation)), correlation, len(truth))


@dataclass(frozen=True, slots=True)
class JudgeDrift:
    """Whether a judge grades an anchor set as it did before.

    Attributes:
        shift: By how much its scores rose.
        error_change: By how much its absolute errors grew; None without labels.
        margin: The shift that does not matter.
        verdict: "drifted" if the scores rose or fell, and maybe by more than the margin; "stable"
            if the interval of the shift is within the margin; else "undecided".
        usage: What it took to grade the anchors; none where the scores were given.
    """

    shift: PairedDifference
    error_change: PairedDifference | None
    margin: float
    verdict: Literal["drifted", "stable", "undecided"]
    usage: Usage = NO_USAGE


def judge_drift(
    before: Sequence[float],
    after: Sequence[float],
    labels: Sequence[float] | None = None,
    *,
    margin: float = 0.02,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> JudgeDrift:
    """Return whether a judge has changed, from its scores of the same answers then and now.

    Args:
        before: Its first scores of the answers of an anchor set.
        after: Its scores of the same answers later, such as after an update of the model behind it.
        labels: People's labels of the answers, on the scale of the scores, to see whether it became
            less accurate.
        margin: The shift of the mean score that does not matter.
        clusters: The cluster of each answer. None: the answers are independent.
        confidence: The confidence of the intervals.

    Keep the answers of the anchor set as they are, and grade them without the cache: cached replies
    cannot change. Raises ConfigError as `paired_difference` does.
    """
    checks.number("margin", margin)
    shift = paired_difference(before, after, clusters=clusters, confidence=confidence)
    change = None
    if labels is not None:
        truth = finite_numbers("labels", labels)
        check_equal_lengths(labels=truth, before=before)
        errors = [
            [abs(x - y) for x, y in zip(side, truth, strict=True)] for side in (before, after)
        ]
        change = paired_difference(*errors, clusters=clusters, confidence=confidence)
    low, high = shift.interval or (-inf, inf)
    if -margin <= low and high <= margin:
        return JudgeDrift(shift, change, margin, "stable")
    return JudgeDrift(shift, change, margin, "drifted" if low > 0 or high < 0 else "undecided")
