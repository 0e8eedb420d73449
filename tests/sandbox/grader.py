"""A grader in a process of its own: runs sandboxed programs and waits, so that a test can kill it;
or reports all attacks.

grader.py wait TIER      start programs that loop, sleep and write files; print the process IDs of all its descendants
grader.py attacks TIER   run each attack of `attacks.py`; print what succeeded, as JSON
"""

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from redraft.sandbox import Limits, Sandbox, SandboxedProcessError
from sandbox.attacks import ESCAPE_RUNNER, ESCAPES

PROGRAMS = [
    "while True: pass",
    "import time\ntime.sleep(60)",
    "import time\ntry: open('file', 'w').write('x')\nexcept PermissionError: pass\ntime.sleep(60)",
]
RUN = "def main(settings, channel):\n    channel.receive()\n    channel.send(1)\n    exec(settings, {})\n"


def descendants(pid):
    """The process IDs of all children, and theirs."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*"):  # empty if the process has ended
        with suppress(OSError):  # a thread that has just ended
            children += map(int, (task / "children").read_text().split())
    return [*children, *(found for child in children for found in descendants(child))]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait(tier, folder):
    (folder / "run.py").write_text(RUN)
    processes = [
        Sandbox(tier).start(folder / "run.py", program, Limits(cpu_seconds=100))
        for program in PROGRAMS
    ]
    threads = [threading.Thread(target=p.request, args=(0,)) for p in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (folder / "run.py").unlink()
    print(json.dumps(descendants(os.getpid())), flush=True)
    time.sleep(60)


def attacks(tier, folder):
    (folder / "run.py").write_text(ESCAPE_RUNNER)
    (folder / "canary").write_text("canary")
    facts = {
        "folder": str(folder),
        "canary": str(folder / "canary"),
        "home": str(Path.home()),
        "port": 9,
        "port6": 9,
        "abstract": "none",
        "victim": os.getpid(),
        "host": os.uname().nodename,
    }
    results, left = {}, list(ESCAPES)
    while left:
        with Sandbox(tier).start(folder / "run.py", facts, Limits(cpu_seconds=20)) as process:
            try:
                while left:
                    name, expression, _ = left.pop(0)
                    results[name] = process.request(expression)
            except SandboxedProcessError as error:  # the next attacks get a new process
                results[name] = ["ended", error.execution.status, error.execution.stdout]
    print(json.dumps({"tier": Sandbox(tier).tier, "results": results}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        {"wait": wait, "attacks": attacks}[sys.argv[1]](sys.argv[2], Path(name))
