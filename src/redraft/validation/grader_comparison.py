"""Which of two graders agrees better with people, and whether a judge has changed: paired, on the
same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, Unpack

from ..base.sync import async_to_sync
from ..errors import GradingError
from ..plans.quality.calibration import check_confidence
from ..settings import ValidationSettings
from ..usage import NO_USAGE, Usage
from . import statistics as m
from .api import in_direction, labelled_cases, validate
from .cases import (
    CaseVerdicts,
    LabelKind,
    LabelledCase,
    Verdict,
)
from .report import cluster_of, is_right, kendall_tau, preference, verdicts_by_case
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
    difference: m.PairedDifference
    first: ValidationResult | None = None
    second: ValidationResult | None = None

    @property
    def usage(self) -> Usage:
        """The usage of the calls of both graders."""
        return sum(
            (result.usage or NO_USAGE for result in (self.first, self.second) if result), NO_USAGE
        )

    @property
    def verdict(self) -> m.ThreeWayVerdict:
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
    first_rows, second_rows = (
        {row.case.id: row for row in verdicts_by_case(cases, verdicts)}
        for verdicts in (first, second)
    )
    both = [case for case in cases if case.id in first_rows and case.id in second_rows]
    if not both:
        raise GradingError("no case was judged by both graders")
    kind = cases[0].kind
    agreements = (
        AGREEMENTS[kind]([side[case.id] for case in both], threshold)
        for side in (first_rows, second_rows)
    )
    rows = [row for row in zip(*agreements, map(cluster_of, both), strict=True) if None not in row]
    if not rows:
        raise GradingError(
            "people's labels do not distinguish any answers, so no grader can agree with them"
        )
    a, b, clusters = map(list, zip(*rows, strict=True))
    found = m.paired_difference(a, b, clusters=clusters, confidence=confidence)
    interval = m.clip_interval(found.interval, -1.0, 1.0)
    return GraderComparison(MEASURES[kind], replace(found, interval=interval))


Agreements: TypeAlias = list[float | None]


def _concordances(rows: Sequence[CaseVerdicts], _threshold: float) -> Agreements:
    return m.concordance_values([row.label for row in rows], [row.mean_score() for row in rows])


AGREEMENTS: dict[LabelKind, Callable[[Sequence[CaseVerdicts], float], Agreements]] = {
    "score": _concordances,
    "pass": lambda rows, threshold: [is_right(row, threshold) for row in rows],
    "pair": lambda rows, _: list(map(preference, rows)),
    "ranking": lambda rows, _: list(map(kendall_tau, rows)),
}
"""How far a grader agrees with people about each row; None where their labels do not tell."""
