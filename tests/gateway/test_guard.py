"""Which requests reach the gateway: hosts, origins, bodies and keys, against a real server and raw
sockets.
"""

import asyncio
import json
import socket
import threading
import time
from contextlib import closing, contextmanager

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from redraft.gateway.config import GatewayConfig, GatewayLimits
from redraft.gateway.guard import Guard
from redraft.gateway.keys import FILE_NAME, KeyRing, KeyStore

MAX_BODY = 1000
MIB = 2**20


async def until(condition):
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def measure(request):
    """Say how large the body is."""
    return JSONResponse({"size": len(await request.body())})


async def echo(request):
    """Begin to reply before the body is read."""

    async def parts():
        yield b"begun "
        async for part in request.stream():
            yield part

    return StreamingResponse(parts())


async def ready(request):
    return JSONResponse({"ok": True})


APP = Starlette(
    routes=[
        Route("/v1/chat/completions", measure, methods=["POST", "GET"]),
        Route("/v1/messages", measure, methods=["POST"]),
        Route("/echo", echo, methods=["POST"]),
        *(Route(path, ready) for path in ("/healthz", "/readyz", "/metrics", "/mcp")),
    ]
)


class Server:
    """A guarded application on a free port."""

    def __init__(self, guard, http):
        self.guard = guard
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.uvicorn = uvicorn.Server(
            uvicorn.Config(
                guard,
                http=http,
                lifespan="off",
                log_level="error",
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )

    def send(self, request):
        """Send bytes as they are; return the status, the headers and the body of the reply."""
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
            connection.sendall(request)
            return read_reply(connection)

    def get(self, path="/v1/chat/completions", method="GET", body=None, **headers):
        """Send a request with these headers (underscores for hyphens); the Host header is ours
        unless it is given.
        """
        given = {
            "host": f"127.0.0.1:{self.port}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if body is not None:
            given["content-length"] = str(len(body))
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in given.items() if value is not None),
        ]
        return self.send(
            "\r\n".join([*lines, "connection: close", "", ""]).encode() + (body or b"")
        )


def read_reply(connection):
    data = b""
    while part := connection.recv(65536):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


@contextmanager
def serving(tmp_path, http="httptools", *, keys=None, key_paths=(), body_seconds=60.0, **values):
    config = GatewayConfig(tmp_path, limits=GatewayLimits(max_body=MAX_BODY), **values)
    server = Server(
        Guard(
            APP,
            config,
            keys=keys,
            key_paths=key_paths,
            body_seconds=body_seconds,
        ),
        http,
    )
    thread = threading.Thread(
        target=server.uvicorn.run, kwargs={"sockets": [server.socket]}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.uvicorn.should_exit = True
        thread.join(10)
        server.socket.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the defaults, one more host and one allowed origin."""
    with serving(
        tmp_path_factory.mktemp("gateway"),
        allowed_hosts=("gateway.internal", "*.example.com"),
        allowed_origins=("https://chat.example.com",),
    ) as server:
        yield server


# ---- hosts


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:1234", 200),
        ("LOCALHOST", 200),
        ("[::1]:8484", 200),
        ("gateway.internal", 200),
        ("a.example.com:80", 200),
        ("example.com", 421),
        ("evil.test", 421),
        ("localhost.evil.test", 421),
        ("evilexample.com", 421),
        ("10.0.0.1", 421),
        ("127.0.0.1@evil.test", 421),
        ("evil.test#127.0.0.1", 421),
        ("127.0.0.1:8484:1", 421),
        ("[::1", 421),
        ("", 421),
        (None, 400),
    ],
)
def test_only_our_own_names_are_served(server, host, status):
    """A foreign domain that resolves to this machine (DNS rebinding) gets nothing; the port may be
    that of a mapping.
    """
    got, headers, body = server.get(host=host)
    assert got == status
    if got == 421:
        assert (
            headers["x-should-retry"] == "false"
            and "allowed-hosts in the configuration allows others"
            in json.loads(body)["error"]["message"]
        )


def test_two_hosts_are_refused(server):
    """No server in front of the gateway can take one of them and the gateway the other."""
    request = b"GET /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nhost: evil.test\r\nconnection: close\r\n\r\n"
    assert server.send(request)[0] == 400


@pytest.mark.parametrize("host", ["10.0.0.1", "[2001:db8::1]:8484", "192.168.1.7:8484"])
def test_on_all_addresses_any_address_is_served_and_no_foreign_name(tmp_path, host):
    """Rebinding needs a name, and the addresses of the machine are not known."""
    with serving(tmp_path, host="0.0.0.0") as server:
        assert server.get(host=host)[0] == 200
        assert server.get(host="evil.test")[0] == 421


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_may_use_any_host(server, path):
    """Orchestrators send their own."""
    assert server.get(path, host="10.1.2.3:8484")[0] == 200


# ---- pages


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"origin": "https://chat.example.com"}, 200),
        ({"origin": "https://chat.example.com", "sec_fetch_site": "cross-site"}, 200),
        ({"origin": "http://chat.example.com"}, 403),
        ({"origin": "https://evil.test"}, 403),
        ({"origin": "https://chat.example.com.evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
    ],
)
def test_pages_are_refused_unless_their_origin_is_allowed(server, headers, status):
    """Programs send neither header. An allowed page may read the reply; caches keep the replies of
    origins apart.
    """
    got, reply, _ = server.get(method="POST", body=b"{}", **headers)
    assert got == status
    assert reply.get("access-control-allow-origin") == (
        headers.get("origin") if status == 200 else None
    )
    assert "access-control-allow-credentials" not in reply
    if status == 200 and "origin" in headers:
        assert (
            reply["vary"] == "origin"
            and "x-redraft-score" in reply["access-control-expose-headers"]
        )


def test_a_preflight_is_answered_for_allowed_origins_only(server):
    """The headers that the page wants to send are allowed; the application is not asked."""
    ask = {
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
    }
    status, headers, body = server.get(method="OPTIONS", origin="https://chat.example.com", **ask)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    assert "post" in headers["access-control-allow-methods"]
    status, headers, _ = server.get(method="OPTIONS", origin="https://evil.test", **ask)
    assert status == 403 and "access-control-allow-origin" not in headers


def test_an_allowed_page_can_read_errors(server):
    """Also those of the guard itself."""
    status, headers, _ = server.get(
        method="POST", body=b"x" * (MAX_BODY + 1), origin="https://chat.example.com"
    )
    assert status == 413 and headers["access-control-allow-origin"] == "https://chat.example.com"


# ---- bodies


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("size", "status"), [(0, 200), (MAX_BODY, 200), (MAX_BODY + 1, 413), (50 * MAX_BODY, 413)]
)
def test_bodies_are_limited_however_they_are_sent(tmp_path, http, chunked, size, status):
    """By the length that is announced, and by what arrives."""
    with serving(tmp_path, http) as server:
        if chunked:
            parts = b"".join(b"%x\r\n%s\r\n" % (100, b"x" * 100) for _ in range(size // 100))
            parts += b"%x\r\n%s\r\n" % (size % 100, b"x" * (size % 100)) if size % 100 else b""
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
            got, headers, body = server.send(head + parts + b"0\r\n\r\n")
        else:
            got, headers, body = server.get(method="POST", body=b"x" * size)
        assert got == status
        data = json.loads(body)
        if status == 200:
            assert data == {"size": size}
        else:
            assert (
                data["error"]["code"] == "request_too_large"
                and "1,000 bytes" in data["error"]["message"]
            )
            assert headers["x-should-retry"] == "false"
        assert server.guard.body_bytes == 0


def test_an_error_has_the_form_of_the_protocol_of_its_path(server):
    """A client of Anthropic reads Anthropic's."""
    status, _, body = server.get("/v1/messages", method="POST", body=b"x" * (MAX_BODY + 1))
    data = json.loads(body)
    assert (
        status == 413 and data["type"] == "error" and data["error"]["type"] == "request_too_large"
    )
    assert json.loads(server.get("/v1/messages", host="evil.test")[2])["type"] == "error"


@pytest.mark.parametrize(
    "length", ["-1", "1e3", "99999999999999999999999", "\u0663".encode().decode("latin-1"), "+5"]
)
def test_a_length_that_is_no_number_is_refused(server, length):
    """By the server or by the guard; never an error of the program."""
    assert server.get(method="POST", content_length=length)[0] in {400, 413}


def test_a_slow_body_is_given_up(tmp_path):
    """A client that sends a byte now and then gets 408, and its connection is closed."""
    with (
        serving(tmp_path, body_seconds=0.3) as server,
        socket.create_connection(("127.0.0.1", server.port), 60) as connection,
    ):
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n"
        )
        started_at = time.monotonic()
        connection.sendall(b"{")
        status, headers, body = read_reply(connection)
        assert (
            status == 408
            and headers["connection"] == "close"
            and json.loads(body)["error"]["code"] == "request_timeout"
        )
        assert time.monotonic() - started_at < 30


def test_a_reply_that_has_begun_is_broken_off(tmp_path):
    """A body that turns out too large later cannot get another status; the reply is incomplete, and
    memory is released.
    """
    with serving(tmp_path) as server:
        head = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
            connection.sendall(head + b"5\r\nhello\r\n")
            first = connection.recv(65536)
            assert first.startswith(b"HTTP/1.1 200")
            connection.sendall(b"".join(b"%x\r\n%s\r\n" % (500, b"x" * 500) for _ in range(3)))
            rest = b""
            while part := connection.recv(65536):
                rest += part
        assert not rest.endswith(b"0\r\n\r\n")
        assert server.guard.body_bytes == 0


@pytest.mark.parametrize(
    ("max_mib", "size", "fitting"),
    [(8, 8 * MIB, 64), (8, MIB, 512), (1, MIB, 512), (40, 40 * MIB, 16)],
)
async def test_large_bodies_share_a_limit(tmp_path, max_mib, size, fitting):
    """Requests in progress may hold 512 MiB, or sixteen of the largest bodies; one more is asked to
    come back, unless it is small.
    """
    release, config = (
        asyncio.Event(),
        GatewayConfig(tmp_path, limits=GatewayLimits(max_body=max_mib * MIB)),
    )
    waiting = 0

    async def hold(scope, receive, send):
        nonlocal waiting
        await receive()
        waiting += 1
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard, statuses, waits, large = Guard(hold, config), [], [], b"x" * size

    async def request(body):
        headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
        scope = {
            "type": "http",
            "path": "/",
            "method": "POST",
            "headers": headers,
            "client": ("127.0.0.1", 1),
        }

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            statuses.extend([message["status"]] if "status" in message else [])
            waits.extend(
                value for name, value in message.get("headers", ()) if name == b"retry-after"
            )

        await guard(scope, receive, send)

    tasks = [asyncio.create_task(request(large)) for _ in range(fitting)]
    await until(lambda: waiting == fitting)
    for body in (large, large[: 64 * 1024 + 1]):
        await request(body)
    assert (statuses, waits, guard.body_bytes) == ([503, 503], [b"1", b"1"], fitting * size)
    tasks += [asyncio.create_task(request(large[: 64 * 1024])) for _ in range(9)]
    await until(lambda: waiting == fitting + 9)
    release.set()
    await asyncio.gather(*tasks)
    assert statuses.count(200) == fitting + 9 and guard.body_bytes == 0


# ---- keys


@pytest.fixture
def keyed(tmp_path):
    """A guard that knows one key; /mcp needs it always, /metrics from elsewhere."""
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("ci")
    with closing(KeyStore(tmp_path / FILE_NAME)) as keys:
        config = GatewayConfig(tmp_path, host="0.0.0.0")
        yield Guard(APP, config, keys=keys, key_paths=("/mcp",)), secret


async def status_of(guard, path, client, **headers):
    """Return the status of a request as the server passes it on."""
    pairs = [
        (b"host", b"10.0.0.1"),
        *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
    ]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": pairs,
        "client": client,
        "query_string": b"",
        "root_path": "",
    }
    statuses = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        statuses.append(message.get("status"))

    await guard(scope, receive, send)
    return statuses[0]


@pytest.mark.parametrize(
    ("path", "client", "headers", "status"),
    [
        ("/metrics", ("127.0.0.1", 1), {}, 200),
        ("/metrics", ("::1", 1), {}, 200),
        ("/metrics", ("::ffff:127.0.0.1", 1), {}, 200),
        ("/metrics", ("10.0.0.9", 1), {}, 401),
        ("/metrics", ("127.0.0.1", 1), {"x_forwarded_for": "10.0.0.9"}, 401),
        ("/metrics", ("127.0.0.1", 1), {"forwarded": "for=10.0.0.9"}, 401),
        ("/metrics", None, {}, 401),
        ("/metrics", ("10.0.0.9", 1), {"x_api_key": "SECRET"}, 200),
        ("/mcp", ("127.0.0.1", 1), {}, 401),
        ("/mcp", ("127.0.0.1", 1), {"authorization": "Bearer SECRET"}, 200),
        ("/healthz", ("10.0.0.9", 1), {}, 200),
    ],
)
async def test_metrics_need_a_key_unless_on_this_machine(keyed, path, client, headers, status):
    """A proxy on this machine does not make its clients local."""
    guard, secret = keyed
    assert (
        await status_of(
            guard, path, client, **{k: v.replace("SECRET", secret) for k, v in headers.items()}
        )
        == status
    )


async def test_a_client_of_aiohttp_reads_the_refusal(server):
    """A client that is still sending a large body gets the status, not a broken connection."""
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        async with session.post(url, data=b"x" * 100_000) as reply:
            assert reply.status == 413
        async with session.post(url, data=b"x") as reply:
            assert await reply.json() == {"size": 1}


async def test_a_new_configuration_takes_effect_at_once(keyed, tmp_path):
    """After a reload."""
    guard, _ = keyed
    assert await status_of(guard, "/v1/chat/completions", None) == 200
    guard.configure(GatewayConfig(tmp_path, allowed_origins=("https://new.test",)))
    assert await status_of(guard, "/v1/chat/completions", None) == 421
    assert await status_of(guard, "/healthz", None, origin="https://new.test") == 200
