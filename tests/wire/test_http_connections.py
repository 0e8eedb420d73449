"""Connections of HTTP: framing, reuse, limits, TLS and proxies, with real sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.base.sync import uvloop_factory
from redraft.errors import (
    BadResponseError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from redraft.models.http_client import RequestTarget, Timeouts, fetch, open_exchange
from redraft.models.http_requests import HttpRequest
from redraft.models.http_sessions import HttpSession

from . import fault_server as fs
from .http_servers import HI, Proxy, read_request, server_context, serving


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request):
    """Run a coroutine on each kind of event loop."""
    factory = uvloop_factory() if request.param == "uvloop" else None

    def run(work):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(work, 60))

    return run


def target(url, **changes):
    return RequestTarget(url, **({"timeouts": Timeouts(connect=5, idle=5, total=20)} | changes))


# ---- responses


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
# what the server sends before it closes the connection; the body, or what the error says
RESPONSES = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "no body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "chunked": (CHUNKED + b"2\r\nhi\r\n3\r\n ho\r\n0\r\n\r\n", b"hi ho"),
    "extensions": (CHUNKED + b"2;a=b\r\nhi\r\n0\r\n\r\n", b"hi"),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nDigest: x\r\n\r\n", b"hi"),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nhi", b"hi"),
    "old": (b"HTTP/1.0 200 OK\r\n\r\nhi", b"hi"),
    "interim": (
        b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n" * 3
        + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
    ),
    "hints": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
    ),
    "more": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiho", "not HTTP"),
    "twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi" * 2, b"hi"),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    "nothing": (b"", "the connection broke: the server closed it"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "the connection broke"),
    "only hints": (b"HTTP/1.1 103 Early Hints\r\n\r\n", "the connection broke"),
    "cut": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", "the connection broke"),
    "cut chunk": (CHUNKED + b"3\r\nhi", "the connection broke"),
    "no last chunk": (CHUNKED + b"2\r\nhi\r\n", "the connection broke"),
    "odd chunk": (CHUNKED + b"x\r\nhi\r\n", "not HTTP"),
    "odd length": (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nhi", "not HTTP"),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        "not HTTP",
    ),
    "length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "not HTTP",
    ),
    "another protocol": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi",
        "another protocol",
    ),
    "a page": (b"<html></html>", "not HTTP"),
    "long head": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000, "Too many headers|broke"),
    "long header": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000, "Got more than 65536 bytes"),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_each_response(on_loop, name):
    """A body is returned whole, or there is an error."""
    raw, expected = RESPONSES[name]

    async def ask():
        async with fs.FaultServer().says(fs.send_and_close(raw)) as server:
            return await fetch(target(server.url), "POST", b"{}")

    if isinstance(expected, bytes):
        assert on_loop(ask())[2] == expected
    else:
        with pytest.raises(ModelError, match=expected) as caught:
            on_loop(ask())
        assert caught.value.retryable
        assert caught.value.usage.calls == 1


PARTS = st.lists(st.binary(min_size=1, max_size=30), max_size=4)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True).filter(
    lambda name: (
        name.lower()
        not in {
            "connection",
            "content-length",
            "transfer-encoding",
            "content-encoding",
            "upgrade",
            "te",
        }
    )
)
VALUES = st.from_regex(r"([!-~]([ -~]{0,12}[!-~])?)?", fullmatch=True)


@given(
    st.integers(200, 599).filter(lambda n: n not in {204, 304}),
    st.lists(st.tuples(NAMES, VALUES), max_size=4),
    PARTS,
)
async def test_responses_are_read_as_they_were_sent(status, headers, parts):
    """Status, headers and body are the same, with a length, in chunks and until the end of the
    connection.
    """
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    body = b"".join(parts)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    for framing, content in (
        (f"Content-Length: {len(body)}\r\n", body),
        ("Transfer-Encoding: chunked\r\n", chunks),
        ("", body),
    ):
        raw = f"HTTP/1.1 {status} x\r\n{lines}{framing}\r\n".encode() + content
        async with fs.FaultServer().says(fs.send_and_close(raw)) as server:
            found_status, found_headers, found_body = await fetch(target(server.url))
        assert (found_status, found_body) == (status, body)
        first = {name.lower(): value for name, value in reversed(headers)}
        assert first.items() <= found_headers.items()


# ---- requests


URLS = {
    "/v1": "/v1",
    "": "/",
    "/v1/models?a=1&b=%C3%A9+x#fragment": "/v1/models?a=1&b=%C3%A9+x",
    "/a%20b/%C3%A9": "/a%20b/%C3%A9",
    "/a%2Fb": "/a%2Fb",
    "/a b/é": "/a%20b/%C3%A9",
    "/v1?q=é+x": "/v1?q=%C3%A9+x",
    "/models/a:b@c/d;e=f,g": "/models/a:b@c/d;e=f,g",
}


@pytest.mark.parametrize("path", URLS)
@pytest.mark.parametrize("body", [None, b"", b"{}"])
async def test_what_is_sent(faults, path, body):
    """The request line, the host, the length and the headers, and no others."""
    faults.says(fs.good())
    headers = {"Authorization": "Bearer k", "content-type": "application/json"}
    await fetch(
        target(f"http://{faults.host}{path}", headers=headers),
        "GET" if body is None else "POST",
        body,
    )
    (request,) = faults.requests
    assert (request.path, request.raw) == (URLS[path], body or b"")
    framing = {} if body is None else {"content-length": str(len(body))}
    assert request.headers == {
        "authorization": "Bearer k",
        "content-type": "application/json",
        "host": faults.host,
        "accept": "*/*",
        "user-agent": "redraft",
        **framing,
    }


async def test_headers_cannot_change_the_framing(faults):
    """A header that is given replaces one of ours in any spelling, but not those that say where the
    body ends.
    """
    given = {
        "host": "other",
        "CONTENT-LENGTH": "9",
        "Transfer-Encoding": "chunked",
        "connection": "close",
        "accept": "text/plain",
        "USER-agent": "mine",
    }
    faults.says(fs.good())
    await fetch(target(faults.url, headers=given), "POST", b"{}")
    (request,) = faults.requests
    assert request.headers == {
        "host": "other",
        "accept": "text/plain",
        "user-agent": "mine",
        "content-length": "2",
    }


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h/x",
        "ftp://h/x",
        "http://",
        "http://:80/",
        "http://h:99999/",
        "http://[::1/",
        "http://a b/",
        "http://a..b/",
    ]
    + ["http://127.0.0.1:0/", "https://h:0/", "ftp://h:80/"]
    + [f"http://{'x' * 70}.example/"],
)
async def test_addresses_without_a_server(url):
    """They are an error before anything is sent, without the address in it."""
    with pytest.raises(
        ModelUnavailableError, match="cannot be sent: its URL names no server"
    ) as caught:
        await fetch(target(url), "POST", b"{}")
    assert not caught.value.retryable
    assert caught.value.usage.calls == 0


HOSTS = {
    "http://h:80/": "h",
    "http://h:81/": "h:81",
    "http://[::1]:8080/": "[::1]:8080",
    "http://bücher.example/": "xn--bcher-kva.example",
}


@pytest.mark.parametrize("url", HOSTS)
async def test_ports_and_names_in_the_host_header(faults, url):
    """The default port is left out, an IPv6 address is in brackets, and another script is
    encoded.
    """
    faults.says(fs.http(b"hi"))
    await fetch(target(url, proxy=f"http://{faults.host}"))
    (request,) = faults.requests
    assert request.headers["host"] == HOSTS[url]


@pytest.mark.parametrize("size", [0, 1, 64 * 1024 - 1, 64 * 1024, 20_000_000])
async def test_bodies_of_any_size_are_sent(faults, size):
    """The server receives all bytes."""
    faults.says(fs.good())
    body = b"x" * size
    await fetch(target(faults.url), "POST", body)
    assert faults.requests[0].raw == body
    assert faults.requests[0].headers["content-length"] == str(size)


# ---- reuse


KEPT = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", True),
    "chunked": (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    "error": (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nhi", True),
    "kept by an old server": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        True,
    ),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        True,
    ),
    "close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", False),
    "Close, and more": (
        b"HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 2\r\n\r\nhi",
        False,
    ),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", False),
    "twice": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi" * 2, False),
}


@pytest.mark.parametrize("name", KEPT)
def test_connections_that_can_be_used_again(on_loop, name):
    """Only a whole response with nothing behind it leaves a connection for the next request, which
    gets its own answer.
    """
    raw, is_kept = KEPT[name]

    async def ask_twice():
        async with fs.FaultServer().says(raw, fs.http(b"second")) as server:
            await fetch(target(server.url), "POST", b"{}")
            _, _, second = await fetch(target(server.url), "POST", b"{}")
            return second, server.connections

    assert on_loop(ask_twice()) == (b"second", 1 if is_kept else 2)


@pytest.mark.parametrize("at", [0, 10, 60])
async def test_a_cancelled_request_leaves_no_answer_behind(faults, at):
    """Its connection is closed, so that the next request gets its own answer."""
    raw, begun = fs.http(b"late"), asyncio.Event()

    async def late(writer):
        writer.write(raw[:at])
        begun.set()
        await asyncio.sleep(0.1)
        with suppress(ConnectionError):
            writer.write(raw[at:])

    faults.says(late, fs.http(b"own"))
    asking = asyncio.ensure_future(fetch(target(faults.url), "POST", b"{}"))
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0.1)
    assert (await fetch(target(faults.url), "POST", b"{}"))[2] == b"own"


async def test_an_early_answer_ends_a_long_upload(faults):
    """A server may refuse before it has read the body; the rest is not sent, and the connection is
    not used again.
    """

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(fs.error(413, "too long"))
        await asyncio.sleep(5)

    async with serving(refuse) as port:
        url = f"http://127.0.0.1:{port}/"
        for _ in range(2):  # (the second one is not sent over the connection of the first)
            status, _, _ = await fetch(target(url), "POST", b"x" * 50_000_000)
            assert status == 413


@pytest.mark.parametrize("size", [10, 300_000, 3_000_000])
async def test_an_early_refusal_is_never_taken_for_a_broken_connection(size):
    """Whichever comes first: the answer, or the error of a body that cannot be sent."""

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
        writer.close()

    async with serving(refuse) as port:
        url, body = f"http://127.0.0.1:{port}/", b"x" * size
        found = {(await fetch(target(url), "POST", body))[0] for _ in range(100)}
    assert found == {413}


def test_idle_connections_are_closed_in_time(on_loop):
    """A connection is closed when it was idle for long enough, also if nothing is requested any
    more.
    """

    async def ask_twice():
        ended = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            while await reader.read(1000):
                writer.write(fs.http(b"hi"))
            ended.set_result(asyncio.get_running_loop().time())
            writer.close()

        async with serving(serve) as port:
            request = HttpRequest("GET", f"http://127.0.0.1:{port}/", {}, None, None, 5.0)
            session = HttpSession(0.3)
            for _ in range(2):
                response = await session.request(request, print)
                assert await response.read_part() == b"hi"
                response.close()
                last = asyncio.get_running_loop().time()
                await asyncio.sleep(0.1)
            idle = await ended - last
            await session.close()
            return idle

    assert 0.28 < on_loop(ask_twice()) < 30


def test_nothing_is_open_when_the_loop_ends(on_loop, recwarn):
    """Idle connections and streams that were left are closed with the loop; a warning would be an
    error here.
    """

    async def leave_open():
        async with fs.FaultServer().says(
            fs.then_silence(fs.sse(fs.chunk("a"), done=False)), fs.good()
        ) as server:
            async with open_exchange(target(server.url), "POST", b"{}", stream=True) as (
                exchange,
                response,
            ):
                async for _ in exchange.iter_body(response):
                    break
            await asyncio.gather(*(fetch(target(server.url), "POST", b"{}") for _ in range(3)))

    on_loop(leave_open())
    assert not [w for w in recwarn if issubclass(w.category, ResourceWarning)]


# ---- limits


def test_a_server_waits_for_its_reader(on_loop):
    """A body that is not read does not fill the memory, and is whole when it is read."""
    size, sent = 30_000_000, []

    async def ask():
        async def flood(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // 100_000):
                writer.write(b"x" * 100_000)
                await writer.drain()
                sent.append(100_000)
            await reader.read()

        async with serving(flood) as port:
            url = f"http://127.0.0.1:{port}/"
            async with open_exchange(target(url), stream=True) as (exchange, response):
                exchange.cap = size
                await asyncio.sleep(0.5)
                waiting = sum(sent)
                received = sum([len(part) async for part in exchange.iter_body(response)])
            return waiting, received

    waiting, received = on_loop(ask())
    assert received == size
    assert waiting < size / 2


SLOW = {
    "a head byte by byte": (fs.drip(fs.http(b"hi"), 0.05), Timeouts(total=0.4), "an answer"),
    "endless hints": (
        fs.drip(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 99, 0.01),
        Timeouts(total=0.4),
        "an answer",
    ),
    "a body byte by byte": (
        fs.drip(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 999, 0.02),
        Timeouts(total=1.5),
        "the rest of the answer",
    ),
    "half a body": (
        fs.then_silence(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"),
        Timeouts(idle=0.3),
        "the rest of the answer",
    ),
}


@pytest.mark.parametrize("name", SLOW)
async def test_slow_responses_end_in_time(faults, name):
    """Neither single bytes nor interim responses extend the deadline."""
    answer, timeouts, phase = SLOW[name]
    with pytest.raises(ModelTimeoutError, match=f"still waiting for {phase}"):
        await fetch(target(faults.says(answer).url, timeouts=timeouts), "POST", b"{}")


async def test_connections_go_to_all_addresses_of_a_host(monkeypatch):
    """Each new connection begins with another address."""
    loop, hosts, connected = asyncio.get_running_loop(), ["127.0.0.1", "127.0.0.2", "127.0.0.3"], []

    async def answer(reader, writer):
        connected.append(writer.get_extra_info("sockname")[0])
        writer.write(HI)
        writer.close()

    server = await asyncio.start_server(answer, hosts[0], 0)
    port = server.sockets[0].getsockname()[1]
    others = [await asyncio.start_server(answer, host, port) for host in hosts[1:]]

    async def getaddrinfo(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    try:
        for _ in range(6):
            async with open_exchange(target(f"http://models.invalid:{port}/"), stream=True):
                pass
    finally:
        for each in (server, *others):
            each.close()
    assert sorted(connected) == sorted(hosts * 2)


async def test_the_next_address_is_tried_without_delay(faults, monkeypatch):
    """Where the first address of a host does not answer, the second is used after a quarter of a
    second.
    """
    loop = asyncio.get_running_loop()

    kind = socket.SOCK_STREAM
    with (
        socket.create_server(("127.0.0.2", faults.port), backlog=0) as full,
        socket.socket() as one,
        socket.socket() as two,
    ):
        for other in (one, two):
            other.setblocking(False)
            other.connect_ex(full.getsockname())

        async def getaddrinfo(host, port, **_):
            return [
                (socket.AF_INET, kind, 6, "", (address, port))
                for address in ("127.0.0.2", "127.0.0.1")
            ]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        faults.says(fs.http(b"hi"))
        start = loop.time()
        assert (await fetch(target(f"http://models.invalid:{faults.port}/"), "POST", b"{}"))[
            2
        ] == b"hi"
        assert loop.time() - start < 8


# ---- TLS and proxies


def counted(heads, answer=HI):
    """A server's part that notes the heads of requests."""

    async def serve(reader, writer):
        while True:
            head, _ = await read_request(reader)
            heads.append(head)
            writer.write(answer)

    return serve


def test_requests_over_tls(on_loop, authority, trusted):
    """The certificate is checked, and the connection is used again."""

    async def ask():
        async with serving(counted(heads := []), server_context(authority)) as port:
            for _ in range(3):
                _, _, body = await fetch(target(f"https://127.0.0.1:{port}/v1"), "POST", b"")
            return body, len(heads)

    assert on_loop(ask()) == (b"hi", 3)


@pytest.mark.parametrize("name", ["other.example", "localhost"])
def test_a_certificate_for_another_name_is_refused(on_loop, authority, trusted, name):
    """Nothing is sent."""

    async def ask():
        async with serving(counted(heads := []), server_context(authority, name)) as port:
            with pytest.raises(ModelUnavailableError, match="no secure") as caught:
                await fetch(target(f"https://127.0.0.1:{port}/v1"), "POST", b"")
            return heads, caught.value.retryable, caught.value.usage.calls

    assert on_loop(ask()) == ([], False, 0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_through_a_tunnel(on_loop, authority, trusted, scheme):
    """The proxy gets its own password and no header of the request; the server gets no password of
    the proxy.
    """
    tunnels, heads = Proxy(), []

    async def ask():
        context = server_context(authority)
        async with (
            serving(counted(heads), context) as port,
            serving(tunnels, context if scheme == "https" else None) as proxy,
        ):
            address = f"{scheme}://us%40er:p%3Aw@127.0.0.1:{proxy}"
            through = target(
                f"https://127.0.0.1:{port}/v1",
                headers={"Authorization": "Bearer secret"},
                proxy=address,
            )
            for _ in range(2):
                _, _, body = await fetch(through, "POST", b"")
            return body

    assert on_loop(ask()) == b"hi"
    assert len(tunnels.heads) == 1
    assert b"Proxy-Authorization: Basic dXNAZXI6cDp3\r\n" in tunnels.heads[0]
    assert b"secret" not in tunnels.heads[0]
    assert len(heads) == 2
    assert b"Authorization: Bearer secret\r\n" in heads[0]
    assert b"roxy" not in b"".join(heads)


async def test_a_proxy_gets_requests_without_tls(faults):
    """They name the whole URL and have the proxy's password."""
    faults.says(fs.http(b"hi"))
    await fetch(
        target("http://models.invalid:81/v1?a", proxy=f"http://u:p@{faults.host}"), "POST", b""
    )
    (request,) = faults.requests
    assert request.path == "http://models.invalid:81/v1?a"
    assert request.headers["host"] == "models.invalid:81"
    assert request.headers["proxy-authorization"] == "Basic dTpw"


@pytest.mark.parametrize(
    "answer", [fs.error(407, "who?"), fs.error(502), b"HTTP/1.1 200 OK\r\n\r\nno TLS here", b""]
)
def test_tunnels_that_fail(on_loop, authority, trusted, answer):
    """There is a typed error, no request was sent, and no password is in it."""

    async def ask():
        async with fs.FaultServer().says(fs.send_and_close(answer)) as proxy:
            with pytest.raises(ModelError) as caught:
                await fetch(
                    target("https://models.invalid/v1", proxy=f"http://u:pw5f2d@{proxy.host}"),
                    "POST",
                    b"",
                )
            return caught.value

    error = on_loop(ask())
    assert isinstance(error, ModelUnavailableError | BadResponseError)
    assert error.usage.calls == 0
    assert "pw5f2d" not in str(error)
