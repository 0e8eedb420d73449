"""Workers in processes of this machine, each connected by a socket: `ProcessPool`.

If the process of a worker dies, another one gets its shard and its last orders. A process that a
signal has stopped counts as dead after a while.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket, socketpair
from typing import ClassVar, Self

from ...base.descriptors import is_shortage
from ...loop.engine import cancel_and_wait
from .process_channel import WorkerEnd, dumps_code, encode, frame, receive
from .shard_protocol import Orders, ShardJob, ShardStatus

BUFFER = 2**20  # bytes of messages that are read before they are processed
EXIT_TIMEOUT = 2.0  # seconds for the exit of a worker that has ended its work
STOPPED_TIMEOUT = 10  # seconds for which a worker may be stopped by a signal
MAX_STARTS = 3  # starts of a worker in succession that fail
MAX_SHORTAGES = (
    60  # tries to start a worker while this machine is short of descriptors or processes
)
SHORTAGE_PAUSE = 1.0  # seconds between two of them
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from "
    "redraft.runs.executors.process_worker import main; main()"
)


@dataclass
class ProcessPool:
    """Starts at most `size` workers in processes of this machine."""

    setting: ClassVar[str] = "workers"

    size: int
    _ready: deque[tuple[subprocess.Popen[bytes], socket]] = field(default_factory=deque)

    def start(self, count: int) -> None:
        """Start processes before there is work for them, so that they import meanwhile. If that
        fails, it is tried again when they are needed.
        """
        with suppress(OSError):
            self._ready.extend(start_process() for _ in range(count))

    def take(self) -> tuple[subprocess.Popen[bytes], socket]:
        """Return a process, and the socket to it. Raises OSError if none is ready and none can be
        started.
        """
        return self._ready.popleft() if self._ready else start_process()

    def close(self) -> None:
        """End the processes that no worker has taken."""
        while self._ready:
            process, connection = self._ready.popleft()
            connection.close()
            process.kill()
            process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def dumps(self, value: object) -> bytes:
        """Return a value, pickled; functions and classes of the user by their names."""
        return dumps_code(value)

    def start_worker(self) -> ProcessWorker:
        """Return a worker. Its process is started when it runs."""
        return ProcessWorker(self)


@dataclass
class ProcessWorker:
    """A worker in a process. If that dies, another one takes its place."""

    pool: ProcessPool
    _orders: Orders | None = None  # that are not answered
    _answer: asyncio.Future[ShardStatus] | None = None
    _writer: asyncio.StreamWriter | None = None
    _failed_starts: int = 0
    _shortages: int = 0  # of descriptors or processes, which let no process start

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Process the shard, and return the final status."""
        first = encode(sys.argv) + frame(dumps_code(shard))
        while True:
            try:
                process, connection = self.pool.take()
            except OSError as error:
                if is_shortage(error) and self._shortages < MAX_SHORTAGES:
                    self._shortages += 1
                    await asyncio.sleep(SHORTAGE_PAUSE)
                    continue
                return ShardStatus(
                    "", reason="fatal", message=f"a worker process cannot be started: {error}"
                )
            watching = asyncio.ensure_future(kill_if_stopped(process))
            try:
                if end := await self._serve(connection, first):
                    return end.status
            finally:
                process.kill()
                process.wait()
                await cancel_and_wait([watching])
            self._failed_starts += 1
            if self._failed_starts >= MAX_STARTS:
                status = (
                    f"a worker process ended at its start {MAX_STARTS} times, with exit status "
                    f"{process.returncode}"
                )
                return ShardStatus("", reason="fatal", message=status)

    async def exchange(self, orders: Orders) -> ShardStatus:
        """Send orders, and return the status."""
        self._orders, self._answer = orders, asyncio.get_running_loop().create_future()
        await self._send(encode(orders))
        return await self._answer

    async def _send(self, data: bytes) -> None:
        """Send a message. If the process has died, another one will receive it."""
        if self._writer:
            with suppress(ConnectionError):
                self._writer.write(data)
                await self._writer.drain()

    async def _serve(self, connection: socket, first: bytes) -> WorkerEnd | None:
        """Exchange messages with a process until it has ended its work; return None if it dies
        before.
        """
        reader, self._writer = await asyncio.open_connection(sock=connection, limit=BUFFER)
        writer = self._writer
        try:
            await self._send(first + (encode(self._orders) if self._orders else b""))
            while (message := await receive(reader)) is not None:
                if isinstance(message, WorkerEnd):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(receive(reader), EXIT_TIMEOUT)  # its exit
                    return message
                self._receive_status(message)
            return None
        finally:
            self._writer = None
            writer.close()

    def _receive_status(self, status: ShardStatus) -> None:
        self._orders, self._failed_starts = None, 0
        if self._answer and not self._answer.done():
            self._answer.set_result(status)


async def kill_if_stopped(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was stopped by a signal and is not continued, so that another one gets
    its rows.
    """
    seconds = 0
    # counted here: while this process is stopped as well, as by Ctrl-Z, none passes
    while seconds < STOPPED_TIMEOUT:
        await asyncio.sleep(1)
        seconds = seconds + 1 if is_stopped(process.pid) else 0
    process.kill()


def is_stopped(pid: int) -> bool:
    """Return whether a child of this process was stopped by a signal; False where the system cannot
    tell.
    """
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def start_process() -> tuple[subprocess.Popen[bytes], socket]:
    """Start a worker; return its process, and the socket to it."""
    ours, theirs = socketpair()
    loop = (
        "uvloop" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else "asyncio"
    )
    # as an import reads it
    path = json.dumps([folder or str(Path.cwd()) for folder in sys.path if isinstance(folder, str)])
    with theirs:
        # until the process ignores them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            process = subprocess.Popen(  # noqa: S603  (our own code)
                [sys.executable, "-P", "-c", START, loop, path], stdin=theirs.fileno()
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return process, ours
