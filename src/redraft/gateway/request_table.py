"""The table of requests, in one SQLite file: who asked for what, when, and how it ended; never a
text of a request.

One thread commits. `RequestTable.put` returns within microseconds, and what was put survives `kill
-9` from then on: it is also a line of the file NAME.pending, which is read again at the next start.
Lines of committed rows are removed now and then, and before rows are deleted, since what the file
has would come back. Rows that cannot be committed wait in memory, at most MAX_WAITING of them, and
are tried again; `RequestTable.error` says why. A row has no outcome while its request is being
answered.

A row that tells of a stored trace is only announced at first, in NAME.pending, and put once that
trace is committed elsewhere. At the next start it is in `RequestTable.announced`, and counts if the
trace is there.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Literal, TypeAlias, get_args

import orjson

from ..errors import StoreError
from ..loop.serialize import field_validators
from ..plans.quality.result_facts import SCHEMA as RESULT_SCHEMA
from ..storage.schema import (
    ERROR_MESSAGES,
    check_owner,
    create_database,
    empty_log,
    is_new,
    open_connection,
    set_time_limit,
)
from ..storage.secure_files import (
    PRIVATE,
    create_draft,
    open_private,
    remove_stale_drafts,
    resolve_path,
    write_whole,
)

RequestOutcomeName: TypeAlias = Literal["answered", "failed", "cancelled", "interrupted"]
APPLICATION_ID = int.from_bytes(b"Rdfr")
SCHEMA = 3
MAX_WAITING = 10_000
"""Rows that wait in memory while the file cannot be written; the oldest are lost first."""
RETRY_SECONDS = 1.0
GATHER_SECONDS = 0.02
"""How long rows are gathered before they are committed: a thread that wakes up for each row would
slow the event loop down.
"""
IDS_PER_STATEMENT = 500
MAX_REQUEST_ID = 128  # characters of what a client calls a request
MAX_PENDING_BYTES = 16 * 2**20
MAX_COMMITTED_BYTES = 2**18  # of the file of pending rows, before it is emptied
READ_SECONDS = 30.0
LAST_TIME = 253_402_300_800  # the year 10000, which datetime does not know
ROW_BYTES = 400
"""Bytes that a row takes in the file, with its indices, roughly."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request besides its content. What is unknown is None.

    `started_at`: Unix time in seconds. `model`: as the client named it, such as "refine/fast".
    `level`: what is kept of it, "off", "metadata" or "full". `outcome`: None while it is being
    answered; "cancelled": the client went away; "interrupted": the gateway ended first. `error`:
    the code of the error, such as "budget_exhausted". `cause`: why the work failed, one of
    `errors.CAUSES`, or "". `trace_bytes`: the size of the trace in the journal. `otel_trace_id`:
    the trace of OpenTelemetry to which the request belongs, 32 hexadecimal digits.
    `client_request_id`: what the client calls the request, which need not be unique.
    """

    trace_id: str
    started_at: float = 0.0
    key_id: str = ""
    key_name: str = ""
    model: str = ""
    wire: str = ""
    level: str = "off"
    outcome: RequestOutcomeName | None = None
    status: int | None = None
    error: str = ""
    score: float | None = None
    iterations: int | None = None
    stop: str = ""
    calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    milliseconds: float | None = None
    trace_bytes: int = 0
    otel_trace_id: str | None = None
    client_request_id: str | None = None
    cause: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return plain data for programs, with the time as ISO 8601. What came out of a refinement
        has the names of the form of results, schema 2.
        """
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        usage = {name: data.pop(name) for name in USAGE_FACTS}
        started_at = datetime.fromtimestamp(self.started_at, UTC).isoformat(timespec="milliseconds")
        return {"schema": RESULT_SCHEMA, **data, "started_at": started_at, "usage": usage}


USAGE_FACTS = ("calls", "input_tokens", "output_tokens", "cost")
COLUMNS = tuple(field.name for field in fields(RequestFacts))
INDICES = """
CREATE INDEX requests_by_otel_trace ON requests (otel_trace_id) WHERE otel_trace_id IS NOT NULL;
CREATE INDEX requests_by_client_id ON requests (client_request_id) WHERE client_request_id IS NOT NULL;
"""
CAUSE = "cause TEXT NOT NULL DEFAULT ''"
MIGRATIONS = (
    f"""
ALTER TABLE requests ADD COLUMN otel_trace_id TEXT;
ALTER TABLE requests ADD COLUMN client_request_id TEXT;
{INDICES}""",
    f"ALTER TABLE requests ADD COLUMN {CAUSE};",
)  # from schema 1 to 2, and so on
TABLES = f"""
CREATE TABLE requests (
    trace_id TEXT PRIMARY KEY, started_at REAL NOT NULL, key_id TEXT NOT NULL, key_name TEXT NOT NULL, model TEXT NOT NULL,
    wire TEXT NOT NULL, level TEXT NOT NULL, outcome TEXT, status INTEGER, error TEXT NOT NULL, score REAL, iterations INTEGER,
    stop TEXT NOT NULL, calls INTEGER, input_tokens INTEGER, output_tokens INTEGER, cost REAL, milliseconds REAL,
    trace_bytes INTEGER NOT NULL, otel_trace_id TEXT, client_request_id TEXT, {CAUSE}
);
CREATE INDEX requests_by_model ON requests (model, started_at, trace_bytes);
CREATE INDEX requests_in_progress ON requests (trace_id) WHERE outcome IS NULL;
{INDICES}"""
SELECT = f"SELECT {', '.join(COLUMNS)} FROM requests"  # noqa: S608  (the names of the columns)
UPSERT = f"""INSERT INTO requests ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
ON CONFLICT (trace_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in COLUMNS[COLUMNS.index("level") :])}
WHERE excluded.outcome IS NOT NULL OR requests.outcome IS NULL"""  # noqa: S608  (a start that is read again does not undo an end)
OLDER = "SELECT trace_id FROM requests WHERE model = ? AND started_at < ? AND outcome IS NOT NULL"
TOTAL_BYTES = f"SELECT total(trace_bytes + {ROW_BYTES}) FROM requests WHERE model = ?"  # noqa: S608
OVER_SIZE = f"""SELECT trace_id FROM (
    SELECT trace_id, outcome, sum(trace_bytes + {ROW_BYTES}) OVER (ORDER BY started_at DESC, trace_id) AS total
    FROM requests WHERE model = ?
) WHERE total > ? AND outcome IS NOT NULL"""  # noqa: S608
OLDEST = (
    f"SELECT model, trace_id, trace_bytes + {ROW_BYTES} FROM requests WHERE outcome IS NOT NULL "  # noqa: S608
    "ORDER BY started_at"
)
row_values = attrgetter(*COLUMNS)


class PendingRows:
    """The rows that may not be committed yet, as lines of a file. What cannot be written or read is
    left out.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._path = resolve_path(path)
            self._file = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _store_error(path, "opened", error) from error
        remove_stale_drafts(self._path)
        self._size = 0
        self._kept_size = 0  # what the last replacement has left

    def read(self) -> list[RequestFacts]:
        """Return the rows that an earlier process has written."""
        rows = []
        data = self._file.read(MAX_PENDING_BYTES)
        for line in data.splitlines():
            with suppress(ValueError, TypeError, StoreError):
                rows.append(_facts(self._path, tuple(orjson.loads(line))))
        self._size = data.rfind(b"\n") + 1
        self._remove_torn_line()
        return rows

    def add(self, facts: RequestFacts) -> None:
        if self._size < MAX_PENDING_BYTES:
            line = _as_line(facts)
            try:
                write_whole(self._file, line)
            except OSError:
                self._remove_torn_line()
            else:
                self._size += len(line)

    def _remove_torn_line(self) -> None:
        """Remove what follows the last whole line: the next one would continue it."""
        with suppress(OSError):
            self._file.truncate(self._size)
            self._file.seek(self._size)

    def replace(self, rows: Iterable[RequestFacts], *, above: int) -> bool:
        """Replace all rows by these, if those added since the last time make more than so many
        bytes (0: if there are any).

        After a crash the file has all of the old or all of the new rows. The old ones stay, and
        False is returned, if the new ones cannot be written.
        """
        if self._size <= above + (self._kept_size if above else 0):
            return True
        try:
            if kept := b"".join(map(_as_line, rows)):
                self._write_anew(kept)
            else:
                self._file.truncate(0)
                self._file.seek(0)
        except OSError:
            return False
        self._size = self._kept_size = len(kept)
        return True

    def _write_anew(self, data: bytes) -> None:
        draft, file = create_draft(self._path, PRIVATE)
        try:
            write_whole(file, data)
            draft.replace(self._path)
        except OSError:
            file.close()
            draft.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = file

    def close(self) -> None:
        """Release the file, and remove it if it is empty."""
        self._file.close()
        if not self._size:
            self._path.unlink(missing_ok=True)


def _as_line(facts: RequestFacts) -> bytes:
    """Return the line of a row; nothing for one that JSON cannot hold."""
    try:
        return orjson.dumps(row_values(facts)) + b"\n"
    except TypeError:
        return b""


class RequestTable:
    """The open table, which one process at a time may write. `on_error` is called with each error,
    from any thread.

    `announced`: the last facts of requests with a trace, by ID, that are announced and not put yet,
    here or by an earlier process.
    """

    def __init__(self, path: Path, on_error: Callable[[StoreError], None]) -> None:
        self.path, self._on_error = path, on_error
        self.error: StoreError | None = None
        _create(path)
        try:
            self._connection = _open(path, "mode=rw")
        except sqlite3.Error as error:
            raise _store_error(path, "opened", error) from error
        self._pending, self._lock = PendingRows(path.with_name(f"{path.name}.pending")), Lock()
        self._uncommitted: dict[str, RequestFacts] = {}  # the last facts that were put, by ID
        self.announced: dict[str, RequestFacts] = {}
        for facts in self._pending.read():
            is_announced = facts.outcome and facts.trace_bytes
            (self.announced if is_announced else self._uncommitted)[facts.trace_id] = facts
        self._waiting: list[Callable[[], object]] = []  # called after the next commit
        self._has_work, self._is_urgent = Event(), Event()
        self._has_work.set()
        self._must_clear = self._is_closed = False
        self._thread = Thread(target=self._run, name="redraft-requests", daemon=True)
        self._thread.start()

    def announce(self, facts: RequestFacts) -> None:
        """Note the last facts of a request that has a trace, which are put once that is committed.
        Returns at once.
        """
        with self._lock:
            self._pending.add(facts)
            self.announced[facts.trace_id] = facts

    def forget_announced(self) -> None:
        """Forget what was announced and not put."""
        with self._lock:
            self.announced.clear()

    def put(self, facts: RequestFacts) -> None:
        """Write a row, replacing that of the same request. Returns at once, and may be called from
        any thread.
        """
        with self._lock:
            if self.announced.pop(facts.trace_id, None) is not facts:
                self._pending.add(facts)
            if facts.outcome or facts.trace_id not in self._uncommitted:
                self._uncommitted[facts.trace_id] = facts
            if self.error and len(self._uncommitted) > MAX_WAITING:
                del self._uncommitted[next(iter(self._uncommitted))]
        self._has_work.set()

    def flush(self) -> None:
        """Block until everything that was put before is committed. Raises StoreError if that
        fails.
        """
        done = Event()
        self._call_after_commit(done.set)
        while not done.wait(RETRY_SECONDS) and self._thread.is_alive():
            pass
        self._check()

    async def wait_for_commit(self) -> None:
        """Wait until everything that was put before is committed. Raises StoreError if that
        fails.
        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        self._call_after_commit(notify)
        await done.wait()
        self._check()

    def _call_after_commit(self, callback: Callable[[], object]) -> None:
        """Call back in the thread that commits, once it has tried to commit what was put before."""
        with self._lock:
            self._waiting.append(callback)
        self._hurry()

    def _hurry(self) -> None:
        self._is_urgent.set()
        self._has_work.set()

    def close(self) -> None:
        """Commit what was put, if the file can be written, and release it."""
        if not self._is_closed:
            self._is_closed = True
            self._hurry()
            self._thread.join()
            self._pending.close()
            self._connection.close()

    def in_progress(self) -> list[RequestFacts]:
        """Return the requests without an outcome."""
        self.flush()
        with _connection(self.path) as connection:
            rows = connection.execute(f"{SELECT} WHERE outcome IS NULL")
            return [_facts(self.path, row) for row in rows]

    def find(self, trace_id: str) -> RequestFacts | None:
        """Return a request; None if there is none of that ID."""
        self.flush()
        found = find_requests(self.path, trace_id, 1)
        return found[0] if found and found[0].trace_id == trace_id else None

    def models(self) -> list[str]:
        """Return the models that requests named."""
        with _connection(self.path) as connection:
            return [model for (model,) in connection.execute("SELECT DISTINCT model FROM requests")]

    def missing_ids(self, ids: Iterable[str]) -> list[str]:
        """Return those IDs that the table does not have."""
        with _connection(self.path) as connection:
            find = "SELECT 1 FROM requests WHERE trace_id = ?"
            return [id for id in ids if connection.execute(find, (id,)).fetchone() is None]

    def surplus_ids(self, model: str, since: float, max_bytes: float) -> list[str]:
        """Return the finished requests for a model that are older than `since`, and the oldest of
        more than `max_bytes` bytes.
        """
        with _connection(self.path) as connection:
            ids = [id for (id,) in connection.execute(OLDER, (model, since))]
            if connection.execute(TOTAL_BYTES, (model,)).fetchone()[0] > max_bytes:
                ids += [id for (id,) in connection.execute(OVER_SIZE, (model, max_bytes))]
        return list(dict.fromkeys(ids))

    def oldest_ids(self, byte_count: float) -> dict[str, list[str]]:
        """Return the oldest finished requests, by model, that have at least so many bytes
        together.
        """
        found: dict[str, list[str]] = {}
        with _connection(self.path) as connection:
            for model, id, size in connection.execute(OLDEST):
                if byte_count <= 0:
                    break
                found.setdefault(model, []).append(id)
                byte_count -= size
        return found

    @property
    def size(self) -> int:
        """Bytes of everything committed, as pages of the file."""
        with _connection(self.path) as connection:
            return int(
                connection.execute(
                    "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
                ).fetchone()[0]
            )

    def delete(self, ids: list[str]) -> None:
        """Delete rows with an outcome, and give their space back. They do not come back, whenever
        the process is killed.

        Blocks for a while; meant for another thread than the event loop's.
        """
        self._must_clear = True
        self.flush()
        if self._must_clear:
            raise StoreError(
                f"nothing is deleted from the table of requests {str(self.path)!r}: its pending "
                "rows cannot be written"
            )
        with _connection(self.path, "mode=rw") as connection:
            for start in range(0, len(ids), IDS_PER_STATEMENT):
                part = ids[start : start + IDS_PER_STATEMENT]
                connection.execute(
                    f"DELETE FROM requests WHERE trace_id IN ({', '.join('?' * len(part))})",  # noqa: S608
                    part,
                )
            # `execute` would free a single page
            connection.executescript("PRAGMA incremental_vacuum")
            empty_log(connection)

    def _check(self) -> None:
        if self.error:
            raise StoreError(str(self.error))

    def _run(self) -> None:
        """Commit what was put, together; after an error, try again until it works or the table is
        closed.
        """
        is_open = True
        while is_open:
            self._has_work.wait(RETRY_SECONDS if self._uncommitted else None)
            self._is_urgent.wait(GATHER_SECONDS)
            self._is_urgent.clear()
            self._has_work.clear()
            with self._lock:
                is_open, rows = not self._is_closed, list(self._uncommitted.values())
                waiting, self._waiting = self._waiting, []
            if self._commit(rows):
                is_needed = self._must_clear or not is_open
                self._clear_pending(above=0 if is_needed else MAX_COMMITTED_BYTES)
            for notify in waiting:
                notify()

    def _commit(self, rows: list[RequestFacts]) -> bool:
        """Return whether the rows could be committed."""
        try:
            if rows:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(UPSERT, map(row_values, rows))
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self.error = _store_error(self.path, "written", error)
            self._on_error(self.error)
            return False
        self.error = None
        with self._lock:
            for row in rows:
                if self._uncommitted.get(row.trace_id) is row:
                    del self._uncommitted[row.trace_id]
        return True

    def _clear_pending(self, *, above: int) -> None:
        """Remove the rows that are committed from the pending ones. The lock keeps others from
        being added meanwhile.
        """
        with self._lock:
            kept = [*self._uncommitted.values(), *self.announced.values()]
            is_cleared = self._pending.replace(kept, above=above)
        if is_cleared and not above:
            self._must_clear = False


def clean_request_id(text: str) -> str | None:
    """Return what a client calls a request: its first MAX_REQUEST_ID characters, of which only
    visible ones of ASCII count; None if there are none.
    """
    return re.sub(r"[^!-~]+", "", text[:MAX_REQUEST_ID]) or None


def find_requests(path: Path, id: str, limit: int) -> list[RequestFacts]:
    """Return the requests with an ID, which is ours, a client's or the ID of a trace of
    OpenTelemetry: first the one that has it as ours, then the latest ones, at most `limit`.

    The file, which another process may write, need not exist.
    """
    if is_new(path):
        return []
    with _connection(path) as connection:
        set_time_limit(connection, READ_SECONDS)
        stored = {name for _, name, *_ in connection.execute("PRAGMA table_info(requests)")}
        # a file of an earlier schema that no gateway has opened since lacks the last ones
        columns = ", ".join(name for name in COLUMNS if name in stored)
        ids = stored & {"trace_id", "otel_trace_id", "client_request_id"}
        rows = connection.execute(
            f"SELECT {columns} FROM requests WHERE {' OR '.join(f'{name} = ?1' for name in ids)} "  # noqa: S608
            "ORDER BY trace_id = ?1 DESC, started_at DESC LIMIT ?2",
            (id, limit),
        ).fetchall()
    return [_facts(path, row) for row in rows]


def _facts(path: Path, row: tuple[Any, ...]) -> RequestFacts:
    """Return the facts in a row. Raises StoreError for values that this module does not write."""
    facts = RequestFacts(*row)
    checks = field_validators(RequestFacts)
    invalid = next((name for name in COLUMNS if not checks[name](getattr(facts, name))), None)
    if invalid is None and facts.outcome not in (None, *get_args(RequestOutcomeName)):
        invalid = "outcome"
    if invalid is None and not 0 <= facts.started_at < LAST_TIME:
        invalid = "started_at"
    if invalid:
        raise StoreError(
            f"the table of requests {str(path)!r} is damaged: {invalid} cannot be "
            f"{getattr(facts, invalid)!r:.80}"
        )
    return facts


def _create(path: Path) -> None:
    """Create the file, readable by its owner only, unless it exists."""
    check_owner(path)
    if not is_new(path):
        return
    try:
        create_database(path, APPLICATION_ID, SCHEMA, TABLES, "PRAGMA auto_vacuum = INCREMENTAL")
    except (OSError, sqlite3.Error) as error:
        raise _store_error(path, "created", error) from error


@contextmanager
def _connection(path: Path, mode: str = "mode=ro") -> Iterator[sqlite3.Connection]:
    """Yield a connection of its own. Errors of SQLite become StoreErrors."""
    try:
        with closing(_open(path, mode)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise _store_error(path, "read", error) from error


def _open(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection. Raises StoreError for a file of another program or release."""
    connection = open_connection(path, mode)
    try:
        identity = [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version")
        ]
        version = identity[1]
        if identity[0] != APPLICATION_ID or not 1 <= version <= SCHEMA:
            raise StoreError(
                f"{str(path)!r} is not a table of requests that this release reads: move it away"
            )
        if version != SCHEMA and mode == "mode=rw":
            changes = "".join(MIGRATIONS[version - 1 :])
            connection.executescript(
                f"BEGIN IMMEDIATE;{changes}PRAGMA user_version = {SCHEMA};COMMIT;"
            )
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _store_error(path: Path, action: str, error: Exception) -> StoreError:
    why = (
        ERROR_MESSAGES.get(getattr(error, "sqlite_errorname", ""))
        or getattr(error, "strerror", None)
        or error
    )
    return StoreError(f"the table of requests {str(path)!r} cannot be {action}: {why}")
