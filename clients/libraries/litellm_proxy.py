"""A real proxy of litellm before the gateway: our models as its deployments, in two protocols."""

import json
import sys
from pathlib import Path

import anthropic
import openai
from cells import HELLO, KEY, QUESTION, expect, main, to_fahrenheit, weather

from proxies import deployment, proxy

FUNCTIONS = {"weather": weather, "to_fahrenheit": to_fahrenheit}
SCHEMAS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}}},
    "to_fahrenheit": {"type": "object", "properties": {"celsius": {"type": "number"}}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def loop(client, server, model, *, is_stream):
    talk = [{"role": "user", "content": QUESTION}]
    for _ in range(5):
        asked = {"model": model, "messages": talk, "tools": TOOLS}
        if is_stream:
            with client.chat.completions.stream(**asked) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        if not message.tool_calls:
            break
        talk.append(message.to_dict())
        for call in message.tool_calls:
            done = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            talk.append({"role": "tool", "tool_call_id": call.id, "content": done})
    expect(message.content, server.answer)


def sdk():
    return openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, max_retries=0)


def chat_tools(server):
    """before us, tools, chat"""
    loop(sdk(), server, f"openai:{server.model}", is_stream=False)


def chat_tools_stream(server):
    """before us, tools, chat, stream"""
    loop(sdk(), server, f"openai:{server.model}", is_stream=True)


def chat_over_messages(server):
    """before us, tools, chat over messages"""
    loop(sdk(), server, f"anthropic:{server.model}", is_stream=False)


def messages(server):
    """before us, messages"""
    client = anthropic.Anthropic(base_url=ADDRESS, api_key=KEY, max_retries=0)
    talk = [{"role": "user", "content": HELLO}]
    reply = client.messages.create(model=f"anthropic:{server.model}", messages=talk, max_tokens=500)
    expect(reply.content[0].text, server.greeting)


def responses(server):
    """before us, responses"""
    reply = sdk().responses.create(model=f"openai:{server.model}", input=HELLO)
    expect(reply.output_text, server.greeting)


ROOT, _, *MODELS = sys.argv[1:]
ADDRESSES = {"openai": f"{ROOT}/v1", "anthropic": ROOT}
DEPLOYMENTS = [
    deployment(f"{kind}:{model}", f"{kind}/{model}", address)
    for model in MODELS
    for kind, address in ADDRESSES.items()
]
with proxy(Path(sys.executable).parent / "litellm", DEPLOYMENTS) as ADDRESS:
    main("litellm", chat_tools, chat_tools_stream, chat_over_messages, messages, responses)
