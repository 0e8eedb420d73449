"""Rows of a run whose answers call tools, as the exports of training data get them."""

from types import SimpleNamespace

from redraft.loop.records import Candidate, Feedback, Outcome, StopReason, ToolCall
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The temperature in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}},
    },
}
ASKED = {"id": "a1", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
HISTORY = [
    {"role": "user", "content": "Add 1, then say the weather."},
    {"role": "assistant", "content": None, "tool_calls": [ASKED]},
    {"role": "tool", "content": "2", "tool_call_id": "a1"},
]


def trace_of(task, *answers):
    """A trace whose answers are (text, calls, score)."""
    trace = Trace(task, (PanelGrader("specific", reads_tool_calls=True),))
    for id, (text, calls, score) in enumerate(answers):
        made = tuple(ToolCall(name, arguments, f"c{id}") for name, arguments in calls)
        trace += Candidate(id, text, by="m", role="refine", tool_calls=made)
        trace += Feedback(score, candidate=id, grader="specific")
    return trace + Outcome(trace.best.id, StopReason.TOOL_CALLS)


OSLO, NOWHERE = ("weather", '{"city":"Oslo"}'), ("weather", '{"city": ""}')
TRACES = [
    trace_of(
        Task("The weather in Oslo?", tools=[WEATHER]), ("", [NOWHERE], 0.2), ("Wait.", [OSLO], 0.9)
    ),
    trace_of(
        Task(HISTORY, tools=[WEATHER, ADD]),
        ("It rains.", [], 0.1),
        ("", [OSLO, ("add", '{"n": 2}')], 0.8),
    ),
    trace_of(Task("Say hello."), ("Hi", [], 0.1), ("Hello.", [], 1.0)),
]


def rows(traces=TRACES):
    return [(SimpleNamespace(id=f"row {n}"), trace) for n, trace in enumerate(traces)]
