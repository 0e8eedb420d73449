"""The SDK of litellm, before us."""

import json

import litellm
from cells import HELLO, KEY, QUESTION, expect, main, to_fahrenheit, weather
from pydantic import BaseModel

litellm.num_retries = 0
FUNCTIONS = {"weather": weather, "to_fahrenheit": to_fahrenheit}
SCHEMAS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}}},
    "to_fahrenheit": {"type": "object", "properties": {"celsius": {"type": "number"}}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


class Report(BaseModel):
    city: str
    degrees: int


def openai_settings(server):
    return {"model": f"openai/{server.model}", "api_base": server.url, "api_key": KEY}


def anthropic_settings(server):
    return {"model": f"anthropic/{server.model}", "api_base": server.root, "api_key": KEY}


def loop(server, settings):
    talk = [{"role": "user", "content": QUESTION}]
    for _ in range(5):
        reply = litellm.completion(messages=talk, tools=TOOLS, **settings)
        message = reply.choices[0].message
        if not message.tool_calls:
            break
        talk.append(message.model_dump())
        for call in message.tool_calls:
            done = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            talk.append({"role": "tool", "tool_call_id": call.id, "content": done})
    expect(message.content, server.answer)


def chat_tools(server):
    """tools, chat"""
    loop(server, openai_settings(server))


def messages_tools(server):
    """tools, messages"""
    loop(server, anthropic_settings(server))


def stream(server):
    """stream, chat"""
    talk = [{"role": "user", "content": HELLO}]
    pieces = litellm.completion(messages=talk, stream=True, **openai_settings(server))
    expect("".join(piece.choices[0].delta.content or "" for piece in pieces), server.greeting)


def responses(server):
    """responses"""
    reply = litellm.responses(input=HELLO, **openai_settings(server))
    expect(reply.output[-1].content[0].text, server.greeting)


def form(server):
    """structured answer, chat"""
    talk = [{"role": "user", "content": "Report."}]
    reply = litellm.completion(messages=talk, response_format=Report, **openai_settings(server))
    Report.model_validate_json(reply.choices[0].message.content)


main("litellm", chat_tools, messages_tools, stream, responses, form)
