"""Lines that come before their turn wait on disk; in memory there are eight bytes for each."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any
from weakref import finalize

MISSING = -1
TRIM_PLACES = 4096  # places that are given back at once
COMPACT_BYTES = 2**24  # bytes of the file from which on it is looked after
MAX_MEMORY_BYTES = 2**20  # bytes of lines that need no disk


class OutOfOrderBuffer:
    """Lines by their number, until it is their turn. Raises OSError where the disk is full.

    `folder`: where they lie, in a file without a name (None: the usual one for temporary files). `waiting`: how many.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.pending_count = 0
        self._folder = folder
        self._file: Any = None
        self._close: Any = None
        self._first = 0  # the number that stands at the start of `_places`
        self._places = array("q")
        self._file_bytes = self._live_bytes = 0  # bytes: of the file, and of lines that wait in it

    def __contains__(self, n: int) -> bool:
        return 0 <= n - self._first < len(self._places) and self._places[n - self._first] != MISSING

    def put(self, n: int, line: bytes, next_number: int) -> None:
        """Put a line away; it has one line end, at its end. `turn` is the lowest number that may still come."""
        if not self.pending_count:
            self._first = next_number
        file = self._open_file()
        file.seek(self._file_bytes)
        file.write(line)
        self._places.extend([MISSING] * (n - self._first + 1 - len(self._places)))
        self._places[n - self._first] = self._file_bytes
        self._file_bytes += len(line)
        self._live_bytes += len(line)
        self.pending_count += 1

    def pop(self, n: int) -> bytes:
        """The line of a number that is there. Lines are taken with rising numbers."""
        file = self._open_file()
        file.seek(self._places[n - self._first])
        line: bytes = file.readline()
        self._places[n - self._first] = MISSING
        self._live_bytes -= len(line)
        self.pending_count -= 1
        self._reclaim(n)
        return line

    def numbers(self) -> Iterator[int]:
        """The numbers that are there, in order."""
        yield from [n for n, place in enumerate(self._places, self._first) if place != MISSING]

    def _reclaim(self, n: int) -> None:
        """Give back what is done with: all of it when nobody waits, else the places of lines that were taken."""
        if not self.pending_count:
            self._open_file().truncate(0)
            self._places, self._file_bytes = array("q"), 0
        elif n - self._first >= max(TRIM_PLACES, len(self._places) // 2):
            del self._places[: n + 1 - self._first]
            self._first = n + 1
        if self._file_bytes > COMPACT_BYTES and self._live_bytes < self._file_bytes // 4:
            self._compact()

    def _compact(self) -> None:
        """Put the lines that wait into a new file, so that those taken give their room back."""
        old, self._file, self._file_bytes = self._file, None, 0
        new = self._open_file()
        for at, place in enumerate(self._places):
            if place != MISSING:
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


def close_quietly(file: IO[bytes]) -> None:
    """For a file that is gone when it is closed: what could not be written any more is not missed."""
    with suppress(OSError):
        file.close()
