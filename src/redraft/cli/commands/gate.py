"""`redraft gate`: fail a build if B is worse than A."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import click

from ...comparison.ci_reports import OnUndecided, gate_passes, junit_xml, markdown_summary
from .. import options
from ..command_classes import ConfiguredCommand
from ..exit_codes import OK, UNDECIDED, WORSE
from ..output import check_writable, print_json
from .compare import compare_variants, comparison, show_report

EPILOG = """\b
Examples:
  redraft gate baseline.jsonl candidate.jsonl --junit gate.xml --markdown "$GITHUB_STEP_SUMMARY"
  redraft gate old.md new.md --data tasks.jsonl --model openai:gpt-4o-mini --grader helpfulness --margin 0.03
  redraft gate baseline.jsonl candidate.jsonl --undecided pass

\b
B passes if the interval of the difference lies above the margin: the loss is smaller
than that. It fails if the interval lies below 0. Else it is undecided, and the message
says how many more rows would decide. With A = B a false alarm has a probability of
(1 - level) / 2 at most: 2.5 %.

\b
Exit codes:
  0    not worse (or undecided, with --undecided pass)
  1    failed: a model, a budget, a file that cannot be written
  2    wrong usage or settings, or a file that cannot be read
  4    worse
  5    undecided
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
    as_json: bool,
    **settings: Any,
) -> int:
    """Exit with 0 if B is not worse than A by more than the margin, with 4 if it is worse, with 5
    if that is undecided.
    """
    for option, path in (("--junit", junit), ("--markdown", markdown)):
        if path:
            check_writable(path, option)
    began = monotonic()
    report = compare_variants(ctx, settings)
    passed = gate_passes(report, undecided)
    if junit:
        text = junit_xml(report, undecided, seconds=monotonic() - began)
        Path(junit).write_text(text, encoding="utf-8")
    if markdown:
        with Path(markdown).open("a", encoding="utf-8") as file:
            file.write(markdown_summary(report, undecided))
    if as_json:
        print_json({"passed": passed, **report.as_data()})
    else:
        show_report(report.gate_line(), report.gate, report)
    if passed:
        return OK
    return WORSE if report.gate == "worse" else UNDECIDED
