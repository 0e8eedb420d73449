"""Files that survive a crash: traces, batch journals, learned priors, and atomic writing.

Importing this package loads nothing, since most runs write no file: each name is loaded when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .journal import Journal, RowInfo, RunInfo
    from .recovery import salvage
    from .secure_files import write_atomic
    from .trace_file import JsonlStore, LockedLineFile, read_trace
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Journal": "journal",
            "JsonlStore": "trace_file",
            "LockedLineFile": "trace_file",
            "RowInfo": "journal",
            "RunInfo": "journal",
            "read_trace": "trace_file",
            "salvage": "recovery",
            "write_atomic": "secure_files",
        },
    )

__all__ = [
    "Journal",
    "JsonlStore",
    "LockedLineFile",
    "RowInfo",
    "RunInfo",
    "read_trace",
    "salvage",
    "write_atomic",
]
