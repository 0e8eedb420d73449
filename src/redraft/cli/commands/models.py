"""`redraft models`: which models were found, and where."""

from __future__ import annotations

import asyncio
import json

import click

from ...models import DiscoveryResult, find_model
from .. import options

MAX_NAMES = 6  # of models at one place
EPILOG = """\b
Examples:
  redraft models
  OPENAI_BASE_URL=http://127.0.0.1:8080/v1 redraft models
  redraft models --json | jq '.locations[] | select(.available)'
"""


@click.command(short_help="List where Redraft looks for models, and what it found.", epilog=EPILOG)
@options.as_json
@options.debug
def models(as_json: bool) -> None:
    """List the places where Redraft looks for models, what each needs, and what it found. The first model is used."""
    discovery = asyncio.run(find_model(search_all=True))
    if not as_json:
        _show(discovery)
        return
    locations = [
        {"where": p.where, "available": p.is_available, "models": list(p.models), "selected": p.selected_model, "note": p.note}
        for p in discovery.locations
    ]
    click.echo(json.dumps({"model": discovery.model.name if discovery.model else None, "locations": locations}, indent=2))


def _show(discovery: DiscoveryResult) -> None:
    """Draw a row for each place, then which model is used."""
    from ..terminal import console, grid, text_line

    out = console(stderr=False)
    table = grid()
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for place in discovery.locations:
        more = f" and {len(place.models) - MAX_NAMES} more" if len(place.models) > MAX_NAMES else ""
        about = text_line(", ".join(place.models[:MAX_NAMES]) + more)
        if place.note:
            about.append_text(text_line(("; " if place.models else "") + place.note, "" if place.is_available else "dim"))
        table.add_row(text_line("✓", "green") if place.is_available else text_line("·", "dim"), text_line(place.where), about)
    out.print(table)
    out.print()
    if discovery.model:
        out.print(text_line(f"Used unless --model says otherwise: {discovery.model.name}", "bold"))
    else:
        out.print(text_line("No model was found. Without one, the built-in editor repairs what it can: redraft demo", "bold"))
    others = "anthropic:NAME, google:NAME, http://host:port/v1#NAME, local:FILE.gguf ..."
    out.print(text_line(f"Name others with --model: {others}", "dim"))
