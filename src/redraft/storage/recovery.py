"""Recovery of what is readable in a damaged journal, as JSON Lines."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from ..base.documents import open_regular
from ..errors import StoreError, WrongFileError
from ..loop.serialize import value_from_json
from ..plans.quality.result_facts import ResultFacts
from .database import fetch_bounded
from .schema import (
    CHECK_TIMEOUT,
    LINES_PER_ROW,
    TABLES,
    journal_label,
    open_connection,
    set_time_limit,
    to_store_error,
    wal_path,
)
from .secure_files import AtomicFile

ROWS_PER_READ = 100
MAX_ROW_ID = 2**62
COLUMNS = {
    "runs": "run, name, metadata, started_at, updated_at",
    "rows": "row, run, id, position, key, key_parts, status, result",
    "lines": f"number, number / {LINES_PER_ROW} AS row, number % {LINES_PER_ROW} AS place, line",
    "calls": "call, key, reply",
}
"""The columns read of each table; the first is its key."""
SELECT_DECLARED_TABLES = (
    "SELECT name, sql FROM sqlite_master WHERE name IN ('runs', 'rows', 'lines', 'calls')"
)
READ_TIMEOUT = 10.0  # seconds for reading ROWS_PER_READ rows
JSON_COLUMNS = {"name", "metadata", "id", "key_parts", "result", "line", "reply"}


def salvage(path: str | Path, out: str | Path, *, overwrite: bool = False) -> dict[str, int]:
    """Copy every readable run, row, record and reply to `out` as JSON Lines; return the number of
    lines per table.

    `table` in a line is its kind. A row with status "done" is finished: `result["columns"]` are the
    columns of its output, `id` joins them to the input. `lines` are the records of rows in order
    (`place` 0 is the header), `calls` the replies of models. The journal itself stays unchanged: a
    copy in the folder for temporary files is read. Raises StoreError if nothing can be read, and if
    `out` exists (unless `overwrite`) or is the journal itself.
    """
    source, target = Path(path), Path(out)
    if target.exists() and (not overwrite or target.samefile(source)):
        raise WrongFileError(f"{str(out)!r} exists already: name another file")
    try:
        draft = AtomicFile(target)
        try:
            with (
                TemporaryDirectory() as folder,
                closing(
                    open_connection(_copy_journal(source, Path(folder)), "mode=rw")
                ) as connection,
            ):
                connection.row_factory = sqlite3.Row
                text = TextIOWrapper(draft.file, "utf-8")
                counts = {
                    table: _save_table(connection, table, text)
                    for table in _readable_tables(source, connection)
                }
                text.detach()
            if not any(counts.values()):
                raise StoreError(f"nothing in {journal_label(source)} can be read")
            draft.commit()
        finally:
            draft.abort()
    except sqlite3.Error as error:
        raise to_store_error(source, error) from error
    except OSError as error:
        raise StoreError(
            f"{journal_label(source)} cannot be salvaged to {str(out)!r}: {error.strerror or error}"
        ) from error
    return counts


def _copy_journal(source: Path, folder: Path) -> Path:
    """Return a copy of the journal and its write-ahead log."""
    copy = folder / "journal"
    for file, its_copy in ((source, copy), (wal_path(source), wal_path(copy))):
        if file == source or file.exists():
            with open_regular(file) as original, its_copy.open("wb") as target:
                shutil.copyfileobj(original, target, 2**20)
    return copy


def _readable_tables(source: Path, connection: sqlite3.Connection) -> list[str]:
    """Return the readable tables. Raises StoreError for one with another declaration: reading it
    could run foreign code.
    """
    set_time_limit(connection, CHECK_TIMEOUT)
    with closing(sqlite3.connect(":memory:")) as memory:
        memory.executescript(TABLES)
        expected = dict(memory.execute(SELECT_DECLARED_TABLES).fetchall())
    try:
        actual = dict(connection.execute(SELECT_DECLARED_TABLES).fetchall())
    except sqlite3.DatabaseError:
        return []
    if foreign := [name for name, sql in actual.items() if sql != expected[name]]:
        raise StoreError(
            f"nothing can be salvaged from {journal_label(source)}: its table {foreign[0]!r} is "
            "not that of a journal"
        )
    return [name for name in COLUMNS if name in actual]


def _save_table(connection: sqlite3.Connection, table: str, file: TextIO) -> int:
    count = 0
    for row in _readable_rows(
        connection,
        f"SELECT {COLUMNS[table]} FROM {table}",  # noqa: S608
        COLUMNS[table].split(",")[0],
    ):
        values = {name: _decode_value(name, row[name]) for name in row.keys()}  # noqa: SIM118
        file.write(json.dumps({"table": table, **_with_result_columns(values)}) + "\n")
        count += 1
    return count


def _readable_rows(
    connection: sqlite3.Connection, select: str, key_column: str
) -> Iterator[sqlite3.Row]:
    """Yield the rows of a table in order. After an unreadable one, skip 1, 2, 4, ... row numbers
    until a row can be read.
    """
    sql = f"{select} WHERE {key_column} >= ? ORDER BY {key_column} LIMIT ?"
    start, limit, skip = 0, ROWS_PER_READ, 1
    restart = set_time_limit(connection, READ_TIMEOUT)
    while start < MAX_ROW_ID:
        restart()
        try:
            rows = fetch_bounded(connection.execute(sql, (start, limit)))
            is_damaged = any(row[0] < start for row in rows)
        except (sqlite3.DatabaseError, OverflowError) as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
                raise
            rows, is_damaged = [], True
        if is_damaged:
            start, skip = (start + skip, skip * 2) if limit == 1 else (start, skip)
            limit = 1
        elif rows:
            yield from rows
            start, skip = rows[-1][0] + 1, 1
        else:
            return


def _decode_value(name: str, value: Any) -> Any:
    """Return the value of a JSON text; the text itself if it is damaged."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    try:
        return value_from_json(value) if name in JSON_COLUMNS and value else value
    except StoreError:
        return value


def _with_result_columns(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row, with its result in the present form and as "columns" of an
    output; unchanged if there is no result that can be read.
    """
    if isinstance(result := values.get("result"), Mapping):
        with suppress(StoreError):
            facts = ResultFacts.from_data({**result, "status": values["status"]})
            return {**values, "result": facts.as_data(), "columns": facts.columns}
    return values
