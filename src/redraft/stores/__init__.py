"""Where traces are kept."""

from .jsonl import JsonlStore, read_trace
from .lines import LockedLines

__all__ = ["JsonlStore", "LockedLines", "read_trace"]
