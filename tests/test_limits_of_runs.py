"""Runs to the end of a budget and of the time, as users start them."""

import asyncio
import json
import re

import pytest

from redraft import (
    Budget,
    Judge,
    ScriptedModel,
    Usage,
    batch,
    calibrate,
    refine,
)
from redraft.errors import ConfigError
from redraft.gateway.config import parse_config
from redraft.plans.quality.priors import Priors
from redraft.protocols import Reply

JUDGE = Judge({"truth": "It is true."})
LEARNED = Priors(draft_mean=0.5, gain=0.3, retention=0.8, gain_sd=0.01, noise_sd=0.3, tasks=64)


class JudgeModel:
    """A judge model that gives 3 of 5 points after `seconds`."""

    name = identity = "judge"

    def __init__(self, seconds=0.0):
        self.seconds, self.calls, self.now, self.most = seconds, 0, 0, 0

    async def __call__(self, messages):
        self.calls, self.now = self.calls + 1, self.now + 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return json.dumps(
            {
                "reason": "It is so.",
                "criteria": {"truth": {"evidence": "e", "change": "c", "score": 3}},
                "done": False,
            }
        )


class Writer:
    """A model that writes another text each time, after `seconds`; `most` is the highest number of
    texts at once.
    """

    name = identity = "writer"

    def __init__(self, seconds=0.0):
        self.seconds, self.texts, self.now, self.most = seconds, 0, 0, 0

    async def __call__(self, messages):
        self.texts, self.now = self.texts + 1, self.now + 1
        self.most, text = max(self.most, self.now), f"text {self.texts}"
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return text


def ungraded(trace):
    return [c.id for c in trace.candidates if not trace.feedback[c.id]]


@pytest.mark.parametrize("calls", range(2, 9))
async def test_nothing_paid_for_stays_ungraded(calls):
    """Within any budget every text is graded, and no call is made that grades none."""
    writer, judge = Writer(), JudgeModel()
    more = {"priors": LEARNED, "min_expected_gain": 0.0, "budget": Budget(calls=calls)}
    result = await refine("q", writer, JUDGE, judge=judge, max_iterations=9, **more)
    assert result.usage.calls == writer.texts + judge.calls == calls - calls % 2
    assert ungraded(result.trace) == []
    assert result.stop == "budget" and result.value


REMOVED = {
    "unseen_last": (True, "every answer is graded"),
    "width": (2, "with a deadline"),
    "tie_break": (True, "pairwise"),
}


@pytest.mark.parametrize("name", REMOVED)
async def test_a_removed_setting_is_named(name, tmp_path):
    """Each function says that it is gone, and what to do."""
    value, advice = REMOVED[name]
    said = f"{name} is no longer a setting: leave it out; .*{advice}"
    with pytest.raises(ConfigError, match=said):
        await refine("q", Writer(), JUDGE, judge=JudgeModel(), **{name: value})
    with pytest.raises(ConfigError, match=said):
        await calibrate(["q"], Writer(), JUDGE, calls=9, **{name: value})
    with pytest.raises(ConfigError, match=said):
        await batch([{"prompt": "q"}], tmp_path / "o.jsonl", Writer(), JUDGE, **{name: value})
    with pytest.raises(ConfigError, match=said.replace(name, name.replace("_", "-"))):
        parse_config({"profiles": {"p": {"model": "m", name: value}}}, tmp_path, {})


async def test_what_does_not_pay_for_a_text_with_its_grade_is_left():
    """A limit of output tokens is seen by the plan."""
    usage = Usage(1, 100, 100, answer_tokens=200, cost=None, answer_cost=None)
    line = {"evidence": "e", "change": "c", "score": 3}
    grade = json.dumps({"reason": "r", "criteria": {"truth": line}, "done": False})
    writer = ScriptedModel([Reply(f"text {n}", usage) for n in range(9)], "writer")
    judge = ScriptedModel([Reply(grade, usage)] * 9, "judge")
    more = {"budget": Budget(output_tokens=500), "min_expected_gain": 0.0, "max_tokens": 100}
    result = await refine(
        "q", writer, Judge({"truth": "It is true."}, max_tokens=100), judge=judge, drafts=2, **more
    )
    assert (writer.calls, judge.calls, result.stop, ungraded(result.trace)) == (2, 2, "budget", [])
    assert "a text with its grades takes about 200 output tokens" in result.trace.outcome.note


async def test_a_deadline_widens_the_rounds():
    """If there is no time for one refinement after the other, they are made at once."""
    writer, judge = Writer(0.3), JudgeModel(0.05)
    result = await refine(
        "q",
        writer,
        JUDGE,
        judge=judge,
        deadline=1.0,
        min_expected_gain=0.0,
        priors=LEARNED,
        max_iterations=3,
    )
    assert writer.most == 3 and ungraded(result.trace) == []


@pytest.mark.parametrize("calls", [3, 4, 5, 9])
async def test_a_judge_that_cannot_be_read_is_named_whatever_ended_the_run(calls):
    """A budget that is used up does not hide why nothing was graded."""
    model, judge = ScriptedModel(["a text"] * 9), ScriptedModel(["rubbish"] * 20)
    result = await refine(
        "q", model, Judge({"c": "It is short."}), judge, budget=Budget(calls=calls)
    )
    assert (result.value, result.score) == ("a text", None)
    assert re.search(r"judge: .*cannot be read", result.stop_note)
