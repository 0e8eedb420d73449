"""Replies of Anthropic's messages: whole ones and streams, their readers and their writers, and the
protocol as a whole.

The protocol counts cached input apart from `input_tokens`, and a stream states its usage in its
first and its last event: counts at the end are of the whole reply. Blocks follow each other. What a
provider ran itself (searches, code) goes to clients of this protocol as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.finish_reasons import checked_finish
from ...base.jsontext import dumps_text, object_in, text_in
from ...models.chat_replies import json_type_name, read_count
from ...models.server_errors import ErrorBody, stated_error
from ...usage import Usage
from ..exchange import GatewayError
from ..neutral import (
    Begin,
    Call,
    FinishReason,
    Json,
    Other,
    Part,
    Reply,
    Request,
    Text,
    Thinking,
    Tokens,
)
from .messages_requests import ANSWER_TOOL
from .streams import (
    MAX_ID_CHARS,
    MAX_PARTS,
    bad_reply,
    call_id,
    errors_of_model,
    event,
    neutral_finish,
)
from .tool_arguments import arguments_in

OWN_REASONS: Mapping[str, FinishReason] = {
    "pause_turn": "tool_calls",  # the client sends the turn back, so that the model goes on
    "refusal": "refusal",
}
"""The reasons to stop that the other protocols do not have."""
STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
}
ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
OVERLOADED_STATUS = 529


# ---- usage and reasons to stop


def read_tokens(usage: Any) -> Tokens:
    """Return the tokens of a usage object."""
    fields = usage if isinstance(usage, Mapping) else {}
    read = read_count(fields.get("input_tokens"))
    cached = read_count(fields.get("cache_read_input_tokens"))
    written = read_count(fields.get("cache_creation_input_tokens"))
    details = object_in(fields, "output_tokens_details")
    return Tokens(
        input=None if read is None else read + (cached or 0) + (written or 0),
        output=read_count(fields.get("output_tokens")),
        cached=cached,
        cache_written=written,
        reasoning=read_count(details.get("thinking_tokens")),
    )


def usage_body(tokens: Tokens, outcome: Json | None = None) -> dict[str, Any]:
    """Return the usage of a reply. An unknown number of tokens is null."""
    apart = (tokens.cached or 0) + (tokens.cache_written or 0)
    read = tokens.input if tokens.input is None else max(0, tokens.input - apart)
    usage: dict[str, Any] = {"input_tokens": read, "output_tokens": tokens.output}
    if tokens.cached is not None:
        usage["cache_read_input_tokens"] = tokens.cached
    if tokens.cache_written is not None:
        usage["cache_creation_input_tokens"] = tokens.cache_written
    if tokens.reasoning is not None:
        usage["output_tokens_details"] = {"thinking_tokens": tokens.reasoning}
    return usage | ({} if outcome is None else {"redraft": outcome})


def finish_of(stop_reason: Any, *, has_calls: bool) -> FinishReason:
    """Return the reason to finish; servers that state none have stopped. Raises GatewayError 502
    for one after which the answer may not be whole.
    """
    if isinstance(stop_reason, str) and stop_reason in OWN_REASONS:
        return OWN_REASONS[stop_reason]
    with errors_of_model():
        finish = checked_finish(stop_reason, Usage()) or "stop"
    return neutral_finish(finish, is_refused=False, has_calls=has_calls)


def ending_of(
    finish: FinishReason, stop_sequence: str | None, *, has_calls: bool
) -> dict[str, str | None]:
    """Return why a reply ends. Some servers write "stop" after calls of tools."""
    if finish == "tool_calls" or (finish == "stop" and has_calls):
        return {"stop_reason": "tool_use" if has_calls else "pause_turn", "stop_sequence": None}
    if finish == "stop" and stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_sequence}
    return {"stop_reason": STOP_REASONS[finish], "stop_sequence": None}


# ---- reading a whole reply


def read_reply(data: Json) -> Reply:
    """Read a whole reply. Raises GatewayError 502 if it is no answer."""
    blocks = data.get("content")
    if stated_error(data):
        raise bad_reply(f"sent an error: {ErrorBody(data).text}")
    if not isinstance(blocks, list):
        raise bad_reply(f"sent {json_type_name(blocks)} as the content of its answer")
    if len(blocks) > MAX_PARTS:
        raise bad_reply(f"sent more than {MAX_PARTS} blocks")
    parts = [_read_block(block) for block in blocks]
    if explanation := explanation_of(data):
        parts.append(explanation)
    return Reply(
        id=text_in(data, "id"),
        model=text_in(data, "model"),
        parts=tuple(parts),
        finish=finish_of(
            data.get("stop_reason"),
            has_calls=any(isinstance(part, Call) for part in parts),
        ),
        tokens=read_tokens(data.get("usage")),
        stop_sequence=stop_sequence_of(data),
    )


def _read_block(block: Any) -> Part:
    kind = block.get("type") if isinstance(block, Mapping) else None
    match kind:
        case "text":
            return Text(text_of(block, "text"), raw=block)
        case "thinking":
            return Thinking(text_of(block, "thinking"), text_in(block, "signature"), raw=block)
        case "redacted_thinking":
            return Thinking(redacted=text_of(block, "data"), raw=block)
        case "tool_use":
            arguments = block.get("input")
            if not isinstance(arguments, Mapping):
                raise bad_reply(f"sent {json_type_name(arguments)} as the input of a tool call")
            if block.get("name") == ANSWER_TOOL:
                return Text(dumps_text(arguments))
            return Call(
                text_of(block, "id"), text_of(block, "name"), dumps_text(arguments), raw=block
            )
        case str():
            return Other(kind, block)
    raise bad_reply("sent a block without a type")


def text_of(block: Json, name: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise bad_reply(f"sent {json_type_name(text)} as {name} of a block")
    return text


def stop_sequence_of(data: Json) -> str | None:
    """Return which text ended a reply, if the model says so."""
    sequence = data.get("stop_sequence")
    return sequence if isinstance(sequence, str) else None


def explanation_of(data: Json) -> Text | None:
    """Return why the model refused, if it says so."""
    text = text_in(object_in(data, "stop_details"), "explanation")
    return Text(text, is_refusal=True) if text and data.get("stop_reason") == "refusal" else None


# ---- writing a whole reply


def write_reply(
    request: Request, reply: Reply, created: int, outcome: Json | None = None
) -> dict[str, Any]:
    """Return a whole reply. Raises GatewayError 502 for a call whose arguments are no object."""
    content = [
        block
        for n, part in enumerate(reply.parts)
        if (block := _written_block(request, reply.id, n, part)) is not None
    ]
    body = {
        **message_head(request, Begin(reply.id, reply.model), created),
        "content": content,
        **ending_of(reply.finish, reply.stop_sequence, has_calls=bool(reply.calls)),
        "usage": usage_body(reply.tokens, outcome),
    }
    return body | ({} if outcome is None else {"redraft": outcome})


def message_head(request: Request, begin: Begin, created: int) -> dict[str, Any]:
    id = begin.id[:MAX_ID_CHARS] or str(created)
    return {
        "id": id if id.startswith("msg_") else f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": begin.model or request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _written_block(request: Request, reply_id: str, n: int, part: Part) -> Json | None:
    """Return the block for a part; None for one that the client does not read."""
    match part:
        case Text() if part.text:
            raw = part.raw or {}
            is_same = raw.get("type") == "text" and raw.get("text") == part.text
            return raw if is_same else {"type": "text", "text": part.text}
        case Thinking() if part.redacted:
            return {"type": "redacted_thinking", "data": part.redacted}
        case Thinking() if part.signature or (part.text and shows_thinking(request)):
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case Call():
            return _tool_use(request, reply_id, n, part)
        case Other():
            return part.raw
    return None


def shows_thinking(request: Request) -> bool:
    """Whether the client reads thinking without a signature, which other protocols' models send."""
    thinking = request.thinking
    return thinking is not None and thinking.mode != "disabled" and thinking.is_shown


def _tool_use(request: Request, reply_id: str, n: int, call: Call) -> Json:
    arguments = arguments_in(call.arguments)
    if arguments is None:
        raise bad_reply(f"called {call.name!r} with arguments that are no JSON object")
    raw = dict(call.raw or {})
    known = raw if raw.get("type") == "tool_use" else {}
    return {
        **known,
        "type": "tool_use",
        "id": call_id(call.id, reply_id, n),
        "name": request.called_tool(call.name).name,
        "input": arguments,
    }


# ---- errors


def error_status(error: GatewayError) -> int:
    """Return the HTTP status of an error: 529 for an overload."""
    return OVERLOADED_STATUS if error.status == 503 else error.status


def error_body(error: GatewayError) -> dict[str, Any]:
    """Return the reply that describes an error."""
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    described: dict[str, Any] = {
        "type": ERROR_TYPES.get(error.status, other),
        "message": error.message,
        "code": error.code,
        "param": error.param,
    }
    if error.detail:
        described["details"] = {"error_code": error.detail}
    return {"type": "error", "error": described}


def error_event(error: GatewayError) -> bytes:
    """Return the event that ends a stream that broke off."""
    return message_event("error", error=error_body(error)["error"])


def message_event(kind: str, **fields: Any) -> bytes:
    """Return a server-sent event, whose name is also the type in its data."""
    return event({"type": kind, **fields}, kind)
