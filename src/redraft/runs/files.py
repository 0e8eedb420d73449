"""The files of a run beside its journal: the list of unusable rows, and a watch over the output and
the journal.

The operating system does not notify a process whose open file is deleted, moved or replaced, so a
run compares the device and inode of its files with those behind their paths once a second. The
output itself is in `redraft.tables.writers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BufferedWriter, TextIOWrapper
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Any, Literal, NamedTuple

from ..errors import StoreError
from ..loop.engine import cancel_and_wait
from ..storage.journal import Journal
from ..storage.secure_files import PUBLIC, open_following_links
from ..tables.readers import BadRow
from .report import BatchReport
from .scheduler import Scheduler

INTERVAL = 1.0  # seconds between two checks
# closing such a handle does not release SQLite's locks; only Linux has it
HANDLE = getattr(os, "O_PATH", 0)


class NullOutput:
    """The output of a run without one: the results are only in the journal."""

    pending_count = 0
    is_in_place = False

    def put(self, n: int, values: Mapping[str, Any]) -> None:
        """Do nothing."""

    def keep(self) -> None:
        """Do nothing."""

    def close(self, *, complete: bool) -> None:
        """Do nothing."""


@dataclass
class RejectsFile:
    """The file of unusable rows, created when the first one is written. With an empty path nothing
    is written.
    """

    path: str
    _file: IO[str] | None = None

    def put(self, bad: BadRow) -> None:
        """Write where a row is and why it cannot be used. Raises StoreError."""
        if not self.path:
            return
        try:
            if self._file is None:
                file = open_following_links(
                    self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC
                )
                self._file = TextIOWrapper(BufferedWriter(file), "utf-8", line_buffering=True)
            self._file.write(json.dumps({"location": bad.location, "message": bad.message}) + "\n")
        except OSError as error:
            raise StoreError(
                f"errors file {self.path!r} cannot be written: {error.strerror}"
            ) from error

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return self._file is None

    def close(self) -> None:
        if self._file:
            with suppress(OSError):  # `put` has reported it
                self._file.close()


class FileLoss(NamedTuple):
    """A file that is no longer at its path. `label` is "output", "journal" or "output's folder";
    `moved_to` "" if unknown.
    """

    label: str
    path: Path
    change: Literal["deleted", "moved", "replaced"]
    moved_to: str = ""

    def __str__(self) -> str:
        how = "replaced by another file" if self.change == "replaced" else self.change
        target = f" to {self.moved_to!r}" if self.moved_to else ""
        return f"{self.label} {str(self.path)!r} was {how}{target} during the run"


@dataclass
class WatchedFile:
    """A file or folder, with its identity when it was added. `handle` stays valid if it is moved;
    None if the system has none.
    """

    label: str
    path: Path
    identity: tuple[int, int]
    handle: int | None

    @classmethod
    def open(cls, label: str, path: Path) -> WatchedFile | None:
        """Return a file or folder to watch; None if the path is neither."""
        try:
            status = path.stat()
        except OSError:
            return None
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return None
        handle = None
        if HANDLE:
            with suppress(OSError):
                handle = os.open(path, HANDLE | os.O_CLOEXEC)
        return cls(label, path, (status.st_dev, status.st_ino), handle)

    def loss(self) -> FileLoss | None:
        """Return what has happened to the file; None if it is still at its path."""
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            change: Literal["deleted", "replaced"] = "deleted"
        except OSError:  # the file system fails: writing reports that
            return None
        else:
            if (status.st_dev, status.st_ino) == self.identity:
                return None
            change = "replaced"
        if self.handle is not None:
            with suppress(OSError):
                if os.fstat(self.handle).st_nlink:
                    return FileLoss(self.label, self.path, "moved", _path_of_handle(self.handle))
        return FileLoss(self.label, self.path, change)

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def _path_of_handle(handle: int) -> str:
    """Return the path of an open file; "" if the system does not know it."""
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{handle}").readlink())
    return ""


def create_rescue_file(path: Path) -> Path:
    """Create an empty file that only its owner can read: at `path` if it is free, else beside it,
    else in the folder for temporary files. Return its path. Raises OSError.
    """
    places = [path, *(path.with_name(f"{path.name}.saved{n or ''}") for n in range(100))]
    places += [Path(gettempdir(), f"{path.name}.saved{n or ''}") for n in range(100)]
    last: OSError | None = None
    for place in places:
        try:
            os.close(
                os.open(
                    place,
                    os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0),
                    0o600,
                )
            )
        except OSError as error:
            last = error
        else:
            return place
    raise last or OSError(f"no file can be created for {path}")


@dataclass
class RunFiles:
    """The journal and the output of a run. The run ends with "disk" if one of them is deleted,
    moved or replaced.

    `in_place`: the output is written at its path, not to a temporary file beside it.
    """

    journal: Journal
    output: Path | None
    in_place: bool
    scheduler: Scheduler[Any]
    _watched: list[WatchedFile] = field(default_factory=list)
    _losses: Sequence[FileLoss] = ()

    async def watch_during(
        self, work: Callable[[], Awaitable[None]], each_second: Callable[[], None]
    ) -> None:
        """Do the work, check the files meanwhile, and call `each_second`, which may raise
        StoreError.
        """
        with suppress(StoreError):
            await self.journal.wait_for_commit()
        journal = self.journal.path
        paths = [("journal", journal), ("journal", journal.with_name(f"{journal.name}-wal"))]
        if self.output:
            paths.append(("output's folder", self.output.resolve().parent))
            if self.in_place:
                paths.append(("output", self.output))
        self._watched = [file for label, path in paths if (file := WatchedFile.open(label, path))]
        checks = asyncio.ensure_future(self._check_regularly(each_second))
        try:
            await work()
        finally:
            await cancel_and_wait([checks])

    async def _check_regularly(self, each_second: Callable[[], None]) -> None:
        while not self._losses:
            await asyncio.sleep(INTERVAL)
            with suppress(StoreError):  # the run ends with it
                each_second()
            self._end_run(await asyncio.to_thread(self._find_losses))

    def _find_losses(self) -> list[FileLoss]:
        return [loss for file in self._watched if (loss := file.loss())]

    def check_at_end(self) -> None:
        """Check the files once more, after the output was closed."""
        losses = self._find_losses()
        if (
            not losses
            and self.output
            and not self.scheduler.reason
            and not os.path.lexists(self.output)
        ):
            losses = [FileLoss("output", self.output, "deleted")]
        self._end_run(losses)

    def _end_run(self, losses: Sequence[FileLoss]) -> None:
        """End the run because of lost files, even if it has already ended. The message names a lost
        folder before its files.
        """
        if losses and not self._losses:
            self._losses = losses
            folder = next((loss for loss in losses if loss.label == "output's folder"), None)
            self.scheduler.replace_end("disk", str(folder or losses[0]))

    def with_advice(self, report: BatchReport) -> BatchReport:
        """Return the report with advice about lost files."""
        if not self._losses:
            return report
        advice, is_lost = self._advice()
        if not is_lost:
            advice += " the same command resumes"
        return replace(report, stop_note=f"{report.stop_note}{advice}", journal_lost=is_lost)

    def _advice(self) -> tuple[str, bool]:
        """Return what became of the journal, and whether it is lost. A deleted one is still open,
        so it is saved.
        """
        lost = [loss for loss in self._losses if loss.label == "journal" and loss.change != "moved"]
        path = self.journal.path
        if not lost:
            moved = any(loss.change == "moved" for loss in self._losses)
            return "; move it back, and" if moved else ": everything is in the journal, and", False
        # SQLite's log beside the journal, which is written into the journal when that is closed
        if lost[0].path != path:
            return ": nothing was lost from the journal, and", False
        try:
            place = self._rescue_journal()
        except (OSError, StoreError) as error:
            return f", and it could not be saved ({error}): a new run starts over", True
        if place == path:
            return "; it was written again, and", False
        return f"; its content is in {str(place)!r}: move that to its place, and", False

    def _rescue_journal(self) -> Path:
        """Copy the journal to a new file, and return its path. Raises OSError and StoreError."""
        place = create_rescue_file(self.journal.path)
        try:
            self.journal.copy(place)
        except BaseException:
            place.unlink(missing_ok=True)  # a part of a journal stops a new run
            raise
        return place

    def close(self) -> None:
        """Close the handles of the watched files."""
        for file in self._watched:
            file.close()
        self._watched.clear()
