"""Disks without hard links, links and modes, as FAT and exFAT have none: locks, journals and
outputs work there all the same.
"""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
from test_failing_disks import WRITERS

from disk_faults import fat_disk, like_fat
from redraft.storage import Journal
from redraft.viewer.index import RunIndex

pytestmark = pytest.mark.usefixtures("no_open_files")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    with fat_disk(tmp_path_factory.mktemp("disk") / "fat") as folder:
        yield folder


@pytest.fixture(params=["emulated", pytest.param("mounted", marks=pytest.mark.slow)])
def disk(request, tmp_path):
    """A folder on such a disk, and a context in which this process sees it so."""
    if request.param == "emulated":
        return tmp_path, like_fat()
    folder = (
        request.getfixturevalue("mounted")
        / f"{len(os.listdir(request.getfixturevalue('mounted')))}"
    )
    folder.mkdir()
    return folder, nullcontext()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_every_file_is_written_and_replaced(disk, monkeypatch):
    """Whatever writes it, the second time over the first; no lock and no draft is left."""
    folder, context = disk
    with context:
        for kind, (name, write) in WRITERS.items():
            place = folder / kind.replace("'", "")
            place.mkdir()
            for _ in range(2):
                write(place / name)
                if kind == "a trace":  # an existing one is never replaced
                    break
            assert not {each for each in names(place) if each.endswith((".lock", ".part"))}, kind
        with Journal(folder / "j") as journal:
            journal.update_run("r")
        monkeypatch.setenv("REDRAFT_HOME", str(folder / "home"))
        with RunIndex(folder / "j", "r") as index:
            index.sync()
    assert [path.suffix for path in (folder / "home" / "cache" / "view").iterdir()] == [".sqlite"]


PROCESS = """
import os, sys
def refuse(*_, **__):
    raise PermissionError(1, "Operation not permitted")
if sys.argv[1] == "emulated":
    os.link = refuse
from pathlib import Path
from redraft.errors import StoreError, StoreLockedError
from redraft.storage import Journal
from redraft.storage.secure_files import PathLock
folder = Path(sys.argv[2])
"""

KILLED_AT_EACH_STEP = (
    PROCESS
    + """
import signal
from itertools import count

def killed(step, action):
    "Return whether a forked process is killed before it has done so many steps, such as opening or locking a file."
    pid = os.fork()
    if not pid:
        try:
            steps = count()
            def hook(event, arguments):
                if event.startswith(("open", "os.", "fcntl.", "sqlite3.connect")) and next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(hook)
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

def lock():
    PathLock(folder / "one", "file").close()

def write():
    with Journal(folder / "j") as journal:
        journal.update_run("r", by=journal.metadata("r").get("by", 0) + 1)

def check(path, action):
    action()
    assert [each.name for each in folder.iterdir() if each.name.endswith((".lock", ".part"))] == [], path

steps = 0
for steps in count():
    if not killed(steps, lock):
        break
    check(steps, lock)
    for second in range(2 * steps + 2):  # a stale lock is found: there are more steps
        assert killed(steps, lock)
        if not killed(second, lock):
            break
        check((steps, second), lock)
written = 0
for written in count():
    is_killed = killed(written, write)
    check(written, write)
    with Journal(folder / "j", read_only=True) as journal:
        assert journal.metadata("r")["by"] >= written + 1
    if not is_killed:
        break
print(steps, written)
"""
)


def run(code, kind, *arguments):
    process = subprocess.run(
        [sys.executable, "-c", code, kind, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


DISKS = ["emulated", "mounted", "with links"]


@pytest.fixture
def place(request, tmp_path):
    """The name of a kind of disk, and a folder on it."""
    if request.param != "mounted":
        return request.param, tmp_path
    folder = (
        request.getfixturevalue("mounted")
        / f"{len(os.listdir(request.getfixturevalue('mounted')))}"
    )
    folder.mkdir()
    return request.param, folder


@pytest.mark.slow
@pytest.mark.parametrize("place", DISKS, indirect=True)
def test_process_that_is_killed_leaves_no_lock(place):
    """Whichever step it was killed before, and also if the next one is killed while it finds what
    was left: a third has it.
    """
    kind, folder = place
    locks, writes = map(int, run(KILLED_AT_EACH_STEP, kind, folder).split())
    assert locks > 4 and writes > locks
    assert names(folder) == ["j"]


COUNTING = (
    PROCESS
    + """
turns = 0
while turns < 25:
    try:
        lock = PathLock(folder / "j", "file")
    except StoreLockedError:
        continue
    number = int((folder / "count").read_text())
    (folder / "count").write_text(str(number + 1))
    lock.close()
    turns += 1
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("place", DISKS, indirect=True)
def test_lock_is_held_by_one_process_at_a_time(place):
    """Each reads a number and writes the next one, under the lock: none is lost."""
    kind, folder = place
    (folder / "count").write_text("0")
    command = [sys.executable, "-c", COUNTING, kind, folder]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in processes]
    assert errors == [""] * 3
    assert (folder / "count").read_text() == "75"
    assert names(folder) == ["count"]


BATCH = (
    PROCESS
    + """
import asyncio, signal
from redraft import batch
from redraft.models.functions import CallableModel
calls = 0
def model(prompt):
    global calls
    calls += 1
    with open(sys.argv[3], "a") as log:
        log.write(prompt[-1]["content"][4:5] + " ")
    if calls == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return "answer to " + prompt[-1]["content"][:5]
def grade(text):
    return 0.5
rows = [{"id": f"{n}", "prompt": f"row {n}"} for n in range(8)]
model = CallableModel(model, name="own")
asyncio.run(batch(rows, folder / "out.jsonl", model, grade, max_iterations=0, max_in_flight=1))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("place", DISKS, indirect=True)
def test_batch_that_is_killed_twice_is_resumed(place, tmp_path_factory):
    """It pays again only for the last calls, and its output is that of a run that was never
    killed.
    """
    kind, folder = place
    log = tmp_path_factory.mktemp("log") / "calls"
    first = 0
    for killed_at in (3, 4, 0):
        process = subprocess.run(
            [sys.executable, "-c", BATCH, kind, folder, log, str(killed_at)], check=False
        )
        assert process.returncode == (-9 if killed_at else 0)
        called = [int(line) for line in log.read_text().split()]
        # the answer before the last call may not be committed yet
        assert first - 1 <= called[0] <= first
        assert called == [*range(called[0], called[0] + killed_at if killed_at else 8)]
        first = called[-1]
        log.unlink()
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [(row["id"], row["best"]) for row in rows] == [
        (f"{n}", f"answer to row {n}") for n in range(8)
    ]
    assert names(folder) == ["out.jsonl", "out.jsonl.journal"]
