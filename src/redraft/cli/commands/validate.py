"""`redraft validate`: measure whether a grader can be trusted."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..command_classes import ConfiguredCommand

EPILOG = """\b
Examples:
  redraft validate pairs.jsonl --grader helpfulness --judge openai:gpt-4o-mini
  redraft validate scores.csv --grader judge -c prompt=question -c label=human --repeats 3
  redraft validate pairs.jsonl --recorded arena_hard -c output=judge_text -c output_ba=judge_text_swapped
  redraft validate pairs.jsonl --grader pairwise --attacks attacks.jsonl
  redraft run "Explain it" --grader helpfulness --require-validated error

\b
DATA is JSONL, JSON, CSV or Parquet. Each row has one labelled answer (a score, or pass
and fail), a pair with the better one, or several answers with their ranking. Redraft
recognises common column names and reports them; name others with -c OURS=THEIRS.

\b
Verdicts are saved as they arrive: after an interruption the same command resumes, and
no call is paid for twice. The card (card.md, card.json, plots) contains the
measures; `--require-validated` reads it. Exit codes: 0 better than chance, 1 failed, 2 usage,
3 not shown to be better than chance, 130 interrupted.
"""  # noqa: E501


def _list_formats(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if on and not ctx.resilient_parsing:
        from ..operations.validate import list_formats

        list_formats()
        ctx.exit()


@click.command(
    short_help="Measure a grader against labels of people.", cls=ConfiguredCommand, epilog=EPILOG
)
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@options.setting(
    "--grader",
    metavar="NAME",
    help=(
        "The grader: a name that `redraft graders` lists, a SPEC, or code of yours as "
        "FILE.py:NAME or MODULE:NAME."
    ),
)
@options.rubric
@options.template
@options.setting(
    "--model", metavar="MODEL", help="The model that the grader calls. Default: look for one."
)
@options.setting("--judge", metavar="MODEL", help="The same; takes precedence over --model.")
@options.params
@options.execution
@options.label_columns
@click.option(
    "--kind",
    type=click.Choice(["score", "pass", "pair", "ranking"]),
    help="Kind of the labels, if the data do not show it.",
)
@options.direction("labels")
@options.label_limit
@click.option(
    "--repeats",
    type=options.COUNT,
    default=1,
    show_default=True,
    metavar="N",
    help="Grade each answer N times, to measure the noise of the grader.",
)
@click.option(
    "--threshold",
    type=options.NumberRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="S",
    help="Answers with at least this score pass.",
)
@click.option(
    "--scale",
    metavar="LOW-HIGH",
    help="Scale of the labels, such as 1-5, to measure how lenient the grader is.",
)
@click.option(
    "--recorded",
    metavar="FORMAT",
    help="Call no model: read recorded outputs in a format that --formats lists.",
)
@click.option(
    "--outputs",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The recorded outputs, if not in DATA.",
)
@click.option(
    "--formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_formats,
    help="List the formats of recorded outputs and exit.",
)
@click.option(
    "--attacks",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Measure how often the strings in FILE change the verdict.",
)
@options.cards_dir
@click.option(
    "--restart", is_flag=True, help="Set saved verdicts aside and grade everything again."
)
@options.judge_calls_in_flight
@options.budget
@options.timeout
@options.as_json
@options.debug
def validate(**values: Any) -> int:
    """Measure how far a grader agrees with the human labels in DATA. The result is saved as a
    validation card.
    """
    from ..operations.validate import run_command

    return run_command(values)
