"""`langchain-openai` and `pydantic-ai`: an agent with two tools is the same through a profile, but
for its final text.
"""

import pytest
from pydantic import BaseModel

import vendors

from .agents import DRAFT, FINAL, QUESTION, agent_model, to_fahrenheit, weather

MODELS = ["refine/fast", "pass/tiny"]
LIMIT = {"max_tokens": 32}


class Verdict(BaseModel):
    """A form that a grammar enforces."""

    is_good: bool


@pytest.fixture
async def http():
    """The connections of a test: LangChain and pydantic-ai would share theirs with other event
    loops.
    """
    async with vendors.openai.DefaultAsyncHttpxClient() as client:
        yield client


def chat_model(gateway, model, **settings):
    return vendors.ChatOpenAI(
        model=model, base_url=gateway.url, api_key="unused", max_retries=0, **settings
    )


def agent_for(gateway, model, http, **settings):
    sdk = vendors.openai.AsyncOpenAI(
        base_url=gateway.url, api_key="unused", http_client=http, max_retries=0
    )
    return vendors.Agent(
        vendors.OpenAIChatModel(model, provider=vendors.OpenAIProvider(openai_client=sdk)),
        **settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
async def test_langchain_invokes_and_streams(real_gateway, model, http):
    """A model of LangChain answers whole, as a stream, and in a form."""
    chat = chat_model(real_gateway, model, **LIMIT, stream_usage=True, http_async_client=http)
    whole = await chat.ainvoke("Say hello.")
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    pieces = [piece async for piece in chat.astream("Say hello.")]
    assert "".join(piece.content for piece in pieces)
    assert any(piece.usage_metadata for piece in pieces)
    form = chat_model(
        real_gateway, model, max_tokens=512, http_async_client=http
    ).with_structured_output(Verdict, method="json_schema")
    assert isinstance(await form.ainvoke("Is it good?"), Verdict)


def langchain_loop(gateway, model, http):
    tools = {each.__name__: vendors.tool(each) for each in (weather, to_fahrenheit)}
    chat = chat_model(gateway, model, http_client=http).bind_tools([*tools.values()])
    messages, calls = [vendors.HumanMessage(QUESTION)], []
    while True:
        reply = chat.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return calls, reply.content
        for call in reply.tool_calls:
            calls.append((call["name"], call["args"]))
            messages.append(
                vendors.ToolMessage(
                    tools[call["name"]].invoke(call["args"]), tool_call_id=call["id"]
                )
            )


def test_an_agent_of_langchain(scripted):
    """The same calls are made, and the final text is refined."""
    scripted.upstream.reset(agent_model)
    with vendors.openai.DefaultHttpxClient() as http:
        refined_calls, refined = langchain_loop(scripted.gateway, "refine/fast", http)
        passed_calls, passed = langchain_loop(scripted.gateway, "pass/scripted", http)
    assert (
        refined_calls
        == passed_calls
        == [("weather", {"city": "Oslo"}), ("to_fahrenheit", {"celsius": 20})]
    )
    assert (refined, passed) == (FINAL, DRAFT)


@pytest.mark.parametrize("model", MODELS)
async def test_pydantic_ai_answers(real_gateway, model, http):
    """A model of pydantic-ai answers whole and as a stream."""
    agent = agent_for(real_gateway, model, http, model_settings=LIMIT)
    assert (await agent.run("Say hello.")).output
    async with agent.run_stream("Say hello.") as run:
        assert await run.get_output()


async def pydantic_loop(gateway, model, http, *, is_stream):
    agent = agent_for(gateway, model, http, tools=[weather, to_fahrenheit])
    if is_stream:
        async with agent.run_stream(QUESTION) as run:
            output = await run.get_output()
    else:
        run = await agent.run(QUESTION)
        output = run.output
    parts = [
        part
        for message in run.all_messages()
        for part in message.parts
        if isinstance(part, vendors.ToolCallPart)
    ]
    return [(part.tool_name, part.args_as_dict()) for part in parts], output


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_agent_of_pydantic_ai(scripted, is_stream, http):
    """The same calls are made, and the final text is refined, whole and as a stream."""
    scripted.upstream.reset(agent_model)
    refined_calls, refined = await pydantic_loop(
        scripted.gateway, "refine/fast", http, is_stream=is_stream
    )
    passed_calls, passed = await pydantic_loop(
        scripted.gateway, "pass/scripted", http, is_stream=is_stream
    )
    assert (
        refined_calls
        == passed_calls
        == [("weather", {"city": "Oslo"}), ("to_fahrenheit", {"celsius": 20})]
    )
    assert (refined, passed) == (FINAL, DRAFT)
