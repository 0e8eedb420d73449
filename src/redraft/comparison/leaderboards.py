"""Leaderboards of several models, prompts or finished runs on the same tasks: who is better than
whom, and who is not told apart.

With a grader that compares answers, each pair of variants is judged in both orders on every task.
What is shown is the share of comparisons that a variant won (a tie, or two verdicts that contradict
each other, are half a win), and its strength in the model of Bradley and Terry. With graders that
score single answers, it is the mean score.

Two variants are told apart if the interval of their difference excludes 0. It is the paired
difference over tasks of their scores, or of what both won against the same opponents on the same
task, so that it exists also for a variant that won everything. The intervals of all pairs hold at
once (Bonferroni): with equally good variants, none is called better with the probability `level`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from ..base.sync import async_to_sync
from ..base.text import pluralize
from ..errors import ConfigError, GradingError
from ..runs import BatchSettings
from ..usage import NO_USAGE, Usage
from ..validation.differences import PairedDifference, paired_difference, win_rate
from ..validation.estimators import ppi_mean
from ..validation.strengths import Strength, bradley_terry
from .api import is_any_lower, open_comparison
from .estimates import ComparisonSettings, PairedScores
from .report import format_interval, format_signed
from .results import WINS_NAME, PairedResults, RunResults, pair_results
from .task_writer import WRITER_COLUMN
from .variants import NO_VERDICT, ComparisonRun, ranks_answers

MAX_VARIANTS = 20


@dataclass(frozen=True, slots=True)
class LeaderboardEntry:
    """One variant.

    Attributes:
        name: What it is called.
        value: Its mean score, or the share of its comparisons that it won; a tie is half a win.
        interval: The confidence interval of that; None if it is unknown.
        rows: The tasks that it is of.
        unscored: The tasks on which it has no score.
        strength: Its strength in the model of Bradley and Terry; None for scores.
        games: How many comparisons of two answers it won, tied and lost; None for scores. Two
            orders that contradict each other are a tie.
        ranks: The best and the worst rank that it may have: behind those that are better than it,
            and before those that are worse.
        not_told_apart: The names of those from which it is not told apart.
    """

    name: str
    value: float
    interval: tuple[float, float] | None
    rows: int
    unscored: int = 0
    strength: Strength | None = None
    games: tuple[int, int, int] | None = None
    ranks: tuple[int, int] = (1, 1)
    not_told_apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leaderboard:
    """Who is better than whom.

    Attributes:
        entries: The variants, the best first.
        differences: For each pair of names, of which the first one is higher on the leaderboard, by
            how much it is better, in the unit of `value`: A of the difference is the second one.
            Pairs without a task in common are missing.
        score_name: The name of the score.
        level: The confidence: of the interval of each entry, and of all differences at once.
        lower_is_better: Whether lower scores are better.
        consistency: The share of pairs of answers with the same verdict in both orders; None for
            scores.
        position_bias: How much more often than half the answer that is shown first wins.
        written_by: The models that wrote the tasks, if all were written by models.
        skipped: Rows that could not be read, with the reasons.
        usage: What it took to run and to grade.
    """

    entries: tuple[LeaderboardEntry, ...]
    differences: Mapping[tuple[str, str], PairedDifference]
    score_name: str
    level: float = 0.95
    lower_is_better: bool = False
    consistency: float | None = None
    position_bias: float | None = None
    written_by: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    usage: Usage = NO_USAGE

    def headline(self) -> str:
        """Return in a sentence who is best, or from whom the first one is not told apart."""
        first = self.entries[0]
        if not first.not_told_apart:
            return f"{first.name} is better than all others"
        if all(len(e.not_told_apart) == len(self.entries) - 1 for e in self.entries):
            return "undecided: nothing tells them apart"
        return f"undecided whether {first.name} is better than {', '.join(first.not_told_apart)}"

    def table(self) -> list[tuple[str, ...]]:
        """Return the rows of a table for people; the first one holds the headers."""
        rows: list[tuple[str, ...]] = [
            ("rank", "variant", self.score_name, "interval", "rows", "not told apart from")
        ]
        for e in self.entries:
            rank = "-".join(dict.fromkeys(map(str, e.ranks)))
            others = ", ".join(e.not_told_apart)
            rows.append((rank, e.name, f"{e.value:.3f}", _ends(e.interval), f"{e.rows:,}", others))
        if self.consistency is None:
            return rows
        more = [("strength", "interval", "won", "tied", "lost"), *map(_games, self.entries)]
        return [(*row[:5], *extra, row[5]) for row, extra in zip(rows, more, strict=True)]

    def summary(self) -> list[str]:
        """Return lines for people: the headline, then what it follows from, and what is missing."""
        lines = [self.headline()]
        for a, b in zip(self.entries, self.entries[1:], strict=False):
            if d := self.differences.get((a.name, b.name)):
                change = f"{format_signed(d.value)} {format_interval(d.interval)}"
                lines.append(f"{a.name} over {b.name}: {change} over {pluralize(d.rows, 'row')}")
        count = len(self.differences)
        if count > 1:
            lines.append(
                f"the intervals of all {count} differences hold at once, with {self.level:.0%}"
            )
        if self.consistency is not None:
            lines.append(
                f"the same verdict in both orders {self.consistency:.0%}, bias to the first "
                f"{format_signed(self.position_bias or 0.0)}"
            )
        return [*lines, *self._remarks()]

    def _remarks(self) -> list[str]:
        names = [entry.name for entry in self.entries]
        apart = [
            f"{a} and {b}" for a, b in combinations(names, 2) if (a, b) not in self.differences
        ]
        lines = [f"not compared, for want of common rows: {', '.join(apart)}"] if apart else []
        groups: defaultdict[int, list[str]] = defaultdict(list)
        for entry in self.entries:
            if entry.strength:
                groups[entry.strength.group].append(entry.name)
        if len(groups) > 1:
            listed = " | ".join(", ".join(group) for group in groups.values())
            lines.append(
                f"strengths of different groups cannot be compared ({listed}): one side won every "
                "comparison, or there is none"
            )
        lines.extend(
            f"{entry.name} has no score on {pluralize(entry.unscored, 'row')}"
            for entry in self.entries
            if entry.unscored
        )
        if self.written_by:
            lines.append(
                f"tasks written by {', '.join(self.written_by)}: this is about such tasks, and not "
                "about those that people have"
            )
        return lines

    def as_data(self) -> dict[str, Any]:
        """Return plain data that `json.dumps` accepts."""
        differences = [
            {"a": a, "b": b, "verdict": found.verdict, **asdict(found)}
            for (a, b), found in self.differences.items()
        ]
        usage = {"calls": self.usage.calls, "tokens": self.usage.tokens, "cost": self.usage.cost}
        data = {**vars(self), "entries": [asdict(entry) for entry in self.entries]}
        return {**data, "differences": differences, "usage": usage}


def _games(entry: LeaderboardEntry) -> tuple[str, ...]:
    strength = entry.strength or Strength(None, None, 0)
    value = "none" if strength.value is None else format_signed(strength.value)
    return value, _ends(strength.interval), *(f"{n:,}" for n in entry.games or (0, 0, 0))


def _ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else "{:.3f} to {:.3f}".format(*interval)


async def leaderboard(
    variants: Sequence[Any],
    tasks: Any = None,
    *,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    score: str = "",
    lower_is_better: bool | None = None,
    result_columns: Mapping[str, str] | None = None,
    cluster: str | None = None,
    level: float = 0.95,
    **settings: Unpack[BatchSettings],
) -> Leaderboard:
    """Return who of several variants is better than whom, and who is not told apart.

    Args:
        variants: Two to twenty models, prompts, mappings of settings, or finished runs, each as in
            `compare`.
        tasks: A data set that all of them answer; None for finished runs.
        model: The model that answers, for variants that name none.
        graders: As in `compare`: with "pairwise" every pair of variants is judged in both orders.
            Other graders score single answers.
        judge: The model that graders ask. One model judges all variants.
        score: As in `compare`.
        lower_is_better: As in `compare`.
        result_columns: As in `compare`.
        cluster: As in `compare`.
        level: The confidence of the intervals: of each variant, and of all differences at once.
        **settings: As in `compare`.

    Raises:
        ConfigError: An argument or a file is wrong, or no two variants have a row in common.
        GradingError: A run ended early, or nothing could be graded.
        BudgetExhaustedError: The budget or the time ran out; the same call resumes.
    """
    if isinstance(variants, str | Path | Mapping) or not 2 <= len(variants) <= MAX_VARIANTS:
        raise ConfigError(f"variants: give 2 to {MAX_VARIANTS} of them in a list")
    options = ComparisonSettings(clusters=cluster, level=level)
    run = open_comparison(
        options,
        settings,
        tasks=tasks,
        graders=graders,
        judge=judge,
        model=model,
        lower_is_better=lower_is_better,
    )
    if tasks is not None:
        sides = await run.results_of(variants, tasks, model)
    else:
        sides = await run.results_in(variants, score=score, columns=result_columns, labelled=False)
        if graders is None:
            lower = is_any_lower(sides, stated=lower_is_better)
            options = replace(options, lower_is_better=lower)
    each = 1 - (1 - level) / (len(sides) * (len(sides) - 1) / 2)
    of_pairs = replace(options, level=each)
    if not ranks_answers(graders):
        return replace(_board(_Scores(sides, options, of_pairs)), usage=run.usage)
    games = _Games(sides, options, of_pairs)
    await games.play(run)
    second_shown, first_shown = map(fmean, zip(*games.orders, strict=True))
    return replace(
        _board(games),
        score_name=WINS_NAME,
        consistency=fmean(a == b for a, b in games.orders),
        position_bias=(first_shown - second_shown) / 2,
        usage=run.usage,
    )


leaderboard_sync = async_to_sync(leaderboard)
"""Call `leaderboard` without await. It also works where an event loop is running."""


@dataclass
class _Scores:
    """Scores of single answers; variants are numbers. `options` are those of one interval,
    `of_pairs` those of the intervals of all pairs at once.
    """

    sides: Sequence[RunResults]
    options: ComparisonSettings
    of_pairs: ComparisonSettings

    def entry(self, i: int) -> LeaderboardEntry:
        """Return the mean score of a variant."""
        own = pair_results(self.sides[i], self.sides[i])  # repeats are averaged
        scores = [float(pair.a.score or 0.0) for pair in own.pairs]
        clusters, none = PairedScores(own.pairs, self.options).clusters, [0.0] * len(scores)
        found = ppi_mean(scores, none, clusters=clusters, confidence=self.options.level)
        interval = found.interval
        if interval and all(0 <= score <= 1 for score in scores):
            interval = max(0.0, interval[0]), min(1.0, interval[1])
        name, unscored = self.sides[i].name, len(own.unscored_a)
        return LeaderboardEntry(name, found.value, interval, len(scores), unscored)

    def difference(self, i: int, j: int) -> PairedDifference | None:
        """Return by how much j is better than i; None without common rows."""
        try:
            paired = pair_results(self.sides[i], self.sides[j])
        except ConfigError:  # no row of both has a score
            return None
        return PairedScores(paired.pairs, self.of_pairs).difference()


@dataclass
class _Games(_Scores):
    """Comparisons of answers. `won[i][j]` is what i won against j, by the key of the task;
    `clusters` are those of the tasks, `orders` what the second one of each pair of answers won when
    it was shown second and first.
    """

    won: defaultdict[int, dict[int, dict[str, float]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    clusters: dict[str, Hashable] = field(default_factory=dict)
    orders: list[tuple[float, float]] = field(default_factory=list)
    strengths: Mapping[int, Strength] = field(default_factory=dict)

    async def play(self, run: ComparisonRun) -> None:
        """Have each two variants judged on the tasks that both have answered. Raises ConfigError if
        no two have one, GradingError if there is no verdict.
        """
        paired: dict[tuple[int, int], PairedResults] = {}
        for i, j in combinations(range(len(self.sides)), 2):
            with suppress(ConfigError):  # they have no row in common
                paired[i, j] = pair_results(self.sides[i], self.sides[j], scored=False)
        if len({each.paired_by for each in paired.values()}) > 1:
            raise ConfigError("some of these runs are paired by ID, and some by task: give all IDs")
        games: list[tuple[int, int, float, Hashable]] = []
        for (i, j), results in paired.items():
            shares = await run.judge_in_both_orders(results)
            self.orders.extend(shares.values())
            groups = PairedScores(results.pairs, self.options).groups
            for pair, group in zip(results.pairs, groups, strict=True):
                self.clusters[pair.key] = group
            for key, both in shares.items():
                self.won[j].setdefault(i, {})[key] = fmean(both)
                self.won[i].setdefault(j, {})[key] = 1 - fmean(both)
                games.append((j, i, fmean(both), self.clusters[key]))
        if not games:
            raise GradingError(NO_VERDICT, usage=run.usage)
        first, second, won, clusters = zip(*games, strict=True)
        level = self.options.level
        self.strengths = bradley_terry(first, second, won, clusters=clusters, confidence=level)

    def entry(self, i: int) -> LeaderboardEntry:
        """Return what a variant won, as the mean over the tasks."""
        by_task: defaultdict[str, list[float]] = defaultdict(list)
        for against in self.won[i].values():
            for key, share in against.items():
                by_task[key].append(share)
        name, rows, lacking = self.sides[i].name, len(by_task), len(self.clusters) - len(by_task)
        if not rows:
            return LeaderboardEntry(name, 0.5, None, 0, lacking)
        shares, clusters = [*map(fmean, by_task.values())], [self.clusters[key] for key in by_task]
        found = win_rate(shares, shares, clusters=clusters, confidence=self.options.level)
        all_shares = [share for task in by_task.values() for share in task]
        wins, losses = sum(s > 0.5 for s in all_shares), sum(s < 0.5 for s in all_shares)
        games = wins, len(all_shares) - wins - losses, losses
        strength = self.strengths.get(i)
        return LeaderboardEntry(name, found.value, found.interval, rows, lacking, strength, games)

    def difference(self, i: int, j: int) -> PairedDifference | None:
        """Return how much more j won than i: of each other, and of those whom both met."""
        keys = self.won[i].get(j, {})
        if not keys:
            return None
        others = self.won[i].keys() & self.won[j].keys()
        sides: tuple[list[float], list[float]] = [], []
        for key in keys:
            both = [k for k in others if key in self.won[i][k] and key in self.won[j][k]]
            sides[0].append(fmean(self.won[i][k][key] for k in (j, *both)))
            sides[1].append(fmean(self.won[j][k][key] for k in (i, *both)))
        clusters = [self.clusters[key] for key in keys]
        return paired_difference(*sides, clusters=clusters, confidence=self.of_pairs.level)


def _board(figures: _Scores) -> Leaderboard:
    """Return the leaderboard of some figures. Raises ConfigError if no two variants have a row in
    common.
    """
    sides, lower = figures.sides, figures.options.lower_is_better
    entries = [figures.entry(n) for n in range(len(sides))]
    order = sorted(range(len(sides)), key=lambda n: entries[n].value, reverse=not lower)
    found = {(i, j): figures.difference(j, i) for i, j in combinations(order, 2)}
    differences = {pair: each for pair, each in found.items() if each is not None}
    if not differences:
        raise ConfigError("no two of these runs have a row in common: are they of the same tasks?")
    apart = {pair for pair, each in differences.items() if each.verdict == "better"}
    apart |= {(j, i) for (i, j), each in differences.items() if each.verdict == "worse"}
    for n in order:
        better = {k for k in order if (k, n) in apart}
        worse = {k for k in order if (n, k) in apart}
        same = tuple(sides[k].name for k in order if k not in {n, *better, *worse})
        ranks = 1 + len(better), len(order) - len(worse)
        entries[n] = replace(entries[n], ranks=ranks, not_told_apart=same)
    writers = {str(row.values.get(WRITER_COLUMN) or "") for side in sides for row in side.rows}
    return Leaderboard(
        tuple(entries[n] for n in order),
        {(sides[i].name, sides[j].name): each for (i, j), each in differences.items()},
        sides[0].score_name,
        figures.options.level,
        lower_is_better=lower,
        written_by=() if "" in writers else tuple(sorted(writers)),
        skipped=tuple(reason for side in sides for reason in side.skipped),
    )
