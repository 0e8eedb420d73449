"""Requests for OpenAI's responses to models that only know chat completions: the request, whole
replies and streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..base.jsontext import dumps
from ..errors import ModelError
from ..loop.records import ToolCall
from ..models.chat_replies import read_tool_calls, split_content
from ..usage import Usage
from .chat_wire import event
from .exchange import Answer, ChatRequest
from .reply_streams import EventReader, block_index
from .responses_wire import output_items, response_body, usage_body
from .stream_usage import token_counts
from .whole_replies import bad_reply, finish_of, message_id, message_of

MAX_ITEMS = 4096  # of one reply
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def chat_body_of(request: ChatRequest) -> dict[str, Any]:
    """Return a parsed request as a request for a chat completion."""
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": list(request.messages),
        "tools": list(request.tools) or None,
        "tool_choice": request.tool_choice,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "response_format": _response_format(request.schema),
        **request.parameters,
    }
    if request.is_stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in fields.items() if value is not None}


def _response_format(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    if not schema:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def responses_reply(request: ChatRequest, data: Mapping[str, Any], created: int) -> dict[str, Any]:
    """Return a chat completion as a response. Raises GatewayError 502 if it is no answer."""
    message, finish = message_of(data)
    try:
        text, _ = split_content(message.get("content"), Usage())
        calls = read_tool_calls(message, finish, Usage())
    except ModelError as error:
        raise bad_reply(str(error)) from None
    refusal = message.get("refusal")
    text = text or (refusal if isinstance(refusal, str) else "")
    return whole_response(
        request, data, Answer(str(data.get("model") or ""), "", text, calls, finish), created
    )


def whole_response(
    request: ChatRequest, data: Mapping[str, Any], answer: Answer, created: int
) -> dict[str, Any]:
    """Return the response for an answer; `data` has the ID, the model and the usage of the model's
    reply.
    """
    id = message_id(data.get("id"), "")
    usage = Usage(1, *token_counts(data.get("usage")))
    answer = Answer(answer.model, id, answer.text, answer.tool_calls, answer.finish_reason, usage)
    reason = INCOMPLETE.get(answer.finish_reason)
    counts = usage_body(answer)
    return response_body(request, id, created, "incomplete" if reason else "completed") | {
        "model": answer.model,
        "completed_at": None if reason else created,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": list(output_items(answer)),
        "usage": {name: value for name, value in counts.items() if name != "redraft"}
        if counts
        else None,
    }


class ResponsesReplyStream(EventReader):
    """Writes the stream of a chat completion as the events of a response."""

    def __init__(self, request: ChatRequest, created: int) -> None:
        super().__init__()
        self._request, self._created = request, created
        self._number = 0
        self._head: dict[str, Any] = {}
        self._items: list[
            dict[str, Any]
        ] = []  # {"kind", "id", "name", "parts", "index"}, of which the last is open
        self._finish: str | None = None
        self._usage: Any = None

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def _convert(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        if not self._head:
            self._head = {"id": message_id(data.get("id"), ""), "model": data.get("model")}
            body = response_body(self._request, self._head["id"], self._created, "in_progress") | {
                "model": data.get("model") or ""
            }
            yield self._event("response.created", response=body)
            yield self._event("response.in_progress", response=body)
        self._usage = data.get("usage") or self._usage
        choices = data.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            delta = choice.get("delta")
            yield from self._delta(delta if isinstance(delta, dict) else {})
            self._finish = finish_of(choice) or self._finish

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        try:
            text, _ = split_content(delta.get("content"), Usage())
        except ModelError as error:
            raise bad_reply(str(error)) from None
        if text := text or (delta["refusal"] if isinstance(delta.get("refusal"), str) else ""):
            if not self._items or self._items[-1]["kind"] != "message":
                yield from self._open(
                    {"kind": "message", "id": "", "name": "", "parts": [], "index": None}
                )
            self._items[-1]["parts"].append(text)
            yield self._event(
                "response.output_text.delta",
                **self._place,
                content_index=0,
                delta=text,
                logprobs=[],
            )
        calls = delta.get("tool_calls")
        for part in calls if isinstance(calls, list) else ():
            yield from self._call_part(part)

    def _call_part(self, part: Any) -> Iterator[bytes]:
        function = part.get("function") if isinstance(part, dict) else None
        if not isinstance(function, dict):
            raise bad_reply("sent a tool call without a function")
        index, id, name = block_index(part), part.get("id"), function.get("name")
        last = (
            self._items[-1] if self._items and self._items[-1]["kind"] == "function_call" else None
        )
        if (
            isinstance(name, str)
            and name
            and (last is None or last["index"] != index or (id and id != last["id"]))
        ):
            id = id if isinstance(id, str) and id else f"call_{len(self._items)}"
            yield from self._open(
                {"kind": "function_call", "id": id, "name": name, "parts": [], "index": index}
            )
        elif last is None or last["index"] != index:
            raise bad_reply("sent parts of several tool calls mixed")
        if arguments := function.get("arguments"):
            text = arguments if isinstance(arguments, str) else dumps(arguments).decode()
            self._items[-1]["parts"].append(text)
            yield self._event("response.function_call_arguments.delta", **self._place, delta=text)

    @property
    def _place(self) -> dict[str, Any]:
        n = len(self._items) - 1
        return {"item_id": self._item_id(n), "output_index": n}

    def _item_id(self, n: int) -> str:
        return f"{'msg' if self._items[n]['kind'] == 'message' else 'fc'}_{self._head['id']}_{n}"

    @property
    def _output(self) -> list[dict[str, Any]]:
        """The items so far as they stand in a response."""
        return [self._item(n, item) for n, item in enumerate(self._items)]

    def _item(self, n: int, item: Mapping[str, Any]) -> dict[str, Any]:
        status = "incomplete" if self._finish in INCOMPLETE else "completed"
        text, id = "".join(item["parts"]), self._item_id(n)
        if item["kind"] == "message":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            return {
                "id": id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [part],
            }
        call = ToolCall(item["name"], text or "{}", item["id"])
        return {
            "id": id,
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }

    def _open(self, item: dict[str, Any]) -> Iterator[bytes]:
        """Yield the end of the open item, and the start of another one."""
        yield from self._close()
        if len(self._items) == MAX_ITEMS:
            raise bad_reply(f"sent more than {MAX_ITEMS} items")
        self._items.append(item)
        n, shown = (
            len(self._items) - 1,
            self._item(len(self._items) - 1, item) | {"status": "in_progress"},
        )
        is_message = item["kind"] == "message"
        empty: dict[str, Any] = {"content": []} if is_message else {"arguments": ""}
        yield self._event("response.output_item.added", output_index=n, item=shown | empty)
        if is_message:
            yield self._event(
                "response.content_part.added",
                **self._place,
                content_index=0,
                part=shown["content"][0],
            )

    def _close(self) -> Iterator[bytes]:
        """Yield the end of the open item."""
        if not self._items:
            return
        item = self._item(len(self._items) - 1, self._items[-1])
        if item["type"] == "message":
            (part,) = item["content"]
            place = {**self._place, "content_index": 0}
            yield self._event("response.output_text.done", **place, text=part["text"], logprobs=[])
            yield self._event("response.content_part.done", **place, part=part)
        else:
            arguments = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._place, **arguments)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def finish(self) -> bytes:
        """Return the end of the response. Raises GatewayError if the stream broke off."""
        rest = self._rest()
        if self._finish is None:
            raise bad_reply("sent a stream without a finish_reason")
        ended = b"".join(self._close())
        answer = Answer(str(self._head["model"] or ""), "", finish_reason=str(self._finish))
        body = whole_response(
            self._request, {"id": self._head["id"], "usage": self._usage}, answer, self._created
        )
        body["output"] = self._output
        return rest + ended + self._event(f"response.{body['status']}", response=body)
