"""`redraft export`: training data from a run."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .runs import journal

EPILOG = """\b
Examples:
  redraft export answers-jsonl -o pairs.jsonl --min-margin 0.2
  redraft export results/answers.jsonl -o dataset --format preference --test-size 0.1
  redraft export answers-jsonl -o sft.parquet --format messages --good 0.8
  redraft export answers-jsonl -o steps.jsonl --format stepwise --journal results/answers.jsonl.journal

\b
RUN is a name that `redraft runs` lists, or the path of the run's output. OUT is
JSONL (.gz, .zst) or Parquet by its name, - for stdout; with --test-size there are
two, OUT.train and OUT.test. Any other name is a folder: it gets train, test and a
data set card with the numbers. The same prompt always falls on the same side.
A file that is there is replaced with --overwrite only; in a folder, those that the
card of an earlier export names are renewed. Rows that have left the input of the
run, or were changed there since, are left out.

\b
The columns are those that TRL's trainers read:
  preference         prompt, chosen, rejected: the best answer and a worse one
  unpaired           prompt, completion, label: the same, one by one
  prompt-completion  prompt, completion: the best answer
  messages           messages: the best answer as a conversation
  stepwise           prompt, completions, labels: all answers in their order
  trajectory         prompt, candidates, best, stop: the whole refinement
Columns that begin with redraft_ say where a row comes from: run, row, models,
graders, scores. No answer without a score is used, no example comes twice, and
what was left out is counted by reason.
"""

FORMATS = ("preference", "unpaired", "prompt-completion", "messages", "stepwise", "trajectory")
SCORE = click.FloatRange(0, 1)


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--output", "-o", type=click.Path(), required=True, metavar="OUT", help="Write it there: a file or a folder.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="preference", show_default=True, help="What a row holds, see below."
)
@click.option(
    "--pairs",
    type=click.Choice(["best-first", "best-worst", "all"]),
    default="best-first",
    show_default=True,
    help="Which answer the best is set against: the first, the worst, or each.",
)
@click.option("--min-margin", type=SCORE, default=0.0, metavar="D", help="A better answer scored at least D more.")
@click.option("--good", type=SCORE, metavar="SCORE", help="An answer is good from this score on.")
@click.option(
    "--style",
    type=click.Choice(["conversational", "standard"]),
    default="conversational",
    show_default=True,
    help="Lists of messages, or plain text.",
)
@click.option(
    "--test-size",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="SHARE",
    help="This share of the prompts is for testing.",
)
@click.option("--salt", default="redraft", metavar="TEXT", help="Another text splits another way.")
@click.option(
    "--files", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True, help="What a folder is filled with."
)
@click.option("--with-demands", is_flag=True, help="Prompts end with the hard constraints, as the writer was told them.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@journal
@options.as_json
@options.debug
def export(**typed: Any) -> None:
    """What the answers of a RUN teach, as data to train on."""
    if typed["as_json"] and typed["output"] == "-":
        raise click.UsageError("--json and -o - both write to stdout: leave out one")
    from .exporting import write

    write(typed)
