"""One process at a time: a locked file beside another, which says who holds it.

The lock goes with its process, however that ends; what is left of the file then is no obstacle.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from ..core.errors import StoreError


class PathLock:
    """Holds the file that `path` means, links followed, by a lock on a file beside it that ends in .lock.

    Raises StoreError that names the holder where another process has it.

    `what` is how errors call the file.
    """

    def __init__(self, path: Path, what: str) -> None:
        held = Path(os.path.realpath(path))
        self.path, self._what = held.with_name(f"{held.name}.lock"), what
        try:
            self._file = self._take()
        except OSError as error:
            raise StoreError(f"{what} cannot be locked: {str(self.path)!r}: {error.strerror}") from error

    def _take(self) -> FileIO:
        while True:
            file = self.path.open("a+b", buffering=0)
            try:
                self._lock(file)
                if self._stands(file):
                    _sign(file)
                    return file
            except BaseException:
                file.close()
                raise
            file.close()

    def _lock(self, file: FileIO) -> None:
        try:
            import fcntl
        except ImportError:  # not on Windows: there a second process is not noticed
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{self._what} is held by {_holder(file)}: wait for its end, or name another file") from error

    def _stands(self, file: FileIO) -> bool:
        """Whether the file is still the one at its path: who held it may have removed it in between."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        return False

    def close(self) -> None:
        """Let go."""
        if not self._file.closed:
            with suppress(OSError):
                self.path.unlink()
            self._file.close()


def _sign(file: FileIO) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    file.truncate(0)
    file.write(json.dumps(dict(pid=os.getpid(), host=socket.gethostname(), command=_command(), since=since)).encode())


def _command() -> str:
    """The program and its subcommand. What follows may hold secrets."""
    return " ".join((Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if word.isalpha()))) if sys.argv else ""


def _holder(file: FileIO) -> str:
    try:
        file.seek(0)
        told = json.loads(file.read(10_000))
        pid, host, command, since = (told[name] for name in ("pid", "host", "command", "since"))
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    who = "this process" if (pid, host) == (os.getpid(), socket.gethostname()) else f"process {pid} on {host}"
    return f"{who} ({command}, since {since})"
