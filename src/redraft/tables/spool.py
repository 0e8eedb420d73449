"""Rows as lines of JSON, and the temporary files in which such lines wait.

Lines wait for their turn (`OutOfOrderBuffer`), for the columns of a table (`RowSpool`), or to be
read again (`ReplaySpool`). Tables hold dates, decimals, bytes and arrays; none of them keeps a row
from being written.
"""

from __future__ import annotations

import io
import json
import tempfile
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from datetime import date, datetime, time
from functools import partial
from math import isfinite
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any
from weakref import finalize

import orjson

from ..base.jsontext import escape_surrogates
from ..errors import ConfigError, StoreError

BUFFER_BYTES = 2**20  # bytes that are written at a time
NO_PLACE = -1
TRIM_PLACES = 4096  # entries of `_places` that are freed at a time
COMPACT_BYTES = 2**24  # a larger file is compacted
MAX_MEMORY_BYTES = 2**20  # bytes of lines that stay in memory
ROWS_PER_GROUP = 1000  # rows of a row group
MAX_GROUP_BYTES = 64 * 2**20  # bytes of the lines of a row group
POLL_INTERVAL = 0.1  # seconds between two calls of `should_stop`
MAX_SKIPPED_BYTES = 1024 * 2**20  # bytes of a line that is too long and skipped
ORJSON_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_APPEND_NEWLINE
)


def json_line(value: Any) -> bytes:
    """Return a value as a line of JSON with its line end, in UTF-8 and without spaces.

    Lone surrogates are escaped, so that no text is lost. NaN and infinity become null.
    """
    try:
        return orjson.dumps(value, default=_orjson_default, option=ORJSON_OPTIONS)
    except (
        TypeError
    ):  # lone surrogates, integers over 64 bits, keys that are not text, unknown types
        return json.dumps(to_jsonable(value), separators=(",", ":")).encode() + b"\n"


def to_jsonable(value: Any) -> Any:
    """Return a value converted to types that JSON has: bytes to base64, dates to ISO 8601, arrays
    to lists, others to `str`.
    """
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(to_jsonable(key)): to_jsonable(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [
            to_jsonable(inner)
            for inner in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
        ]
    return _to_simpler(value, to_jsonable)


def _orjson_default(value: Any) -> Any:
    """Convert a value one step towards the types that orjson has."""
    if isinstance(value, Mapping | set | frozenset | float | list | tuple):
        return to_jsonable(value)
    return _to_simpler(value, lambda simpler: simpler)


def _to_simpler(value: Any, convert: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if callable(getattr(value, "tolist", None)):  # numpy arrays and scalars
        return convert(value.tolist())
    return str(value)


def load_line(line: bytes) -> Any:
    """Return the value of a line; lone surrogates become escapes."""
    value = json.loads(line)
    return escape_surrogates(value) if b"\\ud" in line else value


class ReadInterrupted(Exception):
    """`should_stop` stopped the reading of input that can be read only once."""


def close_quietly(file: IO[bytes]) -> None:
    """Close a temporary file that is no longer needed; an error in writing buffered data does not
    matter.
    """
    with suppress(OSError):
        file.close()


class OutOfOrderBuffer:
    """Lines that arrive before their turn, by number. Raises OSError if the disk is full.

    They wait in a temporary file in `folder` (None: the usual folder); memory holds eight bytes for
    each. `pending_count` is their number.
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
        return (
            0 <= n - self._first < len(self._places) and self._places[n - self._first] != NO_PLACE
        )

    def put(self, n: int, line: bytes, next_number: int) -> None:
        """Store a line, which ends with its only line end. `next_number` is the lowest number that
        may still be popped.
        """
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
        """Remove and return a stored line. Lines must be removed in ascending order."""
        file = self._open_file()
        file.seek(self._places[n - self._first])
        line: bytes = file.readline()
        self._places[n - self._first] = NO_PLACE
        self._live_bytes -= len(line)
        self.pending_count -= 1
        self._reclaim(n)
        return line

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the stored lines, in order."""
        yield from [n for n, place in enumerate(self._places, self._first) if place != NO_PLACE]

    def _reclaim(self, n: int) -> None:
        """Free the space of removed lines: the whole file if no line is pending, else their
        places.
        """
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
        for index, place in enumerate(self._places):
            if place != NO_PLACE:
                old.seek(place)
                self._places[index] = self._file_bytes
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
        """Yield the values of the lines. Lone surrogates, which no table can hold, become
        escapes.
        """
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
        while (
            len(lines) < ROWS_PER_GROUP
            and size < MAX_GROUP_BYTES
            and (line := self._file.readline())
        ):
            lines.append(line)
            size += len(line)
        return lines

    def close(self) -> None:
        close_quietly(self._file)


def _run_in_thread(function: Callable[[], None], should_stop: Callable[[], bool]) -> None:
    """Call a function in a thread; raise ReadInterrupted when `should_stop` says so. The thread
    does not keep the process alive.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (the waiting thread raises it)
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=copy_context().run, args=(run,), daemon=True).start()
    while not wait([done], POLL_INTERVAL).done:
        if should_stop():
            raise ReadInterrupted
    done.result()


class ReplaySpool:
    """Bytes that can be read only once, stored in a temporary file in `folder` so that they can be
    read again.

    `chunks` yields the bytes, `name` names them in errors. With `should_stop` a thread reads the
    bytes, and it is called several times a second meanwhile.
    """

    def __init__(
        self,
        chunks: Callable[[], Iterable[bytes]],
        name: str,
        folder: str,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._chunks, self._name, self._folder, self._should_stop = (
            chunks,
            name,
            folder,
            should_stop,
        )
        self._file: IO[bytes] | None = None
        self._is_complete = False
        self._lock = Lock()

    def fill(self) -> None:
        """Store all bytes, unless this was done before.

        Raises ReadInterrupted, StoreError if the disk is full, and ConfigError if an earlier
        attempt failed or a line is too long.
        """
        with self._lock:
            if self._is_complete:
                return
            if self._file is not None:
                raise ConfigError(
                    f"{self._name} could not be read to its end; it cannot be read again"
                )
            self._file = file = self._guard_disk(partial(tempfile.TemporaryFile, dir=self._folder))
            finalize(self, close_quietly, file)
            if self._should_stop is None:
                self._fill_file(file)
            else:
                _run_in_thread(partial(self._fill_file, file), self._should_stop)
            self._is_complete = True

    def _fill_file(self, file: IO[bytes]) -> None:
        line_bytes = 0
        for piece in self._chunks():
            if self._should_stop and self._should_stop():
                raise ReadInterrupted
            line_bytes = (
                len(piece) - 1 - end
                if (end := piece.rfind(b"\n")) >= 0
                else line_bytes + len(piece)
            )
            if line_bytes > MAX_SKIPPED_BYTES:
                raise ConfigError(
                    f"{self._name} has a line that does not end within "
                    f"{MAX_SKIPPED_BYTES >> 20:,} MiB; it must be JSON Lines"
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
            raise StoreError(
                f"{self._folder!r} cannot hold the rows of {self._name}: {error.strerror}"
            ) from error


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
