"""Vendors through pydantic-ai: its function model for requests and answers, its OpenAI client for
the network.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

import vendors
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.models import connect
from redraft.models.pydantic_ai import ProviderModel
from redraft.protocols import Model, Request
from redraft.usage import Usage

from . import fault_server as fs

CANARY = "sk-canary-0123456789"
CHAT = (
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello \ud800"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": [{"type": "text", "text": "again"}]},
)


def function_model(*parts, **fields):
    """Return a model of pydantic-ai that answers with these parts, and the list of its requests."""
    seen = []

    def answer(messages, info):
        seen.append((messages, info))
        return vendors.ModelResponse(
            parts=list(parts), usage=vendors.RequestUsage(input_tokens=7, output_tokens=3), **fields
        )

    return ProviderModel(vendors.FunctionModel(answer, model_name="fn")), seen


def over_http(server, **options):
    """Return pydantic-ai's OpenAI client for a server."""
    return ProviderModel(
        vendors.OpenAIChatModel(
            "m", provider=vendors.OpenAIProvider(base_url=server.url, api_key=CANARY)
        ),
        **options,
    )


async def test_messages_and_settings_are_translated():
    """Roles become parts of requests and responses, and only settings that are set are sent."""
    model, seen = function_model(vendors.TextPart("fine"))
    assert isinstance(model, Model)
    await model.complete(Request(CHAT, temperature=0.5, max_tokens=9, seed=4))
    ((messages, info),) = seen
    assert [type(m) for m in messages] == [
        vendors.ModelRequest,
        vendors.ModelResponse,
        vendors.ModelRequest,
    ]
    parts = [(p.part_kind, p.content) for m in messages for p in m.parts]
    translated = [
        ("system-prompt", "be brief"),
        ("user-prompt", "hello \ufffd"),
        ("text", "hi"),
        ("user-prompt", "again"),
    ]
    assert parts == translated
    assert {k: info.model_settings[k] for k in ("temperature", "max_tokens", "seed")} == dict(
        temperature=0.5, max_tokens=9, seed=4
    )


async def test_images_are_translated():
    """Images go by address or as data; an invalid one is an error that names it before anything is
    sent.
    """
    model, seen = function_model(vendors.TextPart("a cat"))
    pixel = "data:image/png;base64,iVBORw0KGgo="
    shown = [
        {"type": "text", "text": "what?"},
        *({"type": "image_url", "image_url": {"url": u}} for u in ("https://x/y.png", pixel)),
    ]
    await model.complete(Request(({"role": "user", "content": shown},)))
    text, image, data = seen[0][0][0].parts[0].content
    assert (text, image.url, data.media_type) == ("what?", "https://x/y.png", "image/png")
    broken = [{"type": "image_url", "image_url": {"url": "data:nothing"}}]
    with pytest.raises(BadResponseError, match="image"):
        await model.complete(Request(({"role": "user", "content": broken},)))
    assert len(seen) == 1


async def test_answer_is_translated():
    """Text, thinking, finish reason and usage are returned, without a price."""
    model, _ = function_model(
        vendors.ThinkingPart("hm"),
        vendors.TextPart("fi"),
        vendors.TextPart("ne"),
        finish_reason="length",
    )
    reply = await model.complete(Request(CHAT))
    assert (reply.text, reply.reasoning, reply.truncated) == ("fine", "hm", True)
    assert reply.usage == Usage(1, 7, 3, cost=None)


async def test_schema_is_sent_natively():
    """A model with JSON schema support gets the schema; other formats rely on the prompt."""
    model, seen = function_model(vendors.TextPart("{}"))
    schema = {"type": "object", "properties": {}}
    for format in ("json_schema", "json_object", "text"):
        await model.complete(Request(CHAT, schema=schema, format=format))
    modes = [info.model_request_parameters.output_mode for _, info in seen]
    assert modes == ["native", "text", "text"]
    assert seen[0][1].model_request_parameters.output_object.json_schema == schema


@pytest.mark.parametrize(
    ("parts", "fields", "kind"),
    [
        ([], {}, BadResponseError),
        ([("TextPart", "")], {}, BadResponseError),
        ([("ThinkingPart", "hm")], {"finish_reason": "length"}, BadResponseError),
        ([("ToolCallPart", "search", "{q")], {}, BadResponseError),
        ([("TextPart", "half")], {"finish_reason": "error"}, BadResponseError),
        ([("TextPart", "half")], {"finish_reason": "content_filter"}, ContentFilterError),
    ],
)
async def test_invalid_answers_are_errors(parts, fields, kind):
    """Empty answers, thinking alone, unreadable tool calls and filtered answers are errors that
    were paid for.
    """
    model, _ = function_model(
        *(getattr(vendors, name)(*values) for name, *values in parts), **fields
    )
    with pytest.raises(kind) as caught:
        await model.complete(Request(CHAT))
    assert caught.value.retryable is (
        kind is BadResponseError and fields != {"finish_reason": "length"}
    )
    assert caught.value.usage == Usage(1, 7, 3, cost=None)


async def test_real_server(real, ask):
    """Through pydantic-ai's OpenAI client, llama.cpp answers and enforces a schema."""
    provider = vendors.OpenAIProvider(base_url=real.url, api_key=real.key)
    model = ProviderModel(vendors.OpenAIChatModel(real.name, provider=provider))
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    reply = await model.complete(ask(max_tokens=200, schema=schema, format="json_schema"))
    assert isinstance(json.loads(reply.text)["ok"], bool)
    assert reply.usage.output_tokens > 3
    assert model.provider == "openai"


FAULTS = {
    "401": (fs.error(401, f"bad key {CANARY[:6]}"), AuthenticationError, False),
    "403": (fs.error(403), AuthenticationError, False),
    "quota": (fs.error(429, "quota", code="insufficient_quota"), AuthenticationError, False),
    "404": (fs.error(404), ModelUnavailableError, False),
    "400": (fs.error(400, "bad"), ModelError, False),
    "context": (fs.error(400, "no", code="context_length_exceeded"), ContextLengthError, False),
    "429": (fs.error(429, "slow", headers={"Retry-After": "7"}), RateLimitError, True),
    "500": (fs.error(500), ModelUnavailableError, True),
    "529": (fs.error(529), ModelUnavailableError, True),
    "reset": (fs.cut(b"", 0, reset=True), ModelUnavailableError, True),
    "no choices": (fs.http({"id": "x", "object": "chat.completion"}), BadResponseError, True),
    "no choice": (
        fs.http({"id": "x", "object": "chat.completion", "choices": [None]}),
        BadResponseError,
        True,
    ),
    "odd choices": (
        fs.http({"id": "x", "object": "chat.completion", "choices": 3}),
        BadResponseError,
        True,
    ),
    "silence": (fs.silence, ModelTimeoutError, True),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_errors_are_translated(faults, ask, name):
    """Each error of pydantic-ai has its Redraft class, after one request, and shows no key."""
    does, kind, retryable = FAULTS[name]
    model = over_http(faults.says(does), timeout=0.5 if name == "silence" else 600)
    with pytest.raises(ModelError) as caught:
        await model.complete(ask())
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert caught.value.retry_after == (7.0 if name == "429" else None)
    assert len(faults.requests) == 1
    assert str(caught.value).startswith("openai:m: ")
    assert CANARY not in str(caught.value)


async def test_only_model_errors_are_translated(ask):
    """An exception of pydantic-ai's model is translated, and a bug propagates."""

    def odd(messages, info):
        raise vendors.UnexpectedModelBehavior("what is this")

    with pytest.raises(BadResponseError, match="what is this"):
        await ProviderModel(vendors.FunctionModel(odd)).complete(ask())
    with pytest.raises(ZeroDivisionError):
        await ProviderModel(vendors.FunctionModel(lambda m, i: 1 / 0)).complete(ask())


def test_missing_key_or_package_is_an_error(monkeypatch):
    """The error comes at once and says what to install or set."""
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="DEEPSEEK_API_KEY"):
        connect("deepseek:deepseek-chat")
    hide = "import sys; sys.modules['pydantic_ai'] = None; from redraft.models import connect; connect('anthropic:claude')"
    result = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, check=False
    )
    assert "ConfigError" in result.stderr
    assert "pip install 'redraft[providers]'" in result.stderr


def test_one_model_in_many_event_loops(monkeypatch, closed_url):
    """A named vendor's client is made for each event loop and closed with it (warnings are errors
    here).
    """
    monkeypatch.setenv("DEEPSEEK_API_KEY", CANARY)
    model = connect("deepseek:deepseek-chat", timeout=5.0)
    assert (model.name, model.provider, model.model_name) == (
        "deepseek:deepseek-chat",
        "deepseek",
        "deepseek-chat",
    )

    async def rejected_call():
        inner = await (await model._models.get()).get()
        inner.client.base_url = closed_url
        with pytest.raises(ModelUnavailableError) as caught:
            await model.complete(Request(CHAT))
        assert caught.value.usage.calls == 0  # no server received a request
        return caught.value.retryable

    assert [asyncio.run(rejected_call()) for _ in range(2)] == [True, True]
