"""The SDK of OpenAI."""

import base64
import json
import struct

import openai
from cells import HELLO, KEY, PICTURE, QUESTION, SEEN, Server, expect, main, to_fahrenheit, weather
from pydantic import BaseModel

FUNCTIONS = {"weather": weather, "to_fahrenheit": to_fahrenheit}
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "to_fahrenheit": {
        "type": "object",
        "properties": {"celsius": {"type": "number"}},
        "required": ["celsius"],
        "additionalProperties": False,
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
FLAT_TOOLS = [
    {"type": "function", "name": name, "parameters": schema, "strict": True}
    for name, schema in SCHEMAS.items()
]
MESSAGES = [{"role": "user", "content": HELLO}]


class Report(BaseModel):
    city: str
    degrees: int


def sdk(server: Server):
    return openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0, timeout=60)


def chat(server):
    """chat"""
    with sdk(server) as client:
        reply = client.chat.completions.create(model=server.model, messages=MESSAGES)
        expect(reply.choices[0].message.content, server.greeting)
        assert reply.usage.prompt_tokens and reply.usage.completion_tokens


def hints(server):
    """chat, hints"""
    with sdk(server) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=server.model,
            messages=MESSAGES,
            user="ann",
            seed=1,
            temperature=0.5,
            metadata={"a": "b"},
            store=False,
            reasoning_effort="low",
            verbosity="low",
            service_tier="auto",
            prompt_cache_key="k",
            safety_identifier="s",
            parallel_tool_calls=True,
            tools=TOOLS[1:],
        )
        assert raw.parse().choices


async def chat_async(server):
    """chat, async"""
    async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        reply = await client.chat.completions.create(model=server.model, messages=MESSAGES)
        expect(reply.choices[0].message.content, server.greeting)


def chat_stream(server):
    """chat, stream"""
    with (
        sdk(server) as client,
        client.chat.completions.stream(
            model=server.model, messages=MESSAGES, stream_options={"include_usage": True}
        ) as stream,
    ):
        final = stream.get_final_completion()
        expect(final.choices[0].message.content, server.greeting)
        assert final.usage.completion_tokens


def chat_parse(server):
    """chat, parse"""
    with sdk(server) as client:
        reply = client.chat.completions.parse(
            model=server.model, messages=MESSAGES, response_format=Report
        )
        assert isinstance(reply.choices[0].message.parsed, Report)


def chat_json(server):
    """chat, JSON object"""
    with sdk(server) as client:
        reply = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "Say hello in JSON."}],
            response_format={"type": "json_object"},
        )
        json.loads(reply.choices[0].message.content)


def chat_tools(server):
    """chat, tools"""
    chat_loop(server, is_stream=False)


def chat_tools_stream(server):
    """chat, tools, stream"""
    chat_loop(server, is_stream=True)


def chat_loop(server, *, is_stream):
    messages, called = [{"role": "user", "content": QUESTION}], []
    with sdk(server) as client:
        for _ in range(5):
            asked = {"model": server.model, "messages": messages, "tools": TOOLS}
            if is_stream:
                with client.chat.completions.stream(**asked) as stream:
                    message = stream.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            if not message.tool_calls:
                break
            messages.append(message.to_dict())
            for call in message.tool_calls:
                done = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
                called.append(call.function.name)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": done})
    expect(called, ["weather", "weather", "to_fahrenheit"])
    expect(message.content, server.answer)


def chat_picture(server):
    """chat, image"""
    url = f"data:image/png;base64,{PICTURE}"
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    with sdk(server) as client:
        reply = client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": parts}]
        )
        assert SEEN in reply.choices[0].message.content, reply.choices[0].message.content


def picture_by_url(server):
    """chat, image by its address"""
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "https://example.com/picture.png"}},
    ]
    with sdk(server) as client:
        reply = client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": parts}]
        )
        assert SEEN in reply.choices[0].message.content, reply.choices[0].message.content


def responses(server):
    """responses"""
    with sdk(server) as client:
        reply = client.responses.create(model=server.model, input=HELLO, store=False)
        expect(reply.output_text, server.greeting)


def responses_stream(server):
    """responses, stream"""
    with sdk(server) as client, client.responses.stream(model=server.model, input=HELLO) as stream:
        for _ in stream:
            pass
        expect(stream.get_final_response().output_text, server.greeting)


def responses_parse(server):
    """responses, parse"""
    with sdk(server) as client:
        reply = client.responses.parse(model=server.model, input=HELLO, text_format=Report)
        assert isinstance(reply.output_parsed, Report), reply.output_text


def responses_tools(server):
    """responses, tools"""
    items, called = [{"role": "user", "content": QUESTION}], []
    with sdk(server) as client:
        for _ in range(5):
            reply = client.responses.create(
                model=server.model,
                input=items,
                tools=FLAT_TOOLS,
                store=False,
                include=["reasoning.encrypted_content"],
                reasoning={"effort": "low", "summary": "auto"},
            )
            items += [item.to_dict() for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            for call in calls:
                done = FUNCTIONS[call.name](**json.loads(call.arguments))
                called.append(call.name)
                result = {"type": "function_call_output", "call_id": call.call_id, "output": done}
                items.append(result)
            if not calls:
                break
    expect(called, ["weather", "weather", "to_fahrenheit"])
    expect(reply.output_text, server.answer)


def models(server):
    """models"""
    with sdk(server) as client:
        assert server.model in [model.id for model in client.models.list()]
        expect(client.models.retrieve(server.model).id, server.model)


def embeddings(server):
    """embeddings"""
    with sdk(server) as client:
        vector = client.embeddings.create(model=server.model, input=["a", "b"]).data[1].embedding
        assert len(vector) == 3
        packed = client.embeddings.create(model=server.model, input="a", encoding_format="base64")
        known = packed.data[0].embedding
        assert len(known) == 3 or struct.unpack("<3f", base64.b64decode(known))


def completions(server):
    """completions (old)"""
    with sdk(server) as client:
        assert client.completions.create(model=server.model, prompt="Say").choices[0].text


def moderations(server):
    """moderations"""
    with sdk(server) as client:
        assert not client.moderations.create(model=server.model, input="a").results[0].flagged


main(
    "openai",
    chat,
    hints,
    chat_async,
    chat_stream,
    chat_parse,
    chat_json,
    chat_tools,
    chat_tools_stream,
    chat_picture,
    picture_by_url,
    responses,
    responses_stream,
    responses_parse,
    responses_tools,
    models,
    embeddings,
    completions,
    moderations,
    only={embeddings: "pass/gpt", completions: "pass/gpt", moderations: "pass/gpt"},
)
