"""Differences of paired scores: figures by hand and by other packages, coverage and false alarms in
simulations, and errors.
"""

import random
from math import comb, sqrt
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.validation import (
    effective_votes,
    paired_difference,
    ppi_difference,
    rogan_gladen_difference,
    rows_to_decide,
    slice_differences,
    win_rate,
)
from redraft.validation.statistics import t_quantile

SCORES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=40)


def test_the_interval_is_that_of_the_paired_t_test():
    """Where enough rows are higher and enough are lower, two more rows hardly matter."""
    rng = random.Random(0)
    a = [rng.random() for _ in range(40)]
    b = [x + rng.gauss(0.02, 0.1) for x in a]
    found = paired_difference(a, b)
    differences = [y - x for x, y in zip(a, b, strict=True)]
    error = stdev(differences) / sqrt(40)
    assert found.value == pytest.approx(fmean(differences))
    assert found.standard_error == pytest.approx(error)
    half = t_quantile(0.975, 39) * error
    assert found.interval == pytest.approx(
        [found.value + side * half for side in (-1, 1)], abs=half / 10
    )
    assert (found.wins + found.losses + found.ties, found.rows, found.clusters) == (40, 40, 40)


def test_zeros_and_ones_with_few_changes_have_bonett_and_prices_interval():
    """Of 50 rows, 4 become right and 1 becomes wrong: (4 + 1 - 1 - 1) / 52, with the variance of
    the adjusted shares.
    """
    a, b = [0] * 4 + [1] + [1] * 45, [1] * 4 + [0] + [1] * 45
    up, down = 5 / 52, 2 / 52
    error = sqrt((up + down - (up - down) ** 2) / 52)
    quantile = t_quantile(0.975, 49)
    low, high = paired_difference(a, b).interval
    assert low == pytest.approx(up - down - quantile * error, abs=0.002)
    # the t interval may reach further on this side
    assert high == pytest.approx(up - down + quantile * error, abs=0.004)


@pytest.mark.parametrize(
    ("rows", "share"), [(20, 0.4), (50, 0.2), (50, 0.5), (100, 0.2), (100, 0.4)]
)
def test_false_alarms_of_zeros_and_ones_are_at_most_as_stated(rows, share):
    """Exactly: over all numbers of rows that get better or worse by chance, each with half of the
    probability of `share`.
    """
    alarms = 0.0
    for differing in range(rows + 1):
        chance = comb(rows, differing) * share**differing * (1 - share) ** (rows - differing)
        for up in range(differing // 2, differing + 1):
            both = chance * comb(differing, up) * 0.5**differing
            if (
                both > 1e-5
                and paired_difference(
                    [0.5] * rows, [1.0] * up + [0.0] * (differing - up) + [0.5] * (rows - differing)
                ).verdict
                == "better"
            ):
                alarms += both
    assert alarms <= 0.025


@given(SCORES, st.integers(1, 4))
def test_a_difference_is_the_opposite_of_the_one_back(rows, repeats):
    """B against A is A against B with the sign changed, also in clusters; the interval contains the
    value.
    """
    a, b = zip(*rows, strict=True)
    clusters = [n // repeats for n in range(len(a))]
    there, back = (
        paired_difference(a, b, clusters=clusters),
        paired_difference(b, a, clusters=clusters),
    )
    assert back.value == pytest.approx(-there.value)
    assert (there.interval is None) == (there.clusters < 2)
    if there.interval:
        assert there.interval[0] <= there.value + 1e-12
        assert there.value <= there.interval[1] + 1e-12
        assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]), abs=1e-9)
    opposite = {"better": "worse", "worse": "better", "undecided": "undecided"}
    assert back.verdict == opposite[there.verdict]


@given(SCORES)
def test_rows_that_are_repeated_in_their_cluster_change_nothing(rows):
    """Five copies of each row, in one cluster with it, are no more evidence."""
    a, b = zip(*rows, strict=True)
    once = paired_difference(a, b)
    copies = paired_difference(a * 5, b * 5, clusters=list(range(len(a))) * 5)
    assert copies.value == pytest.approx(once.value)
    assert copies.standard_error == pytest.approx(once.standard_error)


@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_equal_scores_are_undecided_and_not_exact(n, value):
    """No row that differs is no proof that none ever will."""
    found = paired_difference([value] * n, [value] * n)
    assert found.value == 0
    assert found.verdict == "undecided"
    assert 1 / n < found.interval[1] == -found.interval[0] < 4 / n


def worlds(rng, kind, n, shift):
    """Return scores of A and B, and clusters, in one simulated world."""
    if kind == "shares":
        return (
            [float(rng.random() < 0.9) for _ in range(n)],
            [float(rng.random() < 0.9 + shift) for _ in range(n)],
            None,
        )
    if kind == "rare":
        a = [1.0] * n
        return a, [float(rng.random() > 0.02) for _ in a], None
    clusters = [k // 4 for k in range(n)]
    effects = [rng.gauss(0, 0.1) for _ in range(n)]
    a = [rng.random() for _ in range(n)]
    return (
        a,
        [x + effects[c] + rng.gauss(shift, 0.1) for x, c in zip(a, clusters, strict=True)],
        clusters,
    )


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("n", [24, 120])
@pytest.mark.parametrize("kind", ["shares", "clusters"])
def test_false_alarms_are_as_rare_as_stated(kind, n):
    """With A = B, at most 5 % of verdicts are "better" or "worse" (with the error of 300
    simulations).
    """
    rng = random.Random(n)
    verdicts = []
    for _ in range(300):
        a, b, clusters = worlds(rng, kind, n, 0.0)
        verdicts.append(paired_difference(a, b, clusters=clusters).verdict)
    assert sum(verdict != "undecided" for verdict in verdicts) <= 0.05 * 300 + 3 * sqrt(
        0.05 * 0.95 * 300
    )


def test_intervals_cover_rare_changes():
    """2 % of rows get worse: the interval contains -0.02 in 95 % of worlds, although many show no
    change at all.
    """
    rng, hits = random.Random(7), 0
    for _ in range(600):
        a, b, _ = worlds(rng, "rare", 60, 0.0)
        low, high = paired_difference(a, b).interval
        hits += low <= -0.02 <= high
    assert hits >= 0.93 * 600


@pytest.mark.slow
def test_many_slices_give_no_false_alarm():
    """In 100 worlds of 20 slices without any difference, at most about 5 % have a slice that seems
    to differ.
    """
    rng, alarms = random.Random(3), 0
    names = [str(n % 20) for n in range(400)]
    for _ in range(100):
        a = [rng.random() for _ in names]
        b = [x + rng.gauss(0, 0.1) for x in a]
        found = slice_differences(a, b, names)
        assert set(found) == set(names)
        alarms += any(each.verdict != "undecided" for each in found.values())
    assert alarms <= 0.05 * 100 + 3 * sqrt(0.05 * 0.95 * 100)
    assert found["3"].confidence == pytest.approx(1 - 0.05 / 20)


@pytest.mark.parametrize("bias", [0.0, 0.2, -0.3])
def test_a_preference_for_a_position_cancels(bias):
    """The win rate is the same whatever the judge's bias, and the bias is shown."""
    chances = [0.5, 0.6, 0.4, 0.55, 0.65]
    found = win_rate([p - bias for p in chances], [p + bias for p in chances])
    assert found.value == pytest.approx(fmean(chances))
    assert found.position_bias == pytest.approx(bias)
    assert found.consistency == (1.0 if bias == 0 else 0.0)


def test_a_win_rate_of_all_pairs_is_not_certain():
    """Nine wins of nine are better than chance, and 1 is not the lower end."""
    found = win_rate([1] * 9, [1] * 9)
    assert found.value == found.interval[1] == 1
    assert 0.5 < found.interval[0] < 0.95
    assert found.verdict == "better"
    assert win_rate([1] * 3, [1] * 3).verdict == "undecided"


@pytest.mark.parametrize(
    ("shift", "margin"), [(0.02, None), (-0.02, None), (0.0, 0.02), (-0.06, 0.02)]
)
def test_as_many_rows_as_stated_decide(shift, margin):
    """With the stated number of rows of the same spread, the interval excludes 0, or the margin."""
    steps = [0.1, -0.1, 0.05, -0.05] * 12
    few = paired_difference([0.5] * 48, [0.5 + shift + step for step in steps])
    # whole cycles of steps; the spread changes a little with the rows
    needed = -(-rows_to_decide(few, margin) // 4) * 4 + 4
    many = [steps[n % 48] for n in range(needed)]
    found = paired_difference([0.5] * needed, [0.5 + shift + step for step in many])
    decided = found.verdict != "undecided" or (margin is not None and found.interval[0] >= -margin)
    assert decided
    assert few.rows <= needed < 5000


def test_no_number_of_rows_decides_no_difference():
    """With a mean of exactly 0 and no margin, nothing would."""
    assert rows_to_decide(paired_difference([0, 1, 0.5], [1, 0, 0.5])) is None
    assert rows_to_decide(paired_difference([0], [1])) is None


@pytest.mark.parametrize(
    ("scores", "votes"),
    [
        ({"x": [0, 1, 0, 1], "y": [0, 1, 0, 1]}, 1.0),  # the same errors
        ({"x": [0.1, 0.9, 0, 1], "y": [0, 1, 0.1, 0.9]}, 2.0),  # errors that never coincide
        ({"x": [0, 1, 0, 1]}, None),
        ({"x": [1, 1, 0, 0], "y": [0.5, 0.5, 0.5, 0.5]}, None),  # no error varies
    ],
)
def test_effective_votes(scores, votes):
    """Judges that err alike are one vote."""
    labels = [0.5, 0.5, 0.5, 0.5] if votes != 2.0 else [0, 1, 0, 1]
    found = effective_votes(scores, labels)
    assert (found and found.value) == (votes and pytest.approx(votes))


def test_nine_judges_with_correlated_errors_are_two_votes():
    """With a correlation of 0.44, as the source found."""
    rng = random.Random(5)
    common = [rng.gauss(0, sqrt(0.44)) for _ in range(4000)]
    scores = {str(n): [c + rng.gauss(0, sqrt(0.56)) for c in common] for n in range(9)}
    found = effective_votes(scores, [0.0] * 4000)
    assert found.value == pytest.approx(2.0, abs=0.1)


def test_figures_agree_with_truescore():
    """The difference of two systems by their scores, and by people's labels (PPI++), as another
    package computes them.
    """
    truescore = pytest.importorskip("truescore", reason="no truescore")
    rng = random.Random(11)
    quality = [rng.random() for _ in range(240)]
    a = [q + rng.gauss(0.1, 0.1) for q in quality]
    b = [q + rng.gauss(0.15, 0.1) for q in quality]
    found = paired_difference(a, b)
    theirs = truescore.paired_bootstrap(b, a, seed=0, n_bootstrap=4000)
    assert found.value == pytest.approx(theirs.difference, abs=1e-12)
    assert found.interval == pytest.approx((theirs.low, theirs.high), abs=0.002)

    labels_a, labels_b = (
        [score - mean + rng.gauss(0, 0.05) for score in scores[:60]]
        for scores, mean in ((a, 0.1), (b, 0.13))
    )
    true = ppi_difference(
        list(zip(labels_b, labels_a)), list(zip(b[:60], a[:60])), list(zip(b[60:], a[60:]))
    )
    theirs = truescore.ppi_compare(b, a, labels_b, labels_a, list(range(60)))
    # of which rows the variance of the scores is taken makes another weight
    assert true.value == pytest.approx(theirs.difference, abs=5e-4)
    assert true.judge_weight > 0.8
    assert true.interval[1] - true.interval[0] == pytest.approx(
        theirs.high - theirs.low, rel=0.07
    )  # t in place of z, and the weight is not known


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paired_difference([1], [1, 2]), "a and b must be equally long, got 1 and 2"),
        (lambda: paired_difference([], []), "a: there is none"),
        (lambda: paired_difference([1, None], [1, 2]), r"a\[1\] must be a finite number, got None"),
        (
            lambda: paired_difference([1], [2], clusters=[1, 2]),
            "a, b and clusters must be equally long, got 1, 1 and 2",
        ),
        (
            lambda: paired_difference([1], [2], confidence=95),
            "confidence must be a number between 0 and 1",
        ),
        (
            lambda: slice_differences([0] * 60, [0] * 60, [str(n) for n in range(60)]),
            "slices: there are 60 different ones",
        ),
        (lambda: win_rate([2], [0]), r"b_wins_second\[0\] must be a number in \[0, 1\], got 2"),
        (lambda: win_rate([1], [0, 1]), "b_wins_second and b_wins_first must be equally long"),
        (
            lambda: effective_votes({"x": [1]}, [1, 0]),
            r"scores\['x'\] and labels must be equally long, got 1 and 2",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    """And what is allowed."""
    with pytest.raises(ConfigError, match=message):
        call()


def judged(rng, good, sensitivity, specificity):
    return [float(rng.random() < (sensitivity if each else 1 - specificity)) for each in good]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("share_a", "share_b"), [(0.5, 0.5), (0.5, 0.65), (0.8, 0.7)])
def test_the_difference_of_shares_is_corrected_for_the_judges_errors(share_a, share_b):
    """Its 95 % interval covers the true difference in about 95 % of 200 worlds; the judge's own
    difference is too small.
    """
    rng, hits, raw = random.Random(f"{share_a}"), 0, []
    for _ in range(200):
        old = [rng.random() < 0.6 for _ in range(150)]
        a, b = (
            [rng.random() < share_a for _ in range(400)],
            [rng.random() < share_b for _ in range(400)],
        )
        sides = [judged(rng, each, 0.85, 0.75) for each in (old, a, b)]
        found = rogan_gladen_difference(list(map(float, old)), *sides)
        hits += found.interval[0] <= share_b - share_a <= found.interval[1]
        raw.append(fmean(sides[2]) - fmean(sides[1]))
    assert hits >= 0.91 * 200
    assert abs(fmean(raw)) <= 0.75 * abs(share_b - share_a) + 0.01
    with pytest.raises(
        ConfigError, match="verdicts_a and verdicts_b must be equally long, got 1 and 2"
    ):
        rogan_gladen_difference([1, 0], [1, 0], [1], [1, 0])
