"""Replies and streams of OpenAI's responses.

A reply is a list of items: what the model thought, messages, calls of tools. One writer makes them
from the events of the neutral form, so that a stream and a whole reply hold the same response. A
call goes back under the name that the client gave its tool, with its namespace, and a call of a
tool that takes a text as a "custom_tool_call".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..exchange import GatewayError
from ..neutral import (
    Begin,
    CallBegin,
    CallDelta,
    End,
    Event,
    FinishReason,
    Json,
    Ping,
    Reply,
    Request,
    TextDelta,
    ThinkingDelta,
    Tokens,
    events_of,
    pieces,
)
from .chat_replies import error_object
from .client_tools import openai_call
from .responses_requests import REDACTED, SIGNATURE
from .streams import MAX_ID_CHARS, EventWriter, event
from .tool_arguments import arguments_in, text_of_input

INCOMPLETE: Mapping[FinishReason, str] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}
"""Why a response is incomplete."""
ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "user"),
    *("safety_identifier", "prompt_cache_key", "service_tier"),
)
"""The fields of a request that a response repeats."""

Fields: TypeAlias = dict[str, Any]
TypedFields: TypeAlias = tuple[str, Fields]
"""The type of an event and its other fields, but for its number."""


def write_reply(
    request: Request, reply: Reply, created: int, outcome: Json | None = None
) -> Fields:
    """Return a whole reply. `created`: Unix time in seconds."""
    stream = ResponseStream(request, created)
    response: Fields = {}
    for neutral in (Begin(reply.id, reply.model), *events_of(reply, outcome)):
        for _, fields in stream.events(neutral):
            response = fields.get("response", response)
    return response


class ResponseStream(EventWriter):
    """Writes a reply as the events of a response, which are numbered."""

    def __init__(self, request: Request, created: int) -> None:
        super().__init__(request, created)
        self._id, self._model = str(created), request.model
        self._number = 0
        self._output: list[Fields] = []  # the items that have ended
        self._open: PartsItem | CallItem | None = None
        self._call_ids: set[str] = set()
        self._is_refused = False

    def write(self, event: Event) -> bytes:
        """Return what an event of the neutral form is in the protocol."""
        if isinstance(event, Ping):
            return self.keep_alive()
        return b"".join(self._event(kind, fields) for kind, fields in self.events(event))

    def _progress_event(self, step: Json) -> bytes:
        return self._event("redraft.progress", dict(step))

    def fail(self, error: GatewayError) -> bytes:
        """Return the end of the response, which has begun by then, and the error. Clients of OpenAI
        raise an exception for the last event.
        """
        begun = b"" if self._number else self.write(Begin("", ""))
        failure = {"code": _failure_code(error), "message": error.message}
        body = self._response("failed") | {"error": failure}
        ended = self._event("response.failed", {"response": body})
        return begun + ended + self._event("error", _error_fields(error))

    def events(self, event: Event) -> Iterator[TypedFields]:
        """Yield the events of the protocol for one of the neutral form."""
        match event:
            case Begin():
                yield from self._begin(event)
            case TextDelta() if event.text:
                yield from self._text(event)
            case ThinkingDelta():
                yield from self._thinking(event)
            case CallBegin():
                yield from self._add(self._call(event))
            case CallDelta() if isinstance(self._open, CallItem):
                yield from self._open.add(event.arguments)
            case End():
                yield from self._end(event)

    def _begin(self, begin: Begin) -> Iterator[TypedFields]:
        self._id = begin.id.removeprefix("resp_")[:MAX_ID_CHARS] or self._id
        self._model = begin.model or self._model
        yield "response.created", {"response": self._response("in_progress")}
        yield "response.in_progress", {"response": self._response("in_progress")}

    def _text(self, delta: TextDelta) -> Iterator[TypedFields]:
        item = self._open
        if not isinstance(item, PartsItem) or item.key != "content":
            message = {"type": "message", "role": "assistant", "content": []}
            item = PartsItem(self._fields("msg", message), self._next_index, "content")
            yield from self._add(item)
        self._is_refused |= delta.is_refusal
        yield from item.add(REFUSAL if delta.is_refusal else TEXT, delta.text)

    def _thinking(self, delta: ThinkingDelta) -> Iterator[TypedFields]:
        """Yield more of the thinking. What proves it ends it, so that the next begins another."""
        item = self._open
        if not isinstance(item, PartsItem) or item.key != "summary" or item.proof:
            item = PartsItem(
                self._fields("rs", {"type": "reasoning", "summary": []}),
                self._next_index,
                "summary",
            )
            yield from self._add(item)
        if delta.text:
            yield from item.add(SUMMARY, delta.text)
        if delta.signature:
            item.proof = f"{SIGNATURE}:{delta.signature}"
        elif delta.redacted:
            item.proof = f"{REDACTED}:{delta.redacted}"

    def _call(self, begin: CallBegin) -> CallItem:
        tool = self._request.called_tool(begin.name)
        call_id = begin.id
        if not call_id or call_id in self._call_ids:  # (its result refers to it)
            call_id = f"call_{self._id}_{self._next_index}"
        self._call_ids.add(call_id)
        named = {"call_id": call_id, "name": tool.name}
        if tool.group:
            named["namespace"] = tool.group
        if tool.kind == "text":
            fields = self._fields("ctc", {"type": "custom_tool_call", **named, "input": ""})
        elif tool.raw is not None:  # (of the functions, those that OpenAI defines have it)
            # results of a local shell name the ID of the item
            fields = {"id": call_id, "type": f"{tool.name}_call", "call_id": call_id}
            fields |= openai_call(tool.name, {})
        else:
            fields = self._fields("fc", {"type": "function_call", **named, "arguments": ""})
        return CallItem(fields, self._next_index)

    def _add(self, item: PartsItem | CallItem) -> Iterator[TypedFields]:
        yield from self._close("completed")
        self._open = item
        shown = {**item.fields, "status": "in_progress"}
        yield "response.output_item.added", {"output_index": item.index, "item": shown}

    def _close(self, status: str) -> Iterator[TypedFields]:
        """Yield the end of the item that is open."""
        item = self._open
        if item is not None:
            yield from item.end()
            done = {**item.fields, "status": status}
            yield "response.output_item.done", {"output_index": item.index, "item": done}
            self._output.append(done)
            self._open = None

    def _end(self, end: End) -> Iterator[TypedFields]:
        """Yield the end of the response, which has at least a message or a call."""
        if all(item["type"] == "reasoning" for item in self._output) and (
            self._open is None or self._open.fields["type"] == "reasoning"
        ):
            yield from self._text(TextDelta(""))
        # a refusal without words is what this protocol calls a filter
        is_filtered = end.finish == "refusal" and not self._is_refused
        reason = INCOMPLETE.get("content_filter" if is_filtered else end.finish)
        status = "incomplete" if reason else "completed"
        yield from self._close(status)
        body = self._response(status) | {
            "completed_at": None if reason else self._created,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._output,
            "usage": usage_body(end.tokens, end.outcome),
        }
        if end.outcome is not None:
            body["redraft"] = end.outcome
        yield f"response.{status}", {"response": body}

    @property
    def _next_index(self) -> int:
        """The index of the next item in the output."""
        return len(self._output) + (self._open is not None)

    def _fields(self, prefix: str, fields: Fields) -> Fields:
        return {"id": f"{prefix}_{self._id}_{self._next_index}", **fields}

    def _response(self, status: str) -> Fields:
        head = {"id": f"resp_{self._id}", "created_at": self._created, "model": self._model}
        return head | response_body(self._request, status)

    def _event(self, kind: str, fields: Fields) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)


# ---- items


@dataclass(frozen=True, slots=True)
class PartKind:
    """How a part is written: its type, the field with its text, the types of its events, and the
    name of its index.
    """

    type: str
    field: str
    text_events: str
    part_events: str
    index: str


TEXT = PartKind(
    "output_text", "text", "response.output_text", "response.content_part", "content_index"
)
REFUSAL = PartKind(
    "refusal", "refusal", "response.refusal", "response.content_part", "content_index"
)
SUMMARY = PartKind(
    *("summary_text", "text", "response.reasoning_summary_text"),
    *("response.reasoning_summary_part", "summary_index"),
)


class PartsItem:
    """A message or what a model thought, which is open: parts, of which the last may be open, too.

    `key` is the field with the parts, `proof` what `encrypted_content` will be.
    """

    def __init__(self, fields: Fields, index: int, key: str) -> None:
        self.fields, self.index, self.key = fields, index, key
        self.proof = ""
        self._kind: PartKind | None = None
        self._texts: list[str] = []

    def add(self, kind: PartKind, text: str) -> Iterator[TypedFields]:
        """Yield more of the text of a part."""
        if kind is not self._kind:
            yield from self._end_part()
            self._kind, self._texts = kind, []
            yield f"{kind.part_events}.added", {**self._place(kind), "part": _part(kind, "")}
        self._texts.append(text)
        logprobs = _logprobs(kind)
        yield f"{kind.text_events}.delta", {**self._place(kind), "delta": text, **logprobs}

    def end(self) -> Iterator[TypedFields]:
        """Yield the end of the last part."""
        yield from self._end_part()
        if self.proof:
            self.fields["encrypted_content"] = self.proof

    def _end_part(self) -> Iterator[TypedFields]:
        kind = self._kind
        if kind is not None:
            text, place = "".join(self._texts), self._place(kind)
            part = _part(kind, text)
            yield f"{kind.text_events}.done", {**place, kind.field: text, **_logprobs(kind)}
            yield f"{kind.part_events}.done", {**place, "part": part}
            self.fields = {**self.fields, self.key: [*self.fields[self.key], part]}

    def _place(self, kind: PartKind) -> Fields:
        number = len(self.fields[self.key])
        return {"item_id": self.fields["id"], "output_index": self.index, kind.index: number}


class CallItem:
    """A call of a tool, which is open."""

    def __init__(self, fields: Fields, index: int) -> None:
        self.fields, self.index = fields, index
        self._texts: list[str] = []

    def add(self, arguments: str) -> Iterator[TypedFields]:
        """Yield more of the arguments, where they are written as the model wrote them."""
        self._texts.append(arguments)
        if self.fields["type"] == "function_call":
            yield self._event("function_call_arguments.delta", delta=arguments)

    def end(self) -> Iterator[TypedFields]:
        """Yield the arguments as a whole."""
        arguments = "".join(self._texts)
        match self.fields["type"]:
            case "custom_tool_call":
                text = self.fields["input"] = text_of_input(arguments)
                for piece in pieces(text):
                    yield self._event("custom_tool_call_input.delta", delta=piece)
                yield self._event("custom_tool_call_input.done", input=text)
            case "function_call":
                if not arguments:
                    yield from self.add(arguments := "{}")
                self.fields["arguments"], name = arguments, self.fields["name"]
                yield self._event("function_call_arguments.done", name=name, arguments=arguments)
            case kind:
                name = kind.removesuffix("_call")
                self.fields |= openai_call(name, arguments_in(arguments) or {})

    def _event(self, kind: str, **fields: str) -> TypedFields:
        place = {"item_id": self.fields["id"], "output_index": self.index}
        return f"response.{kind}", {**place, **fields}


def _part(kind: PartKind, text: str) -> Fields:
    more: Fields = {"annotations": [], "logprobs": []} if kind is TEXT else {}
    return {"type": kind.type, kind.field: text, **more}


def _logprobs(kind: PartKind) -> Fields:
    """Return the log-probabilities of a text, which clients require: none."""
    return {"logprobs": []} if kind is TEXT else {}


# ---- responses


def response_body(request: Request, status: str) -> Fields:
    """Return a response without output. It repeats what the request asked for, as OpenAI's does."""
    asked = request.body
    text, reasoning = asked.get("text") or {}, asked.get("reasoning") or {}
    return {
        "object": "response",
        "completed_at": None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "store": False,
        "text": {
            **{name: value for name, value in text.items() if value is not None},
            "format": text.get("format") or {"type": "text"},
        },
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": list(asked.get("tools") or ()),
        "top_logprobs": 0,
        "truncation": "disabled",
        "usage": None,
        "metadata": asked.get("metadata") or {},
        **{name: asked.get(name) for name in ECHOED},
    }


def usage_body(tokens: Tokens, outcome: Json | None) -> Fields | None:
    """Return the tokens of a reply, and in `redraft` what its refinement consumed; None if its own
    are unknown.

    Clients require the details as numbers: 0 where they are unknown.
    """
    if tokens.input is None or tokens.output is None:
        return None
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {
            "cached_tokens": tokens.cached or 0,
            "cache_write_tokens": tokens.cache_written or 0,
        },
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning or 0},
        "total_tokens": tokens.input + tokens.output,
        **({} if outcome is None else {"redraft": outcome}),
    }


# ---- errors


def error_event(error: GatewayError) -> bytes:
    """Return the event that ends a stream of which nothing but bytes is known."""
    return event({"type": "error", "sequence_number": 0, **_error_fields(error)}, "error")


def _error_fields(error: GatewayError) -> Fields:
    described = {"code": error.code, "message": error.message, "param": error.param}
    return {**described, "error": error_object(error)}


def _failure_code(error: GatewayError) -> str:
    """Return why a response failed, in OpenAI's words, which agents act upon."""
    if error.code == "context_length_exceeded":
        return error.code
    if error.status == 402:
        return "insufficient_quota"
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"
