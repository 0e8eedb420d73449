"""A request counts as a call if it was sent to the server, whatever its result."""

import asyncio
import resource
import socket
from contextlib import asynccontextmanager, contextmanager

import fault_server as fs
import pytest

import redraft
from each_row import each_row
from redraft.errors import ModelError
from redraft.models import Chat

NOTHING, UNKNOWN = (0, 0), (1, None)


@asynccontextmanager
async def answering(*script):
    async with fs.FaultServer().says(*script) as server:
        yield server.url, lambda: len(server.requests)


@asynccontextmanager
async def closed_port():
    """A port without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1", lambda: 0


@asynccontextmanager
async def full_server():
    """A server that accepts no connection."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listening,
        socket.socket() as first,
        socket.socket() as second,
    ):
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", lambda: 0


@asynccontextmanager
async def no_descriptors():
    """A machine on which no more sockets can be opened."""
    async with answering(fs.good()) as (url, asked):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with few_descriptors(hard):
            yield url, asked
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def few_descriptors(hard):
    """Use up the file descriptors below a limit."""
    taken = [socket.socket()]
    most = taken[0].fileno() + 8
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        while True:
            try:
                taken.append(socket.socket())
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            each.close()


async def hang(writer):
    await asyncio.Event().wait()


async def hang_up(writer):
    writer.transport.abort()


async def begin(writer):
    writer.write(fs.good()[:50])
    await asyncio.Event().wait()


LEAVES_WAITING = {"never answered", "half an answer", "nobody lets us in", "no descriptors"}

SENT = {
    "answered": (lambda: answering(fs.good(usage=(7, 3))), (1, 10)),
    "refused": (lambda: answering(fs.error(400, "no")), (1, 0)),
    "no usage": (lambda: answering(fs.good(usage=None)), UNKNOWN),
    "hung up after the request": (lambda: answering(hang_up), UNKNOWN),
    "never answered": (lambda: answering(hang), UNKNOWN),
    "half an answer": (lambda: answering(begin), UNKNOWN),
    "nobody there": (closed_port, NOTHING),
    "nobody lets us in": (full_server, NOTHING),
    "no descriptors": (no_descriptors, NOTHING),
}


ENDS = [
    (case, ends)
    for case in SENT
    for ends in ("timeout", "deadline", "cancel")
    if (case, ends) != ("no descriptors", "timeout")
]
"""A wait for a descriptor is none of the timeout."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("case", "ends"), ENDS)
@pytest.mark.slow(but_each=3)
async def test_sent_requests_count_as_calls(case, stream, ends):
    """However the run ends, it counts the requests that were sent and knows only the usage that the
    server reported.
    """
    where, (calls, tokens) = SENT[case]
    async with where() as (url, asked):
        used = await usage_of(
            Chat("m", url, stream=stream), ends, 2.0 if case in LEAVES_WAITING else 60.0
        )
        assert (used.calls, used.tokens) == (calls, tokens)
        assert asked() == calls


async def usage_of(model, ends, after):
    """Return the usage of a draft, cut short if need be."""
    limits = {"retries": 0, "max_iterations": 0} | ({ends: after} if ends != "cancel" else {})
    try:
        async with asyncio.timeout(after if ends == "cancel" else None):
            return (await redraft.refine("q", model, lambda text: 1.0, **limits)).usage
    except redraft.errors.RedraftError as error:
        return error.usage
    except TimeoutError as late:
        return late.__context__.result.usage


async def test_unsent_attempts_are_no_retries():
    """A failed connection is tried again, and the request that is sent then counts as the first."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"

    async def late_server():
        await asyncio.sleep(0.1)
        server = fs.FaultServer().says(fs.good())
        server._tasks = set()
        server._server = await asyncio.start_server(server._serve, sock=bound)
        return server

    opening = asyncio.ensure_future(late_server())
    result = await redraft.refine("q", Chat("m", url), lambda text: 1.0, retries=20)
    server = await opening
    assert (result.usage.calls, result.usage.retried_calls) == (len(server.requests), 0) == (1, 0)
    await server.__aexit__()


async def test_cancelled_retries_count_every_attempt():
    """Two rejections and one cancelled wait are three calls, one of them of unknown usage."""
    async with fs.FaultServer().says(fs.error(503), fs.error(503), hang) as server:
        work = asyncio.ensure_future(redraft.refine("q", Chat("m", server.url), lambda text: 1.0))
        while len(server.requests) < 3:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError) as cut:
            await work
    used = cut.value.result.usage
    assert (used.calls, used.retried_calls, used.tokens) == (3, 2, None)


@each_row("turns", range(1, 31))
async def test_a_cancelled_call_counts_only_if_it_was_sent(turns):
    """In whichever turn of the event loop the cancellation comes."""
    async with fs.FaultServer().says(hang) as server:
        model = Chat("m", server.url)
        work = asyncio.ensure_future(redraft.refine("q", model, lambda text: 1.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError) as cut:
            await work
        result = getattr(cut.value, "result", None)
        calls = result.usage.calls if result else 0
        async with asyncio.timeout(60):
            while len(server.requests) < calls:  # one that was sent arrives
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # one that was not sent does not
        assert len(server.requests) == calls


async def test_function_model_counts_its_own_requests():
    """A callable that sends two requests for an answer has made two calls."""
    async with fs.FaultServer().says(fs.good("a")) as server:
        chat = Chat("m", server.url)

        async def twice(messages):
            for _ in range(2):
                reply = await chat.complete(redraft.protocols.Request(tuple(messages)))
            return reply.text

        result = await redraft.refine("q", twice, lambda text: 1.0)
        assert result.usage.calls == len(server.requests) == 2


async def test_custom_model_error_counts_the_call():
    """Its usage is unknown, not zero."""

    async def refuses(messages):
        raise ModelError("no")

    with pytest.raises(ModelError) as caught:
        await redraft.refine("q", refuses, lambda text: 1.0, retries=0)
    assert (caught.value.usage.calls, caught.value.usage.tokens) == UNKNOWN
