"""Where traces are kept, and what is written so that nothing is lost."""

from .jsonl import JsonlStore, read_trace
from .lines import LockedLines
from .whole import write_whole

__all__ = ["JsonlStore", "LockedLines", "read_trace", "write_whole"]
