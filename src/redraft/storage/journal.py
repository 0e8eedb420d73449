"""The journal of a batch, in one SQLite file: its runs, their rows with every record, and the
response cache.

Writing returns at once; one thread commits (see `database`). Reading sees everything written
before; it waits for the commit if necessary. Callers mask secrets.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import chain
from math import inf
from operator import attrgetter
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypedDict, get_type_hints
from zlib import crc32

import orjson

from ..base.jsontext import MAX_DEPTH, dumps_text, text_to_json, to_json
from ..errors import ConfigError, StoreError
from ..loop.serialize import (
    Validator,
    object_from_json,
    pack,
    record_from_json,
    unpack,
    validator_for,
    value_from_json,
)
from ..loop.trace import Trace
from ..protocols import Reply, TokenLogprobs
from ..usage import Usage
from .database import Database
from .schema import LINES_PER_ROW, Durability, damaged_error, journal_label
from .transaction import RowChanges, TransactionData

Status: TypeAlias = Literal["open", "done", "failed"]
STATUSES: tuple[Status, ...] = ("open", "done", "failed")
ROWS_PER_READ = 200  # rows that `Journal.traces` reads at a time
MAX_IDS_LENGTH = 2**20  # of the IDs in one statement together, but for a single longer one
RESULT_START = '{"columns":{'  # of the result of a row of a batch, unless `json` wrote it

DELETE_ROW = "DELETE FROM rows WHERE run = ? AND id = ?"
SELECT_RUNS = "SELECT run, name, metadata, started_at, updated_at FROM runs"
SELECT_ROWS = (
    "SELECT row, id, position, key, key_parts, status, result FROM rows WHERE run = (SELECT run "
    "FROM runs WHERE name = ?)"
)
SELECT_ROWS_BY_ID = f"{SELECT_ROWS} AND id IN (SELECT value FROM json_each(?))"  # noqa: S608  (statements of our own)
SEEN_SINCE = "AND (SELECT invocation FROM seen_rows WHERE seen_rows.row = rows.row) >= ?"
SELECT_ROWS_AFTER = (
    f"{SELECT_ROWS} AND (position, row) > (?, ?) {SEEN_SINCE} ORDER BY position, row LIMIT "
    f"{ROWS_PER_READ}"
)
MARK_SEEN = (
    "INSERT OR REPLACE INTO seen_rows SELECT row, ? FROM rows WHERE run = ? AND id IN (SELECT "
    "value FROM json_each(?))"
)
COUNT_BY_STATUS = (
    "SELECT status, count(*) FROM rows JOIN seen_rows USING (row) WHERE run = ? AND invocation >= "
    "? GROUP BY status"
)
SELECT_STATES = (
    "SELECT row, position, status FROM rows JOIN seen_rows USING (row) WHERE run = ? AND "
    "invocation >= ?"
)
SELECT_LENGTHS = f"""SELECT row, id, (
SELECT max(number) FROM lines WHERE number >= row * {LINES_PER_ROW} AND number < (row + 1) * {LINES_PER_ROW}
) FROM rows WHERE run = ?"""  # noqa: E501, S608
SELECT_IDS = "SELECT id FROM rows WHERE run = ? ORDER BY row"
SELECT_KEYS = "SELECT row, key FROM rows WHERE run = ?"
SELECT_STORED_ROW = "SELECT row, id, position, status, result FROM rows WHERE row = ?"
SELECT_LINES = "SELECT line FROM lines WHERE number >= ? AND number < ? ORDER BY number"

UPSERT_RUN = (
    "INSERT INTO runs VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET metadata = "
    "excluded.metadata, updated_at = excluded.updated_at"
)


PriorsData = Mapping[str, Any]


class OnlinePriorsData(TypedDict):
    start: PriorsData
    refits: Mapping[str, PriorsData | None]


class SubmittedBatchData(TypedDict):
    id: str
    number: int
    model: str
    requests: int
    batch: str | None


class ProviderBatchesData(TypedDict, total=False):
    token: str
    count: int
    open: list[SubmittedBatchData]


class FormatData(TypedDict):
    works: bool
    refused_schemas: list[str]
    fallback_requests: Mapping[str, list[str]]


class CapabilitiesData(TypedDict):
    adaptations: list[str]
    formats: Mapping[str, FormatData]


class RunMetadata(TypedDict, total=False):
    """The keys of a run's metadata that Redraft reads back, and their types. Other keys are for
    people.
    """

    invocation: int
    last_full_invocation: int
    spent: Mapping[str, float]
    budget: Mapping[str, float] | None
    budget_raised: bool
    merged_shards: list[str]
    attempt: str
    output: str | None
    errors: str | None
    settings: Mapping[str, Mapping[str, str]]
    online_priors: Mapping[str, OnlinePriorsData]
    provider_batches: ProviderBatchesData | None
    capabilities: Mapping[str, CapabilitiesData]
    report: Mapping[str, Any] | None
    # figures that can be made again: another form of them is no damage
    completion: Mapping[str, Any] | None
    model: str | None


METADATA_CHECKS = {name: validator_for(kind) for name, kind in get_type_hints(RunMetadata).items()}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run: one data set, refined into one output.

    `started_at` and `updated_at` are ISO 8601 times in UTC, `updated_at` to about a second.
    `counts` are the rows by status, 0 included, without rows that are no longer in the input (see
    `Journal.mark_seen`).
    """

    name: str
    metadata: Mapping[str, Any]
    started_at: str
    updated_at: str
    counts: Mapping[Status, int]

    @property
    def display_name(self) -> str:
        """The name for people: that of the file that the run writes, unless the run was given a
        name of its own.
        """
        return display_name(self.name, self.metadata.get("output"))


def display_name(run: str, output: str | None) -> str:
    """Return the name of a run for people: that of the file that it writes, unless it was given a
    name of its own.
    """
    file = PurePath(output or "-").name
    return file if file != "-" and run_name(file) == run else run


def run_name(file: str) -> str:
    """Return the default name of the run that writes a file."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", file).strip("-")[:64] or "run"


def is_file_of_run(noted: str, file: str, journal: Path) -> bool:
    """Return whether a file is that which a run has noted: that of its path, or of its name in the
    folder of the journal.

    A relative path is noted as it was typed, in a folder that may be another one now, or have moved
    with all that is in it.
    """
    path, earlier = Path(file).resolve(), Path(noted)
    return path == earlier.resolve() or (
        path.name == earlier.name and path.parent == journal.resolve().parent
    )


@dataclass(slots=True)
class RowInfo:
    """A row: one task of a run, at `position` of its input (from 0). Nothing changes it once it is
    made.

    `key` is a digest of everything that decides its result, `key_parts` has a digest of each part.
    `result` may be incomplete.
    """

    id: str
    position: int
    key: str
    key_parts: Mapping[str, str]
    status: Status
    result: Mapping[str, Any] | None


ROW_CHECKS: Mapping[str, Validator] = {
    "id": validator_for(str),
    "position": validator_for(int),
    "key": validator_for(str),
    "key_parts": validator_for(Mapping[str, str]),
    "status": lambda v: v in STATUSES,
    "result": validator_for(Mapping[str, Any] | None),
}


def _is_row(info: RowInfo) -> bool:
    """Return whether all ROW_CHECKS hold, several times as fast."""
    return (
        info.id.__class__ is str
        and info.position.__class__ is int
        and info.key.__class__ is str
        and info.key_parts.__class__ is dict
        and (not info.key_parts or {*map(type, info.key_parts.values())} <= {str})
        and info.status in STATUSES
        and (info.result is None or info.result.__class__ is dict)
    )


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it is stored: its number in the file, and unparsed JSON (the ID, the result or None,
    the header and the records).
    """

    number: int
    id: str
    position: int
    status: str
    result: str | None
    lines: tuple[str, ...]


class Journal:
    """The journal in a file, which one process at a time may write and any number may read.

    A missing or empty file is created, unless `create` is False. With durability "normal"
    everything committed survives `kill -9`, with "full" also a power failure. With `read_only` it
    takes no lock and reads beside a running writer. Raises StoreError for a file that is not a
    journal, is damaged, has another schema or is locked by another process, and leaves it
    unchanged.
    """

    is_remote = False  # whether another process commits what is written, and looks after the file

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "normal",
        create: bool = True,
        read_only: bool = False,
    ) -> None:
        self.path = Path(path)
        self._database = Database(self.path, durability, create=create, read_only=read_only)
        try:
            self._runs = dict(map(self._parse_run, self._database.read(SELECT_RUNS)))
        except StoreError:
            self._database.close()
            raise
        self._stamped_at: dict[str, float] = {}
        self.response_cache = ResponseCache(self._database)

    @property
    def write_error(self) -> StoreError | None:
        """The error after which nothing more is written, if any."""
        return self._database.write_error

    async def wait_for_commit(self) -> None:
        """Wait until everything written before is committed. Raises StoreError if that fails."""
        await self._database.wait_for_commit()

    def call_after_commit(self, callback: Callable[[], None]) -> None:
        """Call back once everything written before is committed, or can no longer be (see
        `write_error`).

        It is called at once or from another thread, and must neither use the journal nor raise
        anything. It has been called before a `wait_for_commit` or `flush` that comes later returns.
        """
        self._database.call_after_commit(callback)

    async def wait_for_room(self) -> None:
        """Wait while much of what was written is not committed yet. Raises StoreError if writing
        fails.
        """
        await self._database.wait_for_room()

    def flush(self) -> None:
        """Block until everything written before is committed. Raises StoreError if that fails."""
        self._database.flush()

    def write_changes(self, changes: TransactionData) -> None:
        """Write what another process has written to its `RemoteJournal`."""
        self.response_cache.expect_any()
        self._database.writer.add(changes)

    @property
    def size(self) -> int:
        """Bytes that the file has once its log is written into it. Raises StoreError."""
        return self._database.size

    def empty_log(self) -> None:
        """Write the log into the file and cut it off, unless another process reads the journal.
        Blocks. Raises StoreError.
        """
        self._database.erase(())

    def compact(self) -> None:
        """Write the file again, without the space and the remains of what was deleted. May be
        called from any thread.

        Blocks, for about 6 s per GB, and so does every commit meanwhile. Needs twice the size of
        the file as free space. The write-ahead log keeps remains as long as another process reads
        the journal. Raises StoreError; writing goes on then.
        """
        self._database.compact()

    def use_incremental_vacuum(self) -> None:
        """Arrange that `erase` gives space back. Blocks as `compact` does, the first time."""
        self._database.use_incremental_vacuum()

    def erase(self, run: str, ids: Sequence[str]) -> None:
        """Delete rows and overwrite their texts, in the file and in its log. Blocks, and may be
        called from any thread.

        Copies that SQLite made when it rearranged pages earlier stay until `compact`. The
        write-ahead log keeps deleted texts as long as another process reads the journal. Raises
        StoreError; writing goes on then.
        """
        number = self._number(run)
        self._database.erase([(DELETE_ROW, (number, json.dumps(id))) for id in ids])

    def copy(self, target: Path) -> None:
        """Write everything committed to another file, even if the journal's own file was deleted.
        Raises StoreError.
        """
        self._database.copy(target)

    def close(self) -> None:
        """Commit what is queued and release the file. Raises nothing: see `write_error`."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if self.write_error and error is None:
            raise StoreError(str(self.write_error))

    def runs(self) -> list[RunInfo]:
        """Return all runs, oldest first."""
        self.flush()
        return [
            self._run_info(*record) for record in self._database.read(f"{SELECT_RUNS} ORDER BY run")
        ]

    def run(self, name: str) -> RunInfo | None:
        """Return a run; None if there is no run of that name."""
        self.flush()
        records = self._database.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(name))
        return self._run_info(*records[0]) if records else None

    def metadata(self, name: str) -> Mapping[str, Any]:
        """Return the metadata of a run, without counting its rows; {} if there is no run of that
        name.
        """
        self.flush()
        records = self._database.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(name))
        return self._parse_run(records[0])[1].metadata if records else {}

    def has_run(self, name: str) -> bool:
        """Return whether there is a run of that name, also one that is not committed yet."""
        return name in self._runs

    def update_run(self, name: str, **metadata: Any) -> None:
        """Create a run, or merge keys (with JSON values) into its metadata."""
        run = self._runs.get(name) or _RunState(
            max((r.number for r in self._runs.values()), default=0) + 1, {}, _now()
        )
        self._runs[name] = run = replace(run, metadata={**run.metadata, **metadata})
        values = (run.number, json.dumps(name), json.dumps(run.metadata), run.started_at, _now())
        # such as the budget that a call is about to take
        self._database.writer.execute(UPSERT_RUN, *values, at_once=True)

    def rows_by_id(
        self, run: str, ids: Sequence[str], *, key_parts: bool = True
    ) -> dict[str, RowInfo]:
        """Return the rows that the run has, by ID; without `key_parts` those are empty. Meant for a
        few hundred IDs at a time.
        """
        self._database.flush_if_pending([(run, id) for id in ids])
        id_of = {text_to_json(id): id for id in ids}
        parts = _split_by_length(id_of, MAX_IDS_LENGTH)
        records = chain.from_iterable(
            self._database.read(SELECT_ROWS_BY_ID, to_json(run), to_json(part)) for part in parts
        )
        return {
            (id := id_of[record[1]]): self._row_info(record, id, key_parts=key_parts)[1]
            for record in records
        }

    def begin_row(  # noqa: PLR0917
        self,
        run: str,
        id: str,
        position: int,
        key: str,
        key_parts: Mapping[str, str],
        header: str,
        invocation: int | None = None,
        *,
        postpone: bool = False,
    ) -> None:
        """Create a row; an existing one is replaced. `header` is `Trace.header()` as JSON;
        `invocation` as in `mark_seen`.

        With `postpone`, the row is committed together with its next change, or after a second:
        `wait_for_commit` does not wait.
        """
        seen = self.invocation(run) if invocation is None else invocation
        begin = position, key, dumps_text(dict(key_parts)), header, seen
        self._change(run, id, RowChanges.begin, *begin, postpone=postpone)

    def invocation(self, run: str) -> int:
        """Return `metadata["invocation"]`, the number of the run's last invocation (from 1); 0 if
        there is none.
        """
        return _invocation_in(self._runs[run].metadata, "invocation") if run in self._runs else 0

    def mark_seen(self, run: str, ids: Sequence[str], invocation: int | None = None) -> None:
        """Record that this invocation of the run (None: the last one) has seen rows in the input.

        Once `metadata["last_full_invocation"]` names an invocation that has read the whole input,
        rows last seen before it count as removed from the input: `traces` and `RunInfo.counts`
        leave them out. The rows must exist.
        """
        seen = self.invocation(run) if invocation is None else invocation
        # statements are executed before changes of rows
        if self._database.has_pending([(run, id) for id in ids]):
            for id in ids:
                self._change(run, id, RowChanges.see, seen)
        else:
            for part in _split_by_length(map(text_to_json, ids), MAX_IDS_LENGTH):
                self._database.writer.execute(MARK_SEEN, seen, self._number(run), to_json(part))

    def set_position(self, run: str, id: str, position: int) -> None:
        """Record that a row is now at another position of the input."""
        self._change(run, id, RowChanges.move, position)

    def append_records(self, run: str, id: str, first: int, records: Sequence[str]) -> None:
        """Store records (lines of `record_to_json`) under numbers from `first`, replacing records
        with these numbers.
        """
        if first + len(records) >= LINES_PER_ROW:
            raise StoreError(
                f"{journal_label(self.path)}: row {id!r} has more than {LINES_PER_ROW - 1} records"
            )
        self._change(run, id, RowChanges.append, first + 1, records)

    def finish_row(self, run: str, id: str, status: Status, result: Mapping[str, Any]) -> None:
        """Store the result (JSON values) of a row. Status "open": the row was interrupted."""
        if status not in STATUSES:
            raise ConfigError(f"status must be one of {', '.join(STATUSES)}, got {status!r}")
        self._change(run, id, RowChanges.finish, status, dumps_text(dict(result)))

    def trace(self, run: str, id: str) -> Trace | None:
        """Return the trace of a row; None if there is none."""
        self._database.flush_if_pending([(run, id)])
        records = self._database.read(f"{SELECT_ROWS} AND id = ?", json.dumps(run), json.dumps(id))
        return self._trace(*self._row_info(records[0])) if records else None

    def traces(
        self, run: str, since_invocation: int | None = None
    ) -> Iterator[tuple[RowInfo, Trace]]:
        """Yield the rows seen in that invocation or later, with their traces, in the order of the
        input.

        None: all rows that are still in the input (see `mark_seen`); 0: all rows, also those no
        longer in the input.
        """
        info_of_run = self.run(run)
        since = since_invocation
        if since is None:
            since = (
                _invocation_in(info_of_run.metadata, "last_full_invocation") if info_of_run else 0
            )
        last = (-1, -1)
        while records := self._database.read(SELECT_ROWS_AFTER, json.dumps(run), *last, since):
            for row, info in map(self._row_info, records):
                if (info.position, row) <= last:
                    raise damaged_error(self.path, "its rows are out of order")
                last = (info.position, row)
                if trace := self._trace(row, info):
                    yield info, trace

    @property
    def data_version(self) -> int:
        """A number that changes when another connection has changed the file."""
        return int(self._database.read("PRAGMA data_version")[0][0])

    def row_states(self, run: str) -> dict[int, tuple[int, str, int]]:
        """Return the state of each row that is still in the input, by the number of the row in the
        file.

        A state is the position, the status, and a number that changes with the ID and with the
        number of records.
        """
        info, number = self.run(run), self._stored_number(run)
        since = _invocation_in(info.metadata, "last_full_invocation") if info else 0
        lengths = {
            row: crc32(f"{id} {length}".encode())
            for row, id, length in self._database.read(SELECT_LENGTHS, number)
        }
        records = self._database.read(SELECT_STATES, number, since)
        return {row: (position, status, lengths.get(row, 0)) for row, position, status in records}

    def row_ids(self, run: str) -> list[str]:
        """Return the IDs of all rows of a run, in the order in which they were first written."""
        return [
            value_from_json(id)
            for (id,) in self._database.read(SELECT_IDS, self._stored_number(run))
        ]

    def row_keys(self, run: str) -> dict[int, str]:
        """Return the key of each row (see `RowInfo`), by the number of the row in the file."""
        return dict(self._database.read(SELECT_KEYS, self._stored_number(run)))

    def stored_rows(self, numbers: Sequence[int]) -> Iterator[StoredRow]:
        """Yield the rows with these numbers as they are stored, without checks: about ten times as
        fast as `traces`.

        One row is in memory at a time; one whose lines cannot be read has none. Meant for a few
        hundred rows at a time.
        """
        for number in numbers:
            for _, id, position, status, result in self._database.read(SELECT_STORED_ROW, number):
                try:
                    lines = self._database.read(
                        SELECT_LINES, number * LINES_PER_ROW, (number + 1) * LINES_PER_ROW
                    )
                except StoreError:
                    lines = []
                yield StoredRow(
                    number, id, position, status, result, tuple(line for (line,) in lines)
                )

    def _stored_number(self, run: str) -> int:
        """Return the number of a run, also one that another process has created since the journal
        was opened.
        """
        records = self._database.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(run))
        if not records:
            raise StoreError(f"{journal_label(self.path)} has no run {run!r}")
        return int(records[0][0])

    def delete(self, run: str, ids: Sequence[str] | None = None) -> None:
        """Delete rows; without `ids` the whole run, which blocks. Cached replies stay: other runs
        may use them.
        """
        number = self._number(run)
        if ids is not None:
            for id in ids:
                self._change(run, id, RowChanges.delete)
            return
        self.flush()
        for table in ("rows", "runs"):
            self._database.writer.execute(f"DELETE FROM {table} WHERE run = ?", number)  # noqa: S608
        self.flush()
        del self._runs[run]

    def _change(
        self, run: str, id: str, change: Callable[..., None], *values: Any, postpone: bool = False
    ) -> None:
        number, writer, now = self._number(run), self._database.writer, time.monotonic()
        if now > self._stamped_at.get(run, -inf) + 1:
            self._stamped_at[run] = now
            writer.execute("UPDATE runs SET updated_at = ? WHERE run = ?", _now(), number)
        writer.change_row((run, id), number, change, *values, postpone=postpone)

    def _number(self, run: str) -> int:
        if run not in self._runs:
            raise StoreError(
                f"{journal_label(self.path)} has no run {run!r}: call update_run first"
            )
        return self._runs[run].number

    def _parse_run(self, record: tuple[Any, ...]) -> tuple[str, _RunState]:
        """Return the name and the state of a run. Raises StoreError for a damaged record."""
        number, name_json, metadata_json, started_at, updated_at = record
        name = self._read("run", number, name_json, str)
        metadata: Mapping[str, Any] = self._read(
            f"run {name!r}", "metadata", metadata_json, Mapping[str, Any]
        )
        invalid = next(
            (
                key
                for key, fits in METADATA_CHECKS.items()
                if key in metadata and not fits(metadata[key])
            ),
            None,
        )
        if invalid or not isinstance(started_at, str) or not isinstance(updated_at, str):
            problem = (
                f"{invalid} cannot be {metadata[invalid]!r:.80}"
                if invalid
                else f"started_at cannot be {started_at!r:.80}"
            )
            raise damaged_error(self.path, f"run {name!r:.80}: {problem}")
        return name, _RunState(number, metadata, started_at)

    def _read(self, label: str, which: Any, text: Any, kind: Any) -> Any:
        """Return the value of a JSON text. Raises StoreError for another type than `kind`."""
        try:
            value = value_from_json(text)
        except StoreError as error:
            raise damaged_error(self.path, f"{label}, {which}: {error}") from error
        if not validator_for(kind)(value):
            raise damaged_error(self.path, f"{label}, {which}: it cannot be {value!r:.80}")
        return value

    def _run_info(
        self, number: int, name: str, metadata: str, started_at: str, updated_at: str
    ) -> RunInfo:
        name, run = self._parse_run((number, name, metadata, started_at, updated_at))
        counts = dict(
            self._database.read(
                COUNT_BY_STATUS, number, _invocation_in(run.metadata, "last_full_invocation")
            )
        )
        return RunInfo(
            name, run.metadata, started_at, updated_at, {s: counts.get(s, 0) for s in STATUSES}
        )

    def _row_info(
        self, record: tuple[Any, ...], known_id: str | None = None, *, key_parts: bool = True
    ) -> tuple[int, RowInfo]:
        """Return the number of a row and the row. Raises StoreError for a damaged record."""
        row, stored_id, position, key, stored_parts, status, result = record
        try:
            id = value_from_json(stored_id) if known_id is None else known_id
            parts = value_from_json(stored_parts) if key_parts else {}
            info = RowInfo(id, position, key, parts, status, result and _result_from_json(result))
        except StoreError as error:
            raise damaged_error(self.path, f"row {row}: {error}") from error
        if not _is_row(info):
            name = next(name for name, fits in ROW_CHECKS.items() if not fits(getattr(info, name)))
            raise damaged_error(
                self.path, f"row {row}: its {name} cannot be {getattr(info, name)!r:.80}"
            )
        return row, info

    def _trace(self, row: int, info: RowInfo) -> Trace | None:
        lines = [
            line
            for (line,) in self._database.read(
                SELECT_LINES, row * LINES_PER_ROW, (row + 1) * LINES_PER_ROW
            )
        ]
        if not lines:
            return None
        try:
            return Trace.from_header(object_from_json(lines[0])).with_records(
                map(record_from_json, lines[1:])
            )
        except StoreError as error:
            raise StoreError(f"{journal_label(self.path)}, row {info.id!r:.80}: {error}") from error


@dataclass(frozen=True, slots=True)
class _RunState:
    """The number of a run and its stored fields, which every update writes."""

    number: int
    metadata: Mapping[str, Any]
    started_at: str


def _result_from_json(text: Any) -> Any:
    """Return the result of a row: as `value_from_json`, in a third of the time.

    What `json` wrote, with spaces, may have integers of which orjson makes floats.
    """
    if (
        text.__class__ is str
        and text.startswith(RESULT_START)
        and text.count("[") + text.count("{") < MAX_DEPTH
    ):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:  # a lone surrogate, NaN, or no JSON
            pass
    return value_from_json(text)


def _invocation_in(metadata: Mapping[str, Any], name: str) -> int:
    """Return the number of an invocation; 0 if there is none."""
    value = metadata.get(name)
    return value if type(value) is int else 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- the response cache
# ----------------------------------------------------------------------------

KEYS_PER_READ = 1000
MARKS = 2**20  # bytes
REPLY_FIELDS = tuple(
    f.name
    for f in fields(Reply)
    if f.compare and f.name not in {"usage", "tool_calls", "token_logprobs"}
)
"""The fields that make two replies equal, without those that are encoded separately."""
USAGE_FIELDS = tuple(f.name for f in fields(Usage))
REPLY_VALUES, USAGE_VALUES = attrgetter(*REPLY_FIELDS), attrgetter(*USAGE_FIELDS)


class ResponseCache(MutableMapping[str, Reply]):
    """The response cache: replies by the key of their request (hex), shared by all runs of the
    journal.

    A reply can be read as soon as it is set, before it is committed. In a journal that had no
    replies when it was opened, what was set is marked by its hash, so that few other keys need a
    statement.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        has_replies = not database.is_writable or database.read("SELECT 1 FROM calls LIMIT 1")
        self._marks = None if has_replies else bytearray(MARKS)

    def __getitem__(self, key: str) -> Reply:
        text = self._text(key)
        if text is None:
            raise KeyError(key)
        return decode_reply(self._database.path, key, text)

    def get(self, key: str, default: Any = None) -> Any:
        text = self._text(key)
        return default if text is None else decode_reply(self._database.path, key, text)

    def __setitem__(self, key: str, reply: Reply) -> None:
        if self._marks is not None:
            self._marks[hash(key) % MARKS] = 1
        self._database.writer.set_reply(key, _encode_reply(reply))

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._database.writer.set_reply(key, None)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._text(key) is not None

    def __iter__(self) -> Iterator[str]:
        self._database.flush()
        last = 0
        while rows := self._database.read(
            "SELECT call, key FROM calls WHERE call > ? ORDER BY call LIMIT ?", last, KEYS_PER_READ
        ):
            if rows[-1][0] <= last:
                raise damaged_error(self._database.path, "its calls are out of order")
            yield from (key for _, key in rows)
            last = rows[-1][0]

    def __len__(self) -> int:
        self._database.flush()
        return int(self._database.read("SELECT count(*) FROM calls")[0][0])

    def clear(self) -> None:
        """Delete all replies. Blocks."""
        self._database.flush()
        self._database.writer.execute("DELETE FROM calls")
        self._database.flush()

    def expect_any(self) -> None:
        """Look up every key from now on: other connections or processes add replies."""
        self._marks = None

    def _text(self, key: str) -> str | None:
        marks = self._marks  # read once: `expect_any` may be called in another thread
        if marks is not None and not marks[hash(key) % MARKS]:
            return None
        if (pending := self._database.pending_reply(key, "")) != "":
            return pending
        rows = self._database.read("SELECT reply FROM calls WHERE key = ?", key)
        return rows[0][0] if rows else None


def decode_reply(path: Path, key: str, text: Any) -> Reply:
    """Return a reply that `ResponseCache` stored. Raises StoreError that names the journal for
    anything else.
    """
    if not isinstance(text, str):
        raise damaged_error(path, f"call {key}: its reply is not text")
    try:
        data = object_from_json(text)
        tokens = decode_tokens(data.pop("token_logprobs", []))
        reply: Reply = replace(unpack(Reply, data), token_logprobs=tokens)
    except StoreError as error:
        raise StoreError(f"{journal_label(path)}, call {key}: {error}") from error
    return reply


def decode_tokens(rows: Any) -> tuple[TokenLogprobs, ...]:
    """Return the tokens that `_encode_reply` wrote. Raises StoreError."""
    try:
        return tuple(
            TokenLogprobs(str(token), tuple((str(t), float(p)) for t, p in top))
            for token, top in rows
        )
    except (TypeError, ValueError) as error:
        raise StoreError(f"the log-probabilities are damaged: {error}") from error


def _split_by_length(texts: Iterable[str], max_length: int) -> Iterator[list[str]]:
    """Yield the texts in lists of at most `max_length` characters together, or of a single longer
    text.
    """
    part: list[str] = []
    length = 0
    for text in texts:
        length += len(text)
        if part and length > max_length:
            yield part
            part, length = [], len(text)
        part.append(text)
    if part:
        yield part


def _encode_reply(reply: Reply) -> str:
    """Encode like `pack`, in a third of the time: every model call waits for this."""
    data = dict(zip(REPLY_FIELDS, REPLY_VALUES(reply), strict=True))
    if reply.tool_calls:
        data["tool_calls"] = [pack(call) for call in reply.tool_calls]
    if reply.token_logprobs:
        data["token_logprobs"] = [[token.token, token.top] for token in reply.token_logprobs]
    if reply.reasoning_form is None:
        del data["reasoning_form"]
    data["usage"] = dict(zip(USAGE_FIELDS, USAGE_VALUES(reply.usage), strict=True))
    return dumps_text(data)
