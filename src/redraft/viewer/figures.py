"""What is summed up from the index of a run, also while a batch runs: its overview, its graders,
and two runs on the same rows.

The sums of a run are those of a batch's report. Runs are compared as `redraft compare` does it: the
statistics and the words are those of `comparison`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any, TypeAlias

from ..base.checks import format_value
from ..comparison.estimates import ComparisonSettings, PairedScores, build_report
from ..comparison.report import ComparisonReport
from ..comparison.results import ResultPair, ResultRow, RunResults, pair_results
from ..plans.quality.result_facts import TOLERANCE
from ..validation.statistics import PairedDifference, paired_difference
from .index import RowPage, RunIndex
from .rows import RowQuery

Z = 1.959964  # two-sided 95% of a normal distribution
GRID = 20  # parts of the range of a score, in the plot of two scores of each row
MAX_KINDS = 12  # stop reasons, and kinds of errors, that are listed
MAX_NAMES = 12  # requirements that are listed
EXAMPLES = 5  # rows of a group that the overview shows


Cells: TypeAlias = Mapping[tuple[int, int], int]
"""How many rows have two scores in these parts of the range, from 0 to GRID - 1."""


# ---- the overview


@dataclass(frozen=True, slots=True)
class UpliftFigures:
    """The mean of best - first score over the rows with both (None: there is none), and its 95%
    interval.

    The interval is that of the normal approximation; None for fewer than two rows.
    """

    scored: int
    uplift: float | None
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Whether the scores rose: "better", "worse", "undecided" (the interval has both),
        "unchanged" (each row has two equal scores), "one" row, or "unknown".
        """
        if self.interval is None:
            return "one" if self.scored else "unknown"
        low, high = self.interval
        if max(-low, high) <= TOLERANCE:
            return "unchanged"
        return "better" if low > 0 else "worse" if high < 0 else "undecided"


@dataclass(frozen=True, slots=True)
class Amount:
    """What the rows that ended or began used: the sum, the number of rows that it is of, and the
    number of those that do not say it.
    """

    known: float
    rows: int
    missing: int

    @property
    def mean(self) -> float | None:
        """The mean over all of these rows; None if a row does not say it, or there is none."""
        return None if self.missing or not self.rows else self.known / self.rows

    @property
    def total(self) -> float | None:
        """The sum over all rows; None if a row does not say it."""
        return None if self.missing else self.known


@dataclass(frozen=True, slots=True)
class IterationFigures:
    """One iteration over all rows that had it. `gain`: its mean gain. `score`: the mean best score
    after it of all rows with a first and a best score; a row that ended earlier keeps its score.
    None: unknown. A point is a gain of 0.01, summed over rows.
    """

    n: int
    rows: int
    score: float | None
    gain: float | None
    calls: int
    cost: float | None
    calls_per_point: float | None
    usd_per_point: float | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of error, or a requirement that is not met: how many rows have it, and the first of
    them.
    """

    name: str
    rows: int
    number: int
    id: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class RunFigures(UpliftFigures):
    """What a person looks for first in a run. None: unknown. A point is a gain of 0.01, summed over
    rows.

    `cells` counts the rows by their first and their best score. `gains` are the rows that improved
    most, `losses` those with the lowest later answer. `bases` counts the rows by what stands behind
    their scores. `met_more` counts the rows that improved without a higher score: their best answer
    meets more requirements than the first. `requiring` counts the rows with requirements.
    """

    rows: int
    done: int
    failed: int
    open: int
    broken: int
    met_more: int
    requiring: int
    mean_first: float | None
    mean_best: float | None
    changes: Mapping[str, int]
    calls: Amount
    tokens: Amount
    cost: Amount
    seconds: Amount
    stops: Mapping[str, int]
    bases: Mapping[str, int]
    errors: tuple[Problem, ...]
    requirements: tuple[Problem, ...]
    cells: Cells
    gains: RowPage
    losses: RowPage
    by_iteration: tuple[IterationFigures, ...]

    def per_point(self, total: float | None) -> float | None:
        """Return how much of a total one point cost; None if unknown or nothing was gained."""
        points = 100 * (self.uplift or 0.0) * self.scored
        return total / points if total is not None and points > 1e-9 else None


GAINS = RowQuery(sort="uplift", descending=True, change="improved")
LOSSES = RowQuery(sort="loss", descending=True, change="worse")
UPLIFT = "SELECT count(uplift), avg(uplift), sum(uplift), sum(uplift * uplift) FROM rows WHERE "
COUNTS = """SELECT count(*), total(status = 'done'), total(status = 'failed'),
total(status = 'open'), total(broken), total(improved AND uplift <= 1e-9),
total(musts), total(uplift IS NOT NULL AND improved),
total(uplift IS NOT NULL AND unsure),
total(uplift IS NOT NULL AND worse AND NOT (improved OR unsure)) FROM rows"""
MEANS = "SELECT avg(first), avg(best) FROM rows WHERE uplift IS NOT NULL"
AMOUNT = """SELECT total({column}) AS known, count({column}) AS rows,
count(*) - count({column}) AS missing FROM rows
WHERE status != 'open' OR calls > 0 OR {column} > 0"""
BY_VALUE = """SELECT {column}, count(*) FROM rows WHERE {column} != ''
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?"""
# beside min(number), SQLite takes the other columns from the row with this number
ERRORS = """SELECT error_kind AS name, count(*) AS rows, min(number) AS number, id,
error AS message FROM rows WHERE error_kind NOT IN ('', 'not_started')
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?"""
REQUIREMENTS = """SELECT name, count(*) AS rows, min(number) AS number, id
FROM scores JOIN rows USING (number) WHERE kind = 'must' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?"""
FIRST_AND_BEST = """SELECT min(:last, CAST(first * :n + 1e-9 AS INTEGER)),
min(:last, CAST(best * :n + 1e-9 AS INTEGER)), count(*) FROM rows
WHERE uplift IS NOT NULL GROUP BY 1, 2"""
# a row that ended has no further gains, so that the sum of all gains keeps its score
BY_ITERATION = """SELECT n, rows, gain, calls, cost,
min(1.0, sum(risen) OVER (ORDER BY n) / sum(begun) OVER (ORDER BY n)) AS score,
CASE WHEN points > 1e-9 THEN calls / points END AS calls_per_point,
CASE WHEN points > 1e-9 THEN cost / points END AS usd_per_point FROM (
SELECT n, count(*) AS rows, avg(score - before) AS gain, sum(i.calls) AS calls,
CASE WHEN count(i.cost) = count(*) THEN sum(i.cost) END AS cost,
100 * total(score - before) AS points,
total(CASE WHEN uplift IS NOT NULL THEN score - coalesce(before, 0) END) AS risen,
total(uplift IS NOT NULL AND score IS NOT NULL AND before IS NULL) AS begun
FROM iterations AS i JOIN rows USING (number) GROUP BY n) ORDER BY n LIMIT 50"""


def uplift_figures(index: RunIndex, query: RowQuery = RowQuery()) -> UpliftFigures:
    """Return the uplift of the rows that a query lists."""
    n, mean, total, squares = index.read(UPLIFT + query.condition, **query.values)[0]
    if n < 2:
        return UpliftFigures(n, mean, None)
    half = Z * sqrt(max(0.0, squares - mean * total) / (n - 1) / n)
    return UpliftFigures(n, mean, (max(-1.0, mean - half), min(1.0, mean + half)))


def run_figures(index: RunIndex) -> RunFigures:
    """Return the figures of all rows."""
    change = uplift_figures(index)
    rows, done, failed, still_open, broken, met_more, requiring, *changes = map(
        int, index.read(COUNTS)[0]
    )
    mean_first, mean_best = index.read(MEANS)[0]
    improved, unsure, worse = changes
    unchanged = change.scored - sum(changes)
    cells = index.read(FIRST_AND_BEST, n=GRID, last=GRID - 1)
    calls, tokens, cost, seconds = (
        index.read_as(Amount, AMOUNT.format(column=column))[0]
        for column in ("calls", "tokens", "cost", "seconds")
    )
    return RunFigures(
        change.scored,
        change.uplift,
        change.interval,
        rows,
        done,
        failed,
        still_open,
        broken,
        met_more,
        requiring,
        mean_first,
        mean_best,
        {"improved": improved, "unsure": unsure, "unchanged": unchanged, "worse": worse},
        calls,
        tokens,
        cost,
        seconds,
        dict(index.read(BY_VALUE.format(column="stop"), MAX_KINDS)),
        dict(index.read(BY_VALUE.format(column="basis"), MAX_KINDS)),
        tuple(index.read_as(Problem, ERRORS, MAX_KINDS)),
        tuple(index.read_as(Problem, REQUIREMENTS, MAX_NAMES)),
        {(first, best): count for first, best, count in cells},
        index.page(GAINS, 0, EXAMPLES),
        index.page(LOSSES, 0, EXAMPLES),
        tuple(index.read_as(IterationFigures, BY_ITERATION)),
    )


# ---- graders

MAX_PARTS = 200
MAX_PAIRED = 8  # graders that are compared with each other
MAX_FURTHEST = 5
VARIES = 1e-12  # a grader whose scores have a smaller variance does not vary


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
PAIRS = """FROM scores AS a JOIN scores AS b
ON b.kind = 'grader' AND b.name = :b AND b.number = a.number AND b.best IS NOT NULL
WHERE a.kind = 'grader' AND a.name = :a AND a.best IS NOT NULL"""
MOMENTS = f"""SELECT count(*), avg(abs(a.best - b.best)), avg(a.best), avg(b.best),
avg(a.best * b.best), avg(a.best * a.best), avg(b.best * b.best) {PAIRS}"""
FURTHEST = f"""SELECT number, id FROM rows WHERE number IN (SELECT a.number {PAIRS}
AND a.best != b.best ORDER BY abs(a.best - b.best) DESC, a.number LIMIT :limit)"""  # noqa: S608


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
    names = index.names("grader")[:MAX_PAIRED]
    pairs = [_pair(index, a, b) for a, b in combinations(names, 2)]
    return sorted((pair for pair in pairs if pair.rows), key=lambda pair: -pair.distance)


def _pair(index: RunIndex, a: str, b: str) -> PairFigures:
    """Compare two graders on the rows that both have scored."""
    rows, distance, mean_a, mean_b, *products = index.read(MOMENTS, a=a, b=b)[0]
    if not rows:
        return PairFigures(a, b, 0, 0.0, None, ())
    both, of_a, of_b = products
    variances = (of_a - mean_a**2, of_b - mean_b**2)
    correlation = None
    if min(variances) > VARIES:
        correlation = (both - mean_a * mean_b) / sqrt(variances[0] * variances[1])
    furthest = index.read(FURTHEST, a=a, b=b, limit=MAX_FURTHEST)
    return PairFigures(a, b, rows, distance, correlation, tuple(furthest))


# ---- two runs

MOVERS = 10
COMPARED_METADATA = ("model", "mode", "shape", "source")


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row in both runs: its number and its best score in each."""

    id: str
    first_number: int
    second_number: int
    first: float
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def win(self) -> float:
        """1 if the second run has the higher score, 0 if the first one has it, one half for a
        tie.
        """
        if abs(self.difference) <= TOLERANCE:
            return 0.5
        return 1.0 if self.difference > 0 else 0.0

    @classmethod
    def of(cls, pair: ResultPair) -> RowDifference:
        """Return the difference of a pair with both scores."""
        numbers = (pair.a.values["number"], pair.b.values["number"])
        return cls(pair.key, *numbers, float(pair.a.score or 0.0), float(pair.b.score or 0.0))


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The second run (B) against the first (A).

    `report` is that of `redraft compare`. The `mean_b` of `won` is the share of rows that B wins,
    ties half. `gains` and `drops` are the rows that changed most, `cells` counts the rows by their
    two scores.
    """

    report: ComparisonReport
    won: PairedDifference
    gains: tuple[RowDifference, ...]
    drops: tuple[RowDifference, ...]
    cells: Cells

    @property
    def verdict_class(self) -> str:
        return {"better": "up", "worse": "down"}.get(self.report.verdict, "level")

    @property
    def won_interval(self) -> tuple[float, float] | None:
        """The interval of the share of rows that B wins."""
        interval = self.won.interval
        return (
            None if interval is None else (max(0.0, 0.5 + interval[0]), min(1.0, 0.5 + interval[1]))
        )


def compare_runs(first: RunIndex, second: RunIndex, names: tuple[str, str]) -> RunComparison:
    """Compare two runs by the best score of each row. Raises ConfigError if they have no row in
    common with two scores.
    """
    paired = pair_results(
        *(_results(index, name) for index, name in zip((first, second), names, strict=True))
    )
    unsorted = [RowDifference.of(pair) for pair in paired.pairs]
    rows = sorted(unsorted, key=lambda row: row.difference)
    wins = [row.win for row in unsorted]
    clusters = PairedScores(paired.pairs, ComparisonSettings()).clusters
    return RunComparison(
        build_report(paired),
        paired_difference([0.5] * len(wins), wins, clusters=clusters),
        tuple(row for row in reversed(rows[-MOVERS:]) if row.win == 1),
        tuple(row for row in rows[:MOVERS] if row.win == 0),
        Counter((_cell(row.first), _cell(row.second)) for row in rows),
    )


def _cell(score: float) -> int:
    """Return in which part of the range a score is."""
    return min(GRID - 1, max(0, int(score * GRID + 1e-9)))


def _results(index: RunIndex, name: str) -> RunResults:
    """Return the rows of a run as results; hashes stand for the answers."""
    found = index.read("SELECT number, id, task, best, answer FROM rows ORDER BY position, number")
    rows = [
        ResultRow(id, task, best, answer or None, {"number": number})
        for number, id, task, best, answer in found
    ]
    return RunResults(name, "redraft", rows, "best_score")


def settings_difference(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Return the settings that differ in the metadata of two runs: name, first value, second value.

    Journals record most settings as digests, so that only whether they differ is known.
    """
    a, b = _settings(first), _settings(second)
    return [
        (name, a.get(name, "not set"), b.get(name, "not set"))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _settings(metadata: Mapping[str, Any]) -> dict[str, str]:
    settings = {
        name: str(metadata[name]) for name in COMPARED_METADATA if metadata.get(name) is not None
    }
    parts: Mapping[str, Any] = next(reversed(metadata.get("settings", {}).values()), {})
    return settings | {str(name): format_value(value, 200) for name, value in parts.items()}
