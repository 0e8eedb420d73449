"""One process at a time: a locked file beside another, which says who holds it.

The lock goes with its process, however that ends; what is left of the file then is no obstacle. It gets its name when it is
signed and locked already, so that a file of that name which is not so signed is another program's and stays as it is.
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
MAX_LOCK_BYTES = 10_000  # bytes in a file: far more than one has


class PathLock:
    """Holds the file that `path` means, links followed, by a lock on a file beside it that ends in .lock.

    Raises StoreError that names the holder where another process has it, and for a file of that name which is no such lock.

    `what` is how errors call the file.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path, self._label = Path(f"{path}.lock"), label
        try:
            held = resolve_path(path)
            self.path = held.with_name(f"{held.name}.lock")
            self._file = self._acquire()
        except OSError as error:
            raise StoreError(f"{label} cannot be locked: {str(self.path)!r}: {error.strerror}") from error

    def _acquire(self) -> FileIO:
        while True:
            if file := self._create():
                return file
            self._remove_stale()

    def _create(self) -> FileIO | None:
        """A new lock; None where there is one."""
        remove_stale_drafts(self.path)
        draft, file = create_draft(self.path, PRIVATE)
        try:
            file.write(_signature())
            os.link(draft, self.path)
        except FileExistsError:
            file.close()
            return None
        except OSError:  # a file system without links to files: for a moment the lock is there and not signed yet
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
        """Remove a lock whose holder has ended. Raises StoreError for one that is held, and for what is none of ours."""
        try:
            if self.path.is_symlink() or is_untrusted(self.path):
                raise self._foreign_lock_error()
            file = open_file(self.path, os.O_RDWR | NON_BLOCKING)
        except FileNotFoundError:  # it was let go
            return
        with file:
            signed = self._read_signature(file)
            if not try_lock(file):
                raise StoreError(f"{self._label} is held by {_holder_text(signed)}: wait for its end, or name another file")
            if is_file_at(file, self.path):
                self.path.unlink()

    def _read_signature(self, file: FileIO) -> dict[str, Any]:
        """What a lock says of its holder. Raises StoreError where it is none of ours."""
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            with suppress(ValueError, RecursionError):
                data = json.loads(file.read(MAX_LOCK_BYTES))
                if isinstance(data, dict) and sorted(data) == sorted(SIGNATURE_FIELDS):
                    return data
        raise self._foreign_lock_error()

    def _foreign_lock_error(self) -> StoreError:
        return StoreError(
            f"{self._label} cannot be locked: {str(self.path)!r} is there and is no lock of Redraft; it was left as it is: name "
            "another file, or move that one away"
        )

    def close(self) -> None:
        """Let go."""
        if not self._file.closed:
            with suppress(OSError):
                if is_file_at(self._file, self.path):
                    self.path.unlink()
            self._file.close()


def _signature() -> bytes:
    values = os.getpid(), socket.gethostname(), _command(), datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps(dict(zip(SIGNATURE_FIELDS, values, strict=True))).encode()


def _command() -> str:
    """The program and its subcommand. What follows may hold secrets."""
    return " ".join((Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if word.isalpha()))) if sys.argv else ""


def _holder_text(signature: dict[str, Any]) -> str:
    pid, host, command, since = (signature[name] for name in SIGNATURE_FIELDS)
    who = "this process" if (pid, host) == (os.getpid(), socket.gethostname()) else f"process {pid} on {host}"
    return f"{who} ({command}, since {since})"
