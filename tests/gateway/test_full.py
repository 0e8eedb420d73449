"""A gateway with more clients than descriptors: every client gets an answer, or is asked to come
back.
"""

import asyncio
import contextlib
import json
import resource
import socket
import struct
import subprocess
import sys
from collections import Counter

import pytest

from redraft.gateway import acceptor, connections

from .running import PROMPT, config_for, running

BODY = json.dumps({"model": "pass/default", "messages": PROMPT}).encode()
REPLY = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "fine"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
).encode()


class HeldModel:
    """A server of a model that answers once `gate` is set. `calls` counts the requests."""

    async def __aenter__(self):
        self.gate, self.calls = asyncio.Event(), 0
        self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=4096)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1#tiny"
        return self

    async def __aexit__(self, *_):
        self.gate.set()
        self.server.close()

    async def _answer(self, reader, writer):
        with (
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError),
            contextlib.closing(writer),
        ):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(
                    int(head.lower().partition(b"content-length: ")[2].split()[0])
                )
                self.calls += 1
                await self.gate.wait()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % len(REPLY)
                    + REPLY
                )
                await writer.drain()


async def ask(port, kept=None):
    """Send a request; return the status and whether the reply asks to come back, or the error.
    `kept` gets a connection that stays.
    """
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(BODY)}\r\n\r\n"
        writer.write(head.encode() + BODY)
        raw = await reader.readuntil(b"\r\n\r\n")
        size = int(raw.lower().partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(size)
        if kept is None:
            writer.close()
        else:
            kept.append(writer)
        return int(raw.split()[1]), b"retry-after: " in raw.lower()
    except (OSError, asyncio.IncompleteReadError) as error:
        return type(error).__name__, False


async def ask_until_answered(port, kept):
    """Send a request, again whenever the reply asks to come back; return how it ended."""
    while (end := await ask(port, kept)) == (503, True):
        await asyncio.sleep(0.1)
    return end


@contextlib.contextmanager
def gateway_process(folder, model, soft, hard):
    """`redraft serve` with these limits on open files; yields its port and the process."""
    command = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    arguments = [
        "serve",
        "--log-format",
        "json",
        "--port",
        "0",
        "--folder",
        str(folder),
        "--model",
        model,
        "--no-access-log",
    ]
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", sys.executable, "-m", "redraft", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = json.loads(process.stdout.readline())["url"]
        yield int(url.rpartition(":")[2].partition("/")[0]), process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def many_descriptors():
    """As many descriptors for this process as the clients and the model need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 8192:
        pytest.skip("the hard limit on open files is below 8,192")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_descriptors")
async def test_the_usual_soft_limit_is_raised(tmp_path):
    """1,200 clients are within what may work and wait, and all of them are answered."""
    async with HeldModel() as model:
        with gateway_process(tmp_path, model.url, 1024, 4096) as (port, _):
            clients = [asyncio.ensure_future(ask(port)) for _ in range(1200)]
            while model.calls < 256:
                await asyncio.sleep(0.01)
            model.gate.set()
            assert Counter(await asyncio.gather(*clients)) == {(200, False): 1200}


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True], ids=["closing", "keeping"])
async def test_clients_beyond_the_hard_limit_are_answered(tmp_path, keeps):
    """They wait until others have ended, also where clients stay connected, and come back if they
    are asked to; none is cut off.
    """
    async with HeldModel() as model:
        model.gate.set()
        with gateway_process(tmp_path, model.url, 128, 128) as (port, _):
            kept = [] if keeps else None
            ends = Counter(
                await asyncio.gather(*(ask_until_answered(port, kept) for _ in range(200)))
            )
            for writer in kept or ():
                writer.close()
            assert ends == {(200, False): 200}


@pytest.mark.slow
async def test_clients_beyond_the_hard_limit_are_refused_while_no_other_ends(tmp_path):
    """The model answers nobody: those who find no room are told so, and all others are answered
    later.
    """
    async with HeldModel() as model:
        with gateway_process(tmp_path, model.url, 128, 128) as (port, _):
            clients = [asyncio.ensure_future(ask(port)) for _ in range(200)]
            while sum(client.done() for client in clients) + model.calls < 200:
                await asyncio.sleep(0.01)
            refused = Counter(client.result() for client in clients if client.done())
            assert set(refused) == {(503, True)} and model.calls >= 20
            model.gate.set()
            ends = Counter(await asyncio.gather(*clients))
            assert ends == {(503, True): refused[503, True], (200, False): 200 - refused[503, True]}
            # The first try may come before the gateway has closed the descriptors of the others.
            assert await ask_until_answered(port, None) == (200, False)


async def test_a_refused_client_reads_why(tmp_path, monkeypatch):
    """Health checks are answered; the others get 503 in their protocol with Retry-After, are
    counted, and have a body of any size.
    """
    monkeypatch.setattr(acceptor.Acceptor, "_has_room", lambda self: False)
    monkeypatch.setattr(acceptor, "FULL_SECONDS", 0.01)
    async with running(config_for(tmp_path, "http://127.0.0.1:9/v1#tiny")) as (url, gateway):
        port = int(url.rpartition(":")[2].partition("/")[0])
        monkeypatch.setattr(f"{__name__}.BODY", b"x" * 2**20)
        assert await asyncio.gather(*(ask(port) for _ in range(20))) == [(503, True)] * 20
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert 'redraft_gateway_refusals_total{reason="overloaded"} 20.0' in gateway.metrics.text()


async def ask_health(port):
    """Return the beginning of the reply to a health check."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(60):
            return (await reader.read())[:13]


@pytest.fixture
def no_room(monkeypatch):
    """Every connection finds the gateway full, is refused soon, and is never given up for its
    silence.
    """
    monkeypatch.setattr(acceptor.Acceptor, "_has_room", lambda self: False)
    monkeypatch.setattr(acceptor, "FULL_SECONDS", 0.01)
    monkeypatch.setattr(acceptor, "REFUSED_HEAD_SECONDS", 3600.0)
    monkeypatch.setattr(connections, "HEAD_SECONDS", 3600.0)


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("is_refusing", [False, True], ids=["waiting", "refusing"])
async def test_clients_that_wait_take_no_turns_of_the_loop(tmp_path, monkeypatch, is_refusing):
    """Between two looks at them, nothing is done for those in the backlog, however often the loop
    turns.
    """
    looks, turns = 0, 1000

    def count(acceptor):
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(acceptor.Acceptor, "_has_room", count)
    monkeypatch.setattr(acceptor, "REFUSED_AT_ONCE", 1)
    if not is_refusing:
        monkeypatch.setattr(acceptor, "FULL_SECONDS", 3600.0)
    async with running(config_for(tmp_path, "http://127.0.0.1:9/v1#tiny")) as (url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            async with asyncio.timeout(60):
                while looks < (4 if is_refusing else 1):
                    await asyncio.sleep(0.001)
            monkeypatch.setattr(acceptor, "FULL_SECONDS", 3600.0)
            before = looks
            for _ in range(turns):
                await asyncio.sleep(0)
            assert looks - before < turns / 100


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_client_that_leaves_while_it_waits_is_forgotten(tmp_path, monkeypatch, how):
    """It keeps no place of those that are refused at once, of which there is one here: the next one
    is answered.
    """
    monkeypatch.setattr(acceptor, "REFUSED_AT_ONCE", 1)
    async with running(config_for(tmp_path, "http://127.0.0.1:9/v1#tiny")) as (url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as client:
                if how == "resets":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert await ask_health(port) == b"HTTP/1.1 200 "


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: "], ids=["silent", "half a head"]
)
async def test_silent_clients_keep_nobody_from_being_refused(tmp_path, monkeypatch, sent):
    """More than are refused at once: their connections end long before those of clients for whom
    there is room.
    """
    monkeypatch.setattr(acceptor, "REFUSED_HEAD_SECONDS", 0.1)
    async with running(config_for(tmp_path, "http://127.0.0.1:9/v1#tiny")) as (url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(acceptor.REFUSED_AT_ONCE + 1):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                writer.write(sent)
            assert await ask_health(port) == b"HTTP/1.1 200 "
