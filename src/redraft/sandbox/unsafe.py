"""The tier "unsafe": limits on resources, and nothing else.

The program can read and write whatever its user can, use the network, and start other programs. It
runs in a folder of its own, which is deleted at the end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from ..errors import SandboxUnavailableError
from .launch import (
    Launch,
    Program,
    base_setup,
    python_command,
    source_of,
    temporary_folder,
)


def launch(program: Program) -> Launch:
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
