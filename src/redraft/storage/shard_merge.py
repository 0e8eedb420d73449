"""Journals of shards: their names, reading them from other machines, and merging them into the
journal of the run.

A shard has a complete journal in a file beside that of the run, such as "answers.journal.2-of-8".
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import StoreError, StoreLockedError
from ..protocols import Reply
from .database import fetch_bounded
from .journal import Journal, decode_reply
from .schema import (
    LINES_PER_ROW,
    is_new,
    journal_label,
    open_connection,
    sibling_path,
    to_store_error,
)
from .secure_files import PathLock

T = TypeVar("T")

LIMITS_OF_REPLIES = ("calls", "input_tokens", "output_tokens", "tokens", "usd")
SUM_OF_REPLIES = """SELECT sum(u ->> 'calls'), sum(u ->> 'input_tokens'),
sum(u ->> 'output_tokens'), sum((u ->> 'input_tokens') + (u ->> 'output_tokens')), sum(u ->> 'cost')
FROM (SELECT reply -> 'usage' AS u FROM calls)"""

LOCK_TIMEOUT = 30.0  # seconds to wait for a lock, whose holder may be about to end
ITEMS_PER_TRANSACTION = 5000  # rows or calls
SHARD_SUFFIX = re.compile(r"\.\d+-of-\d+")

SHARD_ROWS_CLAUSE = (
    "FROM part.rows r JOIN part.runs p ON p.run = r.run JOIN main.runs m ON m.name = p.name "
    "WHERE r.row > ? AND r.row <= ?"
)
MERGE_ROWS = (
    (f"DELETE FROM main.rows WHERE (run, id) IN (SELECT m.run, r.id {SHARD_ROWS_CLAUSE})"),  # noqa: S608
    (
        "INSERT INTO main.rows (run, id, position, key, key_parts, status, result) SELECT m.run, "
        f"r.id, r.position, r.key, r.key_parts, r.status, r.result {SHARD_ROWS_CLAUSE}"
    ),
    f"""INSERT INTO main.lines SELECT w.row * {LINES_PER_ROW} + l.number % {LINES_PER_ROW}, l.line
    FROM part.rows r JOIN part.runs p ON p.run = r.run JOIN main.runs m ON m.name = p.name
    JOIN main.rows w ON w.run = m.run AND w.id = r.id
    JOIN part.lines l ON l.number >= r.row * {LINES_PER_ROW} AND l.number < (r.row + 1) * {LINES_PER_ROW}
    WHERE r.row > ? AND r.row <= ?""",  # noqa: E501, S608
    """INSERT OR REPLACE INTO main.seen_rows SELECT w.row, coalesce(json_extract(m.metadata, '$.invocation'), 0)
    FROM part.rows r JOIN part.runs p ON p.run = r.run JOIN main.runs m ON m.name = p.name
    JOIN main.rows w ON w.run = m.run AND w.id = r.id
    WHERE r.row > ? AND r.row <= ?""",  # the shard has seen the row  # noqa: E501
)
MERGE_CALLS = (
    (
        "INSERT OR IGNORE INTO main.calls (key, reply) SELECT key, reply FROM "
        "part.calls WHERE call > ? AND call <= ?"
    ),
)


def shard_journal_path(path: Path, index: int, count: int) -> Path:
    """Return the journal of shard `index` (from 0) of `count`."""
    return path.with_name(f"{path.name}.{index + 1}-of-{count}")


def shard_journals(path: Path) -> list[Path]:
    """Return the existing shard journals of a journal, sorted; also those of which a killed worker
    left only the lock.
    """
    candidates = {
        file.with_name(file.name.removesuffix(".lock"))
        for file in path.parent.glob("*")
        if file.name.startswith(path.name)
    }
    return sorted(
        file for file in candidates if SHARD_SUFFIX.fullmatch(file.name[len(path.name) :])
    )


def open_when_released(open_locked: Callable[[], T]) -> T:
    """Open a journal or its lock as soon as the lock is free. Raises StoreLockedError after
    LOCK_TIMEOUT seconds.
    """
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return open_locked()
        except StoreLockedError:
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def merge_shard(journal: Journal, path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Copy all rows and calls of a shard into the journal, replacing the rows it started from;
    return the metadata of its runs.

    The shard's journal stays unchanged, and merging it again changes nothing. Raises StoreError for
    one that cannot be read or that another process holds.
    """
    if path.is_symlink():
        raise StoreError(
            f"{journal_label(path)}, a shard of {journal_label(journal.path)}, is a link: remove "
            "it, or name another journal"
        )
    if is_new(path):
        return {}
    with open_when_released(partial(Journal, path, create=False)) as shard:
        metadata = {
            run.name: {**run.metadata, "spent": spent_by(shard, run.metadata)}
            for run in shard.runs()
        }
        for name in metadata:
            if journal.run(name) is None:
                journal.update_run(name)
        journal.response_cache.expect_any()
        with journal.connection(counts_rows=True) as connection:
            connection.execute(
                "ATTACH DATABASE ? AS part", (f"{path.absolute().as_uri()}?mode=ro",)
            )
            _copy_in_pieces(connection, "SELECT row FROM part.rows", "row", MERGE_ROWS)
            _copy_in_pieces(connection, "SELECT call FROM part.calls", "call", MERGE_CALLS)
    return metadata


def spent_by(shard: Journal, metadata: Mapping[str, Any]) -> Mapping[str, float]:
    """Return what a run has spent in the journal of a shard, by its metadata; if its worker was
    killed, no less than its replies have cost.
    """
    spent: Mapping[str, float] = metadata.get("spent", {})
    if metadata.get("state") != "running":
        return spent
    (amounts,) = shard.read(SUM_OF_REPLIES)
    replies = dict(zip(LIMITS_OF_REPLIES, amounts, strict=True))
    return {name: max(spent.get(name, 0.0), replies[name] or 0.0) for name in LIMITS_OF_REPLIES}


def _copy_in_pieces(
    connection: sqlite3.Connection, numbers: str, name: str, statements: tuple[str, ...]
) -> None:
    """Copy a limited number of items in each transaction, so that the write-ahead log stays
    small.
    """
    last = -1
    next_end = (
        f"SELECT max({name}) FROM ({numbers} WHERE {name} > ? ORDER BY {name} LIMIT "  # noqa: S608
        f"{ITEMS_PER_TRANSACTION})"
    )
    while (end := connection.execute(next_end, (last,)).fetchone()[0]) is not None:
        connection.execute("BEGIN IMMEDIATE")
        for sql in statements:
            connection.execute(sql, (last, end))
        connection.execute("COMMIT")
        if end <= last:
            raise StoreError(f"a shard of a journal is damaged: its {name}s are out of order")
        last = end


def remove_shard(path: Path) -> None:
    """Delete the journal of a shard and its lock."""
    with closing(open_when_released(partial(PathLock, path, journal_label(path)))):
        for file in (path, *(sibling_path(path, ending) for ending in ("-wal", "-shm"))):
            file.unlink(missing_ok=True)


@asynccontextmanager
async def reading_snapshot(journal: Journal) -> AsyncIterator[None]:
    """Leave the file as it is now, with everything that was written, so that `SnapshotCache` can
    read it: what is written meanwhile stays in the write-ahead log. Raises StoreError.
    """
    try:
        await asyncio.to_thread(_empty_log, journal)
        yield
    finally:
        with suppress(StoreError):
            await asyncio.to_thread(journal.hold_log, hold=False)


def _empty_log(journal: Journal) -> None:
    """Write everything into the file, and what follows only into the log. Raises StoreError."""
    journal.hold_log(hold=True)
    with journal.connection() as connection:
        busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        raise StoreError(
            f"another program has been reading {journal_label(journal.path)} for more than 30 s: "
            "end it first"
        )


class SnapshotCache(Mapping[str, Reply]):
    """The response cache of a journal. Workers on any machine read it without locks, which needs a
    journal that stays as it is (see `reading_snapshot`).
    """

    def __init__(self, path: Path, *, from_any_machine: bool = True) -> None:
        self.path = path
        try:
            self._connection = open_connection(
                path, "mode=ro&immutable=1" if from_any_machine else "mode=ro"
            )
        except sqlite3.Error as error:
            raise to_store_error(path, error) from error

    def __getitem__(self, key: str) -> Reply:
        for (text,) in self._read("SELECT reply FROM calls WHERE key = ?", key):
            return decode_reply(self.path, key, text)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (key for (key,) in self._read("SELECT key FROM calls ORDER BY call"))

    def __len__(self) -> int:
        return int(self._read("SELECT count(*) FROM calls")[0][0])

    def _read(self, sql: str, *values: Any) -> list[Any]:
        try:
            return fetch_bounded(self._connection.execute(sql, values))
        except (sqlite3.Error, OverflowError) as error:
            raise to_store_error(self.path, error, action="read") from error

    def close(self) -> None:
        self._connection.close()
