"""Strengths by Bradley and Terry: known values, ties, groups without a finite difference, and
intervals that contain the truth as often as they say.
"""

from itertools import combinations
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.errors import ConfigError
from redraft.validation import bradley_terry


def games(table):
    """Return games from a mapping of pairs to the wins of each side: {"ab": (3, 1)}."""
    rows = [
        (pair[0], pair[1], share)
        for pair, (won, lost) in table.items()
        for share in [1] * won + [0] * lost
    ]
    return zip(*rows, strict=True)


@pytest.mark.parametrize(("won", "lost"), [(1, 1), (3, 1), (9, 2), (50, 100)])
def test_two_competitors_have_the_odds_of_their_games(won, lost):
    """The difference is the logarithm of wins over losses, half of it on each side of 0."""
    found = bradley_terry(*games({"ab": (won, lost)}))
    assert found["a"].value - found["b"].value == pytest.approx(log(won / lost))
    assert found["a"].value + found["b"].value == pytest.approx(0, abs=1e-9)


def test_three_competitors_of_a_textbook():
    """The strengths explain the wins: of each, the expected wins are the observed ones (the
    equations of the most likely strengths).
    """
    table = {"ab": (7, 3), "bc": (6, 4), "ac": (8, 2)}
    found = bradley_terry(*games(table))
    expected = dict.fromkeys("abc", 0.0)
    for (x, y), (won, lost) in table.items():
        chance = 1 / (1 + exp(found[y].value - found[x].value))
        expected[x] += (won + lost) * chance
        expected[y] += (won + lost) * (1 - chance)
    assert expected == pytest.approx({"a": 15, "b": 9, "c": 6})
    assert [found[name].group for name in "abc"] == [0, 0, 0]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 64).map(lambda n: n / 64),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_sides_and_order_do_not_matter(rows):
    """A game told from the other side, and games in another order, give the same strengths; those
    of a group sum to 0, and are finite.
    """
    rows = [row for row in rows if row[0] != row[1]] or [(0, 1, 0.5)]
    there = bradley_terry(*zip(*rows, strict=True))
    back = bradley_terry(*zip(*[(y, x, 1 - s) for x, y, s in reversed(rows)], strict=True))
    sums = {}
    for name, found in there.items():
        assert (found.value is None) == (back[name].value is None)
        if found.value is not None:
            assert found.value == pytest.approx(back[name].value, abs=1e-5)
            assert abs(found.value) < 40
            sums[found.group] = sums.get(found.group, 0) + found.value
    assert all(total == pytest.approx(0, abs=1e-6) for total in sums.values())


@pytest.mark.parametrize(
    ("table", "groups", "finite"),
    [
        ({"ab": (5, 0)}, 2, ""),  # one won everything
        ({"ab": (5, 0), "bc": (5, 0), "ca": (5, 0)}, 1, "abc"),  # a cycle
        ({"ab": (4, 1), "cd": (1, 4)}, 2, "abcd"),  # nothing links the two
        ({"ab": (4, 1), "ac": (9, 0), "bd": (9, 0), "cd": (3, 2)}, 2, "abcd"),  # two levels
        ({"ab": (4, 1), "ac": (9, 0), "bc": (9, 0)}, 2, "ab"),  # one lost everything
    ],
)
def test_no_infinite_difference_is_told_as_a_number(table, groups, finite):
    """Competitors between whom one side won everything, or who never met, are in groups of their
    own; a group of one has no strength.
    """
    found = bradley_terry(*games(table))
    assert len({each.group for each in found.values()}) == groups
    assert {name for name, each in found.items() if each.value is not None} == set(finite)
    assert all(abs(each.value) < 5 for each in found.values() if each.value is not None)


def test_few_games_that_link_two_groups_give_no_interval():
    """The strengths are the most likely ones, and how uncertain they are is unknown."""
    table = {"ab": (10, 10), "cd": (10, 10), "bc": (1, 1)}
    found = bradley_terry(*games(table))
    assert len({each.group for each in found.values()}) == 1
    assert {each.interval for each in found.values()} == {None}
    linked = bradley_terry(*games({**table, "bc": (3, 3)}))
    assert all(each.interval for each in linked.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], ["b"], [2]), "shares"),
        ((["a"], ["b", "c"], [1]), "equally long"),
        (([], [], []), "not empty"),
        ((["a"], ["a"], [1]), "'a' is compared with itself"),
    ],
)
def test_wrong_games(arguments, message):
    """An error names what is wrong."""
    with pytest.raises(ConfigError, match=message):
        bradley_terry(*arguments)


def play(rng, strengths, rows, shared, tie):
    """Return games of all pairs on each row, in both orders. `shared` is the spread of the quality
    of an answer, which all its games have in common; verdicts within `tie` are ties.
    """
    quality = strengths + shared * rng.gumbel(size=(rows, len(strengths)))
    played = []
    for i, j in combinations(range(len(strengths)), 2):
        orders = [
            quality[:, i] - quality[:, j] + rng.logistic(size=rows) * 0.7 + bias
            for bias in (-0.3, 0.3)
        ]
        verdicts = [np.where(abs(each) < tie, 0.5, each > 0) for each in orders]
        shares = (verdicts[0] + verdicts[1]) / 2
        played += [(i, j, share, n) for n, share in enumerate(shares)]
    return list(zip(*played, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rows", "spread", "shared", "tie"),
    [(3, 20, 0.5, 1, 0.3), (4, 50, 0.8, 0, 0.3), (5, 30, 0.8, 1, 0.5), (3, 30, 1.5, 1, 0)],
)
def test_intervals_contain_the_truth_as_often_as_they_say(count, rows, spread, shared, tie):
    """In 95 % of cases, within what chance allows in 200 repetitions, also if the games of a row
    are not independent, which makes them too narrow without clusters.
    """
    strengths = np.linspace(-spread, spread, count)
    *many, _ = play(np.random.default_rng(10**6), strengths, 10_000, shared, tie)
    truth = bradley_terry(*many)
    hits = []
    for seed in range(200):
        *played, clusters = play(np.random.default_rng(seed), strengths, rows, shared, tie)
        for name, found in bradley_terry(*played, clusters=clusters).items():
            if found.interval:
                hits.append(found.interval[0] <= truth[name].value <= found.interval[1])
    assert len(hits) > 190 * count
    assert 0.92 <= np.mean(hits) <= 0.98
