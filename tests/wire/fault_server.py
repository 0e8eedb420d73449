"""A server that answers each request as it is told to, well or badly, and keeps what it was sent.

It speaks HTTP/1.1 by hand, so that it can break it. An answer is bytes (sent as they are), or an async function of the
connection's writer. When the script has ended, its last answer is given again.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass, field


@dataclass
class Sent:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self):
        return json.loads(self.raw)


@dataclass
class FaultServer:
    """`url` is the base URL; `script` the answers; `requests` what came in."""

    script: list = field(default_factory=list)
    requests: list[Sent] = field(default_factory=list)
    url: str = ""
    connections: int = 0

    async def __aenter__(self):
        self._tasks = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}/v1"
        return self

    async def __aexit__(self, *error):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def says(self, *script):
        self.script = list(script)
        return self

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        try:
            while request := await _read(reader):
                self.requests.append(request)
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
                if writer.transport.is_closing():
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _read(reader):
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
    method, path, _ = first.split(" ")
    return Sent(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def http(body=b"", status=200, content_type="application/json", **headers) -> bytes:
    """A whole response with any body."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": content_type, "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    return f"HTTP/1.1 {status} Whatever\r\n{_lines(fields)}\r\n".encode() + body


def _lines(fields):
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


def completion(content="fine", finish="stop", usage=(7, 3), **message) -> dict:
    """A chat completion."""
    spent = dict(prompt_tokens=usage[0], completion_tokens=usage[1], total_tokens=sum(usage)) if usage else None
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content} | message}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": spent}


def good(*args, **kwargs) -> bytes:
    return http(completion(*args, **kwargs))


def error(status, message="no", headers=None, **fields) -> bytes:
    """An error in OpenAI's form."""
    return http({"error": {"message": message} | fields}, status, **(headers or {}))


def models(*names, owned_by="someone", **headers) -> bytes:
    return http({"object": "list", "data": [{"id": n, "object": "model", "owned_by": owned_by} for n in names]}, **headers)


def chunk(text=None, finish=None, **delta) -> dict:
    return {"choices": [{"index": 0, "finish_reason": finish, "delta": ({"content": text} if text is not None else {}) | delta}]}


def sse(*events, done=True) -> bytes:
    """A stream that ends with the connection."""
    lines = [e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def closing(raw: bytes):
    """Sends and hangs up."""

    async def answer(writer):
        writer.write(raw)
        await writer.drain()
        writer.close()

    return answer


def cut(raw: bytes, at: int, *, reset=False):
    """Sends the beginning, then hangs up, politely or with a reset."""

    async def answer(writer):
        writer.write(raw[:at])
        await writer.drain()
        await asyncio.sleep(0.02)
        if reset:
            writer.transport.abort()
        else:
            writer.close()

    return answer


async def silence(writer):
    """Never answers."""
    await asyncio.sleep(3600)


def drip(raw: bytes, every: float):
    """One byte at a time."""

    async def answer(writer):
        for byte in raw:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(every)

    return answer


def then_silence(raw: bytes):
    """Sends this, and nothing more."""

    async def answer(writer):
        writer.write(raw)
        await writer.drain()
        await asyncio.sleep(3600)

    return answer


def packed(raw: bytes) -> bytes:
    return http(gzip.compress(raw), Content_Encoding="gzip")
