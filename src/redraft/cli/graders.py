"""`redraft graders`: what can grade an answer, and what is known of each."""

from __future__ import annotations

import click

from . import options

EPILOG = """\b
Examples:
  redraft graders
  redraft graders helpfulness
  redraft grade --response answer.md --require words:80-200 --require no_commas
  redraft graders --json | jq -r '.requirements[].example'
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option("--cards", type=click.Path(file_okay=False), metavar="DIR", help="Where the cards are. Default: the user's own.")
@options.as_json
@options.debug
def graders(name: str | None, cards: str | None, as_json: bool) -> None:
    """All graders with a name, or the card of one: mode, fields read, cost, rubric, example, latest validation."""
    from .shelf import show_all, show_one

    if name is None:
        show_all(cards, as_json=as_json)
    else:
        show_one(name, cards, as_json=as_json)
