"""The tier "landlock": no namespaces, for machines and containers where bubblewrap may not create
any.

The program is a process of this machine like any other, and the kernel refuses it everything but
computing: it can read the system's folders, the interpreter and the packages, write nothing but
/dev/null, open no socket, and start no process. Unlike in tier "bubblewrap" it cannot write files
of its own, and it can learn the machine's name, which paths exist and which process IDs are taken.

A tool gets its files in a temporary folder that it can only read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import SandboxUnavailableError
from .interpreter import SYSTEM_FOLDERS, current_interpreter
from .landlock_rules import TRUNCATE_SINCE, landlock_version
from .launch import (
    Launch,
    Program,
    python_command,
    restricted_setup,
    source_of,
    temporary_folder,
)

DEVICES = ("/dev/zero", "/dev/random", "/dev/urandom")


def launch(program: Program, *, version: int | None = None) -> Launch:
    """Return how to start a program under Landlock; `version` lowers the interface's. Raises
    SandboxUnavailableError.
    """
    enforced = min(_kernel_version(), version or 1_000)
    folder = (
        str(Path(temporary_folder(), f"redraft-tool-{secrets.token_hex(8)}"))
        if program.is_tool
        else None
    )
    interpreter, packages = current_interpreter(), program.packages
    system = [*SYSTEM_FOLDERS, *interpreter.files]
    setup = {
        **restricted_setup(
            program, "existing files" if enforced >= TRUNCATE_SINCE else "untruncated files"
        ),
        "directory": "/",
        "extensions": [source_of("landlock_rules.py")],
        "landlock": {
            "readable": [*system, *DEVICES, *packages.files],
            "hidden": list(interpreter.hidden),
            "listable": list(interpreter.libraries)
            if program.is_tool
            else [],  # another interpreter starts there
            "executable": [*system, program.executable] if program.executable else [],
            "version": enforced,
        },
        "package_files": packages.files,
        "temporary": folder,
        "parent": os.getpid(),
    }
    if folder:
        setup |= _tool_setup(folder, program)
    return Launch(
        lambda descriptor, _: python_command(descriptor),
        setup,
        "landlock",
        clean_up=partial(shutil.rmtree, folder, ignore_errors=True) if folder else lambda: None,
    )


def _tool_setup(folder: str, program: Program) -> dict[str, Any]:
    """Return the part of the first frame about a tool's files. It finds its packages as links in a
    folder without others.
    """
    links = {Path(file).name: file for file in reversed(program.packages.files)}
    path = {"PYTHONPATH": f"{folder}/packages"} if links else {}
    return {
        "directory": f"{folder}/work",
        "links": links,
        "environment": {**program.content["environment"], **path},
    }


def _kernel_version() -> int:
    """Return the version of the kernel's interface. Raises SandboxUnavailableError if there is
    none.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError(f"Landlock needs Linux, and this is {sys.platform}")
    version = landlock_version()
    if not version:
        raise SandboxUnavailableError(
            "the kernel has no Landlock (Linux 5.13 has, unless it is switched off)"
        )
    return version
