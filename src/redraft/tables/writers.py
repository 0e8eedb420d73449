"""Output of rows as JSON Lines, Parquet, CSV or TSV, plain or compressed, or to stdout, in order however they arrive.

JSON Lines are written in place, so that finished rows can be read: lines of an interrupted run are compared with those written
again and stay while they are equal. Every other file is written to a draft and renamed when it is closed.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import EIO
from functools import partial
from importlib import import_module
from io import BufferedReader, FileIO
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Protocol, Self

from ..errors import ConfigError, StoreError
from ..storage.secure_files import PUBLIC, AtomicFile, open_following_links
from .readers import ZSTD
from .spool import BUFFER_BYTES, OutOfOrderBuffer, close_quietly
from .table_writers import CsvWriter, ParquetWriter
from .values import json_line

Notify = Callable[[str], object]
FLUSH_INTERVAL = 0.5  # seconds after which lines are handed to the operating system even so


class Sink(Protocol):
    """A destination of lines, one for each row with one line end. `durable_rows`: how many are in the file for certain.

    `close` publishes what was written; `abort` leaves what can be read, after an error. Failures raise OSError.
    """

    @property
    def durable_rows(self) -> int: ...

    def write(self, line: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ResumableJsonl:
    """Lines written to `path` itself.

    With `resume` existing lines stay while the same ones are written again; at the first difference, also at a torn line, the
    rest is cut off.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.durable_rows = 0
        resume = resume and path.exists()
        self._file: FileIO = open_following_links(path, os.O_RDWR if resume else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC)
        self._existing: IO[bytes] | None = BufferedReader(open_following_links(path, os.O_RDONLY), BUFFER_BYTES) if resume else None
        self._buffer = bytearray()
        self._buffered_lines = 0  # lines
        self._durable_bytes = 0  # bytes that are in the file
        self._flushed_at = monotonic()

    def write(self, line: bytes) -> None:
        if self._existing is not None and self._matches_existing(self._existing, line):
            return
        self._buffer += line
        self._buffered_lines += 1
        if len(self._buffer) >= BUFFER_BYTES or monotonic() - self._flushed_at >= FLUSH_INTERVAL:
            self._flush()

    def close(self) -> None:
        if self._existing is not None:
            self._truncate_existing(self._existing)
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def close_keeping_rest(self, min_lines: int) -> bool:
        """Close, and keep the further complete lines of an earlier run.

        Returns False, and does nothing, if there are fewer than `min_lines`, or none, or if a line differed before.
        """
        lines, end = self._existing_lines()
        if lines < max(min_lines, 1):
            return False
        self._durable_bytes = end
        self.close()
        return True

    def abort(self) -> None:
        """Close the file with the lines that are in it for certain."""
        if self._existing is not None:
            self._existing.close()
        else:
            with suppress(OSError):
                self._file.truncate(min(self._durable_bytes, os.fstat(self._file.fileno()).st_size))
        self._file.close()

    def _existing_lines(self) -> tuple[int, int]:
        """Return the number of further lines of an earlier run, and where the last one ends."""
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
        """Return whether the file has this line next; if not, cut off the rest."""
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
            raise OSError(EIO, "another program has changed it meanwhile")
        remaining = memoryview(bytes(self._buffer))
        while remaining:
            remaining = remaining[self._file.write(remaining) :]
        self._durable_bytes += len(self._buffer)
        self.durable_rows += self._buffered_lines
        self._buffer.clear()
        self._buffered_lines, self._flushed_at = 0, monotonic()


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
        self._file.write(b"")  # else Zstandard writes nothing for no lines
        self._file.close()
        self._draft.commit()

    def abort(self) -> None:
        close_quietly(self._file)
        self._draft.abort()


def gzip_writer(file: IO[bytes]) -> Any:
    return gzip.GzipFile("", "wb", 6, file, mtime=0)


def zstd_writer() -> Callable[[IO[bytes]], Any]:
    for library in ZSTD:
        with suppress(ImportError):
            return partial(import_module(library).ZstdFile, mode="wb")
    raise ConfigError("a file that ends in .zst needs Zstandard: pip install 'redraft[zstd]'")


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

    The suffix of the name is the format: .jsonl, .ndjson (.gz or .zst may follow), .parquet, .csv, .tsv; a pipe or a device
    gets JSON Lines. With `resume` a plain file of JSON Lines keeps its lines while the same rows are written again. Without
    `ordered` rows are written as they arrive. `spool` is the folder for rows that wait for their turn (None: the usual one for
    temporary files). `notify` is called with a message if something had to be written in another form. `types` (str, int,
    float) are the types of Parquet columns by name, so that a column of nulls has a type; values of another type take
    precedence. `spreadsheet_safe`: in CSV and TSV an apostrophe precedes texts that a spreadsheet could evaluate, and a last
    column marks the file, so that `iter_rows` removes them again. Raises ConfigError for a name with another suffix, StoreError
    for a file that cannot be written.
    """
    label = "stdout" if path is None or str(path) == "-" else f"output {str(path)!r}"
    try:
        sink = _open_sink(Path("-" if path is None else path), _OutputOptions(resume, notify, types or {}, spreadsheet_safe))
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
    ".jsonl.gz": lambda path, _: CompressedLines(path, gzip_writer),
    ".jsonl.zst": lambda path, _: CompressedLines(path, zstd_writer()),
    ".parquet": lambda path, options: ParquetWriter(path, options.notify, options.types),
    ".csv": lambda path, options: CsvWriter(path, ",", spreadsheet_safe=options.spreadsheet_safe),
    ".tsv": lambda path, options: CsvWriter(path, "\t", spreadsheet_safe=options.spreadsheet_safe),
}


class Output:
    """Takes rows numbered from 0 in any order and writes them in order.

    `written_count` counts the rows written, `pending_count` those that wait on disk for their turn. If the disk fails, raises
    StoreError that names the file and how many rows are in it for certain; the output stays closed then.
    """

    def __init__(self, sink: Sink, name: str, *, ordered: bool = True, spool: Path | None = None) -> None:
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
        """Write row n and the rows that waited for it. Raises ValueError for a row that was put before."""
        if self._error:
            raise self._error
        if self._ordered and (n < self.written_count or n in self._buffer):
            raise ValueError(f"row {n} was put already")
        line = self._encode(values)
        if self._ordered and n > self.written_count:
            self._run_guarded(self._buffer.put, n, line, self.written_count)
            return
        self._write(line)
        while self._ordered and self.written_count in self._buffer:
            self._write(self._run_guarded(self._buffer.pop, self.written_count))

    def close(self, *, complete: bool = True) -> None:
        """Write the remaining rows and publish the file.

        With `complete` a missing row is a ValueError. Without it rows that waited for missing ones are written nevertheless; but a
        resumed file in which nothing differed so far keeps its further lines, if there are enough for all waiting rows.
        """
        if self._closed:
            return
        if complete and self.pending_count:
            raise ValueError(f"row {self.written_count} is missing, and {self.pending_count} after it wait")
        self._closed = True
        if not complete and self._close_keeping_rest and self._run_guarded(self._close_keeping_rest, self.pending_count):
            return
        for n in self._buffer.numbers():
            self._write(self._run_guarded(self._buffer.pop, n))
        self._run_guarded(self._sink.close)

    def _write(self, line: bytes) -> None:
        self._run_guarded(self._sink.write, line)
        self.written_count += 1

    def _run_guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            self._closed = True
            with suppress(OSError):
                self._sink.abort()
            rows = self._sink.durable_rows
            state = f"the last row written is row {rows}" if rows else "nothing was written to it"
            self._error = StoreError(f"{self.name} cannot be written: {error.strerror or error}; {state}")
            raise self._error from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(complete=kind is None)
