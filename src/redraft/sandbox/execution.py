"""How a sandboxed process ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "exited", "crashed", "cpu", "wall", "memory", "output", "threads", "protocol", "killed"
]


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
