"""`redraft best`: the best of several answers."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..command_classes import ConfiguredCommand

EPILOG = """\b
Examples:
  redraft best "Name a bakery on a boat" -n 6 --grader ranker
  redraft best "Name a bakery on a boat" -n 6 --keep 3 --grader judge
  redraft best "Explain quantum computing" --model ollama:llama3.2 --judge openai:gpt-4o-mini --require words:80-200
  redraft best "Summarise it" --response a.md --response b.md --grader judge > best.md
  redraft best --response a.md --response b.md --require bullets:3 --json

\b
The best answer goes to stdout, the ranking to stderr. Ties are marked; the
earliest of tied answers is kept. With --keep K, the K best answers are
printed, best first, with a line "---" between them. With --json, stdout gets one JSON object per
line for every event; the last two are {"event": "ranking", ...} and
{"event": "result", ...}. Given answers are compared, never changed; with
requirements only, no model is called.

\b
Exit codes: 0 the best answer is printed, 1 failed, 2 usage, 3 the best answer
is printed and breaks a requirement, or has no grade, 130 interrupted.
"""  # noqa: E501


@click.command(short_help="Keep the best of several answers.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("prompt", required=False)
@click.option(
    "-n",
    "n",
    type=options.COUNT,
    default=4,
    show_default=True,
    metavar="N",
    help="Number of drafts.",
)
@click.option(
    "--keep",
    type=options.COUNT,
    default=1,
    show_default=True,
    metavar="K",
    help="Number of the best answers to keep.",
)
@click.option(
    "--response",
    type=options.READABLE,
    multiple=True,
    metavar="FILE",
    help="Choose among these answers instead of drafting (repeatable; - for stdin).",
)
@options.grading
@options.answer
@options.models
@options.draft_prompt
@options.editor
@options.budget
@options.timeout
@options.sampling
@options.system
@options.background
@options.output
@options.as_json
@options.debug
@click.pass_context
def best(ctx: click.Context, /, **values: Any) -> int:
    """Draft several answers to PROMPT (- for stdin), or compare given ones, and keep the best."""
    from ..operations.best import run_command

    return run_command(ctx, values)
