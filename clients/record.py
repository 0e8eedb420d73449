"""Record requests of the coding agents against a scripted model, without a gateway, for
tests/gateway/clients/bodies: python clients/record.py [NAME ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import agents  # noqa: E402
from agents import AGENTS, Agent  # noqa: E402
from gateway.clients.library_model import ClientsModel  # noqa: E402
from gateway.clients.scripted_model import ScriptedModel  # noqa: E402
from neutral import neutral_request  # noqa: E402

BODIES = ROOT / "tests" / "gateway" / "clients" / "bodies"


class Recording(NamedTuple):
    """The requests of one run that are kept, by their number; the first one is 0."""

    name: str
    agent: Agent
    model: str
    kept: tuple[int, ...]


CLAUDE, CLAUDE_NEWEST, CODEX, _, _, OPENCODE, OPENCODE_ANTHROPIC, QWEN = AGENTS
RECORDINGS = (
    Recording("claude_code", CLAUDE, "refine/careful", (0, 2, 4)),
    Recording("claude_code_sonnet", CLAUDE, "claude-sonnet-4-5", (0, 4)),
    Recording("claude_code_newest", CLAUDE_NEWEST, "refine/careful", (0, 4)),
    Recording("claude_code_newest_sonnet", CLAUDE_NEWEST, "claude-sonnet-4-5", (0, 4)),
    Recording("codex", CODEX, "refine/careful", (0, 3)),
    Recording("codex_patches", CODEX, "pass/gpt-5.5", (0, 2, 4)),
    Recording("codex_code_mode", CODEX, "pass/gpt-6.2-sol", (0, 2, 4)),
    Recording("opencode", OPENCODE, "refine/careful", (0, 1, 5)),
    Recording("opencode_anthropic", OPENCODE_ANTHROPIC, "refine/careful", (0, 1, 5)),
    Recording("qwen_code", QWEN, "refine/careful", (0, 4)),
)


def record(recording: Recording, model: ScriptedModel) -> None:
    """Run the agent once and write the requests that are kept."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        work = Path(folder)
        command, place = agents.prepare(recording.agent, model.root, recording.model, work)
        model.reset(ClientsModel(str(place.folder)))
        printed, told = agents.start(command, place).communicate(timeout=agents.SECONDS)
        if len(model.received) <= max(recording.kept):
            print(f"{recording.name}: only {len(model.received)} requests\n{printed}{told}")
            return
        client = f"{recording.agent.name} {recording.agent.version}"
        for number in recording.kept:
            got = model.received[number]
            request = neutral_request(
                client, got.path, got.headers, got.body, {str(work): "/home/ann"}
            )
            file = BODIES / f"{recording.name}_{number}.json"
            file.write_text(json.dumps(request, indent=1, ensure_ascii=False) + "\n")
            print(f"{file.name}: {file.stat().st_size} bytes; {agents.mistake(place, printed, '')}")


def main() -> None:
    model = ScriptedModel(ClientsModel())
    for recording in RECORDINGS:
        if not sys.argv[1:] or recording.name in sys.argv[1:]:
            record(recording, model)
    model.close()


if __name__ == "__main__":
    main()
