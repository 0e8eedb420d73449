"""Connections of HTTP/1.1: opened, used for one request after another, and closed when they have
been idle for some seconds.

httptools (llhttp, the parser of Node.js) reads the responses, aiohappyeyeballs chooses among the
addresses of a host, and asyncio has TLS. The rest is here: which connection is free, and the parts
of a body as they arrive. What a status or a body means, how long it may take and how large it may
be is decided in `http_client`. (aiohttp's client takes three times the CPU time for the same
request, and its import as long as that of all of Redraft that refines.)
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from contextvars import Context
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from aiohappyeyeballs import start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from ..descriptors import connection_limit, descriptor_limit, is_short_of_descriptors, is_shortage
from ..log import endpoint_log
from .http_errors import (
    HttpError,
    NoRoomError,
    ProtocolError,
    ProxyError,
    TLSError,
    UnreachableError,
)
from .http_requests import Endpoint, Origin, encode_head
from .tls_errors import tls_error_text

MAX_HEAD_BYTES = 64 * 1024
"""The largest head of a response; also how much more than sixteen times its content the framing of
a body may take.
"""

MAX_UNREAD_BYTES = 256 * 1024
"""How much of a body is kept before the server has to wait until it is read."""

MAX_COPIED_BYTES = 64 * 1024
"""Up to which size a body is sent in one piece with its head."""

MAX_WRITTEN_BYTES = 256 * 1024
"""How much of a larger body is written at once."""

ADDRESS_SECONDS = 10.0
"""How long the addresses of a host are kept."""

ROOM_SECONDS = 1.0
"""How long a connection waits for room before it tries again, although no other connection has
ended.
"""

LOG_SECONDS = 60.0
"""How long nothing more is logged about a shortage."""

FALLBACK_DELAY = 0.25
"""Seconds after which the next address of a host is tried beside the first (RFC 8305)."""


class Response:
    """A response as it arrives. Its status and headers (in lower case) are known once
    `wait_for_headers` has returned.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_is_paused",
        "_parts",
        "_unread",
        "_waiter",
        "has_headers",
        "headers",
        "is_complete",
        "status",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_headers = self.is_complete = self._is_paused = False
        self._parts: list[bytes] = []
        self._unread = 0
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_headers(self) -> None:
        """Wait for the status and the headers. Raises HttpError."""
        while not self.has_headers:
            await self._next_event()

    async def read_part(self) -> bytes:
        """Return what has arrived of the body and was not read before, at least one byte; b"" at
        its end. Raises HttpError.
        """
        while not self._parts:
            if self.is_complete:
                return b""
            await self._next_event()
        part = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._unread = 0
        self._resume()
        return part

    @property
    def at_end(self) -> bool:
        """Whether the whole body has been read."""
        return self.is_complete and not self._parts

    def close(self) -> None:
        """Close the connection, unless the response is complete."""
        if not self.is_complete:
            self._connection.transport.abort()

    async def _next_event(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = self._connection.loop.create_future()
        await self._waiter

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._connection.transport.resume_reading()

    def _wake_reader(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- called by the connection

    def add_part(self, part: bytes) -> None:
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > MAX_UNREAD_BYTES and not self._is_paused:
            self._is_paused = True
            self._connection.transport.pause_reading()
        self._wake_reader()

    def begin_body(self, status: int) -> None:
        self.status, self.has_headers = status, True
        self._wake_reader()

    def complete(self) -> None:
        self.is_complete = True
        self._resume()
        self._wake_reader()

    def fail(self, error: Exception) -> None:
        self._failure = error
        self._wake_reader()


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, pool: ConnectionPool, origin: Origin) -> None:
        self.loop, self.origin = pool.loop, origin
        self._pool = pool
        self.is_open = True
        self.idle_until = 0.0

    def reset(self) -> None:
        """Begin to read as on a new connection."""
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # as other clients read responses
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._response: Response | None = None
        self._unsent = memoryview(b"")
        self._can_write = True
        self._is_reusable = self._ends_with_connection = self.opens_tunnel = False
        self._framing_left = MAX_HEAD_BYTES

    def send(self, head: bytes, body: bytes = b"") -> Response:
        """Send a whole request, and return its response."""
        self._response = response = Response(self)
        self._is_reusable = self._ends_with_connection = False
        self._framing_left = MAX_HEAD_BYTES
        if len(body) < MAX_COPIED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self._unsent = memoryview(body)
            self._write_body()
        return response

    def _write_body(self) -> None:
        """Write as much of a large body as the transport takes."""
        while self._unsent and self._can_write and not self.transport.is_closing():
            part, self._unsent = self._unsent[:MAX_WRITTEN_BYTES], self._unsent[MAX_WRITTEN_BYTES:]
            self.transport.write(part)

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # (uvloop's is none by its class)
        self.reset()
        self._pool.open.add(self)

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._write_body()

    def eof_received(self) -> None:
        self.is_open = False  # (over TLS the transport is not yet closing then)

    def data_received(self, data: bytes) -> None:
        self._framing_left -= len(data)
        failure: Exception | None = None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            failure = ProtocolError("it switches to another protocol")
        except HttpParserError as error:
            switches = self._parser.get_status_code() == 101
            failure = ProtocolError("it switches to another protocol" if switches else str(error))
        response = self._response
        if response is not None and (self.opens_tunnel or not response.is_complete):
            if failure is None and self._framing_left >= 0:
                return
            response.fail(
                failure or ProtocolError("its headers or the framing of its body are too large")
            )
        self._response = None
        is_sent = not self._unsent and not self.transport.get_write_buffer_size()
        if response is not None and failure is None and self._is_reusable and is_sent:
            self._pool.release(self)
        else:  # (what arrives without a request, or after the end of a response, would be read as the next one)  # noqa: E501
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._pool.open.discard(self)
        self._pool.wake_waiting()
        self._unsent = memoryview(b"")
        del self._parser  # which keeps this connection
        response, self._response = self._response, None
        if response is None:
            return
        if exc is None and self._ends_with_connection:
            response.complete()
        else:
            response.fail(HttpError(_reason(exc) if exc else "the server closed it"))

    # ---- called by the parser

    def on_message_begin(self) -> None:
        if self._response is None or self._response.is_complete:
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is not None and not response.has_headers:
            key = name.decode("latin-1").lower()
            if key == "transfer-encoding" and key in response.headers:
                response.headers[key] += ", " + value.decode("latin-1")
            response.headers.setdefault(key, value.decode("utf-8", "replace").rstrip())

    def on_headers_complete(self) -> None:
        response, status = self._response, self._parser.get_status_code()
        if response is None or response.has_headers:
            return
        if status < 200:  # (an interim response: the real one follows)
            response.headers.clear()
            return
        headers = response.headers
        self._ends_with_connection = (
            "content-length" not in headers
            and "chunked" not in headers.get("transfer-encoding", "").lower()
        )
        response.begin_body(status)

    def on_body(self, part: bytes) -> None:
        response = self._response
        if response is not None and not response.is_complete:
            self._framing_left = min(self._framing_left + 17 * len(part), MAX_HEAD_BYTES)
            response.add_part(part)

    def on_message_complete(self) -> None:
        response = self._response
        if response is not None and response.has_headers and not response.is_complete:
            self._is_reusable = self._parser.should_keep_alive()
            response.complete()


@dataclass(slots=True)
class Lookup:
    """The addresses of a host, until when they are used, and how many connections wait for them."""

    task: asyncio.Future[list[Any]]
    until: float
    waiting: int = 0


class ConnectionPool:
    """The connections of the running event loop, of any number. An idle one is used again for some
    seconds; 0: for one request.
    """

    def __init__(self, keep_seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.keep_seconds = keep_seconds
        self._idle: dict[Origin, list[Connection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._connection_count = 0
        self._lookups: dict[Endpoint, Lookup] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.open: set[Connection] = set()
        self._opening = 0  # connections that are being opened
        self._log_again_at = 0.0

    def take(self, origin: Origin) -> Connection | None:
        """Return an idle connection, the one that was used last, or None."""
        idle, now = self._idle.get(origin), self.loop.time()
        while idle:
            connection = idle.pop()
            if connection.is_open and not connection.transport.is_closing():
                if connection.idle_until > now:
                    return connection
                connection.transport.abort()
        return None

    def release(self, connection: Connection) -> None:
        """Let others use a connection whose response is complete."""
        if not self.keep_seconds:
            connection.transport.abort()
            return
        connection.idle_until = self.loop.time() + self.keep_seconds
        self._idle.setdefault(connection.origin, []).append(connection)
        self.wake_waiting()
        if self._timer is None:
            self._timer = self.loop.call_later(
                self.keep_seconds, self._close_expired, context=Context()
            )

    def _close_expired(self) -> None:
        now = self.loop.time()
        self._timer = None
        for origin, idle in list(self._idle.items()):
            while idle and idle[0].idle_until <= now:
                idle.pop(0).transport.abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            next_end = min(idle[0].idle_until for idle in self._idle.values())
            self._timer = self.loop.call_at(next_end, self._close_expired, context=Context())

    async def close(self) -> None:
        """Close all idle connections."""
        if self._timer is not None:
            self._timer.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.transport.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close in the next turn

    # ---- new connections

    async def wait_for_room(self, error: NoRoomError) -> None:
        """Wait until a connection has ended, or ROOM_SECONDS: others may have closed files. Idle
        connections end at once.
        """
        if self.loop.time() >= self._log_again_at:
            self._log_again_at = self.loop.time() + LOG_SECONDS
            endpoint_log.warning("calls wait for room for their connections: %s", error)
        for idle in self._idle.values():
            for connection in idle:
                connection.transport.abort()
        self._idle.clear()
        waiting = self.loop.create_future()
        self._waiting.append(waiting)
        try:
            await asyncio.wait([waiting], timeout=ROOM_SECONDS)
        finally:
            waiting.cancel()

    def wake_waiting(self) -> None:
        """Let a call try again that waits for room."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def connect(self, origin: Origin) -> Connection:
        """Open a connection. Raises UnreachableError, TLSError or ProxyError, and NoRoomError for a
        shortage of our own.
        """
        # it may take any descriptor, since none is freed while it waits
        is_only = not (self.open or self._opening)
        limit = descriptor_limit() if is_only else connection_limit()
        # before a lookup, which would find no host, and before the certificates are read
        if is_short_of_descriptors(limit):
            raise NoRoomError(os.strerror(errno.EMFILE))
        self._opening += 1
        try:
            return await self._open(origin, limit)
        except ProxyError:
            raise
        except HttpError as error:
            if not (
                isinstance(error, NoRoomError)
                or is_shortage(error)
                or is_short_of_descriptors(limit)
            ):
                raise
            vars(self).pop("_tls_context", None)  # it may lack certificates
            raise NoRoomError(_reason(error)) from error
        finally:
            self._opening -= 1

    async def _open(self, origin: Origin, limit: float) -> Connection:
        """Open a connection in a context of its own: the transport keeps the context, and what the
        request works on with it.
        """
        opening = self.loop.create_task(self._connect(origin, limit), context=Context())
        try:
            return await opening
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().transport.abort()
            raise
        finally:
            del opening  # whose error would keep this frame, and this frame the error

    async def _connect(self, origin: Origin, limit: float) -> Connection:
        first = origin.proxy or origin.server
        connection = Connection(self, origin)
        try:
            context, name = (
                (self._tls_context, first.certificate_name) if first.is_tls else (None, None)
            )
            addresses = await self._find_addresses(first)
            connected = await self._open_socket(addresses, limit)
            await self.loop.create_connection(
                lambda: connection, sock=connected, ssl=context, server_hostname=name
            )
            if origin.proxy and origin.server.is_tls:
                await self._open_tunnel(connection)
            # nothing would tell a request about it
            if not connection.is_open or connection.transport.is_closing():
                raise UnreachableError("the server closed the connection")
        except ssl.SSLError as error:
            raise TLSError(tls_error_text(error)) from error
        except HttpError:
            raise
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # (ValueError: of a host name; RuntimeError: of uvloop)
            # whose frames keep the error
            raise UnreachableError(_reason(error)) from error.with_traceback(None)
        return connection

    async def _open_socket(self, addresses: list[Any], limit: float) -> socket.socket:
        """Return a socket that is connected to one of the addresses of a host."""
        try:
            return await start_connection(
                addresses,
                happy_eyeballs_delay=FALLBACK_DELAY,
                loop=self.loop,
                socket_factory=lambda address: _new_socket(address, limit),
            )
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and any(map(_is_known, addresses)):
                raise NoRoomError("no port is free for another connection") from error
            raise

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def _open_tunnel(self, connection: Connection) -> None:
        """Have the proxy connect to the server, and begin TLS with the server."""
        server, authorization = connection.origin.server, connection.origin.authorization
        headers = {"Proxy-Authorization": authorization} if authorization else {}
        connection.opens_tunnel = (
            True  # (what follows the head of its response is no body, whatever the head says)
        )
        response = connection.send(
            encode_head(f"CONNECT {server.authority}", {"Host": server.authority, **headers})
        )
        try:
            await response.wait_for_headers()
            if response.status != 200:
                raise ProxyError(response.status)
            transport = await self.loop.start_tls(
                connection.transport,
                connection,
                self._tls_context,
                server_hostname=server.certificate_name,
            )
        except BaseException:
            connection.transport.abort()
            raise
        if transport is None:  # (the proxy closed the connection)
            raise UnreachableError("the proxy closed the connection")
        connection.reset()
        connection.transport = transport

    async def _find_addresses(self, endpoint: Endpoint) -> list[Any]:
        """Return the addresses of a host, for each connection another one first.

        Connections that are opened at the same time ask for them once; if all of these are
        cancelled, so is the question.
        """
        lookup, now = self._lookups.get(endpoint), self.loop.time()
        if lookup is None or lookup.until < now:
            task = asyncio.ensure_future(
                self.loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            )
            lookup = self._lookups[endpoint] = Lookup(task, now + ADDRESS_SECONDS)
        lookup.waiting += 1
        try:
            addresses = await asyncio.shield(lookup.task)
        except BaseException:
            if lookup.task.done() or lookup.waiting == 1:  # it failed, or nobody else needs it
                if self._lookups.get(endpoint) is lookup:
                    del self._lookups[endpoint]
                lookup.task.cancel()
                await asyncio.wait([lookup.task])
            raise
        finally:
            lookup.waiting -= 1
        self._connection_count += 1
        first = self._connection_count % len(addresses) if addresses else 0
        return addresses[first:] + addresses[:first]


def _new_socket(address: Any, limit: float) -> socket.socket:
    """Return a socket for an address. Raises OSError if its descriptor is one of those that are
    held back, from `limit` on.
    """
    family, kind, protocol, _, _ = address
    new = socket.socket(family, kind, protocol)
    if new.fileno() >= limit:
        new.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return new


def _is_known(address: Any) -> bool:
    """Whether this machine has a way to an address: if not, the error is the one that also says
    that no port is free.
    """
    try:
        with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
            probe.connect(address[4])  # sends nothing
    except OSError:
        return False
    return True


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
