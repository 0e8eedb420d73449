"""Runs to the end of a budget and of the time, as users start them."""

import asyncio
import json
import re

import pytest

from redraft import (
    Budget,
    Judge,
    ScriptedModel,
    Trace,
    Usage,
    batch,
    must,
    refine,
    refine_many,
    refine_sync,
)
from redraft.errors import BudgetExhaustedError, ConfigError
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
@pytest.mark.parametrize("unseen", [False, True])
async def test_nothing_paid_for_stays_ungraded(calls, unseen):
    """Within any budget every text is graded; with `unseen_last` the last one need not be, and has
    a forecast instead.
    """
    writer, judge = Writer(), JudgeModel()
    budget = Budget(calls=calls)
    more = {
        "priors": LEARNED,
        "unseen_last": unseen,
        "min_expected_gain": 0.0,
        "budget": budget,
        "patience": 9,
    }
    result = await refine("q", writer, JUDGE, judge=judge, max_iterations=9, **more)
    assert result.usage.calls == writer.texts + judge.calls <= calls
    assert len(ungraded(result.trace)) == (unseen and calls % 2)
    assert (result.forecast is None) == (not ungraded(result.trace)) == (result.score is not None)
    assert result.stop == "budget" and result.value


async def test_a_forecast_is_shown_stored_and_resumed_without_calls(tmp_path):
    """It is in the summary, in plain data and in the trace; a new run of the trace with more calls
    grades the text.
    """
    settings = {"priors": LEARNED, "unseen_last": True, "min_expected_gain": 0.0}
    result = await refine(
        "q", Writer(), JUDGE, judge=JudgeModel(), budget=Budget(calls=3), **settings
    )
    assert result.value == "text 2" and result.score is None and result.score_interval is None
    low, high = result.forecast.interval
    assert low < result.forecast.mean < high
    assert (
        f"unknown (expected {result.forecast.mean:.2f}; 95% between {low:.2f} and {high:.2f})"
        in result.summary()
    )
    data = result.to_dict()
    assert (data["forecast"], data["forecast_interval"]) == (result.forecast.mean, (low, high))
    again = Trace.from_json(result.trace.to_json())
    assert again.outcome == result.trace.outcome
    writer, judge = Writer(), JudgeModel()
    longer = await refine(again, writer, JUDGE, judge=judge, budget=Budget(calls=1), **settings)
    assert (writer.texts, judge.calls, ungraded(longer.trace)) == (0, 1, [])


async def test_the_error_of_a_strict_budget_carries_the_forecast():
    """`strict_budget` raises as ever; the result is in the error."""
    settings = {
        "priors": LEARNED,
        "unseen_last": True,
        "min_expected_gain": 0.0,
        "strict_budget": True,
    }
    with pytest.raises(BudgetExhaustedError) as caught:
        await refine("q", Writer(), JUDGE, judge=JudgeModel(), budget=Budget(calls=3), **settings)
    assert caught.value.result.forecast is not None


async def test_graders_that_compute_see_the_unseen_text():
    """A must that computes is checked; if the text breaks it, the graded one is returned."""
    for word, best in (("text", "text 2"), ("1", "text 1")):
        settings = {
            "priors": LEARNED,
            "unseen_last": True,
            "min_expected_gain": 0.0,
            "budget": Budget(calls=3),
        }
        result = await refine(
            "q", Writer(), [JUDGE, must(f"contains:{word}")], judge=JudgeModel(), **settings
        )
        assert result.value == best and (result.forecast is None) == (best == "text 1")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"unseen_last": True, "noise_aware": False}, "unseen_last needs the noise-aware plan"),
        ({"width": 2, "noise_aware": False}, "width needs the noise-aware plan"),
        (
            {"width": 2, "graders": ["contains:a"]},
            "the graders ask no model for a score: set noise_aware=True",
        ),
        ({"unseen_last": True, "graders": ["contains:a"]}, "so every text is graded: leave it out"),
        ({"width": 0}, "width must be"),
        ({"width": 65}, "width must be"),
        ({"unseen_last": "yes"}, "unseen_last must be True or False"),
        (
            {"unseen_last": True, "graders": [must(JUDGE)]},
            "unseen_last cannot be combined with a must that a model judges, got 'judge'",
        ),
    ],
)
def test_errors(more, message):
    """They name the setting and what it needs."""
    with pytest.raises(ConfigError, match=message):
        graders = more.pop("graders", JUDGE)
        refine_sync(
            "q",
            Writer(),
            graders,
            judge=None if graders == ["contains:a"] else JudgeModel(),
            **more,
        )


async def test_width_takes_few_rounds():
    """Three drafts at once, then three refinements at once, and three grades after each: four
    rounds for twelve calls.
    """
    writer, judge = Writer(0.05), JudgeModel(0.05)
    result = await refine(
        "q",
        writer,
        JUDGE,
        judge=judge,
        width=3,
        max_iterations=1,
        min_expected_gain=0.0,
        priors=LEARNED,
    )
    assert (writer.texts, writer.most, judge.calls, judge.most, result.stop) == (
        6,
        3,
        6,
        3,
        "max_iterations",
    )
    assert [c.id for c in result.trace.candidates] == list(range(6)) and ungraded(
        result.trace
    ) == []


async def test_width_with_graders_that_compute():
    """With `noise_aware=True` computed scores lead to rounds, too."""
    writer = Writer(0.02)
    result = await refine(
        "q", writer, "contains:other", width=3, max_iterations=1, noise_aware=True
    )
    assert (writer.texts, writer.most, ungraded(result.trace)) == (6, 3, [])


async def test_the_last_call_of_a_token_budget_buys_another_look():
    """A limit of output tokens is seen by the plan: what does not pay for a text with its grade
    pays for another grade.
    """
    usage = Usage(1, 100, 100, answer_tokens=200, cost=None, answer_cost=None)
    line = {"evidence": "e", "change": "c", "score": 3}
    grade = json.dumps({"reason": "r", "criteria": {"truth": line}, "done": False})
    writer = ScriptedModel([Reply(f"text {n}", usage) for n in range(9)], "writer")
    judge = ScriptedModel([Reply(grade, usage)] * 9, "judge")
    more = {
        "budget": Budget(output_tokens=500),
        "min_expected_gain": 0.0,
        "patience": 9,
        "max_tokens": 100,
    }
    result = await refine(
        "q", writer, Judge({"truth": "It is true."}, max_tokens=100), judge=judge, drafts=2, **more
    )
    assert (writer.calls, judge.calls, result.stop, ungraded(result.trace)) == (2, 3, "budget", [])
    assert "a text with its grades takes about 200 output tokens" in result.trace.outcome.note


async def test_many_tasks_are_written_in_rounds():
    """`refine_many` writes the texts of each task at once, too; a round waits for its last text."""
    writer = Writer(0.02)
    settings = {
        "judge": JudgeModel(),
        "width": 2,
        "max_iterations": 2,
        "priors": LEARNED,
        "min_expected_gain": 0.0,
    }
    results = await refine_many(["one", "two"], writer, JUDGE, **settings, patience=9)
    assert [len(result.trace.candidates) for result in results] == [6, 6] and writer.most == 4


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


async def test_a_batch_writes_the_forecast(tmp_path):
    """With `unseen_last` the output has a column for it."""
    settings = {
        "priors": LEARNED,
        "unseen_last": True,
        "min_expected_gain": 0.12,
        "judge": JudgeModel(),
        "max_iterations": 2,
    }
    writer, out = Writer(), tmp_path / "out.jsonl"
    await batch([{"prompt": "q"}], out, writer, JUDGE, **settings)
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["stop"] == "gain" and row["best_score"] is None and 0 < row["forecast"] <= 1


async def test_a_batch_is_written_in_rounds(tmp_path):
    """`width` works in batches, too."""
    writer = Writer(0.02)
    await batch(
        [{"prompt": "q"}],
        tmp_path / "o.jsonl",
        writer,
        JUDGE,
        judge=JudgeModel(),
        width=2,
        max_iterations=1,
    )
    assert writer.most == 2
    with pytest.raises(ConfigError, match="width"):
        await batch(
            [{"prompt": "q"}], tmp_path / "b.jsonl", ScriptedModel([]), JUDGE, mode="best", width=2
        )


async def test_a_batch_is_refused_before_its_first_row(tmp_path):
    """What no row can have ends the run at once, and nothing is written."""
    out = tmp_path / "o.jsonl"
    with pytest.raises(ConfigError, match="unseen_last cannot be combined with a must"):
        await batch([{"prompt": "q"}], out, Writer(), [must(JUDGE), JUDGE], unseen_last=True)
    assert not out.exists()


@pytest.mark.parametrize("calls", [3, 4, 5, 9])
async def test_a_judge_that_cannot_be_read_is_named_whatever_ended_the_run(calls):
    """A budget that is used up does not hide why nothing was graded."""
    model, judge = ScriptedModel(["a text"] * 9), ScriptedModel(["rubbish"] * 20)
    result = await refine(
        "q", model, Judge({"c": "It is short."}), judge, budget=Budget(calls=calls)
    )
    assert (result.value, result.score) == ("a text", None)
    assert re.search(r"judge: .*cannot be read", result.stop_note)
