"""`redraft rubric`: a rubric from labelled data."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .config import Configured

EPILOG = """\b
Examples:
  redraft rubric --from labelled.jsonl --model openai:gpt-4o -o rubric.toml
  redraft rubric --from pairs.csv --start letters.toml --judge ollama:llama3.2 -o letters2.toml
  redraft validate other.jsonl --rubric rubric.toml

\b
The rows are split three ways: examples the model is shown, rows to choose by,
rows to report on. It stops when agreement with people no longer rises.
Exit codes: 0 a better rubric was found, 1 failed or ended early, 2 usage, 3 none was
better on rows that neither proposing nor choosing had seen: the start is written.
"""


@click.command(cls=Configured, epilog=EPILOG)
@click.option(
    "--from", "data", type=click.Path(exists=True, dir_okay=False), required=True, metavar="FILE", help="Labelled answers."
)
@click.option(
    "--start",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The rubric to start from. Default: the judge's own.",
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="Write the rubric (TOML) there instead of to stdout."
)
@click.option("--name", metavar="NAME", help="What the rubric is called. Default: after the file.")
@click.option("--column", "-c", "columns", multiple=True, metavar="OURS=THEIRS", help="What a column is called (repeatable).")
@click.option("--kind", type=click.Choice(["score", "pass", "pair"]), help="What the labels are, where it is not plain.")
@click.option("--limit", type=options.COUNT, metavar="N", help="Only the first N rows.")
@click.option("--rounds", type=options.COUNT, default=4, show_default=True, metavar="N", help="Try at most N proposals.")
@options.setting("--model", metavar="MODEL", help="Who proposes the criteria. Default: look for one.")
@options.setting("--judge", metavar="MODEL", help="Who judges by them. Default: the model that proposes.")
@click.option("--max-in-flight", type=options.COUNT, default=16, show_default=True, metavar="N", help="Calls at once.")
@options.spending
@options.timeout
@options.as_json
@options.debug
def rubric(**typed: Any) -> int:
    """Find criteria by which a judge agrees with people, and write them as a rubric."""
    if typed["output"]:
        from .files import check_writable

        check_writable(typed["output"])
    from .inducing import induce

    return induce(typed)
