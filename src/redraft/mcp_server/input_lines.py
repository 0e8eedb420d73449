"""The lines of stdin, read by a thread that does not keep the process alive: Ctrl-C must not wait for the next line."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Self

MAX_LINE = 16 * 2**20  # bytes of a message
READ_BYTES = 2**16
MAX_PENDING = 16  # parts that were read and not yet used


class InputLines:
    """Iterates over the lines of a file descriptor as text. It ends with the file, or at a line longer than MAX_LINE."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parts: asyncio.Queue[bytes] = asyncio.Queue(MAX_PENDING)
        self._lines: AsyncIterator[str] | None = None

    def __aiter__(self) -> Self:
        if self._lines is None:
            self._lines = self._read_lines()
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(loop,), name="stdin", daemon=True).start()
        return self

    async def __anext__(self) -> str:
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
            try:
                asyncio.run_coroutine_threadsafe(self._parts.put(part), loop).result()
            except (RuntimeError, asyncio.CancelledError):  # the loop has ended
                return

    async def _read_lines(self) -> AsyncIterator[str]:
        buffer = bytearray()
        while part := await self._parts.get():
            *lines, rest = part.split(b"\n")
            for line in lines:
                yield (bytes(buffer) + line).decode(errors="replace")
                buffer.clear()
            buffer += rest
            if len(buffer) > MAX_LINE:
                return
        if buffer:
            yield bytes(buffer).decode(errors="replace")
