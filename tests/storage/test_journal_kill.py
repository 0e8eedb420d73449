"""`kill -9` at any moment loses nothing that was committed."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from redraft.storage import Journal
from redraft.storage.database import GROUP_SECONDS

WRITING = """
import asyncio, sys
from redraft import Task
from redraft.protocols import Reply
from redraft.loop.records import Candidate
from redraft.loop.serialize import record_to_json
from redraft.loop.trace import Trace
from redraft.base.jsontext import dumps_text
from redraft.storage import Journal

async def row(journal, id):
    async def said(*words):
        await journal.wait_for_commit()
        print(id, *words, flush=True)

    journal.begin_row("r", id, int(id.split("-")[1]), "k", {}, dumps_text(Trace(Task("q")).header()))
    await said("begun", 0)
    for i in range(3):
        journal.response_cache[f"{id}/{i}"] = Reply("a" * 3000)
        journal.append_records("r", id, i, [record_to_json(Candidate(i, "a" * 3000))])
        await said("record", i)
    journal.finish_row("r", id, "done", {"best": id})
    await said("done", 3)

async def main(journal, kill):
    for n in range(0, 100_000, 8):
        await asyncio.gather(*(row(journal, f"{kill}-{n + i}") for i in range(8)))

with Journal(sys.argv[1]) as journal:
    journal.update_run("r")
    asyncio.run(main(journal, sys.argv[2]))
"""


def kill_writer(path, kill, after):
    """Return what a process reported as committed before it was killed."""
    command = [sys.executable, "-c", WRITING, str(path), str(kill)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(after)]
        process.kill()
        lines += process.stdout.readlines()
    return [line.split() for line in lines if line.endswith("\n")]


@pytest.mark.slow
def test_twelve_kills_lose_nothing_committed(tmp_path):
    """Twelve processes write to one journal in turn, and each is killed while it writes."""
    path, committed, chance = tmp_path / "j", [], random.Random(4)
    for kill in range(12):
        committed += kill_writer(path, kill, after=chance.randint(1, 300))
        with Journal(path, create=False) as journal:
            assert not lost_records(journal, committed)


def lost_records(journal, committed):
    ids = sorted({id for id, *_ in committed})
    known = journal.rows_by_id("r", ids)
    traces = {note.id: trace for note, trace in journal.traces("r")}
    there = {
        "begun": lambda id, i: id in known,
        "record": lambda id, i: (
            len(traces[id].records) > i and f"{id}/{i}" in journal.response_cache
        ),
        "done": lambda id, i: known[id].status == "done" and known[id].result == {"best": id},
    }
    return [(id, what, i) for id, what, i in committed if not there[what](id, int(i))]


def test_documented_time_of_what_a_kill_loses():
    """The pages that name a time name that of the code; the how-to refers to one of them."""
    docs = Path(__file__).parents[2] / "docs"
    for page in ("batch.md", "architecture.md"):
        assert f"in about the last {GROUP_SECONDS * 1000:.0f} ms" in " ".join(
            (docs / page).read_text().split()
        )
    assert "(../batch.md#journal-and-resuming)" in (docs / "how-to/resume.md").read_text()
