"""What one transaction of a journal writes. The changes of each row are collected, then written for
many rows at a time.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count
from typing import Any, TypeAlias

from ..base.jsontext import text_to_json
from ..errors import StoreError
from .schema import LINES_PER_ROW

ROWS_PER_STATEMENT = 32  # each statement has a text for each number of rows
# by its index
FIND_ROWS = (
    "SELECT column1, column2, row FROM (VALUES {}) CROSS JOIN rows ON run = column1 AND id = "
    "column2"
)
DELETE_ROWS = "DELETE FROM rows WHERE row IN (VALUES {})"
INSERT_ROWS = "INSERT INTO rows VALUES {}"
FINISH_ROWS = (
    "UPDATE rows SET status = column2, result = column3 FROM (VALUES {}) WHERE row = column1"
)
MOVE_ROWS = "UPDATE rows SET position = column2 FROM (VALUES {}) WHERE row = column1"
UPSERT_SEEN = "INSERT OR REPLACE INTO seen_rows VALUES {}"
UPSERT_LINES = "INSERT OR REPLACE INTO lines VALUES {}"
UPSERT_REPLIES = "INSERT OR REPLACE INTO calls (key, reply) VALUES {}"

RowKey: TypeAlias = tuple[str, str]  # the name of the run and the ID
Values: TypeAlias = tuple[Any, ...]


@dataclass(slots=True)
class RowChanges:
    """What changes in a row. Each method replaces what earlier ones have set.

    `run` and `id` are the columns that name it, `begun` the key and its parts of a row that begins,
    in place of the one that there may be, and `end` the status and the result.
    """

    run: int
    id: str
    begun: tuple[str, ...] = ()
    end: tuple[str | None, ...] = ()
    position: int | None = None
    invocation: int | None = None
    lines: dict[int, str] = field(default_factory=dict)

    @property
    def name(self) -> tuple[int, str]:
        return self.run, self.id

    def begin(self, position: int, key: str, key_parts: str, header: str, invocation: int) -> None:
        """Create the row, in place of the one that there may be."""
        self.begun, self.end, self.lines = (key, key_parts), ("open", None), {0: header}
        self.position, self.invocation = position, invocation

    def append(self, first: int, lines: Sequence[str]) -> None:
        """Set the lines from a place on."""
        self.lines.update(enumerate(lines, first))

    def finish(self, status: str, result: str) -> None:
        """Set the status and the result."""
        self.end = status, result

    def move(self, position: int) -> None:
        """Set the position in the input."""
        self.position = position

    def see(self, invocation: int) -> None:
        """Set the invocation that has seen the row last."""
        self.invocation = invocation


class Transaction:
    """What is written together: statements, rows and replies, in this order; and who waits for
    it.

    `callbacks`: what is called once it is written.
    """

    def __init__(self) -> None:
        self.statements: list[tuple[str, Values]] = []
        self.rows: dict[RowKey, RowChanges] = {}
        self.replies: dict[str, str] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self.statements) + len(self.rows) + len(self.replies) + len(self.callbacks)

    def clear(self) -> None:
        """Forget everything."""
        self.statements, self.rows, self.replies = [], {}, {}
        self.callbacks, self.waiting = [], []

    def changes_of(self, key: RowKey, run: int) -> RowChanges:
        """Return the changes of a row, to which more can be added."""
        return self.rows.setdefault(key, RowChanges(run, text_to_json(key[1])))

    def commit(self, connection: sqlite3.Connection) -> None:
        """Write everything, or nothing. Raises sqlite3.Error, and StoreError for a row that does
        not exist.
        """
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._write(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def _write(self, connection: sqlite3.Connection) -> None:
        for sql, values in self.statements:
            connection.execute(sql, values)
        if self.rows:
            _write_rows(connection, self.rows)
        _execute(connection, UPSERT_REPLIES, list(self.replies.items()))


def _write_rows(connection: sqlite3.Connection, rows: Mapping[RowKey, RowChanges]) -> None:
    found = _execute(connection, FIND_ROWS, [row.name for row in rows.values()])
    numbers = {(run, id): number for run, id, number in found}
    (highest,) = connection.execute("SELECT coalesce(max(row), 0) FROM rows").fetchone()
    # asked before rows are deleted: none that replaces another has its number
    new_numbers = count(highest + 1)
    _execute(
        connection,
        DELETE_ROWS,
        [(numbers.pop(r.name),) for r in rows.values() if r.begun and r.name in numbers],
    )
    new, old = [], []
    for key, row in rows.items():
        if row.begun:
            new.append((next(new_numbers), row))
        elif row.name in numbers:
            old.append((numbers[row.name], row))
        else:
            raise StoreError(f"the journal has nothing to update for {key!r}: create it first")
    _execute(
        connection,
        INSERT_ROWS,
        [(number, *row.name, row.position, *row.begun, *row.end) for number, row in new],
    )
    _execute(connection, FINISH_ROWS, [(number, *row.end) for number, row in old if row.end])
    _execute(
        connection,
        MOVE_ROWS,
        [(number, row.position) for number, row in old if row.position is not None],
    )
    both = new + old
    _execute(
        connection,
        UPSERT_SEEN,
        [(number, row.invocation) for number, row in both if row.invocation is not None],
    )
    lines = [
        (number * LINES_PER_ROW + place, line)
        for number, row in both
        for place, line in row.lines.items()
    ]
    _execute(connection, UPSERT_LINES, lines)


def _execute(connection: sqlite3.Connection, sql: str, rows: Sequence[Values]) -> list[Any]:
    """Execute a statement, for as many rows at a time as it may have, and return what it finds."""
    found: list[Any] = []
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        part = rows[start : start + ROWS_PER_STATEMENT]
        found += connection.execute(
            _statement(sql, len(part), len(part[0])), list(chain.from_iterable(part))
        )
    return found


@cache
def _statement(sql: str, rows: int, columns: int) -> str:
    """Return the text of a statement for a number of rows (at most ROWS_PER_STATEMENT)."""
    return sql.format(", ".join([f"({', '.join('?' * columns)})"] * rows))
