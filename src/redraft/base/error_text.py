"""Exceptions as text.

An exception from the user's code is described by its class, its message and the line that raised
it. Redraft's own errors are shown as they are. Notes of an exception follow. Paths are cut to the
file name and keys from the environment are masked, because a message may be stored and shown.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import CodeType

from ..errors import RedraftError
from .masking import Mask, secrets_in_environment
from .own_code import PACKAGE

PACKAGE_DIR = str(Path(__file__).parents[1])
STDLIB_DIR = str(Path(asyncio.__file__).parents[1])
SITE_DIRS = ("site-packages", "dist-packages")


def error_text(error: BaseException) -> str:
    """Return text such as "ZeroDivisionError: division by zero (in short_and_polite, my_graders.py
    line 12)".
    """
    if isinstance(error, RedraftError):
        return str(error)
    kind, mask = type(error).__name__, Mask(secrets_in_environment(os.environ))
    message = mask(str(error)) or (
        "cancelled before it ended" if isinstance(error, asyncio.CancelledError) else ""
    )
    notes = "".join(f"; {mask(str(note))}" for note in getattr(error, "__notes__", ()))
    return (
        f"{kind}: {message}{_location(error)}{notes}"
        if message
        else f"{kind}{_location(error)}{notes}"
    )


def _location(error: BaseException) -> str:
    """Return the last line in a file of the user, or else of a package; "" if all lines are
    ours.
    """
    lines = list(_foreign_lines(error))
    own = [line for line in lines if not any(part in line[0].co_filename for part in SITE_DIRS)]
    # where a package waited does not matter
    if not own and (not lines or isinstance(error, asyncio.CancelledError)):
        return ""
    code, number = (own or lines)[-1]
    return f" (in {code.co_name}, {Path(code.co_filename).name} line {number})"


def _foreign_lines(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    """Yield the lines of the traceback that are neither in this package nor in the standard
    library.
    """
    for frame, number in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        standard = file.startswith((STDLIB_DIR, "<frozen")) and not any(
            part in file for part in SITE_DIRS
        )
        module = str(frame.f_globals.get("__name__", ""))
        # code that dataclasses generate is in no file
        ours = file.startswith(PACKAGE_DIR) or module.partition(".")[0] == PACKAGE
        if not (standard or ours):
            yield frame.f_code, number
