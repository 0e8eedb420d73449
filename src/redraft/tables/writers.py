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
from .output_files import InPlace, Packed, Stream, gzipped, zstandard
from .reordering import Early
from .table_writers import Parquet, Separated
from .values import line_of

Say = Callable[[str], object]


class Sink(Protocol):
    """Where lines go: one for each row, with one line end, at its end. `safe` says how many are in the file, come what may.

    `close` publishes what was written; `abandon` leaves what can be read, after an error.
    """

    @property
    def safe(self) -> int: ...

    def write(self, line: bytes) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


def open_output(
    path: str | Path | None,
    *,
    ordered: bool = True,
    resume: bool = False,
    spool: Path | None = None,
    say: Say | None = None,
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
        sink = _sink(Path("-" if path is None else path), _Wish(resume, say, types or {}, spreadsheet_safe))
    except OSError as error:
        raise StoreError(f"{said} cannot be written: {error.strerror or error}") from error
    return Output(sink, said, ordered=ordered, spool=spool)


@dataclass(frozen=True, slots=True)
class _Wish:
    """How a file is to be written; see `open_output`."""

    resume: bool
    say: Say | None
    types: Mapping[str, type]
    spreadsheet_safe: bool


def _sink(path: Path, wish: _Wish) -> Sink:
    if str(path) == "-":
        return Stream(sys.stdout.buffer, keep_open=True)
    if path.exists() and not path.is_file() and not path.is_dir():
        return Stream(path.open("wb"), keep_open=False)
    return OPENED[ending_of(path)](path, wish)


def ending_of(path: Path) -> str:
    """What the ending of a name says. Raises ConfigError for one that says nothing."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return ".jsonl"
    ending = "".join(s.lower() for s in path.suffixes[-2:])
    known = next((known for known in OPENED if ending.endswith(known)), None)
    if known is None:
        raise ConfigError(f"output {str(path)!r}: its name must end in {', '.join(OPENED)}")
    return known


OPENED: dict[str, Callable[[Path, _Wish], Sink]] = {
    ".jsonl": lambda path, wish: InPlace(path, resume=wish.resume),
    ".ndjson": lambda path, wish: InPlace(path, resume=wish.resume),
    ".jsonl.gz": lambda path, _: Packed(path, gzipped),
    ".jsonl.zst": lambda path, _: Packed(path, zstandard()),
    ".parquet": lambda path, wish: Parquet(path, wish.say, wish.types),
    ".csv": lambda path, wish: Separated(path, ",", spreadsheet_safe=wish.spreadsheet_safe),
    ".tsv": lambda path, wish: Separated(path, "\t", spreadsheet_safe=wish.spreadsheet_safe),
}


class Output:
    """Takes rows numbered from 0, in any order, and writes them in theirs.

    `written` counts the rows written, `waiting` those that came before their turn: they wait on disk. Raises StoreError
    where the disk fails, which names the file and how many rows are in it for certain; it stays closed then.
    """

    def __init__(self, sink: Sink, said: str, *, ordered: bool = True, spool: Path | None = None) -> None:
        self.said = said
        self.written = 0
        self._sink, self._ordered = sink, ordered
        self._pack = getattr(sink, "packed", line_of)
        self._leave = getattr(sink, "leave", None)
        self._early = Early(None if spool is None else str(spool))
        self._closed = False
        self._trouble: StoreError | None = None

    @property
    def waiting(self) -> int:
        return self._early.waiting

    @property
    def in_place(self) -> bool:
        """Whether rows are written to the file itself, not to one that takes its place at the end."""
        return isinstance(self._sink, InPlace)

    def put(self, n: int, values: Mapping[str, Any]) -> None:
        """Write row n, and those that waited for it. Raises ValueError for a row that was put before."""
        if self._trouble:
            raise self._trouble
        if self._ordered and (n < self.written or n in self._early):
            raise ValueError(f"row {n} was put already")
        line = self._pack(values)
        if self._ordered and n > self.written:
            self._guarded(self._early.keep, n, line, self.written)
            return
        self._write(line)
        while self._ordered and self.written in self._early:
            self._write(self._guarded(self._early.take, self.written))

    def close(self, *, whole: bool = True) -> None:
        """Write out what is left, and publish the file: it ends with the last row put.

        Without `whole` rows may be missing, and those that waited for them are written nevertheless; but an output that is
        resumed, as long as nothing in it differed, stays as long as it was, where it has lines for all of them. With `whole`
        a missing row is a ValueError.
        """
        if self._closed:
            return
        if whole and self.waiting:
            raise ValueError(f"row {self.written} is missing, and {self.waiting} after it wait")
        self._closed = True
        if not whole and self._leave and self._guarded(self._leave, self.waiting):
            return
        for n in self._early.numbers():
            self._write(self._guarded(self._early.take, n))
        self._guarded(self._sink.close)

    def _write(self, line: bytes) -> None:
        self._guarded(self._sink.write, line)
        self.written += 1

    def _guarded(self, do: Callable[..., Any], *args: Any) -> Any:
        try:
            return do(*args)
        except OSError as error:
            self._closed = True
            with suppress(OSError):
                self._sink.abandon()
            safe = self._sink.safe
            held = f"the last row written is row {safe}" if safe else "nothing was written to it"
            self._trouble = StoreError(f"{self.said} cannot be written: {error.strerror or error}; {held}")
            raise self._trouble from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(whole=kind is None)
