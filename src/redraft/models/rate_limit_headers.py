"""Read the headers in which servers announce rate limits: `Retry-After` and the `ratelimit` families."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ..protocols import RateLimitStatus


def retry_delay(status: int, headers: Mapping[str, str]) -> float | None:
    """Retry-After; without one, after a 429, the time at which what is used up comes back."""
    after = parse_retry_after(headers)
    if after is None and status == 429 and (pace := parse_rate_limits(headers)):
        return pace.wait or None
    return after


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """How many seconds the server asks to wait; None when it does not say, or says nonsense."""
    if (ms := _seconds(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    given = headers.get("Retry-After")
    seconds = _seconds(given)
    return _seconds_until_http_date(given) if seconds is None and given else seconds


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_until_http_date(date: str) -> float | None:
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    seconds = (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return seconds if seconds >= 0 else None


_RATE_LIMIT_HEADERS = (  # requests left, their reset, tokens left, their reset: OpenAI and most others, Anthropic, the IETF's draft
    tuple(f"x-ratelimit-{what}" for what in ("remaining-requests", "reset-requests", "remaining-tokens", "reset-tokens")),
    tuple(f"anthropic-ratelimit-{what}" for what in ("requests-remaining", "requests-reset", "tokens-remaining", "tokens-reset")),
    ("ratelimit-remaining", "ratelimit-reset", "", ""),
)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[dhms])")
_SECONDS_IN = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_rate_limits(headers: Mapping[str, str]) -> RateLimitStatus | None:
    """What the headers say of rate limits; None when they say nothing. Nonsense in one of them is not said."""
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


def parse_duration(text: str | None) -> float | None:
    """Seconds from "6m0s", "120ms", "1.5", or until an ISO 8601 date; None for anything else."""
    if not text or len(text) > 40:
        return None
    if (seconds := _seconds(text)) is not None:
        return seconds
    text = text.strip()
    parts = _DURATION.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * _SECONDS_IN[unit] for number, unit in parts)
    return _seconds_until_iso_date(text) if "T" in text else None


def _seconds_until_iso_date(date: str) -> float | None:
    try:
        then = datetime.fromisoformat(date)
    except ValueError:
        return None
    return max((then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
