"""The sessions of aiohttp: one for each event loop, the wait for room in this process, and what a
failure means.

Only this module knows aiohttp; the first request imports it, because its import takes as long as
all the code of Redraft that refines. How long a request may take, how large its answer may be and
what a status means is decided in `http_client`.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Any

import aiohttp
from aiohttp.payload import Payload

from ..base.descriptors import (
    connection_limit,
    descriptor_limit,
    is_short_of_descriptors,
    is_shortage,
)
from ..base.log import endpoint_log
from .http_requests import (
    ConnectTimeoutError,
    HttpError,
    HttpRequest,
    InvalidRequestError,
    NoRoomError,
    ProtocolError,
    ProxyError,
    TLSError,
    UnreachableError,
    tls_error_text,
)

MAX_FIELD_BYTES = 64 * 1024
"""The longest field in the head of a response."""

PART_BYTES = 64 * 1024
"""How much of a body is written at once."""

ROOM_SECONDS = 1.0
"""How long a request waits for room before it tries again, although no other has ended."""

LOG_SECONDS = 60.0
"""How long nothing more is logged about a shortage."""

SWITCHING_PROTOCOLS = 101


class Response:
    """A response as it arrives. The names of `headers` are in lower case; the first of a name
    counts.
    """

    def __init__(self, session: HttpSession, response: aiohttp.ClientResponse) -> None:
        self._session: HttpSession | None = session
        self._response = response
        self.status: int = response.status
        self.headers: dict[str, str] = {}
        for name, value in response.headers.items():
            self.headers.setdefault(name.lower(), value.strip())

    async def read_part(self) -> bytes:
        """Return what has arrived of the body and was not read before, at least one byte; b"" at
        its end. Raises HttpError.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _http_error(error) from None

    @property
    def has_arrived(self) -> bool:
        """Whether the whole body has arrived, so that reading it waits for nothing."""
        return self._response.content.is_eof()

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has been read."""
        return self._response.content.at_eof()

    def close(self) -> None:
        """Close the connection, unless the whole body has arrived."""
        session, self._session = self._session, None
        if session is not None:
            if not self._response.closed:
                self._response.close()
            session.end_request()


class HttpSession:
    """aiohttp's session of the running event loop. An idle connection is used again for some
    seconds; 0: for one request.

    The number of connections is not limited. What the response to a request sets (cookies) and
    where it points (redirects) has no effect on another request, nor does the environment.
    """

    def __init__(self, keep_seconds: float) -> None:
        kept: dict[str, Any] = (
            {"keepalive_timeout": keep_seconds} if keep_seconds else {"force_close": True}
        )
        self._client = aiohttp.ClientSession(
            connector=_Connector(
                limit=0,
                resolver=aiohttp.ThreadedResolver(),  # (as the system resolves names, always)
                socket_factory=self._open_socket,
                **kept,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_field_size=MAX_FIELD_BYTES,
            headers={"User-Agent": "redraft"},
            skip_auto_headers=("Accept-Encoding", "Content-Type"),
        )
        self._request_count = 0  # of those that have not ended
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._log_again_at = 0.0
        atexit.register(self._client.detach)  # an event loop that nobody closed says nothing

    async def close(self) -> None:
        """Close all connections."""
        atexit.unregister(self._client.detach)
        await self._client.close()

    async def request(self, request: HttpRequest, on_send: Callable[[], object]) -> Response:
        """Send a request, and return its response once the headers have arrived; `on_send` is
        called when the body is sent.

        Raises HttpError: NoRoomError if this process lacks what another connection needs.
        """
        self._request_count += 1
        try:
            response = Response(self, await self._send(request, on_send))
        except BaseException:
            self.end_request()
            raise
        if response.status == SWITCHING_PROTOCOLS:
            response.close()
            raise ProtocolError("it switches to another protocol")
        return response

    async def _send(
        self, request: HttpRequest, on_send: Callable[[], object]
    ) -> aiohttp.ClientResponse:
        seconds = request.connect_seconds
        try:
            return await self._client.request(
                request.method,
                request.url,
                headers=request.headers,
                data=None if request.body is None else _Body(request.body, on_send),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(  # (`http_client` has all others)
                    total=None, connect=seconds, ceil_threshold=seconds
                ),
                proxy=request.proxy,
                ssl=self._tls_context if request.is_tls else True,
            )
        except aiohttp.ClientConnectorError as error:
            raise await self._connect_error(error) from None
        except (aiohttp.ClientError, OSError, RuntimeError, ValueError) as error:
            raise _http_error(error) from None

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    # ---- room for connections

    def end_request(self) -> None:
        """Note that a request has ended, which may leave room for another."""
        self._request_count -= 1
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def wait_for_room(self, error: NoRoomError) -> None:
        """Wait until another request has ended, or ROOM_SECONDS: files may have been closed, and
        idle connections.
        """
        loop = asyncio.get_running_loop()
        if loop.time() >= self._log_again_at:
            self._log_again_at = loop.time() + LOG_SECONDS
            endpoint_log.warning("calls wait for room for their connections: %s", error)
        waiting = loop.create_future()
        self._waiting.append(waiting)
        try:
            await asyncio.wait([waiting], timeout=ROOM_SECONDS)
        finally:
            waiting.cancel()

    @property
    def _limit(self) -> float:
        """The number that no descriptor of a connection reaches. A single request may take any,
        since none is freed while it waits.
        """
        return descriptor_limit() if self._request_count == 1 else connection_limit()

    def _open_socket(self, address: Any) -> socket.socket:
        """Return a socket for an address. Raises OSError if its descriptor is one of those that
        are held back.
        """
        family, kind, protocol, _, _ = address
        new = socket.socket(family, kind, protocol)
        if new.fileno() >= self._limit:
            new.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return new

    async def _connect_error(self, error: aiohttp.ClientConnectorError) -> HttpError:
        """Return why there is no connection: NoRoomError for a shortage of our own."""
        is_short = is_shortage(error) or is_short_of_descriptors(self._limit)
        failure = _http_error(error)
        if is_short or (error.errno == errno.EADDRNOTAVAIL and await _is_known(error)):
            vars(self).pop("_tls_context", None)  # it may lack certificates
            return NoRoomError(str(failure))
        return failure


class _Connector(aiohttp.TCPConnector):
    """Connections that are left to an event loop which nobody closed, or to a forked process, are
    not closed one by one: the selector of that loop may be in use elsewhere.
    """

    def __del__(self, *_: object) -> None:
        """Say nothing."""


class _Body(Payload):
    """A body that notes when it is sent: aiohttp writes it once a connection is open. A large one
    is written in parts and never copied, and other tasks run meanwhile.
    """

    def __init__(self, body: bytes, on_send: Callable[[], object]) -> None:
        super().__init__(body)
        self._size = len(body)
        self._on_send = on_send

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: Any) -> None:
        if writer.transport is not None and not writer.transport.is_closing():
            self._on_send()
        body = memoryview(self._value)
        for start in range(0, len(body), PART_BYTES):
            if start:
                await asyncio.sleep(0)
            await writer.write(body[start : start + PART_BYTES])

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        await self.write(writer)  # (it is the length of the body)


def _http_error(error: Exception) -> HttpError:
    """Return what a failure of a request means. The frames of aiohttp's errors are let go: they
    keep the request, and the errors.
    """
    cause = error.__cause__ or error
    error.__traceback__ = cause.__traceback__ = None
    match error:
        case aiohttp.ClientHttpProxyError():
            return ProxyError(error.status)
        case aiohttp.ClientResponseError():
            return ProtocolError(error.message)
        case _ if isinstance(cause, ssl.SSLError):
            return TLSError(tls_error_text(cause))
        case aiohttp.ServerTimeoutError():
            return ConnectTimeoutError()
        case aiohttp.ClientConnectorError():
            return UnreachableError(_reason(cause))
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return HttpError("the server closed it")
        case ValueError():
            return InvalidRequestError(str(error))
    return HttpError(_reason(cause))


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def _is_known(error: aiohttp.ClientConnectorError) -> bool:
    """Whether this machine has a way to the host of a connection: if not, the error is the one
    that also says that no port is free.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(error.host, error.port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(map(_has_route, found))


def _has_route(address: Any) -> bool:
    try:
        with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
            probe.connect(address[4])  # sends nothing
    except OSError:
        return False
    return True
