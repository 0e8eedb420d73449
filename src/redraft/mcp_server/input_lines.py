"""The lines of stdin, read by a thread that does not keep the process alive: Ctrl-C must not wait
for the next line.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_LINE = 16 * 2**20  # bytes of a message
READ_BYTES = 2**16
MAX_PENDING = 1  # lines that were read and not yet used
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


async def input_lines(descriptor: int) -> AsyncIterator[str | OverlongLine]:
    """Yield the lines of a file descriptor as text, to the end of the file. A line that is too long
    is not kept.
    """
    lines: asyncio.Queue[str | OverlongLine | None] = asyncio.Queue(MAX_PENDING)
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=_read_lines, args=(descriptor, lines, loop), name="stdin", daemon=True
    ).start()
    while (line := await lines.get()) is not None:
        yield line


def _read_lines(
    descriptor: int,
    lines: asyncio.Queue[str | OverlongLine | None],
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Put the lines into a queue until the end of the file, for which None stands, or of the
    loop.
    """
    file = open(descriptor, "rb", closefd=False)  # noqa: SIM115  (whoever gave it closes it)
    line: str | OverlongLine | None = ""
    while line is not None:
        try:
            line = read_line(file)
        except OSError:
            line = None
        put = lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(put, loop).result()
        except (RuntimeError, asyncio.CancelledError):  # the loop has ended
            put.close()
            return


def read_line(file: BinaryIO) -> str | OverlongLine | None:
    """Return the next line of a file without its end; None at the end of the file. Of a line that
    is too long only both ends are held.
    """
    part = file.readline(MAX_LINE + 1)
    line = part.removesuffix(b"\n")
    if len(line) <= MAX_LINE:
        return line.decode(errors="replace") if part else None
    start, end = line[:KEPT_BYTES], line[-KEPT_BYTES:]
    while not part.endswith(b"\n") and (part := file.readline(READ_BYTES)):
        end = (end + part.removesuffix(b"\n"))[-KEPT_BYTES:]
    return OverlongLine(request_id(start + end))
