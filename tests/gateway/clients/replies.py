"""What a scripted model says, in the form of each of the three protocols, whole and as the events
of a stream.

An event is a pair: its name (None for chat completions) and its data.
"""

import itertools
import json

from .conversations import Call, Said, signature_of

WRITTEN, READ = 5, 10  # tokens
CREATED = 1_700_000_000
PIECE = 12  # characters of a text in one event
NUMBERS = itertools.count(1)  # a client takes replies of one id for parts of one reply


def pieces(text):
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def written(call):
    """Return the arguments of a call as the model writes them."""
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def chat_reply(said: Said, model):
    """Return a chat completion."""
    message = {"role": "assistant", "content": said.text or None, "refusal": None}
    if said.calls:
        message["tool_calls"] = [chat_call(call) for call in said.calls]
    finish = "tool_calls" if said.calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return _chat_base("chat.completion", model) | {"choices": [choice], "usage": chat_usage()}


def chat_usage():
    return {
        "prompt_tokens": READ,
        "completion_tokens": WRITTEN,
        "total_tokens": READ + WRITTEN,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def chat_call(call: Call):
    if isinstance(call.arguments, str):
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _chat_base(kind, model):
    return {"id": f"chatcmpl-{next(NUMBERS)}", "object": kind, "created": CREATED, "model": model}


def chat_events(said: Said, model, *, with_usage):
    """Yield the chunks of a chat completion."""
    base = _chat_base("chat.completion.chunk", model)
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces(said.text)]
    for index, call in enumerate(said.calls):
        whole = chat_call(call)
        inner = whole[whole["type"]]
        text = "input" if whole["type"] == "custom" else "arguments"
        start = {"index": index, **whole, whole["type"]: {**inner, text: ""}}
        deltas.append({"tool_calls": [start]})
        deltas += [
            {"tool_calls": [{"index": index, whole["type"]: {text: piece}}]}
            for piece in pieces(inner[text])
        ]
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}
        yield None, {**base, "choices": [choice]}
    finish = "tool_calls" if said.calls else "stop"
    yield None, {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    if with_usage:
        yield None, {**base, "choices": [], "usage": chat_usage()}


def message_reply(said: Said, model):
    """Return a message of Anthropic."""
    return {
        "id": f"msg_{next(NUMBERS)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _blocks(said),
        "stop_reason": "tool_use" if said.calls else "end_turn",
        "stop_sequence": None,
        "usage": message_usage(),
    }


def message_usage():
    return {
        "input_tokens": READ,
        "output_tokens": WRITTEN,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "service_tier": "standard",
    }


def _blocks(said):
    blocks = []
    if said.thinking:
        thought = {
            "type": "thinking",
            "thinking": said.thinking,
            "signature": signature_of(said.thinking),
        }
        blocks.append(thought)
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    for call in said.calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        )
    return blocks


def message_events(said: Said, model):
    """Yield the events of a message."""
    reply = message_reply(said, model)
    start = {**reply, "content": [], "stop_reason": None}
    yield "message_start", {"type": "message_start", "message": start}
    yield "ping", {"type": "ping"}
    for index, block in enumerate(reply["content"]):
        empty = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}}
        begun = {**block, **empty.get(block["type"], {"input": {}})}
        kind = "content_block_start"
        yield kind, {"type": kind, "index": index, "content_block": begun}
        for delta in _block_deltas(block):
            kind = "content_block_delta"
            yield kind, {"type": kind, "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield (
        "message_delta",
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": WRITTEN}},
    )
    yield "message_stop", {"type": "message_stop"}


def _block_deltas(block):
    if block["type"] == "thinking":
        for piece in pieces(block["thinking"]):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "text":
        for piece in pieces(block["text"]):
            yield {"type": "text_delta", "text": piece}
    else:
        for piece in pieces(json.dumps(block["input"])):
            yield {"type": "input_json_delta", "partial_json": piece}


def response_reply(said: Said, model):
    """Return a response."""
    return {
        "id": f"resp_{next(NUMBERS)}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": _items(said),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": READ,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": WRITTEN,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": READ + WRITTEN,
        },
    }


def _items(said):
    items = []
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": f"msg_{next(NUMBERS)}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for call in said.calls:
        kind, text = (
            ("custom_tool_call", "input")
            if isinstance(call.arguments, str)
            else ("function_call", "arguments")
        )
        item = {"id": f"fc_{call.id}", "type": kind, "call_id": call.id, "name": call.name}
        items.append({**item, text: written(call), "status": "completed"})
    return items


def response_events(said: Said, model):
    """Yield the events of a response, each with its number."""
    for number, (name, data) in enumerate(_response_events(said, model)):
        yield name, {"type": name, "sequence_number": number, **data}


def _response_events(said, model):
    whole = response_reply(said, model)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        added = {**item, "status": "in_progress"}
        if item["type"] == "message":
            added["content"] = []
        else:
            added["input" if "input" in item else "arguments"] = ""
        yield "response.output_item.added", {"output_index": index, "item": added}
        yield from (
            _text_events(item, place) if item["type"] == "message" else _call_events(item, place)
        )
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": whole}


def _text_events(item, place):
    part = item["content"][0]
    place = {**place, "content_index": 0}
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**place, "part": part}


def _call_events(item, place):
    kind, text = (
        ("custom_tool_call_input", "input")
        if "input" in item
        else ("function_call_arguments", "arguments")
    )
    for piece in pieces(item[text]):
        yield f"response.{kind}.delta", {**place, "delta": piece}
    yield f"response.{kind}.done", {**place, text: item[text], "name": item["name"]}
