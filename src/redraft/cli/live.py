"""The live view: the answers so far with their scores, what is being asked, and what it all takes.

Text from models enters only as `Text` without control characters: neither markup nor escapes in it mean anything.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..core.records import NO_USAGE, Record
from ..core.steps import Step
from ..core.trace import Trace
from ..text import strip_control_sequences
from .progress import Progress, doing, made, rows, tally

ROWS = 12  # answers shown: the latest, and the best


def console(*, stderr: bool) -> Console:
    """A console on which text is only ever text."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def line(text: str, style: str = "") -> Text:
    """Foreign text on one line."""
    return Text(" ".join(strip_control_sequences(text).split()), style)


class LiveView:
    """Redraws itself on stderr until the end."""

    def __init__(self, progress: Progress) -> None:
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
        """All of it, as it is now."""
        trace = self._progress.trace
        parts: list[RenderableType] = [answers(trace)] if trace and trace.candidates else []
        now = [doing(step) for step in list(self._progress.asking.values())]
        if now and not self._ended:
            more = f" and {len(now) - 3} more" if len(now) > 3 else ""
            parts.append(Spinner("dots", line(" · ".join(now[:3]) + more), style="cyan"))
        parts.append(
            Text(f"  {tally(trace.usage if trace else NO_USAGE, self._progress.seconds)}", "dim", no_wrap=True, overflow="ellipsis")
        )
        return Group(*parts)


def answers(trace: Trace) -> Table:
    """A row for every answer: its score, how it came about, and a remark; the best is marked."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=34, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    best = trace.best.id if trace.graded_candidates and trace.best else None
    known = list(rows(trace))
    for candidate, score, remark in [r for i, r in enumerate(known) if i >= len(known) - ROWS or r[0].id == best]:
        style = "bold green" if candidate.id == best else ""
        source = line(f"{made(candidate)} by {candidate.by}" if candidate.by != "given" else "given")
        table.add_row(Text(str(candidate.id), "dim"), Text(score or "·", style), source, line(remark, "dim"))
    return table
