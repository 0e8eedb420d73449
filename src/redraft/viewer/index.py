"""The index of a run: the facts of its rows in an SQLite file in the user's cache, where lists are
sorted, filtered and summed.

The journal is only read. The index is built once, and extended by what has changed since; it can be
deleted at any time, and is deleted when it was not used for a month.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeAlias, TypeVar

from ..errors import StoreError
from ..loop.serialize import value_from_json
from ..loop.trace import Trace
from ..storage.journal import Journal, RunInfo
from ..storage.secure_files import cache_dir, is_untrusted, make_folder
from .rows import RowFacts, RowQuery, row_facts

T = TypeVar("T")

SCHEMA = 5
ROWS_PER_READ = 250
SYNC_SECONDS = 2.0  # between two looks at a journal
MAX_KEY = 100  # characters of the key of a row
UNUSED_SECONDS = 30 * 24 * 3600.0  # after which an index is deleted
COLUMNS = tuple(
    f.name for f in fields(RowFacts) if f.name not in {"search", "scores", "by_iteration"}
)
TABLES = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rows (number INTEGER PRIMARY KEY, {", ".join(c for c in COLUMNS if c != "number")}, length INTEGER, key TEXT);
CREATE TABLE texts (number INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE scores (number INTEGER, kind TEXT, name TEXT, first REAL, best REAL, PRIMARY KEY (kind, name, number)) WITHOUT ROWID;
CREATE INDEX scores_of_row ON scores (number);
CREATE TABLE iterations (number INTEGER, n INTEGER, score REAL, before REAL, calls INTEGER, cost REAL, PRIMARY KEY (n, number))
WITHOUT ROWID;
CREATE INDEX iterations_of_row ON iterations (number);
"""  # noqa: E501
SETTINGS = """PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;"""
TABLE_NAMES = ("rows", "texts", "scores", "iterations")
COLUMN_VALUES = attrgetter(*COLUMNS)
SUFFIX = ".sqlite"
PRIVATE_FOLDER = 0o700
RowState: TypeAlias = tuple[int, str, int, str]
"""The position of a row, its status, the number of its lines, and its key: what tells that it has
changed.
"""
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]  # bound to the marks of a statement
Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of rows that are read, and of those to read."""


@dataclass(frozen=True, slots=True)
class RowPage:
    """The rows of one page of a list, from `offset` on, and how many rows the list has."""

    rows: tuple[RowFacts, ...]
    offset: int
    total: int


class RunIndex(AbstractContextManager["RunIndex"]):
    """The index of one run in a journal. `folder`: where it is stored (default: the user's cache).
    Raises StoreError.

    Any thread may use it. `version` grows with each change of the index.
    """

    def __init__(self, journal: Path, run: str, folder: Path | None = None) -> None:
        self.path, self.run = journal, run
        self.version = 0
        self._lock = threading.RLock()
        self._synced_at = -SYNC_SECONDS
        self._data_version: int | None = None  # of the journal, as of the last look
        self._computed: dict[Hashable, Any] = {}  # from the index in this version
        self._file = file_identity(journal)
        self._journal = Journal(journal, read_only=True)
        try:
            self.info()  # raises for a run that does not exist
            identity = json.dumps([SCHEMA, os.path.realpath(journal), run])
            self._database = _open_database(_index_path(identity, folder), identity)
        except BaseException:
            self._journal.close()
            raise
        self._states: dict[int, RowState] = {}
        self._index_version: int | None = None  # of the index, as of the last look

    def close(self) -> None:
        """Close the index and the journal."""
        with self._lock:
            self._database.close()
            self._journal.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_current(self) -> bool:
        """Whether the journal that is read is still the file at its path."""
        return self._file == file_identity(self.path)

    def info(self) -> RunInfo:
        """Return what the journal says about the run. Raises StoreError if the run was deleted."""
        with self._lock:
            if (info := self._journal.run(self.run)) is None:
                raise StoreError(f"journal {str(self.path)!r} has no run {self.run!r}")
            return info

    # ---- building

    def sync(self, progress: Progress | None = None) -> None:
        """Read the rows that have changed, at most every two seconds."""
        with self._lock:
            if monotonic() - self._synced_at < SYNC_SECONDS:
                return
            self._read_states()
            seen = self._journal.data_version
            if seen == self._data_version:
                return
            self._forget_tried_again()
            keys = self._journal.row_keys(self.run)
            states = {
                number: (*state, str(keys.get(number))[:MAX_KEY])
                for number, state in self._journal.row_states(self.run).items()
            }
            changed = sorted(
                number for number, state in states.items() if self._states.get(number) != state
            )
            self._remove(sorted(self._states.keys() - states.keys()))
            for start in range(0, len(changed), ROWS_PER_READ):
                self._add(changed[start : start + ROWS_PER_READ], states)
                if progress:
                    progress(min(start + ROWS_PER_READ, len(changed)), len(changed))
            self._synced_at, self._data_version = monotonic(), seen

    def _read_states(self) -> None:
        """Read which rows are in the index, also when another process has changed it."""
        seen = self._read("PRAGMA data_version")[0][0]
        if seen != self._index_version:
            stored = self._read("SELECT number, position, status, length, key FROM rows")
            self._states = {number: tuple(state) for number, *state in stored}
            self._index_version = seen
            self._begin_version()

    def _forget_tried_again(self) -> None:
        """Forget the rows that a later invocation tried again, whose state need not tell it: those
        that had failed, and all if the run or its journal was replaced.
        """
        info = self.info()
        started = f"{info.started_at} {self._file}"
        invocation = str(info.metadata.get("invocation", 0))
        if self._meta("started") != started:
            self._remove(sorted(self._states))
        elif self._meta("invocation") != invocation:
            self._remove([n for n, (_, status, *_) in self._states.items() if status == "failed"])
        else:
            return
        with self._transaction():
            noted = [("started", started), ("invocation", invocation)]
            self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", noted)

    def _add(self, numbers: Sequence[int], states: Mapping[int, RowState]) -> None:
        facts = [row_facts(row) for row in self._journal.stored_rows(numbers)]
        with self._transaction():
            self._delete(numbers)
            marks = ", ".join("?" * (len(COLUMNS) + 2))
            self._write(  # the names are ours
                f"INSERT INTO rows ({', '.join(COLUMNS)}, length, key) VALUES ({marks})",  # noqa: S608
                [(*COLUMN_VALUES(f), *states[f.number][2:]) for f in facts],
            )
            self._write("INSERT INTO texts VALUES (?, ?)", [(f.number, f.search) for f in facts])
            self._write(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?)",
                [(f.number, s.kind, s.name, s.first, s.best) for f in facts for s in f.scores],
            )
            self._write(
                "INSERT INTO iterations VALUES (?, ?, ?, ?, ?, ?)",
                [i for f in facts for i in _iteration_rows(f)],
            )
        self._states |= {f.number: states[f.number] for f in facts}

    def _remove(self, numbers: Sequence[int]) -> None:
        if numbers:
            with self._transaction():
                self._delete(numbers)
            for number in numbers:
                del self._states[number]

    def _delete(self, numbers: Sequence[int]) -> None:
        for table in TABLE_NAMES:
            self._write((f"DELETE FROM {table} WHERE number = ?"), [(n,) for n in numbers])  # noqa: S608

    # ---- reading

    def page(self, query: RowQuery, offset: int, limit: int) -> RowPage:
        """Return rows of a list in its order."""
        listed = f"FROM rows WHERE {query.condition}"
        of_page = f"{listed} ORDER BY {query.ordering} LIMIT :limit OFFSET :offset"
        values = query.values | {"limit": limit, "offset": offset}
        columns = ", ".join(COLUMNS)
        with self._lock:  # the statements are ours
            self.sync()
            total = self._read(f"SELECT count(*) {listed}", values)[0][0]
            numbers = self._read(f"SELECT number {of_page}", values)
            one = f"SELECT {columns} FROM rows WHERE number = ?"  # noqa: S608
            rows = tuple(RowFacts(*row) for number in numbers for row in self._read(one, number))
        return RowPage(rows, offset, total)

    def trace(self, number: int) -> Trace | None:
        """Return the trace of the row with this number; None if the run has no such row. Raises
        StoreError if it is damaged.
        """
        with self._lock:
            id = self._stored_id(number)
            return None if id is None else self._journal.trace(self.run, id)

    def judges(self, number: int) -> Mapping[str, Any]:
        """Return what the journal says of the judges of a row, by their names; empty if it says
        nothing.
        """
        with self._lock:
            id = self._stored_id(number)
            row = None if id is None else self._journal.rows_by_id(self.run, [id]).get(id)
            known = self.info().metadata.get("judges")
        if row is None or not isinstance(known, Mapping):
            return {}
        judges = known.get(row.key_parts.get("settings", ""))
        return judges if isinstance(judges, Mapping) else {}

    def _stored_id(self, number: int) -> str | None:
        """Return the ID of a row as the journal has it; None if the run has no such row."""
        if not self.read("SELECT 1 FROM rows WHERE number = ?", number):
            return None
        return next((value_from_json(row.id) for row in self._journal.stored_rows([number])), None)

    def read(self, sql: str, *values: Any, **named: Any) -> list[Any]:
        """Return what a statement of ours finds in the index, after looking for changes."""
        with self._lock:
            self.sync()
            return self._read(sql, named or values)

    def read_as(self, kind: type[T], sql: str, *values: Any) -> list[T]:
        """Return what a statement of ours finds as objects, whose fields are its columns."""
        with self._lock:
            self.sync()
            cursor = self._execute(sql, values)
            names = [column[0] for column in cursor.description]
            return [kind(**dict(zip(names, row, strict=True))) for row in cursor]

    def names(self, kind: str) -> list[str]:
        """Return the names of the graders (kind "grader") or of their criteria (kind "criterion"),
        in order.
        """
        sql = "SELECT DISTINCT name FROM scores WHERE kind = ? ORDER BY name LIMIT 200"
        return self.computed(("names", kind), lambda: [name for (name,) in self.read(sql, kind)])

    def computed(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what a function computes from the index, computed once for each state of the
        index.
        """
        with self._lock:
            self.sync()
            if key in self._computed:
                known: T = self._computed[key]
                return known
            version, value = self.version, compute()
            if version == self.version:
                self._computed[key] = value
            return value

    # ---- the database

    def _execute(self, sql: str, values: Values = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(sql, values)
        except (sqlite3.Error, OverflowError) as error:
            raise _index_error(error) from error

    def _read(self, sql: str, values: Values = ()) -> list[Any]:
        return self._execute(sql, values).fetchall()

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._database.executemany(sql, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise _index_error(error) from error
        self._begin_version()

    def _begin_version(self) -> None:
        self.version += 1
        self._computed.clear()

    def _meta(self, name: str) -> str | None:
        found = self._read("SELECT value FROM meta WHERE name = ?", [name])
        return found[0][0] if found else None


def _iteration_rows(facts: RowFacts) -> Iterator[tuple[Any, ...]]:
    before = None
    for n, (score, calls, cost) in enumerate(facts.by_iteration):
        yield facts.number, n, score, before, calls, cost
        before = score


def file_identity(path: Path) -> str:
    """Return what two files at a path do not have in common; "" if there is none."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino}"


def _index_path(identity: str, folder: Path | None) -> Path:
    """Return the file of the index; its folder is made, private to the user."""
    folder = folder or cache_dir() / "view"
    try:
        make_folder(folder.parent)
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        if is_untrusted(folder):
            raise StoreError(
                f"the cache {str(folder)!r} belongs to another user: name another folder in "
                "REDRAFT_HOME"
            )
        with suppress(OSError):  # a file system without modes
            folder.chmod(PRIVATE_FOLDER)
        _remove_unused(folder)
    except OSError as error:
        raise StoreError(f"the cache {str(folder)!r} cannot be made: {error.strerror}") from error
    return folder / f"{sha256(identity.encode()).hexdigest()[:24]}{SUFFIX}"


def _remove_unused(folder: Path) -> None:
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            if time() - path.lstat().st_mtime > UNUSED_SECONDS:
                _remove_files(path)


def _remove_files(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _open_database(path: Path, identity: str) -> sqlite3.Connection:
    """Open an index; one of another run or release, or a damaged one, is made anew."""
    try:
        with suppress(sqlite3.Error):
            return _connect(path, identity)
        _remove_files(path)
        return _connect(path, identity, TABLES)
    except (OSError, sqlite3.Error) as error:
        raise _index_error(error) from error


def _connect(path: Path, identity: str, tables: str = "") -> sqlite3.Connection:
    """Open a file, and make `tables` in it. Raises sqlite3.Error if it is damaged, or not the index
    that is wanted.
    """
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    try:
        connection.executescript(SETTINGS + tables)
        if tables:
            connection.execute("INSERT INTO meta VALUES ('identity', ?)", (identity,))
        found = connection.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
        if found != (identity,):
            raise sqlite3.DatabaseError("another index")
        connection.execute("SELECT sum(length) FROM rows").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _index_error(error: Exception) -> StoreError:
    return StoreError(
        f"the index in the cache cannot be used: {error}; delete it, and it is made anew"
    )
