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

from ..core.serialize import object_from_json, record_from_json, value_from_json
from ..core.trace import Trace
from ..core.type_checks import Validator, validator_for
from ..errors import ConfigError, StoreError
from ..protocols import Reply
from .database import Database
from .response_cache import ResponseCache
from .run_metadata import invalid_key
from .schema import LINES_PER_ROW, Durability, damaged_error, journal_label
from .writer import Statement

Status: TypeAlias = Literal["open", "done", "failed"]
STATUSES: tuple[Status, ...] = ("open", "done", "failed")
ROWS_PER_READ = 200
"""Rows that are read at a time where all are wanted."""

UPSERT_RUN = """INSERT INTO runs VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET about = excluded.about, changed = excluded.changed"""
DELETE_ROW = "DELETE FROM rows WHERE run = ? AND id = ?"
INSERT_ROW = "INSERT INTO rows (run, id, n, key, parts, status) VALUES (?, ?, ?, ?, ?, 'open')"
UPSERT_LINE = f"INSERT OR REPLACE INTO lines SELECT row * {LINES_PER_ROW} + ?, ? FROM rows WHERE run = ? AND id = ?"  # noqa: S608
SELECT_RUNS = "SELECT run, name, about, begun, changed FROM runs"
UPSERT_SEEN = "INSERT OR REPLACE INTO met SELECT row, ? FROM rows WHERE run = ? AND id IN (SELECT value FROM json_each(?))"
SELECT_ROWS = "SELECT row, id, n, key, parts, status, result FROM rows WHERE run = (SELECT run FROM runs WHERE name = ?)"
SELECT_ROWS_BY_ID = f"{SELECT_ROWS} AND id IN (SELECT value FROM json_each(?))"  # noqa: S608  (statements of our own)
SEEN_SINCE = "AND (SELECT seen FROM met WHERE met.row = rows.row) >= ?"
SELECT_ROWS_AFTER = f"{SELECT_ROWS} AND (n, row) > (?, ?) {SEEN_SINCE} ORDER BY n, row LIMIT {ROWS_PER_READ}"
COUNT_BY_STATUS = "SELECT status, count(*) FROM rows JOIN met USING (row) WHERE run = ? AND seen >= ? GROUP BY status"
SELECT_LINES = "SELECT line FROM lines WHERE at >= ? AND at < ? ORDER BY at"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run: one data set refined into one output.

    `begun` and `changed` are ISO times in UTC, `changed` to about a second. `counts` are rows by status, 0 included, without
    those that are no longer in the input (see `Journal.met`).
    """

    name: str
    metadata: Mapping[str, Any]
    started_at: str
    updated_at: str
    counts: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class RowInfo:
    """A row: one task of a run, at place `n` of its input (from 0).

    `key` stands for all that decides its result, `parts` for each part of that. `result` is what is known so far.
    """

    id: str
    position: int
    key: str
    key_parts: Mapping[str, str]
    status: Status
    result: Mapping[str, Any] | None


ROW_CHECKS: Mapping[str, Validator] = {
    "id": validator_for(str),
    "n": validator_for(int),
    "key": validator_for(str),
    "parts": validator_for(Mapping[str, str]),
    "status": lambda v: v in STATUSES,
    "result": validator_for(Mapping[str, Any] | None),
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
            self._runs = dict(map(self._parse_run, self._database.read(SELECT_RUNS)))
        except StoreError:
            self._database.close()
            raise
        self._stamped_at: dict[str, float] = {}
        self.response_cache: MutableMapping[str, Reply] = ResponseCache(self._database)

    @property
    def write_error(self) -> StoreError | None:
        """Why nothing more can be written, if so."""
        return self._database.write_error

    async def wait_for_commit(self) -> None:
        """Until all that was written before is committed. Raises StoreError when it cannot be."""
        await self._database.wait_for_commit()

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
        if self.write_error and error is None:
            raise StoreError(str(self.write_error))

    def runs(self) -> list[RunInfo]:
        """All runs, oldest first."""
        self.flush()
        return [self._run_info(*found) for found in self._database.read(f"{SELECT_RUNS} ORDER BY run")]

    def run(self, name: str) -> RunInfo | None:
        """What is known of a run."""
        self.flush()
        found = self._database.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(name))
        return self._run_info(*found[0]) if found else None

    def update_run(self, name: str, **metadata: Any) -> None:
        """Begin a run, or merge keys into what is known about it (JSON values)."""
        run = self._runs.get(name) or _RunState(max((r.number for r in self._runs.values()), default=0) + 1, {}, _now())
        self._runs[name] = run = replace(run, metadata={**run.metadata, **metadata})
        values = (run.number, json.dumps(name), json.dumps(run.metadata), run.started_at, _now())
        self._database.write((name,), (UPSERT_RUN, values))

    def rows_by_id(self, run: str, ids: Sequence[str]) -> dict[str, RowInfo]:
        """Those of the rows that the run has, by id. Meant for some hundred ids at a time."""
        self._database.flush_if_pending((run, id) for id in ids)
        found = self._database.read(SELECT_ROWS_BY_ID, json.dumps(run), json.dumps([json.dumps(id) for id in ids]))
        return {note.id: note for _, note in map(self._row_info, found)}

    def begin_row(  # noqa: PLR0917
        self,
        run: str,
        id: str,
        position: int,
        key: str,
        key_parts: Mapping[str, str],
        header: Mapping[str, Any],
        invocation: int | None = None,
    ) -> None:
        """Begin a row, or begin it anew: what it had is forgotten. `header` is `Trace.header()`; `serial` as in `met`."""
        row = (self._number(run), json.dumps(id))
        begun = (INSERT_ROW, (*row, position, key, json.dumps(dict(key_parts))))
        self._write(
            run,
            id,
            (DELETE_ROW, row),
            begun,
            (UPSERT_LINE, (0, json.dumps(dict(header)), *row)),
            self._seen_statement(run, [id], invocation),
        )

    def invocation(self, run: str) -> int:
        """The number of the run's last going, from 1, as it was noted in `about["serial"]`; 0 where none was."""
        return _invocation_in(self._runs[run].metadata, "serial") if run in self._runs else 0

    def mark_seen(self, run: str, ids: Sequence[str], invocation: int | None = None) -> None:
        """Note that rows were met in the input by this going of the run (None: what `serial` says).

        Once `about["whole"]` names a going that has read the whole input, rows that were last met before it count as gone:
        `traces` and `RunNote.counts` leave them out, all else is as before. Raises StoreError for a row never begun.
        """
        if ids:
            self._write(run, "", self._seen_statement(run, ids, invocation))

    def _seen_statement(self, run: str, ids: Sequence[str], invocation: int | None) -> Statement:
        seen = self.invocation(run) if invocation is None else invocation
        return UPSERT_SEEN, (seen, self._number(run), json.dumps([json.dumps(id) for id in ids]))

    def set_position(self, run: str, id: str, position: int) -> None:
        """Note that a row now stands at another place of the input."""
        self._write(run, id, ("UPDATE rows SET n = ? WHERE run = ? AND id = ?", (position, self._number(run), json.dumps(id))))

    def append_records(self, run: str, id: str, first: int, records: Sequence[str]) -> None:
        """Keep records (lines by `record_to_json`), the first of them number `since`. A number kept before is replaced."""
        row = (self._number(run), json.dumps(id))
        if first + len(records) >= LINES_PER_ROW:
            raise StoreError(f"{journal_label(self.path)}: row {id!r} has more than {LINES_PER_ROW - 1} records")
        self._write(run, id, *((UPSERT_LINE, (place, line, *row)) for place, line in enumerate(records, first + 1)))

    def finish_row(self, run: str, id: str, status: Status, result: Mapping[str, Any]) -> None:
        """Store a row's result (JSON values). Status "open" says that it was cut short."""
        if status not in STATUSES:
            raise ConfigError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
        values = (status, json.dumps(dict(result)), self._number(run), json.dumps(id))
        self._write(run, id, ("UPDATE rows SET status = ?, result = ? WHERE run = ? AND id = ?", values))

    def trace(self, run: str, id: str) -> Trace | None:
        """All that is recorded of a row."""
        self._database.flush_if_pending([(run, id)])
        found = self._database.read(f"{SELECT_ROWS} AND id = ?", json.dumps(run), json.dumps(id))
        return self._trace(*self._row_info(found[0])) if found else None

    def traces(self, run: str, since_invocation: int | None = None) -> Iterator[tuple[RowInfo, Trace]]:
        """The rows met in that going or later, with their traces, in the order of the input.

        None: all that are still in the input (see `met`); 0: all that there ever were.
        """
        known = self.run(run)
        since = since_invocation if since_invocation is not None else _invocation_in(known.metadata, "whole") if known else 0
        last = (-1, -1)
        while found := self._database.read(SELECT_ROWS_AFTER, json.dumps(run), *last, since):
            for row, note in map(self._row_info, found):
                if (note.position, row) <= last:
                    raise damaged_error(self.path, "its rows are out of order")
                last = (note.position, row)
                if trace := self._trace(row, note):
                    yield note, trace

    def delete(self, run: str, ids: Sequence[str] | None = None) -> None:
        """Forget rows; without `ids` the whole run, which blocks. Calls stay: other runs may have made the same."""
        number = self._number(run)
        if ids is not None:
            for id in ids:
                self._write(run, id, (DELETE_ROW, (number, json.dumps(id))))
            return
        gone: list[Statement] = [(f"DELETE FROM {table} WHERE run = ?", (number,)) for table in ("rows", "runs")]  # noqa: S608
        self._database.write((run,), *gone)
        self.flush()
        del self._runs[run]

    def _write(self, run: str, id: str, *statements: Statement) -> None:
        now = time.monotonic()
        if now > self._stamped_at.get(run, -inf) + 1:
            self._stamped_at[run] = now
            statements += (("UPDATE runs SET changed = ? WHERE run = ?", (_now(), self._number(run))),)
        self._database.write((run, id), *statements)

    def _number(self, run: str) -> int:
        if run not in self._runs:
            raise StoreError(f"{journal_label(self.path)} has no run {run!r}: note it first")
        return self._runs[run].number

    def _parse_run(self, record: tuple[Any, ...]) -> tuple[str, _RunState]:
        """A run by its name. Raises StoreError for what none has noted."""
        number, name, about, begun, changed = record
        said = self._read("run", number, name, str)
        known: Mapping[str, Any] = self._read(f"run {said!r}", "about", about, Mapping[str, Any])
        if (wrong := invalid_key(known)) or not isinstance(begun, str) or not isinstance(changed, str):
            problem = f"{wrong} cannot be {known[wrong]!r:.80}" if wrong else f"it cannot have begun {begun!r:.80}"
            raise damaged_error(self.path, f"run {said!r:.80}: {problem}")
        return said, _RunState(number, known, begun)

    def _read(self, label: str, which: Any, text: Any, kind: Any) -> Any:
        """The value of a text. Raises StoreError for one of another type."""
        try:
            value = value_from_json(text)
        except StoreError as error:
            raise damaged_error(self.path, f"{label}, {which}: {error}") from error
        if not validator_for(kind)(value):
            raise damaged_error(self.path, f"{label}, {which}: it cannot be {value!r:.80}")
        return value

    def _run_info(self, number: int, name: str, metadata: str, started_at: str, updated_at: str) -> RunInfo:
        said, run = self._parse_run((number, name, metadata, started_at, updated_at))
        counted = dict(self._database.read(COUNT_BY_STATUS, number, _invocation_in(run.metadata, "whole")))
        return RunInfo(said, run.metadata, started_at, updated_at, {s: counted.get(s, 0) for s in STATUSES})

    def _row_info(self, record: tuple[Any, ...]) -> tuple[int, RowInfo]:
        """A row by its number. Raises StoreError for what was never written so."""
        row, id, n, key, parts, status, result = record
        try:
            held = value_from_json(id), value_from_json(parts), result and value_from_json(result)
        except StoreError as error:
            raise damaged_error(self.path, f"row {row}: {error}") from error
        note = RowInfo(held[0], n, key, held[1], status, held[2])
        for name, fits in ROW_CHECKS.items():
            if not fits(value := getattr(note, name)):
                raise damaged_error(self.path, f"row {row}: its {name} cannot be {value!r:.80}")
        return row, note

    def _trace(self, row: int, note: RowInfo) -> Trace | None:
        lines = [line for (line,) in self._database.read(SELECT_LINES, row * LINES_PER_ROW, (row + 1) * LINES_PER_ROW)]
        if not lines:
            return None
        try:
            return Trace.from_header(object_from_json(lines[0])).with_records(map(record_from_json, lines[1:]))
        except StoreError as error:
            raise StoreError(f"{journal_label(self.path)}, row {note.id!r:.80}: {error}") from error


@dataclass(frozen=True, slots=True)
class _RunState:
    """What is written with every note of a run."""

    number: int
    metadata: Mapping[str, Any]
    started_at: str


def _invocation_in(metadata: Mapping[str, Any], name: str) -> int:
    """The number of a going; 0 where none is noted."""
    value = metadata.get(name)
    return value if type(value) is int else 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
