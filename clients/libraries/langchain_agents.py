"""langchain and langgraph: with the models of OpenAI and of Anthropic."""

import cells
from cells import HELLO, KEY, QUESTION, expect, main
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

ASKED = {"messages": [("user", QUESTION)]}


@tool
def weather(city: str) -> str:
    """Return the temperature in a city, in Celsius."""
    return cells.weather(city)


@tool
def to_fahrenheit(celsius: float) -> str:
    """Convert degrees."""
    return cells.to_fahrenheit(celsius)


TOOLS = [weather, to_fahrenheit]


class Report(BaseModel):
    """A report."""

    city: str
    degrees: int


def openai_model(server, **settings):
    return ChatOpenAI(
        model=server.model, base_url=server.url, api_key=KEY, max_retries=0, **settings
    )


def anthropic_model(server):
    return ChatAnthropic(
        model=server.model, base_url=server.root, api_key=KEY, max_retries=0, max_tokens=500
    )


def chat(server):
    """chat, stream"""
    pieces = [piece.text for piece in openai_model(server, stream_usage=True).stream(HELLO)]
    expect("".join(pieces), server.greeting)


def loop(server, model):
    expect(create_agent(model, TOOLS).invoke(ASKED)["messages"][-1].text, server.answer)


def chat_tools(server):
    """tools, chat"""
    loop(server, openai_model(server))


def responses_tools(server):
    """tools, responses"""
    loop(server, openai_model(server, use_responses_api=True))


def messages_tools(server):
    """tools, messages"""
    loop(server, anthropic_model(server))


def graph_tools(server):
    """tools, langgraph, stream"""
    graph = create_react_agent(openai_model(server), TOOLS)
    last = list(graph.stream(ASKED, stream_mode="values"))[-1]
    expect(last["messages"][-1].text, server.answer)


def chat_form(server):
    """structured answer, chat"""
    assert isinstance(openai_model(server).with_structured_output(Report).invoke("Report."), Report)


def messages_form(server):
    """structured answer, messages"""
    model = anthropic_model(server).with_structured_output(Report)
    assert isinstance(model.invoke("Report."), Report)


def agent_form(server):
    """structured answer of an agent"""
    agent = create_agent(openai_model(server), TOOLS, response_format=Report)
    assert isinstance(agent.invoke(ASKED)["structured_response"], Report)


main(
    "langchain",
    chat,
    chat_tools,
    responses_tools,
    messages_tools,
    graph_tools,
    chat_form,
    messages_form,
    agent_form,
)
