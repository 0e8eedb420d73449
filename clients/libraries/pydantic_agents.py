"""pydantic-ai: with the models of OpenAI and of Anthropic."""

from cells import KEY, QUESTION, expect, main, to_fahrenheit, weather
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

TOOLS = [weather, to_fahrenheit]


class Report(BaseModel):
    city: str
    degrees: int


def openai_model(server, kind=OpenAIChatModel):
    return kind(server.model, provider=OpenAIProvider(base_url=server.url, api_key=KEY))


def anthropic_model(server):
    provider = AnthropicProvider(base_url=server.root, api_key=KEY)
    return AnthropicModel(server.model, provider=provider)


async def loop(server, model):
    expect((await Agent(model, tools=TOOLS).run(QUESTION)).output, server.answer)


async def chat_tools(server):
    """tools, chat"""
    await loop(server, openai_model(server))


async def chat_tools_stream(server):
    """tools, chat, stream"""
    async with Agent(openai_model(server), tools=TOOLS).run_stream(QUESTION) as run:
        expect(await run.get_output(), server.answer)


async def chat_form(server):
    """structured answer as a tool, chat"""
    run = await Agent(openai_model(server), output_type=Report).run("Report.")
    assert isinstance(run.output, Report)


async def chat_native(server):
    """structured answer, chat"""
    run = await Agent(openai_model(server), output_type=NativeOutput(Report)).run("Report.")
    assert isinstance(run.output, Report)


async def responses_tools(server):
    """tools, responses"""
    await loop(server, openai_model(server, OpenAIResponsesModel))


async def messages_tools(server):
    """tools, messages"""
    await loop(server, anthropic_model(server))


async def messages_form(server):
    """structured answer as a tool, messages"""
    run = await Agent(anthropic_model(server), output_type=Report).run("Report.")
    assert isinstance(run.output, Report)


main(
    "pydantic-ai-slim",
    chat_tools,
    chat_tools_stream,
    chat_form,
    chat_native,
    responses_tools,
    messages_tools,
    messages_form,
)
