"""Real servers of the tools, as processes, and the client of the protocol's own library."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
from chat_server import ChatServer

PROGRAM = [sys.executable, "-m", "redraft"]


@pytest.fixture
def serve():
    """Start chat servers, which end with the test."""
    servers = []

    def start(answer):
        servers.append(ChatServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@asynccontextmanager
async def stdio_client(*args, mode="auto", cwd=None):
    """A client of `redraft mcp` over stdin and stdout."""
    # it takes long, and each process that runs tests reads this file
    from mcp import Client, StdioServerParameters

    program = StdioServerParameters(
        command=PROGRAM[0], args=[*PROGRAM[1:], "mcp", *args], env=dict(os.environ), cwd=cwd
    )
    async with Client(program, mode=mode) as client:
        yield client


@contextmanager
def http_server(*args):
    """The URL of `redraft mcp --http` in a process of its own."""
    process = subprocess.Popen(
        [*PROGRAM, "mcp", "--http", "--port", "0", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield re.search(r"http://\S+/mcp", process.stderr.readline())[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


@asynccontextmanager
async def http_server_inside(folder, model):
    """The URL of the same inside this process, which starts much sooner."""
    # it takes long, and each process that runs tests reads this file
    from redraft.mcp_server.http import HttpAddress, serve_http, with_call_limit
    from redraft.mcp_server.workbench import CallLimits, Workbench

    bench = Workbench([model], None, with_call_limit(CallLimits({})))
    url = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_http(bench, HttpAddress(folder, port=0), announce=url.set_result)
    )
    try:
        await asyncio.wait([serving, url], return_when=asyncio.FIRST_COMPLETED)
        yield url.result()
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        await bench.close()


@asynccontextmanager
async def http_client(url, key=None, mode="auto"):
    """A client over HTTP, with a key if one is given."""
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        create_mcp_http_client(headers=headers) as transport,
        Client(streamable_http_client(url, http_client=transport), mode=mode) as client,
    ):
        yield client


class SilentModel:
    """An endpoint that never answers. `arrived` is set by a request, `left` when its client has
    closed the connection.
    """

    def __init__(self):
        self.arrived, self.left = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.model = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1#tiny"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            self.arrived.set()
            while connection.recv(65536):
                pass
            self.left.set()

    def close(self):
        self._listener.close()


@pytest.fixture
def silent_model():
    model = SilentModel()
    yield model
    model.close()
