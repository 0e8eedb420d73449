"""The measures of agreement: pure functions over plain sequences.

What cannot be known is None: no data, too little of it, or input that does not vary where the measure divides by its
variation. Never 0, never NaN, and no warning of a library gets out. Nothing here knows of cases, verdicts or graders.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import ceil, floor, isfinite, sqrt
from statistics import NormalDist, fmean
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..errors import ConfigError

T = TypeVar("T")
OptionalNumber: TypeAlias = float | None
MAX_UNKNOWN_SHARE = 0.05  # of the resamples of a bootstrap


class MeasuredValue(NamedTuple):
    """A measured value, None if it cannot be known, and how many rows it was measured on."""

    value: float | None
    n: int


class LabelScores(NamedTuple):
    """How well one label was told: shares in [0, 1] or None, and how many rows truly have it."""

    precision: float | None
    recall: float | None
    f1: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Correlations:
    """Each in [-1, 1] or None, over `n` pairs."""

    pearson: float | None
    spearman: float | None
    kendall: float | None
    n: int


def wilson_interval(successes: float, n: int, level: float = 0.95) -> tuple[float, float] | None:
    """The score interval of a share (Wilson 1927), in [0, 1]; None without rows. `right` may count halves."""
    if not 0 <= successes <= n:
        raise ConfigError(f"right must be from 0 to n={n}, got {successes!r}")
    z = NormalDist().inv_cdf(0.5 + _check_level(level) / 2)
    if n == 0:
        return None
    share, spread = successes / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def precision_recall_f1(truth: Sequence[Hashable], predicted: Sequence[Hashable]) -> dict[Hashable, LabelScores]:
    """The rates of each label in either sequence, and under "macro" their plain means (van Rijsbergen 1979).

    None in `said` is unreadable: never right, counted in recall, in no precision. Rows without a truth are left out. A
    label that was never said has no precision, one that is never true no recall; a mean with such a part is None.
    """
    rows = [(true, told) for true, told in _zip_columns(truth, predicted) if true is not None]
    labels = dict.fromkeys(label for row in rows for label in row if label is not None)
    if "macro" in labels:
        raise ConfigError("a label cannot be called 'macro': that is what the means are called")
    rates: dict[Hashable, LabelScores] = {label: _label_scores(rows, label) for label in labels}
    precision, recall, f1 = (_mean_if_complete([each[part] for each in rates.values()]) for part in range(3))
    return {**rates, "macro": LabelScores(precision, recall, f1, len(rows))}


def _label_scores(rows: Sequence[tuple[Hashable, Hashable]], label: Hashable) -> LabelScores:
    right = sum(true == told == label for true, told in rows)
    true, told = sum(row[0] == label for row in rows), sum(row[1] == label for row in rows)
    return LabelScores(_ratio_or_none(right, told), _ratio_or_none(right, true), _ratio_or_none(2 * right, true + told), true)


def cohen_kappa(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    weights: str | None = None,
    *,
    missing: str | None = None,
) -> float | None:
    """Chance-corrected agreement of two raters, at most 1 (Cohen 1960; `weights` "linear" or "quadratic": Cohen 1968).

    Pairs with None on either side are left out (`known` counts the others), or with `missing="category"` None is a
    category of its own. None when both say one and the same thing throughout; 0 where only one of them does: that is
    what chance gives. With weights the categories stand in their sorted order.
    """
    if weights not in {None, "linear", "quadratic"}:
        raise ConfigError(f"weights must be None, 'linear' or 'quadratic', got {weights!r}")
    if missing not in {None, "category"} or (missing and weights):
        raise ConfigError(f"missing must be None, or 'category' where there are no weights, got {missing!r}")
    pairs = [pair for pair in _zip_columns(a, b) if missing or None not in pair]
    categories = {label for pair in pairs for label in pair}
    if len(categories) < 2:
        return None
    code = {label: i for i, label in enumerate(_order_labels(categories, strict=weights is not None))}
    coded = [[code[pair[side]] for pair in pairs] for side in (0, 1)]
    with _import_library("sklearn").config_context(skip_parameter_validation=True, assume_finite=True):  # both are ours
        return _finite_or_none(_import_library("sklearn.metrics").cohen_kappa_score, *coded, weights=weights)


def count_known(*columns: Sequence[Any]) -> int:
    """How many rows of equally long sequences hold no None: what the measures that leave such rows out are made of."""
    return sum(None not in row for row in _zip_columns(*columns))


def _order_labels(labels: Iterable[Any], *, strict: bool) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError as error:
        if strict:
            raise ConfigError(f"weights need labels that can be put in order: {error}") from error
        return list(labels)


def fleiss_kappa(ratings: Sequence[Sequence[Hashable]]) -> float | None:
    """Chance-corrected agreement of several raters (Fleiss 1971). A row holds the labels that one item got.

    None unless all rows hold the same number of labels, two at least; and when there is but one label throughout.
    """
    sizes = {len(row) for row in ratings}
    if len(sizes) != 1 or max(sizes) < 2 or any(label is None for row in ratings for label in row):
        return None
    raters = max(sizes)
    counts = [Counter(row) for row in ratings]
    agreed = fmean(sum(k * (k - 1) for k in count.values()) / (raters * (raters - 1)) for count in counts)
    total = sum(counts, Counter[Hashable]())
    if len(total) < 2:
        return None
    chance = sum((k / (raters * len(counts))) ** 2 for k in total.values())
    return (agreed - chance) / (1 - chance)


def krippendorff_alpha(ratings: Sequence[Sequence[OptionalNumber]], level: str = "nominal") -> float | None:
    """Krippendorff's alpha, at most 1, `level` "nominal", "ordinal" or "interval".

    K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011): one minus the disagreement within items over that
    of all ratings with each other. A row holds the ratings of one item: raters need not be the same from item to item, nor
    as many.

    None is no rating; items with fewer than two ratings say nothing. None when no item is left, or all ratings are equal.
    """
    if level not in {"nominal", "ordinal", "interval"}:
        raise ConfigError(f"level must be 'nominal', 'ordinal' or 'interval', got {level!r}")
    rows = [[_check_finite(rating) for rating in row if rating is not None] for row in ratings]
    rows = [row for row in rows if len(row) > 1]
    held = Counter(rating for row in rows for rating in row)
    if len(held) < 2:
        return None
    place = _positions(held, level)
    rows = [[place[rating] for rating in row] for row in rows]
    disagreement = _unlike_pairs if level == "nominal" else _squared_distances
    expected = disagreement([value for row in rows for value in row])
    return 1 - sum(map(disagreement, rows)) / expected if expected else None


def _positions(counts: Counter[float], level: str) -> dict[float, float]:
    """Where each rating stands on its scale.

    The squared distance of two ordinal values, (n_c / 2 + ... + n_k / 2)**2 in the ratings counted between them, is that of
    their mean ranks. An interval scale is brought to at most 1, so that no square overflows.
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
    """The ordered pairs of unlike values, for each value beside another."""
    n = len(values)
    return (n * n - sum(count * count for count in Counter(values).values())) / (n - 1)


def _squared_distances(values: Sequence[float]) -> float:
    """The squared distances of all ordered pairs, for each value beside another."""
    n, middle = len(values), sum(values) / len(values)
    return 2 * n * sum((value - middle) * (value - middle) for value in values) / (n - 1)


def correlations(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> Correlations:
    """Pearson's r (1895), Spearman's rho (1904) and Kendall's tau-b (1945) of the pairs without None.

    None when one side does not vary. Two pairs always lie on a line: they have a tau, but neither r nor rho.
    """
    return Correlations(pearson(x, y), spearman(x, y), kendall(x, y), count_known(x, y))


def pearson(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Pearson's r alone; see `correlations`."""
    pairs = _complete_rows(x, y)
    return _pearson_r(*zip(*pairs, strict=True)) if len(pairs) > 2 and _all_vary(pairs) else None


def spearman(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Spearman's rho alone: r of the ranks, ties sharing their mean rank; see `correlations`."""
    pairs = _complete_rows(x, y)
    return _pearson_r(*map(_mean_ranks, zip(*pairs, strict=True))) if len(pairs) > 2 and _all_vary(pairs) else None


def kendall(x: Sequence[OptionalNumber], y: Sequence[OptionalNumber]) -> float | None:
    """Kendall's tau-b alone; see `correlations`."""
    pairs = _complete_rows(x, y)
    if len(pairs) < 2 or not _all_vary(pairs):
        return None
    return _finite_or_none(lambda: _import_library("scipy.stats").kendalltau(*zip(*pairs, strict=True))[0])


def _pearson_r(a: Any, b: Any) -> float | None:
    return _finite_or_none(lambda: _import_library("numpy").corrcoef(a, b)[0, 1])


def _mean_ranks(column: Any) -> Any:
    return _import_library("scipy.stats").rankdata(column)


def partial_rank_correlation(
    x: Sequence[OptionalNumber], y: Sequence[OptionalNumber], control: Sequence[OptionalNumber]
) -> MeasuredValue:
    """Spearman's correlation of x and y with `given` held fixed, in [-1, 1] (the partial of Yule 1907 on ranks).

    Rows with None are left out. None with fewer than four rows, or when `given` or nothing varies, or settles a side.
    """
    rows = _complete_rows(x, y, control)
    if len(rows) < 4 or not _all_vary(rows):
        return MeasuredValue(None, len(rows))
    a, b, c = zip(*rows, strict=True)
    a, b, c = map(_mean_ranks, (a, b, c))
    ab, ac, bc = _pearson_r(a, b), _pearson_r(a, c), _pearson_r(b, c)
    if ab is None or ac is None or bc is None or (left := (1 - ac * ac) * (1 - bc * bc)) < 1e-12:
        return MeasuredValue(None, len(rows))
    return MeasuredValue(max(-1.0, min(1.0, (ab - ac * bc) / sqrt(left))), len(rows))


def brier_score(probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber]) -> float | None:
    """The mean squared distance of a probability from what came, 0 (best) to 1 (Brier 1950, for two outcomes)."""
    rows = _forecast_rows(probabilities, outcomes)
    return fmean((p - came) ** 2 for p, came in rows) if rows else None


def expected_calibration_error(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber], bins: int = 10
) -> float | None:
    """The expected calibration error, 0 (best) to 1: the mean gap of `reliability`, by rows (Guo et al. 2017)."""
    table = reliability_bins(probabilities, outcomes, bins)
    return sum(n * abs(said - came) for said, came, n in table) / sum(n for *_, n in table) if table else None


def reliability_bins(
    probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber], bins: int = 10
) -> list[tuple[float, float, int]]:
    """(mean probability, share that came true, n) of each bin that holds something, lowest first.

    The bins are equally wide and hold their upper end (Guo et al. 2017). Rows with None are left out.
    """
    if bins < 1:
        raise ConfigError(f"bins must be at least 1, got {bins!r}")
    held: dict[int, list[tuple[float, ...]]] = {}
    for row in _forecast_rows(probabilities, outcomes):
        held.setdefault(max(0, ceil(row[0] * bins) - 1), []).append(row)
    return [(fmean(p for p, _ in rows), fmean(came for _, came in rows), len(rows)) for _, rows in sorted(held.items())]


def bootstrap_interval(
    rows: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    *,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float] | None:
    """The percentile interval of a statistic over rows drawn anew (Efron 1979). Equal seeds give equal intervals.

    None with fewer than two rows, or when the statistic is None for the rows or for more than 5 % of the draws.
    """
    if samples < 1:
        raise ConfigError(f"times must be at least 1, got {samples!r}")
    tail = (1 - _check_level(level)) / 2
    if len(rows) < 2 or statistic(rows) is None:
        return None
    draw = random.Random(seed).choices
    found = [value for _ in range(samples) if (value := statistic(draw(rows, k=len(rows)))) is not None]
    if len(found) < (1 - MAX_UNKNOWN_SHARE) * samples:
        return None
    found.sort()
    return _quantile(found, tail), _quantile(found, 1 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low, high = ordered[floor(place)], ordered[ceil(place)]
    return low + (high - low) * (place - floor(place))


def noise_sigma(repeats: Sequence[Sequence[OptionalNumber]]) -> float | None:
    """The pooled standard deviation of repeated looks at the same case, in the unit of the scores.

    Sums of squares over degrees of freedom, both within cases (Fisher 1925). None when no case has two looks.
    """
    cases = [[_check_finite(look) for look in case if look is not None] for case in repeats]
    cases = [case for case in cases if len(case) > 1]
    squares = sum((look - fmean(case)) ** 2 for case in cases for look in case)
    return sqrt(squares / sum(len(case) - 1 for case in cases)) if cases else None


def mean_bias(predicted: Sequence[OptionalNumber], truth: Sequence[OptionalNumber]) -> MeasuredValue:
    """mean(said - truth) over the rows where both are known, in their unit; above 0: too lenient."""
    rows = _complete_rows(predicted, truth)
    return MeasuredValue(fmean(told - true for told, true in rows) if rows else None, len(rows))


# --- what they share ----------------------------------------------------------------------------------------------------


def check_dependencies() -> None:
    """Raises ConfigError when a library that measures need is not installed: better now than after everything was asked."""
    for name in ("numpy", "scipy.stats", "sklearn.metrics"):
        _import_library(name)


def _import_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"this measure needs {name.partition('.')[0]}: pip install 'redraft[validate]'") from error


def _finite_or_none(measure: Callable[..., Any], *args: Any, **kwargs: Any) -> float | None:
    """What a library's measure gives, None for NaN; its warnings stay here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = float(measure(*args, **kwargs))
    return value if isfinite(value) else None


def _zip_columns(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    if len({len(column) for column in columns}) > 1:
        raise ConfigError(f"the sequences must be equally long, got {' and '.join(str(len(c)) for c in columns)}")
    return list(zip(*columns, strict=True))


def _complete_rows(*columns: Sequence[OptionalNumber]) -> list[tuple[float, ...]]:
    return [tuple(map(_check_finite, row)) for row in _zip_columns(*columns) if None not in row]


def _check_finite(value: float) -> float:
    if not isfinite(value):
        raise ConfigError(f"a measure takes finite numbers, got {value!r}")
    return float(value)


def _forecast_rows(probabilities: Sequence[OptionalNumber], outcomes: Sequence[OptionalNumber]) -> list[tuple[float, ...]]:
    rows = _complete_rows(probabilities, outcomes)
    for p, came in rows:
        if not 0 <= p <= 1 or came not in {0, 1}:
            raise ConfigError(f"a probability is in [0, 1] and an outcome 0 or 1, got {p!r} and {came!r}")
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
