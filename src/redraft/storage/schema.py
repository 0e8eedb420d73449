"""The file of a journal: its tables, and how it is created, checked and opened. This module does
not know what the tables mean.

Texts are JSON, in which lone surrogates and NUL are escaped; IDs and names of runs with ASCII
escapes only, as they are looked up by their text. A rejected file stays unchanged: its header is
read as bytes first, then SQLite opens it read-only.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Literal, TypeAlias

from ..errors import ConfigError, StoreError, WrongFileError
from .secure_files import AtomicFile, is_untrusted, resolve_path

SCHEMA = 4
READABLE = {3, SCHEMA}  # schema 3, of releases up to 0.2, has the first form of results only
APPLICATION_ID = int.from_bytes(b"Rdft")
LEAF_PAGE = 0x0D  # type of a first page that holds the whole schema
LINES_PER_ROW = 2**20
"""The lines of a row are numbered `row * LINES_PER_ROW + place`: its header has place 0, record k
place k + 1.
"""
FULL_CHECK_BYTES = 64 * 2**20
"""Files up to this size are checked completely when they are opened; in larger ones damage shows
when it is read.
"""
TABLES = f"""
CREATE TABLE runs (run INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL,
                   started_at TEXT NOT NULL, updated_at TEXT NOT NULL);
CREATE TABLE rows (row INTEGER PRIMARY KEY, run INTEGER NOT NULL, id TEXT NOT NULL, position INTEGER NOT NULL,
                   key TEXT NOT NULL, key_parts TEXT NOT NULL, status TEXT NOT NULL, result TEXT);
CREATE UNIQUE INDEX rows_by_id ON rows (run, id);
CREATE INDEX rows_in_order ON rows (run, position, status);
CREATE TABLE lines (number INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TRIGGER delete_details_of_row AFTER DELETE ON rows BEGIN
    DELETE FROM lines WHERE number >= OLD.row * {LINES_PER_ROW} AND number < (OLD.row + 1) * {LINES_PER_ROW};
    DELETE FROM seen_rows WHERE row = OLD.row;
END;
CREATE TABLE seen_rows (row INTEGER PRIMARY KEY, invocation INTEGER NOT NULL);
CREATE TABLE calls (call INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, reply TEXT NOT NULL);
"""  # noqa: E501, S608
Durability: TypeAlias = Literal["normal", "full"]
SYNCHRONOUS: dict[str, str] = {"normal": "NORMAL", "full": "FULL"}
CHECKPOINT_PAGES = 4000  # pages of the write-ahead log after which it is written into the file
WRITER_PRAGMAS = (
    "PRAGMA cache_size = -16384",  # 16 MiB
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
    # deleted text is overwritten; the default of many builds of SQLite
    "PRAGMA secure_delete = ON",
    f"PRAGMA journal_size_limit = {64 * 2**20}",
)

SECURITY_PRAGMAS = ("PRAGMA trusted_schema = OFF", "PRAGMA cell_size_check = ON")
"""SQLite's recommendations for files from strangers (https://www.sqlite.org/security.html)."""
MAX_VALUE_BYTES = 2**27
"""Bytes of a value. An answer has at most 8 MiB, and JSON escapes make it at most six times as
long.
"""
MAX_SQL_BYTES = 2**14
"""Bytes of a statement, also of those in the schema: far more than any statement of ours has."""
PROGRESS_STEPS = 100_000
"""Steps of SQLite's virtual machine between two checks of the time."""
CACHED_STATEMENTS = 300
"""Statements that a connection keeps prepared: enough for writing up to 32 rows at a time."""
LOG_MILLISECONDS = 500
"""How long `empty_log` waits for those who read."""
CHECK_TIMEOUT = 30.0
"""Seconds that checking a file may take."""

ERROR_MESSAGES = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR_SHMSIZE": "the disk is full: there is no room for the index of its log",
    "SQLITE_BUSY": "another program has had it locked for more than 30 s",
    "SQLITE_TOOBIG": f"a value is larger than {MAX_VALUE_BYTES // 2**20} MiB",
    "SQLITE_INTERRUPT": "the operation took too long",
}


def open_writer(path: Path, durability: str) -> sqlite3.Connection:
    """Open a connection that writes to a file that `check_file` accepted; create a missing or empty
    file.
    """
    if durability not in SYNCHRONOUS:
        raise ConfigError(f"durability must be one of {', '.join(SYNCHRONOUS)}, got {durability!r}")
    try:
        if is_new(path):
            create_database(path, APPLICATION_ID, SCHEMA, TABLES)
        connection = open_connection(path, "mode=rw")
        for setting in (f"PRAGMA synchronous = {SYNCHRONOUS[durability]}", *WRITER_PRAGMAS):
            connection.execute(setting)
        if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
    except (OSError, sqlite3.Error) as error:
        raise to_store_error(path, error) from error
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that reads while another process writes. A file without write permission is
    read as it is on disk.
    """
    try:
        writable = os.access(path, os.W_OK) and os.access(real_path(path).parent, os.W_OK)
        connection = open_connection(
            path,
            "mode=rw"
            if writable
            else "mode=ro"
            if wal_path(path).exists()
            else "mode=ro&immutable=1",
        )
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise to_store_error(path, error) from error
    return connection


def open_connection(path: Path, mode: str) -> sqlite3.Connection:
    """Open a connection in autocommit mode that any thread may use, with limits against hostile
    files.
    """
    uri = f"{real_path(path).as_uri()}?{mode}"
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=30,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_BYTES)
        if hasattr(connection, "setconfig"):  # from Python 3.12 on
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined,unused-ignore]
        for setting in SECURITY_PRAGMAS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def empty_log(connection: sqlite3.Connection) -> None:
    """Write the log into the file and cut it off. Gives up soon where another process reads, since
    commits wait meanwhile.
    """
    connection.execute(f"PRAGMA busy_timeout = {LOG_MILLISECONDS}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def set_time_limit(connection: sqlite3.Connection, seconds: float) -> Callable[[], None]:
    """Make statements of a connection fail once `seconds` have passed; return a function that
    restarts the clock.
    """
    end = monotonic() + seconds

    def restart() -> None:
        nonlocal end
        end = monotonic() + seconds

    connection.set_progress_handler(lambda: monotonic() > end, PROGRESS_STEPS)
    return restart


def check_file(path: Path) -> None:
    """Raise StoreError unless a file is new or begins as a journal of this schema does, or of an
    earlier one that can be read.
    """
    try:
        resolve_path(path)
        for ending in ("-wal", "-shm", "-journal"):
            _check_sibling(path, ending)
    except OSError as error:
        raise to_store_error(path, error) from error
    if is_new(path):
        _check_no_orphan_wal(path)
    else:
        _check_header(path)


def is_new(path: Path) -> bool:
    """Return whether a file is missing or empty."""
    try:
        return not path.exists() or (path.is_file() and path.stat().st_size == 0)
    except OSError as error:
        raise to_store_error(path, error) from error


def real_path(path: Path) -> Path:
    """Return the path with all links resolved: SQLite creates its other files beside that file."""
    return Path(os.path.realpath(path))


def wal_path(path: Path) -> Path:
    """Return the write-ahead log of a journal."""
    return sibling_path(path, "-wal")


def sibling_path(path: Path, suffix: str) -> Path:
    """Return the path of the file beside a journal (links resolved) whose name has this suffix."""
    return real_path(path).with_name(f"{real_path(path).name}{suffix}")


def check_owner(path: Path) -> None:
    """Raise StoreError for a file of another user in a world-writable folder: a journal is
    private.
    """
    try:
        if path.exists() and is_untrusted(real_path(path)):
            raise StoreError(
                f"{journal_label(path)} belongs to another user, in a world-writable folder: name "
                "another file"
            )
    except OSError as error:
        raise to_store_error(path, error) from error


def _check_sibling(path: Path, suffix: str) -> None:
    """Raise StoreError for a file that SQLite would take for its own. Redraft never leaves a
    rollback journal.
    """
    file = sibling_path(path, suffix)
    if not os.path.lexists(file):
        return
    status = file.lstat()
    if (
        not stat.S_ISREG(status.st_mode)
        or is_untrusted(file)
        or (suffix == "-journal" and status.st_size)
    ):
        raise StoreError(
            f"{journal_label(path)} cannot be opened: {str(file)!r} beside it does not belong to "
            "it; move it away, or name another journal"
        )


def _check_no_orphan_wal(path: Path) -> None:
    wal = wal_path(path)
    if wal.exists() and wal.stat().st_size:
        raise StoreError(
            f"{journal_label(path)} is missing or empty, but the file with its last writes is "
            f"there ({str(wal)!r}): restore the journal, or remove that file to start again"
        )


def _check_header(path: Path) -> None:
    """Check the first 100 bytes of SQLite's format (https://www.sqlite.org/fileformat.html)."""
    try:
        if not path.is_file():
            raise WrongFileError(f"{journal_label(path)} is not a regular file: name another path")
        with path.open("rb") as file:
            head = file.read(101)
    except OSError as error:
        raise to_store_error(path, error) from error
    if not head.startswith(b"SQLite format 3\0"):
        raise WrongFileError(
            f"{journal_label(path)} is not a journal (it is not an SQLite file): name another "
            "file; it was left unchanged"
        )
    if len(head) < 101:
        raise StoreError(
            f"{journal_label(path)} is cut off after {len(head)} bytes: restore it, or name "
            "another file"
        )
    version, application = int.from_bytes(head[60:64]), int.from_bytes(head[68:72])
    if application != APPLICATION_ID:
        raise WrongFileError(
            f"{journal_label(path)} is an SQLite file of another program: name another file; it "
            "was left unchanged"
        )
    if version not in READABLE:
        advice = (
            "it was written by a newer Redraft: use that"
            if version > SCHEMA
            else "use the Redraft that wrote it"
        )
        raise WrongFileError(
            f"{journal_label(path)} has schema {version}, this release reads schema {SCHEMA}; "
            f"{advice}, or name another file"
        )
    if head[100] != LEAF_PAGE:
        raise damaged_error(path, "its first page is not that of a journal")


def check_journal(path: Path) -> None:
    """Raise StoreError unless a file is new or a complete journal. Writes nothing."""
    check_file(path)
    if not is_new(path):
        _check_tables(path)


def _check_tables(path: Path) -> None:
    wal, shm = wal_path(path), sibling_path(path, "-shm")
    shm_existed = shm.exists()
    has_wal = wal.exists() and wal.stat().st_size > 0
    try:
        with closing(
            open_connection(path, "mode=ro" if has_wal else "mode=ro&immutable=1")
        ) as connection:
            set_time_limit(connection, CHECK_TIMEOUT)
            _check_schema_objects(path, _schema_objects(connection))
            if (
                path.stat().st_size <= FULL_CHECK_BYTES
                and (finding := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok"
            ):
                raise damaged_error(path, finding.splitlines()[-1])
    except (OSError, sqlite3.Error, StoreError) as error:
        if not shm_existed:  # reading has created it beside the rejected journal
            shm.unlink(missing_ok=True)
        raise to_store_error(path, error) from error


def _check_schema_objects(path: Path, objects: set[SchemaObject]) -> None:
    """Raise StoreError unless a file holds the tables, indices and triggers of a journal, and
    nothing else.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        expected = _schema_objects(connection)
    if foreign := sorted(f"the {kind} {name!r}" for kind, name, *_ in objects - expected):
        raise WrongFileError(
            f"{journal_label(path)} holds objects that a journal does not have "
            f"({', '.join(foreign[:5])}): name another file; it was left unchanged. `redraft runs "
            "salvage JOURNAL -o saved.jsonl` recovers the content of its journal tables"
        )
    if objects != expected:
        raise damaged_error(path, "some of its tables are missing")


SchemaObject: TypeAlias = tuple[str, str, str, str | None]


def _schema_objects(connection: sqlite3.Connection) -> set[SchemaObject]:
    """Return everything that a schema declares: kind, name, table, and the statement that created
    it.
    """
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 1000")
    return {
        (str(kind)[:80], str(name)[:80], str(table)[:80], sql) for kind, name, table, sql in rows
    }


def create_database(
    path: Path, application_id: int, schema: int, tables: str, *settings: str
) -> None:
    """Create a file of SQLite atomically, with its tables and readable by its owner only; an
    existing empty file keeps its mode.

    `settings` are executed before the tables are made. Raises OSError or sqlite3.Error, and leaves
    no file then.
    """
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / "database"
        with closing(open_connection(temporary, "mode=rwc")) as connection:
            synchronous = "PRAGMA synchronous = OFF"  # the copy of this file is synchronized
            identity = (
                f"PRAGMA application_id = {application_id}",
                f"PRAGMA user_version = {schema}",
            )
            for setting in (synchronous, *settings, *identity):
                connection.execute(setting)
            connection.executescript(tables)
            connection.execute("PRAGMA journal_mode = WAL")
        data = temporary.read_bytes()
    draft = AtomicFile(path, private=True)
    try:
        draft.file.write(data)
        draft.commit()
    finally:
        draft.abort()


def journal_label(path: Path) -> str:
    """Return how errors name a journal."""
    return f"journal {str(path)!r}"


def damaged_error(path: Path, reason: str) -> StoreError:
    """Return the error for a damaged journal."""
    return StoreError(
        f"{journal_label(path)} is damaged ({reason}): restore it from a copy, or save what can "
        "still be read with `redraft runs salvage JOURNAL -o saved.jsonl` and name another journal"
    )


def to_store_error(
    path: Path, error: Exception, finished_rows: str | None = None, *, action: str = "opened"
) -> StoreError:
    """Return an error of SQLite or the disk as a StoreError that says what failed.

    `finished_rows`: the number of finished rows in a file that was being written.
    """
    if isinstance(error, StoreError):
        return error
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged_error(path, str(error))
    why = (
        ERROR_MESSAGES.get(code)
        or getattr(error, "strerror", None)
        or f"{error}{code and f', {code}'}"
    )
    if finished_rows is None:
        return StoreError(f"{journal_label(path)} cannot be {action}: {why}")
    when = "there is room" if code == "SQLITE_FULL" else "that is fixed"
    return StoreError(
        f"{journal_label(path)} cannot be written: {why}; {finished_rows} finished rows are safe "
        f"in it; the same command resumes once {when}"
    )
