"""How a run finds out how many calls an endpoint can take, from a cold start, with servers that
take few calls or many.

The servers are simulated, and so is the time. What is counted is what a server notices: calls that
it had to refuse, and the most that were sent to it at a time.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial

import pytest

from fake_clock import FakeClock
from redraft.errors import ModelTimeoutError, ModelUnavailableError, RateLimitError
from redraft.middleware import EndpointLimiter
from redraft.middleware.retry import retry
from redraft.protocols import Reply, Request
from redraft.runs.endpoints import LimitedEndpoints
from redraft.settings import EndpointLimits
from redraft.usage import Usage

ASK = Request(({"role": "user", "content": "x"},), max_tokens=50)
OK = Reply("ok", Usage(1, 100, 10, cost=None))
TRIP = 0.05  # seconds from the client to the server and back
ATTEMPTS = 9  # of a call in a batch
SLOTS_FOR_ALL = pytest.param(512, 0, marks=pytest.mark.slow)  # thousands of calls


@dataclass
class Server:
    """A server that answers `slots` calls at a time, each in `seconds`.

    It lets further calls wait ("queue"), or refuses them at once ("refuse") or after the time of an
    answer ("refuse late").
    """

    slots: int
    manner: str
    seconds: float
    timeout: float = 600.0
    name = identity = "server"
    here: int = 0
    most_here: int = 0
    refused: int = 0
    timed_out: int = 0
    full_at: float | None = None
    busy: int = 0
    queue: asyncio.Semaphore = field(init=False)

    def __post_init__(self):
        self.queue = asyncio.Semaphore(self.slots)

    async def complete(self, request):
        self.here += 1
        self.most_here = max(self.most_here, self.here)
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.sleep(TRIP / 2)
                await self.answer()
                await asyncio.sleep(TRIP / 2)
        except TimeoutError:
            self.timed_out += 1
            raise ModelTimeoutError("too late") from None
        finally:
            self.here -= 1
        return OK

    async def answer(self):
        if self.busy >= self.slots and self.manner != "queue":
            self.refused += 1
            if self.manner == "refuse":
                await asyncio.sleep(TRIP / 2)
                raise RateLimitError("status 429", status=429)
            await asyncio.sleep(self.seconds)
            raise ModelUnavailableError("status 503", status=503, retryable=True)
        async with self.queue:
            self.busy += 1
            if self.full_at is None and self.busy >= 0.9 * min(self.slots, 512):
                self.full_at = asyncio.get_running_loop().time()
            try:
                await asyncio.sleep(self.seconds)
            finally:
                self.busy -= 1


@pytest.fixture
def send(monkeypatch):
    """A function that sends calls to a server with the limits of a batch. It returns the server,
    and the time taken.
    """

    async def main(calls, slots, manner, seconds=1.0, timeout=600.0):
        clock = asyncio.get_running_loop().time
        monkeypatch.setattr(
            "redraft.runs.endpoints.EndpointLimiter", partial(EndpointLimiter, clock=clock)
        )
        server = Server(slots, manner, seconds, timeout)
        endpoints = LimitedEndpoints(
            EndpointLimits(), 512, lambda *_: None, lambda _: None, timeout
        )
        call = retry(endpoints.hold(server.complete, server), attempts=ATTEMPTS)
        async with asyncio.TaskGroup() as group:
            for _ in range(calls):
                while endpoints.free_slots <= 0:
                    await endpoints.wait_for_free_slots()
                group.create_task(call(ASK))
                await asyncio.sleep(0.0005)  # the CPU time for a row
        return server, clock()

    def send(*given):
        with asyncio.Runner(loop_factory=FakeClock) as runner:
            return runner.run(main(*given))

    return send


@pytest.mark.slow
def test_an_endpoint_that_takes_all_calls_is_in_full_use_after_two_rounds(send):
    """The first sixteen take a second, 128 more take another, and half a second later 460 are in
    flight.
    """
    server, took = send(4096, 512, "queue")
    assert server.full_at <= 2.6
    assert took <= 8 * (1 + TRIP) + 2.6
    assert server.most_here == 512


@pytest.mark.parametrize(("slots", "refused"), [(4, 30), (16, 30), (64, 30), SLOTS_FOR_ALL])
def test_an_endpoint_that_refuses_at_once_refuses_few_calls(send, slots, refused):
    """About as many as are sent until the first refusal arrives, however many it takes; and no call
    fails in the end.
    """
    server, _ = send(max(300, 15 * slots), slots, "refuse")
    assert server.refused <= refused
    assert server.full_at <= 2.6


@pytest.mark.parametrize(("slots", "refused"), [(4, 30), (16, 120), (64, 120), SLOTS_FOR_ALL])
def test_an_endpoint_that_refuses_late_refuses_one_round_of_calls(send, slots, refused):
    """As its refusals take as long as answers, all calls that were sent meanwhile are refused once;
    none fails in the end.
    """
    server, _ = send(max(300, 15 * slots), slots, "refuse late")
    assert server.refused <= refused
    assert server.most_here <= max(128, slots)


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    ("slots", "seconds", "timeout", "most"),
    [
        (1, 1, 600, 65),
        (4, 1, 600, 250),
        (4, 1, 100, 45),
        (1, 10, 600, 32),
        (4, 10, 600, 32),
        (16, 10, 600, 100),
        (4, 10, 100, 32),
    ],
)
def test_calls_do_not_queue_for_long_at_an_endpoint_that_takes_few(
    send, slots, seconds, timeout, most
):
    """No more wait than it answers in a tenth of the timeout, or twice the first sixteen; so none
    times out.
    """
    server, took = send(400, slots, "queue", seconds, timeout)
    assert server.most_here <= most
    assert server.timed_out == 0
    assert took <= 1.05 * 400 * seconds / slots + TRIP
