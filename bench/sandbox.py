"""Measure the sandbox: how long a program takes to start and end in each tier, and how many of them
run in a second.

    python bench/sandbox.py [--programs 200] [--threads N] [--tier TIER ...] [--json FILE]

A program is a function that is called five times, each call a message, as the grader `tests` does
it. Tiers that do not work here are left out, with the reason; `--tier docker:IMAGE` adds one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

from redraft.errors import SandboxUnavailableError
from redraft.sandbox import Sandbox
from tables import table, write

GOAL = 25.0  # programs a second
TIERS = ("bubblewrap", "landlock", "unsafe")
CALLS = 5
RUNNER = """
def main(code, channel):
    names = {}
    exec(code, names)
    while (arguments := channel.receive()) is not None:
        channel.send(names["f"](*arguments))
"""
CODE = (
    "import math\ndef f(n):\n    return [k for k in range(2, n) if all(k % d for d in range(2, "
    "math.isqrt(k) + 1))]"
)
HEADER = ["", "programs/s", "start ms", "call ms", "end ms", "CPU ms", "memory MiB"]


def run_program(sandbox, runner):
    """Run one program; return the seconds of its parts and what it used."""
    times = [perf_counter()]
    with sandbox.start(runner, CODE) as process:
        times.append(perf_counter())
        for _ in range(CALLS):
            assert process.request([100])[-1] == 97
        times.append(perf_counter())
        execution = process.wait()
        times.append(perf_counter())
    start, calls, end = (after - before for before, after in pairwise(times))
    return {
        "start": start,
        "call": calls / CALLS,
        "end": end,
        "cpu": execution.cpu_seconds,
        "memory": execution.memory_bytes,
    }


def measure(sandbox, runner, programs, threads):
    """Run programs in as many threads; return medians and the programs a second."""
    run_program(sandbox, runner)
    with ThreadPoolExecutor(threads) as pool:
        begun = perf_counter()
        parts = list(pool.map(lambda _: run_program(sandbox, runner), range(programs)))
        seconds = perf_counter() - begun
    known = {name: [p[name] for p in parts if p[name] is not None] for name in parts[0]}
    medians = {name: median(values) if values else None for name, values in known.items()}
    return {"programs_per_second": programs / seconds, **medians}


def bare(programs, threads):
    """Return how many bare interpreters run in a second."""
    command = [sys.executable, "-I", "-S", "-c", "pass"]
    with ThreadPoolExecutor(threads) as pool:
        begun = perf_counter()
        list(pool.map(lambda _: subprocess.run(command, check=True), range(programs)))
        return programs / (perf_counter() - begun)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=200, help="programs for each tier")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="programs at once"
    )
    parser.add_argument("--tier", action="append", metavar="TIER", help="a tier; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    return parser.parse_args()


def main():
    given = arguments()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        runner = Path(folder, "runner.py")
        runner.write_text(RUNNER)
        for tier in given.tier or TIERS:
            try:
                assert Sandbox(tier).tier
                figures[tier] = measure(Sandbox(tier), runner, given.programs, given.threads)
            except SandboxUnavailableError as error:
                print(f"{tier} is left out: {error}", file=sys.stderr)
    interpreters = bare(given.programs, given.threads)

    print(f"{given.programs} programs, {given.threads} at once\n")
    rows = [
        [tier, *(shown(f[key], scale) for key, scale in COLUMNS.items())]
        for tier, f in figures.items()
    ]
    table(HEADER, [*rows, ["bare python", f"{interpreters:.1f}", *[""] * (len(HEADER) - 2)]])
    met = {tier: f["programs_per_second"] >= GOAL for tier, f in figures.items()}
    write(
        given.json,
        {
            "programs": given.programs,
            "threads": given.threads,
            "tiers": figures,
            "bare_per_second": interpreters,
            "met": met,
        },
    )


COLUMNS = {
    "programs_per_second": 1,
    "start": 1000,
    "call": 1000,
    "end": 1000,
    "cpu": 1000,
    "memory": 1 / 2**20,
}


def shown(value, scale):
    return "" if value is None else f"{value * scale:.1f}"


if __name__ == "__main__":
    main()
