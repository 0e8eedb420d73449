"""How a card looks in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..validation import page, plots
from ..validation.estimates import Measure
from ..validation.job import Validated
from .live import console, line


def draw(found: Validated, place: Path) -> None:
    """The verdict, the measures, the plots, and where the card is."""
    out, card = console(stderr=False), found.card
    out.print(
        Text(
            "better than chance" if card.trusted else "not shown to be better than chance",
            "bold green" if card.trusted else "bold red",
        )
    )
    out.print(line(f"{card.grader}: {page.shown(card.headline)}", "bold"))
    out.print()
    out.print(_table("measure", card.measures))
    if card.groups:
        out.print(_table("group", card.groups))
    if card.attacks:
        out.print(_table("turned by", [Measure(**row) for row in card.attacks["measures"]]))
    _plots(out, found)
    for why, times in (card.complaints or {}).items():
        out.print(line(f"unreadable, {times} x: {why}", "dim"))
    if card.lost:
        out.print(line(f"{card.lost} rows could not be asked: the same command tries them again", "yellow"))
    out.print(line(f"card: {place / 'card.md'}", "dim"))


def _plots(out: Console, found: Validated) -> None:
    report = found.report
    if report.classes:
        out.print(plots.confusion_text(page.classes_of(report.classes), report.classes))
    if report.scores:
        out.print(plots.histogram_text(report.scores))
    if report.probabilities:
        out.print(plots.reliability_text(page.reliability(report)))


def _table(name: str, rows: Iterable[Measure]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in (name, "value", "95 %", "n", "chance"):
        table.add_column(head, justify="left" if head == name else "right", no_wrap=True)
    table.add_column("", overflow="fold", style="dim")
    for measure in rows:
        table.add_row(*map(line, page.row(measure)))
    return table
