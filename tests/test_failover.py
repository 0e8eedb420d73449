"""Several models in order: which one answers, what is said about it, and when the first one is
asked again.
"""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft import Budget, Judge, ScriptedModel, Task, batch, refine
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.middleware.failover import Availability, FailoverModel, fail_over
from redraft.models.pricing import Price
from redraft.protocols import Reply, Request
from redraft.runs import BatchRun
from redraft.usage import Usage

REQUEST = Request(({"role": "user", "content": "q"},))
OUTAGES = {
    "no connection": lambda: ModelUnavailableError("cannot be reached", retryable=True),
    "503": lambda: ModelUnavailableError("status 503", status=503, retryable=True),
    "529": lambda: ModelUnavailableError("status 529", status=529, retryable=True),
    "timeout": lambda: ModelTimeoutError("no answer"),
    "too many requests": lambda: RateLimitError("status 429", status=429),
}
OTHER_ERRORS = {
    "wrong key": lambda: AuthenticationError("status 401", status=401),
    "not allowed": lambda: AuthenticationError("status 403", status=403),
    "no quota": lambda: AuthenticationError("status 429: insufficient_quota", status=429),
    "unknown model": lambda: ModelUnavailableError("status 404", status=404),
    "bad request": lambda: ModelError("status 400", status=400),
    "too long": lambda: ContextLengthError("status 400", status=400),
    "filtered": lambda: ContentFilterError("refused"),
    "not an answer": lambda: BadResponseError("sent a web page"),
    "no secure connection": lambda: ModelUnavailableError("no secure (TLS) connection"),
}


class Endpoint:
    """A model that answers or raises an error; `sent` are the texts of the requests it got."""

    def __init__(self, name, error=None, price=None):
        self.name, self.identity, self.error, self.sent = name, f"endpoint {name}", error, []
        self.price = price

    async def complete(self, request):
        self.sent.append(request.messages[-1]["content"])
        if self.error:
            raise self.error()
        return Reply(f"{self.name} writes", Usage(1, 1000, 1000, cost=None))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("error", OUTAGES.values(), ids=OUTAGES)
async def test_an_outage_lets_the_next_model_write(error, caplog):
    """The candidate names the model that wrote it and says why; so do the summary and the log.
    Judges are not replaced.
    """
    caplog.set_level(logging.WARNING, "redraft.endpoint")
    first, second = Endpoint("a", error), Endpoint("b")
    result = await refine("q", [first, second], lambda text: 1.0, retries=0)
    (candidate,) = result.trace.candidates
    kind = type(error()).__name__
    assert (candidate.by, candidate.text) == ("b", "b writes")
    assert candidate.note.startswith(f"a did not answer: {kind}")
    assert f"by b (a did not answer: {kind}" in result.summary()
    assert any(
        record.getMessage().startswith("a: out of service after") for record in caplog.records
    )


@pytest.mark.parametrize("error", OTHER_ERRORS.values(), ids=OTHER_ERRORS)
async def test_other_errors_are_raised(error):
    """Another model would hide what only a person can correct."""
    second = Endpoint("b")
    with pytest.raises(type(error())):
        await refine("q", [Endpoint("a", error), second], lambda text: 1.0, retries=0)
    assert second.sent == []


async def test_the_error_of_the_last_names_the_others():
    """It is raised if no model is in service, and the failure is by all of them."""
    with pytest.raises(
        ModelError,
        match=r"cannot be reached \(before that, a did not answer: ModelTimeoutError: no answer\)",
    ) as caught:
        await refine(
            "q",
            [Endpoint("a", OUTAGES["timeout"]), Endpoint("b", OUTAGES["no connection"])],
            "uppercase",
            retries=0,
        )
    assert caught.value.usage.calls == 2


async def test_retries_come_before_the_next_model():
    """Each model is tried as often as any model."""
    first, second = (
        Endpoint("a", lambda: ModelUnavailableError("reset", retryable=True)),
        Endpoint("b"),
    )
    await refine("q", [first, second], lambda text: 1.0, retries=1)
    assert (len(first.sent), len(second.sent)) == (2, 1)


async def test_usage_and_price_are_those_of_the_model_that_answers():
    """A budget in USD counts the price of each model."""
    first, second = Endpoint("a", OUTAGES["503"], Price(100, 100)), Endpoint("b", price=Price(1, 1))
    result = await refine("q", [first, second], lambda text: 1.0, retries=0, budget=Budget(usd=10))
    assert result.trace.candidates[0].usage.answer_cost == pytest.approx(0.002)


async def test_the_first_model_judges():
    """A judge never changes within a trace: without `judge` it is the first model of the list."""
    first, second = ScriptedModel([OUTAGES["503"](), "0.7"], name="a"), Endpoint("b")

    async def asks(text, model):
        return float(await model(text))

    result = await refine("q", [first, second], asks, max_iterations=0, retries=0)
    assert [c.by for c in result.trace.candidates] == ["b"]
    assert [(f.by, f.score) for f in result.trace.feedback[0]] == [("a", 0.7)]


@pytest.mark.parametrize("judge", [["ollama:a", "ollama:b"], ("ollama:a", "ollama:b"), []])
async def test_several_judges_are_refused(judge):
    """The error says why, before any call."""
    model = Endpoint("a")
    with pytest.raises(
        ConfigError,
        match="judge: one model is expected here, got a list: only the model that writes",
    ):
        await refine("q", model, Judge({"t": "true"}), judge)
    assert model.sent == []


async def test_caches_keep_models_apart():
    """An answer of the second model is not one of the first, which is asked again when it is
    back.
    """
    store = {}
    first, second = Endpoint("a", OUTAGES["503"]), Endpoint("b")
    answers = []
    for first.error in (OUTAGES["503"], None, OUTAGES["503"]):
        result = await refine("q", [first, second], lambda text: 1.0, retries=0, cache=store)
        answers.append(result.value)
    assert answers == ["b writes", "a writes", "a writes"]
    assert len(second.sent) == 1


# ---- when the first model is asked again


def failover_of(error_by_time, clock):
    """Return the call of two models, the first of which fails as `error_by_time(now)` says, and the
    requests to it.
    """
    availability, sent = Availability("a", clock=clock), []

    async def first(request):
        sent.append((clock.now, request.max_tokens == 1))
        if error := error_by_time(clock.now):
            raise error
        return Reply("a")

    async def second(request):
        return Reply("b")

    call = availability.guard(first)
    availability.probe = call
    return fail_over([FailoverModel("a", call, availability)], "b", second), sent


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=40), st.floats(0, 200))
def test_probes_are_rare_and_the_first_model_returns(steps, back_at):
    """While it is down only short probes reach it, each at least a second after the last; once
    back, it answers within 30 s.
    """

    async def run():
        clock = Clock()
        call, sent = failover_of(lambda now: OUTAGES["503"]() if now < back_at else None, clock)
        for step in steps:
            requests_before = len(sent)
            reply = await call(REQUEST)
            assert len(sent) - requests_before <= 2
            assert reply.by == reply.text
            assert reply.by == "b" or clock.now >= back_at
            assert reply.by == "a" or clock.now < back_at + 30.001
            assert (reply.note == "") is (reply.by == "a")
            clock.now += step
        down = [(time, is_probe) for time, is_probe in sent if time < back_at]
        assert all(is_probe for _, is_probe in down[1:])
        gaps = [after - before for (before, _), (after, _) in zip(down, down[1:], strict=False)]
        assert all(gap >= 1.0 for gap in gaps)

    asyncio.run(run())


async def test_a_retry_after_is_kept():
    """No probe is sent before the endpoint allows it."""
    clock = Clock()
    call, sent = failover_of(
        lambda now: (
            RateLimitError("status 429", status=429, retry_after=90.0) if now < 80 else None
        ),
        clock,
    )
    for clock.now in (0, 5, 60, 89):
        assert (await call(REQUEST)).by == "b"
    assert len(sent) == 1
    clock.now = 91
    assert (await call(REQUEST)).by == "a"


async def test_one_bad_request_does_not_take_a_model_out_of_service():
    """If the model answered others meanwhile, only the call that failed goes to the next one."""
    clock, entered, leave = Clock(), asyncio.Event(), asyncio.Event()
    availability = Availability("a", clock=clock)

    async def first(request):
        if request.seed == 7:
            entered.set()
            await leave.wait()
            raise ModelTimeoutError("no answer")
        return Reply("a")

    async def second(request):
        return Reply("b")

    call = fail_over([FailoverModel("a", availability.guard(first), availability)], "b", second)
    slow = asyncio.ensure_future(call(Request(REQUEST.messages, seed=7)))
    await entered.wait()
    assert (await call(REQUEST)).by == "a"
    leave.set()
    assert (await slow).by == "b"
    assert (await call(REQUEST)).by == "a"


# ---- batches


class Hanging(Endpoint):
    """A model that answers nothing, and whose calls wait until they are cancelled."""

    async def complete(self, request):
        self.sent.append(request.messages[-1]["content"])
        await asyncio.Event().wait()


async def test_a_batch_pays_one_timeout(tmp_path):
    """Sixty rows do not wait for a model that hangs: those in flight do once, and no row after
    them.
    """
    first, second = Hanging("a"), Endpoint("b")
    rows = [{"id": n, "prompt": f"q{n}"} for n in range(60)]
    report = await batch(
        rows,
        tmp_path / "out.jsonl",
        [first, second],
        lambda text: 1.0,
        timeout=0.3,
        retries=0,
        max_in_flight=8,
        max_iterations=0,
    )
    assert (report.rows.in_output, second.sent.__len__()) == (60, 60)
    assert len([text for text in first.sent if text != "Hi"]) <= 16


async def test_a_batch_goes_on_and_resumes_without_calls(tmp_path):
    """Outages neither stop the run nor fail rows; the same command makes no call, and another list
    starts again.
    """
    first, second = Endpoint("a", OUTAGES["no connection"]), Endpoint("b")
    rows = [{"id": n, "prompt": f"q{n}"} for n in range(12)]

    async def run(models):
        first.sent.clear()
        second.sent.clear()
        return await batch(
            rows, tmp_path / "out.jsonl", models, lambda text: 1.0, retries=0, max_iterations=0
        )

    report = await run([first, second])
    assert report.stop == ""
    assert len(second.sent) == 12
    assert len([text for text in first.sent if text != "Hi"]) <= 12
    await run([first, second])
    assert (first.sent, second.sent) == ([], [])
    other = Endpoint("c")
    await run([other, second])
    assert len(other.sent) == 12


async def test_a_batch_returns_to_the_first_model(tmp_path):
    """Rows after the outage are written by the first model again; both changes are said once."""
    messages = []

    class Second(Endpoint):
        async def complete(self, request):
            await asyncio.sleep(0.05)
            if len(self.sent) == 20:
                first.error = None
            return await super().complete(request)

    first, second = Endpoint("a", OUTAGES["no connection"]), Second("b")
    run = BatchRun.from_arguments(
        [{"id": n, "prompt": f"q{n}"} for n in range(120)],
        tmp_path / "out.jsonl",
        [first, second],
        lambda text: 1.0,
        retries=0,
        max_iterations=0,
        max_in_flight=2,
    )
    run.say = messages.append
    await run.go()
    rows = [json.loads(line)["best"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[0] == "b writes"
    assert rows[-1] == "a writes"
    assert [
        message.partition(" after")[0] for message in messages if message.startswith("a: ")
    ] == ["a: out of service", "a: back"]


async def test_a_wrong_key_stops_a_batch(tmp_path):
    """It is a fault of the settings: the run ends once, and can be resumed."""
    first, second = Endpoint("a", OTHER_ERRORS["wrong key"]), Endpoint("b")
    rows = [{"id": n, "prompt": f"q{n}"} for n in range(12)]
    report = await batch(
        rows, tmp_path / "out.jsonl", [first, second], lambda text: 1.0, retries=0, max_iterations=0
    )
    assert report.stop == "fatal"
    assert second.sent == []


async def test_one_model_in_a_list_is_that_model():
    """It has the same name and the same records."""
    task = Task("q")
    alone, listed = [
        await refine(task, model, lambda text: 1.0) for model in (Endpoint("a"), [Endpoint("a")])
    ]
    assert (
        [c.by for c in alone.trace.candidates] == [c.by for c in listed.trace.candidates] == ["a"]
    )
