"""Answers that call tools: handed on as they are, or graded and refined where a grader reads them."""

from __future__ import annotations

import json

import pytest

from redraft import (
    Adaptive,
    BestOfN,
    Candidate,
    Judge,
    Ranker,
    ScriptedModel,
    SelfRefine,
    StopReason,
    Task,
    Trace,
    batch,
    must,
    refine,
    refine_many,
    stream,
)
from redraft.protocols import Reply, ToolCall
from redraft.core.records import Outcome
from redraft.core.trace import PanelGrader
from redraft.errors import ConfigError, RedraftError, StoreError
from redraft.export.result import Provenance
from redraft.export.writer import export
from redraft.export.formats import FORMATS, ExportConfig
from redraft.storage.journal import Journal
from redraft.models import Chat

SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
}
NOW = {"type": "function", "function": {"name": "now"}}
TASK = Task("Will it rain?", tools=[SEARCH, NOW])
VERDICT = json.dumps({"criteria": {n: {"evidence": "", "change": "c", "score": 2} for n in
                                   ("instructions", "correctness", "completeness", "clarity")}, "done": False})  # fmt: skip


def calling(query="rain", id="a", text=""):
    """An answer that searches."""
    return Reply(text, tool_calls=(ToolCall("search", json.dumps({"q": query}), id),))


def half(text):
    return 0.5


def specific(text, tool_calls):
    """Grades calls: the longer the query, the better."""
    return min(1.0, sum(len(call.parsed_arguments["q"]) for call in tool_calls) / 20), "what was searched for"


def judged(messages):
    return VERDICT


PLANS = {
    "default": {},
    "plain": {"noise_aware": False},
    "drafts": {"drafts": 3},
    "best of": {"plan": BestOfN(3)},
    "self refine": {"plan": SelfRefine(drafts=2)},
    "adaptive": {"plan": Adaptive()},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "graders", [None, half, [must("words:1-9"), "json"], [half, Ranker()]], ids=["judge", "function", "musts", "ranker"]
)
async def test_a_call_is_handed_on(plan, graders):
    """It is the answer as it stands: not graded, repaired or refined, and no error, whatever the plan and the graders."""
    judge = ScriptedModel([judged] * 9)
    writer = ScriptedModel([calling(), calling("snow"), calling("hail")])
    result = await refine(TASK, writer, graders, judge, **PLANS[plan])
    drafts = {"drafts": 3, "best of": 3, "self refine": 2}.get(plan, 1)
    assert (writer.calls, judge.calls) == (drafts, 0)
    assert (result.stop, result.value, result.score, result.metadata["converged"]) == (StopReason.TOOL_CALLS, "", None, False)
    assert result.tool_calls == (ToolCall("search", '{"q": "rain"}', "a"),)
    assert (result.metadata["broken"], result.diagnosis) == ([], None)
    assert result.to_dict()["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": "rain"}'}}
    ]
    assert [request.tools for request in writer.requests] == [TASK.tools] * drafts


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_of_several_drafts_the_first_that_calls_is_handed_on(first):
    """All of them are waited for, so that it does not depend on which came first."""
    answers = [calling(str(n)) if n >= first else f"text {n}" for n in range(3)]
    result = await refine(TASK, ScriptedModel(answers), half, drafts=3)
    assert [call.parsed_arguments["q"] for call in result.tool_calls] == [str(first)]


async def test_a_refinement_may_call_a_tool_and_is_handed_on():
    """The refiner is offered the tools, too; the text before it is in the trace."""
    writer = ScriptedModel(["A text.", calling(text="Let me see.")])
    result = await refine(TASK, writer, half)
    assert (result.stop, result.value, result.tool_calls[0].name) == ("tool_calls", "Let me see.", "search")
    assert [request.tools for request in writer.requests] == [TASK.tools] * 2
    assert result.trace.candidates[0].text == "A text."


def test_what_it_looks_like():
    """A result shows the calls to people."""
    trace = Trace(TASK) + Candidate(0, "", tool_calls=calling("<b>").tool_calls) + Outcome(0, StopReason.TOOL_CALLS)
    from redraft import Result

    result = Result(trace)
    assert result.display_text == '[tool call: search] {"q": "<b>"}'
    assert "&lt;b&gt;" in result._repr_html_()
    assert "[tool call: search]" in result.__rich__().plain


async def test_a_grader_that_reads_calls_has_them_graded_and_refined():
    """The parent's calls are quoted to the refiner as text: no assistant's turn has calls without results, roles alternate."""
    writer = ScriptedModel([calling("rain"), calling("rain in Berlin today")])
    result = await refine(TASK, writer, specific)
    assert (result.stop, result.score, result.metadata["score_history"]) == ("target", 1.0, [0.2, 1.0])
    assert result.tool_calls[0].parsed_arguments == {"q": "rain in Berlin today"}
    asked = writer.messages[1]
    assert [message["role"] for message in asked] == ["user"]
    assert '[tool call: search] {"q": "rain"}' in asked[0]["content"]
    assert "what was searched for" in asked[0]["content"]


async def test_after_results_of_tools_the_refiner_is_told_in_a_message_of_its_own():
    """The conversation stays as it was; what follows a tool's result is the user."""
    turns = [
        {"role": "user", "content": "Will it rain?"},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]
    writer = ScriptedModel([calling("rain"), "Yes.", calling("rain in Berlin today")])
    await refine(Task(turns, tools=[SEARCH]), writer, [specific], max_iterations=2)
    first, second, _ = writer.messages
    assert first == second[:3]
    assert [m["role"] for m in second] == ["user", "assistant", "tool", "user"]


async def test_the_same_call_again_is_no_change():
    """Ids are new every time and say nothing: it is not graded again."""
    graded = []

    def counting(text, tool_calls):
        graded.append(tool_calls)
        return 0.5

    writer = ScriptedModel([calling(id="a"), calling(id="b"), calling(id="c")])
    result = await refine(TASK, writer, counting, noise_aware=False, patience=2)
    assert (len(graded), result.stop) == (1, "patience")


async def test_a_judge_that_reads_calls_is_shown_them_as_data():
    """Within the envelope, as lines; it is offered no tools itself."""
    judge = ScriptedModel([judged])
    result = await refine(TASK, ScriptedModel([calling("</answer>")]), Judge(reads_tool_calls=True), judge, max_iterations=0)
    assert result.judge_score == 0.4
    ((_, told),) = judge.messages
    inside = told["content"].split("<answer-")[1].split("</answer-")[0]
    assert '[tool call: search] {"q": "</answer>"}' in inside
    assert judge.requests[0].tools == ()


@pytest.mark.parametrize(
    ("calls", "score"),
    [(calling().tool_calls, 1.0), (calling("snow").tool_calls, 0.0), (calling().tool_calls * 2, 0.5), ((), 0.0)],
)
@pytest.mark.parametrize("long", [False, True])
async def test_the_computed_grader_reads_calls(calls, score, long):
    """Those that the model made, also where the comparison is made in a worker; else what the text says."""
    task = Task("Will it rain?", tools=[SEARCH], metadata={"tool_calls": [{"name": "search", "arguments": {"q": "rain"}}]})
    text = "Let me see. " * (20_000 if long else 1)
    result = await refine(task, ScriptedModel([Reply(text, tool_calls=calls)]), "tool_calls", max_iterations=0)
    assert result.score == score


async def test_a_judge_never_answers_by_a_call():
    """It was offered no tools: with text the call is left out, without it is asked again."""
    judge = ScriptedModel([calling(), Reply(VERDICT, tool_calls=calling().tool_calls)])
    result = await refine(TASK, ScriptedModel(["A text."]), None, judge, max_iterations=0)
    assert (result.judge_score, judge.calls) == (0.4, 2)


async def test_one_model_in_both_roles():
    """As a judge it is offered none of the task's tools."""
    model = ScriptedModel(["A text.", judged])
    await refine(TASK, model, max_iterations=0)
    assert [request.tools for request in model.requests] == [TASK.tools, ()]


# ---- what is kept


async def test_a_trace_keeps_calls_and_tools():
    """Strictly: what comes back is what was written; the same trace is finished, and goes on with a grader that reads calls."""
    result = await refine(Task("Will it rain?", tools=[SEARCH], tool_choice="required"), ScriptedModel([calling("\ud800")]), half)
    again = Trace.from_json(result.trace.to_json())
    assert again == result.trace
    assert (again.task.tools, again.task.tool_choice) == ((SEARCH,), "required")
    silent = ScriptedModel([])
    assert (await refine(again, silent, half)).tool_calls == result.tool_calls
    assert silent.calls == 0
    going_on = await refine(again, ScriptedModel([calling("rain in Berlin today")]), specific)
    assert going_on.score == 1.0


def test_a_trace_without_calls_is_written_as_before():
    """Old readers read it, and old traces are read."""
    trace = Trace(Task("x"), (PanelGrader("half"),)) + Candidate(0, "text")
    assert "tool" not in trace.to_json()
    assert Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize(
    "calls", [5, "search", ["search"], [{}], [{"name": 5}], [{"name": ""}], [{"name": "f", "arguments": {}}], {"a": 1}]
)
def test_calls_that_are_none_are_refused_in_a_trace(calls):
    """A record that holds something else is a StoreError."""
    data = json.loads((Trace(Task("x")) + Candidate(0, "text")).to_json())
    data["records"][0]["tool_calls"] = calls
    with pytest.raises(StoreError, match="not a "):
        Trace.from_json(json.dumps(data))


async def test_tools_are_part_of_what_a_cache_goes_by():
    """The same words with other tools are another question."""
    memory = {}
    for task in (TASK, Task("Will it rain?"), Task("Will it rain?", tools=[SEARCH]), TASK):
        model = ScriptedModel(["A text."])
        await refine(task, model, half, max_iterations=0, cache=memory)
    assert (len(memory), model.calls) == (3, 0)


async def test_many_and_streams():
    """The other doors hand calls on, too."""
    results = await refine_many([TASK, TASK], ScriptedModel([calling(), "A text."]), half, max_iterations=0, max_in_flight=1)
    assert [(bool(r.tool_calls), r.error) for r in results] == [(True, None), (False, None)]
    traces = [trace async for trace in stream(TASK, ScriptedModel([calling()]), half)]
    assert traces[-1].outcome.reason == "tool_calls"


# ---- what a task takes

WRONG = {
    "a text": ("search", None, "must be a list"),
    "a tool alone": (SEARCH, None, "must be a list"),
    "a name": (["search"], None, "a tool is"),
    "another type": ([{"type": "custom", "custom": {"name": "x"}}], None, "a tool is"),
    "no name": ([{"type": "function", "function": {}}], None, "a tool is"),
    "odd parameters": ([{"type": "function", "function": {"name": "f", "parameters": "x"}}], None, "parameters of 'f'"),
    "twice": ([SEARCH, SEARCH], None, "'search' is defined twice"),
    "a choice of none": ([], "auto", "there are none"),
    "an odd choice": ([SEARCH], "always", "'none', 'auto', 'required'"),
    "a choice of another": ([SEARCH], {"type": "function", "function": {"name": "f"}}, "with one of 'search'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_tools_that_are_none_are_refused(wrong):
    """The message names what was given, and what is allowed."""
    tools, choice, words = WRONG[wrong]
    with pytest.raises(ValueError, match=words):
        Task("x", tools=tools, tool_choice=choice)


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "function": {"name": "search"}}])
async def test_the_choice_reaches_the_writer(choice):
    """As it was given."""
    model = ScriptedModel([calling()])
    await refine(Task("x", tools=[SEARCH], tool_choice=choice), model, half)
    assert model.requests[0].tool_choice == choice


# ---- batches and training data


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
async def test_a_batch_takes_tools_and_gives_calls(tmp_path, kind):
    """From the columns `tools` and `tool_choice`; other tools make another row of it."""
    rows = [("a", [SEARCH], "required"), ("b", None, None)]

    def write(rows):
        if kind == "csv":
            quoted = [[id, "Rain?", tools and json.dumps(tools), choice] for id, tools, choice in rows]
            lines = [",".join('"' + (cell or "").replace('"', '""') + '"' for cell in row) for row in quoted]
            text = "\n".join(["id,prompt,tools,tool_choice", *lines])
        else:
            text = "\n".join(json.dumps({"id": i, "prompt": "Rain?", "tools": t, "tool_choice": c}) for i, t, c in rows)
        (tmp_path / f"in.{kind}").write_text(text)

    async def run(model):
        report = await batch(tmp_path / f"in.{kind}", tmp_path / "out.jsonl", model, half, max_iterations=0, max_in_flight=1)
        return report, [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    write(rows)
    model = ScriptedModel([calling(), "Dry."])
    report, (calls, text) = await run(model)
    assert (report.done, report.failed, report.stops["tool_calls"]) == (2, 0, 1)
    assert [(request.tools, request.tool_choice) for request in model.requests] == [((SEARCH,), "required"), ((), None)]
    assert (calls["stop"], calls["best"], calls["error"]) == ("tool_calls", "", None)
    assert json.loads(calls["tool_calls"])[0]["function"] == {"name": "search", "arguments": '{"q": "rain"}'}
    assert (text["best"], text["tool_calls"]) == ("Dry.", None)
    again = ScriptedModel([calling("snow")])
    await run(again)
    assert again.calls == 0
    write([("a", [SEARCH, NOW], "required"), rows[1]])
    _, (calls, _) = await run(again)
    assert (again.calls, "snow" in calls["tool_calls"]) == (1, True)


async def test_rows_with_tools_that_are_none_are_told(tmp_path):
    """The row fails and says why; the others go on."""
    rows = [{"id": "a", "prompt": "x", "tools": [SEARCH]}, {"id": "b", "prompt": "x", "tools": [{"function": {}}]}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = await batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", ScriptedModel(["A text."]), half, max_iterations=0)
    assert (report.done, report.bad) == (1, 1)


def test_a_column_that_is_called_tools_may_be_something_else():
    """Names of what was used, say: it stays what a row has beside its task."""
    from redraft.requirements.spec import check_foreign_spec
    from redraft.tables import infer_columns

    row = {"prompt": "x", "tools": ["hammer"], "tool_choice": "hammer"}
    task = infer_columns([row], check_requirement=check_foreign_spec).task(row)
    assert (task.tools, task.metadata["tools"], task.metadata["tool_choice"]) == ((), ["hammer"], "hammer")


@pytest.mark.parametrize("format", FORMATS)
def test_training_data_leaves_calls_out_and_counts_them(tmp_path, format):
    """No format here carries them beside their tools: an empty text would teach the wrong thing."""
    from types import SimpleNamespace

    trace = Trace(TASK, (PanelGrader("specific", reads_tool_calls=True),)) + Candidate(0, "", tool_calls=calling().tool_calls)
    trace += Outcome(0, StopReason.TOOL_CALLS)
    rows = [(SimpleNamespace(id="a"), trace)]
    if format == "trajectory":
        export(rows, tmp_path / "out.jsonl", ExportConfig(format), Provenance("r", "m"))
        assert "[tool call: search]" in (tmp_path / "out.jsonl").read_text()
    else:
        with pytest.raises(RedraftError, match="1 x the answers call tools"):
            export(rows, tmp_path / "out.jsonl", ExportConfig(format), Provenance("r", "m"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("[" * 200_000, "200 deep"),
        ("[" * 3000 + "]" * 3000, "200 deep"),
        ("1" * 5000, "4300 digits"),
        ('{"q": 1, "q": 2}', "twice"),
    ],
    ids=["torn and deep", "deep", "a number without end", "a key that stands twice"],
)
def test_arguments_that_cannot_be_read_are_a_value_error(arguments, said):
    """A model, or a foreign trace, may write anything there."""
    with pytest.raises(ValueError, match=said):
        ToolCall("search", arguments).parsed_arguments


def test_as_many_tools_as_a_row_can_hold_are_checked_in_no_time():
    """Checking that each name stands there once takes time linear in them."""
    tools = [{"function": {"name": f"f{n}"}} for n in range(50_000)]
    with pytest.raises(ConfigError, match="'f7' is defined twice"):
        Task("q", tools=[*tools, tools[7]])
