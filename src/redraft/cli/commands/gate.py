"""`redraft gate`: fail a build if B is worse than A."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import click

from ...base.sync import run_sync
from ...base.text import pluralize
from ...comparison.ci_reports import OnUndecided, gate_passes, junit_xml, markdown_summary
from ...comparison.noise import anchor_drift, noise_floor_sync, stale_graders
from ...comparison.readers import read_results
from ...comparison.report import format_interval, format_signed
from ...comparison.results import RunResults
from ...errors import BudgetExhaustedError, GradingError
from ...usage import NO_USAGE, Usage
from ...validation.statistics import JudgeDrift
from .. import options
from ..command_classes import ConfiguredCommand
from ..exit_codes import OK, UNDECIDED, WORSE
from ..options import OptionValues
from ..output import check_writable, notice, print_json, warning
from ..request import grading_settings, parse_model
from ..terminal import console, text_line
from .compare import (
    OF_TWO,
    after,
    arguments_of,
    compare_variants,
    comparison,
    has_calls,
    models_and_graders,
    refuse_options,
    show_progress,
    show_report,
    source_of,
    warn_of_skipped,
)

NOT_OF_NOISE = ("undecided", "junit", "markdown", "anchors", *OF_TWO)
DRIFTS = {
    "drifted": "the judge has drifted",
    "undecided": "the anchors do not show whether the judge has drifted",
    "stable": "the judge has not drifted",
}

EPILOG = """\b
Examples:
  redraft gate baseline.jsonl candidate.jsonl --junit gate.xml --markdown "$GITHUB_STEP_SUMMARY"
  redraft gate old.md new.md --data tasks.jsonl --model openai:gpt-4o-mini --grader helpfulness --margin 0.03
  redraft gate baseline.jsonl candidate.jsonl --undecided pass
  redraft gate --aa baseline.jsonl again.jsonl
  redraft gate --aa baseline.jsonl --grader helpfulness --judge openai:gpt-4o

\b
B passes if the interval of the difference lies above the margin: the loss is smaller
than that. It fails if the interval lies below 0. Else it is undecided, and the message
says how many more rows would decide. With A = B a false alarm has a probability of
(1 - level) / 2 at most: 2.5%.

\b
--aa measures the noise of your set-up before you spend money on B: A and B are two runs
of the same thing, or the graders grade the answers of A twice. It says which share of
verdicts flips, and which loss 20, 50 and 200 rows could show.

\b
Exit codes:
  0    not worse (or undecided, with --undecided pass)
  1    failed: a model, a budget, a file that cannot be written
  2    wrong usage or settings, or a file that cannot be read
  4    worse; with --aa, the two differ by more than chance
  5    undecided; with --aa, there is one cluster only
  130  interrupted
"""  # noqa: E501


@click.command(
    short_help="Fail a build if B is worse than A.",
    cls=ConfiguredCommand,
    epilog=EPILOG,
)
@options.option(
    "--undecided",
    heading="Gate",
    type=click.Choice(["pass", "fail"]),
    default="fail",
    show_default=True,
    help="What to do if more rows are needed to decide.",
)
@options.option(
    "--junit",
    heading="Gate",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write JUnit XML to FILE.",
)
@options.option(
    "--markdown",
    heading="Gate",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Add a summary in Markdown to FILE.",
)
@options.option(
    "--aa",
    heading="Gate",
    is_flag=True,
    help="Measure the noise: A and B are the same thing, or A is graded twice.",
)
@options.option(
    "--anchors",
    heading="Gate",
    type=options.FILE,
    metavar="RUN",
    help="Answers with earlier scores: grade them anew, and warn if the judge has drifted.",
)
@click.argument("a", type=options.FILE, metavar="A")
@click.argument("b", type=options.FILE, required=False, metavar="[B]")
@comparison
@options.debug
@click.pass_context
def gate(
    ctx: click.Context,
    /,
    *,
    undecided: OnUndecided,
    junit: str | None,
    markdown: str | None,
    aa: bool,
    anchors: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Exit with 0 if B is not worse than A by more than the margin, with 4 if it is worse, with 5
    if that is undecided.
    """
    if aa:
        return _measure_noise(ctx, settings, as_json=as_json)
    for option, path in (("--junit", junit), ("--markdown", markdown)):
        if path:
            check_writable(path, option)
    if settings["b"] is None:
        raise click.UsageError("Missing argument 'B'.")
    began = monotonic()
    recorded = _read_anchors(anchors, ctx, settings)
    report = compare_variants(ctx, settings)
    drift, used = None, NO_USAGE
    if has_calls(ctx, settings):
        drift, used = run_sync(_check_judge(recorded, after(settings, report.usage)))
    report = replace(report, usage=report.usage + used)
    passed = gate_passes(report, undecided)
    if junit:
        text = junit_xml(report, undecided, seconds=monotonic() - began)
        Path(junit).write_text(text, encoding="utf-8")
    if markdown:
        with Path(markdown).open("a", encoding="utf-8") as file:
            file.write(markdown_summary(report, undecided))
    if as_json:
        found = drift and {**asdict(drift), "usage": drift.usage.totals}
        print_json({"passed": passed, **report.as_data(), "anchors": found})
    else:
        show_report(report.gate_line(), report.gate, report)
    if passed:
        return OK
    return WORSE if report.gate == "worse" else UNDECIDED


def _measure_noise(ctx: click.Context, settings: OptionValues, *, as_json: bool) -> int:
    """Show how far a set-up differs from itself, and return the exit code."""
    refuse_options(ctx, NOT_OF_NOISE, "has no effect with --aa")
    if settings["data"] is not None:
        raise click.UsageError("--aa is about finished runs: leave out --data")
    names = [source_of(settings[name], settings) for name in "ab" if settings[name] is not None]
    with show_progress(ctx, settings, names) as progress:
        given = run_sync(arguments_of(names, settings, progress))
        floor = noise_floor_sync(*names, **{n: given[n] for n in given if n not in OF_TWO})
    warn_of_skipped(floor.skipped)
    if as_json:
        print_json(floor.as_data())
    else:
        for line in floor.summary():
            console(stderr=False).print(text_line(line))
    if floor.difference.interval is None:
        return UNDECIDED
    return OK if floor.is_same else WORSE


def _read_anchors(
    anchors: str | None, ctx: click.Context, settings: OptionValues
) -> RunResults | None:
    """Return the answers with earlier scores, if any are named, and list unreadable rows. Raises
    UsageError if nothing grades them anew.
    """
    if anchors is None:
        return None
    if not has_calls(ctx, settings):
        raise click.UsageError("--anchors: name the --grader that grades them anew")
    columns = settings["column"] if settings["data"] is None else {}  # else they are of the tasks
    recorded = read_results(anchors, score=settings["score"], columns=columns, name=anchors)
    warn_of_skipped(recorded.skipped)
    return recorded


async def _check_judge(
    anchors: RunResults | None, settings: OptionValues
) -> tuple[JudgeDrift | None, Usage]:
    """Warn of graders that have changed since they were validated, and of a judge that grades the
    anchors otherwise than before, or that cannot grade them. Return how it grades them, and what
    that took.
    """
    found = await models_and_graders(settings, has_prompts=False)
    graders, judge = found["graders"], found["judge"] or parse_model(settings["model"])
    for status in await stale_graders(graders, judge, cards_dir=settings["cards_dir"]):
        warning(f"grader {status.grader!r}: {status.explanation}")
    if anchors is None:
        return None, NO_USAGE
    try:
        drift = await anchor_drift(
            anchors, graders, judge, level=settings["level"], **grading_settings(settings)
        )
    except (BudgetExhaustedError, GradingError) as error:
        warning(f"it is unknown whether the judge has drifted: {error}")
        return None, error.usage
    shift = f"{format_signed(drift.shift.value)} {format_interval(drift.shift.interval)}"
    say = warning if drift.verdict == "drifted" else notice
    rows = pluralize(drift.shift.rows, "answer")
    say(f"{DRIFTS[drift.verdict]}: scores of {anchors.name} moved by {shift} over {rows}")
    return drift, drift.usage
