"""A timeout names the endpoint, the model and the seconds."""

import asyncio

import pytest

from redraft import ScriptedModel, batch, refine, refine_many
from redraft.errors import BudgetExhaustedError, ModelTimeoutError
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
    "jury": lambda url: {"model": ScriptedModel(["a"]), "graders": Jury(["judge", "helpfulness"]), "judge": url},
    "function": lambda url: {"model": ScriptedModel(["a"]), "graders": asks, "judge": url},
    "client": lambda url: {"model": Chat("m", url.partition("#")[0]), "graders": lambda text: 0.5},
}


async def asks(text, model):
    return float(await model(text))


@pytest.mark.parametrize("who", WAITS)
@pytest.mark.parametrize("answer", [never, fs.error(429, "busy", headers={"Retry-After": "100"})], ids=["silent", "asks to wait"])
@pytest.mark.slow(but_each=2)
async def test_deadline_error_names_the_silent_endpoint(faults, who, answer):
    """It holds for any call that was waited for and for a pause, and the error never shows a key."""
    faults.says(answer)
    url = f"http://user:{KEY}@{faults.host}/v1?api_key={KEY}#m"
    message = f"no answer from {faults.url} (model m) before the deadline of 1 s"
    if who in {"writer", "client"}:
        with pytest.raises(BudgetExhaustedError) as caught:
            await refine("q", **WAITS[who](url), deadline=1)
        assert (str(caught.value), caught.value.limit, KEY in repr(caught.value)) == (message, "deadline", False)
    else:
        result = await refine("q", **WAITS[who](url), deadline=1)
        assert (result.value, result.score, str(result.stop)) == ("a", None, "deadline")
        assert result.metadata["note"].startswith(f"{message}; ") and KEY not in repr(result)


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
    assert (result.value, result.stop, result.metadata["note"]) == ("first", "deadline", told)
    assert told in result.summary()


@pytest.mark.parametrize("who", WAITS)
async def test_timeout_names_the_silent_endpoint(faults, who):
    """A single call raises it, and a failed judge's timeout is the cause of the grading error."""
    faults.says(never)
    with pytest.raises(Exception, match=r"within 0\.3 s") as caught:
        await refine("q", **WAITS[who](f"{faults.url}#m"), timeout=0.3, retries=0)
    told = f"no answer from {faults.url} (model m) within 0.3 s"
    assert told in str(caught.value)
    error = caught.value if who in {"writer", "client"} else caught.value.__cause__
    assert isinstance(error, ModelTimeoutError) and told in str(error)


async def test_batch_rows_name_the_silent_endpoint(faults, tmp_path):
    """The report names it, too."""
    faults.says(never)
    report = await batch([{"prompt": "q"}], tmp_path / "out.jsonl", Chat("m", faults.url), "no_commas", deadline=1)
    told = f"no answer from {faults.url} (model m) before the deadline of 1 s"
    assert (report.end_reason, report.message) == ("deadline", told)
    assert told in (tmp_path / "out.jsonl").read_text()
