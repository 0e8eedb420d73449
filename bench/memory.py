"""Measure memory and speed of a batch by its size, and the time to resume a finished one.

    python bench/memory.py [--rows 10000 --rows 1000000] [--in FOLDER] [--json FILE] [-- OPTIONS]

Given answers are graded by a requirement, without a model, so the figures are those of the engine,
its journal and its files. Each size runs in its own process, then again with the same command, and
once more after its output was deleted, so that all rows are read and written again. OPTIONS go to
`redraft batch`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tables import goal, table, write

MEMORY_GOAL = 1.1  # times the memory of the smallest size
GRADED_GOAL, AGAIN_GOAL = 400, 45  # seconds for a million rows, at the speed of the largest size
RUNS = {
    "graded": ("seconds", "peak_mb"),
    "again": ("again_s", "again_peak_mb"),
    "rewritten": ("rewritten_s", "rewritten_peak_mb"),
}
HEADER = [
    "rows",
    "rows/s",
    *(f"{run}, {figure}" for run in RUNS for figure in ("s", "peak MB", "x")),
    "journal MB",
]
# modules are compiled once
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
SENTENCE = (
    "It follows from the notes that the river was moved twice, and that nobody wrote down why. "
)


def write_rows(path, n):
    with path.open("w") as file:
        for i in range(n):
            file.write(
                json.dumps(
                    {
                        "id": f"row-{i}",
                        "prompt": f"What do we know of case {i}?",
                        "response": SENTENCE * (1 + i % 8),
                    }
                )
                + "\n"
            )


def run(source, output, options):
    """Return the seconds and the peak memory in MB of one run."""
    command = [
        sys.executable,
        "-m",
        "redraft",
        "batch",
        source,
        "-o",
        output,
        "--mode",
        "grade",
        "--require",
        "words:10-",
        *options,
    ]
    began = time.perf_counter()
    arguments = [str(part) for part in command]
    process = subprocess.Popen(
        arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"ended with {process.returncode}:\n{errors.decode()[-3000:]}")
    return time.perf_counter() - began, used.ru_maxrss / 1024


def measure(folder, n, options):
    """Return the figures of one size."""
    source, output = folder / f"{n}.jsonl", folder / f"{n}.out.jsonl"
    write_rows(source, n)
    figures, written = {"rows": n}, set()
    for name, (seconds, peak_mb) in RUNS.items():
        if name == "rewritten":
            output.unlink()
        figures[seconds], figures[peak_mb] = run(source, output, options)
        with output.open("rb") as file:
            written.add(hashlib.file_digest(file, "sha256").hexdigest())
    with output.open("rb") as lines:
        assert sum(1 for _ in lines) == n
    assert len(written) == 1, "the output has changed"
    journal_mb = sum(path.stat().st_size for path in folder.glob(f"{n}.out.jsonl.journal*")) / 2**20
    for path in folder.glob(f"{n}.*"):
        path.unlink()
    return {**figures, "journal_mb": journal_mb}


def row(found, least):
    cells = [str(found["rows"]), f"{found['rows'] / found['seconds']:.0f}"]
    for seconds, peak_mb in RUNS.values():
        cells += [
            f"{found[seconds]:.1f}",
            f"{found[peak_mb]:.0f}",
            f"{found[peak_mb] / least[peak_mb]:.2f}",
        ]
    return [*cells, f"{found['journal_mb']:.0f}"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rows",
        type=int,
        action="append",
        help="a size (repeatable; default: 10,000 and 1,000,000)",
    )
    parser.add_argument(
        "--in",
        dest="folder",
        metavar="FOLDER",
        help="folder for temporary files (a few GB for a million rows)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    parser.add_argument(
        "options", nargs="*", metavar="OPTIONS", help="after --: options of `redraft batch`"
    )
    given = parser.parse_args()
    given.rows = sorted(given.rows or [10_000, 1_000_000])
    return given


def show_goals(found):
    """Print the goals for the largest size."""
    largest, millions = found[-1], found[-1]["rows"] / 1e6
    for what, seconds, most in (
        ("graded", largest["seconds"], GRADED_GOAL),
        ("found finished", largest["again_s"], AGAIN_GOAL),
    ):
        goal(
            f"a million rows {what} in {most} s",
            f"{seconds / millions:.0f} s",
            met=seconds / millions <= most,
        )
    if len(found) > 1:
        for when, name in (
            ("graded", "peak_mb"),
            ("found finished", "again_peak_mb"),
            ("rewritten", "rewritten_peak_mb"),
        ):
            ratio, what = (
                largest[name] / found[0][name],
                f"memory when {when}, within {MEMORY_GOAL:g}x of the smallest size",
            )
            goal(what, f"{ratio:.2f}x", met=ratio <= MEMORY_GOAL)


def main():
    given = arguments()
    found = []
    with TemporaryDirectory(dir=given.folder) as folder:
        for n in given.rows:
            print(f"{n} rows ...", file=sys.stderr)
            found.append(measure(Path(folder), n, given.options))
    table(HEADER, [row(each, found[0]) for each in found])
    print()
    show_goals(found)
    write(given.json, {"sizes": found})


if __name__ == "__main__":
    main()
