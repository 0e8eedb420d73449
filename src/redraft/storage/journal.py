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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from math import inf
from pathlib import Path, PurePath
from typing import Any, TypedDict
from zlib import crc32

from ..base.jsontext import dumps_text, text_to_json, to_json
from ..errors import ConfigError, StoreError
from ..loop.serialize import (
    Validator,
    field_validators,
    object_from_json,
    pack,
    record_from_json,
    unpack,
    validator_for,
    value_from_json,
)
from ..loop.trace import Trace
from ..plans.quality.result_facts import ResultFacts, Status
from ..protocols import Reply, TokenLogprobs
from .database import Database
from .schema import LINES_PER_ROW, Durability, damaged_error, journal_label
from .transaction import RowChanges

STATUSES: tuple[Status, ...] = ("open", "done", "failed")
ROWS_PER_READ = 200  # rows that `Journal.traces` reads at a time
MAX_IDS_LENGTH = 2**20  # of the IDs in one statement together, but for a single longer one

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


class OnlinePriorsData(TypedDict):
    start: Mapping[str, Any]
    refits: Mapping[str, Mapping[str, Any] | None]


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


METADATA_CHECKS = field_validators(RunMetadata)


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
        """The name for people: the name of the file that the run writes, unless the run was given a
        name of its own.
        """
        return display_name(self.name, self.metadata.get("output"))


def display_name(run: str, output: str | None) -> str:
    """Return the name of a run for people: its output file's, unless it was given a
    name of its own.
    """
    file = PurePath(output or "-").name
    return file if file != "-" and run_name(file) == run else run


def run_name(file: str) -> str:
    """Return the default name of the run that writes a file."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", file).strip("-")[:64] or "run"


def is_file_of_run(noted: str, file: str, journal: Path) -> bool:
    """Return whether a file is the one that a run has noted, by its path, or by its name in the
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
    `result` is the form of its result as it is stored; it may be incomplete.
    """

    id: str
    position: int
    key: str
    key_parts: Mapping[str, str]
    status: Status
    result: Mapping[str, Any] | None

    @property
    def facts(self) -> ResultFacts | None:
        """The result, in the state of the row. Raises StoreError for a damaged one."""
        if self.result is None:
            return None
        try:
            return ResultFacts.from_data({**self.result, "status": self.status})
        except StoreError as error:
            raise StoreError(
                f"the result of row {self.id!r:.80} in the journal cannot be read: {error}"
            ) from error


ROW_CHECKS: Mapping[str, Validator] = {
    **field_validators(RowInfo),
    "status": lambda v: v in STATUSES,
}


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


class Journal(Database):
    """The journal in a file, which one process at a time may write and any number may read.

    A missing or empty file is created, unless `create` is False. With durability "normal"
    everything committed survives `kill -9`, with "full" also a power failure. With `read_only` it
    takes no lock and reads beside a running writer. Raises StoreError for a file that is not a
    journal, is damaged, has another schema or is locked by another process, and leaves it
    unchanged.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "normal",
        create: bool = True,
        read_only: bool = False,
    ) -> None:
        super().__init__(Path(path), durability, create=create, read_only=read_only)
        try:
            self._runs = dict(map(self._parse_run, self.read(SELECT_RUNS)))
            self.response_cache = ResponseCache(self, may_be_empty=not read_only)
        except StoreError:
            self.close()
            raise
        self._stamped_at: dict[str, float] = {}

    def erase(self, run: str, ids: Sequence[str]) -> None:
        """Delete rows and overwrite their texts, in the file and in its log. Blocks, and may be
        called from any thread.

        Copies that SQLite made when it rearranged pages earlier stay until `compact`. The
        write-ahead log keeps deleted texts as long as another process reads the journal. Raises
        StoreError; writing goes on then.
        """
        number = self._number(run)
        self._erase([(DELETE_ROW, (number, json.dumps(id))) for id in ids])

    def runs(self) -> list[RunInfo]:
        """Return all runs, oldest first."""
        self.flush()
        return [self._run_info(*record) for record in self.read(f"{SELECT_RUNS} ORDER BY run")]

    def run(self, name: str) -> RunInfo | None:
        """Return a run; None if there is no run of that name."""
        self.flush()
        records = self.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(name))
        return self._run_info(*records[0]) if records else None

    def metadata(self, name: str) -> Mapping[str, Any]:
        """Return the metadata of a run, without counting its rows; {} if there is no run of that
        name.
        """
        self.flush()
        records = self.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(name))
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
        self.writer.execute(UPSERT_RUN, *values, at_once=True)

    def rows_by_id(
        self, run: str, ids: Sequence[str], *, key_parts: bool = True
    ) -> dict[str, RowInfo]:
        """Return the rows that the run has, by ID; without `key_parts` those are empty. Meant for a
        few hundred IDs at a time.
        """
        self.flush_if_pending([(run, id) for id in ids])
        parts = _split_by_length(map(text_to_json, ids), MAX_IDS_LENGTH)
        records = chain.from_iterable(
            self.read(SELECT_ROWS_BY_ID, to_json(run), to_json(part)) for part in parts
        )
        infos = (self._row_info(record, key_parts=key_parts)[1] for record in records)
        return {info.id: info for info in infos}

    def begin_row(  # noqa: PLR0917
        self,
        run: str,
        id: str,
        position: int,
        key: str,
        key_parts: Mapping[str, str],
        header: str,
    ) -> None:
        """Create a row that this invocation has seen; an existing one is replaced. `header` is
        `Trace.header()` as JSON.
        """
        begin = position, key, dumps_text(dict(key_parts)), header, self.invocation(run)
        self._change(run, id, RowChanges.begin, *begin)

    def invocation(self, run: str) -> int:
        """Return `metadata["invocation"]`, the number of the run's last invocation (from 1); 0 if
        there is none.
        """
        return _invocation_in(self._runs[run].metadata, "invocation") if run in self._runs else 0

    def mark_seen(self, run: str, ids: Sequence[str]) -> None:
        """Record that the last invocation of the run has seen rows in the input.

        Once `metadata["last_full_invocation"]` names an invocation that has read the whole input,
        rows last seen before it count as removed from the input: `traces` and `RunInfo.counts`
        leave them out. The rows must exist.
        """
        seen = self.invocation(run)
        # statements are executed before changes of rows
        if self.has_pending([(run, id) for id in ids]):
            for id in ids:
                self._change(run, id, RowChanges.see, seen)
        else:
            for part in _split_by_length(map(text_to_json, ids), MAX_IDS_LENGTH):
                self.writer.execute(MARK_SEEN, seen, self._number(run), to_json(part))

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
        self.flush_if_pending([(run, id)])
        records = self.read(f"{SELECT_ROWS} AND id = ?", json.dumps(run), json.dumps(id))
        return self._trace(*self._row_info(records[0])) if records else None

    def traces(self, run: str) -> Iterator[tuple[RowInfo, Trace]]:
        """Yield the rows that are still in the input (see `mark_seen`), with their traces, in the
        order of the input.
        """
        since = _invocation_in(self.metadata(run), "last_full_invocation")
        last = (-1, -1)
        while records := self.read(SELECT_ROWS_AFTER, json.dumps(run), *last, since):
            for row, info in map(self._row_info, records):
                if (info.position, row) <= last:
                    raise damaged_error(self.path, "its rows are out of order")
                last = (info.position, row)
                if trace := self._trace(row, info):
                    yield info, trace

    @property
    def data_version(self) -> int:
        """A number that changes when another connection has changed the file."""
        return int(self.read("PRAGMA data_version")[0][0])

    def row_states(self, run: str) -> dict[int, tuple[int, str, int]]:
        """Return the state of each row that is still in the input, by the number of the row in the
        file.

        A state is the position, the status, and a number that changes with the ID and with the
        number of records.
        """
        since = _invocation_in(self.metadata(run), "last_full_invocation")
        number = self._stored_number(run)
        lengths = {
            row: crc32(f"{id} {length}".encode())
            for row, id, length in self.read(SELECT_LENGTHS, number)
        }
        records = self.read(SELECT_STATES, number, since)
        return {row: (position, status, lengths.get(row, 0)) for row, position, status in records}

    def row_ids(self, run: str) -> list[str]:
        """Return the IDs of all rows of a run, in the order in which they were first written."""
        return [value_from_json(id) for (id,) in self.read(SELECT_IDS, self._stored_number(run))]

    def row_keys(self, run: str) -> dict[int, str]:
        """Return the key of each row (see `RowInfo`), by the number of the row in the file."""
        return dict(self.read(SELECT_KEYS, self._stored_number(run)))

    def stored_rows(self, numbers: Sequence[int]) -> Iterator[StoredRow]:
        """Yield the rows with these numbers as they are stored, without checks: about ten times as
        fast as `traces`.

        One row is in memory at a time; one whose lines cannot be read has none. Meant for a few
        hundred rows at a time.
        """
        for number in numbers:
            for _, id, position, status, result in self.read(SELECT_STORED_ROW, number):
                try:
                    lines = self._read_lines(number)
                except StoreError:
                    lines = []
                yield StoredRow(number, id, position, status, result, tuple(lines))

    def _read_lines(self, row: int) -> list[str]:
        found = self.read(SELECT_LINES, row * LINES_PER_ROW, (row + 1) * LINES_PER_ROW)
        return [line for (line,) in found]

    def _stored_number(self, run: str) -> int:
        """Return the number of a run, also one that another process has created since the journal
        was opened.
        """
        records = self.read(f"{SELECT_RUNS} WHERE name = ?", json.dumps(run))
        if not records:
            raise StoreError(f"{journal_label(self.path)} has no run {run!r}")
        return int(records[0][0])

    def delete(self, run: str) -> None:
        """Delete a run. Blocks. Cached replies stay: other runs may use them."""
        number = self._number(run)
        self.flush()
        for table in ("rows", "runs"):
            self.writer.execute(f"DELETE FROM {table} WHERE run = ?", number)  # noqa: S608
        self.flush()
        del self._runs[run]

    def _change(self, run: str, id: str, change: Callable[..., None], *values: Any) -> None:
        number, writer, now = self._number(run), self.writer, time.monotonic()
        if now > self._stamped_at.get(run, -inf) + 1:
            self._stamped_at[run] = now
            writer.execute("UPDATE runs SET updated_at = ? WHERE run = ?", _now(), number)
        writer.change_row((run, id), number, change, *values)

    def _number(self, run: str) -> int:
        if run not in self._runs:
            raise StoreError(
                f"{journal_label(self.path)} has no run {run!r}: call update_run first"
            )
        return self._runs[run].number

    def _parse_run(self, record: tuple[Any, ...]) -> tuple[str, _RunState]:
        """Return the name and the state of a run. Raises StoreError for a damaged record."""
        number, name_json, metadata_json, started_at, updated_at = record
        name = self._parse("run", number, name_json, str)
        metadata: Mapping[str, Any] = self._parse(
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

    def _parse(self, label: str, which: Any, text: Any, kind: Any) -> Any:
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
            self.read(COUNT_BY_STATUS, number, _invocation_in(run.metadata, "last_full_invocation"))
        )
        return RunInfo(
            name, run.metadata, started_at, updated_at, {s: counts.get(s, 0) for s in STATUSES}
        )

    def _row_info(self, record: tuple[Any, ...], *, key_parts: bool = True) -> tuple[int, RowInfo]:
        """Return the number of a row and the row. Raises StoreError for a damaged record."""
        row, stored_id, position, key, stored_parts, status, result = record
        try:
            id, stored_result = value_from_json(stored_id), result and value_from_json(result)
            parts = value_from_json(stored_parts) if key_parts else {}
            info = RowInfo(id, position, key, parts, status, stored_result)
        except StoreError as error:
            raise damaged_error(self.path, f"row {row}: {error}") from error
        for name, fits in ROW_CHECKS.items():
            if not fits(value := getattr(info, name)):
                raise damaged_error(self.path, f"row {row}: its {name} cannot be {value!r:.80}")
        return row, info

    def _trace(self, row: int, info: RowInfo) -> Trace | None:
        lines = self._read_lines(row)
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


class ResponseCache(MutableMapping[str, Reply]):
    """The response cache: replies by the key of their request (hex), shared by all runs of the
    journal.

    A reply can be read as soon as it is set, before it is committed. In a journal that had no
    replies when it was opened, what was set is marked by its hash, so that few other keys need a
    statement: without the marks, rows of a batch take a tenth more time.
    """

    def __init__(self, journal: Database, *, may_be_empty: bool) -> None:
        self._journal = journal
        is_empty = may_be_empty and not journal.read("SELECT 1 FROM calls LIMIT 1")
        self._marks = bytearray(MARKS) if is_empty else None

    def __getitem__(self, key: str) -> Reply:
        marks = self._marks  # read once: `expect_any` may be called in another thread
        if marks is not None and not marks[hash(key) % MARKS]:
            raise KeyError(key)
        text = self._journal.pending_reply(key)
        if text is None:
            rows = self._journal.read("SELECT reply FROM calls WHERE key = ?", key)
            if not rows:
                raise KeyError(key)
            text = rows[0][0]
        return decode_reply(self._journal.path, key, text)

    def __setitem__(self, key: str, reply: Reply) -> None:
        if self._marks is not None:
            self._marks[hash(key) % MARKS] = 1
        self._journal.writer.set_reply(key, _encode_reply(reply))

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._journal.flush()
        self._journal.writer.execute("DELETE FROM calls WHERE key = ?", key)
        self._journal.flush()

    def clear(self) -> None:
        """Delete all replies at once."""
        self._journal.writer.execute("DELETE FROM calls")
        self._journal.flush()

    def __iter__(self) -> Iterator[str]:
        self._journal.flush()
        last = 0
        while rows := self._journal.read(
            "SELECT call, key FROM calls WHERE call > ? ORDER BY call LIMIT ?", last, KEYS_PER_READ
        ):
            if rows[-1][0] <= last:
                raise damaged_error(self._journal.path, "its calls are out of order")
            yield from (key for _, key in rows)
            last = rows[-1][0]

    def __len__(self) -> int:
        self._journal.flush()
        return int(self._journal.read("SELECT count(*) FROM calls")[0][0])

    def expect_any(self) -> None:
        """Look up every key from now on: other connections or processes add replies."""
        self._marks = None


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
    """Return what makes two replies equal; later fields only where they have a value."""
    later = {
        "reasoning_form": reply.reasoning_form,
        "tool_calls": [pack(call) for call in reply.tool_calls],
        "token_logprobs": [[token.token, token.top] for token in reply.token_logprobs],
    }
    data = {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "reasoning": reply.reasoning,
        **{name: value for name, value in later.items() if value},
        "usage": asdict(reply.usage),
    }
    return dumps_text(data)
