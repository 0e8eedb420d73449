"""What can still be read of a damaged journal, as lines of JSON."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from ..core.errors import StoreError
from .schema import PLACES, connect, explained, name_of, wal_of

AT_ONCE = 100
FARTHEST = 2**62
COLUMNS = {
    "runs": "run, name, about, begun, changed",
    "rows": "row, run, id, n, key, parts, status, result",
    "lines": f"at, at / {PLACES} AS row, at % {PLACES} AS place, line",
    "calls": "call, key, reply",
}
"""What is read of each table; the first is its place in it."""
IN_JSON = {"name", "about", "id", "parts", "result", "line", "reply"}


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
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with (
            TemporaryDirectory() as folder,
            draft.open("x", encoding="utf-8") as file,
            closing(connect(_copied(source, Path(folder)), "mode=rw")) as connection,
        ):
            connection.row_factory = sqlite3.Row
            counts = {table: _save(connection, table, file) for table in COLUMNS}
        if not any(counts.values()):
            raise StoreError(f"nothing can be read of {name_of(source)}")
        draft.replace(target)
    except sqlite3.Error as error:
        raise explained(source, error) from error
    except OSError as error:
        raise StoreError(f"{name_of(source)} cannot be saved to {str(out)!r}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return counts


def _copied(source: Path, folder: Path) -> Path:
    """A copy, with what was committed last beside it."""
    copy = folder / "journal"
    shutil.copyfile(source, copy)
    if wal_of(source).exists():
        shutil.copyfile(wal_of(source), wal_of(copy))
    return copy


def _save(connection: sqlite3.Connection, table: str, file: TextIO) -> int:
    count = 0
    for found in _readable(connection, f"SELECT {COLUMNS[table]} FROM {table}", COLUMNS[table].split(",")[0]):  # noqa: S608
        file.write(json.dumps({"table": table, **{name: _told(name, found[name]) for name in found.keys()}}) + "\n")  # noqa: SIM118
        count += 1
    return count


def _readable(connection: sqlite3.Connection, select: str, place: str) -> Iterator[sqlite3.Row]:
    """The rows of a table in order; where one cannot be read, ever longer stretches are left out until one can."""
    sql = f"{select} WHERE {place} >= ? ORDER BY {place} LIMIT ?"
    here, at_once, left_out = 0, AT_ONCE, 1
    while here < FARTHEST:
        try:
            found = connection.execute(sql, (here, at_once)).fetchall()
        except sqlite3.DatabaseError:
            if at_once == 1:
                here, left_out = here + left_out, left_out * 2
            at_once = 1
            continue
        if not found:
            return
        yield from found
        here, left_out = found[-1][0] + 1, 1


def _told(name: str, value: Any) -> Any:
    """What a text says; where it is torn, the text itself."""
    try:
        return json.loads(value) if name in IN_JSON and value else value
    except ValueError:
        return value
