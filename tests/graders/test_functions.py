"""Functions as graders: what they do decides what they count as, and what they raise says where."""

import json
from functools import partial
from pathlib import Path

import pytest

from redraft import Feedback, ScriptedModel, refine
from redraft.errors import GradingError, ModelError
from redraft.graders import FunctionGrader, Jury, Minimum

DRAFTS = ("aa", "bbb" * 4, "cccc" * 6, "ddddd" * 3, "e")


def worth(text):
    return 0.3 + len(text) / 100


def unused(text, llm):
    return worth(text)


def touched(text, provider):
    return worth(text) if str(provider) else 0.0


async def not_awaited(text, client):
    return worth(text), "computed"


async def seldom(text, judge):
    """Asks only about long texts, of which there are none."""
    return float(await judge(text)) if len(text) > 1000 else worth(text)


async def asking(text, model):
    await model(f"How good is {text}?")
    return worth(text)


async def asking_later(text, llm):
    return await asking(text, llm) if len(text) > 20 else worth(text)


async def refined(grader):
    model = ScriptedModel([*DRAFTS])
    judge = ScriptedModel(["0.5"] * 20)
    return await refine("q", model, grader, judge=judge, target_score=0.9)


def told(result):
    score = result.score if result.score is None else round(result.score, 9)
    return result.value, score, result.stop, result.score_interval, result.metadata["score_history"], result.usage.calls


@pytest.mark.parametrize("function", [unused, touched, not_awaited, seldom, lambda text, ask: worth(text), partial(unused)])
async def test_a_function_that_calls_no_model_computes(function):
    """Whatever its argument is called, and whether it is async: scores are taken as they are, by the plain rules."""
    assert told(await refined(function)) == told(await refined(worth))


@pytest.mark.parametrize("combined", [Minimum, lambda parts: Jury(parts * 3)])
async def test_so_does_what_is_made_of_such_functions(combined):
    """None of the parts called a model."""
    assert told(await refined(combined([unused]))) == told(await refined(combined([worth])))


@pytest.mark.parametrize("function", [asking, asking_later, lambda text, model: asking(text, model)])
async def test_a_function_that_calls_the_model_is_noisy(function):
    """From its first call on: its word is weighed, not taken."""
    result = await refined(function)
    assert result.score_interval is not None
    assert result.score != result.judge_score


async def test_a_part_that_calls_the_model_makes_the_whole_noisy():
    """Beside one that does not."""
    assert (await refined(Minimum([unused, asking]))).score_interval is not None


def short_and_polite(text):
    return 1 / (len(text) - len(text))


def handed_on(text):
    return short_and_polite(text)


def from_the_library(text):
    return json.loads("{")["score"]


def out_of_range(text):
    return Feedback(7)


async def late(text, task):
    raise KeyError(task.prompt)


class Strict:
    name = "strict"

    async def grade(self, task, candidate, ask):
        raise RuntimeError("no")


def line_of(function, words):
    """The number of the line with these words, counted in this file."""
    lines = Path(__file__).read_text(encoding="utf-8").split("\n")
    start = function.__code__.co_firstlineno
    return next(n for n in range(start, start + 9) if words in lines[n - 1])


GRADE = Strict.grade
RAISED = [
    (short_and_polite, "ZeroDivisionError: division by zero", short_and_polite, "return 1 /"),
    (handed_on, "ZeroDivisionError: division by zero", short_and_polite, "return 1 /"),
    (from_the_library, "JSONDecodeError: ", from_the_library, "json.loads"),
    (out_of_range, "a score must be a number in [0, 1], got 7", out_of_range, "return Feedback"),
    (late, "KeyError: 'q'", late, "raise"),
    (Strict(), "RuntimeError: no", GRADE, "raise"),
    (Minimum([short_and_polite]), "ZeroDivisionError: division by zero", short_and_polite, "return 1 /"),
]


@pytest.mark.parametrize(("grader", "words", "function", "source"), RAISED)
async def test_what_a_grader_raises_names_file_and_line(grader, words, function, source):
    """The last line of the user's own, whatever it called from there; the file by its name, not its folder."""
    with pytest.raises(GradingError) as caught:
        await refine("q", ScriptedModel(["a"]), grader, max_iterations=0)
    said = str(caught.value)
    assert words in said
    assert f"(in {function.__name__}, test_functions.py line {line_of(function, source)})" in said
    assert "graders/test_functions" not in said


async def test_what_is_ours_names_no_line():
    """That a function returned no grade is said in words of ours; code that has no file is named as Python names it."""
    for said, words in (("good", "must return a score"), (7, "must be a number in .0, 1., got 7")):
        with pytest.raises(GradingError, match=words) as caught:
            await refine("q", ScriptedModel(["a"]), FunctionGrader(lambda _, said=said: said, "mine"), max_iterations=0)
        assert " line " not in str(caught.value)
    names = {}
    exec("def typed(text):\n    return undefined", names)  # noqa: S102
    with pytest.raises(GradingError, match=r"\(in typed, <string> line 2\)"):
        await refine("q", ScriptedModel(["a"]), names["typed"], max_iterations=0)


async def test_what_a_function_that_is_the_model_raises_names_its_line():
    """It is the user's code, too."""

    def broken(messages):
        raise OSError("gone")

    with pytest.raises(ModelError, match=r"OSError: gone \(in broken, test_functions.py line \d+\)"):
        await refine("q", broken, lambda _: Feedback(1.0), max_iterations=0)


@pytest.mark.timeout(20)
async def test_a_function_that_raises_stop_iteration_holds_up_nothing():
    """No future can hold a StopIteration: it is a failure like any other, of a grader and of a model."""

    def exhausted(text):
        return next(iter(()))

    with pytest.raises(GradingError, match=r"StopIteration .in exhausted, test_functions.py line"):
        await refine("q", ScriptedModel(["a"]), exhausted)
    with pytest.raises(ModelError, match="StopIteration"):
        await refine("q", exhausted, lambda text: 1.0, retries=0)
