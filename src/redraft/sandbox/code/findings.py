"""What tools report that read a program: ruff and the type checkers."""

from __future__ import annotations

from dataclasses import dataclass

from ..execution import Execution

FILE_NAME = "solution.py"  # under which a tool reads the program
MAX_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a tool found: the line from 1, the rule, and what is wrong."""

    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule} {self.message}"


class ToolError(Exception):
    """A tool did not finish its work on a program. The message says why."""


def unexpected_end(tool: str, execution: Execution) -> ToolError:
    """Return the error for a tool that ended in an unusual way, with the end of what it said."""
    said = " ".join((execution.stderr or execution.stdout).split())[-MAX_MESSAGE_CHARS:]
    how = f"exit code {execution.exit_code}" if execution.status == "exited" else execution.status
    return ToolError(f"{tool} did not finish ({how}{f': {said}' if said else ''})")
