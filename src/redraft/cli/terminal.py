"""Drawing on a terminal with rich: consoles, tables of saved things, and the live view of a refinement.

Text from models enters only as `Text` without control characters: neither markup nor escapes in it have any effect.
"""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..core.records import Record
from ..core.steps import Step
from ..core.trace import Trace
from ..usage import NO_USAGE
from .output import single_line
from .progress import TraceProgress, candidate_rows, describe_origin, describe_step, format_usage

MAX_ANSWERS = 12  # shown in the live view: the latest, and the best
UNBOUNDED_WIDTH = 500  # columns, where the output is not a terminal


def console(*, stderr: bool) -> Console:
    """Return a console that interprets no markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def list_console() -> Console:
    """Return a console on stdout for a table with one item per line; only a narrow terminal breaks lines."""
    out = console(stderr=False)
    out.width = out.width if out.is_terminal else UNBOUNDED_WIDTH
    return out


def text_line(text: str, style: str = "") -> Text:
    """Return untrusted text on one line."""
    return Text(single_line(text), style)


def format_time(timestamp: str) -> str:
    """Format a time in the local time zone; in its own zone where the local calendar does not reach."""
    time = parse_time(timestamp)
    try:
        return time.astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return time.isoformat(" ", "minutes")


def parse_time(timestamp: str) -> datetime:
    """Parse an ISO 8601 time; one without a zone is UTC."""
    time = datetime.fromisoformat(timestamp)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class LiveReporter:
    """A live view on stderr: the answers so far with their scores, pending steps, and usage."""

    def __init__(self, progress: TraceProgress) -> None:
        self._progress = progress
        self._ended = False
        self._live = Live(
            console=console(stderr=True),
            get_renderable=self.render,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def begin(self, trace: Trace) -> None:
        self._live.start()

    def step(self, step: Step) -> None: ...

    def record(self, record: Record) -> None: ...

    def end(self) -> None:
        self._ended = True
        self._live.stop()

    def render(self) -> RenderableType:
        """Return the whole view in its present state."""
        trace = self._progress.trace
        parts: list[RenderableType] = [candidate_table(trace)] if trace and trace.candidates else []
        steps = [describe_step(step) for step in list(self._progress.pending.values())]
        if steps and not self._ended:
            more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
            parts.append(Spinner("dots", text_line(" · ".join(steps[:3]) + more), style="cyan"))
        usage = format_usage(trace.usage if trace else NO_USAGE, self._progress.seconds)
        parts.append(Text(f"  {usage}", "dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)


def candidate_table(trace: Trace) -> Table:
    """Return a table with a row for each answer: its score, its origin and a remark; the best is highlighted."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=34, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    best = trace.best.id if trace.graded_candidates and trace.best else None
    known = list(candidate_rows(trace))
    for candidate, score, remark in [r for i, r in enumerate(known) if i >= len(known) - MAX_ANSWERS or r[0].id == best]:
        style = "bold green" if candidate.id == best else ""
        source = text_line(f"{describe_origin(candidate)} by {candidate.by}" if candidate.by != "given" else "given")
        table.add_row(Text(str(candidate.id), "dim"), Text(score or "·", style), source, text_line(remark, "dim"))
    return table
