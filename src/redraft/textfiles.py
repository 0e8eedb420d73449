"""Small files: settings, rubrics, schemas. Whoever wrote them, reading one takes bounded time and memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST = 4 * 1024 * 1024  # bytes of one file


def small_text(path: str | Path, most: int = MOST) -> str:
    """The UTF-8 text of a file of at most `most` bytes. Raises OSError, and ValueError for what is larger or no UTF-8."""
    return small_bytes(path, most).decode("utf-8")


def small_bytes(path: str | Path, most: int = MOST) -> bytes:
    """What a file of at most `most` bytes holds. Raises OSError, and ValueError for a larger one."""
    with Path(path).open("rb") as file:
        return _limited(file.read(most + 1), most)


def regular_bytes(path: Path, most: int = MOST) -> bytes:
    """The same of a regular file alone: a pipe or a device raises ValueError, and is not waited for."""
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        return _limited(file.read(most + 1), most)


def _limited(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return data
