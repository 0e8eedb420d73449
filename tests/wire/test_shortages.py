"""A shortage of this machine (descriptors, memory, ports, processes, threads) is waited for, and
blamed on nobody else.
"""

import asyncio
import errno
import fcntl
import os
import resource
import socket
import subprocess
from collections import Counter
from contextlib import contextmanager

import pytest

from redraft import ScriptedModel, Task, batch, refine
from redraft.base import descriptors
from redraft.base.descriptors import is_shortage
from redraft.base.masking import NO_SECRETS
from redraft.errors import ConfigError, ModelUnavailableError, ShortageError
from redraft.gateway.refining import gateway_error
from redraft.gateway.upstream_errors import error_from_failure
from redraft.graders import Jury
from redraft.middleware import shortage
from redraft.middleware.circuit_breaker import FAILURE_THRESHOLD
from redraft.middleware.endpoint_limiter import EndpointLimiter
from redraft.models import Chat, http_sessions
from redraft.models.client_packages import model_error
from redraft.models.http_client import HttpExchange, RequestTarget, Timeouts
from redraft.protocols import Reply, Request
from redraft.sandbox import tiers

from . import fault_server as fs

REQUEST = Request(({"role": "user", "content": "q"},))
SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS]
PLACES = ("socket", "lookup", "connect")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(http_sessions, "ROOM_SECONDS", 0.01)
    monkeypatch.setattr(shortage, "SHORTAGE_PAUSES", (0.0,) * 3)


@contextmanager
def no_descriptors():
    """Let this process open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors.open_descriptors(), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def fail(monkeypatch, place, number, times):
    """Let one step of connecting fail with an errno, some times; return how often it was made."""
    made = [0]

    def counted(function):
        def call(*args, **keywords):
            made[0] += 1
            if made[0] <= times:
                raise OSError(number, os.strerror(number))
            return function(*args, **keywords)

        return call

    if place == "socket":
        opened = http_sessions.HttpSession._open_socket
        monkeypatch.setattr(http_sessions.HttpSession, "_open_socket", counted(opened))
    elif place == "lookup":
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", counted(loop.getaddrinfo))
    else:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "sock_connect", counted(loop.sock_connect))
    return made


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", SHORTAGES, ids=errno.errorcode.get)
async def test_a_call_waits_until_there_is_room(faults, monkeypatch, place, number):
    """The call is answered after a while, and was sent once."""
    faults.says(fs.good("fine"))
    made = fail(monkeypatch, place, number, 3)
    reply = await Chat("m", faults.url.replace("127.0.0.1", "localhost")).complete(REQUEST)
    assert (reply.text, reply.usage.calls, len(faults.requests), made[0]) == ("fine", 1, 1, 4)


@pytest.mark.parametrize("place", PLACES)
async def test_a_call_that_finds_no_room_says_so(faults, monkeypatch, place):
    """It has an error of its own, which no request was sent for."""
    fail(monkeypatch, place, errno.EMFILE, 10**6)
    url = faults.url.replace("127.0.0.1", "localhost")
    exchange = HttpExchange(RequestTarget(url, timeouts=Timeouts(room=0.05)))
    with pytest.raises(OSError) as caught:
        await exchange.read_all("GET", None)
    error = exchange.to_model_error(caught.value)
    assert (type(error), error.retryable, error.usage.calls) == (ShortageError, True, 0)
    assert faults.requests == []


async def test_the_last_descriptors_are_held_back(faults):
    """With every descriptor in use nothing is looked up or connected, and the call goes on once one
    is closed.
    """
    faults.says(fs.good("fine"))
    model = Chat("m", faults.url)
    with no_descriptors():
        call = asyncio.ensure_future(model.complete(REQUEST))
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not call.done() and faults.requests == []
    assert (await call).text == "fine"


def test_some_descriptors_are_held_back_from_connections(monkeypatch):
    """An eighth, and at most 32."""
    found = []
    for limit in (16, 24, 128, 1024, 65536):
        monkeypatch.setattr(descriptors, "descriptor_limit", lambda limit=limit: limit)
        found.append(limit - descriptors.connection_limit())
    assert found == [2, 3, 16, 32, 32]


async def test_waiting_for_room_is_no_part_of_the_time_of_a_call(faults, monkeypatch):
    """A timeout would be blamed on the endpoint."""
    faults.says(fs.good("fine"))
    clock = [0.0]
    monkeypatch.setattr("redraft.models.http_client.monotonic", lambda: clock[0])
    fail(monkeypatch, "socket", errno.EMFILE, 1)
    wait = http_sessions.HttpSession.wait_for_room

    async def wait_long(self, error):
        await wait(self, error)
        clock[0] += 59.0

    monkeypatch.setattr(http_sessions.HttpSession, "wait_for_room", wait_long)
    exchange = HttpExchange(RequestTarget(faults.url, timeouts=Timeouts(total=5.0)))
    assert (await exchange.read_all("GET", None))[0] == 200


# ---- ports, processes, threads


@pytest.mark.parametrize(
    ("is_known", "kind"), [(True, ShortageError), (False, ModelUnavailableError)]
)
async def test_no_free_port_is_a_shortage_unless_the_address_is_unknown(
    faults, monkeypatch, is_known, kind
):
    """A machine without IPv6 gives the same errno for an address of it."""
    fail(monkeypatch, "connect", errno.EADDRNOTAVAIL, 10**6)
    if not is_known:
        monkeypatch.setattr(http_sessions, "_has_route", lambda address: False)
    exchange = HttpExchange(RequestTarget(faults.url, timeouts=Timeouts(room=0.0)))
    with pytest.raises(OSError) as caught:
        await exchange.read_all("GET", None)
    assert type(exchange.to_model_error(caught.value)) is kind


async def test_an_address_that_this_machine_can_reach_is_known():
    assert http_sessions._has_route((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 9)))
    assert not http_sessions._has_route(
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("240.0.0.1x", 9))
    )


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def fork_without_processes(monkeypatch):
    def no_process(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "_fork_exec", no_process)
    return raised(
        lambda: subprocess.run(["true"], close_fds=True, start_new_session=True, check=False)
    )


def taken_lock(folder):
    with open(folder / "lock", "w") as first, open(folder / "lock") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        return raised(lambda: fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB))


def test_what_counts_as_a_shortage(monkeypatch, tmp_path):
    """An errno that other things have as well is one only where a process or a thread is
    started.
    """
    caused = ConfigError("rules.txt cannot be read")
    caused.__cause__ = OSError(errno.EMFILE, "")
    shortages = [OSError(number, "") for number in SHORTAGES]
    shortages += [
        caused,
        fork_without_processes(monkeypatch),
        RuntimeError("can't start new thread"),
    ]
    assert [is_shortage(error) for error in shortages] == [True] * len(shortages)
    others = [
        OSError(number, "")
        for number in (errno.ENOSPC, errno.EACCES, errno.ECONNREFUSED, errno.EADDRNOTAVAIL)
    ]
    others += [
        taken_lock(tmp_path),
        BlockingIOError(errno.EAGAIN, ""),
        RuntimeError("no"),
        ValueError("no"),
    ]
    assert [is_shortage(error) for error in others] == [False] * len(others)


# ---- nobody else is blamed


async def test_no_shortage_counts_against_an_endpoint():
    """The circuit stays closed, the limit as it is, and a probe that could not be sent shows
    nothing.
    """
    limiter = EndpointLimiter("host", initial=8)
    for _ in range(2 * FAILURE_THRESHOLD):
        slot = await limiter.acquire()
        assert not limiter.record_failure(slot, ShortageError("no room"))
        limiter.release()
    assert (limiter.limit, limiter.state, limiter.free_slots) == (8, "", 8)
    for _ in range(FAILURE_THRESHOLD):
        limiter.record_failure(
            await limiter.acquire(), ModelUnavailableError("cannot be reached", retryable=True)
        )
        limiter.release()
    assert limiter.state.startswith("down")
    slot = limiter._admit(0.0)
    limiter.record_probe_failure(slot, ShortageError("no room"))
    assert limiter.state.startswith("down")


async def test_no_shortage_lets_another_model_answer():
    """A second model would have no more room."""

    class Short(ScriptedModel):
        async def complete(self, request):
            raise ShortageError("no room")

    second = ScriptedModel(["second"])
    with pytest.raises(ShortageError):
        await refine("q", [Short(["x"], name="a"), second], lambda text: 1.0, retries=0)
    assert second.calls == 0


@pytest.mark.parametrize(
    "describe",
    [lambda error: error_from_failure("m", error), gateway_error],
    ids=["pass", "refine"],
)
def test_a_gateway_asks_its_client_to_wait(describe):
    """It is no fault of the model, whose answer would be a 502."""
    error = describe(ShortageError("no room"))
    assert (error.status, error.code, error.reply_headers["retry-after"]) == (
        503,
        "overloaded",
        "5",
    )


def test_clients_of_other_packages_tell_a_shortage():
    error = ConnectionError("Connection error.")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert type(model_error(error, NO_SECRETS)) is ShortageError


def test_a_shortage_chooses_no_other_sandbox(monkeypatch):
    """The weaker one would be used for as long as the process lives."""
    tiers.choose_tier.cache_clear()

    def no_room(program):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tiers, "LAUNCHES", {**tiers.LAUNCHES, "bubblewrap": (no_room,)})
    with pytest.raises(OSError, match="Too many open files"):
        tiers.choose_tier("auto")
    tiers.choose_tier.cache_clear()


# ---- graders and rows


class ModelOf(ScriptedModel):
    """Answers what an asynchronous function returns for the prompt."""

    def __init__(self, answer):
        super().__init__([])
        self.answer = answer

    async def complete(self, request):
        return Reply(await self.answer(request.messages[-1]["content"]))


class ShortGrader:
    """A function that needs a file, which cannot be opened some times."""

    def __init__(self, times):
        self.times, self.calls = times, 0

    def __call__(self, text):
        self.calls += 1
        if self.calls <= self.times:
            raise OSError(errno.EMFILE, "Too many open files", "words.txt")
        return 1.0


async def test_a_grader_is_tried_again_until_there_is_room():
    grader = ShortGrader(3)
    result = await refine(Task("q", "fine"), ScriptedModel(["x"]), grader)
    assert (result.score, grader.calls) == (1.0, 4)


async def test_a_part_of_a_grader_is_tried_again_until_there_is_room():
    """Its vote is not lost, which would lower the number of votes behind the score."""
    grader = ShortGrader(3)
    result = await refine(
        Task("q", "fine"), False, Jury([lambda text: 0.5, grader, lambda text: 0.0])
    )
    assert (result.score, grader.calls) == (0.5, 4)


async def test_a_shortage_is_no_reason_to_ask_a_model_twice_in_one_try():
    """A grader that asks and then finds no room asks once for each try, and what still runs ends
    before the next.
    """
    asked, ended, tries = [], [], []

    async def answer(prompt):
        asked.append(prompt)
        if prompt == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(len(tries))
        return "yes"

    async def grade(text, ask):
        assert len(ended) == len(tries)
        tries.append(asyncio.ensure_future(ask("slow")))
        while asked.count("slow") < len(tries):
            await asyncio.sleep(0)
        await ask("quick")
        if len(tries) < 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return 1.0

    result = await refine(Task("q", "fine"), False, grade, judge=ModelOf(answer))
    assert (result.score, asked.count("quick"), len(tries), ended) == (1.0, 4, 4, [1, 2, 3, 4])


async def test_steps_try_again_one_at_a_time():
    """Else each takes what another needs, in the same moment."""
    at_work, most, failed = 0, 0, set()

    async def grade(text):
        nonlocal at_work, most
        if text not in failed:
            failed.add(text)
            raise OSError(errno.EMFILE, "Too many open files")
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return 1.0

    results = await asyncio.gather(
        *(refine(Task("q", f"fine {n}"), False, grade) for n in range(8))
    )
    assert ([result.score for result in results], most) == ([1.0] * 8, 1)


async def test_a_grader_that_refines_does_not_wait_for_itself():
    """Its step holds the turn of those that try again."""
    inner, outer = ShortGrader(1), ShortGrader(1)

    async def grade(text):
        outer(text)
        return (await refine(Task("q", "inner"), False, inner)).score

    async with asyncio.timeout(30):
        result = await refine(Task("q", "fine"), False, grade)
    assert (result.score, inner.calls, outer.calls) == (1.0, 2, 2)


async def test_steps_that_waited_in_vain_with_another_try_once_more():
    """A shortage that lasts costs the pauses once, not once for each of them."""
    calls, all_began = Counter(), asyncio.Event()

    async def grade(text):
        calls[text] += 1
        if len(calls) == 5:
            all_began.set()
        await all_began.wait()
        raise OSError(errno.EMFILE, "Too many open files")

    results = await asyncio.gather(
        *(refine(Task("q", f"fine {n}"), False, grade) for n in range(5))
    )
    assert [result.score for result in results] == [None] * 5
    assert sorted(calls.values()) == [2, 2, 2, 2, 4]


async def test_rows_that_fail_for_a_shortage_are_redone(tmp_path):
    """They are open, whatever was short, and the same command finishes them without asking again
    for what was answered.
    """
    model, grader = ScriptedModel(["fine"] * 9), ShortGrader(10**6)
    first = await batch([{"prompt": "q"}], tmp_path / "out.jsonl", model, grader)
    assert (first.rows.done, first.rows.failed, first.rows.unfinished) == (0, 0, 1)
    assert "ShortageError: " in (tmp_path / "out.jsonl").read_text()
    assert first.rows.errors == {"ShortageError": 1}
    grader.times = 0
    second = await batch([{"prompt": "q"}], tmp_path / "out.jsonl", model, grader)
    assert (second.rows.done, second.rows.failed, second.rows.unfinished) == (1, 0, 0)


async def test_rows_whose_calls_find_no_room_are_redone(faults, tmp_path, monkeypatch):
    """The endpoint is not down meanwhile, so that the run does not wait for it."""

    async def give_up(self, error):
        raise error

    monkeypatch.setattr(http_sessions.HttpSession, "wait_for_room", give_up)
    fail(monkeypatch, "socket", errno.ENFILE, 10**6)
    rows = [{"prompt": f"q{n}"} for n in range(2 * FAILURE_THRESHOLD)]
    report = await batch(
        rows, tmp_path / "o.jsonl", Chat("m", faults.url), lambda text: 1.0, retries=0
    )
    assert (report.rows.done, report.rows.failed, report.rows.unfinished, report.stop) == (
        0,
        0,
        len(rows),
        "",
    )
