"""A grader that compares compares the two best answers once at the end, where grades leave open
which is better.
"""

import json
import re

import pytest

from redraft import (
    Budget,
    Judge,
    ScriptedModel,
    Task,
    Trace,
    must,
    refine,
)
from redraft.errors import BudgetExhaustedError
from redraft.graders import Pairwise
from redraft.loop.records import Candidate, Comparison, Feedback
from redraft.loop.steps import Compare, Stop
from redraft.loop.stopping import done, max_iterations, target
from redraft.loop.trace import PanelGrader
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.runs import BatchRun

RUBRIC = {"truth": "It is true."}
SHOWN = re.compile(r"<(first|second)-([0-9a-f]{8})>\n(.*?)\n</\1-\2>", re.DOTALL)
SETTINGS = {"drafts": 2, "max_iterations": 0}
GRADERS = [Judge(RUBRIC), Pairwise(rubric=RUBRIC)]


class JudgeModel:
    """A judge model that scores by one table (0-5) and prefers by another; `asked` has the
    comparisons as shown.
    """

    name = identity = "judge"

    def __init__(self, scores, prefers=lambda one, other: "tie", done=False, duel_done=False):
        self.scores, self.prefers, self.done, self.duel_done, self.asked = (
            scores,
            prefers,
            done,
            duel_done,
            [],
        )

    async def __call__(self, messages):
        text = messages[-1]["content"]
        if pair := SHOWN.findall(text):
            one, other = (shown for _, _, shown in pair)
            self.asked.append((one, other, text))
            winner = self.prefers(one, other)
            return json.dumps(
                {"reason": "because", "change": [], "winner": winner, "done": self.duel_done}
            )
        score = next(score for answer, score in self.scores.items() if f">\n{answer}\n</" in text)
        return json.dumps(
            {
                "reason": "It is so.",
                "criteria": {"truth": {"evidence": "e", "change": "c", "score": score}},
                "done": self.done,
            }
        )


def prefer(text):
    """Prefer a text, in whatever order it is shown."""
    return lambda one, other: "first" if one == text else "second" if other == text else "tie"


async def refine_with_check(judge, *, texts=("one", "two"), graders=None, task="q", **more):
    """The result of two drafts, graded and compared."""
    model = ScriptedModel(list(texts))
    return await refine(task, model, graders or GRADERS, judge=judge, **{**SETTINGS, **more})


async def test_the_judge_decides_between_two_close_answers():
    """Its verdict precedes a difference that noise explains; it gets the same rubric twice, in both
    orders.
    """
    judge = JudgeModel({"one": 3, "two": 4}, prefer("one"))
    result = await refine_with_check(judge)
    assert (result.value, result.stop, result.usage.calls) == ("one", "max_iterations", 6)
    assert sorted((one, other) for one, other, _ in judge.asked) == [("one", "two"), ("two", "one")]
    assert all("It is true." in text for _, _, text in judge.asked)
    low, high = result.score_interval
    assert low < result.score < high
    assert result.judge_score == 0.6


@pytest.mark.parametrize("winner", ["first", "second", "tie"])
async def test_an_undecided_comparison_changes_nothing(winner):
    """A tie, or a verdict that changes with the order, keeps the estimates."""
    result = await refine_with_check(JudgeModel({"one": 3, "two": 4}, lambda *_: winner))
    assert (result.value, result.judge_score) == ("two", 0.8)


async def test_a_failed_comparison_changes_nothing():
    """An unreadable verdict is recorded as a failure; the work ends as without it."""
    result = await refine_with_check(JudgeModel({"one": 3, "two": 4}, lambda *_: "nobody"))
    assert (result.value, result.stop) == ("two", "max_iterations")
    assert ["compare" in failure for failure in result.failures] == [True]


async def test_clear_grades_need_no_comparison():
    """None is made either where there is one answer."""
    judge = JudgeModel({"one": 0, "two": 5}, prefer("one"))
    assert (await refine_with_check(judge)).value == "two"
    assert (await refine_with_check(judge, task=Task("q", "one"))).value == "one"
    assert judge.asked == []


async def test_musts_come_before_preference():
    """Only answers that keep as many musts are compared."""
    judge = JudgeModel({"one": 5, "two": 4}, prefer("one"))
    result = await refine_with_check(judge, graders=[must("contains:two"), *GRADERS])
    assert (result.value, judge.asked) == ("two", [])


@pytest.mark.parametrize(("done", "duel_done"), [(True, False), (False, True)])
async def test_a_comparison_does_not_decide_whether_the_work_is_done(done, duel_done):
    """Only graders say whether more is to be changed; a comparison neither ends nor continues the
    work.
    """
    judge = JudgeModel({"one": 3, "two": 4}, prefer("two"), done, duel_done)
    result = await refine_with_check(judge, max_iterations=1, min_expected_gain=0.5)
    assert (result.value, result.stop) == ("two", "done" if done else "gain")
    assert len(judge.asked) == 2
    assert result.iterations == 0


async def test_a_preferred_answer_must_meet_the_target_that_ended_the_work():
    """The estimate of the returned answer reaches the target."""
    plan = Adaptive(SelfRefine(target(0.65) | done() | max_iterations(0), drafts=2))
    judge = JudgeModel({"one": 3, "two": 4}, prefer("one"))
    result = await refine_with_check(judge, plan=plan)
    assert (result.value, result.stop) == ("two", "target")
    assert result.score >= 0.65


async def test_a_resumed_trace_gets_its_comparison_once():
    """Finished work without one gets it on request; a second one is never made."""
    judge = JudgeModel({"one": 3, "two": 4}, prefer("one"))
    before = await refine_with_check(judge, graders=Judge(RUBRIC))
    assert (before.value, judge.asked) == ("two", [])
    idle = ScriptedModel([])
    after = await refine(before.trace, idle, GRADERS, judge=judge, **SETTINGS)
    assert (after.value, len(judge.asked)) == ("one", 2)
    again = await refine(
        Trace.from_json(after.trace.to_json()), idle, GRADERS, judge=judge, **SETTINGS
    )
    assert (again.value, len(judge.asked), idle.calls) == ("one", 2, 0)
    assert (again.score, again.score_interval) == (after.score, after.score_interval)


async def test_work_interrupted_anywhere_ends_with_the_same_answer():
    """Recorded calls are not repeated."""
    judge = JudgeModel({"one": 3, "two": 4}, prefer("one"))
    whole = (await refine_with_check(judge)).trace
    for n in range(len(whole.records)):
        cut = Trace(whole.task, whole.panel, whole.records[:n])
        held = {c.text for c in cut.candidates}
        left = [text for text in ("one", "two") if text not in held]
        again = await refine(cut, ScriptedModel(left), GRADERS, judge=judge, **SETTINGS)
        assert again.trace.outcome == whole.outcome, n
        assert again.usage.calls == 6, n


async def test_a_budget_too_small_for_the_check_keeps_the_best_so_far():
    """The reason for stopping says so, and a larger budget makes the comparison."""
    judge = JudgeModel({"one": 3, "two": 4}, prefer("one"))
    result = await refine_with_check(judge, budget=Budget(calls=4))
    assert (result.value, result.stop, judge.asked) == ("two", "budget", [])
    with pytest.raises(BudgetExhaustedError):
        await refine_with_check(judge, budget=Budget(calls=4), strict_budget=True)
    more = await refine(result.trace, ScriptedModel([]), GRADERS, judge=judge, **SETTINGS)
    assert (more.value, more.stop) == ("one", "max_iterations")


async def test_the_check_is_no_attempt():
    """It makes two calls at the end, once, however long the work was."""
    texts = [f"answer {n}" for n in range(5)]
    judge = JudgeModel(dict.fromkeys(texts, 3))
    result = await refine_with_check(judge, texts=texts, max_iterations=3, min_expected_gain=0)
    assert result.stop == "max_iterations"
    assert len(judge.asked) == 2
    assert result.usage.calls == 2 * (2 + 3) + 2


async def test_a_dry_run_counts_the_check(tmp_path):
    """It is at most two calls more for each row, at least none."""
    calls = []
    for graders in (Judge(RUBRIC), GRADERS):
        run = BatchRun.from_arguments([{"prompt": "q"}] * 3, tmp_path / "o.jsonl", ScriptedModel([]), graders,
                     on_duplicate="rename", max_iterations=1)  # fmt: skip
        calls.append((await run.prepare()).calls)
    assert calls == [(6, 12), (6, 18)]


# ---- the plan, as a table


def steps_after(*scores, told=(), attempts=0):
    """The steps of a plan that may write no more, after drafts with these scores and comparisons
    (rankings, ties).
    """
    panel = (PanelGrader("judge"), PanelGrader("pairwise", compares=True))
    records = [Candidate(i, f"text {i}", role="generate") for i in range(len(scores))]
    records += [Feedback(score, candidate=i, grader="judge") for i, score in enumerate(scores)]
    records += [Comparison(ranking, grader="pairwise", ties=ties) for ranking, ties in told]
    plan = Adaptive(
        SelfRefine(target(1.0) | max_iterations(0), drafts=len(scores)), max_attempts=attempts
    )
    return plan(Trace(Task("q"), panel, tuple(records)))


@pytest.mark.parametrize(
    ("scores", "pair"),
    [
        ((0.5, 0.6), (0, 1)),
        ((0.6, 0.5), (0, 1)),
        ((0.2, 0.6, 0.5), (1, 2)),
        ((0.5, 0.5, 0.5), (0, 1)),
        ((0.1, 1.0), None),
        ((0.5,), None),
    ],
)
def test_the_two_best_are_compared(scores, pair):
    """They have the best estimates and are in the order of their age; where grades are clear no two
    are.
    """
    [step] = steps_after(*scores)
    assert (tuple(c.id for c in step.candidates) if isinstance(step, Compare) else None) == pair


@pytest.mark.parametrize(
    ("told", "best"),
    [
        ([((0, 1), ())], 0),
        ([((1, 0), ())], 1),
        ([((0, 1), ((0, 1),))], 1),
    ],
)
def test_the_first_candidate_can_win(told, best):
    """The winner is returned, also candidate 0; a tie keeps the one with the better estimate."""
    [step] = steps_after(0.5, 0.6, told=told)
    assert isinstance(step, Stop)
    assert step.best == best
    believed = dict(step.estimates)
    assert step.score == believed[best]
    assert believed[0] < believed[1]
