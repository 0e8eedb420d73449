"""`redraft priors`: what Redraft expects of a model and its graders."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..config import ConfiguredCommand
from ..errors import FAILED, OK
from ..options import DefaultGroup
from ..output import notice, pluralize, warning

MIN_TASKS = 8  # fewer tasks teach too little
MAX_SOURCES = 3  # files that are named in saved priors
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
Where a model judges, Redraft estimates what each next step may gain: from how good
drafts are, how much refinements improve them, and how noisy the judge's scores are. It
starts with the shipped priors. Batches save what they learn for each model with its
graders; only runs with --priors learned start with that. Priors are a starting point:
the scores of a task soon count for more.
"""

LEARN_EPILOG = """\b
Examples:
  redraft priors learn answers.jsonl.journal
  redraft priors learn answers.jsonl.journal --run answers-jsonl --limit 256
  redraft priors learn traces/*.jsonl
  redraft priors learn old.jsonl --model ollama:llama3.2 --grader helpfulness

\b
Journals and the traces of `redraft run` contain their model and graders. For others
(traces of `redraft runs export`) give them as for `redraft run`; what you type takes
precedence. Answers written or graded by others are left out.
Exit codes: 0 learned and saved, 1 too few tasks, or priors from more tasks are saved, 2 usage.
"""


@click.group(cls=DefaultGroup, default="list", epilog=EPILOG)
def priors() -> None:
    """Show, learn or delete priors for a model and its graders. Priors are what Redraft expects before any score is known."""


@priors.command("list")
@options.as_json
@options.debug
def list_(as_json: bool) -> None:
    """List the saved priors and the shipped ones. `redraft priors` alone does the same."""
    from ..views.priors import show_all

    show_all(as_json=as_json)


@priors.command()
@click.argument("pair", metavar="MODEL|KEY")
@options.as_json
@options.debug
def show(pair: str, as_json: bool) -> None:
    """Show all values for a MODEL with its graders, and what each means. The start of its KEY, or "shipped", works as well."""
    from ..views.priors import show_one

    show_one(pair, as_json=as_json)


@priors.command(cls=ConfiguredCommand, epilog=LEARN_EPILOG)
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="TRACE...")
@click.option("--run", metavar="NAME", help="Use only this run of a journal.")
@options.setting("--grader", multiple=True, metavar="NAME", help="The grader (repeatable).")
@options.setting(
    "--rubric", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="An LLM judge with the criteria in FILE."
)
@options.asking
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
    import json

    from ...quality.fit import fit_priors
    from ...quality.priors import Priors
    from ...storage.priors_store import PriorsStore, StoredPriors
    from ..training_data import GradingNames, TrainingData
    from ..views.priors import print_table

    data = TrainingData(ctx, GradingNames.from_values(names), run, limit)
    for name in traces:
        data.read(name)
    for reason, count in data.left_out.items():
        warning(f"left out: {pluralize(count, 'trace')} {reason}")
    store, saved = PriorsStore.in_folder(), []
    for key, examples in data.by_key.items():
        label = f"{key.model} with {', '.join(key.graders)}"
        sources = list(dict.fromkeys(examples.sources))
        more = f" and {len(sources) - MAX_SOURCES} more" if len(sources) > MAX_SOURCES else ""
        source = f"{', '.join(sources[:MAX_SOURCES])}{more}"
        before, after = store.load(key), StoredPriors.create(key, fit_priors(examples.sample(limit), Priors()), source)
        tasks = pluralize(after.priors.tasks, "task")
        if after.priors.tasks < MIN_TASKS:
            warning(f"{label}: {tasks} of at least {MIN_TASKS} that are needed")
            continue
        if before and before.priors.tasks > after.priors.tasks and not replace:
            message = f"{label}: these are {tasks}; the saved priors were learned from {before.priors.tasks:,}"
            warning(message, "--replace replaces them")
            continue
        path = store.save(after)
        instead = f", replacing priors from {pluralize(before.priors.tasks, 'task')}" if before else ""
        notice(f"{label}: learned from {tasks}{instead}; saved in {path}")
        saved.append(after)
    if as_json:
        click.echo(json.dumps([each.as_data() for each in saved], indent=2))
    elif saved:
        print_table(saved)
    if not data.by_key:
        warning("there is nothing to learn from: no answers that a model wrote and a model graded")
    return OK if saved and len(saved) == len(data.by_key) else FAILED


@priors.command()
@click.argument("pair", metavar="MODEL|KEY")
@options.as_json
@options.debug
def forget(pair: str, as_json: bool) -> None:
    """Delete the saved priors of a MODEL with its graders; --priors learned then starts with the shipped ones."""
    from ..views.priors import delete

    delete(pair, as_json=as_json)
