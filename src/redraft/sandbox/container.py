"""Process 1 of a container: starts the interpreter with the bootstrap, carries its messages, and
ends everything with its client.

It gets this file as the argument of `-c`. A container has two pipes out and one in, and the
bootstrap needs more, so each chunk on standard output has a head of 5 bytes: which stream it
belongs to, and its length. Standard input has chunks with a length alone; the one of length 0 is
the end of the program's input. The end of standard input itself means that the client has ended.

The program could not signal or trace this process if its filter let it try: it is process 1, and
not dumpable.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from typing import Any, NoReturn

MESSAGES, STDOUT, STDERR, REPORT = range(4)  # the streams
CHUNK = 65536
INTERVAL = 0.05  # seconds between examinations
FIRST_OPENED = 4  # the program has descriptors 0 to 2, and 3 for its messages
PR_SET_DUMPABLE = 4  # of <linux/prctl.h>


def main() -> NoReturn:
    """Run the program to its end, and report how it ended."""
    settings = json.loads(sys.argv[1])
    _hide()
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


def _hide() -> None:
    """Deny the program, which has the same user, the memory and the environment of this process."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


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
    while size := int.from_bytes(_read(4), "big"):
        data = memoryview(_read(size))
        try:
            while data:
                data = data[os.write(target, data) :]
        except OSError:  # the program has ended, or closed its input
            continue
    os.close(target)
    _read(1)


def _read(size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = os.read(0, size - len(parts))
        if not part:
            os._exit(0)
        parts += part
    return parts


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
        exceeded = None if reason else _exceeded_limit(pid, settings)
        if exceeded:
            reason = exceeded
            os.kill(pid, signal.SIGKILL)
    return reason


def _exceeded_limit(pid: int, settings: dict[str, Any]) -> str | None:
    """Return the limit that a process exceeds by what /proc says, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (nothing else needs pathlib here)
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > settings["cpu_seconds"]:
        return "cpu"
    return "threads" if int(fields[17]) > settings["threads"] else None


def _send(stream: int, data: bytes) -> None:
    frame = memoryview(bytes([stream]) + len(data).to_bytes(4, "big") + data)
    while frame:
        frame = frame[os.write(1, frame) :]


if __name__ == "__main__":
    main()
