"""What telemetry reads in replies that are passed on, however a model writes them."""

import json

import pytest

from redraft.gateway.forwarded_calls import reply_of
from redraft.gateway.protocols.registry import MODELS

NO_ANSWERS = ["[]", "null", "1", '"text"', "[[{}]]", "{}", "[DONE]", '{"response": 1}', ""]
NAMELESS = {
    "messages": [
        {"type": "message_start", "message": {"id": "x"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta"}},
    ],
    "chat": [{"id": "x", "choices": [{"delta": {"content": "hi", "tool_calls": [{"index": 0}]}}]}],
}
NAMELESS["messages"][1:1] = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "a", "name": "", "input": {}},
    },
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("protocol", [*MODELS, "responses"])
@pytest.mark.parametrize("text", NO_ANSWERS)
def test_content_that_is_no_answer(text, protocol, is_stream):
    """It is no text, and no error: its client has read it already."""
    content = f"data: {text}\n\n" if is_stream else text
    reply = reply_of(protocol, {}, None, content.encode(), is_stream=is_stream)
    assert (reply.text, reply.tool_calls) == ("", ())


@pytest.mark.parametrize("protocol", NAMELESS)
def test_call_without_a_name(protocol):
    """It is left out, and the text before it is not."""
    content = "".join(f"data: {json.dumps(each)}\n\n" for each in NAMELESS[protocol])
    reply = reply_of(protocol, {}, None, content.encode(), is_stream=True)
    assert (reply.text, reply.tool_calls) == ("hi", ())
