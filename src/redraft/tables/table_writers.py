"""Tables whose rows share their columns: Parquet, CSV, TSV.

A later row may have a new column, or another type in a column. Therefore rows wait on disk as lines
of JSON, and the table is written when it is closed, once all columns are known. Memory holds one
row group.
"""

from __future__ import annotations

import csv
import io
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

from ..base.checks import needs_extra
from ..storage.secure_files import AtomicFile
from .readers import SPREADSHEET_SAFE
from .spool import RowSpool, json_line, load_line

FORMULA_STARTS = ("=", "+", "-", "@", "\N{MINUS SIGN}")
NEGATIVE_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?")
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


class CsvWriter:
    """CSV or TSV: texts as they are, null as an empty cell, numbers, objects and lists as JSON.

    With `spreadsheet_safe` a spreadsheet evaluates none of its texts, and `iter_rows` reads the
    original texts.
    """

    def __init__(self, path: Path, delimiter: str, *, spreadsheet_safe: bool = False) -> None:
        self.durable_rows = 0
        self._delimiter, self._spreadsheet_safe = delimiter, spreadsheet_safe
        self._draft, self._spool = _open_draft(path)
        self._columns: dict[str, None] = {}

    def encode_row(self, values: Mapping[str, Any]) -> bytes:
        return json_line(values)

    def write(self, line: bytes) -> None:
        self._columns.update(dict.fromkeys(load_line(line)))
        self._spool.add(line)

    def close(self) -> None:
        text = io.TextIOWrapper(self._draft.file, "utf-8", "backslashreplace", newline="")
        # as the last column it would mark the file
        names = sorted(self._columns, key=lambda name: name != SPREADSHEET_SAFE)
        if self._spreadsheet_safe:
            self._write_rows(
                csv.writer(text, delimiter=self._delimiter, quoting=csv.QUOTE_ALL),
                names,
                safe_cell_text,
                [SPREADSHEET_SAFE],
            )
        else:
            # A byte order mark at the start of a name belongs to it: quotes keep readers from
            # removing it
            marked = bool(names) and names[0].startswith("\ufeff")
            quoting = csv.QUOTE_ALL if marked else csv.QUOTE_MINIMAL
            writer: Any = csv.writer
            self._write_rows(
                writer(text, delimiter=self._delimiter, quoting=quoting), names, cell_text, []
            )
        text.detach()
        self._spool.close()
        self._draft.commit()

    def _write_rows(
        self, writer: Any, names: list[str], cell: Callable[[Any], str], mark: list[str]
    ) -> None:
        if names:
            writer.writerow([*map(cell, names), *mark])
        writer.writerows(
            [*(cell(row.get(name)) for name in names), *("" for _ in mark)] for row in self._spool
        )

    def abort(self) -> None:
        self._spool.close()
        self._draft.abort()


def _open_draft(path: Path) -> tuple[AtomicFile, RowSpool]:
    """Open the draft of a table, and the file for its rows until the columns are known. Raises
    OSError, and leaves no file then.
    """
    draft = AtomicFile(path)
    try:
        return draft, RowSpool(path.parent)
    except OSError:
        draft.abort()
        raise


def cell_text(value: Any) -> str:
    """Return the text of a cell: a text as it is, "" for null, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _json_text(value)


def safe_cell_text(value: Any) -> str:
    """Return the text of a cell, with an apostrophe before a text that a spreadsheet could evaluate
    or that begins with one.
    """
    text = cell_text(value)
    return f"'{text}" if isinstance(value, str) and _is_risky(text) else text


def _is_risky(text: str) -> bool:
    """Return whether a spreadsheet may evaluate a text, also after characters that it skips, or
    remove an apostrophe from it.
    """
    if not text or NEGATIVE_NUMBER.fullmatch(text):
        return False
    first = next((c for c in text if not _is_ignored_by_spreadsheets(c)), "")
    return text.startswith(("'", "\t", "\r", "\n")) or normalize("NFKC", first).startswith(
        FORMULA_STARTS
    )


def _is_ignored_by_spreadsheets(character: str) -> bool:
    """Return whether a spreadsheet may ignore a character at the start of a cell: space, control,
    format, quotes.
    """
    return (
        character.isspace()
        or category(character) in {"Cc", "Cf", "Zs", "Zl", "Zp", "Mn"}
        or character in "\"'"
    )


def _json_text(value: Any) -> str:
    return json_line(value).decode().removesuffix("\n")


class ParquetWriter:
    """Parquet, in row groups of 1000.

    `notify` is called for each column whose values have no common type: they become JSON. `types`
    are the types of columns (str, int, float) unless their values have another one; a column of
    type dict is always written as the text of its JSON.
    """

    def __init__(
        self,
        path: Path,
        notify: Callable[[str], object] | None = None,
        types: Mapping[str, type] | None = None,
    ) -> None:
        with needs_extra("parquet", f"{str(path)!r} is Parquet"):
            self._parquet, self._types = (
                import_module("pyarrow.parquet"),
                _ColumnTypes(import_module("pyarrow"), types or {}),
            )
        self.durable_rows = 0
        self._notify = notify
        self._draft, self._spool = _open_draft(path)

    def encode_row(self, values: Mapping[str, Any]) -> bytes:
        """Encode a row, and the kinds of those values that JSON holds as text (dates, decimals,
        bytes).
        """
        return json_line(
            [values, {name: kind for name, value in values.items() if (kind := value_kind(value))}]
        )

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
            for name in self._types.mixed.keys() - self._types.declared_json:
                self._notify(
                    f"column {name!r} holds values of several types: it is written as JSON"
                )
        self._spool.close()
        self._draft.commit()

    def abort(self) -> None:
        self._spool.close()
        self._draft.abort()

    def _try_write(self) -> bool:
        """Write all rows; return False if a column proved to be mixed."""
        with self._parquet.ParquetWriter(self._draft.file, self._types.schema) as writer:
            for rows in self._spool.groups():
                table = self._types.table(rows)
                if table is None:
                    return False
                writer.write_table(table)
        return True


def value_kind(value: Any) -> str:
    """Return the kind of a value that JSON holds as text (a key of RESTORERS); PLAIN for any other
    value.
    """
    if isinstance(value, datetime):
        return "local moment" if value.tzinfo is None else "moment"
    kinds = ((date, "day"), (time, "time"), (Decimal, "decimal"), (bytes, "bytes"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), PLAIN)


class _ColumnTypes:
    """The types of the columns of the rows so far. `mixed` are those whose values have no common
    type.
    """

    def __init__(self, arrow: Any, declared: Mapping[str, type]) -> None:
        self.declared_json = {name for name, type_ in declared.items() if type_ is dict}
        self.mixed: dict[str, None] = dict.fromkeys(self.declared_json)
        self._arrow = arrow
        known = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
        self._declared = {name: known[type_] for name, type_ in declared.items() if type_ in known}
        self._kinds: dict[str, str] = {}
        self._arrow_types: dict[str, Any] = {}

    @property
    def schema(self) -> Any:
        text = self._arrow.string()
        return self._arrow.schema(
            [
                (name, text if name in self.mixed else type_)
                for name, type_ in self._arrow_types.items()
            ]
        )

    def update(self, rows: list[Any]) -> None:
        for name in dict.fromkeys(name for values, _ in rows for name in values):
            current = self._arrow_types.setdefault(name, self._arrow.null())
            if name not in self.mixed:
                self._arrow_types[name] = self._wider_type(name, current, rows)

    def apply_declared(self) -> None:
        """Give columns their declared types where these can hold the values."""
        for name in self._declared.keys() & self._arrow_types.keys():
            with suppress(*self._conversion_errors):
                self._arrow_types[name] = self._common_type(
                    name, self._arrow_types[name], self._declared[name]
                )

    def table(self, rows: list[Any]) -> Any:
        """Return the rows as a table; None if a column proved to be mixed."""
        arrays = [self._array(name, rows) for name in self._arrow_types]
        return (
            None
            if any(a is None for a in arrays)
            else self._arrow.table(arrays, schema=self.schema)
        )

    def _wider_type(self, name: str, current: Any, rows: list[Any]) -> Any:
        """Return a type that also holds the values of these rows."""
        kinds = {kinds.get(name, PLAIN) for values, kinds in rows if values.get(name) is not None}
        if kinds and kinds != {self._kinds.setdefault(name, next(iter(kinds)))}:
            return self._mark_mixed(name)
        try:
            seen = self._arrow.array(self._values(name, rows)).type
            wider = self._common_type(name, current, seen)
        except self._conversion_errors:
            return self._mark_mixed(name)
        return wider if self._is_writable(wider) else self._mark_mixed(name)

    def _common_type(self, name: str, *types: Any) -> Any:
        """Return the type that holds values of all of these types."""
        schemas = [self._arrow.schema([(name, type_)]) for type_ in types]
        return self._arrow.unify_schemas(schemas, promote_options="permissive").field(0).type

    def _mark_mixed(self, name: str) -> Any:
        self.mixed[name] = None
        return self._arrow.string()

    def _array(self, name: str, rows: list[Any]) -> Any:
        if name in self.mixed:
            texts = [
                None if (value := values.get(name)) is None else _json_text(value)
                for values, _ in rows
            ]
            return self._arrow.array(texts, self._arrow.string())
        try:
            return self._arrow.array(self._values(name, rows), self._arrow_types[name])
        except self._conversion_errors:
            self._mark_mixed(name)
            return None

    def _values(self, name: str, rows: list[Any]) -> list[Any]:
        restore = RESTORERS[self._kinds.get(name, PLAIN)]
        return [
            None if (value := values.get(name)) is None else restore(value) for values, _ in rows
        ]

    @property
    def _conversion_errors(self) -> tuple[type[Exception], ...]:
        return (self._arrow.ArrowException, ValueError, TypeError, ArithmeticError)

    def _is_writable(self, type_: Any) -> bool:
        """Return whether Parquet can store a type: not a struct without fields."""
        inner = [type_.field(n).type for n in range(type_.num_fields)]
        return all(map(self._is_writable, inner)) and (
            bool(inner) or not self._arrow.types.is_struct(type_)
        )
