"""Many sandboxed processes at once, and what is left of them."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from descriptors import open_files
from redraft.sandbox import Limits, Sandbox, SandboxedProcessError
from redraft.sandbox.interpreter import _prefix_files, current_interpreter, find_packages
from sandbox import grader
from sandbox.grader import descendants, is_alive
from sandbox.test_attacks import RUN, tiers

isolated = tiers("bubblewrap", "landlock")

ANSWER = """
def main(settings, channel):
    while (message := channel.receive()) is not None:
        channel.send([settings, message])
"""
PROGRAMS = {
    "answer": ANSWER,
    "crash": "def main(s, c):\n    c.receive()\n    import ctypes\n    ctypes.string_at(0)",
    "exit": "import os\ndef main(s, c):\n    os._exit(0)",
    "no code": "def",
    "flood": "def main(s, c):\n    c.receive()\n    while True: print('x' * 10_000)",
    "loop": "def main(s, c):\n    c.receive()\n    while True: pass",
}


@pytest.mark.slow
def test_many_at_once(isolated, tmp_path):
    """Programs that run at the same time do not disturb each other, and leave no process, thread or
    descriptor behind.
    """
    for name, source in PROGRAMS.items():
        (tmp_path / name).write_text(source)
    descriptors, threads = open_files(), threading.active_count()
    others = descendants(os.getpid())

    def run(number):
        name = list(PROGRAMS)[number % len(PROGRAMS)]
        try:
            with isolated.start(
                tmp_path / name, number, Limits(cpu_seconds=0.5, wall_seconds=60, output_bytes=1000)
            ) as process:
                return name, [process.request([number, i]) for i in range(3)]
        except SandboxedProcessError as error:
            return name, error.execution.status

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(run, range(18)))
    expected = {
        "crash": "crashed",
        "exit": "exited",
        "no code": "exited",
        "flood": "output",
        "loop": "cpu",
    }
    for number, (name, result) in enumerate(results):
        assert result == (
            [[number, [number, i]] for i in range(3)] if name == "answer" else expected[name]
        )
    gc.collect()
    assert open_files() <= descriptors
    assert threading.active_count() <= threads + 1  # the one that starts processes
    assert set(descendants(os.getpid())) <= set(others)


def test_one_program_sees_nothing_of_another(isolated, tmp_path):
    """What a program wrote is gone when the next one runs, and two at the same time have folders of
    their own.
    """
    (tmp_path / "run.py").write_text(RUN)
    write = "import os\ntry: open('/tmp/trace', 'w').write('x')\nexcept OSError: pass\nprint(os.listdir('/tmp') if os.getcwd() == '/tmp' else [])"
    look = "import os\nprint([n for n in os.listdir(os.getcwd()) if n == 'trace'] if os.getcwd() == '/tmp' else [])"
    with (
        isolated.start(tmp_path / "run.py", write) as first,
        isolated.start(tmp_path / "run.py", look) as second,
    ):
        assert first.wait().status == "exited"
        assert second.wait().stdout == "[]\n"
    assert not Path("/tmp/trace").exists()


def test_many_links_to_one_file(isolated, tmp_path):
    """A link counts as a file."""
    (tmp_path / "run.py").write_text(RUN)
    program = "import os\nn = 0\ntry:\n open('x', 'w').close()\n for n in range(10**5): os.link('x', str(n))\nexcept OSError: print(n <= 50)"
    with isolated.start(tmp_path / "run.py", program, Limits(inodes=50)) as process:
        assert process.wait().stdout == "True\n"


@pytest.mark.parametrize("seconds", [0.1, pytest.param(1.1, marks=pytest.mark.slow)])
def test_cpu_time_below_and_above_a_second(isolated, tmp_path, seconds):
    """The limit of CPU time is finer than the whole seconds of the kernel's."""
    (tmp_path / "run.py").write_text(RUN)
    with isolated.start(
        tmp_path / "run.py", "while True: pass", Limits(cpu_seconds=seconds, wall_seconds=60)
    ) as process:
        execution = process.wait()
    assert execution.status == "cpu"
    assert seconds <= execution.cpu_seconds < seconds + 0.6


def test_without_a_sandbox_programs_end_with_the_grader(tmp_path):
    """Programs that only have limits end with the grader, too, and so do their folders."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, grader.__file__, "wait", "unsafe"], stdout=subprocess.PIPE, env=environment
    ) as process:
        pids = json.loads(process.stdout.readline())
        assert len(list(tmp_path.glob("redraft-unsafe-*"))) == 3
        process.kill()
    deadline = time.monotonic() + 2
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(pids) == 6  # each with the process that deletes its folder
    assert left == []
    assert list(tmp_path.glob("redraft-unsafe-*")) == []


MEMORY = """
def main(settings, channel):
    while (size := channel.receive()) is not None:
        x = bytearray(size)
        for i in range(0, size, 4096): x[i] = 1
        del x
        channel.send(0)
"""


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("here", [0, 150], ids=["small caller", "large caller"])
def test_memory_is_that_of_the_program(isolated, tmp_path, here):
    """The memory that is recorded is that of the program, however much its caller uses."""
    (tmp_path / "memory.py").write_text(MEMORY)
    ballast = bytearray(b"x" * (here * 2**20))
    used = []
    for megabytes in (1, 60):
        with isolated.start(tmp_path / "memory.py", None, Limits(memory_bytes=2**28)) as process:
            process.request(megabytes * 2**20)
        used.append(process.wait().memory_bytes / 2**20)
    del ballast
    assert used[0] < 45
    assert 55 < used[1] - used[0] < 65


def test_a_prefix_that_holds_the_home_folder(tmp_path, monkeypatch):
    """Of an interpreter that is installed into a home folder only its own files are shown."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libpython3.so").touch()
    shown = [path for path in _prefix_files(tmp_path) if Path(path).is_relative_to(tmp_path)]
    assert shown == [str(tmp_path / "lib" / "libpython3.so")]


def test_what_is_shown():
    """No path that is shown is the root folder, a home folder, or one above it."""
    home = Path.home().resolve()
    for path in (*current_interpreter().files, *find_packages(("numpy",)).files):
        assert not home.is_relative_to(path)
    names = {Path(path).name for path in find_packages(("hypothesis",)).files}
    assert {"hypothesis", "sortedcontainers"} <= names  # what it requires
    assert "numpy" not in names


def test_a_system_without_process_descriptors(tmp_path, monkeypatch):
    """Where the system lacks `pidfd_open` and `waitid`, as macOS does, the end of a process is
    noticed, too.
    """
    (tmp_path / "answer.py").write_text(ANSWER)
    (tmp_path / "loop.py").write_text(PROGRAMS["loop"])
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "waitid")
    sandbox = Sandbox("unsafe")
    with sandbox.start(tmp_path / "answer.py", 1) as process:
        assert process.request(2) == [1, 2]
        assert process.wait().status == "exited"
    with (
        sandbox.start(tmp_path / "loop.py", 1, Limits(cpu_seconds=0.2)) as process,
        pytest.raises(SandboxedProcessError) as caught,
    ):
        process.request(2)
    assert caught.value.execution.status == "cpu"
