"""`redraft models`: where a model was looked for."""

from __future__ import annotations

import click

from . import options

EPILOG = """\b
Examples:
  redraft models
  OPENAI_BASE_URL=http://127.0.0.1:8080/v1 redraft models
  redraft models --json | jq '.places[] | select(.found)'
"""


@click.command(epilog=EPILOG)
@options.as_json
@options.debug
def models(as_json: bool) -> None:
    """What was looked for, what was found, and what each place would need. The first found is used."""
    import asyncio

    from ..models import find_model

    found = asyncio.run(find_model(search_all=True))
    if as_json:
        import json

        places = [
            {"where": p.where, "found": p.is_available, "models": list(p.models), "chosen": p.selected_model, "note": p.note}
            for p in found.locations
        ]
        click.echo(json.dumps({"model": found.model.name if found.model else None, "places": places}, indent=2))
        return
    from .places import draw

    draw(found)
