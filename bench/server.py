"""A chat endpoint on the loopback interface that answers every request after a fixed time, and
counts requests.

    python bench/server.py [--latency 0.05] [--answer-bytes 2048]

It prints its address on the first line and serves until its standard input is closed. Any POST is a
chat completion; answers are numbered, because a loop may not grade the same text twice. GET /reset
sets the counts to 0; GET /stats returns the number of answered calls, and the most at the same
time. It is written directly on an asyncio protocol, so that it uses less CPU time than any client.
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
    """The number of requests that were served, and the most at the same time."""

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
        self.buffer = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.buffer += data
        while request := self.next_request():
            self.handle(*request)

    def next_request(self):
        """Return the head and body of a complete request, or None."""
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        length = int(found[1]) if (found := LENGTH.search(head)) else 0
        if not end or len(rest) < length:
            return None
        self.buffer = rest[length:]
        return head, rest[:length]

    def handle(self, head, body):
        if head.startswith(b"GET /reset"):
            self.tally.calls = self.tally.most_in_flight = 0
        if head.startswith(b"GET"):
            self.send(head, json.dumps(asdict(self.tally)).encode())
            return
        self.tally.begin()
        asyncio.get_running_loop().call_later(
            self.latency, self.answer, head, requested_fields(body)
        )

    def answer(self, head, fields):
        self.tally.end()
        self.send(head, completion(self.size, fields).replace(NUMBER, b"%09d" % self.tally.calls))

    def send(self, head, body):
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(body)
            + body
        )
        if CLOSE.search(head):
            self.transport.close()


def requested_fields(body):
    """Return the names of the fields that DSPy's chat adapter asks for; none for other clients."""
    _, _, rule = body.rpartition(b"Respond with the corresponding output fields")
    return tuple(FIELD.findall(rule)) if len(rule) < len(body) else ()


@lru_cache
def completion(size, fields):
    """Return the body of a chat completion whose answer has `size` bytes, in the requested
    fields.
    """
    text = (f"Answer {NUMBER.decode()}: " + WORDS * (size // len(WORDS) + 1))[:size]
    if fields:
        each = text[: size // len(fields)]
        values = {b"advice": json.dumps({"self": each}), b"completed": ""}
        text = "\n\n".join(
            f"[[ ## {name.decode()} ## ]]\n{values.get(name, each)}" for name in fields
        )
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "loopback",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            # not the size of a window, so that no prompt seems to be cut
            "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500},
        }
    ).encode()


async def serve(latency, size):
    loop = asyncio.get_running_loop()
    tally = Tally()
    server = await loop.create_server(
        lambda: Endpoint(tally, latency, size), "127.0.0.1", 0, backlog=4096
    )
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--latency", type=float, default=0.05, help="seconds until an answer arrives"
    )
    parser.add_argument("--answer-bytes", type=int, default=2048, help="length of an answer")
    given = parser.parse_args()
    asyncio.run(serve(given.latency, given.answer_bytes))


if __name__ == "__main__":
    main()
