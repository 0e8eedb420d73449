"""Measure startup: `import redraft` over Python's own start, and help.

    python bench/startup.py [--runs 31] [--json FILE]

Every figure is a median over processes that were started in turn, after one warm-up start of each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from tables import table, write

SCRIPT = Path(sys.executable).with_name("redraft")
REDRAFT = [SCRIPT] if SCRIPT.exists() else [sys.executable, "-m", "redraft"]
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import redraft": [sys.executable, "-c", "import redraft"],
    "redraft.refine": [sys.executable, "-c", "import redraft; redraft.refine"],
    "redraft --help": [*REDRAFT, "--help"],
    "redraft run --help": [*REDRAFT, "run", "--help"],
    "redraft runs --help": [*REDRAFT, "runs", "--help"],
}
GOALS = {  # ms; an import's is over Python's own start
    "import redraft": 60,
    "redraft --help": 200,
    "redraft run --help": 600,
    "redraft runs --help": 600,
}
OVER_BARE = {"import redraft", "redraft.refine"}


def seconds(command):
    begun = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return perf_counter() - begun


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=31, help="processes for each figure (at least 20)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    if given.runs < 20:
        parser.error("--runs must be at least 20: single starts differ too much")
    return given


def main():
    given = arguments()
    for command in COMMANDS.values():
        seconds(command)
    rounds = [{name: 1000 * seconds(command) for name, command in COMMANDS.items()} for _ in range(given.runs)]
    wall = {name: median(r[name] for r in rounds) for name in COMMANDS}
    over = {name: median(r[name] - r["python"] for r in rounds) for name in COMMANDS}
    counted = {name: over[name] if name in OVER_BARE else wall[name] for name in COMMANDS}
    met = {name: counted[name] <= most for name, most in GOALS.items()}

    print(f"medians of {given.runs} starts, in turn\n")
    shown = [
        [
            name,
            f"{wall[name]:.0f}",
            f"{over[name]:.0f}" if name != "python" else "",
            f"{GOALS[name]} {'over python' if name in OVER_BARE else 'wall'}" if name in GOALS else "",
            ("met" if met[name] else "missed") if name in GOALS else "",
        ]
        for name in COMMANDS
    ]
    table(["", "wall ms", "over python ms", "goal ms", ""], shown)
    write(given.json, {"runs": given.runs, "wall_ms": wall, "over_python_ms": over, "goals_ms": GOALS, "met": met})


if __name__ == "__main__":
    main()
