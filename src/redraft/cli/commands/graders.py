"""`redraft graders`: what can grade an answer, and what is known about each grader."""

from __future__ import annotations

import click

from .. import options

EPILOG = """\b
Examples:
  redraft graders
  redraft graders helpfulness
  redraft grade --response answer.md --require words:80-200 --require no_commas
  redraft graders reward:http://127.0.0.1:8000/classify#MODEL --learn answers.jsonl
  redraft graders --json | jq -r '.requirements[].example'
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option(
    "--cards-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder of validation cards. Default: your data folder.",
)
@click.option(
    "--learn",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="NAME is a reward model: learn how its raw scores become scores from the answers in FILE.",
)
@options.as_json
@options.debug
def graders(name: str | None, cards_dir: str | None, learn: str | None, as_json: bool) -> None:
    """List all graders, or show one. With NAME: its mode, the fields it reads, its cost, rubric,
    example and latest validation.
    """
    from ..operations.graders import show_all, show_one

    if learn:
        from ..operations.learn import learn as learn_mapping

        learn_mapping(name, learn, as_json=as_json)
    elif name is None:
        show_all(cards_dir, as_json=as_json)
    else:
        show_one(name, cards_dir, as_json=as_json)
