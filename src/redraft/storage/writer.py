"""The thread that writes a journal: it commits everything in its queue in one transaction and wakes the waiting callers.

Nothing is delayed on purpose: the next group is what arrived during the last commit. This module does not know what the statements
mean.
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
    """Statements of one transaction. `value` is what reading `key` returns until they are committed."""

    key: Hashable
    statements: tuple[Statement, ...]
    value: Any = None


class Writer:
    """Writes on `connection`, which nobody else uses until `close`.

    `write_error` is set when writing has failed: what is not committed by then never is, and every later write or wait raises it.
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
            except Exception as error:  # noqa: BLE001  (the one boundary: whatever it is, waiting callers get it)
                self._fail(error)
                return
            self._mark_committed(group)

    def _next_group(self) -> list[Write]:
        """Return everything in the queue; nothing at the end."""
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
                    raise StoreError(f"the journal has nothing to update for {write.key!r}: begin it first")
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
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, [waiter for waiter in ready if waiter.get_loop() is loop])


def _wake(ready: list[asyncio.Future[None]]) -> None:
    for waiter in ready:
        if not waiter.done():
            waiter.set_result(None)
