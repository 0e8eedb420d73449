"""Check that budgets hold with 64 calls in flight, for every limit, against an endpoint that counts
what it serves.

    python bench/budgets.py [--rows 64] [--in-flight 64] [--seed 0] [--only TEXT] [--json FILE]

Each row of the table is a `refine_many` over `--rows` prompts with a judge and one limit, in one
situation. The endpoint has its own tokenizer. If it honours `max_tokens` and reports its usage,
nothing may be served beyond the limit, and the reported usage must be what it served; otherwise the
excess must be at most what was in flight, and must be reported. Without faults, every text that was
paid for must be graded. The exit code is 1 on a miss.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

from aiohttp import web

from redraft import Budget, refine_many
from redraft.middleware.budget import EXCESS_TEXT
from redraft.middleware.call_costs import LIMITS
from tables import table, write

PRICE = (1.0, 5.0)  # USD per million tokens read and written
LONG = 3000  # tokens of an answer without a limit
VERDICT = 80
TEMPLATE = 5  # tokens for each message

TEXTS = {
    "long answers": (
        "Write the whole history of the lighthouse, from the first fires on the cliffs to our own "
        "days. "
    ),
    "Chinese": "请详细说明这座灯塔的历史，从悬崖上的第一堆火一直到我们今天，并指出哪些地方仍然不确定。",  # noqa: E501
    "Arabic": (
        "اكتب تاريخ المنارة كاملا من أول نار على المنحدرات حتى أيامنا هذه مع ذكر ما هو غير مؤكد. "
    ),
    "emoji": "🙂🎉🚀🔥🌊🗼⛵🧭💡🪨",
    "code": (
        "def f(x, y=0):\n    return {k: v[0] for k, v in x.items() if v and v[0] >= y}  # keep\n"
    ),
    "mixed": (
        "Explain 灯塔 and المنارة, then 🗼🔥, in def f(x): return x[0]; be exact about 1822, 1611, "
        "280. "
    ),
}
# the value of each limit, so that it ends the run somewhere in the middle
MOST = {"calls": 90, "input_tokens": 30_000, "output_tokens": 40_000, "tokens": 60_000, "usd": 0.15}
TIGHT = {"calls": 3, "input_tokens": 2_000, "output_tokens": 1_500, "tokens": 3_000, "usd": 0.006}


@dataclass(frozen=True)
class Situation:
    """How the endpoint and its caller behave."""

    name: str
    text: str = "long answers"
    honours: bool = True
    reports: bool = True
    fails: float = 0.0
    cancels: bool = False
    takes: int | None = None  # the highest max_tokens that is not refused
    limits: dict = field(default_factory=lambda: MOST)

    @property
    def exact(self):
        return self.honours and self.reports


SITUATIONS = [
    *(Situation(name, text=name) for name in TEXTS),
    *(Situation(f"{name}, tight", text=name, limits=TIGHT) for name in TEXTS),
    Situation("unknown usage", reports=False),
    Situation("unknown usage, Chinese", "Chinese", reports=False),
    Situation("unknown usage, tight", reports=False, limits=TIGHT),
    Situation("ignores max_tokens", honours=False),
    Situation("ignores max_tokens, tight", honours=False, limits=TIGHT),
    Situation("ignores it, unknown", honours=False, reports=False),
    Situation("one in five fails", fails=0.2),
    Situation("one in five fails, Chinese", "Chinese", fails=0.2),
    Situation("cancelled", cancels=True),
    Situation("takes 2500 at most", takes=2500),
]


def tokens_of(text):
    """Count tokens as the endpoint does: 1 for four ASCII characters, 3 for an emoji, 1 or 2 for
    any other character.
    """
    plain = sum(c.isascii() for c in text)
    return -(-plain // 4) + sum(
        3 if ord(c) > 0xFFFF else 1 + ord(c) % 2 for c in text if not c.isascii()
    )


class Endpoint:
    """Answers chat completions at length, and counts what it served."""

    def __init__(self, situation, seed=0):
        self.situation, self.chance = situation, random.Random(seed)
        self.served, self.in_flight, self.most_in_flight, self.answers, self.texts = (
            Counter(),
            0,
            0,
            0,
            0,
        )

    async def __aenter__(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.model = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1#counts"
        return self

    async def __aexit__(self, *error):
        await self.runner.cleanup()

    async def answer(self, request):
        body = await request.json()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.complete(body)
        finally:
            self.in_flight -= 1

    async def complete(self, body):
        self.served["calls"] += 1
        most = body.get("max_tokens") or 10**9
        if self.situation.takes and most > self.situation.takes and most < 10**9:
            why = (
                f"max_tokens is too large: {most}. This model supports at most "
                f"{self.situation.takes} completion tokens"
            )
            return web.json_response({"error": {"message": why}}, status=400)
        if self.chance.random() < self.situation.fails:
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        read = TEMPLATE + sum(TEMPLATE + tokens_of(words(m["content"])) for m in body["messages"])
        text, written, finish = self.make_answer(body, most)
        self.count(read, written)  # a caller that disconnects now pays all the same
        await asyncio.sleep(0.002 + 0.01 * self.chance.random())
        usage = (
            {"prompt_tokens": read, "completion_tokens": written}
            if self.situation.reports
            else None
        )
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
        return web.json_response({"choices": [choice], "usage": usage})

    def make_answer(self, body, most):
        """Return the answer, the number of its tokens, and its finish reason."""
        self.answers += 1
        judged = "response_format" in body
        whole = verdict(body) if judged else f"{self.answers:08d} " + "word" * (LONG - 3)
        length = (VERDICT if judged else LONG) if not judged or self.situation.honours else VERDICT
        if self.situation.honours and most < length:
            return whole[: 4 * most], most, "length"
        self.texts += not judged
        return whole, length, "stop"

    def count(self, read, written):
        self.served.update(input_tokens=read, output_tokens=written, tokens=read + written)
        self.served["usd"] += (read * PRICE[0] + written * PRICE[1]) / 1e6


def words(content):
    return (
        content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    )


def verdict(body):
    """Return a verdict that follows the schema of the request, with medium scores for all
    criteria.
    """
    schema = body["response_format"]["json_schema"]["schema"]

    def fill(of):
        if "properties" in of:
            return {name: fill(part) for name, part in of["properties"].items()}
        return {"integer": 3, "number": 3, "boolean": False, "array": []}.get(
            of.get("type"), "more detail"
        )

    return json.dumps(fill(schema))


def prompts(situation, rows, seed):
    chance = random.Random(seed)
    text = TEXTS[situation.text]
    return [
        f"{n}. " + text * (1 + chance.randrange(max(1, 2000 // len(text.encode()))))
        for n in range(rows)
    ]


async def measure_cell(situation, limit, *, rows=64, in_flight=64, seed=0):
    """Measure one cell of the table."""
    async with Endpoint(situation, seed) as endpoint:
        price = {endpoint.model.partition("#")[2]: PRICE}
        given = dict(
            judge=None,
            max_iterations=2,
            target_score=1.0,
            noise_aware=False,
            max_in_flight=in_flight,
            prices=price,
        )
        budget = Budget(**{limit: situation.limits[limit]})
        work = asyncio.ensure_future(
            refine_many(prompts(situation, rows, seed), endpoint.model, budget=budget, **given)
        )
        if situation.cancels:
            await wait_until(lambda: endpoint.served["calls"] >= rows // 2 or work.done())
            work.cancel()
        results = []
        with suppress(asyncio.CancelledError):
            results = await asyncio.wait_for(work, 120)
        await wait_until(lambda: not endpoint.in_flight)
        return cell_figures(situation, limit, endpoint, results)


async def wait_until(condition):
    while not condition():  # noqa: ASYNC110  (what an endpoint has served sets no event)
        await asyncio.sleep(0.001)


def cell_figures(situation, limit, endpoint, results):
    """Return the figures of a cell, and what is wrong with them."""
    most, served = situation.limits[limit], endpoint.served
    usages = [
        result.error.usage if result.error and not result.trace.candidates else result.usage
        for result in results
    ]
    notes = [f"{result.stop_note} {result.error or ''}" for result in results]
    ungraded = sum(
        result.trace.scores[c.id] is None for result in results for c in result.trace.candidates
    )
    over, reported = max(0.0, served[limit] - most), any(EXCESS_TEXT in note for note in notes)
    flaws = []
    if situation.exact or situation.honours:
        flaws += ["over"] * (over > 1e-9)
    else:
        flight = {"calls": 0, "input_tokens": 0}.get(
            limit, endpoint.most_in_flight * (LONG if limit != "usd" else LONG * 5e-6)
        )
        flaws += ["over by more than was in flight"] * (over > flight + 1e-9)
        flaws += ["not reported"] * (situation.reports and over > 1e-9 and not reported)
    if situation.exact and not situation.cancels:
        sums = {name: sum(amount(usage, name) or 0 for usage in usages) for name in LIMITS}
        flaws += [
            f"{name} reported {sums[name]:g}"
            for name in LIMITS
            if abs(sums[name] - served[name]) > 1e-6
        ]
    if situation.honours and not (situation.cancels or situation.fails):
        flaws += [f"{ungraded} ungraded"] * bool(ungraded)
    return {
        "situation": situation.name,
        "limit": limit,
        "most": most,
        "served": served[limit],
        "over": over,
        "reported": reported,
        "calls": served["calls"],
        "most_in_flight": endpoint.most_in_flight,
        "graded": sum(len(result.trace.graded_candidates) for result in results),
        "ungraded": ungraded,
        "flaws": flaws,
    }


def amount(usage, name):
    return usage.cost if name == "usd" else getattr(usage, name)


def cells():
    return list(product(SITUATIONS, LIMITS))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only situations whose name contains TEXT"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    return parser.parse_args()


def main():
    given = arguments()
    found = [
        asyncio.run(
            measure_cell(
                situation, limit, rows=given.rows, in_flight=given.in_flight, seed=given.seed
            )
        )
        for situation, limit in cells()
        if given.only in situation.name
    ]
    header = [
        "situation",
        "limit",
        "most",
        "served",
        "over",
        "reported",
        "calls",
        "in flight",
        "graded",
        "ungraded",
        "verdict",
    ]
    rows = [
        [
            cell["situation"],
            cell["limit"],
            f"{cell['most']:g}",
            f"{cell['served']:.6g}",
            f"{cell['over']:.4g}",
            "yes" if cell["reported"] else "",
            *(str(cell[name]) for name in ("calls", "most_in_flight", "graded", "ungraded")),
            "; ".join(cell["flaws"]) or "kept",
        ]
        for cell in found
    ]
    table(header, rows)
    missed = sum(bool(cell["flaws"]) for cell in found)
    print(f"\n{len(found)} cells, {missed} missed")
    write(given.json, {"cells": found})
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
