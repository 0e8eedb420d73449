"""Refines one answer, shows the progress, and writes the answer: `redraft run`, and what `redraft
best` has in common with it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ...base.sync import run_sync
from ...base.text import pluralize
from ...errors import GradingError, RedraftError, StoreError
from ...loop.records import Comparison, Record
from ...loop.steps import Step
from ...loop.trace import Trace
from ...plans import plan_traits
from ...plans.quality.priors import Priors
from ...result import Result, diagnosis_text
from ...session.refinement import Refinement, finish_refinement, prepare_refinement
from ...storage import JsonlStore, read_trace, write_atomic
from ...storage.priors_store import PriorsStore
from ..command_classes import ConfiguredCommand
from ..consent import save_consent_for_trace, sensitive_settings_of_trace
from ..errors import (
    BROKEN,
    INTERRUPTED,
    error_event,
    exit_code,
    handle_sigterm,
    report_error,
    warn_if_ungraded,
)
from ..output import (
    check_output,
    messages_are_json,
    notice,
    print_answer,
    warning,
)
from ..progress import (
    JsonReporter,
    PlainReporter,
    ProgressReporter,
    TraceProgress,
    describe_comparison,
    format_usage,
    print_event,
    summary_line,
)
from ..request import (
    RefineRequest,
    SharedArguments,
    announce_sources,
    build_request,
    check_judge_params,
    make_task,
    report_unused_prices,
    settings_for_trace,
    settings_from_trace,
    with_requirements,
)


@dataclass(frozen=True, kw_only=True)
class RunArguments(SharedArguments):
    """The arguments of `redraft run`."""

    prompt: str | None = None
    response: str | None = None
    system: str | None = None
    context: str | None = None
    reference: str | None = None
    tests: str | None = None
    tools: str | None = None
    output: str | None = None
    overwrite: bool = False
    trace: str | None = None
    resume: str | None = None


def run_command(ctx: click.Context, values: dict[str, Any]) -> int:
    """Refine an answer, report how that went, write the answer, and return the exit code."""
    arguments = RunArguments.from_values(values)
    _check(arguments)
    display = RefinementDisplay(as_json=arguments.as_json)
    try:
        result = _refine(ctx, values, arguments, display)
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        if (partial_result := best_so_far(interruption, display)) is None:
            warning("interrupted before there was an answer", _resume_advice(arguments))
            return INTERRUPTED
        result = partial_result
    except RedraftError as error:
        return write_error(error, error.result, arguments.output, as_json=arguments.as_json)
    if not arguments.as_json:
        _report(result, arguments, display.progress.seconds)
    write_result(result, arguments.output, as_json=arguments.as_json)
    return exit_code(result)


def _check(arguments: RunArguments) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing prompt."""
    if arguments.resume:
        a = arguments
        task = {"--response": a.response, "--system": a.system, "--context": a.context}
        task |= {
            "--reference": a.reference,
            "--tests": a.tests,
            "--tools": a.tools,
            "--trace": a.trace,
        }
        if extra := [name for name, value in {"PROMPT": a.prompt, **task}.items() if value]:
            raise click.UsageError(
                f"--resume takes the task from its trace: leave out {', '.join(extra)}"
            )
    elif not arguments.prompt and not arguments.response:
        raise click.UsageError(
            'a prompt is missing, for example: redraft run "Explain quantum computing" --require '
            "words:80-200"
        )
    if arguments.trace and Path(arguments.trace).is_file() and Path(arguments.trace).stat().st_size:
        raise click.UsageError(
            f"--trace: {arguments.trace!r} exists already: resume it with redraft run --resume "
            f"{shlex.quote(arguments.trace)} -o FILE, or name another file (if the answer goes to "
            "a file by > FILE, the shell has emptied that already)"
        )
    if arguments.output:  # a trace that is resumed replaces its own earlier answer
        check_output(arguments.output, overwrite=arguments.overwrite or bool(arguments.resume))


def _refine(
    ctx: click.Context, values: dict[str, Any], arguments: RunArguments, display: RefinementDisplay
) -> Result:
    """Refine a new task, or resume the trace that --resume names; save the trace if --trace is
    given.
    """
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
            arguments = RunArguments.from_values(
                settings_from_trace(ctx, values, params, trace, arguments.resume)
            )
            trace = with_requirements(trace, arguments.require)
        else:
            a = arguments
            files = {
                "response": a.response,
                "context": a.context,
                "reference": a.reference,
                "tests": a.tests,
                "tools": a.tools,
            }
            task = make_task(a.prompt, a.require, system=a.system, **files)
            trace = Trace(task, settings=settings_for_trace(values, params))
            if arguments.trace:
                save_consent_for_trace(
                    arguments.trace, sensitive_settings_of_trace(trace, Path(arguments.trace))
                )
        callbacks = {"on_record": display.record, "on_step": display.step}
        return run_sync(
            run_request(build_request(arguments, trace, store=store, **callbacks), display)
        )


def _delete_if_empty(path: Path) -> None:
    """Delete the file of a trace without records."""
    if path.is_file() and not path.stat().st_size:
        path.unlink()


def _report(result: Result, arguments: RunArguments, seconds: float) -> None:
    """Report the result on stderr."""
    notice(summary_line(result))
    if not sys.stderr.isatty():
        notice(format_usage(result.usage, seconds))
    for comparison in [r for r in result.trace.records if isinstance(r, Comparison)][-1:]:
        warning(describe_comparison(comparison))
    if diagnosis := diagnosis_text(result):
        notice(diagnosis)
    if changed := result.metadata["changed_fields"]:
        notice(f"changed without being asked: {'; '.join(changed)}")
    for name in result.metadata["broken"]:
        notice(f"still broken: {name}")
    warn_if_ungraded(result)
    if result.stop.resumable:
        notice(_resume_advice(arguments))
    if sys.stdout.isatty() and sys.stderr.isatty() and not arguments.output:
        click.echo(err=True)


def _resume_advice(arguments: RunArguments) -> str:
    path = arguments.resume or arguments.trace
    return (
        f"resume with: redraft run --resume {shlex.quote(path)}"
        if path
        else "with --trace FILE it could be resumed"
    )


class RefinementDisplay:
    """Shows a refinement while it runs: as a live view, line by line, or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.progress = TraceProgress()
        self.as_json = as_json
        self._reporter = _make_reporter(self.progress, as_json=as_json)

    def begin(self, trace: Trace) -> None:
        self.progress.trace = trace
        self._reporter.begin(trace)

    def step(self, step: Step) -> None:
        self.progress.step(step)
        self._reporter.step(step)

    def record(self, record: Record) -> None:
        self.progress.record(record)
        self._reporter.record(record)

    def end(self, error: str) -> None:
        self._reporter.end(error)


def _make_reporter(progress: TraceProgress, *, as_json: bool) -> ProgressReporter:
    if as_json:
        return JsonReporter(progress)
    if sys.stderr.isatty() and not messages_are_json():
        from ..terminal import LiveReporter, console

        if not console(stderr=True).is_dumb_terminal:
            return LiveReporter(progress)
    return PlainReporter(progress)


async def run_request(request: RefineRequest, display: RefinementDisplay) -> Result:
    """Refine and show the progress. SIGTERM works like Ctrl-C: the best answer so far is
    returned.
    """
    task = asyncio.current_task()
    assert task is not None
    with handle_sigterm(asyncio.get_running_loop(), task.cancel):
        refinement = await prepare_refinement(
            request.trace, request.model, request.graders, request.judge, request.options
        )
        if request.model is None and refinement.writer_name is None and not display.as_json:
            warning(
                "no model was found, so only the built-in editor is used",
                "`redraft models` shows where Redraft looked for one",
            )
        check_judge_params(refinement.session.graders)
        announce_sources(refinement.session.writer, refinement.session.judge)
        if note := refinement.session.default_judge_note:
            notice(note)
        report_unused_prices(
            refinement.session.options.prices, refinement.session.writer, refinement.session.judge
        )
        display.begin(refinement.trace)
        _report_priors(refinement, as_json=display.as_json)
        message = ""
        try:
            return await finish_refinement(refinement)
        except RedraftError as error:
            message = str(error)
            raise
        finally:
            display.end(message)


def _report_priors(refinement: Refinement, *, as_json: bool) -> None:
    """Report the priors that the plan uses unless they are the shipped ones, and that learned
    priors are missing.
    """
    plan = plan_traits(refinement.plan).noise_aware
    if plan is None:
        return
    learned, tasks = refinement.session.options.priors == "learned", plan.priors.tasks
    key = refinement.session.priors_key if learned else None
    if plan.calibration and not as_json:
        grader = refinement.session.calibration.grader
        warning(f"scores and the target are by {plan.calibration.source}: the card of {grader!r}")
    if plan.priors == refinement.session.labelled_figures.applied_to(Priors()):
        if not learned:
            return
        with suppress(StoreError):
            if key and (damage := PriorsStore.in_folder().load_error(key)):
                warning(
                    f"{damage}; the shipped priors are used",
                    f"`redraft priors forget {key.key[:8]}` deletes it",
                )
                return
        warning(
            "nothing has been learned yet about this model with these graders: the shipped priors "
            "are used"
        )
    elif as_json:
        print_event("priors", tasks=tasks, key=key.key if key else None)
    elif tasks:
        details = f" (redraft priors show {key.key[:8]})" if key else ""
        warning(f"priors learned from {pluralize(tasks, 'task')}{details}")
    else:
        warning("priors given by --priors")


def best_so_far(interruption: BaseException, display: RefinementDisplay) -> Result | None:
    """Return the result that an interruption carries, or that of the trace that was shown last;
    None if there is no answer.
    """
    result: Result | None = getattr(interruption, "result", None)
    trace = result.trace if result else display.progress.trace
    return (result or Result(trace)) if trace and trace.candidates else None


def write_error(
    error: RedraftError, result: Result | None, output: str | None, *, as_json: bool
) -> int:
    """Write the answer that there is in spite of an error, and the error, and return the exit code;
    raise it without an answer.
    """
    if result is not None:
        write_result(result, output, as_json=as_json)
    if as_json:
        print_event("error", **error_event(error))
    if result is None or not isinstance(error, GradingError):
        raise error
    report_error(error)
    return BROKEN


def write_result(
    result: Result, output: str | None, *, as_json: bool, text: str | None = None
) -> None:
    """Write the answer, or `text` instead, to the file `output`, or print it.

    If the file cannot be written, print the answer and raise OSError.
    """
    text = result.display_text if text is None else text
    if output:
        try:
            write_atomic(output, text)
        except OSError as error:
            print_answer(text)
            message = f"cannot be written ({error.strerror}); the answer is on stdout instead"
            raise OSError(error.errno, message, output) from error
    if as_json:
        print_event("result", **result.to_dict())
    elif not output:
        print_answer(text)
