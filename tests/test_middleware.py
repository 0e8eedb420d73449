"""Each middleware alone, with a fake clock and fixed random numbers."""

import asyncio
import dataclasses
import re

import pytest

from each_row import each_row
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
from redraft.middleware import Budget, BudgetTracker
from redraft.middleware.cache import cache, cache_key
from redraft.middleware.concurrency import ConcurrencyLimit, limit_concurrency
from redraft.middleware.metering import meter, with_cost
from redraft.middleware.observe import observe
from redraft.middleware.retry import retry
from redraft.middleware.timeout import enforce_deadline, timeout
from redraft.protocols import Reply, Request
from redraft.usage import NO_USAGE, Usage

ASK = Request(({"role": "user", "content": "x" * 300},), max_tokens=50)
ONE = Usage(1, 100, 10, cost=None)


def scripted_call(*answers):
    """A call that answers or raises in order; `.asked` has the requests."""
    left = list(answers)

    async def call(request):
        call.asked.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call.asked = []
    return call


def recorded_sleep():
    """A sleep that takes no time, and the recorded durations."""
    asked = []

    async def sleep(seconds):
        asked.append(seconds)

    return sleep, asked


def rate_limited(kind=RateLimitError, **more):
    return kind("no", usage=Usage(calls=1), **more)


class FlatPrice:
    def cost(self, usage):
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        return usage.input_tokens * 1e-3 + usage.output_tokens * 1e-2


async def test_retry_repeats_temporary_errors_and_counts_every_call():
    """Two refusals and an answer are three calls, two of them retries."""
    sleep, asked = recorded_sleep()
    call = scripted_call(
        rate_limited(), rate_limited(ModelUnavailableError, retryable=True), Reply("ok", ONE)
    )
    reply = await retry(call, sleep=sleep, jitter=lambda: 0.5)(ASK)
    assert (reply.text, reply.usage.calls, reply.usage.retried_calls) == ("ok", 3, 2)
    assert asked == [0.25, 0.5]


def failing(kind=RateLimitError, **more):
    flags = {
        name: more.pop(name)
        for name in ("empty", "has_unknown_end", "endpoint_responsive")
        if name in more
    }
    error = rate_limited(kind, **{"retryable": True, **more})
    for name, value in flags.items():
        setattr(error, name, value)
    return error


SLOW = dict(kind=ModelTimeoutError, endpoint_responsive=True)
EMPTY, ODD_END = (
    dict(kind=BadResponseError, empty=True),
    dict(kind=BadResponseError, has_unknown_end=True),
)
# what fails; settings; the waits, with a jitter of a half; the words that the last error has, or
# None for an answer
RETRIES = {
    "one failure": ([{}], {}, [0.25], None),
    "three failures": ([{}] * 3, {}, [0.25, 0.5, 1.0], None),
    "four failures": ([{}] * 4, {}, [0.25, 0.5, 1.0], "no"),
    "one attempt": ([{}], {"attempts": 1}, [], "no"),
    "eight attempts": ([{}] * 7, {"attempts": 8}, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0], None),
    "delays of one's own": (
        [{}] * 4,
        {"attempts": 5, "base_delay": 2.0, "max_delay": 5.0},
        [1.0, 2.0, 2.5, 2.5],
        None,
    ),
    "a wait that is asked for": ([{"retry_after": 7}], {}, [7.25], None),
    "a wait of zero that is asked for": ([{"retry_after": 0.0}, {}], {}, [0.25, 0.5], None),
    "a wait as long as the longest": ([{"retry_after": 9}], {"max_wait": 9.0}, [9.25], None),
    "a wait that is too long": (
        [{}, {"retry_after": 9.1}],
        {"max_wait": 9.0},
        [0.25],
        r"no (the endpoint asks to wait 9.1 s, until TIME)",
    ),
    "no chance": ([{"retryable": False}], {}, [], "no"),
    "an empty answer": ([EMPTY], {}, [0.25], None),
    "two empty answers": ([EMPTY] * 2, {}, [0.25], "no"),
    "an empty answer after another failure": ([{}, EMPTY], {}, [0.25], "no"),
    "two unknown ends": ([ODD_END] * 2, {}, [0.25], "no"),
    "an unreadable body three times": (
        [{"kind": BadResponseError}] * 3,
        {},
        [0.25, 0.5, 1.0],
        None,
    ),
    "two timeouts of a busy endpoint": ([SLOW] * 2, {}, [0.25, 0.5], None),
    "three timeouts of a busy endpoint": (
        [SLOW] * 3,
        {},
        [0.25, 0.5],
        "no (it timed out 3 times while the endpoint answered other calls)",
    ),
    "three timeouts of an endpoint that answers nobody": (
        [{"kind": ModelTimeoutError}] * 3,
        {},
        [0.25, 0.5, 1.0],
        None,
    ),
    "one timeout of a busy endpoint, then no chance": (
        [SLOW, {"retryable": False}],
        {},
        [0.25],
        "no (it timed out once while the endpoint answered other calls)",
    ),
}


@each_row(("failures", "settings", "waits", "words"), RETRIES.values(), ids=RETRIES)
async def test_when_calls_are_repeated(failures, settings, waits, words):
    """How often and after which waits; every attempt is counted, in the answer or in the last
    error.
    """
    sleep, asked = recorded_sleep()
    errors = [failing(**each) for each in failures]
    work = retry(
        scripted_call(*errors, Reply("ok", ONE)), sleep=sleep, jitter=lambda: 0.5, **settings
    )(ASK)
    if words is None:
        usage = (await work).usage
    else:
        with pytest.raises(ModelError) as caught:
            await work
        assert caught.value is errors[-1]
        assert re.sub("until [^)]+", "until TIME", str(caught.value)) == words
        usage = caught.value.usage
    assert asked == waits
    assert (usage.calls, usage.retried_calls) == (len(waits) + 1, len(waits))


@pytest.mark.parametrize(
    "error",
    [
        rate_limited(AuthenticationError, status=401),
        rate_limited(ContextLengthError, status=400),
        rate_limited(RateLimitError, retry_after=9999),
        rate_limited(ModelError, status=422),
    ],
)
async def test_retry_does_not_repeat_permanent_errors(error):
    """A wrong key, a bad request and a wait of hours are raised at the first attempt."""
    sleep, asked = recorded_sleep()
    with pytest.raises(type(error)):
        await retry(scripted_call(error), sleep=sleep)(ASK)
    assert asked == []


async def test_a_failed_connection_is_no_call_and_the_next_attempt_no_retry():
    """After two attempts that could not connect the answer took one call."""
    sleep, _ = recorded_sleep()
    away = [ModelUnavailableError("cannot be reached", retryable=True) for _ in range(2)]
    reply = await retry(scripted_call(*away, Reply("ok", ONE)), sleep=sleep)(ASK)
    assert (reply.usage.calls, reply.usage.retried_calls) == (1, 0)


async def test_limit_runs_at_most_n_calls_at_a_time():
    """With a limit of 3 no more than 3 calls ever run."""
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


async def test_a_retry_after_of_one_call_pauses_all():
    """No call starts on the endpoint until the time is over."""
    loop = asyncio.get_running_loop()
    limiter = ConcurrencyLimit(8)
    with pytest.raises(RateLimitError):
        await limit_concurrency(scripted_call(rate_limited(retry_after=0.15)), limiter)(ASK)
    begun = loop.time()
    await limit_concurrency(scripted_call(Reply("ok")), limiter)(ASK)
    assert loop.time() - begun >= 0.1


async def test_timeout_ends_a_call_that_hangs():
    """The usage of a cancelled call is unknown, not zero."""
    with pytest.raises(ModelTimeoutError) as caught:
        await timeout(lambda _: asyncio.Event().wait(), 0.02)(ASK)
    assert caught.value.usage == Usage(1, None, None, cost=None)
    assert caught.value.retryable


async def test_timeout_does_not_change_a_cancellation():
    """A cancellation from outside is no timeout."""
    waiting = asyncio.ensure_future(timeout(lambda _: asyncio.Event().wait(), 60)(ASK))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_until_cancels_work_at_its_moment():
    """Before it a step runs, at it the step is cancelled, after it none starts."""
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


async def test_observe_reports_each_start():
    """It is over before the call begins, also of a call that fails."""
    call = scripted_call(Reply("ok"), rate_limited())
    seen = []

    async def note(argument):
        seen.append((argument, len(call.asked)))

    watched = observe(call, note)
    assert await watched(ASK) == Reply("ok")
    with pytest.raises(RateLimitError):
        await watched(ASK)
    assert seen == [(ASK, 0), (ASK, 1)]


async def test_cache_answers_a_repeated_call_for_free():
    """A hit counts as a cached call and as no call."""
    call = scripted_call(Reply("ok", ONE))
    cached = cache(call, {}, "m")
    await cached(ASK)
    again = await cached(ASK)
    assert again.text == "ok"
    assert again.usage == Usage(cached_calls=1)
    assert len(call.asked) == 1


async def test_cache_merges_identical_calls_in_flight():
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
    """Both are requested again."""
    call = scripted_call(
        rate_limited(), Reply("cut", ONE, finish_reason="length"), Reply("whole", ONE)
    )
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
def test_the_cache_key_has_everything_that_changes_the_answer(change):
    """System prompt, parameters, schema and sample index each change the key."""
    from dataclasses import replace

    assert cache_key("m", ASK) != cache_key("m", replace(ASK, **change))


def test_the_cache_key_leaves_out_the_nonce():
    """The nonce of an envelope differs from call to call; the model is in the key."""
    one, other = (
        Request(({"role": "user", "content": f"<a-{n}>\ud800é</a-{n}>"},), nonce=n)
        for n in ("11112222", "33334444")
    )
    assert cache_key("m", one) == cache_key("m", other)
    assert cache_key("m", one) != cache_key("n", one)


def test_the_cache_key_leaves_out_what_a_budget_lowers():
    """A resumed process with another remaining budget finds the answers of the first."""
    from dataclasses import replace

    assert cache_key("m", replace(ASK, max_tokens=20, original=ASK)) == cache_key("m", ASK)


async def test_calls_without_a_limit_count_while_they_are_in_flight():
    """What one may take is reserved when it is asked for; an unknown usage counts as that, a known
    one as it is.
    """
    tracker = BudgetTracker()
    seen = []

    async def call(request):
        seen.append(tracker.spent_and_reserved)
        return Reply("ok", Usage(1, None, None, cost=None) if len(seen) == 1 else ONE)

    for _ in range(2):
        await meter(with_cost(call, None), tracker)(ASK)
    assert seen[0]["input_tokens"] >= 300
    assert seen[1]["output_tokens"] > tracker.spent["output_tokens"] == 50 + 10
    assert tracker.spent_and_reserved == tracker.spent


def test_copies_keep_every_field():
    """A field that a request or a reply gets later is not lost in a copy."""
    request = Request(*range(len(dataclasses.fields(Request))))
    assert request.with_format("text") == dataclasses.replace(request, format="text")
    reply = Reply(*range(len(dataclasses.fields(Reply))))
    expected = dataclasses.replace(reply, usage=ONE)
    assert all(
        getattr(reply.with_usage(ONE), f.name) == getattr(expected, f.name)
        for f in dataclasses.fields(Reply)
    )


async def test_meter_records_usage_and_cost():
    """The reply has the cost, the tracker has the amounts spent."""
    tracker = BudgetTracker(Budget(usd=5))
    reply = await meter(
        with_cost(scripted_call(Reply("ok", ONE)), FlatPrice()), tracker, FlatPrice()
    )(ASK)
    assert reply.usage.cost == pytest.approx(0.2)
    assert tracker.spent["usd"] == pytest.approx(0.2)
    assert tracker.reserved["usd"] == pytest.approx(0)


@pytest.mark.parametrize(("most", "words"), [(0, "budget of 0 calls"), (1, "budget of 1 call is")])
async def test_a_budget_of_one_call_has_a_singular(most, words):
    """Amounts in a message read naturally."""
    call = meter(scripted_call(Reply("ok", ONE)), BudgetTracker(Budget(calls=most)), FlatPrice())
    for _ in range(most):
        await call(ASK)
    with pytest.raises(BudgetExhaustedError, match=words):
        await call(ASK)


AMOUNTS = [
    (Budget(usd=0.00001), 300, "of 0.00001 USD"),
    (Budget(tokens=1_234_567), 4_000_000, "of 1234567 tokens"),
]


@pytest.mark.parametrize(("budget", "length", "words"), AMOUNTS)
async def test_amounts_have_no_exponent(budget, length, words):
    """Small sums of money and large numbers of tokens are easy to read."""
    call = meter(scripted_call(Reply("ok", ONE)), BudgetTracker(budget), FlatPrice())
    with pytest.raises(BudgetExhaustedError, match=words) as caught:
        await call(dataclasses.replace(ASK, messages=({"role": "user", "content": "x" * length},)))
    assert "e-" not in str(caught.value) and "e+" not in str(caught.value)


async def test_calls_in_flight_stay_within_the_budget_together():
    """Of twenty at once a budget of five makes five; the others are refused before they are
    made.
    """
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


async def test_a_call_waits_for_reservations_that_others_may_release():
    """When calls in flight cost less than reserved, the next one fits."""
    metered = meter(
        scripted_call(Reply("a", Usage(1, 10, 5)), Reply("b", Usage(1, 10, 5))),
        BudgetTracker(Budget(tokens=500)),
    )
    replies = await asyncio.gather(metered(ASK), metered(ASK))
    assert [r.text for r in replies] == ["a", "b"]


@pytest.mark.parametrize(
    "limits", [{"calls": -1}, {"usd": float("nan")}, {"calls": 1.5}, {"tokens": True}, {"usd": "1"}]
)
def test_invalid_budgets_are_refused(limits):
    """The error names the limit and the value."""
    with pytest.raises(ConfigError) as caught:
        Budget(**limits)
    assert next(iter(limits)) in str(caught.value)
    assert repr(next(iter(limits.values()))) in str(caught.value)


def test_a_reply_after_attempts_that_cost_nothing_is_as_it_was():
    """Sums of nothing are nothing: the calls of an agent are none of earlier attempts."""
    reply = Reply("x", Usage(calls=2, cost=0.1))
    assert reply.after(NO_USAGE + NO_USAGE) is reply
    after = reply.after(NO_USAGE + Usage(calls=1, cost=0.2)).usage
    assert (after.calls, after.cost) == (3, pytest.approx(0.3))
    assert after.retried_calls == 2  # it is one answer: all but its first call were made again
