"""Runs the client of Docker or Podman, and gives its streams the form that a tier has: see
`container.py`.

It runs as a process of its own, as the launcher, with this file as the argument of `-c`: the
arguments are the descriptor for the program's answers, the one for the report of its end, and the
client's command. It ends when the process that started it ends, and the client's input ends with
it, which ends the container.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

MESSAGES, STDOUT, STDERR, REPORT = range(4)  # the streams, as in container.py
CHUNK = 65536


def main() -> None:
    """Run the client to its end, and exit with its exit code."""
    answers, report = int(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:  # noqa: S603  (Docker)
        assert client.stdin is not None
        assert client.stdout is not None
        threading.Thread(target=_carry_input, args=(client.stdin.fileno(),), daemon=True).start()
        _carry_output(
            client.stdout.fileno(), {MESSAGES: answers, STDOUT: 1, STDERR: 2, REPORT: report}
        )
        os._exit(client.wait())


def _end_with(parent: int) -> None:
    """Exit when the process that started this one has ended."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _carry_input(target: int) -> None:
    try:
        while data := os.read(0, CHUNK):
            _write(target, len(data).to_bytes(4, "big") + data)
        _write(target, bytes(4))
    except OSError:  # the client has ended
        return


def _carry_output(source: int, targets: dict[int, int]) -> None:
    while head := _read(source, 5):
        data = _read(source, int.from_bytes(head[1:], "big"))
        if head[0] in targets:
            try:
                _write(targets[head[0]], data)
            except OSError:  # nobody reads it any more
                continue


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


if __name__ == "__main__":
    main()
