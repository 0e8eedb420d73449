"""What keeping rows costs: a journal with group commit beside one with a transaction each, and how fast it is read back.

    python bench/journal.py [--rows 100000] [--records 5] [--bytes 700] [--in-flight 512] [--durability normal] [--json FILE]

Both write the same rows into a file of their own in the folder for temporary files: a row is begun, its records come one
by one, then its result. The first awaits its commit once for `--in-flight` rows, the second (on a hundredth of the rows)
after every write.
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


def steps(asked, rows):
    """The writes of all rows, one after another: (row, method of the journal, arguments)."""
    header = Trace(Task("What is it? " * 20)).header()
    lines = [record_to_json(Candidate(i, "x" * asked.bytes)) for i in range(asked.records)]
    for n in range(rows):
        id = sha256(str(n).encode()).hexdigest()
        yield n, Journal.begin_row, (RUN, id, n, id, {}, header)
        for i, line in enumerate(lines):
            yield n, Journal.append_records, (RUN, id, i, [line])
        yield n, Journal.finish_row, (RUN, id, "done", {"best": "x" * asked.bytes})


async def in_groups(journal, asked):
    """Write all, waiting once for so many rows."""
    waited = 0
    for n, step, arguments in steps(asked, asked.rows):
        if n >= waited + asked.in_flight:
            await journal.committed()
            waited = n
        step(journal, *arguments)
    await journal.committed()


async def one_by_one(journal, asked):
    """Write some, waiting every time."""
    for _, step, arguments in steps(asked, asked.rows // 100):
        step(journal, *arguments)
        journal.flush()


async def timed(path, asked, how):
    """Seconds that it took."""
    with Journal(path, durability=asked.durability) as journal:
        journal.update_run(RUN)
        began = perf_counter()
        await how(journal, asked)
        return perf_counter() - began


def read_back(path, rows):
    """Milliseconds to look up 1,000 rows and to count all, and traces read in a second."""
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
    """Measure both, then read the first back."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rows", 100_000), ("--records", 5), ("--bytes", 700), ("--in-flight", 512)):
        options.add_argument(name, type=int, default=default)
    options.add_argument("--durability", choices=("normal", "full"), default="normal")
    options.add_argument("--json")
    asked = options.parse_args()
    if asked.rows < 100:
        sys.exit("--rows must be at least 100")
    with TemporaryDirectory() as folder:
        grouped, each = Path(folder, "grouped"), Path(folder, "each")
        a = asyncio.run(timed(grouped, asked, in_groups)) / asked.rows
        b = asyncio.run(timed(each, asked, one_by_one)) / (asked.rows // 100)
        figures = read_back(grouped, asked.rows)
        megabytes = grouped.stat().st_size / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    writes = asked.records + 2
    table(
        [f"{asked.rows} rows, {writes} writes each, {asked.durability}", "rows/s", "us/write", "x"],
        [[name, f"{1 / s:.0f}", f"{1e6 * s / writes:.0f}", f"{s / a:.1f}"] for name, s in (("grouped", a), ("one by one", b))],
    )
    print(f"\n{megabytes:.0f} MB in the file, {memory:.0f} MB of memory at most")
    print(", ".join(f"{name} {value:.0f}" for name, value in figures.items()) + " (known: for 1,000 ids)")
    write(asked.json, {"grouped_s_per_row": a, "one_by_one_s_per_row": b, "mb": megabytes, "memory_mb": memory, **figures})


if __name__ == "__main__":
    main()
