"""The chat client against llama.cpp's own server."""

from __future__ import annotations

import asyncio
import json

import pytest

from redraft.errors import AuthenticationError, ContextLengthError, ModelError
from redraft.models import Chat
from redraft.protocols import Reply, Request

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
    """Make the model answer up to the token limit; random weights might otherwise start with the
    end token.
    """
    return Chat(real.name, real.url, key=real.key, extra_body={"ignore_eos": True})


async def test_answer_has_text_finish_and_usage(chat, ask):
    """A call returns the text, the finish reason and the server's token counts."""
    reply = await chat.complete(ask(max_tokens=400, temperature=0.0, seed=1))
    assert reply.text.strip()
    assert reply.finish_reason in {"stop", "length"}
    assert reply.usage.calls == 1
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 400
    assert reply.usage.cost is None


async def test_max_tokens_marks_a_truncated_answer(chat, ask):
    """An answer that reached max_tokens is marked and not raised as an error."""
    reply = await chat.complete(ask(max_tokens=5, temperature=0.0))
    assert reply.truncated
    assert reply.usage.output_tokens == 5


async def test_bad_key_is_an_authentication_error(real, ask):
    """The error for status 401 names model and host and shows no key."""
    with pytest.raises(AuthenticationError) as caught:
        await Chat(real.name, real.url, key="sk-wrong-key").complete(ask())
    assert caught.value.status == 401
    assert not caught.value.retryable
    assert real.url.split("/")[2] in str(caught.value)
    assert "sk-wrong-key" not in str(caught.value)


async def test_long_prompt_is_a_context_length_error(chat, ask):
    """The error says that nothing was billed."""
    with pytest.raises(ContextLengthError) as caught:
        await chat.complete(ask("word " * 9000))
    assert caught.value.usage.input_tokens == 0
    assert not caught.value.retryable


async def test_schema_is_enforced(chat, ask):
    """Random weights answer in the form of the schema, because the server enforces it."""
    for seed in range(5):
        request = ask(
            max_tokens=400, temperature=1.0, seed=seed, schema=VERDICT, format="json_schema"
        )
        reply = await chat.complete(request)
        verdict = json.loads(reply.text)
        assert set(verdict) == {"score", "done"}
        assert verdict["score"] in range(6)


async def test_json_object_is_enforced(chat, ask):
    """The json_object format gives an object, or the beginning of one if it was truncated."""
    reply = await chat.complete(
        ask(max_tokens=60, temperature=0.0, schema=VERDICT, format="json_object")
    )
    assert reply.text.lstrip().startswith("{")


async def test_truncated_structured_output_is_marked(chat, ask):
    """A verdict cut off by max_tokens is no JSON, and its Reply says why."""
    reply = await chat.complete(
        ask(max_tokens=6, temperature=0.0, schema=VERDICT, format="json_schema")
    )
    assert reply.truncated
    with pytest.raises(json.JSONDecodeError):
        json.loads(reply.text)


async def test_unusable_schema_is_a_client_error(chat, ask):
    """The 4xx status is what the fallback to another format looks for."""
    with pytest.raises(ModelError) as caught:
        await chat.complete(ask(schema={"type": "nonsense"}, format="json_schema"))
    assert caught.value.status == 400
    assert not caught.value.retryable


async def test_streamed_answer_equals_unstreamed(chat, real, ask):
    """The parts of a stream join to the text of an unstreamed call."""
    request = ask("say something", max_tokens=40, temperature=0.0, seed=3)
    whole = await chat.complete(request)
    *parts, reply = [piece async for piece in chat.stream(request)]
    assert "".join(parts) == reply.text == whole.text
    assert len(parts) > 5
    assert (
        reply
        == whole
        == await Chat(real.name, real.url, key=real.key, stream=True).complete(request)
    )


async def test_lone_surrogates_do_not_stop_a_call(endless, ask):
    """A lone surrogate, which JSON cannot carry, is replaced in the request."""
    assert (await endless.complete(ask("half a \ud83d smile", max_tokens=4))).text


async def test_many_concurrent_calls(endless, ask):
    """200 calls, 64 at a time, all return."""
    gate = asyncio.Semaphore(64)

    async def one(i):
        async with gate:
            return await endless.complete(ask(f"number {i}", max_tokens=4))

    replies = await asyncio.gather(*(one(i) for i in range(200)))
    assert all(isinstance(r, Reply) and r.usage.output_tokens == 4 for r in replies)


async def test_abandoned_call_frees_the_server(endless, ask):
    """A cancelled call and an unfinished stream do not block later calls."""
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


async def test_list_models(chat):
    """`list_models` returns the names of the endpoint's models."""
    assert await chat.list_models()


def test_one_client_in_many_event_loops(real, ask):
    """A client works in one event loop after another without being closed (warnings are errors
    here).
    """
    chat = Chat(real.name, real.url, key=real.key)
    texts = {asyncio.run(chat.complete(ask(max_tokens=3, temperature=0.0))).text for _ in range(3)}
    assert len(texts) == 1
