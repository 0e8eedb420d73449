"""What happens, line by line: in plain words on stderr, or as JSON on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..core.records import Failure, Record
from ..core.serialize import record_to_json
from ..core.steps import Step, Stop
from ..core.trace import Trace
from ..quality.diagnosis import selection_reason
from ..result import Result, format_score_history, format_score_with_interval
from ..text import strip_control_sequences
from .progress import Progress, doing, made, rows


class PlainLines:
    """For logs and for terminals that cannot redraw."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told: set[int] = set()

    def begin(self, trace: Trace) -> None:
        if len(trace.records) > (trace.task.response is not None):
            _line(f"going on after {len(trace.records)} records: {len(trace.candidates)} answers, {trace.usage.calls} calls")
        self._told = {c.id for c in trace.candidates if trace.scores[c.id] is not None}

    def step(self, step: Step) -> None:
        if not isinstance(step, Stop):
            _line(f"{doing(step)} ...")

    def record(self, record: Record) -> None:
        if isinstance(record, Failure):
            _line(f"failed: {record.role}: {record.message}")
        self._scored()

    def _scored(self) -> None:
        trace = self._progress.trace
        assert trace is not None
        for candidate, score, remark in rows(trace):
            if score and candidate.id not in self._told:
                self._told.add(candidate.id)
                _line(" · ".join(filter(None, [f"{candidate.id} {made(candidate)}", f"score {score}", remark])))

    def end(self) -> None:
        pass


def _line(text: str) -> None:
    print(f"redraft: {' '.join(strip_control_sequences(text).split())}", file=sys.stderr, flush=True)  # noqa: T201


class JsonLines:
    """One object a line on stdout, for programs: start, priors (where they were learned), step, record, result, error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, trace: Trace) -> None:
        emit("start", records=len(trace.records), panel=[s.name for s in trace.panel])

    def step(self, step: Step) -> None:
        if not isinstance(step, Stop):
            emit("step", step=step.role, slot=step.slot, doing=doing(step))

    def record(self, record: Record) -> None:
        trace = self._progress.trace
        assert trace is not None
        best = trace.best if trace.graded_candidates else None
        score, observed = (trace.score, trace.judge_score) if trace.graded_candidates else (None, None)
        emit(
            "record",
            record=json.loads(record_to_json(record)),
            best=best.id if best else None,
            score=score,
            observed=observed,
            calls=trace.usage.calls,
        )

    def end(self) -> None:
        pass


def emit(event: str, **fields: Any) -> None:
    """One JSON line, out at once."""
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201


def closing(result: Result) -> str:
    """In one line: how good it is, why the work ended, and why another answer was not kept that scored higher."""
    scores = format_score_history(result, " → ")
    note = " ".join(strip_control_sequences(result.trace.outcome.note).split()) if result.trace.outcome else ""
    why = f"stopped: {result.stop}" + (f" ({note})" if note else "")
    told, kept = "→" in scores or result.score_interval, selection_reason(result.trace)
    return (
        f"score {format_score_with_interval(result)}"
        + (f" ({scores})" if told else "")
        + f" · {why}"
        + (f" · {kept}" if kept else "")
    )
