"""Where the conversions of a request and of its reply run: those of a large one in a thread, so
that the event loop goes on, whichever way the request takes.
"""

import threading
from dataclasses import replace

import pytest
from fault_server import http

from redraft.gateway import app, passing, refining
from redraft.gateway.config import GatewayConfig, Profile, ServedModel
from redraft.gateway.guardrail import GUARDRAIL_PATH
from redraft.gateway.protocols import registry

from .running import http_client, running

FEW, MANY = 3, 1001  # messages


def reply_of(kind, text="fine"):
    if kind == "openai":
        choice = {"message": {"role": "assistant", "content": text}}
        return http({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    return http(
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


WAYS = {  # by path, model and kind of the model: what is converted
    ("/chat/completions", "pass/m", "anthropic"): {"read chat", "write messages"},
    ("/responses", "pass/m", "openai"): {"read responses", "write chat"},
    ("/responses", "pass/m", "anthropic"): {"read responses", "write messages"},
    ("/messages", "pass/m", "openai"): {"read messages", "write chat"},
    ("/messages/count_tokens", "pass/m", "openai"): {"read messages"},
    ("/chat/completions", "refine/m", "openai"): {"read chat", "prepare"},
    ("/responses", "refine/m", "openai"): {"read responses", "prepare"},
    ("/messages", "refine/m", "openai"): {"read messages", "prepare"},
    ("/chat/completions", "refine/m", "anthropic"): {"read chat", "prepare", "write messages"},
    ("/messages", "refine/m", "anthropic"): {"read messages", "prepare", "write messages"},
}
REPLY_WAYS = {
    ("/chat/completions", "pass/m", "openai"): {"parse"},
    ("/chat/completions", "pass/m", "anthropic"): {"parse", "read messages", "write chat"},
    ("/responses", "pass/m", "anthropic"): {"parse", "read messages", "write responses"},
    ("/messages", "pass/m", "openai"): {"parse", "read chat", "write messages"},
    ("/chat/completions", "refine/m", "openai"): {"write chat"},
    ("/responses", "refine/m", "anthropic"): {"read messages", "write responses"},
    ("/messages", "refine/m", "anthropic"): {"read messages", "write messages"},
}


@pytest.fixture
def threads(monkeypatch):
    """The threads in which requests and replies are read, written and prepared, by what is done
    there.
    """
    found = {}

    def noting(what, function):
        def call(*arguments, **keywords):
            found.setdefault(what, set()).add(threading.current_thread())
            return function(*arguments, **keywords)

        return call

    for name, client in registry.CLIENTS.items():
        reader = noting(f"read {name}", client.read_request)
        writer = noting(f"reply: write {name}", client.write_reply)
        noted = replace(client, read_request=reader, write_reply=writer)
        monkeypatch.setitem(registry.CLIENTS, name, noted)
        monkeypatch.setitem(app.CLIENTS, name, noted)
    for name, model in registry.MODELS.items():
        writer = noting(f"write {name}", model.write_request)
        reader = noting(f"reply: read {name}", model.read_reply)
        noted = replace(model, write_request=writer, read_reply=reader)
        monkeypatch.setitem(registry.MODELS, name, noted)
    monkeypatch.setattr("redraft.gateway.messages_model.PROTOCOL", registry.MODELS["messages"])
    parse = noting("reply: parse", passing.loads)
    monkeypatch.setattr("redraft.gateway.passing.loads", parse)
    prepare = refining.ProfileRefiner.prepare
    monkeypatch.setattr(refining.ProfileRefiner, "prepare", noting("prepare", prepare))
    return found


def body_of(path, model, count):
    turns = [
        {"role": ("user", "assistant")[n % 2], "content": f"{n}: it is as it was."}
        for n in range(count)
    ]
    limit = {"max_tokens": 50} if path == "/messages" else {}
    return {"model": model, "input" if path == "/responses" else "messages": turns, **limit}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("count", [FEW, MANY], ids=["small", "large"])
@pytest.mark.parametrize(("way", "done"), WAYS.items(), ids=map(" ".join, WAYS))
async def test_a_large_request_is_converted_in_a_thread(
    faults, tmp_path, threads, way, done, count
):
    """A small one is not: to change the thread takes longer."""
    path, name, kind = way
    missing = http({"error": {"message": "no such path"}}, 404)
    has_no_path = kind == "openai" and path in ("/responses", "/messages/count_tokens")
    faults.says(*([missing] if has_no_path and name == "pass/m" else []), reply_of(kind))
    await send(faults, tmp_path, threads, way, count)
    check_places(threads, done, is_large=count == MANY)


async def send(faults, tmp_path, threads, way, count):
    path, name, kind = way
    profile = Profile("m", "m", graders=["words:1-"], settings={"max_iterations": 0})
    models = {"m": ServedModel("m", faults.url, "big", kind)}
    async with (
        running(GatewayConfig(tmp_path, models, {"m": profile}, port=0)) as (url, _),
        http_client(url) as client,
    ):
        threads.clear()  # of the start
        reply = await client.post(path, json=body_of(path, name, count))
    assert reply.status_code == 200, reply.text


def check_places(threads, done, *, is_large):
    assert threads.keys() >= done
    places = {thread for what in done for thread in threads[what]}
    if is_large:
        assert threading.main_thread() not in places
    else:
        assert places == {threading.main_thread()}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("words", [1, 5000], ids=["small", "large"])
@pytest.mark.parametrize(("way", "done"), REPLY_WAYS.items(), ids=map(" ".join, REPLY_WAYS))
async def test_a_large_reply_is_converted_in_a_thread(faults, tmp_path, threads, way, done, words):
    """A small one is not."""
    faults.says(reply_of(way[2], "fine " * words))
    await send(faults, tmp_path, threads, way, FEW)
    check_places(threads, {f"reply: {what}" for what in done}, is_large=words > 1)


@pytest.mark.parametrize("count", [FEW, MANY], ids=["small", "large"])
async def test_a_guardrail_prepares_a_large_conversation_in_a_thread(
    faults, tmp_path, threads, count
):
    """The answer may be short: its conversation is remembered."""
    profile = Profile("m", "m", graders=["words:1-"], settings={"max_iterations": 0})
    models = {"m": ServedModel("m", faults.url, "big")}
    seen = {"input_type": "request", "structured_messages": body_of("", "", count)["messages"]}
    answer = {"input_type": "response", "texts": ["Yes."]}
    options = {"litellm_call_id": "c", "additional_provider_specific_params": {"profile": "m"}}
    async with (
        running(GatewayConfig(tmp_path, models, {"m": profile}, port=0)) as (url, _),
        http_client(url.removesuffix("/v1")) as client,
    ):
        for body in (seen, answer):
            threads.clear()
            reply = await client.post(GUARDRAIL_PATH, json=body | options)
            assert reply.json() == {"action": "NONE"}
    (place,) = threads["prepare"]
    assert (place is threading.main_thread()) == (count == FEW)
