"""Tools on the wire: which requests offer them, and the forms in which servers return a call."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vendors
from redraft import Budget, Judge, Task, refine
from redraft.errors import BadResponseError, ConfigError, ModelError
from redraft.graders import Ranker
from redraft.loop.records import MAX_TOOL_CALLS
from redraft.middleware.call_costs import request_size
from redraft.models import CallableModel, Chat, connect
from redraft.models.chat_replies import read_reply
from redraft.models.openai_batches import BatchClient
from redraft.models.pydantic_ai import ProviderModel
from redraft.models.sse import StreamAssembler
from redraft.protocols import Reply, Request, ToolCall

from . import fault_server as fs

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"q": {}}},
    },
}
OWN = {"tools": [SEARCH], "tool_choice": "auto", "parallel_tool_calls": False, "top_p": 0.5}
FOUND = '{"q": "rain"}'
CALLED = (ToolCall("search", FOUND, "call_1"),)
TURNS = (
    {"role": "user", "content": "Will it rain?"},
    {"role": "assistant", "content": None, "tool_calls": [fs.call("search", FOUND)]},
    {"role": "tool", "tool_call_id": "call_1", "content": "yes"},
)


def sent_by(server):
    """Return the requests that the server received from writers and from judges."""
    bodies = [request.body for request in server.requests]
    judging = ["one JSON object" in json.dumps(body["messages"]) for body in bodies]
    return [b for b, j in zip(bodies, judging) if not j], [b for b, j in zip(bodies, judging) if j]


# ---- which requests offer tools


@pytest.mark.parametrize("where", ["task", "extra_body", "functions"])
@pytest.mark.parametrize("graders", [None, [Judge(), Ranker()], "checklist"])
async def test_tools_reach_the_writer_only(faults, where, graders):
    """Tools of the task or the model never reach a judge, also if one model writes and judges."""
    drawn = {"questions": [{"question": "Is it clear?", "weight": 1}]}
    answers = {"answers": [{"answer": "partial", "evidence": "", "change": "c"}], "done": False}
    verdict = '{"reason": "r", "change": [], "ranking": [1], "done": false}'

    def judge(body):
        text = json.dumps(body["messages"])
        if "Rank these" in text:
            return verdict
        if graders == "checklist":
            return json.dumps(answers if "partial" in text and "evidence" in text else drawn)
        return '{"reason": "It is so.", "criteria": {"truth": {"evidence": "", "change": "c", "score": 4}}, "done": false}'

    faults.says(fs.accepting(writer=lambda body: f"A text {len(body['messages'])}.", judge=judge))
    own = (
        {"functions": [SEARCH["function"]], "function_call": "auto"}
        if where == "functions"
        else OWN
    )
    model = Chat("m", faults.url, extra_body={} if where == "task" else own)
    task = Task("Say it.", tools=[SEARCH], tool_choice="auto") if where == "task" else "Say it."
    try:
        await refine(task, model, graders, max_iterations=1, target_score=1)
    except Exception:
        pass
    writing, judging = sent_by(faults)
    assert writing and judging
    assert all((body["tools"], body["tool_choice"]) == ([SEARCH], "auto") for body in writing)
    if where == "extra_body":
        assert all(
            body["parallel_tool_calls"] is False and body["top_p"] == 0.5 for body in writing
        )
        assert all(body["top_p"] == 0.5 for body in judging)
    hidden = {"tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"}
    assert not any(hidden & body.keys() for body in judging)


async def test_task_tools_override_model_tools(faults):
    """Only the task's tools are offered, and other parameters still apply."""
    faults.says(fs.good("x"))
    other = {"type": "function", "function": {"name": "other"}}
    model = Chat("m", faults.url, extra_body={**OWN, "tools": [other]})
    await refine(Task("Say it.", tools=[SEARCH]), model, "words:0-9", max_iterations=0)
    body = faults.requests[0].body
    assert (body["tools"], body["parallel_tool_calls"]) == ([SEARCH], False)
    assert "tool_choice" not in body


@pytest.mark.parametrize("text", ["", "I think so."])
async def test_uninvited_tool_call_is_rejected(faults, text):
    """A text beside the call counts; without text the model is called again, and then it is an
    error.
    """
    faults.says(fs.good(text or None, "tool_calls", tool_calls=[fs.call("search")]))
    model = Chat("m", faults.url)
    if text:
        result = await refine("Say it.", model, "words:0-9", max_iterations=0)
        assert (result.value, result.tool_calls) == (text, ())
    else:
        with pytest.raises(BadResponseError, match="called a tool instead of answering: search"):
            await refine("Say it.", model, "words:0-9", retries=1, max_iterations=0)
        assert len(faults.requests) == 2


async def test_tool_turns_are_sent_unchanged(faults):
    """Calls and results in a conversation reach the writer, with null or missing content."""
    faults.says(fs.good("Yes."))
    bare = [TURNS[0], {k: v for k, v in TURNS[1].items() if k != "content"}, TURNS[2]]
    for turns in (TURNS, bare):
        await refine(Task(turns), Chat("m", faults.url), "words:0-9", max_iterations=0)
    assert [request.body["messages"] for request in faults.requests] == [list(TURNS)] * 2


REFUSALS = {
    "Ollama": fs.error(400, "registry.ollama.ai/library/gemma3:latest does not support tools"),
    "vLLM": fs.error(
        400,
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    ),
    "OpenRouter": fs.error(404, "No endpoints found that support tool use."),
    "Groq": fs.error(400, "`tool calling` is not supported with this model"),
    "OpenAI": fs.error(
        400, "Unsupported parameter: 'tools' is not supported with this model.", param="tools"
    ),
    "llama.cpp": fs.error(500, "tools param requires --jinja flag"),
}


@pytest.mark.parametrize("server", REFUSALS)
@pytest.mark.parametrize("own", [False, True])
async def test_endpoint_without_tool_support_is_an_error(faults, server, own):
    """Tools are not dropped silently, and there is no retry."""
    faults.says(REFUSALS[server])
    model = Chat("m", faults.url, extra_body={"tools": [SEARCH]} if own else {})
    with pytest.raises(ModelError, match="refuses the tools"):
        await refine(
            "Say it." if own else Task("Say it.", tools=[SEARCH]),
            model,
            "words:0-9",
            max_iterations=0,
        )
    assert len(faults.requests) == 1


def test_tools_and_calls_count_as_prompt_tokens():
    """The estimate covers tools and calls in the conversation."""
    plain = Request(({"role": "user", "content": "x"},))
    offered = Request(plain.messages, tools=(SEARCH,))
    assert request_size(offered).bytes - request_size(plain).bytes >= len(json.dumps(SEARCH))
    called = Request((*plain.messages, {**TURNS[1], "content": ""}))
    silent = Request((*plain.messages, {"role": "assistant", "content": ""}))
    assert request_size(called).bytes - request_size(silent).bytes >= len(FOUND)


async def test_budget_counts_tools(faults):
    """Tools that do not fit the remaining tokens are not sent."""
    faults.says(fs.good("x"))
    large = {"type": "function", "function": {"name": "search", "description": "word " * 4000}}
    for task, model in (
        (Task("Say it.", tools=[large]), Chat("m", faults.url)),
        ("x", Chat("m", faults.url, extra_body={"tools": [large]})),
    ):
        with pytest.raises(Exception, match="budget"):
            await refine(task, model, "words:0-9", budget=Budget(tokens=2000), max_iterations=0)
    assert faults.requests == []


# ---- forms of a tool call

FORMS = {
    "OpenAI": dict(content=None, finish="tool_calls", tool_calls=[fs.call("search", FOUND)]),
    "finished by stop": dict(content="", finish="stop", tool_calls=[fs.call("search", FOUND)]),
    "earlier": dict(
        content=None, finish="function_call", function_call={"name": "search", "arguments": FOUND}
    ),
    "an object (Ollama)": dict(
        content="",
        tool_calls=[{"id": "call_1", "function": {"name": "search", "arguments": {"q": "rain"}}}],
    ),
    "no type": dict(
        content=None,
        tool_calls=[{"id": "call_1", "function": {"name": "search", "arguments": FOUND}}],
    ),
    "null type": dict(content=None, tool_calls=[fs.call("search", FOUND) | {"type": None}]),
    "no id": dict(
        content=None,
        tool_calls=[{"type": "function", "function": {"name": "search", "arguments": FOUND}}],
    ),
    "null id": dict(content=None, tool_calls=[fs.call("search", FOUND, None)]),
}


@pytest.mark.parametrize("form", FORMS)
async def test_each_form_of_a_call_is_read(faults, form, ask):
    """Every server's variant of OpenAI's form gives the same call with an ID."""
    faults.says(fs.good(**FORMS[form]))
    reply = await Chat("m", faults.url).complete(ask(tools=(SEARCH,)))
    (call,) = reply.tool_calls
    assert (reply.text, call.name, call.arguments, call.parsed_arguments) == (
        "",
        "search",
        FOUND,
        {"q": "rain"},
    )
    assert call.id == ("call_1" if "id" not in form and form != "earlier" else call.id) != ""


@pytest.mark.parametrize("given", [None, "", {}])
async def test_call_without_arguments(faults, given, ask):
    """Null, a missing field and an empty object are the same."""
    faults.says(fs.good(None, tool_calls=[fs.call("now", given)]))
    reply = await Chat("m", faults.url).complete(ask())
    assert reply.tool_calls[0].parsed_arguments == {}


async def test_call_ids_are_unique(faults, ask):
    """Missing and duplicate IDs are replaced, and the same answer gives the same IDs again."""
    same = [
        fs.call("search", FOUND, "x"),
        fs.call("search", FOUND, "x"),
        fs.call("search", FOUND, None),
    ]
    faults.says(fs.good(None, tool_calls=same))
    one, two = [(await Chat("m", faults.url).complete(ask())).tool_calls for _ in range(2)]
    assert one == two
    assert len({call.id for call in one}) == 3


def delta(*calls, finish=None, **more):
    return fs.chunk(finish=finish, **({"tool_calls": list(calls)} if calls else {}), **more)


def part(index=None, id=None, name=None, arguments=None, **more):
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    found = {"index": index, "id": id, "function": function or None, **more}
    return {k: v for k, v in found.items() if v is not None}


END = fs.chunk(finish="tool_calls")
TWO = [("search", FOUND), ("now", "{}")]
STREAMS = {
    "OpenAI": [
        delta(part(0, "a", "search", "", type="function")), delta(part(0, arguments='{"q": ')), delta(part(0, arguments='"rain"}')),
        delta(part(1, "b", "now", "")), delta(part(1, arguments="{}")),
    ],
    "mixed": [
        delta(part(0, "a", "search", ""), part(1, "b", "now", "")), delta(part(1, arguments="{"), part(0, arguments='{"q": ')),
        delta(part(0, arguments='"rain"}'), part(1, arguments="}")),
    ],
    "whole": [delta(part(0, "a", "search", FOUND)), delta(part(1, "b", "now", "{}"))],
    "all in one": [delta(part(0, "a", "search", FOUND), part(1, "b", "now", "{}"))],
    "no index": [delta(part(None, "a", "search", '{"q": ')), delta(part(arguments='"rain"}')), delta(part(None, "b", "now", "{}"))],
    "no index, no id": [delta(part(None, None, "search", FOUND)), delta(part(None, None, "now", "{}"))],
    "index 0 for all": [delta(part(0, "a", "search", FOUND)), delta(part(0, "b", "now", "{}"))],
    "the id in every part": [
        delta(part(0, "a", "search", '{"q": ')), delta(part(0, "a", arguments='"rain"}')), delta(part(1, "b", "now", "{}"))
    ],
    "the name in every part": [
        delta(part(0, "a", "search", '{"q": ')), delta(part(0, "a", "search", '"rain"}')), delta(part(1, "b", "now", "{}"))
    ],
    "objects": [delta(part(0, "a", "search", {"q": "rain"})), delta(part(1, "b", "now", {}))],
    "words beside it": [fs.chunk("Let me see."), delta(part(0, "a", "search", FOUND)), delta(part(1, "b", "now", "{}"))],
}  # fmt: skip


@pytest.mark.parametrize("form", STREAMS)
async def test_streamed_calls_are_assembled(faults, form, ask):
    """Parts are matched by index, ID or order, and the ID may be in the first part only."""
    faults.says(fs.send_and_close(fs.sse(*STREAMS[form], END)))
    reply = await Chat("m", faults.url, stream=True).complete(ask())
    assert [(call.name, json.dumps(call.parsed_arguments)) for call in reply.tool_calls] == TWO
    assert reply.text == ("Let me see." if form == "words beside it" else "")
    assert len({call.id for call in reply.tool_calls}) == 2


async def test_streamed_function_call(faults, ask):
    """The older `function_call` arrives in parts, too."""
    parts = [
        fs.chunk(function_call={"name": "search", "arguments": '{"q": '}),
        fs.chunk(function_call={"arguments": '"rain"}'}),
    ]
    faults.says(fs.send_and_close(fs.sse(*parts, fs.chunk(finish="function_call"))))
    reply = await Chat("m", faults.url, stream=True).complete(ask())
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("search", FOUND)]


HALF = delta(part(0, "a", "search", '{"q": "ra'))
BAD_STREAMS = {
    "no end": (fs.sse(HALF), True, "without a finish_reason"),
    "cut off": (fs.sse(HALF, fs.chunk(finish="length")), False, "raise `max_tokens`"),
    "not whole": (fs.sse(HALF, END), True, "no JSON"),
    "no name": (fs.sse(delta(part(0, "a", None, "{}")), END), True, "without the name"),
    "an odd part": (fs.sse(delta(7), END), True, "a number as a tool call"),
    "an odd function": (
        fs.sse(delta({"index": 0, "function": "search"}), END),
        True,
        "as the function of a tool call",
    ),
    "too many": (
        fs.sse(*(delta(part(n, str(n), "f", "{}")) for n in range(MAX_TOOL_CALLS + 1)), END),
        True,
        "more than 128",
    ),
    "too long": (
        fs.sse(delta(part(0, "a", "f", "")), *[delta(part(0, arguments=" " * 2**20))] * 9, END),
        False,
        "8 MiB",
    ),
    "too deep": (
        fs.sse(delta(part(0, "a", "f", json.loads('{"q":' + "[" * 300 + "]" * 300 + "}"))), END),
        True,
        "deep",
    ),
}


@pytest.mark.parametrize("form", BAD_STREAMS)
async def test_stream_with_an_incomplete_call_is_an_error(faults, form, ask):
    """Truncated arguments, a missing end and invalid parts never give half a call."""
    raw, retryable, words = BAD_STREAMS[form]
    faults.says(fs.send_and_close(raw))
    with pytest.raises(BadResponseError, match=words) as caught:
        await Chat("m", faults.url, stream=True).complete(ask())
    assert caught.value.retryable is retryable


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
            st.dictionaries(st.text(), st.text(max_size=9)),
        ),
        max_size=5,
    ),
    st.integers(1, 7),
)
def test_streamed_and_complete_calls_are_equal(calls, size):
    """It holds for any division of the arguments."""
    tool_calls_sent = [
        fs.call(name, json.dumps(given), f"id{n}") for n, (name, given) in enumerate(calls)
    ]
    pieces = StreamAssembler()
    for n, call in enumerate(tool_calls_sent):
        arguments = call["function"]["arguments"]
        pieces.add(delta(part(n, call["id"], call["function"]["name"], "")))
        for at in range(0, len(arguments), size):
            pieces.add(delta(part(n, arguments=arguments[at : at + size])))
    pieces.add(fs.chunk("fine", "stop"))
    whole = read_reply(fs.completion("fine", usage=None, tool_calls=tool_calls_sent))
    assert pieces.reply() == whole
    assert [(call.name, call.parsed_arguments) for call in whole.tool_calls] == calls


# ---- other kinds of model


async def test_functions_take_tools_by_keyword():
    """A function with such a parameter gets the tools; for another one, a task with tools is an
    error that names it.
    """
    seen = []

    def agent(messages, tools=None, tool_choice="unset"):
        seen.append((tools, tool_choice))
        return Reply("", tool_calls=CALLED)

    task = Task("Say it.", tools=[SEARCH], tool_choice="required")
    result = await refine(task, agent, "words:0-9")
    assert result.tool_calls == CALLED
    assert seen == [([SEARCH], "required")]
    assert (await CallableModel(agent).complete(Request(TURNS))).tool_calls == CALLED
    assert seen[1:] == [(None, "unset")]
    with pytest.raises(ConfigError, match="'plain' has no parameter `tools`"):
        await refine(task, connect(plain), "words:0-9")


def plain(messages):
    return "x"


async def test_vendors_support_tools():
    """Through pydantic-ai, definitions, tool choice, and calls and results in a conversation are
    sent, and calls are returned.
    """
    seen = []

    def answer(messages, info):
        seen.append((messages, info))
        return vendors.ModelResponse(
            parts=[
                vendors.TextPart("Let me see."),
                vendors.ToolCallPart("search", {"q": "rain"}, "call_1"),
            ]
        )

    model = ProviderModel(vendors.FunctionModel(answer, model_name="fn"))
    named = {"type": "function", "function": {"name": "search"}}
    reply = await model.complete(
        Request(TURNS, tools=(SEARCH,), tool_choice=named, is_generation=True)
    )
    assert (reply.text, reply.tool_calls) == ("Let me see.", CALLED)
    ((messages, info),) = seen
    (offered,) = info.function_tools
    function = SEARCH["function"]
    assert (offered.name, offered.description, offered.parameters_json_schema) == (
        function["name"], function["description"], function["parameters"],
    )  # fmt: skip
    assert info.model_settings["tool_choice"] == ["search"]
    kinds = [type(p) for m in messages for p in m.parts]
    assert kinds[1:] == [vendors.ToolCallPart, vendors.ToolReturnPart]
    (result,) = messages[2].parts
    assert (result.tool_name, result.tool_call_id, result.content) == ("search", "call_1", "yes")


async def test_vendor_tools_reach_the_writer_only():
    """Tools in a vendor's settings do not reach judges."""
    seen = []

    def answer(messages, info):
        seen.append(info)
        return vendors.ModelResponse(parts=[vendors.TextPart("fine")])

    settings = {"extra_body": {"tools": [SEARCH], "k": 1}, "parallel_tool_calls": True}
    model = ProviderModel(vendors.FunctionModel(answer, model_name="fn"), settings=settings)
    assert model.tools == (SEARCH,)
    await model.complete(Request(TURNS[:1]))
    assert seen[0].model_settings["extra_body"] == {"k": 1}
    assert "parallel_tool_calls" not in seen[0].model_settings


@pytest.mark.parametrize("stream", [False, True])
def test_provider_batch_offers_tools_to_the_writer_only(stream):
    """The writer's line has tools, and the judge's has none."""
    batches = BatchClient(Chat("m", extra_body=OWN, stream=stream))
    writing, judging = (
        json.loads(batches.request_line("k", Request(TURNS, is_generation=writes)))["body"]
        for writes in (True, False)
    )
    assert (writing["tools"], "tools" in judging, judging["top_p"]) == ([SEARCH], False, 0.5)


# ---- a real server


async def test_real_server_accepts_tools(plain_server):
    """llama.cpp accepts tools, calls and results in a conversation, and the turns that request a
    better call.
    """
    url, _, name = plain_server.partition("#")
    # random weights might start with the end token
    model = Chat(name, url, extra_body={"ignore_eos": True})
    named = {"type": "function", "function": {"name": "search"}}
    offered = Request(TURNS, max_tokens=8, tools=(SEARCH,), tool_choice=named, is_generation=True)
    assert (await model.complete(offered)).text
    with pytest.raises(ModelError, match="tool"):
        await model.complete(
            Request(
                TURNS,
                max_tokens=8,
                tools=({"type": "function", "function": {}},),
                is_generation=True,
            )
        )
    call = Reply("", tool_calls=CALLED)

    def grade_with(text, tool_calls):
        return (0.2, "too narrow") if tool_calls else 1.0

    async def writer(messages, tools=None):
        asked = Request(tuple(messages), max_tokens=8, tools=tuple(tools))
        return call if len(messages) == len(TURNS) else await model.complete(asked)

    result = await refine(Task(TURNS, tools=[SEARCH]), writer, grade_with, max_iterations=1)
    assert [bool(c.tool_calls) for c in result.trace.candidates] == [True, False]
    assert result.score == 1
