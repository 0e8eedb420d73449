"""promptfoo: an evaluation with a text, a tool and a form."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from cells import HELLO, KEY, QUESTION, Server, main

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
REPORT = {
    "name": "report",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
        "required": ["city", "degrees"],
        "additionalProperties": False,
    },
}


def evaluate(server: Server, kind: str, prompt: str, check: dict, **settings: object) -> None:
    """Run one prompt with one check; promptfoo's exit code says whether it holds."""
    address = server.root if kind == "anthropic:messages" else server.url
    config = {
        "prompts": [prompt],
        "providers": [
            {
                "id": f"{kind}:{server.model}",
                "config": {"apiBaseUrl": address, "apiKey": KEY, "max_tokens": 500, **settings},
            }
        ],
        "tests": [{"assert": [check]}],
    }
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder) / "config.json", Path(folder) / "output.json"
        file.write_text(json.dumps(config))
        quiet = {
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
            "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
            "PROMPTFOO_CONFIG_DIR": folder,
        }
        done = subprocess.run(
            [
                "promptfoo",
                "eval",
                "-c",
                file,
                "-o",
                output,
                "--no-cache",
                "--no-progress-bar",
                "--no-table",
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **quiet},
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            results = (
                json.loads(output.read_text())["results"]["results"] if output.exists() else []
            )
            raise AssertionError(results[0]["error"] if results else done.stderr[-500:])


def chat(server: Server) -> None:
    """chat"""
    evaluate(server, "openai:chat", HELLO, {"type": "equals", "value": server.greeting})


def chat_tools(server: Server) -> None:
    """tools, chat"""
    tools = [{"type": "function", "function": WEATHER}]
    evaluate(server, "openai:chat", QUESTION, {"type": "contains", "value": "Oslo"}, tools=tools)


def chat_form(server: Server) -> None:
    """structured answer, chat"""
    form = {"type": "json_schema", "json_schema": REPORT}
    evaluate(server, "openai:chat", "Report.", {"type": "is-json"}, response_format=form)


def responses(server: Server) -> None:
    """responses"""
    evaluate(server, "openai:responses", HELLO, {"type": "equals", "value": server.greeting})


def messages(server: Server) -> None:
    """messages"""
    evaluate(server, "anthropic:messages", HELLO, {"type": "equals", "value": server.greeting})


main("promptfoo", chat, chat_tools, chat_form, responses, messages)
