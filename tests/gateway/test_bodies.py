"""Bodies of requests: the rate of a key before they are read, their values before they are built,
large ones in another process.
"""

import asyncio
import errno
import json
import os
from collections import Counter
from dataclasses import replace

import orjson
import pytest
from chat_server import ChatServer
from hypothesis import given
from hypothesis import strategies as st

from redraft.gateway import bodies, body_worker
from redraft.gateway.bodies import BodyParser
from redraft.gateway.body_worker import MAX_BODY_VALUES, PIECE_BYTES, frames, has_too_many_values
from redraft.gateway.client_exchange import ClientExchange
from redraft.gateway.config import GatewayLimits
from redraft.gateway.exchange import GatewayError
from redraft.gateway.idempotency import FREE_JOINS
from redraft.gateway.keys import KeyLimits, KeyRing

from .running import PROMPT, config_for, http_client, running
from .test_hostile import connection

MIB = 2**20
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


# ---- the number of values

MANY = MAX_BODY_VALUES + 1
TOO_MANY = {
    "numbers": b"[" + b"1," * MANY + b"1]",
    "texts": b"[" + b'"",' * MANY + b'""]',
    "lists": b"[" + b"[]," * MANY + b"[]]",
    "objects": b"[" + b"{}," * MANY + b"{}]",
    "fields": b"{" + b'"a":1,' * MANY + b'"b":1}',
    "after a text with quotes": rb'["a\"b\\",' + b"1," * MANY + b"1]",
    "depth": b"[" * MANY,
    "a text that never ends, after them": b"[" + b"1," * MANY + b'"',
}
FEW = {
    "prose": json.dumps({"a": "one, two, [three], {four} " * MANY}).encode(),
    "prose with quotes": json.dumps({"a": 'he said, "so, it is", and \\ ' * MANY}).encode(),
    "as many as are allowed": b"[" + b"1," * (MAX_BODY_VALUES - 1) + b"1]",
    "one large text": json.dumps({"a": "x" * 8 * MIB}).encode(),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("raw", TOO_MANY.values(), ids=TOO_MANY)
async def test_values_are_counted_before_they_are_built(raw, monkeypatch):
    """A body with more values than are allowed is refused by name, and never parsed."""
    monkeypatch.setattr(orjson, "loads", lambda raw: pytest.fail("it was parsed"))
    with pytest.raises(GatewayError, match=f"more than {MAX_BODY_VALUES:,} values"):
        await BodyParser().parse(raw)


QUOTES = b'{"a":[' + b'",",' * (MAX_BODY_VALUES - 10) + b"1]}"
DENSE = {
    "texts of commas": QUOTES,
    "and one large text": QUOTES[:-2] + b',"' + b"x" * 7 * MIB + b'"]}',
    "prose of commas": json.dumps({"a": ", [{" * MANY}).encode(),
    "too many texts": b"[" + b'",",' * 3 * MANY + b"1]",
}


@pytest.mark.slow
@pytest.mark.parametrize("raw", DENSE.values(), ids=DENSE)
async def test_the_loop_only_glances_at_a_dense_body(raw, monkeypatch):
    """What needs a closer look, whether it has few values or many, gets it elsewhere: the loop
    searches no byte of it for texts.
    """
    searched, parsed, loads = [], [], orjson.loads
    monkeypatch.setattr(
        body_worker,
        "STRING",
        type("Pattern", (), {"sub": lambda self, new, raw: searched.append(len(raw)) or raw})(),
    )
    monkeypatch.setattr(orjson, "loads", lambda part: parsed.append(len(part)) or loads(part))
    assert len(raw) <= bodies.LOOP_BYTES
    if raw is DENSE["too many texts"]:
        with pytest.raises(GatewayError, match="values"):
            await BodyParser().parse(raw)
    else:
        assert await BodyParser().parse(raw) == loads(raw)
    assert searched == [] and max(parsed, default=0) <= PIECE_BYTES


@pytest.mark.parametrize("raw", FEW.values(), ids=FEW)
def test_what_is_in_a_text_is_no_value(raw):
    """Commas and brackets of prose do not count."""
    assert not has_too_many_values(raw)


@given(JSON)
def test_no_value_is_missed(value):
    """By its bytes, a body never has fewer values than it has; and at most one more for each list
    and object.
    """
    raw = json.dumps(value).encode()

    def count(inner):
        return (
            1 + sum(map(count, inner.values() if isinstance(inner, dict) else inner))
            if isinstance(inner, dict | list)
            else 1
        )

    outside = body_worker.STRING.sub(b"", raw.replace(b"\\\\", b"").replace(b'\\"', b""))
    assert count(value) <= body_worker._values_at_most(outside) + 1


# ---- large bodies

LARGE = {
    "one text": {
        "model": "pass/tiny",
        "messages": [{"role": "user", "content": 'grüße 😀 " \\ \n' * MIB}],
    },
    "many messages": {
        "messages": [{"role": "user", "content": f"{n} " * 1000} for n in range(2500)],
        "n": 1,
        "x": [{}, [], None, 1.5],
    },
    "a text of escapes": {"a": "\x01" * 2 * MIB},
    "a large field first": {"a": {"b": {"c": "x" * 9 * MIB}}, "d": "", "": {"": []}},
}


@pytest.mark.slow
@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
async def test_a_large_body_is_read_in_another_process(value, monkeypatch):
    """It comes back as it is, and this process parses no more than a piece of it at a time."""
    raw, sizes, loads = json.dumps(value).encode(), [], orjson.loads
    assert len(raw) > bodies.LOOP_BYTES
    monkeypatch.setattr(orjson, "loads", lambda part: sizes.append(len(part)) or loads(part))
    assert await BodyParser().parse(raw) == value
    assert max(sizes) <= PIECE_BYTES


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("raw", "code", "message"),
    [
        (b"x" * 9 * MIB, "invalid_json", "not valid JSON"),
        (b"[" + b"1," * 5 * MIB + b"1]", "invalid_request", "values"),
        (b'["' + b"x" * 9 * MIB + b'"]', "invalid_request", "must be a JSON object"),
        (b'{"a":' * 2000 + b" " * 9 * MIB + b"1" + b"}" * 2000, "invalid_json", "not valid JSON"),
    ],
)
async def test_a_large_body_that_is_refused(raw, code, message):
    """With the same errors as a small one."""
    with pytest.raises(GatewayError, match=message) as caught:
        await BodyParser().parse(raw)
    assert (caught.value.status, caught.value.code) == (400, code)


ENDS = {
    "cannot start": ("raise ImportError", 500, "internal_error"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 500, "internal_error"),
    "ends without a word": ("", 500, "internal_error"),
    "takes too much time": (
        "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)",
        400,
        "invalid_request",
    ),
    "takes too much memory": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        400,
        "invalid_request",
    ),
}


@pytest.mark.parametrize(("program", "status", "code"), ENDS.values(), ids=ENDS)
async def test_a_process_that_ends_too_early(program, status, code, tmp_path, monkeypatch, caplog):
    """Only what it takes is the body's fault; all else is ours, and logged."""
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(body_worker, "__file__", str(tmp_path / "program.py"))
    with caplog.at_level("ERROR", "redraft"), pytest.raises(GatewayError) as caught:
        await BodyParser().parse(b'["' + b"x" * 9 * MIB + b'"]')
    assert (caught.value.status, caught.value.code) == (status, code)
    assert ("ended with status" in caplog.text) == (status == 500)


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN], ids=errno.errorcode.get
)
async def test_no_process_for_a_large_body(upstream, tmp_path, monkeypatch, number):
    """A shortage of ours: the client is asked to come back."""

    async def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    config = replace(config_for(tmp_path, upstream.model), limits=GatewayLimits(max_body=32 * MIB))
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post("/chat/completions", content=b"x" * 9 * MIB)
    assert (reply.status_code, reply.json()["error"]["code"], reply.headers["retry-after"]) == (
        503,
        "overloaded",
        "5",
    )
    assert "x-should-retry" not in reply.headers


@given(JSON)
def test_frames_hold_what_there_was(value):
    """Whatever the size of the pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_worker, "PIECE_BYTES", 30)
        patch.setattr(body_worker, "PIECE_CHARS", 2)
        data = b"".join(
            kind + len(content).to_bytes(4) + content for kind, content in frames(value)
        )

    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await bodies._value_of_frames(reader)

    assert asyncio.run(read()) == value


# ---- the rate of a key


@pytest.fixture
def upstream():
    server = ChatServer(lambda messages, n: "as it is")
    yield server
    server.close()


def head_of(key, size, **headers):
    lines = {
        "Host": "localhost",
        "Authorization": f"Bearer {key}",
        "Content-Length": size,
        **headers,
    }
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\n"
        + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode()
        + b"\r\n"
    )


async def test_the_rate_comes_before_the_body(upstream, tmp_path):
    """The 429 is there before a byte of the body is; a body that comes all the same is dropped, and
    the connection goes on.
    """
    with KeyRing(tmp_path) as ring:
        _, key = ring.add("slow", KeyLimits(requests_per_minute=1))
        _, other = ring.add("other")
    size = 4 * MIB
    async with (
        running(config_for(tmp_path, upstream.model)) as (url, gateway),
        connection(url) as (reader, writer),
    ):
        async with http_client(url, headers={"Authorization": f"Bearer {key}"}) as client:
            assert (
                await client.post(
                    "/chat/completions", json={"model": "refine/none", "messages": PROMPT}
                )
            ).status_code == 404
        writer.write(head_of(key, size))
        async with asyncio.timeout(60):
            assert b"429" in await reader.readuntil(b"\r\n\r\n")
            assert b"rate_limited" in await reader.readuntil(b"}}")
            assert gateway.guard.body_bytes == 0
            writer.write(b"x" * size)
            raw = json.dumps({"model": "pass/tiny", "messages": PROMPT}).encode()
            writer.write(head_of(other, len(raw)) + raw)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert gateway.guard.body_bytes == 0


async def test_a_replay_is_no_further_request(upstream, tmp_path):
    """A request that joins a run by its idempotency key does not count; one with another body
    does.
    """
    with KeyRing(tmp_path) as ring:
        _, key = ring.add("slow", KeyLimits(requests_per_minute=1))
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "one"}
    body = {"model": "pass/tiny", "messages": PROMPT}
    async with (
        running(config_for(tmp_path, upstream.model)) as (url, _),
        http_client(url, headers=headers) as client,
    ):
        statuses = [
            (await client.post("/chat/completions", json=body)).status_code for _ in range(3)
        ]
        other = await client.post("/chat/completions", json={**body, "top_p": 1})
    assert statuses == [200, 200, 200] and upstream.calls == 1
    assert (other.status_code, other.json()["error"]["code"]) == (429, "rate_limited")


@pytest.mark.parametrize("same", [True, False], ids=["the same body", "another body"])
async def test_repeats_of_a_request_are_limited(upstream, tmp_path, same):
    """Few are free, as many as an SDK sends; the others are refused before their body is read."""
    with KeyRing(tmp_path) as ring:
        _, key = ring.add("slow", KeyLimits(requests_per_minute=1))
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "one"}
    body = {"model": "pass/tiny", "messages": PROMPT}
    read, read_body = [], ClientExchange._read_body

    async def count(exchange):
        read.append(exchange)
        return await read_body(exchange)

    async with (
        running(config_for(tmp_path, upstream.model)) as (url, _),
        http_client(url, headers=headers) as client,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClientExchange, "_read_body", count)
            first = await client.post("/chat/completions", json=body)
            repeat = body if same else {**body, "top_p": 1}
            replies = await asyncio.gather(
                *(client.post("/chat/completions", json=repeat) for _ in range(40))
            )
    assert first.status_code == 200 and upstream.calls == 1 and len(read) == 1 + FREE_JOINS
    assert Counter(reply.status_code for reply in replies) == (
        {200: FREE_JOINS, 429: 40 - FREE_JOINS} if same else {429: 40}
    )


@pytest.mark.slow
async def test_two_senders_of_large_bodies(upstream, tmp_path, monkeypatch):
    """With a key for one request a minute, and 31 MiB allowed, one body of many is read; nothing
    large is parsed here.
    """
    with KeyRing(tmp_path) as ring:
        _, key = ring.add("slow", KeyLimits(requests_per_minute=1))
        _, other = ring.add("other")
    config = replace(config_for(tmp_path, upstream.model), limits=GatewayLimits(max_body=32 * MIB))
    raw = b'{"model":"pass/none","messages":[' + b"[0,0,0,0,0,0,0]," * 2 * MIB
    raw = raw[: 31 * MIB]
    sizes, loads = [], orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda part: sizes.append(len(part)) or loads(part))
    async with running(config) as (url, gateway), http_client(url) as client:
        most = 0

        async def send():
            nonlocal most
            reply = await client.post(
                "/chat/completions", content=raw, headers={"Authorization": f"Bearer {key}"}
            )
            most = max(most, gateway.guard.body_bytes)
            return reply.status_code

        sending = [asyncio.create_task(send()) for _ in range(6)]
        answered = 0
        while not all(task.done() for task in sending):
            reply = await client.post(
                "/chat/completions",
                json={"model": "pass/tiny", "messages": PROMPT},
                headers={"Authorization": f"Bearer {other}"},
            )
            answered += reply.status_code == 200
        statuses = sorted([await task for task in sending])
    assert statuses == [400, 429, 429, 429, 429, 429] and answered
    assert max(sizes) <= PIECE_BYTES and most <= 31 * MIB
