"""Measure startup: `import redraft` over Python's own start, the first use of `refine` beside
`import aiohttp`, and help.

    python bench/startup.py [--runs 31] [--json FILE]

Every figure is a median over processes that were started in turn, after one warm-up start of each,
which compiles the modules.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from tables import table, write

SCRIPT = Path(sys.executable).with_name("redraft")
REDRAFT = [SCRIPT] if SCRIPT.exists() else [sys.executable, "-m", "redraft"]
BARE, AIOHTTP = "python", "import aiohttp"
LOADED, USED = "redraft.refine, HTTP client", "first answer, HTTP client"
HTTP_CLIENT = "import redraft.models.openai_chat, redraft.models.http_sessions, aiohttp"
ANSWER = (
    "redraft.refine_sync('Name a colour.', redraft.ScriptedModel(['blue']), lambda answer: 1.0)"
)
PROGRAMS = {
    BARE: "pass",
    AIOHTTP: "import aiohttp",
    "import redraft": "import redraft",
    "redraft.refine": "import redraft; redraft.refine",
    LOADED: f"import redraft; redraft.refine; {HTTP_CLIENT}",
    USED: f"import redraft; {ANSWER}; {HTTP_CLIENT}",
}
COMMANDS = {
    **{name: [sys.executable, "-c", program] for name, program in PROGRAMS.items()},
    **{
        " ".join(["redraft", *options]): [*REDRAFT, *options]
        for options in (["--help"], ["run", "--help"], ["runs", "--help"])
    },
}
# ms over Python
GOALS = {
    "import redraft": 20,
    "redraft --help": 100,
    "redraft run --help": 600,
    "redraft runs --help": 600,
}
RATIO_GOALS = {LOADED: 1.6, USED: 1.6}  # CPU time over Python, compared with that of aiohttp
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


def start(command):
    """Return the milliseconds that a command takes, and those of CPU time."""
    began, cpu_before = perf_counter(), cpu_of_children()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    )
    return 1000 * (perf_counter() - began), 1000 * (cpu_of_children() - cpu_before)


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--runs", type=int, default=31, help="processes for each figure (at least 20)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    if given.runs < 20:
        parser.error("--runs must be at least 20: single starts differ too much")
    return given


def goal_of(name, over, ratio):
    """Return the goal of a line in words, and whether it is met; two empty texts without one."""
    if name in GOALS:
        return f"{GOALS[name]} ms", "met" if over <= GOALS[name] else "missed"
    if name in RATIO_GOALS:
        return f"{RATIO_GOALS[name]:g} x", "met" if ratio <= RATIO_GOALS[name] else "missed"
    return "", ""


def main():
    given = arguments()
    for command in COMMANDS.values():
        start(command)
    rounds = [
        {name: start(command) for name, command in COMMANDS.items()} for _ in range(given.runs)
    ]
    wall, cpu = ({name: median(r[name][i] for r in rounds) for name in COMMANDS} for i in (0, 1))
    over, cpu_over = (
        {name: median(r[name][i] - r[BARE][i] for r in rounds) for name in COMMANDS} for i in (0, 1)
    )
    ratio = {name: cpu_over[name] / cpu_over[AIOHTTP] for name in PROGRAMS if name != BARE}
    goals = {name: goal_of(name, over[name], ratio.get(name)) for name in COMMANDS}

    print(f"medians of {given.runs} starts, in turn\n")
    shown = [
        [
            name,
            f"{wall[name]:.0f}",
            f"{over[name]:.0f}",
            f"{cpu[name]:.0f}",
            f"{cpu_over[name]:.0f}",
            f"{ratio[name]:.2f}" if name in ratio else "",
            *goals[name],
        ]
        for name in COMMANDS
    ]
    table(["", "wall ms", "over python", "CPU ms", "over python", "x aiohttp", "goal", ""], shown)
    met = {name: verdict == "met" for name, (_, verdict) in goals.items() if verdict}
    figures = {
        "wall_ms": wall,
        "over_python_ms": over,
        "cpu_ms": cpu,
        "cpu_over_python_ms": cpu_over,
        "x_aiohttp": ratio,
    }
    write(
        given.json,
        {
            "runs": given.runs,
            **figures,
            "goals_ms": GOALS,
            "goals_x_aiohttp": RATIO_GOALS,
            "met": met,
        },
    )


if __name__ == "__main__":
    main()
