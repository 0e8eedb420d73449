"""OpenAI's chat completions: what the clients of OpenAI and LangChain read of replies and streams,
and what is read of models.
"""

import json
import warnings
from dataclasses import replace

import pytest
from fault_server import call, chunk, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import vendors
from each_row import each_row
from redraft.base.jsontext import dumps
from redraft.gateway.exchange import GatewayError, Progress
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
from redraft.gateway.protocols.streams import MAX_PARTS, comment

from .protocol_app import CREATED, OUTCOME, both_sides, client_of, stream_of

CHAT = both_sides("chat")
USER = {"role": "user", "content": "hi"}
FUNCTIONS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "find")
]
PATCH = {"type": "custom", "custom": {"name": "patch"}}
TEXT = '{"n": 5}' + " " * 600
ANSWER = Reply("chatcmpl-t1", "refine/fast", (Text(TEXT),), tokens=Tokens(20, 3, 5, None, 1))
CALLING = replace(
    ANSWER,
    parts=(Call("c1", "add", '{"a": 1}'), Call("c2", "find", '{"q": "x"}')),
    finish="tool_calls",
)


def read(**fields):
    return CHAT.read_request({"model": "refine/fast", "messages": [USER], **fields})


def data_of(stream):
    """Decode a stream as the client of OpenAI does: (name, data as text)."""
    return [(sse.event, sse.data) for sse in vendors.SSEDecoder().iter_bytes(iter([stream]))]


def chunks_of(stream):
    """Return the chunks of a stream that ended as it should."""
    *chunks, (_, last) = data_of(stream)
    assert last == "[DONE]"
    return [json.loads(data) for _, data in chunks]


def sse(*events, done=True):
    lines = [b"data: " + dumps(each) + b"\n\n" for each in events]
    return b"".join([*lines, b"data: [DONE]\n\n" * done])


def read_stream(*parts):
    reader = CHAT.stream_reader()
    return [each for part in parts for each in reader.feed(part)] + list(reader.finish())


def reply_of(events):
    """Return the reply that events are: neighbouring pieces of one kind are one part."""
    begin, *inner, end = events
    parts = []
    for each in inner:
        last = parts[-1] if parts else None
        match each:
            case TextDelta(text, is_refusal):
                if isinstance(last, Text) and last.is_refusal == is_refusal:
                    parts[-1] = Text(last.text + text, is_refusal)
                else:
                    parts.append(Text(text, is_refusal))
            case ThinkingDelta(text):
                if isinstance(last, Thinking):
                    parts[-1] = Thinking(last.text + text)
                else:
                    parts.append(Thinking(text))
            case CallBegin(id, name):
                parts.append(Call(id, name, ""))
            case CallDelta(arguments):
                assert isinstance(last, Call), "arguments belong to the call that began last"
                parts[-1] = replace(last, arguments=last.arguments + arguments)
    return Reply(begin.id, begin.model, tuple(parts), end.finish, end.tokens)


# ---- there and back

ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=300), max_size=2)
CALLS = st.builds(
    lambda name, arguments: (name, dumps(arguments).decode()),
    st.sampled_from(["add", "find"]),
    ARGUMENTS,
) | st.builds(
    lambda text: ("patch", dumps({"input": text}).decode()), st.text(min_size=1, max_size=600)
)
COUNTS = st.none() | st.integers(0, 500)


@st.composite
def replies(draw):
    """Replies as models of this protocol can give them."""
    texts = st.text(min_size=1, max_size=600)
    parts = [Thinking(draw(texts))] if draw(st.booleans()) else []
    parts += [Text(draw(texts))] if draw(st.booleans()) else []
    is_refused = draw(st.booleans())
    parts += [Text(draw(texts), is_refusal=True)] if is_refused else []
    calls = draw(st.lists(CALLS, max_size=3))
    parts += [Call(f"c{n}", *call) for n, call in enumerate(calls)]
    usual = "tool_calls" if calls else "stop"
    finish = "refusal" if is_refused else draw(st.sampled_from([usual, "length", "content_filter"]))
    known = Tokens(1000, draw(st.integers(0, 99)), draw(COUNTS), draw(COUNTS), draw(COUNTS))
    tokens = draw(st.sampled_from([known, Tokens()]))
    return Reply("chatcmpl-" + draw(st.text(max_size=9)), "tiny", tuple(parts), finish, tokens)


ASKED = dict(tools=[*FUNCTIONS, PATCH], stream=True, stream_options={"include_usage": True})


@given(replies(), st.sampled_from([None, OUTCOME]))
def test_replies_there_and_back(reply, outcome):
    """A reply that is written and read again is the same, whole and as a stream."""
    request = read(**ASKED)
    assert CHAT.read_reply(CHAT.write_reply(request, reply, CREATED, outcome)) == reply
    assert reply_of(read_stream(stream_of(CHAT, request, reply, outcome))) == reply


def delta_of(chunks, name):
    """Return the text of a field of all deltas; None if it has none."""
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    return "".join(delta.get(name) or "" for delta in deltas) or None


def functions_of(message):
    calls = message.tool_calls or ()
    return [(call.id, call.function.name, call.function.arguments) for call in calls]


@pytest.mark.slow
@given(replies(), st.sampled_from([None, OUTCOME]))
def test_openais_types_take_what_is_written(reply, outcome):
    """A whole reply and chunks are of OpenAI's types, and say the same to its client."""
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    request = read(**ASKED)
    body = CHAT.write_reply(request, reply, CREATED, outcome)
    whole = ChatCompletion.model_validate(body, strict=True)
    chunks = chunks_of(stream_of(CHAT, request, reply, outcome))
    if not any(call.name == "patch" for call in reply.calls):  # (its chunks have no such calls)
        state = ChatCompletionStreamState()
        for each in chunks:
            state.handle_chunk(ChatCompletionChunk.model_validate(each, strict=True))
        final = state.current_completion_snapshot  # (get_final_completion() raises for "length")
        for has, is_whole in zip(final.choices, whole.choices, strict=True):
            assert has.finish_reason == is_whole.finish_reason
            assert (has.message.content or "") == (is_whole.message.content or "")
            assert (has.message.refusal or "") == (is_whole.message.refusal or "")
            assert functions_of(has.message) == functions_of(is_whole.message)
        assert final.usage == whole.usage
    message = body["choices"][0]["message"]
    for name in ("content", "refusal", "reasoning_content"):
        assert delta_of(chunks, name) == (message.get(name) or None)
    for each in (body, *(each for each in chunks if each["choices"][:1] and "redraft" in each)):
        assert each.get("redraft") == outcome
    assert {(each["id"], each["model"]) for each in chunks} == {(body["id"], body["model"])}
    assert [each["usage"] for each in chunks if each["usage"]] == [body["usage"]] * bool(
        body["usage"]
    )


@given(st.text(max_size=1500), st.booleans(), st.booleans())
def test_a_stream_is_read_as_it_was_written(text, include_usage, events):
    """The client's own decoder finds the text, the progress and the usage, whatever characters
    they hold.
    """
    request = read(
        stream=True,
        redraft={"events": events},
        stream_options={"include_usage": include_usage},
    )
    writer = CHAT.stream_writer(request, CREATED)
    reply = replace(ANSWER, parts=(Text(text),))
    parts = [
        writer.write(Begin(reply.id, reply.model)),
        writer.write(Ping()),
        writer.progress(Progress(text, 1, 0.5, text)),
        writer.keep_alive(),
        *map(writer.write, events_of(reply, OUTCOME)),
    ]
    *read_events, (_, last) = data_of(b"".join(parts))
    assert last == "[DONE]"
    chunks = [json.loads(data) for _, data in read_events]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert (delta_of(chunks, "content") or "") == text
    assert [each["usage"]["total_tokens"] for each in chunks if each.get("usage")] == [
        23
    ] * include_usage
    named = [json.loads(data) for name, data in read_events if name]
    assert [each["redraft"]["reason"] for each in named] == ([text or None] if events else [])


@given(st.text())
def test_a_comment_is_one_line(text):
    """No character of a comment ends it."""
    assert data_of(comment(text) + b'data: {"a": 1}\n\n') == [(None, '{"a": 1}')]
    assert comment(text).decode().splitlines(keepends=True)[1:] == ["\n"]


# ---- written: details


def test_calls_of_custom_tools_are_written_as_such():
    """A custom tool of the client is called in its own form; what the model wrote instead of the
    argument is the input.
    """
    request = read(tools=[PATCH], stream=True)
    for arguments, text in (
        ('{"input": "a\\n"}', "a\n"),
        ("*** Begin", "*** Begin"),
        ('{"x": 1}', '{"x": 1}'),
        ("", ""),
    ):
        reply = replace(CALLING, parts=(Call("c", "patch", arguments),))
        message = CHAT.write_reply(request, reply, CREATED)["choices"][0]["message"]
        custom = {"name": "patch", "input": text}
        assert message["tool_calls"] == [{"id": "c", "type": "custom", "custom": custom}]
        chunks = chunks_of(stream_of(CHAT, request, reply))
        parts = [
            part for each in chunks for part in each["choices"][0]["delta"].get("tool_calls", ())
        ]
        assert parts[0]["id"] == "c"
        assert {part["index"] for part in parts} == {0}
        assert "".join(part["custom"]["input"] for part in parts) == text


def test_calls_without_ids_are_written_with_one():
    """The result of a call refers to it by its ID."""
    reply = replace(CALLING, parts=(Call("", "add", "{}"), Call("own", "find", "{}")))
    request = read(stream=True)
    whole = CHAT.write_reply(request, reply, CREATED)["choices"][0]["message"]["tool_calls"]
    assert [each["id"] for each in whole] == ["call_t1_0", "own"]
    streamed = reply_of(read_stream(stream_of(CHAT, request, reply))).calls
    assert [each.id for each in streamed] == ["call_t1_0", "own"]


def test_calls_without_arguments_are_written_with_none():
    """The arguments of a call are JSON, also those of one without any."""
    reply, request = replace(CALLING, parts=(Call("c", "add", ""),)), read(stream=True)
    whole = CHAT.read_reply(CHAT.write_reply(request, reply, CREATED))
    assert whole.calls == (Call("c", "add", "{}"),)
    assert reply_of(read_stream(stream_of(CHAT, request, reply))).calls == whole.calls


@each_row(
    ("parts", "finish", "expected"),
    [
        ((Text("no", is_refusal=True),), "refusal", "stop"),
        ((Text("no"),), "refusal", "content_filter"),
        ((), "content_filter", "content_filter"),
        ((Text("a"),), "length", "length"),
        ((Text("a"),), "tool_calls", "stop"),
    ],
)
def test_reasons_to_finish(parts, finish, expected):
    """A refusal in words has a field of its own; one without is what OpenAI calls a filter. No
    client is told of calls that there are not, as where a model of Anthropic pauses.
    """
    reply, request = replace(ANSWER, parts=parts, finish=finish), read(stream=True)
    choice = CHAT.write_reply(request, reply, CREATED)["choices"][0]
    assert choice["finish_reason"] == expected
    assert chunks_of(stream_of(CHAT, request, reply))[-1]["choices"][0]["finish_reason"] == expected


def test_unknown_usage_is_no_number():
    """Unknown tokens are left out; what the refinement consumed stands beside the answer."""
    request = read(stream=True, stream_options={"include_usage": True})
    reply = replace(ANSWER, tokens=Tokens(20, None))
    whole = CHAT.write_reply(request, reply, CREATED, OUTCOME)
    assert whole["usage"] is None
    assert whole["redraft"] == OUTCOME
    chunks = chunks_of(stream_of(CHAT, request, reply, OUTCOME))
    assert not any(each["usage"] for each in chunks)
    assert chunks[-1]["redraft"] == OUTCOME


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "insufficient_quota"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "server_error"),
    ],
)
def test_errors_have_openais_form(status, kind):
    """The status stays, and the type is OpenAI's."""
    error = GatewayError(status, "a_code", "a message", param="x")
    body = {"error": {"message": "a message", "type": kind, "param": "x", "code": "a_code"}}
    assert CHAT.error_status(error) == status
    assert CHAT.error_body(error) == body
    assert CHAT.error_event(error) == CHAT.stream_writer(read(), CREATED).fail(error)
    assert [json.loads(data) for _, data in data_of(CHAT.error_event(error))] == [body]


# ---- read: whole replies of real servers

SEARCH = Call("call_1", "search", "{}")


@each_row(
    ("data", "expected"),
    [
        (completion("a"), dict(parts=(Text("a"),), finish="stop", tokens=Tokens(7, 3))),
        (completion(None), dict(parts=())),
        (completion([{"type": "text", "text": "a"}]), dict(parts=(Text("a"),))),
        (
            completion([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]),
            dict(parts=(Thinking("hm"), Text("a"))),
        ),
        (completion("a", reasoning="hm"), dict(parts=(Thinking("hm"), Text("a")))),
        (completion("a", None), dict(finish="stop")),
        (completion("a", "MAX_TOKENS"), dict(finish="length")),
        (completion("a", "eos"), dict(finish="stop")),
        (
            completion(None, refusal="no"),
            dict(parts=(Text("no", is_refusal=True),), finish="refusal"),
        ),
        (
            {"choices": [{"finish_reason": "content_filter"}]},
            dict(parts=(), finish="content_filter", id="", model="", tokens=Tokens()),
        ),
        (
            completion(None, "stop", tool_calls=[call()]),
            dict(parts=(SEARCH,), finish="tool_calls"),
        ),
        (completion("a", "tool_calls"), dict(finish="stop")),
        (
            completion(None, "function_call", function_call={"name": "f", "arguments": "{}"}),
            dict(finish="tool_calls"),
        ),
        (
            completion(None, tool_calls=[{"id": "c", "function": {"name": "f"}}]),
            dict(parts=(Call("c", "f", "{}"),)),
        ),
        (
            completion(
                None,
                tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f", "input": "a\n"}}],
            ),
            dict(parts=(Call("c", "f", '{"input":"a\\n"}'),), finish="tool_calls"),
        ),
    ],
)
def test_whole_replies_are_read(data, expected):
    """What servers write in many ways is one form."""
    reply = CHAT.read_reply(data)
    assert {name: getattr(reply, name) for name in expected} == expected


@each_row(
    ("usage", "tokens"),
    [
        (None, Tokens()),
        ({"prompt_tokens": 7, "completion_tokens": -1}, Tokens(7)),
        (
            {
                "prompt_tokens": 7,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            Tokens(7, 3, 4, 2, 1),
        ),
        ({"prompt_tokens": 7, "prompt_cache_hit_tokens": 4}, Tokens(7, None, 4)),
        ({"prompt_tokens": 7, "cached_tokens": 4}, Tokens(7, None, 4)),
        (
            {
                "prompt_tokens": 7,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 3,
            },
            Tokens(7, None, 4, 3),
        ),
        ({"prompt_tokens": 3, "cached_tokens": 4}, Tokens(3)),
    ],
)
def test_tokens_are_read(usage, tokens):
    """The details of usage have several names; cached tokens are among those of the prompt."""
    assert CHAT.read_reply(completion() | {"usage": usage}).tokens == tokens


@each_row(
    ("data", "words"),
    [
        ({}, "without a message"),
        ({"choices": []}, "without a message"),
        ({"choices": [{"finish_reason": "stop"}]}, "without a message"),
        ({"error": {"message": "too hot"}}, "too hot"),
        (completion("a", "error"), "broke off"),
        (completion(5), "content"),
        (completion(None, tool_calls=[call(arguments="[1]")]), "arguments"),
        (completion(None, tool_calls=[call(arguments="{")]), "no JSON"),
        (completion(None, tool_calls=["x"]), "without a function"),
        (completion(None, tool_calls=[{"type": "custom", "custom": {"input": "a"}}]), "name"),
    ],
)
def test_what_is_no_answer_is_a_502(data, words):
    """A reply that cannot be used is an error that says why."""
    with pytest.raises(GatewayError, match=words) as caught:
        CHAT.read_reply(data)
    assert (caught.value.status, caught.value.code) == (502, "upstream_error")


# ---- read: streams of real servers

FIRST = {"id": "x", "model": "tiny", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
LAST = chunk(finish="tool_calls")


def part(index=0, id=None, name=None, arguments=None, **more):
    """Return a part of a call as in a delta; None: without the field."""
    function = {"name": name, "arguments": arguments}
    fields = {"index": index, "id": id, **more}
    fields["function"] = {key: value for key, value in function.items() if value is not None}
    return {key: value for key, value in fields.items() if value is not None}


def called(*parts):
    return chunk(tool_calls=list(parts))


BOTH = (Call("a", "add", '{"a": 1}'), Call("b", "find", "{}"))


@each_row(
    ("chunks", "parts"),
    [
        ([chunk("a"), chunk("b"), chunk(finish="stop")], [Text("ab")]),
        ([chunk("a\ud83d"), chunk("\ude42b", "stop")], [Text("a\U0001f642b")]),
        ([chunk("a\ud83d"), chunk("", "stop")], [Text("a\ud83d")]),
        ([chunk(reasoning="h"), chunk(reasoning="m"), chunk("a", "stop")], "thought"),
        ([chunk(refusal="n"), chunk(refusal="o", finish="stop")], [Text("no", is_refusal=True)]),
        (
            [called(part(0, "a", "add", "")), called(part(0, arguments='{"a"'))]
            + [called(part(0, arguments=": 1}")), called(part(1, "b", "find", "{}")), LAST],
            BOTH,
        ),
        ([called(part(0, "a", "add", '{"a": 1}'), part(1, "b", "find", "{}")), LAST], BOTH),
        (  # the last part says nothing, after a text
            [called(part(0, "a", "add", '{"a": 1}')), chunk("x"), called(part(0, arguments=""))]
            + [LAST],
            [BOTH[0], Text("x")],
        ),
        (  # every call has the number 0
            [called(part(0, "a", "add", '{"a": 1}')), called(part(0, "b", "find", "{}")), LAST],
            BOTH,
        ),
        (  # no call has a number
            [called(part(None, "a", "add", '{"a"')), called(part(None, arguments=": 1}"))]
            + [called(part(None, "b", "find", "{}")), LAST],
            BOTH,
        ),
        (  # arguments as an object
            [called(part(0, "a", "add", {"a": 1})), called(part(1, "b", "find", "{}")), LAST],
            [Call("a", "add", '{"a":1}'), BOTH[1]],
        ),
        (
            [called(part(0, "a", "add")), LAST],  # no arguments at all
            [Call("a", "add", "")],
        ),
        (
            [called({"index": 0, "id": "a", "type": "custom", "custom": {"name": "p"}})]
            + [called({"index": 0, "custom": {"input": 'x"'}})]
            + [called({"index": 0, "custom": {"input": "\ny"}}), LAST],
            [Call("a", "p", '{"input":"x\\"\\ny"}')],
        ),
        (
            [called({"index": 0, "id": "a", "type": "custom", "custom": {"name": "p"}})]
            + [called(part(1, "b", "find", "{}")), LAST],
            [Call("a", "p", '{"input":""}'), BOTH[1]],
        ),
    ],
)
def test_streams_are_read(chunks, parts):
    """What servers stream in many ways is one form, also without `[DONE]` and with the usage in a
    chunk of its own.
    """
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    expected = [Thinking("hm"), Text("a")] if parts == "thought" else list(parts)
    groq = {"choices": [], "x_groq": {"usage": usage["usage"]}}
    for events in (
        sse(FIRST, *chunks, usage),
        sse(FIRST, *chunks, usage, done=False),
        sse(FIRST, *chunks, groq),
    ):
        reply = reply_of(read_stream(events))
        assert list(reply.parts) == expected
        assert (reply.id, reply.model, reply.tokens) == ("x", "tiny", Tokens(7, 3))
        has_calls = any(isinstance(each, Call) for each in expected)
        finish = "tool_calls" if has_calls else "stop"
        refused = any(isinstance(each, Text) and each.is_refusal for each in expected)
        assert reply.finish == ("refusal" if refused else finish)


@each_row(
    "chunks",
    [
        [
            chunk(function_call={"name": "f", "arguments": ""}),
            chunk(function_call=dict(arguments="{}")),
        ],
        [called(part(0, None, "f", "{}"))],
        [called(part(0, "", "f", "{}"))],
        [called(part(0, "x" * 300, "f", "{}"))],
    ],
)
def test_calls_without_ids_get_one(chunks):
    """A result refers to its call: one without a usable ID gets one, the same for the same
    stream.
    """
    stream = sse(FIRST, *chunks, LAST)
    (made,) = reply_of(read_stream(stream)).parts
    assert (made.name, made.arguments) == ("f", "{}")
    assert made.id.startswith("call_")
    assert reply_of(read_stream(stream)).parts == (made,)
    other = sse(FIRST | {"id": "y"}, *chunks, LAST)
    assert reply_of(read_stream(other)).parts != (made,)


def test_a_repeated_id_is_replaced():
    """Two calls of one stream never have the same ID."""
    stream = sse(FIRST, called(part(0, "a", "f", "{}")), called(part(1, "a", "f", "{}")), LAST)
    first, second = reply_of(read_stream(stream)).parts
    assert first.id == "a" != second.id


@each_row(
    ("chunks", "words"),
    [
        ([chunk("a")], "without a finish_reason"),
        ([], "without a finish_reason"),
        ([chunk("a"), {"error": {"message": "too hot"}}], "too hot"),
        ([chunk("a"), chunk(finish="error")], "broke off"),
        ([chunk("a"), 5], "a number"),
        ([called(part(0, "a")), chunk("x", "stop")], "without the name"),
        ([called(part(0, "a")), LAST], "without the name"),
        ([called(5)], "tool call"),
        ([chunk("a") if n % 2 else chunk(reasoning="b") for n in range(MAX_PARTS + 1)], "parts"),
        ([called(part(n, f"c{n}", "f", "{}")) for n in range(MAX_PARTS)], "tool calls"),
    ],
)
def test_broken_streams_are_502s(chunks, words):
    """A stream that breaks off or fails is an error that says why."""
    with pytest.raises(GatewayError, match=words) as caught:
        read_stream(sse(FIRST, *chunks))
    assert caught.value.status == 502


@pytest.mark.parametrize(
    "stream",
    [
        b'event: error\ndata: {"message": "too hot"}\n\n',
        b'data: {"object": "error", "message": "too hot"}\n\n',
        b'{"error": {"message": "too hot"}}\n\n',
    ],
)
def test_errors_in_streams_have_many_forms(stream):
    """An error is recognised however a server writes it."""
    with pytest.raises(GatewayError, match="too hot"):
        read_stream(sse(FIRST, chunk("a"), done=False) + stream)


def test_arguments_are_bounded():
    """A model cannot fill the memory with the arguments of calls."""
    reader = CHAT.stream_reader()
    assert list(reader.feed(sse(FIRST, called(part(0, "a", "f", "")), done=False)))
    more = sse(called(part(0, arguments="x" * 2**20)), done=False)
    with pytest.raises(GatewayError, match="bytes"):
        for _ in range(20):
            list(reader.feed(more))


CALL_CHUNKS = [
    FIRST,
    chunk(reasoning_content="hm"),
    chunk("I look. 🙂"),
    called(part(0, "a", "add", "")),
    called(part(0, arguments='{"q": ')),
    called(part(0, arguments='"é"}')),
    called(part(1, "b", "find", "{}")),
    LAST,
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
]


def test_streams_are_the_same_wherever_the_network_splits_them():
    """A stream is read as the same events for every place at which it may be split."""
    stream = sse(*CALL_CHUNKS)
    expected = read_stream(stream)
    assert isinstance(expected[0], Begin)
    assert expected[-1] == End("tool_calls", Tokens(7, 3))
    for place in range(0, len(stream), 3):
        assert read_stream(stream[:place], stream[place:]) == expected


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


NAMES = st.text(min_size=1, max_size=20)
FUNCTIONS_OF_MODELS = objects(name=NAMES, arguments=st.text(max_size=5) | st.just({}))
CUSTOM_OF_MODELS = objects(name=NAMES, input=st.text(max_size=5))
CALL_PARTS = st.lists(
    objects(
        index=st.integers(0, 1),
        id=st.sampled_from(["a", "b"]),
        type=st.sampled_from(["function", "custom"]),
        function=FUNCTIONS_OF_MODELS,
        custom=CUSTOM_OF_MODELS,
    ),
    max_size=2,
)
DELTAS = objects(
    content=NAMES | st.just([{"type": "text", "text": "x"}]),
    tool_calls=CALL_PARTS,
    function_call=FUNCTIONS_OF_MODELS,
    refusal=NAMES,
    reasoning_content=NAMES,
)
CHOICES = st.lists(
    objects(delta=DELTAS, message=DELTAS, finish_reason=st.sampled_from(["stop", "length"])),
    max_size=1,
)
EVENTS = objects(
    id=NAMES,
    model=NAMES,
    error=objects(message=NAMES),
    choices=CHOICES,
    usage=objects(prompt_tokens=st.integers(), prompt_tokens_details=ANYTHING),
)


@settings(max_examples=3 * settings.default.max_examples)
@given(events=st.lists(ANYTHING | EVENTS, max_size=4))
def test_any_stream_and_any_reply_is_read_or_refused(events):
    """Whatever a model sends is a reply that can be written, or a 502."""
    request = read(**ASKED)
    try:
        made = read_stream(sse(*events))
    except GatewayError as error:
        assert error.status == 502
    else:
        assert isinstance(made[0], Begin)
        assert isinstance(made[-1], End)
        chunks_of(stream_of(CHAT, request, reply_of(made)))
    for event in events:
        if isinstance(event, dict):
            try:
                reply = CHAT.read_reply(event)
            except GatewayError as error:
                assert error.status == 502
            else:
                json.dumps(CHAT.write_reply(request, reply, CREATED))


# ---- the clients themselves


class Number(BaseModel):
    n: int


def openai_of(http):
    return vendors.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
    )


PATH = "/v1/chat/completions"


@pytest.mark.parametrize("events", [False, True])
async def test_openai_reads_answers(events):
    """The client of OpenAI reads a text, parsed values and usage, streamed and not."""
    async with client_of(CHAT, PATH, ANSWER) as http:
        client = openai_of(http)
        more = {
            "model": "refine/fast",
            "messages": [USER],
            "extra_body": {"redraft": {"events": events}},
        }
        whole = await client.chat.completions.create(**more)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (TEXT, "stop")
        assert whole.usage.redraft == whole.redraft == OUTCOME
        assert whole.usage.prompt_tokens_details.cached_tokens == 5
        assert whole.usage.completion_tokens_details.reasoning_tokens == 1
        parsed = await client.chat.completions.parse(**more, response_format=Number)
        assert parsed.choices[0].message.parsed == Number(n=5)
        stream = await client.chat.completions.create(
            **more, stream=True, stream_options={"include_usage": True}
        )
        chunks = [each async for each in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
        assert chunks[-1].usage.total_tokens == 23
        progress = [c.redraft["score"] for c in chunks if not c.choices and not c.usage]
        assert progress == [0.5] * events


async def test_openai_reads_calls():
    """The client of OpenAI reads calls of tools, streamed and not."""
    async with client_of(CHAT, PATH, CALLING) as http:
        asked = dict(model="refine/fast", messages=[USER], tools=FUNCTIONS)
        whole = await openai_of(http).chat.completions.create(**asked)
        async with openai_of(http).chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
        for reply in (whole, final):
            calls = reply.choices[0].message.tool_calls
            assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
                ("c1", "add", '{"a": 1}'),
                ("c2", "find", '{"q": "x"}'),
            ]


async def test_openai_raises_errors():
    """An error before the answer is one of its status; one in a stream is raised while it is
    read.
    """
    failure = GatewayError(502, "upstream_error", "the model is out of service")
    async with client_of(CHAT, PATH, ANSWER, failure) as http:
        create = openai_of(http).chat.completions.create
        with pytest.raises(vendors.openai.BadRequestError, match="pass/NAME") as caught:
            await create(model="refine/fast", messages=[USER], n=2)
        assert (caught.value.param, caught.value.code) == ("n", "invalid_request")
        with pytest.raises(vendors.openai.APIError, match="out of service") as failed:
            _ = [each async for each in await create(model="m", messages=[USER], stream=True)]
        assert failed.value.code == "upstream_error"


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("events", [False, True])
async def test_langchain_reads_answers(events):
    """LangChain reads texts, tool calls and usage, also beside progress events."""

    def model_of(http):
        return vendors.ChatOpenAI(
            model="refine/fast",
            base_url="http://gateway/v1",
            api_key="k",
            http_async_client=http,
            stream_usage=True,
            extra_body={"redraft": {"events": events}},
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with client_of(CHAT, PATH, ANSWER) as http:
            assert (await model_of(http).ainvoke("hi")).content == TEXT
            chunks = [each async for each in model_of(http).astream("hi")]
            assert "".join(each.content for each in chunks) == TEXT
            counts = [each.usage_metadata["total_tokens"] for each in chunks if each.usage_metadata]
            assert sum(counts) == 23
        async with client_of(CHAT, PATH, CALLING) as http:
            called = await model_of(http).bind_tools(FUNCTIONS).ainvoke("hi")
            assert [each["name"] for each in called.tool_calls] == ["add", "find"]
