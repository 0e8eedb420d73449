"""Where the conversions of a request run: those of a large one in a thread, so that the event loop
goes on, whichever way the request takes.
"""

import threading
from dataclasses import replace

import pytest
from fault_server import http

from redraft.gateway import refining
from redraft.gateway.config import GatewayConfig, Profile, ServedModel
from redraft.gateway.guardrail import GUARDRAIL_PATH
from redraft.gateway.protocols import registry

from .running import http_client, running

FEW, MANY = 3, 1001  # messages
REPLIES = {
    "openai": http(
        {
            "choices": [{"message": {"role": "assistant", "content": "fine"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        }
    ),
    "anthropic": http(
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": "fine"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    ),
}
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


@pytest.fixture
def threads(monkeypatch):
    """The threads in which requests are read, written and prepared, by what is done there."""
    found = {}

    def noting(what, function):
        def call(*arguments, **keywords):
            found.setdefault(what, set()).add(threading.current_thread())
            return function(*arguments, **keywords)

        return call

    for name, client in registry.CLIENTS.items():
        reader = noting(f"read {name}", client.read_request)
        monkeypatch.setitem(registry.CLIENTS, name, replace(client, read_request=reader))
    for name, model in registry.MODELS.items():
        writer = noting(f"write {name}", model.write_request)
        monkeypatch.setitem(registry.MODELS, name, replace(model, write_request=writer))
    monkeypatch.setattr("redraft.gateway.messages_model.PROTOCOL", registry.MODELS["messages"])
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


@pytest.mark.parametrize("count", [FEW, MANY], ids=["small", "large"])
@pytest.mark.parametrize(("way", "done"), WAYS.items(), ids=map(" ".join, WAYS))
async def test_a_large_request_is_converted_in_a_thread(
    faults, tmp_path, threads, way, done, count
):
    """A small one is not: to change the thread takes longer."""
    path, name, kind = way
    missing = http({"error": {"message": "no such path"}}, 404)
    has_no_path = kind == "openai" and path in ("/responses", "/messages/count_tokens")
    faults.says(*([missing] if has_no_path and name == "pass/m" else []), REPLIES[kind])
    profile = Profile("m", "m", graders=["words:1-"], settings={"max_iterations": 0})
    models = {"m": ServedModel("m", faults.url, "big", kind)}
    async with (
        running(GatewayConfig(tmp_path, models, {"m": profile}, port=0)) as (url, _),
        http_client(url) as client,
    ):
        threads.clear()  # of the start
        reply = await client.post(path, json=body_of(path, name, count))
    assert reply.status_code == 200, reply.text
    assert threads.keys() >= done
    places = {thread for what in done for thread in threads[what]}
    if count == FEW:
        assert places == {threading.main_thread()}
    else:
        assert threading.main_thread() not in places


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
