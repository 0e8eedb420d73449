"""What a program in the sandbox may use, and how its process ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base import checks

MIB = 2**20
MIN_MEMORY_BYTES = 64 * MIB  # an interpreter with ctypes takes about 30 MiB of address space
WHOLE_NUMBERS = {  # the least and the most of each limit
    "memory_bytes": (MIN_MEMORY_BYTES, 2**48),
    "threads": (1, 10_000),
    "open_files": (16, 10_000),
    "file_bytes": (0, 2**48),
    "disk_bytes": (4096, 2**48),
    "inodes": (2, 10_000_000),
    "output_bytes": (0, 2**30),
    "frame_bytes": (1024, 2**30),
}
FLOOD_FACTOR = 16  # times `output_bytes` of output end the program

Status = Literal[
    "exited", "crashed", "cpu", "wall", "memory", "output", "threads", "protocol", "killed"
]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandboxed process. It is always one process: it cannot start others.

    Attributes:
        cpu_seconds: Seconds of CPU time of all its threads together. The start of the interpreter
            takes about 0.03 of them.
        wall_seconds: Seconds by the clock, from the time when its sandbox is set up; None: twice
            `cpu_seconds` plus 5.
        memory_bytes: Bytes of address space.
        threads: Threads at once, with the main thread.
        open_files: File descriptors at once.
        file_bytes: Bytes of the largest file.
        disk_bytes: Bytes of all its files together.
        inodes: Files, folders and links at once.
        output_bytes: Bytes of standard output, and of standard error, that are kept. A process that
            writes 16 times as much ends.
        frame_bytes: Bytes of the largest message to or from it.

    Raises:
        ConfigError: a value is out of range.
    """

    cpu_seconds: float = 10.0
    wall_seconds: float | None = None
    memory_bytes: int = 512 * MIB
    threads: int = 64
    open_files: int = 64
    file_bytes: int = 16 * MIB
    disk_bytes: int = 32 * MIB
    inodes: int = 1_000
    output_bytes: int = MIB
    frame_bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        checks.positive("cpu_seconds", self.cpu_seconds, 86_400)
        checks.positive("wall_seconds", self.wall_seconds, 86_400, optional=True)
        for name, (least, most) in WHOLE_NUMBERS.items():
            checks.whole_number(name, getattr(self, name), least, most)

    @property
    def wall(self) -> float:
        """The seconds by the clock that the process may take."""
        return 2 * self.cpu_seconds + 5 if self.wall_seconds is None else self.wall_seconds


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of a sandboxed process.

    The program can choose its exit code and write anything, so nothing here is a verdict.

    Attributes:
        status: "exited" (by itself, whatever its exit code), "crashed" (by a signal), the limit
            that it exceeded ("cpu", "wall", "memory", "output", "threads"), "protocol" (it answered
            garbage or an oversized message), or "killed" (by `kill`).
        exit_code: None if a signal or the sandbox ended it.
        signal: The number of the signal that ended it; None if it exited, or if the sandbox ended
            it.
        stdout: What it wrote to standard output, at most `output_bytes`.
        stderr: What it wrote to standard error, at most `output_bytes`.
        truncated: Whether it wrote more than that.
        cpu_seconds: Seconds of CPU time, with the start of the sandbox; None if unknown.
        wall_seconds: Seconds by the clock, with the start of the sandbox.
        memory_bytes: The largest resident memory in bytes; None if unknown: of a short program it
            is measured only at its answers.
        tier: The tier of the sandbox that ran it.
    """

    status: Status
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    truncated: bool
    cpu_seconds: float | None
    wall_seconds: float
    memory_bytes: int | None
    tier: str


class SandboxedProcessError(Exception):
    """The process ended before it answered, answered garbage, or exceeded a limit. `execution` says
    how it ended.
    """

    def __init__(self, execution: Execution) -> None:
        super().__init__(f"the sandboxed process ended: {execution.status}")
        self.execution = execution
