"""Read the responses of OpenAI-compatible endpoints: replies, usage, tool calls and errors.

Nothing here uses the network. A body becomes a `Reply`, or the `ModelError` that describes it. All
clients share this module; `sse` reads streams, `waits` how long a server asks to wait.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from ..base.checks import is_blank
from ..base.finish_reasons import checked_finish, ending_of
from ..base.jsontext import loads, nesting_depth, reject_constant
from ..errors import (
    NOTHING_LEFT,
    AuthenticationError,
    BadResponseError,
    ContentFilterError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
)
from ..loop.records import MAX_TOOL_CALLS, ToolCall
from ..protocols import RateLimitStatus, Reply
from ..usage import Usage
from .error_words import Fault, is_out_of_credit, stated_fault
from .http_client import REFUSED_USAGE, UNKNOWN_USAGE, malformed_response
from .logprobs import logprob_entries, read_logprobs
from .reasoning import split_reasoning
from .waits import is_used_up, stated_wait

_BUSY_CODES = {"rate_limit_exceeded": 429, "rate_limit_error": 429, "overloaded_error": 529}
_OUT_OF_QUOTA_CODES = {
    "insufficient_quota",
    "billing_not_active",
    "billing_hard_limit_reached",
    "billing_error",
    "account_deactivated",
}
_JINJA_PREFIX = "Jinja Exception: "
_ROW_AND_COLUMN = re.compile(r" at row \d+, column \d+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


def shorten(text: str, limit: int = 300) -> str:
    """Return a text on one line of at most `limit` characters, without control characters."""
    line = " ".join(_CONTROL.sub(" ", text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def parse_body(body: bytes, content_type: str = "") -> Any:
    """Return the JSON in a body, which may have NaN and Infinity. Raises BadResponseError, which
    describes anything else.
    """
    try:
        return loads(body)
    except ValueError as error:
        if b"NaN" in body or b"Infinity" in body:  # (as log-probabilities)
            with suppress(ValueError, RecursionError):
                return json.loads(body)
        raise malformed_response(_not_json_message(body, content_type, str(error))) from None


def _not_json_message(body: bytes, content_type: str, error: str) -> str:
    if not body.strip():
        return "sent an empty body"
    if body[:200].lstrip().lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return f"sent a web page instead of an answer: {shorten(page_text(body))!r}"
    try:
        body.decode()
    except UnicodeDecodeError as bad:
        return f"sent text that is not UTF-8 (byte {bad.start})"
    kind = f" ({shorten(content_type, 60)})" if content_type and "json" not in content_type else ""
    return f"sent broken or cut off JSON{kind}: {shorten(error, 100)}"


_MARKUP = r"<(script|style)\b(?:.*?</\1>|.*)|<[^<>]*>"  # (unclosed scripts, too)


def page_text(body: bytes) -> str:
    """Return the text of a web page, without its tags."""
    page = body[:4000].decode("utf-8", "replace")
    return re.sub(_MARKUP, " ", page, flags=re.DOTALL | re.IGNORECASE)


def read_reply(data: Any, rate_limit_status: RateLimitStatus | None = None) -> Reply:
    """Return the Reply in a chat completion, with the rate limits that came with it. Raises
    ModelError if it is none.
    """
    if not isinstance(data, dict):
        raise malformed_response(
            f"sent {json_type_name(data)} where a chat completion was expected"
        )
    choices, usage = data.get("choices"), read_usage(data.get("usage"))
    if error := stated_error(data):
        raise answer_error(
            "sent an error instead of an answer", error, usage if choices else UNKNOWN_USAGE
        )
    if not isinstance(choices, list) or not choices:
        raise _missing_choices_error(data, choices)
    choice = choices[0]
    finish = read_finish(choice, usage) if isinstance(choice, dict) else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if message is None and finish in {"length", "content_filter"}:
        message = {}
    if not isinstance(message, dict):
        raise malformed_response(f"sent a choice without a message: {shorten(repr(choice), 100)}")
    fields = read_identity(data)
    if rate_limit_status is not None:
        fields["rate_limit_status"] = rate_limit_status
    fields["cached_tokens"] = read_cached_tokens(data.get("usage"))
    if choice.get("logprobs") and (entries := logprob_entries(choice)):
        fields["token_logprobs"] = read_logprobs(entries)
    return reply_from_message(message, finish, usage, fields)


def read_identity(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an endpoint calls its answer and the model that gave it, as fields of a Reply; ""
    if it does not say.
    """
    id, model = data.get("id"), data.get("model")
    return {
        "response_id": id[:MAX_NAME_CHARS] if isinstance(id, str) else "",
        "response_model": model[:MAX_NAME_CHARS] if isinstance(model, str) else "",
    }


def bad_response(message: str, *, usage: Usage) -> BadResponseError:
    """Return the error for an answer of a model that cannot be used."""
    return BadResponseError(message, retryable=True, usage=usage)


def json_type_name(value: Any) -> str:
    kinds = {
        type(None): "null",
        list: "a list",
        dict: "an object",
        str: "a text",
        bool: "true or false",
    }
    return kinds.get(type(value), "a number")


def stated_error(part: Any) -> Any:
    """Return the error that a part of an answer (the body, a choice, a message, an event) states,
    or None.
    """
    if not isinstance(part, Mapping):
        return None
    error = (
        part.get("error")
        or (part if "error" in (part.get("object"), part.get("type")) else None)
        or _minimax_error(part)
    )
    is_error = any(error.values()) if isinstance(error, Mapping) else error
    return error if is_error else None


def _minimax_error(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error in the field that MiniMax adds to each answer; 0 is its code for success."""
    state = part.get("base_resp")
    if isinstance(state, Mapping) and state.get("status_code"):
        return {"code": state["status_code"], "message": state.get("status_msg")}
    return None


_ERRORS_IN_ANSWERS = {RateLimitError, AuthenticationError, ContentFilterError, ContextLengthError}


def answer_error(message: str, error: Any, usage: Usage = UNKNOWN_USAGE) -> ModelError:
    """Return the error for an answer with status 200 that states an error, with the server's words
    and its status.
    """
    body = ErrorBody({"error": error})
    wait = stated_wait(body.status or 502, {}, error)
    kind, is_retryable = _error_class(body.status or 200, body, wait)
    status = f"status {body.status}: " if body.status else ""
    text = (
        f"{message}: {status}{body.text or ', '.join(sorted(body.codes)) or 'it does not say why'}"
    )
    asked = wait if is_retryable else None
    if kind in _ERRORS_IN_ANSWERS or (kind is ModelUnavailableError and not is_retryable):
        stated = kind(
            text, status=body.status, retry_after=asked, retryable=is_retryable, usage=usage
        )
        return _with_cause(stated, body, body.status or 200)
    failure = malformed_response(text, retryable=is_retryable)
    failure.status, failure.retry_after, failure.usage = body.status, asked, usage
    return failure


def read_finish(choice: Mapping[str, Any], usage: Usage = UNKNOWN_USAGE) -> str | None:
    """Return OpenAI's reason to finish for that of a choice, whole or in a stream; None if it
    states none.

    Raises ModelError if the choice states an error, or did not end as a whole answer does.
    """
    if (
        error := stated_error(choice)
        or stated_error(choice.get("message"))
        or stated_error(choice.get("delta"))
    ):
        raise answer_error("broke off with an error", error, usage)
    reason = choice.get("finish_reason")
    return checked_finish(
        choice.get("native_finish_reason") if ending_of(reason) is None else reason, usage
    )


def _missing_choices_error(data: Mapping[str, Any], choices: Any) -> ModelError:
    if choices == []:
        return malformed_response("sent an answer with an empty list of choices")
    if "choices" in data:
        return malformed_response(f"sent {json_type_name(choices)} as choices")
    words = ErrorBody(data).text
    said = (
        f": {words}" if words else f", with {shorten(', '.join(map(str, data)), 100) or 'nothing'}"
    )
    return malformed_response(f"sent an object without choices{said}")


def reply_from_message(
    message: Mapping[str, Any],
    finish: Any,
    usage: Usage,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Reply:
    """Return a Reply, with these further fields, from a message.

    Raises ContentFilterError for a refusal, BadResponseError for an empty answer.
    """
    content, reasoning = split_content(message.get("content"), usage)
    if field := reasoning_field(message):
        reasoning.append(message[field])
    text, thoughts, form = split_reasoning(content)
    if any(map(str.strip, reasoning)):
        form = "separate" if form is None else "other"
    if thoughts:
        reasoning.append(thoughts)
    finish = checked_finish(finish, usage)
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal.strip():
        raise ContentFilterError(f"refused: {shorten(refusal)}", usage=usage)
    if finish == "content_filter":
        raise ContentFilterError(
            "the answer was withheld by a content filter (finish_reason content_filter)",
            usage=usage,
        )
    tool_calls = read_tool_calls(message, finish, usage)
    if is_blank(text) and not tool_calls:
        # a server may take the answer for reasoning
        text, thoughts, form = split_reasoning(message[field] if field else "")
        if form is None or is_blank(text):
            raise _empty_answer_error(finish, usage, field, has_reasoning=bool(reasoning))
        reasoning = [thoughts]
    text = "" if is_blank(text) else text
    reasoning_parts = "\n".join(reasoning) or None
    return Reply(
        text, usage, finish, reasoning_parts, tool_calls=tool_calls, reasoning_form=form, **fields
    )


REASONING_ADVICE = "turn its thinking off or lower it, or correct the server's reasoning parser"


def _empty_answer_error(
    finish: str | None, usage: Usage, field: str, *, has_reasoning: bool
) -> BadResponseError:
    if finish == "length":
        part = "on reasoning: no answer came" if has_reasoning else "before its answer began"
        return truncated_error(f"used up its tokens {part} (raise `max_tokens`)", usage)
    kind = "an empty answer"
    if has_reasoning:
        kind += (
            f": the model wrote only reasoning{f' ({field})' if field else ''}; {REASONING_ADVICE}"
        )
    return bad_response(f"sent {kind} (finish_reason {finish!r})", usage=usage).without_text()


def truncated_error(message: str, usage: Usage) -> BadResponseError:
    """Return the error for an answer of which the token limit left nothing that can be used; the
    same call would end so again.
    """
    error = BadResponseError(message, retryable=False, usage=usage)
    error.truncated = True
    return error


def reasoning_field(message: Mapping[str, Any]) -> str:
    """Return the name of the field of a message, or of a part of one, that has its reasoning; "" if
    there is none.
    """
    return next(
        (
            name
            for name in ("reasoning_content", "reasoning")
            if message.get(name) and isinstance(message[name], str)
        ),
        "",
    )


def reasoning_text(message: Mapping[str, Any]) -> str:
    """Return the reasoning in a field of its own."""
    field = reasoning_field(message)
    return message[field] if field else ""


def split_content(content: Any, usage: Usage) -> tuple[str, list[str]]:
    """Return the text and the reasoning in a content, which is a text, None or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise bad_response(
            f"sent {json_type_name(content)} as the content of its message", usage=usage
        )
    texts: list[str] = []
    reasoning: list[str] = []
    for part in content:
        if not isinstance(part, dict):
            raise bad_response(f"sent a content with {json_type_name(part)} in it", usage=usage)
        if (
            str(part.get("type")).startswith(("thinking", "reasoning"))
            or part.get("thought") is True
        ):
            inside = part.get("thinking") or part.get("reasoning") or part.get("text")
            reasoning += filter(None, [split_content(inside, usage)[0]])
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts), reasoning


def read_usage(usage: Any) -> Usage:
    """Return the usage of one call. A number that is missing, negative or no integer is unknown."""
    fields = usage if isinstance(usage, dict) else {}
    return Usage(
        1,
        read_count(fields.get("prompt_tokens")),
        read_count(fields.get("completion_tokens")),
        cost=None,
    )


def read_cached_tokens(usage: Any) -> int:
    """Return the tokens of a prompt that the usage of a call counts apart because they were in a
    cache, in whichever field.
    """
    fields = dict(usage) if isinstance(usage, dict) else {}
    for name in ("prompt_tokens_details", "input_tokens_details"):
        fields |= details if isinstance(details := fields.get(name), dict) else {}
    return sum(read_count(value) or 0 for name, value in fields.items() if "cache" in name)


def read_count(value: Any) -> int | None:
    """Return a number of tokens or requests; None if it is missing, negative or no integer."""
    return value if type(value) is int and value >= 0 else None


# ---- tool calls

MAX_ARGUMENT_DEPTH = 100  # nesting of the arguments of a tool call
MAX_NAME_CHARS = 256  # characters of the name and of the ID of a tool call


def read_tool_calls(
    message: Mapping[str, Any], finish: str | None, usage: Usage
) -> tuple[ToolCall, ...]:
    """Return the tool calls in a message. Raises BadResponseError for invalid ones.

    Besides OpenAI's form, it reads the earlier `function_call`, arguments as an object, and calls
    without an ID, as other servers send them. A missing or repeated ID is replaced by a hash of the
    call, so that the same answer has the same IDs.
    """
    items = message.get("tool_calls")
    if not items:
        if not (function_call := message.get("function_call")):
            return ()
        items = [{"function": function_call}]
    if not isinstance(items, list):
        raise bad_response(f"sent {json_type_name(items)} as tool calls", usage=usage)
    if len(items) > MAX_TOOL_CALLS:
        raise bad_response(
            f"sent {len(items)} tool calls; at most {MAX_TOOL_CALLS} are read", usage=usage
        )
    calls: list[ToolCall] = []
    for index, item in enumerate(items):
        call = _tool_call(item, finish, usage)
        if not call.id or call.id in {other.id for other in calls}:
            digest = sha256(json.dumps([index, call.name, call.arguments]).encode()).hexdigest()
            call = ToolCall(call.name, call.arguments, f"call_{digest[:24]}")
        calls.append(call)
    return tuple(calls)


def _tool_call(call: Any, finish: str | None, usage: Usage) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(call, dict) and call.get("type") not in {None, "", "function"}:
        raise bad_response(
            f"sent a tool call of the type {shorten(repr(call['type']), 60)}; only functions can "
            "be called",
            usage=usage,
        )
    if not isinstance(function, dict):
        raise bad_response(
            f"sent a tool call without a function: {shorten(repr(call), 100)}", usage=usage
        )
    name, id = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_CHARS:
        raise bad_response(
            f"sent a tool call without the name of a function: {shorten(repr(name), 100)}",
            usage=usage,
        )
    arguments = _arguments(name, function.get("arguments"), finish, usage)
    return ToolCall(
        name, arguments, id if isinstance(id, str) and len(id) <= MAX_NAME_CHARS else ""
    )


def _arguments(name: str, raw: Any, finish: str | None, usage: Usage) -> str:
    """Return the arguments as JSON text; valid JSON text is returned unchanged."""
    of = f"the arguments of the tool call {shorten(name, 60)!r}"
    if isinstance(raw, str) and raw.strip():
        try:
            value = json.loads(raw, parse_constant=reject_constant)
        except (ValueError, RecursionError) as error:
            if finish == "length":
                raise truncated_error(f"was cut off in {of} (raise `max_tokens`)", usage) from None
            raise bad_response(
                f"sent no JSON as {of}: {shorten(str(error), 100)}", usage=usage
            ) from None
    else:
        value = {} if raw is None or isinstance(raw, str) else raw
    if not isinstance(value, dict):
        raise bad_response(
            f"sent {json_type_name(value)} as {of}; they must be an object", usage=usage
        )
    if nesting_depth(value) > MAX_ARGUMENT_DEPTH:
        raise bad_response(f"nested {of} more than {MAX_ARGUMENT_DEPTH} deep", usage=usage)
    return raw if isinstance(raw, str) and raw.strip() else json.dumps(value, ensure_ascii=False)


# ---- errors


# OpenAI and most others; TGI; Databricks
_CODE_FIELDS = ("code", "type", "error_type", "error_code")


def _error_fields(data: Any) -> Mapping[str, Any]:
    """Return the fields of the error in a body; a text is its message. An error may be the first of
    a list (Gemini, Cloudflare).
    """
    for _ in range(4):
        if isinstance(data, list) and data:
            data = data[0]
        elif isinstance(data, Mapping):
            inner = data.get("error") or data.get("errors")
            if isinstance(inner, str):
                return {"message": inner, **data}
            if not isinstance(inner, Mapping | list) or not inner:
                return data
            data = inner
        else:
            break
    return data if isinstance(data, Mapping) else {"message": data}


class ErrorBody:
    """An error object of a server: its message, its codes, and the parameter that it names."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self._fields: Mapping[str, Any] = _error_fields(data)
        detail = self._fields.get("detail")
        text = _error_message(self._fields.get("message") or detail or "")
        self.text = shorten(f"{text}{_cause_of(self._fields)}")

    @property
    def status(self) -> int | None:
        """The HTTP status that it states, as a number or by a word for a busy server."""
        code = str(self._fields.get("code"))
        if len(code) == 3 and code.isdecimal():
            return int(code)
        return next((status for word, status in _BUSY_CODES.items() if word in self.codes), None)

    @property
    def codes(self) -> set[str]:
        return {str(self._fields[k]) for k in _CODE_FIELDS if self._fields.get(k)}

    def fault(self, status: int) -> Fault | None:
        """Return what its codes and its text say is wrong."""
        return stated_fault(status, self.codes, self.text)

    def is_inferred(self, status: int) -> bool:
        """Whether only its text says so, which may quote the request."""
        return self.fault(status) != stated_fault(status, self.codes, "")

    def is_used_up(self, status: int, wait: float | None) -> bool:
        """Whether the account has no money, or its quota is zero or used up for a day; `wait`: see
        `stated_wait`.
        """
        if status == 402 or self.codes & _OUT_OF_QUOTA_CODES or self.fault(status) == "money":
            return True
        return status == 429 and is_used_up(self.data, wait)

    @property
    def param(self) -> str | None:
        param = self._fields.get("param")
        return param if isinstance(param, str) else None


def _cause_of(fields: Mapping[str, Any]) -> str:
    """Return the words of the provider behind a router, which OpenRouter puts beside its own
    message.
    """
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f" ({shorten(raw, 200)})" if isinstance(raw, str) and raw.strip() else ""


def _error_message(message: Any) -> str:
    """Return the message of an error: that of a chat template without its source, those of a
    validator by field.
    """
    if isinstance(message, Mapping):
        message = message.get("detail") or message.get("message") or str(message)
    if isinstance(message, list):
        return "; ".join(map(_field_error, message[:10]))
    text = str(message)
    return (
        text.rpartition(_JINJA_PREFIX)[2]
        if _JINJA_PREFIX in text
        else _ROW_AND_COLUMN.split(text, 1)[0]
    )


def _field_error(detail: Any) -> str:
    """Return one error of a validator, without the value that it repeats."""
    if not isinstance(detail, Mapping) or "msg" not in detail:
        return str(detail)
    location = detail.get("loc")
    return (
        f"{'.'.join(map(str, location))}: {detail['msg']}"
        if isinstance(location, list)
        else str(detail["msg"])
    )


def parse_error_body(body: bytes) -> ErrorBody:
    """Return the error in a body of any form."""
    try:
        return ErrorBody(loads(body))
    except ValueError:
        return ErrorBody(page_text(body))


def error_from_status(
    status: int, error_body: ErrorBody, headers: Mapping[str, str] | None = None
) -> ModelError:
    """Return the typed error for an error status, with the usage of a refused call."""
    wait = stated_wait(status, headers or {}, error_body.data)
    kind, retryable = _error_class(status, error_body, wait)
    text = f": {error_body.text}" if error_body.text else ""
    if error_body.param and error_body.param not in error_body.text:
        text += (
            f" (parameter {shorten(error_body.param, 60)!r}: "
            f"{shorten(', '.join(sorted(error_body.codes)), 100)})"
        )
    asked = wait if retryable else None
    refused = kind(
        f"status {status}{text}",
        status=status,
        retry_after=asked,
        retryable=retryable,
        usage=REFUSED_USAGE,
    )
    return _with_cause(refused, error_body, status)


def _with_cause(error: ModelError, body: ErrorBody, status: int) -> ModelError:
    """Note whether only the text of a body says what is wrong, and whether it is the quota or the
    credit.
    """
    error.inferred = body.is_inferred(status)
    if isinstance(error, AuthenticationError) and is_out_of_credit(error):
        error.reason = NOTHING_LEFT
    return error


def _error_class(
    status: int, error_body: ErrorBody, wait: float | None
) -> tuple[type[ModelError], bool]:
    """Return the class of an error, and whether its call may be retried."""
    fault = error_body.fault(status)
    if fault == "filter":
        return ContentFilterError, False
    if fault == "length" or status == 413:
        return ContextLengthError, False
    if status in {401, 403} or fault == "key" or error_body.is_used_up(status, wait):
        return AuthenticationError, False
    if status in {404, 405, 410} or fault == "model":
        return ModelUnavailableError, False
    match status:
        case 408:
            return ModelTimeoutError, True
        case 429:
            return RateLimitError, True
        case (
            409 | 424 | 425 | 498
        ):  # (424: TGI failed while it generated; 498: Groq has no capacity)
            return ModelUnavailableError, True
    return (ModelError, False) if 400 <= status < 500 else (ModelUnavailableError, True)
