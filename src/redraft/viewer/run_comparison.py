"""Two runs on the same rows, as `redraft compare` compares them: the statistics and the words are
those of `comparison`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..base.checks import format_value
from ..comparison.estimates import ComparisonSettings, PairedScores, build_report
from ..comparison.report import ComparisonReport
from ..comparison.results import ResultPair, ResultRow, RunResults, pair_results
from ..plans.quality.result_facts import TOLERANCE
from ..validation.statistics import PairedDifference, paired_difference
from .figures import BINS
from .index import RunIndex

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

    @classmethod
    def of(cls, pair: ResultPair) -> RowDifference:
        """Return the difference of a pair with both scores."""
        numbers = (pair.a.values["number"], pair.b.values["number"])
        return cls(pair.key, *numbers, float(pair.a.score or 0.0), float(pair.b.score or 0.0))


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The second run (B) against the first (A).

    `report` is that of `redraft compare`. The `mean_b` of `won` is the share of rows that B wins,
    ties half. `gains` and `drops` are the rows that changed most, `histogram` counts the rows by
    their difference.
    """

    report: ComparisonReport
    won: PairedDifference
    gains: tuple[RowDifference, ...]
    drops: tuple[RowDifference, ...]
    histogram: tuple[int, ...]

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
    bins = [0] * BINS
    for row in rows:
        bins[min(BINS - 1, max(0, int((row.difference + 1) / 2 * BINS)))] += 1
    wins = [
        1.0 if row.difference > TOLERANCE else 0.0 if row.difference < -TOLERANCE else 0.5
        for row in unsorted
    ]
    clusters = PairedScores(paired.pairs, ComparisonSettings()).clusters
    return RunComparison(
        build_report(paired),
        paired_difference([0.5] * len(wins), wins, clusters=clusters),
        tuple(row for row in reversed(rows[-MOVERS:]) if row.difference > TOLERANCE),
        tuple(row for row in rows[:MOVERS] if row.difference < -TOLERANCE),
        tuple(bins),
    )


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
