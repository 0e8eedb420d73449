"""Reading rows of JSON Lines, JSON, CSV, TSV and Parquet files, plain or compressed with gzip or
Zstandard, and of DataFrames.

Files are streamed: memory holds one row (CSV, JSON Lines) or one batch (Parquet); only a JSON
document is read as a whole. Files may be hostile: lines, fields and documents have a maximum size.
A row that cannot be read is reported with its location or raises an error; it is never skipped
silently.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, TypeAlias, cast

from ..base.checks import format_value, install_command, read_error_message
from ..base.jsontext import BYTES_PER_VALUE, check_bounds, first_duplicate, strict_loads
from ..errors import ConfigError
from .parquet import MAX_ROW_BYTES, read_batches
from .promptfoo import is_promptfoo, is_repeatable, promptfoo_row
from .spool import MAX_SKIPPED_BYTES, to_jsonable
from .text_format import (
    ENCODING,
    SEPARATORS,
    UTF8,
    Utf8Reader,
    announce,
    named_separator,
    open_text,
    recognise_separator,
)

ZSTD = ("compression.zstd", "backports.zstd")  # the standard library has it since Python 3.14
MAX_LINE_BYTES = 32 * 2**20  # bytes of a line, characters of a CSV field
MAX_DOCUMENT_BYTES = 512 * 2**20  # bytes of a JSON document, unpacked
# bytes of memory for the values of a JSON document, without their texts
MAX_DOCUMENT_MEMORY = 2 * 2**30
CHUNK_BYTES = 2**20  # bytes that are read at a time
SPREADSHEET_SAFE = (
    "redraft_spreadsheet_safe"  # last column of a CSV whose texts may have an apostrophe in front
)
BAD_ROW_MARK = b"!"  # no JSON value begins with it
ROWS_PER_BATCH = 256  # rows of Parquet
SPACES = re.compile(r"[ \t\r\n]*")
VALUE_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len)  # finds where a value ends


class Row(NamedTuple):
    """A row and its location, "file:line". For JSON documents and Parquet the number counts rows,
    from 1.
    """

    location: str
    values: Mapping[str, Any]


class BadRow(NamedTuple):
    """A row that cannot be used: its location, and the reason."""

    location: str
    message: str


RowStream: TypeAlias = Iterator[Row | BadRow]
# of the name, the suffix of the compression and the encoding
FileReader: TypeAlias = Callable[[str, str, str], RowStream]
OnError: TypeAlias = Callable[[BadRow], None] | None


def iter_rows(
    path: str | Path, on_error: OnError = None, *, encoding: str | None = None
) -> Iterator[Row]:
    """Yield the rows of a file in order; "-" is stdin, which must be JSON Lines.

    The suffix of the name is the format: .jsonl, .ndjson, .json (a list of objects, an object with
    one such list, or JSON Lines), .csv, .tsv (the first line names the columns, all values are
    texts; if the last column is "redraft_spreadsheet_safe", the apostrophes that Redraft put before
    texts are removed), .parquet (extra `parquet`); .gz and .zst (extra `zstd`) may follow, but not
    after .parquet. The encoding of texts (None: as `ENCODING` says) and the separator of .csv and
    .tsv are recognised (see `text_format`). `on_error` is called with every row that cannot be
    read; without it the first one raises ConfigError. A file that cannot be read to its end raises
    ConfigError in any case.
    """
    name = str(path)
    reader, packing = _reader_for(name)
    return reject_bad_rows(
        reader(name, packing, ENCODING.get() if encoding is None else encoding), on_error
    )


def check_table_name(path: str | Path) -> None:
    """Raise ConfigError for a name without the suffix of a readable format."""
    _reader_for(str(path))


def is_table(path: str | Path) -> bool:
    """Return whether a name has the suffix of a readable format."""
    try:
        check_table_name(path)
    except ConfigError:
        return False
    return True


def read_jsonl(
    file: IO[bytes],
    name: str,
    on_error: OnError = None,
    *,
    encoding: str = "",
    identity: object = None,
    with_bad_rows: bool = False,
) -> Iterator[Row]:
    """Yield the rows of an open file of JSON Lines; `name` is its name in locations, `identity` is
    the same whenever it is read.

    With `with_bad_rows` a line that begins with BAD_ROW_MARK is a bad row: the rest of the line is
    the reason as JSON.
    """
    return reject_bad_rows(
        _read_objects(file, name, encoding, identity, with_bad_rows=with_bad_rows), on_error
    )


def check_row(row: Row) -> Row | BadRow:
    """Return a row from another source than JSON, or a BadRow if its values exceed the limits for
    JSON.
    """
    name: Any = None
    try:
        for name, value in row.values.items():
            check_bounds([name, value])
    except Exception as error:  # noqa: BLE001  (a foreign class may raise anything)
        why = (
            str(error)
            if isinstance(error, ValueError)
            else f"it cannot be read: {type(error).__name__}: {error}"
        )
        return BadRow(row.location, why if name is None else f"{format_value(name)}: {why}")
    return row


def reject_bad_rows(stream: RowStream, on_error: OnError) -> Iterator[Row]:
    """Yield the good rows and pass bad ones to `on_error`. Without `on_error` the first bad row
    raises ConfigError.
    """
    for row in stream:
        if isinstance(row, Row):
            yield row
        elif on_error:
            on_error(row)
        else:
            raise ConfigError(f"{row.location}: {row.message}")


def _reader_for(name: str) -> tuple[FileReader, str]:
    """Return the reader for the format of a file, and the suffix of its compression."""
    suffixes = [".jsonl"] if name == "-" else [s.lower() for s in Path(name).suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in OPENERS else ""
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in READERS or (suffix == ".parquet" and packing):
        allowed = f"{', '.join(READERS)}; all but .parquet may be followed by .gz or .zst"
        raise ConfigError(f"{name!r} is not a readable table: its name must end in {allowed}")
    return READERS[suffix], packing


@contextmanager
def _open_unpacked(name: str, compression: str) -> Iterator[IO[bytes]]:
    """Open a file and decompress it. Errors in reading it become ConfigError."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with OPENERS[compression](name) as file:
            yield file
    except _read_error_types() as error:
        raise ConfigError(f"{name!r} cannot be read: {read_error_message(error)}") from error


def _read_error_types() -> tuple[type[Exception], ...]:
    """Return the errors of reading and decompressing, with Zstandard's if it is imported."""
    loaded = [library.ZstdError for name in ZSTD if (library := sys.modules.get(name))]
    return (OSError, EOFError, zlib.error, *loaded)


def _open_plain(name: str) -> Any:
    return Path(name).open("rb", buffering=CHUNK_BYTES)


def _open_gzip(name: str) -> Any:
    # several times as fast as GzipFile's own lines
    return io.BufferedReader(gzip.GzipFile(name), CHUNK_BYTES)


def _open_zstd(name: str) -> Any:
    return import_zstd(name).open(name)


def import_zstd(name: str) -> Any:
    """Return the Zstandard library. Raises ConfigError, which says that the file `name` needs it,
    if there is none.
    """
    for library in ZSTD:
        with suppress(ImportError):
            return import_module(library)
    raise ConfigError(f"{name!r} needs Zstandard: {install_command('zstd')}")


OPENERS: dict[str, Callable[[str], Any]] = {"": _open_plain, ".gz": _open_gzip, ".zst": _open_zstd}


def _open_json(file: IO[bytes], name: str, encoding: str, identity: Any = None) -> IO[bytes]:
    """Return a file of JSON whose bytes are UTF-8."""
    text, format = open_text(file, encoding)
    announce(name, identity or _identity(name), format.assumed, "", bare_cr=format.bare_cr)
    return cast("IO[bytes]", text)


def _identity(name: str) -> tuple[int, ...]:
    """Return what tells a file from others, and from itself before a change; () if there is no such
    file.
    """
    try:
        found = Path(name).stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _read_lines(file: IO[bytes]) -> Iterator[tuple[int, str, str]]:
    """Yield the number, the text with its line end and the error ("": none) of each line of a file
    that `open_text` returned.

    A line that is too long or not in the encoding of the file has an error and no text.
    """
    encoding = _encoding_of(file)
    for number in count(1):
        data = file.readline(MAX_LINE_BYTES + 1)
        if not data:
            return
        if len(data) > MAX_LINE_BYTES:
            _skip_line(file, data[-1:], number)
            del data
            yield number, "", f"the line is longer than {MAX_LINE_BYTES >> 20} MiB"
            continue
        try:
            yield number, data.decode("utf-8-sig" if number == 1 else "utf-8"), ""
        except UnicodeDecodeError as error:
            yield number, "", f"the line is {_wrong_encoding_message(error, encoding)}"


def _encoding_of(file: Any) -> str:
    raw = getattr(file, "raw", None)
    return raw.encoding if isinstance(raw, Utf8Reader) else UTF8


def _wrong_encoding_message(error: UnicodeDecodeError, encoding: str) -> str:
    if encoding == UTF8:
        hint = "name its encoding by --encoding (cp1251, cp1252, gb18030, shift_jis ...)"
        return f"not UTF-8: {error.reason} at byte {error.start}; {hint}"
    return f"not {encoding.upper()}; name its encoding by --encoding"


def _skip_line(file: IO[bytes], data: bytes, number: int) -> None:
    """Skip to the end of a line. Raises ConfigError after MAX_SKIPPED_BYTES: a small compressed
    file may hold a huge line.
    """
    remaining = MAX_SKIPPED_BYTES
    while data and not data.endswith(b"\n"):
        data = file.readline(CHUNK_BYTES)
        remaining -= len(data)
        if remaining < 0:
            raise ConfigError(
                f"{getattr(file, 'name', 'the input')}: line {number} does not end within "
                f"{MAX_SKIPPED_BYTES >> 20:,} MiB"
            )


def _read_json_lines(name: str, compression: str, encoding: str) -> RowStream:
    with _open_unpacked(name, compression) as file:
        yield from _read_objects(file, "stdin" if name == "-" else name, encoding)


def _read_objects(
    file: IO[bytes],
    name: str,
    encoding: str,
    identity: object = None,
    *,
    with_bad_rows: bool = False,
) -> RowStream:
    for number, text, problem in _read_lines(_open_json(file, name, encoding, identity)):
        location = f"{name}:{number}"
        if problem:
            yield BadRow(location, problem)
        elif with_bad_rows and text.startswith(BAD_ROW_MARK.decode()):
            yield BadRow(location, json.loads(text.removeprefix(BAD_ROW_MARK.decode())))
        elif text and not text.isspace():
            yield _parse_object(location, text)


def _parse_object(location: str, text: str) -> Row | BadRow:
    try:
        return _row_from_value(location, strict_loads(text))
    except json.JSONDecodeError as error:
        return BadRow(location, f"not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:
        return BadRow(location, f"not JSON: {error}")


def _row_from_value(location: str, value: Any) -> Row | BadRow:
    if isinstance(value, dict):
        return Row(location, value)
    return BadRow(location, f"a row must be an object, got {type(value).__name__}")


def _read_json(name: str, compression: str, encoding: str) -> RowStream:
    """Yield the rows of a JSON document; a sequence of objects is read as JSON Lines."""
    with _open_unpacked(name, compression) as packed:
        file = _open_json(packed, name, encoding)
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            f"{name!r} holds more than {MAX_DOCUMENT_BYTES >> 20} MiB in one document; make it "
            "JSON Lines"
        )
    if (
        data.count(b"[") + data.count(b"{") + data.count(b",")
    ) * BYTES_PER_VALUE > MAX_DOCUMENT_MEMORY:
        raise ConfigError(
            f"{name!r} holds more values in one document than fit into "
            f"{MAX_DOCUMENT_MEMORY >> 30} GiB; make it JSON Lines"
        )
    try:
        text = data.decode("utf-8-sig")
        if text.startswith("[", _skip_spaces(text, 0)):
            yield from _iter_items(name, text)
            return
        document = strict_loads(text, MAX_DOCUMENT_MEMORY)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data" or not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            raise ConfigError(
                f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}"
            ) from error
        yield from _read_json_lines(name, compression, encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{name}:{line}: {_wrong_encoding_message(error, _encoding_of(file))}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not JSON: {error}") from error
    else:
        yield from (
            _row_from_value(f"{name}:{n}", value)
            for n, value in enumerate(_list_in(name, document), 1)
        )


def _iter_items(name: str, text: str) -> RowStream:
    """Yield the rows of a document that is a list, one by one. Raises JSONDecodeError for a syntax
    error.
    """
    position, n = _skip_spaces(text, _skip_spaces(text, 0) + 1), 0
    while n or not text.startswith("]", position):
        n += 1
        end = VALUE_SCANNER.raw_decode(text, position)[1]
        yield _parse_object(f"{name}:{n}", text[position:end])
        position = _skip_spaces(text, end)
        if not text.startswith(",", position):
            break
        position = _skip_spaces(text, position + 1)
    if not text.startswith("]", position):
        raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
    if (rest := _skip_spaces(text, position + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, rest)


def _skip_spaces(text: str, position: int) -> int:
    """Return the position after white space."""
    match = SPACES.match(text, position)
    return match.end() if match else position


def _list_in(name: str, document: Any) -> list[Any]:
    if isinstance(document, list):
        return document
    lists = (
        {k: v for k, v in document.items() if isinstance(v, list)}
        if isinstance(document, dict)
        else {}
    )
    if len(lists) != 1:
        content = f"lists under {', '.join(map(repr, lists))}" if lists else "no list"
        raise ConfigError(
            f"{name!r} must hold a list of objects, or an object with one such list; it holds "
            f"{content}"
        )
    return next(iter(lists.values()))


class _CsvLines:
    """The lines of a file for the csv module. Raises csv.Error for a bad line or a record that is
    too long, and can continue.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._lines = _read_lines(file)
        self.number = 0
        self.record_chars = 0  # characters of the current record

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        self.number, text, problem = next(self._lines)
        self.record_chars += len(text)
        if problem:
            raise csv.Error(problem)
        if self.record_chars > MAX_LINE_BYTES:
            raise csv.Error(f"a quote is open for more than {MAX_LINE_BYTES >> 20} MiB")
        return text


def _read_csv(name: str, compression: str, encoding: str, usual_separator: str = ",") -> RowStream:
    with _open_unpacked(name, compression) as packed:
        file, format = open_text(packed, encoding)
        named = named_separator(format)
        separator = named or recognise_separator(format, usual_separator)
        assumed = "" if named or separator == usual_separator else SEPARATORS[separator]
        announce(name, _identity(name), format.assumed, assumed, bare_cr=format.bare_cr)
        records = _csv_records(name, file, separator, skip_lines=bool(named))
        header = next(records, None)
        if isinstance(header, BadRow):
            raise ConfigError(f"{header.location}: {header.message}")
        location, columns = header or (f"{name}:1", [])
        if len(columns) > 1 and columns[-1] == SPREADSHEET_SAFE:
            columns = [_strip_apostrophe(name) for name in columns[:-1]]
            records = map(_without_apostrophes, records)
        check_header(
            location,
            [
                column
                for column in columns
                if column and not (is_repeatable(column) and is_promptfoo(columns))
            ],
        )
        make_row = _row_maker(name, columns)
        for record in records:
            yield (
                record if isinstance(record, BadRow) else _csv_row(*record, len(columns), make_row)
            )


def _without_apostrophes(record: tuple[str, list[str]] | BadRow) -> tuple[str, list[str]] | BadRow:
    """Return a record of a spreadsheet-safe file with its original texts."""
    return (
        record
        if isinstance(record, BadRow)
        else (record[0], [_strip_apostrophe(field) for field in record[1][:-1]])
    )


def _strip_apostrophe(cell: str) -> str:
    return cell.removeprefix("'")


def _csv_records(
    name: str, file: IO[bytes], separator: str, *, skip_lines: int
) -> Iterator[tuple[str, list[str]] | BadRow]:
    """Yield every record that is not empty, with the location of its first line, or a BadRow."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    lines = _CsvLines(file)
    deque(islice(lines, skip_lines), 0)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        location = f"{name}:{lines.number + 1}"
        lines.record_chars = 0
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield BadRow(location, f"not CSV: {error}")
            continue
        if fields is None:
            return
        if fields:
            yield location, fields


def check_header(location: str, fields: list[str]) -> list[str]:
    """Return the names of the columns. Raises ConfigError for a duplicate."""
    if (duplicate := first_duplicate(fields)) is not None:
        hint = (
            "; have promptfoo write its results as JSON: promptfoo eval -o FILE.json"
            if {"Status", "Score"} <= {*fields}
            else ""
        )
        raise ConfigError(f"{location}: the column {duplicate!r} is named twice{hint}")
    return fields


def _row_maker(table: str, columns: list[str]) -> Callable[[list[str]], dict[str, Any]]:
    """Return the function that makes a row of the fields of a record. It raises ValueError."""
    if is_promptfoo(columns):
        return lambda fields: promptfoo_row(table, zip(columns, fields, strict=True))
    if columns.count("") > 1:
        return partial(_without_empty_columns, columns)
    return lambda fields: dict(zip(columns, fields, strict=True))


def _without_empty_columns(columns: list[str], fields: list[str]) -> dict[str, str]:
    """Return a row without the columns that a spreadsheet adds, which have neither a name nor a
    value.
    """
    if any(field and not column for column, field in zip(columns, fields, strict=True)):
        raise ValueError("there is a value in one of several columns without a name")
    return {column: field for column, field in zip(columns, fields, strict=True) if column}


def _csv_row(
    location: str, fields: list[str], width: int, make_row: Callable[[list[str]], dict[str, Any]]
) -> Row | BadRow:
    if len(fields) != width:
        hint = (
            "; a text that holds the separator stands in quotation marks"
            if len(fields) > width
            else ""
        )
        return BadRow(location, f"there are {len(fields)} fields, but {width} columns{hint}")
    try:
        return Row(location, make_row(fields))
    except ValueError as error:
        return BadRow(location, str(error))


def _read_parquet(name: str, compression: str, encoding: str) -> RowStream:
    for first, batch in read_batches(name):
        if batch is None:
            yield BadRow(f"{name}:{first}", f"the row is larger than {MAX_ROW_BYTES >> 20} MiB")
            continue
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            yield from _batch_rows(name, first + start, batch.slice(start, ROWS_PER_BATCH))


def _batch_rows(name: str, first: int, batch: Any) -> RowStream:
    """Yield the rows of an Arrow batch; convert them one by one if Python cannot hold a value."""
    try:
        rows = batch.to_pylist()
    except Exception as error:  # noqa: BLE001  (dates before year 1, texts that are not UTF-8: each raises another error)
        if batch.num_rows == 1:
            yield BadRow(
                f"{name}:{first}", f"a value cannot be read: {type(error).__name__}: {error}"
            )
            return
        for n in range(batch.num_rows):
            yield from _batch_rows(name, first + n, batch.slice(n, 1))
    else:
        good_rows = (Row(f"{name}:{n}", values) for n, values in enumerate(rows, first))
        yield from (
            map(check_row, good_rows)
            if any(field.type.num_fields for field in batch.schema)
            else good_rows
        )


READERS: dict[str, FileReader] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, usual_separator="\t"),
    ".parquet": _read_parquet,
}


# --- tables in memory
# ----------------------------------------------------------------------------


def frame_rows(table: Any) -> Callable[[], Iterator[Mapping[str, Any]]] | None:
    """Return a function that iterates over the rows of a DataFrame (pandas, polars) or Arrow table;
    None for anything else.

    Tables are recognised by their methods, so none of these libraries is imported. Raises
    ConfigError for a duplicate column.
    """
    if _has_methods(table, "iter_rows"):  # polars
        return partial(table.iter_rows, named=True)
    if _has_methods(table, "to_batches") and hasattr(table, "schema"):  # Arrow
        check_header("the table", table.schema.names)
        return partial(_arrow_rows, table)
    if _has_methods(table, "to_dict", "notna") and hasattr(table, "columns"):  # pandas
        check_header("the DataFrame", [str(name) for name in table.columns])
        return partial(_pandas_rows, table)
    return None


def _has_methods(table: Any, *methods: str) -> bool:
    return not isinstance(table, type) and all(
        callable(getattr(table, name, None)) for name in methods
    )


def _arrow_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    for batch in table.to_batches():
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            yield from batch.slice(start, ROWS_PER_BATCH).to_pylist()


def _pandas_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    """Yield rows with None for missing values and lists for arrays."""
    for start in range(0, len(table), ROWS_PER_BATCH):
        part = table.iloc[start : start + ROWS_PER_BATCH]
        objects = part.astype(object).where(part.notna(), None)
        for row in objects.to_dict("records"):
            yield {
                str(name): to_jsonable(value) if hasattr(value, "tolist") else value
                for name, value in row.items()
            }
