"""`redraft priors`: what Redraft expects of a model and its graders."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..command_classes import ConfiguredCommand, DefaultGroup

EPILOG = """\b
Examples:
  redraft priors
  redraft priors show tiny
  redraft run "Explain it" --plan plan.toml
  redraft priors show tiny --json > tiny.json
  redraft priors calibrate questions.jsonl --calls 100 --save
  redraft priors learn answers.jsonl.journal
  redraft priors learn proof.jsonl poem.jsonl --model ollama:llama3.2 --judge openai:gpt-4o
  redraft priors forget 3f9a04c1

\b
If a model judges, Redraft estimates how much each step may gain. The estimate depends on
how good drafts are, how much refinements improve them, and how noisy the judge's scores
are; priors are what it assumes at the start. Every run starts with the shipped priors.
Later rows of a batch start with priors learned from earlier ones. They are saved for other
runs by `redraft priors learn` and `calibrate --save`, and by batches with learned priors;
runs with learned priors start with those. They are chosen in the plan file of --plan, as
priors = "learned" or priors = "tiny.json". The more scores a task has, the less its priors
count.
"""

LEARN_EPILOG = """\b
Examples:
  redraft priors learn answers.jsonl.journal
  redraft priors learn answers.jsonl.journal --run answers.jsonl --limit 256
  redraft priors learn traces/*.jsonl
  redraft priors learn old.jsonl --model ollama:llama3.2 --grader helpfulness

\b
Journals and the traces of `redraft run` contain their model and graders. For others
(traces of `redraft runs export`) give them as for `redraft run`; options take
precedence. Answers of other models and scores of other graders are left out.
Exit codes: 0 learned and saved, 1 too few tasks, or the saved priors are from more tasks, 2 usage.
"""

CALIBRATE_EPILOG = """\b
Examples:
  redraft priors calibrate questions.jsonl --calls 100
  redraft priors calibrate questions.jsonl --model ollama:llama3.2 --judge openai:gpt-4o --save
  redraft priors calibrate questions.csv -c prompt=question --grader helpfulness --json

\b
Each task takes five calls with one judge: a draft, two grades, a refinement
and its grade. 20 tasks tell the noise of the judge within about 15 %. With --save, runs of the same model
and graders with learned priors start with the result.
Exit codes: 0 calibrated, 1 failed, 2 usage, 130 interrupted.
"""  # noqa: E501


@click.group(cls=DefaultGroup, default="list", epilog=EPILOG)
def priors() -> None:
    """Show, learn or delete priors for a model and its graders. Priors are what Redraft expects
    before any score is known.
    """


@priors.command("list")
@options.as_json
@options.debug
def list_(as_json: bool) -> None:
    """List the saved priors and the shipped ones. `redraft priors` alone does the same."""
    from ..operations.priors import show_all

    show_all(as_json=as_json)


@priors.command()
@click.argument("model_or_key", metavar="MODEL|KEY")
@options.as_json
@options.debug
def show(model_or_key: str, as_json: bool) -> None:
    """Show all values for a MODEL with its graders, and what each means. The start of its KEY, or
    "shipped", works as well.
    """
    from ..operations.priors import show_one

    show_one(model_or_key, as_json=as_json)


@priors.command(cls=ConfiguredCommand, epilog=LEARN_EPILOG)
@click.argument(
    "traces",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="TRACE...",
)
@click.option("--run", metavar="NAME", help="Use only this run of a journal.")
@options.setting("--grader", multiple=True, metavar="NAME", help="The grader (repeatable).")
@options.rubric
@options.models
@click.option(
    "--limit",
    type=options.COUNT,
    default=1024,
    show_default=True,
    metavar="N",
    help="Use at most N tasks, evenly chosen.",
)
@click.option(
    "--replace", is_flag=True, help="Also replace priors that were learned from more tasks."
)
@options.as_json
@options.debug
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    *,
    traces: tuple[str, ...],
    run: str | None,
    limit: int,
    replace: bool,
    as_json: bool,
    **names: Any,
) -> int:
    """Learn priors from trace files and journals with at least 8 finished tasks. They replace saved
    priors of the same model and graders that were learned from as many tasks or fewer.
    """
    from ..operations.priors import GradingNames, TrainingData, learn_priors

    data = TrainingData(ctx, GradingNames.from_values(names), run, limit)
    return learn_priors(data, traces, replace=replace, as_json=as_json)


@priors.command(cls=ConfiguredCommand, epilog=CALIBRATE_EPILOG)
@click.argument("file", type=options.READABLE, metavar="FILE")
@click.option(
    "--calls",
    type=options.COUNT,
    default=100,
    show_default=True,
    metavar="N",
    help="Spend at most N calls.",
)
@click.option("--save", is_flag=True, help="Save the priors for runs with learned priors.")
@options.columns
@options.setting("--grader", multiple=True, metavar="NAME", help="The grader (repeatable).")
@options.rubric
@options.models
@options.sampling
@options.timeout
@options.as_json
@options.debug
def calibrate(**values: Any) -> int:
    """Learn priors from the tasks in FILE with a stated number of calls: how noisy the judge is,
    how good drafts are, and whether refining helps.
    """
    from ..operations.calibrate import run_command

    return run_command(values)


@priors.command()
@click.argument("model_or_key", metavar="MODEL|KEY")
@options.as_json
@options.debug
def forget(model_or_key: str, as_json: bool) -> None:
    """Delete the saved priors of a MODEL with its graders. After that, learned priors are the
    shipped ones.
    """
    from ..operations.priors import delete

    delete(model_or_key, as_json=as_json)
