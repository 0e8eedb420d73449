"""The tier "bubblewrap": namespaces of its own for everything.

The program is process 1 of its own process namespace, so that it ends with its launcher and nothing
can outlive it. It has no network, not even a loopback device that is up. It sees the system's
folders, the interpreter and the packages, all read-only, some devices, and a /tmp in memory of
limited size. There is no /proc. If the interpreter or a package lies below /tmp, the folder in
memory is another one. A folder of packages is an empty one inside, but for those that are named.

Where a program cannot have capabilities even in its own namespaces (AppArmor takes them on some
systems), the bootstrap cannot limit the number of files, so a program gets no writable folder.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

from ..errors import SandboxUnavailableError
from .execution import Limits
from .interpreter import SYSTEM_FOLDERS, current_interpreter
from .launch import FOLDER, Launch, Program, python_command, restricted_setup

NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
LIFETIME = ("--die-with-parent", "--new-session", "--as-pid-1")
NO_CAPABILITIES = ("--cap-drop", "ALL")
# it mounts a folder, then drops both
BOOTSTRAP_CAPABILITIES = ("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP")
IDENTITY = ("--uid", "65534", "--gid", "65534", "--hostname", "sandbox")
FOLDERS = (FOLDER, "/var/tmp", "/sandbox")  # noqa: S108  (inside: the working folder is the first that hides nothing)
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def launch(options: Sequence[str], program: Program, *, has_capabilities: bool = True) -> Launch:
    """Return how to start a program in new namespaces. Raises SandboxUnavailableError if bubblewrap
    is not installed.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError(f"bubblewrap needs Linux, and this is {sys.platform}")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailableError("bubblewrap (bwrap) is not installed")
    added = [*program.packages.files, *([program.executable] if program.executable else [])]
    shown = [*current_interpreter().files, *added]
    capabilities = (*NO_CAPABILITIES, *(BOOTSTRAP_CAPABILITIES if has_capabilities else ()))
    folder = _working_folder([*shown, *program.packages.search_path])
    view = [
        *_view(added),
        # a tool's folder is writable in any case
        "--tmpfs" if program.is_tool and not has_capabilities else "--dir",
        folder,
        "--remount-ro",
        "/",
        "--chdir",
        "/",
    ]
    start = [bwrap, *NAMESPACES, *options, *capabilities, *LIFETIME, *IDENTITY, *view]
    mount = (
        {"mount": _mount_options(program.limits), "devices": DEVICES} if has_capabilities else {}
    )
    # temporary files are in /tmp unless one says otherwise
    named = {} if folder == FOLDER else {"HOME": folder, "TMPDIR": folder}
    variables = (
        {"environment": {**program.content["environment"], **named}} if program.is_tool else {}
    )
    return Launch(
        lambda descriptor, info: [
            *start,
            "--info-fd",
            str(info),
            "--",
            *python_command(descriptor),
        ],
        {
            **restricted_setup(
                program, "files" if has_capabilities or program.is_tool else "existing files"
            ),
            **mount,
            **variables,
            "directory": folder,
            "shown": shown,
        },
        "bubblewrap",
        has_info=True,
        environment={**current_interpreter().environment, **named},
    )


# versions before 0.8 lack the option, and a container may forbid it; the filter forbids user
# namespaces, too
LAUNCHES = (
    partial(launch, ("--disable-userns",)),
    partial(launch, ()),
    partial(launch, ("--disable-userns",), has_capabilities=False),
    partial(launch, (), has_capabilities=False),
)


def _view(added: Sequence[str]) -> list[str]:
    """Return the arguments that make the file system that the program sees: read-only, without
    /proc.
    """
    interpreter = current_interpreter()
    arguments = [*_system_arguments(), *_bindings(interpreter.files)]
    for folder in interpreter.hidden:
        arguments += ["--tmpfs", folder]
    arguments += _bindings(added)
    for folder in interpreter.hidden:
        arguments += ["--remount-ro", folder]
    for device in DEVICES:
        arguments += ["--dev-bind", device, device]
    return arguments


def _bindings(paths: Sequence[str]) -> list[str]:
    return [argument for path in paths for argument in ("--ro-bind", path, path)]


def _working_folder(shown: Sequence[str]) -> str:
    """Return the folder that hides nothing of what is shown. Raises SandboxUnavailableError if
    there is none.
    """
    for folder in FOLDERS:
        if not any(Path(path).is_relative_to(folder) for path in shown):
            return folder
    raise SandboxUnavailableError(
        f"the interpreter, the packages and the tools lie below each of {', '.join(FOLDERS)}"
    )


@lru_cache(maxsize=1)
def _system_arguments() -> tuple[str, ...]:
    """Return the arguments that show the system's folders: links as links."""
    arguments: list[str] = []
    for folder in SYSTEM_FOLDERS:
        if Path(folder).is_symlink():
            arguments += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            arguments += ["--ro-bind", folder, folder]
    return tuple(arguments)


def _mount_options(limits: Limits) -> str:
    """Return the options of the file system on the working folder. The kernel counts its root
    folder as one of the files.
    """
    return f"size={limits.disk_bytes},nr_inodes={limits.inodes + 1},mode=0700"
