"""Functions as models, and models that follow a script."""

from __future__ import annotations

import asyncio
import threading
from itertools import cycle

import pytest

import redraft
from redraft.errors import BadResponseError, ModelError, RateLimitError
from redraft.models import CallableModel, ScriptedModel, connect
from redraft.protocols import Model, Reply
from redraft.usage import Usage

UNKNOWN = Usage(calls=1, input_tokens=None, output_tokens=None, cost=None)
NOTHING = Usage(calls=1)


def shout(messages):
    return messages[-1]["content"].upper()


async def whisper(messages):
    await asyncio.sleep(0)
    return messages[-1]["content"].lower()


class Echo:
    async def __call__(self, messages):
        return messages[-1]["content"]


@pytest.mark.parametrize(
    ("fn", "name", "text"),
    [
        (shout, "shout", "HELLO"),
        (whisper, "whisper", "hello"),
        (Echo(), "Echo", "hello"),
        (lambda m: whisper(m), "callable", "hello"),
    ],
)
async def test_any_function_of_messages_is_a_model(ask, fn, name, text):
    """A function or callable object works, async or not, and its usage is unknown."""
    model = connect(fn)
    assert isinstance(model, Model)
    assert model.name == name
    assert await model.complete(ask()) == Reply(text, UNKNOWN)


async def test_blocking_function_does_not_block_the_loop(ask):
    """It runs in a thread of its own."""
    seen = []
    await CallableModel(lambda m: seen.append(threading.current_thread()) or "x").complete(ask())
    assert seen != [threading.main_thread()]


@pytest.mark.parametrize("result", [None, 5, b"x", ["x"], ""])
async def test_non_text_result_is_an_error(ask, result):
    """The error shows what the function returned."""
    with pytest.raises(BadResponseError, match="NoneType|int|bytes|list|empty") as caught:
        await CallableModel(lambda m: result, name="odd").complete(ask())
    assert str(caught.value).startswith("odd returned")
    assert caught.value.usage == UNKNOWN


async def test_exception_of_a_function_becomes_a_model_error(ask):
    """A foreign exception is kept as its cause, and Redraft's own errors pass unchanged."""
    with pytest.raises(
        ModelError, match="broken raised ZeroDivisionError: division by zero"
    ) as caught:
        await CallableModel(lambda m: 1 / 0, name="broken").complete(ask())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def raise_rate_limit(messages):
        raise RateLimitError("slow", retry_after=3)

    with pytest.raises(RateLimitError) as caught:
        await CallableModel(raise_rate_limit).complete(ask())
    assert caught.value.retry_after == 3


def test_identity_of_a_function():
    """Two functions never share a cache by accident, but do under a common explicit name."""
    assert connect(shout).identity != connect(shout).identity
    assert connect(shout, name="a").identity == connect(whisper, name="a").identity


async def test_script_is_followed(ask):
    """Texts, Replies, functions and exceptions come in order, and calls and messages are
    recorded.
    """
    whole = Reply("whole", Usage(1, 5, 6), "length")
    model = ScriptedModel(
        ["one", whole, shout, whisper, RateLimitError("slow"), ValueError, "<think>hm</think>two"]
    )
    assert await model.complete(ask("a")) == Reply("one", NOTHING)
    assert await model.complete(ask("b")) is whole
    assert (await model.complete(ask("cd"))).text == "CD"
    assert (await model.complete(ask("EF"))).text == "ef"
    with pytest.raises(RateLimitError) as caught:
        await model.complete(ask())
    assert caught.value.usage == NOTHING
    with pytest.raises(ValueError):
        await model.complete(ask())
    assert await model.complete(ask()) == Reply(
        "two", NOTHING, reasoning="hm", reasoning_form="block"
    )
    assert model.calls == 7
    assert model.messages[:2] == [
        [{"role": "user", "content": "a"}],
        [{"role": "user", "content": "b"}],
    ]


async def test_end_of_a_script_is_an_error(ask):
    """The error gives the number of answers and is not retryable."""
    model = ScriptedModel(["only"], name="short")
    await model.complete(ask())
    with pytest.raises(
        ModelError, match="short has no answer left: it had 1, this is call 2"
    ) as caught:
        await model.complete(ask())
    assert not caught.value.retryable
    with pytest.raises(ModelError, match="it had 1, this is call 3"):
        await model.complete(ask())


async def test_script_may_be_endless(ask):
    """Any iterable of answers works."""
    model = ScriptedModel(cycle("ab"))
    assert [(await model.complete(ask())).text for _ in range(3)] == ["a", "b", "a"]


class Named:
    """A callable object with a name and an identity of its own."""

    name, identity = "mine", "mine-1"

    async def __call__(self, messages):
        return "text"


@pytest.mark.parametrize(
    ("model", "name", "identity"),
    [
        (CallableModel(Named()), "mine", "callable:mine-1"),
        (CallableModel(Named(), "other"), "other", "callable:other"),
        (CallableModel(len, "length"), "length", "callable:length"),
    ],
)
def test_identity_of_a_callable(model, name, identity):
    """It is the given name or the object's own `identity`: later runs find its answers."""
    assert (model.name, model.identity) == (name, identity)


def test_a_function_without_identity_is_another_model_each_time():
    """Nobody knows whether it still does the same."""
    assert CallableModel(len).identity != CallableModel(len).identity


async def test_a_batch_again_with_an_object_that_has_an_identity_makes_no_calls(tmp_path):
    """Equal settings reuse the rows of the journal."""
    for reused in (0, 1):
        report = await redraft.batch(
            [{"prompt": "q"}], tmp_path / "out.jsonl", Named(), "contains:text"
        )
        assert report.rows.reused == reused
