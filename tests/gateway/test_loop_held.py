"""How long one request with a large body, where an operator allows such, holds the event loop, by
the CPU time of its thread.
"""

import asyncio
import gc
import http.client
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from redraft.gateway.config import GatewayLimits, Retention
from redraft.gateway.keys import KeyLimits, KeyRing

from .running import config_for, running

MIB = 2**20
# times as long as Python reads the JSON of 62,000 messages; what grows with their square takes more
MOST = 10
COMPLETION = {
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}


class Model(BaseHTTPRequestHandler):
    """Answers every request with a few words."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        left = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, MIB)))
        body = json.dumps(COMPLETION).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def model():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1#tiny"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def reading_time():
    """The CPU time in which Python reads the JSON of a large body on this machine, at best."""
    raw, times = json.dumps(BODIES["small messages in turn"]()), []
    for _ in range(3):
        began = time.thread_time()
        json.loads(raw)
        times.append(time.thread_time() - began)
    return min(times)


@contextmanager
def longest_turns():
    """Measure the CPU time of each callback of the loop; yields a list that has the longest ones
    and what they ran.
    """
    found, run = [], asyncio.Handle._run

    def run_measured(handle):
        began = time.thread_time()
        try:
            return run(handle)
        finally:
            found.append((time.thread_time() - began, repr(handle)[:300]))
            found[:] = sorted(found, reverse=True)[:5]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", run_measured)
        yield found


def text_of(size):
    return "It is said that the river, in spring, carries more than it should. " * (size // 67)


def message(content, role="user", **fields):
    return {"role": role, "content": content, **fields}


def image(base64):
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64}"}}


def calling(n):
    function = {"name": "search", "arguments": text_of(300)}
    return message(
        None,
        "assistant",
        tool_calls=[{"id": f"call-{n}", "type": "function", "function": function}],
    )


BODIES = {  # the messages of each
    "one text": lambda: [message(text_of(31 * MIB))],
    "messages of one role": lambda: [message(text_of(12_000)) for _ in range(2600)],
    "small messages of one role": lambda: [message(text_of(500)) for _ in range(62_000)],
    "small messages in turn": lambda: [
        message(text_of(500), ("user", "assistant")[n % 2]) for n in range(62_001)
    ],
    "parts": lambda: [message([{"type": "text", "text": text_of(500)} for _ in range(60_000)])],
    "an image": lambda: [
        message([{"type": "text", "text": "What is it?"}, image("iVBORw0K" * 4_000_000)])
    ],
    "images": lambda: [
        message([{"type": "text", "text": "What are they?"}, *[image("iVBORw0K" * 10_000)] * 390])
    ],
    "tool calls": lambda: (
        [message("Go on.")]
        + [
            each
            for n in range(9_000)
            for each in (calling(n), message(text_of(2950), "tool", tool_call_id=f"call-{n}"))
        ]
    ),
}


def ask(port, body, key):
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "idempotency-key": "one",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name", ["pass/tiny", "refine/fast"])
async def test_a_large_body_does_not_hold_the_loop(model, reading_time, tmp_path, name, make):
    """Whatever the gateway does with it: reading, checking, hashing, storing, and sending it on."""
    with KeyRing(tmp_path) as ring:
        # whose requests are searched for what costs money
        _, key = ring.add("one", KeyLimits(usd_per_day=10**6))
    config = config_for(tmp_path, model, graders=["words:1-"], retention=Retention("full"))
    config = replace(
        config, limits=GatewayLimits(max_body=32 * MIB), passed_retention=Retention("full")
    )
    raw = json.dumps({"model": name, "messages": make(), "max_tokens": 9}).encode()
    assert 27 * MIB < len(raw) <= 32 * MIB
    gc.collect()
    gc.freeze()  # as `redraft serve` does: the objects of other tests are none of the gateway's
    async with running(config) as (url, gateway):
        with longest_turns() as turns:
            port = int(url.removesuffix("/v1").rpartition(":")[2])
            status, reply = await asyncio.to_thread(ask, port, raw, key)
            await gateway.store.wait_for_commit()
    gc.unfreeze()
    assert status == 200, reply
    assert turns[0][0] < MOST * reading_time, (reading_time, turns)
