"""What votes add up to: means, medians and rankings against numpy and a count of majorities, and
properties of them.
"""

import random
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from each_row import each_row
from redraft.base.sync import run_sync
from redraft.errors import ConfigError, GradingError
from redraft.graders import FunctionGrader
from redraft.graders.base import consensus, copeland
from redraft.graders.composite import Jury, Minimum, RankingJury, WeightedMean
from redraft.graders.judging.expectation import (
    MAX_COVERED,
    MIN_COVERED,
    NoExpectation,
    expected_score,
)
from redraft.graders.reward import MIN_SAMPLE, fit_logistic, logistic
from redraft.loop.records import Candidate, Comparison, Feedback
from redraft.loop.task import Task
from redraft.session.perform import StepClient

NAMES = [FunctionGrader(lambda text: 1.0, f"f{n}") for n in range(7)]
SCORES = st.lists(
    st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]) | st.floats(0, 1), min_size=1, max_size=7
)


def votes_of(scores):
    return [Feedback(score, grader=f"f{n}") for n, score in enumerate(scores)]


def majority(scores):
    """1 if more than half reach one half, 0 if fewer do, 0.5 at a tie."""
    reach = sum(score >= 0.5 for score in scores)
    return 0.5 + 0.5 * np.sign(2 * reach - len(scores))


AGGREGATIONS = {
    "mean": np.mean,
    "median": np.median,
    "majority": majority,
    "trimmed": lambda scores: (
        np.mean(scores) if len(scores) < 3 else stats.trim_mean(scores, 1 / len(scores) + 1e-9)
    ),
}


@pytest.mark.parametrize("how", AGGREGATIONS)
@settings(max_examples=20)
@given(scores=SCORES)
def test_a_jury_is_numpy(how, scores):
    """In any order of the votes; votes that fail or are critiques are no part of the score."""
    due = float(AGGREGATIONS[how](scores))
    jury = Jury(NAMES, how, 1)
    for order in (scores, scores[::-1], sorted(scores)):
        assert jury.aggregate_votes(votes_of(order)).score == pytest.approx(due)
    critique = Feedback(actions=("more",), grader="critic")
    assert jury.aggregate_votes([*votes_of(scores), critique]).score == pytest.approx(due)


@pytest.mark.parametrize(("threshold", "score"), [(0.5, 1.0), (0.51, 0.5), (0.7, 0.5), (0.71, 0.0)])
def test_the_threshold_of_a_majority_passes(threshold, score):
    """A score that equals it is a vote to pass."""
    assert (
        Jury(NAMES[:2], "majority", pass_threshold=threshold)
        .aggregate_votes(votes_of([0.5, 0.7]))
        .score
        == score
    )


@each_row("count", range(1, 6))
@each_row("members", range(1, 6))
def test_the_quorum_is_more_than_half(members, count):
    """Of the members; or the number that was given."""
    if count > members:
        return
    jury, votes = (
        Jury(NAMES[:members]),
        [*votes_of([0.5] * count), *[Feedback(grader="f")] * (members - count)],
    )
    if 2 * count > members:
        assert jury.aggregate_votes(votes).score == 0.5
    else:
        with pytest.raises(GradingError):
            jury.aggregate_votes(votes)
    assert Jury(NAMES[:members], "mean", count).aggregate_votes(votes).score == 0.5


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 50)), min_size=1, max_size=6))
def test_a_weighted_mean_is_numpy(rows):
    """`numpy.average` with the weights; the lowest score for a minimum; each part is a criterion
    with its weight.
    """
    parts = [
        (FunctionGrader(lambda text, score=score: score, f"f{n}"), weight)
        for n, (score, weight) in enumerate(rows)
    ]
    scores, weights = zip(*rows, strict=True)

    def grade(grader):
        return run_sync(grader.grade(Task("q"), Candidate(0, "a"), StepClient(None)))

    found = grade(WeightedMean(parts))
    assert found.score == pytest.approx(float(np.average(scores, weights=weights)))
    assert [(c.name, c.score, c.weight) for c in found.criteria] == [
        (f"f{n}", *row) for n, row in enumerate(rows)
    ]
    assert grade(Minimum([part for part, _ in parts])).score == min(scores)
    assert grade(
        WeightedMean([(part, 3 * weight) for part, weight in parts])
    ).score == pytest.approx(found.score)


def comparison_of(places):
    """The comparison of candidates 0, 1, ... that have these places; equal places are a tie."""
    order = sorted(range(len(places)), key=places.__getitem__)
    ties = [
        tuple(i for i in order if places[i] == place) for place in dict.fromkeys(sorted(places))
    ]
    return Comparison(tuple(order), ties=tuple(group for group in ties if len(group) > 1))


def points_by_matrix(votes, count):
    """Copeland's points by a matrix of majorities."""
    ahead = np.zeros((count, count))
    for places in votes:
        # row i, column j: whether i is before j
        ahead += np.sign(np.subtract.outer(places, places).T)
    return (np.sign(ahead) + 1).sum(1) / 2 - 0.5


@settings(max_examples=40)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=1, max_size=5
        )
    )
)
def test_a_ranking_by_majorities(votes):
    """Points are those of a matrix; equal points tie; the order of the votes does not matter, and
    twice the votes change nothing.
    """
    count = len(votes[0])
    comparisons = [comparison_of(places) for places in votes]
    points = points_by_matrix(votes, count)
    ranking, ties = copeland(comparisons)
    assert sorted(ranking) == list(range(count))
    assert [points[i] for i in ranking] == sorted(points, reverse=True)
    assert {frozenset(group) for group in ties} == {
        frozenset(np.flatnonzero(points == value).tolist())
        for value in set(points)
        if (points == value).sum() > 1
    }
    assert copeland(comparisons[::-1]) == copeland([*comparisons, *comparisons]) == (ranking, ties)
    backwards = copeland([comparison_of([-place for place in places]) for places in votes])
    assert [points[i] for i in backwards[0]] == sorted(points)
    assert RankingJury(["ranker"], 1).aggregate_votes(comparisons).ranking == ranking


def test_a_ranking_with_known_points():
    """The example of a majority cycle under a loser, and of a winner against each other
    candidate.
    """
    cycle = [Comparison(order) for order in ((0, 1, 2, 3), (1, 2, 0, 3), (2, 0, 1, 3))]
    assert copeland(cycle) == ((0, 1, 2, 3), ((0, 1, 2),))
    tennessee = [
        Comparison(order)
        for order, n in (
            ((0, 1, 2, 3), 42),
            ((1, 2, 3, 0), 26),
            ((2, 3, 1, 0), 15),
            ((3, 2, 1, 0), 17),
        )
        for _ in range(n)
    ]
    assert copeland(tennessee) == ((1, 2, 3, 0), ())  # Nashville, Chattanooga, Knoxville, Memphis
    assert copeland([]) == ((), ())
    assert copeland([Comparison((4,))]) == ((4,), ())
    # pairs that nobody compared are ties
    partial = [Comparison((0, 1)), Comparison((1, 2)), Comparison((2, 3))]
    assert copeland(partial) == ((0, 1, 2, 3), ((1, 2),))


@each_row("values", [v for n in range(4) for v in {*permutations([True, False, None, True], n)}])
def test_consensus(values):
    """True if all known values are, None if none is known."""
    known = [value for value in values if value is not None]
    assert consensus(values) == (None if not known else min(known))


@settings(max_examples=20)
@given(st.dictionaries(st.integers(0, 10), st.floats(0.01, 1), min_size=1), st.floats(0.81, 1))
def test_an_expected_score_is_the_mean_by_probability(weights, covered):
    """By numpy, with the sum of the probabilities, which may be a little less than 1."""
    total = sum(weights.values())
    weights = {value: share / total * covered for value, share in weights.items()}
    found = expected_score(weights)
    assert found == pytest.approx(
        (np.average(list(weights), weights=list(weights.values())), covered)
    )


@pytest.mark.parametrize(
    ("sums", "ends"),
    [((MIN_COVERED, MAX_COVERED), True), ((MIN_COVERED - 1e-6, MAX_COVERED + 1e-6), False)],
)
def test_probabilities_that_say_nothing(sums, ends):
    """Too little of the probability, or more than 1: there is no expectation; the ends of the range
    are one.
    """
    for total in sums:
        if ends:
            assert expected_score({1: total}) == (1.0, min(total, 1.0))
        else:
            with pytest.raises(NoExpectation):
                expected_score({1: total})


def test_raw_rewards_on_a_logistic_curve():
    """`scipy.stats.logistic`, with the median and the quartiles of numpy, which become 0.25 and
    0.75 if they are even.
    """
    for x in (-800.0, -30.0, -1.0, 0.0, 0.5, 30.0, 800.0):
        assert logistic(x) == pytest.approx(stats.logistic.cdf(x), abs=1e-12)
    rng = random.Random(1)
    for n in (MIN_SAMPLE, MIN_SAMPLE + 1, 50, 51):
        raw = [rng.gauss(3, 2) for _ in range(n)]
        low, middle, high = np.percentile(raw, [25, 50, 75])
        assert (
            fit_logistic(raw)
            == fit_logistic(raw[::-1])
            == pytest.approx((middle, (high - low) / 2 / np.log(3)))
        )
    centre, scale = fit_logistic(range(21))
    assert [logistic((raw - centre) / scale) for raw in (5, 10, 15)] == pytest.approx(
        [0.25, 0.5, 0.75]
    )
    for wrong in ([1.0] * MIN_SAMPLE, list(range(MIN_SAMPLE - 1)), [], [float("nan")] * MIN_SAMPLE):
        with pytest.raises(ConfigError):
            fit_logistic(wrong)
