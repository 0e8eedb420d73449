"""Landlock: the process gives up every access to files but reading a few folders, and the kernel keeps it to that.

Where bubblewrap is not to be had, this and the seccomp filter confine a program. The bootstrap calls `prepare` and `restrict`
inside, before the first line of foreign code. It gets this file as source, so the module imports the standard library only. No path
is ever writable but /dev/null, so a program leaves nothing behind.

Landlock does not hide what `stat` and `readlink` tell: a program can learn whether a path exists, its size, its times and where a
link points, never its content nor the names in a folder. What changes a file without opening it (chmod, chown, utime), and
extended attributes, are not Landlock's matter, either: the seccomp filter refuses them.

Source of numbers and versions: the kernel's include/uapi/linux/landlock.h and Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

TYPE_CHECKING = False  # importing `typing` takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # numbers of the system calls, the same on every machine
VERSION_FLAG = 1  # of create_ruleset: return the version of the interface
PATH_BENEATH = 1  # the kind of rule that names a file or a folder
PR_SET_NO_NEW_PRIVS = 38  # of <sys/prctl.h>

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # those a rule for a file may name, not a folder
FIRST_RIGHTS = (1 << 13) - 1  # execute, write, read, list, remove, make: what version 1 knows
TCP_RIGHTS = 0b11  # bind and connect, since version 4
SCOPES = 0b11  # abstract UNIX sockets and signals, since version 6
TRUNCATE_SINCE = 3  # the version that brought that right; before it, the seccomp filter refuses to cut files
LATER_RIGHTS = ((2, REFER), (TRUNCATE_SINCE, TRUNCATE), (5, IOCTL_DEV))  # by the version that brought them


def prepare(_libc: Any, setup: dict[str, Any]) -> None:
    """Make the folder `setup["temporary"]`, if any, and start the process that deletes it. Exit if the parent has ended."""
    if os.getppid() != setup["parent"]:  # before it could be told to end with the parent
        os._exit(1)
    if setup["temporary"]:
        _delete_at_end(setup["temporary"])
        _make_folder(setup)


def restrict(_libc: Any, setup: dict[str, Any]) -> None:
    """Restrict this process as `setup["landlock"]` says: the arguments of `restrict_files`. Raises OSError."""
    rules = setup["landlock"]
    if setup["temporary"]:
        rules = {**rules, "listable": [], "readable": [*rules["readable"], setup["temporary"]]}
    elif rules["listable"]:
        _show_modules(rules["listable"], {*setup["modules"]})
    restrict_files(**rules)


def _make_folder(setup: dict[str, Any]) -> None:
    """Make the folder of a tool: one to work in, and one with links to its packages."""
    folder = setup["temporary"]
    for path in (folder, setup["directory"], f"{folder}/packages"):
        os.mkdir(path, 0o700)  # noqa: PTH102  (pathlib takes long to import)
    for name, target in setup["links"].items():
        os.symlink(target, f"{folder}/packages/{name}")  # noqa: PTH211  (as above)


def _show_modules(folders: list[str], names: set[str]) -> None:
    """Let the import system find only modules of these names in folders; others are absent instead of forbidden."""
    import sys
    from importlib.machinery import PathFinder

    class Finder:
        def __init__(self, finder: Any) -> None:
            self._finder = finder
            self.invalidate_caches = finder.invalidate_caches

        def find_spec(self, name: str, target: Any = None) -> Any:
            return self._finder.find_spec(name, target) if name in names else None

    for folder in folders:
        PathFinder.find_spec("_", [folder])  # enters its finder into the table
        finder = sys.path_importer_cache.get(folder)
        if finder is not None:
            sys.path_importer_cache[folder] = Finder(finder)


def _delete_at_end(folder: str) -> None:
    """Start a process that deletes a folder when this one ends, however that happens.

    It watches a descriptor: a signal at the end of the parent would not arrive, since Landlock keeps signals inside.
    """
    import select
    import shutil

    parent = os.getpid()
    if os.fork():
        return
    try:
        os.closerange(0, 4096)
        os.setsid()
        end = os.pidfd_open(parent)
        if os.getppid() == parent:
            select.select([end], [], [])
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def landlock_version() -> int:
    """Return the version of the kernel's interface (1 came with Linux 5.13); 0 if there is none or it is switched off."""
    return max(0, _system_call(CREATE_RULESET, None, 0, VERSION_FLAG))


def restrict_files(
    readable: Iterable[str], *, listable: Iterable[str] = (), executable: Iterable[str] = (), version: int | None = None
) -> int:
    """Leave this thread, and those that it starts, no access to files but reading `readable` and writing to /dev/null.

    Folders in `listable` can be listed, and files in `executable` read and executed. Paths that do not exist are left out.
    Return the version of the interface that is enforced: `version` at most. Raises OSError if the kernel refuses; then nothing is
    to be run.
    """
    enforced = min(landlock_version(), version if version is not None else 1_000)
    if not enforced:
        raise OSError(errno.EOPNOTSUPP, "the kernel has no Landlock")
    ruleset, rights = _create_ruleset(enforced)
    try:
        for path in readable:
            _allow(ruleset, path, rights & (READ_FILE | READ_DIR))
        for path in listable:
            _allow(ruleset, path, rights & READ_DIR)
        for path in executable:
            _allow(ruleset, path, rights & (READ_FILE | READ_DIR | EXECUTE))
        _allow(ruleset, os.devnull, rights & (READ_FILE | WRITE_FILE | TRUNCATE))
        _enforce(ruleset)
    finally:
        os.close(ruleset)
    return enforced


def _create_ruleset(version: int) -> tuple[int, int]:
    """Return the descriptor of a ruleset, and the rights on files that it takes away.

    Some kernels of distributions report version 6 and lack its scopes: they get the ruleset without.
    """
    rights = FIRST_RIGHTS
    for since, right in LATER_RIGHTS:
        rights |= right if version >= since else 0
    fields = (rights, TCP_RIGHTS if version >= 4 else None, SCOPES if version >= 6 else None)
    while True:
        known = [field for field in fields if field is not None]
        attributes = struct.pack(f"={len(known)}Q", *known)
        ruleset = _system_call(CREATE_RULESET, attributes, len(attributes), 0)
        if ruleset >= 0:
            return ruleset, rights
        if ctypes.get_errno() != errno.EINVAL or len(known) < 3:
            raise _system_error("landlock_create_ruleset")
        fields = (*fields[:2], None)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        if _system_call(ADD_RULE, ruleset, PATH_BENEATH, rule, 0):
            raise _system_error("landlock_add_rule")
    finally:
        os.close(descriptor)


def _enforce(ruleset: int) -> None:
    if _library().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _system_error("prctl")
    if _system_call(RESTRICT_SELF, ruleset, 0):
        raise _system_error("landlock_restrict_self")


def _system_call(number: int, *arguments: int | bytes | None) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(_library().syscall(ctypes.c_long(number), *values))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _system_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
