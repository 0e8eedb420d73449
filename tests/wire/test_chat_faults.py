"""Faults of an endpoint and their results: one table, then the cases that need more than a row."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from io import BytesIO
from time import process_time, thread_time

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from redraft import Judge, refine
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.middleware import EndpointCapabilities
from redraft.middleware.adapt import adapt
from redraft.models import Chat, Timeouts
from redraft.models.reasoning import VisibleText
from redraft.usage import Usage

from . import fault_server as fs

REFUSED = Usage(calls=1)
NOTHING = Usage()
UNKNOWN = Usage(calls=1, input_tokens=None, output_tokens=None, cost=None)
COUNTED = Usage(calls=1, input_tokens=7, output_tokens=3, cost=None)
HTML = b"<!DOCTYPE html><html><head><title>Bad Gateway</title></head><body>nginx</body></html>"
GOOD = fs.good()


async def gzip_bomb(writer):
    """Send 50 MB in 50 kB, which are made here: each process that runs tests reads this file."""
    writer.write(fs.gzip_stream(b'{"choices": "' + b" " * 50_000_000))


# name: (what the server does, error class, retryable, usage, words in the message)
TABLE = {
    "401": (fs.error(401, "bad key"), AuthenticationError, False, REFUSED, "status 401: bad key"),
    "402": (fs.error(402, "pay first"), AuthenticationError, False, REFUSED, "pay first"),
    "403": (fs.error(403, "not yours"), AuthenticationError, False, REFUSED, "not yours"),
    "quota": (
        fs.error(429, "quota", code="insufficient_quota"),
        AuthenticationError,
        False,
        REFUSED,
        "quota",
    ),
    "404": (fs.error(404, "no such model"), ModelUnavailableError, False, REFUSED, "no such model"),
    "400": (fs.error(400, "bad temperature"), ModelError, False, REFUSED, "bad temperature"),
    "422": (
        fs.http({"detail": [{"msg": "field required"}]}, 422),
        ModelError,
        False,
        REFUSED,
        "field required",
    ),
    "context code": (
        fs.error(400, "no", code="context_length_exceeded"),
        ContextLengthError,
        False,
        REFUSED,
        "400",
    ),
    "context type": (
        fs.error(400, "no", type="exceed_context_size_error"),
        ContextLengthError,
        False,
        REFUSED,
        "400",
    ),
    "context words": (
        fs.error(400, "This model's maximum context length is 8192 tokens."),
        ContextLengthError,
        False,
        REFUSED,
        "8192",
    ),
    "413": (fs.http(HTML, 413, "text/html"), ContextLengthError, False, REFUSED, "413"),
    "400 filter": (
        fs.error(400, "policy", code="content_filter"),
        ContentFilterError,
        False,
        REFUSED,
        "policy",
    ),
    "408": (fs.error(408), ModelTimeoutError, True, REFUSED, "408"),
    "409": (fs.error(409), ModelUnavailableError, True, REFUSED, "409"),
    "425": (fs.error(425), ModelUnavailableError, True, REFUSED, "425"),
    "429": (fs.error(429, "slow down"), RateLimitError, True, REFUSED, "slow down"),
    "500": (fs.error(500, "oops"), ModelUnavailableError, True, REFUSED, "oops"),
    "502 page": (
        fs.http(HTML, 502, "text/html"),
        ModelUnavailableError,
        True,
        REFUSED,
        "Bad Gateway nginx",
    ),
    "503 nothing": (fs.http(b"", 503), ModelUnavailableError, True, REFUSED, "503"),
    "529": (fs.error(529, "overloaded"), ModelUnavailableError, True, REFUSED, "overloaded"),
    "error of text": (
        fs.http({"error": "just text"}, 500),
        ModelUnavailableError,
        True,
        REFUSED,
        "just text",
    ),
    "error in a list": (
        fs.http([{"error": {"message": "x"}}], 400),
        ModelError,
        False,
        REFUSED,
        "400",
    ),
    "page": (fs.http(HTML, 200, "text/html"), BadResponseError, True, UNKNOWN, "web page"),
    "null": (fs.http(None), BadResponseError, True, UNKNOWN, "null"),
    "list": (fs.http([1]), BadResponseError, True, UNKNOWN, "a list"),
    "text": (fs.http("hello"), BadResponseError, True, UNKNOWN, "a text"),
    "error in 200": (
        fs.http({"error": {"message": "broken"}}),
        BadResponseError,
        True,
        UNKNOWN,
        "broken",
    ),
    "busy in 200": (
        fs.http({"error": {"message": "busy", "code": 503}}),
        BadResponseError,
        True,
        UNKNOWN,
        "busy",
    ),
    "no choices": (
        fs.http({"id": "x", "model": "y"}),
        BadResponseError,
        True,
        UNKNOWN,
        "id, model",
    ),
    "empty choices": (fs.http({"choices": []}), BadResponseError, True, UNKNOWN, "empty list"),
    "null choices": (
        fs.http({"choices": None}),
        BadResponseError,
        True,
        UNKNOWN,
        "null as choices",
    ),
    "odd choice": (fs.http({"choices": [7]}), BadResponseError, True, UNKNOWN, "without a message"),
    "no message": (
        fs.http({"choices": [{"text": "x"}]}),
        BadResponseError,
        True,
        UNKNOWN,
        "without a message",
    ),
    "number content": (fs.good(5), BadResponseError, True, COUNTED, "a number"),
    "object content": (fs.good({"a": 1}), BadResponseError, True, COUNTED, "an object"),
    "odd part": (fs.good([3]), BadResponseError, True, COUNTED, "a number in it"),
    "cut JSON": (fs.http(b'{"choices": [{"mess'), BadResponseError, True, UNKNOWN, "cut off"),
    "no JSON": (
        fs.http(b"fine, thanks", content_type="text/plain"),
        BadResponseError,
        True,
        UNKNOWN,
        "text/plain",
    ),
    "no body": (fs.http(b""), BadResponseError, True, UNKNOWN, "empty body"),
    "bad UTF-8": (
        fs.http(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
        BadResponseError,
        True,
        UNKNOWN,
        "UTF-8",
    ),
    "empty content": (fs.good(""), BadResponseError, True, COUNTED, "empty answer"),
    "blank content": (fs.good(" \n"), BadResponseError, True, COUNTED, "empty answer"),
    "null content": (fs.good(None), BadResponseError, True, COUNTED, "empty answer"),
    "no tool calls": (
        fs.good(None, "tool_calls", tool_calls=[]),
        BadResponseError,
        True,
        COUNTED,
        "empty answer",
    ),
    "odd tool calls": (
        fs.good("x", tool_calls=7),
        BadResponseError,
        True,
        COUNTED,
        "a number as tool calls",
    ),
    "odd tool call": (
        fs.good("x", tool_calls=["search"]),
        BadResponseError,
        True,
        COUNTED,
        "without a function",
    ),
    "odd tool": (
        fs.good("x", tool_calls=[{"type": "custom", "custom": {"name": "s", "input": "x"}}]),
        BadResponseError,
        True,
        COUNTED,
        "of the type 'custom'",
    ),
    "nameless tool": (
        fs.good("x", tool_calls=[{"function": {"arguments": "{}"}}]),
        BadResponseError,
        True,
        COUNTED,
        "the name",
    ),
    "odd arguments": (
        fs.good("x", tool_calls=[fs.call("search", "[1]")]),
        BadResponseError,
        True,
        COUNTED,
        "must be an object",
    ),
    "no arguments": (
        fs.good("x", tool_calls=[fs.call("search", "{q: 1}")]),
        BadResponseError,
        True,
        COUNTED,
        "no JSON",
    ),
    "NaN argument": (
        fs.good("x", tool_calls=[fs.call("search", '{"q": NaN}')]),
        BadResponseError,
        True,
        COUNTED,
        "no JSON",
    ),
    "cut arguments": (
        fs.good(None, "length", tool_calls=[fs.call("search", '{"q": "ra')]),
        BadResponseError,
        False,
        COUNTED,
        "raise `max_tokens`",
    ),
    "deep arguments": (
        fs.good("x", tool_calls=[fs.call("search", '{"q":' + "[" * 200 + "]" * 200 + "}")]),
        BadResponseError,
        True,
        COUNTED,
        "deep",
    ),
    "endless arguments": (
        fs.good("x", tool_calls=[fs.call("search", "[" * 100_000)]),
        BadResponseError,
        True,
        COUNTED,
        "no JSON",
    ),
    "many tool calls": (
        fs.good("x", tool_calls=[fs.call("search")] * 129),
        BadResponseError,
        True,
        COUNTED,
        "129 tool calls",
    ),
    "only thoughts": (
        fs.good("<think>hm</think>"),
        BadResponseError,
        True,
        COUNTED,
        "wrote only reasoning; turn its thinking off",
    ),
    "endless thought": (
        fs.good("<think>hm", "length"),
        BadResponseError,
        False,
        COUNTED,
        "raise `max_tokens`",
    ),
    "refusal": (
        fs.good(None, refusal="I will not."),
        ContentFilterError,
        False,
        COUNTED,
        "I will not.",
    ),
    "filtered": (
        fs.good("half", "content_filter"),
        ContentFilterError,
        False,
        COUNTED,
        "content filter",
    ),
    "redirect": (
        fs.http(b"", 307, Location="https://:k@elsewhere.example/v1?key=k"),
        ModelUnavailableError,
        False,
        REFUSED,
        "https://elsewhere.example/v1:",
    ),
    "reset at once": (fs.cut(GOOD, 0, reset=True), ModelUnavailableError, True, UNKNOWN, "broke"),
    "hung up at once": (fs.cut(GOOD, 0), ModelUnavailableError, True, UNKNOWN, "broke"),
    "reset in the body": (
        fs.cut(GOOD, len(GOOD) - 20, reset=True),
        ModelUnavailableError,
        True,
        UNKNOWN,
        "broke",
    ),
    "hung up in the body": (
        fs.cut(GOOD, len(GOOD) - 20),
        ModelUnavailableError,
        True,
        UNKNOWN,
        "broke",
    ),
    "not HTTP": (
        fs.send_and_close(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        BadResponseError,
        True,
        UNKNOWN,
        "not HTTP",
    ),
    "gzip bomb": (
        gzip_bomb,
        BadResponseError,
        False,
        UNKNOWN,
        "8 MiB",
    ),
    "huge body": (fs.http(b" " * 9_000_000), BadResponseError, False, UNKNOWN, "8 MiB"),
    "no gzip": (
        fs.http(b"plain", Content_Encoding="gzip"),
        BadResponseError,
        True,
        UNKNOWN,
        "unpacked",
    ),
    "cut gzip": (
        fs.http(gzip.compress(json.dumps(fs.completion()).encode())[:-12], Content_Encoding="gzip"),
        BadResponseError,
        True,
        UNKNOWN,
        "cut off",
    ),
    "odd encoding": (
        fs.http(b"x", Content_Encoding="br"),
        BadResponseError,
        False,
        UNKNOWN,
        "'br'",
    ),
}


@pytest.mark.parametrize("name", TABLE)
async def test_each_fault_has_its_error(faults, ask, name):
    """Each fault raises the right error, which knows whether to retry and what may have been
    billed.
    """
    does, kind, retryable, usage, words = TABLE[name]
    faults.says(does)
    with pytest.raises(ModelError) as caught:
        await Chat("some-model", faults.url, key="sk-canary").complete(ask())
    error = caught.value
    assert type(error) is kind
    assert (error.retryable, error.usage) == (retryable, usage)
    assert words in str(error)
    assert str(error).startswith(f"some-model at {faults.host}: ")
    assert len(faults.requests) == 1
    assert error.__cause__ is None


NOW = datetime.now(UTC)
WAITS = {
    "seconds": ({"Retry-After": "7"}, 7.0),
    "fraction": ({"Retry-After": "0.5"}, 0.5),
    "milliseconds": ({"Retry-After": "9", "retry-after-ms": "1500"}, 1.5),
    "date": ({"Retry-After": "IN AN HOUR"}, 3600.0),
    "huge": ({"Retry-After": "86400"}, 86400.0),
    "none": ({}, None),
    "negative": ({"Retry-After": "-3"}, None),
    "past date": ({"Retry-After": format_datetime(NOW - timedelta(seconds=60), usegmt=True)}, None),
    "garbage": ({"Retry-After": "soon"}, None),
    "nan": ({"Retry-After": "nan"}, None),
    "endless": ({"Retry-After": "inf"}, None),
    "bad milliseconds": ({"retry-after-ms": "x", "Retry-After": "2"}, 2.0),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("status", [429, 503])
async def test_each_form_of_retry_after(faults, ask, name, status):
    """Seconds, milliseconds and dates are understood, and nonsense is ignored."""
    headers, expected = WAITS[name]
    if name == "date":
        headers = {
            "Retry-After": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
        }
    faults.says(fs.error(status, "later", headers=headers))
    with pytest.raises(ModelError) as caught:
        await Chat("m", faults.url).complete(ask())
    assert caught.value.retry_after == pytest.approx(expected, abs=5 if name == "date" else 1e-6)


READABLE = {
    "plain": (fs.good("fine"), "fine", None),
    "leading space": (fs.good(" fine"), " fine", None),
    "parts": (
        fs.good([{"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}]),
        "fine",
        None,
    ),
    "thinking part": (
        fs.good(
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "fine"},
            ]
        ),
        "fine",
        "hm",
    ),
    "reasoning_content": (fs.good("fine", reasoning_content="hm"), "fine", "hm"),
    "reasoning": (fs.good("fine", reasoning="hm"), "fine", "hm"),
    "think block": (fs.good("<think>\nhm\n</think>\n\nfine"), "fine", "hm"),
    "think blocks": (fs.good("<think>a</think><think>b</think>fine"), "fine", "a\nb"),
    "think inside": (fs.good("fi<think>a</think>ne"), "fine", "a"),
    "think opened before": (fs.good("hm, so\n</think>\nfine"), "fine", "hm, so"),
    "think in code": (fs.good("write `<think>x</think>` so"), "write `<think>x</think>` so", None),
    "think in a fence": (fs.good("```\n<think>x</think>\n```"), "```\n<think>x</think>\n```", None),
    "think in a text of JSON": (
        fs.good('{"a": "<think>", "b": "</think>"}'),
        '{"a": "<think>", "b": "</think>"}',
        None,
    ),
    "think before JSON": (
        fs.good('<think>{"a": 1}</think>{"a": "<think>", "b": "</think>"}'),
        '{"a": "<think>", "b": "</think>"}',
        '{"a": 1}',
    ),
    "think in JSON after prose": (
        fs.good('So:\n{"a": "x\n<think>", "b": "</think>"}'),
        'So:\n{"a": "x\n<think>", "b": "</think>"}',
        None,
    ),
    "half a pair": (fs.good("fine \ud83d or \ude00"), "fine \ud83d or \ude00", None),
    "half a pair in a thought": (
        fs.good("fine", reasoning_content="hm \udc00"),
        "fine",
        "hm \udc00",
    ),
    "gzip": (fs.gzip_stream(json.dumps(fs.completion()).encode()), "fine", None),
    "refusal null": (fs.good("fine", refusal=None), "fine", None),
}


@pytest.mark.parametrize("name", READABLE)
async def test_answer_and_thinking_are_separated(faults, ask, name):
    """The text is the answer alone, and the thinking is a field of its own."""
    does, text, thought = READABLE[name]
    reply = await Chat("m", faults.says(does).url).complete(ask())
    assert (reply.text, reply.reasoning, reply.finish_reason) == (text, thought, "stop")


USAGES = {
    "missing": (fs.http({"choices": fs.completion()["choices"]}), None, None),
    "null": (fs.good(usage=None), None, None),
    "negative": (fs.good(usage=(-1, 3)), None, 3),
    "float": (fs.good(usage=(1.5, 3)), None, 3),
    "bool": (fs.good(usage=(7, True)), 7, None),
    "zero": (fs.good(usage=(0, 0)), 0, 0),
}


@pytest.mark.parametrize("name", USAGES)
async def test_invalid_usage_is_unknown(faults, ask, name):
    """Missing, negative and invalid token counts are None, never 0."""
    does, read, written = USAGES[name]
    reply = await Chat("m", faults.says(does).url).complete(ask())
    assert reply.usage == Usage(1, read, written, cost=None)


async def test_truncated_answer_is_an_answer(faults, ask):
    """An answer cut by max_tokens is returned and marked."""
    reply = await Chat("m", faults.says(fs.good("half of it", "length")).url).complete(ask())
    assert reply.truncated
    assert reply.text == "half of it"


STREAMS = {
    "nothing": (fs.sse(done=False), True, "was empty"),
    "only done": (fs.sse(), True, "was empty"),
    "no finish": (fs.sse(fs.chunk("half")), True, "without a finish_reason"),
    "cut event": (
        fs.sse(fs.chunk("half"), b'data: {"choices": [{"del', done=False),
        True,
        "cut off",
    ),
    "error object": (
        fs.sse(fs.chunk("half"), {"error": {"message": "burnt down"}}),
        True,
        "burnt down",
    ),
    "error event": (
        fs.sse(fs.chunk("half"), b'event: error\ndata: {"message": "burnt"}\n\n'),
        True,
        "burnt",
    ),
    "error line": (fs.sse(fs.chunk("half"), b'error: {"message": "burnt"}\n\n'), True, "burnt"),
    "final error": (fs.sse({"error": {"message": "bad", "code": 400}}), False, "bad"),
    "list": (fs.sse([1]), True, "a list in a stream"),
    "empty": (fs.sse(fs.chunk(""), fs.chunk(finish="stop")), True, "empty answer"),
    "one JSON error": (fs.http({"error": {"message": "no stream"}}), True, "no stream"),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_incomplete_stream_is_an_error(faults, ask, name):
    """A stream without its end or with an error in it never passes for a short answer."""
    does, retryable, words = STREAMS[name]
    faults.says(fs.send_and_close(does))
    with pytest.raises(BadResponseError, match=words) as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert caught.value.retryable is retryable
    assert caught.value.usage.output_tokens is None


async def test_stream_reset_is_an_error(faults, ask):
    """The parts before the reset are shown, and then the error is raised."""
    raw = fs.sse(fs.chunk("half "), fs.chunk("of it"), fs.chunk(finish="stop"))
    faults.says(
        fs.cut(
            raw.replace(b"Connection: close", b"Content-Length: 9999"), len(raw) - 90, reset=True
        )
    )
    seen = []
    with pytest.raises(ModelUnavailableError) as caught:
        async for piece in Chat("m", faults.url).stream(ask()):
            seen.append(piece)
    assert seen == ["half "]
    assert caught.value.retryable


async def test_stream_shows_text_without_thinking(faults, ask):
    """The parts are those of the answer, the Reply has the thinking, and the last event has the
    usage.
    """
    events = [
        fs.chunk(role="assistant"),
        fs.chunk("<thi"),
        fs.chunk("nk>h"),
        fs.chunk("m</think>\n"),
        fs.chunk("fi"),
    ]
    events += [
        b": keep alive\n\n",
        fs.chunk(reasoning_content="er"),
        fs.chunk("ne"),
        fs.chunk(finish="stop"),
    ]
    events += [{"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 9}}]
    faults.says(fs.send_and_close(fs.sse(*events)))
    *parts, reply = [piece async for piece in Chat("m", faults.url).stream(ask())]
    assert parts == ["fi", "ne"]
    assert (reply.text, reply.reasoning) == ("fine", "er\nhm")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (2, 9)
    assert faults.requests[0].body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    "text",
    [
        "half \ud83d a pair",
        "\ud83d",
        "\ude00\ud83d\ud83d",
        "whole \U0001f600 ones\U0001f600",
        "\ud83d\U0001f600",
    ],
)
async def test_split_surrogate_pair_is_joined(faults, ask, text):
    """Two escaped halves in separate events become one character, and other halves stay."""
    halves = text.encode("utf-16-be", "surrogatepass")
    events = [
        fs.chunk(halves[i : i + 2].decode("utf-16-be", "surrogatepass"))
        for i in range(0, len(halves), 2)
    ]
    faults.says(fs.send_and_close(fs.sse(*events, fs.chunk(finish="stop"))))
    *parts, reply = [piece async for piece in Chat("m", faults.url).stream(ask())]
    assert reply.text == text
    assert text.startswith("".join(parts))


@pytest.mark.parametrize("stream", [False, True])
async def test_lone_surrogates_cost_no_extra_call(faults, stream):
    """A draft, a verdict and a refinement with lone surrogates take four calls, and requests carry
    replacement characters.
    """

    def says(text):
        return (
            fs.send_and_close(fs.sse(*map(fs.chunk, text), fs.chunk(finish="stop")))
            if stream
            else fs.good(text)
        )

    def verdict(score):
        row = {"evidence": "it says \ud83d", "change": "no \udc00 please", "score": score}
        return says(
            json.dumps({"reason": "It is so.", "criteria": {"truth": row}, "done": score == 5})
        )

    faults.says(says("draft \ud83d"), verdict(2), says("better \ude00"), verdict(5))
    result = await refine(
        "task", Chat("m", faults.url, stream=stream), Judge({"truth": "It is true."})
    )
    assert result.value == "better \ude00"
    assert len(faults.requests) == result.usage.calls == 4
    assert [f[0].score for f in result.trace.feedback.values()] == [0.4, 1.0]
    assert "no \ufffd please" in faults.requests[2].body["messages"][-1]["content"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": NaN, "b": "\\ud83d"}',
        b"[" * 100_000 + b'"\\ud83d"',
        b'{"b": "\\ud83d"',
        b'{"b": "\\ud83d", "c": ' + b"9" * 5000 + b"}",
    ],
)
async def test_lone_surrogates_do_not_hide_other_errors(faults, ask, body):
    """Invalid, too deep and too long JSON remains a bad response."""
    with pytest.raises(BadResponseError):
        await Chat("m", faults.says(fs.http(body)).url).complete(ask())


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "<think>" + "x" * 400_000 + "</think> fine",
        " " * 400_000 + "fine",
        "<think></think> " * 25_000 + "fine",
    ],
)
def test_stream_is_read_in_linear_time(text):
    """Any division shows the same text, and thinking in many pieces is not searched again for
    each.
    """
    start = thread_time()
    visible = VisibleText()
    shown = "".join(map(visible.add, text)) + visible.flush()
    assert thread_time() - start < 5
    whole = VisibleText()
    assert shown == whole.add(text) + whole.flush() == ("fine" if "think" in text else text)


@given(st.text(alphabet="<>/think xy", max_size=40), st.integers(1, 5))
def test_division_of_a_stream_does_not_matter(text, size):
    """Tags may arrive in pieces."""
    text = text.replace("nk", "<think>").replace("hi", "</think>")
    whole, cut = VisibleText(), VisibleText()
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert "".join(map(cut.add, pieces)) + cut.flush() == whole.add(text) + whole.flush()


@pytest.mark.parametrize("tag", ["<script", "<", "<style>", "<script></style>"])
async def test_unclosed_tags_are_an_error(faults, ask, tag):
    """A page of them is an error at once."""
    start = thread_time()
    with pytest.raises(ModelUnavailableError):
        await Chat("m", faults.says(fs.http((tag * 4000).encode(), 502, "text/html")).url).complete(
            ask()
        )
    assert thread_time() - start < 1


async def test_complete_response_to_a_stream_request(faults, ask):
    """It gives one part and one Reply."""
    pieces = [piece async for piece in Chat("m", faults.says(fs.good()).url).stream(ask())]
    assert pieces[0] == pieces[1].text == "fine"


async def test_windows_line_ends_in_a_stream(faults, ask):
    """Events may end in CR LF."""
    raw = fs.sse(fs.chunk("fine"), fs.chunk(finish="stop")).replace(b"}\n\n", b"}\r\n\r\n")
    assert (
        await Chat("m", faults.says(fs.send_and_close(raw)).url, stream=True).complete(ask())
    ).text == "fine"


SLOW = {
    "silence": (fs.silence, Timeouts(total=0.3), False),
    "silence before the first byte": (fs.silence, Timeouts(first_byte=0.3), False),
    "drip": (fs.drip(GOOD, 0.05), Timeouts(total=0.4, idle=0.3), False),
    "stops in the body": (fs.then_silence(GOOD[:-20]), Timeouts(idle=0.3), False),
    "stops before the body": (
        fs.then_silence(GOOD.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"),
        Timeouts(first_byte=0.3),
        False,
    ),
    "stream stops": (
        fs.then_silence(fs.sse(fs.chunk("half"), done=False)),
        Timeouts(idle=0.3),
        True,
    ),
    "stream drips": (
        fs.drip(fs.sse(fs.chunk("half"), done=False), 0.01),
        Timeouts(total=0.5, idle=0.3),
        True,
    ),
}


@pytest.mark.parametrize("name", SLOW)
async def test_slow_servers_time_out(faults, ask, name):
    """Silence, pauses and drips raise ModelTimeoutError soon after their limit, and the call may
    have been billed.
    """
    does, timeouts, stream = SLOW[name]
    start = asyncio.get_running_loop().time()
    with pytest.raises(ModelTimeoutError) as caught:
        await Chat("m", faults.says(does).url, timeouts=timeouts, stream=stream).complete(ask())
    assert asyncio.get_running_loop().time() - start < 30
    assert caught.value.retryable
    assert caught.value.usage == UNKNOWN


async def test_connection_timeout_is_no_call(ask):
    """A connection that is not accepted in time raises a timeout."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        with pytest.raises(ModelTimeoutError, match="no connection") as caught:
            await Chat("m", url, timeouts=Timeouts(connect=0.3)).complete(ask())
    assert caught.value.usage == NOTHING


async def test_connection_failure_is_retryable_and_no_call(ask, closed_url):
    """It holds for a refused connection and an unknown host name."""
    for url in (closed_url, "http://no-such-host.invalid/v1"):
        with pytest.raises(ModelUnavailableError, match="cannot be reached") as caught:
            await Chat("m", url).complete(ask())
        assert caught.value.retryable
        assert caught.value.usage == NOTHING


async def _says_at_once(reader, writer):
    writer.write(b"HTTP/1.1 400 This is no TLS\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("certified", [False, True])
async def test_insecure_connection_stops_the_call(ask, certified):
    """Without TLS or with an invalid certificate nothing is sent, counted or retried, and the host
    is named.
    """
    context = None
    if certified:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with await asyncio.start_server(_says_at_once, "127.0.0.1", 0, ssl=context) as server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(
            ModelUnavailableError, match=rf"{host}: no secure \(TLS\) connection"
        ) as caught:
            await Chat("m", f"https://{host}/v1").complete(ask())
    assert not caught.value.retryable
    assert caught.value.usage == NOTHING


async def test_a_byte_order_mark_is_no_fault(faults, ask):
    """An answer, an error and a list of models that begin with one are read, so that no paid answer
    is asked for again.
    """
    mark = b"\xef\xbb\xbf"
    model = Chat("m", faults.url)
    faults.says(fs.http(mark + json.dumps(fs.completion("hi \ud83d")).encode()))
    assert (await model.complete(ask())).text.startswith("hi ")
    faults.says(
        fs.http(mark + b'{"error": {"message": "no such model", "code": "model_not_found"}}', 404)
    )
    with pytest.raises(ModelUnavailableError, match="status 404: no such model"):
        await model.complete(ask())
    faults.says(fs.http(mark + b'{"data": [{"id": "a"}]}'))
    assert await model.list_models() == ["a"]


async def test_request_follows_the_protocol(faults, ask):
    """Each setting has the protocol's name, and unset ones are not sent."""
    chat = Chat(
        "m",
        faults.says(GOOD).url,
        key="sk-canary",
        extra_body={"top_k": 3, "user": None},
        headers={"X-Team": "blue"},
    )
    await chat.complete(ask("hi"))
    await chat.complete(
        ask(
            "hi",
            temperature=0.5,
            max_tokens=9,
            seed=4,
            schema={"type": "object"},
            format="json_schema",
        )
    )
    await chat.complete(ask("hi", schema={"type": "object"}, format="json_object"))
    plain, full, loose = (sent.body for sent in faults.requests)
    message = [{"role": "user", "content": "hi"}]
    assert plain == {"model": "m", "messages": message, "top_k": 3}
    assert full == plain | {
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 4,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False},
        },
    }
    assert loose["response_format"] == {"type": "json_object"}
    sent = faults.requests[0]
    assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
    assert sent.headers["authorization"] == "Bearer sk-canary"
    assert sent.headers["x-team"] == "blue"


async def test_rejected_parameter_is_not_sent_again(faults, ask):
    """A model with another name for max_tokens, or without temperature, is recognised even by an
    error code alone.
    """
    wrong = [
        fs.error(400, "no", code="unsupported_parameter", param=name)
        for name in ("max_tokens", "temperature")
    ]
    chat = Chat("m", faults.says(*wrong, GOOD).url)
    asking = adapt(chat.complete, EndpointCapabilities().for_model(chat.identity))
    assert (await asking(ask(max_tokens=5, temperature=0.0))).text == "fine"
    assert (await asking(ask(max_tokens=5, temperature=0.0))).usage.calls == 1
    last = faults.requests[-1].body
    assert last["max_completion_tokens"] == 5
    assert not {"max_tokens", "temperature"} & set(last)


async def test_rejected_stream_options_are_not_sent_again(faults, ask):
    """A server may stream without accepting stream_options."""
    wrong = fs.error(400, "no", code="unsupported_parameter", param="stream_options")
    chat = Chat(
        "m",
        faults.says(
            wrong, fs.send_and_close(fs.sse(fs.chunk("fine"), fs.chunk(finish="stop")))
        ).url,
        stream=True,
    )
    asking = adapt(chat.complete, EndpointCapabilities().for_model(chat.identity))
    assert (await asking(ask())).usage.output_tokens is None
    assert "stream_options" not in faults.requests[-1].body


async def test_client_remembers_no_rejection(faults, ask):
    """The client itself sends every request as given; another layer adapts it."""
    chat = Chat(
        "m",
        faults.says(
            fs.error(400, "no", code="unsupported_parameter", param="response_format"), GOOD
        ).url,
    )
    request = ask(schema={"type": "object"}, format="json_schema")
    with pytest.raises(ModelError) as caught:
        await chat.complete(request)
    assert (caught.value.retryable, caught.value.status) == (False, 400)
    await chat.complete(request)
    assert "response_format" in faults.requests[-1].body


async def test_error_status_with_a_stream_body(faults, ask):
    """The status counts, whatever content type the body has."""
    faults.says(
        fs.error(
            429, "slow down", headers={"Content-Type": "text/event-stream", "Retry-After": "3"}
        )
    )
    with pytest.raises(RateLimitError, match="slow down") as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert caught.value.retry_after == 3


@pytest.mark.parametrize(
    "url", ["http://a..b/v1", "http://" + "a" * 70 + ".example/v1", "http:///v1", "box:8000/v1", ""]
)
def test_invalid_url_is_rejected(url):
    """The error comes at once."""
    with pytest.raises(ConfigError, match="(a base URL is|base_url must be)"):
        Chat("m", url)


def test_header_value_cannot_add_a_header():
    """A header's value with a line break is an error."""
    with pytest.raises(ConfigError, match="a header has characters"):
        Chat("m", headers={"X-Team": "blue\r\nX-Evil: 1"})


@pytest.mark.slow
async def test_many_thinking_blocks_are_read_in_linear_time(faults, ask):
    """Hundreds of thousands of blocks and unclosed blocks are read at once."""
    for content in ("<think></think>" * 200_000 + "fine", "fine " + "<think>" * 500_000):
        start = process_time()
        assert (await Chat("m", faults.says(fs.good(content)).url).complete(ask())).text.startswith(
            "fine"
        )
        assert process_time() - start < 30


async def test_surrogates_and_large_bodies_are_sent(faults, ask):
    """Lone surrogates become U+FFFD, pairs their character, and a body of megabytes is sent
    completely.
    """
    text = "a\ud800b\ud83d\ude00c" + "x" * 2_000_000
    assert (await Chat("m", faults.says(GOOD).url).complete(ask(text))).text == "fine"
    assert (
        faults.requests[0].body["messages"][0]["content"] == "a\ufffdb\U0001f600c" + "x" * 2_000_000
    )


async def test_unserializable_messages_are_rejected(faults, ask):
    """The caller gets the error before anything is sent."""
    with pytest.raises(ConfigError, match="JSON"):
        await Chat("m", faults.says(GOOD).url).complete(ask(BytesIO()))
    assert not faults.requests


async def test_control_characters_are_removed_from_errors(faults, ask):
    """Error messages contain no terminal sequences and stay short."""
    faults.says(fs.error(500, "\x1b[31mred\x1b[0m\r\nline\u202e " + "long " * 500))
    with pytest.raises(ModelUnavailableError) as caught:
        await Chat("m", faults.url).complete(ask())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


async def test_connections_are_reused(faults, ask):
    """Consecutive calls share a connection across all clients of a loop."""
    faults.says(GOOD)
    for name in ("a", "b", "a"):
        await Chat(name, faults.url).complete(ask())
    assert faults.connections == 1


@pytest.mark.slow
async def test_hundreds_of_concurrent_calls(faults, ask):
    """No pool limit delays calls."""
    waiting = asyncio.Barrier(300)

    async def together(writer):
        await waiting.wait()
        writer.write(GOOD)

    faults.says(together)
    replies = await asyncio.gather(*(Chat("m", faults.url).complete(ask()) for _ in range(300)))
    assert len(replies) == 300


async def test_proxies_only_when_configured(faults, ask, monkeypatch):
    """HTTP_PROXY is ignored without proxy="env", and a given proxy is used."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", f"http://{faults.host}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    faults.says(GOOD)
    await Chat("m", faults.url).complete(ask())
    assert faults.requests[-1].path == "/v1/chat/completions"
    for proxy in ("env", f"http://{faults.host}"):
        await Chat("m", "http://models.invalid/v1", proxy=proxy).complete(ask())
        assert faults.requests[-1].path == "http://models.invalid/v1/chat/completions"
