"""A file that is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from .secure_files import AtomicFile


def write_atomic(path: str | Path, text: str, *, private: bool = False, follow: bool = True) -> None:
    """Write a file so that whoever reads it sees all of the old or all of the new text. Raises OSError.

    `private` and `follow` are those of `Draft`.
    """
    data = text.encode("utf-8", "replace")
    if follow and Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():  # a device or a pipe
        Path(path).write_bytes(data)
        return
    draft = AtomicFile(path, private=private, follow=follow)
    try:
        draft.file.write(data)
        draft.commit()
    finally:
        draft.abort()
