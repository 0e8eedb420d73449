"""The clients, each in its pinned version, installed into build/clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "clients"
REQUIREMENTS = HERE / "requirements"
NPM: dict[str, tuple[str, ...]] = {  # the package, its version, and what it needs besides
    "claude-code": ("@anthropic-ai/claude-code", "2.1.197"),
    "claude-code-newest": ("@anthropic-ai/claude-code", "2.1.332"),
    "codex": ("@openai/codex", "0.171.0"),
    "opencode": ("opencode-ai", "1.18.33"),
    "qwen-code": ("@qwen-code/qwen-code", "0.15.10"),
    "qwen-code-newest": ("@qwen-code/qwen-code", "0.24.4", "node@22"),
    "promptfoo": ("promptfoo", "0.121.20"),
}


def install_from_npm(name: str) -> Path:
    """Install a package unless it is there; return its folder node_modules."""
    package, version, *others = NPM[name]
    folder = BUILD / "npm" / name
    done = folder / f".ready-{version}"
    if not done.exists():
        print(f"Installing {package} {version} ...", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        # --force: the newest Claude Code names a Node that its native program does not need
        options = ["--no-audit", "--no-fund", "--force", "--loglevel", "error"]
        subprocess.run(
            ["npm", "install", *options, "--prefix", folder, f"{package}@{version}", *others],
            check=True,
        )
        done.touch()
    return folder / "node_modules"


def install_python(name: str) -> Path:
    """Install the Python clients of requirements/NAME.txt unless they are there; return their
    interpreter.
    """
    wanted = (REQUIREMENTS / f"{name}.txt").read_text()
    folder = BUILD / "python" / name
    python, done = folder / "bin" / "python", folder / ".requirements"
    if not done.exists() or done.read_text() != wanted:
        print(f"Installing the Python clients {' '.join(wanted.split())} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        options = ["-q", "--disable-pip-version-check"]
        requirements = REQUIREMENTS / f"{name}.txt"
        subprocess.run([python, "-m", "pip", "install", *options, "-r", requirements], check=True)
        done.write_text(wanted)
    return python


def pinned_versions() -> dict[str, str]:
    """Return the versions of the Python clients, by their names without extras."""
    lines = [line for file in REQUIREMENTS.glob("*.txt") for line in file.read_text().split()]
    pairs = (line.split("==") for line in lines)
    return {name.partition("[")[0]: version for name, version in pairs}
