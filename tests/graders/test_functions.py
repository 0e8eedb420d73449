"""Functions as graders: whether they call a model decides their noise, and an error names the
user's line.
"""

import json
import math
import pickle
import sys
from functools import partial
from pathlib import Path

import pytest

from each_row import each_row
from redraft import CriterionScore, Feedback, ScriptedModel, refine
from redraft.errors import GradingError, ModelError
from redraft.graders import FunctionGrader, Jury, Minimum
from redraft.graders.base import as_feedback
from redraft.graders.traits import traits_of
from redraft.loop.serialize import record_from_json, record_to_json

DRAFTS = ("aa", "bbb" * 4, "cccc" * 6, "ddddd" * 3, "e")


def worth(text):
    return 0.3 + len(text) / 100


def with_default(text, worth=lambda text: 0.5):
    return worth(text)


def test_a_function_whose_default_cannot_be_pickled_goes_to_other_processes():
    jury = Jury([with_default, ignore_model])
    traits_of(jury)
    assert isinstance(pickle.loads(pickle.dumps(jury)), Jury)


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


async def run(grader, *, asks=True):
    """`asks`: whether the grader takes a model, so that naming one adds no judge."""
    judge = ScriptedModel(["0.5"] * 20) if asks else None
    return await refine("q", ScriptedModel([*DRAFTS]), grader, judge=judge, target_score=0.9)


def observable_result(result):
    score = result.score if result.score is None else round(result.score, 9)
    return (
        result.value,
        score,
        result.stop,
        result.score_interval,
        result.score_history,
        result.usage.calls,
    )


@pytest.mark.parametrize(
    "function",
    [
        ignore_model,
        read_provider,
        not_awaited,
        seldom,
        lambda text, ask: worth(text),
        partial(ignore_model),
    ],
)
async def test_function_without_model_calls_is_exact(function):
    """Its scores are exact, whatever its argument is called and whether or not it is async."""
    assert observable_result(await run(function)) == observable_result(await run(worth, asks=False))


@pytest.mark.parametrize("composite", [Minimum, lambda parts: Jury(parts * 3)])
async def test_combination_of_exact_functions_is_exact(composite):
    """No part called a model."""
    assert observable_result(await run(composite([ignore_model]))) == observable_result(
        await run(composite([worth]), asks=False)
    )


@pytest.mark.parametrize(
    "function", [asking, asking_later, lambda text, model: asking(text, model)]
)
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
    (
        Minimum([short_and_polite]),
        "ZeroDivisionError: division by zero",
        short_and_polite,
        "return 1 /",
    ),
]


@pytest.mark.parametrize(("grader", "words", "function", "source"), RAISED)
async def test_grader_error_names_file_and_line(grader, words, function, source):
    """The error names the last line of user code and the file without its folder."""
    with pytest.raises(GradingError) as caught:
        await refine("q", ScriptedModel(["a"]), grader, max_iterations=0)
    message = str(caught.value)
    assert words in message
    assert (
        f"(in {function.__name__}, test_functions.py line {line_of(function, source)})" in message
    )
    assert "graders/test_functions" not in message


async def test_error_of_redraft_names_no_line():
    """A function that returned no grade has a message of its own; code without a file is named as
    Python does.
    """
    for value, words in (("good", "must return a score"), (7, "must be a number in .0, 1., got 7")):
        with pytest.raises(GradingError, match=words) as caught:
            await refine(
                "q",
                ScriptedModel(["a"]),
                FunctionGrader(lambda _, value=value: value, "mine"),
                max_iterations=0,
            )
        assert " line " not in str(caught.value)
    names = {}
    exec("def typed(text):\n    return undefined", names)
    with pytest.raises(GradingError, match=r"\(in typed, <string> line 2\)"):
        await refine("q", ScriptedModel(["a"]), names["typed"], max_iterations=0)


MAPPINGS = [
    ({"score": 0.5, "reason": "short"}, Feedback(0.5, "short")),
    ({"score": True}, Feedback(1.0)),
    (
        {"score": None, "actions": ["Add a date."], "done": False},
        Feedback(actions=["Add a date."], done=False),
    ),
    (
        {
            "score": 1,
            "criteria": [
                {"name": "tone", "score": 0.5, "action": "Greet."},
                CriterionScore("length", 1.0),
            ],
        },
        Feedback(
            1.0,
            criteria=[CriterionScore("tone", 0.5, action="Greet."), CriterionScore("length", 1.0)],
        ),
    ),
    (
        {"score": 0.5, "reason": None, "metadata": {"words": [1, {"n": None}]}},
        Feedback(0.5, metadata={"words": [1, {"n": None}]}),
    ),
]


@pytest.mark.parametrize(("mapping", "feedback"), MAPPINGS)
def test_a_mapping_is_feedback_with_those_fields(mapping, feedback):
    """The metadata are a copy: a grader that changes its mapping later changes no record."""
    result = as_feedback(mapping, "mine")
    mapping.get("metadata", {}).clear()
    assert result == feedback


@each_row(
    ("mapping", "words"),
    [
        ({}, "without a score"),
        ({"reason": "good"}, "without a score"),
        ({"score": 0.5, "coment": "good"}, "'coment'; it may hold score, reason"),
        ({"score": 0.5, 3: 4}, "with 3; it may hold"),
        ({"score": "0.5"}, r"grader 'mine': a score must be a number in \[0, 1\], got '0.5'"),
        ({"score": 5}, r"a score must be a number in \[0, 1\], got 5"),
        ({"score": math.nan}, r"a score must be a number in \[0, 1\], got nan"),
        ({"score": 0.5, "reason": 3}, "reason cannot be 3"),
        ({"score": 0.5, "done": "yes"}, "done cannot be 'yes'"),
        ({"score": 0.5, "actions": "Add a date."}, "actions cannot be"),
        ({"score": 0.5, "criteria": [0.5]}, "expected an object, got 0.5"),
        ({"score": 0.5, "criteria": 7}, "mapping that is not a Feedback"),
        (
            {"score": 0.5, "criteria": [{"name": "tone", "score": 2}]},
            r"must be a number in \[0, 1\], got 2",
        ),
        ({"score": 0.5, "metadata": [1]}, "metadata cannot be"),
        (
            {"score": 0.5, "metadata": {"x": {1, 2}}},
            "the metadata of feedback is JSON of at most 65,536 characters",
        ),
        (
            {"score": 0.5, "metadata": {"x": "a" * 65_536}},
            "the metadata of feedback is JSON of at most 65,536 characters",
        ),
    ],
)
def test_a_mapping_that_is_no_feedback_is_an_error(mapping, words):
    """No value is dropped, converted or taken from a similar key."""
    with pytest.raises(ValueError, match=words):
        as_feedback(mapping, "mine")


async def test_metadata_are_in_the_trace_and_in_its_file():
    """They come back from JSON, and feedback without any has no such key."""
    result = await refine(
        "q",
        ScriptedModel(["a"]),
        [lambda _: {"score": 0.5, "metadata": {"n": 1}}, lambda _: 1.0],
        max_iterations=0,
    )
    with_metadata, without = (record_to_json(feedback) for feedback in result.trace.feedback[0])
    assert record_from_json(with_metadata).metadata == {"n": 1}
    assert "metadata" not in without


async def test_model_function_error_names_its_line():
    """A function used as the model is user code, too."""

    def failing_model(messages):
        raise OSError("gone")

    with pytest.raises(
        ModelError, match=r"OSError: gone \(in failing_model, test_functions.py line \d+\)"
    ):
        await refine("q", failing_model, lambda _: Feedback(1.0), max_iterations=0)


@pytest.mark.timeout(20)
async def test_stop_iteration_is_an_ordinary_failure():
    """A future cannot hold StopIteration, so it becomes an ordinary failure of a grader or a
    model.
    """

    def raise_stop_iteration(text):
        return next(iter(()))

    with pytest.raises(
        GradingError, match=r"StopIteration .in raise_stop_iteration, test_functions.py line"
    ):
        await refine("q", ScriptedModel(["a"]), raise_stop_iteration)
    with pytest.raises(ModelError, match="StopIteration"):
        await refine("q", raise_stop_iteration, lambda text: 1.0, retries=0)


async def test_an_exit_is_an_ordinary_failure():
    """A function that calls sys.exit fails as a grader or a model; it does not end the program."""

    def leave(text):
        sys.exit(3)

    with pytest.raises(GradingError, match=r"SystemExit .in leave, test_functions.py line"):
        await refine("q", ScriptedModel(["a"]), leave)
    with pytest.raises(ModelError, match="SystemExit"):
        await refine("q", leave, lambda text: 1.0, retries=0)
