"""Measure the cost of a journal: group commit against one transaction per write, and the speed of
reading it.

    python bench/journal.py [--rows 100000] [--records 5] [--bytes 700] [--in-flight 512]
    [--durability normal] [--json FILE]

All write the same rows into separate temporary files: the start of a row, its records one by one,
then its result. The first waits for a commit once for `--in-flight` rows, the second (on a
hundredth of the rows) after every write. The third writes as a batch does: every row is a task that
waits for a commit before its last record and after its result, and keeps a reply in the response
cache; `--in-flight` of them at a time.
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
from time import perf_counter, process_time

from redraft import Task
from redraft.base.jsontext import dumps_text
from redraft.loop.records import Candidate
from redraft.loop.serialize import record_to_json
from redraft.loop.trace import Trace
from redraft.protocols import Reply
from redraft.storage import Journal
from tables import goal, table, write

RUN = "bench"
GOAL = 15  # us of CPU, all threads


def first_lines(given):
    """Return the header and the records that every row has."""
    header = dumps_text(Trace(Task("What is it? " * 20)).header())
    return header, [record_to_json(Candidate(i, "x" * given.bytes)) for i in range(given.records)]


def steps(given, rows):
    """Yield the writes of all rows: (row, method of the journal, arguments)."""
    header, lines = first_lines(given)
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
    """Return the seconds that it took, and the CPU time of all threads."""
    with Journal(path, durability=given.durability) as journal:
        journal.update_run(RUN)
        began, cpu = perf_counter(), process_time()
        await how(journal, given)
        return perf_counter() - began, process_time() - cpu


async def as_a_batch(journal, given):
    """Write all rows in tasks that wait for commits of their own."""
    rows = iter(range(given.rows))
    header, lines = first_lines(given)
    reply = Reply("x" * given.bytes)

    async def work():
        for n in rows:
            id = sha256(str(n).encode()).hexdigest()
            journal.begin_row(RUN, id, n, id, {}, header)
            for i, line in enumerate(lines[:-1]):
                journal.append_records(RUN, id, i, [line])
            journal.response_cache[id] = reply
            await journal.wait_for_commit()
            journal.append_records(RUN, id, len(lines) - 1, lines[-1:])
            journal.finish_row(RUN, id, "done", {"best": "x" * given.bytes})
            await journal.wait_for_commit()

    await asyncio.gather(*(work() for _ in range(given.in_flight)))


def read_back(path, rows):
    """Return the milliseconds to look up 1,000 rows and to count all, and the traces read per
    second.
    """
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
    return {
        "known ms": 1e3 * known * 1000 / len(ids),
        "counts ms": 1e3 * counted,
        "traces/s": count / traced,
    }


def main():
    """Measure both ways of writing, then read the first journal."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("--rows", 100_000),
        ("--records", 5),
        ("--bytes", 700),
        ("--in-flight", 512),
    ):
        options.add_argument(name, type=int, default=default)
    options.add_argument("--durability", choices=("normal", "full"), default="normal")
    options.add_argument("--json")
    given = options.parse_args()
    if given.rows < 100:
        sys.exit("--rows must be at least 100")
    writes = given.records + 2
    ways = {
        "grouped": (in_groups, given.rows, writes),
        "one by one": (one_by_one, given.rows // 100, writes),
        "as a batch": (as_a_batch, given.rows, writes + 1),
    }
    with TemporaryDirectory() as folder:
        found = {}
        for name, (how, rows, _) in ways.items():
            wall, cpu = asyncio.run(time_writes(Path(folder, name), given, how))
            found[name] = wall / rows, cpu / rows
        grouped = Path(folder, "grouped")
        figures = read_back(grouped, given.rows)
        megabytes = grouped.stat().st_size / 1e6
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (least, _), (each, _), (batch, batch_cpu) = found.values()
    table(
        [
            f"{given.rows} rows, {writes} writes each, {given.durability}",
            "rows/s",
            "us/write",
            "x",
            "CPU us/write",
        ],
        [
            [
                name,
                f"{1 / wall:.0f}",
                f"{1e6 * wall / n:.0f}",
                f"{wall / least:.1f}",
                f"{1e6 * cpu / n:.1f}",
            ]
            for (name, (wall, cpu)), (_, _, n) in zip(found.items(), ways.values(), strict=True)
        ],
    )
    print(f"\n{megabytes:.0f} MB in the file, {memory:.0f} MB of memory at most")
    print(
        ", ".join(f"{name} {value:.0f}" for name, value in figures.items())
        + " (known: for 1,000 ids)"
    )
    cost = 1e6 * batch_cpu / (writes + 1)
    goal(f"a write of a batch takes at most {GOAL} us of CPU", f"{cost:.1f} us", met=cost <= GOAL)
    out = {
        "grouped_s_per_row": least,
        "one_by_one_s_per_row": each,
        "batch_s_per_row": batch,
        "batch_cpu_s_per_row": batch_cpu,
    }
    write(given.json, {**out, "mb": megabytes, "memory_mb": memory, **figures})


if __name__ == "__main__":
    main()
