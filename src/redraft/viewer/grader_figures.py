"""What the graders of a run say, over all rows: means, which criterion limits the rows, and how far
graders are apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from ..plans.quality.result_facts import TOLERANCE
from .index import RunIndex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]

MAX_PARTS = 200
MAX_PAIRED = 8  # graders that are compared with each other
FURTHEST = 5
VARIES = 1e-9  # a grader whose scores lie closer together does not vary


@dataclass(frozen=True, slots=True)
class PartFigures:
    """A grader or a criterion: mean scores of the first and the best answers, the share fully met,
    and the rows that it limits.
    """

    name: str
    rows: int
    first: float | None
    best: float | None
    met: float | None
    limits: int = 0

    @property
    def change(self) -> float | None:
        return None if self.first is None or self.best is None else self.best - self.first


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Two graders on the same best answers: mean absolute distance, Pearson correlation (None: one
    does not vary), and the rows where they are furthest apart, as pairs of number and ID.
    """

    a: str
    b: str
    rows: int
    distance: float
    correlation: float | None
    furthest: tuple[tuple[int, str], ...]


PARTS = """SELECT name, count(best), avg(CASE WHEN best IS NOT NULL THEN first END), avg(best), avg(best >= 1) FROM scores
WHERE kind = ? GROUP BY name ORDER BY name LIMIT ?"""  # noqa: E501
LIMITS = """SELECT name, count(*) FROM scores JOIN
(SELECT number, min(best) AS least FROM scores WHERE kind = 'criterion' GROUP BY number) USING (number)
WHERE kind = 'criterion' AND best <= least + ? AND best < 1 GROUP BY name"""  # noqa: E501
BEST = (
    "SELECT number, best FROM scores WHERE kind = 'grader' AND name = ? AND best IS NOT NULL "
    "ORDER BY number"
)
IDS = "SELECT number, id FROM rows WHERE number IN (SELECT value FROM json_each(?))"


def part_figures(index: RunIndex, kind: str) -> list[PartFigures]:
    """Return the figures of the graders, or of their criteria: kind "grader" or "criterion"."""
    limits = dict(index.read(LIMITS, TOLERANCE)) if kind == "criterion" else {}
    found = index.read(PARTS, kind, MAX_PARTS)
    return [
        PartFigures(name, rows, first, best, met, limits.get(name, 0))
        for name, rows, first, best, met in found
    ]


def pair_figures(index: RunIndex) -> list[PairFigures]:
    """Return how far each two graders are apart, the furthest first."""
    import numpy as np

    scores = {}
    for name in index.names("grader")[:MAX_PAIRED]:
        found = index.read(BEST, name)
        scores[name] = (
            np.array([number for number, _ in found], np.int64),
            np.array([best for _, best in found], np.float64),
        )
    pairs = [_pair(index, a, b, scores[a], scores[b]) for a, b in combinations(scores, 2)]
    return sorted((pair for pair in pairs if pair), key=lambda pair: -pair.distance)


def _pair(index: RunIndex, a: str, b: str, of_a: Scores, of_b: Scores) -> PairFigures | None:
    """Compare two graders by the numbers of the rows and their scores; None if they have no row in
    common.
    """
    import numpy as np

    numbers, in_a, in_b = np.intersect1d(of_a[0], of_b[0], assume_unique=True, return_indices=True)
    if not len(numbers):
        return None
    x, y = of_a[1][in_a], of_b[1][in_b]
    apart = np.abs(x - y)
    correlation = float(np.corrcoef(x, y)[0, 1]) if min(np.ptp(x), np.ptp(y)) > VARIES else None
    furthest = [
        int(numbers[place])
        for place in np.argsort(-apart, kind="stable")[:FURTHEST]
        if apart[place] > 0
    ]
    ids = dict(index.read(IDS, json.dumps(furthest)))
    return PairFigures(
        a,
        b,
        len(numbers),
        float(apart.mean()),
        correlation,
        tuple((n, ids[n]) for n in furthest if n in ids),
    )
