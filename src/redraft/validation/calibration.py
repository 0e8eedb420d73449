"""Fits the map from a judge's scores to the labels of people, and measures its error.

The map is monotone. Up to 50 labels it is a line whose slope is shrunk towards 1; with more labels
it is the mean of that line and of an isotonic regression, or one of the two where cross-fitting
shows it to be better by more than one standard error. Errors are measured on labels of clusters
that the map was not fitted to.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pstdev, stdev
from typing import Any, TypeAlias

from ..base import checks
from ..errors import ConfigError
from ..graders.cards import MIN_CALIBRATION_LABELS
from ..plans.quality.calibration import (
    MIN_RELIABILITY,
    Calibration,
    LabelPrediction,
    label_spread,
    mapped_label,
)
from . import statistics as m
from .cases import CaseVerdicts, LabelledCase, Verdict
from .report import cluster_of, verdicts_by_case

__all__ = ["Calibration", "LabelPrediction", "calibrate_grader", "fit_calibration"]

MIN_LABELS = 3
ISOTONIC_LABELS = 50  # more labels than this allow an isotonic map
SLOPE_WEIGHT = 4.0  # labels that the assumption of slope 1 is worth, in units of noise over spread
MIN_SLOPE = 0.3  # by which the label rises with the score, when the drift is measured
MAX_FOLDS = 10
LEAVE_ONE_OUT_LABELS = 40  # up to this many labels, each cluster is a fold
MAX_ERRORS = 200  # of a calibration
DIGITS = 6

Knots: TypeAlias = tuple[tuple[float, float], ...]
Points: TypeAlias = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ScoredLabel:
    """A judge's score and people's label of one answer, and the cluster that it belongs to."""

    score: float
    label: float
    cluster: Hashable


def fit_calibration(
    scores: Sequence[float],
    labels: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    parents: Sequence[int | None] | None = None,
    noise_sd: float | None = None,
    repeats: float = 1,
) -> Calibration:
    """Return the calibration of a judge by labelled answers.

    Args:
        scores: The judge's score of each answer, from 0 to 1.
        labels: People's label of each answer, from 0 to 1; 1 and 0 for pass and fail.
        clusters: What each answer belongs to, such as its task or document. Answers of one cluster
            are not independent, so that errors are measured on other clusters. None: each answer is
            a cluster of its own.
        parents: The index of the answer that each one refines, None for a draft. They show the
            drift of the judge.
        noise_sd: Standard deviation of repeated scores of one answer, None if unknown.
        repeats: How many scores of an answer were averaged.

    Labels that were used to choose or to tune the judge do not count: its errors on them are
    smaller than on others.

    Sources: least squares, with the slope shrunk towards 1; isotonic regression (Barlow et al.
    1972); errors on labels that were held out (Barber et al., "Predictive inference with the
    jackknife+", 2021).

    Raises:
        ConfigError: There are fewer than three answers, the lengths differ, or a value is missing,
            NaN or out of range; or `redraft[validate]` is not installed.
    """
    rows = _scored_labels(scores, labels, clusters)
    parents = _check_parents(parents, len(rows))
    checks.number("noise_sd", noise_sd, optional=True)
    checks.number("repeats", repeats, 1)
    fit, expected = _choose_map(rows)
    errors = (
        [row.label - mean for row, mean in zip(rows, expected, strict=True)] if expected else []
    )
    label_mean, score_mean = fmean(row.label for row in rows), fmean(row.score for row in rows)
    relative = [
        error / label_spread(mean, label_mean) for error, mean in zip(errors, expected, strict=True)
    ]
    drift, drift_se, drift_pairs = _drift(
        rows, parents, _label_slope(rows, parents, noise_sd, repeats)
    )
    return Calibration(
        labels=len(rows),
        clusters=len({row.cluster for row in rows}),
        knots=_rounded_knots(fit(_points(rows))),
        errors=tuple(_evenly_chosen([round(error, DIGITS) for error in sorted(relative)])),
        label_mean=round(label_mean, DIGITS),
        score_mean=round(score_mean, DIGITS),
        score_sd=round(pstdev(row.score for row in rows), DIGITS),
        bias=round(score_mean - label_mean, DIGITS),
        error_sd=round(sqrt(fmean(error * error for error in errors)), DIGITS) if errors else None,
        score_error_sd=round(sqrt(fmean((row.score - row.label) ** 2 for row in rows)), DIGITS),
        noise_sd=noise_sd,
        repeats=repeats,
        drift=drift,
        drift_se=drift_se,
        drift_pairs=drift_pairs,
    )


def calibrate_grader(
    cases: Sequence[LabelledCase],
    verdicts: Iterable[Verdict],
    scale: tuple[float, float] | None = None,
) -> Calibration | None:
    """Return the calibration of a grader by its verdicts on labelled cases, for a validation card.

    `scale` is the lowest and the highest label that people could give, for labels of kind score;
    None: from 0 to 1. The result is None for labels of other kinds or outside the scale, and for
    fewer than 100 cases with both a label and a score.
    """
    kind = cases[0].kind
    low, high = (0.0, 1.0) if scale is None or kind == "pass" else scale
    judged = verdicts_by_case(cases, verdicts) if kind in {"score", "pass"} else []
    rows = [(row, score) for row in judged if (score := row.mean_score()) is not None]
    inside = all(low <= row.label <= high for row, _ in rows)
    if len(rows) < MIN_CALIBRATION_LABELS or not inside:
        return None
    repeated = [_first_scores(row) for row, _ in rows]
    place = {row.case.id: i for i, (row, _) in enumerate(rows)}
    return fit_calibration(
        [score for _, score in rows],
        [(row.label - low) / (high - low) for row, _ in rows],
        clusters=[cluster_of(row.case) for row, _ in rows],
        parents=[place.get(row.case.parent) for row, _ in rows],
        noise_sd=m.noise_sigma(repeated),
        repeats=fmean(map(len, repeated)),
    )


def _first_scores(row: CaseVerdicts) -> list[float | None]:
    """Return the known scores of the first response."""
    return [v.scores[0] for v in row.verdicts if v.scores and v.scores[0] is not None]


# ---- arguments


def _scored_labels(scores: Any, labels: Any, clusters: Any) -> list[ScoredLabel]:
    columns = {
        name: m.finite_numbers(name, column, 0, 1)
        for name, column in (("scores", scores), ("labels", labels))
    }
    n = len(columns["scores"])
    groups = list(range(n)) if clusters is None else list(clusters)
    m.check_equal_lengths(**columns, clusters=groups)
    if n < MIN_LABELS:
        raise ConfigError(f"a calibration needs at least {MIN_LABELS} labels, got {n}")
    return [ScoredLabel(*row) for row in zip(*columns.values(), groups, strict=True)]


def _check_parents(parents: Sequence[int | None] | None, n: int) -> Sequence[int | None]:
    parents = [None] * n if parents is None else list(parents)
    if len(parents) != n:
        raise ConfigError(f"parents must be as many as scores, {n}, got {len(parents)}")
    for i, parent in enumerate(parents):
        checks.whole_number(f"parents[{i}]", parent, 0, n - 1, optional=True)
    return parents


# ---- maps


def _points(rows: Iterable[ScoredLabel]) -> list[tuple[float, float]]:
    return [(row.score, row.label) for row in rows]


def _line(points: Points) -> Callable[[float], float]:
    """Return least squares through the means, with its slope shrunk towards 1, and at least 0."""
    x_mean, y_mean = (fmean(point[i] for point in points) for i in (0, 1))
    xx = sum((x - x_mean) ** 2 for x, _ in points)
    slope = 1.0
    if xx > 0:
        slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / xx
        residual = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points) / max(
            1, len(points) - 2
        )
        slope = max(0.0, (slope * xx + SLOPE_WEIGHT * residual) / (xx + SLOPE_WEIGHT * residual))
    return lambda x: y_mean + slope * (x - x_mean)


def _linear_map(points: Points) -> Knots:
    """Return the line between the lowest and the highest score."""
    line = _line(points)
    return tuple((x, line(x)) for x in _ends(points))


def _ends(points: Points) -> list[float]:
    """Return the lowest and the highest score; only one if they are equal."""
    scores = [x for x, _ in points]
    return sorted({min(scores), max(scores)})


def _isotonic_map(points: Points) -> Knots:
    """Return the isotonic regression: constant in each block, and linear from the end of a block to
    the start of the next.
    """
    ends = {
        x: block.value for block in m.isotonic_blocks(points) for x in (block.first, block.last)
    }
    return tuple(ends.items())


def _mean_map(points: Points) -> Knots:
    """Return the mean of the line and of the isotonic regression, with the centres of its blocks
    joined by lines.
    """
    line = _line(points)
    centres = tuple((block.centre, block.value) for block in m.isotonic_blocks(points))
    scores = sorted({*_ends(points), *(x for x, _ in centres)})
    return tuple((x, (line(x) + mapped_label(centres, x)) / 2) for x in scores)


def _choose_map(rows: Sequence[ScoredLabel]) -> tuple[Callable[[Points], Knots], list[float]]:
    """Return how to fit the map, and the label that it expects of each row, fitted to other
    clusters; [] for a single cluster.
    """
    folds = _folds(rows)
    if len(rows) <= ISOTONIC_LABELS:
        return _linear_map, _cross_fit(_linear_map, rows, folds)
    best = _mean_map
    expected = _cross_fit(best, rows, folds)
    for other in (_linear_map, _isotonic_map) if expected else ():
        others = _cross_fit(other, rows, folds)
        gains = [
            (row.label - a) ** 2 - (row.label - b) ** 2
            for row, a, b in zip(rows, expected, others, strict=True)
        ]
        if fmean(gains) > stdev(gains) / sqrt(len(gains)):
            best, expected = other, others
    return best, expected


def _folds(rows: Sequence[ScoredLabel]) -> list[int]:
    """Return the fold of each row: clusters stay whole, in folds of about equal size, and equal
    rows give equal folds.
    """
    sizes = Counter(row.cluster for row in rows)
    names = list(sizes)
    random.Random(0).shuffle(names)
    n = len(names) if len(rows) <= LEAVE_ONE_OUT_LABELS else min(MAX_FOLDS, len(names))
    loads, fold = [0] * n, dict[Hashable, int]()
    for name in sorted(names, key=lambda name: -sizes[name]):
        fold[name] = min(range(n), key=loads.__getitem__)
        loads[fold[name]] += sizes[name]
    return [fold[row.cluster] for row in rows]


def _cross_fit(
    fit: Callable[[Points], Knots], rows: Sequence[ScoredLabel], folds: Sequence[int]
) -> list[float]:
    """Return the label that a map fitted to the other folds expects of each row; [] for a single
    fold.
    """
    if len(set(folds)) < 2:
        return []
    knots = {
        fold: fit(_points(row for row, own in zip(rows, folds, strict=True) if own != fold))
        for fold in dict.fromkeys(folds)
    }
    return [mapped_label(knots[fold], row.score) for row, fold in zip(rows, folds, strict=True)]


def _rounded_knots(knots: Knots) -> Knots:
    """Return knots with few digits, without those that rounding made equal."""
    return tuple(
        {round(x, DIGITS): (round(x, DIGITS), round(y, DIGITS)) for x, y in knots}.values()
    )


def _evenly_chosen(ordered: Sequence[float]) -> Iterator[float]:
    """Yield at most MAX_ERRORS of the values, evenly chosen, with both ends."""
    n = len(ordered)
    if n <= MAX_ERRORS:
        yield from ordered
    else:
        yield from (ordered[round(i * (n - 1) / (MAX_ERRORS - 1))] for i in range(MAX_ERRORS))


# ---- drift


def _label_slope(
    rows: Sequence[ScoredLabel],
    parents: Sequence[int | None],
    noise_sd: float | None,
    repeats: float,
) -> float:
    """Return by how much the label rises with the judge's average score, among drafts and among
    refinements.

    Noise makes the slope of single scores smaller. If the noise is unknown, a slope below 1 is put
    down to it.
    """
    groups = [
        [row for row, parent in zip(rows, parents, strict=True) if (parent is None) is is_draft]
        for is_draft in (True, False)
    ]
    squares = products = 0.0
    for group in filter(None, groups):
        score_mean, label_mean = (
            fmean(row.score for row in group),
            fmean(row.label for row in group),
        )
        squares += sum((row.score - score_mean) ** 2 for row in group)
        products += sum((row.score - score_mean) * (row.label - label_mean) for row in group)
    if not squares:
        return 1.0
    if noise_sd is None:
        return max(1.0, products / squares)
    reliability = max(MIN_RELIABILITY, 1 - noise_sd**2 / repeats * len(rows) / squares)
    return max(MIN_SLOPE, products / squares / reliability)


def _drift(
    rows: Sequence[ScoredLabel], parents: Sequence[int | None], slope: float
) -> tuple[float | None, float | None, int]:
    """Return by how much more refinements raise the score than the label, in points of the score.

    `slope`: by how much the label rises with the score. Also returns the standard error over
    clusters, and how many there are.
    """
    refined = [(row, rows[p]) for row, p in zip(rows, parents, strict=True) if p is not None]
    by_cluster = m.group_values(
        (row.cluster, (row.score - before.score) - (row.label - before.label) / slope)
        for row, before in refined
    )
    changes = [change for cluster in by_cluster.values() for change in cluster]
    if not changes:
        return None, None, 0
    drift, n = fmean(changes), len(by_cluster)
    squares = sum(sum(change - drift for change in cluster) ** 2 for cluster in by_cluster.values())
    error = sqrt(n / (n - 1) * squares) / len(changes) if n > 1 else None
    return round(drift, DIGITS), None if error is None else round(error, DIGITS), len(changes)
