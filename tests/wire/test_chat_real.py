"""The chat client against llama.cpp's own server."""

from __future__ import annotations

import asyncio
import json

import pytest

from redraft.protocols import Reply, Request
from redraft.errors import AuthenticationError, ContextLengthError, ModelError
from redraft.models import Chat

VERDICT = {
    "type": "object",
    "properties": {"score": {"enum": [0, 1, 2, 3, 4, 5]}, "done": {"type": "boolean"}},
    "required": ["score", "done"],
    "additionalProperties": False,
}


@pytest.fixture
def chat(real):
    return Chat(real.name, real.url, key=real.key)


@pytest.fixture
def endless(real):
    """Answers to the token limit: weights that are random may otherwise draw the end as the first token."""
    return Chat(real.name, real.url, key=real.key, extra_body={"ignore_eos": True})


async def test_an_answer_has_text_finish_and_usage(chat, ask):
    """A plain call gives text, why it ended, and the tokens the server counted."""
    reply = await chat.complete(ask(max_tokens=400, temperature=0.0, seed=1))
    assert reply.text.strip()
    assert reply.finish_reason in {"stop", "length"}
    assert reply.usage.calls == 1
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 400
    assert reply.usage.cost is None


async def test_max_tokens_cuts_and_says_so(chat, ask):
    """An answer that reached max_tokens is marked as truncated, not raised."""
    reply = await chat.complete(ask(max_tokens=5, temperature=0.0))
    assert reply.truncated
    assert reply.usage.output_tokens == 5


async def test_a_bad_key_is_told_as_such(real, ask):
    """A 401 is an AuthenticationError that names model and host and shows no key."""
    with pytest.raises(AuthenticationError) as caught:
        await Chat(real.name, real.url, key="sk-wrong-key").complete(ask())
    assert caught.value.status == 401
    assert not caught.value.retryable
    assert real.url.split("/")[2] in str(caught.value)
    assert "sk-wrong-key" not in str(caught.value)


async def test_too_long_a_prompt_is_told_as_such(chat, ask):
    """A prompt over the context is a ContextLengthError that was not paid for."""
    with pytest.raises(ContextLengthError) as caught:
        await chat.complete(ask("word " * 9000))
    assert caught.value.usage.input_tokens == 0
    assert not caught.value.retryable


async def test_a_schema_is_really_enforced(chat, ask):
    """Random weights answer in the form of the schema: the server holds them to it."""
    for seed in range(5):
        request = ask(max_tokens=400, temperature=1.0, seed=seed, schema=VERDICT, format="json_schema")
        reply = await chat.complete(request)
        verdict = json.loads(reply.text)
        assert set(verdict) == {"score", "done"}
        assert verdict["score"] in range(6)


async def test_json_object_is_really_enforced(chat, ask):
    """The json_object format gives an object, or the beginning of one where it was cut."""
    reply = await chat.complete(ask(max_tokens=60, temperature=0.0, schema=VERDICT, format="json_object"))
    assert reply.text.lstrip().startswith("{")


async def test_structured_output_that_is_cut_is_marked(chat, ask):
    """A verdict cut off by max_tokens is no JSON, and its Reply says why."""
    reply = await chat.complete(ask(max_tokens=6, temperature=0.0, schema=VERDICT, format="json_schema"))
    assert reply.truncated
    with pytest.raises(json.JSONDecodeError):
        json.loads(reply.text)


async def test_a_schema_the_server_cannot_use_is_a_client_error(chat, ask):
    """A schema that is none is refused with a 4xx status, which is what asking in another format looks for."""
    with pytest.raises(ModelError) as caught:
        await chat.complete(ask(schema={"type": "nonsense"}, format="json_schema"))
    assert caught.value.status == 400
    assert not caught.value.retryable


async def test_streaming_says_the_same(chat, real, ask):
    """The parts of a stream make the text of its Reply, and that is what an unstreamed call says."""
    request = ask("say something", max_tokens=40, temperature=0.0, seed=3)
    whole = await chat.complete(request)
    *parts, reply = [piece async for piece in chat.stream(request)]
    assert "".join(parts) == reply.text == whole.text
    assert len(parts) > 5
    assert reply == whole == await Chat(real.name, real.url, key=real.key, stream=True).complete(request)


async def test_lone_surrogates_do_not_stop_a_call(endless, ask):
    """Half a surrogate pair, which no JSON can carry, is replaced on the way out."""
    assert (await endless.complete(ask("half a \ud83d smile", max_tokens=4))).text


async def test_many_calls_at_a_time(endless, ask):
    """200 calls, 64 in flight, all come back."""
    gate = asyncio.Semaphore(64)

    async def one(i):
        async with gate:
            return await endless.complete(ask(f"number {i}", max_tokens=4))

    replies = await asyncio.gather(*(one(i) for i in range(200)))
    assert all(isinstance(r, Reply) and r.usage.output_tokens == 4 for r in replies)


async def test_an_abandoned_call_leaves_the_server_free(endless, ask):
    """A cancelled call and a stream left half-way do not keep later ones from being answered."""
    long = Request(({"role": "user", "content": "on and on"},), max_tokens=6000)
    task = asyncio.create_task(endless.complete(long))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream = endless.stream(long)
    assert isinstance(await anext(stream), str)
    await stream.aclose()
    assert (await endless.complete(ask(max_tokens=3))).text


async def test_the_server_lists_its_models(chat):
    """`list_models` gives the names the endpoint serves."""
    assert await chat.list_models()


def test_one_client_in_many_event_loops(real, ask):
    """A client works in one event loop after another, and nobody has to close anything (warnings are errors here)."""
    chat = Chat(real.name, real.url, key=real.key)
    texts = {asyncio.run(chat.complete(ask(max_tokens=3, temperature=0.0))).text for _ in range(3)}
    assert len(texts) == 1
