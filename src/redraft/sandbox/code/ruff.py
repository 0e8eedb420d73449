"""Runs ruff on a program in the sandbox: findings, safe fixes, the format; and what any such tool
reports.

Ruff reads the program and does not run it. It gets the program on its standard input and sees no
configuration, neither of this machine nor of the project; comments of the program that switch rules
off (`# noqa`) have no effect.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from ...base.checks import install_command
from ...errors import ConfigError
from ..execution import Execution, Limits
from ..tiers import Sandbox

FILE_NAME = "solution.py"  # under which a tool reads the program
MAX_MESSAGE_CHARS = 300
LIMITS = Limits(cpu_seconds=10, memory_bytes=2 * 2**30, output_bytes=4 * 2**20)
# a rule of ruff, or the beginning of the names of several
RULE = re.compile(r"[A-Z]{1,10}[0-9]{0,5}")
SYNTAX_RULE = "invalid-syntax"
NEWEST_TARGET = (3, 14)  # of the versions of Python that all supported versions of ruff know


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


def ruff_version() -> str:
    """Return the version of ruff. Raises ConfigError if it is not installed."""
    try:
        return metadata.version("ruff")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"ruff is not installed: {install_command('code')}") from None


def findings(
    code: str,
    select: Sequence[str],
    ignore: Sequence[str] = (),
    *,
    sandbox: Sandbox,
    limits: Limits = LIMITS,
) -> list[Finding]:
    """Return what the selected rules find in a program, ordered by line. An error of syntax is a
    finding, too.

    Raises ToolError if ruff did not finish, SandboxUnavailableError, and ConfigError for an unknown
    rule.
    """
    execution = _run_ruff(
        "check", ["--output-format=json-lines", *_selection(select, ignore)], code, sandbox, limits
    )
    found = [each for line in execution.stdout.splitlines() if (each := _read_finding(line))]
    if execution.exit_code != (1 if found else 0):
        raise unexpected_end("ruff", execution)
    return sorted(found, key=lambda each: (each.line, each.rule))


@lru_cache(maxsize=64)
def check_rules(select: tuple[str, ...], ignore: tuple[str, ...], sandbox: Sandbox) -> None:
    """Raise ConfigError for a rule that ruff does not know."""
    findings("", select, ignore, sandbox=sandbox)


def apply_safe_fixes(
    code: str, select: Sequence[str], ignore: Sequence[str] = (), *, sandbox: Sandbox | None = None
) -> str:
    """Return a program with the fixes that ruff calls safe: they keep what the program does.
    Blocks.

    A program with an error of syntax is returned as it is. Raises what `findings` raises.
    """
    execution = _run_ruff(
        "check", ["--fix-only", *_selection(select, ignore)], code, sandbox or Sandbox(), LIMITS
    )
    return _printed_code(execution)


def format_code(code: str, *, line_length: int = 88, sandbox: Sandbox | None = None) -> str:
    """Return a program as ruff formats it. Blocks. Raises ToolError for an error of syntax, and
    what `findings` raises.
    """
    return _printed_code(
        _run_ruff("format", [f"--line-length={line_length}"], code, sandbox or Sandbox(), LIMITS)
    )


def _run_ruff(
    command: str, options: Sequence[str], code: str, sandbox: Sandbox, limits: Limits
) -> Execution:
    ruff_version()
    fixed = [
        "--isolated",
        "--no-cache",
        f"--target-version={_target()}",
        f"--stdin-filename={FILE_NAME}",
        "-",
    ]
    stdin = _as_file(code).encode("utf-8", "replace")
    execution = sandbox.run_tool(["ruff", command, *options, *fixed], stdin=stdin, limits=limits)
    if "Unknown rule selector" in execution.stderr or "invalid value" in execution.stderr:
        problem = (
            execution.stderr.strip().splitlines()[-1].partition("Cause:")[2].strip()
            or execution.stderr.strip()[:200]
        )
        raise ConfigError(f"ruff {ruff_version()}: {problem}")
    return execution


def _as_file(code: str) -> str:
    """Return code with one line end at its end: a text cut from an answer does not say how its file
    ends.
    """
    text = code.rstrip()
    return text and f"{text}{code[len(text) :].partition(chr(10))[0]}\n"


def _target() -> str:
    major, minor = min(sys.version_info[:2], NEWEST_TARGET)
    return f"py{major}{minor}"


def _selection(select: Sequence[str], ignore: Sequence[str]) -> list[str]:
    return [
        "--ignore-noqa",
        f"--select={','.join(select)}",
        *([f"--ignore={','.join(ignore)}"] if ignore else []),
    ]


def _printed_code(execution: Execution) -> str:
    if execution.exit_code != 0 or execution.truncated:
        raise unexpected_end("ruff", execution)
    return execution.stdout


def _read_finding(line: str) -> Finding | None:
    """Return a line of ruff's output as a finding; None for one that was cut off."""
    try:
        found: Any = json.loads(line)
        row, message = found["location"]["row"], str(found["message"])
        return Finding(
            int(row),
            str(found["code"] or SYNTAX_RULE),
            " ".join(message.split())[:MAX_MESSAGE_CHARS],
        )
    except (ValueError, KeyError, TypeError):
        return None
