"""The tier "docker:IMAGE": the client's command, the carried streams, the limits inside, and the
end.

Most tests use a client that starts the program on this machine instead of in a container:
everything is real but the container. With an image in the environment
(`SANDBOX_IMAGE=python:3.13-slim pytest tests/sandbox/test_docker.py`) they use it, and the real
client.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redraft.errors import ConfigError, SandboxUnavailableError
from redraft.sandbox import Limits, Sandbox, SandboxedProcessError, docker
from redraft.sandbox import tiers as tiers_module
from redraft.sandbox.code import parse_tests, run_tests
from sandbox.grader import is_alive
from sandbox.test_attacks import RUN
from sandbox.test_process import KINDS, OF_PROGRAM

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not Linux")

IMAGE = os.environ.get("SANDBOX_IMAGE", "")
STAND_IN = """#!{python} -IS
import os, sys
if "missing" in sys.argv:
    sys.exit("Error response from daemon: No such image: missing")
program = sys.argv[sys.argv.index("image") + 1:]
os.execv({python!r}, [{python!r}, *program[1:]])
"""
ECHO = """
def main(settings, channel):
    while (message := channel.receive()) is not None:
        channel.send(eval(message["run"]) if isinstance(message, dict) else [settings, message])
"""


@pytest.fixture(autouse=True)
def client(tmp_path, monkeypatch):
    """Make the client's stand-in the only client, or use the real one."""
    tiers_module.choose_tier.cache_clear()
    if not IMAGE:
        folder = tmp_path / "clients"
        folder.mkdir()
        (folder / "docker").write_text(STAND_IN.format(python=os.path.realpath(sys.executable)))
        (folder / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr("redraft.sandbox.launch.FOLDER", str(folder))
    yield
    tiers_module.choose_tier.cache_clear()


@pytest.fixture
def sandbox():
    return Sandbox(f"docker:{IMAGE or 'image'}")


@pytest.fixture
def start(sandbox, tmp_path):
    """Start a program, or a runner."""

    def start(source, settings=None, **limits):
        (tmp_path / "run.py").write_text(source)
        return sandbox.start(tmp_path / "run.py", settings, Limits(**limits))

    return start


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("value", [0, "é\n\0🙂\ud800", [1.5, {"a": [10**30]}], "x" * 3_000_000])
def test_messages_arrive_unchanged(start, value):
    """Messages of any size go through all pipes, in both directions at once."""
    with start(ECHO, "settings") as process:
        assert process.request(value) == ["settings", value]
        assert process.request(value) == ["settings", value]


ENDS = {
    "exit": (
        "print('o')\nimport sys, os\nprint('e', file=sys.stderr)\nsys.stdout.flush()\nos._exit(7)",
        {},
        ("exited", 7, None),
    ),
    "signal": ("import os\nos.kill(os.getpid(), 11)", {}, ("crashed", None, 11)),
    "loop": ("while True: pass", dict(cpu_seconds=0.3), ("cpu", None, None)),
    "sleep": ("import time\ntime.sleep(60)", dict(wall_seconds=1.5), ("wall", None, None)),
    "memory": ("bytearray(10**12)", {}, ("memory", 124, None)),
    "threads": (
        "import threading, time\nthreading.stack_size(32768)\nfor _ in range(60): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\ntime.sleep(60)",
        dict(threads=20),
        ("threads", None, None),
    ),
    "flood": ("while True: print('x' * 10**6)", dict(output_bytes=10_000), ("output", None, None)),
    "descriptors closed": (
        "import os, time\nos.closerange(0, 100)\ntime.sleep(60)",
        dict(wall_seconds=1.5),
        ("wall", None, None),
    ),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.slow(but_each=4)
def test_how_a_program_ends(start, sandbox, name):
    """The record has the limit, exit code or signal of the program, not those of the client."""
    program, limits, end = ENDS[name]
    with start(RUN, program, **limits) as process:
        execution = process.wait()
    assert (execution.status, execution.exit_code, execution.signal) == end, execution
    assert execution.tier == sandbox.spec
    assert execution.wall_seconds < 15
    if name == "exit":
        assert (execution.stdout, execution.stderr) == ("o\n", "e\n")
    if end[0] not in ("wall", "output"):
        assert 0 < execution.cpu_seconds < 2
        assert 10**6 < execution.memory_bytes < 10**9


def test_an_unknown_end_has_no_figures(start):
    """The CPU time and memory of the client are not taken for those of the program."""
    with start(ECHO, None) as process:
        process.kill()
        execution = process.wait()
    assert (execution.status, execution.cpu_seconds, execution.memory_bytes) == (
        "killed",
        None,
        None,
    )


@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "socket.socket()",
        "os.kill(os.getppid(), 9)",
        "open('/proc/%d/mem' % os.getppid(), 'rb+')",
    ],
)
def test_the_filter_applies_inside(start, attempt):
    """A program starts no process, opens no socket, and cannot get at the process that carries its
    messages.
    """
    runner = "import os, socket\ndef main(s, channel):\n channel.receive()\n try: channel.send(repr(eval(s)))\n except OSError as e: channel.send(e.errno)\n"
    with start(runner, attempt) as process:
        assert process.request(0) in (1, 13)


def test_a_forged_report_is_not_believed(start):
    """What a program writes is carried as its output, even if it has the form of the carrier's
    messages.
    """
    report = b'{"reason": null, "exit_code": 0, "signal": null}'
    forged = b"\3" + len(report).to_bytes(4, "big") + report
    with start(RUN, f"import os\nos.write(1, {forged!r})\nos._exit(9)") as process:
        execution = process.wait()
    assert (execution.exit_code, execution.stdout.encode()) == (9, forged)


@pytest.mark.slow
def test_tools_are_those_of_the_image(sandbox):
    """A tool is found inside, and may start programs."""
    code = "import subprocess, sys; print(open('a/b').read(), sys.stdin.read(), subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True).stdout)"
    execution = sandbox.run_tool(["python", "-c", code], stdin=b"c", files={"a/b": b"d"})
    assert (execution.exit_code, execution.stdout) == (0, "d c b'1\\n'\n"), execution
    assert "No such file" in sandbox.run_tool(["no-such-tool"]).stderr
    assert (
        sandbox.run_tool(["python", "-c", f"{KINDS}print(kinds)"]).stdout
        == "{0: 'p', 1: 'p', 2: 'p'}\n"
    )


def test_what_a_program_has_open(start):
    """An empty input, its output, and the pipes of its messages."""
    with start(RUN, OF_PROGRAM) as process:
        assert process.wait().stdout == "['c', 'p', 'p'] p p\n"


GRADER = """
import sys
from pathlib import Path
from redraft.sandbox import Limits, Sandbox
with Sandbox({spec!r}).start(Path({runner!r}), None, Limits(cpu_seconds=100)) as process:
    print(process.request({{"run": "__import__('os').getpid()"}}), flush=True)
    process.request({{"run": "sum(iter(int, 1))"}})
"""


@pytest.mark.skipif(bool(IMAGE), reason="SANDBOX_IMAGE is set")
def test_kill_9_of_the_grader_ends_the_program(sandbox, tmp_path):
    """Soon nothing of it runs."""
    (tmp_path / "echo.py").write_text(ECHO)
    script = GRADER.format(spec=sandbox.spec, runner=str(tmp_path / "echo.py"))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as grader:
        program = int(grader.stdout.readline())
        assert Path(f"/proc/{program}").exists()
        grader.kill()
    ends = time.monotonic() + 20
    while is_alive(program) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not is_alive(program)


@pytest.mark.parametrize("client", ["docker", "podman"])
def test_the_command(client):
    """A container gets no network, no rights, no files of this machine, and the limits."""
    command = docker.client_command(
        f"/usr/bin/{client}",
        "image",
        Limits(disk_bytes=10**6, inodes=9, threads=30, memory_bytes=10**9),
    )
    options = " ".join(command)
    for option in (
        "--network=none",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--ipc=none",
        "--pull=never",
        "--rm",
    ):
        assert option in command
    assert command[-1] == "image"
    assert "--pids-limit 38" in options
    assert "size=1000000" in options
    assert ("nr_inodes=10" in options) == (client == "docker")
    assert not {"-v", "--volume", "--mount", "--privileged", "-e", "--env", "--device"} & {
        part.partition("=")[0] for part in command
    }


@pytest.mark.parametrize("image", ["", "-v", "--privileged", "a b", "a\nb", "ä", "$(x)", " a"])
def test_no_image_is_taken_for_an_option(image):
    """A name of an image that no image can have is refused before anything runs."""
    with pytest.raises(ConfigError, match="sandbox must be docker:IMAGE"):
        Sandbox(f"docker:{image}")


@pytest.mark.skipif(bool(IMAGE), reason="SANDBOX_IMAGE is set")
def test_an_image_that_is_not_there():
    """The error has the client's words, and says what to do."""
    with pytest.raises(
        SandboxUnavailableError,
        match=r"docker:missing: .*No such image: missing.*docker pull IMAGE",
    ):
        Sandbox("docker:missing").tier


@pytest.mark.skipif(bool(IMAGE), reason="SANDBOX_IMAGE is set")
def test_packages_are_those_of_the_image(start, tmp_path):
    """A package may be named by its distribution or its module."""
    sandbox = Sandbox("docker:image", packages=["pip", "json"])
    assert sandbox.tier == "docker:image"
    (tmp_path / "run.py").write_text(ECHO)
    with sandbox.start(tmp_path / "run.py", None) as process:
        assert process.request({"run": "__import__('pip').__name__"}) == "pip"


@pytest.mark.slow
def test_a_package_that_the_image_lacks():
    """It is an error, before anything runs, and no verdict; the error says what to do."""
    sandbox = Sandbox(f"docker:{IMAGE or 'image'}", packages=["json", "nothing-of-that-name"])
    message = r"docker:.*the image '.*' has no package 'nothing-of-that-name': .*pip install nothing-of-that-name.*packages="
    with pytest.raises(SandboxUnavailableError, match=message):
        sandbox.tier
    tests = parse_tests([{"input": [], "output": 1}], "f")
    with pytest.raises(SandboxUnavailableError, match=message):
        run_tests("import json\ndef f(): return 1", tests, sandbox=sandbox)


@pytest.mark.skipif(bool(IMAGE), reason="SANDBOX_IMAGE is set")
@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("#!/bin/sh\nexit 127", r"docker:image: .*with Python 3.11 or later as python3"),
        (
            "#!{python} -IS\nimport sys\nsys.version_info = (3, 8, 1)\nexec(sys.argv[sys.argv.index('-c') + 1])",
            "is Python 3.8, and 3.11 or later is needed",
        ),
    ],
    ids=["no Python", "an old one"],
)
def test_an_image_without_a_new_python(tmp_path, python, message):
    """Nothing runs in it."""
    real = os.path.realpath(sys.executable)
    (tmp_path / "python3").write_text(python.replace("{python}", real))
    (tmp_path / "python3").chmod(0o755)
    stand_in = STAND_IN.replace(
        "{python!r}, [{python!r}, *program[1:]]", f"{str(tmp_path / 'python3')!r}, program"
    )
    (tmp_path / "clients" / "docker").write_text(stand_in.format(python=real))
    with pytest.raises(SandboxUnavailableError, match=message):
        Sandbox("docker:image").tier


def test_no_client(monkeypatch, tmp_path):
    """Without a client the error names both."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="neither docker nor podman is installed"):
        Sandbox("docker:image").tier


def test_the_client_gets_no_keys(monkeypatch, start):
    """Its environment has what it needs to find its service, and nothing else."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.setenv("DOCKER_HOST", os.environ.get("DOCKER_HOST", "unix:///a"))
    launch = docker.launch(
        "image", tiers_module.Program({"runner": "", "settings": None}, Limits())
    )
    assert "DOCKER_HOST" in launch.environment
    assert "canary" not in str(launch)
    with start(ECHO) as process, pytest.raises(SandboxedProcessError):
        process.request({"run": "__import__('os').environ['OPENAI_API_KEY']"})
