"""Rows out of a file: JSON Lines, JSON, CSV, TSV, Parquet, plain or packed with gzip or Zstandard.

A file is streamed: what is held is one row (CSV, JSON Lines), or one batch (Parquet); only a JSON document is read
whole. Files are hostile: lines, fields and documents are bounded, and a row that cannot be read is handed over with
its place, or stops everything. It is never left out in silence. What a row means is not known here.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

from ..checks import shown
from ..errors import ConfigError
from ..jsontext import VALUE_BYTES, check_bounds, first_repeated, parsed
from .parquet import MOST_ROW, batches

MOST_LINE = 32 * 2**20  # bytes of a line, characters of a CSV field
MOST_SKIPPED = 1024 * 2**20  # bytes of a line that is too long and passed over
MOST_DOCUMENT = 512 * 2**20  # bytes of a JSON document, unpacked
MOST_MEMORY = 2 * 2**30  # bytes that the values of a JSON document may take, beside their texts
PIECE = 2**20  # bytes that are read at a time, or of a line that is skipped
SPREADSHEET_SAFE = "redraft_spreadsheet_safe"  # the last column of a CSV in which an apostrophe stands before risky texts
NOTED = b"!"  # no JSON begins so
BATCH = 256  # rows of Parquet
SPACES = re.compile(r"[ \t\r\n]*")
ANYTHING = json.JSONDecoder(parse_int=len, parse_float=len)  # finds where a value ends
NOT_COMMAS = {";": "semicolons: .csv has commas", "\t": "tabs: call it .tsv", "|": "bars: .csv has commas"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row, and where it stands: "file:line"; in JSON documents and Parquet the number is that of the row, from 1."""

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used: where it stands, and why."""

    place: str
    message: str


Found: TypeAlias = Iterator[Row | BadRow]
OnError: TypeAlias = Callable[[BadRow], None] | None


def rows(path: str | Path, on_error: OnError = None) -> Iterator[Row]:
    """The rows of a file, in its order; "-" is stdin, which must be JSON Lines.

    The ending of the name says what it is: .jsonl, .ndjson, .json (a list of objects, an object that holds one such
    list, or JSON Lines), .csv, .tsv (UTF-8, the first line names the columns, all values are text as they stand; where the
    last column is "redraft_spreadsheet_safe", the apostrophes that Redraft put before texts are taken away), .parquet (extra
    `parquet`); .gz and .zst (extra `zstd`) may follow, but not on Parquet. `on_error` is called with every row that
    cannot be read; without it the first one raises ConfigError. A file that cannot be read to its end raises
    ConfigError in any case.
    """
    name = str(path)
    reader, packing = _kind_of(name)
    return accepted(reader(name, packing), on_error)


def check_kind(path: str | Path) -> None:
    """Raises ConfigError for a name that says of no table that can be read."""
    _kind_of(str(path))


def is_table(path: str | Path) -> bool:
    """Whether the ending of a name is one that is read."""
    try:
        check_kind(path)
    except ConfigError:
        return False
    return True


def rows_in(file: IO[bytes], said: str, on_error: OnError = None, *, noted: bool = False) -> Iterator[Row]:
    """The rows of an open file of JSON Lines; `said` is what places call it.

    With `noted` a line that begins with NOTED stands for a row that cannot be used, and holds the reason as JSON.
    """
    return accepted(_objects(file, said, noted=noted), on_error)


def checked(row: Row) -> Row | BadRow:
    """The row, where JSON within our limits can hold its values; for rows that were not read from a text."""
    name: Any = None
    try:
        for name, value in row.values.items():
            check_bounds([name, value])
    except Exception as error:  # noqa: BLE001  (a foreign class may raise anything)
        why = str(error) if isinstance(error, ValueError) else f"it cannot be read: {type(error).__name__}: {error}"
        return BadRow(row.place, why if name is None else f"{shown(name)}: {why}")
    return row


def accepted(found: Found, on_error: OnError) -> Iterator[Row]:
    """The rows; bad ones go to `on_error`. Without it the first one raises ConfigError."""
    return _accepted(found, on_error or _refuse)


def _accepted(found: Found, refuse: Callable[[BadRow], None]) -> Iterator[Row]:
    for row in found:
        if isinstance(row, Row):
            yield row
        else:
            refuse(row)


def _refuse(bad: BadRow) -> None:
    raise ConfigError(f"{bad.place}: {bad.message}")


def _kind_of(name: str) -> tuple[Callable[[str, str], Found], str]:
    """How a file is to be read, and how it is packed."""
    endings = [".jsonl"] if name == "-" else [s.lower() for s in Path(name).suffixes]
    packing = endings.pop() if endings and endings[-1] in OPENED else ""
    ending = endings[-1] if endings else ""
    if ending not in READERS or (ending == ".parquet" and packing):
        allowed = f"{', '.join(READERS)}; all but .parquet may be followed by .gz or .zst"
        raise ConfigError(f"{name!r} is no table that can be read: its name must end in {allowed}")
    return READERS[ending], packing


@contextmanager
def _opened(name: str, packing: str) -> Iterator[IO[bytes]]:
    """The unpacked bytes of a file. Whatever goes wrong while they are read is a ConfigError."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with OPENED[packing](name) as file:
            yield file
    except _broken() as error:
        raise ConfigError(f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _broken() -> tuple[type[Exception], ...]:
    """What reading and unpacking raise; Zstandard's own error where it is loaded."""
    loaded = [library.ZstdError for name in ZSTD if (library := sys.modules.get(name))]
    return (OSError, EOFError, zlib.error, *loaded)


def _plain(name: str) -> Any:
    return Path(name).open("rb", buffering=PIECE)


def _gzip(name: str) -> Any:
    return io.BufferedReader(gzip.GzipFile(name), PIECE)  # several times as fast as its own lines


def _zstd(name: str) -> Any:
    for library in ZSTD:
        with suppress(ImportError):
            return import_module(library).open(name)
    raise ConfigError(f"{name!r} is packed with Zstandard: pip install 'redraft[zstd]'")


ZSTD = ("compression.zstd", "backports.zstd")  # the standard library has it from Python 3.14 on
OPENED: dict[str, Callable[[str], Any]] = {"": _plain, ".gz": _gzip, ".zst": _zstd}


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    wrong: str = ""


def _lines(file: IO[bytes]) -> Iterator[_Line]:
    """The lines of a file, line ends included. One that is too long or no UTF-8 is empty, and `wrong` says why."""
    for number in count(1):
        data = file.readline(MOST_LINE + 1)
        if not data:
            return
        if len(data) > MOST_LINE:
            _skip_line(file, data[-1:], number)
            del data
            yield _Line(number, "", f"the line is longer than {MOST_LINE >> 20} MiB")
            continue
        try:
            yield _Line(number, data.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            yield _Line(number, "", f"the line is {_no_utf8(error, data)}")


def _no_utf8(error: UnicodeDecodeError, data: bytes) -> str:
    return f"not UTF-8: {error.reason} at byte {error.start}; {_encoding_of(data)}"


def _encoding_of(data: bytes) -> str:
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    kind, name = ("UTF-16", "UTF-16") if utf16 else ("Latin-1 or Windows-1252", "WINDOWS-1252")
    return f"it may be {kind}: convert the file to UTF-8, by `iconv -f {name} -t UTF-8 FILE > NEW`"


def _skip_line(file: IO[bytes], data: bytes, number: int) -> None:
    """Read to the end of a line. Raises ConfigError where that is too far: a small packed file may have no end of line."""
    left = MOST_SKIPPED
    while data and not data.endswith(b"\n"):
        data = file.readline(PIECE)
        left -= len(data)
        if left < 0:
            raise ConfigError(f"{getattr(file, 'name', 'the input')}: line {number} does not end within {MOST_SKIPPED >> 20:,} MiB")


def _json_lines(name: str, packing: str) -> Found:
    with _opened(name, packing) as file:
        yield from _objects(file, "stdin" if name == "-" else name)


def _objects(file: IO[bytes], said: str, *, noted: bool = False) -> Found:
    for line in _lines(file):
        place = f"{said}:{line.number}"
        if line.wrong:
            yield BadRow(place, line.wrong)
        elif noted and line.text.startswith(NOTED.decode()):
            yield BadRow(place, json.loads(line.text.removeprefix(NOTED.decode())))
        elif line.text.strip():
            yield _object(place, line.text)


def _object(place: str, text: str) -> Row | BadRow:
    try:
        return _row(place, parsed(text))
    except json.JSONDecodeError as error:
        return BadRow(place, f"not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:
        return BadRow(place, f"not JSON: {error}")


def _row(place: str, value: Any) -> Row | BadRow:
    if isinstance(value, dict):
        return Row(place, value)
    return BadRow(place, f"a row must be an object, got {type(value).__name__}")


def _json(name: str, packing: str) -> Found:
    """The rows of a JSON document; objects one after the other are JSON Lines, whatever the file is called."""
    with _opened(name, packing) as file:
        data = file.read(MOST_DOCUMENT + 1)
    if len(data) > MOST_DOCUMENT:
        raise ConfigError(f"{name!r} holds more than {MOST_DOCUMENT >> 20} MiB in one document; make it JSON Lines")
    if (data.count(b"[") + data.count(b"{") + data.count(b",")) * VALUE_BYTES > MOST_MEMORY:
        raise ConfigError(f"{name!r} holds more values in one document than {MOST_MEMORY >> 30} GiB take; make it JSON Lines")
    try:
        text = data.decode("utf-8-sig")
        if text.startswith("[", _skipped(text, 0)):
            yield from _items(name, text)
            return
        found = parsed(text, MOST_MEMORY)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data" or not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            raise ConfigError(f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from error
        yield from _json_lines(name, packing)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: {_no_utf8(error, data)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not JSON: {error}") from error
    else:
        yield from (_row(f"{name}:{n}", value) for n, value in enumerate(_list_in(name, found), 1))


def _items(name: str, text: str) -> Found:
    """The rows of a document that is a list, one by one. Raises JSONDecodeError where it is broken."""
    place, n = _skipped(text, _skipped(text, 0) + 1), 0
    while n or not text.startswith("]", place):
        n += 1
        end = ANYTHING.raw_decode(text, place)[1]
        yield _object(f"{name}:{n}", text[place:end])
        place = _skipped(text, end)
        if not text.startswith(",", place):
            break
        place = _skipped(text, place + 1)
    if not text.startswith("]", place):
        raise json.JSONDecodeError("Expecting ',' or ']'", text, place)
    if (rest := _skipped(text, place + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, rest)


def _skipped(text: str, place: int) -> int:
    """The place behind white space."""
    found = SPACES.match(text, place)
    return found.end() if found else place


def _list_in(name: str, found: Any) -> list[Any]:
    if isinstance(found, list):
        return found
    lists = {k: v for k, v in found.items() if isinstance(v, list)} if isinstance(found, dict) else {}
    if len(lists) != 1:
        held = f"lists under {', '.join(map(repr, lists))}" if lists else "no list"
        raise ConfigError(f"{name!r} must hold a list of objects, or an object with one such list; it holds {held}")
    return next(iter(lists.values()))


class _Texts:
    """The lines of a file for the csv module. It raises for a bad one, or a record that is too long, and goes on after it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._lines = _lines(file)
        self.number = 0
        self.taken = 0  # characters of a record

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number = line.number
        self.taken += len(line.text)
        if line.wrong:
            raise csv.Error(line.wrong)
        if self.taken > MOST_LINE:
            raise csv.Error(f"a quote is open for more than {MOST_LINE >> 20} MiB")
        return line.text


def _csv(name: str, packing: str, delimiter: str = ",") -> Found:
    with _opened(name, packing) as file:
        records = _records(name, file, delimiter)
        head = next(records, None)
        if isinstance(head, BadRow):
            raise ConfigError(f"{head.place}: {head.message}")
        place, columns = head or (f"{name}:1", [])
        if len(columns) > 1 and columns[-1] == SPREADSHEET_SAFE:
            columns = [_exact(name) for name in columns[:-1]]
            records = map(_defused, records)
        header(place, columns)
        for found in records:
            yield found if isinstance(found, BadRow) else _record(*found, columns)


def _defused(found: tuple[str, list[str]] | BadRow) -> tuple[str, list[str]] | BadRow:
    """A record of a file that was made safe for spreadsheets, with the texts as they were."""
    return found if isinstance(found, BadRow) else (found[0], [_exact(field) for field in found[1][:-1]])


def _exact(cell: str) -> str:
    return cell.removeprefix("'")


def _records(name: str, file: IO[bytes], delimiter: str) -> Iterator[tuple[str, list[str]] | BadRow]:
    """The fields of every record that is not empty, and the place where it begins."""
    csv.field_size_limit(max(csv.field_size_limit(), MOST_LINE))
    texts = _Texts(file)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    while True:
        place = f"{name}:{texts.number + 1}"
        texts.taken = 0
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield BadRow(place, f"not CSV: {error}")
            continue
        if fields is None:
            return
        if fields:
            yield place, fields


def _tsv(name: str, packing: str) -> Found:
    return _csv(name, packing, "\t")


def header(place: str, fields: list[str]) -> list[str]:
    """The names of columns. Raises ConfigError where one stands twice."""
    if (twice := first_repeated(fields)) is not None:
        raise ConfigError(f"{place}: the column {twice!r} is named twice")
    return fields


def other_marks(columns: Sequence[str]) -> str:
    """A hint for the only column of a table that is no CSV with commas; "" where there is no reason for one."""
    found = [said for mark, said in NOT_COMMAS.items() if len(columns) == 1 and mark in columns[0]]
    return f"; the file looks separated by {found[0]}" if found else ""


def _record(place: str, fields: list[str], columns: list[str]) -> Row | BadRow:
    if len(fields) != len(columns):
        return BadRow(place, f"there are {len(fields)} fields, but {len(columns)} columns{other_marks(columns)}")
    return Row(place, dict(zip(columns, fields, strict=True)))


def _parquet(name: str, packing: str) -> Found:
    for first, batch in batches(name):
        if batch is None:
            yield BadRow(f"{name}:{first}", f"the row is larger than {MOST_ROW >> 20} MiB")
            continue
        for start in range(0, batch.num_rows, BATCH):
            yield from _unpacked(name, first + start, batch.slice(start, BATCH))


def _unpacked(name: str, first: int, batch: Any) -> Found:
    """The rows of Arrow, each by itself where Python has no such value as one of them holds."""
    try:
        found = batch.to_pylist()
    except Exception as error:  # noqa: BLE001  (dates before the year 1, texts that are no UTF-8: each raises another error)
        if batch.num_rows == 1:
            yield BadRow(f"{name}:{first}", f"a value cannot be read: {type(error).__name__}: {error}")
            return
        for n in range(batch.num_rows):
            yield from _unpacked(name, first + n, batch.slice(n, 1))
    else:
        read = (Row(f"{name}:{n}", values) for n, values in enumerate(found, first))
        yield from map(checked, read) if any(field.type.num_fields for field in batch.schema) else read


READERS: dict[str, Callable[[str, str], Found]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
