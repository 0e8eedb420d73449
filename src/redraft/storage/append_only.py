"""A file of lines that is only ever appended to, by one process at a time.

`kill -9` can tear the last line only; whoever continues the file starts after the last whole one.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path
from typing import Self

from ..errors import StoreError
from .secure_files import open_private, try_lock

READ_BYTES = 2**20  # bytes that are read at a time


class LockedLineFile:
    """Appends lines to `path`, which is locked while it is open: a second process is told so. Raises StoreError.

    `what` is how errors call the file. A new file is for its owner alone. With `resume` a file that is there is continued,
    its torn last line cut off.
    """

    def __init__(self, path: str | Path, label: str, *, resume: bool = False) -> None:
        self.path, self._label = Path(path), label
        try:
            self._file: FileIO = open_private(self.path, os.O_RDWR if resume else os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"{self.name} cannot be written: {error.strerror}") from error
        try:
            if not try_lock(self._file):
                raise StoreError(f"{self.name} is held by another process (this one is {os.getpid()})")
            if resume:
                self._file.truncate(self._file.seek(_complete_lines_end(self._file)))
        except OSError as error:
            self._file.close()
            raise StoreError(f"{self.name} cannot be written: {error.strerror}") from error
        except StoreError:
            self._file.close()
            raise

    @property
    def name(self) -> str:
        return f"{self._label} {str(self.path)!r}"

    @property
    def is_empty(self) -> bool:
        return self._file.tell() == 0

    def write(self, lines: list[str], contents_note: str) -> None:
        """Hand lines to the operating system. `held` says what is in the file already, for the error when it is full."""
        if self._file.closed:
            raise StoreError(f"{self.name} is not open in this process (a forked process must open a file of its own)")
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            taken = self._file.write(data)
        except OSError as error:
            taken, why = 0, error.strerror
        else:
            why = "the disk is full"
        if taken != len(data):
            raise StoreError(f"{self.name} cannot be written: {why}; {contents_note}")

    def close(self) -> None:
        """Close the file and let go of its lock."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _complete_lines_end(file: FileIO) -> int:
    """How many bytes of a file are whole lines."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - READ_BYTES)
        file.seek(start)
        if found := file.read(end - start).rfind(b"\n") + 1:
            return start + found
        end = start
    return 0
