"""Where traces are kept, and what is written so that nothing is lost."""

from .append_only import LockedLineFile
from .atomic import write_atomic
from .journal import Journal, RowInfo, RunInfo
from .recovery import salvage
from .trace_file import JsonlStore, read_trace

__all__ = ["Journal", "JsonlStore", "LockedLineFile", "RowInfo", "RunInfo", "read_trace", "salvage", "write_atomic"]
