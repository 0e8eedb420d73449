"""Clients and models of different protocols: requests there and back, tools and thinking with the
SDKs.
"""

import json

import pytest
from fault_server import call, chunk, completion, drip, http, send_and_close, sse
from hypothesis import given
from hypothesis import strategies as st

import vendors
from redraft.base.jsontext import dumps
from redraft.gateway.exchange import GatewayError
from redraft.gateway.passing import translation_of
from redraft.gateway.protocols.chat_messages import write_messages
from redraft.gateway.protocols.chat_requests import write_parameters
from redraft.gateway.protocols.registry import CLIENTS, MODELS
from redraft.gateway.request_fields import MAX_OTHER_PARAMETERS

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


# ---- requests

PLAIN = {
    "chat": {"model": "pass/m", "messages": [USER]},
    "messages": {"model": "pass/m", "max_tokens": 9, "messages": [USER]},
    "responses": {"model": "pass/m", "input": "hi"},
}


def said(*texts):
    return {"role": "assistant", "content": [{"type": "output_text", "text": t} for t in texts]}


@pytest.mark.parametrize("items", [[said("a"), said("b")], [said("a", "b")]])
def test_messages_of_the_assistant_stay_apart(items):
    """The words of two messages of responses are not one word for a model of chat completions."""
    body = PLAIN["responses"] | {"input": [USER, *items, USER]}
    messages = translation_of("responses", "chat", body).body["messages"]
    assert messages == [USER, {"role": "assistant", "content": "a\n\nb"}, USER]


def test_an_empty_list_of_stops_is_left_out():
    """Models of OpenAI's protocol refuse an empty list."""
    body = PLAIN["messages"] | {"stop_sequences": []}
    assert "stop" not in translation_of("messages", "chat", body).body


# ---- replies that are no answers

KEY = "sk-0123456789abcdefghij"
ERROR = {"error": {"message": f"no such key: {KEY}"}}
NO_ANSWERS = {
    "openai": [
        completion() | ERROR,
        completion(finish=KEY),
        completion(tool_calls=[{"type": KEY}]),
        completion(tool_calls=[call("f", KEY)]),
        {"choices": [{"finish_reason": "error", **ERROR}]},
    ],
    "anthropic": [
        MESSAGE | {"type": "error", "content": [], **ERROR},
        MESSAGE | {"content": [], "stop_reason": KEY},
    ],
}


@pytest.mark.parametrize(
    ("client", "kind"),
    [("messages", "openai"), ("chat", "anthropic"), ("responses", "anthropic")],
)
async def test_an_echoed_key_is_masked_in_errors(faults, client, kind):
    """A model that echoes the key of the gateway does not show it to the client, whichever part of
    its reply is wrong.
    """
    for reply in NO_ANSWERS[kind]:
        faults.says(http(reply))
        status, text = await post(served(faults.url, kind, key_env="KEY"), client, PLAIN[client])
        assert status == 502, text
        assert KEY not in text


async def post(model, client, body):
    """Return the status and the text of the reply to a request that is passed on."""
    path = {"chat": "chat/completions"}.get(client, client)
    async with http_client(app_of(model, KEY=KEY)) as sender:
        reply = await sender.post(f"http://gateway/v1/{path}", json=body)
        return reply.status_code, reply.text


BROKEN_OFF = sse(chunk("All but "), chunk("the end."), {"error": {"message": KEY}}, done=False)


@pytest.mark.parametrize("send", [send_and_close, lambda stream: drip(stream, 0)])
async def test_what_came_before_an_error_is_passed_on(faults, send):
    """A stream that breaks off has each word before the error, also if the error is in the same
    part; and no key is in the error, also if it came in several parts.
    """
    faults.says(send(BROKEN_OFF))
    model = served(faults.url, key_env="KEY")
    status, text = await post(model, "messages", PLAIN["messages"] | {"stream": True})
    assert status == 200
    words = ("message_start", "All but ", "the end.", "broke off")
    assert [text.count(word) for word in (*words, KEY)] == [2, 1, 1, 1, 0]
    assert sorted(words, key=text.index) == list(words)


async def test_a_response_that_fails_at_once_has_begun(faults):
    """The SDK's helper for streams of responses needs the first event to read the last."""
    faults.says(http(status=404), send_and_close(sse({"error": {"message": "hot"}}, done=False)))
    client = vendors.AsyncOpenAI(
        api_key="x",
        base_url="http://gateway/v1",
        http_client=http_client(app_of(served(faults.url))),
        max_retries=0,
    )
    with pytest.raises(vendors.openai.APIError, match="hot"):
        async with client.responses.stream(model="pass/m", input="hi") as stream:
            async for _ in stream:
                pass


TALKS = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}
OF_CLIENT = {
    **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key", "unheard_of"), "canary"),
    "metadata": {"user_id": "canary"},
    "client_metadata": {"folder": "canary"},
}


@pytest.mark.parametrize("name", OF_CLIENT)
@pytest.mark.parametrize(
    ("client", "model"),
    [("chat", "messages"), ("responses", "chat"), ("responses", "messages"), ("messages", "chat")],
)
def test_who_the_client_is_goes_to_no_other_protocol(client, model, name):
    """Nor does a field that nobody knows; the client is told which were left out."""
    written = translation_of(client, model, {"model": "m", **TALKS[client], name: OF_CLIENT[name]})
    assert "canary" not in json.dumps(written.body) and name in written.ignored


@pytest.mark.parametrize("client", TALKS)
@pytest.mark.parametrize("model", MODELS)
def test_the_number_of_unknown_fields_is_bounded(client, model):
    """The limit is the same in all protocols."""
    body = {"model": "m", **TALKS[client]}
    most = {f"x{n}": n for n in range(MAX_OTHER_PARAMETERS)}
    request = CLIENTS[client].read_request(body | most)
    assert len(MODELS[model].write_request(request, "m").ignored) in (0, len(most))
    with pytest.raises(GatewayError, match="at most 64 other fields") as caught:
        CLIENTS[client].read_request(body | most | {"y": 1})
    assert (caught.value.status, caught.value.param) == (400, "body")


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max", "utmost"])
@pytest.mark.parametrize("client", ["chat", "responses"])
def test_efforts_that_anthropic_does_not_know(client, effort):
    """All that OpenAI documents have a place; any other word is left out, and named."""
    name = {"chat": "reasoning_effort", "responses": "reasoning.effort"}[client]
    fields = {"reasoning_effort": effort} if client == "chat" else {"reasoning": {"effort": effort}}
    written = translation_of(client, "messages", {"model": "m", **TALKS[client], **fields})
    known = {"minimal": "low", "utmost": None}.get(effort, effort)
    assert written.body.get("output_config", {}).get("effort") == known
    assert written.ignored == (() if known else (name,))


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_what_a_chat_client_says_and_others_do_not(role):
    """Names of speakers, and that a completion be stored, are named where they are left out."""
    messages = [{"role": role, "content": "a", "name": "ann"}, {"role": "user", "content": "b"}]
    body = {"model": "m", "messages": messages, "store": True}
    written = translation_of("chat", "messages", body)
    assert written.ignored == ("store", "messages[].name")
    assert "ann" not in json.dumps(written.body)
    assert translation_of("chat", "messages", body | {"store": False}).ignored == (
        "messages[].name",
    )


def test_what_a_refinement_does_not_send_is_named():
    """A model of the same protocol gets names of speakers, and stores no draft."""
    message = {"role": "user", "content": "a", "name": "ann"}
    fields = {"store": True, "metadata": {"a": "b"}, "user": "ann"}
    request = CLIENTS["chat"].read_request({"model": "m", "messages": [message], **fields})
    assert write_parameters(request) == ({"user": "ann"}, ("metadata", "store"))
    assert write_messages(request) == (message,)


BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli;"}
BEGIN = {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize("system", [[BILLING, BEGIN], [BEGIN, BILLING], [BILLING]])
def test_the_billing_block_of_claude_code_goes_to_anthropic_alone(system):
    """It tells which program asks. A user who writes the same is quoted as ever."""
    quoted = {"role": "user", "content": [BILLING]}
    body = {"model": "m", "max_tokens": 9, "system": system, "messages": [quoted]}
    written = translation_of("messages", "chat", body)
    texts = [message["content"] for message in written.body["messages"]]
    assert texts == [BEGIN["text"] if BEGIN in system else "", BILLING["text"]]
    assert written.ignored == ("messages (x-anthropic-billing-header)",)
    request = CLIENTS["messages"].read_request(body)
    assert MODELS["messages"].write_request(request, "m").body["system"] == system
