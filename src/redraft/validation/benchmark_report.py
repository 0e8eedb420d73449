"""The report about a benchmark: its score is the headline, and those of its sections and groups are
added to the usual measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graders.cards import Measure
from . import statistics as m
from .benchmarks import BENCHMARKS, Benchmark, RowOutcome
from .cases import LabelledCase, Verdict
from .report import (
    ReportConfig,
    Statistic,
    ValidationReport,
    build_report,
    estimate,
    measure_groups,
    verdicts_by_case,
)


def report_of(
    cases: Sequence[LabelledCase], verdicts: Sequence[Verdict], config: ReportConfig
) -> ValidationReport:
    """Return the report, and with `config.benchmark` the scores of that benchmark in front of
    it.
    """
    report = build_report(cases, verdicts, config)
    if not config.benchmark:
        return report
    benchmark = next(b for b in BENCHMARKS if b.name == config.benchmark)
    clusters = {case.id: case.cluster for case in cases if case.cluster}
    scores = BenchmarkScores(
        benchmark, benchmark.outcomes(verdicts_by_case(cases, verdicts)), config.seed, clusters
    )
    measures = (
        scores.headline,
        *scores.section_measures(),
        *scores.part_measures(),
        *report.measures,
    )
    return replace(
        report, headline=scores.headline, measures=measures, groups=scores.group_measures()
    )


@dataclass(frozen=True)
class BenchmarkScores:
    """The scores of a benchmark with bootstrap intervals, for which outcomes of one unit, or of its
    cluster, are drawn together.
    """

    benchmark: Benchmark
    outcomes: Sequence[RowOutcome]
    seed: int
    clusters: Mapping[str, str] = field(default_factory=dict)

    @property
    def headline(self) -> Measure:
        return self._measure(
            f"{self.benchmark.name} score",
            self.outcomes,
            self.benchmark.score,
            self.benchmark.about,
        )

    def section_measures(self) -> tuple[Measure, ...]:
        """Return the score of each section; () for a single one."""
        return measure_groups(self.benchmark.sections(self.outcomes), self._section_measure)

    def group_measures(self) -> tuple[Measure, ...]:
        """Return the score of each group, such as a subset; () for a single one."""
        groups = m.group_values((outcome.group, outcome) for outcome in self.outcomes)
        return measure_groups(groups, self._section_measure)

    def part_measures(self) -> Iterable[Measure]:
        """Yield the benchmark's further measures."""
        for name, value in self.benchmark.parts(self.benchmark.sections(self.outcomes)).items():
            yield Measure(name, value, n=len(self.outcomes))

    def _section_measure(self, outcomes: Sequence[RowOutcome]) -> Measure:
        return self._measure("", outcomes, self.benchmark.section_score)

    def _measure(
        self, name: str, outcomes: Sequence[RowOutcome], score: Statistic, about: str = ""
    ) -> Measure:
        units = m.group_values((outcome.unit, outcome) for outcome in outcomes)

        def score_units(drawn: Sequence[list[RowOutcome]]) -> float | None:
            return score([outcome for unit in drawn for outcome in unit])

        chance = self.benchmark.chance(outcomes)
        drawn = list(units.values()), [self.clusters.get(unit, "") for unit in units]
        found = estimate(name, *drawn, score_units, self.seed, chance=chance, about=about)
        return replace(found, n=len(outcomes))
