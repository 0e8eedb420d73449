"""Where traces are kept, and what is written so that nothing is lost."""

from .journal import Journal, RowNote, RunNote
from .jsonl import JsonlStore, read_trace
from .lines import LockedLines
from .salvage import salvage
from .whole import write_whole

__all__ = ["Journal", "JsonlStore", "LockedLines", "RowNote", "RunNote", "read_trace", "salvage", "write_whole"]
