"""`redraft run`: refine one answer."""

from __future__ import annotations

from typing import Any

import click

from .. import options
from ..command_classes import ConfiguredCommand

EPILOG = """\b
Examples:
  redraft run "Explain quantum computing" --require words:80-200
  redraft run - --model ollama:llama3.2 < prompt.txt > answer.md
  redraft run "Write a haiku about rain" --rubric rubric.toml --judge anthropic:claude-sonnet-4-5 -o haiku.md
  redraft run --response draft.md --require bullets:3 --model none
  redraft run "Prove it" --model openai:gpt-4o-mini --budget-usd 0.05 --trace proof.jsonl
  redraft run --resume proof.jsonl --max-iterations 6
  redraft run "Prove it" --model openai:gpt-5 --judge-param reasoning_effort=low
  redraft run "Explain DNS" --model llamacpp:qwen3 --max-tokens 800 --grader judge:max_tokens=600,max_eval_chars=6000

\b
The answer goes to stdout, everything else to stderr. With --json, stdout gets
one JSON object per line for every event; the last is {"event": "result", ...}.

\b
Exit codes:
  0    an answer was graded, or calls tools; stderr says why the run ended
  1    failed: there is no answer, or a file cannot be written
  2    wrong usage or settings
  3    the best answer is printed; it breaks a requirement, or has no grade
  130  interrupted; the best answer so far is printed, a --trace is saved

\b
Defaults come from the environment (REDRAFT_MODEL, REDRAFT_TARGET_SCORE,
REDRAFT_MAX_ITERATIONS ...), then from redraft.toml or [tool.redraft] in
pyproject.toml (or --config FILE instead), whose keys are the names of the
options, then from config.toml in your own folder. Settings in a folder or a
trace may choose hosts, code, or files elsewhere only with your consent: see
redraft trust --help.
"""  # noqa: E501


@click.command(short_help="Refine one answer.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("prompt", required=False)
@click.option(
    "--response", type=options.READABLE, metavar="FILE", help="An answer to improve (- for stdin)."
)
@options.grading
@options.answer
@options.models
@options.plan
@options.editor
@options.budget
@options.timeout
@options.sampling
@options.system
@options.background
@click.option(
    "--tools",
    type=options.READABLE,
    metavar="FILE",
    help="Tools that the model may call: a JSON list in OpenAI's format.",
)
@options.output
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Save every step to FILE as it happens.",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Resume a saved trace with its settings; options override them.",
)
@options.as_json
@options.debug
@click.pass_context
def run(ctx: click.Context, /, **values: Any) -> int:
    """Answer PROMPT (- for stdin), or improve a given response, until the graders are satisfied.

    A budget covers the whole trace, including the part before it was resumed.
    """
    options.check_noise_aware(ctx)
    from ..operations.run import run_command

    return run_command(ctx, values)
