"""A timeout names the endpoint, the model and the seconds."""

import asyncio
import re

import pytest

from redraft import ScriptedModel, batch, refine, refine_many
from redraft.errors import BudgetExhaustedError, ModelTimeoutError, RateLimitError
from redraft.graders import Jury
from redraft.models import Chat

from . import fault_server as fs

KEY = "sk-canary-4711"


async def never(writer):
    """Never answer and never end."""
    await asyncio.Event().wait()


WAITS = {
    "writer": lambda url: {"model": url, "graders": lambda text: 0.5},
    "judge": lambda url: {"model": ScriptedModel(["a"]), "judge": url},
    "jury": lambda url: {
        "model": ScriptedModel(["a"]),
        "graders": Jury(["judge", "helpfulness"]),
        "judge": url,
    },
    "function": lambda url: {"model": ScriptedModel(["a"]), "graders": asks, "judge": url},
    "client": lambda url: {"model": Chat("m", url.partition("#")[0]), "graders": lambda text: 0.5},
}


async def asks(text, model):
    return float(await model(text))


@pytest.mark.parametrize("who", WAITS)
@pytest.mark.slow(but_each=2)
async def test_deadline_error_names_the_silent_endpoint(faults, who):
    """It holds for any call that was waited for, and the error never shows a key."""
    faults.says(never)
    url = f"http://user:{KEY}@{faults.host}/v1?api_key={KEY}#m"
    message = f"no answer from {faults.url} (model m) before the deadline of 1 s"
    if who in {"writer", "client"}:
        with pytest.raises(BudgetExhaustedError) as caught:
            await refine("q", **WAITS[who](url), deadline=1)
        assert (str(caught.value), caught.value.limit, KEY in repr(caught.value)) == (
            message,
            "deadline",
            False,
        )
    else:
        result = await refine("q", **WAITS[who](url), deadline=1)
        assert (result.value, result.score, str(result.stop)) == ("a", None, "deadline")
        assert result.stop_note.startswith(f"{message}; ") and KEY not in repr(result)


@pytest.mark.parametrize("who", WAITS)
async def test_a_wait_that_ends_after_the_deadline_is_an_error_at_once(faults, who):
    """It says how long the endpoint wants, after one call, and never shows a key. The answer of the
    writer is kept.
    """
    faults.says(fs.error(429, "busy", headers={"Retry-After": "100"}))
    url = f"http://user:{KEY}@{faults.host}/v1?api_key={KEY}#m"
    if who in {"writer", "client"}:
        with pytest.raises(RateLimitError) as caught:
            await refine("q", **WAITS[who](url), deadline=10)
        said, shown = str(caught.value), repr(caught.value)
    else:
        result = await refine("q", **WAITS[who](url), deadline=10)
        assert (result.value, result.score, str(result.stop)) == ("a", None, "failed")
        said, shown = result.stop_note, repr(result)
    assert "wait 1 min 40 s" in said and faults.host in said and KEY not in said + shown
    assert len(faults.requests) == (2 if who == "jury" else 1)


async def test_expired_deadline_makes_no_call(faults):
    """No call is made, so the error blames no endpoint."""
    faults.says(fs.good())
    with pytest.raises(BudgetExhaustedError, match=r"^the deadline of 0 s has passed$"):
        await refine("q", Chat("m", faults.url), lambda text: 0.5, deadline=0)
    assert faults.requests == []


@pytest.mark.slow
async def test_interrupted_result_names_the_silent_endpoint(faults):
    """The summary and the note say that the refinement was not answered."""
    faults.says(fs.good("first"), never)
    [result] = await refine_many(["q"], Chat("m", faults.url), lambda text: 0.5, deadline=5)
    told = f"no answer from {faults.url} (model m) before the deadline of 5 s"
    assert (result.value, result.stop, result.stop_note) == ("first", "deadline", told)
    assert told in result.summary()


@pytest.mark.parametrize("who", WAITS)
async def test_timeout_names_the_silent_endpoint(faults, who):
    """A writer raises it; that of a judge is the note of the answer without a grade."""
    faults.says(never)
    told = f"no answer from {faults.url} (model m) within 0.3 s"
    if who in {"writer", "client"}:
        with pytest.raises(ModelTimeoutError, match=re.escape(told)):
            await refine("q", **WAITS[who](f"{faults.url}#m"), timeout=0.3, retries=0)
    else:
        result = await refine("q", **WAITS[who](f"{faults.url}#m"), timeout=0.3, retries=0)
        assert (result.value, result.score, str(result.stop)) == (
            "a",
            None,
            "failed",
        ) and told in result.stop_note


async def test_batch_rows_name_the_silent_endpoint(faults, tmp_path):
    """The report names it, too."""
    faults.says(never)
    report = await batch(
        [{"prompt": "q"}], tmp_path / "out.jsonl", Chat("m", faults.url), "no_commas", deadline=1
    )
    told = f"no answer from {faults.url} (model m) before the deadline of 1 s"
    assert (report.stop, report.stop_note) == ("deadline", told)
    assert told in (tmp_path / "out.jsonl").read_text()
