"""Replies as a strict client reads them: whole ones and streams of the three protocols, checked
against the types of the vendors' SDKs and the order of events that each protocol promises.
"""

import json
from functools import cache

from pydantic import TypeAdapter

import vendors

from .conversations import Call, Said
from .scripted_model import CHAT, MESSAGES


def reply_of(protocol, content_type, text):
    """Return what a reply says; AssertionError or ValidationError if it is not well-formed."""
    if not content_type.startswith("text/event-stream"):
        whole = json.loads(text)
    elif protocol is CHAT:
        whole = whole_chat(events_of(text))
    elif protocol is MESSAGES:
        whole = whole_message(events_of(text))
    else:
        whole = whole_response(events_of(text))
    if protocol is CHAT:
        return said_in_chat(whole)
    return said_in_message(whole) if protocol is MESSAGES else said_in_response(whole)


def events_of(text):
    """Return pairs of an event's name (None without one) and its data."""
    events = []
    for block in text.strip().split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if line and line[0] != ":"]
        fields = {name: value for name, _, value in lines}
        if fields:
            assert fields.keys() <= {"event", "data"}, block
            events.append((fields.get("event"), fields["data"]))
    return events


@cache
def adapter(name):
    """Return what validates a type of an SDK."""
    openai, anthropic = vendors.openai.types, vendors.anthropic.types
    return TypeAdapter(
        {
            "chat": openai.chat.ChatCompletion,
            "chunk": openai.chat.ChatCompletionChunk,
            "response": openai.responses.Response,
            "response event": openai.responses.ResponseStreamEvent,
            "message": anthropic.beta.BetaMessage,
            "message event": anthropic.beta.BetaRawMessageStreamEvent,
        }[name]
    )


def whole_chat(events):
    """Put the chunks of a stream together."""
    assert events.pop() == (None, "[DONE]")
    chunks = [json.loads(data) for _, data in events]
    for chunk in chunks:
        adapter("chunk").validate_python(chunk)
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    finished = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(finished) == 1, finished
    assert choices[0]["delta"]["role"] == "assistant"
    message = {"role": "assistant", "content": "", "tool_calls": {}}
    for choice in choices:
        message["content"] += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls") or ():
            add_call(message["tool_calls"], part)
    message["tool_calls"] = [*message["tool_calls"].values()] or None
    choice = {"index": 0, "message": message, "finish_reason": finished[0], "logprobs": None}
    return {**chunks[0], "object": "chat.completion", "choices": [choice]}


def add_call(calls, part):
    call = calls.setdefault(part["index"], {"id": part.get("id"), "type": part.get("type")})
    assert call["id"], "the first piece of a call has its id"
    for kind in ("function", "custom"):
        known = call.setdefault(kind, {}) if kind in part else {}
        for name, value in (part.get(kind) or {}).items():
            known[name] = known.get(name, "") + (value or "")


def whole_message(events):
    """Put the events of a message together, in their order."""
    pairs = [(name, json.loads(data)) for name, data in events]
    for name, data in pairs:
        adapter("message event").validate_python(data) if name != "ping" else None
        assert name == data["type"]
    pairs = [pair for pair in pairs if pair[0] != "ping"]
    assert [pairs[0][0], pairs[-2][0], pairs[-1][0]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message = pairs[0][1]["message"]
    assert message["content"] == []
    for name, data in pairs[1:-2]:
        add_block(message["content"], name, data)
    assert all(block.pop("is_whole") for block in message["content"])
    return {**message, **pairs[-2][1]["delta"]}


def add_block(blocks, name, data):
    if name == "content_block_start":
        assert data["index"] == len(blocks)
        assert all(block["is_whole"] for block in blocks), "blocks do not overlap"
        blocks.append({**data["content_block"], "is_whole": False, "json": ""})
        return
    block = blocks[data["index"]]
    assert not block["is_whole"]
    if name == "content_block_stop":
        block["is_whole"] = True
        if (written := block.pop("json")) or block["type"] == "tool_use":
            block["input"] = json.loads(written or "{}")
        return
    delta = data["delta"]
    kind = delta["type"].removesuffix("_delta")
    place = "json" if kind == "input_json" else kind
    block[place] = block.get(place, "") + delta["partial_json" if kind == "input_json" else kind]


def whole_response(events):
    """Return the response at the end of a stream whose items were announced one by one."""
    pairs = [(name, json.loads(data)) for name, data in events]
    for number, (name, data) in enumerate(pairs):
        adapter("response event").validate_python(data)
        assert (name, number) == (data["type"], data["sequence_number"])
    assert (pairs[0][0], pairs[-1][0]) == ("response.created", "response.completed")
    whole = pairs[-1][1]["response"]
    assert whole["status"] == "completed"
    done = [data["item"] for name, data in pairs if name == "response.output_item.done"]
    added = [data["item"] for name, data in pairs if name == "response.output_item.added"]
    assert done == whole["output"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    said = [data["delta"] for name, data in pairs if name == "response.output_text.delta"]
    assert "".join(said) == said_in_response(whole).text
    return whole


def said_in_chat(reply):
    adapter("chat").validate_python(reply)
    [choice] = reply["choices"]
    calls = choice["message"].get("tool_calls") or ()
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    return Said(choice["message"]["content"] or "", tuple(map(chat_call, calls)))


def chat_call(call):
    if call["type"] == "custom":
        return Call(call["custom"]["name"], call["custom"]["input"], call["id"])
    return Call(call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"])


def said_in_message(reply):
    adapter("message").validate_python(reply)
    kinds = {"text": [], "thinking": [], "tool_use": []}
    for block in reply["content"]:
        kinds[block["type"]].append(block)
    assert reply["stop_reason"] == ("tool_use" if kinds["tool_use"] else "end_turn")
    return Said(
        "".join(block["text"] for block in kinds["text"]),
        tuple(Call(block["name"], block["input"], block["id"]) for block in kinds["tool_use"]),
        "".join(block["thinking"] for block in kinds["thinking"]),
    )


def said_in_response(reply):
    adapter("response").validate_python(reply)
    text, calls = "", []
    for item in reply["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            calls.append(Call(item["name"], json.loads(item["arguments"]), item["call_id"]))
        elif item["type"] == "custom_tool_call":
            calls.append(Call(item["name"], item["input"], item["call_id"]))
    return Said(text, tuple(calls))
