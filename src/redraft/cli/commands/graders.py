"""`redraft graders`: what can grade an answer, and what is known about each grader."""

from __future__ import annotations

import click

from .. import options

EPILOG = """\b
Examples:
  redraft graders
  redraft graders helpfulness
  redraft grade --response answer.md --require words:80-200 --require no_commas
  redraft graders --json | jq -r '.requirements[].example'
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option(
    "--cards-dir", type=click.Path(file_okay=False), metavar="DIR", help="Folder of validation cards. Default: your data folder."
)
@options.as_json
@options.debug
def graders(name: str | None, cards_dir: str | None, as_json: bool) -> None:
    """List all graders, or show one. With NAME: its mode, the fields it reads, its cost, rubric, example and latest validation."""
    from ..operations.graders import show_all, show_one

    if name is None:
        show_all(cards_dir, as_json=as_json)
    else:
        show_one(name, cards_dir, as_json=as_json)
