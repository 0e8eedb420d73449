"""A plain table and a file of figures."""

from __future__ import annotations

import json
import platform
from pathlib import Path


def table(header, rows):
    """Columns under each other: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())


def write(path, figures):
    """The figures as JSON, with what they were measured on. Nothing without a path."""
    if path:
        on = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
        Path(path).write_text(json.dumps({"measured_on": on, **figures}, indent=2) + "\n")
