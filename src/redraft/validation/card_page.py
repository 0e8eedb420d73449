"""Writing a card: Markdown and plots for people, and the JSON that `--require-validated` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from pathlib import Path

from ..base.documents import read_small_text
from ..base.money import format_usd
from ..base.text import escape_cell, format_number, markdown_table
from ..errors import StoreError
from ..graders.cards import Card, ClassRates, Measure, write_card_file
from ..plans.quality.calibration import Calibration, LabelPrediction
from . import plots
from . import statistics as m
from .report import ValidationReport


def write_card(card: Card, report: ValidationReport, folder: Path) -> bool:
    """Write card.md, card.json and the plots into the card's folder. Return whether they were
    written.

    A card never replaces one of more rows of the same data. Raises StoreError if a file cannot be
    written.
    """
    if _recorded_row_count(folder / "card.json") > card.rows:
        return False
    figures = dict(card_plots(report))
    for name, svg in figures.items():
        write_card_file(folder / f"{name}.svg", svg)
    write_card_file(folder / "card.md", "\n".join(card_markdown(card, figures)) + "\n")
    write_card_file(folder / "card.json", card.to_json())
    return True


def _recorded_row_count(path: Path) -> int:
    """Return the number of rows of a card; 0 if there is no readable card."""
    try:
        return Card.from_json(read_small_text(path), str(path)).rows
    except (OSError, ValueError, StoreError):
        return 0


def card_plots(report: ValidationReport) -> Iterator[tuple[str, str]]:
    """Yield the plots that the data allow, as pairs of a name and SVG."""
    if report.groups:
        yield (
            "groups",
            plots.forest_svg(
                [(g.name, g.value, g.low, g.high, g.n, g.chance) for g in report.groups]
            ),
        )
    if report.scores:
        yield "scores", plots.histogram_svg(report.scores)
    if report.points:
        yield "scatter", plots.scatter_svg(report.points)
    if report.confusion:
        yield "confusion", plots.confusion_svg(class_names(report.confusion), report.confusion)
    if report.probabilities:
        yield "reliability", plots.reliability_svg(score_reliability(report))


def score_reliability(report: ValidationReport) -> list[tuple[float, float, int]]:
    """Return (mean probability, share that passed, number of rows) for each bin that is not
    empty.
    """
    return m.reliability_bins(
        [p for p, _ in report.probabilities], [o for _, o in report.probabilities]
    )


def class_names(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    return list(dict.fromkeys([*counts, *(label for row in counts.values() for label in row)]))


TITLES = {
    "groups": "By group",
    "scores": "Scores by label",
    "scatter": "Its scores beside people's",
    "confusion": "Labels and verdicts",
    "reliability": "Scores read as probabilities",
}


def card_markdown(card: Card, plot_names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the card."""
    yield f"# {escape_cell(card.grader)}\n"
    verdict = "better than chance" if card.trusted else "not shown to be better than chance"
    yield f"**{verdict}**: {escape_cell(format_headline(card.headline))}\n"
    yield from markdown_table(("", ""), card_facts(card))
    yield "\n## Measures\n"
    yield from markdown_table(
        ("measure", "value", "95% interval", "n", "chance", ""), map(measure_cells, card.measures)
    )
    if card.class_rates:
        yield "\n## Classes\n"
        yield from markdown_table(
            ("class", "precision", "recall", "F1", "n"), map(class_rate_cells, card.class_rates)
        )
    if card.groups:
        yield "\n## Groups\n"
        yield from markdown_table(
            ("group", card.headline.name, "95% interval", "n", "chance", ""),
            map(measure_cells, card.groups),
        )
    if card.attacks:
        yield (
            "\n## Attacks\n\nThe share of attacks that changed the verdict in favour of the "
            "attacked answer.\n"
        )
        if card.attacks["note"]:
            yield escape_cell(card.attacks["note"]) + "\n"
        yield from markdown_table(
            ("attack", "changed", "95% interval", "n", "", ""),
            (measure_cells(Measure(**x)) for x in card.attacks["measures"]),
        )
    if card.calibration:
        yield f"\n## Scores and people's labels\n\nFrom {format_calibration(card.calibration)}.\n"
        predictions = (
            (score, card.calibration.predict(score)) for score in _shown_scores(card.calibration)
        )
        yield from markdown_table(
            ("score", "expected label", "95% interval"), starmap(prediction_cells, predictions)
        )
    if card.parse_errors:
        yield "\n## What could not be read\n"
        yield from markdown_table(
            ("complaint", "times"), ((why, str(n)) for why, n in card.parse_errors.items())
        )
    for name in plot_names:
        yield f"\n## {TITLES[name]}\n\n![{TITLES[name]}]({name}.svg)"


def card_facts(card: Card) -> Iterator[tuple[str, str]]:
    yield "grader", card.grader
    yield "fingerprint", card.fingerprint
    yield "model", card.model or "none"
    yield "data", f"{card.data} ({card.kind}), sha256 {card.sha256[:16]}"
    yield (
        "rows judged",
        str(card.rows) + (f"; {card.unjudged} more without a verdict" if card.unjudged else ""),
    )
    if card.skipped_rows:
        yield "rows left out", f"{card.skipped_rows} that could not be understood"
    if repeats := card.repeats_line():
        yield "repeats", repeats
    if hint := direction_hint(card):
        yield "hint", hint
    yield (
        "from",
        "live judging" if card.source == "live" else f"recorded outputs, read as {card.source}",
    )
    yield "made", card.date
    if card.usage and card.source == "live":
        yield (
            "calls",
            f"{card.usage['calls']:,} in the last run, cost {format_usd(card.usage['cost'])}",
        )


def direction_hint(card: Card) -> str:
    """Return a hint where a grader agrees with people less than by chance, as if the labels ran the
    other way; else "".
    """
    high, chance = card.headline.high, card.headline.chance
    if high is None or chance is None or high >= chance:
        return ""
    way = {
        "score": "if lower labels are better, give --lower-is-better",
        "pass": "if 1 means fail, give -c label:1=fail -c label:0=pass",
    }
    return (
        "the grader disagrees with people more than by chance; "
        f"{way.get(card.kind, 'is the meaning of the labels right?')}"
    )


def _shown_scores(calibration: Calibration) -> list[float]:
    """Return five scores from the lowest to the highest that was labelled, rounded; fewer if they
    are close.
    """
    low, high = calibration.knots[0][0], calibration.knots[-1][0]
    return sorted({round(low + (high - low) * i / 4, 2) for i in range(5)})


def prediction_cells(score: float, prediction: LabelPrediction) -> tuple[str, str, str]:
    """Return a score, the expected label and its interval as cells."""
    low, high = prediction.interval
    return (
        f"{score:g}",
        format_number(prediction.mean),
        f"{format_number(low)} to {format_number(high)}",
    )


def format_calibration(calibration: Calibration) -> str:
    """Return a calibration in words: "people's labels (n = 120): bias +0.050, error 0.210 (of the
    score itself 0.240)".
    """
    error = (
        f"{format_number(calibration.error_sd)} (of the score itself "
        f"{format_number(calibration.score_error_sd)})"
    )
    drift = "" if calibration.drift is None else f", drift {calibration.drift:+.3f} a refinement"
    return f"{calibration.source}: bias {calibration.bias:+.3f}, error {error}{drift}"


def measure_cells(measure: Measure) -> tuple[str, ...]:
    """Return a measure as cells: name, value, interval, n, chance, what it is."""
    return (
        measure.name,
        format_number(measure.value),
        format_interval(measure),
        str(measure.n),
        "" if measure.chance is None else format_number(measure.chance),
        measure.about,
    )


def class_rate_cells(class_rates: ClassRates) -> tuple[str, ...]:
    """Return the rates of a class as cells."""
    return (
        class_rates.name,
        format_number(class_rates.precision),
        format_number(class_rates.recall),
        format_number(class_rates.f1),
        str(class_rates.n),
    )


def format_headline(measure: Measure) -> str:
    interval = format_interval(measure) or "interval unknown"
    chance = "" if measure.chance is None else f", chance {format_number(measure.chance)}"
    return f"{measure.name} {format_number(measure.value)} ({interval}{chance})"


def format_interval(measure: Measure) -> str:
    return (
        ""
        if measure.low is None or measure.high is None
        else f"{format_number(measure.low)} to {format_number(measure.high)}"
    )
