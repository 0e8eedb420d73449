"""Replies of chat completions and errors: written for clients, read from models.

The quirks of servers are known to `redraft.models.chat_replies` and `redraft.models.sse`: reasoning
in several fields, calls without IDs, numbers or JSON, errors in replies of status 200.

The field `redraft` of a reply describes the refinement: at the top of a reply and of the chunk with
`finish_reason`, and in `usage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...base.jsontext import dumps, list_in, object_in, text_in
from ...models.chat_replies import (
    first_count,
    read_finish,
    read_token_details,
    read_tool_calls,
    reasoning_text,
    split_content,
)
from ...models.server_errors import ErrorBody, stated_error
from ...usage import Usage
from ..exchange import GatewayError
from ..neutral import (
    Call,
    FinishReason,
    Json,
    Part,
    Reply,
    Request,
    Text,
    Thinking,
    Tokens,
)
from .streams import (
    MAX_ID_CHARS,
    bad_reply,
    call_id,
    errors_of_model,
    event,
    neutral_finish,
)
from .tool_arguments import text_of_input

# ---- written


def write_reply(
    request: Request, reply: Reply, created: int, outcome: Json | None = None
) -> dict[str, Any]:
    """Return a whole reply. `created`: Unix time in seconds."""
    refusal = "".join(p.text for p in reply.parts if isinstance(p, Text) and p.is_refusal)
    text = "".join(p.text for p in reply.parts if isinstance(p, Text) and not p.is_refusal)
    thoughts = "".join(p.text for p in reply.parts if isinstance(p, Thinking))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if reply.calls or refusal else ""),
        "refusal": refusal or None,
    }
    message |= {"reasoning_content": thoughts} if thoughts else {}
    if reply.calls:
        message["tool_calls"] = [
            _write_call(request, call, call_id(call.id, reply.id, n))
            for n, call in enumerate(reply.calls)
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": written_finish(
            reply.finish, is_refused=bool(refusal), has_calls=bool(reply.calls)
        ),
    }
    return {
        "id": completion_id(reply.id),
        "object": "chat.completion",
        "created": created,
        "model": reply.model or request.model,
        "choices": [choice],
        "usage": usage_body(reply.tokens, outcome),
        "system_fingerprint": None,
        **({} if outcome is None else {"redraft": outcome}),
    }


def completion_id(id: str) -> str:
    return id if id.startswith("chatcmpl-") else f"chatcmpl-{id or '0'}"


def written_finish(finish: FinishReason, *, is_refused: bool, has_calls: bool) -> str:
    """Return the reason to finish. A refusal in words is in a field of its own; one without words
    is what this protocol calls a filter. A turn that pauses without a call has stopped.
    """
    if finish == "refusal":
        return "stop" if is_refused else "content_filter"
    return "stop" if finish == "tool_calls" and not has_calls else finish


def _write_call(request: Request, call: Call, id: str) -> dict[str, Any]:
    tool = request.called_tool(call.name)
    if tool.kind == "text":
        custom = {"name": tool.name, "input": text_of_input(call.arguments)}
        return {"id": id, "type": "custom", "custom": custom}
    function = {"name": tool.name, "arguments": call.arguments or "{}"}
    return {"id": id, "type": "function", "function": function}


def usage_body(tokens: Tokens, outcome: Json | None) -> dict[str, Any] | None:
    """Return the tokens of the reply; None if those of the prompt or the answer are unknown."""
    if tokens.input is None or tokens.output is None:
        return None
    usage: dict[str, Any] = {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
    }
    details = {
        "prompt_tokens_details": {
            "cached_tokens": tokens.cached,
            "cache_write_tokens": tokens.cache_written,
        },
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }
    for name, counts in details.items():
        if known := {key: count for key, count in counts.items() if count is not None}:
            usage[name] = known
    return usage if outcome is None else usage | {"redraft": outcome}


# ---- errors, written


def error_event(error: GatewayError) -> bytes:
    """Return the event that ends a stream."""
    return event(error_body(error))


def error_body(error: GatewayError) -> dict[str, Any]:
    """Return the reply that describes an error."""
    return {"error": error_object(error)}


def error_object(error: GatewayError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    return {
        "message": error.message,
        "type": _error_type(error.status),
        "param": error.param,
        "code": error.code,
    }


def _error_type(status: int) -> str:
    named = {
        401: "authentication_error",
        402: "insufficient_quota",
        403: "permission_error",
        429: "rate_limit_error",
    }
    return named.get(status, "server_error" if status >= 500 else "invalid_request_error")


# ---- read


def read_reply(data: Json) -> Reply:
    """Read a whole reply. Raises GatewayError 502 if it is no answer."""
    choice = next(iter(list_in(data, "choices")), None)
    choice = choice if isinstance(choice, dict) else {}
    with errors_of_model():
        finish, message = read_finish(choice), choice.get("message")
        if message is None and finish in {"length", "content_filter"}:
            message = {}  # nothing was written, or nothing may be shown
        if stated_error(data) or not isinstance(message, dict):
            raise bad_reply(ErrorBody(data).text or "sent an answer without a message")
        parts = tuple(_read_message(message, finish))
    is_refused = any(isinstance(part, Text) and part.is_refusal for part in parts)
    has_calls = any(isinstance(part, Call) for part in parts)
    return Reply(
        id=text_in(data, "id")[:MAX_ID_CHARS],
        model=text_in(data, "model")[:MAX_ID_CHARS],
        parts=parts,
        finish=neutral_finish(finish or "stop", is_refused=is_refused, has_calls=has_calls),
        tokens=read_tokens(data.get("usage")),
    )


def _read_message(message: Json, finish: str | None) -> Iterator[Part]:
    text, thoughts = split_content(message.get("content"), Usage())
    if thinking := reasoning_text(message) or "".join(thoughts):
        yield Thinking(thinking)
    if text:
        yield Text(text)
    if refusal := text_in(message, "refusal"):
        yield Text(refusal, is_refusal=True)
    calls = list_in(message, "tool_calls")
    functions = {**message, "tool_calls": list(map(_as_function_call, calls))} if calls else message
    for call in read_tool_calls(functions, finish, Usage()):
        yield Call(call.id, call.name, call.arguments)


def _as_function_call(item: Any) -> Any:
    """Return a call of a custom tool as one of a function with the argument `input`; anything else
    as it is.
    """
    custom = object_in(item, "custom") if isinstance(item, dict) else {}
    if not custom:
        return item
    arguments = dumps({"input": text_in(custom, "input")}).decode()
    function = {"name": custom.get("name"), "arguments": arguments}
    return {"id": item.get("id"), "type": "function", "function": function}


def read_tokens(usage: Any) -> Tokens:
    """Return the tokens in a usage object. What is missing, or is no count, is unknown."""
    fields = usage if isinstance(usage, dict) else {}
    details = read_token_details(fields)
    given = first_count(fields, "prompt_tokens", "input_tokens")
    cached, written = details.get("cached_tokens"), details.get("cache_written_tokens")
    is_sound = given is None or (cached or 0) + (written or 0) <= given
    return Tokens(
        input=given,
        output=first_count(fields, "completion_tokens", "output_tokens"),
        cached=cached if is_sound else None,
        cache_written=written if is_sound else None,
        reasoning=details.get("reasoning_tokens"),
    )
