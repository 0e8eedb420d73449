"""Print a plain table and goals, and write figures to a file."""

from __future__ import annotations

import json
import platform
from pathlib import Path


def table(header, rows):
    """Align columns: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())


def goal(what, figure, *, met):
    """Print a goal, the figure, and whether the goal is met."""
    print(f"goal: {what}: {figure}, {'met' if met else 'missed'}")


def write(path, figures):
    """Write the figures and a description of the machine as JSON. Do nothing without a path."""
    if path:
        on = {
            "python": platform.python_version(),
            "system": platform.system(),
            "machine": platform.machine(),
        }
        Path(path).write_text(json.dumps({"measured_on": on, **figures}, indent=2) + "\n")
