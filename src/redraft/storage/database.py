"""The open file of a journal: one reading connection, one thread that writes, and the lock.

The thread commits everything in its queue in one transaction and wakes the waiting callers. A first write is committed at once,
and so is one that asks for it; while writes keep arriving, a transaction is what has arrived in about GROUP_SECONDS, and its
`BulkStatement`s are executed for many rows together. This module does not know what the statements mean. Every error of SQLite
becomes a StoreError that names the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from ..errors import StoreError
from .schema import (
    check_file,
    check_journal,
    check_owner,
    is_new,
    journal_label,
    open_connection,
    open_reader,
    open_writer,
    set_time_limit,
    to_store_error,
)
from .secure_files import PathLock

READ_TIMEOUT = 120.0  # seconds for a statement that reads
MAX_READ_BYTES = 2**30  # bytes of text that it may return
DELETIONS_PER_TRANSACTION = 50  # of `Database.erase`
INCREMENTAL = 2  # SQLite's number of this way to vacuum
GROUP_SECONDS = 0.01  # between two transactions while writes keep arriving
GROUP_PAUSE = 0.003  # seconds without a write after which they count as no longer arriving
LONG_QUEUE = 100  # writes
ROWS_PER_STATEMENT = 32  # of a bulk statement, each of which has a text for each number of rows
PROCESS_ID = [os.getpid()]  # asked from the system once, and again in a forked child
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: PROCESS_ID.__setitem__(0, os.getpid()))


@dataclass(frozen=True, eq=False)
class BulkStatement:
    """A statement that writes many rows in one call: `{rows}` in its text stands for their values, `row` is the text for one.

    `stage` is its place among the bulk statements of a transaction. Statements with the same first two values, which name what
    they write to, stay in their order: before one of an earlier stage than the last one, or of the same stage if it is `single`,
    all rows so far are written. A statement must find what it writes to, unless it is a `deletion`.
    """

    stage: int
    sql: str
    row: str
    single: bool = False
    deletion: bool = False


@cache
def _bulk_sql(statement: BulkStatement, rows: int) -> str:
    """Return the text of a statement for a number of rows (at most ROWS_PER_STATEMENT)."""
    return statement.sql.format(rows=", ".join([statement.row] * rows))


Statement: TypeAlias = tuple[str | BulkStatement, tuple[Any, ...]]
ErrorTranslator: TypeAlias = Callable[[Exception], StoreError]


class Write(NamedTuple):
    """Statements of one transaction. `value` is what reading `key` returns until they are committed."""

    key: Hashable
    statements: tuple[Statement, ...]
    value: Any = None


class WriteGroup:
    """The writes of one transaction, the last one of each key, and the callers that wait for their commit."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.latest: dict[Hashable, Write] = {}
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def is_committed(self) -> bool:
        """Whether nothing is left to be committed."""
        return not self.writes


class Writer:
    """Writes on `connection`, which must not be used otherwise until `close`.

    `write_error` is set when writing has failed. Writes that are not committed are lost then; every later write or wait raises it.
    The queue is unbounded: callers that await `wait_for_commit` after their writes keep it short.
    """

    def __init__(self, connection: sqlite3.Connection, explain: ErrorTranslator) -> None:
        self.write_error: StoreError | None = None
        self._connection, self._explain = connection, explain
        self._lock = threading.Lock()
        self._work_available, self._progress = threading.Condition(self._lock), threading.Condition(self._lock)
        self._queue, self._current = WriteGroup(), WriteGroup()
        self._committed_at = -inf
        self._hurried = self._closed = False
        self._thread = threading.Thread(target=self._run, name="redraft-journal", daemon=True)
        self._thread.start()

    def enqueue(self, write: Write, *, at_once: bool = False) -> None:
        """Queue a write. With `at_once`, its commit does not wait for other writes. Raises `write_error`."""
        with self._lock:
            self._check()
            group = self._queue
            group.writes.append(write)
            group.latest[write.key] = write
            self._hurried |= at_once
            if at_once or len(group.writes) == 1:
                self._work_available.notify()

    def pending_write(self, key: Hashable) -> Write | None:
        """Return the last write of a key that is not committed yet."""
        return self._queue.latest.get(key) or self._current.latest.get(key)  # a group leaves the queue only as the current one

    def has_pending(self, keys: Collection[Hashable]) -> bool:
        """Return whether a write of one of these keys is not committed yet."""
        return not (self._queue.latest.keys().isdisjoint(keys) and self._current.latest.keys().isdisjoint(keys))  # in this order

    async def wait_for_commit(self) -> None:
        """Wait until everything queued before is committed. Raises `write_error`."""
        with self._lock:
            self._check()
            group = self._last_group
            if group.is_committed:
                return
            waiter = asyncio.get_running_loop().create_future()
            group.waiting.append(waiter)
        await waiter
        if self.write_error:
            raise StoreError(str(self.write_error))

    async def wait_for_room(self) -> None:
        """Wait for a commit if the queue is long. Raises `write_error`."""
        if self.write_error or len(self._queue.writes) > LONG_QUEUE:
            await self.wait_for_commit()

    def flush(self) -> None:
        """Block until everything queued before is committed. Raises `write_error`."""
        with self._lock:
            group = self._last_group
            self._hurried = True
            self._work_available.notify()
            self._progress.wait_for(lambda: group.is_committed or self.write_error)
            if self.write_error:
                raise StoreError(str(self.write_error))

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._lock:
            self._closed = True
            self._work_available.notify()
        self._thread.join()

    def _check(self) -> None:
        if self.write_error or self._closed:
            raise StoreError(str(self.write_error or "the journal is closed"))

    @property
    def _last_group(self) -> WriteGroup:
        """The group of the last write."""
        return self._current if self._queue.is_committed else self._queue

    def _run(self) -> None:
        while (group := self._next_group()).writes:
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001  (any error is passed to the waiting callers)
                self._fail(error)
                return
            self._mark_committed(group)

    def _next_group(self) -> WriteGroup:
        """Wait for writes and return all that are queued; an empty group after `close`."""
        with self._lock:
            self._work_available.wait_for(lambda: self._queue.writes or self._closed)
            self._wait_while_growing(self._queue.writes)
            self._current, self._queue, self._hurried = self._queue, WriteGroup(), False
            return self._current

    def _wait_while_growing(self, writes: list[Write]) -> None:
        """Wait while writes keep arriving, but not longer than GROUP_SECONDS after the last commit: fewer commits cost less."""
        count = 0
        while len(writes) > count and monotonic() < self._committed_at + GROUP_SECONDS and not (self._hurried or self._closed):
            count = len(writes)
            self._work_available.wait(GROUP_PAUSE)

    def _commit(self, group: WriteGroup) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        bulk = BulkWrites(self._connection)
        for write in group.writes:
            for statement, values in write.statements:
                if isinstance(statement, BulkStatement):
                    bulk.add(write.key, statement, values)
                else:
                    bulk.execute()
                    self._connection.execute(statement, values)
        bulk.execute()
        self._connection.execute("COMMIT")

    def _mark_committed(self, group: WriteGroup) -> None:
        with self._lock:
            self._committed_at = monotonic()
            self._wake_callers(group)
            group.writes, group.latest, group.waiting = [], {}, []

    def _fail(self, error: Exception) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        write_error = self._explain(error)
        with self._lock:
            self.write_error = write_error
            self._wake_callers(self._current)
            self._wake_callers(self._queue)

    def _wake_callers(self, group: WriteGroup) -> None:
        self._progress.notify_all()
        for loop in {waiter.get_loop() for waiter in group.waiting}:
            with suppress(RuntimeError):  # its loop is closed, so no caller waits there
                loop.call_soon_threadsafe(_wake, [waiter for waiter in group.waiting if waiter.get_loop() is loop])


def _wake(ready: list[asyncio.Future[None]]) -> None:
    for waiter in ready:
        if not waiter.done():
            waiter.set_result(None)


class BulkWrites:
    """Collects the rows of bulk statements, and executes each statement for all of its rows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._rows: dict[BulkStatement, list[tuple[Hashable, tuple[Any, ...]]]] = {}
        self._stages: dict[tuple[Any, ...], int] = {}  # of the last statement by its first two values

    def add(self, key: Hashable, statement: BulkStatement, values: tuple[Any, ...]) -> None:
        """Add a row. Executes what was added before if that must come first."""
        target = values[:2]
        if self._stages.get(target, -1) >= statement.stage + (not statement.single):
            self.execute()
        self._stages[target] = statement.stage
        self._rows.setdefault(statement, []).append((key, values))

    def execute(self) -> None:
        """Write all rows added so far. Raises StoreError for a statement that finds nothing to update."""
        for statement in sorted(self._rows, key=lambda statement: statement.stage):
            rows = self._rows[statement]
            for start in range(0, len(rows), ROWS_PER_STATEMENT):
                self._execute(statement, rows[start : start + ROWS_PER_STATEMENT])
        self._rows, self._stages = {}, {}

    def _execute(self, statement: BulkStatement, rows: list[tuple[Hashable, tuple[Any, ...]]]) -> None:
        values = [value for _, values in rows for value in values]
        found = self._connection.execute(_bulk_sql(statement, len(rows)), values).rowcount
        if found == len(rows) or statement.deletion:
            return
        for row in rows if len(rows) > 1 else ():  # find the one
            self._execute(statement, [row])
        raise StoreError(f"the journal has nothing to update for {rows[0][0]!r}: create it first")


class Database:
    """The connections of a journal. Reads see only what is committed: call `flush` first, or look at `pending_write`."""

    def __init__(self, path: Path, durability: str, *, create: bool, read_only: bool) -> None:
        self.path, self._process = path, PROCESS_ID[0]
        check_file(path)
        if is_new(path) and (read_only or not create):
            raise StoreError(f"there is no journal {str(path)!r}")
        self._writer: Writer | None = None
        with ExitStack() as stack:
            if not read_only:
                check_owner(path)
                stack.callback(PathLock(path, journal_label(path)).close)
            check_journal(path)
            write_connection = None if read_only else stack.enter_context(closing(open_writer(path, durability)))
            self._reader = stack.enter_context(closing(open_reader(path)))
            self._restart_clock = set_time_limit(self._reader, READ_TIMEOUT)
            if write_connection:  # registered last, so that its thread ends before the connections close
                self._writer = Writer(write_connection, self._to_store_error)
                stack.callback(self._writer.close)
            self._resources = stack.pop_all()

    @property
    def write_error(self) -> StoreError | None:
        return self._writer.write_error if self._writer else None

    def read(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows that a statement finds. Raises StoreError if they are too large or take too long."""
        self._check_process()
        self._restart_clock()
        try:
            return fetch_bounded(self._reader.execute(sql, values))
        except (sqlite3.Error, OverflowError) as error:
            raise to_store_error(self.path, error, action="read") from error

    def write(self, key: Hashable, *statements: Statement, value: Any = None, at_once: bool = False) -> None:
        """Queue statements for one transaction, see `Write` and `Writer.enqueue`."""
        self._check_process()
        if self._writer is None:
            raise StoreError(f"{journal_label(self.path)} was opened for reading only")
        self._writer.enqueue(Write(key, statements, value), at_once=at_once)

    def pending_write(self, key: Hashable) -> Write | None:
        """Return the last write of a key that is not committed yet."""
        return self._writer.pending_write(key) if self._writer else None

    def flush_if_pending(self, keys: Collection[Hashable]) -> None:
        """Commit the pending writes of these keys, so that they can be read. Blocks only if there are any."""
        if self._writer and self._writer.has_pending(keys):
            self._writer.flush()

    async def wait_for_commit(self) -> None:
        self._check_process()
        if self._writer:
            await self._writer.wait_for_commit()

    async def wait_for_room(self) -> None:
        self._check_process()
        if self._writer:
            await self._writer.wait_for_room()

    def flush(self) -> None:
        self._check_process()
        if self._writer:
            self._writer.flush()

    def compact(self) -> None:
        """Give the space of deleted rows back to the file system. Blocks, and needs as much free space as the file has."""
        self.flush()
        try:
            with closing(open_connection(self.path, "mode=rw")) as connection:
                connection.execute("VACUUM")
        except sqlite3.Error as error:
            raise self._to_store_error(error) from error

    def erase(self, deletions: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Execute statements that delete, overwrite what they deleted, and give its space back, also in the write-ahead log.

        Blocks; a few statements are one transaction, so that the writing thread goes on meanwhile.
        """
        self.flush()
        try:
            with closing(open_connection(self.path, "mode=rw")) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                for start in range(0, len(deletions), DELETIONS_PER_TRANSACTION):
                    connection.execute("BEGIN IMMEDIATE")
                    for sql, values in deletions[start : start + DELETIONS_PER_TRANSACTION]:
                        connection.execute(sql, values)
                    connection.execute("COMMIT")
                connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free a single page
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise to_store_error(self.path, error, action="written") from error

    def use_incremental_vacuum(self) -> None:
        """Arrange that `erase` can give space back. Blocks as `compact` does, the first time."""
        self.flush()
        try:
            with closing(open_connection(self.path, "mode=rw")) as connection:
                if connection.execute("PRAGMA auto_vacuum").fetchone() != (INCREMENTAL,):
                    connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
                    connection.execute("VACUUM")
        except sqlite3.Error as error:
            raise to_store_error(self.path, error, action="written") from error

    def copy(self, target: Path) -> None:
        """Write everything committed to another file. Blocks."""
        self.flush()
        try:
            with closing(sqlite3.connect(target)) as other:
                self._reader.backup(other)
        except sqlite3.Error as error:
            raise to_store_error(target, error) from error

    def close(self) -> None:
        """Commit what is queued and release the file. May be called again. Does nothing in a forked child."""
        if self._process == PROCESS_ID[0]:
            self._resources.close()

    def _check_process(self) -> None:
        """Raise StoreError after a fork: connections, the writer's thread and the lock belong to one process."""
        if self._process != PROCESS_ID[0]:
            raise StoreError(
                f"{journal_label(self.path)} was opened by process {self._process}; a forked process must open a journal of its own"
            )

    def _to_store_error(self, error: Exception) -> StoreError:
        try:
            finished = str(self.read("SELECT count(*) FROM rows WHERE status != 'open'")[0][0])
        except StoreError:
            finished = "all"
        return to_store_error(self.path, error, finished)


def fetch_bounded(cursor: sqlite3.Cursor) -> list[Any]:
    """Return all rows of a cursor. Raises OverflowError if they are too large."""
    rows, size = [], 0
    for row in cursor:
        rows.append(row)
        for value in row:
            if value.__class__ is str or value.__class__ is bytes:
                size += len(value)
        if size > MAX_READ_BYTES:
            raise OverflowError(f"the result is larger than {MAX_READ_BYTES // 2**20} MiB")
    return rows
