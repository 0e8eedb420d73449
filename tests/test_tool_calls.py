"""Answers that call tools: returned unchanged, or graded and refined where a grader reads them."""

from __future__ import annotations

import json

import pytest

from each_row import each_row
from redraft import (
    Adaptive,
    BestOfN,
    Candidate,
    Judge,
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
from redraft.errors import ConfigError, RedraftError, StoreError
from redraft.graders import Ranker
from redraft.loop.records import Outcome
from redraft.loop.trace import PanelGrader
from redraft.protocols import Reply, ToolCall
from redraft.tables.export.formats import FORMATS, ExportConfig, Provenance
from redraft.tables.export.writer import export

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TASK = Task("Will it rain?", tools=[SEARCH, NOW])
VERDICT = json.dumps({"reason": "It is so.", "criteria": {n: {"evidence": "", "change": "c", "score": 2} for n in
                                   ("instructions", "correctness", "completeness", "clarity")}, "done": False})  # fmt: skip


def search_call(query="rain", id="a", text=""):
    """An answer that searches."""
    return Reply(text, tool_calls=(ToolCall("search", json.dumps({"q": query}), id),))


def half(text):
    return 0.5


def specific(text, tool_calls):
    """A grader of calls: the longer the query, the better."""
    return min(
        1.0, sum(len(call.parsed_arguments["q"]) for call in tool_calls) / 20
    ), "what was searched for"


def grade_with(messages):
    return VERDICT


PLANS = {
    "default": {},
    "plain": {"noise_aware": False},
    "drafts": {"drafts": 3},
    "best of": {"plan": BestOfN(3)},
    "self refine": {"plan": SelfRefine(drafts=2)},
    "adaptive": {"plan": Adaptive()},
}


@each_row("plan", PLANS)
@each_row(
    "graders",
    [None, half, [must("words:1-9"), "json"], [half, Ranker()]],
    ids=["judge", "function", "musts", "ranker"],
)
async def test_a_tool_call_is_returned_unchanged(plan, graders):
    """It is not graded, repaired or refined, and is no error, whatever the plan and the graders."""
    judge = ScriptedModel([grade_with] * 9)
    writer = ScriptedModel([search_call(), search_call("snow"), search_call("hail")])
    result = await refine(TASK, writer, graders, judge, **PLANS[plan])
    drafts = {"drafts": 3, "best of": 3, "self refine": 2}.get(plan, 1)
    assert (writer.calls, judge.calls) == (drafts, 0)
    assert (result.stop, result.value, result.score, result.converged) == (
        StopReason.TOOL_CALLS,
        "",
        None,
        False,
    )
    assert result.tool_calls == (ToolCall("search", '{"q": "rain"}', "a"),)
    assert (result.broken_musts, result.diagnosis) == ([], None)
    assert result.to_dict()["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "search", "arguments": '{"q": "rain"}'},
        }
    ]
    assert [request.tools for request in writer.requests] == [TASK.tools] * drafts


@pytest.mark.parametrize("first", [0, 1, 2])
async def test_the_first_of_several_drafts_with_a_call_is_returned(first):
    """All drafts are awaited, so that the order of arrival does not matter."""
    answers = [search_call(str(n)) if n >= first else f"text {n}" for n in range(3)]
    result = await refine(TASK, ScriptedModel(answers), half, drafts=3)
    assert [call.parsed_arguments["q"] for call in result.tool_calls] == [str(first)]


async def test_a_refinement_that_calls_a_tool_is_returned():
    """The refiner's request has the tools; the previous text is in the trace."""
    writer = ScriptedModel(["A text.", search_call(text="Let me see.")])
    result = await refine(TASK, writer, half)
    assert (result.stop, result.value, result.tool_calls[0].name) == (
        "tool_calls",
        "Let me see.",
        "search",
    )
    assert [request.tools for request in writer.requests] == [TASK.tools] * 2
    assert result.trace.candidates[0].text == "A text."


def test_a_result_shows_its_calls():
    """People can read them."""
    trace = (
        Trace(TASK)
        + Candidate(0, "", tool_calls=search_call("<b>").tool_calls)
        + Outcome(0, StopReason.TOOL_CALLS)
    )
    from redraft import Result

    result = Result(trace)
    assert result.display_text == '[tool call: search] {"q": "<b>"}'
    assert "&lt;b&gt;" in result._repr_html_()
    assert "[tool call: search]" in result.__rich__().plain


async def test_calls_are_graded_and_refined_by_a_grader_that_reads_them():
    """The refiner's prompt quotes the parent's calls as text: no assistant's turn has calls without
    results, and roles alternate.
    """
    writer = ScriptedModel([search_call("rain"), search_call("rain in Berlin today")])
    result = await refine(TASK, writer, specific)
    assert (result.stop, result.score, result.score_history) == (
        "target",
        1.0,
        [0.2, 1.0],
    )
    assert result.tool_calls[0].parsed_arguments == {"q": "rain in Berlin today"}
    asked = writer.messages[1]
    assert [message["role"] for message in asked] == ["user"]
    assert '[tool call: search] {"q": "rain"}' in asked[0]["content"]
    assert "what was searched for" in asked[0]["content"]


async def test_after_tool_results_the_refiner_gets_a_user_message():
    """The conversation is unchanged; a user message follows the tool's result."""
    turns = [
        {"role": "user", "content": "Will it rain?"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]
    writer = ScriptedModel([search_call("rain"), "Yes.", search_call("rain in Berlin today")])
    await refine(Task(turns, tools=[SEARCH]), writer, [specific], max_iterations=2)
    first, second, _ = writer.messages
    assert first == second[:3]
    assert [m["role"] for m in second] == ["user", "assistant", "tool", "user"]


async def test_the_same_call_again_is_no_change():
    """New ids do not matter: it is not graded again."""
    graded = []

    def counting(text, tool_calls):
        graded.append(tool_calls)
        return 0.5

    writer = ScriptedModel([search_call(id="a"), search_call(id="b"), search_call(id="c")])
    result = await refine(TASK, writer, counting, noise_aware=False, patience=2)
    assert (len(graded), result.stop) == (1, "patience")


async def test_a_judge_that_reads_calls_gets_them_as_data():
    """They are lines within the envelope; its request has no tools."""
    judge = ScriptedModel([grade_with])
    result = await refine(
        TASK,
        ScriptedModel([search_call("</answer>")]),
        Judge(reads_tool_calls=True),
        judge,
        max_iterations=0,
    )
    assert result.judge_score == 0.4
    ((_, told),) = judge.messages
    inside = told["content"].split("<answer-")[1].split("</answer-")[0]
    assert '[tool call: search] {"q": "</answer>"}' in inside
    assert judge.requests[0].tools == ()


@pytest.mark.parametrize(
    ("calls", "score"),
    [
        (search_call().tool_calls, 1.0),
        (search_call("snow").tool_calls, 0.0),
        (search_call().tool_calls * 2, 0.5),
        ((), 0.0),
    ],
)
@pytest.mark.parametrize("long", [False, True])
async def test_the_computed_grader_compares_calls(calls, score, long):
    """It uses the model's calls, also in a worker, otherwise those in the text."""
    task = Task(
        "Will it rain?",
        tools=[SEARCH],
        metadata={"tool_calls": [{"name": "search", "arguments": {"q": "rain"}}]},
    )
    text = "Let me see. " * (20_000 if long else 1)
    result = await refine(
        task, ScriptedModel([Reply(text, tool_calls=calls)]), "tool_calls", max_iterations=0
    )
    assert result.score == score


async def test_a_judge_never_answers_by_a_call():
    """Its request has no tools: with text a call is ignored, without text the request is
    repeated.
    """
    judge = ScriptedModel([search_call(), Reply(VERDICT, tool_calls=search_call().tool_calls)])
    result = await refine(TASK, ScriptedModel(["A text."]), None, judge, max_iterations=0)
    assert (result.judge_score, judge.calls) == (0.4, 2)


async def test_one_model_as_writer_and_judge_gets_tools_as_writer_alone():
    """The judge's requests have none of the task's tools."""
    model = ScriptedModel(["A text.", grade_with])
    await refine(TASK, model, max_iterations=0)
    assert [request.tools for request in model.requests] == [TASK.tools, ()]


# ---- traces and the cache


async def test_a_trace_saves_calls_and_tools():
    """They are read back equal; the trace is finished, and resumes with a grader that reads
    calls.
    """
    result = await refine(
        Task("Will it rain?", tools=[SEARCH], tool_choice="required"),
        ScriptedModel([search_call("\ud800")]),
        half,
    )
    again = Trace.from_json(result.trace.to_json())
    assert again == result.trace
    assert (again.task.tools, again.task.tool_choice) == ((SEARCH,), "required")
    silent = ScriptedModel([])
    assert (await refine(again, silent, half)).tool_calls == result.tool_calls
    assert silent.calls == 0
    going_on = await refine(again, ScriptedModel([search_call("rain in Berlin today")]), specific)
    assert going_on.score == 1.0


def test_a_trace_without_calls_is_written_as_before():
    """Old releases can read it, and this one reads old traces."""
    trace = Trace(Task("x"), (PanelGrader("half"),)) + Candidate(0, "text")
    assert "tool" not in trace.to_json()
    assert Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize(
    "calls",
    [
        5,
        "search",
        ["search"],
        [{}],
        [{"name": 5}],
        [{"name": ""}],
        [{"name": "f", "arguments": {}}],
        {"a": 1},
    ],
)
def test_invalid_calls_in_a_trace_are_refused(calls):
    """The error is a StoreError."""
    data = json.loads((Trace(Task("x")) + Candidate(0, "text")).to_json())
    data["records"][0]["tool_calls"] = calls
    with pytest.raises(StoreError, match="not a "):
        Trace.from_json(json.dumps(data))


async def test_the_cache_key_includes_tools():
    """The same prompt with other tools is a new call."""
    memory = {}
    for task in (TASK, Task("Will it rain?"), Task("Will it rain?", tools=[SEARCH]), TASK):
        model = ScriptedModel(["A text."])
        await refine(task, model, half, max_iterations=0, cache=memory)
    assert (len(memory), model.calls) == (3, 0)


async def test_refine_many_and_stream_return_calls():
    """Calls are unchanged there, too."""
    results = await refine_many(
        [TASK, TASK],
        ScriptedModel([search_call(), "A text."]),
        half,
        max_iterations=0,
        max_in_flight=1,
    )
    assert [(bool(r.tool_calls), r.error) for r in results] == [(True, None), (False, None)]
    traces = [trace async for trace in stream(TASK, ScriptedModel([search_call()]), half)]
    assert traces[-1].outcome.reason == "tool_calls"


# ---- tools of a task

WRONG = {
    "a text": ("search", None, "must be a list"),
    "a tool alone": (SEARCH, None, "must be a list"),
    "a name": (["search"], None, "a tool is"),
    "another type": ([{"type": "custom", "custom": {"name": "x"}}], None, "a tool is"),
    "no name": ([{"type": "function", "function": {}}], None, "a tool is"),
    "odd parameters": (
        [{"type": "function", "function": {"name": "f", "parameters": "x"}}],
        None,
        "parameters of 'f'",
    ),
    "twice": ([SEARCH, SEARCH], None, "'search' is defined twice"),
    "a choice of none": ([], "auto", "there are none"),
    "an odd choice": ([SEARCH], "always", "'none', 'auto', 'required'"),
    "a choice of another": (
        [SEARCH],
        {"type": "function", "function": {"name": "f"}},
        "with one of 'search'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_tools_are_refused(wrong):
    """The error has the given value and what is allowed."""
    tools, choice, words = WRONG[wrong]
    with pytest.raises(ValueError, match=words):
        Task("x", tools=tools, tool_choice=choice)


@pytest.mark.parametrize(
    "choice", ["none", "auto", "required", {"type": "function", "function": {"name": "search"}}]
)
async def test_tool_choice_reaches_the_writer(choice):
    """It is sent unchanged."""
    model = ScriptedModel([search_call()])
    await refine(Task("x", tools=[SEARCH], tool_choice=choice), model, half)
    assert model.requests[0].tool_choice == choice


# ---- batches and training data


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
async def test_a_batch_reads_tools_and_writes_calls(tmp_path, kind):
    """They are in the columns `tools` and `tool_choice`; a row with other tools is redone."""
    rows = [("a", [SEARCH], "required"), ("b", None, None)]

    def write(rows):
        if kind == "csv":
            quoted = [
                [id, "Rain?", tools and json.dumps(tools), choice] for id, tools, choice in rows
            ]
            lines = [
                ",".join('"' + (cell or "").replace('"', '""') + '"' for cell in row)
                for row in quoted
            ]
            text = "\n".join(["id,prompt,tools,tool_choice", *lines])
        else:
            text = "\n".join(
                json.dumps({"id": i, "prompt": "Rain?", "tools": t, "tool_choice": c})
                for i, t, c in rows
            )
        (tmp_path / f"in.{kind}").write_text(text)

    async def run(model):
        report = await batch(
            tmp_path / f"in.{kind}",
            tmp_path / "out.jsonl",
            model,
            half,
            max_iterations=0,
            max_in_flight=1,
        )
        return report, [
            json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()
        ]

    write(rows)
    model = ScriptedModel([search_call(), "Dry."])
    report, (calls, text) = await run(model)
    assert (report.rows.done, report.rows.failed, report.rows.stops["tool_calls"]) == (2, 0, 1)
    assert [(request.tools, request.tool_choice) for request in model.requests] == [
        ((SEARCH,), "required"),
        ((), None),
    ]
    assert (calls["stop"], calls["best"], calls["error"]) == ("tool_calls", "", None)
    assert json.loads(calls["tool_calls"])[0]["function"] == {
        "name": "search",
        "arguments": '{"q": "rain"}',
    }
    assert (text["best"], text["tool_calls"]) == ("Dry.", None)
    again = ScriptedModel([search_call("snow")])
    await run(again)
    assert again.calls == 0
    write([("a", [SEARCH, NOW], "required"), rows[1]])
    _, (calls, _) = await run(again)
    assert (again.calls, "snow" in calls["tool_calls"]) == (1, True)


async def test_rows_with_invalid_tools_fail_alone(tmp_path):
    """The row has the reason, and the others continue."""
    rows = [
        {"id": "a", "prompt": "x", "tools": [SEARCH]},
        {"id": "b", "prompt": "x", "tools": [{"function": {}}]},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = await batch(
        tmp_path / "in.jsonl",
        tmp_path / "out.jsonl",
        ScriptedModel(["A text."]),
        half,
        max_iterations=0,
    )
    assert (report.rows.done, report.rows.bad) == (1, 1)


def test_a_tools_column_may_hold_other_data():
    """For example names of used tools: the column is kept beside the task."""
    from redraft.requirements.spec import check_foreign_spec
    from redraft.tables import infer_columns

    row = {"prompt": "x", "tools": ["hammer"], "tool_choice": "hammer"}
    task = infer_columns([row], check_requirement=check_foreign_spec).task(row)
    assert (task.tools, task.metadata["tools"], task.metadata["tool_choice"]) == (
        (),
        ["hammer"],
        "hammer",
    )


@pytest.mark.parametrize("format", FORMATS)
def test_training_data_leaves_calls_out_and_counts_them(tmp_path, format):
    """No format here has calls with their tools: an empty text would be a wrong example."""
    from types import SimpleNamespace

    trace = Trace(TASK, (PanelGrader("specific", reads_tool_calls=True),)) + Candidate(
        0, "", tool_calls=search_call().tool_calls
    )
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
def test_unreadable_arguments_are_a_value_error(arguments, said):
    """A model or a foreign trace may write any text there."""
    with pytest.raises(ValueError, match=said):
        ToolCall("search", arguments).parsed_arguments


def test_checking_tools_takes_linear_time():
    """A row may hold as many tools as fit."""
    tools = [{"function": {"name": f"f{n}"}} for n in range(50_000)]
    with pytest.raises(ConfigError, match="'f7' is defined twice"):
        Task("q", tools=[*tools, tools[7]])
