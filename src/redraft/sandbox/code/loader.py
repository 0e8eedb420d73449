"""Loads the modules that run in a sandbox. It is the first that runs there, and imports next to
nothing.

Modules come compiled, since each program that is tested waits for them, and as source for an
interpreter of another version.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def main(settings: dict[str, Any], channel: Any) -> None:
    """Load `settings["modules"]` in their order and call `main(channel)` of the last one."""
    modules = [load(name, packed) for name, packed in settings["modules"].items()]
    modules[-1].main(channel)


def load(name: str, packed: dict[str, str]) -> ModuleType:
    """Return a module made from its code. It can import modules that were loaded before it, as
    `from .name import ...`.
    """
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import MAGIC_NUMBER

    module = type(sys)(f"_sandboxed.{name}")
    module.__spec__ = ModuleSpec(module.__name__, None)
    sys.modules[module.__name__] = module
    if packed["magic"] == MAGIC_NUMBER.hex():
        code = marshal.loads(bytes.fromhex(packed["code"]))
    else:
        code = compile(packed["source"], f"<{name}>", "exec")
    exec(code, vars(module))
    return module
