"""Drawing on a terminal with rich: consoles, tables, the live view of a refinement, a whole trace,
the difference of two answers.

Text from models enters only as `Text` without control characters: neither markup nor escapes in it
have any effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..base.text import strip_control_sequences
from ..base.word_diff import word_diff
from ..loop.records import Candidate, Feedback
from ..loop.serialize import pack, record_to_json
from ..loop.trace import Trace
from ..loop.visible_tests import hidden_results
from ..result import Result, diagnosis_text, format_score
from ..session.grade_report import GraderFeedback
from .output import messages_are_json, notice, single_line
from .progress import (
    describe_origin,
    format_usage,
    summary_line,
)

MAX_OBJECT = 31  # characters of a JSON object that is shown in full
EXCERPT_LINES = 12  # lines of a text that are shown without `full`

# Of a difference
CONTEXT = 48  # characters of unchanged text shown beside a change
MAX_CRITERION = 40  # characters of the name of a criterion that are shown
MAX_CHANGE = 600  # characters of a change that are shown
STYLES = {"same": "dim", "removed": "red strike", "added": "green underline"}
MARKS = {"removed": ("[-", "-]"), "added": ("{+", "+}")}


class PlainConsole(Console):
    """A console that interprets no markup. Where its output is no terminal, it wraps nothing, and
    separates cells by tabs.

    On stderr, each line is a message if those are JSON.
    """

    def __init__(self, *, stderr: bool) -> None:
        self._writes_json = stderr and messages_are_json()
        interactive = False if self._writes_json else None
        super().__init__(
            stderr=stderr, markup=False, emoji=False, highlight=False, force_interactive=interactive
        )

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print objects, as `Console.print` does; where the output is no terminal, each on lines of
        its own.
        """
        if self.is_terminal and not self._writes_json:
            super().print(*objects, **settings)
            return
        for content in map(plain_content, objects or ("",)):
            if self._writes_json:
                for line in str(content).splitlines():
                    notice(line)
            elif isinstance(content, str):
                self.file.write(f"{content}\n")
            else:
                super().print(content, **settings)


def plain_content(content: Any) -> Any:
    """Return text without styles: a table as lines with tabs between the cells, a rule as its
    title; unknown content as it is.
    """
    match content:
        case Table():
            heads = [column.header for column in content.columns]
            cells = zip(*(column.cells for column in content.columns), strict=True)
            rows = [heads, *cells] if content.show_header and any(map(str, heads)) else cells
            lines = ["\t".join(str(cell).strip() for cell in row).rstrip("\t") for row in rows]
            return "\n".join([*([str(content.title)] if content.title else []), *lines])
        case Padding():
            return indent(str(plain_content(content.renderable)), " " * content.left)
        case Rule():
            return str(content.title)
        case Text():
            return str(content)
    return content


def console(*, stderr: bool) -> PlainConsole:
    """Return a console that interprets no markup."""
    return PlainConsole(stderr=stderr)


def plain_table(*headers: str) -> Table:
    """Return a table without lines between its cells."""
    return Table(*headers, box=None, padding=(0, 3, 0, 0), pad_edge=False)


def figure_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], figures: Collection[str]
) -> Table:
    """Return a table without lines. The columns with headings in `figures` are right-justified and
    never wrapped, other texts are folded.
    """
    table = plain_table()
    for heading in headings:
        if heading in figures:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(text_line(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def grid(*, indent: int = 0) -> Table:
    """Return a table without lines and headers."""
    return Table.grid(padding=(0, 2, 0, indent))


def show_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """Print a title, and below it a line for each fact: what it is, and its value."""
    out, table = console(stderr=False), grid(indent=1)
    out.print(text_line(title, "bold"))
    for label, value in facts:
        table.add_row(text_line(label, "dim"), text_line(value))
    out.print(table)


def text_line(text: str, style: str = "") -> Text:
    """Return untrusted text on one line."""
    return Text(single_line(text), style)


@dataclass(frozen=True)
class TraceView:
    """Shows a trace on a console.

    `full`: show whole texts; `changes_only`: show only feedback that differs from that on the
    parent answer; `label` returns the name under which a grader is shown.
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
            lossy = Text("lossy ", "bold yellow") if candidate.lossy else Text()
            self._print_indented(lossy.append_text(text_line(without_schema(candidate.note))))
        views = in_panel_order(trace, candidate.id)
        if self.changes_only and parent is not None:
            earlier_scores = {f.grader: f.score for f in trace.feedback[parent.id]}
            views = [f for f in views if earlier_scores.get(f.grader) != f.score]
        if views:
            self._print_indented(self.feedback_table(views))
        for comparison in trace.comparisons:
            if max(comparison.ranking) == candidate.id:
                order = " > ".join(map(str, comparison.ranking))
                self._print_indented(
                    text_line(f"{comparison.grader} ranks {order}: {comparison.reason}")
                )
        self.console.print()
        self._print_indented(
            self.excerpt(candidate.display_text)
            if parent is None
            else self.changes(parent.display_text, candidate.display_text)
        )

    def _heading(self, trace: Trace, candidate: Candidate) -> None:
        score = trace.scores[candidate.id]
        before = trace.scores.get(candidate.parent) if candidate.parent is not None else None
        gain = f" ({score - before:+.2f})" if score is not None and before is not None else ""
        source = text_line(
            f"{candidate.id} · {describe_origin(candidate)}"
            + (f" by {candidate.by}" if candidate.by != "given" else ""),
            "bold",
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

    def feedback_table(self, views: Sequence[Feedback | GraderFeedback]) -> Table:
        """Return a table with a row for each grader, followed by the changes that it suggests."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(max_width=42, overflow="fold")
        table.add_column(ratio=1)
        for view in views:
            table.add_row(
                _score_text(view),
                text_line(without_schema(self.label(view.grader))),
                text_line(without_schema(shown_reason(view))),
            )
            if scores := criteria_text(view):
                table.add_row("", "", text_line(scores, "dim"))
            for action in () if _repeats_reason(view) else dict.fromkeys(view.actions):
                table.add_row("", "", text_line(f"→ {action}", "italic"))
        return table

    def excerpt(self, text: str) -> Text:
        """Return a text, or its first lines without `full`."""
        lines = strip_control_sequences(text).splitlines()
        if self.full or len(lines) <= EXCERPT_LINES:
            return Text(strip_control_sequences(text))
        return Text(
            "\n".join([*lines[:EXCERPT_LINES], f"… {len(lines) - EXCERPT_LINES} more lines"])
        )

    def changes(self, before: str, after: str) -> Text:
        """Return the changes, word by word."""
        colour = self.console.is_terminal and not self.console.no_color
        return render_diff(before, after, colour=colour, full=self.full)


def without_schema(text: str) -> str:
    """Return the text with a long JSON object shortened to {…}."""
    start, end = text.find("{"), text.rfind("}") + 1
    return f"{text[:start]}{{…}}{text[end:]}" if 0 <= start < end - MAX_OBJECT else text


def shown_reason(view: Feedback | GraderFeedback) -> str:
    """Return the reason, and how many hidden tests pass, which are shown to people only."""
    repeats = [view] if isinstance(view, Feedback) else view.repeats
    if not (hidden := hidden_results(repeats)):
        return view.reason
    return f"{view.reason}{'; ' if view.reason else ''}hidden: {hidden[0]} of {hidden[1]}"


def in_panel_order(trace: Trace, candidate: int) -> list[Feedback]:
    """Return the feedback on a candidate, in the order of the graders on the panel."""
    places = {grader.name: i for i, grader in enumerate(trace.panel)}
    return sorted(
        trace.feedback[candidate], key=lambda f: (places.get(f.grader, len(places)), f.repeat)
    )


def criteria_text(view: Feedback | GraderFeedback) -> str:
    """Return the scores by criterion on one line; "" for a single one, and for the votes of other
    graders.
    """
    if len(view.criteria) < 2 or (isinstance(view, Feedback) and view.votes):
        return ""
    return "; ".join(f"{c.name[:MAX_CRITERION]} {c.score:.2f}" for c in view.criteria)


def _score_text(view: Feedback | GraderFeedback) -> Text:
    if view.score is None:
        verdict = {True: "done", False: "not done", None: "advice"}[view.done]
        return Text(verdict if view.is_critique else "unknown", "green" if view.done else "yellow")
    style = "green" if view.score == 1 else "red" if view.score == 0 else "yellow"
    sign = {1.0: "✓ ", 0.0: "✗ "}.get(view.score, "  ")
    return Text(f"{sign}{view.score:.2f}", style)


def _repeats_reason(view: Feedback | GraderFeedback) -> bool:
    """Return whether the only suggested action repeats the reason, as the feedback of requirements
    does.
    """
    return len(view.actions) == 1 and view.actions[0].startswith(f"{view.reason}; ")


def trace_as_json(trace: Trace) -> str:
    """Return the trace as one JSON object: the result, and every answer with its feedback."""
    answers = [
        {
            **_record_data(candidate),
            "id": candidate.id,
            "score": trace.scores[candidate.id],
            "feedback": [_record_data(feedback) for feedback in trace.feedback[candidate.id]],
        }
        for candidate in trace.candidates
    ]
    head = {
        "task": pack(trace.task),
        "panel": [pack(s) for s in trace.panel],
        "settings": dict(trace.settings),
    }
    is_finished = trace.outcome is not None
    return json.dumps(
        {**head, "ended": is_finished, **Result(trace).to_dict(), "candidates": answers},
        indent=2,
        default=list,
    )


def _record_data(record: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(record_to_json(record))
    data.pop("kind")
    return data


def print_trace(trace: Trace, *, as_json: bool, full: bool) -> None:
    """Write a trace to stdout, for people or as JSON."""
    if as_json:
        click.echo(trace_as_json(trace))
    else:
        show_trace(trace, full=full)


def show_trace(trace: Trace, *, full: bool) -> None:
    """Show the whole trace, the oldest answer first."""
    out = console(stderr=False)
    view = TraceView(out, full=full)
    out.print(Text("Task", "bold"))
    out.print(Padding(view.excerpt(trace.task.prompt), (0, 0, 0, 3)))
    for candidate in trace.candidates:
        if trace.is_unchanged(candidate):
            out.print()
            note = candidate.note or "nothing was changed"
            out.print(
                text_line(f" {candidate.id} · {candidate.by} on {candidate.parent}: {note}", "dim")
            )
        else:
            view.answer(trace, candidate)
    for failure in sorted(trace.failures.values(), key=lambda f: str(f.step_slot)):
        out.print()
        out.print(text_line(f" failed: {failure.role}: {failure.message}", "red"))
    out.print()
    _show_outcome(out, trace)


def show_exchange(trace: Trace, *, full: bool) -> None:
    """Show the bodies of a request that was passed on and of its reply."""
    out = console(stderr=False)
    view = TraceView(out, full=full)
    for title, text in (("Request", trace.task.prompt), ("Reply", trace.candidates[0].text)):
        out.print(Text(title, "bold"))
        out.print(Padding(view.excerpt(text), (0, 0, 0, 3)))


def _show_outcome(out: Console, trace: Trace) -> None:
    result = Result(trace)
    if trace.outcome:
        out.print(text_line(summary_line(result), "bold"))
        if remark := diagnosis_text(result):
            out.print(text_line(remark))
    else:
        out.print(
            text_line(
                f"score {format_score(result.score)} · not finished: resume with redraft run "
                "--resume",
                "bold yellow",
            )
        )
    table = Table.grid(padding=(0, 3, 0, 0))
    for (role, by), usage in trace.usage_by.items():
        table.add_row(
            Text(strip_control_sequences(role)), text_line(by), Text(format_usage(usage), "dim")
        )
    table.add_row(Text("all"), Text(""), Text(format_usage(trace.usage), "dim"))
    out.print(table)


def render_diff(before: str, after: str, *, colour: bool, full: bool = False) -> Text:
    """Return the changes, in colour or marked [-like-]{+this+}."""
    text = Text()
    spans = word_diff(before, after)
    for i, span in enumerate(spans):
        shown = strip_control_sequences(span.text)
        if span.kind == "same":
            shown = shown if full else _excerpt(shown, first=i == 0, last=i == len(spans) - 1)
        else:
            if not full and len(shown) > MAX_CHANGE:
                shown = f"{shown[: MAX_CHANGE // 2]} […] {shown[-MAX_CHANGE // 2 :]}"
            # a removed line end breaks no line
            shown = shown.replace("\n", "↵\n" if span.kind == "added" else "↵")
        opening, closing = MARKS.get(span.kind, ("", "")) if not colour else ("", "")
        text.append(f"{opening}{shown}{closing}", STYLES[span.kind] if colour else "")
    text.rstrip()
    return text


def _excerpt(text: str, *, first: bool, last: bool) -> str:
    """Return the parts of unchanged text beside a change."""
    head = "" if first else text[:CONTEXT]
    tail = "" if last else text[-CONTEXT:]
    if len(text) <= len(head) + len(tail) + 8:
        return text
    return f"{_cut_at_last_word(head)}…{_cut_at_first_word(tail)}"


def _cut_at_last_word(text: str) -> str:
    """Return the text without its last, incomplete word; unchanged where words have no spaces
    between them.
    """
    head, space, _ = text.rpartition(" ")
    return f"{head.rstrip()} " if space else text.rstrip("\n")


def _cut_at_first_word(text: str) -> str:
    _, space, tail = text.partition(" ")
    return f" {tail.lstrip()}" if space else text.lstrip("\n")
