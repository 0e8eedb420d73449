"""Which of two graders agrees better with people, and whether a judge has changed: paired, on the
same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, Unpack

from ..base import checks
from ..base.sync import async_to_sync
from ..errors import ConfigError, GradingError
from ..plans.quality.calibration import check_confidence
from ..settings import ValidationSettings
from ..usage import NO_USAGE, Usage
from . import statistics as m
from .api import in_direction, labelled_cases, validate
from .cases import (
    TIE,
    CaseVerdicts,
    LabelKind,
    LabelledCase,
    Verdict,
    better_of_two,
    preferred_response,
)
from .differences import PairedDifference, ThreeWayVerdict, paired_difference
from .report import kendall_tau, pass_label, verdicts_by_case
from .run import ValidationResult

MEASURES: dict[LabelKind, str] = {
    "score": "concordance",
    "pass": "accuracy",
    "pair": "preference",
    "ranking": "Kendall tau-b",
}
"""The agreement with people that is compared, for each kind of labels."""


@dataclass(frozen=True)
class GraderComparison:
    """How far two graders agree with people on the same cases.

    Attributes:
        measure: What is compared: "accuracy" (labels of kind pass), "preference" (pair: it prefers
            what people prefer, its ties count half), "Kendall tau-b" (ranking), or "concordance"
            (score: the probability that it orders two answers as people do, its ties count half).
        difference: By how much the second grader agrees better than the first. `mean_a` and
            `mean_b` are the agreements.
        first: The validation of the first grader; None if only its verdicts were given.
        second: The validation of the second grader.
    """

    measure: str
    difference: PairedDifference
    first: ValidationResult | None = None
    second: ValidationResult | None = None

    @property
    def usage(self) -> Usage:
        """The usage of the calls of both graders."""
        return sum(
            (result.usage or NO_USAGE for result in (self.first, self.second) if result), NO_USAGE
        )

    @property
    def verdict(self) -> ThreeWayVerdict:
        """Whether the second grader is "better", "worse" or "undecided"."""
        return self.difference.verdict


async def compare_graders(
    cases: Any,
    first: Any,
    second: Any,
    judge: Any = None,
    *,
    second_judge: Any = None,
    columns: dict[str, str] | None = None,
    kind: LabelKind | None = None,
    limit: int | None = None,
    repeats: int = 1,
    threshold: float = 0.5,
    confidence: float = 0.95,
    lower_is_better: bool | None = None,
    **settings: Unpack[ValidationSettings],
) -> GraderComparison:
    """Have two graders judge the same labelled cases, and return which of them agrees better with
    people.

    Args:
        cases: As in `validate`.
        first: A grader, as in `validate`.
        second: Another grader; the same one with another `second_judge` compares models.
        judge: The model that graders ask, as in `validate`.
        second_judge: The model that the second grader asks; None: `judge`.
        columns: As in `validate`.
        kind: As in `validate`.
        limit: As in `validate`.
        repeats: As in `validate`.
        threshold: As in `validate`.
        confidence: The confidence of the interval of the difference.
        lower_is_better: As in `validate`.
        **settings: As in `validate`. The budget and the deadline hold for each grader.

    Cases with the same task or ID are one cluster, as in `validate`. A case that a grader cannot
    read counts as wrong, one that was not judged by both is left out. The interval is that of
    `paired_difference`; for concordance, of its jackknife values.

    Raises:
        ConfigError: As in `validate`.
        GradingError: No case was judged by both graders.
    """
    check_confidence(confidence)
    labelled = in_direction(
        labelled_cases(cases, columns or {}, kind, limit), lower_is_better=lower_is_better
    )
    results = [
        await validate(
            labelled,
            grader,
            model,
            repeats=repeats,
            threshold=threshold,
            lower_is_better=False,
            **settings,
        )
        for grader, model in (
            (first, judge),
            (second, judge if second_judge is None else second_judge),
        )
    ]
    compared = compare_verdicts(
        labelled.cases,
        *(result.verdicts for result in results),
        threshold=threshold,
        confidence=confidence,
    )
    return GraderComparison(compared.measure, compared.difference, *results)


compare_graders_sync = async_to_sync(compare_graders)
"""Call `compare_graders` without await. It also works where an event loop is running."""


def compare_verdicts(
    cases: Sequence[LabelledCase],
    first: Sequence[Verdict],
    second: Sequence[Verdict],
    *,
    threshold: float = 0.5,
    confidence: float = 0.95,
) -> GraderComparison:
    """Return which of two graders agrees better with people, from their verdicts on the same cases.

    The arguments are as in `compare_graders`. Raises GradingError if no case has verdicts of both
    that can be compared.
    """
    sides = [
        {row.case.id: row for row in verdicts_by_case(cases, verdicts)}
        for verdicts in (first, second)
    ]
    both = [case.id for case in cases if case.id in sides[0] and case.id in sides[1]]
    if not both:
        raise GradingError("no case was judged by both graders")
    kind = cases[0].kind
    agreements = [AGREEMENTS[kind]([side[id] for id in both], threshold) for side in sides]
    rows = [
        n for n in range(len(both)) if agreements[0][n] is not None and agreements[1][n] is not None
    ]
    if not rows:
        raise GradingError(
            "people's labels do not distinguish any answers, so no grader can agree with them"
        )
    a, b = ([float(side[n] or 0.0) for n in rows] for side in agreements)
    clusters = [sides[0][both[n]].case.cluster or f"case {both[n]}" for n in rows]
    found = paired_difference(a, b, clusters=clusters, confidence=confidence)
    interval = found.interval and (max(-1.0, found.interval[0]), min(1.0, found.interval[1]))
    return GraderComparison(MEASURES[kind], replace(found, interval=interval))


Agreements: TypeAlias = list[float | None]


def _pass_agreements(rows: Sequence[CaseVerdicts], threshold: float) -> Agreements:
    return [float(pass_label(row, threshold) == ("pass" if row.label else "fail")) for row in rows]


def _preferences(rows: Sequence[CaseVerdicts], _threshold: float) -> Agreements:
    return [_preference(better_of_two(row.case.ranks), preferred_response(row)) for row in rows]


def _preference(people: str, grader: str) -> float | None:
    return None if people == TIE else 0.5 if grader == TIE else float(grader == people)


def _rank_correlations(rows: Sequence[CaseVerdicts], _threshold: float) -> Agreements:
    return [kendall_tau(row) for row in rows]


def _concordances(rows: Sequence[CaseVerdicts], _threshold: float) -> Agreements:
    """Return a jackknife value of each row, so that their mean is the concordance and their spread
    its error.

    The concordance is a mean over pairs, so that each row counts in two means: the value is 2 c - C
    for a row's own mean c.
    """
    np: Any = m.import_library("numpy")
    labels = np.array([row.label for row in rows])
    scores = np.array([np.nan if (score := row.mean_score()) is None else score for row in rows])
    totals, counts = np.zeros(len(rows)), np.zeros(len(rows))
    for n in range(len(rows)):
        people = np.sign(labels - labels[n])
        grader = np.nan_to_num(np.sign(scores - scores[n]))  # an unreadable score orders nothing
        decided = people != 0
        counts[n] = decided.sum()
        totals[n] = ((1 + people * grader) / 2)[decided].sum()
    if not counts.sum():
        return [None] * len(rows)
    overall = totals.sum() / counts.sum()
    mean_count = counts.mean()
    return [
        float(overall + 2 * (total - overall * count) / mean_count)
        for total, count in zip(totals, counts, strict=True)
    ]


AGREEMENTS: dict[LabelKind, Callable[[Sequence[CaseVerdicts], float], Agreements]] = {
    "score": _concordances,
    "pass": _pass_agreements,
    "pair": _preferences,
    "ranking": _rank_correlations,
}


@dataclass(frozen=True, slots=True)
class JudgeDrift:
    """Whether a judge grades an anchor set as it did before.

    Attributes:
        shift: By how much its scores rose.
        error_change: By how much its absolute errors grew; None without labels.
        margin: The shift that does not matter.
        verdict: "drifted" if the scores rose or fell, and maybe by more than the margin; "stable"
            if the interval of the shift is within the margin; else "undecided".
    """

    shift: PairedDifference
    error_change: PairedDifference | None
    margin: float
    verdict: Literal["drifted", "stable", "undecided"]


def judge_drift(
    before: Sequence[float],
    after: Sequence[float],
    labels: Sequence[float] | None = None,
    *,
    margin: float = 0.02,
    clusters: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> JudgeDrift:
    """Return whether a judge has changed, from its scores of the same answers then and now.

    Args:
        before: Its first scores of the answers of an anchor set.
        after: Its scores of the same answers later, such as after an update of the model behind it.
        labels: People's labels of the answers, on the scale of the scores, to see whether it became
            less accurate.
        margin: The shift of the mean score that does not matter.
        clusters: The cluster of each answer. None: the answers are independent.
        confidence: The confidence of the intervals.

    Keep the answers of the anchor set as they are, and grade them without the cache: cached replies
    cannot change. Raises ConfigError as `paired_difference` does.
    """
    checks.number("margin", margin)
    shift = paired_difference(before, after, clusters=clusters, confidence=confidence)
    change = None
    if labels is not None:
        truth = m.finite_numbers("labels", labels)
        if len(truth) != len(before):
            raise ConfigError(
                f"labels must be as many as scores, got {len(truth)} for {len(before)}"
            )
        errors = [
            [abs(x - y) for x, y in zip(side, truth, strict=True)] for side in (before, after)
        ]
        change = paired_difference(*errors, clusters=clusters, confidence=confidence)
    low, high = shift.interval or (-float("inf"), float("inf"))
    if -margin <= low and high <= margin:
        return JudgeDrift(shift, change, margin, "stable")
    return JudgeDrift(shift, change, margin, "drifted" if low > 0 or high < 0 else "undecided")
