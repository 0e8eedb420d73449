"""Replies and streams of OpenAI's responses: what the clients of OpenAI and LangChain read."""

import json
import warnings
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

import vendors
from each_row import each_row
from redraft.gateway.exchange import GatewayError
from redraft.gateway.neutral import (
    Begin,
    Call,
    CallBegin,
    CallDelta,
    End,
    Ping,
    Reply,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    Tokens,
    events_of,
)

from .protocol_app import CREATED, OUTCOME, both_sides, client_of

RESPONSES = both_sides("responses")
PATH = "/v1/responses"
TOKENS = Tokens(20, 9, cached=5, cache_written=2, reasoning=4)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
PATCH = {"type": "custom", "name": "patch", "description": "Change files."}
WAIT = {"type": "function", "name": "wait", "parameters": SCHEMA, "strict": True}
TOOLS = [
    {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True},
    PATCH,
    {"type": "tool_search", "execution": "client", "description": "Find.", "parameters": SCHEMA},
    {"type": "namespace", "name": "agents", "description": "Others.", "tools": [WAIT, PATCH]},
]
CALLS = (
    Call("c1", "add", '{"a": 1}'),
    Call("c2", "patch", '{"input": "*** Begin"}'),
    Call("c3", "agents__wait", ""),
    Call("c2", "agents__patch", '{"input": ""}'),
    Call("", "unknown", "{"),
    Call("c6", "tool_search", '{"query": "x"}'),
)
TEXT = '{"n": 5}' + " " * 600


def read(**fields):
    return RESPONSES.read_request({"model": "refine/fast", "input": "hi", **fields})


def decoded(stream_bytes):
    """Decode a stream as the client of OpenAI does."""
    events = [
        (sse.event, json.loads(sse.data))
        for sse in vendors.SSEDecoder().iter_bytes(iter([stream_bytes]))
    ]
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    return [data for _, data in events]


def written(request, *events):
    """The events of a stream, decoded."""
    writer = RESPONSES.stream_writer(request, CREATED)
    return decoded(b"".join(map(writer.write, events)))


@cache
def event_types():
    """The types of the events of OpenAI's client."""
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


def accumulated(events):
    """The response that the client of OpenAI makes of the events of a stream, each of which must
    fit its type strictly.
    """
    from openai.lib.streaming.responses._responses import ResponseStreamState

    adapter = event_types()
    state = ResponseStreamState(input_tools=[], text_format=vendors.openai.omit)
    final = None
    for data in events:
        for made in state.handle_event(adapter.validate_python(data)):
            final = getattr(made, "response", final)
    return final


PARTS = st.lists(
    st.builds(Text, st.text(max_size=600), st.booleans())
    | st.builds(Thinking, st.text(max_size=300), st.text(max_size=3), st.text(max_size=3))
    | st.builds(
        Call,
        st.text(max_size=3),
        st.sampled_from([call.name for call in CALLS]),
        st.just('{"input": "x"}') | st.text(max_size=300),
    ),
    max_size=5,
)
COUNT = st.none() | st.integers(0, 9)


@pytest.mark.slow
@given(
    parts=PARTS,
    finish=st.sampled_from(["stop", "length", "tool_calls", "content_filter", "refusal"]),
    tokens=st.builds(Tokens, COUNT, COUNT, COUNT, COUNT, COUNT),
    outcome=st.none() | st.just(OUTCOME),
)
@example([], "stop", TOKENS, None)
@example([Thinking("hm")], "length", TOKENS, None)
@example([Thinking("a", "s"), Thinking("b", "", "r"), Text("c"), *CALLS], "stop", TOKENS, OUTCOME)
def test_a_stream_is_read_as_it_was_written(parts, finish, tokens, outcome):
    """OpenAI's client makes of a stream what `write_reply` writes, and both fit OpenAI's types."""
    request = read(tools=TOOLS, stream=True)
    reply = Reply("t1", "tiny", tuple(parts), finish, tokens)
    whole = json.loads(json.dumps(RESPONSES.write_reply(request, reply, CREATED, outcome)))
    events = written(request, Begin("t1", "tiny"), *events_of(reply, outcome))
    assert events[-1]["response"] == whole
    response = vendors.Response.model_validate(whole)
    final = accumulated(events)
    assert final.output_text == response.output_text
    assert [item.id for item in final.output] == [item["id"] for item in whole["output"]]
    done = [data["item"] for data in events if data["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert text_of_deltas(events) == [
        text for item in whole["output"] for text in texts_of(item) if text
    ]


NAMES = st.sampled_from([call.name for call in CALLS])
EVENTS = st.one_of(
    st.builds(TextDelta, st.text(max_size=3), st.booleans()),
    st.builds(ThinkingDelta, st.text(max_size=3), st.text(max_size=1), st.text(max_size=1)),
    st.builds(CallBegin, st.text(max_size=1), NAMES),
    st.builds(CallDelta, st.text(max_size=3)),
    st.just(Ping()),
)


@given(st.lists(EVENTS, max_size=12), st.sampled_from(["stop", "length"]))
def test_any_events_are_a_stream(events, finish):
    """In whatever order a model sends parts, OpenAI's client reads each item once."""
    read_events = written(read(tools=TOOLS), Begin("t1", "m"), *events, End(finish))
    accumulated(read_events)
    output = read_events[-1]["response"]["output"]
    added = [data for data in read_events if data["type"] == "response.output_item.added"]
    assert [data["item"]["id"] for data in added] == [item["id"] for item in output]
    assert [data["output_index"] for data in added] == list(range(len(output)))
    texts = [each.text for each in events if isinstance(each, TextDelta)]
    messages = [item for item in output if item["type"] == "message"]
    assert "".join(map("".join, map(texts_of, messages))) == "".join(texts)


def test_a_text_that_is_no_unicode_is_written():
    """Half a surrogate pair, which JSON can escape, does not end the stream."""
    parts = (
        Text("a\ud83d"),
        Call("c", "patch", '{"input": "\\ud83d"}'),
        Call("d", "add", "\ud83d"),
    )
    events = [Begin("t1", "m"), *events_of(Reply("t1", "m", parts))]
    output = written(read(tools=TOOLS), *events)[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "custom_tool_call", "function_call"]


def texts_of(item):
    """The texts of an item of the output."""
    match item["type"]:
        case "message":
            return [part.get("text", part.get("refusal")) for part in item["content"]]
        case "reasoning":
            return [part["text"] for part in item["summary"]]
        case "function_call":
            return [item["arguments"]]
        case "custom_tool_call":
            return [item["input"]]
        case "tool_search_call":  # (its arguments are no text)
            return []


def text_of_deltas(events):
    """The texts that deltas make up, by the part to which they belong."""
    texts = {}
    for data in events:
        if data["type"].endswith(".delta"):
            place = (
                data["output_index"],
                data.get("content_index", data.get("summary_index", 0)),
            )
            texts[place] = texts.get(place, "") + data["delta"]
    return [text for text in texts.values() if text]


def test_calls_go_back_under_the_names_of_the_client():
    """A call has the name and the namespace of the client's tool, and an ID that no other has; the
    call of a tool that takes a text is a custom one with that text.
    """
    reply = Reply("t1", "tiny", CALLS, "tool_calls")
    output = RESPONSES.write_reply(read(tools=TOOLS), reply, CREATED)["output"]
    assert [
        (
            item["type"],
            item.get("namespace"),
            item.get("name"),
            item["call_id"],
            item.get("arguments", item.get("input")),
        )
        for item in output
    ] == [
        ("function_call", None, "add", "c1", '{"a": 1}'),
        ("custom_tool_call", None, "patch", "c2", "*** Begin"),
        ("function_call", "agents", "wait", "c3", "{}"),
        ("custom_tool_call", "agents", "patch", "call_t1_3", ""),
        ("function_call", None, "unknown", "call_t1_4", "{"),
        ("tool_search_call", None, None, "c6", {"query": "x"}),
    ]


@each_row(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a", "why": 1}', "a"),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ('{"input": 3}', '{"input": 3}'),
        ("[1]", "[1]"),
        ("*** Begin Patch", "*** Begin Patch"),
        ("", ""),
    ],
)
def test_the_input_of_a_text_tool(arguments, text):
    """A text that a model did not wrap as it was told arrives as it is."""
    reply = Reply("t1", "m", (Call("c", "patch", arguments),))
    (item,) = RESPONSES.write_reply(read(tools=TOOLS), reply, CREATED)["output"]
    assert item["input"] == text


@each_row(
    ("finish", "status", "reason", "is_refusal"),
    [
        ("stop", "completed", None, False),
        ("tool_calls", "completed", None, False),
        ("refusal", "completed", None, True),
        ("refusal", "incomplete", {"reason": "content_filter"}, False),
        ("length", "incomplete", {"reason": "max_output_tokens"}, False),
        ("content_filter", "incomplete", {"reason": "content_filter"}, False),
    ],
)
def test_the_status_of_a_response(finish, status, reason, is_refusal):
    """A response that was cut off is incomplete, as is the item that was cut; a refusal is, unless
    it is in words of its own.
    """
    reply = Reply("t1", "m", (Thinking("hm"), Text("a", is_refusal)), finish)
    whole = RESPONSES.write_reply(read(), reply, CREATED)
    assert (whole["status"], whole["incomplete_details"]) == (status, reason)
    assert [item["status"] for item in whole["output"]] == ["completed", status]
    assert whole["completed_at"] == (CREATED if status == "completed" else None)


def test_a_response_is_complete():
    """A response has each field that OpenAI's has, repeats what was asked, and fits its type
    strictly.
    """
    request = read(
        instructions="be brief", tools=TOOLS, tool_choice="auto", metadata={"a": "b"}, top_p=0.5
    )
    reply = Reply("resp_t1", "", (Text(TEXT),), tokens=TOKENS)
    whole = RESPONSES.write_reply(request, reply, CREATED, OUTCOME)
    response = vendors.Response.model_validate(whole)
    assert (response.id, response.model) == ("resp_t1", "refine/fast")
    assert (response.instructions, response.top_p, response.metadata) == (
        "be brief",
        0.5,
        {"a": "b"},
    )
    assert [tool.type for tool in response.tools] == [tool["type"] for tool in TOOLS]
    assert (response.output_text, response.status) == (TEXT, "completed")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (20, 9, 29)
    assert usage.input_tokens_details.cached_tokens == 5
    assert usage.input_tokens_details.cache_write_tokens == 2
    assert usage.output_tokens_details.reasoning_tokens == 4
    assert whole["usage"]["redraft"] == whole["redraft"] == OUTCOME
    plain = RESPONSES.write_reply(request, Reply("t1", "tiny", (Text(""),)), CREATED)
    assert (plain["model"], plain["usage"], "redraft" in plain) == ("tiny", None, False)


def test_parts_that_change_in_a_stream():
    """Each change of what arrives ends the part or the item before it."""
    events = written(
        read(tools=TOOLS),
        Begin("t1", "m"),
        ThinkingDelta("a"),
        ThinkingDelta(signature="s"),
        ThinkingDelta("b"),
        TextDelta(""),
        TextDelta("c"),
        Ping(),
        TextDelta("d", is_refusal=True),
        CallBegin("c1", "add"),
        CallDelta("{"),
        CallDelta("}"),
        TextDelta("e"),
        End("stop"),
    )
    output = events[-1]["response"]["output"]
    assert [(item["type"], texts_of(item)) for item in output] == [
        ("reasoning", ["a"]),
        ("reasoning", ["b"]),
        ("message", ["c", "d"]),
        ("function_call", ["{}"]),
        ("message", ["e"]),
    ]
    assert [item.get("encrypted_content") for item in output[:2]] == ["signature:s", None]


@pytest.mark.parametrize("thinking", [Thinking("hm", signature="s"), Thinking(redacted="r:s")])
def test_thinking_survives_the_next_turn(thinking):
    """What proves a model's thinking comes back with the client's next request."""
    reply = Reply("t1", "m", (thinking, Text("a")))
    output = RESPONSES.write_reply(read(), reply, CREATED)["output"]
    assert read(input=[*output, {"role": "user", "content": "b"}]).turns[0].parts == reply.parts


@each_row(
    ("error", "code"),
    [
        (GatewayError(503, "overloaded", "busy"), "server_error"),
        (GatewayError(429, "rate_limited", "busy"), "rate_limit_exceeded"),
        (GatewayError(402, "budget_exhausted", "spent"), "insufficient_quota"),
        (GatewayError(400, "context_length_exceeded", "long"), "context_length_exceeded"),
        (GatewayError(400, "invalid_request", "no"), "invalid_prompt"),
    ],
)
def test_a_failed_stream_says_why(error, code):
    """The response fails with a code that agents act upon, then the error follows."""
    writer = RESPONSES.stream_writer(read(), CREATED)
    parts = [writer.write(Begin("t1", "m")), writer.write(TextDelta("a")), writer.fail(error)]
    *_, failed, last = decoded(b"".join(parts))
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": code, "message": error.message}
    assert (last["type"], last["error"]) == ("error", RESPONSES.error_body(error)["error"])
    (alone,) = decoded(RESPONSES.error_event(error))
    assert alone["error"] == last["error"]
    assert RESPONSES.error_status(error) == error.status


# ---- real clients


def reply_to(request):
    if request.tools:
        return Reply("t1", "tiny", CALLS[:1], "tool_calls", TOKENS)
    return Reply("t1", "tiny", (Thinking("hm"), Text(TEXT)), "stop", TOKENS)


def openai_client(http):
    return vendors.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
    )


class Number(BaseModel):
    n: int


@pytest.mark.parametrize("events", [False, True])
async def test_openai_reads_answers(events):
    """The client of OpenAI reads a text, parsed values and tool calls, streamed and not."""
    more = {"model": "refine/fast", "input": "hi", "extra_body": {"redraft": {"events": events}}}
    async with client_of(RESPONSES, PATH, reply_to) as http:
        responses = openai_client(http).responses
        assert (await responses.create(**more)).output_text == TEXT
        assert (await responses.parse(**more, text_format=Number)).output_parsed == Number(n=5)
        read = [event async for event in await responses.create(**more, stream=True)]
        assert [event.type for event in read].count("redraft.progress") == events
        async with responses.stream(**more, text_format=Number) as stream:
            assert (await stream.get_final_response()).output_parsed == Number(n=5)
        async with responses.stream(**more, tools=TOOLS[:1]) as stream:
            final = await stream.get_final_response()
        assert [(call.name, call.arguments) for call in final.output] == [("add", '{"a": 1}')]


async def test_output_is_valid_input():
    """An agent sends the items of a response back, with the results of its calls."""
    turns = []

    def answer(request):
        turns.append(request.turns)
        return Reply("t1", "tiny", CALLS, "tool_calls") if request.tools else reply_to(request)

    async with client_of(RESPONSES, PATH, answer) as http:
        responses = openai_client(http).responses
        called = await responses.create(model="refine/fast", input="hi", tools=TOOLS)
        results = [
            {"type": f"{call.type}_output", "call_id": call.call_id, "output": "3"}
            for call in called.output[:-1]
        ]
        found = {"type": "tool_search_output", "call_id": "c6", "tools": []}
        items = [{"role": "user", "content": "hi"}, *called.output, *results, found]
        told = await responses.create(model="refine/fast", input=items)
        again = await responses.create(model="refine/fast", input=[*items, *told.output])
    assert again.output_text == TEXT
    assert [turn.role for turn in turns[1]] == ["user", "assistant", *["tool"] * 6]
    assert [call.name for call in turns[1][1].calls] == [call.name for call in CALLS]
    assert [json.loads(call.arguments) for call in turns[1][1].calls[:4]] == [
        {"a": 1},
        {"input": "*** Begin"},
        {},
        {"input": ""},
    ]


async def test_openai_raises_errors():
    """An error before the answer is one of its status; one in a stream ends the response and is
    raised.
    """
    failure = GatewayError(503, "overloaded", "the queue is full")
    async with client_of(RESPONSES, PATH, reply_to, failure) as http:
        responses = openai_client(http).responses
        with pytest.raises(vendors.openai.BadRequestError) as caught:
            await responses.create(model="refine/fast", input="hi", previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"
        kinds = []
        with pytest.raises(vendors.openai.APIError, match="the queue is full"):
            async for event in await responses.create(model="m", input="hi", stream=True):
                kinds.append(event.type)
        assert kinds == ["response.created", "response.in_progress", "response.failed"]
        assert event.response.error.message == "the queue is full"


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("events", [False, True])
async def test_langchain_reads_answers(events):
    """LangChain reads texts, tool calls and usage, also beside progress events."""
    async with client_of(RESPONSES, PATH, reply_to) as http:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = vendors.ChatOpenAI(
                model="refine/fast",
                base_url="http://gateway/v1",
                api_key="k",
                http_async_client=http,
                use_responses_api=True,
                extra_body={"redraft": {"events": events}},
            )
            assert (await model.ainvoke("hi")).text == TEXT
            chunks = [chunk async for chunk in model.astream("hi")]
            assert "".join(chunk.text for chunk in chunks) == TEXT
            usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
            assert [usage["total_tokens"] for usage in usages] == [29]
            called = await model.bind_tools(TOOLS[:1]).ainvoke("hi")
            assert [call["name"] for call in called.tool_calls] == ["add"]
