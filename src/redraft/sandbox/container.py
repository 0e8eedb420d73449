"""What runs in a container and beside it: process 1, which starts the interpreter with the
bootstrap, carries its messages, and ends everything with its client (`run_program`); in the
bootstrap, the check that the image has the packages that programs may import (`prepare`); and a
process of this machine that runs the client of Docker or Podman, and gives its streams the form
that a tier has (`run_client`).

The two processes get this file as the argument of `-c`, with a call of their function. A container
has two pipes out and one in, and the bootstrap needs more, so each chunk on standard output has a
head of 5 bytes: which stream it belongs to, and its length. Standard input has chunks with a length
alone; the one of length 0 is the end of the program's input. The end of standard input itself means
that the client has ended. The client ends when the process that started it ends, and its input ends
with it, which ends the container.

The program could not signal or trace process 1 if its filter let it try: it is process 1, and not
dumpable.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Literal, NoReturn

MESSAGES, STDOUT, STDERR, REPORT = range(4)  # the streams
CHUNK = 65536
INTERVAL = 0.05  # seconds between examinations
FIRST_OPENED = 4  # the program has descriptors 0 to 2, and 3 for its messages
PR_SET_DUMPABLE = 4  # of <linux/prctl.h>


# ---- in the container


def run_program() -> NoReturn:
    """Run the program to its end, and report how it ended."""
    import ctypes

    settings = json.loads(sys.argv[1])
    # deny the program, which has the same user, the memory and the environment of this process
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    inner_input, input_end = os.pipe()
    pipes = {stream: os.pipe() for stream in (MESSAGES, STDOUT, STDERR)}
    pid = os.fork()
    if not pid:
        _become_program(
            settings, inner_input, {stream: writer for stream, (_, writer) in pipes.items()}
        )
    for descriptor in (inner_input, *(writer for _, writer in pipes.values())):
        os.close(descriptor)
    threading.Thread(target=_carry_input, args=(input_end,), daemon=True).start()
    reason = _carry_output({reader: stream for stream, (reader, _) in pipes.items()}, pid, settings)
    _, status, usage = os.wait4(pid, 0)
    report = {
        "reason": reason,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "memory_bytes": usage.ru_maxrss * 1024,
    }
    _send(REPORT, json.dumps(report).encode())
    os._exit(0)


def _become_program(
    settings: dict[str, Any], inner_input: int, writers: dict[int, int]
) -> NoReturn:
    """Replace this process by the interpreter that runs the bootstrap; its messages go to
    descriptor 3.
    """
    copies = {stream: os.dup2(writer, 100 + stream) for stream, writer in writers.items()}
    os.dup2(inner_input, 0)
    os.dup2(copies[STDOUT], 1)
    os.dup2(copies[STDERR], 2)
    os.dup2(copies[MESSAGES], 3)
    os.closerange(FIRST_OPENED, 4096)
    command = [sys.executable, *settings["flags"], "-c", settings["bootstrap"], "3"]
    os.execve(command[0], command, settings["environment"])  # noqa: S606  (the interpreter)


def _carry_input(target: int) -> None:
    """Carry the program's input. Exit at the end of standard input, which ends every process of the
    container.
    """
    while size := int.from_bytes(_read(0, 4), "big"):
        data = _read(0, size)
        try:
            _write(target, data)
        except OSError:  # the program has ended, or closed its input
            continue
    os.close(target)
    _read(0, 1)
    os._exit(0)


def _carry_output(streams: dict[int, int], pid: int, settings: dict[str, Any]) -> str | None:
    """Carry what the program writes until it has closed all, and end it at its limits; return the
    limit, or None.
    """
    poll = select.poll()
    # tells the end of the client even while the other thread waits for the program
    poll.register(0, 0)
    for descriptor in streams:
        poll.register(descriptor, select.POLLIN)
    reason = None
    while streams:
        for descriptor, _ in poll.poll(1000 * INTERVAL):
            if descriptor == 0:
                os._exit(0)
            if data := os.read(descriptor, CHUNK):
                _send(streams[descriptor], data)
            else:
                poll.unregister(descriptor)
                del streams[descriptor]
        if not reason and (reason := exceeded_limit(pid, *settings["limits"])):
            os.kill(pid, signal.SIGKILL)
    return reason


def exceeded_limit(
    pid: int, cpu_seconds: float, threads: int, memory_bytes: int
) -> Literal["cpu", "threads", "memory"] | None:
    """Return the limit that a process exceeds by what /proc says; None if it exceeds none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (nothing else needs pathlib here)
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > cpu_seconds:
        return "cpu"
    if int(fields[17]) > threads:
        return "threads"
    return "memory" if int(fields[21]) * os.sysconf("SC_PAGE_SIZE") > memory_bytes else None


def _send(stream: int, data: bytes) -> None:
    _write(1, bytes([stream]) + len(data).to_bytes(4, "big") + data)


def prepare(_libc: Any, setup: dict[str, Any]) -> None:
    """Raise ModuleNotFoundError, with what to do, if a package is neither a distribution nor a
    module of this Python.
    """
    missing = [name for name in setup["image_packages"] if not _is_installed(name)]
    if missing:
        raise ModuleNotFoundError(
            f"the image {setup['image']!r} has no package {', '.join(map(repr, missing))}: use an "
            f"image in which it is installed (RUN pip install {' '.join(missing)}), or leave it "
            "out of packages="
        )


def restrict(_libc: Any, setup: dict[str, Any]) -> None:
    """Do nothing: nothing more is restricted."""


def _is_installed(name: str) -> bool:
    from importlib import metadata, util

    try:
        metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        try:
            return util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False
    return True


# ---- on this machine


def run_client() -> NoReturn:
    """Run the client to its end, and exit with its exit code.

    The arguments are the descriptor for the program's answers, the one for the report of its end,
    and the client's command.
    """
    import subprocess

    answers, report = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:  # noqa: S603  (Docker)
        assert client.stdin is not None
        assert client.stdout is not None
        threading.Thread(target=_pack_input, args=(client.stdin.fileno(),), daemon=True).start()
        _unpack_output(
            client.stdout.fileno(), {MESSAGES: answers, STDOUT: 1, STDERR: 2, REPORT: report}
        )
        os._exit(client.wait())


def _end_with(parent: int) -> None:
    """Exit when the process that started this one has ended."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _pack_input(target: int) -> None:
    try:
        while data := os.read(0, CHUNK):
            _write(target, len(data).to_bytes(4, "big") + data)
        _write(target, bytes(4))
    except OSError:  # the client has ended
        return


def _unpack_output(source: int, targets: dict[int, int]) -> None:
    while head := _read(source, 5):
        data = _read(source, int.from_bytes(head[1:], "big"))
        if head[0] in targets:
            try:
                _write(targets[head[0]], data)
            except OSError:  # nobody reads it any more
                continue


# ---- on both sides


def _read(source: int, size: int) -> bytes:
    """Return so many bytes; b"" if there are no more."""
    parts = b""
    while len(parts) < size:
        part = os.read(source, size - len(parts))
        if not part:
            return b""
        parts += part
    return parts


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
