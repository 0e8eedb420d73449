"""Run the code blocks of the site and write what they print below them: python scripts/examples.py
[PAGE ...]

The blocks of a page run in order, in one folder. A block with a title is also written to a file of
this name; a block of Python or of shell commands runs; a block `text title="Output"` holds what the
block before it prints to stdout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
FOLDERS = ("tutorials", "how-to", "concepts", "reference")
PAGES = (
    DOCS / "index.md",
    DOCS / "comparison.md",
    *sorted(page for folder in FOLDERS for page in (DOCS / folder).glob("*.md")),
)
BLOCK = re.compile(
    r"^```(\w+)(?: title=\"([^\"\n]+)\")?(?: [^\n]*)?\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1"}

Runner = Callable[[str, str, Path], str]
"""Runs a block, given its language, its code and a folder, and returns what it prints. Raises an
error if it fails.
"""


def with_outputs(page: str, folder: Path, run: Runner) -> str:
    """Run the blocks of a page, and return the page with the output of each as it is now."""
    printed = ""

    def refresh(match: re.Match[str]) -> str:
        nonlocal printed
        language, title, code = match.groups()
        if language == "text" and title == "Output":
            return f'```text title="Output"\n{printed}```'
        if title:
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(code)
        if language in {"python", "sh"} and not needs_package(code):
            printed = "".join(
                f"{line.rstrip()}\n" for line in run(language, code, folder).rstrip().splitlines()
            )
        return match[0]

    return BLOCK.sub(refresh, page)


def needs_package(code: str) -> bool:
    """Whether a block needs a package that Redraft and its tests do not install; a test of its own
    takes care of it.
    """
    return any(f"from {name} import" in code for name in ("fastapi", "transformers", "trl"))


def run_in_subprocess(language: str, code: str, folder: Path) -> str:
    """Run a block in a process of its own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path, "REDRAFT_HOME": str(folder / ".home")}
    command = [sys.executable, "-c", code] if language == "python" else ["sh", "-e", "-c", code]
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(
            f"{code}\nfailed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def main(names: list[str]) -> None:
    for page in [Path(name).resolve() for name in names] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "examples").symlink_to(DOCS.parent / "examples")
            text = with_outputs(page.read_text(), Path(folder), run_in_subprocess)
        if text != page.read_text():
            page.write_text(text)
            print(f"updated {page.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
