"""An OpenAI-compatible model on the loopback interface that uses less CPU time than any gateway in
front of it.

    python bench/gateways/upstream.py [--latency 0.01] [--pieces 16] [--interval 0] [--port 0]

It prints its address on the first line and serves until its standard input is closed. POST is a
chat completion, as one reply or as a stream of `--pieces`, `--interval` seconds apart. A prompt for
a judge gets a verdict. A model named "faulty..." answers as FAULTS says, chosen at random;
"hanging..." never answers; "slow-N..." begins after N ms and sends its pieces N ms apart. GET
/stats returns what was asked and what became of it, in total and for each model. It is written
directly on an asyncio protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections import defaultdict
from functools import lru_cache

import uvloop

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
MODEL = re.compile(rb'"model": ?"([^"]{1,100})"')
STREAM = re.compile(rb'"stream": ?true')
CRITERIA = ("instructions", "correctness", "completeness", "clarity")
FAULTS = ("error", "limit", "nonsense", "close", "half", "hang", *["none"] * 6)
HANG = 20.0
LARGE = b"at great length"
WORDS = "an answer of a length that is usual for a question with some detail in it "
COUNTS = ("calls", "answered", "faults", "left")


class Tally:
    """What was asked, by model: `calls` begun, `answered`, `faults` on purpose, and `left` by the
    client before the end.
    """

    def __init__(self):
        self.models = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        self.in_flight = 0
        self.most_in_flight = 0

    def begin(self, model):
        self.models[model]["calls"] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def end(self, model, how):
        self.models[model][how] += 1
        self.in_flight -= 1

    def figures(self):
        total = {name: sum(each[name] for each in self.models.values()) for name in COUNTS}
        return {
            **total,
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "models": self.models,
        }


class Endpoint(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    def __init__(self, tally, given):
        self.tally, self.given = tally, given
        self.buffer = b""
        self.model = None
        self.timer = None

    def connection_made(self, transport):
        self.transport = transport
        self.loop = asyncio.get_running_loop()

    def connection_lost(self, error):
        if self.timer:
            self.timer.cancel()
        self.end("left")

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
        if head.startswith(b"GET /stats"):
            self.send(json.dumps(self.tally.figures()).encode())
        elif head.startswith(b"GET"):
            self.send(b'{"object": "list", "data": [{"id": "loopback", "object": "model"}]}')
        elif not head.partition(b"\r\n")[0].split(b" ")[1].endswith(b"/chat/completions"):
            self.send(
                b'{"error": {"message": "there is only /chat/completions"}}', b"404 Not Found"
            )
        else:
            self.begin(body)

    def begin(self, body):
        self.model = found[1].decode("latin-1") if (found := MODEL.search(body)) else ""
        self.tally.begin(self.model)
        fault = random.choice(FAULTS) if self.model.startswith("faulty") else "none"
        delay, interval = self.given.latency, self.given.interval
        if self.model.startswith("hanging") or fault == "hang":
            delay = HANG
        elif self.model.startswith("slow-"):
            delay = interval = int(self.model.split("-")[1]) / 1000
        then = getattr(self, f"do_{fault}", None)
        if then is None:
            then = self.stream if STREAM.search(body) else self.reply
            self.timer = self.loop.call_later(
                delay, then, text_for(body), interval, fault == "half"
            )
        else:
            self.timer = self.loop.call_later(delay, then)

    def end(self, how):
        if self.model is not None:
            self.tally.end(self.model, how)
            self.model = None

    # faults

    def do_error(self):
        self.end("faults")
        self.send(
            b'{"error": {"message": "the model failed on purpose"}}', b"500 Internal Server Error"
        )

    def do_limit(self):
        self.end("faults")
        self.send(
            b'{"error": {"message": "too many requests, on purpose"}}',
            b"429 Too Many Requests\r\nRetry-After: 1",
        )

    def do_nonsense(self):
        self.end("faults")
        self.send(b"<html>no JSON, on purpose</html>")

    def do_close(self):
        self.end("faults")
        self.transport.abort()

    # answers

    def reply(self, text, interval, half):
        body = completion(text)
        if half:
            self.end("faults")
            self.transport.write(HEAD % (b"200 OK", len(body)) + body[: len(body) // 2])
            self.transport.close()
            return
        self.end("answered")
        self.send(body)

    def stream(self, text, interval, half):
        self.transport.write(STREAM_HEAD)
        events = stream_events(text, self.given.pieces)
        if interval:
            self.next_event(events, 0, interval, half)
        elif half:
            self.transport.write(b"".join(events[: len(events) // 2]))
            self.cut()
        else:
            self.transport.write(b"".join(events))
            self.finish()

    def next_event(self, events, n, interval, half):
        if half and n > len(events) // 2:
            self.cut()
        elif n == len(events):
            self.finish()
        else:
            self.transport.write(events[n])
            self.timer = self.loop.call_later(
                interval, self.next_event, events, n + 1, interval, half
            )

    def finish(self):
        self.transport.write(b"0\r\n\r\n")
        self.end("answered")

    def cut(self):
        self.end("faults")
        self.transport.close()

    def send(self, body, status=b"200 OK"):
        self.transport.write(HEAD % (status, len(body)) + body)


HEAD = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
USAGE = {"prompt_tokens": 1024, "completion_tokens": 512, "total_tokens": 1536}


def text_for(body):
    """Return the answer to a request: a verdict for a judge, else text."""
    if b"one JSON object" in body:
        return verdict(random.choice((3, 4, 5)))
    if LARGE in body:
        return WORDS * 60_000  # 4 MB
    return f"Answer {random.randrange(100)}: " + WORDS * 8


@lru_cache
def verdict(score):
    rows = {
        name: {"evidence": "", "change": "" if score == 5 else "say more", "score": score}
        for name in CRITERIA
    }
    return json.dumps({"reason": "It is so.", "criteria": rows, "done": score == 5})


@lru_cache
def completion(text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "loopback",
            "choices": [choice],
            "usage": USAGE,
        }
    ).encode()


@lru_cache
def stream_events(text, pieces):
    """Return the events of a stream, each as one chunk of HTTP."""
    size = -(-len(text) // pieces)
    deltas = [
        {"role": "assistant", "content": ""},
        *({"content": text[n : n + size]} for n in range(0, len(text), size)),
        {},
    ]
    finish = [*[None] * (len(deltas) - 1), "stop"]
    chunks = [
        {"choices": [{"index": 0, "delta": d, "finish_reason": f}]}
        for d, f in zip(deltas, finish, strict=True)
    ]
    chunks.append({"choices": [], "usage": USAGE})
    shared = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "loopback",
    }
    lines = [b"data: " + json.dumps(shared | chunk).encode() + b"\n\n" for chunk in chunks] + [
        b"data: [DONE]\n\n"
    ]
    return tuple(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)


async def serve(given):
    loop = asyncio.get_running_loop()
    tally = Tally()
    server = await loop.create_server(
        lambda: Endpoint(tally, given), "127.0.0.1", given.port, backlog=4096
    )
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--latency", type=float, default=0.01, help="seconds until an answer begins"
    )
    parser.add_argument("--pieces", type=int, default=16, help="pieces of a stream")
    parser.add_argument(
        "--interval", type=float, default=0.0, help="seconds between the pieces of a stream"
    )
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
