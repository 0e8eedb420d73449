"""Files of lines that are only appended to, and one trace in such a file: a header line, then a
line for every record.

`kill -9` can tear the last line only. Reading ignores a torn line, and resuming starts after the
last complete one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BufferedReader, FileIO
from itertools import count
from math import inf
from pathlib import Path
from typing import IO, Self

from ..base.checks import read_error_message
from ..base.documents import open_regular
from ..errors import StoreError, StoreLockedError, WrongFileError
from ..loop.records import Record
from ..loop.serialize import object_from_json, record_from_json, record_to_json
from ..loop.trace import Trace
from .secure_files import open_private, try_lock, write_error, write_whole

READ_BYTES = 2**20  # bytes that are read at a time
# bytes of a line: an answer has at most 8 MiB, and escapes make it at most six times as long
MAX_LINE_BYTES = 2**27
MAX_TRACE_BYTES = 2**29  # bytes of a trace that is read


class LockedLineFile:
    """Appends lines to the file `path` and locks it while it is open. Raises StoreError, also if
    another process holds the lock.

    `label` names the file in errors. A new file is readable by its owner only. With `resume` an
    existing file is continued after its last complete line. With `durable` what was written
    survives a power failure, too.
    """

    def __init__(
        self, path: str | Path, label: str, *, resume: bool = False, durable: bool = False
    ) -> None:
        self.path, self._label, self._is_durable = Path(path), label, durable
        try:
            self._file: FileIO = open_private(
                self.path, os.O_RDWR if resume else os.O_WRONLY | os.O_APPEND | os.O_CREAT
            )
        except OSError as error:
            raise write_error(self.name, error) from error
        try:
            if not try_lock(self._file):
                raise StoreLockedError(
                    f"{self.name} is held by another process (this one is {os.getpid()})"
                )
            if resume:
                self._file.truncate(self._file.seek(_complete_lines_end(self._file)))
        except OSError as error:
            self._file.close()
            raise StoreError(f"{self.name} cannot be written: {error.strerror}") from error
        except StoreError:
            self._file.close()
            raise

    @property
    def name(self) -> str:
        return f"{self._label} {str(self.path)!r}"

    @property
    def is_empty(self) -> bool:
        return self._file.tell() == 0

    def write(self, lines: list[str], contents_note: str) -> None:
        """Write lines without buffering. `contents_note` says in an error what the file already
        holds.

        Lines that cannot be written whole are taken back, so that the next ones do not continue a
        torn line.
        """
        if self._file.closed:
            raise StoreError(
                f"{self.name} is not open in this process (a forked process must open a file of "
                "its own)"
            )
        data = "".join(f"{line}\n" for line in lines).encode()
        end = self._file.seek(0, os.SEEK_END) if self._file.seekable() else None
        try:
            write_whole(self._file, data)
            if self._is_durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            if end is not None:
                self._take_back(end)
            raise StoreError(
                f"{self.name} cannot be written: {error.strerror}; {contents_note}"
            ) from error

    def _take_back(self, end: int) -> None:
        """Cut the file off after its first `end` bytes; if that fails, write nothing more."""
        try:
            self._file.truncate(end)
            self._file.seek(end)
        except OSError:
            self._file.close()

    def close(self) -> None:
        """Close the file, which releases the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _complete_lines_end(file: FileIO) -> int:
    """Return the offset of the end of the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - READ_BYTES)
        file.seek(start)
        if length := file.read(end - start).rfind(b"\n") + 1:
            return start + length
        end = start
    return 0


class JsonlStore(LockedLineFile):
    """Appends a trace to the file `path`.

    The file is readable by its owner only. It is locked while it is open, so that two processes
    cannot mix their lines. Raises StoreError if the file cannot be written or locked, and
    WrongFileError for a file with content unless `resume` is set.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        super().__init__(path, "trace", resume=resume)
        self._written_count: int | None = None
        self._is_resumed = resume
        if not resume and not self.is_empty:
            self.close()
            raise WrongFileError(
                f"trace {str(self.path)!r} exists already: continue it with resume=True "
                "(--resume), or name another file"
            )

    def append(self, trace: Trace) -> None:
        """Write the records that are not yet in the file."""
        lines: list[str] = []
        if self._written_count is None:
            lines = [] if self._is_resumed else [json.dumps(trace.header())]
            self._written_count = len(trace.records) if self._is_resumed else 0
        lines += map(record_to_json, trace.records[self._written_count :])
        self.write(lines, f"{self._written_count} records are in it")
        self._written_count = len(trace.records)


def read_trace(path: str | Path) -> Trace:
    """Read the trace in a file, or in a JSON document that `Trace.to_json` wrote. A torn last line
    is ignored.

    Raises StoreError that names the line for anything else, and for a line over 128 MiB or a file
    over 512 MiB. A pipe is read only if its name is in /dev or /proc, as in a shell's `<(command)`.
    """
    try:
        with open_regular(path, streams=True) as raw, BufferedReader(raw) as file:
            lines = [*read_bounded_lines(file, f"trace {str(path)!r}", MAX_TRACE_BYTES)]
    except OSError as error:
        raise StoreError(
            f"trace {str(path)!r} cannot be read: {read_error_message(error)}"
        ) from error
    if not lines:
        raise StoreError(
            f"trace {str(path)!r} is empty: there is nothing to resume; `redraft run --trace "
            "FILE` begins a trace"
        )
    try:
        header = object_from_json(lines[0])
        trace = Trace.from_json(lines[0]) if "records" in header else Trace.from_header(header)
    except StoreError as error:
        raise StoreError(
            f"{str(path)!r} is not a trace, such as `redraft run --trace FILE` writes: line 1: "
            f"{error}"
        ) from error
    records = [_record(path, n, line) for n, line in enumerate(lines[1:], 2)]
    try:
        return trace.with_records(records)
    except StoreError as error:
        raise StoreError(f"trace {str(path)!r}: {error}") from error


def read_bounded_lines(file: IO[bytes], name: str, max_bytes: float = inf) -> Iterator[str]:
    """Yield the complete lines of a file; `name` is its name in errors.

    Raises StoreError for a line over 128 MiB, for more than `max_bytes` bytes, and for a line that
    is not UTF-8.
    """
    total = 0
    for n in count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        total += len(line)
        if len(line) > MAX_LINE_BYTES or total > max_bytes:
            reason = (
                "it is larger than" if len(line) <= MAX_LINE_BYTES else f"line {n} is longer than"
            )
            limit = max_bytes if len(line) <= MAX_LINE_BYTES else MAX_LINE_BYTES
            raise StoreError(f"{name} cannot be read: {reason} {limit:,} bytes")
        if not line or (n > 1 and not line.endswith(b"\n")):
            return
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise StoreError(
                f"{name} cannot be read: line {n}: {read_error_message(error)}"
            ) from error


def _record(path: str | Path, n: int, line: str) -> Record:
    try:
        return record_from_json(line)
    except StoreError as error:
        raise StoreError(f"trace {str(path)!r}, line {n}: {error}") from error
