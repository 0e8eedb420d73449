"""Accepts the connections of clients, as long as this process has descriptors for them and for
connections to models.

The servers of asyncio and uvloop accept until no descriptor is left; then uvloop closes connections
that nobody has answered. Here a connection that finds no room waits in the backlog of the listening
socket until another one ends, and connections end with the reply. Once nothing has ended for
FULL_SECONDS, those that wait are refused with 503, a few at a time.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from ..base.descriptors import connection_limit, is_shortage, open_descriptors
from .connections import ConnectionTimers

ACCEPTED_PER_TURN = 100  # in one turn of the event loop
REFUSED_AT_ONCE = 8  # connections that are being refused
# for the head of a request that is refused: whoever is silent keeps no place from the others
REFUSED_HEAD_SECONDS = 2.0
FULL_SECONDS = 1.0


class Acceptor:
    """Accepts the connections on a listening socket of the running event loop until it is closed.

    `make_protocol` returns the protocol of a connection, and `connections` has those that are open.
    A request on a connection for which there is no room goes to the application `refuse`.
    `kept_for_models`: descriptors for connections to models; at most half of those that are free
    now.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], ConnectionTimers],
        connections: set[Any],
        refuse: ASGIApp,
        kept_for_models: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener, self._make_protocol, self._connections, self._refuse = (
            listener,
            make_protocol,
            connections,
            refuse,
        )
        free = connection_limit() - open_descriptors()
        self._limit = connection_limit() - min(kept_for_models, free / 2) - REFUSED_AT_ONCE
        self._refused: set[ConnectionTimers] = set()
        self._is_refusing = self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None  # while nothing is accepted
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no further connection."""
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Wait until the connections that were accepted have their protocols."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            has_room = self._has_room()
            self._is_refusing = self._is_refusing and not has_room
            if not has_room and not (self._is_refusing and len(self._refused) < REFUSED_AT_ONCE):
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if is_shortage(error):
                    self._pause()
                return
            self._serve(connection, is_refused=not has_room)

    def _has_room(self) -> bool:
        try:
            return open_descriptors() < self._limit
        except OSError:
            return False

    def _serve(self, connection: socket.socket, *, is_refused: bool) -> None:
        protocol = self._make_protocol()
        protocol.on_end = self._note_end
        if is_refused:
            protocol.app, protocol.head_seconds = self._refuse, REFUSED_HEAD_SECONDS
            self._refused.add(protocol)
        connection.setblocking(False)
        task = self._loop.create_task(self._open(protocol, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, protocol: ConnectionTimers, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # the client has closed it
            connection.close()
            self._note_end(protocol)

    def _pause(self) -> None:
        """Accept nothing until a connection has ended; those that are at work end with their
        reply.
        """
        self._loop.remove_reader(self._listener)
        if self._timer is None:
            self._timer = self._loop.call_later(FULL_SECONDS, self._begin_refusing)
        for protocol in self._connections:
            if protocol.cycle is not None and not protocol.cycle.response_complete:
                protocol.cycle.keep_alive = False

    def _begin_refusing(self) -> None:
        """Close the connections that are idle, and refuse those that wait if there is no room even
        so.
        """
        self._is_refusing = True
        for protocol in list(self._connections):
            if protocol.cycle is not None and protocol.cycle.response_complete:
                protocol.transport.close()
        self._resume()

    def _note_end(self, protocol: ConnectionTimers) -> None:
        self._refused.discard(protocol)
        if self._timer is not None:
            self._loop.call_soon(self._resume)  # its descriptor is closed by then

    def _resume(self) -> None:
        if self._timer is not None and not self._is_closed:
            self._timer.cancel()
            self._timer = None
            self._loop.add_reader(self._listener, self._accept)
