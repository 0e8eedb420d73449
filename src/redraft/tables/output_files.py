"""Files of lines: in place, as a draft that is renamed when it is whole, or straight to a pipe.

Each keeps the contract of a sink (see `writing`); what fails raises OSError. What a line holds is not known here.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from errno import EIO
from functools import partial
from importlib import import_module
from io import BufferedReader, FileIO
from pathlib import Path
from time import monotonic
from typing import IO, Any

from ..errors import ConfigError
from ..storage.secure_files import PUBLIC, Draft, open_kept
from .readers import ZSTD
from .reordering import close_quietly

BUFFER = 2**20  # bytes that are written at once
DELAY = 0.5  # seconds after which lines are handed to the operating system even so


class InPlace:
    """Lines written to `path` itself.

    With `resume` the lines that stand there stay as long as the same ones are written again; at the first difference, a
    torn line included, the rest is cut off.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.safe = 0
        resume = resume and path.exists()
        self._file: FileIO = open_kept(path, os.O_RDWR if resume else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC)
        self._old: IO[bytes] | None = BufferedReader(open_kept(path, os.O_RDONLY), BUFFER) if resume else None
        self._buffer = bytearray()
        self._buffered = 0  # lines
        self._end = 0  # bytes that are safe
        self._flushed = monotonic()

    def write(self, line: bytes) -> None:
        if self._old is not None and self._stands(self._old, line):
            return
        self._buffer += line
        self._buffered += 1
        if len(self._buffer) >= BUFFER or monotonic() - self._flushed >= DELAY:
            self._flush()

    def close(self) -> None:
        if self._old is not None:
            self._cut(self._old)
        self._flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def leave(self, least: int) -> bool:
        """Close, and let stand what an earlier run left behind these lines, but for a torn one.

        Does nothing, and says so, where that is less than `least` lines, or none, or something differed.
        """
        lines, end = self._left()
        if lines < max(least, 1):
            return False
        self._end = end
        self.close()
        return True

    def abandon(self) -> None:
        """Leave the lines that are safe, and close."""
        if self._old is not None:
            self._old.close()
        else:
            with suppress(OSError):
                self._file.truncate(min(self._end, os.fstat(self._file.fileno()).st_size))
        self._file.close()

    def _left(self) -> tuple[int, int]:
        """How many lines of an earlier run stand behind these, and where the last one ends."""
        lines, end, place = 0, self._end, self._end
        if self._old is None:
            return 0, end
        for piece in iter(partial(self._old.read, BUFFER), b""):
            lines += piece.count(b"\n")
            end = place + piece.rfind(b"\n") + 1 if b"\n" in piece else end
            place += len(piece)
        self._old.seek(self._end)
        return lines, end

    def _stands(self, old: IO[bytes], line: bytes) -> bool:
        """Whether the line stands in the file already, here. Where it doesn't, the rest is cut off."""
        if same := old.read(len(line)) == line:
            self._end += len(line)
            self.safe += 1
        else:
            self._cut(old)
        return same

    def _cut(self, old: IO[bytes]) -> None:
        old.close()
        self._old = None
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def _flush(self) -> None:
        if os.fstat(self._file.fileno()).st_size != self._end:
            self.safe = 0
            raise OSError(EIO, "another program has changed it meanwhile")
        left = memoryview(bytes(self._buffer))
        while left:
            left = left[self._file.write(left) :]
        self._end += len(self._buffer)
        self.safe += self._buffered
        self._buffer.clear()
        self._buffered, self._flushed = 0, monotonic()


class Stream:
    """Lines written to a pipe, a device or stdout, each at once."""

    def __init__(self, file: IO[bytes], *, keep_open: bool) -> None:
        self.safe = 0
        self._file, self._keep_open = file, keep_open

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        self.safe += 1

    def close(self) -> None:
        if not self._keep_open:
            self._file.close()

    def abandon(self) -> None:
        if not self._keep_open:
            close_quietly(self._file)


class Packed:
    """Lines packed by gzip or Zstandard; the same lines give the same bytes."""

    def __init__(self, path: Path, pack: Callable[[IO[bytes]], Any]) -> None:
        self.safe = 0
        self._draft = Draft(path)
        self._file = pack(self._draft.file)

    def write(self, line: bytes) -> None:
        self._file.write(line)

    def close(self) -> None:
        self._file.write(b"")  # else Zstandard makes no file of no lines
        self._file.close()
        self._draft.publish()

    def abandon(self) -> None:
        close_quietly(self._file)
        self._draft.abandon()


def gzipped(file: IO[bytes]) -> Any:
    return gzip.GzipFile("", "wb", 6, file, mtime=0)


def zstandard() -> Callable[[IO[bytes]], Any]:
    for library in ZSTD:
        with suppress(ImportError):
            return partial(import_module(library).ZstdFile, mode="wb")
    raise ConfigError("a file that ends in .zst is packed with Zstandard: pip install 'redraft[zstd]'")
