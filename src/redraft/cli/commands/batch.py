"""`redraft batch`: process every row of a data set."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, cast

import click
from click.core import ParameterSource

from ...errors import RedraftError
from ...settings import ENGINE_SETTINGS, BatchFields, EndpointLimits, OptionFields
from .. import options, output
from ..config import SectionedCommand
from ..errors import FAILED, HINTS, INTERRUPTED, OK, handle_sigterm
from ..options import SharedArguments, setting_options, values_of

if TYPE_CHECKING:
    from ...runs import BatchProgress, BatchReport, BatchRun, BatchSettings

INCOMPLETE = 3  # exit code: some rows have no result, or one that breaks a requirement
RESUMES = "the same command resumes"

EPILOG = """\b
Examples:
  redraft batch questions.jsonl -o answers.jsonl --model ollama:llama3.2
  redraft batch questions.csv -o answers.parquet --column prompt=question --require words:80-200
  redraft batch "part-*.jsonl.gz" -o out.jsonl --model openai:gpt-4o-mini --budget-usd 20 --rpm 500
  redraft batch answers.jsonl -o scores.jsonl --mode grade --grader helpfulness --judge openai:gpt-4o
  redraft batch questions.jsonl -o best.jsonl --mode best -n 8 --rubric rubric.toml
  redraft batch questions.jsonl -o answers.jsonl --dry-run
  redraft batch answers.jsonl -o repaired.jsonl --model none --require bullets:3

\b
IN is a JSONL, JSON, CSV, TSV or Parquet file (also .gz and .zst), a quoted pattern,
a folder, - for stdin (JSONL), or hf:NAME[:SPLIT] for a Hugging Face data set. OUT is
JSONL, CSV or Parquet by its extension, or - for stdout. Common column names are
recognised: --dry-run shows which; --column prompt=NAME names others. The output has
the columns of the input, and best, initial_score, best_score, iterations, stop,
calls, tokens, cost, error.

\b
All results are saved in a journal beside OUT as they arrive. The same command
resumes an interrupted run and repeats no call. Rows whose input or settings changed
are redone; --explain shows which, and why, beforehand. Ctrl-C once waits for the
calls in flight, twice stops at once. Progress goes to stderr: a live view in a
terminal, JSON lines elsewhere; with --json, JSON lines also go to stdout. With -o -
there is no journal, so the run cannot be resumed, unless --journal is given.

\b
Exit codes:
  0    all rows have a result
  1    the run ended early: budget, deadline, an endpoint, the disk
  2    wrong usage or settings
  3    some rows have no result, break a requirement, or could not be read
  130  interrupted
"""

SECTIONS = {
    "output": "Output and journal",
    "mode": "What to do",
    "column": "Columns of the input",
    "require": "Grading",
    "model": "Models",
    "target_score": "When to stop working on a row",
    "budget_usd": "Budget and time, for the whole run",
    "initial_in_flight": "Rate limits, for each endpoint",
    "engine": "Where to run",
    "dry_run": "What to show",
}
pace = options.group(
    setting_options(EndpointLimits, "initial_in_flight", "min_in_flight"),
    setting_options(OptionFields, "max_in_flight", max_in_flight=512),
    setting_options(EndpointLimits, "rpm", "tpm"),
    options.timeout,
    setting_options(EndpointLimits, "give_up_after"),
)


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
        """The arguments from what click parsed."""
        batch, limits = values_of(BatchFields, values), values_of(EndpointLimits, values)
        rest = {name: value for name, value in values.items() if name not in batch | limits}
        return super().from_values({**rest, "batch": cast("BatchSettings", batch), "limits": EndpointLimits(**limits)})


class JsonOnStderr(SectionedCommand):
    """A command that writes JSON lines to stderr where that is not a terminal, also for errors in its arguments."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Decide how lines are written before anything can be wrong."""
        output.use_json_messages()
        return super().make_context(*args, **kwargs)


@click.command(short_help="Refine every row of a data set.", cls=JsonOnStderr, epilog=EPILOG, sections=SECTIONS)
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@click.option("--output", "-o", type=click.Path(), metavar="OUT", help="Write the rows to OUT.")
@setting_options(
    BatchFields, "spreadsheet_safe", "ordered", "errors", "journal", "name", "durability", "mode", "n", "limit", "retry"
)
@setting_options(BatchFields, "on_duplicate")
@options.columns
@options.grading
@options.asking
@options.sampling
@options.stopping
@options.editing
@options.spending
@pace
@setting_options(BatchFields, "engine", "ray_address", "shards", "poll", "learn")
@click.option("--dry-run", is_flag=True, help="Show what would be read and asked, and the likely cost. Calls and writes nothing.")
@click.option("--explain", is_flag=True, help="Like --dry-run, and show what changed since the last run and so would be redone.")
@click.option(
    "--metrics",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve Prometheus metrics on 127.0.0.1:PORT (0: any).",
)
@options.as_json
@options.debug
@click.pass_context
def batch(ctx: click.Context, /, **values: Any) -> int:
    """Refine every row of IN, or only grade it, or keep the best of several drafts, and write the rows to OUT."""
    arguments = BatchArguments.from_values(values)
    _check(arguments, n_given=ctx.get_parameter_source("n") is ParameterSource.COMMANDLINE)
    options.check_noise_aware(ctx)
    import asyncio

    from ...result import error_data

    if arguments.batch.get("engine") == "ray":  # Ray reports the death of a worker on stdout, where the rows may go
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        report = asyncio.run(_run(arguments))
    except (KeyboardInterrupt, asyncio.CancelledError):
        saved = arguments.is_resumable
        output.error("interrupted" + ("; finished work is saved" if saved else ""), f"{RESUMES} it" if saved else "")
        return INTERRUPTED
    except RedraftError as error:
        if arguments.as_json:
            output.write_event("error", stdout=arguments.json_on_stdout, **error_data(error))
        raise
    return OK if report is None else _show_report(*report, arguments)


def _check(arguments: BatchArguments, *, n_given: bool) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing output."""
    if arguments.output is None and not arguments.preview_only:
        raise click.UsageError("an output is missing: give -o OUT.jsonl, or --dry-run to see what would be done")
    if n_given and arguments.batch.get("mode") != "best":
        raise click.UsageError("-n is the number of drafts to choose from: it needs --mode best")
    for name, engine in ENGINE_SETTINGS.items():
        if arguments.batch.get(name) and arguments.batch.get("engine") != engine:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --engine {engine}")
    if arguments.output not in (None, "-"):
        output.check_writable(str(arguments.output))


async def _run(arguments: BatchArguments) -> tuple[BatchReport, str] | None:
    """Process the rows, or preview the run. Return the report and the file that lists unreadable rows; None for a preview."""
    from ..metrics import serve_metrics
    from ..views import batch as view

    run = _make_run(arguments)

    def progress() -> BatchProgress:
        return run.progress

    with ExitStack() as stack:
        if not arguments.is_resumable:
            folder = stack.enter_context(TemporaryDirectory(prefix="redraft-"))
            run.config = replace(run.config, journal=Path(folder, "journal"))
            if not arguments.preview_only:
                output.notice(
                    "rows go to stdout and there is no journal, so an interrupted run starts over; --journal FILE keeps one"
                )
        if arguments.preview_only:
            await run.check_rows(list_errors=False)
            await _set_models(run, arguments)
            preview = await run.prepare(explain=arguments.explain)
            view.describe_input(preview, explain=arguments.explain)
            view.show_preview(preview, as_json=arguments.as_json)
            return None
        if arguments.metrics is not None:
            address = stack.enter_context(serve_metrics(arguments.metrics, lambda: progress().as_data()))
            output.notice(f"Prometheus metrics: {address}")
        show = view.progress_view(as_json=arguments.as_json, stdout=arguments.json_on_stdout)
        run.say = stack.enter_context(show(progress))
        stack.enter_context(_handle_signals(run, run.say))
        await run.check_rows()
        if not run.is_stopped:
            await _set_models(run, arguments)
        return await run.go(), run.config.errors


def _make_run(arguments: BatchArguments) -> BatchRun:
    """Return the run without its models and graders. Raises ConfigError."""
    from ...runs import BatchRun
    from ..request import budget_of, build_settings

    _make_graders(arguments, judges=True)  # a mistake in them is reported before any row is read
    inputs, columns = arguments.inputs, dict(text.split("=", 1) for text in arguments.column)
    settings: dict[str, Any] = {**build_settings(arguments), **arguments.batch}
    settings |= {"budget": budget_of(arguments), "limits": arguments.limits}
    settings["columns"] = {role.replace("-", "_"): name for role, name in columns.items()}
    return BatchRun.of(inputs[0] if len(inputs) == 1 else list(inputs), arguments.output, False, **settings)


async def _set_models(run: BatchRun, arguments: BatchArguments) -> None:
    """Set the models and graders of the run. Raises ConfigError."""
    from ...models import connect
    from ..request import announce_sources, find_model, parse_model

    model = await find_model(arguments.model)
    writes = model is not None and arguments.batch.get("mode") != "grade"
    if model is None and arguments.model is None and arguments.batch.get("mode") != "grade":
        output.warning(
            "no model was found, so only the built-in editor is used", "`redraft models` shows where Redraft looked for one"
        )
    run.model, run.judge = model or False, parse_model(arguments.judge) or None
    announce_sources(model, run.judge)
    run.graders = _make_graders(arguments, judges=bool(run.judge or writes))
    names = {connect(each).name for each in (run.model, run.judge) if each}  # graders may have models of their own
    for name in run.config.options.prices or {}:
        if names and name not in names:
            output.notice(f"--price {name}: no model in this run has that name; there is {', '.join(sorted(names))}")


def _make_graders(arguments: BatchArguments, *, judges: bool) -> list[Any] | None:
    """Return the requirements as musts, and the named graders; the default judge if none is named and `judges`."""
    from ...graders import Judge, must
    from ..request import canonical_requirements, load_graders

    musts = [must(spec) for spec in canonical_requirements(arguments.require)]
    named = load_graders(arguments.grader, arguments.rubric)
    if named is None and not musts:
        return None
    return [*musts, *(named if named is not None else [Judge()] if judges else [])]


@contextmanager
def _handle_signals(run: BatchRun, report: Callable[[str], None]) -> Iterator[None]:
    """Stop gently on the first Ctrl-C or SIGTERM, at once on the second Ctrl-C; a third one kills the process."""
    import asyncio

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
        with handle_sigterm(loop, stop):
            yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def _show_report(report: BatchReport, errors: str, arguments: BatchArguments) -> int:
    """Show how the run ended, and return the exit code."""
    from ..views import batch as view

    if report.end_reason:
        reason = report.end_reason if report.end_reason == "interrupted" else f"ended early: {report.end_reason}"
        message = "" if report.message == report.end_reason else report.message
        hint = "" if RESUMES in message else _resume_advice(report.end_reason, message, arguments)
        output.error(f"{reason}{f': {message}' if message else ''}", hint)
    if report.bad:
        view.list_unreadable(report.bad, errors)
    if arguments.as_json:
        output.write_event("report", stdout=arguments.json_on_stdout, **view.report_data(report))
    else:
        view.show_report(report)
    if report.end_reason:
        return INTERRUPTED if report.end_reason == "interrupted" else FAILED
    missed = (report.failed, report.bad, report.unfinished, report.not_started, report.broken)
    return INCOMPLETE if any(missed) else OK


def _resume_advice(ended: str, message: str, arguments: BatchArguments) -> str:
    """Return how to resume a run that ended early."""
    if not arguments.is_resumable:
        return HINTS.get(message.partition(":")[0], "")
    match ended:
        case "budget":
            given = [f"--budget-{name}" for name in ("usd", "calls", "tokens") if getattr(arguments, f"budget_{name}") is not None]
            return f"with a larger {' or '.join(given) or 'budget'} {RESUMES} the run"
        case "deadline":
            return f"with a longer --deadline, or for as long again, {RESUMES} the run"
    hint = HINTS.get(message.partition(":")[0])
    return "; then ".join(filter(None, [hint, f"{RESUMES} the run"]))
