"""How a card looks in the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..validation import card_page as page
from ..validation import plots
from ..validation.estimates import Measure
from ..validation.run import ValidationResult
from .live import console, line


def draw(found: ValidationResult) -> None:
    """The verdict, the measures, the plots, and where the card is."""
    out, card = console(stderr=False), found.card
    out.print(
        Text(
            "better than chance" if card.trusted else "not shown to be better than chance",
            "bold green" if card.trusted else "bold red",
        )
    )
    out.print(line(f"{card.grader}: {page.format_headline(card.headline)}", "bold"))
    out.print()
    out.print(_table("measure", card.measures))
    if card.class_rates:
        out.print(_grid(("class", "precision", "recall", "F1", "n"), map(page.class_rate_cells, card.class_rates)))
    if card.groups:
        rows = [(g.name, g.value, g.low, g.high, g.n) for g in card.groups]
        out.print(plots.forest_text(rows, card.headline.chance))
    if card.attacks:
        out.print(_table("turned by", [Measure(**row) for row in card.attacks["measures"]]))
        out.print(line(card.attacks["note"]))
    _plots(out, found)
    for why, times in (card.parse_errors or {}).items():
        out.print(line(f"unreadable, {times} x: {why}", "dim"))
    if card.unjudged:
        what = "could not be asked: the same command tries them again" if card.source == "live" else "have no recorded output"
        out.print(line(f"{card.unjudged} rows {what}", "yellow"))
    out.print(line(f"card: {found.card_folder / 'card.md'}", "dim"))


def _plots(out: Console, found: ValidationResult) -> None:
    report = found.report
    if report.confusion:
        out.print(plots.confusion_text(page.class_names(report.confusion), report.confusion))
    if report.scores:
        out.print(plots.histogram_text(report.scores))
    if report.probabilities:
        out.print(plots.reliability_text(page.score_reliability(report)))


WIDE = 120  # columns from which on there is room for words beside the numbers


def _table(name: str, rows: Iterable[Measure]) -> Table:
    wide = console(stderr=False).width >= WIDE
    heads = (name, "value", "95 %", "n", "chance", *([""] if wide else []))
    return _grid(heads, (page.measure_cells(measure)[: len(heads)] for measure in rows))


def _grid(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for n, head in enumerate(heads):
        table.add_column(head, justify="left" if n == 0 or not head else "right", no_wrap=bool(head), style=None if head else "dim")
    for cells in rows:
        table.add_row(*map(line, cells))
    table.add_section()
    return table
