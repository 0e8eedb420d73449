"""The measures of a grader: its verdicts compared with the labels of people, for each kind of
label.

Shares have a Wilson interval, most other measures a bootstrap interval over rows (2.5 % to 97.5 %).
Rows of one cluster are not independent: a share then has Wilson's interval for as many rows as
would be as precise, and the bootstrap draws whole clusters. Unreadable verdicts are counted
separately and never as right. A value that cannot be computed is None.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

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
    by_case: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_case[verdict.case].append(verdict)
    return [CaseVerdicts(case, tuple(by_case[case.id])) for case in cases if case.id in by_case]


def score_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure scores against numeric labels: correlations, agreement and leniency on the scale that
    people used.
    """
    points, clusters = _score_points(rows), _clusters(_scored_rows(rows))
    headline = _spearman(rows, config.seed)
    measures = [
        estimate(
            "Pearson", points, _correlation_statistic(m.pearson), config.seed, clusters, chance=0.0
        ),
        headline,
        estimate(
            "Kendall tau-b",
            points,
            _correlation_statistic(m.kendall),
            config.seed,
            clusters,
            chance=0.0,
        ),
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
        scores=_scores_by_label(_scored_rows(rows)),
        points=tuple((label, score) for score, label, _ in points),
    )


def _spearman(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    points = _score_points(rows)
    if 2 * len(points) < len(rows):
        rho = m.spearman(*_scores_and_labels(points))
        return Measure("Spearman", rho, n=len(points), chance=0.0, about="most rows cannot be read")
    about = "rank correlation with people"
    return estimate(
        "Spearman",
        points,
        _correlation_statistic(m.spearman),
        seed,
        _clusters(_scored_rows(rows)),
        chance=0.0,
        about=about,
    )


def _scale_measures(rows: Sequence[CaseVerdicts], config: ReportConfig) -> list[Measure]:
    """Return alpha and leniency. Their values are None if a label is outside the scale."""
    low, high = config.scale or (0.0, 1.0)
    known = all(low <= row.label <= high for row in rows)
    both = (
        [((label - low) / (high - low), score) for score, label, _ in _score_points(rows)]
        if known
        else []
    )
    alphas = [
        Measure(
            f"alpha ({level})",
            _binned_alpha(both, level),
            n=len(both),
            chance=0.0,
            about=ALPHA if known else SCALE_UNKNOWN,
        )
        for level in ("ordinal", "interval")
    ]
    about, clusters = (LENIENCY, _clusters(_scored_rows(rows))) if known else (SCALE_UNKNOWN, ())
    leniency: Statistic = lambda group: mean_of_known(s - p for p, s in group)  # noqa: E731
    return [*alphas, estimate("leniency", both, leniency, config.seed, clusters, about=about)]


def pass_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure scores against pass and fail: accuracy of both classes, and calibration of scores as
    probabilities.
    """
    labels = ["pass" if row.label else "fail" for row in rows]
    verdicts = [pass_label(row, config.threshold) for row in rows]
    both = list(zip(labels, verdicts, strict=True))
    headline, clusters = _balanced_accuracy(rows, config.threshold), _clusters(rows)
    scored = _scored_rows(rows)
    forecasts = [(row.mean_score() or 0.0, bool(row.label)) for row in scored]
    failed = [row for row in rows if not row.label]
    let_pass = [pass_label(row, config.threshold) == "pass" for row in failed]
    measures = [
        proportion(
            "accuracy",
            [t == s for t, s in both],
            clusters,
            chance=max(Counter(labels).values()) / len(labels),
        ),
        headline,
        estimate("Cohen's kappa", both, _kappa, config.seed, clusters, chance=0.0),
        *_calibration(forecasts, config.seed, _clusters(scored)),
        proportion("leniency", let_pass, _clusters(failed), about="fails that it lets pass"),
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
        _class_rates(both),
        _confusion_counts(both),
        count_parse_errors(rows),
        tuple(forecasts),
        _scores_by_label(scored),
    )


def pair_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure preferences between two responses: accuracy, agreement, and the effects of order and
    length.
    """
    labels = [better_of_two(row.case.ranks) for row in rows]
    verdicts = [preferred_response(row) for row in rows]
    both = list(zip(labels, verdicts, strict=True))
    headline, clusters = _preference_measure(rows), _clusters(rows)
    exact = "exactly what people said; a tie is right for a tie only"
    measures = [
        headline,
        proportion("accuracy", [t == s for t, s in both], clusters, about=exact),
        estimate(
            "Cohen's kappa",
            both,
            _kappa,
            config.seed,
            clusters,
            chance=0.0,
            about="unreadable rows left out",
        ),
        *_order_measures(rows),
        _longer_preferred(rows),
        _pair_verbosity(rows, config.seed),
        proportion(
            "ties",
            [verdict == TIE for verdict in verdicts],
            clusters,
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
        _class_rates(both),
        _confusion_counts(both),
        count_parse_errors(rows),
    )


def ranking_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure rankings: rank correlation within each row, and whether the best response comes
    first.
    """

    def agreement(group: Sequence[CaseVerdicts]) -> Measure:
        taus = [(tau, row.case.cluster) for row in group if (tau := kendall_tau(row)) is not None]
        clusters = [cluster for _, cluster in taus]
        about = "mean over rows; 0 if it ties or is unreadable"
        return estimate(
            "Kendall tau-b",
            [tau for tau, _ in taus],
            mean_of_known,
            config.seed,
            clusters,
            chance=0.0,
            about=about,
        )

    headline = agreement(rows)
    chance = mean_of_known(1 / len(row.case.responses) for row in rows)
    about = "rows whose best it ranks first; shared ranks count in part"
    measures = [
        headline,
        proportion(
            "best first", list(map(_best_share, rows)), _clusters(rows), chance=chance, about=about
        ),
        *_order_measures(rows),
        unreadable_share(rows),
    ]
    return ValidationReport(
        "ranking",
        len(rows),
        headline,
        tuple(measures),
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


def _preference_measure(rows: Sequence[CaseVerdicts]) -> Measure:
    decided = [row for row in rows if better_of_two(row.case.ranks) != TIE]
    preferences = [(better_of_two(row.case.ranks), preferred_response(row)) for row in decided]
    return proportion(
        "preference",
        [
            0.5 if preferred == TIE else float(preferred == better)
            for better, preferred in preferences
        ],
        _clusters(decided),
        chance=0.5,
        about=(
            "prefers what people prefer; its ties count half, unreadable rows nothing, people's "
            "ties are left out"
        ),
    )


def _order_measures(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Measure the effect of the presentation order."""
    verdict_rows = [
        (v, row)
        for row in rows
        for v in row.readable_verdicts
        if v.ranks is not None and v.presentation_order
    ]
    if not verdict_rows:
        return []
    strict = [
        (v, row) for v, row in verdict_rows if sum(place == 0 for place in v.ranks or ()) == 1
    ]
    first = [(v.ranks or ())[v.presentation_order[0]] == 0 for v, _ in strict]
    chance = mean_of_known(1 / len(v.presentation_order) for v, _ in strict)
    about = "verdicts for the response shown first; chance if fair"
    measures = [
        proportion(
            "first place",
            first,
            _verdict_clusters(row for _, row in strict),
            chance=chance,
            about=about,
        )
    ]
    swapped = [(ranks, row) for row in rows if len(ranks := _ranks_by_order(row)) > 1]
    if swapped:
        same = [len(set(ranks.values())) == 1 for ranks, _ in swapped]
        about = "rows with the same verdict in every order"
        measures.append(
            proportion(
                "order consistency", same, _clusters([row for _, row in swapped]), about=about
            )
        )
    return measures


def _ranks_by_order(row: CaseVerdicts) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of the first verdict for each presentation order."""
    ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
    for v in row.readable_verdicts:
        if v.presentation_order and v.ranks is not None:
            ranks.setdefault(v.presentation_order, v.ranks)
    return ranks


def _longer_preferred(rows: Sequence[CaseVerdicts]) -> Measure:
    preferences = [(row, preferred_response(row)) for row in rows if _longer_response(row) != TIE]
    decided = [(row, preferred) for row, preferred in preferences if preferred in {FIRST, SECOND}]
    people = mean_of_known(
        better_of_two(row.case.ranks) == _longer_response(row)
        for row, _ in decided
        if better_of_two(row.case.ranks) != TIE
    )
    about = "verdicts for the longer response" + (
        "" if people is None else f"; people: {people:.2f}"
    )
    longer = [preferred == _longer_response(row) for row, preferred in decided]
    return proportion(
        "longer preferred", longer, _clusters([row for row, _ in decided]), about=about
    )


def _longer_response(row: CaseVerdicts) -> str:
    a, b = map(len, row.case.responses)
    return TIE if a == b else FIRST if a > b else SECOND


SIGN = {FIRST: 1.0, TIE: 0.0, SECOND: -1.0}


def _pair_verbosity(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    """Return the partial rank correlation of the verdict with the difference in length, given
    people's verdict.
    """
    readable = [row for row in rows if preferred_response(row) != UNREADABLE]
    points = [
        (
            SIGN[preferred_response(row)],
            SIGN[better_of_two(row.case.ranks)],
            float(len(row.case.responses[0]) - len(row.case.responses[1])),
        )
        for row in readable
    ]
    about = "rank correlation of the verdict with length, given people's"
    return estimate(
        "verbosity", points, _length_correlation, seed, _clusters(readable), about=about
    )


def _verbosity(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    about = "rank correlation of the score with length, given people's label"
    return estimate(
        "verbosity",
        _score_points(rows),
        _length_correlation,
        seed,
        _clusters(_scored_rows(rows)),
        about=about,
    )


def _self_consistency(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Measure whether repeated verdicts on the same pair in the same order agree."""
    repeated: list[tuple[list[tuple[int, ...]], CaseVerdicts]] = []
    for row in rows:
        by_order: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for v in row.readable_verdicts:
            if (places := verdict_ranks(v)) is not None:
                by_order[v.presentation_order].append(places)
        repeated += [(ranks, row) for ranks in by_order.values() if len(ranks) > 1]
    same = [len(set(ranks)) == 1 for ranks, _ in repeated]
    about = "pairs with the same verdict in every repeat"
    clusters = _verdict_clusters(row for _, row in repeated)
    return [proportion("self-consistency", same, clusters, about=about)] if repeated else []


def pass_label(row: CaseVerdicts, threshold: float) -> str:
    """Return "pass", "fail" or UNREADABLE: the majority of the verdicts, else by the mean score."""
    votes = [v.passed for v in row.readable_verdicts if v.passed is not None]
    if votes:
        return "pass" if sum(votes) * 2 > len(votes) else "fail"
    score = row.mean_score()
    return UNREADABLE if score is None else "pass" if score >= threshold else "fail"


def _balanced_accuracy(rows: Sequence[CaseVerdicts], threshold: float) -> Measure:
    """Return the mean recall of passes and of fails; its interval is the mean of both Wilson
    intervals.
    """
    shares = []
    for label, word in ((1, "pass"), (0, "fail")):
        rows_of_class = [row for row in rows if bool(row.label) == bool(label)]
        shares.append(
            proportion(
                word,
                [pass_label(row, threshold) == word for row in rows_of_class],
                _clusters(rows_of_class),
            )
        )
    about = "the mean of both classes; unreadable is never right"
    value, low, high = (
        _mean_of_two([getattr(share, name) for share in shares])
        for name in ("value", "low", "high")
    )
    return Measure(
        "balanced accuracy",
        value,
        low,
        high,
        len(rows),
        0.5,
        about,
        _cluster_count(_clusters(rows)),
    )


def _mean_of_two(values: Sequence[float | None]) -> float | None:
    return None if None in values else mean_of_known(values)


def _kappa(both: Sequence[tuple[Any, Any]]) -> float | None:
    known = [(t, s) for t, s in both if s != UNREADABLE]
    return m.cohen_kappa([t for t, _ in known], [s for _, s in known]) if known else None


def _class_rates(both: Sequence[tuple[str, str]]) -> tuple[ClassRates, ...]:
    """Return the rates of each class that people used, and their unweighted means. Other labels
    count as unreadable.
    """
    used = {t for t, _ in both}
    rates_by_label = m.precision_recall_f1(
        [t for t, _ in both], [s if s in used else None for _, s in both]
    )
    return tuple(ClassRates(str(label), *rates) for label, rates in rates_by_label.items())


def _calibration(
    forecasts: Sequence[tuple[float, bool]], seed: int, clusters: Sequence[str]
) -> list[Measure]:
    if not forecasts:
        return []
    about = "the score read as the probability of a pass; 0 is best"
    brier = estimate(
        "Brier",
        forecasts,
        lambda rows: m.brier_score(*_scores_and_labels(rows)),
        seed,
        clusters,
        about=about,
    )
    ece = m.expected_calibration_error(*_scores_and_labels(forecasts))
    return [
        brier,
        Measure(
            "ECE", ece, n=len(forecasts), about="expected calibration error, 10 bins; 0 is best"
        ),
    ]


def _correlation_statistic(
    measure: Callable[[Sequence[Any], Sequence[Any]], float | None],
) -> Statistic:
    """Return a correlation as a statistic of (score, label, ...) points."""
    return lambda points: measure(*_scores_and_labels(points))


def _scores_and_labels(points: Sequence[Any]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the first two columns of points."""
    return [p[0] for p in points], [p[1] for p in points]


def _length_correlation(points: Sequence[Any]) -> float | None:
    """Return the partial rank correlation of score and length, given the label."""
    scores, labels, lengths = zip(*points, strict=True)
    return m.partial_rank_correlation(scores, lengths, labels)


def _scored_rows(rows: Sequence[CaseVerdicts]) -> list[CaseVerdicts]:
    """Return the rows that have a score."""
    return [row for row in rows if row.mean_score() is not None]


def _score_points(rows: Sequence[CaseVerdicts]) -> list[tuple[float, float, float]]:
    """Return (score, label, length) of the rows that have a score."""
    return [
        (score, row.label, float(row.first_response_length))
        for row in rows
        if (score := row.mean_score()) is not None
    ]


def _binned_alpha(both: Sequence[tuple[float, float]], level: str) -> float | None:
    return m.krippendorff_alpha([[round(x * STEPS) / STEPS for x in pair] for pair in both], level)


def _scores_by_label(rows: Sequence[CaseVerdicts]) -> dict[str, tuple[float, ...]]:
    """Return the grader's scores by people's label, for histograms: at most five classes, by
    quantile if there are more.
    """
    labels = sorted({row.label for row in rows})
    if len(labels) > 5:
        ordered = sorted(row.label for row in rows)
        labels = sorted({ordered[len(ordered) * i // 4] for i in range(4)})
    scores: defaultdict[float, list[float]] = defaultdict(list)
    for row in rows:
        scores[max((edge for edge in labels if edge <= row.label), default=labels[0])].append(
            row.mean_score() or 0.0
        )
    return {f"{edge:g}": tuple(scores[edge]) for edge in labels if scores[edge]}


def _confusion_counts(both: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    counted = Counter(both)
    labels = list(dict.fromkeys(label for pair in sorted(both) for label in pair))
    return {t: {s: counted[t, s] for s in labels} for t in labels if t != UNREADABLE}


def _mean_ranks(row: CaseVerdicts) -> tuple[float, ...] | None:
    """Return the mean rank of each response over all verdicts."""
    all_ranks = [ranks for v in row.readable_verdicts if (ranks := verdict_ranks(v)) is not None]
    return (
        tuple(sum(column) / len(all_ranks) for column in zip(*all_ranks, strict=True))
        if all_ranks
        else None
    )


def kendall_tau(row: CaseVerdicts) -> float | None:
    """Return Kendall's tau-b with people's ranks; 0 if the verdict ties all or is unreadable, None
    if people tie all.
    """
    people, order = row.case.ranks or (), _mean_ranks(row)
    if len(set(people)) < 2:
        return None
    return (m.kendall(order, people) if order else None) or 0.0


def _best_share(row: CaseVerdicts) -> float:
    order = _mean_ranks(row)
    if order is None:
        return 0.0
    top = [i for i, place in enumerate(order) if place == min(order)]
    return sum((row.case.ranks or ())[i] == min(row.case.ranks or (0,)) for i in top) / len(top)


# ---- measures with intervals


def _clusters(rows: Iterable[CaseVerdicts]) -> list[str]:
    return [row.case.cluster for row in rows]


def _verdict_clusters(rows: Iterable[CaseVerdicts]) -> list[str]:
    """Return the clusters of verdicts, from the row of each: several verdicts on one row are not
    independent.
    """
    return [row.case.cluster or f"row {row.case.id}" for row in rows]


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
    low, high = m.share_interval(outcomes, k and _units(clusters)) or (None, None)
    return Measure(name, sum(outcomes) / n if n else None, low, high, n, chance, about, k)


def estimate(
    name: str,
    rows: Sequence[Any],
    statistic: Statistic,
    seed: int,
    clusters: Sequence[str],
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
    groups: defaultdict[str, list[CaseVerdicts]] = defaultdict(list)
    for row in rows:
        groups[row.case.group].append(row)
    if len(groups) < 2:
        return ()
    measured = ((name, measure(group)) for name, group in sorted(groups.items()))
    return tuple(replace(x, name=name or "(none)", about="") for name, x in measured)


def count_parse_errors(rows: Sequence[CaseVerdicts]) -> dict[str, int]:
    """Count the reasons why verdicts could not be read, the most frequent first."""
    return dict(
        Counter(v.reason for row in rows for v in row.verdicts if not v.readable).most_common(10)
    )


def unreadable_share(rows: Sequence[CaseVerdicts]) -> Measure:
    every = [(not v.readable, row) for row in rows for v in row.verdicts]
    clusters = _verdict_clusters(row for _, row in every)
    return proportion(
        "unreadable",
        [failed for failed, _ in every],
        clusters,
        about="verdicts that could not be read",
    )


def rater_agreement(rows: Sequence[CaseVerdicts], level: str) -> list[Measure]:
    """Return the agreement of people among themselves, which a grader can hardly exceed."""
    ratings = [row.case.ratings for row in rows if sum(r is not None for r in row.case.ratings) > 1]
    if not ratings:
        return []
    levels = ("nominal",) if level == "nominal" else ("nominal", "ordinal", "interval")
    measures = [
        Measure(
            f"raters' alpha ({name})",
            m.krippendorff_alpha(ratings, name),
            n=len(ratings),
            about="Krippendorff's alpha among people",
        )
        for name in levels
    ]
    fleiss = m.fleiss_kappa(ratings) if level == "nominal" else None
    if fleiss is not None:
        measures.append(
            Measure("raters' Fleiss kappa", fleiss, n=len(ratings), about="among people")
        )
    return measures


def retest_noise(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Return the standard deviation of repeated scores of the same response."""
    scores = [
        [
            v.scores[i]
            for v in row.readable_verdicts
            if i < len(v.scores) and v.scores[i] is not None
        ]
        for row in rows
        for i in range(len(row.case.responses))
    ]
    again = [repeated for repeated in scores if len(repeated) > 1]
    if not again:
        return []
    sigma = m.noise_sigma(again)
    return [
        Measure(
            NOISE,
            sigma,
            n=len(again),
            about="standard deviation of repeated scores, in points of the score",
        )
    ]
