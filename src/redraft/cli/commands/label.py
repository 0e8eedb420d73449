"""`redraft label`: people judge answers in the browser."""

from __future__ import annotations

from typing import Any

import click

from .. import options

EPILOG = """\b
Examples:
  redraft label answers.jsonl
  redraft label answers.jsonl better.jsonl
  redraft label answers.jsonl --kind score --scale 1-5 --rubric helpfulness
  redraft label pairs.csv -c response_a=left -c response_b=right
  redraft label answers.jsonl --export labels.json --format label-studio
  redraft validate answers.jsonl.labels.jsonl --grader judge

\b
SOURCE is a run (its name, its output or its journal), or a file with answers. With a second
run, the best answers of both are pairs. Annotators see neither scores nor where an answer
comes from. Keys: 1 and 2 for the better answer, 0 for a tie, s to skip, u to undo; the page
also works with several browsers, one for each annotator. Labels are saved at once, in
SOURCE.labels.jsonl, and the same command continues. `redraft validate` reads that file.
"""


@click.command(short_help="Judge answers in the browser.", epilog=EPILOG)
@click.argument("source", type=options.FILE)
@click.argument("against", required=False, type=options.FILE)
@options.journal
@click.option(
    "--kind",
    type=click.Choice(["pair", "pass", "score"]),
    default="pair",
    show_default=True,
    help="What is asked: which of two answers is better, whether one is good, or how good.",
)
@click.option(
    "--scale",
    default="1-5",
    show_default=True,
    metavar="LOW-HIGH",
    help="Scale of --kind score, within 0-9.",
)
@click.option("--question", metavar="TEXT", help="The question, shown above each item.")
@click.option(
    "--rubric",
    type=options.FILE,
    metavar="NAME",
    help="Show the criteria of a rubric: a name that `redraft graders` lists, or a file.",
)
@click.option(
    "--labels",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file of labels. Default: SOURCE.labels.jsonl.",
)
@click.option(
    "--count",
    type=options.COUNT,
    metavar="N",
    help="Stop after N labels of an annotator. Default: all items.",
)
@click.option(
    "--random-share",
    type=options.NumberRange(0, 1),
    metavar="S",
    help="Share of labels for items drawn at random, which represent all items; the others are "
    "those that teach most. It is chosen once for a file of labels. Default: 0.25.",
)
@options.label_columns
@click.option(
    "--export",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the labels to FILE instead, in --format.",
)
@click.option(
    "--import",
    "import_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Add labels from FILE, in --format.",
)
@click.option(
    "--format",
    type=click.Choice(["jsonl", "label-studio", "argilla"]),
    default="jsonl",
    show_default=True,
    help="Format of --export and --import.",
)
@options.overwrite
@options.port
@options.browser
@options.debug
def label(**values: Any) -> None:
    """Judge the answers of SOURCE in the browser: blind, with one key for each. The labels measure
    graders and compare runs.
    """
    from ..operations.label import LabelArguments, run_command

    run_command(LabelArguments(**values))
