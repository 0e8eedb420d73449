"""`redraft grade`: what graders say of an answer, and no more."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .config import Configured

EPILOG = """\b
Examples:
  redraft grade --response answer.md --require words:80-200 --require bullets:3
  redraft grade "Explain quantum computing" --response answer.md --model openai:gpt-4o-mini
  redraft grade "Summarise it" --response - --rubric rubric.toml --json < answer.md

\b
With requirements alone no model is asked. Exit codes: 0 graded, 1 failed,
2 usage, 3 a requirement (--require) is broken, 130 interrupted.
"""


@click.command(cls=Configured, epilog=EPILOG)
@click.argument("prompt", required=False, default="")
@click.option("--response", type=options.READABLE, metavar="FILE", required=True, help="The answer (- for stdin).")
@options.grading
@options.asking
@options.spending
@options.timeout
@click.option("--context", type=options.READABLE, metavar="FILE", help="Material for the judge.")
@click.option("--reference", type=options.READABLE, metavar="FILE", help="A known good answer for the judge.")
@options.as_json
@options.debug
def grade(**typed: Any) -> int:
    """Grade a response to PROMPT (- for stdin): scores, reasons, and what to change."""
    from .verdict import judge

    return judge(typed)
