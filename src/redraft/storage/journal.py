"""What a batch keeps, in one SQLite file: its runs, their rows with every record, and the call cache.

Writing returns at once and is committed by the one writer thread (see `writer`). Reading sees all that was written before
it; where that is not committed yet, it waits for the commit. Secrets are the business of whoever writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from ..core.serialize import loads, record_from_json, value_from_json
from ..core.trace import Trace
from ..core.type_checks import Check, check_of
from ..errors import ConfigError, StoreError
from ..protocols import Reply
from .database import Database
from .response_cache import Calls
from .run_metadata import misfit
from .schema import PLACES, Durability, damaged, name_of
from .writer import Step

Status: TypeAlias = Literal["open", "done", "failed"]
STATUSES: tuple[Status, ...] = ("open", "done", "failed")
AT_ONCE = 200
"""Rows that are read at a time where all are wanted."""

NOTE = """INSERT INTO runs VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET about = excluded.about, changed = excluded.changed"""
FORGET = "DELETE FROM rows WHERE run = ? AND id = ?"
BEGIN = "INSERT INTO rows (run, id, n, key, parts, status) VALUES (?, ?, ?, ?, ?, 'open')"
LINE = f"INSERT OR REPLACE INTO lines SELECT row * {PLACES} + ?, ? FROM rows WHERE run = ? AND id = ?"  # noqa: S608
RUNS = "SELECT run, name, about, begun, changed FROM runs"
MET = "INSERT OR REPLACE INTO met SELECT row, ? FROM rows WHERE run = ? AND id IN (SELECT value FROM json_each(?))"
ROWS = "SELECT row, id, n, key, parts, status, result FROM rows WHERE run = (SELECT run FROM runs WHERE name = ?)"
KNOWN = f"{ROWS} AND id IN (SELECT value FROM json_each(?))"  # noqa: S608  (statements of our own)
MET_SINCE = "AND (SELECT seen FROM met WHERE met.row = rows.row) >= ?"
ONWARD = f"{ROWS} AND (n, row) > (?, ?) {MET_SINCE} ORDER BY n, row LIMIT {AT_ONCE}"
COUNTED = "SELECT status, count(*) FROM rows JOIN met USING (row) WHERE run = ? AND seen >= ? GROUP BY status"
LINES = "SELECT line FROM lines WHERE at >= ? AND at < ? ORDER BY at"


@dataclass(frozen=True, slots=True)
class RunNote:
    """A run: one data set refined into one output.

    `begun` and `changed` are ISO times in UTC, `changed` to about a second. `counts` are rows by status, 0 included, without
    those that are no longer in the input (see `Journal.met`).
    """

    name: str
    about: Mapping[str, Any]
    begun: str
    changed: str
    counts: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class RowNote:
    """A row: one task of a run, at place `n` of its input (from 0).

    `key` stands for all that decides its result, `parts` for each part of that. `result` is what is known so far.
    """

    id: str
    n: int
    key: str
    parts: Mapping[str, str]
    status: Status
    result: Mapping[str, Any] | None


ROW: Mapping[str, Check] = {
    "id": check_of(str),
    "n": check_of(int),
    "key": check_of(str),
    "parts": check_of(Mapping[str, str]),
    "status": lambda v: v in STATUSES,
    "result": check_of(Mapping[str, Any] | None),
}


class Journal:
    """The journal in a file, which one process at a time may write and any number may read.

    A missing or empty file is made new, unless `create` is False. With durability "normal" everything committed survives
    `kill -9`, with "full" also a loss of power. With `read_only` it reads beside a running writer and takes no lock.
    Raises StoreError for a file that is foreign, damaged, newer or held by another process, and leaves it as it was.
    """

    def __init__(
        self, path: str | Path, *, durability: Durability = "normal", create: bool = True, read_only: bool = False
    ) -> None:
        self.path = Path(path)
        self._database = Database(self.path, durability, create=create, read_only=read_only)
        try:
            self._runs = dict(map(self._known_run, self._database.read(RUNS)))
        except StoreError:
            self._database.close()
            raise
        self._stamped: dict[str, float] = {}
        self.calls: MutableMapping[str, Reply] = Calls(self._database)

    @property
    def trouble(self) -> StoreError | None:
        """Why nothing more can be written, if so."""
        return self._database.trouble

    async def committed(self) -> None:
        """Until all that was written before is committed. Raises StoreError when it cannot be."""
        await self._database.committed()

    def flush(self) -> None:
        """The same, blocking."""
        self._database.flush()

    def compact(self) -> None:
        """Give back the room of what was forgotten. Blocks; needs as much room again while it works."""
        self._database.compact()

    def copy(self, target: Path) -> None:
        """Write all that is committed to another file, also when the journal's own has been deleted. Raises StoreError."""
        self._database.copy(target)

    def close(self) -> None:
        """Write what is queued and let go of the file. Raises nothing: `trouble` says what went wrong."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if self.trouble and error is None:
            raise StoreError(str(self.trouble))

    def runs(self) -> list[RunNote]:
        """All runs, oldest first."""
        self.flush()
        return [self._run_note(*found) for found in self._database.read(f"{RUNS} ORDER BY run")]

    def run(self, name: str) -> RunNote | None:
        """What is known of a run."""
        self.flush()
        found = self._database.read(f"{RUNS} WHERE name = ?", json.dumps(name))
        return self._run_note(*found[0]) if found else None

    def note(self, name: str, **about: Any) -> None:
        """Begin a run, or merge keys into what is known about it (JSON values)."""
        run = self._runs.get(name) or _Run(max((r.number for r in self._runs.values()), default=0) + 1, {}, _now())
        self._runs[name] = run = replace(run, about={**run.about, **about})
        values = (run.number, json.dumps(name), json.dumps(run.about), run.begun, _now())
        self._database.write((name,), (NOTE, values))

    def known(self, run: str, ids: Sequence[str]) -> dict[str, RowNote]:
        """Those of the rows that the run has, by id. Meant for some hundred ids at a time."""
        self._database.settle((run, id) for id in ids)
        found = self._database.read(KNOWN, json.dumps(run), json.dumps([json.dumps(id) for id in ids]))
        return {note.id: note for _, note in map(self._row_note, found)}

    def begin(  # noqa: PLR0917
        self, run: str, id: str, n: int, key: str, parts: Mapping[str, str], header: Mapping[str, Any], serial: int | None = None
    ) -> None:
        """Begin a row, or begin it anew: what it had is forgotten. `header` is `Trace.header()`; `serial` as in `met`."""
        row = (self._number(run), json.dumps(id))
        begun = (BEGIN, (*row, n, key, json.dumps(dict(parts))))
        self._write(run, id, (FORGET, row), begun, (LINE, (0, json.dumps(dict(header)), *row)), self._met(run, [id], serial))

    def serial(self, run: str) -> int:
        """The number of the run's last going, from 1, as it was noted in `about["serial"]`; 0 where none was."""
        return _going(self._runs[run].about, "serial") if run in self._runs else 0

    def met(self, run: str, ids: Sequence[str], serial: int | None = None) -> None:
        """Note that rows were met in the input by this going of the run (None: what `serial` says).

        Once `about["whole"]` names a going that has read the whole input, rows that were last met before it count as gone:
        `traces` and `RunNote.counts` leave them out, all else is as before. Raises StoreError for a row never begun.
        """
        if ids:
            self._write(run, "", self._met(run, ids, serial))

    def _met(self, run: str, ids: Sequence[str], serial: int | None) -> Step:
        seen = self.serial(run) if serial is None else serial
        return MET, (seen, self._number(run), json.dumps([json.dumps(id) for id in ids]))

    def moved(self, run: str, id: str, n: int) -> None:
        """Note that a row now stands at another place of the input."""
        self._write(run, id, ("UPDATE rows SET n = ? WHERE run = ? AND id = ?", (n, self._number(run), json.dumps(id))))

    def append(self, run: str, id: str, since: int, records: Sequence[str]) -> None:
        """Keep records (lines by `record_to_json`), the first of them number `since`. A number kept before is replaced."""
        row = (self._number(run), json.dumps(id))
        if since + len(records) >= PLACES:
            raise StoreError(f"{name_of(self.path)}: row {id!r} has more than {PLACES - 1} records")
        self._write(run, id, *((LINE, (place, line, *row)) for place, line in enumerate(records, since + 1)))

    def finish(self, run: str, id: str, status: Status, result: Mapping[str, Any]) -> None:
        """Store a row's result (JSON values). Status "open" says that it was cut short."""
        if status not in STATUSES:
            raise ConfigError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
        values = (status, json.dumps(dict(result)), self._number(run), json.dumps(id))
        self._write(run, id, ("UPDATE rows SET status = ?, result = ? WHERE run = ? AND id = ?", values))

    def trace(self, run: str, id: str) -> Trace | None:
        """All that is recorded of a row."""
        self._database.settle([(run, id)])
        found = self._database.read(f"{ROWS} AND id = ?", json.dumps(run), json.dumps(id))
        return self._trace(*self._row_note(found[0])) if found else None

    def traces(self, run: str, serial: int | None = None) -> Iterator[tuple[RowNote, Trace]]:
        """The rows met in that going or later, with their traces, in the order of the input.

        None: all that are still in the input (see `met`); 0: all that there ever were.
        """
        known = self.run(run)
        since = serial if serial is not None else _going(known.about, "whole") if known else 0
        last = (-1, -1)
        while found := self._database.read(ONWARD, json.dumps(run), *last, since):
            for row, note in map(self._row_note, found):
                if (note.n, row) <= last:
                    raise damaged(self.path, "its rows are out of order")
                last = (note.n, row)
                if trace := self._trace(row, note):
                    yield note, trace

    def forget(self, run: str, ids: Sequence[str] | None = None) -> None:
        """Forget rows; without `ids` the whole run, which blocks. Calls stay: other runs may have made the same."""
        number = self._number(run)
        if ids is not None:
            for id in ids:
                self._write(run, id, (FORGET, (number, json.dumps(id))))
            return
        gone: list[Step] = [(f"DELETE FROM {table} WHERE run = ?", (number,)) for table in ("rows", "runs")]  # noqa: S608
        self._database.write((run,), *gone)
        self.flush()
        del self._runs[run]

    def _write(self, run: str, id: str, *steps: Step) -> None:
        now = time.monotonic()
        if now > self._stamped.get(run, -inf) + 1:
            self._stamped[run] = now
            steps += (("UPDATE runs SET changed = ? WHERE run = ?", (_now(), self._number(run))),)
        self._database.write((run, id), *steps)

    def _number(self, run: str) -> int:
        if run not in self._runs:
            raise StoreError(f"{name_of(self.path)} has no run {run!r}: note it first")
        return self._runs[run].number

    def _known_run(self, found: tuple[Any, ...]) -> tuple[str, _Run]:
        """A run by its name. Raises StoreError for what none has noted."""
        number, name, about, begun, changed = found
        said = self._read("run", number, name, str)
        known: Mapping[str, Any] = self._read(f"run {said!r}", "about", about, Mapping[str, Any])
        if (wrong := misfit(known)) or not isinstance(begun, str) or not isinstance(changed, str):
            problem = f"{wrong} cannot be {known[wrong]!r:.80}" if wrong else f"it cannot have begun {begun!r:.80}"
            raise damaged(self.path, f"run {said!r:.80}: {problem}")
        return said, _Run(number, known, begun)

    def _read(self, what: str, which: Any, text: Any, kind: Any) -> Any:
        """The value of a text. Raises StoreError for one of another type."""
        try:
            value = value_from_json(text)
        except StoreError as error:
            raise damaged(self.path, f"{what}, {which}: {error}") from error
        if not check_of(kind)(value):
            raise damaged(self.path, f"{what}, {which}: it cannot be {value!r:.80}")
        return value

    def _run_note(self, number: int, name: str, about: str, begun: str, changed: str) -> RunNote:
        said, run = self._known_run((number, name, about, begun, changed))
        counted = dict(self._database.read(COUNTED, number, _going(run.about, "whole")))
        return RunNote(said, run.about, begun, changed, {s: counted.get(s, 0) for s in STATUSES})

    def _row_note(self, found: tuple[Any, ...]) -> tuple[int, RowNote]:
        """A row by its number. Raises StoreError for what was never written so."""
        row, id, n, key, parts, status, result = found
        try:
            held = value_from_json(id), value_from_json(parts), result and value_from_json(result)
        except StoreError as error:
            raise damaged(self.path, f"row {row}: {error}") from error
        note = RowNote(held[0], n, key, held[1], status, held[2])
        for name, fits in ROW.items():
            if not fits(value := getattr(note, name)):
                raise damaged(self.path, f"row {row}: its {name} cannot be {value!r:.80}")
        return row, note

    def _trace(self, row: int, note: RowNote) -> Trace | None:
        lines = [line for (line,) in self._database.read(LINES, row * PLACES, (row + 1) * PLACES)]
        if not lines:
            return None
        try:
            return Trace.from_header(loads(lines[0])).with_records(map(record_from_json, lines[1:]))
        except StoreError as error:
            raise StoreError(f"{name_of(self.path)}, row {note.id!r:.80}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Run:
    """What is written with every note of a run."""

    number: int
    about: Mapping[str, Any]
    begun: str


def _going(about: Mapping[str, Any], name: str) -> int:
    """The number of a going; 0 where none is noted."""
    value = about.get(name)
    return value if type(value) is int else 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
