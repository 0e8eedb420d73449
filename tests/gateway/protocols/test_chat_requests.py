"""OpenAI's chat completions: what a request may ask, and what models of this protocol are sent of
requests of any protocol.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from each_row import each_row
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
)
from redraft.gateway.protocols import chat_fields
from redraft.gateway.protocols.chat_messages import (
    messages_for_model,
    read_messages,
    write_messages,
)
from redraft.gateway.protocols.chat_requests import write_parameters, write_tool_choice, write_tools
from redraft.loop.task import Task

from .protocol_app import both_sides

CHAT = both_sides("chat")
USER = {"role": "user", "content": "hi"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ADD, FIND = (
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "find")
)
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
SEARCH = {"type": "web_search"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CUSTOM_CALL = {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "a\n"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(**fields):
    return CHAT.read_request({"model": "refine/fast", "messages": [USER], **fields})


def choice_of(name, kind="function"):
    return {"type": kind, kind: {"name": name}}


def allowed(mode, *tools):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


# ---- read


@each_row(
    ("fields", "expected"),
    [
        ({"temperature": 0.5, "seed": 3}, {"parameters": {"temperature": 0.5, "seed": 3}}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5.0}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        (
            {"top_p": 1, "stop": "a", "top_k": 3, "user": None},
            {"parameters": {"top_p": 1, "stop": ["a"], "top_k": 3}},
        ),
        ({"reasoning_effort": "max"}, {"parameters": {"effort": "max"}}),
        ({"stop": []}, {"parameters": {}}),
        ({"response_format": {"type": "text"}}, {"schema": None}),
        ({"response_format": {"type": "json_object"}}, {"schema": AnswerSchema({})}),
        ({"response_format": JSON_SCHEMA}, {"schema": AnswerSchema(SCHEMA, "n")}),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            {"is_stream": True, "include_usage": True},
        ),
        ({"stream_options": {"include_usage": True}}, {"is_stream": False, "include_usage": False}),
        ({"store": False}, {"is_stored": False}),
        (
            {"n": 1, "logprobs": False, "functions": [], "modalities": ["text"]},
            {"parameters": {}, "hints": ()},
        ),
        (
            {"messages": [{"role": "developer", "content": "x"}, USER]},
            {
                "turns": (
                    Turn("system", (Text("x"),), raw={"role": "developer", "content": "x"}),
                    Turn("user", (Text("hi"),), raw=USER),
                )
            },
        ),
        ({"tool_choice": "none"}, {"tool_choice": None, "tools": ()}),
        (
            {"tools": [ADD, PATCH, SEARCH], "tool_choice": choice_of("patch", "custom")},
            {
                "tools": (
                    Tool("function", "add", schema={"type": "object"}, raw=ADD),
                    Tool(
                        "text",
                        "patch",
                        "Edits.",
                        {
                            "type": "object",
                            "properties": {"input": {"type": "string"}},
                            "required": ["input"],
                            "additionalProperties": False,
                        },
                        raw=PATCH,
                    ),
                    Tool("provider", "web_search", raw=SEARCH),
                ),
                "tool_choice": ToolChoice("tool", "patch", choice_of("patch", "custom")),
            },
        ),
        (
            {"tools": [ADD, FIND], "tool_choice": allowed("required", choice_of("find"))},
            {
                "tools": (Tool("function", "find", schema={"type": "object"}, raw=FIND),),
                "tool_choice": ToolChoice("required", raw=allowed("required", choice_of("find"))),
            },
        ),
        (
            {"redraft": {"target_score": 1, "events": True}},
            {"options": RequestOptions(target_score=1, events=True)},
        ),
        ({"redraft": {"graders": "judge"}}, {"options": RequestOptions(graders=("judge",))}),
        (
            {"redraft": {"requirements": ["words:1-9"], "max_iterations": 2.0}},
            {"options": RequestOptions(requirements=("words:1-9",), max_iterations=2)},
        ),
    ],
)
def test_a_field_is_honoured(fields, expected):
    """What a request asks for stands in the neutral form."""
    request = read(**fields)
    assert {name: getattr(request, name) for name in expected} == expected


@each_row(
    ("message", "parts"),
    [
        ({"role": "system", "content": "a"}, [Text("a")]),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            [Text("a", raw={"type": "text", "text": "a"})],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:a", "detail": "low"}},
                    {"type": "image_url", "image_url": "https://x.example/a.png"},
                    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
                    {"type": "file", "file": {"file_data": "data:b", "filename": "b.pdf"}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                    {"type": "video_url", "video_url": {"url": "https://x.example/a.mp4"}},
                ],
            },
            [
                Media("image", "data:a", detail="low"),
                Media("image", "https://x.example/a.png"),
                Media("audio", "data:audio/wav;base64,aGk="),
                Media("document", "data:b", name="b.pdf"),
                Media("document", file_id="file-1"),
                Other("video_url", {}),
            ],
        ),
        (
            {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
                "refusal": "c",
                "tool_calls": [CALL, CUSTOM_CALL],
                "audio": {"id": "audio-1"},
                "function_call": None,
            },
            [
                Thinking("hm"),
                Text("a"),
                Text("b", is_refusal=True),
                Text("c", is_refusal=True),
                Call("c1", "add", "{}"),
                Call("c2", "patch", '{"input":"a\\n"}'),
                Other("audio", {}),
            ],
        ),
        ({"role": "assistant", "content": None, "tool_calls": []}, []),
        ({"role": "tool", "tool_call_id": "c1", "content": "5"}, [Text("5")]),
    ],
)
def test_messages_are_turns(message, parts):
    """Each kind of part has a place; one that only this protocol knows is kept as it came."""
    turn = read(messages=[message]).turns[0]

    def bare(part):
        return replace(part, raw={} if isinstance(part, Other) else None)

    assert list(map(bare, turn.parts)) == list(map(bare, parts))
    assert turn.raw == message
    assert turn.call_id == message.get("tool_call_id", "")
    given = message["content"]
    if isinstance(given, list):
        raws = [part.raw for part in turn.parts if not isinstance(part, Thinking | Call)]
        assert raws[: len(given)] == given


@each_row(
    ("param", "fields"),
    [
        ("model", {"model": ""}),
        ("model", {"model": None}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "hi"}),
        ("messages[0]", {"messages": ["hi"]}),
        ("messages[0].role", {"messages": [{"role": "function", "content": "x"}]}),
        ("messages[0].role", {"messages": [{"content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
        (
            "messages[0].content[0].text",
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        ),
        (
            "messages[0].content[1].type",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {}]}]},
        ),
        (
            "messages[1].tool_calls[0].function",
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c"}]}]},
        ),
        ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
        (
            "messages[0].function_call",
            {"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f"}}]},
        ),
        (
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
                        ],
                    }
                ]
            },
        ),
        ("temperature", {"temperature": True}),
        ("temperature", {"temperature": "0"}),
        ("temperature", {"temperature": float("nan")}),
        ("seed", {"seed": 1.5}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("max_tokens", {"max_completion_tokens": 5, "max_tokens": 6}),
        ("n", {"n": 2}),
        ("n", {"n": True}),
        ("logprobs", {"logprobs": True}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("audio", {"audio": {"voice": "x"}}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("function_call", {"function_call": {"name": "f"}}),
        ("moderation", {"moderation": {"model": "m"}}),
        ("web_search_options", {"web_search_options": {}}),
        ("stop[0]", {"stop": [""]}),
        ("stop", {"stop": 3}),
        ("stream", {"stream": "yes"}),
        ("tools[0].custom.name", {"tools": [{"type": "custom", "custom": {}}]}),
        ("tools[0].function", {"tools": [{"name": "add"}]}),
        ("tools", {"tools": [ADD, ADD]}),
        ("tools", {"tools": [SEARCH] * 513}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [ADD], "tool_choice": "sometimes"}),
        ("tool_choice", {"tools": [ADD], "tool_choice": choice_of("other")}),
        ("tool_choice", {"tools": [ADD], "tool_choice": allowed("required", choice_of("x"))}),
        ("response_format.type", {"response_format": {"type": "grammar"}}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        (
            "response_format.json_schema.name",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        ),
        (
            "response_format.json_schema.schema",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "wrong"}},
                }
            },
        ),
        ("redraft", {"redraft": "fast"}),
        ("redraft.target", {"redraft": {"target": 1}}),
        ("redraft.target_score", {"redraft": {"target_score": 2}}),
        ("redraft.target_score", {"redraft": {"target_score": float("nan")}}),
        ("redraft.max_iterations", {"redraft": {"max_iterations": True}}),
        ("redraft.graders", {"redraft": {"graders": []}}),
        ("redraft.graders", {"redraft": {"graders": ["a", "a"]}}),
        ("redraft.rubric", {"redraft": {"rubric": " "}}),
        ("redraft.requirements", {"redraft": {"requirements": ["json_schema:/etc/passwd"]}}),
        ("redraft.requirements", {"redraft": {"requirements": ["wrds:1"]}}),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(param, fields):
    """What is wrong or cannot be honoured is an error that names the field, before anything is
    done.
    """
    with pytest.raises(GatewayError) as caught:
        read(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "invalid_request",
        param,
    )
    assert param.rpartition(".")[2].partition("[")[0] in caught.value.message


@each_row(
    ("hint", "fields"),
    [
        ("metadata", {"metadata": {"team": "a"}}),
        ("metadata", {"metadata": {"a": 1}}),
        ("metadata", {"metadata": "a"}),
        ("prompt_cache_options", {"prompt_cache_options": {"mode": "explicit"}}),
        ("context_management", {"context_management": {"edits": []}}),
        ("client_metadata", {"client_metadata": {"path": "/home/ann"}}),
        ("thinking", {"thinking": {"type": "adaptive"}}),
        ("min_p", {"min_p": 0.1}),
        ("stream_options.include_obfuscation", {"stream_options": {"include_obfuscation": True}}),
        (
            "response_format.json_schema.examples",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "examples": [1]},
                }
            },
        ),
    ],
)
def test_a_hint_is_no_error(hint, fields):
    """A field that changes no answer's meaning is named, whatever its value is."""
    assert read(**fields).hints == (hint,)


def test_refused_fields_say_what_to_do():
    """The message for a field that a refinement cannot have says which path takes it."""
    with pytest.raises(GatewayError, match="one answer is chosen.*pass/NAME"):
        read(n=2)


def test_deep_bodies_are_refused():
    """The depth of a request is bounded, wherever it is deep."""
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(GatewayError, match="deep"):
        read(other=deep)


def test_an_unknown_option_gets_a_suggestion():
    """A slip in the field `redraft` is answered with the nearest name."""
    with pytest.raises(GatewayError, match="did you mean 'target_score'"):
        read(redraft={"target_scor": 1})


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | JSON},
        optional={
            "content": st.text(max_size=5)
            | st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["text", "image_url", "file", "refusal", "x"]) | JSON},
                    optional={"text": st.text(max_size=3) | JSON, "image_url": JSON, "file": JSON},
                ),
                max_size=2,
            )
            | JSON,
            "tool_calls": st.lists(st.just(CALL) | st.just(CUSTOM_CALL) | JSON, max_size=2) | JSON,
            "tool_call_id": st.text(max_size=3) | JSON,
        },
    ),
    max_size=2,
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(chat_fields.ChatBody.model_fields)) | st.text(max_size=8),
        JSON
        | MESSAGES
        | st.lists(st.sampled_from([ADD, PATCH, SEARCH]) | JSON, max_size=3)
        | st.sampled_from([JSON_SCHEMA, choice_of("add"), "required", SEARCH, {"min_p": 1}]),
        max_size=6,
    ),
    st.booleans(),
)
def test_every_body_is_read_or_refused(fields, has_messages):
    """No JSON makes reading a request, or writing it for a model, fail in another way than with a
    400 that can be written.
    """
    asked = {"model": "refine/fast", "messages": [USER], **fields} if has_messages else fields
    try:
        request = CHAT.read_request(asked)
        assert len(write_messages(request)) == len(asked["messages"])
        parameters, _ = write_parameters(request)
        Task(write_messages(request), tools=write_tools(request))
        write_tool_choice(request)
        CHAT.write_request(replace(request, protocol="responses"), "m")
    except GatewayError as error:
        assert CHAT.error_status(error) == 400
        assert json.loads(json.dumps(CHAT.error_body(error)))["error"]["message"] == error.message
    else:
        assert request.model == asked["model"]
        assert not {"metadata", "store", "redraft"} & set(parameters)


def fields_of(typed):
    return set(typed.__annotations__)


@pytest.mark.parametrize(
    ("model", "module", "names"),
    [
        ("ChatBody", "completion_create_params", ["CompletionCreateParamsStreaming"]),
        ("TextPart", "chat_completion_content_part_text_param", None),
        ("RefusalPart", "chat_completion_content_part_refusal_param", None),
        ("ImagePart", "chat_completion_content_part_image_param", None),
        ("ImageUrl", "chat_completion_content_part_image_param", ["ImageURL"]),
        ("AudioPart", "chat_completion_content_part_input_audio_param", None),
        ("InputAudio", "chat_completion_content_part_input_audio_param", ["InputAudio"]),
        ("FilePart", "chat_completion_content_part_param", ["File"]),
        ("FileContent", "chat_completion_content_part_param", ["FileFile"]),
        ("SystemMessage", "chat_completion_developer_message_param", None),
        ("UserMessage", "chat_completion_user_message_param", None),
        ("AssistantMessage", "chat_completion_assistant_message_param", None),
        ("ToolMessage", "chat_completion_tool_message_param", None),
        ("CustomCall", "chat_completion_message_custom_tool_call_param", None),
        ("CustomDefinition", "chat_completion_custom_tool_param", ["Custom"]),
        ("AllowedTools", "chat_completion_allowed_tools_param", None),
        ("StreamOptions", "chat_completion_stream_options_param", None),
    ],
)
def test_every_field_of_openai_is_known(model, module, names):
    """A field that a newer version of OpenAI's client sends is decided upon."""
    from importlib import import_module

    params = import_module(f"openai.types.chat.{module}")
    name = (names or [each for each in params.__all__ if each.startswith("ChatCompletion")])[0]
    sdk = TypeAdapter(getattr(params, name)).core_schema
    while "schema" in sdk:
        sdk = sdk["schema"]
    wire = getattr(chat_fields, model).model_fields
    assert set(sdk["fields"]) <= {field.alias or name for name, field in wire.items()}


# ---- written for models


def request_of(protocol="messages", turns=(Turn("user", (Text("hi"),)),), **fields):
    """A request that came in another protocol."""
    return Request(protocol, "pass/m", {"model": "pass/m"}, tuple(turns), **fields)


def test_the_same_protocol_stays_as_it_is():
    """A client and a model of one protocol share every field, but for the name of the model."""
    body = {"model": "pass/m", "messages": [USER], "min_p": 0.1, "metadata": {"a": "b"}}
    request = CHAT.read_request({**body, "redraft": {"events": True}})
    written = CHAT.write_request(request, "tiny")
    assert written.body == body | {"model": "tiny"}
    assert written.ignored == ()


@each_row(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        (
            {"parameters": {"temperature": 1, "seed": 2, "stop": ["a"], "top_k": 3}},
            {"temperature": 1, "seed": 2, "stop": ["a"], "top_k": 3},
        ),
        ({"parameters": {"effort": "max"}}, {"reasoning_effort": "max"}),
        ({"thinking": ThinkingRequest("enabled", 1024)}, {"reasoning_effort": "low"}),
        ({"thinking": ThinkingRequest("enabled", 10_000)}, {"reasoning_effort": "medium"}),
        ({"thinking": ThinkingRequest("enabled", 32_000)}, {"reasoning_effort": "high"}),
        (
            {"thinking": ThinkingRequest("enabled", 32_000), "parameters": {"effort": "low"}},
            {"reasoning_effort": "low"},
        ),
        ({"thinking": ThinkingRequest("adaptive")}, {}),
        ({"thinking": ThinkingRequest("disabled")}, {}),
        ({"schema": AnswerSchema({})}, {"response_format": {"type": "json_object"}}),
        (
            {"schema": AnswerSchema(SCHEMA)},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (
            {"schema": AnswerSchema({"type": "object"}, "n", "A number.")},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "n",
                        "schema": {"type": "object"},
                        "strict": False,
                        "description": "A number.",
                    },
                }
            },
        ),
        ({"is_stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        (
            {
                "tools": (
                    Tool("function", "find", "Finds.", SCHEMA, strict=True, group="web"),
                    Tool("text", "patch"),
                    Tool("provider", "web_search"),
                ),
                "tool_choice": ToolChoice("tool", "web__find"),
                "parameters": {"parallel_tool_calls": False},
            },
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "web__find",
                            "description": "Finds.",
                            "parameters": SCHEMA,
                            "strict": True,
                        },
                    },
                    {
                        "type": "function",
                        "function": {
                            "name": "patch",
                            "parameters": {
                                "type": "object",
                                "properties": {"input": {"type": "string"}},
                                "required": ["input"],
                                "additionalProperties": False,
                            },
                        },
                    },
                ],
                "tool_choice": {"type": "function", "function": {"name": "web__find"}},
                "parallel_tool_calls": False,
            },
        ),
        (
            {
                "tools": (Tool("provider", "web_search"),),
                "tool_choice": ToolChoice("auto"),
                "parameters": {"parallel_tool_calls": False},
            },
            {},
        ),
    ],
)
def test_a_request_of_another_protocol_is_written(fields, expected):
    """What this protocol can say is said in its own words."""
    written = CHAT.write_request(request_of(**fields), "tiny")
    assert written.body == {"model": "tiny", "messages": [USER], **expected}


@each_row(
    ("request_", "ignored"),
    [
        (request_of(hints=("metadata", "context_management")), ("metadata", "context_management")),
        (request_of(tools=(Tool("provider", "web_search"),)), ("tools[0] (web_search)",)),
        (
            request_of(turns=[Turn("assistant", (Text("a"), Other("server_tool_use", {})))]),
            ("messages (server_tool_use)",),
        ),
    ],
)
def test_what_is_left_out_is_named(request_, ignored):
    """Hints, and what only a provider runs, go to no model of this protocol; the client is told."""
    written = CHAT.write_request(request_, "tiny")
    assert written.ignored == ignored
    assert set(written.body) == {"model", "messages"}


@each_row(
    ("param", "request_"),
    [
        (
            "tool_choice",
            request_of(
                tools=(Tool("provider", "web_search"), Tool("function", "f")),
                tool_choice=ToolChoice("tool", "web_search"),
            ),
        ),
        (
            "tool_choice",
            request_of(tools=(Tool("provider", "web_search"),), tool_choice=ToolChoice("required")),
        ),
        ("messages", request_of(turns=[Turn("user", (Other("container_upload", {}),))])),
        ("messages", request_of(turns=[Turn("user", (Media("document", file_id="f"),))])),
        ("input", request_of("responses", [Turn("user", (Media("image", file_id="f"),))])),
        ("messages", request_of(turns=[Turn("user", (Media("document", "https://x/a.pdf"),))])),
        ("messages", request_of(turns=[Turn("user", (Media("audio", "https://x/a.wav"),))])),
    ],
)
def test_what_cannot_be_said_is_refused(param, request_):
    """What changes the answer and has no place in this protocol is a 400 that names the field."""
    with pytest.raises(GatewayError) as caught:
        CHAT.write_request(request_, "tiny")
    assert (caught.value.status, caught.value.param) == (400, param)


@each_row(
    ("turn", "message"),
    [
        (Turn("system", (Text("a"), Text("b"))), {"role": "system", "content": "a\n\nb"}),
        (
            Turn("user", (Text("a"), Media("image", "data:image/png;base64,aGk=", detail="low"))),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {
                        "type": "image_url",
                        "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"},
                    },
                ],
            },
        ),
        (
            Turn("user", (Media("document", "data:application/pdf;base64,aGk="),)),
            {
                "role": "user",
                "content": [
                    {
                        "type": "file",
                        "file": {
                            "filename": "document.pdf",
                            "file_data": "data:application/pdf;base64,aGk=",
                        },
                    }
                ],
            },
        ),
        (
            Turn("user", (Media("audio", "data:audio/mpeg;base64,aGk="),)),
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}}
                ],
            },
        ),
        (
            Turn("assistant", (Thinking("hm", "signed"), Text("a"), Text("b", is_refusal=True))),
            {"role": "assistant", "content": "ab"},
        ),
        (
            Turn("assistant", (Thinking("hm"), Call("c1", "add", "{}"))),
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [CALL],
            },
        ),
        (
            Turn("assistant", (Thinking("hm", "signed"), Text("a"), Call("c1", "add", "{}"))),
            {"role": "assistant", "content": "a", "tool_calls": [CALL]},
        ),
        (
            Turn("tool", (Text("gone"),), call_id="c1", is_error=True),
            {"role": "tool", "tool_call_id": "c1", "content": "Error: gone"},
        ),
        (
            Turn("tool", (Text("Error 5"),), call_id="c1", is_error=True),
            {"role": "tool", "tool_call_id": "c1", "content": "Error 5"},
        ),
        (Turn("tool", (), call_id="c"), {"role": "tool", "tool_call_id": "c", "content": ""}),
    ],
)
def test_turns_are_messages(turn, message):
    """Each turn is one message."""
    assert write_messages(request_of(turns=[turn])) == (message,)


def test_images_of_tools_follow_in_a_message_of_the_user():
    """Models of this protocol take images from users only: those in results of tools come after
    all results, with the user's own words if these follow.
    """
    image = Media("image", "https://x.example/a.png")
    part = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    results = [
        Turn("tool", (Text("seen"), image), call_id="c1"),
        Turn("tool", (Text("5"),), call_id="c2"),
    ]
    moved = [{"type": "text", "text": "From the result of the tool call c1:"}, part]
    words = "seen\n\n(1 of its parts follow in the next message of the user.)"
    tools = [
        {"role": "tool", "tool_call_id": "c1", "content": words},
        {"role": "tool", "tool_call_id": "c2", "content": "5"},
    ]
    own = {"type": "text", "text": "hi"}
    answer = Turn("assistant", (Text("ok"),))
    for rest, expected in (
        ([], [{"role": "user", "content": moved}]),
        ([Turn("user", (Text("hi"),))], [{"role": "user", "content": [*moved, own]}]),
        (
            [answer],
            [{"role": "user", "content": moved}, {"role": "assistant", "content": "ok"}],
        ),
    ):
        request = request_of(turns=[*results, *rest])
        assert list(messages_for_model(request)) == [*tools, *expected]
        assert len(write_messages(request)) == len(request.turns)


def test_messages_of_a_chat_client_stay_as_they_are():
    """A developer is a system to models, and calls of custom tools are calls of functions, as the
    tools are; nothing else changes.
    """
    messages = [
        {"role": "developer", "content": "x", "name": "boss"},
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://x"}}]},
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm", "extra": 1},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {"role": "assistant", "content": "a", "tool_calls": [CUSTOM_CALL]},
    ]
    request = read(messages=messages, tools=[ADD | {"cache_control": {}}, PATCH, SEARCH])
    function = {"name": "patch", "arguments": '{"input":"a\\n"}'}
    expected = [
        messages[0] | {"role": "system"},
        messages[1],
        messages[2] | {"content": None},
        messages[3],
        messages[4] | {"tool_calls": [{"id": "c2", "type": "function", "function": function}]},
    ]
    assert list(write_messages(request)) == list(messages_for_model(request)) == expected
    assert write_tools(request)[0] == ADD | {"cache_control": {}}
    assert [tool["function"]["name"] for tool in write_tools(request)] == ["add", "patch"]
    assert write_parameters(request) == ({}, ("tools[2] (web_search)",))


@each_row(
    ("fields", "parameters"),
    [
        ({"top_p": 1, "stop": "a", "user": None}, {"top_p": 1, "stop": "a"}),
        ({"temperature": 1, "seed": 1, "max_tokens": 5, "store": False, "metadata": {}}, {}),
        ({"min_p": 0.1, "reasoning": {"effort": "low"}}, None),
        ({"user": "ann", "prompt_cache_options": {"mode": "explicit"}}, None),
        ({"reasoning_effort": "low", "logit_bias": {"5": 1}, "parallel_tool_calls": True}, None),
        ({"stop": [], "n": 1, "models": [], "api_base": ""}, {}),
    ],
)
def test_parameters_of_a_chat_client(fields, parameters):
    """A model of this protocol gets the fields as the client wrote them, also those that OpenAI
    does not have; None: all of them.
    """
    assert write_parameters(read(**fields)) == (fields if parameters is None else parameters, ())


@each_row(
    ("param", "fields"),
    [
        ("api_base", {"api_base": "http://elsewhere"}),
        ("models", {"models": ["other"]}),
        ("n_predict", {"n_predict": 10**6}),
        ("best_of", {"best_of": 2}),
        ("extra_body", {"extra_body": {"redraft": {}}}),
        ("body", {f"x{n}": n for n in range(100)}),
    ],
)
def test_parameters_that_are_refused(param, fields):
    """A client chooses no host, model or key, and nothing that defeats a refinement."""
    with pytest.raises(GatewayError) as caught:
        write_parameters(read(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


TEXTS = st.text(max_size=9).map(Text)
URLS = st.sampled_from(["https://x.example/a.png", "data:image/png;base64,aG\r\nk=\n"])
IMAGES = st.builds(Media, st.just("image"), URLS)
CALLS = st.builds(
    Call,
    st.text(max_size=5),
    st.text(min_size=1, max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2).map(json.dumps),
)
TURNS = st.lists(
    st.builds(Turn, st.sampled_from(["system", "user"]), st.tuples(TEXTS))
    | st.builds(Turn, st.just("user"), st.tuples(TEXTS, IMAGES))
    | st.builds(Turn, st.just("assistant"), st.tuples(TEXTS))
    | st.builds(
        lambda thought, text, calls: Turn("assistant", (*thought, *text, *calls)),
        st.sampled_from([(), (Thinking("hm"),)]),
        st.sampled_from([(), (Text("I look."),)]),
        st.lists(CALLS, min_size=1, max_size=2),
    )
    | st.builds(Turn, st.just("tool"), st.tuples(TEXTS), call_id=st.text(max_size=5)),
    min_size=1,
    max_size=5,
)


def without_raw(turn):
    return replace(turn, raw=None, parts=tuple(replace(part, raw=None) for part in turn.parts))


@given(TURNS)
def test_messages_there_and_back(turns):
    """Turns are the same once they were written as messages and read again, and OpenAI's own types
    take the messages.
    """
    from openai.types.chat import ChatCompletionMessageParam

    messages = write_messages(request_of(turns=turns))
    assert list(map(without_raw, read_messages(messages))) == turns
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(list(messages))
