"""The card as people read it: Markdown with its plots beside it, and the JSON that `--trust` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..small_files import read_small_text
from ..text import plain
from . import plots
from . import statistics as m
from .card import Card, write_card_file
from .estimates import ClassRates, Measure, Report
from .run import Validated


def file_card(found: Validated) -> bool:
    """Write card.md, card.json and the plots into the card's folder, and say whether that was done.

    A card is never replaced by one of fewer rows of the same data. Raises ConfigError where nothing can be written.
    """
    place = found.place
    if _rows_on(place / "card.json") > found.card.rows:
        return False
    drawn = dict(drawings(found.report))
    for name, svg in drawn.items():
        write_card_file(place / f"{name}.svg", svg)
    write_card_file(place / "card.md", "\n".join(markdown(found.card, drawn)) + "\n")
    write_card_file(place / "card.json", found.card.to_json())
    return True


def _rows_on(path: Path) -> int:
    """How many rows a card is about; 0 where there is none that can be read."""
    try:
        return Card.from_json(read_small_text(path), str(path)).rows
    except (OSError, ValueError, StoreError):
        return 0


def drawings(report: Report) -> Iterator[tuple[str, str]]:
    """The plots that the data allow, by name, as SVG."""
    if report.groups:
        rows = [(g.name, g.value, g.low, g.high, g.n) for g in report.groups]
        yield "groups", plots.forest_svg(rows, report.headline.chance)
    if report.scores:
        yield "scores", plots.histogram_svg(report.scores)
    if report.points:
        yield "scatter", plots.scatter_svg(report.points)
    if report.classes:
        yield "confusion", plots.confusion_svg(classes_of(report.classes), report.classes)
    if report.probabilities:
        yield "reliability", plots.reliability_svg(reliability(report))


def reliability(report: Report) -> list[tuple[float, float, int]]:
    """Mean probability, share that passed, and number of rows, for each bin that has any."""
    return m.reliability([p for p, _ in report.probabilities], [o for _, o in report.probabilities])


def classes_of(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    return list(dict.fromkeys([*counts, *(label for row in counts.values() for label in row)]))


ESCAPED = {ord(mark): f"\\{mark}" for mark in "\\|`*_[]!#"} | {
    ord(mark): f"&{name};" for mark, name in zip("<>&", ("lt", "gt", "amp"), strict=True)
}
TITLES = {
    "groups": "By group",
    "scores": "Scores by what people said",
    "scatter": "Its scores beside people's",
    "confusion": "What people said, and what it said",
    "reliability": "Scores read as probabilities",
}


def markdown(card: Card, drawn: Iterable[str]) -> Iterator[str]:
    """The lines of the card."""
    yield f"# {cell(card.grader)}\n"
    verdict = "better than chance" if card.trusted else "not shown to be better than chance"
    yield f"**{verdict}**: {cell(shown(card.headline))}\n"
    yield from table(("", ""), about(card))
    yield "\n## Measures\n"
    yield from table(("measure", "value", "95 % interval", "n", "chance", ""), map(row, card.measures))
    if card.rates:
        yield "\n## Classes\n"
        yield from table(("class", "precision", "recall", "F1", "n"), map(rates, card.rates))
    if card.groups:
        yield "\n## Groups\n"
        yield from table(("group", card.headline.name, "95 % interval", "n", "chance", ""), map(row, card.groups))
    if card.attacks:
        yield "\n## Attacks\n\nThe share of attacks that turned its verdict in favour of the attacked answer.\n"
        if card.attacks["note"]:
            yield cell(card.attacks["note"]) + "\n"
        yield from table(("attack", "turned", "95 % interval", "n", "", ""), (row(Measure(**x)) for x in card.attacks["measures"]))
    if card.complaints:
        yield "\n## What could not be read\n"
        yield from table(("complaint", "times"), ((why, str(n)) for why, n in card.complaints.items()))
    for name in drawn:
        yield f"\n## {TITLES[name]}\n\n![{TITLES[name]}]({name}.svg)"


def about(card: Card) -> Iterator[tuple[str, str]]:
    yield "grader", card.grader
    yield "fingerprint", card.fingerprint
    yield "model", card.model or "none"
    yield "data", f"{card.data} ({card.kind}), sha256 {card.sha256[:16]}"
    yield "rows judged", str(card.rows) + (f"; of {card.lost} more nothing is known" if card.lost else "")
    if card.skipped:
        yield "rows left out", f"{card.skipped} that could not be understood"
    yield "from", "live judging" if card.source == "live" else f"recorded outputs, read as {card.source}"
    yield "made", card.made
    if card.usage and card.source == "live":
        cost = card.usage["cost"]
        yield "calls", f"{card.usage['calls']} in the last run, cost {'unknown' if cost is None else f'{cost:.4g} USD'}"


def row(x: Measure) -> tuple[str, ...]:
    """A measure as cells: name, value, interval, n, chance, what it is."""
    return (x.name, number(x.value), interval(x), str(x.n), "" if x.chance is None else number(x.chance), x.about)


def rates(x: ClassRates) -> tuple[str, ...]:
    """How a class was recognised, as cells."""
    return (x.name, number(x.precision), number(x.recall), number(x.f1), str(x.n))


def shown(x: Measure) -> str:
    span = interval(x)
    chance = "" if x.chance is None else f", chance {number(x.chance)}"
    return f"{x.name} {number(x.value)}" + (f" ({span}{chance})" if span else f" (interval unknown{chance})")


def interval(x: Measure) -> str:
    return "" if x.low is None or x.high is None else f"{number(x.low)} to {number(x.high)}"


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for cells in rows:
        yield f"| {' | '.join(map(cell, cells))} |"


def cell(text: Any) -> str:
    """Foreign text as a cell: one line, nothing in it that Markdown or HTML would take for its own."""
    flat = " ".join(plain(str(text)).split())
    return flat[:300].translate(ESCAPED)
