"""Shared by the contenders of bench/batch.py: their arguments, the rows, and the measurements.
(Standard library only: each contender runs in an environment of its own.)

A row is a question of 4 KB and an answer of 2 KB, which a judge is to grade: one call.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from contextlib import contextmanager
from pathlib import Path

from common import get_json

INSTRUCTION = (
    'How well is the question answered? Answer with JSON only: {"reason": "...", "score": 0-5}'
)
ASKED = (
    "Explain, for a reader who knows the field a little, what follows from the notes below, and "
    "say what is uncertain. "
)
SAID = "an answer of a length that is usual for a question with some detail in it "


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for files")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument(
        "--start", type=int, help="calls in flight at the start, for contenders that can set it"
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, for contenders that can have several"
    )
    parser.add_argument(
        "--uvloop", action="store_true", help="run on uvloop, for contenders that can"
    )
    return parser.parse_args()


def write_rows(path, n, first=0):
    """Write a file of rows that are all different; return its path."""
    with path.open("w") as file:
        for i in range(first, first + n):
            query = f"Question {i}. {ASKED * 40}"[:4096]
            file.write(
                json.dumps(
                    {"id": str(i), "query": query, "response": f"Answer {i}: {SAID * 30}"[:2048]}
                )
                + "\n"
            )
    return path


def read(path):
    with path.open() as file:
        return [json.loads(line) for line in file]


def files(given):
    """Write a file of warm-up rows and a file of the other rows."""
    return write_rows(
        given.folder / "warm.jsonl", min(given.in_flight, 64), first=10**9
    ), write_rows(given.folder / "rows.jsonl", given.rows)


@contextmanager
def measurement(url, rows):
    """Print the CPU and wall seconds of the block, the peak memory of the process, and the server's
    counts.
    """
    server_counts(f"{url}/reset")
    gc.collect()
    cpu, wall = cpu_seconds(), time.perf_counter()
    yield
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    seen = server_counts(f"{url}/stats")
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "rows": rows, "rss_mb": peak_memory(), **seen}))


def server_counts(url):
    """Return the server's counts; empty if it has none."""
    try:
        found = get_json(url)
    except (OSError, ValueError):
        return {}
    return (
        {"served": found["calls"], "most_in_flight": found["most_in_flight"]}
        if "most_in_flight" in found
        else {}
    )


def cpu_seconds():
    """Return the CPU seconds of this process and of its children that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def peak_memory():
    """Return the peak memory of this process, in MB."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024
