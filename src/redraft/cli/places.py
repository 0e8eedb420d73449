"""How `redraft models` looks."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..models import DiscoveryResult, SearchLocation
from .live import console, line

SHOWN = 6


def draw(found: DiscoveryResult) -> None:
    """A row for each place, then what follows from it."""
    out = console(stderr=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for place in found.locations:
        table.add_row(Text("✓", "green") if place.is_available else Text("·", "dim"), line(place.where), _about(place))
    out.print(table)
    out.print()
    if found.model:
        out.print(line(f"Used unless --model says otherwise: {found.model.name}", "bold"))
    else:
        out.print(Text("No model was found. Without one the built-in editor repairs what form allows: redraft demo", "bold"))
    out.print(
        Text("Others are named with --model: anthropic:NAME, google:NAME, http://host:port/v1#NAME, local:FILE.gguf ...", "dim")
    )


def _about(place: SearchLocation) -> Text:
    names = ", ".join(place.models[:SHOWN]) + (f" and {len(place.models) - SHOWN} more" if len(place.models) > SHOWN else "")
    text = line(names)
    if place.note:
        text.append_text(line(("; " if names else "") + place.note, "" if place.is_available else "dim"))
    return text
