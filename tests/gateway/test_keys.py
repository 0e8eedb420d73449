"""Keys and budgets: who is let in, what is reserved and charged, and that no crash bills twice or
forgets.
"""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime
from functools import partial
from hashlib import sha256

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redraft.errors import ConfigError, StoreError, StoreLockedError
from redraft.gateway.exchange import GatewayError
from redraft.gateway.key_database import KeyDatabase
from redraft.gateway.keys import DAY, FILE_NAME, NANO, KeyLimits, KeyRing, KeyStore, days_of
from redraft.usage import NO_USAGE, Usage, unknown_usage
from require import as_root

NOON = 20_000 * DAY + DAY / 2


class Clocks:
    """The time of day and the monotonic clock of a store; a test moves both."""

    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clocks()


@pytest.fixture
def ring(tmp_path, clock):
    with KeyRing(tmp_path, clock) as ring:
        yield ring


@pytest.fixture
def store(tmp_path, clock):
    with closing(KeyStore(tmp_path / FILE_NAME, clock=clock, monotonic_clock=clock)) as store:
        yield store


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def refusal(function, *args, **kwargs):
    """Return the error that a call raises."""
    with pytest.raises(GatewayError) as caught:
        function(*args, **kwargs)
    return caught.value


def caller_with(ring, store, **limits):
    """Add a key with these limits, and return its caller once the store has seen it."""
    _, secret = ring.add("ci", KeyLimits(**limits))
    store._clock.now += 1
    return store.authenticate(bearer(secret))


# ---- who is let in


def test_a_gateway_without_keys_is_open_and_stays_closed_after_the_last_is_revoked(
    ring, store, clock
):
    """Any client is anonymous until there is a key; revoking it opens nothing."""
    assert store.is_open and store.authenticate(bearer("sk-whatever")).id == ""
    key, secret = ring.add("ci")
    clock.now += 1
    assert store.authenticate(bearer(secret)).id == key.id
    ring.revoke("ci")
    clock.now += 1
    assert not store.is_open
    for headers in (bearer(secret), {}, bearer("sk-whatever")):
        assert refusal(store.authenticate, headers).status == 401


@pytest.mark.parametrize(
    ("required", "with_key", "is_open"),
    [(True, False, False), (True, True, False), (False, True, True), (None, True, False)],
)
def test_the_configuration_decides_whether_keys_are_required(
    tmp_path, ring, required, with_key, is_open
):
    """`require_keys`: always, never, or if there is a key."""
    if with_key:
        ring.add("ci")
    with closing(KeyStore(tmp_path / FILE_NAME, require_keys=required)) as store:
        assert store.is_open == is_open
        if not is_open:
            assert refusal(store.authenticate, {}).status == 401


@pytest.mark.parametrize(
    ("make_headers", "allowed"),
    [
        (lambda key: {"authorization": f"Bearer {key}"}, True),
        (lambda key: {"authorization": f"bearer  {key} "}, True),
        (lambda key: {"x-api-key": key}, True),
        (lambda key: {"x-api-key": key, "authorization": "Bearer another"}, True),
        (lambda key: {"authorization": f"Basic {key}"}, False),
        (lambda key: {"authorization": key}, False),
        (lambda key: {"authorization": f"Bearer {key}x"}, False),
        (lambda key: {"authorization": f"Bearer {key[:-1]}"}, False),
        (lambda key: {"authorization": f"Bearer {key.upper()}"}, False),
        (lambda key: {"authorization": "Bearer " + "k" * 10_000_000}, False),
        (lambda key: {"authorization": "Bearer \udcff\x00"}, False),
        (lambda key: {"authorization": "Bearer"}, False),
        (lambda key: {}, False),
    ],
)
def test_a_key_is_sent_as_clients_of_openai_or_anthropic_send_it(
    ring, store, clock, make_headers, allowed
):
    """The exact key in either header; nothing else. An error never repeats what was sent."""
    _key, secret = ring.add("ci")
    clock.now += 1
    if allowed:
        assert store.authenticate(make_headers(secret)).name == "ci"
        return
    error = refusal(store.authenticate, make_headers(secret))
    assert (error.status, error.should_retry) == (401, False)
    assert secret[3:-1].lower() not in str(error).lower()


def test_an_expired_key_is_refused_by_name(ring, store, clock):
    """Its holder learns why."""
    _, secret = ring.add("ci", expires_in_days=1)
    clock.now += DAY - 1
    assert store.authenticate(bearer(secret)).name == "ci"
    clock.now += 2
    assert "'ci' is expired" in str(refusal(store.authenticate, bearer(secret)))


@pytest.mark.slow
def test_a_revoked_key_is_refused_within_a_second_in_another_process(tmp_path, ring):
    """A running gateway needs no signal, neither for authentication nor for a reservation of a
    caller it knows.
    """
    _, secret = ring.add("ci")
    now = 0.0
    with closing(KeyStore(tmp_path / FILE_NAME, monotonic_clock=lambda: now)) as store:
        caller = store.authenticate(bearer(secret))
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        command = [
            sys.executable,
            "-m",
            "redraft",
            "keys",
            "revoke",
            "ci",
            "--folder",
            str(tmp_path),
        ]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        now = 1.0
        assert refusal(store.authenticate, bearer(secret)).status == 401
        assert refusal(store.reserve, caller, cost=0.0, calls=1).status == 401


@pytest.mark.parametrize(
    ("patterns", "model", "allowed"),
    [
        ((), "refine/fast", True),
        (("refine/fast",), "refine/fast", True),
        (("refine/fast",), "refine/careful", False),
        (("pass/*",), "pass/small", True),
        (("pass/*",), "refine/fast", False),
        (("refine/*", "pass/small"), "pass/small", True),
    ],
)
def test_a_key_is_for_the_models_it_names(ring, patterns, model, allowed):
    """403 that names the key and what it is for."""
    key, _ = ring.add("ci", profiles=patterns)
    assert key.may_use(model) == allowed
    if not allowed:
        error = refusal(key.check_model, model)
        assert error.status == 403 and all(pattern in str(error) for pattern in patterns)


def test_no_file_and_no_listing_holds_a_key(tmp_path, ring, store):
    """Files in the folder have a hash only, and only their owner may read them."""
    _, secret = ring.add("ci")
    for path in tmp_path.iterdir():
        assert secret[3:].encode() not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in repr(ring.stored_keys())


@pytest.mark.parametrize("name", ["", " ", "a\nb", "n" * 101, "rd-secret", "\udcff"])
def test_names_that_could_mislead_are_refused(ring, name):
    """A key by mistake in place of a name is not repeated."""
    with pytest.raises(ConfigError) as caught:
        ring.add(name)
    assert "secret" not in str(caught.value)


def test_two_active_keys_have_no_name_in_common(ring):
    """A revoked name may be used again; ids stay apart."""
    first, _ = ring.add("ci")
    with pytest.raises(ConfigError, match="there is a key 'ci' already"):
        ring.add("ci")
    ring.revoke(first.id)
    second, _ = ring.add("ci")
    assert [key.state(NOON) for key in ring.stored_keys()] == ["revoked", "active"]
    assert ring.revoke("ci").id == second.id != first.id
    with pytest.raises(ConfigError, match="unknown key 'ci'"):
        ring.revoke("ci")


# ---- budgets


def test_a_budget_in_usd_is_reserved_and_settled(ring, store, clock):
    """What requests may cost at most is set aside; what they did cost is charged."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    first = store.reserve(caller, cost=0.6, calls=4)
    error = refusal(store.reserve, caller, cost=0.6, calls=4)
    assert (error.status, error.code) == (429, "budget_reserved") and error.retry_after == 5.0
    first.settle(Usage(calls=2, cost=0.1))
    store.reserve(caller, cost=0.9, calls=4).settle(Usage(calls=1, cost=0.9))
    error = refusal(store.reserve, caller, cost=0.01, calls=1)
    assert (error.status, error.code, error.should_retry) == (402, "budget_exhausted", False)
    assert "1.00 USD a day" in error.message and "resets at" in error.message
    today = ring.spending("day", ring.stored_keys()[0])
    assert (today.spent, today.calls, today.reserved, today.reserved_calls, today.requests) == (
        NANO,
        3,
        0,
        0,
        2,
    )
    clock.now += DAY
    store.reserve(caller, cost=1.0, calls=1).settle(NO_USAGE)


def test_a_request_that_never_fits_is_not_to_be_retried(ring, store):
    """402 even while nothing is spent."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    store.reserve(caller, cost=0.5, calls=1)
    assert refusal(store.reserve, caller, cost=1.01, calls=1).status == 402


def test_a_cost_without_bound_is_more_than_any_budget(ring, store):
    """It is not taken for an unknown one, whose message asks for prices."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    error = refusal(store.reserve, caller, cost=float("inf"), calls=1)
    assert (error.status, error.code) == (402, "budget_exhausted")


def test_calls_are_limited_as_well(ring, store):
    """Calls to models, as far as they are made or reserved."""
    caller = caller_with(ring, store, calls_per_day=10)
    first = store.reserve(caller, cost=None, calls=6)
    assert refusal(store.reserve, caller, cost=None, calls=5).status == 429
    first.settle(unknown_usage(6))
    assert refusal(store.reserve, caller, cost=None, calls=5).status == 402
    store.reserve(caller, cost=None, calls=4)


def test_without_a_price_a_limit_in_usd_refuses(ring, store):
    """A limit that cannot be kept is not pretended; keys without one are served, and their calls
    count as of unknown cost.
    """
    caller = caller_with(ring, store, usd_per_day=1.0)
    error = refusal(store.reserve, caller, cost=None, calls=1)
    assert (error.status, error.code, error.should_retry) == (
        402,
        "unknown_price",
        False,
    ) and "prices" in error.message
    _, secret = ring.add("free")
    store._clock.now += 1
    store.reserve(store.authenticate(bearer(secret)), cost=None, calls=2).settle(unknown_usage(2))
    today = ring.spending("day", ring.stored_keys()[1])
    assert (today.spent, today.calls, today.unknown_calls) == (0, 2, 2)


@pytest.mark.parametrize(
    "usage", [None, unknown_usage(3), Usage(calls=3, cost=float("nan")), Usage(calls=3, cost=-1.0)]
)
def test_an_unknown_cost_is_charged_as_it_was_reserved(ring, store, usage):
    """Unknown is never 0, nor a negative amount."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    store.reserve(caller, cost=0.25, calls=3).settle(usage)
    today = ring.spending("day", ring.stored_keys()[0])
    assert (today.spent, today.calls, today.unknown_calls, today.reserved) == (NANO // 4, 3, 3, 0)


def test_a_reservation_is_settled_once(ring, store):
    """Settling twice charges once; unknown usage is charged as it was reserved, none not at all."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    reservation = store.reserve(caller, cost=0.1, calls=1)
    for _ in range(2):
        reservation.settle(Usage(calls=1, cost=0.05))
    store.reserve(caller, cost=0.1, calls=1).settle(None)
    store.reserve(caller, cost=0.1, calls=1).settle(NO_USAGE)
    assert ring.spending("day", ring.stored_keys()[0]).spent == 0.15 * NANO


def test_a_request_counts_on_the_day_it_started(ring, store, clock):
    """Settled after midnight, it is charged to the day before."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    reservation = store.reserve(caller, cost=1.0, calls=1)
    clock.now += DAY
    reservation.settle(Usage(calls=1, cost=0.7))
    assert ring.spending("day", ring.stored_keys()[0]).spent == 0
    clock.now -= DAY
    assert ring.spending("day", ring.stored_keys()[0]).spent == 0.7 * NANO


def at(text):
    """Return the Unix time of a moment in UTC."""
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


MONTHS = [
    ("2026-11-30 23:59:59", 30, "2026-12-01 00:00"),
    ("2026-12-01 00:00:00", 31, "2027-01-01 00:00"),
    ("2026-12-31 23:59:59.9", 31, "2027-01-01 00:00"),
    ("2027-02-15 12:00:00", 28, "2027-03-01 00:00"),
    ("2028-02-29 12:00:00", 29, "2028-03-01 00:00"),
]


@pytest.mark.parametrize(("now", "length", "end"), MONTHS)
def test_a_month_is_one_of_the_calendar_in_utc(now, length, end):
    """It begins with its first day, whatever its length, and ends with the first moment of the
    next.
    """
    days = days_of("month", at(now))
    assert (len(days), days.stop * DAY) == (length, at(end)) and int(at(now) // DAY) in days
    assert (days.start * DAY) == at(f"{now[:8]}01")


@pytest.mark.parametrize(
    ("limits", "cost", "calls", "text"),
    [
        ({"usd_per_month": 0.01}, 0.0004, 1, "may spend 0.01 USD a month: 0.01 are spent and 0 reserved, this request may need 0.0004"),
        ({"calls_per_month": 25}, None, 1, "may make 25 calls a month: 25 calls are made and 0 reserved, this request may need 1"),
        ({"usd_per_day": 0.001, "usd_per_month": 0.01}, 0.0004, 1, "may spend 0.01 USD a month"),
    ],
    ids=["usd", "calls", "both"],
)  # fmt: skip
def test_a_budget_of_a_month_lasts_until_the_next(ring, store, clock, limits, cost, calls, text):
    """It counts all days of the month, refuses until it ends, says when that is, and begins
    anew.
    """
    clock.now = at("2026-11-03 12:00:00")
    caller = caller_with(ring, store, **limits)
    for _ in range(25):
        store.reserve(caller, cost=cost, calls=calls).settle(Usage(calls=calls, cost=cost or 0.0))
        clock.now += DAY
    clock.now = at("2026-11-30 12:00:00")
    error = refusal(store.reserve, caller, cost=cost, calls=calls)
    assert (error.status, error.code) == (
        402,
        "budget_exhausted",
    ) and f"'ci' {text}" in error.message
    assert "(in 12 h)" in error.message
    clock.now += DAY / 2
    store.reserve(caller, cost=cost, calls=calls).settle(NO_USAGE)
    assert ring.spending("month", ring.stored_keys()[0]).calls == 0


def test_a_day_within_a_month_has_its_own_limit(ring, store, clock):
    """The budget of the day refuses although the month has room, and resets with the day; what is
    reserved counts in both.
    """
    clock.now = at("2026-11-03 12:00:00")
    caller = caller_with(ring, store, usd_per_day=1.0, usd_per_month=1.5)
    open_request = store.reserve(caller, cost=1.0, calls=1)
    assert refusal(store.reserve, caller, cost=0.1, calls=1).status == 429
    open_request.settle(Usage(calls=1, cost=1.0))
    assert "1.00 USD a day" in refusal(store.reserve, caller, cost=0.1, calls=1).message
    clock.now += DAY
    assert "1.50 USD a month" in refusal(store.reserve, caller, cost=0.6, calls=1).message
    store.reserve(caller, cost=0.5, calls=1).settle(None)
    key = ring.stored_keys()[0]
    assert (ring.spending("day", key).spent, ring.spending("month", key).spent) == (
        NANO // 2,
        NANO * 3 // 2,
    )


def test_without_a_price_a_limit_of_a_month_in_usd_refuses(ring, store):
    """As one of a day does."""
    error = refusal(store.reserve, caller_with(ring, store, usd_per_month=1.0), cost=None, calls=1)
    assert (error.status, error.code) == (402, "unknown_price")


def test_anonymous_callers_have_no_budget(tmp_path, store):
    """Nothing is written for them."""
    caller = store.authenticate({})
    store.reserve(caller, cost=None, calls=5).settle(None)
    assert store._database.used_at() == {}


@pytest.mark.parametrize(
    ("cost", "nanodollars"),
    [
        (0.0, 0),
        (1e-12, 1),
        (1e-9, 1),
        (1.2e-9, 2),
        (2.5e-9, 3),
        (0.1, 10**8),
        (0.1000000001, 100_000_001),
    ],
)
def test_amounts_are_rounded_up(ring, store, cost, nanodollars):
    """To a nanodollar, where they are reserved and where they are spent: what costs little is not
    free.
    """
    caller = caller_with(ring, store, usd_per_day=1.0)
    reservation = store.reserve(caller, cost=cost, calls=1)
    [key] = ring.stored_keys()
    assert (ring.spending("day", key).reserved, ring.spending("day", key).spent) == (nanodollars, 0)
    reservation.settle(Usage(calls=1, cost=cost))
    assert (ring.spending("day", key).reserved, ring.spending("day", key).spent) == (0, nanodollars)


LIMITS = {"usd_per_day": 2.0, "calls_per_day": 20, "usd_per_month": 3.0, "calls_per_month": 30}
PART = NANO // 128  # of a dollar: it and its multiples are exact


class Purse:
    """What the requests of two days in one month have used and hold, in parts of a dollar and in
    calls.
    """

    def __init__(self):
        self.used, self.held = [], []  # (day, parts, calls) of each request

    def sums(self, day=None):
        """Return the parts and the calls that are used, and those that are held, of one day or of
        both.
        """
        lists = [
            [each[1:] for each in entries if day in {None, each[0]}]
            for entries in (self.used, self.held)
        ]
        return [[sum(each[i] for each in entries) for i in (0, 1)] for entries in lists]

    def refuses(self, day, parts, calls):
        """Return the status with which a request is refused, or None: 402 without room, 429 if what
        is held may return some.
        """
        limits = [(None, 1, 30), (None, 0, 3 * 128), (day, 1, 20), (day, 0, 2 * 128)]
        for period, unit, most in limits:
            used, held = self.sums(period)
            if (room := most - used[unit] - (parts, calls)[unit]) < held[unit]:
                return 402 if room < 0 else 429
        return None


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40).map(lambda n: 4 * n),  # parts of a dollar
            st.integers(0, 6),
            st.sampled_from([None, 0, 1, 2, 4]),  # fourths of it that are used; None: unknown
            st.integers(0, 6),  # reservations that are open meanwhile
        ),
        max_size=30,
    ),
    st.integers(0, 15),
)
@example([(128, 6, 4, 0), (128, 1, 4, 0), (4, 1, 4, 0)], 15)
@example(
    [(4, 6, None, 6), (4, 6, 4, 6), (4, 6, 4, 6), (4, 3, 4, 6), (0, 2, 4, 0), (0, 2, 4, 0)], 15
)
# the month has none left, and the day only what is held
@example([(256, 1, 4, 0), (128, 1, 4, 1), (140, 1, 4, 1)], 1)
def test_a_budget_allows_what_it_has_room_for_and_nothing_else(
    tmp_path_factory, requests, first_day
):
    """A request is refused if what is spent and reserved leaves too little of the day or the month,
    and each sum is exact.
    """
    folder, clock = tmp_path_factory.mktemp("keys"), Clocks()
    with (
        KeyRing(folder, clock) as ring,
        closing(KeyStore(folder / FILE_NAME, clock=clock, monotonic_clock=clock)) as store,
    ):
        caller, purse, day, reservations = caller_with(ring, store, **LIMITS), Purse(), 0, []
        for n, (parts, calls, fourths, delay) in enumerate(requests):
            if n == first_day:
                clock.now, day = clock.now + DAY, 1
            reserve = partial(store.reserve, caller, cost=parts * PART / NANO, calls=calls)
            if status := purse.refuses(day, parts, calls):
                assert refusal(reserve).status == status
            else:
                reservations.append((reserve(), fourths))
                purse.held.append((day, parts, calls))
            while len(reservations) > delay:
                (reservation, fourths), (began, parts, calls) = (
                    reservations.pop(0),
                    purse.held.pop(0),
                )
                if fourths is None:
                    reservation.settle(None)
                else:
                    parts, calls = parts * fourths // 4, calls // 2
                    reservation.settle(Usage(calls=calls, cost=parts * PART / NANO))
                purse.used.append((began, parts, calls))
            for period, name in ((day, "day"), (None, "month")):
                spending = ring.spending(name, ring.stored_keys()[0])
                used, held = purse.sums(period)
                assert (spending.spent, spending.reserved) == (used[0] * PART, held[0] * PART)
                assert (spending.calls, spending.reserved_calls) == (used[1], held[1])
        for reservation, _ in reservations:
            reservation.settle(NO_USAGE)
        month = ring.spending("month", ring.stored_keys()[0])
        assert (month.reserved, month.reserved_calls) == (0, 0)


# ---- rates


def test_a_rate_is_limited_with_the_time_to_wait(ring, store, clock):
    """Ten seconds' worth at once, then one each second; the error says when."""
    caller = caller_with(ring, store, requests_per_minute=60)
    for _ in range(10):
        store.count_request(caller)
    error = refusal(store.count_request, caller)
    assert (error.status, error.retry_after) == (429, 1.0)
    clock.now += error.retry_after
    store.count_request(caller)
    assert refusal(store.count_request, caller).status == 429


@pytest.mark.parametrize(
    ("per_minute", "at_once", "wait"),
    [
        (0.5, 1, 120.0),
        (1, 1, 60.0),
        (6, 1, 10.0),
        (7, 1, 50 / 7),
        (59, 9, 10 / 59),
        (60, 10, 1.0),
        (600, 100, 0.1),
    ],
)
def test_how_many_requests_are_accepted_at_once(ring, store, clock, per_minute, at_once, wait):
    """Those of ten seconds, at least one; then it takes exactly the time that the error says until
    the next one.
    """
    caller = caller_with(ring, store, requests_per_minute=per_minute)
    for _ in range(at_once):
        store.count_request(caller)
    error = refusal(store.count_request, caller)
    assert (error.status, error.code, error.retry_after) == (
        429,
        "rate_limited",
        pytest.approx(wait),
    )
    clock.now += wait - 1e-6
    assert refusal(store.count_request, caller).retry_after == pytest.approx(1e-6, abs=1e-7)
    clock.now += 2e-6
    store.count_request(caller)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 120).map(lambda n: n / 4), max_size=100), st.floats(0.5, 600))
@example([0.0] * 11 + [0.5, 0.5] * 10, 60.0)
@example([0.0] * 3 + [119.0, 1.0], 0.5)
def test_no_pattern_of_requests_exceeds_a_rate(tmp_path_factory, pauses, rate):
    """In any time, at most the rate times that time plus ten seconds, or one request, are accepted;
    what is refused had no room.
    """
    folder, clock = tmp_path_factory.mktemp("keys"), Clocks()
    with (
        KeyRing(folder, clock) as ring,
        closing(KeyStore(folder / FILE_NAME, clock=clock, monotonic_clock=clock)) as store,
    ):
        caller = caller_with(ring, store, requests_per_minute=rate)
        most = max(1, rate / 6)  # requests at once
        room, accepted = most, []
        for pause in pauses:
            clock.now += pause
            room = min(most, room + rate / 60 * pause)
            if room < 1 - 1e-9:
                error = refusal(store.count_request, caller)
                assert (error.status, error.retry_after) == (
                    429,
                    pytest.approx((1 - room) / (rate / 60), abs=1e-3),
                )
            else:
                store.count_request(caller)
                room -= 1
                accepted.append(clock.now)
        for first in range(len(accepted)):
            for last in range(first, len(accepted)):
                seconds = accepted[last] - accepted[first]
                assert last - first + 1 <= rate / 60 * seconds + most + 1e-3


# ---- the file


WORKER = """
import os, sys
from pathlib import Path
from redraft.gateway.keys import KeyStore
from redraft.usage import Usage

store = KeyStore(Path(sys.argv[1]))
print("recovered", store.recovered, flush=True)
caller = store.authenticate({"x-api-key": sys.argv[2]})
for n in range(10**9):
    reservation = store.reserve(caller, cost=0.001, calls=2)
    print("reserved", flush=True)
    if n % 2:
        reservation.settle(Usage(calls=1, cost=0.0005))
        print("settled", flush=True)
"""


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("lines", [2, 3, 4, 61, 212, 533])
def test_a_killed_gateway_forgets_nothing_and_bills_nobody_twice(tmp_path, ring, lines):
    """kill -9 at any moment: what was settled is charged once, what was reserved in full, once, at
    the next start.
    """
    key, secret = ring.add("ci", KeyLimits(usd_per_day=1e6))
    ring._clock = time.time
    command = [sys.executable, "-c", WORKER, str(tmp_path / FILE_NAME), secret]
    settled = lost = requests = 0
    for number in (lines, lines + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            seen = [worker.stdout.readline().strip() for _ in range(number)]
            worker.send_signal(signal.SIGKILL)
            seen += worker.stdout.read().split("\n")
        assert seen[0] == f"recovered {requests - settled - lost}"
        lost = requests - settled
        now = ring.spending("day", key)
        ended, rest = divmod(now.spent - lost * 1_000_000 - settled * 500_000, 500_000)
        # a line may be lost after the commit
        assert rest == 0 and seen.count("settled") <= ended <= seen.count("settled") + 1
        assert seen.count("reserved") <= now.requests - requests <= seen.count("reserved") + 1
        settled, requests = settled + ended, now.requests
    for recovered in (requests - settled - lost, 0):
        with closing(KeyStore(tmp_path / FILE_NAME)) as store:
            assert store.recovered == recovered
        lost = requests - settled
        today = ring.spending("day", key)
        assert today.spent == settled * 500_000 + lost * 1_000_000
        assert (today.reserved, today.reserved_calls) == (0, 0)
        assert today.calls == settled + 2 * lost


SPENDER = """
import sys
from contextlib import suppress
from pathlib import Path
from redraft.gateway.exchange import GatewayError
from redraft.gateway.keys import KeyStore
from redraft.usage import Usage

store = KeyStore(Path(sys.argv[1]), owner=sys.argv[3])
caller = store.authenticate({"x-api-key": sys.argv[2]})
sys.stdin.readline()
for n in range(300):
    with suppress(GatewayError):
        store.reserve(caller, cost=0.01, calls=1).settle(Usage(calls=1, cost=0.01))
        print("accepted", flush=True)
store.close()
"""


def test_servers_of_different_names_share_one_budget(tmp_path, ring):
    """Two processes spend from one key at the same time: together no more than its limit."""
    key, secret = ring.add("ci", KeyLimits(usd_per_day=2.0))
    ring._clock = time.time
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SPENDER, str(tmp_path / FILE_NAME), secret, owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for owner in ("serve", "mcp")
    ]
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    accepted = [worker.communicate(timeout=60)[0].count("accepted") for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sum(accepted) == 200 == ring.spending("day", key).requests
    assert ring.spending("day", key).spent == 2 * NANO


def test_a_second_gateway_of_the_same_folder_is_refused(tmp_path, store):
    """The error names the holder; another kind of server may use the folder."""
    with pytest.raises(StoreLockedError, match="this process"):
        KeyStore(tmp_path / FILE_NAME)
    KeyStore(tmp_path / FILE_NAME, owner="mcp").close()


def test_a_full_disk_refuses_new_requests_and_charges_later(ring, store):
    """A reservation that cannot be settled stays, and is settled with the next request."""
    caller = caller_with(ring, store, usd_per_day=1.0)
    reservation = store.reserve(caller, cost=0.5, calls=1)
    blocker = sqlite3.connect(store._database.path, isolation_level=None)
    store._database._connection.execute("PRAGMA busy_timeout = 0")
    blocker.execute("BEGIN IMMEDIATE")
    reservation.settle(Usage(calls=1, cost=0.1))
    error = refusal(store.reserve, caller, cost=0.5, calls=1)
    assert (error.status, error.code, error.retry_after) == (503, "budgets_unavailable", 5.0)
    assert str(store._database.path) not in str(error)
    blocker.execute("ROLLBACK")
    blocker.close()
    store.reserve(caller, cost=0.5, calls=1).settle(NO_USAGE)
    assert ring.spending("day", ring.stored_keys()[0]).spent == NANO // 10


@as_root
def test_keys_that_root_adds_can_be_read_by_the_service(tmp_path):
    """In the folder of another user, all files are that user's."""
    os.chown(tmp_path, 12345, 12345)
    with KeyRing(tmp_path) as ring:
        ring.add("ci")
        assert {path.stat().st_uid for path in tmp_path.iterdir()} == {12345}


RELEASED = """
CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, hash BLOB NOT NULL UNIQUE, created_at REAL NOT NULL,
                   expires_at REAL, revoked_at REAL, usd_per_day REAL, calls_per_day INTEGER, requests_per_minute REAL,
                   profiles TEXT NOT NULL);
CREATE UNIQUE INDEX active_names ON keys (name) WHERE revoked_at IS NULL;
CREATE TABLE spending (key TEXT NOT NULL, day INTEGER NOT NULL, requests INTEGER NOT NULL DEFAULT 0,
                       spent INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL DEFAULT 0,
                       unknown_calls INTEGER NOT NULL DEFAULT 0, reserved INTEGER NOT NULL DEFAULT 0,
                       reserved_calls INTEGER NOT NULL DEFAULT 0, used_at REAL NOT NULL, PRIMARY KEY (key, day)) WITHOUT ROWID;
CREATE TABLE reservations (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, key TEXT NOT NULL, day INTEGER NOT NULL,
                           cost INTEGER, calls INTEGER NOT NULL);
PRAGMA application_id = 1382303607;
PRAGMA user_version = 1;
"""
"""The file of keys of the releases before there were limits of a month."""


def test_a_file_of_an_earlier_release_is_continued(tmp_path, clock):
    """Its keys and limits hold, what was spent counts for the month, and what a killed gateway had
    reserved is charged.
    """
    day, secret = int(clock.now // DAY), "rd-" + "k" * 43
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.executescript(RELEASED)
        digest = sha256(secret.encode()).digest()
        connection.execute(
            "INSERT INTO keys VALUES ('1', 'old', ?, 1, NULL, NULL, 5, 100, NULL, '[\"pass/*\"]')",
            (digest,),
        )
        for when, spent in ((day - 60, NANO), (day, NANO // 2)):
            connection.execute(
                "INSERT INTO spending VALUES ('1', ?, 1, ?, 3, 0, 0, 0, 1)", (when, spent)
            )
        connection.execute(
            "UPDATE spending SET reserved = 7, reserved_calls = 2 WHERE day = ?", (day,)
        )
        connection.execute("INSERT INTO reservations VALUES (NULL, 'serve', '1', ?, 7, 2)", (day,))
    (tmp_path / FILE_NAME).chmod(0o600)
    with (
        closing(KeyStore(tmp_path / FILE_NAME, clock=clock, monotonic_clock=clock)) as store,
        KeyRing(tmp_path, clock) as ring,
    ):
        [key] = ring.stored_keys()
        assert (key.name, key.profiles, key.limits) == ("old", ("pass/*",), KeyLimits(5.0, 100))
        assert store.authenticate(bearer(secret)).name == "old" and store.recovered == 1
        assert ring.spending("month", key).spent == NANO // 2 + 7
        ring.add("new", KeyLimits(usd_per_month=3.0))
        assert ring.stored_keys()[1].limits.usd_per_month == 3.0
    with KeyRing(tmp_path) as again:
        assert len(again.stored_keys()) == 2


def make_foreign(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")


def make_newer(path):
    KeyDatabase(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def make_damaged_limits(path):
    with KeyRing(path.parent) as ring:
        ring.add("ci")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE keys SET usd_per_day = 'much'")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("hello, " * 1000), "file is not a database"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "not a regular file"),
        (make_foreign, "another program"),
        (make_newer, "schema 99"),
        (make_damaged_limits, "is damaged"),
    ],
    ids=["text", "folder", "pipe", "foreign", "newer", "damaged"],
)
def test_a_file_that_holds_no_keys_is_refused(tmp_path, make, message):
    """StoreError that says why; the gateway does not start, and is not open by mistake."""
    make(tmp_path / FILE_NAME)
    with pytest.raises(StoreError, match=message):
        KeyStore(tmp_path / FILE_NAME)


def test_authentication_takes_microseconds(ring, store):
    """Far less than a request: at most 30 microseconds of the CPU, the best of several rounds."""
    _, secret = ring.add("ci")
    store._clock.now += 1
    headers = {"host": "localhost", "authorization": f"Bearer {secret}"}

    def seconds():
        started_at = time.thread_time()
        for _ in range(500):
            store.authenticate(headers)
        return (time.thread_time() - started_at) / 500

    assert min(seconds() for _ in range(20)) < 30e-6
