"""The data set of a run, read twice: `BatchDataset.summarize` counts and checks all rows,
`DatasetRows` then yields them in order.

The check comes before any model call, so that a mistake in the data costs nothing. The second pass
joins each row with its key and with what the journal has of it (`PendingRow`). Rows are not held in
memory; the IDs of all rows are in a temporary database.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, NamedTuple, get_args

from ..base.jsontext import text_to_json
from ..base.text import utf8_size
from ..errors import ConfigError, StoreError
from ..loop.records import StopReason
from ..loop.task import Task, message_text
from ..requirements.spec import check_foreign_spec
from ..settings import OnDuplicate
from ..storage.journal import Journal, RowInfo
from ..tables.columns import (
    MAX_LISTED_COLUMNS,
    RESPONSE_NAMES,
    RowMapping,
    TaskColumns,
    infer_columns,
)
from ..tables.readers import BadRow, Row
from ..tables.row_values import has_value
from ..tables.sources import Source
from .row_key import RowKeys, content_id, row_key
from .row_result import RowResult

ON_DUPLICATE = get_args(OnDuplicate)
NUMBER = re.compile(r"\d+")
MAX_REASONS = 100  # reasons that are counted separately
SHOWN_REASONS = 3
SAMPLE = 8  # rows from which the columns are inferred
CHUNK = 128  # rows that are read at a time
ROWS_PER_MARK = (
    1000  # rows that are marked as seen at a time: after every commit SQLite reads its pages anew
)

RejectRow = Callable[[BadRow], None]


@dataclass(slots=True)
class BatchRow:
    """A usable row: its number from 0, its location in the source, its columns, and its task with
    an ID.
    """

    n: int
    location: str
    values: Mapping[str, Any]
    task: Task

    @property
    def id(self) -> str:
        return self.task.id or ""


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """The result of the first pass: the numbers of usable (`total`) and unusable (`bad`) rows, and
    the duplicate IDs.

    `prompt_bytes` and `response_bytes` are the sizes of all messages and responses in UTF-8,
    `with_response` is the number of rows with a response, `responses` the number of responses,
    `blank` that of given blank texts, which are none. `duplicates` is None if every ID is unique.
    `digest` is that of the data if the summary can be kept (see `saved_summary`), else "".
    """

    total: int = 0
    bad: int = 0
    prompt_bytes: int = 0
    response_bytes: int = 0
    with_response: int = 0
    responses: int = 0
    blank: int = 0
    duplicates: IdIndex | None = None
    digest: str = ""


class UnusableDatasetError(ConfigError):
    """No row can be used. `list_rows` calls a function with every row and the reason."""

    def __init__(self, message: str, list_rows: Callable[[RejectRow], object]) -> None:
        super().__init__(message)
        self.list_rows = list_rows


class RejectionCounts:
    """Counts why rows cannot be used, with the first row for each reason. Reasons that differ only
    in numbers count as one.
    """

    def __init__(self) -> None:
        self.total = 0
        self._reasons: dict[str, tuple[BadRow, int]] = {}

    def add(self, bad: BadRow) -> None:
        """Count an unusable row."""
        self.total += 1
        key = NUMBER.sub("#", bad.message)[:300]
        if key in self._reasons or len(self._reasons) < MAX_REASONS:
            first, n = self._reasons.get(key, (bad, 0))
            self._reasons[key] = first, n + 1

    def message(self, source: str) -> str:
        """Return an error message with the most frequent reasons first."""
        if not self.total:
            return f"there is no row in {source}: it is empty"
        frequent = sorted(self._reasons.values(), key=lambda reason: -reason[1])
        shown = "; ".join(
            f"{n:,} x {bad.message[:300]} (first at {bad.location})"
            for bad, n in frequent[:SHOWN_REASONS]
        )
        more = (
            f"; and {len(frequent) - SHOWN_REASONS} other reasons"
            if len(frequent) > SHOWN_REASONS
            else ""
        )
        return (
            f"none of the {self.total:,} rows in {source} can be used: {shown}{more}"
            if self.total > 1
            else (
                f"the only row in {source} cannot be used: {frequent[0][0].message} (at "
                f"{frequent[0][0].location})"
            )
        )


@dataclass(frozen=True)
class BatchDataset:
    """A source with the meaning of its columns. `limit`: the number of rows to read; None: all.

    `on_duplicate` says what to do if an ID column has a value twice: "error", "first", "last" or
    "rename". Identical rows without an ID column always get a number.
    """

    source: Source
    shape: RowMapping
    on_duplicate: str = "error"
    limit: int | None = None
    columns: tuple[str, ...] = ()

    @property
    def missing_response_reason(self) -> str:
        """Why rows have no response, and what to do about it."""
        if name := self.shape.columns.response or self.shape.columns.responses:
            return f"no row has one in {name!r}"
        names = ", ".join(map(repr, self.columns[:MAX_LISTED_COLUMNS])) + (
            " and more" if len(self.columns) > MAX_LISTED_COLUMNS else ""
        )
        return (
            f"no column is known to be the response ({', '.join(RESPONSE_NAMES)} are); "
            f"state it by --column response=NAME. There are {names}"
        )

    def summarize(self, on_progress: Callable[[int], object] = int) -> DatasetSummary:
        """Read all rows once, and call `on_progress` now and then with the number of rows read so
        far.

        Raises ConfigError for a duplicate ID, with both locations, and UnusableDatasetError if no
        row can be used.
        """
        total = prompt_bytes = response_bytes = with_response = responses = blank = 0
        reasons, ids = RejectionCounts(), IdIndex()
        for row, task, id in self._read_tasks(reasons.add):
            earlier = ids.add(id, row.location)
            if earlier and task.id and self.on_duplicate == "error":
                raise ConfigError(
                    f"the id {task.id!r} occurs twice: {earlier} and {row.location}; make ids "
                    f"unique, or choose with --on-duplicate ({', '.join(ON_DUPLICATE[1:])})"
                )
            total += 1
            blank += self.shape.count_blank_responses(row.values)
            for message in task.messages:
                prompt_bytes += utf8_size(message_text(message))
            if given := task.given_responses:
                with_response += 1
                responses += len(given)
                for text in given:
                    response_bytes += utf8_size(text)
            if total % CHUNK == 0:
                on_progress(total)
        on_progress(total)
        if not total:
            raise UnusableDatasetError(
                reasons.message(self.source.name), lambda reject: deque(self._read_tasks(reject), 0)
            )
        excess = ids.keep_duplicates()
        dropped = excess if self.on_duplicate in {"first", "last"} else 0
        sizes = prompt_bytes, response_bytes, with_response, responses, blank
        return DatasetSummary(total - dropped, reasons.total, *sizes, ids if excess else None)

    def rows(self, duplicates: IdIndex | None, reject: RejectRow) -> Iterator[BatchRow]:
        """Yield the usable rows, numbered; call `reject` with the others. An empty ID column gets
        the row's ID.
        """
        if duplicates:
            duplicates.restart()
        id_column = self.shape.columns.id if self.shape.columns.id in self.columns else None
        n = 0
        for row, task, own_id in self._read_tasks(reject):
            id = own_id
            if duplicates:
                occurrence, total, suffix = duplicates.occurrence(own_id)
                if (self.on_duplicate == "first" and occurrence > 1) or (
                    self.on_duplicate == "last" and occurrence < total
                ):
                    continue
                if occurrence > 1 and self.on_duplicate not in {"first", "last"}:
                    id = f"{own_id}{suffix}{occurrence}"
            values = row.values
            if id_column is not None and not has_value(values.get(id_column)):
                values = {**values, id_column: id}
            yield BatchRow(n, row.location, values, replace(task, id=id) if id != task.id else task)
            n += 1

    def _read_tasks(self, reject: RejectRow) -> Iterator[tuple[Row, Task, str]]:
        """Yield each row from which a task can be made, with the task and its ID; reject the
        others, whatever error they cause.
        """
        for row in islice(self.source.rows(reject), self.limit):
            try:
                task = self.shape.task(row.values)
                id = task.id or content_id(task)
            except ValueError as error:
                reject(BadRow(row.location, str(error)))
            except Exception as error:  # noqa: BLE001  (the data may be anything: a row that breaks a reader must not end the run)
                reject(BadRow(row.location, f"it cannot be read: {type(error).__name__}: {error}"))
            else:
                yield row, task, id


def open_dataset(
    source: Source, columns: TaskColumns, on_duplicate: str, limit: int | None
) -> BatchDataset:
    """Return the data set of a source, with the meaning of its columns inferred from the first
    rows. Raises ConfigError.
    """
    if on_duplicate not in ON_DUPLICATE:
        raise ConfigError(
            f"on_duplicate must be one of {', '.join(ON_DUPLICATE)}, got {on_duplicate!r}"
        )
    reasons = RejectionCounts()
    sample = [row.values for row in islice(source.rows(reasons.add), SAMPLE)]
    if not sample:
        raise UnusableDatasetError(
            reasons.message(source.name), lambda reject: deque(source.rows(reject), 0)
        )
    named = tuple(dict.fromkeys(name for values in sample for name in values))
    return BatchDataset(
        source,
        infer_columns(sample, columns, check_requirement=check_foreign_spec),
        on_duplicate,
        limit,
        named,
    )


class IdIndex:
    """The IDs of all rows and the location of the first row with each, in a temporary database that
    is deleted with this object.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute(
            "CREATE TABLE ids (id TEXT PRIMARY KEY, location TEXT, n INTEGER, nth INTEGER, suffix "
            "TEXT) WITHOUT ROWID"
        )
        self._db.execute("BEGIN")

    def __del__(self) -> None:
        self._db.close()

    def add(self, id: str, location: str) -> str | None:
        """Add an ID; return the location of an earlier row with the same ID, or None."""
        text = text_to_json(id)
        if self._db.execute(
            "INSERT OR IGNORE INTO ids VALUES (?, ?, 1, 0, '')", (text, location)
        ).rowcount:
            return None
        earlier: str = self._db.execute(
            "UPDATE ids SET n = n + 1 WHERE id = ? RETURNING location", (text,)
        ).fetchone()[0]
        return earlier

    def take(self, id: str) -> bool:
        """Count one row with this ID less; return False if there is none."""
        return bool(
            self._db.execute(
                "UPDATE ids SET n = n - 1 WHERE id = ? AND n > 0", (text_to_json(id),)
            ).rowcount
        )

    def rest(self) -> Iterator[tuple[str, int]]:
        """Yield the first location and the number of the rows with each ID that were not taken."""
        yield from self._db.execute("SELECT location, n FROM ids WHERE n > 0")

    def keep_duplicates(self) -> int:
        """Drop the unique IDs, choose a suffix for each other one such that "id#2" is unique;
        return the number of excess rows.
        """
        excess = 0
        for stored, n in self._db.execute(
            "SELECT id, n FROM ids WHERE n > 1 ORDER BY id"
        ).fetchall():
            id, suffix = json.loads(stored), "#"
            while any(self._contains(f"{id}{suffix}{i}") for i in range(2, n + 1)):
                suffix += "#"
            self._db.executemany(
                "INSERT INTO ids VALUES (?, '', 1, 0, '')",
                [(text_to_json(f"{id}{suffix}{i}"),) for i in range(2, n + 1)],
            )
            self._db.execute("UPDATE ids SET suffix = ? WHERE id = ?", (suffix, stored))
            excess += n - 1
        self._db.execute("DELETE FROM ids WHERE n = 1")
        return excess

    def _contains(self, id: str) -> bool:
        return (
            self._db.execute("SELECT 1 FROM ids WHERE id = ?", (text_to_json(id),)).fetchone()
            is not None
        )

    def restart(self) -> None:
        """Count occurrences from the first row again."""
        self._db.execute("UPDATE ids SET nth = 0")

    def occurrence(self, id: str) -> tuple[int, int, str]:
        """Return (occurrence, total, suffix) for the next row with this ID."""
        sql = "UPDATE ids SET nth = nth + 1 WHERE id = ? RETURNING nth, n, suffix"
        counts = self._db.execute(sql, (text_to_json(id),)).fetchone()
        return counts or (1, 1, "")


class PendingRow(NamedTuple):
    """A row, the key of its result, the parts of that key, and what the journal has of the row but
    such parts (None: nothing).
    """

    entry: BatchRow
    key: str
    parts: dict[str, str]
    info: RowInfo | None

    @property
    def n(self) -> int:
        return self.entry.n

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def is_current(self) -> bool:
        """Whether the journal has this row with the present data and settings."""
        return self.info is not None and self.info.key == self.key

    @property
    def result(self) -> RowResult | None:
        """Its result in the journal; None if there is none for the present data and settings."""
        if self.info is None or self.info.result is None or not self.is_current:
            return None
        return RowResult.from_data(self.info.status, self.info.result)

    @property
    def stopped_for_value(self) -> bool:
        """Whether it is finished because no further step was worth the price."""
        return (
            self.result is not None
            and self.result.status == "done"
            and self.result.columns["stop"] == StopReason.GAIN
        )

    @property
    def as_unfinished(self) -> PendingRow:
        """The same row with the status "open", if only the price had stopped it."""
        return (
            self._replace(info=replace(self.info, status="open"))
            if self.info and self.stopped_for_value
            else self
        )


@dataclass
class DatasetRows:
    """The rows of a data set in order. Calls `reject` with every unusable row."""

    dataset: BatchDataset
    summary: DatasetSummary
    keys: RowKeys
    journal: Journal
    run: str
    reject: RejectRow

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield all rows. With `reject=False` unusable rows are skipped silently, because another
        pass reports them.

        Rows that were appended to the data during the run are left to the next run, which checks
        them first.
        """
        all_rows = self.dataset.rows(self.summary.duplicates, self.reject if reject else _ignore)
        entries = takewhile(lambda entry: entry.n < self.summary.total, all_rows)
        seen: list[str] = []
        try:
            while chunk := await asyncio.to_thread(list, islice(entries, CHUNK)):
                # reading must not run ahead of writing, even if all rows are finished
                await self.journal.wait_for_room()
                known = self.journal.rows_by_id(
                    self.run, [entry.id for entry in chunk], key_parts=False
                )
                seen += known
                if len(seen) >= ROWS_PER_MARK or len(chunk) < CHUNK:
                    self.journal.mark_seen(self.run, seen)
                    seen.clear()
                for entry in chunk:
                    parts = self.keys.parts(entry.task)
                    yield PendingRow(entry, row_key(parts), parts, known.get(entry.id))
        finally:
            # the journal has failed, which every other write reports, too
            with suppress(StoreError):
                self.journal.mark_seen(self.run, seen)


def _ignore(bad: BadRow) -> None:
    """Do nothing: another pass reports this row."""
