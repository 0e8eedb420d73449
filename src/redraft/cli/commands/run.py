"""`redraft run`: refine one answer."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import RedraftError
from ...text import strip_control_sequences
from .. import options, output
from ..config import ConfiguredCommand
from ..errors import INTERRUPTED, exit_code
from ..options import SharedArguments

if TYPE_CHECKING:
    from ...result import Result
    from ..refinement import RefinementDisplay

EPILOG = """\b
Examples:
  redraft run "Explain quantum computing" --require words:80-200
  redraft run - --model ollama:llama3.2 < prompt.txt > answer.md
  redraft run "Write a haiku about rain" --rubric rubric.toml --judge anthropic:claude-sonnet-4-5 -o haiku.md
  redraft run --response draft.md --require bullets:3 --model none
  redraft run "Prove it" --model openai:gpt-4o-mini --budget-usd 0.05 --trace proof.jsonl
  redraft run --resume proof.jsonl --max-iterations 6

\b
The answer goes to stdout, everything else to stderr. With --json, stdout gets
one JSON object per line for every event; the last is {"event": "result", ...}.

\b
Exit codes:
  0    an answer was graded, or calls tools; stderr says why the run ended
  1    failed; the best answer so far, if any, is still printed
  2    wrong usage or settings
  3    the best answer still breaks a requirement
  130  interrupted; the best answer so far is printed, a --trace is saved

\b
Defaults come from the environment (REDRAFT_MODEL, REDRAFT_TARGET_SCORE,
REDRAFT_MAX_ITERATIONS ...), then from redraft.toml or [tool.redraft] in
pyproject.toml (or --config FILE instead), whose keys are the names of the
options, then from config.toml in your own folder. Settings found in a folder
or a trace need your consent to choose hosts, code or files elsewhere: see
redraft trust --help.
"""


@dataclass(frozen=True, kw_only=True)
class RunArguments(SharedArguments):
    """The arguments of `redraft run`."""

    prompt: str | None = None
    response: str | None = None
    system: str | None = None
    context: str | None = None
    reference: str | None = None
    tools: str | None = None
    output: str | None = None
    trace: str | None = None
    resume: str | None = None


@click.command(short_help="Refine one answer.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("prompt", required=False)
@click.option("--response", type=options.READABLE, metavar="FILE", help="An answer to improve (- for stdin).")
@options.grading
@options.asking
@options.stopping
@options.editing
@options.spending
@options.timeout
@options.sampling
@click.option("--system", metavar="TEXT", help="A system message.")
@click.option("--context", type=options.READABLE, metavar="FILE", help="Background material for the judge.")
@click.option("--reference", type=options.READABLE, metavar="FILE", help="A known good answer for the judge.")
@click.option(
    "--tools", type=options.READABLE, metavar="FILE", help="Tools that the model may call: a JSON list in OpenAI's format."
)
@click.option("--output", "-o", type=click.Path(), metavar="FILE", help="Write the answer to FILE instead of stdout.")
@click.option("--trace", type=click.Path(dir_okay=False), metavar="FILE", help="Save every step to FILE as it happens.")
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

    A budget covers the whole trace, also when it is resumed.
    """
    arguments = RunArguments.from_values(values)
    _check(arguments)
    options.check_noise_aware(ctx)
    import asyncio

    from ...result import Result, error_data
    from ..progress import print_event
    from ..refinement import RefinementDisplay, best_so_far, write_result

    display = RefinementDisplay(as_json=arguments.as_json)
    try:
        result = _refine(ctx, values, arguments, display)
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        if (best := best_so_far(interruption)) is None:
            output.warning("interrupted before anything was graded", _resume_advice(arguments))
            trace = display.progress.trace
            if trace is not None and trace.candidates:
                write_result(Result(trace), arguments.output, as_json=arguments.as_json)
            return INTERRUPTED
        result = best
    except RedraftError as error:
        if error.result is not None:
            write_result(error.result, arguments.output, as_json=arguments.as_json)
        if arguments.as_json:
            print_event("error", **error_data(error))
        raise
    if not arguments.as_json:
        _report(result, arguments, display.progress.seconds)
    write_result(result, arguments.output, as_json=arguments.as_json)
    return exit_code(result)


def _check(arguments: RunArguments) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing prompt."""
    if arguments.resume:
        a = arguments
        task = {"--response": a.response, "--system": a.system, "--context": a.context}
        task |= {"--reference": a.reference, "--tools": a.tools, "--trace": a.trace}
        if extra := [name for name, value in {"PROMPT": a.prompt, **task}.items() if value]:
            raise click.UsageError(f"--resume takes the task from its trace: leave out {', '.join(extra)}")
    elif not arguments.prompt and not arguments.response:
        raise click.UsageError('a prompt is missing, for example: redraft run "Explain quantum computing" --require words:80-200')
    if arguments.output:
        output.check_writable(arguments.output)


def _refine(ctx: click.Context, values: dict[str, Any], arguments: RunArguments, display: RefinementDisplay) -> Result:
    """Refine a new task, or resume the trace that was named; save the trace if that was asked for."""
    from ...core.trace import Trace
    from ...storage import JsonlStore, read_trace
    from ...sync import run_sync
    from .. import request as requests
    from ..consent import save_consent_for_trace
    from ..refinement import run_request

    assert isinstance(ctx.command, ConfiguredCommand)
    params, path = ctx.command.settings, arguments.resume or arguments.trace
    with ExitStack() as open_files:
        store = None
        if path:
            if not Path(path).exists():
                open_files.callback(_delete_if_empty, Path(path))
            store = open_files.enter_context(JsonlStore(path, resume=bool(arguments.resume)))
        if arguments.resume:
            trace = read_trace(arguments.resume)
            arguments = RunArguments.from_values(requests.settings_from_trace(ctx, values, params, trace, arguments.resume))
            trace = requests.with_requirements(trace, arguments.require)
        else:
            a = arguments
            files = {"response": a.response, "context": a.context, "reference": a.reference, "tools": a.tools}
            task = requests.make_task(a.prompt, a.require, system=a.system, **files)
            trace = Trace(task, settings=requests.settings_for_trace(values, params))
            if arguments.trace:
                save_consent_for_trace(arguments.trace, requests.sensitive_settings(trace, Path(arguments.trace)))
        callbacks = {"on_record": display.record, "on_step": display.step}
        return run_sync(run_request(requests.build_request(arguments, trace, store=store, **callbacks), display))


def _delete_if_empty(path: Path) -> None:
    """Delete the file of a trace in which nothing began."""
    if path.is_file() and not path.stat().st_size:
        path.unlink()


def _report(result: Result, arguments: RunArguments, seconds: float) -> None:
    """Report the result on stderr."""
    from ...core.records import Comparison
    from ...result import diagnosis_text
    from ..progress import describe_comparison, format_usage, summary_line

    click.echo(f"redraft: {summary_line(result)}", err=True)
    if not sys.stderr.isatty():
        click.echo(f"redraft: {format_usage(result.usage, seconds)}", err=True)
    for comparison in [r for r in result.trace.records if isinstance(r, Comparison)][-1:]:
        output.warning(describe_comparison(comparison))
    if diagnosis := diagnosis_text(result):
        click.echo(f"redraft: {' '.join(diagnosis.split())}", err=True)
    for name in result.metadata["broken"]:
        click.echo(f"redraft: still broken: {strip_control_sequences(name)}", err=True)
    if result.stop.resumable:
        click.echo(f"redraft: {_resume_advice(arguments)}", err=True)
    if sys.stdout.isatty() and sys.stderr.isatty() and not arguments.output:
        click.echo(err=True)


def _resume_advice(arguments: RunArguments) -> str:
    path = arguments.resume or arguments.trace
    return f"resume with: redraft run --resume {shlex.quote(path)}" if path else "with --trace FILE it could be resumed"
