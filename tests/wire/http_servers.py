"""Servers and proxies for the tests of HTTP connections."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"Content-Length: 2\r\n\r\nhi"


def server_context(authority, *names):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("localhost", "127.0.0.1", "::1"))).configure_cert(context)
    return context


@asynccontextmanager
async def serving(answer, tls=None):
    """A server that calls `answer(reader, writer)` for each connection, or sends these bytes for
    each request.
    """
    tasks, writers = set(), set()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        writers.add(writer)
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
            writer.close()  # sends what was written; `abort` would drop it

    server = await asyncio.start_server(serve, "localhost", 0, ssl=tls, family=2)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            # of Python 3.11, for a transport that was closed and has sent all since
            with suppress(AttributeError):
                writer.transport.abort()


async def read_request(reader):
    """Return the head and the body of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
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
            await asyncio.gather(
                self.copy(reader, far_writer, record=True), self.copy(far_reader, writer)
            )
        finally:
            far_writer.close()

    async def copy(self, reader, writer, record=False):
        while data := await reader.read(65536):
            if record:
                self.forwarded += data
            writer.write(data)
            await writer.drain()
        writer.close()
