"""Run Redraft's command line; on SIGUSR1, write the number of asyncio tasks that have not ended to
a file.

python bench/gateways/counted.py FILE serve --config gateway.toml
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path


def count_to(path):
    """Return what handles the signal. It runs in the thread of the event loop."""

    def write(*_):
        part = Path(f"{path}.part")
        part.write_text(str(len(asyncio.all_tasks())))
        os.replace(part, path)  # noqa: PTH105

    return write


if __name__ == "__main__":
    from redraft.cli import main

    signal.signal(signal.SIGUSR1, count_to(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    main()
