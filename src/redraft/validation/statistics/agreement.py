"""How far two sides agree that judge the same rows, such as a grader and people, several raters, or
one grader asked again.

A result is None if it is undefined: for too few rows, or for input without variation where the
measure divides by it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise, product, starmap
from math import ceil, hypot, isfinite, sqrt
from statistics import fmean
from typing import Any, NamedTuple

from ...errors import ConfigError
from .samples import (
    OptionalNumber,
    check_equal_lengths,
    check_finite,
    complete_rows,
    group_values,
    import_library,
)


class LabelScores(NamedTuple):
    """Precision, recall and F1 of one label, in [0, 1] or None, and how many rows truly have it."""

    precision: float | None
    recall: float | None
    f1: float | None
    n: int


def precision_recall_f1(
    truth: Sequence[Hashable], predicted: Sequence[Hashable]
) -> dict[Hashable, LabelScores]:
    """Return the rates of each label in either sequence, and under "macro" their plain means (van
    Rijsbergen 1979).

    None in `predicted` is an unreadable verdict: it is wrong, and counts for recall but not for
    precision. Rows whose truth is None are left out. Precision is None for a label that is never
    predicted, recall for one that is never true, and so are their means.
    """
    check_equal_lengths(truth=truth, predicted=predicted)
    rows = [row for row in zip(truth, predicted, strict=True) if row[0] is not None]
    labels = dict.fromkeys(label for row in rows for label in row if label is not None)
    if "macro" in labels:
        raise ConfigError("a label cannot be called 'macro': that is the key of the means")
    rates: dict[Hashable, LabelScores] = {label: _label_scores(rows, label) for label in labels}
    precision, recall, f1 = (
        _mean_if_complete([each[part] for each in rates.values()]) for part in range(3)
    )
    return {**rates, "macro": LabelScores(precision, recall, f1, len(rows))}


def _label_scores(rows: Sequence[tuple[Hashable, Hashable]], label: Hashable) -> LabelScores:
    right = sum(true == guess == label for true, guess in rows)
    true, guessed = sum(row[0] == label for row in rows), sum(row[1] == label for row in rows)
    return LabelScores(
        _ratio_or_none(right, guessed),
        _ratio_or_none(right, true),
        _ratio_or_none(2 * right, true + guessed),
        true,
    )


def cohen_kappa(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    weights: str | None = None,
    *,
    missing: str | None = None,
) -> float | None:
    """Return the chance-corrected agreement of two raters, at most 1 (Cohen 1960), optionally
    weighted (Cohen 1968).

    kappa = 1 - (sum of w_ij o_ij) / (sum of w_ij e_ij), where o_ij counts the rows rated i by `a`
    and j by `b`, and e_ij is the count expected if the two were independent. w_ij is 1 for i != j;
    with `weights` "linear" or "quadratic" it is
    |i - j| or (i - j)**2 for the positions of the two categories in sorted order.

    Pairs with None on either side are left out; with `missing="category"` None is a category of its
    own. The result is None if both raters use one and the same category throughout, and 0 if only
    one of them uses a single category.
    """
    if weights not in POWERS:
        raise ConfigError(f"weights must be None, 'linear' or 'quadratic', got {weights!r}")
    if missing not in {None, "category"} or (missing and weights):
        raise ConfigError(
            f"missing must be None, or 'category' where there are no weights, got {missing!r}"
        )
    check_equal_lengths(a=a, b=b)
    pairs = [pair for pair in zip(a, b, strict=True) if missing or None not in pair]
    categories = {label for pair in pairs for label in pair}
    if len(categories) < 2:
        return None
    ordered = _sorted_labels(categories) if weights else list(categories)
    position, power = {label: i for i, label in enumerate(ordered)}, POWERS[weights]

    def disagreement(x: Hashable, y: Hashable) -> int:
        return abs(position[x] - position[y]) ** power if x != y else 0

    observed = sum(starmap(disagreement, pairs))
    first, second = map(Counter, zip(*pairs, strict=True))
    expected = sum(first[x] * second[y] * disagreement(x, y) for x, y in product(first, second))
    return 1 - observed / (expected / len(pairs))


POWERS: Mapping[str | None, int] = {None: 0, "linear": 1, "quadratic": 2}
"""The power of the distance of two categories, by the name of the weights."""


def _sorted_labels(labels: Iterable[Any]) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError as error:
        raise ConfigError(f"weights need labels that can be sorted: {error}") from error


def fleiss_kappa(ratings: Sequence[Sequence[Hashable]]) -> float | None:
    """Return the chance-corrected agreement of several raters (Fleiss 1971). A row holds the labels
    of one item.

    None unless all rows hold the same number of labels, at least two, and if there is only one
    label throughout.
    """
    sizes = {len(row) for row in ratings}
    if len(sizes) != 1 or max(sizes) < 2 or any(label is None for row in ratings for label in row):
        return None
    raters = max(sizes)
    counts = [Counter(row) for row in ratings]
    agreed = fmean(
        sum(k * (k - 1) for k in count.values()) / (raters * (raters - 1)) for count in counts
    )
    total = sum(counts, Counter[Hashable]())
    if len(total) < 2:
        return None
    chance = sum((k / (raters * len(counts))) ** 2 for k in total.values())
    return (agreed - chance) / (1 - chance)


def krippendorff_alpha(
    ratings: Sequence[Sequence[OptionalNumber]], level: str = "nominal"
) -> float | None:
    """Return Krippendorff's alpha, at most 1; `level` is "nominal", "ordinal" or "interval".

    K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011): one minus the disagreement
    within items divided by that of all ratings. A row holds the ratings of one item; the raters and
    their number may differ from item to item.

    None in a row is a missing rating; items with fewer than two ratings are left out. The result is
    None if no item is left, or all ratings are equal.
    """
    if level not in {"nominal", "ordinal", "interval"}:
        raise ConfigError(f"level must be 'nominal', 'ordinal' or 'interval', got {level!r}")
    rows = _comparable_ratings(ratings)
    counts = Counter(rating for row in rows for rating in row)
    if len(counts) < 2:
        return None
    positions = _positions(counts, level)
    rows = [[positions[rating] for rating in row] for row in rows]
    disagreement = _unlike_pairs if level == "nominal" else _squared_distances
    expected = disagreement([value for row in rows for value in row])
    return 1 - sum(map(disagreement, rows)) / expected if expected else None


def _comparable_ratings(ratings: Sequence[Sequence[OptionalNumber]]) -> list[list[float]]:
    """Return the ratings without those that are missing, of items with at least two."""
    rows = [[check_finite(rating) for rating in row if rating is not None] for row in ratings]
    return [row for row in rows if len(row) > 1]


def _positions(counts: Counter[float], level: str) -> dict[float, float]:
    """Return the position of each rating on its scale.

    The squared distance of two ordinal values, (n_c / 2 + ... + n_k / 2)**2 with the ratings
    counted between them, is that of their mean ranks. An interval scale is divided by its largest
    value, so that no square overflows.
    """
    if level == "ordinal":
        ranks, below = {}, 0
        for value, count in sorted(counts.items()):
            ranks[value] = below + count / 2
            below += count
        return ranks
    unit = max(map(abs, counts)) if level == "interval" else 1.0
    return {value: value / unit for value in counts}


def _unlike_pairs(values: Sequence[float]) -> float:
    """Return the number of ordered pairs of different values, divided by n - 1."""
    n = len(values)
    return (n * n - sum(count * count for count in Counter(values).values())) / (n - 1)


def _squared_distances(values: Sequence[float]) -> float:
    """Return the sum of squared distances of all ordered pairs, divided by n - 1."""
    n, middle = len(values), sum(values) / len(values)
    return 2 * n * sum((value - middle) * (value - middle) for value in values) / (n - 1)


def pearson(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Return Pearson's r (1895) of the pairs without None; None for fewer than three, or if one
    side does not vary.
    """
    return _correlation(_pearson_r, x, y)


def spearman(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Return Spearman's rho (1904): r of the ranks, where ties share their mean rank. None as for
    `pearson`.
    """
    return _correlation(lambda a, b: _pearson_r(mean_ranks(a), mean_ranks(b)), x, y)


def kendall(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Return Kendall's tau-b (1945) of the pairs without None; None for fewer than two, or if one
    side does not vary.
    """
    return _correlation(_tau_b, x, y, least=2)


def _correlation(
    measure: Callable[[Any, Any], float | None],
    x: Sequence[OptionalNumber],
    y: Sequence[OptionalNumber],
    least: int = 3,
) -> float | None:
    """Return a measure of the complete pairs; None for fewer than `least`, or if one side does not
    vary.
    """
    pairs = complete_rows(x=x, y=y)
    if len(pairs) < least or not _all_vary(pairs):
        return None
    return measure(*zip(*pairs, strict=True))


def _pearson_r(a: Any, b: Any) -> float:
    np = import_library("numpy")
    r = np.corrcoef(a / np.abs(a).max(), b / np.abs(b).max())[0, 1]  # so that no square overflows
    return float(min(1.0, max(-1.0, r)))


def _tau_b(a: Any, b: Any) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tau = float(import_library("scipy.stats").kendalltau(a, b)[0])
    return tau if isfinite(tau) else None


def mean_ranks(column: Sequence[float]) -> Any:
    """Return the rank of each number, from 1, as an array; equal numbers share their mean rank."""
    return import_library("scipy.stats").rankdata(column)


def concordance_values(
    labels: Sequence[float], scores: Sequence[OptionalNumber]
) -> list[float | None]:
    """Return a jackknife value of each row, so that their mean is the concordance of scores and
    labels, and their spread its error; all are None if the labels are equal.

    The concordance C is the probability that the scores order two rows as their labels do (Harrell
    1982): ties of the scores count half, rows with equal labels are no pair, and a missing score
    orders nothing. It is a mean over pairs, so that each row counts in two means: with the row's
    own mean c, its value is 2 c - C.
    """
    np = import_library("numpy")
    people = np.array(labels)
    known = np.array([np.nan if score is None else score for score in scores])
    totals, counts = np.zeros(len(people)), np.zeros(len(people))
    for n in range(len(people)):
        by_people = np.sign(people - people[n])
        by_scores = np.nan_to_num(np.sign(known - known[n]))
        decided = by_people != 0
        counts[n] = decided.sum()
        totals[n] = ((1 + by_people * by_scores) / 2)[decided].sum()
    if not counts.sum():
        return [None] * len(people)
    overall = totals.sum() / counts.sum()
    mean_count = counts.mean()
    return [
        float(overall + 2 * (total - overall * count) / mean_count)
        for total, count in zip(totals, counts, strict=True)
    ]


def partial_rank_correlation(
    x: Sequence[OptionalNumber], y: Sequence[OptionalNumber], control: Sequence[OptionalNumber]
) -> float | None:
    """Return Spearman's correlation of x and y with `control` held fixed, in [-1, 1] (Yule 1907, on
    ranks).

    Rows with None are left out. None for fewer than four rows, if a side does not vary, or if
    `control` determines one.
    """
    rows = complete_rows(x=x, y=y, control=control)
    if len(rows) < 4 or not _all_vary(rows):
        return None
    a, b, c = zip(*rows, strict=True)
    a, b, c = map(mean_ranks, (a, b, c))
    ab, ac, bc = _pearson_r(a, b), _pearson_r(a, c), _pearson_r(b, c)
    if (remaining := (1 - ac * ac) * (1 - bc * bc)) < 1e-12:
        return None
    return max(-1.0, min(1.0, (ab - ac * bc) / sqrt(remaining)))


def brier_score(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber]
) -> float | None:
    """Return the mean squared distance of a probability from the outcome, 0 (best) to 1 (Brier
    1950, for two outcomes).
    """
    rows = _forecast_rows(probabilities, outcomes)
    return fmean((p - outcome) ** 2 for p, outcome in rows) if rows else None


def expected_calibration_error(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber], bins: int = 10
) -> float | None:
    """Return the expected calibration error, 0 (best) to 1: the mean gap of `reliability_bins`, by
    rows (Guo et al. 2017).
    """
    table = reliability_bins(probabilities, outcomes, bins)
    return (
        sum(n * abs(mean - share) for mean, share, n in table) / sum(n for *_, n in table)
        if table
        else None
    )


def reliability_bins(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber], bins: int = 10
) -> list[tuple[float, float, int]]:
    """Return (mean probability, share of positive outcomes, n) of each bin that is not empty,
    lowest first.

    The bins are equally wide and include their upper end (Guo et al. 2017). Rows with None are left
    out.
    """
    if bins < 1:
        raise ConfigError(f"bins must be at least 1, got {bins!r}")
    rows_by_bin = group_values(
        (max(0, ceil(row[0] * bins) - 1), row) for row in _forecast_rows(probabilities, outcomes)
    )
    ordered = [rows for _, rows in sorted(rows_by_bin.items())]
    return [
        (fmean(p for p, _ in rows), fmean(outcome for _, outcome in rows), len(rows))
        for rows in ordered
    ]


def noise_sigma(repeats: Sequence[Sequence[OptionalNumber]]) -> float | None:
    """Return the pooled standard deviation of repeated scores of the same case, in the unit of the
    scores.

    Sums of squares over degrees of freedom, both within cases (Fisher 1925). None if no case has
    two scores.
    """
    cases = _comparable_ratings(repeats)
    deviations = (score - fmean(case) for case in cases for score in case)
    return hypot(*deviations) / sqrt(sum(len(case) - 1 for case in cases)) if cases else None


class IsotonicBlock(NamedTuple):
    """A range of x to which an isotonic regression gives one value: its ends, the mean of its
    points, and the value.
    """

    first: float
    last: float
    centre: float
    value: float


def isotonic_blocks(points: Sequence[tuple[float, float]]) -> list[IsotonicBlock]:
    """Return the blocks of the isotonic regression of y on x (Barlow et al. 1972), in the order of
    x; their values rise.

    `points` are pairs (x, y); those with one x count as one, with their mean y.
    """
    by_x = group_values((check_finite(x), check_finite(y)) for x, y in points)
    xs = sorted(by_x)
    library = import_library("scipy.optimize")
    ends = library.isotonic_regression(
        [fmean(by_x[x]) for x in xs], weights=[len(by_x[x]) for x in xs]
    ).blocks
    blocks = [xs[int(start) : int(end)] for start, end in pairwise(ends)]
    return [_isotonic_block({x: by_x[x] for x in block}) for block in blocks]


def _isotonic_block(by_x: Mapping[float, Sequence[float]]) -> IsotonicBlock:
    xs = [x for x, ys in by_x.items() for _ in ys]
    return IsotonicBlock(xs[0], xs[-1], fmean(xs), fmean(y for ys in by_x.values() for y in ys))


# ---- rows


def _forecast_rows(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber]
) -> list[tuple[float, ...]]:
    rows = complete_rows(probabilities=probabilities, outcomes=outcomes)
    for p, outcome in rows:
        if not 0 <= p <= 1 or outcome not in {0, 1}:
            raise ConfigError(
                f"a probability is in [0, 1] and an outcome 0 or 1, got {p!r} and {outcome!r}"
            )
    return rows


def _all_vary(rows: Sequence[tuple[float, ...]]) -> bool:
    return all(len(set(column)) > 1 for column in zip(*rows, strict=True))


def _ratio_or_none(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean_if_complete(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
