"""The open file of a journal: one reading connection, one thread that writes, and the lock.

The thread commits everything in its queue in one transaction and wakes the waiting callers. Nothing is delayed on purpose: the
next transaction is what arrived during the last commit. This module does not know what the statements mean. Every error of SQLite
becomes a StoreError that names the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
Statement: TypeAlias = tuple[str, tuple[Any, ...]]
ErrorTranslator: TypeAlias = Callable[[Exception], StoreError]
CommitWaiter: TypeAlias = tuple[int, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True)
class Write:
    """Statements of one transaction. `value` is what reading `key` returns until they are committed."""

    key: Hashable
    statements: tuple[Statement, ...]
    value: Any = None


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
        self._queue: list[Write] = []
        self._latest: dict[Hashable, Write] = {}
        self._enqueued_count = self._committed_count = 0
        self._waiting: list[CommitWaiter] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="redraft-journal", daemon=True)
        self._thread.start()

    def enqueue(self, write: Write) -> None:
        """Queue a write. Raises `write_error`."""
        with self._lock:
            self._check()
            self._queue.append(write)
            self._latest[write.key] = write
            self._enqueued_count += 1
            self._work_available.notify()

    def pending_write(self, key: Hashable) -> Write | None:
        """Return the last write of a key that is not committed yet."""
        return self._latest.get(key)

    async def wait_for_commit(self) -> None:
        """Wait until everything queued before is committed. Raises `write_error`."""
        with self._lock:
            self._check()
            if self._committed_count == self._enqueued_count:
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((self._enqueued_count, waiter))
        await waiter
        if self.write_error:
            raise StoreError(str(self.write_error))

    def flush(self) -> None:
        """Block until everything queued before is committed. Raises `write_error`."""
        with self._lock:
            target = self._enqueued_count
            self._progress.wait_for(lambda: self._committed_count >= target or self.write_error)
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

    def _run(self) -> None:
        while group := self._next_group():
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001  (any error is passed to the waiting callers)
                self._fail(error)
                return
            self._mark_committed(group)

    def _next_group(self) -> list[Write]:
        """Wait for writes and return all that are queued; an empty list after `close`."""
        with self._lock:
            self._work_available.wait_for(lambda: self._queue or self._closed)
            group, self._queue = self._queue, []
            return group

    def _commit(self, group: list[Write]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for write in group:
            for sql, values in write.statements:
                if not execute(sql, values).rowcount and not sql.startswith("DELETE"):
                    raise StoreError(f"the journal has nothing to update for {write.key!r}: create it first")
        execute("COMMIT")

    def _mark_committed(self, group: list[Write]) -> None:
        with self._lock:
            self._committed_count += len(group)
            for write in group:
                if self._latest.get(write.key) is write:
                    del self._latest[write.key]
            self._notify_waiters()

    def _fail(self, error: Exception) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        write_error = self._explain(error)
        with self._lock:
            self.write_error = write_error
            self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Wake the callers whose writes are committed; after an error, all."""
        ready = [waiter for target, waiter in self._waiting if self.write_error or target <= self._committed_count]
        self._waiting = self._waiting[len(ready) :]
        self._progress.notify_all()
        for loop in {waiter.get_loop() for waiter in ready}:
            with suppress(RuntimeError):  # its loop is closed, so no caller waits there
                loop.call_soon_threadsafe(_wake, [waiter for waiter in ready if waiter.get_loop() is loop])


def _wake(ready: list[asyncio.Future[None]]) -> None:
    for waiter in ready:
        if not waiter.done():
            waiter.set_result(None)


class Database:
    """The connections of a journal. Reads see only what is committed: call `flush` first, or look at `pending_write`."""

    def __init__(self, path: Path, durability: str, *, create: bool, read_only: bool) -> None:
        self.path, self._process = path, os.getpid()
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

    def write(self, key: Hashable, *statements: Statement, value: Any = None) -> None:
        """Queue statements for one transaction, see `Write`."""
        self._check_process()
        if self._writer is None:
            raise StoreError(f"{journal_label(self.path)} was opened for reading only")
        self._writer.enqueue(Write(key, statements, value))

    def pending_write(self, key: Hashable) -> Write | None:
        """Return the last write of a key that is not committed yet."""
        return self._writer.pending_write(key) if self._writer else None

    def flush_if_pending(self, keys: Iterable[Hashable]) -> None:
        """Commit the pending writes of these keys, so that they can be read. Blocks only if there are any."""
        if self._writer and any(map(self._writer.pending_write, keys)):
            self._writer.flush()

    async def wait_for_commit(self) -> None:
        self._check_process()
        if self._writer:
            await self._writer.wait_for_commit()

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

    def erase(self, deletions: Sequence[Statement]) -> None:
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
        if self._process == os.getpid():
            self._resources.close()

    def _check_process(self) -> None:
        """Raise StoreError after a fork: connections, the writer's thread and the lock belong to one process."""
        if self._process != os.getpid():
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
