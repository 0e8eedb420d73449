"""`redraft best`: the best of several answers."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .config import Configured

EPILOG = """\b
Examples:
  redraft best "Name a bakery on a boat" -n 6 --grader ranker
  redraft best "Explain quantum computing" --model ollama:llama3.2 --judge openai:gpt-4o-mini --require words:80-200
  redraft best "Summarise it" --response a.md --response b.md --grader judge > best.md
  redraft best --response a.md --response b.md --require bullets:3 --json

\b
The best answer alone goes to stdout, the ranking to stderr. Answers that tie are
marked so; of those the earliest is kept. With --json, one JSON object a line for
everything that happens goes to stdout, the last two of them {"event": "ranking",
...} and {"event": "result", ...}. Given answers are only compared, never changed;
with requirements alone no model is asked about them.

\b
Exit codes: 0 the best is printed, 1 failed, 2 usage, 3 the best still breaks a
requirement, 130 interrupted.
"""


@click.command(cls=Configured, epilog=EPILOG)
@click.argument("prompt", required=False)
@click.option("-n", "n", type=options.COUNT, metavar="N", help="Draft N answers.  [default: 4]")
@click.option(
    "--response",
    type=options.READABLE,
    multiple=True,
    metavar="FILE",
    help="Draft none: choose among these (repeatable; - for stdin).",
)
@options.grading
@options.asking
@options.setting("--editor/--no-editor", default=True, help="Repair drafts by form alone before a model grades them. Default: yes.")
@options.spending
@options.timeout
@options.sampling
@click.option("--system", metavar="TEXT", help="A system message.")
@click.option("--context", type=options.READABLE, metavar="FILE", help="Material for the judge.")
@click.option("--reference", type=options.READABLE, metavar="FILE", help="A known good answer for the judge.")
@click.option("--output", "-o", type=click.Path(), metavar="FILE", help="Write the best there instead of to stdout.")
@options.as_json
@options.debug
def best(**typed: Any) -> int:
    """Draft several answers to PROMPT (- for stdin), or take those given, and keep the best."""
    _check(typed)
    from .choosing import choose

    return choose(typed)


def _check(typed: dict[str, Any]) -> None:
    """Raises UsageError for what does not go together."""
    given = typed["response"]
    if given and typed["n"]:
        raise click.UsageError("-n drafts answers and --response gives them: leave out one")
    if len(given) == 1:
        raise click.UsageError("one answer is the best of one: give --response at least twice")
    if not given and not typed["prompt"]:
        raise click.UsageError('a prompt is missing, for example: redraft best "Name a bakery on a boat" -n 4 --grader ranker')
    if typed["output"]:
        from .files import check_writable

        check_writable(typed["output"])
