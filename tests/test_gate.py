"""The gate to an endpoint: how many are in flight, who waits, and what becomes of an endpoint in trouble. On a clock of our own."""

import asyncio
import heapq
import re
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.middleware import Budget, EndpointCapabilities, EndpointLimiter, BudgetTracker, limit_endpoint, meter
from redraft.middleware.adapt import adapt
from redraft.middleware.retry import retry
from redraft.middleware.token_bucket import RateLimits
from redraft.middleware.aimd import HOLD_WINDOWS, AIMDWindow
from redraft.protocols import RateLimitStatus, Reply, Request
from redraft.usage import Usage
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

ASK = Request(({"role": "user", "content": "x" * 300},), max_tokens=50)
JUDGE = Request(({"role": "user", "content": "x"},), schema={"type": "object"})
PICTURE = Request(({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},))
ONE = Usage(1, 100, 10, cost=None)
OK = Reply("ok", ONE)
FREE = Usage(calls=1)
MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


class Clock:
    """Time that passes only when told to, one sleeper after another."""

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


def gate_on(clock, **more):
    return EndpointLimiter("here", clock=clock, sleep=clock.sleep, **more)


def down(**more):
    return ModelUnavailableError("cannot be reached", **{"retryable": True, "usage": FREE, **more})


def busy(**more):
    return RateLimitError("status 429", status=429, usage=FREE, **more)


def answering(*answers, clock=None):
    """A call that answers, or raises, in order, the last one for ever; `.at` says when it was asked."""
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


def begun(*calls):
    return [asyncio.ensure_future(call) for call in calls]


async def ended(tasks):
    """Cancel what still runs, and look away from what failed."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the limit


def full_window(window, windows=1):
    """So many windows of successes in which all places were taken."""
    for _ in range(windows):
        window.record_start(window.limit)
        for _ in range(window.limit):
            window.record_success(window.epoch)


def test_the_limit_doubles_until_the_first_trouble_and_then_nears_it_carefully():
    """From 16 up to trouble at 128, half, half of the way back each time, a rest beneath it, then one, two, four more."""
    window, seen = AIMDWindow(16, 1, 512), []
    for _ in range(3):
        full_window(window)
        seen.append(window.limit)
    assert seen == [32, 64, 128]
    window.record_congestion(window.epoch)
    seen = [window.limit]
    for _ in range(6):
        full_window(window)
        seen.append(window.limit)
    assert seen == [64, 96, 112, 120, 124, 126, 127]
    full_window(window, HOLD_WINDOWS)
    assert window.limit == 127
    seen = []
    for _ in range(5):
        full_window(window)
        seen.append(window.limit)
    assert seen == [128, 129, 130, 132, 136]


def test_a_limit_that_is_not_used_is_not_raised():
    """Ten thousand successes, one at a time, say nothing about seventeen at a time."""
    window = AIMDWindow(16, 1, 512)
    for _ in range(10_000):
        window.record_start(1)
        window.record_success(window.epoch)
    assert window.limit == 16


def test_one_storm_of_refusals_halves_once():
    """All that were out when the limit fell fall with it: they neither halve it again nor raise it."""
    window = AIMDWindow(64, 1, 512)
    era = window.epoch
    for _ in range(64):
        window.record_congestion(era)
    assert window.limit == 32
    window.record_start(64)
    for _ in range(64):
        window.record_success(era)
    assert window.limit == 32
    window.record_congestion(window.epoch)
    assert window.limit == 16


@pytest.mark.parametrize(
    ("start", "floor", "ceiling", "after_trouble", "after_luck"),
    [(16, 1, 20, 8, 20), (4, 3, 4, 3, 4), (1, 1, 1, 1, 1), (99, 2, 8, 4, 8)],
)
def test_the_limit_stays_between_floor_and_ceiling(start, floor, ceiling, after_trouble, after_luck):
    """Whatever happens, and wherever it is told to start."""
    lucky, poor = AIMDWindow(start, floor, ceiling), AIMDWindow(start, floor, ceiling)
    full_window(lucky, 100)
    poor.record_congestion(poor.epoch)
    assert (poor.limit, lucky.limit) == (after_trouble, after_luck)
    for _ in range(20):
        poor.record_congestion(poor.epoch)
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
def test_limits_that_are_none_are_refused(given, named):
    """The complaint names the argument and the value."""
    with pytest.raises(ConfigError, match=named):
        EndpointLimiter("here", **given)


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (busy(), 8),
        (ModelTimeoutError("late", usage=FREE), 8),
        (down(status=503), 8),
        (down(status=529), 8),
        (ModelError("busy", status=429, usage=FREE), 8),
        (down(status=500), 16),
        (down(), 16),
        (BadResponseError("prose", usage=FREE), 16),
        (ModelError("no", status=422, usage=FREE), 16),
    ],
    ids=str,
)
async def test_which_errors_say_that_it_was_too_much(clock, error, limit):
    """Turned away or too late: half as many. Broken, refused or unreachable: the number was not to blame."""
    gate = gate_on(clock)
    with pytest.raises(type(error)):
        await limit_endpoint(answering(error, OK), gate)(ASK)
    assert (gate.limit, gate.in_flight) == (limit, 0)


class Endpoint:
    """Takes `most` calls at a time for `latency` seconds each and turns the rest away."""

    def __init__(self, clock, most, latency=0.05):
        self.clock, self.most, self.latency = clock, most, latency
        self.inside = self.served = self.refused = 0

    async def __call__(self, request):
        if self.inside >= self.most:
            self.refused += 1
            raise busy()
        self.inside += 1
        await self.clock.sleep(self.latency)
        self.inside -= 1
        self.served += 1
        return OK


@pytest.mark.parametrize("most", [3, 100])
async def test_it_finds_what_an_endpoint_takes(clock, most):
    """With more than enough to do, over 90 % of what the endpoint can serve is served, with few refusals."""
    endpoint = Endpoint(clock, most)
    gate = gate_on(clock)
    call = retry(limit_endpoint(endpoint, gate), attempts=1000, sleep=clock.sleep)

    async def worker():
        while True:
            await call(ASK)

    tasks = begun(*(worker() for _ in range(3 * most)))
    await clock.advance(2)
    endpoint.served = endpoint.refused = 0
    await clock.advance(6)
    await ended(tasks)
    assert endpoint.served >= 0.9 * most * 6 / endpoint.latency
    assert endpoint.refused <= 0.05 * endpoint.served


# ---- the queue


async def test_first_come_first_served(clock):
    """Places go out in the order of asking, also through a gate of one."""
    order = []

    async def call(request):
        order.append(request.sample_index)
        await asyncio.sleep(0)
        return OK

    passed = limit_endpoint(call, gate_on(clock, initial=1, maximum=1))
    await asyncio.gather(*(passed(Request(ASK.messages, sample_index=n)) for n in range(50)))
    assert order == list(range(50))


async def test_room_is_what_is_free_with_nobody_waiting(clock):
    """Free places, then none, then whoever waits counts against it; `room_made` tells when that changes."""
    gate = gate_on(clock, initial=2, maximum=2)
    rooms = [gate.free_slots]
    places = []
    for _ in range(2):
        places.append(await gate.acquire())
        rooms.append(gate.free_slots)
    waiting = asyncio.ensure_future(gate.acquire())
    await asyncio.sleep(0)
    assert (rooms, gate.free_slots, gate.queue_length) == ([2, 1, 0], -1, 1)
    told = asyncio.ensure_future(gate.wait_for_slot())
    gate.record_success(places.pop(), OK)
    await clock.settle()
    assert (waiting.done(), told.done(), gate.free_slots) == (True, False, 0)
    gate.record_success(places.pop(), OK)
    await clock.settle()
    assert (told.done(), gate.free_slots) == (True, 1)
    await asyncio.wait_for(gate.wait_for_slot(), 1)


async def test_room_comes_back_after_a_pause_with_nobody_inside(clock):
    """Whoever waits for room alone is woken when the pause is over."""
    gate = gate_on(clock)
    with pytest.raises(RateLimitError):
        await limit_endpoint(answering(busy(retry_after=5)), gate)(ASK)
    assert gate.free_slots == 0
    told = asyncio.ensure_future(gate.wait_for_slot())
    await clock.advance(4.9)
    assert not told.done()
    await clock.advance(0.2)
    assert told.done()


MOVES = st.lists(st.tuples(st.sampled_from(["ask", "cancel", "answer", "refuse", "late", "wait"]), st.integers(0, 30)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(moves=MOVES, start=st.integers(1, 4), rpm=st.sampled_from([None, 60, 6000]))
def test_no_place_is_ever_lost_or_given_twice(moves, start, rpm):
    """Whatever is answered, refused and cancelled, and when: never more inside than the limit allowed, in the end none."""

    async def lived():
        clock = Clock()
        gate = gate_on(clock, initial=start, maximum=6, rpm=rpm)
        inside, tasks, over = [], [], []

        async def call(request):
            over.append(gate.in_flight > gate.limit)
            end = asyncio.get_running_loop().create_future()
            inside.append(end)
            error = await end
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
                errors = {"answer": None, "refuse": busy(retry_after=n / 20), "late": ModelTimeoutError("late", usage=FREE)}
                open_ends[n % len(open_ends)].set_result(errors.get(move))
            if n % 3 == 0:
                await asyncio.sleep(0)
            assert gate.in_flight >= 0
            assert gate.queue_length >= 0
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

    asyncio.run(lived())


async def test_a_call_that_breaks_gives_its_place_back(clock):
    """Also for an error that is none of a model's."""
    gate = gate_on(clock, initial=1)

    async def call(request):
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await limit_endpoint(call, gate)(ASK)
    assert (gate.in_flight, gate.limit) == (0, 1)


# ---- pauses


async def test_a_pause_holds_for_all_and_ends_one_by_one(clock):
    """After Retry-After 5 nobody is asked for 5 s, then half the limit within a second, evenly."""
    gate = gate_on(clock)
    with pytest.raises(RateLimitError):
        await limit_endpoint(answering(busy(retry_after=5)), gate)(ASK)
    call = answering(OK, clock=clock)
    tasks = begun(*(limit_endpoint(call, gate)(ASK) for _ in range(8)))
    await clock.advance(4.99)
    assert (call.at, gate.queue_length) == ([], 8)
    assert re.fullmatch(rf"paused until {MOMENT} \(for 5 s\)", gate.state)
    await clock.advance(2)
    assert [round(at - 1005, 3) for at in call.at] == [n / 8 for n in range(8)]
    assert (gate.state, gate.queue_length, all(t.done() for t in tasks)) == ("", 0, True)


async def test_a_long_pause_says_its_date_and_how_long_it_is(clock):
    """The time of day alone would not say whether it is today's."""
    gate = gate_on(clock)
    tasks = begun(limit_endpoint(answering(busy(retry_after=11_520), OK), gate)(ASK))
    await clock.settle()
    assert re.fullmatch(r"paused until \d{4}-\d\d-\d\d \d\d:\d\d UTC \(for 3 h 12 min\)", gate.state)
    await ended(tasks)


async def test_a_retry_outside_waits_once(clock):
    """The gate's pause and the retry's wait are the same five seconds."""
    call = answering(busy(retry_after=5), OK, clock=clock)
    task = asyncio.ensure_future(retry(limit_endpoint(call, gate_on(clock)), sleep=clock.sleep, jitter=lambda: 0.5)(ASK))
    await clock.advance(20)
    assert task.result().text == "ok"
    assert [at - 1000 for at in call.at] == [0, 5.25]


async def test_a_very_long_retry_after_parks_the_gate_and_fails_nobody(clock):
    """An hour: said once for all, asked again after it, no attempt of the retry's; the calls made are counted."""
    said = []
    gate = gate_on(clock, notify=said.append)
    call = answering(*[busy(retry_after=3600) for _ in range(4)], OK, clock=clock)
    tasks = begun(*(retry(limit_endpoint(call, gate), attempts=1)(ASK) for _ in range(4)))
    await clock.advance(3599)
    assert (len(call.at), len(said), gate.queue_length) == (4, 1, 4)
    assert re.fullmatch(rf"here: paused until {MOMENT} \(for 1 h\), as it asked: .+", said[0])
    assert re.fullmatch(rf"paused until {MOMENT} \(for 1 h\)", gate.state)
    await clock.advance(3)
    replies = [task.result() for task in tasks]
    assert [(r.usage.calls, r.usage.retried_calls) for r in replies] == [(2, 1)] * 4
    assert sorted(at - 1000 for at in call.at)[4:] == [3600, 3600.125, 3600.25, 3600.375]


async def test_what_the_gate_asks_again_is_reserved_too(clock):
    """A budget of calls counts each; what they consumed is told once."""
    call = answering(*[busy(retry_after=3600) for _ in range(5)], clock=clock)
    task = asyncio.ensure_future(meter(limit_endpoint(call, gate_on(clock)), BudgetTracker(Budget(calls=3)))(ASK))
    await clock.advance(5 * 3700)
    assert len(call.at) == 3
    assert isinstance(task.exception(), BudgetExhaustedError)
    assert task.exception().usage.calls == 3


async def test_what_the_gate_asked_again_is_counted_once(clock):
    """One refusal and an answer are two calls, by the reply and by the budget."""
    call, purse = answering(busy(retry_after=3600), OK, clock=clock), BudgetTracker(Budget(calls=3))
    task = asyncio.ensure_future(meter(limit_endpoint(call, gate_on(clock)), purse)(ASK))
    await clock.advance(3700)
    assert (task.result().usage.calls, task.result().usage.retried_calls, purse.spent["calls"]) == (2, 1, 2)


async def test_a_call_within_a_call_reserves_nothing_of_the_outer_budget(clock):
    """A model that asks another, which its own gate asks again, is not asked again itself."""
    inner = answering(busy(retry_after=3600), OK, clock=clock)
    asks_another = limit_endpoint(inner, gate_on(clock))
    outer, purse = answering(OK, clock=clock), BudgetTracker(Budget(calls=3))

    async def model(request):
        await asks_another(JUDGE)
        return await outer(request)

    task = asyncio.ensure_future(meter(limit_endpoint(model, gate_on(clock)), purse)(ASK))
    await clock.advance(3700)
    assert (task.result().text, len(inner.at), len(outer.at), purse.spent["calls"]) == ("ok", 2, 1, 1)


async def test_not_even_an_absurd_retry_after_parks_for_more_than_a_day(clock):
    """1e308 seconds are a day."""
    call = answering(busy(retry_after=1e308), OK, clock=clock)
    task = asyncio.ensure_future(limit_endpoint(call, gate_on(clock))(ASK))
    await clock.advance(86401)
    assert task.result().text == "ok"


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [
        (RateLimitStatus(0, 100, 2.0, 60.0), 2.0),
        (RateLimitStatus(5, 0, 2.0, 7.0), 7.0),
        (RateLimitStatus(0, 0, 2.0, 7.0), 7.0),
        (RateLimitStatus(0, None, 86400.0, None), 120.0),
        (RateLimitStatus(1, 1, 60.0, 60.0), 0.0),
        (RateLimitStatus(0, None, None, None), 0.0),
    ],
)
async def test_when_the_headers_say_that_nothing_is_left_all_wait(clock, pace, seconds):
    """Until the reset, at most two minutes; and the limit is not blamed."""
    gate = gate_on(clock)
    call = answering(Reply("ok", ONE, rate_limit_status=pace), OK, clock=clock)
    passed = limit_endpoint(call, gate)
    await passed(ASK)
    task = asyncio.ensure_future(passed(ASK))
    await clock.advance(200)
    assert task.done()
    assert (call.at[1] - call.at[0], gate.limit) == (seconds, 16)


# ---- limits per minute


async def test_requests_a_minute_are_spread_evenly(clock):
    """120 a minute: one second's worth at once, then one each half second."""
    gate = gate_on(clock, rpm=120)
    call = answering(OK, clock=clock)
    tasks = begun(*(limit_endpoint(call, gate)(ASK) for _ in range(12)))
    await clock.advance(60)
    assert [round(at - 1000, 3) for at in call.at] == [0, 0, *(n / 2 for n in range(1, 11))]
    assert all(task.done() for task in tasks)


async def test_tokens_a_minute_are_estimated_and_then_settled(clock):
    """A call of 151 tokens by estimate that took 110 leaves room for the next that much earlier."""
    gate = gate_on(clock, tpm=600)
    call = answering(OK, clock=clock)
    tasks = begun(*(limit_endpoint(call, gate)(ASK) for _ in range(4)))
    await clock.advance(60)
    assert [round(at - 1000, 3) for at in call.at] == [0, 11, 22, 33]
    assert all(task.done() for task in tasks)


@given(needs=st.lists(st.integers(1, 500), min_size=1, max_size=50), tpm=st.integers(60, 6000))
def test_no_minute_holds_more_than_its_limit(needs, tpm):
    """Whatever is needed, in any 60 s no more goes out than the limit, one second's worth, and one call."""
    clock = Clock()
    rates, taken = RateLimits(None, tpm, clock), []
    for need in needs:
        clock.now += rates.seconds_until(need) * (1 + 1e-9)
        rates.consume(need)
        taken.append((clock.now, need))
    for begin, _ in taken:
        within = [need for at, need in taken if begin <= at < begin + 60]
        assert sum(within) <= tpm + max(tpm / 60, 1) + max(needs) + 1e-3


# ---- outages


def outage(gate, call):
    """Twenty calls at once to an endpoint that is down."""
    return begun(*(limit_endpoint(call, gate)(ASK) for _ in range(20)))


async def test_an_endpoint_that_is_down_is_probed_and_the_calls_wait(clock):
    """Seven fail, the eighth opens the circuit: the rest wait, one at a time goes to look after 1, 2, 4 ... 30 s."""
    said, dead = [], True

    async def call(request):
        asked.append(clock() - 1000)
        await asyncio.sleep(0)
        if dead:
            raise down()
        return OK

    asked = []
    gate = gate_on(clock, initial=20, notify=said.append)
    tasks = outage(gate, call)
    await clock.advance(0)
    assert sum(task.done() for task in tasks) == 7
    assert (said, gate.queue_length) == ([], 13)
    assert gate.state.startswith("down since ")
    assert gate.free_slots <= 0
    await clock.advance(100)
    assert asked[20:] == [1, 2, 4, 8, 16, 32, 62, 92]
    assert len(said) == 1
    assert re.fullmatch(rf"here: down since {MOMENT}: cannot be reached; probing", said[0])
    dead = False
    await clock.advance(22)
    assert (said[1:], gate.state) == (["here: back after 2 min 2 s"], "")
    await clock.advance(1)
    assert [type(task.exception()).__name__ for task in tasks] == ["ModelUnavailableError"] * 7 + ["NoneType"] * 13
    assert len(set(asked[29:])) == 12, "and not in lockstep"


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (down(), True),
        (down(status=500), True),
        (down(status=502), True),
        (down(status=504), True),
        (ModelTimeoutError("late", usage=FREE), True),
        (ModelUnavailableError("bad gateway of a proxy", status=502, usage=FREE), True),
        (down(status=409), False),
        (busy(), False),
        (ModelError("no", status=400, usage=FREE), False),
        (BadResponseError("prose", retryable=True, usage=FREE), False),
    ],
    ids=str,
)
async def test_which_errors_mean_that_an_endpoint_is_down(clock, error, opens):
    """No connection, no answer, 5xx; not what a living endpoint says."""
    gate = gate_on(clock)
    tasks = outage(gate, answering(error))
    await clock.settle()
    assert bool(gate.state) == opens
    await ended(tasks)


async def test_a_few_resets_among_successes_are_no_outage(clock):
    """Seven of eight calls break, for ever: never eight in a row."""
    gate = gate_on(clock, initial=1)
    call = limit_endpoint(answering(*([down()] * 7 + [OK]) * 50), gate)
    for _ in range(399):
        with suppress(ModelUnavailableError):
            await call(ASK)
        assert gate.state == ""


async def test_answers_of_calls_that_were_out_already_end_an_outage_before_anybody_is_told(clock):
    """A burst of 503 beside calls that are being answered is no reason for alarm."""
    said = []
    gate = gate_on(clock, initial=20, notify=said.append)

    async def call(request):
        await asyncio.sleep(0)
        if request.sample_index:
            raise down(status=503)
        await clock.sleep(0.5)
        return OK

    tasks = begun(*(limit_endpoint(call, gate)(Request(ASK.messages, sample_index=n // 4)) for n in range(20)))
    await clock.advance(0.1)
    assert gate.state.startswith("down since")
    await clock.advance(0.5)
    assert (said, gate.state) == ([], "")
    await ended(tasks)


async def test_an_outage_that_does_not_end_halts(clock):
    """After `outage` seconds the run is told, once; nobody fails, and nobody gets in any more."""
    halted = []
    gate = gate_on(clock, give_up_after=60, on_fatal=halted.append)
    call = answering(down(), clock=clock)
    tasks = outage(gate, call)
    await clock.advance(1000)
    assert [str(error) for error in halted] == ["cannot be reached"]
    assert sum(task.done() for task in tasks) == 7
    assert gate.state == "stopped: cannot be reached"
    assert gate.free_slots <= 0
    assert max(call.at) < 1093
    await ended(tasks)
    assert (gate.in_flight, gate.queue_length) == (0, 0)


async def test_an_outage_with_nobody_to_tell_is_raised_in_the_end(clock):
    """Without `halt` each probe after `outage` seconds fails its call."""
    gate = gate_on(clock, give_up_after=60)
    tasks = outage(gate, answering(down()))
    await clock.advance(1000)
    assert all(isinstance(task.exception(), ModelUnavailableError) for task in tasks)


async def test_a_hanging_probe_does_not_keep_others_from_looking(clock):
    """The next probe goes out while the first still waits for an answer."""
    gate = gate_on(clock, initial=20)

    async def call(request):
        asked.append(clock())
        n = len(asked)
        await clock.sleep(600 if n == 21 else 0)
        if n <= 20:
            raise down()
        return OK

    asked = []
    tasks = outage(gate, call)
    await clock.advance(4)
    assert gate.state == ""
    assert sum(task.done() for task in tasks) == 19
    await ended(tasks)


async def test_an_outage_leaves_room_for_a_probe_when_nobody_waits(clock):
    """All who waited are gone: whoever comes next may look."""
    gate = gate_on(clock)
    await ended(outage(gate, answering(down())))
    with suppress(ModelUnavailableError):
        for _ in range(8):
            gate.record_failure(await gate.acquire(), down())
    assert gate.free_slots <= 0
    await clock.advance(1)
    assert gate.free_slots == 1
    await limit_endpoint(answering(OK), gate)(ASK)
    await clock.advance(1)
    assert (gate.free_slots, gate.state) == (gate.limit, "")


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("status 404: No endpoints found that can handle the requested parameters.", replace(JUDGE, format="json_schema")),
        ("status 404: No endpoints found that support image input", PICTURE),
        ("status 500: System role not supported", Request(({"role": "system", "content": "s"},))),
    ],
)
async def test_a_part_that_an_endpoint_refuses_is_no_outage_and_ends_no_run(clock, words, request_):
    """However often it is said, and with whatever status: the endpoint is there, and takes other requests."""
    halted = []
    gate = gate_on(clock, on_fatal=halted.append)
    call = limit_endpoint(answering(ModelUnavailableError(words, status=int(words[7:10]), usage=FREE)), gate)
    for _ in range(20):
        with pytest.raises(ModelUnavailableError):
            await call(request_)
    assert (halted, gate.state) == ([], "")


async def test_a_format_that_an_endpoint_does_not_know_is_no_outage(clock):
    """An endpoint that answers formats with a bare 500 is asked in words, however many ask at once; later a 500 is a fault again."""
    gate = gate_on(clock, initial=20)
    dead = False

    async def call(request):
        if dead or request.format != "text":
            raise down(status=500)
        return Reply("{}", ONE)

    ask = retry(adapt(limit_endpoint(call, gate), EndpointCapabilities().for_model("m")), sleep=lambda seconds: asyncio.sleep(0))
    requests = [replace(JUDGE, seed=n) for n in range(20)]
    assert {r.text for r in await asyncio.gather(*map(ask, requests))} == {"{}"}
    assert gate.state == ""
    dead = True
    tasks = begun(*map(ask, requests))
    await clock.settle()
    assert gate.state.startswith("down since")
    await ended(tasks)


# ---- what never gets better

FATAL = {
    "key": AuthenticationError("status 401: bad key", status=401),
    "forbidden": AuthenticationError("status 403", status=403),
    "quota": AuthenticationError("status 429: insufficient_quota", status=429),
    "model": ModelUnavailableError("status 404: no such model", status=404),
    "TLS": ModelUnavailableError("no safe (TLS) connection"),
    "redirect": ModelUnavailableError("status 307 sends us elsewhere", status=307),
}


@pytest.mark.parametrize("name", FATAL)
async def test_what_would_meet_every_call_halts_at_the_first(clock, name):
    """One call is made of a hundred, and a probe where it may be refused for what it holds; the run is told once, and no call
    comes back with a failure.
    """
    halted = []
    gate = gate_on(clock, initial=1, on_fatal=halted.append)
    call = answering(FATAL[name], clock=clock)
    tasks = begun(*(retry(limit_endpoint(call, gate))(ASK) for _ in range(100)))
    await clock.advance(1000)
    assert (halted, len(call.at)) == ([FATAL[name]], 2 if name in {"forbidden", "model"} else 1)
    assert not any(task.done() for task in tasks)
    assert gate.state.startswith("stopped: ")
    await ended(tasks)
    assert (gate.in_flight, gate.queue_length) == (0, 0)


async def test_all_that_were_out_with_a_wrong_key_halt_once(clock):
    """Sixteen calls meet the same 401: one message, no failure."""
    halted = []
    gate = gate_on(clock, on_fatal=halted.append)
    tasks = begun(*(limit_endpoint(answering(FATAL["key"]), gate)(ASK) for _ in range(16)))
    await clock.advance(10)
    assert len(halted) == 1
    assert not any(task.done() for task in tasks)
    await ended(tasks)


@pytest.mark.parametrize("name", FATAL)
async def test_without_anybody_to_tell_such_an_error_is_raised(clock, name):
    """As without a gate."""
    with pytest.raises(ModelError) as caught:
        await limit_endpoint(answering(FATAL[name]), gate_on(clock))(ASK)
    assert caught.value is FATAL[name]


async def test_an_endpoint_that_takes_no_images_is_not_an_unknown_model(clock):
    """A 404 for a picture is for whoever leaves pictures out."""
    halted = []
    refusal = ModelUnavailableError("status 404: no endpoint supports image input", status=404)
    with pytest.raises(ModelUnavailableError):
        await limit_endpoint(answering(refusal), gate_on(clock, on_fatal=halted.append))(PICTURE)
    assert halted == []


async def test_who_is_in_when_it_halts_may_finish(clock):
    """An answer that was on its way is not thrown away."""
    gate = gate_on(clock, on_fatal=lambda error: None)

    async def slow(request):
        await clock.sleep(5)
        return OK

    good, bad = begun(limit_endpoint(slow, gate)(ASK), limit_endpoint(answering(FATAL["key"]), gate)(ASK))
    await clock.advance(6)
    assert good.result() is OK
    await ended([bad])
