"""Tables with columns that all rows share: Parquet, CSV, TSV.

A row may bring a new column, and a column a new type, at any time. So rows are kept on disk as lines of JSON, and laid out
when the table is closed and all columns are known. In memory there is one row group. Order is not known here.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

from ..errors import ConfigError
from ..storage.secure_files import AtomicFile
from .output_files import BUFFER_BYTES
from .readers import SPREADSHEET_SAFE
from .reordering import close_quietly
from .values import json_line

ROWS_PER_GROUP = 1000  # rows of a row group
MAX_GROUP_BYTES = 64 * 2**20  # bytes of their lines
PLAIN = ""
RESTORERS: Mapping[str, Callable[[str], Any]] = {
    PLAIN: lambda value: value,
    "moment": datetime.fromisoformat,
    "local moment": datetime.fromisoformat,
    "day": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": Decimal,
    "bytes": b64decode,
}


class RowSpool:
    """Lines on disk until the table is laid out."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=BUFFER_BYTES)  # noqa: SIM115 (it stays open)

    def add(self, line: bytes) -> None:
        self._file.write(line)

    def __iter__(self) -> Iterator[Any]:
        """What the lines hold, from the first on; lone surrogates, which no table can hold, have become their escapes."""
        self._file.seek(0)
        return map(_load_line, self._file)

    def groups(self) -> Iterator[list[Any]]:
        """The same, a row group at a time."""
        self._file.seek(0)
        while lines := self._next_group():
            yield list(map(_load_line, lines))

    def _next_group(self) -> list[bytes]:
        lines: list[bytes] = []
        held = 0
        while len(lines) < ROWS_PER_GROUP and held < MAX_GROUP_BYTES and (line := self._file.readline()):
            lines.append(line)
            held += len(line)
        return lines

    def close(self) -> None:
        close_quietly(self._file)


def _load_line(line: bytes) -> Any:
    return _encodable(json.loads(line)) if b"\\ud" in line else json.loads(line)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
    return {_encodable(key): _encodable(inner) for key, inner in value.items()} if isinstance(value, dict) else value


class CsvWriter:
    """CSV or TSV: texts as they are, null empty, numbers, objects and lists as JSON.

    With `spreadsheet_safe` a spreadsheet evaluates nothing in it, and reading it by `rows` gives the same texts.
    """

    def __init__(self, path: Path, delimiter: str, *, spreadsheet_safe: bool = False) -> None:
        self.durable_rows = 0
        self._delimiter, self._spreadsheet_safe = delimiter, spreadsheet_safe
        self._draft, self._spool = AtomicFile(path), RowSpool(path.parent)
        self._columns: dict[str, None] = {}

    def encode_row(self, values: Mapping[str, Any]) -> bytes:
        return json_line(values)

    def write(self, line: bytes) -> None:
        self._columns.update(dict.fromkeys(_load_line(line)))
        self._spool.add(line)

    def close(self) -> None:
        text = io.TextIOWrapper(self._draft.file, "utf-8", "backslashreplace", newline="")
        names = sorted(self._columns, key=lambda name: name != SPREADSHEET_SAFE)  # as the last one it would mean something
        if self._spreadsheet_safe:
            self._write_rows(
                csv.writer(text, delimiter=self._delimiter, quoting=csv.QUOTE_ALL), names, safe_cell_text, [SPREADSHEET_SAFE]
            )
        else:
            # A mark of the encoding that begins a name is part of it: within quotes it is not taken away
            marked = bool(names) and names[0].startswith("\ufeff")
            quoting = csv.QUOTE_ALL if marked else csv.QUOTE_MINIMAL
            writer: Any = csv.writer
            self._write_rows(writer(text, delimiter=self._delimiter, quoting=quoting), names, cell_text, [])
        text.detach()
        self._spool.close()
        self._draft.commit()

    def _write_rows(self, writer: Any, names: list[str], cell: Callable[[Any], str], mark: list[str]) -> None:
        if names:
            writer.writerow([*map(cell, names), *mark])
        writer.writerows([*(cell(row.get(name)) for name in names), *("" for _ in mark)] for row in self._spool)

    def abort(self) -> None:
        self._spool.close()
        self._draft.abort()


def cell_text(value: Any) -> str:
    """A value as a cell: a text as it is, null is empty, what is no text is JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _json_text(value)


def safe_cell_text(value: Any) -> str:
    """The same, with an apostrophe before a text that a spreadsheet could evaluate, or that begins with one."""
    text = cell_text(value)
    return f"'{text}" if isinstance(value, str) and _is_risky(text) else text


def _is_risky(text: str) -> bool:
    """Whether a spreadsheet may take it for a formula, also after what it may skip; or for one that was defused."""
    if not text or NEGATIVE_NUMBER.fullmatch(text):
        return False
    first = next((c for c in text if not _is_ignored_by_spreadsheets(c)), "")
    return text.startswith(("'", "\t", "\r", "\n")) or normalize("NFKC", first).startswith(FORMULA_STARTS)


def _is_ignored_by_spreadsheets(character: str) -> bool:
    """Whether it may count for nothing at the start of a cell: white space, control and format characters, quotes."""
    return character.isspace() or category(character) in {"Cc", "Cf", "Zs", "Zl", "Zp", "Mn"} or character in "\"'"


FORMULA_STARTS = ("=", "+", "-", "@", "\N{MINUS SIGN}")
NEGATIVE_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?")


def _json_text(value: Any) -> str:
    return json_line(value).decode().removesuffix("\n")


class ParquetWriter:
    """Parquet, in row groups of 1000. `say` is told of each column whose values have no type in common: they become JSON.

    `types` are what columns hold (str, int, float) where their values do not say otherwise.
    """

    def __init__(self, path: Path, notify: Callable[[str], object] | None = None, types: Mapping[str, type] | None = None) -> None:
        try:
            self._parquet, self._types = import_module("pyarrow.parquet"), _ColumnTypes(import_module("pyarrow"), types or {})
        except ImportError as error:
            raise ConfigError(f"{str(path)!r} is Parquet: pip install 'redraft[parquet]'") from error
        self.durable_rows = 0
        self._notify = notify
        self._draft, self._spool = AtomicFile(path), RowSpool(path.parent)

    def encode_row(self, values: Mapping[str, Any]) -> bytes:
        """A row, and which of its texts were dates and the like."""
        return json_line([values, {name: kind for name, value in values.items() if (kind := value_kind(value))}])

    def write(self, line: bytes) -> None:
        self._spool.add(line)

    def close(self) -> None:
        for rows in self._spool.groups():
            self._types.update(rows)
        self._types.apply_declared()
        while not self._try_write():
            self._draft.file.seek(0)
            self._draft.file.truncate()
        if self._notify:
            for name in self._types.mixed:
                self._notify(f"column {name!r} holds things of several types: it is written as JSON")
        self._spool.close()
        self._draft.commit()

    def abort(self) -> None:
        self._spool.close()
        self._draft.abort()

    def _try_write(self) -> bool:
        """Whether all rows could be written; a column that could not is known to be mixed then."""
        with self._parquet.ParquetWriter(self._draft.file, self._types.schema) as writer:
            for rows in self._spool.groups():
                table = self._types.table(rows)
                if table is None:
                    return False
                writer.write_table(table)
        return True


def value_kind(value: Any) -> str:
    """Which text in a line was something else, if it was."""
    if isinstance(value, datetime):
        return "local moment" if value.tzinfo is None else "moment"
    kinds = ((date, "day"), (time, "time"), (Decimal, "decimal"), (bytes, "bytes"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), PLAIN)


class _ColumnTypes:
    """What each column holds, as far as rows were taken in. `mixed` are those whose values have no type in common."""

    def __init__(self, arrow: Any, declared: Mapping[str, type]) -> None:
        self.mixed: dict[str, None] = {}
        self._arrow = arrow
        known = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
        self._declared = {name: known[type_] for name, type_ in declared.items()}
        self._kinds: dict[str, str] = {}
        self._arrow_types: dict[str, Any] = {}

    @property
    def schema(self) -> Any:
        text = self._arrow.string()
        return self._arrow.schema([(name, text if name in self.mixed else held) for name, held in self._arrow_types.items()])

    def update(self, rows: list[Any]) -> None:
        for name in dict.fromkeys(name for values, _ in rows for name in values):
            found = self._arrow_types.setdefault(name, self._arrow.null())
            if name not in self.mixed:
                self._arrow_types[name] = self._wider_type(name, found, rows)

    def apply_declared(self) -> None:
        """Give columns the types that were stated, as far as they can hold what was found."""
        for name in self._declared.keys() & self._arrow_types.keys():
            with suppress(*self._conversion_errors):
                self._arrow_types[name] = self._common_type(name, self._arrow_types[name], self._declared[name])

    def table(self, rows: list[Any]) -> Any:
        """The rows as a table; None where a column turned out to be mixed."""
        arrays = [self._array(name, rows) for name in self._arrow_types]
        return None if any(a is None for a in arrays) else self._arrow.table(arrays, schema=self.schema)

    def _wider_type(self, name: str, current: Any, rows: list[Any]) -> Any:
        """A type that takes in what these rows hold, too."""
        kinds = {kinds.get(name, PLAIN) for values, kinds in rows if values.get(name) is not None}
        if kinds and kinds != {self._kinds.setdefault(name, next(iter(kinds)))}:
            return self._mark_mixed(name)
        try:
            found = self._arrow.array(self._values(name, rows)).type
            wider = self._common_type(name, current, found)
        except self._conversion_errors:
            return self._mark_mixed(name)
        return wider if self._is_writable(wider) else self._mark_mixed(name)

    def _common_type(self, name: str, *types: Any) -> Any:
        """The type that takes in values of all of these."""
        schemas = [self._arrow.schema([(name, type_)]) for type_ in types]
        return self._arrow.unify_schemas(schemas, promote_options="permissive").field(0).type

    def _mark_mixed(self, name: str) -> Any:
        self.mixed[name] = None
        return self._arrow.string()

    def _array(self, name: str, rows: list[Any]) -> Any:
        if name in self.mixed:
            texts = [None if (value := values.get(name)) is None else _json_text(value) for values, _ in rows]
            return self._arrow.array(texts, self._arrow.string())
        try:
            return self._arrow.array(self._values(name, rows), self._arrow_types[name])
        except self._conversion_errors:
            self._mark_mixed(name)
            return None

    def _values(self, name: str, rows: list[Any]) -> list[Any]:
        restore = RESTORERS[self._kinds.get(name, PLAIN)]
        return [None if (value := values.get(name)) is None else restore(value) for values, _ in rows]

    @property
    def _conversion_errors(self) -> tuple[type[Exception], ...]:
        return (self._arrow.ArrowException, ValueError, TypeError, ArithmeticError)

    def _is_writable(self, type_: Any) -> bool:
        """Whether Parquet has it: objects without any part it has not."""
        inner = [type_.field(n).type for n in range(type_.num_fields)]
        return all(map(self._is_writable, inner)) and (bool(inner) or not self._arrow.types.is_struct(type_))
