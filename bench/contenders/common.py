"""Shared by all contenders: their arguments, their request, and the measurement of time. (Standard
library only: each contender runs in an environment of its own.)

A row is one draft and three refinements of it: four calls. The prompt has 4 KB; a refinement also
sends the last answer.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from contextlib import contextmanager
from urllib.request import urlopen

CALLS_A_ROW = 4
ASKED = (
    "Explain, for a reader who knows the field a little, what follows from the notes below, and "
    "say what is uncertain. "
)
PROMPT = (ASKED * (4096 // len(ASKED) + 1))[:4096]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    return parser.parse_args()


@contextmanager
def measurement(url, calls):
    """Print the CPU and wall seconds of the block, and the server's counts."""
    get_json(f"{url}/reset")
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    yield
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    seen = get_json(f"{url}/stats")
    print(
        json.dumps(
            {
                "cpu_s": cpu,
                "wall_s": wall,
                "calls": calls,
                "served": seen["calls"],
                "most_in_flight": seen["most_in_flight"],
            }
        )
    )


def get_json(url):
    with urlopen(url) as response:
        return json.load(response)
