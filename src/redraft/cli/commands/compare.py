"""`redraft compare`: say whether B is better than A."""

from __future__ import annotations

from typing import Any

import click

from ...settings import BatchFields, OptionFields
from .. import options
from ..command_classes import SectionedCommand
from ..options import setting_options

EPILOG = """\b
Examples:
  redraft compare before.jsonl after.jsonl
  redraft compare before.jsonl after.jsonl --labels people.jsonl --slice topic
  redraft compare logs/old.eval logs/new.eval --score match
  redraft compare openai:gpt-4o-mini openai:gpt-4o --data tasks.jsonl --grader helpfulness --judge openai:gpt-4o
  redraft compare old.md new.md --data tasks.jsonl --model openai:gpt-4o-mini --grader rules.py:score
  redraft compare helpfulness rules.py:score --labels people.jsonl --judge openai:gpt-4o-mini

\b
A and B are finished runs: outputs or journals of `redraft batch`, tables with a column
of scores, or results of promptfoo or Inspect. FILE#NAME names one of several runs in a
file. With --data, A and B are models or files with prompts: both answer the same tasks,
and the same graders grade. Two graders are compared by how far they agree with
--labels.

\b
Rows are paired by their ID, else by their task. Repeats, such as epochs, are averaged,
and rows of equal tasks count as one cluster. The answer is better, worse or undecided;
undecided says how many more rows or labels would decide. With --labels it is about
what people say, whatever the bias of the judge.
"""  # noqa: E501

SECTIONS = {
    "score": "Results",
    "labels": "Labels of people",
    "cluster": "Statistics",
    "data": "Running or grading anew",
    "require": "Grading",
    "model": "Models",
    "budget_usd": "Budget and time",
    "as_json": "What to show",
}


def _check_scale(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    """Return a scale given as LOW-HIGH. Raises BadParameter."""
    if text is None:
        return None
    low, sign, high = text.partition("-")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not sign or not ends[0] < ends[1]:
        raise click.BadParameter(f"{text!r} is not LOW-HIGH, such as 1-5")
    return ends


comparison = options.combine(
    click.argument("a", type=options.FILE, metavar="A"),
    click.argument("b", type=options.FILE, metavar="B"),
    click.option(
        "--score",
        metavar="NAME",
        default="",
        help="The score to compare: a column, metric, scorer or grader.",
    ),
    options.direction("scores of the runs; for two graders, of the labels"),
    options.columns,
    click.option(
        "--labels",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Labels of people on some answers, such as those of `redraft label` (repeatable).",
    ),
    click.option(
        "--label-column",
        "label_columns",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Name of a column of the labels (repeatable), as -c of `redraft validate`.",
    ),
    click.option(
        "--scale",
        callback=_check_scale,
        metavar="LOW-HIGH",
        help="Scale of the labels, such as 1-5. Default: that of `redraft label`, or 0-1.",
    ),
    click.option(
        "--cluster",
        metavar="COLUMN",
        help=(
            "Rows with the same value in COLUMN do not count as independent. Default: rows of "
            "equal tasks."
        ),
    ),
    click.option(
        "--slice",
        "slices",
        multiple=True,
        metavar="COLUMN",
        help=(
            "Compare the values of COLUMN one by one (repeatable); the intervals hold for all of "
            "them at once."
        ),
    ),
    click.option(
        "--margin",
        type=options.POSITIVE,
        metavar="D",
        help="Loss that does not matter. Default: 0.02 for scores from 0 to 1.",
    ),
    click.option(
        "--level",
        type=options.NumberRange(0, 1, min_open=True, max_open=True),
        default=0.95,
        show_default=True,
        metavar="P",
        help="Confidence of the intervals.",
    ),
    click.option(
        "--anytime",
        is_flag=True,
        help="Use an interval that stays valid however often you look. Rows in random order.",
    ),
    click.option(
        "--data",
        type=options.FILE,
        metavar="TASKS",
        help="A and B are models or files with prompts: run both on the tasks in this file.",
    ),
    click.option(
        "--journal",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help=(
            "File that keeps every call, so that a second comparison repeats none. Default: "
            "compare.journal."
        ),
    ),
    setting_options(BatchFields, "limit"),
    setting_options(OptionFields, "max_iterations", max_iterations=0),
    options.grading,
    options.models,
    options.sampling,
    options.budget,
    setting_options(OptionFields, "max_in_flight"),
    options.timeout,
    options.as_json,
)


@click.command(
    short_help="Say whether B is better than A.",
    cls=SectionedCommand,
    epilog=EPILOG,
    sections=SECTIONS,
)
@comparison
@options.debug
@click.pass_context
def compare(ctx: click.Context, /, **values: Any) -> int:
    """Say whether B is better than A, worse, or undecided: paired, with an interval, and what would
    decide it.
    """
    from ..operations.compare import run_compare

    return run_compare(ctx, values)
