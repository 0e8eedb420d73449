"""`redraft models`: which models were found, and where."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .. import options

if TYPE_CHECKING:
    from ...models import DiscoveryResult

MAX_NAMES = 6  # of models at one place
EPILOG = """\b
Examples:
  redraft models
  OPENAI_BASE_URL=http://127.0.0.1:8080/v1 redraft models
  redraft models --json | jq '.locations[] | select(.available)'
"""


@click.command(epilog=EPILOG)
@options.as_json
@options.debug
def models(as_json: bool) -> None:
    """List where Redraft looks for models, and what it found. The first model is used; each place says what it needs."""
    import asyncio

    from ...models import find_model

    found = asyncio.run(find_model(search_all=True))
    if not as_json:
        _show(found)
        return
    locations = [
        {"where": p.where, "available": p.is_available, "models": list(p.models), "selected": p.selected_model, "note": p.note}
        for p in found.locations
    ]
    click.echo(json.dumps({"model": found.model.name if found.model else None, "locations": locations}, indent=2))


def _show(found: DiscoveryResult) -> None:
    """Draw a row for each place, then which model is used."""
    from rich.table import Table
    from rich.text import Text

    from ..terminal import console, text_line

    out = console(stderr=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for place in found.locations:
        more = f" and {len(place.models) - MAX_NAMES} more" if len(place.models) > MAX_NAMES else ""
        about = text_line(", ".join(place.models[:MAX_NAMES]) + more)
        if place.note:
            about.append_text(text_line(("; " if place.models else "") + place.note, "" if place.is_available else "dim"))
        table.add_row(Text("✓", "green") if place.is_available else Text("·", "dim"), text_line(place.where), about)
    out.print(table)
    out.print()
    if found.model:
        out.print(text_line(f"Used unless --model says otherwise: {found.model.name}", "bold"))
    else:
        out.print(Text("No model was found. Without one, the built-in editor repairs what it can: redraft demo", "bold"))
    out.print(Text("Name others with --model: anthropic:NAME, google:NAME, http://host:port/v1#NAME, local:FILE.gguf ...", "dim"))
