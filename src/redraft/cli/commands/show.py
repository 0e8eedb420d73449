"""`redraft show`: show a saved trace."""

from __future__ import annotations

import click

from ...storage import read_trace
from .. import options

EPILOG = """\b
Examples:
  redraft show proof.jsonl
  redraft show proof.jsonl --full | less -R
  redraft show proof.jsonl --json | jq .score
"""


@click.command(short_help="Show a saved trace.", epilog=EPILOG)
@click.argument("trace", type=click.Path(exists=True, dir_okay=False))
@options.as_json
@click.option("--full", is_flag=True, help="Show whole texts instead of excerpts around the changes.")
@options.debug
def show(trace: str, as_json: bool, full: bool) -> None:
    """Show a saved TRACE: scores, feedback, changes and usage. It calls no model."""
    from ..terminal import show_trace, trace_as_json

    saved = read_trace(trace)
    if as_json:
        click.echo(trace_as_json(saved))
    else:
        show_trace(saved, full=full)
