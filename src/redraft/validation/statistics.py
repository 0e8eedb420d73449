"""Statistics of agreement: pure functions over plain sequences.

A result is None if it is undefined: for too few data, or for input without variation where the
measure divides by it. It is never NaN, and warnings of libraries are suppressed. This module does
not know cases, verdicts or graders.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from math import ceil, floor, hypot, isfinite, nan, sqrt
from numbers import Real
from statistics import NormalDist, fmean
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..base import checks
from ..base.checks import install_command, needs_extra
from ..errors import ConfigError

T = TypeVar("T")
OptionalNumber: TypeAlias = float | None
MAX_UNKNOWN_SHARE = 0.05  # share of bootstrap samples whose statistic may be None
LARGEST_NUMBER = 1e100  # size of a number; the squares of much larger ones overflow


class LabelScores(NamedTuple):
    """Precision, recall and F1 of one label, in [0, 1] or None, and how many rows truly have it."""

    precision: float | None
    recall: float | None
    f1: float | None
    n: int


def wilson_interval(successes: float, n: int, level: float = 0.95) -> tuple[float, float] | None:
    """Return the score interval of a proportion (Wilson 1927), in [0, 1]; None without rows.
    `successes` may count halves.
    """
    if not 0 <= successes <= n:
        raise ConfigError(f"successes must be from 0 to n={n}, got {successes!r}")
    z = NormalDist().inv_cdf(0.5 + _check_level(level) / 2)
    if n == 0:
        return None
    return score_interval(successes / n, n, z)


def score_interval(share: float, n: float, z: float) -> tuple[float, float]:
    """Return Wilson's interval of a share, in [0, 1], for a number of rows (any above 0) and a
    quantile.
    """
    spread = z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def precision_recall_f1(
    truth: Sequence[Hashable], predicted: Sequence[Hashable]
) -> dict[Hashable, LabelScores]:
    """Return the rates of each label in either sequence, and under "macro" their plain means (van
    Rijsbergen 1979).

    None in `predicted` is an unreadable verdict: it is wrong, and counts for recall but not for
    precision. Rows whose truth is None are left out. Precision is None for a label that is never
    predicted, recall for one that is never true, and so are their means.
    """
    rows = [(true, guess) for true, guess in _zip_columns(truth, predicted) if true is not None]
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
    if weights not in {None, "linear", "quadratic"}:
        raise ConfigError(f"weights must be None, 'linear' or 'quadratic', got {weights!r}")
    if missing not in {None, "category"} or (missing and weights):
        raise ConfigError(
            f"missing must be None, or 'category' where there are no weights, got {missing!r}"
        )
    pairs = [pair for pair in _zip_columns(a, b) if missing or None not in pair]
    categories = {label for pair in pairs for label in pair}
    if len(categories) < 2:
        return None
    position = {
        label: i for i, label in enumerate(_sorted_labels(categories) if weights else categories)
    }
    power = {"linear": 1, "quadratic": 2}.get(weights or "", 0)

    def disagreement(x: Hashable, y: Hashable) -> int:
        return abs(position[x] - position[y]) ** power if x != y else 0

    first, second = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    observed = sum(n * disagreement(x, y) for (x, y), n in Counter(pairs).items())
    expected = sum(
        n * k * disagreement(x, y) for x, n in first.items() for y, k in second.items()
    ) / len(pairs)
    return 1 - observed / expected


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
    rows = [[_check_finite(rating) for rating in row if rating is not None] for row in ratings]
    rows = [row for row in rows if len(row) > 1]
    counts = Counter(rating for row in rows for rating in row)
    if len(counts) < 2:
        return None
    positions = _positions(counts, level)
    rows = [[positions[rating] for rating in row] for row in rows]
    disagreement = _unlike_pairs if level == "nominal" else _squared_distances
    expected = disagreement([value for row in rows for value in row])
    return 1 - sum(map(disagreement, rows)) / expected if expected else None


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
    pairs = _complete_rows(x, y)
    return _pearson_r(*zip(*pairs, strict=True)) if len(pairs) > 2 and _all_vary(pairs) else None


def spearman(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Return Spearman's rho (1904): r of the ranks, where ties share their mean rank. None as for
    `pearson`.
    """
    pairs = _complete_rows(x, y)
    return (
        _pearson_r(*map(_mean_ranks, zip(*pairs, strict=True)))
        if len(pairs) > 2 and _all_vary(pairs)
        else None
    )


def kendall(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Return Kendall's tau-b (1945) of the pairs without None; None for fewer than two, or if one
    side does not vary.
    """
    pairs = _complete_rows(x, y)
    if len(pairs) < 2 or not _all_vary(pairs):
        return None
    return _finite_or_none(
        lambda: import_library("scipy.stats").kendalltau(*zip(*pairs, strict=True))[0]
    )


def _pearson_r(a: Any, b: Any) -> float:
    np: Any = import_library("numpy")
    r = np.corrcoef(a / np.abs(a).max(), b / np.abs(b).max())[0, 1]  # so that no square overflows
    return float(min(1.0, max(-1.0, r)))


def _mean_ranks(column: Any) -> Any:
    return import_library("scipy.stats").rankdata(column)


def partial_rank_correlation(
    x: Sequence[OptionalNumber], y: Sequence[OptionalNumber], control: Sequence[OptionalNumber]
) -> float | None:
    """Return Spearman's correlation of x and y with `control` held fixed, in [-1, 1] (Yule 1907, on
    ranks).

    Rows with None are left out. None for fewer than four rows, if a side does not vary, or if
    `control` determines one.
    """
    rows = _complete_rows(x, y, control)
    if len(rows) < 4 or not _all_vary(rows):
        return None
    a, b, c = zip(*rows, strict=True)
    a, b, c = map(_mean_ranks, (a, b, c))
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
    rows_by_bin: dict[int, list[tuple[float, ...]]] = {}
    for row in _forecast_rows(probabilities, outcomes):
        rows_by_bin.setdefault(max(0, ceil(row[0] * bins) - 1), []).append(row)
    ordered = [rows for _, rows in sorted(rows_by_bin.items())]
    return [
        (fmean(p for p, _ in rows), fmean(outcome for _, outcome in rows), len(rows))
        for rows in ordered
    ]


def bootstrap_interval(
    rows: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    *,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """Return the percentile interval of a statistic over resampled rows (Efron 1979). Equal seeds
    give equal intervals.

    None for fewer than two rows, or if the statistic is None for the rows or for more than 5 % of
    the samples.
    """
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples!r}")
    tail = (1 - _check_level(level)) / 2
    if len(rows) < 2 or statistic(rows) is None:
        return None
    draw = random.Random(seed).choices
    values = [
        value for _ in range(samples) if (value := statistic(draw(rows, k=len(rows)))) is not None
    ]
    if len(values) < (1 - MAX_UNKNOWN_SHARE) * samples:
        return None
    values.sort()
    return _quantile(values, tail), _quantile(values, 1 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


def noise_sigma(repeats: Sequence[Sequence[OptionalNumber]]) -> float | None:
    """Return the pooled standard deviation of repeated scores of the same case, in the unit of the
    scores.

    Sums of squares over degrees of freedom, both within cases (Fisher 1925). None if no case has
    two scores.
    """
    cases = [[_check_finite(score) for score in case if score is not None] for case in repeats]
    cases = [case for case in cases if len(case) > 1]
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
    by_x: defaultdict[float, list[float]] = defaultdict(list)
    for x, y in points:
        by_x[_check_finite(x)].append(_check_finite(y))
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


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t distribution."""
    return float(import_library("scipy.special").stdtrit(degrees_of_freedom, probability))


# ---- shared


def check_dependencies() -> None:
    """Raise ConfigError if a library that the statistics need is not installed. Called before the
    first model call.
    """
    for name in ("numpy", "scipy.stats"):
        import_library(name)
    if not hasattr(import_library("scipy.optimize"), "isotonic_regression"):
        raise ConfigError(f"calibration needs scipy 1.12 or later: {install_command('validate')}")


def import_library(name: str) -> Any:
    """Return a library of the extra `validate`. Raises ConfigError if it is not installed."""
    with needs_extra("validate", f"this measure needs {name.partition('.')[0]}"):
        return import_module(name)


def _finite_or_none(measure: Callable[..., Any], *args: Any, **kwargs: Any) -> float | None:
    """Return the result of a library function, None for NaN. Its warnings are suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(measure(*args, **kwargs))
    return value if isfinite(value) else None


def finite_numbers(
    name: str, values: Iterable[Any], low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER
) -> list[float]:
    """Return numbers as floats. Raises ConfigError that names the first one that is missing, not
    finite or out of range.
    """
    values = list(values)
    numbers = [
        value if type(value) is float else float(value) if isinstance(value, Real) else nan
        for value in values
    ]
    if (
        all(map(isfinite, numbers))
        and low <= min(numbers, default=low)
        and max(numbers, default=high) <= high
    ):
        return numbers
    for i, number in enumerate(numbers):
        if not isfinite(number) or not low <= number <= high:
            unlimited = low == -LARGEST_NUMBER and not isfinite(number)
            expected = "a finite number" if unlimited else f"a number in [{low:g}, {high:g}]"
            raise checks.invalid_argument(f"{name}[{i}]", expected, values[i])
    return numbers


def _zip_columns(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    if len({len(column) for column in columns}) > 1:
        raise ConfigError(
            f"the sequences must be equally long, got {' and '.join(str(len(c)) for c in columns)}"
        )
    return list(zip(*columns, strict=True))


def _complete_rows(*columns: Sequence[OptionalNumber]) -> list[tuple[float, ...]]:
    return [tuple(map(_check_finite, row)) for row in _zip_columns(*columns) if None not in row]


def _check_finite(value: float) -> float:
    if not isfinite(value):
        raise ConfigError(f"a measure takes finite numbers, got {value!r}")
    return float(value)


def _forecast_rows(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber]
) -> list[tuple[float, ...]]:
    rows = _complete_rows(probabilities, outcomes)
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


def _check_level(level: float) -> float:
    if not 0 < level < 1:
        raise ConfigError(f"level must be between 0 and 1, got {level!r}")
    return level
