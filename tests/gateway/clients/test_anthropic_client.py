"""The `anthropic` SDK before an OpenAI-compatible model: a real llama.cpp server and a scripted
endpoint.
"""

import json

import pytest

import vendors

from .agents import DRAFT, FINAL, QUESTION, TOOLS, agent_model, run_tool

MODELS = ["refine/fast", "pass/tiny"]
HELLO = [{"role": "user", "content": "Say hello."}]
CLAUDE_TOOLS = [
    {
        "name": each["function"]["name"],
        "description": each["function"]["description"],
        "input_schema": each["function"]["parameters"],
    }
    for each in TOOLS
]


def client(gateway, kind="Anthropic", **settings):
    return getattr(vendors.anthropic, kind)(
        base_url=gateway.root, api_key="unused", **{"max_retries": 0, **settings}
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_message(real_gateway, model):
    """A message has text, a reason and the usage; system blocks are read."""
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    with client(real_gateway) as sdk:
        message = sdk.messages.create(model=model, max_tokens=32, system=system, messages=HELLO)
    assert message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens > 0


@pytest.mark.parametrize("model", MODELS)
async def test_streams(real_gateway, model):
    """An asynchronous stream yields the text of its final message."""
    async with client(real_gateway, "AsyncAnthropic") as sdk:
        async with sdk.messages.stream(model=model, max_tokens=32, messages=HELLO) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            message = await stream.get_final_message()
    assert text == message.content[0].text != ""
    assert message.stop_reason in ("end_turn", "max_tokens")


@pytest.mark.parametrize("model", MODELS)
def test_raw_events(real_gateway, model):
    """A stream has the events of the protocol in their order."""
    with client(real_gateway) as sdk:
        kinds = [
            event.type
            for event in sdk.messages.create(
                model=model, max_tokens=32, messages=HELLO, stream=True
            )
        ]
    order = [kind for n, kind in enumerate(kinds) if n == 0 or kind != kinds[n - 1]]
    assert order == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("model", MODELS)
def test_count_tokens(real_gateway, model):
    """More text has more tokens."""
    with client(real_gateway) as sdk:
        few = sdk.messages.count_tokens(model=model, messages=HELLO).input_tokens
        many = sdk.messages.count_tokens(
            model=model, messages=[{"role": "user", "content": "Say hello. " * 50}]
        ).input_tokens
    assert 0 < few < many


def tool_loop(sdk, model):
    """Return the calls of an agent written with the SDK alone, and its final text."""
    messages, calls = [{"role": "user", "content": QUESTION}], []
    while True:
        reply = sdk.messages.create(
            model=model, max_tokens=64, messages=messages, tools=CLAUDE_TOOLS
        )
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            return calls, reply.content[0].text
        assert reply.stop_reason == "tool_use"
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in reply.content],
            }
        )
        calls += [(use.name, use.input) for use in uses]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": use.id,
                "content": run_tool(use.name, json.dumps(use.input)),
            }
            for use in uses
        ]
        messages.append({"role": "user", "content": results})


def test_a_tool_loop_differs_only_in_its_final_text(scripted):
    """An agent makes the same calls through a profile as past it."""
    scripted.upstream.reset(agent_model)
    with client(scripted.gateway) as sdk:
        refined_calls, refined = tool_loop(sdk, "refine/fast")
        passed_calls, passed = tool_loop(sdk, "pass/scripted")
    assert (
        refined_calls
        == passed_calls
        == [("weather", {"city": "Oslo"}), ("to_fahrenheit", {"celsius": 20})]
    )
    assert (refined, passed) == (FINAL, DRAFT)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"model": "refine/unknown"}, "NotFoundError"),
        ({"extra_body": {"temperature": 7}}, "BadRequestError"),
        ({"messages": []}, "BadRequestError"),
    ],
)
def test_errors_have_the_form_of_the_protocol(scripted, request_, error):
    """A wrong request raises the SDK's own error, and its body is Anthropic's."""
    sent = {"model": "refine/fast", "max_tokens": 32, "messages": HELLO} | request_
    with (
        client(scripted.gateway) as sdk,
        pytest.raises(getattr(vendors.anthropic, error)) as caught,
    ):
        sdk.messages.create(**sent)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["message"]
