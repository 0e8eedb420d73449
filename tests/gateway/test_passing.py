"""Requests that are passed on: with both SDKs to a real llama.cpp server, and to servers that
misbehave.
"""

import asyncio
import json
from contextlib import aclosing

import pytest
from fault_server import (
    chunk,
    completion,
    cut,
    error,
    good,
    http,
    send_and_close,
    silence,
    sse,
    then_silence,
)

import vendors
from redraft.errors import ConfigError
from redraft.gateway.exchange import GatewayError
from redraft.gateway.stream_usage import UsageRemover
from redraft.gateway.token_estimate import estimated_tokens

from .pass_app import app_of, http_client, pass_through, served

USER = [{"role": "user", "content": "hello"}]
KEY = "sk-canary-4711-0815"
WIRES = ("chat", "messages")
END = chunk(finish="stop")
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


def message(text="fine", **fields):
    """Return a reply in Anthropic's form."""
    usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
    content = [{"type": "text", "text": text}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": "end_turn",
    } | {
        "usage": usage,
        **fields,
    }


def base_url(plain_server):
    return plain_server.partition("#")[0]


def openai_client(app):
    return vendors.AsyncOpenAI(
        api_key="own", base_url="http://gateway/v1", http_client=http_client(app), max_retries=0
    )


def anthropic_client(app):
    return vendors.AsyncAnthropic(
        api_key="own", base_url="http://gateway", http_client=http_client(app), max_retries=0
    )


async def forward(url, wire="chat", kind="openai", body=None, **fields):
    """Pass a request on and return the reply with its bytes."""
    model = served(url, kind, **fields.pop("model", {}))
    reply = await pass_through(model, KEY=KEY).forward(
        model, wire, {"model": "pass/m", "messages": USER, "max_tokens": 5} | (body or {}), **fields
    )
    async with aclosing(reply):
        return reply, b"".join([part async for part in reply])


async def test_a_reply_with_a_byte_order_mark_is_passed_on_unchanged(faults):
    """Its usage is known; for a client of another protocol it is converted, without the mark."""
    content = b"\xef\xbb\xbf" + json.dumps(completion("hi")).encode()
    faults.says(http(content))
    reply, passed = await forward(faults.url)
    assert passed == content
    assert reply.usage.output_tokens == 3
    _, passed = await forward(faults.url, "messages")
    assert json.loads(passed)["content"] == [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_chat_client_and_a_real_server(plain_server, kind):
    """The OpenAI SDK gets an answer of a server of either protocol, whole and streamed, with the
    usage.
    """
    app = app_of(served(base_url(plain_server), kind))
    client = openai_client(app)
    whole = await client.chat.completions.create(model="pass/m", messages=USER, max_tokens=5)
    assert whole.choices[0].finish_reason in {"length", "stop"}
    assert whole.usage.completion_tokens <= 5
    assert app.state.replies[0].usage.input_tokens == whole.usage.prompt_tokens
    for options in (None, {"include_usage": True}):
        stream = await client.chat.completions.create(
            model="pass/m", messages=USER, max_tokens=5, stream=True, stream_options=options
        )
        chunks = [each async for each in stream]
        assert [each.usage.total_tokens for each in chunks if not each.choices] == (
            [app.state.replies[-1].usage.tokens] if options else []
        )
        assert sum(bool(each.choices and each.choices[0].finish_reason) for each in chunks) == 1
    assert all(reply.usage.output_tokens for reply in app.state.replies)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_anthropic_client_and_a_real_server(plain_server, kind):
    """The Anthropic SDK gets an answer of a server of either protocol, whole and streamed, and
    counts tokens.
    """
    app = app_of(served(base_url(plain_server), kind))
    client = anthropic_client(app)
    whole = await client.messages.create(
        model="pass/m", messages=USER, max_tokens=5, system="Be brief."
    )
    assert whole.stop_reason in {"max_tokens", "end_turn"}
    assert 0 < whole.usage.output_tokens <= 5
    async with client.messages.stream(model="pass/m", messages=USER, max_tokens=5) as stream:
        streamed = await stream.get_final_message()
    assert streamed.content[0].text
    assert streamed.usage.output_tokens == app.state.replies[-1].usage.output_tokens
    count = await client.messages.count_tokens(model="pass/m", messages=USER)
    assert count.input_tokens == app.state.replies[-1].usage.input_tokens


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_responses_and_a_real_server(plain_server, kind, is_native):
    """OpenAI's responses are answered by a server that has them, and by one that has only chat
    completions or messages.
    """
    model = served(base_url(plain_server), kind)
    app = app_of(model)
    if not is_native:
        app.state.passing.upstream(model).unknown_paths.add("/responses")
    client = openai_client(app)
    whole = await client.responses.create(model="pass/m", input="hello", max_output_tokens=5)
    assert whole.usage.total_tokens == app.state.replies[0].usage.tokens
    stream = await client.responses.create(
        model="pass/m", input="hello", max_output_tokens=5, stream=True
    )
    events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert events[-1].response.output_text == text
    assert app.state.replies[-1].usage.output_tokens == events[-1].response.usage.output_tokens


async def test_a_server_without_responses_is_asked_once(faults):
    """A server that does not know /v1/responses gets chat completions, from then on at once."""
    faults.says(http(b"not found", 404, "text/plain"), good("fine"))
    model = served(faults.url)
    passing = pass_through(model)
    for _ in range(2):
        reply = await passing.forward(model, "responses", {"model": "pass/m", "input": "hello"})
        body = json.loads(b"".join([part async for part in reply]))
        assert body["output"][0]["content"][0]["text"] == "fine"
    assert [request.path for request in faults.requests] == [
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/chat/completions",
    ]


async def test_only_the_name_of_the_model_is_changed(faults):
    """A request in the model's own protocol arrives as it was sent, and its reply as the model
    wrote it.
    """
    reply = completion("ü", x_private=[1.5, None])
    faults.says(http(reply))
    extra = {
        "top_k": 3,
        "messages": [{"role": "user", "content": "ü😀"}],
        "unknown": {"a": [True, None]},
    }
    forwarded, received = await forward(faults.url, body={**extra, "redraft": {"events": True}})
    assert json.loads(received) == reply
    assert faults.requests[0].body == {"model": "tiny", "max_tokens": 5, **extra}
    assert forwarded.headers == {"content-type": "application/json"}
    assert forwarded.usage.tokens == 10


async def test_headers_on_the_way_to_the_model(faults):
    """The model gets the gateway's key, and of the client's headers only those of Anthropic's
    protocol.
    """
    faults.says(http(message()))
    client = {
        "authorization": "Bearer mine",
        "x-api-key": "mine",
        "anthropic-beta": "b1",
        "cookie": "c",
        "x-forwarded-for": "1",
    }
    await forward(faults.url, "messages", "anthropic", headers=client, model={"key_env": "KEY"})
    faults.says(good())
    await forward(faults.url, headers=client, model={"key_env": "KEY"})
    to_anthropic, to_openai = (request.headers for request in faults.requests)
    assert (to_anthropic["x-api-key"], to_anthropic["anthropic-beta"]) == (KEY, "b1")
    assert to_openai["authorization"] == f"Bearer {KEY}"
    assert not {"cookie", "x-forwarded-for", "authorization"} & set(to_anthropic)
    assert not {"cookie", "x-forwarded-for", "x-api-key", "anthropic-beta"} & set(to_openai)


# status and body of the model; the gateway's status, code and whether the client may try again
REFUSALS = [
    (
        400,
        {"error": {"message": "no such parameter", "param": "top_k", "code": "unknown"}},
        400,
        "unknown",
        None,
    ),
    (
        404,
        {"error": {"message": "no model", "code": "model_not_found"}},
        404,
        "model_not_found",
        None,
    ),
    (413, {"error": "too large"}, 413, "request_too_large", None),
    (422, {"detail": "not so"}, 422, "unprocessable_request", None),
    (401, {"error": {"message": f"bad key {KEY}"}}, 502, "upstream_authentication", False),
    (
        400,
        {"error": {"message": "no", "param": f"p {KEY}", "code": f"code {KEY}"}},
        400,
        "invalid_request",
        None,
    ),
    (
        400,
        {"error": {"message": "no", "code": "a\r\nb: c", "type": "\u2028"}},
        400,
        "invalid_request",
        None,
    ),
    (403, {"error": "forbidden"}, 502, "upstream_authentication", False),
    (
        400,
        {"code": "invalid", "error": "Incorrect API key provided: na***ys."},
        502,
        "upstream_authentication",
        False,
    ),
    (
        403,
        {"code": "no permission", "error": "Content violates usage guidelines."},
        400,
        "content_filter",
        None,
    ),
    (402, {"error": "pay"}, 502, "upstream_quota", False),
    (
        429,
        {"error": {"message": "insufficient balance", "code": "1113"}},
        429,
        "upstream_quota",
        False,
    ),
    (400, {"error": {"message": "Your credit balance is too low"}}, 502, "upstream_quota", False),
    (429, {"error": {"message": "slow down"}}, 429, "upstream_rate_limit", None),
    (
        429,
        {"error": "Request too large on tokens per min: Limit 10, Requested 12."},
        400,
        "context_length_exceeded",
        None,
    ),
    (
        500,
        {"error": "the request exceeds the available context size"},
        400,
        "context_length_exceeded",
        None,
    ),
    (
        429,
        {"error": {"message": "pay", "code": "insufficient_quota"}},
        429,
        "upstream_quota",
        False,
    ),
    (408, {}, 504, "upstream_timeout", None),
    (418, {"error": "teapot"}, 400, "invalid_request", None),
    (500, {"error": "oops"}, 502, "upstream_error", None),
    (503, {"error": "loading"}, 503, "upstream_overloaded", None),
    (529, {"error": "overloaded"}, 503, "upstream_overloaded", None),
    (302, {}, 502, "upstream_redirect", None),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("status", "body", "expected", "code", "should_retry"), REFUSALS)
async def test_refusals(faults, status, body, expected, code, should_retry, is_stream):
    """A client can tell its own mistakes from those of the gateway and of the model; no error
    contains the key.
    """
    faults.says(http(body, status, Retry_After="7"))
    with pytest.raises(GatewayError) as caught:
        await forward(faults.url, body={"stream": is_stream}, model={"key_env": "KEY"})
    failure = caught.value
    assert (failure.status, failure.code, failure.should_retry) == (expected, code, should_retry)
    assert failure.retry_after == (
        7
        if code
        in {"upstream_rate_limit", "upstream_overloaded", "upstream_error", "upstream_timeout"}
        else None
    )
    assert "4711" not in f"{failure.message} {failure.param}"
    assert len(faults.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "answer",
    [
        http(b"<html>hi</html>", content_type="text/html"),
        http(b"null"),
        http([]),
        http({"error": {"message": "broken"}}),
        http(b'{"choices": ['),
        http({**completion(), "choices": []}),
        http({**completion(), "choices": [None]}),
        http(b""),
        cut(good(), 120),
        cut(good(), 60, reset=True),
    ],
)
async def test_no_answer(faults, wire, answer):
    """What is no answer becomes a 502, whatever the status that the model sent with it."""
    faults.says(answer)
    with pytest.raises(GatewayError) as caught:
        await forward(faults.url, wire)
    assert caught.value.status == 502
    assert "'m'" in caught.value.message


async def test_a_stream_that_is_none(faults):
    """A model that answers a request for a stream with a whole answer is reported."""
    faults.says(good())
    with pytest.raises(GatewayError, match="instead of a stream"):
        await forward(faults.url, body={"stream": True})


STREAM = sse(chunk("a "), chunk("b"), END, USAGE)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "answer",
    [
        send_and_close(sse(chunk("a "), done=False)),
        send_and_close(sse(done=False)),
        cut(sse(chunk("a "), chunk("b"), done=False), 190, reset=True),
        send_and_close(sse(chunk("a "), {"error": {"message": "out of memory"}}, done=False)),
    ],
)
async def test_a_stream_that_breaks_off(faults, wire, answer):
    """The client reads an error and no end of the stream, and the usage stays unknown."""
    faults.says(answer)
    _reply, received = await forward(faults.url, wire, body={"stream": True})
    assert b"[DONE]" not in received
    assert b"message_stop" not in received
    assert b'"error"' in received.rpartition(b"data:")[2]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "events",
    [[], [{**END, "choices": []}], [USAGE]],
    ids=["nothing", "empty choices", "only usage"],
)
async def test_a_stream_without_an_answer(faults, wire, events):
    """Its end would make it an empty answer, so the client reads an error instead; the usage stays
    unknown.
    """
    faults.says(send_and_close(sse(*events)))
    reply, received = await forward(faults.url, wire, body={"stream": True})
    assert (reply.failure.status, reply.failure.code, reply.usage) == (502, "upstream_error", None)
    assert b"[DONE]" not in received and b"message_stop" not in received
    assert b'"error"' in received.rpartition(b"data:")[2]


async def test_a_stream_of_messages_without_an_answer(faults):
    """The same for Anthropic's protocol."""
    faults.says(send_and_close(sse({"type": "ping"}, {"type": "message_stop"}, done=False)))
    reply, received = await forward(faults.url, "messages", "anthropic", {"stream": True})
    assert reply.failure.status == 502 and b"message_stop" not in received
    assert b'"error"' in received.rpartition(b"data:")[2]


GARBLED = [
    b"data: {not json\n\n",
    b"data: null\n\n",
    b"data: [1]\n\n",
    b"\xff\xfe\n\n",
    b"nonsense\n\n",
]


@pytest.mark.parametrize("garbled", GARBLED)
async def test_garbled_events(faults, garbled):
    """A client of the model's protocol reads them as the model sent them; one of another protocol,
    for whom nothing can be made of them, reads an error, except for lines that are no data.
    """
    body = sse(chunk("a "), END).partition(b"data: [DONE]")
    stream = body[0] + garbled + body[1] + body[2]
    faults.says(send_and_close(stream))
    reply, received = await forward(
        faults.url, body={"stream": True, "stream_options": {"include_usage": True}}
    )
    assert received == stream.partition(b"\r\n\r\n")[2] and reply.failure is None
    reply, received = await forward(faults.url, "messages", body={"stream": True})
    assert (b'"error"' in received.rpartition(b"data:")[2]) == garbled.startswith(b"data:")
    assert (b"message_stop" in received) == (not garbled.startswith(b"data:"))


async def test_a_stream_passes_byte_by_byte(faults):
    """A client that asks for the usage gets the stream as the model wrote it, and one that does not
    gets it without that chunk.
    """
    faults.says(send_and_close(STREAM))
    whole, received = await forward(
        faults.url, body={"stream": True, "stream_options": {"include_usage": True}}
    )
    assert received == STREAM.partition(b"\r\n\r\n")[2]
    bare, without = await forward(faults.url, body={"stream": True})
    assert b"usage" not in without
    assert without.replace(b"\n", b"") == sse(chunk("a "), chunk("b"), END).partition(b"\r\n\r\n")[
        2
    ].replace(b"\n", b"")
    assert whole.usage.tokens == bare.usage.tokens == 10
    assert [request.body["stream_options"] for request in faults.requests] == [
        {"include_usage": True}
    ] * 2


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_usage_is_removed_wherever_the_network_splits_the_stream(end):
    """The chunk with the usage is removed, and nothing else, for every place at which a stream may
    be split.
    """
    stream = STREAM.partition(b"\r\n\r\n")[2].replace(b"\n\n", end)
    expected = [
        line for line in stream.split(end[: len(end) // 2]) if line and b"usage" not in line
    ]
    for place in range(len(stream)):
        remover = UsageRemover()
        received = remover.feed(stream[:place]) + remover.feed(stream[place:]) + remover.finish()
        assert [line for line in received.split(end[: len(end) // 2]) if line] == expected


async def test_a_server_that_refuses_stream_options(faults):
    """A server that does not know `stream_options` is asked again without, and from then on never
    with.
    """
    faults.says(error(400, "Unrecognized argument: stream_options"), send_and_close(STREAM))
    model = served(faults.url)
    passing = pass_through(model)
    for _ in range(2):
        reply = await passing.forward(
            model, "chat", {"model": "pass/m", "messages": USER, "stream": True}
        )
        assert b"[DONE]" in b"".join([part async for part in reply])
    assert ["stream_options" in request.body for request in faults.requests] == [True, False, False]


async def test_the_key_does_not_come_back(faults):
    """A server that echoes the key in an answer does not give it to the client."""
    faults.says(good(f"your key is {KEY}"))
    _, received = await forward(faults.url, model={"key_env": "KEY"})
    faults.says(send_and_close(sse(chunk(f"key {KEY}"), END)))
    _, streamed = await forward(faults.url, body={"stream": True}, model={"key_env": "KEY"})
    assert KEY.encode() not in received + streamed


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("is_iterated", [True, False])
async def test_a_client_that_leaves_ends_the_work(faults, wire, is_iterated):
    """Closing a reply closes the connection to the model at once."""
    closed = asyncio.Event()

    async def endless(writer):
        head = sse(chunk("a "), done=False)
        try:
            while not writer.transport.is_closing():
                writer.write(head)
                head = b"data: " + json.dumps(chunk("a ")).encode() + b"\n\n"
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    faults.says(endless)
    model = served(faults.url)
    reply = await pass_through(model).forward(
        model, wire, {"model": "pass/m", "messages": USER, "max_tokens": 5, "stream": True}
    )
    if is_iterated:
        assert await anext(aiter(reply))
    await reply.aclose()
    async with asyncio.timeout(60):
        await closed.wait()
    assert reply.usage is None


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_early_ends_the_work(is_stream):
    """Cancelling a request whose reply has not begun closes the connection to the model at once."""
    received, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"}")
        received.set()
        while await reader.read(1000):
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        task = asyncio.create_task(forward(url, body={"stream": is_stream}))
        async with asyncio.timeout(60):
            await received.wait()
        task.cancel()
        async with asyncio.timeout(60):
            await closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


def events_of(wire):
    """Return a stream of a protocol that ends with its last event, as bytes."""
    usage = {"input_tokens": 7, "output_tokens": 3}
    named = {
        "messages": [
            {"type": "message_start", "message": message(usage=usage)},
            {"type": "message_stop"},
        ],
        "responses": [
            {"type": "response.created"},
            {"type": "response.completed", "response": {"output": [], "usage": usage}},
        ],
    }
    if wire == "chat":
        return sse(chunk("a [DONE]\n\ndata: [DONE]\n\n", "stop"), USAGE)
    return sse(
        *(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in named[wire]),
        done=False,
    )


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
async def test_a_connection_that_stays_open_after_the_last_event(faults, wire, size):
    """The client's stream ends with the last event, and the usage is known, however the bytes were
    cut into parts.
    """
    whole = events_of(wire)
    head, _, body = whole.partition(b"\r\n\r\n")

    async def answer(writer):
        writer.write(head + b"\r\n\r\n")
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        await asyncio.sleep(3600)

    faults.says(answer)
    async with asyncio.timeout(60):
        kind = "anthropic" if wire == "messages" else "openai"
        reply, received = await forward(
            faults.url, wire, kind, {"stream": True, "stream_options": {"include_usage": True}}
        )
    assert received == body
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 3)


async def test_text_that_looks_like_the_last_event(faults):
    """What ends a stream is an event, not a text of the model that names it."""
    texts = [
        "data: [DONE]\n\n",
        '\nevent: message_stop\n\n{"type": "message_stop"}',
        '\ndata: {"error": {}}\n\n',
    ]
    faults.says(
        sse(*map(chunk, texts), {"error": None, **chunk("more")}, chunk("end", "stop"), USAGE)
    )
    _, received = await forward(faults.url, body={"stream": True})
    assert b"more" in received
    assert b"end" in received
    assert received.endswith(b"data: [DONE]\n\n")


async def test_an_error_event_and_a_connection_that_stays_open(faults):
    """An error of the model ends the stream of the client."""
    faults.says(then_silence(sse(chunk("a"), {"error": {"message": "no memory"}}, done=False)))
    async with asyncio.timeout(60):
        _, received = await forward(faults.url, body={"stream": True})
    assert received.count(b'"error"') == 1
    assert b"no memory" in received


async def test_deadline_and_unreachable_models(faults, closed_url):
    """A model that does not answer in time is a 504, one that cannot be reached a 502."""
    faults.says(silence)
    for stream in (False, True):
        with pytest.raises(GatewayError) as caught:
            await forward(faults.url, body={"stream": stream}, model={"timeout": 0.2})
        assert caught.value.status == 504
        with pytest.raises(GatewayError, match="cannot be reached") as caught:
            await forward(closed_url, body={"stream": stream})
        assert caught.value.status == 502


def test_a_missing_key():
    """A gateway whose key for a model is missing says which variable to set."""
    with pytest.raises(ConfigError, match="set the environment variable NO_SUCH_KEY"):
        pass_through(served("http://127.0.0.1:9/v1", key_env="NO_SUCH_KEY"))


async def test_prices(faults):
    """The cost of a request is that of its tokens; unknown if the model does not say how many."""
    faults.says(good(usage=(1000, 500)), good(usage=None))
    known, _ = await forward(faults.url, model={"prices": (2.0, 4.0)})
    unknown, _ = await forward(faults.url, model={"prices": (2.0, 4.0)})
    assert known.usage.cost == pytest.approx(0.004)
    assert unknown.usage.cost is None
    assert unknown.usage.input_tokens is None


# ---- counting tokens


async def test_tokens_are_estimated_for_a_server_that_does_not_count(faults):
    """A server of OpenAI's protocol that cannot count tokens is asked once; then they are
    estimated.
    """
    faults.says(http(b"", 404))
    model = served(faults.url)
    passing = pass_through(model)
    body = {"model": "pass/m", "messages": USER}
    assert [await passing.count_tokens(model, body) for _ in range(2)] == [
        {"input_tokens": estimated_tokens(body)}
    ] * 2
    assert len(faults.requests) == 1
    with pytest.raises(GatewayError, match="messages is missing"):
        await passing.count_tokens(model, {"model": "pass/m"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a plain sentence of common words " * 20,
        "def f(x):\n    return [x ** 2 for x in y]\n" * 20,
        "你好，世界" * 50,
        "12345678 " * 50,
    ],
)
def test_the_estimate_is_not_too_low(text):
    """The estimate is at least what a tokenizer of a current model counts."""
    from bpe_openai import get_encoding

    count = len(get_encoding("o200k_base").encode(text))
    body = {
        "messages": [{"role": "user", "content": text}],
        "system": [{"type": "text", "text": "Be brief."}],
    }
    assert count <= estimated_tokens(body) <= 8 * count
