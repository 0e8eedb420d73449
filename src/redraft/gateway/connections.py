"""The connections of clients: uvicorn's protocols with the limits that they lack.

- The head of a request must arrive within HEAD_SECONDS, and so must the first byte of a connection.
- A client that reads nothing of a reply for READ_SECONDS is disconnected, which cancels the work
  for it.
- The headers of a request are at most MAX_HEADER_BYTES long, and so are the trailers after a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

MAX_HEADER_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
READ_SECONDS = 60.0
HEADER_COST = 4  # bytes of a header besides its name and its value


class ConnectionTimers(asyncio.Protocol):
    """Closes a connection whose client neither sends nor reads what it should. To be put before a
    protocol of uvicorn.

    `app` answers its requests, and `on_end` is called when it has ended. `head_seconds`: None for
    HEAD_SECONDS.
    """

    app: Any
    cycle: Any
    on_end: Callable[[ConnectionTimers], object] = staticmethod(lambda _: None)
    head_seconds: float | None = None
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timer:
            self._read_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._read_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)
        self.on_end(self)

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that is idle, also if its client has not read the last reply."""
        self.transport.abort()

    def _time_head(self) -> None:
        """Run the timer from the first byte that belongs to no request in progress until one
        begins.
        """
        is_waiting = (
            self.cycle is None or self.cycle.response_complete
        ) and not self.transport.is_closing()
        if is_waiting and self._head_timer is None:
            seconds = HEAD_SECONDS if self.head_seconds is None else self.head_seconds
            self._head_timer = self.loop.call_later(seconds, self.transport.abort)
        elif not is_waiting and self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None


def http_protocol() -> Any:
    """Return the implementation of HTTP: httptools, or h11 if that is not installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        # which limits headers and trailers itself
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return type("LimitedH11", (ConnectionTimers, H11Protocol), {})

    class LimitedHttpTools(ConnectionTimers, HttpToolsProtocol):
        """Refuses a request whose headers or trailers are too long."""

        head_bytes, has_progress = 0, False

        def on_message_begin(self) -> None:
            self.head_bytes = 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._count_head(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count_head(len(name) + len(value))
            super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self.has_progress = True
            super().on_body(body)

        def data_received(self, data: bytes) -> None:
            self.has_progress = False
            super().data_received(data)
            # a part of a line, without its end
            if not self.has_progress and not self.transport.is_closing():
                self.head_bytes += len(data)
                if self.head_bytes > MAX_HEADER_BYTES:
                    self.send_400_response("")

        def send_400_response(self, msg: str) -> None:
            super().send_400_response(
                "The headers are too long." if self.head_bytes > MAX_HEADER_BYTES else msg
            )

        def _count_head(self, size: int) -> None:
            self.has_progress = True
            self.head_bytes += size + HEADER_COST
            if self.head_bytes > MAX_HEADER_BYTES:
                # the parser stops, and a 400 is sent
                raise ValueError("the headers are too long")

    return LimitedHttpTools
