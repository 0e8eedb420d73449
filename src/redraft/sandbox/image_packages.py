"""Checks in a container that its image has the packages that programs may import; the bootstrap
runs it (see `docker.py`).
"""

from __future__ import annotations

from typing import Any


def prepare(libc: Any, setup: dict[str, Any]) -> None:
    """Raise ModuleNotFoundError, with what to do, if a package is neither a distribution nor a
    module of this Python.
    """
    missing = [name for name in setup["image_packages"] if not is_installed(name)]
    if missing:
        raise ModuleNotFoundError(
            f"the image {setup['image']!r} has no package {', '.join(map(repr, missing))}: use an "
            f"image in which it is installed (RUN pip install {' '.join(missing)}), or leave it "
            "out of packages="
        )


def restrict(libc: Any, setup: dict[str, Any]) -> None:
    """Do nothing: nothing more is restricted."""


def is_installed(name: str) -> bool:
    from importlib import metadata, util

    try:
        metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        try:
            return util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False
    return True
