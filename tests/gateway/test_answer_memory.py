"""The memory for answers: shares of keys, and what a refused answer costs."""

from dataclasses import replace

import pytest
from chat_server import ChatServer
from hypothesis import given
from hypothesis import strategies as st

import vendors
from redraft.gateway.answer_memory import AnswerMemory
from redraft.gateway.config import GatewayLimits
from redraft.gateway.exchange import GatewayError
from redraft.gateway.keys import KeyRing
from redraft.gateway.refining import TraceLog
from redraft.loop.records import Candidate

from .running import PROMPT, config_for, running

MIB = 2**20


def fill(memory, key, size):
    """Hold answers of a size until one is refused; return the bytes that the key got."""
    before = memory.held
    try:
        while True:
            memory.hold(key, size)
    except GatewayError as error:
        assert (error.status, error.should_retry) == (503, False)
    return memory.held - before


def test_no_key_takes_the_room_of_the_others():
    """Each gets half of what those before left; requests without a key get all of it."""
    memory = AnswerMemory(64 * MIB)
    assert [fill(memory, key, MIB) // MIB for key in "abc"] == [32, 16, 8]
    memory.check("d")
    with pytest.raises(GatewayError) as caught:
        memory.check("a")
    assert (caught.value.status, caught.value.should_retry, caught.value.retry_after) == (
        503,
        None,
        2.0,
    )
    assert fill(AnswerMemory(64 * MIB), "", MIB) == 64 * MIB


def test_one_answer_is_always_given():
    """Of any size, while nothing else is held."""
    memory = AnswerMemory(MIB)
    memory.hold("a", 5 * MIB)
    with pytest.raises(GatewayError):
        memory.check("b")


@pytest.mark.parametrize(
    "answers",
    [
        [("a", 500, True), ("b", 0, False)],  # one answer of any size, and then no room for any
        [("", 50, True), ("", 50, True), ("", 1, False)],  # without a key: all of it
        [("", 50, True), ("", 51, False), ("a", 50, True)],
        [("a", 1, True), ("b", 99, True)],  # of another key: what is left
        [("a", 1, True), ("b", 100, False)],
        # of the same key: no more than is left free then
        [("a", 1, True), ("a", 49, True), ("a", 1, False)],
        [("a", 1, True), ("a", 50, False), ("b", 99, True)],
        [("b", 40, True), ("a", 10, True), ("a", 20, True), ("a", 1, False), ("", 30, True)],
    ],
)
def test_what_has_room(answers):
    """Of a memory of 100 bytes: each answer is held, or refused and not counted."""
    memory, held = AnswerMemory(100), 0
    for key, size, has_room in answers:
        if has_room:
            memory.hold(key, size)
            held += size
            continue
        with pytest.raises(GatewayError) as caught:
            memory.hold(key, size)
        assert (caught.value.status, caught.value.code, caught.value.should_retry) == (
            503,
            "overloaded",
            False,
        )
        assert memory.held == held


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 50)), max_size=50))
def test_what_is_freed_is_free(answers):
    """Nothing of the answers remains, also of those that were refused."""
    memory, held = AnswerMemory(100), []
    for key, size in answers:
        try:
            memory.hold(key, size)
        except GatewayError:
            continue
        held.append((key, size))
    assert memory.held == sum(size for _, size in held)
    for key, size in held:
        memory.free(key, size)
    assert memory.held == 0 and not memory._held_by


@pytest.fixture
def upstream():
    server = ChatServer(lambda messages, n: "\N{GRINNING FACE}" * (MIB // 4))
    yield server
    server.close()


@pytest.mark.parametrize("model", ["pass/tiny", "refine/fast"])
@pytest.mark.parametrize(("held", "calls"), [(1, 1), (MIB, 0)], ids=["little room", "no room"])
async def test_a_client_with_retries_pays_once_for_an_answer_without_room(
    upstream, tmp_path, model, held, calls
):
    """An SDK that retries twice buys no second answer; without any room it retries, and nothing is
    bought.
    """
    config = config_for(tmp_path, upstream.model, graders=["words:1-"])
    with KeyRing(tmp_path) as ring:
        _, key = ring.add("ci")
    async with running(replace(config, limits=GatewayLimits(max_answers=MIB))) as (url, gateway):
        gateway.answers.held += held  # of others
        async with vendors.AsyncOpenAI(
            base_url=url, api_key=key, max_retries=2 if calls else 0
        ) as client:
            with pytest.raises(
                vendors.openai.InternalServerError, match="leave no memory"
            ) as caught:
                await client.chat.completions.create(model=model, messages=PROMPT)
        assert upstream.calls == calls
        assert caught.value.response.headers.get("x-should-retry") == ("false" if calls else None)
        assert caught.value.response.headers["retry-after"] == "2"


def test_a_text_counts_with_its_bytes():
    """Not with its characters."""

    class Trace:
        candidates = (Candidate(0, "\N{GRINNING FACE}" * 10, reasoning="\u00fc"),)

    log, sizes = TraceLog(), []
    log.hold = sizes.append
    log.append(Trace())
    assert sizes == [42]
