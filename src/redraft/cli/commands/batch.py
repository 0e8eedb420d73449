"""`redraft batch`: process every row of a data set."""

from __future__ import annotations

from typing import Any

import click

from ...settings import BATCH_DEFAULTS, BatchFields, EndpointLimits, OptionFields
from .. import options
from ..command_classes import SectionedCommand
from ..options import setting_options

EPILOG = """\b
Examples:
  redraft batch questions.jsonl -o answers.jsonl --model ollama:llama3.2
  redraft batch questions.csv -o answers.parquet --column prompt=question --require words:80-200
  redraft batch "part-*.jsonl.gz" -o out.jsonl --model openai:gpt-4o-mini --budget-usd 20 --rpm 500
  redraft batch answers.jsonl -o scores.jsonl --mode grade --grader helpfulness --judge openai:gpt-4o
  redraft batch questions.jsonl -o best.jsonl --mode best -n 8 --rubric rubric.toml
  redraft batch questions.jsonl -o answers.jsonl --dry-run
  redraft batch answers.jsonl -o repaired.jsonl --model none --require bullets:3

\b
IN is a JSONL, JSON, CSV, TSV or Parquet file (also .gz and .zst), a quoted pattern,
a folder, - for stdin (JSONL), or hf:NAME[:SPLIT] for a Hugging Face data set. OUT is
JSONL, CSV or Parquet by its extension, or - for stdout. Common column names are
recognised: --dry-run shows which; --column prompt=NAME names others. The output has
the columns of the input, and best, initial_score, best_score, iterations, stop,
calls, tokens, cost, error and others.

\b
All results are saved in a journal next to OUT as they arrive. The same command
resumes an interrupted run and repeats no call. Rows whose input or settings changed
are redone; --explain shows in advance which ones, and why. A run that would leave out
rows of OUT, such as one of another IN, is refused without --overwrite. Press Ctrl-C
once to wait for the calls in flight, twice to stop at once. Progress goes to stderr: a
live view in a terminal, a line every half minute elsewhere, or JSON lines with
--log-format json; with --json, JSON lines also go to stdout.
With -o - there is no journal, so the run cannot be resumed, unless --journal is
given.

\b
Exit codes:
  0    all rows have a result
  1    the run ended early: budget, deadline, an endpoint, the disk
  2    wrong usage or settings
  3    some rows have no result, break a requirement, or could not be read
  130  interrupted
"""  # noqa: E501

SECTIONS = {
    "output": "Output and journal",
    "mode": "What to do",
    "column": "Columns of the input",
    "require": "Grading",
    "model": "Models",
    "target_score": "When to stop working on a row",
    "budget_usd": "Budget and time, for the whole run",
    "initial_in_flight": "Rate limits, for each endpoint",
    "workers": "Where to run",
    "dry_run": "What to show",
}
rate_limits = options.combine(
    setting_options(EndpointLimits, "initial_in_flight", "min_in_flight"),
    setting_options(OptionFields, group="rates", **BATCH_DEFAULTS),
    setting_options(EndpointLimits, "rpm", "tpm"),
    options.timeout,
    setting_options(EndpointLimits, "give_up_after"),
)


@click.command(
    short_help="Refine every row of a data set.",
    cls=SectionedCommand,
    epilog=EPILOG,
    sections=SECTIONS,
)
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@click.option("--output", "-o", type=click.Path(), metavar="OUT", help="Write the rows to OUT.")
@setting_options(BatchFields, group="output")
@setting_options(BatchFields, group="rows")
@options.columns
@options.grading
@options.answer
@options.models
@options.sampling
@options.plan
@options.editor
@options.budget
@rate_limits
@setting_options(BatchFields, group="running")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the rows, the prompts and the likely cost. Makes no call and writes nothing.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Like --dry-run, and also show which rows would be redone, and what changed.",
)
@click.option(
    "--metrics",
    type=options.WholeRange(0, 65535),
    metavar="PORT",
    help="Serve Prometheus metrics on 127.0.0.1:PORT (0: any free port).",
)
@options.as_json
@options.debug
@click.pass_context
def batch(ctx: click.Context, /, **values: Any) -> int:
    """Refine every row of IN, or only grade it, or keep the best of several drafts, and write the
    rows to OUT.
    """
    options.check_noise_aware(ctx)
    from ..operations.batch import run_command

    return run_command(ctx, values)
