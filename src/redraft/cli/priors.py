"""`redraft priors`: what is expected of a model and its graders."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .config import Configured
from .sections import Defaulting

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
Where a model judges, Redraft weighs what each next step may gain: by how good drafts
are, what refinements bring, and how far the judge's scores can be trusted. It begins
with the figures that are shipped. What batches teach is kept for each model with its
graders; a run with --priors learned begins with that, and no other run does. It is a
hint, no more: what a task shows of itself soon counts for more.
"""

LEARNING = """\b
Examples:
  redraft priors learn answers.jsonl.journal
  redraft priors learn answers.jsonl.journal --run answers-jsonl --limit 256
  redraft priors learn traces/*.jsonl
  redraft priors learn old.jsonl --model ollama:llama3.2 --grader helpfulness

\b
A trace of `redraft run` and a journal know which model and graders they are of. Where
they don't (traces of `redraft runs export`), say it as for `redraft run`; what is typed
goes before what they know. What was written or graded by others is left out.
Exit codes: 0 learned and kept, 1 there was too little to learn from, or more was kept, 2 usage.
"""


@click.group(cls=Defaulting, default="list", epilog=EPILOG)
def priors() -> None:
    """What is expected of a model and its graders before anything is seen: show it, learn it, forget it."""


@priors.command("list")
@options.as_json
@options.debug
def listed(as_json: bool) -> None:
    """What is kept, beside what is shipped. (What `redraft priors` alone does.)"""
    from .believed import show_all

    show_all(as_json=as_json)


@priors.command()
@click.argument("pair", metavar="MODEL|KEY")
@options.as_json
@options.debug
def show(pair: str, as_json: bool) -> None:
    """All figures of a MODEL with its graders, and what each means. The beginning of its KEY will do; or say shipped."""
    from .believed import show_one

    show_one(pair, as_json=as_json)


@priors.command(cls=Configured, epilog=LEARNING)
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="TRACE...")
@click.option("--run", metavar="NAME", help="Of a journal, only this run.")
@options.setting("--grader", multiple=True, metavar="NAME", help="Who scored it (repeatable).")
@options.setting(
    "--rubric", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="An LLM judge with the criteria in FILE."
)
@options.asking
@click.option("--limit", type=options.COUNT, default=1024, show_default=True, metavar="N", help="Of so many tasks, evenly chosen.")
@click.option("--replace", is_flag=True, help="Also in the place of what more tasks taught.")
@options.as_json
@options.debug
@click.pass_context
def learn(ctx: click.Context, /, **typed: Any) -> int:
    """Learn from finished work: from trace files and journals of batches, 8 tasks at least. It takes the place of what as many
    tasks or fewer taught of the same pair.
    """
    from .teaching import learn

    return learn(ctx, typed)


@priors.command()
@click.argument("pair", metavar="MODEL|KEY")
@options.as_json
@options.debug
def forget(pair: str, as_json: bool) -> None:
    """Forget what is kept of a MODEL with its graders; --priors learned then begins with what is shipped."""
    from .believed import forget

    forget(pair, as_json=as_json)
