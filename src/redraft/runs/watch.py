"""Whether the files of a run are still where they were opened: who writes to a deleted file is not told by the system.

A file is known by its device and inode. Looking costs a system call a file, so it is done now and then, not for every row.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Literal, NamedTuple

HANDLE = getattr(os, "O_PATH", 0)  # a handle whose closing does not let go of SQLite's locks; only Linux has it


class Loss(NamedTuple):
    """What became of a file: "output", "journal" ...; "deleted", "moved" (`now` says where it is, "" where that is not known) or
    "replaced" by another.
    """

    what: str
    path: Path
    fate: Literal["deleted", "moved", "replaced"]
    now: str = ""

    def __str__(self) -> str:
        said = "replaced by another file" if self.fate == "replaced" else self.fate
        to = f" to {self.now!r}" if self.now else ""
        return f"{self.what} {str(self.path)!r} was {said}{to} while the run was going on"


@dataclass
class Watch:
    """Files and folders, and what they were when they were added."""

    _files: list[_File] = field(default_factory=list)

    def add(self, what: str, path: Path) -> None:
        """From now on look whether it is there; nothing where it is no file and no folder, or is not there yet."""
        with suppress(OSError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                self._files.append(_File(what, path, (found.st_dev, found.st_ino), _handle(path)))

    def forget(self, what: str) -> None:
        """Look no more after the files of this name."""
        for file in [f for f in self._files if f.what == what]:
            file.close()
            self._files.remove(file)

    def losses(self) -> list[Loss]:
        """Those that are not at their place any more."""
        return [loss for file in self._files if (loss := file.loss())]

    def close(self) -> None:
        """Let go of all."""
        for file in self._files:
            file.close()
        self._files.clear()


@dataclass
class _File:
    what: str
    path: Path
    identity: tuple[int, int]
    handle: int | None

    def loss(self) -> Loss | None:
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return self._gone("deleted")
        except OSError:  # a file system in trouble: whoever writes is told
            return None
        return None if (found.st_dev, found.st_ino) == self.identity else self._gone("replaced")

    def _gone(self, fate: Literal["deleted", "replaced"]) -> Loss:
        if self.handle is not None:
            with suppress(OSError):
                if os.fstat(self.handle).st_nlink:
                    return Loss(self.what, self.path, "moved", _place_of(self.handle))
        return Loss(self.what, self.path, fate)

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def _handle(path: Path) -> int | None:
    if not HANDLE:
        return None
    with suppress(OSError):
        return os.open(path, HANDLE | os.O_CLOEXEC)
    return None


def _place_of(handle: int) -> str:
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    return ""


def free_place(path: Path) -> Path:
    """A new, empty file that only its owner can read: at `path` where nothing is there, else beside it, else among the temporary
    files. Raises OSError.
    """
    tries = [path, *(path.with_name(f"{path.name}.saved{n or ''}") for n in range(100))]
    tries += [Path(gettempdir(), f"{path.name}.saved{n or ''}") for n in range(100)]
    last: OSError | None = None
    for place in tries:
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o600))
        except OSError as error:
            last = error
        else:
            return place
    raise last or OSError(f"there is no place for {path}")
