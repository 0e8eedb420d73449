"""Measure what labels of people are worth in a comparison, and how often the gate is wrong.

    python bench/compare.py [FOLDER] [--resamples 2000] [--only TEXT] [--jobs 2] [--json FILE]

FOLDER holds folders of labelled data sets, as for `coverage.py`. In each resample, whole clusters
(documents, pairs) are drawn with replacement: until there are 50 or 100 labels, and as many others
as the set has without labels. The mean label of the set is the truth. The table has, for each
number of labels: how often the 95 % interval of prediction-powered inference contains the truth,
its width relative to that of the labels alone, the labels that it saves, and how often the judge's
own interval contains the truth. Sets whose labels have the same mean in every cluster are left out:
their mean is known.

The second table is about `redraft gate`: how often it says "worse", "not worse" and "undecided" in
simulated comparisons of runs whose true difference is known. The exit code is 1 if coverage is
below 92 % with 50 labels or 93 % with 100, if an interval with a judge that correlates with people
by 0.4 or more is wider than without, or if the gate raises more false alarms than stated (with the
error of the simulation). Without FOLDER only the gate is measured.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from coverage import labelled_sets
from redraft.comparison.estimates import build_report
from redraft.comparison.results import ResultRow, RunResults, pair_results
from redraft.validation import ppi_mean
from redraft.validation.statistics import pearson

GOALS = {50: 0.92, 100: 0.93}
GOOD_JUDGE = 0.4  # correlation with people from which a judge must save labels
MIN_CLUSTERS = 20
MAX_OTHERS = 1000  # unlabelled rows of a resample
LEVEL = 0.95
EFFECTS = (0.0, -0.02, -0.05, -0.1, 0.05)
GATE_ROWS = (50, 200, 800)
# standard deviation of the difference of two scores of one task, which is limited to twice as much
NOISE = 0.15
MARGIN = 0.02
WORLDS = 1000


@dataclass(frozen=True)
class LabelValue:
    """The figures of one set and one number of labels. `saved` is the share of labels that the
    judge makes superfluous.
    """

    name: str
    rows: int
    clusters: int
    correlation: float
    labels: int
    coverage: float
    labels_coverage: float
    judge_coverage: float
    width: float
    labels_width: float

    @property
    def saved(self):
        return 1 - (self.width / self.labels_width) ** 2

    @property
    def error(self):
        """The standard error of the coverage, at the goal."""
        return sqrt(GOALS[self.labels] * (1 - GOALS[self.labels]))

    def passes(self, resamples):
        covers = self.coverage >= GOALS[self.labels] - 2 * self.error / sqrt(resamples)
        return covers and (self.correlation < GOOD_JUDGE or self.width < self.labels_width)


def by_cluster(rows):
    clusters = defaultdict(list)
    for row in rows:
        clusters[row.cluster].append(row)
    return [clusters[name] for name in sorted(clusters)]


def draw(clusters, n, rng, first):
    """Return rows of clusters drawn with replacement until there are `n`, and the number of each
    row's draw from `first`.
    """
    rows, groups = [], []
    while len(rows) < n:
        chosen = rng.choice(clusters)
        rows += chosen
        groups += [first + len(groups)] * len(chosen)
    return rows, groups


def measure_resample(clusters, truth, labels, others, seed):
    """Return whether each of the three intervals contains the truth, and two widths."""
    rng = random.Random(seed)
    labelled, groups = draw(clusters, labels, rng, 0)
    unlabelled, more = draw(clusters, others, rng, 10**6)
    people, scores = [row.label for row in labelled], [row.score for row in labelled]
    rest = [row.score for row in unlabelled]
    with_judge = ppi_mean(
        people, scores, rest, clusters=groups, unlabelled_clusters=more, confidence=LEVEL
    ).interval
    alone = ppi_mean(people, scores, clusters=groups, confidence=LEVEL).interval
    judge = ppi_mean(
        scores + rest, scores + rest, clusters=groups + more, confidence=LEVEL
    ).interval
    if with_judge is None or alone is None or judge is None:
        return None
    contains = [float(low <= truth <= high) for low, high in (with_judge, alone, judge)]
    return (*contains, with_judge[1] - with_judge[0], alone[1] - alone[0])


def measure_set(each, resamples):
    """Return the figures of a set for each number of labels."""
    clusters = by_cluster(each.rows)
    truth = fmean(row.label for row in each.rows)
    correlation = pearson([row.score for row in each.rows], [row.label for row in each.rows]) or 0.0
    found = []
    for labels in GOALS:
        others = min(MAX_OTHERS, max(labels, len(each.rows) - labels))
        figures = [
            measure_resample(clusters, truth, labels, others, f"{each.name} {labels} {n}")
            for n in range(resamples)
        ]
        known = [figure for figure in figures if figure is not None]
        coverage, alone, judge, width, width_alone = map(fmean, zip(*known, strict=True))
        found.append(
            LabelValue(
                each.name,
                len(each.rows),
                len(clusters),
                correlation,
                labels,
                coverage,
                alone,
                judge,
                width,
                width_alone,
            )
        )
    return found


def measurable(each):
    """Whether the mean label of a set is unknown before labels are drawn, and there are enough
    clusters.
    """
    means = {round(fmean(row.label for row in cluster), 9) for cluster in by_cluster(each.rows)}
    return len(means) > 1 and len(by_cluster(each.rows)) >= MIN_CLUSTERS


@dataclass(frozen=True)
class GateRates:
    """How often the gate gives each answer, for a true difference and a number of rows."""

    effect: float
    rows: int
    worse: float
    not_worse: float
    undecided: float


def simulated_runs(effect, rows, seed):
    """Return two runs whose scores need no limits, which would change the difference."""
    rng = random.Random(seed)
    a, b = [], []
    for n in range(rows):
        quality, noise = (
            rng.uniform(0.42, 0.58),
            next(x for x in iter(lambda: rng.gauss(0, NOISE), None) if abs(x) < 2 * NOISE),
        )
        a.append(ResultRow(str(n), "", quality, f"a{n}"))
        b.append(ResultRow(str(n), "", quality + effect + noise, f"b{n}"))
    return RunResults("a", "table", a), RunResults("b", "table", b)


def gate_verdict(effect, rows, seed):
    return build_report(pair_results(*simulated_runs(effect, rows, f"{effect} {rows} {seed}"))).gate


def measure_gate(effect, rows, worlds):
    verdicts = [gate_verdict(effect, rows, seed) for seed in range(worlds)]
    return GateRates(
        effect,
        rows,
        *(verdicts.count(each) / worlds for each in ("worse", "not worse", "undecided")),
    )


def gate_holds(rates, worlds):
    """Whether false alarms (A = B) and missed losses at the margin are as rare as stated."""
    stated = (1 - LEVEL) / 2
    most = stated + 3 * sqrt(stated * (1 - stated) / worlds)
    wrong = (
        rates.worse if rates.effect >= 0 else rates.not_worse if rates.effect <= -MARGIN else 0.0
    )
    return wrong <= most


def show_sets(found, left_out, resamples):
    table = Table(
        "set",
        *(
            "rows",
            "clusters",
            "r",
            "labels",
            "covers",
            "alone",
            "judge",
            "width",
            "of labels'",
            "saved",
        ),
        box=None,
    )
    for each in found:
        cells = (
            each.rows,
            each.clusters,
            f"{each.correlation:.2f}",
            each.labels,
            f"{each.coverage:.1%}",
            f"{each.labels_coverage:.1%}",
        )
        more = (
            f"{each.judge_coverage:.1%}",
            f"{each.width:.3f}",
            f"{each.width / each.labels_width:.2f}",
            f"{each.saved:.0%}",
        )
        table.add_row(
            each.name, *map(str, (*cells, *more)), style=None if each.passes(resamples) else "red"
        )
    Console(width=150).print(table)
    print(
        "left out, because the mean label is known or clusters are few: "
        f"{', '.join(left_out) or 'none'}"
    )


def show_gate(rates, worlds):
    table = Table("true B - A", "rows", "worse", "not worse", "undecided", box=None)
    for each in rates:
        cells = (
            f"{each.effect:+.2f}",
            str(each.rows),
            f"{each.worse:.1%}",
            f"{each.not_worse:.1%}",
            f"{each.undecided:.1%}",
        )
        table.add_row(*cells, style=None if gate_holds(each, worlds) else "red")
    Console(width=100).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--only", default="", help="measure only sets whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found, left_out = [], []
    with ProcessPoolExecutor(options.jobs) as pool:
        if options.folder:
            sets = [each for each in labelled_sets(options.folder) if options.only in each.name]
            left_out = [each.name for each in sets if not measurable(each)]
            chosen = [each for each in sets if measurable(each)]
            for values in pool.map(partial(measure_set, resamples=options.resamples), chosen):
                found += values
            show_sets(found, left_out, options.resamples)
        cells = [(effect, rows) for effect in EFFECTS for rows in GATE_ROWS]
        rates = list(
            pool.map(measure_gate, *zip(*cells, strict=True), [options.worlds] * len(cells))
        )
    show_gate(rates, options.worlds)
    if options.json:
        sets = [{**asdict(each), "saved": each.saved} for each in found]
        options.json.write_text(
            json.dumps({"sets": sets, "gate": [asdict(each) for each in rates]}, indent=2)
        )
    passed = all(each.passes(options.resamples) for each in found) and all(
        gate_holds(each, options.worlds) for each in rates
    )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
