"""How the files that we write are opened. What they hold is not known here.

A link that another user put into a folder where everybody may write is not followed. A draft has a name that cannot be
guessed and is locked while it is written, so that one which a killed process left is told from one in use. What we keep
for ourselves (journals, traces, verdicts, priors) is for its owner alone; a file that the user names as output follows
the umask. Drafts and locks are of one process: a forked child has them closed. Everything raises OSError.
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
from ..small_files import is_named_stream
from .paths import data_dir

PRIVATE, PUBLIC = 0o600, 0o666
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)  # a pipe that nobody reads does not hold us up
MAX_LINKS = 40
DRAFT_SUFFIX = re.compile(r"\.[0-9a-f]{16}\.part")


def resolve_path(path: str | Path) -> Path:
    """The file that a path means, links followed; but for those of another user in a folder where everybody may write."""
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
    """Whether what stands at a path, a link itself, is another user's, in a folder where everybody may write."""
    if not hasattr(os, "geteuid"):
        return False
    found, folder = path.lstat(), path.parent.stat()
    return bool(folder.st_mode & stat.S_IWOTH) and found.st_uid not in {os.geteuid(), folder.st_uid}


def create_file(path: Path, mode: int = PRIVATE) -> FileIO:
    """A file that was not there, to read and write. A link that stands there is never followed."""
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def open_following_links(path: str | Path, flags: int, mode: int = PRIVATE) -> FileIO:
    """A file that stays, opened with `flags` of `os.open`; the user's own links are followed. `mode` is that of a new one."""
    return open_file(resolve_path(path), flags, mode)


def open_private(path: str | Path, flags: int) -> FileIO:
    """The same for what is for our eyes: not a pipe, and no file that another user put where everybody may write."""
    target = resolve_path(path)
    file = open_file(target, flags | NON_BLOCKING, PRIVATE)
    try:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISCHR(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        if stat.S_ISREG(found.st_mode) and is_untrusted(target):
            raise PermissionError(errno.EACCES, "it belongs to another user, in a folder where everybody may write")
    except BaseException:
        file.close()
        raise
    return file


def open_regular(path: str | Path, *, streams: bool = False) -> FileIO:
    """A file to read, that is one: reading a pipe or a device may have no end.

    With `streams` one that was named in /dev or /proc is read all the same, as a shell names `<(command)`.
    """
    file = open_file(Path(path), os.O_RDONLY | NON_BLOCKING, follow=True)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    if streams and is_named_stream(path):
        os.set_blocking(file.fileno(), True)
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no file")


def open_file(path: Path, flags: int, mode: int = PRIVATE, *, follow: bool = False) -> FileIO:
    """A file opened with flags of `os.open`; without `follow` no link."""
    access = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}[flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)]
    number = os.open(path, flags | OPEN_FLAGS | (0 if follow else NO_FOLLOW), mode)
    try:
        return FileIO(number, "ab" if flags & os.O_APPEND else access)
    except BaseException:
        os.close(number)
        raise


def make_folder(path: Path) -> None:
    """A folder with its parents. Within the user's own folder for Redraft each is for its owner alone."""
    with suppress(StoreError):
        if path.absolute().is_relative_to(data_dir().absolute()):
            for folder in reversed((path, *path.parents)):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(parents=True, exist_ok=True)


def try_lock(file: FileIO | int) -> bool:
    """Lock an open file for this process; False where another has it. On Windows, which has no such lock, always True."""
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
"""Locked files, and what is buffered for them."""


def _close_after_fork() -> None:
    """In a forked child: a lock held here would outlast the parent's, and what is buffered would be written twice."""
    for file in list(_process_files):
        getattr(file, "raw", file).close()
    _process_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)


def is_file_at(file: FileIO | int, path: Path) -> bool:
    """Whether an open file is the one at a path: another process may have removed or replaced it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file if isinstance(file, int) else file.fileno()), path.lstat())
    return False


class AtomicFile:
    """A hidden file beside the one that `path` means, which takes its place when it is published.

    A file that is replaced keeps its mode; a new one follows the umask, or with `private` is for its owner alone. Without
    `follow` a link at `path` is replaced itself. What killed processes left of earlier drafts is removed.
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
        """Give it its name. Whoever reads that name sees all of the old or all of the new file."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if self._mode is not None:
            self.path.chmod(self._mode)
        if os.name == "nt":  # where a file that is open cannot be renamed
            self._lock.close()
        self.path.replace(self._target)
        self._committed = True
        self._lock.close()

    def abort(self) -> None:
        """Remove it, unless it was published. A forked child leaves it to the process that writes it."""
        if self._process != os.getpid():
            return
        with suppress(OSError):
            self.file.close()
        if not self._committed:
            self._lock.close()
            self.path.unlink(missing_ok=True)


def _existing_mode(path: Path) -> int | None:
    """The mode of a file that stays the same when it is replaced; None where there is no file."""
    with suppress(FileNotFoundError):
        found = path.lstat().st_mode
        return found & 0o777 if stat.S_ISREG(found) else None
    return None


def create_draft(target: Path, mode: int) -> tuple[Path, FileIO]:
    """A new file, locked, whose name cannot be guessed."""
    while True:
        path = target.with_name(_draft_name(target))
        file = create_file(path, mode)
        with suppress(OSError):  # a file system without locks
            if not try_lock(file) or not is_file_at(file, path):  # another process took it for one that was left
                file.close()
                continue
        return path, file


def remove_stale_drafts(target: Path) -> None:
    """Remove drafts of a file that no process writes any more."""
    start = f".{target.name}"
    with suppress(OSError):
        for entry in os.scandir(target.parent):
            if entry.name.startswith(start) and DRAFT_SUFFIX.fullmatch(entry.name[len(start) :]):
                with suppress(OSError):
                    _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    if os.name == "nt":  # no lock tells whether it is in use
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
    """A hidden folder beside a file, for drafts that take their places together; at the end it is removed with what is in it."""
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
