"""What can still be read of a damaged journal, as lines of JSON."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from ..core.serialize import value_from_json
from ..errors import StoreError
from .database import fetch_bounded
from .schema import CHECK_TIMEOUT, LINES_PER_ROW, TABLES, journal_label, open_connection, set_time_limit, to_store_error, wal_path
from .secure_files import AtomicFile, open_regular

ROWS_PER_READ = 100
MAX_ROW_ID = 2**62
COLUMNS = {
    "runs": "run, name, about, begun, changed",
    "rows": "row, run, id, n, key, parts, status, result",
    "lines": f"at, at / {LINES_PER_ROW} AS row, at % {LINES_PER_ROW} AS place, line",
    "calls": "call, key, reply",
}
"""What is read of each table; the first is its place in it."""
SELECT_DECLARED_TABLES = "SELECT name, sql FROM sqlite_master WHERE name IN ('runs', 'rows', 'lines', 'calls')"
READ_TIMEOUT = 10.0  # seconds that reading some rows may take
JSON_COLUMNS = {"name", "about", "id", "parts", "result", "line", "reply"}


def salvage(path: str | Path, out: str | Path, *, overwrite: bool = False) -> dict[str, int]:
    """Copy every readable run, row, record line and reply to `out`, a line of JSON each; how many of each there were.

    `table` says which of them a line is. A row whose status is "done" is finished: `result["columns"]` are the columns that
    its output line had, `id` is what joins them to the input. `lines` are its records in order (`place` 0 the header),
    `calls` the replies that were paid for. Works on a copy (in the folder for temporary files), so that the journal stays as
    it is. Raises StoreError where nothing can be read, where `out` exists (unless `overwrite`), or is the journal itself.
    """
    source, target = Path(path), Path(out)
    if target.exists() and (not overwrite or target.samefile(source)):
        raise StoreError(f"{str(out)!r} exists already: name another file")
    try:
        draft = AtomicFile(target)
        try:
            with (
                TemporaryDirectory() as folder,
                closing(open_connection(_copy_journal(source, Path(folder)), "mode=rw")) as connection,
            ):
                connection.row_factory = sqlite3.Row
                text = TextIOWrapper(draft.file, "utf-8")
                counts = {table: _save_table(connection, table, text) for table in _readable_tables(source, connection)}
                text.detach()
            if not any(counts.values()):
                raise StoreError(f"nothing can be read of {journal_label(source)}")
            draft.commit()
        finally:
            draft.abort()
    except sqlite3.Error as error:
        raise to_store_error(source, error) from error
    except OSError as error:
        raise StoreError(f"{journal_label(source)} cannot be saved to {str(out)!r}: {error.strerror or error}") from error
    return counts


def _copy_journal(source: Path, folder: Path) -> Path:
    """A copy, with what was committed last beside it."""
    copy = folder / "journal"
    for file, its_copy in ((source, copy), (wal_path(source), wal_path(copy))):
        if file == source or file.exists():
            with open_regular(file) as held, its_copy.open("wb") as written:
                shutil.copyfileobj(held, written, 2**20)
    return copy


def _readable_tables(source: Path, connection: sqlite3.Connection) -> list[str]:
    """The tables that can be read. Raises StoreError for one that is not as we made it: reading it could do anything."""
    set_time_limit(connection, CHECK_TIMEOUT)
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(TABLES)
        ours = dict(memory.execute(SELECT_DECLARED_TABLES).fetchall())
    try:
        found = dict(connection.execute(SELECT_DECLARED_TABLES).fetchall())
    except sqlite3.DatabaseError:
        return []
    if foreign := [name for name, sql in found.items() if sql != ours[name]]:
        raise StoreError(f"nothing can be saved of {journal_label(source)}: its {foreign[0]!r} is not the table of a journal")
    return [name for name in COLUMNS if name in found]


def _save_table(connection: sqlite3.Connection, table: str, file: TextIO) -> int:
    count = 0
    for found in _readable_rows(connection, f"SELECT {COLUMNS[table]} FROM {table}", COLUMNS[table].split(",")[0]):  # noqa: S608
        file.write(json.dumps({"table": table, **{name: _decode_value(name, found[name]) for name in found.keys()}}) + "\n")  # noqa: SIM118
        count += 1
    return count


def _readable_rows(connection: sqlite3.Connection, select: str, key_column: str) -> Iterator[sqlite3.Row]:
    """The rows of a table in order; where one cannot be read, ever longer stretches are left out until one can."""
    sql = f"{select} WHERE {key_column} >= ? ORDER BY {key_column} LIMIT ?"
    here, at_once, left_out = 0, ROWS_PER_READ, 1
    restart = set_time_limit(connection, READ_TIMEOUT)
    while here < MAX_ROW_ID:
        restart()
        try:
            found = fetch_bounded(connection.execute(sql, (here, at_once)))
            broken = any(row[0] < here for row in found)
        except (sqlite3.DatabaseError, OverflowError) as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
                raise
            broken = True
        if broken:
            here, left_out = (here + left_out, left_out * 2) if at_once == 1 else (here, left_out)
            at_once = 1
        elif found:
            yield from found
            here, left_out = found[-1][0] + 1, 1
        else:
            return


def _decode_value(name: str, value: Any) -> Any:
    """What a text says; where it is torn, the text itself."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    try:
        return value_from_json(value) if name in JSON_COLUMNS and value else value
    except StoreError:
        return value
