"""Record requests of the coding agents and the SDKs against a scripted model, no gateway, for
tests/gateway/clients/bodies: python clients/record.py [NAME ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import coding_agents
from coding_agents import AGENTS, Agent
from gateway.clients.library_model import ClientsModel
from gateway.clients.scripted_model import ScriptedModel
from installing import install_python, pinned_versions
from neutral import neutral_request

NO_TALK = ("/embeddings", "/moderations", "/v1/completions")
BODIES = ROOT / "tests" / "gateway" / "clients" / "bodies"


class Recording(NamedTuple):
    """The requests of one run that are kept, by their number; the first one is 0."""

    name: str
    agent: Agent
    model: str
    kept: tuple[int, ...]


CLAUDE, CLAUDE_NEWEST, CODEX, _, _, OPENCODE, OPENCODE_ANTHROPIC, QWEN, QWEN_NEWEST = AGENTS
RECORDINGS = (
    Recording("claude_code", CLAUDE, "refine/careful", (0, 2, 4)),
    Recording("claude_code_sonnet", CLAUDE, "claude-sonnet-4-5", (0, 4)),
    Recording("claude_code_newest", CLAUDE_NEWEST, "refine/careful", (0, 4)),
    Recording("claude_code_newest_sonnet", CLAUDE_NEWEST, "claude-sonnet-4-5", (0, 4)),
    Recording("codex", CODEX, "refine/careful", (0, 3)),
    Recording("codex_patches", CODEX, "pass/gpt-5.5", (0, 2, 4)),
    Recording("codex_code_mode", CODEX, "pass/gpt-6.2-sol", (0, 2, 4)),
    Recording("opencode", OPENCODE, "refine/careful", (0, 1, 5)),
    Recording("opencode_claude", OPENCODE, "pass/claude", (1, 5)),
    Recording("opencode_anthropic", OPENCODE_ANTHROPIC, "refine/careful", (0, 1, 5)),
    Recording("qwen_code", QWEN, "refine/careful", (0, 4)),
    Recording("qwen_code_newest", QWEN_NEWEST, "refine/careful", (0, 4)),
)


def record(recording: Recording, model: ScriptedModel) -> None:
    """Run the agent once and write the requests that are kept."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        work = Path(folder)
        command, place = coding_agents.prepare(recording.agent, model.root, recording.model, work)
        model.reset(ClientsModel(str(place.folder)))
        printed, told = coding_agents.start(command, place).communicate(
            timeout=coding_agents.SECONDS
        )
        if len(model.received) <= max(recording.kept):
            print(f"{recording.name}: only {len(model.received)} requests\n{printed}{told}")
            return
        client = f"{recording.agent.name} {recording.agent.version}"
        for number in recording.kept:
            got = model.received[number]
            request = neutral_request(
                client, got.path, got.headers, got.body, {str(work): "/home/ann"}
            )
            write(f"{recording.name}_{number}", request)
        print(f"{recording.name}: {coding_agents.mistake(place, printed, '') or 'done'}")


def record_sdk(name: str, model: ScriptedModel) -> None:
    """Run the script of an SDK, and write its first request of each form."""
    model.reset(ClientsModel())
    version = pinned_versions()[name]
    script = ROOT / "clients" / "libraries" / f"{name}_sdk.py"
    command = [install_python("plain"), script, model.root, model.url, "pass/careful"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seen: set[str] = set()
    for got in model.received:
        form = json.dumps([got.path, form_of(got.body)])
        if form not in seen and not got.path.endswith(NO_TALK):
            seen.add(form)
            request = neutral_request(f"{name} {version}", got.path, got.headers, got.body, {})
            write(f"{name}_sdk_{len(seen):02}", request)


def form_of(value: Any) -> Any:
    """Return a JSON value without its texts and numbers."""
    if isinstance(value, dict):
        return {name: form_of(each) for name, each in value.items()}
    return [form_of(each) for each in value] if isinstance(value, list) else type(value).__name__


def write(name: str, request: dict[str, Any]) -> None:
    text = json.dumps(request, indent=1, ensure_ascii=False) + "\n"
    (BODIES / f"{name}.json").write_text(text)


def main() -> None:
    model = ScriptedModel(ClientsModel())
    for recording in RECORDINGS:
        if not sys.argv[1:] or recording.name in sys.argv[1:]:
            record(recording, model)
    for name in ("openai", "anthropic"):
        if not sys.argv[1:] or name in sys.argv[1:]:
            record_sdk(name, model)
    model.close()


if __name__ == "__main__":
    main()
