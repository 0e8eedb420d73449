"""Calls of graders with a server of their own (embeddings, reward models, moderation) are calls
like all others.
"""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from aiohttp import web

import redraft
from redraft import Budget, ScriptedModel, Task, refine
from redraft.errors import BudgetExhaustedError, ConfigError
from redraft.graders.computed.embedding import Embedding
from redraft.graders.fingerprint import grader_fingerprint
from redraft.graders.reward import Moderation, Reward
from redraft.models.pricing import Price, price_of
from redraft.models.scoring import connect_embeddings, connect_moderation
from redraft.runs import BatchRun
from redraft.session.options import Options
from redraft.validation import validate
from sessions import make_session

TOKENS = 7
REPLIES = {
    "/v1/embeddings": {
        "data": [{"index": 0, "embedding": [3.0, 4.0]}, {"index": 1, "embedding": [4.0, 3.0]}]
    },
    "/v1/classify": {"data": [{"probs": [0.96]}]},
    "/v1/moderations": {
        "results": [
            {"flagged": False, "categories": {"hate": False}, "category_scores": {"hate": 0.04}}
        ]
    },
}
GRADERS = {
    "embedding": lambda url, name="m": Embedding(f"{url}#{name}"),
    "reward": lambda url, name="m": Reward(f"{url}/classify#{name}"),
    "moderation": lambda url, name="m": Moderation(f"{url}#{name}"),
}
TASK = Task("q", reference="y")
NO_WRITER = {"max_iterations": 0}


@dataclass
class Server:
    """Gives good answers after the statuses in `failures`, with the tokens of the prompt; holds
    them until `release` is set.
    """

    url: str = ""
    paths: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request):
        self.paths.append(request.path)
        self.arrived.set()
        await self.release.wait()
        if self.failures:
            return web.json_response(
                {"error": {"message": "slow down"}},
                status=self.failures.pop(0),
                headers={"Retry-After": "0"},
            )
        return web.json_response(
            REPLIES[request.path] | {"usage": {"prompt_tokens": TOKENS, "total_tokens": TOKENS}}
        )


@pytest.fixture
async def server():
    made = Server()
    made.release.set()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    made.release.set()
    await runner.cleanup()


every = pytest.mark.parametrize("make", GRADERS.values(), ids=GRADERS)


@every
async def test_usage_and_cost_are_those_of_the_result(server, make):
    """An unknown price makes the cost unknown, not 0; a given one counts the tokens of the
    prompt.
    """
    result = await refine(
        TASK, ScriptedModel(["a", "b"]), make(server.url), max_iterations=1, target_score=1
    )
    assert (result.usage.calls, result.usage.input_tokens, result.cost) == (4, 2 * TOKENS, None)
    assert result.usage_by["grade m"].calls == len(server.paths) == 2
    priced = await refine(
        TASK, ScriptedModel(["a"]), make(server.url), **NO_WRITER, prices={"m": (2.0, 100.0)}
    )
    assert priced.cost == pytest.approx(TOKENS * 2.0 / 1e6)


@every
async def test_a_budget_in_usd_needs_a_price_and_is_kept(server, make):
    """Without a price it is refused, with too little of it nothing is sent; a price of output, of
    which there is none, is not held.
    """
    with pytest.raises(ConfigError, match="the price of 'm' is unknown"):
        await refine(TASK, ScriptedModel(["a"]), make(server.url), budget=Budget(usd=1))
    settings = {"prices": {"m": (1.0, 1_000_000.0)}, **NO_WRITER}
    poor = await refine(
        Task("q", "a", reference="y"), None, make(server.url), budget=Budget(usd=1e-6), **settings
    )
    assert (str(poor.stop), poor.score, server.paths) == ("budget", None, [])
    rich = await refine(
        Task("q", "a", reference="y"), None, make(server.url), budget=Budget(usd=2.0), **settings
    )
    assert (str(rich.stop) != "budget", len(server.paths)) == (True, 1)


@every
@pytest.mark.parametrize(
    ("budget", "calls"),
    [
        (Budget(calls=1), 1), (Budget(input_tokens=20), 0), (Budget(tokens=20), 0), (Budget(tokens=300), 1),
        (Budget(output_tokens=2), 1),
    ],
)  # fmt: skip
async def test_a_budget_refuses_before_the_call(server, make, budget, calls):
    """What the prompt may take is reserved, and a token for the reply, which has none."""
    given = Task("q", "a", reference="y")
    results = [await refine(given, None, make(server.url), budget=budget, **NO_WRITER)]
    assert len(server.paths) == calls
    assert (results[0].score is None) == (calls == 0)
    strict = refine(given, None, make(server.url), budget=budget, strict_budget=True, **NO_WRITER)
    if not calls:
        with pytest.raises(BudgetExhaustedError):
            await strict
    else:
        assert (await strict).score is not None


@every
@pytest.mark.parametrize(("status", "calls"), [(429, 3), (503, 3), (400, 1), (401, 1)])
async def test_failures_are_retried_as_those_of_all_calls(server, make, status, calls):
    """A limit and a server in trouble are asked again, a refusal is not; every call is counted."""
    server.failures = [status] * 2
    result = await refine(
        Task("q", "a", reference="y"), None, make(server.url), retries=2, **NO_WRITER
    )
    assert (len(server.paths), result.usage.calls) == (calls, calls)
    assert (result.score is None) == (calls == 1)


@every
async def test_what_a_journal_holds_is_not_paid_again(server, make, tmp_path):
    """A batch that is run again grades the new row alone."""
    rows = [{"prompt": f"p{n}", "response": f"a{n}", "reference": "y"} for n in range(3)]
    for count in (2, 3):
        report = await redraft.batch(
            rows[:count], tmp_path / "out.jsonl", None, [make(server.url)], mode="grade"
        )
        assert (report.rows.done, report.rows.failed) == (count, 0)
        assert len(server.paths) == count
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["best_score"] for row in out] == [pytest.approx(0.96)] * 3


@every
async def test_a_cancelled_call_is_counted_as_sent(server, make):
    """What it took is unknown, not 0."""
    server.release.clear()
    running = asyncio.create_task(
        refine(Task("q", "a", reference="y"), None, make(server.url), **NO_WRITER)
    )
    await asyncio.wait_for(server.arrived.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    usage = caught.value.result.usage
    assert (usage.calls, usage.input_tokens) == (1, None)


@every
async def test_the_endpoint_is_part_of_the_fingerprint(server, make):
    """Another model or another address is another grader; a key in the address is not."""
    session = make_session(Options(), None, [])
    secret = server.url.replace("http://", "http://:sk-1@")
    graders = [
        make(server.url),
        make(server.url),
        make(secret),
        make(server.url, "n"),
        make("http://127.0.0.1:9/v1"),
    ]
    a, same, keyed, other, elsewhere = [
        grader_fingerprint(each, lambda model: model) for each in graders
    ]
    assert a == same == keyed
    assert len({a, other, elsewhere}) == 3
    await session.close()


@every
async def test_it_needs_a_validation_card_like_a_judge(server, make, tmp_path):
    """It computes nothing here, so that nobody knows how right it is."""
    with pytest.raises(ConfigError, match="is not trusted"):
        await refine(
            TASK,
            ScriptedModel(["a"]),
            make(server.url),
            require_validated="error",
            cards_dir=str(tmp_path),
        )
    assert not server.paths


@every
async def test_a_card_is_of_this_endpoint_and_its_verdicts_are_not_paid_twice(
    server, make, tmp_path
):
    """A second validation has the verdicts of the first; the card says which model it is of, and
    has its fingerprint.
    """
    rows = [
        {"prompt": "p", "response": f"a{n}", "reference": "y", "score": n % 2} for n in range(6)
    ]
    results = [await validate(rows, make(server.url), False, cards_dir=tmp_path) for _ in range(2)]
    assert len(server.paths) == 6
    cards = [result.card for result in results]
    assert {card.model for card in cards} == {"m"}
    assert {card.fingerprint for card in cards} == {
        grader_fingerprint(make(server.url), lambda model: model)
    }


@every
async def test_an_estimate_counts_the_grades_of_all_responses(server, make, tmp_path):
    """As it does for judges; a number takes no tokens of an answer, and no instructions are
    sent.
    """
    (tmp_path / "rows.jsonl").write_text(
        "".join(
            f'{{"prompt": "p{n}", "responses": ["a{n}", "b{n}"], "reference": "y"}}\n'
            for n in range(4)
        )
    )
    settings = {"mode": "grade", "prices": {"m": (1.0, 1e6)}}
    run = BatchRun.from_arguments(
        tmp_path / "rows.jsonl", tmp_path / "out.jsonl", None, [make(server.url)], **settings
    )
    told = await run.prepare()
    usage = (await run.go()).spending.usage
    assert told.expected.calls == usage.calls == len(server.paths) == 8
    assert told.expected.cost < 0.01


def test_published_prices_of_models_that_write_no_text_are_known(monkeypatch):
    """They have no price of output."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    price = price_of(connect_embeddings("openai:text-embedding-3-small"))
    assert (price.input, price.output) == (0.02, 0.0)
    assert price_of("text-embedding-3-small", "https://api.openai.com/v1") is None
    assert price_of(connect_embeddings("openai:no-such-model")) is None
    assert price_of(connect_embeddings("http://127.0.0.1:1/v1#text-embedding-3-small")) is None
    assert price_of(connect_moderation("openai:omni-moderation-latest")) == Price(0.0, 0.0)
