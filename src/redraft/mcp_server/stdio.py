"""One client over stdin and stdout, as coding agents start it. Nothing but the protocol is written
to stdout.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from .input_lines import MAX_LINE, OverlongLine, input_lines, request_id
from .server import make_server
from .workbench import Workbench

STDIN = 0


async def serve_stdio(bench: Workbench) -> None:
    """Serve until the client closes stdin. Work that is not finished then is cancelled."""
    server = make_server(bench)
    with _private_stdin() as descriptor:
        async with stdio_server(stdin=cast("Any", _no_lines())) as (_, replies):
            messages = ClientMessages(input_lines(descriptor), replies)
            await server.run(messages, replies, server.create_initialization_options())


async def _no_lines() -> AsyncIterator[str]:
    """Yield nothing: the library's reader would say nothing of a line that is no message."""
    return
    yield ""


class ClientMessages(ObjectReceiveStream[SessionMessage]):
    """The messages of a client. A line that is none is answered with an error, and the next one is
    read.
    """

    def __init__(self, lines: AsyncIterator[str | OverlongLine], replies: Any) -> None:
        self._lines, self._replies = lines, replies

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises EndOfStream at the end."""
        async for line in self._lines:
            if isinstance(line, str) and not line.strip():
                continue
            try:
                return SessionMessage(_parse(line))
            except UnreadableLineError as error:
                await self._replies.send(SessionMessage(error.reply))
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        """Do nothing: the thread that reads ends with the process."""


class UnreadableLineError(Exception):
    """A line is no message. `reply` says why."""

    def __init__(self, code: int, message: str, id: int | str | None) -> None:
        super().__init__(message)
        self.reply = types.JSONRPCError(
            jsonrpc="2.0", id=id, error=types.ErrorData(code=code, message=message)
        )


def _parse(line: str | OverlongLine) -> types.JSONRPCMessage:
    """Return the message that a line holds. Raises UnreadableLineError."""
    if isinstance(line, OverlongLine):
        raise UnreadableLineError(
            types.INVALID_REQUEST, f"the message has more than {MAX_LINE:,} bytes", line.id
        )
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        id = request_id(line.encode())
        if first["type"] == "json_invalid":
            raise UnreadableLineError(types.PARSE_ERROR, first["msg"], id) from None
        raise UnreadableLineError(
            types.INVALID_REQUEST, "this is no message of JSON-RPC", id
        ) from None


@contextmanager
def _private_stdin() -> Iterator[int]:
    """Yield a copy of stdin; whoever reads the original, such as a program that a grader runs,
    finds it empty.
    """
    descriptor = os.dup(STDIN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, STDIN)
    os.close(empty)
    try:
        yield descriptor
    finally:
        os.dup2(descriptor, STDIN)  # the copy stays open: the thread may be reading it
