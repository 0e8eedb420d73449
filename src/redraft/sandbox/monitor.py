"""Watches one sandboxed process from outside: collects its output, enforces limits, ends it, and
waits for its end.

One thread for each process. What the program does inside cannot stop it: it reads the pipes, the
clock, and what the kernel says about the process. A process that ends within 50 ms is never
examined.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import Popen
from threading import Lock, Thread
from typing import Any

from ..base.jsontext import loads
from .container import exceeded_limit
from .execution import FLOOD_FACTOR, Execution, Limits, Status
from .launch import Launch

EXIT_MEMORY = 124  # exit code of bootstrap.py
INTERVAL = 0.05  # seconds between examinations
START_SECONDS = 30.0  # until the sandbox is set up
DRAIN_SECONDS = 0.2  # after its end, for output that is still in the pipes
KILL_GRACE = 0.5  # seconds after which the launcher is killed, too
SIGNAL_BASE = 128  # added to a signal by launchers that report it as an exit code
CHUNK = 65536
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of `ru_maxrss`
# of the limit: the kernel enforces it by counting ticks, and afterwards reports the time more
# exactly
CPU_SHARE = 0.95
CPU_CLOCK = (
    2  # of the ID of the CPU clock of another process on Linux (CPUCLOCK_SCHED): (~pid << 3) | 2
)


@dataclass(eq=False)
class CappedOutput:
    """What arrives on one pipe; its beginning is kept."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        """Keep a chunk as far as it fits."""
        self.total += len(chunk)
        self.data += chunk[: max(0, self.limit - len(self.data))]

    @property
    def text(self) -> str:
        """The beginning as text."""
        return self.data.decode("utf-8", "replace")


class Monitor:
    """Watches a process until it has ended; `join` returns how."""

    def __init__(
        self, process: Popen[bytes], launch: Launch, limits: Limits, info: int | None
    ) -> None:
        self._process, self._launch, self._limits, self._info = process, launch, limits, info
        self._outputs = {
            "stdout": CappedOutput(limits.output_bytes),
            "stderr": CappedOutput(limits.output_bytes),
        }
        self._lock = Lock()
        # of the program itself; None: not known yet
        self._pid: int | None = None if info is not None else process.pid
        self._reason: Status | None = None
        self._killed_at = 0.0
        self._peak_memory = 0  # bytes, by /proc
        self._reaped = False
        self._end: tuple[int, Any] | None = (
            None  # the status and the usage, if it was waited for early
        )
        self._started = time.monotonic()
        # the time, by the monotonic clock, at which it will have been killed
        self.deadline = self._started + START_SECONDS
        self._execution: Execution | None = None
        self._thread = Thread(target=self._watch, name="redraft-sandbox", daemon=True)
        self._thread.start()

    def mark_ready(self) -> None:
        """Begin to count the time of the program: its sandbox is set up."""
        self.deadline = time.monotonic() + self._limits.wall

    def measure_memory(self) -> None:
        """Note how much memory the program has used so far, if it runs."""
        with self._lock:
            if not self._reaped and (pid := self._program_pid()) is not None:
                self._peak_memory = max(self._peak_memory, _peak_memory(pid))

    def join(self) -> Execution:
        """Wait for the end of the process."""
        self._thread.join()
        assert self._execution is not None
        return self._execution

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process, at most some seconds; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self, reason: Status = "killed") -> None:
        """End the process, from any thread; the first reason counts."""
        with self._lock:
            if self._reaped:
                return
            self._reason = self._reason or reason
            self._killed_at = self._killed_at or time.monotonic()
            pid = self._program_pid()
            _send_kill(pid if pid is not None else self._process.pid)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the program so far, of all its threads; None if it has ended or
        the system does not tell.
        """
        with self._lock:
            pid = None if self._reaped else self._program_pid()
            if pid is None or not sys.platform.startswith("linux"):
                return None
            try:
                return time.clock_gettime((~pid << 3) | CPU_CLOCK)
            except OSError:
                return None

    def _program_pid(self) -> int | None:
        """Return the process ID of the program; None before the launcher has told it."""
        if self._launch.reports_end:
            return self._process.pid
        if self._pid is None and self._info is not None and _readable([self._info]):
            import re

            found = re.search(rb'"child-pid": *([1-9]\d+)', os.read(self._info, 4096))
            self._pid = int(found[1]) if found else self._process.pid
        return self._pid

    def _watch(self) -> None:
        """Read the output and examine the process until it has ended."""
        poll = select.poll()
        pipes = {
            pipe.fileno(): self._outputs[name]
            for name in self._outputs
            if (pipe := getattr(self._process, name))
        }
        end_event = _end_event(self._process.pid)
        for descriptor in (*pipes, *([] if end_event is None else [end_event])):
            poll.register(descriptor, select.POLLIN)
        next_examination = self._started + INTERVAL
        while True:
            for descriptor, _ in poll.poll(
                1000 * max(0.0, min(next_examination, self.deadline) - time.monotonic())
            ):
                if descriptor in pipes and not self._read(descriptor, pipes[descriptor]):
                    poll.unregister(descriptor)
                    del pipes[descriptor]
            if self._has_ended():
                break
            if (now := time.monotonic()) >= min(next_examination, self.deadline):
                self._examine(now)
                next_examination = now + INTERVAL
        ended_at = time.monotonic()
        if end_event is not None:
            os.close(end_event)
        _kill_group(self._process.pid)
        self._drain(pipes)
        self._finish(ended_at)

    def _has_ended(self) -> bool:
        """Whether the process has ended. Where the system can, it stays to be waited for, so that
        its ID is not used again.
        """
        pid = self._process.pid
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        with self._lock:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            self._end = (status, usage) if ended else None
            self._reaped = bool(ended)
        return self._reaped

    def _drain(self, pipes: dict[int, CappedOutput]) -> None:
        """Read what is still in the pipes of an ended process; another that holds an end of them is
        not waited for long.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        while pipes and (ready := _readable(pipes, max(0.0, deadline - time.monotonic()))):
            for descriptor in ready:
                if not self._read(descriptor, pipes[descriptor]):
                    del pipes[descriptor]

    def _read(self, descriptor: int, output: CappedOutput) -> bool:
        """Read what is there; return whether more may come."""
        chunk = os.read(descriptor, CHUNK)
        output.add(chunk)
        if sum(o.total for o in self._outputs.values()) > FLOOD_FACTOR * max(
            self._limits.output_bytes, CHUNK
        ):
            self.kill("output")
        return bool(chunk)

    def _examine(self, now: float) -> None:
        """Compare the process with its limits."""
        self.measure_memory()
        limits = self._limits
        if self._killed_at:
            if now > self._killed_at + KILL_GRACE:
                _send_kill(self._process.pid)
        elif now >= self.deadline:
            self.kill("wall")
        elif self._pid is not None and (
            exceeded := exceeded_limit(
                self._pid, limits.cpu_seconds, limits.threads, limits.memory_bytes
            )
        ):
            self.kill(exceeded)

    def _finish(self, ended_at: float) -> None:
        with self._lock:
            status, usage = self._end or os.wait4(self._process.pid, 0)[1:]
            self._process.returncode = os.waitstatus_to_exitcode(status)
            self._reaped = True
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        exit_code, signal_number = _split_status(self._process.returncode)
        end: dict[str, Any] = {"exit_code": exit_code, "signal": signal_number}
        if self._launch.reports_end:  # what the launcher consumed says nothing of the program
            end |= self._read_report()
        else:
            end["cpu_seconds"] = usage.ru_utime + usage.ru_stime
            end["memory_bytes"] = _memory_of_children(usage.ru_maxrss, self._peak_memory)
        if self._info is not None:
            os.close(self._info)
        self._launch.clean_up()
        self._execution = self._conclude(ended_at - self._started, **end)

    def _read_report(self) -> dict[str, Any]:
        """Return what the launcher wrote about the end of the program; nothing if it wrote
        nothing.
        """
        assert self._info is not None
        try:
            report = loads(os.read(self._info, 4096)) if _readable([self._info]) else None
        except ValueError:
            report = None
        return report if isinstance(report, dict) else {}

    def _conclude(
        self,
        wall_seconds: float,
        *,
        exit_code: int | None,
        signal: int | None,
        reason: Status | None = None,
        cpu_seconds: float | None = None,
        memory_bytes: int | None = None,
    ) -> Execution:
        reason = self._reason or reason
        out, err = self._outputs["stdout"], self._outputs["stderr"]
        return Execution(
            status=reason or _status(exit_code, signal, cpu_seconds, self._limits),
            exit_code=None if reason else exit_code,
            signal=None if reason else signal,
            stdout=out.text,
            stderr=err.text,
            truncated=any(o.total > len(o.data) for o in (out, err)),
            cpu_seconds=cpu_seconds,
            wall_seconds=wall_seconds,
            memory_bytes=memory_bytes,
            tier=self._launch.tier,
        )


def _status(
    exit_code: int | None, signal_number: int | None, cpu_seconds: float | None, limits: Limits
) -> Status:
    """Return how a process ended that nobody here has ended."""
    if signal_number:
        at_limit = (cpu_seconds or 0.0) >= CPU_SHARE * limits.cpu_seconds
        return (
            "cpu"
            if signal_number == signal.SIGXCPU or (signal_number == signal.SIGKILL and at_limit)
            else "crashed"
        )
    return "memory" if exit_code == EXIT_MEMORY else "exited"


def _readable(descriptors: Iterable[int], seconds: float = 0.0) -> list[int]:
    """Return those that can be read, after some seconds at most; `select.select` has no descriptors
    beyond 1,023.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(1000 * seconds)]


def _end_event(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a child process ends; None where the system
    has none.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # the end is noticed at the next examination then
        return None


def _split_status(code: int) -> tuple[int | None, int | None]:
    """Return exit code and signal; launchers report a signal as an exit code beyond 128."""
    if code < 0:
        return None, -code
    if SIGNAL_BASE < code <= SIGNAL_BASE + 64:
        return None, code - SIGNAL_BASE
    return code, None


def _send_kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    """End what a process left behind in its group. It has not been waited for, so its ID is not in
    use again.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _peak_memory(pid: int) -> int:
    """Return the largest resident memory of a running process so far, in bytes; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
            peak = file.read().partition(b"VmHWM:")[2].split(maxsplit=1)
    except OSError:
        return 0
    return int(peak[0]) * 1024 if peak else 0


def _memory_of_children(reported: int, measured: int) -> int | None:
    """Return the memory of an ended process in bytes: what the kernel reports, or what was measured
    while it ran.

    The kernel counts the memory of this process, too, since a child begins as its copy: the report
    says something only if it is larger.
    """
    import resource

    if reported > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        return reported * RSS_UNIT
    return measured or None
