"""What a request leaves in memory once it has ended: nothing, also without a search for cycles of
objects.
"""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from chat_server import ChatServer, is_judging, verdict
from fault_server import FaultServer, call, chunk, completion, error, http, sse

from freed import no_collection, objects_in_cycles, objects_of
from redraft.base.sync import uvloop_factory
from redraft.gateway.client_exchange import ClientExchange
from redraft.gateway.config import (
    GatewayConfig,
    GatewayLimits,
    Profile,
    Retention,
    ServedModel,
)
from redraft.gateway.exchange import Answer
from redraft.gateway.neutral import Reply, Request
from redraft.gateway.passing import ForwardedReply
from redraft.gateway.prepared_requests import PreparedRequest
from redraft.gateway.profile_models import WriterModel
from redraft.gateway.request_store import RequestRecorder
from redraft.loop.trace import Trace
from redraft.models.http_client import HttpExchange
from redraft.session.refinement import Refinement
from redraft.session.reservations import Reservations
from redraft.session.session import Session

from .running import PROMPT, config_for, http_client, running
from .test_hostile import stored

OF_REQUESTS = (
    ClientExchange,
    Request,
    Reply,
    WriterModel,
    PreparedRequest,
    Refinement,
    Session,
    Reservations,
    Trace,
    Answer,
)
OF_REQUESTS += (RequestRecorder, ForwardedReply, HttpExchange)
KEY = "Idempotency-Key"
CHAT, MESSAGES, RESPONSES = "/chat/completions", "/messages", "/responses"
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "object", "required": ["a"]}},
}


def answer(request):
    """What the models say: each as its name says."""
    body = request.body
    stream, model = body.get("stream"), body["model"]
    if request.path.endswith(RESPONSES):
        return error(404)
    if model == "hangs":
        return b""
    if model == "fails":
        return error(500, "it failed")
    if model == "breaks":
        return whole(sse(chunk("half"), done=False))
    if model == "errs":
        return whole(sse(chunk("half"), {"error": {"message": "it broke"}}, done=False))
    if model == "mute":
        return http(completion(""))
    if model == "nonsense":
        return http(b"<html>")
    if body.get("tools") and body.get("tool_choice") != "none":
        return http(completion(None, "tool_calls", tool_calls=[call()]))
    if stream:
        return sse(
            chunk("fine"),
            chunk("", "stop"),
            {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
        )
    return http(completion(verdict(5) if is_judging(body["messages"]) else "fine"))


def whole(stream):
    """Return a response with a stream that ends without the connection."""
    return http(stream.partition(b"\r\n\r\n")[2], content_type="text/event-stream")


def chat(model, **fields):
    return CHAT, {"model": model, "messages": PROMPT, **fields}


KINDS = {
    "passed": (*chat("pass/good"), 200),
    "passed stream": (*chat("pass/good", stream=True), 200),
    "passed, converted": (
        MESSAGES,
        {"model": "pass/good", "messages": PROMPT, "max_tokens": 9},
        200,
    ),
    "passed stream, converted": (
        MESSAGES,
        {"model": "pass/good", "messages": PROMPT, "max_tokens": 9, "stream": True},
        200,
    ),
    "passed responses": (RESPONSES, {"model": "pass/good", "input": "Say it well."}, 200),
    "passed tools": (*chat("pass/good", tools=TOOLS), 200),
    "passed, the model fails": (*chat("pass/fails"), 502),
    "passed, the model sends nonsense": (*chat("pass/nonsense"), 502),
    "passed, no model": (*chat("pass/absent"), 502),
    "passed stream, no model": (*chat("pass/absent", stream=True), 502),
    "refined, no model": (*chat("refine/absent"), 502),
    "passed, no text": (*chat("pass/mute"), 200),
    "refined, no text": (*chat("refine/mute"), 502),
    "passed stream, the model fails": (*chat("pass/fails", stream=True), 502),
    "passed stream, it breaks off": (*chat("pass/breaks", stream=True), 200),
    "passed stream, it has an error": (*chat("pass/errs", stream=True), 200),
    "passed stream, nonsense": (*chat("pass/nonsense", stream=True), 502),
    "refined": (*chat("refine/good"), 200),
    "refined stream": (*chat("refine/good", stream=True), 200),
    "refined stream with events": (
        *chat("refine/good", stream=True, redraft={"events": True}),
        200,
    ),
    "refined messages": (
        MESSAGES,
        {"model": "refine/good", "messages": PROMPT, "max_tokens": 9},
        200,
    ),
    "refined responses stream": (
        RESPONSES,
        {"model": "refine/good", "input": "Say it well.", "stream": True},
        200,
    ),
    "refined tools": (*chat("refine/good", tools=TOOLS), 200),
    "refined, more than once": (*chat("refine/good", redraft={"requirements": ["words:3-9"]}), 200),
    "refined, a schema is not met": (*chat("refine/good", response_format=SCHEMA), 502),
    "refined, the model fails": (*chat("refine/fails"), 502),
    "refined stream, the model fails": (*chat("refine/fails", stream=True), 200),
    "refined, the judge fails": (*chat("refine/unjudged"), 200),
    "wrong field": (*chat("refine/good", n=5), 400),
    "wrong model": (*chat("refine/none"), 404),
    "no JSON": (CHAT, b"{", 400),
    "too long": (CHAT, b"x" * 2**17, 413),
    "too long, in parts": (CHAT, [b"x" * 2**16] * 2, 413),
    "client leaves": (*chat("pass/hangs"), None),
    "client leaves a stream": (*chat("pass/hangs", stream=True), None),
    "client leaves a refinement": (*chat("refine/hangs"), None),
    "client leaves a refined stream": (*chat("refine/hangs", stream=True), None),
    "client leaves a refined stream with events": (
        RESPONSES,
        {"model": "refine/hangs", "input": "x", "stream": True},
        None,
    ),
    "passed, the model fails, with a key": (*chat("pass/fails"), 502, "a"),
    "passed stream, it has an error, with a key": (*chat("pass/errs", stream=True), 200, "b"),
    "refined, the model fails, with a key": (*chat("refine/fails"), 502, "c"),
    "client leaves, with a key": (*chat("pass/hangs"), None, "d"),
    "client leaves a refined stream, with a key": (*chat("refine/hangs", stream=True), None, "e"),
}


def config_of(folder, url, level):
    models = {
        name: ServedModel(name, url, name)
        for name in ("good", "fails", "breaks", "errs", "nonsense", "mute", "hangs")
    }
    models["absent"] = ServedModel("absent", "http://127.0.0.1:1/v1", "absent")
    profiles = {
        "good": Profile("good", "good", settings={"max_iterations": 1, "retries": 0}),
        "fails": Profile("fails", "fails", settings={"retries": 0}),
        "hangs": Profile("hangs", "hangs"),
        "mute": Profile("mute", "mute", settings={"retries": 0}),
        "absent": Profile("absent", "absent", settings={"retries": 0}),
        "unjudged": Profile("unjudged", "good", "fails", settings={"retries": 0}),
    }
    kept = Retention(level)
    profiles = {name: replace(each, retention=kept) for name, each in profiles.items()}
    return GatewayConfig(
        folder,
        models,
        profiles,
        port=0,
        passed_retention=kept,
        limits=GatewayLimits(max_body=2**16),
    )


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def in_parts(body):
    for part in body:
        yield part


async def ask(client, url, server, kind):
    path, body, status, *key = kind
    raw = (
        json.dumps(body).encode()
        if isinstance(body, dict)
        else in_parts(body)
        if isinstance(body, list)
        else body
    )
    if status is None:
        host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
        before = len(server.requests)
        _, writer = await asyncio.open_connection(host, int(port))
        lines = [
            f"POST /v1{path} HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(raw)}",
            *(f"{KEY}: {each}" for each in key),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
        await until(lambda: len(server.requests) > before)
        writer.transport.abort()
    else:
        reply = await client.post(path, content=raw, headers={KEY: key[0]} if key else {})
        assert reply.status_code == status, reply.text


LOOPS = {"asyncio": None, "uvloop": uvloop_factory()}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["metadata", "full"])
@pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
def test_a_request_leaves_nothing(tmp_path, factory, level):
    """Nor do connections that stay open, and timers that are still running, keep anything of it."""

    async def run():
        async with FaultServer([answer]) as server:
            config = config_of(tmp_path, server.url, level)
            async with running(config) as (url, gateway), http_client(url) as client:
                left = {}
                with no_collection():
                    for name, kind in KINDS.items():
                        for _ in range(2):
                            await ask(client, url, server, kind)
                            await until(
                                lambda: not (gateway._exchanges or gateway.runs._in_progress)
                            )
                        await gateway.store.wait_for_commit()
                        await asyncio.sleep(0)
                        found = objects_of(*OF_REQUESTS), objects_in_cycles()
                        left |= {name: found} if any(found) else {}
                return left

    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(run())
        assert sorted(found) == [], found


# ---- large answers

LARGE = "word " * 1_500_000


@asynccontextmanager
async def slow_reader(url, body):
    """A client that has sent a request, and read the beginning of its reply and nothing more."""
    raw = json.dumps(body).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        % len(raw)
        + raw
    )
    try:
        await reader.readuntil(b"word word")
        yield writer
    finally:
        writer.transport.abort()


@pytest.fixture
def large_answers():
    server = ChatServer(lambda messages, n: LARGE)
    yield server
    server.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_reader_who_leaves(large_answers, tmp_path, stream):
    """A client that has not read a refined answer when it leaves did not get it: it counts as left,
    and frees what it held.
    """
    config = config_for(tmp_path, large_answers.model, graders=["words:1-"])
    async with running(config) as (url, gateway):
        async with slow_reader(url, {"model": "refine/fast", "messages": PROMPT, "stream": stream}):
            assert gateway.answers.held >= len(LARGE) and gateway.admission.active == 1
        await until(lambda: not gateway._exchanges)
        assert (gateway.answers.held, gateway.admission.active) == (0, 0)
        await gateway.store.wait_for_commit()
        assert stored(tmp_path) == [("cancelled", 499)]
        assert 'status="499"' in gateway.metrics.text()


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", ["pass/tiny", "refine/fast"])
async def test_answers_share_a_limit(large_answers, tmp_path, model):
    """While one answer is not read, another that does not fit beside it is refused; then it is
    given.
    """
    config = config_for(tmp_path, large_answers.model, graders=["words:1-"])
    config = replace(config, limits=GatewayLimits(max_answers=10**7))
    body = {"model": model, "messages": PROMPT}
    async with running(config) as (url, gateway), http_client(url) as client:
        async with slow_reader(url, {**body, "model": "refine/fast"}):
            refused = await client.post("/chat/completions", json=body)
            assert (
                refused.status_code,
                refused.json()["error"]["code"],
                refused.headers["retry-after"],
            ) == (
                503,
                "overloaded",
                "2",
            )
        await until(lambda: not gateway._exchanges)
        assert (await client.post("/chat/completions", json=body)).status_code == 200
        assert gateway.answers.held == 0
