"""A model in a file, run in this process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest

from redraft.errors import (
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelUnavailableError,
)
from redraft.models import connect, price_of
from redraft.models.llama_cpp import LocalModel


@pytest.fixture
async def local(gguf_file):
    model = LocalModel(gguf_file, context=2048, threads=1)
    yield model
    await model.aclose()


async def test_answer(local, ask):
    """A call returns text, finish reason and token counts, and costs nothing."""
    reply = await local.complete(ask(max_tokens=6, temperature=0.0))
    assert reply.text
    assert reply.truncated
    assert reply.usage.output_tokens == 6
    assert price_of(local).cost(reply.usage) == 0.0


async def test_schema_is_enforced(local, ask):
    """The engine holds random weights to a schema."""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    reply = await local.complete(
        ask("half \ud800", max_tokens=200, schema=schema, format="json_schema")
    )
    assert isinstance(json.loads(reply.text)["ok"], bool)


async def test_errors_are_typed(local, ask):
    """A long prompt and an invalid schema have their own errors, and neither is retried."""
    with pytest.raises(ContextLengthError, match=r"tiny \(local\): status 400") as caught:
        await local.complete(ask("word " * 4000))
    assert not caught.value.retryable
    with pytest.raises(ModelError, match="schema") as caught:
        await local.complete(ask(schema={"type": "nonsense"}, format="json_schema"))
    assert caught.value.status == 400


async def test_calls_are_queued(local, ask):
    """More calls than run at a time all return, and the event loop stays responsive."""
    local = LocalModel(local.path, context=2048, threads=1, extra_body={"ignore_eos": True})
    calls = asyncio.gather(*(local.complete(ask(f"number {i}", max_tokens=20)) for i in range(6)))
    ticks = 0
    while not calls.done():
        ticks += 1
        await asyncio.sleep(0.001)
    assert [r.usage.output_tokens for r in await calls] == [20] * 6
    assert ticks > 5
    await local.aclose()


async def test_cancelled_call_stops(gguf_file, ask):
    """The engine stops at its next token, so the next call does not wait."""
    local = LocalModel(gguf_file, context=8192, threads=1, extra_body={"ignore_eos": True})
    await local.complete(ask(max_tokens=16))
    task = asyncio.create_task(local.complete(ask(max_tokens=8000)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    start = time.process_time()  # (of the engine's threads, too; other programs have no part in it)
    await local.complete(ask(max_tokens=16))
    assert time.process_time() - start < 1.0
    await local.aclose()


async def test_closed_model_can_be_used_again(local, ask):
    """After aclose the next call loads the model again."""
    first = await local.complete(ask(max_tokens=4, temperature=0.0))
    await local.aclose()
    assert (await local.complete(ask(max_tokens=4, temperature=0.0))).text == first.text


def test_missing_file_is_an_error(tmp_path):
    """The error comes before anything is loaded."""
    with pytest.raises(ConfigError, match=r"no model file '.*gone.gguf'"):
        connect(f"local:{tmp_path / 'gone.gguf'}")


def test_missing_package_is_named(gguf_file):
    """Without xllamacpp the error says what to install."""
    hide = f"import sys; sys.modules['xllamacpp'] = None; from redraft.models import connect; connect('local:{gguf_file}')"
    result = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, check=False
    )
    assert "pip install 'redraft[local]'" in result.stderr


async def test_invalid_file_is_an_error(tmp_path, ask):
    """The error names the file."""
    path = tmp_path / "odd.gguf"
    path.write_text("not a model")
    with pytest.raises(ModelUnavailableError, match=r"odd\.gguf' cannot be loaded"):
        await LocalModel(path).complete(ask())


def test_identity_depends_on_the_file(gguf_file, tmp_path):
    """Another file under the same name is another model to a cache."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_file.read_bytes())
    before = LocalModel(path).identity
    path.write_bytes(gguf_file.read_bytes() + b"\0")
    assert LocalModel(path).identity != before != LocalModel(gguf_file).identity
    assert connect(f"local:{path}").name == "tiny"
