"""Ranks the answers of `redraft best`, and shows the ranking."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from ...core.records import Candidate
from ...core.trace import Trace
from ...result import Result, format_score
from ...text import strip_control_sequences
from ..output import single_line
from ..progress import describe_origin, feedback_summary, format_usage
from ..refinement import RefinementDisplay
from ..terminal import console, text_line

if TYPE_CHECKING:
    from ..commands.best import BestArguments


class RankingDisplay(RefinementDisplay):
    """Shows a choice between answers while it runs; given answers are not reported."""

    def begin(self, trace: Trace) -> None:
        super().begin(replace(trace, records=()))
        self.progress.trace = trace


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """An answer and its place, from 1; `tied`: others share the place. An answer that was not graded has no place."""

    candidate: Candidate
    place: int | None
    tied: bool = False


def rank(trace: Trace) -> list[RankedAnswer]:
    """Return the answers, best first: by musts met, then by score, then by the latest ranking; tied answers by age."""
    places = trace.comparisons[-1].ranks if trace.comparisons else {}

    def merit(c: Candidate) -> tuple[float, float, int]:
        score = trace.scores[c.id]
        return trace.must_pass_rate(c.id), -1.0 if score is None else score, -places.get(c.id, len(places))

    rows: list[RankedAnswer] = []
    for _, group in groupby(sorted(trace.graded_candidates, key=lambda c: (*(-m for m in merit(c)), c.id)), key=merit):
        equals = list(group)
        place = len(rows) + 1
        rows += [RankedAnswer(c, place, len(equals) > 1) for c in equals]
    seen = {row.candidate.id for row in rows} | trace.replaced_ids | trace.unchanged_ids
    return [*rows, *(RankedAnswer(c, None) for c in trace.candidates if c.id not in seen)]


def answer_data(row: RankedAnswer, trace: Trace, arguments: BestArguments) -> dict[str, Any]:
    """Return a ranked answer as plain data."""
    c = row.candidate
    return {
        "place": row.place,
        "tie": row.tied,
        "candidate": c.id,
        "response": arguments.response[c.id] if arguments.response else None,
        "score": trace.scores[c.id],
        "text": c.text,
        "tool_calls": [call.as_message_part() for call in c.tool_calls],
    }


def show_ranking(result: Result, ranking: Sequence[RankedAnswer], arguments: BestArguments, seconds: float) -> None:
    """Show the ranking and the usage on stderr."""
    err, trace = console(stderr=True), result.trace
    err.print(_ranking_table(ranking, trace, arguments))
    for comparison in trace.comparisons:
        if comparison.reason:
            err.print(text_line(f"{comparison.grader}: {comparison.reason}", "dim"))
    lines = [_summary(result, ranking, arguments)]
    if sys.stderr.isatty():  # the live view does not keep failures; elsewhere they were reported when they happened
        lines += [f"failed: {failure}" for failure in dict.fromkeys(result.metadata["failures"])]
    else:
        lines.append(format_usage(result.usage, seconds))
    for text in lines:
        click.echo(f"redraft: {single_line(text)}", err=True)
    for name in result.metadata["broken"]:
        click.echo(f"redraft: still broken: {strip_control_sequences(name)}", err=True)
    if sys.stdout.isatty() and sys.stderr.isatty() and not arguments.output:
        click.echo(err=True)


def _ranking_table(ranking: Sequence[RankedAnswer], trace: Trace, arguments: BestArguments) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=34, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in ranking:
        c = row.candidate
        place = "not graded" if row.place is None else f"{row.place}{' tie' if row.tied else ''}"
        style = "bold green" if trace.best is not None and row.place and c.id == trace.best.id else ""
        score = format_score(trace.scores[c.id]) if trace.pointwise_graders else ""
        label, feedback = text_line(_label(c, arguments), style), text_line(feedback_summary(trace, c), "dim")
        table.add_row(Text(place, style), label, Text(score, style), feedback)
    return table


def _summary(result: Result, ranking: Sequence[RankedAnswer], arguments: BestArguments) -> str:
    """Name the best answer, the answers that tie with it, and the reason why the run stopped early."""
    first, *others = ranking
    equals = [_label(row.candidate, arguments) for row in others if row.tied and row.place == first.place]
    tie = f", a tie with {', '.join(equals)}: the earliest is kept" if equals else ""
    score = f" · score {format_score(result.score)}" if result.trace.pointwise_graders else ""
    note = result.trace.outcome.note if result.trace.outcome else ""
    early_stop = f" · stopped: {result.stop} ({note})" if result.stop.resumable else ""
    return f"best of {len(ranking)}: {_label(first.candidate, arguments)}{tie}{score}{early_stop}"


def _label(candidate: Candidate, arguments: BestArguments) -> str:
    """Return the file that an answer came from, or how it was made."""
    if arguments.response:
        return str(arguments.response[candidate.id])
    origin = describe_origin(candidate)
    return f"{origin} {candidate.id}" if candidate.role == "generate" else f"{candidate.id} {origin}"
