"""The clients, each in its pinned version, installed into build/clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "clients"
REQUIREMENTS = HERE / "requirements.txt"
PYTHON = BUILD / "venv" / "bin" / "python"
NPM = {
    "claude-code": ("@anthropic-ai/claude-code", "2.1.197"),
    "claude-code-newest": ("@anthropic-ai/claude-code", "2.1.332"),
    "codex": ("@openai/codex", "0.171.0"),
    "opencode": ("opencode-ai", "1.18.33"),
    "qwen-code": ("@qwen-code/qwen-code", "0.15.10"),
    "promptfoo": ("promptfoo", "0.121.20"),
}


def install_from_npm(name: str) -> Path:
    """Install a package unless it is there; return its folder node_modules."""
    package, version = NPM[name]
    folder = BUILD / "npm" / name
    done = folder / f".ready-{version}"
    if not done.exists():
        print(f"Installing {package} {version} ...", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        # --force: the newest Claude Code names a Node that its native program does not need
        options = ["--no-audit", "--no-fund", "--force", "--loglevel", "error"]
        subprocess.run(
            ["npm", "install", *options, "--prefix", folder, f"{package}@{version}"], check=True
        )
        done.touch()
    return folder / "node_modules"


def install_python() -> Path:
    """Install the Python clients unless they are there; return their interpreter."""
    done = BUILD / "venv" / ".requirements"
    if not done.exists() or done.read_text() != REQUIREMENTS.read_text():
        print("Installing the Python clients ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", BUILD / "venv"], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "-q", "-r", REQUIREMENTS], check=True)
        done.write_text(REQUIREMENTS.read_text())
    return PYTHON


def pinned_versions() -> dict[str, str]:
    """Return the versions of the Python clients, by their names without extras."""
    pairs = (line.split("==") for line in REQUIREMENTS.read_text().split())
    return {name.partition("[")[0]: version for name, version in pairs}
