"""Strengths of several competitors, from comparisons of two of them at a time.

In the model of Bradley and Terry, i wins against j with the probability 1 / (1 + exp(s_j - s_i)). A
tie counts as half a win for each, so that the strengths explain how often one wins plus half of how
often it ties; the frequency of ties has no parameter of its own, as it has in Davidson's model
(1970). In a round robin, in which all meet equally often, the order of the strengths is that of the
shares of wins.

Comparisons of one row have answers and a judge in common, and are no independent games. So the
variance is that of the jackknife over clusters of rows, with one step of Newton's method for each
cluster that is left out, and Student's t. The observed information would take the comparisons as
independent, and ties as games with the spread of wins: `bench/leaderboard.py` compares how often
the intervals contain the truth.

Strengths exist only if each competitor has won something, directly or through others, against each
other one (Ford 1957). Where a competitor, or a group of them, won every comparison with the others,
the most likely difference is infinite; where nothing links two groups, it is unknown. Then each
group has strengths of its own. Needs `redraft[validate]`.

Sources: Bradley and Terry, "Rank analysis of incomplete block designs" (1952); Ford, "Solution of a
ranking problem from binary comparisons" (1957); Davidson, "On extending the Bradley-Terry model to
accommodate ties" (1970); MacKinnon, Nielsen and Webb, "Cluster-robust inference" (2023).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ...plans.quality.calibration import check_confidence
from .intervals import cluster_numbers, degrees_of_freedom, jackknife_variance, t_half_width
from .samples import finite_numbers, import_library

MIN_CLUSTERS = 5  # of comparisons of two competitors; fewer do not link them in an interval
MAX_STEP = 1.0  # by which a strength changes at once
STEPS = 100
NO_SLOPE = 1e-10  # relative to the largest second derivative: only differences are determined


@dataclass(frozen=True, slots=True)
class Strength:
    """The strength of a competitor: the logarithm of its odds against one of mean strength.

    Attributes:
        value: The strength, relative to the mean of its group; None for a group of one.
        interval: Its confidence interval; None if it is unknown, or too few rows link the group.
        group: The number of its group. Strengths of different groups cannot be compared.
    """

    value: float | None
    interval: tuple[float, float] | None
    group: int


def bradley_terry(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    shares: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> Mapping[Any, Strength]:
    """Return the strength of each competitor, in the order in which they appear.

    Args:
        first: One of the two that are compared, for each comparison.
        second: The other one.
        shares: What the first one won: 1, 0, or 0.5 for a tie; or a share between, such as the mean
            of several verdicts.
        clusters: The cluster of each comparison, such as its row. None: they are independent.
        confidence: The confidence of each interval, between 0 and 1.

    Raises:
        ConfigError: The lengths differ, there is no comparison, a share is not from 0 to 1, or a
            competitor meets itself.
    """
    check_confidence(confidence)
    won = finite_numbers("shares", shares, 0, 1)
    if not len(won) == len(first) == len(second) > 0:
        raise ConfigError(
            "first, second and shares must be equally long, and not empty, got "
            f"{len(first)}, {len(second)} and {len(won)}"
        )
    if same := [x for x, y in zip(first, second, strict=True) if x == y]:
        raise ConfigError(f"{same[0]!r} is compared with itself")
    np = import_library("numpy")
    places = {name: n for n, name in enumerate(dict.fromkeys([*first, *second]))}
    i, j = (np.array([places[name] for name in side]) for side in (first, second))
    numbers = cluster_numbers(clusters, len(won))
    wins = np.zeros((numbers.max() + 1, len(places), len(places)))
    np.add.at(wins, (numbers, i, j), won)
    np.add.at(wins, (numbers, j, i), 1 - np.array(won))
    groups = _components(wins.sum(0) > 0, "strong")
    found: dict[Any, Strength] = {}
    for group in range(max(groups) + 1):
        members = np.flatnonzero(groups == group)
        values, intervals = _fit(wins[:, members][:, :, members], confidence)
        for n, value, interval in zip(members, values, intervals, strict=True):
            found[n] = Strength(value, interval, group)
    return {name: found[n] for name, n in places.items()}


def _components(links: Any, connection: str) -> Any:
    """Return the number of the connected component of each node, as an array."""
    graphs = import_library("scipy.sparse.csgraph")
    return graphs.connected_components(links, connection=connection)[1]


def _fit(
    wins: Any, confidence: float
) -> tuple[list[float | None], list[tuple[float, float] | None]]:
    """Return the strengths of a group and their intervals, from who won how much against whom in
    each cluster.
    """
    np = import_library("numpy")
    count = wins.shape[1]
    if count == 1:
        return [None], [None]
    wins = wins[wins.any((1, 2))]
    strengths, total = np.zeros(count), wins.sum(0)
    slope, information = _derivatives(total, strengths)
    for _ in range(STEPS):
        step = np.linalg.pinv(information, NO_SLOPE, hermitian=True) @ slope
        largest = abs(step).max()
        strengths = strengths + step * min(1.0, MAX_STEP / largest if largest else 1.0)
        slope, information = _derivatives(total, strengths)
        if largest < 1e-10:
            break
    values: list[float | None] = strengths.tolist()
    met = ((wins + wins.swapaxes(1, 2)) > 0).sum(0)
    if _components(met >= MIN_CLUSTERS, "weak").any():
        return values, [None] * count
    slopes, parts = _derivatives(wins, strengths)
    without = np.linalg.pinv(information - parts, NO_SLOPE, hermitian=True)
    changes = (without @ slopes[:, :, None])[:, :, 0]
    freedom = degrees_of_freedom(wins.sum((1, 2)))
    halves = [t_half_width(jackknife_variance(c), freedom, confidence) for c in changes.T]
    ends = [(float(s - half), float(s + half)) for s, half in zip(strengths, halves, strict=True)]
    return values, list(ends)


def _derivatives(wins: Any, strengths: Any) -> tuple[Any, Any]:
    """Return the derivative of the log likelihood by the strengths, and its negative second
    derivative; of each cluster, if `wins` has a table for each.
    """
    np = import_library("numpy")
    met = wins + wins.swapaxes(-1, -2)
    expected = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
    weights = met * expected * (1 - expected)
    diagonal = np.eye(len(strengths)) * weights.sum(-1)[..., None]
    return (wins - met * expected).sum(-1), diagonal - weights
