"""One trace in one file: a header line, then a line for every record, written as it arrives.

`kill -9` can tear the last line only; reading leaves a torn line out, and writing on starts after the last whole one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from ..checks import unreadable
from ..core.errors import StoreError
from ..core.records import Record
from ..core.serial import loads, record_from_json, record_to_json
from ..core.trace import Trace
from .lines import LockedLines


class JsonlStore:
    """Appends to `path`. A file that holds something is only continued with `resume`. Raises StoreError.

    The file is locked while it is open: a second process is told so instead of mixing its lines in.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path = Path(path)
        self._written: int | None = None
        self._resumed = resume
        self._lines = LockedLines(path, "trace", resume=resume)
        if not resume and not self._lines.empty:
            self._lines.close()
            raise StoreError(f"trace {str(self.path)!r} exists already: continue it with --resume, or name another file")

    def append(self, trace: Trace) -> None:
        """Write what of the trace is not in the file yet, and hand it to the operating system."""
        lines: list[str] = []
        if self._written is None:
            lines = [] if self._resumed else [json.dumps(trace.header())]
            self._written = len(trace.records) if self._resumed else 0
        lines += map(record_to_json, trace.records[self._written :])
        self._lines.write(lines, f"{self._written} records are in it")
        self._written = len(trace.records)

    def close(self) -> None:
        """Close the file and let go of its lock."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_trace(path: str | Path) -> Trace:
    """The trace in a file, or in a JSON document that `Trace.to_json` wrote. A torn last line is left out. Raises StoreError."""
    try:
        text = Path(path).read_bytes().decode("utf-8", "strict")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"trace {str(path)!r} cannot be read: {unreadable(error)}") from error
    *lines, torn = text.split("\n")
    if not lines and torn:
        lines = [torn]
    if not lines:
        raise StoreError(f"trace {str(path)!r} is empty: it is not what `redraft run --trace FILE` wrote")
    try:
        head = loads(lines[0])
        trace = Trace.from_json(lines[0]) if "records" in head else Trace.from_header(head)
    except StoreError as error:
        raise StoreError(f"{str(path)!r} is no trace, such as `redraft run --trace FILE` writes: {error}") from error
    return replace(trace, records=(*trace.records, *(_record(path, n, line) for n, line in enumerate(lines[1:], 2))))


def _record(path: str | Path, n: int, line: str) -> Record:
    try:
        return record_from_json(line)
    except StoreError as error:
        raise StoreError(f"{str(path)!r}, line {n}: {error}") from error
