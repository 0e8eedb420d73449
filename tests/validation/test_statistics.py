"""Statistics: published values, and properties that hold for any data."""

import math
import sys
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.validation import statistics as m
from redraft.validation.statistics import samples

# Fleiss 1971, table 1: ten of its columns are subjects, five categories, fourteen raters
FLEISS = [
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
]  # fmt: skip
KRIPPENDORFF = [  # Krippendorff 2011, section D: twelve units, four observers
    [1, 1, None, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4],
    [4, 4, 4, 4], [1, 1, 2, 1], [2, 2, 2, 2], [None, 5, 5, 5], [None, None, 1, 1], [None, 3, None, None],
]  # fmt: skip
scores = st.one_of(st.none(), st.integers(-5, 5).map(float), st.floats(-1e6, 1e6))
pairs = st.lists(st.tuples(scores, scores), max_size=25)
labels = st.sampled_from(["a", "b", "c"])


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
        (0.5, 1, 0.0546, 0.9454),
    ],
)
def test_wilson(right, n, low, high):
    """The interval equals Newcombe's example (81 of 263) and is right at the ends of the scale."""
    assert m.wilson_interval(right, n) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("right", "n", "level"),
    [(2, 1, 0.95), (-1, 1, 0.95), (1, 1, 0.0), (1, 1, 1.0), (1, 1, math.nan)],
)
def test_wilson_rejects_invalid_arguments(right, n, level):
    """More successes than trials and an invalid level are errors."""
    with pytest.raises(ConfigError, match="successes|level"):
        m.wilson_interval(right, n, level)


@given(st.integers(0, 200), st.integers(1, 200), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_contains_the_share(right, n, level):
    """The interval lies in [0, 1] and around the share itself."""
    right = min(right, n)
    low, high = m.wilson_interval(right, n, level)
    assert 0 <= low <= right / n + 1e-12
    assert right / n - 1e-12 <= high <= 1


def test_precision_recall_f1():
    """The values equal a table computed by hand; an unreadable verdict is a miss for its label."""
    found = m.precision_recall_f1(["a", "a", "a", "b", "b"], ["a", "a", "b", "b", None])
    assert found["a"] == (1.0, 2 / 3, 0.8, 3)
    assert found["b"] == (0.5, 0.5, 0.5, 2)
    assert found["macro"] == pytest.approx((0.75, 7 / 12, 0.65, 5))


def test_label_without_predictions_has_no_precision():
    """Its precision and the mean are unknown, and its recall is 0."""
    found = m.precision_recall_f1(["a", "b"], ["a", None])
    assert found["b"] == (None, 0.0, 0.0, 1)
    assert found["macro"].precision is None


def ratings(table):
    """Return the two raters' labels for a table of counts, with one row for each label of the first
    rater.
    """
    cells = [
        (i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)
    ]
    return [i for i, _ in cells], [j for _, j in cells]


@pytest.mark.parametrize(
    ("table", "weights", "kappa"),
    [
        pytest.param([[20, 5], [10, 15]], None, 0.4, id="by hand: (.70 - .50) / (1 - .50)"),
        pytest.param([[44, 7, 9], [5, 20, 5], [1, 3, 6]], None, 0.492, id="Cohen 1968, table 1"),
        pytest.param(
            [[75, 1, 4], [5, 4, 1], [0, 0, 10]],
            None,
            0.676,
            id="Fleiss, Levin and Paik 2003, table 18.1",
        ),
        pytest.param(
            [[10, 4, 1, 0], [5, 10, 12, 2], [2, 4, 12, 5], [0, 2, 6, 13]],
            None,
            0.3449,
            id="SAS, two dermatologists",
        ),
        pytest.param(
            [[10, 4, 1, 0], [5, 10, 12, 2], [2, 4, 12, 5], [0, 2, 6, 13]],
            "linear",
            0.5082,
            id="SAS, linear",
        ),
        pytest.param(
            [[1, 0, 0], [0, 1, 0], [0, 1, 1]], "linear", 5 / 7, id="by hand: 1 - 1 / (14 / 4)"
        ),
        pytest.param(
            [[1, 0, 0], [0, 1, 0], [0, 1, 1]], "quadratic", 4 / 5, id="by hand: 1 - 1 / (20 / 4)"
        ),
        pytest.param([[5, 5], [5, 5]], "quadratic", 0.0, id="independent raters"),
        pytest.param([[0, 7], [7, 0]], "linear", -1.0, id="raters who always disagree"),
    ],
)
def test_cohen_kappa(table, weights, kappa):
    """The values equal published ones and tables computed by hand."""
    assert m.cohen_kappa(*ratings(table), weights) == pytest.approx(kappa, abs=5e-4)


def test_weights_depend_on_the_position_of_a_category():
    """Categories are ranked in sorted order, and the distance of their numbers does not matter."""
    a, b = ratings([[3, 1, 1], [0, 4, 2], [1, 0, 5]])
    scale = {0: 1, 1: 2, 2: 100}
    for weights in ("linear", "quadratic"):
        assert m.cohen_kappa(
            [scale[x] for x in a], [scale[x] for x in b], weights
        ) == m.cohen_kappa(a, b, weights)


def test_kappa_and_missing_labels():
    """None is left out, or is a category of its own on request."""
    a, b = ["x", "y", "x", "y"], ["x", "y", "x", None]
    assert m.cohen_kappa(a, b) == pytest.approx(1.0)
    assert m.cohen_kappa(a, b, missing="category") == pytest.approx(0.6)


@pytest.mark.parametrize(
    "bad", [{"weights": "cubic"}, {"missing": "zero"}, {"weights": "linear", "missing": "category"}]
)
def test_kappa_rejects_unknown_settings(bad):
    """The error names the setting."""
    with pytest.raises(ConfigError, match="weights|missing"):
        m.cohen_kappa([1, 2], [1, 2], **bad)


def test_weights_need_an_order():
    """Texts and numbers together have no order."""
    assert m.cohen_kappa([1, "a"], [1, "a"]) == 1.0
    with pytest.raises(ConfigError, match="sorted"):
        m.cohen_kappa([1, "a"], [1, "a"], "linear")


def test_fleiss_kappa():
    """The value equals the example of 1971."""
    rows = [
        [category for category, count in enumerate(row) for _ in range(count)] for row in FLEISS
    ]
    assert m.fleiss_kappa(rows) == pytest.approx(0.210, abs=5e-4)


@pytest.mark.parametrize(
    "rows", [[], [["a"]], [["a", "b"], ["a"]], [["a", "a"], ["a", "a"]], [["a", None], ["a", "b"]]]
)
def test_fleiss_is_unknown(rows):
    """One rater, unequal numbers of raters, a missing label and a single label give None."""
    assert m.fleiss_kappa(rows) is None


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_krippendorff_alpha(level, alpha):
    """The values equal the example of 2011 at three levels for any order of raters."""
    assert m.krippendorff_alpha(KRIPPENDORFF, level) == pytest.approx(alpha, abs=5e-4)
    ragged = [[rating for rating in reversed(row) if rating is not None] for row in KRIPPENDORFF]
    assert m.krippendorff_alpha(ragged, level) == pytest.approx(alpha, abs=5e-4)


@pytest.mark.parametrize(
    ("first", "second", "alpha"),
    [("0100000010", "1110010000", 0.095), ("112243335441", "212223335444", 0.692)],
    ids=["binary", "nominal"],
)
def test_krippendorff_alpha_of_two_observers(first, second, alpha):
    """The values equal the complete examples of 2011 in sections A and B."""
    rows = list(zip(map(int, first), map(int, second), strict=True))
    assert m.krippendorff_alpha(rows) == pytest.approx(alpha, abs=5e-4)


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
@given(rows=st.lists(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=5), max_size=8))
def test_krippendorff_alpha_by_the_coincidence_matrix(level, rows):
    """The value equals the paper's own computation, pair by pair."""
    rows = [known for row in rows if len(known := [v for v in row if v is not None]) > 1]
    coincidences = Counter()
    for row in rows:
        for c, k in permutations(row, 2):
            coincidences[c, k] += 1 / (len(row) - 1)
    n = Counter()
    for (c, _), count in coincidences.items():
        n[c] += count

    def distance(c, k):
        low, high = sorted((c, k))
        among = sum(count for value, count in n.items() if low <= value <= high)
        return {
            "nominal": c != k,
            "ordinal": c != k and (among - (n[c] + n[k]) / 2) ** 2,
            "interval": (c - k) ** 2,
        }[level]

    expected = sum(n[c] * n[k] * distance(c, k) for c in n for k in n)
    found = m.krippendorff_alpha(rows, level)
    if not expected:
        assert found is None
    else:
        observed = sum(count * distance(c, k) for (c, k), count in coincidences.items())
        assert found == pytest.approx(1 - (sum(n.values()) - 1) * observed / expected, abs=1e-9)


@pytest.mark.parametrize("unit", [1e-300, 1e-3, 1e6, 1e300])
def test_krippendorff_alpha_has_no_unit(unit):
    """An interval scale may use any unit without overflow."""
    rows = [[rating and rating * unit for rating in row] for row in KRIPPENDORFF]
    assert m.krippendorff_alpha(rows, "interval") == pytest.approx(0.849, abs=5e-4)


@pytest.mark.parametrize(
    "rows", [[], [[1], [2]], [[1, 1], [1, 1]], [[None, None]], [[1, None], [2]]]
)
def test_alpha_is_unknown(rows):
    """Data without pairs or without variation give None."""
    assert m.krippendorff_alpha(rows, "interval") is None


def test_alpha_below_chance():
    """Raters who always disagree have a negative alpha."""
    assert m.krippendorff_alpha([[1, 2], [2, 1], [1, 2]]) < 0


def correlations(x, y):
    """Return Pearson's, Spearman's and Kendall's coefficients."""
    return m.pearson(x, y), m.spearman(x, y), m.kendall(x, y)


def test_correlations():
    """One swapped pair of ranks is exact, a monotone curve is 1 by ranks only, and pairs with None
    are left out.
    """
    assert correlations([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx((0.8, 0.8, 2 / 3))
    pearson, *ranks = correlations([1, 2, 3, None, 9], [1, 10, 100, 5, None])
    assert ranks == pytest.approx([1, 1])
    assert pearson < 0.95


def test_two_pairs_have_a_tau_only():
    """Two points always lie on a line."""
    assert correlations([1, 2], [5, 3]) == (None, None, -1.0)


def test_partial_rank_correlation():
    """A correlation that a third variable explains vanishes when it is held fixed, and another one
    stays.
    """
    length = list(range(40))
    noise = [(7 * i) % 11 for i in length]
    score = [a + 3 * b for a, b in zip(length, noise, strict=True)]
    assert m.partial_rank_correlation(score, noise, length) > 0.9
    plain = m.spearman(score, length)
    partial = m.partial_rank_correlation(score, length, [a + (13 * a) % 5 for a in length])
    assert abs(partial) < plain


@pytest.mark.parametrize("given", [[1, 1, 1, 1, 1], [1, 2, 3, 4, 5]])
def test_partial_correlation_is_unknown(given):
    """It is None if the fixed variable is constant or determines one side."""
    assert m.partial_rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], given) is None


def test_calibration():
    """The table by hand has a calibrated and an uncalibrated bin; 0 and 1 fall in the outer
    bins.
    """
    forecasts, outcomes = [0.0, 0.5, 0.9, 1.0], [0, 1, 1, 0]
    assert m.brier_score(forecasts, outcomes) == pytest.approx((0 + 0.25 + 0.01 + 1) / 4)
    assert m.reliability_bins(forecasts, outcomes, bins=2) == [
        (0.25, 0.5, 2),
        (pytest.approx(0.95), 0.5, 2),
    ]
    assert m.expected_calibration_error(forecasts, outcomes, bins=2) == pytest.approx(
        (0.25 + 0.45) / 2
    )
    assert (
        m.brier_score([], []),
        m.expected_calibration_error([None], [1]),
        m.reliability_bins([], []),
    ) == (None, None, [])


@pytest.mark.parametrize(
    ("p", "outcome"), [(1.1, 1), (-0.1, 0), (0.5, 2), (math.nan, 1), (0.5, math.inf)]
)
def test_calibration_rejects_invalid_forecasts(p, outcome):
    """A probability outside [0, 1] and an outcome other than true or false are errors."""
    with pytest.raises(ConfigError):
        m.brier_score([p], [outcome])


def test_bootstrap():
    """The interval of a mean agrees with theory and is the same for the same seed."""
    rows = [float(i % 10) for i in range(200)]
    low, high = m.bootstrap_interval(rows, lambda rows: sum(rows) / len(rows), samples=500, seed=3)
    assert (low, high) == m.bootstrap_interval(
        rows, lambda rows: sum(rows) / len(rows), samples=500, seed=3
    )
    assert low < 4.5 < high
    assert high - low == pytest.approx(2 * 1.96 * 2.872 / math.sqrt(200), rel=0.15)


def test_bootstrap_is_unknown():
    """One row, or a statistic that is mostly None, has no interval."""
    assert m.bootstrap_interval([1.0], lambda rows: 1.0) is None
    assert m.bootstrap_interval([1, 2, 3], lambda rows: None) is None
    assert (
        m.bootstrap_interval([1, 2], lambda rows: 1.0 if 2 in rows and 1 in rows else None) is None
    )


def test_noise():
    """The noise is pooled over cases with two repeats and more."""
    assert m.noise_sigma([[1, 3], [5], [], [2, 2, 2]]) == pytest.approx(math.sqrt(2 / 3))
    assert m.noise_sigma([[1], [2]]) is None


@given(pairs)
def test_measures_are_finite_or_none(rows):
    """Any input gives None or a finite number in range, without a warning."""
    x, y = [a for a, _ in rows], [b for _, b in rows]
    partial = m.partial_rank_correlation(x, y, list(reversed(x)))
    for value in (*correlations(x, y), partial, m.krippendorff_alpha(rows, "interval")):
        assert value is None or -1 - 1e-9 <= value <= 1 + 1e-9


@given(st.lists(st.tuples(labels, st.one_of(st.none(), labels)), max_size=25))
def test_kappa_is_symmetric_and_one_with_itself(rows):
    """Two raters can be exchanged, and a rater with two labels agrees fully with himself."""
    a, b = [x for x, _ in rows], [y for _, y in rows]
    assert m.cohen_kappa(a, b) == pytest.approx(m.cohen_kappa(b, a))
    assert m.cohen_kappa(a, a) == (1.0 if len(set(a)) > 1 else None)
    assert m.fleiss_kappa([[x, x] for x in a]) == (pytest.approx(1.0) if len(set(a)) > 1 else None)


@given(st.lists(st.tuples(labels, st.one_of(st.none(), labels)), min_size=1, max_size=25))
def test_accuracy_is_the_weighted_recall(rows):
    """The recalls weighted by the size of their class give the accuracy."""
    found = m.precision_recall_f1(*zip(*rows, strict=True))
    right = sum(
        rate.recall * rate.n for label, rate in found.items() if label != "macro" and rate.n
    )
    assert right == pytest.approx(sum(a == b for a, b in rows))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50), st.integers(1, 20)
)
def test_reliability_keeps_every_row(rows, bins):
    """Every forecast is in one bin, the bins are in order, and the error lies in [0, 1]."""
    forecasts, outcomes = [p for p, _ in rows], [o for _, o in rows]
    table = m.reliability_bins(forecasts, outcomes, bins)
    assert sum(n for *_, n in table) == len(rows)
    assert [p for p, *_ in table] == sorted(p for p, *_ in table)
    assert 0 <= m.expected_calibration_error(forecasts, outcomes, bins) <= 1


@pytest.mark.parametrize(
    "measure",
    [
        lambda: m.pearson([1, 2], [1]),
        lambda: m.pearson([1, math.nan], [1, 2]),
        lambda: m.krippendorff_alpha([[1, math.inf]]),
        lambda: m.krippendorff_alpha([[1, 2]], "ratio"),
        lambda: m.reliability_bins([0.5], [1], bins=0),
        lambda: m.bootstrap_interval([1, 2], lambda _: 1.0, samples=0),
        lambda: m.precision_recall_f1(["macro"], ["a"]),
    ],
)
def test_invalid_arguments(measure):
    """Unequal lengths, invalid numbers and unknown settings are errors."""
    with pytest.raises(ConfigError):
        measure()


def test_missing_extra_is_named(monkeypatch):
    """The error says how to install what is missing."""
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ConfigError, match=r"needs scipy: pip install 'redraft\[validate\]'"):
        m.kendall([1, 2, 3], [1, 2, 4])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1], "b": [1, 2]}, "a and b must be equally long, got 1 and 2"),
        ({"a": [], "b": [1], "c": []}, "a, b and c must be equally long, got 0, 1 and 0"),
        ({"a": [1, 2], "b": None, "c": [3]}, "a and c must be equally long, got 2 and 1"),
        ({"a": [1], "b": None}, ""),
        ({}, ""),
    ],
)
def test_lengths_are_compared_by_name(columns, message):
    """None is no column."""
    if not message:
        return samples.check_equal_lengths(**columns)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        samples.check_equal_lengths(**columns)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=9))
def test_groups_keep_the_order_of_their_values(pairs):
    """And that of the keys' first values."""
    found = samples.group_values(pairs)
    assert list(found) == list(dict.fromkeys(key for key, _ in pairs))
    assert all(values == [v for k, v in pairs if k == key] for key, values in found.items())


def test_a_bootstrap_draws_whole_clusters():
    """Rows that differ within their cluster only are drawn together, so that their mean is known."""
    rows, clusters = [0.0, 1.0] * 20, [n // 2 for n in range(40)]
    mean = lambda rows: sum(rows) / len(rows)
    assert m.bootstrap_interval(rows, mean, clusters=clusters, samples=50) == (0.5, 0.5)
    low, high = m.bootstrap_interval(rows, mean, samples=50)
    assert low < 0.5 < high
    assert m.bootstrap_interval(rows, mean, clusters=["x"] * 40) is None
    alone = m.bootstrap_interval(rows, mean, clusters=range(40), samples=50, seed=4)
    assert alone == m.bootstrap_interval(rows, mean, samples=50, seed=4)
