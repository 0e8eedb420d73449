"""The one thread that writes a journal: it takes all that waits, writes it in one transaction, and tells who waited.

It knows statements, not what they mean. Nothing is delayed on purpose: the next group is what came during the last commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import StoreError

Statement: TypeAlias = tuple[str, tuple[Any, ...]]
ErrorTranslator: TypeAlias = Callable[[Exception], StoreError]
CommitWaiter: TypeAlias = tuple[int, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True)
class Write:
    """Statements that belong together. `value` is what reading `key` gives until they are committed."""

    key: Hashable
    statements: tuple[Statement, ...]
    value: Any = None


class Writer:
    """Writes on `connection`, which is its own until it is closed.

    `trouble` is set when writing failed: what was not committed by then never will be, and whoever writes or waits is told.
    The queue has no bound: who awaits `committed` after his writes keeps it short.
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
        """Queue a write. Raises `trouble`."""
        with self._lock:
            self._check()
            self._queue.append(write)
            self._latest[write.key] = write
            self._enqueued_count += 1
            self._work_available.notify()

    def pending_write(self, key: Hashable) -> Write | None:
        """The last write of a key that is not committed yet."""
        return self._latest.get(key)

    async def wait_for_commit(self) -> None:
        """Until all that was put before is committed. Raises `trouble`."""
        with self._lock:
            self._check()
            if self._committed_count == self._enqueued_count:
                return
            told = asyncio.get_running_loop().create_future()
            self._waiting.append((self._enqueued_count, told))
        await told
        if self.write_error:
            raise StoreError(str(self.write_error))

    def flush(self) -> None:
        """The same, blocking."""
        with self._lock:
            asked = self._enqueued_count
            self._progress.wait_for(lambda: self._committed_count >= asked or self.write_error)
            if self.write_error:
                raise StoreError(str(self.write_error))

    def close(self) -> None:
        """Write what is queued, and end."""
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
            except Exception as error:  # noqa: BLE001  (the one boundary: whatever it is, those who wait are told)
                self._fail(error)
                return
            self._mark_committed(group)

    def _next_group(self) -> list[Write]:
        """All that waits; nothing at the end."""
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
                    raise StoreError(f"written to the journal before it was begun: {write.key!r}")
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
        trouble = self._explain(error)
        with self._lock:
            self.write_error = trouble
            self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Wake those whose writes are committed; in trouble, all."""
        ready = [told for asked, told in self._waiting if self.write_error or asked <= self._committed_count]
        self._waiting = self._waiting[len(ready) :]
        self._progress.notify_all()
        for loop in {told.get_loop() for told in ready}:
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, [told for told in ready if told.get_loop() is loop])


def _wake(ready: list[asyncio.Future[None]]) -> None:
    for told in ready:
        if not told.done():
            told.set_result(None)
