"""The measures of a grader: its verdicts compared with the labels of people, for each kind of
label.

Shares have a Wilson interval, most other measures a bootstrap interval over rows (2.5% to 97.5%).
Rows of one cluster are not independent: a share then has Wilson's interval for as many rows as
would be as precise, and the bootstrap draws whole clusters. Unreadable verdicts are counted
separately and never as right. A value that cannot be computed is None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..graders.cards import MIN_ROWS, NOISE, ClassRates, Measure
from . import statistics as m
from .cases import (
    FIRST,
    SECOND,
    TIE,
    UNREADABLE,
    CaseVerdicts,
    LabelKind,
    LabelledCase,
    Verdict,
    better_of_two,
    mean_of_known,
    preferred_response,
    verdict_ranks,
)

BOOTSTRAP_SAMPLES = 1000
LENIENCY = "mean score minus people's, both in 0-1"
SCALE_UNKNOWN = "unknown: give the scale that people used by --scale LOW-HIGH"
STEPS = 20  # classes into which the scale from 0 to 1 is divided
ALPHA = f"Krippendorff's, with people's mean, both in {STEPS} steps"
T = TypeVar("T")
Statistic: TypeAlias = Callable[[Sequence[Any]], float | None]


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """How labels and scores are read.

    `threshold`: the score from which a response passes. `scale`: the lowest and the highest number
    that people could give, for labels of kind score; None: unknown. `seed`: the seed of the
    bootstrap samples. `benchmark`: the name of the benchmark whose score comes first, or "".
    """

    threshold: float = 0.5
    scale: tuple[float, float] | None = None
    seed: int = 0
    benchmark: str = ""


@dataclass(frozen=True)
class ValidationReport:
    """The measures of a grader. `headline` decides whether the grader is trusted; `groups` holds it
    for each group.

    `confusion` counts the grader's labels (inner keys) by people's (outer keys), `parse_errors` the
    reasons why verdicts could not be read. For plots: `probabilities` with their outcomes, the
    grader's `scores` by people's label, and `points` of people's score and the grader's.
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


def build_report(
    cases: Sequence[LabelledCase],
    verdicts: Iterable[Verdict],
    config: ReportConfig = ReportConfig(),
) -> ValidationReport:
    """Compare verdicts with the labels of their cases. Cases without a verdict are left out; the
    caller counts them.
    """
    return REPORT_BUILDERS[cases[0].kind](verdicts_by_case(cases, verdicts), config)


def verdicts_by_case(
    cases: Sequence[LabelledCase], verdicts: Iterable[Verdict]
) -> list[CaseVerdicts]:
    """Return the cases that have a verdict, each with its verdicts."""
    by_case = m.group_values((verdict.case, verdict) for verdict in verdicts)
    return [CaseVerdicts(case, tuple(by_case[case.id])) for case in cases if case.id in by_case]


def score_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure scores against numeric labels: correlations, agreement and leniency on the scale that
    people used.
    """
    points = sample(rows, _score_point)
    pearson, kendall = (
        estimate(name, *points, of_columns(measure, 0, 1), config.seed, chance=0.0)
        for name, measure in (("Pearson", m.pearson), ("Kendall tau-b", m.kendall))
    )
    headline = _spearman(rows, config.seed)
    measures = [
        pearson,
        headline,
        kendall,
        *_scale_measures(rows, config),
        _verbosity(rows, config.seed),
        *retest_noise(rows),
        unreadable_share(rows),
        *rater_agreement(rows, "interval"),
    ]
    return ValidationReport(
        "score",
        len(rows),
        headline,
        tuple(measures),
        measure_by_group(rows, lambda group: _spearman(group, config.seed)),
        parse_errors=count_parse_errors(rows),
        scores=_scores_by_label(points.values),
        points=tuple((label, score) for score, label, _ in points.values),
    )


def _spearman(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    points = sample(rows, _score_point)
    rho = of_columns(m.spearman, 0, 1)
    if 2 * len(points.values) < len(rows):
        return Measure(
            "Spearman",
            rho(points.values),
            n=len(points.values),
            chance=0.0,
            about="most rows cannot be read",
        )
    about = "rank correlation with people"
    return estimate("Spearman", *points, rho, seed, chance=0.0, about=about)


def _scale_measures(rows: Sequence[CaseVerdicts], config: ReportConfig) -> list[Measure]:
    """Return alpha and leniency. Their values are None if a label is outside the scale."""
    low, high = config.scale or (0.0, 1.0)
    known = all(low <= row.label <= high for row in rows)
    scored = [row for row in rows if row.mean_score() is not None] if known else []
    both = sample(scored, lambda row: ((row.label - low) / (high - low), row.mean_score()))
    binned = [[round(x * STEPS) / STEPS for x in pair] for pair in both.values]
    alphas = [
        Measure(
            f"alpha ({level})",
            m.krippendorff_alpha(binned, level),
            n=len(binned),
            chance=0.0,
            about=ALPHA if known else SCALE_UNKNOWN,
        )
        for level in ("ordinal", "interval")
    ]
    about = LENIENCY if known else SCALE_UNKNOWN
    leniency = estimate("leniency", *both, _mean_rise, config.seed, about=about)
    return [*alphas, leniency]


def _mean_rise(pairs: Sequence[Any]) -> float | None:
    """Return by how much the second of each pair is larger, on average."""
    return mean_of_known(second - first for first, second in pairs)


def pass_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure scores against pass and fail: accuracy of both classes, and calibration of scores as
    probabilities.
    """
    labels = Counter(map(people_label, rows))
    both = sample(rows, lambda row: (people_label(row), pass_label(row, config.threshold)))
    points = sample(rows, _score_point)
    headline = _balanced_accuracy(rows, config.threshold)
    let_pass = sample(
        [row for row in rows if not row.label],
        lambda row: pass_label(row, config.threshold) == "pass",
    )
    measures = [
        proportion(
            "accuracy",
            *sample(rows, lambda row: is_right(row, config.threshold)),
            chance=max(labels.values()) / len(rows),
        ),
        headline,
        estimate("Cohen's kappa", *both, _kappa, config.seed, chance=0.0),
        *_calibration(points, config.seed),
        proportion("leniency", *let_pass, about="fails that it lets pass"),
        _verbosity(rows, config.seed),
        *retest_noise(rows),
        unreadable_share(rows),
        *rater_agreement(rows, "nominal"),
    ]
    return ValidationReport(
        "pass",
        len(rows),
        headline,
        tuple(measures),
        measure_by_group(rows, lambda group: _balanced_accuracy(group, config.threshold)),
        _class_rates(both.values),
        _confusion_counts(both.values),
        count_parse_errors(rows),
        tuple((score, bool(label)) for score, label, _ in points.values),
        _scores_by_label(points.values),
    )


def pair_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure preferences between two responses: accuracy, agreement, and the effects of order and
    length.
    """
    both = sample(rows, lambda row: (better_of_two(row.case.ranks), preferred_response(row)))
    headline = _preference_measure(rows)
    measures = [
        headline,
        proportion(
            "accuracy",
            [people == grader for people, grader in both.values],
            both.clusters,
            about="exactly what people said; a tie is right for a tie only",
        ),
        estimate(
            "Cohen's kappa",
            *both,
            _kappa,
            config.seed,
            chance=0.0,
            about="unreadable rows left out",
        ),
        *_order_measures(rows),
        _longer_preferred(rows),
        _pair_verbosity(rows, config.seed),
        proportion(
            "ties",
            [grader == TIE for _, grader in both.values],
            both.clusters,
            about="rows it does not decide",
        ),
        *_self_consistency(rows),
        *retest_noise(rows),
        unreadable_share(rows),
        *rater_agreement(rows, "nominal"),
    ]
    return ValidationReport(
        "pair",
        len(rows),
        headline,
        tuple(measures),
        measure_by_group(rows, _preference_measure),
        _class_rates(both.values),
        _confusion_counts(both.values),
        count_parse_errors(rows),
    )


def ranking_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure rankings: rank correlation within each row, and whether the best response comes
    first.
    """

    def agreement(group: Sequence[CaseVerdicts]) -> Measure:
        taus = sample(group, kendall_tau)
        about = "mean over rows; 0 if it ties or is unreadable"
        return estimate("Kendall tau-b", *taus, mean_of_known, config.seed, chance=0.0, about=about)

    headline = agreement(rows)
    best_first = proportion(
        "best first",
        *sample(rows, _best_share),
        chance=mean_of_known(1 / len(row.case.responses) for row in rows),
        about="rows whose best it ranks first; shared ranks count in part",
    )
    return ValidationReport(
        "ranking",
        len(rows),
        headline,
        (headline, best_first, *_order_measures(rows), unreadable_share(rows)),
        measure_by_group(rows, agreement),
        parse_errors=count_parse_errors(rows),
    )


REPORT_BUILDERS: dict[
    LabelKind, Callable[[Sequence[CaseVerdicts], ReportConfig], ValidationReport]
] = {
    "score": score_report,
    "pass": pass_report,
    "pair": pair_report,
    "ranking": ranking_report,
}


# ---- whether a grader agrees with people about a row


def people_label(row: CaseVerdicts) -> str:
    """Return people's label, "pass" or "fail"."""
    return "pass" if row.label else "fail"


def pass_label(row: CaseVerdicts, threshold: float) -> str:
    """Return "pass", "fail" or UNREADABLE: the majority of the verdicts, else by the mean score."""
    votes = [v.passed for v in row.readable_verdicts if v.passed is not None]
    if votes:
        return "pass" if sum(votes) * 2 > len(votes) else "fail"
    score = row.mean_score()
    return UNREADABLE if score is None else "pass" if score >= threshold else "fail"


def is_right(row: CaseVerdicts, threshold: float) -> float:
    """Return 1 if the verdict is people's label, else 0."""
    return float(pass_label(row, threshold) == people_label(row))


def preference(row: CaseVerdicts) -> float | None:
    """Return 1 if the grader prefers what people prefer, 0.5 for a tie, else 0; None if people
    prefer none.
    """
    people, grader = better_of_two(row.case.ranks), preferred_response(row)
    if people == TIE:
        return None
    return 0.5 if grader == TIE else float(grader == people)


def kendall_tau(row: CaseVerdicts) -> float | None:
    """Return Kendall's tau-b with people's ranks; 0 if the verdict ties all or is unreadable, None
    if people tie all.
    """
    people, order = row.case.ranks or (), _mean_ranks(row)
    if len(set(people)) < 2:
        return None
    return (m.kendall(order, people) if order else None) or 0.0


def _best_share(row: CaseVerdicts) -> float:
    """Return the share of the responses on the grader's first rank that are on people's."""
    ranks, order = row.case.ranks or (), _mean_ranks(row)
    if order is None:
        return 0.0
    top = [rank for rank, place in zip(ranks, order, strict=True) if place == min(order)]
    return top.count(min(ranks)) / len(top)


def _mean_ranks(row: CaseVerdicts) -> tuple[float, ...] | None:
    """Return the mean rank of each response over all verdicts."""
    all_ranks = [ranks for v in row.readable_verdicts if (ranks := verdict_ranks(v)) is not None]
    return (
        tuple(sum(column) / len(all_ranks) for column in zip(*all_ranks, strict=True))
        if all_ranks
        else None
    )


# ---- measures of several kinds of labels


def _preference_measure(rows: Sequence[CaseVerdicts]) -> Measure:
    return proportion(
        "preference",
        *sample(rows, preference),
        chance=0.5,
        about=(
            "prefers what people prefer; its ties count half, unreadable rows nothing, people's "
            "ties are left out"
        ),
    )


def _order_measures(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Measure the effect of the presentation order."""
    ordered = sample_verdicts(
        (v, row)
        for row in rows
        for v in row.readable_verdicts
        if v.ranks is not None and v.presentation_order
    )
    if not ordered.values:
        return []
    strict = ordered.where(lambda v: v.ranks.count(0) == 1)
    first = proportion(
        "first place",
        [v.ranks[v.presentation_order[0]] == 0 for v in strict.values],
        strict.clusters,
        chance=mean_of_known(1 / len(v.presentation_order) for v in strict.values),
        about="verdicts for the response shown first; chance if fair",
    )
    swapped = sample(rows, _same_in_every_order)
    about = "rows with the same verdict in every order"
    more = [proportion("order consistency", *swapped, about=about)] if swapped.values else []
    return [first, *more]


def _same_in_every_order(row: CaseVerdicts) -> bool | None:
    """Return whether the first verdicts for all presentation orders are equal; None for fewer than
    two orders.
    """
    by_order = m.group_values(
        (v.presentation_order, v.ranks)
        for v in row.readable_verdicts
        if v.presentation_order and v.ranks is not None
    )
    return len({ranks[0] for ranks in by_order.values()}) == 1 if len(by_order) > 1 else None


def _self_consistency(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Measure whether repeated verdicts on the same pair in the same order agree."""
    repeated = sample_verdicts(
        (len(set(ranks)) == 1, row)
        for row in rows
        for ranks in m.group_values(
            (v.presentation_order, verdict_ranks(v)) for v in row.readable_verdicts
        ).values()
        if len(ranks) > 1
    )
    about = "pairs with the same verdict in every repeat"
    return [proportion("self-consistency", *repeated, about=about)] if repeated.values else []


def _longer_preferred(rows: Sequence[CaseVerdicts]) -> Measure:
    decided = [
        row
        for row in rows
        if _longer_response(row) != TIE and preferred_response(row) in {FIRST, SECOND}
    ]
    people = mean_of_known(
        better_of_two(row.case.ranks) == _longer_response(row)
        for row in decided
        if better_of_two(row.case.ranks) != TIE
    )
    about = "verdicts for the longer response" + (
        "" if people is None else f"; people: {people:.2f}"
    )
    longer = sample(decided, lambda row: preferred_response(row) == _longer_response(row))
    return proportion("longer preferred", *longer, about=about)


def _longer_response(row: CaseVerdicts) -> str:
    a, b = map(len, row.case.responses)
    return TIE if a == b else FIRST if a > b else SECOND


SIGN = {FIRST: 1.0, TIE: 0.0, SECOND: -1.0}


def _pair_verbosity(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    """Return the partial rank correlation of the verdict with the difference in length, given
    people's verdict.
    """

    def signs_and_length(row: CaseVerdicts) -> tuple[float, float, float] | None:
        verdict = SIGN.get(preferred_response(row))
        first, second = map(len, row.case.responses)
        people = SIGN[better_of_two(row.case.ranks)]
        return None if verdict is None else (verdict, people, float(first - second))

    about = "rank correlation of the verdict with length, given people's"
    return _given_people("verbosity", sample(rows, signs_and_length), seed, about)


def _verbosity(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    about = "rank correlation of the score with length, given people's label"
    return _given_people("verbosity", sample(rows, _score_point), seed, about)


def _given_people(name: str, points: Sample, seed: int, about: str) -> Measure:
    """Return the partial rank correlation of the first column with the third, given the second."""
    statistic = of_columns(m.partial_rank_correlation, 0, 2, 1)
    return estimate(name, *points, statistic, seed, about=about)


def _balanced_accuracy(rows: Sequence[CaseVerdicts], threshold: float) -> Measure:
    """Return the mean recall of passes and of fails; its interval is the mean of both Wilson
    intervals.
    """
    recalls = [
        proportion(
            word,
            *sample(
                [row for row in rows if people_label(row) == word],
                lambda row: is_right(row, threshold),
            ),
        )
        for word in ("pass", "fail")
    ]
    value, low, high = (
        None if None in both else mean_of_known(both)
        for both in zip(*((each.value, each.low, each.high) for each in recalls), strict=True)
    )
    clusters = _cluster_count(sample(rows, people_label).clusters)
    about = "the mean of both classes; unreadable is never right"
    return Measure("balanced accuracy", value, low, high, len(rows), 0.5, about, clusters)


def _kappa(both: Sequence[tuple[Any, Any]]) -> float | None:
    known = [pair for pair in both if pair[1] != UNREADABLE]
    return of_columns(m.cohen_kappa, 0, 1)(known)


def _class_rates(both: Sequence[tuple[str, str]]) -> tuple[ClassRates, ...]:
    """Return the rates of each class that people used, and their unweighted means. Other labels
    count as unreadable.
    """
    used = {people for people, _ in both}
    rates_by_label = m.precision_recall_f1(
        [people for people, _ in both], [said if said in used else None for _, said in both]
    )
    return tuple(ClassRates(str(label), *rates) for label, rates in rates_by_label.items())


def _calibration(points: Sample, seed: int) -> list[Measure]:
    """Measure scores as the probability of a pass."""
    if not points.values:
        return []
    about = "the score read as the probability of a pass; 0 is best"
    brier, ece = (
        of_columns(measure, 0, 1) for measure in (m.brier_score, m.expected_calibration_error)
    )
    return [
        estimate("Brier", *points, brier, seed, about=about),
        Measure(
            "ECE",
            ece(points.values),
            n=len(points.values),
            about="expected calibration error, 10 bins; 0 is best",
        ),
    ]


def _score_point(row: CaseVerdicts) -> tuple[float, float, float] | None:
    """Return the score, the label and the length of a row; None without a score."""
    score = row.mean_score()
    return None if score is None else (score, row.label, float(row.first_response_length))


def _scores_by_label(points: Sequence[Any]) -> dict[str, tuple[float, ...]]:
    """Return the grader's scores by people's label, for histograms: at most five classes, by
    quantile if there are more.
    """
    ordered = sorted(label for _, label, _ in points)
    edges = sorted(set(ordered))
    if len(edges) > 5:
        edges = sorted({ordered[len(ordered) * i // 4] for i in range(4)})
    scores = m.group_values(
        (edges[bisect_right(edges, label) - 1], score) for score, label, _ in points
    )
    return {f"{edge:g}": tuple(scores[edge]) for edge in edges if edge in scores}


def _confusion_counts(both: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    counted = Counter(both)
    labels = list(dict.fromkeys(label for pair in sorted(both) for label in pair))
    return {t: {s: counted[t, s] for s in labels} for t in labels if t != UNREADABLE}


# ---- measures with intervals


class Sample(NamedTuple):
    """Values, and the cluster of each; "" is one of its own."""

    values: list[Any]
    clusters: list[str]

    def where(self, chosen: Callable[[Any], bool]) -> Sample:
        """Return the values that are chosen, with their clusters."""
        pairs = [pair for pair in zip(*self, strict=True) if chosen(pair[0])]
        return Sample([value for value, _ in pairs], [cluster for _, cluster in pairs])


def sample(rows: Iterable[CaseVerdicts], value: Callable[[CaseVerdicts], Any]) -> Sample:
    """Return a value of each row; rows for which it is None are left out."""
    return sample_verdicts((value(row), row) for row in rows).where(lambda found: found is not None)


def sample_verdicts(pairs: Iterable[tuple[Any, CaseVerdicts]]) -> Sample:
    """Return values of rows, such as one for each verdict: those of one row are not independent."""
    found = list(pairs)
    return Sample([value for value, _ in found], [cluster_of(row.case) for _, row in found])


def cluster_of(case: LabelledCase) -> str:
    """Return the cluster of a case; a case without one is a cluster of its own."""
    return case.cluster or f"case {case.id}"


def of_columns(measure: Callable[..., float | None], *places: int) -> Statistic:
    """Return a measure of columns as a statistic of rows; `places` are those of its columns."""
    return lambda rows: measure(*([row[place] for row in rows] for place in places))


def _units(clusters: Sequence[str]) -> list[str | int]:
    """Return the cluster of each row; "" is a cluster of its own."""
    return [cluster or n for n, cluster in enumerate(clusters)]


def _cluster_count(clusters: Sequence[str]) -> int | None:
    """Return the number of clusters; None if each row is one."""
    count = len(set(_units(clusters)))
    return count if count < len(clusters) else None


def proportion(
    name: str,
    outcomes: Sequence[float],
    clusters: Sequence[str],
    *,
    chance: float | None = None,
    about: str = "",
) -> Measure:
    """Return the share of outcomes with its interval; None without rows. An outcome is 1, 0, or a
    part, which widens the interval.

    `clusters` are those of the outcomes; "" is one of its own.
    """
    n, k = len(outcomes), _cluster_count(clusters)
    units = None if k is None else _units(clusters)
    low, high = m.share_interval(outcomes, units) or (None, None)
    return Measure(name, sum(outcomes) / n if n else None, low, high, n, chance, about, k)


def estimate(
    name: str,
    rows: Sequence[Any],
    clusters: Sequence[str],
    statistic: Statistic,
    seed: int,
    *,
    chance: float | None = None,
    about: str = "",
) -> Measure:
    """Return a statistic of rows with its bootstrap interval over clusters, which needs at least
    MIN_ROWS of them.
    """
    units, interval = _units(clusters), None
    value = statistic(rows) if rows else None
    if value is not None and len(set(units)) >= MIN_ROWS:
        interval = m.bootstrap_interval(
            rows, statistic, clusters=units, samples=BOOTSTRAP_SAMPLES, seed=seed
        )
    low, high = interval or (None, None)
    return Measure(name, value, low, high, len(rows), chance, about, _cluster_count(clusters))


def measure_by_group(
    rows: Sequence[CaseVerdicts], measure: Callable[[Sequence[CaseVerdicts]], Measure]
) -> tuple[Measure, ...]:
    """Return a measure for each group, sorted by name; () for a single group."""
    return measure_groups(m.group_values((row.case.group, row) for row in rows), measure)


def measure_groups(
    groups: Mapping[str, Sequence[T]], measure: Callable[[Sequence[T]], Measure]
) -> tuple[Measure, ...]:
    """Return a measure of each group under its name, sorted by it; () for a single group."""
    if len(groups) < 2:
        return ()
    return tuple(
        replace(measure(group), name=name or "(none)", about="")
        for name, group in sorted(groups.items())
    )


def count_parse_errors(rows: Sequence[CaseVerdicts]) -> dict[str, int]:
    """Count the reasons why verdicts could not be read, the most frequent first."""
    return dict(
        Counter(v.reason for row in rows for v in row.verdicts if not v.readable).most_common(10)
    )


def unreadable_share(rows: Sequence[CaseVerdicts]) -> Measure:
    every = sample_verdicts((not v.readable, row) for row in rows for v in row.verdicts)
    return proportion("unreadable", *every, about="verdicts that could not be read")


def rater_agreement(rows: Sequence[CaseVerdicts], level: str) -> list[Measure]:
    """Return the agreement of people among themselves, which a grader can hardly exceed."""
    ratings = [row.case.ratings for row in rows if sum(r is not None for r in row.case.ratings) > 1]
    if not ratings:
        return []
    levels = ("nominal",) if level == "nominal" else ("nominal", "ordinal", "interval")
    about = "Krippendorff's alpha among people"
    found = [
        (f"raters' alpha ({name})", m.krippendorff_alpha(ratings, name), about) for name in levels
    ]
    if level == "nominal" and (fleiss := m.fleiss_kappa(ratings)) is not None:
        found.append(("raters' Fleiss kappa", fleiss, "among people"))
    return [Measure(name, value, n=len(ratings), about=about) for name, value, about in found]


def retest_noise(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Return the standard deviation of repeated scores of the same response."""
    scores = [
        [v.scores[i] for v in row.readable_verdicts if v.scores[i : i + 1] not in {(), (None,)}]
        for row in rows
        for i in range(len(row.case.responses))
    ]
    again = [repeated for repeated in scores if len(repeated) > 1]
    about = "standard deviation of repeated scores, in points of the score"
    return [Measure(NOISE, m.noise_sigma(again), n=len(again), about=about)] if again else []
