"""LiteLLM's generic guardrail endpoint: what it is told of texts that are good, repaired, beyond
repair, or not graded.
"""

import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from redraft.gateway.config import Profile, Retention
from redraft.gateway.conversations import MAX_CONVERSATIONS, Conversations
from redraft.gateway.guardrail import conversation_of
from redraft.gateway.keys import KeyLimits, KeyRing

from .clients.scripted_upstream import ScriptedUpstream
from .running import config_for, http_client, running, wait_until_recorded

PATH = "/beta/litellm_basic_guardrail_api"
GOOD, BAD = "Six words make this text good.", "Too short."
RECORDED = {
    "input_type": "response",
    "litellm_call_id": "575fb027-7200-434f-9839-44e264d66cfd",
    "litellm_trace_id": "11e283ee-aba6-4fc3-b4fc-920a5de3dfa6",
    "structured_messages": None,
    "images": None,
    "tools": None,
    "texts": [BAD],
    "request_data": {
        "user_api_key_hash": "litellm_proxy_master_key",
        "user_api_key_user_id": "default_user_id",
    },
    "request_headers": {
        "host": "127.0.0.1:4999",
        "accept": "*/*",
        "user-agent": "Python/3.11 aiohttp/3.14.5",
        "content-length": "174",
        "content-type": "application/json",
    },
    "litellm_version": "1.108.7",
    "additional_provider_specific_params": {},
    "tool_calls": None,
    "model": "tiny",
}
"""A body recorded from LiteLLM 1.108.7."""


@pytest.fixture
def model():
    """A model that always writes the good text."""
    upstream = ScriptedUpstream(lambda body: GOOD)
    yield upstream
    upstream.close()


@asynccontextmanager
async def guarding(tmp_path, model, **changes):
    """Serve a gateway with one profile; yields what sends a request to it, and the gateway."""
    fields = {
        "required_graders": ("words:6-",),
        "graders": None,
        "judge": False,
        "settings": {"max_iterations": 1, "retries": 0},
        **changes,
    }
    config = config_for(tmp_path, model.url, **fields)
    async with running(config) as (url, gateway):
        async with http_client(url.removesuffix("/v1")) as client:

            async def send(headers={}, /, params={}, **body):
                sent = {**RECORDED, **body, "additional_provider_specific_params": params}
                return await client.post(PATH, json=sent, headers=headers)

            yield send, gateway


async def test_a_good_text_stays(tmp_path, model):
    async with guarding(tmp_path, model) as (send, _):
        reply = await send(texts=[GOOD, "", "  "])
        assert (reply.status_code, reply.json()) == (200, {"action": "NONE"})
        for none in ([], None, [""]):
            assert (await send(texts=none)).json() == {"action": "NONE"}
    assert not model.bodies


async def test_a_text_is_repaired(tmp_path, model):
    """The text is the first candidate of a refinement, whose best one takes its place."""
    async with guarding(tmp_path, model) as (send, gateway):
        reply = await send(texts=[GOOD, BAD])
        assert reply.json() == {"action": "GUARDRAIL_INTERVENED", "texts": [GOOD, GOOD]}
        await wait_until_recorded(gateway)
    (body,) = model.bodies
    assert BAD in json.dumps(body["messages"])
    figures = gateway.metrics.text()
    assert 'model="refine/fast",status="200",wire="guardrail"} 1.0' in figures
    assert 'tokens_total{direction="output",model="refine/fast"} 5.0' in figures


async def test_a_text_beyond_repair_is_blocked(tmp_path, model):
    """The reason names the must; `broken` passes it all the same."""
    model.answer = lambda body: "Short, too."
    async with guarding(tmp_path, model) as (send, _):
        reply = (await send()).json()
        assert (reply["action"], "words:6-" in reply["blocked_reason"]) == ("BLOCKED", True)
        assert (await send(params={"broken": "pass"})).json()["action"] != "BLOCKED"


@pytest.mark.parametrize("graders", [["judge"], ["words:1-", "judge"]])
async def test_a_judge_that_is_down(tmp_path, model, graders, caplog):
    """The text passes, and the log says so; `error` blocks it instead."""
    model.answer = lambda body: (503, "no judge today", {})
    async with guarding(tmp_path, model, graders=graders, judge=None, required_graders=()) as (
        send,
        _,
    ):
        assert (await send()).json() == {"action": "NONE"}
        assert "a text was not graded" in caplog.text
        reply = (await send(params={"error": "block"})).json()
        assert reply == {"action": "BLOCKED", "blocked_reason": "the answer could not be checked"}


async def test_the_conversation_comes_first(tmp_path, model):
    """LiteLLM sends it before the call (mode pre_call): the texts of the answer are graded by
    it, those of another call are not.
    """
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is a hash table?"}]},
    ]
    async with guarding(tmp_path, model) as (send, _):
        asked = {"input_type": "request", "structured_messages": conversation}
        assert (await send(**asked, texts=["Be brief."])).json() == {"action": "NONE"}
        await send()
        await send(litellm_call_id="another")
    known, unknown = (json.dumps(body["messages"]) for body in model.bodies)
    assert "What is a hash table?" in known and "Be brief." in known
    assert "hash table" not in unknown and "not known" in unknown


async def test_texts_of_requests(tmp_path, model):
    """They pass unread, unless the operator has the last one graded; none is rewritten."""
    ask = {"input_type": "request", "texts": [GOOD, BAD]}
    async with guarding(tmp_path, model) as (send, _):
        assert (await send(**ask)).json() == {"action": "NONE"}
        reply = (await send(**ask, params={"requests": "block"})).json()
        assert (reply["action"], "words:6-" in reply["blocked_reason"]) == ("BLOCKED", True)
        ask["texts"].reverse()
        assert (await send(**ask, params={"requests": "block"})).json() == {"action": "NONE"}
    assert not model.bodies


async def test_profiles(tmp_path, model):
    """The only profile is the default; of several the one called "default", or that which is
    named; a key sees its own.
    """
    config = config_for(tmp_path, model.url, graders=["words:1-"])
    strict = Profile(
        "strict", "tiny", False, settings={"max_iterations": 0}, required_graders=("words:99-",)
    )
    config = replace(config, profiles={**config.profiles, "strict": strict})
    with KeyRing(tmp_path) as ring:
        both, one = (
            {"x-api-key": ring.add(name, KeyLimits(), profiles)[1]}
            for name, profiles in (("both", ()), ("one", ("refine/strict",)))
        )
    async with running(config) as (url, _), http_client(url.removesuffix("/v1")) as client:

        async def send(headers, **params):
            body = {**RECORDED, "additional_provider_specific_params": params}
            reply = await client.post(PATH, json=body, headers=headers)
            error = reply.json().get("error")
            return reply.json().get("action") or (reply.status_code, error["message"])

        assert await send(both, profile="fast") == "NONE"
        assert await send(both, profile="refine/strict") == "BLOCKED"
        assert await send(one) == "BLOCKED"
        status, message = await send(both)
        assert (status, "fast, strict" in message) == (400, True)
        assert (await send(one, profile="fast"))[0] == 403
        assert (await send(both, profile="none"))[0] == 404
        assert (await send({}))[0] == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_type": "both"}, "input_type"),
        ({"texts": "one"}, "texts"),
        ({"texts": ["x"] * 65}, "texts"),
        ({"texts": [7]}, "texts.0"),
        ({"structured_messages": {}}, "structured_messages"),
        ({"params": {"broken": "ignore"}}, "additional_provider_specific_params.broken"),
        ({"params": {"profile": 7}}, "additional_provider_specific_params.profile"),
    ],
)
async def test_what_is_wrong(tmp_path, model, body, param):
    async with guarding(tmp_path, model) as (send, _):
        reply = await send(**body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_budgets_and_retention(tmp_path, model):
    """A key pays for the repair, and one that cannot is refused; each text is recorded as a
    request.
    """
    with KeyRing(tmp_path) as ring:
        rich, poor = (
            {"x-api-key": ring.add(name, KeyLimits(usd_per_day=usd))[1]}
            for name, usd in (("rich", 1.0), ("poor", 1e-6))
        )
    full = {"retention": Retention("full")}
    async with guarding(tmp_path, model, **full) as (send, gateway):
        assert (await send(poor)).json()["error"]["code"] == "budget_exhausted"
        reply = await send(rich)
        stored = gateway.store.find(reply.headers["x-redraft-trace-id"])
    assert stored.facts.wire == "guardrail"
    first, *_, last = stored.trace.candidates
    assert (first.text, last.text) == (BAD, GOOD)
    with KeyRing(tmp_path) as ring:
        assert ring.spending("day", ring.stored_keys()[0]).spent == 10 * 1000 + 5 * 2000


def test_conversations_are_bounded():
    """The oldest are forgotten, and those of another key are not found."""
    memory = Conversations()
    message = ({"role": "user", "content": "x"},)
    for n in range(MAX_CONVERSATIONS + 1):
        memory.remember("key", str(n), message)
    assert memory.find("key", "0") == ()
    assert memory.find("key", "1") == message
    assert memory.find("other", "1") == ()
    memory.remember("key", "large", ({"role": "user", "content": "x" * 40 * 2**20},))
    assert memory.find("key", "large") == memory.find("key", "1") == ()


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], ()),
        ([None, 7, {"role": "user"}, {"role": "user", "content": 7}], ()),
        ([{"role": "assistant", "content": "a"}], ()),
        (
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            ({"role": "user", "content": "q"},),
        ),
        (
            [{"role": "user", "content": [{"type": "image_url"}, {"text": "q"}, {"text": 7}]}],
            ({"role": "user", "content": "q"},),
        ),
    ],
)
def test_the_texts_of_a_conversation(messages, expected):
    assert conversation_of(messages) == expected
