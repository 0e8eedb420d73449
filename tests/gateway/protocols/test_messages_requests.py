"""Anthropic's messages: what a request may ask, and what models of this protocol are sent of
requests of any protocol.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

import vendors
from each_row import each_row
from redraft.base.jsontext import dumps, loads
from redraft.gateway.exchange import GatewayError
from redraft.gateway.neutral import (
    AnswerSchema,
    Call,
    Media,
    Other,
    Request,
    RequestOptions,
    Text,
    Thinking,
    ThinkingRequest,
    Tool,
    ToolChoice,
    Turn,
    short_name,
)
from redraft.gateway.protocols.client_tools import ANTHROPIC_TOOLS
from redraft.gateway.protocols.fields import MAX_TOOLS
from redraft.gateway.protocols.messages_requests import (
    ANSWER_TOOL,
    DEFAULT_MAX_TOKENS,
    with_forced_tool,
)
from redraft.gateway.protocols.registry import MODELS

from .protocol_app import both_sides

MESSAGES = both_sides("messages")
RECORDED = Path(__file__).parents[1] / "clients" / "bodies"
BODIES = [
    path
    for path in sorted(RECORDED.glob("*.json"))
    if (recorded := json.loads(path.read_text()))["path"] == "/v1/messages"
    and "thread" not in recorded["body"]
]
USER = {"role": "user", "content": "hi"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ADD = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
FIND = {"name": "find", "input_schema": {"type": "object"}}
BASH = {"type": "bash_20250124", "name": "bash"}
CACHED = {"cache_control": {"type": "ephemeral"}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PDF_SOURCE = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}


def body(**fields):
    return {"model": "refine/fast", "max_tokens": 100, "messages": [USER], **fields}


def read(**fields):
    return MESSAGES.read_request(body(**fields))


def turns(*messages, **fields):
    """Return the turns of messages, without what is kept of the client's JSON."""
    return [without_raw(turn) for turn in read(messages=list(messages), **fields).turns]


def without_raw(turn):
    parts = tuple(
        part if isinstance(part, Other) else replace(part, raw=None) for part in turn.parts
    )
    return replace(turn, parts=parts, raw=None)


def user(*parts):
    return Turn("user", parts)


# ---- reading


def test_a_request_in_full():
    """Every field of a request has its place in the neutral form."""
    given_body = body(
        system=[{"type": "text", "text": "Be brief.", **CACHED}, {"type": "text", "text": "Now."}],
        temperature=0.5,
        top_p=0.9,
        top_k=5.0,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        tools=[ADD, FIND],
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        output_config={"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}},
        thinking={"type": "enabled", "budget_tokens": 50, "display": "omitted"},
        service_tier="standard_only",
        stream=True,
        redraft={"target_score": 0.9, "events": True},
        min_p=0.1,
    )
    request = MESSAGES.read_request(given_body)
    assert request.body == given_body
    assert (request.protocol, request.model, request.max_tokens) == (
        "messages",
        "refine/fast",
        100,
    )
    assert [without_raw(turn) for turn in request.turns] == [
        Turn("system", (Text("Be brief."), Text("Now."))),
        user(Text("hi")),
    ]
    assert request.tools == (
        Tool("function", "add", "Adds.", SCHEMA, raw=ADD),
        Tool("function", "find", None, {"type": "object"}, raw=FIND),
    )
    assert request.tool_choice == ToolChoice("tool", "add", raw=given_body["tool_choice"])
    assert request.schema == AnswerSchema(SCHEMA)
    assert request.thinking == ThinkingRequest("enabled", 50, is_shown=False)
    assert request.parameters == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["END"],
        "parallel_tool_calls": False,
        "effort": "max",
        "service_tier": "default",
    }
    assert set(request.hints) == {"metadata", "min_p"}
    assert request.is_stream
    assert request.include_usage
    assert request.options == RequestOptions(target_score=0.9, events=True)


RESULT = {
    "type": "tool_result",
    "tool_use_id": "t1",
    "content": [{"type": "text", "text": "5"}, PNG],
    **CACHED,
}
FAILED = {"type": "tool_result", "tool_use_id": "t2", "content": "no such file", "is_error": True}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
PNG_PART = Media("image", "data:image/png;base64,aGk=")


def test_tool_turns():
    """The results of tools become turns of their own, before what the user says."""
    said = {"type": "text", "text": "I add."}
    assistant, *results = turns(
        {"role": "assistant", "content": [THOUGHT, REDACTED, said, CALL, SEARCH]},
        {"role": "user", "content": [RESULT, FAILED, {"type": "text", "text": "Go on."}]},
        tools=[ADD],
    )
    assert assistant.parts == (
        Thinking("hm", "s"),
        Thinking(redacted="x"),
        Text("I add."),
        Call("t1", "add", '{"a":1}'),
        Other("server_tool_use", SEARCH),
    )
    assert results == [
        Turn("tool", (Text("5"), PNG_PART), call_id="t1"),
        Turn("tool", (Text("no such file"),), call_id="t2", is_error=True),
        user(Text("Go on.")),
    ]


def document(source, **fields):
    return {"type": "document", "source": source, **fields}


@each_row(
    ("block", "parts"),
    [
        (PNG, [PNG_PART]),
        (
            {"type": "image", "source": {"type": "url", "url": "HTTPS://x.example/a.png"}},
            [Media("image", "HTTPS://x.example/a.png")],
        ),
        (
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
            [Media("image", file_id="f")],
        ),
        (
            document(PDF_SOURCE, title="a.pdf", context="from Ann", citations={"enabled": True}),
            [
                Text("from Ann"),
                Media("document", "data:application/pdf;base64,aGk=", name="a.pdf"),
            ],
        ),
        (
            document({"type": "text", "media_type": "text/plain", "data": "Words."}, title="a"),
            [Text("a"), Text("Words.")],
        ),
        (
            document(
                {"type": "content", "content": [{"type": "text", "text": "One"}, PNG]},
                title="a",
                context="b",
            ),
            [Text("a"), Text("b"), Text("One"), PNG_PART],
        ),
        (document({"type": "content", "content": "One"}), [Text("One")]),
        (
            {
                "type": "search_result",
                "title": "T",
                "source": "https://x.example",
                "content": [{"type": "text", "text": "found"}],
            },
            [Text("T\n\nhttps://x.example\n\nfound")],
        ),
        ({"type": "container_upload", "file_id": "f"}, None),
    ],
)
def test_blocks_of_the_user(block, parts):
    """A block becomes parts; one that only this protocol has is kept as it is."""
    content = [{"type": "text", "text": "See"}, block]
    (turn,) = turns({"role": "user", "content": content})
    assert turn.parts == (Text("See"), *(parts or [Other(block["type"], block)]))


def addition(definition):
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}


def change(kind, name, of="tool_reference"):
    return {"type": kind, "tool": {"type": of, "name": name, "server_name": "s"}}


OTHER_ADD = {**ADD, "description": "Adds two numbers."}
CHANGES = [addition(FIND), change("tool_removal", "add"), change("tool_addition", "bash")]


@each_row(
    ("changes", "tools"),
    [
        (CHANGES, [BASH, FIND]),
        ([addition(FIND), addition(FIND)], [ADD, BASH, FIND]),
        ([addition(OTHER_ADD)], [BASH, OTHER_ADD]),
        ([change("tool_removal", "add"), change("tool_addition", "add")], [ADD, BASH]),
        ([addition(FIND), change("tool_removal", "find")], [ADD, BASH]),
        ([change("tool_removal", "add"), addition(ADD)], [BASH, ADD]),
        ([change("tool_removal", "add", "mcp_tool_reference")], [ADD, BASH]),
        ([change("tool_removal", "nothing")], [ADD, BASH]),
    ],
)
def test_tools_that_the_conversation_changes(changes, tools):
    """A model of another protocol has all that the conversation leaves, and no text about them; one
    of this protocol gets the changes as they are.
    """
    messages = [USER, *({"role": "system", "content": [each]} for each in changes), USER]
    given_body = body(messages=messages, tools=[ADD, BASH])
    request = MESSAGES.read_request(given_body)
    assert [tool.raw for tool in request.tools] == tools
    assert MESSAGES.write_request(request, "refine/fast").body == given_body
    written = MODELS["chat"].write_request(request, "m").body
    names = [tool["function"]["name"] for tool in written["tools"]]
    assert names == [tool["name"] for tool in tools]
    assert [each["content"] for each in written["messages"]] == ["hi", *[""] * len(changes), "hi"]


def test_tools_that_the_conversation_adds_count():
    """Their number is bounded as that of the others."""
    added = [addition({"name": f"t{n}", "input_schema": {}}) for n in range(MAX_TOOLS)]
    messages = [USER, {"role": "system", "content": added}]
    assert len(read(messages=messages).tools) == MAX_TOOLS
    with pytest.raises(GatewayError, match=f"{MAX_TOOLS + 1} tools; at most {MAX_TOOLS}"):
        read(messages=messages, tools=[ADD])


def test_tools_that_a_search_found():
    """They are named to models of other protocols, which have all of them."""
    found = [{"type": "tool_reference", "tool_name": name} for name in ("add", "x" * 65)]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": found}
    request = read(messages=[USER, {"role": "user", "content": [result]}], tools=[ADD])
    (_, message) = MODELS["chat"].write_request(request, "m").body["messages"]
    long = short_name("x" * 65)
    assert message["content"] == f"Found the tool add.\n\nFound the tool {long}."


@each_row(
    ("choice", "expected"),
    [
        (None, None),
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "bash"}, ToolChoice("tool", "bash")),
    ],
)
def test_tool_choice(choice, expected):
    """Each form of `tool_choice` has one in the neutral form."""
    given = read(tools=[ADD, BASH], tool_choice=choice).tool_choice
    assert given == (expected and replace(expected, raw=choice))


def test_tools_that_models_know_by_their_type():
    """Those that the client runs are functions with the arguments that are documented, others are
    tools of the provider. Models of this protocol get them as they are.
    """
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "m"}
    assert read(tools=[BASH, search, toolset]).tools == (
        replace(ANTHROPIC_TOOLS["bash"], raw=BASH),
        Tool("provider", "web_search", raw=search),
        Tool("provider", "mcp_toolset", raw=toolset),
    )


@each_row(
    ("given", "expected"),
    [
        ({"type": "adaptive"}, ThinkingRequest("adaptive")),
        ({"type": "adaptive", "display": "updates"}, ThinkingRequest("adaptive")),
        ({"type": "disabled"}, ThinkingRequest("disabled")),
        ({"type": "between_tools"}, ThinkingRequest("disabled")),
        ({"type": "enabled", "budget_tokens": 9}, ThinkingRequest("enabled", 9)),
    ],
)
def test_thinking(given, expected):
    """Whether the model is to think, in any form of today."""
    assert read(thinking=given).thinking == expected


def test_the_earlier_name_of_the_output_format():
    """A schema may stand in `output_format`, as earlier SDKs sent it."""
    form = {"type": "json_schema", "schema": SCHEMA}
    request = read(output_format=form)
    assert request.schema == AnswerSchema(SCHEMA)
    written = MESSAGES.write_request(request, "m").body
    assert written["output_config"] == {"format": form}
    assert "output_format" not in written


HINTS = [
    ("anthropic_beta", ["x"]),
    ("betas", ["x"]),
    ("cache_control", {"type": "ephemeral"}),
    ("context_management", {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    ("context_hint", {"enabled": True}),
    ("diagnostics", {"previous_message_id": "m"}),
    ("fallback_credit_token", "t"),
    ("metadata", {"user_id": "u", "other": 1}),
    ("metadata", 5),
    ("output_config.task_budget", {"type": "tokens", "total": 20_000}),
    ("speed", "fast"),
    ("thinking.block_binding", {}),
    ("tools[0].input_examples", [{"n": 1}]),
    ("tools[0].defer_loading", True),
    ("user_profile_id", "u"),
    ("a_field_of_tomorrow", {"a": [1]}),
]


@each_row(("name", "value"), HINTS)
def test_hints(name, value):
    """A hint never causes a 400, and a model of the same protocol gets it."""
    outer, _, inner = name.rpartition(".")
    fields = {
        "": {inner: value},
        "output_config": {"output_config": {inner: value}},
        "thinking": {"thinking": {"type": "adaptive", inner: value}},
        "tools[0]": {"tools": [{**ADD, inner: value}]},
    }[outer]
    request = read(**fields)
    assert request.hints == (name,)
    written = MESSAGES.write_request(request, "m")
    assert written.body == body(model="m", **fields)
    assert written.ignored == ()


REFUSED = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": True}),
    ("model", {"model": ""}),
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": {"type": "text"}}]}),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": [None]}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{}]}]}),
    (
        "messages[0].content[0].text",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    ),
    (
        "messages[0].content[0].source.url",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}
                    ],
                }
            ]
        },
    ),
    (
        "messages[0].content[0].source.type",
        {"messages": [{"role": "user", "content": [document({"type": "disk"})]}]},
    ),
    (
        "messages[0].content[0].source.media_type",
        {
            "messages": [
                {"role": "user", "content": [document({**PDF_SOURCE, "media_type": "text/html"})]}
            ]
        },
    ),
    (
        "messages[0].content[0].source.data",
        {"messages": [{"role": "user", "content": [document({**PDF_SOURCE, "data": "\u00e9"})]}]},
    ),
    (
        "messages[0].content[0].content[0].text",
        {"messages": [{"role": "user", "content": [{**RESULT, "content": [{"type": "text"}]}]}]},
    ),
    (
        "messages[0].content[0].input",
        {"messages": [{"role": "assistant", "content": [{**CALL, "input": "x"}]}]},
    ),
    ("thinking.type", {"thinking": {"type": "sometimes"}}),
    ("thinking.budget_tokens", {"thinking": {"type": "enabled"}}),
    ("tools", {"tools": [ADD, ADD]}),
    ("tools[0].name", {"tools": [{"input_schema": {}}]}),
    ("tool_choice.name", {"tools": [ADD], "tool_choice": {"type": "tool", "name": "other"}}),
    ("tool_choice.type", {"tools": [ADD], "tool_choice": {"type": "maybe"}}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("container", {"container": "c"}),
    ("mcp_servers", {"mcp_servers": [{"type": "url", "url": "https://x.example"}]}),
    ("compaction", {"compaction": {"type": "summarize"}}),
    ("thread", {"thread": {"type": "continue", "previous_message_id": "m"}}),
    ("thread", {"thread": {"type": "create"}}),
    ("inference_geo", {"inference_geo": "us"}),
    ("billing_policy", {"billing_policy": {"type": "billing_policy", "bill_to": "user_profile"}}),
    ("system[0].type", {"system": [PNG]}),
    ("stop_sequences[0]", {"stop_sequences": [""]}),
    ("temperature", {"temperature": 3}),
    ("output_config.effort", {"output_config": {"effort": "huge"}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema"}}}),
    ("redraft.score", {"redraft": {"score": 1}}),
    ("base_url", {"base_url": "http://evil.example"}),
    ("api_key", {"api_key": "k"}),
    ("fallbacks", {"fallbacks": [{"model": "another"}]}),
]


@each_row(("param", "fields"), REFUSED)
def test_refusals(param, fields):
    """What is wrong, or changes the answer and cannot be honoured, is a 400 that names the
    field.
    """
    with pytest.raises(GatewayError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param.rpartition(".")[2] in caught.value.message
    assert MESSAGES.error_body(caught.value)["error"]["type"] == "invalid_request_error"


@each_row(
    "fields",
    [
        {"container": {}},
        {"mcp_servers": []},
        {"inference_geo": "global"},
        {"billing_policy": {"type": "billing_policy", "bill_to": "self"}},
        {"compaction": None},
    ],
)
def test_values_that_ask_for_nothing(fields):
    """They are neither refused nor told."""
    assert read(**fields).hints == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
BLOCKS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["text", "image", "tool_use", "tool_result", "document", "thinking", "other"]
        ),
        **dict.fromkeys(
            ("text", "input", "id", "name", "tool_use_id", "citations", "is_error"), JSON
        ),
        "content": JSON
        | st.lists(
            st.fixed_dictionaries({"type": st.just("text")}, optional={"text": JSON}), max_size=2
        ),
        "source": JSON
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["base64", "url", "text", "content"])},
            optional={"data": JSON, "url": JSON, "content": JSON},
        ),
    },
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system"]) | JSON,
        "content": JSON | st.lists(BLOCKS, max_size=3),
    },
)


@given(
    st.fixed_dictionaries(
        {
            "model": st.just("refine/fast"),
            "max_tokens": st.just(5),
            "messages": st.lists(MESSAGE, max_size=3) | JSON,
        },
        optional=dict.fromkeys(
            (
                *("system", "tools", "tool_choice", "thinking", "output_config", "metadata"),
                *("stop_sequences", "stream", "redraft", "service_tier", "other"),
            ),
            JSON,
        ),
    )
)
def test_any_request_is_read_or_refused(given_body):
    """Whatever a client sends is read, or refused with a 400 that has a param; what is read can be
    written.
    """
    try:
        request = MESSAGES.read_request(given_body)
        with_forced_tool(MESSAGES.write_request(request, "m").body, SCHEMA)
        MESSAGES.write_request(replace(request, protocol="responses"), "m")
    except GatewayError as error:
        assert error.status == 400
        assert error.param


# ---- to a model of the same protocol


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_requests_of_agents_go_on_as_they_are(path):
    """A model of this protocol gets the very JSON that an agent sent."""
    given_body = json.loads(path.read_text())["body"]
    request = MESSAGES.read_request(given_body)
    written = MESSAGES.write_request(request, given_body["model"])
    assert written.body == given_body
    assert written.ignored == ()


TEXT = st.text(max_size=9)
TEXT_BLOCKS = TEXT.map(lambda text: {"type": "text", "text": text})
RICH_BLOCKS = TEXT_BLOCKS | st.sampled_from(
    [
        PNG,
        {"type": "text", "text": "x", **CACHED},
        document({"type": "content", "content": [{"type": "text", "text": "One"}, PNG]}, title="t"),
        document({"type": "text", "media_type": "text/plain", "data": "x"}, context="c"),
        document({"type": "content", "content": []}),
        document({"type": "content", "content": [{"type": "container_upload"}]}),
        {"type": "container_upload", "file_id": "f"},
    ]
)
ASSISTANT_BLOCKS = TEXT_BLOCKS | st.sampled_from(
    [THOUGHT, REDACTED, CALL, SEARCH, {**CALL, "caller": {"type": "direct"}}]
)
SYSTEM = TEXT | st.lists(TEXT_BLOCKS, max_size=2)


@st.composite
def conversations(draw):
    """Messages whose results of tools come first, and not alone before another message of the
    user.
    """
    messages = []
    for _ in range(draw(st.integers(1, 4))):
        results = draw(st.lists(st.sampled_from([RESULT, FAILED]), max_size=2))
        said = draw(st.lists(RICH_BLOCKS, min_size=1, max_size=3))
        messages += [
            {"role": "user", "content": draw(TEXT | st.just([*results, *said]))},
            *draw(
                st.lists(
                    st.fixed_dictionaries(
                        {
                            "role": st.just("assistant"),
                            "content": TEXT | st.lists(ASSISTANT_BLOCKS, max_size=3),
                        }
                    )
                    | st.fixed_dictionaries(
                        {
                            "role": st.just("system"),
                            "content": SYSTEM | st.lists(st.sampled_from(CHANGES), min_size=1),
                        }
                    ),
                    max_size=2,
                )
            ),
        ]
    return messages


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "system": SYSTEM,
        "temperature": st.sampled_from([0, 0.5, 1]),
        "stop_sequences": st.lists(st.just("END"), max_size=2),
        "stream": st.booleans(),
        "thinking": st.sampled_from(
            [
                {"type": "adaptive", "display": "omitted"},
                {"type": "between_tools"},
                {"type": "enabled", "budget_tokens": 2000},
            ]
        ),
        "output_config": st.sampled_from(
            [
                {},
                {"effort": "low"},
                {"format": {"type": "json_schema", "schema": {"type": "array"}}},
            ]
        ),
        "tools": st.sampled_from([[], [ADD, BASH]]),
        "tool_choice": st.sampled_from(
            [{"type": "auto"}, {"type": "none", "disable_parallel_tool_use": True}]
        ),
        "service_tier": st.sampled_from(["auto", "standard_only", "other"]),
        "metadata": st.just({"user_id": "u"}),
    },
)


@given(conversations(), SETTINGS)
def test_requests_go_on_as_they_are(messages, fields):
    """A model of this protocol gets the JSON that a client sent, with its own name for the model,
    and without the field `redraft`.
    """
    given_body = loads(dumps(body(messages=messages, **fields)))
    request = MESSAGES.read_request({**given_body, "redraft": {"events": True}})
    assert MESSAGES.write_request(request, "m").body == {**given_body, "model": "m"}


def test_what_a_refinement_changes():
    """Turns, limits, tools and the schema of the neutral form replace those of the body, and what
    the client sent stays as it was.
    """
    said = {"type": "text", "text": "Draft.", **CACHED}
    given_body = body(
        max_tokens=9000,
        temperature=1,
        system="Be brief.",
        messages=[{"role": "user", "content": [said]}],
        tools=[ADD],
        tool_choice={"type": "any"},
        thinking={"type": "enabled", "budget_tokens": 5000},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        metadata={"user_id": "u"},
        stream=True,
    )
    request = MESSAGES.read_request(given_body)
    changed = replace(
        request,
        turns=(
            Turn("system", (Text("Judge."),)),
            *request.turns,
            Turn("assistant", (Thinking("hm", "s", raw=THOUGHT), Text("Draft."))),
            user(Text("Better.")),
            user(Text("Now.")),
        ),
        tool_choice=ToolChoice("none"),
        schema=None,
        max_tokens=2000,
        parameters={"temperature": 0.2},
        is_stream=False,
    )
    written = MESSAGES.write_request(changed, "m")
    assert written.body == {
        "model": "m",
        "max_tokens": 2000,
        "system": "Judge.\n\nBe brief.",
        "messages": [
            {"role": "user", "content": [said]},
            {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Draft."}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Better."}, {"type": "text", "text": "Now."}],
            },
        ],
        "tools": [ADD],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "enabled", "budget_tokens": 1999},
        "metadata": {"user_id": "u"},
    }
    assert written.ignored == ("temperature",)  # (a model that thinks takes only 1)
    # a limit that leaves no room for thinking turns it off
    short = MESSAGES.write_request(replace(changed, max_tokens=1000), "m")
    assert short.body["thinking"] == {"type": "disabled"}
    assert "thinking.budget_tokens" in short.ignored


# ---- to a model of this protocol, from a client of another one


def chat_request(*turns, **fields):
    return Request("chat", "pass/m", {}, turns or (user(Text("hi")),), **fields)


def write(*turns, **fields):
    return MESSAGES.write_request(chat_request(*turns, **fields), "m")


MINIMAL = {
    "model": "m",
    "max_tokens": DEFAULT_MAX_TOKENS,
    "messages": [{"role": "user", "content": "hi"}],
}


@each_row(
    ("fields", "expected", "ignored"),
    [
        ({}, {}, ()),
        ({"max_tokens": 5, "is_stream": True}, {"max_tokens": 5, "stream": True}, ()),
        (
            {"parameters": {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["END"]}},
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["END"]},
            (),
        ),
        ({"parameters": {"temperature": 1.5}}, {"temperature": 1}, ("temperature",)),
        ({"parameters": {"effort": "high"}}, {"output_config": {"effort": "high"}}, ()),
        ({"parameters": {"effort": "minimal"}}, {"output_config": {"effort": "low"}}, ()),
        ({"parameters": {"effort": "none"}}, {"thinking": {"type": "disabled"}}, ()),
        ({"parameters": {"service_tier": "default"}}, {"service_tier": "standard_only"}, ()),
        ({"parameters": {"service_tier": "flex"}}, {}, ("service_tier",)),
        (
            {
                "parameters": {
                    "seed": 1,
                    "verbosity": "low",
                    "logit_bias": {},
                    "frequency_penalty": 1,
                    "presence_penalty": 1,
                    "prediction": {},
                },
                "hints": ("metadata",),
            },
            {},
            (
                *("metadata", "seed", "verbosity", "logit_bias"),
                *("frequency_penalty", "presence_penalty", "prediction"),
            ),
        ),
        (
            {"thinking": ThinkingRequest("enabled", 2000, is_shown=False)},
            {"thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}},
            (),
        ),
        ({"thinking": ThinkingRequest("enabled")}, {"thinking": {"type": "adaptive"}}, ()),
        (
            {"schema": AnswerSchema(SCHEMA)},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            (),
        ),
    ],
)
def test_fields_of_other_protocols(fields, expected, ignored):
    """Each field is said in this protocol; a hint that it cannot say is named."""
    written = write(**fields)
    assert written.body == MINIMAL | expected
    assert written.ignored == ignored


@each_row("schema", [{}, {"type": "object"}, {"type": "object", "additionalProperties": SCHEMA}])
def test_schemas_that_the_output_format_cannot_say(schema):
    """They are asked for in words, because an object of any properties has no form there."""
    body = write(
        Turn("system", (Text("Be brief."),)), user(Text("hi")), schema=AnswerSchema(schema)
    ).body
    assert body["system"].startswith("Be brief.\n\nAnswer with ")
    assert "JSON" in body["system"]
    assert json.dumps(schema, separators=(",", ":")) in body["system"] or not schema
    assert "output_config" not in body


def test_tools_of_other_protocols():
    """Functions and tools of text have a form; those of another provider are left out and named."""
    strict = {**SCHEMA, "properties": {"n": {"type": ["integer", "null"], "minimum": 0}}}
    written = write(
        tools=(
            Tool("function", "add", "Adds.", SCHEMA, strict=False),
            Tool("function", "find", group="files", schema=strict, strict=True),
            Tool("function", "any", schema={"type": "object"}, strict=True),
            Tool("text", "patch", "Patches."),
            Tool("provider", "web_search", raw={"type": "web_search"}),
        ),
        tool_choice=ToolChoice("tool", "files__find"),
        parameters={"parallel_tool_calls": False},
    )
    number = {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "(minimum: 0)"}
    assert written.body["tools"] == [
        {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
        {
            "name": "files__find",
            "input_schema": {**SCHEMA, "properties": {"n": number}},
            "strict": True,
        },
        {"name": "any", "input_schema": {"type": "object"}},
        {
            "name": "patch",
            "description": "Patches.",
            "input_schema": {
                "type": "object",
                "properties": {"input": {"type": "string"}},
                "required": ["input"],
                "additionalProperties": False,
            },
        },
    ]
    assert written.body["tool_choice"] == {
        "type": "tool",
        "name": "files__find",
        "disable_parallel_tool_use": True,
    }
    assert written.ignored == ("tools[2].strict", "tools[4] (web_search)")


def test_a_choice_of_a_tool_that_the_model_does_not_know():
    """It is a 400, because the client insists on it."""
    with pytest.raises(GatewayError) as caught:
        write(tools=(Tool("provider", "web_search"),), tool_choice=ToolChoice("tool", "web_search"))
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


def test_a_conversation_of_another_protocol():
    """Neighbours of one role become one message, the results of tools first; the raw JSON of the
    other protocol is not used.
    """
    foreign = {"type": "input_text", "text": "x"}
    body = write(
        Turn("system", (Text("Be brief.", raw=foreign),)),
        Turn("system", (Text("Now."),)),
        user(Text("See", raw=foreign), Media("image", "https://x.example/a.png", detail="auto")),
        user(Text(""), Text("Go.")),
        Turn("assistant", (Thinking("no proof"), Thinking("hm", "s"), Thinking(redacted="x"))),
        Turn("assistant", (Text("No.", is_refusal=True), Call("a:1", "add", '{"n": 1}'))),
        Turn("assistant", (Call("b", "add", ""),)),
        user(Text("Wait.")),
        Turn("tool", (Text("1"),), call_id="a:1"),
        Turn("tool", (Text("2"), PNG_PART), call_id="b", is_error=True),
        Turn("system", (Text("Hurry."),)),
    ).body
    assert body["system"] == "Be brief.\n\nNow."
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
                {"type": "text", "text": "Go."},
            ],
        },
        {
            "role": "assistant",
            "content": [
                THOUGHT,
                REDACTED,
                {"type": "text", "text": "No."},
                {"type": "tool_use", "id": "a_1", "name": "add", "input": {"n": 1}},
                {"type": "tool_use", "id": "b", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a_1", "content": "1"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [{"type": "text", "text": "2"}, PNG],
                    "is_error": True,
                },
                {"type": "text", "text": "Wait."},
            ],
        },
        {"role": "system", "content": "Hurry."},
    ]
    TypeAdapter(vendors.MessageParam).validate_python(body["messages"][1])


def test_hints_of_parts():
    """How closely an image is to be looked at, and parts of another provider, are left out."""
    image = Media("image", "https://x.example/a.png", detail="low")
    written = write(user(Text("x"), image, Other("web_search_call", {})))
    assert written.ignored == (
        "messages[0].content[1].detail",
        "messages[0].content[2] (web_search_call)",
    )
    assert len(written.body["messages"][0]["content"]) == 2


@each_row(
    ("turn", "param"),
    [
        (user(Media("audio", "data:audio/wav;base64,aGk=")), "messages[0].content[0]"),
        (user(Text("x"), Media("image", file_id="f")), "messages[0].content[1]"),
        (user(Media("document", "data:text/plain;base64,aGk=")), "messages[0].content[0]"),
        (user(Media("image", "ftp://x.example/a.png")), "messages[0].content[0]"),
        (Turn("assistant", (Call("c", "add", "[1]"),)), "messages[0].content[0]"),
        (Turn("assistant", (Call("c", "add", "{"),)), "messages[0].content[0]"),
        (Turn("system", (Text("Only this."),)), "messages"),
    ],
)
def test_turns_that_cannot_be_said(turn, param):
    """A part that changes the answer and has no form here is a 400 that names its place."""
    with pytest.raises(GatewayError) as caught:
        write(turn)
    assert (caught.value.status, caught.value.param) == (400, param)


DATA_URLS = {  # and the media type and the data that are sent; None: the URL is refused
    "data:{kind};base64,aGk=": ("{kind}", "aGk="),
    "data:{kind};base64,aG\nk=": ("{kind}", "aG\nk="),
    "data:{kind};base64,aG\r\nk=\r\n": ("{kind}", "aG\r\nk=\r\n"),
    "data:{kind};base64,\naGk=": ("{kind}", "\naGk="),
    "data:{kind};base64,": ("{kind}", ""),
    "data:{kind},aGk=": None,
    "data:{kind};charset=utf-8;base64,aGk=": None,
    "data:;base64,aGk=": None,
    "data:{kind}\n;base64,aGk=": None,
    "data:{kind}\u00e9;base64,aGk=": None,
    "data:a\u00e9/{kind};base64,aGk=": None,
}


@each_row("kind", ["image", "document"])
@each_row(("url", "source"), DATA_URLS.items())
def test_data_of_images_and_documents(kind, url, source):
    """Base64 may have line breaks, which stay; what is not an ASCII media type and base64 is a 400
    that names its place.
    """
    media = {"image": "image/png", "document": "application/pdf"}[kind]
    turn = user(Media(kind, url.replace("{kind}", media)))
    if source is None:
        with pytest.raises(GatewayError) as caught:
            write(turn)
        assert (caught.value.status, caught.value.param) == (400, "messages[0].content[0]")
        return
    data = {"type": "base64", "media_type": media, "data": source[1]}
    assert write(turn).body["messages"] == [
        {"role": "user", "content": [{"type": kind, "source": data}]}
    ]


ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.none(), max_size=2)
SAID = st.lists(
    st.text(min_size=1, max_size=9).map(Text)
    | st.sampled_from([PNG_PART, Media("document", "data:application/pdf;base64,aGk=", name="a")]),
    min_size=1,
    max_size=3,
).map(tuple)


@st.composite
def neutral_turns(draw):
    """Turns that alternate, with calls of tools and their results."""
    system = [Turn("system", (Text("Be brief."),))] if draw(st.booleans()) else []
    turns = []
    for n in range(draw(st.integers(1, 3))):
        turns.append(user(*draw(SAID)))
        calls = tuple(
            Call(f"c{n}_{k}", "add", dumps(draw(ARGUMENTS)).decode())
            for k in range(draw(st.integers(0, 2)))
        )
        if calls:
            turns.append(Turn("assistant", (Text("I add."), *calls)))
            turns += [
                Turn("tool", draw(SAID), call_id=call.id, is_error=draw(st.booleans()))
                for call in calls
            ]
        turns.append(Turn("assistant", (Text("Done."),)))
    return (*system, *turns)


@given(
    neutral_turns(),
    st.sampled_from([None, ToolChoice("auto"), ToolChoice("required"), ToolChoice("tool", "add")]),
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0, 0.5, 1]),
            "effort": st.sampled_from(["low", "max"]),
            "stop": st.just(["END"]),
            "parallel_tool_calls": st.just(False),
        },
    ),
)
def test_requests_of_other_protocols_there_and_back(turns, choice, parameters):
    """What is written for a request of another protocol reads the same."""
    tools = (Tool("function", "add", "Adds.", SCHEMA),)
    request = chat_request(
        *turns,
        tools=tools,
        tool_choice=choice,
        parameters=parameters,
        schema=AnswerSchema(SCHEMA),
        max_tokens=9,
    )
    back = MESSAGES.read_request(MESSAGES.write_request(request, "m").body)
    assert [without_raw(turn) for turn in back.turns] == list(turns)
    assert [replace(tool, raw=None) for tool in back.tools] == list(tools)
    is_said = choice is not None or "parallel_tool_calls" in parameters
    expected = (choice or ToolChoice("auto")) if is_said else None
    assert (back.tool_choice and replace(back.tool_choice, raw=None)) == expected
    assert back.parameters == parameters
    assert (back.schema, back.max_tokens) == (request.schema, 9)


# ---- a schema by a tool that must be called


def test_a_schema_by_a_forced_tool():
    """A server that knows no output format gets a tool whose arguments are the answer; a model that
    must call a tool does not think.
    """
    plain = write(
        schema=AnswerSchema(SCHEMA),
        thinking=ThinkingRequest("adaptive"),
        parameters={"effort": "low"},
    ).body
    answer = {"name": ANSWER_TOOL, "description": "Gives the final answer.", "input_schema": SCHEMA}
    assert with_forced_tool(plain, SCHEMA) == MINIMAL | {
        "output_config": {"effort": "low"},
        "tools": [answer],
        "tool_choice": {"type": "tool", "name": ANSWER_TOOL},
    }
    # a model that has tools may still call one of them
    with_tools = write(schema=AnswerSchema(SCHEMA), tools=(Tool("function", "add"),)).body
    forced = with_forced_tool(with_tools, SCHEMA)
    assert forced["tool_choice"] == {"type": "any"}
    assert [tool["name"] for tool in forced["tools"]] == ["add", ANSWER_TOOL]
    assert "output_config" not in forced
    # arguments are an object
    assert with_forced_tool(plain, {"type": "array"}) is None
