"""The endpoint limiter, with a fake clock: calls in flight, the queue, and pauses and outages of an
endpoint.
"""

import asyncio
import heapq
import re
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.errors import (
    AuthenticationError,
    BadResponseError,
    BudgetExhaustedError,
    ConfigError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from redraft.middleware import (
    Budget,
    BudgetTracker,
    EndpointCapabilities,
    EndpointLimiter,
    limit_endpoint,
)
from redraft.middleware.adapt import adapt
from redraft.middleware.aimd import HOLD_WINDOWS, AIMDWindow
from redraft.middleware.metering import meter
from redraft.middleware.retry import retry
from redraft.middleware.token_bucket import TokenBucket
from redraft.models.http_client import malformed_response
from redraft.protocols import RateLimitStatus, Reply, Request
from redraft.usage import Usage

ASK = Request(({"role": "user", "content": "x" * 300},), max_tokens=50)
JUDGE = Request(({"role": "user", "content": "x"},), schema={"type": "object"})
PICTURE = Request(
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},)
)
ONE = Usage(1, 100, 10, cost=None)
OK = Reply("ok", ONE)
FREE = Usage(calls=1)
MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


class Clock:
    """A clock that advances only when the test says so, one sleeper after another."""

    def __init__(self):
        self.now = 1000.0
        self._sleepers, self._number = [], count()

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + max(seconds, 0.0), next(self._number), woken))
        await woken

    async def settle(self):
        for _ in range(12):
            await asyncio.sleep(0)

    async def advance(self, seconds):
        await self.settle()
        end = self.now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await self.settle()
        self.now = end
        await self.settle()


@pytest.fixture
def clock():
    return Clock()


def limiter_on(clock, **more):
    return EndpointLimiter("here", clock=clock, sleep=clock.sleep, **more)


def unreachable(**more):
    return ModelUnavailableError("cannot be reached", **{"retryable": True, "usage": FREE, **more})


def rate_limited(**more):
    return RateLimitError("status 429", status=429, usage=FREE, **more)


def scripted_call(*answers, clock=None):
    """A call that answers or raises in order, the last one for ever; `.at` has the times of the
    calls.
    """
    left = list(answers)

    async def call(request):
        call.at.append(clock() if clock else None)
        answer = left.pop(0) if len(left) > 1 else left[0]
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call.at = []
    return call


def start_calls(*calls):
    return [asyncio.ensure_future(call) for call in calls]


def answer(gate, slot):
    """Let a call be answered that has a slot."""
    gate.record_success(slot, OK)
    gate.release()


async def cancel_all(tasks):
    """Cancel the tasks that still run, and ignore the errors of the others."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the limit


def fill_windows(window, windows=1, clock=None, seconds=0):
    """Report a number of windows of successes in which all places were taken, each of which takes
    `seconds`.
    """
    for _ in range(windows):
        window.record_start(window.limit)
        if clock:
            clock.now += seconds
        for _ in range(window.limit):
            window.record_success(window.epoch)


def test_the_limit_doubles_until_the_first_refusal_and_then_rises_slowly(clock):
    """From 16 it doubles to 128, halves, recovers half of the distance each time, pauses below it,
    then rises by one, two and four.
    """
    window, seen = AIMDWindow(16, 1, 512, clock=clock), []
    for _ in range(3):
        fill_windows(window, 1, clock, 10)
        seen.append(window.limit)
    assert seen == [32, 64, 128]
    window.record_congestion(window.epoch, 128)
    seen = [window.limit]
    for _ in range(6):
        fill_windows(window)
        seen.append(window.limit)
    assert seen == [64, 96, 112, 120, 124, 126, 127]
    fill_windows(window, HOLD_WINDOWS)
    assert window.limit == 127
    seen = []
    for _ in range(5):
        fill_windows(window)
        seen.append(window.limit)
    assert seen == [128, 129, 130, 132, 136]


@pytest.mark.parametrize("held", [0, 1, HOLD_WINDOWS - 1, HOLD_WINDOWS, HOLD_WINDOWS + 1])
def test_after_each_refusal_the_limit_is_held_equally_long(held):
    """However long it was held after an earlier one, and whether it had risen above that."""
    window = AIMDWindow(64, 1, 512)
    for windows in (held, None, None):
        refused = window.limit
        window.record_congestion(window.epoch, refused)
        while window.limit < refused - 1:
            fill_windows(window)
        if windows is not None:  # the next refusal comes then
            fill_windows(window, windows)
            continue
        fill_windows(window, HOLD_WINDOWS)
        assert window.limit == refused - 1
        fill_windows(window)
        assert window.limit == refused


@pytest.mark.parametrize(
    ("seconds", "seen"),
    [
        (lambda limit: 1, [128, 512, 512, 512, 512]),
        (lambda limit: 10, [48, 144, 432, 512, 512]),
        (lambda limit: 40, [32, 64, 128, 256, 512]),
        (lambda limit: limit / 4, [120] * 5),
        (lambda limit: limit / 0.5, [32] * 5),
        (lambda limit: max(limit, 100) / 5, [32, 64, 128, 256, 256]),
        (lambda limit: 0, [32, 64, 128, 256, 512]),
    ],
    ids=["fast", "slower", "slow", "takes few", "takes one", "takes a hundred", "no time"],
)
def test_before_the_first_refusal_the_limit_rises_with_the_answers_per_second(clock, seconds, seen):
    """At once to what is answered in 30 s, up to eight times; else it doubles while that brings
    more answers per second.
    """
    window, limits = AIMDWindow(16, 1, 512, queue_seconds=30, clock=clock), []
    for _ in range(5):
        fill_windows(window, 1, clock, seconds(window.limit))
        limits.append(window.limit)
    assert limits == seen


def test_a_lower_maximum_forgets_how_many_answers_a_higher_limit_brought(clock):
    """So the limit rises again once the maximum does."""
    window = AIMDWindow(64, 1, 512, clock=clock)
    fill_windows(window, 1, clock, 100)
    window.resize(16)
    fill_windows(window, 1, clock, 100)
    window.resize(512)
    fill_windows(window, 1, clock, 100)
    assert window.limit == 32


@pytest.mark.parametrize(("in_flight", "limit"), [(3, 8), (17, 8), (101, 50), (128, 64)])
def test_a_limit_that_was_not_reached_counts_as_far_as_calls_were_in_flight(
    clock, in_flight, limit
):
    """From 16 the limit has risen to 128. It falls to half of what was in flight, but not below
    half of what was answered.
    """
    window = AIMDWindow(16, 1, 512, queue_seconds=30, clock=clock)
    fill_windows(window, 1, clock, 1)
    window.record_congestion(window.epoch, in_flight)
    assert window.limit == limit


def test_a_limit_that_is_not_used_is_not_raised():
    """Ten thousand successes, one at a time, say nothing about seventeen at a time."""
    window = AIMDWindow(16, 1, 512)
    for _ in range(10_000):
        window.record_start(1)
        window.record_success(window.epoch)
    assert window.limit == 16


def test_refusals_of_calls_in_flight_halve_the_limit_once():
    """Calls that started before the limit fell neither halve it again nor raise it."""
    window = AIMDWindow(64, 1, 512)
    era = window.epoch
    for _ in range(64):
        window.record_congestion(era, 64)
    assert window.limit == 32
    window.record_start(64)
    for _ in range(64):
        window.record_success(era)
    assert window.limit == 32
    window.record_congestion(window.epoch, 32)
    assert window.limit == 16


@pytest.mark.parametrize(
    ("start", "floor", "ceiling", "after_trouble", "after_luck"),
    [(16, 1, 20, 8, 20), (4, 3, 4, 3, 4), (1, 1, 1, 1, 1), (99, 2, 8, 4, 8)],
)
def test_the_limit_stays_between_floor_and_ceiling(
    start, floor, ceiling, after_trouble, after_luck
):
    """This holds for every sequence of results and every start value."""
    lucky, poor = AIMDWindow(start, floor, ceiling), AIMDWindow(start, floor, ceiling)
    fill_windows(lucky, 100)
    poor.record_congestion(poor.epoch, poor.limit)
    assert (poor.limit, lucky.limit) == (after_trouble, after_luck)
    for _ in range(20):
        poor.record_congestion(poor.epoch, poor.limit)
    assert poor.limit == floor


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"initial": 0}, "initial"),
        ({"minimum": 0}, "minimum"),
        ({"maximum": 2.5}, "maximum"),
        ({"minimum": 9, "maximum": 8}, "minimum"),
        ({"rpm": 0}, "rpm"),
        ({"tpm": float("nan")}, "tpm"),
        ({"give_up_after": -1}, "give_up_after"),
        ({"give_up_after": float("nan")}, "give_up_after"),
    ],
)
def test_invalid_limits_are_refused(given, named):
    """The error names the argument and the value."""
    with pytest.raises(ConfigError, match=named):
        EndpointLimiter("here", **given)


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (rate_limited(), 8),
        (ModelTimeoutError("late", usage=FREE), 8),
        (unreachable(status=503), 8),
        (unreachable(status=529), 8),
        (ModelError("busy", status=429, usage=FREE), 8),
        (unreachable(status=500), 16),
        (unreachable(), 16),
        (BadResponseError("prose", usage=FREE), 16),
        (ModelError("no", status=422, usage=FREE), 16),
    ],
    ids=str,
)
async def test_only_rate_limits_and_timeouts_halve_the_limit(clock, error, limit):
    """Failed, refused or unreachable calls do not change it."""
    gate = limiter_on(clock)
    with pytest.raises(type(error)):
        await limit_endpoint(scripted_call(error, OK), gate)(ASK)
    assert (gate.limit, gate.in_flight) == (limit, 0)


class Endpoint:
    """Takes `most` calls at a time for `latency` seconds each and refuses the others."""

    def __init__(self, clock, most, latency=0.05):
        self.clock, self.most, self.latency = clock, most, latency
        self.inside = self.served = self.refused = 0

    async def __call__(self, request):
        if self.inside >= self.most:
            self.refused += 1
            raise rate_limited()
        self.inside += 1
        await self.clock.sleep(self.latency)
        self.inside -= 1
        self.served += 1
        return OK


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("most", [3, 100])
async def test_the_limit_finds_the_capacity_of_an_endpoint(clock, most):
    """With enough calls waiting, over 90 % of the endpoint's capacity is used, with few
    refusals.
    """
    endpoint = Endpoint(clock, most)
    gate = limiter_on(clock)
    call = retry(limit_endpoint(endpoint, gate), attempts=1000, sleep=clock.sleep)

    async def worker():
        while True:
            await call(ASK)

    tasks = start_calls(*(worker() for _ in range(3 * most)))
    await clock.advance(2)
    endpoint.served = endpoint.refused = 0
    await clock.advance(6)
    await cancel_all(tasks)
    assert endpoint.served >= 0.9 * most * 6 / endpoint.latency
    assert endpoint.refused <= 0.05 * endpoint.served


async def test_after_a_fast_rise_calls_are_admitted_one_by_one(clock):
    """An endpoint that refuses the 65th call at once gets few more than that, and the limit is half
    of what it takes.
    """
    endpoint = Endpoint(clock, 64, latency=1)
    gate = limiter_on(clock, queue_seconds=60)
    tasks = start_calls(*(limit_endpoint(endpoint, gate)(ASK) for _ in range(600)))
    await clock.advance(0.99)
    assert (endpoint.inside, endpoint.refused) == (16, 0)
    await clock.advance(0.0101 + 0.25 * 32 / 128)
    assert (gate.limit, endpoint.inside, endpoint.refused) == (128, 48, 0)
    await clock.advance(0.2)
    assert (gate.limit, endpoint.inside, endpoint.refused) == (32, 64, 1)
    await cancel_all(tasks)


# ---- the queue


class JumpingClock(Clock):
    """A clock that reaches the moment `due` between two of its reads."""

    due, reads = 0.0, inf

    def __call__(self):
        self.reads -= 1
        if self.reads < 0:
            self.now = max(self.now, self.due)
        return self.now


@pytest.mark.parametrize("wait", [EndpointLimiter.acquire, EndpointLimiter.wait_for_slot])
@pytest.mark.parametrize("reads", range(8))
async def test_a_slot_that_becomes_free_while_its_time_is_computed_is_not_missed(wait, reads):
    """Otherwise the call would wait for ever, if no other one ends."""
    clock = JumpingClock()
    gate = limiter_on(clock)
    gate.pause(1)
    clock.due, clock.reads = clock.now + 1, reads
    waiting = asyncio.ensure_future(wait(gate))
    await clock.advance(1.5)
    assert waiting.done()
    await cancel_all([waiting])


async def test_calls_are_served_in_the_order_of_arrival(clock):
    """This holds for a limit of one as well."""
    order = []

    async def call(request):
        order.append(request.sample_index)
        await asyncio.sleep(0)
        return OK

    passed = limit_endpoint(call, limiter_on(clock, initial=1, maximum=1))
    await asyncio.gather(*(passed(Request(ASK.messages, sample_index=n)) for n in range(50)))
    assert order == list(range(50))


async def test_an_endpoint_is_full_if_another_call_would_have_to_wait(clock):
    """Also while a few more rows may start, whose calls will wait for the next slots."""
    gate = limiter_on(clock, initial=16, maximum=16)
    states, places = [], []
    for _ in range(16):
        states.append(gate.is_full)
        places.append(await gate.acquire())
    assert (states, gate.is_full, gate.free_slots) == ([False] * 16, True, 2)
    answer(gate, places.pop())
    assert not gate.is_full


async def test_free_slots_are_those_that_no_call_waits_for(clock):
    """There are free slots, then none, then waiting calls count against them; `wait_for_slot`
    reports a free one.
    """
    gate = limiter_on(clock, initial=2, maximum=2)
    rooms = [gate.free_slots]
    places = []
    for _ in range(2):
        places.append(await gate.acquire())
        rooms.append(gate.free_slots)
    waiting = asyncio.ensure_future(gate.acquire())
    await asyncio.sleep(0)
    assert (rooms, gate.free_slots, gate.queue_length) == ([2, 1, 0], -1, 1)
    told = asyncio.ensure_future(gate.wait_for_slot())
    answer(gate, places.pop())
    await clock.settle()
    assert (waiting.done(), told.done(), gate.free_slots) == (True, False, 0)
    answer(gate, places.pop())
    await clock.settle()
    assert (told.done(), gate.free_slots) == (True, 1)
    await asyncio.wait_for(gate.wait_for_slot(), 60)


async def test_a_few_calls_may_wait_for_the_next_slots(clock):
    """So the slot of an answered call is used at once. More may wait when half of them have got
    slots; none during a pause.
    """
    gate = limiter_on(clock, initial=32, maximum=32)
    places = [await gate.acquire() for _ in range(32)]
    assert gate.free_slots == 4
    waiting = [asyncio.ensure_future(gate.acquire()) for _ in range(4)]
    await asyncio.sleep(0)
    rooms = [gate.free_slots]
    for _ in waiting:
        answer(gate, places.pop())
        await clock.settle()
        rooms.append(gate.free_slots)
    assert rooms == [0, 0, 0, 3, 4]
    gate.pause(1)
    assert gate.free_slots == 0
    await asyncio.gather(*waiting)


async def test_calls_that_no_longer_wait_make_room(clock):
    """Who waits for a free slot is told when waiting calls are cancelled."""
    gate = limiter_on(clock, initial=32, maximum=32)
    for _ in range(32):
        await gate.acquire()
    waiting = [asyncio.ensure_future(gate.acquire()) for _ in range(4)]
    await asyncio.sleep(0)
    told = asyncio.ensure_future(gate.wait_for_slot())
    await clock.settle()
    assert (told.done(), gate.free_slots) == (False, 0)
    await cancel_all(waiting)
    await clock.settle()
    assert (told.done(), gate.free_slots) == (True, 4)


@pytest.mark.parametrize("limits", [{"rpm": 60}, {"tpm": 6000}, {"rpm": 60, "tpm": 6000}])
async def test_with_limits_per_minute_one_slot_is_free_at_a_time(clock, limits):
    """The rates may admit the next call and not the one after it."""
    gate = limiter_on(clock, initial=8, maximum=8, **limits)
    assert gate.free_slots == 1
    await gate.acquire(10.0)
    assert gate.free_slots <= 1


async def test_free_slots_return_after_a_pause_without_calls(clock):
    """A waiter for a slot wakes when the pause is over."""
    gate = limiter_on(clock)
    with pytest.raises(RateLimitError):
        await limit_endpoint(scripted_call(rate_limited(retry_after=5)), gate)(ASK)
    assert gate.free_slots == 0
    told = asyncio.ensure_future(gate.wait_for_slot())
    await clock.advance(4.9)
    assert not told.done()
    await clock.advance(0.2)
    assert told.done()


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["ask", "cancel", "answer", "refuse", "late", "wait"]), st.integers(0, 30)
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(moves=MOVES, start=st.integers(1, 4), rpm=st.sampled_from([None, 60, 6000]))
def test_no_slot_is_lost_or_given_twice(moves, start, rpm):
    """Whatever is answered, refused or cancelled, calls in flight stay within the limit, and in the
    end there are none.
    """

    async def run_calls():
        clock = Clock()
        gate = limiter_on(clock, initial=start, maximum=6, rpm=rpm)
        inside, tasks, over, running = [], [], [], set()
        admit = gate._admit

        def checked(tokens):
            # now, as the limit may fall before the call begins
            over.append(gate.in_flight >= gate.limit)
            return admit(tokens)

        gate._admit = checked

        async def call(request):
            end = asyncio.get_running_loop().create_future()
            inside.append(end)
            running.add(end)
            try:
                error = await end
            finally:
                running.remove(end)
            if error:
                raise error
            return OK

        passed = limit_endpoint(call, gate)
        for move, n in moves:
            open_ends = [end for end in inside if not end.done()]
            if move == "ask":
                tasks.append(asyncio.ensure_future(passed(ASK)))
            elif move == "cancel" and tasks:
                tasks[n % len(tasks)].cancel()
            elif move == "wait":
                await clock.advance(n / 10)
            elif open_ends:
                errors = {
                    "answer": None,
                    "refuse": rate_limited(retry_after=n / 20),
                    "late": ModelTimeoutError("late", usage=FREE),
                }
                open_ends[n % len(open_ends)].set_result(errors.get(move))
            if n % 3 == 0:
                await asyncio.sleep(0)
            unfinished = sum(not task.done() for task in tasks)
            assert len(running) <= gate.in_flight <= unfinished
            assert 0 <= gate.queue_length <= unfinished - gate.in_flight
        for _ in range(200):
            await clock.advance(2)
            for end in inside:
                if not end.done():
                    end.set_result(None)
            if all(task.done() for task in tasks):
                break
        await asyncio.gather(*tasks, return_exceptions=True)
        await clock.advance(2)
        assert all(task.done() for task in tasks)
        assert not any(over)
        assert (gate.in_flight, gate.queue_length) == (0, 0)

    asyncio.run(run_calls())


async def test_a_call_that_raises_frees_its_slot(clock):
    """This holds also for exceptions that are no ModelError."""
    gate = limiter_on(clock, initial=1)

    async def call(request):
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await limit_endpoint(call, gate)(ASK)
    assert (gate.in_flight, gate.limit) == (0, 1)


# ---- pauses


async def test_a_pause_holds_for_all_calls_and_ends_gradually(clock):
    """After Retry-After 5 no call starts for 5 s, then half the limit within a second, evenly."""
    gate = limiter_on(clock)
    with pytest.raises(RateLimitError):
        await limit_endpoint(scripted_call(rate_limited(retry_after=5)), gate)(ASK)
    call = scripted_call(OK, clock=clock)
    tasks = start_calls(*(limit_endpoint(call, gate)(ASK) for _ in range(8)))
    await clock.advance(4.99)
    assert (call.at, gate.queue_length) == ([], 8)
    assert re.fullmatch(rf"paused until {MOMENT} \(for 5 s\)", gate.state)
    await clock.advance(2)
    assert [round(at - 1005, 3) for at in call.at] == [n / 8 for n in range(8)]
    assert (gate.state, gate.queue_length, all(t.done() for t in tasks)) == ("", 0, True)


async def test_the_message_of_a_long_pause_has_its_date_and_length(clock):
    """The time of day alone would not say which day it is."""
    gate = limiter_on(clock)
    tasks = start_calls(
        limit_endpoint(scripted_call(rate_limited(retry_after=11_520), OK), gate)(ASK)
    )
    await clock.settle()
    assert re.fullmatch(
        r"paused until \d{4}-\d\d-\d\d \d\d:\d\d UTC \(for 3 h 12 min\)", gate.state
    )
    await cancel_all(tasks)


async def test_a_retry_and_the_limiter_wait_the_same_time_once(clock):
    """Both wait for the same five seconds."""
    call = scripted_call(rate_limited(retry_after=5), OK, clock=clock)
    task = asyncio.ensure_future(
        retry(limit_endpoint(call, limiter_on(clock)), sleep=clock.sleep, jitter=lambda: 0.5)(ASK)
    )
    await clock.advance(20)
    assert task.result().text == "ok"
    assert [at - 1000 for at in call.at] == [0, 5.25]


LIMIT_REACHED = Reply("ok", rate_limit_status=RateLimitStatus(requests_left=0, requests_reset=20.0))


@pytest.mark.parametrize(
    ("outcomes", "times"),
    [
        ([rate_limited(retry_after=15)] * 4, 1),  # all at once
        ([LIMIT_REACHED] * 4, 1),
        ([rate_limited(retry_after=0.5)] * 4, 0),
        # it became much longer
        ([rate_limited(retry_after=3), rate_limited(retry_after=15), OK, OK], 2),
        # and once more, later
        ([*[rate_limited(retry_after=15)] * 4, rate_limited(retry_after=15)], 2),
    ],
)
async def test_a_pause_is_reported_once(clock, outcomes, times):
    """Not for each call, if it is longer than a second."""
    said = []
    gate = limiter_on(clock, notify=said.append)
    call = scripted_call(*outcomes, OK, clock=clock)
    start_calls(
        *(
            retry(limit_endpoint(call, gate), sleep=clock.sleep, jitter=lambda: 0.5)(ASK)
            for _ in range(4)
        )
    )
    await clock.advance(100)
    assert len(said) == times
    assert all(
        re.match(rf"here: paused until {MOMENT} \(for \d+ s\), as it asked: ", each)
        for each in said
    )


async def test_a_very_long_retry_after_pauses_the_limiter_and_fails_no_call(clock):
    """An hour's pause is reported once, takes no attempt of the retry, and its calls are
    counted.
    """
    said = []
    gate = limiter_on(clock, notify=said.append)
    call = scripted_call(*[rate_limited(retry_after=3600) for _ in range(4)], OK, clock=clock)
    tasks = start_calls(*(retry(limit_endpoint(call, gate), attempts=1)(ASK) for _ in range(4)))
    await clock.advance(3599)
    assert (len(call.at), len(said), gate.queue_length) == (4, 1, 4)
    assert re.fullmatch(rf"here: paused until {MOMENT} \(for 1 h\), as it asked: .+", said[0])
    assert re.fullmatch(rf"paused until {MOMENT} \(for 1 h\)", gate.state)
    await clock.advance(3)
    replies = [task.result() for task in tasks]
    assert [(r.usage.calls, r.usage.retried_calls) for r in replies] == [(2, 1)] * 4
    assert sorted(at - 1000 for at in call.at)[4:] == [3600, 3600.125, 3600.25, 3600.375]


async def test_calls_repeated_by_the_limiter_are_reserved(clock):
    """A budget of calls counts each of them, and their usage is reported once."""
    call = scripted_call(*[rate_limited(retry_after=3600) for _ in range(5)], clock=clock)
    task = asyncio.ensure_future(
        meter(limit_endpoint(call, limiter_on(clock)), BudgetTracker(Budget(calls=3)))(ASK)
    )
    await clock.advance(5 * 3700)
    assert len(call.at) == 3
    assert isinstance(task.exception(), BudgetExhaustedError)
    assert task.exception().usage.calls == 3


async def test_calls_repeated_by_the_limiter_are_counted_once(clock):
    """One refusal and an answer are two calls, in the reply and in the budget."""
    call, tracker = (
        scripted_call(rate_limited(retry_after=3600), OK, clock=clock),
        BudgetTracker(Budget(calls=3)),
    )
    task = asyncio.ensure_future(meter(limit_endpoint(call, limiter_on(clock)), tracker)(ASK))
    await clock.advance(3700)
    assert (
        task.result().usage.calls,
        task.result().usage.retried_calls,
        tracker.spent["calls"],
    ) == (2, 1, 2)


async def test_a_nested_call_reserves_nothing_of_the_outer_budget(clock):
    """A model that calls another, which its own limiter repeats, is not repeated itself."""
    inner = scripted_call(rate_limited(retry_after=3600), OK, clock=clock)
    asks_another = limit_endpoint(inner, limiter_on(clock))
    outer, tracker = scripted_call(OK, clock=clock), BudgetTracker(Budget(calls=3))

    async def model(request):
        await asks_another(JUDGE)
        return await outer(request)

    task = asyncio.ensure_future(meter(limit_endpoint(model, limiter_on(clock)), tracker)(ASK))
    await clock.advance(3700)
    assert (task.result().text, len(inner.at), len(outer.at), tracker.spent["calls"]) == (
        "ok",
        2,
        1,
        1,
    )


async def test_no_retry_after_pauses_for_more_than_a_day(clock):
    """1e308 seconds become a day."""
    call = scripted_call(rate_limited(retry_after=1e308), OK, clock=clock)
    task = asyncio.ensure_future(limit_endpoint(call, limiter_on(clock))(ASK))
    await clock.advance(86401)
    assert task.result().text == "ok"


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [
        (RateLimitStatus(0, 100, 2.0, 60.0), 2.0),
        (RateLimitStatus(5, 0, 2.0, 7.0), 7.0),
        (RateLimitStatus(0, 0, 2.0, 7.0), 7.0),
        (RateLimitStatus(0, None, 86400.0, None), 60.0),
        (RateLimitStatus(1, 1, 60.0, 60.0), 0.0),
        (RateLimitStatus(0, None, None, None), 0.0),
    ],
)
async def test_all_calls_wait_when_the_headers_say_that_nothing_is_left(clock, pace, seconds):
    """They wait until the reset, at most a minute, and the limit does not change."""
    gate = limiter_on(clock)
    call = scripted_call(Reply("ok", ONE, rate_limit_status=pace), OK, clock=clock)
    passed = limit_endpoint(call, gate)
    await passed(ASK)
    task = asyncio.ensure_future(passed(ASK))
    await clock.advance(200)
    assert task.done()
    assert (call.at[1] - call.at[0], gate.limit) == (seconds, 16)


# ---- limits per minute


async def test_requests_a_minute_are_spread_evenly(clock):
    """At 120 a minute one second's worth starts at once, then one each half second."""
    gate = limiter_on(clock, rpm=120)
    call = scripted_call(OK, clock=clock)
    tasks = start_calls(*(limit_endpoint(call, gate)(ASK) for _ in range(12)))
    await clock.advance(60)
    assert [round(at - 1000, 3) for at in call.at] == [0, 0, *(n / 2 for n in range(1, 11))]
    assert all(task.done() for task in tasks)


async def test_tokens_a_minute_are_estimated_and_then_corrected(clock):
    """A call estimated at 151 tokens that took 110 lets the next start that much earlier."""
    gate = limiter_on(clock, tpm=600)
    call = scripted_call(OK, clock=clock)
    tasks = start_calls(*(limit_endpoint(call, gate)(ASK) for _ in range(4)))
    await clock.advance(60)
    assert [round(at - 1000, 3) for at in call.at] == [0, 11, 22, 33]
    assert all(task.done() for task in tasks)


@given(needs=st.lists(st.integers(1, 500), min_size=1, max_size=50), tpm=st.integers(60, 6000))
def test_no_minute_exceeds_its_limit(needs, tpm):
    """In any 60 s no more starts than the limit, one second's worth, and one call."""
    clock = Clock()
    rates, taken = TokenBucket(tpm, clock), []
    for need in needs:
        clock.now += rates.seconds_until(need) * (1 + 1e-9)
        rates.consume(need)
        taken.append((clock.now, need))
    for begin, _ in taken:
        within = [need for at, need in taken if begin <= at < begin + 60]
        assert sum(within) <= tpm + max(tpm / 60, 1) + max(needs) + 1e-3


# ---- outages


def start_outage(gate, call):
    """Start twenty calls to an endpoint that is down."""
    return start_calls(*(limit_endpoint(call, gate)(ASK) for _ in range(20)))


async def test_an_endpoint_that_is_down_is_probed_and_the_calls_wait(clock):
    """Seven calls fail and the eighth opens the circuit: the others wait, and one probe runs after
    1, 2, 4 ... 30 s.
    """
    said, dead = [], True

    async def call(request):
        asked.append(clock() - 1000)
        await asyncio.sleep(0)
        if dead:
            raise unreachable()
        return OK

    asked = []
    gate = limiter_on(clock, initial=20, notify=said.append)
    tasks = start_outage(gate, call)
    await clock.advance(0)
    assert sum(task.done() for task in tasks) == 7
    assert (said, gate.queue_length) == ([], 13)
    assert gate.state.startswith("down since ")
    assert gate.free_slots <= 0
    await clock.advance(100)
    assert asked[20:] == [1, 2, 4, 8, 16, 32, 62, 92]
    assert len(said) == 1
    assert re.fullmatch(
        rf"here: down since {MOMENT}: ModelUnavailableError; probing it until it answers", said[0]
    )
    dead = False
    await clock.advance(22)
    assert (said[1:], gate.state) == (["here: back after 2 min 2 s"], "")
    await clock.advance(1)
    assert [type(task.exception()).__name__ for task in tasks] == ["ModelUnavailableError"] * 7 + [
        "NoneType"
    ] * 13
    assert len(set(asked[29:])) == 12, "and not in lockstep"


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (unreachable(), True),
        (unreachable(status=500), True),
        (unreachable(status=502), True),
        (unreachable(status=504), True),
        (ModelTimeoutError("late", usage=FREE), True),
        (ModelUnavailableError("bad gateway of a proxy", status=502, usage=FREE), True),
        (unreachable(status=409), False),
        (rate_limited(), False),
        (ModelError("no", status=400, usage=FREE), False),
        (BadResponseError("prose", retryable=True, usage=FREE), False),
        (malformed_response("a web page"), True),
        (malformed_response("a bad request with the status 200", retryable=False), False),
    ],
    ids=str,
)
async def test_connection_errors_timeouts_5xx_and_no_answers_mean_an_outage(clock, error, opens):
    """Other answers of an endpoint do not."""
    gate = limiter_on(clock)
    tasks = start_outage(gate, scripted_call(error))
    await clock.settle()
    assert bool(gate.state) == opens
    await cancel_all(tasks)


async def test_a_few_resets_among_successes_are_no_outage(clock):
    """Seven of eight calls fail for ever, but never eight in a row."""
    gate = limiter_on(clock, initial=1)
    call = limit_endpoint(scripted_call(*([unreachable()] * 7 + [OK]) * 50), gate)
    answered = 0
    for _ in range(399):
        with suppress(ModelUnavailableError):
            answered += await call(ASK) is OK
        assert gate.state == ""
    assert answered == 49


@pytest.mark.parametrize("error", [None, ModelError("no such field", status=422)])
async def test_answers_of_calls_in_flight_end_an_outage_before_it_is_reported(clock, error):
    """A burst of 503 beside calls that are answered, or refused, is no outage."""
    said = []
    gate = limiter_on(clock, initial=20, notify=said.append)

    async def call(request):
        await asyncio.sleep(0)
        if request.sample_index:
            raise unreachable(status=503)
        await clock.sleep(0.5)
        if error:
            raise error
        return OK

    tasks = start_calls(
        *(limit_endpoint(call, gate)(Request(ASK.messages, sample_index=n // 4)) for n in range(20))
    )
    await clock.advance(0.1)
    assert gate.state.startswith("down since")
    await clock.advance(0.5)
    assert (said, gate.state) == ([], "")
    await cancel_all(tasks)


async def test_an_outage_beyond_the_limit_halts_the_run(clock):
    """After `outage` seconds `halt` is called once; no call fails, and none starts."""
    halted = []
    gate = limiter_on(clock, give_up_after=60, on_fatal=halted.append)
    call = scripted_call(unreachable(), clock=clock)
    tasks = start_outage(gate, call)
    await clock.advance(1000)
    assert [str(error) for error in halted] == ["cannot be reached"]
    assert sum(task.done() for task in tasks) == 7
    assert gate.state == "stopped: ModelUnavailableError"
    assert gate.free_slots <= 0
    assert max(call.at) < 1093
    await cancel_all(tasks)
    assert (gate.in_flight, gate.queue_length) == (0, 0)


async def test_an_outage_without_halt_is_raised_in_the_end(clock):
    """Each probe after `outage` seconds fails its call."""
    gate = limiter_on(clock, give_up_after=60)
    tasks = start_outage(gate, scripted_call(unreachable()))
    await clock.advance(1000)
    assert all(isinstance(task.exception(), ModelUnavailableError) for task in tasks)


async def test_a_hanging_probe_does_not_prevent_the_next(clock):
    """The next probe starts while the first still waits for an answer."""
    gate = limiter_on(clock, initial=20)

    async def call(request):
        asked.append(clock())
        n = len(asked)
        await clock.sleep(600 if n == 21 else 0)
        if n <= 20:
            raise unreachable()
        return OK

    asked = []
    tasks = start_outage(gate, call)
    await clock.advance(4)
    assert gate.state == ""
    assert sum(task.done() for task in tasks) == 19
    await cancel_all(tasks)


async def test_an_outage_without_waiting_calls_lets_the_next_call_probe(clock):
    """All waiting calls were cancelled."""
    gate = limiter_on(clock)
    await cancel_all(start_outage(gate, scripted_call(unreachable())))
    with suppress(ModelUnavailableError):
        for _ in range(8):
            gate.record_failure(await gate.acquire(), unreachable())
            gate.release()
    assert gate.free_slots <= 0
    await clock.advance(1)
    assert gate.free_slots == 1
    await limit_endpoint(scripted_call(OK), gate)(ASK)
    await clock.advance(1)
    assert (gate.free_slots, gate.state) == (gate.limit, "")


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        (
            "status 404: No endpoints found that can handle the requested parameters.",
            replace(JUDGE, format="json_schema"),
        ),
        ("status 404: No endpoints found that support image input", PICTURE),
        ("status 500: System role not supported", Request(({"role": "system", "content": "s"},))),
    ],
)
async def test_a_refused_parameter_is_no_outage_and_ends_no_run(clock, words, request_):
    """The endpoint is up and takes other requests, however often it refuses and with whatever
    status.
    """
    halted = []
    gate = limiter_on(clock, on_fatal=halted.append)
    call = limit_endpoint(
        scripted_call(ModelUnavailableError(words, status=int(words[7:10]), usage=FREE)), gate
    )
    for _ in range(20):
        with pytest.raises(ModelUnavailableError):
            await call(request_)
    assert (halted, gate.state) == ([], "")


async def test_an_unsupported_format_is_no_outage(clock):
    """An endpoint with a bare 500 for formats is asked in plain text, however many calls run at
    once; a later 500 is a fault.
    """
    gate = limiter_on(clock, initial=20)
    dead = False

    async def call(request):
        if dead or request.format != "text":
            raise unreachable(status=500)
        return Reply("{}", ONE)

    ask = retry(
        adapt(limit_endpoint(call, gate), EndpointCapabilities().for_model("m")),
        sleep=lambda seconds: asyncio.sleep(0),
    )
    requests = [replace(JUDGE, seed=n) for n in range(20)]
    assert {r.text for r in await asyncio.gather(*map(ask, requests))} == {"{}"}
    assert gate.state == ""
    dead = True
    tasks = start_calls(*map(ask, requests))
    await clock.settle()
    assert gate.state.startswith("down since")
    await cancel_all(tasks)


# ---- permanent errors

FATAL = {
    "key": AuthenticationError("status 401: bad key", status=401),
    "forbidden": AuthenticationError("status 403", status=403),
    "quota": AuthenticationError("status 429: insufficient_quota", status=429),
    "model": ModelUnavailableError("status 404: no such model", status=404),
    "TLS": ModelUnavailableError("no secure (TLS) connection"),
    "redirect": ModelUnavailableError("status 307 sends us elsewhere", status=307),
}


@pytest.mark.parametrize("name", FATAL)
async def test_an_error_of_all_calls_halts_the_run_at_the_first(clock, name):
    """Of a hundred calls one is made, and a probe where its content may be the reason; `halt` is
    called once, and no call fails.
    """
    halted = []
    gate = limiter_on(clock, initial=1, on_fatal=halted.append)
    call = scripted_call(FATAL[name], clock=clock)
    tasks = start_calls(*(retry(limit_endpoint(call, gate))(ASK) for _ in range(100)))
    await clock.advance(1000)
    assert (halted, len(call.at)) == ([FATAL[name]], 2 if name in {"forbidden", "model"} else 1)
    assert not any(task.done() for task in tasks)
    assert gate.state.startswith("stopped: ")
    await cancel_all(tasks)
    assert (gate.in_flight, gate.queue_length) == (0, 0)


async def test_calls_in_flight_with_a_wrong_key_halt_the_run_once(clock):
    """Sixteen calls get the same 401: one message, no failure."""
    halted = []
    gate = limiter_on(clock, on_fatal=halted.append)
    tasks = start_calls(
        *(limit_endpoint(scripted_call(FATAL["key"]), gate)(ASK) for _ in range(16))
    )
    await clock.advance(10)
    assert len(halted) == 1
    assert not any(task.done() for task in tasks)
    await cancel_all(tasks)


@pytest.mark.parametrize("name", FATAL)
async def test_without_halt_an_error_of_all_calls_is_raised(clock, name):
    """The error is the one without a limiter."""
    with pytest.raises(ModelError) as caught:
        await limit_endpoint(scripted_call(FATAL[name]), limiter_on(clock))(ASK)
    assert caught.value is FATAL[name]


@pytest.mark.parametrize(
    ("answer_to_probe", "use_probes", "is_halted"),
    [
        (None, True, True),  # the same error
        (OK, True, False),
        (RateLimitError("status 429", status=429), True, False),
        (ModelTimeoutError("late"), True, False),
        (None, False, False),
    ],
)
async def test_an_error_only_in_words_halts_the_run_if_a_probe_confirms_it(
    clock, answer_to_probe, use_probes, is_halted
):
    """The words may be those of the request: otherwise its call fails alone, also where no probe
    can be sent.
    """
    halted, sent = [], []
    refusal = AuthenticationError("status 400: input 'invalid api key'", status=400)
    refusal.inferred = True

    async def call(request):
        sent.append(request)
        if len(sent) > 1 and answer_to_probe is OK:
            return OK
        raise (answer_to_probe or refusal) if len(sent) > 1 else refusal

    gate = limiter_on(clock, on_fatal=halted.append, use_probes=use_probes)
    (task,) = start_calls(limit_endpoint(call, gate)(ASK))
    await clock.settle()
    assert (halted, task.done(), len(sent)) == (
        [refusal] if is_halted else [],
        not is_halted,
        2 if use_probes else 1,
    )
    await cancel_all([task])


async def test_a_404_for_an_image_is_no_unknown_model(clock):
    """The middleware that leaves out images handles it."""
    halted = []
    refusal = ModelUnavailableError("status 404: no endpoint supports image input", status=404)
    with pytest.raises(ModelUnavailableError):
        await limit_endpoint(scripted_call(refusal), limiter_on(clock, on_fatal=halted.append))(
            PICTURE
        )
    assert halted == []


async def test_calls_in_flight_may_finish_after_a_halt(clock):
    """An answer that arrives afterwards is returned."""
    gate = limiter_on(clock, on_fatal=lambda error: None)

    async def slow(request):
        await clock.sleep(5)
        return OK

    good, bad = start_calls(
        limit_endpoint(slow, gate)(ASK), limit_endpoint(scripted_call(FATAL["key"]), gate)(ASK)
    )
    await clock.advance(6)
    assert good.result() is OK
    await cancel_all([bad])
