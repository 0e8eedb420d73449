"""Running functions in worker processes with limits on time and memory.

Code that reads text of models or strangers either takes linear time, or gets only short texts, or runs here: a thread cannot be
stopped, and a library that holds the interpreter's lock blocks every other thread and the event loop. A function over its limit
raises `ComputeLimitError` and never returns a value.

`pool` manages the workers, `worker` runs in one.
"""

from __future__ import annotations

from .pool import run, run_sync

__all__ = ["IN_PROCESS", "run", "run_sync"]

IN_PROCESS = 16_384  # characters that are handled in this process; measured by bench/hostile_text.py
