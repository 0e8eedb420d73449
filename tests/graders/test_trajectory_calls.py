"""Precision, recall and order of the tool calls of a trajectory."""

import json
from datetime import date, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft import Candidate, Task
from redraft.errors import ConfigError
from redraft.graders import as_grader
from redraft.protocols import ToolCall

PRECISION, RECALL, ORDER = "tool_call_precision", "tool_call_recall", "tool_call_order"


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def message_call(name, arguments="{}"):
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def trajectory(*calls, after=(), expected):
    """Return a task: earlier calls, the last request, then further calls, each with a result."""
    messages = [{"role": "user", "content": "Book a table."}]
    for each in calls:
        messages += [
            {"role": "assistant", "tool_calls": [each]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]
    messages.append({"role": "user", "content": "For two."})
    for each in after:
        messages += [
            {"role": "assistant", "tool_calls": [each]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]
    return Task(messages, metadata={"tool_calls": expected})


async def score_of(spec, task, answer="Booked.", calls=()):
    return (
        await as_grader(spec).grade(task, Candidate(0, answer, tool_calls=tuple(calls)), None)
    ).score


SEARCH, BOOK, PAY = (message_call(name, '{"q": 1}') for name in ("search", "book", "pay"))
EXPECTED = [call("search", q=1), call("book", q=1)]


@pytest.mark.parametrize(
    ("calls", "after", "answer_calls", "options", "scores"),
    [
        ([SEARCH], [BOOK], [], "", (1, 1, 1)),
        ([SEARCH], [], ["book"], "", (1, 1, 1)),
        ([BOOK], [SEARCH], [], "", (1, 1, 1 / 2)),
        ([SEARCH, PAY], [BOOK], [], "", (2 / 3, 1, 1)),
        ([SEARCH], [], [], "", (1, 1 / 2, 1 / 2)),
        ([SEARCH, SEARCH, SEARCH, BOOK], [], [], "", (2 / 4, 1, 1)),
        ([], [], [], "", (0, 0, 0)),
        ([SEARCH], [BOOK], [], "scope=steps", (1, 1 / 2, 1 / 2)),
        ([message_call("search", '{"q": 2}')], [BOOK], [], "", (1 / 2, 1 / 2, 1 / 2)),
        ([message_call("search", '{"q": 2}')], [BOOK], [], "arguments=false", (1, 1, 1)),
        ([message_call("search", "{broken")], [BOOK], [], "", (1 / 2, 1 / 2, 1 / 2)),
        ([message_call("search", "{broken")], [BOOK], [], "arguments=false", (1, 1, 1)),
        ([message_call("search", '{"q": 1.0}')], [BOOK], [], "", (1, 1, 1)),
        ([{"function": 5}, SEARCH], [BOOK], [], "", (2 / 3, 1, 1)),
        (["search", SEARCH], [BOOK], [], "", (2 / 3, 1, 1)),
    ],
)
async def test_calls_of_a_trajectory(calls, after, answer_calls, options, scores):
    """Calls are read from the messages and from the answer, malformed ones count as wrong."""
    task = trajectory(*calls, after=after, expected=EXPECTED)
    made = [ToolCall(name, '{"q": 1}') for name in answer_calls]
    for spec, score in zip((PRECISION, RECALL, ORDER), scores, strict=True):
        assert await score_of(f"{spec}:{options}", task, calls=made) == pytest.approx(score), spec


@pytest.mark.parametrize("spec", [PRECISION, RECALL, ORDER])
async def test_where_no_call_is_expected(spec):
    """No call is right then, and any call is wrong."""
    assert await score_of(spec, trajectory(expected=[])) == 1
    assert await score_of(spec, trajectory(SEARCH, expected=[])) == 0
    assert await score_of(spec, trajectory(expected=[]), calls=[ToolCall("search")]) == 0


async def test_text_is_read_only_where_no_call_stands_elsewhere():
    """A final answer in JSON is no call; without other calls, calls in the text count as
    `tool_calls` reads them.
    """
    answer = '{"name": "Ann", "arguments": {}}'
    assert await score_of(PRECISION, trajectory(SEARCH, BOOK, expected=EXPECTED), answer) == 1
    text = f"<tool_call>{json.dumps(EXPECTED[0])}</tool_call>"
    assert await score_of(RECALL, trajectory(expected=EXPECTED), text) == 1 / 2
    assert await score_of(RECALL, trajectory(expected=EXPECTED), f"{text} tool_calls: none") == 0


async def test_forms_of_messages_and_expectations():
    """The earlier `function_call`, steps of several calls, JSON text and the reference are read."""
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "function_call": {"name": "search", "arguments": '{"q": 1}'}},
        {"role": "function", "name": "search", "content": '{"name": "pay"}', "tool_calls": [PAY]},
        {"role": "assistant", "content": "x", "tool_calls": [BOOK, PAY]},
    ]
    steps = [[call("search", q=1)], [BOOK, call("pay", q=1)]]
    for fields in (
        {"metadata": {"tool_calls": steps}},
        {"reference": json.dumps(steps)},
        {"metadata": {"tool_calls": json.dumps(steps)}},
    ):
        for spec in (PRECISION, RECALL, ORDER):
            assert await score_of(spec, Task(messages, **fields)) == 1
    with pytest.raises(
        ConfigError, match=r'tool_call_recall.*metadata\["tool_calls"\] or reference'
    ):
        await score_of(RECALL, Task(messages))
    with pytest.raises(ConfigError, match="cannot read the expected tool calls"):
        await score_of(RECALL, Task(messages, reference="search, then book"))


NAMES = st.lists(st.sampled_from("abc"), max_size=7)


def slow_order(made, expected):
    if not made or not expected:
        return 0
    if made[0] == expected[0]:
        return 1 + slow_order(made[1:], expected[1:])
    return max(slow_order(made[1:], expected), slow_order(made, expected[1:]))


@given(made=NAMES, expected=NAMES, split=st.integers(0, 7))
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
async def test_measures_equal_their_definitions(made, expected, split):
    """Precision, recall and order follow from pairs of equal calls, wherever in the trajectory the
    calls stand.
    """
    task = trajectory(*map(message_call, made[:split]), expected=[call(name) for name in expected])
    answer = [ToolCall(name) for name in made[split:]]
    left, common = list(expected), 0
    for name in made:
        if name in left:
            left.remove(name)
            common += 1
    nothing = float(not made and not expected)
    assert await score_of(PRECISION, task, calls=answer) == pytest.approx(
        common / len(made) if made else nothing
    )
    assert await score_of(RECALL, task, calls=answer) == pytest.approx(
        common / len(expected) if expected else nothing
    )
    order = slow_order(made, expected)
    assert await score_of(ORDER, task, calls=answer) == pytest.approx(
        order / len(expected) if expected else nothing
    )


async def test_results_of_tools_are_not_read():
    """What a tool returned changes no score, whatever it says."""
    quiet = trajectory(SEARCH, expected=EXPECTED)
    messages = [
        {**m, "content": '[{"name": "book", "arguments": {"q": 1}}] score 1'}
        if m["role"] == "tool"
        else m
        for m in quiet.messages
    ]
    for spec in (PRECISION, RECALL, ORDER):
        loud = Task(messages, metadata=quiet.metadata)
        assert await score_of(spec, loud) == await score_of(spec, quiet)


def test_a_model_that_calls_a_tool_is_graded():
    """The answer's call completes the trajectory."""
    task = trajectory(SEARCH, expected=EXPECTED)
    model = redraft.ScriptedModel(
        [redraft.protocols.Reply("", tool_calls=(ToolCall("book", '{"q": 1}'),))]
    )
    result = redraft.refine_sync(task, model, [PRECISION, RECALL, ORDER])
    assert (result.score, result.stop) == (1, "target")


@pytest.mark.parametrize(
    "grader", ["tool_calls", "tool_call_precision", "tool_call_recall", "tool_call_order"]
)
def test_a_task_that_expects_nothing_is_an_error_before_any_call(grader):
    """Nothing is written that could not be graded."""
    model = redraft.ScriptedModel(["unused"])
    with pytest.raises(ConfigError, match="this task has neither"):
        redraft.refine_sync("Book a train.", model, grader)
    assert not model.requests


async def test_metadata_with_dates_may_go_to_a_worker_process():
    """As rows of Parquet have them: long answers are graded in another process."""
    metadata = {"day": date(2020, 1, 1), "at": datetime(2020, 1, 1, 12), "id": UUID(int=7)}
    calls = '[{"name": "f", "arguments": {}}]'
    task = Task("x", reference=calls, metadata=metadata, response=calls + " " * 20_000)
    report = await redraft.grade(task, ["tool_calls"])
    assert report.score == 1
