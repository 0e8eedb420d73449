"""Computing that can be stopped: a function of ours runs in a worker process with a limit on its time and memory.

What reads text that models or strangers wrote is either linear in it, or small enough to run at once, or runs here: a
thread cannot be stopped, and a library that holds the interpreter's lock stops every other thread, the event loop included.
Over the limit is *unknown*: `ComputeLimitError`, never a value.

`pool` holds the workers, `worker` is what runs in one. Nothing here knows what is computed.
"""

from __future__ import annotations

from .pool import run, run_sync

__all__ = ["IN_PROCESS", "run", "run_sync"]

IN_PROCESS = 16_384  # characters that are read at once, in this process; measured: bench/hostile_text.py
