"""Streams whose client has read the last event and closes the connection: they are complete,
whatever the model or the client does.
"""

import asyncio
import json
from dataclasses import replace

import pytest
from fault_server import chunk, error

from redraft.gateway import passing
from redraft.gateway.config import Retention
from redraft.gateway.keys import KeyLimits, KeyRing

from .running import PROMPT, config_for, running

TEXT = "a text of the model"
USAGE = {"input_tokens": 7, "output_tokens": 3}
COST = (7 * 1.0 + 3 * 2.0) / 1e6
LAST_EVENT = {
    "chat": b"data: [DONE]\n\n",
    "responses": b'"type":"response.completed"',
    "messages": b'"type":"message_stop"',
}
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


def stream_of(wire):
    """Return the events of a model that speaks a protocol."""
    if wire == "chat":
        usage = {
            "choices": [],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        events = [chunk(TEXT), chunk(finish="stop"), usage]
        return (
            b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
            + b"data: [DONE]\n\n"
        )
    head = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": USAGE,
    }
    named = {
        "messages": [
            {"type": "message_start", "message": head},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": TEXT},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": USAGE},
            {"type": "message_stop"},
        ],
        "responses": [
            {"type": "response.output_text.delta", "delta": TEXT},
            {"type": "response.completed", "response": {"output": [], "usage": USAGE}},
        ],
    }
    return b"".join(
        f"event: {each['type']}\ndata: {json.dumps(each, separators=(',', ':'))}\n\n".encode()
        for each in named[wire]
    )


def streaming(wire, gap):
    """Send a stream of a protocol, and the end of its body so many seconds later."""

    async def answer(writer):
        body = stream_of(wire)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + f"{len(body):x}\r\n".encode() + body + b"\r\n")
        await writer.drain()
        await asyncio.sleep(gap)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


async def read_and_leave(url, path, body, key="none", **headers):
    """Read a stream up to its last event and close the connection at once, as the clients of the
    vendors do.
    """
    wire = next(name for name, each in PATHS.items() if each == path)
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    fields = {
        "host": host,
        "authorization": f"Bearer {key}",
        "content-length": len(content),
        **headers,
    }
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    writer.write(f"POST /v1{path} HTTP/1.1\r\n{head}\r\n".encode() + content)
    received = b""
    while not received.partition(LAST_EVENT[wire])[1]:
        part = await reader.read(65536)
        assert part, received
        received += part
    writer.transport.abort()
    return received


def body_of(wire, model):
    asked = {"input": "hello"} if wire == "responses" else {"messages": PROMPT, "max_tokens": 50}
    return {"model": model, "stream": True, **asked}


SPOKEN = {  # by the client, by the model
    "chat": ("chat", "chat"),
    "responses": ("responses", "responses"),
    "messages": ("messages", "messages"),
    "messages over chat": ("messages", "chat"),
    "responses over chat": ("responses", "chat"),
    "chat over messages": ("chat", "messages"),
    "responses over messages": ("responses", "messages"),
}


@pytest.mark.slow(but_each=14)
@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k1"}], ids=["", "with a key"])
@pytest.mark.parametrize("gap", [0, 0.002, 0.1, 3600])
@pytest.mark.parametrize(("client", "model"), SPOKEN.values(), ids=SPOKEN)
async def test_a_passed_stream_is_complete_with_its_last_event(
    faults, tmp_path, monkeypatch, client, model, gap, headers
):
    """Its outcome, usage and texts are recorded and its cost is charged, though the model ends the
    body later or never.
    """
    # so that a wait for the end of the body is noticed
    monkeypatch.setattr(passing, "END_SECONDS", 1800.0)
    refusals = [error(404, "no such path")] if (client, model) == ("responses", "chat") else []
    faults.says(*refusals, streaming(model, gap))
    config = config_for(tmp_path, faults.url)
    served = replace(config.models["tiny"], kind="anthropic" if model == "messages" else "openai")
    config = replace(config, models={"tiny": served}, passed_retention=Retention("full"))
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=10.0))
    async with running(config) as (url, gateway), asyncio.timeout(60):
        reply = await read_and_leave(
            url, PATHS[client], body_of(client, "pass/tiny"), secret, **headers
        )
        await gateway.admission.wait_until_idle()
        trace_id = reply.partition(b"x-redraft-trace-id: ")[2].partition(b"\r\n")[0].decode()
        stored = gateway.store.find(trace_id)
        with KeyRing(tmp_path) as ring:
            spending = ring.spending("day", key)
    facts = stored.facts
    assert (facts.outcome, facts.status, facts.error) == ("answered", 200, "")
    assert (facts.input_tokens, facts.output_tokens, facts.cost) == (7, 3, pytest.approx(COST))
    assert TEXT in stored.trace.best.text
    assert (spending.spent, spending.reserved) == (round(COST * 1e9), 0)


@pytest.mark.parametrize("wire", PATHS)
async def test_a_refined_stream_is_complete_with_its_last_event(faults, tmp_path, wire):
    """The request was answered, and its usage is known."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    reply = {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        ],
        "usage": usage,
    }
    body = json.dumps(reply).encode()
    faults.says(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )
    async with (
        running(config_for(tmp_path, faults.url, graders=["words:1-9"])) as (url, gateway),
        asyncio.timeout(60),
    ):
        received = await read_and_leave(url, PATHS[wire], body_of(wire, "refine/fast"))
        await gateway.admission.wait_until_idle()
        trace_id = received.partition(b"x-redraft-trace-id: ")[2].partition(b"\r\n")[0].decode()
        facts = gateway.store.find(trace_id).facts
    assert (facts.outcome, facts.status, facts.input_tokens, facts.cost) == (
        "answered",
        200,
        7,
        pytest.approx(COST),
    )
