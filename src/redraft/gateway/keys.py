"""Who may use the gateway and how much: API keys, their limits, and what they have spent today and
this month.

A key is 256 random bits that are shown once; the file has only their SHA-256. Looking a key up
costs a hash and a look into a dictionary: the keys are in memory, and are read again within a
quarter of a second after another process has changed them.

Before a request is worked on, `KeyStore.reserve` sets aside the most that it may cost, and
`KeyReservation.settle` replaces that by what it did cost, so that many requests at once cannot
exceed a budget together. Days and months are those of the calendar in UTC; a request counts on the
day on which it started. An unknown cost is charged as it was reserved; without a price nothing can
be reserved, so a key with a limit in USD is refused then. What a killed process had reserved is
charged in full, once, at the next start.

A key for METRICS_ONLY may read /metrics and do nothing else.

Without any key in the file the gateway is open to everyone who reaches it. Revoked keys stay in the
file, so revoking the last key opens nothing.
"""

from __future__ import annotations

import json
import secrets
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from math import ceil, inf, isnan
from pathlib import Path
from time import monotonic, time
from typing import Any, Literal, Self, TypeAlias

from ..base import checks
from ..base.log import log
from ..base.money import format_usd, usd_amount
from ..base.text import format_duration, format_time_in
from ..errors import ConfigError, StoreError
from ..middleware.token_bucket import TokenBucket
from ..storage.secure_files import PathLock
from ..usage import NO_USAGE, Usage
from .exchange import GatewayError
from .key_database import MAX_NANODOLLARS, Charge, KeyDatabase, Spending

gateway_log = log.getChild("gateway")
FILE_NAME = "gateway.db"
PREFIX = "rd-"
KEY_BYTES = 32
ID_BYTES = 4
MAX_NAME_LENGTH, MAX_PROFILES = 100, 100
MAX_LIMIT = 1e9
MAX_KEY_TEXT = 300  # characters of a key that a client sends; ours have 46
POLL_SECONDS = 0.25
BURST_SECONDS = 10.0  # seconds' worth of requests that a client may send at once
LOG_SECONDS = 60.0
RETRY_SETTLE = 5.0  # seconds after which requests in progress may have returned what they reserved
DAY = 86400
NANO = 10**9
EPOCH = date(1970, 1, 1)
Period: TypeAlias = Literal["day", "month"]
PERIODS: tuple[Period, ...] = ("day", "month")
METRICS_ONLY = ("/metrics",)  # the profiles of a key that may read the figures and use no model


def days_of(period: Period, now: float) -> range:
    """Return the days since 1970 of the day or the month in UTC at a Unix time."""
    today = int(now // DAY)
    if period == "day":
        return range(today, today + 1)
    day = EPOCH + timedelta(days=today)
    first = today - (day.day - 1)
    return range(first, first + monthrange(day.year, day.month)[1])


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of a key; None: no limit; 0 USD: only what is free; 0 calls: none. Days and months
    are those in UTC. Calls are calls to models, not requests.
    """

    usd_per_day: float | None = None
    calls_per_day: int | None = None
    requests_per_minute: float | None = None
    usd_per_month: float | None = None
    calls_per_month: int | None = None

    @property
    def has_usd(self) -> bool:
        """Whether USD are limited."""
        return self.usd_per_day is not None or self.usd_per_month is not None

    @property
    def has_budget(self) -> bool:
        """Whether USD or calls are limited."""
        return any(self.budget(period) != (None, None) for period in PERIODS)

    def budget(self, period: Period) -> tuple[float | None, int | None]:
        """Return the limits in USD and in calls for a period."""
        return (
            (self.usd_per_day, self.calls_per_day)
            if period == "day"
            else (self.usd_per_month, self.calls_per_month)
        )

    def __post_init__(self) -> None:
        for name in ("usd_per_day", "usd_per_month"):
            checks.number(name, getattr(self, name), 0, MAX_LIMIT, optional=True)
        for name in ("calls_per_day", "calls_per_month"):
            checks.whole_number(name, getattr(self, name), 0, int(MAX_LIMIT), optional=True)
        checks.positive("requests_per_minute", self.requests_per_minute, MAX_LIMIT, optional=True)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. `profiles`: patterns of the models that it may use, such as
    "refine/fast" or "pass/*"; empty: all.
    """

    id: str
    name: str
    profiles: tuple[str, ...] = ()
    limits: KeyLimits = KeyLimits()

    def may_use(self, model: str) -> bool:
        """Whether the caller may use a model, such as "refine/fast"."""
        return not self.profiles or any(fnmatchcase(model, pattern) for pattern in self.profiles)

    def check_model(self, model: str) -> None:
        """Raise GatewayError 403 unless the caller may use a model."""
        if not self.may_use(model):
            message = (
                f"key {self.name!r} may not use {model!r}: it is for {', '.join(self.profiles)}"
            )
            raise GatewayError(403, "model_not_allowed", message, param="model", should_retry=False)


ANONYMOUS = Caller(id="", name="anonymous")


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as it is stored. Times are Unix times."""

    id: str
    name: str
    hash: bytes
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    limits: KeyLimits = KeyLimits()
    profiles: tuple[str, ...] = ()

    @property
    def caller(self) -> Caller:
        return Caller(self.id, self.name, self.profiles, self.limits)

    def state(self, now: float) -> str:
        """Return "active", "expired" or "revoked"."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"

    def to_row(self) -> tuple[Any, ...]:
        limits = (
            self.limits.usd_per_day,
            self.limits.calls_per_day,
            self.limits.requests_per_minute,
        )
        times = (self.created_at, self.expires_at, self.revoked_at)
        return (
            self.id,
            self.name,
            self.hash,
            *times,
            *limits,
            json.dumps(self.profiles),
            *self.limits.budget("month"),
        )

    @classmethod
    def from_row(cls, row: tuple[Any, ...]) -> Self:
        """Return the key of a row. Raises StoreError for one that Redraft did not write."""
        (
            key_id,
            name,
            digest,
            created_at,
            expires_at,
            revoked_at,
            usd,
            calls,
            requests,
            profiles,
            *monthly,
        ) = row
        try:
            limits, patterns = (
                KeyLimits(usd, calls, requests, *monthly),
                tuple(map(str, json.loads(profiles))),
            )
            return cls(key_id, name, digest, created_at, expires_at, revoked_at, limits, patterns)
        except (ConfigError, TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"key {row[0]!r} is damaged: revoke it and add another") from error


class KeyRing:
    """The keys of a file, for the command line: lists, adds and revokes them. A context manager."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time) -> None:
        self._database, self._clock = KeyDatabase(folder / FILE_NAME), clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def stored_keys(self) -> list[StoredKey]:
        """Return all keys, revoked ones included, in the order in which they were added."""
        return [StoredKey.from_row(row) for row in self._database.key_rows()]

    def spending_today(self, key: StoredKey) -> Spending:
        return self._database.spending(key.id, days_of("day", self._clock()))

    def spending_this_month(self, key: StoredKey) -> Spending:
        return self._database.spending(key.id, days_of("month", self._clock()))

    def used_at(self) -> dict[str, float]:
        """Return when each key was last used, by its id, as Unix time."""
        return self._database.used_at()

    def add(
        self,
        name: str,
        limits: KeyLimits = KeyLimits(),
        profiles: tuple[str, ...] = (),
        expires_in_days: float | None = None,
    ) -> tuple[StoredKey, str]:
        """Add a key and return it with its secret, which is stored nowhere. Raises ConfigError for
        a name that is in use.
        """
        _check_name(name)
        if profiles != METRICS_ONLY:
            _check_profiles(profiles)
        checks.positive("expires_in_days", expires_in_days, 36500, optional=True)
        secret, now = PREFIX + secrets.token_urlsafe(KEY_BYTES), self._clock()
        expires_at = None if expires_in_days is None else now + expires_in_days * DAY
        key_id = secrets.token_hex(ID_BYTES)
        key = StoredKey(key_id, name, _hash_of(secret), now, expires_at, None, limits, profiles)
        if not self._database.add_key(key.to_row()):
            raise ConfigError(
                f"there is a key {name!r} already: revoke it first, or choose another name"
            )
        return key, secret

    def revoke(self, name_or_id: str) -> StoredKey:
        """Revoke an active key. Raises ConfigError if there is none of this name or id."""
        active = [key for key in self.stored_keys() if key.revoked_at is None]
        found = next((key for key in active if name_or_id == key.name), None)
        found = found or next((key for key in active if name_or_id == key.id), None)
        if found is None:
            raise ConfigError(
                checks.unknown_name_message(
                    "key", name_or_id, [key.name for key in active], "redraft keys list"
                )
            )
        now = self._clock()
        self._database.revoke_key(found.id, now)
        return replace(found, revoked_at=now)


def _check_name(name: str) -> None:
    checks.text("name", name)
    if len(name) > MAX_NAME_LENGTH or not name.isprintable() or name.startswith(PREFIX):
        expected = (
            f"at most {MAX_NAME_LENGTH} printable characters that do not begin with {PREFIX!r}"
        )
        raise checks.invalid_argument(
            "name", expected, name if not name.startswith(PREFIX) else f"{PREFIX}..."
        )


def _check_profiles(profiles: tuple[str, ...]) -> None:
    for profile in profiles:
        if (
            not profile.startswith(("refine/", "pass/", "*"))
            or len(profile) > MAX_NAME_LENGTH
            or not profile.isprintable()
        ):
            raise checks.invalid_argument(
                "profile", "a model such as refine/fast or a pattern such as pass/*", profile
            )
    if len(profiles) > MAX_PROFILES:
        raise ConfigError(f"a key has at most {MAX_PROFILES} profiles, got {len(profiles)}")


def _hash_of(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


class KeyReservation:
    """What is set aside for one request. It is settled once; in a context, at its end at the
    latest.

    A reservation that is not settled otherwise is charged in full: the calls may have been made.
    """

    __slots__ = ("_calls", "_id", "_store")

    def __init__(self, store: KeyStore, reservation: int | None, calls: int) -> None:
        self._store, self._id, self._calls = store, reservation, calls

    def settle(self, usage: Usage | None) -> None:
        """Charge what the request used; None: that is unknown. Does nothing if it is settled
        already.
        """
        reservation, self._id = self._id, None
        if reservation is not None:
            charge = (
                Charge(None, self._calls)
                if usage is None
                else Charge(_nanodollars(usage.cost), max(usage.calls, 0))
            )
            self._store.settle(reservation, charge)

    def release(self) -> None:
        """Charge nothing: no call was made."""
        self.settle(NO_USAGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.settle(None)


class KeyStore:
    """The keys for a server, and their budgets.

    `owner` names the server among those that use the same file ("serve", "mcp"): each may run once,
    which a lock ensures, and charges at its start what it had reserved when it was killed.
    `require_keys`: None asks for a key once there is one in the file, False never does. Raises
    StoreError if the file cannot be used, or another server of this name uses it.
    """

    def __init__(
        self,
        path: Path,
        *,
        require_keys: bool | None = None,
        owner: str = "serve",
        clock: Callable[[], float] = time,
        monotonic_clock: Callable[[], float] = monotonic,
    ) -> None:
        self._require_keys, self._owner = require_keys, owner
        self._clock, self._monotonic = clock, monotonic_clock
        self._buckets: dict[str, tuple[float, TokenBucket]] = {}
        self._unsettled: list[tuple[int, Charge]] = []  # those that the disk did not take
        self._log_again_at = -inf
        with ExitStack() as stack:
            self._database = KeyDatabase(path)
            stack.callback(self._database.close)
            lock = PathLock(
                path.with_name(f"{path.name}.{owner}"),
                f"the folder {str(path.parent)!r} of `redraft {owner}`",
            )
            stack.callback(lock.close)
            self.recovered = self._database.settle_all(owner)
            self._keys: dict[bytes, StoredKey] = {}
            self._by_id: dict[str, StoredKey] = {}
            self._version, self._next_poll = -1, 0.0
            self._refresh()
            self._resources = stack.pop_all()

    @property
    def is_open(self) -> bool:
        """Whether requests need no key."""
        return not self._keys if self._require_keys is None else not self._require_keys

    @contextmanager
    def _unavailable_as_503(self) -> Iterator[None]:
        """Translate a StoreError, which names a file, to an error for clients. The log has it once
        a minute.
        """
        try:
            yield
        except StoreError as error:
            if (now := self._monotonic()) >= self._log_again_at:
                self._log_again_at = now + LOG_SECONDS
                gateway_log.error("%s", error)
            message = "the keys and budgets of the gateway cannot be read or written at present"
            raise GatewayError(
                503, "budgets_unavailable", message, retry_after=RETRY_SETTLE
            ) from error

    def authenticate(self, headers: Mapping[str, str], path: str = "") -> Caller:
        """Return who sends a request with these headers (names in lower case). Raises GatewayError
        401; 403 for a key that may only read /metrics, if that is not `path`.
        """
        with self._unavailable_as_503():
            self._refresh()
        now, problem = self._clock(), ""
        for text in _credentials(headers):
            key = self._find(text)
            if key is None:
                problem = problem or "the API key is not one of this gateway"
            elif (state := key.state(now)) != "active":
                problem = f"key {key.name!r} is {state}"
            elif key.profiles == METRICS_ONLY and path not in METRICS_ONLY:
                message = f"key {key.name!r} may only read /metrics: use another key"
                raise GatewayError(403, "metrics_only_key", message, should_retry=False)
            else:
                return key.caller
        if self.is_open:
            return ANONYMOUS
        message = (
            problem or "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY"
        )
        raise GatewayError(
            401,
            "invalid_api_key",
            message,
            should_retry=False,
            headers={"www-authenticate": "Bearer"},
        )

    def count_request(self, caller: Caller) -> None:
        """Count a request of a key, before anything is read or done for it. Raises GatewayError 429
        above its rate.
        """
        if key := self._by_id.get(caller.id):
            self._check_rate(key)

    def reserve(self, caller: Caller, *, cost: float | None, calls: int) -> KeyReservation:
        """Set aside the most that a request may cost in USD (None: unknown) and the calls to models
        that it may make.

        Raises GatewayError: 401 if the key is no longer valid, 429 while other requests have
        reserved the rest of its budget, 402 if the budget of the day or the month is exhausted or
        cannot be enforced because the cost is unknown, 503 if the file cannot be written.
        """
        if not caller.id:
            return KeyReservation(self, None, calls)
        with self._unavailable_as_503():
            self._refresh()
        key, now = self._by_id.get(caller.id), self._clock()
        state = key.state(now) if key else "unknown"
        if key is None or state != "active":
            raise GatewayError(
                401, "invalid_api_key", f"key {caller.name!r} is {state}", should_retry=False
            )
        charge = Charge(_nanodollars(cost), calls)
        with self._unavailable_as_503():
            self._settle_again()
            account = (key.id, int(now // DAY))
            limited: list[Period] = [
                period for period in PERIODS if key.limits.budget(period) != (None, None)
            ]
            check = partial(self._check_budgets, key, limited, charge, now) if limited else None
            reservation = self._database.reserve(self._owner, account, charge, now, check)
        return KeyReservation(self, reservation, calls)

    def _check_budgets(
        self, key: StoredKey, limited: Sequence[Period], charge: Charge, now: float
    ) -> None:
        """Raise GatewayError if one of these periods has no room for a charge; the later reset
        comes first.
        """
        for period in reversed(limited):
            days = days_of(period, now)
            _check_budget(
                key, period, self._database.spending(key.id, days), charge, days.stop * DAY - now
            )

    def settle(self, reservation: int, charge: Charge) -> None:
        """Replace a reservation by a charge. If the disk does not take it, it is tried again with
        the next request.
        """
        self._unsettled.append((reservation, charge))
        with suppress(StoreError):
            self._settle_again()

    def close(self) -> None:
        """Release the file. What could not be settled stays reserved, and is charged at the next
        start.
        """
        with suppress(StoreError):
            self._settle_again()
        self._resources.close()

    def _settle_again(self) -> None:
        while self._unsettled:
            self._database.settle(*self._unsettled[0])
            del self._unsettled[0]

    def _find(self, text: str) -> StoredKey | None:
        digest = _hash_of(text)
        key = self._keys.get(digest)
        return key if key and compare_digest(key.hash, digest) else None

    def _refresh(self) -> None:
        """Read the keys again if another process has changed the file."""
        if (now := self._monotonic()) < self._next_poll:
            return
        self._next_poll = now + POLL_SECONDS
        if (version := self._database.data_version()) != self._version:
            keys = [StoredKey.from_row(row) for row in self._database.key_rows()]
            self._keys, self._by_id = {key.hash: key for key in keys}, {key.id: key for key in keys}
            self._version = version

    def _check_rate(self, key: StoredKey) -> None:
        if (per_minute := key.limits.requests_per_minute) is None:
            return
        rate, bucket = self._buckets.get(key.id, (0.0, None))
        if bucket is None or rate != per_minute:
            bucket = TokenBucket(per_minute, self._monotonic, BURST_SECONDS)
            self._buckets[key.id] = per_minute, bucket
        if wait := bucket.seconds_until(1):
            message = f"key {key.name!r} may send {per_minute:g} requests per minute"
            raise GatewayError(429, "rate_limited", message, retry_after=wait)
        bucket.consume(1)


def _credentials(headers: Mapping[str, str]) -> list[str]:
    """Return the keys that a client sent, in the form of OpenAI's clients and in that of
    Anthropic's.
    """
    scheme, _, token = (headers.get("authorization") or "").partition(" ")
    sent = (
        token.strip() if scheme.lower() == "bearer" else "",
        (headers.get("x-api-key") or "").strip(),
    )
    return [text for text in sent if 0 < len(text) <= MAX_KEY_TEXT]


def _nanodollars(cost: float | None) -> int | None:
    """Return an amount in USD in nanodollars, rounded up; None for an unknown one, and for what is
    no amount.
    """
    if cost is None or isnan(cost) or cost < 0:
        return None
    return ceil(min(cost * NANO, MAX_NANODOLLARS))


def _check_budget(
    key: StoredKey, period: Period, spending: Spending, charge: Charge, seconds_left: float
) -> None:
    """Raise GatewayError if the budget of a key for a period has no room for a charge."""
    usd, calls = key.limits.budget(period)
    resets = (
        f"the budget resets at {format_time_in(seconds_left)} (in {format_duration(seconds_left)})"
    )
    if calls is not None:
        used = f"{spending.calls:,} calls are made and {spending.reserved_calls:,} reserved"
        limit = f"key {key.name!r} may make {calls:,} calls a {period}"
        room = calls - spending.calls - charge.calls
        _check_room(
            room,
            spending.reserved_calls,
            f"{limit}: {used}, this request may need {charge.calls:,}; {resets}",
        )
    if usd is not None:
        limit = f"key {key.name!r} may spend {format_usd(usd)} a {period}"
        if charge.cost is None:
            message = (
                f"{limit}, and what this model or one of its graders costs is unknown: prices "
                "must be set in the configuration"
            )
            raise GatewayError(402, "unknown_price", message, param="model", should_retry=False)
        used = (
            f"{usd_amount(spending.spent / NANO)} are spent and "
            f"{usd_amount(spending.reserved / NANO)} reserved"
        )
        room = (_nanodollars(usd) or 0) - spending.spent - charge.cost
        _check_room(
            room,
            spending.reserved,
            f"{limit}: {used}, this request may need {usd_amount(charge.cost / NANO)}; {resets}",
        )


def _check_room(room: int, reserved: int, message: str) -> None:
    """Raise GatewayError 402 if there is no room; 429 if there will be some when other requests
    return what they reserved.
    """
    if room < 0:
        raise GatewayError(402, "budget_exhausted", message, should_retry=False)
    if room < reserved:
        raise GatewayError(429, "budget_reserved", message, retry_after=RETRY_SETTLE)
