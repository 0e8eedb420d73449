"""Clients and models that mean harm, or are broken: what they send, and what they never read."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress

import httpx2
import pytest
from chat_server import ChatServer
from fault_server import completion, http

from redraft.gateway import connections
from redraft.gateway.config import Profile
from redraft.gateway.exchange import GatewayError
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.neutral import Request, Text, Turn
from redraft.gateway.protocols.registry import CLIENTS
from redraft.gateway.request_options import request_settings
from redraft.gateway.routing import ASSUMED_OUTPUT_TOKENS, Routing

from .running import PROMPT, config_for, http_client, running

PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
ASKED = {
    "chat": {"messages": PROMPT},
    "responses": {"input": "Say it well."},
    "messages": {"messages": PROMPT, "max_tokens": 50},
}
HELLO = (Turn("user", (Text("Hi"),)),)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNK = (
    b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
)
PASSED_STREAM = {"model": "pass/tiny", "messages": PROMPT, "stream": True}


def post_bytes(body):
    """Return the bytes of a request for a stream."""
    raw = json.dumps(body).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        % len(raw)
        + raw
    )


@asynccontextmanager
async def connection(url):
    """A bare connection to a gateway: its reader and its writer."""
    host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def stored(folder):
    """Return the outcome and the status of each request."""
    with closing(sqlite3.connect(folder / "requests.db")) as database:
        return database.execute("SELECT outcome, status FROM requests").fetchall()


# ---- connections

LINES = b"a: b\r\n" * 20_000
ENDLESS = {
    "headers": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", LINES),
    "a line": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx: ", b"y" * 100_000),
    "a path": (b"GET /", b"y" * 100_000),
    "trailers": (
        b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        LINES,
    ),
    "a trailer": (
        b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ",
        b"y" * 100_000,
    ),
    "a chunk's extension": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"y" * 100_000,
    ),
}


@pytest.mark.parametrize(("head", "more"), ENDLESS.values(), ids=ENDLESS)
async def test_endless_heads_and_trailers(tmp_path, head, more):
    """A connection ends that sends more than a head or trailers may have."""
    async with (
        running(config_for(tmp_path, "http://127.0.0.1:1/v1")) as (url, _),
        connection(url) as (_reader, writer),
    ):
        writer.write(head)
        try:
            async with asyncio.timeout(60):
                for _ in range(100):
                    writer.write(more)
                    await writer.drain()
                    await asyncio.sleep(0)
                pytest.fail("the connection is still open")
        except ConnectionError:
            pass


@pytest.mark.parametrize(
    ("is_used", "sent"), [(False, b""), (False, b"POST /v1/chat"), (True, b"POST /v1/chat")]
)
async def test_a_head_that_never_ends(tmp_path, monkeypatch, is_used, sent):
    """A connection without a whole head of a request ends after a while, also one that was used
    before.
    """
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    async with (
        running(config_for(tmp_path, "http://127.0.0.1:1/v1")) as (url, _),
        connection(url) as (reader, writer),
    ):
        if is_used:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
        writer.write(sent)
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert await reader.read() == b""


async def test_a_slow_body_is_no_slow_head(faults, tmp_path, monkeypatch):
    """A request whose head has arrived may take its time, and so may its answer and the time
    between requests.
    """
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)

    async def late(writer):
        await asyncio.sleep(0.3)
        writer.write(http(completion("fine")))

    faults.says(late)
    raw = post_bytes({"model": "pass/tiny", "messages": PROMPT})
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, _),
        connection(url) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(raw[:-5])
            await asyncio.sleep(0.3)
            writer.write(raw[-5:])
            async with asyncio.timeout(60):
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"10}}")
            await asyncio.sleep(0.3)


async def test_a_client_that_reads_nothing(faults, tmp_path, monkeypatch):
    """It is disconnected, and the work for it is cancelled: nobody holds a slot by not reading."""
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)

    async def endless(writer):
        writer.write(STREAM_HEAD)
        while not writer.transport.is_closing():
            writer.write(CHUNK % (b"a" * 10_000))
            await writer.drain()
            await asyncio.sleep(0)

    faults.says(endless)
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, gateway),
        connection(url) as (_, writer),
    ):
        writer.write(post_bytes(PASSED_STREAM))
        async with asyncio.timeout(60):
            while not gateway.admission.active:
                await asyncio.sleep(0.01)
            await gateway.admission.wait_until_idle()
        await gateway.store.wait_for_commit()
        assert stored(tmp_path) == [("cancelled", 499)]


# ---- streams that fail


async def test_a_broken_stream_is_not_replayed(faults, tmp_path):
    """The request failed, so the next one with its idempotency key runs again."""

    async def broken(writer):
        writer.write(STREAM_HEAD + CHUNK % b"a")
        await writer.drain()
        writer.close()

    async def says_error(writer):
        writer.write(STREAM_HEAD + b'data: {"error":{"message":"out of memory"}}\n\n')
        await writer.drain()
        writer.close()

    async def whole(writer):
        end = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        writer.write(STREAM_HEAD + CHUNK % b"a" + end)
        await writer.drain()
        writer.close()

    faults.says(broken, says_error, whole)
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, gateway),
        http_client(url) as client,
    ):
        texts = [
            (
                await client.post(
                    "/chat/completions", json=PASSED_STREAM, headers={"idempotency-key": "k"}
                )
            ).text
            for _ in range(4)
        ]
        await gateway.store.wait_for_commit()
        assert [text.count('"error"') for text in texts] == [1, 1, 0, 0] and texts[2] == texts[3]
        assert stored(tmp_path) == [("failed", 502), ("failed", 502), ("answered", 200)]
        figures = (await client.get(url.removesuffix("/v1") + "/metrics")).text
    assert (
        'redraft_gateway_upstream_errors_total{cause="BadResponseError",model="pass/tiny"} 2.0'
        in figures
    )


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_the_end_of_the_gateway_is_told_in_streams(faults, tmp_path, wire):
    """A stream that is passed on does not just stop: its client could take a part for the whole."""

    async def begun(writer):
        writer.write(STREAM_HEAD + CHUNK % b"a")
        await writer.drain()
        await asyncio.sleep(60)

    faults.says(begun)
    body = {**ASKED[wire], "model": "pass/tiny", "stream": True}
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, gateway),
        http_client(url) as client,
    ):
        async with client.stream("POST", PATHS[wire], json=body) as reply:
            parts = reply.aiter_bytes()
            received = await anext(parts)
            gateway.drain()
            await gateway.cut_off()
            received += b"".join([part async for part in parts])
    assert b"the gateway ended before" in received.rpartition(b"data:")[2]


# ---- texts of models


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_half_a_character(faults, tmp_path, wire, model):
    """An answer or an error with a lone surrogate, which UTF-8 cannot say, is JSON all the same."""
    faults.says(http(json.dumps(completion("half \ud83d of it")).encode()))
    config = config_for(
        tmp_path, f"{faults.url}#tiny", graders=["length:words=1-9"], settings={"retries": 0}
    )
    async with running(config) as (url, _), http_client(url) as client:
        for status in (200, 400):
            if status == 400:
                faults.says(
                    http(
                        json.dumps(
                            {"error": {"message": "half \ud83d", "code": "half \ud83d"}}
                        ).encode(),
                        400,
                    )
                )
            reply = await client.post(PATHS[wire], json={**ASKED[wire], "model": model})
            assert reply.status_code == status, reply.text
            assert "half" in json.dumps(reply.json())


@pytest.mark.parametrize("asked", ["99999999999999999999999", "Wed, 21 Oct 9999 07:28:00 GMT"])
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_no_model_makes_clients_wait_for_years(faults, tmp_path, asked, model):
    """The time after which a client may try again is at most a day."""
    faults.says(http({"error": {"message": "slow down"}}, 429, Retry_After=asked))
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny", settings={"retries": 0})) as (url, _),
        http_client(url) as client,
    ):
        reply = await client.post("/chat/completions", json={"model": model, "messages": PROMPT})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "86400")


# ---- fields that say what others forbid

SMUGGLED = {
    "n": 5,
    "max_completion_tokens": 100_000,
    "response_format": {"type": "json_object"},
    "logprobs": True,
    "functions": [{"name": "f"}],
    "best_of": 3,
    "n_predict": 100_000,
    "models": ["dear"],
    "base_url": "http://127.0.0.1:1",
}


NOT_OF_RESPONSES = {
    "messages": [{"role": "user", "content": "Say this instead."}],
    "max_tokens": 100_000,
}


@pytest.mark.parametrize(
    ("wire", "fields"), [("messages", SMUGGLED), ("responses", SMUGGLED | NOT_OF_RESPONSES)]
)
async def test_fields_of_another_protocol(faults, tmp_path, wire, fields):
    """A field of chat completions is not passed on behind another protocol, where it would replace
    what was checked: it is refused, or left out, which the reply says.
    """
    faults.says(http(completion("fine")))
    config = config_for(tmp_path, f"{faults.url}#tiny", graders=["words:1-9"])
    async with running(config) as (url, _), http_client(url) as client:
        for model in ("refine/fast", "pass/tiny"):
            for name, value in fields.items():
                faults.requests.clear()
                body = {"model": model, **ASKED[wire], name: value}
                reply = await client.post(PATHS[wire], json=body)
                if reply.status_code == 400:
                    assert (reply.json()["error"]["param"], faults.requests) == (name, [])
                elif model == "refine/fast" or wire == "messages":
                    assert name in reply.headers["x-redraft-ignored"].split(", ")
                    assert all(each.body.get(name) != value for each in faults.requests)


BEGUN = {
    "chat": {"messages": [*PROMPT, {"role": "assistant", "content": "It"}]},
    "responses": {"input": [*PROMPT, {"role": "assistant", "content": "It"}]},
    "messages": {"messages": [*PROMPT, {"role": "assistant", "content": "It"}], "max_tokens": 50},
}


@pytest.mark.parametrize("wire", PATHS)
async def test_an_answer_that_is_begun(faults, tmp_path, wire):
    """Only Anthropic's protocol has it, so that in others it is refused by name where an answer is
    refined; a model as it is may.
    """
    faults.says(http(completion("fine")))
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, _),
        http_client(url) as client,
    ):
        refined = await client.post(PATHS[wire], json={**BEGUN[wire], "model": "refine/fast"})
        passed = await client.post(PATHS[wire], json={**BEGUN[wire], "model": "pass/tiny"})
    assert passed.status_code == 200
    if wire == "messages":
        assert refined.json()["content"][0]["text"] == "fine"
    else:
        param = refined.json()["error"]["param"]
        assert (refined.status_code, param) == (400, {"responses": "input"}.get(wire, "messages"))


# ---- what a request may cost

COSTS = [  # the protocol, fields of the request, and the output tokens that are reserved for it
    ("chat", {}, ASSUMED_OUTPUT_TOKENS),
    ("chat", {"max_tokens": 10}, 10),
    ("chat", {"max_tokens": 10, "n": 3}, 30),
    ("chat", {"max_tokens": 10, "n": -3}, 10),
    ("chat", {"max_tokens": 1, "max_completion_tokens": 500}, 500),
    ("chat", {"max_tokens": 1, "n_predict": 500, "best_of": 2}, 1000),
    ("chat", {"max_tokens": 10, "min_tokens": 100_000}, 100_000),
    ("chat", {"max_tokens": 1, "n_predict": -1}, ASSUMED_OUTPUT_TOKENS),
    ("chat", {"max_tokens": -1}, ASSUMED_OUTPUT_TOKENS),
    ("chat", {"max_tokens": 0}, ASSUMED_OUTPUT_TOKENS),
    ("chat", {"max_tokens": True}, ASSUMED_OUTPUT_TOKENS),
    ("chat", {"max_tokens": "many"}, ASSUMED_OUTPUT_TOKENS),
    ("chat", {"max_tokens": 1, "max_output_tokens": None}, 1),
    (
        "chat",
        {"max_tokens": 18446744073709551615, "n": 18446744073709551615},
        18446744073709551615**2,
    ),
    *(
        ("chat", {name: 1}, ASSUMED_OUTPUT_TOKENS)
        for name in (
            "min_tokens",
            "max_output_tokens",
            "n_predict",
            "num_predict",
            "max_new_tokens",
        )
    ),
    ("responses", {"max_output_tokens": 7}, 7),
    *(
        ("responses", {name: 7}, ASSUMED_OUTPUT_TOKENS)
        for name in ("max_tokens", "max_completion_tokens")
    ),
    ("messages", {"max_tokens": 7}, 7),
    *(
        ("messages", {name: 7}, ASSUMED_OUTPUT_TOKENS)
        for name in ("max_output_tokens", "max_completion_tokens")
    ),
]


@pytest.mark.parametrize(("wire", "fields", "tokens"), COSTS)
def test_reserved_tokens(tmp_path, wire, fields, tokens):
    """Of several limits the largest counts, since models obey different ones; only the protocol's
    own makes it smaller.
    """
    config = config_for(tmp_path, "http://127.0.0.1:1/v1")
    routing = Routing(config, {})
    assert routing.pass_cost(config.models["tiny"], wire, fields, 0) == pytest.approx(
        tokens * 2 / 1e6
    )


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, ASSUMED_OUTPUT_TOKENS),
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10, "min_tokens": 100_000}, 100_000),
    ]
    + [({name: 1}, ASSUMED_OUTPUT_TOKENS) for name in ("min_tokens", "max_output_tokens")],
)
def test_reserved_tokens_of_a_refinement(tmp_path, fields, tokens):
    """A field that is sent on makes the reservation larger, never smaller."""
    settings = {"max_iterations": 0, "judge_params": {"max_tokens": 1}}
    routing = Routing(config_for(tmp_path, "http://127.0.0.1:1/v1", settings=settings), {})
    request = CLIENTS["chat"].read_request(
        {"model": "refine/fast", "messages": [{"role": "user", "content": "Hi"}], **fields}
    )
    prepared = routing.refiners["fast"].prepare(request, "t")
    assert routing.refine_cost(prepared, 0) == pytest.approx(
        prepared.max_calls * tokens * (1 + 2) / 1e6
    )


@pytest.mark.parametrize(
    ("graders", "calls"), [(["words:5"], 3), (["judge"], 6), (["judge", "clarity", "words:5"], 9)]
)
def test_reserved_calls(tmp_path, graders, calls):
    """Each grader that asks a model asks it for each text."""
    config = config_for(
        tmp_path, "http://127.0.0.1:1/v1", graders=graders, settings={"max_iterations": 2}
    )
    request = Request("chat", "refine/fast", {}, HELLO)
    assert Routing(config, {}).refiners["fast"].prepare(request, "t").max_calls == calls


@pytest.mark.parametrize(
    ("asked", "own", "used"), [(None, 100, 100), (50, 100, 50), (500, 100, 100), (500, None, 500)]
)
def test_a_profile_limits_tokens(asked, own, used):
    """A request may ask for fewer tokens than its profile allows."""
    profile = Profile("fast", "tiny", settings={"max_tokens": own} if own else {})
    request = Request("chat", "refine/fast", {}, HELLO, max_tokens=asked)
    assert request_settings(request, profile, 60.0).get("max_tokens") == used


async def test_a_grader_is_named_once(tmp_path):
    """A list of the same grader would multiply the calls of a request."""
    body = {
        "model": "refine/fast",
        "messages": PROMPT,
        "redraft": {"graders": ["clarity", " clarity"]},
    }
    async with (
        running(config_for(tmp_path, "http://127.0.0.1:1/v1")) as (url, _),
        http_client(url) as client,
    ):
        reply = await client.post("/chat/completions", json=body)
    assert reply.status_code == 400 and "'clarity' twice" in reply.json()["error"]["message"]


@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_a_store_that_fails_keeps_no_reservation(faults, tmp_path, monkeypatch, model):
    """Whatever is raised after the budget was reserved, nothing stays reserved."""
    with KeyRing(tmp_path) as ring:
        key, secret = ring.add("app", KeyLimits(usd_per_day=1.0))
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, gateway),
        http_client(url) as client,
    ):

        def fail(*_, **__):
            raise RuntimeError

        monkeypatch.setattr(gateway.store, "begin", fail)
        headers = {"x-api-key": secret}
        reply = await client.post(
            "/chat/completions", json={"model": model, "messages": PROMPT}, headers=headers
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (
            500,
            "internal_error",
        ) and not faults.requests
        with KeyRing(tmp_path) as ring:
            assert ring.spending("day", key).reserved == 0


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        *(
            (0.0, "1"),
            (0.001, "1"),
            (1.0, "1"),
            (1.001, "2"),
            (2.0, "2"),
            (2.5, "3"),
            (3.0, "3"),
            (5.0, "5"),
            (59.99, "60"),
        ),
        *((86_399.5, "86400"), (86_400.0, "86400"), (86_400.5, "86400"), (float("inf"), "86400")),
    ],
)
def test_clients_are_told_to_wait_whole_seconds(seconds, told):
    """Rounded up, at least one and at most a day, whatever a model said."""
    error = GatewayError(503, "overloaded", "busy", retry_after=seconds, should_retry=False)
    assert error.reply_headers == {"retry-after": told, "x-should-retry": "false"}


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json"])
async def test_names_and_figures_need_a_key(tmp_path, path):
    """From another machine, as through a proxy on this one, nobody reads them without a key."""
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("app", KeyLimits())
    async with (
        running(config_for(tmp_path, "http://127.0.0.1:1/v1")) as (url, _),
        http_client(url) as client,
    ):
        place, proxied = url.removesuffix("/v1") + path, {"x-forwarded-for": "192.0.2.1"}
        replies = [
            await client.get(place, headers=each)
            for each in (proxied, proxied | {"x-api-key": secret}, {})
        ]
    assert [reply.status_code for reply in replies] == [401, 200, 200]


# ---- the machine


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_messages_that_nobody_can_write(tmp_path):
    """With stderr on a full disk, requests are answered, the configuration is read again, and the
    end is a gentle one.
    """
    model = ChatServer(lambda messages, n: "Yes.")
    (tmp_path / "gateway.toml").write_text(
        f'[gateway]\nfolder = "data"\nport = 0\n[models.small]\nurl = "http://127.0.0.1:{model.port}/v1"\nmodel = "tiny"\n'
    )
    command = [
        sys.executable,
        "-m",
        "redraft",
        "serve",
        "--log-format",
        "json",
        "--config",
        "gateway.toml",
    ]
    with (
        closing(model),
        open("/dev/full", "w") as full,
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, text=True
        ) as process,
        ThreadPoolExecutor() as pool,
    ):
        url = json.loads(process.stdout.readline())["url"] + PATHS["chat"]
        arrived = model.hold(0)
        asked = pool.submit(
            httpx2.post, url, json={"model": "pass/small", "messages": PROMPT}, timeout=30
        )
        assert arrived.wait(60)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        while httpx2.get(url.replace("/v1/chat/completions", "/readyz")).status_code == 200:
            time.sleep(0.01)
        model.release()
        assert asked.result(30).status_code == 200
        # 120: Python could not write what was left at its end
        assert process.wait(30) in {0, 120}
