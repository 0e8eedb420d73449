"""Coding agents from npm: how each is told to use a server of ours, and started once on a task."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.clients.coding_model import FILE as NOTES
from gateway.clients.coding_model import NEW, OLD, PROMPT
from installing import NPM, install_from_npm

SECONDS = 120
KEY = "none"
CODEX_SETTINGS = """
model = "{model}"
model_provider = "own"
[model_providers.own]
name = "own"
base_url = "{root}/v1"
wire_api = "responses"
env_key = "OWN_KEY"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
"""


@dataclass(frozen=True)
class Place:
    """Where an agent runs: `root` is the server's address, `home` its own folder, `folder` the one
    that it works in.
    """

    root: str
    model: str
    home: Path
    folder: Path


@dataclass(frozen=True)
class Command:
    arguments: list[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)


def claude_code(modules: Path, place: Place) -> Command:
    program = modules / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
    environment = {
        "ANTHROPIC_BASE_URL": place.root,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": place.model,
        "ANTHROPIC_SMALL_FAST_MODEL": place.model,
        "CLAUDE_CONFIG_DIR": str(place.home / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
    }
    return Command([program, "-p", PROMPT, "--allowedTools", "Read,Edit,Bash"], environment)


def codex(modules: Path, place: Place) -> Command:
    program = next(modules.glob("@openai/codex-linux-x64/vendor/*/bin/codex"))
    home = place.home / "codex"
    home.mkdir()
    (home / "config.toml").write_text(CODEX_SETTINGS.format(model=place.model, root=place.root))
    options = ["--skip-git-repo-check", "-s", "danger-full-access"]
    environment = {"CODEX_HOME": str(home), "OWN_KEY": KEY}
    return Command([program, "exec", *options, PROMPT], environment)


def opencode(modules: Path, place: Place) -> Command:
    return _opencode(modules, place, "@ai-sdk/openai-compatible")


def opencode_anthropic(modules: Path, place: Place) -> Command:
    return _opencode(modules, place, "@ai-sdk/anthropic")


def _opencode(modules: Path, place: Place, package: str) -> Command:
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"own/{place.model}",
        "small_model": f"own/{place.model}",
        "permission": {"edit": "allow", "bash": "allow"},
        "provider": {
            "own": {
                "npm": package,
                "name": "own",
                "options": {"baseURL": f"{place.root}/v1", "apiKey": KEY},
                "models": {place.model: {"name": place.model}},
            }
        },
    }
    folder = place.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps(settings))
    environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    return Command([modules / ".bin" / "opencode", "run", PROMPT], environment)


def qwen_code(modules: Path, place: Place) -> Command:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    folder = place.home / ".qwen"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings))
    environment = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{place.root}/v1",
        "OPENAI_MODEL": place.model,
        "PATH": f"{modules / '.bin'}:{os.environ['PATH']}",  # with the node that it needs
    }
    return Command([modules / ".bin" / "qwen", "-y", "-p", PROMPT], environment)


@dataclass(frozen=True)
class Agent:
    """`package` is a key of `NPM`; `prepare` writes the settings and gives the command. `model`:
    the name of the model where the agent behaves by it; None: any.
    """

    name: str
    package: str
    prepare: Callable[[Path, Place], Command]
    model: str | None = None

    @property
    def version(self) -> str:
        return NPM[self.package][1]


AGENTS = (
    Agent("Claude Code", "claude-code", claude_code),
    Agent("Claude Code", "claude-code-newest", claude_code),
    Agent("Codex", "codex", codex),
    Agent("Codex, a model with patches", "codex", codex, "gpt-5.5"),
    Agent("Codex, a model with code mode", "codex", codex, "gpt-6.2-sol"),
    Agent("opencode", "opencode", opencode),
    Agent("opencode, Anthropic's protocol", "opencode", opencode_anthropic),
    Agent("Qwen Code", "qwen-code", qwen_code),
    Agent("Qwen Code", "qwen-code-newest", qwen_code),
)


def prepare(agent: Agent, root: str, model: str, work: Path) -> tuple[Command, Place]:
    """Lay out the agent's home and the folder with the task."""
    place = Place(root, model, work / "home", work / "project")
    place.home.mkdir(parents=True)
    place.folder.mkdir()
    (place.folder / NOTES).write_text(f"{OLD}\n")
    return agent.prepare(install_from_npm(agent.package), place), place


def start(command: Command, place: Place) -> subprocess.Popen[str]:
    """Start an agent with nothing of this process's environment but the PATH."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(place.home), **command.environment}
    return subprocess.Popen(
        command.arguments,
        cwd=place.folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def mistake(place: Place, printed: str, expected: str) -> str | None:
    """Return what of the task is not as it should be, or None."""
    if (place.folder / NOTES).read_text().strip() != NEW:
        return "the file was not edited"
    ran = place.folder / "ran.txt"
    if not ran.exists() or ran.read_text() != "ran\n":
        return "the command did not run exactly once"
    return None if expected in printed else f"it printed {printed.strip()[-200:]!r}"
