"""The logging server with faults: a share of the requests fails, in every known way.

    python tests/runs/chaos_server.py [--share 0.2] [--seed 0] [--only KIND] [and the logging
    server's options]

Whether and how a request fails follows from the seed, the request and how often it was made, so
that a retry may succeed and a run can be reproduced.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections import Counter

from logging_server import Endpoint, EventLog, answer_text, completion, http, parser, serve

HTML = b"<!doctype html><title>502</title>Bad gateway"


class Chaos(Endpoint):
    """A connection on which any fault may happen."""

    asked = Counter()

    def serve(self, sha, body):
        self.asked[sha] += 1
        dice = random.Random(f"{self.given.seed} {sha} {self.asked[sha]}")
        if dice.random() >= self.given.share:
            return super().serve(sha, body)
        kind = dice.choice(self.given.only or list(FAULTS))
        self.book.counts[kind] += 1
        FAULTS[kind](self, sha, *answer_text(sha, body))

    def fails(self, sha, status, **headers):
        self.answer_later(
            sha, http({"error": {"message": f"injected {status}"}}, status, **headers)
        )

    def reset(self, sha, *_):
        """Reset the connection instead of closing it."""
        self.book.note("E", sha)
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()

    def cut(self, sha, *spoken):
        """Send half of the response, then close the connection."""
        response = http(completion(*spoken))
        self.answer(sha, response[: len(response) - 80])
        self.transport.close()

    def never(self, sha, *_):
        """Send no answer, however long the client waits."""
        self.waiting[sha] = asyncio.get_running_loop().call_later(3600, self.transport.close)


FAULTS = {
    "429": lambda c, sha, *_: c.fails(sha, 429),
    "429 after a while": lambda c, sha, *_: c.fails(sha, 429, retry_after_ms=150),
    "429 after a second": lambda c, sha, *_: c.fails(sha, 429, Retry_After=1),
    "500": lambda c, sha, *_: c.fails(sha, 500),
    "502": lambda c, sha, *_: c.answer_later(sha, http(HTML, 502)),
    "503": lambda c, sha, *_: c.fails(sha, 503),
    "reset": Chaos.reset,
    "cut": Chaos.cut,
    "half of the JSON": lambda c, sha, *spoken: c.answer_later(
        sha, http(json.dumps(completion(*spoken)).encode()[:-60])
    ),
    "no JSON": lambda c, sha, *_: c.answer_later(sha, http(HTML)),
    "no choices": lambda c, sha, *_: c.answer_later(sha, http({"object": "chat.completion"})),
    "empty": lambda c, sha, *_: c.answer_later(sha, http(completion(""))),
    "null": lambda c, sha, *_: c.answer_later(sha, http(completion(None))),
    "content_filter": lambda c, sha, *_: c.answer_later(
        sha, http(completion("", finish="content_filter"))
    ),
    "length": lambda c, sha, text, *_: c.answer_later(
        sha, http(completion(text[: len(text) // 2], finish="length"))
    ),
    "straggler": lambda c, sha, *spoken: c.answer_later(
        sha, http(completion(*spoken)), slower=10.0
    ),
    "never": Chaos.never,
}


def main():
    about = parser(__doc__)
    about.add_argument("--share", type=float, default=0.2, help="how many of the requests go wrong")
    about.add_argument("--seed", type=int, default=0)
    about.add_argument(
        "--only", action="append", choices=FAULTS, help="only faults of this kind (may be repeated)"
    )
    given = about.parse_args()
    asyncio.run(serve(Chaos, EventLog(given.log), given))


if __name__ == "__main__":
    main()
