"""Loads the modules that run in a sandbox. It is the first that runs there, and imports next to nothing.

Modules come compiled, since each program that is tested waits for them, and as source for an interpreter of another version.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def main(settings: dict[str, Any], channel: Any) -> None:
    """Load `settings["modules"]` and call `main(values, channel)` of the module that `settings["main"]` names."""
    modules = {name: load(name, packed) for name, packed in settings["modules"].items()}
    modules[settings["main"]].main(modules["values"], channel)


def load(name: str, packed: dict[str, str]) -> ModuleType:
    """Return a module made from its code."""
    from _frozen_importlib_external import MAGIC_NUMBER

    module = type(sys)(f"_sandboxed_{name}")
    sys.modules[module.__name__] = module
    if packed["magic"] == MAGIC_NUMBER.hex():
        code = marshal.loads(bytes.fromhex(packed["code"]))
    else:
        code = compile(packed["source"], f"<{name}>", "exec")
    exec(code, vars(module))
    return module
