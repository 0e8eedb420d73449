"""The caller of `refine` gets the error of the server, with all its details."""

import asyncio
import json

import pytest

from each_row import each_row
from redraft import Budget, ScriptedModel, grade, refine, refine_many, stream
from redraft.errors import (
    ERROR_TYPES,
    BudgetExhaustedError,
    GradingError,
    ModelError,
    RateLimitError,
)
from redraft.graders import Jury
from redraft.loop.records import Failure
from redraft.loop.task import Task
from redraft.loop.trace import Trace
from redraft.models import Chat

from . import fault_server as fs
from .test_chat_faults import TABLE

WAIT = {"Retry-After": "7"}
STATUSES = (400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 501, 502, 503, 504, 529)
FAULTS = {name: row[0] for name, row in TABLE.items()}
FAULTS |= {
    f"{status} and a wait": fs.error(status, f"no, {status}", headers=WAIT) for status in STATUSES
}
BUSY = FAULTS["429 and a wait"]


def error_details(error):
    return type(error), error.status, error.retry_after, error.retryable


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", FAULTS)
async def test_refine_raises_the_models_error(faults, ask, name):
    """Its class, status, wait and `retryable` are the same from `refine` and in results of
    `refine_many`.
    """
    faults.says(FAULTS[name])
    with pytest.raises(ModelError) as raised:
        await Chat("m", faults.url).complete(ask())
    with pytest.raises(ModelError) as caught:
        await refine("q", Chat("m", faults.url), lambda text: 0.5, retries=0)
    [result] = await refine_many(["q"], Chat("m", faults.url), lambda text: 0.5, retries=0)
    assert error_details(caught.value) == error_details(result.error) == error_details(raised.value)
    assert str(raised.value) in str(caught.value)
    if name.endswith("and a wait"):
        wait = 7 if caught.value.retryable else None  # an error that is not retryable has no wait
        assert (str(caught.value.status), caught.value.retry_after) == (name[:3], wait)


async def test_error_details_are_in_the_trace(faults):
    """They survive writing and reading."""
    faults.says(BUSY)
    *_, trace = [t async for t in stream("q", Chat("m", faults.url), lambda text: 0.5, retries=0)]
    [failure] = Trace.from_json(trace.to_json()).failures.values()
    assert (failure.error, failure.status, failure.retry_after, failure.retryable) == (
        "RateLimitError",
        429,
        7,
        True,
    )


def test_failure_without_a_status_is_read():
    """A missing field has its default."""
    old = {
        "kind": "failure",
        "step_slot": ["candidate", 0],
        "role": "generate",
        "error": "RateLimitError",
        "message": "busy",
    }
    head = Trace(Task("q")).header()
    [failure] = Trace.from_json(json.dumps({**head, "records": [old]})).failures.values()
    assert error_details(failure.as_error()) == (RateLimitError, None, None, True)


@pytest.mark.parametrize("judge", [None, Jury(["judge", "helpfulness"])], ids=["judge", "jury"])
async def test_judge_error_is_the_cause_of_the_grading_error(faults, judge):
    """The server's own error says why no grade exists; a refinement returns its answer with that as
    the note.
    """
    faults.says(BUSY)
    result = await refine("q", ScriptedModel(["a"]), judge, Chat("m", faults.url), retries=0)
    assert (result.value, result.score) == ("a", None) and "no, 429" in result.stop_note
    with pytest.raises(GradingError, match="no, 429") as caught:
        await grade(("q", "a"), judge, Chat("m", faults.url), retries=0)
    assert error_details(caught.value.__cause__) == (RateLimitError, 429, 7, True)


@pytest.mark.parametrize(
    "limits",
    [{"calls": 0}, {"tokens": 1}, {"input_tokens": 1}, {"output_tokens": 1}, {"usd": 1e-9}],
)
async def test_budget_error_names_the_limit(limits):
    """It names the limit that was reached."""
    model = ScriptedModel(["a"])
    with pytest.raises(BudgetExhaustedError) as caught:
        await refine(
            "q" * 400,
            model,
            lambda text: 0.5,
            budget=Budget(**limits),
            prices={model.name: (10, 10)},
        )
    assert caught.value.limit in {*limits, "input_tokens", "output_tokens"}
    assert caught.value.limit != "budget"


@each_row("kind", ERROR_TYPES.values())
def test_every_error_can_be_raised_again(kind):
    """A copy has the arguments of the original."""
    error = kind("why")
    failure = Failure(("candidate", 0), "generate", kind.__name__, "why", **error.details)
    again = failure.as_error()
    assert (type(again), str(again), again.details) == (kind, "why", error.details)


async def test_foreign_error_is_a_model_error():
    """It is one even if its class has a name that Redraft uses elsewhere."""

    class Usage(Exception):
        pass

    async def raise_foreign_error(messages):
        await asyncio.sleep(0)
        raise Usage("odd")

    with pytest.raises(ModelError, match="odd"):
        await refine("q", raise_foreign_error, lambda text: 0.5, retries=0)


async def test_subclass_of_an_error_is_caught_as_its_base():
    """A custom model's exception is caught by the Redraft class that it extends."""

    class TooMany(RateLimitError):
        pass

    async def model(messages):
        await asyncio.sleep(0)
        raise TooMany("slow down", status=429, retry_after=3)

    with pytest.raises(RateLimitError, match="slow down") as caught:
        await refine("q", model, lambda text: 0.5, retries=0)
    assert error_details(caught.value) == (RateLimitError, 429, 3, True)
