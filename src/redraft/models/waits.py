"""How long a server asks to wait, and whether it says that a quota is used up.

Servers say it in a header (`Retry-After`, `retry-after-ms`), in a field of the error (Gemini's
`retryDelay`, `retry_after`, Hugging Face's `estimated_time`), in words ("Please try again in
4.0s"), or by the time when a limit is reset. The first of these in this order counts. A body is
hostile input: only its first fields and characters are read, in linear time, and what is no time,
is negative or is longer than a year says nothing.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ..base.jsontext import loads
from ..protocols import RateLimitStatus

BUSY_STATUSES = frozenset({429, 503, 529})
MAX_FIELDS = 200  # of a body
MAX_TEXT = 8000  # characters of its texts
MAX_SECONDS = 366 * 86_400.0  # of a wait that is believed, but for Retry-After
# seconds after which a call may succeed although its quota is for a day: some are refilled all
# the time
SHORT_WAIT = 60.0
# from these on, a number is a time in seconds, or in milliseconds, since 1970
MIN_EPOCH, MIN_EPOCH_MS = (1e9, 1e11)


def stated_wait(status: int, headers: Mapping[str, str], body: Any = None) -> float | None:
    """Return the seconds that a server asks to wait after an error with these headers (in lower
    case) and this body (JSON or text).

    None: it does not say. The body counts if the status says that the server is busy, and there is
    no valid Retry-After.
    """
    asked = parse_retry_after(headers)
    if asked or status not in BUSY_STATUSES:
        return asked
    fields = list(_fields(body))
    in_fields = (
        _seconds_of(value) * unit for name, value in fields if (unit := WAIT_FIELDS.get(name))
    )
    waits = (
        next(filter(None, in_fields), 0.0)
        or _wait_in_words(_texts(fields))
        or _wait_for_reset([*fields, *headers.items()])
    )
    return waits or asked


def is_used_up(body: Any, wait: float | None) -> bool:
    """Whether an error says that a quota is zero, or that one of a day or a month is used up;
    `wait`: see `stated_wait`.
    """
    text = _texts(list(_fields(body)))
    if re.search(_NO_QUOTA, text, re.IGNORECASE):
        return True
    words = re.sub(r"(?m)^\w*: ", "", text)  # without the names of fields
    period = re.search(_PERIOD, words, re.IGNORECASE)
    return period is not None and period["long"] is not None and (wait is None or wait > SHORT_WAIT)


# "limit: 0, model: ...", "Limit 0 / min", not "limit: 0 left"; and Google's details, whatever
# `retryDelay` they have
_NO_QUOTA = (
    r"\blimit:? ?0(?= ?(?:$|[,;/)\n*]|\.(?!\d)))"
    r"|quota_?(?:id|limit)\W{1,8}\w{0,80}?PerDay|quota_?(?:limit_?)?value\W{1,8}0(?![\d.])"
)
_PERIOD = (  # the first one in a text belongs to the limit; a later one may belong to an offer
    r"(?:per|by|/)[ _-]?(?:sec|min|hour)|\b[RTI]P[MS]\b"
    r"|(?P<long>(?:per|by|/)[ _-]?(?:day|month)|\b(?:daily|monthly)\b|\b[RTI]PD\b)"
)


# ---- bodies

WAIT_FIELDS: Mapping[str, float] = {
    "retrydelay": 1.0,
    "retryafter": 1.0,
    "retryafterseconds": 1.0,
    "retryafterms": 0.001,
    "estimatedtime": 1.0,
    "quotaresetdelay": 1.0,
    "resetsinseconds": 1.0,
}
"""The fields with a wait, as `_plain` writes their names, and the seconds of their unit."""


def _fields(body: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in a body with the names of their fields. JSON in a text, as routers pass it
    on, is read like the rest.
    """
    pending = deque([("", body)])
    for _ in range(MAX_FIELDS):
        if not pending:
            return
        name, value = pending.popleft()
        if isinstance(value, str) and value[:1] in {"{", "["} and len(value) <= MAX_TEXT:
            with suppress(ValueError):
                value = loads(value.encode())
        if isinstance(value, Mapping):
            pending.extend((_plain(key), each) for key, each in islice(value.items(), MAX_FIELDS))
            if name in WAIT_FIELDS:
                yield name, value.get("seconds")
        elif isinstance(value, list | tuple):
            pending.extend((name, each) for each in value[:MAX_FIELDS])
        else:
            yield name, value


def _plain(name: Any) -> str:
    return str(name).replace("-", "").replace("_", "").lower()


def _texts(fields: list[tuple[str, Any]]) -> str:
    """Return the fields as lines, without addresses: only the beginning of long ones."""
    text = "\n".join(
        f"{name}: {value[:MAX_TEXT] if isinstance(value, str) else value}" for name, value in fields
    )
    return re.sub(r"https?://\S+", "", text[:MAX_TEXT])


def _seconds_of(value: Any) -> float:
    """Return the seconds that a value of JSON states, 0 if it states none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    seconds = parse_duration(str(value)) if is_number or isinstance(value, str) else None
    return seconds if seconds and seconds <= MAX_SECONDS else 0.0


# ---- words

_PART = (
    r"\d{1,9}(?:\.\d{1,12})?\s?"
    r"(?:ms|millis(?:econds?)?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
)
_DURATION = rf"{_PART}(?:(?:,?\s?(?:and\s)?){_PART}){{0,4}}"
_ABOUT = r"(?:about |around |approximately |at least |another |~ ?)?"
_WAIT = (
    rf"(?:try again|retry)[ _-]?(?:[a-z]{{1,12}} ){{0,4}}?(?:in|after|delay)[^\w.-]{{1,8}}{_ABOUT}({_DURATION})",  # noqa: E501
    r"retry[ _-]?(?:after|delay)[^\w.-]{1,8}(?:seconds\W{1,3})?(\d{1,6}(?:\.\d{1,9})?)(?![\d:/-]|\.\d| ?[a-z])",  # noqa: E501
    rf"(?:please|must|should|to|and|then|^|[.!:\"'\n])\s?wait (?:for )?{_ABOUT}({_DURATION})",
    rf"\b(?:resets?|available(?: again)?) (?:in|after):? {_ABOUT}({_DURATION})",
)


def _wait_in_words(text: str) -> float:
    """Return the seconds in "Please try again in 1m2.5s", "Please retry after 26 seconds",
    "retry_delay { seconds: 40 }" ...
    """
    found = next(filter(None, (re.search(pattern, text, re.IGNORECASE) for pattern in _WAIT)), None)
    return _seconds_of(found[1].lower()) if found else 0.0


# ---- headers


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks to wait; None if it does not ask, or the header is
    invalid.
    """
    if (ms := _number(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    # the prefix is of LiteLLM
    header = headers.get("retry-after") or headers.get("llm_provider-retry-after")
    seconds = _number(header)
    if seconds is not None or not header:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        seconds = _seconds_until(parsedate_to_datetime(header))
    except (ValueError, OverflowError):
        return None
    return seconds if seconds >= 0 else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


# requests left, their reset, tokens left, their reset: OpenAI and most others, Anthropic, the
# IETF's draft
_RATE_LIMIT_HEADERS = (
    tuple(
        f"x-ratelimit-{what}"
        for what in ("remaining-requests", "reset-requests", "remaining-tokens", "reset-tokens")
    ),
    tuple(
        f"anthropic-ratelimit-{what}"
        for what in ("requests-remaining", "requests-reset", "tokens-remaining", "tokens-reset")
    ),
    ("ratelimit-remaining", "ratelimit-reset", "", ""),
)


def parse_rate_limits(headers: Mapping[str, str]) -> RateLimitStatus | None:
    """Return the rate limits in the headers; None if there are none. An invalid value counts as
    unknown.
    """
    for requests, requests_reset, tokens, tokens_reset in _RATE_LIMIT_HEADERS:
        if requests in headers or tokens in headers:
            return RateLimitStatus(
                _parse_count(headers.get(requests)),
                _parse_count(headers.get(tokens)),
                parse_duration(headers.get(requests_reset)),
                parse_duration(headers.get(tokens_reset)),
            )
    return None


def _parse_count(text: str | None) -> int | None:
    return int(text) if text and len(text) < 18 and text.isdecimal() else None


def _wait_for_reset(fields: list[tuple[str, Any]]) -> float:
    """Return the seconds until every exhausted limit is reset; where no field says what is left,
    until the first reset; or 0.

    `fields` are headers, or fields of a body that quotes them.
    """
    limits = {_plain(name): value for name, value in fields if "ratelimit" in _plain(name)}
    exhausted, unclear = [0.0], []
    for name, value in limits.items():
        if "reset" in name and (seconds := _seconds_of(value)):
            left = limits.get(name.replace("reset", "remaining"))
            if left is None:
                unclear.append(seconds)
            elif _number(str(left)) == 0:
                exhausted.append(seconds)
    return max(exhausted) or min(unclear, default=0.0)


def parse_duration(text: str | None) -> float | None:
    """Return the seconds in "6m0s", "120 ms" or "1.5", or until a date: ISO 8601, or a number since
    1970; else None.
    """
    if not text or len(text) > 40:
        return None
    if (seconds := _number(text)) is not None:
        if seconds < MIN_EPOCH:
            return seconds
        return max(
            seconds / (1000 if seconds >= MIN_EPOCH_MS else 1) - datetime.now(UTC).timestamp(), 0.0
        )
    text = text.strip()
    if re.fullmatch(_DURATION, text):
        return sum(
            float(number) * _unit(unit) for number, unit in re.findall(r"([\d.]+)\s?([a-z]+)", text)
        )
    try:
        return max(_seconds_until(datetime.fromisoformat(text)), 0.0) if "T" in text else None
    except ValueError:
        return None


def _unit(name: str) -> float:
    """Return the seconds of a unit, such as "ms", "minutes" or "h"."""
    return (
        0.001
        if name.startswith(("ms", "mill"))
        else {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}[name[0]]
    )


def _seconds_until(date: datetime) -> float:
    return (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
