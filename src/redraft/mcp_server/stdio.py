"""One client over stdin and stdout, as coding agents start it. Nothing but the protocol is written to stdout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from mcp.server.stdio import stdio_server

from .input_lines import InputLines
from .server import make_server
from .workbench import Workbench

STDIN = 0


async def serve_stdio(bench: Workbench) -> None:
    """Serve until the client closes stdin. Work that is not finished then is cancelled."""
    server = make_server(bench)
    with _private_stdin() as descriptor:
        async with stdio_server(stdin=cast("Any", InputLines(descriptor))) as (messages, replies):
            await server.run(messages, replies, server.create_initialization_options())


@contextmanager
def _private_stdin() -> Iterator[int]:
    """Yield a copy of stdin; whoever reads the original, such as a program that a grader runs, finds it empty."""
    descriptor = os.dup(STDIN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, STDIN)
    os.close(empty)
    try:
        yield descriptor
    finally:
        os.dup2(descriptor, STDIN)  # the copy stays open: the thread may be reading it
