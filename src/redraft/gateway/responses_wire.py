"""OpenAI's responses: requests are read into the terms of chat completions, answers and errors are
written.

Nothing can be retrieved later: what refers to a stored response (`previous_response_id`,
`conversation`, `background`) is refused by its name, and so are tools that only OpenAI has. Items
of the type "reasoning" in the input are left out: an answer never rests on the reasoning of an
earlier one. Fields that OpenAI does not have are passed to the model, as in chat completions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..base.checks import format_value
from ..loop.records import ToolCall
from ..loop.task import Message
from ..settings import Flag, Number, Text, ValueKind, WholeNumber
from .chat_wire import (
    PASSED,
    check_schema_name,
    comment,
    error_object,
    event,
    pieces,
    progress_body,
    progress_comment,
    refinement_body,
    refuse_fields,
    tool_choice_of,
    tools_of,
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
from .request_fields import (
    PASS_HINT,
    check_body,
    check_field,
    checked_messages,
    checked_schema,
    is_set,
    list_of,
    metadata_of,
    model_of,
    object_of,
    options_of,
    other_parameters,
)

NOT_STORED = "responses cannot be retrieved from the gateway: send the whole conversation as input"
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((), NOT_STORED),
    "conversation": ((), NOT_STORED),
    "background": ((False,), NOT_STORED),
    "background_options": ((), NOT_STORED),
    "prompt": ((), "prompts are not stored in the gateway: send instructions and input"),
    "truncation": (("disabled",), "the input is never cut; use 'disabled'"),
    "top_logprobs": ((0,), f"the answer is chosen among several; {PASS_HINT}"),
    "context_management": (([],), "the gateway does not compact the input"),
    "access_programs": ((), "only OpenAI has them"),
    "moderation": ((), "its results would be lost"),
    "image": ((), "answers are text"),
}
"""The fields that cannot be honoured: the values that ask for nothing, and why others are
refused.
"""
READ = (
    *(
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "text",
        "temperature",
        "max_output_tokens",
        "max_tool_calls",
    ),
    *("reasoning", "include", "stream", "stream_options", "store", "metadata", "redraft"),
)
PASSED_FIELDS: Mapping[str, ValueKind] = {
    name: PASSED[name]
    for name in (
        *(
            "top_p",
            "parallel_tool_calls",
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
        ),
        "service_tier",
    )
}
KNOWN = frozenset((*READ, *PASSED_FIELDS, "prompt_cache_options", *REFUSED))
INCLUDABLE = "reasoning.encrypted_content"  # of reasoning items, of which an answer has none
ECHOED = (
    *(
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "temperature",
        "top_p",
        "user",
        "safety_identifier",
    ),
    *("prompt_cache_key", "service_tier"),
)
TEXT_PARTS = ("input_text", "output_text", "text")


class ResponsesWire:
    """The protocol of `POST /v1/responses`."""

    name: WireName = "responses"

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """Read a request. Raises GatewayError 400 naming the field for anything that is wrong or
        cannot be honoured.
        """
        check_body(body)
        model = model_of(body)
        refuse_fields(body, REFUSED)
        metadata_of(body)
        _check_include(body.get("include"))
        check_field("max_tool_calls", body.get("max_tool_calls"), WholeNumber(1))
        is_stream = bool(check_field("stream", body.get("stream"), Flag()))
        _check_stream_options(body.get("stream_options"), is_stream=is_stream)
        tools = _tools(body.get("tools"))
        return ChatRequest(
            wire=self.name,
            model=model,
            body=body,
            messages=_messages(body),
            tools=tools,
            tool_choice=_tool_choice(body.get("tool_choice"), tools),
            schema=_schema(object_of("text", body.get("text"), ("format", "verbosity"))),
            temperature=check_field("temperature", body.get("temperature"), Number(0, 2)),
            max_tokens=check_field(
                "max_output_tokens", body.get("max_output_tokens"), WholeNumber(1, 2**31)
            ),
            parameters=_parameters(body),
            is_stream=is_stream,
            include_usage=True,
            is_stored=check_field("store", body.get("store"), Flag()) is not False,
            options=options_of(body),
        )

    def answer_body(self, request: ChatRequest, answer: Answer, created: int) -> dict[str, Any]:
        """Return the reply to a request that reads no stream. `created`: Unix time in seconds."""
        status, incomplete = _status(answer)
        body = response_body(request, answer.trace_id, created, status)
        return body | {
            "completed_at": created if status == "completed" else None,
            "incomplete_details": incomplete,
            "output": list(output_items(answer)),
            "usage": usage_body(answer),
            "redraft": refinement_body(answer),
        }

    def error_status(self, error: GatewayError) -> int:
        """Return the HTTP status of an error."""
        return error.status

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the reply that describes an error."""
        return {"error": error_object(error)}

    def stream(self, request: ChatRequest, trace_id: str, created: int) -> AnswerStream:
        """Return what writes the answer to a request that reads a stream."""
        return ResponseStream(request, trace_id, created)


class ResponseStream:
    """Writes an answer as the events of a response, which are numbered."""

    def __init__(self, request: ChatRequest, trace_id: str, created: int) -> None:
        self._request, self._trace_id, self._created = request, trace_id, created
        self._next_number = 0

    def begin(self) -> bytes:
        """Return the start of the response."""
        body = response_body(self._request, self._trace_id, self._created, "in_progress")
        return self._event("response.created", response=body) + self._event(
            "response.in_progress", response=body
        )

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return comment("keep-alive")

    def progress(self, progress: Progress) -> bytes:
        """Return a step of the work: a comment, or an event of its own type if the request asks for
        `events`.
        """
        if not self._request.options.events:
            return progress_comment(progress)
        return self._event("redraft.progress", **progress_body(progress))

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """Return the items of the output and the whole response."""
        for n, item in enumerate(output_items(answer)):
            yield from (
                self._message(n, item)
                if item["type"] == "message"
                else self._function_call(n, item)
            )
        body = ResponsesWire().answer_body(self._request, answer, self._created)
        yield self._event(f"response.{body['status']}", response=body)

    def fail(self, error: GatewayError) -> bytes:
        """Return the end of the response and the error. Clients of OpenAI raise an exception for
        the second event.
        """
        code = (
            "rate_limit_exceeded"
            if error.status == 429
            else "server_error"
            if error.status >= 500
            else "invalid_prompt"
        )
        body = response_body(self._request, self._trace_id, self._created, "failed")
        body["error"] = {"code": code, "message": error.message}
        described = error_object(error)
        ended = self._event("response.failed", response=body)
        return ended + self._event(
            "error", code=error.code, message=error.message, param=error.param, error=described
        )

    def _message(self, n: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events of a message, which has one part of text."""
        (part,) = item["content"]
        place: dict[str, Any] = {"item_id": item["id"], "output_index": n, "content_index": 0}
        yield self._event(
            "response.output_item.added",
            output_index=n,
            item={**item, "status": "in_progress", "content": []},
        )
        yield self._event("response.content_part.added", **place, part={**part, "text": ""})
        for piece in pieces(part["text"]):
            yield self._event("response.output_text.delta", **place, delta=piece, logprobs=[])
        yield self._event("response.output_text.done", **place, text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=n, item=item)

    def _function_call(self, n: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        place: dict[str, Any] = {"item_id": item["id"], "output_index": n}
        yield self._event(
            "response.output_item.added",
            output_index=n,
            item={**item, "status": "in_progress", "arguments": ""},
        )
        for piece in pieces(item["arguments"]):
            yield self._event("response.function_call_arguments.delta", **place, delta=piece)
        yield self._event(
            "response.function_call_arguments.done",
            **place,
            name=item["name"],
            arguments=item["arguments"],
        )
        yield self._event("response.output_item.done", output_index=n, item=item)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        number, self._next_number = self._next_number, self._next_number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)


def _check_include(value: Any) -> None:
    for n, name in enumerate(list_of("include", value)):
        if name != INCLUDABLE:
            raise invalid_request(
                f"include[{n}]",
                f"include[{n}] must be {INCLUDABLE!r}, got {format_value(name, 80)}",
            )


def _check_stream_options(value: Any, *, is_stream: bool) -> None:
    given = object_of("stream_options", value, ("include_obfuscation",))
    if value is not None and not is_stream:
        raise invalid_request("stream_options", "stream_options needs stream: true")
    if check_field("stream_options.include_obfuscation", given.get("include_obfuscation"), Flag()):
        raise invalid_request(
            "stream_options.include_obfuscation",
            "stream_options.include_obfuscation must be false or absent",
        )


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return functions in the form of chat completions, where their fields stand in `function`."""
    tools = list_of("tools", value)
    for n, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind != "function":
            raise invalid_request(
                f"tools[{n}].type",
                f"tools[{n}].type must be 'function', got {format_value(kind, 80)}",
            )
    return tools_of([{"type": "function", "function": _without(tool, "type")} for tool in tools])


def _without(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return an object without some of its fields and without those that are null."""
    return {name: each for name, each in value.items() if name not in names and each is not None}


def _tool_choice(
    value: Any, tools: tuple[Mapping[str, Any], ...]
) -> str | Mapping[str, Any] | None:
    if isinstance(value, Mapping) and value.get("type") == "function":
        value = {"type": "function", "function": {"name": value.get("name")}}
    return tool_choice_of(value, tools)


def _schema(text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that `text.format` asks for; {} for any JSON object, None for text."""
    form = object_of(
        "text.format", text.get("format"), ("type", "name", "description", "schema", "strict")
    )
    kind = form.get("type") if form else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        message = (
            "text.format.type must be text, json_object or json_schema, got "
            f"{format_value(kind, 80)}"
        )
        raise invalid_request("text.format.type", message)
    check_schema_name("text.format", form)
    return checked_schema("text.format.schema", form.get("schema"))


def _parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is passed to the model, under its names in chat completions."""
    parameters = {
        name: check_field(name, body.get(name), kind) for name, kind in PASSED_FIELDS.items()
    }
    if is_set(body.get("prompt_cache_options")):
        parameters["prompt_cache_options"] = object_of(
            "prompt_cache_options", body["prompt_cache_options"]
        )
    text, reasoning = (
        object_of("text", body.get("text")),
        object_of("reasoning", body.get("reasoning")),
    )
    for name in reasoning:
        if name != "effort" and reasoning[name] is not None:
            raise invalid_request(
                f"reasoning.{name[:80]}",
                f"reasoning.{name[:80]} is not supported: answers have no reasoning",
            )
    parameters["verbosity"] = check_field("text.verbosity", text.get("verbosity"), Text())
    parameters["reasoning_effort"] = check_field(
        "reasoning.effort", reasoning.get("effort"), Text()
    )
    return _without(parameters) | other_parameters(body, KNOWN.__contains__)


def _messages(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the instructions and the input as chat messages."""
    given = body.get("input")
    items = (
        [{"role": "user", "content": given}] if isinstance(given, str) else list_of("input", given)
    )
    if not items:
        raise invalid_request("input", "input must be a text or a list of at least one item")
    messages: list[dict[str, Any]] = []
    if check_field("instructions", body.get("instructions"), Text()):
        messages.append({"role": "system", "content": body["instructions"]})
    for n, item in enumerate(items):
        _add_item(messages, f"input[{n}]", item)
    try:
        return checked_messages(messages)
    except GatewayError as error:
        raise invalid_request("input", error.message) from None


def _add_item(messages: list[dict[str, Any]], where: str, item: Any) -> None:
    """Add an item of the input. Function calls belong to the assistant's message before them."""
    if not isinstance(item, Mapping):
        raise invalid_request(where, f"{where} must be an object, got {format_value(item, 80)}")
    kind = item.get("type") or "message"
    add = _ITEM_KINDS.get(kind) if isinstance(kind, str) else None
    if add is None:
        allowed = ", ".join(_ITEM_KINDS)
        raise invalid_request(
            f"{where}.type", f"{where}.type must be one of {allowed}, got {format_value(kind, 80)}"
        )
    add(messages, where, item)


def _add_message(messages: list[dict[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        message = (
            f"{where}.role must be one of user, assistant, system, developer, got "
            f"{format_value(role, 80)}"
        )
        raise invalid_request(f"{where}.role", message)
    if not isinstance(content, str):
        parts = [
            _chat_part(f"{where}.content[{n}]", part)
            for n, part in enumerate(list_of(f"{where}.content", content))
        ]
        if not parts:
            raise invalid_request(
                f"{where}.content", f"{where}.content must be a text or a list of at least one part"
            )
        is_text = role == "assistant" and all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if is_text else parts
    messages.append({"role": role, "content": content})


def _chat_part(where: str, part: Any) -> dict[str, Any]:
    """Return a part of a content in the form of chat completions."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in TEXT_PARTS or kind == "refusal":
        name = "refusal" if kind == "refusal" else "text"
        return {
            "type": "text",
            "text": check_field(f"{where}.{name}", part.get(name), Text(), optional=False),
        }
    if kind == "input_image":
        return _media_part(
            where,
            part,
            "image_url",
            {"type": "image_url", "image_url": {"url": part.get("image_url")}},
        )
    if kind == "input_file":
        return _media_part(
            where, part, "file_data", {"type": "file", "file": _without(part, "type", "detail")}
        )
    allowed = ", ".join((*TEXT_PARTS, "refusal", "input_image", "input_file"))
    raise invalid_request(
        f"{where}.type", f"{where}.type must be one of {allowed}, got {format_value(kind, 80)}"
    )


def _media_part(
    where: str, part: Mapping[str, Any], name: str, converted: dict[str, Any]
) -> dict[str, Any]:
    """Return a part whose content is in the request: files that are stored elsewhere are not
    fetched.
    """
    for other in ("file_id", "file_url"):
        if part.get(other) is not None:
            raise invalid_request(
                f"{where}.{other}", f"{where}.{other} is not supported: send {name}"
            )
    check_field(f"{where}.{name}", part.get(name), Text(), optional=False)
    if name == "image_url" and (
        detail := check_field(f"{where}.detail", part.get("detail"), Text())
    ):
        converted["image_url"]["detail"] = detail
    return converted


def _add_function_call(messages: list[dict[str, Any]], where: str, item: Mapping[str, Any]) -> None:
    texts = {
        name: check_field(f"{where}.{name}", item.get(name), Text(), optional=False)
        for name in ("call_id", "name", "arguments")
    }
    if not texts["name"]:
        raise invalid_request(f"{where}.name", f"{where}.name must not be empty")
    call = ToolCall(texts["name"], texts["arguments"], texts["call_id"]).as_message_part()
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _add_function_output(
    messages: list[dict[str, Any]], where: str, item: Mapping[str, Any]
) -> None:
    call_id, output = (
        check_field(f"{where}.call_id", item.get("call_id"), Text(), optional=False),
        item.get("output"),
    )
    if not isinstance(output, str):
        output = [
            _chat_part(f"{where}.output[{n}]", part)
            for n, part in enumerate(list_of(f"{where}.output", output))
        ]
        output = (
            "".join(part["text"] for part in output)
            if all(part["type"] == "text" for part in output)
            else output
        )
    messages.append({"role": "tool", "tool_call_id": call_id, "content": output})


def _leave_out(_messages: list[dict[str, Any]], _where: str, _item: Mapping[str, Any]) -> None:
    """Leave out an item of reasoning."""


_ITEM_KINDS: Mapping[str, Callable[[list[dict[str, Any]], str, Mapping[str, Any]], None]] = {
    "message": _add_message,
    "function_call": _add_function_call,
    "function_call_output": _add_function_output,
    "reasoning": _leave_out,
}


def response_body(request: ChatRequest, trace_id: str, created: int, status: str) -> dict[str, Any]:
    """Return a response without output. It repeats what the request asked for, as OpenAI's does."""
    asked, text, reasoning = (
        request.body,
        request.body.get("text") or {},
        request.body.get("reasoning") or {},
    )
    return {
        "id": f"resp_{trace_id}",
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "store": False,
        "text": {"format": text.get("format") or {"type": "text"}, **_without(text, "format")},
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": list(asked.get("tools") or ()),
        "top_logprobs": 0,
        "truncation": "disabled",
        "usage": None,
        "metadata": asked.get("metadata") or {},
        **{name: asked.get(name) for name in ECHOED},
    }


def _status(answer: Answer) -> tuple[str, dict[str, str] | None]:
    """Return the status of a response, and why it is incomplete."""
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(answer.finish_reason)
    return ("incomplete", {"reason": reason}) if reason else ("completed", None)


def output_items(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the items of the output: the text, and each function call."""
    status, _ = _status(answer)
    if answer.text or not answer.tool_calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        yield {
            "id": f"msg_{answer.trace_id}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [part],
        }
    for n, call in enumerate(with_ids(answer)):
        yield {
            "id": f"fc_{answer.trace_id}_{n}",
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }


def usage_body(answer: Answer) -> dict[str, Any] | None:
    """Return the tokens of the answer's own call, and those of all calls in `redraft`; None if its
    own are unknown.

    Clients require the details, which count tokens that are reported apart from the others: none.
    """
    read, written = answer.usage.input_tokens, answer.usage.output_tokens
    if read is None or written is None:
        return None
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
        "redraft": refinement_body(answer),
    }
