"""Read a streamed answer: parse server-sent events and assemble them into one `Reply`.

Lines, events and texts of more than `MAX_BODY_BYTES` are refused. Nothing here uses the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.jsontext import join_surrogate_pairs, list_in, object_in, text_in
from ..base.text import utf8_size
from ..loop.records import MAX_TOOL_CALLS
from ..protocols import Reply
from .chat_replies import (
    MAX_TOKENS,
    answer_fields,
    bad_response,
    check_argument_depth,
    json_type_name,
    logprob_entries,
    read_finish,
    read_usage,
    reasoning_field,
    reply_from_message,
    split_content,
)
from .http_client import (
    MAX_BODY_BYTES,
    UNKNOWN_USAGE,
    malformed_response,
    too_large_error,
)
from .server_errors import answer_error, stated_error

MAX_EVENT_OVERHEAD = 1024  # bytes of an event around its text


class LineSplitter:
    """Splits bytes into lines as they arrive."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self.pending_bytes = 0  # bytes of the incomplete last line

    def feed(self, part: bytes) -> list[bytes]:
        """Add bytes, and return the lines that are complete."""
        *lines, tail = part.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail, self.pending_bytes = [], 0
        self._tail.append(tail)
        self.pending_bytes += len(tail)
        return lines

    def remainder(self) -> bytes:
        """Return the incomplete last line."""
        return b"".join(self._tail)


class SSEParser:
    """Parses bytes into server-sent events, (name, data) each, as they arrive.

    Events without data are none. What else some servers write is read, too: an error as a line of
    its own, and comments as data. Raises BadResponseError for an event, or other text between
    events, of more than MAX_BODY_BYTES.
    """

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._remaining_bytes = MAX_BODY_BYTES
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> list[tuple[str, bytes]]:
        """Add bytes, and return the events that are complete."""
        events = [
            event for line in self._lines.feed(part) if (event := self._line(line.rstrip(b"\r")))
        ]
        self._remaining_bytes = min(
            self._remaining_bytes - len(part) + MAX_EVENT_OVERHEAD * len(events), MAX_BODY_BYTES
        )
        if self._remaining_bytes < 0:
            raise too_large_error()
        return events

    def finish(self) -> list[tuple[str, bytes]]:
        """Return the last event if no blank line ended it."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> tuple[str, bytes] | None:
        if not line:
            data = b"\n".join(self._data)
            event = (self._name, data) if data.strip() and not data.startswith(b":") else None
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.strip().decode("utf-8", "replace")
        elif field in {b"error", b'{"error"'}:
            self._name = "error"
            self._data.append(value if field == b"error" else line)
        return None


class StreamAssembler:
    """Assembles a streamed answer. `add` takes the data of one event and returns its new text."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_field = "reasoning_content"
        self._refusal: list[str] = []
        self._calls = ToolCallAssembler()
        self._half_surrogate = ""
        self._logprobs: list[Any] = []
        self._finish: str | None = None
        self._usage: Any = None
        self._first_event: Mapping[str, Any] | None = None
        self._remaining_bytes = MAX_BODY_BYTES

    def add(self, event: Any) -> str:
        if not isinstance(event, dict):
            raise malformed_response(f"sent {json_type_name(event)} in a stream")
        if error := stated_error(event):
            raise answer_error("broke off with an error", error)
        if self._first_event is None:
            self._first_event = event
        self._usage = event.get("usage") or object_in(event, "x_groq").get("usage") or self._usage
        choice = next(iter(list_in(event, "choices")), None)
        return self._add_choice(choice) if isinstance(choice, dict) else ""

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        self._finish = read_finish(choice) or self._finish
        if len(self._logprobs) <= MAX_TOKENS:
            self._logprobs += logprob_entries(choice)
        delta = object_in(choice, "delta")
        text, reasoning = split_content(delta.get("content"), UNKNOWN_USAGE)
        if field := reasoning_field(delta):
            self._reasoning_field = field
            reasoning.append(delta[field])
        text = self._half_surrogate + text
        # the other half of a surrogate pair may come next
        end = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
        text, self._half_surrogate = join_surrogate_pairs(text[:end]), text[end:]
        refusal, call_parts = text_in(delta, "refusal"), list_in(delta, "tool_calls")
        if not call_parts and (function_call := delta.get("function_call")):
            call_parts = [{"index": 0, "function": function_call}]
        self._remaining_bytes -= sum(map(utf8_size, (text, refusal, *reasoning))) + sum(
            map(self._calls.add, call_parts)
        )
        if self._remaining_bytes < 0:
            raise too_large_error()
        self._text.append(text)
        self._reasoning += reasoning
        self._refusal.append(refusal)
        return text

    def reply(self) -> Reply:
        """Return the whole answer. Raises BadResponseError if the stream did not end with a
        finish_reason.
        """
        if self._finish is None:
            fault = "ended without a finish_reason" if self._first_event else "was empty"
            raise malformed_response(f"sent a stream that {fault}")
        message = {
            "content": "".join([*self._text, self._half_surrogate]),
            self._reasoning_field: join_surrogate_pairs("".join(self._reasoning)),
            "refusal": "".join(self._refusal),
            "tool_calls": [call.as_message() for call in self._calls.calls],
        }
        fields = answer_fields(self._first_event or {}, self._usage, self._logprobs)
        return reply_from_message(message, self._finish, read_usage(self._usage), fields)


@dataclass
class PartialCall:
    """A tool call of which parts have arrived. `whole`: its arguments if they came as an object."""

    id: str = ""
    type: object = None
    name: str = ""
    parts: list[str] = field(default_factory=list)
    whole: Any = None

    def add(self, function: Mapping[str, Any]) -> int:
        """Add the function of a part, and return the bytes of text in it."""
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str):
            self.name = self.name or name
        if isinstance(arguments, str):
            self.parts.append(arguments)
        elif arguments is not None:
            check_argument_depth(arguments, "the arguments of a tool call", UNKNOWN_USAGE)
            self.whole = arguments
            arguments = json.dumps(arguments)
        return sum(utf8_size(text) for text in (name, arguments) if isinstance(text, str))

    @property
    def is_complete(self) -> bool:
        """Whether it has a name and arguments, so that another name begins another call."""
        return bool(self.name and (self.parts or self.whole is not None))

    def as_message(self) -> dict[str, Any]:
        """Return the call in the form of a message."""
        arguments = join_surrogate_pairs("".join(self.parts)) or self.whole
        return {
            "id": self.id,
            "type": self.type,
            "function": {"name": self.name, "arguments": arguments},
        }


def _function_of(part: object) -> Mapping[str, Any]:
    """Return the function in a part of a tool call. Raises BadResponseError for anything else."""
    if not isinstance(part, dict):
        raise malformed_response(f"sent a stream with {json_type_name(part)} as a tool call in it")
    function = {} if part.get("function") is None else part["function"]
    if not isinstance(function, dict):
        raise malformed_response(
            f"sent a stream with {json_type_name(function)} as the function of a tool call"
        )
    return function


class ToolCallAssembler:
    """Assembles tool calls from the parts in a stream, in the order in which they began.

    A part belongs to the call with its `index`; without one, to that with its `id`, or else to the
    last call. A part with a name and an ID other than the ID of the call at its index begins a
    new call, because some servers number every call 0.
    """

    def __init__(self) -> None:
        self.calls: list[PartialCall] = []
        self.last = PartialCall()
        self._by_index: dict[int, PartialCall] = {}
        self._by_id: dict[str, PartialCall] = {}

    def add(self, part: Any) -> int:
        """Add a part, and return the bytes of text in it. `last` is the call that it belongs to."""
        function = _function_of(part)
        self.last = call = self._call_of(part, begins=bool(function.get("name")))
        call.type = call.type or part.get("type")
        return call.add(function)

    def _call_of(self, part: Mapping[str, Any], *, begins: bool) -> PartialCall:
        """Return the call that a part belongs to, or a new one; `begins`: the part has a name."""
        id = text_in(part, "id")
        index = part["index"] if type(part.get("index")) is int else None
        call = self._known_call(index, id, begins=begins) or self._new_call()
        call.id = call.id or id
        if index is not None:
            self._by_index[index] = call
        if id:
            self._by_id[id] = call
        return call

    def _known_call(self, index: int | None, id: str, *, begins: bool) -> PartialCall | None:
        if index is not None:
            call = self._by_index.get(index)
            is_other = begins and call and id and call.id and id != call.id
            return self._by_id.get(id) if is_other else call
        if id:
            return self._by_id.get(id)
        last = self.calls[-1] if self.calls else None
        return None if last and begins and last.is_complete else last

    def _new_call(self) -> PartialCall:
        if len(self.calls) == MAX_TOOL_CALLS:
            raise bad_response(f"sent more than {MAX_TOOL_CALLS} tool calls", usage=UNKNOWN_USAGE)
        self.calls.append(PartialCall())
        return self.calls[-1]
