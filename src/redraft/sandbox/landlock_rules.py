"""Landlock: the process gives up every access to files but reading a few folders, and the kernel
keeps it to that.

Where bubblewrap is not to be had, this and the seccomp filter confine a program. The bootstrap
calls `prepare` and `restrict` inside, before the first line of foreign code. It gets this file as
source, so the module imports the standard library only. No path is ever writable but /dev/null, so
a program leaves nothing behind.

Landlock does not hide what `stat` and `readlink` tell: a program can learn whether a path exists,
its size, its times and where a link points, never its content nor the names in a folder. What
changes a file without opening it (chmod, chown, utime), and extended attributes, are not Landlock's
matter, either: the seccomp filter refuses them.

A right to a folder is one to all below it. So of a folder that holds a hidden one each entry is
allowed by itself, and the program cannot list it: the import system gets the names in it before.

Source of numbers and versions: the kernel's include/uapi/linux/landlock.h and
Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

TYPE_CHECKING = False  # importing `typing` takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

# numbers of the system calls, the same on every machine
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = (444, 445, 446)
VERSION_FLAG = 1  # of create_ruleset: return the version of the interface
PATH_BENEATH = 1  # the kind of rule that names a file or a folder
PR_SET_NO_NEW_PRIVS = 38  # of <sys/prctl.h>

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
# those a rule for a file may name, not a folder
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
FIRST_RIGHTS = (1 << 13) - 1  # execute, write, read, list, remove, make: what version 1 knows
TCP_RIGHTS = 0b11  # bind and connect, since version 4
SCOPES = 0b11  # abstract UNIX sockets and signals, since version 6
TRUNCATE_SINCE = (
    3  # the version that brought that right; before it, the seccomp filter refuses to cut files
)
# by the version that brought them
LATER_RIGHTS = ((2, REFER), (TRUNCATE_SINCE, TRUNCATE), (5, IOCTL_DEV))


def prepare(_libc: Any, setup: dict[str, Any]) -> None:
    """Make the folder `setup["temporary"]`, if any, and start the process that deletes it. Exit if
    the parent has ended.
    """
    if os.getppid() != setup["parent"]:  # before it could be told to end with the parent
        os._exit(1)
    if setup["temporary"]:
        _delete_at_end(setup["temporary"])
        _make_folder(setup)


def restrict(_libc: Any, setup: dict[str, Any]) -> None:
    """Restrict this process as `setup["landlock"]` says: the arguments of `restrict_files`. Raises
    OSError.
    """
    rules = setup["landlock"]
    if setup["temporary"]:
        rules = {**rules, "readable": [*rules["readable"], setup["temporary"]]}
    else:
        _keep_listings(rules["hidden"], setup["package_files"])
    restrict_files(**rules)


def _make_folder(setup: dict[str, Any]) -> None:
    """Make the folder of a tool: one to work in, and one with links to its packages."""
    folder = setup["temporary"]
    for path in (folder, setup["directory"], f"{folder}/packages"):
        os.mkdir(path, 0o700)  # noqa: PTH102  (pathlib takes long to import)
    for name, target in setup["links"].items():
        os.symlink(target, f"{folder}/packages/{name}")  # noqa: PTH211  (as above)


def _keep_listings(hidden: list[str], package_files: list[str]) -> None:
    """Give the import system the names in the folders of its path that cannot be listed: of those
    of packages, the named ones.

    Others are absent instead of forbidden.
    """
    import sys

    names: dict[str, set[str]] = {}
    for file in package_files:
        names.setdefault(os.path.dirname(file), set()).add(os.path.basename(file))  # noqa: PTH119, PTH120  (pathlib takes long)
    make_finder, finders = sys.path_hooks[-1], {}
    for folder in sys.path:
        real = os.path.realpath(folder)
        if real in names or any(path.startswith(f"{real}/") for path in hidden):
            finders[folder] = make_finder(folder)
            listed = names.get(real) or {*os.listdir(folder)}  # noqa: PTH208
            # attributes of FileFinder, since Python 3.3
            vars(finders[folder]).update(_path_cache=listed, _fill_cache=lambda: None)

    def find(folder: str) -> Any:
        if folder in finders:
            return finders[folder]
        raise ImportError(folder)

    sys.path_hooks.insert(0, find)
    sys.path_importer_cache.update(finders)
    if package_files:
        sys.meta_path.append(
            _PackageMetadata(
                [file for file in package_files if file.endswith((".dist-info", ".egg-info"))]
            )
        )


class _PackageMetadata:
    """Finds the metadata of packages, for `importlib.metadata`, which would list their folder."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = folders

    def find_spec(self, *_: Any) -> None:
        """Find no module: this is for metadata alone."""

    def find_distributions(self, context: Any) -> Iterator[Any]:
        import re
        from importlib.metadata import Distribution

        def normal(name: str) -> str:
            return re.sub(r"[-_.]+", "-", name).lower()

        for folder in self._folders:
            found = Distribution.at(folder)
            if os.path.dirname(folder) in context.path and (  # noqa: PTH120
                not context.name or normal(context.name) == normal(found.name)
            ):
                yield found


def _delete_at_end(folder: str) -> None:
    """Start a process that deletes a folder when this one ends, however that happens.

    It watches a descriptor: a signal at the end of the parent would not arrive, since Landlock
    keeps signals inside.
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
    """Return the version of the kernel's interface (1 came with Linux 5.13); 0 if there is none or
    it is switched off.
    """
    return max(0, _system_call(_library(), CREATE_RULESET, None, 0, VERSION_FLAG))


def restrict_files(
    readable: Iterable[str],
    hidden: Sequence[str],
    listable: Iterable[str],
    executable: Iterable[str],
    version: int,
) -> None:
    """Leave this thread, and those that it starts, no access to files but reading `readable` and
    writing to /dev/null.

    Files in `executable` can be read and executed. Nothing in a folder of `hidden` is allowed as a
    part of another folder. Folders in `listable` can be listed, with all below them. Paths that do
    not exist are left out. The version of the interface that is enforced is `version` at most.
    Raises OSError if the kernel refuses; then nothing is to be run.
    """
    enforced = min(landlock_version(), version)
    if not enforced:
        raise OSError(errno.EOPNOTSUPP, "the kernel has no Landlock")
    library = _library()
    ruleset, rights = _create_ruleset(library, enforced)
    try:
        for paths, allowed in (
            (readable, READ_FILE | READ_DIR),
            (executable, READ_FILE | READ_DIR | EXECUTE),
        ):
            for path in paths:
                for part in _without(hidden, os.path.realpath(path)):
                    _allow(library, ruleset, part, rights & allowed)
        for path in listable:
            _allow(library, ruleset, path, rights & READ_DIR)
        _allow(library, ruleset, os.devnull, rights & (READ_FILE | WRITE_FILE | TRUNCATE))
        if library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise _system_error("prctl")
        if _system_call(library, RESTRICT_SELF, ruleset, 0):
            raise _system_error("landlock_restrict_self")
    finally:
        os.close(ruleset)


def _without(hidden: Sequence[str], path: str) -> Iterator[str]:
    """Yield a path, or the parts of it that are not hidden; a link in a folder allows nothing by
    itself.
    """
    below = [each for each in hidden if each.startswith(f"{path}/")]
    if not below:
        yield path
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.path not in hidden and not entry.is_symlink():
                yield from _without(below, entry.path)


def _create_ruleset(library: ctypes.CDLL, version: int) -> tuple[int, int]:
    """Return the descriptor of a ruleset, and the rights on files that it takes away.

    Some kernels of distributions report version 6 and lack its scopes: they get the ruleset
    without.
    """
    rights = FIRST_RIGHTS
    for since, right in LATER_RIGHTS:
        rights |= right if version >= since else 0
    fields = [rights]
    fields += [TCP_RIGHTS] if version >= 4 else []
    fields += [SCOPES] if version >= 6 else []
    for known in (fields, fields[:2]):
        attributes = struct.pack(f"={len(known)}Q", *known)
        ruleset = _system_call(library, CREATE_RULESET, attributes, len(attributes), 0)
        if ruleset >= 0:
            return ruleset, rights
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise _system_error("landlock_create_ruleset")


def _allow(library: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        if _system_call(library, ADD_RULE, ruleset, PATH_BENEATH, rule, 0):
            raise _system_error("landlock_add_rule")
    finally:
        os.close(descriptor)


def _system_call(library: ctypes.CDLL, number: int, *arguments: int | bytes | None) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(library.syscall(ctypes.c_long(number), *values))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _system_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
