"""A grade of a given text is paid for as a whole, or not at all."""

import asyncio
import json

import pytest

import redraft
from redraft import graders
from redraft.errors import BudgetExhaustedError
from redraft.grading import grade_many

CRITERIA = {"a": "A", "b": "B", "c": "C"}


class CountingJudge:
    """A model that gives full marks, and counts its calls; each takes a few turns of the event
    loop.
    """

    calls = 0

    async def __call__(self, messages):
        self.calls += 1
        await asyncio.sleep(0.001)
        shown = "".join(str(message["content"]) for message in messages)
        line = {"evidence": "x", "change": "", "score": 5}
        criteria = {name: line for name in CRITERIA if f"- {name}: " in shown}
        return json.dumps({"reason": "Good.", "criteria": criteria, "done": True})


def separate():
    return redraft.Judge(CRITERIA, criteria_mode="separate")


GRADERS = {  # with the calls of one grade
    "one call": (lambda: redraft.Judge(CRITERIA), 1),
    "a call for each criterion": (separate, 3),
    "a jury": (
        lambda: graders.Jury([redraft.Judge({name: "x"}, name=name) for name in CRITERIA]),
        3,
    ),
    "repeats": (lambda: graders.Jury([separate()], repeats=2), 6),
}
ENTRIES = {
    "grade": lambda grader, model, budget: redraft.grade_sync(
        ("q", "x"), grader, model, budget=budget
    ),
    "refine": lambda grader, model, budget: redraft.refine_sync(
        redraft.Task("q", "x"), model, grader, budget=budget
    ),
}


def note_without_a_grade(entry, grader, model, budget):
    """Return why there is no grade: `grade` raises it, and `refine` returns the response with
    it.
    """
    try:
        result = ENTRIES[entry](grader, model, budget)
    except BudgetExhaustedError as error:
        return str(error) if entry == "grade" else ""
    assert (result.value, result.score, str(result.stop)) == ("x", None, "budget")
    return result.stop_note


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", GRADERS)
def test_a_grade_is_made_with_all_its_calls_or_none(name, entry):
    """With one call too few, none is made; with exactly enough, the grade is."""
    make, calls = GRADERS[name]
    for budget, made in ((calls - 1, 0), (calls, calls)):
        model = CountingJudge()
        if made:
            assert ENTRIES[entry](make(), model, redraft.Budget(calls=budget)).score is not None
        else:
            note = note_without_a_grade(entry, make(), model, redraft.Budget(calls=budget))
            assert (f"may take {calls}" if calls > 1 else "budget") in note
        assert model.calls == made


@pytest.mark.parametrize(("calls", "graded"), [(2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (9, 3)])
def test_grades_at_the_same_time_share_a_budget(calls, graded):
    """As many texts are graded as the budget has whole grades for, and none in part."""
    model = CountingJudge()
    samples = [("q", text) for text in ("x", "y", "z")]
    reports = asyncio.run(
        grade_many(samples, separate(), model, budget=redraft.Budget(calls=calls))
    )
    assert sum(report.score is not None for report in reports) == graded
    assert model.calls == 3 * graded
