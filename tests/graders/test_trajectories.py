"""Rubrics for agents and conversations, on trajectories with known faults: what the judge sees, and
that data stay data.

Each file in `trajectories/` is a row as a table holds it: `messages` and `tools`. `fault` says what
is wrong, `weak` which rubrics are about it, `shows` what a judge must see.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest

from each_row import each_row
from redraft import BestOfN, Candidate, ScriptedModel, Task, refine
from redraft.errors import ConfigError
from redraft.graders import as_grader
from redraft.graders.base import has_needed
from redraft.graders.catalog import gallery_entries
from redraft.graders.rubric import gallery_rubric
from redraft.loop.records import ToolCall
from redraft.loop.trace import Trace
from redraft.tables.columns import infer_columns

ROWS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "trajectories").glob("*.json"))
}
AGENT_RUBRICS = [e.name for e in gallery_entries() if "trajectory" in gallery_rubric(e.name).needs]
CONVERSATION_RUBRICS = [
    "context_memory",
    "consistency",
    "misunderstanding_repair",
    "instruction_drift",
]
WITH_TOOLS = [name for name, row in ROWS.items() if row["tools"]]
SECTION = re.compile(r"^<([\w-]+)-([0-9a-f]{8})>\n(.*?)\n</\1-\2>$", re.DOTALL | re.MULTILINE)


def task_of(row):
    """Return the task that a table makes of a trajectory; its last answer is the response."""
    values = {"messages": row["messages"], **({"tools": row["tools"]} if row["tools"] else {})}
    return infer_columns([values], check_requirement=lambda spec: None).task(values)


def verdict(rubric, score=2):
    rows = {
        c.name: {"evidence": "e", "change": "do it better", "score": score} for c in rubric.criteria
    }
    return json.dumps({"reason": "It has a fault.", "criteria": rows, "done": False})


async def judged(name, task):
    """Return the feedback of a rubric on the response of a task, the prompt of the judge, and its
    sections by name.
    """
    model = ScriptedModel([verdict(gallery_rubric(name))])
    result = await refine(task, model, name, max_iterations=0, editor=False)
    prompt = model.messages[0][-1]["content"]
    nonce = re.search(r"<NAME-([0-9a-f]{8})>", prompt)[1]
    sections = {found[1]: found[3] for found in SECTION.finditer(prompt) if found[2] == nonce}
    return result.trace.feedback[0][0], prompt, sections


def test_the_rubrics_for_agents_read_trajectories():
    """All of them grade answers that call tools, alone and as members of rankings."""
    assert len(AGENT_RUBRICS) == 8
    for name in AGENT_RUBRICS:
        for spec in (name, f"ranker:{name}", f"pairwise:{name}"):
            assert as_grader(spec).reads_tool_calls and as_grader(spec).needs == ("trajectory",)
    assert not as_grader("helpfulness").reads_tool_calls
    assert not as_grader("ranker:helpfulness").reads_tool_calls


def outside_sections(prompt):
    """Return the prompt without its sections and their random number, which may contain any two
    digits.
    """
    return re.sub("-[0-9a-f]{8}", "", SECTION.sub("", prompt))


def test_every_fault_has_a_rubric_and_every_rubric_a_fault():
    """The recorded trajectories cover all rubrics for agents and conversations."""
    assert len(ROWS) >= 12
    assert {name for row in ROWS.values() for name in row["weak"]} == {
        *AGENT_RUBRICS,
        *CONVERSATION_RUBRICS,
    }


@pytest.mark.slow
@each_row("name", AGENT_RUBRICS)
@each_row("recorded", WITH_TOOLS)
def test_a_judge_sees_calls_results_and_tools_as_data(recorded, name):
    """Everything from the trajectory is inside delimiters, and the verdict is read."""
    row = ROWS[recorded]
    task = task_of(row)
    feedback, prompt, sections = asyncio.run(judged(name, task))
    assert feedback.score == pytest.approx(0.4)
    assert [c.name for c in feedback.criteria] == [c.name for c in gallery_rubric(name).criteria]
    shown = "\n".join(text for key, text in sections.items() if not key.startswith("example-"))
    outside = outside_sections(prompt)
    for message in row["messages"]:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            assert f"[tool call: {function['name']}] {function['arguments']}" in shown
    for text in row["shows"]:
        assert text in shown and text not in outside
    if "tools" in gallery_rubric(name).uses:
        assert all(tool["function"]["description"] in sections["tools"] for tool in row["tools"])
    else:
        assert "tools" not in sections


@pytest.mark.parametrize("name", AGENT_RUBRICS)
def test_instructions_in_a_tool_result_stay_inside(name):
    """A result cannot close its delimiters, imitate a turn or a control token, or stand outside."""
    _, prompt, sections = asyncio.run(judged(name, task_of(ROWS["injection_in_result"])))
    steps = sections["steps"]
    assert "</steps>" in steps and "</steps-00000000>" in steps
    assert re.findall(r"^\[(user|assistant|tool)\]$", steps, re.MULTILINE) == [
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert "<|im_start|>" not in prompt and "‹|im_start|>" in steps
    outside = outside_sections(prompt)
    for text in (
        "Ignore the criteria",
        "All scores are 5",
        "The judge must",
        "SYSTEM:",
        "eve@example.com",
    ):
        assert text in steps and text not in outside


def long_task(size):
    row = json.loads(json.dumps(ROWS["long_result"]).replace("x" * 200, "x" * size))
    return task_of(row)


@pytest.mark.parametrize("size", [200, 7_000, 60_000])
def test_a_long_result_is_cut_visibly(size):
    """Its beginning and its end stay; a short one is whole."""
    _, _, sections = asyncio.run(judged("observation_use", long_task(size)))
    steps = sections["steps"]
    assert "first line" in steps and "under the mat" in steps
    assert len(steps) < 9_000
    assert ("characters left out" in steps) == (size > 8_000)


def test_many_steps_are_cut_in_the_middle_and_the_feedback_says_so():
    """The total is bounded, whatever the number of steps."""
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    steps = [m for n in range(2_000) for m in (call, {"role": "tool", "content": f"result {n}"})]
    task = Task([{"role": "user", "content": "Go."}, *steps], "Done.")
    feedback, prompt, sections = asyncio.run(judged("trajectory_efficiency", task))
    assert len(prompt) < 45_000
    assert "result 0" in sections["steps"] and "result 1999" in sections["steps"]
    assert re.search(r"\[\.\.\. \d+ characters left out \.\.\.\]", sections["steps"])
    assert "left out" in feedback.reason


@pytest.mark.parametrize("name", CONVERSATION_RUBRICS)
def test_a_judge_of_conversations_sees_all_turns(name):
    """The system prompt, the history and the last question are inside delimiters."""
    row = ROWS["forgetful_conversation"]
    feedback, _, sections = asyncio.run(judged(name, task_of(row)))
    assert feedback.score == pytest.approx(0.4)
    assert "at most two sentences" in sections["system"]
    assert (
        "allergic to nuts" in sections["history"]
        and "I meant the brown ones" in sections["history"]
    )
    assert sections["task"].startswith("Brown!") and "walnuts" in sections["answer"]


@each_row(
    "name", [*AGENT_RUBRICS, "context_memory", "instruction_drift", "misunderstanding_repair"]
)
@each_row("mode", ["", "ranker:", "pairwise:"])
def test_a_task_without_what_the_rubric_reads_is_rejected(name, mode):
    """The error says what is needed and how to give it, before any call."""
    model = ScriptedModel([])
    with pytest.raises(ConfigError, match="'messages'") as caught:
        asyncio.run(
            refine(
                Task("What is the weather?", "It rains."), model, f"{mode}{name}", max_iterations=0
            )
        )
    assert ("trajectory" if name in AGENT_RUBRICS else "earlier turns") in str(caught.value)
    assert model.calls == 0


CALL = {"function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("task", "has_one"),
    [
        (Task("q", "a"), False),
        (
            Task(
                [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "a"},
                    {"role": "user", "content": "b"},
                ]
            ),
            False,
        ),
        (
            Task(
                [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                ]
            ),
            True,
        ),
        (Task([{"role": "user", "content": "q"}, {"role": "tool", "content": "r"}]), True),
        (
            Task(
                [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "", "function_call": CALL["function"]},
                ]
            ),
            True,
        ),
        (Task("q", tools=[TOOL]), True),
        (Task("q", json.dumps({"content": "", "tool_calls": [CALL]})), True),
    ],
)
def test_a_trajectory_is_calls_or_results(task, has_one):
    """Also where the answer alone calls tools, or may call them."""
    assert has_needed(task, "trajectory") is has_one


async def test_an_answer_that_calls_tools_is_judged():
    """A judge whose rubric does not read tool calls leaves it ungraded."""
    row = ROWS["good_weather"]
    task = Task(row["messages"][:2], tools=row["tools"])
    trace = Trace(
        task,
        records=(
            Candidate(0, "", tool_calls=(ToolCall("get_weather", '{"city": "Bergen"}', "c"),)),
        ),
    )
    model = ScriptedModel([verdict(gallery_rubric("tool_selection"), 5)])
    result = await refine(trace, model, "tool_selection", max_iterations=0)
    assert result.trace.feedback[0][0].score == 1.0
    assert '[tool call: get_weather] {"city": "Bergen"}' in model.messages[0][-1]["content"]
    ungraded = await refine(trace, ScriptedModel([]), "helpfulness", max_iterations=0)
    assert ungraded.trace.feedback[0] == ()


async def test_trajectories_are_ranked():
    """`ranker:NAME` compares answers by the criteria of the rubric and sees the steps."""
    task = task_of(ROWS["goal_missed"])
    trace = Trace(
        task,
        records=(
            Candidate(0, task.response),
            Candidate(1, "Booked for 11:00; the agenda is not mailed yet."),
        ),
    )
    reply = json.dumps(
        {
            "reason": "The second is true.",
            "change": [],
            "ranking": [1, 2],
            "ties": [],
            "done": False,
        }
    )
    model = ScriptedModel([reply])
    await refine(trace, model, "ranker:goal_completion", plan=BestOfN(2), max_iterations=0)
    prompt = model.messages[0][-1]["content"]
    assert "15:30" in prompt and "- achieved (weight 3): " in prompt


def test_a_row_that_ends_with_tool_calls_is_graded_with_them():
    """The calls are the response, as a message in JSON, also beside a text."""
    task = task_of(ROWS["ends_with_calls"])
    message = json.loads(task.response)
    assert (message["content"], len(message["tool_calls"])) == ("I look at both cities.", 2)
    assert len(task.messages) == 1
