"""`redraft export`: training data from a run, or its scores for a tool that shows its spans."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from ...base.sync import run_sync
from ...base.text import pluralize
from ...errors import RedraftError
from ...storage.journal import Journal
from ...tables.export.formats import (
    FILES,
    FORMATS,
    PAIRS,
    STYLES,
    ExportConfig,
    ExportResult,
    Provenance,
)
from ...tables.export.writer import export as export_run
from ...telemetry.scores import TOOLS, ScoreExport, ScoreTool, export_scores
from .. import options
from ..output import notice, print_json
from ..stored_runs import RUN, StoredRun, find_run
from ..terminal import console, figure_table

EPILOG = """\b
Examples:
  redraft export answers.jsonl -o pairs.jsonl --min-margin 0.2
  redraft export results/answers.jsonl -o dataset --format preference --test-size 0.1
  redraft export answers.jsonl -o sft.parquet --format messages --good 0.8
  redraft export answers.jsonl -o steps.jsonl --format stepwise --journal results/answers.jsonl.journal
  redraft export answers.jsonl -o calls.jsonl --format messages --tool-calls --style openai
  redraft export answers.jsonl --format phoenix

\b
RUN is a name that `redraft runs` lists, or the path of the run's output. OUT is
JSONL (.gz, .zst) or Parquet by its name, - for stdout; with --test-size it becomes
two files, OUT.train and OUT.test. Any other name is a folder, which gets the files train
and test and a data set card. The same prompt is always in the same split. Existing files
are replaced only with --overwrite; in a folder, files that the card of an earlier export
names are replaced without it. Rows that were since removed from the input of the run, or
changed there, are left out.

\b
The columns are those that TRL's trainers read:
  preference         prompt, chosen, rejected: the best answer and a worse one
  unpaired           prompt, completion, label: the same answers, one per row
  prompt-completion  prompt, completion: the best answer
  messages           messages: the best answer as a conversation
  stepwise           prompt, completions, labels: all answers in order
  trajectory         prompt, candidates, best, stop: the whole refinement
Columns that begin with redraft_ say where a row comes from: run, row, models,
graders, scores; --style openai, for messages and preference, has none. Answers that
call tools are left out without --tool-calls. Answers without a score and duplicates are left out, and with
prompt-completion and messages rows that failed or whose best answer was cut off; the
summary counts the rows by reason.

\b
phoenix, mlflow and langfuse write no file, but the score of each grade and row to the
span that shows it, if the run was recorded with OpenTelemetry (OTEL_ variables). The
server and its keys come from PHOENIX_ENDPOINT and PHOENIX_API_KEY; MLFLOW_TRACKING_URI
and MLFLOW_TRACKING_TOKEN (or _USERNAME and _PASSWORD); LANGFUSE_BASE_URL,
LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY. Doing it again doubles nothing.
"""  # noqa: E501

MAX_NAMES = 5  # of rows that are left out for one reason
SCORE = options.NumberRange(0, 1)


@click.command(short_help="Write a run as training data, or its scores to a tool.", epilog=EPILOG)
@click.argument("run", type=RUN)
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    metavar="OUT",
    help="Write to this file or folder.",
)
@click.option(
    "--format",
    type=click.Choice((*FORMATS, *TOOLS)),
    default="preference",
    show_default=True,
    help="What a row contains (see below).",
)
@click.option(
    "--pairs",
    type=click.Choice(PAIRS),
    default="best-first",
    show_default=True,
    help="Pair the best answer with the first, with the worst, or with each other answer.",
)
@click.option(
    "--min-margin",
    type=SCORE,
    default=0.0,
    metavar="D",
    help="A better answer must score at least D more.",
)
@click.option(
    "--good", type=SCORE, metavar="SCORE", help="Answers with at least this score are good."
)
@click.option(
    "--style",
    type=click.Choice(STYLES),
    default="conversational",
    show_default=True,
    help="Write lists of messages, plain text, or the files of OpenAI's fine-tuning.",
)
@click.option(
    "--tool-calls",
    is_flag=True,
    help="Include prompts and answers that call tools, with a column of the tools.",
)
@click.option(
    "--test-size",
    type=options.NumberRange(0, 1, max_open=True),
    default=0.0,
    metavar="SHARE",
    help="Share of the prompts in the test split.",
)
@click.option("--salt", default="redraft", metavar="TEXT", help="Seed of the train/test split.")
@click.option(
    "--files",
    type=click.Choice(FILES),
    default="jsonl",
    show_default=True,
    help="Format of the files in a folder.",
)
@click.option(
    "--with-requirements",
    is_flag=True,
    help="End each prompt with its requirements, as the model saw them.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@options.journal
@options.as_json
@options.debug
def export(
    *,
    run: str,
    output: str | None,
    overwrite: bool,
    journal: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Write the answers of a RUN as training data, or its scores to the spans of a tool."""
    if tool := TOOLS.get(settings["format"]):
        defaults = asdict(ExportConfig())
        if output or overwrite or settings != defaults | {"format": settings["format"]}:
            raise click.UsageError(
                f"{settings['format']} writes scores to spans, and takes no option of training "
                "data: only --journal and --json"
            )
        _export_scores(tool, find_run(run, journal), as_json=as_json)
        return
    if output is None:
        raise click.UsageError(
            "--output (-o) must name the file or folder of training data; scores need none "
            f"(--format {', '.join(TOOLS)})"
        )
    if as_json and output == "-":
        raise click.UsageError("--json and -o - both write to stdout: leave out one")
    config = ExportConfig(**settings)
    stored = find_run(run, journal)
    stored.check_output(output)
    metadata = stored.info.metadata
    provenance = Provenance(
        stored.info.display_name,
        metadata.get("model"),
        {"input": metadata.get("source"), "mode": metadata.get("mode")},
    )
    with Journal(stored.path, read_only=True) as file:
        exported = export_run(
            file.traces(stored.info.name), output, config, provenance, overwrite=overwrite
        )
    if as_json:
        print_json(exported.as_data())
    else:
        _summarize(exported)


def _export_scores(tool: ScoreTool, stored: StoredRun, *, as_json: bool) -> None:
    """Write the scores of a run to a tool. Raises RedraftError if none could be written."""
    exported = write_scores(tool, stored)
    if as_json:
        print_json(vars(exported))
    if not exported.scores:
        raise RedraftError(f"nothing was written: no score of the run has a span in {tool.name}")


def write_scores(tool: ScoreTool, stored: StoredRun, arrival_seconds: float = 0.0) -> ScoreExport:
    """Write the scores of a run to a tool, which may lack its spans for `arrival_seconds`, and say
    which rows have none there. Raises RedraftError if the tool does not take them.
    """
    with Journal(stored.path, read_only=True) as file:
        exported = run_sync(export_scores(tool, os.environ, file, stored.info, arrival_seconds))
    for reason, names in exported.left_out.items():
        some = ", ".join(names[:MAX_NAMES]) + ", ..." * (len(names) > MAX_NAMES)
        notice(f"left out: {pluralize(len(names), 'row')} ({some}): {reason}")
    notice(f"{tool.name} has {pluralize(exported.scores, 'score')} of the run")
    return exported


def _summarize(exported: ExportResult) -> None:
    """Write the numbers of examples and rows to stderr, and why rows were left out."""
    split = f" ({exported.train:,} to train, {exported.test:,} to test)" if exported.test else ""
    examples, rows = (
        pluralize(exported.train + exported.test, "example"),
        pluralize(exported.used, "row"),
    )
    notice(f"{examples}{split} from {rows} of {exported.rows:,}")
    notice(f"written: {', '.join(exported.files) or 'nothing'}")
    if means := ", ".join(f"{name} {mean:.3f}" for name, mean in exported.means.items()):
        notice(f"mean scores: {means}")
    if not exported.left_out:
        return
    left_out = sorted(exported.left_out.items(), key=lambda item: -item[1])
    lines = ((reason, f"{count:,}") for reason, count in left_out)
    console(stderr=True).print(figure_table(("left out because", "rows"), lines, ("rows",)))
