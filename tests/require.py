"""Skip a test where the machine lacks what it needs, with a reason of a few words, which the last
lines of a run count.
"""

import os
import re
import shutil

import pytest

MISSING = {
    r"\(bwrap\) is not installed": "no bwrap",
    r"bubblewrap: bwrap: ": "no namespaces for bwrap",
    r"needs Linux": "not Linux",
    r"has no Landlock": "no Landlock",
}


def require_program(name):
    """Return the path of a program."""
    return shutil.which(name) or pytest.skip(f"no {name}")


def require_sandbox(tier):
    """Return a sandbox of this tier. One that is there and does not work is no reason to skip, but
    a fault.
    """
    from redraft.errors import SandboxUnavailableError
    from redraft.sandbox import Sandbox

    try:
        assert Sandbox(tier).tier
    except SandboxUnavailableError as error:
        reason = next(
            (reason for pattern, reason in MISSING.items() if re.search(pattern, str(error))), None
        )
        if reason is None:
            raise
        pytest.skip(reason if tier != "auto" else "no sandbox")
    return Sandbox(tier)


as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="not run as root"
)
