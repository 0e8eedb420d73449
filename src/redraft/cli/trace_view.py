"""Shows a trace on a terminal, or as JSON.

Used by `redraft show`, `redraft runs show` and `redraft demo`. Untrusted text is stripped of control characters and never
read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..core.records import Candidate, Comparison, Feedback
from ..core.serialize import pack, record_to_json
from ..core.trace import Trace
from ..result import Result, diagnosis_text, format_score
from ..text import strip_control_sequences
from .diff import render_diff
from .progress import describe_origin, format_usage, summary_line
from .terminal import console as text_console
from .terminal import text_line

MAX_OBJECT = 31  # characters of a JSON object that is shown in full
EXCERPT_LINES = 12  # lines of a text that are shown without `full`


@dataclass(frozen=True)
class TraceView:
    """Shows a trace on a console.

    `full`: show whole texts; `changes_only`: show only feedback that differs from that on the parent answer; `label` returns
    the name under which a grader is shown.
    """

    console: Console
    full: bool = False
    changes_only: bool = False
    label: Callable[[str], str] = str

    def answer(self, trace: Trace, candidate: Candidate) -> None:
        """Show one answer with its feedback."""
        parent = trace.by_id.get(candidate.parent) if candidate.parent is not None else None
        self._heading(trace, candidate)
        if candidate.note:
            self._print_indented(_note_text(candidate))
        views = in_panel_order(trace, candidate.id)
        if self.changes_only and parent is not None:
            views = _changed_feedback(trace.feedback[parent.id], views)
        if views:
            self._print_indented(self.feedback_table(views))
        for comparison in trace.comparisons:
            if max(comparison.ranking) == candidate.id:
                self._print_indented(_ranking_text(comparison))
        self.console.print()
        self._print_indented(
            self.excerpt(candidate.display_text) if parent is None else self.changes(parent.display_text, candidate.display_text)
        )

    def _heading(self, trace: Trace, candidate: Candidate) -> None:
        score = trace.scores[candidate.id]
        before = trace.scores.get(candidate.parent) if candidate.parent is not None else None
        gain = f" ({score - before:+.2f})" if score is not None and before is not None else ""
        source = text_line(
            f"{candidate.id} · {describe_origin(candidate)}" + (f" by {candidate.by}" if candidate.by != "given" else ""), "bold"
        )
        estimate = dict(trace.outcome.estimates).get(candidate.id) if trace.outcome else None
        best = trace.graded_candidates and trace.best is not None and trace.best.id == candidate.id
        source.append(f" · score {format_score(score)}{gain}", "bold green" if best else "bold")
        if estimate is not None:
            source.append(f" · estimated {format_score(estimate)}", "dim")
        self.console.print()
        self.console.print(Rule(source, align="left", style="dim", characters="─"))

    def _print_indented(self, content: RenderableType) -> None:
        self.console.print(Padding(content, (0, 0, 0, 3)))

    def feedback_table(self, views: Sequence[Feedback]) -> Table:
        """Return a table with a row for each grader, followed by the changes that it suggests."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(max_width=42, overflow="fold")
        table.add_column(ratio=1)
        for view in views:
            table.add_row(
                _score_text(view), text_line(without_schema(self.label(view.grader))), text_line(without_schema(view.reason))
            )
            for action in () if _repeats_reason(view) else dict.fromkeys(view.actions):
                table.add_row("", "", text_line(f"→ {action}", "italic"))
        return table

    def excerpt(self, text: str) -> Text:
        """Return a text, or its first lines without `full`."""
        lines = strip_control_sequences(text).splitlines()
        if self.full or len(lines) <= EXCERPT_LINES:
            return Text(strip_control_sequences(text))
        return Text("\n".join([*lines[:EXCERPT_LINES], f"… {len(lines) - EXCERPT_LINES} more lines"]))

    def changes(self, before: str, after: str) -> Text:
        """Return the changes, word by word."""
        colour = self.console.is_terminal and not self.console.no_color
        return render_diff(before, after, colour=colour, full=self.full)


def without_schema(text: str) -> str:
    """Return the text with a long JSON object shortened to {…}."""
    start, end = text.find("{"), text.rfind("}") + 1
    return f"{text[:start]}{{…}}{text[end:]}" if 0 <= start < end - MAX_OBJECT else text


def in_panel_order(trace: Trace, candidate: int) -> list[Feedback]:
    """Return the feedback on a candidate, in the order of the graders on the panel."""
    places = {grader.name: i for i, grader in enumerate(trace.panel)}
    return sorted(trace.feedback[candidate], key=lambda f: (places.get(f.grader, len(places)), f.repeat))


def _note_text(candidate: Candidate) -> Text:
    text = Text()
    if candidate.lossy:
        text.append("lossy ", "bold yellow")
    return text.append_text(text_line(without_schema(candidate.note)))


def _changed_feedback(before: Sequence[Feedback], now: Sequence[Feedback]) -> list[Feedback]:
    known = {f.grader: f.score for f in before}
    return [f for f in now if known.get(f.grader) != f.score]


def _score_text(view: Feedback) -> Text:
    if view.score is None:
        verdict = {True: "done", False: "not done", None: "advice"}[view.done]
        return Text(verdict if view.is_critique else "unknown", "green" if view.done else "yellow")
    style = "green" if view.score == 1 else "red" if view.score == 0 else "yellow"
    sign = {1.0: "✓ ", 0.0: "✗ "}.get(view.score, "  ")
    return Text(f"{sign}{view.score:.2f}", style)


def _repeats_reason(view: Feedback) -> bool:
    """Return whether the only suggested action repeats the reason, as the feedback of requirements does."""
    return len(view.actions) == 1 and view.actions[0].startswith(f"{view.reason}; ")


def _ranking_text(comparison: Comparison) -> Text:
    order = " > ".join(map(str, comparison.ranking))
    return text_line(f"{comparison.grader} ranks {order}: {comparison.reason}")


def trace_as_json(trace: Trace) -> str:
    """Return the trace as one JSON object: the result, and every answer with its feedback."""
    answers = [_candidate_data(trace, c) for c in trace.candidates]
    head = {"task": pack(trace.task), "panel": [pack(s) for s in trace.panel], "settings": dict(trace.settings)}
    is_finished = trace.outcome is not None
    return json.dumps({**head, "ended": is_finished, **Result(trace).to_dict(), "candidates": answers}, indent=2, default=list)


def _candidate_data(trace: Trace, candidate: Candidate) -> dict[str, Any]:
    feedback = [_record_data(f) for f in trace.feedback[candidate.id]]
    return {**_record_data(candidate), "id": candidate.id, "score": trace.scores[candidate.id], "feedback": feedback}


def _record_data(record: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(record_to_json(record))
    data.pop("kind")
    return data


def show_trace(trace: Trace, *, full: bool) -> None:
    """Show the whole trace, the oldest answer first."""
    out = text_console(stderr=False)
    view = TraceView(out, full=full)
    out.print(Text("Task", "bold"))
    out.print(Padding(view.excerpt(trace.task.prompt), (0, 0, 0, 3)))
    for candidate in trace.candidates:
        if trace.is_unchanged(candidate):
            out.print()
            note = candidate.note or "nothing was changed"
            out.print(text_line(f" {candidate.id} · {candidate.by} on {candidate.parent}: {note}", "dim"))
        else:
            view.answer(trace, candidate)
    _show_failures(out, trace)
    out.print()
    _show_outcome(out, trace)


def _show_failures(out: Console, trace: Trace) -> None:
    for failure in sorted(trace.failures.values(), key=lambda f: str(f.step_slot)):
        out.print()
        out.print(text_line(f" failed: {failure.role}: {failure.message}", "red"))


def _show_outcome(out: Console, trace: Trace) -> None:
    result = Result(trace)
    if trace.outcome:
        out.print(text_line(summary_line(result), "bold"))
        if remark := diagnosis_text(result):
            out.print(text_line(remark))
    else:
        out.print(text_line(f"score {format_score(result.score)} · not finished: resume with redraft run --resume", "bold yellow"))
    table = Table.grid(padding=(0, 3, 0, 0))
    for (role, by), usage in trace.usage_by.items():
        table.add_row(Text(strip_control_sequences(role)), text_line(by), Text(format_usage(usage), "dim"))
    table.add_row(Text("all"), Text(""), Text(format_usage(trace.usage), "dim"))
    out.print(table)
