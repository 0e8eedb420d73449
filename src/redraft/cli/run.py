"""`redraft run`: refine one answer."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .config import Configured

EPILOG = """\b
Examples:
  redraft run "Explain quantum computing" --require words:80-200
  redraft run - --model ollama:llama3.2 < prompt.txt > answer.md
  redraft run "Write a haiku about rain" --rubric rubric.toml --judge anthropic:claude-sonnet-4-5 -o haiku.md
  redraft run --response draft.md --require bullets:3 --model none
  redraft run "Prove it" --model openai:gpt-4o-mini --budget-usd 0.05 --trace proof.jsonl
  redraft run --resume proof.jsonl --max-iterations 6

\b
The answer alone goes to stdout, all else to stderr; with --json, one JSON
object a line for everything that happens goes to stdout, the last of them
{"event": "result", ...}.

\b
Exit codes:
  0    an answer was graded, or calls tools; stderr says why the work ended
  1    it failed; the best so far, if there is one, is printed all the same
  2    something asked for cannot be
  3    the best answer still breaks a requirement
  130  interrupted; the best so far is printed, a --trace is kept

\b
Defaults come from the environment (REDRAFT_MODEL, REDRAFT_TARGET,
REDRAFT_MAX_ITERATIONS ...), then from redraft.toml or [tool.redraft] in
pyproject.toml, whose keys are the names of the options, or from --config
FILE in their place; then from config.toml in your own folder. What was found
in a folder or a trace needs consent to choose hosts, code or files elsewhere:
redraft trust --help tells more.
"""


@click.command(cls=Configured, epilog=EPILOG)
@click.argument("prompt", required=False)
@click.option("--response", type=options.READABLE, metavar="FILE", help="An answer to improve (- for stdin).")
@options.grading
@options.asking
@options.stopping
@options.setting("--editor/--no-editor", default=True, help="Repair by form alone before a model is asked. Default: yes.")
@options.spending
@options.timeout
@options.sampling
@click.option("--system", metavar="TEXT", help="A system message.")
@click.option("--context", type=options.READABLE, metavar="FILE", help="Material for the judge.")
@click.option("--reference", type=options.READABLE, metavar="FILE", help="A known good answer for the judge.")
@click.option("--tools", type=options.READABLE, metavar="FILE", help="Tools that the model may call: a JSON list, as OpenAI's.")
@click.option("--output", "-o", type=click.Path(), metavar="FILE", help="Write the answer there instead of to stdout.")
@click.option("--trace", type=click.Path(dir_okay=False), metavar="FILE", help="Keep everything there as it happens.")
@click.option(
    "--resume",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Go on with a trace; its settings hold, options change them.",
)
@options.as_json
@options.debug
@click.pass_context
def run(ctx: click.Context, /, **typed: Any) -> int:
    """Answer PROMPT (- for stdin) as well as the settings allow, or improve a given response.

    A budget covers a whole trace, also when it is resumed.
    """
    _check(typed)
    options.check_plain(ctx)
    from .work import refine

    return refine(ctx, typed)


OF_THE_TASK = ("prompt", "response", "system", "context", "reference", "tools", "trace")


def _check(typed: dict[str, Any]) -> None:
    """Raises UsageError for what does not go together."""
    if typed["resume"]:
        if extra := [name for name in OF_THE_TASK if typed[name]]:
            named = ", ".join(name.upper() if name == "prompt" else f"--{name}" for name in extra)
            raise click.UsageError(f"--resume takes the task from its trace and goes on in it: leave out {named}")
    elif not typed["prompt"] and not typed["response"]:
        raise click.UsageError('a prompt is missing, for example: redraft run "Explain quantum computing" --require words:80-200')
    if typed["output"]:
        from .files import check_writable

        check_writable(typed["output"])
