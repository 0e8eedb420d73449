"""Opening, locking and replacing the files that Redraft writes. This module does not know what they
hold.

Links of another user in a world-writable folder are not followed. A draft has a name that cannot be
guessed and is locked while it is written, so that a draft in use can be distinguished from one that
a killed process left. Journals, traces, verdicts and priors are private to their owner; an output
file that the user names follows the umask. Drafts and locks belong to one process: a forked child
closes them. Functions raise OSError unless they say otherwise.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import IO, Any
from weakref import WeakSet

from ..errors import StoreError, StoreLockedError, WrongFileError

PRIVATE, PUBLIC = 0o600, 0o666
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)  # opening a pipe without a reader does not block
MAX_LINKS = 40
DRAFT_SUFFIX = re.compile(r"\.[0-9a-f]{16}\.part")
SIGNATURE_FIELDS = ("pid", "host", "command", "since")
MAX_LOCK_BYTES = 10_000  # bytes that are read of a lock file, which is far smaller
NO_HARD_LINKS = {
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EMLINK,
    errno.EINVAL,
}
"""Errors by which file systems and systems say that they have no hard links (EACCES: Android,
EINVAL: FAT on Windows).
"""


def resolve_path(path: str | Path) -> Path:
    """Return a path with its links resolved. Raises PermissionError for a link of another user in a
    world-writable folder.
    """
    absolute = Path.cwd() / path
    resolved, remaining, links = Path(absolute.anchor), deque(absolute.parts[1:]), 0
    while remaining:
        part = remaining.popleft()
        step = resolved.parent if part == ".." else resolved / part
        if not step.is_symlink():
            resolved = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if is_untrusted(step):
            raise PermissionError(
                errno.EACCES, f"{str(step)!r} is a link of another user in a world-writable folder"
            )
        target = step.readlink()
        resolved = Path(target.anchor) if target.is_absolute() else resolved
        remaining.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return resolved


def is_untrusted(path: Path) -> bool:
    """Return whether a file or link belongs to another user, in a world-writable folder of neither
    user.
    """
    if not hasattr(os, "geteuid"):
        return False
    status, folder = path.lstat(), path.parent.stat()
    return bool(folder.st_mode & stat.S_IWOTH) and status.st_uid not in {
        os.geteuid(),
        folder.st_uid,
    }


def create_file(path: Path, mode: int = PRIVATE) -> FileIO:
    """Create a file for reading and writing. Raises FileExistsError, also for a link."""
    return open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def open_following_links(path: str | Path, flags: int, mode: int = PRIVATE) -> FileIO:
    """Open a file with `flags` of `os.open`, following the user's own links. `mode` is for a new
    file.
    """
    return open_file(resolve_path(path), flags, mode)


def open_private(path: str | Path, flags: int) -> FileIO:
    """Open a private file. Raises OSError for a pipe, and for a file of another user in a
    world-writable folder.
    """
    target = resolve_path(path)
    file = open_file(target, flags | NON_BLOCKING, PRIVATE)
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISCHR(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if stat.S_ISREG(status.st_mode) and is_untrusted(target):
            raise PermissionError(
                errno.EACCES, "it belongs to another user, in a world-writable folder"
            )
    except BaseException:
        file.close()
        raise
    return file


def open_file(path: Path, flags: int, mode: int = PRIVATE) -> FileIO:
    """Open a file with `flags` of `os.open`. Raises OSError for a link."""
    access = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}[
        flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    ]
    number = os.open(path, flags | OPEN_FLAGS | NO_FOLLOW, mode)
    try:
        return FileIO(number, "ab" if flags & os.O_APPEND else access)
    except BaseException:
        os.close(number)
        raise


def write_whole(file: FileIO, data: bytes) -> None:
    """Write to an unbuffered file. Raises OSError also if only a part could be written, as when the
    disk is nearly full.
    """
    if file.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_error(name: str, error: OSError) -> StoreError:
    """Return the error for a file that cannot be written; it is a WrongFileError if no file can be
    at that place.
    """
    kind = (
        WrongFileError if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR} else StoreError
    )
    return kind(f"{name} cannot be written: {error.strerror}")


def data_dir() -> Path:
    """Return REDRAFT_HOME, or the system's data folder for the user. Raises StoreError if there is
    neither.
    """
    return _user_folder("data", "XDG_DATA_HOME", ".local/share")


def cards_folder(folder: str | Path | None) -> Path:
    """Return the folder of validation cards: the given one, or the user's own. Raises StoreError if
    there is neither.
    """
    return Path(folder) if folder else data_dir() / "cards"


def cache_dir() -> Path:
    """Return the folder for files that can be made again: in REDRAFT_HOME, or the system's cache
    folder for the user.

    Raises StoreError if there is neither.
    """
    return _user_folder("cache", "XDG_CACHE_HOME", ".cache", in_home="cache")


def _user_folder(kind: str, variable: str, default: str, in_home: str = "") -> Path:
    """Return REDRAFT_HOME, or a folder in it; else the folder that a variable or the system names.

    `default` is the place in the folder of the user.
    """
    if own := os.environ.get("REDRAFT_HOME"):
        return Path(own, in_home)
    base = os.environ.get(variable) or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(base) if base else Path.home() / default) / "redraft"
    except RuntimeError as error:
        raise StoreError(
            f"the user has no {kind} folder ({error}): name one in REDRAFT_HOME"
        ) from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents; those in the user's data folder are private to their
    owner.
    """
    with suppress(StoreError):
        if path.absolute().is_relative_to(data_dir().absolute()):
            for folder in reversed((path, *path.parents)):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(parents=True, exist_ok=True)


def try_lock(file: FileIO | int) -> bool:
    """Lock an open file for this process; return False if another has the lock. Always True on
    Windows, which has no such lock.
    """
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
    """Close files in a forked child: its locks would outlast the parent's, and buffered data would
    be written twice.
    """
    for file in list(_process_files):
        getattr(file, "raw", file).close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)


def is_file_at(file: FileIO | int, path: Path) -> bool:
    """Return whether an open file is still the one at a path: another process may have removed or
    replaced it.
    """
    with suppress(FileNotFoundError):
        return os.path.samestat(
            os.fstat(file if isinstance(file, int) else file.fileno()), path.lstat()
        )
    return False


class AtomicFile:
    """A hidden draft beside the file at `path` (links resolved), which it replaces on `commit`.

    A replaced file keeps its mode; a new one follows the umask, or with `private` is readable by
    its owner only. Without `follow` a link at `path` is itself replaced. Drafts that killed
    processes left are removed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        private: bool = False,
        follow: bool = True,
        buffering: int = 2**20,
    ) -> None:
        absolute = Path(os.path.abspath(path))  # noqa: PTH100  (Path.resolve follows links)
        self._target = (
            resolve_path(path) if follow else resolve_path(absolute.parent) / absolute.name
        )
        if self._target.is_dir() and not self._target.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._mode = _existing_mode(self._target)
        remove_stale_drafts(self._target)
        self.path, self._lock = create_draft(
            self._target, PUBLIC if self._mode is None and not private else PRIVATE
        )
        try:
            self.file: IO[bytes] = os.fdopen(os.dup(self._lock.fileno()), "wb", buffering)
        except OSError:  # such as too many open files
            self.path.unlink()
            self._lock.close()
            raise
        self._committed = False
        self._process = os.getpid()
        _process_files.add(self.file)

    def commit(self) -> None:
        """Replace the file. A reader sees all of the old or all of the new content."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if self._mode is not None:
            set_mode(self.path, self._mode)
        if os.name == "nt":  # Windows cannot rename an open file
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


def write_atomic(
    path: str | Path, text: str, *, private: bool = False, follow: bool = True
) -> None:
    """Write a text file so that a reader sees all of the old or all of the new text. Raises
    OSError.

    `private` and `follow` are as in `AtomicFile`. A device or a pipe is written to directly.
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


def set_mode(path: Path, mode: int) -> None:
    """Give a file a mode, if it has another one: a file system without modes may refuse even the
    same one.
    """
    if path.stat().st_mode & 0o777 != mode:
        path.chmod(mode)


def _existing_mode(path: Path) -> int | None:
    """Return the mode of a regular file; None if there is none."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        return mode & 0o777 if stat.S_ISREG(mode) else None
    return None


def create_draft(target: Path, mode: int) -> tuple[Path, FileIO]:
    """Create a locked file with a name that cannot be guessed."""
    while True:
        path = target.with_name(_draft_name(target))
        file = create_file(path, mode)
        with suppress(OSError):  # a file system without locks
            # another process removed it as stale
            if not try_lock(file) or not is_file_at(file, path):
                file.close()
                continue
        return path, file


def remove_stale_drafts(target: Path) -> None:
    """Remove drafts of a file that no process writes to."""
    start = f".{target.name}"
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(start) and DRAFT_SUFFIX.fullmatch(entry.name[len(start) :]):
                with suppress(OSError):
                    _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    if os.name == "nt":  # no lock shows whether it is in use
        return
    number = os.open(path, os.O_RDONLY | NON_BLOCKING | NO_FOLLOW | OPEN_FLAGS)
    try:
        status = os.fstat(number)
        if status.st_uid == os.geteuid() and try_lock(number) and is_file_at(number, path):
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(path)
            elif stat.S_ISREG(status.st_mode):
                path.unlink()
    finally:
        os.close(number)


def _draft_name(target: Path) -> str:
    return f".{target.name}.{token_hex(8)}.part"


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """Create a hidden folder beside a file, for drafts that are moved into place together; remove
    it at the end.
    """
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


# --- locks of paths
# ----------------------------------------------------------------------------


class PathLock:
    """A lock on the file at `path` (links resolved) for one process at a time: a locked file beside
    it, NAME.lock.

    The lock file names its holder. The operating system releases the lock when the process ends; a
    lock file that is left then is removed. The file gets its name after it was signed and locked;
    only where there are no hard links it is empty for a moment. So an empty file that nobody holds
    is removed, too, and another unsigned file belongs to another program and is not touched. Raises
    StoreError that names the holder if another process has the lock, and for such a foreign file.
    `label` names the file in errors.
    """

    def __init__(self, path: Path, label: str) -> None:
        self.path, self._label = Path(f"{path}.lock"), label
        try:
            target = resolve_path(path)
            self.path = target.with_name(f"{target.name}.lock")
            self._file = self._acquire()
        except OSError as error:
            raise StoreError(
                f"{label} cannot be locked: {str(self.path)!r}: {error.strerror}"
            ) from error

    def _acquire(self) -> FileIO:
        while True:
            if file := self._create():
                return file
            self._remove_stale()

    def _create(self) -> FileIO | None:
        """Return a new lock; None if the lock file exists."""
        remove_stale_drafts(self.path)
        draft, file = create_draft(self.path, PRIVATE)
        try:
            write_whole(file, _signature())
            os.link(draft, self.path)
        except OSError as error:
            file.close()
            if error.errno in NO_HARD_LINKS:
                return self._create_in_place()
            if isinstance(error, FileExistsError):
                return None
            raise
        finally:
            draft.unlink(missing_ok=True)
        return file

    def _create_in_place(self) -> FileIO | None:
        """Return a new lock, whose file is empty for a moment; None if the lock file exists, or was
        taken for a stale one.
        """
        try:
            file = create_file(self.path)
        except FileExistsError:
            return None
        try:
            if try_lock(file) and is_file_at(file, self.path):
                write_whole(file, _signature())
                return file
        except OSError:
            with suppress(OSError):
                self.path.unlink()
            file.close()
            raise
        file.close()
        return None

    def _remove_stale(self) -> None:
        """Remove the lock file of a process that has ended. Raises StoreError if the lock is held,
        and for a foreign file.
        """
        try:
            if self.path.is_symlink() or is_untrusted(self.path):
                raise self._foreign_lock_error()
            file = open_file(self.path, os.O_RDWR | NON_BLOCKING)
        except FileNotFoundError:  # it was released
            return
        with file:
            signature = self._read_signature(file)
            if not try_lock(file):
                holder = _holder_text(signature) if signature else "another process"
                raise StoreLockedError(
                    f"{self._label} is held by {holder}: wait until it ends, or name another"
                )
            if is_file_at(file, self.path):
                self.path.unlink()

    def _read_signature(self, file: FileIO) -> dict[str, Any]:
        """Return the signature in a lock file; {} if it is empty. Raises StoreError for a foreign
        file.
        """
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            with suppress(ValueError, RecursionError):
                text = file.read(MAX_LOCK_BYTES)
                data = json.loads(text) if text else {}
                if not text or (
                    isinstance(data, dict) and sorted(data) == sorted(SIGNATURE_FIELDS)
                ):
                    return data
        raise self._foreign_lock_error()

    def _foreign_lock_error(self) -> StoreError:
        return StoreError(
            f"{self._label} cannot be locked: {str(self.path)!r} exists and is not a lock of "
            "Redraft; it was left unchanged: name another file, or move that one away"
        )

    def close(self) -> None:
        """Release the lock."""
        if not self._file.closed:
            with suppress(OSError):
                if is_file_at(self._file, self.path):
                    self.path.unlink()
            self._file.close()


def _signature() -> bytes:
    values = (
        os.getpid(),
        socket.gethostname(),
        _command(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return json.dumps(dict(zip(SIGNATURE_FIELDS, values, strict=True))).encode()


def _command() -> str:
    """Return the program and its subcommand. Later arguments may hold secrets."""
    return (
        " ".join((Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if word.isalpha())))
        if sys.argv
        else ""
    )


def _holder_text(signature: dict[str, Any]) -> str:
    pid, host, command, since = (signature[name] for name in SIGNATURE_FIELDS)
    who = (
        "this process"
        if (pid, host) == (os.getpid(), socket.gethostname())
        else f"process {pid} on {host}"
    )
    return f"{who} ({command}, since {since})"
