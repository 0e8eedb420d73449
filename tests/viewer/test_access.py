"""Who may read a local page: whoever knows its address, and no page or program that does not."""

import http.client
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Mount, Route

from redraft.base.page_server import AccessControl, browser_page, content_security_policy, csp_hash

from .conftest import serving


def app(server):
    async def page(request):
        return HTMLResponse("the page")

    return Starlette(
        routes=[Mount(server.root, routes=[Route("/page", page, methods=["GET", "POST"])])]
    )


@pytest.fixture(scope="module")
def server():
    with serving(app) as running:
        yield running


def request(server, method="GET", path=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest(
        method, f"{server.root}/page" if path is None else path, skip_host="Host" in sent
    )
    for name, value in sent.items():
        connection.putheader(name, value.format(port=server.port))
    connection.putheader("Content-Length", "0")
    connection.endheaders()
    reply = connection.getresponse()
    body = reply.read().decode()
    connection.close()
    return reply, body


OWN = "http://127.0.0.1:{port}"
LINK = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (200, "GET", {}),
        (200, "GET", {"Host": "localhost:{port}"}),
        (200, "GET", {"Sec_Fetch_Site": "none"}),
        (200, "GET", {"Sec_Fetch_Site": "same-origin", "Origin": OWN}),
        (200, "GET", LINK),
        (421, "GET", {"Host": "evil.example:{port}"}),
        (421, "GET", {"Host": "127.0.0.1.evil.example"}),
        (421, "GET", {"Host": "127.0.0.1"}),
        (421, "GET", {"Host": ""}),
        (403, "GET", {"Origin": "http://evil.example"}),
        (403, "GET", {"Origin": "null"}),
        (403, "GET", {"Origin": "https://127.0.0.1:{port}"}),
        (403, "GET", {"Sec_Fetch_Site": "cross-site"}),
        (403, "GET", {"Sec_Fetch_Site": "same-site"}),
        (403, "GET", {**LINK, "Sec_Fetch_Dest": "iframe"}),
        (200, "POST", {"Origin": OWN, "Sec_Fetch_Site": "same-origin"}),
        (200, "POST", {"Origin": OWN}),
        (403, "POST", {}),
        (403, "POST", {"Origin": "null"}),
        (403, "POST", {"Origin": "http://evil.example"}),
        (403, "POST", {"Origin": "http://127.0.0.1:1"}),
        (403, "POST", {"Origin": OWN, "Sec_Fetch_Site": "same-site"}),
        (403, "POST", {**LINK, "Origin": OWN}),
        (403, "PUT", {"Origin": OWN}),
    ],
)
def test_requests_of_others_are_refused(server, status, method, headers):
    """A refused request never reaches the page."""
    reply, body = request(server, method, **headers)
    assert reply.status == status
    assert (body == "the page") is (status == 200)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: "",
        lambda t: t[:-1],
        lambda t: t + "x",
        lambda t: t.swapcase(),
        lambda t: "é",
        lambda t: f"./{t}",
    ],
)
def test_a_wrong_token_finds_nothing(server, change):
    """The address without its secret is no address."""
    reply, body = request(
        server, path=f"/{change(server.token).encode('ascii', 'ignore').decode()}/page"
    )
    assert reply.status == 404
    assert "the page" not in body


def test_every_reply_forbids_what_is_not_its_own(server):
    """Refusals, too, carry the headers; nothing sets a cookie, which other ports of this machine
    would receive.
    """
    for headers in ({}, {"Host": "evil.example"}, {"Origin": "null"}):
        reply, _ = request(server, **headers)
        policy = reply.headers["Content-Security-Policy"]
        assert (
            "default-src 'none'" in policy
            and "frame-ancestors 'none'" in policy
            and "unsafe" not in policy
        )
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["Referrer-Policy"] == "same-origin"
        assert "Set-Cookie" not in reply.headers


def test_tokens_are_long_and_never_the_same():
    """Two servers have different secrets."""
    with serving(app) as one, serving(app) as two:
        assert one.token != two.token
        assert min(len(one.token), len(two.token)) >= 32


def test_an_inline_style_is_allowed_by_its_hash():
    """The policy names the hash of the style, as CSP level 2 writes it."""
    assert csp_hash("") == "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    assert csp_hash("a {}") in content_security_policy(["a {}"])


def test_replies_do_not_wait(server):
    """A small reply on an open connection is sent at once: Nagle's algorithm, which holds it back
    for 40 ms, is off.
    """
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert connection.recv(1)
        connections = server._server.server_state.connections
        (served,) = (each for each in connections if each.client == connection.getsockname())
        assert served.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY
        )


def test_the_browser_is_given_the_address_in_a_private_file(monkeypatch):
    """Not as an argument, which other users can read; and a browser that does not return holds
    nothing up.
    """
    opened, release = [], threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda uri: (opened.append(uri), release.wait(60)))
    with browser_page("http://127.0.0.1:1/secret/"):
        while not opened:
            pass
        (uri,) = opened
        path = Path(url2pathname(urlsplit(uri).path))
        assert "secret" not in uri and "url=http://127.0.0.1:1/secret/" in path.read_text()
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
        release.set()
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("port", "host", "status"),
    [(80, "127.0.0.1", 200), (80, "localhost:80", 200), (81, "127.0.0.1", 421)],
)
def test_browsers_leave_out_port_80(port, host, status):
    """The Host header of http://127.0.0.1:80 has no port."""
    from starlette.testclient import TestClient

    guarded = AccessControl(PlainTextResponse("the page"), "secret", port)
    assert TestClient(guarded).get("/secret/", headers={"Host": host}).status_code == status
