"""Estimates of what people would say: figures computed by hand and by the authors' package,
coverage in simulations, and errors.
"""

import random
from math import sqrt
from statistics import NormalDist, fmean, variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.validation import (
    labels_needed,
    ppi_difference,
    ppi_mean,
    rogan_gladen,
    rogan_gladen_difference,
)
from redraft.validation.statistics import t_quantile, wilson_interval

NUMBERS = st.floats(-10, 10).map(lambda x: round(x, 3))
LABELS = [0.71, 0.75, 0.59, 0.33, 0.76, 0.73, 0.5, 0.63, 0.61, 0.7, 0.64, 0.68, 0.45, 0.59, 0.53]
SCORES = [0.85, 0.81, 0.66, 0.35, 0.84, 0.95, 0.48, 0.83, 0.56, 0.76, 0.8, 0.79, 0.49, 0.69, 0.67]
OTHERS = [
    0.89,
    0.91,
    0.66,
    0.48,
    0.64,
    0.69,
    0.66,
    0.96,
    0.92,
    0.41,
    0.61,
    0.5,
    0.81,
    0.88,
    0.92,
    0.49,
    0.53,
    0.72,
    0.38,
    0.58,
]


def noisy_rows(rng, n, repeats=1):
    """Return labels, scores of a lenient judge, and clusters, with `repeats` rows each."""
    rows = []
    for cluster in range(n // repeats):
        task = rng.gauss(0.6, 0.2)
        for _ in range(repeats):
            label = task + rng.gauss(0, 0.05)
            rows.append((label, label + 0.1 + rng.gauss(0, 0.1), cluster))
    return tuple(list(column) for column in zip(*rows, strict=True))


def test_the_estimate_is_that_of_the_formula():
    """With the weight that minimises the variance; ppi-python 0.2.3 gives nearly the same."""
    found = ppi_mean(LABELS, SCORES, OTHERS)
    w, n, many = found.judge_weight, len(LABELS), len(OTHERS)
    mean_label, mean_score = fmean(LABELS), fmean(SCORES)
    covariance = sum(
        (y - mean_label) * (f - mean_score) for y, f in zip(LABELS, SCORES, strict=True)
    ) / (n - 1)
    assert w == pytest.approx(covariance / (variance(SCORES + OTHERS) * (1 + n / many)))
    corrected = [y - w * f for y, f in zip(LABELS, SCORES, strict=True)]
    assert found.value == pytest.approx(w * fmean(OTHERS) + fmean(corrected))
    # as if the weight were known
    fixed = sqrt(w * w * variance(OTHERS) / many + variance(corrected) / n)
    assert fixed < found.standard_error < 1.2 * fixed
    few, many = (
        t_quantile(0.975, freedom) * found.standard_error for freedom in (n - 1, n + many - 2)
    )
    assert many < found.interval[1] - found.value < few
    assert (found.labels, found.unlabelled, found.clusters) == (15, 20, 15)
    assert found.value == pytest.approx(PACKAGE[0], abs=0.002)
    half = NormalDist().inv_cdf(0.975) * fixed
    assert (found.value - half, found.value + half) == pytest.approx(PACKAGE[1:], abs=0.004)


PACKAGE = (0.60701, 0.56226, 0.65176)
"""The estimate and interval of ppi-python 0.2.3, which divides by n in place of n - 1."""


@pytest.mark.parametrize("n", [10, 20, 40])
@pytest.mark.slow
def test_intervals_cover_the_mean_label(n):
    """95 % intervals cover about 95 % of the time, also with few labels, and are narrower than
    without a judge.
    """
    rng, hits, widths = random.Random(100 + n), [], []
    for _ in range(600):
        labels, scores, _ = noisy_rows(rng, n)
        _, others, _ = noisy_rows(rng, 200)
        low, high = ppi_mean(labels, scores, others).interval
        alone = ppi_mean(labels, scores).interval
        hits.append(low <= 0.6 <= high)
        widths.append((high - low) / (alone[1] - alone[0]))
    assert 0.92 <= fmean(hits) <= 0.98
    assert fmean(widths) < 0.8


@pytest.mark.parametrize(("share", "right"), [(0.1, 0.7), (0.9, 0.9), (0.5, 0.7)])
@pytest.mark.slow(but_each=3)
def test_intervals_cover_shares(share, right):
    """Also shares near 0 and 1, with a good judge and with a bad one."""
    rng, hits = random.Random(f"{share}"), 0
    for _ in range(500):
        labels = [float(rng.random() < share) for _ in range(400)]
        scores = [label if rng.random() < right else 1 - label for label in labels]
        low, high = ppi_mean(labels[:100], scores[:100], scores[100:]).interval
        assert 0 <= low < high <= 1
        hits += low <= share <= high
    assert hits >= 0.93 * 500


@pytest.mark.slow
def test_clusters_widen_the_interval():
    """Four similar rows a task: as independent rows they cover too rarely, by clusters about 95 %
    of the time.
    """
    rng, hits = random.Random(8), {"rows": [], "clusters": []}
    for _ in range(300):
        labels, scores, clusters = noisy_rows(rng, 80, 4)
        _, others, other_clusters = noisy_rows(rng, 160, 4)
        other_clusters = [f"other {c}" for c in other_clusters]
        for name, groups in (
            ("rows", {}),
            ("clusters", {"clusters": clusters, "unlabelled_clusters": other_clusters}),
        ):
            low, high = ppi_mean(labels, scores, others, **groups).interval
            hits[name].append(low <= 0.6 <= high)
    assert fmean(hits["rows"]) < 0.88 < 0.91 < fmean(hits["clusters"]) < 0.99


@settings(max_examples=50)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20),
    st.lists(NUMBERS, max_size=20),
    st.floats(0.5, 3),
    st.floats(-5, 5),
)
def test_units_and_order_do_not_matter(rows, others, unit, shift):
    """In other units and in another order the estimate is the same; a useless judge leaves the mean
    label.
    """
    labels, scores = (list(column) for column in zip(*rows, strict=True))
    found = ppi_mean(labels, scores, others)
    scaled = ppi_mean(
        [y * unit + shift for y in labels[::-1]],
        [f * unit for f in scores[::-1]],
        [f * unit for f in others],
    )
    assert scaled.value == pytest.approx(found.value * unit + shift, abs=1e-6)
    constant = ppi_mean(labels, [1.0] * len(labels), [1.0] * len(others))
    assert constant.value == pytest.approx(fmean(labels))


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_judge_never_widens_the_interval(noise, sign):
    """Whatever the judge is worth, the interval is at most 1 % wider than that of the labels alone;
    scores that fall where labels rise are worth as much.
    """
    rng, ratios = random.Random(3), []
    for _ in range(60):
        labels = [rng.random() for _ in range(30)]
        scores = [y + rng.gauss(0, noise) for y in labels]
        others = [rng.random() + rng.gauss(0, noise) for _ in range(90)]
        found = ppi_mean(labels, [sign * f for f in scores], [sign * f for f in others])
        due = ppi_mean(labels, scores, others)
        assert (found.value, *found.interval) == pytest.approx((due.value, *due.interval))
        assert found.judge_weight == pytest.approx(sign * due.judge_weight)
        low, high = ppi_mean(labels, scores).interval
        ratios.append((found.interval[1] - found.interval[0]) / (high - low))
    assert max(ratios) <= 1.01 + 1e-9
    assert fmean(ratios) < (0.6 if noise < 0.1 else 1)


def test_equal_labels_do_not_look_certain():
    """Few or no failures: the interval of a share contains Wilson's; other labels without variation
    have no interval.
    """
    every = ppi_mean([1.0] * 20, [0.9] * 20, [0.8] * 100)
    assert every.value == 1
    assert every.interval == pytest.approx(wilson_interval(20, 20))
    few = ppi_mean([1.0] * 18 + [0.0] * 2, [0.9, 0.8] * 10, [0.8, 0.7] * 50)
    assert (
        few.interval[0]
        <= wilson_interval(18, 20)[0]
        < wilson_interval(18, 20)[1]
        <= few.interval[1]
        <= 1
    )
    assert ppi_mean([0.1] * 20, [0.9, 0.3] * 10, [0.8] * 100).interval is None
    assert ppi_mean([0.4, 0.5], [0.4, 0.5], clusters=["a", "a"]).interval is None


def test_a_difference_is_that_of_pairs():
    """Task by task, so that what both answers share cancels; exchanged sides change the sign."""
    rng = random.Random(3)
    tasks = [rng.gauss(0, 1) for _ in range(60)]
    labels = [(t + 0.3 + rng.gauss(0, 0.1), t + rng.gauss(0, 0.1)) for t in tasks[:30]]
    scores = [(a + rng.gauss(0, 0.1), b + rng.gauss(0, 0.1)) for a, b in labels]
    others = [(t + 0.3, t) for t in tasks[30:]]
    found = ppi_difference(labels, scores, others)
    back = ppi_difference(*([(b, a) for a, b in column] for column in (labels, scores, others)))
    assert found.value == pytest.approx(-back.value) == pytest.approx(0.3, abs=0.1)
    assert found.interval[1] - found.interval[0] < 0.2


def test_a_pass_rate_is_corrected_for_both_errors():
    """Rates by hand: 65 % pass, 90 % of good and 20 % of bad answers; the interval covers in
    simulations.
    """
    found = rogan_gladen([1] * 10 + [0] * 10, [1] * 9 + [0] * 9 + [1] * 2, [1] * 65 + [0] * 35)
    assert found.value == pytest.approx((0.65 + 0.8 - 1) / 0.7)
    rng, hits = random.Random(6), []
    for _ in range(300):
        truth = [1] * 20 + [0] * 20
        verdicts = [int(rng.random() < (0.9 if good else 0.2)) for good in truth]
        others = [int(rng.random() < (0.9 if rng.random() < 0.7 else 0.2)) for _ in range(300)]
        low, high = rogan_gladen(truth, verdicts, others).interval
        assert 0 <= low <= high <= 1
        hits.append(low <= 0.7 <= high)
    assert fmean(hits) >= 0.93


@pytest.mark.parametrize(
    ("half_width", "sd", "needed"),
    [
        (0.10, 0.25, [25, 19, 13, 5]),
        (0.05, 0.25, [97, 73, 49, 19]),
        (0.10, 0.5, [97, 73, 49, 19]),
        (0.05, 0.5, [385, 289, 196, 73]),
    ],
)
def test_labels_needed(half_width, sd, needed):
    """A table by hand, for judges with correlations of 0, 0.5, 0.7 and 0.9; few unlabelled answers
    help less.
    """
    assert [labels_needed(half_width, sd, r) for r in (0, 0.5, 0.7, 0.9)] == needed
    assert labels_needed(half_width, sd, 0.9, unlabelled=0) == needed[0]
    assert needed[3] <= labels_needed(half_width, sd, 0.9, unlabelled=1000) <= 1.5 * needed[3]
    n, many = labels_needed(half_width, sd, 0.7, unlabelled=50), 50
    assert 1.96 * sd * sqrt((1 - 0.49 * many / (n + many)) / n) <= half_width + 1e-9


UNEQUAL = [  # an estimate, its columns of which one is too long or too short, and their lengths
    (ppi_mean, {"labels": [1, 2], "scores": [1]}, (2, 1)),
    (ppi_mean, {"labels": [], "scores": [1]}, (0, 1)),
    (ppi_difference, {"labels": [(1, 0)], "scores": [(1, 0), (0, 1)]}, (1, 2)),
    (rogan_gladen, {"labels": [1, 0, 1], "verdicts": [1, 0]}, (3, 2)),
    (rogan_gladen, {"labels": [1, 0], "verdicts": [1, 0, 1]}, (2, 3)),
    (rogan_gladen, {"labels": [1, 0], "verdicts": []}, (2, 0)),
    (rogan_gladen_difference, {"labels": [1, 0, 1], "verdicts": [1, 0]}, (3, 2)),
    (rogan_gladen_difference, {"labels": [1, 0], "verdicts": [1, 0, 1]}, (2, 3)),
    (rogan_gladen_difference, {"verdicts_a": [1, 0, 1], "verdicts_b": [1, 0]}, (3, 2)),
    (rogan_gladen_difference, {"verdicts_a": [1, 0], "verdicts_b": [1, 0, 1]}, (2, 3)),
]
PAIRED = {  # the other columns of an estimate
    ppi_mean: {},
    ppi_difference: {},
    rogan_gladen: {"unlabelled_verdicts": [1, 0, 1]},
    rogan_gladen_difference: {
        "labels": [1, 0],
        "verdicts": [1, 0],
        "verdicts_a": [1, 1],
        "verdicts_b": [1, 0],
    },
}


@pytest.mark.parametrize(("estimate", "columns", "lengths"), UNEQUAL)
def test_columns_of_unequal_lengths_are_refused(estimate, columns, lengths):
    """The error names both columns, and has their lengths."""
    names, counts = ("(,| and) ".join(map(str, both)) for both in (columns, lengths))
    with pytest.raises(ConfigError, match=f"{names} must be equally long, got {counts}"):
        estimate(**{**PAIRED[estimate], **columns})


WRONG = [
    (lambda: ppi_mean([], []), "labels: there is none"),
    (lambda: ppi_mean([1, None], [1, 2]), r"labels\[1\] must be a finite number, got None"),
    (lambda: ppi_mean([1, 2], [1, float("nan")]), r"scores\[1\].*nan"),
    (lambda: ppi_mean([1, 2], [1, 2], ["many"]), r"unlabelled_scores\[0\].*'many'"),
    (
        lambda: ppi_mean([1, 2], [1, 2], [1], clusters=["a", "b"], unlabelled_clusters=["a"]),
        "'a' has labelled and unlabelled",
    ),
    (
        lambda: ppi_mean([1, 2], [1, 2], clusters=["a"]),
        "clusters must be equally long, got 2, 2 and 1",
    ),
    (lambda: ppi_mean([1, 2], [1, 2], confidence=95), "confidence"),
    (lambda: ppi_difference([1, 2], [(1, 2)]), r"labels\[0\] must be a pair"),
    (lambda: rogan_gladen([1, 0.5], [1, 0], [1]), r"labels\[1\] must be 0 or 1, got 0.5"),
    (lambda: rogan_gladen([1, 1], [1, 0], [1]), "labels of bad answers: there is none"),
    (lambda: rogan_gladen([1, 0], [0, 1], [1]), "no better than chance"),
    (lambda: labels_needed(0, 1), "half_width"),
    (lambda: labels_needed(0.1, float("nan")), "sd .*nan"),
    (lambda: labels_needed(0.1, -0.5), "sd .*-0.5"),
    (lambda: labels_needed(0.1, "wide"), "sd .*'wide'"),
    (lambda: labels_needed(0.1, 1, 2), "correlation"),
    (lambda: labels_needed(0.1, 1, unlabelled=-1), "unlabelled"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_arguments_are_named(call, message):
    """The error has the argument, its place, what is allowed, and the value."""
    with pytest.raises(ConfigError, match=message):
        call()
