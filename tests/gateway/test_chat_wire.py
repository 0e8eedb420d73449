"""OpenAI's chat completions: what a request may ask, and what the clients of OpenAI and LangChain
read of the answer.
"""

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from redraft.gateway.chat_wire import KNOWN, PASSED, REFUSED, comment

import vendors
from each_row import each_row
from redraft.gateway.exchange import GatewayError, Progress, RequestOptions

from .wire_app import CHAT, CREATED, REFINEMENT, TEXT, TRACE_ID, UNKNOWN, answer, client_of

USER = {"role": "user", "content": "hi"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "find")
]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def body(**fields):
    return {"model": "refine/fast", "messages": [USER], **fields}


def parse(**fields):
    return CHAT.parse(body(**fields))


def events_of(stream_bytes):
    """Decode a stream as the client of OpenAI does: (name, data as text)."""
    return [(sse.event, sse.data) for sse in vendors.SSEDecoder().iter_bytes(iter([stream_bytes]))]


class Number(BaseModel):
    n: int


@each_row(
    ("fields", "expected"),
    [
        ({"temperature": 0.5, "seed": 3}, {"temperature": 0.5, "seed": 3}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5.0}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        (
            {"top_p": 1, "stop": "a", "top_k": 3, "user": None},
            {"parameters": {"top_p": 1, "stop": "a", "top_k": 3}},
        ),
        ({"stop": []}, {"parameters": {}}),
        ({"response_format": {"type": "text"}}, {"schema": None}),
        ({"response_format": {"type": "json_object"}}, {"schema": {}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA},
                }
            },
            {"schema": SCHEMA},
        ),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            {"is_stream": True, "include_usage": True},
        ),
        ({"store": False}, {"is_stored": False}),
        ({"n": 1, "logprobs": False, "functions": [], "modalities": ["text"]}, {"parameters": {}}),
        ({"metadata": {"team": "a"}}, {"parameters": {}}),
        (
            {"messages": [{"role": "developer", "content": "x"}, USER]},
            {"messages": ({"role": "system", "content": "x"}, USER)},
        ),
        (
            {"tools": TOOLS, "tool_choice": "required"},
            {"tools": tuple(TOOLS), "tool_choice": "required"},
        ),
        ({"tool_choice": "none"}, {"tool_choice": None}),
        (
            {"redraft": {"target_score": 1, "events": True}},
            {"options": RequestOptions(target_score=1, events=True)},
        ),
        ({"redraft": {"graders": "judge"}}, {"options": RequestOptions(graders=("judge",))}),
        (
            {"redraft": {"requirements": ["words:1-9"]}},
            {"options": RequestOptions(requirements=("words:1-9",))},
        ),
    ],
)
def test_a_field_is_honoured(fields, expected):
    """What a request asks for stands in the record, or in what is passed to the model."""
    request = parse(**fields)
    assert {name: getattr(request, name) for name in expected} == expected


@each_row(
    ("param", "fields"),
    [
        ("model", {"model": ""}),
        ("model", {"model": None}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "hi"}),
        ("messages[0]", {"messages": ["hi"]}),
        ("messages[0].role", {"messages": [{"role": "function", "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
        (
            "messages[0].content[0].text",
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        ),
        (
            "messages[0].tool_calls",
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
        ),
        (
            "messages[1].tool_calls[0]",
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c"}]}]},
        ),
        ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
        (
            "messages[0].function_call",
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
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
        ("stop", {"stop": [""]}),
        ("stop", {"stop": 3}),
        ("stream", {"stream": "yes"}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        (
            "stream_options.include_obfuscation",
            {"stream": True, "stream_options": {"include_obfuscation": True}},
        ),
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("tools", {"tools": [TOOLS[0], TOOLS[0]]}),
        ("tool_choice", {"tool_choice": "required"}),
        (
            "tool_choice",
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        ),
        ("response_format.type", {"response_format": {"type": "grammar"}}),
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
        ("metadata", {"metadata": {"a": 1}}),
        ("redraft", {"redraft": "fast"}),
        ("redraft.target", {"redraft": {"target": 1}}),
        ("redraft.target_score", {"redraft": {"target_score": 2}}),
        ("redraft.max_iterations", {"redraft": {"max_iterations": True}}),
        ("redraft.graders", {"redraft": {"graders": []}}),
        ("redraft.rubric", {"redraft": {"rubric": " "}}),
        ("redraft.requirements", {"redraft": {"requirements": ["json_schema:/etc/passwd"]}}),
        ("redraft.requirements", {"redraft": {"requirements": ["wrds:1"]}}),
        ("api_base", {"api_base": "http://elsewhere"}),
        ("n_predict", {"n_predict": 10**6}),
        ("extra_body", {"extra_body": {"redraft": {}}}),
        ("body", {f"x{n}": n for n in range(100)}),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(param, fields):
    """What is wrong or cannot be honoured is an error that names the field, before anything is
    done.
    """
    with pytest.raises(GatewayError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "invalid_request",
        param,
    )
    assert param.rpartition(".")[2].partition("[")[0] in caught.value.message


def test_deep_bodies_are_refused():
    """The depth of a request is bounded, wherever it is deep."""
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(GatewayError, match="deep"):
        parse(other=deep)


def test_an_unknown_option_gets_a_suggestion():
    """A slip in the field `redraft` is answered with the nearest name."""
    with pytest.raises(GatewayError, match="did you mean 'target_score'"):
        parse(redraft={"target_scor": 1})


@given(
    st.dictionaries(
        st.sampled_from(sorted(KNOWN)) | st.text(max_size=8),
        JSON
        | st.just([USER])
        | st.just(TOOLS)
        | st.just({"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
        max_size=6,
    ),
    st.booleans(),
)
def test_every_body_is_read_or_refused(fields, has_messages):
    """No JSON makes reading a request fail in another way than with a 400 that can be written."""
    asked = {**body(), **fields} if has_messages else fields
    try:
        request = CHAT.parse(asked)
    except GatewayError as error:
        assert CHAT.error_status(error) == 400
        assert json.loads(json.dumps(CHAT.error_body(error)))["error"]["message"] == error.message
    else:
        assert request.messages
        assert request.model == asked["model"]


def test_every_field_of_openai_is_known():
    """A field that a newer version of OpenAI's client sends is decided upon, not only passed on."""
    from openai.types.chat import completion_create_params as params

    fields = {*params.CompletionCreateParamsBase.__annotations__, "stream"}
    assert fields - KNOWN == set()
    assert not set(PASSED) & set(REFUSED)


@given(st.text(max_size=1500), st.integers(0, 2), st.booleans(), st.booleans())
def test_a_stream_is_read_as_it_was_written(text, calls, include_usage, events):
    """The client's own decoder finds the text, the calls and the usage again, whatever characters
    they hold.
    """
    from redraft.loop.records import ToolCall

    fields = {
        "stream": True,
        "redraft": {"events": events},
        "stream_options": {"include_usage": include_usage},
    }
    stream = CHAT.stream(parse(**fields), TRACE_ID, CREATED)
    made = tuple(ToolCall(f"f{n}", text, f"c{n}") for n in range(calls))
    parts = [
        stream.begin(),
        stream.progress(Progress(text, 1, 0.5, text)),
        stream.keep_alive(),
        *stream.finish(answer(text, made)),
    ]
    *read, (_, last) = events_of(b"".join(parts))
    assert last == "[DONE]"
    chunks = [json.loads(data) for _, data in read]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for n in range(calls):
        assert (
            "".join(call["function"]["arguments"] for call in pieces if call["index"] == n) == text
        )
    assert [chunk["usage"]["total_tokens"] for chunk in chunks if chunk.get("usage")] == [
        23
    ] * include_usage
    reasons = [
        chunk["redraft"]["reason"]
        for name, chunk in zip([n for n, _ in read], chunks, strict=True)
        if name
    ]
    assert reasons == ([text or None] if events else [])


@given(st.text())
def test_a_comment_is_one_line(text):
    """No character of a comment ends it."""
    assert events_of(comment(text) + b'data: {"a": 1}\n\n') == [(None, '{"a": 1}')]
    assert comment(text).decode().splitlines(keepends=True)[1:] == ["\n"]


@pytest.mark.parametrize("events", [False, True])
async def test_openai_reads_answers(events):
    """The client of OpenAI reads a text, parsed values, tool calls and usage, streamed and not."""
    async with client_of(CHAT) as http:
        client = vendors.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
        )
        more = {
            "model": "refine/fast",
            "messages": [USER],
            "extra_body": {"redraft": {"events": events}},
        }
        whole = await client.chat.completions.create(**more)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (TEXT, "stop")
        assert whole.usage.redraft == whole.redraft == REFINEMENT
        parsed = await client.chat.completions.parse(**more, response_format=Number)
        assert parsed.choices[0].message.parsed == Number(n=5)
        chunks = [
            c
            async for c in await client.chat.completions.create(
                **more, stream=True, stream_options={"include_usage": True}
            )
        ]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
        assert chunks[-1].usage.total_tokens == 23
        assert [c.redraft["score"] for c in chunks if not c.choices and not c.usage] == [
            0.5
        ] * events
        async with client.chat.completions.stream(**more, tools=TOOLS) as stream:
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
            ("call_t1_0", "add", '{"a": 1}'),
            ("own", "find", '{"q": "x"}'),
        ]


async def test_openai_raises_errors():
    """An error before the answer is one of its status; one in a stream is raised while it is
    read.
    """
    failure = GatewayError(502, "upstream_error", "the model is out of service")
    async with client_of(CHAT, failure) as http:
        client = vendors.AsyncOpenAI(
            base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0
        )
        with pytest.raises(vendors.openai.BadRequestError, match="pass/NAME") as caught:
            await client.chat.completions.create(model="refine/fast", messages=[USER], n=2)
        assert (caught.value.param, caught.value.code) == ("n", "invalid_request")
        with pytest.raises(vendors.openai.APIError, match="out of service") as failed:
            _ = [
                c
                async for c in await client.chat.completions.create(
                    model="refine/fast", messages=[USER], stream=True
                )
            ]
        assert failed.value.code == "upstream_error"


@pytest.mark.parametrize("events", [False, True])
async def test_langchain_reads_answers(events):
    """LangChain reads texts, tool calls and usage, also beside progress events."""
    async with client_of(CHAT) as http:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = vendors.ChatOpenAI(
                model="refine/fast",
                base_url="http://gateway/v1",
                api_key="k",
                http_async_client=http,
                stream_usage=True,
                extra_body={"redraft": {"events": events}},
            )
            assert (await model.ainvoke("hi")).content == TEXT
            chunks = [chunk async for chunk in model.astream("hi")]
            assert "".join(chunk.content for chunk in chunks) == TEXT
            assert (
                sum(
                    chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata
                )
                == 23
            )
            called = await model.bind_tools(TOOLS).ainvoke("hi")
            assert [call["name"] for call in called.tool_calls] == ["add", "find"]


def test_unknown_usage_is_no_number():
    """Unknown tokens are left out; what the refinement consumed stands beside the answer."""
    request = parse(stream=True, stream_options={"include_usage": True})
    whole = CHAT.answer_body(request, answer(usage=UNKNOWN), CREATED)
    assert whole["usage"] is None
    assert whole["redraft"] == REFINEMENT
    stream = b"".join(CHAT.stream(request, TRACE_ID, CREATED).finish(answer(usage=UNKNOWN)))
    chunks = [json.loads(data) for _, data in events_of(stream)[:-1]]
    assert not any(chunk["usage"] for chunk in chunks)
    assert chunks[-1]["redraft"] == REFINEMENT


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "insufficient_quota"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (503, "server_error"),
    ],
)
def test_errors_have_openais_form(status, kind):
    """The status stays, and the type is OpenAI's."""
    error = GatewayError(status, "a_code", "a message", param="x")
    assert CHAT.error_status(error) == status
    assert CHAT.error_body(error) == {
        "error": {"message": "a message", "type": kind, "param": "x", "code": "a_code"}
    }
