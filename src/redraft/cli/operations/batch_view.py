"""Shows the preview, the progress and the report of a batch, and serves its metrics to Prometheus.

Text from rows, servers and models is shown only through `text_line` and `Text`, without control
characters.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from io import BufferedReader
from itertools import islice
from time import monotonic
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...base.checks import needs_extra
from ...base.documents import open_regular
from ...base.money import format_usd, usd_amount
from ...base.text import pluralize, strip_control_sequences
from ...errors import ConfigError
from ...result import format_score
from ...runs import BatchPreview, BatchProgress, BatchReport
from ...runs.progress import format_price
from .. import output
from ..terminal import console, grid, plain_table, text_line

LINE_INTERVAL = 5.0  # seconds between two JSON lines
TEXT_INTERVAL = 30.0  # seconds between two lines of text
POLL_INTERVAL = 0.25  # seconds between two updates of the progress
FIRST = 3  # unreadable rows shown at the end
QUIET_STATES = {"reading", "running", "stopping"}
SAMPLE = 1200  # characters of a message shown in a preview


def number(n: float | None) -> str:
    return "unknown" if n is None else f"{n:,.0f}"


def clock(seconds: float) -> str:
    """Format seconds such as 1:02:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}"


WriteMessage = Callable[[str], None]
GetProgress = Callable[[], BatchProgress]
ProgressView = Callable[[GetProgress], AbstractContextManager[WriteMessage]]


def progress_view(*, as_json: bool, stdout: bool) -> ProgressView:
    """Return the view that suits the output: JSON lines if asked for, a live view in a terminal,
    lines of text elsewhere.

    The value of its context is a function that writes a message. `stdout`: whether stdout is free
    for JSON, not used for rows.
    """
    if as_json or output.messages_are_json():
        return partial(json_lines, stdout=as_json and stdout)
    free = sys.stderr.isatty() and (stdout or not sys.stdout.isatty())
    return live_view if free and not console(stderr=True).is_dumb_terminal else text_lines


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
def live_view(now: GetProgress) -> Iterator[WriteMessage]:
    """Show a live view on stderr, and remove it at the end."""
    display = Live(
        console=console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )

    def refresh() -> None:
        display.update(progress_panel(now()), refresh=True)

    with (
        hidden_keystrokes(),
        display,
        output.redirect_messages(lambda text: display.console.print(Text(text))),
        _poll(refresh),
    ):
        yield output.notice


@contextmanager
def json_lines(now: GetProgress, *, stdout: bool) -> Iterator[WriteMessage]:
    """Write a JSON line every few seconds, and whenever the state changes; before a row has ended,
    only of endpoints that wait.
    """
    state, last_line = "", -LINE_INTERVAL

    def refresh() -> None:
        nonlocal state, last_line
        progress = now()
        is_news = progress.ended_rows or (
            progress.ended_at is None and progress.state not in QUIET_STATES
        )
        if is_news and (progress.state != state or monotonic() - last_line >= LINE_INTERVAL):
            state, last_line = progress.state, monotonic()
            output.write_event("progress", stdout=stdout, **progress.as_data())

    with _poll(refresh):
        yield output.notice


@contextmanager
def text_lines(now: GetProgress) -> Iterator[WriteMessage]:
    """Write a line every half minute; none before the first row has ended."""
    last_line = monotonic()

    def refresh() -> None:
        nonlocal last_line
        progress = now()
        if progress.ended_rows and monotonic() - last_line >= TEXT_INTERVAL:
            last_line = monotonic()
            left = [f"{clock(progress.eta)} left"] if progress.eta else []
            output.notice(" · ".join([_rows(progress), _cost(progress), *left]))

    with _poll(refresh):
        yield output.notice


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


def progress_panel(p: BatchProgress) -> RenderableType:
    """Draw the current progress."""
    grid = Table.grid(padding=(0, 2, 0, 1), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for name, value in (
        ("rows", _rows(p)),
        ("calls", _calls(p)),
        ("cost", _cost(p)),
        ("score", _score(p)),
    ):
        if value:
            grid.add_row(name, text_line(value))
    parts: list[RenderableType] = [_bar(p), grid]
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
            f"{number(p.usage.tokens)} tokens",
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
        output.notice(message)
    for bad in preview.bad:
        output.notice(f"cannot be read: {bad.location}: {bad.message}")
    for change in preview.changes if explain else ():
        output.notice(change)


def show_preview(preview: BatchPreview, *, as_json: bool) -> None:
    """Show on stdout which requests would be made, and the likely usage."""
    if as_json:
        click.echo(json.dumps(preview_data(preview), indent=2, default=str))
        return
    out = console(stderr=False)
    for n, messages in enumerate(preview.samples, 1):
        _show_messages(out, f"sample {n}", messages)
    for prompt in preview.prompts:
        of_grader = f" by {prompt.grader}" if prompt.grader else ""
        _show_messages(out, f"prompt of the first row: {prompt.role}{of_grader}", prompt.messages)
    figures = grid()
    for what, span in (("calls", preview.calls), ("tokens", preview.tokens)):
        figures.add_row(what, _span(span, getattr(preview.expected, what, None)))
    likely = getattr(preview.expected, "cost", None)
    figures.add_row(
        "cost",
        "unknown" if preview.cost is None else f"{_span(preview.cost, likely, usd_amount)} USD",
    )
    out.print(figures)
    out.print(text_line("no model was called, nothing was written", "dim"))


def _show_messages(out: Console, title: str, messages: Sequence[Mapping[str, Any]]) -> None:
    out.print(text_line(title, "bold"))
    for message in messages:
        out.print(
            Text(f"  {strip_control_sequences(str(message.get('role', '')))}: ", "dim")
            + _excerpt(message)
        )
    out.print()


def preview_data(preview: BatchPreview) -> dict[str, Any]:
    """Return a preview as plain data."""
    return {"event": "preview", **asdict(preview)}


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
    if output.messages_are_json():
        output.write_event("report", **report_data(report, quote_errors=False), summary=summary)
        return
    for message in filter(None, summary):
        output.notice(message)
    if len(report.scores.by_iteration) > 1:
        console(stderr=True).print(_iterations(report))


def report_data(report: BatchReport, *, quote_errors: bool = True) -> dict[str, Any]:
    """Return a report as plain data, with the final state of the run."""
    data = report.as_data(quote_errors=quote_errors)
    return {"state": report.stop or "finished", **data}


def list_unreadable(count: int, errors: str) -> None:
    """Show how many rows could not be read, where they are listed, and the errors of the first."""
    output.warning(f"{pluralize(count, 'row')} could not be read, listed in {errors}:")
    with (
        suppress(OSError, ValueError, KeyError, TypeError),
        open_regular(errors) as raw,
        BufferedReader(raw) as file,
    ):
        for text in islice(file, FIRST):
            row = json.loads(text)
            output.warning(f"{row['location']}: {row['message']}")
    if count > FIRST:
        output.warning(f"and {count - FIRST:,} more")


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
