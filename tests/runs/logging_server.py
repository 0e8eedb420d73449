"""A chat endpoint on the loopback whose answers follow from the request alone, and which logs every
request.

    python tests/runs/logging_server.py [--port 0] [--log FILE] [--latency 0.02] [--jitter 0.5]

It prints its address on the first line and serves until its standard input is closed. The same
words always get the same answer: a text for a writer, an instance of the schema for a request with
one (a judge's verdict, good or bad by a hash of the request). The nonce of a judge's envelope,
which is new in every call, is ignored.

The log has one line of `LINE` bytes for each event: "B" a request came, "E" its answer was sent,
"X" its client left before; the hash of the request, after the number of the row that its prompt
names, in 8 digits; and the time on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import sys
import time
from collections import Counter

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
AUTHORIZATION = re.compile(rb"\r\nauthorization: *([^\r]*)", re.IGNORECASE)
ROW = re.compile(rb"in case (\d{1,8})\b")
NONCE = re.compile(rb"-[0-9a-f]{8}>")
LINE = 1 + 1 + 32 + 1 + 16 + 1
WORDS = "clear short long plain first second every other river stone paper light early often never always maybe because so".split()
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "loopback"}]}


class EventLog:
    """The events of the server, in the log file and as counts."""

    def __init__(self, path):
        self.file = path and os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.counts = Counter()

    def note(self, kind, sha):
        self.counts[kind] += 1
        if self.file:
            os.write(self.file, f"{kind} {sha} {time.monotonic():016.6f}\n".encode())


class Endpoint(asyncio.Protocol):
    """One connection."""

    def __init__(self, book, given):
        self.book, self.given = book, given
        self.received, self.waiting = b"", {}

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, _):
        for sha, timer in self.waiting.items():
            timer.cancel()
            self.book.note("X", sha)

    def data_received(self, data):
        self.received += data
        while request := self.next_request():
            self.take(*request)

    def next_request(self):
        """The head and body of the next complete request, or None."""
        head, end, rest = self.received.partition(b"\r\n\r\n")
        length = int(found[1]) if (found := LENGTH.search(head)) else 0
        if not end or len(rest) < length:
            return None
        self.received = rest[length:]
        return head, rest[:length]

    def take(self, head, body):
        if head.startswith(b"GET"):
            return self.transport.write(
                http(self.book.counts if b"/stats" in head[:20] else MODELS)
            )
        sha = request_hash(body)
        self.book.note("B", sha)
        if self.given.refuse:
            return self.answer(sha, refusal(head, self.given.refuse))
        self.serve(sha, body)

    def serve(self, sha, body):
        self.answer_later(sha, http(completion(*answer_text(sha, body))))

    def answer_later(self, sha, answer, *, slower=1.0):
        """Send the answer after the latency."""
        jitter = self.given.jitter * random.uniform(-1, 1)
        delay = self.given.latency * (1 + jitter) * slower
        self.waiting[sha] = asyncio.get_running_loop().call_later(delay, self.answer, sha, answer)

    def answer(self, sha, answer):
        """Send an answer. It is in the log before its client has it, and may look there."""
        self.waiting.pop(sha, None)
        self.book.note("E", sha)
        self.transport.write(answer)


def request_hash(body):
    """The hash of a request without its nonce, after the number of the row that its prompt
    names.
    """
    row = int(found[1]) if (found := ROW.search(body)) else 0
    return f"{row:08d}{hashlib.sha256(NONCE.sub(b'->', body)).hexdigest()[:24]}"


CODE_MARK = b"[code]"  # in a prompt: the answer is a program, which is right in one of three cases


def answer_text(sha, body):
    """The answer to a request, and the tokens of both."""
    asked = json.loads(body)
    form = asked.get("response_format") or {}
    dice = random.Random(sha)
    schema = form.get("json_schema", {}).get("schema")
    text = (
        json.dumps(instance(schema, dice, dice.random(), sha[:12])) if schema else prose(sha, dice)
    )
    if CODE_MARK in body:
        text = f"```python\ndef f(n):\n    return n + {dice.randrange(3)}  # {sha[:12]}\n```"
    return text, len(body) // 4, len(text) // 4


def prose(sha, dice):
    return f"Draft {sha[:12]}: " + " ".join(dice.choices(WORDS, k=dice.randrange(20, 60))) + "."


def instance(schema, dice, merit, mark=""):
    """Return an instance of a schema with a mark in its texts. The more merit, the more often an
    enumeration's last and best.
    """
    if "enum" in schema:
        return schema["enum"][-1] if dice.random() < merit else dice.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return {
                name: instance(part, dice, merit, mark)
                for name, part in schema["properties"].items()
            }
        case "array":
            return [instance(schema["items"], dice, merit, mark)]
        case "boolean":
            return dice.random() < 0.1
        case "integer" | "number":
            return schema.get("minimum", 0)
    return f"{mark} more about {dice.choice(WORDS)}".strip()[: schema.get("maxLength", 100)]


def completion(content, asked=7, answered=3, finish="stop"):
    usage = {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }
    choice = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": content},
    }
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def refusal(head, status):
    """An error that repeats the API key, as some servers do."""
    key = found[1].decode() if (found := AUTHORIZATION.search(head)) else "none"
    return http(
        {"error": {"message": f"no: you came with {key}", "type": "refused", "code": "refused"}},
        status,
    )


def http(body, status=200, **headers):
    """A complete HTTP response."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": len(body)}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body


async def serve(endpoint, book, given):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: endpoint(book, given), "127.0.0.1", given.port, backlog=4096
    )
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def parser(about):
    made = argparse.ArgumentParser(description=about.partition("\n")[0])
    made.add_argument("--port", type=int, default=0)
    made.add_argument("--log", help="the file that every request is logged to")
    made.add_argument("--latency", type=float, default=0.02, help="seconds until an answer comes")
    made.add_argument(
        "--jitter", type=float, default=0.5, help="how much that varies, as a share of it"
    )
    made.add_argument(
        "--refuse", type=int, metavar="STATUS", help="answer every request with this status"
    )
    return made


def main():
    given = parser(__doc__).parse_args()
    asyncio.run(serve(Endpoint, EventLog(given.log), given))


if __name__ == "__main__":
    main()
