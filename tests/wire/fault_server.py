"""A server that answers each request as scripted, well or badly, and records what it received.

It speaks HTTP/1.1 by hand, so that it can break the protocol. An answer is bytes (sent unchanged),
an async function of the connection's writer, or a function of the request that returns bytes (see
`accepting`). After the end of the script it repeats the last answer.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass, field
from inspect import iscoroutinefunction


@dataclass
class ReceivedRequest:
    """A request as received."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self):
        return json.loads(self.raw)


@dataclass
class FaultServer:
    """`url` is the base URL, `script` the answers, and `requests` the received requests."""

    script: list = field(default_factory=list)
    requests: list[ReceivedRequest] = field(default_factory=list)
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

    def stop_listening(self):
        self._server.close()

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
                if iscoroutinefunction(answer):
                    await answer(writer)
                else:
                    writer.write(answer if isinstance(answer, bytes) else answer(request))
                    await writer.drain()
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
    return ReceivedRequest(
        method, path, headers, await reader.readexactly(int(headers.get("content-length", 0)))
    )


def http(body=b"", status=200, content_type="application/json", **headers) -> bytes:
    """Return a complete response with any body."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": content_type, "Content-Length": str(len(body))}
    fields |= {
        name.replace("_", "-") if name.isidentifier() else name: value
        for name, value in headers.items()
    }
    return f"HTTP/1.1 {status} Whatever\r\n{_header_lines(fields)}\r\n".encode() + body


def _header_lines(fields):
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


def completion(content="fine", finish="stop", usage=(7, 3), **message) -> dict:
    """Return a chat completion."""
    spent = (
        dict(prompt_tokens=usage[0], completion_tokens=usage[1], total_tokens=sum(usage))
        if usage
        else None
    )
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content} | message,
    }
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": spent}


def call(name="search", arguments="{}", id="call_1") -> dict:
    """Return a tool call as in a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def good(*args, **kwargs) -> bytes:
    return http(completion(*args, **kwargs))


def error(status, message="no", headers=None, **fields) -> bytes:
    """Return an error in OpenAI's form."""
    return http({"error": {"message": message} | fields}, status, **(headers or {}))


def models(*names, owned_by="someone", **headers) -> bytes:
    return http(
        {
            "object": "list",
            "data": [{"id": n, "object": "model", "owned_by": owned_by} for n in names],
        },
        **headers,
    )


def chunk(text=None, finish=None, **delta) -> dict:
    return {
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "delta": ({"content": text} if text is not None else {}) | delta,
            }
        ]
    }


def sse(*events, done=True) -> bytes:
    """Return a stream that ends with the connection."""
    lines = [
        e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() + b"\n\n" for e in events
    ]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def send_and_close(raw: bytes):
    """Send and close the connection."""

    async def answer(writer):
        writer.write(raw)
        await writer.drain()
        writer.close()

    return answer


def cut(raw: bytes, at: int, *, reset=False):
    """Send the beginning, then close the connection, cleanly or with a reset."""

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
    """Never answer."""
    await asyncio.sleep(3600)


def drip(raw: bytes, every: float):
    """Send one byte at a time."""

    async def answer(writer):
        for byte in raw:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(every)

    return answer


def then_silence(raw: bytes):
    """Send this and then nothing more."""

    async def answer(writer):
        writer.write(raw)
        await writer.drain()
        await asyncio.sleep(3600)

    return answer


def gzip_stream(raw: bytes) -> bytes:
    return http(gzip.compress(raw), Content_Encoding="gzip")


# ---- endpoints that reject parts of a request


def accepting(
    *rules,
    writer="A text.",
    judge='{"reason": "It is so.", "criteria": {"truth": {"evidence": "", "change": "c", "score": 4}}, "done": false}',
):
    """Answer what no rule rejects, a judge's prompt as a judge, else as a writer; answers are texts
    or functions of the body.
    """

    def answer(request):
        body = request.body
        for rule in rules:
            if refused := rule(body):
                return refused
        reply = judge if "one JSON object" in json.dumps(body["messages"]) else writer
        return http(
            completion(reply(body) if callable(reply) else reply)
            | {"model": body["model"], "created": 1}
        )

    return answer


def no_system(body):
    """Reject a system role, as vLLM does for Gemma."""
    if any(message["role"] == "system" for message in body["messages"]):
        return http(
            {
                "object": "error",
                "message": "System role not supported",
                "type": "BadRequestError",
                "code": 400,
            },
            400,
        )


def alternation(body):
    """Require alternating roles, as llama.cpp does for Gemma; the reason comes last."""
    if any(
        (message["role"] == "user") != (n % 2 == 0) for n, message in enumerate(body["messages"])
    ):
        source = "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n...% 2 == 0) -%}    {{ raise_exc"
        return error(
            500,
            f"{source}{' ' * 300}^\nError: Jinja Exception: Conversation roles must alternate user/assistant/...",
            code=500,
        )


def late_alternation(body):
    """Allow a leading system message and then require alternating roles, as Mistral's template
    does.
    """
    turns = body["messages"][body["messages"][0]["role"] == "system" :]
    if any(message["role"] != ("user", "assistant")[n % 2] for n, message in enumerate(turns)):
        words = "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
        return http(
            {
                "object": "error",
                "message": words,
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
            400,
        )


def renamed_limit(body):
    """Require the new name of max_tokens, as OpenAI's newer models do."""
    if "max_tokens" in body:
        words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return error(
            400,
            words,
            type="invalid_request_error",
            param="max_tokens",
            code="unsupported_parameter",
        )


def default_temperature(body):
    """Allow only the default temperature, as OpenAI's reasoning models do."""
    if "temperature" in body:
        words = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
        return error(
            400, words, type="invalid_request_error", param="temperature", code="unsupported_value"
        )


def no_seed(body):
    """Reject a seed as Mistral's API does, which repeats what it was sent."""
    if "seed" in body:
        found = [
            {
                "type": "extra_forbidden",
                "loc": ["body", "seed"],
                "msg": "Extra inputs are not permitted",
                "input": body["seed"],
            }
        ]
        return http(
            {
                "object": "error",
                "message": {"detail": found},
                "type": "invalid_request_error",
                "param": None,
            },
            422,
        )


def no_images(body):
    """Reject images, as llama.cpp does without a projector."""
    if any(not isinstance(message["content"], str) for message in body["messages"]):
        return error(
            500,
            "image input is not supported - hint: you may need to provide the mmproj",
            code=500,
            type="server_error",
        )


def no_format(*kinds, status=400, words="This response_format type is unavailable now"):
    """Reject these kinds of response_format, or all of them if none is named."""

    def rule(body):
        kind = body.get("response_format", {}).get("type")
        return error(status, words) if kind and (not kinds or kind in kinds) else None

    return rule
