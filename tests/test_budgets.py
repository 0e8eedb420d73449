"""Budgets are kept: what is reserved, sent and reported, and which calls are never made."""

import asyncio
import importlib
import random
import sys
from contextlib import nullcontext, suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, Judge, Task, refine, refine_many
from redraft.errors import (
    BadResponseError,
    BudgetExhaustedError,
    ConfigError,
    ModelError,
    ModelUnavailableError,
    RateLimitError,
    RedraftError,
)
from redraft.graders import Checklist, Jury, Ranker
from redraft.loop.records import Candidate
from redraft.middleware import BudgetTracker, EndpointLimiter, limit_endpoint
from redraft.middleware.budget import EXCESS_TEXT
from redraft.middleware.call_costs import (
    DEFAULT_SYSTEM_TOKENS,
    FIRST_OVERRUN,
    LIMITS,
    MIN_ANSWER_TOKENS,
    TEMPLATE_TOKENS,
)
from redraft.middleware.metering import meter, with_cost
from redraft.middleware.retry import retry
from redraft.models import Chat
from redraft.models.pricing import Price
from redraft.protocols import Reply, Request
from redraft.usage import CallLedger, Usage, current_entry

bench = importlib.import_module("budgets")

CELLS = [(s, limit) for s, limit in product(bench.SITUATIONS, LIMITS)]
TWENTIETH = random.Random(9).sample(CELLS, len(CELLS) // 20 + 1) + [
    (situation, limit)
    for situation, limit in CELLS
    if (situation.name, limit)
    in {
        ("long answers", "output_tokens"),
        ("long answers", "usd"),
        ("Chinese", "input_tokens"),
        ("one in five fails", "calls"),
    }
]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(("situation", "limit"), TWENTIETH, ids=lambda x: getattr(x, "name", x))
async def test_a_budget_is_kept_by_the_endpoints_own_count(situation, limit):
    """With 64 calls in flight the limit is not exceeded, and figures equal the endpoint's; one that
    ignores max_tokens is reported.
    """
    cell = await bench.measure_cell(situation, limit)
    assert not cell["flaws"], cell


class Writer:
    """Writes `length` tokens or at most max_tokens, judges when the request has a schema, and
    records the requests.
    """

    name = identity = "writer"
    formats = ("json_schema", "text")
    price = Price(1.0, 5.0)

    def __init__(self, length=3000, honours=True, seconds=0.0):
        self.length, self.honours, self.seconds = length, honours, seconds
        self.sent = []

    @property
    def texts(self):
        return [request for request in self.sent if request.schema is None]

    async def complete(self, request):
        self.sent.append(request)
        await asyncio.sleep(self.seconds)
        read = sum(len(m["content"]) for m in request.messages) // 4
        if request.schema is not None:
            request = {"response_format": {"json_schema": {"schema": request.schema}}}
            return Reply(bench.verdict(request), Usage(1, read, 80, cost=None))
        written = (
            min(self.length, request.max_tokens or self.length) if self.honours else self.length
        )
        finish = "stop" if written == self.length else "length"
        return Reply(
            f"{len(self.sent):08d}" + "word" * (written - 2),
            Usage(1, read, written, cost=None),
            finish,
        )


# ---- max_tokens of a call


@pytest.mark.parametrize("limits", [{"output_tokens": 2000}, {"tokens": 4000}, {"usd": 0.009}])
async def test_every_call_has_a_max_tokens_within_the_budget(limits):
    """It is set where the caller set none; the tokens written are within the limit."""
    model = Writer()
    result = await refine("q", model, lambda text: 0.5, budget=Budget(**limits), max_iterations=2)
    assert result.stop == "budget"
    assert all(request.max_tokens for request in model.sent)
    assert {
        "output_tokens": result.usage.output_tokens,
        "tokens": result.usage.tokens,
        "usd": result.cost,
    }[[*limits][0]] <= [*limits.values()][0]


@pytest.mark.parametrize("limits", [{"calls": 3}, {"input_tokens": 10**6}])
async def test_a_limit_that_does_not_count_answers_sets_no_max_tokens(limits):
    """Answers may have any length."""
    model = Writer()
    await refine("q", model, lambda text: 0.5, budget=Budget(**limits), max_iterations=1)
    assert [request.max_tokens for request in model.sent] == [None, None]


async def test_the_callers_own_max_tokens_is_never_raised():
    """It is lowered where less is left."""
    model = Writer()
    await refine(
        "q",
        model,
        lambda text: 0.5,
        budget=Budget(output_tokens=1000),
        max_tokens=400,
        max_iterations=3,
    )
    assert [request.max_tokens for request in model.sent] == [400, 400, 200]


async def test_a_call_that_would_get_fewer_than_min_tokens_is_not_made():
    """The budget sets min_tokens."""
    for least, calls in ((64, 3), (300, 2)):
        model = Writer()
        budget = Budget(output_tokens=1000, min_tokens=least)
        result = await refine(
            "q",
            model,
            lambda text: 0.5,
            budget=budget,
            max_tokens=400,
            max_iterations=9,
            patience=9,
        )
        assert (len(model.sent), result.stop) == (calls, "budget")


@pytest.mark.parametrize("given", [0, -1, 1.5, True, "8"])
def test_min_tokens_is_a_whole_number(given):
    """The error names it and the value."""
    with pytest.raises(ConfigError, match="min_tokens must be a whole number >= 1, got"):
        Budget(min_tokens=given)


class Tokenizer:
    """Counts a number of characters as one token, and ten tokens for its template; answers in at
    most `length` tokens.
    """

    def __init__(self, chars, length=20):
        self.chars, self.length = chars, length
        self.sent = []

    async def __call__(self, request):
        self.sent.append(request)
        await asyncio.sleep(0)
        written = min(self.length, request.max_tokens or self.length)
        return Reply(
            "x" * (written * self.chars),
            Usage(1, 10 - -len(request.messages[0]["content"]) // self.chars, written),
        )


def request_of(size, schema=None):
    return Request(
        ({"role": "user", "content": "x" * size},),
        schema=schema,
        format="json_schema" if schema else "text",
    )


@pytest.mark.slow
@settings(max_examples=300)
@given(
    chars=st.integers(1, 4),
    length=st.integers(1, 300),
    sizes=st.lists(st.tuples(st.integers(0, 4000), st.booleans()), min_size=1, max_size=10),
    limit=st.sampled_from(["tokens", "input_tokens"]),
    most=st.integers(50, 8000),
    at_once=st.booleans(),
)
def test_prompts_of_any_tokenizer_keep_within_the_budget(
    chars, length, sizes, limit, most, at_once
):
    """From one token for each character to one for four, nothing is spent beyond the limit; what
    fits at one for each is asked.
    """
    tracker, endpoint = BudgetTracker(Budget(**{limit: most})), Tokenizer(chars, length)
    metered = meter(with_cost(endpoint, None), tracker)
    around = (
        TEMPLATE_TOKENS * 2
        + DEFAULT_SYSTEM_TOKENS
        + len(str({"type": "object"}))
        + (limit == "tokens") * MIN_ANSWER_TOKENS * FIRST_OVERRUN
    )

    async def ask(size, judge):
        fits = size + around <= most - tracker.spent[limit] and not (at_once and endpoint.sent)
        with nullcontext() if fits else suppress(BudgetExhaustedError):
            await metered(request_of(size, {"type": "object"} if judge else None))

    async def run():
        if at_once:
            await asyncio.gather(*(ask(*each) for each in sizes))
        for each in () if at_once else sizes:
            await ask(*each)

    asyncio.run(run())
    assert tracker.spent[limit] <= most
    assert tracker.excess == ""


SCRIPTS = {
    "Latin": bench.TEXTS["long answers"],
    "Arabic": bench.TEXTS["Arabic"],
    "Chinese": bench.TEXTS["Chinese"],
    "emoji": bench.TEXTS["emoji"],
    "mixed": bench.TEXTS["mixed"],
}
TOKENIZERS = {
    "a byte": lambda text: len(text.encode()),
    "a character": len,
    "four characters": lambda text: -(-len(text) // 4),
    "three and a half for a Chinese character": lambda text: (
        round(sum(3.5 if "一" <= c <= "鿿" else 0.25 for c in text)) + 1
    ),
}


class CountingServer:
    """Counts tokens in its own way, and a share of `max_tokens` more than an answer may have;
    answers are cut at `max_tokens`.
    """

    def __init__(self, count, overrun, seed):
        self.count, self.overrun, self.chance = count, overrun, random.Random(seed)
        self.served, self.in_flight, self.most_in_flight = dict.fromkeys(LIMITS, 0.0), 0, 0

    async def __call__(self, request):
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        for _ in range(self.chance.randint(1, 9)):
            await asyncio.sleep(0)
        self.in_flight -= 1
        usage = Usage(
            1,
            self.prompt_tokens(request.messages[0]["content"]),
            int(self.overrun * request.max_tokens),
            cost=None,
        )
        for name, amount in zip(
            LIMITS,
            (1, usage.input_tokens, usage.output_tokens, usage.tokens, PRICE.cost(usage)),
            strict=True,
        ):
            self.served[name] += amount
        return Reply("x" * usage.output_tokens, usage, "length")

    def prompt_tokens(self, text):
        return 10 + self.count(text)


PRICE, ANSWER = Price(1.0, 5.0), 100


async def spend(script, tokenizer, limit, calls, overrun):
    """Spend the budget of so many calls with 64 prompts in flight; return the share that was
    served, and the most in flight.
    """
    chance = random.Random(calls)
    server = CountingServer(TOKENIZERS[tokenizer], overrun, calls)
    prompts = [f"{n}. " + SCRIPTS[script] * chance.randint(1, 12) for n in range(calls + 40)]
    read, written = sum(map(server.prompt_tokens, prompts[:calls])), calls * ANSWER
    most = {
        "input_tokens": read,
        "output_tokens": written,
        "tokens": read + written,
        "usd": PRICE.cost(Usage(1, read, written, cost=None)),
    }
    tracker = BudgetTracker(Budget(**{limit: most[limit]}))
    metered, places = meter(with_cost(server, PRICE), tracker, PRICE), asyncio.Semaphore(64)

    async def ask(prompt):
        async with places:
            with suppress(BudgetExhaustedError):
                await metered(Request(({"role": "user", "content": prompt},), max_tokens=ANSWER))

    await asyncio.gather(*map(ask, prompts))
    assert tracker.spent[limit] == pytest.approx(server.served[limit])
    return server.served[limit] / most[limit], server.most_in_flight


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("script", SCRIPTS)
async def test_64_calls_in_flight_keep_within_a_budget_and_use_it(script, tokenizer):
    """Whatever the script and the tokenizer, no token too many is served, not even before the first
    reply; nearly all are used, also of a budget of few calls, and many calls are in flight as long
    as there is a budget for them.
    """
    for limit, calls, overrun in (
        ("input_tokens", 15, 1.0),
        ("output_tokens", 15, 1.05),
        ("tokens", 60, 1.05),
        ("usd", 60, 1.0),
    ):
        share, in_flight = await spend(script, tokenizer, limit, calls, overrun)
        assert (0.8 if calls == 15 else 0.95) <= share <= 1 + 1e-9, (limit, calls, overrun)
        assert in_flight >= (2 if calls == 15 else 15), (limit, calls, overrun)


class Wordy:
    """Has a token for each of its own words, and one for each byte of others, as a small vocabulary
    has. Writes its own words.
    """

    name = identity = "wordy"
    formats = ("text",)

    def __init__(self, seed):
        self.chance, self.served = random.Random(seed), 0

    async def complete(self, request):
        for _ in range(self.chance.randint(1, 9)):
            await asyncio.sleep(0)
        read = 5 + sum(map(self.count, (message["content"] for message in request.messages)))
        written = self.chance.choice([30, 300, 3000])
        self.served += read
        return Reply("lighthouse " * written, Usage(1, read, written, cost=None))

    @staticmethod
    def count(text):
        return sum(
            1 if word == "lighthouse" else 1 + len(word.encode()) for word in text.split(" ")
        )


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("script", ["Latin", "Chinese", "emoji", "mixed"])
@pytest.mark.parametrize("most", [5000, 20_000, 60_000])
async def test_answers_say_nothing_about_other_texts(script, most):
    """A model has words for what it writes, and needs more tokens for what others write: its
    answers do not lower their estimate.
    """
    for seed in range(8):
        model = Wordy(seed)
        tasks = [f"{n}. " + SCRIPTS[script] * (1 + n % 9) for n in range(24)]
        await refine_many(
            tasks,
            model,
            lambda text: 0.5,
            budget=Budget(input_tokens=most),
            max_iterations=2,
            max_in_flight=64,
        )
        assert model.served <= most, seed


@pytest.mark.parametrize("size", [300, 1000, 3000, 10_000])
@pytest.mark.parametrize(
    "schema", [None, {"type": "object", "properties": {"score": {"type": "number"}}}]
)
async def test_the_estimate_of_a_prompt_follows_counted_ones_of_like_length(size, schema):
    """At four characters for each token three prompts fit into the bytes of one; a far longer one
    does not.
    """
    endpoint = Tokenizer(chars=4)
    tracker = BudgetTracker(Budget(tokens=size + 600))
    metered = meter(with_cost(endpoint, None), tracker)
    await metered(request_of(size, schema))
    with pytest.raises(BudgetExhaustedError):
        await metered(request_of(8 * size, schema))
    await metered(request_of(size, schema))
    await metered(request_of(size, schema))
    assert len(endpoint.sent) == 3
    assert tracker.excess == ""


async def test_a_max_tokens_that_an_endpoint_refuses_is_halved_and_remembered():
    """Endpoints refuse more than the model can write or its context holds."""

    class LimitedContextModel(Writer):
        async def complete(self, request):
            if request.max_tokens > 3000:
                self.sent.append(request)
                raise ModelError(
                    f"max_tokens is too large: {request.max_tokens}",
                    status=400,
                    usage=Usage(calls=1),
                )
            return await super().complete(request)

    model = LimitedContextModel(length=100)
    result = await refine(
        "q", model, lambda text: 0.5, budget=Budget(tokens=10**6), max_iterations=1
    )
    assert [request.max_tokens for request in model.sent] == [8192, 4096, 2048, 2048]
    assert (result.usage.calls, result.usage.retried_calls) == (4, 2)


async def test_a_cache_key_does_not_depend_on_the_remaining_budget():
    """A complete answer is found again, whatever the budget leaves."""
    model, cache = Writer(length=50), {}
    for most in (10_000, 500):
        result = await refine("q", model, lambda text: 1.0, budget=Budget(tokens=most), cache=cache)
    assert (len(model.sent), result.usage.cached_calls) == (1, 1)


# ---- reservations


amounts = st.integers(1, 400)


@given(
    jobs=st.lists(
        st.tuples(
            amounts,
            amounts,
            st.integers(0, 3),
            st.sampled_from(["known", "unknown", "fails", "cancelled"]),
        ),
        max_size=30,
    ),
    limit=st.sampled_from(["calls", "input_tokens", "output_tokens", "tokens", "usd"]),
    most=st.integers(0, 3000),
)
def test_concurrent_calls_all_end_and_stay_within_the_budget(jobs, limit, most):
    """Calls of all lengths are answered, lost or cancelled in any order: each ends, and the sum is
    within the limit.
    """
    asyncio.run(check_all_calls_end(jobs, limit, most * 1e-5 if limit == "usd" else most))


async def check_all_calls_end(jobs, limit, most):
    served, tracker, price = (
        dict.fromkeys(LIMITS, 0.0),
        BudgetTracker(Budget(**{limit: most}, min_tokens=8)),
        Price(1.0, 5.0),
    )

    async def call(request):
        _, written, ticks, how = jobs[request.sample_index]
        written = min(written, request.max_tokens or written)
        usage = Usage(1, len(request.messages[0]["content"]) // 4, written, cost=None)
        for name, amount in zip(
            LIMITS, (1, usage.input_tokens, written, usage.tokens, price.cost(usage)), strict=True
        ):
            served[name] += amount
        for _ in range(ticks):
            await asyncio.sleep(0)
        if how == "fails":
            raise ModelError("no", usage=usage)
        if how == "cancelled":
            raise asyncio.CancelledError
        return Reply("a", usage if how == "known" else Usage(1, None, None, cost=None))

    metered = meter(with_cost(call, price), tracker, price)
    calls = [
        metered(Request(({"role": "user", "content": "x" * read},), sample_index=n))
        for n, (read, *_) in enumerate(jobs)
    ]
    ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert all(
        isinstance(end, Reply | ModelError | BudgetExhaustedError | asyncio.CancelledError)
        for end in ends
    )
    assert served[limit] <= most + 1e-9
    assert tracker.spent[limit] >= served[limit] - 1e-9
    assert all(
        abs(amount) < 1e-6
        for amount in (*tracker.reserved.values(), *tracker.held_for_grades.values())
    )


async def sent_while_budgets_change(*budgets):
    """Make three calls with the first budget and five more with the second; return the `max_tokens`
    of those that were sent under each of the later budgets and in the end, and what they took. No
    call is answered before the last budget.
    """
    tracker, answer, sent = BudgetTracker(budgets[0]), asyncio.Event(), []

    async def call(request):
        sent.append(request.max_tokens)
        await answer.wait()
        return Reply("a", Usage(1, 10, request.max_tokens, cost=None))

    price = Price(1.0, 2.0)
    metered, seen = meter(with_cost(call, price), tracker, price), []
    request = Request(({"role": "user", "content": "x" * 40},), max_tokens=70)

    async def ask(count):
        asked = [asyncio.ensure_future(metered(request)) for _ in range(count)]
        for _ in range(20):
            await asyncio.sleep(0)
        return asked

    calls = await ask(3)
    for n, budget in enumerate(budgets[1:]):
        tracker.set_budget(budget)
        calls += await ask(0 if n else 5)
        seen.append(sent[:])
    takes = {name: amount / len(sent) for name, amount in tracker.spent_and_reserved.items()}
    answer.set()
    await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    return [*seen, sent, tracker.spent], takes


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_changed_budget_counts_calls_in_flight(limit):
    """Whether there was none, a higher or another one when they were sent, what is sent afterwards
    is what would be sent if it had been there before. Calls that wait are sent when it is raised.
    """
    _, takes = await sent_while_budgets_change(None, Budget())

    def of_calls(count, name=limit):
        return Budget(**{name: (float if name == "usd" else int)(count * takes[name])})

    tight, higher, none = of_calls(4.9), of_calls(6.9), Budget()
    other = of_calls(100, LIMITS[LIMITS.index(limit) - 1])
    expected, _ = await sent_while_budgets_change(tight, tight, higher)
    assert [len(each) for each in expected[:2]] == [4, 6]
    for before in (none, higher, other):
        assert (await sent_while_budgets_change(before, tight, higher))[0] == expected, before


async def test_waiting_calls_are_served_in_order():
    """Short calls do not overtake a long one for ever."""
    tracker, order, gates = BudgetTracker(Budget(output_tokens=1000)), [], asyncio.Event()

    async def call(request):
        order.append(request.sample_index)
        if request.sample_index == 0:
            await gates.wait()
        return Reply("a", Usage(1, 1, 10, cost=0.0))

    metered = meter(call, tracker)
    requests = [
        Request(({"role": "user", "content": "q"},), max_tokens=n, sample_index=look)
        for look, n in enumerate((600, 900, 10, 10))
    ]
    tasks = [asyncio.ensure_future(metered(request)) for request in requests]
    await asyncio.sleep(0.01)
    assert order == [0]
    gates.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]


async def test_a_cancelled_wait_leaves_nothing_reserved():
    """The other calls are served."""
    tracker, gates = BudgetTracker(Budget(calls=2)), asyncio.Event()

    async def call(request):
        await gates.wait()
        raise asyncio.CancelledError

    metered = meter(with_cost(call, None), tracker)
    ask = Request(({"role": "user", "content": "q"},))
    tasks = [asyncio.ensure_future(metered(ask)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    gates.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 3 + [BudgetExhaustedError]
    assert (tracker.spent["calls"], tracker.reserved["calls"]) == (2, 0)


async def test_retries_are_reserved_and_counted_when_the_budget_ends_them():
    """The tracker has the usage of failed attempts, whatever ends them."""
    tried = 0

    async def call(request):
        nonlocal tried
        tried += 1
        raise RateLimitError("no", usage=Usage(calls=1))

    async def at_once(seconds):
        pass

    metered = retry(
        meter(with_cost(call, None), BudgetTracker(Budget(calls=2))), attempts=4, sleep=at_once
    )
    with CallLedger() as ledger, pytest.raises(BudgetExhaustedError):
        await metered(Request(({"role": "user", "content": "q"},)))
    assert (tried, ledger.usage.calls, ledger.usage.retried_calls) == (2, 2, 1)


@pytest.mark.parametrize("budget", [Budget(), Budget(tokens=5000)])
async def test_a_cancelled_retry_counts_what_it_sent_itself(budget):
    """The attempts before it, in the same ledger, are settled already."""
    waits, started = asyncio.Event(), 0

    async def call(request):
        nonlocal started
        started += 1
        if started == 1:
            raise RateLimitError("no", usage=Usage(1, 100, 0))
        current_entry().start_counting()
        current_entry().count_request()
        waits.set()
        await asyncio.Event().wait()

    async def at_once(seconds):
        pass

    tracker = BudgetTracker(budget)
    ask = retry(meter(with_cost(call, None), tracker), sleep=at_once)
    with CallLedger() as ledger:
        task = asyncio.ensure_future(
            ask(Request(({"role": "user", "content": "q"},), max_tokens=50))
        )
        await waits.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (tracker.spent["calls"], ledger.total_usage.calls) == (2, 2)
    assert tracker.spent_and_reserved == tracker.spent


async def test_a_refused_call_does_not_change_the_estimate_of_prompts():
    """Its usage of 0 says nothing about its prompt."""
    tracker, sent = BudgetTracker(Budget(input_tokens=3000)), []

    async def call(request):
        sent.append(request)
        if len(sent) == 1:
            raise RateLimitError("slow down", usage=Usage(calls=1))
        return Reply("answer", Usage(1, len(request.messages[0]["content"]) // 2, 10))

    metered = meter(with_cost(call, None), tracker)
    with pytest.raises(RateLimitError):
        await metered(Request(({"role": "user", "content": "word of text " * 30},)))
    with pytest.raises(BudgetExhaustedError):
        await metered(Request(({"role": "user", "content": "word of text " * 700},)))
    assert (len(sent), tracker.excess) == (1, "")


async def test_a_call_that_could_not_connect_costs_nothing():
    """The budget is unchanged, however often the limiter tries again."""
    tracker, tried = BudgetTracker(Budget(calls=1, tokens=3000)), 0

    async def call(request):
        nonlocal tried
        tried += 1
        entry = current_entry()
        entry.start_counting()
        if tried <= 3:
            raise ModelUnavailableError(
                "nobody listens", retryable=True, retry_after=500.0
            )  # so long that the limiter repeats the call itself
        entry.count_request()
        return Reply("answer", Usage(1, 10, 5))

    now = [0.0]

    async def pass_by(seconds):
        now[0] += seconds
        await asyncio.sleep(0)

    gate = EndpointLimiter("one", clock=lambda: now[0], sleep=pass_by)
    reply = await meter(limit_endpoint(with_cost(call, None), gate), tracker)(
        Request(({"role": "user", "content": "q"},))
    )
    assert (tried, reply.usage.calls, tracker.spent["calls"], tracker.spent["tokens"]) == (
        4,
        1,
        1,
        15,
    )


# ---- drafts and their grades


async def test_a_refinement_starts_only_with_budget_for_its_grade():
    """Of three calls the draft and its grade take two; a refinement would take two more."""
    model = Writer(length=50)
    result = await refine(
        "q", model, Judge(), budget=Budget(calls=3), max_iterations=3, noise_aware=False
    )
    assert (len(model.sent), result.stop, result.iterations) == (2, "budget", 0)
    assert all(score is not None for score in result.score_history)


@pytest.mark.parametrize(
    ("graders", "takes"),
    [
        (Judge(), 2),
        ([Judge(), Judge(name="second")], 3),
        (Jury(["judge"], repeats=3), 4),
        (Checklist(), 3),
        (Checklist(["Is it short?"]), 2),
        (lambda text: 0.5, 1),
    ],
    ids=["judge", "two", "jury", "checklist drawn", "checklist", "free"],
)
async def test_a_draft_starts_only_with_budget_for_all_its_grades(graders, takes):
    """Every repeat of every grader and every vote of a jury counts; with one call fewer no draft is
    written.
    """
    model = Writer(length=50)
    with pytest.raises(BudgetExhaustedError):
        await refine(
            "q", model, graders, budget=Budget(calls=takes - 1), noise_aware=False, max_iterations=0
        )
    assert model.sent == []
    # the writer's verdict is no list of questions, but the call was made
    with pytest.raises(RedraftError):
        await refine(
            "q", model, graders, budget=Budget(calls=takes), noise_aware=False, strict_budget=True
        )
    assert len(model.sent) == takes


@pytest.mark.parametrize(
    "limits",
    [
        {"tokens": 4000},
        {"usd": 0.012},
        {"output_tokens": 3000},
        {"input_tokens": 5000},
        {"calls": 7},
    ],
)
@pytest.mark.parametrize("drafts", [1, 3])
async def test_every_text_in_a_trace_is_graded(limits, drafts):
    """Whatever the limit is, every text in the finished trace has a score."""
    model = Writer(length=700)
    result = await refine(
        "Say it. " * 20,
        model,
        Judge(),
        budget=Budget(**limits),
        noise_aware=False,
        drafts=drafts,
        target_score=1,
        patience=9,
        max_iterations=9,
    )
    assert result.stop == "budget"
    assert len(model.texts) == len(result.trace.graded_candidates) > 0


async def test_the_reservation_of_a_draft_pays_for_the_grade_of_its_repair():
    """The editor repairs the draft, and the repaired text is judged."""
    model = Writer(length=30)
    task = Task("q", requirements=["quoted"])
    result = await refine(
        task, model, Judge(), budget=Budget(calls=2), noise_aware=False, max_iterations=2
    )
    assert (
        len(model.texts),
        len(model.sent),
        result.repairs,
        result.trace.best.id,
    ) == (1, 2, 1, 1)
    assert result.score is not None


REFUSALS = {
    "busy": lambda: ModelUnavailableError("busy", status=503, retryable=True, usage=Usage(calls=1)),
    "unreadable": lambda: BadResponseError("no text", retryable=True, usage=Usage(1, 60, 3)),
}


@pytest.mark.parametrize("fails", [{1}, {2}, {1, 3}], ids=["the text", "its grade", "both"])
@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("limit", ["tokens", pytest.param("input_tokens", marks=pytest.mark.slow)])
async def test_a_failed_call_keeps_the_reservation_for_grades(monkeypatch, fails, why, limit):
    """Neither a failed first draft nor a failed grade uses up what was reserved."""
    # no pause before a call is made again
    monkeypatch.setitem(retry.__kwdefaults__, "jitter", lambda: 0.0)

    class FailingModel(Writer):
        async def complete(self, request):
            if len(self.sent) + 1 in fails:
                self.sent.append(request)
                raise REFUSALS[why]()  # noqa: RSE102
            return await super().complete(request)

    for most in range(900, 4200, 300):
        model = FailingModel(length=700)
        given = dict(
            budget=Budget(**{limit: most}), noise_aware=False, target_score=1, max_iterations=3
        )
        with suppress(BudgetExhaustedError):
            result = await refine("Say it. " * 40, model, Judge(), **given)
            assert len(result.trace.candidates) == len(result.trace.graded_candidates), most
            continue
        assert not [request for request in model.texts if request is not model.sent[0]], most


async def test_a_grader_with_its_own_budget_uses_that():
    """It does not use what is reserved for its grade."""
    model, ends = Writer(length=200), []

    async def grader(text, llm):
        given, inner = Task("q", response=text), {"max_iterations": 0, "noise_aware": False}
        # a judge's prompt takes more
        result = await refine(given, Writer(), Judge(), budget=Budget(tokens=300), **inner)
        assert (result.score, str(result.stop)) == (None, "budget")
        ends.append(await llm("How good is it?"))
        return 0.5

    await refine(
        "Say it. " * 20,
        model,
        grader,
        budget=Budget(tokens=20_000),
        max_iterations=1,
        noise_aware=False,
    )
    assert len(ends) == 2


async def test_an_unchanged_refinement_releases_the_reservation_for_its_grades():
    """It is not graded, and the budget goes to the next."""

    class UnchangedModel(Writer):
        async def complete(self, request):
            reply = await super().complete(request)
            return reply if request.schema else Reply("always the same", reply.usage)

    model = UnchangedModel(length=20)
    result = await refine(
        "q",
        model,
        Judge(),
        budget=Budget(calls=5),
        noise_aware=False,
        patience=2,
        max_iterations=9,
        target_score=1,
    )
    assert (result.stop, len(model.sent)) == ("patience", 4)


async def test_drafts_written_before_any_is_graded_do_not_wait_for_each_other():
    """A user's plan may write all drafts first: those beyond the budget are refused and do not
    hang.
    """
    from redraft.loop.steps import Generate, Grade, Stop

    def plan(trace):
        if trace.fatal_failure or len(trace.candidates) >= 3:
            grades = trace.missing(Grade("judge", trace.task, c) for c in trace.candidates)
            return grades or [Stop(trace.best.id if trace.best else None, "budget")]
        return [Generate(trace.next_id, trace.task.messages)]

    model = Writer(length=20)
    result = await asyncio.wait_for(
        refine("q", model, Judge(), plan=plan, budget=Budget(calls=4)), 60
    )
    assert (len(model.texts), len(result.trace.graded_candidates)) == (2, 2)


async def test_one_budget_for_many_tasks_grades_every_draft():
    """Sixteen tasks run at once with budget for some."""
    model = Writer(length=200, seconds=0.001)
    results = await refine_many(
        [f"q{n}" for n in range(16)],
        model,
        Judge(),
        budget=Budget(tokens=20_000),
        noise_aware=False,
    )
    assert (
        sum(len(r.trace.candidates) for r in results)
        == sum(len(r.trace.graded_candidates) for r in results)
        > 4
    )
    assert sum(r.usage.tokens for r in results) <= 20_000


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    "graders", [Judge(), Ranker(), Jury(["judge"], repeats=2)], ids=["judge", "ranker", "jury"]
)
@pytest.mark.parametrize("limits", [{"tokens": 15_000}, {"usd": 0.03}, {"calls": 25}])
async def test_tasks_that_wait_for_each_others_reservations_do_not_hang(
    monkeypatch, graders, limits
):
    """Tasks with several drafts hold reservations for grades and wait for more; the deadlock is
    detected without a clock.
    """
    monkeypatch.setattr(sys.modules["redraft.middleware.budget"], "IDLE_TIMEOUT", 1e6)
    model = Writer(length=300, seconds=0.001)
    given = dict(budget=Budget(**limits), noise_aware=False, drafts=3, target_score=1)
    results = await asyncio.wait_for(
        refine_many([f"q{n}" for n in range(12)], model, graders, **given), 60
    )
    assert all(
        result.trace.outcome or isinstance(result.error, BudgetExhaustedError) for result in results
    )
    assert model.texts


# ---- reports


async def test_the_result_names_an_endpoint_that_ignores_max_tokens():
    """It has what was spent, the limit, and the reason."""
    model = Writer(length=3000, honours=False)
    result = await refine("q", model, lambda text: 1.0, budget=Budget(output_tokens=500))
    assert result.usage.output_tokens == 3000
    assert "spent 3000 of 500 output tokens" in result.summary()
    assert EXCESS_TEXT in result.stop_note
    assert "wrote more than max_tokens" in result.stop_note


async def test_a_kept_budget_reports_no_excess():
    """The summary does not mention it."""
    result = await refine(
        "q", Writer(length=100), lambda text: 1.0, budget=Budget(output_tokens=500)
    )
    assert EXCESS_TEXT not in result.summary() + result.stop_note


# ---- time


async def test_a_refinement_does_not_start_without_time_for_its_grade():
    """The estimate is the time that the draft and its grade took."""
    model = Writer(length=20, seconds=1.0)
    result = await refine(
        "q", model, Judge(), deadline=3.5, noise_aware=False, target_score=1, max_iterations=5
    )
    assert (result.stop, len(result.trace.candidates)) == (
        "deadline",
        len(result.trace.graded_candidates),
    )
    assert "takes about" in result.stop_note
    assert len(model.sent) == 2


async def test_the_first_draft_starts_however_close_the_deadline():
    """There is no earlier time to estimate from."""
    model = Writer(length=20)
    result = await refine("q", model, lambda text: 1.0, deadline=30)
    assert (result.stop, len(model.sent)) == ("target", 1)


async def test_a_resumed_trace_knows_how_long_its_texts_took():
    """The records have the times."""
    from dataclasses import replace

    from redraft.loop.trace import Trace

    slow = Candidate(0, "text", by="writer", role="generate", usage=Usage(1, 1, 1), seconds=60.0)
    model = Writer(length=20)
    trace = Trace(Task("q")) + slow
    graded = trace + replace(Feedback(0.5), candidate=0, grader="grader", seconds=0.1)
    result = await refine(graded, model, lambda text: 0.5, deadline=30, noise_aware=False)
    assert (result.stop, model.sent) == ("deadline", [])


async def test_a_budget_is_kept_on_a_real_server(plain_server):
    """llama.cpp's server honours max_tokens and counts its own prompts; its answers have no other
    end.
    """
    prefix, _, name = plain_server.partition("#")
    model = Chat(name, prefix, extra_body={"ignore_eos": True})
    result = await refine(
        "Say something. " * 4,
        model,
        lambda text: 0.5,
        budget=Budget(tokens=600),
        max_iterations=20,
        patience=20,
    )
    assert result.stop == "budget"
    assert 200 < result.usage.tokens <= 600


@pytest.mark.slow
@pytest.mark.parametrize("script", ["Latin", "Chinese", "emoji"])
@pytest.mark.parametrize("limit", ["input_tokens", "output_tokens", "tokens"])
async def test_64_calls_in_flight_keep_within_a_budget_on_a_real_server(
    plain_server, script, limit
):
    """llama.cpp's own counts, of prompts in any script and of refinements of what the model
    wrote.
    """
    prefix, _, name = plain_server.partition("#")
    most = 1500 if limit == "output_tokens" else 15_000
    given = {
        "budget": Budget(**{limit: most}),
        "max_iterations": 2,
        "max_in_flight": 64,
        "max_tokens": 40,
    }
    tasks = [f"{n} " + SCRIPTS[script] * (1 + n % 9) for n in range(64)]
    results = await refine_many(tasks, Chat(name, prefix), lambda text: 0.5, **given)
    assert 0.8 * most < sum(getattr(result.usage, limit) or 0 for result in results) <= most
