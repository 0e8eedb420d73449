"""Shows a validation card on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from ...cards.measure import Measure
from ...validation import card_page as page
from ...validation import plots
from ...validation.run import ValidationResult
from ..terminal import console, text_line

WIDE = 120  # columns from which there is room for the meaning of each measure


def show_card(found: ValidationResult) -> None:
    """Print the verdict, the measures, the plots, and the path of the card."""
    out, card, report = console(stderr=False), found.card, found.build_report
    if card.trusted:
        out.print(Text("better than chance", "bold green"))
    else:
        out.print(Text("not shown to be better than chance", "bold red"))
    out.print(text_line(f"{card.grader}: {page.format_headline(card.headline)}", "bold"))
    out.print()
    out.print(_measure_table("measure", card.measures))
    if card.class_rates:
        out.print(_table(("class", "precision", "recall", "F1", "n"), map(page.class_rate_cells, card.class_rates)))
    if card.groups:
        rows = [(g.name, g.value, g.low, g.high, g.n) for g in card.groups]
        out.print(plots.forest_text(rows, card.headline.chance))
    if card.attacks:
        out.print(_measure_table("attack", [Measure(**row) for row in card.attacks["measures"]]))
        out.print(text_line(card.attacks["note"]))
    if report.confusion:
        out.print(plots.confusion_text(page.class_names(report.confusion), report.confusion))
    if report.scores:
        out.print(plots.histogram_text(report.scores))
    if report.probabilities:
        out.print(plots.reliability_text(page.score_reliability(report)))
    for reason, times in (card.parse_errors or {}).items():
        out.print(text_line(f"unreadable, {times} x: {reason}", "dim"))
    if card.unjudged:
        what = "failed: run the same command to retry them" if card.source == "live" else "have no recorded output"
        out.print(text_line(f"{card.unjudged} rows {what}", "yellow"))
    out.print(text_line(f"card: {found.card_folder / 'card.md'}", "dim"))


def _measure_table(name: str, measures: Iterable[Measure]) -> Table:
    meaning = [""] if console(stderr=False).width >= WIDE else []
    headers = (name, "value", "95 %", "n", "chance", *meaning)
    return _table(headers, (page.measure_cells(measure)[: len(headers)] for measure in measures))


def _table(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for n, header in enumerate(headers):
        justify = "left" if n == 0 or not header else "right"
        table.add_column(header, justify=justify, no_wrap=bool(header), style=None if header else "dim")  # type: ignore[arg-type]
    for cells in rows:
        table.add_row(*map(text_line, cells))
    table.add_section()
    return table
