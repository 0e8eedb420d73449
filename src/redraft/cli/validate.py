"""`redraft validate`: whether a grader can be trusted."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .config import Configured

EPILOG = """\b
Examples:
  redraft validate pairs.jsonl --grader helpfulness --judge openai:gpt-4o-mini
  redraft validate scores.csv --grader judge -c prompt=question -c label=human --looks 3
  redraft validate pairs.jsonl --recorded arena_hard -c output=judge_text -c output_ba=judge_text_swapped
  redraft validate pairs.jsonl --grader pairwise --attacks attacks.jsonl
  redraft run "Explain it" --grader helpfulness --trust require

\b
DATA is JSONL, JSON, CSV or Parquet with one labelled answer a row (a score, or
pass and fail), a pair with the better one, or several with their ranking. Common
column names are recognised and said; others are given with -c OURS=THEIRS.

\b
What a grader said is kept as it arrives: the same command goes on where it was
interrupted, and pays for nothing twice. The card (card.md, card.json, plots) says
what was measured; `--trust` reads it. Exit codes: 0 better than chance, 1 failed,
2 usage, 3 not shown to be better than chance, 130 interrupted.
"""


def _formats(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if not on:
        return
    from ..validation.recorded_formats import OUTPUT_FORMATS

    for form in OUTPUT_FORMATS.values():
        click.echo(f"{form.name:16} {form.kind:8} {form.about}, such as {form.example!r}")
    ctx.exit()


@click.command(cls=Configured, epilog=EPILOG)
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@options.setting("--grader", metavar="NAME", help="The grader: a name that `redraft graders` lists, or a SPEC.")
@options.setting(
    "--rubric", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="An LLM judge with the criteria in FILE."
)
@options.setting("--model", metavar="MODEL", help="The model that it asks. Default: look for one.")
@options.setting("--judge", metavar="MODEL", help="The same; goes before --model.")
@click.option("--column", "-c", "columns", multiple=True, metavar="OURS=THEIRS", help="What a column is called (repeatable).")
@click.option("--kind", type=click.Choice(["score", "pass", "pair", "ranking"]), help="What the labels are, where it is not plain.")
@click.option("--limit", type=options.COUNT, metavar="N", help="Only the first N rows.")
@click.option(
    "--looks", type=options.COUNT, default=1, show_default=True, metavar="N", help="Ask N times about each: how noisy is it?"
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="S",
    help="An answer passes from this score on.",
)
@click.option("--scale", metavar="LOW-HIGH", help="The scale of the labels, such as 1-5, to tell how lenient the grader is.")
@click.option("--recorded", metavar="FORMAT", help="Ask nobody: read recorded outputs, in a format that --formats lists.")
@click.option(
    "--outputs", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="The recorded outputs, if not in DATA."
)
@click.option(
    "--formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_formats,
    help="List the formats of recorded outputs, and stop.",
)
@click.option(
    "--attacks", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="How often do these strings turn its verdict?"
)
@options.setting("--cards", type=click.Path(file_okay=False), metavar="DIR", help="Where the cards are. Default: the user's own.")
@click.option("--afresh", is_flag=True, help="Ask again what was answered before.")
@click.option("--max-in-flight", type=options.COUNT, default=16, show_default=True, metavar="N", help="Calls at once.")
@options.spending
@options.timeout
@options.as_json
@options.debug
def validate(**typed: Any) -> int:
    """Measure a grader against what people said in DATA, and keep a card of it."""
    if typed["grader"] and typed["rubric"]:
        raise click.UsageError("--grader and --rubric name two graders: measure one at a time")
    if typed["recorded"] is None and not typed["grader"] and not typed["rubric"]:
        raise click.UsageError(
            "name what to measure: --grader NAME or --rubric FILE, or --recorded FORMAT for outputs of another system"
        )
    from .measuring import measure

    return measure(typed)
