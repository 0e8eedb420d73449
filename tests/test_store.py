"""Traces in files: what was written is read back, torn lines are left out, foreign files are
refused.
"""

import os
import signal
import subprocess
import sys

import pytest

from redraft import ScriptedModel, refine
from redraft.errors import StoreError
from redraft.loop.records import Candidate
from redraft.loop.task import Task
from redraft.loop.trace import Trace
from redraft.storage import JsonlStore, read_trace

SCORES = {"a": 0.1, "b": 0.3, "c": 0.95}


async def test_a_stored_trace_is_read_back_and_resumes(tmp_path):
    """Cut after any line, it resumes with the missing calls into the same file."""
    path = tmp_path / "t.jsonl"
    with JsonlStore(path) as store:
        full = await refine("q", ScriptedModel(["a", "b", "c"]), SCORES.get, store=store)
    assert read_trace(path) == full.trace
    lines = path.read_text().splitlines(keepends=True)
    for n in range(1, len(lines)):
        cut = tmp_path / f"{n}.jsonl"
        cut.write_text("".join(lines[:n]) + lines[n][: len(lines[n]) // 2])
        begun = read_trace(cut)
        left = ["a", "b", "c"][len(begun.candidates) :]
        model = ScriptedModel(left)
        with JsonlStore(cut, resume=True) as store:
            result = await refine(begun, model, SCORES.get, store=store)
        assert (result.value, model.calls) == ("c", len(left))
        assert read_trace(cut).candidates == result.trace.candidates
        assert set(map(type, read_trace(cut).records)) == set(map(type, full.trace.records))


KILLED = """
import asyncio, sys, redraft
from pathlib import Path
from redraft.storage import JsonlStore, read_trace

path, answers = sys.argv[1], iter(sys.argv[2:])

async def model(messages):
    if (answer := next(answers, None)) is None:
        print("asked", flush=True)
        await asyncio.Event().wait()
    return answer

begun = Path(path).exists()
with JsonlStore(path, resume=begun) as store:
    task = read_trace(path) if begun else "q"
    asyncio.run(redraft.refine(task, model, lambda text: len(text) / 10, store=store))
"""


def test_kill_9_loses_no_record(tmp_path):
    """Processes are killed during a call, the second one while it resumes: all answers and grades
    before it are in the file.
    """
    path = tmp_path / "t.jsonl"
    for answers, scores in ((["a"], [0.1]), (["aa", "aaa"], [0.1, 0.2, 0.3])):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), *answers], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"asked\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert read_trace(path).score_history == scores


def test_an_existing_file_is_not_overwritten(tmp_path):
    """It has to be resumed, or another file named."""
    path = tmp_path / "t.jsonl"
    path.write_text("precious\n")
    with pytest.raises(StoreError, match="exists already"):
        JsonlStore(path)
    assert path.read_text() == "precious\n"


def test_a_second_writer_is_refused(tmp_path):
    """Two processes do not mix their lines."""
    path = tmp_path / "t.jsonl"
    script = "import sys; from redraft.storage import JsonlStore; s = JsonlStore(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(StoreError, match="held by another process"):
        JsonlStore(path)
    process.communicate()


def test_a_full_disk_is_an_error_with_the_path(tmp_path):
    """The error names the full device and how much is in it."""
    with JsonlStore("/dev/full") as store, pytest.raises(StoreError, match="/dev/full.*0 records"):
        store.append(Trace(Task("q")) + Candidate(0, "x"))


async def test_a_full_disk_error_carries_the_best_so_far():
    """The answer that was graded is not lost."""

    class FullStore:
        def append(self, trace):
            if len(trace.records) > 3:
                raise StoreError("disk full")

    with pytest.raises(StoreError) as caught:
        await refine("q", ScriptedModel(["a", "b"]), SCORES.get, store=FullStore())
    assert (caught.value.result.value, caught.value.result.score) == ("b", SCORES["b"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\xff\xfe\n", "cannot be read"),
        (b"hello\n", "not JSON"),
        (b'{"redraft": 99}\n', "schema 99"),
        (b'{"redraft": 2, "task": {"messages": "q"}}\n{"kind": "candidate"}\n{}\n', "line 2"),
    ],
)
def test_foreign_files_are_refused(tmp_path, content, says):
    """The error has the file and the line, and the file is unchanged."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=says):
        read_trace(path)
    assert path.read_bytes() == content


def test_a_missing_file_is_named(tmp_path):
    """Reading and resuming both name it."""
    with pytest.raises(StoreError, match="nowhere"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="nowhere"):
        JsonlStore(tmp_path / "nowhere", resume=True)
