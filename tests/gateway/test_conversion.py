"""Requests between clients and models of different protocols: tools and thinking with the SDKs, and
whatever a model may send.
"""

import json

import pytest
from fault_server import call, chunk, completion, http, send_and_close, sse
from hypothesis import given, settings
from hypothesis import strategies as st

import vendors
from redraft.base.jsontext import dumps
from redraft.gateway.exchange import GatewayError
from redraft.gateway.passing import translated

from .pass_app import app_of, http_client, served

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
CHAT_TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "description": "Finds.", "parameters": SCHEMA},
    }
]
TOOLS = [{"name": "search", "description": "Finds.", "input_schema": SCHEMA}]
TEXT = st.text(min_size=1, max_size=20)

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


def body_of(stream):
    return stream.partition(b"\r\n\r\n")[2]


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
    | st.just([None])
)


def objects(**fields):
    """Any object with some of these fields, each as it should be or not."""
    return st.fixed_dictionaries(
        {}, optional={name: ANYTHING | value for name, value in fields.items()}
    )


FUNCTIONS = objects(name=TEXT, arguments=st.text(max_size=5) | st.just({}))
CALL_PARTS = st.lists(
    objects(index=st.integers(0, 1), id=st.sampled_from(["a", "b"]), function=FUNCTIONS), max_size=2
)
DELTAS = objects(
    content=TEXT | st.just([{"type": "text", "text": "x"}]),
    tool_calls=CALL_PARTS,
    refusal=TEXT,
    reasoning_content=TEXT,
)
CHOICES_OF_MODELS = st.lists(
    objects(delta=DELTAS, message=DELTAS, finish_reason=st.sampled_from(["stop", "length"])),
    max_size=1,
)
USAGES = objects(
    prompt_tokens=st.integers(),
    completion_tokens=st.integers(),
    input_tokens=st.integers(),
    output_tokens=st.integers(),
)
BLOCKS_OF_MODELS = objects(
    type=st.sampled_from(["text", "tool_use", "thinking"]),
    text=TEXT,
    id=TEXT,
    name=TEXT,
    input=st.just({}),
)
EVENTS = objects(
    id=TEXT,
    model=TEXT,
    error=objects(message=TEXT),
    choices=CHOICES_OF_MODELS,
    usage=USAGES,
    type=st.sampled_from(
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
        ]
    ),
    message=objects(id=TEXT, usage=USAGES),
    index=st.integers(0, 1),
    content_block=BLOCKS_OF_MODELS,
    content=st.lists(BLOCKS_OF_MODELS, max_size=2),
    delta=objects(
        type=st.sampled_from(["text_delta", "input_json_delta"]),
        text=TEXT,
        partial_json=TEXT,
        stop_reason=TEXT,
    ),
)


@pytest.mark.parametrize(
    ("client", "upstream"),
    [("messages", "chat"), ("chat", "messages"), ("responses", "chat"), ("responses", "messages")],
)
@settings(max_examples=3 * settings.default.max_examples)
@given(events=st.lists(ANYTHING | EVENTS, max_size=4))
def test_any_stream_and_any_reply_is_converted_or_refused(client, upstream, events):
    """Whatever a model sends is converted, or is a 502."""
    asked = (
        {"model": "m", "input": "hi"}
        if client == "responses"
        else {"model": "m", "max_tokens": 5, "messages": [USER]}
    )
    translation = translated(client, upstream, asked)
    translator = translation.stream()
    steps = [
        lambda event=event: translator.feed(b"data: " + dumps(event) + b"\n\n") for event in events
    ]
    steps += [
        lambda event=event: translation.reply(b"", event)
        for event in events
        if isinstance(event, dict)
    ]
    for step in (*steps, translator.finish):
        try:
            step()
        except GatewayError as error:
            assert error.status == 502
