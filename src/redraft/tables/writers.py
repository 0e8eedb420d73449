"""Output of rows as JSON Lines, Parquet, CSV or TSV, plain or compressed, or to stdout. Rows may
arrive in any order.

JSON Lines are written in place, so that finished rows can be read. When an interrupted run is
resumed, existing lines are kept as long as the same lines are written again. Every other file is
written to a draft and renamed when it is closed.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import EIO
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Protocol, Self

from ..errors import ConfigError, StoreError
from ..storage.secure_files import PUBLIC, AtomicFile, open_following_links
from .readers import import_zstd
from .spool import BUFFER_BYTES, OutOfOrderBuffer, close_quietly, json_line
from .table_writers import CsvWriter, ParquetWriter

OWN_PREFIX = "redraft_"
Notify = Callable[[str], object]
FLUSH_INTERVAL = 0.5  # seconds after which buffered lines are written


class Sink(Protocol):
    """A destination of rows, each one line with its line end. `durable_rows` counts the rows that
    are certainly in the file.

    `close` publishes what was written; `abort`, after an error, keeps what can be read. Failures
    raise OSError.
    """

    @property
    def durable_rows(self) -> int: ...

    def write(self, line: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ResumableJsonl:
    """Lines written to `path` itself.

    With `resume` existing lines are kept as long as the same lines are written again; at the first
    difference, or at a torn line, the rest is cut off.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.durable_rows = 0
        resume = resume and path.exists()
        self._file: FileIO = open_following_links(
            path, os.O_RDWR if resume else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC
        )
        self._existing: IO[bytes] | None = (
            BufferedReader(open_following_links(path, os.O_RDONLY), BUFFER_BYTES)
            if resume
            else None
        )
        self._buffer: list[bytes] = []  # a bytearray would be copied again and again as it grows
        self._buffered_bytes = 0
        self._durable_bytes = 0
        self._flushed_at = monotonic()

    def write(self, line: bytes) -> None:
        if self._existing is not None and self._matches_existing(self._existing, line):
            return
        self._buffer.append(line)
        self._buffered_bytes += len(line)
        if self._buffered_bytes >= BUFFER_BYTES or monotonic() - self._flushed_at >= FLUSH_INTERVAL:
            self._flush()

    def close(self) -> None:
        if self._existing is not None:
            self._truncate_existing(self._existing)
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close_keeping_rest(self, min_lines: int) -> bool:
        """Close, and keep the remaining complete lines of an earlier run.

        Return False without closing if there are fewer than `min_lines` of them, or none, or if a
        line differed before.
        """
        lines, end = self._existing_lines()
        if lines < max(min_lines, 1):
            return False
        self._durable_bytes = end
        self.close()
        return True

    def abort(self) -> None:
        """Close the file with the lines that are certainly in it."""
        if self._existing is not None:
            self._existing.close()
        else:
            with suppress(OSError):
                self._file.truncate(min(self._durable_bytes, os.fstat(self._file.fileno()).st_size))
        self._file.close()

    def _existing_lines(self) -> tuple[int, int]:
        """Return the number of remaining lines of an earlier run, and the offset of their end."""
        lines, end, place = 0, self._durable_bytes, self._durable_bytes
        if self._existing is None:
            return 0, end
        for piece in iter(partial(self._existing.read, BUFFER_BYTES), b""):
            lines += piece.count(b"\n")
            end = place + piece.rfind(b"\n") + 1 if b"\n" in piece else end
            place += len(piece)
        self._existing.seek(self._durable_bytes)
        return lines, end

    def _matches_existing(self, existing: IO[bytes], line: bytes) -> bool:
        """Return whether this is the next line of the file; if not, cut off the rest."""
        if same := existing.read(len(line)) == line:
            self._durable_bytes += len(line)
            self.durable_rows += 1
        else:
            self._truncate_existing(existing)
        return same

    def _truncate_existing(self, existing: IO[bytes]) -> None:
        existing.close()
        self._existing = None
        self._file.truncate(self._durable_bytes)
        self._file.seek(self._durable_bytes)

    def _flush(self) -> None:
        if os.fstat(self._file.fileno()).st_size != self._durable_bytes:
            self.durable_rows = 0
            raise OSError(EIO, "another program has changed it")
        remaining = memoryview(b"".join(self._buffer))
        while remaining:
            remaining = remaining[self._file.write(remaining) :]
        self._durable_bytes += self._buffered_bytes
        self.durable_rows += len(self._buffer)
        self._buffer.clear()
        self._buffered_bytes, self._flushed_at = 0, monotonic()


class StreamSink:
    """Lines written at once to a pipe, a device or stdout."""

    def __init__(self, file: IO[bytes], *, keep_open: bool) -> None:
        self.durable_rows = 0
        self._file, self._keep_open = file, keep_open

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        self.durable_rows += 1

    def close(self) -> None:
        if not self._keep_open:
            self._file.close()

    def abort(self) -> None:
        if not self._keep_open:
            close_quietly(self._file)


class CompressedLines:
    """Lines compressed by gzip or Zstandard; the same lines give the same bytes."""

    def __init__(self, path: Path, compressor: Callable[[IO[bytes]], Any]) -> None:
        self.durable_rows = 0
        self._draft = AtomicFile(path)
        self._file = compressor(self._draft.file)

    def write(self, line: bytes) -> None:
        self._file.write(line)

    def close(self) -> None:
        self._file.write(b"")  # without it, Zstandard writes no frame if there are no lines
        self._file.close()
        self._draft.commit()

    def abort(self) -> None:
        close_quietly(self._file)
        self._draft.abort()


def _open_gzip_writer(file: IO[bytes]) -> Any:
    return gzip.GzipFile("", "wb", 6, file, mtime=0)


def open_output(
    path: str | Path | None,
    *,
    ordered: bool = True,
    resume: bool = False,
    spool: Path | None = None,
    notify: Notify | None = None,
    types: Mapping[str, type] | None = None,
    spreadsheet_safe: bool = False,
) -> Output:
    """Open a file for rows, or stdout (None or "-"), which gets JSON Lines.

    The suffix of the name is the format: .jsonl, .ndjson (.gz or .zst may follow), .parquet, .csv,
    .tsv; a pipe or a device gets JSON Lines. With `resume` a plain file of JSON Lines keeps its
    lines as long as the same rows are written again. Without `ordered` rows are written as they
    arrive. `spool` is the folder for rows that wait for their turn (None: the usual one for
    temporary files). `notify` is called with a message if something had to be written in another
    form. `types` (str, int, float) are the types of Parquet columns by name, so that a column of
    nulls has a type; the type of the values takes precedence. `spreadsheet_safe`: in CSV and TSV an
    apostrophe precedes texts that a spreadsheet could evaluate, and a last column marks the file,
    so that `iter_rows` removes them again. Raises ConfigError for a name with another suffix,
    StoreError for a file that cannot be written.
    """
    label = "stdout" if path is None or str(path) == "-" else f"output {str(path)!r}"
    try:
        sink = _open_sink(
            Path("-" if path is None else path),
            _OutputOptions(resume, notify, types or {}, spreadsheet_safe),
        )
    except OSError as error:
        raise StoreError(f"{label} cannot be written: {error.strerror or error}") from error
    return Output(sink, label, ordered=ordered, spool=spool)


@dataclass(frozen=True, slots=True)
class _OutputOptions:
    """See `open_output`."""

    resume: bool
    notify: Notify | None
    types: Mapping[str, type]
    spreadsheet_safe: bool


def _open_sink(path: Path, options: _OutputOptions) -> Sink:
    if str(path) == "-":
        return StreamSink(sys.stdout.buffer, keep_open=True)
    if path.exists() and not path.is_file() and not path.is_dir():
        return StreamSink(path.open("wb"), keep_open=False)
    return SINK_FACTORIES[output_suffix(path)](path, options)


def output_suffix(path: Path) -> str:
    """Return the suffix that is the format of a file. Raises ConfigError if there is none."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return ".jsonl"
    ending = "".join(s.lower() for s in path.suffixes[-2:])
    known = next((known for known in SINK_FACTORIES if ending.endswith(known)), None)
    if known is None:
        raise ConfigError(f"output {str(path)!r}: its name must end in {', '.join(SINK_FACTORIES)}")
    return known


SINK_FACTORIES: dict[str, Callable[[Path, _OutputOptions], Sink]] = {
    ".jsonl": lambda path, options: ResumableJsonl(path, resume=options.resume),
    ".ndjson": lambda path, options: ResumableJsonl(path, resume=options.resume),
    ".jsonl.gz": lambda path, _: CompressedLines(path, _open_gzip_writer),
    ".jsonl.zst": lambda path, _: CompressedLines(
        path, partial(import_zstd(str(path)).ZstdFile, mode="wb")
    ),
    ".parquet": lambda path, options: ParquetWriter(path, options.notify, options.types),
    ".csv": lambda path, options: CsvWriter(path, ",", spreadsheet_safe=options.spreadsheet_safe),
    ".tsv": lambda path, options: CsvWriter(path, "\t", spreadsheet_safe=options.spreadsheet_safe),
}


class Output:
    """Takes rows, numbered from 0, in any order and writes them in order.

    `written_count` counts the rows written, `pending_count` those that wait on disk for their turn.
    If the disk fails, it raises StoreError that names the file and the number of rows that are
    certainly in it, and is closed.
    """

    def __init__(
        self, sink: Sink, name: str, *, ordered: bool = True, spool: Path | None = None
    ) -> None:
        self.name = name
        self.written_count = 0
        self._sink, self._ordered = sink, ordered
        self._encode = getattr(sink, "encode_row", json_line)
        self._close_keeping_rest = getattr(sink, "close_keeping_rest", None)
        self._buffer = OutOfOrderBuffer(None if spool is None else str(spool))
        self._closed = False
        self._error: StoreError | None = None

    @property
    def pending_count(self) -> int:
        return self._buffer.pending_count

    @property
    def is_in_place(self) -> bool:
        """Whether rows are written to the file itself, not to a draft."""
        return isinstance(self._sink, ResumableJsonl)

    def put(self, n: int, values: Mapping[str, Any]) -> None:
        """Write row n and the rows that waited for it. Raises ValueError for a row that was put
        before.
        """
        if self._error:
            raise self._error
        line = self._encode(values)
        if self._ordered and n != self.written_count:
            if n < self.written_count or n in self._buffer:
                raise ValueError(f"row {n} was already put")
            self._run_guarded(self._buffer.put, n, line, self.written_count)
            return
        self._write(line)
        while self._buffer.pending_count and self.written_count in self._buffer:
            self._write(self._run_guarded(self._buffer.pop, self.written_count))

    def close(self, *, complete: bool = True) -> None:
        """Write the remaining rows and publish the file.

        With `complete` a missing row raises ValueError. Without it, rows that wait for missing ones
        are written; but a resumed file in which no line differed so far keeps its remaining lines,
        if there are enough of them for all waiting rows.
        """
        if self._closed:
            return
        if complete and self.pending_count:
            raise ValueError(
                f"row {self.written_count} is missing, and {self.pending_count} rows after it wait"
            )
        self._closed = True
        if (
            not complete
            and self._close_keeping_rest
            and self._run_guarded(self._close_keeping_rest, self.pending_count)
        ):
            return
        for n in self._buffer.numbers():
            self._write(self._run_guarded(self._buffer.pop, n))
        self._run_guarded(self._sink.close)

    def keep(self) -> None:
        """Close the output and leave the file as it was, because all rows are in it already."""
        self._closed = True
        self._sink.abort()

    def _write(self, line: bytes) -> None:
        try:
            self._sink.write(line)
        except OSError as error:
            raise self._fail(error) from error
        self.written_count += 1

    def _run_guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            raise self._fail(error) from error

    def _fail(self, error: OSError) -> StoreError:
        """Close the output after an error, and return what to raise from then on."""
        self._closed = True
        with suppress(OSError):
            self._sink.abort()
        rows = self._sink.durable_rows
        state = f"the last row written is row {rows}" if rows else "nothing was written to it"
        self._error = StoreError(
            f"{self.name} cannot be written: {error.strerror or error}; {state}"
        )
        return self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(complete=kind is None)


# --- result columns beside the columns of the input
# ----------------------------------------------------------------------------


def result_column_names(results: Iterable[str], existing: Iterable[str]) -> dict[str, str]:
    """Return the names of result columns: their own, or `redraft_NAME` if the input has a column of
    that name.
    """
    taken = set(existing)
    return {name: _unused_name(name, taken) for name in results}


def merge_columns(
    values: Mapping[str, Any], result: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a row of the input with the columns of its result, named as in `names` (see
    `result_column_names`).

    No input column is replaced.
    """
    named = {names.get(name, name): value for name, value in result.items()} if names else result
    if len(merged := {**values, **named}) == len(values) + len(named):
        return merged
    return {**values, **{_unused_name(name, values): value for name, value in named.items()}}


def _unused_name(name: str, existing: Any) -> str:
    while name in existing:
        name = OWN_PREFIX + name
    return name
