"""What a server, a proxy or a caller may do to a connection, and what the HTTP client makes of it."""

import asyncio
import os
import ssl
from contextlib import asynccontextmanager

import pytest
import trustme

from redraft.errors import ModelError, ModelTimeoutError
from redraft.models.http_client import RequestTarget, Timeouts, fetch, open_exchange, shared_connections
from redraft.models.http_connections import find_route

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"Content-Length: 2\r\n\r\nhi"
QUICK = Timeouts(total=2.0)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def trusted(authority, tmp_path, monkeypatch):
    """Trust the authority."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


def server_context(authority, *names):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("localhost", "127.0.0.1", "::1"))).configure_cert(context)
    return context


@asynccontextmanager
async def serving(answer, tls=None):
    """A server that calls `answer(reader, writer)` for each connection, or sends these bytes for each request."""
    tasks = set()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            if not isinstance(answer, bytes):
                await answer(reader, writer)
                return
            while await read_request(reader):
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "localhost", 0, ssl=tls, family=2)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader):
    """Return the head and the body of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return head, await reader.readexactly(length)


class Proxy:
    """A proxy with CONNECT: it records the heads that it reads, and what it forwards."""

    def __init__(self, reply=OK + b"\r\n", to=None):
        self.reply, self.to, self.heads, self.forwarded = reply, to, [], b""

    async def __call__(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        if method != "CONNECT":
            writer.write(HI)
            return
        writer.write(self.reply)
        if not self.reply.split(b" ", 1)[1].startswith(b"200"):
            return
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            await asyncio.gather(self.copy(reader, far_writer, record=True), self.copy(far_reader, writer))
        finally:
            far_writer.close()

    async def copy(self, reader, writer, record=False):
        while data := await reader.read(65536):
            if record:
                self.forwarded += data
            writer.write(data)
            await writer.drain()
        writer.close()


def post(url, headers=None, body=b"{}", timeouts=QUICK, proxy=None):
    return fetch(RequestTarget(url, headers or {}, timeouts, proxy=proxy), "POST", body)


async def outcome(*args, **kwargs):
    try:
        status, _, body = await post(*args, **kwargs)
    except ModelError as error:
        return error
    return status, body


# ---- framing


@pytest.mark.parametrize(
    "second",
    [HI.replace(b"hi", b"no"), OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n", OK + b"Content-Length: 9\r\n\r\nn"],
)
@pytest.mark.parametrize("first, body", [(HI, b"hi"), (OK + b"Content-Length: 0\r\n\r\n", b"")])
async def test_a_second_response_is_no_part_of_the_first(first, body, second):
    """Its body is not added to that of the first, and the connection is not used again."""
    async with serving(first + second) as port:
        assert await outcome(f"http://localhost:{port}/") == (200, body)
        assert await outcome(f"http://localhost:{port}/") == (200, body)


async def test_a_cut_body_is_not_whole_if_two_headers_name_its_encoding():
    """The last Transfer-Encoding says that it is chunked."""

    async def answer(reader, writer):
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi")

    async with serving(answer) as port:
        assert isinstance(await outcome(f"http://localhost:{port}/"), ModelError)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nhi",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2  \r\nhi\r\n0  \r\n\r\n",
        OK + b"X-A: a\r\n b\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"X-A: a\x01b\r\nContent-Length: 2\r\n\r\nhi",
    ],
    ids=["LF", "mixed", "chunk size with spaces", "folded header", "control character"],
)
async def test_responses_of_imprecise_servers_are_read(raw):
    """As aiohttp, curl and browsers read them (RFC 9112: a recipient MAY recognize a single LF as a line terminator)."""
    async with serving(raw) as port:
        assert await outcome(f"http://localhost:{port}/") == (200, b"hi")


@pytest.mark.parametrize("trailer", [b"X-A: ", b"X: y\r\n" * 10], ids=["one", "many"])
@pytest.mark.slow
async def test_the_trailers_of_a_large_body_are_limited(trailer):
    """A body of 1 MiB does not allow 16 MiB of trailers."""
    sent = 0

    async def answer(reader, writer):
        nonlocal sent
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"a" * 2**20 + b"\r\n0\r\n" + trailer)
        await writer.drain()
        filling = b"a" * 2**16 if trailer == b"X-A: " else trailer * 1000
        while True:
            writer.write(filling)
            await writer.drain()
            sent += len(filling)

    async with serving(answer) as port:
        failure = await outcome(f"http://localhost:{port}/", timeouts=Timeouts(total=20))
        assert "too large" in str(failure)
        assert sent < 12 * 2**20  # (what is in the buffers of both sides counts, too)


# ---- proxies


@pytest.mark.parametrize("reply", [OK + b"\r\n", OK + b"Content-Length: 0\r\n\r\n", b"HTTP/1.0 200 Connection established\r\n\r\n"])
async def test_tunnel(authority, trusted, reply):
    """RFC 9110: a client must ignore Content-Length and Transfer-Encoding in a successful response to CONNECT."""
    seen = []

    async def answer(reader, writer):
        while True:
            seen.append(await read_request(reader))
            writer.write(HI)

    proxy = Proxy(reply)
    async with serving(answer, server_context(authority)) as port, serving(proxy) as proxy_port:
        url, via = f"https://localhost:{port}/v1?key=sk-1", f"http://me:p%40ss@localhost:{proxy_port}"
        found = [await outcome(url, {"Authorization": "Bearer sk-secret"}, proxy=via) for _ in range(2)]
        assert found == [(200, b"hi")] * 2
    assert len(proxy.heads) == 1 and b"Proxy-Authorization: Basic bWU6cEBzcw==" in proxy.heads[0]
    assert b"sk-" not in b"".join(proxy.heads) + proxy.forwarded
    assert all(b"proxy" not in head.lower() for head, _ in seen)


async def test_a_request_never_goes_to_the_proxy_in_clear(authority, trusted):
    """While one request waits for the tunnel, another does not take its connection."""
    heard = []

    async def answer(reader, writer):
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        while data := await reader.read(65536):
            heard.append(data)

    async with serving(answer) as proxy_port:
        url, via = "https://localhost:1/v1", f"http://localhost:{proxy_port}"
        first = asyncio.ensure_future(outcome(url, {"Authorization": "Bearer sk-secret"}, proxy=via))
        await asyncio.sleep(0.3)
        await outcome(url, {"Authorization": "Bearer sk-secret"}, proxy=via)
        await first
    assert not [data for data in heard if b"sk-secret" in data]


@pytest.mark.parametrize("length", [b"", b"Content-Length: 0\r\n"], ids=["", "Content-Length"])
async def test_requests_through_a_tunnel_do_not_share_a_connection(authority, trusted, length):
    """Each has the answer to its own body."""

    async def answer(reader, writer):
        while True:
            _, body = await read_request(reader)
            await asyncio.sleep(0.02)
            writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async with serving(answer, server_context(authority)) as port, serving(Proxy(OK + length + b"\r\n")) as proxy_port:
        url, via = f"https://localhost:{port}/", f"http://localhost:{proxy_port}"
        assert await outcome(url, body=b"first", proxy=via) == (200, b"first")
        bodies = [b"%d" % n for n in range(4)]
        found = await asyncio.gather(*(outcome(url, body=body, proxy=via) for body in bodies))
        assert found == [(200, body) for body in bodies]
