"""Shows, learns and deletes saved priors. They are learned from the finished tasks in traces and
journals.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Self

import click
from click.core import ParameterSource

from ...base.documents import open_regular
from ...base.text import pluralize
from ...errors import ConfigError, StoreError
from ...loop.serialize import object_from_json
from ...loop.trace import Trace
from ...plans.quality.fit import fit_priors, lift
from ...plans.quality.lineage import Observations, llm_graders, observe
from ...plans.quality.priors import Priors
from ...session.models import Models
from ...session.options import Options
from ...session.panel import graders_of_run
from ...session.session import Session, scoring_graders
from ...storage import Journal, RunInfo, read_trace
from ...storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from ...storage.trace_file import read_bounded_lines
from ..command_classes import ConfiguredCommand
from ..errors import FAILED, OK
from ..output import format_time, notice, warning
from ..request import (
    find_model,
    load_graders,
    parameter_settings,
    parse_model,
    settings_from_trace,
)
from ..terminal import console, plain_table, text_line

SHIPPED = "shipped"
KEY_DIGITS = 8  # of a key in the list
MIN_TASKS = 8  # priors of fewer tasks are not saved
MAX_SOURCES = 3  # files that are named in saved priors
PAIR_SETTINGS = (
    "model",
    "judge",
    "model_param",
    "judge_param",
    "grader",
    "rubric",
)  # the options that name a model and its graders
SQLITE_HEADER = b"SQLite format 3\0"
MEANINGS = (  # of the fields of Priors, in order
    "the mean quality of first drafts",
    "how much that differs between tasks (every _sd is a standard deviation)",
    "how much drafts of one task differ",
    "a refinement turns a quality q into gain + retention x q",
    "how much the gain differs between tasks",
    "how much of one text's advantage over another remains when both are refined",
    "how much refinements of one text differ",
    "how much repeated scores of one text by one judge differ",
    "the lasting bias of a judge for or against a text, beyond its quality",
    "the share of that bias which a refined text inherits",
    "how much more a judge favours a text for having been refined",
    "the finished tasks that these were learned from",
)


def show_all(*, as_json: bool) -> None:
    """Print a line for each model with its graders, and the shipped priors."""
    entries = list(PriorsStore.in_folder().entries())
    saved = [entry for _, entry in entries if isinstance(entry, StoredPriors)]
    damaged = {
        str(path): str(entry) for path, entry in entries if not isinstance(entry, StoredPriors)
    }
    if as_json:
        data = {
            "shipped": Priors().to_dict(),
            "saved": [each.as_data() for each in saved],
            "damaged": damaged,
        }
        click.echo(json.dumps(data, indent=2))
        return
    for message in damaged.values():
        warning(
            message, "it is not used; `redraft priors forget` with the name of the file deletes it"
        )
    print_table(saved)
    if not saved:
        notice(
            "no priors are saved yet: `redraft priors learn` learns them from traces and journals"
        )


def print_table(saved: Iterable[StoredPriors]) -> None:
    """Print saved priors, a line each, and the shipped ones."""
    table = plain_table()
    for name in ("key", "model", "graders"):
        table.add_column(name, overflow="fold")
    for name in ("tasks", "drafts", "lift", "noise", "bias"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("learned", no_wrap=True)
    for each in saved:
        key = each.priors_key
        head = (
            text_line(key.key[:KEY_DIGITS]),
            text_line(key.model),
            text_line(", ".join(key.graders)),
        )
        table.add_row(*head, *_cells(each.priors), format_time(each.created_at))
    table.add_row(SHIPPED, "any", "any", *_cells(Priors()), "", style="dim")
    console(stderr=False).print(table)


def _cells(priors: Priors) -> list[str]:
    tasks = f"{priors.tasks:,}" if priors.tasks else ""
    return [
        tasks,
        f"{priors.draft_mean:.2f}",
        f"{lift(priors):+.2f}",
        f"{priors.noise_sd:.2f}",
        f"{priors.bias_sd:.2f}",
    ]


def show_one(name: str, *, as_json: bool) -> None:
    """Print all values for a model and its graders beside the shipped ones. Raises ConfigError or
    StoreError.
    """
    saved = None if name == SHIPPED else _find(name)[1]
    if isinstance(saved, StoreError):
        raise saved
    if as_json:
        click.echo(json.dumps(saved.as_data() if saved else Priors().to_dict(), indent=2))
        return
    out = console(stderr=False)
    if saved:
        out.print(
            text_line(
                f"{saved.priors_key.model} with {', '.join(saved.priors_key.graders)}", "bold"
            )
        )
        out.print(
            text_line(
                f"key {saved.priors_key.key}, learned {format_time(saved.created_at)} from "
                f"{saved.source}",
                "dim",
            )
        )
    table = plain_table()
    table.add_column("")
    for column in ["learned", SHIPPED] if saved else [SHIPPED]:
        table.add_column(column, justify="right")
    table.add_column("meaning")
    for f, meaning in zip(fields(Priors), MEANINGS, strict=True):
        values = [
            getattr(each, f.name) for each in ([saved.priors, Priors()] if saved else [Priors()])
        ]
        cells = [f"{value:,}" if isinstance(value, int) else f"{value:.3f}" for value in values]
        table.add_row(f.name, *cells, meaning)
    out.print(table)


def delete(name: str, *, as_json: bool) -> None:
    """Delete the priors of a model and its graders, or a file that cannot be read. Raises
    ConfigError.
    """
    if name == SHIPPED:
        raise ConfigError("the shipped priors cannot be deleted")
    path, entry = _find(name)
    PriorsStore.in_folder().delete(path)
    if as_json:
        click.echo(json.dumps({"deleted": str(path)}))
    elif isinstance(entry, StoredPriors):
        notice(
            f"deleted {entry.priors_key.model} with {', '.join(entry.priors_key.graders)} "
            f"({pluralize(entry.priors.tasks, 'task')})"
        )
    else:
        notice(f"deleted {path}")


def _find(name: str) -> tuple[Path, StoredPriors | StoreError]:
    """Find the priors with that model, key, start of a key, or file name. Raises ConfigError unless
    there is exactly one.
    """

    def matches(path: Path, entry: StoredPriors | StoreError) -> bool:
        if path.stem.startswith(name) or path.name == Path(name).name:
            return True
        return isinstance(entry, StoredPriors) and entry.priors_key.model == name

    entries = list(PriorsStore.in_folder().entries())
    matching = [(path, entry) for path, entry in entries if name and matches(path, entry)]
    if len(matching) == 1:
        return matching[0]
    keys = ", ".join(
        f"{path.stem}{'' if isinstance(entry, StoredPriors) else ' (cannot be read)'}"
        for path, entry in matching or entries
    )
    if matching:
        raise ConfigError(
            f"{name!r} matches {len(matching)} saved priors: name one by its key: {keys}"
        )
    existing = f"there is {f'{keys}, and ' if keys else 'only '}{SHIPPED}"
    raise ConfigError(
        f"no priors are saved for {name!r}; {existing} (`redraft priors` lists them; `redraft "
        "priors learn` adds more)"
    )


def learn_priors(data: TrainingData, traces: Iterable[str], *, replace: bool, as_json: bool) -> int:
    """Learn priors from trace files and journals, save and show them, and return the exit code."""
    for name in traces:
        data.read(name)
    for reason, count in data.left_out.items():
        warning(f"left out: {pluralize(count, 'trace')} {reason}")
    saved = [
        entry
        for key, examples in data.by_key.items()
        if (entry := _learn_priors(key, examples, data.limit, replace=replace))
    ]
    if as_json:
        click.echo(json.dumps([each.as_data() for each in saved], indent=2))
    elif saved:
        print_table(saved)
    if not data.by_key:
        warning("there is nothing to learn from: no answers that a model wrote and a model graded")
    return OK if saved and len(saved) == len(data.by_key) else FAILED


def _learn_priors(
    key: PriorsKey, examples: Examples, limit: int, *, replace: bool
) -> StoredPriors | None:
    """Learn and save the priors of one model and its graders; None, with a warning that says why,
    if they are not saved.
    """
    store, label = PriorsStore.in_folder(), f"{key.model} with {', '.join(key.graders)}"
    sources = list(dict.fromkeys(examples.sources))
    more = f" and {len(sources) - MAX_SOURCES} more" if len(sources) > MAX_SOURCES else ""
    priors = fit_priors(examples.sample(limit), Priors())
    before, after = (
        store.load(key),
        StoredPriors.create(key, priors, f"{', '.join(sources[:MAX_SOURCES])}{more}"),
    )
    tasks = pluralize(priors.tasks, "task")
    if priors.tasks < MIN_TASKS:
        warning(f"{label}: {tasks} of at least {MIN_TASKS} that are needed")
        return None
    if before and before.priors.tasks > priors.tasks and not replace:
        message = (
            f"{label}: these are {tasks}; the saved priors were learned from "
            f"{before.priors.tasks:,}"
        )
        warning(message, "--replace replaces them")
        return None
    path = store.save(after)
    instead = f", replacing priors from {pluralize(before.priors.tasks, 'task')}" if before else ""
    notice(f"{label}: learned from {tasks}{instead}; saved in {path}")
    return after


@dataclass(frozen=True, kw_only=True)
class GradingNames:
    """A model and its graders, as options or a trace name them. `rubric` is a file, or the rubric
    of a trace.
    """

    model: str | None
    judge: str | None
    grader: tuple[str, ...]
    rubric: Any
    model_param: Mapping[str, Any] | None
    judge_param: Mapping[str, Any] | None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        named: dict[str, Any] = {field.name: values[field.name] for field in fields(cls)}
        return cls(**{**named, "grader": tuple(values["grader"])})


@dataclass
class Examples:
    """The finished tasks of one model and its graders, and the files that they come from."""

    tasks: list[Observations] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def sample(self, limit: int) -> list[Observations]:
        """Return at most `limit` tasks, evenly chosen."""
        count = len(self.tasks)
        return (
            [self.tasks[i * count // limit] for i in range(limit)] if count > limit else self.tasks
        )


@dataclass
class TrainingData:
    """Finished tasks by model and graders. `left_out` counts the traces that cannot be used, by
    reason.
    """

    ctx: click.Context
    names: GradingNames
    run: str | None
    limit: int
    by_key: defaultdict[PriorsKey, Examples] = field(default_factory=lambda: defaultdict(Examples))
    left_out: Counter[str] = field(default_factory=Counter)
    _keys: dict[str, PriorsKey | None] = field(default_factory=dict)

    def read(self, name: str) -> None:
        """Read a trace, the traces that were exported from a run, or a journal. Raises StoreError,
        ConfigError.
        """
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
            runs = [run for run in journal.runs() if self.run in {None, run.name, run.display_name}]
            if not runs:
                raise ConfigError(f"--run: {name} has no run {self.run!r}")
            for run in runs:
                stride = max(1, run.counts.get("done", 0) // self.limit)
                traces = (trace for row, trace in journal.traces(run.name) if row.status == "done")
                source = f"run {run.display_name} in {Path(name).name}"
                self._add(self._key_of_run(run, name), islice(traces, 0, None, stride), source)

    def _add(self, key: PriorsKey | None, traces: Iterable[Trace], source: str) -> None:
        for trace in traces:
            if (
                reason := "with a judge that cannot be identified, or none"
                if key is None
                else exclusion_reason(trace, key)
            ):
                self.left_out[reason] += 1
            elif key:
                self.by_key[key].tasks.append(observe(trace))
                self.by_key[key].sources.append(source)

    def _key_of_run(self, run: RunInfo, name: str) -> PriorsKey | None:
        """Return the model and graders that a run records, unless options name others."""
        data = run.metadata.get("priors_key")
        is_named = any(
            self.ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE
            for option in PAIR_SETTINGS
        )
        if data is None or is_named:
            return self._named_key(None, name)
        try:
            return PriorsKey.from_data(data)
        except StoreError as error:
            raise StoreError(f"{name}: run {run.display_name!r}: {error}") from error

    def _named_key(self, trace: Trace | None, where: str) -> PriorsKey | None:
        """Return the model and graders that options name, completed from the trace. Raises
        ConfigError.
        """
        assert isinstance(self.ctx.command, ConfiguredCommand)
        names = self.names
        if trace:
            values = settings_from_trace(
                self.ctx, vars(names), self.ctx.command.settings, trace, where
            )
            names = GradingNames.from_values(values)
        if repr(names) not in self._keys:  # a rubric cannot be hashed
            self._keys[repr(names)] = asyncio.run(_find_key(names, where))
        return self._keys[repr(names)]


async def _find_key(names: GradingNames, where: str) -> PriorsKey | None:
    writer = await find_model(names.model)
    if writer is None:
        raise ConfigError(f"{where} does not name the model that wrote: name it with --model")
    judge = parse_model(names.judge)
    graders = graders_of_run(load_graders(names.grader, names.rubric), judge, None)
    options = Options.from_settings(parameter_settings(vars(names)))
    async with Session(options, Models(options, writer, judge or None), graders) as session:
        return session.knowledge.priors_key


def exclusion_reason(trace: Trace, key: PriorsKey) -> str:
    """Return why a trace cannot be used for a model and its graders; "" if it can."""
    writers = {c.by for c in trace.candidates if c.role in {"generate", "refine"}} - {
        key.model,
        *key.model.split(", "),
    }
    graders = {grader.name for grader in scoring_graders(trace.panel)}
    if not llm_graders(trace.scorers) or not trace.graded_candidates:
        return "that no model graded"
    if writers:
        return f"written by {', '.join(sorted(writers))}, not {key.model}: name it with --model"
    if graders != set(key.graders):
        return (
            f"graded by {', '.join(sorted(graders))}, not {', '.join(key.graders)}: name them "
            "with --grader or --rubric"
        )
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
