"""Anthropic's messages: what a request may ask, and what its SDK reads of the answer."""

import json

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redraft.gateway.anthropic_wire import MessagesWire
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import vendors
from each_row import each_row
from redraft.gateway.exchange import GatewayError, Progress, RequestOptions
from redraft.loop.records import ToolCall
from redraft.usage import Usage

from .wire_app import CREATED, REFINEMENT, TRACE_ID, UNKNOWN, answer

WIRE = MessagesWire()
USER = {"role": "user", "content": "hi"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
    {"name": "find", "input_schema": {"type": "object"}},
]
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


def body(**fields):
    return {"model": "refine/fast", "max_tokens": 100, "messages": [USER], **fields}


def parse(**fields):
    return WIRE.parse(body(**fields))


def messages_of(*messages, **fields):
    return list(parse(messages=messages, **fields).messages)


def test_a_request_in_full():
    """Every field of a request has its place in the neutral form."""
    request = parse(
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Now."},
        ],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        output_config={"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}},
        thinking={"type": "adaptive"},
        stream=True,
        redraft={"target_score": 0.9, "events": True},
        min_p=0.1,
    )
    assert (request.wire, request.model, request.max_tokens, request.temperature) == (
        "messages",
        "refine/fast",
        100,
        0.5,
    )
    assert request.messages == (
        {"role": "system", "content": "Be brief.\n\nNow."},
        {"role": "user", "content": "hi"},
    )
    assert request.tools[0]["function"] == {
        "name": "add",
        "parameters": SCHEMA,
        "description": "Adds.",
    }
    assert request.tool_choice == {"type": "function", "function": {"name": "add"}}
    assert request.schema == SCHEMA
    assert request.parameters == {
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["END"],
        "user": "u",
        "parallel_tool_calls": False,
        "reasoning_effort": "xhigh",
        "min_p": 0.1,
    }
    assert request.is_stream
    assert request.include_usage
    assert request.options == RequestOptions(target_score=0.9, events=True)


def test_tool_turns():
    """Calls become those of the assistant's message; results become messages of their own, before
    what the user says.
    """
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "5"}, PNG],
    }
    failed = {
        "type": "tool_result",
        "tool_use_id": "t2",
        "content": "no such file",
        "is_error": True,
    }
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    turns = messages_of(
        USER,
        {
            "role": "assistant",
            "content": [thought, {"type": "text", "text": "I add."}, CALL, {**CALL, "id": "t2"}],
        },
        {"role": "user", "content": [result, failed, {"type": "text", "text": "Go on."}]},
        tools=TOOLS,
    )
    assert turns[1] == {
        "role": "assistant",
        "content": "I add.",
        "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "t2"}],
    }
    assert turns[2]["role"] == turns[3]["role"] == "tool"
    assert turns[2]["tool_call_id"] == "t1"
    assert turns[2]["content"].startswith("5\n\n")
    assert turns[3] == {"role": "tool", "tool_call_id": "t2", "content": "Error: no such file"}
    assert turns[4]["content"][1:] == [PNG_PART, {"type": "text", "text": "Go on."}]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (PNG, PNG_PART),
        (
            {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
            {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
        ),
        (
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
            },
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
            },
        ),
    ],
)
def test_images_and_documents(block, part):
    """An image or a document becomes the part of a content."""
    (turn,) = messages_of({"role": "user", "content": [{"type": "text", "text": "See"}, block]})
    assert turn["content"] == [{"type": "text", "text": "See"}, part]


def test_a_document_of_blocks():
    """Its title and its context come first, then its texts and images as they are."""
    source = {
        "type": "content",
        "content": [{"type": "text", "text": "First"}, PNG, {"type": "text", "text": "Last"}],
    }
    block = {"type": "document", "title": "a", "context": "from people", "source": source}
    (turn,) = messages_of({"role": "user", "content": [block]})
    *notes, first, image, last = turn["content"]
    assert (first, image, last) == (
        {"type": "text", "text": "First"},
        PNG_PART,
        {"type": "text", "text": "Last"},
    )
    assert ["a" in notes[0]["text"], "from people" in notes[-1]["text"]] == [True, True]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "find"}, {"type": "function", "function": {"name": "find"}}),
    ],
)
def test_tool_choice(choice, expected):
    """Each form of `tool_choice` has one in OpenAI's protocol."""
    assert parse(tools=TOOLS, tool_choice=choice).tool_choice == expected


REFUSED = [
    ("max_tokens", {"max_tokens": None}),
    ("max_tokens", {"max_tokens": 0}),
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    (
        "messages[0].content[0].type",
        {"messages": [{"role": "user", "content": [{"type": "search_result"}]}]},
    ),
    (
        "messages[0].content[0].type",
        {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]},
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
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                }
            ]
        },
    ),
    ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
    ("thinking.type", {"thinking": {"type": "sometimes"}}),
    ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools[0].input_examples", {"tools": [{**TOOLS[0], "input_examples": [{"n": 1}]}]}),
    ("tools", {"tools": [TOOLS[0], TOOLS[0]]}),
    ("tool_choice.name", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("container", {"container": "c"}),
    ("mcp_servers", {"mcp_servers": [{"type": "url", "url": "https://x.example"}]}),
    (
        "context_management",
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    ),
    ("system[0].type", {"system": [PNG]}),
    ("stop_sequences", {"stop_sequences": [""]}),
    ("metadata.other", {"metadata": {"other": 1}}),
    ("output_config.effort", {"output_config": {"effort": "huge"}}),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema"}}}),
    ("redraft.score", {"redraft": {"score": 1}}),
    ("base_url", {"base_url": "http://evil.example"}),
]


@each_row(("param", "fields"), REFUSED)
def test_refusals(param, fields):
    """What is wrong or cannot be honoured is a 400 that names the field."""
    with pytest.raises(GatewayError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert WIRE.error_body(caught.value)["error"]["type"] == "invalid_request_error"


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
TURNS = st.fixed_dictionaries(
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
            "messages": st.lists(TURNS, max_size=3) | JSON,
        },
        optional=dict.fromkeys(
            (
                "system",
                "tools",
                "tool_choice",
                "thinking",
                "output_config",
                "metadata",
                "stop_sequences",
                "stream",
                "redraft",
            ),
            JSON,
        ),
    )
)
def test_any_request_is_read_or_refused(request_body):
    """Whatever a client sends is read, or refused with a 400 that has a param."""
    try:
        WIRE.parse(request_body)
    except GatewayError as error:
        assert error.status == 400
        assert error.param


# ---- answers


def app_of(given_answer, failure=None):
    """Return a client of a server that gives one answer."""

    def events(request):
        stream = WIRE.stream(request, TRACE_ID, CREATED)
        yield stream.begin()
        yield stream.keep_alive()
        yield stream.progress(Progress("grade", 1, 0.5, "a reason\n\ndata: in two lines"))
        if failure:
            yield stream.fail(failure)
        else:
            yield from stream.finish(given_answer)

    async def post(request):
        asked = WIRE.parse(json.loads(await request.body()))
        if asked.is_stream:
            return StreamingResponse(events(asked), media_type="text/event-stream")
        if failure:
            return JSONResponse(WIRE.error_body(failure), WIRE.error_status(failure))
        return JSONResponse(WIRE.answer_body(asked, given_answer, CREATED))

    app = Starlette(routes=[Route("/v1/messages", post, methods=["POST"])])
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    return vendors.AsyncAnthropic(
        api_key="x", base_url="http://gateway", http_client=transport, max_retries=0
    )


ANSWERS = [
    (answer("A text." * 100), "end_turn", ["text"]),
    (answer("cut", finish_reason="length"), "max_tokens", ["text"]),
    (answer("no", finish_reason="content_filter"), "refusal", ["text"]),
    (
        answer("", (ToolCall("add", '{"a": 1}'), ToolCall("find", "", "own"))),
        "tool_use",
        ["tool_use", "tool_use"],
    ),
    (answer("", usage=UNKNOWN), "end_turn", []),
]


def content_of(block):
    return block.text if block.type == "text" else (block.id, block.name, block.input)


@pytest.mark.parametrize(("given_answer", "stop_reason", "kinds"), ANSWERS)
@pytest.mark.parametrize("events", [True, False])
async def test_the_sdk_reads_the_same_of_a_stream(given_answer, stop_reason, kinds, events):
    """The SDK reads the same message of a stream as of a whole reply, with and without events of
    the refinement.
    """
    client = app_of(given_answer)
    asked = dict(
        model="refine/fast",
        max_tokens=9,
        messages=[USER],
        extra_body={"redraft": {"events": events}},
    )
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == stop_reason
    assert (
        [block.type for block in whole.content]
        == [block.type for block in streamed.content]
        == kinds
    )
    assert [content_of(block) for block in whole.content] == [
        content_of(block) for block in streamed.content
    ]
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (
        given_answer.usage.input_tokens,
        given_answer.usage.output_tokens,
    )
    assert whole.usage.model_extra["redraft"] == REFINEMENT
    if given_answer.usage.input_tokens is not None:
        vendors.Message.model_validate(whole.to_dict(exclude_unset=False), strict=True)
        assert streamed.usage.input_tokens == 20


ERRORS = [
    (400, 400, "invalid_request_error"),
    (401, 401, "authentication_error"),
    (402, 402, "billing_error"),
    (403, 403, "permission_error"),
    (404, 404, "not_found_error"),
    (413, 413, "request_too_large"),
    (422, 422, "invalid_request_error"),
    (429, 429, "rate_limit_error"),
    (500, 500, "api_error"),
    (502, 502, "api_error"),
    (503, 529, "overloaded_error"),
    (504, 504, "timeout_error"),
]


@pytest.mark.parametrize(("status", "expected", "kind"), ERRORS)
async def test_errors(status, expected, kind):
    """An error has Anthropic's status and type, as a reply and in a stream."""
    client = app_of(None, GatewayError(status, "some_code", "It is so."))
    with pytest.raises(vendors.anthropic.APIStatusError, match="It is so") as caught:
        await client.messages.create(model="refine/fast", max_tokens=9, messages=[USER])
    assert caught.value.status_code == expected
    assert caught.value.body["error"]["type"] == kind
    with pytest.raises(vendors.anthropic.APIStatusError, match="It is so"):
        async with client.messages.stream(
            model="refine/fast", max_tokens=9, messages=[USER]
        ) as stream:
            await stream.get_final_message()


def test_arguments_that_are_no_object():
    """A tool call whose arguments are no JSON object, which Anthropic's protocol requires, is an
    error of the model.
    """
    with pytest.raises(GatewayError, match="no JSON object") as caught:
        WIRE.answer_body(parse(), answer("", (ToolCall("add", "[1"),)), CREATED)
    assert caught.value.status == 502


def test_usage_of_the_answer():
    """Clients that know nothing of refinement read the tokens of the answer's own call."""
    reply = WIRE.answer_body(parse(), answer("x", usage=Usage(1, 11, 2)), CREATED)
    assert (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]) == (11, 2)
    assert reply["id"] == f"msg_{TRACE_ID}"
