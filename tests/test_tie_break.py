"""The final check: the two best, compared once at the end, where grades leave it open which is better."""

import json
import re

import pytest

from redraft import BestOfN, Budget, Judge, ScriptedModel, Task, Trace, batch, must, refine, with_weight
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.core.records import Candidate, Comparison, Feedback
from redraft.core.steps import Compare, Stop
from redraft.core.stopping import done, max_iterations, target
from redraft.core.trace import PanelGrader
from redraft.errors import BudgetExhaustedError, ConfigError
from redraft.graders import Pairwise
from redraft.runs import BatchRun

RUBRIC = {"truth": "It is true."}
SHOWN = re.compile(r"<(first|second)-([0-9a-f]{8})>\n(.*?)\n</\1-\2>", re.DOTALL)
SETTINGS = {"drafts": 2, "max_iterations": 0, "tie_break": True}


class Judging:
    """A judge model: scores by a table (0-5), prefers by another; `asked` holds the duels as they were shown."""

    name = identity = "judge"

    def __init__(self, scores, prefers=lambda one, other: "tie", done=False, duel_done=False):
        self.scores, self.prefers, self.done, self.duel_done, self.asked = scores, prefers, done, duel_done, []

    async def __call__(self, messages):
        text = messages[-1]["content"]
        if pair := SHOWN.findall(text):
            one, other = (shown for _, _, shown in pair)
            self.asked.append((one, other, text))
            winner = self.prefers(one, other)
            return json.dumps({"reason": "because", "change": [], "winner": winner, "done": self.duel_done})
        score = next(score for answer, score in self.scores.items() if f">\n{answer}\n</" in text)
        return json.dumps({"criteria": {"truth": {"evidence": "e", "change": "c", "score": score}}, "done": self.done})


def favourite(text):
    """Prefers a text, in whatever order it is shown."""
    return lambda one, other: "first" if one == text else "second" if other == text else "tie"


async def checked(judge, *, texts=("one", "two"), graders=None, task="q", **more):
    """The result of two drafts, graded and compared."""
    model = ScriptedModel(list(texts))
    return await refine(task, model, graders or Judge(RUBRIC), judge=judge, **{**SETTINGS, **more})


async def test_the_judge_decides_between_two_that_are_close():
    """Its word counts more than a difference that noise explains; it is asked twice, by the same rubric, in both orders."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    result = await checked(judge)
    assert (result.value, result.stop, result.usage.calls) == ("one", "max_iterations", 6)
    assert sorted((one, other) for one, other, _ in judge.asked) == [("one", "two"), ("two", "one")]
    assert all("It is true." in text for _, _, text in judge.asked)
    low, high = result.score_interval
    assert low < result.score < high
    assert result.judge_score == 0.6


@pytest.mark.parametrize("winner", ["first", "second", "tie"])
async def test_no_verdict_changes_nothing(winner):
    """A tie, or a verdict that changes with the order, leaves what is believed."""
    result = await checked(Judging({"one": 3, "two": 4}, lambda *_: winner))
    assert (result.value, result.judge_score) == ("two", 0.8)


async def test_a_check_that_cannot_be_had_changes_nothing():
    """An unreadable verdict is a failure on record; the work ends as it would have."""
    result = await checked(Judging({"one": 3, "two": 4}, lambda *_: "nobody"))
    assert (result.value, result.stop) == ("two", "max_iterations")
    assert ["compare" in failure for failure in result.metadata["failures"]] == [True]


async def test_what_is_clear_is_not_asked():
    """Nothing is compared where grades leave no doubt, nor where there is one answer."""
    judge = Judging({"one": 0, "two": 5}, favourite("one"))
    assert (await checked(judge)).value == "two"
    assert (await checked(judge, task=Task("q", "one"))).value == "one"
    assert judge.asked == []


async def test_musts_come_before_preference():
    """Only answers that keep as many musts are compared."""
    judge = Judging({"one": 5, "two": 4}, favourite("one"))
    result = await checked(judge, graders=[must("contains:two"), Judge(RUBRIC)])
    assert (result.value, judge.asked) == ("two", [])


@pytest.mark.parametrize(("done", "duel_done"), [(True, False), (False, True)])
async def test_the_check_has_no_say_in_whether_the_work_is_done(done, duel_done):
    """Whether more is to be changed is for those who grade; what compares neither ends the work nor lets it go on."""
    judge = Judging({"one": 3, "two": 4}, favourite("two"), done, duel_done)
    result = await checked(judge, max_iterations=1, min_expected_gain=0.5)
    assert (result.value, result.stop) == ("two", "done" if done else "gain")
    assert len(judge.asked) == 2
    assert result.metadata["iterations"] == 0


async def test_a_preferred_answer_must_meet_the_target_that_ended_the_work():
    """An end by the target is one with an answer that is believed to reach it."""
    plan = Adaptive(SelfRefine(target(0.65) | done() | max_iterations(0), drafts=2))
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    result = await checked(judge, graders=[Judge(RUBRIC), Pairwise()], plan=plan, tie_break=False)
    assert (result.value, result.stop) == ("two", "target")
    assert result.score >= 0.65


async def test_a_trace_goes_on_to_its_check_and_no_further():
    """Work that ended without one gets it when asked for; what was compared is not compared again."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    before = await checked(judge, tie_break=False)
    assert (before.value, judge.asked) == ("two", [])
    idle = ScriptedModel([])
    after = await refine(before.trace, idle, Judge(RUBRIC), judge=judge, **SETTINGS)
    assert (after.value, len(judge.asked)) == ("one", 2)
    again = await refine(Trace.from_json(after.trace.to_json()), idle, Judge(RUBRIC), judge=judge, **SETTINGS)
    assert (again.value, len(judge.asked), idle.calls) == ("one", 2, 0)
    assert (again.score, again.score_interval) == (after.score, after.score_interval)


async def test_work_that_was_cut_anywhere_ends_alike():
    """Whatever is there already is not asked again, and leads to the same answer."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    whole = (await checked(judge)).trace
    for n in range(len(whole.records)):
        cut = Trace(whole.task, whole.panel, whole.records[:n])
        held = {c.text for c in cut.candidates}
        left = [text for text in ("one", "two") if text not in held]
        again = await refine(cut, ScriptedModel(left), Judge(RUBRIC), judge=judge, **SETTINGS)
        assert again.trace.outcome == whole.outcome, n
        assert again.usage.calls == 6, n


async def test_money_that_ends_before_the_check_keeps_the_best_so_far():
    """It is not skipped in silence: the end says so, and more money goes on with it."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    result = await checked(judge, budget=Budget(calls=4))
    assert (result.value, result.stop, judge.asked) == ("two", "budget", [])
    with pytest.raises(BudgetExhaustedError):
        await checked(judge, budget=Budget(calls=4), strict_budget=True)
    more = await refine(result.trace, ScriptedModel([]), Judge(RUBRIC), judge=judge, **SETTINGS)
    assert (more.value, more.stop) == ("one", "max_iterations")


async def test_it_is_no_attempt():
    """Two calls at the very end, whatever was spent before: once, however long the work was."""
    texts = [f"answer {n}" for n in range(5)]
    judge = Judging(dict.fromkeys(texts, 3))
    result = await checked(judge, texts=texts, max_iterations=3, patience=9, min_expected_gain=0)
    assert result.stop == "max_iterations"
    assert len(judge.asked) == 2
    assert result.usage.calls == 2 * (2 + 3) + 2


async def test_a_judge_of_its_own_model_compares_by_that_model():
    """Who compares is who grades, not who wrote."""
    own = Judging({"one": 3, "two": 4}, favourite("one"))
    result = await checked(None, graders=Judge(RUBRIC, model=own))
    assert (result.value, len(own.asked)) == ("one", 2)


async def test_who_compares_already_is_the_check():
    """A comparing grader on the panel is not seated twice."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    result = await checked(judge, graders=[Judge(RUBRIC), Pairwise()])
    assert [seat.name for seat in result.trace.panel] == ["judge", "pairwise"]
    assert (result.value, len(judge.asked)) == ("one", 2)


async def test_a_judge_with_words_of_its_own_is_asked_which_is_better():
    """A template is made for one answer; two are compared by what the task asks for."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    graders = Judge(RUBRIC, template="Grade {query} {response}")
    assert (await checked(judge, graders=graders)).value == "one"
    assert all("better serves whoever asked" in text and "Grade " not in text for _, _, text in judge.asked)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"noise_aware": False}, "noise_aware=False"),
        ({"plan": BestOfN(2)}, "BestOfN"),
        ({"graders": "no_commas"}, "ask no model"),
        ({"graders": [Pairwise()]}, "ask no model for a score"),
    ],
)
async def test_it_is_refused_where_grades_are_taken_at_their_word(settings, why):
    """A check that would never be made is not promised."""
    with pytest.raises(ConfigError, match=f"tie_break.*{why}"):
        await checked(Judging({}), **settings)


async def test_it_is_refused_where_nothing_is_written(tmp_path):
    """Without a second answer there is nothing to compare, in one task as in a batch."""
    with pytest.raises(ConfigError, match="tie_break.*no model to write"):
        await refine(Task("q", "one"), False, Judge(RUBRIC), judge=Judging({}), tie_break=True)
    for mode in ("grade", "best"):
        with pytest.raises(ConfigError, match=f"{mode}.*tie_break"):
            await batch([{"prompt": "q"}], tmp_path / "out.jsonl", ScriptedModel([]), Judge(RUBRIC), mode=mode, tie_break=True)


async def test_a_rehearsal_counts_it(tmp_path):
    """At most two calls more for each row; none at least."""
    calls = []
    for tie_break in (False, True):
        run = BatchRun.of([{"prompt": "q"}] * 3, tmp_path / "o.jsonl", ScriptedModel([]), Judge(RUBRIC), tie_break=tie_break,
                     on_duplicate="rename", max_iterations=1)  # fmt: skip
        calls.append((await run.prepare()).calls)
    assert calls == [(6, 12), (6, 18)]


# ---- the plan, as a table


def ended(*scores, told=(), attempts=0):
    """What a plan asks for that may write no more, of drafts with these scores and comparisons (rankings, ties)."""
    panel = (PanelGrader("judge"), PanelGrader("tie_break", compares=True))
    records = [Candidate(i, f"text {i}", role="generate") for i in range(len(scores))]
    records += [Feedback(score, candidate=i, grader="judge") for i, score in enumerate(scores)]
    records += [Comparison(ranking, grader="tie_break", ties=ties) for ranking, ties in told]
    plan = Adaptive(SelfRefine(target(1.0) | max_iterations(0), drafts=len(scores)), max_attempts=attempts)
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
    """Those believed best, in the order of their age; nobody where it is clear."""
    [step] = ended(*scores)
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
    """Whoever is put first is kept, candidate 0 too; a tie leaves the one believed better."""
    [step] = ended(0.5, 0.6, told=told)
    assert isinstance(step, Stop)
    assert step.best == best
    believed = dict(step.estimates)
    assert step.score == believed[best]
    assert believed[0] < believed[1]


async def test_weights_and_looks_do_not_multiply_it():
    """However often a judge looks, it compares once."""
    judge = Judging({"one": 3, "two": 4}, favourite("one"))
    result = await checked(judge, graders=with_weight(Judge(RUBRIC), 2, repeats=2))
    assert (result.value, len(judge.asked)) == ("one", 2)
