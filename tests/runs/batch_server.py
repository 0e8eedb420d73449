"""An endpoint with a batch API on the loopback, which gives the answers of the logging server and
logs every request of a batch.

    python tests/runs/batch_server.py [--port 0] [--log FILE] [--latency 0.05] [--expire 1] ...

It has /v1/files and /v1/batches, and /v1/chat/completions, which counts live calls although none
should come. A marker in a prompt requests a fault: "[429 once]", "[lost once]" (an error object
instead of a response), "[filter]", "[cut]", "[400]", "[401]". In the log "B" is a request that was
submitted, "E" its answer that was read, "L" a live call. GET /stats counts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from email import message_from_bytes
from urllib.parse import parse_qs

import orjson
from logging_server import (
    Endpoint,
    EventLog,
    answer_text,
    completion,
    http,
    parser,
    request_hash,
    serve,
)

FIELDS = re.compile(rb"\r\ncontent-type: *([^\r]*)", re.IGNORECASE)


class Provider(Endpoint):
    """One connection; the state is shared by all."""

    files, batches, seen, had, counts = {}, {}, Counter(), Counter(), Counter()

    def take(self, head, body):
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        path, _, query = target.partition("?")
        if path == "/stats":
            return self.send({**self.counts, "again": sum(n - 1 for n in self.seen.values())})
        if path.endswith("/chat/completions"):
            self.counts["live"] += 1
            self.book.note("L", "0" * 32)
            return self.send(completion("live"))
        if self.given.refuse:
            return self.send({"error": {"message": "no answer for you"}}, self.given.refuse)
        self.counts["calls"] += 1
        if self.counts["calls"] <= self.given.busy:
            return self.transport.write(
                http({"error": {"message": "slow down"}}, 429, Retry_After="0.05")
            )
        return self.route(
            method, path.removeprefix("/v1").strip("/").split("/"), head, body, parse_qs(query)
        )

    def send(self, body, status=200):
        self.transport.write(http(body, status))

    def route(self, method, path, head, body, query):
        match method, path:
            case "POST", ["files"]:
                return self.upload(head, body)
            case "GET", ["files", id, "content"]:
                return self.content(id)
            case "POST", ["batches"]:
                return self.create(orjson.loads(body))
            case "GET", ["batches"]:
                return self.list_batches(query)
            case "GET", ["batches", id]:
                self.counts["looks"] += 1
                return (
                    self.send(self.batches[id])
                    if id in self.batches
                    else self.send({"error": {"message": "gone"}}, 404)
                )
            case "POST", ["batches", id, "cancel"]:
                self.batches[id]["status"] = "cancelled"
                return self.send(self.batches[id])
        return self.send({"error": {"message": "no such place"}}, 404)

    def upload(self, head, body):
        kind = FIELDS.search(head)[1]
        form = message_from_bytes(b"Content-Type: " + kind + b"\r\n\r\n" + body)
        fields = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in form.get_payload()
        }
        assert fields["purpose"] == b"batch", fields
        id = f"file-{len(self.files)}"
        self.files[id] = fields["file"]
        self.counts["uploads"] += 1
        self.send({"id": id, "object": "file", "purpose": "batch"})

    def content(self, id):
        if id not in self.files:
            return self.send({"error": {"message": "gone"}}, 404)
        self.counts["reads"] += 1
        if self.counts["reads"] <= self.given.broken:  # half of it, then silence for good
            response = http(self.files[id])
            self.transport.write(response[: len(response) - len(self.files[id]) // 2])
            return self.transport.close()
        self.transport.write(http(self.files[id]))

    def create(self, asked):
        lines = [orjson.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        keys = [line["custom_id"] for line in lines]
        assert (
            len(keys) == len(set(keys))
            and asked["endpoint"] == "/v1/chat/completions"
            and asked["completion_window"] == "24h"
        )
        self.counts["batches"] += 1
        number = self.counts["batches"]
        batch = {
            "id": f"batch_{number}",
            "object": "batch",
            "status": "in_progress",
            "metadata": asked["metadata"],
        }
        self.batches[batch["id"]] = batch | {
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0}
        }
        for line in lines:
            self.counts["requests"] += 1
            self.seen[sha_of(line)] += 1
            self.book.note("B", sha_of(line))
        seconds = self.given.first if number == 1 and self.given.first else self.given.latency
        asyncio.get_running_loop().call_later(seconds, self.work, batch["id"], lines, number)
        if number <= self.given.deaf:
            return self.transport.close()
        return self.send(self.batches[batch["id"]])

    def list_batches(self, query):
        """List the newest batches first, two to a page."""
        ids = list(self.batches)[::-1]
        start = ids.index(query["after"][0]) + 1 if "after" in query else 0
        page = [self.batches[id] for id in ids[start : start + 2]]
        self.send({"object": "list", "data": page, "has_more": start + 2 < len(ids)})

    def work(self, id, lines, number):
        """Complete a batch after the latency."""
        batch = self.batches[id]
        if len(lines) > self.given.most:
            return batch.update(
                status="failed",
                errors={"data": [{"code": "token_limit_exceeded", "message": "too much"}]},
            )
        if number <= self.given.fail:
            self.counts["unanswered"] += len(lines)
            return batch.update(
                status="failed", errors={"data": [{"code": "odd", "message": "not today"}]}
            )
        expired = number <= self.given.expire
        self.counts["unanswered"] += len(lines) // 2 if expired else 0
        answers = [
            (self.answer(line) if not (expired and i % 2) else expired_line(line))
            for i, line in enumerate(lines)
        ]
        good = [a for a in answers if a["response"] and a["response"]["status_code"] == 200]
        bad = [a for a in answers if a not in good]
        # in another order than asked
        for name, found in (("output_file_id", good[::-1]), ("error_file_id", bad)):
            if found:
                self.files[f"{id}-{name}"] = b"".join(orjson.dumps(a) + b"\n" for a in found)
                batch[name] = f"{id}-{name}"
        batch.update(
            status="expired" if expired else "completed",
            request_counts={"total": len(lines), "completed": len(good)},
        )

    def answer(self, line):
        sha, body = sha_of(line), orjson.dumps(line["body"])
        self.book.note("E", sha)
        trouble = self.trouble(json.dumps(line["body"]["messages"]), sha, line["body"])
        return {"id": f"r-{sha}", "custom_id": line["custom_id"], "error": None} | (
            trouble or answer_line(completion(*answer_text(sha, body)))
        )

    def trouble(self, words, sha, body):
        self.had[sha] += 1
        once = self.had[sha] == 1
        form = (body.get("response_format") or {}).get("type")
        if self.given.no_schema and form == "json_schema":
            return error_line(400, "response_format json_schema is not supported")
        if form:
            return None
        if "[429 once]" in words and once:
            return error_line(429, "slow down")
        if "[lost once]" in words and once:
            return {"response": None, "error": {"code": "server_error", "message": "it is lost"}}
        if "[filter]" in words:
            return answer_line(completion("", finish="content_filter"))
        if "[cut]" in words:
            return answer_line(completion("half an ans", finish="length"))
        if "[quoted]" in words:
            return error_line(400, f"invalid input: {words}")
        return next(
            (
                error_line(status, "no answer for you")
                for status in (400, 401)
                if f"[{status}]" in words
            ),
            None,
        )


def sha_of(line):
    return request_hash(orjson.dumps(line["body"]))


def answer_line(body):
    return {"response": {"status_code": 200, "request_id": "q", "body": body}}


def error_line(status, message):
    return {
        "response": {"status_code": status, "body": {"error": {"message": message, "code": None}}}
    }


def expired_line(line):
    return {
        "custom_id": line["custom_id"],
        "response": None,
        "error": {"code": "batch_expired", "message": "too late"},
    }


def main():
    made = parser(__doc__)
    made.set_defaults(latency=0.05)
    for name, about in {
        "--busy": "answer the first N calls of all with 429",
        "--expire": "let the first N batches expire with half of their answers",
        "--fail": "let the first N batches fail",
        "--deaf": "hang up on the first N that create a batch, which is made all the same",
        "--broken": "break off the first N downloads",
    }.items():
        made.add_argument(name, type=int, default=0, help=about)
    made.add_argument("--first", type=float, help="seconds until the first batch ends")
    made.add_argument("--most", type=int, default=10**6, help="let batches of more requests fail")
    made.add_argument("--no-schema", action="store_true", help="refuse JSON schemas")
    given = made.parse_args()
    asyncio.run(serve(Provider, EventLog(given.log), given))


if __name__ == "__main__":
    main()
