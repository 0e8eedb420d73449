"""The work behind `redraft runs`: find journals and runs in them, show, take out, forget."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import click
from rich.table import Table
from rich.text import Text

from ..core.trace import Trace
from ..errors import ConfigError, StoreError
from ..runs.asked import named_after
from ..runs.report import OF_PURSE, purse_and_priors
from ..storage.journal import Journal, RowInfo, RunInfo, Status
from ..storage.recovery import salvage
from ..storage.secure_files import AtomicFile
from .batchview import counted, say
from .exits import OK, complain
from .listing import listing, moment, when
from .live import console, line

ENDING = ".journal"
STATES: tuple[Status, ...] = ("done", "failed", "open")


@dataclass(frozen=True)
class Kept:
    """A run, and the journal that it is in."""

    path: Path
    note: RunInfo

    def as_data(self) -> dict[str, Any]:
        return {"journal": str(self.path), **asdict(self.note)}


def journals(named: str | None) -> list[Path]:
    """The journal that was named, or those of this folder."""
    return [Path(named)] if named else sorted(path for path in Path().glob(f"*{ENDING}") if path.is_file())


def kept_in(paths: list[Path], *, strict: bool = True) -> list[Kept]:
    """The runs in some journals, the latest last. Of one that cannot be read is told; with `strict` StoreError is raised."""
    found: list[Kept] = []
    for path in paths:
        try:
            with Journal(path, read_only=True) as journal:
                found += [Kept(path, note) for note in journal.runs()]
        except StoreError as error:
            if strict:
                raise
            complain(str(error))
    return sorted(found, key=lambda kept: (kept.note.updated_at, kept.note.started_at))


def found(run: str, named: str | None) -> Kept:
    """The run of that name, or of the output at that path. Raises ConfigError where there is none, or more than one."""
    beside = Path(f"{run}{ENDING}")
    paths = [beside] if not named and beside.is_file() else journals(named)
    kept = kept_in(paths, strict=bool(named))
    named_so = [one for one in kept if one.note.name in {run, named_after(Path(run).name)}]
    if len(named_so) == 1:
        return named_so[0]
    if named_so:
        raise ConfigError(f"there are {len(named_so)} runs {run!r}; give --journal: {', '.join(str(one.path) for one in named_so)}")
    raise ConfigError(f"there is no run {run!r}; {_there_are(kept, paths)}")


def _there_are(kept: list[Kept], paths: list[Path]) -> str:
    """What there is instead, in words."""
    if kept:
        return f"there are {', '.join(dict.fromkeys(repr(one.note.name) for one in kept))}"
    where = ", ".join(map(str, paths)) or f"no *{ENDING} in this folder: give --journal FILE"
    return f"looked in {where}" if paths else where


def show_all(named: str | None, *, as_json: bool) -> None:
    """Every run in a line."""
    paths = journals(named)
    kept = kept_in(paths, strict=bool(named))
    if as_json:
        click.echo(json.dumps([one.as_data() for one in kept], indent=2, default=str))
    elif kept:
        listing().print(_table(kept))
    else:
        say(f"no runs; {_there_are(kept, paths)}")


def _table(kept: list[Kept]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.add_column("run", overflow="fold")
    for state in STATES:
        table.add_column(state, justify="right")
    table.add_column("last change", no_wrap=True)
    table.add_column("journal", overflow="fold")
    for one in kept:
        counts = [f"{one.note.counts.get(state, 0):,}" for state in STATES]
        table.add_row(line(one.note.name), *counts, when(one.note.updated_at), line(str(one.path)))
    return table


def show_run(run: str, named: str | None, *, as_json: bool) -> None:
    """All that is known of a run."""
    kept = found(run, named)
    if as_json:
        click.echo(json.dumps(kept.as_data(), indent=2, default=str))
        return
    note = kept.note
    out = console(stderr=False)
    out.print(line(note.name, "bold"))
    table = Table.grid(padding=(0, 2, 0, 1))
    rows = ", ".join(f"{count:,} {state}" for state, count in note.counts.items() if count) or "none"
    facts = {"journal": str(kept.path), "begun": when(note.started_at), "last change": when(note.updated_at), "rows kept": rows}
    for name, value in (*facts.items(), *_told(note.metadata)):
        table.add_row(line(name, "dim"), line(value))
    out.print(table)


INSIDE = ("settings", "serial", "whole", "waves", "pair", "schooling", "grown", "report")  # for the engine, or told apart
TWICE = ("output", "journal", "run", "rows", "by_iteration", *OF_PURSE)  # of a report: said above, or more than a line can say


def _told(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is known of a run, a fact a line; what its last report says of it comes last."""
    facts = {name: value for name, value in about.items() if name not in INSIDE}
    report = {name: value for name, value in (about.get("report") or {}).items() if name not in TWICE}
    report |= {name: "unknown" for name in ("tokens", "cost") if name in report and report[name] is None}
    for name, value in {**facts, **report, **purse_and_priors(about.get("report") or {})}.items():
        if value not in (None, "", 0, False, [], {}):
            yield name.replace("_", " "), _written_out(value)


def _written_out(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_written_out(v)} {k.replace('_', ' ')}" for k, v in value.items() if v)
    if isinstance(value, list):
        return " to ".join(map(_written_out, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def show_row(run: str, row: str, named: str | None, *, as_json: bool, full: bool) -> None:
    """Everything that happened to a row."""
    kept = found(run, named)
    with Journal(kept.path, read_only=True) as journal:
        trace = journal.trace(kept.note.name, row)
    if trace is None:
        raise ConfigError(f"run {kept.note.name!r} has no row {row!r}")
    from .replay import as_data, tell

    if as_json:
        click.echo(as_data(trace))
    else:
        tell(trace, full=full)


def keep_apart(output: str, kept: Kept) -> None:
    """Raises ConfigError for an output that is the journal which it is to come from, whatever may be replaced."""
    if Path(output).exists() and Path(output).samefile(kept.path):
        raise ConfigError(f"--output: {output} is the journal itself; name another file")


def write_traces(run: str, output: str, named: str | None) -> None:
    """The traces of a run, a JSON line a row."""
    kept, count = found(run, named), 0
    keep_apart(output, kept)
    with Journal(kept.path, read_only=True) as journal, _written(output) as file:
        for row, trace in journal.traces(kept.note.name):
            file.write(f"{json.dumps(_as_data(kept.note.name, row, trace))}\n")
            count += 1
    say(f"{counted(count, 'trace')} written to {'stdout' if output == '-' else output}")


def _as_data(run: str, row: RowInfo, trace: Trace) -> Mapping[str, Any]:
    return {"run": run, "id": row.id, "status": row.status, "result": row.result, "trace": json.loads(trace.to_json())}


@contextmanager
def _written(output: str) -> Iterator[TextIO]:
    """A file to write into, which gets its name when all is in it; or stdout."""
    if output == "-":
        yield sys.stdout
        return
    target = Path(output)
    if target.exists() and not target.is_file() and not target.is_dir():  # a device or a pipe
        with target.open("w", encoding="utf-8") as file:
            yield file
        return
    draft = AtomicFile(target)
    try:
        text = TextIOWrapper(draft.file, "utf-8")
        yield text
        text.detach()
        draft.commit()
    finally:
        draft.abort()


def forget(run: str | None, older_than: float | None, named: str | None, *, yes: bool) -> int:
    """Forget runs, having asked; the exit code."""
    doomed = [found(run, named)] if run is not None else _old(kept_in(journals(named)), older_than or 0.0)
    if not doomed:
        say("nothing is that old")
        return OK
    if not yes:
        _confirm(doomed)
    for one in doomed:
        with Journal(one.path, create=False) as journal:
            journal.delete(one.note.name)
            journal.compact()
        say(f"forgot {one.note.name} in {one.path}")
    return OK


def _old(kept: list[Kept], days: float) -> list[Kept]:
    limit = datetime.now(UTC) - timedelta(days=days)
    return [one for one in kept if moment(one.note.updated_at) <= limit]


def _confirm(doomed: list[Kept]) -> None:
    """Raises UsageError where nobody can be asked, Abort where the answer is no."""
    names = ", ".join(f"{one.note.name} ({counted(sum(one.note.counts.values()), 'row')})" for one in doomed)
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would forget {names}: give --yes")
    click.confirm(click.unstyle(f"Forget {Text(names).plain}?"), abort=True, err=True)


def save(damaged: str, output: str) -> None:
    """Save what can be read of a damaged journal in place of what is at `output`, and say how much that is."""
    counts = salvage(damaged, output, overwrite=True)
    say(f"{output}: {', '.join(counted(count, table.removesuffix('s')) for table, count in counts.items())}")
