"""The logging server, which does not take everything, has bad moments, and judges some texts in prose whatever it is asked.

    python tests/runs/picky_server.py [--formats] [and the logging server's options]

It takes no system role, and no response_format unless with --formats; it says so. Every eighth request is answered with a bare
500 the first time, and one text in ten is judged in prose until the judge is told that this cannot be read. All of it follows from the words that are asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter

from logging_server import NONCE, Book, Endpoint, completion, http, instance, parser, prose, serve

JUDGED = "one JSON object"
NAMES = re.compile(r'"(\w+)": \{(?:"evidence"|\.\.\.)')


class Picky(Endpoint):
    """One connection; what was asked before is known to all."""

    asked = Counter()

    def serve(self, sha, body):
        asked = json.loads(body)
        words = json.dumps(asked["messages"])
        key = hashlib.sha256(NONCE.sub(b"->", words.encode())).hexdigest()
        dice = random.Random(key)
        self.asked[sha] += 1
        if dice.random() < 0.125 and self.asked[sha] == 1:
            return self.later(sha, http({"error": {"message": "Internal Server Error"}}, 500))
        if refused := self.refused(asked):
            self.book.counts["refused"] += 1
            return self.later(sha, http({"error": {"message": refused, "code": 400}}, 400))
        text = self.verdict(asked, words, dice) if JUDGED in words else prose(key, dice)
        return self.later(sha, http(completion(text)))

    def refused(self, asked):
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
            {"criteria": {name: {"evidence": ""} | instance(row, dice, merit) for name in names}, "done": dice.random() < 0.1}
        )


DONE = r"\"done\""


def main():
    made = parser(__doc__)
    made.add_argument("--formats", action="store_true", help="take every response_format")
    given = made.parse_args()
    asyncio.run(serve(Picky, Book(given.log), given))


if __name__ == "__main__":
    main()
