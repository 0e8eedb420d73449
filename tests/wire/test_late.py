"""What comes too late is named: which endpoint was waited for, which model, and for how long."""

import asyncio

import pytest

from redraft import ScriptedModel, batch, refine, refine_many
from redraft.errors import BudgetExhaustedError, ModelTimeoutError
from redraft.graders import Jury
from redraft.models import Chat

from . import fault_server as fs

KEY = "sk-canary-4711"


async def never(writer):
    """No answer, and no end."""
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
async def test_a_deadline_names_who_did_not_answer(faults, who, answer):
    """Whichever call was waited for, also in the pause that its endpoint asked for; and never a key."""
    faults.says(answer)
    url = f"http://user:{KEY}@{faults.host}/v1?api_key={KEY}#m"
    with pytest.raises(BudgetExhaustedError) as caught:
        await refine("q", **WAITS[who](url), deadline=1)
    assert str(caught.value) == f"no answer from {faults.url} (model m) before the deadline of 1 s"
    assert (caught.value.limit, KEY in repr(caught.value)) == ("deadline", False)


async def test_a_deadline_that_is_over_waits_for_nobody(faults):
    """Nothing was asked, and nobody is to blame."""
    faults.says(fs.good())
    with pytest.raises(BudgetExhaustedError, match=r"^the deadline of 0 s has passed$"):
        await refine("q", Chat("m", faults.url), lambda text: 0.5, deadline=0)
    assert faults.requests == []


async def test_a_result_that_was_cut_short_says_by_what(faults):
    """In its summary and its note: the first draft was answered, the refinement was not."""
    faults.says(fs.good("first"), never)
    [result] = await refine_many(["q"], Chat("m", faults.url), lambda text: 0.5, deadline=5)
    told = f"no answer from {faults.url} (model m) before the deadline of 5 s"
    assert (result.value, result.stop, result.metadata["note"]) == ("first", "deadline", told)
    assert told in result.summary()


@pytest.mark.parametrize("who", WAITS)
async def test_a_timeout_names_who_did_not_answer(faults, who):
    """Of a call by itself, too; where a judge could not be had it is the cause."""
    faults.says(never)
    with pytest.raises(Exception, match=r"within 0\.3 s") as caught:
        await refine("q", **WAITS[who](f"{faults.url}#m"), timeout=0.3, retries=0)
    told = f"no answer from {faults.url} (model m) within 0.3 s"
    assert told in str(caught.value)
    error = caught.value if who in {"writer", "client"} else caught.value.__cause__
    assert isinstance(error, ModelTimeoutError) and told in str(error)


async def test_the_rows_of_a_batch_say_it_too(faults, tmp_path):
    """And so does the report."""
    faults.says(never)
    report = await batch([{"prompt": "q"}], tmp_path / "out.jsonl", Chat("m", faults.url), "no_commas", deadline=1)
    told = f"no answer from {faults.url} (model m) before the deadline of 1 s"
    assert (report.end_reason, report.message) == ("deadline", told)
    assert told in (tmp_path / "out.jsonl").read_text()
