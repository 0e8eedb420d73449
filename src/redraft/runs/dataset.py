"""The data set of a run: all rows are first counted and checked, then read again one by one.

The check comes before any model call, so that a mistake in the data costs nothing. The IDs of millions of rows are held on disk.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..core.records import Task, message_text
from ..errors import ConfigError
from ..requirements.spec import check_foreign_spec
from ..tables.columns import MAX_LISTED_COLUMNS, RESPONSE_NAMES, TaskColumns
from ..tables.readers import BadRow, Row
from ..tables.sources import Source
from ..tables.tasks import RowMapping, infer_columns
from ..text import utf8_size
from .row_key import content_id

ON_DUPLICATE = ("error", "first", "last", "rename")
NUMBER = re.compile(r"\d+")
MAX_REASONS = 100  # that are counted separately
SHOWN_REASONS = 3
SAMPLE = 8  # rows that are looked at to recognise the shape

RejectRow = Callable[[BadRow], None]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A usable row: its number from 0, its place in the source, its columns, and its task with an ID."""

    n: int
    place: str
    values: Mapping[str, Any]
    task: Task

    @property
    def id(self) -> str:
        return self.task.id or ""


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What one pass over the data found: the numbers of usable (`total`) and unusable (`bad`) rows, and which IDs repeat.

    `prompt_bytes` counts all messages in UTF-8, `response_bytes` all responses, `with_response` the rows that have one.
    `duplicates` is None if every ID is unique.
    """

    total: int = 0
    bad: int = 0
    prompt_bytes: int = 0
    response_bytes: int = 0
    with_response: int = 0
    duplicates: IdIndex | None = None


class UnusableDatasetError(ConfigError):
    """No row can be used; `list_rows` reports every one of them again, with the reason."""

    def __init__(self, message: str, list_rows: Callable[[RejectRow], object]) -> None:
        super().__init__(message)
        self.list_rows = list_rows


class RejectionCounts:
    """Why rows cannot be used: how often each reason occurred, and where first. Reasons that differ only in numbers are one."""

    def __init__(self) -> None:
        self.total = 0
        self._found: dict[str, tuple[BadRow, int]] = {}

    def add(self, bad: BadRow) -> None:
        """Count an unusable row."""
        self.total += 1
        key = NUMBER.sub("#", bad.message)[:300]
        if key in self._found or len(self._found) < MAX_REASONS:
            first, n = self._found.get(key, (bad, 0))
            self._found[key] = first, n + 1

    def message(self, source: str) -> str:
        """Return an error message with the most frequent reasons first."""
        if not self.total:
            return f"there is no row in {source}: it is empty"
        frequent = sorted(self._found.values(), key=lambda found: -found[1])
        shown = "; ".join(f"{n:,} x {bad.message[:300]} (first at {bad.location})" for bad, n in frequent[:SHOWN_REASONS])
        more = f"; and {len(frequent) - SHOWN_REASONS} other reasons" if len(frequent) > SHOWN_REASONS else ""
        return (
            f"none of the {self.total:,} rows in {source} can be used: {shown}{more}"
            if self.total > 1
            else (f"the only row in {source} cannot be used: {frequent[0][0].message} (at {frequent[0][0].location})")
        )


@dataclass(frozen=True)
class BatchDataset:
    """A source, the meaning of its columns, what to do with duplicate IDs, and the most rows that are wanted.

    A duplicate of a given ID is an error by default; identical rows without IDs are distinguished by a number.
    """

    source: Source
    shape: RowMapping
    on_duplicate: str = "error"
    limit: int | None = None
    columns: tuple[str, ...] = ()

    @property
    def missing_response_reason(self) -> str:
        """Return why rows have no response, and what to do about it."""
        if name := self.shape.columns.response:
            return f"no row has one in {name!r}"
        names = ", ".join(map(repr, self.columns[:MAX_LISTED_COLUMNS])) + (
            " and more" if len(self.columns) > MAX_LISTED_COLUMNS else ""
        )
        return (
            f"no column is known to be the response ({', '.join(RESPONSE_NAMES)} are); "
            f"state it by --column response=NAME. There are {names}"
        )

    def summarize(self, on_progress: Callable[[int], object] = int) -> DatasetSummary:
        """Read all rows once; `on_progress` is called with their number so far.

        Raises ConfigError for a duplicate ID, naming both places, and UnusableDatasetError if no row can be used.
        """
        total = prompt_bytes = response_bytes = with_response = 0
        reasons, ids = RejectionCounts(), IdIndex()
        for row, task, id in self._read_tasks(reasons.add):
            earlier = ids.add(id, row.location)
            if earlier and task.id and self.on_duplicate == "error":
                raise ConfigError(
                    f"the id {task.id!r} occurs twice: {earlier} and {row.location}; make ids unique, or choose with "
                    f"--on-duplicate ({', '.join(ON_DUPLICATE[1:])})"
                )
            total += 1
            prompt_bytes += sum(utf8_size(message_text(m)) for m in task.messages)
            response_bytes += utf8_size(task.response or "")
            with_response += task.response is not None
            on_progress(total)
        if not total:
            raise UnusableDatasetError(reasons.message(self.source.name), lambda reject: deque(self._read_tasks(reject), 0))
        excess = ids.keep_duplicates()
        dropped = excess if self.on_duplicate in {"first", "last"} else 0
        return DatasetSummary(total - dropped, reasons.total, prompt_bytes, response_bytes, with_response, ids if excess else None)

    def rows(self, duplicates: IdIndex | None, reject: RejectRow) -> Iterator[BatchRow]:
        """Yield the usable rows, numbered; `reject` is called with the others."""
        if duplicates:
            duplicates.restart()
        n = 0
        for row, task, own in self._read_tasks(reject):
            id = own
            nth, of, suffix = duplicates.occurrence(id) if duplicates else (1, 1, "")
            if self._is_dropped(nth, of):
                continue
            id = id if nth == 1 or self.on_duplicate in {"first", "last"} else f"{id}{suffix}{nth}"
            yield BatchRow(n, row.location, self._with_id(row.values, id), replace(task, id=id) if id != task.id else task)
            n += 1

    def _with_id(self, values: Mapping[str, Any], id: str) -> Mapping[str, Any]:
        """Return the columns of a row, with its ID filled in if the ID column is empty."""
        column = self.shape.columns.id
        return {**values, column: id} if column in self.columns and values.get(column) in (None, "") else values

    def _is_dropped(self, nth: int, of: int) -> bool:
        return (self.on_duplicate == "first" and nth > 1) or (self.on_duplicate == "last" and nth < of)

    def _read_tasks(self, reject: RejectRow) -> Iterator[tuple[Row, Task, str]]:
        """Yield the rows that make a task, with the task and its ID; reject the others, whatever error they cause."""
        for row in islice(self.source.rows(reject), self.limit):
            try:
                task = self.shape.task(row.values)
                id = task.id or content_id(task)
            except ValueError as error:
                reject(BadRow(row.location, str(error)))
            except Exception as error:  # noqa: BLE001  (rows are foreign: whatever one makes our readers raise, the next is read)
                reject(BadRow(row.location, f"it cannot be read: {type(error).__name__}: {error}"))
            else:
                yield row, task, id


def open_dataset(source: Source, columns: TaskColumns, on_duplicate: str, limit: int | None) -> BatchDataset:
    """Return the data set in a source, with the columns that its first rows suggest. Raises ConfigError."""
    if on_duplicate not in ON_DUPLICATE:
        raise ConfigError(f"on_duplicate must be one of {', '.join(ON_DUPLICATE)}, got {on_duplicate!r}")
    reasons = RejectionCounts()
    sample = [row.values for row in islice(source.rows(reasons.add), SAMPLE)]
    if not sample:
        raise UnusableDatasetError(reasons.message(source.name), lambda reject: deque(source.rows(reject), 0))
    named = tuple(dict.fromkeys(name for values in sample for name in values))
    return BatchDataset(source, infer_columns(sample, columns, check_requirement=check_foreign_spec), on_duplicate, limit, named)


class IdIndex:
    """The IDs of all rows and where each occurred first; on disk, and deleted with this object."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, place TEXT, n INTEGER, nth INTEGER, suffix TEXT) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def __del__(self) -> None:
        self._db.close()

    def add(self, id: str, place: str) -> str | None:
        """Add an ID; return the place of its first occurrence if there is an earlier one."""
        n, earlier = self._db.execute(
            "INSERT INTO ids VALUES (?, ?, 1, 0, '') ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n, place",
            (json.dumps(id), place),
        ).fetchone()
        return earlier if n > 1 else None

    def keep_duplicates(self) -> int:
        """Forget unique IDs and give each duplicate one a suffix that makes "id#2" unique; return the number of excess rows."""
        excess = 0
        for stored, n in self._db.execute("SELECT id, n FROM ids WHERE n > 1 ORDER BY id").fetchall():
            id, suffix = json.loads(stored), "#"
            while any(self._contains(f"{id}{suffix}{nth}") for nth in range(2, n + 1)):
                suffix += "#"
            self._db.executemany(
                "INSERT INTO ids VALUES (?, '', 1, 0, '')", [(json.dumps(f"{id}{suffix}{nth}"),) for nth in range(2, n + 1)]
            )
            self._db.execute("UPDATE ids SET suffix = ? WHERE id = ?", (suffix, stored))
            excess += n - 1
        self._db.execute("DELETE FROM ids WHERE n = 1")
        return excess

    def _contains(self, id: str) -> bool:
        return self._db.execute("SELECT 1 FROM ids WHERE id = ?", (json.dumps(id),)).fetchone() is not None

    def restart(self) -> None:
        """Count occurrences from the first row again."""
        self._db.execute("UPDATE ids SET nth = 0")

    def occurrence(self, id: str) -> tuple[int, int, str]:
        """Return (occurrence, total, suffix) for the next row with this ID."""
        found = self._db.execute("UPDATE ids SET nth = nth + 1 WHERE id = ? RETURNING nth, n, suffix", (json.dumps(id),)).fetchone()
        return found or (1, 1, "")
