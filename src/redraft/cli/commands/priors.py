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
  redraft run "Explain it" --priors learned
  redraft priors show tiny --json > tiny.json
  redraft run "Explain it" --priors tiny.json
  redraft priors learn answers.jsonl.journal
  redraft priors learn proof.jsonl poem.jsonl --model ollama:llama3.2 --judge openai:gpt-4o
  redraft priors forget 3f9a04c1

\b
If a model judges, Redraft estimates how much each step may gain. The estimate depends on
how good drafts are, how much refinements improve them, and how noisy the judge's scores
are; priors are what it assumes at the start. Every run starts with the shipped priors.
Batches save the priors that they learn for each model with its graders; runs with
--priors learned start with those. The more scores a task has, the less its priors count.
"""

LEARN_EPILOG = """\b
Examples:
  redraft priors learn answers.jsonl.journal
  redraft priors learn answers.jsonl.journal --run answers-jsonl --limit 256
  redraft priors learn traces/*.jsonl
  redraft priors learn old.jsonl --model ollama:llama3.2 --grader helpfulness

\b
Journals and the traces of `redraft run` contain their model and graders. For others
(traces of `redraft runs export`) give them as for `redraft run`; options take
precedence. Answers of other models and scores of other graders are left out.
Exit codes: 0 learned and saved, 1 too few tasks, or the saved priors are from more tasks, 2 usage.
"""


@click.group(cls=DefaultGroup, default="list", epilog=EPILOG)
def priors() -> None:
    """Show, learn or delete priors for a model and its graders. Priors are what Redraft expects before any score is known."""


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
    """Show all values for a MODEL with its graders, and what each means. The start of its KEY, or "shipped", works as well."""
    from ..operations.priors import show_one

    show_one(model_or_key, as_json=as_json)


@priors.command(cls=ConfiguredCommand, epilog=LEARN_EPILOG)
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="TRACE...")
@click.option("--run", metavar="NAME", help="Use only this run of a journal.")
@options.setting("--grader", multiple=True, metavar="NAME", help="The grader (repeatable).")
@options.rubric
@options.models
@click.option(
    "--limit", type=options.COUNT, default=1024, show_default=True, metavar="N", help="Use at most N tasks, evenly chosen."
)
@click.option("--replace", is_flag=True, help="Also replace priors that were learned from more tasks.")
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
    """Learn priors from trace files and journals with at least 8 finished tasks. They replace saved priors of the same model
    and graders that were learned from as many tasks or fewer.
    """
    from ..operations.priors import GradingNames, TrainingData, learn_priors

    data = TrainingData(ctx, GradingNames.from_values(names), run, limit)
    return learn_priors(data, traces, replace=replace, as_json=as_json)


@priors.command()
@click.argument("model_or_key", metavar="MODEL|KEY")
@options.as_json
@options.debug
def forget(model_or_key: str, as_json: bool) -> None:
    """Delete the saved priors of a MODEL with its graders. After that, --priors learned uses the shipped ones."""
    from ..operations.priors import delete

    delete(model_or_key, as_json=as_json)
