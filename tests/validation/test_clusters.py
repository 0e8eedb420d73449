"""Means over clusters: the variance is that of a jackknife by hand, the degrees of freedom those of
the matrix, and both hold up.
"""

from math import inf
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redraft.validation import paired_difference, ppi_mean
from redraft.validation.statistics import prediction
from redraft.validation.statistics.intervals import (
    cluster_numbers,
    cluster_sums,
    clustered_mean,
    degrees_of_freedom,
)

VALUES = st.floats(-5, 5).map(lambda x: round(x, 2))
ROWS = st.lists(st.tuples(VALUES, VALUES, st.integers(0, 6)), min_size=4, max_size=30).filter(
    lambda rows: len({r[2] for r in rows}) > 1
)


def without(cluster, *columns, clusters):
    kept = [n for n, each in enumerate(clusters) if each != cluster]
    return [[column[n] for n in kept] for column in columns]


@given(ROWS)
def test_the_variance_of_a_mean_is_that_of_a_jackknife(rows):
    """Leave out one cluster at a time, and see by how much the mean changes."""
    values, _, clusters = zip(*rows, strict=True)
    found = clustered_mean(*cluster_sums(cluster_numbers(clusters, len(values)), values))
    means = [np.mean(without(cluster, values, clusters=clusters)[0]) for cluster in set(clusters)]
    k = len(means)
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert found.variance == pytest.approx(
        (k - 1) / k * sum((mean - found.value) ** 2 for mean in means), abs=1e-9
    )
    assert 0 < found.degrees_of_freedom <= k - 1 + 1e-9


@given(ROWS, st.lists(VALUES, min_size=6, max_size=20))
def test_the_error_of_an_estimate_includes_that_of_the_weight(rows, others):
    """Leave out one cluster at a time, labelled or not, and estimate again with a weight of its
    own.
    """
    labels, scores, clusters = zip(*rows, strict=True)
    other_clusters = [10 + n % 3 for n in range(len(others))]

    def estimate(labelled, others):
        labels, scores, clusters = labelled
        return ppi_mean(labels, scores, others[0], clusters=clusters, unlabelled_clusters=others[1])

    with patch.object(prediction, "MAX_WIDTH", inf):  # also where the labels alone are narrower
        check_error_of_an_estimate(estimate, (labels, scores, clusters), (others, other_clusters))


def check_error_of_an_estimate(estimate, every, every_other):
    clusters, other_clusters = every[2], every_other[1]
    found = estimate(every, every_other)
    less = [without(cluster, *every, clusters=clusters) for cluster in set(clusters)]
    assume(found.judge_weight and all(len(set(each[0])) > 1 for each in less))
    by_labels = [estimate(each, every_other).value for each in less]
    by_others = [
        estimate(every, without(cluster, *every_other, clusters=other_clusters)).value
        for cluster in set(other_clusters)
    ]
    variance = sum(
        (len(values) - 1) / len(values) * sum((value - found.value) ** 2 for value in values)
        for values in (by_labels, by_others)
    )
    assert found.standard_error == pytest.approx(variance**0.5, rel=1e-6, abs=1e-9)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=12))
def test_degrees_of_freedom_are_those_of_the_matrix(sizes):
    """Written out: the fewer of independent rows and of clusters whose rows are alike; k - 1 for
    equal sizes.
    """
    shares, k = np.array(sizes) / sum(sizes), len(sizes)
    centre = np.diag(1 / (1 - shares)) @ (np.eye(k) - np.outer(shares, np.ones(k)))
    found = []
    for power in (1, 2):
        form = centre @ np.diag(np.array(sizes, float) ** power) @ centre.T
        found.append(np.trace(form) ** 2 / np.trace(form @ form))
    assert degrees_of_freedom(np.array(sizes, float)) == pytest.approx(min(found))
    assert degrees_of_freedom(np.full(k, 3.0)) == k - 1


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("alike", [0.0, 0.5, 0.95])
@pytest.mark.parametrize(("k", "sizes"), [(6, (3, 6)), (10, (1, 20)), (20, (3, 6))])
def test_few_clusters_of_unequal_sizes_are_covered(k, sizes, alike):
    """A 95 % interval of no difference excludes 0 in at most 5 % of 400 worlds, however alike the
    rows of a cluster are.
    """
    rng = np.random.default_rng(k)
    wrong = 0
    for _ in range(400):
        clusters = np.repeat(np.arange(k), rng.integers(*sizes, k))
        values = np.sqrt(alike) * rng.normal(size=k)[clusters] + np.sqrt(1 - alike) * rng.normal(
            size=len(clusters)
        )
        wrong += (
            paired_difference(
                [0.0] * len(values), values.tolist(), clusters=clusters.tolist()
            ).verdict
            != "undecided"
        )
    assert wrong <= 0.05 * 400 + 3 * (0.05 * 0.95 * 400) ** 0.5


@pytest.mark.slow
def test_eight_labelled_clusters_are_covered():
    """With as few clusters, a weight that is taken for known would make the interval too narrow: it
    covers about 95 % of worlds.
    """
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(400):
        clusters = np.repeat(np.arange(108), 6)
        quality = 0.3 * rng.normal(size=108)[clusters] + 0.3 * rng.normal(size=648)
        scores = quality + 0.2 * rng.normal(size=108)[clusters] + 0.3 * rng.normal(size=648)
        columns = [column.tolist() for column in (quality[:48], scores[:48], scores[48:])]
        low, high = ppi_mean(
            *columns, clusters=clusters[:48].tolist(), unlabelled_clusters=clusters[48:].tolist()
        ).interval
        hits += low <= 0 <= high
    assert 0.93 * 400 <= hits <= 0.985 * 400
