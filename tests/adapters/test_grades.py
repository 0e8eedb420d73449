"""What the adapters share: no cause of an unknown score gives a number that nobody chose."""

import json
import logging

import pytest

import redraft
from redraft.adapters.grades import GradeArguments, UnknownScore, answer_text, field_of
from redraft.errors import ConfigError, GradingError, ModelTimeoutError

from .answers import ANSWERS, FAILS, GOOD, SHORT, six_words

NAMES = ("instructions", "correctness", "completeness", "clarity")
VERDICT = json.dumps(
    {
        "reason": "It is short.",
        "criteria": {n: {"evidence": "", "change": "Say more.", "score": 3} for n in NAMES},
        "done": False,
    }
)
SECRET = "a message that names a server"
UNKNOWN = {  # the graders, the judge, the answer, further settings; and what the problem names
    "an own grader that fails": (six_words, None, FAILS, {}, "six_words: GradingError"),
    "one of two graders": (["words:1-9", six_words], None, FAILS, {}, "six_words: GradingError"),
    "a grader without a score": (lambda text: None, None, GOOD, {}, "no grader gave a score"),
    "a judge that is down": (redraft.Judge(), redraft.ScriptedModel([ModelTimeoutError(SECRET)]), GOOD, {}, "ModelTimeoutError"),
    "a judge that cannot be read": (redraft.Judge(), redraft.ScriptedModel(["no", "no"]), GOOD, {}, "BadResponseError"),
    "a budget of no calls": (redraft.Judge(), redraft.ScriptedModel([VERDICT]), GOOD, {"budget": redraft.Budget(calls=0)}, "BudgetExhaustedError"),
    "a blank answer": ("words:1-9", None, " \n", {}, "blank"),
}  # fmt: skip


def arguments_of(graders, judge=None, **settings):
    return GradeArguments(graders, judge, {"retries": 0, **settings})


@pytest.mark.parametrize("case", UNKNOWN)
async def test_an_unknown_score_is_never_a_number_that_nobody_chose(case, caplog):
    """Async and sync; the log and the error have no text of a server."""
    graders, judge, answer, settings, kind = UNKNOWN[case]
    arguments = arguments_of(graders, judge, **settings)
    grade = await arguments.grade("Say hello.", answer)
    assert grade.score is None and grade.interval is None
    assert kind in grade.problem and SECRET not in grade.problem
    if judge is None:
        assert arguments.grade_sync("Say hello.", answer) == grade
    with pytest.raises(GradingError, match="the score is unknown") as raised:
        UnknownScore(None).number(grade)
    assert SECRET not in str(raised.value) + grade.feedback
    with caplog.at_level(logging.WARNING, "redraft"):
        scores = UnknownScore(-1)
        assert [scores.number(grade), scores.number(grade)] == [-1, -1]
    assert "unknown score 2 counts as -1" in caplog.text
    assert SECRET not in caplog.text and FAILS not in caplog.text


async def test_a_judge_that_fails_on_a_third_of_the_calls():
    """Each answer has its judge's score, or none."""
    asked = []

    async def judge(messages):
        asked.append(messages)
        if FAILS in messages[-1]["content"]:
            raise ModelTimeoutError(SECRET)
        return VERDICT

    arguments = arguments_of(redraft.Judge(), judge)
    grades = [await arguments.grade(question, answer) for question, answer in ANSWERS.items()]
    assert [grade.score for grade in grades] == [pytest.approx(0.6), pytest.approx(0.6), None] * 3
    assert len(asked) == 9


async def test_a_grade_says_what_to_change_and_how_sure_it_is():
    judge = redraft.ScriptedModel([VERDICT])
    grade = await arguments_of([redraft.must("words:1-9"), redraft.Judge()], judge).grade("q", GOOD)
    assert grade.score == pytest.approx(0.6)
    assert grade.feedback == "words:1-9 (1.00): 6 words\njudge (0.60): It is short.; Say more."
    low, high = grade.interval
    assert 0 <= low < 0.6 < high <= 1


async def test_an_answer_that_breaks_a_condition_scores_0():
    """As in exports of training data; also if another grader fails."""
    for graders in (["fuzzy", redraft.must("words:9-")], [six_words, redraft.must("words:9-")]):
        grade = await arguments_of(graders).grade("q", FAILS, reference=FAILS)
        assert grade.score == 0.0 and "at least 9" in grade.feedback


async def test_a_mistake_of_the_caller_is_an_error():
    for graders in ("no_such_grader", ["words:9-3"], redraft.must("no_such_grader"), 3):
        with pytest.raises(ConfigError):
            arguments_of(graders)
    with pytest.raises(ConfigError, match="'exact' needs a task with reference"):
        await arguments_of("exact").grade("q", GOOD)
    with pytest.raises(ConfigError, match="'exact' needs a task with reference"):
        arguments_of("exact").grade_sync("q", GOOD)
    for value in (True, "0", float("inf"), float("nan"), [0]):
        with pytest.raises(ConfigError, match="unknown must be the finite number"):
            UnknownScore(value)


def test_values_as_texts():
    from pydantic import BaseModel

    class City(BaseModel):
        name: str

    assert answer_text("á") == "á"
    assert answer_text({"á": [1, None]}) == '{"á": [1, null]}'
    assert answer_text(City(name="Oslo")) == '{"name": "Oslo"}'
    assert answer_text({1}) == '"{1}"'
    assert field_of({"a": 1}, None, "answer") == 1
    assert field_of({"a": 1, "b": 2}, "b", "answer") == 2


def test_scores_are_known_where_graders_are():
    assert [
        UnknownScore(None).number(arguments_of(six_words).grade_sync("q", a)) for a in (GOOD, SHORT)
    ] == [1, 0]
