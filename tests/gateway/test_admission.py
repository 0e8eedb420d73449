"""Slots and the queue: limits, order, fairness, bounded waiting, requests that leave, drain."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.gateway.admission import Admission
from redraft.gateway.config import GatewayLimits
from redraft.gateway.exchange import GatewayError


def admission_of(concurrent=2, queue=4, seconds=60.0):
    return Admission(
        GatewayLimits(max_concurrent=concurrent, max_queue=queue, queue_seconds=seconds)
    )


class Client:
    """A request that holds its slot until it is told to leave."""

    def __init__(self, admission, caller, served, number=0):
        self.caller, self.number = caller, number
        self.leave = asyncio.Event()
        self.state, self.error = "gone", None  # unless it starts
        self.task = asyncio.create_task(self._run(admission, served))

    async def _run(self, admission, served):
        self.state = "waiting"
        try:
            async with admission.slot(self.caller):
                self.state = "active"
                served.append(self)
                await self.leave.wait()
            self.state = "gone"
        except GatewayError as error:
            self.state, self.error = "refused", error
        except asyncio.CancelledError:
            self.state = "gone"
            raise


async def settle():
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def end(clients):
    for client in clients:
        client.task.cancel()
        with suppress(asyncio.CancelledError):
            await client.task


async def test_requests_of_one_caller_are_served_in_order():
    """Two work, the others wait in order, and one more than the queue holds is told when to come
    back.
    """
    admission, served = admission_of(), []
    clients = [Client(admission, "a", served, n) for n in range(7)]
    await settle()
    assert [client.number for client in served] == [0, 1]
    assert (admission.active, admission.waiting) == (2, 4)
    assert (clients[6].error.status, clients[6].error.retry_after) == (503, 2.5)
    for client in clients[:6]:
        client.leave.set()
        await settle()
    assert [client.number for client in served] == [0, 1, 2, 3, 4, 5]
    assert (admission.active, admission.waiting) == (0, 0)


async def test_a_caller_cannot_keep_the_others_out():
    """A full queue makes room for another caller, and callers take turns."""
    admission, served = admission_of(concurrent=1), []
    greedy = [Client(admission, "greedy", served, n) for n in range(5)]
    await settle()
    other = Client(admission, "other", served)
    await settle()
    assert greedy[4].state == "refused" and other.state == "waiting"
    for client in greedy[:2]:
        client.leave.set()
    await settle()
    assert other.state == "active" and greedy[2].state == "waiting"
    await end([*greedy, other])


async def test_who_gives_up_a_place_in_a_full_queue():
    """The latest of the caller with the longest queue, for a caller whose own stays shorter than
    that; else who comes is refused.
    """
    admission, served, clients = admission_of(concurrent=1), [], []
    queues = []
    for number, caller in enumerate("aaaaabbbccbd"):
        clients.append(Client(admission, caller, served, number))
        await settle()
        waiting = [client for client in clients if client.state == "waiting"]
        queues.append(" ".join(f"{client.caller}{client.number}" for client in waiting))
    assert queues[4:] == [
        "a1 a2 a3 a4",
        "a1 a2 a3 b5",  # for the first of b
        "a1 a2 b5 b6",
        "a1 a2 b5 b6",  # a third of b is refused
        "a1 b5 b6 c8",
        "a1 b5 b6 c8",  # a second of c would have as long a queue as b
        "a1 b5 b6 c8",
        "a1 b5 c8 d11",
    ]
    await end(clients)


async def test_who_was_there_before_is_not_overtaken_by_a_new_caller():
    """A new caller counts as served when it came: it waits for one turn of the others, and not for
    two.
    """
    admission, served = admission_of(concurrent=1), []
    clients = [Client(admission, caller, served, number) for number, caller in enumerate("aaab")]
    for client in (0, 1, 3, 2):
        await settle()
        clients[client].leave.set()
    await settle()
    assert [client.number for client in served] == [0, 1, 3, 2]
    await end(clients)


async def test_the_caller_with_the_fewest_requests_at_work_is_next():
    """A caller that holds most slots waits behind one that holds none, whoever came first."""
    admission, served = admission_of(concurrent=3), []
    first = [Client(admission, "a", served, n) for n in range(5)]
    await settle()
    second = [Client(admission, "b", served, n) for n in range(2)]
    await settle()
    first[0].leave.set()
    await settle()
    assert [client.state for client in second] == ["active", "waiting"]
    await end([*first, *second])


async def test_nobody_waits_longer_than_the_limit():
    """A request that waited too long is refused, and its place is free."""
    admission, served = admission_of(concurrent=1, seconds=0.05), []
    holder, waiter = Client(admission, "a", served), Client(admission, "b", served)
    await asyncio.wait_for(waiter.task, 60)
    assert waiter.error.status == 503 and "0.05 s" in waiter.error.message
    assert admission.waiting == 0
    await end([holder])
    assert admission.active == 0


async def test_a_slot_is_not_lost_with_a_request_that_leaves_as_it_gets_it():
    """Cancelled in the moment between the grant and its next step, a request passes the slot on."""
    admission, served = admission_of(concurrent=1), []
    clients = [Client(admission, "a", served, n) for n in range(3)]
    await settle()
    clients[0].leave.set()
    while admission.waiting == 2:
        await asyncio.sleep(0)
    clients[1].task.cancel()
    await settle()
    assert clients[1].state == "gone" and clients[2].state == "active"
    await end(clients)
    assert (admission.active, admission.waiting) == (0, 0)


async def test_a_request_cancelled_in_the_queue_leaves_it():
    """Its place is free, and a slot that becomes free at the same moment goes to the next."""
    admission, served = admission_of(concurrent=1), []
    clients = [Client(admission, "a", served, n) for n in range(3)]
    await settle()
    clients[1].task.cancel()
    clients[0].leave.set()
    await settle()
    assert [client.state for client in clients] == ["gone", "gone", "active"]
    await end(clients)


@pytest.mark.parametrize(
    ("durations", "concurrent", "queue", "waiting", "seconds"),
    [
        ([], 1, 0, 0, 1.0),
        ([], 1, 3, 3, 4.0),  # four turns of what a request is taken to last
        ([], 4, 2, 2, 1.0),  # never less than a second
        ([], 2, 2, 2, 1.5),
        ([31.0], 1, 1, 1, 8.0),  # two turns of the mean, 1 + 0.1 x (31 - 1) seconds
        ([31.0, 24.0], 1, 0, 0, 6.0),
        ([31.0, 0.0], 2, 4, 4, 9.0),
        ([591.0], 1, 0, 0, 60.0),
        ([601.0], 1, 0, 0, 60.0),  # never more than a minute
    ],
)
async def test_a_full_queue_says_how_long_it_is(durations, concurrent, queue, waiting, seconds):
    """The mean duration of the requests so far, the latest weighing a tenth, for each that waits
    and oneself, by the slots.
    """
    now, served = [0.0], []
    admission = Admission(GatewayLimits(max_concurrent=concurrent, max_queue=queue), lambda: now[0])
    for duration in durations:
        async with admission.slot():
            now[0] += duration
    clients = [Client(admission, "a", served) for _ in range(concurrent + waiting)]
    await settle()
    refused = Client(admission, "a", served)
    await settle()
    assert (admission.active, admission.waiting, refused.state) == (concurrent, waiting, "refused")
    assert refused.error.retry_after == pytest.approx(seconds)
    assert refused.error.message == f"the gateway is busy: {waiting} requests are waiting"
    await end(clients)


async def test_drain_ends_when_the_last_request_has_ended():
    """Requests at work finish; those that wait and those that come are refused."""
    admission, served = admission_of(concurrent=1), []
    holder, waiter = Client(admission, "a", served), Client(admission, "a", served)
    await settle()
    admission.drain()
    late = Client(admission, "b", served)
    await settle()
    assert waiter.error.status == late.error.status == 503
    idle = asyncio.create_task(admission.wait_until_idle())
    await settle()
    assert not idle.done()
    holder.leave.set()
    await asyncio.wait_for(idle, 60)


async def test_larger_limits_admit_those_who_wait():
    """A reload of the configuration takes effect at once."""
    admission, served = admission_of(concurrent=1), []
    clients = [Client(admission, "a", served, n) for n in range(3)]
    await settle()
    admission.resize(GatewayLimits(max_concurrent=3))
    await settle()
    assert [client.state for client in clients] == ["active"] * 3
    await end(clients)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abc")),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.just(0)),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 3), st.integers(0, 4))
def test_limits_hold_and_no_slot_is_lost_in_any_order_of_events(events, concurrent, queue):
    """Never more at work or waiting than allowed; nobody waits beside a free slot; each caller's
    requests keep their order.
    """

    async def run():
        admission, served, clients = admission_of(concurrent, queue), [], []
        for kind, value in events:
            match kind:
                case "arrive":
                    clients.append(Client(admission, value, served, len(clients)))
                case "leave" if value < len(clients):
                    clients[value].leave.set()
                case "cancel" if value < len(clients):
                    clients[value].task.cancel()
                case "step":
                    await asyncio.sleep(0)
            assert admission.active <= concurrent and admission.waiting <= queue
        await settle()
        states = [client.state for client in clients]
        assert (
            states.count("active") == admission.active
            and states.count("waiting") == admission.waiting
        )
        assert not admission.waiting or admission.active == concurrent
        for caller in "abc":
            numbers = [client.number for client in served if client.caller == caller]
            assert numbers == sorted(numbers)
        await end(clients)
        assert (admission.active, admission.waiting) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("others", [1, 3])
def test_slots_are_shared_equally(others):
    """One caller floods the queue, others always have one request: each of these gets its share of
    all that is served.
    """

    async def run():
        admission, served = admission_of(concurrent=4, queue=20), []
        clients = [Client(admission, "flood", served, n) for n in range(24)]
        await settle()
        small = {name: Client(admission, name, served) for name in map(str, range(others))}
        for _ in range(40):
            await settle()
            next(client for client in served if client.state == "active").leave.set()
            await settle()
            clients.append(Client(admission, "flood", served))
            for name, client in small.items():
                if client.state == "gone":
                    small[name] = Client(admission, name, served)
        await settle()
        counts = [sum(client.caller == name for client in served) for name in small]
        assert min(counts) >= 40 // 4 - 2, counts
        await end([*clients, *small.values()])

    asyncio.run(run())
