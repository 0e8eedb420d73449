"""Computes the report of a comparison from paired results: differences, slices, and what people
would say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf, sqrt
from statistics import fmean
from typing import Any

from ..base.checks import format_value
from ..base.text import pluralize
from ..errors import ConfigError
from ..tables.row_values import MISSING, value_at
from ..usage import NO_USAGE, Usage
from ..validation.statistics import (
    Interval,
    LabelEstimate,
    PairedDifference,
    WinRate,
    clip_interval,
    confidence_sequence,
    group_values,
    labels_needed,
    paired_difference,
    pearson,
    ppi_difference,
    slice_differences,
)
from .labels import NOT_RANDOM, LabelUnit, PairLabels
from .report import DEFAULT_MARGIN, ComparisonReport, PeopleEstimate
from .results import PairedResults, ResultPair, ResultRow

MIN_LABELS = 5  # fewer say nothing
MAX_SLICE_NAME = 80


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """What is computed.

    `clusters` is a column of what several rows have in common (None: their task), `slices` are
    columns whose values are compared one by one, `margin` is the loss that does not matter (None:
    0.02 for scores from 0 to 1), `level` the confidence of intervals. With `anytime` the verdict
    holds although it is looked at after every row. `lower_is_better`: of the scores; a difference
    is then by how much lower those of B are.
    """

    clusters: str | None = None
    slices: tuple[str, ...] = ()
    margin: float | None = None
    level: float = 0.95
    anytime: bool = False
    lower_is_better: bool = False

    def margin_of(self, *, in_shares: bool) -> float | None:
        """Return the loss that does not matter, in the unit of the verdict; `in_shares`: that is
        from 0 to 1.
        """
        return DEFAULT_MARGIN if self.margin is None and in_shares else self.margin


def build_report(
    results: PairedResults,
    settings: ComparisonSettings = ComparisonSettings(),
    *,
    labels: PairLabels | None = None,
    wins: WinRate | None = None,
    usage: Usage = NO_USAGE,
) -> ComparisonReport:
    """Return the report of two runs.

    Raises ConfigError if a column does not exist, or scores are not from 0 to 1 where they must be.
    """
    scores = PairedScores(results.pairs, settings)
    blank_a, blank_b = results.silent_rows
    same_answers = all(pair.same_answer for pair in results.pairs)
    people = _people(scores, labels) if labels and not same_answers else None
    errors = _errors(scores, labels) if labels and same_answers else None
    unused = labels.unused if labels else {}
    return ComparisonReport(
        results.a.name,
        results.b.name,
        scores.difference(),
        people=people,
        errors=errors,
        wins=wins,
        slices={column: _slices(scores, column) for column in settings.slices},
        score_name=results.b.score_name,
        paired_by=results.paired_by,
        only_a=len(results.only_a),
        only_b=results.only_b,
        unscored_a=len(results.unscored_a),
        unscored_b=len(results.unscored_b),
        blank_a=blank_a,
        blank_b=blank_b,
        repeats=results.repeats,
        equal_tasks=scores.equal_tasks,
        same_answers=same_answers,
        anytime=_anytime(scores) if settings.anytime else None,
        worst_case=_worst_case(results, scores),
        # labels and win rates are from 0 to 1, too
        margin=settings.margin_of(in_shares=bool(scores.are_shares or people or wins)),
        level=settings.level,
        lower_is_better=settings.lower_is_better,
        unused_labels={reason: n for reason, n in unused.items() if n},
        forms=(results.a.form, results.b.form),
        skipped=(*results.a.skipped, *results.b.skipped),
        usage=usage,
    )


class PairedScores:
    """The scores of both runs, pair by pair, and the cluster of each pair (None: each is one).
    `missing` stands for no score.

    Where lower is better, scores are mirrored: those from 0 to 1 are subtracted from 1, others from
    0.
    """

    def __init__(
        self, pairs: Sequence[ResultPair], settings: ComparisonSettings, *, missing: float = 0.0
    ) -> None:
        self.pairs, self.settings = pairs, settings
        a, b = (
            [missing if row.score is None else float(row.score) for row in rows]
            for rows in ((pair.a for pair in pairs), (pair.b for pair in pairs))
        )
        self.are_shares = all(0 <= score <= 1 for score in (*a, *b))
        """Whether all scores are from 0 to 1."""
        self.clusters = (
            _task_clusters(pairs)
            if settings.clusters is None
            else _clusters(pairs, settings.clusters)
        )
        self.a, self.b = ([self.mirror(score) for score in side] for side in (a, b))

    def mirror(self, score: float) -> float:
        """Return a score such that higher is better; the same function returns the original
        score.
        """
        return score if not self.settings.lower_is_better else float(self.are_shares) - score

    @property
    def equal_tasks(self) -> int:
        """The number of pairs that are in the cluster of an earlier one because their tasks are
        equal.
        """
        return (
            0
            if self.clusters is None or self.settings.clusters is not None
            else len(self.clusters) - len(set(self.clusters))
        )

    @property
    def groups(self) -> Sequence[Hashable]:
        """The cluster of each pair; its own key if there are none."""
        return [pair.key for pair in self.pairs] if self.clusters is None else self.clusters

    @property
    def differences(self) -> list[float]:
        """By how much B scores above A in each pair."""
        return [b - a for a, b in zip(self.a, self.b, strict=True)]

    def difference(self) -> PairedDifference:
        """Return the difference over all pairs."""
        return self.as_shown(
            paired_difference(
                self.a, self.b, clusters=self.clusters, confidence=self.settings.level
            )
        )

    def as_shown(self, difference: PairedDifference) -> PairedDifference:
        """Return a difference with the means of the original scores, and an interval that does not
        leave their scale.
        """
        mean_a, mean_b = self.mirror(difference.mean_a), self.mirror(difference.mean_b)
        interval = self.clip(difference.interval)
        return replace(difference, mean_a=mean_a, mean_b=mean_b, interval=interval)

    def clip(self, interval: Interval | None) -> Interval | None:
        """Return the part of an interval of differences that the scale of the scores allows."""
        return clip_interval(interval, -1.0, 1.0) if self.are_shares else interval


def column_values(pairs: Sequence[ResultPair], column: str) -> list[str]:
    """Return the values of a column as texts; "" where it is missing. Raises ConfigError if no row
    has it.
    """
    values = [value_at(pair.values, column) for pair in pairs]
    if all(value is MISSING for value in values):
        names = dict.fromkeys(str(name) for pair in pairs[:100] for name in pair.values)
        listed = ", ".join(format_value(name, MAX_SLICE_NAME) for name in list(names)[:30])
        raise ConfigError(f"no row has a column {column!r}; there are {listed or 'none'}")
    return [
        "" if value is MISSING or value is None else str(value)[:MAX_SLICE_NAME] for value in values
    ]


def _clusters(pairs: Sequence[ResultPair], column: str) -> list[Hashable]:
    """Return the cluster of each pair; a pair without one is a cluster of its own."""
    return [
        value or ("row", pair.key)
        for value, pair in zip(column_values(pairs, column), pairs, strict=True)
    ]


def _task_clusters(pairs: Sequence[ResultPair]) -> list[Hashable] | None:
    """Return the task of each pair as its cluster; None if all tasks are different."""
    tasks = [pair.task or ("row", pair.key) for pair in pairs]
    return tasks if len(set(tasks)) < len(tasks) else None


def _slices(scores: PairedScores, column: str) -> Mapping[str, PairedDifference]:
    names = column_values(scores.pairs, column)
    level = 1 - (1 - scores.settings.level) / len(scores.settings.slices)  # for all columns at once
    try:
        found = slice_differences(
            scores.a, scores.b, names, clusters=scores.clusters, confidence=level
        )
        return {name: scores.as_shown(difference) for name, difference in found.items()}
    except ConfigError as error:
        raise ConfigError(f"column {column!r}: {error}") from error


def _anytime(scores: PairedScores) -> tuple[float, float]:
    """Return the interval that may be looked at after every row, of the mean over clusters."""
    if not scores.are_shares:
        raise ConfigError("anytime needs scores from 0 to 1")
    by_cluster = group_values(zip(scores.groups, scores.differences, strict=True))
    means = [sum(values) / len(values) for values in by_cluster.values()]
    return confidence_sequence(means, bounds=(-1.0, 1.0), confidence=scores.settings.level).interval


def _worst_case(results: PairedResults, scores: PairedScores) -> PairedDifference | None:
    """Return the difference if every answer that only B has no score for, or lacks, had the worst
    score.

    It is 0, or the lowest score of another scale; 1, or the highest one, if lower is better.
    """
    missing = [pair for pair in (*results.unscored_b, *results.only_a) if pair.a.score is not None]
    known = [
        row.score
        for pair in (*results.pairs, *missing)
        for row in (pair.a, pair.b)
        if row.score is not None
    ]
    lower = scores.settings.lower_is_better
    worst = (
        float(lower)
        if all(0 <= score <= 1 for score in known)
        else max(known)
        if lower
        else min(known)
    )
    return (
        PairedScores([*results.pairs, *missing], scores.settings, missing=worst).difference()
        if missing
        else None
    )


def _people(scores: PairedScores, labels: PairLabels) -> PeopleEstimate:
    """Return what people would say of all pairs. Raises ConfigError for fewer than MIN_LABELS
    labelled pairs.

    Pairs of equal answers have the difference 0, so that labels are needed for the others only. If
    some rows of a cluster have a label and others have none, those without one are left out.
    """
    pairs, level = scores.pairs, scores.settings.level
    truth, own, others, clusters, other_clusters = _labelled_columns(scores, labels)
    columns = [[(difference, 0.0) for difference in each] for each in (truth, own, others)]
    estimate = ppi_difference(
        *columns, clusters=clusters, unlabelled_clusters=other_clusters, confidence=level
    )
    alone = ppi_difference(*columns[:2], clusters=clusters, confidence=level)
    same = sum(pair.same_answer for pair in pairs)
    margin = scores.settings.margin_of(in_shares=True) or 0.0
    needed, for_gate = (
        _labels_to_decide(
            estimate,
            alone,
            pearson(truth, own) or 0.0,
            rows=len(pairs) - same,
            level=level,
            margin=loss,
        )
        for loss in (0.0, margin * len(pairs) / (len(pairs) - same))
    )
    estimate, alone = (_of_all(each, scores, labels.unit) for each in (estimate, alone))
    return PeopleEstimate(estimate, labels.unit, alone, needed, for_gate, same)


def _labelled_columns(scores: PairedScores, labels: PairLabels) -> tuple[list[Any], ...]:
    """Return people's differences and those of the judge on the labelled pairs, those of the judge
    on other pairs, and the clusters of both.
    """
    pairs, groups, judged = scores.pairs, scores.groups, scores.differences
    labelled = _labelled_places(pairs, labels, labels.differences, differing=True)
    touched = {groups[n] for n in labelled}
    others = [
        n for n, pair in enumerate(pairs) if groups[n] not in touched and not pair.same_answer
    ]
    if labels.unit == "preference":
        judged = [0.5 if d > 0 else -0.5 if d < 0 else 0.0 for d in judged]
    return (
        [labels.differences[pairs[n].key] for n in labelled],
        [judged[n] for n in labelled],
        [judged[n] for n in others],
        [groups[n] for n in labelled],
        [groups[n] for n in others],
    )


def _of_all(estimate: LabelEstimate, scores: PairedScores, unit: LabelUnit) -> LabelEstimate:
    """Return the estimate over all pairs from that over the pairs of different answers; the others
    have the difference 0.

    It is the product with the share of different answers, which is estimated, too: to first order,
    the variances add up. The interval does not leave the scale of the labels.
    """
    differs = [0.0 if pair.same_answer else 1.0 for pair in scores.pairs]
    share = paired_difference(
        [0.0] * len(differs), differs, clusters=scores.clusters, confidence=scores.settings.level
    )
    own, value, error = estimate.value, share.value * estimate.value, estimate.standard_error
    interval = estimate.interval
    if not all(differs):
        error = error and hypot(share.value * error, own * (share.standard_error or 0.0))
        below, above = (
            hypot(share.value * (end - own), own * (share.half_width or 0.0))
            for end in interval or (own, own)
        )
        interval = interval and (value - below, value + above)
    limit = 0.5 if unit == "preference" else 1.0
    interval = clip_interval(interval, -limit, limit)
    return replace(estimate, value=value, standard_error=error, interval=interval)


def _errors(scores: PairedScores, labels: PairLabels) -> PairedDifference:
    """Return by how much smaller the errors of B's scores of the same answers are."""
    rows = _labelled_places(scores.pairs, labels, labels.levels)
    pairs = [(scores.pairs[n], labels.levels[scores.pairs[n].key]) for n in rows]
    a = [-_mean_error(pair.a_rows, levels, scores.mirror) for pair, levels in pairs]
    b = [-_mean_error(pair.b_rows, levels, scores.mirror) for pair, levels in pairs]
    clusters = None if scores.clusters is None else [scores.clusters[n] for n in rows]
    found = paired_difference(a, b, clusters=clusters, confidence=scores.settings.level)
    return replace(found, interval=scores.clip(found.interval))


def _mean_error(
    rows: Sequence[ResultRow], levels: Mapping[str | None, float], mirror: Callable[[float], float]
) -> float:
    """Return the mean error of the scores of those repeats whose text has a label; the text None
    stands for all of them.
    """
    scores = group_values(
        (text, mirror(float(row.score or 0.0))) for row in rows for text in {None, row.text}
    )
    errors = [abs(fmean(scores[text]) - label) for text, label in levels.items()]
    return fmean(errors, [len(scores[text]) for text in levels])


def _labelled_places(
    pairs: Sequence[ResultPair],
    labels: PairLabels,
    values: Mapping[str, Any],
    *,
    differing: bool = False,
) -> list[int]:
    """Return the places of the pairs with a label; with `differing`, of different answers only.

    Raises ConfigError for fewer than MIN_LABELS.
    """
    places = [
        n
        for n, pair in enumerate(pairs)
        if pair.key in values and not (differing and pair.same_answer)
    ]
    if len(places) < MIN_LABELS:
        unused = "".join(
            f"; {pluralize(n, 'label is', 'labels are')} {reason}"
            for reason, n in labels.unused.items()
            if n
        )
        if labels.unused.get(NOT_RANDOM):
            unused += ": label more, or begin another file with a larger --random-share"
        kind = (
            "different answers and labels"
            if differing and any(pair.same_answer for pair in pairs)
            else "labels"
        )
        raise ConfigError(
            f"labels: {pluralize(len(places), 'row has', 'rows have')} {kind} of people, and at "
            f"least {MIN_LABELS} are needed{unused}"
        )
    return places


def _labels_to_decide(
    estimate: LabelEstimate,
    alone: LabelEstimate,
    correlation: float,
    *,
    rows: int,
    level: float,
    margin: float,
) -> int | None:
    """Return how many labels would decide whether B is better, or with a margin the gate; None if
    it is decided, or none would.

    The spread of the labels is taken from their standard error, which knows of clusters.
    """
    low, high = estimate.interval or (-inf, inf)
    target = max(estimate.value + margin, -estimate.value)
    if low > -margin or high < 0 or target <= 0 or not alone.standard_error:
        return None
    spread = alone.standard_error * sqrt(alone.labels)
    needed = labels_needed(target, spread, correlation, unlabelled=rows, confidence=level)
    return needed if alone.labels < needed < 10**7 else None
