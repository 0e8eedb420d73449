"""Opening and replacing the files that Redraft writes. This module does not know what they hold.

Links that another user put into a folder where everybody may write are not followed. A draft has a name that cannot be guessed
and is locked while it is written, so that the draft of a killed process can be told from one in use. Journals, traces, verdicts
and priors are private to their owner; an output file that the user names follows the umask. Drafts and locks belong to one
process: a forked child closes them. Everything raises OSError.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import IO, Any
from weakref import WeakSet

from ..errors import StoreError
from .paths import data_dir

PRIVATE, PUBLIC = 0o600, 0o666
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe that nobody reads does not block
MAX_LINKS = 40
DRAFT_SUFFIX = re.compile(r"\.[0-9a-f]{16}\.part")


def resolve_path(path: str | Path) -> Path:
    """Return the file that a path means, links followed. Raises PermissionError for a link of another user in a shared folder."""
    whole = Path.cwd() / path
    here, left, links = Path(whole.anchor), deque(whole.parts[1:]), 0
    while left:
        part = left.popleft()
        step = here.parent if part == ".." else here / part
        if not step.is_symlink():
            here = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if is_untrusted(step):
            raise PermissionError(errno.EACCES, f"{str(step)!r} is a link of another user in a folder where everybody may write")
        target = step.readlink()
        here = Path(target.anchor) if target.is_absolute() else here
        left.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return here


def is_untrusted(path: Path) -> bool:
    """Return whether a file or link belongs to another user, in a folder where everybody may write."""
    if not hasattr(os, "geteuid"):
        return False
    found, folder = path.lstat(), path.parent.stat()
    return bool(folder.st_mode & stat.S_IWOTH) and found.st_uid not in {os.geteuid(), folder.st_uid}


def create_file(path: Path, mode: int = PRIVATE) -> FileIO:
    """Create a file for reading and writing. Raises FileExistsError, also for a link."""
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def open_following_links(path: str | Path, flags: int, mode: int = PRIVATE) -> FileIO:
    """Open a file with `flags` of `os.open`, following the user's own links. `mode` is for a new file."""
    return open_file(resolve_path(path), flags, mode)


def open_private(path: str | Path, flags: int) -> FileIO:
    """Open a private file: no pipe, and no file that another user put into a folder where everybody may write."""
    target = resolve_path(path)
    file = open_file(target, flags | NON_BLOCKING, PRIVATE)
    try:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISCHR(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if stat.S_ISREG(found.st_mode) and is_untrusted(target):
            raise PermissionError(errno.EACCES, "it belongs to another user, in a folder where everybody may write")
    except BaseException:
        file.close()
        raise
    return file


def open_file(path: Path, flags: int, mode: int = PRIVATE) -> FileIO:
    """Open a file with flags of `os.open`; a link is an error."""
    access = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}[flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)]
    number = os.open(path, flags | OPEN_FLAGS | NO_FOLLOW, mode)
    try:
        return FileIO(number, "ab" if flags & os.O_APPEND else access)
    except BaseException:
        os.close(number)
        raise


def make_folder(path: Path) -> None:
    """Create a folder and its parents; those in the user's data folder are private to their owner."""
    with suppress(StoreError):
        if path.absolute().is_relative_to(data_dir().absolute()):
            for folder in reversed((path, *path.parents)):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(parents=True, exist_ok=True)


def try_lock(file: FileIO | int) -> bool:
    """Lock an open file for this process; return False if another has the lock. Always True on Windows, which has no such lock."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if isinstance(file, FileIO):
        _process_files.add(file)
    return True


_process_files: WeakSet[Any] = WeakSet()
"""Locked files, and files with buffered data."""


def _close_after_fork() -> None:
    """Close files in a forked child: its lock would outlast the parent's, and buffered data would be written twice."""
    for file in list(_process_files):
        getattr(file, "raw", file).close()
    _process_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)


def is_file_at(file: FileIO | int, path: Path) -> bool:
    """Return whether an open file is still the one at a path: another process may have removed or replaced it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file if isinstance(file, int) else file.fileno()), path.lstat())
    return False


class AtomicFile:
    """A hidden draft beside the file that `path` means, which it replaces on `commit`.

    A replaced file keeps its mode; a new one follows the umask, or with `private` is readable by its owner only. Without `follow` a
    link at `path` is replaced itself. Drafts that killed processes left are removed.
    """

    def __init__(self, path: str | Path, *, private: bool = False, follow: bool = True, buffering: int = 2**20) -> None:
        whole = Path(os.path.abspath(path))  # noqa: PTH100  (without links followed)
        self._target = resolve_path(path) if follow else resolve_path(whole.parent) / whole.name
        if self._target.is_dir() and not self._target.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._mode = _existing_mode(self._target)
        remove_stale_drafts(self._target)
        self.path, raw = create_draft(self._target, PUBLIC if self._mode is None and not private else PRIVATE)
        self.file: IO[bytes] = os.fdopen(os.dup(raw.fileno()), "wb", buffering)
        self._lock, self._committed = raw, False
        self._process = os.getpid()
        _process_files.add(self.file)

    def commit(self) -> None:
        """Replace the file. A reader sees all of the old or all of the new content."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if self._mode is not None:
            self.path.chmod(self._mode)
        if os.name == "nt":  # an open file cannot be renamed there
            self._lock.close()
        self.path.replace(self._target)
        self._committed = True
        self._lock.close()

    def abort(self) -> None:
        """Remove the draft, unless it was committed. Does nothing in a forked child."""
        if self._process != os.getpid():
            return
        with suppress(OSError):
            self.file.close()
        if not self._committed:
            self._lock.close()
            self.path.unlink(missing_ok=True)


def write_atomic(path: str | Path, text: str, *, private: bool = False, follow: bool = True) -> None:
    """Write a text file so that a reader sees all of the old or all of the new text. Raises OSError.

    `private` and `follow` are those of `AtomicFile`. A device or a pipe is written to directly.
    """
    data = text.encode("utf-8", "replace")
    if follow and Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        Path(path).write_bytes(data)
        return
    draft = AtomicFile(path, private=private, follow=follow)
    try:
        draft.file.write(data)
        draft.commit()
    finally:
        draft.abort()


def _existing_mode(path: Path) -> int | None:
    """Return the mode of a regular file; None if there is none."""
    with suppress(FileNotFoundError):
        found = path.lstat().st_mode
        return found & 0o777 if stat.S_ISREG(found) else None
    return None


def create_draft(target: Path, mode: int) -> tuple[Path, FileIO]:
    """Create a locked file with a name that cannot be guessed."""
    while True:
        path = target.with_name(_draft_name(target))
        file = create_file(path, mode)
        with suppress(OSError):  # a file system without locks
            if not try_lock(file) or not is_file_at(file, path):  # another process took it for a stale one
                file.close()
                continue
        return path, file


def remove_stale_drafts(target: Path) -> None:
    """Remove drafts of a file that no process writes to."""
    start = f".{target.name}"
    with suppress(OSError):
        for entry in os.scandir(target.parent):
            if entry.name.startswith(start) and DRAFT_SUFFIX.fullmatch(entry.name[len(start) :]):
                with suppress(OSError):
                    _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    if os.name == "nt":  # there is no lock that tells whether it is in use
        return
    number = os.open(path, os.O_RDONLY | NON_BLOCKING | NO_FOLLOW | OPEN_FLAGS)
    try:
        found = os.fstat(number)
        if found.st_uid == os.geteuid() and try_lock(number) and is_file_at(number, path):
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(path)
            elif stat.S_ISREG(found.st_mode):
                path.unlink()
    finally:
        os.close(number)


def _draft_name(target: Path) -> str:
    return f".{target.name}.{token_hex(8)}.part"


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A hidden folder beside a file, for drafts that are moved into place together; removed at the end with its content."""
    remove_stale_drafts(target)
    folder = target.with_name(_draft_name(target))
    folder.mkdir(mode=0o700)
    process = os.getpid()
    lock = os.open(folder, os.O_RDONLY | NO_FOLLOW | OPEN_FLAGS) if os.name != "nt" else None
    try:
        if lock is not None:
            with suppress(OSError):
                try_lock(lock)
        yield folder
    finally:
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
