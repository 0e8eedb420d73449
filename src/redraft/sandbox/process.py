"""A running sandboxed process, and the messages to and from it.

A message out, a message back; each answer repeats the number of its request, which is random, so
that answers that a program writes ahead never match. Everything that arrives is data of bounded
size.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import time
from contextlib import ExitStack, suppress
from functools import cache
from threading import RLock
from typing import Any, Self

from ..base.jsontext import strict_loads
from ..base.threads import LastingThreadPool
from .execution import Execution, Limits, SandboxedProcessError
from .launch import Launch
from .monitor import Monitor

MEMORY_PER_FRAME_BYTE = 16  # bytes of Python objects that a byte of a message may become
END_FRAME = b"\x00\x00\x00\x04null"
END_SECONDS = 1.0  # from the end of the answers to the end of the process


class SandboxedProcess:
    """A process in a sandbox, made by `Sandbox.start`. Its methods block; `kill` may be called from
    any thread.

    As a context manager it kills the process at the end of the block.
    """

    def __init__(self, launch: Launch, limits: Limits, stdin: bytes | None = None) -> None:
        """Start a process and wait until it is locked down. Raises SandboxedProcessError if it does
        not get there.
        """
        self.tier = launch.tier
        self._limits = limits
        self._lock = RLock()
        with ExitStack() as ours, ExitStack() as theirs:
            ours.callback(launch.clean_up)
            self._answers, target = _pipe(ours, theirs)
            info, info_target = _pipe(ours, theirs) if launch.has_info else (None, -1)
            self._process = ours.enter_context(_spawn(launch, target, info_target))
            ours.callback(self._process.kill)
            self._monitor = Monitor(self._process, launch, limits, info)
            ours.pop_all()
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        self._input = self._stdin.fileno()
        os.set_blocking(self._input, False)
        self._begin(_frame(launch.setup), stdin)

    def _begin(self, setup: bytes, stdin: bytes | None) -> None:
        deadline = self._monitor.deadline
        try:
            self._write(setup, deadline)
            if self._read_frame(deadline) != "ready":
                raise self._failure("protocol")
            self._monitor.mark_ready()
        except BaseException:
            self.kill()
            self.wait()
            raise
        if stdin is not None:
            with suppress(SandboxedProcessError):
                self._write(stdin, self._monitor.deadline)
            self._close_input()

    def request(self, message: Any, timeout: float | None = None) -> Any:
        """Send a JSON value and return the answer.

        Raises SandboxedProcessError if the process ends first, answers garbage, or does not answer
        within `timeout` seconds (None: within the limits of the process). It has ended then. Raises
        ValueError for a message over `frame_bytes`, and for None, which a runner receives at the
        end.
        """
        if message is None:
            raise ValueError("a message cannot be None")
        number = secrets.token_hex(8)
        deadline = self._monitor.deadline
        deadline = deadline if timeout is None else min(deadline, time.monotonic() + timeout)
        with self._lock:
            frame = _frame({"number": number, "message": message})
            if len(frame) > self._limits.frame_bytes:
                raise ValueError(
                    f"the message has {len(frame):,} bytes, more than "
                    f"frame_bytes={self._limits.frame_bytes:,}"
                )
            self._write(frame, deadline)
            answer = self._read_frame(deadline)
            if (
                type(answer) is not dict
                or answer.get("number") != number
                or "message" not in answer
            ):
                raise self._failure("protocol")
            self._monitor.measure_memory()
            return answer["message"]

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the process so far, in seconds, of all its threads; None if it has
        ended or it is unknown.
        """
        return self._monitor.cpu_seconds()

    def kill(self) -> None:
        """End the process now."""
        self._monitor.kill()

    def wait(self) -> Execution:
        """Tell the runner that there are no more messages, wait for the end of the process, and
        return how it ended.
        """
        with self._lock:
            if self._input >= 0:
                with suppress(OSError):
                    # closing is not enough: a forked copy of this process may hold that end, too
                    os.write(self._input, END_FRAME)
            self._close_input()
        execution = self._monitor.join()
        with self._lock:
            if self._answers >= 0:
                os.close(self._answers)
                self._answers = -1
        return execution

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self.wait()

    def _failure(self, reason: Any) -> SandboxedProcessError:
        """End the process for a reason, unless it has ended; return the error that says how it
        ended.
        """
        self._monitor.kill(reason)
        return SandboxedProcessError(self._monitor.join())

    def _write(self, data: bytes, deadline: float) -> None:
        """Write to its input. Raises SandboxedProcessError."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                self._wait_for(self._input, select.POLLOUT, deadline)
            except OSError:
                raise self._end_error() from None

    def _read_frame(self, deadline: float) -> Any:
        """Return the value of the next frame. Raises SandboxedProcessError."""
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > self._limits.frame_bytes:
            raise self._failure("protocol")
        body = self._read(size, deadline)
        try:
            return strict_loads(
                body.decode("utf-8", "surrogatepass"),
                MEMORY_PER_FRAME_BYTE * self._limits.frame_bytes,
            )
        except ValueError:
            raise self._failure("protocol") from None

    def _read(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait_for(self._answers, select.POLLIN, deadline)
            part = os.read(self._answers, min(size - len(parts), 1 << 20))
            if not part:
                raise self._end_error()
            parts += part
        return bytes(parts)

    def _wait_for(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
            raise self._failure("wall")

    def _end_error(self) -> SandboxedProcessError:
        """Return the error for a process that closed its end: it has ended, or ends now, or is
        killed.
        """
        self._close_input()
        if not self._monitor.wait(END_SECONDS):
            return self._failure("protocol")
        return SandboxedProcessError(self._monitor.join())

    def _close_input(self) -> None:
        self._input = -1
        with suppress(OSError):
            self._stdin.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Return the ends of a new pipe, each of which is closed with its stack."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _frame(value: Any) -> bytes:
    """Return a JSON value as a frame. Numbers stay exact: integers of any size, NaN and
    infinity.
    """
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    return len(body).to_bytes(4, "big") + body


def _spawn(launch: Launch, target: int, info: int) -> subprocess.Popen[bytes]:
    """Start the process from a thread that lives as long as this process.

    The kernel kills it when the *thread* that started it ends, and other threads may be gone before
    it has done its work.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  (our own command)
            list(launch.command(target, info)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[d for d in (target, info) if d >= 0],
            env=dict(launch.environment),
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )

    return _spawner().submit(start).result()


@cache
def _spawner() -> LastingThreadPool:
    return LastingThreadPool(1, "redraft-sandbox-start")


if hasattr(os, "register_at_fork"):
    # the thread of the parent is not there
    os.register_at_fork(after_in_child=_spawner.cache_clear)
