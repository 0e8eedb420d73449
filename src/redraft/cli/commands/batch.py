"""`redraft batch`: process every row of a data set, show the progress and the report, and serve
metrics to Prometheus.

Text from rows, servers and models is shown only through `text_line` and `Text`, without control
characters.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...base.checks import needs_extra
from ...base.documents import open_regular
from ...base.money import format_usd, usd_amount
from ...base.sync import reset_in_children, run_on_uvloop
from ...base.text import pluralize, strip_control_sequences
from ...errors import NOTHING_LEFT, ConfigError, RedraftError
from ...result import format_score
from ...runs import BatchPreview, BatchProgress, BatchReport, BatchRun
from ...runs.config import with_present_names
from ...runs.progress import format_price
from ...settings import BATCH_DEFAULTS, BatchFields, EndpointLimits, OptionFields, settings_of
from ...telemetry import active_recorder
from ...telemetry.scores import ARRIVAL_SECONDS, TOOLS, ScoreTool
from .. import options
from .. import output as out
from ..command_classes import GroupedCommand
from ..config import use_plan
from ..display import LiveDisplay, make_display, message_writer
from ..errors import HINTS, error_event
from ..exit_codes import FAILED, IMPERFECT, INTERRUPTED, OK, handle_sigterm
from ..options import OptionValues, setting_options
from ..request import (
    announce_sources,
    answer_of,
    budget_of,
    build_settings,
    check_judge_params,
    find_model,
    graders_and_requirements,
    parse_model,
    report_unused_prices,
    values_of,
)
from ..stored_runs import find_run
from ..terminal import console, grid, plain_table, text_line
from .export import write_scores

RESUMES = "the same command resumes"
POLL_INTERVAL = 0.25  # seconds between two updates of the progress
FIRST = 3  # unreadable rows shown at the end
QUIET_STATES = {"reading", "running", "stopping"}
SAMPLE = 1200  # characters of a message shown in a preview


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
calls, tokens, cost, error and others.

\b
All results are saved in a journal next to OUT as they arrive. The same command
resumes an interrupted run and repeats no call. Rows whose input or settings changed
are redone; --explain shows in advance which ones, and why. A run that would leave out
rows of OUT, such as one of another IN, is refused without --overwrite. Press Ctrl-C
once to wait for the calls in flight, twice to stop at once. Progress goes to stderr: a
live view in a terminal, a line every half minute elsewhere, or JSON lines with
--log-format json; with --json, JSON lines also go to stdout.
With -o - there is no journal, so the run cannot be resumed, unless --journal is
given.

\b
Exit codes:
  0    all rows have a result
  1    the run ended early: budget, deadline, an endpoint, the disk
  2    wrong usage or settings
  3    some rows have no result, break a requirement, or could not be read
  130  interrupted
"""  # noqa: E501

rate_limits = options.combine(
    setting_options(EndpointLimits, "initial_in_flight", "min_in_flight"),
    setting_options(OptionFields, group="rates", **BATCH_DEFAULTS),
    setting_options(EndpointLimits, "rpm", "tpm"),
    options.timeout,
    setting_options(EndpointLimits, "give_up_after"),
)


@click.command(short_help="Refine every row of a data set.", cls=GroupedCommand, epilog=EPILOG)
@click.argument("inputs", type=options.FILE, nargs=-1, required=True, metavar="IN...")
@options.option(
    "--output",
    "-o",
    heading=options.OUTPUT,
    common=True,
    type=click.Path(),
    metavar="OUT",
    help="Write the rows to OUT.",
)
@setting_options(BatchFields, group="output")
@setting_options(BatchFields, group="work")
@setting_options(BatchFields, group="rows")
@options.columns
@options.grading
@options.answer
@options.models
@options.sampling
@options.plan
@options.editor
@options.budget
@rate_limits
@setting_options(BatchFields, group="running")
@options.option(
    "--dry-run",
    heading=options.OUTPUT,
    common=True,
    is_flag=True,
    help="Show the rows, the prompts and the likely cost. Makes no call and writes nothing.",
)
@options.option(
    "--explain",
    heading=options.OUTPUT,
    is_flag=True,
    help="Like --dry-run, and also show which rows would be redone, and what changed.",
)
@options.option(
    "--metrics",
    heading=options.OUTPUT,
    type=options.WholeRange(0, 65535),
    metavar="PORT",
    help="Serve Prometheus metrics on 127.0.0.1:PORT (0: any free port).",
)
@options.option(
    "--scores-to",
    heading=options.OUTPUT,
    type=click.Choice([*TOOLS]),
    help="At the end, write the scores to the spans in this tool, as `redraft export` does.",
)
@options.as_json
@options.debug
@click.pass_context
def batch(
    ctx: click.Context,
    /,
    *,
    inputs: tuple[str, ...],
    output: str | None,
    column: dict[str, str],
    metrics: int | None,
    scores_to: str | None,
    dry_run: bool,
    explain: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Refine every row of IN, or only grade it, or keep the best of several drafts, and write the
    rows to OUT.
    """
    out.hide_waits()
    with _error_events(as_json=as_json, stdout=output != "-"):
        settings = _with_present_names(use_plan(ctx, settings))
    preview_only = dry_run or explain
    _check(ctx, output, settings, preview_only=preview_only)
    # Ray reports the death of a worker on stdout, where the rows may go
    if settings["ray"]:
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    rows_on_stdout = output == "-"
    keeps_journal = not rows_on_stdout or bool(settings["journal"])
    tool = TOOLS.get(scores_to or "")
    try:
        with ExitStack() as stack:
            stack.enter_context(_error_events(as_json=as_json, stdout=not rows_on_stdout))
            run = _make_run(inputs, output, column, settings)
            if not keeps_journal:
                folder = stack.enter_context(TemporaryDirectory(prefix="redraft-"))
                run.config = replace(run.config, journal=Path(folder, "journal"))
            if preview_only:
                run_on_uvloop(_preview(run, settings, explain=explain, as_json=as_json))
                return OK
            if not keeps_journal:
                out.notice(
                    "rows go to stdout and there is no journal, so an interrupted run starts over; "
                    "--journal FILE keeps one"
                )
            _check_scores(tool)
            shown = partial(show_progress, run, as_json=as_json, stdout=not rows_on_stdout)
            report = run_on_uvloop(_process(run, settings, metrics, shown))
            _write_scores(tool, run, report, as_json=as_json, stdout=not rows_on_stdout)
    except (KeyboardInterrupt, asyncio.CancelledError):
        out.error(
            "interrupted" + ("; finished work is saved" if keeps_journal else ""),
            f"{RESUMES} it" if keeps_journal else "",
        )
        return INTERRUPTED
    advice = _resume_advice(report, settings, keeps_journal=keeps_journal)
    _show_end(report, run.config.errors, advice)
    if report.rows.errors.get("ShortageError"):
        _warn_of_shortage(report.rows.errors["ShortageError"], keeps_journal=keeps_journal)
    if as_json:
        data = report_data(report, quote_errors=not rows_on_stdout)
        out.write_event("report", stdout=not rows_on_stdout, **data)
    else:
        show_report(report)
    return _exit_code(report)


@contextmanager
def _error_events(*, as_json: bool, stdout: bool) -> Iterator[None]:
    """Write an error as a JSON line, too."""
    try:
        yield
    except RedraftError as error:
        if as_json:
            out.write_event("error", stdout=stdout, **error_event(error))
        raise


def _with_present_names(settings: OptionValues) -> dict[str, Any]:
    """Return the settings with their present names; a warning says which had former ones."""
    settings, note = with_present_names(
        settings, lambda name, value: f"--{name.replace('_', '-')} {value}"
    )
    if note:
        out.warning(note)
    return settings


def _check(
    ctx: click.Context, output: str | None, settings: OptionValues, *, preview_only: bool
) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing output."""
    if output is None and not preview_only:
        raise click.UsageError(
            "an output is missing: give -o OUT.jsonl, or --dry-run to see what would be done"
        )
    mode, engine = settings["mode"], settings["engine"]
    if ctx.get_parameter_source("n") is ParameterSource.COMMANDLINE and mode != "best":
        raise click.UsageError("-n is the number of drafts to choose from: it needs --mode best")
    if settings["keep"] > 1 and mode != "best":
        raise click.UsageError("--keep is the number of drafts to keep: it needs --mode best")
    for name, info in settings_of(BatchFields).items():
        if info.engine not in {None, engine} and settings.get(name):
            raise click.UsageError(f"--{name.replace('_', '-')} needs --engine {info.engine}")
    if output not in (None, "-"):
        out.check_writable(str(output))


def _check_scores(tool: ScoreTool | None) -> None:
    """Raise ConfigError if scores are to be written, and no spans are recorded or the environment
    names no server.
    """
    if tool and tool.server(os.environ) and active_recorder() is None:
        raise ConfigError(
            f"--scores-to writes scores to the spans in {tool.name}, and none are recorded: set "
            "OTEL_EXPORTER_OTLP_ENDPOINT to its address"
        )


def _write_scores(
    tool: ScoreTool | None, run: BatchRun, report: BatchReport, *, as_json: bool, stdout: bool
) -> None:
    """Write the scores of the run to a tool, if one is named. What it does not take fails no run:
    an export can be made again.
    """
    if tool is None or report.stop == "interrupted":
        return
    if recorder := active_recorder():
        recorder.send_spans()
    try:
        stored = find_run(run.config.name, str(run.config.journal))
        exported = write_scores(tool, stored, ARRIVAL_SECONDS)
    except RedraftError as error:
        form = tool.name.lower()
        hint = f"`redraft export {run.config.output} --format {form}` writes them"
        out.warning(f"the scores were not written: {error}", hint)
        return
    if as_json:
        out.write_event("scores", stdout=stdout, **vars(exported))


def _make_run(
    inputs: tuple[str, ...],
    output: str | None,
    columns: dict[str, str],
    settings: OptionValues,
) -> BatchRun:
    """Return the run without its models and graders. Raises ConfigError."""
    graders_and_requirements(settings)  # a mistake in them is reported before any row is read
    given: dict[str, Any] = {
        **build_settings(settings),
        **values_of(BatchFields, settings),
        "answer": answer_of(settings),
        "budget": budget_of(settings),
        "limits": EndpointLimits(**values_of(EndpointLimits, settings)),
        "columns": columns,
    }
    source = inputs[0] if len(inputs) == 1 else list(inputs)
    return BatchRun.from_arguments(source, output, False, **given)


async def _process(
    run: BatchRun,
    settings: OptionValues,
    metrics: int | None,
    shown: Callable[[], AbstractContextManager[None]],
) -> BatchReport:
    """Process the rows, and show the progress within the context that `shown` returns."""

    def data() -> Mapping[str, Any]:
        return run.progress.as_data()  # a property that is up to date whenever it is read

    with ExitStack() as stack:
        if metrics is not None:
            address = stack.enter_context(serve_metrics(metrics, data))
            out.notice(f"Prometheus metrics: {address}")
        run.say = out.notice
        stack.enter_context(shown())
        stack.enter_context(_handle_signals(run, run.say))
        await run.check_rows()
        if not run.is_stopped:
            await _set_models(run, settings)
        return await run.go()


async def _preview(run: BatchRun, settings: OptionValues, *, explain: bool, as_json: bool) -> None:
    """Show what would be read and asked, and the likely cost."""
    run.say = out.notice
    await run.check_rows(list_errors=False)
    await _set_models(run, settings)
    preview = await run.prepare(explain=explain)
    describe_input(preview, explain=explain)
    show_preview(preview, as_json=as_json)


async def _set_models(run: BatchRun, settings: OptionValues) -> None:
    """Set the models and graders of the run. Raises ConfigError."""
    model = await find_model(settings["model"])
    if model is None and settings["model"] is None and settings["mode"] != "grade":
        out.warning(
            "no model was found, so only the built-in editor is used",
            "`redraft models` shows where Redraft looked for one",
        )
    run.model, run.judge = model or False, parse_model(settings["judge"])
    announce_sources(model, run.judge)
    run.graders = graders_and_requirements(settings)
    check_judge_params(run.graders)
    report_unused_prices(run.config.options.prices, run.model, run.judge)


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


def _show_end(report: BatchReport, errors: str, advice: str) -> None:
    """Show why the run ended early, and the rows that could not be read, which `errors` lists."""
    if report.stop:
        reason = report.stop if report.stop == "interrupted" else f"ended early: {report.stop}"
        message = "" if report.stop_note == report.stop else report.stop_note
        out.error(f"{reason}{f': {out.in_options(message)}' if message else ''}", advice)
    if report.rows.bad:
        list_unreadable(report.rows.bad, errors)


def _warn_of_shortage(rows: int, *, keeps_journal: bool) -> None:
    hint = HINTS["ShortageError"] + (f"; then {RESUMES} the run" if keeps_journal else "")
    out.warning(
        f"{pluralize(rows, 'row')} cut short: this machine was short of descriptors, memory or "
        "processes",
        hint,
    )


def _resume_advice(report: BatchReport, settings: OptionValues, *, keeps_journal: bool) -> str:
    """Return how to resume a run that ended early, unless its message says so."""
    message = "" if report.stop_note == report.stop else report.stop_note
    if RESUMES in message:
        return ""
    error_name = NOTHING_LEFT if NOTHING_LEFT in message else re.split(r"\W", message)[0]
    if not keeps_journal:
        return HINTS.get(error_name, "")
    match report.stop:
        case "budget":
            limits = [
                f"--budget-{name}"
                for name in ("usd", "calls", "tokens")
                if settings[f"budget_{name}"] is not None
            ]
            return f"with a larger {' or '.join(limits) or 'budget'} {RESUMES} the run"
        case "deadline":
            return f"with a longer --deadline, or for as long again, {RESUMES} the run"
    hint = HINTS.get(error_name)
    return "; then ".join(filter(None, [hint, f"{RESUMES} the run"]))


def _exit_code(report: BatchReport) -> int:
    if report.stop:
        return INTERRUPTED if report.stop == "interrupted" else FAILED
    incomplete_rows = (
        report.rows.failed,
        report.rows.bad,
        report.rows.unfinished,
        report.rows.not_started,
        report.rows.broken,
    )
    return IMPERFECT if any(incomplete_rows) else OK


def clock(seconds: float) -> str:
    """Format seconds such as 1:02:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}"


@contextmanager
def hidden_keystrokes() -> Iterator[None]:
    """Hide and discard keystrokes, which would shift the live view. Ctrl-C still works."""
    if not _is_foreground():
        yield
        return
    import termios

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    termios.tcsetattr(
        keys,
        termios.TCSADRAIN,
        [*before[:3], before[3] & ~(termios.ECHO | termios.ECHONL), *before[4:]],
    )
    try:
        yield
    finally:
        if _is_foreground():
            termios.tcsetattr(keys, termios.TCSAFLUSH, before)


def _is_foreground() -> bool:
    """Whether this process is in the foreground of a terminal; in the background it must leave the
    terminal alone.
    """
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def show_progress(run: BatchRun, *, as_json: bool, stdout: bool) -> Iterator[None]:
    """Show the progress of a run. `stdout`: whether stdout is free for JSON, not used for rows.

    Nothing is shown before a row has ended, but to programs that endpoints wait.
    """
    view = [progress_panel(run.progress)]

    def show() -> None:
        p = run.progress  # up to date whenever it is read
        view[0] = progress_panel(p)
        is_news = p.ended_rows or (p.ended_at is None and p.state not in QUIET_STATES)
        display.show_progress(
            _line(p) if p.ended_rows else "",
            "progress" if is_news else "",
            p.as_data,
            state=p.state,
        )

    display = make_display(
        lambda: view[0],
        write=message_writer(as_json=as_json, stdout=stdout),
        is_free=stdout or not sys.stdout.isatty(),
    )
    keys = hidden_keystrokes() if isinstance(display, LiveDisplay) else nullcontext()
    with keys, display, _poll(show):
        yield


@contextmanager
def _poll(refresh: Callable[[], None]) -> Iterator[None]:
    """Call `refresh` periodically while the event loop runs, and once at the end."""

    async def watch() -> None:
        while True:
            refresh()
            await asyncio.sleep(POLL_INTERVAL)

    work = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        work.cancel()
        refresh()


def _line(p: BatchProgress) -> str:
    """Return the current progress on one line."""
    return " · ".join([_rows(p), _cost(p), *([f"{clock(p.eta)} left"] if p.eta else [])])


def progress_panel(p: BatchProgress) -> RenderableType:
    """Draw the current progress."""
    figures = Table.grid(padding=(0, 2, 0, 1), expand=True)
    figures.add_column(style="dim", no_wrap=True)
    figures.add_column(ratio=1)
    for name, value in (
        ("rows", _rows(p)),
        ("calls", _calls(p)),
        ("cost", _cost(p)),
        ("score", _score(p)),
    ):
        if value:
            figures.add_row(name, text_line(value))
    parts: list[RenderableType] = [_bar(p), figures]
    if p.state not in ("", "running", "finished"):
        parts.append(text_line(f" {p.state}", "bold yellow"))
    return Group(*parts)


def _bar(p: BatchProgress) -> RenderableType:
    finished = p.total - p.remaining if p.total is not None and p.remaining is not None else 0
    share = f"{finished / p.total:4.0%}" if p.total else ""
    left = f"{clock(p.eta)} left" if p.eta else ""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(
        ProgressBar(total=p.total, completed=finished),
        Text("  ".join(filter(None, [share, clock(p.seconds), left]))),
    )
    return row


def _rows(p: BatchProgress) -> str:
    if p.total is None:
        return f"{p.read:,} read"
    rate = [] if p.rows_per_s is None else [f"{p.rows_per_s:,.1f}/s"]
    named = (
        (p.reused, "finished before"),
        (p.bad, "unreadable"),
        (p.unfinished, "cut short"),
        (p.under_way, "under way"),
    )
    parts = [
        f"{p.done:,} done",
        f"{p.failed:,} failed",
        f"{p.remaining or 0:,} left",
        *rate,
        *(f"{n:,} {what}" for n, what in named if n),
    ]
    return " · ".join(parts)


def _calls(p: BatchProgress) -> str:
    cached = [f"{p.usage.cached_calls:,} cached"] if p.usage.cached_calls else []
    return " · ".join([f"{p.in_flight:,} in flight of {p.limit:,}", f"{p.calls:,} made", *cached])


def _cost(p: BatchProgress) -> str:
    projected = [] if p.projected_cost is None else [f"about {format_usd(p.projected_cost)} in all"]
    price = [] if p.price is None else [format_price(p.price, p.price_unit)]
    return " · ".join(
        [
            f"{format_usd(p.usage.cost)} so far",
            *projected,
            "unknown tokens" if p.usage.tokens is None else f"{p.usage.tokens:,} tokens",
            *price,
        ]
    )


def _score(p: BatchProgress) -> str:
    return (
        ""
        if p.best.value is None
        else f"{format_score(p.first.value)} first → {format_score(p.best.value)} best (mean)"
    )


def describe_input(preview: BatchPreview, *, explain: bool) -> None:
    """Show how the input was understood."""
    for message in preview.summary:
        out.notice(message)
    for bad in preview.bad:
        out.notice(f"cannot be read: {bad.location}: {bad.message}")
    for change in preview.changes if explain else ():
        out.notice(change)


def show_preview(preview: BatchPreview, *, as_json: bool) -> None:
    """Show on stdout which requests would be made, and the likely usage."""
    if as_json:
        out.print_json({"event": "preview", **asdict(preview)})
        return
    page = console(stderr=False)
    for n, messages in enumerate(preview.samples, 1):
        _show_messages(page, f"sample {n}", messages)
    for prompt in preview.prompts:
        of_grader = f" by {prompt.grader}" if prompt.grader else ""
        _show_messages(page, f"prompt of the first row: {prompt.role}{of_grader}", prompt.messages)
    figures = grid()
    for what, span in (("calls", preview.calls), ("tokens", preview.tokens)):
        figures.add_row(what, _span(span, getattr(preview.expected, what, None)))
    likely = getattr(preview.expected, "cost", None)
    figures.add_row(
        "cost",
        "unknown" if preview.cost is None else f"{_span(preview.cost, likely, usd_amount)} USD",
    )
    page.print(figures)
    page.print(text_line("no model was called, nothing was written", "dim"))


def _show_messages(page: Console, title: str, messages: Sequence[Mapping[str, Any]]) -> None:
    page.print(text_line(title, "bold"))
    for message in messages:
        page.print(
            Text(f"  {strip_control_sequences(str(message.get('role', '')))}: ", "dim")
            + _excerpt(message)
        )
    page.print()


def _excerpt(message: Mapping[str, Any]) -> Text:
    content = message.get("content")
    text = strip_control_sequences(
        content if isinstance(content, str) else json.dumps(content, default=str)
    )
    return Text(
        text
        if len(text) <= SAMPLE
        else f"{text[:SAMPLE]} … ({len(text) - SAMPLE:,} characters more)"
    )


def _span(
    span: Sequence[float], likely: float | None, form: Callable[[float], str] = "{:,.0f}".format
) -> str:
    low, high = map(form, span)
    if low == high:
        return low
    return (
        f"{low} to {high}"
        if likely is None
        else f"likely {form(likely)} (between {low} and {high})"
    )


def show_report(report: BatchReport) -> None:
    """Show on stderr how the run went: of errors the kinds and a row, since an endpoint may repeat
    the prompt in its message.
    """
    summary = report.summary(quote_errors=False)
    if out.messages_are_json():
        out.write_event("report", **report_data(report, quote_errors=False), summary=summary)
        return
    for message in filter(None, summary):
        out.notice(message)
    if len(report.scores.by_iteration) > 1:
        console(stderr=True).print(_iterations(report))


def report_data(report: BatchReport, *, quote_errors: bool = True) -> dict[str, Any]:
    """Return a report as plain data, with the final state of the run."""
    data = report.as_data(quote_errors=quote_errors)
    return {"state": report.stop or "finished", **data}


def list_unreadable(count: int, errors: str) -> None:
    """Show how many rows could not be read, where they are listed, and the errors of the first."""
    out.warning(f"{pluralize(count, 'row')} could not be read, listed in {errors}:")
    with (
        suppress(OSError, ValueError, KeyError, TypeError),
        open_regular(errors) as raw,
        BufferedReader(raw) as file,
    ):
        for text in islice(file, FIRST):
            row = json.loads(text)
            out.warning(f"{row['location']}: {row['message']}")
    if count > FIRST:
        out.warning(f"and {count - FIRST:,} more")


def _iterations(report: BatchReport) -> Table:
    """Return a table with the mean gain and the cost of each refinement."""
    table = plain_table()
    for title in ("iteration", "rows", "gain", "calls", "USD", "calls per 0.01", "USD per 0.01"):
        table.add_column(title, justify="right")
    for row in report.scores.by_iteration:
        table.add_row(
            str(row.iteration),
            f"{row.rows:,}",
            _or_dash(row.gain, "{:+.3f}".format),
            f"{row.calls:,}",
            "unknown" if row.cost is None else usd_amount(row.cost),
            _or_dash(row.calls_per_point, "{:,.2f}".format),
            _or_dash(row.usd_per_point, usd_amount),
        )
    return table


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
    """Format a number, or a dash for None."""
    return "–" if value is None else form(value)


HOST = "127.0.0.1"
METRICS_TIMEOUT = 5.0  # seconds to wait for the event loop when Prometheus asks

COUNTERS = {
    "rows.done": ("redraft_rows_done", "Rows with a result."),
    "rows.failed": ("redraft_rows_failed", "Rows that ended in an error."),
    "rows.unfinished": ("redraft_rows_unfinished", "Rows that were interrupted."),
    "rows.bad": ("redraft_rows_bad", "Rows that could not be read."),
    "rows.reused": ("redraft_rows_reused", "Rows that were already finished and were reused."),
    "spending.calls": ("redraft_calls", "Model calls made."),
    "spending.cached_calls": ("redraft_cached_calls", "Calls answered from the cache."),
    "spending.tokens": ("redraft_tokens", "Tokens in prompts and answers."),
    "spending.cost": ("redraft_cost_usd", "USD spent."),
}
GAUGES = {
    "rows.total": ("redraft_rows", "Rows in the input."),
    "rows.remaining": ("redraft_rows_remaining", "Rows that are not finished."),
    "rows.under_way": ("redraft_rows_under_way", "Rows in progress."),
    "in_flight": ("redraft_calls_in_flight", "Calls in progress."),
    "limit": ("redraft_calls_in_flight_limit", "Present limit of concurrent calls."),
    "rows_per_s": ("redraft_rows_per_second", "Rows finished per second, recently."),
    "eta": ("redraft_eta_seconds", "Estimated seconds until the end."),
    "spending.projected_cost": ("redraft_projected_cost_usd", "Estimated USD for the whole run."),
    "scores.initial": ("redraft_mean_first_score", "Mean score of the first answers."),
    "scores.best": ("redraft_mean_best_score", "Mean score of the best answers."),
    "seconds": ("redraft_seconds", "Seconds since the start of the run."),
}


@contextmanager
def serve_metrics(port: int, source: Callable[[], Mapping[str, Any]]) -> Iterator[str]:
    """Serve metrics within the context, whose value is their address. Raises ConfigError.

    The server has its own threads; `source` is called in the running event loop.
    """
    with needs_extra("metrics", "--metrics needs Prometheus's client"):
        from prometheus_client import CollectorRegistry, start_http_server
    registry = CollectorRegistry()
    registry.register(_MetricsCollector(source, asyncio.get_running_loop()))
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise ConfigError(
            f"--metrics {port}: {HOST}:{port} cannot be served: {error.strerror or error}; name "
            "another port"
        ) from error
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsCollector:
    """Reads the metrics when Prometheus asks for them. Unknown values are left out, as Prometheus
    recommends.
    """

    def __init__(
        self, source: Callable[[], Mapping[str, Any]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._source, self._loop = source, loop

    def describe(self) -> list[Any]:
        return []  # otherwise the registry would collect them to learn their names

    def collect(self) -> Iterator[Any]:
        """Yield all metrics with a known value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        answer: Future[Mapping[str, Any]] = Future()
        self._loop.call_soon_threadsafe(lambda: answer.set_result(self._source()))
        metrics = answer.result(METRICS_TIMEOUT)
        for kind, names in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for key, (name, about) in names.items():
                part, _, figure = key.rpartition(".")
                if (value := (metrics[part] if part else metrics)[figure]) is not None:
                    yield kind(name, about, value=value)
