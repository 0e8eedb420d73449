"""What the contenders of bench/batch.py share: their arguments, the rows, and what is measured. (Standard library only: each
contender runs in an environment of its own.)

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

from common import told

INSTRUCTION = 'How well is the question answered? Answer with JSON only: {"reason": "...", "score": 0-5}'
ASKED = "Explain, for a reader who knows the field a little, what follows from the notes below, and say what is uncertain. "
SAID = "an answer of a length that is usual for a question with some detail in it "


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="an empty one, to work in")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--start", type=int, help="how many calls in flight to begin with, where that can be said")
    return parser.parse_args()


def written(path, n, first=0):
    """A file of rows that are all different."""
    with path.open("w") as file:
        for i in range(first, first + n):
            query = f"Question {i}. {ASKED * 40}"[:4096]
            file.write(json.dumps({"id": str(i), "query": query, "response": f"Answer {i}: {SAID * 30}"[:2048]}) + "\n")
    return path


def read(path):
    with path.open() as file:
        return [json.loads(line) for line in file]


def files(given):
    """A few rows to warm up with, and all the others."""
    return written(given.folder / "warm.jsonl", min(given.in_flight, 64), first=10**9), written(
        given.folder / "rows.jsonl", given.rows
    )


@contextmanager
def measured(url, rows):
    """Print what the block costs: CPU and wall seconds, the most memory of the process, and what the server saw of it."""
    counted(f"{url}/reset")
    gc.collect()
    cpu, wall = cpu_seconds(), time.perf_counter()
    yield
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    seen = counted(f"{url}/stats")
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "rows": rows, "rss_mb": most_memory(), **seen}))


def counted(url):
    """What the server says of itself; nothing where it does not count."""
    try:
        found = told(url)
    except (OSError, ValueError):
        return {}
    return {"served": found["calls"], "most_in_flight": found["most_in_flight"]} if "most_in_flight" in found else {}


def cpu_seconds():
    """Of this process and its children that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def most_memory():
    """The peak of this process since it began, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
