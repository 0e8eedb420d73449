"""Leaderboards of several models, prompts or finished runs on the same tasks: who is better than
whom, and who is not told apart.

With a grader that compares answers, each pair of variants is judged in both orders on every task.
What is shown is the share of comparisons that a variant won (a tie, or two verdicts that contradict
each other, are half a win), and its strength in the model of Bradley and Terry. With graders that
score single answers, it is the mean score.

Two variants are told apart if the interval of their difference excludes 0. It is the paired
difference over tasks of their scores, or of what both won on the same task, so that it exists also
for a variant that won everything. The intervals of all pairs hold at once (Bonferroni): with
equally good variants, none is called better with the probability `level`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias, Unpack

from ..base.sync import async_to_sync
from ..base.text import pluralize
from ..errors import ConfigError, GradingError
from ..runs import BatchSettings
from ..usage import NO_USAGE, Usage
from ..validation.statistics import (
    PairedDifference,
    Strength,
    bradley_terry,
    group_values,
    ppi_mean,
    rows_to_decide,
)
from .api import is_any_lower, open_comparison
from .estimates import ComparisonSettings, PairedScores
from .report import format_interval, format_signed
from .results import (
    WINS_NAME,
    PairedResults,
    ResultPair,
    ResultRow,
    RunResults,
    pair_results,
)
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
        entries: The variants by their ranks, then by their values: the best first.
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
        if first.ranks == (1, 1):
            return f"{first.name} is better than all others"
        if first.ranks[0] > 1:
            return f"undecided: {first.name} ranks highest, and others are better on common rows"
        if all(len(e.not_told_apart) == len(self.entries) - 1 for e in self.entries):
            return f"undecided: nothing tells them apart{self._more_rows()}"
        others = ", ".join(first.not_told_apart)
        return f"undecided whether {first.name} is better than {others}{self._more_rows()}"

    def _more_rows(self) -> str:
        """Say how many more rows would tell the first one apart from all others; "" if that is
        unknown.
        """
        first, more = self.entries[0], 0
        for name in first.not_told_apart:
            difference = self.differences.get((first.name, name))
            needed = difference and rows_to_decide(difference)
            if not (difference and needed):
                return ""
            more = max(more, needed - difference.rows)
        return f"; about {pluralize(more, 'more row')} would decide" if more else ""

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
                f"the intervals of all {count} differences hold at once, with {100 * self.level:g}%"
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
        if self.skipped:
            lines.append(f"left out: {len(self.skipped):,} unreadable")
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
        return {**asdict(self), "differences": differences, "usage": self.usage.totals}


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
    games: list[_Game] = []
    if ranks_answers(graders):
        games = await _play(run, sides, options)
        found = _differences_of_games(games, _for_all_pairs(options, len(sides)))
        sides = [_with_shares(side, n, games) for n, side in enumerate(sides)]
    else:
        found = _differences(sides, _for_all_pairs(options, len(sides)))
    board = _board(sides, found, options)
    return replace(_with_games(board, sides, games, level) if games else board, usage=run.usage)


leaderboard_sync = async_to_sync(leaderboard)
"""Call `leaderboard` without await. It also works where an event loop is running."""


class _Game(NamedTuple):
    """A comparison of two answers to a task: the numbers of the variants, the results of both, what
    the second one won when it was shown second and first, and the cluster of the task.
    """

    first: int
    second: int
    pair: ResultPair
    orders: tuple[float, float]
    cluster: Hashable

    def won_by(self, variant: int) -> float:
        """Return what one of the two won."""
        return fmean(self.orders) if variant == self.second else 1 - fmean(self.orders)


async def _play(
    run: ComparisonRun, sides: Sequence[RunResults], options: ComparisonSettings
) -> list[_Game]:
    """Have every two variants judged on the tasks that both have answered. Raises ConfigError for a
    variant that has none in common with another one, GradingError for one without a verdict.
    """
    games: list[_Game] = []
    for (i, j), results in _tasks_in_common(sides).items():
        orders = await run.judge_in_both_orders(results)
        groups = PairedScores(results.pairs, options).groups
        games.extend(
            _Game(i, j, pair, orders[pair.key], group)
            for pair, group in zip(results.pairs, groups, strict=True)
            if pair.key in orders
        )
    judged = {n for game in games for n in game[:2]}
    if len(judged) < len(sides):
        raise GradingError(NO_VERDICT, usage=run.usage)
    return games


def _tasks_in_common(sides: Sequence[RunResults]) -> dict[tuple[int, int], PairedResults]:
    """Return the tasks that each two variants have answered, if there are any. Raises ConfigError
    for a variant that has none in common with another one.
    """
    found: dict[tuple[int, int], PairedResults] = {}
    for i, j in combinations(range(len(sides)), 2):
        if paired := _common_rows(sides[i], sides[j], scored=False):
            found[i, j] = paired
    for n, side in enumerate(sides):
        if not any(n in both for both in found):
            raise ConfigError(f"{side.name!r} has no row in common with another one")
    return found


def _common_rows(a: RunResults, b: RunResults, *, scored: bool = True) -> PairedResults | None:
    """Return the rows that two runs have in common; None if there are none, or none has a score."""
    try:
        return pair_results(a, b, scored=scored)
    except ConfigError:
        return None


def _with_shares(side: RunResults, n: int, games: Sequence[_Game]) -> RunResults:
    """Return a run with the share that it won on each task as the score."""
    rows: dict[str, ResultRow] = {}
    won: defaultdict[str, list[float]] = defaultdict(list)
    for game in games:
        if n in game[:2]:
            rows[game.pair.key] = game.pair.a if n == game.first else game.pair.b
            won[game.pair.key].append(game.won_by(n))
    scored = [replace(row, id=key, text=None, score=fmean(won[key])) for key, row in rows.items()]
    return replace(side, rows=scored, score_name=WINS_NAME)


def _with_games(
    board: Leaderboard, sides: Sequence[RunResults], games: Sequence[_Game], level: float
) -> Leaderboard:
    """Return a leaderboard with strengths, games, and what the two orders say."""
    first, second = [game.first for game in games], [game.second for game in games]
    strengths = bradley_terry(
        first,
        second,
        [game.won_by(game.first) for game in games],
        clusters=[game.cluster for game in games],
        confidence=level,
    )
    number = {side.name: n for n, side in enumerate(sides)}
    entries = []
    for entry in board.entries:
        n = number[entry.name]
        won = [game.won_by(n) for game in games if n in game[:2]]
        entries.append(replace(entry, strength=strengths.get(n), games=_wins_ties_losses(won)))
    shown_second, shown_first = (fmean(game.orders[n] for game in games) for n in (0, 1))
    return replace(
        board,
        entries=tuple(entries),
        consistency=fmean(game.orders[0] == game.orders[1] for game in games),
        position_bias=(shown_first - shown_second) / 2,
    )


def _wins_ties_losses(won: Sequence[float]) -> tuple[int, int, int]:
    wins, losses = sum(share > 0.5 for share in won), sum(share < 0.5 for share in won)
    return wins, len(won) - wins - losses, losses


def _for_all_pairs(options: ComparisonSettings, count: int) -> ComparisonSettings:
    """Return the options with the level at which the intervals of all pairs hold at once."""
    return replace(options, level=1 - (1 - options.level) / (count * (count - 1) / 2))


_Differences: TypeAlias = Mapping[tuple[int, int], PairedDifference]
"""By how much the first of two variants is better than the second, by their numbers."""


def _differences(sides: Sequence[RunResults], options: ComparisonSettings) -> _Differences:
    """Return the differences of scores. Raises ConfigError if no two variants have a row in
    common.
    """
    found = {
        (i, j): PairedScores(paired.pairs, options).difference()
        for i, j in combinations(range(len(sides)), 2)
        if (paired := _common_rows(sides[j], sides[i]))
    }
    if not found:
        raise ConfigError("no two of these runs have a row in common: are they of the same tasks?")
    return found


def _differences_of_games(games: Sequence[_Game], options: ComparisonSettings) -> _Differences:
    """Return the differences of what both won on a task: from all opponents if these are the same
    on all of their tasks, else from each other, so that every game of the two counts.
    """
    won: defaultdict[tuple[int, str], dict[int, float]] = defaultdict(dict)
    for game in games:
        for n, opponent in ((game.first, game.second), (game.second, game.first)):
            won[n, game.pair.key][opponent] = game.won_by(n)
    found = {}
    for (i, j), own in group_values((game[:2], game) for game in games).items():
        others = {frozenset(won[n, game.pair.key]) - {i, j} for game in own for n in (i, j)}
        is_same = len(others) == 1
        pairs = [
            replace(
                pair,
                a=replace(pair.b, score=_share(won[j, pair.key], i, of_all=is_same)),
                b=replace(pair.a, score=_share(won[i, pair.key], j, of_all=is_same)),
            )
            for pair in (game.pair for game in own)
        ]
        found[i, j] = PairedScores(pairs, options).difference()
    return found


def _share(won: Mapping[int, float], opponent: int, *, of_all: bool) -> float:
    """Return the share that a variant won on a task: from all opponents, or from one."""
    return fmean(won.values()) if of_all else won[opponent]


def _board(
    sides: Sequence[RunResults], found: _Differences, options: ComparisonSettings
) -> Leaderboard:
    """Return the leaderboard of scores."""
    entries = [_entry(side, options) for side in sides]
    order = sorted(
        range(len(sides)), key=lambda n: entries[n].value, reverse=not options.lower_is_better
    )
    ranked = dict(zip(order, _with_ranks(order, entries, found), strict=True))
    order.sort(key=lambda n: ranked[n].ranks)
    differences = {
        (sides[i].name, sides[j].name): found[i, j] if (i, j) in found else _opposite(found[j, i])
        for i, j in combinations(order, 2)
        if (i, j) in found or (j, i) in found
    }
    writers = {str(row.values.get(WRITER_COLUMN) or "") for side in sides for row in side.rows}
    return Leaderboard(
        tuple(ranked[n] for n in order),
        differences,
        sides[0].score_name,
        options.level,
        lower_is_better=options.lower_is_better,
        written_by=() if "" in writers else tuple(sorted(writers)),
        skipped=tuple(reason for side in sides for reason in side.skipped),
    )


def _opposite(difference: PairedDifference) -> PairedDifference:
    """Return the difference with A and B exchanged."""
    d, interval = difference, difference.interval
    return replace(
        d,
        value=-d.value,
        interval=None if interval is None else (-interval[1], -interval[0]),
        mean_a=d.mean_b,
        mean_b=d.mean_a,
        wins=d.losses,
        losses=d.wins,
    )


def _entry(side: RunResults, options: ComparisonSettings) -> LeaderboardEntry:
    """Return the mean score of a variant."""
    own = pair_results(side, side)  # repeats are averaged
    scores = [float(pair.a.score or 0.0) for pair in own.pairs]
    clusters, none = PairedScores(own.pairs, options).clusters, [0.0] * len(scores)
    found = ppi_mean(scores, none, clusters=clusters, confidence=options.level)
    interval = found.interval
    if interval and all(0 <= score <= 1 for score in scores):
        interval = max(0.0, interval[0]), min(1.0, interval[1])
    return LeaderboardEntry(side.name, found.value, interval, len(scores), len(own.unscored_a))


def _with_ranks(
    order: Sequence[int], entries: Sequence[LeaderboardEntry], found: _Differences
) -> Iterator[LeaderboardEntry]:
    """Yield the entries in this order with their ranks, and the names of those from which they are
    not told apart.
    """
    worse: defaultdict[int, set[int]] = defaultdict(set)  # than each variant
    for (i, j), difference in found.items():
        if difference.verdict == "better":
            worse[i].add(j)
        elif difference.verdict == "worse":
            worse[j].add(i)
    for n in order:
        better = {other for other in order if n in worse[other]}
        same = [other for other in order if other not in {n, *better, *worse[n]}]
        ranks = 1 + len(better), len(order) - len(worse[n])
        names = tuple(entries[other].name for other in same)
        yield replace(entries[n], ranks=ranks, not_told_apart=names)
