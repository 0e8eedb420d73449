"""`redraft rubric`: induce a rubric from labelled data, or propose one from a description."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..command_classes import ConfiguredCommand

EPILOG = """\b
Examples:
  redraft rubric "Product descriptions for a shop that sells used bicycles" -o rubric.toml
  redraft rubric labelled.jsonl --model openai:gpt-4o -o rubric.toml
  redraft rubric --from pairs.csv --start letters.toml --judge ollama:llama3.2 -o letters2.toml
  redraft validate other.jsonl --rubric rubric.toml

\b
From a description, a model proposes criteria in one call, and nobody has checked them:
edit the file. From labelled rows, criteria are tested against the labels:

\b
The rows are split three ways: examples for the model that proposes criteria, rows to
choose between proposals, and rows for the final report. The search stops when agreement
with people no longer rises.
Exit codes: 0 a better rubric was found or one was proposed, 1 failed or ended early,
2 usage, 3 none was better on the rows held out for the report: the rubric that it started
from is written.
"""


@click.command(
    short_help="Find criteria for a judge, from labelled data or a description.",
    cls=ConfiguredCommand,
    epilog=EPILOG,
)
@click.argument("source", required=False, type=options.FILE, metavar="[FILE|DESCRIPTION]")
@click.option(
    "--from",
    "data",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Labelled answers, as FILE.",
)
@click.option(
    "--start",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The rubric to start from. Default: that of the built-in judge.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the rubric (TOML) to FILE instead of stdout.",
)
@options.overwrite
@click.option("--name", metavar="NAME", help="Name of the rubric. Default: the name of the file.")
@options.label_columns
@click.option(
    "--kind",
    type=click.Choice(["score", "pass", "pair"]),
    help="Kind of the labels, if the data do not show it.",
)
@options.label_limit
@click.option(
    "--rounds",
    type=options.COUNT,
    default=4,
    show_default=True,
    metavar="N",
    help="Try at most N proposals.",
)
@options.setting(
    "--model", metavar="MODEL", help="The model that proposes criteria. Default: look for one."
)
@options.setting(
    "--judge",
    metavar="MODEL",
    help="The model that judges by them. Default: the model that proposes.",
)
@options.params
@options.judge_calls_in_flight
@options.budget
@options.timeout
@options.as_json
@options.debug
@click.pass_context
def rubric(ctx: click.Context, /, **values: Any) -> int:
    """Write a rubric: criteria by which a judge agrees with the people who labelled FILE, or
    criteria proposed for tasks of the kind in DESCRIPTION (- for stdin).
    """
    from ..operations.rubric import run_command

    return run_command(ctx, values)
