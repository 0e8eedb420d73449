"""Numbers with their intervals, and what all kinds of labels have in common.

Every share comes with its Wilson interval, every other measure with a bootstrap interval by row (2.5 % and 97.5 %).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import statistics as m
from .cases import LabelKind, LabelledCase, Verdict

MIN_ROWS = 10  # rows below which nothing is proven
BOOTSTRAP_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Measure:
    """One number, its interval (95 %), of how many rows, and what a grader that guesses would get; None is unknown."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    chance: float | None = None
    about: str = ""

    @property
    def beats_chance(self) -> bool:
        """Whether the whole interval lies above chance, on enough rows."""
        return self.n >= MIN_ROWS and self.low is not None and self.chance is not None and self.low > self.chance


@dataclass(frozen=True, slots=True)
class ClassRates:
    """How one class was recognised: precision, recall and F1, each None where it cannot be known; `n` rows truly have it."""

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    n: int


@dataclass(frozen=True)
class ValidationReport:
    """All that was measured. `headline` is the one measure by which a grader is trusted; `groups` is it by group.

    `classes` counts what the grader said (inner) by what people said (outer), `complaints` what could not be read and
    how often. For plots: `probabilities` with their outcomes, the grader's `scores` by what people said, and `points`
    of people's score and the grader's.
    """

    kind: LabelKind
    rows: int
    headline: Measure
    measures: tuple[Measure, ...]
    groups: tuple[Measure, ...] = ()
    class_rates: tuple[ClassRates, ...] = ()
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    parse_errors: Mapping[str, int] = field(default_factory=dict)
    probabilities: tuple[tuple[float, bool], ...] = ()
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class CaseVerdicts:
    """A case with everything that a grader said of it."""

    case: LabelledCase
    verdicts: tuple[Verdict, ...]

    @property
    def readable_verdicts(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.readable]

    def mean_score(self, i: int = 0) -> float | None:
        """The mean score of a response over all looks; None where there is none."""
        return mean_of_known(v.scores[i] for v in self.verdicts if i < len(v.scores))

    @property
    def first_response_length(self) -> int:
        return len(self.case.responses[0])

    @property
    def label(self) -> float:
        """The number people gave, for kinds score and pass."""
        return float(self.case.label or 0)


def mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def proportion(name: str, successes: float, n: int, *, chance: float | None = None, about: str = "") -> Measure:
    """A share with its Wilson interval; unknown of nothing. Halves count as halves, which makes the interval wider than need be."""
    interval = m.wilson_interval(successes, n) if n else None
    low, high = interval or (None, None)
    return Measure(name, successes / n if n else None, low, high, n, chance, about)


Statistic = Callable[[Sequence[Any]], float | None]


def estimate(
    name: str, rows: Sequence[Any], statistic: Statistic, seed: int, *, chance: float | None = None, about: str = ""
) -> Measure:
    """A statistic of rows with its bootstrap interval; with fewer than ENOUGH rows there is none."""
    value = statistic(rows) if rows else None
    interval = (
        m.bootstrap_interval(rows, statistic, samples=BOOTSTRAP_SAMPLES, seed=seed)
        if value is not None and len(rows) >= MIN_ROWS
        else None
    )
    low, high = interval or (None, None)
    return Measure(name, value, low, high, len(rows), chance, about)


def measure_by_group(rows: Sequence[CaseVerdicts], measure: Callable[[Sequence[CaseVerdicts]], Measure]) -> tuple[Measure, ...]:
    """One measure for every group, in the order of their names; none where there is but one group."""
    groups: defaultdict[str, list[CaseVerdicts]] = defaultdict(list)
    for row in rows:
        groups[row.case.group].append(row)
    if len(groups) < 2:
        return ()
    found = ((name, measure(held)) for name, held in sorted(groups.items()))
    return tuple(Measure(name or "(none)", x.value, x.low, x.high, x.n, x.chance) for name, x in found)


def count_parse_errors(rows: Sequence[CaseVerdicts]) -> dict[str, int]:
    """Why verdicts could not be read, the most frequent first."""
    return dict(Counter(v.reason for row in rows for v in row.verdicts if not v.readable).most_common(10))


def unreadable_share(rows: Sequence[CaseVerdicts]) -> Measure:
    every = [v for row in rows for v in row.verdicts]
    return proportion("unreadable", sum(not v.readable for v in every), len(every), about="verdicts that could not be read")


def rater_agreement(rows: Sequence[CaseVerdicts], level: str) -> list[Measure]:
    """How far people agree among themselves: what can be expected of a grader."""
    rated = [row.case.ratings for row in rows if sum(r is not None for r in row.case.ratings) > 1]
    if not rated:
        return []
    levels = ("nominal",) if level == "nominal" else ("nominal", "ordinal", "interval")
    found = [
        Measure(
            f"raters' alpha ({name})", m.krippendorff_alpha(rated, name), n=len(rated), about="Krippendorff's alpha among people"
        )
        for name in levels
    ]
    fleiss = m.fleiss_kappa(rated) if level == "nominal" else None
    return found if fleiss is None else [*found, Measure("raters' Fleiss kappa", fleiss, n=len(rated), about="among people")]


def test_retest(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """How far repeated looks at the same response differ."""
    looks = [
        [v.scores[i] for v in row.readable_verdicts if i < len(v.scores) and v.scores[i] is not None]
        for row in rows
        for i in range(len(row.case.responses))
    ]
    again = [held for held in looks if len(held) > 1]
    if not again:
        return []
    sigma = m.noise_sigma(again)
    return [Measure("noise sigma", sigma, n=len(again), about="standard deviation of repeated looks, in points of the score")]
