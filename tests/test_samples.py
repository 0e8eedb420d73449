"""One sample, one vocabulary: what `grade` takes, `refine`, `refine_many`, `stream` and
`refine_sync` take in the same sense.
"""

import re

import pytest

import redraft
from each_row import each_row
from redraft import ScriptedModel, Task
from redraft.errors import ConfigError
from redraft.grading import grade_many

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "q"}]
ROW = {
    "question": "q",
    "answer": "r",
    "reference": "ref",
    "context": "con",
    "requirements": ["no_commas"],
    "id": 7,
    "topic": "t",
}
SAMPLES = {
    "task": (Task("q", "r"), Task("q", "r")),
    "pair": (("q", "r"), Task("q", "r")),
    "pair with messages": ((MESSAGES, "r"), Task(MESSAGES, "r")),
    "query": ({"query": "q", "response": "r"}, Task("q", "r")),
    "messages": ({"messages": MESSAGES, "completion": "r"}, Task(MESSAGES, "r")),
    "row": (
        ROW,
        Task(
            "q",
            "r",
            reference="ref",
            context="con",
            requirements=["no_commas"],
            id="7",
            metadata={"topic": "t"},
        ),
    ),
}
NO_RESPONSE = {
    "prompt": ("q", Task("q")),
    "messages": (MESSAGES, Task(MESSAGES)),
    "tuple of messages": (tuple(MESSAGES), Task(MESSAGES)),
    "query": ({"query": "q"}, Task("q")),
    "responses": ({"prompt": "q", "responses": ["r", "s"]}, Task("q", responses=["r", "s"])),
}


def one(text):
    return 1.0


async def by_grade(sample):
    return (await redraft.grade(sample, one)).trace


async def by_grade_many(sample):
    return (await grade_many([sample], one))[0].trace


async def by_refine(sample):
    return (await redraft.refine(sample, ScriptedModel(["d"]), one)).trace


async def by_refine_sync(sample):
    return redraft.refine_sync(sample, ScriptedModel(["d"]), one).trace


async def by_refine_many(sample):
    return (await redraft.refine_many([sample], ScriptedModel(["d"]), one))[0].trace


async def by_stream(sample):
    return [trace async for trace in redraft.stream(sample, ScriptedModel(["d"]), one)][-1]


REFINING = [by_refine, by_refine_sync, by_refine_many, by_stream]
DOORS = [by_grade, by_grade_many, *REFINING]


@each_row("door", DOORS)
@each_row("form", SAMPLES)
async def test_each_form_of_a_sample_is_the_same_task(door, form):
    """Prompt, response, and the fields of a row; the given response is candidate 0."""
    sample, task = SAMPLES[form]
    trace = await door(sample)
    assert trace.task == task
    assert (trace.candidates[0].text, trace.candidates[0].by) == ("r", "given")


@each_row("door", REFINING)
@each_row("form", NO_RESPONSE)
async def test_a_sample_without_a_response_is_written(door, form):
    """And several responses are the candidates."""
    sample, task = NO_RESPONSE[form]
    trace = await door(sample)
    assert trace.task == task
    assert [c.text for c in trace.candidates] == list(task.responses or ["d"])


@each_row("door", REFINING)
@each_row(
    ("sample", "says"),
    [
        ({"colour": "red"}, "a mapping has one key for the prompt (prompt"),
        ({}, "got no key"),
        ({"role": "user", "content": "q"}, "got 'role', 'content'"),
        (("q",), "message 1 must be"),
        (("q", 5), "message 1 must be"),
        ((5, "r"), "got 5"),
        (5, "got 5"),
    ],
)
async def test_what_is_no_sample_is_an_error_before_any_call(door, sample, says):
    """It names the argument."""
    with pytest.raises(ConfigError, match=rf"^task(s\[0\])?: .*{re.escape(says)}"):
        await door(sample)


async def test_a_pair_of_prompts_is_a_list_of_tasks():
    """What `refine_many` is given is a list, also as a tuple."""
    results = await redraft.refine_many(("q", "r"), ScriptedModel(["a", "b"]), one)
    assert [result.trace.task.prompt for result in results] == ["q", "r"]
