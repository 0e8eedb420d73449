"""Log records under "redraft": retries, pauses and outages, without content or keys, with a real
misbehaving server.
"""

import asyncio
import logging
import subprocess
import sys

import pytest

import redraft
from redraft.base.log import log
from redraft.errors import ModelError
from redraft.middleware.endpoint_limiter import EndpointLimiter, limit_endpoint
from redraft.models import Chat

from . import fault_server as fs

SECRETS = ("sk-canary-4711", "hello", "fine", "the server quotes")


def lines(caplog, name):
    log_lines = [f"{r.levelname} {r.getMessage()}" for r in caplog.records if r.name == name]
    assert not any(secret in line for line in log_lines for secret in SECRETS), log_lines
    return log_lines


@pytest.fixture(autouse=True)
def at_info(caplog):
    caplog.set_level(logging.INFO, "redraft")


async def test_retries_are_logged(faults, caplog):
    """Each repeated call logs the model, the kind of error, the attempt and the wait."""
    faults.says(
        fs.error(500, "the server quotes: hello"),
        fs.error(429, "slow down, sk-canary-4711"),
        fs.good("fine"),
    )
    model = Chat("m", faults.url, key="sk-canary-4711")
    result = await redraft.refine("hello", model, graders=lambda text: 1.0, retries=3)
    assert result.value == "fine"
    first, second = lines(caplog, "redraft.retry")
    assert first.startswith("INFO ")
    assert "(model m): ModelUnavailableError (status 500); retry 1 of 3 in " in first
    assert "(model m): RateLimitError (status 429); retry 2 of 3 in " in second


class Clock:
    """A clock that advances only while a caller sleeps."""

    now = 0.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def call_through_limiter(faults, **options):
    """Call the server through an endpoint limiter."""
    clock = Clock()
    return limit_endpoint(
        Chat("m", faults.url).complete,
        EndpointLimiter("host", clock=clock, sleep=clock.sleep, **options),
    )


async def test_pauses_are_logged(faults, ask, caplog):
    """A short pause is logged at INFO, one of more than two minutes as a warning."""
    call = call_through_limiter(faults)
    faults.says(
        fs.error(429, "hello", {"retry-after": "7"}),
        fs.error(429, "hello", {"retry-after": "300"}),
        fs.good("fine"),
    )
    with pytest.raises(ModelError):
        await call(ask())
    await call(ask())
    short, long = lines(caplog, "redraft.endpoint")
    assert short.startswith("INFO host: paused until ")
    assert short.endswith("(for 7 s) after RateLimitError (status 429)")
    assert long.startswith("WARNING host: paused until ")
    assert long.endswith("(for 5 min) after RateLimitError (status 429)")


async def test_outage_is_logged_at_its_start_and_end(faults, ask, caplog):
    """There is one record for each, however many calls failed."""
    call = call_through_limiter(faults)
    faults.says(*[fs.error(500, "the server quotes: hello")] * 12, fs.good("fine"))
    for _ in range(7):
        with pytest.raises(ModelError):
            await call(ask())
    await call(ask())
    down, back = lines(caplog, "redraft.endpoint")
    assert (
        down
        == "WARNING host: down after ModelUnavailableError (status 500); calls wait, one at a time probes"
    )
    assert back.startswith("WARNING host: back after ")


async def test_rejected_key_is_logged(faults, ask, caplog):
    """An error that affects every call stops the endpoint and is logged once."""
    halted = []
    call = call_through_limiter(faults, on_fatal=halted.append, use_probes=False)
    faults.says(fs.error(401, "the server quotes sk-canary-4711"))
    waiting = asyncio.ensure_future(call(ask()))
    while not halted:
        await asyncio.sleep(0)
    waiting.cancel()
    assert lines(caplog, "redraft.endpoint") == [
        "WARNING host: stopped by AuthenticationError (status 401); no more calls"
    ]


def test_no_output_by_default():
    """Without configured logging nothing is written, and importing redraft does not import
    logging.
    """
    assert any(isinstance(handler, logging.NullHandler) for handler in log.handlers)
    script = "import sys, redraft; print('logging' in sys.modules); from redraft.base.log import log; log.warning('x')"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (ended.stdout.strip(), ended.stderr) == ("False", "")
