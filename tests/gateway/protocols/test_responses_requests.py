"""Requests for OpenAI's responses: what each field and item becomes, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from places import changed_at
from redraft.gateway.exchange import GatewayError
from redraft.gateway.neutral import (
    AnswerSchema,
    Call,
    Media,
    Other,
    RequestOptions,
    Text,
    Thinking,
    ToolChoice,
    Turn,
)
from redraft.gateway.protocols.responses_requests import (
    TEXT_TOOL_SCHEMA,
    ResponsesRequest,
    read_request,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
ADD = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}
PATCH = {"type": "custom", "name": "patch", "description": "Change files."}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "wait"}, PATCH],
}
SEARCH = {"type": "web_search", "external_web_access": True}
TOOLS = [ADD, PATCH, AGENTS, SEARCH]
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "3"}
SAID = Turn("user", (Text("hi"),))
CALLED = Call("c1", "add", "{}")


def read(**fields):
    return read_request({"model": "refine/fast", "input": "hi", **fields})


def part(**fields):
    return {"input": [{"role": "user", "content": [fields]}]}


def named(*names):
    return {"type": "allowed_tools", "mode": "required", "tools": [*names]}


@each_row(
    ("fields", "expected"),
    [
        ({}, {"turns": (SAID,), "tools": (), "parameters": {}, "hints": ()}),
        ({"max_output_tokens": 9.0, "stream": True}, {"max_tokens": 9, "is_stream": True}),
        ({"temperature": 0, "top_p": 0.5}, {"parameters": {"temperature": 0, "top_p": 0.5}}),
        (
            {"reasoning": {"effort": "low"}, "text": {"verbosity": "high"}},
            {"parameters": {"effort": "low", "verbosity": "high"}},
        ),
        (
            {"parallel_tool_calls": False, "service_tier": "flex"},
            {"parameters": {"parallel_tool_calls": False, "service_tier": "flex"}},
        ),
        (
            {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s"},
            {"hints": ("safety_identifier", "prompt_cache_key", "prompt_cache_retention")},
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            {"schema": AnswerSchema(SCHEMA, "n")},
        ),
        ({"text": {"format": {"type": "json_object"}}}, {"schema": AnswerSchema({})}),
        ({"text": {"format": {"type": "text"}}}, {"schema": None}),
        ({"store": False}, {"is_stored": False, "hints": ()}),
        ({"store": True}, {"is_stored": True, "hints": ("store",)}),
        ({"background": False, "truncation": "disabled", "top_logprobs": 0}, {"hints": ()}),
        ({"redraft": {"max_iterations": 1}}, {"options": RequestOptions(max_iterations=1)}),
    ],
)
def test_a_field_is_honoured(fields, expected):
    """A field that several protocols have has its place in the neutral form."""
    request = read(**fields)
    assert {name: getattr(request, name) for name in expected} == expected
    assert (request.protocol, request.model, request.include_usage) == (
        "responses",
        "refine/fast",
        True,
    )


@each_row(
    ("items", "expected"),
    [
        ([USER, {"role": "developer", "content": "x"}], [SAID, Turn("system", (Text("x"),))]),
        ([USER, CALL, RESULT], [SAID, Turn("assistant", (CALLED,)), Turn("tool", (Text("3"),), "c1")]),
        (
            [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                CALL,
                {**CALL, "call_id": "c2", "namespace": "agents", "name": "wait"},
                RESULT,
                {**RESULT, "call_id": "c2"},
            ],
            [
                Turn("assistant", (Thinking("hm"), Text("a"), CALLED, Call("c2", "agents__wait", "{}"))),
                Turn("tool", (Text("3"),), "c1"),
                Turn("tool", (Text("3"),), "c2"),
            ],
        ),
        (
            [
                {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"\n'},
                {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]},
            ],
            [
                Turn("assistant", (Call("c", "patch", '{"input":"a \\"b\\"\\n"}'),)),
                Turn("tool", (Text("ok"),), "c"),
            ],
        ),
        (
            [
                {"type": "local_shell_call", "id": "s", "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "s", "output": "a.txt"},
            ],
            [
                Turn("assistant", (Call("s", "local_shell", '{"command":["ls"]}'),)),
                Turn("tool", (Text("a.txt"),), "s"),
            ],
        ),
        (
            [
                {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file", "path": "a"}},
                {"type": "apply_patch_call_output", "call_id": "p", "status": "failed", "output": "no"},
                {"type": "shell_call_output", "call_id": "q", "output": [{"stdout": "x"}]},
            ],
            [
                Turn("assistant", (Call("p", "apply_patch", '{"type":"delete_file","path":"a"}'),)),
                Turn("tool", (Text("no"),), "p", is_error=True),
                Turn("tool", (Text('[{"stdout":"x"}]'),), "q"),
            ],
        ),
        (
            [{"type": "reasoning", "summary": [], "encrypted_content": "signature:abc"}, CALL],
            [Turn("assistant", (Thinking(signature="abc"), CALLED))],
        ),
        (
            [{"type": "reasoning", "summary": [], "encrypted_content": "redacted:a:b"}, CALL],
            [Turn("assistant", (Thinking(redacted="a:b"), CALLED))],
        ),
        (
            [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}, CALL],
            [Turn("assistant", (CALLED,))],
        ),
        (
            [{"type": "web_search_call", "id": "w", "status": "completed"}, {"role": "assistant", "content": "a"}],
            [
                Turn(
                    "assistant",
                    (Other("web_search_call", {"type": "web_search_call", "id": "w", "status": "completed"}), Text("a")),
                )
            ],
        ),
        ([USER, {"type": "web_search_call"}, {"type": "reasoning"}, USER], [SAID, SAID]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], [Turn("assistant", (Text("no", is_refusal=True),))]),
    ],
)  # fmt: skip
def test_items_become_turns(items, expected):
    """The neighbouring items of the assistant are one turn; what stands there alone and says
    nothing to other models has none.
    """
    assert read(input=items).turns == tuple(expected)


@each_row(
    ("fields", "expected"),
    [
        (
            {"type": "input_image", "image_url": "data:,x", "detail": "low"},
            Media("image", "data:,x", detail="low"),
        ),
        ({"type": "input_image", "file_id": "f"}, Media("image", file_id="f")),
        (
            {"type": "input_file", "file_data": "data:text/plain,x", "filename": "a.txt"},
            Media("document", "data:text/plain,x", name="a.txt"),
        ),
        (
            {"type": "input_file", "file_data": "eA=="},
            Media("document", "data:application/pdf;base64,eA=="),
        ),
        (
            {"type": "input_file", "file_url": "https://a.example/b.pdf"},
            Media("document", "https://a.example/b.pdf"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}},
            Media("audio", "data:audio/wav;base64,eA=="),
        ),
    ],
)
def test_media_are_read(fields, expected):
    """Images, files and sounds are read as they are said: in the request, at a URL, or stored."""
    assert read(**part(**fields)).turns[0].parts == (expected,)


def test_instructions_come_first():
    """Instructions are the system's first turn."""
    turns = read(instructions="Be brief.", input=[{"role": "system", "content": "x"}]).turns
    assert [turn.text for turn in turns] == ["Be brief.", "x"]


def test_tools_of_all_types():
    """Functions, texts (with their grammar in words), those of a namespace, and the provider's own,
    in the order of the request, those of the input last.
    """
    more = {"type": "additional_tools", "role": "developer", "tools": [{**PATCH, "name": "more"}]}
    tools = read(
        tools=[ADD, {**PATCH, "format": GRAMMAR}, AGENTS, SEARCH], input=[more, USER]
    ).tools
    assert [(tool.kind, tool.flat_name) for tool in tools] == [
        ("function", "add"),
        ("text", "patch"),
        ("function", "agents__wait"),
        ("text", "agents__patch"),
        ("provider", "web_search"),
        ("text", "more"),
    ]
    assert (tools[0].schema, tools[0].strict) == (SCHEMA, True)
    assert tools[1].description == (
        "Change files.\n\nThe input must follow this lark grammar:\nstart: /a+/"
    )
    assert tools[1].schema == TEXT_TOOL_SCHEMA
    assert (tools[3].group, tools[3].name) == ("agents", "patch")
    assert tools[3].description == "Other agents.\n\nChange files."
    assert tools[4].raw == SEARCH


def test_a_search_for_tools_that_the_client_runs():
    """Models call it as a function. What it found can be called, and counts once."""
    search = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
    call = {"type": "tool_search_call", "call_id": "s", "arguments": {"query": "x"}}
    found = {"type": "tool_search_output", "call_id": "s", "tools": [AGENTS, ADD]}
    request = read(
        tools=[ADD, search, {"type": "tool_search"}],
        input=[USER, call, found, {**call, "call_id": "t"}, {**found, "call_id": "t"}],
    )
    assert [(tool.kind, tool.flat_name) for tool in request.tools] == [
        ("function", "add"),
        ("function", "tool_search"),
        ("provider", "tool_search"),
        ("function", "agents__wait"),
        ("text", "agents__patch"),
    ]
    assert request.turns[1:3] == (
        Turn("assistant", (Call("s", "tool_search", '{"query":"x"}'),)),
        Turn("tool", (Text("Found these tools: agents__wait, agents__patch, add"),), "s"),
    )


def test_a_search_that_the_provider_ran_says_nothing():
    """Without an ID, a search and what it found are not of the client; its tools can be called."""
    found = {"type": "tool_search_output", "tools": [AGENTS]}
    request = read(input=[USER, {"type": "tool_search_call"}, found])
    assert (request.turns, len(request.tools)) == ((SAID,), 2)


def test_the_last_configuration_counts():
    """An item of the input may change the effort and the form of the answer."""
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    request = read(
        input=[USER, update, {"type": "configuration_update", "text": {"format": form}}],
        reasoning={"effort": "low"},
        text={"format": {"type": "json_object"}, "verbosity": "low"},
    )
    assert request.parameters == {"effort": "high", "verbosity": "low"}
    assert (request.turns, request.schema) == ((SAID,), AnswerSchema(SCHEMA, "n"))


@each_row(
    ("choice", "names", "expected"),
    [
        (None, 5, None),
        ("auto", 5, ToolChoice("auto")),
        ("none", 5, ToolChoice("none")),
        ("required", 5, ToolChoice("required")),
        ({"type": "function", "name": "add"}, 5, ToolChoice("tool", "add")),
        ({"type": "function", "name": "wait"}, 5, ToolChoice("tool", "agents__wait")),
        ({"type": "custom", "name": "agents__patch"}, 5, ToolChoice("tool", "agents__patch")),
        (named({"type": "function", "name": "add"}, SEARCH), 2, ToolChoice("required")),
        ({**named(SEARCH), "mode": "auto"}, 1, None),
    ],
)
def test_a_choice_of_tools(choice, names, expected):
    """A choice names a tool as the client or as models call it; "allowed_tools" leaves the others
    out.
    """
    request = read(tools=TOOLS, tool_choice=choice)
    assert (len(request.tools), request.tool_choice) == (names, expected)


@each_row(
    ("fields", "hints"),
    [
        ({"client_metadata": {"session": "x"}, "metadata": {"a": 1}}, {"client_metadata", "metadata"}),
        ({"include": ["reasoning.encrypted_content"], "max_tool_calls": 3}, {"include", "max_tool_calls"}),
        ({"reasoning": {"summary": "auto", "context": "all_turns"}}, {"reasoning.summary", "reasoning.context"}),
        ({"stream_options": {"include_obfuscation": True}}, {"stream_options.include_obfuscation"}),
        ({"context_management": [{}], "prompt_cache_options": {"x": 1}}, {"context_management", "prompt_cache_options"}),
        ({"image": {}, "access_programs": {}, "image_size": 3}, {"image", "access_programs", "image_size"}),
        ({"text": {"form": {}}, "reasoning": {"depth": 3}, "top_k": 3}, {"text.form", "reasoning.depth", "top_k"}),
    ],
)  # fmt: skip
def test_a_hint_is_named_and_no_error(fields, hints):
    """What changes no answer is left out by its name, whatever its value; so is an unknown
    field.
    """
    request = read(**fields)
    assert (set(request.hints), request.parameters) == (hints, {})


@each_row(
    ("param", "fields"),
    [
        ("model", {"model": " "}),
        ("model", {"model": "m" * 257}),
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input[0]", {"input": ["hi"]}),
        ("input[0].role", {"input": [{"role": "tool", "content": "x"}]}),
        ("input[0].role", {"input": [{"content": "x"}]}),
        ("input[0].type", {"input": [{"type": ["message"]}]}),
        ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("input[0].type", {"input": [{"id": "x"}]}),
        ("input[0].type", {"input": [{"type": "compaction", "encrypted_content": "x"}]}),
        ("input[1].type", {"input": [USER, {"type": "compaction_trigger"}]}),
        ("input[0].tools[0].type", {"input": [{"type": "tool_search_output", "tools": [{}]}]}),
        ("input[0].content", {"input": [{"role": "user", "content": []}]}),
        ("input[0].content[0].type", part(type="input_video")),
        ("input[0].content[0].type", part(text="x")),
        ("input[0].content[0].text", part(type="input_text", text=3)),
        ("input[0].content[0].text", part(type="text")),
        ("input[0].content[0]", part(type="input_image")),
        ("input[0].content[0]", part(type="input_file", filename="a.pdf")),
        ("input[0].content[0].image_url", part(type="input_image", image_url="file:///etc/passwd")),
        ("input[0].content[0].file_url", part(type="input_file", file_url="file:///etc/passwd")),
        ("input[0].content[0].input_audio", part(type="input_audio")),
        ("input[0].name", {"input": [{**CALL, "name": ""}]}),
        ("input[0].arguments", {"input": [{**CALL, "arguments": {}}]}),
        ("input[0].call_id", {"input": [{"type": "function_call_output", "output": "x"}]}),
        ("input[0].call_id", {"input": [{"type": "shell_call", "action": {}}]}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("conversation", {"conversation": "conv_1"}),
        ("background", {"background": True}),
        ("background_options", {"background_options": {}}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("truncation", {"truncation": "auto"}),
        ("moderation", {"moderation": {"model": "m"}}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("generate", {"generate": False}),
        ("multi_agent", {"multi_agent": {"enabled": True}}),
        ("include", {"include": ["message.output_text.logprobs"]}),
        ("temperature", {"temperature": True}),
        ("temperature", {"temperature": 3}),
        ("max_output_tokens", {"max_output_tokens": 1.5}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("store", {"store": 1}),
        ("tools[0].type", {"tools": [{"name": "add"}]}),
        ("tools[0].name", {"tools": [{"type": "function", "function": {"name": "add"}}]}),
        ("tools[0].tools[0].type", {"tools": [{**AGENTS, "tools": [AGENTS]}]}),
        ("tools", {"tools": [ADD, ADD]}),
        ("tools", {"tools": [AGENTS, {**ADD, "name": "agents__wait"}]}),
        ("tools", {"tools": [{**ADD, "name": f"f{n}"} for n in range(513)]}),
        ("tool_choice", {"tool_choice": "sometimes"}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [SEARCH], "tool_choice": "required"}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "web_search"}}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "mcp", "server_label": "x"}}),
        ("tool_choice.tools[0]", {"tools": TOOLS, "tool_choice": named({"type": "custom"})}),
        ("text.format.type", {"text": {"format": {"type": "grammar"}}}),
        ("text.format.name", {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("redraft.judge", {"redraft": {"judge": "x"}}),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(param, fields):
    """What is wrong, refers to what is not stored, or changes the answer and only OpenAI has, is an
    error that names the field.
    """
    with pytest.raises(GatewayError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "invalid_request",
        param,
    )
    assert caught.value.message.startswith((param, "unknown key in redraft"))


def test_a_refusal_says_which_path_takes_the_field():
    """Who needs what is stored at OpenAI learns where to send it."""
    with pytest.raises(GatewayError, match="pass/NAME to a model that speaks OpenAI's responses"):
        read(previous_response_id="resp_1")


def test_every_field_of_openai_is_known():
    """A field that a newer version of OpenAI's client sends is decided upon."""
    from openai.types.responses.response_create_params import ResponseCreateParamsBase
    from openai.types.shared_params import Reasoning

    fields = ResponsesRequest.model_fields
    assert {*ResponseCreateParamsBase.__annotations__, "stream"} - {*fields} == set()
    reasoning = fields["reasoning"].annotation.__args__[0].model_fields
    assert {*Reasoning.__annotations__} - {*reasoning} == set()


WHOLE = {
    "model": "refine/fast",
    "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        CALL,
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        RESULT,
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
        {"type": "local_shell_call", "id": "s", "action": {"command": ["ls"]}},
        {"type": "additional_tools", "tools": [{**PATCH, "name": "more"}]},
        {"type": "tool_search_call", "call_id": "t", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "t", "tools": [{**ADD, "name": "found"}]},
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    ],
    "instructions": "Be brief.",
    "tools": TOOLS,
    "tool_choice": named({"type": "function", "name": "add"}),
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "stream_options": {"include_obfuscation": False},
    "max_output_tokens": 5,
    "store": False,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted(ResponsesRequest.model_fields)) | st.text(max_size=8)


@given(st.dictionaries(FIELDS, JSON, max_size=6) | st.tuples(st.integers(0, 200), JSON))
def test_every_body_is_read_or_refused(change):
    """No JSON makes reading fail in another way than with a 400 that can be written."""
    body = changed_at(WHOLE, *change) if isinstance(change, tuple) else WHOLE | change
    try:
        request = read_request(body)
    except GatewayError as error:
        assert error.status == 400
        assert json.dumps(error.message)
    else:
        assert request.turns


def test_many_neighbouring_items_are_one_turn():
    """However many items the assistant has between two turns of others."""
    items = [{"type": "reasoning", "summary": [{"text": "x"}]}] * 20_000 + [CALL]
    (turn,) = read(input=items).turns
    assert len(turn.parts) == 20_001
