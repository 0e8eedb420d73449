"""Functions as graders: whether they call a model decides their noise, and an error names the user's line."""

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


def ignore_model(text, llm):
    return worth(text)


def read_provider(text, provider):
    return worth(text) if str(provider) else 0.0


async def not_awaited(text, client):
    return worth(text), "computed"


async def seldom(text, judge):
    """Calls the model for long texts only, of which there are none."""
    return float(await judge(text)) if len(text) > 1000 else worth(text)


async def asking(text, model):
    await model(f"How good is {text}?")
    return worth(text)


async def asking_later(text, llm):
    return await asking(text, llm) if len(text) > 20 else worth(text)


async def run(grader):
    model = ScriptedModel([*DRAFTS])
    judge = ScriptedModel(["0.5"] * 20)
    return await refine("q", model, grader, judge=judge, target_score=0.9)


def observable_result(result):
    score = result.score if result.score is None else round(result.score, 9)
    return result.value, score, result.stop, result.score_interval, result.metadata["score_history"], result.usage.calls


@pytest.mark.parametrize(
    "function", [ignore_model, read_provider, not_awaited, seldom, lambda text, ask: worth(text), partial(ignore_model)]
)
async def test_function_without_model_calls_is_exact(function):
    """Its scores are exact, whatever its argument is called and whether or not it is async."""
    assert observable_result(await run(function)) == observable_result(await run(worth))


@pytest.mark.parametrize("composite", [Minimum, lambda parts: Jury(parts * 3)])
async def test_combination_of_exact_functions_is_exact(composite):
    """No part called a model."""
    assert observable_result(await run(composite([ignore_model]))) == observable_result(await run(composite([worth])))


@pytest.mark.parametrize("function", [asking, asking_later, lambda text, model: asking(text, model)])
async def test_function_that_calls_the_model_is_noisy(function):
    """Its scores are treated as noisy from its first call."""
    result = await run(function)
    assert result.score_interval is not None
    assert result.score != result.judge_score


async def test_one_noisy_part_makes_the_combination_noisy():
    """The other part calls no model."""
    assert (await run(Minimum([ignore_model, asking]))).score_interval is not None


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
    """Return the number of the line of this file with these words."""
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
async def test_grader_error_names_file_and_line(grader, words, function, source):
    """The error names the last line of user code and the file without its folder."""
    with pytest.raises(GradingError) as caught:
        await refine("q", ScriptedModel(["a"]), grader, max_iterations=0)
    message = str(caught.value)
    assert words in message
    assert f"(in {function.__name__}, test_functions.py line {line_of(function, source)})" in message
    assert "graders/test_functions" not in message


async def test_error_of_redraft_names_no_line():
    """A function that returned no grade has a message of its own; code without a file is named as Python does."""
    for value, words in (("good", "must return a score"), (7, "must be a number in .0, 1., got 7")):
        with pytest.raises(GradingError, match=words) as caught:
            await refine("q", ScriptedModel(["a"]), FunctionGrader(lambda _, value=value: value, "mine"), max_iterations=0)
        assert " line " not in str(caught.value)
    names = {}
    exec("def typed(text):\n    return undefined", names)  # noqa: S102
    with pytest.raises(GradingError, match=r"\(in typed, <string> line 2\)"):
        await refine("q", ScriptedModel(["a"]), names["typed"], max_iterations=0)


async def test_model_function_error_names_its_line():
    """A function used as the model is user code, too."""

    def failing_model(messages):
        raise OSError("gone")

    with pytest.raises(ModelError, match=r"OSError: gone \(in failing_model, test_functions.py line \d+\)"):
        await refine("q", failing_model, lambda _: Feedback(1.0), max_iterations=0)


@pytest.mark.timeout(20)
async def test_stop_iteration_is_an_ordinary_failure():
    """A future cannot hold StopIteration, so it becomes an ordinary failure of a grader or a model."""

    def raise_stop_iteration(text):
        return next(iter(()))

    with pytest.raises(GradingError, match=r"StopIteration .in raise_stop_iteration, test_functions.py line"):
        await refine("q", ScriptedModel(["a"]), raise_stop_iteration)
    with pytest.raises(ModelError, match="StopIteration"):
        await refine("q", raise_stop_iteration, lambda text: 1.0, retries=0)
