"""What a server, a proxy or a caller may do to a connection, and what the HTTP client makes of
it.
"""

import asyncio
import gc
import logging
import socket
import subprocess
import sys
import time

import idna
import pytest

from redraft.errors import ConfigError, ModelError, ModelTimeoutError
from redraft.models import Chat
from redraft.models.http_client import RequestTarget, Timeouts, fetch, open_exchange

from .http_servers import HI, OK, Proxy, read_request, server_context, serving

QUICK = Timeouts(total=2.0)


def post(url, headers=None, body=b"{}", timeouts=QUICK, proxy=None):
    return fetch(RequestTarget(url, headers or {}, timeouts, proxy=proxy), "POST", body)


async def outcome(*args, **kwargs):
    try:
        status, _, body = await post(*args, **kwargs)
    except ModelError as error:
        return error
    return status, body


# ---- framing


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
    """As aiohttp, curl and browsers read them (RFC 9112: a recipient MAY recognize a single LF as a
    line terminator).
    """
    async with serving(raw) as port:
        assert await outcome(f"http://localhost:{port}/") == (200, b"hi")


# ---- proxies


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"\r\n",
        OK + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 Connection established\r\n\r\n",
    ],
)
async def test_tunnel(authority, trusted, reply):
    """RFC 9110: a client must ignore Content-Length and Transfer-Encoding in a successful response
    to CONNECT.
    """
    seen = []

    async def answer(reader, writer):
        while True:
            seen.append(await read_request(reader))
            writer.write(HI)

    proxy = Proxy(reply)
    async with serving(answer, server_context(authority)) as port, serving(proxy) as proxy_port:
        url, via = (
            f"https://localhost:{port}/v1?key=sk-1",
            f"http://me:p%40ss@localhost:{proxy_port}",
        )
        found = [
            await outcome(url, {"Authorization": "Bearer sk-secret"}, proxy=via) for _ in range(2)
        ]
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
        first = asyncio.ensure_future(
            outcome(url, {"Authorization": "Bearer sk-secret"}, proxy=via)
        )
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

    async with (
        serving(answer, server_context(authority)) as port,
        serving(Proxy(OK + length + b"\r\n")) as proxy_port,
    ):
        url, via = f"https://localhost:{port}/", f"http://localhost:{proxy_port}"
        assert await outcome(url, body=b"first", proxy=via) == (200, b"first")
        bodies = [b"%d" % n for n in range(4)]
        found = await asyncio.gather(*(outcome(url, body=body, proxy=via) for body in bodies))
        assert found == [(200, body) for body in bodies]


async def test_a_proxy_that_closes_its_tunnel_is_unreachable(authority, trusted):
    """Also if it announces that it closes the connection: the error is a ModelError."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n")

    async with serving(answer) as proxy_port:
        found = await outcome("https://localhost:1/", proxy=f"http://localhost:{proxy_port}")
    assert isinstance(found, ModelError) and found.retryable and found.usage.calls == 0


# ---- names and addresses


@pytest.fixture
async def resolver(monkeypatch):
    """Let `answers`, a list, say what a look-up does: an exception, or a number of seconds before
    it answers this machine.
    """
    answers, loop = [], asyncio.get_running_loop()
    look_up = loop.getaddrinfo

    async def getaddrinfo(host, port, **options):
        answer = answers.pop(0) if answers else 0
        if isinstance(answer, tuple):
            await asyncio.sleep(answer[0])
            raise answer[1]
        await asyncio.sleep(answer)
        return await look_up("127.0.0.1", port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return answers


async def test_a_name_that_ends_with_a_dot_has_the_certificate_of_the_same_without(
    authority, trusted, resolver
):
    """A fully qualified name, as in `https://api.example.test./v1`."""
    async with serving(HI, server_context(authority, "api.example.test")) as port:
        assert await outcome(f"https://api.example.test.:{port}/") == (200, b"hi")


def test_a_late_failure_of_a_look_up_is_not_logged(caplog):
    """The request has ended long before."""

    async def ask():
        async def getaddrinfo(host, port, **options):
            await asyncio.sleep(0.2)
            raise socket.gaierror(-2, "Name or service not known")

        asyncio.get_running_loop().getaddrinfo = getaddrinfo
        assert isinstance(
            await outcome("http://slow.test/", timeouts=Timeouts(connect=0.05)), ModelTimeoutError
        )
        await asyncio.sleep(0.3)

    with caplog.at_level(logging.ERROR):
        asyncio.run(ask())
        gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_cancelled_request_ends_no_look_up_of_another(resolver, cancelled):
    """Both wait for the same name."""
    async with serving(HI) as port:
        resolver.append(0.3)
        requests = [asyncio.create_task(outcome(f"http://slow.test:{port}/")) for _ in range(2)]
        await asyncio.sleep(0.1)
        requests[cancelled].cancel()
        ends = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(ends.pop(cancelled), asyncio.CancelledError)
        assert ends == [(200, b"hi")]


async def test_a_cancelled_look_up_cancels_no_other_request(resolver):
    """Something cancels all tasks of the loop; a later request looks the name up again."""
    async with serving(HI) as port:
        resolver.append(0.5)
        others = asyncio.all_tasks()
        first = asyncio.ensure_future(outcome(f"http://api.test:{port}/"))
        await asyncio.sleep(0.05)
        for task in asyncio.all_tasks() - others:
            task.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await outcome(f"http://api.test:{port}/") == (200, b"hi")


@pytest.mark.parametrize(
    "error", [UnicodeError("label too long"), ValueError("embedded null character")]
)
async def test_a_host_that_cannot_be_looked_up_is_unreachable(resolver, error):
    """Python raises these for some names of hosts, such as that of a proxy in the environment."""
    resolver.append((0, error))
    assert isinstance(
        await outcome("http://localhost:1/", proxy="http://odd.test:3128"), ModelError
    )


@pytest.mark.parametrize(
    "headers", [{"X-A": "a\udc80"}, {"X-A": "a\x01b"}, {"X-A": "a\r\nB: c"}, {"X\nA": "a"}]
)
async def test_headers_that_cannot_be_sent(headers):
    """The error is a ModelError, and nothing was sent."""
    async with serving(HI) as port:
        found = await outcome(f"http://localhost:{port}/", headers)
    assert isinstance(found, ModelError) and not found.retryable and found.usage.calls == 0


async def test_a_url_with_a_lone_surrogate_cannot_be_sent():
    """As a path from a file name may contain one."""
    assert isinstance(await outcome("http://localhost:1/\udc80"), ModelError)


@pytest.mark.parametrize("host", ["stra\xdfe.test", "\u03b2\u03cc\u03bb\u03bf\u03c2.test"])
def test_a_key_goes_to_no_other_host_than_in_a_browser(host):
    """The codec of Python (IDNA 2003) makes another host of these than browsers and aiohttp (IDNA
    2008): they must be encoded.
    """
    with pytest.raises(ConfigError, match="write it as xn--"):
        Chat("m", f"https://{host}/v1")
    assert Chat("m", f"https://{idna.encode(host, uts46=True).decode()}/v1")


# ---- responses


async def test_space_after_the_value_of_a_header_is_no_part_of_it():
    """RFC 9110: a parser must exclude such whitespace."""
    async with serving(OK + b"X-A:  a b \t \r\nContent-Length: 0\r\n\r\n") as port:
        _, headers, _ = await post(f"http://localhost:{port}/")
    assert headers["x-a"] == "a b"


@pytest.mark.parametrize("switch", [b"Upgrade: x\r\nConnection: upgrade\r\n", b""])
async def test_the_error_for_another_protocol_says_so(switch):
    """Not the position of a byte, or a term of the parser."""
    async with serving(b"HTTP/1.1 101 Switching\r\n" + switch + b"\r\n") as port:
        assert "protocol" in str(await outcome(f"http://localhost:{port}/"))


# ---- large bodies


UPLOAD = """
import asyncio, resource, sys, time
from redraft.models import http_sessions  # whose import takes time of its own
from redraft.models.http_client import RequestTarget, Timeouts, fetch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

async def main():
    body, longest = b"a" * (100 * 2**20), 0.0
    before = peak()
    sending = asyncio.ensure_future(fetch(RequestTarget(sys.argv[1], {}, Timeouts(total=60)), "POST", body))
    while not sending.done():
        start = time.process_time()
        await asyncio.sleep(0.002)
        longest = max(longest, time.process_time() - start)
    print((await sending)[0], peak() - before, round(longest * 1000))

asyncio.run(main())
"""


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.slow
async def test_a_large_body_is_not_copied(authority, trusted, scheme):
    """100 MiB take hardly more memory than the body itself, and other tasks run meanwhile."""

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        left = int(head.lower().partition(b"content-length: ")[2].split()[0])
        while left:
            left -= len(await reader.read(2**20))
        writer.write(HI)

    async with serving(answer, server_context(authority) if scheme == "https" else None) as port:
        command = [sys.executable, "-c", UPLOAD, f"{scheme}://localhost:{port}/"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        status, extra, longest = map(int, (await process.communicate())[0].split())
    assert status == 200
    assert (extra < 30, longest < 100) == (True, True), (extra, longest)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_connection_with_an_unsent_body_is_not_used_again(authority, trusted, scheme):
    """The server refuses a body early, keeps the connection, and does not read the rest."""

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        if length < 1000:
            writer.write(HI)
        else:
            writer.write(b"HTTP/1.1 413 Too large\r\nContent-Length: 2\r\n\r\nno")
            await asyncio.sleep(30)

    async with serving(answer, server_context(authority) if scheme == "https" else None) as port:
        assert await outcome(f"{scheme}://localhost:{port}/", body=b"a" * (16 * 2**20)) == (
            413,
            b"no",
        )
        start = time.monotonic()
        assert await outcome(f"{scheme}://localhost:{port}/") == (200, b"hi")
        assert time.monotonic() - start < 20


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_server_waits_for_the_reader(authority, trusted, scheme):
    """Little of a body is kept before it is read, and then all of it arrives."""
    sent, piece, pieces = 0, b"8000\r\n" + b"a" * 0x8000 + b"\r\n", 1500

    async def answer(reader, writer):
        nonlocal sent
        await read_request(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()
            sent += 0x8000
        writer.write(b"0\r\n\r\n")

    async with serving(answer, server_context(authority) if scheme == "https" else None) as port:
        target = RequestTarget(f"{scheme}://localhost:{port}/", {}, Timeouts(total=30))
        async with open_exchange(target, "POST", b"{}", stream=True) as (exchange, response):
            await asyncio.sleep(0.3)
            assert sent < 20 * 2**20
            received = 0
            async for part in exchange.iter_body(response):
                received += len(part)
        assert received == pieces * 0x8000


@pytest.mark.parametrize(
    "unasked", [b"", b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"], ids=["nothing", "400"]
)
async def test_a_connection_that_is_lost_before_the_request_fails_at_once(monkeypatch, unasked):
    """The event loop has other work between the two, or uvloop delivers the end first; the request
    counts as not sent.
    """
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def create_connection(*args, **options):
        connected = await connect(*args, **options)
        await asyncio.sleep(0.1)
        return connected

    async def answer(reader, writer):
        writer.write(unasked)

    async with serving(answer) as port:
        monkeypatch.setattr(loop, "create_connection", create_connection)
        found = await outcome(f"http://localhost:{port}/")
    assert (
        isinstance(found, ModelError)
        and not isinstance(found, ModelTimeoutError)
        and found.usage.calls == 0
    )
