"""Temporary files: lines that wait for their turn, rows that wait for the columns of a table, input that can be read only once."""

from __future__ import annotations

import io
import json
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any
from weakref import finalize

from ..errors import ConfigError, StoreError
from ..jsontext import escape_surrogates
from .readers import MAX_SKIPPED_BYTES

BUFFER_BYTES = 2**20  # bytes that are written at a time
NO_PLACE = -1
TRIM_PLACES = 4096  # places that are freed at a time
COMPACT_BYTES = 2**24  # a larger file is compacted
MAX_MEMORY_BYTES = 2**20  # bytes of lines that stay in memory
ROWS_PER_GROUP = 1000  # rows of a row group
MAX_GROUP_BYTES = 64 * 2**20  # bytes of the lines of a row group
POLL_INTERVAL = 0.1  # seconds between two calls of `should_stop`


class ReadInterrupted(Exception):
    """Reading input that can be read only once was stopped before its end, on request."""


def close_quietly(file: IO[bytes]) -> None:
    """Close a temporary file; an error in writing what is buffered does not matter any more."""
    with suppress(OSError):
        file.close()


class OutOfOrderBuffer:
    """Lines that arrive before their turn, by number. Raises OSError if the disk is full.

    They wait in a temporary file in `folder` (None: the usual folder); memory holds eight bytes for each. `pending_count`: how
    many.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.pending_count = 0
        self._folder = folder
        self._file: Any = None
        self._close: Any = None
        self._first = 0  # the number of the first entry of `_places`
        self._places = array("q")
        self._file_bytes = self._live_bytes = 0  # bytes of the file, and of pending lines in it

    def __contains__(self, n: int) -> bool:
        return 0 <= n - self._first < len(self._places) and self._places[n - self._first] != NO_PLACE

    def put(self, n: int, line: bytes, next_number: int) -> None:
        """Store a line, which ends with its only line end. `next_number` is the lowest number that may still be asked for."""
        if not self.pending_count:
            self._first = next_number
        file = self._open_file()
        file.seek(self._file_bytes)
        file.write(line)
        self._places.extend([NO_PLACE] * (n - self._first + 1 - len(self._places)))
        self._places[n - self._first] = self._file_bytes
        self._file_bytes += len(line)
        self._live_bytes += len(line)
        self.pending_count += 1

    def pop(self, n: int) -> bytes:
        """Remove and return a stored line. Lines are removed in rising order."""
        file = self._open_file()
        file.seek(self._places[n - self._first])
        line: bytes = file.readline()
        self._places[n - self._first] = NO_PLACE
        self._live_bytes -= len(line)
        self.pending_count -= 1
        self._reclaim(n)
        return line

    def numbers(self) -> Iterator[int]:
        """Yield the stored numbers, in order."""
        yield from [n for n, place in enumerate(self._places, self._first) if place != NO_PLACE]

    def _reclaim(self, n: int) -> None:
        """Free the space of removed lines: all of it if nothing is pending, else their places."""
        if not self.pending_count:
            self._open_file().truncate(0)
            self._places, self._file_bytes = array("q"), 0
        elif n - self._first >= max(TRIM_PLACES, len(self._places) // 2):
            del self._places[: n + 1 - self._first]
            self._first = n + 1
        if self._file_bytes > COMPACT_BYTES and self._live_bytes < self._file_bytes // 4:
            self._compact()

    def _compact(self) -> None:
        """Copy the pending lines into a new file, which frees the space of removed ones."""
        old, self._file, self._file_bytes = self._file, None, 0
        new = self._open_file()
        for at, place in enumerate(self._places):
            if place != NO_PLACE:
                old.seek(place)
                self._places[at] = self._file_bytes
                self._file_bytes += new.write(old.readline())
        close_quietly(old)

    def _open_file(self) -> Any:
        if self._file is None:
            self._file = file = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES, dir=self._folder)  # noqa: SIM115 (it stays open)
            if self._close:
                self._close.detach()
            self._close = finalize(self, close_quietly, file)
        return self._file


class RowSpool:
    """Lines of JSON in a temporary file, read back once all are written."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=BUFFER_BYTES)  # noqa: SIM115 (it stays open)

    def add(self, line: bytes) -> None:
        self._file.write(line)

    def __iter__(self) -> Iterator[Any]:
        """Yield the values of the lines. Lone surrogates, which no table can hold, are spelt as escapes."""
        self._file.seek(0)
        return map(load_line, self._file)

    def groups(self) -> Iterator[list[Any]]:
        """Yield the values of the lines, a row group at a time."""
        self._file.seek(0)
        while lines := self._next_group():
            yield list(map(load_line, lines))

    def _next_group(self) -> list[bytes]:
        lines: list[bytes] = []
        size = 0
        while len(lines) < ROWS_PER_GROUP and size < MAX_GROUP_BYTES and (line := self._file.readline()):
            lines.append(line)
            size += len(line)
        return lines

    def close(self) -> None:
        close_quietly(self._file)


def load_line(line: bytes) -> Any:
    """Return the value of a line; lone surrogates are spelt as escapes."""
    value = json.loads(line)
    return escape_surrogates(value) if b"\\ud" in line else value


def _run_in_thread(function: Callable[[], None], should_stop: Callable[[], bool]) -> None:
    """Call a function in a thread; raise ReadInterrupted when `should_stop` says so. The thread does not keep the process alive."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (it is raised in the waiting thread)
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=copy_context().run, args=(run,), daemon=True).start()
    while not wait([done], POLL_INTERVAL).done:
        if should_stop():
            raise ReadInterrupted
    done.result()


class ReplaySpool:
    """Bytes that can be read only once, kept in a temporary file in `folder` so that they can be read again.

    `chunks` yields them, `name` names them in errors. `should_stop` is called several times a second while they are read; a thread
    reads then.
    """

    def __init__(
        self, chunks: Callable[[], Iterable[bytes]], name: str, folder: str, should_stop: Callable[[], bool] | None
    ) -> None:
        self._chunks, self._name, self._folder, self._should_stop = chunks, name, folder, should_stop
        self._file: IO[bytes] | None = None
        self._is_complete = False
        self._lock = Lock()

    def fill(self) -> None:
        """Store everything, unless that was done. Raises ReadInterrupted, StoreError if the disk is full, and ConfigError."""
        with self._lock:
            if self._is_complete:
                return
            if self._file is not None:
                raise ConfigError(f"{self._name} could not be read to its end; it cannot be read again")
            self._file = file = self._guard_disk(partial(tempfile.TemporaryFile, dir=self._folder))
            finalize(self, close_quietly, file)
            if self._should_stop is None:
                self._fill_file(file)
            else:
                _run_in_thread(partial(self._fill_file, file), self._should_stop)
            self._is_complete = True

    def _fill_file(self, file: IO[bytes]) -> None:
        line = 0
        for piece in self._chunks():
            if self._should_stop and self._should_stop():
                raise ReadInterrupted
            line = len(piece) - 1 - end if (end := piece.rfind(b"\n")) >= 0 else line + len(piece)
            if line > MAX_SKIPPED_BYTES:
                raise ConfigError(
                    f"{self._name} has a line that does not end within {MAX_SKIPPED_BYTES >> 20:,} MiB; it must be JSON Lines"
                )
            self._guard_disk(partial(file.write, piece))
        self._guard_disk(file.flush)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from an offset on."""
        assert self._file is not None
        with self._lock:
            self._file.seek(offset)
            return self._file.read(length)

    def _guard_disk(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except OSError as error:
            raise StoreError(f"{self._folder!r} cannot hold the rows of {self._name}: {error.strerror}") from error


class SpoolReader(io.RawIOBase):
    """Reads a spool from its start, with a position of its own."""

    def __init__(self, spool: ReplaySpool) -> None:
        self._spool, self._position = spool, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._spool.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
