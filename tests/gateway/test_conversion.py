"""Clients and models of different protocols: requests there and back, tools and thinking with the
SDKs.
"""

import json

import pytest
from fault_server import call, chunk, completion, http, send_and_close, sse
from hypothesis import given
from hypothesis import strategies as st

import vendors
from redraft.base.jsontext import dumps
from redraft.gateway.protocols.registry import CLIENTS, MODELS

from .pass_app import app_of, http_client, served

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
CLOSED = SCHEMA | {"additionalProperties": False}  # as Anthropic's servers demand of an answer
CHAT_TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "description": "Finds.", "parameters": SCHEMA},
    }
]
TOOLS = [{"name": "search", "description": "Finds.", "input_schema": SCHEMA}]
TEXT = st.text(min_size=1, max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=3).map(
    lambda value: dumps(value).decode()
)
IMAGES = st.sampled_from(
    ["https://x.example/a.png", "data:image/png;base64,aGk=", "data:image/png;base64,aG\r\nk=\n"]
).map(lambda url: {"type": "image_url", "image_url": {"url": url}})
CONTENTS = TEXT | st.tuples(TEXT.map(lambda text: {"type": "text", "text": text}), IMAGES).map(list)


@st.composite
def conversations(draw):
    """Messages in OpenAI's form: turns that alternate, with calls of tools and their results."""
    messages = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(CONTENTS)})
        calls = [
            call("search", draw(ARGUMENTS), f"c{turn}_{n}") for n in range(draw(st.integers(0, 2)))
        ]
        if calls:
            messages.append(
                {"role": "assistant", "content": draw(TEXT | st.none()), "tool_calls": calls}
            )
            messages += [
                {"role": "tool", "tool_call_id": each["id"], "content": draw(st.text(max_size=9))}
                for each in calls
            ]
        messages.append({"role": "assistant", "content": draw(TEXT)})
    return messages


PARAMETERS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 9999)},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.sampled_from([0.5, 1]),
        "top_k": st.integers(0, 50),
        "stop": st.lists(TEXT, min_size=1, max_size=3),
        "user": TEXT,
        "reasoning_effort": st.sampled_from(["low", "medium", "high", "xhigh"]),
        "service_tier": st.sampled_from(["auto", "default"]),
        "stream": st.just(True),
        "response_format": st.just(
            {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": CLOSED, "strict": True},
            }
        ),
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "tool_choice": st.sampled_from(
            ["required", "none", {"type": "function", "function": {"name": "search"}}]
        ),
    },
)


@given(conversations(), PARAMETERS, CHOICES, st.booleans())
def test_requests_there_and_back(messages, parameters, choice, has_tools):
    """A request in OpenAI's form comes back unchanged from Anthropic's, but for what only OpenAI's
    protocol has, which is named.
    """
    body = {
        "model": "m",
        "messages": messages,
        **parameters,
        **({"tools": CHAT_TOOLS, **choice} if has_tools else {}),
    }
    there = MODELS["messages"].write_request(CLIENTS["chat"].read_request(body), "m")
    back = MODELS["chat"].write_request(CLIENTS["messages"].read_request(there.body), "m").body
    assert set(there.ignored) == {"user"} & set(body)
    assert back.pop("stream_options", None) == (
        {"include_usage": True} if "stream" in body else None
    )
    assert back == {name: value for name, value in body.items() if name != "user"}


# ---- tools and thinking, with the SDKs

CALLS = [call("search", '{"q": "a"}', "c1"), call("search", "{}", "c2")]
CALL_CHUNKS = [
    chunk(reasoning_content="hm"),
    chunk("I look. "),
    chunk(tool_calls=[{"index": 0, **call("search", "", "c1")}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"q": '}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '"a"}'}}]),
    chunk(tool_calls=[{"index": 1, **call("search", "{}", "c2")}]),
    chunk(finish="tool_calls"),
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    },
]
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "I look. "},
    {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "a"}},
    {"type": "tool_use", "id": "c2", "name": "search", "input": {}},
]
USAGE = {"input_tokens": 2, "cache_read_input_tokens": 5, "output_tokens": 3}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "big",
    "stop_sequence": None,
}


def message_events():
    """Return BLOCKS as Anthropic's servers stream them."""
    yield {
        "type": "message_start",
        "message": MESSAGE
        | {"content": [], "stop_reason": None, "usage": USAGE | {"output_tokens": 1}},
    }
    for n, block in enumerate(BLOCKS):
        text = {"thinking": {"thinking": ""}, "text": {"text": ""}, "tool_use": {"input": {}}}[
            block["type"]
        ]
        yield {"type": "content_block_start", "index": n, "content_block": block | text}
        match block:
            case {"thinking": thought}:
                yield {
                    "type": "content_block_delta",
                    "index": n,
                    "delta": {"type": "thinking_delta", "thinking": thought},
                }
                yield {
                    "type": "content_block_delta",
                    "index": n,
                    "delta": {"type": "signature_delta", "signature": "s"},
                }
            case {"text": words}:
                yield {
                    "type": "content_block_delta",
                    "index": n,
                    "delta": {"type": "text_delta", "text": words},
                }
            case {"input": {"q": _}}:
                for part in ('{"q"', ': "a"}'):
                    yield {
                        "type": "content_block_delta",
                        "index": n,
                        "delta": {"type": "input_json_delta", "partial_json": part},
                    }
        yield {"type": "content_block_stop", "index": n}
        yield {"type": "ping"}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 3},
    }
    yield {"type": "message_stop"}


def message_stream():
    events = (
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        for event in message_events()
    )
    return sse(*events, done=False)


@pytest.mark.parametrize("is_shown", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_anthropic_client_calls_tools_of_an_openai_model(faults, is_stream, is_shown):
    """The Anthropic SDK reads tool calls, and thinking if it asked for it, of a model that speaks
    OpenAI's protocol.
    """
    whole = completion("I look. ", "tool_calls", tool_calls=CALLS, reasoning_content="hm")
    whole["usage"] = CALL_CHUNKS[-1]["usage"]
    faults.says(send_and_close(sse(*CALL_CHUNKS)) if is_stream else http(whole))
    transport = http_client(app_of(served(faults.url)))
    client = vendors.AsyncAnthropic(
        api_key="x", base_url="http://gateway", http_client=transport, max_retries=0
    )
    asked = dict(
        model="pass/m", max_tokens=9, messages=[USER], tools=TOOLS, tool_choice={"type": "any"}
    )
    asked |= {"thinking": {"type": "adaptive"}} if is_shown else {}
    if is_stream:
        async with client.messages.stream(**asked) as stream:
            reply = await stream.get_final_message()
    else:
        reply = await client.messages.create(**asked)
    assert faults.requests[0].body["tools"] == CHAT_TOOLS
    assert faults.requests[0].body["tool_choice"] == "required"
    assert [block.type for block in reply.content] == ["thinking"] * is_shown + [
        "text",
        "tool_use",
        "tool_use",
    ]
    assert [(block.id, block.input) for block in reply.content[-2:]] == [
        ("c1", {"q": "a"}),
        ("c2", {}),
    ]
    assert reply.stop_reason == "tool_use"
    assert (
        reply.usage.input_tokens,
        reply.usage.cache_read_input_tokens,
        reply.usage.output_tokens,
    ) == (2, 5, 3)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_openai_client_calls_tools_of_an_anthropic_model(faults, is_stream):
    """The OpenAI SDK reads tool calls and reasoning of a model that speaks Anthropic's protocol."""
    faults.says(
        send_and_close(message_stream())
        if is_stream
        else http(MESSAGE | {"content": BLOCKS, "stop_reason": "tool_use", "usage": USAGE})
    )
    transport = http_client(app_of(served(faults.url, "anthropic")))
    client = vendors.AsyncOpenAI(
        api_key="x", base_url="http://gateway/v1", http_client=transport, max_retries=0
    )
    asked = dict(model="pass/m", messages=[USER], tools=CHAT_TOOLS)
    if is_stream:
        async with client.chat.completions.stream(
            **asked, stream_options={"include_usage": True}
        ) as stream:
            reply = await stream.get_final_completion()
    else:
        reply = await client.chat.completions.create(**asked)
    assert faults.requests[0].body["tools"] == TOOLS
    message = reply.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("I look. ", "hm")
    assert [(each.id, json.loads(each.function.arguments)) for each in message.tool_calls] == [
        ("c1", {"q": "a"}),
        ("c2", {}),
    ]
    assert reply.choices[0].finish_reason == "tool_calls"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (7, 3)
    assert reply.model == "big"
