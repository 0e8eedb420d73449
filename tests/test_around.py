"""The wrappers around a call: each alone, with a clock and a chance of our own."""

import asyncio
import dataclasses

import pytest

from redraft.middleware import (
    Budget,
    ConcurrencyLimit,
    BudgetTracker,
    cache_key,
    limit_concurrency,
    meter,
    with_cost,
    enforce_deadline,
)
from redraft.middleware.cache import cache
from redraft.middleware.observe import observe
from redraft.middleware.retry import retry
from redraft.middleware.timeout import timeout
from redraft.protocols import Reply, Request
from redraft.usage import Usage
from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    BudgetExhaustedError,
    ConfigError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)

ASK = Request(({"role": "user", "content": "x" * 300},), max_tokens=50)
ONE = Usage(1, 100, 10, cost=None)


def answering(*answers):
    """A call that answers, or raises, in order; `.asked` keeps the requests."""
    left = list(answers)

    async def call(request):
        call.asked.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call.asked = []
    return call


def waits():
    """A sleep that takes no time, and what it was asked to wait."""
    asked = []

    async def sleep(seconds):
        asked.append(seconds)

    return sleep, asked


def refused(kind=RateLimitError, **more):
    return kind("no", usage=Usage(calls=1), **more)


class Rate:
    def cost(self, usage):
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return usage.input_tokens * 1e-3 + usage.output_tokens * 1e-2


async def test_retry_repeats_what_may_succeed_and_counts_every_call():
    """Two refusals and an answer are three calls, two of them retries."""
    sleep, asked = waits()
    call = answering(refused(), refused(ModelUnavailableError, retryable=True), Reply("ok", ONE))
    reply = await retry(call, sleep=sleep, jitter=lambda: 0.5)(ASK)
    assert (reply.text, reply.usage.calls, reply.usage.retried_calls) == ("ok", 3, 2)
    assert asked == [0.25, 0.5]


async def test_retry_waits_at_least_as_long_as_the_server_asked():
    """Retry-After comes before the jitter."""
    sleep, asked = waits()
    await retry(answering(refused(retry_after=7), Reply("ok", ONE)), sleep=sleep, jitter=lambda: 0.0)(ASK)
    assert asked == [7]


@pytest.mark.parametrize(
    "error",
    [
        refused(AuthenticationError, status=401),
        refused(ContextLengthError, status=400),
        refused(RateLimitError, retry_after=9999),
        refused(ModelError, status=422),
    ],
)
async def test_retry_leaves_alone_what_a_repeat_cannot_mend(error):
    """A wrong key, a bad request, a wait of hours: raised at the first attempt."""
    sleep, asked = waits()
    with pytest.raises(type(error)):
        await retry(answering(error), sleep=sleep)(ASK)
    assert asked == []


async def test_what_never_left_is_no_call_and_the_next_no_retry():
    """Of two attempts that could not connect nothing was sent: the answer took one call."""
    sleep, _ = waits()
    away = [ModelUnavailableError("cannot be reached", retryable=True) for _ in range(2)]
    reply = await retry(answering(*away, Reply("ok", ONE)), sleep=sleep)(ASK)
    assert (reply.usage.calls, reply.usage.retried_calls) == (1, 0)


@pytest.mark.parametrize(("empty", "calls"), [(True, 2), (False, 4)])
async def test_retry_asks_for_a_bad_body_as_for_a_500_and_for_an_empty_answer_once_more(empty, calls):
    """What stands between us and the model may be mended soon; a model that says nothing is not asked for ever."""
    sleep, asked = waits()
    bad = [BadResponseError("bad", retryable=True, usage=ONE) for _ in range(4)]
    for error in bad:
        error.empty = empty
    with pytest.raises(BadResponseError) as caught:
        await retry(answering(*bad), sleep=sleep)(ASK)
    assert caught.value.usage.calls == calls


async def test_retry_gives_up_after_its_attempts_and_says_what_was_spent():
    """The last error carries the usage of all."""
    sleep, _ = waits()
    with pytest.raises(RateLimitError) as caught:
        await retry(answering(*[refused() for _ in range(3)]), attempts=3, sleep=sleep)(ASK)
    assert (caught.value.usage.calls, caught.value.usage.retried_calls) == (3, 2)


async def test_limit_lets_n_through_at_a_time():
    """With 3 places no more than 3 are ever inside."""
    inside = most = 0

    async def call(_):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1

    limited = limit_concurrency(call, ConcurrencyLimit(3))
    await asyncio.gather(*[limited(i) for i in range(20)])
    assert most == 3


async def test_a_pause_that_one_call_is_told_of_holds_for_all():
    """After a Retry-After the whole endpoint is left alone until the time is over."""
    loop = asyncio.get_running_loop()
    limiter = ConcurrencyLimit(8)
    with pytest.raises(RateLimitError):
        await limit_concurrency(answering(refused(retry_after=0.15)), limiter)(ASK)
    begun = loop.time()
    await limit_concurrency(answering(Reply("ok")), limiter)(ASK)
    assert loop.time() - begun >= 0.1


async def test_timeout_ends_a_call_that_hangs():
    """What a cut-off call consumed is unknown, not zero."""
    with pytest.raises(ModelTimeoutError) as caught:
        await timeout(lambda _: asyncio.Event().wait(), 0.02)(ASK)
    assert caught.value.usage == Usage(1, None, None, cost=None)
    assert caught.value.retryable


async def test_timeout_lets_a_cancellation_be_one():
    """Cancelling from outside is no timeout."""
    waiting = asyncio.ensure_future(timeout(lambda _: asyncio.Event().wait(), 60)(ASK))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_until_ends_all_work_at_a_moment():
    """Before the moment a step runs, at it the step is cut off, after it none begins."""
    from time import monotonic

    begun = []

    async def work(step):
        begun.append(step)
        await asyncio.Event().wait()

    bounded = enforce_deadline(work, monotonic() + 0.03)
    for _ in range(2):
        with pytest.raises(BudgetExhaustedError) as caught:
            await bounded("step")
        assert caught.value.limit == "deadline"
    assert begun == ["step"]


async def test_observe_tells_of_begin_and_end():
    """Also of an end in an error."""
    seen = []
    watched = observe(
        answering(Reply("ok"), refused()), on_start=lambda a: seen.append("begun"), on_end=lambda a, r: seen.append(type(r))
    )
    await watched(ASK)
    with pytest.raises(RateLimitError):
        await watched(ASK)
    assert seen == ["begun", Reply, "begun", RateLimitError]


async def test_cache_answers_the_second_time_for_nothing():
    """A hit is a cached call and no call."""
    call = answering(Reply("ok", ONE))
    cached = cache(call, {}, "m")
    await cached(ASK)
    again = await cached(ASK)
    assert again.text == "ok"
    assert again.usage == Usage(cached_calls=1)
    assert len(call.asked) == 1


async def test_cache_asks_once_for_what_is_asked_at_the_same_moment():
    """Eight identical calls in flight are one."""
    gate = asyncio.Event()
    count = 0

    async def call(_):
        nonlocal count
        count += 1
        await gate.wait()
        return Reply("ok", ONE)

    cached = cache(call, {}, "m")
    waiting = [asyncio.ensure_future(cached(ASK)) for _ in range(8)]
    await asyncio.sleep(0)
    gate.set()
    replies = await asyncio.gather(*waiting)
    assert count == 1
    assert sum(r.usage.cached_calls for r in replies) == 7


async def test_cache_keeps_neither_failures_nor_truncated_answers():
    """Both are asked for again."""
    call = answering(refused(), Reply("cut", ONE, finish_reason="length"), Reply("whole", ONE))
    cached = cache(call, {}, "m")
    with pytest.raises(RateLimitError):
        await cached(ASK)
    assert (await cached(ASK)).text == "cut"
    assert (await cached(ASK)).text == "whole"


@pytest.mark.parametrize(
    "change",
    [
        {"messages": ({"role": "system", "content": "s"}, *ASK.messages)},
        {"temperature": 0.5},
        {"max_tokens": 51},
        {"seed": 1},
        {"schema": {"type": "object"}},
        {"sample_index": 1},
    ],
)
def test_whatever_changes_the_answer_is_in_the_key(change):
    """System prompt, parameters, schema and look all make another key."""
    from dataclasses import replace

    assert cache_key("m", ASK) != cache_key("m", replace(ASK, **change))


def test_what_means_nothing_is_not_in_the_key():
    """The nonce of an envelope differs from call to call and is left out; the model is in."""
    one, other = (Request(({"role": "user", "content": f"<a-{n}>\ud800é</a-{n}>"},), nonce=n) for n in ("11112222", "33334444"))
    assert cache_key("m", one) == cache_key("m", other)
    assert cache_key("m", one) != cache_key("n", one)


def test_what_a_budget_lowers_is_not_in_the_key():
    """A process that goes on has another amount left, and finds the answers of the one before it all the same."""
    from dataclasses import replace

    assert cache_key("m", replace(ASK, max_tokens=20, original=ASK)) == cache_key("m", ASK)


async def test_meter_settles_what_was_used_and_prices_it():
    """The reply carries the cost, the purse what is spent."""
    purse = BudgetTracker(Budget(usd=5))
    reply = await meter(with_cost(answering(Reply("ok", ONE)), Rate()), purse, Rate())(ASK)
    assert reply.usage.cost == pytest.approx(0.2)
    assert purse.spent["usd"] == pytest.approx(0.2)
    assert purse.reserved["usd"] == pytest.approx(0)


@pytest.mark.parametrize(("most", "words"), [(0, "budget of 0 calls"), (1, "budget of 1 call is")])
async def test_a_budget_of_one_call_is_said_as_one(most, words):
    """What is used up is told as people say it."""
    call = meter(answering(Reply("ok", ONE)), BudgetTracker(Budget(calls=most)), Rate())
    for _ in range(most):
        await call(ASK)
    with pytest.raises(BudgetExhaustedError, match=words):
        await call(ASK)


AMOUNTS = [(Budget(usd=0.00001), 300, "of 0.00001 USD"), (Budget(tokens=1_234_567), 4_000_000, "of 1234567 tokens")]


@pytest.mark.parametrize(("budget", "length", "words"), AMOUNTS)
async def test_amounts_are_said_without_an_exponent(budget, length, words):
    """Small sums of money and large numbers of tokens are read at a glance."""
    call = meter(answering(Reply("ok", ONE)), BudgetTracker(budget), Rate())
    with pytest.raises(BudgetExhaustedError, match=words) as caught:
        await call(dataclasses.replace(ASK, messages=({"role": "user", "content": "x" * length},)))
    assert "e-" not in str(caught.value) and "e+" not in str(caught.value)


async def test_calls_in_flight_cannot_overshoot_together():
    """Of twenty at once, a budget of five lets five through, and the others are refused before they are made."""
    made = 0

    async def call(_):
        nonlocal made
        made += 1
        await asyncio.sleep(0.001)
        return Reply("ok", ONE)

    metered = meter(call, BudgetTracker(Budget(calls=5)))
    ends = await asyncio.gather(*[metered(ASK) for _ in range(20)], return_exceptions=True)
    assert made == 5
    assert sum(isinstance(e, BudgetExhaustedError) for e in ends) == 15


async def test_a_call_waits_for_what_others_may_leave_over():
    """Estimates are cautious: when calls under way turn out cheaper, the next one still fits."""
    metered = meter(answering(Reply("a", Usage(1, 10, 5)), Reply("b", Usage(1, 10, 5))), BudgetTracker(Budget(tokens=250)))
    replies = await asyncio.gather(metered(ASK), metered(ASK))
    assert [r.text for r in replies] == ["a", "b"]


async def test_unknown_usage_counts_as_what_was_reserved():
    """A budget is kept even when a server does not say what it used."""
    purse = BudgetTracker(Budget(output_tokens=100))
    await meter(answering(Reply("a", Usage(1, None, None, cost=None))), purse)(ASK)
    assert purse.spent["output_tokens"] == 50


@pytest.mark.parametrize("limits", [{"calls": -1}, {"usd": float("nan")}, {"calls": 1.5}, {"tokens": True}, {"usd": "1"}])
def test_a_budget_that_is_none_is_refused(limits):
    """The error names the limit and the value."""
    with pytest.raises(ConfigError) as caught:
        Budget(**limits)
    assert next(iter(limits)) in str(caught.value)
    assert repr(next(iter(limits.values()))) in str(caught.value)
