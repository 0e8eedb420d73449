"""Streams of models, from OpenAI's chat form into Anthropic's and back, event by event as they
arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..base.jsontext import dumps, loads
from ..errors import ModelError
from ..models.chat_replies import json_type_name, reasoning_text, split_content
from ..models.server_errors import ErrorBody, stated_error
from ..models.sse import SSEParser
from ..usage import Usage
from .anthropic_wire import message_event
from .chat_wire import comment, event
from .whole_replies import (
    bad_reply,
    chat_usage,
    finish_of,
    message_id,
    messages_usage,
    stop_reason,
)

MAX_BLOCKS = 4096  # of one reply


def block_index(data: Mapping[str, Any]) -> int:
    """Return the number of the block or tool call that a part belongs to; servers that state none
    send one.
    """
    index = data.get("index")
    return index if isinstance(index, int) else 0


class EventReader:
    """Reads the events of a stream, and hands each to `_convert`, which yields the bytes for it."""

    def __init__(self) -> None:
        self._parser = SSEParser()

    def feed(self, part: bytes) -> bytes:
        """Add bytes of the model, and return those for the client. Raises GatewayError for what is
        no such stream.
        """
        try:
            events = self._parser.feed(part)
        except ModelError as error:
            raise bad_reply(str(error)) from None
        return b"".join(converted for _, data in events for converted in self._convert_data(data))

    def _convert_data(self, data: bytes) -> Iterator[bytes]:
        if data.strip() == b"[DONE]":
            return
        try:
            content = loads(data)
        except ValueError:
            raise bad_reply("sent an event that is no JSON") from None
        if not isinstance(content, dict):
            raise bad_reply(f"sent {json_type_name(content)} as an event")
        if error := stated_error(content):
            raise bad_reply(f"broke off with an error: {ErrorBody({'error': error}).text}")
        yield from self._convert(content)

    def _convert(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        raise NotImplementedError

    def _rest(self) -> bytes:
        """Return what the last bytes hold if no blank line ended them."""
        return self.feed(b"\n\n")


class MessagesReplyStream(EventReader):
    """Writes the stream of a chat completion as Anthropic's events.

    Anthropic's blocks follow each other, so a tool call ends where the next one begins.
    """

    def __init__(self, *, shows_thinking: bool) -> None:
        super().__init__()
        self._shows_thinking = shows_thinking
        self._has_begun = False
        self._block: tuple[str, Any] | None = (
            None  # the open block: its type, and for a tool call its index and ID
        )
        self._count = 0
        self._calls: dict[int, str] = {}
        self._finish: str | None = None
        self._is_refusal = False
        self._usage: Any = None

    def _convert(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            yield self._start(data)
        self._usage = data.get("usage") or self._usage
        choices = data.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            delta = choice.get("delta")
            yield from self._delta(delta if isinstance(delta, dict) else {})
            self._finish = finish_of(choice) or self._finish

    def _start(self, data: Mapping[str, Any]) -> bytes:
        message: dict[str, Any] = {
            "id": message_id(data.get("id"), "msg_"),
            "type": "message",
            "role": "assistant",
            "model": data.get("model") or "",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return message_event("message_start", message=message)

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        try:
            text, thoughts = split_content(delta.get("content"), Usage())
        except ModelError as error:
            raise bad_reply(str(error)) from None
        thought = reasoning_text(delta) or "".join(thoughts)
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            text, self._is_refusal = text + delta["refusal"], True
        if thought and self._shows_thinking:
            yield from self._open("thinking", None, {"thinking": "", "signature": ""})
            yield self._block_delta({"type": "thinking_delta", "thinking": thought})
        if text:
            yield from self._open("text", None, {"text": ""})
            yield self._block_delta({"type": "text_delta", "text": text})
        calls = delta.get("tool_calls")
        for part in calls if isinstance(calls, list) else ():
            yield from self._call_part(part)

    def _call_part(self, part: Any) -> Iterator[bytes]:
        """Yield the events for a part of a tool call. One with a new ID and a name begins a
        call.
        """
        function = part.get("function") if isinstance(part, dict) else None
        if not isinstance(function, dict):
            raise bad_reply("sent a tool call without a function")
        index, id, name = block_index(part), part.get("id"), function.get("name")
        known = self._calls.get(index)
        if name and isinstance(name, str) and (known is None or (id and id != known)):
            id = id if isinstance(id, str) and id else f"call_{self._count}"
            self._calls[index] = id
            yield from self._open("tool_use", id, {"id": id, "name": name, "input": {}})
        elif known is None or self._block != ("tool_use", known):
            raise bad_reply(
                "sent parts of several tool calls mixed, which Anthropic's protocol cannot say"
            )
        if arguments := function.get("arguments"):
            text = arguments if isinstance(arguments, str) else dumps(arguments).decode()
            yield self._block_delta({"type": "input_json_delta", "partial_json": text})

    def _open(self, kind: str, id: str | None, fields: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the start of a block, after the end of another one; nothing if the block is
        open.
        """
        if self._block == (kind, id):
            return
        yield from self._close()
        if self._count == MAX_BLOCKS:
            raise bad_reply(f"sent more than {MAX_BLOCKS} blocks")
        self._block = (kind, id)
        yield message_event(
            "content_block_start", index=self._count, content_block={"type": kind, **fields}
        )

    def _block_delta(self, delta: Mapping[str, Any]) -> bytes:
        return message_event("content_block_delta", index=self._count, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._block is not None:
            yield message_event("content_block_stop", index=self._count)
            self._block = None
            self._count += 1

    def finish(self) -> bytes:
        """Return the end of the message. Raises GatewayError if the stream broke off."""
        rest = self._rest()
        if self._finish is None:
            raise bad_reply("sent a stream without a finish_reason")
        end = b"".join(self._close())
        reason = (
            "refusal"
            if self._is_refusal
            else stop_reason(self._finish, has_calls=bool(self._calls))
        )
        delta = {"stop_reason": reason, "stop_sequence": None}
        last = message_event("message_delta", delta=delta, usage=messages_usage(self._usage))
        return rest + end + last + message_event("message_stop")


class ChatReplyStream(EventReader):
    """Writes Anthropic's events as the stream of a chat completion."""

    def __init__(self, created: int, *, includes_usage: bool) -> None:
        super().__init__()
        self._includes_usage = includes_usage
        self._head: dict[str, Any] = {"object": "chat.completion.chunk", "created": created}
        self._calls: dict[int, int] = {}  # by the index of their block
        self._empty_calls: set[int] = set()
        self._usage: dict[str, Any] = {}
        self._stop_reason: Any = None
        self._is_whole = False

    def _convert(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        match data.get("type"):
            case "message_start":
                yield self._start(data.get("message"))
            case "content_block_start":
                yield from self._block_start(data)
            case "content_block_delta":
                yield from self._block_delta(data)
            case "content_block_stop" if (
                block_index(data) in self._empty_calls
            ):  # (a call without arguments has no JSON at all)
                function = {"arguments": "{}"}
                yield self._chunk(
                    {
                        "tool_calls": [
                            {"index": self._calls[block_index(data)], "function": function}
                        ]
                    }
                )
            case "message_delta":
                delta = data.get("delta")
                self._stop_reason = delta.get("stop_reason") if isinstance(delta, dict) else None
                self._add_usage(data.get("usage"))
            case "message_stop":
                self._is_whole = True
            case "ping":
                yield comment("ping")

    def _start(self, message: Any) -> bytes:
        given = message if isinstance(message, dict) else {}
        self._head |= {
            "id": message_id(given.get("id"), "chatcmpl-"),
            "model": given.get("model") or "",
        }
        self._add_usage(given.get("usage"))
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _block_start(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        block = data.get("content_block")
        if not isinstance(block, dict):
            raise bad_reply("sent a block without a content")
        if block.get("type") == "tool_use":
            if len(self._calls) == MAX_BLOCKS:
                raise bad_reply(f"sent more than {MAX_BLOCKS} blocks")
            n = self._calls[block_index(data)] = len(self._calls)
            arguments = dumps(block["input"]).decode() if block.get("input") else ""
            function = {"name": block.get("name"), "arguments": arguments}
            if not arguments:
                self._empty_calls.add(block_index(data))
            yield self._chunk(
                {
                    "tool_calls": [
                        {
                            "index": n,
                            "id": block.get("id"),
                            "type": "function",
                            "function": function,
                        }
                    ]
                }
            )
        elif block.get("type") == "text" and isinstance(block.get("text"), str) and block["text"]:
            yield self._chunk({"content": block["text"]})

    def _block_delta(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        delta = data.get("delta")
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                yield self._chunk({"content": text})
            case {"type": "thinking_delta", "thinking": str(text)}:
                yield self._chunk({"reasoning_content": text})
            case {"type": "input_json_delta", "partial_json": str(text)}:
                n = self._calls.get(block_index(data))
                if n is None:
                    raise bad_reply("sent the input of a tool call that did not begin")
                if text:
                    self._empty_calls.discard(block_index(data))
                    yield self._chunk(
                        {"tool_calls": [{"index": n, "function": {"arguments": text}}]}
                    )

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        usage = {"usage": None} if self._includes_usage else {}
        return event(
            {
                **self._head,
                "choices": [
                    {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
                ],
                **usage,
            }
        )

    def finish(self) -> bytes:
        """Return the end of the completion. Raises GatewayError if the stream broke off."""
        rest = self._rest()
        if not self._is_whole:
            raise bad_reply("sent a stream that broke off")
        last = [self._chunk({}, finish_of({"finish_reason": self._stop_reason}) or "stop")]
        usage = chat_usage(self._usage)
        if self._includes_usage and usage is not None:
            last.append(event({**self._head, "choices": [], "usage": usage}))
        return rest + b"".join(last) + b"data: [DONE]\n\n"
