"""`redraft run`: refine one answer, show the progress, and write the answer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ...base.sync import run_sync
from ...loop.records import Comparison
from ...loop.task import Task
from ...loop.trace import Trace
from ...result import Result, changed_fields, diagnosis_text
from ...storage import JsonlStore, read_trace
from .. import options
from ..command_classes import GroupedCommand
from ..config import use_plan
from ..consent import save_consent_for_trace, sensitive_settings_of_trace
from ..errors import warn_if_ungraded
from ..options import OptionValues
from ..output import check_output, notice, warning
from ..progress import describe_comparison, format_usage, summary_line
from ..refinement import RefinementProgress, build_request, conclude, run_request
from ..request import make_task, settings_for_trace, settings_from_trace, with_requirements

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


@click.command(short_help="Refine one answer.", cls=GroupedCommand, epilog=EPILOG)
@click.argument("prompt", required=False)
@options.option(
    "--response",
    heading=options.WRITING,
    common=True,
    type=options.READABLE,
    metavar="FILE",
    help="An answer to improve (- for stdin).",
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
@options.option(
    "--tools",
    heading=options.WRITING,
    type=options.READABLE,
    metavar="FILE",
    help="Tools that the model may call: a JSON list in OpenAI's format.",
)
@options.output
@options.option(
    "--trace",
    heading=options.OUTPUT,
    common=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Save every step to FILE as it happens.",
)
@options.option(
    "--resume",
    heading=options.OUTPUT,
    common=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Resume a saved trace with its settings; options override them.",
)
@options.as_json
@options.debug
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    prompt: str | None,
    response: str | None,
    system: str | None,
    context: str | None,
    reference: str | None,
    tests: str | None,
    tools: str | None,
    output: str | None,
    trace: str | None,
    resume: str | None,
    overwrite: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Answer PROMPT (- for stdin), or improve a given response, until the graders are satisfied.

    A budget covers the whole trace, including the part before it was resumed.
    """
    files = {
        "response": response,
        "context": context,
        "reference": reference,
        "tests": tests,
        "tools": tools,
    }
    if resume:
        texts = {"PROMPT": prompt, "--system": system, "--trace": trace}
        _check_resume({**texts, **{f"--{name}": file for name, file in files.items()}})
    else:
        _check_new(prompt or response, trace)
    if output:  # a trace that is resumed replaces its own earlier answer
        check_output(output, overwrite=overwrite or bool(resume))
    progress, saved = RefinementProgress(as_json=as_json), resume or trace

    def refine() -> Result:
        with _open_store(saved, resume=bool(resume)) as store:
            given = use_plan(ctx, settings)
            if resume:
                begun, used = _read_trace(ctx, resume, given)
            else:
                task = make_task(prompt, given["require"], system=system, **files)
                begun, used = _new_trace(ctx, task, given, trace), given
            callbacks = {"on_record": progress.record, "on_step": progress.step}
            request = build_request(used, begun, store=store, **callbacks)
            return run_sync(run_request(request, progress))

    advice = _resume_advice(saved)
    return conclude(
        refine, progress, lambda result: _report(result, progress, advice), output, advice=advice
    )


def _check_resume(given: Mapping[str, str | None]) -> None:
    """Raise UsageError for what a trace that is resumed has itself."""
    if extra := [name for name, value in given.items() if value]:
        raise click.UsageError(
            f"--resume takes the task from its trace: leave out {', '.join(extra)}"
        )


def _check_new(text: str | None, path: str | None) -> None:
    """Raise UsageError for a new task without a text, or with the file of a trace that exists."""
    if not text:
        raise click.UsageError(
            'a prompt is missing, for example: redraft run "Explain quantum computing" --require '
            "words:80-200"
        )
    if path and Path(path).is_file() and Path(path).stat().st_size:
        raise click.UsageError(
            f"--trace: {path!r} exists already: resume it with redraft run --resume "
            f"{shlex.quote(path)} -o FILE, or name another file (if the answer goes to "
            "a file by > FILE, the shell has emptied that already)"
        )


@contextmanager
def _open_store(path: str | None, *, resume: bool) -> Iterator[JsonlStore | None]:
    """Open the file that saves the trace, if one is named, and delete it if it is new and stays
    without records.
    """
    if path is None:
        yield None
        return
    is_new = not Path(path).exists()
    try:
        with JsonlStore(path, resume=resume) as store:
            yield store
    finally:
        if is_new and Path(path).is_file() and not Path(path).stat().st_size:
            Path(path).unlink()


def _read_trace(
    ctx: click.Context, path: str, settings: OptionValues
) -> tuple[Trace, dict[str, Any]]:
    """Return the trace to resume, and the settings with those that it saves. Raises StoreError,
    ConfigError.
    """
    trace = read_trace(path)
    completed = settings_from_trace(ctx, settings, options.settings_of_command(ctx), trace, path)
    return with_requirements(trace, completed["require"]), completed


def _new_trace(ctx: click.Context, task: Task, settings: OptionValues, path: str | None) -> Trace:
    """Return the trace of a new task. If it is saved in a file, save consent to its settings."""
    trace = Trace(task, settings=settings_for_trace(settings, options.settings_of_command(ctx)))
    if path:
        save_consent_for_trace(path, sensitive_settings_of_trace(trace, Path(path)))
    return trace


def _report(result: Result, progress: RefinementProgress, advice: str) -> None:
    """Report the result on stderr, unless it is written as JSON."""
    if progress.as_json:
        return
    notice(summary_line(result))
    if not sys.stderr.isatty():
        notice(format_usage(result.usage, progress.seconds))
    for comparison in [r for r in result.trace.records if isinstance(r, Comparison)][-1:]:
        warning(describe_comparison(comparison))
    if diagnosis := diagnosis_text(result):
        notice(diagnosis)
    if changed := changed_fields(result.trace):
        notice(f"changed without being asked: {'; '.join(map(str, changed))}")
    for name in result.facts.broken:
        notice(f"still broken: {name}")
    warn_if_ungraded(result)
    if result.stop.resumable:
        notice(advice)


def _resume_advice(path: str | None) -> str:
    return (
        f"resume with: redraft run --resume {shlex.quote(path)}"
        if path
        else "with --trace FILE it could be resumed"
    )
