"""The `openai` SDK, against a real llama.cpp server and a scripted endpoint, through profiles and
past them.
"""

import json

import pytest
from pydantic import BaseModel

import vendors

from .agents import DRAFT, FINAL, QUESTION, TOOLS, agent_model, run_tool
from .scripted_upstream import tool_call

MODELS = ["refine/fast", "pass/tiny"]
SCRIPTED = ["refine/fast", "pass/scripted"]
HELLO = [{"role": "user", "content": "Say hello."}]


class Verdict(BaseModel):
    """A form that a grammar enforces."""

    is_good: bool


def client(gateway, kind="OpenAI", **settings):
    return getattr(vendors.openai, kind)(
        base_url=gateway.url, api_key="unused", **{"max_retries": 0, **settings}
    )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", MODELS)
def test_a_chat_completion(real_gateway, model):
    """A completion has text, a reason and the usage of the model; one of a profile describes its
    refinement.
    """
    with client(real_gateway) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(
            model=model, messages=HELLO, max_tokens=32
        )
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens > 0
    if model == "refine/fast":
        assert 0 <= float(raw.headers["x-redraft-score"]) <= 1
        assert raw.headers["x-redraft-trace-id"]
        assert answer.usage.model_extra["redraft"]["calls"] >= 1


@pytest.mark.parametrize("model", MODELS)
async def test_streams_end_with_the_usage_when_it_is_asked_for(real_gateway, model):
    """A stream of an asynchronous client has the role, text, one reason and the usage, in that
    order.
    """
    options = {"include_usage": True}
    async with client(real_gateway, "AsyncOpenAI") as sdk:
        stream = await sdk.chat.completions.create(
            model=model, messages=HELLO, stream=True, stream_options=options, max_tokens=32
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert [
        chunk.choices[0].finish_reason
        for chunk in chunks
        if chunk.choices and chunk.choices[0].finish_reason
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("events", [False, True])
def test_progress_does_not_disturb_the_client(real_gateway, events):
    """Comments, and events where they are asked for, do not change the text that the SDK reads."""
    with client(real_gateway) as sdk:
        extra = {"redraft": {"events": events}}
        stream = sdk.chat.completions.create(
            model="refine/fast", messages=HELLO, stream=True, extra_body=extra, max_tokens=32
        )
        chunks = list(stream)
    assert "".join(
        chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices
    ).strip()
    assert sum(bool(chunk.choices and chunk.choices[0].finish_reason) for chunk in chunks) == 1


@pytest.mark.parametrize("model", MODELS)
def test_parse_returns_the_form(real_gateway, model):
    """`parse` with a class of pydantic gets an answer of that form."""
    with client(real_gateway) as sdk:
        answer = sdk.chat.completions.parse(
            model=model, messages=HELLO, response_format=Verdict, max_tokens=512
        )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


@pytest.mark.parametrize("model", SCRIPTED)
def test_the_helper_for_streams_returns_the_whole_answer(scripted, model):
    """`chat.completions.stream` collects the same answer that its events announce."""
    scripted.upstream.reset(lambda body: FINAL)
    with (
        client(scripted.gateway) as sdk,
        sdk.chat.completions.stream(model=model, messages=HELLO) as stream,
    ):
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content == FINAL


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", MODELS)
def test_responses(real_gateway, model):
    """The newer protocol of the SDK returns text, whole and as a stream."""
    with client(real_gateway) as sdk:
        whole = sdk.responses.create(
            model=model, input="Say hello.", max_output_tokens=32, store=False
        )
        events = list(
            sdk.responses.create(model=model, input="Say hello.", max_output_tokens=32, stream=True)
        )
    pieces = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert whole.output_text
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert pieces == events[-1].response.output_text != ""


def test_the_helper_for_responses_returns_the_whole_answer(real_gateway):
    """`responses.stream` and `responses.parse`, which need every event of the protocol, work with a
    profile.

    Past it they do not: llama.cpp leaves out fields that the SDK needs.
    """
    with client(real_gateway) as sdk:
        with sdk.responses.stream(
            model="refine/fast", input="Say hello.", max_output_tokens=32
        ) as stream:
            pieces = "".join(
                event.delta for event in stream if event.type == "response.output_text.delta"
            )
        parsed = sdk.responses.parse(
            model="refine/fast", input="Is it good?", text_format=Verdict, max_output_tokens=512
        )
    assert pieces
    assert isinstance(parsed.output_parsed, Verdict)


def test_models_are_listed_and_found(real_gateway):
    """The profiles and the models behind them are listed, and found by names with a slash."""
    with client(real_gateway) as sdk:
        names = {model.id for model in sdk.models.list()}
        assert {"refine/fast", "pass/tiny"} <= names
        assert sdk.models.retrieve("refine/fast").id == "refine/fast"
        with pytest.raises(vendors.openai.NotFoundError):
            sdk.models.retrieve("refine/unknown")


def tool_loop(sdk, model):
    """Return the calls of an agent written with the SDK alone, and its final text."""
    messages, calls = [{"role": "user", "content": QUESTION}], []
    while True:
        message = (
            sdk.chat.completions.create(model=model, messages=messages, tools=TOOLS)
            .choices[0]
            .message
        )
        if not message.tool_calls:
            return calls, message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            calls.append((call.id, call.function.name, json.loads(call.function.arguments)))
            content = run_tool(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def test_a_tool_loop_differs_only_in_its_final_text(scripted):
    """An agent makes the same calls through a profile as past it; the profile refines only what it
    says at the end.
    """
    scripted.upstream.reset(agent_model)
    with client(scripted.gateway) as sdk:
        refined_calls, refined = tool_loop(sdk, "refine/fast")
        passed_calls, passed = tool_loop(sdk, "pass/scripted")
    assert refined_calls == passed_calls
    assert [name for _, name, _ in passed_calls] == ["weather", "to_fahrenheit"]
    assert (refined, passed) == (FINAL, DRAFT)


@pytest.mark.parametrize("model", SCRIPTED)
def test_a_streamed_tool_call(scripted, model):
    """The pieces of a tool call make up the call of the model."""
    scripted.upstream.reset(lambda body: tool_call("weather", city="Oslo"))
    with client(scripted.gateway) as sdk:
        with sdk.chat.completions.stream(model=model, messages=HELLO, tools=TOOLS) as stream:
            list(stream)
            choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [
        (call.function.name, call.function.arguments) for call in choice.message.tool_calls
    ] == [("weather", '{"city": "Oslo"}')]


def test_responses_with_tools(scripted):
    """A tool loop in the newer protocol reaches the final text."""
    scripted.upstream.reset(agent_model)
    tools = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    items, names = [{"role": "user", "content": QUESTION}], []
    with client(scripted.gateway) as sdk:
        for _ in range(3):
            reply = sdk.responses.create(model="refine/fast", input=items, tools=tools, store=False)
            calls = [item for item in reply.output if item.type == "function_call"]
            items += [item.model_dump(exclude_none=True) for item in calls]
            for call in calls:
                names.append(call.name)
                output = run_tool(call.name, call.arguments)
                items.append(
                    {"type": "function_call_output", "call_id": call.call_id, "output": output}
                )
    assert names == ["weather", "to_fahrenheit"]
    assert reply.output_text == FINAL
