"""The open file of a journal: one writer, one reader and the lock. This module runs statements and does not know what they mean.

Every error of SQLite becomes a StoreError that names the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Hashable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ..errors import StoreError
from .file_lock import PathLock
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
from .writer import Statement, Write, Writer

READ_TIMEOUT = 120.0  # seconds that a reading statement may take
MAX_READ_BYTES = 2**30  # bytes of text that it may return


class Database:
    """Reads see what is committed: call `flush` first for writes that they must see, or ask for the `pending_write`."""

    def __init__(self, path: Path, durability: str, *, create: bool, read_only: bool) -> None:
        self.path, self._process = path, os.getpid()
        check_file(path)
        if is_new(path) and (read_only or not create):
            raise StoreError(f"there is no journal {str(path)!r}")
        self._writer: Writer | None = None
        with ExitStack() as opened:
            if not read_only:
                check_owner(path)
                opened.callback(PathLock(path, journal_label(path)).close)
            check_journal(path)
            written = None if read_only else opened.enter_context(closing(open_writer(path, durability)))
            self._reader = opened.enter_context(closing(open_reader(path)))
            self._restart_clock = set_time_limit(self._reader, READ_TIMEOUT)
            if written:  # whose thread ends before what it reads from is closed
                self._writer = Writer(written, self._to_store_error)
                opened.callback(self._writer.close)
            self._resources = opened.pop_all()

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
        """Give the space of deleted rows back to the file system. Blocks; needs as much space again meanwhile."""
        self.flush()
        try:
            with closing(open_connection(self.path, "mode=rw")) as connection:
                connection.execute("VACUUM")
        except sqlite3.Error as error:
            raise self._to_store_error(error) from error

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
