"""Where rows go: JSON Lines, Parquet, CSV, TSV, plain or packed, or stdout; in their order, however they come.

A file of JSON Lines is written in place, so that what is finished can be seen: what stands in it from an interrupted run
is compared with what is written again, and stays as long as it is the same. Every other file is written beside and
renamed when it is closed. What a row means is not known here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ..errors import ConfigError, StoreError
from .output_files import CompressedLines, ResumableJsonl, StreamSink, gzip_writer, zstd_writer
from .reordering import OutOfOrderBuffer
from .table_writers import CsvWriter, ParquetWriter
from .values import json_line

Notify = Callable[[str], object]


class Sink(Protocol):
    """Where lines go: one for each row, with one line end, at its end. `safe` says how many are in the file, come what may.

    `close` publishes what was written; `abandon` leaves what can be read, after an error.
    """

    @property
    def durable_rows(self) -> int: ...

    def write(self, line: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


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
    """Where rows are to be written: a file, or stdout (None or "-"), which gets JSON Lines.

    The ending of the name says what it is: .jsonl, .ndjson (.gz or .zst may follow), .parquet, .csv, .tsv; a pipe or a
    device gets JSON Lines. With `resume` a plain file of JSON Lines keeps what stands in it as long as the same rows are
    written again. Without `ordered` rows are written as they come. `spool` is the folder where rows wait that come before
    their turn (None: the usual one for temporary files); `say` is told what had to be written in another way. `types` (str,
    int, float) are what columns of Parquet hold, by name, so that one of nulls has a type, too; values that don't fit win.
    `spreadsheet_safe`: in CSV and TSV an apostrophe stands before texts that a spreadsheet could evaluate, and a last column
    says so, by which `rows` takes them away again; without it texts are written as they are.
    Raises ConfigError for a name that says of no such file, StoreError for one that cannot be written.
    """
    said = "stdout" if path is None or str(path) == "-" else f"output {str(path)!r}"
    try:
        sink = _open_sink(Path("-" if path is None else path), _OutputOptions(resume, notify, types or {}, spreadsheet_safe))
    except OSError as error:
        raise StoreError(f"{said} cannot be written: {error.strerror or error}") from error
    return Output(sink, said, ordered=ordered, spool=spool)


@dataclass(frozen=True, slots=True)
class _OutputOptions:
    """How a file is to be written; see `open_output`."""

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
    """What the ending of a name says. Raises ConfigError for one that says nothing."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return ".jsonl"
    ending = "".join(s.lower() for s in path.suffixes[-2:])
    known = next((known for known in SINK_FACTORIES if ending.endswith(known)), None)
    if known is None:
        raise ConfigError(f"output {str(path)!r}: its name must end in {', '.join(SINK_FACTORIES)}")
    return known


SINK_FACTORIES: dict[str, Callable[[Path, _OutputOptions], Sink]] = {
    ".jsonl": lambda path, wish: ResumableJsonl(path, resume=wish.resume),
    ".ndjson": lambda path, wish: ResumableJsonl(path, resume=wish.resume),
    ".jsonl.gz": lambda path, _: CompressedLines(path, gzip_writer),
    ".jsonl.zst": lambda path, _: CompressedLines(path, zstd_writer()),
    ".parquet": lambda path, wish: ParquetWriter(path, wish.notify, wish.types),
    ".csv": lambda path, wish: CsvWriter(path, ",", spreadsheet_safe=wish.spreadsheet_safe),
    ".tsv": lambda path, wish: CsvWriter(path, "\t", spreadsheet_safe=wish.spreadsheet_safe),
}


class Output:
    """Takes rows numbered from 0, in any order, and writes them in theirs.

    `written` counts the rows written, `waiting` those that came before their turn: they wait on disk. Raises StoreError
    where the disk fails, which names the file and how many rows are in it for certain; it stays closed then.
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
        """Whether rows are written to the file itself, not to one that takes its place at the end."""
        return isinstance(self._sink, ResumableJsonl)

    def put(self, n: int, values: Mapping[str, Any]) -> None:
        """Write row n, and those that waited for it. Raises ValueError for a row that was put before."""
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
        """Write out what is left, and publish the file: it ends with the last row put.

        Without `whole` rows may be missing, and those that waited for them are written nevertheless; but an output that is
        resumed, as long as nothing in it differed, stays as long as it was, where it has lines for all of them. With `whole`
        a missing row is a ValueError.
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
            safe = self._sink.durable_rows
            held = f"the last row written is row {safe}" if safe else "nothing was written to it"
            self._error = StoreError(f"{self.name} cannot be written: {error.strerror or error}; {held}")
            raise self._error from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(complete=kind is None)
