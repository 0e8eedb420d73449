"""Files that survive a crash: traces, batch journals, stored priors, and files that are written atomically."""

from .journal import Journal, RowInfo, RunInfo
from .recovery import salvage
from .secure_files import write_atomic
from .trace_file import JsonlStore, LockedLineFile, read_trace

__all__ = ["Journal", "JsonlStore", "LockedLineFile", "RowInfo", "RunInfo", "read_trace", "salvage", "write_atomic"]
