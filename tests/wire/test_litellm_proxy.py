"""Against LiteLLM's proxy in front of llama.cpp's server, where the program `litellm` is found (see
CONTRIBUTING.md).

What the proxy sends, shortened, is played without it, too: `quirks/litellm-*.toml`.
"""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx2
import pytest

import redraft
from redraft.errors import (
    AuthenticationError,
    ContextLengthError,
    ModelError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.gateway.app import Gateway
from redraft.gateway.config import GatewayConfig, Profile, ServedModel
from redraft.models import Chat
from require import require_program
from reserved_port import reserved_port

from . import tiny

pytestmark = pytest.mark.slow

KEY = "sk-of-the-proxy"
JUDGE = redraft.Judge({"clear": "It is clear."})
WORDS = "words:1-5000"
ONCE = {"max_iterations": 0, "noise_aware": False}
START_SECONDS = 180
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_MASTER_KEY": KEY,
}


@dataclass(frozen=True)
class Proxy:
    """The proxy, and a socket at which the server of its model "mortal" listens."""

    url: str
    mortal: socket.socket

    def model(self, name="tiny", key=KEY, **options):
        return Chat(name, self.url, key=key, **options)


@pytest.fixture(scope="module")
def proxy(real, tmp_path_factory):
    """The proxy with several names for the model."""
    program = require_program("litellm")
    with bound_socket() as unused, bound_socket() as mortal, reserved_port() as port:
        url = f"http://127.0.0.1:{mortal.getsockname()[1]}/v1"
        models = {
            "tiny": deployment(real.url, real.key),
            "no-temperature": deployment(real.url, real.key, model="openai/o1"),
            "wrong-key": deployment(real.url, "sk-wrong"),
            "limited": deployment(real.url, real.key, rpm=1),
            "down": deployment(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", real.key),
            "mortal": deployment(url, real.key),
        }
        config = tmp_path_factory.mktemp("litellm") / "config.yaml"
        config.write_text(json.dumps({
            "model_list": [{"model_name": name, "litellm_params": each} for name, each in models.items()],
            "litellm_settings": {"num_retries": 0},
            "router_settings": {"optional_pre_call_checks": ["enforce_model_rate_limits"], "disable_cooldowns": True},
        }))  # fmt: skip
        command = [
            program,
            "--config",
            config,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--num_workers",
            "1",
        ]
        with open(config.with_name("log"), "wb") as log:
            process = subprocess.Popen(command, env={**os.environ, **QUIET}, stdout=log, stderr=log)
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}", config.with_name("log"))
            yield Proxy(f"http://127.0.0.1:{port}/v1", mortal)
        finally:
            process.kill()
            process.wait()


def deployment(url, key, model="openai/tiny", **limits):
    return {"model": model, "api_base": url, "api_key": key, **limits}


@contextmanager
def bound_socket():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def wait_until_ready(process, url, log):
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health/liveliness", timeout=5):
            return
        time.sleep(0.2)
    pytest.fail(f"litellm did not start: {log.read_text(errors='replace')[-2000:]}")


# ---- answers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_writer_and_judge(proxy, stream):
    """Texts, verdicts in the schema, and counted tokens come through."""
    model = proxy.model(stream=stream)
    result = await redraft.refine(
        "Say a word.", model, [WORDS, JUDGE], max_iterations=1, noise_aware=False, max_tokens=40
    )
    best = result.trace.best
    assert best.text.strip()
    assert 0 <= result.score <= 1
    assert result.usage.calls >= 2
    assert result.usage.input_tokens > 10 and result.usage.output_tokens > 10


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_answers_at_the_limit_are_marked(proxy, ask, stream):
    """The proxy passes on why an answer ended."""
    reply = await proxy.model(stream=stream, extra_body={"ignore_eos": True}).complete(
        ask(max_tokens=5, temperature=0.0)
    )
    assert reply.truncated
    assert reply.usage.output_tokens == 5


async def test_batch_and_grade(proxy, tmp_path):
    """Each row is written and graded, and a given text is graded."""
    output = tmp_path / "out.jsonl"
    rows = [{"prompt": f"Say {n}."} for n in range(6)]
    report = await redraft.batch(
        rows, output, proxy.model(), [WORDS, JUDGE], proxy.model(), **ONCE, max_tokens=40
    )
    assert (report.rows.done, report.rows.failed) == (6, 0), report
    assert all(0 <= json.loads(line)["best_score"] <= 1 for line in output.read_text().splitlines())
    graded = await redraft.grade(("Say a word.", "A word."), JUDGE, proxy.model())
    assert 0 <= graded.score <= 1


@pytest.mark.parametrize("name", ["refine/profile", "pass/tiny"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_gateway_before_the_proxy(proxy, tmp_path, monkeypatch, name, stream):
    """Two gateways in a row: refined and passed through."""
    monkeypatch.setenv("PROXY_KEY", KEY)
    models = {"tiny": ServedModel("tiny", proxy.url, "tiny", key_env="PROXY_KEY")}
    profile = Profile("profile", "tiny", "tiny", [WORDS, JUDGE], ONCE)
    body = {
        "model": name,
        "stream": stream,
        "max_tokens": 20,
        "messages": [{"role": "user", "content": "Say a word."}],
    }
    async with Gateway(
        GatewayConfig(tmp_path, models, {"profile": profile}, port=0), {**os.environ}
    ) as gateway:
        transport = httpx2.ASGITransport(gateway.app)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1/v1", timeout=60
        ) as client:
            reply = await client.post("/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    if stream:
        chunks = [
            json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")
        ]
        assert "".join(
            choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
        ).strip()
    else:
        assert reply.json()["choices"][0]["message"]["content"].strip()


async def test_refused_parameters_are_left_out(proxy, caplog):
    """The proxy knows that o-series models take no temperature, and says so in its own words."""
    model = proxy.model("no-temperature")
    with caplog.at_level(logging.INFO, "redraft"):
        result = await redraft.refine(
            "Say a word.", model, WORDS, **ONCE, temperature=0.5, max_tokens=20
        )
    assert result.score == 1
    assert "accepts no temperature" in caplog.text


# ---- errors

WRONG = {  # the name of the model, the key, the prompt, the class of the error and its words
    "an unknown model": (
        "no-such-model",
        KEY,
        "hello",
        ModelUnavailableError,
        "Invalid model name",
    ),
    "a wrong key": ("tiny", "sk-not-of-the-proxy", "hello", AuthenticationError, "status 4"),
    "a wrong key of the proxy's": (
        "wrong-key",
        KEY,
        "hello",
        AuthenticationError,
        "Invalid API Key",
    ),
    "a long prompt": (
        "tiny",
        KEY,
        "word " * 9000,
        ContextLengthError,
        "exceeds the available context size",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_errors_are_not_tried_again(proxy, ask, wrong, stream):
    """They have the proxy's words, and the kind that says what to change."""
    name, key, prompt, kind, words = WRONG[wrong]
    with pytest.raises(kind, match=words) as caught:
        await proxy.model(name, key, stream=stream).complete(ask(prompt))
    assert not caught.value.retryable
    assert key not in str(caught.value)


async def test_a_server_that_is_down_is_tried_again(proxy, ask):
    """The proxy answers for it with a status of its own."""
    with pytest.raises(ModelUnavailableError, match="Connection error") as caught:
        await proxy.model("down").complete(ask())
    assert caught.value.retryable


async def test_a_rate_limit_says_how_long_to_wait(proxy, ask):
    """One request a minute is allowed: of a few in a row, one is refused, and its error has the
    wait.
    """
    with pytest.raises(RateLimitError) as caught:
        for _ in range(5):
            await proxy.model("limited").complete(ask(max_tokens=2))
    assert caught.value.retryable
    assert 0 < caught.value.retry_after <= 60


async def test_a_server_that_dies_in_a_stream(proxy, gguf_file, real, ask):
    """The begun answer is an error that is worth another try, and so is every later call."""
    command = [sys.executable, tiny.__file__, str(gguf_file), real.key]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        port = int(server.stdout.readline().strip().rpartition(":")[2])
        relay = await asyncio.start_server(
            lambda *pipe: pass_on(*pipe, port, server), sock=proxy.mortal
        )
        model = proxy.model("mortal", stream=True, extra_body={"ignore_eos": True})
        try:
            async with relay:
                with pytest.raises(ModelError) as caught:
                    await model.complete(ask(max_tokens=2000))
        finally:
            server.kill()
    assert caught.value.retryable
    with pytest.raises(ModelUnavailableError) as caught:
        await model.complete(ask())
    assert caught.value.retryable


async def pass_on(reader, writer, port, server, most=3000):
    """Pass a request on to the server, and at most so many bytes of its answer back; then kill the
    server.
    """
    back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])
    back_writer.write(head + await reader.readexactly(length))
    writer.write(await back_reader.readexactly(most))
    await writer.drain()
    server.kill()
    server.wait()
    back_writer.close()
    writer.close()
