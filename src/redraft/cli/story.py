"""A trace told to people: every answer with its score, what was done, what graders say, and what changed.

Used by `redraft show` and `redraft demo`. All text of others goes through `plain` and is never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..core.records import Candidate, Comparison, Feedback
from ..core.trace import Trace
from ..result import format_score
from ..text import strip_control_sequences
from .diff import drawn
from .live import line
from .progress import made

LONGEST_OBJECT = 31  # characters of what stands in braces, if all is to be shown
EXCERPT = 12  # lines of a text that are shown when not all is asked for


@dataclass(frozen=True)
class Teller:
    """Tells a trace on a console. `full`: whole texts; `news`: of later answers only what graders see differently."""

    console: Console
    full: bool = False
    news: bool = False
    call: Callable[[str], str] = str

    def answer(self, trace: Trace, candidate: Candidate) -> None:
        """One answer."""
        parent = trace.by_id.get(candidate.parent) if candidate.parent is not None else None
        self._heading(trace, candidate)
        if candidate.note:
            self._indented(_noted(candidate))
        views = seated(trace, candidate.id)
        if self.news and parent is not None:
            views = _news(trace.feedback[parent.id], views)
        if views:
            self._indented(self.views(views))
        for comparison in trace.comparisons:
            if max(comparison.ranking) == candidate.id:
                self._indented(_ranked(comparison))
        self.console.print()
        self._indented(
            self.excerpt(candidate.display_text) if parent is None else self.changes(parent.display_text, candidate.display_text)
        )

    def _heading(self, trace: Trace, candidate: Candidate) -> None:
        score = trace.scores[candidate.id]
        before = trace.scores.get(candidate.parent) if candidate.parent is not None else None
        gain = f" ({score - before:+.2f})" if score is not None and before is not None else ""
        source = line(f"{candidate.id} · {made(candidate)}" + (f" by {candidate.by}" if candidate.by != "given" else ""), "bold")
        believed = dict(trace.outcome.estimates).get(candidate.id) if trace.outcome else None
        best = trace.graded_candidates and trace.best is not None and trace.best.id == candidate.id
        source.append(f" · score {format_score(score)}{gain}", "bold green" if best else "bold")
        if believed is not None:
            source.append(f" · believed {format_score(believed)}", "dim")
        self.console.print()
        self.console.print(Rule(source, align="left", style="dim", characters="─"))

    def _indented(self, shown: RenderableType) -> None:
        self.console.print(Padding(shown, (0, 0, 0, 3)))

    def views(self, views: Sequence[Feedback]) -> Table:
        """What graders say, a row each, and below what they would change."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(max_width=42, overflow="fold")
        table.add_column(ratio=1)
        for view in views:
            table.add_row(_mark(view), line(brief(self.call(view.grader))), line(brief(view.reason)))
            for action in () if _says_the_same(view) else dict.fromkeys(view.actions):
                table.add_row("", "", line(f"→ {action}", "italic"))
        return table

    def excerpt(self, text: str) -> Text:
        """A text, or how it begins."""
        lines = strip_control_sequences(text).splitlines()
        if self.full or len(lines) <= EXCERPT:
            return Text(strip_control_sequences(text))
        return Text("\n".join([*lines[:EXCERPT], f"… {len(lines) - EXCERPT} more lines"]))

    def changes(self, before: str, after: str) -> Text:
        """What changed, word by word."""
        colour = self.console.is_terminal and not self.console.no_color
        return drawn(before, after, colour=colour, full=self.full)


def brief(text: str) -> str:
    """The text without the whole of a JSON schema that stands in it."""
    start, end = text.find("{"), text.rfind("}") + 1
    return f"{text[:start]}{{…}}{text[end:]}" if 0 <= start < end - LONGEST_OBJECT else text


def seated(trace: Trace, candidate: int) -> list[Feedback]:
    """What graders say of a candidate, in the order in which they were named."""
    places = {seat.name: i for i, seat in enumerate(trace.panel)}
    return sorted(trace.feedback[candidate], key=lambda f: (places.get(f.grader, len(places)), f.repeat))


def _noted(candidate: Candidate) -> Text:
    text = Text()
    if candidate.lossy:
        text.append("lossy ", "bold yellow")
    return text.append_text(line(brief(candidate.note)))


def _news(before: Sequence[Feedback], now: Sequence[Feedback]) -> list[Feedback]:
    known = {f.grader: f.score for f in before}
    return [f for f in now if known.get(f.grader) != f.score]


def _mark(view: Feedback) -> Text:
    if view.score is None:
        said = {True: "done", False: "not done", None: "advice"}[view.done]
        return Text(said if view.is_critique else "unknown", "green" if view.done else "yellow")
    style = "green" if view.score == 1 else "red" if view.score == 0 else "yellow"
    sign = {1.0: "✓ ", 0.0: "✗ "}.get(view.score, "  ")
    return Text(f"{sign}{view.score:.2f}", style)


def _says_the_same(view: Feedback) -> bool:
    """A requirement's advice is its measurement with its demand: its row says both already."""
    return len(view.actions) == 1 and view.actions[0].startswith(f"{view.reason}; ")


def _ranked(comparison: Comparison) -> Text:
    order = " > ".join(map(str, comparison.ranking))
    return line(f"{comparison.grader} ranks {order}: {comparison.reason}")
