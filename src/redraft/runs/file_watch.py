"""Whether the files of a run are still where they were opened: the system does not tell a process that its file was deleted.

A file is identified by its device and inode. A check costs a system call for each file, so it is done once a second.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Literal, NamedTuple

from ..core.cancellation import cancel_and_wait
from ..errors import StoreError
from ..storage.journal import Journal
from .report import BatchReport
from .scheduler import Scheduler

INTERVAL = 1.0  # seconds between two checks
HANDLE = getattr(os, "O_PATH", 0)  # closing such a handle does not release SQLite's locks; only Linux has it


class FileLoss(NamedTuple):
    """A file ("output", "journal" ...) that was "deleted", "moved" (to `now`, "" if unknown) or "replaced" by another."""

    what: str
    path: Path
    fate: Literal["deleted", "moved", "replaced"]
    now: str = ""

    def __str__(self) -> str:
        how = "replaced by another file" if self.fate == "replaced" else self.fate
        to = f" to {self.now!r}" if self.now else ""
        return f"{self.what} {str(self.path)!r} was {how}{to} during the run"


@dataclass
class FileWatch:
    """Files and folders, with their identities when they were added."""

    _files: list[_WatchedFile] = field(default_factory=list)

    def add(self, what: str, path: Path) -> None:
        """Watch a file or a folder; one that does not exist, or is something else, is not watched."""
        with suppress(OSError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                self._files.append(_WatchedFile(what, path, (found.st_dev, found.st_ino), _handle(path)))

    def forget(self, what: str) -> None:
        """Stop watching the files of this name."""
        for file in [f for f in self._files if f.what == what]:
            file.close()
            self._files.remove(file)

    def losses(self) -> list[FileLoss]:
        """Return the files that are not where they were."""
        return [loss for file in self._files if (loss := file.loss())]

    def close(self) -> None:
        """Stop watching all files."""
        for file in self._files:
            file.close()
        self._files.clear()


@dataclass
class _WatchedFile:
    what: str
    path: Path
    identity: tuple[int, int]
    handle: int | None

    def loss(self) -> FileLoss | None:
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return self._loss("deleted")
        except OSError:  # the file system fails: writing reports that
            return None
        return None if (found.st_dev, found.st_ino) == self.identity else self._loss("replaced")

    def _loss(self, fate: Literal["deleted", "replaced"]) -> FileLoss:
        if self.handle is not None:
            with suppress(OSError):
                if os.fstat(self.handle).st_nlink:
                    return FileLoss(self.what, self.path, "moved", _current_path(self.handle))
        return FileLoss(self.what, self.path, fate)

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


def _current_path(handle: int) -> str:
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    return ""


def create_rescue_file(path: Path) -> Path:
    """Create an empty file that only its owner can read: at `path` if it is free, else beside it, else among temporary files.

    Raises OSError.
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
    raise last or OSError(f"no file can be created for {path}")


@dataclass
class RunFiles:
    """The journal and the output of a run. If one is deleted, moved or replaced meanwhile, the run ends."""

    journal: Journal
    output: Path | None
    in_place: bool  # whether the output is written at its place, not beside it
    scheduler: Scheduler[Any]
    _watch: FileWatch = field(default_factory=FileWatch)
    _losses: Sequence[FileLoss] = ()

    async def watch_during(self, work: Awaitable[None]) -> None:
        """Do the work, and check the files meanwhile."""
        with suppress(StoreError):
            await self.journal.wait_for_commit()
        self._add_files()
        watching = asyncio.ensure_future(self._check_regularly())
        try:
            await work
        finally:
            await cancel_and_wait([watching])

    def _add_files(self) -> None:
        path = self.journal.path
        self._watch.add("journal", path)
        self._watch.add("journal", path.with_name(f"{path.name}-wal"))
        if self.output:
            self._watch.add("output's folder", self.output.resolve().parent)
            if self.in_place:
                self._watch.add("output", self.output)

    async def _check_regularly(self) -> None:
        while not self._losses:
            await asyncio.sleep(INTERVAL)
            self._end_run(await asyncio.to_thread(self._watch.losses))

    def check_at_end(self) -> None:
        """Check once more, when the output is closed."""
        losses = self._watch.losses()
        if not losses and self.output and not self.scheduler.reason and not os.path.lexists(self.output):
            losses = [FileLoss("output", self.output, "deleted")]
        self._end_run(losses)

    def _end_run(self, losses: Sequence[FileLoss]) -> None:
        """End the run because of lost files, whatever else has ended it; a folder that was moved counts as one loss."""
        if losses and not self._losses:
            self._losses = losses
            folder = next((loss for loss in losses if loss.what == "output's folder"), None)
            self.scheduler.replace_end("disk", str(folder or losses[0]))

    def with_advice(self, report: BatchReport) -> BatchReport:
        """Return the report with what to do about lost files. A deleted journal is written again: it is still open."""
        if not self._losses:
            return report
        deleted = [loss for loss in self._losses if loss.what == "journal" and loss.fate != "moved"]
        path = self.journal.path
        if not deleted:
            moved = any(loss.fate == "moved" for loss in self._losses)
            how = "; move it back, and" if moved else ": everything is in the journal, and"
            return replace(report, message=f"{report.message}{how} the same command resumes")
        if deleted[0].path != path:  # SQLite's file beside it, whose content is written into the journal when that is closed
            return replace(
                report, message=f"{report.message}: everything is in the journal nevertheless, and the same command resumes"
            )
        try:
            place = create_rescue_file(path)
            self.journal.copy(place)
        except (OSError, StoreError) as error:
            return replace(
                report, message=f"{report.message}, and it could not be saved ({error}): a new run starts over", journal_lost=True
            )
        how = "it was written again, and" if place == path else f"its content is in {str(place)!r}: move that to its place, and"
        return replace(report, message=f"{report.message}; {how} the same command resumes")

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()
