"""The measures of a grader: its verdicts compared with the labels of people, for each kind of label.

Every share has its Wilson interval, every other measure a bootstrap interval over rows (2.5 % and 97.5 %). What cannot be read is
counted separately and never as right; what is unknown stays unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..cards.measure import MIN_ROWS, ClassRates, Measure
from . import statistics as m
from .cases import LabelKind, LabelledCase, Verdict

BOOTSTRAP_SAMPLES = 1000
LENIENCY = "mean score minus people's, both in 0-1"
SCALE_UNKNOWN = "unknown: say with --scale LOW-HIGH which scale people used"
STEPS = 20  # of the scale from 0 to 1, for measures that need classes
ALPHA = f"Krippendorff's, with people's mean, both in {STEPS} steps"
FIRST, SECOND, TIE, UNREADABLE = "first", "second", "tie", "unreadable"
Statistic: TypeAlias = Callable[[Sequence[Any]], float | None]


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """How labels and scores are read: the score from which a response passes, the scale that people used (for labels of kind
    score; None: unknown), and the seed of the bootstrap samples.
    """

    threshold: float = 0.5
    scale: tuple[float, float] | None = None
    seed: int = 0


@dataclass(frozen=True)
class ValidationReport:
    """All measures. `headline` is the one that decides whether a grader is trusted; `groups` holds it for each group.

    `confusion` counts the grader's labels (inner) by people's (outer), `parse_errors` why verdicts could not be read. For
    plots: `probabilities` with their outcomes, the grader's `scores` by people's label, and `points` of people's score and the
    grader's.
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
    """A case with all verdicts on it."""

    case: LabelledCase
    verdicts: tuple[Verdict, ...]

    @property
    def readable_verdicts(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.readable]

    def mean_score(self, i: int = 0) -> float | None:
        """Return the mean score of a response over all verdicts; None without one."""
        return mean_of_known(v.scores[i] for v in self.verdicts if i < len(v.scores))

    @property
    def first_response_length(self) -> int:
        return len(self.case.responses[0])

    @property
    def label(self) -> float:
        """The label as a number, for the kinds score and pass."""
        return float(self.case.label or 0)


def build_report(
    cases: Sequence[LabelledCase], verdicts: Iterable[Verdict], config: ReportConfig = ReportConfig()
) -> ValidationReport:
    """Compare verdicts with the labels of their cases. Cases without a verdict are left out; the caller counts them."""
    by_case: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_case[verdict.case].append(verdict)
    rows = [CaseVerdicts(case, tuple(by_case[case.id])) for case in cases if case.id in by_case]
    return REPORT_BUILDERS[cases[0].kind](rows, config)


def score_report(rows: Sequence[CaseVerdicts], config: ReportConfig) -> ValidationReport:
    """Measure scores against numeric labels: correlations, agreement and leniency on the scale that people used."""
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
        *retest_noise(rows),
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
    """Measure scores against pass and fail: accuracy of both classes, and calibration of scores as probabilities."""
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
        *retest_noise(rows),
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
    """Measure preferences between two responses: accuracy, agreement, and the effects of order and length."""
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
        *retest_noise(rows),
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
    """Measure rankings: rank correlation within each row, and whether the best response comes first."""

    def agreement(group: Sequence[CaseVerdicts]) -> Measure:
        taus = [tau for row in group if (tau := _kendall_tau(row)) is not None]
        about = "mean over rows; 0 if it ties or is unreadable"
        return estimate("Kendall tau-b", taus, mean_of_known, config.seed, chance=0.0, about=about)

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
    """Return which response a grader prefers.

    Within a repeat it is what the grader says in every order, else a tie; over repeats what most of them say. A row without a
    readable verdict is unreadable, never a tie.
    """
    repeats: defaultdict[int, set[str]] = defaultdict(set)
    for v in row.readable_verdicts:
        repeats[v.repeat].add(better_of_two(verdict_ranks(v)))
    votes = [preferences.pop() if len(preferences) == 1 else TIE for preferences in repeats.values()]
    if not votes:
        return UNREADABLE
    first, second = votes.count(FIRST), votes.count(SECOND)
    return FIRST if first > second else SECOND if second > first else TIE


def verdict_ranks(verdict: Verdict) -> tuple[int, ...] | None:
    """Return the ranks in a verdict, or those of its scores; None if a score is missing."""
    if verdict.ranks is not None:
        return verdict.ranks
    scores = verdict.scores
    if not scores or any(s is None for s in scores):
        return None
    return tuple(sum((other or 0) > (own or 0) for other in scores) for own in scores)


def better_of_two(ranks: Sequence[int] | None) -> str:
    """Return which of two responses is better, TIE, or UNREADABLE."""
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
    """Measure the effect of the order in which responses were shown."""
    shown = [(v, row) for row in rows for v in row.readable_verdicts if v.ranks is not None and v.presentation_order]
    if not shown:
        return []
    strict = [v for v, _ in shown if sum(place == 0 for place in v.ranks or ()) == 1]
    first = sum((v.ranks or ())[v.presentation_order[0]] == 0 for v in strict)
    chance = mean_of_known(1 / len(v.presentation_order) for v in strict)
    found = [
        proportion("first place", first, len(strict), chance=chance, about="verdicts for the response shown first; chance if fair")
    ]
    swapped = [ranks for row in rows if len(ranks := _ranks_by_order(row)) > 1]
    if swapped:
        same = sum(len(set(ranks.values())) == 1 for ranks in swapped)
        found.append(proportion("order consistency", same, len(swapped), about="rows with the same verdict in every order"))
    return found


def _ranks_by_order(row: CaseVerdicts) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return the first verdict for each order in which the responses were shown."""
    ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
    for v in row.readable_verdicts:
        if v.presentation_order and v.ranks is not None:
            ranks.setdefault(v.presentation_order, v.ranks)
    return ranks


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
    """Measure how far the verdict follows the difference in length, with people's verdict held fixed."""
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
    """Measure whether repeated verdicts on the same pair in the same order agree."""
    repeated: list[list[tuple[int, ...]]] = []
    for row in rows:
        by_order: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for v in row.readable_verdicts:
            if (places := verdict_ranks(v)) is not None:
                by_order[v.presentation_order].append(places)
        repeated += [ranks for ranks in by_order.values() if len(ranks) > 1]
    same = sum(len(set(ranks)) == 1 for ranks in repeated)
    about = "pairs with the same verdict in every repeat"
    return [proportion("self-consistency", same, len(repeated), about=about)] if repeated else []


def _pass_label(row: CaseVerdicts, threshold: float) -> str:
    votes = [v.passed for v in row.readable_verdicts if v.passed is not None]
    if votes:
        return "pass" if sum(votes) * 2 > len(votes) else "fail"
    score = row.mean_score()
    return UNREADABLE if score is None else "pass" if score >= threshold else "fail"


def _balanced_accuracy(rows: Sequence[CaseVerdicts], threshold: float) -> Measure:
    """Return the mean recall of passes and of fails; its interval is the mean of both Wilson intervals."""
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
    """Return the rates of every class that people used, and their plain mean. Other labels count as unreadable."""
    used = {t for t, _ in both}
    found = m.precision_recall_f1([t for t, _ in both], [s if s in used else None for _, s in both])
    return tuple(ClassRates(str(label), *rates) for label, rates in found.items())


def _calibration(likely: Sequence[tuple[float, bool]], seed: int) -> list[Measure]:
    if not likely:
        return []
    about = "the score read as the probability of a pass; 0 is best"
    brier = estimate("Brier", likely, lambda held: m.brier_score([p for p, _ in held], [o for _, o in held]), seed, about=about)
    ece = m.expected_calibration_error([p for p, _ in likely], [o for _, o in likely])
    return [brier, Measure("ECE", ece, n=len(likely), about="expected calibration error, 10 bins; 0 is best")]


def _correlation_statistic(measure: Callable[[Sequence[Any], Sequence[Any]], float | None]) -> Statistic:
    """Return a correlation as a statistic of points whose first two parts are the score and the label."""
    return lambda points: measure(*_scores_and_labels(points))


def _scores_and_labels(points: Sequence[Any]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the scores and the labels of points."""
    return [p[0] for p in points], [p[1] for p in points]


def _length_correlation(points: Sequence[Any]) -> float | None:
    """Return the rank correlation of score and length, with the label held fixed."""
    scores, labels, lengths = zip(*points, strict=True)
    return m.partial_rank_correlation(scores, lengths, labels)


def _score_points(rows: Sequence[CaseVerdicts]) -> list[tuple[float, float, float]]:
    """Return (score, label, length) of the rows that have a score."""
    return [(score, row.label, float(row.first_response_length)) for row in rows if (score := row.mean_score()) is not None]


def _binned_alpha(both: Sequence[tuple[float, float]], level: str) -> float | None:
    return m.krippendorff_alpha([[round(x * STEPS) / STEPS for x in pair] for pair in both], level)


def _scores_by_label(rows: Sequence[CaseVerdicts]) -> dict[str, tuple[float, ...]]:
    """Return the grader's scores by people's label, for histograms: at most five classes, by quantile if there are more."""
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
    """Return the mean rank of each response over all verdicts."""
    every = [ranks for v in row.readable_verdicts if (ranks := verdict_ranks(v)) is not None]
    return tuple(sum(column) / len(every) for column in zip(*every, strict=True)) if every else None


def _kendall_tau(row: CaseVerdicts) -> float | None:
    """Return Kendall's tau-b with people's order; 0 for a row that it ties or that cannot be read, None if people tie all."""
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


def mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def proportion(name: str, successes: float, n: int, *, chance: float | None = None, about: str = "") -> Measure:
    """Return a share with its Wilson interval; unknown without rows. Half successes make the interval wider than necessary."""
    interval = m.wilson_interval(successes, n) if n else None
    low, high = interval or (None, None)
    return Measure(name, successes / n if n else None, low, high, n, chance, about)


def estimate(
    name: str, rows: Sequence[Any], statistic: Statistic, seed: int, *, chance: float | None = None, about: str = ""
) -> Measure:
    """Return a statistic of rows with its bootstrap interval; with fewer than MIN_ROWS rows without one."""
    value = statistic(rows) if rows else None
    interval = (
        m.bootstrap_interval(rows, statistic, samples=BOOTSTRAP_SAMPLES, seed=seed)
        if value is not None and len(rows) >= MIN_ROWS
        else None
    )
    low, high = interval or (None, None)
    return Measure(name, value, low, high, len(rows), chance, about)


def measure_by_group(rows: Sequence[CaseVerdicts], measure: Callable[[Sequence[CaseVerdicts]], Measure]) -> tuple[Measure, ...]:
    """Return one measure for every group, sorted by name; none if there is a single group."""
    groups: defaultdict[str, list[CaseVerdicts]] = defaultdict(list)
    for row in rows:
        groups[row.case.group].append(row)
    if len(groups) < 2:
        return ()
    found = ((name, measure(held)) for name, held in sorted(groups.items()))
    return tuple(Measure(name or "(none)", x.value, x.low, x.high, x.n, x.chance) for name, x in found)


def count_parse_errors(rows: Sequence[CaseVerdicts]) -> dict[str, int]:
    """Return why verdicts could not be read, the most frequent reason first."""
    return dict(Counter(v.reason for row in rows for v in row.verdicts if not v.readable).most_common(10))


def unreadable_share(rows: Sequence[CaseVerdicts]) -> Measure:
    every = [v for row in rows for v in row.verdicts]
    return proportion("unreadable", sum(not v.readable for v in every), len(every), about="verdicts that could not be read")


def rater_agreement(rows: Sequence[CaseVerdicts], level: str) -> list[Measure]:
    """Return how far people agree among themselves: what can be expected of a grader."""
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


def retest_noise(rows: Sequence[CaseVerdicts]) -> list[Measure]:
    """Return how far repeated scores of the same response differ."""
    scores = [
        [v.scores[i] for v in row.readable_verdicts if i < len(v.scores) and v.scores[i] is not None]
        for row in rows
        for i in range(len(row.case.responses))
    ]
    again = [repeated for repeated in scores if len(repeated) > 1]
    if not again:
        return []
    sigma = m.noise_sigma(again)
    return [Measure("noise sigma", sigma, n=len(again), about="standard deviation of repeated scores, in points of the score")]
