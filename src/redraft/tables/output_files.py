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
from ..storage.secure_files import PUBLIC, AtomicFile, open_following_links
from .readers import ZSTD
from .reordering import close_quietly

BUFFER_BYTES = 2**20  # bytes that are written at once
FLUSH_INTERVAL = 0.5  # seconds after which lines are handed to the operating system even so


class ResumableJsonl:
    """Lines written to `path` itself.

    With `resume` the lines that stand there stay as long as the same ones are written again; at the first difference, a
    torn line included, the rest is cut off.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.durable_rows = 0
        resume = resume and path.exists()
        self._file: FileIO = open_following_links(path, os.O_RDWR if resume else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC)
        self._existing: IO[bytes] | None = BufferedReader(open_following_links(path, os.O_RDONLY), BUFFER_BYTES) if resume else None
        self._buffer = bytearray()
        self._buffered_lines = 0  # lines
        self._durable_bytes = 0  # bytes that are safe
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
        """Close, and let stand what an earlier run left behind these lines, but for a torn one.

        Does nothing, and says so, where that is less than `least` lines, or none, or something differed.
        """
        lines, end = self._existing_lines()
        if lines < max(min_lines, 1):
            return False
        self._durable_bytes = end
        self.close()
        return True

    def abort(self) -> None:
        """Leave the lines that are safe, and close."""
        if self._existing is not None:
            self._existing.close()
        else:
            with suppress(OSError):
                self._file.truncate(min(self._durable_bytes, os.fstat(self._file.fileno()).st_size))
        self._file.close()

    def _existing_lines(self) -> tuple[int, int]:
        """How many lines of an earlier run stand behind these, and where the last one ends."""
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
        """Whether the line stands in the file already, here. Where it doesn't, the rest is cut off."""
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
        left = memoryview(bytes(self._buffer))
        while left:
            left = left[self._file.write(left) :]
        self._durable_bytes += len(self._buffer)
        self.durable_rows += self._buffered_lines
        self._buffer.clear()
        self._buffered_lines, self._flushed_at = 0, monotonic()


class StreamSink:
    """Lines written to a pipe, a device or stdout, each at once."""

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
    """Lines packed by gzip or Zstandard; the same lines give the same bytes."""

    def __init__(self, path: Path, compressor: Callable[[IO[bytes]], Any]) -> None:
        self.durable_rows = 0
        self._draft = AtomicFile(path)
        self._file = compressor(self._draft.file)

    def write(self, line: bytes) -> None:
        self._file.write(line)

    def close(self) -> None:
        self._file.write(b"")  # else Zstandard makes no file of no lines
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
    raise ConfigError("a file that ends in .zst is packed with Zstandard: pip install 'redraft[zstd]'")
