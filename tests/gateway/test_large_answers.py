"""A gateway in a process of its own, with large answers and large bodies: the memory that it takes,
by what Linux says of it.
"""

import asyncio
import json
import re
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest

from redraft.gateway.keys import KeyLimits, KeyRing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="needs /proc, for the memory of the gateway"
    ),
]
MIB = 2**20
ANSWER = "word " * 1_400_000  # 7 MB
ANSWERS = 30  # at a time
PROMPT = [{"role": "user", "content": "Say it well."}]
MESSAGE = {"role": "assistant", "content": ANSWER}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1_400_000}
COMPLETION = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": USAGE,
}
BODY = json.dumps(COMPLETION).encode()
REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
    + BODY
)
CONFIG = """
[gateway]
port = 0
store = "off"
{settings}
[models.tiny]
url = "{url}"
model = "tiny"

[profiles.fast]
model = "tiny"
graders = ["words:1-"]
max-iterations = 0
store = "off"
"""


@asynccontextmanager
async def model():
    """Serve a model whose answers are large; yields its URL."""

    answering = set()

    async def answer(reader, writer):
        answering.add(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(
                    int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
                )
                writer.write(REPLY)
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        if answering:
            await asyncio.wait(answering)  # the gateway has ended


class Serving:
    """A gateway that runs: its port, and what it says on stderr."""

    def __init__(self, process, port, errors):
        self.process, self.port, self._errors = process, port, errors

    def memory(self, name="VmRSS"):
        """Return the megabytes that it has in memory; "VmHWM": the most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024

    @property
    def access_log(self):
        lines = [json.loads(line) for line in self._errors.read_text().splitlines()]
        return [line for line in lines if "status" in line]

    async def ask(self, path, body=None, *, key="none", is_read=True):
        """Send a request; return its reply without the body, and what is left of the connection if
        it is not read.
        """
        sock = socket.socket()
        if not is_read:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=MIB if is_read else 2**16)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        lines = [
            f"{'POST' if raw else 'GET'} {path} HTTP/1.1",
            "host: localhost",
            f"authorization: Bearer {key}",
            "connection: close",
        ]
        writer.write("\r\n".join([*lines, f"content-length: {len(raw)}", "", ""]).encode() + raw)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if not is_read:
            await reader.readexactly(1000)
            return status, writer
        content = bytearray()
        try:
            while (part := await reader.read(MIB)) and len(content) < MIB:
                content += part
            while await reader.read(MIB):
                pass
        except ConnectionError:  # (it had not read all of the body)
            pass
        writer.close()
        return status, content


@contextmanager
def serving(folder, url, settings=""):
    """Run `redraft serve`."""
    config, errors = folder / "gateway.toml", folder / "errors"
    config.write_text(CONFIG.format(url=url, settings=settings))
    command = [
        sys.executable,
        "-m",
        "redraft",
        "serve",
        "--log-format",
        "json",
        "--config",
        config,
        "--folder",
        folder / "state",
    ]
    with errors.open("w") as file:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=file, text=True
        )
    try:
        line = process.stdout.readline()
        assert line, errors.read_text()
        yield Serving(process, int(re.search(r":(\d+)/v1", line)[1]), errors)
    finally:
        process.kill()
        process.communicate()


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.05)


async def test_waves_of_large_answers(tmp_path):
    """What the answers took is free once they are read: the waves after the second take no more."""
    async with model() as url:
        with serving(tmp_path, url) as gateway:
            used = []
            for _ in range(5):
                replies = await asyncio.gather(
                    *[
                        gateway.ask(
                            "/v1/chat/completions", {"model": "refine/fast", "messages": PROMPT}
                        )
                        for _ in range(ANSWERS)
                    ]
                )
                assert [status for status, _ in replies] == [200] * ANSWERS
                used.append(gateway.memory())
            assert used[-1] < used[1] + 150, used


async def test_slow_readers_of_large_answers(tmp_path):
    """Clients that do not read take what their answers take, and count as left when they leave."""
    async with model() as url:
        with serving(tmp_path, url) as gateway:
            before = gateway.memory()
            body = {"model": "refine/fast", "messages": PROMPT}
            readers = await asyncio.gather(
                *[gateway.ask("/v1/chat/completions", body, is_read=False) for _ in range(ANSWERS)]
            )
            grown = gateway.memory() - before
            for _, writer in readers:
                writer.transport.abort()
            await until(lambda: len(gateway.access_log) == ANSWERS)
            assert [line["status"] for line in gateway.access_log] == [499] * ANSWERS
            _, metrics = await gateway.ask("/metrics")
            assert re.findall(r'status="499"[^\n]* (\d+)', metrics.decode()) == [str(ANSWERS)]
            assert grown < 2 * ANSWERS * len(ANSWER) / MIB + 150


@pytest.mark.parametrize(
    ("settings", "statuses"),
    [("", {413}), ("max-body-mb = 32", {400, 429})],
    ids=["default", "allowed"],
)
async def test_senders_of_large_bodies(tmp_path, settings, statuses):
    """Two of them with a key of one request a minute neither fill the memory nor keep another
    client waiting for an answer.
    """
    with KeyRing(tmp_path / "state") as ring:
        _, slow = ring.add("slow", KeyLimits(requests_per_minute=1))
        _, other = ring.add("other")
    raw = b'{"model":"pass/none","messages":[' + b"[0,0,0,0,0,0,0]," * 2 * MIB
    raw = raw[: 31 * MIB]
    async with model() as url:
        with serving(tmp_path, url, settings) as gateway:
            before = gateway.memory()

            async def send():
                return [
                    (await gateway.ask("/v1/chat/completions", raw, key=slow))[0] for _ in range(8)
                ]

            senders = [asyncio.create_task(send()) for _ in range(2)]
            answered = 0
            while not all(task.done() for task in senders):
                status, _ = await gateway.ask("/v1/models", key=other)
                answered += status == 200
            found = [status for task in senders for status in await task]
            assert set(found) == statuses and answered
            assert gateway.memory("VmHWM") < before + 300
