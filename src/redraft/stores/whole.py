"""A file that is there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: str, text: str) -> None:
    """Write a file so that whoever reads it sees all of the old or all of the new text."""
    target = Path(os.path.realpath(path))
    data = text.encode("utf-8", "replace")
    if target.exists() and not target.is_file():  # a device or a pipe
        target.write_bytes(data)
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            draft.chmod(target.stat().st_mode & 0o7777)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
