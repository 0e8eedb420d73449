"""Streams of chat completions: written for clients, read from models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from ...base.jsontext import dumps, join_surrogate_pairs, list_in, object_in, text_in
from ...models.chat_replies import read_finish, reasoning_text, split_content
from ...models.http_client import MAX_BODY_BYTES
from ...models.sse import PartialCall, ToolCallAssembler
from ...usage import Usage
from ..exchange import GatewayError
from ..neutral import (
    Begin,
    CallBegin,
    CallDelta,
    End,
    Event,
    Json,
    Ping,
    Request,
    TextDelta,
    ThinkingDelta,
    Tool,
    pieces,
)
from .chat_replies import (
    completion_id,
    error_event,
    read_tokens,
    usage_body,
    written_finish,
)
from .streams import (
    MAX_ID_CHARS,
    MAX_PARTS,
    EventReader,
    EventWriter,
    PartOrder,
    bad_reply,
    call_id,
    comment,
    event,
    neutral_finish,
)
from .tool_arguments import arguments_in, text_of_input

# ---- written


class ChatStreamWriter(EventWriter):
    """Writes a reply as chunks. The client of OpenAI reads every event as a chunk, so progress is
    one without choices.
    """

    def __init__(self, request: Request, created: int) -> None:
        super().__init__(request, created)
        self._head: dict[str, Any] = {
            "id": completion_id(""),
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model,
            "system_fingerprint": None,
        }
        self._calls = 0
        self._is_refused = False
        self._tool: Tool | None = None  # of the open call
        self._arguments: list[str] = []  # of a custom call, which is written as a whole
        self._has_arguments = False

    def write(self, event: Event) -> bytes:
        """Return what an event of the neutral form is as chunks."""
        match event:
            case CallDelta():
                return self._call_delta(event.arguments)
            case Ping():
                return comment("ping")
        return self._close_call() + self._write(event)

    def _write(self, event: Event) -> bytes:
        match event:
            case Begin():
                self._head |= {"id": completion_id(event.id)}
                self._head |= {"model": event.model} if event.model else {}
                return self._delta({"role": "assistant", "content": "", "refusal": None})
            case TextDelta(text=""):
                return b""
            case TextDelta(is_refusal=True):
                self._is_refused = True
                return self._delta({"refusal": event.text})
            case TextDelta():
                return self._delta({"content": event.text})
            case ThinkingDelta():
                return self._delta({"reasoning_content": event.text}) if event.text else b""
            case CallBegin():
                return self._begin_call(event)
            case End():
                return self._end(event)
        return b""

    def _begin_call(self, call: CallBegin) -> bytes:
        self._tool = tool = self._request.called_tool(call.name)
        self._arguments, self._has_arguments = [], False
        id = call_id(call.id, self._head["id"], self._calls)
        if tool.kind == "text":
            custom = {"name": tool.name, "input": ""}
            return self._call_part({"id": id, "type": "custom", "custom": custom})
        function = {"name": tool.name, "arguments": ""}
        return self._call_part({"id": id, "type": "function", "function": function})

    def _call_delta(self, arguments: str) -> bytes:
        if not arguments or self._tool is None:
            return b""
        self._has_arguments = True
        if self._tool.kind == "text":
            self._arguments.append(arguments)
            return b""
        return self._call_part({"function": {"arguments": arguments}})

    def _close_call(self) -> bytes:
        """Return what is left of the open call."""
        tool, self._tool = self._tool, None
        if tool is None:
            return b""
        out = b""
        if tool.kind == "text":
            text = text_of_input("".join(self._arguments))
            out = b"".join(self._call_part({"custom": {"input": each}}) for each in pieces(text))
        elif not self._has_arguments:
            out = self._call_part({"function": {"arguments": "{}"}})
        self._calls += 1
        return out

    def _call_part(self, part: Mapping[str, Any]) -> bytes:
        return self._delta({"tool_calls": [{"index": self._calls, **part}]})

    def _end(self, end: End) -> bytes:
        finish = written_finish(end.finish, is_refused=self._is_refused, has_calls=self._calls > 0)
        redraft = {} if end.outcome is None else {"redraft": end.outcome}
        last = self._delta({}, finish, **redraft)
        usage = usage_body(end.tokens, end.outcome)
        if self._request.include_usage and usage is not None:
            last += event({**self._head, "choices": [], "usage": usage})
        return last + b"data: [DONE]\n\n"

    def _delta(self, delta: Json, finish_reason: str | None = None, **fields: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._request.include_usage else {}
        return event({**self._head, "choices": [choice], **usage, **fields})

    def _progress_event(self, step: Json) -> bytes:
        return event({**self._head, "choices": [], "redraft": step}, "redraft.progress")

    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""
        return error_event(error)


# ---- read


class ChatStreamReader(EventReader):
    """Reads chunks. Nothing says that a call has ended: what follows its first parts waits for the
    end of the stream, unless its arguments are a JSON object by then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._id: str | None = None
        self._created: Any = None
        self._finish: str | None = None
        self._is_refused = False
        self._usage: Any = None
        self._half_surrogate = ""
        self._order = PartOrder()
        self._parts = 0
        self._last: str | _CallReader = ""  # part that began: the kind of a text, or a call
        self._assembler = ToolCallAssembler()
        self._calls: dict[int, _CallReader] = {}  # by the IDs of the assembled calls
        self._call_ids: set[str] = set()
        self._size = 0

    def _read(self, data: Mapping[str, Any]) -> Iterator[Event]:
        choice = next(iter(list_in(data, "choices")), None)
        self._usage = data.get("usage") or object_in(data, "x_groq").get("usage") or self._usage
        if self._id is None and (choice or text_in(data, "id")):
            self._id, self._created = text_in(data, "id")[:MAX_ID_CHARS], data.get("created")
            yield Begin(self._id, text_in(data, "model")[:MAX_ID_CHARS])
        if isinstance(choice, dict):
            yield from self._read_delta(object_in(choice, "delta"))
            self._finish = read_finish(choice) or self._finish

    def _read_delta(self, delta: Json) -> Iterator[Event]:
        content, thoughts = split_content(delta.get("content"), Usage())
        text = self._whole_characters(content)
        if thinking := reasoning_text(delta) or "".join(thoughts):
            yield from self._say("thinking", ThinkingDelta(thinking))
        if text:
            yield from self._say("text", TextDelta(text))
        if refusal := text_in(delta, "refusal"):
            self._is_refused = True
            yield from self._say("refusal", TextDelta(refusal, is_refusal=True))
        parts = list_in(delta, "tool_calls")
        if not parts and (function_call := delta.get("function_call")):
            parts = [{"index": 0, "function": function_call}]
        for part in parts:
            yield from self._call(_as_function_part(part))

    def _whole_characters(self, text: str) -> str:
        """Return more of the text. Half of a surrogate pair waits for the other half, which the
        next chunk may have.
        """
        text = self._half_surrogate + text
        end = len(text) - ("\ud800" <= text[-1:] <= "\udbff")
        self._half_surrogate = text[end:]
        return join_surrogate_pairs(text[:end])

    def _say(self, kind: str, event: Event) -> Iterator[Event]:
        """Yield more of a text, which begins a part unless the last one is of its kind."""
        if self._last != kind:
            yield from self._begin(kind)
        yield from self._order.add(self._parts - 1, [event])

    def _call(self, part: Any) -> Iterator[Event]:
        """Yield more of a call."""
        self._size += self._assembler.add(part)
        if self._size > MAX_BODY_BYTES:
            raise bad_reply(f"sent calls of more than {MAX_BODY_BYTES:,} bytes")
        call = self._assembler.last
        reader = self._calls.get(id(call))
        if reader is None:
            place = [self._id, self._created, len(self._calls)]
            reader = self._calls[id(call)] = _CallReader(self._parts, call, place)
            yield from self._begin(reader)
        yield from self._order.add(reader.number, reader.read(self._call_ids))

    def _begin(self, part: str | _CallReader) -> Iterator[Event]:
        """Begin a part. It ends the last one, unless that is a call that may have more to come."""
        last, self._last = self._last, part
        if isinstance(last, _CallReader):
            yield from self._end_call(last) if last.is_whole else ()
        elif last:
            yield from self._order.end(self._parts - 1)
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise bad_reply(f"sent more than {MAX_PARTS} parts")

    def _end_call(self, call: _CallReader) -> Iterator[Event]:
        yield from self._order.add(call.number, call.end())
        yield from self._order.end(call.number)

    def _end(self) -> Iterator[Event]:
        if self._finish is None or self._id is None:
            raise bad_reply("sent a stream without a finish_reason")
        for call in self._calls.values():
            yield from self._end_call(call)
        if self._half_surrogate:
            yield TextDelta(self._half_surrogate)
        has_calls = bool(self._calls)
        finish = neutral_finish(self._finish, is_refused=self._is_refused, has_calls=has_calls)
        yield End(finish, read_tokens(self._usage))


class _CallReader:
    """Reads a call, which is the part `number` of a stream; `place` tells it from all others."""

    def __init__(self, number: int, call: PartialCall, place: list[Any]) -> None:
        self.number = number
        self._call, self._place = call, place
        self._sent = 0  # of the texts of its arguments
        self._is_begun = self._is_ended = False

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a JSON object, which nothing can follow."""
        call, text = self._call, "".join(self._call.parts).strip()
        is_object = call.whole is not None or (text != "" and arguments_in(text) is not None)
        return is_object and call.type != "custom"

    def read(self, ids: set[str]) -> Iterator[Event]:
        """Yield what is new, once the call has a name. `ids` are those of the calls before it."""
        call, is_custom = self._call, self._call.type == "custom"
        if not call.name:
            return
        if not self._is_begun:
            self._is_begun = True
            yield CallBegin(self._new_id(ids), call.name)
            if is_custom:
                yield CallDelta('{"input":"')
        new = call.parts[self._sent :]
        if call.whole is not None and not call.parts and not self._sent:
            new = [dumps(call.whole).decode()]
        self._sent += len(new)
        if self._is_ended and "".join(new).strip():
            raise bad_reply("sent more of a tool call after its end")
        for text in filter(None, () if self._is_ended else new):
            yield CallDelta(dumps(text)[1:-1].decode() if is_custom else text)

    def end(self) -> Iterator[Event]:
        """Yield what is left. Raises GatewayError 502 if the call never got a name."""
        if not self._is_begun:
            raise bad_reply("sent a tool call without the name of a function")
        if self._call.type == "custom":
            yield CallDelta('"}')
        self._is_ended = True

    def _new_id(self, ids: set[str]) -> str:
        """Return the ID of the call; one of its own for a call without one, or with that of
        another.
        """
        id = self._call.id
        if not id or len(id) > MAX_ID_CHARS or id in ids:
            place = dumps([*self._place, self._call.name])
            id = f"call_{sha256(place).hexdigest()[:24]}"
        ids.add(id)
        return id


def _as_function_part(part: Any) -> Any:
    """Return a part of a call of a custom tool in the form of a function, with its input in place
    of the arguments.
    """
    custom = object_in(part, "custom") if isinstance(part, dict) else {}
    if not custom:
        return part
    function = {"name": custom.get("name"), "arguments": custom.get("input")}
    return {**part, "type": "custom", "function": function}
