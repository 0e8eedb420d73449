"""What people see of a batch: before it, while it runs, and at its end. Nothing here decides anything.

Text of others (rows, servers, models) enters only as `line` and `Text` without control characters.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..result import format_score
from ..runs.progress import price_told
from ..text import strip_control_sequences
from . import notices
from .live import console, line

if TYPE_CHECKING:
    from ..runs import Preview, Progress, Report

EVERY = 5.0  # seconds between two lines for programs
LOOK = 0.25  # seconds between two looks at whether something is news
FIRST = 3  # unreadable rows that are named at the end
SAMPLE = 1200  # characters of a message that are shown beforehand


def say(text: str) -> None:
    """One line on stderr."""
    notices.notice(text)


def counted(n: int, what: str) -> str:
    return f"{n:,} {what if n == 1 else f'{what}s'}"


def money(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:,.4f} USD" if usd else "0 USD"


def number(n: float | None) -> str:
    return "unknown" if n is None else f"{n:,.0f}"


def clock(seconds: float) -> str:
    """Seconds as people read them: 1:02:03."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}"


Say = Callable[[str], None]
Now = Callable[[], "Progress"]
Eyes = Callable[[Now], AbstractContextManager[Say]]


def eyes(*, as_json: bool, stdout: bool) -> Eyes:
    """How a run is followed: a live view in a terminal, JSON lines elsewhere. What it gives says a line in between.

    `stdout`: whether that is free for JSON; where it is not, rows go there.
    """
    free = sys.stderr.isatty() and (stdout or not sys.stdout.isatty())
    if free and not as_json and not console(stderr=True).is_dumb_terminal:
        return panel
    return partial(ticking, stdout=as_json and stdout)


@contextmanager
def unechoed() -> Iterator[None]:
    """What is typed meanwhile is not shown, nor kept: it would shift what is redrawn. Ctrl-C works as ever."""
    if not _at_keys():
        yield
        return
    import termios

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    termios.tcsetattr(keys, termios.TCSADRAIN, [*before[:3], before[3] & ~(termios.ECHO | termios.ECHONL), *before[4:]])
    try:
        yield
    finally:
        if _at_keys():
            termios.tcsetattr(keys, termios.TCSAFLUSH, before)


def _at_keys() -> bool:
    """Whether somebody may type to us: who works in the background must leave a terminal as it is."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def panel(now: Now) -> Iterator[Say]:
    """Redraws itself on stderr, and is gone at the end."""
    drawing = Live(console=console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)

    def look() -> None:
        drawing.update(drawn(now()), refresh=True)

    with unechoed(), drawing, notices.written_by(lambda text: drawing.console.print(Text(text))), _looking(look):
        yield say


@contextmanager
def ticking(now: Now, *, stdout: bool) -> Iterator[Say]:
    """A JSON line every few seconds, and at once when the state of things is another."""
    state, told = "", -EVERY

    def look() -> None:
        nonlocal state, told
        seen = now()
        if seen.state != state or monotonic() - told >= EVERY:
            state, told = seen.state, monotonic()
            notices.emit("progress", stdout=stdout, **seen.as_data())

    with _looking(look):
        yield say


@contextmanager
def _looking(look: Callable[[], None]) -> Iterator[None]:
    """Looks again and again while the running loop works, and once more at the end."""

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(LOOK)

    work = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        work.cancel()
        look()


def drawn(p: Progress) -> RenderableType:
    """All that is known right now."""
    grid = Table.grid(padding=(0, 2, 0, 1), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for name, value in (("rows", _rows(p)), ("calls", _calls(p)), ("cost", _cost(p)), ("score", _score(p))):
        if value:
            grid.add_row(name, line(value))
    parts: list[RenderableType] = [_bar(p), grid]
    if p.state not in ("", "running", "finished"):
        parts.append(line(f" {p.state}", "bold yellow"))
    return Group(*parts)


def _bar(p: Progress) -> RenderableType:
    gone = p.total - p.left if p.total is not None and p.left is not None else 0
    share = f"{gone / p.total:4.0%}" if p.total else ""
    left = f"{clock(p.eta)} left" if p.eta else ""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True, justify="right")
    row.add_row(ProgressBar(total=p.total, completed=gone), Text("  ".join(filter(None, [share, clock(p.seconds), left]))))
    return row


def _rows(p: Progress) -> str:
    if p.total is None:
        return f"{p.read:,} read"
    rate = [] if p.rows_per_s is None else [f"{p.rows_per_s:,.1f}/s"]
    named = ((p.kept, "finished before"), (p.bad, "unreadable"), (p.cut, "cut short"), (p.under_way, "under way"))
    told = [
        f"{p.done:,} done",
        f"{p.failed:,} failed",
        f"{p.left or 0:,} left",
        *rate,
        *(f"{n:,} {what}" for n, what in named if n),
    ]
    return " · ".join(told)


def _calls(p: Progress) -> str:
    cached = [f"{p.usage.cached_calls:,} cached"] if p.usage.cached_calls else []
    return " · ".join([f"{p.in_flight:,} in flight of {p.limit:,}", f"{p.usage.calls:,} made", *cached])


def _cost(p: Progress) -> str:
    projected = [] if p.projected_cost is None else [f"about {money(p.projected_cost)} in all"]
    price = [] if p.price is None else [price_told(p.price, p.price_unit)]
    return " · ".join([f"{money(p.usage.cost)} so far", *projected, f"{number(p.usage.tokens)} tokens", *price])


def _score(p: Progress) -> str:
    return "" if p.best.value is None else f"{format_score(p.first.value)} first → {format_score(p.best.value)} best (mean)"


def announce(preview: Preview, *, explain: bool) -> None:
    """What was understood of the input, before anything is asked."""
    for said in preview.said:
        say(said)
    for bad in preview.bad:
        say(f"cannot be read: {bad.location}: {bad.message}")
    for change in preview.changes if explain else ():
        say(change)


def rehearse(preview: Preview, *, as_json: bool) -> None:
    """What would be asked, and roughly what it would take, on stdout."""
    if as_json:
        click.echo(json.dumps(previewed(preview), indent=2, default=str))
        return
    out = console(stderr=False)
    for n, messages in enumerate(preview.samples, 1):
        out.print(Text(f"sample {n}", "bold"))
        for message in messages:
            out.print(Text(f"  {strip_control_sequences(str(message.get('role', '')))}: ", "dim") + _excerpt(message))
        out.print()
    for what, span in (("calls", preview.calls), ("tokens", preview.tokens)):
        out.print(line(f"{what:8} {_span(span, getattr(preview.likely, what, None))}"))
    cost = "unknown" if preview.cost is None else f"{_span(preview.cost, getattr(preview.likely, 'cost', None), 4)} USD"
    out.print(line(f"{'cost':8} {cost}"))
    out.print(line("nothing was asked, nothing was written", "dim"))


def previewed(preview: Preview) -> dict[str, Any]:
    """A preview as plain data."""
    return {"event": "preview", **asdict(preview)}


def _excerpt(message: Mapping[str, Any]) -> Text:
    content = message.get("content")
    text = strip_control_sequences(content if isinstance(content, str) else json.dumps(content, default=str))
    return Text(text if len(text) <= SAMPLE else f"{text[:SAMPLE]} … ({len(text) - SAMPLE:,} characters more)")


def _span(span: Sequence[float], likely: float | None, digits: int = 0) -> str:
    low, high = (f"{n:,.{digits}f}" for n in span)
    if low == high:
        return low
    return f"{low} to {high}" if likely is None else f"likely {likely:,.{digits}f} (between {low} and {high})"


def conclude(report: Report) -> None:
    """How it went, on stderr."""
    if notices.are_json():
        notices.emit("report", **reported(report), summary=report.summary())
        return
    for said in filter(None, report.summary()):
        say(said)
    if len(report.by_iteration) > 1:
        console(stderr=True).print(_iterations(report))


def reported(report: Report) -> dict[str, Any]:
    """A report as plain data, with the state that the run was left in."""
    return {"state": report.ended or "finished", **report.as_data()}


def list_unreadable(count: int, errors: str) -> None:
    """Where the rows are listed that could not be read, and why the first of them could not."""
    notices.warning(f"{counted(count, 'row')} could not be read, listed in {errors}:")
    with suppress(OSError, ValueError, KeyError, TypeError), Path(errors).open(encoding="utf-8") as file:
        for text in islice(file, FIRST):
            row = json.loads(text)
            notices.warning(f"{row['place']}: {row['message']}")
    if count > FIRST:
        notices.warning(f"and {count - FIRST:,} more")


def _iterations(report: Report) -> Table:
    """What each refinement brought, and what it took."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for title in ("iteration", "rows", "gain", "calls", "USD", "calls per 0.01", "USD per 0.01"):
        table.add_column(title, justify="right")
    for row in report.by_iteration:
        table.add_row(
            str(row["iteration"]),
            f"{row['rows']:,}",
            _unless(row["gain"], "+.3f"),
            f"{row['calls']:,}",
            "unknown" if row["cost"] is None else f"{row['cost']:,.4f}",
            _unless(row["calls_per_point"], ",.2f"),
            _unless(row["usd_per_point"], ",.6f"),
        )
    return table


def _unless(value: float | None, form: str) -> str:
    """A number, or that there is none."""
    return "–" if value is None else format(value, form)
