"""Where traces are kept."""

from .jsonl import JsonlStore, read_trace

__all__ = ["JsonlStore", "read_trace"]
