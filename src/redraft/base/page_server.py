"""A server of local pages on 127.0.0.1 for one user: an address with a secret, a browser that is
shown it, and `AccessControl`, an ASGI middleware around the whole application, which decides who
reads and writes. It does not know what is shown. Needs `redraft[view]`.

The secret is a random token, the first part of every path. It is no cookie, because browsers send
the cookies of 127.0.0.1 to every port of it, so that other users of the machine could collect them
with a server of their own. Besides the token:

- The Host header must name this server, so that a foreign domain that resolves to 127.0.0.1 (DNS
  rebinding) reaches nothing.
- A request that another page causes is refused by its Origin and Sec-Fetch headers; following a
  link to the page is allowed.
- Each reply forbids scripts, styles, pictures and connections that are not the page's own, and
  being framed or cached.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import webbrowser
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 2
HOST_NAME = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
READ_METHODS = {"GET", "HEAD"}
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def host_name(host: str) -> str:
    """Return the name in a Host header or an origin's authority: in lower case, without the port;
    "" if it is malformed.
    """
    match = HOST_NAME.fullmatch(host.lower())
    return match["name"] if match else ""


def is_caused_elsewhere(site: str | None) -> bool:
    """Whether another page causes a request, by its Sec-Fetch-Site header. Only browsers send
    one.
    """
    return site not in {None, "none", "same-origin"}


def csp_hash(text: str) -> str:
    """Return the source expression that allows one inline style or script, such as
    "'sha256-...'".
    """
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def content_security_policy(styles: Iterable[str] = ()) -> str:
    """Return the policy of a page: only its own files, and these inline styles (their texts)."""
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": " ".join(("'self'", *map(csp_hash, styles))),
        "img-src": "'self'",
        "connect-src": "'self'",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@dataclass(frozen=True)
class AccessControl:
    """Passes the requests on that know the token and come from the page itself; refuses all others.

    `port`: the port of the server on 127.0.0.1. `styles`: the texts of the inline styles that pages
    may contain.
    """

    app: ASGIApp
    token: str
    port: int
    styles: tuple[str, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        policy = content_security_policy(self.styles)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**HEADERS, "Content-Security-Policy": policy})
            await send(message)

        app = self._refusal(scope) or self.app
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Return the reply to a request that is refused; None for one that is not."""
        headers = Headers(scope=scope)
        ports = ("", ":80") if self.port == 80 else (f":{self.port}",)
        hosts = {name + port for name in (HOST, "localhost") for port in ports}
        if headers.get("host") not in hosts:
            return PlainTextResponse(f"This server answers to {HOST} only.", 421)
        token = scope["path"].removeprefix("/").partition("/")[0]
        if not compare_digest(token.encode("utf-8", "surrogatepass"), self.token.encode()):
            return PlainTextResponse("Open the whole address that Redraft printed.", 404)
        if not _is_own_request(scope["method"], headers, {f"http://{host}" for host in hosts}):
            return PlainTextResponse("Another page caused this request.", 403)
        return None


def _is_own_request(method: str, headers: Headers, origins: set[str]) -> bool:
    """Whether the page itself or its user caused a request. Other programs than browsers may only
    read.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin not in origins:
        return False
    if method in READ_METHODS:
        is_link = (
            headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        return not is_caused_elsewhere(site) or is_link
    return method == "POST" and origin in origins and site in {None, "same-origin"}


class PageServer:
    """Listens on a port of 127.0.0.1 (0: any free one). Raises ConfigError for a port that cannot
    be had.

    `url` is the address with the secret; `run` serves until Ctrl-C, SIGTERM or `stop`.
    """

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        # with the protocol named, asyncio sends small replies at once (TCP_NODELAY)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"--port {port}: {HOST}:{port} cannot be served: {error.strerror or error}"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None

    @property
    def root(self) -> str:
        """The first part of every path: a slash and the token."""
        return f"/{self.token}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{self.root}/"

    def run(
        self, app: ASGIApp, styles: Iterable[str] = (), on_start: Callable[[], None] = lambda: None
    ) -> None:
        """Serve an application whose paths begin with `root`. `styles`: as in `AccessControl`."""
        import uvicorn  # not needed by those who only check access

        guarded = AccessControl(app, self.token, self.port, tuple(styles))
        config = uvicorn.Config(
            guarded,
            http="h11",  # which limits the size of headers
            lifespan="off",
            ws="none",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)
        # from before the address is known
        with suppress(KeyboardInterrupt), self._server.capture_signals():
            on_start()
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Make `run` return soon. Any thread may call it."""
        if self._server:
            self._server.should_exit = True

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


@contextmanager
def browser_page(url: str) -> Iterator[None]:
    """Show an address in the user's browser within the context.

    The browser is started with a private file that leads to the address: other users of the machine
    can read the arguments of its process. It is started in a thread, because a browser that runs in
    the terminal ends when its user leaves it.
    """
    with TemporaryDirectory(prefix="redraft-") as folder:
        page = Path(folder) / "open.html"
        page.touch(mode=0o600)
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url)}">',
            encoding="utf-8",
        )
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield
