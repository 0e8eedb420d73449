"""`redraft priors`: what Redraft expects of a model and its graders. `learn` takes it from the
finished tasks in traces and journals, `calibrate` from calls that it makes.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, cast

import click
from click.core import ParameterSource

from ...base.documents import open_regular
from ...base.sync import run_sync
from ...base.text import pluralize
from ...errors import ConfigError, StoreError
from ...loop.serialize import object_from_json
from ...loop.task import Task
from ...loop.trace import Trace
from ...plans.quality.fit import fit_priors, lift
from ...plans.quality.lineage import Observations, llm_graders, observe
from ...plans.quality.priors import Priors
from ...runs import learning
from ...runs.config import columns_of
from ...runs.dataset import open_dataset
from ...session.models import Models
from ...session.options import Options
from ...session.panel import graders_of_run
from ...session.session import Session, scoring_graders
from ...settings import CalibrationSettings, OptionFields
from ...storage.journal import Journal, RunInfo
from ...storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from ...storage.trace_file import read_bounded_lines, read_trace
from ...tables.readers import BadRow
from ...tables.sources import open_source
from .. import options
from ..command_classes import ConfiguredCommand, DefaultGroup
from ..exit_codes import FAILED, OK
from ..options import SettingOption
from ..output import format_time, notice, print_json, warning
from ..request import (
    find_model,
    load_graders,
    parameter_settings,
    parse_model,
    settings_from_trace,
    values_of,
)
from ..terminal import console, figure_table, text_line

SHIPPED = "shipped"
KEY_DIGITS = 8  # of a key in the list
MIN_TASKS = 8  # priors of fewer tasks are not saved
MAX_SOURCES = 3  # files that are named in saved priors
MAX_LISTED = 3  # unusable rows that are listed one by one
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

EPILOG = """\b
Examples:
  redraft priors
  redraft priors show tiny
  redraft run "Explain it" --plan plan.toml
  redraft priors show tiny --json > tiny.json
  redraft priors calibrate questions.jsonl --calls 100 --save
  redraft priors learn answers.jsonl.journal
  redraft priors learn proof.jsonl poem.jsonl --model ollama:llama3.2 --judge openai:gpt-4o
  redraft priors forget 3f9a04c1

\b
If a model judges, Redraft estimates how much each step may gain. The estimate depends on
how good drafts are, how much refinements improve them, and how noisy the judge's scores
are; priors are what it assumes at the start. Every run starts with the shipped priors.
Later rows of a batch start with priors learned from earlier ones. They are saved for other
runs by `redraft priors learn` and `calibrate --save`, and by batches with learned priors;
runs with learned priors start with those. They are chosen in the plan file of --plan, as
priors = "learned" or priors = "tiny.json". The more scores a task has, the less its priors
count.
"""

LEARN_EPILOG = """\b
Examples:
  redraft priors learn answers.jsonl.journal
  redraft priors learn answers.jsonl.journal --run answers.jsonl --limit 256
  redraft priors learn traces/*.jsonl
  redraft priors learn old.jsonl --model ollama:llama3.2 --grader helpfulness

\b
Journals and the traces of `redraft run` contain their model and graders. For others
(traces of `redraft runs export`) give them as for `redraft run`; options take
precedence. Answers of other models and scores of other graders are left out.
Exit codes: 0 learned and saved, 1 too few tasks, or the saved priors are from more tasks, 2 usage.
"""

CALIBRATE_EPILOG = """\b
Examples:
  redraft priors calibrate questions.jsonl --calls 100
  redraft priors calibrate questions.jsonl --model ollama:llama3.2 --judge openai:gpt-4o --save
  redraft priors calibrate questions.csv -c prompt=question --grader helpfulness --json

\b
Each task takes five calls with one judge: a draft, two grades, a refinement
and its grade. 20 tasks tell the noise of the judge within about 15%. With --save, runs of the same model
and graders with learned priors start with the result.
Exit codes: 0 calibrated, 1 failed, 2 usage, 130 interrupted.
"""  # noqa: E501


llm_grader = options.setting(
    "--grader",
    type=options.GRADER,
    multiple=True,
    metavar="NAME",
    help="The grader (repeatable).",
)


@click.group(cls=DefaultGroup, default="list", epilog=EPILOG)
def priors() -> None:
    """Show, learn or delete priors for a model and its graders. Priors are what Redraft expects
    before any score is known.
    """


@priors.command("list")
@options.as_json
@options.debug
def list_(as_json: bool) -> None:
    """List the saved priors and the shipped ones. `redraft priors` alone does the same."""
    entries = list(PriorsStore.in_folder().entries())
    saved = [entry for _, entry in entries if isinstance(entry, StoredPriors)]
    damaged = {str(path): str(entry) for path, entry in entries if isinstance(entry, StoreError)}
    if as_json:
        shown = [each.as_data() for each in saved]
        print_json({"shipped": Priors().to_dict(), "saved": shown, "damaged": damaged})
        return
    for message in damaged.values():
        warning(
            message, "it is not used; `redraft priors forget` with the name of the file deletes it"
        )
    _print_table(saved)
    if not saved:
        notice(
            "no priors are saved yet: `redraft priors learn` learns them from traces and journals"
        )


@priors.command()
@click.argument("model_or_key", metavar="MODEL|KEY")
@options.as_json
@options.debug
def show(model_or_key: str, as_json: bool) -> None:
    """Show all values for a MODEL with its graders, and what each means. The start of its KEY, or
    "shipped", works as well.
    """
    saved = None if model_or_key == SHIPPED else _find(model_or_key)[1]
    if isinstance(saved, StoreError):
        raise saved
    if as_json:
        print_json(saved.as_data() if saved else Priors().to_dict())
        return
    out, columns = console(stderr=False), {SHIPPED: Priors()}
    if saved:
        out.print(text_line(_name_of(saved.priors_key), "bold"))
        about = f"learned {format_time(saved.created_at)} from {saved.source}"
        out.print(text_line(f"key {saved.priors_key.key}, {about}", "dim"))
        columns = {"learned": saved.priors, **columns}
    values = [each.to_dict() for each in columns.values()]
    rows = (
        (
            name,
            *(f"{each[name]:,}" if name == "tasks" else f"{each[name]:.3f}" for each in values),
            about,
        )
        for name, about in zip(values[0], MEANINGS, strict=True)
    )
    out.print(figure_table(("", *columns, "meaning"), rows, columns))


@priors.command(cls=ConfiguredCommand, epilog=LEARN_EPILOG)
@click.argument(
    "traces",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="TRACE...",
)
@click.option("--run", metavar="NAME", help="Use only this run of a journal.")
@llm_grader
@options.rubric
@options.models
@click.option(
    "--limit",
    type=options.COUNT,
    default=1024,
    show_default=True,
    metavar="N",
    help="Use at most N tasks, evenly chosen.",
)
@click.option(
    "--replace", is_flag=True, help="Also replace priors that were learned from more tasks."
)
@options.as_json
@options.debug
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    *,
    traces: tuple[str, ...],
    run: str | None,
    limit: int,
    replace: bool,
    as_json: bool,
    **names: Any,
) -> int:
    """Learn priors from trace files and journals with at least 8 finished tasks. They replace saved
    priors of the same model and graders that were learned from as many tasks or fewer.
    """
    data = TrainingData(ctx, names, run, limit)
    for name in traces:
        data.read(name)
    for reason, count in data.left_out.items():
        warning(f"left out: {pluralize(count, 'trace')} {reason}")
    learned = (
        _learn(key, examples, limit, replace=replace) for key, examples in data.by_key.items()
    )
    saved = [each for each in learned if each]
    if as_json:
        print_json([each.as_data() for each in saved])
    elif saved:
        _print_table(saved)
    if not data.by_key:
        warning("there is nothing to learn from: no answers that a model wrote and a model graded")
    return OK if saved and len(saved) == len(data.by_key) else FAILED


@priors.command(cls=ConfiguredCommand, epilog=CALIBRATE_EPILOG)
@click.argument("file", type=options.READABLE, metavar="FILE")
@click.option(
    "--calls",
    type=options.COUNT,
    default=100,
    show_default=True,
    metavar="N",
    help="Spend at most N calls.",
)
@click.option("--save", is_flag=True, help="Save the priors for runs with learned priors.")
@options.columns
@llm_grader
@options.rubric
@options.models
@options.sampling
@options.timeout
@options.as_json
@options.debug
def calibrate(
    *, file: str, calls: int, save: bool, column: dict[str, str], as_json: bool, **settings: Any
) -> int:
    """Learn priors from the tasks in FILE with a stated number of calls: how noisy the judge is,
    how good drafts are, and whether refining helps.
    """
    given = {**values_of(OptionFields, settings), **parameter_settings(settings)}
    graders = load_graders(settings["grader"], settings["rubric"])
    tasks = _read_tasks(file, column)
    learned = run_sync(
        learning.calibrate(
            tasks,
            parse_model(settings["model"]),
            graders,
            parse_model(settings["judge"]),
            calls=calls,
            say=notice,
            **cast("CalibrationSettings", given),
        )
    )
    saved = learned.save() if save else None
    if as_json:
        print_json({**learned.as_data(), "saved": bool(saved)})
    else:
        out = console(stderr=False)
        for line in learned.summary():
            out.print(text_line(line), soft_wrap=True)
    if saved and saved.priors != learned.priors:
        kept = f"priors learned from {pluralize(saved.priors.tasks, 'task')} stay saved"
        warning(kept, "`redraft priors forget` deletes them")
    elif saved:
        key = saved.priors_key.key[:8]
        notice(f"saved for runs with learned priors: redraft priors show {key}")
    elif not as_json:
        notice("nothing is saved; --save saves the priors for runs with learned priors")
    return OK


@priors.command()
@click.argument("model_or_key", metavar="MODEL|KEY")
@options.as_json
@options.debug
def forget(model_or_key: str, as_json: bool) -> None:
    """Delete the saved priors of a MODEL with its graders. After that, learned priors are the
    shipped ones.
    """
    if model_or_key == SHIPPED:
        raise ConfigError("the shipped priors cannot be deleted")
    path, entry = _find(model_or_key)
    PriorsStore.in_folder().delete(path)
    if as_json:
        print_json({"deleted": str(path)})
    elif isinstance(entry, StoredPriors):
        tasks = pluralize(entry.priors.tasks, "task")
        notice(f"deleted {_name_of(entry.priors_key)} ({tasks})")
    else:
        notice(f"deleted {path}")


def _name_of(key: PriorsKey) -> str:
    """Return a model with its graders, for people."""
    return f"{key.model} with {', '.join(key.graders)}"


def _print_table(saved: Iterable[StoredPriors]) -> None:
    """Print saved priors, a line each, and the shipped ones."""
    figures = ("tasks", "drafts", "lift", "noise", "bias")
    rows = (
        (
            each.priors_key.key[:KEY_DIGITS],
            each.priors_key.model,
            ", ".join(each.priors_key.graders),
            *_figures(each.priors),
            format_time(each.created_at),
        )
        for each in saved
    )
    table = figure_table(("key", "model", "graders", *figures, "learned"), rows, figures)
    table.add_row(SHIPPED, "any", "any", *_figures(Priors()), "", style="dim")
    console(stderr=False).print(table)


def _figures(priors: Priors) -> tuple[str, ...]:
    return (
        f"{priors.tasks:,}" if priors.tasks else "",
        f"{priors.draft_mean:.2f}",
        f"{lift(priors):+.2f}",
        f"{priors.noise_sd:.2f}",
        f"{priors.bias_sd:.2f}",
    )


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


def _learn(key: PriorsKey, examples: Examples, limit: int, *, replace: bool) -> StoredPriors | None:
    """Learn and save the priors of one model and its graders from at most `limit` tasks, evenly
    chosen; None, with a warning that says why, if they are not saved.
    """
    count, store = len(examples), PriorsStore.in_folder()
    sample = [examples[i * count // limit] for i in range(limit)] if count > limit else examples
    sources = list(dict.fromkeys(source for _, source in examples))
    more = f" and {len(sources) - MAX_SOURCES} more" if len(sources) > MAX_SOURCES else ""
    priors = fit_priors([task for task, _ in sample], Priors())
    before, tasks = store.load(key), pluralize(priors.tasks, "task")
    if priors.tasks < MIN_TASKS:
        warning(f"{_name_of(key)}: {tasks} of at least {MIN_TASKS} that are needed")
        return None
    if before and before.priors.tasks > priors.tasks and not replace:
        warning(
            f"{_name_of(key)}: these are {tasks}; the saved priors were learned from "
            f"{before.priors.tasks:,}",
            "--replace replaces them",
        )
        return None
    learned = StoredPriors.create(key, priors, f"{', '.join(sources[:MAX_SOURCES])}{more}")
    path = store.save(learned)
    instead = f", replacing priors from {pluralize(before.priors.tasks, 'task')}" if before else ""
    notice(f"{_name_of(key)}: learned from {tasks}{instead}; saved in {path}")
    return learned


Examples: TypeAlias = list[tuple[Observations, str]]
"""Finished tasks of one model and its graders, each with the file that it comes from."""


@dataclass
class TrainingData:
    """Finished tasks by model and graders. `names` are the options that name these, `left_out`
    counts the traces that cannot be used, by reason.
    """

    ctx: click.Context
    names: Mapping[str, Any]
    run: str | None
    limit: int
    by_key: defaultdict[PriorsKey, Examples] = field(default_factory=lambda: defaultdict(list))
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
                else _exclusion_reason(trace, key)
            ):
                self.left_out[reason] += 1
            elif key:
                self.by_key[key].append((observe(trace), source))

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
        names = self.names
        if trace:
            options = [p for p in self.ctx.command.params if isinstance(p, SettingOption)]
            names = settings_from_trace(self.ctx, names, options, trace, where)
        named = repr([names[each] for each in PAIR_SETTINGS])  # a rubric cannot be hashed
        if named not in self._keys:
            self._keys[named] = run_sync(_find_key(names, where))
        return self._keys[named]


async def _find_key(names: Mapping[str, Any], where: str) -> PriorsKey | None:
    writer = await find_model(names["model"])
    if writer is None:
        raise ConfigError(f"{where} does not name the model that wrote: name it with --model")
    judge = parse_model(names["judge"])
    graders = graders_of_run(load_graders(names["grader"], names["rubric"]), judge, None)
    options = Options.from_settings(parameter_settings(names))
    async with Session(options, Models(options, writer, judge or None), graders) as session:
        return session.knowledge.priors_key


def _exclusion_reason(trace: Trace, key: PriorsKey) -> str:
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


def _read_tasks(file: str, columns: Mapping[str, str]) -> list[Task]:
    """Return the tasks in the rows of a file; warn of rows that cannot be used. Raises
    ConfigError.
    """
    bad: list[BadRow] = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset(
            open_source(file, spool=Path(folder)),
            columns_of(columns),
            "rename",
            None,
        )
        summary = dataset.summarize()
        tasks = [row.task for row in dataset.rows(summary.duplicates, bad.append)]
    for row in bad[:MAX_LISTED]:
        warning(f"left out: {row.location}: {row.message}")
    if len(bad) > MAX_LISTED:
        warning(f"left out: {pluralize(len(bad) - MAX_LISTED, 'more row')}")
    return tasks
