"""The loopback endpoint of server.py as a judge: every request gets the same verdict, in a form
that all contenders read.

python bench/judge_server.py [--latency 0.05]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from server import Endpoint, Tally

WHY = (
    "It says what was asked for, and in the order that a reader needs; two of the claims would be "
    "better with a source. "
)
CRITERIA = ("instructions", "correctness", "completeness", "clarity")
VERDICT = {
    "reason": WHY,
    "criteria": {
        name: {"evidence": WHY[:90], "change": WHY[:100], "score": 4} for name in CRITERIA
    },
    "done": False,
    "score": 4,
}


class Judge(Endpoint):
    """One connection."""

    def answer(self, head, _):
        self.tally.end()
        self.send(head, COMPLETION)


def completion(text):
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
            "usage": {"prompt_tokens": 1500, "completion_tokens": 250, "total_tokens": 1750},
        }
    ).encode()


COMPLETION = completion(json.dumps(VERDICT))


async def serve(latency):
    loop = asyncio.get_running_loop()
    tally = Tally()
    server = await loop.create_server(
        lambda: Judge(tally, latency, 0), "127.0.0.1", 0, backlog=4096
    )
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--latency", type=float, default=0.05, help="seconds until an answer arrives"
    )
    asyncio.run(serve(parser.parse_args().latency))


if __name__ == "__main__":
    main()
