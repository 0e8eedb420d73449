"""The process that forks the workers of a run: it imports what all of them need, once, so each is ready at once.

It is started with a socket as standard input before there is work for workers, has no threads, and ends when that socket is closed.
The workers are its children: it waits for their ends on request (see `process_worker.main` for its side).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import send_fds, socket, socketpair
from struct import Struct
from threading import Lock

NUMBER = Struct(">q")  # a request: 0 with a socket to fork a worker for it, or the number of a worker to wait for; and each answer
IMPORT_TIMEOUT = 120  # seconds for an answer, with the imports
EXIT_TIMEOUT = 10  # seconds for the exit of a worker that was killed
START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from redraft.runs.executors.process_worker import main; main()"


@dataclass
class ForkedProcess:
    """A worker. As in `subprocess`, its number is not used again before `wait`."""

    server: ForkServer
    pid: int
    returncode: int | None = None

    def kill(self) -> None:
        """Kill it. One whose server has ended ends when its socket is closed."""
        if self.server.is_running:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        self.returncode = self.server.exit_code(self.pid)


class ForkServer:
    """Starts the process that forks workers, again if it has ended, and passes requests to it, one at a time."""

    def __init__(self) -> None:
        self._loop = "uvloop" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else "asyncio"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket | None = None
        self._lock = Lock()

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, unless it runs, so that it imports meanwhile. If that fails, `fork` tries again."""
        with suppress(OSError), self._lock:
            self._start()

    def fork(self) -> tuple[ForkedProcess, socket]:
        """Return a new worker, and the socket to it. Blocks while the process imports. Raises OSError."""
        ours, theirs = socketpair()
        try:
            with theirs, self._lock:
                self._start()
                pid = self._request(0, IMPORT_TIMEOUT, theirs)
        except OSError:
            ours.close()
            raise
        if pid < 0:
            ours.close()
            raise OSError(-pid, os.strerror(-pid))
        return ForkedProcess(self, pid), ours

    def exit_code(self, pid: int) -> int | None:
        """Wait for the end of a worker that was killed or ends, and return its exit code; None if it is not known."""
        with self._lock:
            try:
                return self._request(pid, EXIT_TIMEOUT) if self.is_running else None
            except OSError:  # the process was killed or stopped
                self._end()
                return None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        if self.is_running:
            return
        self._end()
        ours, theirs = socketpair()
        path = json.dumps([folder or str(Path.cwd()) for folder in sys.path if isinstance(folder, str)])  # as an import reads it
        command = [sys.executable, "-P", "-c", START, self._loop, path]
        with theirs:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # in the process and in new workers
            try:
                self._process = subprocess.Popen(command, stdin=theirs.fileno())  # noqa: S603  (our own code)
            except OSError:
                ours.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._connection = ours

    def _request(self, number: int, timeout: float, *sockets: socket) -> int:
        """Send a request, and return the answer."""
        connection = self._connection
        assert connection is not None
        connection.settimeout(timeout)
        send_fds(connection, [NUMBER.pack(number)], [sent.fileno() for sent in sockets])
        answer = connection.recv(NUMBER.size)
        if len(answer) < NUMBER.size:
            raise ConnectionError("the process that starts workers has ended")
        return int(NUMBER.unpack(answer)[0])

    def _end(self) -> None:
        if self._connection:
            self._connection.close()
        if self._process:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None
