"""Small files that may be a stranger's, read whole: settings, rubrics, checklists, templates, schemas, cards, attacks.

Their size is bounded, and nothing is waited for: a pipe or a device that stands where a file should is no file, unless it
was named in /dev or /proc, as a shell does with `<(command)`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_BYTES = 8 * 2**20  # bytes
MAX_VALUES = 100_000  # in a file of TOML, YAML or JSON: for `check_bounds`


def read_small_text(path: str | Path, encoding: str = "utf-8") -> str:
    """The text of a file. Raises OSError, and ValueError for what is no file, is too large, or is not encoded so."""
    return read_small_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_small_bytes(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """What a file of at most `most` bytes holds. Raises OSError, and ValueError for what is no file or is larger."""
    with open(path, "rb", opener=_open_nonblocking) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            if not is_named_stream(path):
                raise ValueError("it is a pipe or a device, no file")
            os.set_blocking(file.fileno(), True)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it holds more than {max_bytes:,} bytes")
    return data


def is_named_stream(path: str | Path) -> bool:
    """Whether a path names a pipe or a device as such."""
    return str(path).startswith(("/dev/", "/proc/"))


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
