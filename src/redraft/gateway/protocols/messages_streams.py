"""Streams of Anthropic's messages, read and written.

Blocks that are written follow each other; those that are read may be open at the same time. A
stream states its usage in its first and its last event; the counts of the last one are of the whole
reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.jsontext import dumps, dumps_text, list_in, object_in, text_in
from ...models.http_client import MAX_BODY_BYTES
from ..exchange import GatewayError
from ..neutral import (
    Begin,
    CallBegin,
    CallDelta,
    End,
    Event,
    Json,
    Other,
    Ping,
    Request,
    TextDelta,
    ThinkingDelta,
)
from .messages_replies import (
    ending_of,
    error_event,
    explanation_of,
    finish_of,
    message_event,
    message_head,
    read_tokens,
    shows_thinking,
    stop_sequence_of,
    text_of,
    usage_body,
)
from .messages_requests import ANSWER_TOOL
from .streams import (
    MAX_PARTS,
    EventReader,
    EventWriter,
    PartOrder,
    bad_reply,
    call_id,
)
from .tool_arguments import arguments_in

# ---- reading a stream


@dataclass(slots=True)
class _OpenBlock:
    """A block that is read: `data` is its start, `number` says how many began before it. `input` is
    that of a block that only this protocol has, as JSON.
    """

    number: int
    data: dict[str, Any]
    input: list[str] = field(default_factory=list)
    has_input: bool = False

    @property
    def is_other(self) -> bool:
        """Whether only this protocol has such blocks."""
        return self.data["type"] not in {"text", "thinking", "redacted_thinking", "tool_use"}

    @property
    def is_text(self) -> bool:
        """Whether it is a text, or thinking."""
        return self.data["type"] in {"text", "thinking"}

    def input_event(self, text: str) -> Event:
        """Return more of the input of a call."""
        return TextDelta(text) if self.data.get("name") == ANSWER_TOOL else CallDelta(text)


class MessagesStreamReader(EventReader):
    """Reads the stream of a reply."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Any, _OpenBlock] = {}  # by index
        self._order = PartOrder()
        self._blocks = 0
        self._kept_bytes = 0
        self._has_calls = self._has_begun = self._is_whole = False
        self._ending: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}

    def _read(self, data: Json) -> Iterator[Event]:
        index = data.get("index") if isinstance(data.get("index"), int) else None
        match data.get("type"):
            case "message_start" if not self._has_begun:
                self._has_begun = True
                message = object_in(data, "message")
                self._add_usage(message)
                yield Begin(
                    text_in(message, "id"), text_in(message, "model"), read_tokens(self._usage)
                )
            case "content_block_start":
                yield from self._end_block(index)
                yield from self._begin_block(index, data.get("content_block"))
            case "content_block_delta":
                yield from self._add(index, object_in(data, "delta"))
            case "content_block_stop":
                yield from self._end_block(index)
            case "message_delta":
                self._ending |= object_in(data, "delta")
                self._add_usage(data)
            case "message_stop":
                self._is_whole = self._has_begun
            case "ping":
                yield Ping()

    def _end(self) -> Iterator[Event]:
        if not self._is_whole:
            raise bad_reply("sent a stream that broke off")
        for index in [*self._open]:
            yield from self._end_block(index)
        if explanation := explanation_of(self._ending):
            yield TextDelta(explanation.text, is_refusal=True)
        finish = finish_of(self._ending.get("stop_reason"), has_calls=self._has_calls)
        yield End(finish, read_tokens(self._usage), stop_sequence_of(self._ending))

    def _add_usage(self, data: Json) -> None:
        usage = object_in(data, "usage")
        self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _begin_block(self, index: int | None, data: Any) -> Iterator[Event]:
        if not isinstance(data, dict) or not isinstance(data.get("type"), str):
            raise bad_reply("sent a block without a type")
        block = self._open[index] = _OpenBlock(self._blocks, data)
        self._blocks += 1
        if self._blocks > MAX_PARTS:
            raise bad_reply(f"sent more than {MAX_PARTS} blocks")
        yield from self._order.add(block.number, self._first_events(data))

    def _first_events(self, block: Json) -> Iterator[Event]:
        match block["type"]:
            case "text" if text := text_in(block, "text"):
                yield TextDelta(text)
            case "thinking":
                given = ThinkingDelta(text_in(block, "thinking"), text_in(block, "signature"))
                if given != ThinkingDelta():
                    yield given
            case "redacted_thinking":
                yield ThinkingDelta(redacted=text_of(block, "data"))
            case "tool_use" if block.get("name") != ANSWER_TOOL:
                self._has_calls = True
                yield CallBegin(text_of(block, "id"), text_of(block, "name"))

    def _add(self, index: int | None, delta: Json) -> Iterator[Event]:
        """Yield more of a block. A text whose block is not open, as of servers that count blocks
        otherwise, belongs to the last open one of a text, or to a new one.
        """
        kind, block = text_in(delta, "type"), self._open.get(index)
        if block is None and kind in {"text_delta", "thinking_delta", "signature_delta"}:
            texts = (each for each in reversed(self._open.values()) if each.is_text)
            block = next(texts, None)
            if block is None:
                yield from self._begin_block(index, {"type": "text"})
                block = self._open[index]
        if block is not None:
            yield from self._order.add(block.number, self._delta(block, delta))
        elif kind == "input_json_delta":
            raise bad_reply("sent more of a block that is not open")

    def _delta(self, block: _OpenBlock, delta: Json) -> Iterator[Event]:
        match delta:
            case {"type": "text_delta", "text": str(text)} if text:
                yield TextDelta(text)
            case {"type": "thinking_delta", "thinking": str(text)} if text:
                yield ThinkingDelta(text)
            case {"type": "signature_delta", "signature": str(signature)} if signature:
                yield ThinkingDelta(signature=signature)
            case {"type": "input_json_delta", "partial_json": str(text)} if text:
                block.has_input = True
                if not block.is_other:
                    yield block.input_event(text)
                else:
                    self._count(text)
                    block.input.append(text)
            case _ if block.is_other:
                self._count(delta)
                block.data |= {name: value for name, value in delta.items() if name != "type"}

    def _count(self, value: Any) -> None:
        """Bound what is kept of blocks until they end."""
        self._kept_bytes += len(dumps(value))
        if self._kept_bytes > MAX_BODY_BYTES:
            raise bad_reply(f"sent more than {MAX_BODY_BYTES} bytes in blocks that are no text")

    def _end_block(self, index: int | None) -> Iterator[Event]:
        """Yield what is known of a block when it ends, and what has waited for that."""
        if block := self._open.pop(index, None):
            yield from self._order.add(block.number, _last_events(block))
            yield from self._order.end(block.number)


def _last_events(block: _OpenBlock) -> Iterator[Event]:
    """Yield a block that only this protocol has, or the input of a call that came as a whole."""
    if block.is_other:
        whole = {"input": arguments_in("".join(block.input))} if block.has_input else {}
        if None in whole.values():
            raise bad_reply("sent a block whose input is no JSON object")
        yield Other(block.data["type"], block.data | whole)
    elif block.data["type"] == "tool_use" and not block.has_input:
        yield block.input_event(dumps_text(object_in(block.data, "input")))


# ---- writing a stream


class MessagesStreamWriter(EventWriter):
    """Writes one stream. Progress is a ping, which clients ignore, with the step in it if the
    request asks for `events`.
    """

    def __init__(self, request: Request, created: int) -> None:
        super().__init__(request, created)
        self._reply_id = ""
        self._open = ""  # the type of the open block
        self._index = 0
        self._has_calls = False
        self._thoughts: list[str] = []  # that are shown only if a signature follows

    def write(self, event: Event) -> bytes:
        """Return what an event of the neutral form is in the protocol."""
        return b"".join(self._events(event))

    def keep_alive(self) -> bytes:
        """Return a ping."""
        return message_event("ping")

    def _progress_event(self, step: Json) -> bytes:
        return message_event("ping", redraft=step)

    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""
        return error_event(error)

    def _events(self, event: Event) -> Iterator[bytes]:
        match event:
            case Begin():
                yield self._begin(event)
            case TextDelta():
                yield from self._text(event)
            case ThinkingDelta():
                yield from self._thinking(event)
            case CallBegin():
                yield from self._close_block()
                self._has_calls = True
                id = call_id(event.id, self._reply_id, self._index)
                name = self._request.called_tool(event.name).name
                yield from self._open_block("tool_use", {"id": id, "name": name, "input": {}})
            case CallDelta() if self._open == "tool_use":
                yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            case Other():
                yield from self._close_block()
                yield from self._open_block(event.kind, event.raw)
                yield from self._close_block()
            case End():
                yield from self._end(event)
            case Ping():
                yield self.keep_alive()

    def _begin(self, begin: Begin) -> bytes:
        """Return the start of the message. Clients add up its tokens, so that what is not known yet
        is 0; all follow at the end.
        """
        self._reply_id = begin.id
        tokens = replace(
            begin.tokens, input=begin.tokens.input or 0, output=begin.tokens.output or 0
        )
        message = message_head(self._request, begin, self._created) | {"usage": usage_body(tokens)}
        return message_event("message_start", message=message)

    def _text(self, event: TextDelta) -> Iterator[bytes]:
        """Yield more of a text; its citations end it."""
        yield from self._open_block("text", {"text": ""})
        if event.text:
            yield self._delta({"type": "text_delta", "text": event.text})
        for citation in list_in(event.raw or {}, "citations"):
            yield self._delta({"type": "citations_delta", "citation": citation})
        if event.raw:
            yield from self._close_block()

    def _thinking(self, event: ThinkingDelta) -> Iterator[bytes]:
        if event.redacted:
            yield from self._close_block()
            block = {"data": event.redacted}
            yield from self._open_block("redacted_thinking", block)
            yield from self._close_block()
            return
        self._thoughts.append(event.text)
        if event.signature or shows_thinking(self._request):
            text, self._thoughts = "".join(self._thoughts), []
            yield from self._open_block("thinking", {"thinking": "", "signature": ""})
            if text:
                yield self._delta({"type": "thinking_delta", "thinking": text})
        if event.signature:
            yield self._delta({"type": "signature_delta", "signature": event.signature})
            yield from self._close_block()

    def _open_block(self, kind: str, fields: Json) -> Iterator[bytes]:
        """Yield the start of a block, after the end of another one; nothing if it is open."""
        if self._open == kind:
            return
        yield from self._close_block()
        self._open, self._thoughts = kind, []
        block = {"type": kind, **fields}
        yield message_event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return message_event("content_block_delta", index=self._index, delta=delta)

    def _close_block(self) -> Iterator[bytes]:
        if self._open:
            yield message_event("content_block_stop", index=self._index)
            self._open = ""
            self._index += 1

    def _end(self, end: End) -> Iterator[bytes]:
        yield from self._close_block()
        delta = ending_of(end.finish, end.stop_sequence, has_calls=self._has_calls)
        fields = {} if end.outcome is None else {"redraft": end.outcome}
        usage = usage_body(end.tokens, end.outcome)
        yield message_event("message_delta", delta=delta, usage=usage, **fields)
        yield message_event("message_stop")
