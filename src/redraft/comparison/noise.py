"""How far a set-up differs from itself, and whether its judge has changed.

Two runs of the same thing, or two grades of the same answers, differ by noise alone: models sample,
and servers are not deterministic. `noise_floor` measures that noise before money is spent on
something new, and says which loss 20, 50 or 200 rows could show. Real differences vary from row to
row on top of that, so more rows may be needed, and never fewer.

`anchor_drift` grades answers of a fixed set once more, and compares the scores with those that are
recorded.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from ..base.sync import async_to_sync
from ..base.text import pluralize
from ..errors import ConfigError, GradingError
from ..graders.cards import CardStore, TrustStatus
from ..grading import GradeSettings, grade_many
from ..runs import BatchSettings
from ..session.models import Models
from ..session.options import Options
from ..session.panel import needs_judge
from ..session.refinement import resolve_model
from ..session.session import Session
from ..usage import NO_USAGE, Usage
from ..validation.statistics import (
    JudgeDrift,
    PairedDifference,
    judge_drift,
    noise_sigma,
    paired_difference,
    wilson_interval,
)
from .api import is_any_lower, open_comparison, paired_runs
from .estimates import ComparisonSettings, PairedScores
from .readers import read_results
from .report import DEFAULT_MARGIN, format_interval, format_signed
from .variants import ranks_answers

ROWS = (20, 50, 200)
POWER = 0.8  # the probability with which a loss shall be seen
THRESHOLD = 0.5  # a score from here on is a pass
SAMPLES = 300
DIGITS = 9  # by which scores differ
USUAL = 0.05  # of rows have a usual score
NEARLY_ALL = 0.9  # of rows
HALVINGS = 10  # of the range in which the smallest loss lies


@dataclass(frozen=True)
class NoiseFloor:
    """How far two runs of the same thing differ.

    Attributes:
        a: The name of the first run.
        b: The name of the second run.
        difference: By how much the second one scores higher, which is chance if they are the same.
        changed: The share of rows whose score differs.
        flips: The share of rows whose score is a pass (0.5 or more) in only one of them; None for
            scores that are not from 0 to 1.
        flips_interval: Its confidence interval.
        noise_sd: The standard deviation of repeated scores of a row.
        smallest: The smallest mean loss that so many rows show with a probability of 80%, in the
            unit of the scores; None if they show none. With clusters, the rows are clusters. It is
            empty if that is unknown: all scores are equal, and not from 0 to 1.
        level: The confidence at which the gate decides.
        score_name: The name of the score.
        usage: What it took to grade.
        skipped: Rows that could not be read, with the reasons.
    """

    a: str
    b: str
    difference: PairedDifference
    changed: float
    flips: float | None
    flips_interval: tuple[float, float] | None
    noise_sd: float
    smallest: Mapping[int, float | None]
    level: float = 0.95
    score_name: str = "score"
    usage: Usage = NO_USAGE
    skipped: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool | None:
        """Whether the two runs do not differ by more than chance; None with one cluster only, which
        does not tell it.
        """
        verdict, interval = self.difference.verdict, self.difference.interval
        return None if interval is None else verdict == "undecided"

    def summary(self) -> list[str]:
        """Return lines for people: whether it is noise, how much, and what can be seen beyond."""
        d = self.difference
        first = f"{self.a} and {self.b} do not differ by more than chance"
        if self.is_same is None:
            first = (
                f"unknown whether {self.a} and {self.b} differ by more than chance: all rows are "
                "one cluster"
            )
        elif not self.is_same:
            first = f"{self.a} and {self.b} are not the same: the second one is {d.verdict}"
        changes = f"{self.changed:.1%} of scores change, noise of a score {self.noise_sd:.3f} (sd)"
        if self.flips is not None:
            share = "{:.1%} to {:.1%}".format(*(self.flips_interval or (0.0, 1.0)))
            changes = f"{self.flips:.1%} of verdicts flip ({share}), {changes}"
        noun = "clusters" if d.clusters < d.rows else "rows"
        losses = ", ".join(
            f"{'none' if loss is None else f'{loss:.3f}'} with {rows} {noun}"
            for rows, loss in self.smallest.items()
        )
        losses = losses or "unknown, since all scores are equal and their scale is not known"
        means = f"{d.mean_a:.3f} to {d.mean_b:.3f}"
        change = f"{format_signed(d.value)} {format_interval(d.interval)}"
        gate = f"the gate reports in {POWER:.0%} of cases, at a level of {self.level:g}"
        left_out = [f"left out: {len(self.skipped):,} unreadable"] if self.skipped else []
        return [
            first,
            f"{self.score_name}: {means}, {change} over {pluralize(d.rows, 'row')}",
            changes,
            f"the smallest loss that {gate}: {losses}",
            "that is with this noise alone; losses that differ from row to row need more rows",
            *left_out,
        ]

    def as_data(self) -> dict[str, Any]:
        """Return plain data that `json.dumps` accepts."""
        return {
            "is_same": self.is_same,
            "power": POWER,
            **asdict(self),
            "usage": self.usage.totals,
        }


async def noise_floor(
    run: Any,
    again: Any = None,
    *,
    graders: Any = None,
    judge: Any = None,
    score: str = "",
    lower_is_better: bool | None = None,
    result_columns: Mapping[str, str] | None = None,
    cluster: str | None = None,
    level: float = 0.95,
    **settings: Unpack[BatchSettings],
) -> NoiseFloor:
    """Return how far a set-up differs from itself, and which loss it could show.

    Args:
        run: A finished run, as in `compare`.
        again: Another run of the same thing, or the same answers graded once more. None: `graders`
            grade the answers of `run` twice.
        graders: As in `compare`; the second time without the cache.
        judge: The model that graders ask.
        score: As in `compare`.
        lower_is_better: As in `compare`.
        result_columns: As in `compare`.
        cluster: As in `compare`. With clusters, the rows of `smallest` are clusters.
        level: The confidence at which the gate will decide.
        **settings: As in `compare`.

    Raises:
        ConfigError: An argument or a file is wrong, or there is nothing to compare.
        GradingError: Nothing could be graded.
        BudgetExhaustedError: The budget or the time ran out.
    """
    if again is None and (graders is None or ranks_answers(graders)):
        raise ConfigError(
            "give a second run of the same thing, or graders that score the answers of one twice"
        )
    options = ComparisonSettings(clusters=cluster, level=level)
    grading = {"tasks": None, "graders": graders, "judge": judge, "model": None}
    work = open_comparison(options, settings, lower_is_better=lower_is_better, **grading)
    sources = (run,) if again is None else (run, again)
    sides = await work.results_in(
        sources, score=score, columns=result_columns, labelled=again is None
    )
    if graders is None:
        lower = is_any_lower(sides, stated=lower_is_better)
        options = replace(options, lower_is_better=lower)
    if again is None:
        work.settings = {**work.settings, "cache": {}}
        second = await work.grade_anew(sides[0], "again")
        sides = [sides[0], replace(second, name=f"{second.name} (again)")]
    paired, _ = await paired_runs(work, sides, options)
    scores = PairedScores(paired.pairs, options)
    count = len(paired.pairs)
    both = list(zip(scores.a, scores.b, strict=True))
    flips = sum((a >= THRESHOLD) != (b >= THRESHOLD) for a, b in both)
    return NoiseFloor(
        sides[0].name,
        sides[1].name,
        scores.difference(),
        sum(a != b for a, b in both) / count,
        flips / count if scores.are_shares else None,
        wilson_interval(flips, count, level) if scores.are_shares else None,
        noise_sigma(both) or 0.0,
        _smallest_losses(scores, level),
        level,
        score_name=sides[1].score_name,
        usage=work.usage,
        skipped=tuple(dict.fromkeys(reason for side in sides for reason in side.skipped)),
    )


noise_floor_sync = async_to_sync(noise_floor)
"""Call `noise_floor` without await. It also works where an event loop is running."""


def _smallest_losses(scores: PairedScores, level: float) -> dict[int, float | None]:
    changes: defaultdict[Hashable, list[float]] = defaultdict(list)
    for a, b, group in zip(scores.a, scores.b, scores.groups, strict=True):
        changes[group].append(b - a)
    both = [round(score, DIGITS) for score in (*scores.a, *scores.b)]
    span = 1.0 if scores.are_shares else max(both) - min(both)
    if not span:
        return {}
    step = _step(both, span)
    noise = [fmean(each) for each in changes.values()]
    return {rows: smallest_loss(noise, rows, step, largest=span, level=level) for rows in ROWS}


def _step(scores: Sequence[float], span: float) -> float:
    """Return the smallest distance of two scores. If nearly all rows have one of a few scores, the
    distance of others from these does not count: it would halve the loss that can be seen.
    """
    counts = Counter(scores)
    usual = [score for score, n in counts.items() if n >= USUAL * len(scores)]
    if len(usual) < 2 or sum(counts[score] for score in usual) < NEARLY_ALL * len(scores):
        usual = list(counts)
    return min((y - x for x, y in pairwise(sorted(usual))), default=span)


def smallest_loss(
    noise: Sequence[float], rows: int, step: float, *, largest: float = 1.0, level: float = 0.95
) -> float | None:
    """Return the smallest mean loss that the gate reports with a probability of 80%; None if it
    reports none up to the largest one that is possible.

    Args:
        noise: Differences of repeated scores. Their signs are chance, so both signs count.
        rows: The number of rows, each of which is as noisy.
        step: The smallest distance of two scores. Rows lose whole steps: as many as the loss has,
            and a share of them one more. With scores of 0 and 1, a loss is a share of rows that
            fail.
        largest: The largest loss that is possible.
        level: The confidence of the gate.

    It is found by simulation with a fixed seed: the share of 300 samples in which the interval of
    `paired_difference` lies below 0.
    """
    chance = random.Random(0)
    pool = [*noise, *(-change for change in noise)]
    samples = [
        [(chance.choice(pool), chance.random()) for _ in range(rows)] for _ in range(SAMPLES)
    ]

    def is_seen(loss: float) -> bool:
        whole, part = divmod(loss / step, 1) if step else (0.0, 0.0)
        seen = 0
        for sample in samples:
            after = [change - step * (whole + (place < part)) for change, place in sample]
            found = paired_difference([0.0] * rows, after, confidence=level)
            seen += found.verdict == "worse"
        return seen >= POWER * SAMPLES

    if not is_seen(largest):
        return None
    low, high = 0.0, largest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_seen(middle) else (middle, high)
    return high


async def anchor_drift(
    anchors: Any,
    graders: Any = None,
    judge: Any = None,
    *,
    score: str = "",
    result_columns: Mapping[str, str] | None = None,
    margin: float = DEFAULT_MARGIN,
    level: float = 0.95,
    **settings: Unpack[GradeSettings],
) -> JudgeDrift:
    """Return whether graders grade an anchor set as they did before.

    Args:
        anchors: Answers with their recorded scores: a run, as in `compare`, that the same graders
            have graded.
        graders: The graders, as in `grade`.
        judge: The model that graders ask.
        score: As in `compare`.
        result_columns: As in `compare`.
        margin: The shift of the mean score that does not matter.
        level: The confidence of the interval.
        **settings: As in `grade`. Nothing is taken from a cache.

    Raises:
        ConfigError: An argument or the file is wrong, or no row has a task, an answer and a score.
        GradingError: Nothing could be graded.
    """
    recorded = read_results(anchors, score=score, columns=result_columns).with_tasks()
    samples = [
        (row.score, row.task_hash or n, replace(row.task, response=row.text, responses=()))
        for n, row in enumerate(recorded.rows)
        if row.score is not None and row.task and row.text is not None
    ]
    if not samples:
        raise ConfigError(f"{recorded.name!r}: no row has a task, an answer and a score")
    settings["cache"] = None
    now = await grade_many([task for *_, task in samples], graders, judge, **settings)
    graded = [
        (before, report.score, group)
        for (before, group, _), report in zip(samples, now, strict=True)
        if report.score is not None
    ]
    usage = sum((report.usage for report in now), NO_USAGE)
    if not graded:
        raise GradingError(
            f"{recorded.name!r}: no anchor could be graded: {now[0].error}", usage=usage
        )
    before, after, groups = zip(*graded, strict=True)
    drift = judge_drift(before, after, margin=margin, clusters=groups, confidence=level)
    return replace(drift, usage=usage)


async def stale_graders(
    graders: Any, judge: Any = None, *, cards_dir: str | Path | None = None
) -> list[TrustStatus]:
    """Return which graders have changed since they were validated, and what of them: the rubric,
    the code, prompt or a setting, or the model. Graders that were never validated are not among
    them.

    Args:
        graders: The graders, as in `refine`.
        judge: The model that graders ask.
        cards_dir: The folder of validation cards; None: the usual one.

    Raises ConfigError for graders or a model that are wrong.
    """
    options = Options.from_settings({})
    found = await resolve_model(judge if needs_judge(graders) else False)
    models = Models(options, judge=found)
    async with Session(options, models, graders) as session:
        panel, roles = session.resolve_panel(())
        store = CardStore.in_folder(cards_dir)
        statuses = [
            store.trust_status(roles.traits[grader.name].name, *roles.identify(grader.name))
            for grader in panel
        ]
    return [status for status in statuses if status.status == "stale"]


anchor_drift_sync = async_to_sync(anchor_drift)
"""Call `anchor_drift` without await. It also works where an event loop is running."""
