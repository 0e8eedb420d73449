"""Collects finished tasks from traces and journals by model and graders, for `redraft priors learn`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Self

import click
from click.core import ParameterSource

from ..core.serialize import object_from_json
from ..core.trace import Trace
from ..documents import open_regular
from ..errors import ConfigError, StoreError
from ..options import Options
from ..quality.lineage import Observations, llm_graders, observe
from ..session import Session, scoring_graders
from ..storage import Journal, RunInfo, read_trace
from ..storage.priors_store import PriorsKey
from ..storage.trace_file import read_bounded_lines
from .config import ConfiguredCommand
from .request import find_model, load_graders, parse_model, settings_from_trace

PAIR_SETTINGS = ("model", "judge", "grader", "rubric")  # the options that name a model and its graders
SQLITE_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True, kw_only=True)
class GradingNames:
    """A model and its graders, as options or a trace name them. `rubric` is a file, or the rubric of a trace."""

    model: str | None
    judge: str | None
    grader: tuple[str, ...]
    rubric: Any

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        return cls(model=values["model"], judge=values["judge"], grader=tuple(values["grader"]), rubric=values["rubric"])


@dataclass
class Examples:
    """The finished tasks of one model and its graders, and the files that they come from."""

    tasks: list[Observations] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def sample(self, limit: int) -> list[Observations]:
        """Return at most `limit` tasks, evenly chosen."""
        count = len(self.tasks)
        return [self.tasks[i * count // limit] for i in range(limit)] if count > limit else self.tasks


@dataclass
class TrainingData:
    """Finished tasks by model and graders. `left_out` counts the traces that cannot be used, by reason."""

    ctx: click.Context
    names: GradingNames
    run: str | None
    limit: int
    by_key: defaultdict[PriorsKey, Examples] = field(default_factory=lambda: defaultdict(Examples))
    left_out: Counter[str] = field(default_factory=Counter)
    _keys: dict[str, PriorsKey | None] = field(default_factory=dict)

    def read(self, name: str) -> None:
        """Read a trace, the traces that were exported from a run, or a journal. Raises StoreError, ConfigError."""
        with _open(name) as file:
            head = file.readline(1 << 24)
        if head.startswith(SQLITE_HEADER):
            self._read_journal(name)
        elif b'"trace"' in head and _is_export(head):
            self._add(self._named_key(None, name), _exported_traces(name), name)
        else:
            trace = read_trace(name)
            self._add(self._named_key(trace, name), [trace], name)

    def _read_journal(self, name: str) -> None:
        with Journal(name, read_only=True) as journal:
            runs = [note for note in journal.runs() if self.run in {None, note.name}]
            if not runs:
                raise ConfigError(f"--run: {name} has no run {self.run!r}")
            for note in runs:
                stride = max(1, note.counts.get("done", 0) // self.limit)
                traces = (trace for row, trace in journal.traces(note.name) if row.status == "done")
                self._add(self._key_of_run(note, name), islice(traces, 0, None, stride), f"run {note.name} in {Path(name).name}")

    def _add(self, key: PriorsKey | None, traces: Iterable[Trace], source: str) -> None:
        for trace in traces:
            if reason := "with a judge that cannot be identified, or none" if key is None else exclusion_reason(trace, key):
                self.left_out[reason] += 1
            elif key:
                self.by_key[key].tasks.append(observe(trace))
                self.by_key[key].sources.append(source)

    def _key_of_run(self, note: RunInfo, name: str) -> PriorsKey | None:
        """Return the model and graders in the note of a run, unless options name others."""
        data = note.metadata.get("pair")
        is_named = any(self.ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE for option in PAIR_SETTINGS)
        if data is None or is_named:
            return self._named_key(None, name)
        try:
            return PriorsKey.from_data(data)
        except ValueError as error:
            raise StoreError(f"{name}: run {note.name!r}: {error}") from error

    def _named_key(self, trace: Trace | None, where: str) -> PriorsKey | None:
        """Return the model and graders that options name, completed from the trace. Raises ConfigError."""
        assert isinstance(self.ctx.command, ConfiguredCommand)
        names = self.names
        if trace:
            values = settings_from_trace(self.ctx, vars(names), self.ctx.command.settings, trace, where)
            names = GradingNames.from_values(values)
        if repr(names) not in self._keys:  # a rubric cannot be hashed
            self._keys[repr(names)] = asyncio.run(_find_key(names, where))
        return self._keys[repr(names)]


async def _find_key(names: GradingNames, where: str) -> PriorsKey | None:
    writer = await find_model(names.model)
    if writer is None:
        raise ConfigError(f"{where} does not name the model that wrote: name it with --model")
    session = Session(Options(), writer, load_graders(names.grader, names.rubric), parse_model(names.judge) or None)
    try:
        return session.priors_key
    finally:
        await session.close()


def exclusion_reason(trace: Trace, key: PriorsKey) -> str:
    """Return why a trace cannot be used for a model and its graders; "" if it can."""
    writers = {c.by for c in trace.candidates if c.role in {"generate", "refine"}} - {key.model}
    graders = {seat.name for seat in scoring_graders(trace.panel)}
    if not llm_graders(trace.scorers) or not trace.graded_candidates:
        return "that no model graded"
    if writers:
        return f"written by {', '.join(sorted(writers))}, not {key.model}: name it with --model"
    if graders != set(key.graders):
        return f"graded by {', '.join(sorted(graders))}, not {', '.join(key.graders)}: name them with --grader or --rubric"
    return ""


def _open(name: str) -> BufferedReader:
    try:
        return BufferedReader(open_regular(name))
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {error.strerror}") from error


def _is_export(line: bytes) -> bool:
    with suppress(StoreError):
        return "trace" in object_from_json(line.decode("utf-8", "replace"))
    return False


def _exported_traces(name: str) -> Iterator[Trace]:
    """Yield the finished traces that `redraft runs export` wrote. Raises StoreError."""
    with _open(name) as file:
        for n, text in enumerate(read_bounded_lines(file, name), 1):
            try:
                row = object_from_json(text)
                if row.get("status") == "done":
                    yield Trace.from_json(json.dumps(row.get("trace")))
            except StoreError as error:
                raise StoreError(f"{name}, line {n}: {error}") from error
