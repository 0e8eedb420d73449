"""openai-agents: over chat completions and over responses."""

from agents import (
    Agent,
    AsyncOpenAI,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from cells import KEY, QUESTION, expect, main, to_fahrenheit, weather
from pydantic import BaseModel

set_tracing_disabled(True)
TOOLS = [function_tool(weather), function_tool(to_fahrenheit)]


class Report(BaseModel):
    city: str
    degrees: int


def agent(server, kind, **settings):
    client = AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0)
    model = kind(model=server.model, openai_client=client)
    return Agent(name="clerk", instructions="Be exact.", model=model, **settings)


async def chat_tools(server):
    """tools, chat"""
    worker = agent(server, OpenAIChatCompletionsModel, tools=TOOLS)
    expect((await Runner.run(worker, QUESTION)).final_output, server.answer)


async def chat_tools_stream(server):
    """tools, chat, stream"""
    run = Runner.run_streamed(agent(server, OpenAIChatCompletionsModel, tools=TOOLS), QUESTION)
    async for _ in run.stream_events():
        pass
    expect(run.final_output, server.answer)


async def chat_form(server):
    """structured answer, chat"""
    worker = agent(server, OpenAIChatCompletionsModel, output_type=Report)
    assert isinstance((await Runner.run(worker, "Report.")).final_output, Report)


async def responses_tools(server):
    """tools, responses"""
    worker = agent(server, OpenAIResponsesModel, tools=TOOLS)
    expect((await Runner.run(worker, QUESTION)).final_output, server.answer)


async def responses_tools_stream(server):
    """tools, responses, stream"""
    run = Runner.run_streamed(agent(server, OpenAIResponsesModel, tools=TOOLS), QUESTION)
    async for _ in run.stream_events():
        pass
    expect(run.final_output, server.answer)


async def responses_form(server):
    """structured answer, responses"""
    worker = agent(server, OpenAIResponsesModel, output_type=Report)
    assert isinstance((await Runner.run(worker, "Report.")).final_output, Report)


main(
    "openai-agents",
    chat_tools,
    chat_tools_stream,
    chat_form,
    responses_tools,
    responses_tools_stream,
    responses_form,
)
