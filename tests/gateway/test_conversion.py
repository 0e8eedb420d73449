"""Conversions between OpenAI's and Anthropic's protocols: requests there and back, tools, thinking
and streams.
"""

import json

import pytest
from fault_server import call, chunk, completion, http, send_and_close, sse
from hypothesis import given, settings
from hypothesis import strategies as st
from redraft.gateway.chat_to_messages import DEFAULT_MAX_TOKENS, messages_body
from redraft.gateway.conversion import conversion_between
from redraft.gateway.messages_to_chat import chat_body
from redraft.gateway.reply_streams import ChatReplyStream, MessagesReplyStream

import vendors
from each_row import each_row
from redraft.base.jsontext import dumps
from redraft.gateway.exchange import GatewayError

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
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
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
    """A request in OpenAI's form comes back unchanged from Anthropic's."""
    body = {
        "model": "m",
        "messages": messages,
        **parameters,
        **({"tools": CHAT_TOOLS, **choice} if has_tools else {}),
    }
    back = chat_body(messages_body(body))
    assert back.pop("stream_options", None) == (
        {"include_usage": True} if "stream" in body else None
    )
    assert back == body


def test_parallel_calls_and_defaults():
    """One call at a time can be said in both protocols; a request without a limit of tokens gets
    one.
    """
    body = {
        "model": "m",
        "messages": [USER],
        "tools": CHAT_TOOLS,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
    }
    converted = messages_body(body)
    assert converted["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert converted["max_tokens"] == DEFAULT_MAX_TOKENS
    assert chat_body(converted) == body | {"max_tokens": DEFAULT_MAX_TOKENS}


@each_row(
    "fields",
    [
        {"n": 2},
        {"seed": 1},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"logit_bias": {"5": 1}},
        {"store": True},
        {"metadata": {"a": "b"}},
        {"verbosity": "low"},
        {"modalities": ["text", "audio"]},
        {"reasoning_effort": "minimal"},
        {"response_format": {"type": "json_object"}},
        {"service_tier": "flex"},
        {"min_p": 0.1},
        {"functions": [{"name": "f"}]},
    ],
)
def test_what_a_chat_client_asks_in_vain(fields):
    """What Anthropic's protocol cannot say is a 400 that names the field."""
    (name,) = fields
    with pytest.raises(GatewayError) as caught:
        conversion_between("chat", "messages", {"model": "m", "messages": [USER], **fields})
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "name": "ann"}, "messages[0].name"),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": "https://x.example", "detail": "low"},
                    }
                ],
            },
            "messages[0].content[0].image_url.detail",
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [call("search", "[1]")]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "system", "content": "Only this."}, "messages"),
    ],
)
def test_messages_that_cannot_be_said(message, param):
    """A part of a message that Anthropic's protocol cannot say is a 400 that names its place."""
    with pytest.raises(GatewayError) as caught:
        messages_body({"model": "m", "messages": [message]})
    assert (caught.value.status, caught.value.param) == (400, param)


DATA_URLS = {  # and the media type and the data that are sent; None: the URL is refused
    "data:{kind};base64,aGk=": ("{kind}", "aGk="),
    "data:{kind};base64,aG\nk=": ("{kind}", "aG\nk="),
    "data:{kind};base64,aG\r\nk=\r\n": ("{kind}", "aG\r\nk=\r\n"),
    "data:{kind};base64,\naGk=": ("{kind}", "\naGk="),
    "data:{kind};base64,": ("{kind}", ""),
    "data:{kind},aGk=": None,
    "data:{kind};charset=utf-8;base64,aGk=": None,
    "data:;base64,aGk=": None,
    "data:{kind}\n;base64,aGk=": None,
    "data:{kind}é;base64,aGk=": None,
    "data:aé/{kind};base64,aGk=": None,
}


@pytest.mark.parametrize("kind", ["image", "document"])
@pytest.mark.parametrize(("url", "source"), DATA_URLS.items())
def test_data_of_images_and_documents(kind, url, source):
    """Base64 may have line breaks, which stay; what is not an ASCII media type and base64 is a 400
    that names its place.
    """
    media = {"image": "image/png", "document": "application/pdf"}[kind]
    url = url.replace("{kind}", media)
    part, param = {
        "image": ({"type": "image_url", "image_url": {"url": url}}, "image_url.url"),
        "document": ({"type": "file", "file": {"file_data": url}}, "file"),
    }[kind]
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    if source is None:
        with pytest.raises(GatewayError) as caught:
            messages_body(body)
        assert (caught.value.status, caught.value.param) == (
            400,
            f"messages[0].content[0].{param}",
        )
        return
    data = {"type": "base64", "media_type": media, "data": source[1]}
    assert messages_body(body)["messages"] == [
        {"role": "user", "content": [{"type": kind, "source": data}]}
    ]


@pytest.mark.parametrize(
    ("budget", "effort"), [(1024, "low"), (10_000, "medium"), (32_000, "high")]
)
def test_thinking_becomes_an_effort(budget, effort):
    """A budget of thinking becomes the word of OpenAI's protocol that is nearest."""
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [USER],
        "thinking": {"type": "enabled", "budget_tokens": budget},
    }
    assert chat_body(body)["reasoning_effort"] == effort


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


@pytest.mark.parametrize("to_anthropic", [True, False])
def test_streams_are_the_same_wherever_the_network_splits_them(to_anthropic):
    """A stream is converted to the same events for every place at which it may be split."""
    stream = body_of(sse(*CALL_CHUNKS) if to_anthropic else message_stream())

    def convert(*parts):
        converter = (
            MessagesReplyStream(shows_thinking=True)
            if to_anthropic
            else ChatReplyStream(1, includes_usage=True)
        )
        return b"".join(map(converter.feed, parts)) + converter.finish()

    expected = convert(stream)
    assert all(
        convert(stream[:place], stream[place:]) == expected for place in range(0, len(stream), 3)
    )


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
    conversion = conversion_between(client, upstream, asked)
    converter = conversion.stream(1)
    steps = [
        lambda event=event: converter.feed(b"data: " + dumps(event) + b"\n\n") for event in events
    ]
    steps += [
        lambda event=event: dumps(conversion.reply(event, 1))
        for event in events
        if isinstance(event, dict)
    ]
    for step in (*steps, converter.finish):
        try:
            step()
        except GatewayError as error:
            assert error.status == 502
