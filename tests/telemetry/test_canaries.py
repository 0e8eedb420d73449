"""No command writes a secret of its environment anywhere: each variable that may hold one has a
canary of its own.
"""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from chat_server import ChatServer

from redraft.cli import COMMANDS

SIGNALS = ("", "TRACES_", "METRICS_", "LOGS_")
KEYS = (
    *(
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_BEARER_TOKEN_BEDROCK",
    ),
    *("AWS_SECRET_ACCESS_KEY", "LANGSMITH_API_KEY", "MY_PASSWORD"),
)
GOOD = {
    **{
        f"OTEL_EXPORTER_OTLP_{signal}HEADERS": "authorization=Bearer%20{c},x-tenant=a"
        for signal in SIGNALS
    },
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:{c}@127.0.0.1:{port}",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:{port}/v1/traces?api-key={c}",
    **dict.fromkeys(KEYS, "{c}"),
    "REDRAFT_MODEL": "http://:{c}@127.0.0.1:{port}/v1#tiny",
    "OPENAI_BASE_URL": "http://me:{c}@127.0.0.1:{port}/v1?sig={c}",
    "OLLAMA_HOST": "http://me:{c}@127.0.0.1:9",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://me:{c}@127.0.0.1:9"),
    "ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: {c}",
    "DATABASE_DSN": "postgres://me:{c}@127.0.0.1:9/d",
}
MALFORMED = {
    "OTEL_EXPORTER_OTLP_HEADERS": "Authorization: Bearer {c} (prod)",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "Bearer {c}, api-key: {c} x-tenant: acme, {c} api-key",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "x-honeycomb-team {c};=,authorization = Basic {c}%2",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "authorization=Bearer%20{c},\u00e9={c},{c}",
    "OTEL_RESOURCE_ATTRIBUTES": "api.key {c},b",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "me:{c}@127.0.0.1:9",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://me:{c}@127.0.0.1:port/v1",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://me:{c}@[::1/v1",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "htp:/me:{c}@h",
    **{
        name: f" {{c}}{end}"
        for name, end in zip(
            KEYS, ["\n", " x", "\u00e9", "\t", '"', "'", ",", "\\", "%"], strict=True
        )
    },
    "REDRAFT_MODEL": "http://:{c}@[::1/v1#tiny",
    "OPENAI_BASE_URL": "me:{c}@127.0.0.1:{port}/v1",
    "OLLAMA_HOST": "http://me:{c}@127.0.0.1:port",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://me:{c}@127.0.0.1:port"),
}
# the values of the variables, options of each command, and the model of those that take one
CASES = {
    "malformed, as JSON": (MALFORMED, ["--log-format=json"], ["--model", "openai:tiny"]),
    "malformed": (MALFORMED, [], []),
    "good": (GOOD, [], []),
    "good, and another server": (GOOD, [], ["--model", "http://127.0.0.1:{port}/v1#tiny"]),
}
WORK = {  # of each command, arguments with which it does something or says why not
    "run": ["Say hi", "--trace", "trace.json", "--journal", "a.journal", "--debug"],
    "best": ["Say hi", "-n", "2", "--debug"],
    "grade": ["Say hi", "--response", "answer.txt", "--debug"],
    "batch": ["rows.jsonl", "-o", "out.jsonl", "--debug", "--overwrite"],
    "runs": ["list"],
    "export": ["out-jsonl", "-o", "export.jsonl", "--overwrite"],
    "show": ["trace.json"],
    "view": ["missing.journal"],
    "label": ["missing.journal"],
    "serve": ["--host", "203.0.113.1", "--port", "1", "--folder", "gateway", "--insecure"],
    "demo": [],
    "models": ["--debug"],
    "graders": ["judge"],
    "validate": ["labels.jsonl", "--kind", "pass", "--debug"],
    "compare": ["out.jsonl", "out.jsonl"],
    "gate": ["out.jsonl", "out.jsonl"],
    "rubric": ["answers to questions", "--debug"],
    "priors": ["list"],
    "keys": ["add", "someone", "--folder", "gateway"],
    "mcp": ["--debug"],
    "train": ["labels.jsonl", "--name", "tone", "--grader", "judge", "--kind", "pass", "--debug"],
    "trust": ["--list"],
}
TAKES_MODEL = {"run", "best", "grade", "batch", "serve", "train", "validate", "rubric", "mcp"}
SCRIPT = """
import json, sys
import opentelemetry._logs._internal as logs, opentelemetry.metrics._internal as metrics, opentelemetry.trace as traces
from opentelemetry.util._once import Once
from redraft.cli import main
from redraft.telemetry import recorder
for command in json.loads(sys.argv[1]):
    for module, name in ((traces, "TRACER"), (metrics, "METER"), (logs, "LOGGER")):  # as in a new process
        setattr(module, f"_{name}_PROVIDER", None)
        setattr(module, f"_{name}_PROVIDER_SET_ONCE", Once())
    for stream in (sys.stdout, sys.stderr):
        print("command:", command[0], flush=True, file=stream)
    main(command)
"""


def canary_of(number):
    return f"sk-canary-{sha256(str(number).encode()).hexdigest()[:20]}"


def test_every_command_is_tried():
    """A new command needs arguments here."""
    assert set(WORK) == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_secret_of_the_environment_is_written(case, tmp_path):
    """Not on stdout or stderr, nor in a file, whether the values are good or malformed."""
    values, before, model = CASES[case]
    server = ChatServer(lambda messages, n: "hello there my friend" if n % 3 else (400, "refused"))
    fill = lambda text, number: text.replace("{c}", canary_of(number)).replace(
        "{port}", str(server.port)
    )
    environment = {name: fill(value, n) for n, (name, value) in enumerate(values.items())}
    (tmp_path / "answer.txt").write_text("hello")
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "Question {n}"}}\n' for n in range(4))
    )
    labels = [{"prompt": f"q{n}", "response": "a", "label": n % 2} for n in range(4)]
    (tmp_path / "labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in labels))
    models = [fill(part, 0) for part in model]
    commands = [
        [name, *args, *(models if name in TAKES_MODEL else []), *before]
        for name, args in WORK.items()
    ]
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    home = {
        "HOME": str(tmp_path),
        "REDRAFT_HOME": str(tmp_path / "home"),
        "NO_PROXY": "127.0.0.1",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    try:
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(commands)],
            env={
                **kept,
                **home,
                **environment,
                "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            },
            cwd=tmp_path,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )
    finally:
        server.close()
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.count(b"command: ") == len(COMMANDS), ended.stderr.decode()
    found = [
        f"{name} of {place}"
        for n, name in enumerate(environment)
        for place, text in written(tmp_path, ended)
        if any(piece in text.lower() for piece in fragments(canary_of(n)))
    ]
    assert not found, "\n".join(found)
    if before:
        lines = [
            line for line in ended.stderr.splitlines() if line and not line.startswith(b"command: ")
        ]
        assert [line for line in lines if not line.startswith(b"{")] == []


def fragments(secret):
    """Pieces of a secret that must not be shown; its prefix is public."""
    random = secret.rpartition("-")[2]
    return [random[i : i + 8].encode() for i in range(len(random) - 7)]


def written(folder, ended):
    """Everything that was written: by the commands, named, and in files."""
    for name in ("stdout", "stderr"):
        for part in getattr(ended, name).split(b"command: "):
            yield f"{name} of {part.splitlines()[0].decode() if part else ''}", part
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()
