"""A lock for one process at a time: a locked file beside another, which names its holder.

The operating system releases the lock when the process ends; a lock file that is left then is removed. The file gets its name after
it was signed and locked, so an unsigned file of that name belongs to another program and is not touched.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from ..errors import StoreError
from .secure_files import (
    NON_BLOCKING,
    PRIVATE,
    create_draft,
    create_file,
    is_file_at,
    is_untrusted,
    open_file,
    remove_stale_drafts,
    resolve_path,
    try_lock,
)

SIGNATURE_FIELDS = ("pid", "host", "command", "since")
MAX_LOCK_BYTES = 10_000  # bytes that are read of a lock file: far more than one has


class PathLock:
    """Locks the file that `path` means, links followed, by a file beside it that ends in .lock.

    Raises StoreError that names the holder if another process has the lock, and for a file of that name that is no such lock.
    `label` names the file in errors.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path, self._label = Path(f"{path}.lock"), label
        try:
            target = resolve_path(path)
            self.path = target.with_name(f"{target.name}.lock")
            self._file = self._acquire()
        except OSError as error:
            raise StoreError(f"{label} cannot be locked: {str(self.path)!r}: {error.strerror}") from error

    def _acquire(self) -> FileIO:
        while True:
            if file := self._create():
                return file
            self._remove_stale()

    def _create(self) -> FileIO | None:
        """Return a new lock; None if there is one already."""
        remove_stale_drafts(self.path)
        draft, file = create_draft(self.path, PRIVATE)
        try:
            file.write(_signature())
            os.link(draft, self.path)
        except FileExistsError:
            file.close()
            return None
        except OSError:  # a file system without hard links: the lock is unsigned for a moment
            file.close()
            return self._create_in_place()
        finally:
            draft.unlink(missing_ok=True)
        return file

    def _create_in_place(self) -> FileIO | None:
        try:
            file = create_file(self.path)
        except FileExistsError:
            return None
        try_lock(file)
        file.write(_signature())
        return file

    def _remove_stale(self) -> None:
        """Remove a lock whose holder has ended. Raises StoreError for one that is held, and for a foreign file."""
        try:
            if self.path.is_symlink() or is_untrusted(self.path):
                raise self._foreign_lock_error()
            file = open_file(self.path, os.O_RDWR | NON_BLOCKING)
        except FileNotFoundError:  # it was released
            return
        with file:
            signature = self._read_signature(file)
            if not try_lock(file):
                raise StoreError(f"{self._label} is held by {_holder_text(signature)}: wait for its end, or name another file")
            if is_file_at(file, self.path):
                self.path.unlink()

    def _read_signature(self, file: FileIO) -> dict[str, Any]:
        """Return who holds a lock. Raises StoreError for a foreign file."""
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            with suppress(ValueError, RecursionError):
                data = json.loads(file.read(MAX_LOCK_BYTES))
                if isinstance(data, dict) and sorted(data) == sorted(SIGNATURE_FIELDS):
                    return data
        raise self._foreign_lock_error()

    def _foreign_lock_error(self) -> StoreError:
        return StoreError(
            f"{self._label} cannot be locked: {str(self.path)!r} exists and is no lock of Redraft; it was left as it is: name "
            "another file, or move that one away"
        )

    def close(self) -> None:
        """Release the lock."""
        if not self._file.closed:
            with suppress(OSError):
                if is_file_at(self._file, self.path):
                    self.path.unlink()
            self._file.close()


def _signature() -> bytes:
    values = os.getpid(), socket.gethostname(), _command(), datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps(dict(zip(SIGNATURE_FIELDS, values, strict=True))).encode()


def _command() -> str:
    """Return the program and its subcommand. Later arguments may hold secrets."""
    return " ".join((Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if word.isalpha()))) if sys.argv else ""


def _holder_text(signature: dict[str, Any]) -> str:
    pid, host, command, since = (signature[name] for name in SIGNATURE_FIELDS)
    who = "this process" if (pid, host) == (os.getpid(), socket.gethostname()) else f"process {pid} on {host}"
    return f"{who} ({command}, since {since})"
