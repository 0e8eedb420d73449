"""Small files that may be a stranger's, read whole: rubrics, checklists, templates, schemas, cards, attacks.

Their size is bounded, and nothing is waited for: a pipe or a device that stands where a file should is no file, unless it
was named in /dev or /proc, as a shell does with `<(command)`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from reprlib import Repr
from typing import Any

MOST = 8 * 2**20  # bytes
MOST_VALUES = 100_000  # in a file of TOML, YAML or JSON: for `check_bounds`

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 300, 300


def read_small_text(path: str | Path, encoding: str = "utf-8") -> str:
    """The text of a file. Raises OSError, and ValueError for what is no file, is too large, or is not encoded so."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            if not str(path).startswith(("/dev/", "/proc/")):
                raise ValueError("it is a pipe or a device, no file")
            os.set_blocking(file.fileno(), True)
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"it holds more than {MOST >> 20} MiB")
    return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def shown(value: Any) -> str:
    """A foreign value in a complaint: not all of it, and whatever its class does."""
    try:
        return _SHORT.repr(value)
    except Exception:  # noqa: BLE001  (a foreign class may raise anything)
        return f"a {type(value).__name__}"
