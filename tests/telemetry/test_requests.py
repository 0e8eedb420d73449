"""Requests to a server as spans: the ASGI middleware, called as a server calls it."""

import asyncio
from contextlib import aclosing

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import redraft
from redraft.gateway.exchange import GatewayError
from redraft.models import ScriptedModel
from redraft.protocols import Reply, Request
from redraft.telemetry import name_request, outgoing_headers, record_forwarded_call
from redraft.telemetry.attributes import call_target
from redraft.telemetry.requests import RequestSpans
from redraft.usage import Usage

from .conftest import configure

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def refine_app(scope, receive, send):
    await redraft.refine("Say hi", ScriptedModel(["hello there my friend"]), ["words:3-9"])
    await send(
        {"type": "http.response.start", "status": scope["state"].get("status", 200), "headers": []}
    )
    await send({"type": "http.response.body", "body": b"{}"})


async def request(app, path="/v1/chat/completions", method="POST", headers=(), **state):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": list(headers),
        "query_string": b"key=SECRET",
        "state": state,
    }
    await RequestSpans(app, routes={"/v1/chat/completions"}, ignored={"/healthz"})(
        scope, None, send
    )
    return sent


async def test_request_is_the_parent_of_its_refinement(memory):
    """The span of the request belongs to the client's trace, and the refinement to the request."""
    sent = await request(
        refine_app,
        headers=[(b"traceparent", TRACEPARENT.encode()), (b"authorization", b"Bearer SECRET")],
    )
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    span, root = memory.one("POST"), memory.one("invoke")
    assert (span.name, span.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert f"{span.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert root.parent.span_id == span.context.span_id
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/v1/chat/completions",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert "SECRET" not in memory.text


@pytest.mark.parametrize(
    ("status", "error"), [(400, None), (429, None), (500, "500"), (503, "503")]
)
async def test_status(memory, status, error):
    """Only the server's own errors are errors of its span."""
    await request(refine_app, status=status)
    span = memory.one("POST")
    assert (
        span.attributes["http.response.status_code"] == status
        and span.attributes.get("error.type") == error
    )
    assert (span.status.status_code is StatusCode.ERROR) is (error is not None)


async def test_names_of_unknown_paths_and_methods(memory):
    """A path that the server does not have is no part of the name, and a method that HTTP does not
    have has no name.
    """
    await request(refine_app, path="/" + "x" * 500, method="GET")
    await request(refine_app, path="/\ud800", method="HACK")
    assert [span.name for span in memory.spans if span.kind is SpanKind.SERVER] == ["GET", "_OTHER"]
    assert len(memory.one("GET").attributes["url.path"]) == 200


async def test_client_that_disconnects(memory):
    """A request that is cancelled ends its span with an error, and nothing stays current."""
    never = asyncio.Event()

    async def waits(scope, receive, send):
        await never.wait()

    task = asyncio.create_task(request(waits))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert memory.one("POST").attributes["error.type"] == "CancelledError"


async def test_ignored_paths_and_other_scopes(memory, monkeypatch):
    """Health checks and lifespans have no span; without OpenTelemetry nothing has."""
    called = []

    async def app(scope, receive, send):
        called.append(scope["type"])

    await request(app, path="/healthz")
    await RequestSpans(app)({"type": "lifespan"}, None, None)
    assert memory.spans == []
    configure(monkeypatch)
    await request(app)
    assert called == ["http", "lifespan", "http"]
    assert memory.spans == []


# ---- requests that are passed on


async def passed_parts(usage, error=None):
    """Pass a call on as a gateway does: in an asynchronous generator, which is suspended while the
    client reads.
    """
    target = call_target("tiny", "http://127.0.0.1:9/v1", "anthropic")
    with record_forwarded_call(target, lambda _: Request(())) as call:
        with call.as_current():
            sent = outgoing_headers({})
        yield sent.get("traceparent", "")
        if error:
            raise error
        call.reply = Reply("", usage)


async def test_call_that_is_passed_on(memory):
    """It is recorded like any other call, its span is sent to the server, and it is not current
    while the client reads.
    """
    parts = []
    async for part in passed_parts(Usage(1, 70, 3)):
        parts.append(part)
        assert not trace.get_current_span().get_span_context().is_valid
    span = memory.one("chat tiny")
    assert span.kind is SpanKind.CLIENT and f"{span.context.span_id:016x}" in parts[0]
    assert (
        span.attributes["gen_ai.provider.name"],
        span.attributes["gen_ai.usage.output_tokens"],
    ) == ("anthropic", 3)
    assert sum(point.sum for point in memory.metrics["gen_ai.client.token.usage"]) == 73


@pytest.mark.parametrize("end", ["error", "close"])
async def test_call_that_is_passed_on_and_fails(memory, end):
    """It has the cause of the error that the client gets; a client that goes away cancels it."""
    cause = "AuthenticationError"
    error = GatewayError(502, "upstream_authentication", "SECRETIVE message", cause=cause)
    async with aclosing(passed_parts(None, error)) as parts:
        await anext(parts)
        if end == "error":
            with pytest.raises(GatewayError):
                await anext(parts)
    assert memory.one("chat tiny").attributes["error.type"] == (
        cause if end == "error" else "CancelledError"
    )
    assert "SECRETIVE" not in memory.text


async def test_ids_of_a_request(memory, monkeypatch):
    """The span of a request has the ID under which it is stored, and its trace is told. Without
    OpenTelemetry that is the trace of the client.
    """
    told = []

    async def app(scope, receive, send):
        told.append(name_request("req-1", {"traceparent": TRACEPARENT}))

    await request(app)
    span = memory.one("POST")
    assert span.attributes["redraft.trace_id"] == "req-1"
    assert told == [f"{span.context.trace_id:032x}"]
    configure(monkeypatch)
    await request(app)
    assert told[1:] == [TRACEPARENT.split("-")[1]]
    assert name_request("req-2", {}) is None
    target = call_target("tiny")
    with record_forwarded_call(target, lambda _: Request(())) as call, call.as_current():
        assert outgoing_headers({"a": "b"}) == {"a": "b"}
