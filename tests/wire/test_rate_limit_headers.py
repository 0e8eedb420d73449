"""Rate limits in an endpoint's headers, and how calls follow them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from each_row import each_row
from redraft.errors import RateLimitError
from redraft.middleware import EndpointLimiter, limit_endpoint
from redraft.middleware.retry import retry
from redraft.models import Chat
from redraft.models.waits import parse_duration, parse_rate_limits
from redraft.protocols import RateLimitStatus, Request

from . import fault_server as fs

OPENAI = {
    "X-RateLimit-Limit-Requests": "60",
    "X-RateLimit-Remaining-Requests": "59",
    "X-RateLimit-Reset-Requests": "1s",
    "X-RateLimit-Remaining-Tokens": "149984",
    "X-RateLimit-Reset-Tokens": "6m0s",
}
EMPTY = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "250ms"}


@pytest.mark.parametrize(
    ("headers", "pace"),
    [
        (OPENAI, RateLimitStatus(59, 149984, 1.0, 360.0)),
        (
            {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "7.66s"},
            RateLimitStatus(None, 0, None, 7.66),
        ),
        (
            {"RateLimit-Remaining": "3", "RateLimit-Reset": "20"},
            RateLimitStatus(3, None, 20.0, None),
        ),
        (
            {
                "anthropic-ratelimit-requests-remaining": "4",
                "anthropic-ratelimit-tokens-remaining": "0",
            },
            RateLimitStatus(4, 0),
        ),
        (
            {"x-ratelimit-remaining-requests": "-1", "x-ratelimit-reset-requests": "soon"},
            RateLimitStatus(),
        ),
        (
            {"x-ratelimit-remaining-requests": "9" * 5000, "x-ratelimit-remaining-tokens": "1e3"},
            RateLimitStatus(),
        ),
        ({"x-ratelimit-limit-requests": "60"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_reply_carries_the_rate_limit_headers(faults, ask, headers, pace, stream):
    """The forms of OpenAI, Anthropic and the IETF are read; invalid values and missing headers give
    nothing.
    """
    body = fs.sse(fs.chunk("fine"), fs.chunk(finish="stop"))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
    faults.says(
        body.replace(b"Connection: close\r\n", b"Connection: close\r\n" + lines)
        if stream
        else fs.good().replace(b"\r\n", b"\r\n" + lines, 1)
    )
    reply = await Chat("m", faults.url, stream=stream).complete(ask())
    assert (reply.text, reply.rate_limit_status) == ("fine", pace)


@each_row(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("120ms", 0.12),
        ("1h2m3.5s", 3723.5),
        ("1d", 86400.0),
        ("20", 20.0),
        ("0.5", 0.5),
        ("0s", 0.0),
        (" 7.66s ", 7.66),
        ("", None),
        (None, None),
        ("-1s", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("1s later", None),
        ("1" * 400 + "s", None),
        ("Tuesday", None),
        ("2000-01-01T00:00:00Z", 0.0),
    ],
)
def test_durations(text, seconds):
    """A duration gives seconds or None."""
    assert parse_duration(text) == (seconds if seconds is None else pytest.approx(seconds))


def test_reset_timestamp_gives_the_remaining_time():
    """Anthropic sends a timestamp."""
    then = datetime.now(UTC) + timedelta(seconds=30)
    pace = parse_rate_limits(
        {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": then.isoformat(),
        }
    )
    assert pace is not None
    assert 28 < pace.wait <= 30


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "6m0s",
                "Retry-After": "2",
            },
            2.0,
        ),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "3"}, 3.0),
        ({"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "6m0s"}, None),
        ({"x-ratelimit-remaining-requests": "0"}, None),
        ({}, None),
    ],
)
async def test_rejection_without_retry_after_waits_for_the_reset(faults, ask, headers, seconds):
    """The reset of the exhausted limit counts, unless the server sends Retry-After."""
    faults.says(fs.error(429, "slow down", headers))
    with pytest.raises(RateLimitError) as caught:
        await Chat("m", faults.url).complete(ask())
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("11520", "3 h 12 min"),
        ("3600", "1 h"),
        ("200", "3 min"),
        ("190800", "2 d 5 h"),
        ("1e15", "11574074074 d"),
    ],
)
async def test_long_wait_is_an_error(faults, asked, words):
    """The error gives the wait, its end, the status and the seconds, and no call is made
    meanwhile.
    """
    faults.says(fs.error(429, "slow down", {"Retry-After": asked}))
    asking = retry(Chat("m", faults.url).complete)
    with pytest.raises(
        RateLimitError,
        match=rf"the endpoint asks to wait {words}[^,]*, until (\d{{4}}-\d\d-\d\d \d\d:\d\d UTC|the)",
    ) as caught:
        await asking(Request(({"role": "user", "content": "hello"},)))
    assert (caught.value.status, caught.value.retry_after) == (429, float(asked))
    assert len(faults.requests) == 1


async def test_limiter_waits_for_the_reset(faults, ask):
    """The last request of a period succeeds, and the next one is sent in the next period."""
    faults.says(
        fs.good("one").replace(b"\r\n", b"\r\n" + fs._header_lines(EMPTY).encode(), 1),
        fs.good("two"),
    )
    gate = EndpointLimiter("here")
    call = limit_endpoint(Chat("m", faults.url).complete, gate)
    assert (await call(ask())).text == "one"
    assert (gate.free_slots, gate.state[:13]) == (0, "paused until ")
    assert (await call(ask())).text == "two"
    assert (gate.state, gate.in_flight) == ("", 0)


async def test_rate_limits_do_not_affect_equality(faults, ask):
    """Two replies that differ only in their rate limits are equal."""
    faults.says(
        fs.good().replace(b"\r\n", b"\r\n" + fs._header_lines(EMPTY).encode(), 1), fs.good()
    )
    chat = Chat("m", faults.url)
    first, second = await chat.complete(ask()), await chat.complete(ask())
    assert first.rate_limit_status != second.rate_limit_status
    assert first == second
