"""The rows of a run as the engine takes them: first counted and checked, all of them, then read again one by one.

The survey comes before anything is asked, so that a mistake in the data costs nothing. What it must remember of a million
rows is on disk.
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
from ..tables.columns import MAX_LISTED_COLUMNS, RESPONSE_NAMES, RowMapping, TaskColumns, infer_columns
from ..tables.readers import BadRow, Row
from ..tables.sources import Source
from ..text import utf8_size
from .keys import content_id

ON_DUPLICATE = ("error", "first", "last", "rename")
NUMBER = re.compile(r"\d+")
MOST_REASONS = 100  # that are told apart
SHOWN_REASONS = 3
SAMPLE = 8  # rows that are looked at to recognise the shape

Refuse = Callable[[BadRow], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that can be worked on: its number from 0, where it stands, its columns, its task with an id."""

    n: int
    place: str
    values: Mapping[str, Any]
    task: Task

    @property
    def id(self) -> str:
        return self.task.id or ""


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over the data found: how many rows that can be worked on, and that cannot; which ids come again.

    `prompt_bytes` are those of all messages in UTF-8, `answer_bytes` those of responses, `answered` the rows that have one.
    `twins`: None where no id comes again.
    """

    total: int = 0
    bad: int = 0
    prompt_bytes: int = 0
    answer_bytes: int = 0
    answered: int = 0
    twins: Ids | None = None


class Unusable(ConfigError):
    """No row can be used; `rows` gives all of them again, with why not."""

    def __init__(self, message: str, rows: Callable[[Refuse], object]) -> None:
        super().__init__(message)
        self.rows = rows


class Reasons:
    """Why rows cannot be used: the first place of each reason, and how often it came. Reasons that differ in numbers are one."""

    def __init__(self) -> None:
        self.total = 0
        self._found: dict[str, tuple[BadRow, int]] = {}

    def add(self, bad: BadRow) -> None:
        """Count one."""
        self.total += 1
        key = NUMBER.sub("#", bad.message)[:300]
        if key in self._found or len(self._found) < MOST_REASONS:
            first, n = self._found.get(key, (bad, 0))
            self._found[key] = first, n + 1

    def told(self, said: str) -> str:
        """In words, the most frequent reasons first."""
        if not self.total:
            return f"there is no row in {said}: it is empty"
        often = sorted(self._found.values(), key=lambda found: -found[1])
        shown = "; ".join(f"{n:,} x {bad.message[:300]} (first at {bad.location})" for bad, n in often[:SHOWN_REASONS])
        more = f"; and {len(often) - SHOWN_REASONS} other reasons" if len(often) > SHOWN_REASONS else ""
        return (
            f"none of the {self.total:,} rows in {said} can be used: {shown}{more}"
            if self.total > 1
            else (f"the only row in {said} cannot be used: {often[0][0].message} (at {often[0][0].location})")
        )


@dataclass(frozen=True)
class Table:
    """A source, what its columns mean, what to do with an id that comes twice, and how many rows are wanted at most.

    An id that is given and comes twice is an error; rows without ids are told apart by number where they are alike.
    """

    source: Source
    shape: RowMapping
    on_duplicate: str = "error"
    limit: int | None = None
    columns: tuple[str, ...] = ()

    @property
    def without_response(self) -> str:
        """Why rows have no response, and what to do about it."""
        if name := self.shape.columns.response:
            return f"no row has one in {name!r}"
        shown = ", ".join(map(repr, self.columns[:MAX_LISTED_COLUMNS])) + (
            " and more" if len(self.columns) > MAX_LISTED_COLUMNS else ""
        )
        return f"no column is known to be the response ({', '.join(RESPONSE_NAMES)} are); state it by --response-col. There are {shown}"

    def survey(self, look: Callable[[int], object] = int) -> Survey:
        """One pass. `look` is told how far it is.

        Raises ConfigError for an id that stands twice, naming both places, and Unusable where no row makes a task.
        """
        total = asked = given = answered = 0
        reasons, ids = Reasons(), Ids()
        for row, task, id in self._tasks(reasons.add):
            earlier = ids.add(id, row.location)
            if earlier and task.id and self.on_duplicate == "error":
                raise ConfigError(
                    f"the id {task.id!r} stands twice: {earlier} and {row.location}; make ids unique, or choose with "
                    f"--on-duplicate ({', '.join(ON_DUPLICATE[1:])})"
                )
            total += 1
            asked += sum(utf8_size(message_text(m)) for m in task.messages)
            given += utf8_size(task.response or "")
            answered += task.response is not None
            look(total)
        if not total:
            raise Unusable(reasons.told(self.source.name), lambda refuse: deque(self._tasks(refuse), 0))
        doubles = ids.settle()
        left_out = doubles if self.on_duplicate in {"first", "last"} else 0
        return Survey(total - left_out, reasons.total, asked, given, answered, ids if doubles else None)

    def entries(self, twins: Ids | None, refuse: Refuse) -> Iterator[Entry]:
        """The rows, numbered. `refuse` is told of those that cannot be used."""
        if twins:
            twins.begin()
        n = 0
        for row, task, own in self._tasks(refuse):
            id = own
            nth, of, mark = twins.met(id) if twins else (1, 1, "")
            if self._left_out(nth, of):
                continue
            id = id if nth == 1 or self.on_duplicate in {"first", "last"} else f"{id}{mark}{nth}"
            yield Entry(n, row.location, self._named(row.values, id), replace(task, id=id) if id != task.id else task)
            n += 1

    def _named(self, values: Mapping[str, Any], id: str) -> Mapping[str, Any]:
        """The columns of a row, with its id where there is a column for it that holds none."""
        column = self.shape.columns.id
        return {**values, column: id} if column in self.columns and values.get(column) in (None, "") else values

    def _left_out(self, nth: int, of: int) -> bool:
        return (self.on_duplicate == "first" and nth > 1) or (self.on_duplicate == "last" and nth < of)

    def _tasks(self, refuse: Refuse) -> Iterator[tuple[Row, Task, str]]:
        """The rows that make a task, with its id. Whatever a row makes our readers raise, it is the row that is refused."""
        for row in islice(self.source.rows(refuse), self.limit):
            try:
                task = self.shape.task(row.values)
                id = task.id or content_id(task)
            except ValueError as error:
                refuse(BadRow(row.location, str(error)))
            except Exception as error:  # noqa: BLE001  (rows are foreign: whatever one makes our readers raise, the next is read)
                refuse(BadRow(row.location, f"it cannot be read: {type(error).__name__}: {error}"))
            else:
                yield row, task, id


def table_of(source: Source, columns: TaskColumns, on_duplicate: str, limit: int | None) -> Table:
    """The table in a source, once its first rows are looked at. Raises ConfigError."""
    if on_duplicate not in ON_DUPLICATE:
        raise ConfigError(f"on_duplicate must be one of {', '.join(ON_DUPLICATE)}, got {on_duplicate!r}")
    reasons = Reasons()
    sample = [row.values for row in islice(source.rows(reasons.add), SAMPLE)]
    if not sample:
        raise Unusable(reasons.told(source.name), lambda refuse: deque(source.rows(refuse), 0))
    named = tuple(dict.fromkeys(name for values in sample for name in values))
    return Table(source, infer_columns(sample, columns), on_duplicate, limit, named)


class Ids:
    """Ids that were met, and where; on disk, so that there may be millions, and gone with this object."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=OFF")
        self._db.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, place TEXT, n INTEGER, nth INTEGER, mark TEXT) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def __del__(self) -> None:
        self._db.close()

    def add(self, id: str, place: str) -> str | None:
        """Remember an id; the place where it stood before, if it did."""
        n, earlier = self._db.execute(
            "INSERT INTO ids VALUES (?, ?, 1, 0, '') ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n, place",
            (json.dumps(id), place),
        ).fetchone()
        return earlier if n > 1 else None

    def settle(self) -> int:
        """Keep those that came again, with a mark for each so that "id#2" is nobody else's; how many rows too many they are."""
        doubles = 0
        for told, n in self._db.execute("SELECT id, n FROM ids WHERE n > 1 ORDER BY id").fetchall():
            id, mark = json.loads(told), "#"
            while any(self._held(f"{id}{mark}{nth}") for nth in range(2, n + 1)):
                mark += "#"
            self._db.executemany(
                "INSERT INTO ids VALUES (?, '', 1, 0, '')", [(json.dumps(f"{id}{mark}{nth}"),) for nth in range(2, n + 1)]
            )
            self._db.execute("UPDATE ids SET mark = ? WHERE id = ?", (mark, told))
            doubles += n - 1
        self._db.execute("DELETE FROM ids WHERE n = 1")
        return doubles

    def _held(self, id: str) -> bool:
        return self._db.execute("SELECT 1 FROM ids WHERE id = ?", (json.dumps(id),)).fetchone() is not None

    def begin(self) -> None:
        """Meet them anew, from the first row on."""
        self._db.execute("UPDATE ids SET nth = 0")

    def met(self, id: str) -> tuple[int, int, str]:
        """The how manieth row with this id it is, of how many, and the mark that tells them apart."""
        found = self._db.execute("UPDATE ids SET nth = nth + 1 WHERE id = ? RETURNING nth, n, mark", (json.dumps(id),)).fetchone()
        return found or (1, 1, "")
