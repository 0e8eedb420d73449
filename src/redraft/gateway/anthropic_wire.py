"""Anthropic's messages: requests are read, answers and errors are written.

The model of a refinement gets the request in OpenAI's form (see `messages_to_chat`). Thinking that
a request demands (`thinking.type: enabled`) is refused, because the drafts of several calls have no
thinking of one turn; a model that thinks as it likes ("adaptive") may. The thinking blocks of
earlier turns are not sent on: only the model that wrote them can read them. An unknown number of
tokens is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..base.jsontext import loads
from ..loop.records import ToolCall
from ..loop.task import validate_tools
from .chat_wire import (
    event,
    pieces,
    progress_body,
    progress_comment,
    refinement_body,
    tool_choice_of,
    with_ids,
)
from .exchange import (
    Answer,
    AnswerStream,
    ChatRequest,
    GatewayError,
    Progress,
    WireName,
    invalid_request,
)
from .messages_to_chat import chat_body, output_schema, thinking_kind
from .request_fields import (
    checked_messages,
    checked_schema,
    errors_of_field,
    options_of,
)

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Anthropic's reasons to stop, by OpenAI's."""
ERROR_TYPES = {
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
READ_DIRECTLY = frozenset(
    (
        "model",
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "temperature",
        "max_tokens",
        "stream",
        "stream_options",
    )
)
"""The fields of the chat form that a ChatRequest has; others are parameters."""


class MessagesWire:
    """The protocol of `POST /v1/messages`."""

    name: WireName = "messages"

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """Read a request. Raises GatewayError 400 naming the field for anything that is wrong or
        cannot be honoured.
        """
        chat = chat_body(body)
        if thinking_kind(body) == "enabled":
            message = (
                "thinking.type 'enabled' is not supported for refined answers: use 'adaptive' or "
                "'disabled', or a model pass/NAME"
            )
            raise invalid_request("thinking", message)
        with errors_of_field("tools"):
            tools = validate_tools(chat.get("tools", ()))
        schema = output_schema(body.get("output_config"))
        return ChatRequest(
            wire=self.name,
            model=chat["model"],
            body=body,
            messages=checked_messages(chat["messages"]),
            tools=tools,
            tool_choice=tool_choice_of(chat.get("tool_choice"), tools),
            schema=None
            if schema is None
            else checked_schema("output_config.format.schema", schema),
            temperature=chat.get("temperature"),
            max_tokens=chat["max_tokens"],
            parameters={name: value for name, value in chat.items() if name not in READ_DIRECTLY},
            is_stream="stream" in chat,
            include_usage=True,
            options=options_of(body),
        )

    def answer_body(self, request: ChatRequest, answer: Answer, created: int) -> dict[str, Any]:
        """Return the reply to a request that reads no stream."""
        content: list[dict[str, Any]] = (
            [{"type": "text", "text": answer.text}] if answer.text else []
        )
        content += [_tool_use(call) for call in with_ids(answer)]
        return {
            **_message(request, answer.trace_id),
            "content": content,
            "stop_reason": STOP_REASONS.get(answer.finish_reason, "end_turn"),
            "usage": _usage(answer),
            "redraft": refinement_body(answer),
        }

    def error_status(self, error: GatewayError) -> int:
        """Return the HTTP status of an error: 529 for an overload."""
        return OVERLOADED_STATUS if error.status == 503 else error.status

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the reply that describes an error."""
        other = "api_error" if error.status >= 500 else "invalid_request_error"
        kind = ERROR_TYPES.get(error.status, other)
        return {
            "type": "error",
            "error": {
                "type": kind,
                "message": error.message,
                "code": error.code,
                "param": error.param,
            },
        }

    def stream(self, request: ChatRequest, trace_id: str, created: int) -> AnswerStream:
        """Return what writes the answer to a request that reads a stream."""
        return MessagesStream(request, trace_id)


class MessagesStream:
    """Writes an answer as Anthropic's events. Progress is a ping, which clients ignore, with the
    step in it if asked for.
    """

    def __init__(self, request: ChatRequest, trace_id: str) -> None:
        self._request, self._trace_id = request, trace_id

    def begin(self) -> bytes:
        """Return the start of the message. Its tokens are not known yet, and follow at its end."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        message = {
            **_message(self._request, self._trace_id),
            "content": [],
            "stop_reason": None,
            "usage": usage,
        }
        return message_event("message_start", message=message)

    def keep_alive(self) -> bytes:
        """Return a ping."""
        return message_event("ping")

    def progress(self, progress: Progress) -> bytes:
        """Return a step of the work: a comment, or a ping with a field `redraft` if the request
        asks for `events`.
        """
        if not self._request.options.events:
            return progress_comment(progress)
        return message_event("ping", redraft=progress_body(progress))

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """Return the content of the answer and everything after it."""
        index = 0
        if answer.text:
            yield from text_block_events(index, answer.text)
            index += 1
        for call in with_ids(answer):
            yield from tool_block_events(index, call)
            index += 1
        stop_reason = STOP_REASONS.get(answer.finish_reason, "end_turn")
        delta = {"stop_reason": stop_reason, "stop_sequence": None}
        yield message_event(
            "message_delta", delta=delta, usage=_usage(answer), redraft=refinement_body(answer)
        )
        yield message_event("message_stop")

    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""
        return event(MessagesWire().error_body(error), "error")


def message_event(kind: str, **fields: Any) -> bytes:
    """Return one of Anthropic's events, whose name is also the type in its data."""
    return event({"type": kind, **fields}, kind)


def text_block_events(index: int, text: str) -> Iterator[bytes]:
    """Yield the events of a block of text."""
    yield message_event(
        "content_block_start", index=index, content_block={"type": "text", "text": ""}
    )
    for piece in pieces(text):
        yield message_event(
            "content_block_delta", index=index, delta={"type": "text_delta", "text": piece}
        )
    yield message_event("content_block_stop", index=index)


def tool_block_events(index: int, call: ToolCall) -> Iterator[bytes]:
    """Yield the events of a tool call."""
    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
    yield message_event("content_block_start", index=index, content_block=block)
    for piece in pieces(call.arguments):
        yield message_event(
            "content_block_delta",
            index=index,
            delta={"type": "input_json_delta", "partial_json": piece},
        )
    yield message_event("content_block_stop", index=index)


def tool_input(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a tool call as an object. Raises GatewayError 502 if the model wrote
    something else.
    """
    try:
        arguments = loads(call.arguments.encode(errors="replace") or b"{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise GatewayError(
            502,
            "upstream_error",
            f"the model called {call.name!r} with arguments that are no JSON object",
        )
    return arguments


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": tool_input(call)}


def _message(request: ChatRequest, trace_id: str) -> dict[str, Any]:
    return {
        "id": f"msg_{trace_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "stop_sequence": None,
    }


def _usage(answer: Answer) -> dict[str, Any]:
    """Return the tokens of the answer's own call, and those of all calls in `redraft`. What is
    unknown is null.
    """
    usage = answer.usage
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "redraft": refinement_body(answer),
    }
