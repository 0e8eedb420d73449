"""The `llm` command, with tools and a schema."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from cells import HELLO, QUESTION, expect, main

TOOLS = """
def weather(city: str) -> str:
    "The temperature in a city, in Celsius."
    return {"Oslo": "20", "Rome": "25"}[city]

def to_fahrenheit(celsius: float) -> str:
    "Convert degrees."
    return str(round(celsius * 9 / 5 + 32))
"""


def llm(server, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        known = {
            "model_id": "own",
            "model_name": server.model,
            "api_base": server.url,
            "supports_tools": True,
            "supports_schema": True,
        }
        (Path(folder) / "extra-openai-models.yaml").write_text(json.dumps([known]))
        done = subprocess.run(
            ["llm", "-m", "own", "--key", "none", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "LLM_USER_PATH": folder},
            check=False,
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1:]
    return done.stdout.strip()


def stream(server):
    """stream"""
    expect(llm(server, HELLO), server.greeting)


def whole(server):
    """whole"""
    expect(llm(server, "--no-stream", HELLO), server.greeting)


def tools(server):
    """tools"""
    expect(llm(server, "--functions", TOOLS, QUESTION), server.answer)


def schema(server):
    """structured answer"""
    assert set(json.loads(llm(server, "--schema", "city, degrees int", "Report."))) == {
        "city",
        "degrees",
    }


main("llm", stream, whole, tools, schema)
