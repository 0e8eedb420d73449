"""The work behind `redraft best`: draft or take several answers, have them graded, tell how they stand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..core.records import Candidate
from ..core.trace import Trace
from ..errors import RedraftError
from ..plans.self_refine import BestOfN
from ..result import Result, error_data, format_score
from ..sync import run_sync
from ..text import strip_control_sequences
from . import files, lines
from .exits import INTERRUPTED, complain, exit_code
from .live import console, line
from .progress import made, said, tally
from .wishes import Wish, model_found, new_task, wish
from .work import Watch, best_so_far, hand_over, watched

DRAFTS = 4
NO_PROMPT = "(What was asked for is not known. Judge the answers as texts.)"
REPLACED: dict[str, Any] = {  # the plan is another
    "target": 0.9,
    "max_iterations": 0,
    "patience": 1,
    "min_delta": 0.0,
    "drafts": 1,
    "min_gain": 0.0,
    "gain_per": "calls",
    "priors": None,
    "plain": None,
    "final_check": False,
}


def choose(typed: dict[str, Any]) -> int:
    """Choose, say how the answers stand, print the best; the exit code."""
    watch = Contest(typed["as_json"])
    try:
        result = run_sync(_chosen(typed, watch))
    except (KeyboardInterrupt, asyncio.CancelledError) as cut:
        if (best := best_so_far(cut)) is None:
            complain("interrupted before anything was graded")
            return INTERRUPTED
        result = best
    except RedraftError as error:
        if error.result is not None and not typed["response"]:
            hand_over(error.result, typed)
        if typed["as_json"]:
            lines.emit("error", **error_data(error))
        raise
    standing = standings(result.trace)
    if typed["as_json"]:
        lines.emit("ranking", answers=[_as_object(row, result.trace, typed) for row in standing])
    else:
        _tell(result, standing, watch, typed)
    hand_over(result, typed)
    return exit_code(result)


class Contest(Watch):
    """Watches a choice; that answers are there from the start is no news to anybody."""

    def begin(self, trace: Trace) -> None:
        super().begin(replace(trace, records=()))
        self.progress.trace = trace


async def _chosen(typed: Mapping[str, Any], watch: Watch) -> Result:
    asked = await _among(typed, watch) if typed["response"] else _wished(typed, Trace(new_task({**typed, "response": None})), watch)
    return await watched(asked, watch)


def _wished(typed: Mapping[str, Any], given: Trace, watch: Watch) -> Wish:
    """The best of what is given, or of so many drafts."""
    plan = BestOfN(len(given.candidates) or typed["n"] or DRAFTS, repairs=typed["editor"])
    return wish({**typed, **REPLACED}, given, plan=plan, on_record=watch.record, on_step=watch.step)


async def _among(typed: Mapping[str, Any], watch: Watch) -> Wish:
    """The answers that were given; with requirements alone nobody is asked about them. Raises UsageError."""
    names = typed["response"]
    if (typed["prompt"], *names).count("-") > 1:
        raise click.UsageError("only one of PROMPT and --response can be read from stdin")
    task = new_task({**typed, "response": None, "prompt": typed["prompt"] or NO_PROMPT})
    texts = [files.read_text(name, "--response") for name in names]
    given = Trace(task, records=tuple(Candidate(id, text) for id, text in enumerate(texts)))
    asked = _wished({**typed, "editor": False}, given, watch)
    free = bool(task.requirements) and asked.graders is None and asked.judge is None
    return replace(asked, model=False if free else await model_found(typed["model"]) or False)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an answer stands: its place from 1, and whether others share it; no place, where it was not graded."""

    candidate: Candidate
    place: int | None
    tied: bool = False


def standings(trace: Trace) -> list[Standing]:
    """The answers, best first, by what decides which is the best: musts kept, score, the widest ranking. Ties by age."""
    places = trace.comparisons[-1].ranks if trace.comparisons else {}

    def merit(c: Candidate) -> tuple[float, float, int]:
        score = trace.scores[c.id]
        return trace.must_pass_rate(c.id), -1.0 if score is None else score, -places.get(c.id, len(places))

    rows: list[Standing] = []
    for _, group in groupby(sorted(trace.graded_candidates, key=lambda c: (*(-m for m in merit(c)), c.id)), key=merit):
        equals = list(group)
        place = len(rows) + 1
        rows += [Standing(c, place, len(equals) > 1) for c in equals]
    seen = {row.candidate.id for row in rows} | trace.replaced_ids | trace.unchanged_ids
    return [*rows, *(Standing(c, None) for c in trace.candidates if c.id not in seen)]


def _named(candidate: Candidate, typed: Mapping[str, Any]) -> str:
    """What people call it: the file that it came from, or which draft it is."""
    if typed["response"]:
        return str(typed["response"][candidate.id])
    return f"{made(candidate)} {candidate.id}" if candidate.role == "generate" else f"{candidate.id} {made(candidate)}"


def _as_object(row: Standing, trace: Trace, typed: Mapping[str, Any]) -> dict[str, Any]:
    c = row.candidate
    return {
        "place": row.place,
        "tie": row.tied,
        "candidate": c.id,
        "response": typed["response"][c.id] if typed["response"] else None,
        "score": trace.scores[c.id],
        "text": c.text,
        "tool_calls": [call.as_message_part() for call in c.tool_calls],
    }


def _tell(result: Result, standing: Sequence[Standing], watch: Watch, typed: Mapping[str, Any]) -> None:
    """How the answers stand, and what it took, on stderr."""
    err, trace = console(stderr=True), result.trace
    err.print(_table(standing, trace, typed))
    for comparison in trace.comparisons:
        if comparison.reason:
            err.print(line(f"{comparison.grader}: {comparison.reason}", "dim"))
    click.echo(f"redraft: {_summary(result, standing, typed)}", err=True)
    for news in _missed(result, watch):
        click.echo(f"redraft: {' '.join(strip_control_sequences(news).split())}", err=True)
    for name in result.metadata["broken"]:
        click.echo(f"redraft: still broken: {strip_control_sequences(name)}", err=True)
    if sys.stdout.isatty() and sys.stderr.isatty() and not typed["output"]:
        click.echo(err=True)


def _missed(result: Result, watch: Watch) -> Sequence[str]:
    """What the live view does not keep, in a terminal: what failed. Elsewhere, what it all took."""
    if not sys.stderr.isatty():
        return [tally(result.usage, watch.progress.seconds)]
    return [f"failed: {failure}" for failure in dict.fromkeys(result.metadata["failures"])]


def _table(standing: Sequence[Standing], trace: Trace, typed: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=34, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in standing:
        c = row.candidate
        place = "not graded" if row.place is None else f"{row.place}{' tie' if row.tied else ''}"
        style = "bold green" if trace.best is not None and row.place and c.id == trace.best.id else ""
        score = format_score(trace.scores[c.id]) if trace.pointwise_graders else ""
        table.add_row(Text(place, style), line(_named(c, typed), style), Text(score, style), line(said(trace, c), "dim"))
    return table


def _summary(result: Result, standing: Sequence[Standing], typed: Mapping[str, Any]) -> str:
    """Which is the best of how many, who ties with it, and what came between if something did."""
    first, *others = standing
    equals = [_named(row.candidate, typed) for row in others if row.tied and row.place == first.place]
    tied = f", a tie with {', '.join(equals)}: the earliest is kept" if equals else ""
    score = f" · score {format_score(result.score)}" if result.trace.pointwise_graders else ""
    note = result.trace.outcome.note if result.trace.outcome else ""
    cut = f" · stopped: {result.stop} ({note})" if result.stop.resumable else ""
    return " ".join(strip_control_sequences(f"best of {len(standing)}: {_named(first.candidate, typed)}{tied}{score}{cut}").split())
