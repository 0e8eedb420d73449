"""A chat endpoint on the loopback that answers every request after a set time, and counts.

    python bench/server.py [--latency 0.05] [--answer-bytes 2048]

It prints its address on the first line and serves until its standard input is closed. POST anything is a chat
completion, its answer a numbered one (a loop that gets the same text twice may know better than to grade it again);
GET /reset sets the counts to 0; GET /stats tells how many calls it has answered, and how many it had in hand at most at the
same time. Hand-written on an asyncio protocol, so that it costs less than any client it is called by.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
FIELD = re.compile(rb"\[\[ ## (\w+) ## \]\]")
NUMBER = b"#" * 9
WORDS = "an answer of a length that is usual for a question with some detail in it "


@dataclass
class Tally:
    """What was served, and how much of it at the same time."""

    calls: int = 0
    in_flight: int = 0
    most_in_flight: int = 0

    def begin(self):
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def end(self):
        self.in_flight -= 1
        self.calls += 1


class Endpoint(asyncio.Protocol):
    """One connection."""

    def __init__(self, tally, latency, size):
        self.tally, self.latency, self.size = tally, latency, size
        self.came = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.came += data
        while request := self.whole():
            self.take(*request)

    def whole(self):
        """The head and body of a request that has come in full, or None."""
        head, end, rest = self.came.partition(b"\r\n\r\n")
        length = int(found[1]) if (found := LENGTH.search(head)) else 0
        if not end or len(rest) < length:
            return None
        self.came = rest[length:]
        return head, rest[:length]

    def take(self, head, body):
        if head.startswith(b"GET /reset"):
            self.tally.calls = self.tally.most_in_flight = 0
        if head.startswith(b"GET"):
            self.send(head, json.dumps(asdict(self.tally)).encode())
            return
        self.tally.begin()
        asyncio.get_running_loop().call_later(self.latency, self.answer, head, wanted(body))

    def answer(self, head, fields):
        self.tally.end()
        self.send(head, completion(self.size, fields).replace(NUMBER, b"%09d" % self.tally.calls))

    def send(self, head, body):
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        if CLOSE.search(head):
            self.transport.close()


def wanted(body):
    """The names of the fields that DSPy's chat adapter says the answer must have; none for everybody else."""
    _, _, rule = body.rpartition(b"Respond with the corresponding output fields")
    return tuple(FIELD.findall(rule)) if len(rule) < len(body) else ()


@lru_cache
def completion(size, fields):
    """The body of a chat completion whose answer has `size` bytes, in the fields that were asked for."""
    text = (f"Answer {NUMBER.decode()}: " + WORDS * (size // len(WORDS) + 1))[:size]
    if fields:
        each = text[: size // len(fields)]
        said = {b"advice": json.dumps({"self": each}), b"completed": ""}
        text = "\n\n".join(f"[[ ## {name.decode()} ## ]]\n{said.get(name, each)}" for name in fields)
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "loopback",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1024, "completion_tokens": 512, "total_tokens": 1536},
        }
    ).encode()


async def serve(latency, size):
    loop = asyncio.get_running_loop()
    tally = Tally()
    server = await loop.create_server(lambda: Endpoint(tally, latency, size), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds until an answer comes")
    parser.add_argument("--answer-bytes", type=int, default=2048, help="length of an answer")
    given = parser.parse_args()
    asyncio.run(serve(given.latency, given.answer_bytes))


if __name__ == "__main__":
    main()
