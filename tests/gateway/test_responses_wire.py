"""OpenAI's responses: what a request may ask, and what the clients of OpenAI and LangChain read of
the answer.
"""

import json
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel
from redraft.gateway.responses_wire import KNOWN

import vendors
from each_row import each_row
from places import changed_at
from redraft.gateway.exchange import GatewayError, Progress, RequestOptions
from redraft.loop.records import ToolCall

from .wire_app import CREATED, REFINEMENT, RESPONSES, TEXT, TRACE_ID, UNKNOWN, answer, client_of

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": True}
    for name in ("add", "find")
]
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "other"]
        ),
        "role": st.sampled_from(["user", "assistant", "system", "tool"]),
        "content": JSON
        | st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "input_image", "refusal"])},
                optional={"text": JSON},
            )
        ),
        "call_id": JSON,
        "name": JSON,
        "arguments": JSON,
        "output": JSON,
    },
)


def body(**fields):
    return {"model": "refine/fast", "input": "hi", **fields}


def parse(**fields):
    return RESPONSES.parse(body(**fields))


def events_of(stream_bytes):
    """Decode a stream as the client of OpenAI does."""
    read = [
        (sse.event, json.loads(sse.data))
        for sse in vendors.SSEDecoder().iter_bytes(iter([stream_bytes]))
    ]
    assert [name for name, _ in read] == [data["type"] for _, data in read]
    assert [data["sequence_number"] for _, data in read] == list(range(len(read)))
    return [data for _, data in read]


class Number(BaseModel):
    n: int


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"messages": (USER,)}),
        ({"instructions": "be brief"}, {"messages": ({"role": "system", "content": "be brief"}, USER)}),
        ({"input": [USER, {"role": "developer", "content": "x"}]}, {"messages": (USER, {"role": "system", "content": "x"})}),
        (
            {"input": [USER, CALL, {**CALL, "call_id": "c2"}, {"type": "function_call_output", "call_id": "c1", "output": "3"}]},
            {
                "messages": (
                    USER,
                    {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "c2"}]},
                    {"role": "tool", "tool_call_id": "c1", "content": "3"},
                )
            },
        ),
        (
            {"input": [{"type": "reasoning", "summary": []}, {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, CALL]},
            {"messages": ({"role": "assistant", "content": "a", "tool_calls": [CHAT_CALL]},)},
        ),
        (
            {"input": [{"role": role, "content": [{"type": f"{kind}_text", "text": text} for text in "ab"]} for role, kind in (("user", "input"), ("assistant", "output"))]},
            {"messages": ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": "ab"})},
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,x", "detail": "low"}]}]},
            {"messages": ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}}]},)},
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "eA==", "filename": "a.pdf"}]}]},
            {"messages": ({"role": "user", "content": [{"type": "file", "file": {"file_data": "eA==", "filename": "a.pdf"}}]},)},
        ),
        ({"max_output_tokens": 9, "temperature": 0}, {"max_tokens": 9, "temperature": 0}),
        ({"reasoning": {"effort": "low", "summary": None}, "text": {"verbosity": "low"}, "top_k": 3}, {"parameters": {"reasoning_effort": "low", "verbosity": "low", "top_k": 3}}),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}}, {"schema": SCHEMA}),
        ({"text": {"format": {"type": "json_object"}}}, {"schema": {}}),
        ({"tools": TOOLS[:1]}, {"tools": ({"type": "function", "function": {"name": "add", "parameters": SCHEMA, "strict": True}},)}),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "add"}}, {"tool_choice": {"type": "function", "function": {"name": "add"}}}),
        ({"store": False, "include": ["reasoning.encrypted_content"], "background": False}, {"is_stored": False, "parameters": {}}),
        ({"redraft": {"max_iterations": 1}}, {"options": RequestOptions(max_iterations=1)}),
    ],
)  # fmt: skip
def test_a_field_is_honoured(fields, expected):
    """A request stands in the record in the terms of chat completions."""
    request = parse(**fields)
    assert {name: getattr(request, name) for name in expected} == expected


@each_row(
    ("param", "fields"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("input[0]", {"input": ["hi"]}),
        ("input[0].role", {"input": [{"role": "tool", "content": "x"}]}),
        ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("input[0].content", {"input": [{"role": "user", "content": []}]}),
        (
            "input[0].content[0].type",
            {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        ),
        (
            "input[0].content[0].file_id",
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        ),
        (
            "input[0].content[0].file_url",
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_file", "file_url": "http://h"}]}
                ]
            },
        ),
        (
            "input",
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}],
                    }
                ]
            },
        ),
        ("input[0].name", {"input": [{**CALL, "name": ""}]}),
        ("input[0].arguments", {"input": [{**CALL, "arguments": {}}]}),
        ("input[0].call_id", {"input": [{"type": "function_call_output", "output": "x"}]}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("conversation", {"conversation": "conv_1"}),
        ("background", {"background": True}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("truncation", {"truncation": "auto"}),
        ("include[0]", {"include": ["message.output_text.logprobs"]}),
        ("reasoning.summary", {"reasoning": {"summary": "auto"}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "mcp", "server_label": "x"}}),
        ("text.format.type", {"text": {"format": {"type": "grammar"}}}),
        ("text.format.name", {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("text.form", {"text": {"form": {}}}),
        ("max_output_tokens", {"max_output_tokens": 1.5}),
        ("redraft.judge", {"redraft": {"judge": "x"}}),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(param, fields):
    """What is wrong, refers to what is not stored, or only OpenAI has, is an error that names the
    field.
    """
    with pytest.raises(GatewayError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "invalid_request",
        param,
    )


def test_every_field_of_openai_is_known():
    """A field that a newer version of OpenAI's client sends is decided upon, not only passed on."""
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    assert {*ResponseCreateParamsBase.__annotations__, "stream"} - KNOWN == set()


WHOLE = body(
    input=[USER, CALL, {"type": "function_call_output", "call_id": "c1", "output": "5"}, USER],
    instructions="Be brief.",
    tools=TOOLS,
    temperature=0.5,
    text={"format": {"type": "text"}},
)


@given(
    st.dictionaries(st.sampled_from(sorted(KNOWN)) | st.text(max_size=8), JSON, max_size=6),
    st.none() | st.lists(ITEMS, max_size=4) | st.tuples(st.integers(0, 60), JSON),
)
@example({}, (0, "refine/fast"))
def test_every_body_is_read_or_refused(fields, change):
    """No JSON makes reading a request fail in another way than with a 400 that can be written."""
    if isinstance(change, tuple):
        asked = changed_at(WHOLE, *change)
    else:
        asked = fields if change is None else {**body(), **fields, "model": "m", "input": change}
    try:
        request = RESPONSES.parse(asked)
    except GatewayError as error:
        assert json.dumps(asked) != json.dumps(WHOLE)  # (False == 0)
        assert RESPONSES.error_status(error) == 400
        assert (
            json.loads(json.dumps(RESPONSES.error_body(error)))["error"]["message"] == error.message
        )
    else:
        assert request.messages
        assert b"response.completed" in b"".join(
            RESPONSES.stream(request, TRACE_ID, CREATED).finish(answer())
        )


@given(
    st.text(max_size=1500),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([None, "length", "content_filter"]),
)
def test_a_stream_is_read_as_it_was_written(text, calls, events, finish_reason):
    """The deltas make up the text and the arguments, and the last event holds the same response as
    without a stream.
    """
    request = parse(stream=True, redraft={"events": events})
    given_answer = answer(
        text, tuple(ToolCall(f"f{n}", text, f"c{n}") for n in range(calls)), finish_reason
    )
    stream = RESPONSES.stream(request, TRACE_ID, CREATED)
    parts = [
        stream.begin(),
        stream.progress(Progress(text, 1, 0.5, text)),
        stream.keep_alive(),
        *stream.finish(given_answer),
    ]
    read = events_of(b"".join(parts))
    assert read[-1]["response"] == json.loads(
        json.dumps(RESPONSES.answer_body(request, given_answer, CREATED))
    )
    assert read[-1]["type"] == ("response.incomplete" if finish_reason else "response.completed")
    deltas = {"response.output_text.delta": [], "response.function_call_arguments.delta": []}
    for data in read:
        if data["type"] in deltas:
            deltas[data["type"]].append(data["delta"])
    assert ["".join(each) for each in deltas.values()] == [text, text * calls]
    assert [data["kind"] for data in read if data["type"] == "redraft.progress"] == [text] * events


def test_a_response_is_complete():
    """A response has each field that OpenAI's has, repeats what was asked, and fits its type
    strictly.
    """
    request = parse(
        instructions="be brief", tools=TOOLS, tool_choice="auto", metadata={"a": "b"}, top_p=0.5
    )
    whole = RESPONSES.answer_body(request, answer(), CREATED)
    response = vendors.Response.model_validate(whole)
    assert (response.instructions, response.top_p, response.metadata) == (
        "be brief",
        0.5,
        {"a": "b"},
    )
    assert [tool.name for tool in response.tools] == ["add", "find"]
    assert (response.output_text, response.status, response.usage.total_tokens) == (
        TEXT,
        "completed",
        23,
    )
    assert whole["usage"]["redraft"] == whole["redraft"] == REFINEMENT
    assert RESPONSES.answer_body(request, answer(usage=UNKNOWN), CREATED)["usage"] is None


@pytest.mark.parametrize("events", [False, True])
async def test_openai_reads_answers(events):
    """The client of OpenAI reads a text, parsed values and tool calls, streamed and not."""
    async with client_of(RESPONSES) as http:
        client = vendors.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
        )
        more = {
            "model": "refine/fast",
            "input": "hi",
            "extra_body": {"redraft": {"events": events}},
        }
        assert (await client.responses.create(**more)).output_text == TEXT
        assert (await client.responses.parse(**more, text_format=Number)).output_parsed == Number(
            n=5
        )
        read = [event async for event in await client.responses.create(**more, stream=True)]
        assert [event.type for event in read].count("redraft.progress") == events
        async with client.responses.stream(**more, text_format=Number) as stream:
            assert (await stream.get_final_response()).output_parsed == Number(n=5)
        async with client.responses.stream(**more, tools=TOOLS) as stream:
            final = await stream.get_final_response()
        assert [(call.name, call.arguments) for call in final.output] == [
            ("add", '{"a": 1}'),
            ("find", '{"q": "x"}'),
        ]


async def test_output_is_valid_input():
    """An agent sends the items of a response back, with the results of its calls."""
    async with client_of(RESPONSES) as http:
        client = vendors.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
        )
        called = await client.responses.create(model="refine/fast", input="hi", tools=TOOLS)
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
            for call in called.output
        ]
        told = await client.responses.create(
            model="refine/fast", input=[USER, *called.output, *results]
        )
        again = await client.responses.create(model="refine/fast", input=[USER, *told.output, USER])
        assert again.output_text == TEXT


async def test_openai_raises_errors():
    """An error before the answer is one of its status; one in a stream ends the response and is
    raised.
    """
    failure = GatewayError(503, "overloaded", "the queue is full")
    async with client_of(RESPONSES, failure) as http:
        client = vendors.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
        )
        with pytest.raises(vendors.openai.BadRequestError) as caught:
            await client.responses.create(
                model="refine/fast", input="hi", previous_response_id="resp_1"
            )
        assert caught.value.param == "previous_response_id"
        kinds = []
        with pytest.raises(vendors.openai.APIError, match="the queue is full"):
            async for event in await client.responses.create(
                model="refine/fast", input="hi", stream=True
            ):
                kinds.append(event.type)
        assert kinds == ["response.created", "response.in_progress", "response.failed"]
        assert event.response.error.message == "the queue is full"


@pytest.mark.parametrize("events", [False, True])
async def test_langchain_reads_answers(events):
    """LangChain reads texts, tool calls and usage, also beside progress events."""
    async with client_of(RESPONSES) as http:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = vendors.ChatOpenAI(
                model="refine/fast",
                base_url="http://gateway/v1",
                api_key="k",
                http_async_client=http,
                use_responses_api=True,
                extra_body={"redraft": {"events": events}},
            )
            assert (await model.ainvoke("hi")).text == TEXT
            chunks = [chunk async for chunk in model.astream("hi")]
            assert "".join(chunk.text for chunk in chunks) == TEXT
            assert (
                sum(
                    chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata
                )
                == 23
            )
            called = await model.bind_tools(TOOLS).ainvoke("hi")
            assert [call["name"] for call in called.tool_calls] == ["add", "find"]
