"""Whole replies of models, from OpenAI's chat form into Anthropic's and back.

Of what a reply holds beyond text, tool calls and thinking, nothing has a place in the other form; a
client that needs the log probabilities or citations of a model asks a model of its own protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ..base.jsontext import dumps
from ..errors import ModelError
from ..loop.records import ToolCall
from ..models.chat_replies import (
    json_type_name,
    read_count,
    read_finish,
    read_tool_calls,
    reasoning_text,
    split_content,
)
from ..models.server_errors import ErrorBody, stated_error
from ..usage import Usage
from .anthropic_wire import STOP_REASONS, tool_input
from .exchange import GatewayError
from .stream_usage import token_counts


def bad_reply(message: str) -> GatewayError:
    """Return the error for a reply that is no answer."""
    return GatewayError(502, "upstream_error", f"the model {message}")


def messages_usage(usage: Any) -> dict[str, Any]:
    """Return the usage in Anthropic's form, which counts cached input apart. What is unknown is
    null.
    """
    read, written = token_counts(usage)
    details = usage.get("prompt_tokens_details") if isinstance(usage, Mapping) else None
    cached = read_count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    if read is None or not cached or cached > read:
        return {"input_tokens": read, "output_tokens": written}
    return {
        "input_tokens": read - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": written,
    }


def chat_usage(usage: Any) -> dict[str, Any] | None:
    """Return the usage in OpenAI's form; None if a part of it is unknown."""
    read, written = token_counts(usage)
    if read is None or written is None:
        return None
    cached = read_count(usage.get("cache_read_input_tokens"))
    fields: dict[str, Any] = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    return fields | (
        {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    )


def message_id(value: Any, prefix: str) -> str:
    """Return the ID of a reply with the prefix of its new form."""
    text = value if isinstance(value, str) and value else sha256(dumps(value)).hexdigest()[:24]
    return text[:256] if text.startswith(prefix) else f"{prefix}{text[:256]}"


def messages_reply(data: Mapping[str, Any], *, shows_thinking: bool) -> dict[str, Any]:
    """Return a chat completion as a message of Anthropic. Raises GatewayError 502 if it is no
    answer.
    """
    message, finish = message_of(data)
    text, thoughts, calls = _read_message(message, finish)
    content: list[dict[str, Any]] = []
    if thoughts and shows_thinking:
        content.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    if text:
        content.append({"type": "text", "text": text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": tool_input(call)}
        for call in calls
    ]
    return {
        "id": message_id(data.get("id"), "msg_"),
        "type": "message",
        "role": "assistant",
        "model": data.get("model") or "",
        "content": content,
        "stop_reason": "refusal"
        if message.get("refusal")
        else stop_reason(finish, has_calls=bool(calls)),
        "stop_sequence": None,
        "usage": messages_usage(data.get("usage")),
    }


def message_of(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the message of a chat completion and its reason to finish. Raises GatewayError 502 if
    it failed or has no message.
    """
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    finish = finish_of(choice) if isinstance(choice, dict) else None
    message = choice.get("message") if isinstance(choice, dict) else None
    # nothing was written, or nothing may be shown
    if message is None and finish in {"length", "content_filter"}:
        message = {}
    if stated_error(data) or not isinstance(message, dict):
        raise bad_reply(ErrorBody(data).text or "sent an answer without a message")
    return message, finish or "stop"


def finish_of(choice: Mapping[str, Any]) -> str | None:
    """Return OpenAI's reason to finish for that of a choice; None if it states none. Raises
    GatewayError 502 if it failed.
    """
    try:
        return read_finish(choice)
    except ModelError as error:
        raise bad_reply(str(error)) from None


def _read_message(message: Mapping[str, Any], finish: str) -> tuple[str, str, tuple[ToolCall, ...]]:
    """Return the text, the reasoning and the tool calls of a message."""
    try:
        text, thoughts = split_content(message.get("content"), Usage())
        calls = read_tool_calls(message, finish, Usage())
    except ModelError as error:
        raise bad_reply(str(error)) from None
    refusal = message.get("refusal")
    return (
        text or (refusal if isinstance(refusal, str) else ""),
        reasoning_text(message) or "".join(thoughts),
        calls,
    )


def stop_reason(finish: str, *, has_calls: bool) -> str:
    """Return Anthropic's reason to stop for OpenAI's. Some servers write "stop" after tool
    calls.
    """
    return "tool_use" if has_calls and finish == "stop" else STOP_REASONS[finish]


def chat_reply(data: Mapping[str, Any], created: int) -> dict[str, Any]:
    """Return a message of Anthropic as a chat completion. Raises GatewayError 502 if it is no
    answer.
    """
    blocks = data.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise bad_reply(f"sent {json_type_name(blocks)} as the content of its answer")
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(_text(block, "text"))
            case "thinking":
                thoughts.append(_text(block, "thinking"))
            case "tool_use":
                calls.append(_tool_call(block))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(texts) or (None if calls else ""),
        "refusal": None,
    }
    message |= {"reasoning_content": "".join(thoughts)} if thoughts else {}
    message |= {"tool_calls": calls} if calls else {}
    finish = finish_of({"finish_reason": data.get("stop_reason")}) or "stop"
    return {
        "id": message_id(data.get("id"), "chatcmpl-"),
        "object": "chat.completion",
        "created": created,
        "model": data.get("model") or "",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": chat_usage(data.get("usage")),
    }


def _text(block: Mapping[str, Any], name: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise bad_reply(f"sent {json_type_name(text)} as {name} of a block")
    return text


def _tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise bad_reply(f"sent {json_type_name(arguments)} as the input of a tool call")
    function = {"name": _text(block, "name"), "arguments": dumps(arguments).decode()}
    return {"id": _text(block, "id"), "type": "function", "function": function}
