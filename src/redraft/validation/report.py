"""The measures of a grader: its verdicts beside the labels of people, by what people said.

What could not be read is shown apart and never counts as right; what is unknown stays unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import statistics as m
from .cases import Case, Kind, Verdict
from .estimates import (
    ClassRates,
    Measure,
    Report,
    Row,
    Statistic,
    by_group,
    complaints,
    estimate,
    mean,
    raters,
    share,
    steadiness,
    unreadable,
)

LENIENCY = "mean score minus people's, both in 0-1"
UNSCALED = "unknown: say with --scale LOW-HIGH which scale people used"
STEPS = 20  # of the scale from 0 to 1, for measures that need classes
ALPHA = f"Krippendorff's, with people's mean, both in {STEPS} steps"
FIRST, SECOND, TIE, UNREADABLE = "first", "second", "tie", "unreadable"


@dataclass(frozen=True, slots=True)
class Reading:
    """How labels and scores are read: the score from which on a response passes, the scale that people used (kind score;
    None: not known), and the seed of the bootstrap samples.
    """

    threshold: float = 0.5
    scale: tuple[float, float] | None = None
    seed: int = 0


def report(cases: Sequence[Case], verdicts: Iterable[Verdict], reading: Reading = Reading()) -> Report:
    """Measure verdicts against the cases they are about. Cases nobody judged are left out, and counted by the caller."""
    said: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        said[verdict.case].append(verdict)
    rows = [Row(case, tuple(said[case.id])) for case in cases if case.id in said]
    return MEASURED[cases[0].kind](rows, reading)


def scored(rows: Sequence[Row], reading: Reading) -> Report:
    """Labels are numbers: correlations, agreement and leniency on the scale that people used."""
    points = _points(rows)
    low, high = reading.scale or (0.0, 1.0)
    fits = all(low <= row.label <= high for row in rows)
    both = [((label - low) / (high - low), score) for score, label, _ in points] if fits else []

    def rank(held: Sequence[Row]) -> Measure:
        known, about = _points(held), "rank correlation with people"
        if 2 * len(known) < len(held):
            return Measure("Spearman", m.spearman(*_columns(known)), n=len(known), chance=0.0, about="most rows cannot be read")
        return estimate("Spearman", known, _correlated(m.spearman), reading.seed, chance=0.0, about=about)

    headline = rank(rows)
    found = [
        estimate("Pearson", points, _correlated(m.pearson), reading.seed, chance=0.0),
        headline,
        estimate("Kendall tau-b", points, _correlated(m.kendall), reading.seed, chance=0.0),
        *(
            Measure(f"alpha ({level})", _alpha(both, level), n=len(both), chance=0.0, about=ALPHA if fits else UNSCALED)
            for level in ("ordinal", "interval")
        ),
        estimate("leniency", both, lambda held: mean(s - p for p, s in held), reading.seed, about=LENIENCY if fits else UNSCALED),
        _verbosity(rows, reading.seed),
        *steadiness(rows),
        unreadable(rows),
        *raters(rows, "interval"),
    ]
    return Report(
        "score",
        len(rows),
        headline,
        tuple(found),
        by_group(rows, rank),
        complaints=complaints(rows),
        scores=_by_label([row for row in rows if row.score() is not None]),
        points=tuple((label, score) for score, label, _ in points),
    )


def passed(rows: Sequence[Row], reading: Reading) -> Report:
    """Labels are kept or not: accuracy of both classes, and of scores read as probabilities."""
    truth = ["pass" if row.label else "fail" for row in rows]
    said = [_passed(row, reading.threshold) for row in rows]
    both = list(zip(truth, said, strict=True))
    headline = _balanced(rows, reading.threshold)
    probabilities = [(row.score(), bool(row.label)) for row in rows]
    likely = [(p, outcome) for p, outcome in probabilities if p is not None]
    found = [
        share("accuracy", sum(t == s for t, s in both), len(both), chance=max(Counter(truth).values()) / len(truth)),
        headline,
        estimate("Cohen's kappa", both, _kappa, reading.seed, chance=0.0),
        *_calibration(likely, reading.seed),
        share("leniency", sum(t == "fail" and s == "pass" for t, s in both), truth.count("fail"), about="fails that it lets pass"),
        _verbosity(rows, reading.seed),
        *steadiness(rows),
        unreadable(rows),
        *raters(rows, "nominal"),
    ]
    return Report(
        "pass",
        len(rows),
        headline,
        tuple(found),
        by_group(rows, lambda held: _balanced(held, reading.threshold)),
        _rates(both),
        _counts(both),
        complaints(rows),
        tuple((float(p), o) for p, o in likely),
        _by_label([row for row in rows if row.score() is not None]),
    )


def paired(rows: Sequence[Row], reading: Reading) -> Report:
    """Labels say which of two is better: preference, agreement, and what order and length do to it."""
    truth = [winner(row.case.places) for row in rows]
    said = [preferred(row) for row in rows]
    both = list(zip(truth, said, strict=True))
    headline = _preference(rows)
    found = [
        headline,
        share("accuracy", sum(t == s for t, s in both), len(both), about="exactly what people said; a tie is right for a tie only"),
        estimate("Cohen's kappa", both, _kappa, reading.seed, chance=0.0, about="unreadable rows left out"),
        *_order(rows),
        _length_preferred(rows),
        _length_controlled(rows, reading.seed),
        share("ties", said.count(TIE), len(said), about="rows it does not decide"),
        *_same_again(rows),
        *steadiness(rows),
        unreadable(rows),
        *raters(rows, "nominal"),
    ]
    return Report(
        "pair", len(rows), headline, tuple(found), by_group(rows, _preference), _rates(both), _counts(both), complaints(rows)
    )


def ranked(rows: Sequence[Row], reading: Reading) -> Report:
    """Labels are orders: rank correlation within each row, and whether the best comes out first."""

    def agreement(held: Sequence[Row]) -> Measure:
        told, about = [tau for row in held if (tau := _tau(row)) is not None], "mean over rows; 0 where it ties or is unreadable"
        return estimate("Kendall tau-b", told, mean, reading.seed, chance=0.0, about=about)

    headline = agreement(rows)
    chance = mean(1 / len(row.case.responses) for row in rows)
    best = sum(_best_share(row) for row in rows)
    found = [
        headline,
        share("best first", best, len(rows), chance=chance, about="rows whose best it puts first; shared places count in part"),
        *_order(rows),
        unreadable(rows),
    ]
    return Report("ranking", len(rows), headline, tuple(found), by_group(rows, agreement), complaints=complaints(rows))


MEASURED: dict[Kind, Callable[[Sequence[Row], Reading], Report]] = {
    "score": scored,
    "pass": passed,
    "pair": paired,
    "ranking": ranked,
}


def preferred(row: Row) -> str:
    """What a grader prefers: within a look what it says in every order, else a tie; over looks what most of them say.

    Rows with nothing readable are unreadable, never a tie.
    """
    looks: defaultdict[int, set[str]] = defaultdict(set)
    for v in row.readable:
        looks[v.look].add(winner(places_of(v)))
    votes = [said.pop() if len(said) == 1 else TIE for said in looks.values()]
    if not votes:
        return UNREADABLE
    first, second = votes.count(FIRST), votes.count(SECOND)
    return FIRST if first > second else SECOND if second > first else TIE


def places_of(verdict: Verdict) -> tuple[int, ...] | None:
    """The places in a verdict, or those that its scores make; None while a score is missing."""
    if verdict.places is not None:
        return verdict.places
    scores = verdict.scores
    if not scores or any(s is None for s in scores):
        return None
    return tuple(sum((other or 0) > (own or 0) for other in scores) for own in scores)


def winner(places: Sequence[int] | None) -> str:
    """Which of two is better, or that they share a place."""
    if places is None:
        return UNREADABLE
    return TIE if places[0] == places[1] else FIRST if places[0] < places[1] else SECOND


def _preference(rows: Sequence[Row]) -> Measure:
    decided = [row for row in rows if winner(row.case.places) != TIE]
    points = {True: 1.0, False: 0.0}
    right = sum(0.5 if (said := preferred(row)) == TIE else points[said == winner(row.case.places)] for row in decided)
    return share(
        "preference",
        right,
        len(decided),
        chance=0.5,
        about="prefers what people prefer; its ties count half, unreadable rows nothing, people's ties are left out",
    )


def _order(rows: Sequence[Row]) -> list[Measure]:
    """What the order in which responses were shown does to the verdict."""
    shown = [(v, row) for row in rows for v in row.readable if v.places is not None and v.shown]
    if not shown:
        return []
    strict = [v for v, _ in shown if sum(place == 0 for place in v.places or ()) == 1]
    first = sum((v.places or ())[v.shown[0]] == 0 for v in strict)
    chance = mean(1 / len(v.shown) for v in strict)
    found = [share("first place", first, len(strict), chance=chance, about="verdicts for the response shown first; chance if fair")]
    swapped = [told for row in rows if len(told := _by_order(row)) > 1]
    if swapped:
        same = sum(len(set(told.values())) == 1 for told in swapped)
        found.append(share("order consistency", same, len(swapped), about="rows with the same verdict in every order"))
    return found


def _by_order(row: Row) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The first verdict in each order in which the responses were shown."""
    told: dict[tuple[int, ...], tuple[int, ...]] = {}
    for v in row.readable:
        if v.shown and v.places is not None:
            told.setdefault(v.shown, v.places)
    return told


def _length_preferred(rows: Sequence[Row]) -> Measure:
    decided = [(row, said) for row in rows if (said := preferred(row)) in {FIRST, SECOND} and _longer(row) != TIE]
    people = mean(winner(row.case.places) == _longer(row) for row, _ in decided if winner(row.case.places) != TIE)
    about = "verdicts for the longer response" + ("" if people is None else f"; people: {people:.2f}")
    return share("longer preferred", sum(said == _longer(row) for row, said in decided), len(decided), about=about)


def _longer(row: Row) -> str:
    a, b = map(len, row.case.responses)
    return TIE if a == b else FIRST if a > b else SECOND


SIGN = {FIRST: 1.0, TIE: 0.0, SECOND: -1.0}


def _length_controlled(rows: Sequence[Row], seed: int) -> Measure:
    """How far the verdict follows the difference in length, with people's verdict held fixed."""
    points = [
        (SIGN[said], SIGN[winner(row.case.places)], float(len(row.case.responses[0]) - len(row.case.responses[1])))
        for row in rows
        if (said := preferred(row)) != UNREADABLE
    ]
    return estimate("verbosity", points, _partial, seed, about="rank correlation of the verdict with length, given people's")


def _verbosity(rows: Sequence[Row], seed: int) -> Measure:
    about = "rank correlation of the score with length, given people's label"
    return estimate("verbosity", _points(rows), _partial, seed, about=about)


def _same_again(rows: Sequence[Row]) -> list[Measure]:
    """Whether looks at the same pair in the same order agree."""
    told: list[list[tuple[int, ...]]] = []
    for row in rows:
        by_order: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for v in row.readable:
            if (places := places_of(v)) is not None:
                by_order[v.shown].append(places)
        told += [held for held in by_order.values() if len(held) > 1]
    same = sum(len(set(held)) == 1 for held in told)
    return [share("self-consistency", same, len(told), about="pairs that repeated looks judge alike")] if told else []


def _passed(row: Row, threshold: float) -> str:
    votes = [v.passed for v in row.readable if v.passed is not None]
    if votes:
        return "pass" if sum(votes) * 2 > len(votes) else "fail"
    score = row.score()
    return UNREADABLE if score is None else "pass" if score >= threshold else "fail"


def _balanced(rows: Sequence[Row], threshold: float) -> Measure:
    """The mean of the shares of passes and of fails that it recognises; its interval is made of both Wilson intervals."""
    shares = []
    for label, word in ((1, "pass"), (0, "fail")):
        held = [row for row in rows if bool(row.label) == bool(label)]
        shares.append(share(word, sum(_passed(row, threshold) == word for row in held), len(held)))
    both = [(s.value, s.low, s.high) for s in shares if s.value is not None and s.low is not None and s.high is not None]
    value, low, high = [sum(x) / 2 for x in zip(*both, strict=True)] if len(both) == 2 else (None, None, None)
    return Measure("balanced accuracy", value, low, high, len(rows), 0.5, "the mean of both classes; unreadable is never right")


def _kappa(both: Sequence[tuple[Any, Any]]) -> float | None:
    known = [(t, s) for t, s in both if s != UNREADABLE]
    return m.cohen_kappa([t for t, _ in known], [s for _, s in known]) if known else None


def _rates(both: Sequence[tuple[str, str]]) -> tuple[ClassRates, ...]:
    """The rates of every class that people used, and their plain mean; what people never said is no class but no answer."""
    told = {t for t, _ in both}
    found = m.precision_recall_f1([t for t, _ in both], [s if s in told else None for _, s in both])
    return tuple(ClassRates(str(label), *rates) for label, rates in found.items())


def _calibration(likely: Sequence[tuple[float, bool]], seed: int) -> list[Measure]:
    if not likely:
        return []
    about = "the score read as the probability of a pass; 0 is best"
    brier = estimate("Brier", likely, lambda held: m.brier([p for p, _ in held], [o for _, o in held]), seed, about=about)
    ece = m.ece([p for p, _ in likely], [o for _, o in likely])
    return [brier, Measure("ECE", ece, n=len(likely), about="expected calibration error, 10 bins; 0 is best")]


def _correlated(measure: Callable[[Sequence[Any], Sequence[Any]], float | None]) -> Statistic:
    """A correlation over points whose first two parts are the score and the label."""
    return lambda points: measure(*_columns(points))


def _columns(points: Sequence[Any]) -> tuple[Sequence[float], Sequence[float]]:
    """The scores and the labels of points."""
    return [p[0] for p in points], [p[1] for p in points]


def _partial(points: Sequence[Any]) -> float | None:
    """The rank correlation of score and length, with the label held fixed."""
    scores, labels, lengths = zip(*points, strict=True)
    return m.partial_rank_correlation(scores, lengths, labels).value


def _points(rows: Sequence[Row]) -> list[tuple[float, float, float]]:
    """Score, label and length of the rows that have a score."""
    return [(score, row.label, float(row.length)) for row in rows if (score := row.score()) is not None]


def _alpha(both: Sequence[tuple[float, float]], level: str) -> float | None:
    return m.krippendorff_alpha([[round(x * STEPS) / STEPS for x in pair] for pair in both], level)


def _by_label(rows: Sequence[Row]) -> dict[str, tuple[float, ...]]:
    """The grader's scores by what people said, for histograms: at most five classes, by quantile where there are more."""
    labels = sorted({row.label for row in rows})
    if len(labels) > 5:
        ordered = sorted(row.label for row in rows)
        labels = sorted({ordered[len(ordered) * i // 4] for i in range(4)})
    held: defaultdict[float, list[float]] = defaultdict(list)
    for row in rows:
        held[max((edge for edge in labels if edge <= row.label), default=labels[0])].append(row.score() or 0.0)
    return {f"{edge:g}": tuple(held[edge]) for edge in labels if held[edge]}


def _counts(both: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    counted = Counter(both)
    labels = list(dict.fromkeys(label for pair in sorted(both) for label in pair))
    return {t: {s: counted[t, s] for s in labels} for t in labels if t != UNREADABLE}


def _order_of(row: Row) -> tuple[float, ...] | None:
    """The mean place of each response over all verdicts."""
    told = [places for v in row.readable if (places := places_of(v)) is not None]
    return tuple(sum(column) / len(told) for column in zip(*told, strict=True)) if told else None


def _tau(row: Row) -> float | None:
    """Kendall's tau-b with people's order; 0 for a row that it ties or that cannot be read, None where people tie all."""
    people, order = row.case.places or (), _order_of(row)
    if len(set(people)) < 2:
        return None
    return (m.kendall(order, people) if order else None) or 0.0


def _best_share(row: Row) -> float:
    order = _order_of(row)
    if order is None:
        return 0.0
    top = [i for i, place in enumerate(order) if place == min(order)]
    return sum((row.case.places or ())[i] == min(row.case.places or (0,)) for i in top) / len(top)
