"""The measures of a grader: its verdicts beside the labels of people, by what people said.

What could not be read is shown apart and never counts as right; what is unknown stays unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import statistics as m
from .cases import LabelKind, LabelledCase, Verdict
from .estimates import (
    CaseVerdicts,
    ClassRates,
    Measure,
    Statistic,
    ValidationReport,
    count_parse_errors,
    estimate,
    mean_of_known,
    measure_by_group,
    proportion,
    rater_agreement,
    test_retest,
    unreadable_share,
)

LENIENCY = "mean score minus people's, both in 0-1"
SCALE_UNKNOWN = "unknown: say with --scale LOW-HIGH which scale people used"
STEPS = 20  # of the scale from 0 to 1, for measures that need classes
ALPHA = f"Krippendorff's, with people's mean, both in {STEPS} steps"
FIRST, SECOND, TIE, UNREADABLE = "first", "second", "tie", "unreadable"


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """How labels and scores are read: the score from which on a response passes, the scale that people used (kind score;
    None: not known), and the seed of the bootstrap samples.
    """

    threshold: float = 0.5
    scale: tuple[float, float] | None = None
    seed: int = 0


def build_report(
    cases: Sequence[LabelledCase], verdicts: Iterable[Verdict], config: ReportConfig = ReportConfig()
) -> ValidationReport:
    """Measure verdicts against the cases they are about. Cases nobody judged are left out, and counted by the caller."""
    said: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        said[verdict.case].append(verdict)
    rows = [CaseVerdicts(case, tuple(said[case.id])) for case in cases if case.id in said]
    return REPORT_BUILDERS[cases[0].kind](rows, config)


def score_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Labels are numbers: correlations, agreement and leniency on the scale that people used."""
    points = _score_points(rows)
    low, high = config.scale or (0.0, 1.0)
    fits = all(low <= row.label <= high for row in rows)
    both = [((label - low) / (high - low), score) for score, label, _ in points] if fits else []

    def rank(group: Sequence[CaseVerdicts]) -> Measure:
        known, about = _score_points(group), "rank correlation with people"
        if 2 * len(known) < len(group):
            return Measure(
                "Spearman", m.spearman(*_scores_and_labels(known)), n=len(known), chance=0.0, about="most rows cannot be read"
            )
        return estimate("Spearman", known, _correlation_statistic(m.spearman), config.seed, chance=0.0, about=about)

    headline = rank(rows)
    found = [
        estimate("Pearson", points, _correlation_statistic(m.pearson), config.seed, chance=0.0),
        headline,
        estimate("Kendall tau-b", points, _correlation_statistic(m.kendall), config.seed, chance=0.0),
        *(
            Measure(f"alpha ({level})", _binned_alpha(both, level), n=len(both), chance=0.0, about=ALPHA if fits else SCALE_UNKNOWN)
            for level in ("ordinal", "interval")
        ),
        estimate(
            "leniency",
            both,
            lambda held: mean_of_known(s - p for p, s in held),
            config.seed,
            about=LENIENCY if fits else SCALE_UNKNOWN,
        ),
        _verbosity(rows, config.seed),
        *test_retest(rows),
        unreadable_share(rows),
        *rater_agreement(rows, "interval"),
    ]
    return ValidationReport(
        "score",
        len(rows),
        headline,
        tuple(found),
        measure_by_group(rows, rank),
        parse_errors=count_parse_errors(rows),
        scores=_scores_by_label([row for row in rows if row.mean_score() is not None]),
        points=tuple((label, score) for score, label, _ in points),
    )


def pass_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Labels are kept or not: accuracy of both classes, and of scores read as probabilities."""
    truth = ["pass" if row.label else "fail" for row in rows]
    said = [_pass_label(row, config.threshold) for row in rows]
    both = list(zip(truth, said, strict=True))
    headline = _balanced_accuracy(rows, config.threshold)
    probabilities = [(row.mean_score(), bool(row.label)) for row in rows]
    likely = [(p, outcome) for p, outcome in probabilities if p is not None]
    found = [
        proportion("accuracy", sum(t == s for t, s in both), len(both), chance=max(Counter(truth).values()) / len(truth)),
        headline,
        estimate("Cohen's kappa", both, _kappa, config.seed, chance=0.0),
        *_calibration(likely, config.seed),
        proportion(
            "leniency", sum(t == "fail" and s == "pass" for t, s in both), truth.count("fail"), about="fails that it lets pass"
        ),
        _verbosity(rows, config.seed),
        *test_retest(rows),
        unreadable_share(rows),
        *rater_agreement(rows, "nominal"),
    ]
    return ValidationReport(
        "pass",
        len(rows),
        headline,
        tuple(found),
        measure_by_group(rows, lambda held: _balanced_accuracy(held, config.threshold)),
        _class_rates(both),
        _confusion_counts(both),
        count_parse_errors(rows),
        tuple((float(p), o) for p, o in likely),
        _scores_by_label([row for row in rows if row.mean_score() is not None]),
    )


def pair_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Labels say which of two is better: preference, agreement, and what order and length do to it."""
    truth = [better_of_two(row.case.ranks) for row in rows]
    said = [preferred_response(row) for row in rows]
    both = list(zip(truth, said, strict=True))
    headline = _preference_measure(rows)
    found = [
        headline,
        proportion(
            "accuracy", sum(t == s for t, s in both), len(both), about="exactly what people said; a tie is right for a tie only"
        ),
        estimate("Cohen's kappa", both, _kappa, config.seed, chance=0.0, about="unreadable rows left out"),
        *_order_measures(rows),
        _longer_preferred(rows),
        _pair_verbosity(rows, config.seed),
        proportion("ties", said.count(TIE), len(said), about="rows it does not decide"),
        *_self_consistency(rows),
        *test_retest(rows),
        unreadable_share(rows),
        *rater_agreement(rows, "nominal"),
    ]
    return ValidationReport(
        "pair",
        len(rows),
        headline,
        tuple(found),
        measure_by_group(rows, _preference_measure),
        _class_rates(both),
        _confusion_counts(both),
        count_parse_errors(rows),
    )


def ranking_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Labels are orders: rank correlation within each row, and whether the best comes out first."""

    def agreement(group: Sequence[CaseVerdicts]) -> Measure:
        told, about = (
            [tau for row in group if (tau := _kendall_tau(row)) is not None],
            "mean over rows; 0 where it ties or is unreadable",
        )
        return estimate("Kendall tau-b", told, mean_of_known, config.seed, chance=0.0, about=about)

    headline = agreement(rows)
    chance = mean_of_known(1 / len(row.case.responses) for row in rows)
    best = sum(_best_share(row) for row in rows)
    found = [
        headline,
        proportion(
            "best first", best, len(rows), chance=chance, about="rows whose best it puts first; shared places count in part"
        ),
        *_order_measures(rows),
        unreadable_share(rows),
    ]
    return ValidationReport(
        "ranking", len(rows), headline, tuple(found), measure_by_group(rows, agreement), parse_errors=count_parse_errors(rows)
    )


REPORT_BUILDERS: dict[LabelKind, Callable[[Sequence[CaseVerdicts], ReportConfig], ValidationReport]] = {
    "score": score_report,
    "pass": pass_report,
    "pair": pair_report,
    "ranking": ranking_report,
}


def preferred_response(row: CaseVerdicts) -> str:
    """What a grader prefers: within a look what it says in every order, else a tie; over looks what most of them say.

    Rows with nothing readable are unreadable, never a tie.
    """
    looks: defaultdict[int, set[str]] = defaultdict(set)
    for v in row.readable_verdicts:
        looks[v.repeat].add(better_of_two(verdict_ranks(v)))
    votes = [said.pop() if len(said) == 1 else TIE for said in looks.values()]
    if not votes:
        return UNREADABLE
    first, second = votes.count(FIRST), votes.count(SECOND)
    return FIRST if first > second else SECOND if second > first else TIE


def verdict_ranks(verdict: Verdict) -> tuple[int, ...] | None:
    """The places in a verdict, or those that its scores make; None while a score is missing."""
    if verdict.ranks is not None:
        return verdict.ranks
    scores = verdict.scores
    if not scores or any(s is None for s in scores):
        return None
    return tuple(sum((other or 0) > (own or 0) for other in scores) for own in scores)


def better_of_two(ranks: Sequence[int] | None) -> str:
    """Which of two is better, or that they share a place."""
    if ranks is None:
        return UNREADABLE
    return TIE if ranks[0] == ranks[1] else FIRST if ranks[0] < ranks[1] else SECOND


def _preference_measure(rows: Sequence[CaseVerdicts]) -> Measure:
    decided = [row for row in rows if better_of_two(row.case.ranks) != TIE]
    points = {True: 1.0, False: 0.0}
    right = sum(
        0.5 if (said := preferred_response(row)) == TIE else points[said == better_of_two(row.case.ranks)] for row in decided
    )
    return proportion(
        "preference",
        right,
        len(decided),
        chance=0.5,
        about="prefers what people prefer; its ties count half, unreadable rows nothing, people's ties are left out",
    )


def _order_measures(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """What the order in which responses were shown does to the verdict."""
    shown = [(v, row) for row in rows for v in row.readable_verdicts if v.ranks is not None and v.presentation_order]
    if not shown:
        return []
    strict = [v for v, _ in shown if sum(place == 0 for place in v.ranks or ()) == 1]
    first = sum((v.ranks or ())[v.presentation_order[0]] == 0 for v in strict)
    chance = mean_of_known(1 / len(v.presentation_order) for v in strict)
    found = [
        proportion("first place", first, len(strict), chance=chance, about="verdicts for the response shown first; chance if fair")
    ]
    swapped = [told for row in rows if len(told := _ranks_by_order(row)) > 1]
    if swapped:
        same = sum(len(set(told.values())) == 1 for told in swapped)
        found.append(proportion("order consistency", same, len(swapped), about="rows with the same verdict in every order"))
    return found


def _ranks_by_order(row: CaseVerdicts) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The first verdict in each order in which the responses were shown."""
    told: dict[tuple[int, ...], tuple[int, ...]] = {}
    for v in row.readable_verdicts:
        if v.presentation_order and v.ranks is not None:
            told.setdefault(v.presentation_order, v.ranks)
    return told


def _longer_preferred(rows: Sequence[CaseVerdicts]) -> Measure:
    decided = [(row, said) for row in rows if (said := preferred_response(row)) in {FIRST, SECOND} and _longer_response(row) != TIE]
    people = mean_of_known(
        better_of_two(row.case.ranks) == _longer_response(row) for row, _ in decided if better_of_two(row.case.ranks) != TIE
    )
    about = "verdicts for the longer response" + ("" if people is None else f"; people: {people:.2f}")
    return proportion("longer preferred", sum(said == _longer_response(row) for row, said in decided), len(decided), about=about)


def _longer_response(row: CaseVerdicts) -> str:
    a, b = map(len, row.case.responses)
    return TIE if a == b else FIRST if a > b else SECOND


SIGN = {FIRST: 1.0, TIE: 0.0, SECOND: -1.0}


def _pair_verbosity(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    """How far the verdict follows the difference in length, with people's verdict held fixed."""
    points = [
        (SIGN[said], SIGN[better_of_two(row.case.ranks)], float(len(row.case.responses[0]) - len(row.case.responses[1])))
        for row in rows
        if (said := preferred_response(row)) != UNREADABLE
    ]
    return estimate(
        "verbosity", points, _length_correlation, seed, about="rank correlation of the verdict with length, given people's"
    )


def _verbosity(rows: Sequence[CaseVerdicts], seed: int) -> Measure:
    about = "rank correlation of the score with length, given people's label"
    return estimate("verbosity", _score_points(rows), _length_correlation, seed, about=about)


def _self_consistency(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Whether looks at the same pair in the same order agree."""
    told: list[list[tuple[int, ...]]] = []
    for row in rows:
        by_order: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for v in row.readable_verdicts:
            if (places := verdict_ranks(v)) is not None:
                by_order[v.presentation_order].append(places)
        told += [held for held in by_order.values() if len(held) > 1]
    same = sum(len(set(held)) == 1 for held in told)
    return [proportion("self-consistency", same, len(told), about="pairs that repeated looks judge alike")] if told else []


def _pass_label(row: CaseVerdicts, threshold: float) -> str:
    votes = [v.passed for v in row.readable_verdicts if v.passed is not None]
    if votes:
        return "pass" if sum(votes) * 2 > len(votes) else "fail"
    score = row.mean_score()
    return UNREADABLE if score is None else "pass" if score >= threshold else "fail"


def _balanced_accuracy(rows: Sequence[CaseVerdicts], threshold: float) -> Measure:
    """The mean of the shares of passes and of fails that it recognises; its interval is made of both Wilson intervals."""
    shares = []
    for label, word in ((1, "pass"), (0, "fail")):
        held = [row for row in rows if bool(row.label) == bool(label)]
        shares.append(proportion(word, sum(_pass_label(row, threshold) == word for row in held), len(held)))
    both = [(s.value, s.low, s.high) for s in shares if s.value is not None and s.low is not None and s.high is not None]
    value, low, high = [sum(x) / 2 for x in zip(*both, strict=True)] if len(both) == 2 else (None, None, None)
    return Measure("balanced accuracy", value, low, high, len(rows), 0.5, "the mean of both classes; unreadable is never right")


def _kappa(both: Sequence[tuple[Any, Any]]) -> float | None:
    known = [(t, s) for t, s in both if s != UNREADABLE]
    return m.cohen_kappa([t for t, _ in known], [s for _, s in known]) if known else None


def _class_rates(both: Sequence[tuple[str, str]]) -> tuple[ClassRates, ...]:
    """The rates of every class that people used, and their plain mean; what people never said is no class but no answer."""
    told = {t for t, _ in both}
    found = m.precision_recall_f1([t for t, _ in both], [s if s in told else None for _, s in both])
    return tuple(ClassRates(str(label), *rates) for label, rates in found.items())


def _calibration(likely: Sequence[tuple[float, bool]], seed: int) -> list[Measure]:
    if not likely:
        return []
    about = "the score read as the probability of a pass; 0 is best"
    brier = estimate("Brier", likely, lambda held: m.brier_score([p for p, _ in held], [o for _, o in held]), seed, about=about)
    ece = m.expected_calibration_error([p for p, _ in likely], [o for _, o in likely])
    return [brier, Measure("ECE", ece, n=len(likely), about="expected calibration error, 10 bins; 0 is best")]


def _correlation_statistic(measure: Callable[[Sequence[Any], Sequence[Any]], float | None]) -> Statistic:
    """A correlation over points whose first two parts are the score and the label."""
    return lambda points: measure(*_scores_and_labels(points))


def _scores_and_labels(points: Sequence[Any]) -> tuple[Sequence[float], Sequence[float]]:
    """The scores and the labels of points."""
    return [p[0] for p in points], [p[1] for p in points]


def _length_correlation(points: Sequence[Any]) -> float | None:
    """The rank correlation of score and length, with the label held fixed."""
    scores, labels, lengths = zip(*points, strict=True)
    return m.partial_rank_correlation(scores, lengths, labels).value


def _score_points(rows: Sequence[CaseVerdicts]) -> list[tuple[float, float, float]]:
    """Score, label and length of the rows that have a score."""
    return [(score, row.label, float(row.first_response_length)) for row in rows if (score := row.mean_score()) is not None]


def _binned_alpha(both: Sequence[tuple[float, float]], level: str) -> float | None:
    return m.krippendorff_alpha([[round(x * STEPS) / STEPS for x in pair] for pair in both], level)


def _scores_by_label(rows: Sequence[CaseVerdicts]) -> dict[str, tuple[float, ...]]:
    """The grader's scores by what people said, for histograms: at most five classes, by quantile where there are more."""
    labels = sorted({row.label for row in rows})
    if len(labels) > 5:
        ordered = sorted(row.label for row in rows)
        labels = sorted({ordered[len(ordered) * i // 4] for i in range(4)})
    held: defaultdict[float, list[float]] = defaultdict(list)
    for row in rows:
        held[max((edge for edge in labels if edge <= row.label), default=labels[0])].append(row.mean_score() or 0.0)
    return {f"{edge:g}": tuple(held[edge]) for edge in labels if held[edge]}


def _confusion_counts(both: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    counted = Counter(both)
    labels = list(dict.fromkeys(label for pair in sorted(both) for label in pair))
    return {t: {s: counted[t, s] for s in labels} for t in labels if t != UNREADABLE}


def _mean_ranks(row: CaseVerdicts) -> tuple[float, ...] | None:
    """The mean place of each response over all verdicts."""
    told = [places for v in row.readable_verdicts if (places := verdict_ranks(v)) is not None]
    return tuple(sum(column) / len(told) for column in zip(*told, strict=True)) if told else None


def _kendall_tau(row: CaseVerdicts) -> float | None:
    """Kendall's tau-b with people's order; 0 for a row that it ties or that cannot be read, None where people tie all."""
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
