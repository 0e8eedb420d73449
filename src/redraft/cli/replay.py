"""A saved trace for people and for programs."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..core.records import Candidate
from ..core.serialize import pack, record_to_json
from ..core.trace import Trace
from ..result import Result, diagnosis_text, format_score
from ..text import strip_control_sequences
from .lines import closing
from .live import console as text_console
from .live import line
from .progress import tally
from .story import Teller


def as_data(trace: Trace) -> str:
    """The trace as one JSON object: the result, and what led to it."""
    answers = [_answer(trace, c) for c in trace.candidates]
    head = {"task": pack(trace.task), "panel": [pack(s) for s in trace.panel], "settings": dict(trace.settings)}
    ended = trace.outcome is not None
    return json.dumps({**head, "ended": ended, **Result(trace).to_dict(), "candidates": answers}, indent=2, default=list)


def _answer(trace: Trace, candidate: Candidate) -> dict[str, Any]:
    feedback = [_record(f) for f in trace.feedback[candidate.id]]
    return {**_record(candidate), "id": candidate.id, "score": trace.scores[candidate.id], "feedback": feedback}


def _record(record: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(record_to_json(record))
    data.pop("kind")
    return data


def tell(trace: Trace, *, full: bool) -> None:
    """All of it, oldest first."""
    out = text_console(stderr=False)
    teller = Teller(out, full=full)
    out.print(Text("Task", "bold"))
    out.print(Padding(teller.excerpt(trace.task.prompt), (0, 0, 0, 3)))
    for candidate in trace.candidates:
        if trace.is_unchanged(candidate):
            out.print()
            note = candidate.note or "nothing was changed"
            out.print(line(f" {candidate.id} · {candidate.by} on {candidate.parent}: {note}", "dim"))
        else:
            teller.answer(trace, candidate)
    _failures(out, trace)
    out.print()
    _ending(out, trace)


def _failures(out: Console, trace: Trace) -> None:
    for failure in sorted(trace.failures.values(), key=lambda f: str(f.step_slot)):
        out.print()
        out.print(line(f" failed: {failure.role}: {failure.message}", "red"))


def _ending(out: Console, trace: Trace) -> None:
    result = Result(trace)
    if trace.outcome:
        out.print(line(closing(result), "bold"))
        if remark := diagnosis_text(result):
            out.print(line(remark))
    else:
        out.print(line(f"score {format_score(result.score)} · not finished: go on with redraft run --resume", "bold yellow"))
    table = Table.grid(padding=(0, 3, 0, 0))
    for (role, by), usage in trace.usage_by.items():
        table.add_row(Text(strip_control_sequences(role)), line(by), Text(tally(usage), "dim"))
    table.add_row(Text("all"), Text(""), Text(tally(trace.usage), "dim"))
    out.print(table)
