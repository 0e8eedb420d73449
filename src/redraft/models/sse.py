"""Read a streamed answer: cut server-sent events out of bytes and assemble them into one `Reply`.

Sizes are bounded: a stream of more than `MAX_BODY_BYTES` is refused. Nothing here touches the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.records import MAX_TOOL_CALLS
from ..jsontext import join_surrogate_pairs, nesting_depth
from ..protocols import Reply
from ..text import utf8_size
from .http_client import MAX_BODY_BYTES, UNKNOWN_USAGE, too_large_error
from .openai_responses import (
    MAX_ARGUMENT_DEPTH,
    THINK_CLOSE,
    THINK_OPEN,
    TRANSIENT_STATUSES,
    ErrorBody,
    bad_response,
    json_type_name,
    read_usage,
    reasoning_text,
    reply_from_message,
    split_content,
)

MAX_EVENT_OVERHEAD = 1024
"""Bytes that an event may have around its text."""


class LineSplitter:
    """Lines cut out of bytes as they come."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self.pending_bytes = 0  # bytes of the line that is not whole yet

    def feed(self, part: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *lines, tail = part.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail, self.pending_bytes = [], 0
        self._tail.append(tail)
        self.pending_bytes += len(tail)
        return lines

    def remainder(self) -> bytes:
        """The last line, which nothing ended."""
        return b"".join(self._tail)


class SSEParser:
    """Server-sent events cut out of the bytes as they come: (name, data) each.

    Raises BadResponseError for an event of more than `CAP` bytes, and for a stream in which so much stands that is no event.
    """

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._remaining_bytes = MAX_BODY_BYTES
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> list[tuple[str, bytes]]:
        found = [event for line in self._lines.feed(part) if (event := self._line(line.rstrip(b"\r")))]
        self._remaining_bytes = min(self._remaining_bytes - len(part) + MAX_EVENT_OVERHEAD * len(found), MAX_BODY_BYTES)
        if self._remaining_bytes < 0:
            raise too_large_error()
        return found

    def finish(self) -> list[tuple[str, bytes]]:
        """What stands in a last event that no blank line ended."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> tuple[str, bytes] | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.strip().decode("utf-8", "replace")
        elif field == b"error":
            self._name = "error"
            self._data.append(value)
        return None

    def _dispatch(self) -> tuple[str, bytes] | None:
        event = (self._name, b"\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event


class StreamAssembler:
    """A streamed answer put together again. `add` takes one event's data and returns the new text in it."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._calls = ToolCallAssembler()
        self._half_surrogate = ""
        self._finish: str | None = None
        self._usage: Any = None
        self._events = 0
        self._remaining_bytes = MAX_BODY_BYTES

    def add(self, event: Any) -> str:
        if not isinstance(event, dict):
            raise bad_response(f"sent {json_type_name(event)} in a stream")
        if event.get("error"):
            said = ErrorBody(event)
            raise bad_response(f"broke off with an error: {said.text}", retryable=said.status in {None, *TRANSIENT_STATUSES})
        self._events += 1
        self._usage = event.get("usage") or self._usage
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return self._add_choice(choice) if isinstance(choice, dict) else ""

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return ""
        text, thoughts = split_content(delta.get("content"), UNKNOWN_USAGE)
        text, self._half_surrogate = _split_half_surrogate(self._half_surrogate + text)
        thoughts.append(reasoning_text(delta))
        refusal = _text(delta.get("refusal"))
        parts = _list(delta.get("tool_calls")) or [{"index": 0, "function": f} for f in [delta.get("function_call")] if f]
        self._remaining_bytes -= sum(map(utf8_size, (text, refusal, *thoughts))) + sum(map(self._calls.add, parts))
        if self._remaining_bytes < 0:
            raise too_large_error()
        self._text.append(text)
        self._thoughts += thoughts
        self._refusal.append(refusal)
        return text

    def reply(self) -> Reply:
        """The whole answer. Raises unless the stream said that it was whole."""
        if self._finish is None:
            what = "ended without a finish_reason" if self._events else "held nothing"
            raise bad_response(f"sent a stream that {what}")
        message = {
            "content": "".join([*self._text, self._half_surrogate]),
            "reasoning_content": join_surrogate_pairs("".join(self._thoughts)),
            "refusal": "".join(self._refusal),
            "tool_calls": self._calls.tool_calls(),
        }
        return reply_from_message(message, self._finish, read_usage(self._usage))


def _split_half_surrogate(text: str) -> tuple[str, str]:
    """A piece of a text, and the half of a surrogate pair at its end: the other half may come with the next piece."""
    end = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
    return join_surrogate_pairs(text[:end]), text[end:]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class VisibleText:
    """The part of a streamed text that may be shown: a leading `<think>` block is held back."""

    def __init__(self) -> None:
        self._leading_space: list[str] = []
        self._buffer = ""
        self._in_thought = self._had_thought = self._is_visible = False

    def add(self, text: str) -> str:
        if self._is_visible:
            return text
        self._buffer += text
        while self._in_thought or self._buffer.lstrip().startswith(THINK_OPEN):
            if not self._skip_thought():
                return ""
        return self._try_start()

    def _skip_thought(self) -> bool:
        """Whether the thought ended. Of what stands in it only so much is held as may begin the tag that ends it."""
        held = self._buffer if self._in_thought else self._buffer.lstrip().removeprefix(THINK_OPEN)
        _, closed, rest = held.partition(THINK_CLOSE)
        self._had_thought, self._in_thought = True, not closed
        self._buffer = rest if closed else held[1 - len(THINK_CLOSE) :]
        return bool(closed)

    def _try_start(self) -> str:
        """What is held, once it is known to be no thought, with the white space before it unless that follows a thought."""
        start = self._buffer.lstrip()
        self._leading_space.append(self._buffer[: len(self._buffer) - len(start)])
        self._buffer = start
        if THINK_OPEN.startswith(start):
            return ""
        self._is_visible = True
        return self._buffered_text()

    def flush(self) -> str:
        """What was held back and is no thought after all."""
        return "" if self._is_visible or self._in_thought else self._buffered_text()

    def _buffered_text(self) -> str:
        return self._buffer if self._had_thought else "".join([*self._leading_space, self._buffer])


class ToolCallAssembler:
    """Tool calls put together from the parts of a stream, in the order in which they began.

    A part belongs to the call of its `index`, without one to that of its `id`, else to the last. One with a name and an id that
    are not those of the call at its index begins another: some servers number every call 0. `add` returns the bytes of text in it.
    """

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._by_key: dict[Any, dict[str, Any]] = {}

    def add(self, part: Any) -> int:
        if not isinstance(part, dict):
            raise bad_response(f"sent a stream with {json_type_name(part)} as a tool call in it")
        function = part.get("function")
        if function is not None and not isinstance(function, dict):
            raise bad_response(f"sent a stream with {json_type_name(function)} as the function of a tool call")
        call, function = self._call(part, function or {}), function or {}
        call["type"] = call["type"] or part.get("type")
        if isinstance(name := function.get("name"), str):
            call["name"] = call["name"] or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call["parts"].append(arguments)
        elif arguments is not None:
            if nesting_depth(arguments) > MAX_ARGUMENT_DEPTH:
                raise bad_response(f"nested the arguments of a tool call more than {MAX_ARGUMENT_DEPTH} deep")
            call["whole"] = arguments
            arguments = json.dumps(arguments)
        return sum(utf8_size(text) for text in (name, arguments) if isinstance(text, str))

    def _call(self, part: Mapping[str, Any], function: Mapping[str, Any]) -> dict[str, Any]:
        """The call that a part belongs to; a new one where it begins one."""
        id = part.get("id") if isinstance(part.get("id"), str) else ""
        index = part.get("index") if type(part.get("index")) is int else None
        known = self._by_key.get(("index", index)) if index is not None else self._by_key.get(("id", id)) if id else None
        if known is None and index is None and not id and not (function.get("name") and self._is_last_complete):
            known = self._calls[-1] if self._calls else None
        if known is not None and id and known["id"] and id != known["id"] and function.get("name"):
            known = self._by_key.get(("id", id))
        if known is None:
            if len(self._calls) == MAX_TOOL_CALLS:
                raise bad_response(f"sent more than {MAX_TOOL_CALLS} tool calls")
            known = {"id": "", "type": None, "name": "", "parts": [], "whole": None}
            self._calls.append(known)
        known["id"] = known["id"] or id
        if index is not None:
            self._by_key["index", index] = known
        if id:
            self._by_key["id", id] = known
        return known

    @property
    def _is_last_complete(self) -> bool:
        """Whether the last call has a name and arguments, so that another name begins another call."""
        return bool(self._calls and self._calls[-1]["name"] and (self._calls[-1]["parts"] or self._calls[-1]["whole"] is not None))

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls as a message holds them."""
        return [
            {
                "id": call["id"],
                "type": call["type"],
                "function": {"name": call["name"], "arguments": join_surrogate_pairs("".join(call["parts"])) or call["whole"]},
            }
            for call in self._calls
        ]
