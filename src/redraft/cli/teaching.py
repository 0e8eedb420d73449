"""The work behind `redraft priors learn`: find finished work, see whose it is, learn, keep."""

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
from typing import Any

import click
from click.core import ParameterSource

from ..core.serialize import object_from_json
from ..core.trace import Trace
from ..errors import ConfigError, StoreError
from ..options import Options
from ..quality.fit import fit_priors
from ..quality.lineage import Observations, llm_graders, observe
from ..quality.priors import Priors
from ..session import Session, scoring_graders
from ..storage import Journal, RunInfo, read_trace
from ..storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from ..storage.secure_files import open_regular
from ..storage.trace_file import read_bounded_lines
from .batchview import counted, say
from .believed import draw
from .config import Configured
from .exits import FAILED, OK, complain
from .wishes import chosen_graders, model_found, model_named, recalled

JOURNAL = b"SQLite format 3\0"
WHOSE = ("model", "judge", "grader", "rubric")  # the options that say it
LEAST = 8  # tasks that teach anything
NAMED = 3  # files that are named in what is kept


def learn(ctx: click.Context, typed: Mapping[str, Any]) -> int:
    """Learn from all that was named; the exit code."""
    lessons = Lessons(ctx, typed)
    for name in typed["traces"]:
        lessons.read(name)
    for why, count in lessons.left_out.items():
        complain(f"left out: {counted(count, 'trace')} {why}")
    tried = [_kept(pair, held, typed["limit"], replace=typed["replace"]) for pair, held in lessons.held.items()]
    kept = [one for one in tried if one]
    if typed["as_json"]:
        click.echo(json.dumps([one.as_data() for one in kept], indent=2))
    elif kept:
        draw(kept)
    if not tried:
        complain("there is nothing to learn from: no answers that a model wrote and a model graded")
    return OK if kept and len(kept) == len(tried) else FAILED


def _kept(pair: PriorsKey, lesson: Lesson, limit: int, *, replace: bool) -> StoredPriors | None:
    """What a pair's work teaches, kept; None where that is too little, or less than what is kept already."""
    shelf = PriorsStore.in_folder()
    before = shelf.load(pair)
    whose = f"{pair.model} with {', '.join(pair.graders)}"
    names = list(dict.fromkeys(lesson.sources))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    kept = StoredPriors.create(pair, fit_priors(evenly(lesson.families, limit), Priors()), f"{', '.join(names[:NAMED])}{more}")
    tasks = counted(kept.priors.tasks, "task")
    if kept.priors.tasks < LEAST:
        complain(f"{whose}: {tasks} taught too little; it takes {LEAST}")
        return None
    if before and before.priors.tasks > kept.priors.tasks and not replace:
        complain(
            f"{whose}: these are {tasks}; what is kept was learned from {before.priors.tasks:,}",
            "--replace puts these in its place",
        )
        return None
    path = shelf.save(kept)
    instead = f", instead of what {counted(before.priors.tasks, 'task')} taught" if before else ""
    say(f"{whose}: learned from {tasks}{instead}; kept in {path}")
    return kept


def evenly(held: list[Observations], limit: int) -> list[Observations]:
    """At most so many, evenly chosen."""
    return [held[i * len(held) // limit] for i in range(limit)] if len(held) > limit else held


@dataclass
class Lesson:
    """What there is to learn of one pair, and where it was found."""

    families: list[Observations] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


@dataclass
class Lessons:
    """Finished work, by whose it is. `left_out`: why traces teach nothing, and how many."""

    ctx: click.Context
    typed: Mapping[str, Any]
    held: defaultdict[PriorsKey, Lesson] = field(default_factory=lambda: defaultdict(Lesson))
    left_out: Counter[str] = field(default_factory=Counter)
    _pairs: dict[str, PriorsKey | None] = field(default_factory=dict)

    def read(self, name: str) -> None:
        """Take in a trace, the traces that were exported from a run, or a journal. Raises StoreError, ConfigError."""
        with _opened(name) as file:
            head = file.readline(1 << 24)
        if head.startswith(JOURNAL):
            self._journal(name)
        elif b'"trace"' in head and _is_exported(head):
            self._take(self._told(None, name), _exported(name), name)
        else:
            trace = read_trace(name)
            self._take(self._told(trace, name), [trace], name)

    def _journal(self, name: str) -> None:
        with Journal(name, read_only=True) as journal:
            runs = [note for note in journal.runs() if self.typed["run"] in {None, note.name}]
            if not runs:
                raise ConfigError(f"--run: {name} has no run {self.typed['run']!r}")
            for note in runs:
                stride = max(1, note.counts.get("done", 0) // self.typed["limit"])
                traces = (trace for row, trace in journal.traces(note.name) if row.status == "done")
                self._take(self._noted(note, name), islice(traces, 0, None, stride), f"run {note.name} in {Path(name).name}")

    def _take(self, pair: PriorsKey | None, traces: Iterable[Trace], source: str) -> None:
        for trace in traces:
            if why := "with a judge that could not be known again, or none" if pair is None else unfit(trace, pair):
                self.left_out[why] += 1
            elif pair:
                self.held[pair].families.append(observe(trace))
                self.held[pair].sources.append(source)

    def _noted(self, note: RunInfo, name: str) -> PriorsKey | None:
        """The pair that a run is of, as it noted it, unless another was typed."""
        noted = note.metadata.get("pair")
        if noted is None or self._typed_here:
            return self._told(None, name)
        try:
            return PriorsKey.from_data(noted)
        except ValueError as error:
            raise StoreError(f"{name}: run {note.name!r}: {error}") from error

    @property
    def _typed_here(self) -> bool:
        return any(self.ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in WHOSE)

    def _told(self, trace: Trace | None, name: str) -> PriorsKey | None:
        """The pair that was typed, completed by what a trace says. Raises ConfigError."""
        assert isinstance(self.ctx.command, Configured)
        typed = recalled(self.ctx, self.typed, self.ctx.command.settings, trace, name) if trace else self.typed
        told = repr([typed[name] for name in WHOSE])
        if told not in self._pairs:
            self._pairs[told] = asyncio.run(_pair(typed, name))
        return self._pairs[told]


async def _pair(typed: Mapping[str, Any], name: str) -> PriorsKey | None:
    writer = await model_found(typed["model"])
    if writer is None:
        raise ConfigError(f"{name} does not say which model wrote: name it with --model")
    desk = Session(Options(), writer, chosen_graders(typed), model_named(typed["judge"]) or None)
    try:
        return desk.priors_key
    finally:
        await desk.close()


def unfit(trace: Trace, pair: PriorsKey) -> str:
    """Why a trace says nothing of a pair; empty where it does."""
    writers = {c.by for c in trace.candidates if c.role in {"generate", "refine"}} - {pair.model}
    graders = {seat.name for seat in scoring_graders(trace.panel)}
    if not llm_graders(trace.scorers) or not trace.graded_candidates:
        return "that no model graded"
    if writers:
        return f"written by {', '.join(sorted(writers))}, not {pair.model}: name it with --model"
    if graders != set(pair.graders):
        return f"graded by {', '.join(sorted(graders))}, not {', '.join(pair.graders)}: name them with --grader or --rubric"
    return ""


def _opened(name: str) -> BufferedReader:
    try:
        return BufferedReader(open_regular(name))
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {error.strerror}") from error


def _is_exported(line: bytes) -> bool:
    with suppress(StoreError):
        return "trace" in object_from_json(line.decode("utf-8", "replace"))
    return False


def _exported(name: str) -> Iterator[Trace]:
    """The traces that `redraft runs export` wrote. Raises StoreError."""
    with _opened(name) as file:
        for n, text in enumerate(read_bounded_lines(file, name), 1):
            try:
                row = object_from_json(text)
                if row.get("status") == "done":
                    yield Trace.from_json(json.dumps(row.get("trace")))
            except StoreError as error:
                raise StoreError(f"{name}, line {n}: {error}") from error
