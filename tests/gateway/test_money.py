"""What a request names and does not send: fields that choose the model or the host, fields and
tools with a price, images, files.

A server stands in for the provider: it charges for what a request names, as providers do.
"""

import asyncio
import json
import re
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from redraft.gateway.config import (
    GatewayConfig,
    GatewayLimits,
    Profile,
    ServedModel,
    parse_config,
)
from redraft.gateway.exchange import GatewayError
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.request_costs import meter_request
from redraft.gateway.server import bind_socket
from redraft.gateway.stream_usage import cache_surcharge
from redraft.middleware import Budget
from redraft.middleware.call_costs import CostEstimator, PromptSize, max_image_tokens
from redraft.usage import Usage

from .running import http_client, running

WIRES = ("chat", "responses", "messages")
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
MODELS = ("pass/m", "refine/fast")
PRICES = (2.5, 10.0)
URL = "https://images.example/large.png"
FUNCTION = {
    "chat": {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    "responses": {"type": "function", "name": "add", "parameters": {"type": "object"}},
    "messages": {"name": "add", "input_schema": {"type": "object"}},
}


def body_of(wire, model, content="Say it well.", **fields):
    """Return a request with this content of the user."""
    name = "input" if wire == "responses" else "messages"
    limit = "max_output_tokens" if wire == "responses" else "max_tokens"
    return {"model": model, name: [{"role": "user", "content": content}], limit: 10, **fields}


def reply_of(path, tokens, written=5):
    """Return an answer in the protocol of a path; its prompt and the answer have so many tokens."""
    usage = {"input_tokens": tokens, "output_tokens": written}
    if path.endswith("/classify"):
        return {
            "data": [{"probs": [0.7]}],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    if path.endswith("/messages"):
        content = [{"type": "text", "text": "A fine answer."}]
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": content,
        } | {
            "stop_reason": "end_turn",
            "usage": usage,
        }
    if path.endswith("/responses"):
        part = {"type": "output_text", "text": "A fine answer.", "annotations": []}
        output = [
            {
                "type": "message",
                "id": "m_1",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        ]
        return {
            "id": "resp_1",
            "object": "response",
            "status": "completed",
            "model": "m",
            "output": output,
            "usage": usage,
        }
    message = {"role": "assistant", "content": "A fine answer."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": written,
        "total_tokens": tokens + written,
    }
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


@dataclass
class Provider:
    """A provider that holds its answers until `release` is set. `charged`: USD for what it has
    answered.
    """

    url: str = ""
    requests: list = field(default_factory=list)
    tokens: int = 12
    written: int = 5
    price_of_call: float = 0.0
    charged: float = 0.0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request):
        self.requests.append((request.url.path, json.loads(await request.body())))
        await self.release.wait()
        self.charged += (
            self.tokens * PRICES[0] + self.written * PRICES[1]
        ) / 1e6 + self.price_of_call
        return JSONResponse(reply_of(request.url.path, self.tokens, self.written))


async def until(condition):
    """Wait for a condition."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def provider():
    """A provider on a free port, which answers at once unless a test clears `release`."""
    made = Provider()
    made.release.set()
    app = Starlette(routes=[Route("/v1/{rest:path}", made.answer, methods=["POST"])])
    with bind_socket("127.0.0.1", 0) as listener:
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
        )
        server.capture_signals = nullcontext  # they are pytest's
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield made
        made.release.set()
        server.should_exit = True
        await serving


@asynccontextmanager
async def gateway(folder, provider, usd=None, profile={}, kind="openai", **model):
    """A gateway before the provider, for a key with a limit of so many USD a day. Yields the
    client, the key and the folder's keys.
    """
    served = ServedModel("m", provider.url, "tiny", kind, **{"prices": PRICES, **model})
    refined = Profile(
        "fast",
        "m",
        **{
            "judge": False,
            "graders": ["words:1-500"],
            "settings": {"max_iterations": 0},
            **profile,
        },
    )
    profiles = {"fast": refined} if kind == "openai" else {}
    config = GatewayConfig(
        folder, {"m": served}, profiles, port=0, limits=GatewayLimits(max_concurrent=256)
    )
    with KeyRing(folder) as ring:
        key, secret = ring.add("ci", KeyLimits(usd_per_day=usd))
    async with (
        running(config) as (url, _),
        http_client(url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        yield client, key


def spending(folder, key):
    with KeyRing(folder) as ring:
        today = ring.spending("day", key)
    return today.spent / 1e9, today.reserved / 1e9


async def post(client, wire, body):
    return await client.post(PATHS[wire], json=body)


def error_of(reply):
    return reply.status_code, reply.json().get("error", {}).get("param")


# ---- fields that choose the model, the host or the credentials

ROUTING = (
    *(
        "models",
        "route",
        "fallbacks",
        "fallback_models",
        "provider",
        "providers",
        "preset",
        "model_list",
        "user_config",
        "engine",
    ),
    *(
        "api_base",
        "base_url",
        "api_key",
        "api_version",
        "api_type",
        "api_token",
        "organization",
        "headers",
        "extra_headers",
    ),
    *(
        "extra_query",
        "extra_body",
        "custom_llm_provider",
        "litellm_credential_name",
        "aws_access_key_id",
        "vertex_credentials",
    ),
    *(
        "azure_ad_token",
        "data_sources",
        "kv_transfer_params",
        "bootstrap_host",
        "lora_path",
        "provider_specific_header",
    ),
    *(
        "providerOptions",
        "allowed_model_region",
        "Model",
        "MODEL",
        "Models",
        "Api_Base",
        "apiBase",
        "BaseURL",
        "baſe_url",
        "API-KEY",
    ),
)
NOTHING = (None, [], {}, "")


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("wire", WIRES)
async def test_fields_that_choose_the_route_are_refused_on_every_path(tmp_path, provider, wire):
    """By name, in any case, whichever key and model; a null and what is empty ask for nothing.
    Nothing is sent or charged.
    """
    async with gateway(tmp_path, provider) as (client, _):
        for model in MODELS:
            for name in ROUTING:
                reply = await post(client, wire, body_of(wire, model, **{name: ["other/model"]}))
                assert error_of(reply) == (400, name), (model, name, reply.text)
            for value in NOTHING:
                fields = dict.fromkeys(("route", "fallbacks", "headers"), value)
                assert (await post(client, wire, body_of(wire, model, **fields))).status_code == 200
    assert len(provider.requests) == len(MODELS) * len(NOTHING)


async def test_tokens_are_not_counted_for_another_route(tmp_path, provider):
    """The route that counts tokens asks the model's server, too."""
    async with gateway(tmp_path, provider) as (client, _):
        for name in ROUTING:
            body = {"model": "pass/m", "messages": [{"role": "user", "content": "x"}], name: "x"}
            assert error_of(await client.post("/messages/count_tokens", json=body)) == (400, name)
    assert not provider.requests


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", ["plugins", "transforms"])
async def test_a_refinement_does_not_send_what_changes_the_prompt(tmp_path, provider, wire, name):
    """The profile decides what a model is asked; pass/ passes it on. The model of the profile speaks
    chat completions, so that of a client of responses it gets no unknown field.
    """
    async with gateway(tmp_path, provider) as (client, _):
        reply = await post(client, wire, body_of(wire, "refine/fast", **{name: ["x"]}))
        if wire == "responses":
            assert name in reply.headers["x-redraft-ignored"]
            assert all(name not in body for _, body in provider.requests)
        else:
            assert error_of(reply) == (400, name) and not provider.requests
        if wire == "chat":
            assert (
                await post(client, wire, body_of(wire, "pass/m", **{name: ["x"]}))
            ).status_code == 200
            assert provider.requests[0][1][name] == ["x"]


# ---- fields with a price

PRICED = {
    "service_tier": "priority",
    "web_search_options": {},
    "plugins": [{"id": "web"}],
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "prompt": {"id": "pmpt_1"},
    "thread": {"type": "continue", "previous_message_id": "msg_1"},
    "container": "container_1",
    "mcp_servers": [{"type": "url", "url": "https://mcp.example"}],
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "speed": "fast",
    "inference_geo": "us",
    "background": True,
    "search_parameters": {"mode": "auto"},
    "mm_processor_kwargs": {"max_pixels": 10**9},
    "chat_template": "{% for i in range(99999) %}x{% endfor %}",
    "prediction": {"type": "content", "content": "x"},
    "context_management": {"edits": [{"type": "compact_20260112"}]},
}
FREE = {
    "service_tier": "flex",
    "user": "u",
    "metadata": {"api_key": "a label", "models": "a label"},
    "seed": 1,
    "speed": "standard",
    "verbosity": "low",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "store": True,
    "background": False,
    "modalities": ["text"],
    "plugins": [],
    "mcp_servers": [],
    "previous_response_id": None,
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
}


@pytest.mark.parametrize("wire", WIRES)
async def test_fields_without_a_known_price_are_refused_to_keys_with_a_limit(
    tmp_path, provider, wire
):
    """By name, on both paths; nothing is sent or charged."""
    async with gateway(tmp_path, provider, 5.0) as (client, key):
        for model in MODELS:
            for name, value in PRICED.items():
                reply = await post(client, wire, body_of(wire, model, **{name: value}))
                assert error_of(reply) == (400, name), (model, name, reply.text)
        assert spending(tmp_path, key) == (0, 0)
    assert not provider.requests


ILL_NAMED = {
    "Service_Tier": "priority",
    "serviceTier": "priority",
    "Max_Tokens": 100_000,
    "maxTokens": 100_000,
    "N": 50,
    "Best_Of": 50,
    "Messages": [],
    "Tools": [],
    "Instructions": "x",
    "Input": "x",
    "ſystem": "x",
    "Cache_Control": {},
}
ILL_NUMBERS = [
    (name, value)
    for name in ("n", "best_of", "n_predict", "min_tokens")
    for value in ("50", True, [50], {"n": 50})
]


async def test_names_in_another_case_are_refused_to_keys_with_a_limit(tmp_path, provider):
    """Servers in Go read them without regard to case, as the last of a repeated key. Other keys may
    send them.
    """
    async with gateway(tmp_path, provider, 5.0) as (client, _):
        for model in MODELS:
            for name, value in ILL_NAMED.items():
                reply = await post(client, "chat", body_of("chat", model, **{name: value}))
                assert error_of(reply) == (400, name), (model, name, reply.text)
            reply = await post(client, "chat", body_of("chat", model, X_Vendor=1))
            assert reply.status_code == 200 and provider.requests.pop()[1]["X_Vendor"] == 1
    assert not provider.requests
    async with gateway(tmp_path / "unlimited", provider) as (client, _):
        assert (
            await post(client, "chat", body_of("chat", "pass/m", Service_Tier="priority"))
        ).status_code == 200


async def test_numbers_that_are_no_numbers_are_refused_to_keys_with_a_limit(tmp_path, provider):
    """Many a server reads "50" as 50."""
    async with gateway(tmp_path, provider, 5.0) as (client, _):
        for name, value in [
            *ILL_NUMBERS,
            ("max_tokens", "100000"),
            ("max_completion_tokens", "100000"),
        ]:
            reply = await post(client, "chat", body_of("chat", "pass/m", **{name: value}))
            assert error_of(reply) == (400, name), (name, value, reply.text)
        assert (
            await post(client, "chat", body_of("chat", "pass/m", n=None, best_of=1.0))
        ).status_code == 200
    assert len(provider.requests) == 1


async def test_a_longer_context_needs_the_operators_prices(tmp_path, provider):
    """Anthropic asks more for prompts above 200,000 tokens, which are sent with this header."""
    headers = {"anthropic-beta": "other-2025-01-01,context-1m-2025-08-07"}
    for prices, status in ((None, 400), (PRICES, 200)):
        async with gateway(
            tmp_path / str(status), provider, 5.0, kind="anthropic", prices=prices
        ) as (client, _):
            reply = await client.post(
                PATHS["messages"], json=body_of("messages", "pass/m"), headers=headers
            )
            assert reply.status_code == status and ("anthropic-beta" in reply.text) == (
                status == 400
            )


async def test_other_keys_may_use_them_and_what_costs_nothing_is_free(tmp_path, provider):
    """The request arrives as it was sent."""
    for usd, fields in ((None, PRICED), (5.0, FREE)):
        provider.requests.clear()
        async with gateway(tmp_path / str(usd), provider, usd) as (client, _):
            for name, value in fields.items():
                reply = await post(client, "chat", body_of("chat", "pass/m", **{name: value}))
                assert reply.status_code == 200, (name, reply.text)
                assert provider.requests[-1][1][name] == value


@pytest.mark.parametrize("model", MODELS)
async def test_what_the_operator_prices_is_reserved_and_charged(tmp_path, provider, model):
    """For each call, besides its tokens."""
    provider.release.clear()
    async with gateway(tmp_path, provider, 5.0, field_prices={"service_tier": 0.25}) as (
        client,
        key,
    ):
        task = asyncio.create_task(
            post(client, "chat", body_of("chat", model, service_tier="priority"))
        )
        await until(lambda: provider.requests)
        assert 0.25 < spending(tmp_path, key)[1] < 0.27
        provider.release.set()
        assert (await task).status_code == 200
        await until(lambda: not spending(tmp_path, key)[1])
        charged = pytest.approx(0.25 + (12 * 2.5 + 5 * 10) / 1e6)
        assert spending(tmp_path, key)[0] == charged
        metrics = (await client.get(client.base_url.join("/metrics"))).text
        assert (
            float(
                re.search(r"^redraft_gateway_cost_usd_total\{.*\} (\S+)$", metrics, re.MULTILINE)[1]
            )
            == charged
        )
    assert provider.requests[0][1]["service_tier"] == "priority"


@pytest.mark.parametrize("kind", ["web_search", "web_search_20250305", "web_search_2025_08_26"])
def test_a_tool_is_priced_with_or_without_its_date(kind):
    """As Anthropic and OpenAI write it."""
    model = ServedModel(
        "m", "http://127.0.0.1:1/v1", "tiny", prices=PRICES, tool_prices={"web_search": 0.05}
    )
    metered = meter_request({"input": "x", "tools": [{"type": kind}]}, "responses", model)
    assert (metered.left_out, metered.usd) == ((), 0.05)


# ---- tools

PROVIDER_TOOLS = {
    "chat": [
        {"type": "web_search"},
        {"type": "openrouter:web_search"},
        {"google_search": {}},
        {"type": "browser_search"},
    ]
    + [{"type": "function", "Type": "web_search", "function": {"name": "x"}}],
    "responses": [
        *(
            {"type": name}
            for name in (
                "web_search",
                "web_search_preview",
                "file_search",
                "image_generation",
                "unheard_of",
                "shell",
            )
        ),
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {
            "type": "mcp",
            "server_label": "x",
            "server_url": "https://mcp.example",
            "authorization": "secret",
        },
        {"type": "tool_search"},
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "web_search"}]},
    ],
    "messages": [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "advisor_20260301", "name": "advisor", "model": "dear"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ],
}
CLIENT_TOOLS = {
    "chat": [{"type": "custom", "custom": {"name": "patch"}}],
    "responses": [
        *({"type": name} for name in ("local_shell", "apply_patch", "computer_use_preview")),
        {"type": "custom", "name": "patch"},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "tool_search", "execution": "client"},
        {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION["responses"]]},
    ],
    "messages": [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"},
        {"type": "custom", "name": "other", "input_schema": {"type": "object"}},
    ],
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("wire", WIRES)
async def test_tools_that_the_provider_runs_are_left_out_with_a_notice(
    tmp_path, provider, wire, caplog
):
    """For keys with a limit in USD: the tools that the client runs stay, and the reply and the log
    say what is missing.
    """
    caplog.set_level("INFO", "redraft.access")
    kind = "anthropic" if wire == "messages" else "openai"
    kept = [FUNCTION[wire], *CLIENT_TOOLS[wire]]
    async with gateway(tmp_path, provider, 5.0, kind=kind) as (client, _):
        for tool in PROVIDER_TOOLS[wire]:
            reply = await post(
                client, wire, body_of(wire, "pass/m", tools=[kept[0], tool, *kept[1:]])
            )
            assert reply.status_code == 200, reply.text
            assert provider.requests[-1][1]["tools"] == kept
            name = tool.get("type", "google_search")
            assert name in reply.headers["x-redraft-notice"]
            reply = await post(
                client, wire, body_of(wire, "pass/m", tools=[tool], tool_choice=auto(wire))
            )
            assert reply.status_code == 200 and provider.requests[-1][1].keys().isdisjoint(
                {"tools", "tool_choice"}
            )
            if kind == "openai":
                reply = await post(client, wire, body_of(wire, "refine/fast", tools=[tool]))
                assert reply.status_code == 200 and name in reply.headers["x-redraft-notice"]
    notices = [
        json.loads(record.message)["notice"]
        for record in caplog.records
        if record.name == "redraft.access"
    ]
    assert all(
        any(tool.get("type", "google_search") in notice for notice in notices)
        for tool in PROVIDER_TOOLS[wire]
    )


def auto(wire):
    return {"type": "auto"} if wire == "messages" else "auto"


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("wire", "choice"),
    [
        ("responses", {"type": "web_search"}),
        (
            "responses",
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        ),
        ("responses", "required"),
        ("messages", {"type": "tool", "name": "web_search"}),
        ("messages", {"type": "any"}),
        ("chat", "required"),
    ],
)
async def test_a_choice_of_a_tool_that_is_left_out_is_refused(tmp_path, provider, wire, choice):
    """The answer would not be what the client asks for."""
    tool = (
        {"type": "web_search_20250305", "name": "web_search"}
        if wire == "messages"
        else {"type": "web_search"}
    )
    async with gateway(
        tmp_path, provider, 5.0, kind="anthropic" if wire == "messages" else "openai"
    ) as (client, _):
        reply = await post(client, wire, body_of(wire, "pass/m", tools=[tool], tool_choice=choice))
        assert error_of(reply) == (400, "tool_choice")
        if isinstance(choice, dict) and choice["type"] != "any":
            reply = await post(
                client,
                wire,
                body_of(wire, "pass/m", tools=[FUNCTION[wire], tool], tool_choice=choice),
            )
            assert error_of(reply) == (400, "tool_choice")
    assert not provider.requests


async def test_a_choice_among_tools_keeps_those_that_are_left(tmp_path, provider):
    """`allowed_tools` names the others no longer."""
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "add"}, {"type": "web_search"}],
    }
    body = body_of(
        "responses",
        "pass/m",
        tools=[FUNCTION["responses"], {"type": "web_search"}],
        tool_choice=choice,
    )
    async with gateway(tmp_path, provider, 5.0) as (client, _):
        assert (await post(client, "responses", body)).status_code == 200
    assert provider.requests[0][1]["tool_choice"]["tools"] == [{"type": "function", "name": "add"}]


async def test_a_tool_with_a_price_stays(tmp_path, provider):
    """By its type, or its type without the date; keys without a limit keep all tools."""
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    for usd, prices in (
        (5.0, {"web_search": 0.05}),
        (5.0, {"web_search_20250305": 0.05}),
        (None, {}),
    ):
        provider.requests.clear()
        folder = tmp_path / f"{usd}{len(str(prices))}"
        async with gateway(folder, provider, usd, kind="anthropic", tool_prices=prices) as (
            client,
            key,
        ):
            reply = await post(client, "messages", body_of("messages", "pass/m", tools=tools))
            assert reply.status_code == 200 and "x-redraft-notice" not in reply.headers
            assert provider.requests[0][1]["tools"] == tools
            if usd:
                await until(lambda: not spending(folder, key)[1])
                assert spending(folder, key)[0] > 0.05


@pytest.mark.parametrize(
    "part",
    [
        {"type": "additional_tools", "tools": [{"type": "web_search"}]},
        {"type": "tool_addition", "tool": {"type": "web_search_20250305"}},
    ],
)
async def test_no_tool_comes_in_with_the_conversation(tmp_path, provider, part):
    """A list of tools inside an item of the input is one, too."""
    async with gateway(tmp_path, provider, 5.0, context_window=1000) as (client, _):
        body = body_of("responses", "pass/m") | {"input": [{"role": "user", "content": "x"}, part]}
        assert error_of(await post(client, "responses", body)) == (400, "input[1]")
    assert not provider.requests


# ---- images, files, audio, stored inputs

IMAGE = {
    "chat": {"type": "image_url", "image_url": {"url": URL}},
    "responses": {"type": "input_image", "image_url": URL},
    "messages": {"type": "image", "source": {"type": "url", "url": URL}},
}
FILE = {
    "chat": {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
    },
    "responses": {"type": "input_file", "file_url": "https://files.example/a.pdf"},
    "messages": {
        "type": "document",
        "source": {"type": "url", "url": "https://files.example/a.pdf"},
    },
}
STORED = {
    "chat": {"type": "file", "file": {"file_id": "file_1"}},
    "responses": {"type": "input_image", "file_id": "file_1"},
    "messages": {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
}
TEXT = {"chat": "text", "responses": "input_text", "messages": "text"}
NESTED = {
    "chat": lambda part: [{"role": "tool", "tool_call_id": "c", "content": [part]}],
    "responses": lambda part: [{"type": "function_call_output", "call_id": "c", "output": [part]}],
    "messages": lambda part: [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [part]}],
        }
    ],
}


async def reserved_for(client, provider, folder, key, wire, body):
    """Send a request; return what is reserved for it while it is at work."""
    provider.release.clear()
    provider.requests.clear()
    task = asyncio.create_task(post(client, wire, body))
    await until(lambda: provider.requests or task.done())
    reserved = spending(folder, key)[1]
    provider.release.set()
    reply = await task
    await until(lambda: not spending(folder, key)[1])
    return reply.status_code, reserved


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("is_nested", [False, True])
async def test_images_and_files_are_reserved_at_their_maximum(tmp_path, provider, wire, is_nested):
    """An image at the tokens that it may have, a file at the context window, wherever in a
    conversation; text by its length.
    """
    kind = "anthropic" if wire == "messages" else "openai"
    name = "input" if wire == "responses" else "messages"

    def body(part):
        if is_nested:
            return body_of(wire, "pass/m") | {name: NESTED[wire](part)}
        return body_of(wire, "pass/m", [{"type": TEXT[wire], "text": "What is it?"}, part])

    async with gateway(
        tmp_path, provider, 50.0, kind=kind, context_window=400_000, image_tokens=2000
    ) as (client, key):
        for part, least in ((IMAGE[wire], 2000), (FILE[wire], 400_000)):
            status, reserved = await reserved_for(client, provider, tmp_path, key, wire, body(part))
            assert status == 200 and least * 2.5e-6 <= reserved <= (least + 500) * 2.5e-6
        status, reserved = await reserved_for(
            client, provider, tmp_path, key, wire, body({"type": TEXT[wire], "text": "x"})
        )
        assert status == 200 and reserved < 500 * 2.5e-6
    async with gateway(tmp_path / "unknown", provider, 50.0, kind=kind) as (client, key):
        folder = tmp_path / "unknown"
        status, reserved = await reserved_for(
            client, provider, folder, key, wire, body(IMAGE[wire])
        )
        assert status == 200 and reserved >= 16_384 * 2.5e-6
        reply = await post(client, wire, body(FILE[wire]))
        assert reply.status_code == 400 and "context-window" in reply.text
        reply = await post(client, wire, body(STORED[wire]))
        assert reply.status_code == 400 and reply.json()["error"]["param"].endswith(".file_id")


@pytest.mark.parametrize("wire", WIRES)
async def test_the_data_of_an_image_is_no_text(tmp_path, provider, wire):
    """An image in the request is reserved at its maximum, however many bytes it has."""
    data = "iVBORw0KGgo" * 20_000
    url = f"data:image/png;base64,{data}"
    image = {
        "chat": {"type": "image_url", "image_url": {"url": url}},
        "responses": {"type": "input_image", "image_url": url},
        "messages": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data},
        },
    }[wire]
    kind = "anthropic" if wire == "messages" else "openai"
    async with gateway(tmp_path, provider, 5.0, kind=kind, image_tokens=2000) as (client, key):
        status, reserved = await reserved_for(
            client, provider, tmp_path, key, wire, body_of(wire, "pass/m", [image])
        )
        assert status == 200 and 2000 * 2.5e-6 <= reserved <= 2500 * 2.5e-6


async def test_an_answer_without_a_limit_is_reserved_at_the_longest_so_far(tmp_path, provider):
    """At 4,096 tokens before the model has written a longer one."""
    body = body_of("chat", "pass/m") | {"max_tokens": None}
    async with gateway(tmp_path, provider, 5.0) as (client, key):
        for written, least in ((9000, 4096), (5, 9000), (5, 9000)):
            provider.written = written
            _, reserved = await reserved_for(client, provider, tmp_path, key, "chat", body)
            assert least * PRICES[1] / 1e6 <= reserved <= (least + 200) * PRICES[1] / 1e6


async def test_a_stored_file_with_a_price_is_passed_on(tmp_path, provider):
    """The price covers its tokens."""
    async with gateway(tmp_path, provider, 5.0, field_prices={"file_id": 0.1}) as (client, key):
        body = body_of("responses", "pass/m", [STORED["responses"]])
        status, reserved = await reserved_for(client, provider, tmp_path, key, "responses", body)
        assert status == 200 and 0.1 < reserved < 0.102


NO_IMAGES = (("data", "application"), ("data", "video"), ("DATA", "text"))
NO_MAXIMUM = [
    ("responses", {"type": "item_reference", "id": "msg_1"}),
    ("responses", {"type": "reasoning", "id": "rs_1", "summary": []}),
    (
        "responses",
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "file_id": "f"},
        },
    ),
    ("responses", {"type": "image_generation_call", "id": "ig_1"}),
    ("responses", {"type": ["input_image"], "image_url": URL}),
    ("chat", {"role": "assistant", "audio": {"id": "audio_1"}}),
    (
        "chat",
        {
            "role": "user",
            "content": [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}}],
        },
    ),
    ("chat", {"role": "user", "content": [{"type": "video_url", "video_url": {"url": URL}}]}),
    ("chat", {"role": "user", "content": [{"type": "unheard_of", "url": URL}]}),
    ("chat", {"role": "user", "content": [{"image": "aGk="}]}),
    *(
        ("chat", {"role": "user", "content": [part]})
        for part in (
            {"role": "x", "image_url": URL},
            {"type": "text", "text": "", "uuid": "u", "image_url": URL},
            {"type": "refusal", "refusal": "", "uuid": "u", "video_url": URL},
            {"type": "tool_use", "uuid": "u", "audio_url": URL},
            {"type": "image_url", "uuid": "u", "video_url": URL},
            {"type": "text", "Type": "video_url", "text": "x", "video_url": URL},
            [{"type": "video_url", "video_url": URL}],
            [[{"role": "x", "image_url": URL}]],
            *(
                {"type": "image_url", "image_url": {"url": f"{scheme}:{kind}/x;base64,AA"}}
                for scheme, kind in NO_IMAGES
            ),
        )
    ),
    ("chat", {"role": "user", "content": "x", "images": ["aGk="]}),
    ("chat", {"role": "user", "Content": [{"type": "video_url", "video_url": URL}]}),
    (
        "responses",
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:application/pdf;base64,AA"}],
        },
    ),
    (
        "messages",
        {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "video/mp4", "data": "A"},
                }
            ],
        },
    ),
    (
        "responses",
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
    ),
    ("responses", {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "results": None}),
    ("responses", {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": None}),
    ("messages", {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}),
]


async def test_what_has_no_maximum_is_refused_by_its_place(tmp_path, provider):
    """Unknown is not zero."""
    async with gateway(tmp_path, provider, 5.0) as (client, key):
        for wire, item in NO_MAXIMUM:
            name = "input" if wire == "responses" else "messages"
            reply = await post(
                client,
                wire,
                body_of(wire, "pass/m") | {name: [{"role": "user", "content": "x"}, item]},
            )
            assert reply.status_code == 400 and reply.json()["error"]["param"].startswith(
                f"{name}[1]"
            ), reply.text
        assert spending(tmp_path, key) == (0, 0)
    assert not provider.requests


IN_THE_REQUEST = [
    (
        "responses",
        {
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
    ),
    (
        "responses",
        {
            "type": "file_search_call",
            "id": "fs_1",
            "queries": ["x"],
            "results": [{"file_id": "f", "text": "x"}],
        },
    ),
    (
        "responses",
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "code": "1",
            "outputs": [{"type": "logs", "logs": "1"}],
        },
    ),
    (
        "responses",
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "name": "x",
            "arguments": "{}",
            "output": "x",
            "server_label": "s",
        },
    ),
    (
        "responses",
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "name": "x",
            "arguments": "{}",
            "server_label": "s",
        },
    ),
    (
        "responses",
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ),
    (
        "responses",
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit"}}],
        },
    ),
    *(
        ("messages", {"role": "assistant", "content": [part]})
        for part in (
            {
                "type": "text",
                "text": "x",
                "citations": [{"type": "web_search_result_location"}],
                "cache_control": None,
            },
            {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "s", "input": {}},
            {
                "type": "mcp_tool_result",
                "tool_use_id": "m",
                "content": [{"type": "text", "text": "x"}],
            },
            {
                "type": "code_execution_tool_result",
                "tool_use_id": "t",
                "content": {"type": "code_execution_result", "stdout": "1"},
            },
            {
                "type": "web_search_tool_result",
                "tool_use_id": "t",
                "content": {"type": "web_search_tool_result_error"},
            },
            {
                "type": "tool_search_tool_result",
                "tool_use_id": "t",
                "content": {
                    "type": "tool_search_tool_search_result",
                    "tool_references": [{"type": "tool_reference"}],
                },
            },
            {
                "type": "web_fetch_tool_result",
                "tool_use_id": "t",
                "content": {
                    "type": "web_fetch_result",
                    "content": {"type": "document", "source": {"type": "text", "data": "x"}},
                },
            },
        )
    ),
]


@pytest.mark.parametrize(("wire", "item"), IN_THE_REQUEST)
def test_what_the_tools_of_providers_leave_in_a_conversation_is_text(wire, item):
    """Where its whole content is in the request."""
    name = "input" if wire == "responses" else "messages"
    metered = meter_request({name: [{"role": "user", "content": "x"}, item]}, wire, None)
    assert (metered.unbounded, metered.images, metered.usd) == ("", 0, 0)


@pytest.mark.parametrize(
    ("prices", "is_bounded"), [({"web_search_preview": 0.05}, True), ({"file_search": 0.05}, False)]
)
def test_the_price_of_a_tool_covers_its_earlier_calls(prices, is_bounded):
    """What the provider may have stored of a call was read at that price."""
    call = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    model = ServedModel("m", "http://127.0.0.1:1/v1", "tiny", prices=PRICES, tool_prices=prices)
    metered = meter_request({"input": [call]}, "responses", model)
    assert (not metered.unbounded, metered.usd) == (is_bounded, 0)


async def test_an_unknown_context_window_is_told_with_what_can_be_done(tmp_path, provider):
    """A judge that is no model of the configuration has no table in which to set it."""
    body = body_of("chat", "refine/fast", [FILE["chat"]])
    profile = {"judge": f"{provider.url}#judge"}
    async with gateway(tmp_path, provider, 5.0, context_window=1000, profile=profile) as (
        client,
        _,
    ):
        reply = await post(client, "chat", body)
        assert (
            reply.status_code == 400
            and "as a model of the configuration" in reply.text
            and "[models.http" not in reply.text
        )


async def test_a_refinement_reserves_images_and_files_in_each_call(tmp_path, provider):
    """The budget of a profile bounds its calls by what images may have; a file has no bound but the
    context window.
    """
    model = {"context_window": 400_000, "image_tokens": 2000}
    cases = [
        (None, IMAGE["chat"], 2000),
        (None, FILE["chat"], 400_000),
        (0.1, FILE["chat"], 400_000),
        (0.1, IMAGE["chat"], 2000),
    ]
    for budget, part, least in cases:
        folder = tmp_path / f"{budget}{least}"
        profile = {
            "settings": {"max_iterations": 0, "budget": Budget(usd=budget) if budget else None}
        }
        async with gateway(folder, provider, 50.0, profile=profile, **model) as (client, key):
            body = body_of("chat", "refine/fast", [{"type": "text", "text": "What is it?"}, part])
            _, reserved = await reserved_for(client, provider, folder, key, "chat", body)
            assert reserved >= (budget or 0) + least * 2.5e-6


async def test_audio_is_reserved_where_the_operator_states_prices(tmp_path, provider):
    """Published prices are those of text: by them it is refused, unless it has a price of its
    own.
    """
    body = body_of(
        "chat",
        "pass/m",
        [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}}],
    )
    for n, (prices, fields, status) in enumerate(
        ((PRICES, {}, 200), (None, {}, 400), (PRICES, {"input_audio": 0.1}, 200))
    ):
        folder = tmp_path / str(n)
        model = {"prices": prices, "field_prices": fields, "context_window": 400_000}
        async with gateway(folder, provider, 5.0, **model) as (client, key):
            replied, reserved = await reserved_for(client, provider, folder, key, "chat", body)
            assert (
                replied == status
                and (1.0 <= reserved < 1.1, reserved == 0, 0.1 < reserved < 0.11)[n]
            ), reserved


async def test_arguments_of_tools_are_no_images(tmp_path, provider):
    """What stands in the input of a tool's call is text, whatever its fields are called."""
    call = {
        "type": "tool_use",
        "id": "t",
        "name": "read",
        "input": {"type": "image", "file_id": "local.png", "content": [{"a": 1}]},
    }
    result = {"type": "tool_result", "tool_use_id": "t", "content": "fine"}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    async with gateway(tmp_path, provider, 5.0, kind="anthropic") as (client, _):
        reply = await post(
            client, "messages", body_of("messages", "pass/m") | {"messages": messages}
        )
        assert reply.status_code == 200 and provider.requests[0][1]["messages"] == messages


# ---- the attack: many requests at once by a key with a small budget

ATTACKS = {
    "image": (
        "chat",
        body_of("chat", "", [{"type": "text", "text": "x"}] + 3 * [IMAGE["chat"]]),
        3 * 16_000,
        0.0,
    ),
    "image-refined": ("chat", body_of("chat", "refine/fast", [IMAGE["chat"]]), 16_000, 0.0),
    "image-messages": ("messages", body_of("messages", "", [IMAGE["messages"]]), 16_000, 0.0),
    "file": ("responses", body_of("responses", "", [FILE["responses"]]), 128_000, 0.0),
    "stored-file": ("responses", body_of("responses", "", [STORED["responses"]]), 128_000, 0.0),
    "stored-response": (
        "responses",
        body_of("responses", "", previous_response_id="resp_1"),
        128_000,
        0.0,
    ),
    "web-search": ("responses", body_of("responses", "", tools=[{"type": "web_search"}]), 12, 0.1),
    "search-options": ("chat", body_of("chat", "", web_search_options={}), 12, 0.1),
    "service-tier": ("chat", body_of("chat", "", service_tier="priority"), 12, 0.1),
}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("usd", [0.01, 0.5])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_many_requests_at_once_never_exceed_the_budget(tmp_path, provider, attack, usd):
    """What the provider charges for 64 requests at once stays within the key's budget, and so does
    what is counted.
    """
    wire, body, provider.tokens, price = ATTACKS[attack]
    body = body | {"model": body["model"] or "pass/m"}
    provider.release.clear()
    async with gateway(tmp_path, provider, usd, context_window=128_000) as (client, key):
        tasks = [asyncio.create_task(post(client, wire, body)) for _ in range(64)]
        await until(lambda: len(provider.requests) + sum(task.done() for task in tasks) == 64)
        assert sum(spending(tmp_path, key)) <= usd
        uses_price = any(
            {"web_search_options", "tools", "service_tier"} & sent.keys()
            for _, sent in provider.requests
        )
        provider.price_of_call = price if uses_price else 0.0
        provider.release.set()
        statuses = {(await task).status_code for task in tasks}
        await until(lambda: not spending(tmp_path, key)[1])
        assert statuses <= {200, 400, 402, 429}
        assert provider.charged <= spending(tmp_path, key)[0] + 1e-9 <= usd + 1e-9


# ---- otherwise the same JSON values

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1, 1.0, -0.0, 0, 1e22]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


def exact(value):
    """Return a value in which 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    return (
        [exact(each) for each in value] if isinstance(value, list) else (type(value), repr(value))
    )


@pytest.mark.slow
async def test_all_else_is_passed_on_as_the_same_values(tmp_path, provider):
    """Numbers stay what they are, escapes are decoded, of repeated keys the last counts; only the
    model's name changes.
    """
    loop = asyncio.get_running_loop()
    async with gateway(tmp_path, provider) as (client, _):

        async def send(raw):
            reply = await client.post(
                PATHS["chat"], content=raw, headers={"content-type": "application/json"}
            )
            assert reply.status_code == 200, reply.text
            return provider.requests.pop()[1]

        def run(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

        @given(VALUES, st.booleans())
        def sends(value, ascii_only):
            body = {
                **body_of("chat", "pass/m"),
                "x_vendor": value,
                "tools": [{"type": "function", "extra": value}],
            }
            sent = run(send(json.dumps(body, ensure_ascii=ascii_only).encode()))
            assert exact(sent) == exact({**body, "model": "tiny"})

        await asyncio.to_thread(sends)
        raw = b'{"model":"pass/m","seed":1,"seed":2.0,"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00"}],"max_tokens":1e1}'
        assert exact(await send(raw)) == exact(
            {
                "model": "tiny",
                "seed": 2.0,
                "messages": [{"role": "user", "content": "é😀"}],
                "max_tokens": 10.0,
            }
        )


# ---- the configuration


def test_prices_of_fields_and_tools_in_a_file(tmp_path):
    """They are read by the names that clients send."""
    table = {"url": "http://127.0.0.1:1/v1", "context-window": 8192, "image-tokens": 0}
    table |= {
        "field-prices": {"service_tier": 0.01, "file_id": 1},
        "tool-prices": {"web_search": 0.02},
    }
    model = parse_config({"models": {"m": table}}, tmp_path, {}).models["m"]
    assert (model.context_window, model.image_tokens) == (8192, 0)
    assert (model.field_prices, model.tool_prices) == (
        {"service_tier": 0.01, "file_id": 1.0},
        {"web_search": 0.02},
    )
    assert hash(model) == hash(replace(model))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("field-prices", {"service_tiers": 0.01}, "service_tier"),
        ("field-prices", {"service_tier": -1}, "models.m.field-prices.service_tier"),
        ("field-prices", {"service_tier": "dear"}, "models.m.field-prices.service_tier"),
        ("field-prices", 1, "models.m.field-prices"),
        ("tool-prices", {"web search": 0.01}, "models.m.tool-prices"),
        ("tool-prices", {"web_search": True}, "models.m.tool-prices.web_search"),
        ("context-window", 0, "models.m.context-window"),
        ("image-tokens", -1, "models.m.image-tokens"),
    ],
)
def test_wrong_prices_in_a_file(tmp_path, key, value, expected):
    """The error names the key and what is allowed."""
    with pytest.raises(Exception, match=expected):
        parse_config({"models": {"m": {"url": "http://127.0.0.1:1/v1", key: value}}}, tmp_path, {})


# ---- hostile forms

VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["image", "reasoning", "document", "file_1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "type",
                        "content",
                        "output",
                        "source",
                        "file_id",
                        "role",
                        "tools",
                        "tool",
                        "name",
                        "id",
                        "audio",
                        "image_url",
                    ),
                    *(
                        "environment",
                        "execution",
                        "cache_control",
                        "ttl",
                        "edits",
                        "function",
                        "mode",
                    ),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
FIELD_NAMES = (
    "messages",
    "input",
    "system",
    "instructions",
    "tools",
    "tool_choice",
    "cache_control",
    *PRICED,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(FIELD_NAMES), VALUE), st.sampled_from(WIRES))
def test_any_form_is_read_or_refused(body, wire):
    """Whatever a request holds: a 400 that names a place, or a request whose reservation is a
    number.
    """
    model = ServedModel(
        "m", "http://127.0.0.1:1/v1", "tiny", prices=PRICES, field_prices={"file_id": 1.0}
    )
    try:
        metered = meter_request(body, wire, model)
    except GatewayError as error:
        assert error.status == 400 and error.param
    else:
        assert metered.images >= 0 and metered.usd >= 0 and metered.cache_factor in (1.0, 1.25, 2.0)
        assert metered.notice.isascii() and metered.notice.isprintable()


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{}] * 20_001},
        {"messages": [{"role": "user", "content": [{"type": "image"}] * 11_000}] * 2},
        {"tools": [{"type": "x"}] * 20_001},
    ],
)
def test_more_parts_than_can_be_searched_are_refused(body):
    """Before they are searched; texts do not count."""
    with pytest.raises(GatewayError, match="more than 20,000") as caught:
        meter_request(body, "chat", None)
    assert caught.value.status == 400
    meter_request({"messages": [{"role": "user", "content": "x"}] * 20_001}, "chat", None)


def test_deep_places_cost_nothing_until_they_are_named():
    """The name of a place is made for an error only, and its end is shown."""
    part: dict = {"type": "unheard_of"}
    for _ in range(300):
        part = {"type": "tool_result", "content": [part]}
    assert meter_request({"messages": [part]}, "messages", None).unbounded.endswith(
        ".content[0].content[0]"
    )


# ---- caches and names of images


@pytest.mark.parametrize(
    ("control", "factor"),
    [
        ({"type": "ephemeral"}, 1.25),
        ({"type": "ephemeral", "ttl": "1h"}, 2.0),
        (None, 1.0),
        ("x", 1.25),
    ],
)
async def test_what_is_written_into_a_cache_is_reserved_at_its_price(
    tmp_path, provider, control, factor
):
    """Anthropic asks a quarter more for five minutes and twice as much for an hour, wherever the
    mark is.
    """
    text = "x" * 40_000
    async with gateway(tmp_path, provider, 5.0, kind="anthropic") as (client, key):
        marked = body_of(
            "messages", "pass/m", [{"type": "text", "text": text, "cache_control": control}]
        )
        top = body_of("messages", "pass/m", [{"type": "text", "text": text}], cache_control=control)
        for body in (marked, top):
            _, reserved = await reserved_for(client, provider, tmp_path, key, "messages", body)
            assert reserved == pytest.approx(factor * 40_000 * 2.5e-6, rel=0.02)


@pytest.mark.parametrize(
    ("usage", "extra"),
    [
        ({"cache_creation_input_tokens": 1000}, 250),
        (
            {
                "cache_creation_input_tokens": 1000,
                "cache_creation": {"ephemeral_1h_input_tokens": 400},
            },
            150 + 400,
        ),
        ({"cache_read_input_tokens": 1000}, 0),
        ({"cache_creation": []}, 0),
        (None, 0),
    ],
)
def test_what_was_written_into_a_cache_is_charged_at_its_price(usage, extra):
    """By the counts of the reply."""
    assert cache_surcharge(usage) == extra


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("gpt-4o-mini-2024-07-18", 48_169),
        ("openai/gpt-4o", 1_445),
        ("ft:gpt-4o-mini:org::id", 48_169),
        ("openai:gpt-4.1-nano", 3_779),
        ("anthropic/claude-opus-4", 4_784),
        ("qwen3-vl", 16_384),
        ("not-gpt-4o", 16_384),
    ],
)
def test_images_are_bounded_by_the_name_of_the_model(name, tokens):
    """By what providers document; any other model by the most of all."""
    assert max_image_tokens(name) == tokens
    size = PromptSize(messages=1, images=1)
    assert CostEstimator(model=name).token_estimator.tokens(size) >= tokens


@pytest.mark.parametrize(
    ("reported", "least", "most"),
    [(100, 2048, 2500), (5000, 10_000, 10_500), (50_000, 50_000, 50_500)],
)
def test_the_tokens_of_an_image_are_learned(reported, least, most):
    """At first the documented most, then twice what the endpoint has counted, but no fewer than a
    large image has.
    """
    estimator = CostEstimator(model="qwen3-vl").token_estimator
    size = PromptSize(messages=1, images=1)
    assert 16_384 <= estimator.tokens(size) < 17_000
    estimator.update(size, Usage(1, reported, 10), schema=False)
    assert least <= estimator.tokens(size) < most


# ---- graders that name a model of their own


@pytest.mark.parametrize("tables", [{}, {"prices": (100.0, 0.0)}, {"prices": None}])
async def test_models_that_graders_name_are_charged(tmp_path, provider, tables):
    """Their prices are those of a table with the model's name; without one, a key with a limit in
    USD is refused unpaid.
    """
    models = {"m": ServedModel("m", provider.url, "tiny", prices=PRICES)}
    if tables:
        models["rm"] = ServedModel("rm", provider.url, "rater", **tables)
    graders = [f"reward:{provider.url}/classify#rater"]
    profile = Profile(
        "fast", "m", judge=False, graders=graders, settings={"max_iterations": 0, "retries": 0}
    )
    config = GatewayConfig(tmp_path, models, {"fast": profile}, port=0)
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("ci", KeyLimits(usd_per_day=10.0))
    async with (
        running(config) as (url, _),
        http_client(url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        reply = await post(client, "chat", body_of("chat", "refine/fast"))
    paths = [path for path, _ in provider.requests]
    if not tables.get("prices"):
        assert reply.status_code == 402 and "costs is unknown" in reply.text, reply.text
        assert (paths, spending(tmp_path, key)) == ([], (0.0, 0.0))
        return
    assert reply.status_code == 200, reply.text
    assert paths == ["/v1/chat/completions", "/v1/classify"]
    cost = (12 * PRICES[0] + 5 * PRICES[1] + 12 * 100.0) / 1e6
    assert spending(tmp_path, key) == (pytest.approx(cost), 0.0)


@pytest.mark.parametrize(("writer", "rater", "name"), [(0.0, 1e6, "rater"), (1e6, 0.0, "m")])
async def test_calls_of_graders_with_a_server_are_reserved(tmp_path, provider, writer, rater, name):
    """As those of a judge: a key with room for one kind of calls is refused, also if the grader's
    model has the writer's name.
    """
    models = {
        "m": ServedModel("m", provider.url, "tiny", prices=(writer, 0.0)),
        "rm": ServedModel("rm", provider.url, name, prices=(rater, 0.0)),
    }
    graders = [f"reward:{provider.url}/classify#{name}"]
    config = GatewayConfig(
        tmp_path, models, {"fast": Profile("fast", "m", judge=False, graders=graders)}, port=0
    )
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("ci", KeyLimits(usd_per_day=1.0))
    async with (
        running(config) as (url, _),
        http_client(url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        assert (await post(client, "chat", body_of("chat", "refine/fast"))).status_code == 402
    assert (provider.requests, spending(tmp_path, key)) == ([], (0.0, 0.0))


# ---- verdicts

# of the judge: parameters in the profile, and the grader -> the tokens that each verdict may have
VERDICTS = {
    "no limit": ({}, "judge", 4096),
    "a limit of the judge": ({"judge_params": {"max_tokens": 6000}}, "judge", 6000),
    "a limit of the grader": ({"judge_params": {"max_tokens": 6000}}, "judge:max_tokens=300", 300),
    "no limit, and other parameters": ({"judge_params": {"top_p": 0.5}}, "judge", 4096),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("settings", "grader", "tokens"), VERDICTS.values(), ids=VERDICTS)
@pytest.mark.parametrize("judge", [None, "j"])
async def test_verdicts_are_reserved_by_the_limit_of_the_judge(
    tmp_path, provider, settings, grader, tokens, judge
):
    """The `max_tokens` of a client is for its answer: a judge may write more."""
    models = {
        "m": ServedModel("m", provider.url, "tiny", prices=(0.0, 0.0) if judge else (0.0, 1e6)),
        "j": ServedModel("j", provider.url, "judging", prices=(0.0, 1e6)),
    }
    profile = Profile(
        "fast", "m", judge=judge, graders=[grader], settings={"max_iterations": 0, **settings}
    )
    config = GatewayConfig(tmp_path, models, {"fast": profile}, port=0)
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("ci", KeyLimits(usd_per_day=1.0))
    async with (
        running(config) as (url, _),
        http_client(url, headers={"authorization": f"Bearer {secret}"}) as client,
    ):
        reply = await post(client, "chat", body_of("chat", "refine/fast"))
    assert reply.status_code == 402 and f"may need {2 * tokens:,}" in reply.text, reply.text
    assert provider.requests == []
