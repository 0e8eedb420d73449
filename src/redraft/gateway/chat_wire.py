"""OpenAI's chat completions: requests are read, answers and errors are written.

Each field of a request is honoured, passed to the model (`parameters`), or refused by its name.
Fields that OpenAI does not have, such as `top_k`, are passed to the model.

The field `redraft` describes the refinement: at the top of a reply and of the chunk with
`finish_reason`, and in `usage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..base.checks import format_value
from ..base.jsontext import dumps
from ..loop.records import ToolCall
from ..loop.task import validate_tool_choice, validate_tools
from ..settings import Flag, Keyword, Number, Text, ValueKind, WholeNumber
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
    MAX_NAME_CHARS,
    PASS_HINT,
    check_body,
    check_field,
    checked_messages,
    checked_schema,
    errors_of_field,
    is_set,
    list_of,
    metadata_of,
    model_of,
    object_of,
    options_of,
    other_parameters,
)

PIECE_CHARS = 256  # of the text in one chunk
MAX_STOPS = 16
MAX_TOOLS = 512
MAX_SEED = 2**63

PASSED: Mapping[str, ValueKind] = {
    "frequency_penalty": Number(-2, 2),
    "presence_penalty": Number(-2, 2),
    "top_p": Number(0, 1),
    "parallel_tool_calls": Flag(),
    "reasoning_effort": Text(),
    "verbosity": Text(),
    "user": Text(),
    "safety_identifier": Text(),
    "prompt_cache_key": Text(),
    "prompt_cache_retention": Text(),
    "service_tier": Keyword(("auto", "default", "flex", "scale", "priority", "fast")),
}
"""The fields that are passed to the model once their types are checked."""
PASSED_OBJECTS = ("logit_bias", "prediction", "prompt_cache_options")
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), f"one answer is chosen and returned; {PASS_HINT}"),
    "logprobs": ((False,), f"the answer is chosen among several; {PASS_HINT}"),
    "top_logprobs": ((0,), f"the answer is chosen among several; {PASS_HINT}"),
    "audio": ((), f"answers are text; {PASS_HINT}"),
    "modalities": ((["text"],), f"answers are text; {PASS_HINT}"),
    "functions": (([],), "use tools"),
    "function_call": ((), "use tool_choice"),
    "moderation": ((), f"its results would be lost; {PASS_HINT}"),
    "web_search_options": ((), f"its citations would be lost; {PASS_HINT}"),
}
"""The fields that cannot be honoured: the values that ask for nothing, and why others are
refused.
"""
READ = (
    *(
        "model",
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "temperature",
        "max_tokens",
        "max_completion_tokens",
        "seed",
    ),
    *("stop", "stream", "stream_options", "store", "metadata", "redraft"),
)
KNOWN = frozenset((*READ, *PASSED, *PASSED_OBJECTS, *REFUSED))


class ChatWire:
    """The protocol of `POST /v1/chat/completions`."""

    name: WireName = "chat"

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """Read a request. Raises GatewayError 400 naming the field for anything that is wrong or
        cannot be honoured.
        """
        check_body(body)
        model = model_of(body)
        refuse_fields(body, REFUSED)
        metadata_of(body)
        is_stream = bool(check_field("stream", body.get("stream"), Flag()))
        tools = tools_of(body.get("tools"))
        return ChatRequest(
            wire=self.name,
            model=model,
            body=body,
            messages=checked_messages(body.get("messages")),
            tools=tools,
            tool_choice=tool_choice_of(body.get("tool_choice"), tools),
            schema=_schema_of(body.get("response_format")),
            temperature=check_field("temperature", body.get("temperature"), Number(0, 2)),
            max_tokens=_max_tokens(body),
            seed=check_field("seed", body.get("seed"), WholeNumber(-MAX_SEED, MAX_SEED)),
            parameters=_parameters(body),
            is_stream=is_stream,
            include_usage=_includes_usage(body.get("stream_options"), is_stream=is_stream),
            is_stored=check_field("store", body.get("store"), Flag()) is not False,
            options=options_of(body),
        )

    def answer_body(self, request: ChatRequest, answer: Answer, created: int) -> dict[str, Any]:
        """Return the reply to a request that reads no stream. `created`: Unix time in seconds."""
        calls = [call.as_message_part() for call in with_ids(answer)]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text or (None if calls else ""),
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": answer.finish_reason,
        }
        return {
            "id": f"chatcmpl-{answer.trace_id}",
            "object": "chat.completion",
            "created": created,
            "model": request.model,
            "choices": [choice],
            "usage": usage_body(answer),
            "system_fingerprint": None,
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
        return ChatStream(request, trace_id, created)


class ChatStream:
    """Writes an answer as chunks. The client of OpenAI reads every event as a chunk, so progress is
    one without choices.
    """

    def __init__(self, request: ChatRequest, trace_id: str, created: int) -> None:
        self._request = request
        self._head = {
            "id": f"chatcmpl-{trace_id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model,
            "system_fingerprint": None,
        }

    def begin(self) -> bytes:
        """Return the chunk with the role."""
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return comment("keep-alive")

    def progress(self, progress: Progress) -> bytes:
        """Return a step of the work: a comment, or a chunk without choices if the request asks for
        `events`.
        """
        if not self._request.options.events:
            return progress_comment(progress)
        return event(
            {**self._head, "choices": [], "redraft": progress_body(progress)}, "redraft.progress"
        )

    def finish(self, answer: Answer) -> Iterator[bytes]:
        """Return the content of the answer and everything after it."""
        for piece in pieces(answer.text):
            yield self._delta({"content": piece})
        for n, call in enumerate(with_ids(answer)):
            function = {"name": call.name, "arguments": ""}
            yield self._delta(
                {
                    "tool_calls": [
                        {"index": n, "id": call.id, "type": "function", "function": function}
                    ]
                }
            )
            for piece in pieces(call.arguments):
                yield self._delta({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
        yield self._delta({}, answer.finish_reason, redraft=refinement_body(answer))
        usage = usage_body(answer)
        if self._request.include_usage and usage is not None:
            yield event({**self._head, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""
        return event({"error": error_object(error)})

    def _delta(
        self, delta: Mapping[str, Any], finish_reason: str | None = None, **fields: Any
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._request.include_usage else {}
        return event({**self._head, "choices": [choice], **usage, **fields})


def refuse_fields(
    body: Mapping[str, Any], table: Mapping[str, tuple[tuple[Any, ...], str]]
) -> None:
    """Raise GatewayError 400 for the first field of the table that asks for something."""
    for name, (unused, why) in table.items():
        if is_set(body.get(name), unused):
            raise invalid_request(name, f"{name} is not supported: {why}")


def tools_of(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the functions that the model may call."""
    tools = list_of("tools", value)
    if len(tools) > MAX_TOOLS:
        raise invalid_request("tools", f"tools holds {len(tools)} functions; at most {MAX_TOOLS}")
    for n, tool in enumerate(tools):
        if isinstance(tool, Mapping) and tool.get("type", "function") != "function":
            raise invalid_request(
                f"tools[{n}].type",
                f"tools[{n}].type must be 'function', got {format_value(tool['type'], 80)}",
            )
    with errors_of_field("tools"):
        return validate_tools(tools)


def tool_choice_of(
    value: Any, tools: tuple[Mapping[str, Any], ...]
) -> str | Mapping[str, Any] | None:
    """Return whether the model must call a function. Without tools, "none" and "auto" ask for
    nothing.
    """
    if not tools and value in ("none", "auto"):
        return None
    with errors_of_field("tool_choice"):
        return validate_tool_choice(value, tools)


def _schema_of(value: Any) -> Mapping[str, Any] | None:
    """Return the schema that `response_format` asks for; {} for any JSON object, None for text."""
    given = object_of("response_format", value)
    kind = given.get("type") if value is not None else "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        message = (
            "response_format.type must be text, json_object or json_schema, got "
            f"{format_value(kind, 80)}"
        )
        raise invalid_request("response_format.type", message)
    form = object_of(
        "response_format.json_schema",
        given.get("json_schema"),
        ("name", "description", "schema", "strict"),
    )
    check_schema_name("response_format.json_schema", form)
    return checked_schema("response_format.json_schema.schema", form.get("schema"))


def check_schema_name(where: str, form: Mapping[str, Any]) -> None:
    """Check what a format says beside its schema."""
    check_field(f"{where}.name", form.get("name"), Text(), optional=False)
    check_field(f"{where}.description", form.get("description"), Text())
    check_field(f"{where}.strict", form.get("strict"), Flag())


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    """Return the limit of tokens, under its name of today or its earlier one."""
    names = ("max_completion_tokens", "max_tokens")
    limits = {check_field(name, body.get(name), WholeNumber(1, 2**31)) for name in names} - {None}
    if len(limits) > 1:
        raise invalid_request(
            "max_tokens", "max_tokens and max_completion_tokens differ: give one of them"
        )
    return next(iter(limits), None)


def _includes_usage(value: Any, *, is_stream: bool) -> bool:
    given = object_of("stream_options", value, ("include_usage", "include_obfuscation"))
    if value is not None and not is_stream:
        raise invalid_request("stream_options", "stream_options needs stream: true")
    if check_field("stream_options.include_obfuscation", given.get("include_obfuscation"), Flag()):
        raise invalid_request(
            "stream_options.include_obfuscation",
            "stream_options.include_obfuscation must be false or absent",
        )
    return bool(check_field("stream_options.include_usage", given.get("include_usage"), Flag()))


def _parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is passed to the model as it is."""
    parameters = {name: check_field(name, body.get(name), kind) for name, kind in PASSED.items()}
    parameters |= {
        name: object_of(name, body[name]) for name in PASSED_OBJECTS if is_set(body.get(name))
    }
    parameters["stop"] = _stops(body.get("stop"))
    return {
        name: value for name, value in parameters.items() if value is not None
    } | other_parameters(body, KNOWN.__contains__)


def _stops(value: Any) -> str | list[str] | None:
    texts = [value] if isinstance(value, str) else list_of("stop", value)
    if len(texts) > MAX_STOPS or not all(
        isinstance(text, str) and 0 < len(text) <= MAX_NAME_CHARS for text in texts
    ):
        raise invalid_request(
            "stop",
            f"stop must be a text or a list of at most {MAX_STOPS} short texts, got "
            f"{format_value(value, 80)}",
        )
    return value if isinstance(value, str) else (texts or None)


def with_ids(answer: Answer) -> list[ToolCall]:
    """Return the tool calls of an answer; those without an ID get one, because their results refer
    to it.
    """
    calls = enumerate(answer.tool_calls)
    return [
        call if call.id else ToolCall(call.name, call.arguments, f"call_{answer.trace_id}_{n}")
        for n, call in calls
    ]


def usage_body(answer: Answer) -> dict[str, Any] | None:
    """Return the tokens of the answer's own call, and those of all calls in `redraft`; None if its
    own are unknown.
    """
    read, written = answer.usage.input_tokens, answer.usage.output_tokens
    if read is None or written is None:
        return None
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "redraft": refinement_body(answer),
    }


def refinement_body(answer: Answer) -> dict[str, Any]:
    """Return what the refinement consumed and how it ended. What is unknown is null."""
    return {
        "trace_id": answer.trace_id,
        "calls": answer.total.calls,
        "input_tokens": answer.total.input_tokens,
        "output_tokens": answer.total.output_tokens,
        "cost": answer.total.cost,
        "score": answer.score,
        "iterations": answer.iterations,
        "stop": answer.stop or None,
        "reason": answer.reason or None,
        "broken": list(answer.broken),
    }


def progress_body(progress: Progress) -> dict[str, Any]:
    """Return a step of the work as an object."""
    return {
        "kind": progress.kind,
        "iteration": progress.iteration,
        "score": progress.score,
        "reason": progress.reason or None,
    }


def error_object(error: GatewayError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    return {
        "message": error.message,
        "type": _error_type(error),
        "param": error.param,
        "code": error.code,
    }


def _error_type(error: GatewayError) -> str:
    named = {
        401: "authentication_error",
        402: "insufficient_quota",
        403: "permission_error",
        429: "rate_limit_error",
    }
    return named.get(
        error.status, "server_error" if error.status >= 500 else "invalid_request_error"
    )


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of moderate size."""
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return a server-sent event. JSON has no line breaks, so its data cannot end the event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + dumps(data) + b"\n\n"


def comment(text: str) -> bytes:
    """Return a comment of a stream, which clients ignore, in one line."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return f": {line}\n\n".encode(errors="replace")


def progress_comment(progress: Progress) -> bytes:
    """Return a step of the work as a comment."""
    score = "" if progress.score is None else f" score={progress.score:.4f}"
    return comment(f"redraft {progress.kind} iteration={progress.iteration}{score}")
