"""What every tier needs to start a process: the program, the first frame, and the command of the
interpreter; and the tier "unsafe", which needs no more: limits on resources, and nothing else.

In the tier "unsafe", the program can read and write whatever its user can, use the network, and
start other programs. It runs in a folder of its own, which is deleted at the end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import SandboxUnavailableError
from ..workers.pool import bootstrap_source
from ..workers.seccomp import OWN_PID, Writing, filter_program
from .execution import Limits
from .interpreter import FLAGS, Packages, current_interpreter

FOLDER = "/tmp"  # noqa: S108  (inside: the working folder of a program)


@dataclass(frozen=True, slots=True)
class Program:
    """What runs in a sandbox: a runner with its settings, or one of our own tools.

    `content` is the part of the first frame that says so: {"runner", "settings"} or {"command",
    "environment", "files"}.
    """

    content: Mapping[str, Any]
    limits: Limits
    packages: Packages = Packages()
    executable: str | None = None

    @property
    def is_tool(self) -> bool:
        """Whether it is one of our own tools, which may start other programs."""
        return "command" in self.content


@dataclass(frozen=True, slots=True)
class Launch:
    """How a tier starts a process.

    - `command(descriptor, info)` returns the command line. The bootstrap writes its answers to
      `descriptor`. With `has_info`, the command is a launcher that stays the parent of the program
      and writes the program's process ID to `info`, as bubblewrap does.
    - `reports_end`: the command is a client of a container, which writes to `info` how the program
      ended (see `container.py`).
    - `setup` is the first frame, see `bootstrap.py`.
    - `clean_up` is called once, after the end of the process.
    """

    command: Callable[[int, int], Sequence[str]]
    setup: Mapping[str, Any]
    tier: str
    has_info: bool = False
    reports_end: bool = False
    environment: Mapping[str, str] = field(
        default_factory=lambda: current_interpreter().environment
    )
    clean_up: Callable[[], None] = lambda: None


def base_setup(program: Program) -> dict[str, Any]:
    """Return the first frame as far as all tiers agree: the program, its limits and its
    packages.
    """
    limits = program.limits
    resources = {  # that the kernel enforces, by their names in `resource`
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": int(limits.cpu_seconds) + 2,  # whole seconds; the monitor is more exact
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_NOFILE": limits.open_files,
    }
    return {
        **program.content,
        "packages": list(program.packages.search_path),
        "resources": resources,
        "directory": FOLDER,
    }


def restricted_setup(program: Program, writing: Writing = "files") -> dict[str, Any]:
    """Return the first frame of a tier that restricts: no capabilities, and the filter of system
    calls.
    """
    filter = filter_program(is_tool=program.is_tool, writing=writing)
    return {**base_setup(program), "restrict": True, "filter": filter.hex(), "own_pid": OWN_PID}


def python_command(descriptor: int) -> list[str]:
    """Return the command of the interpreter that runs the bootstrap."""
    return [
        current_interpreter().executable,
        *FLAGS,
        "-c",
        bootstrap_source(),
        str(descriptor),
    ]


def temporary_folder() -> str:
    """Return the folder of this machine for temporary files. Raises SandboxUnavailableError if none
    can be written.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SandboxUnavailableError(f"a temporary folder is needed: {error.strerror}") from None


@lru_cache(maxsize=8)
def source_of(name: str) -> str:
    """Return the source of a module of this package."""
    return resources.files(__name__.rpartition(".")[0]).joinpath(name).read_text("utf-8")


def launch_unsafe(program: Program) -> Launch:
    """Return how to start a program with limits alone. Raises SandboxUnavailableError on Windows,
    which has none.
    """
    if sys.platform == "win32":
        raise SandboxUnavailableError("limits on resources need Linux or macOS, and this is win32")
    setup = base_setup(program)
    if sys.platform == "darwin":  # macOS refuses this limit
        setup["resources"].pop("RLIMIT_AS")
    # the process makes its folder, with another that deletes it however this one ends
    if sys.platform == "linux":
        folder = str(Path(temporary_folder(), f"redraft-unsafe-{secrets.token_hex(8)}"))
        own = {
            "temporary": folder,
            "directory": f"{folder}/work",
            "links": {},
            "parent": os.getpid(),
        }
        setup |= {**own, "extensions": [source_of("landlock_rules.py")]}
    else:
        folder = tempfile.mkdtemp(prefix="redraft-unsafe-")
        setup["directory"] = folder
    return Launch(
        lambda descriptor, _: python_command(descriptor),
        setup,
        "unsafe",
        clean_up=lambda: shutil.rmtree(folder, ignore_errors=True),
    )
