"""The logging server, which refuses some parameters, fails now and then, and judges some texts in
prose whatever the request.

    python tests/runs/picky_server.py [--formats] [and the logging server's options]

It refuses a system role, and a response_format unless with --formats. Every eighth request gets a
bare 500 the first time, and one text in ten is judged in prose until the judge is told that this
cannot be read. All of it follows from the words of the request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter

from logging_server import (
    NONCE,
    Endpoint,
    EventLog,
    completion,
    http,
    instance,
    parser,
    prose,
    serve,
)

JUDGED = "one JSON object"
NAMES = re.compile(r'"(\w+)": \{(?:"evidence"|\.\.\.)')


class Picky(Endpoint):
    """One connection; earlier requests are shared by all."""

    asked = Counter()

    def serve(self, sha, body):
        asked = json.loads(body)
        words = json.dumps(asked["messages"])
        key = hashlib.sha256(NONCE.sub(b"->", words.encode())).hexdigest()
        dice = random.Random(key)
        self.asked[sha] += 1
        if dice.random() < 0.125 and self.asked[sha] == 1:
            return self.answer_later(
                sha, http({"error": {"message": "Internal Server Error"}}, 500)
            )
        if message := self.refusal_of(asked):
            self.book.counts["refused"] += 1
            return self.answer_later(sha, http({"error": {"message": message, "code": 400}}, 400))
        text = self.verdict(asked, words, dice) if JUDGED in words else prose(key, dice)
        return self.answer_later(sha, http(completion(text)))

    def refusal_of(self, asked):
        if any(message["role"] == "system" for message in asked["messages"]):
            return "System role not supported"
        if "response_format" in asked and not self.given.formats:
            return "This response_format type is unavailable now"
        return None

    def verdict(self, asked, words, dice):
        """A judge's answer: the same in every format."""
        if dice.random() < 0.1 and "That cannot be read" not in words:
            return "I would rather say it in my own words."
        names = NAMES.findall(json.loads(f'"{words.partition(JUDGED)[2].partition(DONE)[0]}"'))
        row = {"type": "object", "properties": {"change": {}, "score": {"enum": list(range(6))}}}
        merit = dice.random()
        return json.dumps(
            {
                "reason": "It is so.",
                "criteria": {name: {"evidence": ""} | instance(row, dice, merit) for name in names},
                "done": dice.random() < 0.1,
            }
        )


DONE = r"\"done\""


def main():
    made = parser(__doc__)
    made.add_argument("--formats", action="store_true", help="take every response_format")
    given = made.parse_args()
    asyncio.run(serve(Picky, EventLog(given.log), given))


if __name__ == "__main__":
    main()
