"""Clients that cost little: one connection each, requests that are bytes already, and replies that
are only counted and timed.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from time import perf_counter

STATUS = re.compile(rb"HTTP/1\.\d (\d{3})")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
TRACE = re.compile(rb"\r\nx-redraft-trace-id: *([^\r]+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
LAST_CHUNK = b"\r\n0\r\n\r\n"
CONTENT = re.compile(rb'"content": ?"[^"]')


@dataclass
class Reply:
    """A reply: `first` and `seconds` are the times until the first content and until the end."""

    status: int
    seconds: float
    first: float | None
    head: bytes
    body: bytes
    is_complete: bool

    @property
    def is_good(self):
        return (
            self.is_complete
            and self.status == 200
            and (b"data: " not in self.body or b"[DONE]" in self.body)
        )

    @property
    def text(self):
        """The text in the chunks of a stream."""
        body = unchunked(self.body) if CHUNKED.search(self.head) else self.body
        events = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
        choices = [each for event in events for each in json.loads(event)["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    @property
    def trace_id(self):
        return found[1].decode() if (found := TRACE.search(self.head)) else None


def unchunked(body):
    """Return a body without the lengths of its chunks."""
    parts = []
    while body:
        length, _, body = body.partition(b"\r\n")
        parts.append(body[: int(length, 16)])
        body = body[int(length, 16) + 2 :]
    return b"".join(parts)


class Exchange(asyncio.Protocol):
    """An open connection, and the reply that is arriving."""

    def connection_made(self, transport):
        self.transport = transport
        self.waiting = None

    def connection_lost(self, error):
        if self.waiting:
            head, found, _ = self.buffer.partition(b"\r\n\r\n")
            self.end(
                is_complete=bool(found) and not LENGTH.search(head) and not CHUNKED.search(head)
            )

    def send(self, request):
        self.buffer, self.first, self.began = b"", None, perf_counter()
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.waiting

    def data_received(self, data):
        if self.waiting is None:
            return
        self.buffer += data
        if self.first is None and CONTENT.search(self.buffer):
            self.first = perf_counter() - self.began
        if self.is_whole():
            self.end(is_complete=True)

    def is_whole(self):
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        if found := LENGTH.search(head):
            return len(body) >= int(found[1])
        return bool(CHUNKED.search(head)) and self.buffer.endswith(LAST_CHUNK)

    def end(self, *, is_complete):
        if not self.waiting.done():
            self.waiting.set_result(is_complete)
        self.waiting = None


class Connection:
    """A client with one connection, which it opens again when it was closed."""

    def __init__(self, host, port, timeout=90.0):
        self.host, self.port, self.timeout = host, port, timeout
        self.exchange = None

    async def ask(self, request, leave_after=None):
        """Send a request and return the reply. `leave_after`: close the connection that many
        seconds later, whatever has come.
        """
        loop = asyncio.get_running_loop()
        began = perf_counter()
        if self.exchange is None or self.exchange.transport.is_closing():
            _, self.exchange = await loop.create_connection(Exchange, self.host, self.port)
        exchange = self.exchange
        timer = loop.call_later(
            self.timeout if leave_after is None else leave_after, exchange.transport.abort
        )
        is_complete = await exchange.send(request)
        seconds = perf_counter() - began
        timer.cancel()
        head, _, body = exchange.buffer.partition(b"\r\n\r\n")
        if CLOSE.search(head) or not is_complete:
            self.close()
        first = None if exchange.first is None else exchange.first + exchange.began - began
        return Reply(
            int(found[1]) if (found := STATUS.match(head)) else 0,
            seconds,
            first,
            head,
            body,
            is_complete,
        )

    def close(self):
        if self.exchange:
            self.exchange.transport.abort()
            self.exchange = None


def post(host, port, path, body, **headers):
    """Return the bytes of a request."""
    content = json.dumps(body).encode()
    fields = {
        "Host": f"{host}:{port}",
        "Content-Type": "application/json",
        "Content-Length": len(content),
        **headers,
    }
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def get(host, port, path, **headers):
    lines = "".join(
        f"{name.replace('_', '-')}: {value}\r\n"
        for name, value in {"Host": f"{host}:{port}", **headers}.items()
    )
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def many(host, port, request, n, in_flight):
    """Send a request `n` times over `in_flight` connections; return the replies."""
    left = iter(range(n))

    async def work(connection):
        return [await connection.ask(request) for _ in left]

    connections = [Connection(host, port) for _ in range(in_flight)]
    try:
        return [
            reply for replies in await asyncio.gather(*map(work, connections)) for reply in replies
        ]
    finally:
        for connection in connections:
            connection.close()
