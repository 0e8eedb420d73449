"""Processes every row of a data set: the run, and what it reports."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, cast

import click
from click.core import ParameterSource

from ...base.sync import reset_in_children, run_on_uvloop
from ...base.text import pluralize
from ...errors import NOTHING_LEFT, RedraftError
from ...graders import must
from ...runs import BatchProgress, BatchReport, BatchRun, BatchSettings
from ...runs.config import with_present_names
from ...settings import BatchFields, EndpointLimits, settings_of
from .. import output
from ..errors import FAILED, HINTS, INTERRUPTED, OK, error_event, handle_sigterm
from ..request import (
    SharedArguments,
    announce_sources,
    answer_of,
    budget_of,
    build_settings,
    canonical_requirements,
    check_judge_params,
    find_model,
    load_graders,
    parse_model,
    report_unused_prices,
    values_of,
)
from . import batch_view as view

INCOMPLETE = 3  # exit code: some rows have no result, or one that breaks a requirement
RESUMES = "the same command resumes"


@dataclass(frozen=True, kw_only=True)
class BatchArguments(SharedArguments):
    """The arguments of `redraft batch`."""

    inputs: tuple[str, ...]
    output: str | None = None
    column: tuple[str, ...] = ()
    dry_run: bool = False
    explain: bool = False
    metrics: int | None = None
    batch: BatchSettings
    limits: EndpointLimits

    @property
    def preview_only(self) -> bool:
        """Whether the run is only previewed."""
        return self.dry_run or self.explain

    @property
    def is_resumable(self) -> bool:
        """Whether a journal is kept: with rows on stdout only if it was named."""
        return self.output != "-" or bool(self.batch.get("journal"))

    @property
    def json_on_stdout(self) -> bool:
        """Whether stdout is free for JSON: not if the rows go there."""
        return self.output != "-"

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Create the arguments from the values that click parsed."""
        batch, limits = values_of(BatchFields, values), values_of(EndpointLimits, values)
        rest = {name: value for name, value in values.items() if name not in batch | limits}
        batch, notice = with_present_names(batch, _option_with_value)
        if notice:
            output.warning(notice)
        return super().from_values(
            {**rest, "batch": cast("BatchSettings", batch), "limits": EndpointLimits(**limits)}
        )


def _option_with_value(name: str, value: object) -> str:
    return f"--{name.replace('_', '-')} {value}"


def run_command(ctx: click.Context, values: Mapping[str, Any]) -> int:
    """Process the rows, or preview the run; show the report, and return the exit code."""
    output.hide_waits()
    arguments = BatchArguments.from_values(values)
    _check(arguments, n_given=ctx.get_parameter_source("n") is ParameterSource.COMMANDLINE)
    # Ray reports the death of a worker on stdout, where the rows may go
    if arguments.batch.get("ray"):
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        report = run_on_uvloop(_run(arguments))
    except (KeyboardInterrupt, asyncio.CancelledError):
        saved = arguments.is_resumable
        output.error(
            "interrupted" + ("; finished work is saved" if saved else ""),
            f"{RESUMES} it" if saved else "",
        )
        return INTERRUPTED
    except RedraftError as error:
        if arguments.as_json:
            output.write_event("error", stdout=arguments.json_on_stdout, **error_event(error))
        raise
    return OK if report is None else _show_report(*report, arguments)


def _check(arguments: BatchArguments, *, n_given: bool) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing output."""
    if arguments.output is None and not arguments.preview_only:
        raise click.UsageError(
            "an output is missing: give -o OUT.jsonl, or --dry-run to see what would be done"
        )
    if n_given and arguments.batch.get("mode") != "best":
        raise click.UsageError("-n is the number of drafts to choose from: it needs --mode best")
    if arguments.batch.get("keep", 1) > 1 and arguments.batch.get("mode") != "best":
        raise click.UsageError("--keep is the number of drafts to keep: it needs --mode best")
    engine = arguments.batch.get("engine")
    for name, info in settings_of(BatchFields).items():
        if info.engine not in {None, engine} and arguments.batch.get(name):
            raise click.UsageError(f"--{name.replace('_', '-')} needs --engine {info.engine}")
    if arguments.output not in (None, "-"):
        output.check_writable(str(arguments.output))


async def _run(arguments: BatchArguments) -> tuple[BatchReport, str] | None:
    """Process the rows, or preview the run. Return the report and the file that lists unreadable
    rows; None for a preview.
    """
    run = _make_run(arguments)

    def progress() -> BatchProgress:  # up to date whenever it is called
        return run.progress

    with ExitStack() as stack:
        if not arguments.is_resumable:
            folder = stack.enter_context(TemporaryDirectory(prefix="redraft-"))
            run.config = replace(run.config, journal=Path(folder, "journal"))
        if arguments.preview_only:
            await _preview(run, arguments)
            return None
        if not arguments.is_resumable:
            output.notice(
                "rows go to stdout and there is no journal, so an interrupted run starts over; "
                "--journal FILE keeps one"
            )
        if arguments.metrics is not None:
            address = stack.enter_context(
                view.serve_metrics(arguments.metrics, lambda: progress().as_data())
            )
            output.notice(f"Prometheus metrics: {address}")
        show = view.progress_view(as_json=arguments.as_json, stdout=arguments.json_on_stdout)
        say = stack.enter_context(show(progress))
        run.say = say
        stack.enter_context(_handle_signals(run, run.say))
        await run.check_rows()
        if not run.is_stopped:
            await _set_models(run, arguments)
        return await run.go(), run.config.errors


def _make_run(arguments: BatchArguments) -> BatchRun:
    """Return the run without its models and graders. Raises ConfigError."""
    _make_graders(arguments)  # a mistake in them is reported before any row is read
    inputs, columns = arguments.inputs, dict(text.split("=", 1) for text in arguments.column)
    settings: dict[str, Any] = {
        **build_settings(arguments),
        "answer": answer_of(arguments),
        **arguments.batch,
    }
    settings |= {"budget": budget_of(arguments), "limits": arguments.limits}
    settings["columns"] = {role.replace("-", "_"): name for role, name in columns.items()}
    return BatchRun.from_arguments(
        inputs[0] if len(inputs) == 1 else list(inputs), arguments.output, False, **settings
    )


async def _preview(run: BatchRun, arguments: BatchArguments) -> None:
    """Show what would be read and asked, and the likely cost."""
    run.say = output.notice
    await run.check_rows(list_errors=False)
    await _set_models(run, arguments)
    preview = await run.prepare(explain=arguments.explain)
    view.describe_input(preview, explain=arguments.explain)
    view.show_preview(preview, as_json=arguments.as_json)


async def _set_models(run: BatchRun, arguments: BatchArguments) -> None:
    """Set the models and graders of the run. Raises ConfigError."""
    model = await find_model(arguments.model)
    if model is None and arguments.model is None and arguments.batch.get("mode") != "grade":
        output.warning(
            "no model was found, so only the built-in editor is used",
            "`redraft models` shows where Redraft looked for one",
        )
    run.model, run.judge = model or False, parse_model(arguments.judge)
    announce_sources(model, run.judge)
    run.graders = _make_graders(arguments)
    check_judge_params(run.graders)
    report_unused_prices(run.config.options.prices, run.model, run.judge)


def _make_graders(arguments: BatchArguments) -> list[Any] | None:
    """Return the requirements as musts, and the named graders; None if there are none."""
    musts = [must(spec) for spec in canonical_requirements(arguments.require)]
    named = load_graders(arguments.grader, arguments.rubric, arguments.template)
    return [*musts, *(named or [])] or None


@contextmanager
def _handle_signals(run: BatchRun, report: Callable[[str], None]) -> Iterator[None]:
    """Stop gently on the first Ctrl-C or SIGTERM, at once on the second Ctrl-C; a third one kills
    the process.
    """
    loop, stops = asyncio.get_running_loop(), 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        report("waiting for the calls in flight; Ctrl-C again stops at once")
        run.stop()

    def interrupt() -> None:
        if not stops:
            stop()
            return
        loop.remove_signal_handler(signal.SIGINT)
        report("stopping at once")
        run.stop(now=True)

    with suppress(NotImplementedError):  # Windows: Ctrl-C ends at once there
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        with handle_sigterm(loop, stop), reset_in_children(_restore_signals):
            yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def _restore_signals() -> None:
    """Restore the default handling in a child that a grader forks: a signal for it must neither
    stop the run nor be ignored.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _show_report(report: BatchReport, errors: str, arguments: BatchArguments) -> int:
    """Show how the run ended, and return the exit code."""
    if report.end_reason:
        reason = (
            report.end_reason
            if report.end_reason == "interrupted"
            else f"ended early: {report.end_reason}"
        )
        message = "" if report.message == report.end_reason else report.message
        hint = "" if RESUMES in message else _resume_advice(report.end_reason, message, arguments)
        output.error(f"{reason}{f': {message}' if message else ''}", hint)
    if report.bad:
        view.list_unreadable(report.bad, errors)
    if short := report.errors.get("ShortageError"):
        hint = HINTS["ShortageError"] + (
            f"; then {RESUMES} the run" if arguments.is_resumable else ""
        )
        output.warning(
            f"{pluralize(short, 'row')} cut short: this machine was short of descriptors, memory "
            "or processes",
            hint,
        )
    if arguments.as_json:
        data = view.report_data(report, quote_errors=arguments.json_on_stdout)
        output.write_event("report", stdout=arguments.json_on_stdout, **data)
    else:
        view.show_report(report)
    if report.end_reason:
        return INTERRUPTED if report.end_reason == "interrupted" else FAILED
    incomplete_rows = (
        report.failed,
        report.bad,
        report.unfinished,
        report.not_started,
        report.broken,
    )
    return INCOMPLETE if any(incomplete_rows) else OK


def _resume_advice(ended: str, message: str, arguments: BatchArguments) -> str:
    """Return how to resume a run that ended early."""
    error_name = NOTHING_LEFT if NOTHING_LEFT in message else re.split(r"\W", message)[0]
    if not arguments.is_resumable:
        return HINTS.get(error_name, "")
    match ended:
        case "budget":
            limits = [
                f"--budget-{name}"
                for name in ("usd", "calls", "tokens")
                if getattr(arguments, f"budget_{name}") is not None
            ]
            return f"with a larger {' or '.join(limits) or 'budget'} {RESUMES} the run"
        case "deadline":
            return f"with a longer --deadline, or for as long again, {RESUMES} the run"
    hint = HINTS.get(error_name)
    return "; then ".join(filter(None, [hint, f"{RESUMES} the run"]))
