"""Anthropic's messages: replies and streams are written as its SDK reads them, and read back the
same.
"""

import json
from dataclasses import replace
from itertools import groupby

import httpx2
import pytest
from fault_server import sse
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import vendors
from each_row import each_row
from redraft.base.jsontext import dumps, loads
from redraft.gateway.exchange import GatewayError, Progress
from redraft.gateway.neutral import (
    Begin,
    Call,
    CallBegin,
    CallDelta,
    Other,
    Ping,
    Reply,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    Tokens,
    events_of,
)
from redraft.gateway.protocols.messages_requests import ANSWER_TOOL

from .protocol_app import both_sides

MESSAGES = both_sides("messages")
USER = {"role": "user", "content": "hi"}
CREATED = 1_700_000_000
OUTCOME = {"trace_id": "t1", "score": 0.8}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}


def asked(**fields):
    body = {"model": "refine/fast", "max_tokens": 9, "messages": [USER], **fields}
    return MESSAGES.read_request(body)


PLAIN, SHOWN = asked(), asked(thinking={"type": "adaptive"})


def written_stream(request, reply, outcome=None):
    """Return a reply as a stream."""
    writer = MESSAGES.stream_writer(request, CREATED)
    begin = Begin(reply.id, reply.model, replace(reply.tokens, output=1))
    return b"".join(map(writer.write, (begin, *events_of(reply, outcome))))


def read_stream(*parts):
    """Return the events of a stream."""
    reader = MESSAGES.stream_reader()
    return [event for part in parts for event in reader.feed(part)] + list(reader.finish())


def reply_of(events):
    """Return the reply that a stream says, its parts joined as far as they are of one kind."""
    begin, *_, end = events
    parts = []
    for event in events:
        match event, parts:
            case TextDelta(), [*_, Text() as last]:
                parts[-1] = Text(last.text + event.text)
            case TextDelta(), _:
                parts.append(Text(event.text))
            case ThinkingDelta(redacted=str(data)), _ if data:
                parts.append(Thinking(redacted=data))
            case ThinkingDelta(), [*_, Thinking(signature="", redacted="") as last]:
                parts[-1] = Thinking(last.text + event.text, event.signature)
            case ThinkingDelta(), _:
                parts.append(Thinking(event.text, event.signature))
            case CallBegin(), _:
                parts.append(Call(event.id, event.name, ""))
            case CallDelta(), [*_, Call() as last]:
                parts[-1] = replace(last, arguments=last.arguments + event.arguments)
            case Other(), _:
                parts.append(event)
    return Reply(begin.id, begin.model, tuple(parts), end.finish, end.tokens, end.stop_sequence)


def plain(reply):
    """Return a reply without the JSON it was read from, its neighbouring texts joined."""
    parts = []
    for is_text, group in groupby(reply.parts, lambda part: isinstance(part, Text)):
        same = list(group)
        parts += [Text("".join(part.text for part in same))] if is_text else same
    return replace(
        reply,
        parts=tuple(part if isinstance(part, Other) else replace(part, raw=None) for part in parts),
    )


# ---- there and back

NAMES = st.text("abc_-1", min_size=1, max_size=5)
COUNTS = st.none() | st.integers(0, 99)
PARTS = (
    st.text(min_size=1, max_size=600).map(Text)
    | st.builds(Thinking, st.text(max_size=300), st.text("ab", min_size=1, max_size=5))
    | st.builds(Thinking, redacted=st.text("ab", min_size=1, max_size=5))
    | st.builds(
        Call,
        NAMES,
        NAMES,
        st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=300)).map(
            lambda value: dumps(value).decode()
        ),
    )
    | st.sampled_from([Other("server_tool_use", SEARCH), Other(FOUND["type"], FOUND)])
)


@st.composite
def replies(draw):
    """Replies as models of this protocol write them: every call of a tool ends the turn."""
    parts = tuple(draw(st.lists(PARTS, max_size=4)))
    has_calls = any(isinstance(part, Call) for part in parts)
    finish = draw(st.sampled_from(["tool_calls", "length", "refusal"] + ["stop"] * (not has_calls)))
    cached, written = draw(COUNTS), draw(COUNTS)
    read = draw(st.none() | st.integers((cached or 0) + (written or 0), 999))
    tokens = Tokens(read, draw(COUNTS), cached, written, draw(COUNTS))
    sequence = draw(st.none() | st.just("END")) if finish == "stop" else None
    return plain(Reply("msg_1", "big", parts, finish, tokens, sequence))


@given(replies())
def test_replies_there_and_back(reply):
    """Any reply that is written, whole or as a stream, reads the same."""
    whole = loads(dumps(MESSAGES.write_reply(PLAIN, reply, CREATED)))
    assert plain(MESSAGES.read_reply(whole)) == reply
    stream = reply_of(read_stream(written_stream(PLAIN, reply)))
    # a stream keeps the counts of its beginning if the end has none
    assert replace(stream, tokens=reply.tokens) == reply
    if reply.tokens.input is not None and reply.tokens.output is not None:
        assert stream.tokens == reply.tokens


@given(replies())
def test_the_same_protocol_keeps_blocks(reply):
    """What a reply of this protocol holds beyond the neutral form is written again."""
    blocks = [
        *MESSAGES.write_reply(PLAIN, reply, CREATED)["content"],
        {"type": "text", "text": "cited", "citations": [{"type": "char_location"}]},
        {
            "type": "tool_use",
            "id": "t",
            "name": "n",
            "input": {"a": 1},
            "caller": {"type": "direct"},
        },
    ]
    read = MESSAGES.read_reply({"id": "msg_1", "content": blocks})
    assert MESSAGES.write_reply(PLAIN, read, CREATED)["content"] == blocks


# ---- what a server sends

BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "text", "text": "I look. "},
    SEARCH,
    FOUND,
    {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "a"}},
    {"type": "tool_use", "id": "c2", "name": "search", "input": {}},
    {"type": "tool_use", "id": "c3", "name": "search", "input": {"q": "b"}},
]
USAGE = {
    "input_tokens": 2,
    "cache_read_input_tokens": 5,
    "cache_creation_input_tokens": 1,
    "output_tokens": 3,
    "output_tokens_details": {"thinking_tokens": 2},
}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "big"}
ENDING = {"stop_reason": "tool_use", "stop_sequence": None}
REPLY = Reply(
    "msg_1",
    "big",
    (
        Thinking("hm", "s"),
        Thinking(redacted="x"),
        Text("I look. "),
        Other("server_tool_use", SEARCH),
        Other("web_search_tool_result", FOUND),
        Call("c1", "search", '{"q":"a"}'),
        Call("c2", "search", "{}"),
        Call("c3", "search", '{"q":"b"}'),
    ),
    "tool_calls",
    Tokens(8, 3, 5, 1, 2),
)


def deltas(block):
    """Return a block as it begins, and what follows."""
    match block:
        case {"id": "c1"}:
            parts = ["", '{"q":', '"a"}']
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": part} for part in parts
            ]
        case {"type": "server_tool_use"}:
            parts = ['{"query":', '"q"}']
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": part} for part in parts
            ]
        case {"type": "text"}:
            return {**block, "text": "I "}, [{"type": "text_delta", "text": "look. "}]
        case {"type": "thinking"}:
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": "hm"},
                {"type": "signature_delta", "signature": "s"},
            ]
    return block, []


def server_events(blocks=BLOCKS, ending=ENDING):
    """Yield the events of a stream as Anthropic's servers send them."""
    usage = USAGE | {"output_tokens": 1}
    message = {**MESSAGE, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": message}
    for n, block in enumerate(blocks):
        begin, rest = deltas(block)
        yield {"type": "content_block_start", "index": n, "content_block": begin}
        yield {"type": "ping"}
        for delta in rest:
            yield {"type": "content_block_delta", "index": n, "delta": delta}
        yield {"type": "content_block_stop", "index": n}
    last = {"output_tokens": 3, "input_tokens": None}
    yield {"type": "message_delta", "delta": ending, "usage": last}
    yield {"type": "message_stop"}


def stream_of(events):
    lines = (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)
    return sse(*lines, done=False).partition(b"\r\n\r\n")[2]


def test_what_a_server_sends():
    """A whole reply and a stream of the same content read the same, wherever the network splits
    it.
    """
    whole = MESSAGES.read_reply({**MESSAGE, "content": BLOCKS, **ENDING, "usage": USAGE})
    assert plain(whole) == REPLY
    stream = stream_of(server_events())
    events = read_stream(stream)
    assert Ping() in events
    assert reply_of(events) == REPLY
    assert all(
        read_stream(stream[:place], stream[place:]) == events for place in range(0, len(stream), 7)
    )


@each_row(
    ("stop_reason", "finish", "written"),
    [
        ("end_turn", "stop", "end_turn"),
        ("stop_sequence", "stop", "stop_sequence"),
        ("max_tokens", "length", "max_tokens"),
        ("model_context_window_exceeded", "length", "max_tokens"),
        ("pause_turn", "tool_calls", "pause_turn"),
        ("refusal", "refusal", "refusal"),
        ("max_length", "length", "max_tokens"),
        ("safety", "content_filter", "refusal"),
        ("tool_use", "stop", "end_turn"),
        (None, "stop", "end_turn"),
    ],
)
def test_reasons_to_stop(stop_reason, finish, written):
    """Each reason to stop has one in the neutral form, and comes back as far as clients tell them
    apart.
    """
    sequence = "END" if stop_reason == "stop_sequence" else None
    ending = {"stop_reason": stop_reason, "stop_sequence": sequence}
    block = {"type": "text", "text": "I look. "}
    whole = MESSAGES.read_reply({**MESSAGE, "content": [block], **ending})
    assert (whole.finish, whole.stop_sequence) == (finish, sequence)
    end = read_stream(stream_of(server_events([block], ending)))[-1]
    assert (end.finish, end.stop_sequence) == (finish, sequence)
    body = MESSAGES.write_reply(PLAIN, whole, CREATED)
    assert (body["stop_reason"], body["stop_sequence"]) == (written, sequence)


@pytest.mark.parametrize("reason", ["error", "aborted", "a_reason_of_tomorrow", 5])
def test_an_answer_that_may_not_be_whole(reason):
    """What ended because the model failed, or for a reason that nobody knows, is no answer."""
    ending = {"stop_reason": reason, "stop_sequence": None}
    block = {"type": "text", "text": "I look. "}
    with pytest.raises(GatewayError, match="broke off|unknown reason"):
        MESSAGES.read_reply({**MESSAGE, "content": [block], **ending})
    with pytest.raises(GatewayError, match="broke off|unknown reason"):
        read_stream(stream_of(server_events([block], ending)))


@each_row(
    ("finish", "parts", "stop_reason"),
    [
        ("content_filter", (Text("no"),), "refusal"),
        ("refusal", (Text("I can't.", is_refusal=True),), "refusal"),
        ("stop", (Call("c", "f", ""),), "tool_use"),
    ],
)
def test_reasons_to_finish_of_other_protocols(finish, parts, stop_reason):
    """A filter is a refusal; some servers write "stop" after calls of tools."""
    body = MESSAGES.write_reply(PLAIN, Reply("1", "m", parts, finish), CREATED)
    assert body["stop_reason"] == stop_reason
    assert len(body["content"]) == 1


def test_why_the_model_refused():
    """The explanation of a refusal is a refusal in words, whole and in a stream."""
    details = {"type": "refusal", "category": "bio", "explanation": "Not this."}
    ending = {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
    whole = MESSAGES.read_reply({**MESSAGE, "content": [], **ending})
    assert (whole.parts, whole.finish) == ((Text("Not this.", is_refusal=True),), "refusal")
    *_, said, end = read_stream(stream_of(server_events([], ending)))
    assert (said, end.finish) == (TextDelta("Not this.", is_refusal=True), "refusal")


@pytest.mark.parametrize("with_call", [True, False])
def test_an_answer_by_a_forced_tool(with_call):
    """The arguments of the tool for answers are the text of the answer."""
    answer = {"type": "tool_use", "id": "c1", "name": ANSWER_TOOL, "input": {"q": "a"}}
    blocks = [answer, {**answer, "id": "c2", "input": {}}]
    blocks += [{"type": "tool_use", "id": "c3", "name": "f", "input": {}}] if with_call else []
    finish = "tool_calls" if with_call else "stop"
    whole = MESSAGES.read_reply({**MESSAGE, "content": blocks, **ENDING})
    stream = reply_of(read_stream(stream_of(server_events(blocks))))
    assert (whole.text, whole.finish) == (stream.text, stream.finish) == ('{"q":"a"}{}', finish)


@each_row(
    "data",
    [
        {},
        {"content": "text"},
        {"content": [None]},
        {"content": [{}]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "thinking", "thinking": 1}]},
        {"content": [{"type": "tool_use", "id": "c", "name": "f", "input": "{}"}]},
        {"content": [{"type": "tool_use", "name": "f", "input": {}}]},
        {"content": [{"type": "text", "text": ""}] * 5000},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ],
)
def test_what_is_no_reply(data):
    """It is a 502."""
    with pytest.raises(GatewayError) as caught:
        MESSAGES.read_reply(data)
    assert caught.value.status == 502


BEGIN, STOP = [*server_events([])][0], {"type": "message_stop"}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
INPUT = {"type": "input_json_delta", "partial_json": "{}"}


@each_row(
    "events",
    [
        [],
        [BEGIN],
        [STOP],
        [BEGIN, ERROR],
        [BEGIN, {"type": "content_block_start", "index": 0}],
        [BEGIN, {"type": "content_block_delta", "index": 0, "delta": INPUT}],
        [
            BEGIN,
            {"type": "content_block_start", "index": 0, "content_block": BLOCKS[-1]},
            {"type": "content_block_delta", "index": 1, "delta": INPUT},
        ],
        [BEGIN, *[{"type": "content_block_start", "content_block": BLOCKS[2]}] * 5000],
    ],
)
def test_what_is_no_stream(events):
    """It is a 502, also if it breaks off."""
    with pytest.raises(GatewayError) as caught:
        read_stream(stream_of(events))
    assert caught.value.status == 502


ANYTHING = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([{}])


def objects(**fields):
    """Any object with some of these fields, each as it should be or not."""
    return st.fixed_dictionaries(
        {}, optional={name: ANYTHING | value for name, value in fields.items()}
    )


ANY_BLOCKS = objects(
    type=st.sampled_from(["text", "tool_use", "thinking", "redacted_thinking", "other"]),
    text=NAMES,
    thinking=NAMES,
    data=NAMES,
    id=NAMES,
    name=NAMES | st.just(ANSWER_TOOL),
    input=st.just({}),
)
EVENTS = objects(
    id=NAMES,
    error=objects(message=NAMES),
    usage=objects(input_tokens=st.integers(), output_tokens=st.integers()),
    type=st.sampled_from([each["type"] for each in server_events()]),
    message=objects(id=NAMES, usage=objects(input_tokens=st.integers())),
    index=st.integers(0, 1),
    content_block=ANY_BLOCKS,
    content=st.lists(ANY_BLOCKS, max_size=2),
    stop_reason=st.just("refusal"),
    stop_details=objects(explanation=NAMES),
    delta=objects(
        type=st.sampled_from(["text_delta", "input_json_delta", "thinking_delta", "other"]),
        text=NAMES,
        thinking=NAMES,
        partial_json=NAMES,
        stop_reason=NAMES,
    ),
)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(ANYTHING | EVENTS, max_size=4))
def test_any_stream_and_any_reply_is_read_or_refused(events):
    """Whatever a model sends is read, or is a 502; what is read can be written."""
    reader, writer = MESSAGES.stream_reader(), MESSAGES.stream_writer(SHOWN, CREATED)

    def feed(event):
        for each in reader.feed(b"data: " + dumps(event) + b"\n\n"):
            writer.write(each)

    steps = [lambda event=event: feed(event) for event in events]
    steps += [
        lambda event=event: dumps(MESSAGES.write_reply(SHOWN, MESSAGES.read_reply(event), CREATED))
        for event in events
        if isinstance(event, dict)
    ]
    for step in (*steps, lambda: list(reader.finish())):
        try:
            step()
        except GatewayError as error:
            assert error.status == 502


# ---- what a client reads


def client_of(reply, failure=None):
    """Return the SDK's client of a server that gives one reply."""

    def events(request):
        writer = MESSAGES.stream_writer(request, CREATED)
        yield writer.write(Begin(reply.id, reply.model))
        yield writer.keep_alive()
        yield writer.progress(Progress("grade", 1, 0.5, "a reason\n\ndata: in two lines"))
        if failure:
            yield writer.fail(failure)
        else:
            yield from map(writer.write, events_of(reply, OUTCOME))

    async def post(http_request):
        request = MESSAGES.read_request(json.loads(await http_request.body()))
        if request.is_stream:
            return StreamingResponse(events(request), media_type="text/event-stream")
        if failure:
            return JSONResponse(MESSAGES.error_body(failure), MESSAGES.error_status(failure))
        return JSONResponse(MESSAGES.write_reply(request, reply, CREATED, OUTCOME))

    app = Starlette(routes=[Route("/v1/messages", post, methods=["POST"])])
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    return vendors.AsyncAnthropic(
        api_key="x", base_url="http://gateway", http_client=transport, max_retries=0
    )


KNOWN, UNKNOWN = Tokens(20, 3, 5, 1, 2), Tokens()
SDK_REPLIES = [
    (Reply("t1", "tiny", (Text("A text." * 100),), tokens=KNOWN), "end_turn"),
    (Reply("t1", "tiny", (Text("cut"),), "length", KNOWN), "max_tokens"),
    (Reply("t1", "tiny", (Text("no", is_refusal=True),), "refusal", KNOWN), "refusal"),
    (Reply("t1", "tiny", (Text("a"),), "stop", KNOWN, stop_sequence="END"), "stop_sequence"),
    (
        Reply(
            "t1",
            "tiny",
            (Call("", "add", '{"a": 1}'), Call("own", "find", "")),
            "tool_calls",
            KNOWN,
        ),
        "tool_use",
    ),
    (
        Reply(
            "msg_1",
            "big",
            (
                Thinking("one", "s1"),
                Thinking("two", "s2"),
                Thinking("", "s3"),
                Thinking(redacted="x"),
                Text("So."),
                Other("server_tool_use", SEARCH),
                Call("c", "add", "{}"),
            ),
            "tool_calls",
            KNOWN,
        ),
        "tool_use",
    ),
    (Reply("t1", "tiny", (), tokens=UNKNOWN), "end_turn"),
]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(("reply", "stop_reason"), SDK_REPLIES)
@pytest.mark.parametrize("events", [True, False])
async def test_the_sdk_reads_the_same_of_a_stream(reply, stop_reason, events):
    """The SDK reads the same message of a stream as of a whole reply, with and without events of
    the refinement.
    """
    client = client_of(reply)
    question = dict(
        model="refine/fast",
        max_tokens=9,
        messages=[USER],
        extra_body={"redraft": {"events": events}},
    )
    whole = await client.messages.create(**question)
    async with client.messages.stream(**question) as stream:
        streamed = await stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == stop_reason
    assert whole.stop_sequence == streamed.stop_sequence == reply.stop_sequence
    assert whole.id == streamed.id == f"msg_{reply.id.removeprefix('msg_')}"
    assert [block.to_dict() for block in whole.content] == [
        {name: value for name, value in block.to_dict().items() if name != "parsed_output"}
        for block in streamed.content
    ]
    assert whole.usage.model_extra["redraft"] == whole.model_extra["redraft"] == OUTCOME
    if reply.tokens == KNOWN:
        vendors.Message.model_validate(whole.to_dict(exclude_unset=False), strict=True)
        usage = USAGE | {"input_tokens": 14}
        assert streamed.usage.to_dict() == usage
        assert whole.usage.to_dict() == usage | {"redraft": OUTCOME}
    else:
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (None, None)


@each_row(
    ("thinking", "part", "is_written"),
    [
        (None, Thinking("hm"), False),
        ({"type": "disabled"}, Thinking("hm"), False),
        ({"type": "adaptive", "display": "omitted"}, Thinking("hm"), False),
        ({"type": "adaptive"}, Thinking("hm"), True),
        ({"type": "enabled", "budget_tokens": 5}, Thinking("hm"), True),
        (None, Thinking("hm", "s"), True),
        ({"type": "adaptive", "display": "omitted"}, Thinking("", "s"), True),
        (None, Thinking(redacted="x"), True),
    ],
)
def test_thinking(thinking, part, is_written):
    """A client reads the thinking of any model if it asks for it; what a model signed is kept for
    the next turn of a loop in any case. A whole reply and a stream agree.
    """
    request = asked(thinking=thinking)
    reply = Reply("1", "m", (part, Text("So.")))
    body = MESSAGES.write_reply(request, reply, CREATED)
    assert plain(MESSAGES.read_reply(body)).parts == (part,) * is_written + (Text("So."),)
    stream = reply_of(read_stream(written_stream(request, reply)))
    assert stream.parts == (part,) * is_written + (Text("So."),)


def test_blocks_of_a_stream():
    """Blocks follow each other under indexes that count up, and each ends before the next one
    begins.
    """
    stream = written_stream(SHOWN, REPLY)
    events = [
        json.loads(line.removeprefix(b"data: "))
        for line in stream.splitlines()
        if line.startswith(b"data: ")
    ]
    kinds = [block["type"] for block in BLOCKS]
    begun = [each for each in events if each["type"] == "content_block_start"]
    assert [each["content_block"]["type"] for each in begun] == kinds
    places = [each["index"] for each in events if "index" in each]
    assert places == sorted(places)
    assert set(places) == set(range(len(kinds)))
    assert [each["type"] for each in events].count("content_block_stop") == len(kinds)
    assert events[0]["message"]["usage"] == USAGE | {"output_tokens": 1}
    assert events[-2]["usage"] == USAGE


def test_progress():
    """A step of the refinement is a comment in one line; a ping with the step if it is asked for,
    which clients ignore.
    """
    step = Progress("grade", 1, 0.5, "a reason")
    writer = MESSAGES.stream_writer(PLAIN, CREATED)
    assert writer.progress(step) == b": redraft grade iteration=1 score=0.5000\n\n"
    writer = MESSAGES.stream_writer(asked(redraft={"events": True}), CREATED)
    assert json.loads(writer.progress(step).partition(b"data: ")[2]) == {
        "type": "ping",
        "redraft": {"kind": "grade", "iteration": 1, "score": 0.5, "reason": "a reason"},
    }


ERRORS = [
    (400, 400, "invalid_request_error"),
    (401, 401, "authentication_error"),
    (402, 402, "billing_error"),
    (403, 403, "permission_error"),
    (404, 404, "not_found_error"),
    (413, 413, "request_too_large"),
    (422, 422, "invalid_request_error"),
    (429, 429, "rate_limit_error"),
    (500, 500, "api_error"),
    (502, 502, "api_error"),
    (503, 529, "overloaded_error"),
    (504, 504, "timeout_error"),
]


@pytest.mark.parametrize(("status", "expected", "kind"), ERRORS)
async def test_errors(status, expected, kind):
    """An error has Anthropic's status and type, as a reply and in a stream."""
    client = client_of(REPLY, GatewayError(status, "some_code", "It is so."))
    question = dict(model="refine/fast", max_tokens=9, messages=[USER])
    with pytest.raises(vendors.anthropic.APIStatusError, match="It is so") as caught:
        await client.messages.create(**question)
    assert caught.value.status_code == expected
    assert caught.value.body["error"]["type"] == kind
    with pytest.raises(vendors.anthropic.APIStatusError, match="It is so"):
        async with client.messages.stream(**question) as stream:
            await stream.get_final_message()


@each_row("arguments", ["[1", "[1]", "null", "{"])
def test_arguments_that_are_no_object(arguments):
    """A call of a tool whose arguments are no JSON object, which the protocol requires, is an error
    of the model.
    """
    with pytest.raises(GatewayError, match="no JSON object") as caught:
        MESSAGES.write_reply(PLAIN, Reply("1", "m", (Call("c", "add", arguments),)), CREATED)
    assert caught.value.status == 502
