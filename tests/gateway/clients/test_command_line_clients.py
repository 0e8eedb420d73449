"""`curl` and the `llm` command, as a person types them."""

import json
import os
import shutil
import subprocess
import sys

import pytest

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
HELLO = {
    "model": "refine/fast",
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 32,
}


def curl(*arguments):
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "60", *arguments],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@needs_curl
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
def test_curl(real_gateway, model):
    """A request needs nothing but a body."""
    body = json.dumps(HELLO | {"model": model})
    reply = json.loads(curl(f"{real_gateway.url}/chat/completions", "--json", body))
    assert reply["choices"][0]["message"]["content"]


@needs_curl
def test_curl_shows_a_stream_as_it_comes(real_gateway):
    """A stream is a sequence of events which ends with [DONE]."""
    text = curl(
        "--no-buffer",
        f"{real_gateway.url}/chat/completions",
        "--json",
        json.dumps(HELLO | {"stream": True}),
    )
    events = [block for block in text.split("\n\n") if block.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0][6:])["choices"][0]["delta"]["role"] == "assistant"


@needs_curl
@pytest.mark.parametrize(
    ("sent", "status", "named"),
    [
        ("no JSON", 400, "JSON"),
        (json.dumps(HELLO | {"model": "refine/unknown"}), 404, "refine/unknown"),
        (json.dumps(HELLO | {"n": 2}), 400, "n"),
        (json.dumps(HELLO | {"redraft": {"scoer": 1}}), 400, "scoer"),
    ],
)
def test_curl_sees_what_is_wrong(real_gateway, sent, status, named):
    """A wrong request gets its status and an error that names what is wrong."""
    text = curl(
        f"{real_gateway.url}/chat/completions", "--json", sent, "--write-out", "\n%{http_code}"
    )
    body, _, code = text.rpartition("\n")
    assert int(code) == status
    assert named in json.loads(body)["error"]["message"]


@needs_curl
def test_a_page_of_another_origin_is_refused(real_gateway):
    """A browser on another page, or one that was given another name for this address, gets
    nothing.
    """
    url, body = f"{real_gateway.url}/chat/completions", json.dumps(HELLO)
    code = "\n%{http_code}"
    foreign = curl(
        url, "--json", body, "--header", "Origin: https://example.com", "--write-out", code
    )
    rebound = curl(url, "--json", body, "--header", "Host: example.com", "--write-out", code)
    assert [text.rpartition("\n")[2] in ("400", "403", "421") for text in (foreign, rebound)] == [
        True,
        True,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
@pytest.mark.parametrize("options", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_llm(real_gateway, tmp_path, model, options):
    """The `llm` command with a model of its extra-openai-models.yaml prints an answer."""
    known = {"model_id": "own", "model_name": model, "api_base": real_gateway.url}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([known]))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "PYTHONWARNINGS": "default"}
    command = [
        sys.executable,
        "-m",
        "llm",
        "-m",
        "own",
        "Say hello.",
        "-o",
        "max_tokens",
        "32",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
