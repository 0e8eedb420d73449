"""Which requests reach the gateway at all: `Guard`, an ASGI middleware around the whole
application.

- The Host header must name this gateway, so that a foreign domain that resolves to it (DNS
  rebinding) reaches nothing. The port is not compared: it differs behind a port mapping, and it
  protects nothing. If the gateway listens on all addresses, any IP address is accepted, because
  rebinding needs a name.
- A request that a web page causes is refused unless the page's origin is one of `allowed_origins`,
  which get CORS headers.
- A body larger than `max_body` is refused (413), by its Content-Length or while it is read; so is
  one that takes too long (408), and one of more than 64 KiB for which other bodies leave no memory
  (503).
- `/metrics` and `/openapi.json` need a key unless the client is on this machine. `/healthz` and
  `/readyz` are free and work with any Host.

It refuses in the form of the protocol that the path belongs to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..base.page_server import host_name, is_caused_elsewhere
from .config import GatewayConfig
from .exchange import GatewayError
from .keys import KeyStore
from .neutral import ProtocolName
from .protocols.protocol import ClientProtocol

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  (what an address may be, not where to listen)
FREE_PATHS = frozenset({"/healthz", "/readyz"})
BODY_SECONDS = 60.0  # for a whole body
BODIES_IN_MEMORY = 16  # as many of the largest size may be in memory together,
BODY_BYTES = 512 * 2**20  # and at least so many bytes
SMALL_BODY_BYTES = 64 * 1024  # a body up to this size is never refused for the bytes of others
PREFLIGHT_SECONDS = 600
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
EXPOSED_HEADERS = (
    "retry-after, x-should-retry, x-request-id, request-id, x-redraft-trace-id, x-redraft-score, "
    "x-redraft-iterations, x-redraft-stop, x-redraft-reason, x-redraft-cost, x-redraft-notice, "
    "x-redraft-ignored"
)


def protocol_of(path: str) -> ProtocolName:
    """Return the protocol that a path belongs to."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "messages"
    return "responses" if path == "/v1/responses" or path.startswith("/v1/responses/") else "chat"


class Guard:
    """Passes the allowed requests on. `protocols` write the errors; `configure` changes what is
    allowed.

    `key_paths`: paths (with all below them) that need a key. `local_key_paths`: those that need
    none from this machine. `host_setting`, `origin_setting`: what allows another host or origin,
    for the message to a client that is refused; "": nothing.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: GatewayConfig,
        *,
        protocols: Mapping[ProtocolName, ClientProtocol] = {},
        keys: KeyStore | None = None,
        key_paths: Iterable[str] = (),
        local_key_paths: Iterable[str] = ("/metrics",),
        body_seconds: float = BODY_SECONDS,
        host_setting: str = "allowed-hosts in the configuration",
        origin_setting: str = "allowed-origins in the configuration",
    ) -> None:
        self._app, self._protocols, self._keys = app, dict(protocols), keys
        self._host_setting, self._origin_setting = host_setting, origin_setting
        self._key_paths, self._local_key_paths = tuple(key_paths), tuple(local_key_paths)
        self._body_seconds = body_seconds
        self.body_bytes = 0  # of all requests in progress
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Use the hosts, origins and limits of a configuration."""
        own = host_name(f"[{config.host}]" if ":" in config.host else config.host)
        self._any_address = config.host in WILDCARDS
        self._hosts = LOOPBACK_NAMES | {own} | {name.lower() for name in config.allowed_hosts}
        self._domains = tuple(
            name[1:].lower() for name in config.allowed_hosts if name.startswith("*.")
        )
        self._origins = frozenset(origin.lower().rstrip("/") for origin in config.allowed_origins)
        self.max_body = config.limits.max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.lower() in self._origins:
            send = _with_cors(send, origin)
        try:
            self._check_source(scope, headers)
            if (
                origin is not None
                and scope["method"] == "OPTIONS"
                and "access-control-request-method" in headers
            ):
                await _send(send, 204, _preflight_headers(headers))
                return
            self._check_key(scope, headers)
            self._check_length(headers)
        except GatewayError as error:
            await self._send_error(scope, send, error)
            return
        await self._serve(scope, headers, receive, send)

    # ---- headers

    def _check_source(self, scope: Scope, headers: Headers) -> None:
        """Raise GatewayError for another host than this gateway, and for pages that may not call
        it.
        """
        if scope["path"] not in FREE_PATHS:
            self._check_host(headers)
        self._check_origin(headers)

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        needs_key = _is_below(path, self._local_key_paths) and not _is_local(scope, headers)
        if self._keys is not None and (needs_key or _is_below(path, self._key_paths)):
            self._keys.authenticate(headers, path)

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise GatewayError(
                400,
                "invalid_request",
                f"Content-Length must be a number of bytes, got {length[:50]!r}",
            )
        if int(length) > self.max_body:
            raise self._size_error()

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise GatewayError(
                400, "invalid_host", f"a request has one Host header, got {len(hosts)}"
            )
        name = host_name(hosts[0])
        if not name or not (
            name in self._hosts
            or name.endswith(self._domains)
            or (self._any_address and _is_address(name))
        ):
            message = (
                "this server does not answer to the host "
                f"{hosts[0][:200]!r}{_allows_others(self._host_setting)}"
            )
            raise GatewayError(421, "invalid_host", message, should_retry=False)

    def _check_origin(self, headers: Headers) -> None:
        origins = headers.getlist("origin")
        if origins:
            if len(origins) == 1 and origins[0].lower() in self._origins:
                return
            message = (
                f"pages of {origins[0][:200]!r} may not call this "
                f"server{_allows_others(self._origin_setting)}"
            )
            raise GatewayError(403, "origin_not_allowed", message, should_retry=False)
        if is_caused_elsewhere(headers.get("sec-fetch-site")):
            raise GatewayError(
                403, "origin_not_allowed", "another page caused this request", should_retry=False
            )

    # ---- the body

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if not has_body:
            await self._app(scope, receive, send)
            return
        body = BodyReader(self, receive)
        replying = False

        async def send_unless_refused(message: Message) -> None:
            nonlocal replying
            if body.error is not None and not replying:
                return  # the reply below says what was wrong with the body
            replying = True
            await send(message)

        try:
            await self._app(scope, body.receive, send_unless_refused)
        except GatewayError:
            if body.error is None:
                raise
        finally:
            self.body_bytes -= body.size
            if body.error is not None and not replying:
                await self._send_error(scope, send, body.error)

    def check_body(self, size: int, added: int) -> None:
        """Raise GatewayError if a body of this size, of which `added` bytes are new, is too large
        or memory is short.
        """
        if size > self.max_body:
            raise self._size_error()
        self.body_bytes += added
        if size > SMALL_BODY_BYTES and self.body_bytes > max(
            BODY_BYTES, BODIES_IN_MEMORY * self.max_body
        ):
            self.body_bytes -= added
            raise GatewayError(
                503, "overloaded", "the gateway is busy: too many large requests", retry_after=1.0
            )

    @property
    def body_seconds(self) -> float:
        return self._body_seconds

    def _size_error(self) -> GatewayError:
        message = f"the body is larger than {self.max_body:,} bytes, the limit of this gateway"
        return GatewayError(
            413, "request_too_large", message, should_retry=False, headers={"connection": "close"}
        )

    # ---- errors

    async def _send_error(self, scope: Scope, send: Send, error: GatewayError) -> None:
        protocol = self._protocols.get(protocol_of(scope["path"]))
        status = protocol.error_status(error) if protocol else error.status
        body = protocol.error_body(error) if protocol else _plain_error(error)
        await _send(send, status, error.reply_headers, json.dumps(body).encode())


class BodyReader:
    """Reads the body of one request within the limits of a guard; `error` is why it was refused,
    `size` the bytes so far.
    """

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self._is_complete = False
        self._deadline = asyncio.get_running_loop().time() + guard.body_seconds
        self.size = 0
        self.error: GatewayError | None = None

    async def receive(self) -> Message:
        """Return the next message. Raises GatewayError for a body that is too large or too slow."""
        if self._is_complete:
            return await self._receive()
        try:
            message = await self._next_part()
            added = len(message.get("body", b""))
            self._guard.check_body(self.size + added, added)
        except GatewayError as error:
            self.error = error.copy()
            raise
        self.size += added
        self._is_complete = not message.get("more_body", False)
        return message

    async def _next_part(self) -> Message:
        if self.error is not None:
            raise self.error.copy()
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError as error:
            message = f"the body was not received within {self._guard.body_seconds:g} s"
            raise GatewayError(
                408, "request_timeout", message, headers={"connection": "close"}
            ) from error


def _plain_error(error: GatewayError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    }


def _allows_others(setting: str) -> str:
    return f"; {setting} allows others" if setting else ""


def _is_address(name: str) -> bool:
    """Whether the name in a Host header is an IP address."""
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_below(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Whether a request comes from this machine, and not through a proxy on it."""
    client = scope.get("client")
    if client is None or any(name in headers for name in PROXY_HEADERS):
        return False
    try:
        address = ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _preflight_headers(headers: Headers) -> dict[str, str]:
    """Return the reply to a browser that asks whether an allowed page may send a request."""
    reply = {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-max-age": str(PREFLIGHT_SECONDS),
    }
    wanted = headers.get("access-control-request-headers", "")
    if (
        wanted
        and len(wanted) < 2000
        and wanted.replace("-", "").replace(",", "").replace(" ", "").isalnum()
    ):
        reply["access-control-allow-headers"] = wanted
    if headers.get("access-control-request-private-network") == "true":
        reply["access-control-allow-private-network"] = "true"
    return reply


def _with_cors(send: Send, origin: str) -> Send:
    """Return a `send` that adds the headers which let an allowed page read the reply."""

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = EXPOSED_HEADERS
            headers.add_vary_header("Origin")
        await send(message)

    return send_with_cors


async def _send(send: Send, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
    pairs = {
        **({"content-type": "application/json"} if body else {}),
        "content-length": str(len(body)),
        **headers,
    }
    if status == 204:
        del pairs["content-length"]
    start = [
        (name.encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in pairs.items()
    ]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
