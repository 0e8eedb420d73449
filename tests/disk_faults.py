"""Disks that fail: errors of chosen system calls at a chosen place, and a small disk that fills and
is emptied.
"""

import errno
import io
import os
import resource
import shutil
import signal
import subprocess
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from redraft.storage import secure_files
from require import require_program

CALLS = ("create", "link", "write", "part of a write", "fsync", "rename")
"""What can fail. Of "part of a write" half of the data is written, and the error comes with the
next one, as on a real disk.
"""


@contextmanager
def failing(call, number, *, after=0):
    """Let calls of this process fail with an error number, from the one after `after` on, as on a
    full disk.

    Yields an object whose `count` has all calls.
    """
    fault = SimpleNamespace(count=0)

    def check():
        fault.count += 1
        if fault.count > after:
            raise OSError(number, os.strerror(number))

    def checked(function):
        def replacement(*args, **options):
            check()
            return function(*args, **options)

        return replacement

    def create(path, flags, *args, open=os.open, **options):
        if flags & os.O_CREAT:
            check()
        return open(path, flags, *args, **options)

    class File(io.FileIO):
        def write(self, data):
            fault.count += 1
            if call == "part of a write" and fault.count == after + 1 and len(data) > 1:
                return super().write(bytes(data)[: len(data) // 2])
            if fault.count > after:
                raise OSError(number, os.strerror(number))
            return super().write(data)

    def fdopen(number, mode, buffering):
        return io.BufferedWriter(File(number, mode), buffering)

    with pytest.MonkeyPatch.context() as patch:
        if call == "create":
            patch.setattr(os, "open", create)
        elif call in {"link", "fsync"}:
            patch.setattr(os, call, checked(getattr(os, call)))
        elif call == "rename":
            patch.setattr(os, "replace", checked(os.replace))
        elif call in {"write", "part of a write"}:
            patch.setattr(secure_files, "FileIO", File)
            patch.setattr(os, "fdopen", fdopen)
        yield fault


@contextmanager
def small_files(size):
    """Let this process write no file beyond a size, as if the disk were full; SQLite notices it,
    too.
    """
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


MOUNTED = 'mount "$@" && echo mounted && cat; umount "$0" || umount --lazy "$0"'
"""Mounts, and unmounts once nobody holds the other end of its input: also if the tests were
killed.
"""


@contextmanager
def mounted(folder, *arguments):
    """Mount a file system at a new folder as long as the context lasts. Yields whether it could be
    mounted.
    """
    folder.mkdir()
    command = ["sh", "-c", MOUNTED, folder, *arguments, folder]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        is_mounted = process.stdout.readline() == b"mounted\n"
        try:
            yield is_mounted
        finally:
            process.stdin.close()
            process.wait()
    assert not folder.is_mount()
    folder.rmdir()


def require_root():
    """Skip a test where nothing can be mounted."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("not run as root")
    require_program("mount")


@contextmanager
def small_disk(folder, megabytes=3):
    """A disk of a few megabytes at a new folder. Skips the test where none can be mounted."""
    require_root()
    with mounted(folder, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs") as is_mounted:
        if not is_mounted:
            pytest.skip("no tmpfs can be mounted")
        yield folder


@contextmanager
def like_fat():
    """Let file systems have neither hard links nor other links nor modes, as FAT on Linux: every
    file of this process has 0755.

    A mode is refused even if it is the same, as some drivers do.
    """
    known = os.open, os.mkdir, os.chmod

    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def create(path, flags, *args, **options):
        is_new = flags & os.O_CREAT and not os.path.lexists(path)
        number = known[0](path, flags, *args, **options)
        if is_new:
            os.fchmod(number, 0o755)
        return number

    def mkdir(path, *args, **options):
        known[1](path, *args, **options)
        known[2](path, 0o755)

    with pytest.MonkeyPatch.context() as patch:
        for name, replacement in {"open": create, "mkdir": mkdir}.items():
            patch.setattr(os, name, replacement)
        for name in ("link", "symlink", "mkfifo", "chmod"):
            patch.setattr(os, name, refuse)
        yield


FAT = {"vfat": "mkfs.vfat", "exfat": "mkfs.exfat", "exfat-fuse": "mkfs.exfat"}
"""File systems of this kind, and what makes them."""


@contextmanager
def fat_disk(folder, megabytes=64):
    """A real disk of this kind at a new folder. Skips the test where none can be mounted."""
    require_root()
    image = folder.with_suffix(".image")
    for kind, program in FAT.items():
        with image.open("wb") as file:
            file.truncate(megabytes * 2**20)
        if (
            not shutil.which(program)
            or subprocess.run([program, image], capture_output=True, check=False).returncode
        ):
            continue
        with mounted(folder, "-o", "loop", "-t", kind, image) as is_mounted:
            if is_mounted:
                yield folder
                return
    pytest.skip("no FAT can be mounted")


def fill(folder, *, leave=0):
    """Fill a disk, but for some bytes, and return the file that does it."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        if leave:
            file.truncate(max(0, file.tell() - leave))
    return ballast
