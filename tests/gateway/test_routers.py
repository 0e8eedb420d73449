"""Routers such as OpenRouter behind the gateway: what is peculiar to them arrives, and a client
cannot choose where a request goes. And which models a key may use.
"""

import json

import pytest
from fault_server import chunk, completion, http, send_and_close, sse

from redraft.errors import ConfigError
from redraft.gateway.keys import Caller, KeyLimits, KeyRing

from .running import config_for, http_client, openai_client, running

USER = [{"role": "user", "content": "hello"}]
COMMENT = b": OPENROUTER PROCESSING\n\n"
COST = {"cost": 0.00014, "cost_details": {"upstream_inference_cost": None}, "is_byok": False}


async def test_what_a_router_adds_arrives(faults, tmp_path):
    """The provider that it chose and what it charged are in the reply, as it wrote them."""
    reply = completion("fine") | {"provider": "Elsewhere", "system_fingerprint": None}
    reply["usage"] = {**reply["usage"], **COST}
    faults.says(http(reply))
    async with openai_client(config_for(tmp_path, faults.url)) as client:
        answer = await client.chat.completions.create(model="pass/tiny", messages=USER)
    assert (answer.provider, answer.usage.cost) == ("Elsewhere", 0.00014)


async def test_comments_in_a_stream(faults, tmp_path):
    """They arrive as well, also before the first event and between others; the SDK reads none of
    them as an answer.
    """
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, **COST}}
    events = (COMMENT, COMMENT, chunk("a"), COMMENT, chunk(finish="stop"), usage)
    faults.says(send_and_close(sse(*events)))
    async with openai_client(config_for(tmp_path, faults.url)) as client:
        stream = await client.chat.completions.create(
            model="pass/tiny",
            messages=USER,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [each async for each in stream]
        assert (
            "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "a"
        )
        assert chunks[-1].usage.cost == 0.00014
        async with http_client(str(client.base_url)) as http_one:
            body = {"model": "pass/tiny", "messages": USER, "stream": True}
            raw = await http_one.post("/chat/completions", json=body)
            facts = client.gateway.store.find(raw.headers["x-redraft-trace-id"]).facts
    assert raw.content.count(COMMENT) == 3
    assert b"cost" not in raw.content
    assert (facts.input_tokens, facts.output_tokens) == (7, 3)


FAILED = {"code": 502, "message": "Provider returned error", "metadata": {"provider_name": "x"}}


async def test_an_error_in_a_choice(faults, tmp_path):
    """A choice that states an error arrives as it is, as long as the client speaks the protocol;
    refined it is a failed call.
    """
    reply = completion("", finish="error")
    reply["choices"][0]["error"] = FAILED
    faults.says(http(reply))
    async with running(config_for(tmp_path, faults.url, settings={"retries": 0})) as (url, _):
        async with http_client(url) as client:
            body = {"model": "pass/tiny", "messages": USER}
            passed = await client.post("/chat/completions", json=body)
            refined = await client.post("/chat/completions", json={**body, "model": "refine/fast"})
    assert (passed.status_code, passed.json()) == (200, reply)
    assert refined.status_code == 502


async def test_an_error_in_place_of_a_stream_or_in_it(faults, tmp_path):
    """It ends the stream, and the request is recorded as failed."""
    late = {**chunk("", "error"), "error": {"code": 502, "message": "disconnected"}}
    faults.says(send_and_close(sse(COMMENT, chunk("a"), {"error": FAILED}, late, done=False)))
    async with running(config_for(tmp_path, faults.url)) as (url, gateway):
        async with http_client(url) as client:
            body = {"model": "pass/tiny", "messages": USER, "stream": True}
            reply = await client.post("/chat/completions", json=body)
            facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    assert b"Provider returned error" in reply.content and b"[DONE]" not in reply.content
    assert facts.outcome == "failed"


ROUTES = {
    "models": ["other/model"],
    "route": "fallback",
    "provider": {"order": ["Elsewhere"], "allow_fallbacks": True},
    "preset": "mine",
    "fallbacks": [{"model": "other"}],
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("model", ["pass/tiny", "refine/fast"])
@pytest.mark.parametrize("field", ROUTES)
async def test_a_client_chooses_no_route(faults, tmp_path, field, model):
    async with running(config_for(tmp_path, faults.url)) as (url, _), http_client(url) as client:
        body = {"model": model, "messages": USER, field: ROUTES[field]}
        reply = await client.post("/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert not faults.requests


# ---- ranges of models


@pytest.mark.parametrize(
    ("patterns", "allowed", "refused"),
    [
        ((), ["pass/gpt-5", "refine/fast"], []),
        (
            ("pass/gpt-*",),
            ["pass/gpt-5", "pass/gpt-"],
            ["pass/gpt", "refine/gpt-5", "pass/x-gpt-5"],
        ),
        (("pass/*",), ["pass/gpt-5"], ["refine/fast"]),
        (("pass/gpt-[45]*",), ["pass/gpt-4o", "pass/gpt-5"], ["pass/gpt-6"]),
        (("pass/gpt-?",), ["pass/gpt-5"], ["pass/gpt-5o"]),
        (("*/small",), ["pass/small", "refine/small"], ["pass/small2"]),
        (("refine/fast", "pass/b*"), ["refine/fast", "pass/b"], ["refine/faster", "pass/a"]),
        (("pass/GPT-*",), [], ["pass/gpt-5"]),
    ],
)
def test_ranges_of_models(patterns, allowed, refused):
    """A key may use the models that one of its patterns matches: the whole name, with capitals
    regarded.
    """
    caller = Caller("id", "anna", patterns)
    assert all(caller.may_use(name) for name in allowed)
    assert not any(caller.may_use(name) for name in refused)


async def test_a_key_sees_its_range(faults, tmp_path):
    """It lists and uses the models of its range, and the error names it."""
    with KeyRing(tmp_path) as ring:
        headers = {"x-api-key": ring.add("anna", KeyLimits(), ("pass/t*",))[1]}
    faults.says(http(completion("fine")))
    async with running(config_for(tmp_path, faults.url)) as (url, _), http_client(url) as client:
        listed = (await client.get("/models", headers=headers)).json()["data"]
        assert [each["id"] for each in listed] == ["pass/tiny"]
        for model, status in (("pass/tiny", 200), ("refine/fast", 403)):
            body = {"model": model, "messages": USER}
            reply = await client.post("/chat/completions", json=body, headers=headers)
            assert reply.status_code == status
    assert "it is for pass/t*" in json.dumps(reply.json())


@pytest.mark.parametrize("pattern", ["gpt-*", "", "passs/x", "pass/\n"])
def test_what_is_no_range(tmp_path, pattern):
    with KeyRing(tmp_path) as ring, pytest.raises(ConfigError, match="profile"):
        ring.add("anna", KeyLimits(), (pattern,))
