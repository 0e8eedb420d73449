"""One trace in one file: a header line, then a line for every record, written as it arrives.

`kill -9` can tear the last line only; reading leaves a torn line out, and writing on starts after the last whole one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BufferedReader
from itertools import count
from math import inf
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ..checks import read_error_message
from ..core.records import Record
from ..core.serialize import object_from_json, record_from_json, record_to_json
from ..core.trace import Trace
from ..errors import StoreError
from .append_only import LockedLineFile
from .secure_files import open_regular

MAX_LINE_BYTES = 2**27  # bytes of a line that is read: an answer has 8 MiB at most, and escapes make it six times as long
MAX_TRACE_BYTES = 2**29  # bytes of a trace that is read


class JsonlStore:
    """Appends to `path`. A file that holds something is only continued with `resume`. Raises StoreError.

    A new file is for its owner alone. It is locked while it is open: a second process is told so instead of mixing its lines in.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        self._written_count: int | None = None
        self._is_resumed = resume
        self._lines = LockedLineFile(path, "trace", resume=resume)
        if not resume and not self._lines.is_empty:
            self._lines.close()
            raise StoreError(f"trace {str(self.path)!r} exists already: continue it with --resume, or name another file")

    def append(self, trace: Trace) -> None:
        """Write what of the trace is not in the file yet, and hand it to the operating system."""
        lines: list[str] = []
        if self._written_count is None:
            lines = [] if self._is_resumed else [json.dumps(trace.header())]
            self._written_count = len(trace.records) if self._is_resumed else 0
        lines += map(record_to_json, trace.records[self._written_count :])
        self._lines.write(lines, f"{self._written_count} records are in it")
        self._written_count = len(trace.records)

    def close(self) -> None:
        """Close the file and let go of its lock."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_trace(path: str | Path) -> Trace:
    """The trace in a file, or in a JSON document that `Trace.to_json` wrote. A torn last line is left out.

    Raises StoreError, which names the line, for anything else: also for what is no file, for a line over 128 MiB and for a
    file over 512 MiB. A pipe is read where it is named in /dev or /proc, as a shell does with `<(command)`.
    """
    try:
        with open_regular(path, streams=True) as raw, BufferedReader(raw) as file:
            lines = [*read_bounded_lines(file, f"trace {str(path)!r}", MAX_TRACE_BYTES)]
    except OSError as error:
        raise StoreError(f"trace {str(path)!r} cannot be read: {read_error_message(error)}") from error
    if not lines:
        raise StoreError(f"trace {str(path)!r} is empty: it is not what `redraft run --trace FILE` wrote")
    try:
        head = object_from_json(lines[0])
        trace = Trace.from_json(lines[0]) if "records" in head else Trace.from_header(head)
    except StoreError as error:
        raise StoreError(f"{str(path)!r} is no trace, such as `redraft run --trace FILE` writes: line 1: {error}") from error
    records = [_record(path, n, line) for n, line in enumerate(lines[1:], 2)]
    try:
        return trace.with_records(records)
    except StoreError as error:
        raise StoreError(f"trace {str(path)!r}: {error}") from error


def read_bounded_lines(file: IO[bytes], name: str, max_bytes: float = inf) -> Iterator[str]:
    """The lines of a file but for a torn one, which may end within a character.

    Raises StoreError for a line over 128 MiB and once there are more than `most` bytes. `name` is how errors call the file.
    """
    read = 0
    for n in count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        read += len(line)
        if len(line) > MAX_LINE_BYTES or read > max_bytes:
            what = (
                f"line {n} is longer than {MAX_LINE_BYTES:,}" if len(line) > MAX_LINE_BYTES else f"it is larger than {max_bytes:,}"
            )
            raise StoreError(f"{name} cannot be read: {what} bytes")
        if not line or (n > 1 and not line.endswith(b"\n")):
            return
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise StoreError(f"{name} cannot be read: line {n}: {read_error_message(error)}") from error


def _record(path: str | Path, n: int, line: str) -> Record:
    try:
        return record_from_json(line)
    except StoreError as error:
        raise StoreError(f"trace {str(path)!r}, line {n}: {error}") from error
