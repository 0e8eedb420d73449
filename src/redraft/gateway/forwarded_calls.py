"""What telemetry is told of a request that is passed on, and of its reply: both in the form of all
calls of models, whichever protocol they speak.

Messages and texts are read only where they are recorded, and only in the protocols for
conversations; of another request, such as one for embeddings, its text is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..base.jsontext import list_in, loads, object_in, text_in
from ..loop.records import ToolCall
from ..loop.task import Message
from ..models.chat_replies import answer_fields
from ..models.sse import SSEParser
from ..protocols import Reply, Request
from ..usage import Usage, unknown_usage
from . import neutral
from .exchange import GatewayError
from .neutral import ProtocolName
from .protocols.chat_messages import write_messages
from .protocols.registry import CLIENTS, MODELS

OPERATIONS = {"responses": "chat", "messages": "chat", "completions": "text_completion"}
"""What the conventions call the kinds of requests that have another name here."""


def request_of(protocol: ProtocolName, body: Mapping[str, Any], has_content: bool) -> Request:  # noqa: FBT001  (telemetry passes it by position)
    """Return a request, with its messages only if they are wanted."""
    messages = _messages_in(protocol, body) if has_content else ()
    return Request(messages, params=body, is_generation=True)


def _messages_in(protocol: ProtocolName, body: Mapping[str, Any]) -> tuple[Message, ...]:
    with suppress(GatewayError):
        return write_messages(CLIENTS[protocol].read_request({"max_tokens": 1, **body}))
    text = text_in(body, "input") or text_in(body, "prompt")
    return ({"role": "user", "content": text},) if text else ()


def reply_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the JSON of a reply says besides its text, as fields of a Reply."""
    first = next(iter(list_in(data, "choices")), None)
    reason = text_in(object_in({"": first}, ""), "finish_reason")
    reason = reason or text_in(data, "stop_reason") or text_in(data, "status")
    return {**answer_fields(data, data.get("usage"), []), "finish_reason": reason or None}


def reply_of(
    protocol: ProtocolName,
    fields: Mapping[str, Any],
    usage: Usage | None,
    content: bytes,
    *,
    is_stream: bool,
) -> Reply:
    """Return a reply with the text and the calls of tools in its content, as far as it is known."""
    answer: Sequence[neutral.Reply | neutral.Turn] = ()
    with suppress(GatewayError, ValueError, LookupError):
        answer = _answer_in(protocol, content, is_stream=is_stream)
    return Reply(
        "".join(each.text for each in answer),
        usage or unknown_usage(),
        tool_calls=tuple(
            ToolCall(call.name, call.arguments, call.id)
            for each in answer
            for call in each.calls
            if call.name
        ),
        **{"finish_reason": None, **fields},
    )


def _answer_in(
    protocol: ProtocolName, content: bytes, *, is_stream: bool
) -> Sequence[neutral.Reply | neutral.Turn]:
    """Return an answer; of a stream, what has arrived. Raises GatewayError, ValueError or
    LookupError for what is none.
    """
    is_responses = protocol == "responses"  # whose last event has the whole answer
    if is_stream and not is_responses:
        return [_reply_in(MODELS[protocol].stream_reader().feed(content))]
    data = loads(SSEParser().feed(content)[-1][1] if is_stream else content)
    if not isinstance(data, dict):
        return ()
    if not is_responses:
        return [MODELS[protocol].read_reply(data)]
    output = (object_in(data, "response") or data)["output"]
    return CLIENTS[protocol].read_request({"model": "-", "input": output}).turns


def _reply_in(events: Iterable[neutral.Event]) -> neutral.Reply:
    """Return the text and the calls of tools in a stream, up to where it breaks off."""
    texts: list[str] = []
    calls: list[tuple[neutral.CallBegin, list[str]]] = []
    with suppress(GatewayError):
        for event in events:
            match event:
                case neutral.TextDelta():
                    texts.append(event.text)
                case neutral.CallBegin():
                    calls.append((event, []))
                case neutral.CallDelta():
                    calls[-1][1].append(event.arguments)
    asked = (neutral.Call(begin.id, begin.name, "".join(arguments)) for begin, arguments in calls)
    return neutral.Reply("", "", (neutral.Text("".join(texts)), *asked))
