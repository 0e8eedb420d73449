"""The lines of stdin, read by a thread that does not keep the process alive: Ctrl-C must not wait
for the next line.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

MAX_LINE = 16 * 2**20  # bytes of a message
READ_BYTES = 2**16
MAX_PENDING = 16  # parts that were read and not yet used
KEPT_BYTES = 512  # at both ends of a line that is too long
_ID = rb'(-?(?:0|[1-9]\d{0,17})|"[^"\\\x00-\x1f]{1,200}")'
_ID_AT_START = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*' + _ID + rb"\s*[,}]"
)
_ID_AT_END = re.compile(
    rb',\s*"id"\s*:\s*' + _ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z'
)


@dataclass(frozen=True, slots=True)
class OverlongLine:
    """Stands for a line of more than MAX_LINE bytes, which was not kept. `id`: the ID of its
    request, if it is known.
    """

    id: int | str | None


def request_id(line: bytes) -> int | str | None:
    """Return the id of a request, which clients write at its beginning or its end; None if it is
    not certain.
    """
    found = _ID_AT_START.match(line) or _ID_AT_END.search(line, max(0, len(line) - KEPT_BYTES))
    value: int | str | None = json.loads(found[1].decode(errors="replace")) if found else None
    return value


class InputLines:
    """Iterates over the lines of a file descriptor as text, to the end of the file. A line that is
    too long is not kept.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parts: asyncio.Queue[bytes] = asyncio.Queue(MAX_PENDING)
        self._lines: AsyncIterator[str | OverlongLine] | None = None

    def __aiter__(self) -> Self:
        if self._lines is None:
            self._lines = self._read_lines()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(loop,), name="stdin", daemon=True).start()
        return self

    async def __anext__(self) -> str | OverlongLine:
        assert self._lines is not None
        return await anext(self._lines)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read parts until the end of the file, or of the loop; the last part is empty."""
        part = b"-"
        while part:
            try:
                part = os.read(self._descriptor, READ_BYTES)
            except OSError:
                part = b""
            put = self._parts.put(part)
            try:
                asyncio.run_coroutine_threadsafe(put, loop).result()
            except (RuntimeError, asyncio.CancelledError):  # the loop has ended
                put.close()
                return

    async def _read_lines(self) -> AsyncIterator[str | OverlongLine]:
        line = _Line()
        while part := await self._parts.get():
            *ends, rest = part.split(b"\n")
            for end in ends:
                line.add(end)
                yield line.take()
            line.add(rest)
        if line.size:
            yield line.take()


class _Line:
    """The bytes of a line so far; once it is too long, those at its ends."""

    def __init__(self) -> None:
        self._kept, self.size = bytearray(), 0

    def add(self, part: bytes) -> None:
        self._kept += part
        self.size += len(part)
        if self.size > MAX_LINE:
            del self._kept[KEPT_BYTES:-KEPT_BYTES]

    def take(self) -> str | OverlongLine:
        """Return the line, and begin the next."""
        line, is_overlong = bytes(self._kept), self.size > MAX_LINE
        self._kept, self.size = bytearray(), 0
        return OverlongLine(request_id(line)) if is_overlong else line.decode(errors="replace")
