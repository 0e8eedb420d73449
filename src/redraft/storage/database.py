"""The open file of a journal: one reading connection, one thread that writes, and the lock.

The thread commits everything in its queue in one transaction and wakes the waiting callers. A first
write is committed at once, and so is one that asks for it; while writes keep arriving, a
transaction is what has arrived in about GROUP_SECONDS. Every error of SQLite becomes a StoreError
that names the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeAlias

from ..base.log import log
from ..errors import StoreError
from .schema import (
    CHECKPOINT_PAGES,
    check_file,
    check_journal,
    check_owner,
    empty_log,
    is_new,
    journal_label,
    open_connection,
    open_reader,
    open_writer,
    set_time_limit,
    to_store_error,
)
from .secure_files import PathLock
from .transaction import RowKey, Transaction

READ_TIMEOUT = 120.0  # seconds for a statement that reads
MAX_READ_BYTES = 2**30  # bytes of text that it may return
DELETIONS_PER_TRANSACTION = 50  # of `Database._erase`
INCREMENTAL = 2  # SQLite's number of this way to vacuum
GROUP_SECONDS = 0.02  # between two transactions while writes keep arriving
GROUP_PAUSE = 0.003  # seconds without a write after which they count as no longer arriving
BUSY = 8  # writes in a transaction after which they count as still arriving
LONG_QUEUE = 1200  # statements, rows and replies

Commit: TypeAlias = Callable[[Transaction], None]
"""Commits a transaction. May raise anything."""


class Writer:
    """Passes what is to be written to `commit`, in a thread of its own, a transaction at a time,
    until `close`.

    `write_error` is set when writing has failed. Writes that are not committed are lost then; every
    later write or wait raises it. The queue is unbounded: callers that await `wait_for_commit`
    after their writes keep it short.
    """

    def __init__(self, commit: Commit, explain: Callable[[Exception], StoreError]) -> None:
        self.write_error: StoreError | None = None
        self._commit, self._explain = commit, explain
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        # has a lock of its own: callers never wait for a thread that is waking up
        self._work_available = threading.Event()
        self._queue, self._current = Transaction(), Transaction()
        self._committed_at = -inf
        self._is_idle = self._is_busy = self._hurried = self._closed = False
        self._thread = threading.Thread(target=self._run, name="redraft-journal", daemon=True)
        self._thread.start()

    def execute(self, sql: str, *values: Any, at_once: bool = False) -> None:
        """Queue a statement. With `at_once`, its commit does not wait for other writes. Raises
        `write_error`.
        """
        with self._open_queue(at_once=at_once) as queue:
            queue.statements.append((sql, values))

    def change_row(self, key: RowKey, run: int, change: Callable[..., None], *values: Any) -> None:
        """Queue a change of a row: a method of `RowChanges` and its arguments. Raises
        `write_error`.
        """
        with self._open_queue() as queue:
            change(queue.changes_of(key, run), *values)

    def set_reply(self, key: str, text: str) -> None:
        """Queue a reply. Raises `write_error`."""
        with self._open_queue() as queue:
            queue.replies[key] = text

    @contextmanager
    def _open_queue(self, *, at_once: bool = False) -> Iterator[Transaction]:
        """Lock the queue for a write, and wake the thread if it waits for one."""
        with self._lock:
            self._check()
            yield self._queue
            self._hurried |= at_once
            if at_once or self._is_idle:
                self._work_available.set()

    def pending_reply(self, key: str) -> str | None:
        """Return a reply that is not committed yet; None if there is none."""
        # in this order: writes leave the queue only as the current ones
        return self._queue.replies.get(key) or self._current.replies.get(key)

    def has_pending(self, keys: Collection[RowKey]) -> bool:
        """Return whether a change of one of these rows is not committed yet."""
        return not all(
            rows.keys().isdisjoint(keys) for rows in (self._queue.rows, self._current.rows)
        )

    def call_after_commit(self, callback: Callable[[], None]) -> None:
        """Call back once everything queued before is committed, or cannot be any more.

        The call is made at once if that is so already, else by the writing thread, before it wakes
        those who wait for the commit. `callback` uses nothing of the journal; what it raises in the
        writing thread is logged.
        """
        with self._lock:
            must_wait = self._last and not self.write_error
            if must_wait:
                self._queue.callbacks.append(callback)
                if self._is_idle:
                    self._work_available.set()
        if not must_wait:
            callback()

    async def wait_for_commit(self) -> None:
        """Wait until everything queued before is committed. Raises `write_error`."""
        with self._lock:
            self._check()
            last = self._last
            if not last:
                return
            waiter = asyncio.get_running_loop().create_future()
            last.waiting.append(waiter)
        await waiter
        if self.write_error:
            raise StoreError(str(self.write_error))

    async def wait_for_room(self) -> None:
        """Wait for a commit if the queue is long. Raises `write_error`."""
        if self.write_error or len(self._queue) > LONG_QUEUE:
            await self.wait_for_commit()

    def flush(self) -> None:
        """Block until everything queued before is committed. Raises `write_error`."""
        with self._lock:
            last = self._last
            self._hurried = True
            self._work_available.set()
            self._progress.wait_for(lambda: not last or self.write_error)
            if self.write_error:
                raise StoreError(str(self.write_error))

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._lock:
            self._closed = True
            self._work_available.set()
        self._thread.join()

    def _check(self) -> None:
        if self.write_error or self._closed:
            raise StoreError(str(self.write_error or "the journal is closed"))

    @property
    def _last(self) -> Transaction:
        """The transaction of the last write; an empty one if that is committed."""
        return self._queue or self._current

    def _run(self) -> None:
        while transaction := self._next_transaction():
            try:
                self._commit(transaction)
            except Exception as error:  # noqa: BLE001  (any error is passed to the waiting callers)
                self._fail(error)
                return
            _call(transaction.callbacks)  # nothing is added any more: it is no longer the queue
            self._mark_committed(transaction)

    def _next_transaction(self) -> Transaction:
        """Wait for writes and return all that are queued; nothing after `close`."""
        # before the queue is looked at: a write that comes afterwards sets the event
        self._is_idle = True
        while not (self._queue or self._closed):
            self._pause()
        self._is_idle = False
        self._wait_while_growing()
        with self._lock:
            self._is_busy = len(self._queue) >= BUSY
            self._current, self._queue, self._hurried = self._queue, Transaction(), False
            return self._current

    def _pause(self, seconds: float | None = None) -> None:
        self._work_available.wait(seconds)
        self._work_available.clear()

    def _wait_while_growing(self) -> None:
        """Wait while writes keep arriving, but not longer than GROUP_SECONDS after the last commit:
        fewer commits cost less.
        """
        count, end = 0, self._committed_at + GROUP_SECONDS
        pause = GROUP_SECONDS if self._is_busy else GROUP_PAUSE
        while (
            len(self._queue) > count
            and (left := end - monotonic()) > 0
            and not (self._hurried or self._closed)
        ):
            count = len(self._queue)
            self._pause(min(left, pause))

    def _mark_committed(self, transaction: Transaction) -> None:
        with self._lock:
            self._committed_at = monotonic()
            waiting = transaction.waiting
            transaction.clear()
            self._wake_callers(waiting)

    def _fail(self, error: Exception) -> None:
        write_error = self._explain(error)
        with self._lock:
            self.write_error = write_error
            _call(self._current.callbacks + self._queue.callbacks)
            self._wake_callers(self._current.waiting + self._queue.waiting)

    def _wake_callers(self, waiting: list[asyncio.Future[None]]) -> None:
        self._progress.notify_all()
        for loop in {waiter.get_loop() for waiter in waiting}:
            with suppress(RuntimeError):  # its loop is closed, so no caller waits there
                loop.call_soon_threadsafe(
                    _wake, [waiter for waiter in waiting if waiter.get_loop() is loop]
                )


def _call(callbacks: Sequence[Callable[[], None]]) -> None:
    """Call each; log the error of one that raises: those who wait for the commit must be woken all
    the same.
    """
    for callback in callbacks:
        try:
            callback()
        except Exception:  # noqa: BLE001  (it belongs to the caller, and may raise anything)
            log.exception("what was to be done after a commit failed")


def _wake(ready: list[asyncio.Future[None]]) -> None:
    for waiter in ready:
        if not waiter.done():
            waiter.set_result(None)


class Database:
    """The open file of a journal, of which this class does not know what the tables mean.

    One process at a time may write it, any number may read it. Reads see only what is committed:
    call `flush` first, or look at `pending_reply`.
    """

    def __init__(self, path: Path, durability: str, *, create: bool, read_only: bool) -> None:
        self.path, self._process = path, os.getpid()
        check_file(path)
        if is_new(path) and (read_only or not create):
            raise StoreError(f"there is no journal {str(path)!r}")
        self._writer: Writer | None = None
        self._write_lock = threading.Lock()
        with ExitStack() as stack:
            if not read_only:
                check_owner(path)
                stack.callback(PathLock(path, journal_label(path)).close)
            check_journal(path)
            connection = (
                None if read_only else stack.enter_context(closing(open_writer(path, durability)))
            )
            self._reader = stack.enter_context(closing(open_reader(path)))
            self._restart_clock = set_time_limit(self._reader, READ_TIMEOUT)
            if connection:
                # registered last, so that its thread ends before the connections close
                self._writer = Writer(partial(self._commit, connection), self._to_store_error)
                stack.callback(self._writer.close)
            self._resources = stack.pop_all()

    def _commit(self, connection: sqlite3.Connection, transaction: Transaction) -> None:
        # waits as long as `compact` takes, while SQLite would give up after 30 s
        with self._write_lock:
            transaction.commit(connection)

    @property
    def write_error(self) -> StoreError | None:
        """The error after which nothing more is written, if any."""
        return self._writer.write_error if self._writer else None

    def read(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows that a statement finds. Raises StoreError if they are too large or take
        too long.
        """
        self._check_process()
        self._restart_clock()
        try:
            return fetch_bounded(self._reader.execute(sql, values))
        except (sqlite3.Error, OverflowError) as error:
            raise to_store_error(self.path, error, action="read") from error

    @property
    def writer(self) -> Writer:
        """The thread that writes. Raises StoreError if there is none."""
        self._check_process()
        if self._writer is None:
            raise StoreError(f"{journal_label(self.path)} was opened for reading only")
        return self._writer

    def pending_reply(self, key: str) -> str | None:
        """Return a reply that is not committed yet; None if there is none."""
        return self._writer.pending_reply(key) if self._writer else None

    def has_pending(self, keys: Collection[RowKey]) -> bool:
        """Return whether a change of one of these rows is not committed yet."""
        return self._writer is not None and self._writer.has_pending(keys)

    def flush_if_pending(self, keys: Collection[RowKey]) -> None:
        """Commit the pending changes of these rows, so that they can be read. Blocks only if there
        are any.
        """
        if self.has_pending(keys):
            self.flush()

    async def wait_for_commit(self) -> None:
        """Wait until everything written before is committed. Raises StoreError if that fails."""
        self._check_process()
        if self._writer:
            await self._writer.wait_for_commit()

    async def wait_for_room(self) -> None:
        """Wait while much of what was written is not committed yet. Raises StoreError if writing
        fails.
        """
        self._check_process()
        if self._writer:
            await self._writer.wait_for_room()

    def call_after_commit(self, callback: Callable[[], None]) -> None:
        """Call back once everything written before is committed, or can no longer be (see
        `write_error`).

        It is called at once or from another thread, and must neither use the journal nor raise
        anything. It has been called before a `wait_for_commit` or `flush` that comes later returns.
        """
        self.writer.call_after_commit(callback)

    def flush(self) -> None:
        """Block until everything written before is committed. Raises StoreError if that fails."""
        self._check_process()
        if self._writer:
            self._writer.flush()

    @contextmanager
    def connection(self, *, counts_rows: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit what is queued, and open a connection for statements of another kind. May be
        called from any thread. Raises StoreError, which says with `counts_rows` how many finished
        rows are safe; writing goes on then.
        """
        self.flush()
        try:
            with closing(open_connection(self.path, "mode=rw")) as connection:
                yield connection
        except sqlite3.Error as error:
            if counts_rows:
                raise self._to_store_error(error) from error
            raise to_store_error(self.path, error, action="written") from error

    def compact(self) -> None:
        """Write the file again, without the space and the remains of what was deleted. May be
        called from any thread.

        Blocks, for about 6 s per GB, and so does every commit meanwhile. Needs twice the size of
        the file as free space: SQLite's VACUUM writes a temporary file, and all pages to the log.
        The write-ahead log keeps remains as long as another process reads the journal. Raises
        StoreError; writing goes on then.
        """
        with self.connection(counts_rows=True) as connection, self._write_lock:
            connection.execute("VACUUM")
            empty_log(connection)

    def empty_log(self) -> None:
        """Write the log into the file and cut it off, unless another process reads the journal.
        Blocks. Raises StoreError.
        """
        self._erase(())

    def _erase(self, deletions: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Execute statements that delete, overwrite what they deleted, and give its space back,
        also in the write-ahead log.

        A page in which SQLite rearranged values earlier may still have copies of them in its unused
        part; `compact` removes those. Blocks; a few statements are one transaction, so that the
        writing thread goes on meanwhile.
        """
        with self.connection() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            for start in range(0, len(deletions), DELETIONS_PER_TRANSACTION):
                connection.execute("BEGIN IMMEDIATE")
                for sql, values in deletions[start : start + DELETIONS_PER_TRANSACTION]:
                    connection.execute(sql, values)
                connection.execute("COMMIT")
            # `execute` would free a single page
            connection.executescript("PRAGMA incremental_vacuum")
            empty_log(connection)

    def hold_log(self, *, hold: bool) -> None:
        """Write nothing from the log into the file, or (not `hold`) do so again. Blocks."""
        pages = 0 if hold else CHECKPOINT_PAGES
        self.writer.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        self.flush()

    @property
    def size(self) -> int:
        """Bytes that the file has once its log is written into it. Raises StoreError."""
        pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(self.read(pages)[0][0])

    def use_incremental_vacuum(self) -> None:
        """Arrange that what is erased gives its space back. Blocks as `compact` does, the first
        time.
        """
        with self.connection() as connection:
            if connection.execute("PRAGMA auto_vacuum").fetchone() != (INCREMENTAL,):
                connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
                connection.execute("VACUUM")

    def copy(self, target: Path) -> None:
        """Write everything committed to another file, even if the journal's own file was deleted.
        Blocks. Raises StoreError.
        """
        self.flush()
        try:
            with closing(sqlite3.connect(target)) as other:
                self._reader.backup(other)
        except sqlite3.Error as error:
            raise to_store_error(target, error) from error

    def close(self) -> None:
        """Commit what is queued and release the file. May be called again. Raises nothing: see
        `write_error`. Does nothing in a forked child.
        """
        if self._process == os.getpid():
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()
        if self.write_error and error is None:
            raise StoreError(str(self.write_error))

    def _check_process(self) -> None:
        """Raise StoreError after a fork: connections, the writer's thread and the lock belong to
        one process.
        """
        if self._process != os.getpid():
            raise StoreError(
                f"{journal_label(self.path)} was opened by process {self._process}; a forked "
                "process must open a journal of its own"
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
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > MAX_READ_BYTES:
            raise OverflowError(f"the result is larger than {MAX_READ_BYTES // 2**20} MiB")
    return rows
