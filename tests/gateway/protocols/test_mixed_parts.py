"""Streams of models in which parts are mixed: clients get them one after the other, as they would if
the model had sent them so.
"""

import json

import pytest
from fault_server import chunk
from hypothesis import given
from hypothesis import strategies as st

from redraft.gateway.exchange import GatewayError
from redraft.gateway.neutral import Call, CallBegin, CallDelta, End, TextDelta
from redraft.gateway.passing import StreamTranslator
from redraft.gateway.protocols.registry import CLIENTS, MODELS
from redraft.models.http_client import MAX_BODY_BYTES

NAMES = ("add", "find", "patch")
BODIES = {
    "chat": {
        "model": "pass/m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": name}} for name in NAMES[:2]]
        + [{"type": "custom", "custom": {"name": NAMES[2]}}],
    },
    "responses": {
        "model": "pass/m",
        "input": "hi",
        "tools": [{"type": "function", "name": name} for name in NAMES[:2]]
        + [{"type": "custom", "name": NAMES[2]}],
    },
    "messages": {
        "model": "pass/m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": name, "input_schema": {"type": "object"}} for name in NAMES],
    },
}


def sse(events):
    return b"".join(
        f"event: {each.get('type', 'message')}\ndata: {json.dumps(each)}\n\n".encode()
        for each in events
    )


def streamed(kind, events):
    """Return the events of the neutral form for those of a model."""
    reader = MODELS[kind].stream_reader()
    return [*(read for each in events for read in reader.feed(sse([each]))), *reader.finish()]


def written(kind, client, events):
    """Return the stream that a client gets for the events of a model."""
    request = CLIENTS[client].read_request(BODIES[client] | {"stream": True})
    writer = CLIENTS[client].stream_writer(request, 1_700_000_000)
    translator = StreamTranslator(MODELS[kind].stream_reader(), writer)
    return translator.feed(sse(events)) + translator.finish()


# ---- the parts of a model, each a list of events, in whose middle others may come


def chat_part(n, name, pieces):
    """A call of chat completions. A custom one has no JSON."""
    kind, key = ("custom", "input") if name == "patch" else ("function", "arguments")
    head = {"index": n, "id": f"c{n}", "type": kind, kind: {"name": name, key: ""}}
    rest = [{"index": n, kind: {key: piece}} for piece in pieces]
    return [chunk(tool_calls=[each]) for each in (head, *rest)]


def messages_part(n, name, pieces):
    block = {"type": "tool_use", "id": f"c{n}", "name": name, "input": {}}
    if name == "patch":  # no call: a text
        block = {"type": "text", "text": ""}
    kind, key = ("text_delta", "text") if name == "patch" else ("input_json_delta", "partial_json")
    rest = [
        {"type": "content_block_delta", "index": n, "delta": {"type": kind, key: piece}}
        for piece in pieces
    ]
    begin = {"type": "content_block_start", "index": n, "content_block": block}
    return [begin, *rest, {"type": "content_block_stop", "index": n}]


def chat_stream(events):
    first = {"id": "x", "created": 1, "model": "m", "choices": []}
    return [first, *events, chunk("", "tool_calls")]


def messages_stream(events):
    message = {"id": "x", "model": "m", "usage": {"input_tokens": 1}}
    ending = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    return [
        {"type": "message_start", "message": message},
        *events,
        ending,
        {"type": "message_stop"},
    ]


MODEL_STREAMS = {"chat": (chat_part, chat_stream), "messages": (messages_part, messages_stream)}


@st.composite
def mixtures(draw, kind):
    """Return the same parts one after the other, and mixed: each part in its order, the beginnings
    in the order of the parts.
    """
    part, stream = MODEL_STREAMS[kind]
    parts = []
    for n in range(draw(st.integers(2, 4))):
        arguments = draw(st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2))
        text = json.dumps(arguments, indent=draw(st.sampled_from([None, 1]))) + draw(
            st.sampled_from(["", " \n"])
        )
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        parts.append(part(n, draw(st.sampled_from(NAMES)), pieces))
    ordered = [event for each in parts for event in each]
    mixed, begun, left = [], 0, [list(each) for each in parts]
    while any(left):
        may = [n for n, each in enumerate(left) if each and n <= begun]
        n = draw(st.sampled_from(may))
        begun = max(begun, n + 1)
        mixed.append(left[n].pop(0))
    return stream(ordered), stream(mixed)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("kind", MODEL_STREAMS)
@given(data=st.data())
def test_any_mixture_of_the_same_calls_is_the_same_reply(kind, data):
    """However a model mixes the parts of its calls, each client gets the same whole calls."""
    ordered, mixed = data.draw(mixtures(kind))
    expected, got = streamed(kind, ordered), streamed(kind, mixed)
    assert calls_of(got) == calls_of(expected)
    assert got[-1] == expected[-1]
    for client in CLIENTS:
        assert whole_calls(client, written(kind, client, mixed)) == whole_calls(
            client, written(kind, client, ordered)
        )


def calls_of(events):
    """Return what events say, part by part; JSON without the space after it."""
    found = []
    for event in events:
        match event:
            case CallBegin(id, name):
                found.append(Call(id, name, ""))
            case CallDelta(text):
                last = found[-1]
                found[-1] = Call(last.id, last.name, last.arguments + text)
            case TextDelta(text):
                found.append(text)
    return [
        each if isinstance(each, str) else (each.id, each.name, each.arguments.strip())
        for each in joined(found)
    ]


def joined(found):
    out = []
    for each in found:
        if isinstance(each, str) and out and isinstance(out[-1], str):
            out[-1] += each
        else:
            out.append(each)
    return out


def whole_calls(client, stream):
    """Return the calls that a client assembles: name and arguments, in their order."""
    events = [
        json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: {")
    ]
    calls = {}
    for event in events:
        match event:
            case {"choices": [{"delta": {"tool_calls": parts}}]}:
                for part in parts:
                    tool = part.get("function") or part["custom"]
                    name, text = calls.get(part["index"], ("", ""))
                    text += tool.get("arguments", tool.get("input", ""))
                    calls[part["index"]] = (tool.get("name", name), text)
            case {
                "type": "response.output_item.done",
                "item": {"call_id": id, "name": name, **rest},
            }:
                calls[id] = (name, rest.get("arguments", rest.get("input")))
            case {"type": "content_block_start", "index": n, "content_block": {"name": name}}:
                calls[n] = (name, "")
            case {"type": "content_block_delta", "index": n, "delta": {"partial_json": text}}:
                calls[n] = (calls[n][0], calls[n][1] + text)
            case {"type": "error"} | {"error": _}:
                raise AssertionError(event)
    return [(name, text.strip()) for name, text in calls.values()]


def test_parts_that_are_not_mixed_go_on_at_once():
    """A call whose arguments are whole holds nothing back."""
    events = chat_stream([*chat_part(0, "add", ["{}"]), *chat_part(1, "find", ["{"])])
    reader = MODELS["chat"].stream_reader()
    seen = list(reader.feed(sse(events[:-1])))
    assert seen[-2:] == [CallBegin("c1", "find"), CallDelta("{")]


@pytest.mark.parametrize("kind", MODEL_STREAMS)
def test_what_waits_is_bounded(kind):
    """A model cannot fill the memory with parts that wait for the end of another."""
    part, stream = MODEL_STREAMS[kind]
    first = part(0, "add", ["{"])
    begin, more, *_ = part(1, "find", ["x" * 2**20])
    with pytest.raises(GatewayError, match="bytes") as caught:
        streamed(kind, stream([*first[:2], begin, *[more] * (MAX_BODY_BYTES // 2**20 + 1)]))
    assert caught.value.status == 502


def test_a_text_between_the_parts_of_a_call_follows_it():
    """What is said in the middle of a call comes after it."""
    begin, one, two = chat_part(0, "add", ["{", "}"])
    events = streamed("chat", chat_stream([begin, one, chunk("hm"), two]))
    assert events[1:] == [
        CallBegin("c0", "add"),
        CallDelta("{"),
        CallDelta("}"),
        TextDelta("hm"),
        End("tool_calls"),
    ]


def test_more_of_a_call_after_its_end():
    """Arguments that follow a whole JSON object are no arguments."""
    first, second = chat_part(0, "add", ["{}", "x"]), chat_part(1, "find", ["{}"])
    with pytest.raises(GatewayError, match="after its end"):
        streamed("chat", chat_stream([*first[:2], *second, first[2]]))


KINDS = {name: f"content_block_{name}" for name in ("start", "delta", "stop")}
COUNTS = {  # how a server counts blocks: the type and the index of an event to its index, or none
    "deltas have no index": lambda kind, n: None if kind == KINDS["delta"] else n,
    "starts have no index": lambda kind, n: None if kind == KINDS["start"] else n,
    "nothing has an index": lambda kind, n: None,
    "deltas count from 1": lambda kind, n: n + 1 if kind == KINDS["delta"] else n,
    "texts have no start": lambda kind, n: ... if kind == KINDS["start"] else n,
}


@pytest.mark.parametrize("count", COUNTS)
def test_texts_whose_blocks_are_counted_otherwise(count):
    """Nothing of a text is lost. The input of a call that did not begin is an error."""
    texts = [*messages_part(0, "patch", "ab"), *messages_part(1, "patch", "cd")]
    events = [
        {**each, "index": index}
        for each in texts
        if (index := COUNTS[count](each["type"], each["index"])) is not ...
    ]
    for first, rest in (([], events), (messages_part(9, "add", ["{}"]), events)):
        read = streamed("messages", messages_stream([*first, *rest]))
        said = [event.text for event in read if isinstance(event, TextDelta)]
        assert said == [*"abcd"] and isinstance(read[-1], End)
    with pytest.raises(GatewayError, match="not open"):
        streamed("messages", messages_stream([*events, messages_part(7, "add", ["{}"])[1]]))
