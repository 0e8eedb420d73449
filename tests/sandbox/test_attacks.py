"""Attacks on the sandbox: what a program inside gets hold of, and what it can use up."""

import os
import platform
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from redraft.sandbox import Limits, Sandbox, SandboxedProcessError
from require import require_sandbox
from sandbox.attacks import ESCAPE_RUNNER, ESCAPES, EXHAUSTIONS

LIMITS = Limits(
    memory_bytes=256 * 2**20,
    threads=40,
    file_bytes=2**20,
    disk_bytes=4 * 2**20,
    inodes=100,
    output_bytes=10_000,
)
ISOLATING = ["bubblewrap", "landlock"]
# what a program learns in a tier without namespaces: it may, and the documentation says so
LEARNED = {
    "landlock": (
        "see whether it exists",
        "read inherited descriptors",
        "be root",
        "read the host's name",
    ),
}
ATTACK_LIMITS = Limits(cpu_seconds=20, wall_seconds=120, threads=40)
RUN = "def main(settings, channel):\n    exec(compile(settings, '<program>', 'exec'), {'__name__': '__main__'})\n"


def tiers(*names):
    """A sandbox of each tier; a tier that does not work here skips with the reason."""
    return pytest.fixture(scope="module", params=names)(_sandbox)


def _sandbox(request):
    return require_sandbox(request.param)


sandbox = tiers(*ISOLATING)


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Things of this machine that a program may not reach: a file, listeners, a process."""
    folder = tmp_path_factory.mktemp("outside")
    canary = folder / "canary"
    canary.write_text("the canary sings")
    folder.chmod(0o777)
    canary.chmod(0o666)
    inherited = canary.open()
    os.set_inheritable(inherited.fileno(), True)
    os.environ["REDRAFT_CANARY"] = "the canary sings"
    abstract = f"redraft-{os.getpid()}"
    listeners = [
        _listener(socket.AF_INET, ("127.0.0.1", 0)),
        _listener(socket.AF_UNIX, f"{folder}/socket"),
        _listener(socket.AF_UNIX, f"\0{abstract}"),
    ]
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(f"\0{abstract}d")
    datagrams.setblocking(False)
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    facts = {
        "folder": str(folder),
        "canary": str(canary),
        "home": str(Path.home()),
        "port": listeners[0].getsockname()[1],
        "port6": listeners[0].getsockname()[1],
        "abstract": abstract,
        "victim": victim.pid,
        "host": socket.gethostname(),
    }
    yield facts, victim, [*listeners, datagrams]
    del os.environ["REDRAFT_CANARY"]
    inherited.close()
    victim.kill()
    victim.wait()
    victim.stdin.close()
    for listener in (*listeners, datagrams):
        listener.close()


def _listener(family, address):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    listener.setblocking(False)
    return listener


def attempt(sandbox, runner, outside, expression):
    """What became of an attack in a process of its own: the answer of the runner, or how the
    process ended.
    """
    with sandbox.start(runner, outside, ATTACK_LIMITS) as process:
        return _result(process, expression)


def _result(process, expression):
    try:
        return process.request(expression)
    except SandboxedProcessError as error:
        return ["ended", error.execution.status, error.execution.signal, error.execution.stdout]


@pytest.fixture(scope="module")
def attack(sandbox, runner, outside):
    """A function that attacks in one process after the other: a new one if the last has ended."""
    processes = []

    def attack(expression):
        if not processes:
            processes.append(sandbox.start(runner, outside[0], ATTACK_LIMITS))
        result = _result(processes[0], expression)
        if result[0] == "ended":
            processes.pop().wait()
        return result

    yield attack
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    path = tmp_path_factory.mktemp("runner") / "runner.py"
    path.write_text(ESCAPE_RUNNER)
    return path


RAW = ("system_call(", "run_machine_code(")


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda e: e.name)
def test_no_escape(sandbox, attack, outside, escape):
    """Each attack is refused or ends the process, and nothing outside has changed."""
    if platform.machine() != "x86_64" and any(raw in escape.expression for raw in RAW):
        pytest.skip("not x86_64")
    facts, victim, listeners = outside
    result = attack(escape.expression)
    if escape.name not in LEARNED.get(sandbox.spec, ()):
        assert result[0] in ("refused", "ended"), result
        assert "succeeded" not in str(result[1:])
        assert result[0] == "refused" or result[1] == "crashed", result
    assert victim.poll() is None
    assert Path(facts["canary"]).read_text() == "the canary sings"
    assert sorted(os.listdir(facts["folder"])) == ["canary", "socket"]
    for listener in listeners:
        with pytest.raises(BlockingIOError):
            listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()


@pytest.mark.slow  # it says something about the table of attacks, not about the sandbox
@pytest.mark.parametrize("escape", [e for e in ESCAPES if e.works_unsafe], ids=lambda e: e.name)
def test_the_attacks_work_without_a_sandbox(runner, outside, escape):
    """The same attacks succeed where only resources are limited."""
    facts, _, listeners = outside
    other = subprocess.Popen(["sleep", "20"])
    try:
        result = attempt(
            Sandbox("unsafe"), runner, {**facts, "victim": other.pid}, escape.expression
        )
    finally:
        other.kill()
        other.wait()
        for name in ("hard", "written"):
            (Path(facts["folder"]) / name).unlink(missing_ok=True)
        for listener in listeners:
            with suppress(BlockingIOError):
                listener.recv(10) if listener.type == socket.SOCK_DGRAM else listener.accept()[
                    0
                ].close()
    assert result[0] == "succeeded" or "succeeded" in str(result), result


@pytest.mark.parametrize("exhaustion", EXHAUSTIONS, ids=lambda e: e.name)
@pytest.mark.slow(but_each=6)
def test_no_exhaustion(sandbox, tmp_path, exhaustion):
    """Each program ends within its limits, and the record names the one that it exceeded."""
    (tmp_path / "run.py").write_text(RUN)
    limit = exhaustion.statuses[0]
    limits = replace(
        LIMITS,
        cpu_seconds=0.25 if limit == "cpu" else 3.0,
        wall_seconds=1.0 if limit == "wall" else 30.0,
    )
    with sandbox.start(tmp_path / "run.py", exhaustion.program, limits) as process:
        execution = process.wait()
    assert execution.status in exhaustion.statuses, execution
    assert exhaustion.says in execution.stdout, execution
    assert len(execution.stdout) <= LIMITS.output_bytes
    assert execution.wall_seconds < limits.wall + 2
    assert execution.cpu_seconds < limits.cpu_seconds + 0.6
    assert (execution.memory_bytes or 0) < LIMITS.memory_bytes
