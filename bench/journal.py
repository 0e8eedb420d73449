"""Measure the cost of a journal: group commit against one transaction per write, and the speed of reading it.

    python bench/journal.py [--rows 100000] [--records 5] [--bytes 700] [--in-flight 512] [--durability normal] [--json FILE]

Both write the same rows into separate temporary files: the start of a row, its records one by one, then its result. The first
waits for a commit once for `--in-flight` rows, the second (on a hundredth of the rows) after every write.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from redraft import Task
from redraft.core.records import Candidate
from redraft.core.serialize import record_to_json
from redraft.core.trace import Trace
from redraft.storage import Journal
from tables import table, write

RUN = "bench"


def steps(given, rows):
    """Yield the writes of all rows: (row, method of the journal, arguments)."""
    header = Trace(Task("What is it? " * 20)).header()
    lines = [record_to_json(Candidate(i, "x" * given.bytes)) for i in range(given.records)]
    for n in range(rows):
        id = sha256(str(n).encode()).hexdigest()
        yield n, Journal.begin_row, (RUN, id, n, id, {}, header)
        for i, line in enumerate(lines):
            yield n, Journal.append_records, (RUN, id, i, [line])
        yield n, Journal.finish_row, (RUN, id, "done", {"best": "x" * given.bytes})


async def in_groups(journal, given):
    """Write all rows, waiting once per group."""
    waited = 0
    for n, step, arguments in steps(given, given.rows):
        if n >= waited + given.in_flight:
            await journal.wait_for_commit()
            waited = n
        step(journal, *arguments)
    await journal.wait_for_commit()


async def one_by_one(journal, given):
    """Write some rows, waiting after each write."""
    for _, step, arguments in steps(given, given.rows // 100):
        step(journal, *arguments)
        journal.flush()


async def time_writes(path, given, how):
    """Return the seconds that it took."""
    with Journal(path, durability=given.durability) as journal:
        journal.update_run(RUN)
        began = perf_counter()
        await how(journal, given)
        return perf_counter() - began


def read_back(path, rows):
    """Return the milliseconds to look up 1,000 rows and to count all, and the traces read per second."""
    ids = [sha256(str(n).encode()).hexdigest() for n in range(0, rows, max(1, rows // 1000))][:1000]
    with Journal(path, read_only=True) as journal:
        times = [perf_counter()]
        for part in range(0, len(ids), 250):
            journal.rows_by_id(RUN, ids[part : part + 250])
        times.append(perf_counter())
        journal.run(RUN)
        times.append(perf_counter())
        count = sum(1 for _ in zip(range(20_000), journal.traces(RUN), strict=False))
        times.append(perf_counter())
    known, counted, traced = (b - a for a, b in pairwise(times))
    return {"known ms": 1e3 * known * 1000 / len(ids), "counts ms": 1e3 * counted, "traces/s": count / traced}


def main():
    """Measure both ways of writing, then read the first journal."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rows", 100_000), ("--records", 5), ("--bytes", 700), ("--in-flight", 512)):
        options.add_argument(name, type=int, default=default)
    options.add_argument("--durability", choices=("normal", "full"), default="normal")
    options.add_argument("--json")
    given = options.parse_args()
    if given.rows < 100:
        sys.exit("--rows must be at least 100")
    with TemporaryDirectory() as folder:
        grouped, each = Path(folder, "grouped"), Path(folder, "each")
        a = asyncio.run(time_writes(grouped, given, in_groups)) / given.rows
        b = asyncio.run(time_writes(each, given, one_by_one)) / (given.rows // 100)
        figures = read_back(grouped, given.rows)
        megabytes = grouped.stat().st_size / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    writes = given.records + 2
    table(
        [f"{given.rows} rows, {writes} writes each, {given.durability}", "rows/s", "us/write", "x"],
        [[name, f"{1 / s:.0f}", f"{1e6 * s / writes:.0f}", f"{s / a:.1f}"] for name, s in (("grouped", a), ("one by one", b))],
    )
    print(f"\n{megabytes:.0f} MB in the file, {memory:.0f} MB of memory at most")
    print(", ".join(f"{name} {value:.0f}" for name, value in figures.items()) + " (known: for 1,000 ids)")
    write(given.json, {"grouped_s_per_row": a, "one_by_one_s_per_row": b, "mb": megabytes, "memory_mb": memory, **figures})


if __name__ == "__main__":
    main()
