"""Where traces are kept, and what is written so that nothing is lost."""

from .append_only import LockedLines
from .atomic import write_whole
from .journal import Journal, RowNote, RunNote
from .recovery import salvage
from .trace_file import JsonlStore, read_trace

__all__ = ["Journal", "JsonlStore", "LockedLines", "RowNote", "RunNote", "read_trace", "salvage", "write_whole"]
