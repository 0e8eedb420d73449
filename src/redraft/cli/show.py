"""`redraft show`: tell a saved trace."""

from __future__ import annotations

import click

from . import options

EPILOG = """\b
Examples:
  redraft show proof.jsonl
  redraft show proof.jsonl --full | less -R
  redraft show proof.jsonl --json | jq .score
"""


@click.command(epilog=EPILOG)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False))
@options.as_json
@click.option("--full", is_flag=True, help="Whole texts instead of what stands around the changes.")
@options.debug
def show(trace: str, as_json: bool, full: bool) -> None:
    """Replay a saved TRACE: scores, feedback, what changed, what it took. It asks no model."""
    from ..storage import read_trace

    saved = read_trace(trace)
    if as_json:
        from .replay import as_data

        click.echo(as_data(saved))
    else:
        from .replay import tell

        tell(saved, full=full)
