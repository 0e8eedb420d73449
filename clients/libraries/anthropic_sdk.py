"""The SDK of Anthropic."""

import anthropic
from cells import HELLO, KEY, PICTURE, QUESTION, SEEN, expect, main, to_fahrenheit, weather
from pydantic import BaseModel

FUNCTIONS = {"weather": weather, "to_fahrenheit": to_fahrenheit}
TOOLS = [
    {
        "name": "weather",
        "description": "The temperature in a city, in Celsius.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {
        "name": "to_fahrenheit",
        "input_schema": {"type": "object", "properties": {"celsius": {"type": "number"}}},
        "cache_control": {"type": "ephemeral"},
    },
]
MESSAGES = [{"role": "user", "content": HELLO}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Report(BaseModel):
    city: str
    degrees: int


def sdk(server):
    return anthropic.Anthropic(base_url=server.root, api_key=KEY, max_retries=0, timeout=60)


def asked(server, **changes):
    return {"model": server.model, "messages": MESSAGES, "max_tokens": 2000, **changes}


def text_of(reply):
    return "".join(block.text for block in reply.content if block.type == "text")


def messages(server):
    """messages"""
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    with sdk(server) as client:
        reply = client.messages.create(**asked(server), system=system, metadata={"user_id": "ann"})
        expect(text_of(reply), server.greeting)
        assert reply.usage.input_tokens and reply.usage.output_tokens


async def messages_async(server):
    """messages, async"""
    async with anthropic.AsyncAnthropic(base_url=server.root, api_key=KEY) as client:
        expect(text_of(await client.messages.create(**asked(server))), server.greeting)


def messages_stream(server):
    """messages, stream"""
    with sdk(server) as client, client.messages.stream(**asked(server)) as stream:
        expect(text_of(stream.get_final_message()), server.greeting)


def messages_parse(server):
    """messages, parse"""
    with sdk(server) as client:
        reply = client.messages.parse(**asked(server), output_format=Report)
        assert isinstance(reply.parsed_output, Report), text_of(reply)


def loop(server, **changes):
    talk, called, thoughts = [{"role": "user", "content": QUESTION}], [], []
    with sdk(server) as client:
        for _ in range(5):
            reply = client.messages.create(**asked(server, messages=talk, tools=TOOLS, **changes))
            talk.append({"role": "assistant", "content": [b.to_dict() for b in reply.content]})
            calls = [block for block in reply.content if block.type == "tool_use"]
            thoughts += [block for block in reply.content if block.type == "thinking"]
            if not calls:
                break
            called += [call.name for call in calls]
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": FUNCTIONS[call.name](**call.input),
                }
                for call in calls
            ]
            talk.append({"role": "user", "content": results})
    expect(called, ["weather", "weather", "to_fahrenheit"])
    expect(text_of(reply), server.answer)
    return thoughts


def messages_tools(server):
    """messages, tools"""
    loop(server)


def messages_thinking(server):
    """messages, tools and thinking"""
    thoughts = loop(server, thinking=THINKING)
    assert "claude" not in server.model or thoughts, "error: the thoughts are lost"


def forced_tool(server):
    """messages, forced tool"""
    with sdk(server) as client:
        tool = {**TOOLS[0], "name": "report"}
        choice = {"type": "tool", "name": "report"}
        reply = client.messages.create(**asked(server), tools=[tool], tool_choice=choice)
        expect([block.name for block in reply.content if block.type == "tool_use"], ["report"])


def prefill(server):
    """messages, prefill"""
    talk = [*MESSAGES, {"role": "assistant", "content": "Well,"}]
    with sdk(server) as client:
        assert text_of(client.messages.create(**asked(server, messages=talk)))


def picture(server):
    """messages, image"""
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    talk = [{"role": "user", "content": parts}]
    with sdk(server) as client:
        reply = client.messages.create(**asked(server, messages=talk))
        assert SEEN in text_of(reply), text_of(reply)


def count_tokens(server):
    """count_tokens"""
    with sdk(server) as client:
        counted = client.messages.count_tokens(model=server.model, messages=MESSAGES, tools=TOOLS)
        assert counted.input_tokens > 0


def tool_runner(server):
    """beta tool runner"""
    tools = [anthropic.beta_tool(weather), anthropic.beta_tool(to_fahrenheit)]
    talk = [{"role": "user", "content": QUESTION}]
    with sdk(server) as client:
        runner = client.beta.messages.tool_runner(**asked(server, messages=talk), tools=tools)
        expect(text_of(runner.until_done()), server.answer)


main(
    "anthropic",
    messages,
    messages_async,
    messages_stream,
    messages_parse,
    messages_tools,
    messages_thinking,
    forced_tool,
    prefill,
    picture,
    count_tokens,
    tool_runner,
    only={count_tokens: "pass/"},
)
