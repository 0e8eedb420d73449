"""`redraft grade`: grade given answers without changing them."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..command_classes import ConfiguredCommand

EPILOG = """\b
Examples:
  redraft grade --response answer.md --require words:80-200 --require bullets:3
  redraft grade "Explain quantum computing" --response answer.md --model openai:gpt-4o-mini
  redraft grade "Summarise it" --response - --rubric rubric.toml --json < answer.md
  redraft grade "Summarise it" --response a.md --response b.md --grader graders.py:polite
  redraft grade trajectories.jsonl --grader tool_selection --judge openai:gpt-4o
  redraft grade "Prove it" --response proof.md --judge openai:gpt-5 --judge-param reasoning_effort=low

\b
With requirements only, no model is called. Exit codes: 0 graded, 1 a grader failed,
2 usage, 3 a requirement (--require) is not met, 130 interrupted.
"""  # noqa: E501


@click.command(short_help="Grade given answers.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("prompt", required=False, default="")
@click.option(
    "--response",
    type=options.READABLE,
    multiple=True,
    metavar="FILE",
    help=(
        "The answer (- for stdin); repeat it for a table of several. Without it, PROMPT names a "
        "file with rows."
    ),
)
@options.grading
@options.answer
@options.models
@options.budget
@options.timeout
@options.background
@options.encoding
@options.as_json
@options.debug
def grade(**values: Any) -> int:
    """Grade a response to PROMPT (- for stdin), or the answers in the rows of a file: scores,
    reasons, and suggested changes.
    """
    from ..operations.grade import run_command

    return run_command(values)
