"""Isolation of programs that nobody has checked: limits, and no access to this machine.

`Sandbox` chooses how: the best tier that works here. `Sandbox.start` runs a Python file that
exchanges JSON messages with its caller, `Sandbox.run_tool` a program such as a linter.

`tiers` chooses and starts, `bubblewrap` is a tier, `process` exchanges messages, `monitor` watches
from outside, `bootstrap` runs inside, `interpreter` finds the files that it may see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .execution import Execution, Limits, SandboxedProcessError
    from .process import SandboxedProcess
    from .tiers import Sandbox
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Execution": "execution",
            "Limits": "execution",
            "Sandbox": "tiers",
            "SandboxedProcess": "process",
            "SandboxedProcessError": "execution",
        },
    )

__all__ = ["Execution", "Limits", "Sandbox", "SandboxedProcess", "SandboxedProcessError"]
